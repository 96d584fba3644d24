//! What the kernel caches of the client's files, and taking it away before a lock is given back that kept it true.
//!
//! Attributes, names and lists of directories are given to the kernel for a long time exactly if the client says that it
//! will tell. Pages are cached only of what is mapped: all else is direct I/O.

use crate::nodes::Nodes;
use crate::notify::Notifier;
use async_trait::async_trait;
use nacre_base::{Errno, Fid};
use nacre_client::Invalidate;
use nacre_rt::Rt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the kernel may believe what it will be told of.
const VALID: Duration = Duration::from_secs(3600);
/// How long dropping pages is waited for: a page that is being read or written waits in turn for the lock. It gets its
/// data under the lock that is called back, or else a new one.
const PAGES_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses while a reply is on its way that makes the kernel know an inode: the first, and the longest.
const RETRY_FIRST: Duration = Duration::from_micros(200);
const RETRY_LAST: Duration = Duration::from_millis(100);

/// The kernel's caches of one mount.
pub(crate) struct KernelCache {
    rt: Rt,
    nodes: Arc<Nodes>,
    notifier: OnceLock<Notifier>,
    /// Whether names can be taken away without waiting (Linux 6.16).
    forgets_names: AtomicBool,
}

impl KernelCache {
    pub(crate) fn new(rt: &Rt, nodes: Arc<Nodes>) -> Arc<KernelCache> {
        let forgets_names = AtomicBool::new(false);
        Arc::new(KernelCache { rt: rt.clone(), nodes, notifier: OnceLock::new(), forgets_names })
    }

    /// The session begins.
    pub(crate) fn begin(self: &Arc<Self>, notifier: Notifier) {
        if self.notifier.set(notifier).is_err() {
            return;
        }
        let cache = self.clone();
        self.rt.spawn(async move {
            let Some(notifier) = cache.notifier.get() else { return };
            let forgets = notifier.inval_all_entries().await.is_ok();
            cache.forgets_names.store(forgets, Ordering::Release);
        });
    }

    /// How long names may be believed, `keeps` being what the client says.
    pub(crate) fn entry_valid(&self, keeps: impl FnOnce() -> bool) -> Duration {
        let keeps = self.forgets_names.load(Ordering::Acquire) && keeps();
        if keeps { VALID } else { Duration::ZERO }
    }

    /// The kernel forgets its list of a directory. It never waits for us to do so: pages of lists are filled from answers
    /// that it has.
    pub(crate) async fn drop_list(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            // A directory that it does not know has no list.
            let _ = notifier.inval_list(node).await;
        }
    }

    /// How long attributes may be believed.
    pub(crate) fn attr_valid(&self, keeps: bool) -> Duration {
        if keeps { VALID } else { Duration::ZERO }
    }
}

#[async_trait]
impl Invalidate for KernelCache {
    async fn data(&self, file: Fid, offset: u64, len: u64) {
        let (Some(notifier), Some(node)) = (self.notifier.get().cloned(), self.nodes.mapped_node(file)) else { return };
        // 0 is "to the end".
        let len = if len == u64::MAX { 0 } else { len };
        // A task of its own, so that it is carried out even if nobody waits for it any more.
        let dropped = self.rt.spawn(async move {
            let _ = notifier.inval_inode(node, offset, len).await;
        });
        let _ = self.rt.timeout(PAGES_TIMEOUT, dropped).await;
    }

    async fn attributes(&self, file: Fid) {
        let Some(notifier) = self.notifier.get() else { return };
        let mut pause = RETRY_FIRST;
        while let Some(node) = self.nodes.node(file) {
            match notifier.inval_inode_attributes(node).await {
                // The kernel will know it as soon as who waits for our reply runs, or it is about to tell that it has
                // forgotten it.
                Err(Errno::ENOENT) if pause < RETRY_LAST => self.rt.sleep(pause).await,
                _ => return,
            }
            pause *= 2;
        }
    }

    async fn list(&self, directory: Fid) {
        if let Some(node) = self.nodes.invalidate_list(directory) {
            self.drop_list(node).await;
        }
    }

    async fn entries(&self, _: Fid) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_all_entries().await;
        }
    }
}
