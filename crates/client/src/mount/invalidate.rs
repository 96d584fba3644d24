//! Keeps a door's caches true: tells the door what to forget before the lock that protected it is given back. The door
//! knows what it caches, and how to forget it.

use nacre_base::Fid;
use std::sync::{Arc, OnceLock};

/// A door's caches of file data, attributes and names, above this client's. Each call returns when the named data is
/// forgotten; changes of it that the door had not passed on (a writable mapping) have been written to the client by then.
#[async_trait::async_trait]
pub trait Invalidate: Send + Sync {
    /// Data of a file, `len` bytes from `offset`; up to the end if `len` is `u64::MAX`.
    async fn data(&self, file: Fid, offset: u64, len: u64);
    /// Attributes of a file or directory, and the fact that its names lead to it.
    async fn attributes(&self, file: Fid);
    /// Names in a directory, and the absence of others.
    async fn entries(&self, directory: Fid);
    /// The list of all names in a directory.
    async fn list(&self, directory: Fid);
}

/// The door's hook; empty until there is one.
#[derive(Default)]
pub(crate) struct Invalidator(OnceLock<Arc<dyn Invalidate>>);

impl Invalidator {
    /// Sets the hook; the first one stays.
    pub(crate) fn set(&self, hook: Arc<dyn Invalidate>) {
        let _ = self.0.set(hook);
    }

    /// The hook, if a door keeps caches.
    pub(crate) fn get(&self) -> Option<&Arc<dyn Invalidate>> {
        self.0.get()
    }
}
