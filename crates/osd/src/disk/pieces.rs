//! Cuts the extents of a write: at the borders of parts, and into pieces that go straight to the disk and pieces that
//! go through the page cache.

use crate::parts::{Gathering, Parts};
use nacre_base::Payload;
use nacre_base::buf::DIRECT_IO_ALIGNMENT;
use std::ops::Range;

/// A write to one part.
pub(super) struct Piece {
    pub(super) part: usize,
    pub(super) offset: u64,
    pub(super) data: Payload,
    /// True if the piece goes straight to the disk.
    pub(super) direct: bool,
}

/// The pieces of a write: neighbours joined, cut where parts begin, and with runs that can go straight to the disk cut
/// out.
pub(super) fn pieces(extents: Vec<(u64, Payload)>, parts: Parts, gathering: Gathering) -> Vec<Piece> {
    let bytes: usize = extents.iter().map(|(_, data)| data.len()).sum();
    let mut runs: Vec<(u64, Payload)> = Vec::new();
    for (offset, data) in extents.into_iter().filter(|(_, data)| !data.is_empty()) {
        match runs.last_mut() {
            Some((start, run)) if *start + run.len() as u64 == offset => run.append(data),
            _ => runs.push((offset, data)),
        }
    }
    let mut pieces = Vec::new();
    for (start, run) in runs {
        for (part, range) in parts.split(start..start + run.len() as u64) {
            let mut push = |range: Range<u64>, direct| {
                if !range.is_empty() {
                    let data = run.slice((range.start - start) as usize, (range.end - range.start) as usize);
                    pieces.push(Piece { part, offset: range.start, data, direct });
                }
            };
            let middle = gathering.direct_middle(&range);
            let in_memory = (middle.start - start) as usize..(middle.end - start) as usize;
            if !middle.is_empty() && is_aligned(&run.slice(in_memory.start, in_memory.len())) {
                push(range.start..middle.start, false);
                push(middle.clone(), true);
                push(middle.end..range.end, false);
            } else {
                push(range, false);
            }
        }
    }
    let cut: usize = pieces.iter().map(|piece| piece.data.len()).sum();
    assert_eq!(cut, bytes, "bytes of all pieces, and bytes that are to be written");
    pieces
}

/// Returns whether the memory is aligned as direct I/O needs it.
fn is_aligned(data: &Payload) -> bool {
    let aligned = |n: usize| n.is_multiple_of(DIRECT_IO_ALIGNMENT);
    data.pieces().iter().all(|p| aligned(p.as_ptr() as usize) && aligned(p.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::DIRECT_MIN;
    use nacre_base::buf::AlignedBuf;

    fn of(pieces: &[bytes::Bytes]) -> Payload {
        let mut payload = Payload::new();
        pieces.iter().for_each(|p| payload.push(p.clone()));
        payload
    }

    /// Part, offset, length, and whether it goes straight to the disk, of all pieces.
    fn planned(extents: Vec<(u64, Payload)>) -> Vec<(usize, u64, usize, bool)> {
        pieces(extents, Parts::new(8), Gathering::STILL)
            .iter()
            .map(|p| (p.part, p.offset, p.data.len(), p.direct))
            .collect()
    }

    #[test]
    fn only_large_aligned_middles_go_direct() {
        const MIN: usize = DIRECT_MIN as usize;
        let aligned = |len| bytes::Bytes::from(AlignedBuf::zeroed(len));
        assert_eq!(planned(vec![(4096, of(&[aligned(MIN)]))]), [(0, 4096, MIN, true)]);
        assert_eq!(planned(vec![(0, of(&[aligned(65_536), aligned(65_536)]))]), [(0, 0, MIN, true)]);
        assert_eq!(planned(vec![(512, of(&[aligned(MIN)]))]), [(0, 512, MIN, false)]);
        assert_eq!(planned(vec![(0, of(&[aligned(MIN - 4096)]))]), [(0, 0, MIN - 4096, false)]);
        assert_eq!(
            planned(vec![(0, of(&[aligned(MIN), aligned(100)]))]),
            [(0, 0, MIN, true), (0, MIN as u64, 100, false)]
        );
        let shifted = aligned(MIN + 4096).slice(100..100 + MIN);
        assert_eq!(planned(vec![(0, of(&[shifted]))]), [(0, 0, MIN, false)]);
        let unaligned_start = of(&[aligned(4096 * 2 + MIN).slice(4000..)]);
        assert_eq!(planned(vec![(4000, unaligned_start)]), [(0, 4000, 96, false), (0, 4096, MIN + 4096, true)]);
    }

    #[test]
    fn neighbours_are_written_together_and_parts_apart() {
        let data = |len: usize| Payload::zeroes(len);
        assert_eq!(
            planned(vec![(100, data(50)), (150, data(50)), (201, data(9))]),
            [(0, 100, 100, false), (0, 201, 9, false)]
        );
        let border = crate::REGION_BYTES;
        assert_eq!(planned(vec![(border - 10, data(30))]), [(0, border - 10, 10, false), (1, border, 20, false)]);
        assert_eq!(planned(vec![(7, Payload::new())]), []);
    }

    #[test]
    fn short_pieces_meet_their_neighbours_in_the_page_cache_before_a_moving_head() {
        let direct = |len: usize, gathering| {
            let data = || Payload::from(bytes::Bytes::from(AlignedBuf::zeroed(len)));
            let extents = vec![(0, data()), (8 * len as u64, data())];
            pieces(extents, Parts::new(1), gathering).iter().map(|p| p.direct).collect::<Vec<_>>()
        };
        assert_eq!(direct(1 << 20, Gathering::STILL), [true, true]);
        assert_eq!(direct(1 << 20, Gathering::MOVING), [false, false]);
        assert_eq!(direct(4 << 20, Gathering::MOVING), [true, true]);
        assert_eq!(direct(4 << 20, Gathering::MOVING.all()), [false, false]);
    }
}
