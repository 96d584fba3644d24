//! `lnetctl debug`: what does not work, and all that is known of a peer.

use super::given::Given;
use super::host::Host;
use super::net;
use super::printed::show as print;
use crate::output::fail;
use nacre_process::admin::Request;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// `debug recovery -l|-p`.
pub(super) fn recovery(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[], &[('l', "local"), ('p', "peer")]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let (name, nids) = match (given.has("local"), given.has("peer")) {
        (true, false) => ("local NI recovery", interfaces_down(host)),
        (false, true) => ("peer NI recovery", peers_down(host)),
        _ => return fail("lnetctl", "debug recovery: -l (interfaces) or -p (peers) is needed", 1),
    };
    let numbered = |nids: Vec<String>| {
        let list = nids.into_iter().enumerate().map(|(n, nid)| (format!("nid-{n}"), json!(nid)));
        json!({ name: list.collect::<Map<_, _>>() })
    };
    print(given.as_json(), nids.map(numbered))
}

/// Interfaces of routers on which nothing is heard.
fn interfaces_down(host: &Host) -> Result<Vec<String>, ExitCode> {
    let all = host.gather(&Request::Interfaces)?;
    Ok(sorted(all.iter().filter(|ni| ni["status"] == "down").map(|ni| &ni["nid"])))
}

/// Gateways that are pinged until they work, and peers that could not be sent something lately.
fn peers_down(host: &Host) -> Result<Vec<String>, ExitCode> {
    let (routes, peers) = (host.gather(&Request::Routes)?, host.gather(&Request::Peers)?);
    let gateways = routes.iter().filter(|route| route["state"] == "down").map(|route| &route["gateway"]);
    let nis = peers.iter().flat_map(|peer| peer["peer ni"].as_array().into_iter().flatten());
    let is_ill = |ni: &&Value| ni["health stats"]["health value"].as_u64().is_some_and(|health| health < 1000);
    Ok(sorted(gateways.chain(nis.filter(is_ill).map(|ni| &ni["nid"]))))
}

fn sorted<'a>(nids: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let mut all: Vec<String> = nids.filter_map(Value::as_str).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

/// `debug peer --nid NID`: the peer, the connections with it, and the routes by it.
pub(super) fn peer(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[('n', "nid")], &[]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let described = given.need("nid").and_then(|nid| {
        let mut all = net::peers(host, Some(nid), true)?;
        let of = |request: &Request, name: &str| -> Result<Value, ExitCode> {
            Ok(host.gather(request)?.into_iter().filter(|one| one[name] == nid).collect())
        };
        all["connection"] = of(&Request::Connections, "nid")?;
        all["route"] = of(&Request::Routes, "gateway")?;
        Ok(all)
    });
    print(given.as_json(), described)
}
