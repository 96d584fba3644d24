//! Interfaces, peers and message counts of a node, with lnetctl's names for everything.

use nacre_lnet::{Latency, Lnet, Traffic};
use serde_json::{Map, Value, json};

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
        let tunables = json!({"peer_timeout": i.peer_timeout_secs, "peer_credits": i.peer_credits,
            "peer_buffer_credits": i.peer_buffer_credits, "credits": i.credits});
        m.insert("tunables".into(), tunables);
        m.insert("lnd tunables".into(), json!({"conns_per_peer": i.conns_per_peer, "timeout": i.timeout_secs}));
        let credits = json!({"available_tx_credits": i.available_tx_credits, "min_tx_credits": i.min_tx_credits,
            "tx_q_num_of_buf": i.tx_queued});
        m.insert("credits".into(), credits);
        m.insert("health stats".into(), json!({"health value": i.health}));
        Value::Object(m)
    };
    Value::Array(lnet.interfaces().iter().map(describe).collect())
}

/// The peers of a node.
pub(crate) fn describe_peers(lnet: &Lnet) -> Value {
    let describe = |p: &nacre_lnet::PeerStatus| {
        let ni = |nid: &nacre_base::Nid| {
            json!({"nid": nid.to_string(), "state": match p.up { Some(true) => "up", Some(false) => "down", None => "NA" },
                "max_ni_tx_credits": p.max_ni_tx_credits, "available_tx_credits": p.available_tx_credits,
                "min_tx_credits": p.min_tx_credits, "tx_q_num_of_buf": p.tx_q_num_of_buf,
                "available_rtr_credits": p.available_rtr_credits, "min_rtr_credits": p.min_rtr_credits,
                "refcount": p.refcount, "statistics": traffic(&p.traffic)})
        };
        json!({"primary nid": p.primary_nid.to_string(), "Multi-Rail": p.nids.len() > 1,
            "peer ni": p.nids.iter().map(ni).collect::<Vec<_>>()})
    };
    Value::Array(lnet.peers().iter().map(describe).collect())
}

/// The message counts of a node.
pub(crate) fn describe_stats(lnet: &Lnet) -> Value {
    Value::Object(lnet.stats().entries().into_iter().map(|(n, v)| (n.to_owned(), json!(v))).collect())
}

fn traffic(t: &Traffic) -> Value {
    let mut m = Map::new();
    for (name, v) in [("send_count", t.send_count), ("recv_count", t.recv_count), ("drop_count", t.drop_count)] {
        m.insert(name.into(), json!(v));
    }
    let mut latency = |name: &str, l: &Latency| {
        m.insert(format!("{name}_samples"), json!(l.samples));
        m.insert(format!("{name}_min_nsec"), json!(l.min_nsec));
        m.insert(format!("{name}_max_nsec"), json!(l.max_nsec));
        m.insert(format!("{name}_avg_nsec"), json!(l.avg_nsec()));
    };
    latency("put_egress", &t.put_egress);
    latency("get_rtt", &t.get_rtt);
    latency("put_ack", &t.put_ack);
    Value::Object(m)
}
