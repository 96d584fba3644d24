//! The bytes of one OST object that this client has: clean, dirty, and on their way to the server. It is byte-accurate,
//! and knows nothing of locks, sizes and RPCs: its owner drops bytes that no lock covers, and knows where the object
//! ends.
//!
//! The owner has duties that cannot be checked here:
//! * A write or fill is covered by a lock for as long as its bytes are here.
//! * `write` needs grant: ask [`ObjectCache::grant_needed`] of the [`super::dirty_account::DirtyAccount`] first.
//! * Before a punch, a direct write or a cancel is sent, no bytes of its range may be in a flush:
//!   [`ObjectCache::is_busy_in`]. After the reply to a punch call [`ObjectCache::drop_ranges`] again: a fill that began
//!   before the punch may bring the old bytes.

use super::charge::DirtySet;
use super::fills::{self, FillLimits, FillTicket, Fills, Wanted};
use super::flush::{Pick, Picker};
use super::lru::Lru;
use super::outgoing::{Dirty, Flush, FlushEnd, FlushTicket, FlushWanted};
use super::segment::{SHARE_MIN, Segment, State, pieces_to_keep};
use super::span_state::{SpanInput, SpanState};
use super::spans::{Span, SpanMap, common, without};
use nacre_base::{Payload, Time};
use nacre_ldlm::Extent;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// With more segments than this, small clean ones are not kept: their bookkeeping takes more memory than their bytes.
const SEGMENTS_MANY: usize = 4096;
/// Segments of fewer bytes are small.
const SMALL_BYTES: u64 = 512;

/// Bytes of one object.
#[derive(Debug, Default)]
pub(crate) struct ObjectCache {
    segments: SpanMap<Segment>,
    /// The segments in state dirty, as runs.
    dirty: DirtySet,
    /// Ranges of the flushes under way, whether or not they were overwritten here since.
    writing: SpanMap<FlushTicket>,
    /// The ranges of each flush under way.
    flushes: BTreeMap<FlushTicket, Vec<Range<u64>>>,
    /// Fills under way. No byte that they will bring is in `segments`.
    fills: Fills,
    /// The clean segments, in the order of their use.
    lru: Lru,
    clean_bytes: u64,
    /// Bytes of the segments in state writing.
    writing_bytes: u64,
    /// The last ticket given.
    tickets: u64,
    /// Offset at which the last flush ended; the next search begins there.
    cursor: u64,
    /// Bytes ever written.
    written_bytes: u64,
    /// Value of `written_bytes` below which the search for a full RPC cannot succeed.
    next_full: u64,
}

/// A part of a requested range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Cached bytes.
    Hit(Payload),
    /// Bytes that are not cached and have to be fetched.
    Miss(Range<u64>),
}

impl ObjectCache {
    /// Grant that a write of the range needs, in whole blocks, beyond the grant kept for bytes that are already dirty.
    pub(crate) fn grant_needed(&self, offset: u64, len: u64) -> u64 {
        self.dirty.needed(&(offset..offset + len))
    }

    /// Takes written data, which is dirty from now on. Returns the grant now kept for it, as
    /// [`ObjectCache::grant_needed`] said. Small data is copied, larger data is shared.
    pub(crate) fn write(&mut self, offset: u64, data: &Payload, now: Time) -> u64 {
        if data.is_empty() {
            return 0;
        }
        let range = offset..offset + data.len() as u64;
        self.written_bytes += data.len() as u64;
        self.fills.spoil(&range);
        let charge = self.dirty.add(&range, now);
        if data.len() < SHARE_MIN {
            self.write_small(range, data);
        } else {
            self.forget(&range, SpanInput::Write);
            self.insert(offset, data, State::Dirty, now);
        }
        self.assert_counted();
        charge
    }

    /// The range as a list of pieces in order, cached or missing.
    pub(crate) fn read(&mut self, offset: u64, len: u64, now: Time) -> Vec<Piece> {
        let range = offset..offset + len;
        let (mut pieces, mut at) = (Vec::new(), offset);
        for (span, segment) in self.segments.overlapping_mut(&range) {
            let Some(part) = common(&span, &range) else { continue };
            assert!(segment.lru.is_some() == (segment.state == State::Clean), "{:?} bytes at {span:?}", segment.state);
            if part.start > at {
                pieces.push(Piece::Miss(at..part.start));
            }
            let data = segment.read(part.start - span.start, part.end - part.start);
            segment.lru.into_iter().for_each(|node| self.lru.touch(node, now));
            match pieces.last_mut() {
                Some(Piece::Hit(hit)) => hit.append(data),
                _ => pieces.push(Piece::Hit(data)),
            }
            at = part.end;
        }
        if at < range.end {
            pieces.push(Piece::Miss(at..range.end));
        }
        pieces
    }

    /// The parts of the range that are not cached and that no fill under way will bring.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.segments.gaps(range).iter().flat_map(|gap| self.fills.gaps(gap)).collect()
    }

    /// Begins fills for the missing parts of the wanted ranges. Returns the requests that the caller has to send, and the
    /// parts that it has to wait for: see [`ObjectCache::awaited_fill`]. All groups are ascending and disjoint; the
    /// caller may also read what lies between the ranges of one group.
    pub(crate) fn begin_fills(&mut self, groups: &[Vec<Range<u64>>], limits: FillLimits) -> Wanted {
        assert!(groups.iter().flatten().is_sorted_by(|a, b| a.end <= b.start), "what is asked for twice: {groups:?}");
        let (mut holes, mut coming) = (Vec::with_capacity(groups.len()), Vec::new());
        for group in groups {
            let mut missing = Vec::new();
            for gap in group.iter().flat_map(|range| self.segments.gaps(range)) {
                let new = self.fills.gaps(&gap);
                coming.extend(without(&gap, new.iter().cloned()));
                missing.extend(new);
            }
            holes.push(missing);
        }
        let is_here = |hole| self.segments.overlaps(hole);
        assert!(!holes.iter().flatten().any(is_here), "what is here is asked for again: {holes:?}");
        let mut wanted = self.fills.begin_all(holes, &self.writing, limits);
        wanted.open.extend(coming);
        wanted
    }

    /// The fill that a reader of the range should wait for, if no byte of the range is cached.
    pub(crate) fn awaited_fill(&self, range: &Range<u64>) -> Option<FillTicket> {
        self.fills.awaited(range)
    }

    /// True if so many fills are under way that no fill should begin that no reader waits for.
    pub(crate) fn has_many_fills(&self) -> bool {
        let (count, bytes) = self.fills.count_and_bytes();
        count >= fills::FILLS_MAX / 2 || bytes >= fills::FILL_BYTES_MAX / 2
    }

    /// Takes the reply to a fill: for each extent of the request the bytes from its beginning. If they are fewer than the
    /// extent, the object ends there, and the rest is known to be zeros (until the owner drops it: with the lock, or
    /// because the object grew by anything but a `write` here). Bytes that were written, truncated or dropped since the
    /// fill began are not taken, nor bytes that were dirty or being written then.
    pub(crate) fn fill(&mut self, ticket: FillTicket, replies: &[Payload], now: Time) {
        let (extents, parts) = self.fills.end(ticket);
        assert_eq!(replies.len(), extents.len(), "{} replies for {extents:?}", replies.len());
        for part in parts {
            let known = fills::part_of(&extents, replies, &part, |data| data.len() as u64);
            let mut at = part.start;
            if let Some((data, range)) = known {
                let len = range.end - range.start;
                self.insert(at, &data.slice(range.start as usize, len as usize), State::Clean, now);
                at += len;
            }
            if at < part.end {
                let mut zeroes = Segment::zeroes(part.end - at);
                zeroes.lru = Some(self.lru.push(at, now));
                self.segments.insert(at..part.end, zeroes);
            }
        }
        self.assert_counted();
    }

    /// Ends a fill whose request failed, or whose reply is not to be kept.
    pub(crate) fn abandon_fill(&mut self, ticket: FillTicket) {
        self.fills.end(ticket);
    }

    /// The next write RPC, if there is something to write. Bytes under way are not sent a second time before the first
    /// write has ended, so newer data in their place is not in a flush: `None` does not mean that nothing is dirty.
    pub(crate) fn next_flush(&mut self, wanted: &FlushWanted<'_>, now: Time) -> Option<Flush> {
        // The search for a full RPC runs after every write; mostly too few bytes were written since the last one.
        let is_gated = wanted.only_full && wanted.within.is_none() && wanted.min_age == Duration::ZERO;
        if self.dirty.bytes() == 0 || (is_gated && self.written_bytes < self.next_full) {
            return None;
        }
        let picker = Picker { dirty: &self.dirty, writing: &self.writing, wanted, now };
        match picker.pick(self.cursor) {
            Pick::Write(ranges) => Some(self.take(ranges)),
            Pick::Nothing { best, next } => {
                self.cursor = next;
                if is_gated {
                    let missing = wanted.max_bytes.saturating_sub(best).max(wanted.max_bytes / 16);
                    self.next_full = self.written_bytes + missing;
                }
                None
            }
        }
    }

    /// Ends a flush. Returns how many of its bytes became clean or were dropped: all that were not overwritten meanwhile.
    pub(crate) fn flushed(&mut self, ticket: FlushTicket, end: FlushEnd, now: Time) -> u64 {
        let Some(ranges) = self.flushes.remove(&ticket) else { panic!("{ticket:?} is not under way, or ended before") };
        // Newer bytes that waited for the old ones to arrive may be flushed now.
        self.next_full = 0;
        let mut bytes = 0;
        for range in ranges {
            let written = self.writing.cut(&range);
            let is_whole = matches!(&written[..], [(span, of)] if *span == range && *of == ticket);
            assert!(is_whole, "{ticket:?} brought {range:?}, but on its way was {written:?}");
            let newest = self.segments.overlapping(&range).filter(|(_, s)| s.state == State::Writing(ticket));
            for part in newest.map(|(span, _)| span).collect::<Vec<_>>() {
                bytes += part.end - part.start;
                self.end_of_writing(&part, end, now);
            }
        }
        self.assert_counted();
        bytes
    }

    /// Drops all bytes of the ranges, clean and dirty. Returns the dirty bytes lost. Flushes under way go on.
    pub(crate) fn drop_ranges(&mut self, ranges: &[Extent]) -> Dirty {
        let mut lost = Dirty::default();
        for extent in ranges {
            let range = extent.start..extent.end.saturating_add(1);
            self.fills.spoil(&range);
            let dirty = self.dirty.forget(&range);
            lost = Dirty { bytes: lost.bytes + dirty.bytes, charge: lost.charge + dirty.charge };
            let gone = self.forget(&range, SpanInput::Drop);
            assert_eq!(dirty.bytes, gone, "dirty bytes of {range:?}, by their set and by their segments");
        }
        self.assert_counted();
        lost
    }

    /// Drops the clean bytes of the ranges; dirty bytes, and bytes in flushes under way, stay.
    pub(crate) fn drop_clean(&mut self, ranges: &[Extent]) {
        for extent in ranges {
            let range = extent.start..extent.end.saturating_add(1);
            self.fills.spoil(&range);
            for (span, segment) in self.cut(&range) {
                match segment.after(SpanInput::Distrust) {
                    SpanState::Missing => self.uncount(&span, &segment),
                    _ => self.segments.insert(span, segment),
                }
            }
        }
        self.assert_counted();
    }

    /// Makes the clean bytes of a range those that are evicted first, because they are kept elsewhere, too.
    pub(crate) fn expire(&mut self, range: &Range<u64>) {
        for (_, segment) in self.segments.overlapping_mut(range) {
            segment.lru.into_iter().for_each(|node| self.lru.expire(node));
        }
    }

    /// Evicts about `bytes` clean bytes, the least recently used ones first, but none that were used after `until`.
    /// Returns how many were evicted.
    pub(crate) fn evict_clean(&mut self, bytes: u64, until: Time) -> u64 {
        let mut freed = 0;
        while freed < bytes
            && let Some((start, used)) = self.lru.oldest()
            && used <= until
        {
            let (span, segment) = self.segments.remove(start).expect("the list has the segments of the map");
            assert_eq!(segment.after(SpanInput::Evict), SpanState::Missing, "evicted from {span:?}");
            segment.lru.into_iter().for_each(|node| self.lru.remove(node));
            self.uncount(&span, &segment);
            freed += segment.memory();
        }
        self.assert_counted();
        freed
    }

    /// When the least recently used clean bytes were used.
    pub(crate) fn oldest_clean(&self) -> Option<Time> {
        self.lru.oldest().map(|(_, used)| used)
    }

    /// Bytes that neither the server nor a flush under way has.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// Grant kept for the dirty bytes.
    pub(crate) fn dirty_charge(&self) -> u64 {
        self.dirty.charge()
    }

    /// Bytes in flushes under way that are still the newest.
    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }

    /// Memory that clean bytes take.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean_bytes
    }

    /// Time since which the oldest dirty bytes have been dirty. It may be too early for bytes that were flushed and
    /// written again.
    pub(crate) fn oldest_dirty(&self) -> Option<Time> {
        self.dirty.runs().iter().map(|(_, since)| *since).min()
    }

    /// End of the last byte that is dirty or in a flush: the object is at least that long.
    pub(crate) fn end_of_dirty(&self) -> Option<u64> {
        self.dirty.runs().end().max(self.writing.end())
    }

    /// True if bytes of the ranges are dirty.
    pub(crate) fn is_dirty_in(&self, ranges: &[Extent]) -> bool {
        ranges.iter().any(|e| self.dirty.runs().overlaps(&(e.start..e.end.saturating_add(1))))
    }

    /// True if bytes of the ranges are dirty, or in a flush under way.
    pub(crate) fn is_busy_in(&self, ranges: &[Extent]) -> bool {
        self.is_dirty_in(ranges) || self.is_writing_in(ranges)
    }

    /// True if bytes of the ranges are in a flush under way.
    pub(crate) fn is_writing_in(&self, ranges: &[Extent]) -> bool {
        ranges.iter().any(|e| self.writing.overlaps(&(e.start..e.end.saturating_add(1))))
    }

    /// True if there are any bytes, or any requests under way.
    pub(crate) fn has_any(&self) -> bool {
        !self.segments.is_empty() || !self.fills.is_empty() || !self.flushes.is_empty()
    }

    fn write_small(&mut self, range: Range<u64>, data: &Payload) {
        if let Some((before, segment)) = self.segments.last_from(range.start)
            && range.start <= before.end
            && segment.absorb(range.start - before.start, data)
        {
            if range.end > before.end {
                self.forget(&(before.end..range.end), SpanInput::Write);
                self.segments.set_end(before.start, range.end);
            }
            return;
        }
        self.forget(&range, SpanInput::Write);
        self.segments.insert(range, Segment::chunk(data));
    }

    /// Adds bytes in a range that has none.
    fn insert(&mut self, offset: u64, data: &Payload, state: State, now: Time) {
        let mut at = offset;
        for piece in pieces_to_keep(data) {
            let range = at..at + piece.len() as u64;
            at = range.end;
            let mut segment = Segment::shared(piece, state);
            if state == State::Clean {
                self.clean_bytes += segment.memory();
                segment.lru = Some(self.lru.push(range.start, now));
            }
            self.segments.insert(range, segment);
        }
    }

    /// Drops the bytes of the range because of `input`. Returns how many of them were dirty; the caller updates
    /// `self.dirty`.
    fn forget(&mut self, range: &Range<u64>, input: SpanInput) -> u64 {
        let mut dirty = 0;
        for (span, segment) in self.cut(range) {
            let next = segment.after(input);
            assert!(matches!(next, SpanState::Missing | SpanState::Dirty), "{span:?} is {next:?} after {input:?}");
            dirty += if segment.state == State::Dirty { span.end - span.start } else { 0 };
            self.uncount(&span, &segment);
        }
        dirty
    }

    /// Subtracts a segment from the counts.
    fn uncount(&mut self, span: &Range<u64>, segment: &Segment) {
        let (count, bytes) = match segment.state {
            State::Clean => (&mut self.clean_bytes, segment.memory()),
            State::Writing(_) => (&mut self.writing_bytes, span.end - span.start),
            State::Dirty => return,
        };
        assert!(bytes <= *count, "{bytes} bytes in state {:?} go, there are {count}", segment.state);
        *count -= bytes;
    }

    /// Takes segments out. The rest of a segment that lies across an end of the range keeps the time of its last use.
    fn cut(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, Segment)> {
        let mut cut = self.segments.cut(range);
        if let Some(rest) = self.segments.get_mut(range.end)
            && let Some(node) = rest.lru
            && self.lru.start(node) != range.end
        {
            rest.lru = Some(self.lru.split(node, range.end));
        }
        for (span, segment) in &mut cut {
            // Otherwise the node belongs to the part in front of the range.
            if let Some(node) = segment.lru.take()
                && self.lru.start(node) == span.start
            {
                self.lru.remove(node);
            }
        }
        cut
    }

    /// Moves the dirty bytes of `ranges` into a flush.
    fn take(&mut self, ranges: Vec<Range<u64>>) -> Flush {
        let ticket = FlushTicket(self.next_ticket());
        let (mut extents, mut taken) = (Vec::with_capacity(ranges.len()), Dirty::default());
        for range in &ranges {
            let part = self.dirty.take(range);
            taken = Dirty { bytes: taken.bytes + part.bytes, charge: taken.charge + part.charge };
            self.writing.insert(range.clone(), ticket);
            let mut data = Payload::new();
            for (span, mut segment) in self.cut(range) {
                data.push(segment.freeze());
                segment.begin_writing(ticket);
                self.segments.insert(span, segment);
            }
            let (len, found) = (range.end - range.start, (part.bytes, data.len() as u64));
            assert_eq!(found, (len, len), "dirty bytes of {range:?}, by their set and by their segments");
            extents.push((range.start, data));
        }
        assert!(taken.bytes <= taken.charge, "{} bytes are written for a charge of {}", taken.bytes, taken.charge);
        self.writing_bytes += taken.bytes;
        self.cursor = ranges.last().map_or(0, |range| range.end);
        self.flushes.insert(ticket, ranges);
        self.assert_counted();
        Flush { ticket, extents, bytes: taken.bytes, charge: taken.charge }
    }

    /// Panics if the counts contradict each other. It costs little, so it is called after each change;
    /// [`ObjectCache::assert_sound`] compares the counts with the segments.
    fn assert_counted(&self) {
        let (clean, dirty, writing) = (self.clean_bytes, self.dirty.bytes(), self.writing_bytes);
        let is_nothing = clean == 0 && dirty == 0 && writing == 0;
        assert!(
            is_nothing || !self.segments.is_empty(),
            "no segment has {clean} clean, {dirty} dirty, {writing} bytes"
        );
        assert_eq!(self.writing.is_empty(), self.flushes.is_empty(), "ranges of flushes without flushes, or flushes");
        assert!(writing == 0 || !self.flushes.is_empty(), "{writing} bytes are written by no flush");
    }

    /// Panics if the counts differ from the segments, or the ranges of flushes from those being written. Visits
    /// everything, so it is for tests and for rare moments such as an eviction.
    pub(crate) fn assert_sound(&self) {
        self.assert_counted();
        let (mut clean, mut dirty, mut writing) = (0, 0, 0);
        for (span, segment) in self.segments.iter() {
            let len = span.end - span.start;
            match segment.state {
                State::Clean => clean += segment.memory(),
                State::Dirty => dirty += len,
                State::Writing(ticket) => {
                    let flush = self.writing.overlapping(&span).next();
                    let is_in = flush.is_some_and(|(f, t)| *t == ticket && f.start <= span.start && span.end <= f.end);
                    assert!(is_in, "{span:?} is in no range of {ticket:?}");
                    writing += len;
                }
            }
            let place = segment.lru.map(|node| self.lru.start(node));
            let expected = (segment.state == State::Clean).then_some(span.start);
            assert_eq!(place, expected, "where the order of use has {span:?}, in state {:?}", segment.state);
            assert!(self.fills.is_apart_from(&span), "{span:?} is here, and a fill is to bring it");
        }
        let counts = (self.clean_bytes, self.dirty.bytes(), self.writing_bytes);
        assert_eq!((clean, dirty, writing), counts, "clean, dirty and written bytes, of the segments and as counted");
        let sum = |ranges: &mut dyn Iterator<Item = Range<u64>>| ranges.map(|r| r.end - r.start).sum::<u64>();
        let on_their_way = sum(&mut self.writing.iter().map(|(range, _)| range));
        assert_eq!(on_their_way, sum(&mut self.flushes.values().flatten().cloned()), "bytes in flushes");
        self.dirty.assert_sound();
        self.fills.assert_sound();
    }

    /// Ends the writing of a segment.
    fn end_of_writing(&mut self, part: &Range<u64>, end: FlushEnd, now: Time) {
        let len = part.end - part.start;
        let keep = self.segments.len() <= SEGMENTS_MANY || len >= SMALL_BYTES;
        match end {
            FlushEnd::Written if keep => self.set_clean(part, now),
            FlushEnd::Written => drop(self.forget(part, SpanInput::WrittenSmall)),
            FlushEnd::Lost => drop(self.forget(part, SpanInput::Lost)),
        }
    }

    /// Marks segments that were being written as clean. The write counts as a use.
    fn set_clean(&mut self, part: &Range<u64>, now: Time) {
        let len = part.end - part.start;
        assert!(len <= self.writing_bytes, "{len} bytes were written of {}", self.writing_bytes);
        self.writing_bytes -= len;
        for (span, segment) in self.segments.overlapping_mut(part) {
            segment.end_writing();
            self.clean_bytes += segment.memory();
            segment.lru = Some(self.lru.push(span.start, now));
        }
    }

    fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

impl Span for FlushTicket {
    fn split_off(&mut self, _: u64) -> FlushTicket {
        *self
    }
}

#[cfg(test)]
mod tests;
