//! Runs work where it arose. Most requests are answered at their first poll; most others wait for one message, and end at
//! their second poll. So work that has to wait is parked, not spawned, and becomes a task when it is woken: that saves
//! waking an executor thread which would only find that there is nothing to do yet.
//!
//! Parked work is not a task of the runtime: `Rt::kill` does not end it, but it cannot go on either.

use crate::handler::Work;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

/// Polls `work` here, once. If it is not done then, it goes on as a task of `rt` as soon as it is woken, wrapped by
/// `wait`.
pub(crate) fn run<W: Future<Output = ()> + Send + 'static>(
    rt: &Rt,
    mut work: Work,
    wait: impl FnOnce(Work, &mut Context<'_>) -> W,
) {
    let parked = Arc::new(Parked { rt: rt.clone(), slot: Mutex::new(Slot::Polling) });
    let waker = Waker::from(parked.clone());
    let mut context = Context::from_waker(&waker);
    // A panic is a bug of one operation. Its reply object has sent EIO by now; this thread must live on.
    match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context).is_pending())) {
        Ok(true) => parked.park(wait(work, &mut context)),
        Ok(false) => {}
        Err(_) => tracing::error!("a handler panicked"),
    }
}

/// Work between its first poll and its wake-up. Its wakers own it: if the last of them is dropped, nothing can wake it,
/// and it is dropped as well (which answers its request with EIO).
struct Parked<W> {
    rt: Rt,
    slot: Mutex<Slot<W>>,
}

enum Slot<W> {
    /// The first poll is under way.
    Polling,
    /// The work was woken during the first poll.
    Woken,
    /// The work waits to be woken.
    Waiting(W),
    /// The work has become a task, or is done.
    Gone,
}

impl<W: Future<Output = ()> + Send + 'static> Parked<W> {
    fn park(&self, work: W) {
        let mut slot = self.slot.lock();
        match *slot {
            Slot::Polling => *slot = Slot::Waiting(work),
            _ => {
                *slot = Slot::Gone;
                drop(slot);
                self.rt.spawn(work);
            }
        }
    }
}

impl<W: Future<Output = ()> + Send + 'static> Wake for Parked<W> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut slot = self.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Waiting(work) => {
                drop(slot);
                self.rt.spawn(work);
            }
            Slot::Polling | Slot::Woken => *slot = Slot::Woken,
            // The task has a waker of its own; this one is stale.
            Slot::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_rt::Sim;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::oneshot;

    fn run_work(rt: &Rt, work: Work) {
        run(rt, work, |work, _| work);
    }

    #[test]
    fn work_that_need_not_wait_is_no_task() {
        let sim = Sim::new(1);
        let done = Arc::new(AtomicU32::new(0));
        let d = done.clone();
        run_work(&sim.rt(), Box::pin(async move { d.store(1, Ordering::SeqCst) }));
        assert_eq!((done.load(Ordering::SeqCst), sim.rt().live_tasks()), (1, 0));
    }

    #[test]
    fn work_that_waits_goes_on_when_it_is_woken_however_often() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(1), async move {
            let (first, first_in) = oneshot::channel();
            let (second, second_in) = oneshot::channel();
            let (sum, sum_out) = oneshot::channel();
            let work = async move {
                let a: u32 = first_in.await.unwrap();
                let b: u32 = second_in.await.unwrap();
                sum.send(a + b).unwrap();
            };
            run_work(&rt, Box::pin(work));
            assert_eq!(rt.live_tasks(), 0, "parked, not spawned");
            first.send(1).unwrap();
            rt.yield_now().await;
            second.send(2).unwrap();
            assert_eq!(sum_out.await, Ok(3));
        });
    }

    #[test]
    fn a_wake_up_during_the_first_poll_is_not_lost() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(1), async move {
            let (done, done_out) = oneshot::channel();
            let inner = rt.clone();
            run_work(
                &rt,
                Box::pin(async move {
                    inner.yield_now().await;
                    done.send(()).unwrap();
                }),
            );
            done_out.await.unwrap();
        });
    }

    #[test]
    fn work_that_nobody_can_wake_is_dropped() {
        let sim = Sim::new(1);
        let alive = Arc::new(());
        let held = alive.clone();
        run_work(
            &sim.rt(),
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(held);
            }),
        );
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_panic_stays_inside() {
        run_work(&Sim::new(1).rt(), Box::pin(async { panic!("announced: this work panics") }));
    }
}
