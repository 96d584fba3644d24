//! Group locks, which let the programs of a group write as they have agreed among themselves, and access hints from
//! programs.

use super::OpenFile;
use crate::llite::Client;
use crate::lov::FILE_SIZE_MAX;
use crate::lov::file_state::FileState;
use crate::osc::advice::LockAhead;
use crate::osc::locks::{LockGuard, Locking};
use futures_util::future::join_all;
use nacre_base::Errno;
use nacre_wire::ldlm::LockMode;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A program's knowledge about its own accesses to an open file. Range ends are exclusive; `u64::MAX` is the end of the
/// file, wherever that will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The program will read the range: it is fetched into the cache in the background, up to half of the cache's size.
    WillRead(Range<u64>),
    /// The program will not use the range again: dirty bytes are written, and the range is dropped from the cache,
    /// together with locks that cover nothing else.
    DontNeed(Range<u64>),
    /// Locks for this open file cover no more than is accessed; false lets them grow again.
    LockNoExpand(bool),
    /// The program will access the range: locks on exactly this range are requested, without waiting, and are granted
    /// only if no other client is in the way.
    LockAhead {
        /// Bytes that will be accessed.
        range: Range<u64>,
        /// True if the program will write.
        write: bool,
    },
}

/// Advice that an open file was given.
#[derive(Default)]
pub(super) struct FileAdvice {
    /// Group whose locks the open file holds; 0: none.
    group: AtomicU64,
    no_expand: AtomicBool,
    /// The open file's group locks. The mutex is held while they or the group change.
    held: tokio::sync::Mutex<Option<Group>>,
}

impl OpenFile {
    /// How this open file gets its locks.
    pub(crate) fn locking(&self) -> Locking {
        let group = self.told.group.load(Ordering::Acquire);
        let beside_group = group == 0 && self.shared.has_groups();
        Locking { group, exact: self.told.no_expand.load(Ordering::Relaxed), beside_group }
    }
}

impl Client {
    /// Takes the group lock `group`, which is not 0, on the whole file. All operations on this open file use it from then
    /// on, until [`Client::group_unlock`] or [`Client::release`]. Programs that hold the lock of the same group do not
    /// wait for each other, and see to it themselves that they do not write the same bytes; everybody else waits, without
    /// limit. A member's writes reach the others once they are synced; the others see them instead of their own cached
    /// bytes after [`Advice::DontNeed`].
    ///
    /// EAGAIN: the call would have to wait for another group, and `nonblock` is set. EINVAL: no such group, or the file
    /// is in one. After an eviction, which frees the lock, all operations on the open file fail with EIO until the group
    /// lock is given up.
    pub async fn group_lock(&self, file: &OpenFile, group: u64, nonblock: bool) -> Result<(), Errno> {
        let mut held = file.told.held.lock().await;
        if group == 0 || file.told.group.load(Ordering::Acquire) != 0 {
            return Err(Errno::EINVAL);
        }
        let member = Member::new(&file.shared);
        *held = Some(Group { guards: self.take_group(file, group, nonblock).await?, _member: member });
        file.told.group.store(group, Ordering::Release);
        Ok(())
    }

    /// Writes back dirty bytes and gives the group lock back; fsync and close report write errors. EINVAL: the open file
    /// does not hold this group's lock.
    pub async fn group_unlock(&self, file: &OpenFile, group: u64) -> Result<(), Errno> {
        if group == 0 || file.told.group.load(Ordering::Acquire) != group {
            return Err(Errno::EINVAL);
        }
        self.leave_group(file).await;
        Ok(())
    }

    /// Gets the group's locks on all objects; a writable file is given its objects before.
    async fn take_group(&self, file: &OpenFile, group: u64, nonblock: bool) -> Result<Vec<LockGuard>, Errno> {
        let layout = match file.is_writable() {
            true => Some(self.layout_to_write(file, &(0..FILE_SIZE_MAX)).await?),
            false => self.layout_to_read(file).await?,
        };
        let Some(layout) = layout else { return Ok(Vec::new()) };
        self.lov.lock_group(&file.caller, &file.striped(layout), group, nonblock).await
    }

    /// Takes the group lock again if a restart of a server has taken it away. EIO after an eviction.
    pub(super) async fn keep_group(&self, file: &OpenFile) -> Result<(), Errno> {
        if file.told.group.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut held = file.told.held.lock().await;
        let Some(held) = held.as_mut() else { return Ok(()) };
        if held.guards.iter().any(LockGuard::is_evicted) {
            return Err(Errno::EIO);
        }
        if held.guards.iter().any(LockGuard::is_lost) {
            held.guards = self.take_group(file, file.told.group.load(Ordering::Acquire), false).await?;
        }
        Ok(())
    }

    /// Gives the group lock back, if the file holds one.
    pub(super) async fn leave_group(&self, file: &OpenFile) {
        if file.told.group.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut held = file.told.held.lock().await;
        file.told.group.store(0, Ordering::Release);
        if let Some(layout) = file.known_layout() {
            self.lov.drop_cached(&file.striped(layout), &(0..u64::MAX)).await;
        }
        // A waiting client gets the lock before this returns.
        let Some(Group { guards, _member }) = held.take() else { return };
        join_all(guards.into_iter().map(LockGuard::give_back)).await;
    }

    /// Takes advice. Returns the outcome of a request for locks ahead of time; [`LockAhead::Sent`] for all other advice.
    /// EINVAL for an empty range, EBADF if the file is not open for the announced access.
    pub async fn advise(&self, file: &OpenFile, advice: Advice) -> Result<LockAhead, Errno> {
        let (range, needs_read, needs_write) = match &advice {
            Advice::WillRead(range) => (range.clone(), true, false),
            Advice::DontNeed(range) => (range.clone(), false, false),
            Advice::LockNoExpand(_) => (0..1, false, false),
            Advice::LockAhead { range, write } => (range.clone(), !write, *write),
        };
        if range.is_empty() {
            return Err(Errno::EINVAL);
        }
        if needs_read && !file.is_readable() || needs_write && !file.is_writable() {
            return Err(Errno::EBADF);
        }
        self.keep_group(file).await?;
        if let Advice::LockNoExpand(on) = advice {
            file.told.no_expand.store(on, Ordering::Relaxed);
            return Ok(LockAhead::Sent);
        }
        // Advice does not create objects.
        let Some(layout) = self.layout_to_read(file).await? else { return Ok(LockAhead::Sent) };
        let striped = file.striped(layout);
        match advice {
            Advice::WillRead(range) => {
                let bytes_max = self.mount.memory.limit_and_used().0 / 2;
                let fetched = self.lov.prefetch(&file.caller, &striped, &range, bytes_max).await?;
                drop(self.mount.rt.spawn(fetched));
            }
            Advice::DontNeed(range) => {
                self.lov.drop_cached(&striped, &range).await;
                self.lov.refresh_all(&file.caller, &striped).await?;
            }
            Advice::LockAhead { .. } if striped.locking.group != 0 => return Ok(LockAhead::Different),
            Advice::LockAhead { range, write } => {
                let mode = if write { LockMode::Pw } else { LockMode::Pr };
                return self.lov.lock_ahead(&file.caller, &striped, mode, &range).await;
            }
            Advice::LockNoExpand(_) => {}
        }
        Ok(LockAhead::Sent)
    }
}

/// Locks of an open file that is in a group.
struct Group {
    /// A lock on each object.
    guards: Vec<LockGuard>,
    _member: Member,
}

/// Exists while an open file of this mount is in a group or joins one: no other open file of the mount then lets the
/// server take locks on its behalf.
struct Member(Arc<FileState>);

impl Member {
    fn new(shared: &Arc<FileState>) -> Member {
        shared.add_group();
        Member(shared.clone())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.remove_group();
    }
}
