//! LNet: messages between nodes that are named by NIDs, over interchangeable drivers, under credits.
//!
//! [`Lnet`] is one node. It sends PUTs to portals, moves bulk data by GET and PUT against memory descriptors, and pings.
//! A peer with several NIDs is reached by any of them: `peers` knows which are its own, `discovery` finds them, and `ways`
//! uses them, by the choice of `select` and the rules of `udsp`. For another network the way is the choice of `routes`, whose gateways `gateways` watches;
//! `routing` passes on messages of others, within the buffers of `router`. How many may be in hand is `credits`' rule, how a
//! message looks on a socket is in `frame`; drivers (LNDs) are `tcp`, `lo` and `sim`. It knows nothing of RPCs and resends nothing: delivery is at most
//! once, and order holds only among small messages on one connection.
//!
//! # What it costs
//!
//! `examples/lnet_bench.rs`, two processes on the loopback interface of a virtual machine with two cores, best of seven
//! rounds, beside tokio's bare TCP in the same run:
//!
//! | | LNet | plain TCP |
//! |---|---|---|
//! | round trip of a 200 byte PUT (328 bytes with its header) | 20 us | 23 us |
//! | the same, 64 in flight | 1.1 us (890,000 a second) | |
//! | pull 1 MiB, 8 in flight | 203 us (5.2 GB/s) | 211 us |
//! | push 1 MiB, 8 in flight | 185 us (5.7 GB/s) | 210 us |
//!
//! Simulated, an idle node takes 2.0 KiB and a message 1.2 us, sent and delivered. Small messages are written by their
//! sender if the connection is quiet, else gathered by a task: always by the sender, 64 in flight took 12.7 us each;
//! always by the task, 3.4 us, and a round trip 29 us.

mod bulk;
mod changes;
mod credits;
mod discovery;
mod error;
mod fault_rules;
mod frame;
mod gateways;
mod lnd;
mod lo;
mod message;
mod node;
mod options;
mod packed;
mod params;
mod peers;
mod places;
mod rails;
mod router;
mod routes;
mod routing;
mod select;
mod settings;
mod sim;
mod sim_tcp;
mod status;
mod stock;
mod tcp;
#[cfg(test)]
mod tests;
mod udsp;
mod waits;
mod watcher;
mod ways;

pub use bulk::{MdGuard, SinkGuard};
pub use changes::RemoveError;
pub use error::{LnetError, TuneError};
pub use fault_rules::{FaultEffect, FaultRule, FaultStatus, Nodes, Often};
pub use lnd::{ConnectionStatus, LinkStatus, PathStatus, Receipt, SocketStatus};
pub use message::{MAX_PAYLOAD, MESSAGE_MAX, Portal, Purpose};
pub use node::{IncomingPut, Loss, LossHook, PortalHandler};
pub use options::{LnetOptions, PEER_CREDITS_MAX, TcpOptions, TcpTunables};
pub use params::{PARAMS, Stats};
pub use peers::{PEER_NIDS_MAX, PeerError};
pub use places::{Place, Places};
pub use rails::PeerNids;
pub use router::{Level, PoolKind, RouterOptions};
pub use routes::{GatewayState, HOPS_MAX, ParseRouteError, Route, RouteError, Rule};
pub use routing::{Explanation, RouteStatus, RoutingStatus, Way};
pub use settings::{GatewayRules, Settings};
pub use sim::{
    CreditsReturn, FaultPlan, Framing, LinkOptions, SimFault, SimNet, SimNetOptions, SimNetStats, ZERO_COPY_MIN,
};
pub use sim_tcp::{CongestionControl, SimTcp, TcpEvent, TcpLink, TcpPath, Transfer, transfer};
pub use status::{ByKind, Failures, InterfaceStatus, Latency, PeerStatus, Traffic};
pub use stock::credits_for_data;
pub use tcp::TcpListen;
pub use udsp::{NidSet, UdspError, UdspRule};
pub use waits::{NodeWaits, WAIT_BOUNDS, WAIT_ROWS, Waits};

use lnd::Waiter;
use message::Message;
use nacre_base::{Faults, Network, Nid, Payload, Time};
use nacre_rt::Rt;
use node::LnetNode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// One LNet node. Cloning shares. A node with TCP interfaces lives until [`Lnet::shutdown`], or until its `Rt` is killed.
#[derive(Clone)]
pub struct Lnet(Arc<LnetNode>);

impl Lnet {
    /// A node that can only speak to itself until interfaces are added. Its tasks run in `rt`'s scope.
    pub fn new(rt: Rt, options: impl Into<Arc<LnetOptions>>, faults: Faults) -> Lnet {
        Lnet(LnetNode::new(rt, options.into(), faults, lo::Lo::make))
    }

    /// Adds a TCP interface: binds its acceptor, and returns the NID that peers reach it by.
    pub async fn add_tcp(&self, listen: TcpListen) -> Result<Nid, LnetError> {
        let (nid, lnd) = tcp::Tcp::start(&self.0, listen).await?;
        self.0.add_interface(nid, lnd);
        self.0.route_on(nid);
        Ok(nid)
    }

    /// A node with one interface, on a simulated network, as `number` or, if that is `None`, under the next free number.
    pub fn simulated(rt: Rt, net: &SimNet, number: Option<u32>, faults: Faults) -> Lnet {
        // Shared, because a simulation has thousands of nodes with the same options.
        static DEFAULTS: LazyLock<Arc<LnetOptions>> = LazyLock::new(Arc::default);
        let lnet = Lnet::new(rt, DEFAULTS.clone(), faults);
        match number {
            Some(number) => lnet.add_sim_as(net, number),
            None => lnet.add_sim(net),
        };
        lnet
    }

    /// Adds an interface on a simulated network, under the next free number.
    pub fn add_sim(&self, net: &SimNet) -> Nid {
        let (nid, lnd) = net.join(&self.0, None);
        self.0.add_interface(nid, lnd);
        nid
    }

    /// The same under a number of the caller's choice: a node that restarts keeps its NID.
    pub fn add_sim_as(&self, net: &SimNet, number: u32) -> Nid {
        let (nid, lnd) = net.join(&self.0, Some(number));
        self.0.add_interface(nid, lnd);
        nid
    }

    /// The node's NIDs. The first is the primary one; without interfaces there is only `0@lo`.
    pub fn nids(&self) -> Vec<Nid> {
        let nids = self.0.nids();
        if nids.is_empty() { vec![Nid::LO] } else { nids }
    }

    /// Whether `nid` means this node.
    pub fn is_local(&self, nid: Nid) -> bool {
        self.0.is_local(nid)
    }

    /// From now on, PUTs to `portal` go to `handler`, in place of the handler before. Panics for LNet's own portals.
    pub fn attach(&self, portal: Portal, handler: Arc<dyn PortalHandler>) {
        self.0.attach(portal, Some(handler));
    }

    /// From now on, PUTs to `portal` are dropped.
    pub fn detach(&self, portal: Portal) {
        self.0.attach(portal, None);
    }

    /// Sends one message of at most [`MESSAGE_MAX`] bytes. Waits for credits, and until the driver has taken the bytes:
    /// not until the peer has them. Dropping the future does not recall the message.
    pub async fn put(&self, to: Nid, portal: Portal, match_bits: u64, payload: Payload) -> Result<(), LnetError> {
        let (tx, rx) = oneshot::channel();
        self.send(self.request(to, portal, match_bits, payload), Waiter::Put(tx))?;
        rx.await.unwrap_or(Err(LnetError::Shutdown))
    }

    /// Sends one message without waiting, as handlers must. It waits for credits in the network; whether it could be
    /// sent is not told.
    pub fn post(&self, to: Nid, portal: Portal, match_bits: u64, payload: Payload) -> Result<(), LnetError> {
        self.send(self.request(to, portal, match_bits, payload), Waiter::Nobody)
    }

    /// As [`Lnet::post`], but if the peer is down, this is told to the hook of [`Lnet::register_unsent`], with the match
    /// bits and `tag`, which means something to the caller alone. The message may be for another purpose than others to the
    /// portal.
    pub fn post_tagged(
        &self,
        to: Nid,
        portal: Portal,
        purpose: Option<Purpose>,
        match_bits: u64,
        tag: u32,
        payload: Payload,
    ) -> Result<(), LnetError> {
        let mut message = self.request(to, portal, match_bits, payload);
        message.header.purpose = purpose.unwrap_or(message.header.purpose);
        self.send(message, Waiter::Unsent { match_bits, tag })
    }

    fn request(&self, to: Nid, portal: Portal, match_bits: u64, payload: Payload) -> Message {
        let mut message = Message::put(to, portal, match_bits, payload);
        message.header.purpose = self.0.purpose_of(portal);
        message
    }

    /// As [`Lnet::post`], for an answer: it goes back by the gateway that the question came through, while that one lives,
    /// and in the question's lane.
    pub fn answer(
        &self,
        to: Nid,
        portal: Portal,
        purpose: Purpose,
        match_bits: u64,
        payload: Payload,
    ) -> Result<(), LnetError> {
        let mut message = Message::put(to, portal, match_bits, payload);
        message.is_answer = true;
        message.header.purpose = purpose;
        self.send(message, Waiter::Nobody)
    }

    /// From now on, messages that this node sends to `portal` are for this purpose, if they are not answers.
    pub fn declare_purpose(&self, portal: Portal, purpose: Purpose) {
        self.0.declare_purpose(portal, purpose);
    }

    /// From now on no gateway is suspected because a message of this node to `portal` is not answered soon.
    pub fn declare_slow(&self, portal: Portal) {
        self.0.declare_slow(portal);
    }

    fn send(&self, message: Message, waiter: Waiter) -> Result<(), LnetError> {
        let len = message.payload.len();
        if len > MESSAGE_MAX {
            return Err(LnetError::TooLarge(len));
        }
        self.0.submit(message, waiter);
        Ok(())
    }

    /// Lets `peers`, the NIDs of one server, GET `data` under `match_bits`, until the guard is dropped.
    pub fn expose_source(&self, peers: &[Nid], match_bits: u64, data: Payload) -> MdGuard {
        self.0.exposed.add_source(peers, match_bits, data)
    }

    /// Lets `peers`, the NIDs of one server, PUT up to `len` bytes under `match_bits`, until the guard is dropped.
    pub fn expose_sink(&self, peers: &[Nid], match_bits: u64, len: usize) -> SinkGuard {
        self.0.exposed.add_sink(peers, match_bits, len)
    }

    /// Pulls what `from` has exposed under `match_bits`: `len` bytes, or fewer if there are fewer. The pieces are in
    /// order and page aligned where they came over TCP in parts of 4 KiB or more.
    pub async fn get_bulk(&self, from: Nid, match_bits: u64, len: usize) -> Result<Payload, LnetError> {
        let mut gets: Vec<_> =
            self.cuts(from, len).map(|range| self.0.start_get(from, Portal::BULK, match_bits, range)).collect();
        let all = async {
            let mut payload = Payload::new();
            for get in &mut gets {
                payload.append(get.answer().await?);
            }
            Ok(payload)
        };
        self.0.in_time(self.settings().transaction_timeout, from, all).await
    }

    /// Pushes `payload` into what `to` has exposed under `match_bits`. Returns when the driver has taken the bytes; it
    /// is not told whether the peer wanted them.
    pub async fn put_bulk(&self, to: Nid, match_bits: u64, payload: Payload) -> Result<(), LnetError> {
        let mut sent = Vec::new();
        for (offset, len) in self.cuts(to, payload.len()) {
            let (tx, rx) = oneshot::channel();
            let part = payload.slice(offset as usize, len as usize);
            let mut message = Message::put(to, Portal::BULK, match_bits, part);
            message.header.offset = offset;
            message.header.length = payload.len() as u64;
            message.is_answer = true;
            self.0.submit(message, Waiter::Put(tx));
            sent.push(rx);
        }
        for rx in sent {
            rx.await.unwrap_or(Err(LnetError::Shutdown))?;
        }
        Ok(())
    }

    /// Asks `to` for its NIDs.
    pub async fn ping(&self, to: Nid, timeout: Duration) -> Result<Vec<Nid>, LnetError> {
        Ok(self.0.ask_info(to, timeout).await?.nids.into_iter().map(|(nid, _)| nid).collect())
    }

    /// Adds a route to a network that this node is not on.
    pub fn add_route(&self, route: Route) -> Result<(), RouteError> {
        self.0.add_route(route)
    }

    /// Removes a route.
    pub fn remove_route(&self, network: Network, gateway: Nid) -> Result<(), RouteError> {
        self.0.remove_route(network, gateway)
    }

    /// Whether a message to this network would leave this node: it is on the network, or a route there is up.
    pub fn has_way_to(&self, network: Network) -> bool {
        let is_on = network == Nid::LO.network || self.nids().iter().any(|nid| nid.network == network);
        is_on || self.routes().iter().any(|status| status.route.network == network && status.up)
    }

    /// Since when a message to this network has had a way: the beginning of time if no interruption is known. `None` while there
    /// is none. A failure that was over before this node noticed it is none.
    pub fn way_since(&self, network: Network) -> Option<Time> {
        self.has_way_to(network).then(|| self.0.returned(network))
    }

    /// The routes in the order in which they were added.
    pub fn routes(&self) -> Vec<RouteStatus> {
        self.0.route_statuses()
    }

    /// How a message to this NID would leave the node now, and what else there is.
    pub fn explain(&self, to: Nid) -> Explanation {
        self.0.explain(to)
    }

    /// Makes this node a router. If it was one before and messages are still in transit, only the sizes of its pools change.
    pub fn start_routing(&self, options: &RouterOptions) {
        self.0.start_routing(options);
    }

    /// Changes the sizes of a router's pools, in the order of [`PoolKind::ALL`]. Returns false if this node never was a router.
    pub fn set_buffers(&self, buffers: [u32; PoolKind::ALL.len()]) -> bool {
        self.0.set_buffers(buffers)
    }

    /// Gives each purpose a reserve of all credits and buffers and a queue of its own, or has everything wait first in first out,
    /// as in Lustre.
    pub fn set_lanes(&self, lanes: bool) {
        self.0.set_lanes(lanes);
    }

    /// Whether purposes have lanes of their own.
    pub fn has_lanes(&self) -> bool {
        self.0.settings.read().lanes
    }

    /// How long messages have waited for credits and buffers since the node started.
    pub fn waits(&self) -> NodeWaits {
        self.0.waits()
    }

    /// Gives each peer on a network a fixed number of credits, for what this node sends to it and, on a router, for what it has
    /// passed on: 1 to 256, because a router reads no more messages of a connection ahead. With 0 they grow again, as far as the
    /// peer and the path can take them. Returns false if this node is not on the network.
    pub fn set_peer_credits(&self, network: Network, credits: u32) -> bool {
        self.0.set_peer_credits(network, credits)
    }

    /// Ends [`Lnet::start_routing`] in good order: peers are told, and messages are passed on until no more come.
    pub async fn drain_routing(&self) {
        self.0.drain_routing().await;
    }

    /// The buffers of a router; none if this node never was one.
    pub fn routing(&self) -> Option<RoutingStatus> {
        self.0.routing_status()
    }

    /// Offsets and lengths of the messages that carry `len` bytes to or from `peer`; one even for no bytes.
    fn cuts(&self, peer: Nid, len: usize) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (len, max) = (len as u64, self.0.message_max(peer));
        (0..len.div_ceil(max).max(1)).map(move |i| (i * max, (len - i * max).min(max)))
    }

    /// From now on, `hook` is called for each message of [`Lnet::post_tagged`] that could not be sent because its peer
    /// is down.
    pub fn register_unsent(&self, hook: Arc<dyn Fn(u64, u32) + Send + Sync>) {
        *self.0.unsent_hook.write() = Some(hook);
    }

    /// Calls `hook` whenever messages to and from nodes may be lost: their connections broke, or something on the way to them
    /// failed. A hint: a node may be back, and one that is gone on a network without connections is not noticed.
    pub fn register_loss(&self, hook: LossHook) {
        let mut hooks = self.0.loss_hooks.write();
        hooks.reserve_exact(1);
        hooks.push(hook);
    }

    /// Calls `hook` whenever one more gateway leads to a network: nodes there that could not be reached may be reached now.
    pub fn register_reached(&self, hook: Arc<dyn Fn(Network) + Send + Sync>) {
        let mut hooks = self.0.reached_hooks.write();
        hooks.reserve_exact(1);
        hooks.push(hook);
    }

    /// A request to a node was not answered in time. If the node is on another network, what is sent to it next goes by
    /// another gateway, if there is one, because the one before may not reach it.
    pub fn doubt(&self, nid: Nid) {
        self.0.doubt(nid);
    }

    /// Somebody who knows says that a peer is up: the next message to it goes out at once, whatever failed lately.
    pub fn forget_failures(&self, peer: Nid) {
        self.0.interfaces().iter().for_each(|i| i.forget_failures(peer));
    }

    /// The interfaces, `lo` first.
    pub fn interfaces(&self) -> Vec<InterfaceStatus> {
        let lo = self.0.lo().status(&self.0.options);
        let status = |interface: &Arc<node::Interface>| InterfaceStatus {
            up: self.0.is_link_up(interface.nid),
            peer_buffer_credits: self.0.peer_buffer_credits(interface.nid.network),
            ..interface.status(&self.0.options)
        };
        std::iter::once(lo).chain(self.0.interfaces().iter().map(status)).collect()
    }

    /// The peers of all interfaces but `lo`, in the order of their NIDs.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let mut all: Vec<_> = self.0.interfaces().iter().flat_map(|i| i.peers()).collect();
        for peer in &mut all {
            if let Some(level) = self.0.router_credits(peer.primary_nid) {
                (peer.available_rtr_credits, peer.min_rtr_credits) = (level.available, level.low_water);
            }
        }
        all
    }

    /// The node's counters.
    pub fn stats(&self) -> Stats {
        Stats { rst_alloc: self.0.gets.len() as u64, ..self.0.counters.read() }
    }

    /// Sends nothing more, gives messages in hand a moment to leave, and closes everything. Listening ports are free
    /// when this returns.
    pub async fn shutdown(&self) {
        let node = &self.0;
        node.drain_routing().await;
        node.stop_watching();
        node.stop_watching_rails();
        node.closed.store(true, Ordering::Relaxed);
        let deadline = node.rt.now() + node.options.shutdown_grace;
        while node.counters.msgs_alloc.load(Ordering::Relaxed) > 0 && node.rt.now() < deadline {
            node.rt.sleep(Duration::from_millis(2)).await;
        }
        for interface in node.used_interfaces() {
            interface.lnd.shutdown().await;
        }
        node.gets.fail_all(|_| true, |_| LnetError::Shutdown);
    }
}

/// Decodes bytes as a connection would; the entry of the fuzzer.
#[doc(hidden)]
pub fn fuzz_frame(bytes: &[u8]) {
    frame::fuzz(bytes);
}
