//! The log for undoing the changes of one operation.

use crate::Table;
use std::ops::Range;

/// The values that an operation's changes replaced, in one buffer that the next operation uses again.
#[derive(Default)]
pub(super) struct UndoLog {
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Replaced>,
}

/// A record as it was before a change; ranges of the log's bytes.
pub(super) struct Replaced {
    pub(super) table: Table,
    pub(super) key: Range<usize>,
    pub(super) value: Option<Range<usize>>,
}

/// Memory of the log that is kept for the next operation.
const UNDO_BYTES_KEPT: usize = 1 << 20;

impl UndoLog {
    pub(super) fn push(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        let key = self.append(key);
        let value = value.map(|v| self.append(v));
        self.entries.push(Replaced { table, key, value });
    }

    /// Forgets the latest entry: its change is not made.
    pub(super) fn pop(&mut self) {
        let last = self.entries.pop().expect("a change that is not made was logged");
        assert!(last.key.start <= self.bytes.len(), "a key at {} of {} bytes", last.key.start, self.bytes.len());
        self.bytes.truncate(last.key.start);
    }

    /// Length of the value that the latest entry's change replaces.
    pub(super) fn last_value_len(&self) -> usize {
        self.entries.last().and_then(|last| last.value.clone()).map_or(0, |value| value.len())
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.bytes.shrink_to(UNDO_BYTES_KEPT);
    }
}
