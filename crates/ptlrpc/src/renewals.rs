//! Renewals of leases that go by a router (decision 0035): a client asks its router, and the router tells the MGS of all
//! clients that asked it within a few seconds in one request. The MGS hears from the router alone, so a client that is idle
//! costs one message to the next node and one back.
//!
//! The question names the client's export at the MGS by its cookie, which only the client, the MGS and the routers between
//! them know. A router that does not bring renewals to the MGS leaves the question unanswered.

use crate::asked_routers::Asked;
use crate::node::RpcNode;
use crate::node_core::NodeCore;
use nacre_base::{Nid, Payload, Time};
use nacre_lnet::{IncomingPut, Portal, Purpose};
use nacre_wire::mgs::Renewals;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The portal of the questions; the match bits are the cookie of the client's export at the MGS.
pub(crate) const ASK_PORTAL: Portal = Portal(26);
/// The portal of the answers, of one byte: 1 if the lease is renewed, and 0 if the client has to ask the MGS itself.
pub(crate) const ANSWER_PORTAL: Portal = Portal(25);

/// A client that renews its lease by a router asks it this often.
pub const ROUTER_RENEWAL: Duration = Duration::from_secs(65);
/// A router waits for further clients so long before it tells the MGS of those that have asked it.
const GATHERING: Duration = Duration::from_secs(5);
/// A client waits so long for the answer of a router.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
const _: () = assert!(
    ROUTER_RENEWAL.as_secs() + ANSWER_WITHIN.as_secs() < crate::liveness::RENEWAL_LOST.as_secs(),
    "a client whose router does not answer still has time to ask the MGS"
);

/// Most clients that a router gathers from one NID, which has one for each of its mounts.
const GATHERED_FROM_ONE_MAX: usize = 64;

impl NodeCore {
    /// The table of questions. Only a node that asks a router takes answers.
    fn asked(&self) -> &Arc<Asked> {
        self.asked_routers.get_or_init(|| {
            let asked = Arc::<Asked>::default();
            let for_answers = asked.clone();
            self.lnet.attach(ANSWER_PORTAL, Arc::new(move |put: IncomingPut| for_answers.handle_answer(&put)));
            self.lnet.declare_purpose(ASK_PORTAL, Purpose::Control);
            // The router waits for other clients before it answers.
            self.lnet.declare_slow(ASK_PORTAL);
            asked
        })
    }
}

/// Clients that have asked this router to renew their leases, and that the MGS has not been told of.
pub struct Gathered {
    node: Arc<NodeCore>,
    waiting: Mutex<Gathering>,
    /// Rung when the first one asks.
    asked: Notify,
    /// Renewals that the MGS has confirmed.
    renewed: AtomicU64,
}

/// Clients that wait for an answer, each with the lane that the answer takes. A sans-IO engine.
#[derive(Default)]
struct Gathering(BTreeMap<(Nid, u64), Purpose>);

impl Gathering {
    /// Returns false if the question is not taken, because its sender, or all together, have too many here.
    fn handle_asked(&mut self, from: Nid, export: u64, purpose: Purpose) -> bool {
        let of_sender = self.0.range((from, 0)..=(from, u64::MAX)).count();
        let has_room = of_sender < GATHERED_FROM_ONE_MAX && self.0.len() < Renewals::EXPORTS_MAX;
        let is_taken = has_room || self.0.contains_key(&(from, export));
        if is_taken {
            self.0.insert((from, export), purpose);
        }
        assert!(self.0.len() <= Renewals::EXPORTS_MAX, "{} questions are kept", self.0.len());
        is_taken
    }
}

/// Clients of which the MGS is told together.
pub struct Batch(BTreeMap<(Nid, u64), Purpose>);

impl Batch {
    /// The cookies of their exports.
    pub fn exports(&self) -> Vec<u64> {
        self.0.keys().map(|(_, export)| *export).collect()
    }
}

impl Gathered {
    /// Waits until a client asks, and then for others.
    pub async fn next(&self) -> Batch {
        while self.waiting.lock().0.is_empty() {
            self.asked.notified().await;
        }
        self.node.rt.sleep(GATHERING).await;
        Batch(std::mem::take(&mut self.waiting.lock().0))
    }

    /// The MGS has renewed the leases of these of them; the others have to ask the MGS themselves.
    pub fn answer(&self, batch: Batch, renewed: &[u64]) {
        let mut renewed = renewed.to_vec();
        renewed.sort_unstable();
        for ((nid, export), purpose) in batch.0 {
            let is_renewed = renewed.binary_search(&export).is_ok();
            self.renewed.fetch_add(is_renewed.into(), Ordering::Relaxed);
            let answer = Payload::from(vec![u8::from(is_renewed)]);
            if let Err(e) = self.node.lnet.answer(nid, ANSWER_PORTAL, purpose, export, answer) {
                tracing::debug!("renewal for {nid} not answered: {e}");
            }
        }
    }

    /// Renewals that the MGS has confirmed so far.
    pub fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    fn handle_asked(&self, put: &IncomingPut) {
        let is_taken = self.waiting.lock().handle_asked(put.from, put.match_bits, put.purpose);
        if is_taken {
            self.asked.notify_one();
        } else {
            tracing::debug!("{} asks for more renewals than are gathered", put.from);
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.node.lnet.detach(ASK_PORTAL);
    }
}

impl RpcNode {
    /// Asks a router to renew the lease of the client with this export at the MGS. Returns whether it is renewed; if not, the
    /// client has to ask the MGS itself. `None` if the router does not answer.
    pub async fn renew_by_router(&self, router: Nid, export: u64) -> Option<bool> {
        let core = &self.0.core;
        let answer = core.asked().ask(export, router);
        core.lnet.post(router, ASK_PORTAL, export, Payload::new()).ok()?;
        core.rt.timeout(ANSWER_WITHIN, answer).await.ok()?.ok()
    }

    /// From now on this node takes questions of clients that renew their leases by it, until the returned value is dropped.
    pub fn gather_renewals(&self) -> Arc<Gathered> {
        let (node, waiting, asked, renewed) = (self.0.core.clone(), Mutex::default(), Notify::new(), AtomicU64::new(0));
        let gathered = Arc::new(Gathered { node, waiting, asked, renewed });
        let of_portal = Arc::downgrade(&gathered);
        let handler = move |put: IncomingPut| {
            if let Some(gathered) = of_portal.upgrade() {
                gathered.handle_asked(&put);
            }
        };
        self.0.core.lnet.attach(ASK_PORTAL, Arc::new(handler));
        // Clients say nothing to the answers.
        self.0.core.lnet.declare_slow(ANSWER_PORTAL);
        gathered
    }
}

/// When a client tries a router again that did not answer.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// Whether a client's lease is renewed by routers. A sans-IO engine.
#[derive(Debug, Default)]
pub struct ByRouter {
    is_used: bool,
    /// Routers are not tried before.
    not_before: Time,
}

impl ByRouter {
    /// True if the client may wait for news for as long as it likes, because a router renews its lease.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// True if it is time to find out whether a router does.
    pub fn is_to_be_tried(&self, now: Time) -> bool {
        !self.is_used && now >= self.not_before
    }

    /// A router was asked to renew the lease, and did so or not; `None` if it did not answer, or there is none.
    pub fn handle_tried(&mut self, renewed: Option<bool>, now: Time) {
        self.is_used = renewed == Some(true);
        if renewed.is_none() {
            self.not_before = now + TRY_AGAIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_asks_twice_is_gathered_once() {
        let mut gathering = Gathering::default();
        assert!(gathering.handle_asked(Nid::sim(1), 7, Purpose::Control));
        assert!(gathering.handle_asked(Nid::sim(1), 7, Purpose::Control));
        assert!(gathering.handle_asked(Nid::sim(2), 8, Purpose::Control));
        assert_eq!(Batch(gathering.0).exports(), [7, 8]);
    }

    #[test]
    fn one_node_cannot_take_the_places_of_others() {
        let mut gathering = Gathering::default();
        let taken = (0..1000).filter(|export| gathering.handle_asked(Nid::sim(1), *export, Purpose::Control)).count();
        assert_eq!(taken, GATHERED_FROM_ONE_MAX);
        assert!(gathering.handle_asked(Nid::sim(2), 1, Purpose::Control));
    }

    #[test]
    fn a_router_that_is_silent_is_tried_again_later() {
        let mut by_router = ByRouter::default();
        assert!(by_router.is_to_be_tried(Time::ZERO) && !by_router.is_used());
        by_router.handle_tried(Some(true), Time::ZERO);
        assert!(by_router.is_used() && !by_router.is_to_be_tried(Time::from_secs(1)));
        by_router.handle_tried(None, Time::from_secs(100));
        assert!(!by_router.is_used() && !by_router.is_to_be_tried(Time::from_secs(699)));
        assert!(by_router.is_to_be_tried(Time::from_secs(700)));
    }

    /// Such as when the MGS was started again: as soon as the client has connected anew, the router renews its lease.
    #[test]
    fn a_router_that_could_not_renew_the_lease_is_tried_again_after_the_next_question() {
        let mut by_router = ByRouter::default();
        by_router.handle_tried(Some(true), Time::ZERO);
        by_router.handle_tried(Some(false), Time::from_secs(100));
        assert!(!by_router.is_used() && by_router.is_to_be_tried(Time::from_secs(100)));
    }
}
