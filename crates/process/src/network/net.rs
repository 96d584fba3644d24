//! A network of a host: its interfaces, and the credits there.

use nacre_base::Network;
use nacre_base::nid::parse_address;
use nacre_lnet::LnetOptions;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// A network of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Net {
    /// The network.
    pub network: Network,
    /// Interfaces, or their addresses; without any, the host's first address that is not loopback.
    pub interfaces: Vec<Interface>,
    /// Credits.
    pub tunables: Tunables,
}

impl Default for Net {
    fn default() -> Net {
        Net { network: Network::TCP, interfaces: Vec::new(), tunables: Tunables::default() }
    }
}

/// Credits of a network; one that is none stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Messages that the driver may have in hand.
    pub credits: Option<u32>,
    /// Messages that a peer may have been sent and not have taken; 0: as many as the peer and the path to it can take.
    pub peer_credits: Option<u32>,
    /// Messages of a peer that a router holds.
    pub peer_buffer_credits: Option<u32>,
    /// Bulk connections to a peer, in each direction; 0: as many as the path to it is worth.
    pub conns_per_peer: Option<u32>,
}

/// Most bulk connections to a peer in each direction: a node refuses a peer that has more than twice as many and a control connection.
const CONNS_PER_PEER_MAX: u32 = 64;

impl Tunables {
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
        }
    }

    /// Says what is wrong with the numbers.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, range) in [
            ("credits", self.credits, 1..=1 << 20),
            ("peer_credits", self.peer_credits, 0..=256),
            ("peer_buffer_credits", self.peer_buffer_credits, 1..=1 << 20),
            ("conns_per_peer", self.conns_per_peer, 0..=CONNS_PER_PEER_MAX),
        ] {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                return Err(format!("{name}: {value} is not a number from {} to {}", range.start(), range.end()));
            }
        }
        Ok(())
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
}
