//! Routes and router buffers of a process's node, for the admin socket, with lnetctl's names for everything.

use nacre_base::{Errno, Network, Nid};
use nacre_lnet::{Explanation, GatewayState, Level, Lnet, PoolKind, Route, RouteError, RouterOptions, Way};
use nacre_node::Node;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Why a change was not made.
pub(crate) type Refusal = (Errno, String);

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

impl Buffers {
    /// The options with these sizes.
    pub fn of(self, options: RouterOptions) -> RouterOptions {
        RouterOptions {
            tiny_buffers: self.tiny.unwrap_or(options.tiny_buffers),
            small_buffers: self.small.unwrap_or(options.small_buffers),
            large_buffers: self.large.unwrap_or(options.large_buffers),
            ..options
        }
    }
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
pub(crate) fn explain_route(node: &Node, nid: &str) -> Result<Value, Refusal> {
    let nid: Nid = nid.parse().map_err(invalid)?;
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
            m.insert("left unanswered".into(), json!(state.is_avoided));
            m.insert("heard just now".into(), json!(!state.is_silent));
            m.insert("queued bytes".into(), json!(state.queued_bytes));
            m.insert("available credits".into(), json!(state.available_credits));
            m.insert("messages".into(), json!(state.sequence));
        }
        Value::Object(m)
    };
    let routes: Vec<Value> = routes.iter().map(describe).collect();
    Ok(json!({"node": node.lnet().nids().first().map(Nid::to_string), "nid": nid.to_string(), "way": by, "why": why,
        "routes": routes}))
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
    json!({"enable": u8::from(status.enabled), "lanes": u8::from(status.options.lanes), "pools": pools.map(describe).collect::<Map<_, _>>()})
}

/// Adds a route, given in Lustre's form.
pub(crate) fn add_route(node: &Node, route: &str) -> Result<(), Refusal> {
    node.lnet().add_route(route.parse::<Route>().map_err(invalid)?).map_err(refused)
}

/// Removes a route.
pub(crate) fn remove_route(node: &Node, network: &str, gateway: &str) -> Result<(), Refusal> {
    let network = network.parse::<Network>().map_err(invalid)?;
    node.lnet().remove_route(network, gateway.parse::<Nid>().map_err(invalid)?).map_err(refused)
}

/// Makes the node a router, as it was before if it was one, or ends that.
pub(crate) async fn enable(node: &Node, enabled: bool) -> Result<(), Refusal> {
    let lnet = node.lnet();
    if !enabled {
        if !node.end("router").await {
            lnet.drain_routing().await;
        }
    } else if lnet.nids().len() < 2 {
        return Err((Errno::EINVAL, "this process is on one network only, so there is nothing to route".to_owned()));
    } else {
        let options = lnet.routing().map(|status| status.options).unwrap_or_default();
        lnet.start_routing(&RouterOptions { lanes: lnet.has_lanes(), ..options });
    }
    Ok(())
}

/// Changes the sizes of a router's pools.
pub(crate) fn resize(lnet: &Lnet, buffers: Buffers) -> Result<(), Refusal> {
    let now = options_of_router(lnet)?;
    let wanted = buffers.of(now);
    wanted.check().map_err(|why| (Errno::EINVAL, why))?;
    lnet.set_buffers(wanted.buffers());
    Ok(())
}

fn options_of_router(lnet: &Lnet) -> Result<RouterOptions, Refusal> {
    let why = "this process is no router: lnetctl set routing 1 makes it one";
    lnet.routing().map(|status| status.options).ok_or_else(|| (Errno::EINVAL, why.to_owned()))
}

fn invalid(e: impl std::fmt::Display) -> Refusal {
    (Errno::EINVAL, e.to_string())
}

fn refused(e: RouteError) -> Refusal {
    let errno = match e {
        RouteError::Exists(..) => Errno::EEXIST,
        RouteError::Missing(..) => Errno::ENOENT,
        RouteError::Gateway(_) => Errno::EHOSTUNREACH,
        RouteError::Local(_) | RouteError::Itself(_) | RouteError::Hops(_) => Errno::EINVAL,
    };
    (errno, e.to_string())
}
