//! The declarations of the parameters of the order of requests, for each service that has them.

use nacre_base::param::declared::{Declared, Kind, Syntax, number};
use nacre_ptlrpc::{BUFFERS_MAX, Rules};

pub(super) const QUANTUM: Kind = number(1, 65_535);
const SECONDS: Kind = number(0, 65_535);
const PERCENT: Kind = number(0, 100);
pub(super) const RATIO: Kind = number(1, 1 << 20);
pub(super) const THREADS: Kind = number(1, 65_536);
pub(super) const BUFFERS: Kind = number(0, BUFFERS_MAX as i64);

/// A value for each priority.
const fn pair(field: &'static str, of: &'static Kind) -> Kind {
    Kind::ByPriority { field, of }
}

pub(super) const TURNS: Kind = pair("quantum_mb", &QUANTUM);
pub(super) const QUANTA: Kind = pair("quantum", &QUANTUM);
pub(super) const DELAY_MIN: Kind = pair("delay_min", &SECONDS);
pub(super) const DELAY_MAX: Kind = pair("delay_max", &SECONDS);
pub(super) const DELAY_PCT: Kind = pair("delay_pct", &PERCENT);
/// Which requests are ordered.
pub(super) const SUPPORTED: Kind = pair("supported", &Kind::Words(&["reads", "writes", "reads_and_writes"]));
/// By which offsets.
pub(super) const OFFSETS: Kind = pair("offset_type", &Kind::Words(&["logical"]));

/// Values of `nrs_policies` of reads and writes.
pub(super) const IO_POLICIES: Kind = Kind::Syntax(&Syntax {
    form: "fifo, crrn, orr, trr, turns, delay, or tbf, alone or with one of nid, jobid, uid, gid, projid and opcode; \
           with reg or hp before it, of one priority",
    good: &["tbf", "tbf jobid", "reg tbf nid", "hp tbf opcode", "delay", "hp fifo", "crrn", "orr", "reg trr", "turns"],
    bad: &["", "x", "reg", "tbf x", "fifo jobid", "lp fifo", "tbf jobid uid"],
    allows: |text| super::parse_policy(text, true).is_ok(),
});

/// Values of `nrs_policies` of other requests.
pub(super) const POLICIES: Kind = Kind::Syntax(&Syntax {
    form: "fifo, crrn, delay, or tbf, alone or with one of nid, jobid, uid, gid, projid and opcode; with reg or hp before it, of \
           one priority",
    good: &["tbf", "tbf uid", "reg tbf nid", "hp tbf opcode", "delay", "hp fifo", "crrn"],
    bad: &["", "x", "reg", "tbf x", "fifo jobid", "lp fifo", "orr", "trr", "turns"],
    allows: |text| super::parse_policy(text, false).is_ok(),
});

const GOOD_RULES: &[&str] = &[
    "start limited jobid={dd.*} rate=100",
    "start limited jobid={dd.*} rate=100; set other uid={500}&gid={500} rate=10MB realtime=1 rank=limited",
    "hp start first nid={10.0.0.[1-9]@tcp},opcode={ost_write} rate=5",
    "change default rate=10000",
];
const BAD_RULES: &[&str] =
    &["", "x", "start", "start a rate=1", "stop nothing", "start a uid={1}", "start a uid={1} rate=0"];

/// Values of `nrs_tbf_rule` of reads and writes.
pub(super) const IO_RULES: Kind = Kind::Syntax(&Syntax {
    form: "commands with ; between them, each start NAME CONDITIONS rate=RATE, set NAME CONDITIONS rate=RATE or change default \
           rate=RATE, where CONDITIONS are such as jobid={dd.* cp.*}&uid={500} and RATE is 100, 100MB or 25%",
    good: GOOD_RULES,
    bad: BAD_RULES,
    allows: |text| super::parse_rules(text).is_ok_and(|(_, commands)| Rules::of(commands).is_ok()),
});

/// The same of other requests, whose time at the device nobody measures.
pub(super) const RULES: Kind = Kind::Syntax(&Syntax {
    form: "commands with ; between them, each start NAME CONDITIONS rate=RATE, set NAME CONDITIONS rate=RATE or change default \
           rate=RATE, where CONDITIONS are such as jobid={dd.* cp.*}&uid={500} and RATE is 100 or 100MB",
    good: GOOD_RULES,
    bad: BAD_RULES,
    allows: |text| {
        super::parse_rules(text)
            .is_ok_and(|(_, commands)| Rules::of(commands).is_ok_and(|rules| !rules.measure_device()))
    },
});

const fn kept(layers: &'static [&'static str], name: &'static str, kind: Kind, about: &'static str) -> Declared {
    Declared::kept(layers, name, kind, "", about)
}

/// The parameters that every service has, for these services: layer, name, policies, rules, default of `threads_max`; and then others.
macro_rules! declare {
    ($(($layer:literal, $service:literal, $policies:expr, $rules:expr, $threads:literal);)* and $($other:expr,)*) => {
        &[
            $(
                kept(
                    &[$layer],
                    concat!($service, ".nrs_policies"),
                    $policies,
                    "The order in which requests run that wait, for both priorities or for reg or hp.",
                ),
                kept(
                    &[$layer],
                    concat!($service, ".nrs_tbf_rule"),
                    $rules,
                    "Limits of tbf, of regular requests or, after hp, of those that others wait for; kept, all rules together. \
                     On the host also change NAME and stop NAME.",
                ),
                kept(&[$layer], concat!($service, ".nrs_crrn_quantum"), QUANTA, "Requests of a client's turn under crrn."),
                kept(&[$layer], concat!($service, ".nrs_delay_min"), DELAY_MIN, "The shortest wait under delay, in seconds."),
                kept(&[$layer], concat!($service, ".nrs_delay_max"), DELAY_MAX, "The longest wait under delay, in seconds."),
                kept(
                    &[$layer],
                    concat!($service, ".nrs_delay_pct"),
                    DELAY_PCT,
                    "How many of a hundred requests wait under delay.",
                ),
                kept(&[$layer], concat!($service, ".threads_max"), THREADS, "Requests that run at once, for each target.")
                    .by_default($threads),
                kept(
                    &[$layer],
                    concat!($service, ".high_priority_ratio"),
                    RATIO,
                    "After so many in a row that others wait for, another one has its turn.",
                )
                .by_default("10"),
                kept(
                    &[$layer],
                    concat!($service, ".req_buffers_max"),
                    BUFFERS,
                    "Requests that the node has queued or runs, of all its services with requests of this kind. 0: as many as come.",
                )
                .by_default("65536"),
            )*
            $($other,)*
        ]
    };
}

const OST: &[&str] = &["ost"];

/// All declarations.
pub const SCHEDULER_PARAMS: &[Declared] = declare!(
    ("ost", "ost_io", IO_POLICIES, IO_RULES, "64");
    ("ost", "ost", POLICIES, RULES, "256");
    ("mds", "mdt", POLICIES, RULES, "256");
    and kept(OST, "ost_io.nrs_orr_quantum", QUANTA, "Requests of an object's turn under orr."),
    kept(OST, "ost_io.nrs_trr_quantum", QUANTA, "Requests of a round of an OST under trr."),
    kept(OST, "ost_io.nrs_turns_quantum", TURNS, "MiB of a client's turn under turns."),
    kept(OST, "ost_io.nrs_orr_supported", SUPPORTED, "What orr orders by offset: reads, writes or reads_and_writes."),
    kept(OST, "ost_io.nrs_trr_supported", SUPPORTED, "The same of trr."),
    kept(OST, "ost_io.nrs_orr_offset_type", OFFSETS, "Offsets that orr orders by: logical."),
    kept(OST, "ost_io.nrs_trr_offset_type", OFFSETS, "The same of trr."),
);
