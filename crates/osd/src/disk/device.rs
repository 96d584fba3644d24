//! The state of an opened device, which callers, transactions and the commit thread share; and how the device stops.
#![allow(clippy::disallowed_methods)] // An IO edge: the target's lock, and waits for its own clock.

use super::commit::Commits;
use super::index::{Index, WriteTxn};
use super::journal::{Changes, Journal};
use super::label::Label;
use super::mmp::Mmp;
use super::objects::Objects;
use super::options::DiskOptions;
use super::tree_use::TreeUse;
use super::undo::UndoLog;
use crate::io_stats::Recorder;
use crate::space::{FullWatch, Space};
use crate::{CommitCallback, OsdError, PendingData};
use nacre_base::Errno;
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// State that callers, transactions and the commit thread share.
pub(super) struct Device {
    pub(super) label: Label,
    pub(super) options: DiskOptions,
    pub(super) objects: Arc<Objects>,
    /// The running transaction. Holding the lock is having the turn.
    pub(super) running: Arc<tokio::sync::Mutex<Running>>,
    pub(super) commits: Commits,
    /// The journal, if there is one. Only commits use it.
    pub(super) journal: Mutex<Option<Journal>>,
    /// Set at most once, at the first failure that leaves the medium unknown.
    pub(super) poisoned: AtomicBool,
    pub(super) closed: AtomicBool,
    /// True if object data has taken from the reserve.
    pub(super) space_low: AtomicBool,
    /// Bytes written since the free space was last read.
    pub(super) written: AtomicU64,
    /// Bytes that records may take within the index's file, without the reserve and with it.
    pub(super) records_available: AtomicU64,
    pub(super) records_free: AtomicU64,
    /// Bytes of the index's file.
    pub(super) index_bytes: AtomicU64,
    /// Pages by which the index's file grows at a time.
    pub(super) growth_step: u64,
    /// Kind of space that the target lacks.
    pub(super) full: Mutex<FullWatch>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) mmp: Option<Mmp>,
    /// Largest size of an object, for [`Osd::object_bytes_max`].
    pub(super) object_bytes_max: u64,
    /// Id of the disk, for [`StatFs::disk`].
    pub(super) disk: u64,
    /// Becomes true when another node has taken the target over.
    pub(super) taken: watch::Sender<bool>,
    /// Also a handle on the file system. Declared, and so dropped, last.
    pub(super) lock: Lock,
}

/// The locked `lock` file of a target.
pub(super) struct Lock(pub(super) File);

impl Drop for Lock {
    /// Closing is not enough: a child of this process that is about to run another program may have the file too.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// The running transaction and what goes with it.
pub(super) struct Running {
    /// `None` only after closing or a failure.
    pub(super) txn: Option<WriteTxn>,
    /// `None` only after closing.
    pub(super) index: Option<Arc<Index>>,
    /// Callbacks of finished operations, in order.
    pub(super) callbacks: Vec<CommitCallback>,
    /// Data of finished operations that the commit must wait for.
    pub(super) pending: Vec<PendingData>,
    /// Log to undo the operation's changes; empty between operations.
    pub(super) undo: UndoLog,
    /// True if anything was changed since the last commit began, even if it was undone.
    pub(super) changed: bool,
    /// Changes of records since the last commit began.
    pub(super) changes: u64,
    /// Pages that these changes can have taken at most.
    pub(super) pages: u64,
    /// Pages that fit into the memory map.
    pub(super) pages_max: u64,
    /// Pages that there is space for on the disk, and those that the running transaction has taken.
    pub(super) space: Space,
    pub(super) tree: TreeUse,
    /// Set for a target with a journal.
    pub(super) logging: Option<Logging>,
}

impl Running {
    /// Panics if an operation is half done, that is, has the turn now.
    pub(super) fn assert_between_operations(&self) {
        let undo = self.undo.entries.len();
        assert!(undo == 0, "{undo} changes of an operation that has ended may yet be undone");
        assert!(self.changed || self.changes == 0, "{} changes, and nothing was changed", self.changes);
        let logged = self.logging.as_ref().map_or(0, |logging| logging.changes.len());
        assert!(self.changed || logged == 0, "{logged} bytes for the journal, and nothing was changed");
    }
}

/// Additional state of a target with a journal.
pub(super) struct Logging {
    /// Changes since the last commit began, in order.
    pub(super) changes: Changes,
    /// Changes since the index was flushed, and when that was.
    pub(super) unflushed: u64,
    pub(super) flushed: Instant,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging { changes: Changes::default(), unflushed: 0, flushed: Instant::now() }
    }
}

impl Device {
    pub(super) fn check(&self) -> Result<(), OsdError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(OsdError::Closed);
        }
        if self.poisoned.load(Ordering::Acquire) {
            return Err(OsdError::Poisoned);
        }
        Ok(())
    }

    /// Like [`Device::check`], for calls that change the target: waits while the lease on it may be over.
    pub(super) async fn admit(&self) -> Result<(), OsdError> {
        self.check()?;
        while self.mmp.as_ref().is_some_and(|mmp| !mmp.is_valid()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.check()?;
        }
        Ok(())
    }

    /// Waits until the target may be changed. Returns an error if it never may again. Blocks.
    pub(super) fn wait_until_ours(&self) -> Result<(), OsdError> {
        match &self.mmp {
            Some(mmp) if !mmp.wait_valid() => Err(self.handle_taken(mmp.status().lost_to.as_deref())),
            _ => Ok(()),
        }
    }

    /// Another node has taken the target: the device stops.
    pub(super) fn handle_taken(&self, by: Option<&str>) -> OsdError {
        let by = by.unwrap_or("another node");
        let error = self.stop(&format!("multi-mount protection: {by} has taken the target over; the target stops"));
        self.taken.send_replace(true);
        error
    }

    /// Stops the device for good: after a failed sync the kernel may have dropped the data that it could not write, so
    /// another try would only seem to succeed.
    pub(super) fn poison(&self, what: &str, why: &dyn std::fmt::Display) -> OsdError {
        self.stop(&format!(
            "{what}: {why}; the target stops, other targets go on. Nothing that was acknowledged is lost; look into the \
             kernel's log for what its disk has, then stop and start the target's server"
        ))
    }

    /// Stops the device for good, and logs why.
    pub(super) fn stop(&self, why: &str) -> OsdError {
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!("{}: {why}", self.label.target);
        }
        OsdError::Poisoned
    }

    /// Passes on the outcome of a change of object data. Stops the device after an I/O error, or if nothing can be
    /// written any longer, because no other change would succeed either.
    pub(super) fn noted<T>(&self, result: Result<T, OsdError>) -> Result<T, OsdError> {
        let Err(e) = &result else { return result };
        match e.errno() {
            Errno::ENOSPC => self.check_space(),
            Errno::EIO => return Err(self.poison("its disk fails", e)),
            Errno::EROFS => return Err(self.poison("its file system has become read-only", e)),
            _ => {}
        }
        result
    }
}
