//! Declarations of the parameters of mounts.

use crate::far::FAR_UNDER_WAY_MB_MAX;
use crate::inodes::ahead::LOOKUP_AHEAD_KB_MAX;
use crate::jobs::{JOBID_NAME, JOBID_VAR};
use nacre_base::param::declared::{Declared, Kind, SWITCH, number};

const LLITE: &[&str] = &["llite"];
const OSC: &[&str] = &["osc"];
const MDC: &[&str] = &["mdc"];
const LOV: &[&str] = &["lov"];
const LOV_AND_LMV: &[&str] = &["lov", "lmv"];

/// All declarations.
pub const PARAMS: &[Declared] = &[
    Declared::kept(
        &[],
        "jobid_var",
        JOBID_VAR,
        "procname_uid",
        "Source of the job that a program's requests are accounted to: procname_uid (command name and user), nodelocal \
         (jobid_name), session (jobid_this_session), disable (no job), or the name of an environment variable such as \
         SLURM_JOB_ID, whose value is the job; jobid_name is the job of a program without that variable, and of all programs if it contains %j.",
    ),
    Declared::local(
        &[],
        "jobid_this_session",
        Kind::Text,
        "",
        "Jobs of sessions, for jobid_var=session: SESSION:JOB. lctl set_param jobid_this_session=JOB sets that of its own session; in \
         others, jobid_name is the job.",
    ),
    Declared::kept(
        &[],
        "jobid_name",
        JOBID_NAME,
        "%e.%u",
        "Template of jobs: %e command name, %g group, %h host, %H host without its domain, %j value of the environment \
         variable, %p thread, %u user. Jobs are cut at 31 characters.",
    ),
    Declared::text(&["llite", "lov", "lmv"], "uuid", "The mount's identity at the servers."),
    Declared::local(LLITE, "stats", Kind::Statistics, "", "What programs asked of the mount, and how long it took."),
    Declared::local(LLITE, "read_ahead_stats", Kind::Statistics, "", "How reads met what was in memory."),
    Declared::local(
        LLITE,
        "kernel_cache",
        Kind::Statistics,
        "",
        "What the kernel keeps of the mount's files in pages of 4 KiB, and what became of such pages.",
    ),
    Declared::local(
        LLITE,
        "statahead_stats",
        Kind::Statistics,
        "",
        "What was fetched before programs asked, and what of it was used.",
    ),
    Declared::shown(
        LLITE,
        "pcc_stats",
        Kind::Statistics,
        "What the mount's cache on disk has, and what it brought; see lctl pcc.",
    ),
    Declared::kept(
        LLITE,
        "max_cached_mb",
        number(0, 1 << 24),
        "",
        "Bounds the file data that a mount caches; by default its share of half the memory of the host or the cgroup.",
    )
    .in_unit("MiB"),
    Declared::kept(
        LLITE,
        "max_read_ahead_mb",
        number(0, 1 << 20),
        "128",
        "Bounds what a mount reads ahead in all files together.",
    )
    .in_unit("MiB"),
    Declared::kept(
        LLITE,
        "max_read_ahead_per_file_mb",
        number(0, 1 << 20),
        "64",
        "Bounds what a mount reads ahead in one file.",
    )
    .in_unit("MiB"),
    Declared::kept(
        LLITE,
        "max_read_ahead_whole_mb",
        number(0, 1 << 20),
        "2",
        "Files up to this size are read ahead as a whole.",
    )
    .in_unit("MiB"),
    Declared::kept(
        LLITE,
        "statahead_max",
        number(0, 8192),
        "128",
        "Bounds the attributes that are fetched before a program asks.",
    )
    .in_unit("files"),
    Declared::kept(LLITE, "statahead_agl", SWITCH, "1", "Turns on fetching file sizes ahead."),
    Declared::kept(
        LLITE,
        "lookup_ahead_kb",
        number(0, LOOKUP_AHEAD_KB_MAX as i64),
        "512",
        "Bounds the entries of directories that one lookup brings over a distance; 0 brings none.",
    )
    .in_unit("KiB"),
    Declared::kept(
        LLITE,
        "far_under_way_mb",
        number(0, FAR_UNDER_WAY_MB_MAX as i64),
        "0",
        "Bounds the data under way to OSTs far away, for reads and writes each; 0 is six times what the path holds.",
    )
    .in_unit("MiB"),
    Declared::text(&["mgc"], "ir_state", "Whether the mount hears of restarted targets from the MGS."),
    Declared::shown(LOV_AND_LMV, "numobd", Kind::Gauge, "Targets that the mount knows.").metric("targets"),
    Declared::shown(
        LOV_AND_LMV,
        "activeobd",
        Kind::Gauge,
        "Targets that are neither deactivated nor known not to answer.",
    )
    .metric("active_targets"),
    Declared::text(LOV_AND_LMV, "target_obd", "Their names, and whether they are active."),
    Declared::text(LOV_AND_LMV, "desc_uuid", "The name of the set of targets."),
    Declared::text(LOV, "stripecount", "Stripes of files whose directory does not say, as old clients had it."),
    Declared::text(LOV, "stripeoffset", "The first OST of files, as old clients had it."),
    Declared::text(LOV, "stripesize", "The stripe size, as old clients had it."),
    Declared::text(LOV, "stripetype", "The kind of striping, as old clients had it."),
    Declared::text(&["osc", "mdc"], "uuid", "The target's name, as Lustre shows it."),
    Declared::text(OSC, "ost_conn_uuid", "The NID that the OST is reached at."),
    Declared::text(MDC, "mds_conn_uuid", "The NID that the MDT is reached at."),
    Declared::kept(OSC, "active", SWITCH, "1", "0 makes every access to the OST fail at once."),
    Declared::kept(MDC, "active", SWITCH, "1", "0 makes every access to the MDT fail at once."),
    Declared::kept(
        OSC,
        "idle_timeout",
        number(0, 1 << 20),
        "20",
        "Time after which a mount leaves an OST on which it holds nothing; 0 for never.",
    )
    .in_unit("seconds"),
    Declared::kept(OSC, "checksums", SWITCH, "1", "Turns on checksums of data on the wire."),
    Declared::text(OSC, "checksum_type", "The checksum in use."),
    Declared::kept(OSC, "resend_count", number(0, 1000), "10", "How often damaged data is sent again.")
        .in_unit("times"),
    Declared::kept(
        OSC,
        "max_pages_per_rpc",
        number(16, 16384),
        "1024",
        "Bounds the data in one read or write request.",
    )
    .in_unit("pages"),
    Declared::shown(OSC, "short_io_bytes", Kind::Gauge, "Data up to this size travels inside of requests and replies.")
        .in_unit("bytes"),
    Declared::text(OSC, "unstable_stats", "Data that was answered and is not durable at the OST yet."),
    Declared::shown(OSC, "cur_dirty_bytes", Kind::Gauge, "Written data that the mount holds for the OST.")
        .in_unit("bytes"),
    Declared::shown(OSC, "cur_grant_bytes", Kind::Gauge, "Space that the OST has promised.").in_unit("bytes"),
    Declared::shown(
        OSC,
        "far_read_ahead_bytes",
        Kind::Gauge,
        "Bytes that a stream of reads asks for ahead at least, because the OST is far away: twice what the way there holds. 0 if it is near.",
    )
    .in_unit("bytes"),
    Declared::kept(
        OSC,
        "max_dirty_mb",
        number(1, 2047),
        "64",
        "Bounds the written data that a mount holds for an OST.",
    )
    .in_unit("MiB"),
    Declared::kept(
        OSC,
        "dirty_expire_ms",
        number(1, 3_600_000),
        "2000",
        "How long written data may wait before it is sent.",
    )
    .in_unit("ms"),
    Declared::kept(
        OSC,
        "shared_write_policy",
        Kind::Words(&["default", "grown"]),
        "default",
        "How writers of a shared file get their locks.",
    ),
    Declared::local(
        &["osc", "mdc"],
        "rpc_stats",
        Kind::Histograms,
        "",
        "Sizes of requests, and how many were under way.",
    ),
];
