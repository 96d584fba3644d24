//! What `lnetctl net show` and `peer show` print. Plain values; the fields are named as Lustre prints them.

use crate::error::LnetError;
use crate::message::Kind;
use crate::options::TcpTunables;
use nacre_base::Nid;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A running minimum, maximum and mean of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// How many were measured.
    pub samples: u64,
    /// The shortest, in nanoseconds; 0 without samples.
    pub min_nsec: u64,
    /// The longest, in nanoseconds.
    pub max_nsec: u64,
    /// The sum of all, in nanoseconds.
    pub total_nsec: u64,
}

impl Latency {
    /// The mean in nanoseconds; 0 without samples.
    pub fn avg_nsec(&self) -> u64 {
        self.total_nsec.checked_div(self.samples).unwrap_or(0)
    }

    pub(crate) fn add(&mut self, d: Duration) {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        self.min_nsec = if self.samples == 0 { ns } else { self.min_nsec.min(ns) };
        self.max_nsec = self.max_nsec.max(ns);
        self.total_nsec = self.total_nsec.saturating_add(ns);
        self.samples += 1;
    }
}

/// Numbers of messages by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByKind {
    /// PUTs.
    pub put: u64,
    /// GETs.
    pub get: u64,
    /// REPLYs.
    pub reply: u64,
    /// Acknowledgements; 0 unless a peer sends what nobody asked for.
    pub ack: u64,
}

impl ByKind {
    /// Messages of all kinds.
    pub fn total(&self) -> u64 {
        self.put + self.get + self.reply + self.ack
    }

    pub(crate) fn count(&mut self, kind: Kind) {
        *match kind {
            Kind::Put => &mut self.put,
            Kind::Get => &mut self.get,
            Kind::Reply => &mut self.reply,
            Kind::Ack => &mut self.ack,
        } += 1;
    }
}

/// Sends through an interface that failed on this node, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    /// The queue of the interface was full.
    pub dropped: u64,
    /// The node was being stopped.
    pub aborted: u64,
    /// The driver did not finish in time.
    pub timeouts: u64,
    /// Any other reason.
    pub error: u64,
}

impl Failures {
    pub(crate) fn count(&mut self, failure: LnetError) {
        match failure {
            // The peer is to blame, not the interface.
            LnetError::PeerDown(_) => {}
            LnetError::QueueFull(_) => self.dropped += 1,
            LnetError::Shutdown => self.aborted += 1,
            LnetError::TimedOut(_) => self.timeouts += 1,
            _ => self.error += 1,
        }
    }
}

/// Messages that went through an interface, or between it and a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Messages sent.
    pub sent: ByKind,
    /// Messages received.
    pub received: ByKind,
    /// Messages that could not be sent, or arrived and were for nobody.
    pub dropped: ByKind,
    /// From giving a PUT to the network until its driver was done with it, queueing included.
    pub put_egress: Latency,
    /// From sending a GET until its REPLY.
    pub get_rtt: Latency,
}

/// [`Traffic`] while it is counted.
#[derive(Default)]
pub(crate) struct TrafficCounts {
    sent_puts: u64,
    received_puts: u64,
    put_egress: Latency,
    /// Everything else. Boxed, because most peers only exchange requests and replies, which are PUTs, until they move data.
    others: Option<Box<Traffic>>,
}

impl TrafficCounts {
    fn others(&mut self) -> &mut Traffic {
        self.others.get_or_insert_default()
    }

    /// A message was sent after this time in the network.
    pub(crate) fn count_sent(&mut self, kind: Kind, egress: Duration) {
        match kind {
            Kind::Put => {
                self.sent_puts += 1;
                self.put_egress.add(egress);
            }
            _ => self.others().sent.count(kind),
        }
    }

    pub(crate) fn count_received(&mut self, kind: Kind) {
        match kind {
            Kind::Put => self.received_puts += 1,
            _ => self.others().received.count(kind),
        }
    }

    pub(crate) fn count_dropped(&mut self, kind: Kind) {
        self.others().dropped.count(kind);
    }

    /// A GET was answered after this time.
    pub(crate) fn count_round_trip(&mut self, took: Duration) {
        self.others().get_rtt.add(took);
    }

    pub(crate) fn read(&self) -> Traffic {
        let mut all = self.others.as_deref().copied().unwrap_or_default();
        all.sent.put += self.sent_puts;
        all.received.put += self.received_puts;
        all.put_egress = self.put_egress;
        all
    }
}

/// One interface: an entry of `lnetctl net show -v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// Its NID, which also names the network.
    pub nid: Nid,
    /// Whether it works.
    pub up: bool,
    /// What it is bound to; none for `lo` and `sim`.
    pub interface: Option<String>,
    /// Messages through it.
    pub traffic: Traffic,
    /// Concurrent sends it allows; 0 for `lo`, which needs no credits.
    pub credits: u32,
    /// Concurrent sends to one peer.
    pub peer_credits: u32,
    /// What that grows to while a peer takes messages and others wait. The same number if it is fixed.
    pub peer_credits_max: u32,
    /// Messages of a peer that this node holds at most to pass them on; 0 if it is no router.
    pub peer_buffer_credits: u32,
    /// Seconds of silence after which a peer counts as down.
    pub peer_timeout_secs: u64,
    /// Credits free now; below zero, messages waiting.
    pub available_tx_credits: i64,
    /// The lowest that `available_tx_credits` has been.
    pub min_tx_credits: i64,
    /// Messages that wait for a credit of the interface.
    pub tx_queued: usize,
    /// 0 to 1000.
    pub health: u32,
    /// Sends that failed on this node.
    pub failures: Failures,
    /// Bulk connections in each direction to a peer; 0 where there are no connections.
    pub conns_per_peer: u32,
    /// What an administrator has set of its connections; none where there are no TCP connections.
    pub tunables: Option<TcpTunables>,
    /// Seconds until an unanswered connection is given up; 0 where there are none.
    pub timeout_secs: u64,
}

/// One peer as one interface sees it: an entry of `lnetctl peer show -v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// The NID that it is known by.
    pub primary_nid: Nid,
    /// All NIDs that it told of, the primary first.
    pub nids: Vec<Nid>,
    /// Whether the last message to it could be sent; `NA` in Lustre's output until something was.
    pub up: Option<bool>,
    /// Open connections.
    pub connections: usize,
    /// Concurrent sends to it that are allowed.
    pub max_ni_tx_credits: u32,
    /// Credits free now; below zero, messages waiting.
    pub available_tx_credits: i64,
    /// The lowest that `available_tx_credits` has been.
    pub min_tx_credits: i64,
    /// Messages that wait for a credit.
    pub tx_q_num_of_buf: usize,
    /// Messages of it that this node may hold to pass them on; below zero, messages waiting. Equal to the peer's credits on a
    /// node that is no router.
    pub available_rtr_credits: i64,
    /// The lowest that `available_rtr_credits` has been.
    pub min_rtr_credits: i64,
    /// References: the table's own, and one for every message in hand or waiting.
    pub refcount: u64,
    /// 0 to 1000.
    pub health: u32,
    /// Messages between the interface and it.
    pub traffic: Traffic,
}

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_by_kind_and_failures_by_reason() {
        let mut sent = ByKind::default();
        [Kind::Put, Kind::Put, Kind::Reply].into_iter().for_each(|kind| sent.count(kind));
        assert_eq!((sent, sent.total()), (ByKind { put: 2, reply: 1, ..ByKind::default() }, 3));
        let mut failures = Failures::default();
        let peer = Nid::sim(1);
        let all =
            [LnetError::PeerDown(peer), LnetError::QueueFull(peer), LnetError::TimedOut(peer), LnetError::Shutdown];
        all.into_iter().for_each(|failure| failures.count(failure));
        assert_eq!(failures, Failures { dropped: 1, aborted: 1, timeouts: 1, error: 0 });
    }

    #[test]
    fn latency_keeps_its_extremes_and_mean() {
        let mut l = Latency::default();
        assert_eq!((l.min_nsec, l.avg_nsec()), (0, 0));
        [30, 10, 20].into_iter().for_each(|n| l.add(Duration::from_nanos(n)));
        assert_eq!((l.samples, l.min_nsec, l.max_nsec, l.avg_nsec()), (3, 10, 30, 20));
    }
}
