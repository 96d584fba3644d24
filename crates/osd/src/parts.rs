//! The places of an object's data: the part that each byte belongs to, and the data that bypasses the page cache.
//!
//! A file has one lock for all its writers, and one file is slower than the disks below it. So an object's data is
//! spread over several files, its *parts*: regions of [`REGION_BYTES`] go to the parts in turn, each byte at the same
//! offset in its part as in the object. Part 0 has the first region, so that a small object is one file.

use nacre_base::buf::DIRECT_IO_ALIGNMENT;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that are together in one part. Frozen: it decides where data is found.
pub const REGION_BYTES: u64 = 4 << 20;

/// An object has at most this many parts.
pub const PARTS_MAX: u32 = 8;

/// Reads of fewer bytes go through the page cache, and so do writes on disks without a moving head: copying is cheaper
/// than waiting for the disk.
pub(crate) const DIRECT_MIN: u64 = 128 * 1024;
const _: () = assert!(REGION_BYTES.is_multiple_of(DIRECT_IO_ALIGNMENT as u64), "a cut between parts is one of blocks");
const _: () = assert!(PARTS_MAX <= u32::BITS, "a set of parts is a number with a bit for each");

/// Decides which writes go straight to the medium, and in which runs the others reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathering {
    /// Least bytes of neighbouring whole blocks in one write that go straight to the medium.
    pub(crate) direct_min: u64,
    /// Data in the page cache is written back in aligned runs of so many bytes, each when it is whole.
    pub(crate) run_bytes: u64,
}

impl Gathering {
    /// For a medium on which the place of data does not matter.
    pub(crate) const STILL: Gathering = Gathering { direct_min: DIRECT_MIN, run_bytes: REGION_BYTES };

    /// For a disk with a moving head. Records of several writers are joined in the page cache: compared to the transfer
    /// of a run the seek to it is short, 3 % of the time with a seek of 8 ms and 220 MB a second. A lone writer's full
    /// requests of the usual size follow each other, and go straight to the disk.
    pub(crate) const MOVING: Gathering = Gathering { direct_min: 4 << 20, run_bytes: 64 << 20 };

    /// Everything goes through the page cache.
    pub(crate) const fn all(self) -> Gathering {
        Gathering { direct_min: u64::MAX, ..self }
    }

    /// The part of a range that goes straight to the medium: whole blocks, if they are worth it; empty if not.
    pub(crate) fn direct_middle(self, range: &Range<u64>) -> Range<u64> {
        let block = DIRECT_IO_ALIGNMENT as u64;
        let (start, end) = (range.start.next_multiple_of(block), range.end / block * block);
        if end.saturating_sub(start) >= self.direct_min { start..end } else { range.start..range.start }
    }
}

/// Number of parts that objects have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts(u32);

impl Parts {
    /// `count` parts, limited to 1 to [`PARTS_MAX`].
    pub(crate) fn new(count: u32) -> Parts {
        Parts(count.clamp(1, PARTS_MAX))
    }

    /// Number of parts.
    pub(crate) fn count(self) -> usize {
        self.0 as usize
    }

    /// The part that the byte at `offset` belongs to.
    pub(crate) fn of(self, offset: u64) -> usize {
        (offset / REGION_BYTES % u64::from(self.0)) as usize
    }

    /// Cuts a range where another part begins, in order.
    pub(crate) fn split(self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let start = at;
            at = self.region_end(start).min(range.end);
            (start < range.end).then(|| (self.of(start), start..at))
        })
    }

    /// The first byte after the one at `offset` that belongs to another part.
    pub(crate) fn region_end(self, offset: u64) -> u64 {
        if self.0 == 1 { u64::MAX } else { (offset / REGION_BYTES + 1).saturating_mul(REGION_BYTES) }
    }

    /// The parts that a range touches.
    pub(crate) fn touched(self, range: &Range<u64>) -> PartSet {
        self.split(range.clone()).take(self.count()).map(|(part, _)| part).collect()
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartSet(u32);

impl PartSet {
    /// Only part 0, which every object has.
    pub(crate) const FIRST: PartSet = PartSet(1);

    /// The parts in the set, in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..PARTS_MAX as usize).filter(move |part| self.0 & 1 << part != 0)
    }
}

impl FromIterator<usize> for PartSet {
    fn from_iter<I: IntoIterator<Item = usize>>(parts: I) -> PartSet {
        PartSet(parts.into_iter().fold(0, |set, part| set | 1 << part))
    }
}

/// Tracks which runs of an object were written whole through the page cache, by records of any size and order, so that
/// they can be written back in one piece, and before a commit has to wait for them. It counts bytes, so data that is
/// written twice makes it a little early.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Bytes written to each run that is not whole.
    written: BTreeMap<u64, u64>,
}

/// Most runs whose bytes are counted; further runs are written back by the next commit.
const FILLING_MAX: usize = 4096;

impl Filling {
    /// A range was written. Returns the runs of `run_bytes` that are whole now.
    pub(crate) fn handle_written(&mut self, range: &Range<u64>, run_bytes: u64) -> Vec<Range<u64>> {
        let mut whole = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let run = at / run_bytes;
            let (start, end) = (run * run_bytes, (run + 1) * run_bytes);
            let written = self.written.entry(run).or_insert(0);
            *written += range.end.min(end) - at;
            if *written >= run_bytes {
                self.written.remove(&run);
                whole.push(start..end);
            }
            at = end;
        }
        if self.written.len() > FILLING_MAX {
            self.written.pop_first();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_whole_when_its_last_record_has_come() {
        const RUN: u64 = 16 << 20;
        let mut filling = Filling::default();
        let record = |n: u64| n * 47_008..(n + 1) * 47_008;
        let order = (0..800).step_by(2).chain((1..800).step_by(2));
        let whole: Vec<_> =
            order.flat_map(|n| filling.handle_written(&record(n), RUN).into_iter().map(move |w| (n, w))).collect();
        assert_eq!(whole, [(355, 0..RUN), (713, RUN..2 * RUN)]);
        assert_eq!(filling.handle_written(&(5 * RUN..7 * RUN + 1), RUN), [5 * RUN..6 * RUN, 6 * RUN..7 * RUN]);
    }

    const R: u64 = REGION_BYTES;

    #[test]
    fn regions_go_to_the_parts_in_turn() {
        let parts = Parts::new(8);
        let pieces: Vec<_> = parts.split(R - 1..3 * R).collect();
        assert_eq!(pieces, [(0, R - 1..R), (1, R..2 * R), (2, 2 * R..3 * R)]);
        assert_eq!((parts.of(8 * R), parts.of(15 * R + 7)), (0, 7));
        assert_eq!(parts.touched(&(R..2 * R + 1)).iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(parts.touched(&(0..1 << 60)).iter().count(), 8);
        assert_eq!(parts.split(5..5).count(), 0);
        assert_eq!(parts.split(u64::MAX - 1..u64::MAX).count(), 1);
        assert_eq!(Parts::new(1).split(3..1 << 50).collect::<Vec<_>>(), [(0, 3..1 << 50)]);
    }

    #[test]
    fn large_aligned_middles_go_straight_to_the_disk() {
        let direct_middle = |range: &Range<u64>| Gathering::STILL.direct_middle(range);
        assert_eq!(direct_middle(&(0..DIRECT_MIN)), 0..DIRECT_MIN);
        assert_eq!(direct_middle(&(1..DIRECT_MIN + 8191)), 4096..DIRECT_MIN + 4096);
        assert_eq!(direct_middle(&(R..2 * R + 5)), R..2 * R);
        assert_eq!(Gathering::MOVING.direct_middle(&(R..2 * R + 5)), R..2 * R);
        assert!(Gathering::MOVING.direct_middle(&(R + 4096..2 * R)).is_empty());
        assert!(Gathering::STILL.all().direct_middle(&(0..1 << 40)).is_empty());
        for small in [0..DIRECT_MIN - 1, 1..DIRECT_MIN + 4095, 100..47_108] {
            assert!(direct_middle(&small).is_empty(), "{small:?}");
        }
    }
}
