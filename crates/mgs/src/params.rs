//! The parameters that only the MGS has.

use nacre_base::param::declared::{Declared, Kind};

/// All parameters of the MGS.
pub const PARAMS: &[Declared] = &[
    Declared::shown(&["mgs"], "mgs.stats", Kind::Statistics, "How long requests took, by opcode."),
    Declared::shown(&["mgs"], "leases_ended", Kind::Counter, "Leases that have ended since the start of the MGS.")
        .in_unit("leases"),
    Declared::text(&["mgs"], "silent_targets", "Targets whose nodes have fallen silent since the start of the MGS."),
    Declared::text(&["mgs"], "live.*", "A file system: the version of its configuration, and its targets."),
];
