//! The lanes of a target: each has a queue ([`crate::nrs`]), statistics of how long its requests took, and a limit of
//! requests that run at once. This file does not know what a request is or how it is served.

use crate::adaptive_timeout::Estimator;
use crate::nrs::device_time::DeviceTime;
use crate::nrs::{Admission, Classified, Done, LaneQueue, Schedule, Ticket};
use crate::stats::{OpStats, OpSums};
use crate::timer::Timer;
use nacre_base::{Nid, Time};
use nacre_rt::{Rt, Task};
use nacre_wire::{Lane, Opcode};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The node that lanes belong to.
pub(crate) trait LaneOwner<W>: Send + Sync {
    /// Starts a task that serves a request, and then the waiting ones of its lane.
    fn spawn_worker(self: Arc<Self>, work: W);
    /// How a lane that is made now, of a target of this service, lets requests run.
    fn schedule(&self, service: &'static str, lane: Lane) -> Schedule;
    /// The clock.
    fn rt(&self) -> &Rt;
}

/// Queue and statistics of one target's lane.
pub(crate) struct LaneService<W: Classified> {
    state: Mutex<LaneState<W>>,
    stats: OpStats,
    owner: Weak<dyn LaneOwner<W>>,
    this: Weak<LaneService<W>>,
    /// True if the policy needs to know how long requests take at the device.
    measures_device: AtomicBool,
    /// Fires when a request may run that waits although there is a slot. Made when a request first does: few policies let one.
    timer: OnceLock<Box<(Arc<Timer>, Task)>>,
}

pub(crate) struct LaneState<W: Classified> {
    queue: LaneQueue<W>,
    /// Requests at the device; none before a policy needed to know how long requests take there.
    device: Option<Box<DeviceTime>>,
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
    /// The [`Ticket`] that the request got with its slot.
    ticket: AtomicU64,
    /// Microseconds that the request has taken from the device, if its lane measures them.
    device_us: AtomicU32,
}

/// A request at the device, until this is dropped.
pub(crate) struct AtDevice<'a, W: Classified>(&'a LaneSlot<W>, u64);

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
    /// The lane of a target of this service.
    pub(crate) fn new(lane: Lane, service: &'static str, owner: Weak<dyn LaneOwner<W>>) -> Arc<LaneService<W>> {
        let schedule = owner.upgrade().map_or_else(|| Schedule::of(lane), |owner| owner.schedule(service, lane));
        let measures_device = AtomicBool::new(schedule.measures_device());
        let (device, service, counts) = Default::default();
        let state = LaneState { queue: LaneQueue::new(schedule), device, service, counts };
        Arc::new_cyclic(|this| LaneService {
            state: Mutex::new(state),
            stats: OpStats::default(),
            owner,
            this: this.clone(),
            measures_device,
            timer: OnceLock::new(),
        })
    }

    /// Another schedule from now on, also for the requests that wait.
    pub(crate) fn set_schedule(&self, schedule: Schedule, now: Time) {
        self.measures_device.store(schedule.measures_device(), Ordering::Relaxed);
        let mut s = self.state.lock();
        let next = s.queue.set_schedule(schedule, now);
        self.arm(s);
        self.spawn(next);
    }

    /// Sets the limit of the target's congestion control on requests that run at once, or takes it away.
    pub(crate) fn set_at_once(&self, most: Option<u32>, now: Time) {
        let mut s = self.state.lock();
        // The limit comes with each answer, and rarely changes.
        if s.queue.at_once() == most {
            return;
        }
        let next = s.queue.set_at_once(most, now);
        self.arm(s);
        self.spawn(next);
    }

    /// Requests of a priority that run and that wait.
    pub(crate) fn counts_of(&self, high_priority: bool) -> (usize, usize) {
        self.state.lock().queue.counts(high_priority)
    }

    /// Classes of a rule of a priority's `tbf`.
    pub(crate) fn classes_of(&self, high_priority: bool, rule: u64) -> usize {
        self.state.lock().queue.classes_of(high_priority, rule)
    }

    fn spawn(&self, works: impl IntoIterator<Item = W>) {
        let Some(owner) = self.owner.upgrade() else { return };
        works.into_iter().for_each(|work| owner.clone().spawn_worker(work));
    }

    /// Sets the timer for the time at which a waiting request may next take a free slot, if there is such a time.
    fn arm(&self, state: MutexGuard<'_, LaneState<W>>) {
        let Some(at) = state.queue.wake_at() else { return };
        drop(state);
        let Some(owner) = self.owner.upgrade() else { return };
        let (timer, _) = &**self.timer.get_or_init(|| {
            let (timer, rt, lane) = (Arc::new(Timer::new()), owner.rt().clone(), self.this.clone());
            let fires = timer.clone();
            let task = owner.rt().spawn(async move {
                fires.run(&rt, |now| lane.upgrade().map(|lane| lane.handle_time(now))).await;
            });
            Box::new((timer, task))
        });
        timer.arm(at);
    }

    /// Time has passed: lets requests run whose time has come. Returns when the next one may.
    fn handle_time(&self, now: Time) -> Time {
        let (next, at) = {
            let mut s = self.state.lock();
            (s.queue.handle_time(now), s.queue.wake_at())
        };
        self.spawn(next);
        at.unwrap_or(Time::FAR_FUTURE)
    }

    /// A request arrived. Returns the request that runs now, which may be another one, or whether the arrived one waits or is dropped.
    pub(crate) fn handle_arrival(&self, work: W, now: Time) -> Admission<W> {
        let mut s = self.state.lock();
        let admission = s.queue.handle_arrival(work, now);
        self.arm(s);
        admission
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

    /// The time; none if the node is gone.
    fn now(&self) -> Option<Time> {
        self.owner.upgrade().map(|owner| owner.rt().now())
    }
}

impl<W: Classified> LaneSlot<W> {
    pub(crate) fn new(lane: Arc<LaneService<W>>, client: Nid, high_priority: bool) -> LaneSlot<W> {
        let (left, ticket, device_us) = Default::default();
        LaneSlot { lane, client, high_priority, left, ticket, device_us }
    }

    /// Keeps the ticket that the request got with its slot.
    pub(crate) fn note(&self, ticket: Ticket) {
        self.ticket.store(ticket.number(), Ordering::Relaxed);
    }

    /// The ticket that the request got with its slot.
    pub(crate) fn noted(&self) -> Ticket {
        Ticket::of_number(self.ticket.load(Ordering::Relaxed))
    }

    /// The request is about to wait for the device. Returns none if its lane does not measure how long.
    pub(crate) fn at_device(&self) -> Option<AtDevice<'_, W>> {
        if !self.lane.measures_device.load(Ordering::Relaxed) {
            return None;
        }
        let now = self.lane.now()?;
        let number = self.lane.state.lock().device.get_or_insert_default().begin(now);
        Some(AtDevice(self, number))
    }

    pub(crate) fn lane(&self) -> &LaneService<W> {
        &self.lane
    }

    /// The request no longer counts in its lane. Returns the request that may run in its place.
    pub(crate) fn leave(&self, book: impl FnOnce(&mut LaneState<W>)) -> Option<W> {
        if self.left.swap(true, Ordering::Relaxed) {
            return None;
        }
        // A node that is gone runs nothing.
        let now = self.lane.now()?;
        let done = Done { ticket: self.noted(), device_us: self.device_us.load(Ordering::Relaxed) };
        let mut s = self.lane.state.lock();
        book(&mut s);
        let next = s.queue.handle_done(self.high_priority, done, now);
        self.lane.arm(s);
        next
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
        let Some(now) = lane.now() else { return };
        let mut s = lane.state.lock();
        let next = s.queue.handle_slow_done(*client, now);
        lane.arm(s);
        lane.spawn(next);
    }
}

impl<W: Classified> Drop for AtDevice<'_, W> {
    fn drop(&mut self) {
        let AtDevice(slot, number) = self;
        let Some(now) = slot.lane.now() else { return };
        let took = {
            let mut s = slot.lane.state.lock();
            s.device.as_mut().expect("a request is at the device").end(*number, now)
        };
        slot.device_us.fetch_add(u32::try_from(took.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

impl<W: Classified> Drop for LaneService<W> {
    fn drop(&mut self) {
        self.timer.get().into_iter().for_each(|timer| timer.1.abort());
    }
}
