//! What all users of a file in this mount share: who may find out its end, and what became of its data. By FID, for as
//! long as somebody uses it.

use nacre_base::{Errno, Fid, FxHashMap};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::RwLock;

/// A file in use.
pub(crate) struct FileState {
    pub(crate) fid: Fid,
    /// Held to write: shared. To append or to set the size: exclusively, from when the locks are held until it is done, or
    /// two appends under one lock would find the same end.
    pub(crate) gate: RwLock<()>,
    /// What writing back failed with. Reported once.
    error: Mutex<Option<Errno>>,
}

impl FileState {
    /// Data was lost.
    pub(crate) fn report(&self, error: Errno) {
        self.error.lock().get_or_insert(error);
    }

    /// What was not reported yet.
    pub(crate) fn take_error(&self) -> Result<(), Errno> {
        self.error.lock().take().map_or(Ok(()), Err)
    }
}

/// The files in use.
#[derive(Default)]
pub(crate) struct Files(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: FxHashMap<Fid, Weak<FileState>>,
    /// With so many entries it is worth looking for those that are gone.
    sweep_at: usize,
}

impl Files {
    /// The state of a file.
    pub(crate) fn get(&self, fid: Fid) -> Arc<FileState> {
        let mut table = self.0.lock();
        if let Some(file) = table.files.get(&fid).and_then(Weak::upgrade) {
            return file;
        }
        let file = Arc::new(FileState { fid, gate: RwLock::default(), error: Mutex::default() });
        table.files.insert(fid, Arc::downgrade(&file));
        if table.files.len() > table.sweep_at {
            table.files.retain(|_, f| f.strong_count() > 0);
            table.sweep_at = (table.files.len() * 2).max(64);
        }
        file
    }
}
