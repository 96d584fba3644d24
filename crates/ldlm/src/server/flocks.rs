//! The fcntl and flock locks of all files of one target: waiting requests by id, and deadlocks among fcntl locks.
//! [`FlockSet`] has the rules of one file. Granted flocks have no id: they are kept in their file, under their owner.

use super::records::Records;
use crate::flock::{FlockRequest, FlockSet, Held, Owner};
use crate::invariant::ensure;
use crate::{ClientId, Extent, LockId};
use nacre_base::{Errno, Fid, FxHashMap};
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockMode, enqueue_flags};
use std::collections::{BTreeMap, BTreeSet};

/// Most flocks that one client may hold and wait for. A program that needs more gets ENOLCK. No pool of locks covers
/// flocks, because only the program that holds one can give it up.
pub(super) const CLIENT_MAX: usize = 1 << 20;

/// The flocks of one target.
#[derive(Default)]
pub(super) struct Flocks {
    files: FxHashMap<Fid, File>,
    waiting: BTreeMap<(ClientId, LockId), Enqueue>,
    /// Ranges that each client holds, and requests of it that wait.
    records: Records,
}

#[derive(Default)]
struct File {
    posix: FlockSet,
    bsd: FlockSet,
}

/// Outcome of a flock request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Flocked {
    /// The lock is granted or given up, or the reply names the conflicting lock.
    Done(EnqueueReply),
    /// The request waits, under the id that it was given.
    Waiting,
    /// EAGAIN, EDEADLK, EINVAL or ENOLCK.
    Refused(Errno),
}

/// Waiting requests that are granted, with their replies.
pub(super) type FlockGrants = Vec<(ClientId, LockId, EnqueueReply)>;

impl Flocks {
    /// A client asks for a flock, gives one up (mode NL), or asks for the conflicting lock (TEST_LOCK). `id` names the
    /// request if it waits.
    pub(super) fn enqueue(
        &mut self,
        client: ClientId,
        enqueue: &Enqueue,
        id: LockId,
        grants: &mut FlockGrants,
    ) -> Flocked {
        let Enqueue { mode, flags, pid, resource, .. } = *enqueue;
        let extent = Extent::new(enqueue.start, enqueue.end);
        let Some(extent) = extent.filter(|_| matches!(mode, LockMode::Pr | LockMode::Pw | LockMode::Nl)) else {
            return Flocked::Refused(Errno::EINVAL);
        };
        let (owner, want) = (Owner { client, owner: enqueue.owner }, Held { extent, mode, pid });
        let flocked = if flags & enqueue_flags::TEST_LOCK != 0 {
            let set = self.files.get(&resource).map(|file| file.set(is_bsd(enqueue)));
            Flocked::Done(set.and_then(|set| set.first_conflict(owner, want)).map_or_else(nothing, told))
        } else {
            self.lock(FlockRequest { id, owner, want }, enqueue, grants)
        };
        self.forget_if_empty(resource);
        flocked
    }

    /// Withdraws a request that waits. Requests do not wait for waiting ones, so none is granted.
    pub(super) fn withdraw(&mut self, client: ClientId, id: LockId) {
        let Some(enqueue) = self.waiting.remove(&(client, id)) else { panic!("{id:?} of {client:?} does not wait") };
        self.records.replace(client, 1, 0);
        let file = self.files.get_mut(&enqueue.resource);
        let was_waiting = file.is_some_and(|file| file.set_mut(is_bsd(&enqueue)).withdraw(id));
        assert!(was_waiting, "{id:?} of {client:?} waits for nothing in its file");
        self.forget_if_empty(enqueue.resource);
    }

    /// The client's waiting request that asks for the same lock, and is of the same call: threads of one process are one
    /// owner, and may wait for the same lock.
    pub(super) fn find_waiting(&self, client: ClientId, like: &Enqueue) -> Option<LockId> {
        let key = |e: &Enqueue| (e.resource, e.mode, e.start, e.end, e.owner, e.handle, is_bsd(e));
        self.waiting_of(client).find(|(_, enqueue)| key(enqueue) == key(like)).map(|(id, _)| id)
    }

    /// A client is gone: removes its locks and its waiting requests.
    pub(super) fn client_gone(&mut self, client: ClientId, grants: &mut FlockGrants) {
        let waiting: Vec<LockId> = self.waiting_of(client).map(|(id, _)| id).collect();
        for id in waiting {
            self.withdraw(client, id);
        }
        let held: BTreeSet<Fid> =
            self.files.iter().filter(|(_, file)| file.is_held_by(client)).map(|(fid, _)| *fid).collect();
        for fid in held {
            let Some(file) = self.files.get_mut(&fid) else {
                panic!("{client:?} held flocks of {fid:?}, which is gone")
            };
            let mut counted = |client, before, after| self.records.replace(client, before, after);
            let mut gone = file.posix.client_gone_counted(client, &mut counted);
            gone.extend(file.bsd.client_gone_counted(client, &mut counted));
            self.granted(gone, grants);
            self.forget_if_empty(fid);
        }
        assert_eq!(self.records.of(client), 0, "{client:?} is gone, and still has flocks");
    }

    /// Locks held.
    pub(super) fn held_count(&self) -> usize {
        self.files.values().map(|file| file.posix.held_count() + file.bsd.held_count()).sum()
    }

    /// Requests that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Files with a lock or a request.
    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    fn lock(&mut self, request: FlockRequest, enqueue: &Enqueue, grants: &mut FlockGrants) -> Flocked {
        let FlockRequest { owner, want, .. } = request;
        let (resource, bsd) = (enqueue.resource, is_bsd(enqueue));
        if self.records.of(owner.client) >= CLIENT_MAX && self.may_grow(resource, bsd, owner, want) {
            return Flocked::Refused(Errno::ENOLCK);
        }
        if bsd {
            self.release_before_conversion(resource, owner, want, grants);
        }
        let set = self.files.entry(resource).or_default().set_mut(bsd);
        if want.mode == LockMode::Nl || set.conflicts(owner, want).next().is_none() {
            let freed = set.grant_counted(owner, want, &mut |client, before, after| {
                self.records.replace(client, before, after);
            });
            self.granted(freed, grants);
            return Flocked::Done(told(want));
        }
        if enqueue.flags & enqueue_flags::BLOCK_NOWAIT != 0 {
            return Flocked::Refused(Errno::EAGAIN);
        }
        if !bsd && self.would_deadlock(resource, owner, want) {
            return Flocked::Refused(Errno::EDEADLK);
        }
        self.files.entry(resource).or_default().set_mut(bsd).wait(request);
        self.records.replace(owner.client, 0, 1);
        let before = self.waiting.insert((owner.client, request.id), enqueue.clone());
        assert!(before.is_none(), "two requests of {:?} have the name {:?}", owner.client, request.id);
        Flocked::Waiting
    }

    /// Returns whether the request may leave its client with more records: a lock may, and an unlock does if it splits a
    /// range.
    fn may_grow(&self, resource: Fid, bsd: bool, owner: Owner, want: Held) -> bool {
        let held = self.files.get(&resource).map_or(&[][..], |file| file.set(bsd).held_by(owner));
        let (start, end) = (want.extent.start, want.extent.end);
        want.mode != LockMode::Nl || held.iter().any(|held| held.extent.start < start && end < held.extent.end)
    }

    /// flock(2) converts a lock by giving it up first; others may get in between, even if the conversion then fails.
    fn release_before_conversion(&mut self, resource: Fid, owner: Owner, want: Held, grants: &mut FlockGrants) {
        let Some(file) = self.files.get_mut(&resource) else { return };
        if file.bsd.held_by(owner).iter().any(|held| held.mode != want.mode) {
            let nothing = Held { mode: LockMode::Nl, extent: Extent::ALL, ..want };
            let freed = file.bsd.grant_counted(owner, nothing, &mut |client, before, after| {
                self.records.replace(client, before, after);
            });
            self.granted(freed, grants);
        }
    }

    /// Returns whether an owner that blocks `want` itself waits, perhaps through others, for `owner`.
    fn would_deadlock(&self, resource: Fid, owner: Owner, want: Held) -> bool {
        let mut seen: BTreeSet<Owner> = BTreeSet::new();
        let mut to_visit: Vec<Owner> = self.blockers(resource, owner, want).collect();
        while let Some(blocker) = to_visit.pop() {
            if blocker == owner {
                return true;
            }
            if seen.insert(blocker) {
                let waiting = self.waiting_of(blocker.client).map(|(_, enqueue)| enqueue);
                for enqueue in waiting.filter(|e| !is_bsd(e) && e.owner == blocker.owner) {
                    to_visit.extend(self.blockers(enqueue.resource, blocker, wanted(enqueue)));
                }
            }
        }
        false
    }

    fn blockers(&self, resource: Fid, owner: Owner, want: Held) -> impl Iterator<Item = Owner> + '_ {
        let file = self.files.get(&resource);
        file.into_iter().flat_map(move |file| file.posix.conflicts(owner, want)).map(|(other, _)| other)
    }

    fn waiting_of(&self, client: ClientId) -> impl Iterator<Item = (LockId, &Enqueue)> + '_ {
        let of_client = self.waiting.range((client, LockId(0))..=(client, LockId(u64::MAX)));
        of_client.map(|((_, id), enqueue)| (*id, enqueue))
    }

    /// Waiting requests have become locks, which have no ids.
    fn granted(&mut self, requests: Vec<FlockRequest>, grants: &mut FlockGrants) {
        for FlockRequest { id, owner, want } in requests {
            let waited = self.waiting.remove(&(owner.client, id));
            assert!(waited.is_some(), "{id:?} of {owner:?} is granted and did not wait");
            self.records.replace(owner.client, 1, 0);
            grants.push((owner.client, id, told(want)));
        }
    }

    fn forget_if_empty(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(|file| file.posix.is_empty() && file.bsd.is_empty()) {
            self.files.remove(&fid);
        }
    }
}

impl Flocks {
    /// Checks all invariants; the error names one that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut waiting = 0;
        let mut records = Records::default();
        self.waiting.keys().for_each(|(client, _)| records.replace(*client, 0, 1));
        for (fid, file) in &self.files {
            file.posix.held().chain(file.bsd.held()).for_each(|(owner, _)| records.replace(owner.client, 0, 1));
            ensure(!file.posix.is_empty() || !file.bsd.is_empty(), || format!("{fid:?} is kept without flocks"))?;
            for (set, bsd) in [(&file.posix, false), (&file.bsd, true)] {
                set.check().map_err(|what| format!("{fid:?}: {what}"))?;
                waiting += set.waiting().len();
                for request in set.waiting() {
                    let known = self.waiting.get(&(request.owner.client, request.id));
                    let fits =
                        known.is_some_and(|e| e.resource == *fid && is_bsd(e) == bsd && wanted(e) == request.want);
                    ensure(fits, || format!("{fid:?} has {request:?}, which is known as {known:?}"))?;
                }
            }
        }
        ensure(records == self.records, || format!("clients have {records:?}, not {:?}", self.records))?;
        ensure(waiting == self.waiting.len(), || format!("{waiting} flock requests wait, not {}", self.waiting.len()))
    }
}

impl File {
    fn set(&self, is_bsd: bool) -> &FlockSet {
        if is_bsd { &self.bsd } else { &self.posix }
    }

    fn set_mut(&mut self, is_bsd: bool) -> &mut FlockSet {
        if is_bsd { &mut self.bsd } else { &mut self.posix }
    }

    fn is_held_by(&self, client: ClientId) -> bool {
        self.posix.is_held_by(client) || self.bsd.is_held_by(client)
    }
}

fn is_bsd(enqueue: &Enqueue) -> bool {
    enqueue.flags & enqueue_flags::FLOCK_BSD != 0
}

fn wanted(enqueue: &Enqueue) -> Held {
    let Enqueue { start, end, mode, pid, .. } = *enqueue;
    Held { extent: Extent { start, end }, mode, pid }
}

/// The reply that describes a flock.
fn told(held: Held) -> EnqueueReply {
    let Held { extent, mode, pid } = held;
    EnqueueReply { mode, start: extent.start, end: extent.end, pid, ..EnqueueReply::default() }
}

/// The reply that says "no lock".
pub(super) fn nothing() -> EnqueueReply {
    EnqueueReply { mode: LockMode::Nl, ..EnqueueReply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const FILE_A: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const FILE_B: Fid = Fid { seq: 1, oid: 2, ver: 0 };

    fn owner(client: u64) -> Owner {
        Owner { client: ClientId(client), owner: 1 }
    }

    const OWNERS: usize = 6;

    /// Waits among owners, closed over chains: `reaches[a][b]` if a waits, perhaps through others, for b.
    fn reaches(flocks: &Flocks) -> [[bool; OWNERS]; OWNERS] {
        let mut reaches = [[false; OWNERS]; OWNERS];
        for ((client, _), e) in &flocks.waiting {
            for blocker in flocks.blockers(e.resource, owner(client.0), wanted(e)) {
                reaches[client.0 as usize][blocker.client.0 as usize] = true;
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

    /// Nothing bounded the flocks of a client, which could fill the server's memory with them.
    #[test]
    fn a_client_has_only_so_many_flocks() {
        let mut flocks = Flocks::default();
        let file = |oid: usize| Fid { seq: 1, oid: oid as u32, ver: 0 };
        let ask = |flocks: &mut Flocks, client, resource, mode, start, end| {
            let enqueue = Enqueue { resource, mode, start, end, owner: 1, ..Enqueue::default() };
            flocks.enqueue(ClientId(client), &enqueue, LockId(client), &mut Vec::new())
        };
        let is_done = |flocked: &Flocked| matches!(flocked, Flocked::Done(_));
        for oid in 1..=CLIENT_MAX {
            let flocked = ask(&mut flocks, 1, file(oid), LockMode::Pw, 0, 9);
            assert!(is_done(&flocked), "{oid}: {flocked:?}");
        }
        let refused = Flocked::Refused(Errno::ENOLCK);
        let (more, another) = (file(CLIENT_MAX + 1), file(CLIENT_MAX + 2));
        assert_eq!(ask(&mut flocks, 1, more, LockMode::Pr, 0, 9), refused);
        assert_eq!(ask(&mut flocks, 1, file(1), LockMode::Nl, 4, 4), refused, "an unlock that splits a range");
        assert!(is_done(&ask(&mut flocks, 2, more, LockMode::Pw, 0, 9)), "another client has room of its own");
        assert!(is_done(&ask(&mut flocks, 1, file(1), LockMode::Nl, 0, 9)));
        assert_eq!(ask(&mut flocks, 1, more, LockMode::Pr, 0, 9), Flocked::Waiting);
        assert_eq!(ask(&mut flocks, 1, another, LockMode::Pr, 0, 9), refused, "a request that waits counts too");
        flocks.client_gone(ClientId(1), &mut Vec::new());
        assert_eq!((flocks.held_count(), flocks.waiting_count(), flocks.check()), (1, 0, Ok(())));
    }

    #[test]
    fn no_cycle_of_waiting_owners_ever_forms_and_none_is_refused_without_one() {
        let mut refused = 0;
        for seed in 0..150 {
            let mut random = Prng::new(seed);
            let mut flocks = Flocks::default();
            for id in 1..=150 {
                let client = random.below(OWNERS as u64);
                // A process that waits does nothing else.
                if flocks.waiting_of(ClientId(client)).next().is_some() {
                    continue;
                }
                let mode = *random.pick(&[LockMode::Pr, LockMode::Pw, LockMode::Pw, LockMode::Nl]);
                let (start, resource) = (random.below(10), *random.pick(&[FILE_A, FILE_B]));
                let end = start + random.below(4);
                let want = Enqueue { resource, mode, start, end, owner: 1, ..Enqueue::default() };
                let before = reaches(&flocks);
                let in_the_way = flocks.blockers(resource, owner(client), wanted(&want));
                let would = in_the_way.into_iter().any(|b| before[b.client.0 as usize][client as usize]);
                let expected = mode != LockMode::Nl && would;
                let flocked = flocks.enqueue(ClientId(client), &want, LockId(id), &mut Vec::new());
                assert_eq!(flocked == Flocked::Refused(Errno::EDEADLK), expected, "seed {seed}");
                refused += u32::from(expected);
                assert_eq!(flocks.check(), Ok(()), "seed {seed}");
                let after = reaches(&flocks);
                assert!((0..OWNERS).all(|o| !after[o][o]), "seed {seed}: a cycle");
            }
        }
        assert!(refused > 50, "the test must see deadlocks: {refused}");
    }
}
