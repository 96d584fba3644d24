//! `nacre wan-check`: collects what is known of the path to a peer, from the kernel, the network and the parameters of the process.

mod rules;

use crate::routing::Refusal;
use nacre_base::param::value::Value as Param;
use nacre_base::{Errno, Nid};
use nacre_lnet::{InterfaceStatus, Way};
use nacre_node::Node;
use rules::{Chosen, Credits, Facts, Kernel, Limit};
use serde_json::{Value, json};
use std::time::Duration;

/// Pings of a probe. The quickest counts, because others may have waited.
const PINGS: u32 = 3;
/// Time after which a ping is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Describes the path to a peer. `wanted` is the rate that it should carry, in bytes a second. A probe sends pings to the peer, unless
/// messages wait for it.
pub(crate) async fn check(node: &Node, nid: &str, wanted: Option<u64>, probe: bool) -> Result<Value, Refusal> {
    let peer: Nid = nid.parse().map_err(|e| (Errno::EINVAL, format!("{e}")))?;
    let lnet = node.lnet();
    let next_hop = match lnet.explain(peer).way {
        Way::Here => return Err((Errno::EINVAL, format!("{peer} is this process itself"))),
        Way::None => return Err((Errno::ENETUNREACH, format!("no route to {peer} is up"))),
        Way::Direct(_) => peer,
        Way::By(gateway) => gateway,
    };
    let pinged = if probe { ping(node, peer, next_hop).await? } else { Ping::NotAsked };
    let path = lnet.paths(next_hop).into_iter().next().ok_or_else(|| {
        (Errno::ENOTCONN, format!("there is no connection to {next_hop} yet: --probe opens one with a ping"))
    })?;
    let interfaces = lnet.interfaces();
    let interface = interfaces.iter().find(|interface| interface.nid == path.interface).cloned();
    let interface = interface.ok_or_else(|| (Errno::ENOTCONN, format!("{} has just been removed", path.interface)))?;
    let status = lnet.peers().into_iter().find(|status| status.primary_nid == next_hop);
    let facts = Facts {
        network: path.interface.network.to_string(),
        path,
        wanted: wanted.map(|rate| rate as f64),
        tunables: interface.tunables.clone().unwrap_or_default(),
        credits: credits(&interfaces, &interface, status.map(|status| status.max_ni_tx_credits), lnet.has_lanes()),
        kernel: kernel(),
    };
    let mut chosen = facts.chosen();
    chosen.extend(for_files(node, peer));
    Ok(describe(node, peer, next_hop, &pinged, &facts, &chosen))
}

/// The outcome of a probe.
enum Ping {
    NotAsked,
    /// Messages wait for the peer, and the ping would wait behind them.
    Busy,
    /// The time of the quickest.
    Took(Duration),
}

async fn ping(node: &Node, peer: Nid, next_hop: Nid) -> Result<Ping, Refusal> {
    let (lnet, rt) = (node.lnet(), node.rt());
    if lnet.peers().iter().any(|status| status.primary_nid == next_hop && status.tx_q_num_of_buf > 0) {
        return Ok(Ping::Busy);
    }
    let mut least = PING_TIMEOUT;
    for _ in 0..PINGS {
        let began = rt.now();
        lnet.ping(peer, PING_TIMEOUT).await.map_err(|e| (e.errno(), format!("ping {peer}: {e}")))?;
        least = least.min(rt.now().since(began));
    }
    Ok(Ping::Took(least))
}

fn credits(all: &[InterfaceStatus], interface: &InterfaceStatus, of_peer: Option<u32>, lanes: bool) -> Credits {
    let beside = all.iter().filter(|other| other.nid.network != interface.nid.network && other.peer_buffer_credits > 0);
    let fewest = beside.min_by_key(|other| other.peer_buffer_credits);
    Credits {
        peer: of_peer.unwrap_or(interface.peer_credits).min(interface.peer_credits_max),
        peer_max: interface.peer_credits_max,
        is_fixed: interface.peer_credits == interface.peer_credits_max,
        lanes,
        router: fewest.map(|other| (other.nid.network.to_string(), other.peer_buffer_credits)),
    }
}

fn kernel() -> Kernel {
    let text = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
    let number = |name: &str| text(name).trim().parse().ok();
    let sizes = |name: &str| {
        let all: Vec<u64> = text(name).split_whitespace().filter_map(|size| size.parse().ok()).collect();
        all.try_into().ok()
    };
    Kernel {
        tcp_wmem: sizes("ipv4/tcp_wmem"),
        tcp_rmem: sizes("ipv4/tcp_rmem"),
        wmem_max: number("core/wmem_max"),
        rmem_max: number("core/rmem_max"),
        slow_start_after_idle: number("ipv4/tcp_slow_start_after_idle") == Some(1),
        offered: text("ipv4/tcp_available_congestion_control").split_whitespace().map(str::to_owned).collect(),
    }
}

/// What was chosen above the network: memory for data that travels with its request, and how far reads ask ahead.
fn for_files(node: &Node, peer: Nid) -> Vec<Chosen> {
    let params = node.params();
    let row =
        |what, value, why: &str, is_explicit| Chosen { what, value, why: why.to_owned(), is_explicit, at_most: None };
    let mut all = Vec::new();
    let serves = |layer: &str| !params.list(&format!("{layer}.*.num_exports")).is_empty();
    if let Some(mb) = params.value("eager_memory_mb").and_then(|value| value.number())
        && (serves("obdfilter") || serves("mdt"))
    {
        let used = params.value("eager_memory").and_then(|value| value.field("used")?.number()).unwrap_or(0);
        let value = format!("{mb} MiB, {} in use", rules::bytes(used as f64));
        all.push(row(
            "eager memory, as a server",
            value,
            "eager_memory_mb; a client may have half of what is free",
            mb != 512,
        ));
    }
    let imports = params.values("*.*.import");
    let at_peer: Vec<&(String, Param)> = imports.iter().filter(|(_, import)| is_at(import, peer)).collect();
    let distance = |import: &Param, name: &str| import.field("import")?.field("distance")?.field(name)?.number();
    if let Some(granted) = at_peer.iter().filter_map(|(_, import)| distance(import, "eager_granted")).max() {
        let far = at_peer.iter().filter(|(_, import)| distance(import, "far") == Some(1)).count();
        let value = format!("{} granted, {far} of {} targets far", rules::bytes(granted as f64), at_peer.len());
        let why = "data travels with requests to targets whose answers take 2 ms or more";
        all.push(row("eager memory, as a client", value, why, false));
    }
    let window = at_peer.iter().filter_map(|(name, _)| {
        let osc = name.strip_suffix(".import").filter(|name| name.starts_with("osc."))?;
        params.value(&format!("{osc}.far_read_ahead_bytes"))?.number()
    });
    if let Some(window) = window.max() {
        let value = if window == 0 { "by what was read".to_owned() } else { rules::bytes(window as f64) };
        all.push(row("read-ahead window", value, "twice what the way to targets far away has held", false));
    }
    all
}

/// True if the import's target is at this NID now.
fn is_at(import: &Param, peer: Nid) -> bool {
    let current =
        || import.field("import")?.field("connection")?.field("current_connection")?.text()?.parse::<Nid>().ok();
    current() == Some(peer)
}

fn describe(node: &Node, peer: Nid, next_hop: Nid, pinged: &Ping, facts: &Facts, chosen: &[Chosen]) -> Value {
    let (ping_us, probe) = match pinged {
        Ping::NotAsked => (None, "not asked for"),
        Ping::Busy => (None, "left out: messages wait for the peer"),
        Ping::Took(time) => (Some(time.as_micros() as u64), "pings"),
    };
    let row = |row: &Chosen| {
        json!({"what": row.what, "value": row.value, "why": row.why, "explicit": row.is_explicit,
            "bytes_per_second_max": row.at_most.map(f64::round)})
    };
    let limit = |limit: &Limit| json!({"what": limit.what, "why": limit.why, "command": limit.command});
    json!({
        "node": node.lnet().nids().first().map(Nid::to_string),
        "peer": peer.to_string(),
        "next_hop": next_hop.to_string(),
        "interface": facts.path.interface.to_string(),
        "connections": facts.path.sockets.len(),
        "round_trip_us": facts.round_trip().as_micros() as u64,
        "probe": probe,
        "ping_us": ping_us,
        "bytes_per_second_seen": facts.rate_seen(),
        "is_rate_of_sender": facts.is_rate_of_sender(),
        "bytes_per_second_wanted": facts.wanted,
        "bandwidth_delay_product_bytes": facts.product().map(f64::round),
        "chosen": chosen.iter().map(row).collect::<Vec<_>>(),
        "limits": facts.limits().iter().map(limit).collect::<Vec<_>>(),
    })
}
