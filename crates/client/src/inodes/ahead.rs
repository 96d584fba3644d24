//! How many entries of directories a lookup may bring ahead over a distance, and whether they were of use. The kernel never says
//! what a program will ask for next, so that the servers send what is likely: what was wrong costs the path's bytes and locks, and what was
//! right saves a round trip.

use nacre_base::{Fid, FxHashMap};
use std::collections::VecDeque;

/// The budget of one lookup at first, and its bounds, in bytes. At 50 MB/s the first one takes 3 ms.
const BUDGET_FIRST: u32 = 128 << 10;
const BUDGET_MIN: u32 = 16 << 10;
const BUDGET_MAX: u32 = 512 << 10;
/// The largest limit that an administrator may set, which is also the default.
pub(crate) const LOOKUP_AHEAD_KB_MAX: u64 = (BUDGET_MAX >> 10) as u64;
/// Budgets' worth of entries that may wait to be used; beyond them the oldest were brought in vain.
const WAITING: u64 = 8;
/// Used directories are taken out of the order when there are more of them than this, and than others.
const ORDER_SLACK: usize = 64;
/// The budget grows if at least one byte of so many was of use, and shrinks if less than one of so many was.
const SHARE_GOOD: u64 = 4;
const SHARE_BAD: u64 = 16;
/// Fixed part of a directory's size, in bytes: an empty one has two entries without attributes.
const DIRECTORY_BYTES: u64 = 128;
/// Approximate size of an entry with attributes, a lock and a layout of few stripes, in bytes.
const ENTRY_BYTES: u64 = 320;

/// Totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AheadCounts {
    /// Directories that were brought ahead.
    pub(crate) directories: u64,
    /// Entries of these.
    pub(crate) entries: u64,
    /// Directories in which a program then looked up or listed names.
    pub(crate) used: u64,
    /// Directories that were brought in vain.
    pub(crate) wrong: u64,
}

/// The entries brought ahead from one MDT.
#[derive(Debug)]
pub(crate) struct LookupsAhead {
    budget: u32,
    /// Directories that were brought and not used yet, with their sizes in bytes. `order` has the oldest first, and also some that were used
    /// since, no more than there are others and [`ORDER_SLACK`].
    waiting: FxHashMap<Fid, u64>,
    order: VecDeque<Fid>,
    waiting_bytes: u64,
    /// Bytes since the budget was last set.
    used_bytes: u64,
    wrong_bytes: u64,
    counts: AheadCounts,
}

impl Default for LookupsAhead {
    fn default() -> LookupsAhead {
        let (waiting, order, counts) = Default::default();
        LookupsAhead { budget: BUDGET_FIRST, waiting, order, waiting_bytes: 0, used_bytes: 0, wrong_bytes: 0, counts }
    }
}

impl LookupsAhead {
    /// Bytes of entries that the next lookup may bring.
    pub(crate) fn budget(&self) -> u32 {
        self.budget
    }

    pub(crate) fn counts(&self) -> AheadCounts {
        self.counts
    }

    pub(crate) fn clear_counts(&mut self) {
        self.counts = AheadCounts::default();
    }

    /// Handles the entries of a directory that were brought ahead.
    pub(crate) fn handle_brought(&mut self, directory: Fid, entries: usize) {
        self.counts.directories += 1;
        self.counts.entries += entries as u64;
        let bytes = DIRECTORY_BYTES + entries as u64 * ENTRY_BYTES;
        if self.waiting.contains_key(&directory) {
            return;
        }
        self.waiting.insert(directory, bytes);
        self.order.push_back(directory);
        self.waiting_bytes += bytes;
        while self.waiting_bytes > WAITING * u64::from(self.budget)
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(bytes) = self.waiting.remove(&oldest) {
                self.waiting_bytes -= bytes;
                self.wrong_bytes += bytes;
                self.counts.wrong += 1;
            }
        }
        self.set_budget();
        let (known, ordered) = (self.waiting.len(), self.order.len());
        assert!(known <= ordered, "{known} directories wait to be used, in an order of {ordered}");
    }

    /// Handles that a program looked up or listed names of a directory.
    pub(crate) fn handle_used(&mut self, directory: Fid) {
        let Some(bytes) = self.waiting.remove(&directory) else { return };
        self.waiting_bytes -= bytes;
        self.used_bytes += bytes;
        self.counts.used += 1;
        if self.order.len() > 2 * self.waiting.len() + ORDER_SLACK {
            self.order.retain(|directory| self.waiting.contains_key(directory));
        }
        self.set_budget();
    }

    fn set_budget(&mut self) {
        let all = self.used_bytes + self.wrong_bytes;
        if all < u64::from(self.budget) {
            return;
        }
        self.budget = match self.used_bytes {
            used if used * SHARE_GOOD >= all => (self.budget * 2).min(BUDGET_MAX),
            used if used * SHARE_BAD < all => (self.budget / 2).max(BUDGET_MIN),
            _ => self.budget,
        };
        (self.used_bytes, self.wrong_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(oid: u32) -> Fid {
        Fid { seq: 7, oid, ver: 0 }
    }

    #[test]
    fn the_budget_follows_the_share_of_what_was_used() {
        let mut ahead = LookupsAhead::default();
        for n in 0..100 {
            ahead.handle_brought(directory(n), 100);
        }
        assert!(ahead.budget() < BUDGET_FIRST, "nothing was used");
        for n in 100..1000 {
            ahead.handle_brought(directory(n), 100);
        }
        assert_eq!(ahead.budget(), BUDGET_MIN);
        for n in 1000..2000 {
            ahead.handle_brought(directory(n), 100);
            ahead.handle_used(directory(n));
        }
        assert_eq!(ahead.budget(), BUDGET_MAX);
        let AheadCounts { directories, entries, used, wrong } = ahead.counts();
        assert_eq!((directories, entries, used), (2000, 200_000, 1000));
        assert!((990..=1000).contains(&wrong), "{wrong}: few still wait");
    }

    #[test]
    fn small_directories_weigh_little() {
        let mut ahead = LookupsAhead::default();
        for n in 0..1000 {
            // Of each ten directories, nine are empty and are never looked at.
            let is_large = n % 10 == 0;
            ahead.handle_brought(directory(n), if is_large { 100 } else { 0 });
            if is_large {
                ahead.handle_used(directory(n));
            }
        }
        assert_eq!(ahead.budget(), BUDGET_MAX);
    }

    #[test]
    fn a_directory_counts_once() {
        let mut ahead = LookupsAhead::default();
        ahead.handle_brought(directory(1), 5);
        ahead.handle_brought(directory(1), 5);
        ahead.handle_used(directory(1));
        ahead.handle_used(directory(1));
        assert_eq!(ahead.counts().used, 1);
        assert_eq!(ahead.waiting_bytes, 0);
    }

    #[test]
    fn a_directory_that_nobody_uses_keeps_no_others_in_memory() {
        let mut ahead = LookupsAhead::default();
        ahead.handle_brought(directory(0), 0);
        for n in 1..10_000 {
            ahead.handle_brought(directory(n), 0);
            ahead.handle_used(directory(n));
        }
        assert!(ahead.order.len() <= 2 + ORDER_SLACK, "{} directories", ahead.order.len());
    }
}
