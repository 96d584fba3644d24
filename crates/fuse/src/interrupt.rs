//! Requests that wait to be interrupted. The kernel sends INTERRUPT when a signal comes to a process whose request is
//! being served. Every request that has to wait listens ([`crate::running`]); an operation that may wait for long (a
//! lock) can listen itself, too, and answer sooner ([`Context::interrupted`]).
//!
//! An engine without IO. Requests register only when they begin to listen, so an INTERRUPT may come before that:
//! it is remembered for a while.
//!
//! [`Context::interrupted`]: crate::handler::Context::interrupted

use crate::left::Left;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Most INTERRUPTs remembered for requests that do not listen (yet). Beyond that the oldest request's is forgotten.
const EARLY_MAX: usize = 4096;

/// The registry of one session.
pub(crate) struct Interrupts {
    rt: Rt,
    left: Arc<Left>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// True once the session is over, which interrupts all requests.
    over: bool,
    /// Requests that listen, with the number of listeners of each.
    listening: BTreeMap<u64, (Waker, u32)>,
    /// Interrupted requests that did not listen. The kernel's numbers only grow, so the smallest is the oldest.
    early: BTreeSet<u64>,
}

impl Interrupts {
    pub(crate) fn new(rt: Rt) -> Interrupts {
        Interrupts { rt, left: Arc::default(), state: Mutex::default() }
    }

    /// The session's clock and tasks.
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }

    /// The requests of the session that their callers have left.
    pub(crate) fn left(&self) -> &Arc<Left> {
        &self.left
    }

    /// True if the session is over.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Handles an INTERRUPT for the request `unique`.
    pub(crate) fn handle_interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        state.early.insert(unique);
        if state.early.len() > EARLY_MAX {
            state.early.pop_first();
        }
        let waker = state.listening.get(&unique).map(|(waker, _)| waker.clone());
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The session is over: no caller waits for an answer.
    pub(crate) fn handle_end(&self) {
        let mut state = self.state.lock();
        state.over = true;
        let wakers: Vec<Waker> = state.listening.values().map(|(waker, _)| waker.clone()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A future that is ready once the request `unique` is interrupted.
    pub(crate) fn interrupted(self: &Arc<Self>, unique: u64) -> Interrupted {
        Interrupted { interrupts: self.clone(), unique, is_listening: false }
    }

    /// Number of requests that listen, for leak checks.
    #[cfg(test)]
    pub(crate) fn listening_count(&self) -> usize {
        self.state.lock().listening.len()
    }
}

/// Waits for an interruption. Dropping it stops listening.
pub(crate) struct Interrupted {
    interrupts: Arc<Interrupts>,
    unique: u64,
    is_listening: bool,
}

impl Future for Interrupted {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (interrupts, is_first) = (self.interrupts.clone(), !std::mem::replace(&mut self.is_listening, true));
        let mut state = interrupts.state.lock();
        let (waker, parts) = state.listening.entry(self.unique).or_insert_with(|| (cx.waker().clone(), 0));
        *parts += u32::from(is_first);
        let stale = (!waker.will_wake(cx.waker())).then(|| std::mem::replace(waker, cx.waker().clone()));
        // Not removed, so that further listeners of the same request get the same answer.
        let is_interrupted = state.over || state.early.contains(&self.unique);
        drop(state);
        // Dropped outside the mutex, because the waker may own the work that listens.
        drop(stale);
        if is_interrupted { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if !self.is_listening {
            return;
        }
        let mut state = self.interrupts.state.lock();
        let is_last = state.listening.get_mut(&self.unique).is_some_and(|(_, parts)| {
            *parts -= 1;
            *parts == 0
        });
        // The waker is dropped after the lock is released, because it may own the work that listens.
        let waker = is_last.then(|| state.listening.remove(&self.unique));
        drop(state);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupts() -> Arc<Interrupts> {
        Arc::new(Interrupts::new(nacre_rt::Sim::new(1).rt()))
    }

    fn poll(f: &mut Interrupted) -> Poll<()> {
        Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn only_the_request_meant_is_interrupted() {
        let i = interrupts();
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
        let i = interrupts();
        i.handle_interrupt(2);
        assert!(poll(&mut i.interrupted(2)).is_ready());
    }

    #[test]
    fn the_end_of_the_session_interrupts_everybody() {
        let i = interrupts();
        let mut a = i.interrupted(2);
        assert!(poll(&mut a).is_pending());
        i.handle_end();
        assert!(poll(&mut a).is_ready() && poll(&mut i.interrupted(4)).is_ready());
    }

    #[test]
    fn memory_is_bounded() {
        let i = interrupts();
        (0..3 * EARLY_MAX as u64).for_each(|u| i.handle_interrupt(u));
        assert_eq!(i.state.lock().early.len(), EARLY_MAX);
        assert!(poll(&mut i.interrupted(3 * EARLY_MAX as u64 - 1)).is_ready(), "the newest is kept");
    }
}
