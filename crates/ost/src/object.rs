//! One object in memory: its range locks, what is known of its record, and whether its data file is as long as the
//! record says.

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
    /// Changed only by who has the turn at the running transaction.
    record: Mutex<Known>,
    /// False at first, and after a write that failed: the data file may be longer or shorter than recorded.
    is_settled: AtomicBool,
    /// Ranges changed since the last commit, with the client that changed them.
    pub(crate) uncommitted: Mutex<Uncommitted>,
}

/// What is known of a record without asking the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// This is it.
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

    /// To be called at one's turn at the running transaction.
    pub(crate) fn set_known(&self, known: Known) {
        *self.record.lock() = known;
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    pub(crate) fn set_settled(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    /// Begins a change of the data. If it does not come to its end, by an error or because its request is gone, the
    /// data file is made as long as recorded before anyone looks at it again.
    pub(crate) fn begin_change(&self) -> DataChange<'_> {
        DataChange(Some(self))
    }
}

/// A change of an object's data that its record does not speak of yet. To be dropped before the range lock.
pub(crate) struct DataChange<'a>(Option<&'a Object>);

impl DataChange<'_> {
    /// The record speaks of it.
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
