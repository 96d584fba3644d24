//! Finds among many ranges, which may overlap, those that contain or overlap a given one. For the locks of one object.
//!
//! Ranges are filed by size class (the power of two of their length) and start: those of a class that can reach a byte
//! begin in a window before it that is at most twice as long as they are. A look-up costs one search per class that
//! occurs, plus the ranges of that window, which are few as long as a byte has few locks.

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

/// `end - start` of class k is below 2^(k+1), and from 2^k on but for class 0.
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
            self.ends.insert(Key { class: class(*range), start: range.start, id }, range.end);
        }
    }

    pub(crate) fn remove(&mut self, id: LockId, ranges: &RangeSet) {
        for range in ranges.ranges() {
            self.ends.remove(&Key { class: class(*range), start: range.start, id });
        }
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
