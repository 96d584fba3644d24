//! The parameters that only the MGS has.

use nacre_base::param::declared::{Declared, Kind};
use nacre_base::param::series::Series;
use nacre_base::param::value::Value;

/// `silent_targets`: the number of targets, which the value names one a line.
fn silent_targets(names: &Value) -> Vec<Series> {
    let silent = names.text().map_or(0, |names| names.lines().count());
    vec![Series::gauge("silent_targets", silent as i128)]
}

/// All parameters of the MGS.
pub const PARAMS: &[Declared] = &[
    Declared::shown(&["mgs"], "mgs.stats", Kind::Statistics, "How long requests took, by opcode."),
    Declared::shown(&["mgs"], "leases_ended", Kind::Counter, "Leases that have ended since the start of the MGS.")
        .in_unit("leases"),
    Declared::text(&["mgs"], "silent_targets", "Targets whose nodes have fallen silent since the start of the MGS.")
        .series(silent_targets),
    Declared::text(&["mgs"], "live.*", "A file system: the version of its configuration, and its targets."),
];
