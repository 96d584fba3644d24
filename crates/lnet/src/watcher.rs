//! A task that watches gateways, or what is watched like them: it sleeps until something is due, and is woken when something may
//! be due before.

use crate::gateways::Gateways;
use nacre_base::Time;
use nacre_rt::{Rt, Task};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the task looks while an answer is owed, at least: another one may be sent something meanwhile.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// The task, and what wakes it.
#[derive(Default)]
pub(crate) struct Watcher {
    task: Mutex<Option<Task>>,
    /// True while the task sleeps until the next ping is due, because nobody owes an answer.
    is_quiet: AtomicBool,
    /// Rung when somebody was sent something in that time.
    woken: Arc<Notify>,
}

/// When the task looks again.
pub(crate) enum Next {
    /// At this time.
    At(Time),
    /// When it is woken, or at this time if it is not.
    Woken(Time),
}

impl Watcher {
    /// Starts the task, unless it runs. It ends with its owner.
    pub(crate) fn start<N: Send + Sync + 'static>(&self, rt: &Rt, owner: Weak<N>, look: fn(&Arc<N>) -> Next) {
        let mut task = self.task.lock();
        if task.is_some() || rt.is_dead() {
            return;
        }
        let (clock, woken) = (rt.clone(), self.woken.clone());
        *task = Some(rt.spawn(async move {
            loop {
                let Some(owner) = owner.upgrade() else { return };
                let next = look(&owner);
                drop(owner);
                match next {
                    // Without a timer, so that a simulation in which nothing can happen any more is seen to hang.
                    Next::Woken(Time::FAR_FUTURE) => woken.notified().await,
                    Next::Woken(at) => drop(clock.timeout_at(at, woken.notified()).await),
                    Next::At(at) => clock.sleep_until(at).await,
                }
            }
        }));
    }

    /// Ends the task.
    pub(crate) fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Wakes the task, because something may be due before the time that it sleeps until.
    pub(crate) fn wake(&self) {
        if self.is_quiet.load(Ordering::Relaxed) && self.is_quiet.swap(false, Ordering::Relaxed) {
            self.woken.notify_one();
        }
    }

    /// The task has done what is due. This comes before the lock for [`Watcher::next`] is taken, so that whoever changes what is
    /// watched after that, under its lock, wakes the task.
    pub(crate) fn handle_done(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
    }

    /// When the task looks again.
    pub(crate) fn next(&self, watched: &Gateways, now: Time) -> Next {
        watched.quiet_until().map_or_else(
            || {
                self.is_quiet.store(false, Ordering::Relaxed);
                Next::At(watched.due().min(now + TICK))
            },
            Next::Woken,
        )
    }
}
