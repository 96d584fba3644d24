//! The commit thread of a device: waits until someone asks or the interval ends, then makes the running transaction
//! durable. Nothing here runs on the callers' threads, and operations wait only while the index is flushed to the page
//! cache, not while the disk syncs.
#![allow(clippy::disallowed_methods)] // An IO edge: a thread that blocks on syncs, and the time they take.

use super::index::Index;
use super::{Device, Running};
use crate::io_stats::CommitTimes;
use crate::{OsdError, PendingData};
use nacre_base::fault::FaultAction;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, oneshot};

/// Where callers meet the commit thread.
#[derive(Default)]
pub(super) struct Commits {
    asked: Mutex<Asked>,
    wake: Condvar,
}

#[derive(Default)]
struct Asked {
    /// Who waits for the next commit to begin and end.
    waiting: Vec<oneshot::Sender<Result<(), OsdError>>>,
    /// Someone wants a commit soon but does not wait.
    soon: bool,
    stop: bool,
}

impl Commits {
    /// Waits for a commit that begins after this call.
    pub(super) async fn commit(&self) -> Result<(), OsdError> {
        let (tell, told) = oneshot::channel();
        {
            let mut asked = self.asked.lock();
            if asked.stop {
                return Err(OsdError::Closed);
            }
            asked.waiting.push(tell);
        }
        self.wake.notify_one();
        told.await.unwrap_or(Err(OsdError::Closed))
    }

    /// Has a commit begin soon.
    pub(super) fn hint(&self) {
        let mut asked = self.asked.lock();
        if !std::mem::replace(&mut asked.soon, true) {
            self.wake.notify_one();
        }
    }

    /// Ends the thread after the commit under way, if any.
    pub(super) fn stop(&self) {
        let mut asked = self.asked.lock();
        asked.stop = true;
        asked.waiting.clear();
        self.wake.notify_one();
    }

    /// Waits until there is reason to commit; false if it is time to end.
    fn wait(&self, interval: Duration) -> bool {
        let deadline = Instant::now() + interval;
        let mut asked = self.asked.lock();
        while !asked.stop && asked.waiting.is_empty() && !asked.soon {
            if self.wake.wait_until(&mut asked, deadline).timed_out() {
                break;
            }
        }
        !asked.stop
    }
}

/// The commit thread.
pub(super) fn run(device: &Arc<Device>) {
    while device.commits.wait(device.options.commit_interval) {
        // With the turn taken no operation is half done; who has asked by now is served by this commit.
        let running = device.running.clone().blocking_lock_owned();
        let waiting = {
            let mut asked = device.commits.asked.lock();
            asked.soon = false;
            std::mem::take(&mut asked.waiting)
        };
        let result = catch_unwind(AssertUnwindSafe(|| device.commit_running(running)))
            .unwrap_or_else(|_| Err(device.poison("commit", &"the thread panicked")));
        for waiter in waiting {
            let _ = waiter.send(result.clone());
        }
    }
}

impl Device {
    fn commit_running(&self, mut running: OwnedMutexGuard<Running>) -> Result<(), OsdError> {
        // Not `check`: closing is refused operations first, then this last commit.
        if self.poisoned.load(Ordering::Acquire) {
            return Err(OsdError::Poisoned);
        }
        let begin = Instant::now();
        // 1. What the commit covers. The index goes to the page cache, and operations go on in the next transaction.
        let callbacks = std::mem::take(&mut running.callbacks);
        let pending = std::mem::take(&mut running.pending);
        let changes = running.changes;
        let flushed = if running.changed { Some(self.flush_running(&mut running)?) } else { None };
        drop(running);
        let stall = begin.elapsed();
        // 2. Data first, so that no durable record speaks of data that can still be lost: what is still on its way to the
        //    files, then what the files have.
        self.wait_for(pending)?;
        let unsynced = self.objects.take_unsynced();
        if flushed.is_none() && callbacks.is_empty() && unsynced.is_empty() {
            return Ok(());
        }
        self.fault_point().and_then(|()| unsynced.sync()).map_err(|e| self.poison(super::objects::SYNC, &e))?;
        // 3. The index: from here on it is committed.
        if let Some((index, id)) = flushed {
            index.sync(id).map_err(|e| self.poison("syncing the index", &e))?;
        }
        // 4. Tell.
        for f in callbacks {
            if catch_unwind(AssertUnwindSafe(f)).is_err() {
                tracing::error!("{}: a commit callback panicked", self.label.target);
            }
        }
        self.check_space();
        self.recorder.commit(CommitTimes { took: begin.elapsed(), stall, changes });
        Ok(())
    }

    /// Waits for data whose operations are finished.
    fn wait_for(&self, pending: Vec<PendingData>) -> Result<(), OsdError> {
        for data in pending {
            match data.blocking_recv() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(self.poison("writing data that was answered for", &e)),
                // Whoever was to write it died with its process.
                Err(_) if self.closed.load(Ordering::Acquire) => return Err(OsdError::Closed),
                Err(_) => return Err(self.poison("writing data that was answered for", &"it was given up")),
            }
        }
        Ok(())
    }

    /// Ends the running transaction and begins the next.
    fn flush_running(&self, running: &mut Running) -> Result<(Arc<Index>, u64), OsdError> {
        let index = running.index.clone().ok_or(OsdError::Closed)?;
        let txn = running.txn.take().ok_or(OsdError::Closed)?;
        let flushed = index.flush(txn).and_then(|id| {
            running.txn = Some(index.begin()?);
            Ok((index, id))
        });
        running.changed = false;
        running.pages = 0;
        running.changes = 0;
        flushed.map_err(|e| self.poison("committing the index", &e))
    }

    fn fault_point(&self) -> io::Result<()> {
        match self.options.faults.check("osd.commit") {
            Some(FaultAction::Fail(errno)) => Err(io::Error::from_raw_os_error(errno.0)),
            Some(FaultAction::Delay(d)) => {
                std::thread::sleep(d);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
