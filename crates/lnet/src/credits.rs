//! Credits: how many messages the driver may have in hand per interface and per peer. A sans-IO engine.
//!
//! A message takes a credit of its peer first and then one of the interface. If none is free it waits its turn in
//! the order of arrival: a peer that takes nothing holds back only its own queue until its credits are used up.
//!
//! With lanes, each purpose has a reserve of both kinds of credits and a queue of its own ([`crate::stock`]), so that a
//! service that takes no more requests does not hold up what gives its locks back.
//!
//! The interface's credit comes back when the driver has sent the message, the peer's when the peer has taken it. A driver
//! that does not know the difference returns both at once.
//!
//! Counts below zero say how many wait, and the lowest value ever seen tells an administrator whether there are too few.

use crate::message::Purpose;
use crate::router::Level;
use crate::stock::{Stock, Taken, lane_of};
use crate::waits::{WaitTimes, Waits};
use nacre_base::{Nid, SmallMap, Time};
use std::collections::VecDeque;

/// The credits of one interface and of the peers behind it. `T` is a message.
pub(crate) struct Credits<T: Packable> {
    interface: Gate<(Nid, Taken, T)>,
    peers: SmallMap<Nid, Gate<T>>,
    peer_credits: u32,
    /// The most credits that a peer can get. It gets more while it takes messages and less than half of its credits is free.
    peer_credits_max: u32,
    /// Messages that were sent, hold a credit of their peer, and none of the interface.
    untaken: u64,
    /// Most messages that wait for one peer, and their bytes; more are refused.
    queue_max: usize,
    queue_bytes_max: usize,
    /// Messages of a lane that wait for one peer as they are; further ones wait packed.
    unpacked_max: usize,
    /// Whether purposes have lanes of their own.
    lanes: bool,
    /// Times that messages waited for a credit of their peer, and of the interface.
    peer_waits: WaitTimes,
    interface_waits: WaitTimes,
}

/// Something that waits for credits, perhaps together with many others.
pub(crate) trait Packable: Sized {
    /// The same in less memory.
    type Packed;

    /// Packs it; gives it back if that is not worth it.
    fn pack(self) -> Result<Self::Packed, Self>;

    fn unpack(packed: Self::Packed) -> Self;
}

impl<T: Packable> Packable for (Nid, Taken, T) {
    type Packed = (Nid, Taken, T::Packed);

    fn pack(self) -> Result<Self::Packed, Self> {
        let (peer, taken, item) = self;
        match item.pack() {
            Ok(packed) => Ok((peer, taken, packed)),
            Err(item) => Err((peer, taken, item)),
        }
    }

    fn unpack((peer, taken, packed): Self::Packed) -> Self {
        (peer, taken, T::unpack(packed))
    }
}

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<T> {
    /// It holds both credits: give it to the driver.
    Go(T, Pass),
    /// It waits; a later call hands it out.
    Queued,
    /// The peer's queue is full: the message is refused and holds nothing.
    Full(T),
}

/// The credits that a message holds while the driver has it in hand. That of its peer it also holds after it was sent.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the credits are held until they are given back"]
pub(crate) struct Pass {
    peer: Taken,
    interface: Taken,
}

/// A message that may go now, with what it holds.
pub(crate) type Released<T> = (T, Pass);

impl<T: Packable> Credits<T> {
    pub(crate) fn new(credits: u32, peer_credits: u32, queue_max: usize, queue_bytes_max: usize) -> Credits<T> {
        assert!(credits > 0 && peer_credits > 0, "without credits nothing can be sent");
        let (peers, peer_credits_max) = (SmallMap::default(), peer_credits);
        Credits {
            interface: Gate::new(credits, false),
            peers,
            peer_credits,
            peer_credits_max,
            untaken: 0,
            queue_max,
            queue_bytes_max,
            unpacked_max: usize::MAX,
            lanes: false,
            peer_waits: WaitTimes::default(),
            interface_waits: WaitTimes::default(),
        }
    }

    /// Lets the credits of a peer grow: by one each time that it takes a message while less than half of them is free, so
    /// up to twofold in each round trip, until half is free or there are `max`. With half of them free nothing waits, and
    /// the peer need not be asked what it has taken.
    pub(crate) fn with_growth(mut self, max: u32) -> Credits<T> {
        self.peer_credits_max = max.max(self.peer_credits);
        self
    }

    /// Has messages that wait for a peer behind so many others of their lane wait packed.
    pub(crate) fn with_unpacked(mut self, max: usize) -> Credits<T> {
        self.unpacked_max = max;
        self
    }

    /// Gives each purpose a reserve and a queue of its own, or takes them away. Returns the messages that go now.
    pub(crate) fn set_lanes(&mut self, lanes: bool, now: Time) -> Vec<Released<T>> {
        self.lanes = lanes;
        self.interface.stock.resize(self.interface.stock.max(), lanes);
        let mut out: Vec<_> = std::iter::from_fn(|| self.next_of_interface(now)).collect();
        for peer in self.known() {
            if let Some(gate) = self.peers.get_mut(&peer) {
                gate.stock.resize(gate.stock.max(), lanes);
            }
            out.extend(self.use_peer(peer, now));
        }
        self.assert_sound();
        out
    }

    /// Gives each peer so many credits, which may grow up to `most`. Peers that hold more get none before they have given back
    /// what is too many. Returns the messages that go now.
    pub(crate) fn set_peer_credits(&mut self, credits: u32, most: u32, now: Time) -> Vec<Released<T>> {
        assert!(credits > 0 && credits <= most, "{credits} credits of a peer, and at most {most}");
        (self.peer_credits, self.peer_credits_max) = (credits, most);
        let (mut out, lanes) = (Vec::new(), self.lanes);
        for peer in self.known() {
            if let Some(gate) = self.peers.get_mut(&peer) {
                // Messages that were sent while credits were plentiful did not ask to hear when they are taken. One more goes
                // and asks, or the peer's credits would never come back.
                if credits < gate.stock.max() && gate.stock.taken() > 0 && !gate.stock.is_low() {
                    gate.stock.allow_one_more();
                }
                gate.stock.resize(credits, lanes);
                gate.stock.forget_low();
            }
            out.extend(self.use_peer(peer, now));
        }
        self.assert_sound();
        out
    }

    /// The peers in a fixed order.
    fn known(&self) -> Vec<Nid> {
        let mut peers: Vec<Nid> = self.peers.keys().copied().collect();
        peers.sort();
        peers
    }

    /// Gives the interface so many credits. Returns the messages that go now.
    pub(crate) fn set_credits(&mut self, credits: u32, now: Time) -> Vec<Released<T>> {
        assert!(credits > 0, "without credits nothing can be sent");
        self.interface.stock.resize(credits, self.lanes);
        self.interface.stock.forget_low();
        let released = std::iter::from_fn(|| self.next_of_interface(now)).collect();
        self.assert_sound();
        released
    }

    /// Credits of a peer that was sent nothing yet.
    pub(crate) fn peer_credits(&self) -> u32 {
        self.peer_credits
    }

    /// The most that the credits of a peer grow to.
    pub(crate) fn peer_credits_max(&self) -> u32 {
        self.peer_credits_max
    }

    /// A message of so many bytes wants to go to `peer`. It may be refused if too much waits already, unless `is_bounded` says
    /// that something else bounds the number of such messages.
    pub(crate) fn handle_send(
        &mut self,
        peer: Nid,
        (purpose, is_bounded): (Purpose, bool),
        bytes: usize,
        message: T,
        now: Time,
    ) -> Admission<T> {
        let lane = lane_of(self.lanes, purpose);
        let (credits, lanes) = (self.peer_credits, self.lanes);
        let gate = self.peers.get_or_insert_with(peer, || Gate::new(credits, lanes));
        if !is_bounded && gate.is_full(lane, self.queue_max, self.queue_bytes_max) {
            return Admission::Full(message);
        }
        match gate.take(lane, (bytes, self.unpacked_max), message, now) {
            // Few messages wait here, as each holds a credit of its peer.
            Some((credit, message)) => self
                .enter_interface(peer, credit, message, now)
                .map_or(Admission::Queued, |(message, pass)| Admission::Go(message, pass)),
            None => Admission::Queued,
        }
    }

    /// A message that holds a credit of its peer wants one of the interface.
    fn enter_interface(&mut self, peer: Nid, credit: Taken, message: T, now: Time) -> Option<Released<T>> {
        let lane = credit.lane();
        let (interface, (_, peer, message)) =
            self.interface.take(lane, (0, usize::MAX), (peer, credit, message), now)?;
        Some((message, Pass { peer, interface }))
    }

    /// Messages that wait for a peer take its free credits.
    fn use_peer(&mut self, peer: Nid, now: Time) -> Vec<Released<T>> {
        std::iter::from_fn(|| self.next_of_peer(peer, now)).flatten().collect()
    }

    /// The next message that waits for a peer takes a credit of it, if one is free: the outer `None` says that there is no
    /// such message, the inner one that it waits for the interface now.
    fn next_of_peer(&mut self, peer: Nid, now: Time) -> Option<Option<Released<T>>> {
        let (credit, message) = self.peers.get_mut(&peer)?.next(&mut self.peer_waits, now)?;
        Some(self.enter_interface(peer, credit, message, now))
    }

    fn next_of_interface(&mut self, now: Time) -> Option<Released<T>> {
        let (interface, (_, peer, message)) = self.interface.next(&mut self.interface_waits, now)?;
        Some((message, Pass { peer, interface }))
    }

    /// The driver has sent a message, which its peer has yet to take: the interface's credit comes back, and a message may
    /// go because of it.
    pub(crate) fn handle_sent(&mut self, pass: Pass, now: Time) -> (Taken, Option<Released<T>>) {
        self.untaken += 1;
        let Pass { peer, interface } = pass;
        self.interface.give(interface);
        (peer, self.next_of_interface(now))
    }

    /// The peer has taken a message that was sent, or its connection is lost: the peer's credit comes back. Returns the
    /// messages that may go now. There may be several if the peer gets one more credit, because the reserve of each purpose
    /// may grow with it.
    pub(crate) fn handle_taken(&mut self, peer: Nid, credit: Taken, may_grow: bool, now: Time) -> Vec<Released<T>> {
        assert!(self.untaken > 0, "{peer} took a message that nobody sent");
        self.untaken -= 1;
        let mut out: Vec<_> = self.give_peer(peer, credit, now).into_iter().collect();
        if may_grow {
            out.extend(self.grow(peer, now));
        }
        out
    }

    /// Gives a peer that takes messages one more credit, if it may have more and less than half of those it has is free.
    fn grow(&mut self, peer: Nid, now: Time) -> Vec<Released<T>> {
        let (max, lanes) = (self.peer_credits_max, self.lanes);
        let grown = self.peers.get_mut(&peer).filter(|gate| gate.stock.max() < max && gate.stock.is_low());
        let Some(gate) = grown else { return Vec::new() };
        gate.stock.resize(gate.stock.max() + 1, lanes);
        self.use_peer(peer, now)
    }

    /// A credit of a peer comes back. Returns the message that may go now.
    fn give_peer(&mut self, peer: Nid, credit: Taken, now: Time) -> Option<Released<T>> {
        // A peer is not forgotten while a message to it holds a credit.
        let Some(gate) = self.peers.get_mut(&peer) else { panic!("{peer} gives a credit back that it never had") };
        gate.give(credit);
        self.next_of_peer(peer, now).flatten()
    }

    /// Whether a peer should say soon what it has taken: less than half of its credits is free, or none that messages of
    /// this purpose may take. The message that takes the last credit always finds it so: otherwise nobody would ask, and
    /// the next would wait for ever.
    pub(crate) fn is_low(&self, peer: Nid, purpose: Purpose) -> bool {
        let lane = lane_of(self.lanes, purpose);
        self.peers.get(&peer).is_some_and(|gate| gate.stock.is_low() || !gate.stock.can_take(lane))
    }

    /// The driver is done with a message to `peer`: its credits come back. Returns the messages that may go now: one because of the
    /// interface's credit, one because of the peer's, and others if the peer gets one more credit, as with [`Credits::handle_taken`].
    pub(crate) fn handle_done(&mut self, peer: Nid, pass: Pass, may_grow: bool, now: Time) -> Vec<Released<T>> {
        self.interface.give(pass.interface);
        let mut out: Vec<_> = self.next_of_interface(now).into_iter().collect();
        out.extend(self.give_peer(peer, pass.peer, now));
        if may_grow {
            out.extend(self.grow(peer, now));
        }
        out
    }

    /// The interface's credits.
    pub(crate) fn interface(&self) -> Level {
        self.interface.stock.level()
    }

    /// Messages that wait for a credit of the interface.
    pub(crate) fn interface_queued(&self) -> usize {
        self.interface.stock.waiting() as usize
    }

    /// A peer's credits; all of them if nothing was ever sent to it.
    pub(crate) fn peer(&self, peer: Nid) -> Level {
        let untouched = || Stock::new(self.peer_credits, self.lanes).level();
        self.peers.get(&peer).map_or_else(untouched, |gate| gate.stock.level())
    }

    /// Messages that wait for a credit of a peer.
    pub(crate) fn peer_queued(&self, peer: Nid) -> usize {
        self.peers.get(&peer).map_or(0, |gate| gate.stock.waiting() as usize)
    }

    /// How long messages waited for credits of their peers, and of the interface.
    pub(crate) fn waits(&self) -> [Waits; 2] {
        [self.peer_waits.read(), self.interface_waits.read()]
    }

    /// Forgets peers that hold no credits.
    pub(crate) fn forget_idle(&mut self) {
        self.peers.retain(|_, g| g.stock.taken() > 0 || g.stock.waiting() > 0);
        self.assert_sound();
    }

    /// Panics if the credits of the peers and those of the interface do not agree. Visits all peers.
    fn assert_sound(&self) {
        self.interface.assert_conserved();
        self.peers.values().for_each(Gate::assert_conserved);
        let through: u64 = self.peers.values().map(|gate| u64::from(gate.stock.taken())).sum();
        let here = u64::from(self.interface.stock.taken()) + u64::from(self.interface.stock.waiting()) + self.untaken;
        assert_eq!(
            through, here,
            "messages that hold a peer's credit, and those that hold or want the interface's or were sent"
        );
    }
}

/// Credits, and the messages that wait for one.
struct Gate<T: Packable> {
    stock: Stock,
    /// Made when the first message waits, because most peers are never short of credits.
    waiting: Option<Box<Waiting<T>>>,
}

struct Waiting<T: Packable> {
    lanes: [VecDeque<Waiter<T>>; Purpose::COUNT],
    /// Bytes of the messages that wait in each lane.
    bytes: [usize; Purpose::COUNT],
}

struct Waiter<T: Packable> {
    since: Time,
    bytes: usize,
    item: Item<T>,
}

/// Something that waits, as it is or packed.
pub(crate) enum Item<T: Packable> {
    Whole(T),
    Packed(T::Packed),
}

impl<T: Packable> Item<T> {
    /// It waits behind `before` others, and is packed if those are `unpacked_max` or more.
    pub(crate) fn at_rest(self, before: usize, unpacked_max: usize) -> Item<T> {
        match self {
            Item::Whole(item) if before >= unpacked_max => item.pack().map_or_else(Item::Whole, Item::Packed),
            as_it_is => as_it_is,
        }
    }

    pub(crate) fn unpacked(self) -> T {
        match self {
            Item::Whole(item) => item,
            Item::Packed(packed) => T::unpack(packed),
        }
    }
}

impl<T: Packable> Gate<T> {
    fn new(max: u32, lanes: bool) -> Gate<T> {
        Gate { stock: Stock::new(max, lanes), waiting: None }
    }

    /// Whether so many messages, or messages of so many bytes, wait in a lane that no more are let in.
    fn is_full(&self, lane: usize, queue_max: usize, queue_bytes_max: usize) -> bool {
        let waiting = self.waiting.as_deref();
        waiting.is_some_and(|w| w.lanes[lane].len() >= queue_max || w.bytes[lane] >= queue_bytes_max)
    }

    /// Takes a credit for something of so many bytes, which waits if there is none: packed, if so many wait in its lane already.
    fn take(&mut self, lane: usize, (bytes, unpacked_max): (usize, usize), item: T, now: Time) -> Option<(Taken, T)> {
        // Those that wait already go first.
        let is_next = self.waiting.as_deref().is_none_or(|waiting| waiting.lanes[lane].is_empty());
        let passed = match is_next.then(|| self.stock.take(lane)).flatten() {
            Some(taken) => Some((taken, item)),
            None => {
                self.stock.wait();
                let waiting = self.waiting.get_or_insert_default();
                let item = Item::Whole(item).at_rest(waiting.lanes[lane].len(), unpacked_max);
                waiting.lanes[lane].push_back(Waiter { since: now, bytes, item });
                waiting.bytes[lane] += bytes;
                None
            }
        };
        self.stock.note_low();
        self.assert_conserved();
        passed
    }

    /// A credit comes back. [`Gate::next`] says who gets it.
    fn give(&mut self, taken: Taken) {
        assert!(self.stock.taken() > 0, "a credit came back twice");
        self.stock.give(taken);
    }

    /// If a credit is free for a message that waits, the message leaves its queue with it. The most urgent purpose goes first.
    fn next(&mut self, waits: &mut WaitTimes, now: Time) -> Option<(Taken, T)> {
        if self.stock.waiting() == 0 {
            return None;
        }
        let waiting = self.waiting.as_deref_mut()?;
        let can_go = |lane: &usize| !waiting.lanes[*lane].is_empty() && self.stock.can_take(*lane);
        let lane = (0..Purpose::COUNT).find(can_go)?;
        let Waiter { since, bytes, item } = waiting.lanes[lane].pop_front()?;
        let taken = self.stock.take(lane)?;
        waiting.bytes[lane] -= bytes;
        self.stock.stop_waiting(1);
        waits.add(now.since(since));
        Some((taken, item.unpacked()))
    }

    /// Panics if a credit was lost or made, or if messages were lost.
    fn assert_conserved(&self) {
        self.stock.assert_conserved();
        let Some(waiting) = self.waiting.as_deref() else {
            return assert_eq!(self.stock.waiting(), 0, "messages wait without a queue");
        };
        let queued: usize = waiting.lanes.iter().map(VecDeque::len).sum();
        assert_eq!(self.stock.waiting() as usize, queued, "messages that wait for a credit");
        for (lane, queue) in waiting.lanes.iter().enumerate() {
            let bytes = waiting.bytes[lane];
            assert!(!queue.is_empty() || bytes == 0, "no message waits, and {bytes} bytes do");
            let is_idle = !queue.is_empty() && self.stock.can_take(lane);
            assert!(!is_idle, "{} messages wait, and a credit is free for them", queue.len());
        }
    }
}

impl<T: Packable> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { lanes: Default::default(), bytes: Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Full, Go, Queued};
    use nacre_base::Prng;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);
    const BULK: Purpose = Purpose::Bulk;
    const CANCEL: Purpose = Purpose::Callbacks;

    /// Odd messages can be packed.
    impl Packable for i32 {
        type Packed = String;

        fn pack(self) -> Result<String, i32> {
            if self % 2 == 0 { Err(self) } else { Ok(self.to_string()) }
        }

        fn unpack(packed: String) -> i32 {
            packed.parse().unwrap()
        }
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Outcome {
        Go(i32),
        Queued,
        Full(i32),
    }

    /// Credits, and what messages hold of them.
    struct Books {
        credits: Credits<i32>,
        peers: BTreeMap<i32, Nid>,
        in_hand: Vec<(Nid, Pass)>,
        sent: Vec<(Nid, Taken)>,
        now: Time,
    }

    impl Books {
        fn new(credits: u32, peer_credits: u32, queue_max: usize, queue_bytes_max: usize) -> Books {
            let credits = Credits::new(credits, peer_credits, queue_max, queue_bytes_max).with_unpacked(1);
            Books { credits, peers: BTreeMap::new(), in_hand: Vec::new(), sent: Vec::new(), now: Time::ZERO }
        }

        fn with_growth(mut self, max: u32) -> Books {
            self.credits = self.credits.with_growth(max);
            self
        }

        fn send_for(&mut self, purpose: Purpose, peer: Nid, bytes: usize, message: i32) -> Outcome {
            self.peers.insert(message, peer);
            match self.credits.handle_send(peer, (purpose, false), bytes, message, self.now) {
                Admission::Go(message, pass) => Go(self.note((message, pass))),
                Admission::Queued => Queued,
                Admission::Full(message) => Full(message),
            }
        }

        fn handle_send(&mut self, peer: Nid, bytes: usize, message: i32) -> Outcome {
            self.send_for(Purpose::Requests, peer, bytes, message)
        }

        fn note(&mut self, (message, pass): Released<i32>) -> i32 {
            self.in_hand.push((self.peers[&message], pass));
            message
        }

        /// The driver is done with the oldest message to a peer.
        fn handle_done(&mut self, peer: Nid) -> Vec<i32> {
            let at = self.in_hand.iter().position(|(to, _)| *to == peer).expect("a message to it is in hand");
            let (_, pass) = self.in_hand.remove(at);
            let released = self.credits.handle_done(peer, pass, false, self.now);
            released.into_iter().map(|released| self.note(released)).collect()
        }

        /// The driver has sent the oldest message.
        fn handle_sent(&mut self) -> Option<i32> {
            let (peer, pass) = self.in_hand.remove(0);
            let (credit, next) = self.credits.handle_sent(pass, self.now);
            self.sent.push((peer, credit));
            next.map(|next| self.note(next))
        }

        /// The peer of the oldest message that was sent has taken it.
        fn handle_taken(&mut self, may_grow: bool) -> Vec<i32> {
            let (peer, credit) = self.sent.remove(0);
            let released = self.credits.handle_taken(peer, credit, may_grow, self.now);
            released.into_iter().map(|released| self.note(released)).collect()
        }

        fn peer(&self, peer: Nid) -> (u32, i64, i64, usize) {
            let Level { max, available, low_water } = self.credits.peer(peer);
            (max, available, low_water, self.credits.peer_queued(peer))
        }

        fn set_peer_credits(&mut self, credits: u32, most: u32) -> Vec<i32> {
            let released = self.credits.set_peer_credits(credits, most, self.now);
            released.into_iter().map(|released| self.note(released)).collect()
        }

        fn interface(&self) -> (u32, i64, i64, usize) {
            let Level { max, available, low_water } = self.credits.interface();
            (max, available, low_water, self.credits.interface_queued())
        }
    }

    #[test]
    fn a_peer_without_credits_queues_and_is_served_in_order() {
        let mut c = Books::new(10, 2, 100, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Go(2));
        assert_eq!(c.handle_send(A, 1, 3), Queued);
        assert_eq!(c.handle_send(A, 1, 4), Queued);
        assert_eq!(c.handle_send(B, 1, 5), Go(5), "another peer is not held back");
        assert_eq!(c.peer(A), (2, -2, -2, 2));
        assert_eq!(c.handle_done(A), [3]);
        assert_eq!(c.handle_done(A), [4]);
        assert!(c.handle_done(A).is_empty());
        assert_eq!(c.peer(A), (2, 1, -2, 0));
        assert_eq!(c.interface(), (10, 8, 7, 0));
    }

    #[test]
    fn the_interface_is_shared_first_come_first_served() {
        let mut c = Books::new(1, 8, 100, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Queued);
        assert_eq!(c.handle_send(B, 1, 3), Queued);
        assert_eq!(c.interface(), (1, -2, -2, 2));
        assert_eq!(c.handle_done(A), [2]);
        assert_eq!(c.handle_done(A), [3]);
        assert!(c.handle_done(B).is_empty());
        assert_eq!((c.interface().1, c.peer(A).2), (1, 6));
    }

    #[test]
    fn a_full_queue_refuses() {
        let mut c = Books::new(8, 1, 1, 1000);
        assert_eq!(c.handle_send(A, 1, 1), Go(1));
        assert_eq!(c.handle_send(A, 1, 2), Queued);
        assert_eq!(c.handle_send(A, 1, 3), Full(3));
        assert_eq!(c.handle_done(A), [2]);
    }

    #[test]
    fn the_bytes_that_wait_for_a_peer_are_bounded() {
        let mut c = Books::new(8, 1, 100, 1000);
        assert_eq!(c.handle_send(A, 5000, 1), Go(1));
        assert_eq!(c.handle_send(A, 999, 2), Queued);
        assert_eq!(c.handle_send(A, 5000, 3), Queued, "any message finds room if little waits");
        assert_eq!(c.handle_send(A, 0, 4), Full(4));
        assert_eq!(c.handle_send(B, 5000, 5), Go(5));
        assert_eq!(c.handle_done(A), [2]);
        assert_eq!(c.handle_send(A, 1, 6), Full(6));
        assert_eq!(c.handle_done(A), [3]);
        assert_eq!(c.handle_send(A, 1, 7), Queued);
    }

    #[test]
    fn idle_peers_are_forgotten_busy_ones_are_not() {
        let mut c = Books::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(B, 1, 2);
        c.handle_done(A);
        c.credits.forget_idle();
        assert_eq!((c.credits.peers.get(&A).is_some(), c.credits.peers.get(&B).is_some()), (false, true));
    }

    /// A message that was written, and that its peer did not take, once gave its peer's credit back.
    #[test]
    fn a_peer_that_takes_nothing_keeps_its_own_credits_and_not_those_of_the_interface() {
        let mut c = Books::new(2, 2, 100, 1000);
        for message in 1..=2 {
            assert_eq!(c.handle_send(A, 1, message), Go(message));
            assert_eq!(c.handle_sent(), None);
        }
        assert_eq!(c.handle_send(A, 1, 3), Queued, "A has taken nothing");
        assert_eq!(c.handle_send(B, 1, 4), Go(4), "nor does that concern B");
        c.credits.assert_sound();
        assert_eq!(c.handle_taken(true), [3]);
        assert_eq!((c.peer(A).1, c.peer(A).2, c.interface().1), (0, -1, 0));
        c.credits.assert_sound();
    }

    #[test]
    fn credits_grow_while_the_peer_takes_messages_and_others_wait() {
        let mut c = Books::new(100, 2, 100, 1000).with_growth(8);
        let sent = (1..=20).filter(|m| matches!(c.handle_send(A, 1, *m), Go(_))).count();
        let (mut in_flight, mut rounds) = (sent, Vec::new());
        while in_flight > 0 {
            rounds.push(in_flight);
            (0..in_flight).for_each(|_| assert_eq!(c.handle_sent(), None));
            in_flight = (0..in_flight).map(|_| c.handle_taken(true).len()).sum();
            c.credits.assert_sound();
        }
        assert_eq!(rounds, [2, 4, 8, 6]);
        assert_eq!(c.peer(A), (8, 8, -18, 0));
        // Credits that an administrator has fixed grow again when he says so.
        for (least, most, grown) in [(3, 3, 3), (2, 8, 4)] {
            assert!(c.set_peer_credits(least, most).is_empty());
            let sent = (1..=least as i32 + 3).filter(|m| matches!(c.handle_send(A, 1, *m), Go(_))).count();
            assert_eq!(sent, least as usize);
            (0..sent).for_each(|_| assert_eq!(c.handle_sent(), None));
            (0..least).for_each(|_| drop(c.handle_taken(true)));
            assert_eq!(c.peer(A).0, grown);
            while c.credits.interface.stock.taken() > 0 {
                c.handle_sent();
                c.handle_taken(false);
            }
        }
    }

    /// After the number of credits was lowered, everything to the peer waited for ever.
    #[test]
    fn a_peer_is_asked_for_its_credits_after_their_number_was_lowered() {
        let mut c = Books::new(100, 32, 100, 1000);
        let asks = |c: &mut Books, message| {
            let sent = matches!(c.handle_send(A, 1, message), Go(_));
            (sent, c.credits.is_low(A, Purpose::Requests))
        };
        (1..=12).for_each(|message| assert_eq!(asks(&mut c, message), (true, false)));
        assert!(c.set_peer_credits(8, 8).is_empty());
        assert_eq!(asks(&mut c, 13), (true, true));
        assert!(!asks(&mut c, 14).0, "only one");
        (0..13).for_each(|_| assert_eq!(c.handle_sent(), None));
        let goes: Vec<_> = (0..13).flat_map(|_| c.handle_taken(true)).collect();
        assert_eq!(goes, [14]);
        assert_eq!(c.peer(A).1, 7);
        c.credits.assert_sound();
    }

    /// A peer with one credit was never asked, and kept it until it had something to send itself.
    #[test]
    fn at_most_half_of_the_credits_is_used_before_the_peer_is_asked() {
        for max in 1..=9 {
            let mut c = Books::new(100, max, 100, 1000);
            let is_asked = |message: u32| {
                c.handle_send(A, 1, message as i32);
                c.credits.is_low(A, Purpose::Requests)
            };
            let unasked = (1..=max).map(is_asked).filter(|is_asked| !is_asked).count() as u32;
            assert_eq!(unasked, max / 2, "of {max}");
        }
    }

    #[test]
    fn credits_grow_until_half_of_them_is_free() {
        let mut c = Books::new(100, 2, 100, 1000).with_growth(50);
        let mut in_flight = (1..=10).filter(|m| matches!(c.handle_send(A, 1, *m), Go(_))).count();
        for next in 11..200 {
            c.handle_sent();
            in_flight -= 1;
            in_flight += c.handle_taken(true).len();
            in_flight += usize::from(matches!(c.handle_send(A, 1, next), Go(_)));
            c.credits.assert_sound();
        }
        assert_eq!((in_flight, c.peer(A).3), (10, 0));
        assert!((18..=20).contains(&c.peer(A).0), "{:?}", c.peer(A));
    }

    #[test]
    fn a_peer_that_is_lost_does_not_get_more_credits() {
        let mut c = Books::new(100, 1, 100, 1000).with_growth(8);
        for message in 1..=3 {
            c.handle_send(A, 1, message);
        }
        c.handle_sent();
        assert_eq!(c.handle_taken(false), [2]);
        assert_eq!(c.peer(A).0, 1);
    }

    #[test]
    #[should_panic(expected = "took a message that nobody sent")]
    fn a_message_that_was_not_sent_is_not_taken() {
        let mut c = Books::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        let (_, pass) = c.in_hand.remove(0);
        let _ = c.credits.handle_taken(A, pass.peer, true, c.now);
    }

    #[test]
    #[should_panic(expected = "messages wait without a queue")]
    fn a_message_that_is_lost_is_a_defect() {
        let mut c = Books::new(8, 1, 8, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(A, 1, 2);
        c.credits.peers.get_mut(&A).unwrap().waiting = None;
        c.credits.assert_sound();
    }

    #[test]
    #[should_panic(expected = "1 messages wait, and a credit is free for them")]
    fn a_message_that_waits_for_a_credit_that_is_free_is_a_defect() {
        let mut c = Books::new(8, 1, 8, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(A, 1, 2);
        let (_, pass) = c.in_hand.remove(0);
        c.credits.peers.get_mut(&A).unwrap().stock.give(pass.peer);
        c.credits.assert_sound();
    }

    /// At a multiple of eight credits every reserve grows by one. Only one message was released then, so a message of another
    /// purpose went on waiting for a credit that was free, and the next send hit the engine's assertion.
    #[test]
    fn with_lanes_growth_lets_all_go_that_it_has_credits_for() {
        let mut c = Books::new(1000, 32, 1000, 100_000).with_growth(256);
        let _ = c.credits.set_lanes(true, c.now);
        let mut next = 0;
        let mut send = |c: &mut Books, purpose| {
            next += 1;
            c.send_for(purpose, A, 1, next)
        };
        for _ in 0..300 {
            send(&mut c, Purpose::Requests);
            send(&mut c, BULK);
        }
        while c.peer(A).0 < 256 {
            c.handle_sent();
            c.handle_taken(true);
            c.credits.assert_sound();
            send(&mut c, CANCEL);
        }
    }

    /// A router's buffers bound the messages that it passes on, so its queues need no limit of their own.
    #[test]
    fn what_is_bounded_otherwise_is_never_refused() {
        let mut c: Credits<i32> = Credits::new(8, 1, 1, 1000);
        let mut send = |is_bounded| c.handle_send(A, (BULK, is_bounded), 1, 0, Time::ZERO);
        assert!(matches!(send(false), Admission::Go(..)) && matches!(send(false), Admission::Queued));
        assert!(matches!(send(false), Admission::Full(_)) && matches!(send(true), Admission::Queued));
    }

    /// Requests that a server does not take use up what is shared and their own reserve. A cancel goes nevertheless, and
    /// is asked for at once when the last credit that it may have is used.
    #[test]
    fn with_lanes_each_purpose_has_credits_that_no_other_takes() {
        let mut c = Books::new(100, 16, 100, 1000);
        assert!(c.credits.set_lanes(true, c.now).is_empty());
        let sent = (1..=20).filter(|m| c.handle_send(A, 1, *m) == Go(*m)).count();
        assert_eq!((sent, c.peer(A)), (10, (16, -4, -4, 10)));
        assert_eq!(c.send_for(CANCEL, A, 1, 30), Go(30));
        assert_eq!(c.send_for(CANCEL, A, 1, 31), Go(31));
        assert_eq!(c.send_for(CANCEL, A, 1, 32), Queued);
        assert!(c.credits.is_low(A, CANCEL));
        assert_eq!(c.handle_done(A), [32], "the most urgent goes first into what is shared");
        let released: Vec<_> = c.credits.set_lanes(false, c.now).into_iter().map(|(message, _)| message).collect();
        assert_eq!(released, [11, 12, 13, 14], "without lanes what was reserved is for all");
    }

    /// Whatever the number of credits, a purpose that may not send any more has asked what the peer has taken.
    #[test]
    fn the_last_credit_that_a_purpose_may_have_asks_for_it() {
        for max in 1..=40 {
            let mut c = Books::new(100, max, 100, 1000);
            drop(c.credits.set_lanes(true, c.now));
            let mut last_was_low = false;
            for message in 1.. {
                if c.send_for(BULK, A, 1, message) == Queued {
                    break;
                }
                last_was_low = c.credits.is_low(A, BULK);
            }
            assert!(last_was_low, "of {max}");
        }
    }

    #[test]
    fn how_long_messages_waited_is_counted() {
        let mut c = Books::new(1, 1, 100, 1000);
        c.handle_send(A, 1, 1);
        c.handle_send(A, 1, 2);
        c.handle_send(B, 1, 3);
        c.now += Duration::from_micros(700);
        assert_eq!(c.handle_done(A), [3], "the second waits for the interface now");
        c.now += Duration::from_micros(5);
        assert_eq!(c.handle_done(B), [2]);
        let [peer, interface] = c.credits.waits();
        assert_eq!((peer.total_us, peer.counts[10]), (700, 1));
        assert_eq!((interface.total_us, interface.counts[10], interface.counts[3]), (705, 1, 1));
    }

    #[test]
    fn another_number_of_credits_counts_at_once_and_what_is_held_beyond_it_comes_back_first() {
        let mut c = Books::new(100, 2, 100, 1000);
        let sent = (1..=6).filter(|m| matches!(c.handle_send(A, 1, *m), Go(_))).count();
        assert_eq!((sent, c.set_peer_credits(4, 4)), (2, vec![3, 4]));
        assert_eq!(c.peer(A), (4, -2, -2, 2));
        assert!(c.set_peer_credits(1, 1).is_empty());
        assert!((0..3).all(|_| c.handle_done(A).is_empty()));
        let goes: Vec<i32> = (0..3).flat_map(|_| c.handle_done(A)).collect();
        assert_eq!(goes, [5, 6]);
        assert_eq!((c.peer(A).1, c.peer(B).0), (1, 1));
    }

    #[test]
    #[should_panic(expected = "a credit came back twice")]
    fn a_message_is_done_once() {
        let mut c = Books::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        let (_, Pass { peer, interface }) = &c.in_hand[0];
        let again = Pass { peer: peer.clone(), interface: interface.clone() };
        c.handle_done(A);
        let _ = c.credits.handle_done(A, again, false, c.now);
    }

    #[test]
    #[should_panic(expected = "messages that hold a peer's credit")]
    fn a_message_holds_both_credits() {
        let mut c = Books::new(8, 2, 1, 1000);
        c.handle_send(A, 1, 1);
        let (_, pass) = c.in_hand.remove(0);
        c.credits.interface.give(pass.interface);
        c.credits.assert_sound();
    }

    /// Whatever the order of sends and completions: no message is lost or doubled, no gate is overdrawn, and when all
    /// is done every credit is back.
    #[test]
    fn random_traffic_keeps_the_books() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut c = Books::new(5, 3, 1000, 1000);
            if seed % 2 == 0 {
                c = Books::new(12, 9, 1000, 1000);
                drop(c.credits.set_lanes(true, c.now));
            }
            let (most, most_of_peer) = if seed % 2 == 0 { (12, 9) } else { (5, 3) };
            let (mut seen, mut sent) = (0, 0);
            while sent < 300 || !c.in_hand.is_empty() {
                if sent < 300 && prng.one_in(2) {
                    let (peer, purpose) = (Nid::sim(prng.below(4) as u32), *prng.pick(&Purpose::ALL));
                    c.send_for(purpose, peer, 1, sent);
                    sent += 1;
                } else if !c.in_hand.is_empty() {
                    let (peer, _) = c.in_hand[prng.below(c.in_hand.len() as u64) as usize];
                    c.handle_done(peer);
                    seen += 1;
                }
                c.credits.assert_sound();
                assert_eq!(c.credits.interface.stock.taken() as usize, c.in_hand.len());
                assert!(c.in_hand.len() <= most);
                for p in 0..4 {
                    assert!(c.in_hand.iter().filter(|(n, _)| *n == Nid::sim(p)).count() <= most_of_peer);
                }
            }
            assert_eq!((seen, c.interface().1), (300, most as i64));
            assert!((0..4).all(|p| c.peer(Nid::sim(p)).1 == most_of_peer as i64));
        }
    }
}
