//! Chooses dirty bytes for the next write RPC: whole aligned RPCs where there are any, otherwise as many records as fit,
//! in the order of an elevator.

use super::charge::{BLOCK_BYTES, DirtySet};
use super::outgoing::FlushWanted;
use super::spans::{SpanMap, common};
use nacre_base::Time;
use std::ops::Range;

/// The search for a full RPC ends after this many extents, because it runs after every write.
const LOOK_MAX: usize = 512;

/// Picks bytes only where no write is under way: two writes to the same place could overtake each other.
pub(crate) struct Picker<'a, W> {
    pub(crate) dirty: &'a DirtySet,
    pub(crate) writing: &'a SpanMap<W>,
    pub(crate) wanted: &'a FlushWanted<'a>,
    pub(crate) now: Time,
}

/// Result of [`Picker::pick`].
pub(crate) enum Pick {
    /// Write these: ascending, disjoint.
    Write(Vec<Range<u64>>),
    /// Nothing to write. The fullest candidate had `best` bytes; the next search begins at `next`.
    Nothing { best: u64, next: u64 },
}

impl<W> Picker<'_, W> {
    /// Searches from `cursor` on, and then from the beginning.
    pub(crate) fn pick(&self, cursor: u64) -> Pick {
        let wanted = self.wanted;
        if wanted.max_bytes == 0 || wanted.max_extents == 0 {
            return Pick::Nothing { best: 0, next: cursor };
        }
        let mut gather = Gather { wanted, extents: Vec::new(), bytes: 0, is_full: false };
        let mut best = 0;
        for (seen, extent) in self.eligible(cursor..u64::MAX).chain(self.eligible(0..cursor)).enumerate() {
            if wanted.only_full && seen == LOOK_MAX {
                return Pick::Nothing { best: wanted.max_bytes, next: extent.start };
            }
            if let Some(whole) = whole_rpc(&extent, wanted.max_bytes) {
                return Pick::Write(vec![whole]);
            }
            if gather.extents.len() == wanted.max_extents {
                if !wanted.only_full {
                    break;
                }
                best = best.max(gather.bytes);
                gather = Gather { wanted, extents: Vec::new(), bytes: 0, is_full: false };
            }
            gather.add(extent);
            if gather.is_full {
                break;
            }
        }
        if gather.extents.is_empty() || (wanted.only_full && !gather.is_full) {
            return Pick::Nothing { best: best.max(gather.bytes), next: cursor };
        }
        Pick::Write(gather.finish())
    }

    fn eligible(&self, part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let windows: Box<dyn Iterator<Item = Range<u64>>> = match self.wanted.within {
            None => Box::new(std::iter::once(part)),
            Some(within) => {
                let first = within.partition_point(|e| e.end < part.start);
                let ranges = within[first..].iter().map(|e| e.start..e.end.saturating_add(1));
                Box::new(
                    ranges
                        .take_while({
                            let end = part.end;
                            move |r| r.start < end
                        })
                        .filter_map(move |r| common(&r, &part)),
                )
            }
        };
        windows.flat_map(move |window| {
            let old = |since: Time| self.now.since(since) >= self.wanted.min_age;
            let runs = self.dirty.runs().overlapping(&window).filter(move |(_, since)| old(**since));
            runs.filter_map(move |(run, _)| common(&run, &window)).flat_map(|run| self.writing.gaps(&run))
        })
    }
}

/// Extents that may go into one RPC.
struct Gather<'a> {
    wanted: &'a FlushWanted<'a>,
    extents: Vec<Range<u64>>,
    bytes: u64,
    /// True if nothing more fits.
    is_full: bool,
}

impl Gather<'_> {
    fn add(&mut self, extent: Range<u64>) {
        let room = self.wanted.max_bytes - self.bytes;
        let end = if extent.end - extent.start <= room { extent.end } else { self.cut(&extent, room) };
        self.is_full = extent.end - extent.start >= room;
        if end > extent.start {
            self.bytes += end - extent.start;
            self.extents.push(extent.start..end);
        }
    }

    /// Where to end an extent that does not fit: at the end of an aligned RPC, so that the next one will be whole, or
    /// at least of a block.
    fn cut(&self, extent: &Range<u64>, room: u64) -> u64 {
        let most = extent.start + room;
        let aligned = [self.wanted.max_bytes, BLOCK_BYTES].map(|unit| most - most % unit);
        let end = aligned.into_iter().find(|end| *end > extent.start);
        end.unwrap_or(if self.extents.is_empty() { most } else { extent.start })
    }

    fn finish(mut self) -> Vec<Range<u64>> {
        // This stream began at any offset; end the RPC so that the next ones are aligned.
        if let [only] = self.extents.as_mut_slice()
            && self.wanted.only_full
        {
            let end = only.end - only.end % self.wanted.max_bytes;
            only.end = if end > only.start { end } else { only.end };
        }
        // The extents from before the cursor were found last.
        self.extents.sort_unstable_by_key(|e| e.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(self.extents.len());
        for extent in self.extents {
            match merged.last_mut() {
                Some(last) if last.end == extent.start => last.end = extent.end,
                _ => merged.push(extent),
            }
        }
        merged
    }
}

/// The first aligned RPC of `size` bytes that is all in the extent.
fn whole_rpc(extent: &Range<u64>, size: u64) -> Option<Range<u64>> {
    let start = extent.start.checked_next_multiple_of(size)?;
    (start.checked_add(size)? <= extent.end).then(|| start..start + size)
}
