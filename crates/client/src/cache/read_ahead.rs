//! Guesses what a program will read next from what it has read: one for each open file, in file offsets. Recognises
//! several sequential, strided and backward streams at once. It says what to fetch; the caller cuts that to what its
//! locks cover and what is not cached, and reports what was fetched in vain.
//!
//! Reads that fit no stream are remembered; three that adjoin, or four at equal distances, are a new stream. Fewer would
//! find streams in random reads. The window of a stream is twice what it has read so far, so that the bytes fetched in
//! vain at its end stay in proportion.
//!
//! Strided streams of several open files that together read everything ([`super::tiling`]) also fetch what lies between
//! their records.

use super::tiling::{Position, Reader};
use nacre_base::Time;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// Most streams of one file.
const STREAMS_MAX: usize = 4;
/// Reads remembered: enough for the beginnings of all streams, interleaved.
const RECENT_MAX: usize = 16;
/// Equal distances that make a strided stream.
const STRIDES_MIN: usize = 3;
/// Fewest requests that a window holds.
const REQUESTS_MIN: u64 = 4;
/// Most records announced at once for a strided stream: those that fit into an RPC.
const RECORDS_MAX: u64 = 256;
/// Number of requests that may overtake each other. A read further away does not belong to the stream, though it may have
/// been fetched: random reads would keep a false stream going.
const REORDERED_MAX: u64 = 8;
/// Large windows end at multiples of this.
const ALIGNMENT: u64 = 1 << 20;

/// A stream that was not read for this long has no share of the window.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Bounds, in bytes: `llite.*.max_read_ahead_per_file_mb` and `max_read_ahead_whole_mb`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAheadLimits {
    /// Largest window of one file; 0: no read-ahead.
    pub(crate) per_file: u64,
    /// Files up to this size are fetched whole when read from their beginning.
    pub(crate) whole: u64,
    /// A stream that has been recognised has a window of at least so much: what is under way to OSTs far away. 0 if none are.
    pub(crate) far: u64,
}

/// The reads of one open file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Streams, the most recently used one last.
    streams: Vec<Stream>,
    /// Reads that belong to no stream, the newest last.
    recent: VecDeque<Range<u64>>,
    /// True if the caller was told to fetch the whole file.
    is_whole: bool,
    /// This open file among all open files of the same file.
    reader: Option<Reader>,
}

/// Reads that continue each other.
#[derive(Debug)]
struct Stream {
    course: Course,
    /// Bytes read, less what was wasted.
    consumed: u64,
    /// Time of the last read.
    used: Time,
}

#[derive(Debug)]
enum Course {
    /// The program has read up to `end`; the caller was told to fetch up to `told`.
    Forward { end: u64, told: u64 },
    /// The program has read down to `start`; the caller was told to fetch down to `told`.
    Backward { start: u64, told: u64 },
    /// Records of `len` bytes, `stride` apart (backwards if negative): the program has read up to the one at `last`, and
    /// the caller was told to fetch `told` more.
    Strided { last: u64, stride: i128, len: u64, told: u64 },
}

impl ReadAhead {
    /// Creates the state of a file just opened.
    pub(crate) fn new(reader: Reader) -> ReadAhead {
        ReadAhead { reader: Some(reader), ..ReadAhead::default() }
    }

    /// Handles a read of `len` bytes at `offset`, of a file of about `size` bytes. Returns the ranges to fetch ahead:
    /// ascending, within `size`, and not returned before for the same stream (unless reported as wasted since).
    pub(crate) fn handle_read(
        &mut self,
        offset: u64,
        len: u64,
        size: u64,
        limits: ReadAheadLimits,
        now: Time,
    ) -> Vec<Range<u64>> {
        let read = offset..offset.saturating_add(len);
        if read.is_empty() || limits.per_file == 0 {
            return Vec::new();
        }
        if size <= limits.whole && (self.is_whole || read.start == 0) {
            let first = !std::mem::replace(&mut self.is_whole, true);
            return if first && read.end < size { vec![read.end..size] } else { Vec::new() };
        }
        let stream = match self.streams.iter_mut().position(|stream| stream.advance(&read)) {
            Some(at) => self.streams.remove(at),
            None => match self.recognise(&read) {
                Some(stream) => stream,
                None => {
                    self.remember(read);
                    return Vec::new();
                }
            },
        };
        self.streams.retain(|stream| now.since(stream.used) <= IDLE_MAX);
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(Stream { used: now, ..stream });
        let [most, least] = [limits.per_file, limits.far].map(|bytes| bytes / self.streams.len() as u64);
        let Some(stream) = self.streams.last_mut() else { return Vec::new() };
        let is_tiled = match (stream.position(), &self.reader) {
            (Some(at), Some(reader)) => reader.handle_read(at, now),
            _ => false,
        };
        stream.extend(len, size, least.min(most)..=most, is_tiled)
    }

    /// A range that was returned before has not been fetched, or left the cache before it was read.
    pub(crate) fn handle_wasted(&mut self, range: &Range<u64>) {
        self.is_whole = false;
        self.streams.iter_mut().for_each(|stream| stream.shrink(range));
    }

    fn remember(&mut self, read: Range<u64>) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(read);
    }

    /// The stream that the read forms together with recent ones, if any.
    fn recognise(&self, read: &Range<u64>) -> Option<Stream> {
        let len = read.end - read.start;
        let forward = |at: u64| self.recent.iter().rev().find(|r| r.end == at);
        let backward = |at: u64| self.recent.iter().rev().find(|r| r.start == at);
        let stream = |course| Some(Stream { course, consumed: 3 * len, used: Time::ZERO });
        if let Some(before) = forward(read.start)
            && (before.start == 0 || forward(before.start).is_some())
        {
            return stream(Course::Forward { end: read.end, told: read.end });
        }
        if backward(read.end).is_some_and(|after| backward(after.end).is_some()) {
            return stream(Course::Backward { start: read.start, told: read.start });
        }
        let stride = self.stride(read)?;
        stream(Course::Strided { last: read.start, stride, len, told: 0 })
    }

    /// The distance at which recent reads of the same length led to this one. Overlapping reads are no stream of records.
    fn stride(&self, read: &Range<u64>) -> Option<i128> {
        let len = read.end - read.start;
        let of_length = || self.recent.iter().rev().filter(|r| r.end - r.start == len);
        let distances = of_length().map(|before| i128::from(read.start) - i128::from(before.start));
        distances.filter(|distance| distance.unsigned_abs() >= u128::from(len)).find(|distance| {
            // Follow the earlier reads back in time.
            let mut at = i128::from(read.start) - distance;
            let mut steps = 0;
            for before in of_length() {
                if i128::from(before.start) == at {
                    at -= distance;
                    steps += 1;
                }
            }
            steps >= STRIDES_MIN
        })
    }
}

impl Stream {
    /// Returns whether the read belongs to this stream, and moves the stream on if it does.
    fn advance(&mut self, read: &Range<u64>) -> bool {
        let len = read.end - read.start;
        let slack = len.saturating_mul(REORDERED_MAX);
        match &mut self.course {
            Course::Forward { end, told } => {
                let most = (*told).clamp(*end, end.saturating_add(slack));
                let is_of_this = read.start <= most && read.start.saturating_add(slack) >= *end;
                if is_of_this {
                    *end = read.end.max(*end);
                }
                self.consumed += if is_of_this { len } else { 0 };
                is_of_this
            }
            Course::Backward { start, told } => {
                let least = (*told).clamp(start.saturating_sub(slack), *start);
                let is_of_this = read.end >= least && read.end <= start.saturating_add(slack);
                if is_of_this {
                    *start = read.start.min(*start);
                }
                self.consumed += if is_of_this { len } else { 0 };
                is_of_this
            }
            Course::Strided { last, stride, len: record, told } => {
                let distance = i128::from(read.start) - i128::from(*last);
                let records = distance / *stride;
                let is_late = (-i128::from(REORDERED_MAX)..=0).contains(&records);
                let is_next = records > 0 && records <= i128::from((*told).clamp(1, REORDERED_MAX));
                if len > *record || distance % *stride != 0 || !(is_late || is_next) {
                    return false;
                }
                if is_next {
                    *last = read.start;
                    *told = told.saturating_sub(records as u64);
                }
                self.consumed += len;
                true
            }
        }
    }

    /// The stream's position, if it goes forward in strides.
    fn position(&self) -> Option<Position> {
        match self.course {
            Course::Strided { last, stride, len, .. } => {
                let stride = u64::try_from(stride).ok().and_then(NonZeroU64::new)?;
                Some(Position { last, stride, len })
            }
            _ => None,
        }
    }

    /// How many bytes to fetch ahead, for requests of `len` bytes, within these limits.
    fn window(&self, len: u64, limits: &RangeInclusive<u64>) -> u64 {
        let wanted = self.consumed.saturating_mul(2).max(len.saturating_mul(REQUESTS_MIN));
        wanted.clamp(*limits.start(), *limits.end())
    }

    /// The ranges to fetch now: none while three quarters of the window are there, so that requests are large.
    /// `is_tiled`: other streams read what lies between the records of a strided stream.
    fn extend(&mut self, len: u64, size: u64, limits: RangeInclusive<u64>, is_tiled: bool) -> Vec<Range<u64>> {
        let window = self.window(len, &limits);
        let enough = window - window / 4;
        match &mut self.course {
            Course::Forward { end, told } => {
                let from = (*told).max(*end);
                let target = end.saturating_add(window);
                let target = if window >= ALIGNMENT { target - target % ALIGNMENT } else { target }.min(size);
                if from - *end >= enough || target <= from {
                    return Vec::new();
                }
                *told = target;
                vec![from..target]
            }
            Course::Backward { start, told } => {
                let from = (*told).min(*start);
                let target = start.saturating_sub(window);
                let target = if window >= ALIGNMENT { target.next_multiple_of(ALIGNMENT) } else { target };
                if *start - from >= enough || target >= from {
                    return Vec::new();
                }
                *told = target;
                vec![target..from]
            }
            Course::Strided { last, stride, len, told } if is_tiled => {
                let stride = stride.unsigned_abs() as u64;
                let records = (window / stride).clamp(1, RECORDS_MAX);
                if *told > records - records.div_ceil(4) {
                    return Vec::new();
                }
                let end_of = |n: u64| {
                    let end = last.saturating_add(stride.saturating_mul(n)).saturating_add(*len);
                    if window >= ALIGNMENT { end.next_multiple_of(ALIGNMENT) } else { end }.min(size)
                };
                let from = if *told == 0 { last.saturating_add(*len) } else { end_of(*told) };
                *told = records;
                Some(from..end_of(records)).filter(|ahead| ahead.start < ahead.end).into_iter().collect()
            }
            Course::Strided { last, stride, len, told } => {
                let records = (window / *len).min(RECORDS_MAX);
                if *told > records - records / 4 || *told == records {
                    return Vec::new();
                }
                let starts = (*told + 1..=records).map(|i| i128::from(*last) + *stride * i128::from(i));
                let inside = starts.filter_map(|start| u64::try_from(start).ok()).filter(|start| *start < size);
                let mut ranges: Vec<_> = inside.map(|start| start..start.saturating_add(*len).min(size)).collect();
                *told = (*told).max(records);
                if *stride < 0 {
                    ranges.reverse();
                }
                ranges
            }
        }
    }

    /// A range that was to be fetched is not there. If it is still ahead of the stream, it will be returned again when
    /// there is room.
    fn shrink(&mut self, range: &Range<u64>) {
        let was_ahead = match &mut self.course {
            Course::Forward { end, told } if range.start < *told && range.end > *end => {
                *told = range.start.max(*end);
                true
            }
            Course::Backward { start, told } if range.end > *told && range.start < *start => {
                *told = range.end.min(*start);
                true
            }
            Course::Strided { last, stride, len, told } => {
                let distance = i128::from(range.start) - i128::from(*last);
                let record = distance / *stride;
                let is_ahead =
                    record > 0 && record <= i128::from(*told) && (distance % *stride).abs() < i128::from(*len);
                if is_ahead {
                    *told = record as u64 - 1;
                }
                is_ahead
            }
            _ => false,
        };
        if was_ahead {
            self.consumed /= 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::spans::{Span, SpanMap};
    use crate::cache::tiling::Tiling;
    use nacre_base::Prng;
    use nacre_base::size::{GIB, KIB, MIB};
    use parking_lot::Mutex;
    use std::sync::Arc;

    const LIMITS: ReadAheadLimits = ReadAheadLimits { per_file: 64 * MIB, whole: 2 * MIB, far: 0 };

    #[derive(Debug, Clone, Copy)]
    struct Fetched;

    impl Span for Fetched {
        fn split_off(&mut self, _: u64) -> Fetched {
            Fetched
        }
    }

    fn read(ahead: &mut ReadAhead, range: Range<u64>, size: u64, limits: ReadAheadLimits) -> Vec<Range<u64>> {
        ahead.handle_read(range.start, range.end - range.start, size, limits, Time::ZERO)
    }

    /// A file, and the ranges fetched ahead of it.
    #[derive(Default)]
    struct Program {
        ahead: ReadAhead,
        cached: SpanMap<Fetched>,
        reads: u64,
        hits: u64,
        fetched: u64,
        /// Ranges fetched and read.
        used: u64,
        largest: u64,
    }

    impl Program {
        fn read(&mut self, offset: u64, len: u64, size: u64) {
            let range = offset..offset + len;
            self.reads += 1;
            self.hits += u64::from(self.cached.gaps(&range).is_empty());
            self.used += self.cached.cut(&range).iter().map(|(r, _)| r.end - r.start).sum::<u64>();
            let told = self.ahead.handle_read(offset, len, size, LIMITS, Time::ZERO);
            assert!(told.is_sorted_by(|a, b| a.end <= b.start), "{told:?}");
            for range in told {
                assert!(range.start < range.end && range.end <= size, "{range:?}");
                for gap in self.cached.gaps(&range) {
                    self.fetched += gap.end - gap.start;
                    self.cached.insert(gap, Fetched);
                }
            }
            self.largest = self.largest.max(self.fetched - self.used);
        }

        /// Of the reads from the `skip`-th on, 99 in 100 found everything.
        fn assert_hits(&self, skip: u64) {
            assert!(self.hits * 100 >= (self.reads - skip) * 99, "{} of {}", self.hits, self.reads - skip);
        }
    }

    #[test]
    fn sequential_reads_find_everything_and_the_window_is_bounded() {
        for len in [4 * KIB, 47_008, 128 * KIB, MIB] {
            let mut program = Program::default();
            let size = 5000 * len;
            (10..5000).for_each(|i| program.read(i * len, len, size));
            program.assert_hits(3);
            assert_eq!(program.fetched, program.used, "to the end of the file and not beyond");
            assert!(program.largest <= 64 * MIB && program.largest > 4 * MIB, "{}", program.largest);
        }
    }

    #[test]
    fn a_stream_is_fetched_in_large_requests() {
        let mut ahead = ReadAhead::default();
        let told: Vec<_> = (0..1000).flat_map(|i| read(&mut ahead, i * MIB..(i + 1) * MIB, GIB, LIMITS)).collect();
        assert!(told.len() < 80, "{}", told.len());
        assert!(told.iter().skip(5).all(|r| r.end.is_multiple_of(MIB) && r.end - r.start >= 4 * MIB));
    }

    /// The caller fetches each range it is given, so no byte may be returned twice ([`Program::read`] asserts it).
    #[test]
    fn reads_that_overlap_are_no_strided_stream() {
        for (len, stride) in [(6000, 3000), (100, 99), (4 * KIB, 1)] {
            let mut program = Program::default();
            (0..300).for_each(|i| program.read(i * stride, len, 3000 * stride));
            let mut program = Program::default();
            (0..300).rev().for_each(|i| program.read(i * stride, len, 3000 * stride));
        }
    }

    #[test]
    fn strided_records_are_fetched_and_nothing_between() {
        for (len, stride) in [(4 * KIB, 64 * KIB), (47_008, 470_080), (MIB, 10 * MIB), (100, 101)] {
            let mut program = Program::default();
            let size = 3000 * stride;
            (0..3000).for_each(|i| program.read(7 + i * stride, len, size));
            program.assert_hits(4);
            assert_eq!(program.fetched, program.used);
            assert!(program.largest <= 64 * MIB);
        }
    }

    #[test]
    fn programs_that_read_records_in_turns_fetch_everything_in_large_requests() {
        let (len, size) = (47_008, 4000 * 47_008);
        let tiling = Arc::<Mutex<Tiling>>::default();
        let mut readers: Vec<_> = (0..4).map(|_| ReadAhead::new(Reader::new(tiling.clone()))).collect();
        let (mut cached, mut requests, mut hits) = (SpanMap::<Fetched>::default(), Vec::new(), 0);
        for i in 0..4000 {
            hits += u64::from(cached.gaps(&(i * len..(i + 1) * len)).is_empty());
            for range in read(&mut readers[i as usize % 4], i * len..(i + 1) * len, size, LIMITS) {
                for gap in cached.gaps(&range) {
                    cached.insert(gap.clone(), Fetched);
                    requests.push(gap);
                }
            }
        }
        assert!(hits >= 3900, "{hits} hits");
        let large = requests.iter().filter(|r| r.end - r.start >= MIB).map(|r| r.end - r.start).sum::<u64>();
        assert!(large * 10 >= size * 9, "{large} of {size}: {requests:?}");
        // The other programs have closed the file: only records are fetched again.
        readers.truncate(1);
        let mut told: Vec<_> = Vec::new();
        for i in (4000..8000).step_by(4) {
            told.extend(read(&mut readers[0], i * len..(i + 1) * len, 3 * size, LIMITS));
        }
        assert!(told.iter().skip(1).all(|r| r.end - r.start == len), "{told:?}");
    }

    #[test]
    fn backward_reads_are_streams_too() {
        for (len, stride) in [(MIB, MIB), (4 * KIB, 4 * KIB), (4 * KIB, 12 * KIB)] {
            let mut program = Program::default();
            let size = 3000 * stride;
            (0..3000).rev().for_each(|i| program.read(i * stride, len, size));
            program.assert_hits(4);
            assert_eq!(program.fetched, program.used);
        }
    }

    #[test]
    fn four_interleaved_streams_of_all_kinds_are_followed() {
        let mut program = Program::default();
        let (len, part) = (64 * KIB, GIB);
        for i in 0..2000 {
            program.read(i * len, len, 4 * GIB);
            program.read(2 * part - (i + 1) * len, len, 4 * GIB);
            program.read(2 * part + i * 5 * len, len, 4 * GIB);
            program.read(3 * part + i * len, len, 4 * GIB);
        }
        program.assert_hits(16);
        assert!(program.largest <= 80 * MIB, "all together {}", program.largest);
    }

    #[test]
    fn requests_that_overtake_each_other_are_still_a_stream() {
        let mut program = Program::default();
        let mut order: Vec<u64> = (0..4000).collect();
        let mut random = Prng::new(1);
        order[10..].chunks_mut(8).for_each(|chunk| random.shuffle(chunk));
        order.into_iter().for_each(|i| program.read(i * 128 * KIB, 128 * KIB, 4000 * 128 * KIB));
        program.assert_hits(10);
    }

    #[test]
    fn random_reads_fetch_nothing() {
        for seed in 0..20 {
            for (len, blocks) in [(4 * KIB, 520), (4 * KIB, 100_000), (MIB, 1000)] {
                let mut program = Program::default();
                let mut random = Prng::new(seed);
                (0..5000).for_each(|_| program.read(random.below(blocks) * len, len, blocks * len));
                let wasted = program.fetched - program.used;
                assert!(wasted * 20 < program.reads * len, "seed {seed}: {wasted} of {} ", program.reads * len);
            }
        }
    }

    #[test]
    fn a_short_stream_wastes_no_more_than_twice_what_was_read() {
        for reads in 3..200 {
            let mut program = Program::default();
            (10..10 + reads).for_each(|i| program.read(i * 4 * KIB, 4 * KIB, GIB));
            let read = reads * 4 * KIB;
            assert!(program.fetched - program.used <= 2 * read, "{} after {read}", program.fetched - program.used);
        }
    }

    #[test]
    fn a_small_file_is_fetched_whole_once_if_read_from_its_beginning() {
        let mut ahead = ReadAhead::default();
        assert_eq!(read(&mut ahead, 100..200, 2 * MIB, LIMITS), []);
        assert_eq!(read(&mut ahead, 0..100, 2 * MIB, LIMITS), [100..2 * MIB]);
        assert_eq!(read(&mut ahead, 100..200, 2 * MIB, LIMITS), []);
        assert_eq!(read(&mut ahead, 0..100, 2 * MIB, LIMITS), []);
        assert_eq!(read(&mut ReadAhead::default(), 0..100, 100, LIMITS), []);
        assert_eq!(read(&mut ReadAhead::default(), 0..100, 2 * MIB + 1, LIMITS), []);
        let off = ReadAheadLimits { per_file: 0, ..LIMITS };
        assert_eq!(read(&mut ReadAhead::default(), 0..100, 2 * MIB, off), []);
    }

    #[test]
    fn what_was_wasted_is_told_again_in_a_smaller_window() {
        let mut ahead = ReadAhead::default();
        let mut told = 0;
        for i in 0..100 {
            told = read(&mut ahead, i * MIB..(i + 1) * MIB, GIB, LIMITS).last().map_or(told, |r| r.end);
        }
        assert!(told >= 140 * MIB);
        ahead.handle_wasted(&(110 * MIB..told));
        assert_eq!(read(&mut ahead, 100 * MIB..101 * MIB, GIB, LIMITS), [110 * MIB..153 * MIB]);
        ahead.handle_wasted(&(102 * MIB..GIB));
        assert_eq!(read(&mut ahead, 101 * MIB..102 * MIB, GIB, LIMITS), [102 * MIB..117 * MIB]);
    }

    #[test]
    fn a_stream_far_away_asks_at_once_for_what_the_way_holds() {
        let asked = |far: u64| {
            let (mut ahead, limits) = (ReadAhead::default(), ReadAheadLimits { far, ..LIMITS });
            assert_eq!(read(&mut ahead, 0..MIB, GIB, limits), [], "one read is no stream");
            read(&mut ahead, MIB..2 * MIB, GIB, limits).iter().map(|range| range.end - range.start).sum::<u64>() / MIB
        };
        assert_eq!([0, 20 * MIB, GIB].map(asked), [6, 20, 64], "within what an administrator allows");
    }
}
