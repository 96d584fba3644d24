//! All locks of one target: resources by FID, requests in, grants out. Also what concerns several resources: the locks
//! of one client, a request that is sent again, deadlocks among fcntl locks.

use crate::extent::{ExtentLock, ExtentQueue};
use crate::flock::{FlockRequest, FlockSet, Held, Owner};
use crate::{ClientId, Extent, LockId};
use nacre_base::{Errno, Fid, FxHashMap};
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags};
use std::collections::{BTreeMap, BTreeSet};

/// An enqueue and who sent it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client.
    pub client: ClientId,
    /// The RPC's number: the same request again has the same one.
    pub xid: u64,
    /// What is asked for.
    pub enqueue: Enqueue,
}

/// What becomes of an enqueue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Answer at once: the lock is granted, or what was asked for is told.
    Done(EnqueueReply),
    /// Answer when a [`Grant`] with this id comes.
    Waiting(LockId),
    /// Answer with an error: EAGAIN (would wait), EDEADLK, EINVAL.
    Refused(Errno),
}

/// A waiting request is granted: send this reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Which request.
    pub id: LockId,
    /// Its reply.
    pub reply: EnqueueReply,
}

/// The locks of one target.
pub struct Namespace {
    resources: FxHashMap<Fid, Resource>,
    /// Extent locks, granted or waiting, and flock requests that wait. Granted flocks have no name: they are in their
    /// resource, under their owner.
    locks: BTreeMap<LockId, Record>,
    by_request: BTreeMap<(ClientId, u64), LockId>,
    last_id: u64,
}

#[derive(Default)]
struct Resource {
    extents: ExtentQueue,
    posix: FlockSet,
    bsd: FlockSet,
}

struct Record {
    request: Request,
    granted: bool,
}

impl Namespace {
    /// No locks. Ids begin above `seed`: a random one keeps handles of an earlier start from meaning anything.
    pub fn new(seed: u64) -> Namespace {
        Namespace {
            resources: FxHashMap::default(),
            locks: BTreeMap::new(),
            by_request: BTreeMap::new(),
            last_id: seed >> 8,
        }
    }

    /// A client asks for a lock, gives up a flock (mode NL), asks what is in the way (TEST_LOCK), or takes back a
    /// request of its own that waits (WITHDRAW). Pushes to `grants` the requests that go because of it.
    pub fn enqueue(&mut self, request: Request, grants: &mut Vec<Grant>) -> Outcome {
        if let Some(id) = self.by_request.get(&(request.client, request.xid)) {
            let record = &self.locks[id];
            return if record.granted { Outcome::Done(reply_of(*id, record)) } else { Outcome::Waiting(*id) };
        }
        let Some(extent) = Extent::new(request.enqueue.start, request.enqueue.end) else {
            return Outcome::Refused(Errno::EINVAL);
        };
        if request.enqueue.flags & enqueue_flags::WITHDRAW != 0 {
            return Outcome::Done(self.withdraw_like(&request, grants));
        }
        let outcome = match request.enqueue.kind {
            LockKind::Extent => self.enqueue_extent(&request, extent),
            LockKind::Flock => self.enqueue_flock(&request, extent, grants),
            LockKind::Inodebits => Outcome::Refused(Errno::EOPNOTSUPP),
        };
        self.drop_if_empty(request.enqueue.resource);
        outcome
    }

    /// A client gives a lock back, or takes back a request that waits; whether it has such a one.
    pub fn cancel(&mut self, client: ClientId, id: LockId, grants: &mut Vec<Grant>) -> bool {
        let own = self.locks.get(&id).is_some_and(|r| r.request.client == client);
        if own {
            self.remove(id, grants);
        }
        own
    }

    /// A client is gone: all its locks go, and its waiting requests, whose ids are returned.
    pub fn client_gone(&mut self, client: ClientId, grants: &mut Vec<Grant>) -> Vec<LockId> {
        let of_client = self.by_request.range((client, 0)..=(client, u64::MAX));
        let ids: Vec<LockId> = of_client.map(|(_, id)| *id).collect();
        let waiting = ids.iter().copied().filter(|id| !self.locks[id].granted).collect();
        for id in ids {
            self.remove(id, grants);
        }
        let held: BTreeSet<Fid> = self.resources.iter().filter(|(_, r)| r.flocks_of(client)).map(|(f, _)| *f).collect();
        for fid in held {
            let Some(resource) = self.resources.get_mut(&fid) else { continue };
            let mut gone = resource.posix.client_gone(client);
            gone.extend(resource.bsd.client_gone(client));
            self.granted_flocks(gone, grants);
            self.drop_if_empty(fid);
        }
        waiting
    }

    /// Locks granted.
    pub fn lock_count(&self) -> usize {
        let flocks: usize = self.resources.values().map(|r| r.posix.held_count() + r.bsd.held_count()).sum();
        flocks + self.locks.values().filter(|r| r.granted).count()
    }

    /// Requests that wait.
    pub fn waiting_count(&self) -> usize {
        self.locks.values().filter(|r| !r.granted).count()
    }

    /// Resources with a lock or a request.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    fn enqueue_extent(&mut self, request: &Request, extent: Extent) -> Outcome {
        let Enqueue { resource, mode, flags, .. } = request.enqueue;
        if !matches!(mode, LockMode::Pr | LockMode::Pw) {
            return Outcome::Refused(Errno::EINVAL);
        }
        let id = self.next_id();
        let lock = ExtentLock { id, mode, extent };
        let queue = &mut self.resources.entry(resource).or_default().extents;
        let conflict = queue.conflict(&lock).copied();
        if flags & enqueue_flags::TEST_LOCK != 0 {
            let found =
                conflict.map(|l| EnqueueReply { mode: l.mode, start: l.extent.start, end: l.extent.end, ..nothing() });
            return Outcome::Done(found.unwrap_or_else(nothing));
        }
        if conflict.is_some() && flags & enqueue_flags::BLOCK_NOWAIT != 0 {
            return Outcome::Refused(Errno::EAGAIN);
        }
        let granted = queue.enqueue(lock);
        let record = self.remember(id, request, granted);
        if granted { Outcome::Done(reply_of(id, record)) } else { Outcome::Waiting(id) }
    }

    fn enqueue_flock(&mut self, request: &Request, extent: Extent, grants: &mut Vec<Grant>) -> Outcome {
        let Enqueue { mode, flags, pid, resource, .. } = request.enqueue;
        if !matches!(mode, LockMode::Pr | LockMode::Pw | LockMode::Nl) {
            return Outcome::Refused(Errno::EINVAL);
        }
        let (owner, want) = (request.owner(), Held { extent, mode, pid });
        let is_bsd = flags & enqueue_flags::FLOCK_BSD != 0;
        if flags & enqueue_flags::TEST_LOCK != 0 {
            let set = self.resources.entry(resource).or_default().flocks(is_bsd);
            let found = set.first_conflict(owner, want).map(told);
            return Outcome::Done(found.unwrap_or_else(nothing));
        }
        if is_bsd {
            self.release_before_conversion(request, want, grants);
        }
        let set = self.resources.entry(resource).or_default().flocks(is_bsd);
        if mode == LockMode::Nl || set.conflicts(owner, want).next().is_none() {
            let freed = set.grant(owner, want);
            self.granted_flocks(freed, grants);
            return Outcome::Done(told(want));
        }
        if flags & enqueue_flags::BLOCK_NOWAIT != 0 {
            return Outcome::Refused(Errno::EAGAIN);
        }
        if !is_bsd && self.would_deadlock(resource, owner, want) {
            return Outcome::Refused(Errno::EDEADLK);
        }
        let id = self.next_id();
        self.resources.entry(resource).or_default().flocks(is_bsd).wait(FlockRequest { id, owner, want });
        self.remember(id, request, false);
        Outcome::Waiting(id)
    }

    /// flock(2) converts a lock by giving it up first; others may get in between, even if the conversion then fails.
    fn release_before_conversion(&mut self, request: &Request, want: Held, grants: &mut Vec<Grant>) {
        let owner = request.owner();
        let Some(resource) = self.resources.get_mut(&request.enqueue.resource) else { return };
        if resource.bsd.held_by(owner).iter().any(|held| held.mode != want.mode) {
            let freed = resource.bsd.grant(owner, Held { mode: LockMode::Nl, extent: Extent::ALL, ..want });
            self.granted_flocks(freed, grants);
        }
    }

    /// Whether an owner that holds what `owner` would wait for itself waits, perhaps over others, for `owner`.
    fn would_deadlock(&self, resource: Fid, owner: Owner, want: Held) -> bool {
        let mut seen: BTreeSet<Owner> = BTreeSet::new();
        let mut to_visit: Vec<Owner> = self.blockers(resource, owner, want).collect();
        while let Some(blocker) = to_visit.pop() {
            if blocker == owner {
                return true;
            }
            if seen.insert(blocker) {
                for record in self.waiting_fcntl_of(blocker) {
                    let Enqueue { resource, start, end, mode, pid, .. } = record.request.enqueue;
                    to_visit.extend(self.blockers(
                        resource,
                        blocker,
                        Held { extent: Extent { start, end }, mode, pid },
                    ));
                }
            }
        }
        false
    }

    fn blockers(&self, resource: Fid, owner: Owner, want: Held) -> impl Iterator<Item = Owner> + '_ {
        let resource = self.resources.get(&resource);
        resource.into_iter().flat_map(move |r| r.posix.conflicts(owner, want)).map(|(other, _)| other)
    }

    fn waiting_fcntl_of(&self, owner: Owner) -> impl Iterator<Item = &Record> + '_ {
        let of_client = self.by_request.range((owner.client, 0)..=(owner.client, u64::MAX));
        of_client.map(|(_, id)| &self.locks[id]).filter(move |r| {
            let e = &r.request.enqueue;
            !r.granted && e.kind == LockKind::Flock && e.flags & enqueue_flags::FLOCK_BSD == 0 && e.owner == owner.owner
        })
    }

    /// Takes back the waiting request that asks for the same as `request`. The reply's mode is NL then; it is the mode
    /// asked for if nothing waited, for then the request was granted before (or never came).
    fn withdraw_like(&mut self, request: &Request, grants: &mut Vec<Grant>) -> EnqueueReply {
        let of_client = self.by_request.range((request.client, 0)..=(request.client, u64::MAX));
        let same = |r: &Record| {
            let (a, b) = (&r.request.enqueue, &request.enqueue);
            let key = |e: &Enqueue| (e.kind, e.resource, e.mode, e.start, e.end, e.owner);
            !r.granted && key(a) == key(b)
        };
        let found = of_client.map(|(_, id)| *id).find(|id| same(&self.locks[id]));
        match found {
            Some(id) => {
                self.remove(id, grants);
                EnqueueReply { handle: id.0, ..nothing() }
            }
            None => EnqueueReply { mode: request.enqueue.mode, ..nothing() },
        }
    }

    fn remove(&mut self, id: LockId, grants: &mut Vec<Grant>) {
        let Some(record) = self.locks.remove(&id) else { return };
        self.by_request.remove(&(record.request.client, record.request.xid));
        let Enqueue { resource: fid, kind, flags, .. } = record.request.enqueue;
        let Some(resource) = self.resources.get_mut(&fid) else { return };
        match kind {
            LockKind::Flock => drop(resource.flocks(flags & enqueue_flags::FLOCK_BSD != 0).withdraw(id)),
            LockKind::Extent | LockKind::Inodebits => {
                for lock in resource.extents.remove(id) {
                    if let Some(record) = self.locks.get_mut(&lock.id) {
                        record.granted = true;
                        grants.push(Grant { id: lock.id, reply: reply_of(lock.id, record) });
                    }
                }
            }
        }
        self.drop_if_empty(fid);
    }

    /// Waiting flock requests became locks, which have no names.
    fn granted_flocks(&mut self, requests: Vec<FlockRequest>, grants: &mut Vec<Grant>) {
        for request in requests {
            if let Some(record) = self.locks.remove(&request.id) {
                self.by_request.remove(&(record.request.client, record.request.xid));
            }
            grants.push(Grant { id: request.id, reply: told(request.want) });
        }
    }

    fn remember(&mut self, id: LockId, request: &Request, granted: bool) -> &Record {
        self.by_request.insert((request.client, request.xid), id);
        self.locks.entry(id).or_insert(Record { request: request.clone(), granted })
    }

    fn next_id(&mut self) -> LockId {
        self.last_id += 1;
        LockId(self.last_id)
    }

    fn drop_if_empty(&mut self, fid: Fid) {
        if self.resources.get(&fid).is_some_and(Resource::is_empty) {
            self.resources.remove(&fid);
        }
    }
}

impl Request {
    fn owner(&self) -> Owner {
        Owner { client: self.client, owner: self.enqueue.owner }
    }
}

impl Resource {
    fn flocks(&mut self, is_bsd: bool) -> &mut FlockSet {
        if is_bsd { &mut self.bsd } else { &mut self.posix }
    }

    fn flocks_of(&self, client: ClientId) -> bool {
        self.posix.is_held_by(client) || self.bsd.is_held_by(client)
    }

    fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.posix.is_empty() && self.bsd.is_empty()
    }
}

/// The reply that grants an extent lock.
fn reply_of(id: LockId, record: &Record) -> EnqueueReply {
    let Enqueue { mode, start, end, .. } = record.request.enqueue;
    EnqueueReply { handle: id.0, mode, start, end, pid: 0 }
}

/// The reply that speaks of a flock.
fn told(held: Held) -> EnqueueReply {
    EnqueueReply { handle: 0, mode: held.mode, start: held.extent.start, end: held.extent.end, pid: held.pid }
}

/// The reply that says "no lock".
fn nothing() -> EnqueueReply {
    EnqueueReply { mode: LockMode::Nl, ..EnqueueReply::default() }
}
