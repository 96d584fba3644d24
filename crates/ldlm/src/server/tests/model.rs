//! Compares the engine with the rules, written as plainly as possible: lists, and a look at every pair.
//!
//! The growth of locks has its own tests: the model takes the granted range, and checks that it contains the requested
//! one and conflicts with nothing.

use super::*;
use nacre_base::Prng;
use nacre_wire::ldlm::inode_bits;
use std::collections::BTreeMap;
use std::time::Duration;

const CLIENTS: u64 = 5;
const FILES: [Fid; 2] = [FILE_A, FILE_B];
const TIMEOUT: Duration = Duration::from_secs(100);

/// An extent lock or request, of a client or of the server.
#[derive(Clone, Debug)]
struct Asked {
    id: LockId,
    client: u64,
    local: bool,
    file: Fid,
    mode: LockMode,
    group: u64,
    exact: bool,
    ranges: RangeSet,
    granted: bool,
    called_back: bool,
    /// For a group request, the first of its group that waited when it came; 0 if the group had the file.
    leader: Option<u64>,
}

impl Asked {
    fn conflicts(&self, other: &Asked) -> bool {
        let group = |ask: &Asked| ask.mode == LockMode::Group;
        let readers = self.mode == LockMode::Pr && other.mode == LockMode::Pr;
        let one_group = group(self) && group(other) && self.group == other.group;
        let own =
            self.client == other.client && (self.local != other.local || !self.local && !group(self) && !group(other));
        let meet = self.ranges.ranges().iter().any(|a| other.ranges.ranges().iter().any(|b| a.overlaps(b)));
        self.file == other.file && !readers && !one_group && !own && meet
    }

    /// Returns whether this request is before the other one in the queue.
    fn is_before(&self, other: &Asked) -> bool {
        self.place() < other.place()
    }

    fn place(&self) -> (bool, u64, LockId) {
        (self.mode != LockMode::Group, self.leader.unwrap_or(self.id.0), self.id)
    }

    fn may_be_called_back(&self) -> bool {
        !self.local && self.mode != LockMode::Group
    }
}

#[derive(Clone, Debug)]
struct InodeHeld {
    id: LockId,
    client: u64,
    inode: Fid,
    bits: u64,
    called_back: bool,
}

#[derive(Clone, Debug)]
struct Operation {
    id: LockId,
    client: u64,
    wants: Vec<(Fid, u64)>,
    granted: bool,
}

impl Operation {
    fn wants(&self, held: &InodeHeld) -> u64 {
        let of_inode = self.wants.iter().filter(|(inode, _)| *inode == held.inode && self.client != held.client);
        of_inode.fold(0, |bits, (_, wanted)| bits | wanted & held.bits)
    }
}

#[derive(Default)]
struct Model {
    asks: Vec<Asked>,
    held: Vec<InodeHeld>,
    operations: Vec<Operation>,
    deadlines: BTreeMap<LockId, (Time, u64)>,
    now: Time,
    /// Grants of the engine in this step that the model has not yet accounted for.
    grants: std::collections::VecDeque<Grant>,
    /// Callbacks that the model expects in this step.
    callbacks: Vec<(u64, LockId)>,
}

impl Model {
    fn blocked(&self, ask: &Asked) -> bool {
        // An operation under a lock of its own client does not queue, because the requests before it wait for that
        // lock.
        let under_own = ask.local
            && self.asks.iter().any(|own| {
                let allows = own.mode != LockMode::Pr || ask.mode == LockMode::Pr;
                let own_lock = own.granted && !own.local && own.client == ask.client && own.file == ask.file;
                own_lock && allows && own.ranges.contains(&ask.ranges)
            });
        let in_the_way = |other: &&Asked| other.id != ask.id && other.conflicts(ask);
        self.asks.iter().filter(in_the_way).any(|other| other.granted || !under_own && other.is_before(ask))
    }

    /// Leader of a new group request.
    fn leader(&self, file: Fid, group: u64) -> Option<u64> {
        let of_group = || self.asks.iter().filter(|a| a.file == file && a.mode == LockMode::Group && a.group == group);
        if of_group().any(|a| a.granted) { Some(0) } else { of_group().map(Asked::place).min().map(|place| place.1) }
    }

    /// Takes the grants of the engine as long as they are right. After that, no request may wait that nothing blocks.
    fn settle(&mut self) {
        while let Some(id) = self.grants.front().map(|grant| grant.id) {
            let free = self.asks.iter().any(|ask| ask.id == id && !ask.granted && !self.blocked(ask));
            let Some(grant) = self.grants.pop_front_if(|_| free) else { break };
            self.granted(id, &grant.reply);
        }
        let free = self.asks.iter().find(|ask| !ask.granted && !self.blocked(ask));
        assert!(free.is_none(), "nothing blocks {free:?}, and the engine lets it wait");
    }

    /// A client's or the server's request becomes a lock.
    fn granted(&mut self, id: LockId, reply: &EnqueueReply) {
        let at = self.asks.iter().position(|ask| ask.id == id).unwrap();
        self.asks[at].granted = true;
        if self.asks[at].local {
            return;
        }
        assert_eq!((reply.handle, reply.mode), (id.0, self.asks[at].mode));
        let told = Extent { start: reply.start, end: reply.end };
        if told != self.asks[at].ranges.cover() {
            let ask = &mut self.asks[at];
            assert!(!ask.exact && ask.ranges.is_single() && ask.mode != LockMode::Group, "grew: {ask:?}");
            assert!(told.contains(&ask.ranges.cover()), "shrank: {ask:?} {told:?}");
            ask.ranges = RangeSet::single(told);
        }
        let ask = self.asks[at].clone();
        let conflict = self.asks.iter().find(|other| other.id != id && other.granted && other.conflicts(&ask));
        assert!(conflict.is_none(), "{ask:?} and {conflict:?} are both granted");
        let wanted = ask.may_be_called_back() && self.asks.iter().any(|w| !w.granted && w.conflicts(&ask));
        assert_eq!(reply.flags & reply_flags::CALLED_BACK != 0, wanted, "{ask:?}");
        if wanted {
            self.asks[at].called_back = true;
            self.deadlines.insert(id, (self.now + TIMEOUT, ask.client));
        }
    }

    /// A new request that has to wait calls back the locks that block it.
    fn call_back_for(&mut self, ask: &Asked) {
        for other in &mut self.asks {
            if other.granted && other.conflicts(ask) && other.may_be_called_back() && !other.called_back {
                other.called_back = true;
                self.callbacks.push((other.client, other.id));
                self.deadlines.insert(other.id, (self.now + TIMEOUT, other.client));
            }
        }
    }

    fn remove_ask(&mut self, id: LockId) {
        self.asks.retain(|ask| ask.id != id);
        self.deadlines.remove(&id);
        self.settle();
    }

    fn keep_bits(&mut self, id: LockId, keep: u64) {
        let Some(held) = self.held.iter_mut().find(|held| held.id == id) else { return };
        if held.bits & keep == held.bits {
            return;
        }
        held.bits &= keep;
        held.called_back = false;
        let held = held.clone();
        self.held.retain(|held| held.bits != 0);
        self.deadlines.remove(&id);
        for at in 0..self.operations.len() {
            let waits = self.held.iter().any(|held| self.operations[at].wants(held) != 0);
            if !self.operations[at].granted && !waits {
                self.operations[at].granted = true;
                let grant = self.grants.pop_front().map(|g| g.id);
                assert_eq!(grant, Some(self.operations[at].id), "the operation can go");
            }
        }
        if self.operations.iter().any(|operation| operation.wants(&held) != 0) {
            self.held.iter_mut().filter(|held| held.id == id).for_each(|held| held.called_back = true);
            self.callbacks.push((held.client, id));
            self.deadlines.insert(id, (self.now + TIMEOUT, held.client));
        }
    }
}

/// The engine and the model, step by step.
struct Run {
    random: Prng,
    s: Server,
    model: Model,
    /// How often each kind of step happened, so that none is tested in name only.
    seen: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let settings = Settings { grow: !seed.is_multiple_of(3), callback_timeout: TIMEOUT, ..Settings::default() };
        Run { random: Prng::new(seed), s: Server::with(settings), model: Model::default(), seen: BTreeMap::new() }
    }

    fn step(&mut self) {
        self.s.now += Duration::from_secs(self.random.below(8));
        self.model.now = self.s.now;
        match self.random.below(20) {
            0..=6 => self.enqueue(),
            7..=8 => self.lock_server(),
            9..=12 => self.give_back(),
            13..=14 => self.grant_inode(),
            15..=16 => self.lock_inodes(),
            17 => self.convert(),
            18 => self.work(),
            _ if self.random.one_in(3) => self.client_goes(),
            _ => self.withdraw(),
        }
        self.compare();
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn client(&mut self) -> u64 {
        self.random.below(CLIENTS)
    }

    fn ranges(&mut self) -> RangeSet {
        let one = |random: &mut Prng| {
            let start = random.below(60);
            Extent { start, end: if random.one_in(12) { u64::MAX } else { start + random.below(12) } }
        };
        let count = if self.random.one_in(3) { 1 + self.random.below(5) } else { 1 };
        RangeSet::from_extents((0..count).map(|_| one(&mut self.random))).unwrap()
    }

    fn take_effects(&mut self) {
        self.model.grants = std::mem::take(&mut self.s.effects.grants).into();
    }

    fn enqueue(&mut self) {
        let (client, ranges) = (self.client(), self.ranges());
        let mode = *self.random.pick(&[LockMode::Pr, LockMode::Pr, LockMode::Pw, LockMode::Pw, LockMode::Group]);
        let group = if mode == LockMode::Group { 1 + self.random.below(2) } else { 0 };
        let file = *self.random.pick(&FILES);
        let flags = *self.random.pick(&[
            0,
            0,
            0,
            enqueue_flags::NO_EXPANSION,
            enqueue_flags::NO_EXPANSION,
            enqueue_flags::BLOCK_NOWAIT,
            enqueue_flags::GLIMPSE,
        ]);
        let own: Vec<LockId> = self.model.asks.iter().filter(|a| a.client == client).map(|a| a.id).collect();
        let early = if own.is_empty() || !self.random.one_in(8) { None } else { Some(*self.random.pick(&own)) };
        let (start, end, more) = ranges.to_wire();
        let cancels = early.iter().map(|id| id.0).collect();
        let enqueue = Enqueue { resource: file, start, end, more, group, flags, cancels, ..extent(mode, 0, 0) };
        let outcome = self.s.send(client, enqueue);
        self.take_effects();
        if let Some(id) = early.filter(|id| self.model.asks.iter().any(|a| a.id == *id && a.granted && !a.local)) {
            self.saw("early cancel");
            self.model.remove_ask(id);
        }
        let exact = flags & enqueue_flags::NO_EXPANSION != 0;
        let leader = self.model.leader(file, group).filter(|_| group != 0);
        let (id, local, granted, called_back) = (LockId(u64::MAX), false, false, false);
        let ask = Asked { id, client, local, file, mode, group, exact, ranges, granted, called_back, leader };
        self.place(ask, outcome, flags);
    }

    /// Checks that the outcome of a client's request is the right one.
    fn place(&mut self, mut ask: Asked, outcome: Outcome, flags: u32) {
        let blocked = self.model.blocked(&ask);
        match outcome {
            Outcome::Done(reply) => {
                assert!(!blocked, "granted against the rule: {ask:?}");
                self.saw(if ask.mode == LockMode::Group { "group" } else { "granted" });
                self.saw(if range(&reply) == (ask.ranges.cover().start, ask.ranges.cover().end) {
                    "as is"
                } else {
                    "grown"
                });
                ask.id = LockId(reply.handle);
                self.model.asks.push(ask);
                self.model.granted(LockId(reply.handle), &reply);
                self.model.settle();
            }
            Outcome::Waiting(id) => {
                assert!(blocked, "waits for nothing: {ask:?}");
                assert_eq!(flags & (enqueue_flags::BLOCK_NOWAIT | enqueue_flags::GLIMPSE), 0);
                self.saw("waits");
                ask.id = id;
                self.model.call_back_for(&ask);
                self.model.asks.push(ask);
            }
            Outcome::Refused(errno) => {
                assert_eq!((errno, flags), (Errno::EAGAIN, enqueue_flags::BLOCK_NOWAIT));
                assert!(blocked);
                self.saw("refused");
            }
            Outcome::Glimpse(work) => {
                assert_eq!(flags, enqueue_flags::GLIMPSE);
                assert!(blocked);
                self.saw("glimpse");
                self.check_glimpse(&ask, &work);
            }
        }
    }

    /// Checks that every client that may have written is asked, by its lock that ends last, and that `settles_above` is
    /// right.
    fn check_glimpse(&self, ask: &Asked, work: &GlimpseWork) {
        let writers = |client: u64| {
            self.model.asks.iter().filter(move |a| {
                a.granted && !a.local && a.client == client && a.file == ask.file && a.mode != LockMode::Pr
            })
        };
        let ends: Vec<(u64, u64)> = (0..CLIENTS)
            .filter(|client| *client != ask.client)
            .filter_map(|client| writers(client).map(|a| a.ranges.cover().end).max().map(|end| (client, end)))
            .collect();
        assert_eq!(work.holders.len(), ends.len());
        let mut last = u64::MAX;
        for (at, holder) in work.holders.iter().enumerate() {
            let lock = self.model.asks.iter().find(|a| a.id == holder.lock).unwrap();
            let end = lock.ranges.cover().end;
            assert!(ends.contains(&(holder.client.0, end)) && lock.client == holder.client.0 && end <= last);
            last = end;
            for later in work.holders[at + 1..].iter().flat_map(|h| writers(h.client.0)) {
                let higher = later.ranges.cover().end > holder.settles_above;
                assert!(!higher, "{later:?} may know of more than {holder:?}");
            }
        }
    }

    fn lock_server(&mut self) {
        let (client, ranges, file) = (self.client(), self.ranges(), *self.random.pick(&FILES));
        let mode = *self.random.pick(&[LockMode::Pr, LockMode::Pw]);
        let (now, asked) = (self.s.now, ranges.clone());
        let local = self.s.namespace.lock_server(file, mode, asked, ClientId(client), now, &mut self.s.effects);
        self.take_effects();
        let granted = matches!(local, Local::Granted(_));
        let (id, group, exact, local, called_back, leader) = (local.id(), 0, true, true, false, None);
        let ask = Asked { id, client, local, file, mode, group, exact, ranges, granted: false, called_back, leader };
        assert_eq!(granted, !self.model.blocked(&ask), "{ask:?}");
        if !granted {
            self.saw("server waits");
            self.model.call_back_for(&ask);
        }
        self.model.asks.push(Asked { granted, ..ask });
    }

    /// Gives back any lock or request, preferably one that is called back, as clients do.
    fn give_back(&mut self) {
        let wanted = self.random.one_in(2);
        let asks = self.model.asks.iter().filter(|ask| !wanted || ask.called_back || ask.local);
        let asks = asks.map(|ask| (ask.id, ask.client, ask.local));
        let held = self.model.held.iter().filter(|held| !wanted || held.called_back);
        let held = held.map(|held| (held.id, held.client, false));
        let operations = self.model.operations.iter().map(|operation| (operation.id, operation.client, true));
        let all: Vec<_> = asks.chain(held).chain(operations).collect();
        if all.is_empty() {
            return;
        }
        let (id, client, local) = *self.random.pick(&all);
        if local {
            assert!(!self.s.cancel(client, id), "the server's own");
            self.s.unlock(id);
        } else {
            assert!(!self.s.cancel(client + 1, id), "another one's");
            self.s.unlock(id);
            if self.random.one_in(8) && self.model.asks.iter().all(|a| a.id != id || a.granted) {
                let now = self.s.now;
                self.s.namespace.handle_not_held(ClientId(client), id, now, &mut self.s.effects);
            } else {
                assert!(self.s.cancel(client, id));
            }
        }
        self.take_effects();
        self.model.remove_ask(id);
        self.model.keep_bits(id, 0);
        self.model.operations.retain(|operation| operation.id != id);
    }

    fn bits(&mut self) -> u64 {
        use inode_bits::{LOOKUP, PERM, UPDATE};
        *self.random.pick(&[LOOKUP, UPDATE, PERM, LOOKUP | UPDATE, UPDATE | PERM, inode_bits::ALL])
    }

    fn grant_inode(&mut self) {
        let (client, inode, bits) = (self.client(), *self.random.pick(&FILES), self.bits());
        let lock = self.s.namespace.grant_inode(ClientId(client), inode, bits);
        let others = self.model.operations.iter().filter(|operation| operation.client != client);
        let busy = others.flat_map(|o| &o.wants).filter(|(i, _)| *i == inode).fold(0, |busy, (_, bits)| busy | bits);
        let own = self.model.held.iter_mut().find(|held| (held.client, held.inode) == (client, inode));
        let may = own.as_ref().is_none_or(|held| !held.called_back) && bits & !busy != 0;
        assert_eq!(lock.as_ref().map(|lock| lock.bits), may.then_some(bits & !busy));
        let Some(lock) = lock else { return self.saw("no inode lock") };
        let id = LockId(lock.handle);
        match own {
            Some(held) => {
                assert_eq!(held.id, id, "one lock per inode");
                held.bits |= lock.bits;
            }
            None => self.model.held.push(InodeHeld { id, client, inode, bits: lock.bits, called_back: false }),
        }
        self.saw("inode lock");
    }

    fn lock_inodes(&mut self) {
        let client = self.client();
        let wants: Vec<(Fid, u64)> =
            (0..1 + self.random.below(3)).map(|_| (*self.random.pick(&FILES), self.bits())).collect();
        let local = self.s.lock_inodes(client, &wants);
        let mut operation = Operation { id: local.id(), client, wants, granted: true };
        for held in &mut self.model.held {
            if operation.wants(held) == 0 {
                continue;
            }
            operation.granted = false;
            if !held.called_back {
                held.called_back = true;
                self.model.callbacks.push((held.client, held.id));
                self.model.deadlines.insert(held.id, (self.model.now + TIMEOUT, held.client));
            }
        }
        assert_eq!(matches!(local, Local::Granted(_)), operation.granted, "{operation:?}");
        self.saw(if operation.granted { "operation" } else { "operation waits" });
        self.model.operations.push(operation);
    }

    fn convert(&mut self) {
        if self.model.held.is_empty() {
            return;
        }
        let held = self.random.pick(&self.model.held).clone();
        let keep = self.bits();
        assert!(self.s.convert(held.client, held.id, keep));
        self.take_effects();
        self.model.keep_bits(held.id, keep);
    }

    /// A read or write under a lock, or a look at the clock.
    fn work(&mut self) {
        if self.random.one_in(2) {
            let expired = self.s.namespace.expired(self.s.now, |_| None);
            let mut expected: Vec<u64> = self
                .model
                .deadlines
                .values()
                .filter(|(at, _)| *at <= self.model.now)
                .map(|(_, client)| *client)
                .collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(expired, expected.iter().map(|c| ClientId(*c)).collect::<Vec<_>>());
            self.model.deadlines.retain(|_, (at, _)| *at > self.model.now);
            for client in expected {
                self.saw("evicted");
                self.evict(client);
            }
        } else if !self.model.asks.is_empty() {
            let called_back: Vec<Asked> = self.model.asks.iter().filter(|ask| ask.called_back).cloned().collect();
            let some = if called_back.is_empty() { &self.model.asks } else { &called_back };
            let ask = self.random.pick(some).clone();
            let client = if self.random.one_in(4) { self.client() } else { ask.client };
            let (write, wanted) = (self.random.one_in(2), self.ranges());
            let wanted = if self.random.one_in(2) { ask.ranges.clone() } else { wanted };
            let covers = self.s.namespace.covers(ClientId(client), ask.id, ask.file, write, &wanted, self.s.now);
            let fits = wanted.subtract(&ask.ranges).is_none() && (!write || ask.mode != LockMode::Pr);
            assert_eq!(covers, ask.granted && !ask.local && ask.client == client && fits, "{ask:?}");
            if let Some((deadline, _)) = self.model.deadlines.get_mut(&ask.id).filter(|_| covers) {
                *deadline = self.model.now + TIMEOUT;
                self.saw("prolonged");
            }
        }
    }

    fn client_goes(&mut self) {
        let client = self.client();
        self.evict(client);
    }

    fn evict(&mut self, client: u64) {
        let waiting = self.s.client_gone(client);
        self.take_effects();
        let own = |model: &Model, granted: bool| -> Vec<LockId> {
            let own = model.asks.iter().filter(|a| a.client == client && !a.local && a.granted == granted);
            own.map(|a| a.id).collect()
        };
        let (waited, held) = (own(&self.model, false), own(&self.model, true));
        assert_eq!(waiting, waited);
        waited.into_iter().chain(held).for_each(|id| self.model.remove_ask(id));
        let mut inodes: Vec<_> =
            self.model.held.iter().filter(|h| h.client == client).map(|h| (h.inode, h.id)).collect();
        inodes.sort_unstable();
        inodes.into_iter().for_each(|(_, id)| self.model.keep_bits(id, 0));
    }

    fn withdraw(&mut self) {
        let waiting: Vec<&Asked> = self.model.asks.iter().filter(|ask| !ask.granted && !ask.local).collect();
        if waiting.is_empty() {
            return;
        }
        let ask = (*self.random.pick(&waiting)).clone();
        let (start, end, more) = ask.ranges.to_wire();
        let like =
            Enqueue { resource: ask.file, start, end, more, flags: enqueue_flags::WITHDRAW, ..extent(ask.mode, 0, 0) };
        let reply = done(self.s.send(ask.client, like));
        self.take_effects();
        assert_eq!(reply.mode, LockMode::Nl);
        let id = LockId(reply.handle);
        let same = self.model.asks.iter().find(|a| a.id == id).unwrap();
        assert_eq!((same.client, &same.ranges, same.granted), (ask.client, &ask.ranges, false));
        self.model.remove_ask(id);
        self.saw("withdrawn");
    }

    /// Checks that engine and model agree after each step.
    fn compare(&mut self) {
        assert!(self.model.grants.is_empty(), "granted against the rule: {:?}", self.model.grants);
        let mut called_back = self.s.called_back();
        called_back.sort_unstable();
        self.model.callbacks.sort_unstable();
        assert_eq!(called_back, std::mem::take(&mut self.model.callbacks));
        let next = self.model.deadlines.values().map(|(at, _)| *at).min().unwrap_or(Time::FAR_FUTURE);
        assert_eq!(self.s.namespace.next_deadline(), next);
        let asks = |granted: bool| self.model.asks.iter().filter(move |a| a.granted == granted);
        let held = asks(true).filter(|a| !a.local).count() + self.model.held.len();
        let waiting = asks(false).count() + self.model.operations.iter().filter(|o| !o.granted).count();
        assert_eq!((self.s.namespace.lock_count(), self.s.namespace.waiting_count()), (held, waiting));
    }

    /// Removes everything, and checks that nothing is left.
    fn end(mut self) -> BTreeMap<&'static str, u64> {
        (0..CLIENTS).for_each(|client| self.evict(client));
        let locals = self.model.asks.iter().map(|ask| ask.id).collect::<Vec<_>>();
        let operations = self.model.operations.iter().map(|operation| operation.id);
        locals.into_iter().chain(operations).for_each(|id| self.s.unlock(id));
        self.s.assert_empty();
        self.seen
    }
}

#[test]
fn the_engine_agrees_with_the_rules() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            (0..STEPS).for_each(|_| run.step());
            run.end()
        });
        let of_run = run.unwrap_or_else(|_| panic!("seed {seed}"));
        of_run.into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    let kinds = [
        "granted",
        "group",
        "grown",
        "as is",
        "waits",
        "refused",
        "glimpse",
        "server waits",
        "early cancel",
        "inode lock",
        "no inode lock",
        "operation",
        "operation waits",
        "withdrawn",
        "prolonged",
        "evicted",
    ];
    for kind in kinds {
        assert!(seen.get(kind).is_some_and(|times| *times > SEEDS / 4), "{kind}: {seen:?}");
    }
}

const SEEDS: u64 = 300;
const STEPS: u64 = 300;
