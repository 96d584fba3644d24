//! One operation's turn at the running transaction, and the log that takes its changes back.

use super::index::{Index, WriteTxn};
use super::{Device, Running};
use crate::{CommitCallback, OsdError, PendingData, Table, Transaction, Visitor, check_key};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedMutexGuard;

/// The guard: has the turn until it is finished or dropped.
pub(super) struct DiskTransaction {
    device: Arc<Device>,
    running: OwnedMutexGuard<Running>,
    /// Callbacks of the running transaction when the turn began; those after are this operation's.
    callbacks_before: usize,
    /// The same of data that it is waited for.
    pending_before: usize,
    /// The same of the journal's next record.
    logged_before: usize,
    finished: bool,
}

/// What an operation's changes replaced, in one buffer that the next operation uses again.
#[derive(Default)]
pub(super) struct UndoLog {
    bytes: Vec<u8>,
    entries: Vec<Replaced>,
}

struct Replaced {
    table: Table,
    key: Range<usize>,
    value: Option<Range<usize>>,
}

/// Memory of the log that is kept for the next operation.
const UNDO_BYTES_KEPT: usize = 1 << 20;

impl UndoLog {
    fn push(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        let key = self.append(key);
        let value = value.map(|v| self.append(v));
        self.entries.push(Replaced { table, key, value });
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.bytes.shrink_to(UNDO_BYTES_KEPT);
    }
}

impl DiskTransaction {
    pub(super) fn new(device: Arc<Device>, running: OwnedMutexGuard<Running>) -> DiskTransaction {
        let callbacks_before = running.callbacks.len();
        let pending_before = running.pending.len();
        let logged_before = running.logging.as_ref().map_or(0, |logging| logging.changes.len());
        DiskTransaction { device, running, callbacks_before, pending_before, logged_before, finished: false }
    }

    /// Accounts for a change before it is made. Half of the room is for taking changes back.
    fn reserve(&mut self, value_len: usize) -> Result<(), OsdError> {
        let pages = self.running.pages + Index::pages_of_change(value_len);
        if pages > self.running.pages_max / 2 {
            return Err(OsdError::TransactionTooLarge);
        }
        self.running.pages = pages;
        self.running.changes += 1;
        self.running.changed = true;
        Ok(())
    }

    /// Keeps a change that was made for the journal, if there is one.
    fn log(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        if let Some(logging) = &mut self.running.logging {
            logging.changes.push(table, key, value);
            logging.unflushed += 1;
        }
    }

    /// Passes on the outcome of a call into the index. A failure there leaves the write transaction unusable.
    fn checked<T>(&self, result: Result<T, OsdError>) -> Result<T, OsdError> {
        if let Err(e) = &result {
            self.device.poison("index", e);
        }
        result
    }

    fn undo(&mut self) -> Result<(), OsdError> {
        let Running { txn: Some(txn), index: Some(index), undo, pages, .. } = &mut *self.running else {
            return Ok(());
        };
        while let Some(Replaced { table, key, value }) = undo.entries.pop() {
            let key = &undo.bytes[key];
            match value {
                Some(value) => {
                    *pages += Index::pages_of_change(value.len());
                    index.put(txn, table, key, &undo.bytes[value])?;
                }
                None => {
                    *pages += Index::pages_of_change(0);
                    index.delete(txn, table, key)?;
                }
            }
        }
        Ok(())
    }
}

impl Running {
    fn open(&self) -> Result<(&Index, &WriteTxn), OsdError> {
        Ok((self.index.as_ref().ok_or(OsdError::Closed)?, self.txn.as_ref().ok_or(OsdError::Closed)?))
    }

    fn open_mut(&mut self) -> Result<(&Index, &mut WriteTxn, &mut UndoLog), OsdError> {
        let index = self.index.as_ref().ok_or(OsdError::Closed)?;
        Ok((index, self.txn.as_mut().ok_or(OsdError::Closed)?, &mut self.undo))
    }
}

impl Transaction for DiskTransaction {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        check_key(key)?;
        self.device.check()?;
        let (index, txn) = self.running.open()?;
        Ok(self.checked(index.get(txn, table, key))?.map(Bytes::copy_from_slice))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError> {
        check_key(key)?;
        self.device.check()?;
        self.reserve(value.len())?;
        let (index, txn, undo) = self.running.open_mut()?;
        let logged = index.get(txn, table, key).map(|old| undo.push(table, key, old));
        let put = logged.and_then(|()| index.put(txn, table, key, value));
        self.checked(put)?;
        self.log(table, key, Some(value));
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        check_key(key)?;
        self.device.check()?;
        self.reserve(0)?;
        let (index, txn, undo) = self.running.open_mut()?;
        let found = index.get(txn, table, key).map(|old| old.map(|old| undo.push(table, key, Some(old))).is_some());
        let deleted = found.and_then(|found| Ok(found && index.delete(txn, table, key)?));
        let deleted = self.checked(deleted)?;
        if deleted {
            self.log(table, key, None);
        }
        Ok(deleted)
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut Visitor<'_>) -> Result<(), OsdError> {
        self.device.check()?;
        let (index, txn) = self.running.open()?;
        self.checked(index.scan(txn, table, from, visit))
    }

    fn on_commit(&mut self, f: CommitCallback) {
        self.running.callbacks.push(f);
    }

    fn commit_after(&mut self, data: PendingData) {
        self.running.pending.push(data);
    }

    fn finish(mut self: Box<Self>) {
        self.finished = true;
    }
}

impl Drop for DiskTransaction {
    fn drop(&mut self) {
        if !self.finished {
            let (callbacks, pending) = (self.callbacks_before, self.pending_before);
            self.running.callbacks.truncate(callbacks);
            self.running.pending.truncate(pending);
            if let Some(logging) = &mut self.running.logging {
                logging.changes.truncate(self.logged_before);
            }
            // Even if the device is closing, for it commits once more.
            if !self.device.poisoned.load(Ordering::Acquire)
                && let Err(e) = self.undo()
            {
                self.device.poison("undoing an operation", &e);
            }
        }
        self.running.undo.clear();
        if self.running.changes >= self.device.options.commit_changes {
            self.device.commits.hint();
        }
    }
}
