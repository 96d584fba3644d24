//! The numbers of `nacre sim ping-storm`, each with its source. One was fitted, to the dead time of one row.

use nacre_experiment::{Constant, ConstantKind};
use nacre_osd::mem::DiskModel;
use std::time::Duration;

/// OSSs that share their routers where routing is fine-grained.
pub(super) const GROUP: u32 = 3;
/// Targets of an OSS.
pub(super) const TARGETS: u32 = 4;
/// Credits of a peer on the clients' fabric.
pub(super) const GNI_CREDITS: u32 = 16;
/// Interval of the pings.
pub(super) const INTERVAL: Duration = Duration::from_secs(75);
/// The shortest service estimate that counts: Lustre's timeouts on the paper's systems were so long that floods ended none.
pub(super) const AT_MIN_SECS: u64 = 300;
/// Time for which a server keeps the credit of a message that it was sent.
pub(super) const TAKING: Duration = Duration::from_micros(2400);
/// Clocks of clients are wrong by up to this. Were they all right, every client's ping of the first target would arrive before any
/// client's ping of the second, and routers that are first in first out would serve one OSS after the other.
pub(super) const CLOCK_ERROR: Duration = Duration::from_millis(5);
/// Latency of one way through either fabric.
pub(super) const LATENCY: Duration = Duration::from_micros(5);
/// Up to so much more, so that nothing is in step.
pub(super) const JITTER: Duration = Duration::from_micros(5);
/// Bytes a second of a target's disks.
pub(super) const DISK_BANDWIDTH: u64 = 10_000_000;
/// Requests that a target's disks work on at a time.
pub(super) const DISK_DEPTH: usize = 16;
/// Clients that write, for each target.
pub(super) const WRITERS: u32 = 1;
/// RPCs of 1 MiB that a writer has in flight.
pub(super) const IN_FLIGHT: u32 = 2;
/// Time between two barriers of a program on all clients.
pub(super) const ROUND: Duration = Duration::from_millis(10);
/// CPU that a client needs to send, or to receive, a message of a ping.
pub(super) const MESSAGE_CPU: Duration = Duration::from_nanos(1225);
/// How often the bytes written are looked at.
pub(super) const SAMPLE: Duration = Duration::from_millis(250);

/// Disks of a target.
pub(super) const DISKS: DiskModel = DiskModel { bandwidth: DISK_BANDWIDTH, queue_depth: DISK_DEPTH, ..DiskModel::FREE };

/// All constants that do not depend on the command's arguments.
pub(super) fn fixed() -> Vec<Constant> {
    use ConstantKind::{Fitted, Paper, Physical};
    let millis = |d: Duration| d.as_secs_f64() * 1e3;
    let all = [
        ("interval of pings", INTERVAL.as_secs_f64(), "s", Paper, "section III: PING_INTERVAL is 75 s on all systems"),
        ("credits of a peer on gni", f64::from(GNI_CREDITS), "", Paper, "section VI.B, footnote 3"),
        (
            "targets of an OSS",
            f64::from(TARGETS),
            "",
            Paper,
            "section II: 100,000 pings an OSS in an interval, of 25,000 clients",
        ),
        ("OSSs that share routers", f64::from(GROUP), "", Paper, "figure 7"),
        (
            "an o2ib credit at a server",
            millis(TAKING),
            "ms",
            Fitted,
            "fine-grained, 8 credits: 7.5 s of 75 stand still. Nothing else is slow: messages are handled at once",
        ),
        ("error of a client's clock", millis(CLOCK_ERROR), "ms", Physical, "assumed: NTP in one site; fast or slow"),
        ("latency of a fabric", millis(LATENCY), "ms", Physical, "assumed; up to twice as long"),
        (
            "a target's disks",
            DISK_BANDWIDTH as f64 / 1e6,
            "MB/s",
            Physical,
            "assumed, and slow: it bounds what writes cost the simulation. Dead time is a share, which it cancels from",
        ),
        (
            "RPCs of 1 MiB in flight at each target",
            f64::from(WRITERS * IN_FLIGHT),
            "",
            Physical,
            "as many as keep the disks busy between floods",
        ),
        ("time between two barriers", millis(ROUND), "ms", Physical, "assumed"),
        (
            "CPU of a client for a message of a ping",
            MESSAGE_CPU.as_secs_f64() * 1e6,
            "us",
            Physical,
            "a quarter of a small RPC over TCP, both sides together, as nacre bench rpc measures it: 4.9 us",
        ),
        (
            "at_min",
            AT_MIN_SECS as f64,
            "s",
            Physical,
            "the paper's obd_timeout; with less, floods would end connections",
        ),
    ];
    all.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)).to_vec()
}
