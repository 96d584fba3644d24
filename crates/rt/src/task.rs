//! A spawned task: can be awaited and aborted, on either clock.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// A task as an executor runs it.
pub(crate) type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handle on a spawned task. Awaiting it waits for the task's end; dropping it does nothing to the task.
pub struct Task(Arc<Control>);

/// Ends a task; does not keep its future alive.
#[derive(Clone)]
pub(crate) struct Aborter(Arc<Control>);

#[derive(Default)]
struct Control {
    aborted: AtomicBool,
    finished: AtomicBool,
    wakers: Mutex<Wakers>,
}

#[derive(Default)]
struct Wakers {
    /// The executor's waker, to make an aborted task be polled once more and drop its future.
    runner: Option<Waker>,
    /// Wakers of those that await the task's end.
    waiters: Vec<Waker>,
}

impl Task {
    /// Ends the task at its next await. Its future is dropped by the executor soon after.
    pub fn abort(&self) {
        self.aborter().abort();
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.finished.load(Ordering::Acquire)
    }

    pub(crate) fn aborter(&self) -> Aborter {
        Aborter(self.0.clone())
    }
}

impl Future for Task {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_finished() {
            return Poll::Ready(());
        }
        let mut wakers = self.0.wakers.lock();
        // Checked again under the lock: the task takes the lock after it set the flag.
        if self.is_finished() {
            return Poll::Ready(());
        }
        wakers.waiters.push(cx.waker().clone());
        Poll::Pending
    }
}

impl Aborter {
    pub(crate) fn abort(&self) {
        self.0.aborted.store(true, Ordering::Release);
        let runner = self.0.wakers.lock().runner.take();
        if let Some(w) = runner {
            w.wake();
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.finished.load(Ordering::Acquire)
    }
}

/// Wraps a future for the executor. Returns its handle, and the wrapped future.
pub(crate) fn wrap(future: BoxFuture) -> (Task, BoxFuture) {
    let control = Arc::new(Control::default());
    (Task(control.clone()), Box::pin(Wrapped { control, future: Some(future) }))
}

struct Wrapped {
    control: Arc<Control>,
    future: Option<BoxFuture>,
}

impl Future for Wrapped {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.control.aborted.load(Ordering::Acquire) {
            {
                let runner = &mut self.control.wakers.lock().runner;
                if runner.as_ref().is_none_or(|w| !w.will_wake(cx.waker())) {
                    *runner = Some(cx.waker().clone());
                }
            }
            // An abort may have come during the poll: check again.
            let pending = self.future.as_mut().is_some_and(|f| f.as_mut().poll(cx).is_pending());
            if pending && !self.control.aborted.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        self.future = None;
        Poll::Ready(())
    }
}

impl Drop for Wrapped {
    /// Reached when the task ended, was aborted, panicked, or its executor went away: in every case it is finished.
    fn drop(&mut self) {
        self.future = None;
        self.control.finished.store(true, Ordering::Release);
        let Wakers { runner, waiters } = std::mem::take(&mut *self.control.wakers.lock());
        drop(runner);
        waiters.into_iter().for_each(Waker::wake);
    }
}
