//! Locks that programs take on files: those of fcntl, on byte ranges, merged and split per owner as in POSIX, and those
//! of flock(2), on the whole file. The two kinds do not see each other; each gets a [`FlockSet`] per file.
//!
//! A request waits only for locks that are held, not for requests that wait, as in Linux: programs may rely on a second
//! reader getting in. Waiting requests are tried in order of arrival.

use crate::invariant::ensure;
use crate::{ClientId, Extent, LockId};
use nacre_wire::ldlm::LockMode;
use std::collections::BTreeMap;

/// Owner of a lock: a lock owner of one client (a process for fcntl, an open file for flock).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The client.
    pub client: ClientId,
    /// The owner within it.
    pub owner: u64,
}

/// A range that an owner holds. One owner's ranges do not overlap, and neighbours of equal mode are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The range.
    pub extent: Extent,
    /// Shared (PR) or exclusive (PW).
    pub mode: LockMode,
    /// The process that took it, for F_GETLK.
    pub pid: u32,
}

/// A request to lock, or with mode NL to unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlockRequest {
    /// Id of the request while it waits.
    pub id: LockId,
    /// Owner that asks.
    pub owner: Owner,
    /// Range and mode that the owner asks for.
    pub want: Held,
}

/// Function that is told of a client, the number of its ranges that were replaced, and the number in their place.
pub(crate) type Counted<'a> = dyn FnMut(ClientId, usize, usize) + 'a;

/// The locks of one kind on one file.
#[derive(Default, Debug)]
pub struct FlockSet {
    /// Held ranges by owner; each list in ascending order and never empty.
    held: BTreeMap<Owner, Vec<Held>>,
    /// Waiting requests, in order of arrival.
    waiting: Vec<FlockRequest>,
}

impl FlockSet {
    /// The held locks of others that conflict with `want`, with their owners.
    pub fn conflicts(&self, owner: Owner, want: Held) -> impl Iterator<Item = (Owner, Held)> + '_ {
        let of_others = self.held.iter().filter(move |(other, _)| **other != owner);
        of_others.flat_map(|(other, list)| list.iter().map(|held| (*other, *held))).filter(move |(_, held)| {
            held.extent.overlaps(&want.extent) && (held.mode == LockMode::Pw || want.mode == LockMode::Pw)
        })
    }

    /// The conflicting lock that begins first, as F_GETLK returns it.
    pub fn first_conflict(&self, owner: Owner, want: Held) -> Option<Held> {
        self.conflicts(owner, want).map(|(_, held)| held).min_by_key(|held| held.extent)
    }

    /// Grants `want` to the owner; the caller has checked that nothing conflicts. Returns the waiting requests that are
    /// granted because of it (an unlock, or an exclusive lock that became shared).
    pub fn grant(&mut self, owner: Owner, want: Held) -> Vec<FlockRequest> {
        self.grant_counted(owner, want, &mut |_, _, _| {})
    }

    /// Like [`FlockSet::grant`]. `counted` is told of each client whose ranges were replaced: how many there were in
    /// their place, and how many there are now.
    pub(crate) fn grant_counted(&mut self, owner: Owner, want: Held, counted: &mut Counted<'_>) -> Vec<FlockRequest> {
        self.replace(owner, want, counted);
        self.reprocess(counted)
    }

    /// Puts a request into the queue.
    pub fn wait(&mut self, request: FlockRequest) {
        let is_blocked = self.conflicts(request.owner, request.want).next().is_some();
        assert!(is_blocked, "{request:?} would wait for nothing, and nobody would wake it");
        self.waiting.push(request);
    }

    /// Removes a waiting request. Returns whether it waited. Requests do not wait for waiting ones, so none is granted.
    pub fn withdraw(&mut self, id: LockId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|r| r.id != id);
        let gone = before - self.waiting.len();
        assert!(gone <= 1, "{gone} requests have the name {id:?}");
        gone == 1
    }

    /// Drops all locks and waiting requests of a client. Returns the requests that are granted because of it.
    pub fn client_gone(&mut self, client: ClientId) -> Vec<FlockRequest> {
        self.client_gone_counted(client, &mut |_, _, _| {})
    }

    /// Like [`FlockSet::client_gone`], with the changes of [`FlockSet::grant_counted`].
    pub(crate) fn client_gone_counted(&mut self, client: ClientId, counted: &mut Counted<'_>) -> Vec<FlockRequest> {
        self.held.retain(|owner, list| {
            let stays = owner.client != client;
            if !stays {
                counted(client, list.len(), 0);
            }
            stays
        });
        self.waiting.retain(|r| r.owner.client != client);
        self.reprocess(counted)
    }

    /// The ranges an owner holds.
    pub fn held_by(&self, owner: Owner) -> &[Held] {
        self.held.get(&owner).map_or(&[], Vec::as_slice)
    }

    /// All held ranges, with their owners.
    pub fn held(&self) -> impl Iterator<Item = (Owner, Held)> + '_ {
        self.held.iter().flat_map(|(owner, list)| list.iter().map(|held| (*owner, *held)))
    }

    /// Requests that wait, in order of arrival.
    pub fn waiting(&self) -> &[FlockRequest] {
        &self.waiting
    }

    /// Returns whether the client holds a lock on this file.
    pub fn is_held_by(&self, client: ClientId) -> bool {
        let first = Owner { client, owner: 0 };
        self.held.range(first..).next().is_some_and(|(owner, _)| owner.client == client)
    }

    /// Locks held.
    pub fn held_count(&self) -> usize {
        self.held.values().map(Vec::len).sum()
    }

    /// Returns whether there is neither a lock nor a request.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Replaces what the owner holds within `want`: cuts and splits the ranges that overlap, merges neighbours of equal
    /// mode.
    fn replace(&mut self, owner: Owner, want: Held, counted: &mut Counted<'_>) {
        let old = self.held.remove(&owner).unwrap_or_default();
        let before = old.len();
        let mut list = Vec::with_capacity(old.len() + 2);
        for held in old {
            let (mine, new) = (held.extent, want.extent);
            if !mine.overlaps(&new) {
                list.push(held);
                continue;
            }
            if mine.start < new.start {
                list.push(Held { extent: Extent { start: mine.start, end: new.start - 1 }, ..held });
            }
            if mine.end > new.end {
                list.push(Held { extent: Extent { start: new.end + 1, end: mine.end }, ..held });
            }
        }
        if want.mode != LockMode::Nl {
            list.push(want);
        }
        list.sort_by_key(|held| held.extent);
        list.dedup_by(|next, held| {
            // Both ends are inclusive, so the end of all files cannot have a neighbour behind it.
            let adjacent = held.extent.end.checked_add(1) == Some(next.extent.start);
            let merged = adjacent && held.mode == next.mode;
            if merged {
                held.extent.end = next.extent.end;
            }
            merged
        });
        assert!(is_in_order(&list), "{owner:?} holds ranges that overlap, or should be one: {list:?}");
        counted(owner.client, before, list.len());
        if !list.is_empty() {
            self.held.insert(owner, list);
        }
    }

    /// Checks all invariants; the error names one that does not hold. Looks at every lock and request.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (owner, list) in &self.held {
            ensure(!list.is_empty() && is_in_order(list), || format!("{owner:?} holds {list:?}"))?;
            let conflict = list.iter().find_map(|held| self.conflicts(*owner, *held).next());
            ensure(conflict.is_none(), || format!("{owner:?} holds {list:?}, which {conflict:?} excludes"))?;
        }
        let idle = self.waiting.iter().find(|r| self.conflicts(r.owner, r.want).next().is_none());
        ensure(idle.is_none(), || format!("{idle:?} waits for nothing"))
    }

    /// Grants waiting requests in order of arrival, and starts again after each grant, because one that makes an
    /// exclusive lock shared may let another request in.
    fn reprocess(&mut self, counted: &mut Counted<'_>) -> Vec<FlockRequest> {
        let mut granted = Vec::new();
        while let Some(at) = self.waiting.iter().position(|r| self.conflicts(r.owner, r.want).next().is_none()) {
            let request = self.waiting.remove(at);
            self.replace(request.owner, request.want, counted);
            granted.push(request);
        }
        granted
    }
}

/// Returns whether the ranges of one owner ascend, and no two neighbours should be merged.
fn is_in_order(list: &[Held]) -> bool {
    list.windows(2).all(|pair| {
        let (a, b) = (pair[0], pair[1]);
        a.extent.end < b.extent.start && (a.mode != b.mode || a.extent.end + 1 < b.extent.start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn owner(n: u64) -> Owner {
        Owner { client: ClientId(n % 2), owner: n }
    }

    fn held(mode: LockMode, start: u64, end: u64) -> Held {
        Held { extent: Extent { start, end }, mode, pid: 1 }
    }

    fn ranges(set: &FlockSet, n: u64) -> Vec<(u64, u64, LockMode)> {
        set.held_by(owner(n)).iter().map(|h| (h.extent.start, h.extent.end, h.mode)).collect()
    }

    #[test]
    fn ranges_split_and_merge_per_owner() {
        let mut set = FlockSet::default();
        set.grant(owner(1), held(LockMode::Pw, 0, 99));
        set.grant(owner(1), held(LockMode::Nl, 40, 49));
        assert_eq!(ranges(&set, 1), [(0, 39, LockMode::Pw), (50, 99, LockMode::Pw)]);
        set.grant(owner(1), held(LockMode::Pr, 30, 59));
        assert_eq!(ranges(&set, 1), [(0, 29, LockMode::Pw), (30, 59, LockMode::Pr), (60, 99, LockMode::Pw)]);
        set.grant(owner(1), held(LockMode::Pw, 30, 59));
        assert_eq!(ranges(&set, 1), [(0, 99, LockMode::Pw)]);
        set.grant(owner(1), held(LockMode::Pr, u64::MAX, u64::MAX));
        set.grant(owner(1), held(LockMode::Nl, 0, u64::MAX));
        assert!(set.is_empty());
    }

    #[test]
    fn the_first_lock_in_the_way_is_told() {
        let mut set = FlockSet::default();
        set.grant(owner(1), held(LockMode::Pw, 50, 59));
        set.grant(owner(2), held(LockMode::Pr, 10, 19));
        let asked = held(LockMode::Pw, 0, u64::MAX);
        assert_eq!(set.first_conflict(owner(3), asked).map(|h| h.extent.start), Some(10));
        assert_eq!(set.first_conflict(owner(3), held(LockMode::Pr, 0, 30)), None);
        assert_eq!(set.first_conflict(owner(1), held(LockMode::Pw, 40, 70)), None, "own locks do not conflict");
    }

    const BYTES: u64 = 24;

    /// The model: every byte of a short file has, per owner, a mode or none; requests wait in a list.
    #[derive(Default)]
    struct Model {
        bytes: BTreeMap<(u64, u64), LockMode>,
        waiting: Vec<(u64, u64, Held)>,
    }

    impl Model {
        fn blocked(&self, n: u64, want: Held) -> bool {
            self.bytes.iter().any(|((other, byte), mode)| {
                let inside = (want.extent.start..=want.extent.end).contains(byte);
                *other != n
                    && inside
                    && want.mode != LockMode::Nl
                    && (*mode == LockMode::Pw || want.mode == LockMode::Pw)
            })
        }

        fn grant(&mut self, n: u64, want: Held) {
            for byte in want.extent.start..=want.extent.end {
                self.bytes.insert((n, byte), want.mode);
            }
            self.bytes.retain(|_, mode| *mode != LockMode::Nl);
            while let Some(at) = self.waiting.iter().position(|(_, n, want)| !self.blocked(*n, *want)) {
                let (_, n, want) = self.waiting.remove(at);
                self.grant(n, want);
            }
        }
    }

    #[test]
    fn the_engine_agrees_with_a_byte_by_byte_model() {
        for seed in 0..300 {
            let mut random = Prng::new(seed);
            let (mut set, mut model) = (FlockSet::default(), Model::default());
            for id in 1..120 {
                let n = random.below(5);
                let start = random.below(BYTES);
                let mode = *random.pick(&[LockMode::Pr, LockMode::Pw, LockMode::Nl]);
                let want = held(mode, start, (start + random.below(8)).min(BYTES - 1));
                let blocked = mode != LockMode::Nl && set.conflicts(owner(n), want).next().is_some();
                assert_eq!(blocked, model.blocked(n, want), "seed {seed}");
                if blocked {
                    set.wait(FlockRequest { id: LockId(id), owner: owner(n), want });
                    model.waiting.push((id, n, want));
                } else {
                    set.grant(owner(n), want);
                    model.grant(n, want);
                }
                if random.one_in(10) && !model.waiting.is_empty() {
                    let (gone, ..) = model.waiting.remove(random.below(model.waiting.len() as u64) as usize);
                    assert!(set.withdraw(LockId(gone)));
                }
                check(&set, &model, seed);
            }
        }
    }

    fn check(set: &FlockSet, model: &Model, seed: u64) {
        let mut bytes = BTreeMap::new();
        for n in 0..5 {
            let list = set.held_by(owner(n));
            for pair in list.windows(2) {
                let touching = pair[0].extent.end + 1 == pair[1].extent.start;
                assert!(pair[0].extent.end < pair[1].extent.start, "seed {seed}: overlap");
                assert!(!touching || pair[0].mode != pair[1].mode, "seed {seed}: not merged");
            }
            for h in list {
                bytes.extend((h.extent.start..=h.extent.end).map(|byte| ((n, byte), h.mode)));
            }
        }
        assert_eq!(bytes, model.bytes, "seed {seed}");
        let waiting: Vec<u64> = set.waiting().iter().map(|r| r.id.0).collect();
        assert_eq!(waiting, model.waiting.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), "seed {seed}");
    }
}
