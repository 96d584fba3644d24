//! Interfaces, peers and message counts of a node, with lnetctl's names for everything.

use crate::network::HOST_DEFAULT;
use nacre_base::Nid;
use nacre_base::param::value::{Drawn, Fields};
use nacre_lnet::{ByKind, Failures, Latency, Lnet, PeerStatus, Stats, Traffic};
use nacre_node::Node;
use serde_json::{Map, Value, json};
use std::fmt;

/// The interfaces of a node.
pub(crate) fn describe_interfaces(lnet: &Lnet) -> Value {
    let describe = |i: &nacre_lnet::InterfaceStatus| {
        let mut m = Map::new();
        m.insert("nid".into(), json!(i.nid.to_string()));
        m.insert("status".into(), json!(if i.up { "up" } else { "down" }));
        if let Some(name) = &i.interface {
            m.insert("interfaces".into(), json!({ "0": name }));
        }
        m.insert("statistics".into(), traffic(&i.traffic));
        for (name, counts) in by_kind(&i.traffic) {
            m.insert(name.into(), counts);
        }
        let tunables = json!({"peer_timeout": i.peer_timeout_secs, "peer_credits": i.peer_credits,
            "peer_credits_max": i.peer_credits_max, "peer_buffer_credits": i.peer_buffer_credits, "credits": i.credits});
        m.insert("tunables".into(), tunables);
        m.insert("lnd tunables".into(), driver(i));
        let credits = json!({"available_tx_credits": i.available_tx_credits, "min_tx_credits": i.min_tx_credits,
            "tx_q_num_of_buf": i.tx_queued});
        m.insert("credits".into(), credits);
        let Failures { dropped, aborted, timeouts, error } = i.failures;
        // Nothing interrupts a send, and a message without a route belongs to no interface.
        let health = json!({"health value": i.health, "interrupts": 0, "dropped": dropped, "aborted": aborted,
            "no route": 0, "timeouts": timeouts, "error": error});
        m.insert("health stats".into(), health);
        // Interfaces belong to no group of processors.
        m.insert("dev cpt".into(), json!(-1));
        m.insert("CPT".into(), json!("[0]"));
        Value::Object(m)
    };
    Value::Array(lnet.interfaces().iter().map(describe).collect())
}

/// What is shown of an interface's driver: its number of connections and its timeout as they are, and the other settings as an administrator has
/// made them, 0 for those that were not made.
fn driver(i: &nacre_lnet::InterfaceStatus) -> Value {
    let mut shown = json!({"conns_per_peer": i.conns_per_peer, "timeout": i.timeout_secs});
    let Some(tcp) = &i.tunables else { return shown };
    shown["conns_per_peer_fixed"] = json!(tcp.conns_per_peer != 0);
    for (name, value) in [
        ("tx_buffer_size", tcp.tx_buffer_size),
        ("rx_buffer_size", tcp.rx_buffer_size),
        ("sock_timeout", tcp.sock_timeout),
        ("keepalive_idle", tcp.keepalive_idle),
        ("keepalive_intvl", tcp.keepalive_intvl),
        ("keepalive_count", tcp.keepalive_count),
    ] {
        shown[name] = json!(value);
    }
    shown["congestion_control"] = json!(tcp.congestion_control.as_deref().unwrap_or(HOST_DEFAULT));
    shown
}

/// The peers of a node. The NIDs of a peer with several are together.
pub(crate) fn describe_peers(lnet: &Lnet) -> Value {
    let (statuses, multi_rail) = (lnet.peers(), lnet.peers_with_nids());
    let is_single = |nid: &Nid| !multi_rail.iter().any(|peer| peer.nids.iter().any(|(known, _)| known == nid));
    let ni = |nid: &Nid, in_use: bool| {
        // A NID may be known on several interfaces of this node.
        let all: Vec<&PeerStatus> = statuses.iter().filter(|status| status.primary_nid == *nid).collect();
        let mut described: Vec<Value> = all.iter().map(|status| describe_peer_ni(status, in_use)).collect();
        if described.is_empty() {
            described.push(json!({"nid": nid.to_string(), "state": if in_use { "NA" } else { "down" }}));
        }
        described
    };
    let several = multi_rail.iter().map(|peer| {
        let nis: Vec<Value> = peer.nids.iter().flat_map(|(nid, in_use)| ni(nid, *in_use)).collect();
        let is_multi_rail = peer.nids.len() > 1 || peer.is_configured;
        (
            peer.primary,
            json!({"primary nid": peer.primary.to_string(), "Multi-Rail": is_multi_rail,
                "configured": peer.is_configured, "peer ni": nis}),
        )
    });
    let single = statuses.iter().filter(|status| is_single(&status.primary_nid)).map(|status| {
        let (nid, ni) = (status.primary_nid, describe_peer_ni(status, true));
        (nid, json!({"primary nid": nid.to_string(), "Multi-Rail": false, "peer ni": [ni]}))
    });
    let mut all: Vec<(Nid, Value)> = several.chain(single).collect();
    all.sort_by_key(|(nid, _)| *nid);
    Value::Array(all.into_iter().map(|(_, peer)| peer).collect())
}

fn describe_peer_ni(p: &PeerStatus, in_use: bool) -> Value {
    let state = match p.up {
        _ if !in_use => "down",
        Some(true) => "up",
        Some(false) => "down",
        None => "NA",
    };
    let mut m = Map::new();
    let described = json!({"nid": p.primary_nid.to_string(), "state": state,
        "max_ni_tx_credits": p.max_ni_tx_credits, "available_tx_credits": p.available_tx_credits,
        "min_tx_credits": p.min_tx_credits, "tx_q_num_of_buf": p.tx_q_num_of_buf,
        "available_rtr_credits": p.available_rtr_credits, "min_rtr_credits": p.min_rtr_credits,
        "refcount": p.refcount, "statistics": traffic(&p.traffic)});
    m.extend(described.as_object().cloned().unwrap_or_default());
    m.extend(by_kind(&p.traffic).into_iter().map(|(name, counts)| (name.to_owned(), counts)));
    m.insert("health stats".into(), json!({"health value": p.health}));
    m.insert("connections".into(), json!(p.connections));
    Value::Object(m)
}

/// The open connections of a node.
pub(crate) fn describe_connections(lnet: &Lnet) -> Value {
    let describe = |c: &nacre_lnet::ConnectionStatus| {
        json!({"nid": c.peer.to_string(), "type": c.kind.to_string(), "interface": c.interface.to_string(),
            "dialed": c.dialed})
    };
    Value::Array(lnet.connections().iter().map(describe).collect())
}

/// The message counts of a node.
pub(crate) fn describe_stats(lnet: &Lnet) -> Value {
    let stats = lnet.stats();
    Value::Object(Stats::FIELDS.iter().map(|(name, read)| ((*name).to_owned(), json!(read(&stats)))).collect())
}

/// Registers the message counts of a node: all together, as Lustre has them, and each as a metric.
pub(crate) fn add_params(node: &Node) {
    let lnet = node.lnet().clone();
    node.params().add("stats", move || {
        let (stats, mut fields) = (lnet.stats(), Fields::default());
        Stats::FIELDS.iter().for_each(|(name, read)| fields.push(*name, read(&stats)));
        Drawn { fields, draw: draw_stats }
    });
    for (name, read) in Stats::FIELDS {
        let lnet = node.lnet().clone();
        node.params().add(format!("lnet.{name}"), move || read(&lnet.stats()));
    }
}

/// The counts that Lustre shows in one line, in its order.
const LINE: [&str; 11] = [
    "msgs_alloc",
    "msgs_max",
    "errors",
    "send_count",
    "recv_count",
    "route_count",
    "drop_count",
    "send_length",
    "recv_length",
    "route_length",
    "drop_length",
];

fn draw_stats(stats: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = |name| stats.0.iter().find(|f| f.name == name).map(|f| f.value.to_string()).unwrap_or_default();
    let numbers = LINE.map(number);
    f.write_str(&numbers.join(" "))
}

fn traffic(t: &Traffic) -> Value {
    let mut m = Map::new();
    for (name, counts) in [("send_count", t.sent), ("recv_count", t.received), ("drop_count", t.dropped)] {
        m.insert(name.into(), json!(counts.total()));
    }
    let mut latency = |name: &str, l: &Latency| {
        m.insert(format!("{name}_samples"), json!(l.samples));
        m.insert(format!("{name}_min_nsec"), json!(l.min_nsec));
        m.insert(format!("{name}_max_nsec"), json!(l.max_nsec));
        m.insert(format!("{name}_avg_nsec"), json!(l.avg_nsec()));
    };
    latency("put_egress", &t.put_egress);
    latency("get_rtt", &t.get_rtt);
    // No acknowledgements are asked for.
    latency("put_ack", &Latency::default());
    Value::Object(m)
}

/// Messages by kind, under lnetctl's names.
fn by_kind(t: &Traffic) -> [(&'static str, Value); 3] {
    let counts =
        |ByKind { put, get, reply, ack }| json!({"put": put, "get": get, "reply": reply, "ack": ack, "hello": 0});
    [("sent_stats", counts(t.sent)), ("received_stats", counts(t.received)), ("dropped_stats", counts(t.dropped))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::openmetrics::Dialect;
    use nacre_base::{Faults, Time};
    use nacre_lnet::{LnetOptions, SimNet, SimNetOptions};
    use nacre_rt::Sim;
    use std::time::Duration;

    /// Two nodes on two networks: one of them knows the other by both NIDs, and a third node by one.
    #[test]
    fn the_nids_of_a_peer_are_shown_together() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        let peers = sim.block_on(Time::from_secs(60), async move {
            let nets = ["sim1", "sim2"].map(|name| {
                let options = SimNetOptions { network: name.parse().unwrap(), ..SimNetOptions::default() };
                SimNet::new(rt.clone(), options)
            });
            let node = |number: u32, count: usize| {
                let lnet = Lnet::new(rt.child("node"), LnetOptions::default(), Faults::new());
                nets[..count].iter().for_each(|net| assert_eq!(lnet.add_sim_as(net, number), net.nid(number)));
                lnet
            };
            let (this, other, third) = (node(1, 2), node(2, 2), node(3, 1));
            let second = Duration::from_secs(1);
            assert_eq!(this.discover(nets[1].nid(2), second).await.unwrap(), other.nids());
            assert_eq!(this.discover(nets[0].nid(3), second).await.unwrap(), third.nids());
            this.add_peer(nets[0].nid(9), &[nets[1].nid(9)]).unwrap();
            describe_peers(&this)
        });
        let shown = |peer: &Value| {
            let nis = peer["peer ni"].as_array().unwrap().iter();
            let nis: Vec<_> = nis.map(|ni| format!("{} {}", ni["nid"].as_str().unwrap(), ni["state"])).collect();
            (peer["primary nid"].to_string(), peer["Multi-Rail"] == true, peer["configured"] == true, nis.join(", "))
        };
        let text = str::to_owned;
        let want = [
            (text("\"2@sim1\""), true, false, text("2@sim1 \"up\", 2@sim2 \"up\"")),
            (text("\"3@sim1\""), false, false, text("3@sim1 \"up\"")),
            (text("\"9@sim1\""), true, true, text("9@sim1 \"up\", 9@sim2 \"NA\"")),
        ];
        assert_eq!(peers.as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), want);
        assert_eq!(peers[0]["peer ni"][1]["health stats"]["health value"], 1000);
    }

    #[test]
    fn the_counters_of_the_network_are_parameters_and_metrics() {
        let mut sim = Sim::new(1);
        let lnet = Lnet::new(sim.rt(), LnetOptions::default(), Faults::new());
        let node = Node::new(sim.rt(), lnet.clone(), Faults::new());
        add_params(&node);
        let pinged = lnet.clone();
        sim.block_on(Time::from_secs(60), async move { pinged.ping(Nid::LO, Duration::from_secs(1)).await }).unwrap();

        let stats = lnet.stats();
        assert!(stats.send_count > 0 && stats.recv_length > 0, "{stats:?}");
        let fields = node.params().value("stats").unwrap();
        for (name, read) in Stats::FIELDS {
            let count = Some(i128::from(read(&stats)));
            assert_eq!(node.params().value(&format!("lnet.{name}")).and_then(|value| value.number()), count, "{name}");
            assert_eq!(fields.field(name).and_then(|value| value.number()), count, "{name}");
            assert_eq!(describe_stats(&lnet)[name], json!(read(&stats)));
        }
        let text = node.params().get("stats").unwrap().remove(0).1;
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!((numbers.len(), numbers[3], numbers[8]), (11, stats.send_count, stats.recv_length), "{text}");
        let metrics = node.params().metrics(Dialect::OpenMetrics);
        let has = |sample: String| assert!(metrics.contains(&sample), "no {sample} in {metrics}");
        has(format!("\nnacre_lnet_messages_sent_total {}\n", stats.send_count));
        has(format!("\nnacre_lnet_received_bytes_total {}\n", stats.recv_length));
        has("\n# TYPE nacre_lnet_messages gauge\n".to_owned());
        assert_eq!(metrics.matches("# TYPE nacre_lnet_").count(), Stats::FIELDS.len(), "{metrics}");
        assert!(!metrics.contains("_count_total"), "{metrics}");
    }
}
