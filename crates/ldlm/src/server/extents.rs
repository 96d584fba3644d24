//! The extent locks of one object. First come, first served: a request waits while it conflicts with a lock that is
//! granted *or with a request that came before it and waits*, so neither readers nor writers starve. Group requests go
//! ahead of all others that wait, and the members of a group go together: they may need each other to finish.
//!
//! Every waiting request watches one lock or request that it has to wait for: if possible, the last before it in the
//! queue. It is examined again only when that one is removed, because granted ranges never shrink, so that a lock which
//! conflicts does so until it is removed. So the cost of a cancel depends on the requests that it lets go, not on how
//! many wait.

use super::growth::{Conflicting, grow};
use super::interval_tree::IntervalTree;
use super::stages::{Event, STAGES, Stage};
use crate::invariant::ensure;
use crate::mode::compatible;
use crate::{ClientId, Extent, LockId, RangeSet};
use nacre_base::FxHashMap;
use nacre_wire::ldlm::LockMode;
use std::collections::{BTreeMap, BTreeSet};

/// A request for an extent lock; once granted, the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    /// Id of the request and of its lock, in no order: clients must not be able to guess it.
    pub(super) id: LockId,
    /// The holder; for a lock of the server, the client on whose behalf it is taken.
    pub(super) client: ClientId,
    /// True for a lock that the server takes for the length of one operation.
    pub(super) local: bool,
    /// PR, PW or GROUP.
    pub(super) mode: LockMode,
    /// Ranges that the request asks for, or that the lock was granted.
    pub(super) ranges: RangeSet,
    /// Group number, for mode GROUP.
    pub(super) group: u64,
    /// True if the lock is never grown.
    pub(super) exact: bool,
    /// True if the client waits for its own locks, too.
    pub(super) alone: bool,
    /// True if the request does not wait behind those that wait for its client.
    pub(super) ahead: bool,
}

impl Asked {
    /// Returns whether the two cannot be granted at the same time.
    pub(super) fn conflicts(&self, other: &Asked) -> bool {
        self.modes_conflict(other) && self.ranges.overlaps(&other.ranges)
    }

    /// Returns whether the two could not be granted at the same time if they overlapped.
    fn modes_conflict(&self, other: &Asked) -> bool {
        let groups = self.mode == LockMode::Group && other.mode == LockMode::Group && self.group != other.group;
        (groups || !compatible(self.mode, other.mode)) && !self.same_holder(other)
    }

    /// Returns whether the two belong to one holder, so that they do not conflict. Locks of one client do not conflict
    /// unless both are asked for so (`alone`), and the locks that the server takes on a client's behalf do not conflict
    /// with the client's own. But two operations of the server exclude each other. A group lock belongs to a program,
    /// not to its whole client: it keeps other programs of that client out as well.
    fn same_holder(&self, other: &Asked) -> bool {
        let group = self.mode == LockMode::Group || other.mode == LockMode::Group;
        self.client == other.client
            && match (self.local, other.local) {
                (true, true) => false,
                (false, false) => !(group || self.alone && other.alone),
                _ => true,
            }
    }

    /// Returns whether the holder is told when a request waits for the lock. Operations of the server end by
    /// themselves, group locks when the program says so.
    fn is_called_back(&self) -> bool {
        !self.local && self.mode != LockMode::Group
    }

    /// Returns whether the request is granted exactly as asked for in any case.
    fn is_never_grown(&self) -> bool {
        self.exact
            || self.local
            || self.ahead
            || self.mode == LockMode::Group
            || !self.ranges.is_single()
            || self.ranges == RangeSet::ALL
    }
}

/// Place of a request in the queue: group requests first, then by leader (turn of the first waiting member of the group,
/// 0 if the group has the object; 0 for all other requests), then by turn. It does not change while the request waits. The
/// id is what the place leads to; it decides nothing, because no two requests have the same turn.
type Place = (bool, u64, u64, LockId);
const FIRST: Place = (false, 0, 0, LockId(0));
const LAST: Place = (true, u64::MAX, u64::MAX, LockId(u64::MAX));

/// Settings that apply to all objects of a target; see [`super::Settings`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) grow: bool,
    pub(super) leave_room: bool,
}

/// The locks and requests of one object.
#[derive(Debug)]
pub(super) struct Extents {
    locks: FxHashMap<LockId, Lock>,
    /// Granted locks by mode (PR, PW, GROUP), each by its cover.
    granted: [IntervalTree; 3],
    /// Number of granted locks of each client and mode, without those of the server.
    held: FxHashMap<(ClientId, u8), usize>,
    waiting: BTreeSet<Place>,
    /// Number of requests so far. Each request's turn is this number when it arrived, counted from 1: ids have no order.
    arrivals: u64,
    /// True if a lock grew without regard for requests that waited (`leave_room` is off): then it may be in the way of one
    /// that came before it.
    overgrown: bool,
    /// Number of waiting requests that ask for PR.
    waiting_readers: usize,
    /// Waiting requests that a lock of their client may let pass by the queue: those of the server on its behalf, and those that go
    /// ahead. By the client.
    operations: BTreeSet<(ClientId, Place)>,
    /// Waiting requests by the lock or request that they watch.
    watchers: BTreeMap<LockId, BTreeSet<Place>>,
}

#[derive(Debug)]
struct Lock {
    ask: Asked,
    place: Place,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Granted {
        /// True if a request waits for the lock, and the holder knows, or will know from the reply that grants it.
        called_back: bool,
    },
    Waiting {
        /// The lock or request that it watches.
        blocker: LockId,
    },
}

impl State {
    fn stage(self) -> Stage {
        match self {
            State::Waiting { .. } => Stage::Waiting,
            State::Granted { called_back: false } => Stage::Granted,
            State::Granted { called_back: true } => Stage::CalledBack,
        }
    }

    /// Returns `next`, whose stage must be the one that `event` leads to from `before`.
    fn after(before: Stage, event: Event, next: State) -> State {
        let stage = STAGES.next(before, event);
        assert_eq!(stage, next.stage(), "{event:?} in stage {before:?} leads elsewhere than to {next:?}");
        next
    }
}

/// Consequences of a change.
#[derive(Default, Debug)]
pub(super) struct Changes {
    /// Requests that are granted now, in order.
    pub(super) granted: Vec<LockId>,
    /// Locks to be called back now.
    pub(super) called_back: Vec<LockId>,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    /// Granted.
    Granted,
    /// The request waits.
    Waiting {
        /// True if the request waits for a client's lock or request, not only for operations of the server.
        behind_client: bool,
    },
}

impl Extents {
    /// An object without locks. `salt` is a random number that clients do not know.
    pub(super) fn new(salt: u64) -> Extents {
        Extents {
            locks: FxHashMap::default(),
            granted: [(); 3].map(|()| IntervalTree::new(salt)),
            held: FxHashMap::default(),
            waiting: BTreeSet::new(),
            arrivals: 0,
            overgrown: false,
            waiting_readers: 0,
            operations: BTreeSet::new(),
            watchers: BTreeMap::new(),
        }
    }

    /// Returns whether the request would have to wait.
    pub(super) fn would_wait(&self, ask: &Asked) -> bool {
        self.blocker(ask, self.place(ask)).is_some()
    }

    /// Returns whether the request would have to wait for a group lock, or behind a group's request: such a wait has no
    /// time limit.
    pub(super) fn would_wait_for_group(&self, ask: &Asked) -> bool {
        let is_group = |lock: &Lock| lock.ask.mode == LockMode::Group && lock.ask.conflicts(ask);
        let queue = self.waiting.range(..self.place(ask));
        let mut found = queue.filter_map(|(.., id)| self.locks.get(id)).any(is_group);
        self.granted_conflicts(ask, &mut |lock| {
            found |= is_group(lock);
            !found
        });
        found
    }

    /// Grants the request, larger than asked for if `rules` allow it, or lets it wait and calls back the locks that
    /// conflict with it.
    pub(super) fn enqueue(&mut self, ask: Asked, rules: Rules, changes: &mut Changes) -> Placed {
        let place = self.place(&ask);
        self.arrivals += 1;
        let Some(blocker) = self.blocker(&ask, place) else {
            self.grant(ask, place, Stage::Asked, rules, changes);
            self.assert_counts();
            return Placed::Granted;
        };
        let mut behind_client = self.locks.get(&blocker).is_some_and(|lock| !lock.ask.local);
        let mut in_the_way = Vec::new();
        self.granted_conflicts(&ask, &mut |lock| {
            behind_client |= !lock.ask.local;
            if lock.ask.is_called_back() && lock.state == (State::Granted { called_back: false }) {
                in_the_way.push(lock.ask.id);
            }
            true
        });
        let first_called_back = changes.called_back.len();
        for id in in_the_way {
            self.set_called_back(id);
            changes.called_back.push(id);
        }
        self.waiting.insert(place);
        self.waiting_readers += usize::from(ask.mode == LockMode::Pr);
        if ask.local || ask.ahead {
            self.operations.insert((ask.client, place));
        }
        self.watchers.entry(blocker).or_default().insert(place);
        let state = State::after(Stage::Asked, Event::Block, State::Waiting { blocker });
        self.put(Lock { ask, place, state });
        // The holders may have requests that go ahead from now on.
        let holders = changes.called_back[first_called_back..].iter().filter_map(|id| Some(self.get(*id)?.client));
        let of_holders = |client| self.operations.range((client, FIRST)..=(client, LAST));
        let again: Vec<Place> = holders.flat_map(of_holders).map(|(_, place)| *place).collect();
        for place in again {
            self.look_again(place, rules, changes);
        }
        self.assert_counts();
        Placed::Waiting { behind_client }
    }

    /// Removes a lock or a waiting request, and grants the requests that waited only for it. Returns what was removed;
    /// None if it is not here.
    pub(super) fn remove(&mut self, id: LockId, rules: Rules, changes: &mut Changes) -> Option<Asked> {
        let Lock { ask, place, state } = self.locks.remove(&id)?;
        STAGES.next(state.stage(), Event::End);
        match state {
            State::Granted { .. } => {
                self.granted[index(ask.mode) as usize].remove(ask.ranges.cover(), id);
                self.count_held(&ask, false);
            }
            State::Waiting { blocker } => {
                self.leave_queue(&ask, place);
                self.stop_watching(blocker, place);
            }
        }
        for place in self.watchers.remove(&id).unwrap_or_default() {
            self.look_again(place, rules, changes);
        }
        self.assert_counts();
        Some(ask)
    }

    /// The request, or the lock with its granted ranges.
    pub(super) fn get(&self, id: LockId) -> Option<&Asked> {
        self.locks.get(&id).map(|lock| &lock.ask)
    }

    /// Returns whether `id` is a lock, and not a request that waits.
    pub(super) fn is_granted(&self, id: LockId) -> bool {
        self.locks.get(&id).is_some_and(|lock| matches!(lock.state, State::Granted { .. }))
    }

    /// Returns whether `id` is a lock that was called back.
    pub(super) fn is_called_back(&self, id: LockId) -> bool {
        self.locks.get(&id).is_some_and(|lock| lock.state == State::Granted { called_back: true })
    }

    /// The client's waiting request for exactly these ranges in this mode.
    pub(super) fn find_waiting(&self, client: ClientId, mode: LockMode, ranges: &RangeSet) -> Option<LockId> {
        let same = |ask: &Asked| !ask.local && ask.client == client && ask.mode == mode && ask.ranges == *ranges;
        self.waiting.iter().map(|(.., id)| *id).find(|id| self.get(*id).is_some_and(same))
    }

    /// Locks of other clients under which the object may have been written: one per client, the one that ends last.
    pub(super) fn writers(&self, but: ClientId) -> Vec<&Asked> {
        let mut highest: BTreeMap<ClientId, &Asked> = BTreeMap::new();
        for mode in [LockMode::Pw, LockMode::Group] {
            for (_, id) in self.granted[index(mode) as usize].iter() {
                let Some(ask) = self.get(id).filter(|ask| !ask.local && ask.client != but) else { continue };
                let best = highest.entry(ask.client).or_insert(ask);
                if rank(ask) > rank(best) {
                    *best = ask;
                }
            }
        }
        let mut writers: Vec<&Asked> = highest.into_values().collect();
        writers.sort_by_key(|ask| std::cmp::Reverse(rank(ask)));
        writers
    }

    /// Returns whether a request for a read lock waits.
    pub(super) fn has_waiting_reader(&self) -> bool {
        self.waiting_readers > 0
    }

    /// Requests that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether there is neither a lock nor a request.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// All locks and waiting requests.
    pub(super) fn ids(&self) -> impl Iterator<Item = LockId> + '_ {
        self.locks.keys().copied()
    }

    /// The lock or request that `ask` has to wait for: the last conflicting request before it in the queue, else any
    /// conflicting granted lock.
    fn blocker(&self, ask: &Asked, place: Place) -> Option<LockId> {
        // An operation under a lock of its own client does not queue: the requests in front of it wait for that lock,
        // too.
        let queues = self.waiting.is_empty() || !(self.is_under_own_lock(ask) || self.goes_ahead(ask));
        for (.., id) in self.waiting.range(..place).rev().filter(|_| queues) {
            if self.get(*id).is_some_and(|earlier| earlier.conflicts(ask)) {
                return Some(*id);
            }
        }
        let mut found = None;
        self.granted_conflicts(ask, &mut |lock| {
            found = Some(lock.ask.id);
            false
        });
        found
    }

    /// Returns whether requests wait for a lock that the client cannot give back before it has this one.
    fn goes_ahead(&self, ask: &Asked) -> bool {
        let is_awaited = |id: LockId| {
            self.locks.get(&id).is_some_and(|own| {
                !own.ask.local && own.ask.client == ask.client && own.state == State::Granted { called_back: true }
            })
        };
        ask.ahead && self.granted.iter().any(|tree| !tree.overlapping(Extent::ALL, &mut |id| !is_awaited(id)))
    }

    /// Returns whether this is an operation on behalf of a client that holds a lock which allows it.
    fn is_under_own_lock(&self, ask: &Asked) -> bool {
        if !ask.local {
            return false;
        }
        let allows = |id: LockId| {
            self.get(id).is_some_and(|own| !own.local && own.client == ask.client && own.ranges.contains(&ask.ranges))
        };
        let modes: &[LockMode] = match ask.mode {
            LockMode::Pr => &[LockMode::Pr, LockMode::Pw, LockMode::Group],
            _ => &[LockMode::Pw, LockMode::Group],
        };
        let held = modes.iter().filter(|mode| self.held.contains_key(&(ask.client, index(**mode))));
        let mut trees = held.map(|mode| &self.granted[index(*mode) as usize]);
        trees.any(|tree| !tree.overlapping(ask.ranges.cover(), &mut |id| !allows(id)))
    }

    /// Place of a new request in the queue.
    fn place(&self, ask: &Asked) -> Place {
        let turn = self.arrivals + 1;
        if ask.mode != LockMode::Group {
            return (true, 0, turn, ask.id);
        }
        let same = |id: LockId| self.get(id).is_some_and(|other| other.group == ask.group);
        let elsewhere = self.granted[index(LockMode::Group) as usize].overlapping(Extent::ALL, &mut |id| !same(id));
        if !elsewhere {
            return (false, 0, turn, ask.id);
        }
        let mut groups = self.waiting.iter().take_while(|(not_group, ..)| !not_group);
        let leader = groups.find(|(.., id)| same(*id)).map_or(turn, |(_, leader, ..)| *leader);
        (false, leader, turn, ask.id)
    }

    /// Calls `visit` with every granted lock that conflicts with `ask`, until it returns false.
    fn granted_conflicts(&self, ask: &Asked, visit: &mut impl FnMut(&Lock) -> bool) {
        for mode in modes_against(ask.mode) {
            let tree = &self.granted[index(*mode) as usize];
            if tree.len() == self.own_count(ask, *mode) {
                continue;
            }
            let go_on = tree.overlapping(ask.ranges.cover(), &mut |id| match self.locks.get(&id) {
                Some(lock) if lock.ask.conflicts(ask) => visit(lock),
                _ => true,
            });
            if !go_on {
                return;
            }
        }
    }

    /// Number of granted locks of this mode that never conflict with `ask` because they belong to its holder, as far as
    /// they are counted.
    fn own_count(&self, ask: &Asked, mode: LockMode) -> usize {
        let group = ask.mode == LockMode::Group || mode == LockMode::Group;
        let counted = ask.local || !(group || ask.alone);
        let held = if counted { self.held.get(&(ask.client, index(mode))).copied().unwrap_or(0) } else { 0 };
        let granted = self.granted[index(mode) as usize].len();
        assert!(held <= granted, "{:?} holds {held} locks of mode {mode:?}, of {granted} in all", ask.client);
        held
    }

    /// The lock or request that a waiting request watches is gone, or no longer blocks it: finds another one to watch,
    /// or grants the request.
    fn look_again(&mut self, place: Place, rules: Rules, changes: &mut Changes) {
        let id = place.3;
        // A grant within the same change may have granted this request, too.
        let Some(Lock { ask, state: State::Waiting { blocker: before }, .. }) = self.locks.get(&id) else { return };
        let (before, blocker) = (*before, self.blocker(ask, place));
        self.stop_watching(before, place);
        if let Some(blocker) = blocker {
            assert_ne!(blocker, id, "a request waits for itself");
            self.watchers.entry(blocker).or_default().insert(place);
            let lock = self.lock_mut(id);
            lock.state = State::after(lock.state.stage(), Event::Block, State::Waiting { blocker });
        } else if let Some(lock) = self.locks.remove(&id) {
            self.leave_queue(&lock.ask, place);
            changes.granted.push(id);
            self.grant(lock.ask, place, lock.state.stage(), rules, changes);
        }
    }

    /// Makes the request a lock. One that other requests already wait for is called back from the start.
    fn grant(&mut self, mut ask: Asked, place: Place, before: Stage, rules: Rules, changes: &mut Changes) {
        if rules.grow && !ask.is_never_grown() {
            ask.ranges = RangeSet::single(self.grown(&ask, rules));
            self.overgrown |= !rules.leave_room && !self.waiting.is_empty();
        }
        let wanted = |(.., id): &Place| self.get(*id).is_some_and(|waiter| waiter.conflicts(&ask));
        let called_back = ask.is_called_back() && self.waiting.iter().any(wanted);
        let of_client = self.operations.range((ask.client, FIRST)..=(ask.client, LAST)).filter(|_| !ask.local);
        let under_it: Vec<Place> = of_client.map(|(_, place)| *place).collect();
        self.granted[index(ask.mode) as usize].insert(ask.ranges.cover(), ask.id);
        self.count_held(&ask, true);
        let event = if called_back { Event::GrantWanted } else { Event::Grant };
        let state = State::after(before, event, State::Granted { called_back });
        self.put(Lock { ask, place, state });
        for place in under_it {
            self.look_again(place, rules, changes);
        }
    }

    fn grown(&self, ask: &Asked, rules: Rules) -> Extent {
        let asked = ask.ranges.cover();
        let mut conflicting = Conflicting::default();
        for mode in modes_against(ask.mode) {
            let tree = &self.granted[index(*mode) as usize];
            let others = tree.len() - self.own_count(ask, *mode);
            if others == 0 {
                continue;
            }
            conflicting.count += others;
            let next = &mut conflicting.next_start;
            let mut limit = |start: u64| *next = Some(next.map_or(start, |n| n.min(start)));
            let conflicts = |id| self.get(id).filter(|other| other.modes_conflict(ask));
            tree.overlapping(asked, &mut |id| {
                conflicts(id).and_then(|other| other.ranges.next_start(&asked)).into_iter().for_each(&mut limit);
                true
            });
            tree.starting_after(asked.end, &mut |id, extent| {
                let found = conflicts(id).is_some();
                if found {
                    limit(extent.start);
                }
                !found
            });
        }
        let waiting = self.waiting.iter().filter_map(|(.., id)| self.get(*id)).filter(|w| w.modes_conflict(ask));
        let waiting = waiting.filter(|_| rules.leave_room);
        grow(asked, ask.mode != LockMode::Pr, conflicting, waiting.map(|w| &w.ranges))
    }

    fn set_called_back(&mut self, id: LockId) {
        let lock = self.lock_mut(id);
        lock.state = State::after(lock.state.stage(), Event::CallBack, State::Granted { called_back: true });
    }

    fn lock_mut(&mut self, id: LockId) -> &mut Lock {
        let Some(lock) = self.locks.get_mut(&id) else { panic!("{id:?} is indexed, and neither held nor waited for") };
        lock
    }

    fn put(&mut self, lock: Lock) {
        let id = lock.ask.id;
        let before = self.locks.insert(id, lock);
        assert!(before.is_none(), "two locks of one object have the name {id:?}");
    }

    fn leave_queue(&mut self, ask: &Asked, place: Place) {
        let was_waiting = self.waiting.remove(&place);
        assert!(was_waiting, "{:?} waits and is not in the queue", ask.id);
        let is_reader = usize::from(ask.mode == LockMode::Pr);
        assert!(self.waiting_readers >= is_reader, "a reader leaves the queue, and none was counted");
        self.waiting_readers -= is_reader;
        let was_operation = self.operations.remove(&(ask.client, place));
        assert_eq!(was_operation, ask.local || ask.ahead, "{:?} waits, and is filed as what it is not", ask.id);
    }

    fn stop_watching(&mut self, blocker: LockId, place: Place) {
        let Some(watchers) = self.watchers.get_mut(&blocker) else {
            // The watchers of a lock that is removed are taken all at once.
            return assert!(
                !self.locks.contains_key(&blocker),
                "nobody watches {blocker:?}, for which {place:?} waits"
            );
        };
        let watched = watchers.remove(&place);
        assert!(watched, "{place:?} waits for {blocker:?} and does not watch it");
        if watchers.is_empty() {
            self.watchers.remove(&blocker);
        }
    }

    /// Panics unless every lock is in one tree, and every request in the queue.
    fn assert_counts(&self) {
        let granted: usize = self.granted.iter().map(IntervalTree::len).sum();
        let (waiting, all) = (self.waiting.len(), self.locks.len());
        assert_eq!(granted + waiting, all, "{granted} locks are indexed and {waiting} requests wait, of {all} in all");
        let special = self.waiting_readers.max(self.operations.len()).max(self.watchers.len());
        assert!(special <= waiting, "{special} requests of one kind wait, of {waiting} in all");
    }

    fn count_held(&mut self, ask: &Asked, more: bool) {
        if ask.local {
            return;
        }
        let key = (ask.client, index(ask.mode));
        let count = self.held.entry(key).or_default();
        if more {
            *count += 1;
        } else {
            assert!(*count > 0, "{:?} gives back {:?}, and no lock of its mode was counted", ask.client, ask.id);
            *count -= 1;
            if *count == 0 {
                self.held.remove(&key);
            }
        }
    }
}

/// Index of the tree with the locks of a mode. Only these three modes occur here.
fn index(mode: LockMode) -> u8 {
    match mode {
        LockMode::Pr => 0,
        LockMode::Group => 2,
        _ => 1,
    }
}

/// Modes whose locks may conflict with one of `mode`.
fn modes_against(mode: LockMode) -> &'static [LockMode] {
    match mode {
        LockMode::Pr => &[LockMode::Pw, LockMode::Group],
        _ => &[LockMode::Pr, LockMode::Pw, LockMode::Group],
    }
}

/// Sort key: the last byte, then the id, so that the order is total.
fn rank(ask: &Asked) -> (u64, LockId) {
    (ask.ranges.cover().end, ask.id)
}

impl Extents {
    /// Checks all invariants; the error names one that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let granted = || self.locks.values().filter(|lock| matches!(lock.state, State::Granted { .. }));
        for (mode, tree) in [LockMode::Pr, LockMode::Pw, LockMode::Group].into_iter().zip(&self.granted) {
            let mut indexed = tree.iter();
            let mut held: Vec<(Extent, LockId)> = granted()
                .filter(|lock| lock.ask.mode == mode)
                .map(|lock| (lock.ask.ranges.cover(), lock.ask.id))
                .collect();
            indexed.sort_unstable();
            held.sort_unstable();
            ensure(indexed == held, || format!("the index of {mode:?} has {indexed:?}, granted are {held:?}"))?;
        }
        for lock in granted() {
            let mut conflict = None;
            self.granted_conflicts(&lock.ask, &mut |other| {
                conflict = Some(other.ask.id).filter(|id| *id != lock.ask.id);
                conflict.is_none()
            });
            ensure(conflict.is_none(), || format!("{:?} and {conflict:?} are both granted", lock.ask))?;
            let wanted = self.waiting.iter().filter_map(|(.., id)| self.get(*id)).any(|w| w.conflicts(&lock.ask));
            let called_back = lock.state == State::Granted { called_back: true };
            ensure(!wanted || called_back || !lock.ask.is_called_back(), || {
                format!("not called back: {:?}", lock.ask)
            })?;
        }
        self.check_waiting()?;
        self.check_held()
    }

    fn check_waiting(&self) -> Result<(), String> {
        let mut watchers: BTreeMap<LockId, BTreeSet<Place>> = BTreeMap::new();
        let mut waiting = BTreeSet::new();
        let mut operations = BTreeSet::new();
        let mut readers = 0;
        for Lock { ask, place, state } in self.locks.values() {
            let State::Waiting { blocker } = state else { continue };
            waiting.insert(*place);
            readers += usize::from(ask.mode == LockMode::Pr);
            operations.extend(Some((ask.client, *place)).filter(|_| ask.local || ask.ahead));
            watchers.entry(*blocker).or_default().insert(*place);
            let in_the_way = self.locks.get(blocker).is_some_and(|other| {
                let before = matches!(other.state, State::Granted { .. }) || other.place < *place;
                before && other.ask.conflicts(ask)
            });
            ensure(in_the_way, || format!("{ask:?} waits for {blocker:?}, which is not in its way"))?;
            let overtook = |lock: &&Lock| {
                let came_later = lock.place > *place && lock.place.2 > place.2;
                came_later && matches!(lock.state, State::Granted { .. }) && lock.ask.conflicts(ask)
            };
            // An operation under a lock of its own client does not queue, nor does a request that goes ahead.
            let queues = |lock: &&Lock| !lock.ask.local && !lock.ask.ahead && !self.overgrown;
            let unfair = self.locks.values().filter(overtook).find(queues);
            ensure(unfair.is_none(), || format!("{ask:?} waits, and {unfair:?} came later"))?;
        }
        ensure(waiting == self.waiting, || format!("the queue has {:?}, waiting are {waiting:?}", self.waiting))?;
        ensure(readers == self.waiting_readers, || format!("{readers} readers wait, not {}", self.waiting_readers))?;
        ensure(operations == self.operations, || format!("operations are {operations:?}, not {:?}", self.operations))?;
        ensure(watchers == self.watchers, || format!("watchers are {:?}, not {watchers:?}", self.watchers))
    }

    fn check_held(&self) -> Result<(), String> {
        let mut held: FxHashMap<(ClientId, u8), usize> = FxHashMap::default();
        for lock in self.locks.values().filter(|lock| matches!(lock.state, State::Granted { .. }) && !lock.ask.local) {
            *held.entry((lock.ask.client, index(lock.ask.mode))).or_default() += 1;
        }
        ensure(held == self.held, || format!("clients hold {held:?}, not {:?}", self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { grow: true, leave_room: true };

    fn asked(id: u64) -> Asked {
        let (client, ranges) = (ClientId(id), RangeSet::ALL);
        Asked {
            id: LockId(id),
            client,
            local: false,
            mode: LockMode::Pw,
            ranges,
            group: 0,
            exact: false,
            alone: false,
            ahead: false,
        }
    }

    /// A lock, and a request that waits for it.
    fn held_and_wanted() -> Extents {
        let mut extents = Extents::new(1);
        let mut changes = Changes::default();
        assert_eq!(extents.enqueue(asked(1), RULES, &mut changes), Placed::Granted);
        assert_eq!(extents.enqueue(asked(2), RULES, &mut changes), Placed::Waiting { behind_client: true });
        assert_eq!(extents.check(), Ok(()));
        extents
    }

    #[test]
    #[should_panic(expected = "1 locks are indexed and 0 requests wait, of 2 in all")]
    fn every_lock_is_in_a_tree_and_every_request_in_the_queue() {
        let mut extents = held_and_wanted();
        extents.waiting.clear();
        extents.assert_counts();
    }

    /// Ids became random, so that no client can guess another's, and the queue went on sorting by them: half of all
    /// requests went in front of requests that had come before.
    #[test]
    fn requests_are_granted_in_the_order_of_their_arrival_whatever_their_ids() {
        let mut extents = Extents::new(1);
        let ids = [50, 40, 90, 10, 70, 20];
        for id in ids {
            extents.enqueue(asked(id), RULES, &mut Changes::default());
            assert_eq!(extents.check(), Ok(()));
        }
        for (holder, next) in ids.into_iter().zip(&ids[1..]) {
            let mut changes = Changes::default();
            extents.remove(LockId(holder), RULES, &mut changes);
            assert_eq!(changes.granted, [LockId(*next)]);
            assert_eq!(extents.check(), Ok(()));
        }
    }

    #[test]
    #[should_panic(expected = "CallBack in state CalledBack")]
    fn a_holder_is_told_once() {
        held_and_wanted().set_called_back(LockId(1));
    }
}
