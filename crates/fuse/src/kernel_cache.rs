//! The kernel's caches of the client's files, which are invalidated before a lock is given back that kept them true.
//!
//! The kernel gets attributes, names and lists of directories with a long validity exactly if the client promises to tell
//! before they change. Pages are cached only for mappings: everything else is direct I/O.

use crate::nodes::Nodes;
use crate::notify::Notifier;
use async_trait::async_trait;
use nacre_base::{Errno, Fid};
use nacre_client::Invalidate;
use nacre_rt::Rt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the kernel may believe things whose changes it will be told of.
const VALID: Duration = Duration::from_secs(3600);
/// How long to wait for the kernel to drop pages. A page that is being read or written may itself wait for the lock; the
/// read or write gets the lock that is called back, or else a new one.
const PAGES_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses while a reply is on its way that makes an inode known to the kernel: the first, and the longest.
const RETRY_FIRST: Duration = Duration::from_micros(200);
const RETRY_LAST: Duration = Duration::from_millis(100);

/// The kernel's caches of one mount.
pub(crate) struct KernelCache {
    rt: Rt,
    nodes: Arc<Nodes>,
    notifier: OnceLock<Notifier>,
    /// True if names can be invalidated without waiting (Linux 6.16).
    forgets_names: AtomicBool,
}

impl KernelCache {
    pub(crate) fn new(rt: &Rt, nodes: Arc<Nodes>) -> Arc<KernelCache> {
        let forgets_names = AtomicBool::new(false);
        Arc::new(KernelCache { rt: rt.clone(), nodes, notifier: OnceLock::new(), forgets_names })
    }

    /// Begins with a session.
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

    /// How long names may be believed; `keeps` asks the client whether it will tell before they change.
    pub(crate) fn entry_valid(&self, keeps: impl FnOnce() -> bool) -> Duration {
        let keeps = self.forgets_names.load(Ordering::Acquire) && keeps();
        if keeps { VALID } else { Duration::ZERO }
    }

    /// Makes the kernel forget its list of a directory. That never waits for a request: pages of lists are filled from
    /// replies that the kernel has.
    pub(crate) async fn drop_list(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            // A directory that the kernel does not know has no list.
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
        // 0 means "to the end".
        let len = if len == u64::MAX { 0 } else { len };
        // In a task of its own, so that the invalidation is carried out even if its caller stops waiting.
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
                // The kernel will know the inode as soon as the thread runs that waits for the reply, or it is about to
                // say that it has forgotten the inode.
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
