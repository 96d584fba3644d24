//! lnet.conf: YAML as `lnetctl export` writes it and `lnetctl import` reads it, with the options of lnet as strings beside it.
//! Everything in a file is checked, and an error names its line; nothing is skipped but what only `show` says, such as
//! statistics.

use super::options::parse_network;
use super::peers::{AskedPeer, AskedUdsp, Peer, describe_peer, describe_rule};
use super::{Interface, Net, NetworkConfig, Tunables, parse_ip2nets, parse_networks, parse_routes};
use crate::routing::Buffers;
use nacre_lnet::{LnetOptions, Route, Settings, UdspRule};
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde_json::{Map, Value, json};
use serde_saphyr::Spanned;
use std::collections::BTreeMap;

/// A file is at most so long: thousands of routes. It goes to a process in one request.
const BYTES_MAX: usize = 512 << 10;

/// The configuration in the text of a file. An error says the line.
pub fn parse_lnet_conf(text: &str) -> Result<NetworkConfig, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("it has more than {BYTES_MAX} bytes"));
    }
    // A file of comments has no document.
    let is_empty = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#') || line.trim() == "---";
    if text.lines().all(is_empty) {
        return Ok(NetworkConfig::default());
    }
    serde_saphyr::from_str::<Document>(text).map_err(|e| e.to_string())?.check()
}

/// The configuration as [`parse_lnet_conf`] reads it, without `ip2nets`.
pub fn lnet_conf_of(config: &NetworkConfig) -> Value {
    let mut sections = Map::new();
    let nets: Vec<Value> = config.nets.iter().map(net_value).collect();
    let routes: Vec<Value> = config.routes.iter().map(route_value).collect();
    let peers: Vec<Value> = config.peers.iter().map(describe_peer).collect();
    let udsp: Vec<Value> = config.udsp.iter().enumerate().map(|(index, rule)| describe_rule(index, rule)).collect();
    for (name, list) in [("net", nets), ("route", routes), ("peer", peers), ("udsp", udsp)] {
        if !list.is_empty() {
            sections.insert(name.to_owned(), list.into());
        }
    }
    if let Some(enable) = config.routing {
        sections.insert("routing".to_owned(), json!({"enable": u8::from(enable)}));
    }
    if config.buffers != Buffers::default() {
        let Buffers { tiny, small, large } = config.buffers;
        sections.insert("buffers".to_owned(), without_null(json!({"tiny": tiny, "small": small, "large": large})));
    }
    if !config.settings.is_empty() {
        let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        let settings: Map<_, _> = config.settings.iter().map(|(name, text)| (name.clone(), value(text))).collect();
        sections.insert("global".to_owned(), settings.into());
    }
    Value::Object(sections)
}

fn net_value(net: &Net) -> Value {
    let Tunables { credits, peer_credits, peer_buffer_credits, .. } = net.tunables;
    let tunables =
        json!({"peer_credits": peer_credits, "peer_buffer_credits": peer_buffer_credits, "credits": credits});
    let ni = |interface: &Interface| {
        let (name, port) = match interface {
            Interface::Name(name) => (name.clone(), None),
            Interface::Address(ip, port) => (ip.to_string(), *port),
        };
        let mut ni = without_null(json!({"interfaces": {"0": name}, "port": port}));
        if tunables.as_object().is_some_and(|map| map.values().any(|credits| !credits.is_null())) {
            ni["tunables"] = without_null(tunables.clone());
        }
        let connections = driver_value(&net.tunables);
        if connections != json!({}) {
            ni["lnd tunables"] = connections;
        }
        ni
    };
    json!({"net type": net.network.to_string(), "local NI(s)": net.interfaces.iter().map(ni).collect::<Vec<_>>()})
}

/// `lnd tunables`, of what is set.
fn driver_value(tunables: &Tunables) -> Value {
    let mut tunables = tunables.clone();
    let mut settings = Map::new();
    for name in Tunables::OF_CONNECTIONS {
        if let Some(Some(value)) = tunables.of_connections(name) {
            settings.insert(name.to_owned(), json!(value));
        }
    }
    settings.extend(tunables.congestion_control.map(|name| ("congestion_control".to_owned(), json!(name))));
    Value::Object(settings)
}

fn route_value(route: &Route) -> Value {
    json!({"net": route.network.to_string(), "gateway": route.gateway.to_string(),
        "hop": route.hops.map_or(-1, i64::from), "priority": route.priority})
}

fn without_null(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    value
}

type Text = Spanned<String>;

/// The sections of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
struct Document {
    #[serde(default)]
    net: Vec<NetSection>,
    #[serde(default)]
    route: Vec<RouteSection>,
    routing: Option<Routing>,
    buffers: Option<BuffersSection>,
    global: Option<BTreeMap<String, Spanned<Scalar>>>,
    networks: Option<Text>,
    ip2nets: Option<Text>,
    routes: Option<Text>,
    #[serde(default)]
    peer: Vec<PeerSection>,
    #[serde(default)]
    udsp: Vec<UdspSection>,
    #[serde(rename = "statistics")]
    _statistics: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetSection {
    #[serde(rename = "net type")]
    network: Text,
    #[serde(rename = "local NI(s)", default)]
    interfaces: Vec<InterfaceSection>,
}

/// An interface. Its NID and what follows is what `show` says of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterfaceSection {
    interfaces: Option<BTreeMap<Scalar, Text>>,
    tunables: Option<TunablesSection>,
    #[serde(rename = "lnd tunables")]
    driver: Option<BTreeMap<String, Spanned<Scalar>>>,
    /// A port where it is not the usual one.
    port: Option<u16>,
    #[serde(rename = "nid")]
    _nid: Option<IgnoredAny>,
    #[serde(rename = "status")]
    _status: Option<IgnoredAny>,
    #[serde(rename = "statistics")]
    _statistics: Option<IgnoredAny>,
    #[serde(rename = "sent_stats")]
    _sent: Option<IgnoredAny>,
    #[serde(rename = "received_stats")]
    _received: Option<IgnoredAny>,
    #[serde(rename = "dropped_stats")]
    _dropped: Option<IgnoredAny>,
    #[serde(rename = "health stats")]
    _health: Option<IgnoredAny>,
    #[serde(rename = "credits")]
    _credits: Option<IgnoredAny>,
    #[serde(rename = "dev cpt")]
    _dev_cpt: Option<IgnoredAny>,
    #[serde(rename = "CPT")]
    _cpt: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TunablesSection {
    credits: Option<Spanned<u32>>,
    peer_credits: Option<Spanned<u32>>,
    peer_buffer_credits: Option<Spanned<u32>>,
    peer_timeout: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteSection {
    net: Text,
    gateway: Text,
    hop: Option<i64>,
    priority: Option<u32>,
    #[serde(rename = "state")]
    _state: Option<IgnoredAny>,
    #[serde(rename = "type")]
    _type: Option<IgnoredAny>,
    #[serde(rename = "reason")]
    _reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerSection {
    #[serde(rename = "primary nid")]
    primary: Text,
    #[serde(rename = "peer ni", default)]
    nis: Vec<PeerNiSection>,
    #[serde(rename = "Multi-Rail")]
    _multi_rail: Option<IgnoredAny>,
    #[serde(rename = "configured")]
    _configured: Option<IgnoredAny>,
}

/// A NID of a peer. All else is what `show` says of it.
#[derive(Deserialize)]
struct PeerNiSection {
    nid: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UdspSection {
    src: Option<Text>,
    dst: Option<Text>,
    rte: Option<Text>,
    action: Option<UdspAction>,
    priority: Option<u32>,
    #[serde(rename = "idx")]
    _index: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UdspAction {
    priority: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BuffersSection {
    tiny: Option<u32>,
    small: Option<u32>,
    large: Option<u32>,
}

/// A part of `routing`, which a person writes as one, and `show` as several.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoutingPart {
    enable: Option<Spanned<u32>>,
    tiny: Option<u32>,
    small: Option<u32>,
    large: Option<u32>,
    #[serde(rename = "cpt[0]")]
    _pools: Option<IgnoredAny>,
}

struct Routing(Vec<RoutingPart>);

/// A number, a word, or true and false, as text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Scalar(String);

impl<'de> Deserialize<'de> for Routing {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Routing, D::Error> {
        struct SomeParts;
        impl<'de> Visitor<'de> for SomeParts {
            type Value = Routing;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("enable, tiny, small and large")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Routing, A::Error> {
                RoutingPart::deserialize(MapAccessDeserializer::new(map)).map(|part| Routing(vec![part]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Routing, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Routing(parts))
            }
        }
        deserializer.deserialize_any(SomeParts)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number or a word")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(u8::from(value).to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.to_owned()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Says in which line an error is.
fn at<T, V>(place: &Spanned<T>, result: Result<V, String>) -> Result<V, String> {
    result.map_err(|why| format!("line {}: {why}", place.referenced.line()))
}

impl Document {
    fn check(self) -> Result<NetworkConfig, String> {
        let mut config = NetworkConfig::default();
        for section in self.net {
            if let Some(net) = section.check()? {
                match config.nets.iter().find(|other| other.network == net.network) {
                    Some(_) => return Err(format!("net {} is there twice", net.network)),
                    None => config.nets.push(net),
                }
            }
        }
        if let Some(networks) = &self.networks {
            config.nets.extend(at(networks, parse_networks(&networks.value))?);
        }
        if let Some(rules) = &self.ip2nets {
            config.rules = at(rules, parse_ip2nets(&rules.value))?;
        }
        for section in self.route {
            config.routes.push(section.check()?);
        }
        if let Some(routes) = &self.routes {
            config.routes.extend(at(routes, parse_routes(&routes.value))?);
        }
        if let Some(BuffersSection { tiny, small, large }) = self.buffers {
            config.buffers = Buffers { tiny, small, large };
        }
        for part in self.routing.map_or_else(Vec::new, |routing| routing.0) {
            part.take(&mut config)?;
        }
        for (name, value) in self.global.unwrap_or_default() {
            if let Some(setting) = at(&value, check_setting(&name, &value.value.0))? {
                config.settings.push(setting);
            }
        }
        for section in self.peer {
            // `show` names every peer; one with a single NID needs no word of an administrator.
            config.peers.extend(Some(section.check()?).filter(|peer| !peer.others.is_empty()));
        }
        for section in self.udsp {
            config.udsp.push(section.check()?);
        }
        Ok(config)
    }
}

impl NetSection {
    /// None for `lo`, which every node has.
    fn check(self) -> Result<Option<Net>, String> {
        if self.network.value == "lo" {
            return Ok(None);
        }
        let network = at(&self.network, parse_network(&self.network.value))?;
        let mut net = Net { network, ..Net::default() };
        for ni in self.interfaces {
            for name in ni.interfaces.unwrap_or_default().into_values() {
                let interface: Interface = at(&name, name.value.parse())?;
                net.interfaces.push(match (interface, ni.port) {
                    (Interface::Address(ip, None), port) => Interface::Address(ip, port),
                    (Interface::Name(_), Some(_)) => {
                        return at(&name, Err("a port needs the interface's address in place of its name".to_owned()));
                    }
                    (interface, _) => interface,
                });
            }
            if let Some(tunables) = ni.tunables {
                net.tunables = tunables.check()?;
            }
            for (name, value) in ni.driver.unwrap_or_default() {
                at(&value, set_driver(&mut net.tunables, &name, &value.value.0))?;
            }
        }
        Ok(Some(net))
    }
}

impl TunablesSection {
    fn check(self) -> Result<Tunables, String> {
        let number = |value: &Option<Spanned<u32>>| value.as_ref().map(|value| value.value);
        let tunables = Tunables {
            credits: number(&self.credits),
            peer_credits: number(&self.peer_credits),
            // Lustre's 0 means as many as the peer's credits, which is what a router begins with.
            peer_buffer_credits: number(&self.peer_buffer_credits).filter(|credits| *credits != 0),
            ..Tunables::default()
        };
        let places = [&self.credits, &self.peer_credits, &self.peer_buffer_credits];
        if let Some(place) = places.into_iter().flatten().next() {
            at(place, tunables.check())?;
        }
        let fixed = LnetOptions::default().peer_timeout.as_secs();
        if let Some(timeout) = self.peer_timeout.filter(|timeout| timeout.value != fixed) {
            return at(&timeout, Err(format!("peer_timeout is {fixed} and cannot be changed")));
        }
        Ok(tunables)
    }
}

impl RouteSection {
    fn check(self) -> Result<Route, String> {
        let hops = match self.hop {
            None | Some(-1) => None,
            Some(hop) => Some(at(&self.net, u8::try_from(hop).map_err(|_| format!("{hop} hops")))?),
        };
        let network = at(&self.net, self.net.value.parse().map_err(|e| format!("{e}")))?;
        let gateway = at(&self.gateway, self.gateway.value.parse().map_err(|e| format!("{e}")))?;
        Ok(Route { network, gateway, hops, priority: self.priority.unwrap_or(0) })
    }
}

impl PeerSection {
    fn check(self) -> Result<Peer, String> {
        let nids = self.nis.into_iter().map(|ni| ni.nid.value).collect();
        let asked = AskedPeer { primary: self.primary.value.clone(), nids };
        at(&self.primary, asked.check())
    }
}

impl UdspSection {
    fn check(self) -> Result<UdspRule, String> {
        // What `show` prints for a part that a rule does not have.
        let named = |text: &Option<Text>| text.as_ref().map(|text| text.value.clone()).filter(|text| text != "NA");
        let priority = self.priority.or(self.action.and_then(|action| action.priority));
        let (src, dst, rte) = (named(&self.src), named(&self.dst), named(&self.rte));
        let rule = AskedUdsp { src, dst, rte, priority, index: None }.check();
        match [&self.src, &self.dst, &self.rte].into_iter().flatten().next() {
            Some(place) => at(place, rule),
            None => rule,
        }
    }
}

impl RoutingPart {
    fn take(self, config: &mut NetworkConfig) -> Result<(), String> {
        let Buffers { tiny, small, large } = config.buffers;
        // Lustre's 0 means the usual size.
        let size = |of: Option<u32>, known: Option<u32>| of.filter(|size| *size != 0).or(known);
        config.buffers =
            Buffers { tiny: size(self.tiny, tiny), small: size(self.small, small), large: size(self.large, large) };
        if let Some(enable) = &self.enable {
            config.routing = match enable.value {
                0 => Some(false),
                // 3 is what Lustre shows where it passes messages on and has discovery.
                1 | 3 => Some(true),
                other => return at(enable, Err(format!("enable is 0 or 1, not {other}"))),
            };
        }
        Ok(())
    }
}

/// A line of `global`, checked. None for one that says how it is in any case.
pub(crate) fn check_setting(name: &str, value: &str) -> Result<Option<(String, String)>, String> {
    if let Some((_, fixed, why)) = FIXED.iter().find(|(fixed, ..)| *fixed == name) {
        return if *fixed == value { Ok(None) } else { Err(format!("{name} is {fixed}: {why}")) };
    }
    Settings::default().set(name, value)?;
    Ok(Some((name.to_owned(), value.to_owned())))
}

/// Settings of Lustre's that have one value here, and the reason.
pub(crate) const FIXED: &[(&str, &str, &str)] = &[("numa_range", "0", "memory and processors are not grouped")];

/// A line of `lnd tunables`.
fn set_driver(tunables: &mut Tunables, name: &str, value: &str) -> Result<(), String> {
    // Lustre shows `sock_timeout` by the name that it has for all drivers.
    if let Some(setting) = tunables.of_connections(if name == "timeout" { "sock_timeout" } else { name }) {
        *setting = Some(value.parse().map_err(|_| format!("{name}: {value:?} is not a number"))?);
        return tunables.check();
    }
    match name {
        "congestion_control" => {
            tunables.congestion_control = Some(value.to_owned());
            tunables.check()
        }
        "tos" if value == "-1" => Ok(()),
        "tos" => Err("tos is -1 and cannot be changed".to_owned()),
        other => {
            let known = Tunables::OF_CONNECTIONS.join(", ");
            Err(format!("lnd tunables have no {other}; they have {known}, congestion_control, timeout and tos"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "\
# of a router
net:
    - net type: lo
    - net type: tcp1
      local NI(s):
        - interfaces:
              0: eth0
          tunables:
              peer_timeout: 180
              peer_credits: 8
              peer_buffer_credits: 0
              credits: 256
          lnd tunables:
              conns_per_peer: 1
              tos: -1
    - net type: tcp2
      local NI(s):
      -     nid: 10.2.0.11:7001@tcp2
            status: up
            interfaces:
                  0: 10.2.0.11
            port: 7001
            statistics:
                  send_count: 8
route:
    - net: tcp3
      gateway: 10.2.0.13@tcp2
      hop: -1
      priority: 2
      state: up
      type: single-hop
routing:
    enable: 1
    tiny: 0
    small: 100
global:
    numa_range: 0
    drop_asym_route: true
    transaction_timeout: 150
    router_ping_timeout: 2.5
";

    #[test]
    fn a_file_says_networks_routes_and_settings() {
        let config = parse_lnet_conf(FULL).unwrap();
        let nets: Vec<_> = config.nets.iter().map(|n| (n.network.to_string(), n.interfaces[0].to_string())).collect();
        assert_eq!(nets, [("tcp1".to_owned(), "eth0".to_owned()), ("tcp2".to_owned(), "10.2.0.11:7001".to_owned())]);
        let tunables =
            Tunables { credits: Some(256), peer_credits: Some(8), conns_per_peer: Some(1), ..Tunables::default() };
        assert_eq!(config.nets[0].tunables, tunables);
        assert_eq!(config.routes, ["tcp3 :2 10.2.0.13@tcp2".parse().unwrap()]);
        assert_eq!((config.routing, config.buffers), (Some(true), Buffers { small: Some(100), ..Buffers::default() }));
        let setting = |name: &str| config.settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let named = ["drop_asym_route", "transaction_timeout", "router_ping_timeout", "numa_range"].map(setting);
        assert_eq!(named, [Some("1"), Some("150"), Some("2.5"), None]);
    }

    #[test]
    fn the_options_of_lnet_are_strings_in_it() {
        let config = parse_lnet_conf(
            "networks: \"tcp1(eth0),tcp2(eth1)\"\nroutes: |\n  tcp3 1:2 10.2.0.[11-12]@tcp2\n  tcp4 10.1.0.9@tcp1\n",
        );
        let config = config.unwrap();
        assert_eq!((config.nets.len(), config.routes.len()), (2, 3));
        let config = parse_lnet_conf("ip2nets: \"tcp1 10.1.*.*; tcp2(eth1) 10.2.*.*\"\n").unwrap();
        assert_eq!(config.rules.len(), 2);
        for nothing in ["", "\n# nothing\n", "---\n"] {
            assert_eq!(parse_lnet_conf(nothing), Ok(NetworkConfig::default()), "{nothing:?}");
        }
    }

    #[test]
    fn what_show_says_of_a_router_can_be_read_back() {
        let text = "routing:\n    - cpt[0]:\n          tiny:\n              npages: 0\n    - enable: 1\nbuffers:\n    tiny: 2048\n    \
                    small: 16384\n    large: 1024\n";
        let config = parse_lnet_conf(text).unwrap();
        let all = Buffers { tiny: Some(2048), small: Some(16_384), large: Some(1024) };
        assert_eq!((config.routing, config.buffers), (Some(true), all));
    }

    #[test]
    fn peers_and_rules_are_written_as_they_are_shown() {
        let text = "peer:\n-     primary nid: 10.1.0.1@tcp1\n      Multi-Rail: true\n      peer ni:\n      -     nid: 10.1.0.1@tcp1\n            \
                    state: up\n      -     nid: 10.2.0.1@tcp2\n-     primary nid: 10.1.0.9@tcp1\n      Multi-Rail: false\n      peer ni:\n      \
                    -     nid: 10.1.0.9@tcp1\nudsp:\n-     idx: 0\n      src: NA\n      dst: 10.2.0.[1-4]@tcp2\n      rte: NA\n      action:\n          \
                    priority: 3\nglobal:\n    discovery: 0\n";
        let config = parse_lnet_conf(text).unwrap();
        let nid = |text: &str| text.parse::<nacre_base::Nid>().unwrap();
        assert_eq!(config.peers, [Peer { primary: nid("10.1.0.1@tcp1"), others: vec![nid("10.2.0.1@tcp2")] }]);
        let rule = &config.udsp[0];
        assert_eq!((config.udsp.len(), rule.priority, rule.src.is_none()), (1, 3, true));
        assert!(rule.dst.as_ref().is_some_and(|dst| dst.includes(nid("10.2.0.4@tcp2"))));
        assert_eq!(config.settings, [("discovery".to_owned(), "0".to_owned())]);
        let written = lnet_conf_of(&config);
        assert_eq!(written["peer"][0]["peer ni"][1]["nid"], "10.2.0.1@tcp2");
        assert_eq!(written["udsp"][0]["dst"], "10.2.0.[1-4]@tcp2");
    }

    #[test]
    fn settings_of_connections_are_written_as_they_are_read() {
        let text = "net:\n  - net type: tcp1\n    local NI(s):\n      - interfaces: {0: eth0}\n        lnd tunables:\n          \
                    tx_buffer_size: 4194304\n          rx_buffer_size: 0\n          timeout: 40\n          keepalive_count: 3\n          \
                    congestion_control: bbr\n          tos: -1\n";
        let config = parse_lnet_conf(text).unwrap();
        let tunables = Tunables {
            tx_buffer_size: Some(4 << 20),
            rx_buffer_size: Some(0),
            sock_timeout: Some(40),
            keepalive_count: Some(3),
            congestion_control: Some("bbr".to_owned()),
            ..Tunables::default()
        };
        assert_eq!(config.nets[0].tunables, tunables);
        let written = lnet_conf_of(&config);
        assert_eq!(written["net"][0]["local NI(s)"][0]["lnd tunables"]["sock_timeout"], 40);
        assert_eq!(parse_lnet_conf(&written.to_string()), Ok(config), "JSON is YAML");
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, why) in [
            ("net:\n  - net type: tcp1\n    local NI(s):\n      - interfaces: {0: eth 0}\n", 4, "neither an interface"),
            ("net:\n  - net type: o2ib\n", 2, "no network o2ib"),
            ("route:\n  - net: tcp2\n    gatway: 10.0.0.1@tcp\n", 3, "gatway"),
            ("route:\n  - net: tcp2\n    gateway: here@tcp\n", 3, "here"),
            ("\nroutes: \"tcp2 10.0.0.1\"\n", 2, "GATEWAY"),
            ("global:\n  retry_count: 2\n  retry_cuont: 3\n", 3, "there is no setting retry_cuont"),
            ("global:\n  discovery: 2\n", 2, "\"2\" is not 0 or 1"),
            ("udsp:\n  - idx: 0\n    dst: eth0\n", 3, "neither a network"),
            ("global:\n  retry_count: many\n", 2, "\"many\" is not a number"),
            (
                "net:\n  - net type: tcp1\n    local NI(s):\n      - tunables: {peer_credits: 1025}\n",
                4,
                "peer_credits: 1025",
            ),
            (
                "net:\n  - net type: tcp1\n    local NI(s):\n      - lnd tunables: {conns_per_peer: 65}\n",
                4,
                "not a number from 0 to 64",
            ),
            (
                "net:\n  - net type: tcp1\n    local NI(s):\n      - lnd tunables: {tx_buffer_size: 1}\n",
                4,
                "not 0, nor a number from 4096",
            ),
            (
                "net:\n  - net type: tcp1\n    local NI(s):\n      - lnd tunables: {nagle: 1}\n",
                4,
                "lnd tunables have no nagle; they have conns_per_peer, tx_buffer_size,",
            ),
            ("routing: {enable: 2}\n", 1, "0 or 1"),
            ("peer:\n  - primary nid: 10.0.0.1@tcpip\n", 2, "10.0.0.1@tcpip"),
            ("net: [\n", 1, ""),
            ("nets: []\n", 1, "nets"),
        ] {
            let error = parse_lnet_conf(text).unwrap_err();
            let named = error.contains(&format!("line {line}")) || error.contains(&format!("{line}:"));
            assert!(named && error.contains(why), "{text:?}: {error}");
        }
    }
}
