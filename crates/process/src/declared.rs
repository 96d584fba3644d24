//! Declarations of the parameters of a process and of its targets' devices.

use nacre_base::param::declared::{Declared, Kind, number};

/// All of these parameters.
pub const PARAMS: &[Declared] = &[
    Declared::text(&[], "version", "The program's version."),
    Declared::shown(&[], "memused", Kind::Gauge, "Memory of the process.").in_unit("bytes"),
    Declared::shown(&[], "memused_max", Kind::Gauge, "The most memory that the process has had.").in_unit("bytes"),
    Declared::text(
        &[],
        "health_check",
        "Whether all targets of the process are well, or which are not; their health says why.",
    ),
    Declared::local(
        &[],
        "fail_loc",
        Kind::Text,
        "",
        "Arms a fault point, in processes that were started with --faults.",
    ),
    Declared::text(&["osd-disk"], "mmp", "Which node has the target's storage, where several may."),
    Declared::shown(
        &["osd-nacre"],
        "commit_interval_ms",
        number(10, 60_000),
        "The longest time between a change and its commit; the label sets it (tunefs.nacre --param).",
    )
    .in_unit("ms"),
];
