//! Tells the kernel to forget: inodes' attributes and pages, names. An IO edge.
//!
//! The kernel may have to wait before it can obey. To drop a page it waits for the READ that fills it; to drop a name it
//! waits for a CREATE, UNLINK, RENAME or (without parallel dirops) LOOKUP under way in that directory. So the thread of a
//! request never writes a notification, each notification waits on a thread of its own, and **no request may wait for a
//! notification that waits for it**: code that invalidates because a lock is called back must let the requests under way
//! on that inode or directory finish without that lock. [`Notifier::inval_inode_attributes`], [`Notifier::inval_list`]
//! and [`Notifier::inval_all_entries`] never wait, nor queue behind one that does: pages may be stuck for as long as an
//! OST is away.
#![allow(clippy::disallowed_methods)] // A notification blocks its thread: it needs tokio's blocking pool.

use crate::abi;
use crate::sink::Sink;
use async_trait::async_trait;
use nacre_base::{Errno, FxHashMap};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use zerocopy::IntoBytes;

/// Most notifications that may wait in the kernel at the same time; further ones wait for them.
const NOTIFICATIONS_MAX: usize = 64;
/// Most of them that may be for pages of one file, so that a file whose pages are stuck does not hold up all others.
const OF_FILE_MAX: usize = 4;

/// What a kernel is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Attributes of a node are outdated, and pages from `offset` on, `len` bytes of them (0: to the end); none if `offset` is
    /// negative.
    Inode {
        /// The node.
        node: u64,
        /// First byte.
        offset: i64,
        /// Number of bytes.
        len: i64,
    },
    /// A name is outdated.
    Entry {
        /// The directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// `EXPIRE_ONLY`, or none.
        flags: u32,
    },
    /// All names are.
    AllEntries,
}

/// A kernel, or a model of one.
#[async_trait]
pub trait Obey: Send + Sync + 'static {
    /// Obeys. ENOENT if it does not know the inode or name.
    async fn obey(&self, notice: Notice) -> Result<(), Errno>;
}

/// The kernel behind the device.
struct Device(Arc<dyn Sink>);

#[async_trait]
impl Obey for Device {
    async fn obey(&self, notice: Notice) -> Result<(), Errno> {
        let (code, body) = match notice {
            Notice::Inode { node, offset, len } => {
                let body = abi::NotifyInvalInode { ino: node, off: offset, len };
                (abi::NOTIFY_INVAL_INODE, body.as_bytes().to_vec())
            }
            Notice::Entry { parent, name, flags } => {
                let namelen = u32::try_from(name.len()).map_err(|_| Errno::ENAMETOOLONG)?;
                let mut body = abi::NotifyInvalEntry { parent, namelen, flags }.as_bytes().to_vec();
                body.extend_from_slice(&name);
                body.push(0);
                (abi::NOTIFY_INVAL_ENTRY, body)
            }
            Notice::AllEntries => (abi::NOTIFY_INC_EPOCH, Vec::new()),
        };
        let sink = self.0.clone();
        let sent = tokio::task::spawn_blocking(move || {
            let len = (size_of::<abi::OutHeader>() + body.len()) as u32; // a name's length was checked, the rest is small
            let header = abi::OutHeader { len, error: code, unique: 0 };
            sink.send(&[IoSlice::new(header.as_bytes()), IoSlice::new(&body)])
        });
        sent.await.map_err(|_| Errno::ESHUTDOWN)?.map(drop).map_err(|e| Errno::from_io(&e))
    }
}

/// Sends notifications to the kernel of one session. Clones share it.
///
/// Every method returns when the kernel has obeyed; the notification goes on if the future is dropped after it was
/// polled. ENOENT means that the kernel does not know the inode or name, perhaps not yet: a reply with it may be on its
/// way.
#[derive(Clone)]
pub struct Notifier {
    rt: Rt,
    kernel: Arc<dyn Obey>,
    /// Permits for names, which wait for changes of their directory.
    permits: Arc<Semaphore>,
    /// Permits for pages of files, which wait for READs, which wait for servers that may be away.
    page_permits: Arc<Semaphore>,
    /// Permits for the pages of each file that has notifications under way.
    file_permits: Arc<FilePermits>,
    /// Permits for notifications that never wait in the kernel, and for which requests wait.
    quick_permits: Arc<Semaphore>,
}

impl Notifier {
    pub(crate) fn new(rt: &Rt, sink: Arc<dyn Sink>) -> Notifier {
        Notifier::to(rt, Arc::new(Device(sink)))
    }

    /// For a kernel, or a model of one.
    pub(crate) fn to(rt: &Rt, kernel: Arc<dyn Obey>) -> Notifier {
        let permits = || Arc::new(Semaphore::new(NOTIFICATIONS_MAX));
        let (rt, file_permits) = (rt.clone(), Arc::default());
        Notifier { rt, kernel, permits: permits(), page_permits: permits(), file_permits, quick_permits: permits() }
    }

    /// Makes the kernel forget the attributes of `node`, and those of its pages that touch `len` bytes from `offset` (0:
    /// to the end). Dirty pages of shared mappings are written out first. Waits for READs under way of these pages.
    pub async fn inval_inode(&self, node: u64, offset: u64, len: u64) -> Result<(), Errno> {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let notice = Notice::Inode { node, offset: signed(offset), len: signed(len) };
        let file = self.file_permits.acquire(node).await?;
        self.notify_with(file, &self.page_permits, notice).await
    }

    /// Makes the kernel forget its list of the directory `node`, and its attributes. Never waits in the kernel, because
    /// the pages of a list are filled from replies that the kernel has.
    pub async fn inval_list(&self, node: u64) -> Result<(), Errno> {
        self.notify(&self.quick_permits, Notice::Inode { node, offset: 0, len: 0 }).await
    }

    /// Makes the kernel forget the attributes of `node` but not its pages. Never waits in the kernel.
    pub async fn inval_inode_attributes(&self, node: u64) -> Result<(), Errno> {
        self.notify(&self.quick_permits, Notice::Inode { node, offset: -1, len: 0 }).await
    }

    /// Makes the kernel forget `name` in the directory `parent`, or that there is no such name. Waits for changes of that
    /// directory.
    pub async fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.notify(&self.permits, Notice::Entry { parent, name: name.to_vec(), flags: 0 }).await
    }

    /// As [`Notifier::inval_entry`], but files that are open or mounted below the name stay where they are: the kernel
    /// only asks for the name again at its next use (Linux 6.2, before that as `inval_entry`).
    pub async fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.notify(&self.permits, Notice::Entry { parent, name: name.to_vec(), flags: abi::EXPIRE_ONLY }).await
    }

    /// Makes the kernel ask for every name again at its next use. Never waits in the kernel; EINVAL before Linux 6.16.
    pub async fn inval_all_entries(&self) -> Result<(), Errno> {
        self.notify(&self.quick_permits, Notice::AllEntries).await
    }

    async fn notify(&self, permits: &Arc<Semaphore>, notice: Notice) -> Result<(), Errno> {
        self.notify_with((), permits, notice).await
    }

    /// Sends a notification, and drops `held` when the kernel has obeyed.
    async fn notify_with(
        &self,
        held: impl Send + 'static,
        permits: &Arc<Semaphore>,
        notice: Notice,
    ) -> Result<(), Errno> {
        // The semaphore is never closed.
        let permit = permits.clone().acquire_owned().await.map_err(|_| Errno::ESHUTDOWN)?;
        let (kernel, (obeyed, answer)) = (self.kernel.clone(), oneshot::channel());
        self.rt.spawn(async move {
            let _ = obeyed.send(kernel.obey(notice).await);
            drop((permit, held));
        });
        answer.await.map_err(|_| Errno::ESHUTDOWN)?
    }
}

/// Permits by node. A node without notifications is left out.
#[derive(Default)]
struct FilePermits(Mutex<FxHashMap<u64, Arc<Semaphore>>>);

/// The right to send one of a node's notifications. It exists while its holder waits for the permit, too.
struct FilePermit {
    all: Arc<FilePermits>,
    node: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl FilePermits {
    async fn acquire(self: &Arc<Self>, node: u64) -> Result<FilePermit, Errno> {
        let permits = self.0.lock().entry(node).or_insert_with(|| Arc::new(Semaphore::new(OF_FILE_MAX))).clone();
        // Made before the wait, so that the node is forgotten even if the wait is given up.
        let mut held = FilePermit { all: self.clone(), node, permit: None };
        held.permit = Some(permits.acquire_owned().await.map_err(|_| Errno::ESHUTDOWN)?);
        Ok(held)
    }
}

impl Drop for FilePermit {
    fn drop(&mut self) {
        self.permit = None;
        let mut all = self.all.0.lock();
        // Every other holder or waiter has a reference to the semaphore as well.
        if all.get(&self.node).is_some_and(|permits| Arc::strong_count(permits) == 1) {
            all.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Captured;
    use parking_lot::Condvar;

    #[tokio::test]
    async fn notifications_as_the_kernel_reads_them() {
        let sink = Arc::new(Captured::default());
        let n = Notifier::new(&Rt::production(), sink.clone());
        n.inval_inode(5, 4096, 0).await.unwrap();
        n.inval_inode_attributes(5).await.unwrap();
        n.expire_entry(1, b"ab").await.unwrap();
        n.inval_list(5).await.unwrap();
        let sent = sink.0.lock();
        let inode = |off: i64| {
            [&[40, 0, 0, 0, 2, 0, 0, 0][..], &[0; 8], &5u64.to_ne_bytes(), &off.to_ne_bytes(), &[0; 8]].concat()
        };
        assert_eq!(sent[0], inode(4096));
        assert_eq!(sent[1], inode(-1));
        let entry =
            [&[35, 0, 0, 0, 3, 0, 0, 0][..], &[0; 8], &1u64.to_ne_bytes(), &[2, 0, 0, 0, 1, 0, 0, 0], b"ab\0"].concat();
        assert_eq!(sent[2], entry);
        assert_eq!(sent[3], inode(0));
    }

    /// A kernel in which filling a page waits for ever.
    #[derive(Default)]
    struct Stuck {
        pages: Mutex<usize>,
        freed: Condvar,
    }

    impl Sink for Stuck {
        fn send(&self, parts: &[IoSlice<'_>]) -> std::io::Result<()> {
            // In this test, only pages of files have an offset other than 0.
            if parts[1].get(8..16).is_some_and(|off| off == 4096i64.to_ne_bytes()) {
                let mut pages = self.pages.lock();
                *pages += 1;
                self.freed.wait(&mut pages);
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn pages_that_are_stuck_hold_up_no_names_lists_or_attributes() {
        let sink = Arc::new(Stuck::default());
        let n = Notifier::new(&Rt::production(), sink.clone());
        let pages = (0..2 * NOTIFICATIONS_MAX as u64).map(|node| {
            let n = n.clone();
            tokio::spawn(async move { n.inval_inode(node, 4096, 0).await })
        });
        let pages: Vec<_> = pages.collect();
        while *sink.pages.lock() < NOTIFICATIONS_MAX {
            tokio::task::yield_now().await;
        }
        n.inval_list(5).await.unwrap();
        n.inval_inode_attributes(5).await.unwrap();
        n.inval_all_entries().await.unwrap();
        n.inval_entry(1, b"a").await.unwrap();
        while pages.iter().any(|p| !p.is_finished()) {
            sink.freed.notify_all();
            tokio::task::yield_now().await;
        }
    }
    /// All permits could be those of one file, and then no other file's pages were dropped: their locks were given back
    /// after a while, and programs read old bytes through mappings.
    #[tokio::test]
    async fn a_file_whose_pages_are_stuck_does_not_hold_up_other_files() {
        let sink = Arc::new(Stuck::default());
        let n = Notifier::new(&Rt::production(), sink.clone());
        let invalidate = |node, offset| {
            let n = n.clone();
            tokio::spawn(async move { n.inval_inode(node, offset, 0).await })
        };
        let mut stuck: Vec<_> = (0..2 * NOTIFICATIONS_MAX).map(|_| invalidate(5, 4096)).collect();
        // A wait that is given up.
        stuck.pop().unwrap().abort();
        while *sink.pages.lock() < OF_FILE_MAX {
            tokio::task::yield_now().await;
        }
        let other = tokio::time::timeout(std::time::Duration::from_secs(10), invalidate(6, 8192)).await;
        let waiting = *sink.pages.lock();
        while stuck.iter().any(|p| !p.is_finished()) {
            sink.freed.notify_all();
            tokio::task::yield_now().await;
        }
        // After the threads have ended, for which the end of the test waits.
        assert!(other.is_ok(), "the other file waits for the one that is stuck");
        assert_eq!(waiting, OF_FILE_MAX);
        assert!(n.file_permits.0.lock().is_empty(), "nothing is kept of files without notifications");
    }
}
