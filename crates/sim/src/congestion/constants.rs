//! The numbers of `nacre sim congestion-control`, each with its source. Two were fitted, to six figures of the paper.

use nacre_experiment::{Constant, ConstantKind};
use nacre_osd::mem::DiskModel;
use std::time::Duration;

/// Reads and writes that an OST serves at once: the paper's Dlow, "set to N by default".
pub(super) const THREADS: u32 = 128;
/// Bytes a second that a node can send and receive.
pub(super) const LINK_BANDWIDTH: u64 = 3_200_000_000;
/// Latency of one way, including the software on both sides; up to twice as long.
pub(super) const LATENCY: Duration = Duration::from_micros(20);
/// Average rate at which a process makes a record and copies it into the cache, in bytes a second. Each record takes from
/// half of that time to half as much again: otherwise the writers would be in step, as real ones never are.
pub(super) const COPY_BANDWIDTH: u64 = 1_500_000_000;
/// Written data that a client holds, at most, in MiB.
pub(super) const DIRTY_MB: &str = "128";
/// Where the paper's job writes all of its data, its processes begin one after the other, so far apart: there are as many as there will be after
/// 522 s.
pub(super) const APART_MS: u32 = 510;
/// Elsewhere they begin within so many seconds.
pub const DISPATCH: u32 = 1;

const DISK_BANDWIDTH: u64 = 192_000_000;
const DISK_SEEK: Duration = Duration::from_micros(4600);

/// The OST's disks.
pub(super) const DISK: DiskModel =
    DiskModel { bandwidth: DISK_BANDWIDTH, seek: DISK_SEEK, elevator: true, ..DiskModel::FREE };

/// Virtual time after which a run counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(200_000);

/// All constants that do not depend on the command's arguments.
pub(super) fn fixed() -> Vec<Constant> {
    use ConstantKind::{Fitted, Paper, Physical};
    let all = [
        ("disk: rate", DISK_BANDWIDTH as f64 / 1e6, "MB/s", Fitted, "the six figures of static windows"),
        ("disk: a request that does not follow the last", DISK_SEEK.as_secs_f64() * 1e3, "ms", Fitted, "the same"),
        ("service threads", f64::from(THREADS), "", Paper, "section III.B: Dlow is N by default, and 128"),
        ("a node's link", LINK_BANDWIDTH as f64 / 1e9, "GB/s", Physical, "Tianhe-1: InfiniBand QDR"),
        ("a message, one way", LATENCY.as_secs_f64() * 1e6, "us", Physical, "assumed; up to twice as long"),
        (
            "a process's copy",
            COPY_BANDWIDTH as f64 / 1e9,
            "GB/s",
            Physical,
            "assumed: one core of the clients' processors",
        ),
        ("written data that a client holds", 128.0, "MiB", Physical, "assumed: more than a window of 64 requests"),
        (
            "begin of two processes, apart",
            f64::from(APART_MS),
            "ms",
            Paper,
            "table I: with 1,024 clients the stable phase begins after 522 s",
        ),
        ("where less is written: begin of all", f64::from(DISPATCH), "s", Physical, "assumed: within this time"),
    ];
    all.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)).to_vec()
}
