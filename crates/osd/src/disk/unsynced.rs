//! The data that a commit makes durable before the index: parts of objects, and the directories of new ones.
#![allow(clippy::disallowed_methods)] // An IO edge: syncs files, on threads.

use super::file::Part;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Parts and directories that a commit syncs before the index.
pub(super) struct Unsynced {
    pub(super) parts: Vec<Arc<Part>>,
    pub(super) shards: Vec<PathBuf>,
}

/// Threads that sync at a time. File systems put syncs that come together into one journal commit.
const SYNC_THREADS: usize = 8;

impl Unsynced {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.shards.is_empty()
    }

    /// Makes all of them durable. Blocks.
    pub(super) fn sync(self) -> io::Result<()> {
        in_parallel(&self.parts, |part| part.sync())?;
        in_parallel(&self.shards, |path| File::open(path)?.sync_all())
    }
}

fn in_parallel<T: Sync>(items: &[T], f: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    if items.len() <= 2 {
        return items.iter().try_for_each(f);
    }
    std::thread::scope(|scope| {
        let chunks = items.chunks(items.len().div_ceil(SYNC_THREADS));
        let f = &f;
        let threads: Vec<_> = chunks.map(|c| scope.spawn(move || c.iter().try_for_each(f))).collect();
        let outcome = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().unwrap_or(Err(io::ErrorKind::Other.into()));
        threads.into_iter().map(outcome).fold(Ok(()), io::Result::and)
    })
}
