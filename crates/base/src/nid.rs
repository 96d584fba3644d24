//! Network identifiers: `10.0.0.1@tcp`, `2001:db8::1@tcp`, `0@lo`. A NID is an address on a network; a network is a type and
//! a number.

use crate::id::ParseIdError;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Kind of network, as Lustre numbers them where it knows them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum NetworkKind {
    /// TCP sockets.
    Tcp = 2,
    /// Loopback within a process.
    Lo = 9,
    /// InfiniBand; only a name, which routes may refer to, and a kind of simulated network.
    O2ib = 5,
    /// Cray's Gemini and Aries; only a name, and a kind of simulated network.
    Gni = 13,
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
/// The address is an IPv4 or IPv6 address for `tcp` and `o2ib`, and a plain number for `lo`, `gni` and `sim`. A NID with an
/// IP address may also carry a port (`127.0.0.1:7001@tcp`, `[::1]:7001@tcp`) so that several servers can live on one host;
/// 0 means the network's default port, 988.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nid {
    /// The network.
    pub network: Network,
    /// Big endian, so that the order of the bytes is the order of addresses. An IPv4 address is stored as the IPv6 address
    /// that it is mapped to, `::ffff:10.0.0.1`, so that one address has one form. A number is in the last four bytes.
    address: [u8; 16],
    /// TCP port, 0 for the default.
    pub port: u16,
}

impl Hash for Nid {
    /// Every message looks up its peer. Three whole words cost a hasher much less than the fields one by one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let address = u128::from_be_bytes(self.address);
        state.write_u64((address >> 64) as u64);
        state.write_u64(address as u64);
        state.write_u64(u64::from(self.network.to_u32()) << 16 | u64::from(self.port));
    }
}

/// The bits of an IPv4 address, and of a number.
const FOUR_BYTES: u128 = u32::MAX as u128;
/// The bits above an IPv4 address that is mapped to an IPv6 address.
const MAPPED: u128 = 0xffff << 32;

// Maps of large simulations hold a NID for every pair of nodes. A `u128` would be aligned to 16, and make it 32 bytes.
const _: () = assert!(size_of::<Nid>() == 22 && align_of::<Nid>() == 2);

/// A NID as numbers, for encodings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawNid {
    /// [`Network::to_u32`], with [`RawNid::IPV6`] if the address has 16 bytes. Without it the address has four bytes.
    pub network: u32,
    /// The address: an IPv6 address, an IPv4 address or a plain number.
    pub address: u128,
    /// The port.
    pub port: u16,
}

impl RawNid {
    /// Flag in `network`. Decoders from before IPv6 know no such network, and refuse the NID.
    pub const IPV6: u32 = 1 << 31;

    /// Returns whether the address has 16 bytes.
    pub fn is_ipv6(&self) -> bool {
        self.network & RawNid::IPV6 != 0
    }
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
            13 => NetworkKind::Gni,
            0x5e => NetworkKind::Sim,
            _ => return None,
        };
        Some(Network { kind, number: (v & 0xffff) as u16 })
    }

    /// The network itself if addresses on it are IP addresses, else `tcp`.
    pub fn with_ip(self) -> Network {
        if self.has_ip() { self } else { Network::TCP }
    }

    /// Returns whether addresses on the network are IP addresses; elsewhere they are plain numbers.
    pub const fn has_ip(self) -> bool {
        match self.kind {
            NetworkKind::Tcp | NetworkKind::O2ib => true,
            NetworkKind::Lo | NetworkKind::Gni | NetworkKind::Sim => false,
        }
    }
}

impl Nid {
    /// `0@lo`: this process.
    pub const LO: Nid = Nid::numbered(Network::LO, 0);
    /// The port a `tcp` NID without one means.
    pub const TCP_PORT: u16 = 988;

    /// A NID with an IP address, on a network that has them. An IPv4-mapped IPv6 address is the IPv4 address.
    pub const fn on_ip(network: Network, ip: IpAddr, port: u16) -> Nid {
        assert!(network.has_ip());
        let address = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Nid { network, address, port }
    }

    /// A NID with a plain number, on a network that has them.
    pub const fn numbered(network: Network, number: u32) -> Nid {
        assert!(!network.has_ip());
        Nid { network, address: (number as u128).to_be_bytes(), port: 0 }
    }

    /// A TCP NID on network `tcp`.
    pub fn tcp(ip: impl Into<IpAddr>, port: u16) -> Nid {
        Nid::on_ip(Network::TCP, ip.into(), port)
    }

    /// A node of the simulated network.
    pub const fn sim(node: u32) -> Nid {
        Nid::numbered(Network::SIM, node)
    }

    /// The same address and network with another port.
    pub fn with_port(self, port: u16) -> Nid {
        assert!(port == 0 || self.network.has_ip(), "{self} has no ports");
        Nid { port, ..self }
    }

    /// The IP address, never an IPv4-mapped IPv6 address. Panics on a network without IP addresses: callers that take NIDs
    /// of any kind check [`Network::has_ip`] first.
    pub fn ip(&self) -> IpAddr {
        assert!(self.network.has_ip(), "{self} has no IP address");
        Ipv6Addr::from(self.address).to_canonical()
    }

    /// The number of a node on a network without IP addresses. Panics on others.
    pub fn number(&self) -> u32 {
        assert!(!self.network.has_ip(), "the address of {self} is no number");
        u32::try_from(u128::from_be_bytes(self.address)).expect("a number has four bytes")
    }

    /// What limits for one host count by: the NID without its port, and of an IPv6 address only the first 64 bits, because
    /// whoever has a host in such a network can use all of its addresses.
    pub fn host(self) -> Nid {
        let mut host = self.with_port(0);
        if self.is_ipv6() {
            host.address[8..].fill(0);
        }
        host
    }

    /// Returns whether a message can pass between the two nodes directly: they share a network, and on it the kind of
    /// address.
    pub fn reaches(&self, other: Nid) -> bool {
        self.network == other.network && self.is_ipv6() == other.is_ipv6()
    }

    /// Returns whether the address is an IPv6 address.
    fn is_ipv6(&self) -> bool {
        self.network.has_ip() && self.bits() & !FOUR_BYTES != MAPPED
    }

    fn bits(&self) -> u128 {
        u128::from_be_bytes(self.address)
    }

    /// The TCP port to connect to.
    pub fn tcp_port(&self) -> u16 {
        if self.port == 0 { Nid::TCP_PORT } else { self.port }
    }

    /// The NID as numbers.
    pub fn to_raw(self) -> RawNid {
        // Two NIDs of every message pass here and through `from_raw`, so neither makes an IP address.
        let (flag, address) = if self.is_ipv6() { (RawNid::IPV6, self.bits()) } else { (0, self.bits() & FOUR_BYTES) };
        RawNid { network: self.network.to_u32() | flag, address, port: self.port }
    }

    /// The NID that has these numbers; `None` if there is none. A NID has one raw form only: an IPv4-mapped address of 16
    /// bytes, which [`Nid::to_raw`] never makes, is refused.
    pub fn from_raw(raw: RawNid) -> Option<Nid> {
        let network = Network::from_u32(raw.network & !RawNid::IPV6)?;
        let is_short = raw.address <= FOUR_BYTES;
        let address = match (network.has_ip(), raw.is_ipv6()) {
            (true, false) if is_short => MAPPED | raw.address,
            (true, true) if raw.address & !FOUR_BYTES != MAPPED => raw.address,
            (false, false) if is_short && raw.port == 0 => raw.address,
            _ => return None,
        };
        Some(Nid { network, address: address.to_be_bytes(), port: raw.port })
    }
}

/// The address and the port that `10.0.0.1`, `10.0.0.1:7001`, `2001:db8::1` or `[2001:db8::1]:7001` mean. Brackets are needed
/// only if there is a port. An IPv4-mapped IPv6 address is the IPv4 address.
pub fn parse_address(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let in_brackets = |text: &str| -> Option<IpAddr> {
        let ip: Ipv6Addr = text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        Some(ip.to_canonical())
    };
    if let Some(ip) = in_brackets(text).or_else(|| Some(text.parse::<IpAddr>().ok()?.to_canonical())) {
        return Some((ip, None));
    }
    let (host, port) = text.rsplit_once(':')?;
    let ip = in_brackets(host).or_else(|| Some(host.parse::<Ipv4Addr>().ok()?.into()))?;
    Some((ip, Some(port.parse().ok()?)))
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            NetworkKind::Tcp => "tcp",
            NetworkKind::Lo => "lo",
            NetworkKind::O2ib => "o2ib",
            NetworkKind::Gni => "gni",
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
            ("gni", NetworkKind::Gni),
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
        match (self.network.has_ip(), self.port) {
            (false, _) => write!(f, "{}", self.number())?,
            // Without brackets, as Lustre prints IPv6 NIDs.
            (true, 0) => write!(f, "{}", self.ip())?,
            (true, port) => write!(f, "{}", SocketAddr::new(self.ip(), port))?,
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
        let err = || ParseIdError::new("NID such as 10.0.0.1@tcp or 2001:db8::1@tcp", s);
        let (address, network) = s.split_once('@').unwrap_or((s, "tcp"));
        let network: Network = network.parse().map_err(|_| err())?;
        if !network.has_ip() {
            return Ok(Nid::numbered(network, address.parse().map_err(|_| err())?));
        }
        let (ip, port) = parse_address(address).ok_or_else(err)?;
        Ok(Nid::on_ip(network, ip, port.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn nids_round_trip() {
        for s in [
            "10.0.0.1@tcp",
            "127.0.0.1:7001@tcp1",
            "0@lo",
            "17@sim",
            "4294967295@gni3",
            "10.0.0.1@o2ib",
            "2001:db8::1@tcp",
            "[2001:db8::1]:7001@tcp1",
            "fe80::9657:a5ff:fe6b:c0f0@tcp",
            "::1@tcp",
            "::@tcp",
            "[::1]:1@o2ib7",
        ] {
            assert_eq!(nid(s).to_string(), s);
        }
        for (other, canonical) in [
            ("10.0.0.1", "10.0.0.1@tcp"),
            ("2001:db8::1", "2001:db8::1@tcp"),
            ("[2001:db8::1]@tcp", "2001:db8::1@tcp"),
            ("[2001:DB8:0:0::1]:0@tcp", "2001:db8::1@tcp"),
            ("2001:db8::1:7001@tcp", "2001:db8::1:7001@tcp"),
            ("::ffff:10.0.0.1@tcp", "10.0.0.1@tcp"),
            ("[::ffff:a00:1]:7001@tcp", "10.0.0.1:7001@tcp"),
        ] {
            assert_eq!(nid(other).to_string(), canonical);
            assert_eq!(nid(other), nid(canonical));
        }
        let bad = "|@tcp|10.0.0@tcp|1.2.3.4@xyz|1.2.3.4:99999@tcp|1.2.3.4:@tcp|x@lo|1:2@sim|::1@sim|4294967296@gni|[::1@tcp|\
                   ::1]@tcp|[]@tcp|[::1]7001@tcp|[::1]:@tcp|[::1]:x@tcp|[[::1]]@tcp|[10.0.0.1]:7001@tcp|1:2:3@tcp|:::@tcp|\
                   fe80::1%eth0@tcp|[fe80::1%1]:7001@tcp|2001:db8::12345@tcp|::1:70001@tcp|::ffff:1.2.3.4:7001@tcp|::1@tcp@tcp";
        for bad in bad.split('|') {
            assert!(bad.parse::<Nid>().is_err(), "{bad}");
        }
    }

    /// Lists that were sorted before IPv6 stay sorted.
    #[test]
    fn the_order_is_network_address_port() {
        let sorted = [
            "::1@tcp",
            "2.0.0.1@tcp",
            "10.0.0.1@tcp",
            "10.0.0.1:7001@tcp",
            "10.0.0.2@tcp",
            "255.0.0.1@tcp",
            "2001:db8::1@tcp",
            "1.0.0.1@tcp1",
            "2@sim",
            "10@sim",
        ];
        assert!(sorted.map(nid).is_sorted());
    }

    #[test]
    fn a_nid_has_one_raw_form() {
        for (text, network, address, port) in [
            ("10.0.0.1:7001@tcp1", 0x0002_0001, 0x0a00_0001, 7001),
            ("0@lo", 0x0009_0000, 0, 0),
            ("300@gni", 0x000d_0000, 300, 0),
            ("[2001:db8::1]:7001@tcp1", 0x8002_0001, 0x2001_0db8 << 96 | 1, 7001),
            ("::1@tcp", 0x8002_0000, 1, 0),
            ("0.0.0.1@tcp", 0x0002_0000, 1, 0),
        ] {
            let raw = RawNid { network, address, port };
            assert_eq!((nid(text).to_raw(), Nid::from_raw(raw)), (raw, Some(nid(text))), "{text}");
        }
        for (network, address, port, why) in [
            (0x0001_0000, 0, 0, "no such network"),
            (0x0002_0000, 1 << 32, 0, "an address that is too long for its network"),
            (0x8002_0000, 0xffff_0a00_0001, 0, "an IPv4 address as IPv6"),
            (0x8009_0000, 0, 0, "a number of 16 bytes"),
            (0x005e_0000, 7, 1, "a number with a port"),
        ] {
            assert_eq!(Nid::from_raw(RawNid { network, address, port }), None, "{why}");
        }
    }

    #[test]
    fn ipv4_and_ipv6_are_apart_on_one_network() {
        let reaches = |a, b| nid(a).reaches(nid(b));
        assert!(
            reaches("10.0.0.1@tcp", "10.0.0.2@tcp") && reaches("::1@tcp", "[::2]:7@tcp") && reaches("1@sim", "2@sim")
        );
        assert!(!reaches("10.0.0.1@tcp", "10.0.0.2@tcp1") && !reaches("10.0.0.1@tcp", "::2@tcp"));
        assert!(!reaches("::1@tcp", "::1@o2ib") && !reaches("1@sim", "1@lo"));
    }

    #[test]
    fn ports_and_addresses_of_one_ipv6_network_are_one_host() {
        for (text, host) in [
            ("10.0.0.1:7001@tcp1", "10.0.0.1@tcp1"),
            ("[2001:db8::1:2:3]:7001@tcp", "2001:db8::@tcp"),
            ("7@sim", "7@sim"),
        ] {
            assert_eq!(nid(text).host(), nid(host));
        }
        assert_ne!(nid("2001:db8:0:1::1@tcp").host(), nid("2001:db8:0:2::1@tcp").host());
    }

    #[test]
    fn networks_round_trip_as_numbers() {
        for n in [Network::LO, Network::TCP, Network { kind: NetworkKind::Tcp, number: 7 }] {
            assert_eq!(Network::from_u32(n.to_u32()), Some(n));
        }
        assert_eq!(Network::from_u32(0xffff_0000), None);
    }
}
