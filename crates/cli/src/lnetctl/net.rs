//! `lnetctl net` and `lnetctl peer show`.

use super::given::Given;
use super::host::Host;
use super::printed::{keep, show as print};
use crate::output::fail;
use nacre_base::Network;
use nacre_process::admin::Request;
use nacre_process::network::Tunables;
use serde_json::{Value, json};
use std::process::ExitCode;

/// `net show`.
pub(super) fn show(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[('n', "net")], &[]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    print(given.as_json(), of_host(host, given.get("net"), given.has("verbose")))
}

/// The interfaces by network; of one network if it is named.
pub(super) fn of_host(host: &Host, only: Option<&str>, verbose: bool) -> Result<Value, ExitCode> {
    // As it is printed: `tcp` for tcp0.
    let only = match only.map(str::parse::<Network>).transpose() {
        Ok(only) => only.map(|network| network.to_string()),
        Err(e) => return Err(fail("lnetctl", e, 1)),
    };
    let mut networks: Vec<(String, Vec<Value>)> = Vec::new();
    for mut ni in host.gather(&Request::Interfaces)? {
        let nid = ni["nid"].as_str().unwrap_or_default().to_owned();
        let network = nid.rsplit('@').next().unwrap_or_default().to_owned();
        if only.as_ref().is_some_and(|only| *only != network) {
            continue;
        }
        if !verbose {
            keep(&mut ni, &["nid", "status", "interfaces"]);
        }
        match networks.iter_mut().find(|(n, _)| *n == network) {
            Some((_, list)) if network == "lo" && !list.is_empty() => {}
            Some((_, list)) => list.push(ni),
            None => networks.push((network, vec![ni])),
        }
    }
    if let Some(only) = only.filter(|_| networks.is_empty()) {
        return Err(fail("lnetctl", format!("net show: no process of this host is on {only}"), 2));
    }
    // The others stay in the order of the node, which is known by the first.
    networks.sort_by_key(|(n, _)| n != "lo");
    let list: Vec<_> = networks.into_iter().map(|(n, nis)| json!({"net type": n, "local NI(s)": nis})).collect();
    Ok(json!({ "net": list }))
}

/// `peer show`.
pub(super) fn show_peers(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[(' ', "nid")], &[]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    print(given.as_json(), peers(host, given.get("nid"), given.has("verbose")))
}

/// The peers; one if it is named.
pub(super) fn peers(host: &Host, only: Option<&str>, verbose: bool) -> Result<Value, ExitCode> {
    let mut all = host.gather(&Request::Peers)?;
    if let Some(only) = only {
        let has_it = |ni: &Value| ni["nid"] == only;
        all.retain(|peer| peer["primary nid"] == only || peer["peer ni"].as_array().into_iter().flatten().any(has_it));
        if all.is_empty() {
            return Err(fail("lnetctl", format!("peer show: no process of this host knows {only}"), 2));
        }
    }
    if !verbose {
        all.iter_mut().for_each(shorten);
    }
    Ok(json!({ "peer": all }))
}

/// Leaves of a peer what `peer show` prints without -v.
fn shorten(peer: &mut Value) {
    keep(peer, &["primary nid", "Multi-Rail", "peer ni"]);
    peer["peer ni"].as_array_mut().into_iter().flatten().for_each(|ni| keep(ni, &["nid", "state"]));
}

/// Options with which settings are given.
const TUNABLES: [(char, &str); 12] = [
    (' ', "credits"),
    (' ', "peer-credits"),
    (' ', "peer-buffer-credits"),
    (' ', "conns-per-peer"),
    (' ', "tx-buffer-size"),
    (' ', "rx-buffer-size"),
    (' ', "sock-timeout"),
    (' ', "keepalive-idle"),
    (' ', "keepalive-intvl"),
    (' ', "keepalive-count"),
    (' ', "congestion-control"),
    (' ', "preset"),
];

/// The credits of a preset, and what is given beside it.
fn tunables(given: &Given<'_>) -> Result<Tunables, ExitCode> {
    let preset = match given.get("preset") {
        None => Tunables::default(),
        Some(name) => Tunables::preset(name).ok_or_else(|| {
            let known = Tunables::PRESETS.join(" and ");
            fail("lnetctl", format!("--preset: there is no preset {name:?}; there are {known}"), 1)
        })?,
    };
    let mut asked = Tunables {
        credits: given.number("credits")?,
        peer_credits: given.number("peer-credits")?,
        peer_buffer_credits: given.number("peer-buffer-credits")?,
        congestion_control: given.get("congestion-control").map(str::to_owned),
        ..Tunables::default()
    };
    for name in Tunables::OF_CONNECTIONS {
        if let Some(setting) = asked.of_connections(name) {
            *setting = given.number(&name.replace('_', "-"))?;
        }
    }
    let tunables = asked.or(preset);
    tunables.check().map_err(|why| fail("lnetctl", why, 1))?;
    Ok(tunables)
}

/// `net add`.
pub(super) fn add(host: &Host, args: &[String]) -> ExitCode {
    let known = [[('n', "net"), (' ', "if")].as_slice(), &TUNABLES].concat();
    let asked = Given::parse(args, &known, &[]).and_then(Given::without_operands).and_then(|given| {
        let request = Request::AddNet { net: net_and_interface(&given)?, tunables: tunables(&given)? };
        one_process(host, "add")?;
        Ok(request)
    });
    asked.map_or_else(|code| code, |request| host.change("add", "net", &request))
}

/// An interface is of one process: several could not listen at the same port, and routers that all left a network would cut it
/// off.
fn one_process(host: &Host, verb: &str) -> Result<(), ExitCode> {
    let names: Vec<String> =
        host.sockets()?.iter().filter_map(|socket| Some(socket.file_stem()?.to_string_lossy().into_owned())).collect();
    if names.len() < 2 {
        return Ok(());
    }
    let why = format!("several processes run here: name one with --process, of {}", names.join(", "));
    Err(fail("lnetctl", format!("net {verb}: {why}"), 1))
}

/// `net del`.
pub(super) fn del(host: &Host, args: &[String]) -> ExitCode {
    let asked = Given::parse(args, &[('n', "net"), (' ', "if")], &[]).and_then(Given::without_operands);
    match asked.and_then(|given| net_and_interface(&given)).and_then(|net| one_process(host, "del").map(|()| net)) {
        Ok(net) => host.change("del", "net", &Request::RemoveNet { net }),
        Err(code) => code,
    }
}

/// `tcp1(eth0)`.
fn net_and_interface(given: &Given<'_>) -> Result<String, ExitCode> {
    let network = given.need("net")?;
    Ok(given.get("if").map_or_else(|| network.to_owned(), |interface| format!("{network}({interface})")))
}

/// `net set`.
pub(super) fn set(host: &Host, args: &[String]) -> ExitCode {
    let known = [[('n', "net"), (' ', "nid")].as_slice(), &TUNABLES].concat();
    let asked = Given::parse(args, &known, &[]).and_then(Given::without_operands).and_then(|given| {
        let tunables = tunables(&given)?;
        if tunables == Tunables::default() {
            let known = TUNABLES.map(|(_, name)| format!("--{name}")).join(", ");
            return Err(fail("lnetctl", format!("net set: nothing to change: one of {known}"), 1));
        }
        let text = |name| given.get(name).map(str::to_owned);
        match (text("net"), text("nid")) {
            (None, None) => Err(fail("lnetctl", "net set: --net or --nid is needed", 1)),
            (network, nid) => Ok(Request::SetNet { network, nid, tunables }),
        }
    });
    asked.map_or_else(|code| code, |request| host.change("set", "net", &request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lnetctl::yaml::to_yaml;

    #[test]
    fn options_become_settings_and_bad_ones_are_refused() {
        let of = |line: &str| {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            tunables(&Given::parse(&args, &TUNABLES, &[]).unwrap())
        };
        let asked = of("--tx-buffer-size 65536 --keepalive-idle 0 --sock-timeout 20 --congestion-control bbr").unwrap();
        let wanted = Tunables {
            tx_buffer_size: Some(65_536),
            keepalive_idle: Some(0),
            sock_timeout: Some(20),
            congestion_control: Some("bbr".to_owned()),
            ..Tunables::default()
        };
        assert_eq!(asked, wanted);
        for bad in ["--rx-buffer-size 4M", "--rx-buffer-size 1", "--keepalive-count 128", "--congestion-control b/r"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_peer_is_shown_with_its_nids() {
        let ni = |nid: &str, state: &str| json!({"nid": nid, "state": state, "refcount": 1});
        let mut peer = json!({"primary nid": "10.1.0.1@tcp1", "Multi-Rail": true, "configured": false,
            "peer ni": [ni("10.1.0.1@tcp1", "up"), ni("10.2.0.1@tcp2", "down")]});
        shorten(&mut peer);
        let want = "peer:\n-     primary nid: 10.1.0.1@tcp1\n      Multi-Rail: true\n      peer ni:\n      -     nid: 10.1.0.1@tcp1\n            \
                    state: up\n      -     nid: 10.2.0.1@tcp2\n            state: down\n";
        assert_eq!(to_yaml(&json!({ "peer": [peer] })), want);
    }
}
