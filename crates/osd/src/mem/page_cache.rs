//! The pages of a simulated page cache that are not on the medium yet: ranges of whole pages, in which the data of all
//! writers is joined, taken out for writing back as by an elevator, in order of object and offset, round and round.

use nacre_base::Fid;
use std::collections::BTreeMap;
use std::ops::Range;

/// Unit of dirty data.
const PAGE: u64 = 4096;

/// The dirty pages of a device.
#[derive(Debug, Default)]
pub(super) struct DirtyPages {
    /// Start to end of the ranges of each object; they neither overlap nor touch.
    ranges: BTreeMap<Fid, BTreeMap<u64, u64>>,
    bytes: u64,
    /// Position of the elevator.
    at: Option<(Fid, u64)>,
}

impl DirtyPages {
    /// Bytes of all dirty pages.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A range was written to the cache.
    pub(super) fn add(&mut self, object: Fid, range: &Range<u64>) {
        let (mut start, mut end) = (range.start / PAGE * PAGE, range.end.next_multiple_of(PAGE));
        let ranges = self.ranges.entry(object).or_default();
        while let Some((&s, &e)) = ranges.range(..=end).next_back()
            && e >= start
        {
            ranges.remove(&s);
            assert!(s < e && e - s <= self.bytes, "{s}..{e} was dirty, of {} bytes", self.bytes);
            self.bytes -= e - s;
            (start, end) = (start.min(s), end.max(e));
        }
        ranges.insert(start, end);
        self.bytes += end - start;
    }

    /// Takes the next range, at most `max` bytes of it.
    pub(super) fn take(&mut self, max: u64) -> Option<(Fid, Range<u64>)> {
        let next = self.at.and_then(|(object, offset)| {
            let here = self.ranges.get(&object).and_then(|r| r.range(offset..).next());
            let later = || self.ranges.range(object..).find(|(o, _)| **o != object);
            here.map(|(s, _)| (object, *s)).or_else(|| later().and_then(|(o, r)| Some((*o, *r.keys().next()?))))
        });
        let first = || self.ranges.iter().find_map(|(object, ranges)| Some((*object, *ranges.keys().next()?)));
        let (object, start) = next.or_else(first)?;
        let taken = self.take_at(object, start, max)?;
        self.at = Some((object, taken.end));
        Some((object, taken))
    }

    /// Takes the first range of an object, at most `max` bytes of it.
    pub(super) fn take_of(&mut self, object: Fid, max: u64) -> Option<Range<u64>> {
        let start = *self.ranges.get(&object)?.keys().next()?;
        self.take_at(object, start, max)
    }

    /// Takes the dirty pages within a range of whole pages, one run at each call.
    pub(super) fn take_within(&mut self, object: Fid, within: &Range<u64>) -> Option<Range<u64>> {
        let ranges = self.ranges.get_mut(&object)?;
        let before = ranges.range(..within.start).next_back().map(|(s, e)| (*s, *e));
        if let Some((start, end)) = before.filter(|(_, end)| *end > within.start) {
            ranges.insert(start, within.start);
            ranges.insert(within.start, end);
        }
        let start = *ranges.range(within.clone()).next()?.0;
        self.take_at(object, start, within.end - start)
    }

    fn take_at(&mut self, object: Fid, start: u64, max: u64) -> Option<Range<u64>> {
        let ranges = self.ranges.get_mut(&object)?;
        let end = ranges.remove(&start)?;
        let cut = end.min(start.saturating_add(max));
        if cut < end {
            ranges.insert(cut, end);
        }
        if ranges.is_empty() {
            self.ranges.remove(&object);
        }
        self.forget_bytes(cut - start);
        Some(start..cut)
    }

    /// The object is gone, so none of its pages need be written.
    pub(super) fn forget(&mut self, object: Fid) {
        let ranges = self.ranges.remove(&object).unwrap_or_default();
        self.forget_bytes(ranges.iter().map(|(start, end)| end - start).sum());
    }

    fn forget_bytes(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes are clean, {} were dirty", self.bytes);
        self.bytes -= bytes;
        assert!(!self.ranges.is_empty() || self.bytes == 0, "nothing is dirty, and {} bytes are", self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::collections::BTreeSet;

    const A: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const B: Fid = Fid { oid: 2, ..A };

    #[test]
    #[should_panic(expected = "nothing is dirty, and 1 bytes are")]
    fn bytes_that_no_page_has_are_found() {
        let mut dirty = DirtyPages::default();
        dirty.add(A, &(0..PAGE));
        dirty.bytes += 1;
        dirty.take(PAGE);
    }

    #[test]
    fn neighbours_of_all_writers_become_one_range() {
        let mut dirty = DirtyPages::default();
        for record in [3, 0, 2, 1] {
            dirty.add(A, &(record * 47_008..(record + 1) * 47_008));
        }
        assert_eq!(dirty.bytes(), 188_416, "whole pages");
        assert_eq!(dirty.take(u64::MAX), Some((A, 0..188_416)));
        assert_eq!((dirty.take(u64::MAX), dirty.bytes()), (None, 0));
    }

    #[test]
    fn they_are_taken_in_order_and_what_comes_behind_waits_for_the_next_round() {
        let mut dirty = DirtyPages::default();
        dirty.add(B, &(0..PAGE));
        dirty.add(A, &(4 * PAGE..8 * PAGE));
        assert_eq!(dirty.take(2 * PAGE), Some((A, 4 * PAGE..6 * PAGE)));
        dirty.add(A, &(0..PAGE));
        assert_eq!(dirty.take(PAGE * 9), Some((A, 6 * PAGE..8 * PAGE)));
        assert_eq!(dirty.take(PAGE), Some((B, 0..PAGE)));
        assert_eq!(dirty.take(PAGE), Some((A, 0..PAGE)));
        dirty.add(A, &(0..PAGE));
        dirty.add(B, &(5 * PAGE..6 * PAGE));
        assert_eq!(dirty.take_of(B, PAGE), Some(5 * PAGE..6 * PAGE));
        dirty.add(A, &(10 * PAGE..30 * PAGE));
        assert_eq!(dirty.take_within(A, &(12 * PAGE..20 * PAGE)), Some(12 * PAGE..20 * PAGE));
        assert_eq!(dirty.take_within(A, &(12 * PAGE..20 * PAGE)), None);
        assert_eq!(dirty.take_within(A, &(5 * PAGE..11 * PAGE)), Some(10 * PAGE..11 * PAGE));
        dirty.forget(A);
        assert_eq!((dirty.take(PAGE), dirty.bytes()), (None, 0));
    }

    #[test]
    fn random_ranges_agree_with_a_set_of_pages() {
        let (mut prng, mut dirty, mut pages) = (Prng::new(3), DirtyPages::default(), BTreeSet::new());
        for _ in 0..3000 {
            let object = if prng.one_in(2) { A } else { B };
            let start = prng.below(200 * PAGE);
            let end = start + 1 + prng.below(9 * PAGE);
            if prng.one_in(3) {
                let Some((object, range)) = dirty.take(7 * PAGE) else { continue };
                assert!((range.start..range.end).step_by(PAGE as usize).all(|at| pages.remove(&(object, at))));
            } else {
                dirty.add(object, &(start..end));
                pages.extend((start / PAGE..end.div_ceil(PAGE)).map(|page| (object, page * PAGE)));
            }
            assert_eq!(dirty.bytes(), pages.len() as u64 * PAGE);
        }
    }
}
