//! Which bytes of an object are dirty, and how much grant is kept for them: a whole block for each block with a dirty
//! byte. When only a part of a block's dirty bytes is written, the server takes exactly these from the grant, so the
//! rest of the block's charge stays with the bytes that stay dirty: a *partial* block.
//!
//! The grant that is kept is never less than the dirty bytes.

use super::outgoing::Dirty;
use super::spans::{Span, SpanMap, common};
use nacre_base::Time;
use std::collections::BTreeMap;
use std::ops::Range;

/// Unit in which grant is kept.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Dirty bytes, as runs, and their charge.
#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    /// Maximal runs, each with a time at or before which its first byte became dirty.
    runs: SpanMap<Time>,
    /// For each block charged less than a whole block: the difference. Such a block still has dirty bytes.
    partial: BTreeMap<u64, u64>,
    bytes: u64,
    charge: u64,
}

impl Span for Time {
    fn split_off(&mut self, _: u64) -> Time {
        *self
    }
}

impl DirtySet {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn charge(&self) -> u64 {
        self.charge
    }

    pub(crate) fn runs(&self) -> &SpanMap<Time> {
        &self.runs
    }

    /// Charge that [`DirtySet::add`] would add for the range.
    pub(crate) fn needed(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let blocks = range.start / BLOCK_BYTES..(range.end - 1) / BLOCK_BYTES + 1;
        let bytes = blocks.start * BLOCK_BYTES..blocks.end.saturating_mul(BLOCK_BYTES);
        let (mut clean, mut next) = (blocks.end - blocks.start, blocks.start);
        for (run, _) in self.runs.overlapping(&bytes) {
            let end = ((run.end - 1) / BLOCK_BYTES + 1).min(blocks.end);
            let start = next.max(run.start / BLOCK_BYTES);
            clean -= end.saturating_sub(start);
            next = next.max(end);
        }
        clean * BLOCK_BYTES + self.partial.range(blocks).map(|(_, less)| less).sum::<u64>()
    }

    /// Marks the range dirty. Returns the charge added for it.
    pub(crate) fn add(&mut self, range: &Range<u64>, now: Time) -> u64 {
        let charge = self.needed(range);
        self.charge += charge;
        let blocks = range.start / BLOCK_BYTES..(range.end - 1) / BLOCK_BYTES + 1;
        if !self.partial.is_empty() {
            self.partial.extract_if(blocks, |_, _| true).for_each(drop);
        }
        self.add_run(range, now);
        self.assert_counted();
        charge
    }

    /// Removes the dirty bytes of the range, with their charge, because a flush takes them.
    pub(crate) fn take(&mut self, range: &Range<u64>) -> Dirty {
        self.remove(range, |set, block, bytes| {
            if set.is_dirty(block) {
                let less = set.partial.entry(block).or_default();
                *less += bytes;
                assert!(*less < BLOCK_BYTES, "block {block} has dirty bytes, and {less} less than its charge");
                bytes
            } else {
                BLOCK_BYTES - set.partial.remove(&block).unwrap_or(0)
            }
        })
    }

    /// Removes the dirty bytes of the range, because they are dropped.
    pub(crate) fn forget(&mut self, range: &Range<u64>) -> Dirty {
        self.remove(
            range,
            |set, block, _| {
                if set.is_dirty(block) { 0 } else { BLOCK_BYTES - set.partial.remove(&block).unwrap_or(0) }
            },
        )
    }

    /// Removes the dirty bytes of the range run by run. `edge` returns the charge that goes with a block that the run
    /// covers only in part.
    fn remove(&mut self, range: &Range<u64>, mut edge: impl FnMut(&mut DirtySet, u64, u64) -> u64) -> Dirty {
        let parts: Vec<_> = self.runs.overlapping(range).filter_map(|(run, _)| common(&run, range)).collect();
        let mut removed = Dirty::default();
        for part in parts {
            self.runs.cut(&part);
            removed.bytes += part.end - part.start;
            for (block, bytes) in whole_and_edges(&part, &mut removed.charge) {
                removed.charge += edge(self, block, bytes);
            }
        }
        assert!(removed.bytes <= self.bytes && removed.charge <= self.charge, "{removed:?} of {self:?}");
        self.bytes -= removed.bytes;
        self.charge -= removed.charge;
        self.assert_counted();
        removed
    }

    fn add_run(&mut self, range: &Range<u64>, now: Time) {
        let (mut run, mut since) = (range.clone(), now);
        for (cut, then) in self.runs.cut(range) {
            let again = cut.end - cut.start;
            assert!(again <= self.bytes, "{again} bytes are written again of {}", self.bytes);
            self.bytes -= again;
            since = since.min(then);
        }
        self.bytes += range.end - range.start;
        if let Some((after, then)) = self.runs.remove(range.end) {
            run.end = after.end;
            since = since.min(then);
        }
        match self.runs.last_from(range.start) {
            Some((before, then)) if before.end == range.start => {
                *then = since.min(*then);
                self.runs.set_end(before.start, run.end);
            }
            _ => self.runs.insert(run, since),
        }
    }

    /// Panics unless the charge is at least the dirty bytes, and is 0 exactly when no byte is dirty.
    fn assert_counted(&self) {
        assert!(self.bytes <= self.charge, "{} bytes are dirty for a charge of {}", self.bytes, self.charge);
        let (none, no_charge) = (self.bytes == 0, self.charge == 0);
        assert!(none == no_charge && none == self.runs.is_empty(), "{} bytes, charge {}", self.bytes, self.charge);
        assert!(!none || self.partial.is_empty(), "blocks without dirty bytes are partial: {:?}", self.partial);
    }

    /// Panics if the counts differ from those over all runs. Visits every run.
    pub(crate) fn assert_sound(&self) {
        self.assert_counted();
        let (mut bytes, mut blocks, mut next) = (0, 0, 0);
        for (run, _) in self.runs.iter() {
            bytes += run.end - run.start;
            let (first, end) = (run.start / BLOCK_BYTES, (run.end - 1) / BLOCK_BYTES + 1);
            blocks += end - first.max(next);
            next = end;
        }
        assert_eq!(bytes, self.bytes, "dirty bytes, of the runs and as counted");
        let less: u64 = self.partial.values().sum();
        assert_eq!(
            blocks * BLOCK_BYTES,
            self.charge + less,
            "charge of {blocks} blocks, {less} of it gone with flushes"
        );
        assert!(self.partial.keys().all(|block| self.is_dirty(*block)), "clean blocks are partial: {:?}", self.partial);
    }

    fn is_dirty(&self, block: u64) -> bool {
        self.runs.overlaps(&(block * BLOCK_BYTES..(block + 1).saturating_mul(BLOCK_BYTES)))
    }
}

/// Adds the charge of the blocks that lie wholly in the range, and returns the other blocks (two at most) with the number
/// of their bytes that the range has.
fn whole_and_edges(range: &Range<u64>, charge: &mut u64) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (first, last) = (range.start / BLOCK_BYTES, (range.end - 1) / BLOCK_BYTES);
    let bytes_in = |block: u64| range.end.min((block + 1) * BLOCK_BYTES) - range.start.max(block * BLOCK_BYTES);
    let edges = [Some(first), (last != first).then_some(last)].map(|block| {
        let block = block?;
        Some((block, bytes_in(block)))
    });
    let edges = edges.map(|edge| edge.filter(|(_, bytes)| *bytes < BLOCK_BYTES));
    *charge += (last - first + 1 - edges.iter().flatten().count() as u64) * BLOCK_BYTES;
    edges.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = BLOCK_BYTES;

    #[test]
    fn a_block_is_charged_once_however_often_it_is_written() {
        let mut set = DirtySet::default();
        assert_eq!(set.add(&(0..100), Time::ZERO), B);
        assert_eq!(set.add(&(100..200), Time::ZERO), 0);
        assert_eq!(set.add(&(4000..4100), Time::ZERO), B);
        assert_eq!(set.add(&(300..3 * B), Time::ZERO), B);
        assert_eq!((set.bytes(), set.charge()), (200 + 3 * B - 300, 3 * B));
    }

    #[test]
    fn what_a_flush_takes_of_a_block_is_taken_of_its_charge() {
        let mut set = DirtySet::default();
        set.add(&(0..1000), Time::ZERO);
        assert_eq!(set.take(&(0..400)), Dirty { bytes: 400, charge: 400 });
        assert_eq!(set.charge(), B - 400);
        assert_eq!(set.take(&(0..B)), Dirty { bytes: 600, charge: B - 400 });
        assert_eq!((set.bytes(), set.charge()), (0, 0));
    }

    #[test]
    fn a_partly_flushed_block_that_is_written_again_is_charged_in_full() {
        let mut set = DirtySet::default();
        set.add(&(0..1000), Time::ZERO);
        set.take(&(0..400));
        assert_eq!(set.needed(&(0..10)), 400);
        assert_eq!(set.add(&(0..10), Time::ZERO), 400);
        assert_eq!(set.forget(&(0..u64::MAX)), Dirty { bytes: 610, charge: B });
    }
}
