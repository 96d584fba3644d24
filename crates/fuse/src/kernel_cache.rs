//! The kernel's caches of the client's files, which are invalidated before a lock is given back that kept them true.
//!
//! The kernel gets attributes, names and lists of directories with a long validity exactly if the client promises to tell
//! before they change. It keeps pages of files that were opened to be read, if they are small or have been used in a way for which
//! pages are faster, and of all that is mapped; the rest is direct I/O.

use crate::nodes::{Nodes, UseOfData};
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
/// Files of up to this size are read through the kernel's pages from the first time on. Larger ones are streamed around them, which
/// costs less, until they are read again.
const SMALL: u64 = 16 << 20;
/// How long the kernel usually needs at most to drop pages, even if it has to write some of them.
const DROPPED_WITHIN: Duration = Duration::from_secs(10);
/// How long the kernel may take to know an inode of which it was told.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Pauses meanwhile: the first, and the longest.
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

    /// True if a file that is opened to be read should be read through the kernel's pages.
    pub(crate) fn prefers_pages(&self, used: UseOfData, size: u64, runs: bool) -> bool {
        size <= SMALL || runs || used.mapped || used.read >= size
    }

    /// How long attributes may be believed.
    pub(crate) fn attr_valid(&self, keeps: bool) -> Duration {
        if keeps { VALID } else { Duration::ZERO }
    }
}

#[async_trait]
impl Invalidate for KernelCache {
    async fn data(&self, file: Fid, offset: u64, len: u64) {
        let (Some(notifier), Some(node)) = (self.notifier.get().cloned(), self.nodes.node(file)) else { return };
        // 0 means "to the end".
        let len = if len == u64::MAX { 0 } else { len };
        let mut dropped = Box::pin(notifier.inval_inode(node, offset, len));
        if self.rt.timeout(DROPPED_WITHIN, &mut dropped).await.is_ok() {
            return;
        }
        // The lock that is to be given back stays here until then. If that takes too long, the server evicts this client, and what
        // was stored into these pages is lost; but nobody reads or writes wrong bytes.
        tracing::warn!(%file, offset, len, "the kernel does not give up pages of a file, for which others wait");
        let _ = dropped.await;
    }

    async fn attributes(&self, file: Fid) {
        let Some(notifier) = self.notifier.get() else { return };
        let (mut pause, begun) = (RETRY_FIRST, self.rt.now());
        while let Some(node) = self.nodes.node(file) {
            match notifier.inval_inode_attributes(node).await {
                // The kernel will know the inode as soon as the thread runs that waits for the reply, or it is about to
                // say that it has forgotten the inode.
                Err(Errno::ENOENT) if self.rt.now().since(begun) < KNOWN_WITHIN => self.rt.sleep(pause).await,
                Err(Errno::ENOENT) => {
                    return tracing::warn!(%file, "the kernel does not know a file of which it was told");
                }
                _ => return,
            }
            pause = (pause * 2).min(RETRY_LAST);
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
