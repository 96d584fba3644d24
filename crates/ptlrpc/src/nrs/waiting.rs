//! The requests of one priority that wait in a lane, and the order in which a policy lets them run. A sans-IO engine.
//!
//! Whatever the policy, a request gets its place when it arrives: the *round* in which it is to run, its *batch* within the round, and
//! its place within the batch. A batch is some requests of one owner, as many as the policy's quantum allows: of one client (`crrn`,
//! `turns`), of one object (`orr`), or of the target (`trr`, `fifo`). The next batch of the same owner belongs to the next round, so
//! that every owner has one batch in each round.
//!
//! Under `turns`, a client with nothing waiting goes before all others of the round, as long as what it has in a round, and had in the one
//! before, is no more than half of what owners have on average. So a program that writes little now and then does not wait for
//! programs that always have more to write. Their clients do not go first, although a client whose whole window runs has nothing
//! waiting either: the requests that it sends next would run one by one, and not in the order of their offsets. All that goes first in a
//! round is no more than a quarter of the round before, so that a crowd that comes at once does not hold up those who are waiting: the rest of it goes
//! last in this round, and first in the next. There the owner has a second batch in its order, so that both together are one turn.

use super::classified::{Classified, Place};
use super::policy::{Batches, Policy};
use nacre_base::{Fid, FxHashMap, Nid};
use std::collections::BTreeMap;

/// Requests in the order in which they will run.
pub(super) struct Waiting<T> {
    order: Batches,
    requests: BTreeMap<Key, Request<T>>,
    owners: FxHashMap<Owner, Batch>,
    /// Round of the request that ran last.
    round: u64,
    /// Cost of all requests that have run in this round.
    served: u64,
    /// Number of owners of these requests.
    served_owners: u64,
    /// Half of the cost of an owner's requests in the round before, on average.
    share: u64,
    /// Cost of the requests that may still go first in this round.
    first_left: u64,
    next_batch: u64,
    next_arrival: u64,
}

/// A request with its owner and its cost: one or, under `turns`, its bytes.
struct Request<T> {
    owner: Owner,
    cost: u64,
    request: T,
}

/// Where a request is in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    round: u64,
    batch: u64,
    /// Object and offset, if the policy orders requests by them.
    place: Option<(Fid, u64)>,
    arrival: u64,
}

/// The owner of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Target,
    Client(Nid),
    Object(Fid),
}

/// The latest batch of an owner.
#[derive(Debug, Clone, Copy)]
struct Batch {
    round: u64,
    number: u64,
    /// Room for further requests, in requests or, under `turns`, in bytes.
    left: u64,
    /// Requests of all batches of the owner that wait.
    waiting: usize,
    ran: Rounds,
}

impl Batch {
    /// True if the batch runs before the others of this round.
    fn goes_first_in(&self, round: u64) -> bool {
        self.number == FIRST && self.round == round
    }
}

/// Cost of the requests of an owner that have run.
#[derive(Debug, Clone, Copy, Default)]
struct Rounds {
    /// The round in which its latest request ran.
    round: u64,
    /// The cost in this round.
    had: u64,
    /// The cost in the round before.
    before: u64,
}

impl Rounds {
    /// The costs in this round, which is the latest or a later one.
    fn at(self, round: u64) -> Rounds {
        match round - self.round {
            0 => self,
            1 => Rounds { round, had: 0, before: self.had },
            _ => Rounds { round, had: 0, before: 0 },
        }
    }
}

/// Batches that run before the others of their round: those of clients that had nothing waiting.
const FIRST: u64 = 0;
/// Batches that run after the others of their round: those that come when enough has gone first.
const LAST: u64 = u64::MAX;
/// Least bytes that count for a request where batches are limited by bytes.
const BYTES_MIN: u64 = 64 << 10;
/// Bytes that a client may have first in a round even if others have little.
const SHARE_MIN: u64 = 4 * BYTES_MIN;
/// All that goes first in a round is at most this part of the round before.
const FIRST_PART: u64 = 4;
/// Bytes that all clients may have first in a round even if the round before was short.
const FIRST_MIN: u64 = 64 << 20;
/// Owners without requests are forgotten when there are so many more than those with requests.
const IDLE_OWNERS_MAX: usize = 1024;

impl<T: Classified> Waiting<T> {
    pub(super) fn new(order: Batches) -> Waiting<T> {
        let (requests, owners) = Default::default();
        let (round, served, served_owners, share, first_left) = (0, 0, 0, SHARE_MIN, FIRST_MIN);
        let (next_batch, next_arrival) = (FIRST + 1, 0);
        Waiting { order, requests, owners, round, served, served_owners, share, first_left, next_batch, next_arrival }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Orders all requests anew.
    pub(super) fn set_order(&mut self, order: Batches) {
        let waiting = self.drain();
        *self = Waiting::new(order);
        waiting.into_iter().for_each(|request| self.push(request));
    }

    /// All requests, in the order in which they came.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let mut waiting: Vec<(Key, T)> =
            std::mem::take(&mut self.requests).into_iter().map(|(key, waits)| (key, waits.request)).collect();
        waiting.sort_by_key(|(key, _)| key.arrival);
        waiting.into_iter().map(|(_, request)| request).collect()
    }

    /// A request has arrived and waits.
    pub(super) fn push(&mut self, request: T) {
        let is_by_place = self.order.is_by_place(true) || self.order.is_by_place(false);
        let place = if is_by_place { request.place() } else { None };
        let place = place.filter(|place| self.order.is_by_place(place.is_read));
        let (owner, cost) = self.owner_of(&request, place);
        let key = self.key(owner, cost, place);
        let before = self.requests.insert(key, Request { owner, cost, request });
        assert!(before.is_none(), "two requests at {key:?}");
    }

    fn owner_of(&self, request: &T, place: Option<Place>) -> (Owner, u64) {
        match self.order.policy {
            // `tbf` and `delay` have engines of their own.
            Policy::Fifo | Policy::Trr | Policy::Tbf | Policy::Delay => (Owner::Target, 1),
            Policy::Crrn => (Owner::Client(request.client()), 1),
            Policy::Turns => {
                // Nothing of the request has been checked, so it must not count more than a turn: that would raise every client's share.
                let cost = place.map_or(BYTES_MIN, |place| place.bytes.max(BYTES_MIN).min(self.order.quantum()));
                (Owner::Client(request.client()), cost)
            }
            Policy::Orr => (place.map_or(Owner::Target, |place| Owner::Object(place.object)), 1),
        }
    }

    fn key(&mut self, owner: Owner, cost: u64, place: Option<Place>) -> Key {
        let known = self.owners.get(&owner).copied();
        let fits = |batch: &Batch| batch.left >= cost && (cost <= self.first_left || !batch.goes_first_in(self.round));
        let joins = known.filter(|batch| batch.waiting > 0 && batch.round >= self.round && fits(batch));
        let mut batch = joins.unwrap_or_else(|| self.new_batch(known, cost));
        batch.left = batch.left.saturating_sub(cost);
        batch.waiting += 1;
        if batch.goes_first_in(self.round) {
            self.first_left = self.first_left.saturating_sub(cost);
        }
        self.owners.insert(owner, batch);
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        Key { round: batch.round, batch: batch.number, place: place.map(|p| (p.object, p.offset)), arrival }
    }

    /// A batch that begins with a request of this cost. `known` is the owner's latest batch.
    fn new_batch(&mut self, known: Option<Batch>, cost: u64) -> Batch {
        let (round, number) = (self.round, self.next_batch);
        self.next_batch += 1;
        let (waiting, ran) = known.map_or_else(Default::default, |batch| (batch.waiting, batch.ran));
        // Each round has one batch of an owner.
        let next = known.map_or(round, |batch| round.max(batch.round + 1));
        let in_order = Batch { round: next, number, left: self.order.quantum(), waiting, ran };
        if let Some(batch) = known.filter(|batch| waiting > 0 && batch.round > round && batch.number == FIRST) {
            // What goes first in the next round is part of the turn there. The client has waited for a round by then, so the rest of its turn
            // does not wait for another one.
            let left = (self.order.quantum() + batch.left).saturating_sub(self.share);
            return if cost <= left { Batch { round: batch.round, left, ..in_order } } else { in_order };
        }
        if self.order.policy != Policy::Turns || waiting > 0 {
            return in_order;
        }
        let may_go_first = cost <= self.first_left;
        if next == round {
            return Batch { number: if may_go_first { FIRST } else { LAST }, ..in_order };
        }
        let Rounds { had, before, .. } = ran.at(round);
        let rest = if before <= self.share { self.share.saturating_sub(had) } else { 0 };
        match cost <= rest {
            false => in_order,
            true if may_go_first => Batch { round, number: FIRST, left: rest, ..in_order },
            true => Batch { number: FIRST, left: self.share, ..in_order },
        }
    }

    /// Takes the request whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (key, Request { owner, cost, request }) = self.requests.pop_first()?;
        assert!(key.round >= self.round, "round {} after round {}", key.round, self.round);
        if key.round > self.round {
            self.share = (self.served / self.served_owners.max(1) / 2).max(SHARE_MIN);
            self.first_left = (self.served / FIRST_PART).max(FIRST_MIN);
            (self.round, self.served, self.served_owners) = (key.round, 0, 0);
            self.forget_idle();
        }
        let batch = self.owners.get_mut(&owner);
        let batch = batch.unwrap_or_else(|| panic!("{owner:?} has a request, and no batch"));
        batch.waiting -= 1;
        batch.ran = batch.ran.at(key.round);
        self.served_owners += u64::from(batch.ran.had == 0);
        batch.ran.had += cost;
        self.served += cost;
        if self.order.policy == Policy::Turns && batch.round == key.round {
            // Requests that come from now on wait for the next turn: otherwise a client whose requests follow one another would have the
            // device for longer than its waiting requests take, and the others would wait for it.
            batch.left = 0;
        }
        Some(request)
    }

    /// Forgets owners that have had no request since the last round.
    fn forget_idle(&mut self) {
        if self.owners.len() > 2 * self.requests.len() + IDLE_OWNERS_MAX {
            let round = self.round;
            self.owners.retain(|_, batch| batch.waiting > 0 || batch.round >= round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ticket;
    use super::super::policy::{Order, Ordered, Quanta};
    use super::*;
    use nacre_base::Prng;
    use nacre_wire::RpcHeader;

    const MIB: u64 = 1 << 20;

    /// A write of 1 MiB: its client, its object, its number of MiB there. Client [`LIAR`] says that it writes more than any disk holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Write(u32, u32, u64);

    const LIAR: u32 = 666;

    static HEADER: std::sync::LazyLock<RpcHeader> = std::sync::LazyLock::new(RpcHeader::default);

    impl Classified for Write {
        fn header(&self) -> &RpcHeader {
            &HEADER
        }

        fn client(&self) -> Nid {
            Nid::sim(self.0)
        }

        fn place(&self) -> Option<Place> {
            let object = Fid { seq: 1, oid: self.1, ver: 0 };
            let bytes = if self.0 == LIAR { u64::MAX } else { MIB };
            Some(Place { object, offset: self.2 * MIB, bytes, is_read: false })
        }

        fn note(&self, _ticket: Ticket) {}

        fn noted(&self) -> Ticket {
            Ticket::default()
        }
    }

    fn of(policy: Policy) -> Waiting<Write> {
        with_turn(policy, 3)
    }

    fn with_turn(policy: Policy, turn_mib: u32) -> Waiting<Write> {
        let (orr_ordered, trr_ordered) = (Ordered::ReadsAndWrites, Ordered::ReadsAndWrites);
        let quanta = Quanta { crrn: 2, orr: 3, trr: 4, turn_mib, orr_ordered, trr_ordered };
        Waiting::new(Order::of(policy, quanta).batches())
    }

    /// The policies that this engine carries out.
    const ORDERING: [Policy; 5] = [Policy::Fifo, Policy::Crrn, Policy::Orr, Policy::Trr, Policy::Turns];

    fn order(waiting: &mut Waiting<Write>) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| waiting.pop()).map(|write| (write.0, write.2)).collect()
    }

    fn after(policy: Policy, arrivals: &[Write]) -> Vec<(u32, u64)> {
        let mut waiting = of(policy);
        arrivals.iter().for_each(|write| waiting.push(*write));
        order(&mut waiting)
    }

    /// Client 1 has sent five writes of its object, in no order; then client 2 two of its own.
    const ARRIVALS: [Write; 7] = [
        Write(1, 1, 4),
        Write(1, 1, 0),
        Write(1, 1, 3),
        Write(1, 1, 1),
        Write(1, 1, 2),
        Write(2, 2, 9),
        Write(2, 2, 8),
    ];

    #[test]
    fn each_policy_has_its_order() {
        let as_they_came = [(1, 4), (1, 0), (1, 3), (1, 1), (1, 2), (2, 9), (2, 8)];
        assert_eq!(after(Policy::Fifo, &ARRIVALS), as_they_came);
        let two_at_a_time = [(1, 4), (1, 0), (2, 9), (2, 8), (1, 3), (1, 1), (1, 2)];
        assert_eq!(after(Policy::Crrn, &ARRIVALS), two_at_a_time);
        let three_of_an_object_by_offset = [(1, 0), (1, 3), (1, 4), (2, 8), (2, 9), (1, 1), (1, 2)];
        assert_eq!(after(Policy::Orr, &ARRIVALS), three_of_an_object_by_offset);
        let rounds_of_four_by_offset = [(1, 0), (1, 1), (1, 3), (1, 4), (1, 2), (2, 8), (2, 9)];
        assert_eq!(after(Policy::Trr, &ARRIVALS), rounds_of_four_by_offset);
        let turns_of_three_mib_by_offset = [(1, 0), (1, 3), (1, 4), (2, 8), (2, 9), (1, 1), (1, 2)];
        assert_eq!(after(Policy::Turns, &ARRIVALS), turns_of_three_mib_by_offset);
    }

    #[test]
    fn a_client_that_had_nothing_waiting_goes_before_those_who_always_do() {
        let mut waiting = with_turn(Policy::Turns, 12);
        for client in 1..=3 {
            (0..30).for_each(|n| waiting.push(Write(client, client, n)));
        }
        let first_round = (0..36).map(|_| waiting.pop().unwrap().0).filter(|client| *client == 3).count();
        assert_eq!((first_round, waiting.pop()), (12, Some(Write(1, 1, 12))));
        waiting.push(Write(9, 9, 0));
        assert_eq!(waiting.pop(), Some(Write(9, 9, 0)));
        // Until it has had half of what each of the others had in the round before: 6 MiB.
        for n in 1..6 {
            waiting.push(Write(9, 9, n));
            assert_eq!(waiting.pop(), Some(Write(9, 9, n)));
        }
        waiting.push(Write(9, 9, 6));
        assert_eq!(waiting.pop(), Some(Write(1, 1, 13)));
        let rest = order(&mut waiting);
        let place = |of: (u32, u64)| rest.iter().position(|one| *one == of).unwrap();
        assert!(place((3, 23)) < place((9, 6)), "{rest:?}");
    }

    /// Three clients always have writes waiting. A round of 300 MiB has run, and the first write of the next one, of which 299 wait.
    fn within_a_round() -> Waiting<Write> {
        let mut waiting = with_turn(Policy::Turns, 100);
        for client in 1..=3 {
            (0..300).for_each(|n| waiting.push(Write(client, client, n)));
        }
        // Of the first client only so much went first when nothing was known of rounds.
        let first_round = 64 + 100 + 100;
        (0..first_round + 300 + 1).for_each(|_| assert!(waiting.pop().is_some()));
        waiting
    }

    #[test]
    fn of_a_crowd_that_comes_at_once_some_go_first_and_the_others_last() {
        let mut waiting = within_a_round();
        (1000..1400).rev().for_each(|client| waiting.push(Write(client, client, 0)));
        let first: Vec<u32> = (0..75).map(|_| waiting.pop().unwrap().0).collect();
        assert_eq!(first, (1325..1400).collect::<Vec<_>>(), "a quarter of a round of 300 MiB");
        // Nobody else may go first in this round, but this client has had little.
        waiting.push(Write(1399, 1399, 1));
        let rest = order(&mut waiting);
        assert!(rest[..299].iter().all(|(client, _)| *client < 1000), "those who were waiting");
        let last: Vec<u32> = rest[299..624].iter().map(|(client, _)| *client).collect();
        assert_eq!((last, rest[624]), ((1000..1325).collect(), (1399, 1)), "by their places");
    }

    /// Otherwise a part of what it sends would wait for two rounds.
    #[test]
    fn a_client_that_goes_first_in_the_next_round_has_the_rest_of_its_turn_there() {
        let mut waiting = within_a_round();
        for client in 1..=3 {
            (300..600).for_each(|n| waiting.push(Write(client, client, n)));
        }
        (1000..1075).for_each(|client| waiting.push(Write(client, client, 0)));
        assert!((0..75).all(|_| waiting.pop().unwrap().0 >= 1000));
        waiting.push(Write(2000, 2000, 0));
        assert!((0..299).all(|_| waiting.pop().unwrap().0 < 1000));
        assert_eq!(waiting.pop(), Some(Write(2000, 2000, 0)), "last in its first round");
        (1..101).for_each(|n| waiting.push(Write(2000, 2000, n)));
        let order = order(&mut waiting);
        let places: Vec<usize> = (0..order.len()).filter(|place| order[*place].0 == 2000).collect();
        assert_eq!(
            places,
            (0..50).chain(350..400).collect::<Vec<_>>(),
            "half of its turn first, and the rest after the others"
        );
    }

    /// Requests that join a batch count, too.
    #[test]
    fn no_more_than_a_quarter_of_a_round_goes_first_however_much_each_client_sends() {
        let mut waiting = within_a_round();
        for client in [8, 9] {
            (0..100).for_each(|n| waiting.push(Write(client, client, n)));
        }
        let order = order(&mut waiting);
        let first: Vec<u32> = order.iter().map(|(client, _)| *client).take_while(|client| *client >= 8).collect();
        let of = |client: u32| first.iter().filter(|first| **first == client).count();
        assert_eq!((of(8), of(9)), (75, 0));
    }

    /// Client 9 may have half a turn first, however large a request was said to be that ran in the round before.
    #[test]
    fn a_request_that_lies_about_its_size_counts_a_turn() {
        let mut waiting = with_turn(Policy::Turns, 12);
        [LIAR, 1].iter().for_each(|client| (0..24).for_each(|n| waiting.push(Write(*client, *client, n))));
        assert_eq!((0..13).map(|_| waiting.pop().unwrap().0).filter(|client| *client == LIAR).count(), 1);
        assert_eq!(waiting.pop().unwrap().0, LIAR, "the second round");
        let runs_first = |n: &u64| {
            waiting.push(Write(9, 9, *n));
            waiting.pop() == Some(Write(9, 9, *n))
        };
        assert_eq!((0..12).take_while(runs_first).count(), 6);
    }

    #[test]
    fn a_client_whose_turn_has_just_run_does_not_go_first() {
        let mut waiting = with_turn(Policy::Turns, 12);
        for client in 1..=3 {
            (0..12).for_each(|n| waiting.push(Write(client, client, n)));
        }
        assert_eq!((0..36).filter_map(|_| waiting.pop()).count(), 36);
        (12..14).for_each(|n| waiting.push(Write(1, 1, n)));
        (12..24).for_each(|n| waiting.push(Write(2, 2, n)));
        assert_eq!([waiting.pop(), waiting.pop()], [Some(Write(1, 1, 12)), Some(Write(1, 1, 13))]);
        waiting.push(Write(1, 1, 14));
        assert_eq!(waiting.pop(), Some(Write(2, 2, 12)));
    }

    #[test]
    fn requests_wait_on_when_the_policy_changes() {
        let mut waiting = of(Policy::Turns);
        ARRIVALS.iter().for_each(|write| waiting.push(*write));
        assert_eq!(waiting.pop(), Some(Write(1, 1, 0)));
        waiting.set_order(of(Policy::Fifo).order);
        assert_eq!(order(&mut waiting), [(1, 4), (1, 3), (1, 1), (1, 2), (2, 9), (2, 8)]);
    }

    /// Whatever a client sends, another one has its turn in every round; and nothing is lost.
    #[test]
    fn nobody_waits_longer_than_a_turn_of_everyone_else() {
        for (seed, policy) in (0..40).flat_map(|seed| ORDERING.map(|policy| (seed, policy))) {
            let (mut prng, mut waiting) = (Prng::new(seed), of(policy));
            let (mut sent, mut seen) = (Vec::new(), Vec::new());
            let mut since_small = 0;
            for n in 0..600 {
                let write = Write(prng.below(5) as u32, prng.below(9) as u32, n);
                sent.push(write);
                waiting.push(write);
                if n % 3 == 0 {
                    let next = waiting.pop().unwrap();
                    seen.push(next);
                    since_small = if next.0 == 4 { 0 } else { since_small + 1 };
                }
                let most = 2 * 5 * 3;
                assert!(policy != Policy::Turns || since_small <= most, "seed {seed}: {since_small}");
            }
            seen.extend(std::iter::from_fn(|| waiting.pop()));
            assert_eq!(waiting.len(), 0);
            seen.sort();
            sent.sort();
            assert_eq!(seen, sent, "seed {seed}, {policy}");
        }
    }

    #[test]
    fn owners_that_come_and_go_are_forgotten() {
        let mut waiting = of(Policy::Crrn);
        for client in 0..100_000 {
            waiting.push(Write(client, 1, 0));
            waiting.push(Write(1_000_000, 1, client.into()));
            waiting.pop();
            waiting.pop();
        }
        assert!(waiting.owners.len() < 3 * IDLE_OWNERS_MAX, "{}", waiting.owners.len());
    }
}
