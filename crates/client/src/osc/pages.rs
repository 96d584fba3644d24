//! The pages of one object that a door's kernel may have, by the lock that each was filled under. A lock is given back only after
//! its pages are gone, and what comes out of a page is written only under the lock that the page was filled under: another
//! client may have written there since that lock was lost. `giving` tells the door to forget, `lov` fills and writes.

use nacre_base::Time;
use nacre_ldlm::{Extent, LockId};
use nacre_wire::ldlm::LockMode;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a page stays after it was filled, so that the store or load that missed it can happen before it goes again.
const KEPT_FOR: Duration = Duration::from_millis(1);
/// The same for a page that is missed again as soon as it has gone, time after time.
const KEPT_FOR_AT_MOST: Duration = Duration::from_millis(10);
/// A page that is filled again this soon after it went, and was not stored into, may have gone before it was used.
const MISSED_SOON: Duration = Duration::from_millis(20);
/// How long a fill is held back under a lock whose pages the door has already been told to forget: from the second round on, and
/// twice as long in each further one.
const HELD_BACK: Duration = Duration::from_millis(1);
const DOUBLINGS_MAX: u32 = 6;
/// A round forgets up to this many ranges one by one; more than that, with what lies between them.
const RANGES_MAX: usize = 16;

/// The pages of one object.
#[derive(Debug, Default)]
pub(crate) struct KernelPages {
    under: BTreeMap<LockId, Under>,
    /// Bytes that were written since the page around them was filled, other than from that page. The door drops the page before the
    /// write is answered; what comes out of it meanwhile has older bytes there, which must not be written.
    newer: PageSet,
    /// How often a door began to forget.
    begun: u64,
    /// How long pages are kept after they were filled.
    kept_for: Duration,
    /// When pages went that nobody had stored into.
    gone: Option<Time>,
}

/// What was filled under one lock.
#[derive(Debug)]
struct Under {
    mode: LockMode,
    stage: Stage,
    /// Pages that no round has begun to forget since they were filled.
    pages: PageSet,
    /// Pages that rounds under way forget, and how many rounds.
    leaving: PageSet,
    rounds: u32,
    /// How many rounds began since the lock is being given back.
    begun: u32,
    /// True if something came out of a page since one was filled.
    is_stored: bool,
    filled: Time,
}

/// Progress of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Pages may be filled under the lock.
    Kept,
    /// The lock is being given back, and the door forgets. It may wait for a page that is just being filled or written, so
    /// both go on under the lock.
    Forgetting,
    /// No page is left, and none may come.
    Forgotten,
}

impl KernelPages {
    /// Pages are about to be filled under a lock. Returns false if none may come any more: the caller needs another lock.
    #[must_use = "a page must not be filled under a lock that goes"]
    pub(crate) fn fill(&mut self, id: LockId, mode: LockMode, range: Extent, now: Time) -> bool {
        let under = self.under.entry(id).or_insert_with(|| Under::new(mode));
        assert_eq!(under.mode, mode, "the mode of {id:?} has changed");
        if under.stage == Stage::Forgotten {
            return false;
        }
        under.pages.insert(range);
        self.newer.remove(range);
        (under.filled, under.is_stored) = (now, false);
        let soon = self.gone.take().is_some_and(|gone| now.since(gone) < MISSED_SOON);
        self.kept_for = if soon { (self.kept_for * 2).min(KEPT_FOR_AT_MOST) } else { KEPT_FOR };
        true
    }

    /// A program has written bytes by a system call.
    pub(crate) fn written(&mut self, range: Extent) {
        if self.under.values().any(|under| under.pages.overlaps(range) || under.leaving.overlaps(range)) {
            self.newer.insert(range);
        }
    }

    /// End of the bytes from `at` on that were written since their page was filled.
    pub(crate) fn newer_until(&self, at: u64) -> Option<u64> {
        self.newer.end_from(at)
    }

    /// Something comes out of the page at `at`, where there is nothing newer. Returns the lock that the page was filled under, and the end of the pages after it
    /// for which the same is true. None if the lock is lost, or keeps nobody from writing.
    pub(crate) fn stored(&mut self, at: u64) -> Option<(LockId, u64)> {
        self.under.iter_mut().filter(|(_, under)| under.mode != LockMode::Pr).find_map(|(id, under)| {
            let end = under.pages.end_from(at).or_else(|| under.leaving.end_from(at))?;
            let end = self.newer.next_start(at).map_or(end, |newer| end.min(newer));
            under.is_stored = true;
            Some((*id, end))
        })
    }

    /// A lock is being given back: the door begins to forget.
    pub(crate) fn begin_forgetting(&mut self, id: LockId, mode: LockMode) {
        self.begun += 1;
        let under = self.under.entry(id).or_insert_with(|| Under::new(mode));
        (under.stage, under.begun) = (Stage::Forgetting, 0);
    }

    /// How many locks have begun to be forgotten.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// True if the door may have pages that were filled under the lock.
    pub(crate) fn has(&self, id: LockId) -> bool {
        self.under.get(&id).is_some_and(Under::has_pages)
    }

    /// Bytes of pages that the door may have.
    pub(crate) fn bytes(&self) -> u64 {
        self.under.values().map(|under| under.pages.bytes() + under.leaving.bytes()).sum()
    }

    /// True if pages may be filled under a lock that is being given back.
    pub(crate) fn is_forgetting(&self, id: LockId) -> bool {
        self.under.get(&id).is_some_and(|under| under.stage == Stage::Forgetting)
    }

    /// How long pages under the lock are still to be kept.
    pub(crate) fn keep_for(&self, id: LockId, now: Time) -> Duration {
        let Some(under) = self.under.get(&id).filter(|under| under.has_pages()) else { return Duration::ZERO };
        self.kept_for.saturating_sub(now.since(under.filled))
    }

    /// How long a fill has to be held back, so that it does not go on for ever: what a round has passed comes back, and the next
    /// round must begin.
    pub(crate) fn hold_back(&self, id: LockId) -> Duration {
        let goes_on = |under: &&Under| under.stage == Stage::Forgetting && under.begun > 1;
        let Some(under) = self.under.get(&id).filter(goes_on) else { return Duration::ZERO };
        HELD_BACK * (1 << (under.begun - 2).min(DOUBLINGS_MAX))
    }

    /// Begins a round of forgetting. Returns the pages filled since the last one began; none if the door has no others.
    pub(crate) fn begin_round(&mut self, id: LockId) -> Option<Vec<Extent>> {
        let under = self.under.get_mut(&id).filter(|under| !under.pages.is_empty())?;
        let pages = std::mem::take(&mut under.pages);
        let ranges = pages.to_ranges();
        ranges.iter().for_each(|range| under.leaving.insert(*range));
        (under.rounds, under.begun) = (under.rounds + 1, under.begun + 1);
        Some(ranges)
    }

    /// Ends a round: the door has forgotten its pages.
    pub(crate) fn end_round(&mut self, id: LockId) {
        // The lock may have been lost meanwhile.
        let Some(under) = self.under.get_mut(&id).filter(|under| under.rounds > 0) else { return };
        under.rounds -= 1;
        if under.rounds == 0 {
            under.leaving = PageSet::default();
        }
    }

    /// True if a round is under way.
    pub(crate) fn is_leaving(&self, id: LockId) -> bool {
        self.under.get(&id).is_some_and(|under| under.rounds > 0)
    }

    /// Ends forgetting if the door has no page under the lock. Returns whether it has none.
    pub(crate) fn end_forgetting(&mut self, id: LockId, now: Time) -> bool {
        let Some(under) = self.under.get_mut(&id) else { return true };
        assert_ne!(under.stage, Stage::Kept, "{id:?} is forgotten without an order");
        if under.has_pages() {
            return false;
        }
        if under.begun > 0 && !under.is_stored {
            self.gone = Some(now);
        }
        under.stage = Stage::Forgotten;
        true
    }

    /// The lock is not given back yet, because operations use it.
    pub(crate) fn stop_forgetting(&mut self, id: LockId) {
        self.under.get_mut(&id).into_iter().for_each(|under| under.stage = Stage::Kept);
    }

    /// The lock is gone. Panics if the door still has pages.
    pub(crate) fn remove(&mut self, id: LockId) {
        let Some(under) = self.under.remove(&id) else { return };
        assert!(!under.has_pages(), "{id:?} is given back before its pages: {under:?}");
    }

    /// The lock is lost. What was stored into its pages cannot be written any more.
    pub(crate) fn lose(&mut self, id: LockId) {
        self.under.remove(&id);
    }

    /// All locks are lost.
    pub(crate) fn lose_all(&mut self) {
        self.under.clear();
    }

    /// Locks with pages that programs can only read.
    pub(crate) fn readable(&self) -> Vec<LockId> {
        let readable = self.under.iter().filter(|(_, under)| under.mode == LockMode::Pr && under.has_pages());
        readable.map(|(id, _)| *id).collect()
    }
}

impl Under {
    fn new(mode: LockMode) -> Under {
        let (pages, leaving) = (PageSet::default(), PageSet::default());
        let (stage, rounds, begun, is_stored, filled) = (Stage::Kept, 0, 0, false, Time::ZERO);
        Under { mode, stage, pages, leaving, rounds, begun, is_stored, filled }
    }

    fn has_pages(&self) -> bool {
        !self.pages.is_empty() || self.rounds > 0
    }
}

/// Ranges of pages, by their first byte; the value is the byte after the last.
#[derive(Debug, Default)]
struct PageSet(BTreeMap<u64, u64>);

impl PageSet {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn insert(&mut self, range: Extent) {
        let (mut start, mut end) = (range.start, range.end.saturating_add(1));
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e >= start) {
            (start, end) = (start.min(s), end.max(e));
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn remove(&mut self, range: Extent) {
        let (start, end) = (range.start, range.end.saturating_add(1));
        while let Some((s, e)) = self.0.range(..end).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e > start) {
            self.0.remove(&s);
            if s < start {
                self.0.insert(s, start);
            }
            if e > end {
                self.0.insert(end, e);
            }
        }
    }

    fn overlaps(&self, range: Extent) -> bool {
        self.0.range(..=range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Start of the first range behind `at`.
    fn next_start(&self, at: u64) -> Option<u64> {
        self.0.range(at..).next().map(|(start, _)| *start)
    }

    /// End of the range that has the byte at `at`.
    fn end_from(&self, at: u64) -> Option<u64> {
        self.0.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// The ranges, or one that covers them if they are many.
    fn to_ranges(&self) -> Vec<Extent> {
        let first = self.0.first_key_value().map(|(start, _)| *start);
        let last = self.0.last_key_value().map(|(_, end)| *end - 1);
        match (first, last) {
            (Some(start), Some(end)) if self.0.len() > RANGES_MAX => vec![Extent { start, end }],
            _ => self.0.iter().map(|(start, end)| Extent { start: *start, end: end - 1 }).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const A: LockId = LockId(1);
    const B: LockId = LockId(2);

    fn pages_of(first: u64, count: u64) -> Extent {
        Extent { start: first * PAGE, end: (first + count) * PAGE - 1 }
    }

    fn page(n: u64) -> Extent {
        pages_of(n, 1)
    }

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_lock_goes_when_no_page_was_filled_since_the_round_began() {
        let mut pages = KernelPages::default();
        assert!(pages.fill(A, LockMode::Pr, pages_of(0, 3), at(0)));
        pages.begin_forgetting(A, LockMode::Pr);
        assert_eq!(pages.begin_round(A), Some(vec![pages_of(0, 3)]));
        assert!(pages.fill(A, LockMode::Pr, page(1), at(1)), "the door waits for this very page");
        pages.end_round(A);
        assert!(!pages.end_forgetting(A, at(2)));
        assert_eq!(pages.begin_round(A), Some(vec![page(1)]), "no other page has come");
        pages.end_round(A);
        assert!(pages.end_forgetting(A, at(3)));
        assert!(!pages.fill(A, LockMode::Pr, page(0), at(4)), "nobody would forget it");
        pages.remove(A);
    }

    #[test]
    fn a_lock_without_pages_needs_no_round() {
        let mut pages = KernelPages::default();
        pages.begin_forgetting(A, LockMode::Pw);
        assert_eq!(pages.begin_round(A), None);
        assert!(pages.end_forgetting(A, at(0)));
        pages.remove(A);
        assert_eq!(pages.begin_round(A), None);
    }

    #[test]
    #[should_panic(expected = "is given back before its pages")]
    fn a_lock_that_goes_before_its_pages_is_a_defect() {
        let mut pages = KernelPages::default();
        assert!(pages.fill(A, LockMode::Pr, page(0), at(0)));
        pages.remove(A);
    }

    #[test]
    fn fills_that_go_on_are_held_back_longer_in_each_round() {
        let mut pages = KernelPages::default();
        let held = |pages: &KernelPages| pages.hold_back(A).as_millis();
        assert!(pages.fill(A, LockMode::Pr, page(0), at(0)));
        pages.begin_forgetting(A, LockMode::Pr);
        let rounds = [(); 10].map(|()| {
            pages.begin_round(A).unwrap();
            let held = held(&pages);
            assert!(pages.fill(A, LockMode::Pr, page(0), at(0)));
            pages.end_round(A);
            held
        });
        assert_eq!(rounds, [0, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn what_comes_out_of_a_page_goes_under_the_lock_that_filled_it() {
        let mut pages = KernelPages::default();
        for (id, n) in [(A, 0), (A, 2), (A, 1), (B, 3), (B, 7)] {
            assert!(pages.fill(id, LockMode::Pw, page(n), at(0)));
        }
        assert!(pages.fill(B, LockMode::Pw, page(7), at(0)));
        assert_eq!(pages.stored(0), Some((A, 3 * PAGE)));
        assert_eq!(pages.stored(PAGE + 1), Some((A, 3 * PAGE)));
        assert_eq!(pages.stored(3 * PAGE), Some((B, 4 * PAGE)));
        assert_eq!(pages.stored(4 * PAGE), None);
        pages.begin_forgetting(B, LockMode::Pw);
        assert_eq!(pages.begin_round(B), Some(vec![page(3), page(7)]));
        assert_eq!(pages.stored(7 * PAGE), Some((B, 8 * PAGE)), "the door writes it out because it forgets it");
        pages.end_round(B);
        assert_eq!(pages.stored(7 * PAGE), None, "gone");
        pages.lose(A);
        assert_eq!(pages.stored(0), None);
    }

    #[test]
    fn pages_filled_to_be_read_are_nobodys_to_write() {
        let mut pages = KernelPages::default();
        assert!(pages.fill(A, LockMode::Pr, page(0), at(0)));
        assert_eq!(pages.stored(0), None);
        assert_eq!(pages.readable(), [A]);
        assert_eq!(pages.begin_round(A), Some(vec![page(0)]));
        assert_eq!(pages.readable(), [A], "still on their way out");
        pages.end_round(A);
        assert_eq!(pages.readable(), []);
    }

    #[test]
    fn a_page_is_kept_until_the_program_that_missed_it_has_run_and_longer_if_it_misses_it_again() {
        let mut pages = KernelPages::default();
        let mut now = 0;
        let mut turn = |pages: &mut KernelPages, pause: u64, stores: bool| {
            now += pause;
            assert!(pages.fill(A, LockMode::Pw, page(0), at(now)));
            let kept = pages.keep_for(A, at(now));
            pages.begin_forgetting(A, LockMode::Pw);
            pages.begin_round(A).unwrap();
            if stores {
                pages.stored(0).unwrap();
            }
            pages.end_round(A);
            assert!(pages.end_forgetting(A, at(now)));
            pages.remove(A);
            kept.as_millis()
        };
        assert_eq!([(); 6].map(|()| turn(&mut pages, 100, false)), [1, 2, 4, 8, 10, 10]);
        assert_eq!(turn(&mut pages, 1_000_000, false), 1);
        assert_eq!([(); 3].map(|()| turn(&mut pages, 100, true)), [2, 1, 1], "what was to be stored is stored");
        assert!(pages.fill(A, LockMode::Pw, page(0), at(2_000_000)));
        assert_eq!(pages.keep_for(A, at(2_020_000)), Duration::ZERO, "kept already");
    }

    #[test]
    fn what_was_written_since_a_page_was_filled_is_not_taken_from_the_page() {
        let mut pages = KernelPages::default();
        let bytes = |start, len| Extent { start, end: start + len - 1 };
        pages.written(bytes(8, 8));
        assert_eq!(pages.newer_until(8), None, "there is no page");
        assert!(pages.fill(A, LockMode::Pw, pages_of(0, 2), at(0)));
        pages.written(bytes(PAGE - 8, 16));
        pages.written(bytes(8, 8));
        assert_eq!(pages.stored(0), Some((A, 8)));
        assert_eq!((pages.newer_until(8), pages.newer_until(16)), (Some(16), None));
        assert_eq!(pages.stored(16), Some((A, PAGE - 8)));
        assert_eq!(pages.newer_until(PAGE - 8), Some(PAGE + 8));
        // The door has dropped the first page, and fills it anew.
        assert!(pages.fill(A, LockMode::Pw, page(0), at(0)));
        assert_eq!(pages.stored(0), Some((A, PAGE)));
        assert_eq!(pages.newer_until(PAGE), Some(PAGE + 8));
    }

    #[test]
    fn many_ranges_are_forgotten_with_what_lies_between() {
        let mut pages = KernelPages::default();
        for n in 0..=RANGES_MAX as u64 {
            assert!(pages.fill(A, LockMode::Pr, page(2 * n), at(0)));
        }
        assert_eq!(pages.begin_round(A), Some(vec![pages_of(0, 2 * RANGES_MAX as u64 + 1)]));
    }
}
