//! Network identifiers: `10.0.0.1@tcp`, `0@lo`. A NID is an address on a network; a network is a type and a number.

use crate::id::ParseIdError;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Kind of network, as Lustre numbers them where it knows them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum NetworkKind {
    /// TCP sockets.
    Tcp = 2,
    /// Loopback within a process.
    Lo = 9,
    /// InfiniBand; only a name, which routes may refer to.
    O2ib = 5,
    /// The simulated network.
    Sim = 0x5e,
}

/// A network: `tcp`, `tcp1`, `lo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    /// Kind of network.
    pub kind: NetworkKind,
    /// Number of the network among those of its kind; 0 is not printed.
    pub number: u16,
}

/// The address of a node on a network.
///
/// The address is an IPv4 address for `tcp` and a plain number for `lo` and `sim`. A `tcp` NID may also carry a port
/// (`127.0.0.1:7001@tcp`) so that several servers can live on one host; 0 means the network's default port, 988.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid {
    /// The network.
    pub network: Network,
    /// Address on the network.
    pub address: u32,
    /// TCP port, 0 for the default.
    pub port: u16,
}

impl Network {
    /// `lo`.
    pub const LO: Network = Network { kind: NetworkKind::Lo, number: 0 };
    /// `tcp`.
    pub const TCP: Network = Network { kind: NetworkKind::Tcp, number: 0 };
    /// `sim`.
    pub const SIM: Network = Network { kind: NetworkKind::Sim, number: 0 };

    /// Encodes the network as one number, for the wire.
    pub fn to_u32(self) -> u32 {
        u32::from(self.kind as u16) << 16 | u32::from(self.number)
    }

    /// Decodes a network from the wire; `None` if the kind is unknown.
    pub fn from_u32(v: u32) -> Option<Network> {
        let kind = match v >> 16 {
            2 => NetworkKind::Tcp,
            5 => NetworkKind::O2ib,
            9 => NetworkKind::Lo,
            0x5e => NetworkKind::Sim,
            _ => return None,
        };
        Some(Network { kind, number: (v & 0xffff) as u16 })
    }
}

impl Nid {
    /// `0@lo`: this process.
    pub const LO: Nid = Nid { network: Network::LO, address: 0, port: 0 };
    /// The port a `tcp` NID without one means.
    pub const TCP_PORT: u16 = 988;

    /// A TCP NID on network `tcp`.
    pub fn tcp(addr: Ipv4Addr, port: u16) -> Nid {
        Nid { network: Network::TCP, address: addr.into(), port }
    }

    /// A node of the simulated network.
    pub fn sim(node: u32) -> Nid {
        Nid { network: Network::SIM, address: node, port: 0 }
    }

    /// The IPv4 address of a TCP NID.
    pub fn ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.address)
    }

    /// The TCP port to connect to.
    pub fn tcp_port(&self) -> u16 {
        if self.port == 0 { Nid::TCP_PORT } else { self.port }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            NetworkKind::Tcp => "tcp",
            NetworkKind::Lo => "lo",
            NetworkKind::O2ib => "o2ib",
            NetworkKind::Sim => "sim",
        };
        f.write_str(name)?;
        if self.number != 0 { write!(f, "{}", self.number) } else { Ok(()) }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Network {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<Network, ParseIdError> {
        let err = || ParseIdError::new("network such as tcp, tcp1 or lo", s);
        let kinds = [
            ("tcp", NetworkKind::Tcp),
            ("lo", NetworkKind::Lo),
            ("o2ib", NetworkKind::O2ib),
            ("sim", NetworkKind::Sim),
        ];
        for (name, kind) in kinds {
            if let Some(rest) = s.strip_prefix(name) {
                let number = if rest.is_empty() { 0 } else { rest.parse().map_err(|_| err())? };
                return Ok(Network { kind, number });
            }
        }
        Err(err())
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network.kind {
            NetworkKind::Tcp | NetworkKind::O2ib => {
                write!(f, "{}", self.ip())?;
                if self.port != 0 {
                    write!(f, ":{}", self.port)?;
                }
            }
            NetworkKind::Lo | NetworkKind::Sim => write!(f, "{}", self.address)?,
        }
        write!(f, "@{}", self.network)
    }
}

impl fmt::Debug for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Nid {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<Nid, ParseIdError> {
        let err = || ParseIdError::new("NID such as 10.0.0.1@tcp", s);
        let (addr, net) = s.split_once('@').unwrap_or((s, "tcp"));
        let network: Network = net.parse().map_err(|_| err())?;
        let (host, port) = match addr.split_once(':') {
            Some((h, p)) => (h, p.parse::<u16>().map_err(|_| err())?),
            None => (addr, 0),
        };
        let address = match network.kind {
            NetworkKind::Tcp | NetworkKind::O2ib => host.parse::<Ipv4Addr>().map_err(|_| err())?.into(),
            NetworkKind::Lo | NetworkKind::Sim => host.parse().map_err(|_| err())?,
        };
        Ok(Nid { network, address, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_round_trip() {
        for s in ["10.0.0.1@tcp", "127.0.0.1:7001@tcp1", "0@lo", "17@sim", "10.0.0.1@o2ib"] {
            assert_eq!(s.parse::<Nid>().unwrap().to_string(), s);
        }
        assert_eq!("10.0.0.1".parse::<Nid>().unwrap().to_string(), "10.0.0.1@tcp");
        for bad in ["", "@tcp", "10.0.0@tcp", "1.2.3.4@xyz", "1.2.3.4:99999@tcp", "x@lo"] {
            assert!(bad.parse::<Nid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_round_trip_as_numbers() {
        for n in [Network::LO, Network::TCP, Network { kind: NetworkKind::Tcp, number: 7 }] {
            assert_eq!(Network::from_u32(n.to_u32()), Some(n));
        }
        assert_eq!(Network::from_u32(0xffff_0000), None);
    }
}
