//! The order of locks and last closes. The kernel does not wait for the answer to RELEASE, which ends the locks of an
//! open file description; close(2) has returned by then, and the next program may ask for the lock. So a request about
//! locks waits until every RELEASE of its file that was read before has been served.
//!
//! Several readers take messages from the kernel. A reader increments its counter before it takes a message, and again
//! when it has begun to serve it. A request about locks first waits for each reader that was in between, because that
//! reader's message may come before it.

use crate::left::pass;
use nacre_base::FxHashMap;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// The RELEASEs of one session that are being served.
pub(crate) struct Releases {
    /// For each reader twice the number of messages that it has taken, plus one while it has taken one and not begun to
    /// serve it.
    readers: Box<[AtomicU64]>,
    /// Gates by node. A gate is closed, which lets everybody pass, when its RELEASE has been served.
    gates: Mutex<FxHashMap<u64, Vec<Arc<Semaphore>>>>,
}

/// A RELEASE that is being served. Dropped when it has been.
pub(crate) struct Release {
    releases: Arc<Releases>,
    node: u64,
    gate: Arc<Semaphore>,
}

/// A reader that has taken a message, or is about to. Dropped when it has begun to serve it.
pub(crate) struct Taking<'a>(&'a AtomicU64);

impl Releases {
    /// For a session with `readers` readers.
    pub(crate) fn new(readers: usize) -> Releases {
        Releases { readers: (0..readers).map(|_| AtomicU64::new(0)).collect(), gates: Mutex::default() }
    }

    /// Notes that `reader` is about to take a message.
    pub(crate) fn take(&self, reader: usize) -> Taking<'_> {
        let before = self.readers[reader].fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "a reader takes one message at a time");
        Taking(&self.readers[reader])
    }

    /// Notes that a RELEASE of `node` was read.
    pub(crate) fn begin(self: &Arc<Releases>, node: u64) -> Release {
        let gate = Arc::new(Semaphore::new(0));
        self.gates.lock().entry(node).or_default().push(gate.clone());
        Release { releases: self.clone(), node, gate }
    }

    /// Waits for the RELEASEs of `node` that were read before a request that `reader` has read.
    pub(crate) async fn wait(&self, rt: &Rt, reader: usize, node: u64) {
        for (other, taken) in self.readers.iter().enumerate() {
            let seen = taken.load(Ordering::SeqCst);
            while other != reader && !seen.is_multiple_of(2) && taken.load(Ordering::SeqCst) == seen {
                rt.yield_now().await;
            }
        }
        let gates = self.gates.lock().get(&node).cloned();
        pass(gates.unwrap_or_default()).await;
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let mut gates = self.releases.gates.lock();
        if let Some(list) = gates.get_mut(&self.node) {
            list.retain(|gate| !Arc::ptr_eq(gate, &self.gate));
            if list.is_empty() {
                gates.remove(&self.node);
            }
        }
        drop(gates);
        self.gate.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_rt::Sim;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    fn is_done(future: Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_lock_comes_after_the_releases_of_its_file() {
        let (sim, releases) = (Sim::new(1), Arc::new(Releases::new(2)));
        let rt = sim.rt();
        let (first, second) = (releases.begin(7), releases.begin(7));
        let mut lock = Box::pin(releases.wait(&rt, 0, 7));
        assert!(is_done(Box::pin(releases.wait(&rt, 0, 8)).as_mut()), "another file");
        assert!(!is_done(lock.as_mut()));
        drop(second);
        let later = releases.begin(7);
        assert!(!is_done(lock.as_mut()));
        drop(first);
        assert!(is_done(lock.as_mut()), "not after one that was read later");
        drop(later);
        assert!(releases.gates.lock().is_empty());
    }

    #[test]
    fn a_lock_comes_after_what_another_reader_has_just_taken() {
        let (mut sim, releases) = (Sim::new(1), Arc::new(Releases::new(2)));
        let rt = sim.rt();
        sim.block_on(Time::from_secs(1), async move {
            let own = releases.take(0);
            let other = releases.take(1);
            let (waiting, of_task) = (releases.clone(), rt.clone());
            let lock = rt.spawn(async move { waiting.wait(&of_task, 0, 7).await });
            rt.yield_now().await;
            // The other reader finds that its message is a RELEASE.
            let release = releases.begin(7);
            drop((other, own));
            rt.sleep(Duration::from_millis(1)).await;
            assert!(!lock.is_finished());
            drop(release);
            rt.sleep(Duration::from_millis(1)).await;
            assert!(lock.is_finished());
        });
    }
}
