//! Histograms of the I/O of a target's device: `osd-nacre.<target>.brw_stats` and `.commit_stats`. Writing to either
//! resets both.

use crate::Target;
use futures_util::FutureExt;
use nacre_base::param::value::{Bounds, Column, Head, Histograms, Table};
use nacre_osd::{IoStats, StatFs};
use nacre_rt::Since;
use std::sync::Arc;

/// Makes the tables of one parameter.
type Tables = fn(&IoStats) -> Vec<Table>;

/// Registers the histograms, which are empty once the device is gone, and the device's space.
pub(crate) fn register(target: &Target) {
    register_space(target);
    let since = Since::new(target.rt().clone());
    for (name, tables) in [("brw_stats", disk_tables as Tables), ("commit_stats", commit_tables)] {
        let (shown, cleared) = (Arc::downgrade(target.osd()), Arc::downgrade(target.osd()));
        let (since, again) = (since.clone(), since.clone());
        let read = move || {
            let stats = shown.upgrade().map(|osd| osd.io_stats()).unwrap_or_default();
            Histograms { window: since.window(), levels: Vec::new(), tables: tables(&stats) }
        };
        let clear = move |_: &str| {
            cleared.upgrade().inspect(|osd| osd.clear_io_stats());
            again.restart();
            Ok(())
        };
        target.params().add_rw(format!("{}{name}", target.device_param_prefix()), read, clear);
    }
}

fn register_space(target: &Target) {
    let params = target.params();
    params.add(format!("{}fstype", target.device_param_prefix()), || "nacre");
    let show = |name: &str, value: fn(&StatFs) -> u64| {
        let osd = Arc::downgrade(target.osd());
        // Devices answer at once; a parameter cannot wait.
        let statfs = move || osd.upgrade()?.statfs().now_or_never()?.ok();
        params.add(format!("{}{name}", target.device_param_prefix()), move || statfs().map(|statfs| value(&statfs)));
    };
    show("kbytestotal", |s| s.total_bytes >> 10);
    show("kbytesfree", |s| s.free_bytes >> 10);
    show("kbytesavail", |s| s.available_bytes >> 10);
    show("filestotal", |s| s.files_total);
    show("filesfree", |s| s.files_free);
}

/// Requests to the device: how many at a time, how long, how large.
pub fn disk_tables(stats: &IoStats) -> Vec<Table> {
    let (reads, writes) = (&stats.reads, &stats.writes);
    let table = |title, metric, unit, bounds, columns: [Column; 2]| Table {
        title,
        counted: "ios",
        head: Head::Brw,
        bounds,
        metric,
        unit,
        columns: columns.into(),
    };
    // Row 0 stays empty, because a request counts itself.
    let in_flight = |name, rows: &[u64]| Column::exact(name, 1, rows.get(1..).unwrap_or(&[]));
    let in_flight = [in_flight("read", &reads.in_flight), in_flight("write", &writes.in_flight)];
    let times = [reads.millis.column("read"), writes.millis.column("write")];
    let sizes = [reads.bytes.column("read"), writes.bytes.column("write")];
    vec![
        table("disk I/Os in flight", "disk_in_flight", "", Bounds::From(1), in_flight),
        table("I/O time (1/1000s)", "disk_time", "ms", Bounds::Powers, times),
        table("disk I/O size", "disk_size", "bytes", Bounds::Sizes, sizes),
    ]
}

/// Commits: how long they took, how long operations could not begin, how many changes they had.
fn commit_tables(stats: &IoStats) -> Vec<Table> {
    let commits = &stats.commits;
    let table = |(title, metric, unit, histogram): (_, _, _, &nacre_base::histogram::Histogram)| Table {
        title,
        counted: "count",
        head: Head::Brw,
        bounds: Bounds::Powers,
        metric,
        unit,
        columns: vec![histogram.column("commits")],
    };
    let tables = [
        ("commit time (1/1000s)", "time", "ms", &commits.millis),
        ("stall (1/1000s)", "stall", "ms", &commits.stall_millis),
        ("changes per commit", "changes", "", &commits.changes),
    ];
    tables.map(table).into()
}
