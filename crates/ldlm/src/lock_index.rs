//! Finds, among many ranges that may overlap, those that contain or overlap a given one. For the locks of one object.
//!
//! Ranges are filed by size class (the power of two of their length) and start: those of a class that can reach a byte
//! begin in a window before the byte that is at most twice as long as the ranges. A look-up costs one search per class
//! that occurs, plus the ranges in that window, which are few as long as few locks share a byte.

use crate::LockId;
use crate::range_set::{Extent, RangeSet};
use std::collections::BTreeMap;

/// The ranges of locks, each with its lock.
#[derive(Default, Debug)]
pub(crate) struct RangeIndex {
    ends: BTreeMap<Key, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    class: u8,
    start: u64,
    id: LockId,
}

/// Size class of a range. In class k, `end - start` is below 2^(k+1), and at least 2^k except in class 0.
fn class(range: Extent) -> u8 {
    (63 - ((range.end - range.start) | 1).leading_zeros()) as u8
}

/// The longest `end - start` of a class.
fn longest(class: u8) -> u64 {
    u64::MAX >> (63 - class)
}

impl RangeIndex {
    pub(crate) fn insert(&mut self, id: LockId, ranges: &RangeSet) {
        for range in ranges.ranges() {
            let before = self.ends.insert(Key { class: class(*range), start: range.start, id }, range.end);
            assert!(before.is_none(), "{range:?} of {id:?} is in the index already");
        }
    }

    pub(crate) fn remove(&mut self, id: LockId, ranges: &RangeSet) {
        for range in ranges.ranges() {
            let end = self.ends.remove(&Key { class: class(*range), start: range.start, id });
            assert_eq!(end, Some(range.end), "{range:?} of {id:?} is not in the index");
        }
    }

    /// Returns whether the lock is in the index with all of these ranges.
    pub(crate) fn has(&self, id: LockId, ranges: &RangeSet) -> bool {
        let end = |range: &Extent| self.ends.get(&Key { class: class(*range), start: range.start, id });
        ranges.ranges().iter().all(|range| end(range) == Some(&range.end))
    }

    /// Number of ranges of all locks.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The locks with a range that contains `wanted`, longest ranges first.
    pub(crate) fn containing(&self, wanted: Extent) -> impl Iterator<Item = LockId> + '_ {
        let classes = self.classes().take_while(move |c| *c >= class(wanted));
        let found = classes.flat_map(move |class| self.beginning(class, wanted.start, wanted.start));
        found.filter(move |(e, _)| e.end >= wanted.end).map(|(_, id)| id)
    }

    /// The ranges that have a byte in common with `wanted`.
    pub(crate) fn overlapping(&self, wanted: Extent) -> impl Iterator<Item = (Extent, LockId)> + '_ {
        let found = self.classes().flat_map(move |class| self.beginning(class, wanted.start, wanted.end));
        found.filter(move |(e, _)| e.end >= wanted.start)
    }

    /// The size classes that occur, the longest first.
    fn classes(&self) -> impl Iterator<Item = u8> + '_ {
        let below = |class: u8| {
            let bound = Key { class, start: 0, id: LockId(0) };
            self.ends.range(..bound).next_back().map(|(key, _)| key.class)
        };
        std::iter::successors(below(64), move |class| below(*class))
    }

    /// Ranges of a class that begin by `last` and may reach `first`.
    fn beginning(&self, class: u8, first: u64, last: u64) -> impl Iterator<Item = (Extent, LockId)> + '_ {
        let from = Key { class, start: first.saturating_sub(longest(class)), id: LockId(0) };
        let to = Key { class, start: last, id: LockId(u64::MAX) };
        self.ends.range(from..=to).map(|(key, end)| (Extent { start: key.start, end: *end }, key.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::collections::BTreeSet;

    fn random_extent(random: &mut Prng) -> Extent {
        // Lengths of all magnitudes, at both ends of the offsets.
        let length = random.next_u64() >> random.below(64);
        let start = random.next_u64() >> random.below(64);
        let end = start.saturating_add(length);
        if random.one_in(4) { Extent { start: u64::MAX - end, end: u64::MAX - start } } else { Extent { start, end } }
    }

    #[test]
    fn it_finds_what_a_scan_finds() {
        for seed in 0..300 {
            let mut random = Prng::new(seed);
            let mut index = RangeIndex::default();
            let mut all: Vec<(LockId, RangeSet)> = Vec::new();
            for id in 1..60 {
                let count = random.range(1, 4);
                let set = RangeSet::from_extents((0..count).map(|_| random_extent(&mut random))).unwrap();
                index.insert(LockId(id), &set);
                all.push((LockId(id), set));
                if random.one_in(3) {
                    let (id, set) = all.swap_remove(random.below(all.len() as u64) as usize);
                    index.remove(id, &set);
                }
                let wanted = random_extent(&mut random);
                let containing: BTreeSet<LockId> = index.containing(wanted).collect();
                let overlapping: BTreeSet<LockId> = index.overlapping(wanted).map(|(_, id)| id).collect();
                let scan = |fits: &dyn Fn(&Extent) -> bool| -> BTreeSet<LockId> {
                    all.iter().filter(|(_, s)| s.ranges().iter().any(fits)).map(|(id, _)| *id).collect()
                };
                assert_eq!(containing, scan(&|e| e.contains(&wanted)));
                assert_eq!(overlapping, scan(&|e| e.overlaps(&wanted)));
            }
            for (id, set) in all.drain(..) {
                index.remove(id, &set);
            }
            assert!(index.is_empty());
        }
    }
}
