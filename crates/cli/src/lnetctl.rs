//! `lnetctl`: networks, peers, credits and counts of the processes on this host, through their admin sockets. Prints
//! YAML in the shape of Lustre's tool, or JSON.

mod route;

use crate::output::{fail, json};
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask, ask_all};
use nacre_process::rundir;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "usage: lnetctl net show [-v] [--json]     interfaces, their credits and counts
       lnetctl peer show [-v] [--json]    peers, their credits and counts
       lnetctl stats show [--json]        message counts
       lnetctl ping NID                   ask a node for its NIDs
       lnetctl route show [-v] [--json]   routes
       lnetctl route add --net NETWORK --gateway NID [--hop N] [--priority N]
       lnetctl route del --net NETWORK --gateway NID
                                          change the routes of the running processes
       lnetctl route explain NID [--json] which way a message to a NID goes, why, and what else there is
       lnetctl routing show [--json]      buffers of a router
       lnetctl set routing 0|1            stop or start passing messages on, in processes on several networks
       lnetctl set tiny_buffers|small_buffers|large_buffers N
       lnetctl export [--json]            all of it
";

/// Runs one command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["route", "add", words @ ..] => return route::change(true, words),
        ["route", "del", words @ ..] => return route::change(false, words),
        _ => {}
    }
    let (flags, mut words): (Vec<&str>, Vec<&str>) = args.iter().map(String::as_str).partition(|a| a.starts_with('-'));
    let verbose = flags.iter().any(|flag| flag.starts_with("-v") || flag.starts_with("--verbose"));
    if verbose {
        // Lustre's verbosity levels, as in `-v 4`: here there is one, with everything.
        words.retain(|word| word.parse::<u8>().is_err());
    }
    let as_json = flags.contains(&"--json");
    match words.as_slice() {
        ["net", "show"] => show(as_json, net(verbose)),
        ["peer", "show"] => show(as_json, peers(verbose)),
        ["stats", "show"] => show(as_json, stats()),
        ["export"] => show(as_json, export()),
        ["route", "show"] => route::show_routes(verbose, as_json),
        ["route", "explain", nid] => route::explain(nid, as_json),
        ["routing", "show"] => route::show_routing(as_json),
        ["set", name, value] => route::set(name, value),
        ["ping", nid] => ping(nid, as_json),
        [] | ["help"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        other => {
            eprint!("{USAGE}");
            fail("lnetctl", format!("'{}' is not a valid command", other.join(" ")), 1)
        }
    }
}

fn show(as_json: bool, value: Result<Value, ExitCode>) -> ExitCode {
    match value {
        Ok(v) if as_json => json(&v),
        Ok(v) => print!("{}", to_yaml(&v)),
        Err(code) => return code,
    }
    ExitCode::SUCCESS
}

/// The lists from all processes of the host, one after another.
fn gather(request: &Request) -> Result<Vec<Value>, ExitCode> {
    let answers = ask_all(request);
    if answers.is_empty() {
        return Err(fail("lnetctl", "no nacre process runs on this host (or its run directory is elsewhere)", 2));
    }
    let values = answers.into_iter().filter_map(|a| if let Answer::Value(v) = a { Some(v) } else { None });
    Ok(values.flat_map(|v| if let Value::Array(a) = v { a } else { vec![v] }).collect())
}

fn net(verbose: bool) -> Result<Value, ExitCode> {
    let mut networks: Vec<(String, Vec<Value>)> = Vec::new();
    for mut ni in gather(&Request::Interfaces)? {
        let nid = ni["nid"].as_str().unwrap_or_default().to_owned();
        let network = nid.rsplit('@').next().unwrap_or_default().to_owned();
        if !verbose {
            keep(&mut ni, &["nid", "status", "interfaces"]);
        }
        match networks.iter_mut().find(|(n, _)| *n == network) {
            Some((_, list)) if network == "lo" && !list.is_empty() => {}
            Some((_, list)) => list.push(ni),
            None => networks.push((network, vec![ni])),
        }
    }
    networks.sort_by_key(|(n, _)| (n != "lo", n.clone()));
    let list: Vec<_> = networks.into_iter().map(|(n, nis)| json!({"net type": n, "local NI(s)": nis})).collect();
    Ok(json!({ "net": list }))
}

fn peers(verbose: bool) -> Result<Value, ExitCode> {
    let mut all = gather(&Request::Peers)?;
    if !verbose {
        for peer in &mut all {
            for ni in peer["peer ni"].as_array_mut().into_iter().flatten() {
                keep(ni, &["nid", "state"]);
            }
        }
    }
    Ok(json!({ "peer": all }))
}

/// Sums of all processes' counters.
fn stats() -> Result<Value, ExitCode> {
    let mut sum = Map::new();
    for one in gather(&Request::Stats)? {
        for (name, v) in one.as_object().into_iter().flatten() {
            let so_far = sum.get(name).and_then(Value::as_u64).unwrap_or(0);
            sum.insert(name.clone(), json!(so_far + v.as_u64().unwrap_or(0)));
        }
    }
    Ok(json!({ "statistics": sum }))
}

fn export() -> Result<Value, ExitCode> {
    let mut all = Map::new();
    for part in [net(true)?, json!({ "route": gather(&Request::Routes)? }), peers(true)?] {
        all.extend(part.as_object().cloned().unwrap_or_default());
    }
    Ok(Value::Object(all))
}

fn keep(value: &mut Value, names: &[&str]) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|k, _| names.contains(&k.as_str()));
    }
}

fn ping(nid: &str, as_json: bool) -> ExitCode {
    let request = Request::Ping { nid: nid.to_owned(), timeout_ms: 10_000 };
    for socket in rundir::live_sockets() {
        match ask(&socket, &request) {
            Ok(Answer::Nids(found)) => {
                let nis: Vec<_> = found.iter().map(|n| json!({ "nid": n })).collect();
                let value = json!({"ping": [{"primary nid": nid, "Multi-Rail": false, "peer ni": nis}]});
                return show(as_json, Ok(value));
            }
            Ok(Answer::Error { errno, .. }) => {
                println!(
                    "manage:\n    - ping:\n          errno: -1\n          descr: failed to ping {nid}: {}",
                    Errno(errno).text()
                );
                return ExitCode::from(errno as u8);
            }
            _ => {}
        }
    }
    fail("lnetctl ping", "no nacre process runs on this host to ask through", 2)
}

/// YAML with lnetctl's indentation.
fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    for (k, v) in value.as_object().into_iter().flatten() {
        // Only the statistics are indented by four.
        let step = if v.is_object() { 4 } else { 6 };
        put_yaml(&mut out, k, v, 0, step);
    }
    out
}

fn put_yaml(out: &mut String, key: &str, value: &Value, indent: usize, step: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(m) => {
            out.push_str(&format!("{pad}{key}:\n"));
            m.iter().for_each(|(k, v)| put_yaml(out, k, v, indent + step, step));
        }
        Value::Array(items) => {
            out.push_str(&format!("{pad}{key}:\n"));
            for item in items {
                let mut text = String::new();
                item.as_object()
                    .into_iter()
                    .flatten()
                    .for_each(|(k, v)| put_yaml(&mut text, k, v, indent + step, step));
                // In the item's first line, the dash takes the place of the indentation.
                let dash = format!("{pad}-{}", " ".repeat(step - 1));
                out.push_str(&dash);
                out.push_str(text.get(indent + step..).unwrap_or_default());
            }
        }
        // In YAML a bracket without quotes begins a list.
        Value::String(s) if s.starts_with('[') => out.push_str(&format!("{pad}{key}: \"{s}\"\n")),
        Value::String(s) => out.push_str(&format!("{pad}{key}: {s}\n")),
        other => out.push_str(&format!("{pad}{key}: {other}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_looks_like_lnetctls() {
        let v = json!({"net": [{"net type": "tcp", "local NI(s)": [{"nid": "10.0.0.1@tcp", "status": "up",
            "interfaces": {"0": "eth0"}}]}]});
        let want = "net:\n-     net type: tcp\n      local NI(s):\n      -     nid: 10.0.0.1@tcp\n            status: up\n            \
                    interfaces:\n                  0: eth0\n";
        assert_eq!(to_yaml(&v), want);
        assert_eq!(to_yaml(&json!({"statistics": {"errors": 0}})), "statistics:\n    errors: 0\n");
    }
}
