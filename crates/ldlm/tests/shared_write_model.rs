//! Ranks that write one shared file in turn, each a client of its own, against a lock table with Lustre's growth rules:
//! what a record costs in enqueues and callbacks, with locks grown as ever and with the policy. The table is printed by
//! `cargo test -p nacre-ldlm --test shared_write_model -- --nocapture`.

use nacre_base::{Prng, Time};
use nacre_ldlm::range_set::{Extent, RangeSet};
use nacre_ldlm::shared_write::{LockPlan, SharedWrite};
use std::collections::VecDeque;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Time from one write of anybody to the next.
const PACE: Duration = Duration::from_millis(1);
/// A rank is at most this many records ahead of the slowest.
const SKEW: u64 = 8;
/// Records of each rank that are not counted as settled.
const WARM_UP: u64 = 10;

/// How a rank gets from one write to the next.
#[derive(Clone, Copy)]
enum Pattern {
    /// Record i of rank r is number i x ranks + r.
    Strided { record: u64 },
    /// The same, each record in pieces, as a kernel hands on large writes.
    Pieces { record: u64, piece: u64 },
    /// The same from the end of the file on.
    Backward { record: u64 },
    /// Each rank writes its own part of the file from its begin to its end.
    Segments { record: u64 },
    /// Records anywhere in 64 GiB.
    Random { record: u64 },
}

impl Pattern {
    /// The `at`-th write of a rank.
    fn write(&self, at: u64, rank: u64, ranks: u64, records: u64) -> (u64, u64) {
        match *self {
            Pattern::Strided { record } => ((at * ranks + rank) * record, record),
            Pattern::Pieces { record, piece } => {
                let pieces = record / piece;
                ((at / pieces * ranks + rank) * record + at % pieces * piece, piece)
            }
            Pattern::Backward { record } => (((records - 1 - at) * ranks + rank) * record, record),
            Pattern::Segments { record } => ((rank * records + at) * record, record),
            Pattern::Random { record } => (nacre_base::hash::mix64(at * ranks + rank + 1) % (1 << 24) * record, record),
        }
    }
}

struct Lock {
    rank: usize,
    ranges: RangeSet,
    granted: Time,
    ahead: bool,
}

#[derive(Default, Clone, Copy)]
struct Cost {
    writes: u64,
    enqueues: u64,
    callbacks: u64,
    server_side: u64,
}

struct World {
    now: Time,
    locks: Vec<Lock>,
    conflicts: VecDeque<Time>,
    contended_until: Time,
    /// `None`: always grown locks.
    policies: Option<Vec<SharedWrite>>,
    cost: Cost,
}

impl World {
    fn new(ranks: u64, with_policy: bool) -> World {
        World {
            now: Time::from_secs(1),
            locks: Vec::new(),
            conflicts: VecDeque::new(),
            contended_until: Time::ZERO,
            policies: with_policy.then(|| (0..ranks).map(|_| SharedWrite::new(1)).collect()),
            cost: Cost::default(),
        }
    }

    fn write(&mut self, rank: usize, offset: u64, length: u64) {
        self.now += PACE;
        self.cost.writes += 1;
        let wanted = Extent::with_length(offset, length).unwrap();
        if let Some(policies) = &mut self.policies {
            policies[rank].handle_write(offset, length);
        }
        if self.locks.iter().any(|l| l.rank == rank && l.ranges.contains_extent(&wanted)) {
            return;
        }
        let ask = self.policies.as_mut().map_or(LockPlan::Grown, |p| p[rank].ask(offset, length, self.now));
        let exact = RangeSet::from_extents([wanted]).unwrap();
        match ask {
            LockPlan::Grown => {
                self.call_back(rank, &exact);
                let ranges = self.grow(rank, wanted);
                self.grant(rank, ranges, false);
            }
            LockPlan::Exact => {
                self.call_back(rank, &exact);
                self.grant(rank, exact, false);
            }
            LockPlan::Ahead(ranges) => {
                assert!(ranges.is_sorted() && ranges.len() <= 256);
                let set = RangeSet::from_extents(ranges.iter().copied()).unwrap();
                assert_eq!(set.ranges(), ranges, "ranges that touch");
                assert!(set.contains_extent(&wanted));
                let mut others = self.locks.iter().filter(|l| l.rank != rank && l.ahead);
                assert!(others.all(|l| !l.ranges.overlaps(&set)), "two ranks asked ahead for one record");
                self.call_back(rank, &set);
                self.grant(rank, set, true);
            }
            LockPlan::ServerSide => {
                self.cost.server_side += 1;
                self.call_back(rank, &exact);
            }
        }
    }

    /// The locks of others that are in the way go.
    fn call_back(&mut self, rank: usize, wanted: &RangeSet) {
        let now = self.now;
        let in_the_way = |l: &Lock| l.rank != rank && l.ranges.overlaps(wanted);
        let (gone, stay) = std::mem::take(&mut self.locks).into_iter().partition::<Vec<_>, _>(in_the_way);
        self.locks = stay;
        for lock in gone {
            self.cost.callbacks += 1;
            self.conflicts.push_back(now);
            if let Some(policies) = &mut self.policies {
                policies[lock.rank].handle_called_back(lock.ranges.ranges(), now.since(lock.granted), now);
            }
        }
        while self.conflicts.front().is_some_and(|at| now.since(*at) > Duration::from_secs(4)) {
            self.conflicts.pop_front();
        }
        if self.conflicts.len() >= 16 {
            self.contended_until = now + Duration::from_secs(30);
        }
    }

    fn grant(&mut self, rank: usize, ranges: RangeSet, ahead: bool) {
        self.cost.enqueues += 1;
        self.locks.push(Lock { rank, ranges, granted: self.now, ahead });
        if let Some(policies) = &mut self.policies {
            policies[rank].handle_contended(self.now < self.contended_until, self.now);
        }
    }

    /// Downward only if nobody else has a lock, upward to the next lock of another, by 32 MiB among many.
    fn grow(&self, rank: usize, wanted: Extent) -> RangeSet {
        let mut grown = Extent::ALL;
        let others = self.locks.iter().filter(|l| l.rank != rank);
        let mut conflicting = 0;
        for lock in others {
            conflicting += 1;
            grown.start = wanted.start;
            if let Some(start) = lock.ranges.next_start(&wanted) {
                grown.end = grown.end.min(start - 1);
            }
        }
        if conflicting > 32 {
            grown.end = grown.end.min(wanted.end.max(wanted.start + 32 * MIB - 1));
        }
        RangeSet::from_extents([grown]).unwrap()
    }
}

/// All of it, and what came after the first records of each rank.
fn run(pattern: Pattern, ranks: u64, records: u64, with_policy: bool) -> (Cost, Cost) {
    let mut world = World::new(ranks, with_policy);
    let mut random = Prng::new(ranks);
    let mut at = vec![0; ranks as usize];
    let mut warm = None;
    while let Some(slowest) = at.iter().copied().min().filter(|s| *s < records) {
        let rank = random.below(ranks);
        let next = at[rank as usize];
        if next == records || next >= slowest + SKEW {
            continue;
        }
        if slowest >= WARM_UP && warm.is_none() {
            warm = Some(world.cost);
        }
        let (offset, length) = pattern.write(next, rank, ranks, records);
        world.write(rank as usize, offset, length);
        at[rank as usize] += 1;
    }
    let (all, warm) = (world.cost, warm.unwrap_or_default());
    let settled = Cost {
        writes: all.writes - warm.writes,
        enqueues: all.enqueues - warm.enqueues,
        callbacks: all.callbacks - warm.callbacks,
        server_side: all.server_side - warm.server_side,
    };
    (all, settled)
}

fn share(part: u64, cost: &Cost) -> f64 {
    part as f64 / cost.writes as f64
}

#[test]
fn strided_writers_pay_next_to_nothing_for_a_record() {
    println!(
        "record  ranks   grown: enqueues callbacks   policy: enqueues callbacks   after {WARM_UP}: enqueues callbacks"
    );
    for record in [MIB, 47_008] {
        for ranks in [2, 4, 8, 16, 32, 64] {
            let pattern = Pattern::Strided { record };
            let (old, old_settled) = run(pattern, ranks, 200, false);
            let (new, settled) = run(pattern, ranks, 200, true);
            println!(
                "{record:>7} {ranks:>5} {:>17.3} {:>9.3} {:>18.3} {:>9.3} {:>19.3} {:>9.3}",
                share(old.enqueues, &old),
                share(old.callbacks, &old),
                share(new.enqueues, &new),
                share(new.callbacks, &new),
                share(settled.enqueues, &settled),
                share(settled.callbacks, &settled)
            );
            assert!(
                share(old_settled.callbacks, &old_settled) > 0.3,
                "the old policy must suffer, or the model is wrong"
            );
            assert!(share(settled.callbacks, &settled) < 0.05 && share(settled.enqueues, &settled) < 0.05);
        }
    }
}

#[test]
fn so_do_writers_whose_records_come_in_pieces() {
    let pattern = Pattern::Pieces { record: 4 * MIB, piece: MIB };
    for ranks in [2, 16] {
        let (_, settled) = run(pattern, ranks, 400, true);
        assert!(share(settled.callbacks, &settled) < 0.05 && share(settled.enqueues, &settled) < 0.05);
    }
}

#[test]
fn so_do_writers_that_go_backward() {
    for ranks in [2, 16] {
        let (_, settled) = run(Pattern::Backward { record: 47_008 }, ranks, 200, true);
        assert!(share(settled.callbacks, &settled) < 0.05 && share(settled.enqueues, &settled) < 0.05);
    }
}

#[test]
fn writers_of_their_own_segments_keep_grown_locks() {
    for ranks in [2, 16] {
        let (all, settled) = run(Pattern::Segments { record: MIB }, ranks, 200, true);
        assert_eq!(all.server_side, 0);
        let (enqueues, callbacks) = (share(settled.enqueues, &settled), share(settled.callbacks, &settled));
        assert!(enqueues < 0.05 && callbacks < 0.05, "{enqueues} enqueues, {callbacks} callbacks");
    }
}

#[test]
fn writers_without_order_go_without_locks() {
    let (_, settled) = run(Pattern::Random { record: 4096 }, 16, 200, true);
    assert!(share(settled.server_side, &settled) > 0.9, "{}", share(settled.server_side, &settled));
    assert!(share(settled.callbacks, &settled) < 0.05);
}
