//! Which servers, routers and clients are near each other, and the networks and routes that follow: fine-grained routing. A
//! pure engine.
//!
//! Clients are on one network, servers on another fabric; each router has an address on both. The servers of a group get a
//! network of their own, so that a client's routes to them can prefer the routers that are near. All routers and servers are on
//! the networks of all groups, because they can reach each other in any case: so servers of two groups speak to each other
//! without a router, and a distant router is the second choice where no near one works.
//!
//! An address can be listened at only once on a port, so a router's port on a group's network is 988 and the number of groups
//! before it. A server is known by its own network; on the others it takes any port, because nobody calls it there.

use super::options::parse_network;
use super::patterns::{AddressPattern, expand};
use super::{Interface, Net, NetworkConfig};
use nacre_base::{Network, Nid};
use nacre_lnet::Route;
use serde::Deserialize;
use std::net::IpAddr;

/// A site has at most so many groups: each is a port of every router.
const GROUPS_MAX: usize = 1024;
/// Added to the priority of a route by a router that is not near the servers, and by one that is not near the client.
const FAR_FROM_SERVERS: u32 = 2;
/// See [`FAR_FROM_SERVERS`].
const FAR_FROM_CLIENT: u32 = 1;

/// A site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The network of the clients.
    pub clients: Network,
    /// The groups.
    pub groups: Vec<Group>,
}

/// Servers, routers and clients that are near each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The network of its servers.
    pub network: Network,
    /// Its clients.
    pub clients: Vec<AddressPattern>,
    /// Its routers; one may be in several groups.
    pub routers: Vec<RouterAddresses>,
    /// Its servers.
    pub servers: Vec<AddressPattern>,
}

/// The addresses of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouterAddresses {
    /// The one that clients reach.
    pub near_clients: IpAddr,
    /// The one that servers reach.
    pub near_servers: IpAddr,
}

/// The part that a host plays in a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A router.
    Router(RouterAddresses),
    /// A server of the group with this index.
    Server(usize, IpAddr),
    /// A client, near the groups with these indices.
    Client(Vec<usize>, IpAddr),
}

/// Gateways to a network, each with its priority.
pub type Choice = Vec<(u32, Nid)>;

/// topology.toml, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    clients: String,
    servers: String,
    group: Vec<FileGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    name: String,
    #[serde(default)]
    clients: Vec<String>,
    #[serde(default)]
    routers: Vec<(String, String)>,
    #[serde(default)]
    servers: Vec<String>,
}

impl Topology {
    /// The site that a file describes. An error says the line, or the group.
    pub fn parse(text: &str) -> Result<Topology, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        let clients = parse_network(&file.clients).map_err(|why| format!("clients: {why}"))?;
        let first = parse_network(&file.servers).map_err(|why| format!("servers: {why}"))?;
        if file.group.is_empty() || file.group.len() > GROUPS_MAX {
            return Err(format!("a site has 1 to {GROUPS_MAX} groups, this one has {}", file.group.len()));
        }
        let mut groups: Vec<Group> = Vec::new();
        for (index, group) in file.group.into_iter().enumerate() {
            let number = first.number.checked_add(index as u16).ok_or("the networks have too large numbers")?;
            let network = Network { number, ..first };
            if network == clients {
                return Err(format!(
                    "the servers of group {} would be on {network}, which is the clients' network: {} groups need as many \
                     numbers from {first} on",
                    group.name,
                    index + 1
                ));
            }
            if groups.iter().any(|other| other.name == group.name) {
                return Err(format!("group {} is there twice", group.name));
            }
            let name = group.name.clone();
            groups.push(group.check(network).map_err(|why| format!("group {name}: {why}"))?);
        }
        Ok(Topology { clients, groups })
    }

    /// Finds the part of a host that has these addresses.
    pub fn role_of(&self, addresses: &[IpAddr]) -> Result<Role, String> {
        let mut roles: Vec<(String, Role)> = Vec::new();
        for address in addresses {
            roles.extend(self.roles_at(*address));
        }
        roles.dedup_by(|a, b| a.1 == b.1);
        match roles.len() {
            1 => Ok(roles.remove(0).1),
            0 => {
                let own: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                Err(format!("no group of the topology names this host, which has {}", own.join(", ")))
            }
            _ => {
                let names: Vec<&str> = roles.iter().map(|(name, _)| name.as_str()).collect();
                Err(format!(
                    "the topology says that this host is {}; --listen ADDRESS says which is meant",
                    names.join(" and ")
                ))
            }
        }
    }

    fn roles_at(&self, address: IpAddr) -> Vec<(String, Role)> {
        let has = |patterns: &[AddressPattern]| patterns.iter().any(|pattern| pattern.includes(address));
        let is_at = |router: &&RouterAddresses| router.near_clients == address || router.near_servers == address;
        let mut roles = Vec::new();
        if let Some(router) = self.routers().iter().find(is_at) {
            roles.push((format!("a router ({address})"), Role::Router(*router)));
        }
        for (index, group) in self.groups.iter().enumerate().filter(|(_, group)| has(&group.servers)) {
            roles.push((format!("a server of group {} ({address})", group.name), Role::Server(index, address)));
        }
        let near: Vec<usize> = (0..self.groups.len()).filter(|index| has(&self.groups[*index].clients)).collect();
        if !near.is_empty() {
            roles.push((format!("a client ({address})"), Role::Client(near, address)));
        }
        roles
    }

    /// The networks and routes of a host.
    pub fn config_of(&self, role: &Role) -> NetworkConfig {
        match role {
            Role::Router(router) => {
                let far = (0..self.groups.len()).map(|index| {
                    let port = (index > 0).then_some(port_on(index));
                    self.net(self.groups[index].network, router.near_servers, port)
                });
                let nets = std::iter::once(self.net(self.clients, router.near_clients, None)).chain(far).collect();
                NetworkConfig { nets, routing: Some(true), ..NetworkConfig::default() }
            }
            Role::Server(own, address) => {
                let others = (0..self.groups.len()).filter(|index| index != own);
                let others = others.map(|index| self.net(self.groups[index].network, *address, Some(0)));
                let nets = std::iter::once(self.net(self.groups[*own].network, *address, None)).chain(others).collect();
                let routes = self.to_clients(*own).into_iter();
                let routes = routes.map(|(priority, gateway)| route(self.clients, gateway, priority)).collect();
                NetworkConfig { nets, routes, ..NetworkConfig::default() }
            }
            Role::Client(near, address) => {
                let nets = vec![self.net(self.clients, *address, None)];
                let to = |index: usize| {
                    let choice = self.to_servers(near, index).into_iter();
                    choice.map(move |(priority, gateway)| route(self.groups[index].network, gateway, priority))
                };
                let routes = (0..self.groups.len()).flat_map(to).collect();
                NetworkConfig { nets, routes, ..NetworkConfig::default() }
            }
        }
    }

    fn net(&self, network: Network, address: IpAddr, port: Option<u16>) -> Net {
        Net { network, interfaces: vec![Interface::Address(address, port)], ..Net::default() }
    }

    /// The gateways by which clients near some groups reach the servers of a group, the best first.
    pub fn to_servers(&self, near: &[usize], group: usize) -> Choice {
        let priority = |router: &RouterAddresses| {
            let is_near_client = near.is_empty() || near.iter().any(|near| self.is_in(*near, router));
            let far_from_servers = u32::from(!self.is_in(group, router)) * FAR_FROM_SERVERS;
            far_from_servers + u32::from(!is_near_client) * FAR_FROM_CLIENT
        };
        let gateway = |router: &RouterAddresses| Nid::on_ip(self.clients, router.near_clients, 0);
        sorted(self.routers().iter().map(|router| (priority(router), gateway(router))).collect())
    }

    /// The gateways by which the servers of a group reach clients, the best first.
    pub fn to_clients(&self, group: usize) -> Choice {
        let priority = |router: &RouterAddresses| u32::from(!self.is_in(group, router)) * FAR_FROM_SERVERS;
        let port = if group == 0 { 0 } else { port_on(group) };
        let gateway = |router: &RouterAddresses| Nid::on_ip(self.groups[group].network, router.near_servers, port);
        sorted(self.routers().iter().map(|router| (priority(router), gateway(router))).collect())
    }

    fn is_in(&self, group: usize, router: &RouterAddresses) -> bool {
        self.groups[group].routers.contains(router)
    }

    /// The routers of all groups, each once.
    fn routers(&self) -> Vec<RouterAddresses> {
        let mut all: Vec<_> = self.groups.iter().flat_map(|group| group.routers.iter().copied()).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// The port of routers on the network of a group.
fn port_on(group: usize) -> u16 {
    Nid::TCP_PORT + group as u16
}

fn route(network: Network, gateway: Nid, priority: u32) -> Route {
    Route { network, gateway, hops: None, priority }
}

fn sorted(mut choice: Choice) -> Choice {
    choice.sort();
    choice
}

impl FileGroup {
    fn check(self, network: Network) -> Result<Group, String> {
        let addresses = |texts: &[String]| texts.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>();
        let (clients, servers) = (addresses(&self.clients)?, addresses(&self.servers)?);
        let mut routers = Vec::new();
        for (near_clients, near_servers) in &self.routers {
            let (near, far) = (expand(near_clients)?, expand(near_servers)?);
            if near.len() != far.len() {
                return Err(format!("{near_clients} are {} routers, and {near_servers} are {}", near.len(), far.len()));
            }
            let ip =
                |text: &String| text.parse::<IpAddr>().map_err(|_| format!("{text:?} is not an address of a router"));
            for (near, far) in near.iter().zip(&far) {
                routers.push(RouterAddresses { near_clients: ip(near)?, near_servers: ip(far)? });
            }
        }
        if routers.is_empty() {
            return Err(
                "it has no router, so nobody could reach its servers, nor its clients any; name one, which may be in \
                        another group as well"
                    .to_owned(),
            );
        }
        Ok(Group { name: self.name, network, clients, routers, servers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
clients = "tcp1"
servers = "tcp2"

[[group]]
name = "left"
clients = ["10.1.0.[20-39]"]
routers = [["10.1.0.11", "10.2.0.11"]]
servers = ["10.2.0.[1-2]"]

[[group]]
name = "right"
clients = ["10.1.0.[40-59]"]
routers = [["10.1.0.[12-13]", "10.2.0.[12-13]"]]
servers = ["10.2.0.3"]
"#;

    fn config(topology: &str, address: &str) -> Result<(String, String), String> {
        let topology = Topology::parse(topology)?;
        let config = topology.config_of(&topology.role_of(&[address.parse().unwrap()])?);
        let listens: Vec<String> = config.listens(&[], 988)?.iter().map(|listen| listen.to_string()).collect();
        let routes: Vec<String> = config.routes.iter().map(Route::to_string).collect();
        Ok((listens.join(" "), routes.join("; ")))
    }

    #[test]
    fn on_a_flat_site_all_routers_are_equal() {
        let flat = "clients = \"tcp1\"\nservers = \"tcp2\"\n[[group]]\nname = \"all\"\nclients = [\"10.1.*.*\"]\n\
                    routers = [[\"10.1.0.[11-12]\", \"10.2.0.[11-12]\"]]\nservers = [\"10.2.0.[1-9]\"]\n";
        let of = |address| config(flat, address).unwrap();
        let both = "tcp2 :0 10.1.0.11@tcp1; tcp2 :0 10.1.0.12@tcp1";
        assert_eq!(of("10.1.7.7"), ("10.1.7.7:988@tcp1".to_owned(), both.to_owned()));
        let back = "tcp1 :0 10.2.0.11@tcp2; tcp1 :0 10.2.0.12@tcp2";
        assert_eq!(of("10.2.0.9"), ("10.2.0.9:988@tcp2".to_owned(), back.to_owned()));
        assert_eq!(of("10.2.0.11"), ("10.1.0.11:988@tcp1 10.2.0.11:988@tcp2".to_owned(), String::new()));
    }

    #[test]
    fn the_near_router_is_first_and_the_far_one_second() {
        let of = |address| config(TWO, address).unwrap();
        let (listens, routes) = of("10.1.0.20");
        assert_eq!(listens, "10.1.0.20:988@tcp1");
        let left = "tcp2 :0 10.1.0.11@tcp1; tcp2 :3 10.1.0.12@tcp1; tcp2 :3 10.1.0.13@tcp1";
        // Near the servers, or near the client.
        let right = "tcp3 :1 10.1.0.12@tcp1; tcp3 :1 10.1.0.13@tcp1; tcp3 :2 10.1.0.11@tcp1";
        assert_eq!(routes, format!("{left}; {right}"));

        let (listens, routes) = of("10.2.0.3");
        assert_eq!(listens, "10.2.0.3:988@tcp3 10.2.0.3:0@tcp2", "known by its own network");
        let back = "tcp1 :0 10.2.0.12:989@tcp3; tcp1 :0 10.2.0.13:989@tcp3; tcp1 :2 10.2.0.11:989@tcp3";
        assert_eq!(routes, back);

        let (listens, routes) = of("10.1.0.12");
        assert_eq!(listens, "10.1.0.12:988@tcp1 10.2.0.12:988@tcp2 10.2.0.12:989@tcp3", "where those routes lead");
        assert_eq!(routes, "");
    }

    #[test]
    fn a_router_may_be_in_two_groups() {
        let shared = TWO.replace("\"10.1.0.[12-13]\", \"10.2.0.[12-13]\"", "\"10.1.0.11\", \"10.2.0.11\"");
        let (_, routes) = config(&shared, "10.1.0.20").unwrap();
        assert_eq!(routes, "tcp2 :0 10.1.0.11@tcp1; tcp3 :0 10.1.0.11@tcp1");
        let (_, routes) = config(&shared, "10.2.0.3").unwrap();
        assert_eq!(routes, "tcp1 :0 10.2.0.11:989@tcp3");
    }

    #[test]
    fn a_client_between_groups_is_near_both() {
        let between = TWO.replace("10.1.0.[40-59]", "10.1.0.[20-59]");
        let (_, routes) = config(&between, "10.1.0.20").unwrap();
        assert!(routes.starts_with("tcp2 :0 10.1.0.11@tcp1; tcp2 :2 10.1.0.12@tcp1"), "{routes}");
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_says_why() {
        let refused = |from: &str, to: &str| {
            let text = TWO.replace(from, to);
            assert_ne!(text, TWO, "{from}");
            Topology::parse(&text).unwrap_err()
        };
        let why = "group right: it has no router, so nobody could reach its servers, nor its clients any; name one, which may be \
                   in another group as well";
        assert_eq!(refused("routers = [[\"10.1.0.[12-13]\", \"10.2.0.[12-13]\"]]", ""), why);
        assert_eq!(
            refused("10.2.0.[12-13]", "10.2.0.12"),
            "group right: 10.1.0.[12-13] are 2 routers, and 10.2.0.12 are 1"
        );
        assert_eq!(refused("right", "left"), "group left is there twice");
        assert!(
            refused("tcp1", "tcp3").starts_with("the servers of group right would be on tcp3, which is the clients'")
        );
        assert!(refused("\"10.1.0.11\"", "\"host1\"").contains("\"host1\" is not an address of a router"));
        assert!(refused("10.2.0.3", "10.2.0").contains("\"10.2.0\" is not an address"));
        let unknown = refused("clients = [\"10.1.0.[20-39]\"]", "client = []");
        assert!(unknown.contains("line 7") && unknown.contains("client"), "{unknown}");
        assert!(Topology::parse("clients = \"tcp1\"\nservers = \"o2ib\"\ngroup = []").unwrap_err().contains("o2ib"));
    }

    #[test]
    fn a_host_has_one_place() {
        let missing = config(TWO, "10.9.0.1").unwrap_err();
        assert_eq!(missing, "no group of the topology names this host, which has 10.9.0.1");
        let topology = Topology::parse(TWO).unwrap();
        let two = topology.role_of(&["10.1.0.20".parse().unwrap(), "10.2.0.1".parse().unwrap()]).unwrap_err();
        assert!(
            two.starts_with("the topology says that this host is a client (10.1.0.20) and a server of group left"),
            "{two}"
        );
        let router = topology.role_of(&["10.1.0.11".parse().unwrap(), "10.2.0.11".parse().unwrap()]).unwrap();
        assert!(matches!(router, Role::Router(_)), "both addresses are its");
    }
}
