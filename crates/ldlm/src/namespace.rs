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
    EnqueueReply { handle: id.0, mode, start, end, ..EnqueueReply::default() }
}

/// The reply that speaks of a flock.
fn told(held: Held) -> EnqueueReply {
    let Held { extent, mode, pid } = held;
    EnqueueReply { mode, start: extent.start, end: extent.end, pid, ..EnqueueReply::default() }
}

/// The reply that says "no lock".
fn nothing() -> EnqueueReply {
    EnqueueReply { mode: LockMode::Nl, ..EnqueueReply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const FILE_A: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const FILE_B: Fid = Fid { seq: 1, oid: 2, ver: 0 };

    /// A namespace, with xids counted and grants collected.
    struct Server {
        namespace: Namespace,
        xid: u64,
        grants: Vec<Grant>,
    }

    impl Server {
        fn new() -> Server {
            Server { namespace: Namespace::new(7 << 20), xid: 0, grants: Vec::new() }
        }

        fn send(&mut self, client: u64, enqueue: Enqueue) -> Outcome {
            self.xid += 1;
            self.send_as(client, self.xid, enqueue)
        }

        fn send_as(&mut self, client: u64, xid: u64, enqueue: Enqueue) -> Outcome {
            self.namespace.enqueue(Request { client: ClientId(client), xid, enqueue }, &mut self.grants)
        }

        fn granted(&mut self) -> Vec<LockId> {
            std::mem::take(&mut self.grants).into_iter().map(|g| g.id).collect()
        }
    }

    fn flock(resource: Fid, mode: LockMode, start: u64, end: u64) -> Enqueue {
        Enqueue { kind: LockKind::Flock, resource, mode, start, end, owner: 1, ..Enqueue::default() }
    }

    fn whole(resource: Fid, mode: LockMode) -> Enqueue {
        flock(resource, mode, 0, u64::MAX)
    }

    fn bsd(mode: LockMode) -> Enqueue {
        Enqueue { flags: enqueue_flags::FLOCK_BSD, ..whole(FILE_A, mode) }
    }

    fn extent(mode: LockMode, start: u64, end: u64) -> Enqueue {
        Enqueue { kind: LockKind::Extent, resource: FILE_A, mode, start, end, ..Enqueue::default() }
    }

    fn waiting(outcome: Outcome) -> LockId {
        match outcome {
            Outcome::Waiting(id) => id,
            other => panic!("should wait: {other:?}"),
        }
    }

    fn done(outcome: Outcome) -> EnqueueReply {
        match outcome {
            Outcome::Done(reply) => reply,
            other => panic!("should be done: {other:?}"),
        }
    }

    #[test]
    fn a_deadlock_over_two_files_and_three_clients_is_refused() {
        let mut s = Server::new();
        let file_c = Fid { oid: 3, ..FILE_A };
        for (client, file) in [(1, FILE_A), (2, FILE_B), (3, file_c)] {
            done(s.send(client, whole(file, LockMode::Pw)));
        }
        waiting(s.send(1, whole(FILE_B, LockMode::Pw)));
        let second = waiting(s.send(2, whole(file_c, LockMode::Pr)));
        assert_eq!(s.send(3, whole(FILE_A, LockMode::Pr)), Outcome::Refused(Errno::EDEADLK));
        let nowait = Enqueue { flags: enqueue_flags::BLOCK_NOWAIT, ..whole(FILE_A, LockMode::Pr) };
        assert_eq!(s.send(3, nowait), Outcome::Refused(Errno::EAGAIN), "who does not wait, does not deadlock");
        done(s.send(3, whole(file_c, LockMode::Nl)));
        assert_eq!(s.granted(), [second], "the refused request left nothing behind");
    }

    #[test]
    fn two_readers_that_both_want_to_write_deadlock() {
        let mut s = Server::new();
        done(s.send(1, whole(FILE_A, LockMode::Pr)));
        done(s.send(2, whole(FILE_A, LockMode::Pr)));
        waiting(s.send(1, whole(FILE_A, LockMode::Pw)));
        assert_eq!(s.send(2, whole(FILE_A, LockMode::Pw)), Outcome::Refused(Errno::EDEADLK));
    }

    #[test]
    fn flock_and_fcntl_do_not_see_each_other_and_conversion_is_not_atomic() {
        let mut s = Server::new();
        done(s.send(1, whole(FILE_A, LockMode::Pw)));
        done(s.send(2, bsd(LockMode::Pr)));
        done(s.send(1, bsd(LockMode::Pr)));
        let convert = Enqueue { flags: enqueue_flags::FLOCK_BSD | enqueue_flags::BLOCK_NOWAIT, ..bsd(LockMode::Pw) };
        assert_eq!(s.send(1, convert), Outcome::Refused(Errno::EAGAIN));
        assert_eq!(s.namespace.lock_count(), 2, "the failed conversion gave up what it had, as flock(2) does");
    }

    #[test]
    fn a_request_sent_again_finds_itself() {
        let mut s = Server::new();
        let first = done(s.send_as(1, 10, extent(LockMode::Pw, 0, u64::MAX)));
        assert_eq!(done(s.send_as(1, 10, extent(LockMode::Pw, 0, u64::MAX))), first);
        let second = waiting(s.send_as(2, 10, extent(LockMode::Pw, 0, 9)));
        assert_eq!(waiting(s.send_as(2, 10, extent(LockMode::Pw, 0, 9))), second);
        assert!(s.namespace.cancel(ClientId(1), LockId(first.handle), &mut s.grants));
        assert_eq!(s.granted(), [second]);
        assert_eq!(done(s.send_as(2, 10, extent(LockMode::Pw, 0, 9))).handle, second.0);
        assert!(!s.namespace.cancel(ClientId(1), second, &mut s.grants), "not its own");
        assert!(s.namespace.cancel(ClientId(2), second, &mut s.grants));
        assert_eq!((s.namespace.lock_count(), s.namespace.resource_count()), (0, 0));
    }

    #[test]
    fn a_client_that_goes_leaves_nothing_and_lets_others_go() {
        let mut s = Server::new();
        done(s.send(1, whole(FILE_A, LockMode::Pw)));
        done(s.send(1, extent(LockMode::Pr, 0, 9)));
        done(s.send(2, whole(FILE_B, LockMode::Pr)));
        let own = waiting(s.send(1, Enqueue { owner: 2, ..whole(FILE_B, LockMode::Pw) }));
        let flock = waiting(s.send(2, whole(FILE_A, LockMode::Pr)));
        let extent = waiting(s.send(2, extent(LockMode::Pw, 5, 5)));
        assert_eq!(s.namespace.client_gone(ClientId(1), &mut s.grants), [own]);
        assert_eq!(s.granted(), [extent, flock]);
        assert_eq!(s.namespace.client_gone(ClientId(2), &mut s.grants), []);
        let n = &s.namespace;
        assert_eq!((n.lock_count(), n.waiting_count(), n.resource_count(), n.by_request.len()), (0, 0, 0, 0));
    }

    #[test]
    fn a_waiting_request_can_be_taken_back_and_a_granted_one_tells() {
        let mut s = Server::new();
        done(s.send(1, whole(FILE_A, LockMode::Pr)));
        let id = waiting(s.send(2, whole(FILE_A, LockMode::Pw)));
        let take_back = Enqueue { flags: enqueue_flags::WITHDRAW, ..whole(FILE_A, LockMode::Pw) };
        let reply = done(s.send(2, take_back.clone()));
        assert_eq!((reply.mode, reply.handle), (LockMode::Nl, id.0));
        assert_eq!(done(s.send(2, take_back)).mode, LockMode::Pw, "nothing waits: granted before");
        assert_eq!(s.namespace.waiting_count(), 0);
    }

    #[test]
    fn test_lock_tells_what_is_in_the_way_and_locks_nothing() {
        let mut s = Server::new();
        done(s.send(1, Enqueue { pid: 77, ..flock(FILE_A, LockMode::Pw, 10, 19) }));
        let ask = |start, end| Enqueue { flags: enqueue_flags::TEST_LOCK, ..flock(FILE_A, LockMode::Pr, start, end) };
        let reply = done(s.send(2, ask(0, 99)));
        assert_eq!((reply.mode, reply.start, reply.end, reply.pid), (LockMode::Pw, 10, 19, 77));
        assert_eq!(done(s.send(2, ask(20, 99))).mode, LockMode::Nl);
        assert_eq!(done(s.send(2, Enqueue { resource: FILE_B, ..ask(0, 9) })).mode, LockMode::Nl);
        assert_eq!((s.namespace.lock_count(), s.namespace.resource_count()), (1, 1));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut s = Server::new();
        assert_eq!(s.send(1, flock(FILE_A, LockMode::Pw, 9, 8)), Outcome::Refused(Errno::EINVAL));
        assert_eq!(s.send(1, whole(FILE_A, LockMode::Group)), Outcome::Refused(Errno::EINVAL));
        assert_eq!(s.send(1, extent(LockMode::Nl, 0, 0)), Outcome::Refused(Errno::EINVAL));
        let inodebits = Enqueue { kind: LockKind::Inodebits, ..whole(FILE_A, LockMode::Pr) };
        assert_eq!(s.send(1, inodebits), Outcome::Refused(Errno::EOPNOTSUPP));
        assert_eq!(s.namespace.resource_count(), 0);
    }

    const OWNERS: usize = 6;

    /// Who waits for whom, closed over chains: `reaches[a][b]` if a waits, perhaps over others, for b.
    fn reaches(s: &Server) -> [[bool; OWNERS]; OWNERS] {
        let mut reaches = [[false; OWNERS]; OWNERS];
        for record in s.namespace.locks.values() {
            let e = &record.request.enqueue;
            let want = Held { extent: Extent { start: e.start, end: e.end }, mode: e.mode, pid: 0 };
            for blocker in s.namespace.blockers(e.resource, record.request.owner(), want) {
                reaches[record.request.client.0 as usize][blocker.client.0 as usize] = true;
            }
        }
        for via in 0..OWNERS {
            for a in 0..OWNERS {
                for b in 0..OWNERS {
                    reaches[a][b] |= reaches[a][via] && reaches[via][b];
                }
            }
        }
        reaches
    }

    #[test]
    fn no_cycle_of_waiting_owners_ever_forms_and_none_is_refused_without_one() {
        let mut refused = 0;
        for seed in 0..150 {
            let mut random = Prng::new(seed);
            let mut s = Server::new();
            for _ in 0..150 {
                let client = random.below(OWNERS as u64);
                // A process that waits does nothing else.
                if s.namespace.by_request.range((ClientId(client), 0)..=(ClientId(client), u64::MAX)).next().is_some() {
                    continue;
                }
                let mode = *random.pick(&[LockMode::Pr, LockMode::Pw, LockMode::Pw, LockMode::Nl]);
                let start = random.below(10);
                let file = *random.pick(&[FILE_A, FILE_B]);
                let want = flock(file, mode, start, start + random.below(4));
                let held = Held { extent: Extent { start, end: want.end }, mode, pid: 0 };
                let owner = Owner { client: ClientId(client), owner: 1 };
                let before = reaches(&s);
                let blockers: Vec<usize> =
                    s.namespace.blockers(file, owner, held).map(|o| o.client.0 as usize).collect();
                let expected = mode != LockMode::Nl && blockers.iter().any(|b| before[*b][client as usize]);
                let outcome = s.send(client, want);
                assert_eq!(outcome == Outcome::Refused(Errno::EDEADLK), expected, "seed {seed}");
                refused += u32::from(expected);
                let after = reaches(&s);
                assert!((0..OWNERS).all(|o| !after[o][o]), "seed {seed}: a cycle");
            }
        }
        assert!(refused > 50, "the test must see deadlocks: {refused}");
    }
}
