//! Read requests under way whose replies will be cached: an index of the bytes that each will bring, so that no byte is
//! requested twice, and the rules that turn many missing ranges into few requests.

use super::spans::{Span, SpanMap, common};
use std::collections::BTreeMap;
use std::ops::Range;

/// Missing ranges go into one extent of a request if no more cached bytes than these lie between them: one page more
/// costs less than one extent more.
const JOIN_MAX: u64 = 4096;
/// Most fills of one object that may be under way.
pub(crate) const FILLS_MAX: usize = 256;
/// No further fill of an object begins while this many bytes are under way.
pub(crate) const FILL_BYTES_MAX: u64 = 256 << 20;

/// A read request under way whose reply will be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FillTicket(u64);

impl Span for FillTicket {
    fn split_off(&mut self, _: u64) -> FillTicket {
        *self
    }
}

/// Limits of one read request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillLimits {
    /// Bytes. A stream's requests end at multiples of this.
    pub(crate) max_bytes: u64,
    pub(crate) max_extents: usize,
}

/// A read request to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FillRequest {
    /// Goes to `ObjectCache::fill` or `abandon_fill`, however the request ends.
    pub(crate) ticket: FillTicket,
    /// Extents to request from the server: ascending, not overlapping, none empty.
    pub(crate) extents: Vec<Range<u64>>,
    /// Parts of the extents that the cache lacks. The cache has newer bytes for the other parts.
    pub(crate) holes: Vec<Range<u64>>,
}

/// Outcome of a look for missing ranges.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Requests to be sent.
    pub(crate) requests: Vec<FillRequest>,
    /// Parts that other fills will bring, or for which no fill may begin now.
    pub(crate) open: Vec<Range<u64>>,
}

/// The extents of a fill that ended, and the parts whose bytes are still wanted.
type EndedFill = (Vec<Range<u64>>, Vec<Range<u64>>);

/// The fills of one object.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    /// Bytes that the cache will take from each reply. Ranges written, truncated or dropped meanwhile are cut out.
    coming: SpanMap<FillTicket>,
    /// Extents of each fill under way.
    under_way: BTreeMap<FillTicket, Vec<Range<u64>>>,
    /// Sum of the extents of all fills.
    bytes: u64,
    last: u64,
}

impl Fills {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Number of fills under way, and their bytes.
    pub(crate) fn count_and_bytes(&self) -> (usize, u64) {
        (self.under_way.len(), self.bytes)
    }

    /// The parts of the range that no fill will bring, ascending.
    pub(crate) fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.coming.gaps(range)
    }

    /// The fill that a reader of the range should wait for: one that brings part of the range, or else the oldest one.
    pub(crate) fn awaited(&self, range: &Range<u64>) -> Option<FillTicket> {
        let first = self.coming.overlapping(range).next().map(|(_, ticket)| *ticket);
        assert!(
            first.is_none_or(|t| self.under_way.contains_key(&t)),
            "{first:?} has ended, and is to bring {range:?}"
        );
        first.or_else(|| self.under_way.first_key_value().map(|(ticket, _)| *ticket))
    }

    /// Bytes of the range will not be taken from any reply.
    pub(crate) fn spoil(&mut self, range: &Range<u64>) {
        self.coming.cut(range);
    }

    /// True if no fill will bring bytes of the range.
    pub(crate) fn is_apart_from(&self, range: &Range<u64>) -> bool {
        !self.coming.overlaps(range)
    }

    /// Panics if the sum differs from that over all fills, or if bytes are expected from a fill that has ended. Visits
    /// every fill.
    pub(crate) fn assert_sound(&self) {
        assert_eq!(self.bytes, self.under_way.values().map(|extents| sum(extents)).sum::<u64>(), "bytes under way");
        for (part, ticket) in self.coming.iter() {
            let extents = self.under_way.get(ticket);
            let is_of_it = extents.is_some_and(|e| e.iter().any(|e| e.start <= part.start && part.end <= e.end));
            assert!(is_of_it, "{part:?} is to come with {ticket:?}, which asks for {extents:?}");
        }
    }

    /// Begins a fill, which will bring the parts `coming` of its extents.
    fn begin(&mut self, extents: Vec<Range<u64>>, coming: Vec<Range<u64>>) -> FillTicket {
        self.last += 1;
        let ticket = FillTicket(self.last);
        self.bytes += sum(&extents);
        assert!(extents.is_sorted_by(|a, b| a.end <= b.start), "{extents:?} ask twice for the same bytes");
        coming.into_iter().for_each(|part| self.coming.insert(part, ticket));
        self.under_way.insert(ticket, extents);
        ticket
    }

    /// Ends a fill. Returns its extents, and the parts whose bytes are still wanted. Each fill ends once.
    pub(crate) fn end(&mut self, ticket: FillTicket) -> EndedFill {
        let Some(extents) = self.under_way.remove(&ticket) else {
            panic!("{ticket:?} is not under way, or ended before")
        };
        let bytes = sum(&extents);
        assert!(bytes <= self.bytes, "{ticket:?} had {bytes} bytes under way, all have {}", self.bytes);
        self.bytes -= bytes;
        let of_this =
            |extent| self.coming.overlapping(extent).filter(move |(_, t)| **t == ticket).map(|(part, _)| part);
        let parts: Vec<_> = extents.iter().flat_map(of_this).collect();
        for part in &parts {
            let _ = self.coming.remove(part.start);
        }
        assert!(!self.under_way.is_empty() || self.coming.is_empty(), "{:?} is to come with nothing", self.coming);
        assert_eq!(self.under_way.is_empty(), self.bytes == 0, "{} bytes under way", self.bytes);
        (extents, parts)
    }

    /// Begins fills for holes, as far as there is room. The holes of one list lie in a range that the caller may read as
    /// a whole. Holes that overlap `unsure` are requested, but their bytes will not be kept there.
    pub(crate) fn begin_all<W>(
        &mut self,
        holes: impl IntoIterator<Item = Vec<Range<u64>>>,
        unsure: &SpanMap<W>,
        limits: FillLimits,
    ) -> Wanted {
        let mut wanted = Wanted::default();
        for draft in draft(holes, limits) {
            if self.under_way.len() >= FILLS_MAX || self.bytes >= FILL_BYTES_MAX {
                wanted.open.extend(draft.holes);
                continue;
            }
            let coming = draft.holes.iter().flat_map(|hole| unsure.gaps(hole)).collect();
            assert_eq!(draft.bytes, sum(&draft.extents), "bytes of the request {draft:?}");
            assert!(
                draft.bytes <= limits.max_bytes && draft.extents.len() <= limits.max_extents,
                "{draft:?}, {limits:?}"
            );
            let ticket = self.begin(draft.extents.clone(), coming);
            wanted.requests.push(FillRequest { ticket, extents: draft.extents, holes: draft.holes });
        }
        wanted
    }
}

/// A request under construction.
#[derive(Debug, Default)]
struct Draft {
    extents: Vec<Range<u64>>,
    holes: Vec<Range<u64>>,
    bytes: u64,
}

impl Draft {
    /// Adds a piece, if it fits. `joins`: the request may also read the bytes between the last piece and this one.
    fn add(&mut self, piece: &Range<u64>, joins: bool, limits: FillLimits) -> bool {
        let (room, may_extend) = (limits.max_bytes - self.bytes, self.extents.len() < limits.max_extents);
        match self.extents.last_mut() {
            Some(last) if joins && piece.start - last.end <= JOIN_MAX && piece.end - last.end <= room => {
                self.bytes += piece.end - last.end;
                last.end = piece.end;
            }
            _ if may_extend && piece.end - piece.start <= room => {
                self.bytes += piece.end - piece.start;
                self.extents.push(piece.clone());
            }
            _ => return false,
        }
        self.holes.push(piece.clone());
        true
    }
}

fn draft(holes: impl IntoIterator<Item = Vec<Range<u64>>>, limits: FillLimits) -> Vec<Draft> {
    assert!(limits.max_bytes > 0 && limits.max_extents > 0, "{limits:?}");
    let (mut done, mut draft) = (Vec::new(), Draft::default());
    for list in holes {
        let mut joins = false;
        for hole in list {
            let mut at = hole.start;
            while at < hole.end {
                let end = (at / limits.max_bytes + 1).saturating_mul(limits.max_bytes).min(hole.end);
                if !draft.add(&(at..end), joins, limits) {
                    done.push(std::mem::take(&mut draft));
                    assert!(draft.add(&(at..end), false, limits), "a piece fits into a request of its own");
                }
                (at, joins) = (end, true);
            }
        }
    }
    done.push(draft);
    done.retain(|draft| !draft.holes.is_empty());
    done
}

/// The bytes of `part` in a reply, fewer if the object ends within it. `data` has the bytes of each of `extents`.
pub(crate) fn part_of<'a, D>(
    extents: &[Range<u64>],
    data: &'a [D],
    part: &Range<u64>,
    len: impl Fn(&D) -> u64,
) -> Option<(&'a D, Range<u64>)> {
    assert_eq!(extents.len(), data.len(), "a reply for each of {extents:?}");
    let at = extents.partition_point(|extent| extent.end <= part.start);
    let is_asked = extents.get(at).is_some_and(|extent| extent.start <= part.start && part.end <= extent.end);
    assert!(is_asked, "{part:?} was not asked for with {extents:?}");
    let (extent, data) = (&extents[at], &data[at]);
    let known = extent.start..extent.start.saturating_add(len(data)).min(extent.end);
    common(part, &known).map(|known| (data, known.start - extent.start..known.end - extent.start))
}

fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::size::MIB;

    const LIMITS: FillLimits = FillLimits { max_bytes: 4 * MIB, max_extents: 256 };

    fn begin(fills: &mut Fills, holes: &[Range<u64>]) -> Wanted {
        fills.begin_all([holes.to_vec()], &SpanMap::<FillTicket>::default(), LIMITS)
    }

    #[test]
    fn a_stream_is_asked_for_in_aligned_requests() {
        let wanted = begin(&mut Fills::default(), &[MIB..13 * MIB]);
        let extents: Vec<_> = wanted.requests.iter().map(|r| r.extents.clone()).collect();
        assert_eq!(
            extents,
            [vec![MIB..4 * MIB], vec![4 * MIB..8 * MIB], vec![8 * MIB..12 * MIB], vec![12 * MIB..13 * MIB]]
        );
    }

    #[test]
    fn pages_with_a_few_bytes_each_are_one_extent_and_records_far_apart_one_request() {
        let pages: Vec<_> = (0..1024).map(|i| i * 4096 + 8..(i + 1) * 4096).collect();
        let wanted = begin(&mut Fills::default(), &pages);
        assert_eq!(wanted.requests[0].extents, [8..4 * MIB]);
        assert_eq!((wanted.requests.len(), wanted.requests[0].holes.len()), (1, 1024));
        let records: Vec<_> = (0..80).map(|i| i * 188_032..i * 188_032 + 47_008).collect();
        let wanted = begin(&mut Fills::default(), &records);
        assert_eq!(wanted.requests.len(), 1);
        assert_eq!(
            wanted.requests.iter().flat_map(|r| r.holes.clone()).map(|h| h.end - h.start).sum::<u64>(),
            80 * 47_008
        );
    }

    #[test]
    fn what_is_between_two_ranges_is_not_read() {
        let none = SpanMap::<FillTicket>::default();
        let wanted = Fills::default().begin_all([vec![0..100], vec![200..300]], &none, LIMITS);
        assert_eq!(wanted.requests[0].extents, [0..100, 200..300]);
    }

    #[test]
    fn fills_are_bounded() {
        let mut fills = Fills::default();
        let wanted = begin(&mut fills, &[0..1 << 40]);
        assert_eq!(fills.count_and_bytes(), (64, FILL_BYTES_MAX));
        assert_eq!(wanted.open.first().map(|r| r.start), Some(FILL_BYTES_MAX));
        let mut fills = Fills::default();
        let small = FillLimits { max_extents: 1, ..LIMITS };
        let holes: Vec<_> = (0..300).map(|i| i * 10_000..i * 10_000 + 1).collect();
        let wanted = fills.begin_all([holes], &SpanMap::<FillTicket>::default(), small);
        assert_eq!((fills.count_and_bytes().0, wanted.open.len()), (FILLS_MAX, 44));
        let first = wanted.requests[0].ticket;
        assert_eq!(fills.awaited(&wanted.open[0]), Some(first), "somebody's end makes room");
    }
}
