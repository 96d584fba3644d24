//! The parameters that only OSTs have.

use nacre_base::param::declared::{Declared, Kind, SWITCH, number};

const OST: &[&str] = &["obdfilter"];

const fn gauge(name: &'static str, unit: &'static str, about: &'static str) -> Declared {
    Declared::shown(OST, name, Kind::Gauge, about).in_unit(unit)
}

/// All declarations.
pub const PARAMS: &[Declared] = &[
    Declared::kept(OST, "brw_size", number(1, 64), "4", "Bounds the data in one read or write request.").in_unit("MiB"),
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
