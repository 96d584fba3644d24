//! The driver seam. An LND (LNet driver) carries messages on one kind of network: [`crate::tcp`], [`crate::lo`],
//! [`crate::sim`]. It knows nothing of credits, portals or memory descriptors.
//!
//! Upwards, a driver calls `LnetNode::handle_message` for what arrives, `LnetNode::handle_peer_down` when it lost a peer, and
//! exactly once for every message it was given either `Outbound::complete` or, if it hears later that the peer has taken the
//! message, `Outbound::sent`.

use crate::credits::{Packable, Pass};
use crate::error::{LnetError, TuneError};
use crate::frame::Telling;
use crate::message::{Header, Message};
use crate::node::{Interface, LnetNode};
use crate::options::TcpTunables;
use crate::packed::Packed;
use crate::router::Held;
use crate::status::bump;
use crate::stock::Taken;
use nacre_base::{Errno, Nid, Time};
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// A driver bound to one interface.
pub(crate) trait Lnd: Send + Sync {
    /// Carries a message to its next hop. Must not block, and may complete the message at once.
    fn send(&self, message: Outbound);

    /// A peer is said to be up: whatever is known of failures to reach it is out of date.
    fn forget_failures(&self, _peer: Nid) {}

    /// Whether peers tell of their NIDs when a connection is opened. Elsewhere a peer has to be asked.
    fn says_hello(&self) -> bool {
        false
    }

    /// Whether a message to the peer would go out without a connection being opened first.
    fn reaches(&self, _peer: Nid) -> bool {
        true
    }

    /// Open connections to a peer.
    fn connections(&self, _peer: Nid) -> usize {
        0
    }

    /// The open connections to all peers.
    fn connection_statuses(&self) -> Vec<ConnectionStatus> {
        Vec::new()
    }

    /// Packets and losses on the way to and from peers, for drivers whose network counts them. A peer may occur several times.
    fn links(&self) -> Vec<LinkStatus> {
        Vec::new()
    }

    /// The connections to a peer and what the kernel knows of their path, for drivers that have TCP connections; none without connections.
    fn path(&self, _peer: Nid) -> Option<PathStatus> {
        None
    }

    /// Settings of the driver's connections that an administrator has made; none for drivers that have no TCP connections.
    fn tunables(&self) -> Option<TcpTunables> {
        None
    }

    /// Changes that, at once, or refuses all of it. More connections are opened with the next message. Fewer are used once those that
    /// there are have ended.
    fn tune(&self, _tunables: &TcpTunables) -> Result<(), TuneError> {
        Ok(())
    }

    /// What `lnetctl net show -v` says of the driver.
    fn describe(&self) -> LndStatus {
        LndStatus::default()
    }

    /// Closes everything. Messages in hand are completed with an error.
    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// An open connection, as `lctl conn_list` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The peer.
    pub peer: Nid,
    /// The NID of this node's interface.
    pub interface: Nid,
    /// `C` for small messages, `I` and `O` for bulk that comes in and goes out.
    pub kind: char,
    /// True if this node opened it.
    pub dialed: bool,
}

/// Packets to and from a peer over the connections that are open now, and how many of them were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStatus {
    /// The peer.
    pub peer: Nid,
    /// Packets that this node sent, including those that it sent again.
    pub sent: u64,
    /// Packets that this node sent again because the peer did not acknowledge them, without those that the peer had already.
    pub resent: u64,
    /// Packets that came from the peer.
    pub received: u64,
    /// Packets from the peer that arrived after a gap, because an earlier one was lost or overtaken.
    pub disordered: u64,
    /// Time from a packet to its acknowledgement, in microseconds; 0 if it is not known.
    pub round_trip_us: u64,
}

impl LinkStatus {
    /// A link on which nothing has happened.
    pub(crate) fn new(peer: Nid) -> LinkStatus {
        LinkStatus { peer, sent: 0, resent: 0, received: 0, disordered: 0, round_trip_us: 0 }
    }

    /// Adds another connection to the same peer. The longer round trip of the two is kept.
    pub(crate) fn add(&mut self, other: &LinkStatus) {
        assert_eq!(self.peer, other.peer, "links to two peers");
        self.sent += other.sent;
        self.resent += other.resent;
        self.received += other.received;
        self.disordered += other.disordered;
        self.round_trip_us = self.round_trip_us.max(other.round_trip_us);
    }
}

/// The path to a peer, as `nacre wan-check` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathStatus {
    /// The NID of this node's interface.
    pub interface: Nid,
    /// Bulk connections in each direction that the path is worth, from its round trips alone.
    pub worth_connections: u32,
    /// The connections.
    pub sockets: Vec<SocketStatus>,
}

/// The socket of a connection, as the kernel describes it (tcp(7), `struct tcp_info`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketStatus {
    /// `C` for small messages, `I` and `O` for bulk that comes in and goes out.
    pub kind: char,
    /// Smoothed time from a packet to its acknowledgement, in microseconds.
    pub round_trip_us: u64,
    /// Rate at which data has arrived at the peer lately, in bytes a second; 0 if none was sent.
    pub delivery_rate: u64,
    /// True if the rate was low because this node had too little to send.
    pub is_rate_of_sender: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments that were sent, including those that were sent again.
    pub sent: u64,
    /// Segments that were sent again because they were lost.
    pub resent: u64,
    /// Microseconds in which there was data to send.
    pub busy_us: u64,
    /// Microseconds in which the peer's receive buffer held data up.
    pub receiver_limited_us: u64,
    /// Microseconds in which this node's send buffer held data up.
    pub sender_limited_us: u64,
    /// Bytes that the send buffer may have (`SO_SNDBUF`).
    pub tx_buffer_size: u64,
    /// Bytes that the receive buffer may have (`SO_RCVBUF`).
    pub rx_buffer_size: u64,
    /// Name of the congestion control.
    pub congestion_control: String,
}

/// What a driver tells of itself.
#[derive(Default)]
pub(crate) struct LndStatus {
    pub(crate) interface: Option<String>,
    pub(crate) conns_per_peer: u32,
    pub(crate) timeout_secs: u64,
}

/// A message on its way out. Whoever holds it owes it a completion, which returns its credits and tells the sender;
/// dropping it counts as a lost peer. It passes through many hands, so it is one pointer.
pub(crate) struct Outbound(Box<Sending>);

/// The message of an [`Outbound`], with all that has to be known until it is completed.
pub(crate) struct Sending {
    node: Arc<LnetNode>,
    interface: Arc<Interface>,
    pub(crate) next_hop: Nid,
    pub(crate) message: Message,
    /// When the message was given to the network.
    pub(crate) started: Time,
    /// Payload bytes, kept because a driver may take the payload out.
    pub(crate) payload_len: usize,
    waiter: Waiter,
    /// Its credits, from when the credit engine lets it go to the driver.
    pub(crate) credits: Option<Pass>,
    /// Of the next hop's, less than half was free then.
    pub(crate) credits_are_low: bool,
    /// What it holds of a router that passes it on.
    pub(crate) held: Option<Held>,
    /// True if the next hop is the node that the message is for, by another of its NIDs.
    pub(crate) is_by_rail: bool,
    /// How often it was given to another gateway, or another NID, because its own was lost.
    pub(crate) retries: u8,
    /// True if the next hop has said that it has taken the message. Drivers that are done with a message before leave it false.
    pub(crate) is_taken: bool,
    completed: bool,
}

/// An [`Outbound`] that waits with many others. It owes the same, and dropping it counts as a lost peer, too.
pub(crate) struct PackedOutbound(Option<Box<PackedSending>>);

struct PackedSending {
    node: Arc<LnetNode>,
    interface: Arc<Interface>,
    next_hop: Nid,
    message: Packed,
    started: Time,
    owed: Owed,
    is_by_rail: bool,
    retries: u8,
}

/// Says whom the node tells when a packed message completes. A message that the node sent itself has a waiter. A message that the node
/// passes on as a router holds a credit and a buffer, which the node then takes back.
enum Owed {
    Waiter(Waiter),
    Held(Box<Held>),
}

impl Packable for Outbound {
    type Packed = PackedOutbound;

    fn pack(mut self) -> Result<PackedOutbound, Outbound> {
        let is_at_rest = self.credits.is_none() && !self.completed;
        let Some(message) = Packed::pack(&self.message).filter(|_| is_at_rest) else { return Err(self) };
        let owed = match self.held.take() {
            Some(held) => Owed::Held(Box::new(held)),
            None => Owed::Waiter(std::mem::replace(&mut self.waiter, Waiter::Nobody)),
        };
        let packed = PackedSending {
            node: self.node.clone(),
            interface: self.interface.clone(),
            next_hop: self.next_hop,
            message,
            started: self.started,
            owed,
            is_by_rail: self.is_by_rail,
            retries: self.retries,
        };
        // The packed one owes the completion now.
        self.completed = true;
        Ok(PackedOutbound(Some(Box::new(packed))))
    }

    fn unpack(mut packed: PackedOutbound) -> Outbound {
        packed.0.take().expect("it is unpacked once").unpacked()
    }
}

impl PackedSending {
    fn unpacked(self) -> Outbound {
        let PackedSending { node, interface, next_hop, message, started, owed, is_by_rail, retries } = self;
        let message = message.unpack();
        let (waiter, held) = match owed {
            Owed::Waiter(waiter) => (waiter, None),
            Owed::Held(held) => (Waiter::Nobody, Some(*held)),
        };
        Outbound(Box::new(Sending {
            node,
            interface,
            next_hop,
            payload_len: message.payload.len(),
            message,
            started,
            waiter,
            credits: None,
            credits_are_low: false,
            held,
            is_by_rail,
            retries,
            is_taken: false,
            completed: false,
        }))
    }
}

impl Drop for PackedOutbound {
    fn drop(&mut self) {
        drop(self.0.take().map(|packed| packed.unpacked()));
    }
}

/// What a driver is told when a message that arrived has been taken: when it is with whom it is for or, on a router, when it
/// has a buffer. Dropping it tells.
#[derive(Default)]
pub struct Receipt(Told);

#[derive(Default)]
enum Told {
    /// The driver does not ask.
    #[default]
    Nobody,
    /// The connection that the message came by, and when its sender wants to know.
    Counter(Arc<dyn Counter>, Telling),
    /// A driver that has more to do.
    Call(Box<dyn FnOnce() + Send>),
}

/// Counts the messages that were taken.
pub(crate) trait Counter: Send + Sync {
    /// Counts one more, of which the sender wants to hear then.
    fn count_taken(&self, telling: Telling);
}

impl Receipt {
    /// Calls `told` when the message has been taken.
    pub(crate) fn new(told: impl FnOnce() + Send + 'static) -> Receipt {
        Receipt(Told::Call(Box::new(told)))
    }

    /// Has the message counted when it has been taken.
    pub(crate) fn counted(counter: Arc<dyn Counter>, telling: Telling) -> Receipt {
        Receipt(Told::Counter(counter, telling))
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self.0, Told::Nobody) { "Receipt(nobody)" } else { "Receipt" })
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        match std::mem::take(&mut self.0) {
            Told::Nobody => {}
            Told::Counter(counter, telling) => counter.count_taken(telling),
            Told::Call(told) => told(),
        }
    }
}

/// A message that was sent, and that its next hop has yet to take: a credit of that peer and, on a router, the buffer and
/// the credit that the message holds. Dropping it says that the connection was lost before.
pub(crate) struct Untaken {
    /// Weak, because it may be kept by a connection that is idle for ever, and the node keeps that.
    node: Weak<LnetNode>,
    interface: Weak<Interface>,
    peer: Nid,
    /// None of a message that the driver sends of its own accord.
    credit: Option<Taken>,
    /// Of a router, with the header of the message, so that its sender can be told.
    held: Option<Box<(Held, Header)>>,
    taken: bool,
}

impl Untaken {
    /// The next hop has taken it.
    pub(crate) fn taken(mut self) {
        self.taken = true;
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(credit) = self.credit.take()
            && let Some(interface) = self.interface.upgrade()
            && let Some(node) = self.node.upgrade()
        {
            interface.handle_taken(self.peer, credit, self.taken, node.rt.now());
        }
        if let Some(held) = self.held.take()
            && let Some(node) = self.node.upgrade()
        {
            let (held, header) = *held;
            node.handle_passed_on(held);
            if !self.taken {
                node.answer_unreachable(&header, Errno::EHOSTUNREACH);
            }
        }
    }
}

/// Who is told of a message's completion.
pub(crate) enum Waiter {
    /// Nobody: the sender trusts in its own timeout.
    Nobody,
    /// A PUT's sender.
    Put(oneshot::Sender<Result<(), LnetError>>),
    /// A GET, by its id; it hears of failures only, a REPLY ends it otherwise.
    Get(u64),
    /// The hook for posts whose peer was down ([`crate::Lnet::register_unsent`]).
    Unsent { match_bits: u64, tag: u32 },
}

impl Outbound {
    pub(crate) fn new(
        node: &Arc<LnetNode>,
        interface: Arc<Interface>,
        next_hop: Nid,
        message: Message,
        waiter: Waiter,
    ) -> Outbound {
        let in_hand = node.counters.msgs_alloc.fetch_add(1, Ordering::Relaxed) + 1;
        node.counters.msgs_max.fetch_max(in_hand, Ordering::Relaxed);
        let payload_len = message.payload.len();
        let started = node.rt.now();
        let node = node.clone();
        let (credits, held, retries, completed) = (None, None, 0, false);
        Outbound(Box::new(Sending {
            node,
            interface,
            next_hop,
            message,
            started,
            payload_len,
            waiter,
            credits,
            credits_are_low: false,
            held,
            is_by_rail: false,
            retries,
            is_taken: false,
            completed,
        }))
    }

    /// A failure takes so much off the health of the next hop, and a success gives it back.
    pub(crate) fn health_sensitivity(&self) -> u32 {
        self.node.settings.read().health_sensitivity
    }

    /// It is given to the network: from now on something should be heard from where it goes.
    pub(crate) fn note_sent(&self, via: Nid) {
        if !self.node.is_answered_soon(&self.message) {
            return;
        }
        if let Some(routing) = self.node.routing() {
            routing.handle_sent(via, self.next_hop, self.started);
        }
        if let Some(rails) = self.node.rails() {
            rails.handle_sent(self.next_hop, self.started);
        }
    }

    /// True if it goes to a router first.
    pub(crate) fn is_by_gateway(&self) -> bool {
        self.next_hop != self.message.header.destination && !self.is_by_rail && self.interface.nid != Nid::LO
    }

    /// True if this node is a router that passes the message on.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.held.is_some()
    }

    /// The message itself, for a driver that passes it on in memory.
    pub(crate) fn take_message(&mut self) -> Message {
        let Message { header, payload, damaged, is_answer } = &mut self.message;
        Message { header: *header, payload: std::mem::take(payload), damaged: *damaged, is_answer: *is_answer }
    }

    /// The driver has sent the message. Its sender is told; what is returned holds the rest until the next hop has taken it.
    pub(crate) fn sent(mut self) -> Untaken {
        assert!(!self.completed, "a message is sent once");
        self.note_done(Ok(()));
        let (node, interface, peer) = (self.node.clone(), self.interface.clone(), self.next_hop);
        let held = self.held.take().map(|held| Box::new((held, self.message.header)));
        let waiter = std::mem::replace(&mut self.waiter, Waiter::Nobody);
        let credit = interface.handle_sent(&mut self, node.rt.now());
        waiter.tell(&node, Ok(()));
        let (node, interface) = (Arc::downgrade(&node), Arc::downgrade(&interface));
        Untaken { node, interface, peer, credit, held, taken: false }
    }

    /// When the next hop should say that it has taken the message.
    pub(crate) fn telling(&self) -> Telling {
        match &self.held {
            _ if self.credits_are_low => Telling::Soon,
            Some(held) if held.is_of_the_last() => Telling::Soon,
            Some(_) => Telling::Later,
            None => Telling::WithTheNext,
        }
    }

    /// Counts the message as sent or failed.
    fn note_done(&mut self, result: Result<(), LnetError>) {
        self.completed = true;
        self.node.counters.msgs_alloc.fetch_sub(1, Ordering::Relaxed);
        self.node.count_sent(result, self.payload_len);
        if result.is_ok() && self.retries > 0 {
            bump(&self.node.counters.successful_resends);
        }
    }

    /// The driver is done with the message, or could not carry it.
    pub(crate) fn complete(mut self, result: Result<(), LnetError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<(), LnetError>) {
        if self.completed {
            return;
        }
        self.note_done(result);
        let (waiter, held) = (std::mem::replace(&mut self.waiter, Waiter::Nobody), self.held.take());
        let again = self.try_elsewhere(result);
        // These may send other messages, so what this one held comes back first.
        let (interface, now) = (self.interface.clone(), self.node.rt.now());
        interface.handle_done(self, result, now);
        match again {
            Some((mut out, interface)) => {
                (out.waiter, out.held) = (waiter, held);
                out.admit(&interface);
            }
            None => {
                waiter.tell(&self.node, result);
                if let Some(held) = held {
                    self.node.handle_passed_on(held);
                    if result.is_err() {
                        self.node.answer_unreachable(&self.message.header, Errno::EHOSTUNREACH);
                    }
                }
            }
        }
    }

    /// The message on another way, if its gateway, or the NID that it was sent to, was lost before it took the whole message.
    fn try_elsewhere(&mut self, result: Result<(), LnetError>) -> Option<(Outbound, Arc<Interface>)> {
        let (node, header) = (self.node.clone(), self.message.header);
        let is_distant = self.is_by_gateway();
        let is_whole = self.message.payload.len() == self.payload_len;
        if !is_whole || !matches!(result, Err(LnetError::PeerDown(_))) || !is_distant && node.rails().is_none() {
            return None;
        }
        // The choice of a way locks interfaces, whose holders may want to read settings.
        let retry_count = node.settings.read().retry_count;
        let may_retry = u32::from(self.retries) < retry_count;
        let failed = (self.interface.nid, self.next_hop);
        let way = match is_distant {
            _ if !may_retry => None,
            true => node.distant_path(header.destination, false, Some(self.next_hop)).ok(),
            false => node.other_rail(&header, failed),
        };
        let Some((interface, next_hop)) = way else {
            // A message to a node with one NID cannot be sent again.
            if is_distant || self.retries > 0 {
                bump(&node.counters.failed_resends);
            }
            return None;
        };
        bump(&node.counters.resend_count);
        let mut out = Outbound::new(&node, interface.clone(), next_hop, self.take_message(), Waiter::Nobody);
        out.retries = self.retries.saturating_add(1);
        out.is_by_rail = !is_distant;
        Some((out, interface))
    }
}

impl Deref for Outbound {
    type Target = Sending;
    fn deref(&self) -> &Sending {
        &self.0
    }
}

impl DerefMut for Outbound {
    fn deref_mut(&mut self) -> &mut Sending {
        &mut self.0
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.finish(Err(LnetError::PeerDown(self.next_hop)));
    }
}

impl Waiter {
    pub(crate) fn tell(self, node: &LnetNode, result: Result<(), LnetError>) {
        match (self, result) {
            (Waiter::Nobody, _) | (Waiter::Get(_) | Waiter::Unsent { .. }, Ok(())) => {}
            (Waiter::Put(tx), result) => {
                let _ = tx.send(result);
            }
            (Waiter::Get(id), Err(e)) => node.gets.handle_failure(id, e),
            // In a task of its own, because the sender may be about to return from sending, with locks in hand.
            (Waiter::Unsent { match_bits, tag }, Err(LnetError::PeerDown(_))) => {
                if let Some(hook) = node.unsent_hook.read().clone() {
                    drop(node.rt.spawn(async move { hook(match_bits, tag) }));
                }
            }
            (Waiter::Unsent { .. }, Err(_)) => {}
        }
    }
}

impl LnetNode {
    fn count_sent(&self, result: Result<(), LnetError>, payload_len: usize) {
        let c = &self.counters;
        match result {
            Ok(()) => {
                bump(&c.send_count);
                c.send_length.fetch_add(payload_len as u64, Ordering::Relaxed);
            }
            Err(LnetError::PeerDown(_)) => bump(&c.remote_dropped_count),
            Err(LnetError::QueueFull(_)) => bump(&c.local_dropped_count),
            Err(LnetError::Shutdown) => bump(&c.local_aborted_count),
            Err(LnetError::TimedOut(_)) => bump(&c.local_timeout_count),
            Err(_) => bump(&c.local_error_count),
        }
    }
}
