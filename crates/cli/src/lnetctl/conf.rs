//! `lnetctl export`, `import` and `lnet configure`: the whole configuration of running processes at once.

use super::given::Given;
use super::host::{Host, refuse};
use super::printed::{joined, keep, once, show as print};
use super::yaml::to_yaml;
use super::{net, settings, udsp};
use crate::network::LNET_CONF;
use crate::output::{fail, json as print_json};
use nacre_base::{Errno, Nid};
use nacre_process::admin::{Answer, Request};
use nacre_process::network::live::{Outcome, Part, Task};
use nacre_process::network::{HOST_DEFAULT, parse_lnet_conf};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// `export [--backup]`.
pub(super) fn export(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[], &[(' ', "backup")]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    print(given.as_json(), if given.has("backup") { backup(host) } else { everything(host) })
}

fn everything(host: &Host) -> Result<Value, ExitCode> {
    let routes = json!({ "route": once(host.gather(&Request::Routes)?) });
    let peers = net::peers(host, None, true)?;
    let rules = udsp::rules(host)?;
    let rules = if rules.is_empty() { json!({}) } else { json!({ "udsp": rules }) };
    Ok(joined([net::of_host(host, None, true)?, routes, peers, rules, settings::global(host)?]))
}

/// The parts of a configuration with which `import` would give a process the network that it has now.
fn backup(host: &Host) -> Result<Value, ExitCode> {
    if host.sockets()?.len() > 1 {
        let why = "several processes run on this host, and each has networks of its own: name one with --process";
        return Err(fail("lnetctl", format!("export --backup: {why}"), 1));
    }
    let mut nets = net::of_host(host, None, true)?;
    let all = nets["net"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let nets: Vec<Value> = all.into_iter().filter(|net| net["net type"] != "lo").map(bare_net).collect();
    let mut routes = host.gather(&Request::Routes)?;
    routes.iter_mut().for_each(|route| keep(route, &["net", "gateway", "hop", "priority"]));
    let mut sections = Map::new();
    let peers = configured_peers(host.gather(&Request::Peers)?);
    for (name, list) in [("net", nets), ("route", routes), ("peer", peers), ("udsp", udsp::rules(host)?)] {
        if !list.is_empty() {
            sections.insert(name.to_owned(), Value::Array(list));
        }
    }
    for router in host.gather(&Request::Routing)?.iter().filter(|router| !router.is_null()) {
        let size = |pool: &str| router["pools"][pool]["nbuffers"].clone();
        sections.insert("routing".to_owned(), json!({ "enable": router["enable"] }));
        let buffers = json!({"tiny": size("tiny"), "small": size("small"), "large": size("large")});
        sections.insert("buffers".to_owned(), buffers);
    }
    Ok(joined([Value::Object(sections), settings::global(host)?]))
}

/// The peers that an administrator has named: the others are found again.
fn configured_peers(mut peers: Vec<Value>) -> Vec<Value> {
    peers.retain(|peer| peer["configured"] == true);
    for peer in &mut peers {
        keep(peer, &["primary nid", "Multi-Rail", "peer ni"]);
        let mut nis = peer["peer ni"].as_array_mut().map(std::mem::take).unwrap_or_default();
        nis.iter_mut().for_each(|ni| keep(ni, &["nid"]));
        peer["peer ni"] = once(nis).into();
    }
    peers
}

/// A network without what only `show` says.
fn bare_net(mut net: Value) -> Value {
    for ni in net["local NI(s)"].as_array_mut().into_iter().flatten() {
        let port = ni["nid"].as_str().and_then(|nid| nid.parse::<Nid>().ok()).map_or(0, |nid| nid.port);
        let driver = driver_settings(&ni["lnd tunables"]);
        keep(ni, &["interfaces", "tunables"]);
        if !driver.is_empty() {
            ni["lnd tunables"] = driver.into();
        }
        if port != 0 {
            ni["port"] = port.into();
        }
        if let Some(tunables) = ni["tunables"].as_object_mut() {
            let is_fixed = tunables.get("peer_credits") == tunables.get("peer_credits_max");
            tunables.retain(|name, value| match name.as_str() {
                "credits" => true,
                "peer_buffer_credits" => *value != 0,
                // Credits that grow would be fixed by a number.
                "peer_credits" => is_fixed,
                _ => false,
            });
        }
    }
    net
}

/// Settings of a driver that an administrator has made. The driver chooses the others again.
fn driver_settings(shown: &Value) -> Map<String, Value> {
    let is_fixed = shown["conns_per_peer_fixed"] == true;
    let mut settings = shown.as_object().cloned().unwrap_or_default();
    settings.retain(|name, value| match name.as_str() {
        "conns_per_peer" => is_fixed,
        "conns_per_peer_fixed" | "timeout" => false,
        _ => *value != 0 && *value != HOST_DEFAULT,
    });
    settings
}

/// `import [--add|--del|--show] FILE`.
pub(super) fn import(host: &Host, args: &[String]) -> ExitCode {
    let flags = [('a', "add"), ('d', "del"), ('s', "show")];
    let given = match Given::parse(args, &[], &flags) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let [file] = given.operands.as_slice() else {
        return fail("lnetctl", "import: one FILE is needed, or - for standard input", 1);
    };
    let text = match *file {
        "-" => std::io::read_to_string(std::io::stdin()),
        file => std::fs::read_to_string(file),
    };
    let text = match text {
        Ok(text) => text,
        Err(e) => return fail("lnetctl", format!("import: {file}: {e}"), 2),
    };
    let way = match (given.has("del"), given.has("show")) {
        (false, false) => Way { check: Task::CheckAdd, act: Some(Task::Add) },
        (true, false) => Way { check: Task::CheckRemove, act: Some(Task::Remove) },
        (false, true) => Way { check: Task::CheckAdd, act: None },
        (true, true) => return fail("lnetctl", "import: --del and --show exclude each other", 1),
    };
    carry_out(host, file, &text, &way, given.as_json())
}

/// `lnet configure`.
pub(super) fn configure(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[(' ', "lnet-conf")], &[('a', "all")]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let file = given.get("lnet-conf").unwrap_or(LNET_CONF);
    match std::fs::read_to_string(file) {
        Ok(text) => carry_out(host, file, &text, &Way { check: Task::CheckAdd, act: Some(Task::Add) }, given.as_json()),
        // A process has its network from its start: without a file there is nothing to add.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !given.has("lnet-conf") => {
            host.sockets().map_or_else(|code| code, |_| ExitCode::SUCCESS)
        }
        Err(e) => fail("lnetctl", format!("lnet configure: {file}: {e}"), 2),
    }
}

/// `lnet unconfigure`: every process needs its network for as long as it runs.
pub(super) fn unconfigure(host: &Host) -> ExitCode {
    match host.sockets() {
        Ok(_) => {
            let why = "each process has a network for as long as it runs: unmount, stop the servers and routers";
            refuse("unconfigure", "lnet", Errno::EBUSY.0, why)
        }
        Err(code) => code,
    }
}

/// Carries a file out in two rounds: every process says what would become of each part, and only if no part is refused does
/// any of them change.
struct Way {
    check: Task,
    act: Option<Task>,
}

fn carry_out(host: &Host, file: &str, text: &str, way: &Way, as_json: bool) -> ExitCode {
    if let Err(why) = parse_lnet_conf(text) {
        return fail("lnetctl", format!("{file}: {why}"), 1);
    }
    let checked = match ask(host, text, way.check) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    let refused = refusals(&checked);
    if let Some(task) = way.act {
        if !refused.is_empty() {
            refused.iter().for_each(|why| eprintln!("lnetctl: {file}: {why}"));
            return fail("lnetctl", format!("{file}: nothing was changed"), 1);
        }
        let failed = match ask(host, text, task) {
            Ok(parts) => refusals(&parts),
            Err(code) => return code,
        };
        failed.iter().for_each(|why| eprintln!("lnetctl: {file}: {why}"));
        return if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let value =
        json!({ "import": checked.iter().flat_map(|(process, parts)| described(process, parts)).collect::<Vec<_>>() });
    if as_json {
        print_json(&value)
    } else {
        print!("{}", to_yaml(&value))
    }
    if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The outcome of each part in each process. All processes name the same parts in the same order, except that what is added at
/// any port is not a part of those that have it.
fn ask(host: &Host, text: &str, task: Task) -> Result<Vec<(String, Vec<Part>)>, ExitCode> {
    let mut all = Vec::new();
    for (process, answer) in host.ask(&Request::Configure { text: text.to_owned(), task })? {
        match answer {
            Answer::Parts(parts) => all.push((process, parts)),
            Answer::Error { text, .. } => return Err(fail("lnetctl", format!("{process}: {text}"), 1)),
            _ => {}
        }
    }
    Ok(all)
}

/// Why parts cannot be done: no process takes them, or several would listen at the same address.
fn refusals(all: &[(String, Vec<Part>)]) -> Vec<String> {
    let mut names: Vec<&str> = all.iter().flat_map(|(_, parts)| parts.iter().map(|part| part.what.as_str())).collect();
    names.sort();
    names.dedup();
    let mut refused = Vec::new();
    for name in names {
        let of = |(process, parts): &(String, Vec<Part>)| {
            let part = parts.iter().find(|part| part.what == name)?;
            Some((process.clone(), part.outcome.clone()))
        };
        let outcomes: Vec<(String, Outcome)> = all.iter().filter_map(of).collect();
        let takers: Vec<&str> = outcomes
            .iter()
            .filter(|(_, outcome)| *outcome == Outcome::Done)
            .map(|(process, _)| process.as_str())
            .collect();
        if name.starts_with("net ") && takers.len() > 1 && !name.ends_with(":0") {
            let why = "cannot all listen there: name one with --process";
            refused.push(format!("{name}: {} {why}", takers.join(", ")));
        } else if let Some(why) = refusal(&outcomes) {
            refused.push(format!("{name}: {why}"));
        }
    }
    refused
}

/// The reason of the process that says most, if none does it or has it.
fn refusal(outcomes: &[(String, Outcome)]) -> Option<String> {
    let best = outcomes.iter().map(|(_, outcome)| outcome).min()?;
    match best {
        Outcome::Done | Outcome::Already => None,
        Outcome::Elsewhere(_) => outcomes.iter().rev().find_map(|(_, outcome)| match outcome {
            Outcome::Refused(why) => Some(why.clone()),
            Outcome::Elsewhere(why) => Some(format!("for no process of this host: {why}")),
            _ => None,
        }),
        Outcome::Refused(why) => Some(why.clone()),
    }
}

fn described(process: &str, parts: &[Part]) -> Vec<Value> {
    let of = |part: &Part| {
        let (state, why) = match &part.outcome {
            Outcome::Done => ("would be added", None),
            Outcome::Already => ("there", None),
            Outcome::Elsewhere(why) => ("not for this process", Some(why)),
            Outcome::Refused(why) => ("refused", Some(why)),
        };
        let mut value = json!({"part": part.what, "process": process, "state": state});
        if let Some(why) = why {
            value["reason"] = json!(why);
        }
        value
    };
    parts.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(what: &str, outcome: Outcome) -> Part {
        Part { what: what.to_owned(), outcome }
    }

    #[test]
    fn a_part_that_no_process_takes_is_refused() {
        let elsewhere = |why: &str| Outcome::Elsewhere(why.to_owned());
        let of = |a: Vec<Part>, b: Vec<Part>| refusals(&[("oss-1".to_owned(), a), ("mount-2".to_owned(), b)]);
        let route = |outcome| vec![part("route tcp2", outcome)];
        assert_eq!(of(route(Outcome::Done), route(elsewhere("x"))), Vec::<String>::new());
        assert_eq!(of(route(Outcome::Already), route(Outcome::Refused("x".to_owned()))), Vec::<String>::new());
        assert_eq!(of(route(elsewhere("on tcp2")), vec![]), ["route tcp2: for no process of this host: on tcp2"]);
        let refused = Outcome::Refused("there is another".to_owned());
        assert_eq!(of(route(elsewhere("x")), route(refused)), ["route tcp2: there is another"]);
    }

    #[test]
    fn two_processes_do_not_listen_at_one_place() {
        let of = |what: &str| {
            let parts = vec![part(what, Outcome::Done)];
            refusals(&[("mds-1".to_owned(), parts.clone()), ("oss-2".to_owned(), parts)])
        };
        let why = "net tcp2 at 10.0.0.1:988: mds-1, oss-2 cannot all listen there: name one with --process";
        assert_eq!(of("net tcp2 at 10.0.0.1:988"), [why]);
        assert_eq!(of("net tcp2 at 10.0.0.1:0"), Vec::<String>::new());
    }

    #[test]
    fn a_backup_names_the_peers_that_an_administrator_has_named() {
        let ni = |nid: &str| json!({"nid": nid, "state": "up", "refcount": 1});
        let peer = |nids: &[&str], configured: bool| {
            let nis: Vec<Value> = nids.iter().map(|nid| ni(nid)).collect();
            json!({"primary nid": nids[0], "Multi-Rail": nids.len() > 1, "configured": configured, "peer ni": nis})
        };
        let all = vec![
            peer(&["10.1.0.1@tcp1", "10.2.0.1@tcp2", "10.2.0.1@tcp2"], true),
            peer(&["10.1.0.2@tcp1", "10.2.0.2@tcp2"], false),
            peer(&["10.1.0.3@tcp1"], false),
        ];
        let backup = configured_peers(all);
        let config = parse_lnet_conf(&to_yaml(&json!({ "peer": backup }))).unwrap();
        let nids: Vec<String> = config.peers.iter().map(|peer| format!("{} {:?}", peer.primary, peer.others)).collect();
        assert_eq!(nids.len(), 1, "{nids:?}");
        assert_eq!(
            (config.peers[0].primary.to_string(), config.peers[0].others.len()),
            ("10.1.0.1@tcp1".to_owned(), 1)
        );
    }

    #[test]
    fn a_backup_of_a_network_says_only_what_import_reads() {
        let net = json!({"net type": "tcp1", "local NI(s)": [{"nid": "10.0.0.1:7001@tcp1", "status": "up",
            "interfaces": {"0": "10.0.0.1"}, "statistics": {"send_count": 1},
            "tunables": {"peer_timeout": 180, "peer_credits": 32, "peer_credits_max": 256, "peer_buffer_credits": 0,
                "credits": 4096},
            "lnd tunables": {"conns_per_peer": 3, "conns_per_peer_fixed": false, "timeout": 50}}]});
        let mut fixed = net.clone();
        fixed["local NI(s)"][0]["tunables"]["peer_credits_max"] = json!(32);
        assert_eq!(bare_net(fixed)["local NI(s)"][0]["tunables"], json!({"peer_credits": 32, "credits": 4096}));
        let want = json!({"net type": "tcp1", "local NI(s)": [{"interfaces": {"0": "10.0.0.1"},
            "tunables": {"credits": 4096}, "port": 7001}]});
        assert_eq!(bare_net(net), want);
        let text = to_yaml(&json!({ "net": [want] }));
        let config = parse_lnet_conf(&text).unwrap();
        assert_eq!(config.nets[0].interfaces[0].to_string(), "10.0.0.1:7001");
    }

    #[test]
    fn a_backup_keeps_settings_of_connections_that_were_made() {
        let net = json!({"net type": "tcp1", "local NI(s)": [{"interfaces": {"0": "10.0.0.1"},
            "lnd tunables": {"conns_per_peer": 1, "conns_per_peer_fixed": false, "timeout": 20, "tx_buffer_size": 65536,
                "rx_buffer_size": 0, "sock_timeout": 20, "keepalive_idle": 0, "congestion_control": "bbr"}}]});
        let mut automatic = net.clone();
        automatic["local NI(s)"][0]["lnd tunables"] = json!({"conns_per_peer": 1, "conns_per_peer_fixed": false,
            "timeout": 50, "tx_buffer_size": 0, "sock_timeout": 0, "congestion_control": "default"});
        let want = json!({"tx_buffer_size": 65536, "sock_timeout": 20, "congestion_control": "bbr"});
        let backup = bare_net(net);
        assert_eq!(backup["local NI(s)"][0]["lnd tunables"], want);
        assert_eq!(bare_net(automatic)["local NI(s)"][0].get("lnd tunables"), None);
        let config = parse_lnet_conf(&to_yaml(&json!({ "net": [backup] }))).unwrap();
        assert_eq!(config.nets[0].tunables.congestion_control.as_deref(), Some("bbr"));
    }

    /// A backup once left out a number of connections that an administrator had set.
    #[test]
    fn a_backup_keeps_a_number_of_connections_that_was_set_and_not_one_that_was_chosen() {
        let backup = |is_fixed: bool| {
            let net = json!({"net type": "tcp1", "local NI(s)": [{"interfaces": {"0": "10.0.0.1"},
                "lnd tunables": {"conns_per_peer": 3, "conns_per_peer_fixed": is_fixed, "timeout": 50}}]});
            parse_lnet_conf(&to_yaml(&json!({ "net": [bare_net(net)] })))
                .unwrap()
                .nets
                .remove(0)
                .tunables
                .conns_per_peer
        };
        assert_eq!((backup(true), backup(false)), (Some(3), None));
    }
}
