//! Routes and router buffers of a process's node, for the admin socket, with lnetctl's names for everything.

use crate::admin::Answer;
use nacre_base::{Errno, Network, Nid};
use nacre_lnet::{Explanation, GatewayState, Level, PoolKind, Route, RouteError, RouterOptions, Way};
use nacre_node::Node;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// New sizes of a router's pools; one that is none stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Buffers for messages without a payload.
    pub tiny: Option<u32>,
    /// Buffers of up to 4 KiB.
    pub small: Option<u32>,
    /// Buffers of up to 1 MiB.
    pub large: Option<u32>,
}

/// The routes of the node, as `lnetctl route show -v` prints them.
pub(crate) fn describe_routes(node: &Node) -> Value {
    Value::Array(node.lnet().routes().iter().map(|status| Value::Object(describe_route(status))).collect())
}

fn describe_route(status: &nacre_lnet::RouteStatus) -> Map<String, Value> {
    let Route { network, gateway, hops, priority } = status.route;
    let mut m = Map::new();
    m.insert("net".into(), json!(network.to_string()));
    m.insert("gateway".into(), json!(gateway.to_string()));
    m.insert("hop".into(), hops.map_or_else(|| json!(-1), |hops| json!(hops)));
    m.insert("priority".into(), json!(priority));
    m.insert("state".into(), json!(if status.up { "up" } else { "down" }));
    m.insert("type".into(), json!(if status.is_multi_hop { "multi-hop" } else { "single-hop" }));
    if let Some(trouble) = status.trouble {
        m.insert("reason".into(), json!(trouble));
    }
    m
}

/// How a message to a NID would leave the node now, as `lnetctl route explain` prints it.
pub(crate) fn explain_route(node: &Node, nid: &str) -> Answer {
    let nid: Nid = match nid.parse() {
        Ok(nid) => nid,
        Err(e) => return Answer::errno(Errno::EINVAL, e),
    };
    let Explanation { way, rule, routes } = node.lnet().explain(nid);
    let (by, why) = match way {
        Way::Here => ("not at all".to_owned(), "it is this node's own"),
        Way::Direct(interface) => (format!("directly from {interface}"), "the node is on this network"),
        Way::By(gateway) => {
            (format!("by gateway {gateway}"), rule.map_or("it is the only way that is up", |rule| rule.why()))
        }
        Way::None if routes.is_empty() => ("no way".to_owned(), "there is no route to the network"),
        Way::None => ("no way".to_owned(), "no route to the network is up"),
    };
    let describe = |(status, state): &(nacre_lnet::RouteStatus, Option<GatewayState>)| {
        let mut m = describe_route(status);
        if let Some(state) = state {
            m.insert("health value".into(), json!(state.health));
            m.insert("heard just now".into(), json!(!state.is_silent));
            m.insert("queued bytes".into(), json!(state.queued_bytes));
            m.insert("available credits".into(), json!(state.available_credits));
            m.insert("messages".into(), json!(state.sequence));
        }
        Value::Object(m)
    };
    let routes: Vec<Value> = routes.iter().map(describe).collect();
    Answer::Value(json!({"node": node.lnet().nids().first().map(Nid::to_string), "nid": nid.to_string(), "way": by,
        "why": why, "routes": routes}))
}

/// The buffers of the node, as `lnetctl routing show` prints them; null if it never was a router.
pub(crate) fn describe_routing(node: &Node) -> Value {
    let Some(status) = node.lnet().routing() else { return Value::Null };
    let pools = PoolKind::ALL.iter().zip(status.pools);
    let describe = |(kind, level): (&PoolKind, Level)| {
        let numbers = json!({"npages": kind.pages(), "nbuffers": level.max, "credits": level.available,
            "mincredits": level.low_water});
        (kind.name().to_owned(), numbers)
    };
    json!({"enable": u8::from(status.enabled), "pools": pools.map(describe).collect::<Map<_, _>>()})
}

/// Adds a route, given in Lustre's form.
pub(crate) fn add_route(node: &Node, route: &str) -> Answer {
    let route: Route = match route.parse() {
        Ok(route) => route,
        Err(e) => return Answer::errno(Errno::EINVAL, e),
    };
    done(node.lnet().add_route(route))
}

/// Removes a route.
pub(crate) fn remove_route(node: &Node, network: &str, gateway: &str) -> Answer {
    match (network.parse::<Network>(), gateway.parse::<Nid>()) {
        (Ok(network), Ok(gateway)) => done(node.lnet().remove_route(network, gateway)),
        (Err(e), _) | (_, Err(e)) => Answer::errno(Errno::EINVAL, e),
    }
}

/// Makes the node a router, as it was before if it was one, or ends that.
pub(crate) async fn set_routing(node: &Node, enable: bool) -> Answer {
    let lnet = node.lnet();
    if !enable {
        if !node.end("router").await {
            lnet.drain_routing().await;
        }
    } else if lnet.nids().len() < 2 {
        return Answer::errno(Errno::EINVAL, "this process is on one network only, so there is nothing to route");
    } else {
        lnet.start_routing(&lnet.routing().map(|status| status.options).unwrap_or_default());
    }
    Answer::Params(Vec::new())
}

/// Changes the sizes of a router's pools.
pub(crate) fn set_buffers(node: &Node, buffers: Buffers) -> Answer {
    let Some(now) = node.lnet().routing().map(|status| status.options) else {
        return Answer::errno(Errno::EINVAL, "this process is no router: lnetctl set routing 1 makes it one");
    };
    let wanted = RouterOptions {
        tiny_buffers: buffers.tiny.unwrap_or(now.tiny_buffers),
        small_buffers: buffers.small.unwrap_or(now.small_buffers),
        large_buffers: buffers.large.unwrap_or(now.large_buffers),
        ..now
    };
    match wanted.check() {
        Ok(()) => {
            node.lnet().set_buffers(wanted.buffers());
            Answer::Params(Vec::new())
        }
        Err(why) => Answer::errno(Errno::EINVAL, why),
    }
}

fn done(result: Result<(), RouteError>) -> Answer {
    match result {
        Ok(()) => Answer::Params(Vec::new()),
        Err(e) => {
            let errno = match e {
                RouteError::Exists(..) => Errno::EEXIST,
                RouteError::Missing(..) => Errno::ENOENT,
                RouteError::Gateway(_) => Errno::EHOSTUNREACH,
                RouteError::Local(_) | RouteError::Itself(_) | RouteError::Hops(_) => Errno::EINVAL,
            };
            Answer::errno(errno, e)
        }
    }
}
