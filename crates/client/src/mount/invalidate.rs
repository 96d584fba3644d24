//! How a door keeps its caches true: what it must forget, told before a lock that protected it is given back. What the
//! door caches, and how it forgets, is the door's.

use nacre_base::Fid;
use std::sync::{Arc, OnceLock};

/// A door's caches of file data, attributes and names, above this client's. Each call returns when what it names is
/// forgotten; what was changed there and not passed on (a writable mapping) has been written to the client by then.
#[async_trait::async_trait]
pub trait Invalidate: Send + Sync {
    /// Data of a file, `len` bytes from `offset`; up to the end if `len` is `u64::MAX`.
    async fn data(&self, file: Fid, offset: u64, len: u64);
    /// Attributes of a file or directory, and that its names lead to it.
    async fn attributes(&self, file: Fid);
    /// Names in a directory, and that others are not there.
    async fn entries(&self, directory: Fid);
    /// The list of all names in a directory.
    async fn list(&self, directory: Fid);
}

/// The door's hook, once there is one.
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
