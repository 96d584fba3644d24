//! The tables that Lustre shows in `/sys/kernel/debug/lnet`, for `lctl get_param peers nis buffers routers routes`: what an
//! administrator reads, and the scripts that watch `min`, the low-water mark of credits and buffers.

use nacre_base::Nid;
use nacre_lnet::{Lnet, PoolKind, Route};
use nacre_node::Node;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A table made from the state of a node's network.
type Table = fn(&Lnet) -> String;

/// Registers the tables of a node.
pub(crate) fn add_params(node: &Node) {
    let tables: [(&str, Table); 5] =
        [("peers", peers), ("nis", nis), ("buffers", buffers), ("routers", routers), ("routes", routes)];
    for (name, table) in tables {
        let lnet = node.lnet().clone();
        node.params().add(name, move || table(&lnet));
    }
}

/// For each peer: its router credits (`rtr`), its credits (`tx`), and the lowest that each has been. `last`, the age of the last
/// message, is always -1, because nobody keeps it.
fn peers(lnet: &Lnet) -> String {
    let mut text = row("nid", "refs", "state", "last", ["max", "rtr", "min", "tx", "min"], "queue");
    for peer in lnet.peers() {
        let state = match peer.up {
            Some(true) => "up",
            Some(false) => "down",
            None => "NA",
        };
        let numbers = [
            peer.max_ni_tx_credits.into(),
            peer.available_rtr_credits,
            peer.min_rtr_credits,
            peer.available_tx_credits,
            peer.min_tx_credits,
        ];
        let numbers = numbers.map(|n| n.to_string());
        let numbers = numbers.each_ref().map(String::as_str);
        let (nid, refs) = (peer.primary_nid.to_string(), peer.refcount.to_string());
        text += &row(&nid, &refs, state, "-1", numbers, &peer.tx_q_num_of_buf.to_string());
    }
    text
}

fn row(nid: &str, refs: &str, state: &str, last: &str, numbers: [&str; 5], queue: &str) -> String {
    let [max, rtr, min_rtr, tx, min_tx] = numbers;
    format!("{nid:<24} {refs:>4} {state:>5} {last:>5} {max:>5} {rtr:>5} {min_rtr:>5} {tx:>5} {min_tx:>5} {queue}\n")
}

/// For each interface: the credits of a peer and of the interface, and the lowest that the latter have been.
fn nis(lnet: &Lnet) -> String {
    let mut text = format!(
        "{:<24} {:>6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5}\n",
        "nid", "status", "alive", "refs", "peer", "rtr", "max", "tx", "min"
    );
    for ni in lnet.interfaces() {
        let status = if ni.up { "up" } else { "down" };
        let refs = 1 + (i64::from(ni.credits) - ni.available_tx_credits).max(0);
        // Here and below: writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<24} {status:>6} {:>5} {refs:>4} {:>4} {:>4} {:>5} {:>5} {:>5}",
            ni.nid.to_string(),
            0,
            ni.peer_credits,
            ni.peer_buffer_credits,
            ni.credits,
            ni.available_tx_credits,
            ni.min_tx_credits
        );
    }
    text
}

/// For each pool of a router: its buffers, those that are free (below zero, the messages that wait), and the lowest that was.
fn buffers(lnet: &Lnet) -> String {
    let mut text = format!("{:>5} {:>5} {:>7} {:>7}\n", "pages", "count", "credits", "min");
    for (kind, level) in PoolKind::ALL.iter().zip(lnet.routing().into_iter().flat_map(|status| status.pools)) {
        let _ = writeln!(text, "{:>5} {:>5} {:>7} {:>7}", kind.pages(), level.max, level.available, level.low_water);
    }
    text
}

/// For each gateway: how many routes lead through it, and whether it is alive.
fn routers(lnet: &Lnet) -> String {
    let mut gateways: BTreeMap<Nid, (u32, bool)> = BTreeMap::new();
    for status in lnet.routes() {
        let (count, alive) = gateways.entry(status.route.gateway).or_default();
        (*count, *alive) = (*count + 1, *alive || status.up);
    }
    let mut text = format!("{:<4} {:>7} {:>5} {}\n", "ref", "rtr_ref", "alive", "router");
    for (gateway, (count, alive)) in gateways {
        let _ = writeln!(text, "{:<4} {count:>7} {:>5} {gateway}", count + 1, if alive { "up" } else { "down" });
    }
    text
}

/// Whether the node passes messages on, and its routes.
fn routes(lnet: &Lnet) -> String {
    let enabled = lnet.routing().is_some_and(|status| status.enabled);
    let mut text = format!("Routing {}\n", if enabled { "enabled" } else { "disabled" });
    let _ = writeln!(text, "{:<8} {:>4} {:>8} {:>7} router", "net", "hops", "priority", "state");
    for status in lnet.routes() {
        let Route { network, gateway, hops, priority } = status.route;
        let hops = hops.map_or(-1, i64::from);
        let state = if status.up { "up" } else { "down" };
        let _ = writeln!(text, "{:<8} {hops:>4} {priority:>8} {state:>7} {gateway}", network.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_lnet::{RouterOptions, SimNet, SimNetOptions};
    use nacre_rt::Sim;

    #[test]
    fn the_tables_look_like_lustres() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(60), async move {
            let net = SimNet::new(rt.clone(), SimNetOptions::default());
            let far = SimNet::new(rt.clone(), SimNetOptions { network: "sim2".parse().unwrap(), ..SimNetOptions::default() });
            let (client, router) = (Node::simulated(rt.clone(), &net, 1), Node::simulated(rt.child("router"), &net, 2));
            router.lnet().add_sim_as(&far, 2);
            router.lnet().start_routing(&RouterOptions::default());
            let lnet = client.lnet();
            lnet.add_route("sim2 2@sim".parse().unwrap()).unwrap();
            client.params().declare(crate::PARAMS);
            add_params(&client);
            lnet.ping(Nid::sim(2), std::time::Duration::from_secs(1)).await.unwrap();

            let shown = |name: &str| client.params().get(name).unwrap().remove(0).1;
            assert_eq!(
                shown("peers"),
                "nid                      refs state  last   max   rtr   min    tx   min queue\n\
                 2@sim                       1    up    -1    32    32    32    32    31 0\n"
            );
            assert_eq!(
                shown("nis"),
                "nid                      status alive refs peer  rtr   max    tx   min\n\
                 0@lo                         up     0    1    0    0     0     0     0\n\
                 1@sim                        up     0    1   32    0  4096  4096  4095\n"
            );
            assert_eq!(
                shown("routes"),
                "Routing disabled\nnet      hops priority   state router\nsim2       -1        0      up 2@sim\n"
            );
            assert_eq!(shown("routers"), "ref  rtr_ref alive router\n2          1    up 2@sim\n");
            assert_eq!(shown("buffers"), "pages count credits     min\n");
            assert_eq!(
                buffers(router.lnet()),
                "pages count credits     min\n    0  2048    2048    2048\n    1 16384   16384   16384\n  256  1024    1024    1024\n"
            );
            assert!(routes(router.lnet()).starts_with("Routing enabled\n"));
        });
    }
}
