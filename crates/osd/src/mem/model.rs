//! The cost of requests to a simulated disk: an engine that is told when a request comes and returns when it is done.
//! It models one medium with a queue, a transfer rate that all requests share, a lower rate for each part of an object
//! (see [`crate::disk`]), and a seek before every request that does not join one of the latest. It does not reorder
//! requests; [`super::elevator`] does.
//!
//! Before it is a page cache for writes that [`crate::disk`] puts into the kernel's: small and unaligned ones. They take
//! the time of the copy; the pages are written back together with their neighbours from other requests when a run of an
//! object was written whole, when half of the cache is dirty, when a writer must wait for room, and at commits and syncs,
//! which wait for it. Not modelled: reads always go to the medium, and to write part of a page never reads the rest.

use super::page_cache::DirtyPages;
use crate::io_stats::{Direction, IoShapes, IoStats};
use crate::parts::{Filling, Gathering, PARTS_MAX, Parts};
use nacre_base::{Fid, FxHashMap, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// A kind of disk. The default costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// Time from a request to its first byte; requests in the queue wait for theirs at the same time.
    pub latency: Duration,
    /// Additional exclusive time for a request that does not join an earlier one (see `streams`); less if passing over
    /// the gap is shorter.
    pub seek: Duration,
    /// Number of places of recent data that are remembered, as by an elevator or a write cache: a request that begins
    /// at the end of one, or ends at its beginning, needs no seek. With 1 (or 0) only a request that follows the last
    /// one.
    pub streams: usize,
    /// Bytes per second of all requests together; 0 is infinite.
    pub bandwidth: u64,
    /// Bytes per second of all requests to one part of an object together, as on local file systems; 0 is infinite.
    pub object_bandwidth: u64,
    /// Parts of an object, 1 to [`PARTS_MAX`]. With 1, `object_bandwidth` is that of an object.
    pub object_parts: u32,
    /// Requests under way at a time; more wait. 0 is infinite.
    pub queue_depth: usize,
    /// Time of a cache flush: each commit or sync of an object pays it.
    pub flush: Duration,
    /// Bytes of dirty pages that fit into memory; with 0 every write goes to the medium.
    pub cache_bytes: u64,
    /// True for a disk with a moving head: more data is gathered in the cache, and for longer, as in [`crate::disk`].
    pub rotational: bool,
    /// Bytes per second at which one request is copied into the page cache; 0 is infinite.
    pub cache_bandwidth: u64,
    /// True for a disk that serves reads and writes in the order of their places. It has no page cache, and of the numbers above
    /// only `latency`, `seek`, `bandwidth` and `flush` count.
    pub elevator: bool,
}

impl DiskModel {
    /// No cost at all.
    pub const FREE: DiskModel = DiskModel {
        latency: Duration::ZERO,
        seek: Duration::ZERO,
        streams: 1,
        bandwidth: 0,
        object_bandwidth: 0,
        object_parts: PARTS_MAX,
        queue_depth: 0,
        flush: Duration::ZERO,
        cache_bytes: 0,
        rotational: false,
        cache_bandwidth: 0,
        elevator: false,
    };

    /// A 7,200 rpm disk.
    pub const HDD: DiskModel = DiskModel {
        latency: Duration::from_micros(100),
        seek: Duration::from_millis(8),
        bandwidth: 220_000_000,
        queue_depth: 1,
        flush: Duration::from_millis(12),
        cache_bytes: 1 << 30,
        rotational: true,
        cache_bandwidth: COPY_BANDWIDTH,
        ..DiskModel::FREE
    };

    /// A data centre NVMe drive.
    pub const NVME: DiskModel = DiskModel {
        latency: Duration::from_micros(80),
        bandwidth: 3_000_000_000,
        queue_depth: 64,
        flush: Duration::from_micros(20),
        cache_bytes: 1 << 30,
        cache_bandwidth: COPY_BANDWIDTH,
        ..DiskModel::FREE
    };
}

/// One processor copies into new pages at about this rate.
const COPY_BANDWIDTH: u64 = 3_000_000_000;

/// Bytes written back at a time; longer ranges go on without a seek.
const WRITE_BACK_BYTES: u64 = 4 << 20;

/// How long `bytes` take at `bandwidth` bytes per second.
pub(super) fn transfer(bytes: u64, bandwidth: u64) -> Duration {
    if bandwidth == 0 {
        return Duration::ZERO;
    }
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl Default for DiskModel {
    fn default() -> DiskModel {
        DiskModel::FREE
    }
}

/// The state of a disk of some model.
#[derive(Debug)]
pub(super) struct Disk {
    model: DiskModel,
    parts: Parts,
    /// When each occupied place in the queue becomes free.
    slots: BinaryHeap<Reverse<Time>>,
    /// Time until which the head moves or transfers for requests accepted so far.
    busy_until: Time,
    /// Places of recent data, the latest last.
    recent: VecDeque<(Fid, Range<u64>)>,
    /// Time until which each recently used part of an object is busy, if parts have a limit.
    parts_busy: FxHashMap<(Fid, usize), Time>,
    dirty: DirtyPages,
    /// Runs written to the cache lately, by object.
    filling: FxHashMap<Fid, Filling>,
    /// When pages were last made dirty.
    dirtied: Time,
    /// Bytes being written back, and when they are on the medium; in order of time.
    writing: VecDeque<(Time, u64)>,
    /// Statistics of the requests to the medium.
    shapes: IoStats,
    /// Times at which the requests under way are done.
    under_way: BinaryHeap<Reverse<Time>>,
}

/// Number of parts at which those that are not busy are forgotten.
const PARTS_BUSY_MAX: usize = 4096;

impl Disk {
    pub(super) fn new(model: DiskModel) -> Disk {
        Disk {
            model,
            parts: Parts::new(model.object_parts),
            slots: BinaryHeap::new(),
            busy_until: Time::ZERO,
            recent: VecDeque::new(),
            parts_busy: FxHashMap::default(),
            dirty: DirtyPages::default(),
            filling: FxHashMap::default(),
            dirtied: Time::ZERO,
            writing: VecDeque::new(),
            shapes: IoStats::default(),
            under_way: BinaryHeap::new(),
        }
    }

    /// Statistics of the requests to the medium so far, without the commits.
    pub(super) fn shapes(&self) -> &IoStats {
        &self.shapes
    }

    pub(super) fn clear_shapes(&mut self) {
        self.shapes = IoStats::default();
    }

    fn count(&mut self, direction: Direction, bytes: u64, begun: Time, done: Time) {
        while self.under_way.peek().is_some_and(|Reverse(until)| *until <= begun) {
            self.under_way.pop();
        }
        self.under_way.push(Reverse(done));
        let shapes: &mut IoShapes = match direction {
            Direction::Read => &mut self.shapes.reads,
            Direction::Write => &mut self.shapes.writes,
        };
        shapes.add(bytes, done.since(begun), self.under_way.len());
    }

    /// A read comes at `now`. Returns when it is done.
    pub(super) fn handle_read(&mut self, now: Time, object: Fid, range: Range<u64>) -> Time {
        self.write_back_idle(now);
        self.handle_request(now, object, &range, Direction::Read)
    }

    /// A write comes at `now`. Returns when it is done.
    pub(super) fn handle_write(&mut self, now: Time, object: Fid, ranges: &[Range<u64>]) -> Time {
        self.write_back_idle(now);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match runs.last_mut() {
                Some(run) if run.end == range.start => run.end = range.end,
                _ => runs.push(range.clone()),
            }
        }
        if self.model.cache_bytes == 0 {
            return runs.iter().map(|run| self.handle_request(now, object, run, Direction::Write)).max().unwrap_or(now);
        }
        let (mut done, mut cached) = (now, Vec::new());
        let gathering = self.gathering();
        for (_, piece) in runs.into_iter().flat_map(|run| self.parts.split(run)).collect::<Vec<_>>() {
            let direct = gathering.direct_middle(&piece);
            if !direct.is_empty() {
                done = done.max(self.handle_request(now, object, &direct, Direction::Write));
            }
            cached.extend([piece.start..direct.start, direct.end..piece.end]);
        }
        cached.retain(|range| !range.is_empty());
        done.max(self.write_cached(now, object, &cached))
    }

    /// A commit of `len` bytes of index pages, and of all data, comes at `now`. Returns when it is done.
    pub(super) fn handle_commit(&mut self, now: Time, len: u64) -> Time {
        self.write_back_idle(now);
        while let Some((object, range)) = self.dirty.take(WRITE_BACK_BYTES) {
            self.write_back(now, object, &range);
        }
        self.filling.clear();
        self.flush(now, len)
    }

    /// A sync of one object comes at `now`. Returns when it is done.
    pub(super) fn handle_sync(&mut self, now: Time, object: Fid) -> Time {
        self.write_back_idle(now);
        while let Some(range) = self.dirty.take_of(object, WRITE_BACK_BYTES) {
            self.write_back(now, object, &range);
        }
        self.flush(now, 0)
    }

    /// An object was removed: its dirty pages need not be written.
    pub(super) fn handle_remove(&mut self, object: Fid) {
        self.dirty.forget(object);
        self.filling.remove(&object);
    }

    fn gathering(&self) -> Gathering {
        if self.model.rotational { Gathering::MOVING } else { Gathering::STILL }
    }

    fn handle_request(&mut self, now: Time, object: Fid, range: &Range<u64>, direction: Direction) -> Time {
        let from = self.slot(now) + self.model.latency;
        let seek = self.seek_to(object, range);
        let parts_done = self.occupy_parts(from, object, range);
        let done = self.occupy(from, parts_done, seek + transfer(len(range), self.model.bandwidth));
        self.count(direction, len(range), now, done);
        done
    }

    fn flush(&mut self, now: Time, len: u64) -> Time {
        if len > 0 && self.model.streams <= 1 {
            self.recent.clear();
        }
        let written = self.writing.back().map_or(now, |(done, _)| *done);
        let from = self.slot(now);
        self.occupy(from.max(written), from, self.model.flush + transfer(len, self.model.bandwidth)).max(written)
    }

    /// Copies into the cache, and waits for room there.
    fn write_cached(&mut self, now: Time, object: Fid, ranges: &[Range<u64>]) -> Time {
        if ranges.is_empty() {
            return now;
        }
        let (bytes, run_bytes) = (ranges.iter().map(len).sum(), self.gathering().run_bytes);
        let mut done = now + transfer(bytes, self.model.cache_bandwidth);
        for range in ranges {
            done = done.max(self.occupy_parts(now, object, range));
            self.dirty.add(object, range);
            for whole in self.filling.entry(object).or_default().handle_written(range, run_bytes) {
                while let Some(range) = self.dirty.take_within(object, &whole) {
                    self.write_back(now, object, &range);
                }
            }
        }
        self.dirtied = now;
        self.write_back_idle(now);
        let mut room = now;
        let mut occupied = self.dirty.bytes() + self.writing.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let mut waited_for = 0;
        while occupied > self.model.cache_bytes {
            if waited_for == self.writing.len() {
                let dirty = self.dirty.take(WRITE_BACK_BYTES);
                let (object, range) = dirty.expect("what fills the cache is dirty, or is being written back");
                self.write_back(now, object, &range);
            }
            let (done, bytes) = self.writing[waited_for];
            assert!(bytes <= occupied, "{bytes} bytes are written back, of {occupied} in the cache");
            (room, occupied, waited_for) = (done, occupied - bytes, waited_for + 1);
        }
        done.max(room)
    }

    /// Writes back as much as the medium had time for since the cache became half full.
    fn write_back_idle(&mut self, now: Time) {
        while self.dirty.bytes() > self.model.cache_bytes / 2 && self.busy_until <= now {
            let (object, range) = self.dirty.take(WRITE_BACK_BYTES).expect("there is a page of what is dirty");
            self.write_back(self.dirtied, object, &range);
        }
        while self.writing.front().is_some_and(|(done, _)| *done <= now) {
            self.writing.pop_front();
        }
    }

    /// Writes back a range, as soon as the medium is free after `from`.
    fn write_back(&mut self, from: Time, object: Fid, range: &Range<u64>) {
        let seek = self.seek_to(object, range);
        let begun = from.max(self.busy_until);
        self.busy_until = begun + seek + transfer(len(range), self.model.bandwidth);
        self.count(Direction::Write, len(range), begun, self.busy_until);
        self.writing.push_back((self.busy_until, len(range)));
    }

    /// The time to get to a range: none if it is next to one of the latest, and never more than it takes to pass over
    /// the gap. The range becomes one of the latest.
    fn seek_to(&mut self, object: Fid, range: &Range<u64>) -> Duration {
        let keep = self.model.streams.max(1);
        let is_next =
            |(o, r): &(Fid, Range<u64>)| *o == object && (r.end == range.start || (keep > 1 && r.start == range.end));
        let (place, seek) = match self.recent.iter().rposition(is_next) {
            Some(place) => (Some(place), Duration::ZERO),
            None => self.pass_over_to(object, range.start).map_or((None, self.model.seek), |(p, d)| (Some(p), d)),
        };
        let joined = place.and_then(|place| self.recent.remove(place));
        let whole = joined.map_or(range.clone(), |(_, r)| r.start.min(range.start)..r.end.max(range.end));
        self.recent.push_back((object, whole));
        if self.recent.len() > keep {
            self.recent.pop_front();
        }
        seek
    }

    /// The place from which passing over the gap is shorter than a seek, and the time of that.
    fn pass_over_to(&self, object: Fid, start: u64) -> Option<(usize, Duration)> {
        let before = |(_, (o, r)): &(usize, &(Fid, Range<u64>))| *o == object && r.end <= start;
        let (place, (_, nearest)) = self.recent.iter().enumerate().filter(before).max_by_key(|(_, (_, r))| r.end)?;
        let gap = transfer(start - nearest.end, self.model.bandwidth);
        (self.model.bandwidth > 0 && gap < self.model.seek).then_some((place, gap))
    }

    /// Time at which the object's parts are done with one more range.
    fn occupy_parts(&mut self, from: Time, object: Fid, range: &Range<u64>) -> Time {
        if self.model.object_bandwidth == 0 {
            return from;
        }
        if self.parts_busy.len() >= PARTS_BUSY_MAX {
            self.parts_busy.retain(|_, until| *until > from);
        }
        let mut done = from;
        for (part, range) in self.parts.split(range.clone()) {
            let until = self.parts_busy.entry((object, part)).or_insert(Time::ZERO);
            *until = from.max(*until) + transfer(len(&range), self.model.object_bandwidth);
            done = done.max(*until);
        }
        done
    }

    /// Time at which a place in the queue is free.
    fn slot(&mut self, now: Time) -> Time {
        while self.slots.peek().is_some_and(|Reverse(free)| *free <= now) {
            self.slots.pop();
        }
        if self.model.queue_depth == 0 || self.slots.len() < self.model.queue_depth {
            return now;
        }
        self.slots.pop().map_or(now, |Reverse(free)| free)
    }

    /// Takes the medium for `exclusive`, as soon as it is free after `from`. Returns when that is over, and not before
    /// `at_least`.
    fn occupy(&mut self, from: Time, at_least: Time, exclusive: Duration) -> Time {
        self.busy_until = from.max(self.busy_until) + exclusive;
        let done = if exclusive.is_zero() { from } else { self.busy_until }.max(at_least);
        if self.model.queue_depth > 0 {
            self.slots.push(Reverse(done));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::REGION_BYTES;

    const FID: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const MB: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    fn request(d: &mut Disk, now: Time, object: Fid, offset: u64, len: u64) -> Time {
        d.handle_read(now, object, offset..offset + len)
    }

    #[test]
    fn a_free_disk_answers_at_once() {
        let mut d = Disk::new(DiskModel::FREE);
        assert_eq!(request(&mut d, ms(5), FID, 0, 1 << 40), ms(5));
        assert_eq!(d.handle_commit(ms(5), 1 << 40), ms(5));
    }

    #[test]
    fn streams_run_at_the_bandwidth_and_seeks_cost_extra() {
        let model =
            DiskModel { seek: Duration::from_millis(8), bandwidth: 100 * MB, queue_depth: 1, ..DiskModel::FREE };
        let mut d = Disk::new(model);
        assert_eq!(request(&mut d, ms(0), FID, 0, MB), ms(8 + 10), "seek to the start");
        assert_eq!(request(&mut d, ms(0), FID, MB, MB), ms(18 + 10), "sequential, after the first");
        assert_eq!(request(&mut d, ms(100), FID, 0, MB), ms(100 + 8 + 10), "back: a seek");
    }

    #[test]
    fn latency_overlaps_up_to_the_queue_depth() {
        let model = DiskModel { latency: Duration::from_millis(10), queue_depth: 2, ..DiskModel::FREE };
        let mut d = Disk::new(model);
        let done: Vec<Time> = (0..5).map(|i| request(&mut d, ms(0), FID, i * 4096, 4096)).collect();
        assert_eq!(done, [ms(10), ms(10), ms(20), ms(20), ms(30)]);
        assert_eq!(request(&mut d, ms(25), FID, 0, 1), ms(35), "old requests have left the queue");
    }

    #[test]
    fn one_object_is_slower_than_several() {
        let model = DiskModel { bandwidth: 100 * MB, object_bandwidth: 50 * MB, object_parts: 1, ..DiskModel::FREE };
        let other = Fid { oid: 2, ..FID };
        let mut d = Disk::new(model);
        assert_eq!(request(&mut d, ms(0), FID, 0, MB), ms(20), "at the object's rate");
        assert_eq!(request(&mut d, ms(0), FID, 7 * MB, MB), ms(40), "after the first");
        assert_eq!(request(&mut d, ms(0), other, 0, MB), ms(30), "another one waits for the medium only");
    }

    #[test]
    fn requests_join_the_latest_ones_on_both_sides() {
        let model = DiskModel { seek: Duration::from_millis(8), streams: 2, ..DiskModel::FREE };
        let other = Fid { oid: 2, ..FID };
        let mut d = Disk::new(model);
        assert_eq!(request(&mut d, ms(0), FID, MB, MB), ms(8), "a new place");
        assert_eq!(request(&mut d, ms(100), other, 0, MB), ms(108), "another");
        assert_eq!(request(&mut d, ms(200), FID, 2 * MB, MB), ms(200), "behind the first");
        assert_eq!(request(&mut d, ms(300), FID, 0, MB), ms(300), "before it");
        assert_eq!(request(&mut d, ms(400), FID, 9 * MB, MB), ms(408), "a third place: the oldest is forgotten");
        assert_eq!(request(&mut d, ms(500), other, MB, MB), ms(508), "so this is a new one");
    }

    #[test]
    fn an_object_is_as_fast_as_its_parts_together() {
        let model = DiskModel { bandwidth: 0, object_bandwidth: 50 * MB, ..DiskModel::FREE };
        let mut d = Disk::new(model);
        let region = REGION_BYTES;
        let alone = request(&mut d, ms(0), FID, 0, region);
        assert_eq!(request(&mut d, ms(0), FID, region, region), alone, "the next region is another part's");
        assert_eq!(request(&mut d, ms(0), FID, 8 * region, region), Time(2 * alone.0), "the first part again");
        assert_eq!(request(&mut d, alone, FID, 2 * region, 4 * region), Time(2 * alone.0), "four parts at a time");
    }

    const SEEK: u64 = 10;
    const RECORD: u64 = 47_008;

    /// 1 MB takes 10 ms, a seek as long; 64 MiB of dirty pages fit.
    fn cached() -> Disk {
        Disk::new(DiskModel {
            seek: Duration::from_millis(SEEK),
            bandwidth: 100 * MB,
            cache_bytes: 64 << 20,
            cache_bandwidth: 1000 * MB,
            ..DiskModel::FREE
        })
    }

    fn nth(record: u64) -> Range<u64> {
        record * RECORD..(record + 1) * RECORD
    }

    #[test]
    fn small_records_of_several_writers_are_written_back_as_one() {
        let mut d = cached();
        for record in (0..1000).step_by(2).chain((1..1000).step_by(2)) {
            assert_eq!(d.handle_write(ms(0), FID, &[nth(record)]), Time(RECORD), "the copy");
        }
        let whole = transfer(1000 * RECORD / 4096 * 4096 + 4096, 100 * MB);
        let done = d.handle_commit(ms(1000), 0);
        // The pages above half of the cache were written back before.
        assert!(done < ms(1000) + whole && done > ms(1000), "{done:?}");
        assert_eq!(d.handle_commit(ms(9000), 0), ms(9000), "nothing is left");
    }

    #[test]
    fn scattered_small_writes_pay_a_seek_each_when_they_are_written_back() {
        let mut d = cached();
        let ranges: Vec<_> = (0..100).map(|n| n * MB..n * MB + 4096).collect();
        assert!(d.handle_write(ms(0), FID, &ranges) < ms(1));
        assert!(d.handle_sync(ms(1), Fid { oid: 2, ..FID }) < ms(2), "another object has nothing to wait for");
        let done = d.handle_sync(ms(1), FID);
        assert!(done > ms(100 * SEEK) && done < ms(100 * SEEK + 10), "{done:?}");
    }

    #[test]
    fn short_gaps_are_passed_over() {
        let mut d = cached();
        let start = request(&mut d, ms(0), FID, 0, MB);
        assert_eq!(request(&mut d, start, FID, MB + MB / 10, MB), start + Duration::from_millis(1 + 10));
        assert_eq!(request(&mut d, ms(100), FID, 9 * MB, MB), ms(100 + SEEK + 10), "a seek is shorter");
    }

    #[test]
    fn writers_wait_when_the_cache_is_full_and_go_on_at_the_speed_of_the_medium() {
        let mut d = cached();
        let (mut now, total) = (ms(0), 10_000);
        for record in 0..total {
            now = d.handle_write(now, FID, &[nth(record)]);
        }
        let medium = transfer(total * RECORD - (64 << 20), 100 * MB);
        let (least, most) = (medium, medium + Duration::from_millis(200));
        assert!((least..most).contains(&now.since(Time::ZERO)), "{now:?} instead of {medium:?}");
    }

    #[test]
    fn before_a_moving_head_records_wait_until_a_long_run_is_whole() {
        let mut d = Disk::new(DiskModel { rotational: true, cache_bytes: 1 << 30, ..cached().model });
        let run = Gathering::MOVING.run_bytes;
        for record in (0..run / MIB).step_by(2).chain((1..run / MIB).step_by(2)) {
            assert_eq!(d.busy_until, Time::ZERO);
            d.handle_write(ms(0), FID, std::slice::from_ref(&(record * MIB..(record + 1) * MIB)));
        }
        assert_eq!(d.dirty.bytes(), 0);
        assert_eq!(d.busy_until, ms(SEEK) + transfer(run, 100 * MB));
        let done = d.handle_write(ms(9000), FID, std::slice::from_ref(&(run..run + 4 * MIB)));
        assert_eq!(done, ms(9000) + transfer(4 * MIB, 100 * MB), "at once");
    }

    #[test]
    fn large_aligned_writes_and_middles_go_to_the_medium_at_once() {
        let mut d = cached();
        assert!(d.handle_write(ms(0), FID, std::slice::from_ref(&(0..MIB))) > ms(SEEK + 10));
        assert!(d.handle_write(ms(100), FID, &[MIB..2 * MIB, 2 * MIB..2 * MIB + 100]) > ms(110));
        assert_eq!(d.dirty.bytes(), 4096, "the end of the last");
        d.handle_remove(FID);
        assert_eq!(d.dirty.bytes(), 0);
    }
}
