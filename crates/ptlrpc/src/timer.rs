//! The timers of a node: one for its calls (deadlines of requests and of callers, keep-alives of idle imports), one for
//! its services (early replies, the evictor). Each is armed for the earliest deadline and then asks all imports, or all
//! exports.
//!
//! A request arms the timer with one atomic operation and never disarms it: deadlines are seconds away and mostly met,
//! so the timer seldom fires.

use nacre_base::Time;
use nacre_rt::Rt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Time of the next check.
pub(crate) struct Timer {
    next: AtomicU64,
    earlier: Notify,
}

/// Shortest time between two checks, however many deadlines there are.
pub(crate) const RESOLUTION: Duration = Duration::from_millis(1);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer { next: AtomicU64::new(Time::FAR_FUTURE.0), earlier: Notify::new() }
    }

    /// Makes the timer fire at `at` or earlier.
    pub(crate) fn arm(&self, at: Time) {
        if at.0 < self.next.load(Ordering::Relaxed) && at.0 < self.next.fetch_min(at.0, Ordering::AcqRel) {
            self.earlier.notify_one();
        }
    }

    /// Calls `fire` when something is due. `fire` returns the time of the next deadline, or `None` to end the timer.
    pub(crate) async fn run(&self, rt: &Rt, mut fire: impl FnMut(Time) -> Option<Time>) {
        loop {
            let next = Time(self.next.load(Ordering::Acquire));
            if next == Time::FAR_FUTURE {
                self.earlier.notified().await;
                continue;
            }
            if rt.timeout_at(next, std::pin::pin!(self.earlier.notified())).await.is_ok() {
                continue;
            }
            // A deadline armed from here on is seen, either by `fire` or in `next`.
            self.next.store(Time::FAR_FUTURE.0, Ordering::Release);
            match fire(rt.now()) {
                Some(at) => self.arm(at.max(rt.now() + RESOLUTION)),
                None => return,
            }
        }
    }
}
