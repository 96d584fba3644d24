//! The virtual clock: a single-threaded executor that is deterministic for its seed. Which ready task runs next is
//! a seeded choice; when none is ready, time jumps to the next timer. Every poll goes into a trace hash, so that two
//! runs can be compared by one number.

use super::Rt;
use super::task::BoxFuture;
use nacre_base::hash::mix64;
use nacre_base::{Prng, Time, Timestamp};
use parking_lot::Mutex;
use slab::Slab;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A simulation: owns the tasks and drives them. Use [`Sim::rt`] for the handle that code under test gets.
pub struct Sim {
    shared: Arc<Shared>,
    rt: Rt,
    tasks: Slab<Running>,
    /// Scratch for tasks woken or spawned since the last look.
    incoming: Vec<usize>,
    ready: Vec<usize>,
    trace: u64,
    polls: u64,
}

struct Running {
    future: BoxFuture,
    /// Name of the scope in which it was spawned.
    scope: Arc<str>,
    waker: Arc<TaskWaker>,
}

/// Counts of a simulation so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimStats {
    /// Virtual time.
    pub now: Time,
    /// Task polls: the events of the simulation.
    pub polls: u64,
    /// Hash over all polls and times: equal for equal runs.
    pub trace: u64,
    /// Tasks alive.
    pub tasks: usize,
}

/// State that handles, wakers and sleeps share with the executor.
pub(crate) struct Shared {
    now: AtomicU64,
    prng: Mutex<Prng>,
    woken: Arc<Mutex<Vec<usize>>>,
    spawned: Mutex<Vec<(BoxFuture, Arc<str>)>>,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    /// (deadline, sequence number) first; the sequence makes equal deadlines fire in the order they were set.
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// `None` for a timer whose sleep was dropped.
    wakers: Slab<Option<Waker>>,
    /// Number of timers in the queue whose sleep was dropped.
    unwanted: usize,
    next: u64,
}

/// The queue is swept when at least so many of its timers, and at least half of them, belong to dropped sleeps. Each request of a
/// simulation leaves such timers behind, because it was answered before its deadline, which may be minutes away.
const UNWANTED_MIN: usize = 64;

struct TaskWaker {
    id: usize,
    queued: AtomicBool,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.woken.lock().push(self.id);
        }
    }
}

thread_local! {
    /// The virtual time, and the scope of the task that this thread has begun to poll last.
    static CURRENT: RefCell<Option<(Time, Arc<str>)>> = const { RefCell::new(None) };
}

/// The virtual time and the name of the scope of the task that a simulation runs on this thread: what a line of a log
/// needs. `None` where no simulation has run.
pub fn current_task() -> Option<(Time, Arc<str>)> {
    CURRENT.with_borrow(Clone::clone)
}

/// Virtual time starts at this date: 2026-01-01 00:00:00 UTC.
const EPOCH_SECS: i64 = 1_767_225_600;

impl Sim {
    /// A simulation whose every choice `seed` determines.
    pub fn new(seed: u64) -> Sim {
        let shared = Arc::new(Shared {
            now: AtomicU64::new(0),
            prng: Mutex::new(Prng::new(seed)),
            woken: Arc::default(),
            spawned: Mutex::default(),
            timers: Mutex::default(),
        });
        let rt = Rt::simulated(shared.clone());
        Sim { shared, rt, tasks: Slab::new(), incoming: Vec::new(), ready: Vec::new(), trace: mix64(seed), polls: 0 }
    }

    /// The handle for code under test.
    pub fn rt(&self) -> Rt {
        self.rt.clone()
    }

    /// Runs until `future` is ready. Panics if nothing can ever make it ready (a hang), or past `limit`.
    pub fn block_on<T: Send + 'static>(&mut self, limit: Time, future: impl Future<Output = T> + Send + 'static) -> T {
        let out = Arc::new(Mutex::new(None));
        let slot = out.clone();
        let story = Box::pin(async move {
            let v = future.await;
            *slot.lock() = Some(v);
        });
        self.shared.spawn(story, "story".into());
        loop {
            if let Some(v) = out.lock().take() {
                return v;
            }
            if !self.step() {
                panic!("simulation hangs at {:?}: no task is ready and no timer is set", self.shared.now());
            }
            if self.shared.now() > limit {
                panic!("simulation passed its limit of {limit:?}: a livelock, or the limit is too short");
            }
        }
    }

    /// Runs everything that happens until `until`.
    pub fn run_until(&mut self, until: Time) {
        while self.next_event().is_some_and(|t| t <= until) {
            self.step();
        }
        self.shared.now.fetch_max(until.0, Ordering::Relaxed);
    }

    /// Counts of the simulation so far.
    pub fn stats(&self) -> SimStats {
        SimStats { now: self.shared.now(), polls: self.polls, trace: self.trace, tasks: self.tasks.len() }
    }

    fn next_event(&mut self) -> Option<Time> {
        self.collect();
        if !self.ready.is_empty() {
            return Some(self.shared.now());
        }
        self.shared.timers.lock().queue.peek().map(|Reverse((at, _, _))| Time(*at))
    }

    /// Polls one ready task, or moves time to the next timer. Returns false if there is neither.
    fn step(&mut self) -> bool {
        self.collect();
        if self.ready.is_empty() {
            return self.shared.fire_next_timer();
        }
        let n = self.ready.len() as u64;
        let choice = if n == 1 { 0 } else { self.shared.prng.lock().below(n) as usize };
        let id = self.ready.swap_remove(choice);
        self.poll(id);
        true
    }

    /// Moves newly spawned and woken tasks to the ready list.
    fn collect(&mut self) {
        for (future, scope) in std::mem::take(&mut *self.shared.spawned.lock()) {
            let entry = self.tasks.vacant_entry();
            let waker = Arc::new(TaskWaker {
                id: entry.key(),
                queued: AtomicBool::new(true),
                woken: self.shared.woken.clone(),
            });
            self.ready.push(entry.key());
            entry.insert(Running { future, scope, waker });
        }
        std::mem::swap(&mut self.incoming, &mut *self.shared.woken.lock());
        // Sorted, so that the order of wake-ups does not matter: `tokio::sync::watch` wakes in an order of its own.
        self.incoming.sort_unstable();
        // A task may have ended after it was woken, and its number may have passed on to a new, still queued task.
        self.ready.extend(self.incoming.drain(..).filter(|id| self.tasks.contains(*id)));
    }

    fn poll(&mut self, id: usize) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        self.polls += 1;
        self.trace = mix64(self.trace ^ mix64(self.shared.now().0) ^ id as u64);
        task.waker.queued.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.waker.clone());
        CURRENT.set(Some((self.shared.now(), task.scope.clone())));
        let done = task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if done {
            // Old wakers of this task must never queue its successor in the slot.
            task.waker.queued.store(true, Ordering::Relaxed);
            let ended = self.tasks.remove(id);
            self.shared.woken.lock().retain(|w| *w != id);
            drop(ended);
        }
    }
}

impl Drop for Sim {
    /// Futures hold handles to the executor's shared state: drop them first and outside the slab.
    fn drop(&mut self) {
        self.rt.kill();
        let tasks = std::mem::take(&mut self.tasks);
        drop(tasks);
        self.shared.spawned.lock().clear();
        *self.shared.timers.lock() = Timers::default();
    }
}

impl Timers {
    /// The sleep that set a timer was dropped before its deadline. The timer stays in the queue until its deadline, or until
    /// [`Timers::sweep`] removes it.
    fn release(&mut self, slot: usize) {
        // There are no timers any more if the simulation has ended before the sleep.
        let Some(waker) = self.wakers.get_mut(slot) else { return };
        assert!(waker.take().is_some(), "a timer is released once");
        self.unwanted += 1;
        if self.unwanted >= UNWANTED_MIN.max(self.queue.len() / 2) {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let Timers { queue, wakers, unwanted, .. } = self;
        queue.retain(|Reverse((_, _, slot))| {
            let is_wanted = wakers[*slot].is_some();
            if !is_wanted {
                wakers.remove(*slot);
                *unwanted -= 1;
            }
            is_wanted
        });
        assert_eq!(*unwanted, 0, "every timer of a dropped sleep was in the queue");
        queue.shrink_to(queue.len() * 2);
        wakers.shrink_to_fit();
    }

    /// Removes the earliest timer whose sleep was not dropped. Returns its deadline and the waker of the sleeping task.
    fn pop(&mut self) -> Option<(u64, Waker)> {
        loop {
            let Reverse((at, _, slot)) = self.queue.pop()?;
            match self.wakers.remove(slot) {
                Some(waker) => return Some((at, waker)),
                None => self.unwanted -= 1,
            }
        }
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    /// The time of day on a clock that is wrong by `error` nanoseconds.
    pub(crate) fn wall(&self, error: i64) -> Timestamp {
        Timestamp::from_nanos(i128::from(EPOCH_SECS) * 1_000_000_000 + i128::from(self.now().0) + i128::from(error))
    }

    pub(crate) fn random(&self) -> u64 {
        self.prng.lock().next_u64()
    }

    pub(crate) fn spawn(&self, future: BoxFuture, scope: Arc<str>) {
        self.spawned.lock().push((future, scope));
    }

    /// Moves time to the next timer that is still wanted and wakes it. Returns false if there is none.
    fn fire_next_timer(&self) -> bool {
        let next = self.timers.lock().pop();
        let Some((at, waker)) = next else { return false };
        self.now.fetch_max(at, Ordering::Relaxed);
        waker.wake();
        true
    }
}

/// A sleep on the virtual clock.
pub struct SimSleep {
    shared: Arc<Shared>,
    deadline: Time,
    /// Place of the sleep in the timers' slab, once it has been polled before the deadline.
    slot: Option<usize>,
}

impl SimSleep {
    pub(crate) fn new(shared: Arc<Shared>, deadline: Time) -> SimSleep {
        SimSleep { shared, deadline, slot: None }
    }
}

impl Future for SimSleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.deadline {
            self.release();
            return Poll::Ready(());
        }
        let shared = self.shared.clone();
        let mut timers = shared.timers.lock();
        match self.slot {
            Some(slot) => timers.wakers[slot] = Some(cx.waker().clone()),
            None => {
                let slot = timers.wakers.insert(Some(cx.waker().clone()));
                let seq = timers.next;
                timers.next += 1;
                timers.queue.push(Reverse((self.deadline.0, seq, slot)));
                self.slot = Some(slot);
            }
        }
        Poll::Pending
    }
}

impl SimSleep {
    /// Forgets the waker. A fired timer's slot is already free, and then `now >= deadline`, so only a sleep that has not fired may
    /// touch it.
    fn release(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if self.shared.now() < self.deadline {
            self.shared.timers.lock().release(slot);
        }
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MINUTE: Time = Time::from_secs(60);

    fn ping_pong(seed: u64) -> (u64, Vec<u64>) {
        let mut sim = Sim::new(seed);
        let rt = sim.rt();
        let order = sim.block_on(MINUTE, async move {
            let order = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..10u64)
                .map(|i| {
                    let (rt2, order) = (rt.clone(), order.clone());
                    rt.spawn(async move {
                        rt2.sleep(Duration::from_millis(i % 3)).await;
                        order.lock().push(i);
                    })
                })
                .collect();
            for t in tasks {
                t.await;
            }
            order.lock().clone()
        });
        (sim.stats().trace, order)
    }

    #[test]
    fn a_clock_that_is_wrong_shows_another_time_of_day_and_runs_as_fast() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(MINUTE, async move {
            let slow = rt.child_with_clock_error("slow", -5_000_000_000).child("its target");
            assert_eq!(slow.wall().secs, rt.wall().secs - 5);
            slow.sleep(Duration::from_secs(3)).await;
            assert_eq!((slow.wall().secs, slow.now()), (rt.wall().secs - 5, rt.now()));
        });
    }

    #[test]
    fn same_seed_same_trace_other_seed_other_order() {
        assert_eq!(ping_pong(1), ping_pong(1));
        assert!((2..20).any(|s| ping_pong(s).1 != ping_pong(1).1));
    }

    #[test]
    fn time_jumps_and_is_exact_to_the_nanosecond() {
        let mut sim = Sim::new(0);
        let rt = sim.rt();
        let t = sim.block_on(Time::from_secs(1_000_000), async move {
            rt.sleep(Duration::from_nanos(86_400_000_000_001)).await;
            rt.now()
        });
        assert_eq!(t, Time(86_400_000_000_001));
    }

    #[test]
    fn timeout_drops_the_slow_and_returns_the_fast() {
        let mut sim = Sim::new(0);
        let rt = sim.rt();
        sim.block_on(MINUTE, async move {
            let s = Duration::from_secs;
            assert_eq!(rt.timeout(s(1), rt.sleep(s(2))).await, Err(crate::Elapsed));
            assert_eq!(rt.timeout(s(2), async { 7 }).await, Ok(7));
            assert_eq!(rt.now(), Time::from_secs(1));
        });
    }

    #[test]
    fn a_killed_scope_drops_its_tasks_and_starts_no_more() {
        let mut sim = Sim::new(0);
        let rt = sim.rt();
        sim.block_on(MINUTE, async move {
            let node = rt.child("node");
            let grandchild = node.child("target");
            let witness = Arc::new(());
            for scope in [&node, &grandchild] {
                let (w, r) = (witness.clone(), scope.clone());
                scope.spawn(async move {
                    let _w = w;
                    r.sleep(Duration::from_secs(1_000_000)).await;
                });
            }
            rt.sleep(Duration::from_secs(1)).await;
            assert_eq!(Arc::strong_count(&witness), 3);
            node.kill();
            rt.yield_now().await;
            rt.sleep(Duration::from_secs(1)).await;
            assert_eq!(Arc::strong_count(&witness), 1);
            assert!(node.is_dead() && grandchild.is_dead());
            // A task spawned in a dead scope never runs, and is finished at once.
            node.spawn(async { panic!("a dead node ran a task") }).await;
        });
    }

    #[test]
    #[should_panic(expected = "hangs")]
    fn a_hang_is_a_panic() {
        Sim::new(0).block_on(MINUTE, std::future::pending::<()>());
    }
}
