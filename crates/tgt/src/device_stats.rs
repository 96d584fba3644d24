//! What the device of a target did, as tables in Lustre's format: `osd-nacre.<target>.brw_stats` and `.commit_stats`. Writing
//! to either begins both anew.

use crate::Target;
use nacre_base::histogram::{Rows, brw_table};
use nacre_base::{Time, Timestamp};
use nacre_osd::IoStats;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::Arc;

/// Appends tables of what a device did.
type Show = fn(&mut String, &IoStats);

/// Registers the tables. They are empty once the device is gone.
pub(crate) fn register(target: &Target) {
    let since = Since::new(target.rt().clone());
    for (name, table) in [("brw_stats", disk_tables as Show), ("commit_stats", commit_tables)] {
        let (shown, cleared) = (Arc::downgrade(target.osd()), Arc::downgrade(target.osd()));
        let (since, again) = (since.clone(), since.clone());
        let show = move || {
            let mut out = since.lines();
            table(&mut out, &shown.upgrade().map(|osd| osd.io_stats()).unwrap_or_default());
            out.trim_end().to_owned()
        };
        let clear = move |_: &str| {
            cleared.upgrade().inspect(|osd| osd.clear_io_stats());
            again.restart();
            Ok(())
        };
        target.params().add_rw(format!("{}{name}", target.device_param_prefix()), show, clear);
    }
}

/// Since when is counted, and the three lines that tell so. Cloning shares.
#[derive(Clone)]
pub struct Since {
    rt: Rt,
    begun: Arc<Mutex<(Time, Timestamp)>>,
}

impl Since {
    /// From now on.
    pub fn new(rt: Rt) -> Since {
        let begun = Arc::new(Mutex::new((rt.now(), rt.wall())));
        Since { rt, begun }
    }

    /// From now on again.
    pub fn restart(&self) {
        *self.begun.lock() = (self.rt.now(), self.rt.wall());
    }

    /// The head of a table.
    pub fn lines(&self) -> String {
        let (now, wall, (begun, begun_wall)) = (self.rt.now(), self.rt.wall(), *self.begun.lock());
        let elapsed = now.since(begun);
        let mut out = String::new();
        // A String takes all.
        let mut line = |name: &str, secs: i64, nanos: u32| {
            let _ = writeln!(out, "{name:<25}{secs}.{nanos:09} secs.nsecs");
        };
        line("snapshot_time:", wall.secs, wall.nanos);
        line("start_time:", begun_wall.secs, begun_wall.nanos);
        line("elapsed_time:", elapsed.as_secs() as i64, elapsed.subsec_nanos());
        out
    }
}

/// Requests to the device: how many at a time, how long, how large.
pub fn disk_tables(out: &mut String, stats: &IoStats) {
    let (reads, writes) = (&stats.reads, &stats.writes);
    // There is none with nothing in flight.
    let (read, write) = (reads.in_flight.get(1..).unwrap_or(&[]), writes.in_flight.get(1..).unwrap_or(&[]));
    brw_table(out, ("disk I/Os in flight", "ios"), read, write, |row| (row + 1).to_string());
    let power = |row: usize| 1u64.checked_shl(row as u32).unwrap_or(u64::MAX);
    brw_table(out, ("I/O time (1/1000s)", "ios"), reads.millis.rows(), writes.millis.rows(), |row| {
        power(row).to_string()
    });
    brw_table(out, ("disk I/O size", "ios"), reads.bytes.rows(), writes.bytes.rows(), |row| {
        // 4096 is 4K.
        format!("{}{}", 1 << (row % 10), ["", "K", "M", "G", "T", "P", "E"][(row / 10).min(6)])
    });
}

/// Commits: how long, for how long nothing could begin, how much.
fn commit_tables(out: &mut String, stats: &IoStats) {
    let commits = &stats.commits;
    for (title, histogram) in [
        ("commit time (1/1000s)", &commits.millis),
        ("stall (1/1000s)", &commits.stall_millis),
        ("changes per commit", &commits.changes),
    ] {
        let _ = writeln!(out, "\n\t\t\tcommits\n{title:<22}count  % cum %");
        let mut rows = Rows::new(histogram.rows());
        for row in 0..histogram.rows().len().max(1) {
            let _ = writeln!(out, "{}:\t\t{}", 1u64.checked_shl(row as u32).unwrap_or(u64::MAX), rows.cell(row));
        }
    }
}
