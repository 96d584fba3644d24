//! The options `networks`, `ip2nets` and `routes` in Lustre's grammar. Pure: names of interfaces stay names here.

use super::patterns::{AddressPattern, expand};
use super::{Interface, Net};
use nacre_base::{Network, NetworkKind};
use nacre_lnet::Route;

/// A rule of `ip2nets`: a host with one of these addresses is on this network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetRule {
    /// The network. Without interfaces, the one with the address that the rule is about.
    pub net: Net,
    /// The addresses.
    pub addresses: Vec<AddressPattern>,
}

/// `tcp1(eth0),tcp2(eth1,eth2)`: the networks of a host.
pub fn parse_networks(text: &str) -> Result<Vec<Net>, String> {
    let mut nets: Vec<Net> = Vec::new();
    for part in split_outside_parentheses(text) {
        let net = parse_net(part)?;
        if nets.iter().any(|other| other.network == net.network) {
            return Err(format!("{} is named twice; several interfaces are {0}(eth0,eth1)", net.network));
        }
        nets.push(net);
    }
    if nets.is_empty() { Err("no network is named".to_owned()) } else { Ok(nets) }
}

/// `tcp1 10.1.*.[1-9]; tcp2(eth1) 10.2.0.*`: the networks of all hosts, by their addresses. Lines are rules, too, and `#` begins
/// a comment.
pub fn parse_ip2nets(text: &str) -> Result<Vec<NetRule>, String> {
    let mut rules = Vec::new();
    for line in text.split(['\n', ';']) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(net) = words.next() else { continue };
        let addresses = words.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(format!("{:?} names no addresses, such as tcp1 10.1.*.[1-9]", line.trim()));
        }
        rules.push(NetRule { net: parse_net(net)?, addresses });
    }
    if rules.is_empty() { Err("ip2nets has no rule".to_owned()) } else { Ok(rules) }
}

/// `tcp2 1:2 10.1.0.[11-12]@tcp1; tcp3 10.1.0.13@tcp1:5`: routes, each with hops and a priority before its gateways, or with a
/// priority behind a gateway.
pub fn parse_routes(text: &str) -> Result<Vec<Route>, String> {
    let mut routes: Vec<Route> = Vec::new();
    for line in text.split(['\n', ';']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        for route in parse_route_line(line).map_err(|why| format!("{line:?}: {why}"))? {
            if routes.iter().any(|other| (other.network, other.gateway) == (route.network, route.gateway)) {
                return Err(format!("the route to {} by {} is named twice", route.network, route.gateway));
            }
            routes.push(route);
        }
    }
    Ok(routes)
}

fn parse_route_line(line: &str) -> Result<Vec<Route>, String> {
    let usage = "a route is NETWORK [HOPS][:PRIORITY] GATEWAY..., such as tcp2 10.1.0.[11-12]@tcp1";
    let mut words = line.split_whitespace().peekable();
    let networks = expand(words.next().unwrap_or_default())?;
    let weight = words.next_if(|word| !word.contains('@')).unwrap_or_default();
    let mut routes = Vec::new();
    for word in words {
        let (gateways, priority) = gateway_and_priority(word);
        let weight = match (priority, weight.split_once(':')) {
            (None, _) => weight.to_owned(),
            (Some(priority), None) => format!("{weight}:{priority}"),
            (Some(_), Some(_)) => return Err("it has two priorities".to_owned()),
        };
        for gateway in expand(gateways)? {
            for network in &networks {
                routes.push(format!("{network} {weight} {gateway}").parse::<Route>().map_err(|e| e.to_string())?);
            }
        }
    }
    if routes.is_empty() { Err(usage.to_owned()) } else { Ok(routes) }
}

/// `10.1.0.11@tcp1:5`: a colon behind the network is followed by a priority.
fn gateway_and_priority(word: &str) -> (&str, Option<&str>) {
    let network = word.rfind('@').unwrap_or(0);
    match word[network..].find(':') {
        Some(colon) => (&word[..network + colon], Some(&word[network + colon + 1..])),
        None => (word, None),
    }
}

/// `tcp1` or `tcp1(eth0,eth1)`.
fn parse_net(text: &str) -> Result<Net, String> {
    let text = text.trim();
    let (network, interfaces) = match text.split_once('(') {
        None => (text, ""),
        Some((network, rest)) => {
            let inside = rest.strip_suffix(')').filter(|inside| !inside.trim().is_empty());
            (network, inside.ok_or_else(|| format!("{text:?} is not NETWORK(INTERFACE,...), such as tcp1(eth0)"))?)
        }
    };
    let network = parse_network(network)?;
    let interfaces = interfaces.split(',').filter(|_| !interfaces.is_empty());
    let interfaces = interfaces.map(|name| name.trim().parse()).collect::<Result<Vec<Interface>, _>>()?;
    Ok(Net { network, interfaces, ..Net::default() })
}

/// A network that a process can be on.
pub(super) fn parse_network(text: &str) -> Result<Network, String> {
    let network: Network = text.trim().parse().map_err(|e| format!("{e}"))?;
    if network.kind == NetworkKind::Tcp {
        Ok(network)
    } else {
        Err(format!("this version has no network {network}, only tcp ones"))
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .filter(|part| !part.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(nets: &[Net]) -> String {
        let of = |net: &Net| {
            let interfaces: Vec<String> = net.interfaces.iter().map(Interface::to_string).collect();
            format!("{}({})", net.network, interfaces.join(","))
        };
        nets.iter().map(of).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn networks_have_interfaces() {
        for (text, means) in [
            ("tcp", "tcp()"),
            ("tcp1(eth0),tcp2(eth1,eth2)", "tcp1(eth0) tcp2(eth1,eth2)"),
            (" tcp1( eth0 ) , tcp2 ", "tcp1(eth0) tcp2()"),
            ("tcp1(10.0.0.1),tcp2([2001:db8::1]:7001)", "tcp1(10.0.0.1) tcp2([2001:db8::1]:7001)"),
        ] {
            assert_eq!(parse_networks(text).map(|nets| shown(&nets)).as_deref(), Ok(means), "{text}");
        }
        for bad in ["", "eth0", "o2ib(ib0)", "tcp1()", "tcp1(eth0", "tcp1,tcp1(eth0)", "tcp1(eth 0)", "tcp1(eth0)x"] {
            assert!(parse_networks(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_choose_networks_by_address() {
        let rules = parse_ip2nets("tcp1 10.1.*.[1-9] 10.3.0.1; tcp2(eth1) 10.2.0.* # storage\n\ntcp3 *.*.*.*").unwrap();
        let shown: Vec<_> = rules.iter().map(|r| (shown(std::slice::from_ref(&r.net)), r.addresses.len())).collect();
        assert_eq!(shown, [("tcp1()".to_owned(), 2), ("tcp2(eth1)".to_owned(), 1), ("tcp3()".to_owned(), 1)]);
        assert_eq!(rules[0].addresses[0].to_string(), "10.1.*.[1-9]");
        for bad in ["", "tcp1", "tcp1 10.1.0", "10.1.0.1 tcp1", "tcp1(eth0 10.1.0.1"] {
            assert!(parse_ip2nets(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn routes_name_many_gateways_with_hops_and_priorities() {
        let of =
            |text: &str| parse_routes(text).map(|all| all.iter().map(Route::to_string).collect::<Vec<_>>().join("; "));
        for (text, means) in [
            ("", ""),
            ("tcp2 10.1.0.11@tcp1", "tcp2 :0 10.1.0.11@tcp1"),
            ("tcp2 1:2 10.1.0.[11-12]@tcp1", "tcp2 1:2 10.1.0.11@tcp1; tcp2 1:2 10.1.0.12@tcp1"),
            ("tcp2 2 10.1.0.11@tcp1:5 10.1.0.12@tcp1", "tcp2 2:5 10.1.0.11@tcp1; tcp2 2:0 10.1.0.12@tcp1"),
            ("tcp[2-3] 10.1.0.11:7001@tcp1", "tcp2 :0 10.1.0.11:7001@tcp1; tcp3 :0 10.1.0.11:7001@tcp1"),
            ("tcp2 10.1.0.1@tcp1;\n tcp3 10.1.0.1@tcp1", "tcp2 :0 10.1.0.1@tcp1; tcp3 :0 10.1.0.1@tcp1"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(means), "{text}");
        }
        for bad in ["tcp2", "tcp2 x 10.1.0.1@tcp1", "tcp2 1:2 10.1.0.1@tcp1:3", "tcp2 10.1.0.1", "tcp2 10.1.0.[1@tcp1"]
        {
            assert!(of(bad).is_err(), "{bad}");
        }
        let twice = of("tcp2 10.1.0.[11-12]@tcp1; tcp2 10.1.0.12@tcp1").unwrap_err();
        assert_eq!(twice, "the route to tcp2 by 10.1.0.12@tcp1 is named twice");
    }
}
