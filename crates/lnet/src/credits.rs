//! Credits: how many messages the driver may have in hand per interface and per peer. A sans-IO engine.
//!
//! A message takes a credit of its peer first and then one of the interface. Where a count goes below zero the message
//! waits, first in first out: a peer that takes nothing holds back only its own queue until its credits are used up.
//!
//! The interface's credit comes back when the driver has sent the message, the peer's when the peer has taken it. A driver
//! that does not know the difference returns both at once.
//!
//! Counts below zero say how many wait, and the lowest value ever seen tells an administrator whether there are too few.

use nacre_base::{FxHashMap, Nid};
use std::collections::VecDeque;

/// The credits of one interface and of the peers behind it. `T` is a message.
pub(crate) struct Credits<T> {
    interface: Gate<(Nid, T)>,
    peers: FxHashMap<Nid, Gate<T>>,
    peer_credits: u32,
    /// The most credits that a peer can get. It gets more while it takes messages and less than half of its credits is free.
    peer_credits_max: u32,
    /// Messages that were sent, hold a credit of their peer, and none of the interface.
    untaken: u64,
    /// Most messages that wait for one peer, and their bytes; more are refused.
    queue_max: usize,
    queue_bytes_max: usize,
}

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<T> {
    /// It holds both credits: give it to the driver.
    Go(T),
    /// It waits; a later `handle_done` hands it out.
    Queued,
    /// The peer's queue is full: the message is refused and holds nothing.
    Full(T),
}

/// Credits as `lnetctl` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateStatus {
    pub(crate) max: u32,
    pub(crate) available: i64,
    pub(crate) low_water: i64,
    pub(crate) queued: usize,
}

impl<T> Credits<T> {
    pub(crate) fn new(credits: u32, peer_credits: u32, queue_max: usize, queue_bytes_max: usize) -> Credits<T> {
        assert!(credits > 0 && peer_credits > 0, "without credits nothing can be sent");
        let (interface, peers, peer_credits_max) = (Gate::new(credits), FxHashMap::default(), peer_credits);
        Credits { interface, peers, peer_credits, peer_credits_max, untaken: 0, queue_max, queue_bytes_max }
    }

    /// Lets the credits of a peer grow: by one each time that it takes a message while less than half of them is free, so
    /// up to twofold in each round trip, until half is free or there are `max`. With half of them free nothing waits, and
    /// the peer need not be asked what it has taken.
    pub(crate) fn with_growth(mut self, max: u32) -> Credits<T> {
        self.peer_credits_max = max.max(self.peer_credits);
        self
    }

    /// Gives each peer so many credits and no more. Peers that hold more get none before they have given back what is too
    /// many. Returns the messages that go now.
    pub(crate) fn set_peer_credits(&mut self, credits: u32) -> Vec<T> {
        assert!(credits > 0, "without credits nothing can be sent");
        (self.peer_credits, self.peer_credits_max) = (credits, credits);
        let mut peers: Vec<Nid> = self.peers.keys().copied().collect();
        peers.sort();
        let mut out = Vec::new();
        for peer in peers {
            let released = self.peers.get_mut(&peer).map(|gate| gate.resize(credits)).unwrap_or_default();
            out.extend(released.into_iter().filter_map(|m| self.interface.take(0, (peer, m))).map(|(_, m)| m));
        }
        self.assert_sound();
        out
    }

    /// Gives the interface so many credits. Returns the messages that go now.
    pub(crate) fn set_credits(&mut self, credits: u32) -> Vec<T> {
        assert!(credits > 0, "without credits nothing can be sent");
        let released = self.interface.resize(credits).into_iter().map(|(_, message)| message).collect();
        self.assert_sound();
        released
    }

    /// Credits of a peer that was sent nothing yet.
    pub(crate) fn peer_credits(&self) -> u32 {
        self.peer_credits
    }

    /// A message of so many bytes wants to go to `peer`.
    pub(crate) fn handle_send(&mut self, peer: Nid, bytes: usize, message: T) -> Admission<T> {
        let gate = self.peers.entry(peer).or_insert_with(|| Gate::new(self.peer_credits));
        if gate.queue.len() >= self.queue_max || gate.queued_bytes >= self.queue_bytes_max {
            return Admission::Full(message);
        }
        let Some(message) = gate.take(bytes, message) else { return Admission::Queued };
        // Few messages wait here, as each holds a credit of its peer.
        self.interface.take(0, (peer, message)).map_or(Admission::Queued, |(_, m)| Admission::Go(m))
    }

    /// The driver has sent a message, which its peer has yet to take: the interface's credit comes back, and a message may
    /// go because of it.
    pub(crate) fn handle_sent(&mut self) -> Option<T> {
        self.untaken += 1;
        self.interface.give().map(|(_, message)| message)
    }

    /// The peer has taken a message that was sent, or its connection is lost: the peer's credit comes back. Up to two
    /// messages may go, the second because the peer gets one more credit.
    pub(crate) fn handle_taken(&mut self, peer: Nid, may_grow: bool) -> [Option<T>; 2] {
        assert!(self.untaken > 0, "{peer} took a message that nobody sent");
        self.untaken -= 1;
        let Some(gate) = self.peers.get_mut(&peer) else { panic!("{peer} took a message that held no credit of it") };
        let first = gate.give();
        let grows = may_grow && gate.max < self.peer_credits_max && gate.is_low();
        let second = if grows { gate.grow() } else { None };
        [first, second].map(|next| next.and_then(|m| self.interface.take(0, (peer, m))).map(|(_, m)| m))
    }

    /// Whether less than half of a peer's credits is free, so that the peer should say soon what it has taken. The message
    /// that takes a peer's last credit always finds it so: otherwise nobody would ask, and the next would wait for ever.
    pub(crate) fn is_low(&self, peer: Nid) -> bool {
        self.peers.get(&peer).is_some_and(Gate::is_low)
    }

    /// The driver is done with a message to `peer`: its credits come back, and up to two messages may go now, the
    /// first because of the interface's credit, the second because of the peer's.
    pub(crate) fn handle_done(&mut self, peer: Nid) -> [Option<T>; 2] {
        let first = self.interface.give().map(|(_, m)| m);
        // A peer is not forgotten while a message to it holds a credit.
        let Some(gate) = self.peers.get_mut(&peer) else {
            panic!("a message to {peer} is done, and it held no credit")
        };
        let second = gate.give().and_then(|m| self.interface.take(0, (peer, m))).map(|(_, m)| m);
        [first, second]
    }

    /// The interface's credits.
    pub(crate) fn interface(&self) -> GateStatus {
        self.interface.status()
    }

    /// A peer's credits; all of them if nothing was ever sent to it.
    pub(crate) fn peer(&self, peer: Nid) -> GateStatus {
        self.peers.get(&peer).map_or_else(|| Gate::<T>::new(self.peer_credits).status(), Gate::status)
    }

    /// Forgets peers that hold no credits.
    pub(crate) fn forget_idle(&mut self) {
        self.peers.retain(|_, g| g.taken > 0 || !g.queue.is_empty());
        self.assert_sound();
    }

    /// Panics if the credits of the peers and those of the interface do not agree. Visits all peers.
    fn assert_sound(&self) {
        self.interface.assert_conserved();
        self.peers.values().for_each(Gate::assert_conserved);
        let through: u64 = self.peers.values().map(|gate| u64::from(gate.taken)).sum();
        let here = u64::from(self.interface.taken) + self.interface.queue.len() as u64 + self.untaken;
        assert_eq!(
            through, here,
            "messages that hold a peer's credit, and those that hold or want the interface's or were sent"
        );
    }
}

struct Gate<T> {
    max: u32,
    /// Free credits. Below zero, the negated number of messages that wait, and of credits that are held beyond `max`.
    available: i64,
    low_water: i64,
    /// Credits that messages hold.
    taken: u32,
    /// Waiting messages, with their bytes.
    queue: VecDeque<(usize, T)>,
    queued_bytes: usize,
}

impl<T> Gate<T> {
    fn new(max: u32) -> Gate<T> {
        let available = i64::from(max);
        Gate { max, available, low_water: available, taken: 0, queue: VecDeque::new(), queued_bytes: 0 }
    }

    fn take(&mut self, bytes: usize, item: T) -> Option<T> {
        self.available -= 1;
        self.low_water = self.low_water.min(self.available);
        let passed = if self.available >= 0 {
            self.taken += 1;
            Some(item)
        } else {
            self.queue.push_back((bytes, item));
            self.queued_bytes += bytes;
            None
        };
        self.assert_conserved();
        passed
    }

    fn give(&mut self) -> Option<T> {
        assert!(self.taken > 0, "a credit came back twice");
        self.available += 1;
        self.taken -= 1;
        let next = self.next();
        self.assert_conserved();
        next
    }

    /// Takes the next message out of the queue if a credit is free for it.
    fn next(&mut self) -> Option<T> {
        if self.taken >= self.max {
            return None;
        }
        let (bytes, item) = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        self.taken += 1;
        Some(item)
    }

    fn is_low(&self) -> bool {
        self.available * 2 < i64::from(self.max)
    }

    /// One more credit.
    fn grow(&mut self) -> Option<T> {
        self.max += 1;
        self.available += 1;
        let next = self.next();
        self.assert_conserved();
        next
    }

    /// Another number of credits; what was lowest before says nothing about it. Returns the messages that no longer wait.
    fn resize(&mut self, max: u32) -> Vec<T> {
        self.available += i64::from(max) - i64::from(self.max);
        (self.max, self.low_water) = (max, self.available);
        let released = std::iter::from_fn(|| self.next()).collect();
        self.assert_conserved();
        released
    }

    /// Panics if a credit was lost or made, or if a message waits although a credit is free.
    fn assert_conserved(&self) {
        let (max, available, taken, queued) = (self.max, self.available, self.taken, self.queue.len());
        assert!(queued > 0 || self.queued_bytes == 0, "no message waits, and {} bytes do", self.queued_bytes);
        assert!(queued == 0 || taken >= max, "{queued} messages wait, and {taken} credits are taken, of {max}");
        let left = i64::from(max) - i64::from(taken) - queued as i64;
        assert_eq!(available, left, "of {max} credits, {taken} are taken, and {queued} messages wait");
    }

    fn status(&self) -> GateStatus {
        GateStatus { max: self.max, available: self.available, low_water: self.low_water, queued: self.queue.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);

    #[test]
    fn a_peer_without_credits_queues_and_is_served_in_order() {
        let mut c = Credits::new(10, 2, 100, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Admission::Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Admission::Go(2));
        assert_eq!(c.handle_send(A, 1, 3), Admission::Queued);
        assert_eq!(c.handle_send(A, 1, 4), Admission::Queued);
        assert_eq!(c.handle_send(B, 1, 5), Admission::Go(5), "another peer is not held back");
        assert_eq!(c.peer(A), GateStatus { max: 2, available: -2, low_water: -2, queued: 2 });
        assert_eq!(c.handle_done(A), [None, Some(3)]);
        assert_eq!(c.handle_done(A), [None, Some(4)]);
        assert_eq!(c.handle_done(A), [None, None]);
        assert_eq!(c.peer(A), GateStatus { max: 2, available: 1, low_water: -2, queued: 0 });
        assert_eq!(c.interface(), GateStatus { max: 10, available: 8, low_water: 7, queued: 0 });
    }

    #[test]
    fn the_interface_is_shared_first_come_first_served() {
        let mut c = Credits::new(1, 8, 100, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Admission::Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Admission::Queued);
        assert_eq!(c.handle_send(B, 1, 3), Admission::Queued);
        assert_eq!(c.interface(), GateStatus { max: 1, available: -2, low_water: -2, queued: 2 });
        assert_eq!(c.handle_done(A), [Some(2), None]);
        assert_eq!(c.handle_done(A), [Some(3), None]);
        assert_eq!(c.handle_done(B), [None, None]);
        assert_eq!((c.interface().available, c.peer(A).low_water), (1, 6));
    }

    #[test]
    fn a_full_queue_refuses() {
        let mut c = Credits::new(8, 1, 1, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Admission::Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Admission::Queued);
        assert_eq!(c.handle_send(A, 1, 3), Admission::Full(3));
        assert_eq!(c.handle_done(A), [None, Some(2)]);
    }

    #[test]
    fn the_bytes_that_wait_for_a_peer_are_bounded() {
        let mut c = Credits::new(8, 1, 100, 1000);
        assert_eq!(c.handle_send(A, 5000, 1), Admission::Go(1));
        assert_eq!(c.handle_send(A, 999, 2), Admission::Queued);
        assert_eq!(c.handle_send(A, 5000, 3), Admission::Queued, "any message finds room if little waits");
        assert_eq!(c.handle_send(A, 0, 4), Admission::Full(4));
        assert_eq!(c.handle_send(B, 5000, 5), Admission::Go(5));
        assert_eq!(c.handle_done(A), [None, Some(2)]);
        assert_eq!(c.handle_send(A, 1, 6), Admission::Full(6));
        assert_eq!(c.handle_done(A), [None, Some(3)]);
        assert_eq!(c.handle_send(A, 1, 7), Admission::Queued);
    }

    #[test]
    fn idle_peers_are_forgotten_busy_ones_are_not() {
        let mut c = Credits::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(B, 1, 2);
        c.handle_done(A);
        c.forget_idle();
        assert_eq!((c.peers.contains_key(&A), c.peers.contains_key(&B)), (false, true));
    }

    /// A message that was written, and that its peer did not take, once gave its peer's credit back.
    #[test]
    fn a_peer_that_takes_nothing_keeps_its_own_credits_and_not_those_of_the_interface() {
        let mut c = Credits::new(2, 2, 100, 1000);
        for message in 1..=2 {
            assert_eq!(c.handle_send(A, 1, message), Admission::Go(message));
            assert_eq!(c.handle_sent(), None);
        }
        assert_eq!(c.handle_send(A, 1, 3), Admission::Queued, "A has taken nothing");
        assert_eq!(c.handle_send(B, 1, 4), Admission::Go(4), "nor does that concern B");
        c.assert_sound();
        assert_eq!(c.handle_taken(A, true), [Some(3), None]);
        assert_eq!((c.peer(A).available, c.peer(A).low_water, c.interface().available), (0, -1, 0));
        c.assert_sound();
    }

    #[test]
    fn credits_grow_while_the_peer_takes_messages_and_others_wait() {
        let mut c = Credits::new(100, 2, 100, 1000).with_growth(8);
        let sent = (1..=20).filter(|m| matches!(c.handle_send(A, 1, *m), Admission::Go(_))).count();
        let (mut in_flight, mut rounds) = (sent, Vec::new());
        while in_flight > 0 {
            rounds.push(in_flight);
            (0..in_flight).for_each(|_| assert_eq!(c.handle_sent(), None));
            in_flight = (0..in_flight).map(|_| c.handle_taken(A, true).into_iter().flatten().count()).sum();
            c.assert_sound();
        }
        assert_eq!(rounds, [2, 4, 8, 6]);
        assert_eq!(c.peer(A), GateStatus { max: 8, available: 8, low_water: -18, queued: 0 });
    }

    /// A peer with one credit was never asked, and kept it until it had something to send itself.
    #[test]
    fn at_most_half_of_the_credits_is_used_before_the_peer_is_asked() {
        for max in 1..=9 {
            let mut c = Credits::new(100, max, 100, 1000);
            let is_asked = |message| {
                c.handle_send(A, 1, message);
                c.is_low(A)
            };
            let unasked = (1..=max).map(is_asked).filter(|is_asked| !is_asked).count() as u32;
            assert_eq!(unasked, max / 2, "of {max}");
        }
    }

    #[test]
    fn credits_grow_until_half_of_them_is_free() {
        let mut c = Credits::new(100, 2, 100, 1000).with_growth(50);
        let mut in_flight = (1..=10).filter(|m| matches!(c.handle_send(A, 1, *m), Admission::Go(_))).count();
        for next in 11..200 {
            c.handle_sent();
            in_flight -= 1;
            in_flight += c.handle_taken(A, true).into_iter().flatten().count();
            in_flight += usize::from(matches!(c.handle_send(A, 1, next), Admission::Go(_)));
            c.assert_sound();
        }
        assert_eq!((in_flight, c.peer(A).queued), (10, 0));
        assert!((18..=20).contains(&c.peer(A).max), "{:?}", c.peer(A));
    }

    #[test]
    fn a_peer_that_is_lost_does_not_get_more_credits() {
        let mut c = Credits::new(100, 1, 100, 1000).with_growth(8);
        for message in 1..=3 {
            c.handle_send(A, 1, message);
        }
        c.handle_sent();
        assert_eq!(c.handle_taken(A, false), [Some(2), None]);
        assert_eq!(c.peer(A).max, 1);
    }

    #[test]
    #[should_panic(expected = "took a message that nobody sent")]
    fn a_message_that_was_not_sent_is_not_taken() {
        let mut c = Credits::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.handle_taken(A, true);
    }

    #[test]
    #[should_panic(expected = "of 2 credits, 1 are taken, and 0 messages wait")]
    fn a_credit_that_is_made_is_a_defect() {
        let mut c = Credits::new(2, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.interface.available += 1;
        c.assert_sound();
    }

    #[test]
    #[should_panic(expected = "1 messages wait, and 0 credits are taken, of 1")]
    fn a_message_that_waits_for_a_credit_that_is_free_is_a_defect() {
        let mut c = Credits::new(8, 1, 8, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(A, 1, 2);
        c.peers.get_mut(&A).unwrap().taken = 0;
        c.assert_sound();
    }

    #[test]
    fn another_number_of_credits_counts_at_once_and_what_is_held_beyond_it_comes_back_first() {
        let mut c = Credits::new(100, 2, 100, 1000);
        let sent = (1..=6).filter(|m| matches!(c.handle_send(A, 1, *m), Admission::Go(_))).count();
        assert_eq!((sent, c.set_peer_credits(4)), (2, vec![3, 4]));
        assert_eq!(c.peer(A), GateStatus { max: 4, available: -2, low_water: -2, queued: 2 });
        assert_eq!(c.set_peer_credits(1), [0; 0]);
        assert_eq!([c.handle_done(A), c.handle_done(A), c.handle_done(A)], [[None, None]; 3]);
        assert_eq!(
            [c.handle_done(A), c.handle_done(A), c.handle_done(A)],
            [[None, Some(5)], [None, Some(6)], [None; 2]]
        );
        assert_eq!((c.peer(A).available, c.peer(B).max), (1, 1));
    }

    #[test]
    #[should_panic(expected = "a credit came back twice")]
    fn a_message_is_done_once() {
        let mut c = Credits::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.handle_done(A);
        c.handle_done(A);
    }

    #[test]
    #[should_panic(expected = "messages that hold a peer's credit")]
    fn a_message_holds_both_credits() {
        let mut c = Credits::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.interface.give();
        c.assert_sound();
    }

    /// Whatever the order of sends and completions: no message is lost or doubled, no gate is overdrawn, and when all
    /// is done every credit is back.
    #[test]
    fn random_traffic_keeps_the_books() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut c = Credits::new(5, 3, 1000, 1000);
            let (mut in_hand, mut seen, mut sent) = (Vec::new(), Vec::new(), 0);
            while seen.len() < 300 || !in_hand.is_empty() {
                if sent < 300 && prng.one_in(2) {
                    let peer = Nid::sim(prng.below(4) as u32);
                    if let Admission::Go(m) = c.handle_send(peer, 1, (peer, sent)) {
                        in_hand.push(m);
                    }
                    sent += 1;
                } else if !in_hand.is_empty() {
                    let (peer, m) = in_hand.swap_remove(prng.below(in_hand.len() as u64) as usize);
                    seen.push(m);
                    in_hand.extend(c.handle_done(peer).into_iter().flatten());
                }
                c.assert_sound();
                assert_eq!(c.interface.taken as usize, in_hand.len());
                assert!(in_hand.len() <= 5);
                for p in 0..4 {
                    assert!(in_hand.iter().filter(|(n, _)| *n == Nid::sim(p)).count() <= 3);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..300).collect::<Vec<_>>());
            assert_eq!(c.interface().available, 5);
            assert!((0..4).all(|p| c.peer(Nid::sim(p)).available == 3));
        }
    }
}
