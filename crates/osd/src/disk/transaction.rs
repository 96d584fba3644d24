//! One operation's turn at the running transaction.

use super::device::{Device, Running};
use super::index::{Index, WriteTxn};
use super::tree_use::pages_of_its_own;
use super::undo::{Replaced, UndoLog};
use crate::space::Claim;
use crate::{CommitCallback, OsdError, PendingData, Table, Transaction, Visitor, check_key};
use bytes::Bytes;
use nacre_base::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedMutexGuard;

/// The guard of an operation, which has the turn until the guard is finished or dropped.
pub(super) struct DiskTransaction {
    device: Arc<Device>,
    running: OwnedMutexGuard<Running>,
    /// Callbacks of the running transaction when the turn began; those after are this operation's.
    callbacks_before: usize,
    /// Number of pending data when the turn began.
    pending_before: usize,
    /// Bytes of the journal's next record when the turn began.
    logged_before: usize,
    /// Pages that the running transaction had taken when the turn began.
    pages_before: u64,
    claim: Claim,
    changed: bool,
    finished: bool,
}

impl DiskTransaction {
    pub(super) fn new(device: Arc<Device>, running: OwnedMutexGuard<Running>) -> DiskTransaction {
        running.assert_between_operations();
        let callbacks_before = running.callbacks.len();
        let pending_before = running.pending.len();
        let logged_before = running.logging.as_ref().map_or(0, |logging| logging.changes.len());
        let pages_before = running.tree.pages();
        DiskTransaction {
            device,
            running,
            callbacks_before,
            pending_before,
            logged_before,
            pages_before,
            claim: Claim::Ordinary,
            changed: false,
            finished: false,
        }
    }

    /// Logs the value that a change will replace. Returns whether there is one.
    fn log_old(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        let (index, txn, undo) = self.running.open_mut()?;
        let found = index.get(txn, table, key).map(|old| {
            undo.push(table, key, old);
            old.is_some()
        });
        self.checked(found)
    }

    /// Accounts for a change before it is made. Half of the room is kept for undoing changes.
    fn reserve(&mut self, table: Table, key: &[u8], value_len: usize) -> Result<(), OsdError> {
        let own_pages = pages_of_its_own(key.len(), value_len.max(self.running.undo.last_value_len()));
        // Undoing the change writes the replaced value again.
        let pages = self.running.pages + Index::pages_of_change(value_len.max(self.running.undo.last_value_len()));
        let refused = match pages > self.running.pages_max / 2 {
            true => Err(OsdError::TransactionTooLarge),
            false => self.make_room(table, own_pages),
        };
        if refused.is_err() {
            // Nothing was changed that would have to be undone.
            self.running.undo.pop();
            return refused;
        }
        self.running.pages = pages;
        self.running.changes += 1;
        self.running.changed = true;
        self.changed = true;
        Ok(())
    }

    /// Refuses a change if there is no space for it, or only space that the operation may not use. `own_pages` are
    /// those of the value.
    fn make_room(&mut self, table: Table, own_pages: u64) -> Result<(), OsdError> {
        let (claim, is_first) = (self.claim, !self.changed);
        let running = &mut *self.running;
        let taken = running.tree.taken(self.pages_before);
        let next = running.tree.next(running.index.as_ref().ok_or(OsdError::Closed)?.position(table), own_pages);
        let Err(missing) = running.space.check(claim, taken, next, is_first) else { return Ok(()) };
        self.device.grow_index(running, missing.0);
        let refused = match running.space.check(claim, taken, next, is_first) {
            Ok(()) => return Ok(()),
            Err(missing) => missing,
        };
        if claim == Claim::Reserve {
            let target = &self.device.label.target;
            tracing::warn!(
                %target,
                missing_pages = refused.0,
                "the reserve is used up, so that even what frees space is refused: make the target's file system larger"
            );
        }
        // There may be space that is not known yet.
        self.device.commits.hint();
        Err(OsdError::Io { what: "changing a record", errno: Errno::ENOSPC })
    }

    /// Logs a change that was made for the journal, if there is one.
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
        let Running { txn: Some(txn), index: Some(index), undo, pages, tree, .. } = &mut *self.running else {
            return Ok(());
        };
        while let Some(Replaced { table, key, value }) = undo.entries.pop() {
            let key = &undo.bytes[key];
            match value {
                Some(value) => {
                    *pages += Index::pages_of_change(value.len());
                    let own_pages = pages_of_its_own(key.len(), value.len());
                    index.put(txn, table, key, &undo.bytes[value])?;
                    let t = index.position(table);
                    tree.put(t, index.shape(txn, t)?, own_pages);
                }
                None => {
                    *pages += Index::pages_of_change(0);
                    index.delete(txn, table, key)?;
                    let t = index.position(table);
                    tree.deleted(t, index.shape(txn, t)?);
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

    /// Counts a change that was made: a record with `own_pages` was put, or, without them, a record was removed.
    fn count_change(&mut self, table: Table, own_pages: Option<u64>) -> Result<(), OsdError> {
        let (index, txn) = self.open()?;
        let t = index.position(table);
        let shape = index.shape(txn, t)?;
        match own_pages {
            Some(own_pages) => self.tree.put(t, shape, own_pages),
            None => self.tree.deleted(t, shape),
        }
        Ok(())
    }
}

impl Transaction for DiskTransaction {
    fn use_reserve(&mut self) {
        self.claim = Claim::Reserve;
    }

    fn count(&self, table: Table) -> Result<u64, OsdError> {
        self.device.check()?;
        let (index, txn) = self.running.open()?;
        self.checked(index.count(txn, table))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        check_key(key)?;
        self.device.check()?;
        let (index, txn) = self.running.open()?;
        Ok(self.checked(index.get(txn, table, key))?.map(Bytes::copy_from_slice))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError> {
        check_key(key)?;
        self.device.check()?;
        self.log_old(table, key)?;
        self.reserve(table, key, value.len())?;
        let (index, txn, _) = self.running.open_mut()?;
        let put = index.put(txn, table, key, value);
        self.checked(put)?;
        let counted = self.running.count_change(table, Some(pages_of_its_own(key.len(), value.len())));
        self.checked(counted)?;
        self.log(table, key, Some(value));
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        check_key(key)?;
        self.device.check()?;
        if !self.log_old(table, key)? {
            self.running.undo.pop();
            return Ok(false);
        }
        self.reserve(table, key, 0)?;
        let (index, txn, _) = self.running.open_mut()?;
        let deleted = index.delete(txn, table, key);
        assert!(self.checked(deleted)?, "a record that was just read is gone");
        let counted = self.running.count_change(table, None);
        self.checked(counted)?;
        self.log(table, key, None);
        Ok(true)
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
            let are_there = self.running.callbacks.len() >= callbacks && self.running.pending.len() >= pending;
            assert!(are_there, "while an operation had the turn, callbacks of those before it were taken");
            self.running.callbacks.truncate(callbacks);
            self.running.pending.truncate(pending);
            if let Some(logging) = &mut self.running.logging {
                logging.changes.truncate(self.logged_before);
            }
            // Undone even if the device is closing, because it commits once more.
            if !self.device.poisoned.load(Ordering::Acquire)
                && let Err(e) = self.undo()
            {
                self.device.poison("undoing an operation", &e);
            }
        }
        self.running.undo.clear();
        let taken = self.running.tree.taken(0);
        if self.running.changes >= self.device.options.commit_changes || self.running.space.is_crowded(taken) {
            self.device.commits.hint();
        }
        if self.changed {
            self.device.show_records(&self.running);
        }
    }
}
