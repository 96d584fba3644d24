//! The parameters that only OSTs have.

use nacre_base::param::declared::{Declared, Kind, SWITCH, number};
use nacre_base::param::series::{Series, fields, number as number_in};
use nacre_base::param::value::Value;
use nacre_ptlrpc::Controller;

const OST: &[&str] = &["obdfilter"];

const fn gauge(name: &'static str, unit: &'static str, about: &'static str) -> Declared {
    Declared::shown(OST, name, Kind::Gauge, about).in_unit(unit)
}

/// The longest time that an administrator may set, in seconds.
const SECONDS_MAX: i64 = 3600;

const fn of_rcc(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    unit: &'static str,
    about: &'static str,
) -> Declared {
    Declared::kept(OST, name, kind, default, about).in_unit(unit)
}

/// `congestion`: the requests under way, and the windows and wishes of all clients together.
fn congestion(congestion: &Value) -> Vec<Series> {
    let windows = congestion.field("windows").map_or(&[][..], fields);
    let sum = |field: &str| windows.iter().map(|window| number_in(&window.value, field)).sum::<i128>();
    vec![
        Series::gauge("requests_under_way", number_in(congestion, "under_way")),
        Series::gauge("windows_granted", sum("granted")),
        Series::gauge("windows_wanted", sum("wanted")),
    ]
}

/// All declarations.
pub const PARAMS: &[Declared] = &[
    Declared::kept(OST, "brw_size", number(1, 64), "4", "Bounds the data in one read or write request.").in_unit("MiB"),
    Declared::kept(
        OST,
        "congestion_control",
        Kind::Counted { words: &["nacre", "rcc"], counted: "fix", most: Controller::RPCS_MAX },
        "nacre",
        "Who decides how many requests each client has under way: fix:N gives each N (0 leaves it to the clients), rcc and nacre divide \
         what the OST can do within latency_bound; without a bound, nacre gives each as much as the device needs in sequence.",
    ),
    of_rcc(
        "rcc_min",
        number(1, Controller::RPCS_MAX as i64),
        "1",
        "requests",
        "The least that rcc grants, and what a client begins with.",
    ),
    of_rcc("rcc_max", number(1, Controller::RPCS_MAX as i64), "32", "requests", "The most that rcc grants."),
    of_rcc("dlow", number(0, 1 << 20), "128", "requests", "While fewer are under way, rcc grants what clients want."),
    of_rcc(
        "latency_bound",
        number(0, SECONDS_MAX),
        "0",
        "s",
        "How long requests may take. 0 is none for nacre, and 60 s for rcc.",
    ),
    of_rcc("stl", number(0, SECONDS_MAX), "60", "s", "A client that was idle for longer has no share of rcc."),
    of_rcc("lambda", number(100, 1000), "150", "%", "How long clients of rcc wait for replies, of latency_bound."),
    of_rcc("lnet_latency", number(0, SECONDS_MAX), "5", "s", "Added to that for the network."),
    Declared::text(OST, "congestion", "Requests under way, and each client's window, wish and use.").series(congestion),
    Declared::kept(OST, "degraded", SWITCH, "0", "1 keeps new objects away from the OST while others have space."),
    Declared::kept(OST, "no_create", SWITCH, "0", "1 keeps new objects away from the OST."),
    Declared::kept(OST, "readonly", SWITCH, "0", "1 refuses every change of the OST."),
    Declared::kept(
        OST,
        "reply_from_memory_mb",
        number(0, 64 << 10),
        "0",
        "Answers writes from memory up to this much; 0 turns that off.",
    )
    .in_unit("MiB"),
    Declared::kept(OST, "sync_journal", SWITCH, "0", "1 commits before a write is answered."),
    Declared::kept(
        OST,
        "sync_on_lock_cancel",
        Kind::Words(&["never", "blocking", "always"]),
        "blocking",
        "When giving a lock back waits for a commit.",
    ),
    gauge("kbytestotal", "KiB", "The size of the OST.").metric("capacity"),
    gauge("kbytesfree", "KiB", "Space that nobody uses.").metric("free"),
    gauge("kbytesavail", "KiB", "Space that users may still take.").metric("available"),
    gauge("filestotal", "objects", "Objects that fit onto the OST.").metric("objects_max"),
    gauge("filesfree", "objects", "Objects that may still be made.").metric("objects_free"),
    gauge("tot_granted", "bytes", "Space that clients were promised for what they have not sent yet.")
        .metric("granted"),
    gauge("tot_pending", "bytes", "Space that writes take which are under way.").metric("pending"),
    gauge("tot_dirty", "bytes", "Data that clients hold and have not sent, as they reported with their last writes.")
        .metric("dirty"),
    Declared::local(OST, "brw_stats", Kind::Histograms, "", "Sizes and times of reads and writes, by request."),
    Declared::text(OST, "lfsck_layout", "What the last check of layouts found here."),
    Declared::shown(
        &["ost"],
        "ost.stats",
        Kind::Statistics,
        "How long requests took, by opcode, for all OSTs of the process.",
    ),
    Declared::shown(&["ost"], "ost_create.stats", Kind::Statistics, "The same of requests that make objects."),
    Declared::shown(&["ost"], "ost_io.stats", Kind::Statistics, "The same of reads and writes alone."),
];

/// Refuses what the declaration of a parameter does not allow, with the sentence that an administrator reads.
pub(crate) fn check(name: &str, text: &str) -> Result<(), String> {
    let declared = PARAMS.iter().find(|declared| declared.name == name).expect("each parameter is declared");
    declared.kind.allows(text.trim()).then_some(()).ok_or_else(|| format!("{text:?} is not {}", declared.kind))
}

/// The value of a parameter that is declared as a number.
pub(crate) fn number_of(name: &str, text: &str) -> Result<u32, String> {
    check(name, text)?;
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}
