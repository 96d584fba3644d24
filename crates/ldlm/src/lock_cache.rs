//! The locks that one client holds at one target, and what the client may rely on under them: which lock serves a read,
//! a write or a name, which operations use it at this moment, and what a callback, a full cache or an eviction means
//! for it. A plain state machine; the caller sends the messages that are returned.
//!
//! What must not be here: RPCs, the data and attributes that the locks protect, and what the server decides.
//!
//! # A lock's life
//!
//! A request that may bring a lock takes a [`Ticket`] with [`LockCache::begin`] before it is sent. Its reply brings the
//! lock ([`LockCache::granted`]); [`LockCache::end`] says that the request is over. The lock is now *usable*:
//! [`LockCache::find`] takes a reference for the length of an operation, [`LockCache::release`] ends it; unused locks
//! rest in the order of their last use. A callback makes the lock *called back*: `find` no longer returns it, and the
//! last release (or the callback itself) returns a [`Giving`]. The caller invalidates, writes back and drops the data
//! that the lock protects, then calls [`LockCache::given`], sends the cancel or convert at once, and calls
//! [`LockCache::settled`] when the reply to that has come.
//!
//! # Messages that overtake each other
//!
//! The server chooses the handles and never uses one twice, but an inode lock's handle comes again with more bits. So:
//!
//! - *A callback overtakes the reply that brings its lock.* The handle is recorded. When the reply comes, the lock is
//!   [`Arrival::Once`]: the server waits for this client's cancel and allows no change before, so the data in the reply
//!   is valid. Using the lock once also keeps two clients that want the same lock from starving each other. If the
//!   requests that were under way at the callback all end without the lock, [`LockCache::end`] returns it to be
//!   cancelled.
//! - *A reply that the server sent before it saw a cancel (or convert) arrives after the client sent that cancel.* The
//!   reply names a lock that was given back: [`Arrival::Dead`]. This holds for every request that began before the
//!   **reply** to the cancel, not just before the cancel: a request sent after the cancel may be served before it.
//! - *A reply from before an eviction or restart comes after it.* Its lock is dead as well.
//!
//! Records of given-back locks are dropped when no request is under way that began before they were settled.

use crate::LockId;
use crate::invariant::ensure;
use crate::lock_index::RangeIndex;
use crate::lock_stages::{Event, STAGES, Stage};
use crate::lru::{Lru, REUSED_AFTER};
pub use crate::lru::{LruLimits, LruPolicy};
use crate::range_set::{Extent, RangeSet};
use nacre_base::{Fid, FxHashMap, Time};
use nacre_wire::ldlm::{BlockingCallback, LockMode};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Bytes or bits that a lock covers, or that an operation needs covered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cover {
    /// Bytes of an object.
    Extent {
        /// PR, PW or GROUP.
        mode: LockMode,
        /// Bytes of the object.
        ranges: RangeSet,
        /// Group number with mode GROUP, otherwise 0.
        group: u64,
    },
    /// Parts of an inode, mode PR.
    Inode {
        /// Bits of [`nacre_wire::ldlm::inode_bits`].
        bits: u64,
    },
}

/// The cover that an operation needs, all of it under one lock. A PW lock will do for PR.
pub type Want = Cover;

/// A request whose reply may bring a lock, from [`LockCache::begin`] to [`LockCache::end`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use]
pub struct Ticket(u64);

/// How a lock that came with a reply may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arrival {
    /// The lock is referenced once; later operations find it.
    Usable,
    /// The lock is referenced once, for the operation that asked, and already called back: its last release gives it
    /// back.
    Once,
    /// The lock is not held. The data in the reply may be given to the caller but not kept. An enqueue must be
    /// repeated.
    Dead,
}

/// Time after which a client gives back a lock that was called back before its reply came. If the reply needs longer, because the path was
/// cut, its request is repeated. The server evicts the client after ten times as long.
pub const UNCLAIMED_AFTER: Duration = Duration::from_secs(10);

/// Effect of a callback.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Blocking {
    /// The lock is neither held nor on its way: answer ENOENT.
    NotHeld,
    /// The lock is in use, being given back already, or awaited since an earlier callback.
    Later,
    /// The lock is not here, and a request under way may bring it. Call [`LockCache::unclaimed`] after [`UNCLAIMED_AFTER`].
    Awaited,
    /// Give it back now.
    Now(Giving),
}

/// A lock to give back: invalidate, write back and drop what it covers (for an inode lock, what is not kept), then call
/// [`LockCache::given`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Giving {
    /// The lock.
    pub id: LockId,
    /// Resource of the lock.
    pub resource: Fid,
    /// Everything that the lock covers.
    pub cover: Cover,
    /// Bits of an inode lock that stay, with a convert to be sent. 0: send a cancel.
    pub keep: u64,
    /// Time at which the lock was granted.
    pub granted: Time,
}

/// What it costs to give an idle lock back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// Nothing: what it covers is at the server.
    Light,
    /// There is dirty data under it.
    Heavy,
    /// A kernel may be serving programs under it, of which this cache does not hear. It is as young as a lock that is just used.
    InUse,
}

/// What to do with a lock that is ready to be given back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Given {
    /// Send the cancel or convert now, and call [`LockCache::settled`] when its reply has come.
    Send,
    /// Send nothing: the lock is in use again and its last release returns it, or it was lost.
    Stop,
    /// More bits were called back meanwhile: do this in place of the first.
    Again(Giving),
}

/// All bits of an inode lock, or an extent lock as a whole.
const EVERYTHING: u64 = u64::MAX;

#[derive(Debug)]
struct Lock {
    resource: Fid,
    cover: Cover,
    references: u32,
    /// Bits that are called back; 0 if the lock is usable.
    called_back: u64,
    /// The bits to be kept, while the caller has a [`Giving`] of this lock.
    giving: Option<u64>,
    /// Converts whose replies have not come.
    unsettled: u32,
    /// Replies to requests with tickets below this one may be older than the last convert.
    trusted_from: u64,
    granted: Time,
    last_use: Time,
    /// True if the current use found the lock unused.
    reused: bool,
    /// True if the lock is used again and again.
    privileged: bool,
}

impl Lock {
    fn stage(&self) -> Stage {
        match self {
            Lock { giving: Some(_), .. } => Stage::Giving,
            Lock { called_back: 0, references: 0, .. } => Stage::Idle,
            Lock { called_back: 0, .. } => Stage::Used,
            Lock { references: 0, .. } => Stage::Gone,
            Lock { .. } => Stage::Wanted,
        }
    }

    /// Makes a change, which must lead to the stage that the table gives for `event`.
    fn step<T>(&mut self, event: Event, change: impl FnOnce(&mut Lock) -> T) -> T {
        let (before, due) = (self.stage(), STAGES.next(self.stage(), event));
        let done = change(self);
        assert_eq!(self.stage(), due, "{event:?} in stage {before:?} has led elsewhere: {self:?}");
        done
    }

    fn usable(&self) -> bool {
        self.called_back == 0 && self.giving.is_none()
    }

    fn allows_writing(&self) -> bool {
        matches!(self.cover, Cover::Extent { mode: LockMode::Pw | LockMode::Group, .. })
    }

    /// Returns whether this is a group lock: a program decides how long it is held, so it is never called back, nor
    /// kept for later.
    fn is_group(&self) -> bool {
        matches!(self.cover, Cover::Extent { mode: LockMode::Group, .. })
    }

    fn idle(&self) -> bool {
        self.usable() && self.references == 0
    }

    /// Makes the [`Giving`] for the caller. Extent locks are given back whole; otherwise two writers could share one
    /// lock.
    fn give(&mut self, id: LockId) -> Giving {
        let keep = match &self.cover {
            Cover::Extent { .. } => 0,
            Cover::Inode { bits } => bits & !self.called_back,
        };
        self.giving = Some(keep);
        Giving { id, resource: self.resource, cover: self.cover.clone(), keep, granted: self.granted }
    }
}

/// A handle without a lock, which messages under way may still name.
#[derive(Clone, Copy, Debug)]
enum Tombstone {
    /// Called back before it came.
    CalledBack { bits: u64, fades: u64 },
    /// Given back, or about to be; `unsettled` cancels and converts have no reply yet.
    Given { unsettled: u32 },
}

#[derive(Default, Debug)]
struct Resource {
    inode: Option<LockId>,
    extents: RangeIndex,
}

impl Resource {
    fn is_empty(&self) -> bool {
        self.inode.is_none() && self.extents.is_empty()
    }
}

/// The locks that one client holds at one target; see the module for their life.
#[derive(Default, Debug)]
pub struct LockCache {
    locks: FxHashMap<LockId, Lock>,
    resources: FxHashMap<Fid, Resource>,
    /// Idle locks.
    lru: Lru,
    /// Time when locks last left because of their age or the server's volume.
    shrunk: Time,
    /// Tickets of requests under way.
    under_way: BTreeSet<u64>,
    next_ticket: u64,
    /// Requests with tickets below this one began before an eviction or restart: their locks are dead.
    lost_before: u64,
    tombstones: FxHashMap<LockId, Tombstone>,
    /// Tombstones by the first ticket whose reply cannot name them; without those that are unsettled.
    fading: BTreeSet<(u64, LockId)>,
    /// Handles of dead locks that the server believes to be held here, by the ticket that brought them.
    dead: BTreeMap<u64, Vec<LockId>>,
    /// Uses of locks that were lost meanwhile. Their releases still come.
    orphans: FxHashMap<LockId, u32>,
    /// References of locks and orphans together.
    references: u64,
}

impl LockCache {
    /// Makes the cache of a client that holds no locks yet.
    pub fn new() -> LockCache {
        LockCache::default()
    }

    /// A request whose reply may bring a lock is about to be sent.
    pub fn begin(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.under_way.insert(ticket);
        Ticket(ticket)
    }

    /// The request is over; its reply (if any) has been passed to [`LockCache::granted`]. Returns locks that the server
    /// believes to be held here and that are not: cancel them, then call [`LockCache::settled`].
    #[must_use = "the server waits for the cancels"]
    pub fn end(&mut self, ticket: Ticket) -> Vec<LockId> {
        let was_under_way = self.under_way.remove(&ticket.0);
        assert!(was_under_way, "{ticket:?} ends twice");
        let mut cancels = self.dead.remove(&ticket.0).unwrap_or_default();
        let oldest = self.under_way.first().copied().unwrap_or(self.next_ticket);
        while let Some(&(fades, id)) = self.fading.first()
            && fades <= oldest
        {
            self.fading.pop_first();
            if let Some(Tombstone::CalledBack { .. }) = self.tombstones.remove(&id) {
                self.tombstones.insert(id, Tombstone::Given { unsettled: 1 });
                cancels.push(id);
            }
        }
        cancels
    }

    /// A reply to the request of `ticket` brought a lock. `called_back` is true if the reply says that a request
    /// already waits for the lock.
    pub fn granted(
        &mut self,
        ticket: Ticket,
        id: LockId,
        resource: Fid,
        cover: Cover,
        called_back: bool,
        now: Time,
    ) -> Arrival {
        assert!(self.under_way.contains(&ticket.0), "{id:?} comes with {ticket:?}, which is over");
        if self.locks.contains_key(&id) {
            return self.more_bits(ticket, id, resource, &cover, called_back);
        }
        if let Some(Tombstone::Given { .. }) = self.tombstones.get(&id) {
            return Arrival::Dead;
        }
        // A lost lock's handle must not come again while the lock is in use, because the two could not be told apart.
        if ticket.0 < self.lost_before || self.orphans.contains_key(&id) {
            self.tombstones.insert(id, Tombstone::Given { unsettled: 1 });
            self.dead.entry(ticket.0).or_default().push(id);
            return Arrival::Dead;
        }
        let mut wanted = if called_back { EVERYTHING } else { 0 };
        if let Some(Tombstone::CalledBack { bits, fades }) = self.tombstones.remove(&id) {
            wanted |= bits;
            self.fading.remove(&(fades, id));
        }
        self.insert(id, resource, cover, wanted, now);
        if wanted == 0 { Arrival::Usable } else { Arrival::Once }
    }

    /// The handle of a held lock has come again: an inode lock with more bits.
    fn more_bits(&mut self, ticket: Ticket, id: LockId, resource: Fid, cover: &Cover, called_back: bool) -> Arrival {
        let Some(lock) = self.locks.get_mut(&id) else { return Arrival::Dead };
        let (Cover::Inode { bits }, Cover::Inode { bits: more }) = (&mut lock.cover, cover) else {
            return Arrival::Dead;
        };
        // While the lock is being given back, its attributes may have been invalidated here before the reply arrived.
        let stale = ticket.0 < lock.trusted_from || lock.unsettled > 0;
        if lock.resource != resource || stale || lock.giving.is_some() {
            return Arrival::Dead;
        }
        *bits |= more;
        if lock.idle() {
            self.lru.remove(lock.last_use, id);
        }
        self.references += 1;
        lock.step(Event::Extend, |lock| lock.references += 1);
        if called_back {
            lock.step(Event::CallBack, |lock| lock.called_back = EVERYTHING);
        }
        if lock.called_back == 0 { Arrival::Usable } else { Arrival::Once }
    }

    fn insert(&mut self, id: LockId, resource: Fid, cover: Cover, called_back: u64, now: Time) {
        let place = self.resources.entry(resource).or_default();
        match &cover {
            Cover::Extent { ranges, .. } => place.extents.insert(id, ranges),
            Cover::Inode { .. } => place.inode = Some(id),
        }
        let lock = Lock {
            resource,
            cover,
            references: 1,
            called_back,
            giving: None,
            unsettled: 0,
            trusted_from: 0,
            granted: now,
            last_use: now,
            reused: false,
            privileged: false,
        };
        self.references += 1;
        let before = self.locks.insert(id, lock);
        assert!(before.is_none(), "{id:?} comes while it is held: {before:?}");
    }

    /// Finds a usable lock for `want` and takes a reference.
    pub fn find(&mut self, resource: Fid, want: &Want) -> Option<LockId> {
        let id = self.search(resource, want, Lock::usable)?;
        self.reference(id, Event::Use);
        Some(id)
    }

    /// Like [`LockCache::find`], but of the locks for which `accept` returns true; one that is called back will do too, as long as
    /// its cancel was not sent: for pages that a door fills, or writes out, while it is told to forget them.
    pub fn find_even_called_back(
        &mut self,
        resource: Fid,
        want: &Want,
        accept: impl Fn(LockId) -> bool,
    ) -> Option<LockId> {
        let place = self.resources.get(&resource)?;
        let Want::Extent { ranges, .. } = want else { panic!("a door's pages under {want:?}") };
        let fits = |id: &LockId| accept(*id) && satisfies(&self.indexed(*id).cover, want);
        let id = place.extents.containing(*ranges.ranges().first()?).find(fits)?;
        let event = if self.indexed(id).usable() { Event::Use } else { Event::UseCalledBack };
        self.reference(id, event);
        Some(id)
    }

    /// Returns whether [`LockCache::find`] would find a lock.
    pub fn has(&self, resource: Fid, want: &Want) -> bool {
        self.search(resource, want, Lock::usable).is_some()
    }

    fn search(&self, resource: Fid, want: &Want, accept: impl Fn(&Lock) -> bool) -> Option<LockId> {
        let place = self.resources.get(&resource)?;
        let fits = |id: &LockId| {
            let lock = self.indexed(*id);
            accept(lock) && satisfies(&lock.cover, want)
        };
        match want {
            Want::Inode { .. } => place.inode.filter(fits),
            Want::Extent { ranges, .. } => {
                let first = ranges.ranges().first()?;
                place.extents.containing(*first).find(fits)
            }
        }
    }

    /// A lock that an index names.
    fn indexed(&self, id: LockId) -> &Lock {
        let Some(lock) = self.locks.get(&id) else { panic!("{id:?} is indexed and not held") };
        lock
    }

    fn reference(&mut self, id: LockId, event: Event) {
        let Some(lock) = self.locks.get_mut(&id) else { panic!("{id:?} is indexed and not held") };
        if lock.idle() {
            self.lru.remove(lock.last_use, id);
            lock.reused = true;
        }
        self.references += 1;
        lock.step(event, |lock| lock.references += 1);
    }

    /// Returns whether the server waits for a held lock.
    pub fn is_called_back(&self, id: LockId) -> bool {
        self.locks.get(&id).is_some_and(|lock| lock.called_back != 0)
    }

    /// Returns whether a usable lock of this client keeps others from writing from `from` to the end of file, so that
    /// the file size known here is true.
    pub fn covers_to_eof(&self, resource: Fid, from: u64) -> bool {
        let Some(ranges) = Extent::new(from, u64::MAX).and_then(|e| RangeSet::from_extents([e])) else { return false };
        self.has(resource, &Want::Extent { mode: LockMode::Pr, ranges, group: 0 })
    }

    /// Ends one use of a lock. After the last use of a lock that is called back, returns it to be given back.
    #[must_use = "the server waits for the lock"]
    pub fn release(&mut self, id: LockId, now: Time) -> Option<Giving> {
        assert!(self.references > 0, "{id:?} is released, and nothing is in use");
        self.references -= 1;
        let Some(lock) = self.locks.get_mut(&id) else {
            self.release_orphan(id);
            return None;
        };
        assert!(lock.references > 0, "{id:?} is released, and nobody uses it: {lock:?}");
        if lock.references > 1 || lock.giving.is_some() {
            lock.step(Event::Release, |lock| lock.references -= 1);
            return None;
        }
        lock.privileged |= std::mem::take(&mut lock.reused) && now.since(lock.last_use) >= REUSED_AFTER;
        lock.last_use = now;
        if lock.called_back != 0 || lock.is_group() {
            let give = |lock: &mut Lock| {
                lock.references = 0;
                lock.give(id)
            };
            return Some(lock.step(Event::Give, give));
        }
        lock.step(Event::Rest, |lock| lock.references = 0);
        self.lru.insert(now, id, lock.privileged);
        None
    }

    fn release_orphan(&mut self, id: LockId) {
        let Some(left) = self.orphans.get_mut(&id) else { panic!("{id:?} is released, and was not found") };
        *left -= 1;
        if *left == 0 {
            self.orphans.remove(&id);
        }
    }

    /// The server calls a lock back.
    pub fn handle_blocking(&mut self, callback: &BlockingCallback) -> Blocking {
        let id = LockId(callback.handle);
        // A callback that names no bits means all.
        let bits = if callback.bits == 0 { EVERYTHING } else { callback.bits };
        if self.locks.contains_key(&id) {
            return self.call_back(id, bits).map_or(Blocking::Later, Blocking::Now);
        }
        match self.tombstones.get_mut(&id) {
            Some(Tombstone::Given { .. }) => Blocking::NotHeld,
            Some(Tombstone::CalledBack { bits: before, .. }) => {
                *before |= bits;
                Blocking::Later
            }
            None if self.under_way.is_empty() => Blocking::NotHeld,
            None => {
                let fades = self.next_ticket;
                self.tombstones.insert(id, Tombstone::CalledBack { bits, fades });
                self.fading.insert((fades, id));
                Blocking::Awaited
            }
        }
    }

    /// A lock that was called back before it came is to be here by now. Returns whether it is not: cancel it, then call
    /// [`LockCache::settled`]. It was granted to a request that its sender gave up, or whose reply was lost; and the requests under
    /// way may wait for this very lock, behind another client that does. If it comes all the same, it is dead, and its request is
    /// repeated.
    #[must_use = "the server waits for the cancel"]
    pub fn unclaimed(&mut self, id: LockId) -> bool {
        let Some(Tombstone::CalledBack { fades, .. }) = self.tombstones.get(&id) else { return false };
        self.fading.remove(&(*fades, id));
        self.tombstones.insert(id, Tombstone::Given { unsettled: 1 });
        true
    }

    /// Marks the lock as called back, so that `find` no longer returns it. Returns it if it is idle.
    fn call_back(&mut self, id: LockId, bits: u64) -> Option<Giving> {
        let lock = self.locks.get_mut(&id)?;
        if lock.idle() {
            self.lru.remove(lock.last_use, id);
        }
        lock.step(Event::CallBack, |lock| {
            lock.called_back |= match lock.cover {
                Cover::Extent { .. } => EVERYTHING,
                Cover::Inode { .. } => bits,
            };
            (lock.references == 0 && lock.giving.is_none()).then(|| lock.give(id))
        })
    }

    /// Calls back this client's own locks that conflict with a request that is sent without a lock; the server does not
    /// call them back for it. Returns the idle ones; locks in use are returned by their last release. See
    /// [`LockCache::in_the_way`].
    #[must_use = "nobody finds them any more"]
    pub fn give_up(&mut self, resource: Fid, ranges: &RangeSet) -> Vec<Giving> {
        let ids = self.overlapping(resource, ranges);
        ids.into_iter().filter_map(|id| self.call_back(id, EVERYTHING)).collect()
    }

    /// Returns a lock for which another client sent a glimpse, to be given back if it was idle for `age`. Then the next
    /// client that asks for the size can keep the answer.
    #[must_use = "nobody finds it any more"]
    pub fn give_idle(&mut self, id: LockId, now: Time, age: Duration) -> Option<Giving> {
        let lock = self.locks.get(&id)?;
        let due = lock.idle() && now.since(lock.last_use) >= age;
        if due { self.call_back(id, EVERYTHING) } else { None }
    }

    /// Returns the idle locks that cover nothing outside `ranges`, to be given back.
    #[must_use = "nobody finds them any more"]
    pub fn give_idle_within(&mut self, resource: Fid, ranges: &RangeSet) -> Vec<Giving> {
        let mut ids = self.overlapping(resource, ranges);
        ids.retain(|id| self.locks.get(id).is_some_and(|lock| lock.idle() && is_within(&lock.cover, ranges)));
        ids.into_iter().filter_map(|id| self.call_back(id, EVERYTHING)).collect()
    }

    /// Returns whether locks of this client, usable or being given back, overlap with `ranges`.
    pub fn in_the_way(&self, resource: Fid, ranges: &RangeSet) -> bool {
        !self.overlapping(resource, ranges).is_empty()
    }

    fn overlapping(&self, resource: Fid, ranges: &RangeSet) -> BTreeSet<LockId> {
        let Some(place) = self.resources.get(&resource) else { return BTreeSet::new() };
        let found = ranges.ranges().iter().flat_map(|range| place.extents.overlapping(*range));
        let ids: BTreeSet<LockId> = found.map(|(_, id)| id).collect();
        for id in &ids {
            assert_eq!(self.indexed(*id).resource, resource, "{id:?} is found where it is not");
        }
        ids
    }

    /// Returns a batch of idle locks to be given back: those that are too many, too old, or more than the server's lock
    /// `volume` allows (None if the server gave none). Heavy ones leave last.
    #[must_use = "nobody finds them any more"]
    pub fn shrink(
        &mut self,
        now: Time,
        limits: &LruLimits,
        volume: Option<u64>,
        weigh: impl Fn(LockId, Fid, &Cover) -> Weight,
    ) -> Vec<Giving> {
        self.lru.set_privileges(limits.policy == LruPolicy::Lfru);
        let surplus = if limits.is_over(self.lru.len()) { limits.surplus(self.lru.len()) } else { 0 };
        let by_time = now.since(self.shrunk) >= LruLimits::PERIOD;
        let volume = volume.filter(|_| by_time && limits.size == 0);
        let mut leaving = Vec::new();
        while by_time
            && leaving.len() < LruLimits::BATCH
            && let Some((last_use, id)) = self.lru.oldest()
            && now.since(last_use) >= limits.max_age
        {
            match self.locks.get_mut(&id) {
                Some(lock) if weigh(id, lock.resource, &lock.cover) == Weight::InUse => {
                    self.lru.remove(last_use, id);
                    self.lru.insert(now, id, lock.privileged);
                    lock.last_use = now;
                }
                _ => leaving.extend(self.call_back(id, EVERYTHING)),
            }
        }
        let (mut more, mut heavy) = (Vec::new(), Vec::new());
        let (old, unused) = (leaving.len(), self.lru.len());
        let must_leave = |last_use: Time, more: usize| {
            let too_much = volume.is_some_and(|v| limits.volume(now.since(last_use), unused - more) > v);
            old + more < LruLimits::BATCH && (old + more < surplus || too_much)
        };
        for (last_use, id) in self.lru.iter() {
            if !must_leave(last_use, more.len()) || heavy.len() >= LruLimits::BATCH {
                break;
            }
            if self.locks.get(&id).is_some_and(|lock| weigh(id, lock.resource, &lock.cover) != Weight::Light) {
                heavy.push((last_use, id));
                continue;
            }
            more.push(id);
        }
        for (last_use, id) in heavy {
            if must_leave(last_use, more.len()) {
                more.push(id);
            }
        }
        leaving.extend(more.into_iter().filter_map(|id| self.call_back(id, EVERYTHING)));
        assert!(leaving.len() <= LruLimits::BATCH, "{} locks leave at once", leaving.len());
        // If more locks may have to leave, the next call need not wait for the period.
        if by_time && leaving.len() < LruLimits::BATCH {
            self.shrunk = now;
        }
        leaving
    }

    /// Time at which to call [`LockCache::shrink`], if no lock is used before; None without locks.
    pub fn next_expiry(&self, limits: &LruLimits, volume: Option<u64>) -> Option<Time> {
        if self.locks.is_empty() {
            return None;
        }
        // By then the volume may have changed, and locks in use may be unused.
        let is_dynamic = volume.is_some() && limits.size == 0;
        let oldest = self.lru.oldest().filter(|_| !is_dynamic);
        let next = oldest.map_or(Time::ZERO, |(last_use, _)| last_use + limits.max_age);
        Some(next.max(self.shrunk + LruLimits::PERIOD))
    }

    /// The volume of the unused locks, to compare with the server's.
    pub fn client_lock_volume(&self, limits: &LruLimits, now: Time) -> u64 {
        let age = self.lru.iter().next().map_or(Duration::ZERO, |(last_use, _)| now.since(last_use));
        limits.volume(age, self.lru.len())
    }

    /// All idle locks, to be given back (`lru_size=clear`).
    #[must_use = "nobody finds them any more"]
    pub fn clear(&mut self) -> Vec<Giving> {
        let idle: Vec<_> = self.lru.iter().collect();
        idle.into_iter().filter_map(|(_, id)| self.call_back(id, EVERYTHING)).collect()
    }

    /// The work of a [`Giving`] is done; called right before its cancel or convert is sent.
    pub fn given(&mut self, id: LockId) -> Given {
        // The lock was lost, and perhaps another one has come since.
        let Some((lock, keep)) = self.locks.get_mut(&id).and_then(|lock| lock.giving.map(|keep| (lock, keep))) else {
            return Given::Stop;
        };
        if lock.references > 0 {
            let is_free_group = lock.called_back == 0 && lock.is_group();
            let event = if is_free_group { Event::StopGroup } else { Event::Stop };
            lock.step(event, |lock| lock.giving = None);
            return Given::Stop;
        }
        if keep & lock.called_back != 0 {
            return Given::Again(lock.step(Event::Give, |lock| lock.give(id)));
        }
        lock.unsettled += 1;
        if keep == 0 {
            let unsettled = lock.unsettled;
            STAGES.next(lock.stage(), Event::Cancel);
            self.forget(id);
            self.tombstones.insert(id, Tombstone::Given { unsettled });
        } else {
            lock.step(Event::Convert, |lock| {
                lock.cover = Cover::Inode { bits: keep };
                (lock.called_back, lock.giving) = (0, None);
            });
            self.lru.insert(lock.last_use, id, lock.privileged);
        }
        Given::Send
    }

    /// The server has seen a cancel or convert of this lock: its reply came.
    pub fn settled(&mut self, id: LockId) {
        let next = self.next_ticket;
        if let Some(lock) = self.locks.get_mut(&id) {
            lock.unsettled = lock.unsettled.saturating_sub(1);
            lock.trusted_from = next;
        } else if let Some(Tombstone::Given { unsettled }) = self.tombstones.get_mut(&id) {
            *unsettled = unsettled.saturating_sub(1);
            if *unsettled > 0 {
                return;
            }
            if self.under_way.is_empty() {
                self.tombstones.remove(&id);
            } else {
                self.fading.insert((next, id));
            }
        }
    }

    /// The server says that it has no such lock.
    pub fn vanished(&mut self, id: LockId) {
        if let Some(lock) = self.locks.get(&id)
            && lock.idle()
        {
            self.lru.remove(lock.last_use, id);
        }
        self.forget(id);
    }

    fn forget(&mut self, id: LockId) {
        let Some(lock) = self.locks.remove(&id) else { return };
        if lock.references > 0 {
            self.orphans.insert(id, lock.references);
        }
        let Some(place) = self.resources.get_mut(&lock.resource) else {
            // Only a faulty server grants two locks on one inode; then only the second one can be found.
            return assert!(matches!(lock.cover, Cover::Inode { .. }), "{id:?} is held and not indexed: {lock:?}");
        };
        match &lock.cover {
            Cover::Extent { ranges, .. } => place.extents.remove(id, ranges),
            Cover::Inode { .. } => place.inode = place.inode.filter(|i| *i != id),
        }
        if place.is_empty() {
            self.resources.remove(&lock.resource);
        }
        let (unused, held, resources) = (self.lru.len(), self.locks.len(), self.resources.len());
        assert!(unused <= held, "{unused} locks are unused, of {held} held");
        // A lock that stays in its index would be found by the next operation there.
        assert!(resources <= held, "{resources} resources are indexed, and {held} locks are held");
    }

    /// Eviction or restart: the server knows none of these locks any longer, and locks in replies to requests that are
    /// under way now are dead. Returns the lost locks.
    pub fn lost(&mut self) -> Vec<(LockId, Fid, Cover)> {
        self.lost_before = self.next_ticket;
        self.resources.clear();
        self.lru.clear();
        self.tombstones.clear();
        self.fading.clear();
        self.dead.clear();
        let used = self.locks.iter().filter(|(_, lock)| lock.references > 0);
        self.orphans.extend(used.map(|(id, lock)| (*id, lock.references)));
        let mut lost: Vec<_> = self.locks.drain().map(|(id, lock)| (id, lock.resource, lock.cover)).collect();
        lost.sort_unstable_by_key(|(id, ..)| *id);
        lost
    }

    /// Every lock that the server believes to be here, including those being given back, in the order of their ids.
    pub fn all(&self) -> Vec<(LockId, Fid, Cover)> {
        let mut all: Vec<_> = self.locks.iter().map(|(id, lock)| (*id, lock.resource, lock.cover.clone())).collect();
        all.sort_unstable_by_key(|(id, ..)| *id);
        all
    }

    /// The bytes of this extent lock that other usable locks of this client cover too: clean data there stays when the
    /// lock is given back. For PW only locks that allow writing count: dirty data there stays too.
    pub fn others_cover(&self, id: LockId, mode: LockMode) -> Option<RangeSet> {
        let lock = self.locks.get(&id)?;
        let Cover::Extent { ranges, .. } = &lock.cover else { return None };
        let place = self.resources.get(&lock.resource)?;
        let shared = ranges.ranges().iter().flat_map(|range| {
            let others = place.extents.overlapping(*range);
            let stays = move |other: &Lock| other.usable() && (mode == LockMode::Pr || other.allows_writing());
            let others = others.filter(move |(_, other)| *other != id && stays(self.indexed(*other)));
            others.map(|(e, _)| Extent { start: e.start.max(range.start), end: e.end.min(range.end) })
        });
        RangeSet::from_extents(shared)
    }

    /// The bytes whose dirty data this lock must have written: all of its bytes, or, while it is being given back,
    /// those on which no other usable lock allows writing. None if there are no such bytes.
    pub fn to_be_written(&self, id: LockId) -> Option<Cow<'_, RangeSet>> {
        let lock = self.locks.get(&id)?;
        let Cover::Extent { ranges, .. } = &lock.cover else { return None };
        // Other locks are searched only where they matter: this is called for every dirty lock before each write, and a
        // set has hundreds of ranges.
        let others = if lock.usable() { None } else { self.others_cover(id, LockMode::Pw) };
        match others {
            Some(others) => ranges.subtract(&others).map(Cow::Owned),
            None => Some(Cow::Borrowed(ranges)),
        }
    }

    /// Other usable locks of this client that allow writing to bytes of this one.
    pub fn other_writers(&self, id: LockId) -> Vec<LockId> {
        let Some((resource, Cover::Extent { ranges, .. })) = self.get(id) else { return Vec::new() };
        let writes = |lock: &Lock| lock.usable() && lock.allows_writing();
        let ids = self.overlapping(resource, ranges).into_iter();
        ids.filter(|other| *other != id && writes(self.indexed(*other))).collect()
    }

    /// Resource and cover of a held lock.
    pub fn get(&self, id: LockId) -> Option<(Fid, &Cover)> {
        self.locks.get(&id).map(|l| (l.resource, &l.cover))
    }

    /// Returns whether the lock is held, or may come with a reply that is under way.
    pub fn may_hold(&self, id: LockId) -> bool {
        let given = matches!(self.tombstones.get(&id), Some(Tombstone::Given { .. }));
        self.locks.contains_key(&id) || (!given && !self.under_way.is_empty())
    }

    /// Locks held, including those being given back.
    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }

    /// Usable locks that no operation uses.
    pub fn lock_unused_count(&self) -> usize {
        self.lru.len()
    }

    /// Handles that are remembered without a lock: 0 when no request is under way and every cancel is answered.
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// Objects or inodes with locks.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }
}

/// Invariants.
impl LockCache {
    /// Checks all invariants; the error names one that does not hold. For simulators: it looks at everything.
    pub fn check(&self) -> Result<(), String> {
        let (mut references, mut idle) = (0, BTreeSet::new());
        for (id, lock) in &self.locks {
            references += u64::from(lock.references);
            ensure(lock.stage() != Stage::Gone, || {
                format!("{id:?} is called back and nobody gives it back: {lock:?}")
            })?;
            ensure(!self.tombstones.contains_key(id), || format!("{id:?} is held and given back"))?;
            idle.extend(lock.idle().then_some((lock.last_use, *id)));
            let place = self.resources.get(&lock.resource);
            let is_indexed = match &lock.cover {
                Cover::Extent { ranges, .. } => place.is_some_and(|place| place.extents.has(*id, ranges)),
                Cover::Inode { .. } => place.is_some_and(|place| place.inode.is_some()),
            };
            ensure(is_indexed, || format!("{id:?} cannot be found: {lock:?}"))?;
        }
        self.check_indexes()?;
        let unused: BTreeSet<_> = self.lru.iter().collect();
        ensure(unused == idle, || format!("{idle:?} are idle, the LRU has {unused:?}"))?;
        references += self.orphans.values().map(|left| u64::from(*left)).sum::<u64>();
        ensure(references == self.references, || format!("{references} uses of locks, counted are {}", self.references))
    }

    /// Checks that the indexes name only locks that are held.
    fn check_indexes(&self) -> Result<(), String> {
        let of_lock =
            |lock: &Lock| if let Cover::Extent { ranges, .. } = &lock.cover { ranges.ranges().len() } else { 0 };
        let held: usize = self.locks.values().map(of_lock).sum();
        let indexed: usize = self.resources.values().map(|place| place.extents.len()).sum();
        ensure(held == indexed, || format!("locks have {held} ranges, {indexed} ranges are indexed"))?;
        for (fid, place) in &self.resources {
            ensure(!place.is_empty(), || format!("{fid:?} is indexed and has no lock"))?;
            let of_inode = place.inode.filter(|id| !self.locks.contains_key(id));
            ensure(of_inode.is_none(), || format!("{of_inode:?} is indexed and not held"))?;
        }
        Ok(())
    }
}

fn is_within(cover: &Cover, bounds: &RangeSet) -> bool {
    matches!(cover, Cover::Extent { ranges, .. } if bounds.contains(ranges))
}

fn satisfies(cover: &Cover, want: &Want) -> bool {
    match (cover, want) {
        (Cover::Inode { bits }, Cover::Inode { bits: wanted }) => wanted & !bits == 0,
        (
            Cover::Extent { mode, ranges, group },
            Cover::Extent { mode: wanted_mode, ranges: wanted, group: wanted_group },
        ) => {
            let mode_fits = match wanted_mode {
                LockMode::Pr => matches!(mode, LockMode::Pr | LockMode::Pw),
                LockMode::Group => *mode == LockMode::Group && group == wanted_group,
                other => mode == other,
            };
            mode_fits && ranges.contains(wanted)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with_a_lock() -> LockCache {
        let mut cache = LockCache::new();
        let ticket = cache.begin();
        let arrival = cache.granted(ticket, LockId(1), Fid::ZERO, Cover::Inode { bits: 1 }, false, Time::ZERO);
        assert_eq!((arrival, cache.end(ticket)), (Arrival::Usable, vec![]));
        cache
    }

    #[test]
    #[should_panic(expected = "is released")]
    fn a_use_ends_once() {
        let mut cache = cache_with_a_lock();
        assert_eq!(cache.release(LockId(1), Time::ZERO), None);
        let _ = cache.release(LockId(1), Time::ZERO);
    }

    /// If a server gave a new lock the handle of a lost one, the old lock's release would end the new lock's use.
    #[test]
    fn a_name_that_comes_again_while_the_lost_lock_is_used_is_refused() {
        let mut cache = cache_with_a_lock();
        assert_eq!(cache.lost().len(), 1);
        let ticket = cache.begin();
        let arrival = cache.granted(ticket, LockId(1), Fid::ZERO, Cover::Inode { bits: 1 }, false, Time::ZERO);
        assert_eq!((arrival, cache.end(ticket)), (Arrival::Dead, vec![LockId(1)]));
        assert_eq!(cache.check(), Ok(()));
        assert_eq!(cache.release(LockId(1), Time::ZERO), None);
        assert_eq!(cache.references, 0);
    }

    fn extent_lock(cache: &mut LockCache, id: LockId) -> Want {
        let want = Want::Extent { mode: LockMode::Pr, ranges: RangeSet::ALL, group: 0 };
        let ticket = cache.begin();
        let arrival = cache.granted(ticket, id, Fid::ZERO, want.clone(), false, Time::ZERO);
        assert_eq!((arrival, cache.end(ticket)), (Arrival::Usable, vec![]));
        want
    }

    #[test]
    #[should_panic(expected = "no such step")]
    fn an_operation_that_uses_a_lock_which_is_called_back_is_a_defect() {
        let mut cache = LockCache::new();
        let want = extent_lock(&mut cache, LockId(1));
        let (resource, mode) = (Fid::ZERO, LockMode::Pw);
        let callback = BlockingCallback { handle: 1, resource, mode, start: 0, end: u64::MAX, bits: 0 };
        assert_eq!(cache.handle_blocking(&callback), Blocking::Later);
        assert_eq!(cache.find(Fid::ZERO, &want), None);
        assert_eq!(cache.find_even_called_back(Fid::ZERO, &want, |_| true), Some(LockId(1)));
        cache.reference(LockId(1), Event::Use);
    }

    #[test]
    #[should_panic(expected = "indexed and not held")]
    fn a_lock_that_is_gone_and_found_all_the_same_is_a_defect() {
        let mut cache = LockCache::new();
        let want = extent_lock(&mut cache, LockId(1));
        cache.locks.clear();
        assert!(cache.check().is_err_and(|what| what.contains("ranges are indexed")));
        let _ = cache.find(Fid::ZERO, &want);
    }

    #[test]
    fn the_check_finds_a_use_that_is_not_counted_and_an_idle_lock_that_would_stay() {
        let mut cache = cache_with_a_lock();
        assert_eq!(cache.check(), Ok(()));
        cache.references = 0;
        assert_eq!(cache.check(), Err("1 uses of locks, counted are 0".into()));
        cache.references = 1;
        assert_eq!(cache.release(LockId(1), Time::ZERO), None);
        cache.lru.clear();
        assert!(cache.check().is_err_and(|what| what.contains("are idle")));
    }
}
