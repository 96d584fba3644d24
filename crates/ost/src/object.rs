//! One object in memory: its range locks, the known record, and whether its data file is as long as the record says.

use crate::range_lock::RangeLock;
use crate::record::ObjectRecord;
use crate::uncommitted::Uncommitted;
use nacre_base::Fid;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An object in use.
pub(crate) struct Object {
    pub(crate) fid: Fid,
    /// Held for every access to the data.
    pub(crate) range: Arc<RangeLock>,
    /// Changed only by the operation that has its turn at the running transaction.
    record: Mutex<Known>,
    /// False at first, and after a failed write: the data file may be longer or shorter than the record says.
    is_settled: AtomicBool,
    /// Ranges changed since the last commit, with the client that changed them.
    pub(crate) uncommitted: Mutex<Uncommitted>,
}

/// The record, as far as it is known without reading the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The record has to be read.
    Nothing,
    /// The current record.
    Record(ObjectRecord),
    /// The object was destroyed.
    Gone,
}

impl Object {
    pub(crate) fn new(fid: Fid) -> Object {
        Object {
            fid,
            range: Arc::default(),
            record: Mutex::new(Known::Nothing),
            is_settled: AtomicBool::new(false),
            uncommitted: Mutex::default(),
        }
    }

    pub(crate) fn known(&self) -> Known {
        *self.record.lock()
    }

    /// Sets the known record; to be called at one's turn at the running transaction.
    pub(crate) fn set_known(&self, known: Known) {
        *self.record.lock() = known;
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    pub(crate) fn set_settled(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    /// Begins a change of the data. If the change does not come to its end, because of an error or because its request
    /// was dropped, the data file is given its recorded length before it is used again.
    pub(crate) fn begin_change(&self) -> DataChange<'_> {
        DataChange(Some(self))
    }
}

/// A change of an object's data that is not in its record yet. To be dropped before the range lock.
pub(crate) struct DataChange<'a>(Option<&'a Object>);

impl DataChange<'_> {
    /// The record now includes the change.
    pub(crate) fn recorded(mut self) {
        self.0 = None;
    }
}

impl Drop for DataChange<'_> {
    fn drop(&mut self) {
        if let Some(object) = self.0 {
            object.is_settled.store(false, Ordering::Release);
        }
    }
}
