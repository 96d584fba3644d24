//! A node between networks: the gateways that its messages go through, and, on a router, messages of others that it passes
//! on. Ties the engines (`routes`, `gateways`, `router`) to the node. The state is made when the first route is added or
//! routing is switched on, so that a node without either pays nothing for it.

use crate::credits::Packable;
use crate::error::LnetError;
use crate::frame::{self, PING_WAYS_MAX, PingInfo, ToldWay};
use crate::gateways::{Gateways, LINK_INTERVAL, SUSPECT_AFTER, Told, Unusable};
use crate::lnd::{Outbound, Receipt, Waiter};
use crate::message::{Header, Kind, Message, Portal};
use crate::node::{Interface, LOSS_MATCH_BITS, LnetNode, Loss, PING_MATCH_BITS, PUSH_MATCH_BITS};
use crate::options::PEER_CREDITS_MAX;
use crate::packed::Packed;
use crate::peers::Bringing;
use crate::router::{Held, Level, PoolKind, Router, RouterOptions, Transit};
use crate::routes::{GatewayState, HOPS_MAX, Route, RouteError, Routes, Rule};
use crate::settings::Settings;
use crate::status::bump;
use crate::waits::NodeWaits;
use crate::watcher::{Next, TICK, Watcher};
use nacre_base::{Errno, FxHashMap, Network, Nid, Payload, Time};
use parking_lot::{Mutex, RwLock};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an answer to a ping of a gateway is waited for, though the gateway is left long before.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Peers that are pinged to find out whether one of a router's interfaces works.
const NEIGHBOURS: usize = 4;
/// A router that is being stopped goes on until no message has come for so long.
const QUIET: Duration = Duration::from_millis(500);
/// How long a router that is being stopped goes on at most.
const DRAIN: Duration = Duration::from_secs(5);
/// A failure is known everywhere so long after the gateway next to it was found dead, over as many rows as there may be.
const NEWS: Duration = Duration::from_secs(2);
/// For so long messages to a node avoid a gateway by which a request to it was not answered.
const AVOIDED: Duration = Duration::from_secs(60);
/// Losses of a network that are remembered, so that one that comes by several gateways, or round in a circle, counts once.
const LOSSES: usize = 8;

/// A route as `lnetctl route show -v` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteStatus {
    /// The route.
    pub route: Route,
    /// Whether messages are sent this way.
    pub up: bool,
    /// Why not, in a word.
    pub trouble: Option<&'static str>,
    /// True if the gateway is not on the network itself, as far as is known.
    pub is_multi_hop: bool,
}

/// How a message to a NID leaves the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Not at all: the NID is this node's own.
    Here,
    /// By the node's interface with this NID, because the NID is on the same network.
    Direct(Nid),
    /// By this gateway.
    By(Nid),
    /// There is none.
    None,
}

/// A way, and what else there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The way that is taken now.
    pub way: Way,
    /// The rule that decided between the two best routes; none if there was nothing to choose.
    pub rule: Option<Rule>,
    /// All routes to the network, the best first, with what the choice knows of each gateway; none of one that cannot be used.
    pub routes: Vec<(RouteStatus, Option<GatewayState>)>,
}

/// The buffers of a router, as `lnetctl routing show` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingStatus {
    /// True while messages are passed on.
    pub enabled: bool,
    /// What the router was started with, and the sizes that its pools have now.
    pub options: RouterOptions,
    /// Pools in the order of [`PoolKind::ALL`].
    pub pools: [Level; 3],
}

/// A message that waits for its turn to be passed on.
pub(crate) struct Parked {
    message: Message,
    interface: Arc<Interface>,
    arrived: Time,
    /// Told when the message has its credit and its buffer.
    receipt: Receipt,
}

/// The same in less memory.
pub(crate) struct PackedParked {
    message: Packed,
    interface: Arc<Interface>,
    arrived: Time,
    receipt: Receipt,
}

/// Queues move what waits in them, so each is a pointer.
impl Packable for Box<Parked> {
    type Packed = Box<PackedParked>;

    fn pack(self) -> Result<Box<PackedParked>, Box<Parked>> {
        let Some(message) = Packed::pack(&self.message) else { return Err(self) };
        let Parked { interface, arrived, receipt, .. } = *self;
        Ok(Box::new(PackedParked { message, interface, arrived, receipt }))
    }

    fn unpack(packed: Box<PackedParked>) -> Box<Parked> {
        let PackedParked { message, interface, arrived, receipt } = *packed;
        Box::new(Parked { message: message.unpack(), interface, arrived, receipt })
    }
}

thread_local! {
    /// Messages that the outermost [`LnetNode::send_on`] of this thread still has to send; none while there is no such call.
    static LEFT: RefCell<Option<VecDeque<Leaving>>> = const { RefCell::new(None) };
}

/// A message with its credit and its buffer, on its way to the driver.
struct Leaving {
    node: Arc<LnetNode>,
    held: Held,
    parked: Box<Parked>,
}

impl Leaving {
    fn send(self) {
        let Leaving { node, held, parked } = self;
        let Parked { mut message, interface, arrived, receipt } = *parked;
        let next_hop = held.next_hop();
        let header = &mut message.header;
        let spent = u32::try_from((node.rt.now() - arrived).as_micros()).unwrap_or(u32::MAX);
        header.spent_us[usize::from(header.hops)] = spent;
        header.hops += 1;
        drop(receipt);
        bump(&node.counters.route_count);
        node.counters.route_length.fetch_add(message.payload.len() as u64, Ordering::Relaxed);
        let mut out = Outbound::new(&node, interface.clone(), next_hop, message, Waiter::Nobody);
        out.held = Some(held);
        out.admit(&interface);
    }
}

/// A NID on another network.
struct Distant {
    /// Gateway of the latest message from it; until there is one, the gateway of the first message to it.
    gateway: Option<Nid>,
    /// When this node last sent it a message of its own; the beginning of time before that.
    sent: Time,
    /// The gateways by which messages went to it or came from it.
    ways: Vec<WayTo>,
    /// A gateway by which it left something unanswered, and until when messages to it go by another one. Few need it.
    avoid: Option<Box<(Nid, Time)>>,
}

/// A gateway as a way to one distant NID. The times are the beginning of time before there is one.
struct WayTo {
    gateway: Nid,
    /// When a message of this node's own last went there, answers not counted.
    sent: Time,
    /// When a message from there last came by it.
    came: Time,
}

/// Gateways that are remembered of each distant NID.
const WAYS: usize = 8;

impl Distant {
    const NEW: Distant = Distant { gateway: None, sent: Time::ZERO, ways: Vec::new(), avoid: None };

    fn handle_sent(&mut self, gateway: Nid, now: Time) {
        self.sent = now;
        // Zero is for never.
        self.way(gateway).sent = now.max(Time(1));
    }

    fn handle_came(&mut self, gateway: Nid, now: Time) {
        self.gateway = Some(gateway);
        // A node that only answers, such as a server with thousands of clients, never needs to know.
        if !self.ways.is_empty() {
            self.way(gateway).came = now;
        }
    }

    fn way(&mut self, gateway: Nid) -> &mut WayTo {
        let known = self.ways.iter().position(|way| way.gateway == gateway);
        let at = known.unwrap_or_else(|| {
            self.ways.truncate(WAYS - 1);
            self.ways.push(WayTo { gateway, sent: Time::ZERO, came: Time::ZERO });
            self.ways.len() - 1
        });
        &mut self.ways[at]
    }

    /// Something that was sent by one of the gateways has no answer. Of those that nothing has come by since they were used last,
    /// the one that has been silent for longest is avoided, and the next time another one, because what was sent last may
    /// have needed no answer.
    fn handle_doubt(&mut self, now: Time) {
        let avoided = self.avoided(now);
        let silent = self.ways.iter().filter(|way| way.sent > way.came);
        let worst = silent.min_by_key(|way| (avoided == Some(way.gateway), way.came, Reverse(way.sent)));
        self.avoid = worst.map(|way| Box::new((way.gateway, now + AVOIDED)));
    }

    /// The gateway that messages to it avoid now.
    fn avoided(&self, now: Time) -> Option<Nid> {
        self.avoid.as_deref().filter(|(_, until)| now < *until).map(|(gateway, _)| *gateway)
    }
}

/// The distant NIDs that messages came from or went to.
#[derive(Default)]
struct DistantNids(FxHashMap<Nid, Distant>);

impl DistantNids {
    /// The entry of a NID. When there are too many, all are forgotten: answers then take any way.
    fn entry_of(&mut self, nid: Nid, most: usize) -> &mut Distant {
        if self.0.len() >= most && !self.0.contains_key(&nid) {
            self.0.clear();
        }
        self.0.entry(nid).or_insert(Distant::NEW)
    }
}

/// A node's routes and, on a router, what is in transit. Locks are taken in the order of the fields.
pub(crate) struct Routing {
    routes: RwLock<Routes>,
    gateways: Mutex<Gateways>,
    distant: Mutex<DistantNids>,
    /// There once routing was switched on. It stays when it is switched off, for what is still in transit.
    router: Mutex<Option<Router<Box<Parked>>>>,
    /// Messages of each peer that a router holds at most, where an administrator has said so for a network.
    buffer_credits: Mutex<BTreeMap<Network, u32>>,
    /// Whether this node says that it passes on messages of others.
    announces: AtomicBool,
    /// Whether it does; for a while longer than it says so, because of messages that are on their way to it.
    forwards: AtomicBool,
    /// A router's own interfaces, watched like gateways: one on which nothing is heard does not work.
    links: Mutex<Links>,
    /// For each network, the names of the latest failures by which messages to it may have been lost behind a gateway.
    losses: Mutex<BTreeMap<Network, VecDeque<u32>>>,
    /// When a network that no route led to any longer could last be reached again.
    returned: Mutex<BTreeMap<Network, Time>>,
    /// The networks behind other routers, as this router last told its neighbours.
    told_ways: Mutex<Vec<ToldWay>>,
    watcher: Watcher,
}

/// Interval of the watch over a router's own interfaces: zero if gateways are not pinged, because nothing is then judged by its
/// silence.
fn link_interval(of_gateways: Duration) -> Duration {
    if of_gateways.is_zero() { Duration::ZERO } else { LINK_INTERVAL }
}

/// A router's own interfaces.
struct Links {
    watch: Gateways,
    /// Whom messages were sent to lately on each.
    recent: FxHashMap<Nid, VecDeque<Nid>>,
}

impl Routing {
    fn new(settings: &Settings, now: Time) -> Routing {
        let mut gateways = Gateways::new(settings.alive_router_check_interval);
        gateways.set_rules(settings.alive_router_check_interval, settings.gateways, now);
        let watch = Gateways::new(link_interval(settings.alive_router_check_interval));
        Routing {
            routes: RwLock::default(),
            gateways: Mutex::new(gateways),
            distant: Mutex::default(),
            router: Mutex::new(None),
            buffer_credits: Mutex::default(),
            announces: AtomicBool::new(false),
            forwards: AtomicBool::new(false),
            links: Mutex::new(Links { watch, recent: FxHashMap::default() }),
            losses: Mutex::default(),
            returned: Mutex::default(),
            told_ways: Mutex::default(),
            watcher: Watcher::default(),
        }
    }

    pub(crate) fn forwards(&self) -> bool {
        self.forwards.load(Ordering::Relaxed)
    }

    /// Anything came from a peer on an interface. Returns whether it is a gateway that was dead until now, and whether nothing had
    /// been heard on the interface for a while.
    fn handle_heard(&self, via: Nid, peer: Nid, now: Time) -> (bool, bool) {
        let gateway = self.gateways.lock().handle_heard(peer, now);
        (gateway, self.forwards() && self.links.lock().watch.handle_heard(via, now))
    }

    /// The networks that this gateway leads to now.
    fn led_to(&self, gateway: Nid) -> Vec<Network> {
        let (routes, gateways) = (self.routes.read(), self.gateways.lock());
        let by = routes.all().iter().filter(|route| route.gateway == gateway).map(|route| route.network);
        by.filter(|network| gateways.trouble(gateway, *network).is_none()).collect()
    }

    /// One more gateway leads to these networks. Those to which no other does could not be reached until now.
    fn note_returned(&self, networks: &[Network], now: Time) {
        let (routes, gateways) = (self.routes.read(), self.gateways.lock());
        let ways = |network| {
            let to = routes.all().iter().filter(move |route| route.network == network);
            to.filter(|route| gateways.trouble(route.gateway, route.network).is_none()).count()
        };
        let was_cut_off = networks.iter().filter(|network| ways(**network) == 1);
        self.returned.lock().extend(was_cut_off.map(|network| (*network, now)));
    }

    /// A message is given to a peer on an interface.
    pub(crate) fn handle_sent(&self, via: Nid, peer: Nid, now: Time) {
        self.gateways.lock().handle_sent(peer, now);
        self.wake();
        if self.forwards() {
            let links = &mut *self.links.lock();
            links.watch.handle_sent(via, now);
            let recent = links.recent.entry(via).or_default();
            if !recent.contains(&peer) {
                recent.push_back(peer);
                recent.drain(..recent.len().saturating_sub(NEIGHBOURS));
            }
        }
    }

    /// Wakes the watcher, because something may be due before the time that it sleeps until.
    fn wake(&self) {
        self.watcher.wake();
    }

    fn is_gateway(&self, nid: Nid) -> bool {
        self.routes.read().has_gateway(nid)
    }

    /// Returns the gateway of the latest message from a NID, and the gateway that messages to it avoid.
    fn known_ways(&self, nid: Nid, now: Time) -> (Option<Nid>, Option<Nid>) {
        let distant = self.distant.lock();
        let Some(known) = distant.0.get(&nid) else { return (None, None) };
        (known.gateway, known.avoided(now))
    }

    /// Remembers a failure by which messages to a network may have been lost. Returns false if it is known.
    fn note_loss(&self, network: Network, loss: u32) -> bool {
        let mut losses = self.losses.lock();
        let known = losses.entry(network).or_default();
        let is_new = !known.contains(&loss);
        if is_new {
            known.push_front(loss);
            known.truncate(LOSSES);
        }
        is_new
    }

    /// Distant NIDs of these networks that messages came from or went to, in a fixed order, each with the time of this
    /// node's last message to it.
    fn distant(&self, is_meant: impl Fn(Network) -> bool) -> BTreeMap<Nid, Time> {
        let distant = self.distant.lock();
        distant.0.iter().filter(|(nid, _)| is_meant(nid.network)).map(|(nid, known)| (*nid, known.sent)).collect()
    }
}

impl LnetNode {
    pub(crate) fn routing(&self) -> Option<&Routing> {
        self.routing.get().map(|routing| &**routing)
    }

    fn routing_or_new(self: &Arc<Self>) -> &Routing {
        let routing = self.routing.get_or_init(|| Box::new(Routing::new(&self.settings.read(), self.rt.now())));
        routing.watcher.start(&self.rt, Arc::downgrade(self), LnetNode::watch);
        routing
    }

    pub(crate) fn stop_watching(&self) {
        if let Some(routing) = self.routing() {
            routing.watcher.stop();
        }
    }

    pub(crate) fn add_route(self: &Arc<Self>, route: Route) -> Result<(), RouteError> {
        let routing = self.routing_or_new();
        routing.routes.write().add(route, &self.nids())?;
        routing.gateways.lock().add(route.gateway, self.rt.now());
        routing.wake();
        Ok(())
    }

    pub(crate) fn remove_route(&self, network: Network, gateway: Nid) -> Result<(), RouteError> {
        let routing = self.routing().ok_or(RouteError::Missing(network, gateway))?;
        let mut routes = routing.routes.write();
        routes.remove(network, gateway)?;
        if !routes.has_gateway(gateway) {
            routing.gateways.lock().remove(gateway);
        }
        Ok(())
    }

    pub(crate) fn route_statuses(&self) -> Vec<RouteStatus> {
        let Some(routing) = self.routing() else { return Vec::new() };
        let (routes, gateways) = (routing.routes.read(), routing.gateways.lock());
        let status = |route: &Route| {
            let trouble = gateways.trouble(route.gateway, route.network).map(|trouble| match trouble {
                Unusable::Dead => "the gateway does not answer",
                Unusable::NotRouting => "the gateway does not pass messages on",
                Unusable::FarSideDown => "the gateway cannot reach the network",
            });
            let is_multi_hop = route.hops.is_some_and(|hops| hops > 1) || !gateways.is_on(route.gateway, route.network);
            RouteStatus { route: *route, up: trouble.is_none(), trouble, is_multi_hop }
        };
        routes.all().iter().map(status).collect()
    }

    /// Begins to pass on messages of others. If the node did so before and messages are still in transit, only the sizes of
    /// the pools change.
    pub(crate) fn start_routing(self: &Arc<Self>, options: &RouterOptions) {
        let (routing, now) = (self.routing_or_new(), self.rt.now());
        let goes = {
            let mut router = routing.router.lock();
            match router.as_mut().filter(|router| !router.is_idle()) {
                Some(router) => router.resize(options.buffers(), now),
                None => {
                    let unpacked_max = self.options.peer_queue_unpacked_max;
                    let new = Router::new(options, self.options.peer_credits_max).with_unpacked(unpacked_max);
                    let router = router.insert(new);
                    for interface in self.interfaces() {
                        router.set_peer_credits(interface.nid.network, interface.peer_credits_max(), now);
                    }
                    for (network, credits) in routing.buffer_credits.lock().iter() {
                        router.set_peer_buffer_credits(*network, *credits, now);
                    }
                    Vec::new()
                }
            }
        };
        self.set_lanes(options.lanes);
        let own = self.nids();
        own.into_iter().for_each(|nid| routing.links.lock().watch.add(nid, self.rt.now()));
        routing.forwards.store(true, Ordering::Relaxed);
        if !routing.announces.swap(true, Ordering::Relaxed) {
            tracing::info!("{}: messages of others are passed on", self.rt.name());
            self.tell_neighbours();
        }
        self.send_on(goes);
    }

    /// Changes the sizes of the pools. Returns false if this node is no router.
    pub(crate) fn set_buffers(self: &Arc<Self>, buffers: [u32; PoolKind::ALL.len()]) -> bool {
        let Some(routing) = self.routing() else { return false };
        let goes = routing.router.lock().as_mut().map(|router| router.resize(buffers, self.rt.now()));
        let is_router = goes.is_some();
        self.send_on(goes.into_iter().flatten());
        is_router
    }

    pub(crate) fn set_peer_credits(self: &Arc<Self>, network: Network, credits: u32) -> bool {
        assert!(credits <= PEER_CREDITS_MAX, "{credits} credits of a peer on {network}");
        let (least, most) = match credits {
            0 => (self.options.peer_credits, self.options.peer_credits_max),
            _ => (credits, credits),
        };
        let interfaces = self.interfaces().into_iter().filter(|interface| interface.nid.network == network);
        let now = self.rt.now();
        let found = interfaces.inspect(|interface| interface.set_peer_credits(least, most, now)).count() > 0;
        if found && let Some(routing) = self.routing() {
            let goes = routing.router.lock().as_mut().map(|router| router.set_peer_credits(network, most, now));
            self.send_on(goes.into_iter().flatten());
        }
        found
    }

    /// From now on purposes have lanes of their own, or none do.
    pub(crate) fn set_lanes(self: &Arc<Self>, lanes: bool) {
        self.settings.write().lanes = lanes;
        self.apply_lanes(lanes);
    }

    pub(crate) fn apply_lanes(self: &Arc<Self>, lanes: bool) {
        let now = self.rt.now();
        self.interfaces().iter().for_each(|interface| interface.set_lanes(lanes, now));
        if let Some(routing) = self.routing() {
            let goes = routing.router.lock().as_mut().map(|router| router.set_lanes(lanes, now));
            self.send_on(goes.into_iter().flatten());
        }
    }

    /// How long messages waited for credits and buffers.
    pub(crate) fn waits(&self) -> NodeWaits {
        let mut waits = NodeWaits::default();
        for [peer, interface] in self.interfaces().iter().map(|interface| interface.waits()) {
            waits.peer_credits = waits.peer_credits.plus(&peer);
            waits.interface_credits = waits.interface_credits.plus(&interface);
        }
        let of_router = self.routing().and_then(|routing| routing.router.lock().as_ref().map(Router::waits));
        (waits.router_credits, waits.buffers) = of_router.unwrap_or_default();
        waits
    }

    /// Gateways are judged by these settings from now on.
    pub(crate) fn apply_settings(&self, settings: &Settings) {
        if let Some(routing) = self.routing() {
            let (interval, rules) = (settings.alive_router_check_interval, settings.gateways);
            routing.gateways.lock().set_rules(interval, rules, self.rt.now());
            routing.links.lock().watch.set_rules(link_interval(interval), rules, self.rt.now());
            routing.wake();
        }
    }

    /// A router has got an interface.
    pub(crate) fn route_on(&self, interface: Nid) {
        if let Some(routing) = self.routing().filter(|routing| routing.forwards()) {
            routing.links.lock().watch.add(interface, self.rt.now());
        }
    }

    /// An interface was removed.
    pub(crate) fn route_off(&self, interface: Nid) {
        if let Some(routing) = self.routing() {
            let links = &mut *routing.links.lock();
            links.watch.remove(interface);
            links.recent.remove(&interface);
        }
    }

    /// False for an interface of a router on which nothing is heard.
    pub(crate) fn is_link_up(&self, interface: Nid) -> bool {
        self.routing().is_none_or(|r| r.links.lock().watch.trouble(interface, interface.network).is_none())
    }

    /// Messages of each peer on a network that this router holds at most; 0 if it is none.
    pub(crate) fn peer_buffer_credits(&self, network: Network) -> u32 {
        let router = self.routing().filter(|routing| routing.forwards()).map(|routing| routing.router.lock());
        router.and_then(|router| router.as_ref().map(|router| router.credits_on(network))).unwrap_or(0)
    }

    /// Changes that number. Returns false if this node is no router.
    pub(crate) fn set_peer_buffer_credits(self: &Arc<Self>, network: Network, credits: u32) -> bool {
        let Some(routing) = self.routing() else { return false };
        let goes = routing
            .router
            .lock()
            .as_mut()
            .map(|router| router.set_peer_buffer_credits(network, credits, self.rt.now()));
        let is_router = goes.is_some();
        if is_router {
            routing.buffer_credits.lock().insert(network, credits);
        }
        self.send_on(goes.into_iter().flatten());
        is_router
    }

    pub(crate) fn routing_status(&self) -> Option<RoutingStatus> {
        let routing = self.routing()?;
        let enabled = routing.announces.load(Ordering::Relaxed);
        let router = routing.router.lock();
        router.as_ref().map(|router| RoutingStatus {
            enabled,
            options: *router.options(),
            pools: PoolKind::ALL.map(|kind| router.pool(kind)),
        })
    }

    /// Router credits of a peer; none if this node is no router.
    pub(crate) fn router_credits(&self, peer: Nid) -> Option<Level> {
        self.routing()?.router.lock().as_ref().map(|router| router.peer(peer))
    }

    /// Says to all peers that this node no longer passes messages on, and goes on with it until none come any more.
    pub(crate) async fn drain_routing(self: &Arc<Self>) {
        let Some(routing) = self.routing().filter(|routing| routing.forwards()) else { return };
        if routing.announces.swap(false, Ordering::Relaxed) {
            tracing::info!("{}: messages of others are no longer passed on", self.rt.name());
            self.tell_neighbours();
        }
        let (begun, mut count, mut last) = (self.rt.now(), 0, self.rt.now());
        while self.rt.now() - last < QUIET
            && self.rt.now() - begun < DRAIN
            && !routing.announces.load(Ordering::Relaxed)
        {
            self.rt.sleep(Duration::from_millis(10)).await;
            let passed_on = self.counters.route_count.load(Ordering::Relaxed);
            let is_idle = routing.router.lock().as_ref().is_none_or(Router::is_idle);
            if std::mem::replace(&mut count, passed_on) != passed_on || !is_idle {
                last = self.rt.now();
            }
        }
        if !routing.announces.load(Ordering::Relaxed) {
            routing.forwards.store(false, Ordering::Relaxed);
        }
    }

    /// The interface and gateway for a message to a network that the node is not on. An answer goes back through the
    /// gateway that the question came by while that one lives; `without` is the peer that the message came from.
    pub(crate) fn distant_path(
        &self,
        to: Nid,
        is_answer: bool,
        without: Option<Nid>,
    ) -> Result<(Arc<Interface>, Nid), LnetError> {
        let no_route = LnetError::NoRoute(to.network);
        let routing = self.routing().ok_or(no_route)?;
        let (routes, mut gateways, now) = (routing.routes.read(), routing.gateways.lock(), self.rt.now());
        let is_usable = |gateway: Nid| gateways.trouble(gateway, to.network).is_none();
        let (came_through, avoid) = routing.known_ways(to, now);
        if is_answer
            && let Some(gateway) = came_through.filter(|gateway| is_usable(*gateway) && avoid != Some(*gateway))
            && let Some(interface) = self.interface_to(gateway)
        {
            return Ok((interface, gateway));
        }
        let state = |gateway: Nid| self.gateway_state(&gateways, gateway, to, avoid);
        let gateway = routes.choose(to.network, without, state).ok_or(no_route)?;
        let interface = self.interface_to(gateway).ok_or(no_route)?;
        if !gateways.is_silent(gateway, now)
            && gateways
                .handle_passed_over(|nid| Some(nid) != without && routes.are_peers(to.network, gateway, nid), now)
        {
            routing.wake();
        }
        if came_through.is_none() {
            routing.distant.lock().entry_of(to, self.options.peers_max).gateway = Some(gateway);
        }
        Ok((interface, gateway))
    }

    /// Describes a gateway for the choice of one that takes messages to `to`, which avoid the gateway `avoid`. `None` if it cannot be
    /// used.
    fn gateway_state(&self, gateways: &Gateways, gateway: Nid, to: Nid, avoid: Option<Nid>) -> Option<GatewayState> {
        let interface = self.interface_to(gateway).filter(|_| gateways.trouble(gateway, to.network).is_none())?;
        let is_silent = gateways.is_silent(gateway, self.rt.now());
        Some(GatewayState {
            preference: self.rails().map_or(u32::MAX, |rails| rails.preference_of_gateway(to, gateway)),
            ..interface.gateway_state(gateway, avoid == Some(gateway), is_silent)
        })
    }

    /// A message of this node's own goes to a distant node by a gateway.
    pub(crate) fn note_sent_by(&self, to: Nid, gateway: Nid) {
        if let Some(routing) = self.routing() {
            let distant = &mut *routing.distant.lock();
            distant.entry_of(to, self.options.peers_max).handle_sent(gateway, self.rt.now());
        }
    }

    /// When this network could last be reached again after no route had led there; the beginning of time if that never happened.
    pub(crate) fn returned(&self, network: Network) -> Time {
        let returned = self.routing().and_then(|routing| routing.returned.lock().get(&network).copied());
        returned.unwrap_or(Time::ZERO)
    }

    pub(crate) fn doubt(&self, to: Nid) {
        let Some(routing) = self.routing() else { return };
        if let Some(known) = routing.distant.lock().0.get_mut(&to) {
            known.handle_doubt(self.rt.now());
            tracing::debug!("{}: {to} has not answered; avoided is {:?}", self.rt.name(), known.avoid);
        }
    }

    pub(crate) fn explain(&self, to: Nid) -> Explanation {
        let simple = |way| Explanation { way, rule: None, routes: Vec::new() };
        if self.is_local(to) {
            return simple(Way::Here);
        }
        if let Some(interface) = self.interface_to(to) {
            return simple(Way::Direct(interface.nid));
        }
        let Some(routing) = self.routing() else { return simple(Way::None) };
        let statuses = self.route_statuses();
        let (routes, gateways, now) = (routing.routes.read(), routing.gateways.lock(), self.rt.now());
        let (_, avoid) = routing.known_ways(to, now);
        let (ways, rule) = routes.explain(to.network, |gateway| self.gateway_state(&gateways, gateway, to, avoid));
        let way =
            ways.first().filter(|(_, state)| state.is_some()).map_or(Way::None, |(route, _)| Way::By(route.gateway));
        let with_status = |(route, state): (Route, Option<GatewayState>)| {
            statuses.iter().find(|status| status.route == route).map(|status| (*status, state))
        };
        Explanation { way, rule, routes: ways.into_iter().filter_map(with_status).collect() }
    }

    /// Whether `peer`, on the interface `via`, may bring a message that says it is from `source`: its own, one of another of its
    /// NIDs, or, from a gateway of this node's routes, one of another network.
    pub(crate) fn may_bring(&self, via: Nid, peer: Nid, source: Nid) -> Bringing {
        if source == peer {
            return Bringing::Allowed;
        }
        match self.may_bring_by_rail(peer, source) {
            Bringing::Forbidden if self.may_bring_from_afar(via, peer, source) => Bringing::ByGateway,
            by_rail => by_rail,
        }
    }

    fn may_bring_from_afar(&self, via: Nid, peer: Nid, source: Nid) -> bool {
        let Some(routing) = self.routing() else { return false };
        let is_distant = source.network != via.network && !self.is_local(source);
        let is_expected = |routes: &Routes| !self.settings.read().drop_asym_route || routes.leads(source.network, peer);
        let routes = routing.routes.read();
        is_distant && routes.has_gateway(peer) && is_expected(&routes)
    }

    /// A message of another NID came through a gateway.
    pub(crate) fn handle_came_through(&self, source: Nid, gateway: Nid) {
        let Some(routing) = self.routing() else { return };
        if !routing.routes.read().leads(source.network, gateway) {
            bump(&self.counters.asymmetric_count);
        }
        let distant = &mut *routing.distant.lock();
        distant.entry_of(source, self.options.peers_max).handle_came(gateway, self.rt.now());
    }

    /// A message for somebody else arrived from `peer`: passes it on, or answers that it cannot be.
    pub(crate) fn forward(self: &Arc<Self>, peer: Nid, message: Message, receipt: Receipt) {
        let Header { source, destination, purpose, hops, .. } = message.header;
        let payload = message.payload.len();
        let routing = self.routing().filter(|routing| routing.forwards() && hops < HOPS_MAX);
        let onward = routing.and_then(|routing| {
            let direct = self.interface_to(destination).map(|interface| (interface, destination));
            let onward = direct.or_else(|| self.distant_path(destination, false, Some(peer)).ok());
            onward.map(|(interface, next_hop)| (routing, interface, next_hop))
        });
        let Some((routing, interface, next_hop)) = onward else {
            tracing::debug!("{}: no way for a message from {source} to {destination}", self.rt.name());
            bump(&self.counters.drop_count);
            self.counters.drop_length.fetch_add(payload as u64, Ordering::Relaxed);
            return self.answer_unreachable(&message.header, Errno::ENETUNREACH);
        };
        let transit = Transit { from: peer, to: next_hop, payload, purpose };
        let now = self.rt.now();
        let parked = Box::new(Parked { message, interface, arrived: now, receipt });
        let goes = routing.router.lock().as_mut().map(|router| router.handle_arrival(transit, parked, now));
        self.send_on(goes.into_iter().flatten());
    }

    /// Gives messages that have what they need to the drivers. A driver may be done with a message at once, which lets the next
    /// one go: that one is left to the outermost call of this thread, or the stack would grow with the queue.
    fn send_on(self: &Arc<Self>, messages: impl IntoIterator<Item = (Held, Box<Parked>)>) {
        /// Ends the outermost call, also if it panics.
        struct Outermost;
        impl Drop for Outermost {
            fn drop(&mut self) {
                LEFT.set(None);
            }
        }
        let leaving = messages.into_iter().map(|(held, parked)| Leaving { node: self.clone(), held, parked });
        let is_outermost = LEFT.with_borrow_mut(|left| {
            let is_outermost = left.is_none();
            left.get_or_insert_default().extend(leaving);
            is_outermost
        });
        if !is_outermost {
            return;
        }
        let _outermost = Outermost;
        while let Some(next) = LEFT.with_borrow_mut(|left| left.as_mut().and_then(VecDeque::pop_front)) {
            next.send();
        }
    }

    /// A message was taken by the next peer, or given up: what it held goes to others.
    pub(crate) fn handle_passed_on(self: &Arc<Self>, held: Held) {
        let Some(routing) = self.routing() else { return };
        let released = routing.router.lock().as_mut().map(|router| router.handle_done(held, self.rt.now()));
        self.send_on(released.into_iter().flatten());
    }

    /// Tells the sender of a message that it cannot be delivered: a PUT by an ACK that names the destination, a GET by a
    /// REPLY. Other kinds are answers themselves.
    pub(crate) fn answer_unreachable(self: &Arc<Self>, header: &Header, error: Errno) {
        let answer = match header.kind {
            Kind::Put => {
                let mut ack = Message::put(
                    header.source,
                    header.portal,
                    header.match_bits,
                    frame::encode_nids(&[header.destination]).into(),
                );
                ack.header.kind = Kind::Ack;
                ack.header.status = -error.0;
                ack
            }
            Kind::Get => Message::reply(header, Payload::new(), -error.0),
            Kind::Ack | Kind::Reply => return,
        };
        let Ok((interface, next_hop)) = self.way_back(header.source) else { return };
        // A REPLY must come from whom the GET asked.
        let source = if header.kind == Kind::Get { header.destination } else { interface.nid };
        let answer = Message { header: Header { source, ..answer.header }, ..answer };
        Outbound::new(self, interface.clone(), next_hop, answer, Waiter::Nobody).admit(&interface);
    }

    /// The way to tell a sender that its message goes nowhere: not by the gateway that it came through, if there is another,
    /// because the message may have gone round in a circle.
    fn way_back(&self, to: Nid) -> Result<(Arc<Interface>, Nid), LnetError> {
        if let Some(interface) = self.interface_to(to) {
            return Ok((interface, to));
        }
        let came_through = self.routing().and_then(|routing| routing.distant.lock().0.get(&to)?.gateway);
        self.distant_path(to, false, came_through).or_else(|_| self.distant_path(to, true, None))
    }

    /// A router says that a message to a distant NID could not be delivered.
    pub(crate) fn handle_unreachable(self: &Arc<Self>, peer: Nid, header: &Header, payload: &Payload) -> bool {
        let Some(routing) = self.routing().filter(|routing| routing.is_gateway(peer)) else { return false };
        let named = frame::decode_nids(&payload.to_bytes()).ok().and_then(|nids| nids.first().copied());
        let Some(nid) = named.filter(|nid| self.interface_to(*nid).is_none()) else { return false };
        bump(&self.counters.remote_error_count);
        if header.status == -Errno::ENETUNREACH.0 {
            routing.gateways.lock().handle_unreachable(peer, nid.network, self.rt.now());
            routing.wake();
        }
        self.handle_lost(&BTreeSet::from([nid]), Loss::Peer);
        // News of a loss that is lost itself is not repeated: two routers without a way would send it for ever.
        if (header.portal, header.match_bits) != (Portal::RESERVED, LOSS_MATCH_BITS) {
            self.tell_of_loss(nid);
        }
        true
    }

    /// Messages between this node and distant ones may have been lost. Both ends then treat each other as peers whose
    /// connections broke, and send unanswered requests again. Only the sender of a reply can know that the reply was lost, so
    /// this node tells the distant nodes to which it has sent anything of late.
    fn handle_loss(self: &Arc<Self>, routing: &Routing, is_meant: impl Fn(Network) -> bool) {
        let noticed_within = self.settings.read().gateways.router_ping_timeout + SUSPECT_AFTER + NEWS;
        let now = self.rt.now();
        let distant = routing.distant(is_meant);
        if !distant.is_empty() {
            self.handle_lost(&distant.keys().copied().collect(), Loss::OnTheWay);
        }
        let concerned = distant.into_iter().filter(|(_, sent)| now.since(*sent) <= noticed_within);
        concerned.for_each(|(nid, _)| self.tell_of_loss(nid));
    }

    /// Tells a distant node that messages to it may have been lost.
    fn tell_of_loss(self: &Arc<Self>, nid: Nid) {
        self.submit(Message::put(nid, Portal::RESERVED, LOSS_MATCH_BITS, Payload::new()), Waiter::Nobody);
    }

    /// A distant node says that its messages to this node may have been lost. Returns false for a peer on a network of this
    /// node's own, because between the two there is no gateway that could fail.
    pub(crate) fn handle_told_of_loss(&self, peer: Nid, distant: Nid) -> bool {
        let is_distant = distant != peer && self.routing().is_some();
        if is_distant {
            tracing::debug!("{}: messages of {distant} may have been lost", self.rt.name());
            self.handle_lost(&BTreeSet::from([distant]), Loss::OnTheWay);
        }
        is_distant
    }

    /// Connections with a peer broke. If it is a gateway, whatever was under way through it may be lost.
    pub(crate) fn handle_gateway_lost(self: &Arc<Self>, peer: Nid) {
        let Some(routing) = self.routing() else { return };
        let was_alive = routing.gateways.lock().handle_lost(peer, self.rt.now());
        routing.wake();
        self.give_up_held(routing, peer);
        if was_alive {
            self.leave_gateway(peer);
        }
    }

    /// Answers the messages that a router holds for a peer that is gone.
    fn give_up_held(self: &Arc<Self>, routing: &Routing, peer: Nid) {
        let released = routing.router.lock().as_mut().map(|router| router.handle_peer_gone(peer, self.rt.now()));
        if let Some((lost, goes)) = released {
            lost.into_iter().for_each(|parked| self.answer_unreachable(&parked.message.header, Errno::EHOSTUNREACH));
            self.send_on(goes);
        }
    }

    /// A gateway cannot be used any more: whatever is under way to or from the networks that it led to may be lost. A router
    /// says so to those whose messages it passed on.
    fn leave_gateway(self: &Arc<Self>, gateway: Nid) {
        let Some(routing) = self.routing() else { return };
        tracing::info!("{}: gateway {gateway} is left", self.rt.name());
        if routing.forwards() {
            let mut networks: Vec<Network> = {
                let routes = routing.routes.read();
                routes.all().iter().filter(|route| route.gateway == gateway).map(|route| route.network).collect()
            };
            networks.dedup();
            // A name that no loss of the network has had lately.
            let note = |network| routing.note_loss(network, (self.rt.random() as u32).max(1));
            networks.into_iter().for_each(|network| while !note(network) {});
            self.tell_neighbours();
        }
        let routes = routing.routes.read().clone();
        self.handle_loss(routing, |network| routes.leads(network, gateway));
    }

    /// What a router says to a peer of the networks that it reaches by other routers, but not of those that it reaches by that
    /// peer.
    fn ways_for(&self, routing: &Routing, peer: Option<Nid>) -> Vec<ToldWay> {
        let (routes, gateways) = (routing.routes.read(), routing.gateways.lock());
        let (links, losses) = (routing.links.lock(), routing.losses.lock());
        let mut ways: BTreeMap<Network, bool> = BTreeMap::new();
        for route in routes.all() {
            let link = self.interface_to(route.gateway).map(|interface| interface.nid);
            let works = link.is_some_and(|link| links.watch.trouble(link, link.network).is_none())
                && gateways.trouble(route.gateway, route.network).is_none();
            *ways.entry(route.network).or_default() |= works;
        }
        let named = ways.into_iter().filter(|(network, _)| peer.is_none_or(|peer| !routes.leads(*network, peer)));
        let told = named.map(|(network, up)| {
            let loss = losses.get(&network).and_then(|known| known.front()).copied().unwrap_or(0);
            ToldWay { network, up, loss }
        });
        told.take(PING_WAYS_MAX).collect()
    }

    /// The answer to a peer that pings this node.
    pub(crate) fn ping_info(&self, peer: Nid) -> PingInfo {
        let routing = self.routing();
        let announces = routing.is_some_and(|routing| routing.announces.load(Ordering::Relaxed));
        let ways = routing.filter(|_| announces).map(|routing| self.ways_for(routing, Some(peer))).unwrap_or_default();
        let links = routing.map(|routing| routing.links.lock());
        let is_up = |nid: Nid| links.as_ref().is_none_or(|links| links.watch.trouble(nid, nid.network).is_none());
        let mut nids = vec![(Nid::LO, true)];
        nids.extend(self.nids().into_iter().map(|nid| (nid, is_up(nid))));
        PingInfo { routing: announces, nids, ways, yours: self.known_nids_of(peer) }
    }

    /// A peer said how it is, unasked.
    pub(crate) fn handle_pushed(self: &Arc<Self>, peer: Nid, payload: &Payload) -> bool {
        match PingInfo::decode(&payload.to_bytes()) {
            Ok(info) => {
                self.handle_told(peer, &info);
                self.handle_pushed_rails(peer, &info);
            }
            Err(_) => return false,
        }
        true
    }

    fn handle_told(self: &Arc<Self>, gateway: Nid, info: &PingInfo) {
        let Some(routing) = self.routing().filter(|routing| routing.is_gateway(gateway)) else { return };
        let networks = info.nids.iter().map(|(nid, up)| (nid.network, *up)).collect();
        let told = Told { routing: info.routing, networks, ways: info.ways.as_slice().into() };
        let before = routing.led_to(gateway);
        let lost = routing.gateways.lock().handle_told(gateway, told, self.rt.now());
        let mut now = routing.led_to(gateway);
        let got_worse = before.iter().any(|network| !now.contains(network));
        now.retain(|network| !before.contains(network));
        self.tell_reached(now);
        let lost: Vec<_> = {
            let routes = routing.routes.read();
            lost.into_iter().filter(|(network, _)| routes.leads(*network, gateway)).collect()
        };
        // A router that has just come back names losses of before; whoever knows them has acted on them.
        let lost: Vec<_> = lost.into_iter().filter(|(network, loss)| routing.note_loss(*network, *loss)).collect();
        if got_worse && info.routing {
            self.leave_gateway(gateway);
        } else if !lost.is_empty() {
            tracing::info!("{}: messages may have been lost behind gateway {gateway}", self.rt.name());
            self.handle_loss(routing, |network| lost.iter().any(|(n, _)| *n == network));
        }
    }

    /// Pings gateways and, on a router, neighbours, as far as it is time to.
    fn watch(self: &Arc<Self>) -> Next {
        let Some(routing) = self.routing() else { return Next::Woken(Time::FAR_FUTURE) };
        let now = self.rt.now();
        let due = routing.gateways.lock().handle_timer(now);
        due.ping.into_iter().for_each(|gateway| self.ask_gateway(gateway));
        for gateway in due.dead {
            self.give_up_held(routing, gateway);
            self.leave_gateway(gateway);
        }
        if routing.forwards() {
            let due = routing.links.lock().watch.handle_timer(now);
            due.ping.iter().for_each(|link| self.ask_neighbours(*link));
            if !due.dead.is_empty() {
                due.dead
                    .iter()
                    .for_each(|link| tracing::warn!("{}: nothing is heard on {link} any more", self.rt.name()));
                self.tell_neighbours();
            }
            let ways = self.ways_for(routing, None);
            if *routing.told_ways.lock() != ways {
                self.tell_neighbours();
            }
            let due = routing.gateways.lock().due().min(routing.links.lock().watch.due());
            return Next::At(due.min(now + TICK));
        }
        // A node that becomes a router wakes the task with the first message that it sends.
        routing.watcher.handle_done();
        let gateways = routing.gateways.lock();
        routing.watcher.next(&gateways, now)
    }

    fn ask_gateway(self: &Arc<Self>, gateway: Nid) {
        let node = self.clone();
        drop(self.rt.spawn(async move {
            let asked = node.rt.now();
            if let Ok(info) = node.ask_info(gateway, ANSWER_MAX).await {
                node.handle_told(gateway, &info);
                if let Some(routing) = node.routing() {
                    let now = node.rt.now();
                    routing.gateways.lock().handle_answer(gateway, now - asked, now);
                    routing.wake();
                }
            }
        }));
    }

    /// Pings a few of the peers that messages were sent to on an interface: if any answers, the interface works.
    fn ask_neighbours(self: &Arc<Self>, link: Nid) {
        let Some(routing) = self.routing() else { return };
        let recent = routing.links.lock().recent.get(&link).cloned().unwrap_or_default();
        for peer in recent {
            let node = self.clone();
            drop(self.rt.spawn(async move {
                // The answer is heard by whoever receives it.
                let _ = node.ask_info(peer, crate::gateways::ANSWER_WITHIN).await;
            }));
        }
    }

    /// Anything came from a peer on an interface.
    pub(crate) fn handle_heard(self: &Arc<Self>, via: Nid, peer: Nid) {
        let Some(routing) = self.routing() else { return };
        let (is_gateway_back, is_link_back) = routing.handle_heard(via, peer, self.rt.now());
        if is_gateway_back {
            self.tell_reached(routing.led_to(peer));
        }
        if is_link_back {
            tracing::info!("{}: something is heard on {via} again", self.rt.name());
            self.tell_neighbours();
        }
    }

    fn tell_reached(&self, networks: Vec<Network>) {
        if let Some(routing) = self.routing().filter(|_| !networks.is_empty()) {
            routing.note_returned(&networks, self.rt.now());
            let hooks = self.reached_hooks.read().clone();
            networks.into_iter().for_each(|network| hooks.iter().for_each(|hook| hook(network)));
        }
    }

    /// Tells peers on all interfaces what a ping would tell them.
    fn tell_neighbours(self: &Arc<Self>) {
        if let Some(routing) = self.routing() {
            *routing.told_ways.lock() = self.ways_for(routing, None);
        }
        for interface in self.interfaces() {
            for peer in interface.reached_peers() {
                let info = self.ping_info(peer).encode();
                let message = Message::put(peer, Portal::RESERVED, PUSH_MATCH_BITS, info.into());
                self.submit(message, Waiter::Nobody);
            }
        }
    }
}

const _: () = assert!(PING_MATCH_BITS != PUSH_MATCH_BITS && LOSS_MATCH_BITS != PUSH_MATCH_BITS);
