//! `lctl list_nids`, `ping` and `which_nid`.

use super::ask::{Refusal, flags};
use crate::output::{fail, json};
use crate::tool::Flag;
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask, ask_all};
use nacre_process::rundir;
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
