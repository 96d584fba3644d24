//! A network of a host: its interfaces, and the credits there.

use nacre_base::Network;
use nacre_base::nid::parse_address;
use nacre_lnet::{LnetOptions, PEER_CREDITS_MAX, TcpTunables};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// A network of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Net {
    /// The network.
    pub network: Network,
    /// Interfaces, or their addresses; without any, the host's first address that is not loopback.
    pub interfaces: Vec<Interface>,
    /// Credits and connections.
    pub tunables: Tunables,
}

impl Default for Net {
    fn default() -> Net {
        Net { network: Network::TCP, interfaces: Vec::new(), tunables: Tunables::default() }
    }
}

/// Credits and connections of a network; what is none stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Messages that the driver may have in hand.
    pub credits: Option<u32>,
    /// Messages that a peer may have been sent and not have taken; 0: as many as the peer and the path to it can take.
    pub peer_credits: Option<u32>,
    /// Messages of a peer that a router holds.
    pub peer_buffer_credits: Option<u32>,
    /// Bulk connections to a peer, in each direction; 0: as many as the path to it is worth.
    pub conns_per_peer: Option<u32>,
    /// Bytes of a connection's send buffer; 0: the kernel sizes it.
    pub tx_buffer_size: Option<u32>,
    /// Bytes of a connection's receive buffer; 0: the kernel sizes it.
    pub rx_buffer_size: Option<u32>,
    /// Seconds until unacknowledged data fails a connection; 0: the usual number, as for all that follow.
    pub sock_timeout: Option<u32>,
    /// Seconds of silence after which a connection is probed.
    pub keepalive_idle: Option<u32>,
    /// Seconds between two probes.
    pub keepalive_intvl: Option<u32>,
    /// Unanswered probes that fail a connection.
    pub keepalive_count: Option<u32>,
    /// Name of the congestion control, or [`HOST_DEFAULT`].
    pub congestion_control: Option<String>,
}

/// Most bulk connections to a peer in each direction: a node refuses a peer that has more than twice as many and a control connection.
const CONNS_PER_PEER_MAX: u32 = 64;

/// Smallest size of a buffer that makes sense: the kernel takes no less.
const BUFFER_MIN: u32 = 4096;
/// Largest size of a buffer, which the kernel doubles.
const BUFFER_MAX: u32 = (1 << 30) - 1;
/// Longest time of a keepalive, in seconds, and most probes: the kernel's bounds.
const KEEPALIVE_SECS_MAX: u32 = 32_767;
const KEEPALIVE_COUNT_MAX: u32 = 127;
/// Longest time for unacknowledged data, in seconds.
const SOCK_TIMEOUT_MAX: u32 = 3600;
/// Longest name of a congestion control, as the kernel keeps it.
const CONGESTION_CONTROL_LEN_MAX: usize = 15;
/// Name that stands for what connections have by themselves: the host's congestion control, but none that paces with near peers.
pub const HOST_DEFAULT: &str = "default";

impl Tunables {
    /// Names of the settings of connections that are numbers, as they are written in `lnd tunables`.
    pub const OF_CONNECTIONS: [&str; 7] = [
        "conns_per_peer",
        "tx_buffer_size",
        "rx_buffer_size",
        "sock_timeout",
        "keepalive_idle",
        "keepalive_intvl",
        "keepalive_count",
    ];

    /// The setting of connections with this name; none if there is none that is a number.
    pub fn of_connections(&mut self, name: &str) -> Option<&mut Option<u32>> {
        Some(match name {
            "conns_per_peer" => &mut self.conns_per_peer,
            "tx_buffer_size" => &mut self.tx_buffer_size,
            "rx_buffer_size" => &mut self.rx_buffer_size,
            "sock_timeout" => &mut self.sock_timeout,
            "keepalive_idle" => &mut self.keepalive_idle,
            "keepalive_intvl" => &mut self.keepalive_intvl,
            "keepalive_count" => &mut self.keepalive_count,
            _ => return None,
        })
    }

    /// What is said of connections alone.
    pub fn connections(&self) -> Tunables {
        Tunables { credits: None, peer_credits: None, peer_buffer_credits: None, ..self.clone() }
    }

    /// Changes what a network's connections have.
    pub(crate) fn apply(&self, to: &mut TcpTunables) {
        let set = |value: Option<u32>, to: &mut u32| *to = value.unwrap_or(*to);
        set(self.conns_per_peer, &mut to.conns_per_peer);
        set(self.tx_buffer_size, &mut to.tx_buffer_size);
        set(self.rx_buffer_size, &mut to.rx_buffer_size);
        set(self.sock_timeout, &mut to.sock_timeout);
        set(self.keepalive_idle, &mut to.keepalive_idle);
        set(self.keepalive_intvl, &mut to.keepalive_intvl);
        set(self.keepalive_count, &mut to.keepalive_count);
        if let Some(name) = &self.congestion_control {
            to.congestion_control = (name != HOST_DEFAULT).then(|| name.clone());
        }
    }

    /// The names of [`Tunables::preset`].
    pub const PRESETS: [&str; 2] = ["auto", "lustre"];

    /// Credits that go together: `auto` is what a process begins with, `lustre` has the numbers of Lustre's `socklnd`.
    pub fn preset(name: &str) -> Option<Tunables> {
        let credits = match name {
            "auto" => (LnetOptions::default().credits, 0),
            "lustre" => (256, 8),
            _ => return None,
        };
        Some(Tunables { credits: Some(credits.0), peer_credits: Some(credits.1), ..Tunables::default() })
    }

    /// These, and where they say nothing `others`.
    pub fn or(self, others: Tunables) -> Tunables {
        Tunables {
            credits: self.credits.or(others.credits),
            peer_credits: self.peer_credits.or(others.peer_credits),
            peer_buffer_credits: self.peer_buffer_credits.or(others.peer_buffer_credits),
            conns_per_peer: self.conns_per_peer.or(others.conns_per_peer),
            tx_buffer_size: self.tx_buffer_size.or(others.tx_buffer_size),
            rx_buffer_size: self.rx_buffer_size.or(others.rx_buffer_size),
            sock_timeout: self.sock_timeout.or(others.sock_timeout),
            keepalive_idle: self.keepalive_idle.or(others.keepalive_idle),
            keepalive_intvl: self.keepalive_intvl.or(others.keepalive_intvl),
            keepalive_count: self.keepalive_count.or(others.keepalive_count),
            congestion_control: self.congestion_control.or(others.congestion_control),
        }
    }

    /// Says what is wrong with the numbers and names.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, range) in [
            ("credits", self.credits, 1..=1 << 20),
            ("peer_credits", self.peer_credits, 0..=PEER_CREDITS_MAX),
            ("peer_buffer_credits", self.peer_buffer_credits, 1..=1 << 20),
            ("conns_per_peer", self.conns_per_peer, 0..=CONNS_PER_PEER_MAX),
            ("tx_buffer_size", self.tx_buffer_size.filter(|size| *size != 0), BUFFER_MIN..=BUFFER_MAX),
            ("rx_buffer_size", self.rx_buffer_size.filter(|size| *size != 0), BUFFER_MIN..=BUFFER_MAX),
            ("sock_timeout", self.sock_timeout, 0..=SOCK_TIMEOUT_MAX),
            ("keepalive_idle", self.keepalive_idle, 0..=KEEPALIVE_SECS_MAX),
            ("keepalive_intvl", self.keepalive_intvl, 0..=KEEPALIVE_SECS_MAX),
            ("keepalive_count", self.keepalive_count, 0..=KEEPALIVE_COUNT_MAX),
        ] {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let zero = if name.ends_with("buffer_size") { "0, nor " } else { "" };
                let (least, most) = (range.start(), range.end());
                return Err(format!("{name}: {value} is not {zero}a number from {least} to {most}"));
            }
        }
        let is_name = |name: &&String| {
            let is_fine = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            !name.is_empty() && name.len() <= CONGESTION_CONTROL_LEN_MAX && name.chars().all(is_fine)
        };
        match self.congestion_control.as_ref().filter(|name| !is_name(name)) {
            Some(name) => Err(format!("congestion_control: {name:?} is not the name of one, such as bbr or cubic")),
            None => Ok(()),
        }
    }
}

/// An interface of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interface {
    /// By its name: its first address is meant.
    Name(String),
    /// By its address, with a port where that is not the usual one.
    Address(IpAddr, Option<u16>),
}

impl std::str::FromStr for Interface {
    type Err = String;
    fn from_str(text: &str) -> Result<Interface, String> {
        if let Some((ip, port)) = parse_address(text) {
            return Ok(Interface::Address(ip, port));
        }
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        match text.is_empty() || text.len() > 15 || !text.chars().all(is_fine) {
            true => Err(format!("{text:?} is neither an interface, such as eth0, nor an address of one")),
            false => Ok(Interface::Name(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Interface::Name(name) => f.write_str(name),
            Interface::Address(ip, Some(port)) => SocketAddr::new(*ip, *port).fmt(f),
            Interface::Address(ip, None) => ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_allowed_and_give_way_to_what_is_said_beside_them() {
        for name in Tunables::PRESETS {
            Tunables::preset(name).unwrap().check().unwrap();
        }
        assert_eq!(Tunables::preset("zfs"), None);
        let given = Tunables { peer_credits: Some(16), ..Tunables::default() };
        let both = given.or(Tunables::preset("lustre").unwrap());
        assert_eq!(both, Tunables { credits: Some(256), peer_credits: Some(16), ..Tunables::default() });
    }

    #[test]
    fn settings_of_connections_have_bounds() {
        for name in Tunables::OF_CONNECTIONS {
            let with = |value: u32| {
                let mut tunables = Tunables::default();
                *tunables.of_connections(name).unwrap() = Some(value);
                tunables.check()
            };
            assert_eq!(with(0), Ok(()), "{name}: chosen automatically");
            let error = with(u32::MAX).unwrap_err();
            assert!(error.starts_with(&format!("{name}: 4294967295 is not ")), "{error}");
        }
        let small = Tunables { tx_buffer_size: Some(100), ..Tunables::default() };
        let why = "tx_buffer_size: 100 is not 0, nor a number from 4096 to 1073741823";
        assert_eq!(small.check().unwrap_err(), why);
        let named = |name: &str| Tunables { congestion_control: Some(name.to_owned()), ..Tunables::default() }.check();
        assert_eq!([named("bbr"), named("dctcp_x-1"), named(HOST_DEFAULT)], [Ok(()), Ok(()), Ok(())]);
        for name in ["", "a name", "much-too-long-a-name", "bbr\0"] {
            assert!(named(name).unwrap_err().contains("is not the name of one"), "{name:?}");
        }
    }

    #[test]
    fn what_is_not_said_stays_as_it_is() {
        let mut tcp = TcpTunables { tx_buffer_size: 8192, keepalive_idle: 9, ..TcpTunables::default() };
        let said = Tunables {
            rx_buffer_size: Some(4096),
            keepalive_idle: Some(0),
            congestion_control: Some("bbr".to_owned()),
            ..Tunables::default()
        };
        said.apply(&mut tcp);
        let name = tcp.congestion_control.as_deref();
        assert_eq!((tcp.tx_buffer_size, tcp.rx_buffer_size, tcp.keepalive_idle, name), (8192, 4096, 0, Some("bbr")));
        Tunables { congestion_control: Some(HOST_DEFAULT.to_owned()), ..Tunables::default() }.apply(&mut tcp);
        assert_eq!(tcp.congestion_control, None);
    }
}
