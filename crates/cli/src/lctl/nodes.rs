//! `lctl list_nids`, `ping` and `which_nid`.

use super::ask::{Refusal, flags};
use crate::output::{fail, json};
use crate::tool::Flag;
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask, ask_all};
use nacre_process::rundir;
use serde_json::Value;
use std::process::ExitCode;

const JSON: &[Flag] = &[(' ', "json")];

/// `lctl list_nids`.
pub(super) fn list_nids(args: &[String]) -> ExitCode {
    let flags = match flags("list_nids", args, JSON) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let answers = ask_all(&Request::Nids).into_iter();
    let mut found: Vec<String> = answers.flat_map(|a| if let Answer::Nids(n) = a { n } else { Vec::new() }).collect();
    found.retain(|nid| !nid.ends_with("@lo"));
    found.sort();
    found.dedup();
    if flags.has("json") {
        json(&found);
    } else {
        found.iter().for_each(|nid| println!("{nid}"));
    }
    if found.is_empty() { fail("lctl list_nids", "no nacre process runs on this host", 2) } else { ExitCode::SUCCESS }
}

fn ping_one(nid: &str, seconds: u64) -> Result<Vec<String>, Refusal> {
    let request = Request::Ping { nid: nid.to_owned(), timeout_ms: seconds.saturating_mul(1000) };
    // Any process of this host can send the ping: the first will do.
    for socket in rundir::live_sockets() {
        match ask(&socket, &request) {
            Ok(Answer::Nids(found)) => return Ok(found),
            Ok(Answer::Error { errno, text }) => return Err(Refusal { errno, text }),
            _ => {}
        }
    }
    Err(Refusal::new(Errno::ENETUNREACH, "no nacre process runs on this host to ask through"))
}

/// `lctl ping`.
pub(super) fn ping(args: &[String]) -> ExitCode {
    let flags = match flags("ping", args, JSON) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let (nid, seconds) = match flags.operands.as_slice() {
        [nid] => (nid, Ok(10)),
        [nid, seconds] => (nid, seconds.parse()),
        _ => return fail("lctl ping", "a NID is needed, such as 10.0.0.1@tcp", 22),
    };
    let Ok(seconds) = seconds else { return fail("lctl ping", "the timeout must be a number of seconds", 22) };
    match ping_one(nid, seconds) {
        Ok(found) if flags.has("json") => json(&found),
        Ok(found) => found.iter().for_each(|n| println!("{}{n}", if n.ends_with("@lo") { "12345-" } else { "" })),
        Err(Refusal { errno, text }) => {
            let is_clear = [Errno::EINVAL.0, Errno::ENETUNREACH.0].contains(&errno);
            eprintln!("failed to ping {nid}: {}", if is_clear { &text } else { Errno(errno).text() });
            return ExitCode::from(errno as u8);
        }
    }
    ExitCode::SUCCESS
}

/// `lctl route_list`.
pub(super) fn route_list(args: &[String]) -> ExitCode {
    if let Err(code) = flags("route_list", args, &[]) {
        return code;
    }
    let answers = match super::ask::ask(&Request::Routes) {
        Ok(answers) => answers,
        Err(refusal) => return refusal.fail("lctl route_list"),
    };
    let routes =
        answers.iter().flat_map(|a| if let Answer::Value(Value::Array(routes)) = a { &routes[..] } else { &[] });
    let mut lines: Vec<String> = routes.map(route_line).collect();
    // Several processes of a host have the same routes.
    lines.sort();
    lines.dedup();
    lines.iter().for_each(|line| println!("{line}"));
    ExitCode::SUCCESS
}

/// Everything that all processes list, once.
fn listed(who: &str, request: &Request) -> Result<Vec<Value>, ExitCode> {
    let answers = super::ask::ask(request).map_err(|refusal| refusal.fail(who))?;
    let lists =
        answers.into_iter().filter_map(|a| if let Answer::Value(Value::Array(all)) = a { Some(all) } else { None });
    Ok(lists.flatten().collect())
}

/// `lctl peer_list`.
pub(super) fn peer_list(args: &[String]) -> ExitCode {
    print_list("peer_list", args, &Request::Peers, peer_line)
}

/// `lctl conn_list`.
pub(super) fn conn_list(args: &[String]) -> ExitCode {
    print_list("conn_list", args, &Request::Connections, connection_line)
}

fn print_list(name: &str, args: &[String], request: &Request, line: fn(&Value) -> String) -> ExitCode {
    let all = flags(name, args, JSON).and_then(|flags| Ok((flags, listed(&format!("lctl {name}"), request)?)));
    match all {
        Ok((flags, all)) if flags.has("json") => json(&all),
        Ok((_, all)) if all.is_empty() => {
            println!("<no {}>", if name == "peer_list" { "peers" } else { "connections" })
        }
        Ok((_, all)) => all.iter().for_each(|one| println!("{}", line(one))),
        Err(code) => return code,
    }
    ExitCode::SUCCESS
}

/// A peer, as `lnetctl peer show -v` describes it, in lctl's form: its NID, references and connections.
fn peer_line(peer: &Value) -> String {
    let ni = &peer["peer ni"][0];
    let nid = peer["primary nid"].as_str().unwrap_or_default();
    format!("12345-{nid} [{}] {} #{}", ni["refcount"], ni["state"].as_str().unwrap_or_default(), ni["connections"])
}

/// A connection in lctl's form: the peer, the kind, this node's NID, and an arrow away from the node that opened it.
fn connection_line(connection: &Value) -> String {
    let text = |name: &str| connection[name].as_str().unwrap_or_default();
    let arrow = if connection["dialed"] == true { "->" } else { "<-" };
    let (own, peer) = (text("interface"), text("nid"));
    format!("12345-{peer} {}[0]{own}{arrow}{peer} nonagle", text("type"))
}

/// A route, as `lnetctl route show -v` describes it, in lctl's form. Hops that were not named are 4294967295 there.
fn route_line(route: &Value) -> String {
    let text = |name: &str| route[name].as_str().unwrap_or_default();
    let hops = route["hop"].as_i64().map_or(u32::MAX, |hops| hops as u32);
    format!(
        "net {:>18} hops {hops} gw {:>32} {} pri {}",
        text("net"),
        text("gateway"),
        text("state"),
        route["priority"]
    )
}

/// `lctl which_nid`.
pub(super) fn which_nid(args: &[String]) -> ExitCode {
    let flags = match flags("which_nid", args, &[]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    if flags.operands.is_empty() {
        return fail("lctl which_nid", "NIDs are needed, such as 10.0.0.1@tcp", 22);
    }
    match flags.operands.iter().find(|nid| ping_one(nid, 5).is_ok()) {
        Some(nid) => {
            println!("{nid}");
            ExitCode::SUCCESS
        }
        None => fail("lctl which_nid", "none of them is reachable", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn peers_and_connections_look_like_lctls() {
        let peer = json!({"primary nid": "10.0.0.1@tcp",
            "peer ni": [{"nid": "10.0.0.1@tcp", "state": "up", "refcount": 2, "connections": 3}]});
        assert_eq!(peer_line(&peer), "12345-10.0.0.1@tcp [2] up #3");
        let of = |dialed| {
            let own = "10.0.0.2:7001@tcp";
            connection_line(&json!({"nid": "10.0.0.1@tcp", "type": "C", "interface": own, "dialed": dialed}))
        };
        assert_eq!(of(true), "12345-10.0.0.1@tcp C[0]10.0.0.2:7001@tcp->10.0.0.1@tcp nonagle");
        assert_eq!(of(false), "12345-10.0.0.1@tcp C[0]10.0.0.2:7001@tcp<-10.0.0.1@tcp nonagle");
    }

    #[test]
    fn a_route_looks_like_lctls() {
        let route = json!({"net": "tcp2", "gateway": "10.1.0.11@tcp1", "hop": -1, "priority": 3, "state": "up"});
        let want = "net               tcp2 hops 4294967295 gw                   10.1.0.11@tcp1 up pri 3";
        assert_eq!(route_line(&route), want);
    }
}
