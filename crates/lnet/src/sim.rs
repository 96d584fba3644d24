//! `sim`: the simulated network. Latency, jitter, bandwidth per node, loss, reordering, cuts and crashes, all from one
//! seed. One task and one heap of events carry every message of every node; a message costs one event, and a second
//! one where bandwidth is limited.
//!
//! Unlike TCP it breaks no connection when it loses a message: upper layers resend, as they must over real networks
//! when a connection breaks. Congestion inside the fabric is modelled only where messages go over simulated TCP
//! ([`SimNetOptions::tcp`]); [`lines`] is that case.

mod lines;

use crate::error::LnetError;
use crate::lnd::{LinkStatus, Lnd, Outbound, Receipt};
use crate::message::Message;
use crate::node::LnetNode;
use crate::packed::Packed;
use crate::sim_tcp::SimTcp;
use lines::Lines;
use nacre_base::{FxHashMap, Network, Nid, Prng, Time};
use nacre_rt::Rt;
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Ordering;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A simulated network. Cloning shares.
#[derive(Clone)]
pub struct SimNet(Arc<Shared>);

/// When a sender's credits come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CreditsReturn {
    /// When the message has left, as when a socket has taken it.
    #[default]
    Sent,
    /// When it is in the receiver's memory, whatever becomes of it there: `gni`, whose hardware says so.
    Delivered,
    /// When the receiver's message arrives that says that it was taken: `o2ib`.
    Taken,
    /// As [`CreditsReturn::Taken`] for a payload of [`ZERO_COPY_MIN`] bytes or more, and as [`CreditsReturn::Sent`] for others: Lustre's
    /// `socklnd`, which gives a large payload to the socket without copying it, and keeps it until the receiver has said that it was
    /// taken.
    LargeTaken,
}

/// Least payload that Lustre's `socklnd` does not copy: its `zc_min_payload`.
pub const ZERO_COPY_MIN: usize = 16 << 10;

impl CreditsReturn {
    /// Whether a message's credits come back only after it has arrived.
    fn waits_for_receiver(self, payload_len: usize) -> bool {
        match self {
            CreditsReturn::Sent => false,
            CreditsReturn::Delivered | CreditsReturn::Taken => true,
            CreditsReturn::LargeTaken => payload_len >= ZERO_COPY_MIN,
        }
    }
}

/// How the network behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimNetOptions {
    /// The network that its nodes are on.
    pub network: Network,
    /// When a sender's credits come back.
    pub credits_return: CreditsReturn,
    /// Every link, unless [`SimNet::set_link`] says otherwise.
    pub link: LinkOptions,
    /// Bytes a second that each node can send, and as many that it can receive, unless [`SimNet::set_bandwidth`] says
    /// otherwise; 0 is without limit.
    pub bandwidth: u64,
    /// What a message needs of a bandwidth, unless [`SimNet::set_framing`] says otherwise.
    pub framing: Framing,
    /// If set, messages between two nodes go over TCP connections of the nodes' own, on a link of their own in each direction, with the
    /// latency that the link has when its first message is sent. Bandwidths, framing, jitter and losses of messages then mean nothing.
    pub tcp: Option<SimTcp>,
    /// Decides what is lost and what is late.
    pub seed: u64,
}

/// How messages from one node to another fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// From the last byte sent to the last byte received.
    pub latency: Duration,
    /// Up to so much more, at random. Messages of a link stay in order.
    pub jitter: Duration,
    /// Messages lost of a million.
    pub loss_ppm: u32,
    /// Messages of a million that are held back by up to `reorder_delay`, and may be overtaken.
    pub reorder_ppm: u32,
    /// See `reorder_ppm`.
    pub reorder_delay: Duration,
    /// Packets of a million that are lost and sent again, as by TCP. Their message arrives later by `resend_after`, and no later message
    /// overtakes it.
    pub resend_ppm: u32,
    /// See `resend_ppm`.
    pub resend_after: Duration,
}

/// Bytes that a network adds to those of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Framing {
    /// Bytes added to each message.
    pub message: u32,
    /// Most bytes of a message in one packet; 0 if a message is never divided.
    pub packet: u32,
    /// Bytes added for each packet of a message but its first.
    pub per_packet: u32,
}

/// Something that goes wrong, or right again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimFault {
    /// Nothing passes between the two sets, in neither direction.
    Partition(BTreeSet<u32>, BTreeSet<u32>),
    /// Nothing passes from the first set to the second.
    Cut(BTreeSet<u32>, BTreeSet<u32>),
    /// All cuts and partitions end.
    Heal,
    /// The node falls silent, and messages from and to it that are on the way are lost.
    Crash(u32),
    /// Every link without options of its own loses so many messages of a million.
    Loss(u32),
}

/// Counts of a simulated network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimNetStats {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages lost: by chance, by a cut, or because a node was gone.
    pub lost: u64,
    /// Payload bytes delivered.
    pub bytes: u64,
}

impl Default for SimNetOptions {
    fn default() -> SimNetOptions {
        let (credits_return, link, framing) = Default::default();
        SimNetOptions { network: Network::SIM, credits_return, link, bandwidth: 0, framing, tcp: None, seed: 0 }
    }
}

impl Framing {
    /// Bytes of this message on the wire: its header as over TCP, its payload, and what the network adds.
    fn wire_size(self, message: &Message) -> u64 {
        let bytes = (crate::frame::HEADER_LEN + message.payload.len()) as u64;
        let further = bytes.saturating_sub(1).checked_div(self.packet.into()).unwrap_or(0);
        bytes + u64::from(self.message) + further * u64::from(self.per_packet)
    }
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        let none = Duration::ZERO;
        let latency = Duration::from_micros(10);
        LinkOptions {
            latency,
            jitter: none,
            loss_ppm: 0,
            reorder_ppm: 0,
            reorder_delay: none,
            resend_ppm: 0,
            resend_after: Duration::from_millis(200),
        }
    }
}

impl SimNet {
    /// A network without nodes. Its one task lives in `rt`'s scope, which should outlive the nodes.
    pub fn new(rt: Rt, options: SimNetOptions) -> SimNet {
        let state = State {
            prng: Prng::new(options.seed),
            options,
            next_node: 1,
            nodes: FxHashMap::default(),
            links: BTreeMap::new(),
            in_order: FxHashMap::default(),
            packets: BTreeMap::new(),
            lines: Lines::default(),
            cuts: Vec::new(),
            heap: BinaryHeap::new(),
            sequence: 0,
            sleeping_until: Time::FAR_FUTURE,
            stats: SimNetStats::default(),
            watch: None,
        };
        let shared = Arc::new(Shared { rt: rt.clone(), state: Mutex::new(state), earlier: Notify::new() });
        drop(rt.spawn(run(shared.clone())));
        SimNet(shared)
    }

    /// Gives links from `from` to `to` options of their own.
    pub fn set_link(&self, from: u32, to: u32, options: LinkOptions) {
        self.0.state.lock().links.insert((from, to), options);
    }

    /// Changes what holds for all other links.
    pub fn set_links(&self, options: LinkOptions) {
        self.0.state.lock().options.link = options;
    }

    /// Gives a node a bandwidth of its own, as long as it lives; see [`SimNetOptions::bandwidth`].
    pub fn set_bandwidth(&self, node: u32, bandwidth: u64) {
        if let Some(member) = self.0.state.lock().nodes.get_mut(&node) {
            member.bandwidth = bandwidth;
        }
    }

    /// Gives the messages that a node sends, as long as it lives, a framing of their own; see [`SimNetOptions::framing`].
    pub fn set_framing(&self, node: u32, framing: Framing) {
        if let Some(member) = self.0.state.lock().nodes.get_mut(&node) {
            member.framing = framing;
        }
    }

    /// From now on the node, as long as it lives, needs so long for each message until its sender has the credit back, where
    /// that waits for the receiver's word: for interrupts, copies and the messages that return credits. The message itself
    /// is handled at once, and any number at a time.
    pub fn set_taking(&self, node: u32, taking: Duration) {
        if let Some(member) = self.0.state.lock().nodes.get_mut(&node) {
            member.taking = taking;
        }
    }

    /// Has `watch` called for each message that a node sends, and for each that it receives. It must not use the network.
    pub fn watch(&self, watch: impl Fn(Time, u32) + Send + Sync + 'static) {
        self.0.state.lock().watch = Some(Arc::new(watch));
    }

    /// Lets nothing pass between the two sets.
    pub fn partition(&self, a: impl IntoIterator<Item = u32>, b: impl IntoIterator<Item = u32>) {
        self.apply(SimFault::Partition(a.into_iter().collect(), b.into_iter().collect()));
    }

    /// Ends all partitions and cuts.
    pub fn heal(&self) {
        self.apply(SimFault::Heal);
    }

    /// Silences a node for good: its number can be used again by a new node, as after a restart. Ending the node's
    /// tasks is its owner's business ([`Rt::kill`]); a node whose scope was killed counts as crashed.
    pub fn crash(&self, node: u32) {
        self.apply(SimFault::Crash(node));
    }

    /// From now on, messages to a crashed node come back as undeliverable, as over TCP where its process is dead and its host
    /// lives; until its number is used again.
    pub fn refuse(&self, node: u32) {
        if let Some(member) = self.0.state.lock().nodes.get_mut(&node) {
            assert!(member.node.strong_count() == 0, "node {node} still takes messages");
            member.refuses = true;
        }
    }

    /// Tells both nodes that the connection between them broke, as TCP does when a process on a living host dies.
    pub fn disconnect(&self, a: u32, b: u32) {
        let find = |n: u32| self.0.state.lock().nodes.get(&n).and_then(|n| n.node.upgrade());
        for (node, own, peer) in [(find(a), a, b), (find(b), b, a)] {
            if let Some(node) = node {
                node.handle_peer_down(self.nid(own), self.nid(peer));
            }
        }
    }

    /// The NID of a node on this network.
    pub fn nid(&self, number: u32) -> Nid {
        nid_on(self.0.state.lock().options.network, number)
    }

    /// Makes `fault` happen at `at`.
    pub fn schedule(&self, at: Time, fault: SimFault) {
        let mut s = self.0.state.lock();
        let wake = s.push(at, Event::Fault(Box::new(fault)));
        drop(s);
        self.0.wake(wake);
    }

    /// Makes `fault` happen now.
    pub fn apply(&self, fault: SimFault) {
        let wake = self.0.state.lock().apply(fault);
        self.0.wake(wake);
    }

    /// Counts since the beginning.
    pub fn stats(&self) -> SimNetStats {
        self.0.state.lock().stats
    }

    /// Adds a node under a number of its own, or under `number`, replacing the crashed node that had it.
    pub(crate) fn join(&self, node: &Arc<LnetNode>, number: Option<u32>) -> (Nid, Arc<dyn Lnd>) {
        let mut s = self.0.state.lock();
        let number = number.unwrap_or(s.next_node);
        s.next_node = s.next_node.max(number.saturating_add(1));
        let life = s.nodes.get(&number).map_or(0, |n| n.life + 1);
        let member = Member {
            node: Arc::downgrade(node),
            life,
            refuses: false,
            bandwidth: s.options.bandwidth,
            framing: s.options.framing,
            taking: Duration::ZERO,
            sent_until: Time::ZERO,
            received_until: Time::ZERO,
            delivered_until: Time::ZERO,
        };
        s.nodes.insert(number, Box::new(member));
        let nid = nid_on(s.options.network, number);
        drop(s);
        (nid, Arc::new(Port { net: Arc::downgrade(&self.0), number, life }))
    }
}

/// A sequence of faults, made from a seed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// What happens when, in order.
    pub faults: Vec<(Time, SimFault)>,
}

impl FaultPlan {
    /// `rounds` periods of trouble among `nodes`, spread over `from..until`: partitions, one-way cuts and bursts of
    /// loss. Each ends before the next begins, and at `until` the network is whole.
    pub fn random(seed: u64, nodes: &[u32], from: Time, until: Time, rounds: u32) -> FaultPlan {
        assert!(nodes.len() > 1 && from < until && rounds > 0, "a plan needs two nodes, some time and some rounds");
        let mut prng = Prng::new(seed);
        let slot = (until.0 - from.0) / u64::from(rounds);
        let mut faults = Vec::new();
        for round in 0..u64::from(rounds) {
            let begin = from.0 + round * slot;
            let start = begin + prng.below(slot / 2 + 1);
            let end = start + prng.below(begin + slot - start + 1);
            let mut shuffled = nodes.to_vec();
            prng.shuffle(&mut shuffled);
            let (a, b) = shuffled.split_at(prng.range(1, nodes.len() as u64) as usize);
            let (a, b) = (a.iter().copied().collect(), b.iter().copied().collect());
            let (trouble, relief) = match prng.below(3) {
                0 => (SimFault::Partition(a, b), SimFault::Heal),
                1 => (SimFault::Cut(a, b), SimFault::Heal),
                _ => (SimFault::Loss(prng.range(1_000, 300_000) as u32), SimFault::Loss(0)),
            };
            faults.extend([(Time(start), trouble), (Time(end), relief)]);
        }
        FaultPlan { faults }
    }

    /// Schedules all of it.
    pub fn schedule(&self, net: &SimNet) {
        self.faults.iter().for_each(|(at, fault)| net.schedule(*at, fault.clone()));
    }
}

struct Shared {
    rt: Rt,
    state: Mutex<State>,
    /// Rung when an event was added that comes before the time the task sleeps until.
    earlier: Notify,
}

struct State {
    options: SimNetOptions,
    prng: Prng,
    next_node: u32,
    /// Boxed, because the table has room to spare for many.
    nodes: FxHashMap<u32, Box<Member>>,
    links: BTreeMap<(u32, u32), LinkOptions>,
    /// Packets that were sent, and that were sent again, by link; only of links with `resend_ppm`.
    packets: BTreeMap<(u32, u32), (u64, u64)>,
    /// When the last message of a link arrives, for links with jitter or lost packets.
    in_order: FxHashMap<(u32, u32), Time>,
    /// Simulated TCP between nodes; only with [`SimNetOptions::tcp`].
    lines: Lines,
    cuts: Vec<(BTreeSet<u32>, BTreeSet<u32>)>,
    heap: BinaryHeap<Due>,
    sequence: u64,
    sleeping_until: Time,
    stats: SimNetStats,
    /// See [`SimNet::watch`].
    watch: Option<Watch>,
}

/// Called with the time and the number of a node.
type Watch = Arc<dyn Fn(Time, u32) + Send + Sync>;

struct Member {
    node: Weak<LnetNode>,
    /// Counts the lives under one number: a message belongs to the lives of its sender and its receiver.
    life: u32,
    /// Its process is dead, and its host says so.
    refuses: bool,
    bandwidth: u64,
    /// See [`SimNet::set_framing`].
    framing: Framing,
    /// See [`SimNet::set_taking`].
    taking: Duration,
    /// When its last byte so far will have left.
    sent_until: Time,
    /// When its last byte so far will have arrived.
    received_until: Time,
    /// When all that it has sent will have reached its receivers.
    delivered_until: Time,
}

/// An event and its time. Those with the earliest time are the greatest, in the order in which they were made.
struct Due {
    at: Time,
    sequence: u64,
    event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

/// What happens. The heap moves events, so each is a pointer.
enum Event {
    /// The sender is done with a message; it costs an event of its own only where bandwidth is limited.
    Sent(Outbound),
    /// The sender hears that nobody takes the message.
    Refused(Outbound),
    /// A message reaches its receiver's end of the network.
    Arrive(Box<Flight>),
    /// It has been received entirely.
    Deliver(Box<Flight>),
    /// Something happens on the TCP connections from one node to another.
    Tcp(u32, u32),
    Fault(Box<SimFault>),
}

const _: () = assert!(size_of::<Due>() == 32, "an event is a pointer");

/// What comes of a message that reached its receiver's end.
enum Arrival {
    /// It comes in at the bandwidth that there is.
    Later,
    /// It is there.
    At(Arc<LnetNode>, Box<Flight>),
    /// Nobody gets it.
    Lost(Option<Outbound>),
}

struct Flight {
    cargo: Cargo,
    /// Bytes of the message on the wire.
    bytes: u32,
    payload_len: u32,
    from: u32,
    to: u32,
    lives: (u32, u32),
    /// What its sender waits for, where credits do not come back before.
    unreturned: Option<Outbound>,
}

/// The message of a flight.
enum Cargo {
    Whole(Box<Message>),
    Packed(Packed),
}

/// Bytes of a message that a packet carries.
const PACKET: u64 = 1448;
/// Room for further events that the heap gets at least, when it is full.
const HEAP_ROOM: usize = 64;
/// With more events to come, messages are packed, which takes the simulation longer and a third of the memory.
const EVENTS_UNPACKED_MAX: usize = 512;

impl Cargo {
    fn message(self) -> Message {
        match self {
            Cargo::Whole(message) => *message,
            Cargo::Packed(packed) => packed.unpack(),
        }
    }
}

/// A node's connection to the network. Weak: messages under way hold their sender, and would keep the network alive.
struct Port {
    net: Weak<Shared>,
    number: u32,
    life: u32,
}

impl Lnd for Port {
    fn send(&self, out: Outbound) {
        match self.net.upgrade() {
            Some(net) => net.send(self.number, self.life, out),
            None => out.complete(Err(LnetError::Shutdown)),
        }
    }

    fn links(&self) -> Vec<LinkStatus> {
        let Some(net) = self.net.upgrade() else { return Vec::new() };
        let s = net.state.lock();
        let network = s.options.network;
        let link = |(&(from, to), &(packets, lost)): (&(u32, u32), &(u64, u64))| {
            let link = |peer| LinkStatus::new(nid_on(network, peer));
            if from == self.number {
                return Some(LinkStatus { sent: packets, resent: lost, ..link(to) });
            }
            (to == self.number).then(|| LinkStatus { received: packets, disordered: lost, ..link(from) })
        };
        s.packets.iter().filter_map(link).collect()
    }

    /// What was sent arrives before the node falls silent, as over TCP, whose kernel goes on sending for a closed socket.
    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let Some(net) = self.net.upgrade() else { return };
            loop {
                let delivered_until = {
                    let mut s = net.state.lock();
                    let Some(member) = s.nodes.get(&self.number).filter(|m| m.life == self.life) else { return };
                    let delivered_until = member.delivered_until.max(s.lines.busy_until(self.number, net.rt.now()));
                    if delivered_until <= net.rt.now() {
                        let wake = s.apply(SimFault::Crash(self.number));
                        drop(s);
                        return net.wake(wake);
                    }
                    delivered_until
                };
                net.rt.sleep_until(delivered_until + Duration::from_nanos(1)).await;
            }
        })
    }
}

impl Shared {
    fn send(&self, from: u32, life: u32, mut out: Outbound) {
        let to = number_of(out.next_hop);
        let now = self.rt.now();
        let mut s = self.state.lock();
        // What a dead node sends goes nowhere.
        if s.nodes.get(&from).is_none_or(|m| m.life != life) {
            drop(s);
            return out.complete(Ok(()));
        }
        if s.nodes.get(&to).is_some_and(|m| m.refuses) && !s.is_cut(from, to) && !s.is_cut(to, from) {
            let back = now + 2 * s.options.link.latency;
            let wake = s.push(back, Event::Refused(out));
            drop(s);
            return self.wake(wake);
        }
        s.tell_watch(now, from);
        let message = out.take_message();
        if let Some(tcp) = s.options.tcp {
            return self.send_on_line(s, (from, to), life, tcp, out, message);
        }
        let bytes = s.nodes.get(&from).map_or(0, |m| m.framing.wire_size(&message));
        let sent = s.leave(from, now, bytes);
        let mut wake = false;
        match s.fare(from, to, sent, bytes) {
            Some(arrives) => {
                let lives = (life, s.nodes.get(&to).map_or(0, |m| m.life));
                if let Some(message) = message.arrive_unframed() {
                    s.note_delivery(from, life, arrives);
                    let count = |bytes| u32::try_from(bytes).expect("a message is much smaller than 4 GiB");
                    let (bytes, payload_len) = (count(bytes), count(message.payload.len() as u64));
                    let cargo = s.load(message);
                    let mut flight = Box::new(Flight { cargo, bytes, payload_len, from, to, lives, unreturned: None });
                    if s.options.credits_return.waits_for_receiver(out.payload_len) {
                        flight.unreturned = Some(out);
                        wake |= s.push(arrives, Event::Arrive(flight));
                        drop(s);
                        return self.wake(wake);
                    }
                    wake |= s.push(arrives, Event::Arrive(flight));
                }
            }
            None => s.stats.lost += 1,
        }
        if sent > now {
            wake |= s.push(sent, Event::Sent(out));
            drop(s);
        } else {
            drop(s);
            out.complete(Ok(()));
        }
        self.wake(wake);
    }

    /// The receiver's word that it has taken a message is on its way to the sender.
    fn return_credits(&self, out: Outbound, latency: Duration) {
        let wake = self.state.lock().push(self.rt.now() + latency, Event::Sent(out));
        self.wake(wake);
    }

    fn wake(&self, wake: bool) {
        if wake {
            self.earlier.notify_one();
        }
    }
}

impl State {
    /// When the message has left its sender, whose link it then blocks until that time.
    fn leave(&mut self, from: u32, now: Time, bytes: u64) -> Time {
        let Some(member) = self.nodes.get_mut(&from) else { return now };
        member.sent_until = member.sent_until.max(now) + transmission(bytes, member.bandwidth);
        member.sent_until
    }

    /// When a message that left at `sent` arrives; `None` if it does not.
    fn fare(&mut self, from: u32, to: u32, sent: Time, bytes: u64) -> Option<Time> {
        let link = self.links.get(&(from, to)).copied().unwrap_or(self.options.link);
        if self.is_cut(from, to) || self.chance(link.loss_ppm) {
            return None;
        }
        if self.chance(link.reorder_ppm) {
            return Some(sent + link.latency + self.random_up_to(link.jitter + link.reorder_delay));
        }
        let mut arrives = sent + link.latency;
        if !link.jitter.is_zero() || link.resend_ppm > 0 {
            arrives += self.random_up_to(link.jitter);
            if self.loses_packets(from, to, link.resend_ppm, bytes) {
                arrives += link.resend_after;
            }
            let last = self.in_order.entry((from, to)).or_default();
            arrives = arrives.max(*last);
            *last = arrives;
        }
        Some(arrives)
    }

    /// Counts the packets of a message on a link with `resend_ppm`. Returns whether some of them were lost and sent again.
    fn loses_packets(&mut self, from: u32, to: u32, resend_ppm: u32, bytes: u64) -> bool {
        if resend_ppm == 0 {
            return false;
        }
        let packets = bytes.div_ceil(PACKET);
        let lost = (0..packets).filter(|_| self.chance(resend_ppm)).count() as u64;
        let (sent, resent) = self.packets.entry((from, to)).or_default();
        (*sent, *resent) = (*sent + packets + lost, *resent + lost);
        lost > 0
    }

    /// Something that the node sent in this life is on the way until `at`.
    fn note_delivery(&mut self, from: u32, life: u32, at: Time) {
        if let Some(member) = self.nodes.get_mut(&from).filter(|m| m.life == life) {
            member.delivered_until = member.delivered_until.max(at);
        }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.prng.below(1_000_000) < u64::from(ppm)
    }

    fn random_up_to(&mut self, d: Duration) -> Duration {
        Duration::from_nanos(self.prng.below(d.as_nanos() as u64 + 1))
    }

    fn is_cut(&self, from: u32, to: u32) -> bool {
        self.cuts.iter().any(|(a, b)| a.contains(&from) && b.contains(&to))
    }

    /// Adds an event; whether the task must be woken for it.
    fn push(&mut self, at: Time, event: Event) -> bool {
        if self.heap.len() == self.heap.capacity() {
            // Twice the room for millions of events would be too much.
            self.heap.reserve_exact(self.heap.len() / 4 + HEAP_ROOM);
        }
        self.heap.push(Due { at, sequence: self.sequence, event });
        self.sequence += 1;
        let earlier = at < self.sleeping_until;
        if earlier {
            self.sleeping_until = at;
        }
        earlier
    }

    /// The next event that is due, or the time of the next, which is noted as the time slept until.
    fn pop(&mut self, now: Time) -> Result<Event, Time> {
        match self.heap.peek_mut() {
            Some(next) if next.at <= now => Ok(PeekMut::pop(next).event),
            next => {
                self.sleeping_until = next.map_or(Time::FAR_FUTURE, |next| next.at);
                Err(self.sleeping_until)
            }
        }
    }

    /// The message as it waits for its time.
    fn load(&self, message: Message) -> Cargo {
        let packed = if self.heap.len() < EVENTS_UNPACKED_MAX { None } else { Packed::pack(&message) };
        packed.map_or_else(|| Cargo::Whole(Box::new(message)), Cargo::Packed)
    }

    /// A message has reached its receiver's end; the node that it is for, when it has come in entirely.
    fn arrive(&mut self, flight: Box<Flight>, now: Time) -> Arrival {
        let Some(member) = self.nodes.get_mut(&flight.to) else { return self.lose(*flight) };
        // A message alone takes no longer for having a receiver: its bytes come in as they went out.
        let takes = transmission(flight.bytes.into(), member.bandwidth);
        member.received_until = (member.received_until + takes).max(now);
        let at = member.received_until;
        if at > now {
            self.note_delivery(flight.from, flight.lives.0, at);
            self.push(at, Event::Deliver(flight));
            return Arrival::Later;
        }
        self.deliver(flight, now)
    }

    fn tell_watch(&self, now: Time, node: u32) {
        self.watch.iter().for_each(|watch| watch(now, node));
    }

    fn deliver(&mut self, flight: Box<Flight>, now: Time) -> Arrival {
        let life = |n: u32| self.nodes.get(&n).map(|m| m.life);
        let alive = (life(flight.from), life(flight.to)) == (Some(flight.lives.0), Some(flight.lives.1));
        if !alive || self.is_cut(flight.from, flight.to) {
            return self.lose(*flight);
        }
        let node = self.nodes.get(&flight.to).and_then(|m| m.node.upgrade()).filter(|n| !n.rt.is_dead());
        let Some(node) = node else { return self.lose(*flight) };
        self.tell_watch(now, flight.to);
        self.stats.delivered += 1;
        self.stats.bytes += u64::from(flight.payload_len);
        Arrival::At(node, flight)
    }

    fn lose(&mut self, flight: Flight) -> Arrival {
        self.stats.lost += 1;
        Arrival::Lost(flight.unreturned)
    }

    /// Makes a fault happen. Returns whether the task must be woken for what comes of it.
    fn apply(&mut self, fault: SimFault) -> bool {
        match fault {
            SimFault::Partition(a, b) => self.cuts.extend([(a.clone(), b.clone()), (b, a)]),
            SimFault::Cut(from, to) => self.cuts.push((from, to)),
            SimFault::Heal => self.cuts.clear(),
            SimFault::Loss(ppm) => self.options.link.loss_ppm = ppm,
            SimFault::Crash(number) => {
                if let Some(m) = self.nodes.get_mut(&number) {
                    m.life += 1;
                    m.node = Weak::new();
                    (m.sent_until, m.received_until, m.delivered_until) = (Time::ZERO, Time::ZERO, Time::ZERO);
                }
                self.in_order.retain(|(from, to), _| *from != number && *to != number);
                return self.cut_lines(number);
            }
        }
        false
    }
}

fn transmission(bytes: u64, bandwidth: u64) -> Duration {
    match bandwidth {
        0 => Duration::ZERO,
        bandwidth => Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth)) as u64),
    }
}

/// The network's only task: makes events happen when they are due.
async fn run(net: Arc<Shared>) {
    loop {
        let next = loop {
            let mut s = net.state.lock();
            let now = net.rt.now();
            match s.pop(now) {
                Ok(event) => handle(&net, s, event, now),
                Err(next) => break next,
            }
        };
        let earlier = net.earlier.notified();
        if next == Time::FAR_FUTURE {
            // Without a timer, so that a simulation in which nothing can happen any more is seen to hang.
            earlier.await;
            continue;
        }
        tokio::select! {
            biased;
            () = earlier => {}
            () = net.rt.sleep_until(next) => {}
        }
    }
}

fn handle(net: &Arc<Shared>, mut s: MutexGuard<'_, State>, event: Event, now: Time) {
    let arrival = match event {
        Event::Sent(out) => {
            // Outside the lock, because it may send other messages.
            drop(s);
            return out.complete(Ok(()));
        }
        Event::Refused(out) => {
            drop(s);
            let peer = out.next_hop;
            return out.complete(Err(LnetError::PeerDown(peer)));
        }
        Event::Fault(fault) => {
            s.apply(*fault);
            return;
        }
        Event::Arrive(flight) => s.arrive(flight, now),
        Event::Deliver(flight) => s.deliver(flight, now),
        Event::Tcp(from, to) => {
            // The events that come of it are due, or later than this one.
            s.advance_line((from, to), now);
            return;
        }
    };
    let (network, credits_return) = (s.options.network, s.options.credits_return);
    let taking = match &arrival {
        Arrival::At(_, flight) => s.nodes.get(&flight.to).map_or(Duration::ZERO, |member| member.taking),
        Arrival::Later | Arrival::Lost(_) => Duration::ZERO,
    };
    let back = s.options.link.latency + taking;
    drop(s);
    match arrival {
        Arrival::Later => {}
        Arrival::Lost(out) => out.into_iter().for_each(|out| out.complete(Ok(()))),
        Arrival::At(node, flight) => {
            let Flight { cargo, from, to, unreturned, .. } = *flight;
            let message = cargo.message();
            let receipt = match (unreturned, credits_return) {
                (Some(mut out), CreditsReturn::Taken | CreditsReturn::LargeTaken) => {
                    let net = Arc::downgrade(net);
                    Receipt::new(move || {
                        out.is_taken = true;
                        match net.upgrade() {
                            Some(net) => net.return_credits(out, back),
                            None => out.complete(Ok(())),
                        }
                    })
                }
                (unreturned, _) => {
                    unreturned.into_iter().for_each(|out| out.complete(Ok(())));
                    Receipt::default()
                }
            };
            node.handle_message(nid_on(network, to), nid_on(network, from), message, receipt);
        }
    }
}

/// On a network with IP addresses, a node's number is its IPv4 address.
fn nid_on(network: Network, number: u32) -> Nid {
    match network.has_ip() {
        true => Nid::on_ip(network, Ipv4Addr::from(number).into(), 0),
        false => Nid::numbered(network, number),
    }
}

fn number_of(nid: Nid) -> u32 {
    match nid.network.has_ip() {
        true => match nid.ip() {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => panic!("{ip} is on no simulated network"),
        },
        false => nid.number(),
    }
}
