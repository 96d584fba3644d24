//! One LNet node: sends messages over its interfaces under credits, and hands what arrives to portals and memory
//! descriptors. The public face is [`crate::Lnet`].

use crate::bulk::{Exposed, GetInFlight, PendingGets};
use crate::credits::{Admission, Credits, Released};
use crate::error::LnetError;
use crate::fault_rules::FaultRules;
use crate::frame::PingInfo;
use crate::lnd::{Lnd, Outbound, Receipt, Waiter};
use crate::message::{Header, Kind, MAX_PAYLOAD, Message, Portal, Purpose, flip_bit};
use crate::options::LnetOptions;
use crate::params::Counters;
use crate::peers::Bringing;
use crate::rails::Rails;
use crate::routes::GatewayState;
use crate::routing::Routing;
use crate::select::Candidate;
use crate::settings::Settings;
use crate::status::{Failures, InterfaceStatus, Latency, PeerStatus, TrafficCounts, bump};
use crate::stock::{STOCK_MAX, Taken};
use crate::udsp::INDIFFERENT;
use crate::waits::Waits;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Faults, FxHashMap, Network, Nid, Payload, SmallMap, Time};
use nacre_rt::Rt;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The match bits that a ping GETs from the reserved portal, as Lustre's.
pub(crate) const PING_MATCH_BITS: u64 = 1 << 63;
/// The match bits under which a node says what a ping would tell, unasked.
pub(crate) const PUSH_MATCH_BITS: u64 = PING_MATCH_BITS | 1;
/// The match bits under which a node tells a distant one that its messages to it may have been lost on the way.
pub(crate) const LOSS_MATCH_BITS: u64 = PING_MATCH_BITS | 2;

/// Why messages to and from a node may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its connections broke, or a router does not reach it: it may be down.
    Peer,
    /// Something on the way to it failed. It may well live, and be reached by another way.
    OnTheWay,
}

/// Called when messages to and from these nodes may be lost.
pub type LossHook = Arc<dyn Fn(&BTreeSet<Nid>, Loss) + Send + Sync>;
/// Called when a network may be reached again.
pub(crate) type ReachedHook = Arc<dyn Fn(Network) + Send + Sync>;
/// Called with the match bits and the tag of a message that could not be sent.
pub(crate) type UnsentHook = Arc<dyn Fn(u64, u32) + Send + Sync>;

/// What takes the PUTs of a portal.
pub trait PortalHandler: Send + Sync {
    /// A message arrived. Called from the connection's reader (or the simulated network): must not block, and must
    /// not hold on to the caller. It may send.
    fn handle_put(&self, put: IncomingPut);
}

impl<F: Fn(IncomingPut) + Send + Sync> PortalHandler for F {
    fn handle_put(&self, put: IncomingPut) {
        self(put);
    }
}

/// A message that arrived for a portal.
#[derive(Debug)]
pub struct IncomingPut {
    /// Who sent it, and where an answer goes.
    pub from: Nid,
    /// The portal.
    pub portal: Portal,
    /// What the sender said of it.
    pub match_bits: u64,
    /// What it is for; its answer goes the same lane.
    pub purpose: Purpose,
    /// Its bytes.
    pub payload: Payload,
    /// Time that it spent inside routers, as they say.
    pub in_routers: Duration,
    /// Keeps the credit that the sender has used. A handler that cannot take the message yet keeps it as well.
    pub receipt: Receipt,
}

/// A node as the network knows it: its interfaces, portals and what it has exposed.
pub(crate) struct LnetNode {
    pub(crate) rt: Rt,
    pub(crate) options: Arc<LnetOptions>,
    pub(crate) settings: RwLock<Settings>,
    faults: Faults,
    /// There once `lnetctl fault` has added a rule.
    pub(crate) fault_rules: OnceLock<Box<Mutex<FaultRules>>>,
    /// How the node speaks to itself: made at the first message to itself, because most nodes never do that.
    lo: OnceLock<Arc<Interface>>,
    /// Makes the driver of `lo`.
    make_lo: fn(Rt, Weak<LnetNode>) -> Arc<dyn Lnd>,
    this: Weak<LnetNode>,
    /// Added at start, in order of importance: the first is the primary.
    interfaces: RwLock<Vec<Arc<Interface>>>,
    portals: RwLock<Vec<(Portal, Arc<dyn PortalHandler>)>>,
    pub(crate) exposed: Arc<Exposed>,
    pub(crate) gets: Arc<PendingGets>,
    pub(crate) loss_hooks: RwLock<Vec<LossHook>>,
    pub(crate) reached_hooks: RwLock<Vec<ReachedHook>>,
    pub(crate) unsent_hook: RwLock<Option<UnsentHook>>,
    pub(crate) counters: Counters,
    /// The purpose of each portal's messages, where it is not [`Purpose::Requests`]: by number, as far as they are declared.
    purposes: [AtomicU8; PORTALS],
    /// Portals, by the bit of their number, whose messages are answered late.
    slow_portals: AtomicU64,
    /// Of a node with routes, or a router.
    pub(crate) routing: OnceLock<Box<Routing>>,
    /// There once this node has several interfaces, or a peer with several NIDs.
    pub(crate) rails: OnceLock<Box<Rails>>,
    /// Set by shutdown: nothing is sent any more.
    pub(crate) closed: AtomicBool,
}

/// An interface: a NID, its driver and its credits.
pub(crate) struct Interface {
    pub(crate) nid: Nid,
    pub(crate) lnd: Arc<dyn Lnd>,
    state: Mutex<InterfaceState>,
    peers_max: usize,
}

struct InterfaceState {
    credits: Credits<Outbound>,
    traffic: TrafficCounts,
    failures: Failures,
    /// Boxed, because the table of a server has room to spare for many.
    peers: SmallMap<Nid, Box<Peer>>,
    /// Payload bytes given to the driver, or waiting, for each gateway.
    gateway_bytes: FxHashMap<Nid, u64>,
    /// Messages that got their credits from completions and were not yet given to the driver.
    ready: VecDeque<Released<Outbound>>,
    /// Somebody is giving `ready` to the driver. A driver may complete a message within `send`, and if every
    /// completion then sent the next message itself, the stack would grow with the queue.
    pumping: bool,
}

#[derive(Default)]
struct Peer {
    traffic: TrafficCounts,
    /// Of the last send; `None` before the first.
    up: Option<bool>,
    /// What health lacks to 1000.
    sickness: u32,
    /// When `sickness` last changed.
    sick_since: Time,
    /// The turn in which it was last chosen among the NIDs of its node.
    turn: u64,
    /// As it told in its HELLO; empty if it has not.
    nids: Box<[Nid]>,
}

/// A way of a message to a peer with several NIDs.
pub(crate) struct ChosenWay {
    pub(crate) interface: Arc<Interface>,
    pub(crate) next_hop: Nid,
    /// The NID that the message says that it is from.
    pub(crate) source: Nid,
}

/// Portals that can have a purpose; Lustre numbers about 40.
const PORTALS: usize = 64;

pub(crate) const HEALTH_MAX: u32 = 1000;

impl LnetNode {
    /// `make_lo` makes the driver by which the node speaks to itself.
    pub(crate) fn new(
        rt: Rt,
        options: Arc<LnetOptions>,
        faults: Faults,
        make_lo: fn(Rt, Weak<LnetNode>) -> Arc<dyn Lnd>,
    ) -> Arc<LnetNode> {
        Arc::new_cyclic(|node| LnetNode {
            gets: PendingGets::new(rt.random()),
            rt,
            settings: RwLock::new(Settings::of(&options)),
            options,
            faults,
            fault_rules: OnceLock::new(),
            lo: OnceLock::new(),
            make_lo,
            this: node.clone(),
            interfaces: RwLock::default(),
            portals: RwLock::default(),
            exposed: Arc::default(),
            loss_hooks: RwLock::default(),
            reached_hooks: RwLock::default(),
            unsent_hook: RwLock::default(),
            counters: Counters::default(),
            purposes: [const { AtomicU8::new(Purpose::Requests as u8) }; PORTALS],
            slow_portals: AtomicU64::new(0),
            routing: OnceLock::new(),
            rails: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn add_interface(self: &Arc<Self>, nid: Nid, lnd: Arc<dyn Lnd>) {
        let o = &self.options;
        let mut credits = Credits::new(o.credits, o.peer_credits, o.peer_queue_max, o.peer_queue_bytes_max)
            .with_growth(o.peer_credits_max)
            .with_unpacked(o.peer_queue_unpacked_max);
        let released = credits.set_lanes(self.settings.read().lanes, self.rt.now());
        assert!(released.is_empty(), "nothing was sent yet");
        let mut interfaces = self.interfaces.write();
        interfaces.reserve_exact(1);
        interfaces.push(Arc::new(Interface::new(nid, lnd, credits, o.peers_max)));
        drop(interfaces);
        self.handle_interfaces_changed();
    }

    /// Forgets an interface. Messages that it has in hand are completed when its driver is shut down.
    pub(crate) fn remove_interface(&self, nid: Nid) -> Option<Arc<Interface>> {
        let mut interfaces = self.interfaces.write();
        let at = interfaces.iter().position(|interface| interface.nid == nid)?;
        Some(interfaces.remove(at))
    }

    /// The interfaces but `lo`.
    pub(crate) fn interfaces(&self) -> Vec<Arc<Interface>> {
        self.interfaces.read().clone()
    }

    pub(crate) fn lo(&self) -> &Arc<Interface> {
        self.lo.get_or_init(|| {
            let lnd = (self.make_lo)(self.rt.clone(), self.this.clone());
            // In process nothing is in hand for long: as good as no credits at all.
            let credits = Credits::new(STOCK_MAX, STOCK_MAX, usize::MAX, usize::MAX);
            Arc::new(Interface::new(Nid::LO, lnd, credits, usize::MAX))
        })
    }

    /// All interfaces that may have messages in hand.
    pub(crate) fn used_interfaces(&self) -> Vec<Arc<Interface>> {
        self.interfaces.read().iter().chain(self.lo.get()).cloned().collect()
    }

    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.interfaces.read().iter().map(|i| i.nid).collect()
    }

    pub(crate) fn is_local(&self, nid: Nid) -> bool {
        nid == Nid::LO || self.interfaces.read().iter().any(|i| i.nid == nid)
    }

    pub(crate) fn attach(&self, portal: Portal, handler: Option<Arc<dyn PortalHandler>>) {
        assert!(portal != Portal::RESERVED && portal != Portal::BULK, "{portal:?} belongs to LNet itself");
        let mut portals = self.portals.write();
        portals.retain(|(p, _)| *p != portal);
        if let Some(handler) = handler {
            portals.reserve_exact(1);
            portals.push((portal, handler));
        }
    }

    /// From now on messages to this portal are for this purpose.
    pub(crate) fn declare_purpose(&self, portal: Portal, purpose: Purpose) {
        let place = self.purposes.get(portal.0 as usize);
        place.expect("the upper layer's portals are small numbers").store(purpose as u8, Ordering::Relaxed);
    }

    /// From now on nobody is suspected because a message to this portal is not answered soon.
    pub(crate) fn declare_slow(&self, portal: Portal) {
        assert!((portal.0 as usize) < PORTALS, "the upper layer's portals are small numbers");
        self.slow_portals.fetch_or(1 << portal.0, Ordering::Relaxed);
    }

    /// Whether something should be heard soon after this message.
    pub(crate) fn is_answered_soon(&self, message: &Message) -> bool {
        let portal = message.header.portal.0;
        let is_slow = (portal as usize) < PORTALS && self.slow_portals.load(Ordering::Relaxed) & 1 << portal != 0;
        message.is_answered() && !is_slow
    }

    pub(crate) fn purpose_of(&self, portal: Portal) -> Purpose {
        let declared = self.purposes.get(portal.0 as usize).map(|p| p.load(Ordering::Relaxed));
        declared.and_then(|p| Purpose::ALL.get(usize::from(p)).copied()).unwrap_or_default()
    }

    /// Sends a message. `waiter` hears of it in any case, perhaps before this returns.
    pub(crate) fn submit(self: &Arc<Self>, mut message: Message, waiter: Waiter) {
        match self.faults.check("lnet.send") {
            None => {}
            Some(FaultAction::Drop) => return waiter.tell(self, Ok(())),
            Some(FaultAction::Fail(e)) => return waiter.tell(self, Err(LnetError::Injected(e))),
            Some(FaultAction::Delay(d)) => {
                let node = self.clone();
                let later = async move {
                    node.rt.sleep(d).await;
                    node.submit_now(message, waiter);
                };
                drop(self.rt.spawn(later));
                return;
            }
            Some(FaultAction::Corrupt) => message.damaged = true,
            Some(FaultAction::Crash) => return self.rt.crash(),
        }
        self.submit_now(message, waiter);
    }

    fn submit_now(self: &Arc<Self>, mut message: Message, waiter: Waiter) {
        if self.closed.load(Ordering::Relaxed) {
            return waiter.tell(self, Err(LnetError::Shutdown));
        }
        let to = message.header.destination;
        let path = self.path_for(&message);
        let rail = self.rail_for(&message, path.as_ref().ok().map(|(interface, next_hop)| (&**interface, *next_hop)));
        match (rail, path) {
            (Some(ChosenWay { interface, next_hop, source }), _) => {
                message.header.source = source;
                let mut out = Outbound::new(self, interface.clone(), next_hop, message, waiter);
                out.is_by_rail = true;
                out.admit(&interface);
            }
            (None, Ok((interface, next_hop))) => {
                if next_hop != to && self.is_answered_soon(&message) {
                    self.note_sent_by(to, next_hop);
                }
                // A message to this node itself comes from the NID it was sent to, so that answers take the same way.
                message.header.source = if interface.nid == Nid::LO { to } else { interface.nid };
                Outbound::new(self, interface.clone(), next_hop, message, waiter).admit(&interface);
            }
            (None, Err(e)) => {
                bump(&self.counters.local_no_route_count);
                waiter.tell(self, Err(e));
            }
        }
    }

    /// Where a message leaves, and to whom it goes first, if there is no choice among several NIDs of a peer.
    fn path_for(&self, message: &Message) -> Result<(Arc<Interface>, Nid), LnetError> {
        let Header { kind, source, destination, .. } = message.header;
        // The node that asked waits for an answer of the NID that it asked.
        if kind == Kind::Reply
            && source.reaches(destination)
            && destination != source
            && let Some(asked) = self.interface(source).filter(|asked| asked.nid != Nid::LO)
            && !self.is_local(destination)
        {
            return Ok((asked, destination));
        }
        self.path(destination, message.is_answer)
    }

    /// Where a message to `to` leaves, and to whom it goes first.
    fn path(&self, to: Nid, is_answer: bool) -> Result<(Arc<Interface>, Nid), LnetError> {
        if to == Nid::LO {
            return Ok((self.lo().clone(), to));
        }
        let interfaces = self.interfaces.read();
        if interfaces.iter().any(|i| i.nid == to) {
            return Ok((self.lo().clone(), to));
        }
        drop(interfaces);
        match self.interface_to(to) {
            Some(interface) => Ok((interface, to)),
            None => self.distant_path(to, is_answer, None),
        }
    }

    /// The interface by which a node is reached directly; of several always the first, because its NID is what the node
    /// knows this one by.
    pub(crate) fn interface_to(&self, to: Nid) -> Option<Arc<Interface>> {
        self.interfaces.read().iter().find(|interface| interface.nid.reaches(to)).cloned()
    }

    /// A driver received a message from `peer` on the interface `via`.
    pub(crate) fn handle_message(self: &Arc<Self>, via: Nid, peer: Nid, mut message: Message, receipt: Receipt) {
        match self.faults.check("lnet.receive").or_else(|| self.check_fault_rules(&message.header)) {
            None => {}
            Some(FaultAction::Drop | FaultAction::Fail(_)) => return,
            Some(FaultAction::Delay(d)) => {
                let node = self.clone();
                let later = async move {
                    node.rt.sleep(d).await;
                    node.deliver(via, peer, message, receipt);
                };
                drop(self.rt.spawn(later));
                return;
            }
            Some(FaultAction::Corrupt) => message.payload = flip_bit(&message.payload),
            Some(FaultAction::Crash) => return self.rt.crash(),
        }
        self.deliver(via, peer, message, receipt);
    }

    fn deliver(self: &Arc<Self>, via: Nid, peer: Nid, message: Message, receipt: Receipt) {
        let header = message.header;
        let len = message.payload.len() as u64;
        let Some(interface) = self.interface(via) else { return };
        bump(&self.counters.recv_count);
        self.counters.recv_length.fetch_add(len, Ordering::Relaxed);
        interface.handle_received(peer, header.kind);
        self.handle_heard(via, peer);
        self.handle_heard_of_rail(peer);
        let mut sender = header.source;
        if via != Nid::LO && header.source != peer {
            match self.may_bring(via, peer, header.source) {
                Bringing::Allowed => sender = peer,
                Bringing::ByGateway => self.handle_came_through(header.source, peer),
                Bringing::NotYet | Bringing::Forbidden => {
                    bump(&self.counters.errors);
                    tracing::debug!("{}: {peer} says that it brings a message from {}", self.rt.name(), header.source);
                    return self.handle_refused_rail(peer);
                }
            }
        }
        if !self.is_local(header.destination) {
            return self.forward(peer, message, receipt);
        }
        let payload = message.payload;
        let taken = match header.kind {
            Kind::Ack => self.handle_unreachable(peer, &header, &payload),
            Kind::Put if (header.portal, header.match_bits) == (Portal::RESERVED, PUSH_MATCH_BITS) => {
                header.source == peer && self.handle_pushed(peer, &payload)
            }
            Kind::Put if (header.portal, header.match_bits) == (Portal::RESERVED, LOSS_MATCH_BITS) => {
                self.handle_told_of_loss(peer, header.source)
            }
            Kind::Put => self.handle_put(&header, payload, receipt),
            Kind::Get => self.handle_get(&header),
            Kind::Reply => self.handle_reply(&interface, sender, &header, payload),
        };
        if !taken {
            bump(&self.counters.drop_count);
            self.counters.drop_length.fetch_add(len, Ordering::Relaxed);
            interface.handle_dropped(peer, header.kind);
            tracing::debug!("{}: dropped {:?} from {}: it is for nobody", self.rt.name(), header.kind, header.source);
        }
    }

    fn handle_put(&self, header: &Header, payload: Payload, receipt: Receipt) -> bool {
        let Header { source: from, portal, match_bits, purpose, .. } = *header;
        if portal == Portal::BULK {
            return self.exposed.write(from, match_bits, header.offset, header.length, payload);
        }
        // The handler may attach portals itself, so the table is not kept locked.
        let handler = self.portals.read().iter().find(|(p, _)| *p == portal).map(|(_, h)| h.clone());
        let Some(handler) = handler else { return false };
        let in_routers = Duration::from_micros(header.spent_us.iter().map(|us| u64::from(*us)).sum());
        handler.handle_put(IncomingPut { from, portal, match_bits, purpose, payload, in_routers, receipt });
        true
    }

    fn handle_get(self: &Arc<Self>, header: &Header) -> bool {
        let found = match header.portal {
            Portal::RESERVED if header.match_bits == PING_MATCH_BITS => Some(self.ping_answer(header.source)),
            Portal::BULK if header.length <= self.message_max(header.source) => {
                self.exposed.read(header.source, header.match_bits, header.offset, header.length)
            }
            _ => None,
        };
        let status = if found.is_some() { 0 } else { -Errno::ENOENT.0 };
        self.submit(Message::reply(header, found.unwrap_or_default(), status), Waiter::Nobody);
        true
    }

    fn ping_answer(&self, peer: Nid) -> Payload {
        self.ping_info(peer).encode().into()
    }

    fn handle_reply(&self, interface: &Interface, sender: Nid, header: &Header, payload: Payload) -> bool {
        match self.gets.handle_reply(header.source, header.id, header.status, payload) {
            Some(started) => {
                if header.status != 0 {
                    bump(&self.counters.remote_error_count);
                }
                interface.handle_round_trip(sender, self.rt.now(), started);
                true
            }
            None => false,
        }
    }

    /// Asks for bytes of what a node has exposed.
    pub(crate) fn start_get(
        self: &Arc<Self>,
        from: Nid,
        portal: Portal,
        match_bits: u64,
        range: (u64, u64),
    ) -> GetInFlight {
        let get = self.gets.start(from, match_bits, range.1, self.rt.now());
        let mut message = Message::get(from, portal, match_bits, get.id, range);
        // Bulk is pulled by servers, which the client has asked to.
        message.is_answer = portal == Portal::BULK;
        self.submit(message, Waiter::Get(get.id));
        get
    }

    /// Waits for the answer of a peer.
    pub(crate) async fn in_time<T>(
        &self,
        limit: Duration,
        peer: Nid,
        answer: impl Future<Output = Result<T, LnetError>>,
    ) -> Result<T, LnetError> {
        self.rt.timeout(limit, answer).await.unwrap_or_else(|_| {
            bump(&self.counters.response_timeout_count);
            Err(LnetError::TimedOut(peer))
        })
    }

    /// Asks a node how it is.
    pub(crate) async fn ask_info(self: &Arc<Self>, to: Nid, timeout: Duration) -> Result<PingInfo, LnetError> {
        let mut get = self.start_get(to, Portal::RESERVED, PING_MATCH_BITS, (0, MAX_PAYLOAD as u64));
        let answer = self.in_time(timeout, to, get.answer()).await?;
        PingInfo::decode(&answer.to_bytes()).map_err(|_| LnetError::NoMatch(to, PING_MATCH_BITS))
    }

    /// The most payload that one message to `peer` carries. Within the node nothing is cut.
    pub(crate) fn message_max(&self, peer: Nid) -> u64 {
        if self.is_local(peer) { u64::MAX } else { MAX_PAYLOAD as u64 }
    }

    /// The driver of the interface `own` lost its connections to a peer.
    pub(crate) fn handle_peer_down(self: &Arc<Self>, own: Nid, peer: Nid) {
        self.handle_gateway_lost(peer);
        let (nids, loss) = self.handle_rail_lost(own, peer).unwrap_or((BTreeSet::from([peer]), Loss::Peer));
        self.handle_lost(&nids, loss);
    }

    /// Messages to and from these nodes may be lost: those who wait for answers are told.
    pub(crate) fn handle_lost(&self, nids: &BTreeSet<Nid>, loss: Loss) {
        self.gets.fail_all(|from| nids.contains(&from), LnetError::PeerDown);
        let hooks = self.loss_hooks.read().clone();
        hooks.iter().for_each(|hook| hook(nids, loss));
    }

    /// A peer introduced itself on the interface `via`.
    pub(crate) fn handle_hello(self: &Arc<Self>, via: Nid, nids: &[Nid]) {
        let (Some(interface), Some(primary)) = (self.interface(via), nids.first()) else { return };
        interface.state.lock().peer(*primary, interface.peers_max).nids = nids.into();
        self.handle_introduced(nids);
    }

    pub(crate) fn interface(&self, nid: Nid) -> Option<Arc<Interface>> {
        if nid == Nid::LO {
            return Some(self.lo().clone());
        }
        self.interfaces.read().iter().find(|i| i.nid == nid).cloned()
    }
}

impl Outbound {
    /// Asks for credits; goes to the driver, waits, or is refused.
    pub(crate) fn admit(self, interface: &Interface) {
        let (peer, bytes) = (self.next_hop, self.payload_len);
        self.note_sent(interface.nid);
        // The buffers of a router bound what it passes on: nothing of that is dropped.
        let (kind, now) = ((self.message.header.purpose, self.held.is_some()), self.started);
        let mut s = interface.state.lock();
        if self.is_by_gateway() {
            *s.gateway_bytes.entry(peer).or_default() += bytes as u64;
        }
        match s.credits.handle_send(peer, kind, bytes, self, now) {
            Admission::Go(out, pass) => {
                let out = interface.with_credits(&s, (out, pass));
                drop(s);
                interface.lnd.send(out);
            }
            Admission::Queued => {}
            Admission::Full(out) => {
                drop(s);
                out.complete(Err(LnetError::QueueFull(peer)));
            }
        }
    }
}

impl Interface {
    fn new(nid: Nid, lnd: Arc<dyn Lnd>, credits: Credits<Outbound>, peers_max: usize) -> Interface {
        let (traffic, failures, peers, gateway_bytes, ready) = Default::default();
        let state = InterfaceState { credits, traffic, failures, peers, gateway_bytes, ready, pumping: false };
        Interface { nid, lnd, state: Mutex::new(state), peers_max }
    }

    /// Describes one NID of a peer with several, on this interface, for the choice of a way to that peer. Health comes
    /// back by itself in the time `healed_after`, so that a NID that failed has its turn again.
    pub(crate) fn rail_candidate(&self, nid: Nid, now: Time, healed_after: Duration) -> Candidate {
        let s = self.state.lock();
        let (known, gate) = (s.peers.get(&nid), s.credits.peer(nid));
        Candidate {
            preference: INDIFFERENT,
            peer_health: HEALTH_MAX - known.map_or(0, |peer| peer.sickness_at(now, healed_after)),
            interface_health: HEALTH_MAX,
            is_full: s.credits.interface().available <= 0,
            credits_in_use: i64::from(gate.max) - gate.available + s.credits.peer_queued(nid) as i64,
            turn: known.map_or(0, |peer| peer.turn),
        }
    }

    /// A message that had a choice of ways goes to a NID.
    pub(crate) fn take_turn(&self, nid: Nid, turn: u64) {
        self.state.lock().peer(nid, self.peers_max).turn = turn;
    }

    /// Sets the health of a NID.
    pub(crate) fn set_health(&self, nid: Nid, health: u32, now: Time) -> bool {
        let mut s = self.state.lock();
        let peer = s.peers.get_mut(&nid);
        let is_known = peer.is_some();
        if let Some(peer) = peer {
            (peer.sickness, peer.sick_since) = (HEALTH_MAX - health.min(HEALTH_MAX), now);
        }
        is_known
    }

    /// What the choice of a gateway needs to know of one on this interface.
    pub(crate) fn gateway_state(&self, gateway: Nid, is_avoided: bool, is_silent: bool) -> GatewayState {
        let s = self.state.lock();
        let peer = s.peers.get(&gateway);
        GatewayState {
            health: HEALTH_MAX - peer.map_or(0, |p| p.sickness),
            is_avoided,
            preference: u32::MAX,
            is_silent,
            queued_bytes: s.gateway_bytes.get(&gateway).copied().unwrap_or(0),
            available_credits: s.credits.peer(gateway).available,
            sequence: peer.map_or(0, |p| p.traffic.read().sent.total()),
        }
    }

    /// Known peers to which a message would go out at once.
    pub(crate) fn reached_peers(&self) -> Vec<Nid> {
        let known: Vec<Nid> = self.state.lock().peers.keys().copied().collect();
        known.into_iter().filter(|peer| self.lnd.reaches(*peer)).collect()
    }

    /// A message is done: its credits go to those that wait.
    pub(crate) fn handle_done(&self, done: &mut Outbound, result: Result<(), LnetError>, now: Time) {
        let mut s = self.state.lock();
        s.count_done(done, result, now, self.peers_max);
        if let Some(pass) = done.credits.take() {
            let released = s.credits.handle_done(done.next_hop, pass, done.is_taken, now);
            s.ready.extend(released);
        }
        self.pump(s);
    }

    /// A message was sent. Returns the credit of its peer, which it keeps: see [`Interface::handle_taken`].
    pub(crate) fn handle_sent(&self, sent: &mut Outbound, now: Time) -> Option<Taken> {
        let mut s = self.state.lock();
        s.count_done(sent, Ok(()), now, self.peers_max);
        let kept = sent.credits.take().map(|pass| {
            let (credit, released) = s.credits.handle_sent(pass, now);
            s.ready.extend(released);
            credit
        });
        self.pump(s);
        kept
    }

    /// A peer has taken a message that was sent, or its connection was lost before it did.
    pub(crate) fn handle_taken(&self, peer: Nid, credit: Taken, is_taken: bool, now: Time) {
        let mut s = self.state.lock();
        let released = s.credits.handle_taken(peer, credit, is_taken, now);
        s.ready.extend(released);
        self.pump(s);
    }

    /// A message that the credit engine lets go.
    fn with_credits(&self, s: &InterfaceState, (mut out, pass): Released<Outbound>) -> Outbound {
        out.credits = Some(pass);
        // Within the node they are as good as endless.
        out.credits_are_low = self.nid != Nid::LO && s.credits.is_low(out.next_hop, out.message.header.purpose);
        out
    }

    /// From now on each peer has so many credits, which may grow up to `most`.
    pub(crate) fn set_peer_credits(&self, credits: u32, most: u32, now: Time) {
        let mut s = self.state.lock();
        let released = s.credits.set_peer_credits(credits, most, now);
        s.ready.extend(released);
        self.pump(s);
    }

    /// From now on the driver may have so many messages in hand.
    pub(crate) fn set_credits(&self, credits: u32, now: Time) {
        let mut s = self.state.lock();
        let released = s.credits.set_credits(credits, now);
        s.ready.extend(released);
        self.pump(s);
    }

    /// From now on purposes have lanes of their own, or none do.
    pub(crate) fn set_lanes(&self, lanes: bool, now: Time) {
        let mut s = self.state.lock();
        let released = s.credits.set_lanes(lanes, now);
        s.ready.extend(released);
        self.pump(s);
    }

    /// How long messages waited for credits of their peers, and of the interface.
    pub(crate) fn waits(&self) -> [Waits; 2] {
        self.state.lock().credits.waits()
    }

    /// The most that the credits of a peer grow to.
    pub(crate) fn peer_credits_max(&self) -> u32 {
        self.state.lock().credits.peer_credits_max()
    }

    /// Gives the messages that are ready to the driver, unless somebody does already.
    fn pump<'a>(&'a self, mut s: MutexGuard<'a, InterfaceState>) {
        if s.pumping || s.ready.is_empty() {
            return;
        }
        s.pumping = true;
        while let Some(next) = s.ready.pop_front() {
            let next = self.with_credits(&s, next);
            drop(s);
            self.lnd.send(next);
            s = self.state.lock();
        }
        s.pumping = false;
    }

    fn handle_received(&self, from: Nid, kind: Kind) {
        let mut s = self.state.lock();
        s.traffic.count_received(kind);
        s.peer(from, self.peers_max).traffic.count_received(kind);
    }

    fn handle_dropped(&self, from: Nid, kind: Kind) {
        let mut s = self.state.lock();
        s.traffic.count_dropped(kind);
        s.peer(from, self.peers_max).traffic.count_dropped(kind);
    }

    fn handle_round_trip(&self, from: Nid, now: Time, started: Time) {
        let mut s = self.state.lock();
        s.traffic.count_round_trip(now - started);
        s.peer(from, self.peers_max).traffic.count_round_trip(now - started);
    }

    pub(crate) fn status(&self, options: &LnetOptions) -> InterfaceStatus {
        let lnd = self.lnd.describe();
        let s = self.state.lock();
        let gate = s.credits.interface();
        // `lo` has no credits worth the name: as in Lustre, zeroes.
        let lo = self.nid == Nid::LO;
        let shown = |v: i64| if lo { 0 } else { v };
        InterfaceStatus {
            nid: self.nid,
            up: true,
            interface: lnd.interface,
            traffic: s.traffic.read(),
            credits: if lo { 0 } else { gate.max },
            peer_credits: if lo { 0 } else { s.credits.peer_credits() },
            peer_credits_max: if lo { 0 } else { s.credits.peer_credits_max() },
            peer_buffer_credits: 0,
            peer_timeout_secs: if lo { 0 } else { options.peer_timeout.as_secs() },
            available_tx_credits: shown(gate.available),
            min_tx_credits: shown(gate.low_water),
            tx_queued: s.credits.interface_queued(),
            health: HEALTH_MAX,
            failures: s.failures,
            conns_per_peer: lnd.conns_per_peer,
            tunables: self.lnd.tunables(),
            timeout_secs: lnd.timeout_secs,
        }
    }

    pub(crate) fn forget_failures(&self, peer: Nid) {
        self.lnd.forget_failures(peer);
    }

    pub(crate) fn peers(&self) -> Vec<PeerStatus> {
        let s = self.state.lock();
        let mut all: Vec<_> = s.peers.iter().map(|(nid, peer)| s.peer_status(*nid, peer)).collect();
        drop(s);
        all.sort_by_key(|p| p.primary_nid);
        all.iter_mut().for_each(|p| p.connections = self.lnd.connections(p.primary_nid));
        all
    }
}

impl Peer {
    /// What health lacks if it has come back evenly, all of it in the time `healed_after`.
    fn sickness_at(&self, now: Time, healed_after: Duration) -> u32 {
        let left = healed_after.saturating_sub(now.since(self.sick_since)).as_millis();
        (u128::from(self.sickness) * left / healed_after.as_millis().max(1)) as u32
    }
}

impl InterfaceState {
    fn peer(&mut self, nid: Nid, peers_max: usize) -> &mut Peer {
        if self.peers.len() >= peers_max && self.peers.get(&nid).is_none() {
            self.credits.forget_idle();
            let credits = &self.credits;
            self.peers.retain(|nid, _| credits.peer(*nid).available < i64::from(credits.peer(*nid).max));
        }
        self.peers.get_or_insert_with(nid, Box::default)
    }

    fn count_done(&mut self, done: &Outbound, result: Result<(), LnetError>, now: Time, peers_max: usize) {
        let kind = done.message.header.kind;
        let count = |t: &mut TrafficCounts| match result {
            Ok(()) => t.count_sent(kind, now - done.started),
            Err(_) => t.count_dropped(kind),
        };
        if let Err(failure) = result {
            self.failures.count(failure);
        }
        count(&mut self.traffic);
        if done.is_by_gateway()
            && let Some(bytes) = self.gateway_bytes.get_mut(&done.next_hop)
        {
            *bytes -= done.payload_len as u64;
            if *bytes == 0 {
                self.gateway_bytes.remove(&done.next_hop);
            }
        }
        let peer = self.peer(done.next_hop, peers_max);
        count(&mut peer.traffic);
        match result {
            Ok(()) => {
                peer.up = Some(true);
                if peer.sickness > 0 {
                    let sensitivity = done.health_sensitivity();
                    peer.sickness = if sensitivity == 0 { 0 } else { peer.sickness.saturating_sub(sensitivity) };
                    peer.sick_since = now;
                }
            }
            Err(LnetError::PeerDown(_) | LnetError::TimedOut(_)) => {
                peer.up = Some(false);
                (peer.sickness, peer.sick_since) = ((peer.sickness + done.health_sensitivity()).min(HEALTH_MAX), now);
            }
            Err(_) => {}
        }
    }

    fn peer_status(&self, nid: Nid, peer: &Peer) -> PeerStatus {
        let gate = self.credits.peer(nid);
        let max = i64::from(gate.max);
        PeerStatus {
            primary_nid: nid,
            nids: if peer.nids.is_empty() { vec![nid] } else { peer.nids.to_vec() },
            up: peer.up,
            connections: 0,
            max_ni_tx_credits: gate.max,
            available_tx_credits: gate.available,
            min_tx_credits: gate.low_water,
            tx_q_num_of_buf: self.credits.peer_queued(nid),
            available_rtr_credits: max,
            min_rtr_credits: max,
            refcount: 1 + (max - gate.available) as u64,
            health: HEALTH_MAX - peer.sickness,
            traffic: peer.traffic.read(),
        }
    }
}

// An idle node of a simulation of 25,000 must stay small.
const _: () = assert!(size_of::<LnetNode>() + 2 * size_of::<Interface>() < 2048);
const _: () = assert!(size_of::<Latency>() == 32);
