//! One thing changed at a time, to what Lustre has or had, beside what should come of it.
//!
//! # What should come of it
//!
//! With L the rate of the link, T its round trip, and m the largest message, 1 MiB:
//!
//! - A credit of a peer is out from the moment when its message goes until the peer says that it has taken it: m/L + T over the link. With c credits the link carries at
//!   most c m / (m/L + T).
//! - A router gives a peer's message its buffer back when the *next* peer has taken it, and holds no more messages of a peer than that has
//!   credits. So c credits on the network beside a router bound the link as much as c on the link itself.
//! - A request that brings no data is out for two round trips, in one of which it is on its way and answered, and in the other of
//!   which its data is asked for and comes. With r requests of 4 MiB the link carries at most 4 r m / (4 m/L + 2 T). A read is out
//!   for one round trip.
//! - One connection has no more under way than its sender buffers, 4 MiB where nobody has changed Linux's `tcp_wmem`: w / T. With a size of
//!   socket buffers that was set w is that size, as far as the kernel allows it (`wmem_max`, `rmem_max`). Only one connection is used then.
//! - A congestion control bounds nothing while no packet is lost.
//!
//! The least of these and L is what should come of it. Nothing here was measured: the rates follow from the numbers that are set.

use super::sites::Sites;
use super::tcp::{Direction, window_max};
use std::time::Duration;

/// The largest message.
const MESSAGE: f64 = (1 << 20) as f64;
/// Messages of a request for which no data travels along.
const MESSAGES_OF_REQUEST: f64 = 4.0;
/// Largest send buffer of a connection, where nobody has changed Linux's default.
const SEND_BUFFER: f64 = (4 << 20) as f64;

/// Something that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factor {
    /// Nothing.
    None,
    /// So many peer credits on the link between the routers.
    LinkCredits(u32),
    /// So many on the networks of the servers and of the client.
    LanCredits(u32),
    /// So many on all three.
    AllCredits(u32),
    /// Data is asked for, and does not travel with its request.
    Pulled,
    /// The same, with so many requests under way to each OST.
    Requests(u32),
    /// So many bulk connections between two nodes, in each direction.
    Connections(u32),
    /// One bulk connection in each direction between the routers, with socket buffers of this size.
    Buffers(Size),
    /// This congestion control between the routers.
    CongestionControl(&'static str),
}

/// A size of socket buffers that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(u32),
    /// The largest that the kernel allows.
    KernelMost,
}

/// Properties of the path and of the machine from which the rate follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    /// Bytes that the link carries in a second.
    pub(crate) rate: f64,
    pub(crate) round_trip: Duration,
    pub(crate) direction: Direction,
    /// OSTs in use at once.
    pub(crate) osts: usize,
    /// Largest size of socket buffers that the kernel lets programs set.
    pub(crate) window_max: u64,
}

/// The factors, in the order of the table, but for congestion controls.
const FACTORS: [Factor; 12] = [
    Factor::None,
    Factor::LinkCredits(8),
    Factor::LanCredits(8),
    Factor::AllCredits(8),
    Factor::AllCredits(256),
    Factor::Pulled,
    Factor::Requests(8),
    Factor::Connections(1),
    Factor::Buffers(Size::Bytes(64 << 10)),
    Factor::Buffers(Size::Bytes(4 << 20)),
    Factor::Buffers(Size::Bytes(100 << 20)),
    Factor::Buffers(Size::KernelMost),
];
/// Congestion controls to be compared, if the kernel offers them; the third only in place of the second.
const CONGESTION_CONTROLS: [&str; 3] = ["cubic", "bbr", "reno"];

/// All factors on this machine.
pub(crate) fn all() -> Result<Vec<Factor>, String> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let offered = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let is_offered = |name: &&str| offered.split_whitespace().any(|offered| offered == *name);
    let compared = CONGESTION_CONTROLS.into_iter().filter(is_offered).take(2);
    Ok(FACTORS.into_iter().chain(compared.map(Factor::CongestionControl)).collect())
}

impl Size {
    /// Bytes that a socket gets.
    pub(crate) fn allowed(self, window_max: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => window_max.min(bytes.into()),
            Size::KernelMost => window_max,
        }
    }
}

impl Factor {
    /// The factor, for people.
    pub(crate) fn name(self) -> String {
        match self {
            Factor::None => "nothing".to_owned(),
            Factor::LinkCredits(n) => format!("{n} peer credits on the link"),
            Factor::LanCredits(n) => format!("{n} peer credits on the LANs"),
            Factor::AllCredits(n) => format!("{n} peer credits everywhere"),
            Factor::Pulled => "no data with requests".to_owned(),
            Factor::Requests(n) => format!("no data with requests, {n} requests"),
            Factor::Connections(n) => format!("{n} bulk connection"),
            Factor::Buffers(Size::Bytes(n)) => format!("1 connection, buffers of {} KiB", n >> 10),
            Factor::Buffers(Size::KernelMost) => "1 connection, the kernel's largest buffers".to_owned(),
            Factor::CongestionControl(name) => name.to_owned(),
        }
    }

    /// Bytes a second that should come of it.
    pub(crate) fn model(self, conditions: &Conditions) -> f64 {
        let Conditions { rate, round_trip, direction, osts, window_max } = *conditions;
        let trip = round_trip.as_secs_f64();
        let with_credits = |credits: u32| f64::from(credits) * MESSAGE / (MESSAGE / rate + trip);
        let bound = match (self, direction) {
            (Factor::LinkCredits(n) | Factor::LanCredits(n) | Factor::AllCredits(n), _) => with_credits(n),
            (Factor::Requests(n), _) => {
                let bytes = MESSAGES_OF_REQUEST * MESSAGE;
                let trips = if direction == Direction::Write { 2.0 } else { 1.0 };
                osts as f64 * f64::from(n) * bytes / (bytes / rate + trips * trip)
            }
            (Factor::Connections(n), _) => f64::from(n) * SEND_BUFFER / trip,
            (Factor::Buffers(size), _) => size.allowed(window_max) as f64 / trip,
            (Factor::None | Factor::Pulled | Factor::CongestionControl(_), _) => rate,
        };
        bound.min(rate)
    }

    /// Changes it, at sites where nothing else was changed.
    pub(crate) fn set(self, sites: &Sites) -> Result<(), String> {
        let credits = |networks: &[&str], n: u32| {
            let n = n.to_string();
            networks.iter().try_for_each(|net| {
                sites.tool("lnetctl", &["net", "set", "--net", net, "--peer-credits", &n]).map(drop)
            })
        };
        let set = |setting: String| sites.tool("lctl", &["set_param", "-n", &setting]).map(drop);
        let pulled = || set("eager_memory_mb=0".to_owned());
        match self {
            Factor::None => Ok(()),
            Factor::LinkCredits(n) => credits(&["tcp2"], n),
            Factor::LanCredits(n) => credits(&["tcp1", "tcp3"], n),
            Factor::AllCredits(n) => credits(&["tcp1", "tcp2", "tcp3"], n),
            Factor::Pulled => pulled(),
            Factor::Requests(n) => {
                pulled()?;
                set(format!("osc.*.max_rpcs_in_flight={n}"))
            }
            Factor::Connections(n) => {
                let n = n.to_string();
                ["tcp1", "tcp2", "tcp3"].iter().try_for_each(|net| {
                    sites.tool("lnetctl", &["net", "set", "--net", net, "--conns-per-peer", &n]).map(drop)
                })
            }
            Factor::Buffers(size) => {
                let asked = match size {
                    Size::Bytes(bytes) => u64::from(bytes),
                    Size::KernelMost => window_max()?,
                };
                let (link, bytes) = (["net", "set", "--net", "tcp2", "--conns-per-peer", "1"], asked.to_string());
                let buffers = ["--tx-buffer-size", &bytes, "--rx-buffer-size", &bytes];
                sites.tool("lnetctl", &[link.as_slice(), &buffers].concat()).map(drop)
            }
            Factor::CongestionControl(name) => {
                sites.tool("lnetctl", &["net", "set", "--net", "tcp2", "--congestion-control", name]).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_bounds_what_is_under_way() {
        let rate = 50e6;
        let at = |factor: Factor, ms| {
            let round_trip = Duration::from_millis(ms);
            let conditions = Conditions { rate, round_trip, direction: Direction::Write, osts: 1, window_max: 4 << 20 };
            (factor.model(&conditions) / 1e5).round() / 10.0
        };
        assert_eq!([0, 92, 366].map(|ms| at(Factor::None, ms)), [50.0, 50.0, 50.0]);
        assert_eq!([0, 92, 366].map(|ms| at(Factor::LinkCredits(8), ms)), [50.0, 50.0, 21.7]);
        assert_eq!([92, 366].map(|ms| at(Factor::Requests(8), ms)), [50.0, 41.1]);
        assert_eq!([92, 366].map(|ms| at(Factor::Connections(1), ms)), [45.6, 11.5]);
        let buffers = |size| [92, 366].map(|ms| at(Factor::Buffers(size), ms));
        assert_eq!(buffers(Size::Bytes(64 << 10)), [0.7, 0.2]);
        assert_eq!(buffers(Size::Bytes(100 << 20)), [45.6, 11.5], "the kernel allows 4 MiB");
        assert_eq!(buffers(Size::KernelMost), [45.6, 11.5]);
        assert_eq!(at(Factor::CongestionControl("cubic"), 366), 50.0);
    }

    #[test]
    fn two_congestion_controls_are_compared_at_most_and_each_is_offered() {
        let names: Vec<_> =
            all().unwrap().into_iter().filter(|factor| matches!(factor, Factor::CongestionControl(_))).collect();
        assert!((1..=2).contains(&names.len()), "every kernel has reno: {names:?}");
    }
}
