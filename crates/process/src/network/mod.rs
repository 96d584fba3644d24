//! How a node is connected, as an administrator says it: the options of lnet, lnet.conf, or a topology. These modules turn
//! text into a [`NetworkConfig`]; a host's addresses turn that into what a process listens on. All of it is pure but for
//! `addresses`, which asks the kernel.

mod addresses;
pub mod live;
mod lnet_conf;
mod net;
pub mod options;
mod patterns;
pub mod peers;
pub mod rules;
pub mod topology;

pub use addresses::{HostAddress, of_this_host};
pub use lnet_conf::{lnet_conf_of, parse_lnet_conf};
pub use net::{HOST_DEFAULT, Interface, Net, Tunables};
pub use options::{NetRule, parse_ip2nets, parse_networks, parse_routes};
pub use patterns::AddressPattern;

use crate::listen::Listen;
use crate::routing::Buffers;
use nacre_lnet::{Route, UdspRule};
use peers::Peer;
use std::net::{IpAddr, SocketAddr};

/// An administrator's configuration of a host's networks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkConfig {
    /// The networks of this host.
    pub nets: Vec<Net>,
    /// The networks of hosts by their addresses, used if `nets` is empty.
    pub rules: Vec<NetRule>,
    /// Routes to other networks.
    pub routes: Vec<Route>,
    /// Names and values of [`nacre_lnet::Settings`]. They have been checked.
    pub settings: Vec<(String, String)>,
    /// Whether messages of others are passed on.
    pub routing: Option<bool>,
    /// Sizes of a router's pools.
    pub buffers: Buffers,
    /// Peers whose NIDs are named.
    pub peers: Vec<Peer>,
    /// Rules for the choice among the ways to a peer.
    pub udsp: Vec<UdspRule>,
}

impl NetworkConfig {
    /// The networks of a host with these addresses.
    pub fn nets_on(&self, host: &[HostAddress]) -> Vec<Net> {
        if !self.nets.is_empty() {
            return self.nets.clone();
        }
        let mut nets: Vec<Net> = Vec::new();
        for NetRule { net, addresses } in &self.rules {
            let is_meant = |own: &&HostAddress| addresses.iter().any(|pattern| pattern.includes(own.address));
            let Some(own) = host.iter().find(is_meant) else { continue };
            // As in Lustre, the first rule for a network counts.
            if !nets.iter().any(|other| other.network == net.network) {
                let of_rule = if net.interfaces.is_empty() {
                    vec![Interface::Address(own.address, None)]
                } else {
                    net.interfaces.clone()
                };
                nets.push(Net { interfaces: of_rule, ..net.clone() });
            }
        }
        nets
    }

    /// Where a process of a host with these addresses listens: on each of its networks at `port`, unless a port is named; on
    /// the ports that follow where an address is on several networks; or, for port 0, on any.
    pub fn listens(&self, host: &[HostAddress], port: u16) -> Result<Vec<Listen>, String> {
        let mut listens: Vec<Listen> = Vec::new();
        for net in self.nets_on(host) {
            let of_host = [Interface::Address(first_address(host), None)];
            let interfaces = if net.interfaces.is_empty() { &of_host[..] } else { &net.interfaces };
            for interface in interfaces {
                let (ip, named) = address_of(interface, host)?;
                let taken = listens.iter().filter(|other| other.at.ip() == ip).count() as u16;
                let usual = if port == 0 { 0 } else { port.saturating_add(taken) };
                listens.push(Listen { at: SocketAddr::new(ip, named.unwrap_or(usual)), network: net.network });
            }
        }
        Ok(listens)
    }

    /// Takes what another configuration says after this one. Where both name networks, the other's count.
    pub fn extend(&mut self, other: NetworkConfig) {
        let NetworkConfig { nets, rules, routes, settings, routing, buffers, peers, udsp } = other;
        if !nets.is_empty() || !rules.is_empty() {
            (self.nets, self.rules) = (nets, rules);
        }
        let is_new = |known: &[Route], route: &Route| {
            !known.iter().any(|other| (other.network, other.gateway) == (route.network, route.gateway))
        };
        routes.into_iter().for_each(|route| {
            if is_new(&self.routes, &route) {
                self.routes.push(route);
            }
        });
        self.settings.extend(settings);
        self.peers.extend(peers);
        udsp.into_iter().for_each(|rule| {
            if !self.udsp.contains(&rule) {
                self.udsp.push(rule);
            }
        });
        self.routing = routing.or(self.routing);
        self.buffers = Buffers {
            tiny: buffers.tiny.or(self.buffers.tiny),
            small: buffers.small.or(self.buffers.small),
            large: buffers.large.or(self.buffers.large),
        };
    }
}

/// The address of an interface, and its port if one was named.
fn address_of(interface: &Interface, host: &[HostAddress]) -> Result<(IpAddr, Option<u16>), String> {
    match interface {
        Interface::Address(ip, port) => Ok((*ip, *port)),
        Interface::Name(name) => {
            let found = host.iter().find(|own| own.interface == *name).map(|own| (own.address, None));
            found.ok_or_else(|| {
                let known: Vec<String> =
                    host.iter().map(|own| format!("{} ({})", own.interface, own.address)).collect();
                format!("this host has no interface {name} with an address; it has {}", known.join(", "))
            })
        }
    }
}

fn first_address(host: &[HostAddress]) -> IpAddr {
    let found = host.iter().find(|own| !own.address.is_loopback());
    found.map_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), |own| own.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addresses: &[(&str, &str)]) -> Vec<HostAddress> {
        let of = |(interface, address): &(&str, &str)| HostAddress {
            interface: (*interface).to_owned(),
            address: address.parse().unwrap(),
        };
        addresses.iter().map(of).collect()
    }

    fn listens(config: &NetworkConfig, port: u16) -> Result<String, String> {
        let host = host(&[("lo", "127.0.0.1"), ("eth0", "10.1.0.5"), ("eth1", "10.2.0.5")]);
        let all = config.listens(&host, port)?;
        Ok(all.iter().map(Listen::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn interfaces_become_addresses() {
        let of =
            |text: &str| listens(&NetworkConfig { nets: parse_networks(text).unwrap(), ..Default::default() }, 988);
        assert_eq!(of("tcp1(eth0),tcp2(eth1)").unwrap(), "10.1.0.5:988@tcp1 10.2.0.5:988@tcp2");
        assert_eq!(of("tcp").unwrap(), "10.1.0.5:988", "the first that is not loopback");
        assert_eq!(
            of("tcp1(eth0),tcp2(eth0)").unwrap(),
            "10.1.0.5:988@tcp1 10.1.0.5:989@tcp2",
            "one address on two networks"
        );
        assert_eq!(of("tcp1(127.1.0.1:7001)").unwrap(), "127.1.0.1:7001@tcp1");
        let missing =
            "this host has no interface eth9 with an address; it has lo (127.0.0.1), eth0 (10.1.0.5), eth1 (10.2.0.5)";
        assert_eq!(of("tcp1(eth9)").unwrap_err(), missing);
        let any = NetworkConfig { nets: parse_networks("tcp1(eth0),tcp2(eth0)").unwrap(), ..Default::default() };
        assert_eq!(listens(&any, 0).unwrap(), "10.1.0.5:0@tcp1 10.1.0.5:0@tcp2");
    }

    #[test]
    fn a_host_is_on_the_networks_whose_rules_name_its_addresses() {
        let of =
            |text: &str| listens(&NetworkConfig { rules: parse_ip2nets(text).unwrap(), ..Default::default() }, 988);
        assert_eq!(of("tcp1 10.1.*.[1-9]; tcp2(eth1) 10.2.0.*").unwrap(), "10.1.0.5:988@tcp1 10.2.0.5:988@tcp2");
        assert_eq!(
            of("tcp1 10.9.*.*; tcp1 10.2.0.5; tcp1 10.1.0.5").unwrap(),
            "10.2.0.5:988@tcp1",
            "the first that fits"
        );
        assert_eq!(of("tcp1 10.9.*.*").unwrap(), "");
    }

    #[test]
    fn what_is_said_later_counts() {
        let route = |text: &str| text.parse::<Route>().unwrap();
        let mut config = NetworkConfig {
            nets: parse_networks("tcp1(eth0)").unwrap(),
            routes: vec![route("tcp2 10.1.0.9@tcp1")],
            ..Default::default()
        };
        config.extend(NetworkConfig {
            routes: vec![route("tcp2 :5 10.1.0.9@tcp1"), route("tcp3 10.1.0.9@tcp1")],
            ..Default::default()
        });
        assert_eq!(listens(&config, 988).unwrap(), "10.1.0.5:988@tcp1");
        assert_eq!(config.routes, [route("tcp2 10.1.0.9@tcp1"), route("tcp3 10.1.0.9@tcp1")]);
        config.extend(NetworkConfig { nets: parse_networks("tcp2(eth1)").unwrap(), ..Default::default() });
        assert_eq!(listens(&config, 988).unwrap(), "10.2.0.5:988@tcp2");
    }
}
