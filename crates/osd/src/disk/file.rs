//! An opened object: its parts, each an opened file, and how one part is made durable.
//!
//! Part 0 is made with the object, the others when something is first written to them. A bit of part 0's permissions,
//! execution by the owner, says that the object has other parts; it is set before the first of them is made. So a small
//! object is opened by one name, and parts whose making was not durable before a crash are cut when they are made
//! again.
#![allow(clippy::disallowed_methods)] // An IO edge: owns the object files.

use super::calls;
use crate::parts::{Filling, Gathering, PARTS_MAX, PartSet, Parts};
use crate::{ObjectStat, Placed, Seek};
use nacre_base::Payload;
use parking_lot::Mutex;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Permissions of object files.
pub(super) const MODE: u32 = 0o600;
/// Permissions of part 0 of an object that has other parts.
const MODE_OF_SEVERAL: u32 = 0o700;

/// An opened object. All users of the object share one at a time.
pub(super) struct ObjectFile {
    parts: [OnceLock<Arc<Part>>; PARTS_MAX as usize],
    /// True if the object was removed, so that no further part may be made. Held while parts are made.
    removed: Mutex<bool>,
    /// Runs that were written through the page cache lately.
    filling: Mutex<Filling>,
}

/// An opened part of an object.
pub(super) struct Part {
    file: File,
    /// The same file opened for direct I/O, at first use; `None` if it cannot be.
    direct: OnceLock<Option<File>>,
    /// True if the file system has refused a direct request although it could open the file.
    direct_refused: AtomicBool,
    /// Changes completed, and how many of them the last sync covered.
    changes: AtomicU64,
    synced: AtomicU64,
    /// True if its permissions have changed since they were last synced.
    permissions_changed: AtomicBool,
}

/// Returns whether the object has parts other than this first one.
pub(super) fn has_several(part0: &Metadata) -> bool {
    part0.permissions().mode() & 0o777 == MODE_OF_SEVERAL
}

impl ObjectFile {
    /// Makes an object with this part 0.
    pub(super) fn new(part0: File) -> ObjectFile {
        let parts: [OnceLock<Arc<Part>>; PARTS_MAX as usize] = Default::default();
        let file = ObjectFile { parts, removed: Mutex::new(false), filling: Mutex::default() };
        file.add(0, part0);
        file
    }

    /// Adds a part that is in this file.
    pub(super) fn add(&self, part: usize, file: File) {
        let is_first = self.parts[part].set(Arc::new(Part::new(file))).is_ok();
        assert!(is_first, "part {part} of an object is opened twice");
    }

    /// The part, if there is one.
    pub(super) fn part(&self, part: usize) -> Option<&Arc<Part>> {
        self.parts[part].get()
    }

    /// The first part, which every object has.
    fn first(&self) -> &Arc<Part> {
        self.part(0).expect("an object is made with its first part")
    }

    /// The existing parts, with their numbers.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, &Arc<Part>)> {
        self.parts.iter().enumerate().filter_map(|(n, part)| Some((n, part.get()?)))
    }

    /// Returns whether all these parts exist.
    pub(super) fn has(&self, parts: PartSet) -> bool {
        parts.iter().all(|part| self.part(part).is_some())
    }

    /// Makes those of `parts` that are missing, with `open`. Returns false if the object was removed. Blocks.
    pub(super) fn make(&self, parts: PartSet, open: impl Fn(usize) -> io::Result<File>) -> io::Result<bool> {
        let removed = self.removed.lock();
        if *removed {
            return Ok(false);
        }
        let first = self.first();
        if !has_several(&first.file.metadata()?) {
            first.file.set_permissions(Permissions::from_mode(MODE_OF_SEVERAL))?;
            first.permissions_changed.store(true, Ordering::Release);
            if !has_several(&first.file.metadata()?) {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
        }
        for part in parts.iter() {
            if self.part(part).is_none() {
                self.add(part, open(part)?);
            }
        }
        Ok(true)
    }

    /// The object was removed: no further part may be made, because it would belong to a later object of the same name.
    pub(super) fn set_removed(&self) {
        *self.removed.lock() = true;
    }

    /// Writes through the page cache, and lets the kernel begin to write back the runs that have become whole. Blocks.
    pub(super) fn write_cached(
        &self,
        how: (Parts, Gathering),
        part: &Part,
        offset: u64,
        data: &Payload,
    ) -> io::Result<()> {
        let (parts, gathering) = how;
        calls::write_all(&part.file, offset, data)?;
        let written = offset..offset + data.len() as u64;
        let whole = self.filling.lock().handle_written(&written, gathering.run_bytes);
        for (index, piece) in whole.into_iter().flat_map(|run| parts.split(run)) {
            if let Some(part) = self.part(index) {
                calls::begin_write_back(&part.file, &piece);
            }
        }
        Ok(())
    }

    /// Size and space of all parts. The inodes of open files are in memory: this does not block.
    pub(super) fn stat(&self) -> io::Result<ObjectStat> {
        let mut stat = ObjectStat::default();
        for (_, part) in self.parts() {
            let m = part.file.metadata()?;
            stat.size = stat.size.max(m.len());
            stat.blocks += m.blocks();
        }
        Ok(stat)
    }

    /// Sets the size. Blocks.
    pub(super) fn set_len(&self, size: u64) -> io::Result<()> {
        for (n, part) in self.parts() {
            // If nothing is written there, only part 0 has the size.
            if n == 0 || part.file.metadata()?.len() > size {
                part.file.set_len(size)?;
            }
        }
        Ok(())
    }

    /// The runs of all parts that have space and end after `offset`, in their order, at most `limit`; and where the next one
    /// begins. Blocks.
    pub(super) fn extents(&self, offset: u64, limit: usize) -> io::Result<(Vec<Placed>, Option<u64>)> {
        let mut all = Vec::new();
        for (_, part) in self.parts() {
            all.extend(calls::fiemap(&part.file, offset, limit + 1)?);
        }
        all.sort_unstable_by_key(|placed| placed.offset);
        let next = all.get(limit).map(|placed| placed.offset);
        all.truncate(limit);
        Ok((all, next))
    }

    /// Returns where data or a hole begins at or after `offset`. Blocks.
    pub(super) fn seek(&self, parts: Parts, offset: u64, what: Seek) -> io::Result<Option<u64>> {
        match what {
            Seek::Data => {
                // A part has holes where the other parts have their regions.
                let found: Result<Vec<_>, _> =
                    self.parts().map(|(_, part)| calls::seek(&part.file, offset, what)).collect();
                Ok(found?.into_iter().flatten().min())
            }
            Seek::Hole => self.seek_hole(parts, offset),
        }
    }

    fn seek_hole(&self, parts: Parts, offset: u64) -> io::Result<Option<u64>> {
        let (size, mut at) = (self.stat()?.size, offset);
        if at >= size {
            return Ok(None);
        }
        while at < size {
            let end = parts.region_end(at);
            let hole = match self.part(parts.of(at)) {
                Some(part) => calls::seek(&part.file, at, Seek::Hole)?.unwrap_or(at),
                None => at,
            };
            if hole < end {
                return Ok(Some(hole.min(size)));
            }
            at = end;
        }
        Ok(Some(size))
    }
}

impl Part {
    pub(super) fn new(file: File) -> Part {
        Part {
            file,
            direct: OnceLock::new(),
            direct_refused: AtomicBool::new(false),
            // An earlier opening may have left changes that are not synced.
            changes: AtomicU64::new(1),
            synced: AtomicU64::new(0),
            permissions_changed: AtomicBool::new(false),
        }
    }

    /// The file opened for direct I/O, if the file system can do that.
    fn direct(&self) -> Option<&File> {
        self.direct
            .get_or_init(|| {
                // Opened by descriptor, not by name, because it must be this very file. Its inode is in memory, so this
                // is quick.
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()
            })
            .as_ref()
    }

    /// Returns whether direct requests are worth a try.
    pub(super) fn can_direct(&self) -> bool {
        !self.direct_refused.load(Ordering::Relaxed) && self.direct().is_some()
    }

    /// A direct request failed because it was direct.
    pub(super) fn refused_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    /// The file that a request goes to.
    pub(super) fn for_io(&self, direct: bool) -> &File {
        self.direct().filter(|_| direct).unwrap_or(&self.file)
    }

    /// A change is complete.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The work that a sync has to do now; `None` if there is none.
    pub(super) fn begin_sync(&self) -> Option<PartSync> {
        let upto = self.changes.load(Ordering::Acquire);
        let data_only = !self.permissions_changed.load(Ordering::Acquire);
        (self.synced.load(Ordering::Acquire) < upto).then_some(PartSync { upto, data_only })
    }

    /// The sync is done.
    pub(super) fn end_sync(&self, sync: &PartSync) {
        if !sync.data_only {
            // The permissions change once, and this sync began after that.
            self.permissions_changed.store(false, Ordering::Release);
        }
        let changes = self.changes.load(Ordering::Acquire);
        assert!(sync.upto <= changes, "{} changes were synced, {changes} were made", sync.upto);
        self.synced.fetch_max(sync.upto, Ordering::AcqRel);
    }

    /// Makes all changes of the part durable. Blocks.
    pub(super) fn sync(&self) -> io::Result<()> {
        let Some(sync) = self.begin_sync() else { return Ok(()) };
        if sync.data_only { self.file.sync_data() } else { self.file.sync_all() }?;
        self.end_sync(&sync);
        Ok(())
    }
}

/// A sync of a part.
pub(super) struct PartSync {
    upto: u64,
    /// True if the permissions have not changed.
    pub(super) data_only: bool,
}
