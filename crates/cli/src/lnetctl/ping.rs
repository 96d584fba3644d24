//! `lnetctl ping` and `lnetctl discover`.

use super::given::Given;
use super::host::Host;
use super::yaml::to_narrow_yaml;
use crate::output::{fail, json};
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// How long an answer may take in Lustre's tool, in milliseconds.
const TIMEOUT_MS: u64 = 10_000;

/// Asks nodes for their NIDs. `discover` also says by which of them this host knows the node, which it learned when it
/// connected.
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
        match ask_any(&sockets, nid, timeout_ms) {
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

/// The first process that reaches the node has its answer; if none does, the reason of the first that has a way there counts.
fn ask_any(sockets: &[PathBuf], nid: &str, timeout_ms: u64) -> Result<Vec<String>, (i32, String)> {
    let request = Request::Ping { nid: nid.to_owned(), timeout_ms };
    let mut refusal: Option<(i32, String)> = None;
    for socket in sockets {
        match ask(socket, &request) {
            Ok(Answer::Nids(found)) => return Ok(found),
            Ok(Answer::Error { errno, text }) => {
                // Another process would be silent for as long.
                let is_final = errno == Errno::ETIMEDOUT.0 || errno == Errno::EINVAL.0;
                refusal = refusal.or(Some((errno, text)));
                if is_final {
                    break;
                }
            }
            _ => {}
        }
    }
    Err(refusal.unwrap_or((Errno::ENOENT.0, "no nacre process answered".to_owned())))
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
