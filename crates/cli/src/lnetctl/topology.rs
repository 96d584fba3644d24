//! `lnetctl topology check`: what a topology.toml makes of a site.

use super::given::Given;
use super::printed::aligned;
use super::yaml::to_yaml;
use crate::output::{fail, json};
use nacre_process::network::topology::{Choice, Role, Topology};
use nacre_process::network::{AddressPattern, lnet_conf_of};
use serde_json::{Value, json};
use std::net::{IpAddr, ToSocketAddrs};
use std::process::ExitCode;

/// Runs the command.
pub(super) fn check(args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[(' ', "for")], &[]) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let [file] = given.operands.as_slice() else { return fail("lnetctl", "topology check: one FILE is needed", 1) };
    match outcome(file, given.get("for")) {
        Ok((value, _)) if given.as_json() => json(&value),
        Ok((_, text)) => print!("{text}"),
        Err(why) => return fail("lnetctl", format!("{file}: {why}"), 1),
    }
    ExitCode::SUCCESS
}

fn outcome(file: &str, host: Option<&str>) -> Result<(Value, String), String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    let topology = Topology::parse(&text)?;
    let Some(host) = host else { return Ok((describe(&topology), table(&topology))) };
    let role = topology.role_of(&addresses_of(host)?)?;
    let value = lnet_conf_of(&topology.config_of(&role));
    let text = format!("# lnet.conf of {host}, {}\n{}", name_of(&topology, &role), to_yaml(&value));
    Ok((value, text))
}

/// An address, the address in a NID, or those of a host's name.
fn addresses_of(host: &str) -> Result<Vec<IpAddr>, String> {
    let address = host.split('@').next().unwrap_or_default();
    if let Some((ip, _)) = nacre_base::nid::parse_address(address) {
        return Ok(vec![ip]);
    }
    let found = (host, 0).to_socket_addrs().map_err(|e| format!("{host}: {e}"))?;
    let mut all: Vec<IpAddr> = found.map(|socket| socket.ip()).collect();
    all.dedup();
    Ok(all)
}

fn name_of(topology: &Topology, role: &Role) -> String {
    let group = |index: &usize| topology.groups[*index].name.as_str();
    match role {
        Role::Router(_) => "a router".to_owned(),
        Role::Server(own, _) => format!("a server of group {}", group(own)),
        Role::Client(near, _) => format!("a client of {}", near.iter().map(group).collect::<Vec<_>>().join(" and ")),
    }
}

/// A row of the second table: who reaches whom, and by which gateways.
struct Way {
    from: String,
    to: String,
    choice: Choice,
}

fn ways(topology: &Topology) -> Vec<Way> {
    let mut all = Vec::new();
    for (near, from) in topology.groups.iter().enumerate().filter(|(_, group)| !group.clients.is_empty()) {
        for (index, to) in topology.groups.iter().enumerate().filter(|(_, group)| !group.servers.is_empty()) {
            let (from, to) = (format!("clients of {}", from.name), format!("servers of {} ({})", to.name, to.network));
            all.push(Way { from, to, choice: topology.to_servers(&[near], index) });
        }
    }
    for (index, from) in topology.groups.iter().enumerate().filter(|(_, group)| !group.servers.is_empty()) {
        let (from, to) = (format!("servers of {}", from.name), format!("clients ({})", topology.clients));
        all.push(Way { from, to, choice: topology.to_clients(index) });
    }
    all
}

fn describe(topology: &Topology) -> Value {
    let text = |all: &[AddressPattern]| all.iter().map(AddressPattern::to_string).collect::<Vec<_>>();
    let groups = topology.groups.iter().map(|group| {
        let router = |r: &nacre_process::network::topology::RouterAddresses| {
            [r.near_clients.to_string(), r.near_servers.to_string()]
        };
        json!({"group": group.name, "net": group.network.to_string(), "servers": text(&group.servers),
            "routers": group.routers.iter().map(router).collect::<Vec<_>>(), "clients": text(&group.clients)})
    });
    let ways = ways(topology).into_iter().map(|Way { from, to, choice }| {
        let gateway =
            |(priority, nid): &(u32, nacre_base::Nid)| json!({"priority": priority, "gateway": nid.to_string()});
        json!({"from": from, "to": to, "gateways": choice.iter().map(gateway).collect::<Vec<_>>()})
    });
    json!({"clients": topology.clients.to_string(), "groups": groups.collect::<Vec<_>>(), "ways": ways.collect::<Vec<_>>()})
}

fn table(topology: &Topology) -> String {
    let list = |all: &[AddressPattern]| all.iter().map(AddressPattern::to_string).collect::<Vec<_>>().join(" ");
    let heads = ["group", "net", "servers", "routers", "clients"].map(str::to_owned);
    let group = |group: &nacre_process::network::topology::Group| {
        let router =
            |r: &nacre_process::network::topology::RouterAddresses| format!("{}/{}", r.near_clients, r.near_servers);
        let routers = group.routers.iter().map(router).collect::<Vec<_>>().join(" ");
        [group.name.clone(), group.network.to_string(), list(&group.servers), routers, list(&group.clients)]
    };
    let groups: Vec<_> = std::iter::once(heads).chain(topology.groups.iter().map(group)).collect();
    let heads = ["from", "to", "gateways by priority"].map(str::to_owned);
    let way = |Way { from, to, choice }: Way| [from, to, by_priority(&choice)];
    let ways: Vec<_> = std::iter::once(heads).chain(ways(topology).into_iter().map(way)).collect();
    format!("{}\n{}", aligned(&groups), aligned(&ways))
}

/// `0: 10.1.0.11@tcp1, 10.1.0.12@tcp1; 2: 10.1.0.13@tcp1`
fn by_priority(choice: &Choice) -> String {
    let mut text = String::new();
    let mut last = None;
    for (priority, gateway) in choice {
        match last {
            Some(same) if same == priority => text += &format!(", {gateway}"),
            None => text += &format!("{priority}: {gateway}"),
            Some(_) => text += &format!("; {priority}: {gateway}"),
        }
        last = Some(priority);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_process::network::parse_lnet_conf;

    const SITE: &str = "clients = \"tcp1\"\nservers = \"tcp2\"\n\
        [[group]]\nname = \"left\"\nclients = [\"10.1.0.2*\"]\nrouters = [[\"10.1.0.11\", \"10.2.0.11\"]]\nservers = [\"10.2.0.1\"]\n\
        [[group]]\nname = \"right\"\nrouters = [[\"10.1.0.12\", \"10.2.0.12\"]]\nservers = [\"10.2.0.2\"]\n";

    fn site() -> Topology {
        Topology::parse(&SITE.replace("10.1.0.2*", "10.1.0.[20-29]")).unwrap()
    }

    #[test]
    fn the_tables_say_who_reaches_whom_and_how() {
        let want = "\
group  net   servers   routers              clients
left   tcp2  10.2.0.1  10.1.0.11/10.2.0.11  10.1.0.[20-29]
right  tcp3  10.2.0.2  10.1.0.12/10.2.0.12

from              to                       gateways by priority
clients of left   servers of left (tcp2)   0: 10.1.0.11@tcp1; 3: 10.1.0.12@tcp1
clients of left   servers of right (tcp3)  1: 10.1.0.12@tcp1; 2: 10.1.0.11@tcp1
servers of left   clients (tcp1)           0: 10.2.0.11@tcp2; 2: 10.2.0.12@tcp2
servers of right  clients (tcp1)           0: 10.2.0.12:989@tcp3; 2: 10.2.0.11:989@tcp3
";
        assert_eq!(table(&site()), want);
        assert_eq!(describe(&site())["ways"][0]["gateways"][1], json!({"priority": 3, "gateway": "10.1.0.12@tcp1"}));
    }

    #[test]
    fn the_lnet_conf_of_a_host_is_read_back_as_it_was_meant() {
        for host in ["10.1.0.11@tcp1", "10.2.0.2", "10.1.0.25"] {
            let topology = site();
            let config = topology.config_of(&topology.role_of(&addresses_of(host).unwrap()).unwrap());
            let text = to_yaml(&lnet_conf_of(&config));
            assert_eq!(parse_lnet_conf(&text), Ok(config), "{text}");
        }
    }
}
