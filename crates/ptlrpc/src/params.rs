//! The parameters of imports.

use nacre_base::param::declared::{Declared, Kind, number};

const IMPORTS: &[&str] = &["osc", "mdc", "mgc"];

/// All parameters of imports.
pub const PARAMS: &[Declared] = &[
    Declared::shown(&["ldlm"], "ldlm_canceld.stats", Kind::Statistics, "How long the targets took to cancel locks."),
    Declared::shown(
        &["ldlm"],
        "ldlm_cbd.stats",
        Kind::Statistics,
        "How long the mounts took to answer lock callbacks.",
    ),
    Declared::text(
        IMPORTS,
        "import",
        "The connection to a target: where it is, what was negotiated, what is under way.",
    ),
    Declared::text(IMPORTS, "state", "The state of the connection, and the states before."),
    Declared::text(IMPORTS, "timeouts", "What requests are expected to take, by service, from what they took."),
    Declared::shown(IMPORTS, "stats", Kind::Statistics, "How long requests took, by opcode, as the client saw it."),
    Declared::shown(
        IMPORTS,
        "max_mod_rpcs_in_flight",
        Kind::Gauge,
        "Changes that the server lets a client have under way.",
    ),
    Declared::kept(IMPORTS, "max_rpcs_in_flight", number(1, 512), "8", "Bounds the requests under way to a target.")
        .in_unit("requests"),
];
