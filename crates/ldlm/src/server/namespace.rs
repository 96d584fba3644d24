//! All locks of one target: resources by FID, requests in, grants and callbacks out. Also everything that concerns
//! several resources: ids of locks, resent requests, the locks of one client, deadlines of callbacks.

use super::contention::Contention;
use super::deadlines::Deadlines;
use super::extents::{Asked, Changes, Extents, Placed};
use super::flocks::{FlockGrants, Flocked, Flocks, nothing};
use super::inodes::{InodeChanges, Inodes, Kept, Wanted};
use super::pool::Pool;
use super::records::Records;
use super::{
    Callback, Effects, GlimpseHolder, GlimpseWork, Grant, Local, Outcome, PoolState, Request, Settings, Totals,
};
use crate::invariant::ensure;
use crate::lru::LruLimits;
use crate::{ClientId, LockId, RangeSet};
use nacre_base::{Errno, Fid, FxHashMap, Time};
use nacre_wire::ldlm::{BlockingCallback, Enqueue, EnqueueReply, InodeLock, LockKind, LockMode};
use nacre_wire::ldlm::{enqueue_flags, reply_flags};
use std::collections::{BTreeMap, BTreeSet};

/// Most ranges in the extent locks that one client may hold and wait for; beyond that its requests fail with ENOLCK. The
/// pool bounds the granted locks of all clients together, but neither requests that wait, nor the ranges of a lock, nor
/// replays. No client with programs that do their work comes near: it keeps [`LruLimits::DYNAMIC_MAX`] unused locks, or as
/// many as `lru_size` says, and has some more for each program. Locks with many ranges are those of the few files that
/// programs write with strides.
pub(super) const CLIENT_RANGES_MAX: usize = 1 << 21;
const _: () = assert!(CLIENT_RANGES_MAX >= 20 * LruLimits::DYNAMIC_MAX, "an honest client must never be refused");
const _: () = assert!(CLIENT_RANGES_MAX >= 2 << 20, "lru_size may be 1 << 20");

/// The locks of one target.
pub struct Namespace {
    settings: Settings,
    objects: FxHashMap<Fid, Extents>,
    /// Ranges of each client's extent locks and of its requests for some.
    ranges: Records,
    inodes: Inodes,
    flocks: Flocks,
    /// Kind and place of each lock and each waiting request. Granted flocks have no id.
    names: FxHashMap<LockId, Named>,
    by_request: BTreeMap<(ClientId, u64, u32), LockId>,
    deadlines: Deadlines,
    contention: Contention,
    pool: Pool,
    totals: Totals,
    ids: IdSource,
    /// Random number that keeps clients from choosing the shape of the trees of extents.
    salt: u64,
}

/// Source of the ids of locks. Clients see the ids, so they must be such that no client can guess another's from its
/// own, nor one of an earlier start.
type IdSource = Box<dyn FnMut() -> u64 + Send>;

/// The lock or request that a [`LockId`] names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    /// A client's extent lock, or its request for one.
    Extent { client: ClientId, xid: u64, part: u32, resource: Fid },
    /// A client's flock request that waits.
    Flock { client: ClientId, xid: u64 },
    /// A client's inode lock.
    Inode { client: ClientId, inode: Fid },
    /// An extent lock that the server took.
    LocalExtent { resource: Fid },
    /// An operation's locks on inodes.
    LocalInodes,
}

impl Namespace {
    /// Makes a namespace without locks. `ids` gives the ids of locks, one at a time; it may repeat itself, but not for
    /// ever. Its first number is not an id, but salts the trees of extents.
    pub fn new(mut ids: impl FnMut() -> u64 + Send + 'static, settings: Settings) -> Namespace {
        let salt = ids();
        Namespace {
            salt,
            settings,
            objects: FxHashMap::default(),
            ranges: Records::default(),
            inodes: Inodes::default(),
            flocks: Flocks::default(),
            names: FxHashMap::default(),
            by_request: BTreeMap::new(),
            deadlines: Deadlines::default(),
            contention: Contention::default(),
            pool: Pool::new(settings.lock_limit),
            totals: Totals::default(),
            ids: Box::new(ids),
        }
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Changes the settings. Deadlines that run keep running.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.pool.set_limit(settings.lock_limit);
    }

    /// Recomputes how many locks clients are told they may keep, if it is time.
    pub fn recompute_pool(&mut self, now: Time) {
        self.pool.recompute(self.counted(), now);
    }

    /// Time of the next recomputation; `Time::FAR_FUTURE` while there is room.
    pub fn next_recompute(&self) -> Time {
        self.pool.next(self.counted()).unwrap_or(Time::FAR_FUTURE)
    }

    /// How many locks clients are told they may keep, and why.
    pub fn pool(&self) -> PoolState {
        let pool = &self.pool;
        PoolState { limit: pool.limit(), volume: pool.volume(), plan: pool.plan(), speed: pool.speed() }
    }

    /// Returns whether clients hold more locks than there is room for. Those that get no replies must be told.
    pub fn is_short_of_room(&self) -> bool {
        self.pool.is_short(self.counted())
    }

    /// Returns whether the client holds a lock that it could give back without a program noticing, or waits for an extent.
    pub fn has_locks(&self, client: ClientId) -> bool {
        self.ranges.of(client) > 0 || self.inodes.has_client(client)
    }

    /// Handles an enqueue: a client asks for an extent lock or a flock, gives up a flock (mode NL), asks for the lock
    /// that conflicts with one (TEST_LOCK), withdraws a request of its own that waits (WITHDRAW: the reply's handle is
    /// its id), or wants an object's size (GLIMPSE). Locks that the enqueue gives back are removed first.
    pub fn enqueue(&mut self, request: Request, now: Time, effects: &mut Effects) -> Outcome {
        for handle in &request.enqueue.cancels {
            let id = LockId(*handle);
            if self.holds(request.client, id) {
                self.remove(id, now, effects);
            }
        }
        if let Some(id) = self.by_request.get(&(request.client, request.xid, request.part)) {
            return self.reply_of(*id, now).map_or(Outcome::Waiting(*id), Outcome::Done);
        }
        if request.enqueue.flags & enqueue_flags::WITHDRAW != 0 {
            return self.withdraw_like(&request, now, effects);
        }
        match request.enqueue.kind {
            LockKind::Extent => self.enqueue_extent(&request, now, effects),
            LockKind::Flock => self.enqueue_flock(&request, effects),
            LockKind::Inodebits => Outcome::Refused(Errno::EOPNOTSUPP),
        }
    }

    /// A client gives a lock back, or withdraws a request that waits. Returns whether it has such a lock or request.
    pub fn cancel(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) -> bool {
        let own = self.names.get(&id).and_then(Named::client) == Some(client);
        if own {
            self.remove(id, now, effects);
        }
        own
    }

    /// A client's inode lock keeps only `keep_bits` of its bits. Returns whether the client has such a lock.
    pub fn convert(&mut self, client: ClientId, id: LockId, keep_bits: u64, now: Time, effects: &mut Effects) -> bool {
        match self.names.get(&id).copied() {
            Some(Named::Inode { client: holder, inode }) if holder == client => {
                self.keep_bits(client, inode, id, keep_bits, now, effects);
                true
            }
            _ => false,
        }
    }

    /// A client is gone: removes its locks and its waiting requests, and returns the ids of those requests. Locks that
    /// the server took on its behalf end with their operation.
    pub fn client_gone(&mut self, client: ClientId, now: Time, effects: &mut Effects) -> Vec<LockId> {
        let of_client = self.by_request.range((client, 0, 0)..=(client, u64::MAX, u32::MAX));
        let (held, waiting): (Vec<LockId>, Vec<LockId>) =
            of_client.map(|(_, id)| *id).partition(|id| self.holds(client, *id));
        // Remove waiting requests first, so that no lock is granted to a client that is gone.
        for id in waiting.iter().chain(&held) {
            self.remove(*id, now, effects);
        }
        for (_, id) in self.inodes.of_client(client) {
            self.remove(id, now, effects);
        }
        let left = self.by_request.range((client, 0, 0)..=(client, u64::MAX, u32::MAX)).next();
        assert!(left.is_none(), "{client:?} is gone, and {left:?} is left of it");
        assert_eq!(self.ranges.of(client), 0, "{client:?} is gone, and still has ranges");
        let mut grants = Vec::new();
        self.flocks.client_gone(client, &mut grants);
        self.granted_flocks(grants, effects);
        waiting
    }

    /// The server takes a lock on the ranges of a data RPC that comes without one: PR, or PW for any other mode.
    pub fn lock_server(
        &mut self,
        resource: Fid,
        mode: LockMode,
        ranges: RangeSet,
        on_behalf: ClientId,
        now: Time,
        effects: &mut Effects,
    ) -> Local {
        let id = self.unused_id();
        let mode = if mode == LockMode::Pr { LockMode::Pr } else { LockMode::Pw };
        self.name(id, Named::LocalExtent { resource });
        let ask = Asked {
            id,
            client: on_behalf,
            local: true,
            mode,
            ranges,
            group: 0,
            exact: true,
            alone: false,
            ahead: false,
        };
        if self.place(resource, ask, now, effects) { Local::Granted(id) } else { Local::Waiting(id) }
    }

    /// The server takes inode locks, mode EX, on the bits that an operation is going to change: all at once.
    pub fn lock_inodes(
        &mut self,
        wants: &[(Fid, u64)],
        on_behalf: ClientId,
        now: Time,
        effects: &mut Effects,
    ) -> Local {
        let id = self.unused_id();
        self.name(id, Named::LocalInodes);
        let mut called_back = Vec::new();
        let granted = self.inodes.lock(id, on_behalf, wants, &mut called_back);
        self.call_back_inodes(called_back, now, effects);
        if granted { Local::Granted(id) } else { Local::Waiting(id) }
    }

    /// Ends a lock that the server took, or withdraws it while it waits. Unknown ids are no error.
    pub fn unlock(&mut self, id: LockId, now: Time, effects: &mut Effects) {
        if self.names.get(&id).is_some_and(|named| named.client().is_none()) {
            self.remove(id, now, effects);
        }
    }

    /// Grants a client an inode lock, mode PR, on those of `bits` that no operation changes or waits to change. Returns
    /// None if there are no such bits, if the client's lock on the inode is called back, or if there are too many
    /// locks.
    pub fn grant_inode(&mut self, client: ClientId, inode: Fid, bits: u64) -> Option<InodeLock> {
        if self.pool.is_exhausted(self.counted()) {
            return None;
        }
        let new = self.unused_id();
        let granted = self.inodes.grant(client, inode, bits, || new)?;
        if granted.is_new {
            self.name(new, Named::Inode { client, inode });
            self.totals.grants += 1;
        }
        let named = self.names.get(&granted.id);
        assert_eq!(named, Some(&Named::Inode { client, inode }), "{granted:?} has the name of something else");
        Some(InodeLock { handle: granted.id.0, bits: granted.bits })
    }

    /// Returns whether the client's granted lock allows a read or write of all these ranges. Working under a lock that
    /// is called back extends its deadline.
    pub fn covers(
        &mut self,
        client: ClientId,
        id: LockId,
        resource: Fid,
        write: bool,
        ranges: &RangeSet,
        now: Time,
    ) -> bool {
        let named = self.names.get(&id);
        if !named.is_some_and(
            |n| matches!(n, Named::Extent { client: c, resource: r, .. } if (*c, *r) == (client, resource)),
        ) {
            return false;
        }
        let granted = self.objects.get(&resource).filter(|object| object.is_granted(id)).and_then(|o| o.get(id));
        let covers = granted.is_some_and(|lock| (!write || lock.mode != LockMode::Pr) && lock.ranges.contains(ranges));
        if covers {
            self.deadlines.prolong(id, now + self.settings.callback_timeout);
        }
        covers
    }

    /// Returns whether the client holds this extent lock, so that its replay restores nothing.
    pub fn holds_extent(&self, client: ClientId, id: LockId) -> bool {
        matches!(self.names.get(&id), Some(Named::Extent { .. })) && self.holds(client, id)
    }

    /// The object that the client's granted lock allows the client to write.
    pub fn written_by(&self, client: ClientId, id: LockId) -> Option<Fid> {
        let Some(Named::Extent { client: holder, resource, .. }) = self.names.get(&id).copied() else { return None };
        let object = self.objects.get(&resource).filter(|object| object.is_granted(id) && holder == client)?;
        let writes = object.get(id).is_some_and(|lock| lock.mode != LockMode::Pr);
        writes.then_some(resource)
    }

    /// Returns whether a request waits for a lock on the object in order to read it.
    pub fn has_waiting_reader(&self, resource: Fid) -> bool {
        self.objects.get(&resource).is_some_and(Extents::has_waiting_reader)
    }

    /// A client answered a callback with ENOENT: it does not hold the lock.
    pub fn handle_not_held(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) {
        if self.holds(client, id) {
            self.remove(id, now, effects);
        }
    }

    /// Returns whether the lock was called back, is not given back yet, and its holder still has time.
    pub fn is_called_back(&self, id: LockId) -> bool {
        self.deadlines.is_running(id)
    }

    /// Time at which to call [`Namespace::expired`] next.
    pub fn next_deadline(&self) -> Time {
        self.deadlines.next()
    }

    /// Clients that did not give back a lock in time and are to be evicted. Each lock is reported once. `spared` says until when
    /// a client has more time.
    pub fn expired(&mut self, now: Time, spared: impl Fn(ClientId) -> Option<Time>) -> Vec<ClientId> {
        let mut expired = self.deadlines.expired(now);
        for (id, client) in &expired {
            let holder = self.names.get(id).and_then(Named::client);
            assert_eq!(holder, Some(*client), "the time to give back {id:?} has passed for who does not hold it");
        }
        expired.retain(|(id, client)| match spared(*client) {
            Some(until) => {
                assert!(until > now, "{client:?} is spared until a time that has passed");
                self.deadlines.begin(*id, *client, until);
                false
            }
            None => true,
        });
        self.totals.timeouts += expired.len() as u64;
        let clients: BTreeSet<ClientId> = expired.into_iter().map(|(_, client)| client).collect();
        clients.into_iter().collect()
    }

    /// Returns whether the object is contended.
    pub fn is_contended(&self, resource: Fid, now: Time) -> bool {
        self.contention.is_contended(resource, now)
    }

    /// Times that an object became contended.
    pub fn contention_events(&self) -> u64 {
        self.contention.events()
    }

    /// Locks that clients hold.
    pub fn lock_count(&self) -> usize {
        self.counted() as usize + self.flocks.held_count()
    }

    /// Locks that can be given back without a program noticing: all but flocks.
    fn counted(&self) -> u64 {
        let Totals { grants, cancels, .. } = self.totals;
        assert!(cancels <= grants, "{cancels} locks were given back, of {grants} granted");
        let (counted, named) = (grants - cancels, self.names.len() as u64);
        assert!(counted <= named, "clients hold {counted} locks, of {named} that have a name");
        counted
    }

    /// Requests that wait, including the server's own.
    pub fn waiting_count(&self) -> usize {
        let extents: usize = self.objects.values().map(Extents::waiting_count).sum();
        extents + self.inodes.waiting_count() + self.flocks.waiting_count()
    }

    /// Resources with a lock or a request: objects, inodes, and files with flocks.
    pub fn resource_count(&self) -> usize {
        self.objects.len() + self.inodes.inode_count() + self.flocks.file_count()
    }

    /// Totals since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}

/// Extents.
impl Namespace {
    fn enqueue_extent(&mut self, request: &Request, now: Time, effects: &mut Effects) -> Outcome {
        let Request { client, xid, part, enqueue } = request;
        let Enqueue { resource, mode, flags, group, .. } = *enqueue;
        let ranges = RangeSet::from_wire(enqueue.start, enqueue.end, &enqueue.more);
        let group_makes_sense = (mode == LockMode::Group) == (group != 0);
        let mode_makes_sense = matches!(mode, LockMode::Pr | LockMode::Pw | LockMode::Group) && group_makes_sense;
        let Some(ranges) = ranges.filter(|_| mode_makes_sense && flags & enqueue_flags::TEST_LOCK == 0) else {
            return Outcome::Refused(Errno::EINVAL);
        };
        let exact = flags & enqueue_flags::NO_EXPANSION != 0;
        let is_replay = flags & enqueue_flags::REPLAY != 0;
        let id = if is_replay { LockId(enqueue.handle) } else { self.unused_id() };
        let alone = self.settings.own_locks_conflict;
        let ahead = flags & enqueue_flags::AHEAD != 0;
        let ask = Asked { id, client: *client, local: false, mode, ranges, group, exact, alone, ahead };
        let has_room = self.ranges.of(*client) + ask.ranges.ranges().len() <= CLIENT_RANGES_MAX;
        if is_replay {
            return self.replay_extent(request, ask, has_room, now, effects);
        }
        let glimpse = flags & enqueue_flags::GLIMPSE != 0;
        if !has_room && !glimpse {
            return Outcome::Refused(Errno::ENOLCK);
        }
        let exhausted = !has_room || self.pool.is_exhausted(self.counted());
        if exhausted && !glimpse {
            // The client asks again in a while, with a new request; unused locks have gone by then.
            return Outcome::Refused(Errno::EINPROGRESS);
        }
        let no_wait = glimpse || flags & enqueue_flags::BLOCK_NOWAIT != 0;
        let would_wait = |object: &Extents| object.would_wait(&ask);
        if no_wait && (exhausted || self.objects.get(&resource).is_some_and(would_wait)) {
            let work = || Outcome::Glimpse(self.glimpse_work(resource, *client, now));
            return if glimpse { work() } else { Outcome::Refused(Errno::EAGAIN) };
        }
        let group_no_wait = flags & enqueue_flags::GROUP_NOWAIT != 0;
        if group_no_wait && self.objects.get(&resource).is_some_and(|object| object.would_wait_for_group(&ask)) {
            return Outcome::Refused(Errno::EAGAIN);
        }
        let id = ask.id;
        self.name(id, Named::Extent { client: *client, xid: *xid, part: *part, resource });
        let is_granted = self.place(resource, ask, now, effects);
        let reply = self.reply_of(id, now);
        assert_eq!(reply.is_some(), is_granted, "{id:?} is answered as what it is not");
        reply.map_or(Outcome::Waiting(id), Outcome::Done)
    }

    /// A client replays a lock that it holds. EEXIST if another lock has that id, EBUSY if it conflicts with another
    /// lock: then the client cannot have held it. ENOLCK if it cannot have held so many.
    fn replay_extent(
        &mut self,
        request: &Request,
        ask: Asked,
        has_room: bool,
        now: Time,
        effects: &mut Effects,
    ) -> Outcome {
        let (id, resource) = (ask.id, request.enqueue.resource);
        if self.names.contains_key(&id) {
            let is_same =
                self.objects.get(&resource).and_then(|object| object.get(id)).is_some_and(|held| *held == ask);
            let again = if is_same { self.reply_of(id, now) } else { None };
            return again.map_or(Outcome::Refused(Errno::EEXIST), Outcome::Done);
        }
        if !has_room {
            return Outcome::Refused(Errno::ENOLCK);
        }
        if id.0 == 0 || self.objects.get(&resource).is_some_and(|object| object.would_wait(&ask)) {
            return Outcome::Refused(Errno::EBUSY);
        }
        let Request { client, xid, part, .. } = *request;
        self.name(id, Named::Extent { client, xid, part, resource });
        let is_granted = self.place(resource, Asked { exact: true, ..ask }, now, effects);
        assert!(is_granted, "{id:?} is brought back and waits, though nothing was in its way");
        self.reply_of(id, now).map_or(Outcome::Refused(Errno::EBUSY), Outcome::Done)
    }

    /// Grants the lock, or lets it wait. Returns whether it is granted.
    fn place(&mut self, resource: Fid, ask: Asked, now: Time, effects: &mut Effects) -> bool {
        let (id, mode, cover) = (ask.id, ask.mode, ask.ranges.cover());
        if !ask.local {
            // Growing does not change the number: only single ranges grow.
            self.ranges.replace(ask.client, 0, ask.ranges.ranges().len());
        }
        let mut changes = Changes::default();
        let object = self.objects.entry(resource).or_insert_with(|| Extents::new(self.salt));
        let placed = object.enqueue(ask, self.settings.rules(), &mut changes);
        for lock in changes.called_back {
            let holder = self.names.get(&lock).and_then(Named::client);
            let Some(client) = holder else { panic!("{lock:?} is called back, and no client holds it") };
            let message =
                BlockingCallback { handle: lock.0, resource, mode, start: cover.start, end: cover.end, bits: 0 };
            self.call_back(client, message, now, effects);
        }
        match placed {
            Placed::Granted => self.handle_granted(resource, id, now),
            Placed::Waiting { behind_client: true } => {
                self.contention.handle_conflict(resource, now, &self.settings);
            }
            Placed::Waiting { behind_client: false } => {}
        }
        self.announce(resource, changes.granted, now, effects);
        placed == Placed::Granted
    }

    /// Reports waiting requests that are granted.
    fn announce(&mut self, resource: Fid, granted: Vec<LockId>, now: Time, effects: &mut Effects) {
        for id in granted {
            self.handle_granted(resource, id, now);
            let reply = self.reply_of(id, now);
            let is_local = self.names.get(&id) == Some(&Named::LocalExtent { resource });
            assert_ne!(reply.is_some(), is_local, "{id:?} of {resource:?} is granted as what it is not");
            let reply = reply.unwrap_or_else(nothing);
            effects.grants.push(Grant { id, reply });
        }
    }

    /// A lock was granted: counts it, and starts its deadline if a request already waits for it.
    fn handle_granted(&mut self, resource: Fid, id: LockId, now: Time) {
        let Some(named) = self.names.get(&id) else { panic!("{id:?} of {resource:?} is granted, and has no name") };
        let Some(client) = named.client() else { return };
        self.totals.grants += 1;
        if self.objects.get(&resource).is_some_and(|object| object.is_called_back(id)) {
            self.totals.callbacks += 1;
            self.deadlines.begin(id, client, now + self.settings.callback_timeout);
        }
    }

    fn remove_extent(&mut self, resource: Fid, id: LockId, now: Time, effects: &mut Effects) {
        let Some(object) = self.objects.get_mut(&resource) else {
            panic!("{id:?} is named, and {resource:?} has none")
        };
        let was_held = object.is_granted(id);
        let mut changes = Changes::default();
        let removed = object.remove(id, self.settings.rules(), &mut changes);
        let Some(removed) = removed else { panic!("{id:?} is named, and {resource:?} has other locks") };
        self.totals.cancels += u64::from(was_held && !removed.local);
        if !removed.local {
            self.ranges.replace(removed.client, removed.ranges.ranges().len(), 0);
        }
        if object.is_empty() {
            self.objects.remove(&resource);
        }
        self.announce(resource, changes.granted, now, effects);
    }

    /// The reply that grants a client's extent lock; None as long as it waits.
    fn reply_of(&self, id: LockId, now: Time) -> Option<EnqueueReply> {
        let Some(Named::Extent { resource, .. }) = self.names.get(&id).copied() else { return None };
        let object = self.objects.get(&resource).filter(|object| object.is_granted(id))?;
        let lock = object.get(id)?;
        let cover = lock.ranges.cover();
        let called_back = if object.is_called_back(id) { reply_flags::CALLED_BACK } else { 0 };
        let flags = called_back | self.contended_flag(resource, now);
        let (mode, start, end) = (lock.mode, cover.start, cover.end);
        Some(EnqueueReply { handle: id.0, mode, start, end, flags, ..EnqueueReply::default() })
    }

    fn contended_flag(&self, resource: Fid, now: Time) -> u32 {
        if self.is_contended(resource, now) { reply_flags::CONTENDED } else { 0 }
    }

    /// The clients that a client must ask who wants an object's size.
    pub fn glimpse_work(&self, resource: Fid, asker: ClientId, now: Time) -> GlimpseWork {
        let writers = self.objects.get(&resource).map(|object| object.writers(asker)).unwrap_or_default();
        let holder = |lock: &Asked| {
            let last = lock.ranges.ranges().last().map_or(u64::MAX, |range| range.start);
            let settles_above = if lock.mode == LockMode::Group { u64::MAX } else { last };
            GlimpseHolder { client: lock.client, lock: lock.id, settles_above }
        };
        let holders = writers.into_iter().map(holder).collect();
        GlimpseWork { holders, flags: self.contended_flag(resource, now) }
    }
}

/// Inodes and flocks.
impl Namespace {
    fn keep_bits(&mut self, client: ClientId, inode: Fid, id: LockId, keep: u64, now: Time, effects: &mut Effects) {
        let mut changes = InodeChanges::default();
        let kept = self.inodes.keep_bits(client, inode, keep, &mut changes);
        assert!(keep != 0 || kept == Kept::Nothing, "{id:?} of {client:?} keeps nothing, and still {kept:?}");
        if kept != Kept::All {
            self.deadlines.end(id);
        }
        if kept == Kept::Nothing {
            self.forget(id);
            self.totals.cancels += 1;
        }
        effects.grants.extend(changes.granted.into_iter().map(|id| Grant { id, reply: nothing() }));
        self.call_back_inodes(changes.called_back, now, effects);
    }

    fn call_back_inodes(&mut self, called_back: Vec<Wanted>, now: Time, effects: &mut Effects) {
        for Wanted { client, id, inode, bits } in called_back {
            let message =
                BlockingCallback { handle: id.0, resource: inode, mode: LockMode::Ex, start: 0, end: 0, bits };
            self.call_back(client, message, now, effects);
        }
    }

    fn enqueue_flock(&mut self, request: &Request, effects: &mut Effects) -> Outcome {
        let (client, xid, id) = (request.client, request.xid, self.unused_id());
        let mut grants = Vec::new();
        let flocked = self.flocks.enqueue(client, &request.enqueue, id, &mut grants);
        self.granted_flocks(grants, effects);
        match flocked {
            Flocked::Done(reply) => Outcome::Done(reply),
            Flocked::Refused(errno) => Outcome::Refused(errno),
            Flocked::Waiting => {
                self.name(id, Named::Flock { client, xid });
                Outcome::Waiting(id)
            }
        }
    }

    fn granted_flocks(&mut self, grants: FlockGrants, effects: &mut Effects) {
        for (_, id, reply) in grants {
            let named = self.forget(id);
            assert!(matches!(named, Named::Flock { .. }), "a flock is granted as {named:?}");
            effects.grants.push(Grant { id, reply });
        }
    }
}

/// What all kinds have in common.
impl Namespace {
    /// Makes an id. Ids that clients replayed from an earlier start may have any value.
    fn unused_id(&mut self) -> LockId {
        loop {
            let id = LockId((self.ids)());
            if id.0 != 0 && !self.names.contains_key(&id) {
                return id;
            }
        }
    }

    /// Records the id of a lock or request, which is found by the request that asked for it, too.
    fn name(&mut self, id: LockId, named: Named) {
        assert_ne!(id.0, 0, "{named:?} has the name that says: no lock");
        if let Some(request) = named.request() {
            let other = self.by_request.insert(request, id);
            assert!(other.is_none(), "one request, {request:?}, brings {other:?} and {id:?}");
        }
        let other = self.names.insert(id, named);
        assert!(other.is_none(), "{other:?} and {named:?} have the name {id:?}");
    }

    /// Returns whether the client holds this lock, which does not wait.
    fn holds(&self, client: ClientId, id: LockId) -> bool {
        match self.names.get(&id) {
            Some(Named::Extent { client: holder, resource, .. }) => {
                *holder == client && self.objects.get(resource).is_some_and(|object| object.is_granted(id))
            }
            Some(Named::Inode { client: holder, .. }) => *holder == client,
            _ => false,
        }
    }

    /// Withdraws the client's waiting request that asks for the same lock as `request`. The reply's mode is then NL. It
    /// is the mode asked for if no such request waits, because the request was granted before (or never came).
    fn withdraw_like(&mut self, request: &Request, now: Time, effects: &mut Effects) -> Outcome {
        let Request { client, enqueue, .. } = request;
        let found = match enqueue.kind {
            LockKind::Flock => self.flocks.find_waiting(*client, enqueue),
            LockKind::Extent => {
                let Some(ranges) = RangeSet::from_wire(enqueue.start, enqueue.end, &enqueue.more) else {
                    return Outcome::Refused(Errno::EINVAL);
                };
                let object = self.objects.get(&enqueue.resource);
                object.and_then(|object| object.find_waiting(*client, enqueue.mode, &ranges))
            }
            LockKind::Inodebits => return Outcome::Refused(Errno::EOPNOTSUPP),
        };
        let Some(id) = found else { return Outcome::Done(EnqueueReply { mode: enqueue.mode, ..nothing() }) };
        self.remove(id, now, effects);
        Outcome::Done(EnqueueReply { handle: id.0, ..nothing() })
    }

    /// Removes a lock or request of any kind.
    fn remove(&mut self, id: LockId, now: Time, effects: &mut Effects) {
        if let Some(Named::Inode { client, inode }) = self.names.get(&id).copied() {
            return self.keep_bits(client, inode, id, 0, now, effects);
        }
        self.deadlines.end(id);
        match self.forget(id) {
            Named::Extent { resource, .. } | Named::LocalExtent { resource } => {
                self.remove_extent(resource, id, now, effects);
            }
            Named::Flock { client, .. } => self.flocks.withdraw(client, id),
            Named::LocalInodes => self.inodes.unlock(id),
            Named::Inode { .. } => panic!("an inode lock, {id:?}, is given up bit by bit"),
        }
        self.assert_nothing_outlives_names();
    }

    /// Removes the id of a lock or request.
    fn forget(&mut self, id: LockId) -> Named {
        let Some(named) = self.names.remove(&id) else { panic!("{id:?} ends, and has no name") };
        if let Some(request) = named.request() {
            let known = self.by_request.remove(&request);
            assert_eq!(known, Some(id), "{named:?} is known to its request by another name");
        }
        named
    }

    /// Panics if nothing has an id, but something is held, waited for or called back. Granted flocks never have an id.
    fn assert_nothing_outlives_names(&self) {
        if self.names.is_empty() {
            let (objects, requests, counted) = (self.objects.len(), self.by_request.len(), self.counted());
            let (inodes, deadline) = (self.inodes.inode_count(), self.deadlines.next());
            assert_eq!((objects, inodes), (0, 0), "objects and inodes have locks without names");
            assert_eq!((requests, counted), (0, 0), "requests and locks are counted that have no names");
            assert_eq!(deadline, Time::FAR_FUTURE, "a lock without a name is to be given back");
        }
    }

    fn call_back(&mut self, client: ClientId, message: BlockingCallback, now: Time, effects: &mut Effects) {
        let holder = self.names.get(&LockId(message.handle)).and_then(Named::client);
        assert_eq!(holder, Some(client), "who does not hold it is sent {message:?}");
        self.totals.callbacks += 1;
        self.deadlines.begin(LockId(message.handle), client, now + self.settings.callback_timeout);
        effects.callbacks.push(Callback { client, message });
    }
}

impl Named {
    /// The request that asked for the lock, if the lock is found by it.
    fn request(&self) -> Option<(ClientId, u64, u32)> {
        match self {
            Named::Extent { client, xid, part, .. } => Some((*client, *xid, *part)),
            Named::Flock { client, xid } => Some((*client, *xid, 0)),
            Named::Inode { .. } | Named::LocalExtent { .. } | Named::LocalInodes => None,
        }
    }

    /// The client that holds the lock or sent the request; None for the server's own.
    fn client(&self) -> Option<ClientId> {
        match self {
            Named::Extent { client, .. } | Named::Flock { client, .. } | Named::Inode { client, .. } => Some(*client),
            Named::LocalExtent { .. } | Named::LocalInodes => None,
        }
    }
}

/// Invariants.
impl Namespace {
    /// Checks all invariants; the error names one that does not hold. For simulators: it looks at everything.
    pub fn check(&self) -> Result<(), String> {
        self.inodes.check()?;
        self.flocks.check()?;
        let mut named = 0;
        let mut held = 0;
        let mut called_back = BTreeSet::new();
        let mut ranges = Records::default();
        for (fid, object) in &self.objects {
            object.check().map_err(|what| format!("{fid:?}: {what}"))?;
            ensure(!object.is_empty(), || format!("{fid:?} is empty"))?;
            for id in object.ids() {
                named += 1;
                if let Some(ask) = object.get(id).filter(|ask| !ask.local) {
                    ranges.replace(ask.client, 0, ask.ranges.ranges().len());
                }
                held += usize::from(object.is_granted(id) && object.get(id).is_some_and(|ask| !ask.local));
                called_back.extend(Some(id).filter(|id| object.is_called_back(*id)));
                let name = self.names.get(&id);
                let known = matches!(name, Some(Named::Extent { resource, .. } | Named::LocalExtent { resource }) if resource == fid);
                ensure(known, || format!("{fid:?} has {id:?}, which is {name:?}"))?;
            }
        }
        ensure(ranges == self.ranges, || format!("clients have {ranges:?} ranges, counted are {:?}", self.ranges))?;
        for (id, client, inode, wanted) in self.inodes.client_locks() {
            named += 1;
            held += 1;
            called_back.extend(Some(id).filter(|_| wanted));
            let name = self.names.get(&id);
            ensure(name == Some(&Named::Inode { client, inode }), || {
                format!("{inode:?} has {id:?}, which is {name:?}")
            })?;
        }
        named += self.inodes.operation_count() + self.flocks.waiting_count();
        ensure(named == self.names.len(), || format!("{} names for {named} locks and requests", self.names.len()))?;
        let counted = self.totals.grants - self.totals.cancels;
        ensure(held as u64 == counted, || format!("clients hold {held} locks, counted are {counted}"))?;
        let requests = self.names.iter().filter_map(|(id, named)| Some((named.request()?, *id)));
        let requests: BTreeMap<(ClientId, u64, u32), LockId> = requests.collect();
        ensure(requests == self.by_request, || "requests are indexed wrong".into())?;
        let running: BTreeSet<LockId> = self.deadlines.ids().collect();
        // A deadline that passed is reported once, and the lock stays until its holder is evicted.
        let as_wanted =
            if self.totals.timeouts == 0 { running == called_back } else { running.is_subset(&called_back) };
        ensure(as_wanted, || format!("called back are {called_back:?}, deadlines run for {running:?}"))
    }
}
