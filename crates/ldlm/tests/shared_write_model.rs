//! Ranks that write one shared file in turn, each a client of its own, against a lock table with Lustre's growth rules:
//! the cost of a record in enqueues and callbacks, with grown locks only and with the policy. The table is printed by
//! `cargo test -p nacre-ldlm --test shared_write_model -- --nocapture`.

use nacre_base::{Prng, Time};
use nacre_ldlm::range_set::{Extent, RangeSet};
use nacre_ldlm::shared_write::{LockPlan, SharedWrite, part_of_set};
use std::collections::VecDeque;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Time from one write of any rank to the next.
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
    /// As `Strided`, each record in pieces, as a kernel hands on large writes.
    Pieces { record: u64, piece: u64 },
    /// As `Strided`, from the end of the file backwards.
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

/// Striping of the file: `objects` objects, which take pieces of `unit` bytes in turn.
#[derive(Clone, Copy)]
struct Striping {
    objects: u64,
    unit: u64,
}

impl Striping {
    const NONE: Striping = Striping { objects: 1, unit: 1 << 40 };

    /// The part of an object that lies within bytes of the file, in its own offsets.
    fn part(&self, object: u64, of: Extent) -> Option<Extent> {
        let before = |offset: u64| {
            let (round, rest) = (offset / (self.unit * self.objects), offset % (self.unit * self.objects));
            round * self.unit + rest.saturating_sub(object * self.unit).min(self.unit)
        };
        let (start, end) = (before(of.start), before(of.end + 1));
        (start < end).then(|| Extent { start, end: end - 1 })
    }

    fn in_file(&self, object: u64, at: u64) -> u64 {
        if at == u64::MAX { at } else { (at / self.unit * self.objects + object) * self.unit + at % self.unit }
    }
}

struct Lock {
    rank: usize,
    object: u64,
    /// Ranges of the object.
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
    striping: Striping,
    now: Time,
    locks: Vec<Lock>,
    conflicts: VecDeque<Time>,
    contended_until: Time,
    /// `None` if only grown locks are used.
    policies: Option<Vec<SharedWrite>>,
    cost: Cost,
}

impl World {
    fn new(striping: Striping, ranks: u64, with_policy: bool) -> World {
        let policies = || (0..ranks).map(|_| SharedWrite::new(striping.objects as u32)).collect();
        World {
            striping,
            now: Time::from_secs(1),
            locks: Vec::new(),
            conflicts: VecDeque::new(),
            contended_until: Time::ZERO,
            policies: with_policy.then(policies),
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
        let mut plan = None;
        for object in 0..self.striping.objects {
            let Some(part) = self.striping.part(object, wanted) else { continue };
            let has = |l: &Lock| (l.rank, l.object) == (rank, object) && l.ranges.contains_extent(&part);
            if self.locks.iter().any(has) {
                continue;
            }
            let ask = || self.policies.as_mut().map_or(LockPlan::Grown, |p| p[rank].ask(offset, length, self.now));
            if plan.get_or_insert_with(ask) == &LockPlan::ServerSide {
                self.cost.server_side += 1;
                self.call_back(rank, object, &RangeSet::single(part));
                return;
            }
            self.lock(rank, object, part, plan.as_ref().unwrap());
        }
    }

    fn lock(&mut self, rank: usize, object: u64, part: Extent, plan: &LockPlan) {
        let exact = RangeSet::single(part);
        match plan {
            LockPlan::Grown => {
                self.call_back(rank, object, &exact);
                let ranges = self.grow(rank, object, part);
                self.grant(rank, object, ranges, false);
            }
            LockPlan::Ahead(records) => {
                let parts = records.iter().filter_map(|r| self.striping.part(object, *r));
                let set = part_of_set(part, parts);
                assert!(set.ranges().len() <= 256 && set.contains_extent(&part));
                let mut others = self.locks.iter().filter(|l| l.rank != rank && l.object == object && l.ahead);
                assert!(others.all(|l| !l.ranges.overlaps(&set)), "two ranks asked ahead for one record");
                self.call_back(rank, object, &set);
                self.grant(rank, object, set, true);
            }
            LockPlan::Exact | LockPlan::ServerSide => {
                self.call_back(rank, object, &exact);
                self.grant(rank, object, exact, false);
            }
        }
    }

    /// Removes conflicting locks of other ranks.
    fn call_back(&mut self, rank: usize, object: u64, wanted: &RangeSet) {
        let (now, striping) = (self.now, self.striping);
        let in_the_way = |l: &Lock| l.rank != rank && l.object == object && l.ranges.overlaps(wanted);
        let (gone, stay) = std::mem::take(&mut self.locks).into_iter().partition::<Vec<_>, _>(in_the_way);
        self.locks = stay;
        for lock in gone {
            self.cost.callbacks += 1;
            self.conflicts.push_back(now);
            if let Some(policies) = &mut self.policies {
                let in_file = |at| striping.in_file(object, at);
                let ranges =
                    lock.ranges.ranges().iter().map(|e| Extent { start: in_file(e.start), end: in_file(e.end) });
                let ranges: Vec<Extent> = ranges.collect();
                policies[lock.rank].handle_called_back(&ranges, now.since(lock.granted), now);
            }
        }
        while self.conflicts.front().is_some_and(|at| now.since(*at) > Duration::from_secs(4)) {
            self.conflicts.pop_front();
        }
        if self.conflicts.len() >= 16 {
            self.contended_until = now + Duration::from_secs(30);
        }
    }

    fn grant(&mut self, rank: usize, object: u64, ranges: RangeSet, ahead: bool) {
        self.cost.enqueues += 1;
        self.locks.push(Lock { rank, object, ranges, granted: self.now, ahead });
        if let Some(policies) = &mut self.policies {
            policies[rank].handle_contended(self.now < self.contended_until, self.now);
        }
    }

    /// Grows downwards only if no other rank has a lock, upwards to the next lock of another rank, by 32 MiB among
    /// many.
    fn grow(&self, rank: usize, object: u64, wanted: Extent) -> RangeSet {
        let mut grown = Extent::ALL;
        let others = self.locks.iter().filter(|l| l.rank != rank && l.object == object);
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
        RangeSet::single(grown)
    }
}

/// Runs a pattern. Returns the whole cost, and the cost after the first records of each rank.
fn run(pattern: Pattern, ranks: u64, records: u64, with_policy: bool) -> (Cost, Cost) {
    run_striped(pattern, Striping::NONE, ranks, records, with_policy)
}

fn run_striped(pattern: Pattern, striping: Striping, ranks: u64, records: u64, with_policy: bool) -> (Cost, Cost) {
    let mut world = World::new(striping, ranks, with_policy);
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
fn so_do_writers_of_striped_files_whatever_their_records() {
    println!("record  stripes  ranks   policy: enqueues callbacks   after {WARM_UP}: enqueues callbacks");
    for (record, ranks) in [(47_008, 4), (47_008, 48), (4 * MIB, 4), (4 * MIB, 16), (MIB, 16), (3_000_000, 16)] {
        for objects in [1, 2, 3, 4, 5, 6, 7, 8] {
            let striping = Striping { objects, unit: MIB };
            let (all, settled) = run_striped(Pattern::Strided { record }, striping, ranks, 2000, true);
            let [enqueues, callbacks] = [settled.enqueues, settled.callbacks].map(|n| share(n, &settled));
            println!(
                "{record:>7} {objects:>7} {ranks:>6} {:>18.3} {:>9.3} {enqueues:>19.3} {callbacks:>9.3}",
                share(all.enqueues, &all),
                share(all.callbacks, &all)
            );
            assert!(enqueues < 0.05 && callbacks < 0.001, "{record} bytes on {objects}, {ranks} ranks");
            assert_eq!(all.server_side, 0);
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
