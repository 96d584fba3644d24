//! The parameters of imports, and of a node's pings and timeouts.

use crate::adaptive_timeout::AT_MAX;
use crate::eager::EAGER_MEMORY_MB_MAX;
use crate::liveness::{HEARTBEAT_MAX, PING_INTERVAL_MAX};
use crate::request_buffers::BUFFERS_MAX;
use crate::series;
use nacre_base::param::declared::{Declared, Kind, SWITCH, number};

const IMPORTS: &[&str] = &["osc", "mdc", "mgc"];

/// All parameters of imports and pings.
pub const PARAMS: &[Declared] = &[
    Declared::kept(
        &[],
        "at_min",
        number(0, AT_MAX.as_secs() as i64),
        "5",
        "The least that requests are expected to take, however quick they have been: they are sent again, over a new \
         connection, after a quarter more, 5 s, and the latency of the network.",
    )
    .in_unit("seconds"),
    Declared::kept(
        &[],
        "suppress_pings",
        SWITCH,
        "0",
        "1 if idle imports never ping and servers look for no silent clients: what is dead must then be evicted by hand.",
    ),
    Declared::kept(
        &[],
        "liveness",
        Kind::Words(&["lease", "ping-holding", "ping", "ping-per-server"]),
        "lease",
        "Which idle imports ping their targets: none while the client renews its lease at the MGS; those under which locks \
         or open files are held; all, as Lustre's; or all, with one message for each server.",
    ),
    Declared::kept(
        &[],
        "heartbeat",
        number(0, HEARTBEAT_MAX.as_secs() as i64),
        "1",
        "Time after which a node with targets says to the MGS again that it lives, so that others hear when it does not; \
         0: only with its question for news, every 60 seconds.",
    )
    .in_unit("seconds"),
    Declared::kept(
        &[],
        "ping_interval",
        number(1, PING_INTERVAL_MAX.as_secs() as i64),
        "25",
        "Time after which an idle import pings its target.",
    )
    .in_unit("seconds"),
    Declared::kept(
        &[],
        "ping_timing",
        Kind::Words(&["idle", "aligned", "spread"]),
        "idle",
        "When an import pings: once it was idle for the interval, at multiples of the interval on all nodes at once, or \
         once in each interval at a moment of its own.",
    ),
    Declared::kept(
        &[],
        "req_buffers_max",
        number(0, BUFFERS_MAX as i64),
        "65536",
        "Requests of each lane that a node has queued or runs; more wait in the network, with the credits of their senders. \
         0: as many as come.",
    )
    .in_unit("requests"),
    Declared::kept(
        &[],
        "eager_memory_mb",
        number(0, EAGER_MEMORY_MB_MAX as i64),
        "512",
        "Memory of a node for data that clients far away send along with their requests. A client may have half of what the others leave. \
         0: all data is asked for when its request runs.",
    )
    .in_unit("MiB"),
    Declared::text(
        &[],
        "eager_memory",
        "Memory in use for data that came with its requests and the most that was, and the bytes that were kept and thrown away.",
    )
    .series(series::eager_memory),
    Declared::text(
        &[],
        "req_buffers",
        "For each lane of a node, the request buffers that are in use and the most that were, and the requests that wait \
         for one, those that waited, and for how long.",
    )
    .series(series::req_buffers),
    Declared::shown(
        &[],
        "lease_renewals",
        Kind::Counter,
        "Renewals of leases that a router has brought to the MGS for the clients behind it.",
    ),
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
    )
    .series(series::import),
    Declared::text(IMPORTS, "state", "The state of the connection, and the states before.").series(series::state),
    Declared::shown(&["osc", "mdc"], "time_parts", Kind::Statistics, "Where the time of requests went, in microseconds.")
        .series(series::time_parts),
    Declared::text(IMPORTS, "timeouts", "What requests are expected to take, by service, from what they took."),
    Declared::shown(IMPORTS, "stats", Kind::Statistics, "How long requests took, by opcode, as the client saw it."),
    Declared::shown(
        IMPORTS,
        "max_mod_rpcs_in_flight",
        Kind::Gauge,
        "Changes that the server lets a client have under way.",
    ),
    Declared::kept(
        IMPORTS,
        "max_rpcs_in_flight",
        number(0, 512),
        "8",
        "Bounds the requests under way to a target. 0 takes away a limit that was set: then the server's window counts, or 8 if it \
         grants none.",
    )
    .in_unit("requests"),
];
