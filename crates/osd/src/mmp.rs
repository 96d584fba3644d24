//! Multi-mount protection: the rules by which one node at a time has a target whose storage several can reach. State
//! machines without IO; `disk` reads and writes the blocks and keeps the time.
//!
//! The storage has two blocks. The *claim* names the node that took the target last. The *sign of life* is counted up
//! every *interval* by its holder, or says that the holder has closed the target. A node that wants the target watches
//! both for three intervals: if they change, a holder lives. Otherwise the node writes itself into the claim, and has
//! the target if its claim is still there two intervals later; for a target that was closed, one interval later (two
//! nodes may have come at the same time). A holder reads the claim before every sign of life, and stops for good if it
//! finds another node's. It may change the target only within two intervals of the last time it found its own claim.
//!
//! So only a claiming node ever writes a claim. Writes that a holder had under way when it was suspended, or when its
//! storage stood still, cannot hide a claim from it afterwards: it goes on only if no other node has come, however long
//! that was.
//!
//! This is no fence: data that a holder handed to its kernel before it was suspended may still be written. If that
//! matters, power off the failed node before the other one takes over, as with every shared disk.

use nacre_base::Time;
use nacre_base::hash::fnv_1a_64;
use nacre_base::steps::Steps;
use std::time::Duration;

/// Bytes of a block that a record takes: one sector, which no disk tears.
pub(crate) const RECORD_BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"NACREmmp";
const NODE_BYTES_MAX: usize = 128;
const _: () = assert!(40 + NODE_BYTES_MAX + 8 <= RECORD_BYTES, "the longest name has its place in a record");

/// Intervals that both blocks must stand still before another node may claim the target.
const WATCHED: u32 = 3;
/// Intervals after it last found its claim within which a holder may change the target.
const VALID: u32 = 2;
const _: () = assert!(VALID < WATCHED, "a holder stops before somebody else may take the target");
/// The count in the record of a holder that has closed the target.
const CLOSED: u64 = u64::MAX;

/// Both blocks.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Blocks {
    /// Record of the node that took the target last.
    pub(crate) claim: Record,
    /// The last sign of life.
    pub(crate) life: Record,
}

impl Blocks {
    fn is_free(&self) -> bool {
        self.claim.holder == 0 || self.life.holder == self.claim.holder && self.life.count == CLOSED
    }
}

/// Contents of a block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// A random number of the holder's opening of the target; 0 if nobody has it.
    pub holder: u64,
    /// Number of the sign of life.
    pub count: u64,
    /// Interval of the signs of life.
    pub interval: Duration,
    /// Readable name of the holding node.
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

    /// Decodes a record; `None` if the bytes are no record. A block of zeros means that nobody ever had the target.
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
}

/// Longest interval: longer ones help nobody, and a damaged block must not make a node wait for ever.
pub const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Takes a target over, or finds the node that has it.
#[derive(Debug)]
pub(crate) struct Claim {
    mine: Record,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is known.
    Look,
    /// The blocks have been `seen`, without a change since `since`.
    Watch { seen: Blocks, since: Time },
    /// The claim may be written if the blocks were read just before `read`.
    Write { read: Time, was_free: bool },
    /// This node's claim is written; at `until` it is known whether the node has the target.
    Settle { until: Time },
}

impl Phase {
    fn name(&self) -> PhaseName {
        match self {
            Phase::Look => PhaseName::Look,
            Phase::Watch { .. } => PhaseName::Watch,
            Phase::Write { .. } => PhaseName::Write,
            Phase::Settle { .. } => PhaseName::Settle,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PhaseName {
    Look,
    Watch,
    Write,
    Settle,
}

/// Event that moves a claim to its next phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// Nobody has the target.
    Free,
    /// Another node has the target, or had it.
    Held,
    /// The holder has given no sign of life for as long as it was watched.
    StoodStill,
    /// The claim was written.
    Written,
}

/// The claim is decided in [`PhaseName::Settle`], or given up because the holder lives.
const STEPS: Steps<PhaseName, Event> = Steps(&[
    (PhaseName::Look, Event::Free, PhaseName::Write),
    (PhaseName::Look, Event::Held, PhaseName::Watch),
    (PhaseName::Watch, Event::Free, PhaseName::Write),
    (PhaseName::Watch, Event::StoodStill, PhaseName::Write),
    (PhaseName::Write, Event::Free, PhaseName::Write),
    (PhaseName::Write, Event::Held, PhaseName::Watch),
    (PhaseName::Write, Event::Written, PhaseName::Settle),
]);

/// What to do next for a [`Claim`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until then, and read the blocks.
    Read(Time),
    /// Write this claim now.
    Write(Record),
}

/// Outcome of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Not decided yet.
    Undecided,
    /// This node has the target.
    Held(Lease),
    /// Another node has the target.
    Taken(Record),
}

impl Claim {
    /// Makes the claim of a node of this name; `holder` is random and not 0.
    pub(crate) fn new(holder: u64, node: &str, interval: Duration) -> Claim {
        assert!(holder != 0, "a holder's number is 0, which says that nobody has the target");
        let mine = Record { holder, count: 0, interval, node: node.to_owned() };
        Claim { mine, phase: Phase::Look }
    }

    /// The next step of the claim.
    pub(crate) fn step(&self, now: Time) -> Step {
        let interval = self.mine.interval;
        match &self.phase {
            Phase::Look => Step::Read(now),
            // Read often, to see soon that the holder lives.
            Phase::Watch { .. } => Step::Read(now + interval / 2),
            // If the read is too old by now, read once more.
            Phase::Write { read, .. } if now.since(*read) > interval / 2 => Step::Read(now),
            Phase::Write { .. } => Step::Write(self.mine.clone()),
            Phase::Settle { until } => Step::Read(*until),
        }
    }

    /// The blocks were read: the read began at `began` and found `found`.
    pub(crate) fn handle_read(&mut self, began: Time, found: &Blocks) -> Claimed {
        match &self.phase {
            Phase::Settle { .. } if found.claim == self.mine => {
                return Claimed::Held(Lease { record: self.mine.clone(), found: began, lost: None });
            }
            Phase::Settle { .. } => return Claimed::Taken(found.claim.clone()),
            _ if found.is_free() => self.enter(Event::Free, Phase::Write { read: began, was_free: true }),
            Phase::Look => self.enter(Event::Held, Phase::Watch { seen: found.clone(), since: began }),
            Phase::Watch { seen, .. } if seen != found => return Claimed::Taken(found.claim.clone()),
            Phase::Watch { since, .. } => {
                let patience = found.claim.interval.max(self.mine.interval) * WATCHED;
                if began.since(*since) >= patience {
                    self.enter(Event::StoodStill, Phase::Write { read: began, was_free: false });
                }
            }
            // Read again because it took long: the holder has come since, or is the one that stands still.
            Phase::Write { .. } => self.enter(Event::Held, Phase::Watch { seen: found.clone(), since: began }),
        }
        Claimed::Undecided
    }

    fn enter(&mut self, event: Event, phase: Phase) {
        let next = STEPS.next(self.phase.name(), event);
        assert_eq!(next, phase.name(), "{event:?} after {:?}", self.phase);
        self.phase = phase;
    }

    /// The claim was written: the write ended at `now`.
    pub(crate) fn handle_written(&mut self, now: Time) {
        let Phase::Write { read, was_free } = self.phase else { panic!("a claim was written in {:?}", self.phase) };
        // Another node that found the target free as well, and was as quick, has written its claim by the time this one
        // looks. Otherwise a node may have the target until it sees this claim, or its time is over.
        let was_quick = now.since(read) <= self.mine.interval / 2;
        let until = now + self.mine.interval * if was_quick && was_free { 1 } else { VALID };
        self.enter(Event::Written, Phase::Settle { until });
    }
}

/// The holder's side: when to give a sign of life, and whether the target may be changed.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Lease {
    /// The last sign of life.
    record: Record,
    /// Time of the last read that found this node's claim, with a sign of life after it.
    found: Time,
    /// Record of the node that has the target now, if the lease is lost.
    lost: Option<Record>,
}

impl Lease {
    /// Time of the next look at the claim.
    pub(crate) fn due(&self) -> Time {
        self.found + self.record.interval
    }

    /// Returns whether the target may be changed now.
    pub(crate) fn is_valid(&self, now: Time) -> bool {
        self.lost.is_none() && now.since(self.found) < self.record.interval * VALID
    }

    /// Record of the node that has the target, if the lease is lost.
    pub(crate) fn lost(&self) -> Option<&Record> {
        self.lost.as_ref()
    }

    /// The last sign of life.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// The claim was read. Returns the next sign of life, if the claim is still this node's.
    pub(crate) fn handle_read(&mut self, claim: &Record) -> Option<Record> {
        if claim.holder != self.record.holder {
            self.lost = Some(claim.clone());
        }
        self.lost.is_none().then(|| Record { count: self.record.count + 1, ..self.record.clone() })
    }

    /// The sign of life was written, after the claim was read at `read`.
    pub(crate) fn handle_written(&mut self, read: Time) {
        assert!(self.lost.is_none(), "a sign of life for a target that {:?} has", self.lost);
        assert!(read >= self.found, "the claim was read at {read:?}, before {:?}", self.found);
        self.record.count += 1;
        self.found = read;
    }

    /// The last sign of life, which says that the holder has closed the target.
    pub(crate) fn farewell(&self) -> Record {
        Record { count: CLOSED, ..self.record.clone() }
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

    /// Runs a claim against blocks that `blocks` gives at each time, and is told what is claimed. Returns the outcome
    /// and its time.
    fn claim(mut blocks: impl FnMut(Time, Option<Record>) -> Blocks, begin: Time) -> (Claimed, Time) {
        let (mut claim, mut now) = (Claim::new(77, "b", I), begin);
        loop {
            match claim.step(now) {
                Step::Read(when) => {
                    now = now.max(when);
                    match claim.handle_read(now, &blocks(now, None)) {
                        Claimed::Undecided => {}
                        end => return (end, now),
                    }
                }
                Step::Write(record) => {
                    blocks(now, Some(record));
                    claim.handle_written(now);
                }
            }
        }
    }

    #[test]
    fn the_steps_of_a_claim_do_not_contradict_each_other() {
        STEPS.assert_sound();
    }

    #[test]
    #[should_panic(expected = "written in Look")]
    fn a_claim_that_is_written_unseen_is_a_defect() {
        Claim::new(77, "b", I).handle_written(at(0));
    }

    fn foreign(count: u64) -> Record {
        Record { holder: 5, count, interval: I, node: "a".into() }
    }

    /// Another node's claim, and its last sign of life.
    fn held(count: u64) -> Blocks {
        Blocks { claim: foreign(0), life: foreign(count) }
    }

    /// Runs a claim against blocks that nobody else writes. Returns when it was written, and when the target was had.
    fn claim_alone(mut blocks: Blocks) -> (Option<Time>, Time) {
        let mut written = None;
        let (end, when) = claim(
            |now, write| {
                if let Some(record) = write {
                    (blocks.claim, written) = (record, Some(now));
                }
                blocks.clone()
            },
            at(0),
        );
        assert!(matches!(end, Claimed::Held(_)), "{end:?}");
        (written, when)
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
    fn a_target_that_nobody_had_or_that_was_closed_is_had_after_an_interval() {
        assert_eq!(claim_alone(Blocks::default()), (Some(at(0)), at(1000)));
        assert_eq!(claim_alone(held(CLOSED)), (Some(at(0)), at(1000)));
        // A node that lost the target earlier has closed it; its sign of life does not count.
        let late = Blocks { claim: foreign(0), life: Record { holder: 6, ..foreign(CLOSED) } };
        assert_eq!(claim_alone(late), (Some(at(3000)), at(5000)));
    }

    #[test]
    fn a_holder_that_lives_is_found_at_its_next_sign_of_life() {
        let blocks = |now: Time, write: Option<Record>| {
            assert_eq!(write, None, "nothing may be claimed from a holder that lives");
            held(now.as_nanos() / 1_000_000_000)
        };
        assert_eq!(claim(blocks, at(400)), (Claimed::Taken(foreign(0)), at(1400)));
    }

    #[test]
    fn a_dead_holder_is_watched_for_three_intervals_and_given_two() {
        assert_eq!(claim_alone(held(3)), (Some(at(3000)), at(5000)));
    }

    #[test]
    fn a_slow_holders_interval_counts() {
        let slow = Record { interval: 4 * I, ..foreign(3) };
        assert_eq!(claim_alone(Blocks { claim: slow.clone(), life: slow }), (Some(at(12_000)), at(14_000)));
    }

    #[test]
    fn of_two_that_come_together_the_one_that_wrote_last_has_it() {
        let mut first = true;
        let (end, _) = claim(|_, _| if std::mem::take(&mut first) { Blocks::default() } else { held(0) }, at(0));
        assert_eq!(end, Claimed::Taken(foreign(0)));
    }

    #[test]
    fn a_lease_ends_when_it_is_not_renewed_and_is_lost_to_whoever_has_claimed_the_target() {
        let mine = Record { holder: 77, count: 0, interval: I, node: "b".into() };
        let mut lease = Lease { record: mine.clone(), found: at(0), lost: None };
        assert!(lease.is_valid(at(1999)) && !lease.is_valid(at(2000)));
        // The holder was suspended and no other node has come, so it goes on. The time that the storage took for the
        // sign of life does not matter.
        let sign = lease.handle_read(&mine).unwrap();
        lease.handle_written(at(9000));
        assert!(lease.is_valid(at(10_999)) && !lease.is_valid(at(11_000)) && *lease.record() == sign);
        assert_eq!(lease.handle_read(&foreign(1)), None);
        assert!(!lease.is_valid(at(9020)) && lease.lost() == Some(&foreign(1)));
    }

    /// Two nodes make random pauses of up to six intervals before every step: never does one believe to have the target
    /// when the other has it, or has had it since.
    #[test]
    fn two_nodes_with_random_pauses_never_have_the_target_at_the_same_time() {
        let (mut takeovers, mut losses, mut closes) = (0, 0, 0);
        for seed in 0..10_000 {
            let mut world = World::new(seed);
            world.run();
            takeovers += world.takeovers;
            losses += world.losses;
            closes += world.closes;
        }
        let counts = format!("{takeovers} takeovers, {losses} losses, {closes} closes");
        assert!(takeovers > 10_000 && losses > 500 && closes > 5000, "{counts}: pauses must matter");
    }

    enum Contender {
        /// A node that claims, with the claim that is to be written.
        Claiming(Claim, Option<Record>),
        /// A holder and its number, with the sign of life that is to be written.
        Holding(Lease, Option<(Time, Record)>, u32),
        Gone,
    }

    /// The blocks and two nodes, each with the time of its next step.
    struct World {
        prng: Prng,
        blocks: Blocks,
        nodes: [(Contender, Time); 2],
        takeovers: u32,
        losses: u32,
        closes: u32,
    }

    impl World {
        fn new(seed: u64) -> World {
            let node = |n| (Contender::Claiming(Claim::new(n, "n", I), None), at(n * 300));
            World {
                prng: Prng::new(seed),
                blocks: Blocks::default(),
                nodes: [node(1), node(2)],
                takeovers: 0,
                losses: 0,
                closes: 0,
            }
        }

        fn run(&mut self) {
            for _ in 0..200 {
                let who = if self.nodes[0].1 <= self.nodes[1].1 { 0 } else { 1 };
                let now = self.nodes[who].1;
                let node = std::mem::replace(&mut self.nodes[who].0, Contender::Gone);
                let (node, next) = self.step(node, now, who as u64 + 1);
                let pause = if self.prng.one_in(10) { self.prng.below(6000) } else { self.prng.below(100) };
                self.nodes[who] = (node, next.max(now) + Duration::from_millis(pause));
                for (node, _) in &self.nodes {
                    let Contender::Holding(lease, _, number) = node else { continue };
                    assert!(!lease.is_valid(now) || *number == self.takeovers, "holder {number} goes on at {now:?}");
                }
            }
        }

        fn step(&mut self, node: Contender, now: Time, id: u64) -> (Contender, Time) {
            match node {
                // A pause may come between deciding to write and the write.
                Contender::Claiming(mut claim, Some(record)) => {
                    self.blocks.claim = record;
                    claim.handle_written(now);
                    (Contender::Claiming(claim, None), now)
                }
                Contender::Claiming(mut claim, None) => match claim.step(now) {
                    Step::Write(record) => (Contender::Claiming(claim, Some(record)), now),
                    Step::Read(when) if when > now => (Contender::Claiming(claim, None), when),
                    Step::Read(_) => match claim.handle_read(now, &self.blocks) {
                        Claimed::Undecided => (Contender::Claiming(claim, None), now),
                        Claimed::Held(lease) => {
                            self.takeovers += 1;
                            (Contender::Holding(lease, None, self.takeovers), now)
                        }
                        Claimed::Taken(_) => (self.newcomer(id), now + I),
                    },
                },
                Contender::Holding(mut lease, Some((read, record)), number) => {
                    let is_closed = record.count == CLOSED;
                    self.blocks.life = record;
                    if is_closed {
                        self.closes += 1;
                        return (self.newcomer(id), now);
                    }
                    lease.handle_written(read);
                    let due = lease.due();
                    (Contender::Holding(lease, None, number), due)
                }
                Contender::Holding(mut lease, None, number) if lease.due() <= now => {
                    let Some(mut record) = lease.handle_read(&self.blocks.claim) else {
                        self.losses += 1;
                        return (self.newcomer(id), now);
                    };
                    if self.prng.one_in(20) {
                        // A node that closes a target no longer changes it.
                        record = lease.farewell();
                        lease.found = Time::ZERO;
                    }
                    (Contender::Holding(lease, Some((now, record)), number), now)
                }
                Contender::Holding(lease, None, number) => {
                    let due = lease.due();
                    (Contender::Holding(lease, None, number), due)
                }
                Contender::Gone => (Contender::Gone, Time::FAR_FUTURE),
            }
        }

        /// Makes a node that starts again, under another number.
        fn newcomer(&self, id: u64) -> Contender {
            let salt = id + 2 * u64::from(1 + self.losses + self.closes + self.takeovers);
            Contender::Claiming(Claim::new(salt, "n", I), None)
        }
    }
}
