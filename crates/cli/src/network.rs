//! Arguments that say how a process is connected, which every role has, and the files that say it for a whole host.

use nacre_base::{Network, Nid};
use nacre_lnet::{Route, RouteError};
use nacre_process::network::topology::Topology;
use nacre_process::network::{
    HostAddress, NetworkConfig, of_this_host, parse_ip2nets, parse_lnet_conf, parse_networks, parse_routes,
};
use nacre_process::{Connections, Listen};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The configuration of a host's networks, read by every role if it exists.
pub(crate) const LNET_CONF: &str = "/etc/nacre/lnet.conf";
/// The description of a site, read by every role if it exists.
const TOPOLOGY: &str = "/etc/nacre/topology.toml";

/// Arguments of the network.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct NetworkArgs {
    /// Address to listen on, such as 10.0.0.1 or [2001:db8::1]:988; port 0 takes any free one. `@tcp1` names the network
    /// that it is on, where that is not `tcp`. Given several times, the node is on several networks, and known by the
    /// first address. With a topology, it says which host of the site this one is
    #[arg(long, value_name = "IP[:PORT][@NETWORK]")]
    pub(crate) listen: Vec<Listen>,
    /// A router to a network that this node is not on, as in lnet.conf: "tcp2 10.0.0.9@tcp1", or with hops and priority
    /// "tcp2 2:1 10.0.0.9@tcp1". May be given several times
    #[arg(long = "route", value_name = "NETWORK [HOPS][:PRIORITY] GATEWAY")]
    pub(crate) routes: Vec<Route>,
    /// Networks of this host by interfaces, or by their addresses: "tcp1(eth0),tcp2(eth1,eth2)"
    #[arg(long, value_name = "NETWORK(INTERFACE,...),...")]
    networks: Option<String>,
    /// Networks of all hosts by their addresses: "tcp1 10.1.*.[1-9]; tcp2(eth1) 10.2.0.*"
    #[arg(long, value_name = "NETWORK ADDRESSES;...", conflicts_with = "networks")]
    ip2nets: Option<String>,
    /// Routes of all hosts: "tcp2 1:2 10.1.0.[11-12]@tcp1; ...". Those that are not for this host are left out
    #[arg(long = "routes", value_name = "NETWORK [HOPS][:PRIORITY] GATEWAYS;...")]
    route_table: Option<String>,
    /// Configuration of this host's networks, as lnetctl import reads it; arguments count more. Without this argument
    /// /etc/nacre/lnet.conf, if there is one
    #[arg(long, value_name = "FILE")]
    lnet_conf: Option<PathBuf>,
    /// Which servers, routers and clients of the site are near each other (nacre lnetctl topology check). Without this argument
    /// /etc/nacre/topology.toml, if there is one
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Of this host's networks, the only one that a mount uses: its mount option `network`.
    #[arg(skip)]
    only: Option<Network>,
}

impl NetworkArgs {
    /// The process's connections. `port` is the one where none is named, and `default` the address if none is.
    pub(crate) fn connections(
        &self,
        port: u16,
        default: impl FnOnce() -> Result<Listen, String>,
    ) -> Result<Connections, String> {
        self.connections_on(&of_this_host(), port, default)
    }

    fn connections_on(
        &self,
        host: &[HostAddress],
        port: u16,
        default: impl FnOnce() -> Result<Listen, String>,
    ) -> Result<Connections, String> {
        let own: Vec<IpAddr> = match self.listen.as_slice() {
            [] => host.iter().map(|own| own.address).collect(),
            named => named.iter().map(|listen| listen.at.ip()).collect(),
        };
        let (config, is_topology) = self.config(&own)?;
        let mut listen = match self.listen.first() {
            Some(first) if is_topology => config.listens(host, first.at.port())?,
            Some(_) => self.listen.clone(),
            None => config.listens(host, port)?,
        };
        if let Some(only) = self.only {
            let is_configured = !listen.is_empty();
            listen.retain(|listen| listen.network == only);
            if is_configured && listen.is_empty() {
                return Err(format!("mount option network={only}: this host is not configured to be on {only}"));
            }
        }
        if listen.is_empty() {
            let default = default()?;
            listen.push(Listen { network: self.only.unwrap_or(default.network), ..default });
        }
        let networks: Vec<Network> = listen.iter().map(|listen| listen.network).collect();
        let own: Vec<Nid> = listen.iter().map(Listen::nid).collect();
        let mut routes = self.routes.clone();
        for route in config.routes {
            match route.check_for(&networks, &own) {
                Ok(()) if routes.iter().any(|r| (r.network, r.gateway) == (route.network, route.gateway)) => {}
                Ok(()) => routes.push(route),
                Err(why @ RouteError::Hops(_)) => return Err(format!("the route {route}: {why}")),
                Err(why) => tracing::debug!("the route {route} is not for this process: {why}"),
            }
        }
        let tunables = config.nets.iter().map(|net| (net.network, net.tunables.clone()));
        Ok(Connections {
            listen,
            routes,
            tunables: tunables.filter(|(network, _)| networks.contains(network)).collect(),
            settings: config.settings,
            routing: config.routing == Some(true),
            buffers: config.buffers,
            peers: config.peers,
            udsp: config.udsp,
        })
    }

    /// Reads the files, and adds the options to what they say. Returns also whether a topology is a part of it.
    fn config(&self, own: &[IpAddr]) -> Result<(NetworkConfig, bool), String> {
        let mut config = NetworkConfig::default();
        let topology = read(self.topology.as_deref(), TOPOLOGY)?;
        if let Some((file, text)) = &topology {
            let topology = Topology::parse(text).map_err(|why| format!("{}: {why}", file.display()))?;
            let role = topology.role_of(own).map_err(|why| format!("{}: {why}", file.display()))?;
            config.extend(topology.config_of(&role));
        }
        if let Some((file, text)) = read(self.lnet_conf.as_deref(), LNET_CONF)? {
            config.extend(parse_lnet_conf(&text).map_err(|why| format!("{}: {why}", file.display()))?);
        }
        let named = |name: &'static str| move |why| format!("--{name}: {why}");
        let mut options = NetworkConfig::default();
        if let Some(text) = &self.networks {
            options.nets = parse_networks(text).map_err(named("networks"))?;
        }
        if let Some(text) = &self.ip2nets {
            options.rules = parse_ip2nets(text).map_err(named("ip2nets"))?;
        }
        if let Some(text) = &self.route_table {
            options.routes = parse_routes(text).map_err(named("routes"))?;
        }
        config.extend(options);
        Ok((config, topology.is_some()))
    }

    /// Takes a mount option, as a line of /etc/fstab names them: `listen=ADDRESS`, `network=NETWORK`, or
    /// `route=NETWORK:GATEWAY`, where a route's hops and priority, which have a space before them elsewhere, cannot be named.
    /// Returns false for other options.
    pub(crate) fn take_mount_option(&mut self, option: &str) -> Result<bool, String> {
        match option.split_once('=') {
            Some(("listen", address)) => {
                self.listen.push(address.parse::<Listen>().map_err(|e| format!("mount option {option}: {e}"))?);
            }
            Some(("network", network)) => {
                self.only = Some(network.parse().map_err(|e| format!("mount option {option}: {e}"))?);
            }
            Some(("route", route)) => {
                let (network, gateway) = route.split_once(':').ok_or_else(|| {
                    format!("mount option {option}: a route is NETWORK:GATEWAY, such as tcp2:10.0.0.9@tcp1")
                })?;
                let route = format!("{network} {gateway}")
                    .parse::<Route>()
                    .map_err(|e| format!("mount option {option}: {e}"))?;
                self.routes.push(route);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The arguments again, for the same command in the background.
    pub(crate) fn again(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| all.extend([name.to_owned(), value]);
        self.listen.iter().for_each(|listen| add("--listen", listen.to_string()));
        self.routes.iter().for_each(|route| add("--route", route.to_string()));
        let texts = [("--networks", &self.networks), ("--ip2nets", &self.ip2nets), ("--routes", &self.route_table)];
        texts.into_iter().for_each(|(name, text)| text.iter().for_each(|text| add(name, text.clone())));
        let files = [("--lnet-conf", &self.lnet_conf), ("--topology", &self.topology)];
        files
            .into_iter()
            .for_each(|(name, file)| file.iter().for_each(|file| add(name, file.to_string_lossy().into_owned())));
        self.only.iter().for_each(|network| add("-o", format!("network={network}")));
        all
    }
}

/// The text of a file that was named, or of the usual one if it exists.
fn read(named: Option<&Path>, usual: &str) -> Result<Option<(PathBuf, String)>, String> {
    let file = named.unwrap_or(Path::new(usual));
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some((file.to_owned(), text))),
        Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_names_addresses_and_routes() {
        let mut network = NetworkArgs::default();
        for option in
            ["listen=10.1.0.5@tcp1", "route=tcp2:10.1.0.11@tcp1", "route=tcp3:2001:db8::9@tcp1", "network=tcp1"]
        {
            assert_eq!(network.take_mount_option(option), Ok(true), "{option}");
        }
        let again = [
            "--listen",
            "10.1.0.5:988@tcp1",
            "--route",
            "tcp2 :0 10.1.0.11@tcp1",
            "--route",
            "tcp3 :0 2001:db8::9@tcp1",
            "-o",
            "network=tcp1",
        ];
        assert_eq!(network.again(), again);
        for other in ["noatime", "max_read=4096"] {
            assert_eq!(network.take_mount_option(other), Ok(false), "{other}");
        }
        for wrong in
            ["listen=", "listen=here", "route=tcp2", "route=tcp2:nobody", "route=:10.0.0.1@tcp1", "network=here"]
        {
            let error = network.take_mount_option(wrong).unwrap_err();
            assert!(error.starts_with(&format!("mount option {wrong}: ")), "{error}");
        }
    }

    fn host() -> Vec<HostAddress> {
        let of = |interface: &str, address: &str| HostAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
        };
        vec![of("lo", "127.0.0.1"), of("eth0", "10.1.0.5"), of("eth1", "10.2.0.5")]
    }

    fn connected(args: &NetworkArgs) -> Result<(String, String), String> {
        let connections = args.connections_on(&host(), 988, || "10.9.9.9:0".parse())?;
        let listen: Vec<String> = connections.listen.iter().map(Listen::to_string).collect();
        let routes: Vec<String> = connections.routes.iter().map(Route::to_string).collect();
        Ok((listen.join(" "), routes.join("; ")))
    }

    #[test]
    fn a_file_says_how_all_processes_of_a_host_are_connected_and_arguments_count_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lnet.conf");
        let text = "networks: \"tcp1(eth0),tcp2(eth1)\"\nroutes: \"tcp3 10.2.0.9@tcp2; tcp2 10.1.0.11@tcp1\"\n";
        std::fs::write(&file, text).unwrap();
        let of_file = NetworkArgs { lnet_conf: Some(file.clone()), ..NetworkArgs::default() };
        let both = "10.1.0.5:988@tcp1 10.2.0.5:988@tcp2".to_owned();
        assert_eq!(connected(&of_file).unwrap(), (both, "tcp3 :0 10.2.0.9@tcp2".to_owned()), "it is on tcp2 itself");

        let only = NetworkArgs { only: Some("tcp1".parse().unwrap()), ..of_file.clone() };
        let one = "10.1.0.5:988@tcp1".to_owned();
        assert_eq!(connected(&only).unwrap(), (one, "tcp2 :0 10.1.0.11@tcp1".to_owned()));
        let other = NetworkArgs { only: Some("tcp7".parse().unwrap()), ..of_file.clone() };
        assert!(connected(&other).unwrap_err().contains("network=tcp7"));

        let listen = NetworkArgs { listen: vec!["10.1.0.5:7001@tcp1".parse().unwrap()], ..of_file };
        assert_eq!(connected(&listen).unwrap().0, "10.1.0.5:7001@tcp1");
        assert_eq!(connected(&NetworkArgs::default()).unwrap().0, "10.9.9.9:0", "nothing is configured");
        std::fs::write(&file, "nets: []\n").unwrap();
        let wrong = NetworkArgs { lnet_conf: Some(file.clone()), ..NetworkArgs::default() };
        assert!(connected(&wrong).unwrap_err().starts_with(&format!("{}: ", file.display())));
    }

    #[test]
    fn with_a_topology_the_address_says_which_host_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("topology.toml");
        let text = "clients = \"tcp1\"\nservers = \"tcp2\"\n[[group]]\nname = \"all\"\nclients = [\"10.1.0.5\"]\n\
                    routers = [[\"10.1.0.11\", \"10.2.0.11\"]]\nservers = [\"10.2.0.5\"]\n";
        std::fs::write(&file, text).unwrap();
        let args = NetworkArgs { topology: Some(file), ..NetworkArgs::default() };
        assert!(connected(&args).unwrap_err().contains("--listen ADDRESS says which is meant"));
        let as_server = NetworkArgs { listen: vec!["10.2.0.5:7001".parse().unwrap()], ..args };
        assert_eq!(
            connected(&as_server).unwrap(),
            ("10.2.0.5:7001@tcp2".to_owned(), "tcp1 :0 10.2.0.11@tcp2".to_owned())
        );
    }
}
