//! Locks on ranges of one object for the duration of one request, which make the reads and writes of an RPC atomic. First
//! come, first served. Clients do not know of these locks.

use crate::extent_queue::{ExtentLock, ExtentQueue};
use nacre_ldlm::RangeSet;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The range locks of one object.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: ExtentQueue,
    waiters: Vec<(u64, oneshot::Sender<()>)>,
    last_id: u64,
}

/// A lock that is held or waited for; dropping this gives it up.
#[must_use = "dropping it unlocks"]
pub(crate) struct RangeGuard {
    lock: Arc<RangeLock>,
    id: u64,
}

impl RangeLock {
    /// Waits until no request writes in the ranges.
    pub(crate) async fn read(self: &Arc<Self>, ranges: RangeSet) -> RangeGuard {
        self.lock(ranges, false).await
    }

    /// Waits until no request reads or writes in the ranges.
    pub(crate) async fn write(self: &Arc<Self>, ranges: RangeSet) -> RangeGuard {
        self.lock(ranges, true).await
    }

    async fn lock(self: &Arc<Self>, ranges: RangeSet, is_write: bool) -> RangeGuard {
        let (guard, granted) = {
            let mut state = self.state.lock();
            state.last_id += 1;
            let id = state.last_id;
            let granted = if state.queue.enqueue(ExtentLock { id, is_write, ranges }) {
                None
            } else {
                let (sender, receiver) = oneshot::channel();
                state.waiters.push((id, sender));
                Some(receiver)
            };
            // From here on the guard gives the lock back, even if this future is dropped while it waits.
            (RangeGuard { lock: self.clone(), id }, granted)
        };
        if let Some(granted) = granted {
            granted.await.expect("the sender is kept until it has sent, or until the guard above is dropped");
        }
        guard
    }
}

impl RangeGuard {
    /// Panics unless no other request writes in `ranges`. To be called where data is read.
    pub(crate) fn assert_reads(&self, ranges: &RangeSet) {
        self.lock.state.lock().queue.assert_granted(self.id, ranges, false);
    }

    /// Panics unless no other request reads or writes in `ranges`. To be called where data is changed.
    pub(crate) fn assert_writes(&self, ranges: &RangeSet) {
        self.lock.state.lock().queue.assert_granted(self.id, ranges, true);
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.waiters.retain(|(id, _)| *id != self.id);
        for granted in state.queue.remove(self.id) {
            let at = state.waiters.iter().position(|(id, _)| *id == granted);
            let (_, waiter) = state.waiters.swap_remove(at.expect("a request that waits has somebody who waits"));
            // A waiter that is gone gave its lock back when it was dropped.
            let _ = waiter.send(());
        }
        let (waiters, requests) = (state.waiters.len(), state.queue.waiting());
        assert_eq!(waiters, requests, "those who wait for ranges, and the requests that wait");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_ldlm::Extent;
    use nacre_rt::Sim;
    use std::time::Duration;

    #[test]
    fn a_writer_waits_for_readers_and_a_dropped_wait_lets_others_go() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(60), async move {
            let lock = Arc::new(RangeLock::default());
            let range = |start, end| RangeSet::single(Extent { start, end });
            let reader = lock.read(range(0, 9)).await;
            let second = lock.read(range(0, 9)).await;
            assert!(rt.timeout(Duration::from_secs(1), lock.write(range(0, 9))).await.is_err(), "readers are in");
            let third = rt.timeout(Duration::from_secs(1), lock.read(range(0, 9))).await.expect("the writer gave up");
            drop((reader, second, third));
            let writer = lock.write(range(0, 9)).await;
            writer.assert_writes(&range(0, 9));
            assert!(rt.timeout(Duration::from_secs(1), lock.read(range(9, 9))).await.is_err());
            let beside = rt.timeout(Duration::from_secs(1), lock.read(range(10, 10))).await;
            drop((writer, beside));
            assert!(lock.state.lock().queue.is_empty());
        });
    }
}
