//! Changes of the network of a running process: interfaces that come and go, credits, settings, and the whole of an lnet.conf.

use super::lnet_conf::FIXED;
use super::peers::Peer;
use super::{HostAddress, Net, NetworkConfig, Tunables, addresses, parse_lnet_conf};
use crate::listen::Listen;
use crate::routing::{self, Buffers, Refusal};
use nacre_base::{Errno, Network, Nid};
use nacre_lnet::{Lnet, LnetError, RemoveError, Route, RouteError, RouterOptions, TcpListen, TcpTunables, UdspRule};
use nacre_node::Node;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// One part of a configuration, after an attempt to carry it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The part, such as `net tcp2 at 10.2.0.5:988`.
    pub what: String,
    /// The result of the attempt.
    pub outcome: Outcome,
}

/// Result for a part of a configuration, or the result that it would have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The change was made, or would be.
    Done,
    /// It is so already.
    Already,
    /// It does not concern this process.
    Elsewhere(String),
    /// It was refused.
    Refused(String),
}

/// The use that is made of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Says what adding would do.
    CheckAdd,
    /// Adds what is not there.
    Add,
    /// Says what removing would do.
    CheckRemove,
    /// Removes networks and routes.
    Remove,
}

/// Adds an interface.
pub(crate) async fn add_net(node: &Node, net: &Net, port: u16) -> Result<Value, Refusal> {
    let config = NetworkConfig { nets: vec![net.clone()], ..NetworkConfig::default() };
    let invalid = |why| (Errno::EINVAL, why);
    check_tunables(&net.tunables)?;
    if net.tunables.peer_buffer_credits.is_some() && node.lnet().routing().is_none() {
        return Err(invalid("peer_buffer_credits: this process is no router".to_owned()));
    }
    let mut added = Vec::new();
    for listen in config.listens(&addresses::of_this_host(), port).map_err(invalid)? {
        if own_nid(node.lnet(), &listen).is_some() {
            return Err((
                Errno::EEXIST,
                format!("this process is on {} at {} already", listen.network, listen.at.ip()),
            ));
        }
        added.push(listen_at(node.lnet(), &listen).await?.to_string());
    }
    set_tunables(node.lnet(), net.network, &net.tunables)?;
    Ok(json!(added))
}

async fn listen_at(lnet: &Lnet, listen: &Listen) -> Result<Nid, Refusal> {
    let tcp = TcpListen { address: listen.at.ip(), port: listen.at.port(), network: listen.network };
    lnet.add_tcp(tcp).await.map_err(|e: LnetError| (e.errno(), format!("{}: {e}", listen.at)))
}

/// The node's NID on a network at an address, whatever its port is.
fn own_nid(lnet: &Lnet, listen: &Listen) -> Option<Nid> {
    let is_there = |nid: &Nid| nid.network == listen.network && nid.ip() == listen.at.ip();
    lnet.nids().into_iter().filter(|nid| nid.network.has_ip()).find(is_there)
}

/// Removes the interfaces of a network, or those of them with some address.
pub(crate) async fn remove_net(node: &Node, net: &Net) -> Result<Value, Refusal> {
    let lnet = node.lnet();
    let wanted = if net.interfaces.is_empty() {
        None
    } else {
        let config = NetworkConfig { nets: vec![net.clone()], ..NetworkConfig::default() };
        Some(config.listens(&addresses::of_this_host(), 0).map_err(|why| (Errno::EINVAL, why))?)
    };
    let is_wanted = |nid: &Nid| wanted.as_ref().is_none_or(|all| all.iter().any(|listen| listen.at.ip() == nid.ip()));
    let nids: Vec<Nid> = lnet.nids().into_iter().filter(|nid| nid.network == net.network && is_wanted(nid)).collect();
    if nids.is_empty() {
        return Err((Errno::ENOENT, format!("this process has no such interface on {}", net.network)));
    }
    for nid in &nids {
        lnet.remove_interface(*nid).await.map_err(remove_refused)?;
    }
    Ok(json!(nids.iter().map(Nid::to_string).collect::<Vec<_>>()))
}

fn remove_refused(e: RemoveError) -> Refusal {
    match e {
        RemoveError::Missing(_) => (Errno::ENOENT, e.to_string()),
        RemoveError::Primary(_) => (Errno::EBUSY, format!("{e}: stop the process to leave that network")),
        RemoveError::Route(..) => (Errno::EBUSY, format!("{e}: remove the route first")),
    }
}

/// Changes credits of a network, or of the one that has an own NID.
pub(crate) fn set_net(node: &Node, network: Option<&str>, nid: Option<&str>, new: Tunables) -> Result<Value, Refusal> {
    let lnet = node.lnet();
    let invalid = |e: String| (Errno::EINVAL, e);
    check_tunables(&new)?;
    let network = match (network, nid) {
        (Some(network), _) => network.parse::<Network>().map_err(|e| invalid(e.to_string()))?,
        (None, Some(nid)) => {
            let nid: Nid = nid.parse().map_err(|e| invalid(format!("{e}")))?;
            let own = lnet.nids().into_iter().find(|own| *own == nid);
            own.ok_or_else(|| (Errno::ENOENT, format!("{nid} is no NID of this process")))?.network
        }
        (None, None) => return Err(invalid("a network or a NID is needed".to_owned())),
    };
    set_tunables(lnet, network, &new)?;
    Ok(Value::Null)
}

/// Checks numbers and names, and whether this host's kernel knows the names.
fn check_tunables(tunables: &Tunables) -> Result<(), Refusal> {
    let mut tcp = TcpTunables::default();
    tunables.apply(&mut tcp);
    let checked = tunables.check().and_then(|()| Lnet::check_tcp(&tcp).map_err(|e| e.to_string()));
    checked.map_err(|why| (Errno::EINVAL, why))
}

fn set_tunables(lnet: &Lnet, network: Network, tunables: &Tunables) -> Result<(), Refusal> {
    if !lnet.nids().iter().any(|nid| nid.network == network) {
        return Err((Errno::ENOENT, format!("this process is not on {network}")));
    }
    // Those that can be refused come first, so that a refusal changes nothing.
    if tunables.peer_buffer_credits.is_some() && lnet.routing().is_none() {
        return Err((Errno::EINVAL, "peer_buffer_credits: this process is no router".to_owned()));
    }
    lnet.tune_tcp(network, |tcp| tunables.apply(tcp)).map_err(|e| (Errno::EINVAL, e.to_string()))?;
    if let Some(credits) = tunables.peer_buffer_credits {
        lnet.set_peer_buffer_credits(network, credits);
    }
    if let Some(credits) = tunables.credits {
        lnet.set_credits(network, credits);
    }
    if let Some(credits) = tunables.peer_credits {
        lnet.set_peer_credits(network, credits);
    }
    Ok(())
}

/// The settings, as `lnetctl global show` prints them.
pub(crate) fn describe_settings(lnet: &Lnet) -> Value {
    let number = |value: f64| if value.fract() == 0.0 { json!(value as u64) } else { json!(value) };
    let fixed =
        FIXED.iter().filter_map(|(name, value, _)| Some(((*name).to_owned(), json!(value.parse::<u64>().ok()?))));
    let settings = lnet.settings().values().into_iter().map(|(name, value)| (name.to_owned(), number(value)));
    Value::Object(fixed.chain(settings).collect::<Map<_, _>>())
}

/// Changes a setting.
pub(crate) fn change_setting(lnet: &Lnet, name: &str, value: &str) -> Result<Value, Refusal> {
    let refused = |why| (Errno::EINVAL, why);
    if super::lnet_conf::check_setting(name, value).map_err(refused)?.is_some() {
        let mut settings = lnet.settings();
        settings.set(name, value).map_err(refused)?;
        lnet.change_settings(settings);
    }
    Ok(Value::Null)
}

/// Carries out what the text of an lnet.conf says, or says what that would do.
pub(crate) async fn configure(node: &Node, port: u16, text: &str, task: Task) -> Result<Vec<Part>, Refusal> {
    let config = parse_lnet_conf(text).map_err(|why| (Errno::EINVAL, why))?;
    let host = addresses::of_this_host();
    let listens = config.listens(&host, port).map_err(|why| (Errno::EINVAL, why))?;
    match task {
        Task::CheckAdd | Task::Add => Ok(add_all(node, &config, &host, &listens, task == Task::Add).await),
        Task::CheckRemove | Task::Remove => Ok(remove_all(node, &config, &listens, task == Task::Remove).await),
    }
}

fn part(what: impl std::fmt::Display, outcome: Outcome) -> Part {
    Part { what: what.to_string(), outcome }
}

fn of_result<T>(result: Result<T, Refusal>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err((_, why)) => Outcome::Refused(why),
    }
}

async fn add_all(
    node: &Node,
    config: &NetworkConfig,
    host: &[HostAddress],
    listens: &[Listen],
    act: bool,
) -> Vec<Part> {
    let lnet = node.lnet();
    let mut parts = Vec::new();
    for listen in listens {
        let outcome = match (own_nid(lnet, listen).is_some(), act) {
            (true, _) => Outcome::Already,
            (false, false) => Outcome::Done,
            (false, true) => of_result(listen_at(lnet, listen).await),
        };
        parts.push(part(format!("net {} at {}", listen.network, listen.at), outcome));
    }
    let mut networks: Vec<Network> = lnet.nids().iter().map(|nid| nid.network).collect();
    networks.extend(listens.iter().map(|listen| listen.network));
    for (name, value) in &config.settings {
        let mut changed = lnet.settings();
        let outcome = match changed.set(name, value) {
            Err(why) => Outcome::Refused(why),
            Ok(()) if changed == lnet.settings() => Outcome::Already,
            Ok(()) => {
                if act {
                    lnet.change_settings(changed);
                }
                Outcome::Done
            }
        };
        parts.push(part(format!("{name} {value}"), outcome));
    }
    for route in &config.routes {
        parts.push(part(format!("route {route}"), add_route(lnet, route, &networks, act)));
    }
    for peer in &config.peers {
        parts.push(part(format!("peer {}", peer.primary), add_peer(lnet, peer, act)));
    }
    for rule in &config.udsp {
        let outcome = match lnet.udsp().contains(rule) {
            true => Outcome::Already,
            false if !act => Outcome::Done,
            false => {
                lnet.add_udsp(rule.clone(), None).map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done)
            }
        };
        parts.push(part(describe_rule_in_words(rule), outcome));
    }
    parts.extend(add_routing(node, config, &networks, act).await);
    for net in config.nets_on(host).iter().filter(|net| net.tunables != Tunables::default()) {
        let is_router = lnet.routing().is_some() || config.routing == Some(true);
        let outcome = if act {
            of_result(set_tunables(lnet, net.network, &net.tunables))
        } else if net.tunables.peer_buffer_credits.is_some() && !is_router {
            Outcome::Refused("peer_buffer_credits: this process is no router".to_owned())
        } else {
            of_result(check_tunables(&net.tunables))
        };
        parts.push(part(format!("tunables of {}", net.network), outcome));
    }
    parts
}

fn add_route(lnet: &Lnet, route: &Route, networks: &[Network], act: bool) -> Outcome {
    let is_there = |status: &nacre_lnet::RouteStatus| {
        (status.route.network, status.route.gateway) == (route.network, route.gateway)
    };
    if let Some(known) = lnet.routes().into_iter().find(is_there) {
        return match known.route == *route {
            true => Outcome::Already,
            false => Outcome::Refused(format!("there is the route {}: remove it first", known.route)),
        };
    }
    match route.check_for(networks, &lnet.nids()) {
        Err(e @ RouteError::Hops(_)) => Outcome::Refused(e.to_string()),
        Err(e) => Outcome::Elsewhere(e.to_string()),
        Ok(()) if !act => Outcome::Done,
        Ok(()) => lnet.add_route(*route).map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done),
    }
}

fn add_peer(lnet: &Lnet, peer: &Peer, act: bool) -> Outcome {
    let nids = || std::iter::once(&peer.primary).chain(&peer.others);
    if nids().any(|nid| lnet.is_local(*nid)) {
        return Outcome::Elsewhere("it is this process itself".to_owned());
    }
    let known = lnet.peers_with_nids().into_iter().find(|known| known.is_configured && known.primary == peer.primary);
    let has = |nid: &Nid| known.as_ref().is_some_and(|known| known.nids.iter().any(|(other, _)| other == nid));
    match nids().all(has) {
        true => Outcome::Already,
        false if !act => Outcome::Done,
        false => lnet
            .add_peer(peer.primary, &peer.others)
            .map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done),
    }
}

/// `udsp src tcp1 dst tcp2 priority 0`.
fn describe_rule_in_words(rule: &UdspRule) -> String {
    let sets = [("src", &rule.src), ("dst", &rule.dst), ("rte", &rule.rte)];
    let named = sets.iter().filter_map(|(name, set)| set.as_ref().map(|set| format!(" {name} {set}")));
    format!("udsp{} priority {}", named.collect::<String>(), rule.priority)
}

async fn add_routing(node: &Node, config: &NetworkConfig, networks: &[Network], act: bool) -> Vec<Part> {
    let lnet = node.lnet();
    let is_on = || lnet.routing().is_some_and(|status| status.enabled);
    let mut parts = Vec::new();
    if let Some(enable) = config.routing {
        let outcome = match enable {
            _ if enable == is_on() => Outcome::Already,
            true if networks.iter().all(|network| *network == networks[0]) => {
                Outcome::Elsewhere("this process is on one network only".to_owned())
            }
            _ if !act => Outcome::Done,
            _ => of_result(routing::enable(node, enable).await),
        };
        parts.push(part(format!("routing {}", u8::from(enable)), outcome));
    }
    if config.buffers != Buffers::default() {
        let outcome = match lnet.routing() {
            None if config.routing != Some(true) => Outcome::Elsewhere("this process is no router".to_owned()),
            None if !act => of_check(config.buffers.of(RouterOptions::default()).check()),
            Some(status) if !act => of_check(config.buffers.of(status.options).check()),
            _ => of_result(routing::resize(lnet, config.buffers)),
        };
        parts.push(part("buffers", outcome));
    }
    parts
}

fn of_check(result: Result<(), String>) -> Outcome {
    result.map_or_else(Outcome::Refused, |()| Outcome::Done)
}

async fn remove_all(node: &Node, config: &NetworkConfig, listens: &[Listen], act: bool) -> Vec<Part> {
    let lnet = node.lnet();
    let mut parts = Vec::new();
    let absent = || Outcome::Elsewhere("it is not there".to_owned());
    for route in &config.routes {
        let is_there =
            lnet.routes().iter().any(|s| (s.route.network, s.route.gateway) == (route.network, route.gateway));
        let outcome = match (is_there, act) {
            (false, _) => absent(),
            (true, false) => Outcome::Done,
            (true, true) => lnet
                .remove_route(route.network, route.gateway)
                .map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done),
        };
        parts.push(part(format!("route {route}"), outcome));
    }
    for peer in &config.peers {
        let is_there = lnet.peers_with_nids().iter().any(|known| known.primary == peer.primary);
        let outcome = match (is_there, act) {
            (false, _) => absent(),
            (true, false) => Outcome::Done,
            (true, true) => {
                lnet.remove_peer(peer.primary, &[]).map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done)
            }
        };
        parts.push(part(format!("peer {}", peer.primary), outcome));
    }
    for rule in &config.udsp {
        let index = lnet.udsp().iter().position(|known| known == rule);
        let outcome = match (index, act) {
            (None, _) => absent(),
            (Some(_), false) => Outcome::Done,
            (index, true) => {
                lnet.remove_udsp(index).map_or_else(|e| Outcome::Refused(e.to_string()), |()| Outcome::Done)
            }
        };
        parts.push(part(describe_rule_in_words(rule), outcome));
    }
    for listen in listens {
        let outcome = match own_nid(lnet, listen) {
            None => absent(),
            Some(nid) if lnet.nids().first() == Some(&nid) => {
                Outcome::Refused(remove_refused(RemoveError::Primary(nid)).1)
            }
            Some(_) if !act => Outcome::Done,
            Some(nid) => of_result(lnet.remove_interface(nid).await.map_err(remove_refused)),
        };
        parts.push(part(format!("net {} at {}", listen.network, listen.at.ip()), outcome));
    }
    parts
}
