//! The tables that Lustre shows in `/sys/kernel/debug/lnet`, for `lctl get_param peers nis buffers routers routes`: what an
//! administrator reads, and the scripts that watch `min`, the low-water mark of credits and buffers.

use crate::Node;
use nacre_base::Nid;
use nacre_base::param::declared::{Declared, Kind};
use nacre_base::param::series::{Series, fields, number};
use nacre_base::param::value::{Column, Drawn, Field, Fields, Head, Histograms, Table, Value, Window};
use nacre_lnet::{Lnet, PoolKind, Route, WAIT_BOUNDS, Waits};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The tables, as parameters.
pub(crate) const PARAMS: &[Declared] = &[
    Declared::text(
        &[],
        "peers",
        "Peers of the network, their credits and router credits, and the lowest that these have been.",
    )
    .series(peer_series),
    Declared::text(
        &[],
        "links",
        "Packets to and from each peer, those that were lost and sent again, and the time of a round trip.",
    ),
    Declared::text(&[], "nis", "Interfaces of the network, their credits, and the lowest that these have been.")
        .series(interface_series),
    Declared::text(&[], "buffers", "Buffers of a router by pool, those that are free, and the lowest that was.")
        .series(buffer_series),
    Declared::shown(
        &[],
        "credit_waits",
        Kind::Histograms,
        "How long messages that had to wait did so: for a credit of their peer or their interface and, on a router, for a \
         router credit or a buffer.",
    )
    .metric("lnet_credit_wait"),
    Declared::text(&[], "routers", "Routers that routes lead through, and whether they are alive.").series(router_series),
    Declared::text(&[], "routes", "Routes to other networks."),
];

impl Node {
    /// Registers the tables of the node's network. Thousands of simulated clients have none, to save memory.
    pub fn list_network(&self) {
        let tables: [(&str, Draw); 5] =
            [("peers", peers), ("links", links), ("nis", nis), ("buffers", buffers), ("routers", routers)];
        for (name, table) in tables {
            let lnet = self.lnet().clone();
            self.params().add(name, move || table(&lnet));
        }
        let (lnet, rt) = (self.lnet().clone(), self.rt().clone());
        self.params().add("credit_waits", move || credit_waits(&lnet, Window { now: rt.wall(), began: None }));
        let lnet = self.lnet().clone();
        self.params().add("routes", move || routes(&lnet));
    }
}

/// Draws a table of a node's network.
type Draw = fn(&Lnet) -> Drawn;

/// Draws a line for each field of a table. `row` gets the field's name, and the values in the field that `columns` names.
fn draw_rows<const N: usize>(
    table: &Fields,
    columns: [&str; N],
    mut row: impl FnMut(&str, [&str; N]) -> fmt::Result,
) -> fmt::Result {
    for field in &table.0 {
        let cells = columns.map(|name| field.value.field(name).map(ToString::to_string).unwrap_or_default());
        row(&field.name, cells.each_ref().map(String::as_str))?;
    }
    Ok(())
}

/// For each peer: its router credits (`rtr`), its credits (`tx`), and the lowest that each has been. `last`, the age of the last
/// message, is always -1, because nobody keeps it.
fn peers(lnet: &Lnet) -> Drawn {
    let mut all = Fields::default();
    for peer in lnet.peers() {
        let state = match peer.up {
            Some(true) => "up",
            Some(false) => "down",
            None => "NA",
        };
        let mut fields = Fields::default();
        fields.push("refs", peer.refcount);
        fields.push("state", state);
        fields.push("last", -1_i64);
        fields.push("max", peer.max_ni_tx_credits);
        fields.push("rtr", peer.available_rtr_credits);
        fields.push("min_rtr", peer.min_rtr_credits);
        fields.push("tx", peer.available_tx_credits);
        fields.push("min_tx", peer.min_tx_credits);
        fields.push("queue", peer.tx_q_num_of_buf);
        all.push(peer.primary_nid.to_string(), fields);
    }
    Drawn { fields: all, draw: draw_peers }
}

fn draw_peers(peers: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut row = |nid: &str, cells: [&str; 9]| {
        let [refs, state, last, max, rtr, min_rtr, tx, min_tx, queue] = cells;
        writeln!(
            f,
            "{nid:<24} {refs:>4} {state:>5} {last:>5} {max:>5} {rtr:>5} {min_rtr:>5} {tx:>5} {min_tx:>5} {queue}"
        )
    };
    row("nid", ["refs", "state", "last", "max", "rtr", "min", "tx", "min", "queue"])?;
    draw_rows(peers, ["refs", "state", "last", "max", "rtr", "min_rtr", "tx", "min_tx", "queue"], row)
}

/// Counts the peers, and those that are down or short of credits. A peer has no series of its own, because a server has thousands of
/// peers.
fn peer_series(peers: &Value) -> Vec<Series> {
    let count = |metric, holds: &dyn Fn(&Value) -> bool| {
        Series::gauge(metric, fields(peers).iter().filter(|peer| holds(&peer.value)).count() as i128)
    };
    let is_down = |peer: &Value| peer.field("state").and_then(Value::text) == Some("down");
    vec![
        count("lnet_peers", &|_| true),
        count("lnet_peers_down", &is_down),
        count("lnet_peers_without_credits", &|peer| number(peer, "tx") < 0),
        count("lnet_peers_without_router_credits", &|peer| number(peer, "rtr") < 0),
    ]
}

/// For each peer, over the connections that are open now: packets sent, packets sent again, packets received, packets received after a gap,
/// and microseconds of a round trip.
fn links(lnet: &Lnet) -> Drawn {
    let mut all = Fields::default();
    for link in lnet.links() {
        let mut fields = Fields::default();
        fields.push("sent", link.sent);
        fields.push("resent", link.resent);
        fields.push("received", link.received);
        fields.push("disordered", link.disordered);
        fields.push("round_trip_us", link.round_trip_us);
        all.push(link.peer.to_string(), fields);
    }
    Drawn { fields: all, draw: draw_links }
}

fn draw_links(links: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut row = |nid: &str, [sent, resent, received, disordered, round_trip]: [&str; 5]| {
        writeln!(f, "{nid:<24} {sent:>12} {resent:>8} {received:>12} {disordered:>10} {round_trip:>10}")
    };
    row("nid", ["sent", "resent", "received", "disordered", "rtt_us"])?;
    draw_rows(links, ["sent", "resent", "received", "disordered", "round_trip_us"], row)
}

/// For each interface: the credits of a peer and of the interface, and the lowest that the latter have been.
fn nis(lnet: &Lnet) -> Drawn {
    let mut all = Fields::default();
    for ni in lnet.interfaces() {
        let mut fields = Fields::default();
        fields.push("status", if ni.up { "up" } else { "down" });
        fields.push("alive", 0_u64);
        fields.push("refs", 1 + (i64::from(ni.credits) - ni.available_tx_credits).max(0));
        fields.push("peer", ni.peer_credits);
        fields.push("rtr", ni.peer_buffer_credits);
        fields.push("max", ni.credits);
        fields.push("tx", ni.available_tx_credits);
        fields.push("min", ni.min_tx_credits);
        all.push(ni.nid.to_string(), fields);
    }
    Drawn { fields: all, draw: draw_nis }
}

fn draw_nis(nis: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const COLUMNS: [&str; 8] = ["status", "alive", "refs", "peer", "rtr", "max", "tx", "min"];
    let mut row = |nid: &str, [status, alive, refs, peer, rtr, max, tx, min]: [&str; 8]| {
        writeln!(f, "{nid:<24} {status:>6} {alive:>5} {refs:>4} {peer:>4} {rtr:>4} {max:>5} {tx:>5} {min:>5}")
    };
    row("nid", COLUMNS)?;
    draw_rows(nis, COLUMNS, row)
}

/// The credits of each interface and those that are left. A number below zero counts the messages that wait for a credit.
fn interface_series(nis: &Value) -> Vec<Series> {
    let of = |nid: &str, metric, number| Series::gauge(metric, number).of("nid", nid);
    let all = fields(nis).iter().flat_map(|ni| {
        let (max, left) = (number(&ni.value, "max"), number(&ni.value, "tx"));
        [of(&ni.name, "lnet_interface_credits", max), of(&ni.name, "lnet_interface_credits_left", left)]
    });
    all.collect()
}

/// For each pool of a router: its buffers, those that are free (below zero, the messages that wait), and the lowest that was.
fn buffers(lnet: &Lnet) -> Drawn {
    let mut all = Fields::default();
    for (kind, level) in PoolKind::ALL.iter().zip(lnet.routing().into_iter().flat_map(|status| status.pools)) {
        let mut fields = Fields::default();
        fields.push("pages", kind.pages());
        fields.push("count", level.max);
        fields.push("credits", level.available);
        fields.push("min", level.low_water);
        all.push(kind.name(), fields);
    }
    Drawn { fields: all, draw: draw_buffers }
}

fn draw_buffers(pools: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const COLUMNS: [&str; 4] = ["pages", "count", "credits", "min"];
    let mut row =
        |_: &str, [pages, count, credits, min]: [&str; 4]| writeln!(f, "{pages:>5} {count:>5} {credits:>7} {min:>7}");
    row("", COLUMNS)?;
    draw_rows(pools, COLUMNS, row)
}

/// The buffers of each pool and those that are free. A number below zero counts the messages that wait for a buffer.
fn buffer_series(pools: &Value) -> Vec<Series> {
    let of = |pool: &str, metric, number| Series::gauge(metric, number).of("pool", pool);
    let all = fields(pools).iter().flat_map(|pool| {
        let (count, free) = (number(&pool.value, "count"), number(&pool.value, "credits"));
        [of(&pool.name, "lnet_router_buffers", count), of(&pool.name, "lnet_router_buffers_free", free)]
    });
    all.collect()
}

/// Histograms of the waits for each kind of credit and buffer.
fn credit_waits(lnet: &Lnet, window: Window) -> Histograms {
    let waits = lnet.waits();
    let [tiny, small, large] = waits.buffers;
    let columns = [
        ("peer", waits.peer_credits),
        ("interface", waits.interface_credits),
        ("router", waits.router_credits),
        ("tiny", tiny),
        ("small", small),
        ("large", large),
    ];
    let column = |(name, waits): (_, Waits)| Column { name, counts: waits.counts.to_vec(), sum: Some(waits.total_us) };
    let table = Table {
        title: "waited (usecs)",
        counted: "messages",
        head: Head::Rpc,
        bounds: WAIT_BOUNDS,
        metric: "time",
        unit: "us",
        columns: columns.into_iter().map(column).collect(),
    };
    Histograms { window, levels: Vec::new(), tables: vec![table] }
}

/// For each gateway: how many routes lead through it, and whether it is alive.
fn routers(lnet: &Lnet) -> Drawn {
    let mut gateways: BTreeMap<Nid, (u32, bool)> = BTreeMap::new();
    for status in lnet.routes() {
        let (count, alive) = gateways.entry(status.route.gateway).or_default();
        (*count, *alive) = (*count + 1, *alive || status.up);
    }
    let mut all = Fields::default();
    for (gateway, (count, alive)) in gateways {
        let mut fields = Fields::default();
        fields.push("ref", count + 1);
        fields.push("rtr_ref", count);
        fields.push("alive", if alive { "up" } else { "down" });
        all.push(gateway.to_string(), fields);
    }
    Drawn { fields: all, draw: draw_routers }
}

fn draw_routers(routers: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const COLUMNS: [&str; 3] = ["ref", "rtr_ref", "alive"];
    let mut row =
        |router: &str, [count, routes, alive]: [&str; 3]| writeln!(f, "{count:<4} {routes:>7} {alive:>5} {router}");
    row("router", COLUMNS)?;
    draw_rows(routers, COLUMNS, row)
}

/// Whether each router is alive.
fn router_series(routers: &Value) -> Vec<Series> {
    let is_up = |router: &Value| router.field("alive").and_then(Value::text) == Some("up");
    let one =
        |router: &Field| Series::gauge("lnet_router_up", i128::from(is_up(&router.value))).of("router", &*router.name);
    fields(routers).iter().map(one).collect()
}

/// Whether the node passes messages on, and its routes.
fn routes(lnet: &Lnet) -> String {
    let enabled = lnet.routing().is_some_and(|status| status.enabled);
    let mut text = format!("Routing {}\n", if enabled { "enabled" } else { "disabled" });
    // Here and below: writing to a String cannot fail.
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
            client.list_network();
            router.list_network();
            lnet.ping(Nid::sim(2), std::time::Duration::from_secs(1)).await.unwrap();

            let of = |node: &Node, name: &str| node.params().get(name).unwrap().remove(0).1;
            let shown = |name: &str| of(&client, name);
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
                of(&router, "buffers"),
                "pages count credits     min\n    0  2048    2048    2048\n    1 16384   16384   16384\n  256  1024    1024    1024\n"
            );
            assert!(routes(router.lnet()).starts_with("Routing enabled\n"));
        });
    }
}
