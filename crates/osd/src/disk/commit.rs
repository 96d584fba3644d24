//! The commit thread of a device: waits until a caller asks or the interval ends, then makes the running transaction
//! durable. Nothing here runs on the callers' threads. Operations wait only while the index is flushed to the page
//! cache, not while the disk syncs; with a journal they do not even wait for that, except now and then.
#![allow(clippy::disallowed_methods)] // An IO edge: a thread that blocks on syncs, and the time they take.

use super::device::{Device, Running};
use super::index::Index;
use super::journal::{self, Changes};
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

/// Requests of callers to the commit thread.
#[derive(Default)]
pub(super) struct Commits {
    asked: Mutex<Asked>,
    wake: Condvar,
}

#[derive(Default)]
struct Asked {
    /// Callers that wait for the next commit to begin and end.
    waiting: Vec<oneshot::Sender<Result<(), OsdError>>>,
    /// True if a commit is wanted soon, but nobody waits for it.
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

    /// Makes a commit begin soon.
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

    /// Waits until there is a reason to commit. Returns false when the thread must end.
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

/// Changes that a commit takes over from the running transaction.
pub(super) enum Covered {
    /// The changes of records, for the journal.
    Logged(Changes),
    /// The whole transaction, as one of the index.
    Flushed(Arc<Index>, u64),
}

/// The commit thread.
pub(super) fn run(device: &Arc<Device>) {
    while device.commits.wait(device.options.commit_interval) {
        // With the turn taken no operation is half done; this commit serves all callers that have asked by now.
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
        // Not `check`, because closing first refuses operations and then makes this last commit.
        if self.poisoned.load(Ordering::Acquire) {
            return Err(OsdError::Poisoned);
        }
        self.wait_until_ours()?;
        running.assert_between_operations();
        let begin = Instant::now();
        // 1. Take what the commit covers. Operations go on in the same transaction if the journal takes the changes,
        //    else in the next one.
        self.grow_ahead(&mut running);
        self.settle(&mut running)?;
        let callbacks = std::mem::take(&mut running.callbacks);
        let pending = std::mem::take(&mut running.pending);
        let changes = running.changes;
        let changed = if running.changed { Some(self.take_changes(&mut running)?) } else { None };
        (running.changed, running.changes) = (false, 0);
        let stall = begin.elapsed();
        drop(running);
        // 2. Data first, so that no durable record refers to data that can still be lost: first data that is still on
        //    its way to the files, then the data in the files. The index's new pages are synced meanwhile, because they
        //    count for nothing before the third step has recorded their transaction; so nobody waits for that flush of
        //    the disk.
        self.wait_for(pending)?;
        let unsynced = self.objects.take_unsynced();
        if changed.is_none() && callbacks.is_empty() && unsynced.is_empty() {
            return Ok(());
        }
        let pages = match &changed {
            Some(Covered::Flushed(index, _)) if !unsynced.is_empty() => Some(index),
            _ => None,
        };
        std::thread::scope(|scope| {
            let pages = pages.map(|index| scope.spawn(|| index.sync_pages()));
            let data = self.step("osd.commit", || unsynced.sync()).map_err(|e| self.poison(super::objects::SYNC, &e));
            let pages = pages.map_or(Ok(()), |synced| synced.join().unwrap_or(Err(io::ErrorKind::Other.into())));
            data.and(pages.map_err(|e| self.poison("making changes durable", &e)))
        })?;
        // 3. Make the changes durable: from here on they are committed.
        let make_durable = || match &changed {
            Some(Covered::Logged(changes)) => self.append(changes),
            Some(Covered::Flushed(index, id)) => {
                match pages {
                    Some(_) => index.record(*id)?,
                    None => index.sync(*id)?,
                }
                self.restart_journal(index);
                Ok(())
            }
            None => Ok(()),
        };
        self.step("osd.commit.index", make_durable).map_err(|e| self.poison("making changes durable", &e))?;
        if let Some(Covered::Flushed(index, _)) = &changed {
            // Needed even if a fault has dropped the step.
            index.handle_recorded();
        }
        // 4. Call the commit callbacks.
        self.step("osd.commit.tell", || Ok(())).map_err(|e| self.poison("telling of a commit", &e))?;
        for f in callbacks {
            if catch_unwind(AssertUnwindSafe(f)).is_err() {
                tracing::error!("{}: a commit callback panicked", self.label.target);
            }
        }
        self.check_space();
        self.recorder.commit(CommitTimes { took: begin.elapsed(), stall, changes });
        Ok(())
    }

    /// Takes the changes of the running transaction: for the journal, or by ending the transaction.
    fn take_changes(&self, running: &mut Running) -> Result<Covered, OsdError> {
        let is_short = running.is_short_of_space();
        let Running { txn, index, logging, pages, pages_max, .. } = &mut *running;
        let Some(logging) = logging else { return self.flush_running(running) };
        let journal = self.journal.lock();
        let Some(journal) = &*journal else { return Err(OsdError::Closed) };
        let is_due = self.closed.load(Ordering::Acquire)
            || is_short
            || *pages > *pages_max / 8
            || logging.unflushed >= self.options.checkpoint_changes
            || logging.flushed.elapsed() >= self.options.checkpoint_interval;
        let changes = std::mem::take(&mut logging.changes);
        if !is_due && journal.fits(&changes) {
            return Ok(Covered::Logged(changes));
        }
        (logging.unflushed, logging.flushed) = (0, Instant::now());
        // Nothing is recorded in the journal before this is durable, so the number stays.
        let (Some(index), Some(txn)) = (index, txn) else { return Err(OsdError::Closed) };
        index
            .put(txn, journal::TABLE, journal::SEQ, &journal.seq().to_le_bytes())
            .map_err(|e| self.poison("committing the index", &e))?;
        self.flush_running(running)
    }

    fn append(&self, changes: &Changes) -> io::Result<()> {
        self.journal.lock().as_mut().ok_or(io::ErrorKind::NotConnected)?.append(changes)
    }

    fn restart_journal(&self, index: &Index) {
        assert!(!index.is_ahead(), "the journal begins anew, and the index has not durably what it says");
        if let Some(journal) = &mut *self.journal.lock() {
            journal.restart();
        }
    }

    /// Waits for data whose operations are finished.
    fn wait_for(&self, pending: Vec<PendingData>) -> Result<(), OsdError> {
        for data in pending {
            match data.blocking_recv() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(self.poison("writing data that was answered for", &e)),
                // The task that was to write the data died with its process.
                Err(_) if self.closed.load(Ordering::Acquire) => return Err(OsdError::Closed),
                Err(_) => return Err(self.poison("writing data that was answered for", &"it was given up")),
            }
        }
        Ok(())
    }

    /// Ends the running transaction, whose pages go to the page cache, and begins the next.
    pub(super) fn flush_running(&self, running: &mut Running) -> Result<Covered, OsdError> {
        let index = running.index.clone().ok_or(OsdError::Closed)?;
        let txn = running.txn.take().ok_or(OsdError::Closed)?;
        let flushed = index.flush(txn).and_then(|id| {
            let txn = index.begin()?;
            running.begin_counting(&index, index.shapes(&txn)?);
            running.txn = Some(txn);
            Ok(Covered::Flushed(index.clone(), id))
        });
        running.pages = 0;
        self.show_records(running);
        flushed.map_err(|e| self.poison("committing the index", &e))
    }

    /// If an operation was refused for lack of space, lets this commit and the next bring the counts up to date: the
    /// pages that a transaction has taken are known exactly only when two more have ended.
    fn settle(&self, running: &mut Running) -> Result<(), OsdError> {
        if running.space.wants_settling(running.tree.taken(0))
            && let Running { txn: Some(txn), index: Some(index), changed, .. } = running
        {
            *changed |= index.touch(txn).map_err(|e| self.poison("committing the index", &e))?;
            self.commits.hint();
        }
        Ok(())
    }

    /// Runs one step of a commit, unless a fault strikes before it. To drop a step breaks the commit's promise: it
    /// shows whether the tests of power cuts notice.
    fn step(&self, name: &str, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.options.faults.check(name) {
            Some(FaultAction::Fail(errno)) => return Err(io::Error::from_raw_os_error(errno.0)),
            Some(FaultAction::Delay(d)) => std::thread::sleep(d),
            Some(FaultAction::Crash) => std::process::abort(),
            Some(FaultAction::Drop) => return Ok(()),
            Some(FaultAction::Corrupt) | None => {}
        }
        self.wait_until_ours().map_err(|_| io::ErrorKind::ResourceBusy)?;
        act()
    }
}
