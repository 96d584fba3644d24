//! How much larger than asked for a lock on a single range is granted: as large as is useful to the holder and harms
//! nobody, so that a lone writer asks once per file, and writers of separate regions once per region.
//!
//! Lustre's policy: grow to the whole file; but if any lock conflicts, never downwards, and upwards only to where the
//! next one begins; leave room for waiting requests; grow less where many locks conflict; end on the boundaries on
//! which the requester works.

use crate::{Extent, RangeSet};

/// With more conflicting locks than this, writers get no more than [`CROWDED_BYTES`].
pub(super) const CROWDED: usize = 32;
/// Most bytes of a write lock among more than [`CROWDED`] conflicting locks.
pub(super) const CROWDED_BYTES: u64 = 32 << 20;
/// With more conflicting requests than this waiting, no lock grows downwards.
pub(super) const QUEUED: usize = 4;
/// Grown locks begin and end on multiples of at least this, unless the request itself does not.
pub(super) const PAGE_SIZE: u64 = 4096;

/// Granted locks whose mode conflicts with the request, of other holders, wherever they are.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Conflicting {
    /// Number of these locks.
    pub(super) count: usize,
    /// The first byte behind the request that one of them covers.
    pub(super) next_start: Option<u64>,
}

/// Range that is granted to a request for `asked`, which conflicts with no granted lock: at least `asked`. `write` is
/// true for mode PW; `waiting` are the ranges of waiting requests whose mode conflicts with that of this lock.
pub(super) fn grow<'a>(
    asked: Extent,
    write: bool,
    granted: Conflicting,
    waiting: impl IntoIterator<Item = &'a RangeSet>,
) -> Extent {
    assert!(granted.next_start.is_none_or(|next| asked.end < next), "{asked:?} overlaps a lock: {granted:?}");
    let mut grown = Extent::ALL;
    if granted.count > 0 {
        grown.start = asked.start;
    }
    if let Some(next) = granted.next_start {
        grown.end = next.saturating_sub(1).max(asked.end);
    }
    let mut queued = 0;
    for ranges in waiting {
        queued += 1;
        // A request for the same bytes has to call this lock back however small it is.
        if !ranges.overlaps_extent(&asked) {
            let before = ranges.previous_end(&asked).and_then(|end| end.checked_add(1));
            grown.start = before.map_or(grown.start, |start| start.max(grown.start));
            let after = ranges.next_start(&asked).and_then(|start| start.checked_sub(1));
            grown.end = after.map_or(grown.end, |end| end.min(grown.end));
        }
    }
    if queued > QUEUED {
        grown.start = asked.start;
    }
    if write && granted.count + queued > CROWDED {
        grown.end = grown.end.min(asked.start.saturating_add(CROWDED_BYTES - 1)).max(asked.end);
    }
    let grown = align(grown, asked);
    assert!(grown.contains(&asked), "{asked:?} was asked for, {grown:?} is granted");
    assert!(granted.next_start.is_none_or(|next| grown.end < next), "{grown:?} covers a lock: {granted:?}");
    assert!(granted.count == 0 || grown.start == asked.start, "{grown:?} grew downwards from {asked:?}: {granted:?}");
    grown
}

/// Shrinks `grown` to the boundaries on which `asked` begins and ends: the largest power of two that divides both, at
/// least a page. So a writer of aligned megabytes does not get a lock that ends within its neighbour's next one.
fn align(grown: Extent, asked: Extent) -> Extent {
    let boundaries = asked.start | asked.end.wrapping_add(1);
    let unit = if boundaries == 0 { PAGE_SIZE } else { (1 << boundaries.trailing_zeros()).max(PAGE_SIZE) };
    let start = grown.start.checked_next_multiple_of(unit).unwrap_or(asked.start);
    // `u64::MAX` is on every boundary: adding 1 gives 0, and subtracting 1 gives the end again.
    let end = (grown.end.wrapping_add(1) & !(unit - 1)).wrapping_sub(1);
    let end = if grown.end != u64::MAX && end == u64::MAX { asked.end } else { end };
    Extent { start: start.min(asked.start), end: end.max(asked.end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const MIB: u64 = 1 << 20;

    fn extent(start: u64, end: u64) -> Extent {
        Extent { start, end }
    }

    fn set(start: u64, end: u64) -> RangeSet {
        RangeSet::single(extent(start, end))
    }

    fn others(count: usize, next_start: Option<u64>) -> Conflicting {
        Conflicting { count, next_start }
    }

    #[test]
    #[should_panic(expected = "overlaps a lock")]
    fn nothing_is_granted_over_a_lock_that_conflicts() {
        grow(extent(5, 9), true, others(1, Some(9)), []);
    }

    #[test]
    fn the_first_one_gets_everything() {
        assert_eq!(grow(extent(5 * MIB, 6 * MIB - 1), true, others(0, None), []), Extent::ALL);
        assert_eq!(grow(extent(7, 7), false, others(0, None), []), Extent::ALL);
    }

    #[test]
    fn with_any_conflicting_lock_about_nothing_grows_downwards() {
        let asked = extent(5 * MIB, 6 * MIB - 1);
        assert_eq!(grow(asked, true, others(1, None), []), extent(5 * MIB, u64::MAX));
        assert_eq!(grow(asked, true, others(1, Some(9 * MIB)), []), extent(5 * MIB, 9 * MIB - 1));
        assert_eq!(grow(asked, true, others(1, Some(6 * MIB)), []), asked, "no room");
    }

    #[test]
    fn writers_among_many_get_little() {
        let asked = extent(5 * MIB, 6 * MIB - 1);
        assert_eq!(grow(asked, true, others(32, None), []), extent(5 * MIB, u64::MAX));
        assert_eq!(grow(asked, true, others(33, None), []), extent(5 * MIB, 37 * MIB - 1));
        assert_eq!(grow(asked, false, others(33, None), []), extent(5 * MIB, u64::MAX), "readers are not limited");
        let long = extent(0, 64 * MIB - 1);
        assert_eq!(grow(long, true, others(33, None), []), long, "never less than asked for");
    }

    #[test]
    fn who_waits_is_left_room_unless_he_wants_the_same_bytes() {
        let asked = extent(5 * MIB, 6 * MIB - 1);
        let around = [set(0, MIB - 1), set(8 * MIB, 9 * MIB - 1), set(0, u64::MAX)];
        assert_eq!(grow(asked, true, others(0, None), &around), extent(MIB, 8 * MIB - 1));
        let strided = RangeSet::from_extents((0..10).map(|i| extent(i * 3 * MIB, i * 3 * MIB + MIB - 1))).unwrap();
        assert_eq!(grow(asked, true, others(0, None), [&strided]), extent(4 * MIB, 6 * MIB - 1), "within a gap");
        let many = [const { RangeSet::ALL }; QUEUED + 1];
        assert_eq!(grow(asked, true, others(0, None), &many[1..]), Extent::ALL);
        assert_eq!(grow(asked, true, others(0, None), &many), extent(5 * MIB, u64::MAX));
    }

    #[test]
    fn grown_locks_end_where_the_requester_works() {
        let limit = others(1, Some(10 * MIB + 4096));
        assert_eq!(grow(extent(2 * MIB, 4 * MIB - 1), true, limit, []), extent(2 * MIB, 10 * MIB - 1));
        assert_eq!(grow(extent(3 * MIB, 4 * MIB - 1), true, limit, []), extent(3 * MIB, 10 * MIB - 1));
        assert_eq!(grow(extent(4096, 8191), true, limit, []), extent(4096, 10 * MIB + 4095));
        let odd = others(1, Some(10 * MIB + 5));
        assert_eq!(grow(extent(47_008, 94_015), true, odd, []), extent(47_008, 10 * MIB - 1), "pages at least");
        assert_eq!(grow(extent(47_008, 94_015), true, others(1, Some(94_100)), []), extent(47_008, 94_015));
        assert_eq!(grow(extent(0, 94_015), true, others(1, Some(u64::MAX)), []), extent(0, u64::MAX - 4096));
    }

    #[test]
    fn whatever_is_about_the_lock_covers_the_request_and_nothing_of_others() {
        for seed in 0..20_000 {
            let mut random = Prng::new(seed);
            let scale = *random.pick(&[1, 4096, MIB, 1 << 58]);
            let start = random.below(30) * scale;
            let end = start + (random.below(10) + 1) * scale - 1;
            let asked = extent(start, *random.pick(&[u64::MAX, end]));
            let next = asked.end.checked_add(1 + random.below(3) * scale).filter(|_| random.one_in(2));
            let count = random.below(40) as usize + usize::from(next.is_some());
            let ranges = |random: &mut Prng| {
                let start = random.below(40) * scale;
                set(start, start + random.below(5) * scale)
            };
            let waiting: Vec<RangeSet> = (0..random.below(6)).map(|_| ranges(&mut random)).collect();
            let grown = grow(asked, random.one_in(2), others(count, next), &waiting);
            assert!(grown.contains(&asked), "seed {seed}");
            assert!(next.is_none_or(|next| grown.end < next), "seed {seed}");
            assert!(count == 0 || grown.start == asked.start, "seed {seed}");
            let apart = waiting.iter().filter(|w| !w.overlaps_extent(&asked));
            assert!(apart.into_iter().all(|w| !w.overlaps_extent(&grown)), "seed {seed}");
        }
    }
}
