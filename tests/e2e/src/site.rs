//! Where the processes of a file system are, and by which routers they reach each other: on this host's loopback, or on hosts
//! with networks of their own.

use crate::cluster::{ADDRESS, free_ports};
use crate::failure::Outcome;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// All places of a file system.
pub(crate) struct Site {
    /// Routers, with the names of their daemons.
    pub(crate) routers: Vec<(String, Place)>,
    /// The servers' place. Each server has a port of its own.
    pub(crate) servers: Place,
    /// Places of servers that are not there, by their names.
    pub(crate) apart: BTreeMap<String, Place>,
    /// Places of mounts, by their number from 1. Further mounts are where the last of these is.
    pub(crate) mounts: Vec<Place>,
}

/// Where processes are, and which routes they are given.
#[derive(Clone, Default)]
pub(crate) struct Place {
    /// File of the network namespace. None is this host's own network.
    pub(crate) namespace: Option<PathBuf>,
    /// Addresses, each with the network that it is on. Without one, servers are on loopback and mounts choose for themselves.
    pub(crate) addresses: Vec<(String, &'static str)>,
    /// Routes as `--route` takes them, `NETWORK [HOPS] GATEWAY`.
    pub(crate) routes: Vec<String>,
    /// Configuration of the host's networks, `--lnet-conf`, beside addresses and routes.
    pub(crate) lnet_conf: Option<PathBuf>,
}

/// The servers' network and that of the mounts, if there are routers on loopback between them.
const SERVERS_NET: &str = "tcp1";
const MOUNTS_NET: &str = "tcp2";

impl Site {
    /// Everything on this host, on the default network.
    pub(crate) fn on_this_host() -> Site {
        Site { routers: Vec::new(), servers: Place::default(), apart: BTreeMap::new(), mounts: Vec::new() }
    }

    /// Everything on this host, the servers and the mounts on two networks that only these routers join.
    pub(crate) fn behind_routers(routers: usize) -> Outcome<Site> {
        let mut site = Site::on_this_host();
        site.servers.addresses.push((ADDRESS.to_owned(), SERVERS_NET));
        let mounts = Place { addresses: vec![(ADDRESS.to_owned(), MOUNTS_NET)], ..Place::default() };
        site.mounts.push(mounts.at_any_port());
        for (n, ports) in (1..).zip(free_ports(2 * routers)?.chunks_exact(2)) {
            let [near, far] = [ports[0], ports[1]].map(|port| format!("{ADDRESS}:{port}"));
            site.servers.routes.push(format!("{MOUNTS_NET} {near}@{SERVERS_NET}"));
            site.mounts[0].routes.push(format!("{SERVERS_NET} {far}@{MOUNTS_NET}"));
            let addresses = vec![(near, SERVERS_NET), (far, MOUNTS_NET)];
            site.routers.push((format!("router{n}"), Place { addresses, ..Place::default() }));
        }
        Ok(site)
    }

    /// Where this server is.
    pub(crate) fn server(&self, name: &str) -> &Place {
        self.apart.get(name).unwrap_or(&self.servers)
    }

    /// Where mount number `n` is.
    pub(crate) fn mount(&self, n: usize) -> Place {
        self.mounts.get(n - 1).or(self.mounts.last()).cloned().unwrap_or_default()
    }
}

impl Place {
    /// The same with ports that the kernel chooses, for processes that share an address.
    pub(crate) fn at_any_port(mut self) -> Place {
        self.addresses.iter_mut().for_each(|(address, _)| address.push_str(":0"));
        self
    }

    /// Arguments that name its routes, and its configuration.
    pub(crate) fn route_args(&self) -> impl Iterator<Item = String> {
        let conf =
            self.lnet_conf.iter().flat_map(|file| ["--lnet-conf".to_owned(), file.to_string_lossy().into_owned()]);
        self.routes.iter().flat_map(|route| ["--route".to_owned(), route.clone()]).chain(conf)
    }

    /// Arguments of a process that listens at all of its addresses and has all of its routes.
    pub(crate) fn args(&self) -> Vec<String> {
        let listen = |(address, network): &(String, &str)| ["--listen".to_owned(), format!("{address}@{network}")];
        self.addresses.iter().flat_map(listen).chain(self.route_args()).collect()
    }

    /// The same as mount options, which say nothing of hops.
    pub(crate) fn options(&self) -> Vec<String> {
        let listen = self.addresses.iter().map(|(address, network)| format!("listen={address}@{network}"));
        let ends = |route: &String| {
            let (network, gateway) = (route.split(' ').next()?, route.split(' ').next_back()?);
            Some(format!("route={network}:{gateway}"))
        };
        listen.chain(self.routes.iter().filter_map(ends)).collect()
    }

    /// What stands behind an address of this place to name its network.
    pub(crate) fn network_suffix(&self) -> String {
        self.addresses.first().map_or_else(String::new, |(_, network)| format!("@{network}"))
    }
}
