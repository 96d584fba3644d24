//! The timers of a node: one for its calls (deadlines of requests and of callers, keep-alives of idle imports), one for
//! its services (early replies, the evictor). Each is armed for the earliest and then asks all who may be concerned.
//!
//! A request arms it with one atomic operation and disarms it never: deadlines are seconds away and mostly met, so
//! that it fires seldom.

use nacre_base::Time;
use nacre_rt::Rt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// When to look next.
pub(crate) struct Timer {
    next: AtomicU64,
    earlier: Notify,
}

/// The timer fires at most so often, however many deadlines there are.
const RESOLUTION: Duration = Duration::from_millis(1);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer { next: AtomicU64::new(Time::FAR_FUTURE.0), earlier: Notify::new() }
    }

    /// Something is due at `at`.
    pub(crate) fn arm(&self, at: Time) {
        if at.0 < self.next.load(Ordering::Relaxed) && at.0 < self.next.fetch_min(at.0, Ordering::AcqRel) {
            self.earlier.notify_one();
        }
    }

    /// Calls `fire` when something is due; `fire` says when the next thing is, or `None` to end this.
    pub(crate) async fn run(&self, rt: &Rt, mut fire: impl FnMut(Time) -> Option<Time>) {
        loop {
            let next = Time(self.next.load(Ordering::Acquire));
            if next == Time::FAR_FUTURE {
                self.earlier.notified().await;
                continue;
            }
            if rt.timeout_at(next, self.earlier.notified()).await.is_ok() {
                continue;
            }
            // What is armed from here on is seen: either by `fire` or in `next`.
            self.next.store(Time::FAR_FUTURE.0, Ordering::Release);
            match fire(rt.now()) {
                Some(at) => self.arm(at.max(rt.now() + RESOLUTION)),
                None => return,
            }
        }
    }
}
