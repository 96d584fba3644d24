//! What a simulated disk's requests cost: an engine that is told when a request comes and says when it is done. It
//! models one medium with a queue, a transfer rate that all requests share, and a seek before every request that does
//! not follow its predecessor. It does not reorder requests.

use nacre_base::{Fid, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A kind of disk. The default costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// Time from a request to its first byte; requests in the queue wait for theirs at the same time.
    pub latency: Duration,
    /// Additional time, exclusive, for a request that is not at the end of the one before.
    pub seek: Duration,
    /// Bytes per second of all requests together; 0 is infinite.
    pub bandwidth: u64,
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
        bandwidth: 0,
        queue_depth: 0,
        flush: Duration::ZERO,
    };

    /// A 7,200 rpm disk.
    pub const HDD: DiskModel = DiskModel {
        latency: Duration::from_micros(100),
        seek: Duration::from_millis(8),
        bandwidth: 220_000_000,
        queue_depth: 1,
        flush: Duration::from_millis(12),
    };

    /// A data centre NVMe drive.
    pub const NVME: DiskModel = DiskModel {
        latency: Duration::from_micros(80),
        seek: Duration::ZERO,
        bandwidth: 3_000_000_000,
        queue_depth: 64,
        flush: Duration::from_micros(20),
    };

    fn transfer(&self, bytes: u64) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bandwidth);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
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
    /// Where the last request ended.
    head: Option<(Fid, u64)>,
}

impl Disk {
    pub(super) fn new(model: DiskModel) -> Disk {
        Disk { model, slots: BinaryHeap::new(), busy_until: Time::ZERO, head: None }
    }

    /// A read or write of `len` bytes comes at `now`; when it is done.
    pub(super) fn handle_request(&mut self, now: Time, object: Fid, offset: u64, len: u64) -> Time {
        let start = self.slot(now);
        let follows = self.head == Some((object, offset));
        self.head = Some((object, offset.saturating_add(len)));
        let seek = if follows { Duration::ZERO } else { self.model.seek };
        self.occupy(start + self.model.latency, seek + self.model.transfer(len))
    }

    /// A flush of `len` bytes of index pages comes at `now`; when it is done.
    pub(super) fn handle_flush(&mut self, now: Time, len: u64) -> Time {
        if len > 0 {
            self.head = None;
        }
        let start = self.slot(now);
        self.occupy(start, self.model.flush + self.model.transfer(len))
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

    fn occupy(&mut self, from: Time, exclusive: Duration) -> Time {
        self.busy_until = from.max(self.busy_until) + exclusive;
        let done = if exclusive.is_zero() { from } else { self.busy_until };
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
}
