//! The cache as a specification, and against a model: an array of bytes with a state for each.

use super::*;
use crate::cache::charge::BLOCK_BYTES;
use crate::cache::fills::FillRequest;
use nacre_base::Prng;
use nacre_base::size::{GIB, KIB, MIB};

const NOW: Time = Time::ZERO;
const LATER: Time = Time::from_secs(1000);

fn bytes(len: u64, value: u8) -> Payload {
    Payload::from(vec![value; len as usize])
}

fn wanted(max_bytes: u64) -> FlushWanted<'static> {
    FlushWanted { max_bytes, max_extents: 256, within: None, only_full: false, min_age: Duration::ZERO }
}

fn extents(flush: &Flush) -> Vec<Range<u64>> {
    flush.extents.iter().map(|(offset, data)| *offset..offset + data.len() as u64).collect()
}

fn hit(cache: &mut ObjectCache, range: Range<u64>) -> Option<Vec<u8>> {
    match cache.read(range.start, range.end - range.start, NOW).as_slice() {
        [Piece::Hit(data)] => Some(data.to_bytes().to_vec()),
        _ => None,
    }
}

const FILL_LIMITS: FillLimits = FillLimits { max_bytes: 1 << 50, max_extents: 256 };

/// Begins to fetch the missing parts of a range, in one request.
fn begin_fill(cache: &mut ObjectCache, range: Range<u64>) -> FillRequest {
    let [request] = cache.begin_fills(&[vec![range]], FILL_LIMITS).requests.try_into().unwrap();
    request
}

/// Delivers the reply, of an object that has `value` up to `size`.
fn fill(cache: &mut ObjectCache, request: &FillRequest, value: u8, size: u64, now: Time) {
    let reply = |extent: &Range<u64>| bytes(extent.end.min(size).saturating_sub(extent.start), value);
    cache.fill(request.ticket, &request.extents.iter().map(reply).collect::<Vec<_>>(), now);
}

/// All bytes from an offset on.
fn from(start: u64) -> Extent {
    Extent { start, end: u64::MAX }
}

#[test]
fn a_large_write_is_shared_and_a_small_one_copied() {
    let mut cache = ObjectCache::default();
    let (large, small) = (bytes(MIB, 1), bytes(100, 2));
    cache.write(0, &large, NOW);
    cache.write(MIB, &small, NOW);
    let flush = cache.next_flush(&wanted(4 * MIB), NOW).unwrap();
    let pieces = flush.extents[0].1.pieces();
    assert_eq!(pieces[0].as_ptr(), large.pieces()[0].as_ptr());
    assert_ne!(pieces[1].as_ptr(), small.pieces()[0].as_ptr());
}

#[test]
fn a_million_small_appends_are_a_hundred_segments() {
    let mut cache = ObjectCache::default();
    for i in 0..1_000_000 {
        cache.write(i * 100, &bytes(100, i as u8), NOW);
    }
    assert!(cache.segments.len() <= 100, "{}", cache.segments.len());
    assert_eq!((cache.dirty_bytes(), cache.dirty.runs().len()), (100_000_000, 1));
    assert_eq!(hit(&mut cache, 99_999_850..99_999_950), Some([[62; 50], [63; 50]].concat()));
}

#[test]
fn a_stream_is_flushed_in_whole_aligned_rpcs() {
    let mut cache = ObjectCache::default();
    let full = FlushWanted { only_full: true, ..wanted(4 * MIB) };
    let mut seen = Vec::new();
    for i in 1..20 {
        cache.write(i * MIB, &bytes(MIB, 1), NOW);
        seen.extend(cache.next_flush(&full, NOW).map(|f| (i, extents(&f))));
    }
    let whole = |i: u64| vec![i * 4 * MIB..(i + 1) * 4 * MIB];
    assert_eq!(seen, [(4, vec![MIB..4 * MIB]), (7, whole(1)), (11, whole(2)), (15, whole(3)), (19, whole(4))]);
    assert!(cache.next_flush(&wanted(4 * MIB), NOW).is_none());
}

#[test]
fn scattered_records_go_together_in_ascending_order() {
    let mut cache = ObjectCache::default();
    for i in [5, 1, 4, 2, 3] {
        cache.write(i * 10_000, &bytes(1000, i as u8), NOW);
    }
    let few = FlushWanted { max_extents: 3, ..wanted(MIB) };
    assert!(cache.next_flush(&FlushWanted { only_full: true, ..few }, NOW).is_none());
    let first = cache.next_flush(&few, NOW).unwrap();
    assert_eq!(extents(&first), [10_000..11_000, 20_000..21_000, 30_000..31_000]);
    assert_eq!((first.bytes, first.extents[2].1.to_bytes()[0]), (3000, 3));
    cache.write(0, &bytes(1, 0), NOW);
    assert_eq!(extents(&cache.next_flush(&few, NOW).unwrap()), [0..1, 40_000..41_000, 50_000..51_000]);
}

#[test]
fn a_stream_among_many_records_is_found_soon() {
    let mut cache = ObjectCache::default();
    let full = FlushWanted { only_full: true, ..wanted(4 * MIB) };
    for i in 0..5000 {
        cache.write(i * 8192, &bytes(100, 1), NOW);
        assert!(cache.next_flush(&full, NOW).is_none());
    }
    let found = (0..20).find_map(|i| {
        cache.write(GIB + i * MIB, &bytes(MIB, 1), NOW);
        cache.next_flush(&full, NOW)
    });
    assert_eq!(extents(&found.expect("20 MiB of it")), [GIB..GIB + 4 * MIB]);
}

#[test]
fn dropping_clean_bytes_leaves_the_others() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(1000, 1), NOW);
    let flush = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.flushed(flush.ticket, FlushEnd::Written, NOW);
    cache.write(500, &bytes(100, 2), NOW);
    cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.write(700, &bytes(100, 3), NOW);
    let request = begin_fill(&mut cache, 900..1100);
    cache.drop_clean(&[Extent::ALL]);
    fill(&mut cache, &request, 9, 1100, NOW);
    assert_eq!(cache.missing(&(0..1100)), [0..500, 600..700, 800..1100]);
    assert_eq!((cache.clean_bytes(), cache.dirty_bytes(), cache.writing_bytes()), (0, 100, 100));
}

#[test]
fn a_flush_keeps_to_ranges_and_to_age() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(10_000, 1), NOW);
    cache.write(20_000, &bytes(100, 1), Time::from_secs(9));
    let range = |start, end| Extent { start, end };
    let within = [range(100, 199), range(5000, 5000), range(9990, 20_000)];
    let some = FlushWanted { within: Some(&within), ..wanted(MIB) };
    assert_eq!(extents(&cache.next_flush(&some, NOW).unwrap()), [100..200, 5000..5001, 9990..10_000, 20_000..20_001]);
    assert!(cache.next_flush(&some, NOW).is_none() && cache.is_busy_in(&within) && !cache.is_dirty_in(&within));
    let old = FlushWanted { min_age: Duration::from_secs(5), ..wanted(MIB) };
    assert_eq!(cache.oldest_dirty(), Some(NOW));
    let flush = cache.next_flush(&old, Time::from_secs(10)).unwrap();
    assert_eq!(extents(&flush), [0..100, 200..5000, 5001..9990]);
    assert_eq!((cache.dirty_bytes(), cache.oldest_dirty()), (99, Some(Time::from_secs(9))));
}

#[test]
#[should_panic(expected = "of the segments and as counted")]
fn bytes_that_no_segment_has_are_a_defect() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(1000, 1), NOW);
    let flush = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.flushed(flush.ticket, FlushEnd::Written, NOW);
    cache.clean_bytes += 1;
    cache.assert_sound();
}

#[test]
#[should_panic(expected = "or ended before")]
fn a_flush_ends_once() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(1000, 1), NOW);
    let flush = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.flushed(flush.ticket, FlushEnd::Written, NOW);
    cache.flushed(flush.ticket, FlushEnd::Written, NOW);
}

#[test]
fn bytes_on_their_way_are_not_overtaken() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(1000, 1), NOW);
    let first = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.write(500, &bytes(1000, 2), NOW);
    let second = cache.next_flush(&wanted(MIB), NOW).unwrap();
    assert_eq!(extents(&second), [1000..1500]);
    assert!(cache.next_flush(&wanted(MIB), NOW).is_none());
    assert_eq!(cache.flushed(first.ticket, FlushEnd::Written, NOW), 500);
    assert_eq!((cache.clean_bytes(), cache.writing_bytes(), cache.dirty_bytes()), (500, 500, 500));
    assert_eq!(extents(&cache.next_flush(&wanted(MIB), NOW).unwrap()), [500..1000]);
}

#[test]
fn a_failed_flush_is_dropped_except_where_it_was_overwritten() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(1000, 1), NOW);
    let flush = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.write(0, &bytes(100, 2), NOW);
    assert_eq!(cache.flushed(flush.ticket, FlushEnd::Lost, NOW), 900);
    assert_eq!((cache.dirty_bytes(), cache.dirty_charge()), (100, BLOCK_BYTES));
    assert_eq!(hit(&mut cache, 0..100), Some(vec![2; 100]));
    assert_eq!(cache.missing(&(0..1000)), [Range { start: 100, end: 1000 }]);
}

#[test]
fn a_fill_brings_nothing_older_than_what_was_written() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(10, 1), NOW);
    let request = begin_fill(&mut cache, 0..100);
    cache.write(50, &bytes(10, 1), NOW);
    cache.drop_ranges(&[Extent { start: 0, end: 19 }, Extent { start: 55, end: 59 }]);
    fill(&mut cache, &request, 9, 80, NOW);
    let at = |start, end| Piece::Miss(start..end);
    let pieces = cache.read(0, 100, NOW);
    let expected = [vec![9; 30], vec![1; 5]].concat();
    let zeroes = [vec![9; 20], vec![0; 20]].concat();
    assert_eq!(pieces, [at(0, 20), Piece::Hit(expected.into()), at(55, 60), Piece::Hit(zeroes.into())]);
}

#[test]
fn a_fill_does_not_bring_what_a_write_on_its_way_may_not_have_reached() {
    let mut cache = ObjectCache::default();
    cache.write(0, &bytes(10, 1), NOW);
    let flush = cache.next_flush(&wanted(MIB), NOW).unwrap();
    cache.drop_ranges(&[from(5)]);
    let request = begin_fill(&mut cache, 0..20);
    cache.flushed(flush.ticket, FlushEnd::Written, NOW);
    fill(&mut cache, &request, 9, 20, NOW);
    assert_eq!(hit(&mut cache, 0..5), Some(vec![1; 5]));
    assert_eq!(cache.missing(&(0..20)), [Range { start: 5, end: 10 }]);
}

#[test]
fn what_is_behind_a_short_read_is_zeros_until_written_or_dropped() {
    let mut cache = ObjectCache::default();
    let request = begin_fill(&mut cache, 0..1 << 40);
    assert_eq!(cache.missing(&(0..100)), []);
    fill(&mut cache, &request, 9, 5, NOW);
    assert_eq!(hit(&mut cache, 3..8), Some(vec![9, 9, 0, 0, 0]));
    cache.write(1 << 30, &bytes(1, 7), NOW);
    assert_eq!(hit(&mut cache, (1 << 30) - 1..(1 << 30) + 2), Some(vec![0, 7, 0]));
    assert_eq!((cache.clean_bytes(), cache.dirty_bytes()), (5, 1));
    cache.drop_ranges(&[from(4)]);
    assert_eq!(cache.missing(&(0..100)), [Range { start: 4, end: 100 }]);
}

#[test]
fn the_least_recently_used_bytes_are_evicted_and_never_dirty_ones() {
    let mut cache = ObjectCache::default();
    for i in 0..4 {
        let request = begin_fill(&mut cache, i * MIB..(i + 1) * MIB);
        fill(&mut cache, &request, i as u8, GIB, Time::from_secs(i));
    }
    cache.write(4 * MIB, &bytes(MIB, 4), NOW);
    cache.read(0, 1, Time::from_secs(9));
    assert_eq!(cache.evict_clean(4 * MIB, NOW), 0, "none was used so long ago");
    assert_eq!(cache.oldest_clean(), Some(Time::from_secs(1)));
    assert_eq!(cache.evict_clean(MIB + 1, LATER), 2 * MIB);
    assert_eq!(cache.missing(&(0..5 * MIB)), [Range { start: MIB, end: 3 * MIB }]);
    assert_eq!(cache.evict_clean(100 * MIB, LATER), 2 * MIB);
    assert_eq!((cache.clean_bytes(), cache.dirty_bytes()), (0, MIB));
}

#[test]
fn the_rest_of_an_overwritten_buffer_does_not_hold_its_memory() {
    let mut cache = ObjectCache::default();
    let large = bytes(MIB, 1);
    cache.write(0, &large, NOW);
    cache.write(0, &bytes(MIB - 100, 2), NOW);
    let Piece::Hit(rest) = &cache.read(MIB - 100, 100, NOW)[0] else { panic!("cached") };
    let kept = large.pieces()[0].as_ptr_range();
    assert!(!kept.contains(&rest.pieces()[0].as_ptr()));
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ByteState {
    Clean,
    Dirty,
    Writing(FlushTicket),
}

/// One client's object and the server that has it.
struct Model {
    random: Prng,
    seed: u64,
    cache: ObjectCache,
    /// The bytes that a program must see.
    truth: Vec<u8>,
    state: Vec<ByteState>,
    server: Vec<u8>,
    server_size: usize,
    flushes: Vec<(Flush, bool)>,
    /// Fills under way; with the reply, once the server has read for it.
    fills: Vec<(FillRequest, Option<Vec<Payload>>)>,
    /// For each byte, the fill that will bring it.
    coming: Vec<Option<FillTicket>>,
    now: Time,
    last_value: u8,
}

const SIZE: u64 = 400 * KIB;

impl Model {
    fn new(seed: u64) -> Model {
        Model {
            random: Prng::new(seed),
            seed,
            cache: ObjectCache::default(),
            truth: vec![0; SIZE as usize],
            state: vec![ByteState::Clean; SIZE as usize],
            server: vec![0; SIZE as usize],
            server_size: 0,
            flushes: Vec::new(),
            fills: Vec::new(),
            coming: vec![None; SIZE as usize],
            now: NOW,
            last_value: 0,
        }
    }

    fn range(&mut self) -> Range<u64> {
        let longest = *self.random.pick(&[1, 10, 200, 5000, 70_000, 200_000]);
        let start = self.random.below(SIZE);
        // Often at the boundaries of other ranges, and at blocks.
        let start = if self.random.one_in(3) { start - start % 4096 } else { start };
        let start = match self.cache.segments.overlapping(&(start..SIZE)).next() {
            Some((span, _)) if self.random.one_in(3) && span.end < SIZE => span.end,
            _ => start,
        };
        start..(start + self.random.range(1, longest + 1)).min(SIZE)
    }

    fn extent(&mut self) -> Extent {
        let range = self.range();
        Extent { start: range.start, end: range.end - 1 }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(100);
        match self.random.below(20) {
            0..6 => self.write(),
            6..8 => self.read(),
            8..10 => self.begin_flush(),
            10 => self.serve_flush(),
            11 | 12 => self.end_flush(),
            13 => self.begin_fills(),
            14 => self.serve_fill(),
            15 | 16 => self.end_fill(),
            17 => self.drop_or_truncate(),
            18 => self.evict(),
            _ => drop(self.random.one_in(20).then(|| self.flush_all())),
        }
    }

    fn write(&mut self) {
        let range = self.range();
        let mut data = Payload::new();
        while (data.len() as u64) < range.end - range.start {
            self.last_value = self.last_value.wrapping_add(1);
            let rest = range.end - range.start - data.len() as u64;
            let len = if self.random.one_in(2) { rest } else { self.random.range(1, rest + 1) };
            data.append(bytes(len, self.last_value));
        }
        let needed = self.cache.grant_needed(range.start, data.len() as u64);
        let before = self.cache.dirty_charge();
        assert_eq!(self.cache.write(range.start, &data, self.now), needed);
        assert_eq!(self.cache.dirty_charge(), before + needed);
        let span = range.start as usize..range.end as usize;
        self.truth[span.clone()].copy_from_slice(&data.to_bytes());
        self.coming[span.clone()].fill(None);
        self.state[span].fill(ByteState::Dirty);
    }

    fn read(&mut self) {
        let range = self.range();
        let mut at = range.start;
        for piece in self.cache.read(range.start, range.end - range.start, self.now) {
            let end = match piece {
                Piece::Hit(data) => {
                    let end = at + data.len() as u64;
                    assert!(data.to_bytes() == self.truth[at as usize..end as usize], "seed {}: stale", self.seed);
                    end
                }
                Piece::Miss(miss) => {
                    assert_eq!(miss.start, at);
                    let missed = &self.state[at as usize..miss.end as usize];
                    assert!(missed.iter().all(|s| *s == ByteState::Clean), "seed {}: lost", self.seed);
                    miss.end
                }
            };
            assert!(end > at);
            at = end;
        }
        assert_eq!(at, range.end);
    }

    fn begin_flush(&mut self) {
        let (within, other) = (self.extent(), self.extent());
        let within = if within.end < other.start { vec![within, other] } else { vec![within] };
        let wanted = FlushWanted {
            max_bytes: *self.random.pick(&[1000, 4096, 16_384, 65_536]),
            max_extents: self.random.range(1, 10) as usize,
            within: self.random.one_in(3).then_some(&within),
            only_full: self.random.one_in(3),
            min_age: Duration::from_millis(100 * self.random.below(2)),
        };
        self.flush(&wanted);
    }

    fn flush(&mut self, wanted: &FlushWanted<'_>) -> bool {
        let charge = self.cache.dirty_charge();
        let Some(flush) = self.cache.next_flush(wanted, self.now) else { return false };
        assert_eq!(charge - self.cache.dirty_charge(), flush.charge);
        assert!(flush.charge >= flush.bytes && flush.bytes <= wanted.max_bytes && flush.bytes > 0);
        assert!(flush.extents.len() <= wanted.max_extents);
        let mut last = None;
        for ((offset, data), range) in flush.extents.iter().zip(extents(&flush)) {
            assert!(last.is_none_or(|last| last < *offset), "ascending, not touching");
            last = Some(range.end);
            if let Some(within) = wanted.within {
                assert!(within.iter().any(|e| e.start <= range.start && range.end - 1 <= e.end));
            }
            for (other, _) in &self.flushes {
                assert!(extents(other).iter().all(|o| common(o, &range).is_none()), "seed {}: overtaking", self.seed);
            }
            let span = range.start as usize..range.end as usize;
            assert!(data.to_bytes() == self.truth[span.clone()]);
            assert!(self.state[span.clone()].iter().all(|s| *s == ByteState::Dirty));
            self.state[span].fill(ByteState::Writing(flush.ticket));
        }
        self.flushes.push((flush, false));
        true
    }

    /// The server executes a write.
    fn serve_flush(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let at = self.random.below(self.flushes.len() as u64) as usize;
        let (flush, served) = &mut self.flushes[at];
        if !std::mem::replace(served, true) {
            for (offset, data) in &flush.extents {
                let end = *offset as usize + data.len();
                self.server[*offset as usize..end].copy_from_slice(&data.to_bytes());
                self.server_size = self.server_size.max(end);
            }
        }
    }

    fn end_flush(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let at = self.random.below(self.flushes.len() as u64) as usize;
        let served = self.flushes[at].1;
        let end = match self.random.below(4) {
            0 | 1 => FlushEnd::Lost,
            _ if served => FlushEnd::Written,
            _ => return,
        };
        let (flush, _) = self.flushes.swap_remove(at);
        let charge = self.cache.dirty_charge();
        let over = self.cache.flushed(flush.ticket, end, self.now);
        assert_eq!(charge, self.cache.dirty_charge());
        let mut ended = 0;
        for at in extents(&flush).into_iter().flatten().map(|at| at as usize) {
            if self.state[at] != ByteState::Writing(flush.ticket) {
                continue;
            }
            ended += 1;
            self.state[at] = ByteState::Clean;
            if end == FlushEnd::Lost {
                self.truth[at] = self.server[at];
            }
        }
        assert_eq!(over, ended);
    }

    /// For each byte, true if one of the ranges has it.
    fn marked(ranges: impl Iterator<Item = Range<u64>>) -> Vec<bool> {
        let mut marked = vec![false; SIZE as usize];
        ranges.for_each(|range| marked[range.start as usize..range.end.min(SIZE) as usize].fill(true));
        marked
    }

    fn cached(&self) -> Vec<bool> {
        Self::marked(self.cache.segments.iter().map(|(span, _)| span))
    }

    fn begin_fills(&mut self) {
        let (one, other) = (self.range(), self.range());
        let ranges = if one.end < other.start { vec![one, other] } else { vec![one] };
        let max_bytes = *self.random.pick(&[1000, 16_384, 1 << 20]);
        let limits = FillLimits { max_bytes, max_extents: self.random.range(1, 10) as usize };
        let (cached, unsure) = (self.cached(), Self::marked(self.flushes.iter().flat_map(|(f, _)| extents(f))));
        let absent: Vec<_> = ranges.iter().cloned().flatten().filter(|at| !cached[*at as usize]).collect();
        let expected = absent.iter().copied().filter(|at| self.coming[*at as usize].is_none());
        let missing = ranges.iter().flat_map(|range| self.cache.missing(range)).flatten();
        assert!(missing.eq(expected), "seed {}: missing", self.seed);
        let groups: Vec<_> = ranges.iter().map(|range| vec![range.clone()]).collect();
        let wanted = self.cache.begin_fills(&groups, limits);
        let mut all: Vec<_> = wanted.requests.iter().flat_map(|r| &r.holes).chain(&wanted.open).cloned().collect();
        all.sort_unstable_by_key(|r| r.start);
        assert!(all.into_iter().flatten().eq(absent), "seed {}: each byte that is not here, once", self.seed);
        for request in wanted.requests {
            let bytes: u64 = request.extents.iter().map(|e| e.end - e.start).sum();
            assert!(bytes <= limits.max_bytes && request.extents.len() <= limits.max_extents);
            assert!(request.extents.is_sorted_by(|a, b| a.end <= b.start));
            for extent in &request.extents {
                assert!(ranges.iter().any(|r| r.start <= extent.start && extent.end <= r.end), "in one range");
            }
            for at in request.holes.iter().cloned().flatten() {
                assert!(request.extents.iter().any(|e| e.contains(&at)));
                assert_eq!(self.coming[at as usize], None, "seed {}: nobody else brings it", self.seed);
                self.coming[at as usize] = (!unsure[at as usize]).then_some(request.ticket);
            }
            self.fills.push((request, None));
        }
    }

    fn serve_fill(&mut self) {
        if self.fills.is_empty() {
            return;
        }
        let at = self.random.below(self.fills.len() as u64) as usize;
        let (request, reply) = &mut self.fills[at];
        let (server, size) = (&self.server, self.server_size as u64);
        let read = |e: &Range<u64>| {
            let end = e.end.min(size).max(e.start);
            Payload::from(server[e.start as usize..end as usize].to_vec())
        };
        reply.get_or_insert_with(|| request.extents.iter().map(read).collect());
    }

    fn end_fill(&mut self) {
        if self.fills.is_empty() {
            return;
        }
        let at = self.random.below(self.fills.len() as u64) as usize;
        let (request, reply) = self.fills.swap_remove(at);
        let holes = request.holes.iter().cloned().flatten();
        let brings: Vec<_> = holes.filter(|at| self.coming[*at as usize] == Some(request.ticket)).collect();
        if let Some(first) = brings.first() {
            assert_eq!(self.cache.awaited_fill(&(*first..first + 1)), Some(request.ticket));
        }
        match &reply {
            Some(replies) => self.cache.fill(request.ticket, replies, self.now),
            None => self.cache.abandon_fill(request.ticket),
        }
        let cached = self.cached();
        for at in brings {
            assert_eq!(cached[at as usize], reply.is_some(), "seed {}: kept", self.seed);
            self.coming[at as usize] = None;
        }
    }

    /// Each clean segment with the time of its use, in the order of use.
    fn clean(&self) -> Vec<(Time, u64)> {
        let clean = self.cache.segments.iter().filter(|(_, segment)| segment.state == State::Clean);
        clean.map(|(span, segment)| (self.cache.lru.used(segment.lru.unwrap()), span.start)).collect()
    }

    fn evict(&mut self) {
        let (before, bytes) = (self.clean(), self.random.below(100_000));
        self.cache.evict_clean(bytes, self.now);
        let after = self.clean();
        let gone = before.iter().filter(|segment| !after.contains(segment)).map(|(used, _)| used).max();
        let kept = after.iter().map(|(used, _)| used).min();
        assert!(gone.zip(kept).is_none_or(|(gone, kept)| gone <= kept), "seed {}: the oldest first", self.seed);
    }

    /// Only where no flush is under way, as is the owner's duty.
    fn drop_or_truncate(&mut self) {
        let extent = self.extent();
        let truncates = self.random.one_in(4);
        let extent = if truncates { Extent { end: u64::MAX, ..extent } } else { extent };
        let span = extent.start as usize..(extent.end.saturating_add(1).min(SIZE)) as usize;
        let on_its_way =
            |f: &(Flush, bool)| extents(&f.0).iter().any(|r| r.end > extent.start && r.start <= extent.end);
        if self.flushes.iter().any(on_its_way) {
            return;
        }
        let dirty = self.state[span.clone()].iter().filter(|s| **s == ByteState::Dirty).count() as u64;
        let charge = self.cache.dirty_charge();
        let lost = if truncates {
            let lost = self.cache.drop_ranges(&[extent]);
            // A read begins meanwhile, whose reply must not be kept.
            let during = self.cache.begin_fills(&[vec![extent.start..SIZE]], FILL_LIMITS).requests;
            self.fills.extend(during.into_iter().map(|request| (request, None)));
            self.serve_fill();
            self.server[span.clone()].fill(0);
            self.server_size = self.server_size.min(span.start);
            self.cache.drop_ranges(&[extent]);
            lost
        } else {
            self.cache.drop_ranges(&[extent])
        };
        assert_eq!((lost.bytes, lost.charge), (dirty, charge - self.cache.dirty_charge()));
        self.truth[span.clone()].copy_from_slice(&self.server[span.clone()]);
        self.coming[span.clone()].fill(None);
        self.state[span].fill(ByteState::Clean);
    }

    fn flush_all(&mut self) {
        while self.cache.dirty_bytes() > 0 || !self.flushes.is_empty() {
            self.flush(&wanted(65_536));
            self.serve_flush();
            self.end_flush();
        }
        assert!(self.truth == self.server, "seed {}: the server has something else", self.seed);
    }

    fn check(&self) {
        self.cache.assert_sound();
        let seed = self.seed;
        let count = |f: fn(&ByteState) -> bool| self.state.iter().filter(|s| f(s)).count() as u64;
        assert_eq!(self.cache.dirty_bytes(), count(|s| *s == ByteState::Dirty), "seed {seed}");
        assert_eq!(self.cache.writing_bytes(), count(|s| matches!(s, ByteState::Writing(_))), "seed {seed}");
        let clean = self.cache.segments.iter().filter(|(_, s)| s.state == State::Clean);
        assert_eq!(self.cache.clean_bytes(), clean.map(|(_, s)| s.memory()).sum::<u64>(), "seed {seed}");
        for (span, segment) in self.cache.segments.iter() {
            let node = segment.lru.map(|node| self.cache.lru.start(node));
            assert_eq!(node, (segment.state == State::Clean).then_some(span.start), "seed {seed}: in the order of use");
            let expected = match segment.state {
                State::Clean => ByteState::Clean,
                State::Dirty => ByteState::Dirty,
                State::Writing(ticket) => ByteState::Writing(ticket),
            };
            let span = span.start as usize..span.end as usize;
            assert!(self.state[span].iter().all(|s| *s == expected), "seed {seed}");
        }
        let in_flight: u64 = self.flushes.iter().map(|(f, _)| f.bytes).sum();
        assert_eq!(self.cache.writing.iter().map(|(r, _)| r.end - r.start).sum::<u64>(), in_flight);
        let blocks = self.state.chunks(BLOCK_BYTES as usize).filter(|b| b.contains(&ByteState::Dirty)).count() as u64;
        let charge = self.cache.dirty_charge();
        assert!(charge <= blocks * BLOCK_BYTES && charge >= self.cache.dirty_bytes(), "seed {seed}");
        assert_eq!(self.cache.grant_needed(0, SIZE), SIZE - charge, "seed {seed}");
    }
}

#[test]
fn nothing_is_stale_lost_or_counted_wrong_in_any_order_of_events() {
    for seed in 0..25 {
        let mut model = Model::new(seed);
        for step in 0..1500 {
            model.step();
            if step % 25 == 0 {
                model.check();
            }
        }
        model.flush_all();
        model.check();
    }
}

/// Costs of the common operations: `cargo test --release cache::object::tests::costs -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn costs() {
    // Time on the processor, because other programs may use the machine.
    let cpu = || {
        let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        spent.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let measure = |name: &str, count: u64, run: &mut dyn FnMut(u64)| {
        let begin = cpu();
        (0..count).for_each(&mut *run);
        println!("{name}: {} ns", (cpu() - begin) / count);
    };
    let flush_all = |cache: &mut ObjectCache, wanted: &FlushWanted<'_>| {
        while let Some(flush) = cache.next_flush(wanted, NOW) {
            cache.flushed(flush.ticket, FlushEnd::Written, NOW);
        }
    };
    let full = FlushWanted { only_full: true, ..wanted(4 * MIB) };
    let mut cache = ObjectCache::default();
    let mib = bytes(MIB, 1);
    measure("1 MiB sequential write and flush", 1000, &mut |i| {
        cache.grant_needed(i * MIB, MIB);
        cache.write(i * MIB, &mib, NOW);
        flush_all(&mut cache, &full);
    });
    assert_eq!(cache.dirty_bytes(), 0);
    measure("1 MiB cached read", 1000, &mut |i| drop(cache.read(i * MIB, MIB, NOW)));
    let mut random = Prng::new(1);
    let page = bytes(4 * KIB, 1);
    let mut cache = ObjectCache::default();
    measure("4 KiB random write", 100_000, &mut |_| {
        let offset = random.below(1 << 18) * 4 * KIB;
        cache.grant_needed(offset, 4 * KIB);
        cache.write(offset, &page, NOW);
        assert!(cache.next_flush(&full, NOW).is_none_or(|f| f.bytes > 0));
    });
    println!("  {} runs", cache.dirty.runs().len());
    measure("flush of all that", 1, &mut |_| flush_all(&mut cache, &wanted(4 * MIB)));
    measure("4 KiB cached read", 100_000, &mut |i| drop(cache.read((i * 7919 % (1 << 18)) * 4 * KIB, 4 * KIB, NOW)));
    let mut cache = ObjectCache::default();
    let record = bytes(100, 1);
    measure("100-byte append", 1_000_000, &mut |i| {
        cache.grant_needed(i * 100, 100);
        cache.write(i * 100, &record, NOW);
        flush_all(&mut cache, &full);
    });
    let mut cache = ObjectCache::default();
    let record = bytes(47_008, 1);
    measure("47008-byte strided write and flush", 20_000, &mut |i| {
        cache.write(i * 10 * 47_008, &record, NOW);
        flush_all(&mut cache, &full);
    });
}
