//! The numbers of `nacre sim wan`, each with its source. Two were fitted: what each host moves where there is no distance.

use super::Host;
use nacre_experiment::{Constant, ConstantKind};
use std::time::Duration;

/// Bits a second of the link, headers included.
pub(super) const LINK_BITS: u64 = 10_000_000_000;
/// Bytes that wait before the link; more are dropped.
pub(super) const QUEUE_BYTES: u64 = 16 << 20;
/// A message: the most that LNet moves at once.
pub(super) const MESSAGE: u64 = 1 << 20;
/// Messages that Lustre has under way to a peer by default.
pub(super) const PEER_CREDITS: u32 = 8;
/// RPCs that a client of the slides has under way.
pub(super) const RPC_CREDITS: u32 = 256;
/// Objects of the file.
pub(super) const STRIPES: u32 = 8;
/// Writers of Nacre's rows, each with a file of its own.
pub(super) const WRITERS: u32 = 8;
/// Latency of one way on the servers' network.
pub(super) const NEAR_LATENCY: Duration = Duration::from_micros(5);
/// Buffers for 200 ms at the link's rate.
const TUNED_BUFFER: u64 = LINK_BITS / 8 / 5;
/// Linux's default for the largest send buffer.
const DEFAULT_BUFFER: u64 = 4 << 20;
/// Numbers of connections with which plain TCP is tried.
pub(super) const STREAMS: [u32; 3] = [1, 8, 16];
/// Bits a second that Lustre gets out of each host, with headers.
const BOHR_BITS: u64 = 6_220_000_000;
const TAIT_BITS: u64 = 5_180_000_000;

/// Time of a run before it is measured, besides twenty round trips, and the time measured, besides as many.
pub(super) const WARM_UP: Duration = Duration::from_secs(5);
pub(super) const MEASURED: Duration = Duration::from_secs(10);
pub(super) const ROUND_TRIPS: u32 = 20;

/// Virtual time after which a run counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(10_000);

impl Host {
    /// Bits a second that Lustre gets out of the host.
    pub(super) const fn bits(self) -> u64 {
        match self {
            Host::Bohr => BOHR_BITS,
            Host::Tait => TAIT_BITS,
        }
    }

    /// The largest send buffer of a connection.
    pub(super) const fn send_buffer(self) -> u64 {
        match self {
            Host::Bohr => TUNED_BUFFER,
            Host::Tait => DEFAULT_BUFFER,
        }
    }
}

/// Most bytes that a connection may have under way for the router's sake.
pub(super) const RECEIVE_BUFFER: u64 = TUNED_BUFFER;

/// All constants that do not depend on the command's arguments.
pub(super) fn fixed() -> Vec<Constant> {
    use ConstantKind::{Fitted, Paper, Physical};
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let all = [
        (
            "bohr: Lustre at most",
            BOHR_BITS as f64 / 1e9,
            "Gb/s",
            Fitted,
            "bohr at 0.1 ms: 6 Gb/s of data; with headers",
        ),
        (
            "tait: Lustre at most",
            TAIT_BITS as f64 / 1e9,
            "Gb/s",
            Fitted,
            "tait at 0.1 ms: 5 Gb/s of data; with headers",
        ),
        ("link", LINK_BITS as f64 / 1e9, "Gb/s", Paper, "10GigE hardware emulator"),
        ("link: queue", mib(QUEUE_BYTES), "MiB", Physical, "assumed; the slides do not tell the emulator's"),
        ("link: losses", 0.0, "", Physical, "assumed: an emulator alone loses nothing but what does not fit"),
        ("bohr: send buffer", mib(TUNED_BUFFER), "MiB", Paper, "TCP buffers for 200 ms"),
        ("tait: send buffer", mib(DEFAULT_BUFFER), "MiB", Physical, "not tuned: the end of Linux's tcp_wmem"),
        ("receive buffer", mib(RECEIVE_BUFFER), "MiB", Paper, "the router's; TCP buffers for 200 ms"),
        ("Lustre: peer credits", f64::from(PEER_CREDITS), "", Physical, "Lustre's default; the slides name none"),
        ("Lustre: RPC credits", f64::from(RPC_CREDITS), "", Paper, "number of credits: default 8, current 256"),
        ("Lustre: bulk connections", 1.0, "", Physical, "socklnd of that time: one in each direction"),
        ("message", mib(MESSAGE), "MiB", Physical, "LNet's largest"),
        ("stripes", f64::from(STRIPES), "", Paper, "number of stripes: 2, 8"),
        ("Nacre: writers", f64::from(WRITERS), "", Physical, "assumed; as many OSTs"),
        ("servers' network, one way", NEAR_LATENCY.as_secs_f64() * 1e6, "us", Physical, "assumed for InfiniBand"),
        ("before each measurement", WARM_UP.as_secs_f64(), "s", Physical, "and twenty round trips"),
        ("each measurement", MEASURED.as_secs_f64(), "s", Physical, "and twenty round trips"),
    ];
    all.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)).to_vec()
}
