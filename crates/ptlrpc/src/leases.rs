//! Leases that the clients of this node's targets hold at the MGS (decision 0031). The server does not probe a silent client
//! that holds a lease. It probes a client without a lease, and all clients while the MGS does not answer. So the MGS can
//! spare messages, but it cannot cause an eviction.

use crate::error::RpcError;
use crate::liveness::{PING_INTERVAL, RENEWAL_LOST};
use nacre_base::{FxHashSet, TargetName, Time, Uuid};
use nacre_rt::Rt;
use nacre_wire::mgs::{LeaseQuery, LeaseReply};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A client's lease ends when the MGS has not heard of it for so long, and its node does not answer either.
pub const LEASE: Duration = crate::evictor::SILENCE_MAX;
/// A client asks the MGS for news at least this often, which renews its lease. Two such questions may be lost before the
/// client begins to ping its servers.
pub const RENEWAL: Duration = Duration::from_secs(25);
const _: () = assert!(RENEWAL.as_secs() * 3 < RENEWAL_LOST.as_secs(), "two renewals may be lost");
const _: () = assert!(
    RENEWAL_LOST.as_secs() + 2 * PING_INTERVAL.as_secs() < LEASE.as_secs(),
    "servers hear of a client again before its lease can have ended, even if its first ping is lost"
);

/// Longest time that the question for news waits at the MGS, on a node without a heartbeat.
pub(crate) const NEWS_WAIT: Duration = Duration::from_secs(60);
/// Pause after a question that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Asks the MGS. A question that waits for no news has an answer, or an error, within seconds.
pub type AskLeases =
    Arc<dyn Fn(LeaseQuery) -> Pin<Box<dyn Future<Output = Result<LeaseReply, RpcError>> + Send>> + Send + Sync>;

/// The leases that a server knows of. A sans-IO engine.
#[derive(Debug, Default)]
struct Known {
    /// Start of the MGS that all this was heard from.
    epoch: u64,
    /// Number of ends of leases that were heard of.
    heard: u64,
    /// Clients that held a lease when they were asked for, and of whose end nothing was heard since.
    held: FxHashSet<Uuid>,
    /// When the MGS answered last.
    answered: Time,
}

impl Known {
    fn query(&self, asked: Vec<Uuid>, wait: Duration) -> LeaseQuery {
        let wait_ms = wait.as_millis() as u32;
        LeaseQuery { epoch: self.epoch, heard: self.heard, asked, wait_ms, ..LeaseQuery::default() }
    }

    /// The MGS has answered; answers may come in another order than they were given.
    fn handle_reply(&mut self, now: Time, reply: &LeaseReply) {
        self.answered = now;
        // Replies of an earlier start do not come after those of a later one: an import has one connection at a time.
        if reply.epoch == self.epoch && reply.ended_upto < self.heard {
            return; // It does not know of ends that were heard of since.
        }
        if reply.epoch != self.epoch || reply.missed {
            self.held.clear();
        }
        (self.epoch, self.heard) = (reply.epoch, reply.ended_upto);
        for client in &reply.ended {
            self.held.remove(client);
        }
        // In the first time of a start the MGS says so of each client.
        if reply.settled {
            self.held.extend(&reply.held);
        }
    }
}

/// Leases, as a node with targets sees them.
#[derive(Default)]
pub(crate) struct Leases {
    known: Mutex<Known>,
    /// Ways to ask the MGS, one for each target of the node; the first is used.
    ways: Mutex<BTreeMap<u64, AskLeases>>,
    next_way: AtomicU64,
    evicted: Mutex<Evicted>,
}

/// Evicted clients that the MGS has not heard of yet.
#[derive(Default)]
struct Evicted {
    clients: BTreeSet<Uuid>,
    /// True while a task reports them.
    is_reporting: bool,
}

impl Leases {
    /// Returns whether the client at a target is known to hold a lease. Those of the MGS itself are what is judged.
    pub(crate) fn guards(&self, client: Uuid, target: &str) -> bool {
        !is_mgs(target) && self.known.lock().held.contains(&client)
    }

    /// Time of the MGS's latest reply. A server that hears the MGS is not cut off, even if all its clients are idle.
    pub(crate) fn mgs_heard(&self) -> Time {
        self.known.lock().answered
    }

    fn way(&self) -> Option<(u64, AskLeases)> {
        self.ways.lock().first_key_value().map(|(id, ask)| (*id, ask.clone()))
    }

    /// Of these clients, those that the MGS says hold leases; none if it does not answer.
    pub(crate) async fn ask_for(&self, rt: &Rt, clients: Vec<Uuid>) -> FxHashSet<Uuid> {
        let mut held = FxHashSet::default();
        let Some((_, ask)) = self.way() else { return held };
        for asked in clients.chunks(LeaseQuery::ASKED_MAX) {
            let query = self.known.lock().query(asked.to_vec(), Duration::ZERO);
            let Ok(reply) = ask(query).await else { break };
            self.known.lock().handle_reply(rt.now(), &reply);
            held.extend(reply.held);
        }
        held
    }
}

/// Reports to the MGS that a client was evicted, now or when the MGS answers again. Otherwise an idle client that still
/// renews its lease would go on using the locks that it has lost.
pub(crate) fn report_evicted(leases: &Arc<Leases>, rt: &Rt, client: Uuid) {
    let mut evicted = leases.evicted.lock();
    evicted.clients.insert(client);
    if !std::mem::replace(&mut evicted.is_reporting, true) {
        drop(rt.spawn(report(leases.clone(), rt.clone())));
    }
}

/// Reports evicted clients until none is left.
async fn report(leases: Arc<Leases>, rt: Rt) {
    loop {
        let clients: Vec<Uuid> = {
            let mut evicted = leases.evicted.lock();
            evicted.is_reporting = !evicted.clients.is_empty();
            if !evicted.is_reporting {
                return;
            }
            std::iter::from_fn(|| evicted.clients.pop_first()).take(LeaseQuery::ASKED_MAX).collect()
        };
        // A node that no longer serves a target has no way to ask, and its evictions concern nobody.
        let Some((_, ask)) = leases.way() else { continue };
        let reported = ask(LeaseQuery { evicted: clients.clone(), ..LeaseQuery::default() }).await;
        if !matches!(reported, Ok(_) | Err(RpcError::Status(_))) {
            leases.evicted.lock().clients.extend(clients);
            rt.sleep(RETRY_PAUSE).await;
        }
    }
}

/// Returns whether a target is the MGS.
pub(crate) fn is_mgs(target: &str) -> bool {
    target == TargetName::MGS
}

/// Keeps a way to ask the MGS until it is dropped.
#[must_use = "dropping it ends the questions"]
pub struct LeasesFollowed {
    leases: Arc<Leases>,
    way: u64,
}

impl Drop for LeasesFollowed {
    fn drop(&mut self) {
        self.leases.ways.lock().remove(&self.way);
    }
}

/// What this node's questions for news say of it: the targets that it serves, and how long a question may wait.
pub(crate) type Heartbeat = Arc<dyn Fn() -> (Vec<String>, Duration) + Send + Sync>;

/// Keeps `leases` current by `ask`, until the returned value is dropped.
pub(crate) fn follow(leases: &Arc<Leases>, rt: &Rt, ask: AskLeases, heartbeat: Heartbeat) -> LeasesFollowed {
    let way = leases.next_way.fetch_add(1, Ordering::Relaxed);
    let is_first = {
        let mut ways = leases.ways.lock();
        ways.insert(way, ask);
        ways.len() == 1
    };
    if is_first {
        drop(rt.spawn(hear(Arc::downgrade(leases), rt.clone(), heartbeat)));
    }
    LeasesFollowed { leases: leases.clone(), way }
}

/// Asks for news again and again: one task for each node, which goes on by another way when the first one ends.
async fn hear(leases: Weak<Leases>, rt: Rt, heartbeat: Heartbeat) {
    loop {
        let Some((way, ask, query)) = leases.upgrade().and_then(|leases| {
            let (way, ask) = leases.way()?;
            let (serves, wait) = heartbeat();
            let query = leases.known.lock().query(Vec::new(), wait);
            Some((way, ask, LeaseQuery { serves, ..query }))
        }) else {
            return;
        };
        let reply = ask(query).await;
        let Some(leases) = leases.upgrade() else { return };
        match reply {
            Ok(reply) => leases.known.lock().handle_reply(rt.now(), &reply),
            Err(RpcError::Closed) => drop(leases.ways.lock().remove(&way)),
            Err(_) => {
                drop(leases);
                rt.sleep(RETRY_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: fn(u8) -> Uuid = |n| Uuid([n; 16]);

    fn reply(epoch: u64, ended_upto: u64, ended: &[u8], held: &[u8]) -> LeaseReply {
        let clients = |list: &[u8]| list.iter().map(|n| CLIENT(*n)).collect();
        LeaseReply { epoch, ended_upto, ended: clients(ended), missed: false, held: clients(held), settled: true }
    }

    fn held(known: &Known) -> Vec<u8> {
        let mut held: Vec<u8> = known.held.iter().map(|client| client.0[0]).collect();
        held.sort_unstable();
        held
    }

    #[test]
    fn a_lease_is_known_until_its_end_is_heard_of() {
        let mut known = Known::default();
        known.handle_reply(Time::ZERO, &reply(3, 5, &[], &[1, 2]));
        known.handle_reply(Time::ZERO, &reply(3, 6, &[2], &[]));
        assert_eq!((held(&known), known.heard), (vec![1], 6));
    }

    /// Otherwise a client that died meanwhile would be spared for ever.
    #[test]
    fn an_answer_that_was_overtaken_by_the_end_of_a_lease_counts_no_longer() {
        let mut known = Known::default();
        known.handle_reply(Time::ZERO, &reply(3, 5, &[], &[]));
        known.handle_reply(Time::ZERO, &reply(3, 6, &[1], &[]));
        known.handle_reply(Time::ZERO, &reply(3, 5, &[], &[1]));
        assert_eq!(held(&known), []);
        assert_eq!((known.epoch, known.heard), (3, 6));
    }

    #[test]
    fn another_start_of_the_mgs_and_missed_news_leave_nothing_known() {
        for news in
            [reply(4, 0, &[], &[2]), reply(1, 0, &[], &[2]), LeaseReply { missed: true, ..reply(3, 90_000, &[], &[2]) }]
        {
            let mut known = Known::default();
            known.handle_reply(Time::ZERO, &reply(3, 5, &[], &[1]));
            known.handle_reply(Time::ZERO, &news);
            assert_eq!(held(&known), [2]);
        }
    }

    #[test]
    fn nothing_is_kept_of_what_an_mgs_says_that_has_just_started() {
        let mut known = Known::default();
        known.handle_reply(Time::ZERO, &LeaseReply { settled: false, ..reply(4, 0, &[], &[1]) });
        assert_eq!(held(&known), []);
    }
}
