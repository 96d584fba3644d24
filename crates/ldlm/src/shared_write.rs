//! How a client that writes a file which others write too gets its locks. One [`SharedWrite`] per open file; it learns
//! from every write where the next ones will be, and from replies and callbacks whether other writers conflict.
//!
//! What must not be here: locks, objects (all offsets are those of the file), RPCs.
//!
//! Grown locks are best for a lone writer, and worst for several clients that write records in turn: each grown lock
//! covers the others' next records, so each record costs a callback, a flush and a lock. So there are four ways:
//!
//! | who writes                                | way                   | what it costs                               |
//! |-------------------------------------------|-----------------------|---------------------------------------------|
//! | nobody else, or each in its own segment   | [`LockPlan::Grown`]        | one lock in all                             |
//! | others too, records at equal distances    | [`LockPlan::Ahead`]        | one lock for up to 256 records, no callback |
//! | others too, no distance known yet         | [`LockPlan::Exact`]        | a lock for each write                       |
//! | others too, no order in it                | [`LockPlan::ServerSide`]   | no lock; the write isn't cached             |
//!
//! Sets asked for ahead by the writers of one pattern never overlap, because each contains only the records that its
//! client will write. So a wrong guess is costly (the lock covers bytes that others need), and a guess must come true
//! before more is asked for: the number of records doubles each time all records of a set were written. A set belongs
//! to the file, whatever its layout: each object is asked for its part of the set when the program gets there.
//!
//! Contiguous writers that conflict take an exact lock after each grown one that they lost: the next grown locks end at
//! these. The full reasoning and the measurements are in `docs/shared-writes.md`.
//!
//! A lone program that writes with gaps starts with grown locks and keeps to them. One that conflicted with others
//! keeps to sets for a hold time, which doubles each time that trying grown locks again brings the contention back.

use crate::range_set::{Extent, RangeSet};
use crate::stride::{Stream, Strides};
use nacre_base::Time;
use nacre_wire::ldlm::RANGES_MAX;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How to get the lock for a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockPlan {
    /// Ask for the bytes of the write; the server may grant more.
    Grown,
    /// Ask for the bytes of the write and no more.
    Exact,
    /// Ask for all of these records of the file: the first has the bytes of the write, the others come after it in this
    /// order, and they do not touch. Each object on which a write misses a lock is asked for its part of them (see
    /// [`part_of_set`]), to be granted exactly.
    Ahead(Vec<Extent>),
    /// Ask for no lock: the write RPC goes without one, and the server locks while it works.
    ServerSide,
}

/// Counts of the plans that were made.
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
    /// Records in all sets that were asked for ahead.
    pub records_ahead: u64,
    /// Of these, records called back or given up before they were written.
    pub records_wasted: u64,
}

/// Records in the first set of a new stride, for each object of the file.
const AHEAD_FIRST: u64 = 4;
/// Most records in a set, for each object of the file.
const AHEAD_RECORDS: u64 = 256;
const _: () = assert!(AHEAD_RECORDS <= RANGES_MAX as u64);
/// Most records in a set over all objects: no program is assumed to go on for longer.
const AHEAD_RECORDS_MAX: u64 = 4096;
/// Most bytes in a set, for each object of the file; [`AHEAD_FIRST`] records are allowed in any case.
const AHEAD_BYTES: u64 = 1 << 30;
/// After so many sets in a row that were called back unused, a stream no longer asks for sets.
const FAILURES_MAX: u32 = 3;
/// Number of records that such a stream asks for one by one.
const PENANCE: u32 = 8;
/// A lock called back younger than this conflicted with another writer.
const YOUNG: Duration = Duration::from_secs(4);
/// A lock that served fewer writes than this did so, too.
const HARDLY_USED: u64 = 16;
/// How long the file counts as contended after the last sign of it, like the server's `contention_hold_seconds`.
const HOLD: Duration = Duration::from_secs(30);
/// Longest hold time, after doubling.
const HOLD_MAX: Duration = Duration::from_secs(600);
/// After so many writes without a pattern to a contended file, writes go without locks.
const DISORDER_MAX: u32 = 8;
/// After so many grown locks in a row that served hardly a record each, a strided writer takes sets.
const SHORT_MAX: u32 = 3;

/// The lock policy of one open file; see the module.
#[derive(Debug)]
pub struct SharedWrite {
    objects: u64,
    strides: Strides,
    contended_until: Time,
    hold: Duration,
    /// Misses in a row that belong to no stream.
    disorder: u32,
    /// Writes since the last [`SharedWrite::ask`].
    writes_since_ask: u64,
    /// Grown locks in a row that served at most one write.
    short_grown: u32,
    last_was_grown: bool,
    counts: Counts,
}

impl SharedWrite {
    /// Makes the policy of a file that was just opened, whose layout has `objects` stripes.
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

    /// The program writes `length` bytes at `offset`. Called for every write, before its locks are looked for.
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

    /// How to get a lock for the latest write, which no held lock serves.
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

    /// Returns whether other writers conflicted lately.
    pub fn is_contended(&self, now: Time) -> bool {
        now < self.contended_until
    }

    /// Counts of the plans so far.
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
            // A grown lock that was lost is followed by an exact one: while every client has one of these, the server
            // lets no lock grow over another, and the next grown ones end where the others write.
            return if self.last_was_grown { LockPlan::Exact } else { LockPlan::Grown };
        }
        self.disorder += 1;
        if self.disorder < DISORDER_MAX { LockPlan::Exact } else { LockPlan::ServerSide }
    }

    fn contend(&mut self, now: Time) {
        let was = self.contended_until;
        if now >= was && was > Time::ZERO {
            // The contention was over. If it came back at once, it will come back again.
            let again = now.since(was) < self.hold;
            self.hold = if again { (self.hold * 2).min(HOLD_MAX) } else { HOLD };
        }
        self.contended_until = self.contended_until.max(now + self.hold);
        self.short_grown = 0;
    }
}

/// The ranges to ask an object for: its parts of a set's records, in the order of the set, as many as one enqueue may
/// have; `write` is the part that is written now. The rest is asked for when the program gets there.
pub fn part_of_set(write: Extent, parts: impl IntoIterator<Item = Extent>) -> RangeSet {
    let mut bytes = 0;
    let within_limits = |(count, part): &(u64, Extent)| {
        bytes += part.end - part.start;
        *count < AHEAD_FIRST || *count < AHEAD_RECORDS - 1 && bytes < AHEAD_BYTES
    };
    let taken = (0..).zip(parts).take_while(within_limits).map(|(_, part)| part);
    RangeSet::from_extents(taken.chain([write])).unwrap_or(RangeSet::single(write))
}

/// Result of [`ask_ahead`].
struct Set {
    plan: LockPlan,
    /// Records that were not asked for before.
    new_records: u64,
    /// Records of the previous set that were never written.
    wasted: u64,
}

/// Makes the set that begins with `record` of a stream; `records` bounds the number of its records.
fn ask_ahead(stream: &mut Stream, record: u64, offset: u64, records: RangeInclusive<u64>) -> Set {
    let mut set = Set { plan: LockPlan::Exact, new_records: 0, wasted: 0 };
    if stream.record(record).is_none() {
        // The record would end behind the largest offset, although the write does not.
        return set;
    }
    if record >= stream.asked {
        set.wasted = stream.unused();
        if stream.asked > 0 && record == stream.asked {
            // All records of the set were written.
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

/// The plan for the records of a stream's set from number `from` on.
fn plan_of(stream: &Stream, from: u64, offset: u64) -> LockPlan {
    let records: Vec<Extent> = (from..stream.asked).filter_map(|index| stream.record(index)).collect();
    assert!(records.first().is_none_or(|first| first.start <= offset && offset <= first.end), "{offset}: {records:?}");
    // The bytes before the write in its own record were written before.
    let from_offset =
        |r: Extent| Extent { start: if r.start <= offset && offset <= r.end { offset } else { r.start }, ..r };
    match records.is_empty() {
        false => LockPlan::Ahead(records.into_iter().map(from_offset).collect()),
        true => LockPlan::Exact,
    }
}
