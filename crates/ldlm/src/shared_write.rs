//! How the writer of a file that others write too gets its locks. One [`SharedWrite`] per open file; it learns from every
//! write where the next ones will be, and from replies and callbacks whether anybody is in the way.
//!
//! What must not be here: locks, objects (all offsets are those of the file), RPCs.
//!
//! Locks that the server grows are the best that a writer alone can have, and the worst for several that write records in
//! turn: each grown lock covers the others' next records, so each record costs a callback, a flush and a lock. Four ways:
//!
//! | who writes                                | way                   | what it costs                               |
//! |-------------------------------------------|-----------------------|---------------------------------------------|
//! | nobody else, or each in its own segment   | [`LockPlan::Grown`]        | one lock in all                             |
//! | others too, records at equal distances    | [`LockPlan::Ahead`]        | one lock for up to 256 records, no callback |
//! | others too, no distance known yet         | [`LockPlan::Exact`]        | a lock for each write                       |
//! | others too, no order in it                | [`LockPlan::ServerSide`]   | no lock; the write isn't cached             |
//!
//! Sets asked for ahead by writers of one pattern never overlap: they hold nothing but the records that each will write.
//! That is why a wrong guess costs (somebody's lock covers what others need) and why a guess must come true before more
//! is asked for: the number of records doubles each time all that were asked for were written. A set is one of the file,
//! whatever its layout: each object is asked for its part of it when the program comes there.
//!
//! Contiguous writers that are in each other's way take an exact lock after each grown one that they lost: beside these
//! the next grown ones find an end. The reasoning at length and the measurements are in `docs/shared-writes.md`.
//!
//! A program alone that writes with gaps starts and stays grown. One that was in the way of others stays with sets for a
//! hold time, which doubles each time that trying grown locks again brings the contention back.

use crate::range_set::{Extent, RangeSet};
use crate::stride::{Stream, Strides};
use nacre_base::Time;
use nacre_wire::ldlm::RANGES_MAX;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How to get the lock for a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockPlan {
    /// For the write; the server may give more.
    Grown,
    /// For the write and no more.
    Exact,
    /// For all of these records of the file, of which the first has the bytes of the write and the others come after it in
    /// this order; they don't touch. Each object that a write misses a lock on is asked for its part of them, see
    /// [`part_of_set`]; granted exactly.
    Ahead(Vec<Extent>),
    /// Not at all: the write RPC goes without, the server locks while it works.
    ServerSide,
}

/// What was asked for in which way.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Times [`LockPlan::Grown`].
    pub grown: u64,
    /// Times [`LockPlan::Exact`].
    pub exact: u64,
    /// Times [`LockPlan::Ahead`].
    pub ahead: u64,
    /// Times [`LockPlan::ServerSide`].
    pub server_side: u64,
    /// Records in all that was asked for ahead.
    pub records_ahead: u64,
    /// Of these, records called back or given up before they were written.
    pub records_wasted: u64,
}

/// Records in the first set of a new stride, for each object of the file.
const AHEAD_FIRST: u64 = 4;
/// Most records in a set, for each object of the file.
const AHEAD_RECORDS: u64 = 256;
const _: () = assert!(AHEAD_RECORDS <= RANGES_MAX as u64);
/// Most records in a set of all objects: what the program is thought to go on with, in any case.
const AHEAD_RECORDS_MAX: u64 = 4096;
/// Most bytes in a set, for each object of the file; [`AHEAD_FIRST`] records are allowed in any case.
const AHEAD_BYTES: u64 = 1 << 30;
/// Sets called back unused in succession until a stream no longer asks for sets.
const FAILURES_MAX: u32 = 3;
/// So many records it then asks for one by one.
const PENANCE: u32 = 8;
/// A lock called back younger than this was in somebody's way.
const YOUNG: Duration = Duration::from_secs(4);
/// So was one that served fewer writes.
const HARDLY_USED: u64 = 16;
/// How long the file counts as contended after the last sign of it: as the server's `contention_hold_seconds`.
const HOLD: Duration = Duration::from_secs(30);
/// The most that [`HOLD`] doubles to.
const HOLD_MAX: Duration = Duration::from_secs(600);
/// Writes without order, while the file is contended, until they go without locks.
const DISORDER_MAX: u32 = 8;
/// Grown locks in succession that served hardly a record each, until a strided writer takes sets.
const SHORT_MAX: u32 = 3;

/// See the module.
#[derive(Debug)]
pub struct SharedWrite {
    objects: u64,
    strides: Strides,
    contended_until: Time,
    hold: Duration,
    /// Misses in succession that belong to no stream.
    disorder: u32,
    /// Writes since the last asking.
    writes_since_ask: u64,
    /// Grown locks in succession that served one write.
    short_grown: u32,
    last_was_grown: bool,
    counts: Counts,
}

impl SharedWrite {
    /// For a file just opened, whose layout has `objects` stripes.
    pub fn new(objects: u32) -> SharedWrite {
        SharedWrite {
            objects: u64::from(objects.max(1)),
            strides: Strides::default(),
            contended_until: Time::ZERO,
            hold: HOLD,
            disorder: 0,
            writes_since_ask: 0,
            short_grown: 0,
            last_was_grown: false,
            counts: Counts::default(),
        }
    }

    /// The program writes `length` bytes at `offset`. Said of every write, before its locks are looked for.
    pub fn handle_write(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.strides.handle_write(offset, length);
            self.writes_since_ask += 1;
        }
    }

    /// An enqueue's reply says whether the object is contended.
    pub fn handle_contended(&mut self, contended: bool, now: Time) {
        if contended {
            self.contend(now);
        }
    }

    /// A write lock on these ranges of the file, ascending, was called back `age` after it was granted. A range longer than
    /// a stream's records was grown, and says nothing about the stream's guesses.
    pub fn handle_called_back(&mut self, ranges: &[Extent], age: Duration, now: Time) {
        for stream in self.strides.streams_mut() {
            if stream.has_unused_in(ranges) {
                self.counts.records_wasted += stream.unused();
                stream.advance(stream.used);
                stream.ahead = 0;
                stream.failures += 1;
                if stream.failures >= FAILURES_MAX {
                    stream.failures = FAILURES_MAX + PENANCE;
                }
            }
        }
        if age < YOUNG || self.writes_since_ask < HARDLY_USED {
            self.contend(now);
        }
    }

    /// How to get the lock for the write that was handled last, which no lock that is held serves.
    pub fn ask(&mut self, offset: u64, length: u64, now: Time) -> LockPlan {
        let ask = self.decide(offset, length.max(1), now);
        match &ask {
            LockPlan::Grown => self.counts.grown += 1,
            LockPlan::Exact => self.counts.exact += 1,
            LockPlan::Ahead(_) => self.counts.ahead += 1,
            LockPlan::ServerSide => self.counts.server_side += 1,
        }
        self.last_was_grown = ask == LockPlan::Grown;
        self.writes_since_ask = 0;
        ask
    }

    /// Whether others were in the way lately.
    pub fn is_contended(&self, now: Time) -> bool {
        now < self.contended_until
    }

    /// What was asked for so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn decide(&mut self, offset: u64, length: u64, now: Time) -> LockPlan {
        let short = self.last_was_grown && self.writes_since_ask <= 1;
        self.short_grown = if short { self.short_grown + 1 } else { 0 };
        let contended = self.is_contended(now);
        let first = AHEAD_FIRST * self.objects.min(AHEAD_RECORDS_MAX / AHEAD_FIRST);
        let limit = AHEAD_RECORDS.saturating_mul(self.objects).min(AHEAD_RECORDS_MAX);
        let bytes = AHEAD_BYTES.saturating_mul(self.objects);
        if let Some((stream, record)) = self.strides.stream_of(offset, length) {
            self.disorder = 0;
            if !contended && self.short_grown < SHORT_MAX {
                return LockPlan::Grown;
            }
            let most = limit.min((bytes / stream.length()).max(first));
            let set = ask_ahead(stream, record, offset, first..=most);
            self.counts.records_wasted += set.wasted;
            self.counts.records_ahead += set.new_records;
            let ask = set.plan;
            if !contended {
                self.contend(now);
            }
            return ask;
        }
        if !contended {
            return LockPlan::Grown;
        }
        if self.strides.is_sequential(length) {
            // A grown lock that was lost is followed by an exact one: while everybody has one of these, the server lets
            // none grow over another, and the next grown ones end where the others write.
            return if self.last_was_grown { LockPlan::Exact } else { LockPlan::Grown };
        }
        self.disorder += 1;
        if self.disorder < DISORDER_MAX { LockPlan::Exact } else { LockPlan::ServerSide }
    }

    fn contend(&mut self, now: Time) {
        let was = self.contended_until;
        if now >= was && was > Time::ZERO {
            // It was over. If it came back at once it will again.
            let again = now.since(was) < self.hold;
            self.hold = if again { (self.hold * 2).min(HOLD_MAX) } else { HOLD };
        }
        self.contended_until = self.contended_until.max(now + self.hold);
        self.short_grown = 0;
    }
}

/// What an object is asked for: its parts of a set's records, in the order of the set, as many as one enqueue may have;
/// `write` is the part that is written now. The rest is asked for when the program comes there.
pub fn part_of_set(write: Extent, parts: impl IntoIterator<Item = Extent>) -> RangeSet {
    let mut bytes = 0;
    let within_limits = |(count, part): &(u64, Extent)| {
        bytes += part.end - part.start;
        *count < AHEAD_FIRST || *count < AHEAD_RECORDS - 1 && bytes < AHEAD_BYTES
    };
    let taken = (0..).zip(parts).take_while(within_limits).map(|(_, part)| part);
    RangeSet::from_extents(taken.chain([write])).unwrap_or(RangeSet::single(write))
}

/// What came of [`ask_ahead`].
struct Set {
    plan: LockPlan,
    /// Records that were not asked for before.
    new_records: u64,
    /// Records of the set before that were never written.
    wasted: u64,
}

/// The set that begins with a record of a stream; of how many records it may be at least and at most.
fn ask_ahead(stream: &mut Stream, record: u64, offset: u64, records: RangeInclusive<u64>) -> Set {
    let mut set = Set { plan: LockPlan::Exact, new_records: 0, wasted: 0 };
    if stream.record(record).is_none() {
        // It would end behind the end of all files, though the write does not.
        return set;
    }
    if record >= stream.asked {
        set.wasted = stream.unused();
        if stream.asked > 0 && record == stream.asked {
            // All that was asked for was written.
            if stream.failures == 0 {
                stream.ahead *= 2;
            }
            stream.failures = stream.failures.saturating_sub(1);
        } else if record > stream.asked {
            stream.ahead /= 2;
        }
        stream.ahead = stream.ahead.clamp(*records.start(), (*records.end()).max(*records.start()));
        stream.advance(record);
        stream.used = 1;
        stream.asked = 1;
        if stream.failures >= FAILURES_MAX {
            return set;
        }
        assert!(stream.ahead > 0, "a set of no records");
        stream.asked = (0..stream.ahead).take_while(|index| stream.record(*index).is_some()).count() as u64;
        set.new_records = stream.asked;
        return Set { plan: plan_of(stream, 0, offset), ..set };
    }
    // Another object's part of the set that was asked for last.
    Set { plan: plan_of(stream, record, offset), ..set }
}

/// The records of a stream's set from one on.
fn plan_of(stream: &Stream, from: u64, offset: u64) -> LockPlan {
    let records: Vec<Extent> = (from..stream.asked).filter_map(|index| stream.record(index)).collect();
    assert!(records.first().is_none_or(|first| first.start <= offset && offset <= first.end), "{offset}: {records:?}");
    // What is before the write in its own record was written before.
    let from_offset =
        |r: Extent| Extent { start: if r.start <= offset && offset <= r.end { offset } else { r.start }, ..r };
    match records.is_empty() {
        false => LockPlan::Ahead(records.into_iter().map(from_offset).collect()),
        true => LockPlan::Exact,
    }
}
