//! The space of a device's index, and which operations may take how much of it.
//!
//! The index is a tree that is never changed in place: an operation writes new copies of the pages that it changes, and
//! the old ones may be used again only when the transaction after its own has ended, because a crash may go back to
//! them. So even a removal needs pages before it frees any. The index's file is allocated ahead of need, and a
//! *reserve* of its pages is kept for operations that ask for it ([`crate::Transaction::use_reserve`]): removals and
//! what they need, and operations that repeat what a client was already answered. Every other operation is refused with
//! ENOSPC before it takes from the reserve. So a full target can be emptied, and a commit never lacks space.
//!
//! [`Space`] implements that rule. It owns no file: its caller reports in pages what is allocated, used and taken.

use crate::StatFs;

/// Size of a page.
pub(crate) const PAGE: u64 = 4096;
/// An operation that may not use the reserve does not begin to change anything unless this many pages are left for it,
/// so that few such operations are refused half way.
pub(crate) const OPERATION_PAGES: u64 = 64;
/// Pages that ending a transaction takes at most, beside a share of all pages: the list of free pages and the table of
/// tables.
const COMMIT_PAGES: u64 = 64;
const _: () = assert!(LIST_RUN_PAGES <= COMMIT_PAGES, "a commit may take what is left for the list of free pages");
/// Never used pages at the end of the file that are left for runs of the list of free pages.
const LIST_RUN_PAGES: u64 = 32;

/// Sizes of an index's reserve.
#[derive(Clone, Copy, Debug)]
pub struct SpaceLimits {
    /// The reserve is at least this large, in pages of 4 KiB.
    pub reserve_pages: u64,
    /// The reserve is at least the used pages divided by this: removals add to the queue of objects to be destroyed
    /// before they empty pages.
    pub reserve_fraction: u64,
}

impl Default for SpaceLimits {
    fn default() -> SpaceLimits {
        SpaceLimits { reserve_pages: 2048, reserve_fraction: 16 }
    }
}

/// Pages that an operation may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// All but the reserve.
    Ordinary,
    /// The reserve too.
    Reserve,
}

/// Pages that a change takes at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cost {
    /// Pages in all.
    pub(crate) pages: u64,
    /// Pages among them that must lie next to each other.
    pub(crate) run: u64,
}

/// Pages that the index lacks for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing(pub(crate) u64);

/// Pages of an index.
#[derive(Debug)]
pub(crate) struct Space {
    limits: SpaceLimits,
    /// Pages of the file that have their place on the disk.
    allocated: u64,
    /// Pages up to the last that was ever used. More than `allocated` only if the file had holes when it was opened on a
    /// file system without space.
    reached: u64,
    /// Pages of the tables when the last transaction was ended, and when the one before it was.
    used: u64,
    used_before: u64,
    /// Pages that the last ended transaction took at most.
    taken_before: u64,
    /// True if the file got all pages that it wanted at the last attempt to grow.
    can_grow: bool,
    /// An ordinary operation was refused since the counts were exact.
    refused: bool,
}

/// Pages that the running transaction has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) pages: u64,
    /// Pages of the tables as they are now.
    pub(crate) used: u64,
    /// Pages that had to lie next to each other.
    pub(crate) runs: u64,
    /// Pages that the current operation has taken; to undo it can take as many again.
    pub(crate) by_operation: u64,
}

impl Space {
    pub(crate) fn new(limits: SpaceLimits, allocated: u64, used: u64, reached: u64) -> Space {
        Space {
            limits,
            allocated,
            reached,
            used,
            used_before: used,
            // What the transaction before the start freed is not known.
            taken_before: COMMIT_PAGES,
            can_grow: true,
            refused: false,
        }
    }

    /// Pages kept for operations that may use the reserve.
    pub(crate) fn reserve(&self) -> u64 {
        self.limits.reserve_pages.max(self.used / self.limits.reserve_fraction.max(1))
    }

    /// Checks that there are pages for one more change, and for undoing the operation with it. `is_first`: the operation has
    /// changed nothing yet.
    pub(crate) fn check(&mut self, claim: Claim, taken: Taken, next: Cost, is_first: bool) -> Result<(), Missing> {
        let (kept, kept_fresh) = match claim {
            Claim::Reserve => (0, LIST_RUN_PAGES),
            Claim::Ordinary => {
                (self.reserve() + if is_first { OPERATION_PAGES } else { 0 }, LIST_RUN_PAGES + self.reserve() / 4)
            }
        };
        let needed = taken.pages + taken.by_operation + 2 * next.pages + kept;
        let missing = needed.saturating_sub(self.room());
        let missing_run = match next.run {
            0 | 1 => 0,
            run => (taken.runs + 2 * run + kept_fresh).saturating_sub(self.fresh()),
        };
        match missing.max(missing_run) {
            0 => Ok(()),
            missing => {
                self.refused |= claim == Claim::Ordinary;
                Err(Missing(missing))
            }
        }
    }

    /// Returns whether the running transaction should be ended before another operation begins. If the file cannot
    /// grow, a transaction may take only a small part of the free space, because nothing that it frees comes back
    /// before it and the next transaction have ended.
    pub(crate) fn is_crowded(&self, taken: Taken) -> bool {
        let is_large = taken.pages > (self.usable().saturating_sub(self.used) / 4).max(OPERATION_PAGES);
        !self.can_grow && (is_large || self.is_unclear(taken))
    }

    /// Returns whether an ordinary operation would be refused only because the exact use of the last transactions is
    /// not known.
    fn is_unclear(&self, taken: Taken) -> bool {
        let enough = 2 * OPERATION_PAGES;
        let room = self.room().saturating_sub(taken.pages + self.reserve());
        !self.is_settled(taken) && room < enough && self.available(taken) >= enough
    }

    fn is_settled(&self, taken: Taken) -> bool {
        self.taken_before + taken.pages <= 2 * COMMIT_PAGES
    }

    /// Returns whether small transactions should be ended only to bring the counts up to date, because an operation was
    /// refused although there may be space for it.
    pub(crate) fn wants_settling(&self, taken: Taken) -> bool {
        !self.can_grow && (self.refused && !self.is_settled(taken) || self.is_unclear(taken))
    }

    /// Pages that the file should grow by, at least one `step` if any; none if enough is free.
    pub(crate) fn wanted_growth(&self, taken: u64, step: u64) -> u64 {
        let wanted = self.used + self.taken_before + taken + self.reserve() + step + self.overhead();
        let missing = wanted.saturating_sub(self.allocated).max((self.reserve() / 2).saturating_sub(self.fresh()));
        missing.next_multiple_of(step.max(1))
    }

    /// Notes the pages that the file has after an attempt to grow. `can_grow`: the file got all that was wanted.
    pub(crate) fn handle_growth(&mut self, allocated: u64, can_grow: bool) {
        self.allocated = self.allocated.max(allocated);
        self.can_grow = can_grow;
    }

    /// Records the end of a transaction that took at most `taken` pages and left the tables with `used`; the last page
    /// ever used is number `reached`, counted from 1.
    ///
    /// # Panics
    ///
    /// If the transaction has used a page that had no place on the disk: what operations may take was counted wrongly, and
    /// the next one could fail half way.
    pub(crate) fn handle_flush(&mut self, taken: u64, used: u64, reached: u64) {
        let allowed = self.allocated.max(self.reached);
        assert!(reached <= allowed, "the index has used page {reached}, {allowed} have their place: {self:?}");
        self.used_before = std::mem::replace(&mut self.used, used);
        self.taken_before = taken + COMMIT_PAGES;
        self.reached = reached;
        self.refused &= self.taken_before > 2 * COMMIT_PAGES;
    }

    /// Pages that ordinary operations can take once the running transaction is settled.
    pub(crate) fn available(&self, taken: Taken) -> u64 {
        // Less what is unknown when the counts are settled.
        self.usable().saturating_sub(taken.used + self.reserve() + 2 * COMMIT_PAGES)
    }

    /// True if the file got all pages that it wanted at the last attempt to grow.
    pub(crate) fn can_grow(&self) -> bool {
        self.can_grow
    }

    /// Pages of the file that have their place on the disk.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Pages that no table has.
    pub(crate) fn free(&self, taken: Taken) -> u64 {
        self.allocated.saturating_sub(taken.used)
    }

    /// Pages at the end of the file that were never used. Only there is it certain that pages lie next to each other.
    fn fresh(&self) -> u64 {
        self.allocated.saturating_sub(self.reached)
    }

    /// Pages that the running transaction can take in all: not those of the last two, nor what these took.
    fn room(&self) -> u64 {
        self.usable().saturating_sub(self.used_before + self.taken_before)
    }

    fn usable(&self) -> u64 {
        self.allocated.saturating_sub(self.overhead())
    }

    /// Pages that the list of free pages may take.
    fn overhead(&self) -> u64 {
        self.allocated / 32 + COMMIT_PAGES
    }
}

/// A kind of things that a device has no space for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// Records: names, inodes, objects, settings.
    Records,
    /// The data of objects.
    Data,
    /// Files, in which objects lie.
    Files,
}

impl Full {
    /// Returns what the device has no space for, by its own count. It counts as full up to `margin` times the limit.
    fn of(fs: &StatFs, of_objects: bool, margin: u64) -> Option<Full> {
        if fs.records_available_bytes < margin * RECORDS_FULL_BYTES {
            Some(Full::Records)
        } else if of_objects && fs.available_bytes < margin * DATA_FULL_BYTES {
            Some(Full::Data)
        } else {
            (of_objects && fs.files_free < margin * FILES_FULL).then_some(Full::Files)
        }
    }

    /// A sentence for people: what is refused, and what helps.
    pub fn text(self) -> &'static str {
        match self {
            Full::Records => "no space is left for new names and records; removing files works",
            Full::Data => "no space is left for data; removing and truncating files works",
            Full::Files => "its file system has no inodes left for new objects; removing files works",
        }
    }
}

/// Space below which a target counts as full.
const RECORDS_FULL_BYTES: u64 = 2 * OPERATION_PAGES * PAGE;
const DATA_FULL_BYTES: u64 = 1 << 20;
const FILES_FULL: u64 = 8;

/// Notices when a device becomes full, and when it no longer is.
#[derive(Debug, Default)]
pub(crate) struct FullWatch {
    full: Option<Full>,
}

impl FullWatch {
    /// Takes the device's present space; `of_objects` if it holds objects too. Returns a line for the log if there is news.
    pub(crate) fn handle_statfs(&mut self, fs: &StatFs, of_objects: bool) -> Option<String> {
        // Twice as much must be free before it is full no longer: one page more or less is no news.
        let full = Full::of(fs, of_objects, if self.full.is_some() { 2 } else { 1 });
        let before = std::mem::replace(&mut self.full, full);
        match (before, full) {
            _ if before == full => None,
            (_, Some(full)) => Some(format!("is full: {}", full.text())),
            _ => Some("has space again".to_owned()),
        }
    }

    pub(crate) fn full(&self) -> Option<Full> {
        self.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SpaceLimits = SpaceLimits { reserve_pages: 400, reserve_fraction: 16 };
    const PAGES: u64 = 4096;

    fn taken(pages: u64) -> Taken {
        Taken { pages, used: PAGES, ..Taken::default() }
    }

    fn cost(pages: u64) -> Cost {
        Cost { pages, run: 0 }
    }

    fn space(used: u64) -> Space {
        let mut space = Space::new(LIMITS, PAGES, used, used);
        space.handle_growth(PAGES, false);
        space
    }

    #[test]
    fn ordinary_operations_leave_the_reserve_and_others_may_take_it() {
        let mut s = space(PAGES - PAGES / 32 - 2 * COMMIT_PAGES - 400);
        assert!(s.check(Claim::Ordinary, taken(0), cost(1), true).is_err());
        assert!(s.check(Claim::Ordinary, taken(0), cost(0), false).is_ok(), "exactly the reserve is left");
        assert!(s.check(Claim::Reserve, taken(0), cost(200), true).is_ok());
        assert_eq!(s.check(Claim::Reserve, taken(0), cost(201), true), Err(Missing(2)), "as much again to undo it");
        let half = Taken { by_operation: 150, ..taken(150) };
        assert!(s.check(Claim::Reserve, half, cost(50), false).is_ok());
        assert!(s.check(Claim::Reserve, half, cost(51), false).is_err());
    }

    #[test]
    fn what_a_transaction_freed_comes_back_after_the_next() {
        let mut s = space(3000);
        let room = s.room();
        // The transaction removed everything, writing 100 pages.
        s.handle_flush(100, 10, 3100);
        assert_eq!(s.room(), room - 100, "a crash may go back to all that was there");
        s.handle_flush(20, 10, 3100);
        assert_eq!(s.room(), s.usable() - 10 - 20 - COMMIT_PAGES);
    }

    #[test]
    fn runs_come_from_the_fresh_pages_only() {
        let mut s = Space::new(LIMITS, PAGES, 100, PAGES - (LIST_RUN_PAGES + 100 + 20));
        let run = |run| Cost { pages: run, run };
        assert!(s.check(Claim::Ordinary, taken(0), run(10), true).is_ok());
        assert_eq!(s.check(Claim::Ordinary, taken(0), run(11), true), Err(Missing(2)));
        assert!(s.check(Claim::Ordinary, taken(0), run(1), true).is_ok(), "one page lies next to itself");
        assert!(s.check(Claim::Reserve, taken(0), run(60), true).is_ok());
    }

    #[test]
    fn holes_of_a_file_are_no_fresh_pages() {
        // The file system had no space for all pages that were used before.
        let mut s = Space::new(LIMITS, PAGES, 100, PAGES + 500);
        s.handle_growth(PAGES + 500, false);
        assert!(s.check(Claim::Reserve, taken(0), Cost { pages: 2, run: 2 }, true).is_err());
        s.handle_growth(PAGES + 600, false);
        assert!(s.check(Claim::Reserve, taken(0), Cost { pages: 2, run: 2 }, true).is_ok());
        s.handle_flush(10, 110, PAGES + 600);
    }

    #[test]
    #[should_panic(expected = "have their place")]
    fn pages_without_a_place_are_never_used() {
        space(100).handle_flush(10, 110, PAGES + 1);
    }

    #[test]
    fn transactions_are_short_when_space_is_and_the_file_cannot_grow() {
        let mut s = space(PAGES - 1000);
        assert!(!s.is_crowded(taken(OPERATION_PAGES)) && s.is_crowded(taken(300)));
        s.handle_growth(PAGES, true);
        assert!(!s.is_crowded(taken(100_000)));
    }

    #[test]
    fn the_file_grows_ahead_of_need_by_whole_steps() {
        let mut s = Space::new(LIMITS, PAGES, 100, 100);
        assert_eq!(s.wanted_growth(0, 256), 0);
        assert_eq!(s.wanted_growth(3000, 256) % 256, 0);
        assert!(s.wanted_growth(4000, 256) > s.wanted_growth(3000, 256));
        s.handle_flush(3500, 3600, 3600);
        assert!(s.wanted_growth(0, 256) > 0);
    }

    #[test]
    fn being_full_is_told_once_and_so_is_its_end() {
        let fs = |records, data, files_free| StatFs {
            records_available_bytes: records * RECORDS_FULL_BYTES,
            available_bytes: data * DATA_FULL_BYTES,
            files_free,
            ..StatFs::default()
        };
        let mut watch = FullWatch::default();
        let mut tell = |fs: StatFs| watch.handle_statfs(&fs, true).unwrap_or_default();
        assert_eq!(tell(fs(1, 1, 8)), "");
        assert!(tell(fs(0, 1, 8)).contains("names and records"));
        assert_eq!(tell(fs(0, 1, 8)), "");
        assert_eq!(tell(fs(1, 9, 99)), "", "hardly any better");
        assert_eq!(tell(fs(2, 9, 99)), "has space again");
        assert!(tell(fs(2, 0, 99)).contains("for data"));
        assert!(tell(fs(2, 2, 0)).contains("inodes"));
        assert_eq!(watch.full(), Some(Full::Files));
        assert_eq!(watch.handle_statfs(&fs(2, 0, 0), false).unwrap(), "has space again", "a target without objects");
    }

    #[test]
    fn a_refused_operation_has_the_counts_settled() {
        let mut s = space(3000);
        assert!(!s.wants_settling(taken(0)));
        s.handle_flush(400, 2900, PAGES - 500);
        assert!(s.check(Claim::Ordinary, taken(0), cost(1000), true).is_err());
        assert!(s.wants_settling(taken(0)));
        s.handle_flush(5, 2900, PAGES - 500);
        assert!(!s.wants_settling(taken(0)), "now the counts are exact");
    }
}
