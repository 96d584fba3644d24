//! What is known of the kernel's list of a directory: whether it may have one, and whether entries are on their way into
//! it that are not true any more.
//!
//! The kernel fills its list with what it reads, in whatever order it gets to it, and takes it for whole when an answer has
//! no entries. We can make it drop what it has, but not what it has been sent and not looked at yet. That is over as
//! soon as the same open directory asks for more, or is closed. Until then a list that is doubtful is given to nobody who
//! opens the directory, and is dropped before it is made whole.

use std::collections::BTreeMap;

/// One directory's.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// How often what was sent before has become doubtful.
    generation: u64,
    /// The kernel may have entries.
    kept: bool,
    /// What open directories that fill the list were sent last: under which generation, none if it was never sure.
    sent: BTreeMap<u64, Option<u64>>,
}

impl List {
    /// The directory is opened; `told` is that we are told before its entries change. Whether the kernel may keep what it
    /// reads, and use what it has kept.
    pub(crate) fn open(&mut self, told: bool) -> bool {
        let may_keep = told && !self.is_doubtful();
        self.kept |= may_keep;
        may_keep
    }

    /// What entries are to be [`List::sent`] under, if they are true now, as is to be found out next.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Entries are about to be sent to an open directory that fills the list.
    pub(crate) fn sent(&mut self, handle: u64, under: Option<u64>) {
        self.sent.insert(handle, under);
    }

    /// An open directory asks for more or is closed: the kernel has what it was sent. Whether the list must be dropped,
    /// because that is not true any more.
    pub(crate) fn taken_in(&mut self, handle: u64) -> bool {
        self.sent.remove(&handle).is_some_and(|under| under != Some(self.generation))
    }

    /// Whether something that is not true any more may get into the list. It is to be dropped before it is made whole.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.sent.values().any(|under| *under != Some(self.generation))
    }

    /// Entries are about to change by others' doing. Whether there may be a list to drop.
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
