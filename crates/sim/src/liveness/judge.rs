//! Judges evictions, and how calls end, by what was wrong at the time.

use super::trouble::Trouble;
use crate::cluster::{Cluster, Server};
use nacre_base::{Errno, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A client that could not be reached for less than this is not evicted: three probes, or three tries of a callback, must have failed.
const CUT_MIN: Duration = Duration::from_secs(12);
/// A client finds its eviction within this time after it can be reached again.
const FOUND_WITHIN: Duration = Duration::from_secs(200);
/// After its start a server waits for its former clients for at most this long.
const RECOVERY: Duration = Duration::from_secs(500);
/// Longest call where nothing is wrong.
const CALL_MAX: Duration = Duration::from_secs(4);
/// Longest call that needs the lock of a client that is dead or cannot be reached: the callback timeout, and the last callback.
const LOCK_MAX: Duration = Duration::from_secs(100 + 24 + 4);
/// A dead client may hold locks for this long: until its lease has ended, and probes have failed.
const DEAD_HOLDS: Duration = Duration::from_secs(400);
/// Longest call where a message takes a second: several round trips, each of which may wait for another client's.
const SLOW_MAX: Duration = Duration::from_secs(90);

struct Episode {
    trouble: Trouble,
    begin: Time,
    end: Option<Time>,
}

impl Episode {
    /// True if it was going on at some time of `from..until`, or had ended less than `after` before.
    fn touches(&self, from: Time, until: Time, after: Duration) -> bool {
        self.begin <= until && self.end.is_none_or(|end| end + after >= from)
    }
}

pub(super) struct Judge {
    cluster: Arc<Cluster>,
    episodes: Mutex<Vec<Episode>>,
    /// Evictions that each client has found at each server: number, and time of the latest.
    evictions: Mutex<BTreeMap<(usize, usize), (i128, Time)>>,
}

impl Judge {
    pub(super) fn new(cluster: Arc<Cluster>) -> Judge {
        Judge { cluster, episodes: Mutex::default(), evictions: Mutex::default() }
    }

    pub(super) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// A trouble begins. Returns its number.
    pub(super) fn begin(&self, trouble: &Trouble) -> usize {
        tracing::info!(%trouble, "begins");
        let mut episodes = self.episodes.lock();
        episodes.push(Episode { trouble: *trouble, begin: self.now(), end: None });
        episodes.len() - 1
    }

    pub(super) fn end(&self, number: usize) {
        let mut episodes = self.episodes.lock();
        let episode = &mut episodes[number];
        tracing::info!(trouble = %episode.trouble, "ends");
        // A client that died stays so.
        episode.end = (!episode.trouble.is_death()).then_some(self.now());
    }

    /// True if for two minutes nothing else was wrong than this trouble, and the deaths of clients.
    pub(super) fn is_calm_but(&self, number: usize) -> bool {
        let now = self.now();
        let episodes = self.episodes.lock();
        let others = episodes.iter().enumerate().filter(|(n, e)| *n != number && !e.trouble.is_death());
        others.map(|(_, e)| e).all(|e| !e.touches(now, now, Duration::from_secs(120)))
    }

    /// Panics if a client has found that it was evicted without a reason.
    pub(super) fn look_for_evictions(&self) {
        for client in (0..self.cluster.client_count()).filter(|c| self.cluster.is_alive(*c)) {
            for (place, server) in self.cluster.servers().into_iter().enumerate() {
                let Some(count) = self.cluster.evictions(client, server) else { continue };
                let now = self.now();
                let before = self.evictions.lock().get(&(client, place)).map_or(0, |(count, _)| *count);
                if count > before {
                    self.evictions.lock().insert((client, place), (count, now));
                    assert!(
                        self.may_evict(client, server, now),
                        "{server:?} evicted client {client}, which could answer"
                    );
                }
            }
        }
    }

    /// Returns whether `server` may have evicted the client, which finds that now.
    fn may_evict(&self, client: usize, server: Server, now: Time) -> bool {
        let episodes = self.episodes.lock();
        let was_cut = |e: &Episode| match e.trouble {
            Trouble::ClientCut(cut) => cut == client,
            _ => false,
        };
        let long = |e: &Episode| e.end.unwrap_or(now).since(e.begin) >= CUT_MIN;
        // It cannot find the eviction while it does not reach the server.
        let hides = |e: &&Episode| match e.trouble {
            Trouble::RoutersGone => true,
            Trouble::ServerCut(s) | Trouble::ServerGone(s, _) => s == server,
            _ => false,
        };
        let hidden: Duration = episodes.iter().filter(hides).map(|e| e.end.unwrap_or(now).since(e.begin)).sum();
        if episodes.iter().any(|e| was_cut(e) && long(e) && e.touches(now, now, FOUND_WITHIN + hidden)) {
            return true;
        }
        // A server that starts does not wait for ever for clients that it cannot reach.
        let reaches_nobody = |e: &Episode| e.trouble == Trouble::RoutersGone || e.trouble == Trouble::ServerCut(server);
        let starts = episodes.iter().filter(|e| matches!(e.trouble, Trouble::ServerGone(s, _) if s == server));
        starts.filter(|e| e.touches(now, now, RECOVERY + FOUND_WITHIN)).any(|start| {
            let until = start.end.unwrap_or(now) + RECOVERY;
            episodes.iter().any(|e| (was_cut(e) || reaches_nobody(e)) && e.touches(start.begin, until, Duration::ZERO))
        })
    }

    /// Judges a call of a client that began at `begin`, and ends now. Returns false if it failed for a good reason.
    pub(super) fn judge(&self, client: usize, what: &str, begin: Time, outcome: Result<(), Errno>) -> bool {
        let (now, longest) = (self.now(), self.longest(client, begin));
        let took = now.since(begin);
        if let Some(longest) = longest {
            assert!(took <= longest, "client {client}: {what} took {took:?}, and may take {longest:?}");
        }
        let Err(errno) = outcome else { return true };
        // The eviction that is the reason may be a few seconds old.
        self.look_for_evictions();
        let evictions = self.evictions.lock();
        let evicted = evictions.iter().any(|((c, _), (_, at))| *c == client && *at + LOCK_MAX >= begin);
        assert!(evicted, "client {client}: {what} failed with {errno}, and the client was not evicted");
        false
    }

    /// The longest that a call of a client which began at `begin` and ends now may have taken; `None` if it needed what was not there.
    fn longest(&self, client: usize, begin: Time) -> Option<Duration> {
        let now = self.now();
        let episodes = self.episodes.lock();
        let mut longest = CALL_MAX;
        for e in episodes.iter() {
            let touches = |after| e.touches(begin, now, after);
            let takes = match e.trouble {
                Trouble::RoutersGone if touches(RECOVERY) => return None,
                Trouble::ServerGone(Server::Mgs, _) => continue,
                Trouble::ServerGone(..) | Trouble::ServerCut(_) if touches(RECOVERY) => return None,
                Trouble::ClientCut(cut) if cut == client && touches(RECOVERY) => return None,
                // Nobody but the client knows that this router does not reach it, so callbacks are lost until one goes by the other.
                Trouble::ClientHalfCut(..) if touches(LOCK_MAX) => LOCK_MAX,
                Trouble::ClientCut(_) | Trouble::ClientDies(_) if touches(DEAD_HOLDS) => LOCK_MAX,
                Trouble::ClientSlow(_) if touches(LOCK_MAX) => SLOW_MAX,
                Trouble::RouterGone(..) | Trouble::RouterCutFromServers(_) | Trouble::RouterCutFromClients(_)
                    if touches(Duration::from_secs(30)) =>
                {
                    2 * CALL_MAX
                }
                _ => continue,
            };
            longest = longest.max(CALL_MAX + takes);
        }
        Some(longest)
    }

    fn now(&self) -> Time {
        self.cluster.rt().now()
    }
}
