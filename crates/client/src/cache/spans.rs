//! A map from disjoint ranges of offsets to values; all engines here are built on it.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value of a range, which can be cut in two.
pub(crate) trait Span {
    /// Keeps the first `at` offsets and returns the value of the rest.
    fn split_off(&mut self, at: u64) -> Self;

    /// Called for the part that stays after a cut: it may release what only the other part needed.
    fn settle(&mut self) {}
}

/// Disjoint, not empty ranges in ascending order, each with a value. Ranges that touch are not merged.
#[derive(Debug)]
pub(crate) struct SpanMap<V> {
    /// By first offset; the end is exclusive.
    spans: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for SpanMap<V> {
    fn default() -> Self {
        SpanMap { spans: BTreeMap::new() }
    }
}

impl<V> SpanMap<V> {
    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All ranges with their values, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> {
        self.spans.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Adds a range that overlaps no range of the map.
    pub(crate) fn insert(&mut self, range: Range<u64>, value: V) {
        assert!(range.start < range.end, "{range:?} is empty");
        assert!(!self.overlaps(&range), "{range:?} is here already");
        self.spans.insert(range.start, (range.end, value));
    }

    /// The ranges that overlap `range`, whole and in ascending order.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> + use<'_, V> {
        let range = self.first_overlapping(range)..range.end;
        self.spans.range(range).map(|(start, (end, value))| (*start..*end, value))
    }

    /// As [`SpanMap::overlapping`].
    pub(crate) fn overlapping_mut(&mut self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &mut V)> {
        let range = self.first_overlapping(range)..range.end;
        self.spans.range_mut(range).map(|(start, (end, value))| (*start..*end, value))
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// The parts of `range` that are not in the map, ascending.
    pub(crate) fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        without(range, self.overlapping(range).map(|(span, _)| span))
    }

    /// The range that begins at or before `offset`, whatever its end.
    pub(crate) fn last_from(&mut self, offset: u64) -> Option<(Range<u64>, &mut V)> {
        let (start, (end, value)) = self.spans.range_mut(..=offset).next_back()?;
        Some((*start..*end, value))
    }

    /// Moves the end of the range that begins at `start` further; there is nothing between the old and the new end.
    pub(crate) fn set_end(&mut self, start: u64, end: u64) {
        let mut from_here = self.spans.range_mut(start..);
        let this = from_here.next().filter(|(first, _)| **first == start);
        let Some((_, (old, _))) = this else { panic!("nothing begins at {start}, to end at {end}") };
        assert!(*old <= end, "{start}..{old} would lose bytes by ending at {end}");
        *old = end;
        let next = from_here.next().map(|(first, _)| *first);
        assert!(next.is_none_or(|next| end <= next), "{start}..{end} would reach into what begins at {next:?}");
    }

    /// The value of the range that begins at `start`.
    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut V> {
        self.spans.get_mut(&start).map(|(_, value)| value)
    }

    /// Removes the range that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<(Range<u64>, V)> {
        self.spans.remove(&start).map(|(end, value)| (start..end, value))
    }

    /// The end of the last range.
    pub(crate) fn end(&self) -> Option<u64> {
        self.spans.last_key_value().map(|(_, (end, _))| *end)
    }

    /// Where a scan for `range` begins.
    fn first_overlapping(&self, range: &Range<u64>) -> u64 {
        match self.spans.range(..range.start).next_back() {
            Some((start, (end, _))) if *end > range.start => *start,
            _ => range.start.min(range.end),
        }
    }
}

impl<V: Span> SpanMap<V> {
    /// Removes `range` from the map. Ranges that lie across its ends are cut.
    pub(crate) fn cut(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, V)> {
        if range.is_empty() || !self.overlaps(range) {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let cut = self.spans.extract_if(range.start..range.end, |_, _| true);
        let cut = cut.map(|(start, (end, value))| (start..end, value)).collect();
        if let Some((_, (end, value))) = self.spans.range_mut(..range.start).next_back()
            && *end == range.start
        {
            value.settle();
        }
        if let Some((_, value)) = self.spans.get_mut(&range.end) {
            value.settle();
        }
        cut
    }

    fn split(&mut self, at: u64) {
        if let Some((start, (end, value))) = self.spans.range_mut(..at).next_back()
            && *end > at
        {
            let rest = value.split_off(at - start);
            let end = std::mem::replace(end, at);
            self.spans.insert(at, (end, rest));
        }
    }
}

/// The parts of `range` that none of the ascending ranges in `taken` covers.
pub(crate) fn without(range: &Range<u64>, taken: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for taken in taken {
        if taken.start > at {
            gaps.push(at..taken.start.min(range.end));
        }
        at = at.max(taken.end);
        if at >= range.end {
            return gaps;
        }
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

/// The intersection of two ranges; none if it is empty.
pub(crate) fn common(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that remembers where its range began when it was inserted.
    #[derive(Debug, PartialEq, Clone, Copy)]
    struct From(u64);

    impl Span for From {
        fn split_off(&mut self, at: u64) -> From {
            From(self.0 + at)
        }
    }

    fn map(ranges: &[Range<u64>]) -> SpanMap<From> {
        let mut map = SpanMap::default();
        ranges.iter().for_each(|r| map.insert(r.clone(), From(r.start)));
        map
    }

    #[test]
    fn a_cut_takes_out_the_middle_and_leaves_the_ends() {
        let mut m = map(&[0..10, 10..20, 30..40]);
        let cut = m.cut(&(5..35));
        assert_eq!(cut, [(5..10, From(5)), (10..20, From(10)), (30..35, From(30))]);
        assert_eq!(m.iter().collect::<Vec<_>>(), [(0..5, &From(0)), (35..40, &From(35))]);
        assert_eq!(m.cut(&(1..2)), [(1..2, From(1))]);
        assert_eq!(
            m.iter().map(|(r, v)| (r, *v)).collect::<Vec<_>>(),
            [(0..1, From(0)), (2..5, From(2)), (35..40, From(35))]
        );
        assert_eq!(m.cut(&(5..35)), []);
    }

    #[test]
    fn gaps_are_what_is_not_there() {
        let m = map(&[5..10, 10..12, 20..30]);
        assert_eq!(m.gaps(&(0..40)), [0..5, 12..20, 30..40]);
        assert_eq!(m.gaps(&(7..25)), [12..20]);
        assert!(m.gaps(&(21..22)).is_empty() && m.overlaps(&(29..30)) && !m.overlaps(&(30..31)));
    }
}
