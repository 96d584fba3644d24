//! Recognises that a program writes records at equal distances, and tracks how far its predictions came true. One
//! [`Strides`] per open file, fed with every write.
//!
//! What must not be here: locks, and whether the distance is worth anything (see [`crate::shared_write`]).
//!
//! Writes that touch are one *run*: a record may come in several pieces, in any order. A stride is accepted when three
//! runs of one length came one after the other at one distance, or, where several threads write through one open file
//! and their records mix, when four runs did with others in between. The distance that explains most of the last runs
//! wins.

use crate::range_set::Extent;
use std::collections::VecDeque;

/// Runs that are remembered: four interleaved streams of four records, twice.
const RUNS_MAX: usize = 32;
/// Strides that are followed at once.
const STREAMS_MAX: usize = 4;

/// Bytes written without a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    start: u64,
    /// First byte after the run.
    end: u64,
}

impl Run {
    fn length(&self) -> u64 {
        self.end - self.start
    }
}

/// Records of one length at one distance: the one that begins at `start`, and those after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    start: u64,
    length: u64,
    /// Distance from one record to the next; never shorter than a record; negative for programs that go backward.
    period: i64,
    /// Records from `start` on in the last set that was asked for; 0 if there was none.
    pub(crate) asked: u64,
    /// Number of these records up to the last one that was written.
    pub(crate) used: u64,
    /// Number of records in the next set.
    pub(crate) ahead: u64,
    /// Sets that were called back unused, less those that were used up since.
    pub(crate) failures: u32,
    last_use: u64,
}

impl Stream {
    /// Number of the record, counted from `start`, that has all of the bytes.
    fn record_of(&self, offset: u64, length: u64) -> Option<u64> {
        let distance = i128::from(offset) - i128::from(self.start);
        let within = distance.rem_euclid(i128::from(self.period.unsigned_abs()));
        let record = (distance - within) / i128::from(self.period);
        let fits = within + i128::from(length) <= i128::from(self.length);
        fits.then_some(record).and_then(|r| u64::try_from(r).ok())
    }

    /// The bytes of a record, if they are within what a file can have.
    pub(crate) fn record(&self, index: u64) -> Option<Extent> {
        let start = i128::from(self.start) + i128::from(index) * i128::from(self.period);
        let start = u64::try_from(start).ok()?;
        let end = start.checked_add(self.length - 1).filter(|end| *end <= i64::MAX as u64)?;
        Extent::new(start, end)
    }

    /// Length of a record in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Records that were asked for and are not written.
    pub(crate) fn unused(&self) -> u64 {
        assert!(self.used <= self.asked, "{} records were written, of {} asked for", self.used, self.asked);
        self.asked - self.used
    }

    /// Returns whether one of these ascending ranges, itself no longer than a record, has bytes of a record that was
    /// asked for and is not written yet.
    pub(crate) fn has_unused_in(&self, ranges: &[Extent]) -> bool {
        (self.used..self.asked).filter_map(|index| self.record(index)).any(|record| {
            let at = ranges.partition_point(|r| r.end < record.start);
            ranges.get(at).is_some_and(|r| r.start <= record.end && r.end - r.start < self.length)
        })
    }

    /// Makes the record at `index` the first one, with none asked for yet.
    pub(crate) fn advance(&mut self, index: u64) {
        if let Some(record) = self.record(index) {
            self.start = record.start;
        }
        self.asked = 0;
        self.used = 0;
    }
}

/// The runs and streams of one open file; see the module.
#[derive(Default, Debug)]
pub(crate) struct Strides {
    /// Latest runs; the last one contains the last write.
    runs: VecDeque<Run>,
    streams: Vec<Stream>,
    clock: u64,
}

impl Strides {
    /// The program writes `length` bytes at `offset`.
    pub(crate) fn handle_write(&mut self, offset: u64, length: u64) {
        self.clock += 1;
        let mut run = Run { start: offset, end: offset.saturating_add(length) };
        self.runs.retain(|other| {
            let touches = other.start <= run.end && run.start <= other.end;
            if touches {
                run = Run { start: run.start.min(other.start), end: run.end.max(other.end) };
            }
            !touches
        });
        self.runs.push_back(run);
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
        for stream in &mut self.streams {
            if let Some(record) = stream.record_of(offset, length).filter(|r| *r < stream.asked) {
                stream.used = stream.used.max(record + 1);
                stream.last_use = self.clock;
            }
        }
    }

    /// Returns whether the last write, of this length, continued a run at least twice as long without a gap.
    pub(crate) fn is_sequential(&self, length: u64) -> bool {
        self.runs.back().is_some_and(|run| run.length() >= length.saturating_mul(3))
    }

    /// The stream that a write belongs to, and which of its records it is; a new one if a stride is seen for the first
    /// time. The write must have been handled before.
    pub(crate) fn stream_of(&mut self, offset: u64, length: u64) -> Option<(&mut Stream, u64)> {
        let known = self.streams.iter().enumerate().find_map(|(at, s)| {
            // A match far beyond the records asked for is a coincidence, or the program jumped.
            let record = s.record_of(offset, length).filter(|r| *r <= s.asked.max(2) * 2)?;
            Some((at, record))
        });
        let (at, record) = match known {
            Some(known) => known,
            None => (self.recognise(offset, length)?, 0),
        };
        let stream = &mut self.streams[at];
        stream.last_use = self.clock;
        Some((stream, record))
    }

    /// Adds the stream whose third (or fourth) record this write begins.
    fn recognise(&mut self, offset: u64, length: u64) -> Option<usize> {
        let (first, period) = self.period_of(offset, length)?;
        let start = u64::try_from(i128::from(first.start) + i128::from(period)).ok()?;
        let stream = Stream {
            start,
            length: first.length(),
            period,
            asked: 0,
            used: 0,
            ahead: 0,
            failures: 0,
            last_use: self.clock,
        };
        assert!(stream.length > 0 && period.unsigned_abs() > stream.length, "records touch, or are empty: {stream:?}");
        self.streams.retain(|s| s.period != period || s.record_of(start, stream.length).is_none());
        if self.streams.len() == STREAMS_MAX {
            let oldest = (0..STREAMS_MAX).min_by_key(|at| self.streams[*at].last_use)?;
            self.streams.remove(oldest);
        }
        self.streams.push(stream);
        assert!(self.streams.len() <= STREAMS_MAX, "{} streams are followed", self.streams.len());
        Some(self.streams.len() - 1)
    }

    /// The record before this write's, and the distance between the two.
    fn period_of(&self, offset: u64, length: u64) -> Option<(Run, i64)> {
        let earlier = self.runs.len().checked_sub(1)?;
        let mut best: Option<(usize, Run, i64)> = None;
        for b in (0..earlier).rev() {
            for a in (0..b).rev() {
                let Some(period) = self.step(a, b) else { continue };
                if !lands_in(offset, length, &self.runs[b], period) {
                    continue;
                }
                if b == earlier - 1 && a == b - 1 {
                    return Some((self.runs[b], period));
                }
                let has_fourth = (0..a).any(|z| self.step(z, a) == Some(period));
                let support = self.support(period);
                if has_fourth && best.as_ref().is_none_or(|(most, ..)| support > *most) {
                    best = Some((support, self.runs[b], period));
                }
            }
        }
        best.map(|(_, run, period)| (run, period))
    }

    /// The distance between two runs, if they can be records of one stream.
    fn step(&self, from: usize, to: usize) -> Option<i64> {
        let (from, to) = (self.runs[from], self.runs[to]);
        let period = i64::try_from(i128::from(to.start) - i128::from(from.start)).ok()?;
        (from.length() == to.length() && period.unsigned_abs() > from.length()).then_some(period)
    }

    /// Number of pairs of runs that a distance explains.
    fn support(&self, period: i64) -> usize {
        let pairs = (0..self.runs.len()).flat_map(|to| (0..to).map(move |from| (from, to)));
        pairs.filter(|(from, to)| self.step(*from, *to) == Some(period)).count()
    }

    /// The streams that are followed.
    pub(crate) fn streams_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.streams.iter_mut()
    }
}

/// Returns whether the bytes are within `run`, moved on by one period.
fn lands_in(offset: u64, length: u64, run: &Run, period: i64) -> bool {
    let within = i128::from(offset) - i128::from(run.start) - i128::from(period);
    within >= 0 && within + i128::from(length) <= i128::from(run.length())
}
