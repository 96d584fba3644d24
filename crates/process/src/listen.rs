//! The address on which a process listens, and the name of its host.

use crate::network::Tunables;
use crate::network::peers::Peer;
use crate::routing::Buffers;
use crate::target_options::TargetOptions;
use nacre_base::nid::parse_address;
use nacre_base::{Network, NetworkKind, Nid, TargetKind};
use nacre_lnet::{Lnet, Route, RouterOptions, UdspRule};
use nacre_osd::disk::Label;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// An address on which a node listens: `IP[:PORT][@NETWORK]`. An IPv6 address with a port has brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub at: SocketAddr,
    /// The network that the node is on there: `tcp` unless another is named.
    pub network: Network,
}

/// How a process is connected: where it listens, and by which routers it reaches other networks.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Addresses to listen on. The first is the one that the node is known by.
    pub listen: Vec<Listen>,
    /// Routes to networks that it is not on.
    pub routes: Vec<Route>,
    /// Credits of networks.
    pub tunables: Vec<(Network, Tunables)>,
    /// Names and values of [`nacre_lnet::Settings`].
    pub settings: Vec<(String, String)>,
    /// True if the process passes on messages of others, whatever its role is.
    pub routing: bool,
    /// Sizes of a router's pools.
    pub buffers: Buffers,
    /// Peers whose NIDs are named.
    pub peers: Vec<Peer>,
    /// Rules for the choice among the ways to a peer.
    pub udsp: Vec<UdspRule>,
}

impl Connections {
    /// Names peers with several NIDs, and sets rules for the choice among these.
    pub(crate) fn configure_peers(&self, lnet: &Lnet) -> Result<(), String> {
        // A file may be for many hosts, and name this one.
        let is_other =
            |peer: &&Peer| !std::iter::once(&peer.primary).chain(&peer.others).any(|nid| lnet.is_local(*nid));
        for peer in self.peers.iter().filter(is_other) {
            lnet.add_peer(peer.primary, &peer.others).map_err(|e| format!("the peer {}: {e}", peer.primary))?;
        }
        self.udsp.iter().try_for_each(|rule| lnet.add_udsp(rule.clone(), None)).map_err(|e| format!("udsp: {e}"))
    }

    /// Sets credits, and begins to pass messages on if that is wanted.
    pub(crate) fn configure_router(&self, lnet: &Lnet) -> Result<(), String> {
        if self.routing && lnet.nids().len() > 1 {
            let options = self.buffers.of(RouterOptions { lanes: lnet.has_lanes(), ..RouterOptions::default() });
            options.check()?;
            lnet.start_routing(&options);
        }
        for (network, tunables) in &self.tunables {
            tunables.check().map_err(|why| format!("{network}: {why}"))?;
            tunables.peer_credits.map(|credits| lnet.set_peer_credits(*network, credits));
            tunables.credits.map(|credits| lnet.set_credits(*network, credits));
            tunables.peer_buffer_credits.map(|credits| lnet.set_peer_buffer_credits(*network, credits));
            lnet.tune_tcp(*network, |tcp| tunables.apply(tcp)).map_err(|e| format!("{network}: {e}"))?;
        }
        Ok(())
    }
}

impl From<Listen> for Connections {
    fn from(listen: Listen) -> Connections {
        Connections { listen: vec![listen], ..Connections::default() }
    }
}

impl Listen {
    /// An address on network `tcp`.
    pub fn tcp(at: impl Into<SocketAddr>) -> Listen {
        Listen { at: at.into(), network: Network::TCP }
    }

    /// The address that this host reaches `toward` from, and any port: what a client needs.
    pub fn client(toward: Nid) -> Listen {
        Listen { at: SocketAddr::new(own_address_toward(toward), 0), network: toward.network.with_ip() }
    }

    /// The NID of a node that listens there.
    pub fn nid(&self) -> Nid {
        let port = if self.at.port() == Nid::TCP_PORT { 0 } else { self.at.port() };
        Nid::on_ip(self.network, self.at.ip(), port)
    }

    /// An address that only this host can reach: safe until another is named.
    pub fn loopback(port: u16) -> Listen {
        Listen::tcp((Ipv4Addr::LOCALHOST, port))
    }

    /// The address for a server of these targets: the NID that their labels name for this host; else the address from
    /// which it reaches their MGS; else, for an MGS without a NID in its label, loopback.
    pub fn of_labels(labels: &[Label]) -> Result<Listen, String> {
        let mut toward = None;
        for label in labels {
            let options = TargetOptions::of(label)?;
            let is_mgs = label.target.kind == TargetKind::Mgt;
            let own = if is_mgs { &options.mgs } else { &options.service_nodes };
            if let Some(nid) = own.iter().find(|nid| nid.network.has_ip() && is_local(nid.ip())) {
                return Ok(Listen { at: SocketAddr::new(nid.ip(), nid.tcp_port()), network: nid.network });
            }
            if !own.is_empty() {
                let named = own.iter().map(Nid::to_string).collect::<Vec<_>>().join(", ");
                let advice = "--listen ADDRESS names another";
                return Err(format!(
                    "the label of {} names {named}, and none is an address of this host: {advice}",
                    label.target
                ));
            }
            toward = toward.or(if is_mgs { None } else { options.mgs.first().copied() });
        }
        let address = toward.map_or(Ipv4Addr::LOCALHOST.into(), own_address_toward);
        if address.is_loopback() {
            tracing::info!("no address was named: only this host can reach it, unless --listen ADDRESS names one");
        }
        let network = toward.map_or(Network::TCP, |mgs| mgs.network.with_ip());
        Ok(Listen { at: SocketAddr::new(address, Nid::TCP_PORT), network })
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.at)?;
        if self.network != Network::TCP { write!(f, "@{}", self.network) } else { Ok(()) }
    }
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(s: &str) -> Result<Listen, String> {
        let (address, network) = s.split_once('@').unwrap_or((s, "tcp"));
        let network = network.parse::<Network>().map_err(|e| e.to_string())?;
        if network.kind != NetworkKind::Tcp {
            return Err(format!("this version listens on TCP only, not on {network}"));
        }
        let Some((ip, port)) = parse_address(address) else {
            return Err(format!(
                "{address:?} is not IP:PORT, such as 10.0.0.1:988, [2001:db8::1]:988 or 127.0.0.1:0 for any port"
            ));
        };
        let ip = match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                return Err(format!(
                    "{ip} means nothing without its link, which a NID does not name: use another address"
                ));
            }
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => own_address(WORLD.into()),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => own_address(WORLD_V6.into()),
            ip => ip,
        };
        Ok(Listen { at: SocketAddr::new(ip, port.unwrap_or(Nid::TCP_PORT)), network })
    }
}

/// An address to which every host has a route, unless it only has routes to its neighbours. No host has this address.
const WORLD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// [`WORLD`] for IPv6.
const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The address from which this host would reach `toward`; loopback for a NID that has no IP address.
fn own_address_toward(toward: Nid) -> IpAddr {
    if toward.network.has_ip() { own_address(toward.ip()) } else { Ipv4Addr::LOCALHOST.into() }
}

/// The address this host would use to reach `toward`. Nothing is sent: connecting a datagram socket only asks the routing
/// table.
fn own_address(toward: IpAddr) -> IpAddr {
    let (any, loopback): (IpAddr, IpAddr) = match toward {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|s| {
        s.connect((toward, 9))?;
        s.local_addr()
    });
    found.map(|found| found.ip()).ok().filter(|ip| !ip.is_unspecified()).unwrap_or(loopback)
}

/// Returns whether the address is one of this host.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds_with_and_without_a_port() {
        let listen = |text: &str| text.parse::<Listen>().map(|listen| listen.to_string());
        for (text, means) in [
            ("10.0.0.1", "10.0.0.1:988"),
            ("10.0.0.1:0", "10.0.0.1:0"),
            ("::1", "[::1]:988"),
            ("[::1]", "[::1]:988"),
            ("[2001:db8::1]:7001", "[2001:db8::1]:7001"),
            ("::ffff:10.0.0.1", "10.0.0.1:988"),
            ("10.0.0.1@tcp", "10.0.0.1:988"),
            ("10.0.0.1:7@tcp2", "10.0.0.1:7@tcp2"),
        ] {
            assert_eq!(listen(text).as_deref(), Ok(means), "{text}");
            assert_eq!(listen(means).as_deref(), Ok(means), "a mount in the background is given what was printed");
        }
        for unspecified in ["0.0.0.0:7", "[::]:7"] {
            let found = unspecified.parse::<Listen>().unwrap().at;
            assert!(!found.ip().is_unspecified() && found.port() == 7, "{unspecified} is {found}");
        }
        for bad in [
            "",
            "x",
            "10.0.0.1:",
            "[::1]:x",
            "[::1",
            "localhost:988",
            "10.0.0.1@x",
            "10.0.0.1@o2ib",
            "fe80::1",
            "[fe80::1]:988",
        ] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_listens_with_the_kind_of_address_that_its_mgs_has() {
        let of = |nid: &str| Listen::client(nid.parse().unwrap()).at.to_string();
        assert_eq!((of("[::1]:7001@tcp").as_str(), of("127.0.0.1@tcp").as_str()), ("[::1]:0", "127.0.0.1:0"));
        assert_eq!((of("0@lo").as_str(), of("7@sim").as_str()), ("127.0.0.1:0", "127.0.0.1:0"));
    }
}
