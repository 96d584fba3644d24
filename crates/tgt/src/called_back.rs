//! Locks that others wait for: who was asked to give one back, or for the size that it knows by one, and how long that took. A sans-IO
//! engine.
//!
//! It answers an administrator's question "who holds my job up": a client that is slow to write its data back, or two clients that
//! take an object from each other over and over.

use nacre_base::{Fid, FxHashMap, Time};
use nacre_ldlm::{ClientId, LockId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most locks that are watched, and most pairs of a holder and what it held.
const KEPT_MAX: usize = 4096;
/// Holders that were asked for nothing for so long are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// What the holder of a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// The lock.
    Lock,
    /// Size and times of the object (a glimpse).
    Size,
}

/// What one client was asked for of one object or inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Holding {
    /// How often.
    pub(crate) callbacks: u64,
    /// How long that took in all, in microseconds, without what is still waited for.
    pub(crate) micros: u64,
    latest: Time,
}

/// A lock that was called back and is still held.
#[derive(Debug, Clone, Copy)]
struct Watched {
    client: ClientId,
    resource: Fid,
    since: Time,
}

/// The engine.
#[derive(Default)]
pub(crate) struct CalledBack {
    watched: FxHashMap<(LockId, Wanted), Watched>,
    holdings: FxHashMap<(Fid, ClientId), Holding>,
    looked_through: Time,
}

impl CalledBack {
    /// The holder of a lock is asked. One that is asked again is waited for since the first time.
    pub(crate) fn begin(&mut self, id: LockId, wanted: Wanted, client: ClientId, resource: Fid, now: Time) {
        // Looking at all of them is not worth it more often.
        if self.holdings.len() >= KEPT_MAX && now.since(self.looked_through) >= Duration::from_secs(1) {
            self.looked_through = now;
            self.holdings.retain(|_, holding| now.since(holding.latest) < FORGET_AFTER);
        }
        if self.watched.len() < KEPT_MAX {
            self.watched.entry((id, wanted)).or_insert(Watched { client, resource, since: now });
        }
        assert!(self.watched.len() <= KEPT_MAX, "{} locks are watched", self.watched.len());
        let is_known = self.holdings.contains_key(&(resource, client));
        if is_known || self.holdings.len() < KEPT_MAX {
            let holding = self.holdings.entry((resource, client)).or_default();
            holding.callbacks += 1;
            holding.latest = now;
        }
        assert!(self.holdings.len() <= KEPT_MAX, "{} holders are remembered", self.holdings.len());
    }

    /// The holder has done what it was asked for, or nobody waits any more.
    pub(crate) fn end(&mut self, id: LockId, wanted: Wanted, now: Time) {
        let Some(Watched { client, resource, since }) = self.watched.remove(&(id, wanted)) else { return };
        if let Some(holding) = self.holdings.get_mut(&(resource, client)) {
            let micros = u64::try_from(now.since(since).as_micros()).unwrap_or(u64::MAX);
            holding.micros = holding.micros.saturating_add(micros);
        }
    }

    /// A client is gone.
    pub(crate) fn client_gone(&mut self, client: ClientId) {
        self.watched.retain(|_, watched| watched.client != client);
        self.holdings.retain(|(_, holder), _| *holder != client);
    }

    /// All holdings in order, each with the time for which a lock of it has been waited for until now; zero if none is.
    pub(crate) fn all(&self, now: Time) -> BTreeMap<(Fid, ClientId), (Holding, Duration)> {
        let mut all: BTreeMap<_, _> =
            self.holdings.iter().map(|(key, holding)| (*key, (*holding, Duration::ZERO))).collect();
        for watched in self.watched.values() {
            if let Some((_, waited)) = all.get_mut(&(watched.resource, watched.client)) {
                *waited = (*waited).max(now.since(watched.since));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_known_by_what_it_kept_others_waiting_for() {
        let (mut called, object, t) = (CalledBack::default(), Fid { seq: 1, oid: 2, ver: 0 }, Time::from_secs);
        called.begin(LockId(1), Wanted::Lock, ClientId(7), object, t(1));
        called.begin(LockId(1), Wanted::Lock, ClientId(7), object, t(2));
        called.end(LockId(1), Wanted::Size, t(3));
        called.end(LockId(1), Wanted::Lock, t(4));
        called.end(LockId(1), Wanted::Lock, t(9));
        called.begin(LockId(2), Wanted::Size, ClientId(8), object, t(5));
        let all = called.all(t(8));
        let (seven, eight) = (all[&(object, ClientId(7))], all[&(object, ClientId(8))]);
        assert_eq!((seven.0.callbacks, seven.0.micros, seven.1), (2, 3_000_000, Duration::ZERO));
        assert_eq!((eight.0.callbacks, eight.0.micros, eight.1), (1, 0, Duration::from_secs(3)));
        called.client_gone(ClientId(8));
        assert_eq!(called.all(t(8)).len(), 1);
        assert!(called.watched.is_empty());
    }

    #[test]
    fn many_objects_take_bounded_room() {
        let mut called = CalledBack::default();
        for n in 0..3 * KEPT_MAX as u32 {
            let object = Fid { seq: 1, oid: n, ver: 0 };
            called.begin(LockId(n.into()), Wanted::Lock, ClientId(1), object, Time::from_secs(n.into()));
        }
        assert!(called.watched.len() <= KEPT_MAX && called.holdings.len() <= KEPT_MAX);
    }
}
