//! The driver seam. An LND (LNet driver) carries messages on one kind of network: [`crate::tcp`], [`crate::lo`],
//! [`crate::sim`]. It knows nothing of credits, portals or memory descriptors.
//!
//! Upwards, a driver calls `LnetNode::handle_message` for what arrives, `LnetNode::handle_peer_down` when it lost a peer, and
//! `Outbound::complete` exactly once for every message it was given.

use crate::error::LnetError;
use crate::message::Message;
use crate::node::{Interface, LnetNode};
use crate::status::bump;
use nacre_base::{Nid, Time};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// A driver bound to one interface.
pub(crate) trait Lnd: Send + Sync {
    /// Carries a message to its next hop. Must not block, and may complete the message at once.
    fn send(&self, message: Outbound);

    /// A peer is said to be up: whatever is known of failures to reach it is out of date.
    fn forget_failures(&self, _peer: Nid) {}

    /// Open connections to a peer.
    fn connections(&self, _peer: Nid) -> usize {
        0
    }

    /// What `lnetctl net show -v` says of the driver.
    fn describe(&self) -> LndStatus {
        LndStatus::default()
    }

    /// Closes everything. Messages in hand are completed with an error.
    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// What a driver tells of itself.
#[derive(Default)]
pub(crate) struct LndStatus {
    pub(crate) interface: Option<String>,
    pub(crate) conns_per_peer: u32,
    pub(crate) timeout_secs: u64,
}

/// A message on its way out. Whoever holds it owes it a completion, which returns its credits and tells the sender;
/// dropping it counts as a lost peer.
pub(crate) struct Outbound {
    node: Arc<LnetNode>,
    interface: Arc<Interface>,
    pub(crate) next_hop: Nid,
    pub(crate) message: Message,
    /// When the message was given to the network.
    pub(crate) started: Time,
    /// Payload bytes, kept because a driver may take the payload out.
    pub(crate) payload_len: usize,
    waiter: Waiter,
    /// Set when the credit engine lets it go to the driver.
    pub(crate) holds_credits: bool,
    completed: bool,
}

/// Who is told of a message's completion.
pub(crate) enum Waiter {
    /// Nobody: the sender trusts in its own timeout.
    Nobody,
    /// A PUT's sender.
    Put(oneshot::Sender<Result<(), LnetError>>),
    /// A GET, by its id; it hears of failures only, a REPLY ends it otherwise.
    Get(u64),
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
        let (holds_credits, completed) = (false, false);
        Outbound { node, interface, next_hop, message, started, payload_len, waiter, holds_credits, completed }
    }

    /// The message itself, for a driver that passes it on in memory.
    pub(crate) fn take_message(&mut self) -> Message {
        let Message { header, ref mut payload, damaged } = self.message;
        Message { header, payload: std::mem::take(payload), damaged }
    }

    /// The driver is done with the message, or could not carry it.
    pub(crate) fn complete(mut self, result: Result<(), LnetError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<(), LnetError>) {
        if std::mem::replace(&mut self.completed, true) {
            return;
        }
        self.node.counters.msgs_alloc.fetch_sub(1, Ordering::Relaxed);
        self.node.count_sent(result, self.payload_len);
        std::mem::replace(&mut self.waiter, Waiter::Nobody).tell(&self.node, result);
        // Last, because it may send other messages.
        self.interface.clone().handle_done(self, result, self.node.rt.now());
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
            (Waiter::Nobody, _) | (Waiter::Get(_), Ok(())) => {}
            (Waiter::Put(tx), result) => {
                let _ = tx.send(result);
            }
            (Waiter::Get(id), Err(e)) => node.gets.handle_failure(id, e),
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
