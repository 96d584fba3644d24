//! The lanes of a target: each has a queue ([`crate::nrs`]), statistics of how long its requests took, and a limit of
//! requests that run at once. This file does not know what a request is or how it is served.

use crate::adaptive_timeout::Estimator;
use crate::nrs::{Admission, Classified, LaneQueue, Schedule};
use crate::stats::{OpStats, OpSums};
use nacre_base::{Nid, Time};
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The node that lanes belong to.
pub(crate) trait LaneOwner<W>: Send + Sync {
    /// Starts a task that serves a request, and then the waiting ones of its lane.
    fn spawn_worker(self: Arc<Self>, work: W);
    /// How a lane that is made now lets requests run.
    fn schedule(&self, lane: Lane) -> Schedule;
}

/// Queue and statistics of one target's lane.
pub(crate) struct LaneService<W: Classified> {
    state: Mutex<LaneState<W>>,
    stats: OpStats,
    owner: Weak<dyn LaneOwner<W>>,
}

pub(crate) struct LaneState<W: Classified> {
    queue: LaneQueue<W>,
    /// Estimated time from arrival to reply.
    service: Estimator,
    counts: LaneCounts,
}

/// Requests that were not served, and how busy the lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneCounts {
    /// Requests dropped because their client had given up when their turn came.
    pub late: u64,
    /// Requests dropped because their client had too many requests waiting or running.
    pub overflow: u64,
    /// Requests that run now.
    pub running: u64,
    /// Requests that wait now.
    pub queued: u64,
}

/// A request's place in its lane, which it gives up at most once.
pub(crate) struct LaneSlot<W: Classified> {
    lane: Arc<LaneService<W>>,
    client: Nid,
    high_priority: bool,
    left: AtomicBool,
}

/// A transfer that waits for its client without holding a slot of the lane.
pub(crate) struct SlowTransfer<'a, W: Classified>(&'a LaneSlot<W>);

impl LaneCounts {
    pub(crate) fn plus(self, other: LaneCounts) -> LaneCounts {
        LaneCounts {
            late: self.late + other.late,
            overflow: self.overflow + other.overflow,
            running: self.running + other.running,
            queued: self.queued + other.queued,
        }
    }
}

impl<W: Classified> LaneState<W> {
    /// Counts a request whose client had given up when its turn came.
    pub(crate) fn handle_late(&mut self) {
        self.counts.late += 1;
    }

    /// A request that arrived at `arrived` was served. Returns how long the next one may take.
    pub(crate) fn handle_served(&mut self, now: Time, arrived: Time) -> Duration {
        self.service.handle_sample(now, now.since(arrived));
        self.service.estimate(now)
    }
}

impl<W: Classified> LaneService<W> {
    pub(crate) fn new(lane: Lane, owner: Weak<dyn LaneOwner<W>>) -> LaneService<W> {
        let schedule = owner.upgrade().map_or_else(|| Schedule::of(lane), |owner| owner.schedule(lane));
        let queue = LaneQueue::new(schedule);
        let state = LaneState { queue, service: Estimator::default(), counts: LaneCounts::default() };
        LaneService { state: Mutex::new(state), stats: OpStats::default(), owner }
    }

    /// Another schedule from now on, also for the requests that wait.
    pub(crate) fn set_schedule(&self, schedule: Schedule) {
        let next = self.state.lock().queue.set_schedule(schedule);
        self.spawn(next);
    }

    /// Requests of a priority that run and that wait.
    pub(crate) fn counts_of(&self, high_priority: bool) -> (usize, usize) {
        self.state.lock().queue.counts(high_priority)
    }

    fn spawn(&self, works: impl IntoIterator<Item = W>) {
        let Some(owner) = self.owner.upgrade() else { return };
        works.into_iter().for_each(|work| owner.clone().spawn_worker(work));
    }

    /// A request arrived. Returns whether it runs now, waits, or is dropped.
    pub(crate) fn handle_arrival(&self, work: W) -> Admission<W> {
        self.state.lock().queue.handle_arrival(work)
    }

    /// Counts a request that is dropped because its client has too many of them here. The client sends it again later.
    pub(crate) fn handle_overflow(&self) {
        self.state.lock().counts.overflow += 1;
    }

    /// How long the next request may take.
    pub(crate) fn estimate(&self, now: Time) -> Duration {
        self.state.lock().service.estimate(now)
    }

    pub(crate) fn counts(&self) -> LaneCounts {
        let s = self.state.lock();
        LaneCounts { running: s.queue.running() as u64, queued: s.queue.queued() as u64, ..s.counts }
    }

    /// Counts a request that was served in `took`.
    pub(crate) fn count(&self, opcode: Opcode, took: Duration) {
        self.stats.add(opcode, took);
    }

    pub(crate) fn stats(&self) -> OpSums {
        self.stats.read()
    }
}

impl<W: Classified> LaneSlot<W> {
    pub(crate) fn new(lane: Arc<LaneService<W>>, client: Nid, high_priority: bool) -> LaneSlot<W> {
        LaneSlot { lane, client, high_priority, left: AtomicBool::new(false) }
    }

    pub(crate) fn lane(&self) -> &LaneService<W> {
        &self.lane
    }

    /// The request no longer counts in its lane. Returns the request that may run in its place.
    pub(crate) fn leave(&self, book: impl FnOnce(&mut LaneState<W>)) -> Option<W> {
        if self.left.swap(true, Ordering::Relaxed) {
            return None;
        }
        let mut s = self.lane.state.lock();
        book(&mut s);
        s.queue.handle_done(self.high_priority)
    }

    /// The client is slow to send or take the data, so the request gives its slot back. A client with several such
    /// requests gets no further slots, until the values that this returns are dropped.
    pub(crate) fn handle_slow_transfer(&self) -> SlowTransfer<'_, W> {
        self.lane.state.lock().queue.handle_slow(self.client);
        self.handle_long_wait();
        SlowTransfer(self)
    }

    /// The handler is about to wait for other clients. The request gives its slot back, so that requests of those
    /// clients can run, and no longer counts in the estimate of how long requests take.
    pub(crate) fn handle_long_wait(&self) {
        self.lane.spawn(self.leave(|_| {}));
    }
}

impl<W: Classified> Drop for SlowTransfer<'_, W> {
    fn drop(&mut self) {
        let LaneSlot { lane, client, .. } = self.0;
        let next = lane.state.lock().queue.handle_slow_done(*client);
        lane.spawn(next);
    }
}
