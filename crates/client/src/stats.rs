//! Operations that a mount was asked to do, how often, and how long they took: `llite.*.stats`.

use nacre_base::param::value::{Operation, Operations, Unit, Window};
use nacre_base::tally::{Sums, Tally};
use nacre_base::{Time, Timestamp};
use nacre_rt::{Rt, Since};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($name:ident = $text:literal, $unit:ident;)*) => {
        /// A counted operation.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Op { $($name,)* }

        const NAMES: &[(&str, Unit)] = &[$(($text, Unit::$unit),)*];
    };
}

operations! {
    ReadBytes = "read_bytes", Bytes;
    WriteBytes = "write_bytes", Bytes;
    Read = "read", Usecs;
    Write = "write", Usecs;
    Open = "open", Usecs;
    Create = "create", Usecs;
    Close = "close", Usecs;
    Seek = "seek", Usecs;
    Fsync = "fsync", Usecs;
    Readdir = "readdir", Usecs;
    Setattr = "setattr", Usecs;
    Truncate = "truncate", Usecs;
    Flock = "flock", Usecs;
    Lookup = "lookup", Usecs;
    Getattr = "getattr", Usecs;
    Fallocate = "fallocate", Usecs;
    Link = "link", Usecs;
    Unlink = "unlink", Usecs;
    Symlink = "symlink", Usecs;
    Readlink = "readlink", Usecs;
    Mkdir = "mkdir", Usecs;
    Rmdir = "rmdir", Usecs;
    Mknod = "mknod", Usecs;
    Rename = "rename", Usecs;
    Statfs = "statfs", Usecs;
    Setxattr = "setxattr", Usecs;
    Getxattr = "getxattr", Usecs;
    Listxattr = "listxattr", Usecs;
    Removexattr = "removexattr", Usecs;
}

/// Counters of one mount.
pub(crate) struct Stats {
    rt: Rt,
    since: Since,
    /// Made when something is first counted, because most of a site's mounts are idle at any time.
    tallies: OnceLock<Box<[Tally; NAMES.len()]>>,
}

/// Counts an operation, and the time since it was made, when it is dropped.
pub(crate) struct Timed<'a> {
    stats: &'a Stats,
    op: Op,
    began: Time,
}

impl Stats {
    pub(crate) fn new(rt: Rt) -> Stats {
        Stats { since: Since::new(rt.clone()), rt, tallies: OnceLock::new() }
    }

    /// Counts `value` of something.
    pub(crate) fn count(&self, op: Op, value: u64) {
        self.tallies.get_or_init(|| Box::new(std::array::from_fn(|_| Tally::default())))[op as usize].add(value);
    }

    /// Counts an operation and its duration, which ends when the returned value is dropped.
    pub(crate) fn time(&self, op: Op) -> Timed<'_> {
        Timed { stats: self, op, began: self.rt.now() }
    }

    /// Starts counting from zero.
    pub(crate) fn clear(&self) {
        self.counted().for_each(Tally::clear);
        self.since.restart();
    }

    fn counted(&self) -> impl Iterator<Item = &Tally> {
        self.tallies.get().into_iter().flat_map(|tallies| tallies.iter())
    }

    /// The operations that were counted.
    pub(crate) fn read(&self) -> Operations {
        let rows = NAMES.iter().zip(self.counted()).map(|((name, unit), tally)| {
            let (name, sums) = ((*name).into(), tally.read());
            Operation { name, unit: *unit, sums }
        });
        let rows = rows.filter(|row| row.sums.samples > 0).collect();
        Operations { window: self.since.window(), width: 36, blank_first: false, rows }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let took = self.stats.rt.now().since(self.began);
        self.stats.count(self.op, took.as_micros() as u64);
    }
}

/// How many reads were found in memory: `llite.*.read_ahead_stats`, in pages of 4 KiB.
#[derive(Default)]
pub(crate) struct ReadAheadStats {
    /// Pages read that were cached.
    pub(crate) hits: AtomicU64,
    /// Pages read that had to be fetched then.
    pub(crate) misses: AtomicU64,
    /// Pages fetched before they were read.
    pub(crate) fetched: AtomicU64,
    /// Pages not fetched ahead, because no lock covers them or there was no room.
    pub(crate) failed_lock_match: AtomicU64,
}

impl ReadAheadStats {
    fn all(&self) -> [(&'static str, &AtomicU64); 4] {
        [
            ("hits", &self.hits),
            ("misses", &self.misses),
            ("readahead_pages", &self.fetched),
            ("failed lock match", &self.failed_lock_match),
        ]
    }

    /// Counts a piece of `bytes` bytes.
    pub(crate) fn count(counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes.div_ceil(4096), Ordering::Relaxed);
    }

    /// Starts counting from zero.
    pub(crate) fn clear(&self) {
        self.all().iter().for_each(|(_, counter)| counter.store(0, Ordering::Relaxed));
    }

    /// The counters.
    pub(crate) fn read(&self, wall: Timestamp) -> Operations {
        let rows = self.all().map(|(name, pages)| {
            let sums = Sums { samples: pages.load(Ordering::Relaxed), ..Sums::default() };
            Operation { name: name.into(), unit: Unit::Pages, sums }
        });
        let rows = rows.into_iter().filter(|row| row.sums.samples > 0).collect();
        Operations { window: Window { now: wall, began: None }, width: 26, blank_first: false, rows }
    }
}

/// What became of the pages that doors' kernels keep: `llite.*.kernel_cache`, in pages of 4 KiB, but for rounds and held_back, which
/// count rounds of forgetting and fills.
#[derive(Debug, Default)]
pub(crate) struct PageCounts {
    /// Filled.
    pub(crate) filled: AtomicU64,
    /// Refused together, to be asked for one by one.
    pub(crate) refused: AtomicU64,
    /// Fills that waited until others could forget.
    pub(crate) held_back: AtomicU64,
    /// Rounds in which the kernel was told to forget pages, and the pages.
    pub(crate) rounds: AtomicU64,
    pub(crate) forgotten: AtomicU64,
    /// Written out after programs had stored into them.
    pub(crate) stored: AtomicU64,
    /// Stored into, and not written, because the lock was lost or for another error.
    pub(crate) lost: AtomicU64,
}

impl PageCounts {
    /// The counters by name.
    pub(crate) fn all(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("filled_pages", &self.filled),
            ("refused_pages", &self.refused),
            ("held_back_fills", &self.held_back),
            ("rounds", &self.rounds),
            ("forgotten_pages", &self.forgotten),
            ("stored_pages", &self.stored),
            ("lost_pages", &self.lost),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;
    use nacre_rt::Sim;

    #[test]
    fn stats_print_as_lustre_prints_them() {
        let stats = Stats::new(Sim::new(1).rt());
        stats.count(Op::WriteBytes, 4096);
        stats.count(Op::WriteBytes, 1024);
        drop(stats.time(Op::Open));
        let text = stats.read().into_value().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time                       1767225600.000000000 secs.nsecs");
        assert_eq!(lines[3], "write_bytes                         2 samples [bytes] 1024 4096 5120 17825792");
        assert_eq!(lines[4], "open                                1 samples [usecs] 0 0 0 0");
        stats.clear();
        assert_eq!(stats.read().rows, []);
    }

    #[test]
    fn read_ahead_stats_count_pages() {
        let stats = ReadAheadStats::default();
        ReadAheadStats::count(&stats.hits, 4097);
        let text = stats.read(Timestamp { secs: 7, nanos: 5 }).into_value().to_string();
        assert_eq!(text.lines().next(), Some("snapshot_time             7.000000005 secs.nsecs"));
        assert_eq!(text.lines().nth(1), Some("hits                      2 samples [pages]"));
        assert_eq!(text.lines().nth(2), None);
        stats.clear();
        assert_eq!(stats.read(Timestamp::default()).rows, []);
    }
}
