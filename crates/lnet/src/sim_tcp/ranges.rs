//! Sets of bytes of a stream, as ranges that do not overlap.

use std::collections::BTreeMap;

/// A set of bytes: the first of each range, and the first behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a range, which may overlap others.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        assert!(start < end, "an empty range at {start}");
        while let Some((first, behind)) = self.0.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if behind < start {
                break;
            }
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(behind));
        }
        self.0.insert(start, end);
    }

    /// Takes a range out, or what there is of it.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        while let Some((first, behind)) = self.0.range(..end).next_back().map(|(a, b)| (*a, *b)) {
            if behind <= start {
                break;
            }
            self.0.remove(&first);
            if behind > end {
                self.0.insert(end, behind);
            }
            if first < start {
                self.0.insert(first, start);
                break;
            }
        }
    }

    /// Takes the first bytes out, at most so many and all of one range.
    pub(super) fn take_first(&mut self, most: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.pop_first()?;
        if end - start > most {
            self.0.insert(start + most, end);
        }
        Some((start, end.min(start + most)))
    }

    /// Takes out the range that contains or begins at `at`, and returns the first byte behind it; `at` if there is none.
    pub(super) fn take_through(&mut self, at: u64) -> u64 {
        match self.0.first_key_value() {
            Some((first, behind)) if *first <= at => {
                let behind = (*behind).max(at);
                self.0.pop_first();
                behind
            }
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64)]) -> Ranges {
        let mut all = Ranges::default();
        ranges.iter().for_each(|(a, b)| all.insert(*a, *b));
        all
    }

    #[test]
    fn neighbours_and_overlaps_become_one() {
        assert_eq!(of(&[(0, 10), (20, 30), (10, 20)]).0, BTreeMap::from([(0, 30)]));
        assert_eq!(of(&[(5, 6), (0, 10), (12, 13)]).0, BTreeMap::from([(0, 10), (12, 13)]));
        assert_eq!(of(&[(0, 4), (2, 8), (20, 21), (3, 30)]).0, BTreeMap::from([(0, 30)]));
    }

    #[test]
    fn parts_can_be_taken() {
        let mut all = of(&[(0, 10), (20, 30)]);
        all.remove(5, 25);
        assert_eq!(all.0, BTreeMap::from([(0, 5), (25, 30)]));
        all.remove(26, 27);
        assert_eq!(all.0, BTreeMap::from([(0, 5), (25, 26), (27, 30)]));
        assert_eq!(all.take_first(3), Some((0, 3)));
        assert_eq!(all.take_first(3), Some((3, 5)));
        assert_eq!((all.take_through(24), all.take_through(25)), (24, 26));
        assert_eq!((all.take_first(9), all.take_first(9)), (Some((27, 30)), None));
    }
}
