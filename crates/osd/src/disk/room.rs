//! The space of a device: when it refuses data, and how the index's file gets its space, which is allocated ahead in
//! steps while the file system has space.
#![allow(clippy::disallowed_methods)] // An IO edge: asks the file system for space.

use super::commit::Covered;
use super::device::{Device, Running};
use super::index::Index;
use super::tree_use::{Shape, TreeUse};
use crate::space::{PAGE, Space, SpaceLimits};
use crate::{OsdError, StatFs};
use nacre_base::{Errno, Fid, TargetKind};
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Space of the file system that the index leaves to the small files beside it.
pub(super) const LEFT_BYTES: u64 = 1 << 20;
/// The index grows by a fraction of the file system, but by no more and no less than these steps.
const STEP_MAX_PAGES: u64 = (16 << 20) / PAGE;
const STEP_MIN_PAGES: u64 = (1 << 20) / PAGE;
const STEP_FRACTION: u64 = 64;
/// If there is no space for a step, the index takes the space that is left, in multiples of this.
const LAST_STEP_PAGES: u64 = 64;
/// Approximate space in the index for one file.
const RECORD_BYTES: u64 = 512;
/// Space that is kept for the index by default.
const RESERVE_BYTES: u64 = 256 << 20;
/// Data written between two readings of the free space.
const SPACE_CHECK_BYTES: u64 = RESERVE_BYTES / 4;

/// Pages of an index that was just opened.
pub(super) fn measure(index: &Index, tree: &TreeUse, limits: SpaceLimits) -> Space {
    let reached = index.pages_reached();
    // Pages that were never written are not allocated yet.
    let allocated = match index.allocate(reached) {
        Ok(()) => reached.max(index.pages_on_disk()),
        Err(_) => index.pages_on_disk(),
    };
    Space::new(limits, allocated, tree.used(), reached)
}

impl Running {
    /// Resets the counts, because a transaction was ended and the next one begun.
    pub(super) fn begin_counting(&mut self, index: &Index, shapes: Vec<Shape>) {
        let taken = self.tree.pages();
        self.tree = TreeUse::new(shapes);
        self.space.handle_flush(taken, self.tree.used(), index.pages_reached());
    }

    /// Returns whether the next commit must flush the index even if a journal could take the changes.
    pub(super) fn is_short_of_space(&self) -> bool {
        let taken = self.tree.taken(0);
        self.space.is_crowded(taken) || self.space.wants_settling(taken)
    }
}

impl Device {
    /// Lets the index grow ahead of need. Also notices if the file system has become larger.
    pub(super) fn grow_ahead(&self, running: &mut Running) {
        let wanted = running.space.wanted_growth(running.tree.pages(), self.growth_step);
        if wanted > 0 {
            self.grow_index(running, wanted);
        }
    }

    /// Lets the index grow by `pages`, or by as many as there are.
    pub(super) fn grow_index(&self, running: &mut Running, pages: u64) {
        let Some(index) = &running.index else { return };
        let wanted = pages.next_multiple_of(self.growth_step);
        let Ok(fs) = statfs(&self.lock.0) else { return };
        let there_is = self.index_growth_max(&fs) / PAGE;
        let mut grown = wanted.min(there_is);
        let before = running.space.allocated();
        while grown > 0 && index.allocate(before + grown).is_err() {
            // Another program took the space meanwhile.
            grown = grown / 2 / LAST_STEP_PAGES * LAST_STEP_PAGES;
        }
        running.space.handle_growth(before + grown, grown == wanted);
        self.index_bytes.store(running.space.allocated() * PAGE, Ordering::Relaxed);
    }

    /// Bytes that the index's file may grow by, if the file system has this much.
    pub(super) fn index_growth_max(&self, fs: &StatFs) -> u64 {
        let allowed = self.options.index_max_bytes.saturating_sub(self.index_bytes.load(Ordering::Relaxed));
        let bytes = fs.available_bytes.saturating_sub(LEFT_BYTES).min(allowed);
        bytes - bytes % (LAST_STEP_PAGES * PAGE)
    }

    /// Publishes the space of the index for [`Device::statfs`].
    pub(super) fn show_records(&self, running: &Running) {
        let taken = running.tree.taken(0);
        self.records_available.store(running.space.available(taken) * PAGE, Ordering::Relaxed);
        self.records_free.store(running.space.free(taken) * PAGE, Ordering::Relaxed);
    }

    /// Ends a transaction on a device that was just opened and is short of space: it is not known which pages the last
    /// transaction before the start has freed, and they can be used again only after the next one.
    pub(super) fn begin_settled(&self, running: &mut Running) -> Result<(), OsdError> {
        if running.space.can_grow() {
            return Ok(());
        }
        let Running { txn: Some(txn), index: Some(index), .. } = running else { return Ok(()) };
        if index.touch(txn)? {
            let index = index.clone();
            if let Covered::Flushed(_, id) = self.flush_running(running)? {
                index.sync(id).map_err(|e| OsdError::io("syncing the index", &e))?;
            }
        }
        Ok(())
    }

    /// Lets the index grow before an operation, unless the last attempt failed.
    pub(super) fn grow_if_needed(&self, running: &mut Running) {
        if running.space.can_grow() {
            self.grow_ahead(running);
        }
    }

    /// Refuses data when only the reserve is left.
    pub(super) fn check_room(&self, len: u64) -> Result<(), OsdError> {
        let written = self.written.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        // Read often enough that the reserve cannot be used up between two readings.
        if written >= SPACE_CHECK_BYTES || self.space_low.load(Ordering::Relaxed) {
            self.check_space();
        }
        if self.space_low.load(Ordering::Relaxed) {
            return Err(OsdError::Io { what: "write", errno: Errno::ENOSPC });
        }
        Ok(())
    }

    /// Refuses to reserve more space than there is: done part by part, it would fill the device before it failed.
    pub(super) async fn check_allocation(&self, object: Fid, range: &Range<u64>) -> Result<(), OsdError> {
        let available = self.statfs()?.available_bytes;
        if range.end - range.start <= available {
            return Ok(());
        }
        let has = self.objects.stat(object).await?.unwrap_or_default().blocks.saturating_mul(512);
        if range.end - range.start > available.saturating_add(has) {
            return Err(OsdError::Io { what: "allocate", errno: Errno::ENOSPC });
        }
        Ok(())
    }

    pub(super) fn check_space(&self) {
        self.written.store(0, Ordering::Relaxed);
        if let Ok(fs) = self.statfs() {
            self.space_low.store(fs.available_bytes == 0, Ordering::Relaxed);
            let of_objects = self.label.target.kind == TargetKind::Ost;
            if let Some(news) = self.full.lock().handle_statfs(&fs, of_objects) {
                tracing::warn!("{} {news}", self.label.target);
            }
        }
    }

    pub(super) fn statfs(&self) -> Result<StatFs, OsdError> {
        let fs = statfs(&self.lock.0)?;
        let reserve = self.options.reserve_bytes.unwrap_or(RESERVE_BYTES.min(fs.total_bytes / 32));
        // The index may grow into the space that object data leaves.
        let may_grow = self.index_growth_max(&fs);
        let of_index = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed).saturating_add(may_grow);
        let records_available_bytes = of_index(&self.records_available);
        Ok(StatFs {
            available_bytes: fs.available_bytes.saturating_sub(reserve),
            records_available_bytes,
            records_free_bytes: of_index(&self.records_free),
            files_free: fs.files_free.min(records_available_bytes / RECORD_BYTES),
            disk: self.disk,
            ..fs
        })
    }
}

/// Pages by which an index grows on a file system of this size.
pub(super) fn growth_step(total_bytes: u64) -> u64 {
    (total_bytes / STEP_FRACTION / PAGE).clamp(STEP_MIN_PAGES, STEP_MAX_PAGES)
}

/// Space of the file system that a file is on, without that of records.
pub(super) fn statfs(file: &File) -> Result<StatFs, OsdError> {
    let mut fs = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: fstatvfs fills what it is given, and `fs` is read only if it did.
    let fs = unsafe {
        if libc::fstatvfs(file.as_raw_fd(), fs.as_mut_ptr()) != 0 {
            return Err(OsdError::io("statfs", &std::io::Error::last_os_error()));
        }
        fs.assume_init()
    };
    // Some file systems have no limit of files except their space.
    let (files_total, files_free) = if fs.f_files == 0 { (1 << 32, 1 << 32) } else { (fs.f_files, fs.f_favail) };
    Ok(StatFs {
        total_bytes: fs.f_blocks.saturating_mul(fs.f_frsize),
        free_bytes: fs.f_bfree.saturating_mul(fs.f_frsize),
        available_bytes: fs.f_bavail.saturating_mul(fs.f_frsize),
        files_total,
        files_free,
        ..StatFs::default()
    })
}
