//! What programs know better: group locks, which let the programs of a group write as they have agreed upon among
//! themselves, and advice.

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

/// What a program knows of its own accesses to an open file. Ends are the first byte after; `u64::MAX` is the end of file,
/// wherever that will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The range will be read: it is brought into the cache in the background, as far as half of the cache goes.
    WillRead(Range<u64>),
    /// The range will not be used again: it is dropped from the cache, after what is dirty was written, with locks on
    /// nothing else.
    DontNeed(Range<u64>),
    /// Locks for this open file are to cover no more than is accessed (or, if false, may grow again).
    LockNoExpand(bool),
    /// The range will be accessed: locks on exactly that are asked for, are not waited for, and are not granted if any
    /// other client is in the way.
    LockAhead {
        /// Which bytes.
        range: Range<u64>,
        /// For writing.
        write: bool,
    },
}

/// What an open file was told.
#[derive(Default)]
pub(super) struct FileAdvice {
    /// The group whose locks it holds; 0: none.
    group: AtomicU64,
    no_expand: AtomicBool,
    /// Its group locks. Locked while they or the group change.
    held: tokio::sync::Mutex<Option<Group>>,
}

impl OpenFile {
    /// How it gets its locks.
    pub(crate) fn locking(&self) -> Locking {
        let group = self.told.group.load(Ordering::Acquire);
        let beside_group = group == 0 && self.shared.has_groups();
        Locking { group, exact: self.told.no_expand.load(Ordering::Relaxed), beside_group }
    }
}

impl Client {
    /// Takes the group lock `group`, which is not 0, on all of the file: from then on what is done by this open file goes
    /// under it, until [`Client::group_unlock`] or [`Client::release`]. Others who hold the same group's lock are not in
    /// the way, they see to it themselves that they do not write the same bytes; everybody else waits, without limit.
    /// What members write reaches the others when it was synced; what they have cached they see anew after
    /// [`Advice::DontNeed`].
    ///
    /// EAGAIN: it would have to wait for another group, and `nonblock`. EINVAL: no such group, or the file is in one. After
    /// an eviction, which frees the lock, all operations on the open file fail with EIO until it is given up.
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

    /// Gives the group lock back, after what is dirty was written; errors of that are told by fsync and close. EINVAL: the
    /// open file does not hold this group's lock.
    pub async fn group_unlock(&self, file: &OpenFile, group: u64) -> Result<(), Errno> {
        if group == 0 || file.told.group.load(Ordering::Acquire) != group {
            return Err(Errno::EINVAL);
        }
        self.leave_group(file).await;
        Ok(())
    }

    /// The group's locks on all objects, which the file gets first, if it may be written.
    async fn take_group(&self, file: &OpenFile, group: u64, nonblock: bool) -> Result<Vec<LockGuard>, Errno> {
        let layout = match file.is_writable() {
            true => Some(self.layout_to_write(file, &(0..FILE_SIZE_MAX)).await?),
            false => self.layout_to_read(file).await?,
        };
        let Some(layout) = layout else { return Ok(Vec::new()) };
        self.lov.lock_group(&file.caller, &file.striped(layout), group, nonblock).await
    }

    /// Sees to it that an open file with a group lock has it still: after a restart of a server it is taken again.
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
        // Whoever waits gets it before this returns.
        let Some(Group { guards, _member }) = held.take() else { return };
        join_all(guards.into_iter().map(LockGuard::give_back)).await;
    }

    /// Takes advice. What became of a request for locks ahead of time; [`LockAhead::Sent`] for all other advice. EINVAL for an
    /// empty range, EBADF if the file is not open for what is going to happen.
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
        // Advice makes no objects.
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

/// What an open file in a group holds.
struct Group {
    /// A lock of each object.
    guards: Vec<LockGuard>,
    _member: Member,
}

/// Somebody of this mount is in a group, or on the way into one: nobody else of it leaves it to the server to lock.
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
