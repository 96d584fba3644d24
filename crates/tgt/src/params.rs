//! Parameters that every target has, of whatever kind.

use crate::series;
use nacre_base::param::declared::{Declared, Kind, number};

const TARGETS: &[&str] = &["mgs", "mdt", "obdfilter"];
const WITH_CLIENTS: &[&str] = &["mdt", "obdfilter"];
const DEVICE: &[&str] = &["osd-nacre"];
const DAY: i64 = 24 * 3600;

const fn device(name: &'static str, unit: &'static str, about: &'static str) -> Declared {
    Declared::shown(DEVICE, name, Kind::Gauge, about).in_unit(unit)
}

/// Parameters of every target.
pub const PARAMS: &[Declared] = &[
    Declared::text(TARGETS, "uuid", "The target's name, as Lustre shows it."),
    Declared::text(TARGETS, "health", "What is wrong with the target; healthy if nothing is.").series(series::health),
    Declared::shown(TARGETS, "instance", Kind::Counter, "How often the target was started.").metric("starts"),
    Declared::shown(TARGETS, "num_exports", Kind::Gauge, "Clients that are connected, other servers among them.")
        .metric("exports"),
    Declared::shown(TARGETS, "eviction_count", Kind::Counter, "Clients that the target has evicted since its start.")
        .metric("evictions"),
    Declared::text(TARGETS, "exports.*.uuid", "UUIDs of the clients at a NID, whatever their ports."),
    Declared::local(&["mgs", "obdfilter"], "stats", Kind::Statistics, "", "Operations, and how long they took."),
    Declared::local(&["mdt"], "md_stats", Kind::Statistics, "", "Operations, and how long they took."),
    Declared::local(
        WITH_CLIENTS,
        "job_stats",
        Kind::Statistics,
        "",
        "Operations and bytes of each job; `clear`, or a job's name, clears.",
    ),
    Declared::local(
        WITH_CLIENTS,
        "job_cleanup_interval",
        number(0, 30 * DAY),
        "600",
        "How long jobs and clients that ask for nothing are accounted for; 0 for ever.",
    )
    .in_unit("s"),
    Declared::local(
        WITH_CLIENTS,
        "time_parts",
        Kind::Statistics,
        "",
        "Where the time of requests went, in microseconds, by operation, client and job.",
    )
    .series(series::time_parts),
    Declared::text(
        WITH_CLIENTS,
        "history",
        "What happened in each second of the last hour and each minute of the last day.",
    ),
    Declared::text(WITH_CLIENTS, "recovery_status", "How far the recovery after the last start is or was.")
        .series(series::recovery_status),
    Declared::kept(
        WITH_CLIENTS,
        "recovery_time_soft",
        number(1, DAY),
        "300",
        "How long a restarted target waits for its clients at first.",
    )
    .in_unit("s"),
    Declared::kept(
        WITH_CLIENTS,
        "recovery_time_hard",
        number(1, DAY),
        "900",
        "How long a restarted target waits for its clients at most.",
    )
    .in_unit("s"),
    Declared::local(WITH_CLIENTS, "evict_client", Kind::Action, "", "Evicts the client with this UUID or NID."),
    Declared::local(WITH_CLIENTS, "abort_recovery", Kind::Action, "", "Ends the wait for clients of the last start."),
    device("kbytestotal", "KiB", "The size of the file system that the target is in.").metric("size"),
    device("kbytesfree", "KiB", "Space of it that nobody uses.").metric("free"),
    device("kbytesavail", "KiB", "Space of it that data may still take.").metric("available"),
    device("filestotal", "files", "Files that fit into it.").metric("files_max"),
    device("filesfree", "files", "Files that may still be made in it.").metric("files_free"),
    Declared::text(DEVICE, "fstype", "The kind of storage."),
    Declared::local(DEVICE, "brw_stats", Kind::Histograms, "", "Sizes and times of reads and writes of the device."),
    Declared::local(DEVICE, "commit_stats", Kind::Histograms, "", "How long commits took, and what was in them."),
];
