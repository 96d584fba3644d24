//! Multi-mount protection: the rules by which one node at a time has a target whose storage several can reach. State
//! machines without IO; `disk` reads and writes the block and keeps the time.
//!
//! A block of the storage says who has the target and counts up every *interval*. Who wants it watches the block for
//! three intervals: if it moves, somebody lives. Otherwise the new node writes itself into the block, and has the target if
//! it is still there an interval later (two may have come at the same time; two intervals if writing was slow). The holder reads the block before every
//! update, and stops for good if it finds another there. It may change the target only within two intervals of its last
//! update: a holder that was suspended looks at the block before it goes on.
//!
//! This is no fence: what a holder handed to its kernel before it was suspended may still be written. Where that matters,
//! power off the node that failed before the other one takes over, as with every shared disk.

use nacre_base::Time;
use nacre_base::hash::fnv_1a_64;
use std::time::Duration;

/// Bytes of the block that a record takes: one sector, which no disk tears.
pub(crate) const RECORD_BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"NACREmmp";
const NODE_BYTES_MAX: usize = 128;

/// Intervals that a block must stand still before somebody else may write into it.
const WATCHED: u32 = 3;
/// Intervals after its last update within which a holder may change the target.
const VALID: u32 = 2;

/// What the block says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// A random number of this opening of the target; 0 if nobody has it.
    pub holder: u64,
    /// Counts updates.
    pub count: u64,
    /// How often it is updated.
    pub interval: Duration,
    /// Name of the holding node, for people.
    pub node: String,
}

impl Record {
    /// The record in bytes.
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let node = self.node.as_bytes();
        let node = &node[..node.len().min(NODE_BYTES_MAX)];
        let millis = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        out[..8].copy_from_slice(MAGIC);
        for (n, word) in [self.holder, self.count, millis, node.len() as u64].into_iter().enumerate() {
            out[8 + n * 8..16 + n * 8].copy_from_slice(&word.to_le_bytes());
        }
        out[40..40 + node.len()].copy_from_slice(node);
        let sum = fnv_1a_64(&out[..RECORD_BYTES - 8]);
        out[RECORD_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// What bytes say; `None` if they are no record. A block of zeros says that nobody ever had the target.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        if bytes.iter().all(|b| *b == 0) {
            return Some(Record::default());
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let is_whole = bytes.starts_with(MAGIC) && word(RECORD_BYTES - 8) == fnv_1a_64(&bytes[..RECORD_BYTES - 8]);
        let node = bytes.get(40..40 + usize::try_from(word(32)).ok()?.min(NODE_BYTES_MAX))?;
        is_whole.then(|| Record {
            holder: word(8),
            count: word(16),
            interval: Duration::from_millis(word(24)).min(INTERVAL_MAX),
            node: String::from_utf8_lossy(node).into_owned(),
        })
    }

    fn is_free(&self) -> bool {
        self.holder == 0
    }
}

/// Longer intervals help nobody; a damaged block must not make us wait for ever.
pub const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Takes a target over, or finds who has it.
#[derive(Debug)]
pub(crate) struct Claim {
    mine: Record,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is known.
    Look,
    /// This was seen, and nothing else since `since`.
    Watch { seen: Record, since: Time },
    /// The block may be written if it was read just before `read`.
    Write { read: Time },
    /// Ours is in the block; at `until` it is known whether we have the target.
    Settle { until: Time },
}

/// What to do next for a [`Claim`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until then, and read the block.
    Read(Time),
    /// Write this into the block now.
    Write(Record),
}

/// How a claim ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Not yet.
    Undecided,
    /// The target is ours.
    Held(Lease),
    /// Somebody else has it.
    Taken(Record),
}

impl Claim {
    /// For a node of this name; `holder` is random and not 0.
    pub(crate) fn new(holder: u64, node: &str, interval: Duration) -> Claim {
        let mine = Record { holder, count: 0, interval, node: node.to_owned() };
        Claim { mine, phase: Phase::Look }
    }

    /// What to do now.
    pub(crate) fn step(&self, now: Time) -> Step {
        let interval = self.mine.interval;
        match &self.phase {
            Phase::Look => Step::Read(now),
            // Often, to see soon that the holder lives.
            Phase::Watch { .. } => Step::Read(now + interval / 2),
            // The read may be too old by now: then once more.
            Phase::Write { read } if now.since(*read) > interval / 2 => Step::Read(now),
            Phase::Write { .. } => Step::Write(self.mine.clone()),
            Phase::Settle { until } => Step::Read(*until),
        }
    }

    /// The block was read: `began` before, `found` in it.
    pub(crate) fn handle_read(&mut self, began: Time, found: &Record) -> Claimed {
        match &self.phase {
            Phase::Settle { .. } if *found == self.mine => {
                return Claimed::Held(Lease { record: self.mine.clone(), updated: began, lost: None });
            }
            Phase::Settle { .. } => return Claimed::Taken(found.clone()),
            _ if found.is_free() => self.phase = Phase::Write { read: began },
            Phase::Look => self.phase = Phase::Watch { seen: found.clone(), since: began },
            Phase::Watch { seen, .. } if seen != found => return Claimed::Taken(found.clone()),
            Phase::Watch { since, .. } => {
                let patience = found.interval.max(self.mine.interval) * WATCHED;
                if began.since(*since) >= patience {
                    self.phase = Phase::Write { read: began };
                }
            }
            // Read again because it took long: whoever is there has come since, or is the one that stands still.
            Phase::Write { .. } => self.phase = Phase::Watch { seen: found.clone(), since: began },
        }
        Claimed::Undecided
    }

    /// Ours is in the block: the write ended at `now`.
    pub(crate) fn handle_written(&mut self, now: Time) {
        let Phase::Write { read } = self.phase else { return };
        // Who came between our read and our write has not settled yet, if we were quick. Else it may have the target: until
        // it sees us, or its time is over.
        let was_quick = now.since(read) <= self.mine.interval / 2;
        let until = now + self.mine.interval * if was_quick { 1 } else { VALID };
        self.phase = Phase::Settle { until };
    }
}

/// The holder's side: when to update the block, and whether the target may be changed.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Lease {
    record: Record,
    /// When the last update, or what took its place, began.
    updated: Time,
    /// Who has the target now.
    lost: Option<Record>,
}

impl Lease {
    /// When to update the block.
    pub(crate) fn due(&self) -> Time {
        self.updated + self.record.interval
    }

    /// Whether the target may be changed now.
    pub(crate) fn is_valid(&self, now: Time) -> bool {
        self.lost.is_none() && now.since(self.updated) < self.record.interval * VALID
    }

    /// Who has the target, if not we any more.
    pub(crate) fn lost(&self) -> Option<&Record> {
        self.lost.as_ref()
    }

    /// What we wrote last.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// The block was read for an update: what to write, if it is still ours.
    pub(crate) fn handle_read(&mut self, found: &Record) -> Option<Record> {
        if *found != self.record {
            self.lost = Some(found.clone());
        }
        self.lost.is_none().then(|| Record { count: self.record.count + 1, ..self.record.clone() })
    }

    /// The update was written: the read in front of it began at `read`, the write ended at `written`. If that took so long
    /// that somebody else may have written in between, we have overwritten them: both must stop.
    pub(crate) fn handle_written(&mut self, read: Time, written: Time) {
        let interval = self.record.interval;
        if written.since(read) >= interval && written.since(self.updated) >= interval * WATCHED {
            self.lost = Some(Record { node: "unknown (an update took too long)".to_owned(), ..Record::default() });
            return;
        }
        self.record.count += 1;
        self.updated = read;
    }

    /// What says that nobody has the target.
    pub(crate) fn farewell(&self) -> Record {
        Record { holder: 0, ..self.record.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const I: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// Runs a claim against a block that `block` gives at each time; how it ended and when.
    fn claim(mut block: impl FnMut(Time, Option<Record>) -> Record, begin: Time) -> (Claimed, Time) {
        let (mut claim, mut now) = (Claim::new(77, "b", I), begin);
        loop {
            match claim.step(now) {
                Step::Read(when) => {
                    now = now.max(when);
                    match claim.handle_read(now, &block(now, None)) {
                        Claimed::Undecided => {}
                        end => return (end, now),
                    }
                }
                Step::Write(record) => {
                    block(now, Some(record));
                    claim.handle_written(now);
                }
            }
        }
    }

    fn foreign(count: u64) -> Record {
        Record { holder: 5, count, interval: I, node: "a".into() }
    }

    #[test]
    fn a_record_survives_the_disk_and_damage_is_seen() {
        let record = Record { node: "oss1 (10.0.0.1@tcp)".into(), ..foreign(9) };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Some(record));
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), Some(Record::default()));
        for at in 0..RECORD_BYTES {
            let mut bad = bytes;
            bad[at] ^= 4;
            assert_eq!(Record::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Record::decode(&[0xff; RECORD_BYTES]), None);
        let long = Record { node: "x".repeat(1000), interval: Duration::from_secs(1 << 40), ..foreign(1) };
        let read = Record::decode(&long.encode()).unwrap();
        assert_eq!((read.node.len(), read.interval), (NODE_BYTES_MAX, INTERVAL_MAX));
    }

    #[test]
    fn a_free_target_is_had_after_an_interval() {
        let mut block = Record::default();
        let (end, when) = claim(
            |_, write| {
                block = write.unwrap_or(block.clone());
                block.clone()
            },
            at(0),
        );
        let Claimed::Held(lease) = end else { panic!("{end:?}") };
        assert_eq!((when, lease.is_valid(at(1000)), lease.due()), (at(1000), true, at(2000)));
    }

    #[test]
    fn a_holder_that_lives_is_found_at_its_next_update() {
        let block = |now: Time, write: Option<Record>| {
            assert_eq!(write, None, "nothing may be written over a holder that lives");
            foreign(now.as_nanos() / 1_000_000_000)
        };
        let (end, when) = claim(block, at(400));
        assert_eq!((end, when), (Claimed::Taken(foreign(1)), at(1400)));
    }

    #[test]
    fn a_dead_holder_is_watched_for_three_intervals() {
        let (mut block, mut written) = (foreign(3), None);
        let (end, when) = claim(
            |now, write| {
                if let Some(record) = write {
                    (block, written) = (record, Some(now));
                }
                block.clone()
            },
            at(0),
        );
        assert!(matches!(end, Claimed::Held(_)), "{end:?}");
        assert_eq!((written, when), (Some(at(3000)), at(4000)));
    }

    #[test]
    fn a_slow_holders_interval_counts() {
        let slow = Record { interval: 4 * I, ..foreign(3) };
        let mut block = slow;
        let (_, when) = claim(
            |_, write| {
                block = write.unwrap_or(block.clone());
                block.clone()
            },
            at(0),
        );
        assert_eq!(when, at(13_000));
    }

    #[test]
    fn of_two_that_come_together_the_one_that_wrote_last_has_it() {
        let mut first = true;
        let (end, _) = claim(
            |_, write| match write {
                Some(record) => record,
                None if std::mem::take(&mut first) => Record::default(),
                None => foreign(0),
            },
            at(0),
        );
        assert_eq!(end, Claimed::Taken(foreign(0)));
    }

    #[test]
    fn a_lease_ends_when_it_is_not_renewed_and_is_lost_to_whoever_is_in_the_block() {
        let mine = Record { holder: 77, count: 0, interval: I, node: "b".into() };
        let mut lease = Lease { record: mine.clone(), updated: at(0), lost: None };
        assert!(lease.is_valid(at(1999)) && !lease.is_valid(at(2000)));
        // It was suspended; the block is as it was: it goes on.
        let update = lease.handle_read(&mine).unwrap();
        lease.handle_written(at(9000), at(9010));
        assert!(lease.is_valid(at(9020)) && *lease.record() == update);
        assert_eq!(lease.handle_read(&foreign(1)), None);
        assert!(!lease.is_valid(at(9020)) && lease.lost() == Some(&foreign(1)));
    }

    #[test]
    fn an_update_that_may_have_overwritten_another_node_ends_the_lease() {
        let mine = Record { holder: 77, count: 0, interval: I, node: "b".into() };
        let lease = Lease { record: mine.clone(), updated: at(0), lost: None };
        let after = |read, written| {
            let mut lease = lease.clone();
            lease.handle_read(&mine).unwrap();
            lease.handle_written(at(read), at(written));
            lease.lost().is_none()
        };
        assert!(after(1000, 1900) && after(1000, 2900), "nobody can have written before 3 s");
        assert!(after(8000, 8900), "who wrote after 8 s looks again after our write");
        assert!(!after(1000, 3000) && !after(8000, 9000));
    }

    /// Two nodes with random pauses of up to six intervals before every step: never do both believe, at the same time, to
    /// have the target.
    #[test]
    fn two_nodes_with_random_pauses_never_have_the_target_at_the_same_time() {
        let (mut takeovers, mut losses) = (0, 0);
        for seed in 0..3000 {
            let mut world = World::new(seed);
            world.run();
            takeovers += world.takeovers;
            losses += world.losses;
        }
        assert!(takeovers > 1000 && losses > 300, "{takeovers} takeovers, {losses} losses: pauses must matter");
    }

    enum Node {
        Claiming(Claim, Option<Record>),
        Holding(Lease, Option<(Time, Record)>),
        Gone,
    }

    /// The block and two nodes, each with the time of its next step.
    struct World {
        prng: Prng,
        block: Record,
        nodes: [(Node, Time); 2],
        takeovers: u32,
        losses: u32,
    }

    impl World {
        fn new(seed: u64) -> World {
            let node = |n| (Node::Claiming(Claim::new(n, "n", I), None), at(n * 300));
            World {
                prng: Prng::new(seed),
                block: Record::default(),
                nodes: [node(1), node(2)],
                takeovers: 0,
                losses: 0,
            }
        }

        fn run(&mut self) {
            for _ in 0..200 {
                let who = if self.nodes[0].1 <= self.nodes[1].1 { 0 } else { 1 };
                let now = self.nodes[who].1;
                let node = std::mem::replace(&mut self.nodes[who].0, Node::Gone);
                let (node, next) = self.step(node, now, who as u64 + 1);
                let pause = if self.prng.one_in(10) { self.prng.below(6000) } else { self.prng.below(100) };
                self.nodes[who] = (node, next.max(now) + Duration::from_millis(pause));
                let valid = |n: &Node| matches!(n, Node::Holding(lease, _) if lease.is_valid(now));
                assert!(!(valid(&self.nodes[0].0) && valid(&self.nodes[1].0)), "both have it at {now:?}");
            }
        }

        fn step(&mut self, node: Node, now: Time, id: u64) -> (Node, Time) {
            match node {
                // A pause may come between deciding to write and the write.
                Node::Claiming(mut claim, Some(record)) => {
                    self.block = record;
                    claim.handle_written(now);
                    (Node::Claiming(claim, None), now)
                }
                Node::Claiming(mut claim, None) => match claim.step(now) {
                    Step::Write(record) => (Node::Claiming(claim, Some(record)), now),
                    Step::Read(when) if when > now => (Node::Claiming(claim, None), when),
                    Step::Read(_) => match claim.handle_read(now, &self.block) {
                        Claimed::Undecided => (Node::Claiming(claim, None), now),
                        Claimed::Held(lease) => {
                            self.takeovers += 1;
                            (Node::Holding(lease, None), now)
                        }
                        Claimed::Taken(_) => (Node::Claiming(Claim::new(id, "n", I), None), now + I),
                    },
                },
                Node::Holding(mut lease, Some((read, record))) => {
                    self.block = record;
                    lease.handle_written(read, now);
                    self.go_on(lease, id)
                }
                Node::Holding(mut lease, None) if lease.due() <= now => {
                    let found = self.block.clone();
                    match lease.handle_read(&found) {
                        Some(record) => (Node::Holding(lease, Some((now, record))), now),
                        None => self.go_on(lease, id),
                    }
                }
                Node::Holding(lease, None) => {
                    let due = lease.due();
                    (Node::Holding(lease, None), due)
                }
                Node::Gone => (Node::Gone, Time::FAR_FUTURE),
            }
        }

        /// A holder that has lost starts anew later.
        fn go_on(&mut self, lease: Lease, id: u64) -> (Node, Time) {
            if lease.lost().is_none() {
                let due = lease.due();
                return (Node::Holding(lease, None), due);
            }
            self.losses += 1;
            let salt = id + 2 * u64::from(self.losses);
            (Node::Claiming(Claim::new(salt, "n", I), None), Time::ZERO)
        }
    }
}
