//! The parameters that only MDTs have: of the service, of the choice of OSTs, of precreated objects, of checks.

use nacre_base::param::declared::{Declared, Kind, SWITCH, number};

const MDT: &[&str] = &["mdt"];
const CHECK: &[&str] = &["mdd"];
const LOD: &[&str] = &["lod"];
const OSP: &[&str] = &["osp"];

/// All declarations.
pub const PARAMS: &[Declared] = &[
    Declared::kept(
        MDT,
        "root_squash",
        Kind::Squash,
        "0:0",
        "The user and group that root of a client is to the MDT; 0:0 for root.",
    ),
    Declared::kept(MDT, "nosquash_nids", Kind::Nids, "NONE", "The clients whose root stays root."),
    Declared::text(MDT, "busy_directories", "The directories whose entries have changed most, by FID, and how often."),
    Declared::shown(&["mds"], "mdt.stats", Kind::Statistics, "How long requests took, by opcode."),
    Declared::shown(&["mds"], "mdt_readpage.stats", Kind::Statistics, "The same of reads of directories."),
    Declared::text(CHECK, "lfsck_namespace", "What the last check of names and inodes found."),
    Declared::text(CHECK, "lfsck_layout", "What the last check of layouts and objects found."),
    Declared::local(CHECK, "lfsck_control", Kind::Action, "", "Starts or stops a check; lctl lfsck_start sets it."),
    Declared::kept(
        CHECK,
        "lfsck_speed_limit",
        number(0, u32::MAX as i64),
        "0",
        "Bounds the speed of a check; 0 is without bound.",
    )
    .in_unit("objects/s"),
    Declared::shown(LOD, "numobd", Kind::Gauge, "OSTs of the file system.").metric("osts"),
    Declared::shown(LOD, "activeobd", Kind::Gauge, "OSTs that the MDT makes objects on.").metric("active_osts"),
    Declared::shown(LOD, "stripeoffset", Kind::Text, "The first OST of files whose directory does not say: -1, any."),
    Declared::kept(
        LOD,
        "stripecount",
        number(-1, 2000),
        "1",
        "Stripes of files whose directory does not say; -1 is all OSTs.",
    )
    .in_unit("stripes"),
    Declared::kept(
        LOD,
        "stripesize",
        Kind::Number { least: 65536, most: 0xffff_0000, step: 65536 },
        "4194304",
        "Stripe size of files whose directory does not say.",
    )
    .in_unit("bytes"),
    Declared::kept(LOD, "auto_stripe", SWITCH, "0", "Turns on stripe counts that follow the file's size."),
    Declared::kept(
        LOD,
        "qos_threshold_rr",
        Kind::Percent,
        "17%",
        "Below this difference in free space OSTs are used in turn.",
    )
    .in_unit("%"),
    Declared::kept(
        LOD,
        "qos_prio_free",
        Kind::Percent,
        "90%",
        "How much free space counts when OSTs are not used in turn.",
    )
    .in_unit("%"),
    Declared::kept(
        OSP,
        "active",
        SWITCH,
        "1",
        "0 makes the MDT ask nothing of the OST: no objects made, none destroyed.",
    ),
    Declared::kept(
        OSP,
        "max_create_count",
        number(0, 20_000),
        "4096",
        "Objects made ahead on an OST at most; 0 keeps new ones away.",
    )
    .in_unit("objects"),
    Declared::shown(OSP, "create_count", Kind::Gauge, "Objects that the next request to the OST will make.")
        .in_unit("objects")
        .metric("objects_in_next_create"),
    Declared::shown(OSP, "prealloc_next_id", Kind::Gauge, "The object that the next file gets."),
    Declared::shown(OSP, "prealloc_last_id", Kind::Gauge, "The last object that was made ahead."),
    Declared::text(OSP, "prealloc_next_seq", "The sequence of these objects."),
];
