//! State of the kernel's list of a directory: whether it may have one, and whether outdated entries are on their way into
//! it.
//!
//! The kernel fills its list with the entries it reads, in whatever order it gets to them, and takes the list as complete
//! when a reply has no entries. It can be made to drop what it has, but not what it was sent and has not looked at yet.
//! That is over as soon as the same open directory asks for more, or is closed. Until then a doubtful list is not used
//! for further opens of the directory, and is dropped before it becomes complete.

use std::collections::BTreeMap;

/// State of one directory's list.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Counts how often the entries sent before became doubtful.
    generation: u64,
    /// True if the kernel may have entries.
    kept: bool,
    /// Last entries sent to each open directory that fills the list: their generation, or none if they were never
    /// certain.
    sent: BTreeMap<u64, Option<u64>>,
}

impl List {
    /// The directory is opened; `told` is true if the client will tell before its entries change. Returns whether the
    /// kernel may keep the entries it reads, and use those it has kept.
    pub(crate) fn open(&mut self, told: bool) -> bool {
        let may_keep = told && !self.is_doubtful();
        self.kept |= may_keep;
        may_keep
    }

    /// The generation for entries that are about to be [`List::sent`], to be read before it is checked that they are
    /// true.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Records that entries are about to be sent to an open directory that fills the list.
    pub(crate) fn sent(&mut self, handle: u64, under: Option<u64>) {
        self.sent.insert(handle, under);
    }

    /// An open directory asks for more or is closed, so the kernel has taken in the last entries. Returns whether the
    /// list must be dropped, because they are outdated.
    pub(crate) fn taken_in(&mut self, handle: u64) -> bool {
        self.sent.remove(&handle).is_some_and(|under| under != Some(self.generation))
    }

    /// True if outdated entries may get into the list, which then has to be dropped before it becomes complete.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.sent.values().any(|under| *under != Some(self.generation))
    }

    /// Entries are about to be changed by others. Returns whether there may be a list to drop.
    pub(crate) fn invalidate(&mut self) -> bool {
        self.generation += 1;
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_true_is_kept_until_it_changes() {
        let mut list = List::default();
        assert!(!list.invalidate(), "there was none");
        assert!(list.open(true));
        list.sent(1, Some(list.generation()));
        assert!(list.open(true) && !list.taken_in(1) && !list.is_doubtful());
        assert!(list.invalidate());
        assert!(list.open(true), "what was dropped can be filled anew");
    }

    #[test]
    fn who_is_not_told_keeps_nothing() {
        let mut list = List::default();
        assert!(!list.open(false) && !list.invalidate());
    }

    #[test]
    fn what_was_on_its_way_when_it_changed_is_dropped_when_it_has_arrived() {
        let mut list = List::default();
        assert!(list.open(true));
        list.sent(1, Some(list.generation()));
        list.invalidate();
        assert!(list.is_doubtful() && !list.open(true), "nobody else is to see it");
        assert!(list.taken_in(1));
        assert!(!list.is_doubtful() && list.open(true));
    }

    #[test]
    fn what_was_found_out_too_early_is_doubtful() {
        let mut list = List::default();
        assert!(list.open(true));
        let before = list.generation();
        list.invalidate();
        list.sent(1, Some(before));
        assert!(list.is_doubtful());
        list.sent(1, None);
        assert!(list.taken_in(1) && !list.taken_in(1));
    }
}
