//! The two clocks. [`Rt`] is all that the code above knows of time, tasks and randomness: on tokio in production
//! ([`Rt::production`]), on a deterministic executor with a virtual nanosecond clock in simulation ([`Sim`]).
//!
//! Channels, mutexes and semaphores are `tokio::sync`'s, which needs no runtime. What must not be here: file systems.

mod production;
mod sim;
mod since;
mod task;

pub use sim::{Sim, SimStats, current_task};
pub use since::Since;
pub use task::Task;

use nacre_base::{Time, Timestamp};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A handle on a clock, an executor and a source of randomness. Cloning shares.
///
/// Tasks are spawned into the handle's scope. [`Rt::child`] makes a narrower scope (a node, a target, a mount) whose
/// tasks [`Rt::kill`] ends together, as when a process dies.
#[derive(Clone)]
pub struct Rt {
    clock: Clock,
    scope: Arc<Scope>,
}

#[derive(Clone)]
enum Clock {
    Production(production::Production),
    Sim(Arc<sim::Shared>),
}

/// Tasks of a scope, dead or alive, from which on the dead are swept out. A scope that is idle keeps no more dead tasks than this, or
/// than living ones.
const SWEEP_MIN: usize = 2;

/// The tasks that die together.
struct Scope {
    name: Arc<str>,
    /// Error of the scope's time of day, in nanoseconds; only in simulation.
    clock_error: i64,
    state: Mutex<ScopeState>,
}

#[derive(Default)]
struct ScopeState {
    dead: bool,
    /// Tasks spawned and perhaps not finished; swept when their number has doubled since the last sweep.
    tasks: Vec<task::Aborter>,
    sweep_at: usize,
    /// Scopes made below this one and perhaps gone; swept as the tasks are.
    children: Vec<std::sync::Weak<Scope>>,
    sweep_children_at: usize,
}

/// The time given to [`Rt::timeout`] passed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl Rt {
    /// The real clock, on tokio. Must be called within a runtime.
    pub fn production() -> Rt {
        Rt { clock: Clock::Production(production::Production::new()), scope: Scope::new("process", 0) }
    }

    fn simulated(shared: Arc<sim::Shared>) -> Rt {
        Rt { clock: Clock::Sim(shared), scope: Scope::new("sim", 0) }
    }

    /// The time on the monotonic clock.
    pub fn now(&self) -> Time {
        match &self.clock {
            Clock::Production(p) => p.now(),
            Clock::Sim(s) => s.now(),
        }
    }

    /// The time of day, for file times. In simulation it starts at a fixed date and follows the virtual clock.
    pub fn wall(&self) -> Timestamp {
        match &self.clock {
            Clock::Production(p) => p.wall(),
            Clock::Sim(s) => s.wall(self.scope.clock_error),
        }
    }

    /// 64 random bits: from the OS in production, from the seed in simulation.
    pub fn random(&self) -> u64 {
        match &self.clock {
            Clock::Production(p) => p.random(),
            Clock::Sim(s) => s.random(),
        }
    }

    /// Returns whether this is a simulation.
    pub fn is_simulated(&self) -> bool {
        matches!(self.clock, Clock::Sim(_))
    }

    /// Starts a task in this scope. Dropping the handle lets it run on. In a killed scope nothing starts.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Task {
        let (task, wrapped) = task::wrap(Box::pin(future));
        if self.scope.adopt(task.aborter()) {
            match &self.clock {
                Clock::Production(p) => p.spawn(wrapped),
                Clock::Sim(s) => s.spawn(wrapped, self.scope.name.clone()),
            }
        } else {
            task.abort();
        }
        task
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until `deadline`.
    pub fn sleep_until(&self, deadline: Time) -> Sleep {
        match &self.clock {
            Clock::Production(p) => Sleep::Production(Box::pin(p.sleep_until(deadline))),
            Clock::Sim(s) => Sleep::Sim(sim::SimSleep::new(s.clone(), deadline)),
        }
    }

    /// Lets other ready tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Runs `future` for at most `duration`. Returns its output, or [`Elapsed`] after dropping it.
    pub fn timeout<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> {
        self.timeout_at(self.now() + duration, future)
    }

    /// As [`Rt::timeout`], until `deadline`.
    pub async fn timeout_at<F: Future>(&self, deadline: Time, future: F) -> Result<F::Output, Elapsed> {
        let mut future = std::pin::pin!(future);
        let mut sleep = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(v) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(v));
            }
            // The timer is made only if the future was not ready at once.
            let sleep = sleep.get_or_insert_with(|| self.sleep_until(deadline));
            Pin::new(sleep).poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// A narrower scope of the same clock: killing it ends only its own tasks; killing this one ends both.
    pub fn child(&self, name: impl Into<Arc<str>>) -> Rt {
        self.child_of_clock(name, self.scope.clock_error)
    }

    /// In simulation, a narrower scope whose time of day is wrong by this many nanoseconds: a node of its own, whose clock
    /// nobody has set. Positive is fast. The monotonic clock is the same.
    pub fn child_with_clock_error(&self, name: impl Into<Arc<str>>, nanos: i64) -> Rt {
        assert!(self.is_simulated(), "a real clock is as it is");
        self.child_of_clock(name, nanos)
    }

    fn child_of_clock(&self, name: impl Into<Arc<str>>, clock_error: i64) -> Rt {
        let scope = Scope::new(name, clock_error);
        let mut state = self.scope.state.lock();
        if state.children.len() >= state.sweep_children_at {
            state.children.retain(|c| c.strong_count() > 0);
            state.sweep_children_at = (state.children.len() * 2).max(8);
        }
        state.children.push(Arc::downgrade(&scope));
        scope.state.lock().dead = state.dead;
        drop(state);
        Rt { clock: self.clock.clone(), scope }
    }

    /// Ends every task of this scope and of its children, at once and for good: as if the process had died.
    /// A task that is running at this moment ends at its next await.
    pub fn kill(&self) {
        self.scope.kill();
    }

    /// Dies on the spot, as a node that loses power: the whole process, without cleaning up; in simulation this scope.
    pub fn crash(&self) {
        if !self.is_simulated() {
            std::process::abort();
        }
        self.kill();
    }

    /// Returns whether the scope was killed.
    pub fn is_dead(&self) -> bool {
        self.scope.state.lock().dead
    }

    /// The scope's name, for logs.
    pub fn name(&self) -> &str {
        &self.scope.name
    }

    /// Tasks of this scope that have not finished (an upper bound, exact after a sweep); for leak checks.
    pub fn live_tasks(&self) -> usize {
        self.scope.state.lock().tasks.iter().filter(|t| !t.is_finished()).count()
    }
}

impl Scope {
    fn new(name: impl Into<Arc<str>>, clock_error: i64) -> Arc<Scope> {
        Arc::new(Scope { name: name.into(), clock_error, state: Mutex::default() })
    }

    /// Remembers a task so that it can be killed. Returns false if the scope is dead.
    fn adopt(&self, task: task::Aborter) -> bool {
        let mut s = self.state.lock();
        if s.dead {
            return false;
        }
        if s.tasks.len() >= s.sweep_at {
            s.tasks.retain(|t| !t.is_finished());
            s.sweep_at = (s.tasks.len() * 2).max(SWEEP_MIN);
        }
        s.tasks.push(task);
        true
    }

    fn kill(&self) {
        let (tasks, children) = {
            let mut s = self.state.lock();
            s.dead = true;
            (std::mem::take(&mut s.tasks), std::mem::take(&mut s.children))
        };
        tasks.iter().for_each(task::Aborter::abort);
        children.iter().filter_map(std::sync::Weak::upgrade).for_each(|c| c.kill());
    }
}

/// A future that is ready at a given time. Made by [`Rt::sleep`].
pub enum Sleep {
    #[doc(hidden)]
    Production(Pin<Box<production::TokioSleep>>),
    #[doc(hidden)]
    Sim(sim::SimSleep),
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Sleep::Production(s) => s.as_mut().poll(cx),
            Sleep::Sim(s) => Pin::new(s).poll(cx),
        }
    }
}
