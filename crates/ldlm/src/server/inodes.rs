//! Inode locks: clients hold them, mode PR, on bits of inodes whose attributes, names or layout they cache, at most one
//! per client and inode; the server takes them, mode EX, on the bits that an operation is about to change.
//!
//! A client's lock is granted only if no operation conflicts with it, so clients never wait. An operation waits until
//! the other clients' locks on all its bits are gone. While it waits, no new locks are granted on these bits, so the
//! locks that block it only become fewer; and it holds nothing that others could wait for. So there is no deadlock, and
//! no request starves. Two operations do not wait for each other: the server orders those itself, and a lock between
//! them would only make every create in a directory wait for all others. The locks of the client on whose behalf the
//! operation runs stay.

use super::stages::{Event, STAGES, Stage};
use crate::invariant::ensure;
use crate::{ClientId, LockId};
use nacre_base::{Fid, FxHashMap};
use nacre_wire::ldlm::inode_bits;
use std::collections::{BTreeMap, BTreeSet};

/// The inode locks of one target.
#[derive(Default, Debug)]
pub(super) struct Inodes {
    inodes: FxHashMap<Fid, Inode>,
    /// Operations, waiting and under way.
    changes: FxHashMap<LockId, Change>,
    /// Number of operations so far. Each operation's turn is this number when it arrived: ids have no order.
    arrivals: u64,
    of_client: BTreeSet<(ClientId, Fid)>,
}

#[derive(Default, Debug)]
struct Inode {
    /// Locks of clients, ascending by client.
    held: Vec<Held>,
    /// Number of clients that hold each bit.
    holders: [u32; BITS],
    /// Operations that change the inode, waiting and under way, by turn: on whose behalf, and which bits.
    changes: BTreeMap<(u64, LockId), (ClientId, u64)>,
}

/// A client's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    client: ClientId,
    id: LockId,
    bits: u64,
    called_back: bool,
}

impl Held {
    fn stage(&self) -> Stage {
        if self.called_back { Stage::CalledBack } else { Stage::Granted }
    }

    fn step(&mut self, event: Event) {
        self.called_back = STAGES.next(self.stage(), event) == Stage::CalledBack;
    }
}

#[derive(Debug)]
struct Change {
    client: ClientId,
    turn: u64,
    wants: Vec<(Fid, u64)>,
    /// Client locks that block it, over all its inodes; it waits until there are none.
    blockers: usize,
}

/// A lock to be called back, with the bits that are wanted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// The holder.
    pub(super) client: ClientId,
    /// Lock of the holder.
    pub(super) id: LockId,
    /// Inode of the lock.
    pub(super) inode: Fid,
    /// Bits that are wanted.
    pub(super) bits: u64,
}

/// Consequences of a change.
#[derive(Default, Debug)]
pub(super) struct InodeChanges {
    /// Operations that can run now, in the order of their arrival.
    pub(super) granted: Vec<LockId>,
    /// Locks to be called back now.
    pub(super) called_back: Vec<Wanted>,
}

/// Bits of a lock that are left after some were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// All that it had. If the lock was called back, it still is.
    All,
    /// Fewer bits than before.
    Some,
    /// None: the lock is gone.
    Nothing,
}

/// A client's new or extended lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Granted {
    /// Id of the lock.
    pub(super) id: LockId,
    /// Those of the requested bits that the lock has.
    pub(super) bits: u64,
    /// True if the client had no lock on this inode before.
    pub(super) is_new: bool,
}

impl Inodes {
    /// Grants the client those of `bits` that no operation for another client changes or waits for. `new_id` is called
    /// if it needs a new lock. A lock that is called back gets no more bits: the client may be giving it back.
    pub(super) fn grant(
        &mut self,
        client: ClientId,
        fid: Fid,
        bits: u64,
        new_id: impl FnOnce() -> LockId,
    ) -> Option<Granted> {
        let inode = self.inodes.get(&fid);
        let others = inode.into_iter().flat_map(|inode| inode.changes.values()).filter(|(owner, _)| *owner != client);
        let bits = others.fold(bits & inode_bits::ALL, |bits, (_, changed)| bits & !changed);
        if bits == 0 {
            return None;
        }
        let inode = self.inodes.entry(fid).or_default();
        let (at, is_new) = match inode.find(client) {
            Ok(at) if inode.held[at].called_back => return None,
            Ok(at) => (at, false),
            Err(at) => {
                inode.held.insert(at, Held { client, id: new_id(), bits: 0, called_back: false });
                let is_first = self.of_client.insert((client, fid));
                assert!(is_first, "{client:?} has a lock on {fid:?} that the inode does not know");
                (at, true)
            }
        };
        let id = inode.held[at].id;
        inode.held[at].step(Event::Convert);
        inode.set_bits(at, inode.held[at].bits | bits);
        Some(Granted { id, bits, is_new })
    }

    /// The client's lock on the inode keeps only `keep` of its bits; a lock that keeps none is removed.
    pub(super) fn keep_bits(&mut self, client: ClientId, fid: Fid, keep: u64, changes: &mut InodeChanges) -> Kept {
        let Some((inode, at)) =
            self.inodes.get_mut(&fid).and_then(|inode| inode.find(client).ok().map(|at| (inode, at)))
        else {
            panic!("{client:?} gives back a lock on {fid:?}, and has none");
        };
        let id = inode.held[at].id;
        let before = inode.held[at].bits;
        let bits = before & keep;
        if bits == before {
            return Kept::All;
        }
        inode.set_bits(at, bits);
        inode.held[at].step(if bits == 0 { Event::End } else { Event::Convert });
        let mut still_wanted = 0;
        for ((_, change), (owner, wanted)) in &inode.changes {
            if *owner == client || wanted & before == 0 {
                continue;
            }
            if wanted & bits != 0 {
                still_wanted |= wanted & bits;
            } else {
                let operation = self.changes.get_mut(change).filter(|operation| operation.blockers > 0);
                let Some(operation) = operation else {
                    panic!("{change:?} waits for a lock on {fid:?} and counts none")
                };
                operation.blockers -= 1;
                if operation.blockers == 0 {
                    changes.granted.push(*change);
                }
            }
        }
        if still_wanted != 0 {
            inode.held[at].step(Event::CallBack);
            changes.called_back.push(Wanted { client, id, inode: fid, bits: still_wanted });
        }
        if bits == 0 {
            inode.held.remove(at);
            let was_known = self.of_client.remove(&(client, fid));
            assert!(was_known, "{client:?} had a lock on {fid:?} that would have outlived it");
            self.forget_if_empty(fid);
            return Kept::Nothing;
        }
        Kept::Some
    }

    /// Takes EX on all of `wants` for an operation, or lets it wait. Returns whether it is granted.
    pub(super) fn lock(
        &mut self,
        id: LockId,
        client: ClientId,
        wants: &[(Fid, u64)],
        called_back: &mut Vec<Wanted>,
    ) -> bool {
        let wants = merged(wants);
        self.arrivals += 1;
        let turn = self.arrivals;
        let mut blockers = 0;
        for (fid, bits) in &wants {
            let inode = self.inodes.entry(*fid).or_default();
            inode.changes.insert((turn, id), (client, *bits));
            if !inode.is_held_by_others(client, *bits) {
                continue;
            }
            for held in inode.held.iter_mut().filter(|held| held.client != client && held.bits & bits != 0) {
                blockers += 1;
                if !held.called_back {
                    held.step(Event::CallBack);
                    called_back.push(Wanted { client: held.client, id: held.id, inode: *fid, bits: held.bits & bits });
                }
            }
        }
        let before = self.changes.insert(id, Change { client, turn, wants, blockers });
        assert!(before.is_none(), "two operations have the name {id:?}");
        blockers == 0
    }

    /// Ends an operation's locks, or withdraws them while they wait.
    pub(super) fn unlock(&mut self, id: LockId) {
        let Some(change) = self.changes.remove(&id) else { panic!("{id:?} is no operation") };
        for (fid, bits) in change.wants {
            let ended = self.inodes.get_mut(&fid).and_then(|inode| inode.changes.remove(&(change.turn, id)));
            assert_eq!(ended, Some((change.client, bits)), "{id:?} ends and is not what {fid:?} knows");
            self.forget_if_empty(fid);
        }
    }

    /// The inodes on which the client has locks, and the locks.
    pub(super) fn of_client(&self, client: ClientId) -> Vec<(Fid, LockId)> {
        let fids = self.of_client.range((client, Fid::ZERO)..).take_while(|(owner, _)| *owner == client);
        fids.filter_map(|(_, fid)| self.held(client, *fid).map(|held| (*fid, held.id))).collect()
    }

    /// Returns whether the client has any lock.
    pub(super) fn has_client(&self, client: ClientId) -> bool {
        self.of_client.range((client, Fid::ZERO)..).next().is_some_and(|(owner, _)| *owner == client)
    }

    /// Operations that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.changes.values().filter(|change| change.blockers > 0).count()
    }

    /// Operations, waiting and under way.
    pub(super) fn operation_count(&self) -> usize {
        self.changes.len()
    }

    /// Inodes with a lock or an operation.
    pub(super) fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    fn held(&self, client: ClientId, fid: Fid) -> Option<&Held> {
        let inode = self.inodes.get(&fid)?;
        inode.find(client).ok().map(|at| &inode.held[at])
    }

    fn forget_if_empty(&mut self, fid: Fid) {
        if self.inodes.get(&fid).is_some_and(|inode| inode.held.is_empty() && inode.changes.is_empty()) {
            self.inodes.remove(&fid);
        }
    }
}

/// Number of bits that an inode lock may have.
const BITS: usize = 8;
const _: () = assert!(inode_bits::ALL < 1 << BITS, "every bit has its counter");

impl Inode {
    /// Index of the client's lock, or the place where it belongs.
    fn find(&self, client: ClientId) -> Result<usize, usize> {
        self.held.binary_search_by_key(&client, |held| held.client)
    }

    fn set_bits(&mut self, at: usize, bits: u64) {
        assert_eq!(bits & !inode_bits::ALL, 0, "bits {bits:#x} have no counter");
        let before = std::mem::replace(&mut self.held[at].bits, bits);
        for (bit, holders) in self.holders.iter_mut().enumerate() {
            *holders += (bits >> bit & 1) as u32;
            let gone = (before >> bit & 1) as u32;
            assert!(*holders >= gone, "a holder of bit {bit} was not counted: {:?}", self.held[at]);
            *holders -= gone;
        }
        let (most, held) = (self.holders.iter().max(), self.held.len());
        assert!(most <= Some(&(held as u32)), "{:?} hold the bits, of {held} clients", self.holders);
    }

    /// Returns whether a client other than this one holds one of the bits.
    fn is_held_by_others(&self, client: ClientId, bits: u64) -> bool {
        let own = self.find(client).map_or(0, |at| self.held[at].bits);
        self.holders.iter().enumerate().any(|(bit, holders)| bits >> bit & 1 == 1 && *holders > (own >> bit & 1) as u32)
    }
}

/// Merges the entries of each inode into one, with all its bits.
fn merged(wants: &[(Fid, u64)]) -> Vec<(Fid, u64)> {
    let mut merged = wants.to_vec();
    merged.sort_unstable();
    merged.dedup_by(|next, first| {
        let same = next.0 == first.0;
        if same {
            first.1 |= next.1;
        }
        same
    });
    merged
}

impl Inodes {
    /// Checks all invariants; the error names one that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut of_client = BTreeSet::new();
        let mut changes = 0;
        for (fid, inode) in &self.inodes {
            ensure(!inode.held.is_empty() || !inode.changes.is_empty(), || format!("{fid:?} is empty"))?;
            changes += inode.changes.len();
            let mut holders = [0; BITS];
            for held in &inode.held {
                ensure(of_client.insert((held.client, *fid)), || format!("two locks of one client: {fid:?} {held:?}"))?;
                ensure(held.bits != 0, || format!("a lock on nothing: {fid:?} {held:?}"))?;
                holders.iter_mut().enumerate().for_each(|(bit, n)| *n += (held.bits >> bit & 1) as u32);
                let wanted = inode.changes.values().any(|(owner, bits)| *owner != held.client && held.bits & bits != 0);
                ensure(!wanted || held.called_back, || format!("not called back: {fid:?} {held:?}"))?;
            }
            ensure(inode.held.is_sorted_by_key(|held| held.client), || format!("{fid:?} is not in order"))?;
            ensure(holders == inode.holders, || format!("{fid:?} counts its holders wrong"))?;
        }
        ensure(of_client == self.of_client, || "clients' inodes are indexed wrong".into())?;
        ensure(changes == self.changes.values().map(|c| c.wants.len()).sum(), || "operations left behind".into())?;
        self.changes.iter().try_for_each(|(id, change)| self.check_change(*id, change))
    }

    fn check_change(&self, id: LockId, change: &Change) -> Result<(), String> {
        let mut blockers = 0;
        for (fid, bits) in &change.wants {
            let inode = self
                .inodes
                .get(fid)
                .filter(|inode| inode.changes.get(&(change.turn, id)) == Some(&(change.client, *bits)));
            let inode = inode.ok_or_else(|| format!("{fid:?} does not know of {id:?}"))?;
            blockers += inode.held.iter().filter(|held| held.client != change.client && held.bits & bits != 0).count();
        }
        ensure(blockers == change.blockers, || format!("{id:?} {change:?} has {blockers} in its way"))
    }

    /// Ids, holders, inodes and state (called back) of all client locks.
    pub(super) fn client_locks(&self) -> impl Iterator<Item = (LockId, ClientId, Fid, bool)> + '_ {
        let inodes = self.inodes.iter();
        inodes.flat_map(|(fid, inode)| inode.held.iter().map(|held| (held.id, held.client, *fid, held.called_back)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid { seq: 1, oid: 1, ver: 0 };

    #[test]
    #[should_panic(expected = "waits for a lock")]
    fn what_an_operation_waits_for_is_counted() {
        let mut inodes = Inodes::default();
        assert!(inodes.grant(ClientId(1), FILE, 1, || LockId(1)).is_some());
        assert!(!inodes.lock(LockId(2), ClientId(2), &[(FILE, 1)], &mut Vec::new()));
        inodes.changes.get_mut(&LockId(2)).unwrap().blockers = 0;
        assert!(inodes.check().is_err());
        inodes.keep_bits(ClientId(1), FILE, 0, &mut InodeChanges::default());
    }

    /// Ids became random, so that no client can guess another's, and operations went on being granted in their order.
    #[test]
    fn operations_are_granted_in_the_order_of_their_arrival_whatever_their_ids() {
        let mut inodes = Inodes::default();
        assert!(inodes.grant(ClientId(1), FILE, 1, || LockId(1)).is_some());
        let ids = [50, 40, 90, 10, 70, 20].map(LockId);
        for id in ids {
            assert!(!inodes.lock(id, ClientId(2), &[(FILE, 1)], &mut Vec::new()));
        }
        assert_eq!(inodes.check(), Ok(()));
        let mut changes = InodeChanges::default();
        inodes.keep_bits(ClientId(1), FILE, 0, &mut changes);
        assert_eq!(changes.granted, ids);
        ids.into_iter().for_each(|id| inodes.unlock(id));
        assert_eq!((inodes.check(), inodes.inode_count()), (Ok(()), 0));
    }

    #[test]
    #[should_panic(expected = "was not counted")]
    fn holders_of_each_bit_are_counted() {
        let mut inodes = Inodes::default();
        assert!(inodes.grant(ClientId(1), FILE, 1, || LockId(1)).is_some());
        inodes.inodes.get_mut(&FILE).unwrap().holders = [0; BITS];
        inodes.keep_bits(ClientId(1), FILE, 0, &mut InodeChanges::default());
    }
}
