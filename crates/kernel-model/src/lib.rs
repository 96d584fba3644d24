//! A model of what Linux (6.18) does with the answers of a FUSE server, as far as file data goes: handles that read through the
//! page cache or around it, faults, stores, write-out, attributes, changes of size, and notifications that come late and race with
//! all of these. It is made of the facts that `crates/fuse/tests/kernel` tries on the real kernel, which also runs one script on
//! both.
//!
//! Time and chance come from an [`Rt`], so a run in virtual time is determined by its seed. What must not be here: names and
//! directories, and how the server does its work.

mod inode;
mod pages;

use async_trait::async_trait;
use bytes::Bytes;
use inode::Inode;
use nacre_base::{Errno, Prng};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Size of a page.
pub const PAGE: u64 = 4096;
/// Largest READ and WRITE.
pub const IO_BYTES_MAX: u64 = 1 << 20;
/// Pages that a fault asks for at once: those around the one that is missing.
const AROUND: u64 = 16;

/// Attributes of a file, as far as they matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of data.
    pub mtime: (u64, u32),
    /// How long the kernel may believe them.
    pub valid: Duration,
}

/// Answer to an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The server's handle.
    pub handle: u64,
    /// Reads and writes go to the server.
    pub direct: bool,
    /// Pages stay at the open.
    pub keeps: bool,
}

/// The FUSE server.
#[async_trait]
pub trait Server: Send + Sync + 'static {
    /// GETATTR.
    async fn get_attr(&self, node: u64) -> Result<Attributes, Errno>;
    /// SETATTR of the size.
    async fn set_size(&self, node: u64, handle: u64, size: u64) -> Result<Attributes, Errno>;
    /// OPEN.
    async fn open(&self, node: u64, flags: u32) -> Result<Opened, Errno>;
    /// READ; `fills` pages of the page cache.
    async fn read(&self, node: u64, handle: u64, offset: u64, size: u64, fills: bool) -> Result<Bytes, Errno>;
    /// WRITE; `stored`: out of the page cache.
    async fn write(&self, node: u64, handle: u64, offset: u64, data: Bytes, stored: bool) -> Result<usize, Errno>;
    /// FLUSH.
    async fn flush(&self, node: u64, handle: u64) -> Result<(), Errno>;
    /// FSYNC.
    async fn fsync(&self, node: u64, handle: u64) -> Result<(), Errno>;
    /// RELEASE.
    async fn release(&self, node: u64, handle: u64) -> Result<(), Errno>;
}

/// The kernel of one mount.
pub struct Kernel {
    rt: Rt,
    server: Arc<dyn Server>,
    inodes: Mutex<BTreeMap<u64, Arc<Inode>>>,
    chance: Mutex<Prng>,
}

/// An open file description.
pub struct File {
    inode: Arc<Inode>,
    opened: Opened,
    flags: u32,
}

impl Kernel {
    /// A kernel that has just mounted the server.
    pub fn new(rt: &Rt, server: Arc<dyn Server>, seed: u64) -> Arc<Kernel> {
        let chance = Mutex::new(Prng::new(seed));
        Arc::new(Kernel { rt: rt.clone(), server, inodes: Mutex::default(), chance })
    }

    /// The kernel learns of an inode, or of its attributes, by a lookup.
    pub fn looked_up(&self, node: u64, attributes: Attributes) {
        let now = self.rt.now();
        let inode = self.inodes.lock().entry(node).or_insert_with(|| Inode::new(node)).clone();
        inode.believe(attributes, now);
    }

    fn inode(&self, node: u64) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&node).cloned()
    }

    /// A moment that passes between two steps, none in half of the cases.
    async fn pause(&self) {
        let micros = {
            let mut chance = self.chance.lock();
            if chance.one_in(2) { 0 } else { chance.below(500) }
        };
        if micros > 0 {
            self.rt.sleep(Duration::from_micros(micros)).await;
        }
    }

    fn one_in(&self, count: u64) -> bool {
        self.chance.lock().one_in(count)
    }

    /// open(2) of a known inode.
    pub async fn open(&self, node: u64, flags: u32) -> Result<File, Errno> {
        let inode = self.inode(node).ok_or(Errno::ENOENT)?;
        let opened = self.server.open(node, flags).await?;
        if !opened.keeps {
            inode.drop_pages(self, 0, u64::MAX).await;
        }
        inode.add_handle(opened.handle, flags);
        Ok(File { inode, opened, flags })
    }

    /// close(2) of the last descriptor, and munmap(2) of what was mapped.
    pub async fn close(&self, file: File) -> Result<(), Errno> {
        file.inode.write_pages(self, 0, u64::MAX).await;
        let (node, handle) = (file.inode.node, file.opened.handle);
        let flushed = self.server.flush(node, handle).await;
        file.inode.remove_handle(handle);
        self.server.release(node, handle).await?;
        flushed
    }

    /// stat(2). Returns the size.
    pub async fn stat(&self, file: &File) -> Result<u64, Errno> {
        file.inode.refresh(self).await?;
        Ok(file.inode.size())
    }

    /// pread(2).
    pub async fn read(&self, file: &File, offset: u64, len: u64) -> Result<Bytes, Errno> {
        let inode = &file.inode;
        if file.opened.direct {
            inode.write_pages(self, offset, offset + len).await;
            return self.server.read(inode.node, file.opened.handle, offset, len, false).await;
        }
        // With FUSE_AUTO_INVAL_DATA each read looks at the attributes first.
        inode.refresh(self).await?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let at = offset + bytes.len() as u64;
            let end = inode.size().min(offset + len);
            if at >= end {
                break;
            }
            let window = IO_BYTES_MAX.min(inode.size() - at);
            let page = inode.page(self, file, at, window).await.map_err(|_| Errno::EIO)?;
            let to = (at - at % PAGE + PAGE).min(end);
            page.copy(at % PAGE, to - at, &mut bytes);
        }
        Ok(bytes.into())
    }

    /// pwrite(2), which always goes to the server.
    pub async fn write(&self, file: &File, offset: u64, data: Bytes) -> Result<usize, Errno> {
        let (inode, end) = (&file.inode, offset + data.len() as u64);
        let _alone = inode.changing.lock().await;
        inode.drop_pages(self, offset, end).await;
        let written = self.server.write(inode.node, file.opened.handle, offset, data, false).await;
        if let Ok(count) = written {
            inode.wrote(offset + count as u64);
        }
        // A page may have been filled meanwhile.
        inode.drop_pages(self, offset, end).await;
        written
    }

    /// ftruncate(2).
    pub async fn truncate(&self, file: &File, size: u64) -> Result<(), Errno> {
        let inode = &file.inode;
        let _alone = inode.changing.lock().await;
        inode.begin_no_write().await;
        let answer = self.server.set_size(inode.node, file.opened.handle, size).await;
        if let Ok(attributes) = answer {
            inode.set_size(attributes, self.rt.now());
        }
        inode.end_no_write();
        if let Ok(attributes) = answer {
            inode.cut_to(attributes.size).await;
            inode.drop_pages(self, 0, u64::MAX).await;
        }
        answer.map(drop)
    }

    /// mmap(2).
    pub async fn map(&self, file: &File) {
        if file.opened.direct {
            file.inode.drop_pages(self, 0, u64::MAX).await;
        }
    }

    /// A load of 8 bytes through a shared mapping; EFAULT stands for SIGBUS. `at_once` is called at the moment of the load.
    pub async fn load<T>(&self, file: &File, at: u64, at_once: impl FnOnce(u64) -> T) -> Result<T, Errno> {
        loop {
            let page = self.fault(file, at).await?;
            if let Some(value) = page.number(at % PAGE) {
                return Ok(at_once(value));
            }
        }
    }

    /// A store of 8 bytes through a shared mapping. `at_once` is called at the moment of the store.
    pub async fn store(&self, file: &File, at: u64, value: u64, at_once: impl FnOnce()) -> Result<(), Errno> {
        assert!(file.flags & 3 == 2, "only a file that is open for reading and writing can be stored into");
        loop {
            let page = self.fault(file, at).await?;
            // The page is there, and in a moment the program's instruction is repeated.
            self.pause().await;
            self.check_end(file, at)?;
            // page_mkwrite waits for a page that is just being written out.
            if page.store(at % PAGE, value).await {
                at_once();
                return Ok(());
            }
        }
    }

    async fn fault(&self, file: &File, at: u64) -> Result<Arc<pages::Page>, Errno> {
        self.check_end(file, at)?;
        let first = at / PAGE / AROUND * AROUND;
        let window = (first + AROUND) * PAGE - (at - at % PAGE);
        let page = file.inode.page(self, file, at, window).await.map_err(|_| Errno::EFAULT)?;
        // The READ may have shown that the file is shorter.
        self.check_end(file, at)?;
        Ok(page)
    }

    /// EFAULT if the page at `at` lies behind the end of the file.
    fn check_end(&self, file: &File, at: u64) -> Result<(), Errno> {
        let ends = file.inode.size().next_multiple_of(PAGE);
        if at - at % PAGE >= ends { Err(Errno::EFAULT) } else { Ok(()) }
    }

    /// msync(2) or fsync(2).
    pub async fn sync(&self, file: &File) -> Result<(), Errno> {
        file.inode.write_pages(self, 0, u64::MAX).await;
        let failed = file.inode.take_error();
        self.server.fsync(file.inode.node, file.opened.handle).await?;
        failed.map_or(Ok(()), Err)
    }

    /// The kernel writes old pages out on its own, and drops others for want of memory.
    pub async fn reclaim(&self, node: u64) {
        let Some(inode) = self.inode(node) else { return };
        match self.one_in(2) {
            true => inode.write_pages(self, 0, u64::MAX).await,
            false => inode.drop_clean(),
        }
    }

    /// NOTIFY_INVAL_INODE. Returns when the kernel has obeyed.
    pub async fn inval_inode(&self, node: u64, offset: i64, len: i64) -> Result<(), Errno> {
        self.pause().await;
        let inode = self.inode(node).ok_or(Errno::ENOENT)?;
        inode.doubt();
        if let Ok(start) = u64::try_from(offset) {
            let end = if len <= 0 { u64::MAX } else { start + len as u64 };
            inode.drop_pages(self, start, end).await;
        }
        Ok(())
    }
}
