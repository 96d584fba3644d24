//! The object storage device, on which a target keeps its state. [`Osd`] is the trait; [`disk`] is a directory on a
//! real file system, [`mem`] has the same semantics in memory, with a disk model and crashes, for the simulator.
//!
//! A device has two halves. The *index store* holds small records in ordered [`Table`]s and is transactional. One write
//! transaction is always open, the *running transaction*: operations apply to it in turn ([`Osd::begin`]), see each
//! other's changes at once, and become durable together at a commit, every commit interval or when a caller asks for
//! one with [`Osd::commit`]. A crash leaves a prefix of the finished operations, never part of one, never one without
//! those before it. *Object data* lives in sparse files named by FID, which are not transactional: a write is in the
//! file when it returns, and durable after the next commit or [`Osd::sync_object`]. A commit makes data durable before
//! the index, so a committed record never refers to data that a crash can still take away. The index keeps a reserve,
//! so that a full device can still be emptied (`space`). Below an object are up to [`PARTS_MAX`] files, so that one
//! object can be as fast as the device.
//!
//! What must not be here: the network, and what the records mean.

#[cfg(test)]
mod conformance;
pub mod disk;
mod error;
mod io_stats;
pub mod mem;
mod mmp;
mod parts;
mod space;

pub use error::OsdError;
pub use io_stats::{CommitShapes, IoShapes, IoStats, OsdStats};
pub use mmp::{INTERVAL_MAX as MMP_INTERVAL_MAX, Record as MmpRecord};
pub use parts::{PARTS_MAX, REGION_BYTES};
pub use space::{Full, SpaceLimits};

use async_trait::async_trait;
use bytes::Bytes;
use nacre_base::{Errno, Fid, Payload};
use std::ops::{ControlFlow, Range};
use tokio::sync::oneshot;

/// A table of the index store: an ordered map from keys to values. A device is opened with the fixed list of its
/// tables; using another one is a bug and panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Table(pub &'static str);

/// Keys are 1 to this many bytes long: room for a FID and the longest file name.
pub const KEY_MAX: usize = 511;

/// No object reaches beyond this offset, as no POSIX file does.
pub const OBJECT_SIZE_MAX: u64 = i64::MAX as u64;

/// Callback for when an operation is durable. It must be short and must not block, because others wait behind it.
pub type CommitCallback = Box<dyn FnOnce() + Send>;

/// Data of a finished operation that is still on its way to the device; see [`Transaction::commit_after`].
pub type PendingData = oneshot::Receiver<Result<(), OsdError>>;

/// An object storage device. Every method fails with [`OsdError::Poisoned`] once the device is poisoned: after a failed
/// sync the contents of the medium are unknown, so the device stops, and logs that once.
#[async_trait]
pub trait Osd: Send + Sync + 'static {
    /// Waits for a turn at the running transaction; turns are given in order of asking. The guard is for synchronous
    /// code only: never hold it over an await, because no other operation can begin meanwhile.
    async fn begin(&self) -> Result<Box<dyn Transaction>, OsdError>;

    /// Makes durable everything that finished before the call: object data first, then the index; then runs the commit
    /// callbacks in order and returns. Callers that come before a commit has begun share it.
    async fn commit(&self) -> Result<(), OsdError>;

    /// Reads up to `len` bytes at `offset`: short only at the end of the object, holes are zeros, a missing object is
    /// empty.
    async fn read(&self, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError>;

    /// Writes `data` at `offset`: [`Osd::write_extents`] with one extent.
    async fn write(&self, object: Fid, offset: u64, data: Payload) -> Result<(), OsdError> {
        self.write_extents(object, vec![(offset, data)]).await
    }

    /// Writes each extent's data at its offset; a missing object is made. Extents must not overlap; ascending extents
    /// are best for the device. Writes that overlap in time and range have no order: locks are the caller's task. A
    /// failure may leave part of the data written.
    async fn write_extents(&self, object: Fid, extents: Vec<(u64, Payload)>) -> Result<(), OsdError>;

    /// Sets the object's size, cutting off or adding zeros; a missing object is made.
    async fn truncate(&self, object: Fid, size: u64) -> Result<(), OsdError>;

    /// Makes a hole that reads as zeros and takes no space. The size stays. Nothing happens to a missing object.
    async fn punch(&self, object: Fid, range: Range<u64>) -> Result<(), OsdError>;

    /// Reserves space for `range`, or makes it zeros, as `mode` says; a missing object is made.
    async fn allocate(&self, object: Fid, range: Range<u64>, mode: AllocateMode) -> Result<(), OsdError>;

    /// Returns where data or a hole begins at or after `offset`; the end of the object counts as a hole. `None` (ENXIO)
    /// if there is no such place. A device may report holes smaller than its blocks as data.
    async fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError>;

    /// The runs of an object that have space on the medium and end after `offset`, in their order; and where to go on
    /// if there are more than `limit`. A device that does not know the places returns the runs that have data.
    async fn extents(&self, object: Fid, offset: u64, limit: usize) -> Result<(Vec<Placed>, Option<u64>), OsdError> {
        let (mut found, mut at) = (Vec::new(), offset);
        while let Some(start) = self.seek(object, at, Seek::Data).await? {
            if found.len() == limit {
                return Ok((found, Some(start)));
            }
            let end = self.seek(object, start, Seek::Hole).await?.filter(|end| *end > start);
            let Some(end) = end else { break };
            found.push(Placed { offset: start, physical: 0, len: end - start, flags: Placed::UNKNOWN });
            at = end;
        }
        Ok((found, None))
    }

    /// The object's size and space, `None` if it is missing.
    async fn stat(&self, object: Fid) -> Result<Option<ObjectStat>, OsdError>;

    /// Makes one object's data durable, without committing the running transaction.
    async fn sync_object(&self, object: Fid) -> Result<(), OsdError>;

    /// Destroys the object at once and for good; a missing one is fine. Data must never be gone while a record that a
    /// crash can bring back refers to it: call this only after the transaction that removed the record is durable, from
    /// [`Transaction::on_commit`]. A crash soon after may bring the object back, so check for orphans at start.
    async fn remove(&self, object: Fid) -> Result<(), OsdError>;

    /// Every object, in order of FID; for orphan checks. Slow.
    async fn list_objects(&self) -> Result<Vec<Fid>, OsdError>;

    /// Space and files of the device.
    async fn statfs(&self) -> Result<StatFs, OsdError>;

    /// Bytes of the largest object that the device can hold.
    fn object_bytes_max(&self) -> u64 {
        OBJECT_SIZE_MAX
    }

    /// Counters since the device was opened.
    fn stats(&self) -> OsdStats;

    /// Statistics of requests and commits since the device was opened, or since [`Osd::clear_io_stats`].
    fn io_stats(&self) -> IoStats;

    /// Resets [`Osd::io_stats`].
    fn clear_io_stats(&self);

    /// Returns whether a failure has stopped the device for good.
    fn is_poisoned(&self) -> bool;

    /// The kind of space that the device lacks, if it is full.
    fn full(&self) -> Option<Full>;

    /// Returns whether another node has taken the device over, so that changes here no longer count. True before any
    /// call fails for that reason.
    fn is_taken(&self) -> bool {
        false
    }

    /// Commits and closes; every later call fails with [`OsdError::Closed`]. Dropping the device without closing it
    /// loses the running transaction, as a crash does.
    async fn close(&self) -> Result<(), OsdError>;
}

/// One operation's turn at the running transaction. Reads see all earlier changes, committed or not. *Dropping it
/// without [`Transaction::finish`] undoes exactly this operation's changes.*
///
/// A change is refused with ENOSPC before it would take from the device's reserve, unless the operation may use the
/// reserve.
pub trait Transaction: Send {
    /// Allows the operation to use the reserve: because it frees space or is needed for that, adds nothing, or repeats
    /// what a client was already answered. Must be called before its first change.
    fn use_reserve(&mut self);

    /// Records in a table.
    fn count(&self, table: Table) -> Result<u64, OsdError>;

    /// The value of `key`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError>;

    /// Sets `key` to `value`, whether it was there or not.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError>;

    /// Removes `key`. Returns whether it was there.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError>;

    /// Visits the entries of one table from key `from` (inclusive; empty is the first) in key order until `visit`
    /// breaks.
    fn scan(&self, table: Table, from: &[u8], visit: &mut Visitor<'_>) -> Result<(), OsdError>;

    /// Calls `f` once this operation is durable; drops it uncalled if the operation is undone or lost.
    fn on_commit(&mut self, f: CommitCallback);

    /// Lets the operation be finished before its data is written: the commit that covers it waits for `data` first. If
    /// that fails or is dropped unsent, the device is poisoned, because others may have seen the operation and it
    /// cannot be undone. The sender must have called [`Osd::write_extents`], and keeps readers away until then.
    fn commit_after(&mut self, data: PendingData);

    /// Keeps the operation's changes.
    fn finish(self: Box<Self>);
}

/// Called with each key and value of a scan; returns whether to go on.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Modes of [`Osd::allocate`], as those of fallocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Reserve space; the object grows to the end of the range.
    Extend,
    /// Reserve space; the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Make the range zeros; the object grows to its end (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
    /// Make the range zeros; the size stays (`FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`).
    ZeroRangeKeepSize,
}

impl AllocateMode {
    fn keeps_size(self) -> bool {
        matches!(self, AllocateMode::KeepSize | AllocateMode::ZeroRangeKeepSize)
    }

    /// The same mode without growth of the object.
    fn keeping_size(self) -> AllocateMode {
        if self.zeroes() { AllocateMode::ZeroRangeKeepSize } else { AllocateMode::KeepSize }
    }

    fn zeroes(self) -> bool {
        matches!(self, AllocateMode::ZeroRange | AllocateMode::ZeroRangeKeepSize)
    }
}

/// Target of [`Osd::seek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// Size and space of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectStat {
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in blocks of 512 bytes.
    pub blocks: u64,
}

/// Space on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes not in use.
    pub free_bytes: u64,
    /// Bytes that object data may still take; less than free where the device keeps a reserve.
    pub available_bytes: u64,
    /// Bytes not in use that records may still take, without the reserve.
    pub records_available_bytes: u64,
    /// Bytes not in use that records may take, with the reserve.
    pub records_free_bytes: u64,
    /// Most files that there can be.
    pub files_total: u64,
    /// Files that may still be made, each with a record.
    pub files_free: u64,
    /// A number that distinguishes the device's file system from all others, here and on other hosts. 0 if not known.
    pub disk: u64,
}

/// A run of an object that has space in one run of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// First byte in the object.
    pub offset: u64,
    /// First byte on the medium.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// Linux's `FIEMAP_EXTENT_...`, but never the flag of a file's last extent: several files may hold the object.
    pub flags: u32,
}

impl Placed {
    /// The place on the medium is not known.
    pub const UNKNOWN: u32 = 0x2;
}

fn check_key(key: &[u8]) -> Result<(), OsdError> {
    if (1..=KEY_MAX).contains(&key.len()) { Ok(()) } else { Err(OsdError::KeyLength(key.len())) }
}

/// The end of a range of an object, if objects can reach there.
fn range_end(offset: u64, len: u64) -> Result<u64, OsdError> {
    offset
        .checked_add(len)
        .filter(|end| *end <= OBJECT_SIZE_MAX)
        .ok_or(OsdError::Io { what: "object range", errno: Errno::EFBIG })
}

/// Checks a range that must not be empty and must be within what objects can reach.
fn check_range(range: &Range<u64>) -> Result<(), OsdError> {
    if range.start >= range.end {
        return Err(OsdError::Io { what: "object range", errno: Errno::EINVAL });
    }
    range_end(range.start, range.end - range.start).map(|_| ())
}
