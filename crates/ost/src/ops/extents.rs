//! Checks the extents that a read or a write names.

use nacre_base::Errno;
use nacre_ldlm::{Extent, RangeSet};
use nacre_osd::OBJECT_SIZE_MAX;
use nacre_wire::ost::{BRW_SIZE_MAX, EXTENTS_MAX, Niobuf};

/// Extents that are in order and within limits.
pub(crate) struct Extents {
    /// Ranges to lock: with one lock, so that the access is atomic.
    pub(crate) ranges: RangeSet,
    /// Sum of the extents' bytes.
    pub(crate) bytes: usize,
    /// First byte after the last extent.
    pub(crate) end: u64,
}

/// Checks that extents are ascending, do not overlap, and are neither empty nor too large.
pub(crate) fn check(extents: &[Niobuf]) -> Result<Extents, Errno> {
    let (Some(first), 1..=EXTENTS_MAX) = (extents.first(), extents.len()) else { return Err(Errno::EINVAL) };
    let (mut end, mut bytes) = (first.offset, 0u64);
    for extent in extents {
        if extent.offset < end || extent.len == 0 {
            return Err(Errno::EINVAL);
        }
        end = extent.offset.checked_add(extent.len.into()).filter(|e| *e <= OBJECT_SIZE_MAX).ok_or(Errno::EFBIG)?;
        bytes += u64::from(extent.len);
    }
    if bytes > BRW_SIZE_MAX.into() {
        return Err(Errno::EINVAL);
    }
    let extent = |e: &Niobuf| Extent { start: e.offset, end: e.offset + u64::from(e.len) - 1 };
    let ranges = RangeSet::from_extents(extents.iter().map(extent)).ok_or(Errno::EINVAL)?;
    assert_eq!(ranges.byte_count(), bytes, "bytes that are locked, and bytes that are read or written");
    Ok(Extents { ranges, bytes: bytes as usize, end })
}

/// The inclusive range of a half-open one; EINVAL if it is empty, EFBIG if no object reaches there.
pub(crate) fn range(start: u64, end: u64) -> Result<RangeSet, Errno> {
    if start >= end {
        return Err(Errno::EINVAL);
    }
    if end > OBJECT_SIZE_MAX {
        return Err(Errno::EFBIG);
    }
    Ok(RangeSet::single(Extent { start, end: end - 1 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64, len: u32) -> Niobuf {
        Niobuf { offset, len, flags: 0 }
    }

    #[test]
    fn hostile_extents_are_refused() {
        let e = check(&[at(5, 5), at(10, 1), at(100, 10)]).unwrap();
        assert_eq!((e.bytes, e.end), (16, 110));
        assert_eq!(e.ranges.ranges(), [Extent { start: 5, end: 10 }, Extent { start: 100, end: 109 }]);
        for (bad, errno) in [
            (vec![], Errno::EINVAL),
            (vec![at(0, 0)], Errno::EINVAL),
            (vec![at(0, 5), at(4, 1)], Errno::EINVAL),
            (vec![at(u64::MAX, 1)], Errno::EFBIG),
            (vec![at(OBJECT_SIZE_MAX, 1)], Errno::EFBIG),
            (vec![at(0, u32::MAX)], Errno::EINVAL),
            (vec![at(0, 1); EXTENTS_MAX + 1], Errno::EINVAL),
        ] {
            assert_eq!(check(&bad).err(), Some(errno), "{bad:?}");
        }
    }
}
