//! Options of a device on disk.

use super::mmp::MmpOptions;
use crate::space::SpaceLimits;
use nacre_base::Faults;
use std::time::Duration;

/// How requests for object data reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoEngine {
    /// io_uring, or threads where the kernel lacks or forbids it.
    #[default]
    Auto,
    /// Threads.
    Threads,
}

/// Options of a device on disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Changes of records after which a commit begins early: it bounds the memory of the running transaction and the
    /// time that operations wait while it is flushed.
    pub commit_changes: u64,
    /// Space that object data must leave free, so that the index can always commit: a target that is full refuses
    /// writes, and goes on. By default 256 MiB, but at most a 32nd of the file system.
    pub reserve_bytes: Option<u64>,
    /// Space that the index keeps for removals.
    pub space: SpaceLimits,
    /// Largest size of the index's file, if less than the file system.
    pub index_max_bytes: u64,
    /// Object files kept open, the parts of an object counted each. One may take two descriptors.
    pub open_files_max: usize,
    /// Address space that the index may grow by between two commits; the map grows as needed.
    pub map_headroom_bytes: u64,
    /// How requests for object data reach the kernel.
    pub io_engine: IoEngine,
    /// True if large aligned requests bypass the page cache; on a disk with a moving head only the largest writes do.
    pub direct_io: bool,
    /// Protection against several nodes that open the target, where that can happen.
    pub mmp: Option<MmpOptions>,
    /// For a target with a journal: the longest time between two flushes of its index.
    pub checkpoint_interval: Duration,
    /// For a target with a journal: the most changes between two flushes of its index. It bounds the memory of the
    /// running transaction, and the work of opening.
    pub checkpoint_changes: u64,
    /// The process's fault points, in front of the steps of a commit: `osd.commit` (object data), `osd.commit.index`,
    /// `osd.commit.tell` (callbacks). Fail poisons the device as a failed sync does.
    pub faults: Faults,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            commit_interval: Duration::from_secs(5),
            commit_changes: 16_384,
            reserve_bytes: None,
            space: SpaceLimits::default(),
            index_max_bytes: u64::MAX,
            open_files_max: 1024,
            map_headroom_bytes: 64 << 30,
            io_engine: IoEngine::Auto,
            direct_io: true,
            mmp: None,
            checkpoint_interval: Duration::from_secs(30),
            checkpoint_changes: 16_384,
            faults: Faults::new(),
        }
    }
}
