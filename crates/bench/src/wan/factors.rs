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
//! - One connection has no more under way than its sender buffers, 4 MiB where nobody has changed Linux's `tcp_wmem`: w / T.
//!
//! The least of these and L is what should come of it. Nothing here was measured: the rates follow from the numbers that are set.

use super::sites::Sites;
use super::tcp::Direction;
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
}

/// The factors, in the order of the table.
pub(crate) const FACTORS: [Factor; 8] = [
    Factor::None,
    Factor::LinkCredits(8),
    Factor::LanCredits(8),
    Factor::AllCredits(8),
    Factor::AllCredits(256),
    Factor::Pulled,
    Factor::Requests(8),
    Factor::Connections(1),
];

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
        }
    }

    /// Bytes a second that should come of it over a link of so many bytes a second, with so many OSTs in use at once.
    pub(crate) fn model(self, rate: f64, round_trip: Duration, direction: Direction, osts: usize) -> f64 {
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
            (Factor::None | Factor::Pulled, _) => rate,
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
            (factor.model(rate, Duration::from_millis(ms), Direction::Write, 1) / 1e5).round() / 10.0
        };
        assert_eq!([0, 92, 366].map(|ms| at(Factor::None, ms)), [50.0, 50.0, 50.0]);
        assert_eq!([0, 92, 366].map(|ms| at(Factor::LinkCredits(8), ms)), [50.0, 50.0, 21.7]);
        assert_eq!([92, 366].map(|ms| at(Factor::Requests(8), ms)), [50.0, 41.1]);
        assert_eq!([92, 366].map(|ms| at(Factor::Connections(1), ms)), [45.6, 11.5]);
    }
}
