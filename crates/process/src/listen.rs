//! The address on which a process listens, and the name of its host.

use crate::target_options::TargetOptions;
use nacre_base::{Nid, TargetKind};
use nacre_osd::disk::Label;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

/// The address on which a node listens: `IP[:PORT]`.
#[derive(Clone, Copy, Debug)]
pub struct Listen(pub SocketAddrV4);

impl Listen {
    /// The address that this host reaches `toward` from, and any port: what a client needs.
    pub fn client(toward: Nid) -> Listen {
        Listen(SocketAddrV4::new(own_address(toward.ip()), 0))
    }

    /// An address that only this host can reach: safe until another is named.
    pub fn loopback(port: u16) -> Listen {
        Listen(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    /// The address for a server of these targets: the NID that their labels name for this host; else the address from
    /// which it reaches their MGS; else, for an MGS without a NID in its label, loopback.
    pub fn of_labels(labels: &[Label]) -> Result<Listen, String> {
        let mut toward = None;
        for label in labels {
            let options = TargetOptions::of(label)?;
            let is_mgs = label.target.kind == TargetKind::Mgt;
            let own = if is_mgs { &options.mgs } else { &options.service_nodes };
            if let Some(nid) = own.iter().find(|nid| is_local(nid.ip())) {
                return Ok(Listen(SocketAddrV4::new(nid.ip(), nid.tcp_port())));
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
        let address = toward.map_or(Ipv4Addr::LOCALHOST, |mgs| own_address(mgs.ip()));
        if address.is_loopback() {
            tracing::info!("no address was named: only this host can reach it, unless --listen ADDRESS names one");
        }
        Ok(Listen(SocketAddrV4::new(address, Nid::TCP_PORT)))
    }
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(s: &str) -> Result<Listen, String> {
        let bad = || format!("{s:?} is not IP:PORT, such as 10.0.0.1:988 or 127.0.0.1:0 for any port");
        let (host, port) = s.split_once(':').map_or((s, Ok(Nid::TCP_PORT)), |(h, p)| (h, p.parse()));
        let ip: Ipv4Addr = host.parse().map_err(|_| bad())?;
        let ip = if ip.is_unspecified() { own_address(WORLD) } else { ip };
        Ok(Listen(SocketAddrV4::new(ip, port.map_err(|_| bad())?)))
    }
}

/// An address to which every host has a route, unless it only has routes to its neighbours. No host has this address.
const WORLD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The address this host would use to reach `toward`. Nothing is sent: connecting a datagram socket only asks the routing
/// table.
fn own_address(toward: Ipv4Addr) -> Ipv4Addr {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|s| {
        s.connect((toward, 9))?;
        s.local_addr()
    });
    match found {
        Ok(std::net::SocketAddr::V4(a)) if !a.ip().is_unspecified() => *a.ip(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// Returns whether the address is one of this host.
fn is_local(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
