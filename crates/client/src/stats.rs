//! What a mount was asked to do, how often and how long it took: `llite.*.stats`, in Lustre's format.

use nacre_base::{Time, Timestamp};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($name:ident = $text:literal, $unit:literal;)*) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Op { $($name,)* }

        const NAMES: &[(&str, &str)] = &[$(($text, $unit),)*];
    };
}

operations! {
    ReadBytes = "read_bytes", "bytes";
    WriteBytes = "write_bytes", "bytes";
    Read = "read", "usecs";
    Write = "write", "usecs";
    Open = "open", "usecs";
    Create = "create", "usecs";
    Close = "close", "usecs";
    Seek = "seek", "usecs";
    Fsync = "fsync", "usecs";
    Readdir = "readdir", "usecs";
    Setattr = "setattr", "usecs";
    Truncate = "truncate", "usecs";
    Flock = "flock", "usecs";
    Lookup = "lookup", "usecs";
    Getattr = "getattr", "usecs";
    Fallocate = "fallocate", "usecs";
    Link = "link", "usecs";
    Unlink = "unlink", "usecs";
    Symlink = "symlink", "usecs";
    Readlink = "readlink", "usecs";
    Mkdir = "mkdir", "usecs";
    Rmdir = "rmdir", "usecs";
    Mknod = "mknod", "usecs";
    Rename = "rename", "usecs";
    Statfs = "statfs", "usecs";
    Setxattr = "setxattr", "usecs";
    Getxattr = "getxattr", "usecs";
    Listxattr = "listxattr", "usecs";
    Removexattr = "removexattr", "usecs";
}

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    samples: u64,
    min: u64,
    max: u64,
    sum: u64,
    sum_squares: u64,
}

/// Counters of one mount.
pub(crate) struct Stats {
    rt: Rt,
    state: Mutex<State>,
}

struct State {
    since: Time,
    since_wall: Timestamp,
    counters: [Counter; NAMES.len()],
}

/// Counts an operation, and the time since it was made, when it is dropped.
pub(crate) struct Timed<'a> {
    stats: &'a Stats,
    op: Op,
    began: Time,
}

impl Stats {
    pub(crate) fn new(rt: Rt) -> Stats {
        let state = State { since: rt.now(), since_wall: rt.wall(), counters: [Counter::default(); NAMES.len()] };
        Stats { rt, state: Mutex::new(state) }
    }

    /// Counts `value` of something.
    pub(crate) fn count(&self, op: Op, value: u64) {
        let c = &mut self.state.lock().counters[op as usize];
        c.min = if c.samples == 0 { value } else { c.min.min(value) };
        c.max = c.max.max(value);
        c.samples += 1;
        c.sum = c.sum.saturating_add(value);
        c.sum_squares = c.sum_squares.saturating_add(value.saturating_mul(value));
    }

    /// Counts an operation and how long it takes: until what this returns is dropped.
    pub(crate) fn time(&self, op: Op) -> Timed<'_> {
        Timed { stats: self, op, began: self.rt.now() }
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        let (since, since_wall) = (self.rt.now(), self.rt.wall());
        *self.state.lock() = State { since, since_wall, counters: [Counter::default(); NAMES.len()] };
    }

    /// The parameter's text: what never happened is left out.
    pub(crate) fn show(&self) -> String {
        let (now, wall) = (self.rt.now(), self.rt.wall());
        let state = self.state.lock();
        let elapsed = now.since(state.since);
        let mut out = String::new();
        let mut time = |name: &str, secs: i64, nanos: u32| {
            let _ = writeln!(out, "{name:<36}{secs}.{nanos:09} secs.nsecs");
        };
        time("snapshot_time", wall.secs, wall.nanos);
        time("start_time", state.since_wall.secs, state.since_wall.nanos);
        time("elapsed_time", elapsed.as_secs() as i64, elapsed.subsec_nanos());
        for ((name, unit), c) in NAMES.iter().zip(&state.counters).filter(|(_, c)| c.samples > 0) {
            let Counter { samples, min, max, sum, sum_squares } = c;
            let _ = writeln!(out, "{name:<36}{samples} samples [{unit}] {min} {max} {sum} {sum_squares}");
        }
        out.truncate(out.trim_end().len());
        out
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let took = self.stats.rt.now().since(self.began);
        self.stats.count(self.op, took.as_micros() as u64);
    }
}

/// How reads met what was in memory: `llite.*.read_ahead_stats`, in pages of 4 KiB.
#[derive(Default)]
pub(crate) struct ReadAheadStats {
    /// Read, and there.
    pub(crate) hits: AtomicU64,
    /// Read, and fetched then.
    pub(crate) misses: AtomicU64,
    /// Fetched before they were read.
    pub(crate) fetched: AtomicU64,
    /// Not fetched ahead: there was no lock here that covers them, or no room.
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

    /// Counts a piece of so many bytes.
    pub(crate) fn count(counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes.div_ceil(4096), Ordering::Relaxed);
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        self.all().iter().for_each(|(_, counter)| counter.store(0, Ordering::Relaxed));
    }

    /// The parameter's text: what never happened is left out.
    pub(crate) fn show(&self, wall: Timestamp) -> String {
        let mut out = format!("{:<26}{}.{:09} secs.nsecs", "snapshot_time", wall.secs, wall.nanos);
        for (name, counter) in self.all() {
            let pages = counter.load(Ordering::Relaxed);
            if pages > 0 {
                let _ = write!(out, "\n{name:<26}{pages} samples [pages]");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rt::Sim;

    #[test]
    fn stats_print_as_lustre_prints_them() {
        let stats = Stats::new(Sim::new(1).rt());
        stats.count(Op::WriteBytes, 4096);
        stats.count(Op::WriteBytes, 1024);
        drop(stats.time(Op::Open));
        let text = stats.show();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time                       1767225600.000000000 secs.nsecs");
        assert_eq!(lines[3], "write_bytes                         2 samples [bytes] 1024 4096 5120 17825792");
        assert_eq!(lines[4], "open                                1 samples [usecs] 0 0 0 0");
        stats.clear();
        assert_eq!(stats.show().lines().count(), 3);
    }

    #[test]
    fn read_ahead_stats_count_pages() {
        let stats = ReadAheadStats::default();
        ReadAheadStats::count(&stats.hits, 4097);
        let text = stats.show(Timestamp { secs: 7, nanos: 5 });
        assert_eq!(text.lines().next(), Some("snapshot_time             7.000000005 secs.nsecs"));
        assert_eq!(text.lines().nth(1), Some("hits                      2 samples [pages]"));
        assert_eq!(text.lines().nth(2), None);
        stats.clear();
        assert_eq!(stats.show(Timestamp::default()).lines().count(), 1);
    }
}
