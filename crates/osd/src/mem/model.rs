//! What a simulated disk's requests cost: an engine that is told when a request comes and says when it is done. It
//! models one medium with a queue, a transfer rate that all requests share, a lower one for each object, and a seek
//! before every request that does not join one of the latest. It does not reorder requests.

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
    /// Additional time, exclusive, for a request that does not join one before (see `streams`).
    pub seek: Duration,
    /// So many places where data came lately are remembered, as an elevator or a write cache does: a request that begins
    /// at the end of one, or ends at its beginning, needs no seek. With 1 (or 0) only what follows the last request.
    pub streams: usize,
    /// Bytes per second of all requests together; 0 is infinite.
    pub bandwidth: u64,
    /// Bytes per second of one object's requests together, as local file systems have it; 0 is infinite.
    pub object_bandwidth: u64,
    /// Requests under way at a time; more wait. 0 is infinite.
    pub queue_depth: usize,
    /// Time of a cache flush: each commit or sync of an object pays it.
    pub flush: Duration,
}

impl DiskModel {
    /// No cost at all.
    pub const FREE: DiskModel = DiskModel {
        latency: Duration::ZERO,
        seek: Duration::ZERO,
        streams: 1,
        bandwidth: 0,
        object_bandwidth: 0,
        queue_depth: 0,
        flush: Duration::ZERO,
    };

    /// A 7,200 rpm disk.
    pub const HDD: DiskModel = DiskModel {
        latency: Duration::from_micros(100),
        seek: Duration::from_millis(8),
        streams: 1,
        bandwidth: 220_000_000,
        object_bandwidth: 0,
        queue_depth: 1,
        flush: Duration::from_millis(12),
    };

    /// A data centre NVMe drive.
    pub const NVME: DiskModel = DiskModel {
        latency: Duration::from_micros(80),
        seek: Duration::ZERO,
        streams: 1,
        bandwidth: 3_000_000_000,
        object_bandwidth: 0,
        queue_depth: 64,
        flush: Duration::from_micros(20),
    };
}

/// How long `bytes` take at `bandwidth` bytes per second.
fn transfer(bytes: u64, bandwidth: u64) -> Duration {
    if bandwidth == 0 {
        return Duration::ZERO;
    }
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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
    /// When each occupied place in the queue becomes free.
    slots: BinaryHeap<Reverse<Time>>,
    /// Until when the head moves or transfers for requests accepted so far.
    busy_until: Time,
    /// Where data came lately, the latest last.
    recent: VecDeque<(Fid, Range<u64>)>,
    /// Until when each object that was busy lately is, if one object has a limit.
    objects_busy: FxHashMap<Fid, Time>,
}

/// With so many objects it is worth forgetting those that are not busy.
const OBJECTS_BUSY_MAX: usize = 4096;

impl Disk {
    pub(super) fn new(model: DiskModel) -> Disk {
        Disk {
            model,
            slots: BinaryHeap::new(),
            busy_until: Time::ZERO,
            recent: VecDeque::new(),
            objects_busy: FxHashMap::default(),
        }
    }

    /// A read or write of `len` bytes comes at `now`; when it is done.
    pub(super) fn handle_request(&mut self, now: Time, object: Fid, offset: u64, len: u64) -> Time {
        let from = self.slot(now) + self.model.latency;
        let seek = if self.joins(object, offset, len) { Duration::ZERO } else { self.model.seek };
        let object_done = self.occupy_object(from, object, len);
        self.occupy(from, object_done, seek + transfer(len, self.model.bandwidth))
    }

    /// A flush of `len` bytes of index pages comes at `now`; when it is done.
    pub(super) fn handle_flush(&mut self, now: Time, len: u64) -> Time {
        if len > 0 && self.model.streams <= 1 {
            self.recent.clear();
        }
        let from = self.slot(now);
        self.occupy(from, from, self.model.flush + transfer(len, self.model.bandwidth))
    }

    /// Whether a request is next to one of the latest; it is itself one of them now.
    fn joins(&mut self, object: Fid, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        let keep = self.model.streams.max(1);
        let is_next =
            |(o, r): &(Fid, Range<u64>)| *o == object && (r.end == range.start || (keep > 1 && r.start == range.end));
        let joined = self.recent.iter().rposition(is_next).and_then(|i| self.recent.remove(i));
        let whole = joined.as_ref().map_or(range.clone(), |(_, r)| r.start.min(range.start)..r.end.max(range.end));
        self.recent.push_back((object, whole));
        if self.recent.len() > keep {
            self.recent.pop_front();
        }
        joined.is_some()
    }

    /// When the object is done with `len` more bytes.
    fn occupy_object(&mut self, from: Time, object: Fid, len: u64) -> Time {
        if self.model.object_bandwidth == 0 {
            return from;
        }
        if self.objects_busy.len() >= OBJECTS_BUSY_MAX {
            self.objects_busy.retain(|_, until| *until > from);
        }
        let until = self.objects_busy.entry(object).or_insert(Time::ZERO);
        *until = from.max(*until) + transfer(len, self.model.object_bandwidth);
        *until
    }

    /// When a place in the queue is free.
    fn slot(&mut self, now: Time) -> Time {
        while self.slots.peek().is_some_and(|Reverse(free)| *free <= now) {
            self.slots.pop();
        }
        if self.model.queue_depth == 0 || self.slots.len() < self.model.queue_depth {
            return now;
        }
        self.slots.pop().map_or(now, |Reverse(free)| free)
    }

    /// Takes the medium for `exclusive`, as soon as it is free after `from`; when that is over, and not before `at_least`.
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

    const FID: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const MB: u64 = 1_000_000;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn a_free_disk_answers_at_once() {
        let mut d = Disk::new(DiskModel::FREE);
        assert_eq!(d.handle_request(ms(5), FID, 0, 1 << 40), ms(5));
        assert_eq!(d.handle_flush(ms(5), 1 << 40), ms(5));
    }

    #[test]
    fn streams_run_at_the_bandwidth_and_seeks_cost_extra() {
        let model =
            DiskModel { seek: Duration::from_millis(8), bandwidth: 100 * MB, queue_depth: 1, ..DiskModel::FREE };
        let mut d = Disk::new(model);
        assert_eq!(d.handle_request(ms(0), FID, 0, MB), ms(8 + 10), "seek to the start");
        assert_eq!(d.handle_request(ms(0), FID, MB, MB), ms(18 + 10), "sequential, after the first");
        assert_eq!(d.handle_request(ms(100), FID, 0, MB), ms(100 + 8 + 10), "back: a seek");
    }

    #[test]
    fn latency_overlaps_up_to_the_queue_depth() {
        let model = DiskModel { latency: Duration::from_millis(10), queue_depth: 2, ..DiskModel::FREE };
        let mut d = Disk::new(model);
        let done: Vec<Time> = (0..5).map(|i| d.handle_request(ms(0), FID, i * 4096, 4096)).collect();
        assert_eq!(done, [ms(10), ms(10), ms(20), ms(20), ms(30)]);
        assert_eq!(d.handle_request(ms(25), FID, 0, 1), ms(35), "old requests have left the queue");
    }

    #[test]
    fn one_object_is_slower_than_several() {
        let model = DiskModel { bandwidth: 100 * MB, object_bandwidth: 50 * MB, ..DiskModel::FREE };
        let other = Fid { oid: 2, ..FID };
        let mut d = Disk::new(model);
        assert_eq!(d.handle_request(ms(0), FID, 0, MB), ms(20), "at the object's rate");
        assert_eq!(d.handle_request(ms(0), FID, 7 * MB, MB), ms(40), "after the first");
        assert_eq!(d.handle_request(ms(0), other, 0, MB), ms(30), "another one waits for the medium only");
    }

    #[test]
    fn requests_join_the_latest_ones_on_both_sides() {
        let model = DiskModel { seek: Duration::from_millis(8), streams: 2, ..DiskModel::FREE };
        let other = Fid { oid: 2, ..FID };
        let mut d = Disk::new(model);
        assert_eq!(d.handle_request(ms(0), FID, MB, MB), ms(8), "a new place");
        assert_eq!(d.handle_request(ms(100), other, 0, MB), ms(108), "another");
        assert_eq!(d.handle_request(ms(200), FID, 2 * MB, MB), ms(200), "behind the first");
        assert_eq!(d.handle_request(ms(300), FID, 0, MB), ms(300), "before it");
        assert_eq!(d.handle_request(ms(400), FID, 9 * MB, MB), ms(408), "a third place: the oldest is forgotten");
        assert_eq!(d.handle_request(ms(500), other, MB, MB), ms(508), "so this is a new one");
    }
}
