//! Who waits to be interrupted. The kernel sends INTERRUPT when a signal comes to a process whose request is being
//! served; most requests need not know. One that may wait for long (a lock) awaits [`Context::interrupted`].
//!
//! An engine without IO. Requests register only when they begin to listen, so an INTERRUPT may come before that:
//! it is remembered for a while.
//!
//! [`Context::interrupted`]: crate::handler::Context::interrupted

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// INTERRUPTs remembered for requests that do not listen (yet). Beyond that the oldest request's is forgotten.
const EARLY_MAX: usize = 4096;

/// The registry of one session.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<State>);

#[derive(Default)]
struct State {
    /// The session is over, which interrupts everybody.
    over: bool,
    /// Requests that listen.
    listening: BTreeMap<u64, Waker>,
    /// Requests interrupted that did not listen. The kernel's numbers only grow, so the smallest is the oldest.
    early: BTreeSet<u64>,
}

impl Interrupts {
    /// The kernel interrupts the request `unique`.
    pub(crate) fn handle_interrupt(&self, unique: u64) {
        let mut state = self.0.lock();
        state.early.insert(unique);
        if state.early.len() > EARLY_MAX {
            state.early.pop_first();
        }
        let waker = state.listening.remove(&unique);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The session is over: nobody waits for an answer any more.
    pub(crate) fn handle_end(&self) {
        let mut state = self.0.lock();
        state.over = true;
        let listening = std::mem::take(&mut state.listening);
        drop(state);
        listening.into_values().for_each(Waker::wake);
    }

    /// Ready once the request `unique` is interrupted.
    pub(crate) fn interrupted(self: &Arc<Self>, unique: u64) -> Interrupted {
        Interrupted { interrupts: self.clone(), unique }
    }

    /// Requests that listen, for leak checks.
    #[cfg(test)]
    pub(crate) fn listening_count(&self) -> usize {
        self.0.lock().listening.len()
    }
}

/// Future of an interruption. Dropping it stops listening.
pub(crate) struct Interrupted {
    interrupts: Arc<Interrupts>,
    unique: u64,
}

impl Future for Interrupted {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.interrupts.0.lock();
        // Not removed: whoever asks again of the same request gets the same answer.
        if state.over || state.early.contains(&self.unique) {
            return Poll::Ready(());
        }
        let stale = state.listening.insert(self.unique, cx.waker().clone());
        drop(state);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        // The waker is dropped after the lock is released: it may own the work that listens.
        let waker = self.interrupts.0.lock().listening.remove(&self.unique);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(f: &mut Interrupted) -> Poll<()> {
        Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn only_the_request_meant_is_interrupted() {
        let i = Arc::new(Interrupts::default());
        let (mut a, mut b) = (i.interrupted(2), i.interrupted(4));
        assert!(poll(&mut a).is_pending() && poll(&mut b).is_pending());
        i.handle_interrupt(4);
        assert!(poll(&mut a).is_pending());
        assert!(poll(&mut b).is_ready() && poll(&mut b).is_ready());
        drop((a, b));
        assert_eq!(i.listening_count(), 0);
    }

    #[test]
    fn an_interrupt_before_the_request_listens_is_not_lost() {
        let i = Arc::new(Interrupts::default());
        i.handle_interrupt(2);
        assert!(poll(&mut i.interrupted(2)).is_ready());
    }

    #[test]
    fn the_end_of_the_session_interrupts_everybody() {
        let i = Arc::new(Interrupts::default());
        let mut a = i.interrupted(2);
        assert!(poll(&mut a).is_pending());
        i.handle_end();
        assert!(poll(&mut a).is_ready() && poll(&mut i.interrupted(4)).is_ready());
    }

    #[test]
    fn memory_is_bounded() {
        let i = Arc::new(Interrupts::default());
        (0..3 * EARLY_MAX as u64).for_each(|u| i.handle_interrupt(u));
        assert_eq!(i.0.lock().early.len(), EARLY_MAX);
        assert!(poll(&mut i.interrupted(3 * EARLY_MAX as u64 - 1)).is_ready(), "the newest is kept");
    }
}
