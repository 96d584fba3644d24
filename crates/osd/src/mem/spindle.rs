//! Turns at a medium that does one thing at a time: in order of asking, but what is urgent goes before all that is not.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Who may use the medium.
#[derive(Debug, Default)]
pub(super) struct Spindle(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    busy: bool,
    urgent: VecDeque<oneshot::Sender<Turn>>,
    others: VecDeque<oneshot::Sender<Turn>>,
}

/// A turn at the medium; dropping it ends it.
#[derive(Debug)]
pub(super) struct Turn(Option<Arc<Spindle>>);

impl Spindle {
    /// Waits for a turn.
    pub(super) async fn turn(self: &Arc<Self>, urgent: bool) -> Turn {
        let told = {
            let mut queue = self.0.lock();
            if !std::mem::replace(&mut queue.busy, true) {
                return Turn(Some(self.clone()));
            }
            let (tell, told) = oneshot::channel();
            if urgent { &mut queue.urgent } else { &mut queue.others }.push_back(tell);
            told
        };
        // Nobody drops a sender unsent.
        told.await.unwrap_or(Turn(None))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(spindle) = self.0.take() else { return };
        loop {
            let next = {
                let mut queue = spindle.0.lock();
                let next = queue.urgent.pop_front().or_else(|| queue.others.pop_front());
                queue.busy = next.is_some();
                next
            };
            let Some(next) = next else { return };
            match next.send(Turn(Some(spindle.clone()))) {
                Ok(()) => return,
                // It waits no more. Not to be dropped as a turn, which would come back here.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn one_at_a_time_the_urgent_first_and_who_gave_up_is_passed_over() {
        let spindle = Arc::new(Spindle::default());
        let first = spindle.turn(false).now_or_never().expect("free");
        let mut second = Box::pin(spindle.turn(false));
        let mut gone = Box::pin(spindle.turn(true));
        let mut urgent = Box::pin(spindle.turn(true));
        assert!((&mut second).now_or_never().is_none() && (&mut gone).now_or_never().is_none());
        assert!((&mut urgent).now_or_never().is_none());
        drop(gone);
        drop(first);
        assert!((&mut second).now_or_never().is_none(), "the urgent one is before it");
        let turn = (&mut urgent).now_or_never().expect("its turn");
        drop(turn);
        drop((&mut second).now_or_never().expect("its turn"));
        assert!(spindle.turn(false).now_or_never().is_some(), "free again");
    }
}
