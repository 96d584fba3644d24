//! Sets of byte ranges, as one extent lock covers them. A single range costs no allocation; a set of many is shared by
//! its clones and never changes.
//!
//! What must not be here: modes, owners, growth.

use nacre_wire::ldlm::{LockRange, RANGES_MAX};
use std::fmt;
use std::sync::Arc;

/// A byte range, both ends inclusive; `u64::MAX` is the end of every file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Last byte; not before `start`.
    pub end: u64,
}

impl Extent {
    /// Every byte.
    pub const ALL: Extent = Extent { start: 0, end: u64::MAX };

    /// The range from `start` to `end`; None if `end` is before `start`.
    pub fn new(start: u64, end: u64) -> Option<Extent> {
        (start <= end).then_some(Extent { start, end })
    }

    /// `length` bytes from `start` on, cut at the end of every file; None if `length` is 0.
    pub fn with_length(start: u64, length: u64) -> Option<Extent> {
        Some(Extent { start, end: start.saturating_add(length.checked_sub(1)?) })
    }

    /// Returns whether the two have a byte in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Returns whether every byte of `other` is in this one.
    pub fn contains(&self, other: &Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The bytes that are in both.
    pub fn intersect(&self, other: &Extent) -> Option<Extent> {
        Extent::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// At least one byte range; ascending, and with at least one byte between neighbours.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RangeSet(Ranges);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Ranges {
    One(Extent),
    /// Two or more ranges, so that every set has exactly one form and sets of equal bytes are equal.
    Many(Arc<[Extent]>),
}

impl RangeSet {
    /// Every byte.
    pub const ALL: RangeSet = RangeSet::single(Extent::ALL);

    /// One range.
    pub const fn single(extent: Extent) -> RangeSet {
        assert!(extent.start <= extent.end, "the last byte is before the first");
        RangeSet(Ranges::One(extent))
    }

    /// The ranges that an enqueue names: a first range and those behind it. None if a range is invalid, or if the
    /// ranges are too many, not ascending, or touch.
    pub fn from_wire(start: u64, end: u64, more: &[LockRange]) -> Option<RangeSet> {
        let first = Extent::new(start, end)?;
        if more.is_empty() {
            return Some(RangeSet::single(first));
        }
        if more.len() >= RANGES_MAX {
            return None;
        }
        let mut ranges = Vec::with_capacity(more.len() + 1);
        ranges.push(first);
        let mut last = first.end;
        for range in more {
            let extent = Extent::new(range.start, range.end)?;
            if last.checked_add(1)? >= extent.start {
                return None;
            }
            last = extent.end;
            ranges.push(extent);
        }
        Some(RangeSet(Ranges::Many(ranges.into())))
    }

    /// The set as an enqueue names it: first byte, last byte, further ranges. The inverse of [`RangeSet::from_wire`]
    /// for sets of up to [`RANGES_MAX`] ranges.
    pub fn to_wire(&self) -> (u64, u64, Vec<LockRange>) {
        let ranges = self.ranges();
        let more = ranges[1..].iter().map(|e| LockRange { start: e.start, end: e.end }).collect();
        (ranges[0].start, ranges[0].end, more)
    }

    /// All bytes of the given ranges, which may overlap and come in any order. None if there are none.
    pub fn from_extents(extents: impl IntoIterator<Item = Extent>) -> Option<RangeSet> {
        let mut ranges: Vec<Extent> = extents.into_iter().collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, held| {
            let merges = next.start <= held.end.saturating_add(1);
            if merges {
                held.end = held.end.max(next.end);
            }
            merges
        });
        RangeSet::from_sorted(ranges)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[Extent] {
        match &self.0 {
            Ranges::One(extent) => std::slice::from_ref(extent),
            Ranges::Many(ranges) => ranges,
        }
    }

    /// The range from the first byte to the last, gaps included.
    pub fn cover(&self) -> Extent {
        match &self.0 {
            Ranges::One(extent) => *extent,
            Ranges::Many(ranges) => Extent { start: ranges[0].start, end: ranges[ranges.len() - 1].end },
        }
    }

    /// Returns whether the set is one range.
    pub fn is_single(&self) -> bool {
        matches!(self.0, Ranges::One(_))
    }

    /// Number of bytes in the set; `u64::MAX` if it is everything.
    pub fn byte_count(&self) -> u64 {
        self.ranges().iter().fold(0u64, |sum, e| sum.saturating_add((e.end - e.start).saturating_add(1)))
    }

    /// Returns whether every byte of `extent` is in the set.
    pub fn contains_extent(&self, extent: &Extent) -> bool {
        let ranges = self.ranges();
        ranges.get(first_not_before(ranges, extent.start)).is_some_and(|range| range.contains(extent))
    }

    /// Returns whether every byte of `other` is in the set.
    pub fn contains(&self, other: &RangeSet) -> bool {
        other.ranges().iter().all(|extent| self.contains_extent(extent))
    }

    /// Returns whether the set has a byte of `extent`.
    pub fn overlaps_extent(&self, extent: &Extent) -> bool {
        let ranges = self.ranges();
        ranges.get(first_not_before(ranges, extent.start)).is_some_and(|range| range.overlaps(extent))
    }

    /// Returns whether the two have a byte in common.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        let (mut few, mut many) = (self.ranges(), other.ranges());
        if few.len() > many.len() {
            std::mem::swap(&mut few, &mut many);
        }
        if few.len() * 8 <= many.len() {
            let overlaps = |e: &Extent| many.get(first_not_before(many, e.start)).is_some_and(|r| r.overlaps(e));
            return few.iter().any(overlaps);
        }
        // Sets of writers that interleave get here, in long merges without a hit.
        let (mut few, mut many) = (few.iter(), many.iter());
        let (Some(mut a), Some(mut b)) = (few.next(), many.next()) else { return false };
        loop {
            let next = if a.end < b.start {
                few.next().map(|next| a = next)
            } else if b.end < a.start {
                many.next().map(|next| b = next)
            } else {
                return true;
            };
            if next.is_none() {
                return false;
            }
        }
    }

    /// The bytes that are in both.
    pub fn intersect(&self, other: &RangeSet) -> Option<RangeSet> {
        let (a, b) = (self.ranges(), other.ranges());
        let (mut i, mut j) = (0, 0);
        let mut ranges = Vec::new();
        while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
            ranges.extend(x.intersect(y));
            let behind = x.end < y.end;
            i += usize::from(behind);
            j += usize::from(!behind);
        }
        RangeSet::from_sorted(ranges)
    }

    /// The bytes of this set that are not in `other`.
    pub fn subtract(&self, other: &RangeSet) -> Option<RangeSet> {
        let cuts = other.ranges();
        let mut ranges = Vec::new();
        for extent in self.ranges() {
            let mut start = Some(extent.start);
            for cut in &cuts[first_not_before(cuts, extent.start)..] {
                let Some(from) = start.filter(|_| cut.start <= extent.end) else { break };
                if from < cut.start {
                    ranges.push(Extent { start: from, end: cut.start - 1 });
                }
                start = cut.end.checked_add(1);
            }
            ranges.extend(start.and_then(|from| Extent::new(from, extent.end)));
        }
        RangeSet::from_sorted(ranges)
    }

    /// The bytes that are in either.
    pub fn union(&self, other: &RangeSet) -> RangeSet {
        let both = self.ranges().iter().chain(other.ranges()).copied();
        RangeSet::from_extents(both).unwrap_or_else(|| self.clone())
    }

    /// Start of the first range that begins behind `extent`.
    pub fn next_start(&self, extent: &Extent) -> Option<u64> {
        let ranges = self.ranges();
        ranges.get(ranges.partition_point(|r| r.start <= extent.end)).map(|r| r.start)
    }

    /// End of the last range that lies wholly before `extent`.
    pub fn previous_end(&self, extent: &Extent) -> Option<u64> {
        let ranges = self.ranges();
        let at = first_not_before(ranges, extent.start).checked_sub(1)?;
        ranges.get(at).map(|r| r.end)
    }

    /// Makes a set of ranges that are ascending and do not touch.
    fn from_sorted(ranges: Vec<Extent>) -> Option<RangeSet> {
        let is_apart = |pair: &[Extent]| pair[0].end < pair[1].start && pair[0].end + 1 < pair[1].start;
        assert!(ranges.windows(2).all(is_apart), "ranges touch, or are not in order: {ranges:?}");
        assert!(ranges.iter().all(|range| range.start <= range.end), "a range ends before it begins: {ranges:?}");
        match ranges.as_slice() {
            [] => None,
            [extent] => Some(RangeSet::single(*extent)),
            _ => Some(RangeSet(Ranges::Many(ranges.into()))),
        }
    }
}

impl From<Extent> for RangeSet {
    fn from(extent: Extent) -> RangeSet {
        RangeSet::single(extent)
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ranges().iter().map(|e| (e.start, e.end))).finish()
    }
}

/// The index of the first range that does not lie wholly before `byte`.
fn first_not_before(ranges: &[Extent], byte: u64) -> usize {
    ranges.partition_point(|range| range.end < byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        RangeSet::from_extents(ranges.iter().map(|(start, end)| Extent { start: *start, end: *end })).unwrap()
    }

    #[test]
    fn ranges_are_sorted_and_merged() {
        assert_eq!(set(&[(20, 29), (0, 9), (10, 12), (5, 6)]), set(&[(0, 12), (20, 29)]));
        assert_eq!(set(&[(0, 9), (10, 19)]).ranges(), [Extent { start: 0, end: 19 }]);
        assert!(set(&[(5, u64::MAX), (0, 4), (u64::MAX, u64::MAX)]) == RangeSet::ALL);
        assert_eq!(RangeSet::from_extents([]), None);
    }

    #[test]
    fn the_wire_form_is_checked() {
        let more = |ranges: &[(u64, u64)]| -> Vec<LockRange> {
            ranges.iter().map(|(start, end)| LockRange { start: *start, end: *end }).collect()
        };
        let strided = RangeSet::from_wire(0, 9, &more(&[(20, 29), (40, 49)])).unwrap();
        assert_eq!(strided, set(&[(0, 9), (20, 29), (40, 49)]));
        assert_eq!(strided.to_wire(), (0, 9, more(&[(20, 29), (40, 49)])));
        assert_eq!(RangeSet::from_wire(9, 8, &[]), None, "no range");
        assert_eq!(RangeSet::from_wire(0, 9, &more(&[(21, 20)])), None, "no range");
        assert_eq!(RangeSet::from_wire(0, 9, &more(&[(10, 19)])), None, "touches");
        assert_eq!(RangeSet::from_wire(20, 29, &more(&[(0, 9)])), None, "descends");
        assert_eq!(RangeSet::from_wire(0, u64::MAX, &more(&[(0, 9)])), None, "nothing is behind the end");
        let many: Vec<(u64, u64)> = (1..=RANGES_MAX as u64).map(|i| (i * 10, i * 10)).collect();
        assert_eq!(RangeSet::from_wire(0, 0, &more(&many)), None, "too many");
        assert!(RangeSet::from_wire(0, 0, &more(&many[1..])).is_some());
    }

    /// Sets over 64 bytes, beside their bits; the bytes are mapped to the very start and the very end of a file.
    fn any(random: &mut Prng, base: u64) -> (RangeSet, u64) {
        let bits = random.next_u64() & random.next_u64() | 1 << random.below(64);
        let bits = if random.one_in(4) { u64::MAX << random.below(64) } else { bits };
        let extents = (0..64).filter(|i| bits >> i & 1 == 1).map(|i| Extent { start: base + i, end: base + i });
        (RangeSet::from_extents(extents).unwrap(), bits)
    }

    fn bits(set: Option<RangeSet>, base: u64) -> u64 {
        let Some(set) = set else { return 0 };
        for pair in set.ranges().windows(2) {
            assert!(pair[0].end + 1 < pair[1].start, "{set:?} is not in its one form");
        }
        set.ranges().iter().fold(0, |bits, e| (e.start..=e.end).fold(bits, |bits, byte| bits | 1 << (byte - base)))
    }

    #[test]
    fn set_algebra_agrees_with_bits() {
        for seed in 0..4000 {
            let mut random = Prng::new(seed);
            let base = *random.pick(&[0, u64::MAX - 63]);
            let ((a, x), (b, y)) = (any(&mut random, base), any(&mut random, base));
            assert_eq!(bits(Some(a.clone()), base), x);
            assert_eq!(bits(a.intersect(&b), base), x & y, "seed {seed}");
            assert_eq!(bits(a.subtract(&b), base), x & !y, "seed {seed}");
            assert_eq!(bits(Some(a.union(&b)), base), x | y, "seed {seed}");
            assert_eq!((a.overlaps(&b), a.contains(&b)), (x & y != 0, y & !x == 0), "seed {seed}");
            assert_eq!(a == b, x == y);
            assert_eq!(a.byte_count(), u64::from(x.count_ones()));
            let cover =
                Extent { start: base + u64::from(x.trailing_zeros()), end: base + 63 - u64::from(x.leading_zeros()) };
            assert_eq!(a.cover(), cover);
            assert_eq!(RangeSet::from_wire(a.to_wire().0, a.to_wire().1, &a.to_wire().2), Some(a.clone()));
            let start = random.below(64);
            let end = random.range(start, 64);
            let extent = Extent { start: base + start, end: base + end };
            let mask = (u64::MAX >> (63 - end)) & (u64::MAX << start);
            assert_eq!(a.contains_extent(&extent), mask & !x == 0, "seed {seed}");
            assert_eq!(a.overlaps_extent(&extent), mask & x != 0, "seed {seed}");
            let next = (end + 1..64).find(|i| x >> i & 1 == 1).map(|i| base + i);
            let inside_one = end < 63 && x >> end & 1 == 1 && x >> (end + 1) & 1 == 1;
            if !inside_one {
                assert_eq!(a.next_start(&extent), next, "seed {seed}");
            }
            let previous = (0..start).rev().find(|i| x >> i & 1 == 1).map(|i| base + i);
            let inside_one = start > 0 && x >> start & 1 == 1 && x >> (start - 1) & 1 == 1;
            if !inside_one {
                assert_eq!(a.previous_end(&extent), previous, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_range_finds_its_place_among_many() {
        let many = set(&(0..1000).map(|i| (i * 10, i * 10 + 4)).collect::<Vec<_>>());
        assert!(many.overlaps(&set(&[(9994, 20_000)])) && !many.overlaps(&set(&[(5, 9), (9995, 20_000)])));
        assert!(set(&[(504, 507)]).overlaps(&many) && !set(&[(505, 509)]).overlaps(&many));
    }
}
