//! The stripe count of an automatic component, chosen when the component gets its objects: by then it is known how many
//! clients write, and how far. Pure rules; [`crate::lod`] chooses the OSTs.
//!
//! A few OSTs are enough for one writer, and a large file spreads over all OSTs so that it fills them evenly. Several
//! writers of one file get at least one stripe each, and so a lock domain each if their records lie that way, in whole
//! rounds over the OSTs: an OST with more stripes than the others would slow everybody down. More than
//! [`ON_EACH_OST_MAX`] stripes on an OST gain nothing, because objects of an OST share its bandwidth and its window of
//! requests.

use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_COUNT_AUTO, STRIPE_COUNT_MAX};

/// A plain automatic file has one stripe up to here, because most files are small.
pub const SMALL_END: u64 = 64 << 20;
/// From here on the file has at least one stripe on each OST, however few clients write.
pub const LARGE_START: u64 = 16 << 30;
/// Most stripes on one OST.
pub const ON_EACH_OST_MAX: usize = 8;
/// Number of stripes that keep one writer busy.
const FOR_ONE_WRITER: usize = 4;

/// The number of stripes of a component that begins at byte `start` of its file, which `writers` clients have open for
/// writing; `usable` OSTs take new objects. 1 to [`STRIPE_COUNT_MAX`].
pub fn stripe_count(start: u64, writers: usize, usable: usize) -> usize {
    let usable = usable.max(1);
    let count = match writers {
        0 | 1 if start >= LARGE_START => usable,
        0 | 1 => usable.min(FOR_ONE_WRITER),
        _ => writers.div_ceil(usable).min(ON_EACH_OST_MAX) * usable,
    };
    if count <= STRIPE_COUNT_MAX {
        count
    } else {
        (STRIPE_COUNT_MAX / usable * usable).max(STRIPE_COUNT_MAX.min(usable))
    }
}

/// The components of a file whose wish is one automatic component over the whole file; none for other wishes.
pub fn expand(spec: &LayoutSpec) -> Option<LayoutSpec> {
    let [whole] = spec.components.as_slice() else { return None };
    if !whole.is_automatic() || whole.end != u64::MAX {
        return None;
    }
    let small = ComponentSpec { end: SMALL_END, stripe_count: 1, overstripe: false, ..whole.clone() };
    let middle = ComponentSpec { end: LARGE_START, stripe_offset: -1, ..whole.clone() };
    let large = ComponentSpec { stripe_offset: -1, ..whole.clone() };
    Some(LayoutSpec { components: vec![small, middle, large] })
}

/// One automatic component over the whole file.
pub fn whole_file() -> LayoutSpec {
    let mut spec = LayoutSpec::plain();
    (spec.components[0].stripe_count, spec.components[0].overstripe) = (STRIPE_COUNT_AUTO, true);
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: u64 = SMALL_END;

    #[test]
    fn one_writer_gets_a_few_stripes_and_a_large_file_all_osts() {
        for (osts, middle, large) in [(1, 1, 1), (3, 3, 3), (4, 4, 4), (100, 4, 100), (3000, 4, 2000)] {
            assert_eq!((stripe_count(MIDDLE, 1, osts), stripe_count(LARGE_START, 1, osts)), (middle, large), "{osts}");
        }
        assert_eq!(stripe_count(0, 0, 0), 1, "nothing is known");
    }

    #[test]
    fn many_writers_get_a_stripe_each_in_whole_rounds() {
        for (writers, osts, count) in [
            (2, 4, 4),
            (4, 4, 4),
            (5, 4, 8),
            (9, 4, 12),
            (32, 4, 32),
            (33, 4, 32),
            (10_000, 4, 32),
            (48, 1, 8),
            (10_000, 300, 1800),
            (10_000, 2500, 2000),
        ] {
            assert_eq!(stripe_count(MIDDLE, writers, osts), count, "{writers} writers, {osts} OSTs");
        }
    }

    #[test]
    fn more_writers_or_more_osts_never_mean_fewer_stripes_and_all_osts_are_loaded_alike() {
        for osts in 1..200 {
            let counts: Vec<usize> = (2..400).map(|w| stripe_count(MIDDLE, w, osts)).collect();
            assert!(counts.is_sorted());
            assert!(counts.iter().all(|c| c % osts == 0 && (osts..=STRIPE_COUNT_MAX).contains(c)), "{osts}");
        }
    }

    #[test]
    fn a_plain_automatic_file_is_progressive() {
        let mut asked = whole_file();
        (asked.components[0].stripe_size, asked.components[0].stripe_offset) = (1 << 20, 3);
        assert_eq!(asked.check(), Ok(()));
        let spec = expand(&asked).unwrap();
        assert_eq!(spec.check(), Ok(()));
        let components = spec.components.iter().map(|c| (c.end, c.stripe_count, c.stripe_size, c.stripe_offset));
        let want = [(SMALL_END, 1, 1 << 20, 3), (LARGE_START, 0x7fff, 1 << 20, -1), (u64::MAX, 0x7fff, 1 << 20, -1)];
        assert!(components.eq(want));
        assert_eq!(expand(&spec), None, "who cuts the file up himself knows why");
        assert_eq!(expand(&LayoutSpec::plain()), None);
    }
}
