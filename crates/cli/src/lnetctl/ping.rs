//! `lnetctl ping` and `lnetctl discover`.

use super::given::Given;
use super::host::{Host, is_on_network_of};
use super::yaml::to_narrow_yaml;
use crate::output::{fail, json};
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Lustre's tool waits so many milliseconds for an answer unless it is told otherwise.
const TIMEOUT_MS: u64 = 10_000;

/// Asks nodes for their NIDs. `discover` has a process ask each of these as well, and use those that are the peer's.
pub(super) fn ping(host: &Host, verb: &str, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[('t', "timeout")], &[('f', "force")]) {
        Ok(given) => given,
        Err(code) => return code,
    };
    // Lustre's tool separates NIDs by commas.
    let nids: Vec<&str> =
        given.operands.iter().flat_map(|word| word.split(',')).filter(|nid| !nid.is_empty()).collect();
    if nids.is_empty() {
        return fail("lnetctl", format!("{verb}: a NID is needed, such as 10.0.0.1@tcp"), 1);
    }
    let (timeout_ms, sockets) = match (given.number("timeout"), host.sockets()) {
        (Ok(timeout), Ok(sockets)) => (timeout.unwrap_or(TIMEOUT_MS), sockets),
        (Err(code), _) | (_, Err(code)) => return code,
    };
    let (mut found, mut failed) = (Vec::new(), None);
    for nid in nids {
        match ask_by_best(&sockets, verb, nid, timeout_ms) {
            Ok(nids) => found.push(describe(nid, &nids)),
            Err((errno, why)) => {
                let text = format!("failed to {verb} {nid}: {why}");
                eprintln!("manage:\n    - {verb}:\n          errno: -{errno}\n          descr: \"{text}\"");
                failed = failed.or(Some(ExitCode::from(errno as u8)));
            }
        }
    }
    if !found.is_empty() || given.as_json() {
        let value = json!({ verb: found });
        if given.as_json() { json(&value) } else { print!("{}", to_narrow_yaml(&value)) }
    }
    failed.unwrap_or(ExitCode::SUCCESS)
}

/// Asks through one process: one that is on the node's network if there is any, because the others need routers.
fn ask_by_best(sockets: &[PathBuf], verb: &str, nid: &str, timeout_ms: u64) -> Result<Vec<String>, (i32, String)> {
    let is_near = |socket: &&PathBuf| is_on_network_of(socket, nid);
    let none = || (Errno::ENOENT.0, "no nacre process answered".to_owned());
    let socket = sockets.iter().find(is_near).or(sockets.first()).ok_or_else(none)?;
    let nid = nid.to_owned();
    if verb == "discover" {
        // Every process has peers of its own.
        let asked = Request::Discover { nid: nid.clone(), timeout_ms };
        sockets.iter().filter(|other| *other != socket && is_near(other)).for_each(|other| drop(ask(other, &asked)));
    }
    let request =
        if verb == "discover" { Request::Discover { nid, timeout_ms } } else { Request::Ping { nid, timeout_ms } };
    match ask(socket, &request) {
        Ok(Answer::Nids(found)) => Ok(found),
        Ok(Answer::Error { errno, text }) if errno == Errno::EINVAL.0 => Err((errno, text)),
        Ok(Answer::Error { errno, .. }) => Err((errno, Errno(errno).text().to_owned())),
        _ => Err(none()),
    }
}

fn describe(asked: &str, nids: &[String]) -> Value {
    let others: Vec<&String> = nids.iter().filter(|nid| !nid.ends_with("@lo")).collect();
    let primary = others.first().map_or(asked, |nid| nid.as_str());
    let nis: Vec<_> = others.iter().map(|nid| json!({ "nid": nid })).collect();
    json!({"primary nid": primary, "Multi-Rail": others.len() > 1, "peer_ni": nis})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_by_its_nids() {
        let nids = ["0@lo", "10.1.0.1@tcp1", "10.2.0.1@tcp2"].map(str::to_owned);
        let value = describe("10.2.0.1@tcp2", &nids);
        assert_eq!((&value["primary nid"], &value["Multi-Rail"]), (&json!("10.1.0.1@tcp1"), &json!(true)));
        assert_eq!(value["peer_ni"], json!([{"nid": "10.1.0.1@tcp1"}, {"nid": "10.2.0.1@tcp2"}]));
    }
}
