//! The index store in memory: ordered maps that hold the running state, and a log of the values that each change
//! replaced since the last commit. The end of the log undoes an operation, the whole log a crash.

use super::records::{Record, Records};
use crate::space::PAGE;
use crate::{CommitCallback, Table, Visitor};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// All tables of a device.
pub(super) struct Index {
    tables: Vec<(Table, Records)>,
    /// Values that changes since the last durable commit replaced, oldest first.
    undo: VecDeque<Replaced>,
    /// Changes ever made durable: the number of the first in `undo`.
    durable: u64,
    /// Callbacks of operations finished since the last commit began, in order. In a mutex only to be `Sync`.
    callbacks: Mutex<Vec<CommitCallback>>,
    /// Bytes of keys and values written since the last commit began, which the commit will transfer.
    bytes: u64,
    /// Changes of records since the last commit began, undone ones too.
    changed: u64,
    /// Bytes of the keys and values of all records, with those that a tree needs for each.
    stored: u64,
}

/// Bytes that a record takes, because the pages of a tree are two thirds full.
fn stored_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len() + 16) as u64 * 3 / 2
}

/// A change of a table.
struct Replaced {
    table: usize,
    before: Before,
}

/// State of a record before a change.
enum Before {
    /// There was none with this key.
    Absent(Box<[u8]>),
    Record(Record),
}

/// Changes that a commit covers.
pub(super) struct Commit {
    /// Changes up to this number.
    pub(super) upto: u64,
    /// Callbacks for when they are durable.
    pub(super) callbacks: Vec<CommitCallback>,
    /// Bytes to be written.
    pub(super) bytes: u64,
    /// Changes of records among them.
    pub(super) changes: u64,
}

impl Index {
    pub(super) fn new(tables: &[Table]) -> Index {
        let tables = tables.iter().map(|t| (*t, Records::default())).collect();
        Index {
            tables,
            undo: VecDeque::new(),
            durable: 0,
            callbacks: Mutex::default(),
            bytes: 0,
            changed: 0,
            stored: 0,
        }
    }

    /// Adds tables that are not there yet, as opening a device does.
    pub(super) fn add_tables(&mut self, tables: &[Table]) {
        for t in tables {
            if !self.tables.iter().any(|(have, _)| have == t) {
                self.tables.push((*t, Records::default()));
            }
        }
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Bytes> {
        self.records(table).get(key).map(Bytes::copy_from_slice)
    }

    pub(super) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        let t = self.position(table);
        let old = self.tables[t].1.insert(Record::new(key, value));
        self.stored += stored_bytes(key, value);
        self.forget(old.as_ref());
        self.replaced(t, key, old);
        self.bytes += value.len() as u64;
    }

    pub(super) fn delete(&mut self, table: Table, key: &[u8]) -> bool {
        let t = self.position(table);
        let old = self.tables[t].1.remove(key);
        let found = old.is_some();
        self.forget(old.as_ref());
        if found {
            self.replaced(t, key, old);
        }
        found
    }

    pub(super) fn scan(&self, table: Table, from: &[u8], visit: &mut Visitor<'_>) {
        for record in self.records(table).range(from) {
            if visit(record.key(), record.value()).is_break() {
                return;
            }
        }
    }

    pub(super) fn count(&self, table: Table) -> u64 {
        self.records(table).len() as u64
    }

    /// Pages that a tree of these records would take.
    pub(super) fn pages(&self) -> u64 {
        self.stored.div_ceil(PAGE)
    }

    /// The number of changes made so far, for [`Index::undo_to`].
    pub(super) fn changes(&self) -> u64 {
        self.durable + self.undo.len() as u64
    }

    /// Undoes the newest changes until `changes` are left.
    pub(super) fn undo_to(&mut self, changes: u64) {
        while self.changes() > changes.max(self.durable) {
            let last = self.undo.pop_back().expect("a change that is not durable can be undone");
            let records = &mut self.tables[last.table].1;
            let undone = match last.before {
                Before::Record(old) => {
                    self.stored += stored_bytes(old.key(), old.value());
                    records.insert(old)
                }
                Before::Absent(key) => records.remove(&key),
            };
            self.forget(undone.as_ref());
        }
    }

    /// This record, if there was one, no longer takes space.
    fn forget(&mut self, record: Option<&Record>) {
        let bytes = record.map_or(0, |record| stored_bytes(record.key(), record.value()));
        assert!(bytes <= self.stored, "a record of {bytes} bytes is gone, {} were stored", self.stored);
        self.stored -= bytes;
    }

    /// Panics if the records do not take the space that is counted. It looks at each of them.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let records = self.tables.iter().flat_map(|(_, records)| records.range(&[]));
        let stored: u64 = records.map(|record| stored_bytes(record.key(), record.value())).sum();
        assert_eq!(stored, self.stored, "bytes of all records, and bytes that are counted");
    }

    pub(super) fn add_callbacks(&mut self, callbacks: Vec<CommitCallback>) {
        self.callbacks.get_mut().extend(callbacks);
    }

    /// Returns whether anything waits for a commit.
    pub(super) fn is_dirty(&self) -> bool {
        !self.undo.is_empty() || !self.callbacks.lock().is_empty()
    }

    /// A commit begins: it covers everything finished so far.
    pub(super) fn begin_commit(&mut self) -> Commit {
        let callbacks = std::mem::take(self.callbacks.get_mut());
        let (bytes, changes) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.changed));
        Commit { upto: self.changes(), callbacks, bytes, changes }
    }

    /// Changes up to number `upto` are durable.
    pub(super) fn end_commit(&mut self, upto: u64) {
        let changes = self.changes();
        assert!((self.durable..=changes).contains(&upto), "{upto} of {changes} changes, after {}", self.durable);
        while self.durable < upto && self.undo.pop_front().is_some() {
            self.durable += 1;
        }
    }

    /// The running transaction is lost. Returns the callbacks that will never be called.
    pub(super) fn crash(&mut self) -> Vec<CommitCallback> {
        self.undo_to(self.durable);
        (self.bytes, self.changed) = (0, 0);
        std::mem::take(self.callbacks.get_mut())
    }

    fn replaced(&mut self, table: usize, key: &[u8], old: Option<Record>) {
        self.bytes += key.len() as u64;
        self.changed += 1;
        let before = old.map_or_else(|| Before::Absent(key.into()), Before::Record);
        self.undo.push_back(Replaced { table, before });
    }

    fn records(&self, table: Table) -> &Records {
        &self.tables[self.position(table)].1
    }

    fn position(&self, table: Table) -> usize {
        let found = self.tables.iter().position(|(t, _)| *t == table);
        found.unwrap_or_else(|| panic!("table {:?} is not among those the device was opened with", table.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const T: Table = Table("t");

    #[test]
    fn what_is_stored_is_counted_over_changes_that_are_undone_and_crashes() {
        let mut prng = Prng::new(5);
        let mut index = Index::new(&[T]);
        for _ in 0..2000 {
            let key = [prng.below(30) as u8 + 1];
            match prng.below(20) {
                0 => drop(index.crash()),
                1 => {
                    let upto = index.begin_commit().upto;
                    index.end_commit(upto);
                }
                2 | 3 => index.undo_to(index.changes().saturating_sub(prng.below(5))),
                4..=8 => drop(index.delete(T, &key)),
                _ => index.put(T, &key, &vec![0; prng.below(100) as usize]),
            }
            index.check();
        }
    }

    #[test]
    #[should_panic(expected = "bytes that are counted")]
    fn space_that_no_record_takes_is_found() {
        let mut index = Index::new(&[T]);
        index.put(T, b"key", b"value");
        index.stored += 1;
        index.check();
    }

    #[test]
    #[should_panic(expected = "1 of 0 changes")]
    fn a_commit_of_changes_that_nobody_made_is_a_defect() {
        Index::new(&[T]).end_commit(1);
    }
}
