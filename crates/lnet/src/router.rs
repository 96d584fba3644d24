//! The buffers and credits of a router. A sans-IO engine.
//!
//! A message that is passed on holds a router credit of the peer that it came from, and a buffer of the pool that fits it,
//! until the *next* peer has taken it (the paper on pings at scale): so a router that cannot get rid of messages stops taking
//! them, and its senders stop in turn. A message waits for a credit of its peer first, and then for a buffer.
//!
//! Beyond Lustre there are lanes by purpose. Each purpose has a reserve of every pool and of every peer's credits, so a flood
//! of one kind cannot take what another needs to move at all. Within a lane, buffers go to next hops in turns, and within a
//! next hop to sources in turns; a next hop that has its share of a pool gets more only while nobody else waits and a
//! quarter of the pool is left.
//! Without lanes there is one queue for each pool, first in first out, as in Lustre.
//!
//! The sizes of the pools can be changed while messages are in transit. A pool that has become smaller owes what is taken
//! beyond its size, and gives out nothing until that has come back.

use crate::credits::{Item, Packable};
use crate::message::Purpose;
use crate::stock::{STOCK_MAX, Stock, Taken, lane_of};
use crate::waits::{WaitTimes, Waits};
use nacre_base::{FxHashMap, Network, Nid, Time};
use std::collections::VecDeque;

/// Largest payload that fits into a small buffer: one page.
pub(crate) const SMALL_MAX: usize = 4096;

/// Sizes of the pools, and whether purposes have lanes of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterOptions {
    /// Buffers for messages without a payload.
    pub tiny_buffers: u32,
    /// Buffers for payloads of up to 4 KiB.
    pub small_buffers: u32,
    /// Buffers for larger payloads, up to 1 MiB of data with the head of its request.
    pub large_buffers: u32,
    /// Messages of one peer that a router holds; 0 is the most that a peer may be sent and not have taken, `peer_credits_max`, or what its
    /// network has instead. They are held until the next node has taken them, which on a long path takes a round trip.
    pub peer_buffer_credits: u32,
    /// Whether each purpose has a reserve, and next hops and sources take turns; otherwise first in first out.
    pub lanes: bool,
}

impl Default for RouterOptions {
    /// Lustre's pools. The large one is 1 GiB if it is ever used up; buffers are allocated when messages come.
    fn default() -> RouterOptions {
        RouterOptions {
            tiny_buffers: 2048,
            small_buffers: 16_384,
            large_buffers: 1024,
            peer_buffer_credits: 0,
            lanes: true,
        }
    }
}

impl RouterOptions {
    /// Sizes of the pools, in the order of [`PoolKind::ALL`].
    pub fn buffers(&self) -> [u32; PoolKind::ALL.len()] {
        [self.tiny_buffers, self.small_buffers, self.large_buffers]
    }

    /// Says what is wrong with sizes that a person chose.
    pub fn check(&self) -> Result<(), String> {
        match PoolKind::ALL.iter().zip(self.buffers()).find(|(_, size)| !(1..=STOCK_MAX).contains(size)) {
            Some((kind, 0)) => Err(format!("a router needs at least one {} buffer", kind.name())),
            Some((kind, size)) => Err(format!("{size} {} buffers are too many; {STOCK_MAX} is the most", kind.name())),
            None => Ok(()),
        }
    }
}

/// Which pool a message needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Headers alone.
    Tiny,
    /// Payloads of up to 4 KiB.
    Small,
    /// Larger payloads.
    Large,
}

impl PoolKind {
    /// All kinds, in the order in which `lnetctl routing show` names them.
    pub const ALL: [PoolKind; 3] = [PoolKind::Tiny, PoolKind::Small, PoolKind::Large];

    /// `tiny`, `small` or `large`.
    pub fn name(self) -> &'static str {
        match self {
            PoolKind::Tiny => "tiny",
            PoolKind::Small => "small",
            PoolKind::Large => "large",
        }
    }

    /// Pages of 4 KiB that a buffer has room for.
    pub fn pages(self) -> u32 {
        match self {
            PoolKind::Tiny => 0,
            PoolKind::Small => 1,
            PoolKind::Large => 256,
        }
    }

    fn of(payload: usize) -> PoolKind {
        match payload {
            0 => PoolKind::Tiny,
            1..=SMALL_MAX => PoolKind::Small,
            _ => PoolKind::Large,
        }
    }
}

/// A message that wants to be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    /// The peer that it came from.
    pub(crate) from: Nid,
    /// The peer that it goes to next.
    pub(crate) to: Nid,
    /// Bytes of its payload.
    pub(crate) payload: usize,
    pub(crate) purpose: Purpose,
}

/// What a message in transit holds.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the credit and the buffer are held until they are given back"]
pub(crate) struct Held {
    transit: Transit,
    credit: Taken,
    buffer: Taken,
    is_of_the_last: bool,
}

impl Held {
    /// The peer that the message goes to.
    pub(crate) fn next_hop(&self) -> Nid {
        self.transit.to
    }

    /// Whether less than half of its peer's credits, or of its pool, was free when the message got what it holds.
    pub(crate) fn is_of_the_last(&self) -> bool {
        self.is_of_the_last
    }
}

/// Credits or buffers as `lnetctl` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// How many there are.
    pub max: u32,
    /// Free now; below zero, the number of messages that wait.
    pub available: i64,
    /// The lowest that `available` has been.
    pub low_water: i64,
}

/// The engine. `T` stands for whoever brings the message, and is handed out with what the message holds.
pub(crate) struct Router<T: Packable> {
    options: RouterOptions,
    peer_credits: u32,
    /// Networks whose peers have another number of credits.
    network_credits: FxHashMap<Network, u32>,
    pools: [Pool<T>; 3],
    peers: FxHashMap<Nid, Peer<T>>,
    /// Messages of a peer that wait in a lane for a router credit as they are, and messages that wait for buffers of a pool; further
    /// ones wait packed.
    unpacked_max: usize,
    /// Times that messages waited for a router credit.
    waits: WaitTimes,
}

/// Router credits of a peer, and its messages that wait for one.
struct Peer<T: Packable> {
    credits: Stock,
    /// Made when the first message waits, because a router may have thousands of peers, and most are never short of credits.
    waiting: Option<Box<Waiting<T>>>,
}

/// Messages that wait for a router credit, by lane, each with the time since when.
type Waiting<T> = [VecDeque<(Transit, Time, Item<T>)>; Purpose::COUNT];

struct Pool<T: Packable> {
    stock: Stock,
    /// Without lanes: all messages wait in one queue, whoever they are from and wherever they go.
    is_single_queue: bool,
    /// How many buffers a next hop may hold while others wait.
    share: u32,
    /// Buffers that each next hop holds.
    held: [FxHashMap<Nid, u32>; Purpose::COUNT],
    lanes: [Lane<T>; Purpose::COUNT],
    /// Times that messages waited for a buffer.
    waits: WaitTimes,
}

/// A message that holds a credit and waits for a buffer, and since when.
struct Waiter<T: Packable> {
    transit: Transit,
    credit: Taken,
    /// Whether less than half of its peer's credits was free then.
    is_of_the_last: bool,
    since: Time,
    message: Item<T>,
}

/// Messages of one purpose that hold a credit and wait for a buffer.
struct Lane<T: Packable> {
    /// Next hops that have messages here and are within their share, in turns.
    turns: VecDeque<Nid>,
    /// Next hops that have messages here and their share already.
    beyond: VecDeque<Nid>,
    hops: FxHashMap<Nid, Sources<T>>,
}

/// Messages for one next hop, by the peer that they came from, in turns.
struct Sources<T: Packable> {
    turns: VecDeque<Nid>,
    messages: FxHashMap<Nid, VecDeque<Waiter<T>>>,
}

impl<T: Packable> Router<T> {
    /// `peer_credits` is the number of credits that a peer has unless the options say otherwise.
    pub(crate) fn new(options: &RouterOptions, peer_credits: u32) -> Router<T> {
        let peer_credits = if options.peer_buffer_credits == 0 { peer_credits } else { options.peer_buffer_credits };
        let pools = options.buffers().map(|max| Pool::new(max, options.lanes));
        let (network_credits, peers, waits) = Default::default();
        let unpacked_max = usize::MAX;
        Router { options: *options, peer_credits, network_credits, pools, peers, unpacked_max, waits }
    }

    /// Has messages that wait behind so many others wait packed.
    pub(crate) fn with_unpacked(mut self, max: usize) -> Router<T> {
        self.unpacked_max = max;
        self
    }

    /// Changes the number of credits that each peer on a network has, unless the options have a number for all. Returns the
    /// messages that go on now.
    pub(crate) fn set_peer_credits(&mut self, network: Network, credits: u32, now: Time) -> Vec<(Held, T)> {
        match self.options.peer_buffer_credits {
            0 => self.set_peer_buffer_credits(network, credits, now),
            _ => Vec::new(),
        }
    }

    /// The same, whatever the options say.
    pub(crate) fn set_peer_buffer_credits(&mut self, network: Network, credits: u32, now: Time) -> Vec<(Held, T)> {
        let mut out = Vec::new();
        self.network_credits.insert(network, credits);
        let mut concerned: Vec<Nid> = self.peers.keys().filter(|nid| nid.network == network).copied().collect();
        concerned.sort();
        for nid in concerned {
            if let Some(peer) = self.peers.get_mut(&nid) {
                peer.credits.resize(credits, self.options.lanes);
            }
            self.use_credits(nid, now, &mut out);
        }
        self.assert_sound();
        out
    }

    fn credits_of(&self, peer: Nid) -> u32 {
        self.credits_on(peer.network)
    }

    /// The number of credits that each peer on a network has.
    pub(crate) fn credits_on(&self, network: Network) -> u32 {
        self.network_credits.get(&network).copied().unwrap_or(self.peer_credits)
    }

    /// What the router was made with, and the sizes that its pools have now.
    pub(crate) fn options(&self) -> &RouterOptions {
        &self.options
    }

    /// Changes the sizes of the pools. Returns the messages that go on now.
    pub(crate) fn resize(&mut self, buffers: [u32; PoolKind::ALL.len()], now: Time) -> Vec<(Held, T)> {
        let (mut out, lanes) = (Vec::new(), self.options.lanes);
        for (pool, max) in self.pools.iter_mut().zip(buffers) {
            pool.resize(max, lanes);
            out.extend(std::iter::from_fn(|| pool.next(now)));
        }
        [self.options.tiny_buffers, self.options.small_buffers, self.options.large_buffers] = buffers;
        self.assert_sound();
        out
    }

    /// Gives each purpose a reserve and a queue of its own, or takes them away. Returns the messages that go on now.
    pub(crate) fn set_lanes(&mut self, lanes: bool, now: Time) -> Vec<(Held, T)> {
        let mut out = Vec::new();
        self.options.lanes = lanes;
        for pool in &mut self.pools {
            pool.resize(pool.stock.max(), lanes);
            out.extend(std::iter::from_fn(|| pool.next(now)));
        }
        let mut peers: Vec<Nid> = self.peers.keys().copied().collect();
        peers.sort();
        for nid in peers {
            if let Some(peer) = self.peers.get_mut(&nid) {
                peer.credits.resize(peer.credits.max(), lanes);
            }
            self.use_credits(nid, now, &mut out);
        }
        self.assert_sound();
        out
    }

    /// A message arrived. Returns it with what it holds if it can go on now; otherwise it waits, and a later call hands it
    /// out.
    pub(crate) fn handle_arrival(&mut self, transit: Transit, message: T, now: Time) -> Option<(Held, T)> {
        let (max, lanes, lane) = (self.credits_of(transit.from), self.options.lanes, self.lane(transit.purpose));
        let peer = self.peers.entry(transit.from).or_insert_with(|| Peer::new(max, lanes));
        // Those that wait already go first.
        let is_next = peer.waiting.as_deref().is_none_or(|waiting| waiting[lane].is_empty());
        let credit = is_next.then(|| peer.credits.take(lane)).flatten();
        if credit.is_none() {
            peer.credits.wait();
        }
        peer.credits.note_low();
        let is_of_the_last = peer.credits.is_low();
        let Some(credit) = credit else {
            let queue = &mut peer.waiting.get_or_insert_default()[lane];
            let message = Item::Whole(message).at_rest(queue.len(), self.unpacked_max);
            queue.push_back((transit, now, message));
            return None;
        };
        self.want_buffer(Waiter { transit, credit, is_of_the_last, since: now, message: Item::Whole(message) })
    }

    /// A message was taken by the next peer, or given up. Returns those that go on now.
    pub(crate) fn handle_done(&mut self, held: Held, now: Time) -> Vec<(Held, T)> {
        let (Held { transit, credit, buffer, .. }, mut out) = (held, Vec::new());
        let pool = &mut self.pools[PoolKind::of(transit.payload) as usize];
        pool.give_back(transit.to, buffer);
        // More than one may go: the next hop may be within its share again, and what waited for that needs a reserve.
        out.extend(std::iter::from_fn(|| pool.next(now)));
        self.give_credit_back(transit.from, credit, now, &mut out);
        out
    }

    /// A peer is gone: what of it waits is given up, and what waits to go to it. What holds a buffer comes back by
    /// [`Router::handle_done`]. Returns who brought the messages given up, and those that go on now.
    pub(crate) fn handle_peer_gone(&mut self, gone: Nid, now: Time) -> (Vec<T>, Vec<(Held, T)>) {
        let (mut lost, mut out) = (Vec::new(), Vec::new());
        if let Some(peer) = self.peers.get_mut(&gone) {
            for queue in peer.waiting.iter_mut().flat_map(|waiting| waiting.iter_mut()) {
                peer.credits.stop_waiting(queue.len());
                lost.extend(queue.drain(..).map(|(.., message)| message.unpacked()));
            }
        }
        let mut without_buffer = Vec::new();
        for pool in &mut self.pools {
            without_buffer.extend(pool.drain(|transit| transit.from == gone || transit.to == gone));
        }
        for Waiter { transit, credit, message, .. } in without_buffer {
            lost.push(message.unpacked());
            self.give_credit_back(transit.from, credit, now, &mut out);
        }
        self.forget_idle(gone);
        self.assert_sound();
        (lost, out)
    }

    /// Levels of a pool.
    pub(crate) fn pool(&self, kind: PoolKind) -> Level {
        self.pools[kind as usize].stock.level()
    }

    /// Router credits of a peer; all of them if nothing of it was ever passed on.
    pub(crate) fn peer(&self, peer: Nid) -> Level {
        self.peers
            .get(&peer)
            .map_or_else(|| Stock::new(self.credits_of(peer), self.options.lanes).level(), |p| p.credits.level())
    }

    /// How long messages waited for a router credit, and for a buffer of each pool.
    pub(crate) fn waits(&self) -> (Waits, [Waits; PoolKind::ALL.len()]) {
        (self.waits.read(), PoolKind::ALL.map(|kind| self.pools[kind as usize].waits.read()))
    }

    /// True if nothing is in transit, and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.pools.iter().all(|p| p.stock.taken() == 0)
            && self.peers.values().all(|p| p.credits.taken() + p.credits.waiting() == 0)
    }

    fn lane(&self, purpose: Purpose) -> usize {
        lane_of(self.options.lanes, purpose)
    }

    fn want_buffer(&mut self, waiter: Waiter<T>) -> Option<(Held, T)> {
        let (lane, unpacked_max) = (self.lane(waiter.transit.purpose), self.unpacked_max);
        self.pools[PoolKind::of(waiter.transit.payload) as usize].want(lane, waiter, unpacked_max)
    }

    fn give_credit_back(&mut self, from: Nid, credit: Taken, now: Time, out: &mut Vec<(Held, T)>) {
        let Some(peer) = self.peers.get_mut(&from) else { panic!("{from} has no router credits to get one back") };
        peer.credits.give(credit);
        self.use_credits(from, now, out);
    }

    /// Messages of a peer that wait for a credit take those that are free.
    fn use_credits(&mut self, from: Nid, now: Time, out: &mut Vec<(Held, T)>) {
        while let Some((transit, since, message, credit)) = self.peers.get_mut(&from).and_then(Peer::next) {
            self.waits.add(now.since(since));
            // Others waited for credits just now.
            out.extend(self.want_buffer(Waiter { transit, credit, is_of_the_last: true, since: now, message }));
        }
    }

    fn forget_idle(&mut self, nid: Nid) {
        if self.peers.get(&nid).is_some_and(|peer| peer.credits.taken() + peer.credits.waiting() == 0) {
            self.peers.remove(&nid);
        }
    }

    /// Panics if a credit or a buffer was lost or made. Visits everything.
    fn assert_sound(&self) {
        let buffers: u32 = self.pools.iter().map(|p| p.stock.taken()).sum();
        let waiting: usize = self.pools.iter().map(Pool::assert_sound).sum();
        let credits: u32 = self.peers.values().map(|p| p.credits.taken()).sum();
        self.peers.values().for_each(|p| {
            p.credits.assert_conserved();
            assert_eq!(
                p.credits.waiting() as usize,
                p.waiting.iter().flat_map(|waiting| waiting.iter()).map(VecDeque::len).sum::<usize>(),
                "messages that wait"
            );
        });
        assert_eq!(
            credits as usize,
            buffers as usize + waiting,
            "messages with a credit, and with a buffer or waiting for one"
        );
    }
}

impl<T: Packable> Peer<T> {
    fn new(max: u32, lanes: bool) -> Peer<T> {
        Peer { credits: Stock::new(max, lanes), waiting: None }
    }

    /// The next message that gets a credit.
    fn next(&mut self) -> Option<(Transit, Time, Item<T>, Taken)> {
        for (lane, queue) in self.waiting.as_deref_mut()?.iter_mut().enumerate() {
            if queue.is_empty() {
                continue;
            }
            if let Some(credit) = self.credits.take(lane) {
                self.credits.stop_waiting(1);
                let (transit, since, message) = queue.pop_front()?;
                return Some((transit, since, message, credit));
            }
        }
        None
    }
}

impl<T: Packable> Pool<T> {
    fn new(max: u32, lanes: bool) -> Pool<T> {
        let stock = Stock::new(max, lanes);
        let (share, held) = (Pool::<T>::share(&stock, lanes), Default::default());
        Pool { stock, is_single_queue: !lanes, share, held, lanes: Default::default(), waits: WaitTimes::default() }
    }

    /// How many buffers a next hop may hold of each lane while others wait: a quarter of those that the lane may take.
    fn share(stock: &Stock, lanes: bool) -> u32 {
        assert!(stock.max() > 0, "a pool without buffers passes nothing on");
        if lanes { (stock.most_for_one() as u32 / 4).max(1) } else { stock.max() }
    }

    fn resize(&mut self, max: u32, lanes: bool) {
        self.stock.resize(max, lanes);
        self.is_single_queue = !lanes;
        self.share = Pool::<T>::share(&self.stock, lanes);
        for lane in 0..Purpose::COUNT {
            let waiting: Vec<Nid> = self.lanes[lane].hops.keys().copied().collect();
            for hop in waiting {
                self.note_share(lane, hop);
            }
        }
    }

    fn want(&mut self, lane: usize, mut waiter: Waiter<T>, unpacked_max: usize) -> Option<(Held, T)> {
        waiter.message = waiter.message.at_rest(self.stock.waiting() as usize, unpacked_max);
        self.stock.wait();
        let turn = if self.is_single_queue { (Nid::LO, Nid::LO) } else { (waiter.transit.to, waiter.transit.from) };
        let within = self.is_within_share(lane, turn.0);
        let now = waiter.since;
        self.lanes[lane].push(within, turn, waiter);
        let next = self.next(now);
        self.stock.note_low();
        next
    }

    /// True if a next hop may get more than its share for messages of this lane: more than a quarter of what they may take is free.
    fn has_plenty(&self, lane: usize) -> bool {
        self.stock.left_for(lane) * 4 > self.stock.most_for_one()
    }

    fn is_within_share(&self, lane: usize, to: Nid) -> bool {
        self.held[lane].get(&to).copied().unwrap_or(0) < self.share
    }

    /// Moves a next hop's waiting messages to the right turns after the number of its buffers in this lane has changed.
    fn note_share(&mut self, lane: usize, to: Nid) {
        let within = self.is_within_share(lane, to);
        self.lanes[lane].set_within_share(to, within);
    }

    fn give_back(&mut self, to: Nid, buffer: Taken) {
        let lane = buffer.lane();
        self.stock.give(buffer);
        let all = &mut self.held[lane];
        let Some(held) = all.get_mut(&to) else { panic!("{to} gives back a buffer that it did not hold") };
        *held -= 1;
        if *held == 0 {
            all.remove(&to);
        }
        self.note_share(lane, to);
    }

    /// The next message that gets a buffer: of the first lane that may have one, to a next hop within its share if there
    /// is any in any lane.
    fn next(&mut self, now: Time) -> Option<(Held, T)> {
        for beyond in [false, true] {
            for lane in 0..Purpose::COUNT {
                if !self.stock.can_take(lane) || beyond && !self.has_plenty(lane) {
                    continue;
                }
                let Some(waiter) = self.lanes[lane].pop(beyond) else { continue };
                let Waiter { transit, credit, is_of_the_last, since, message } = waiter;
                let buffer = self.stock.take(lane)?;
                self.stock.stop_waiting(1);
                let is_of_the_last = is_of_the_last || self.stock.is_low();
                if since < now {
                    self.waits.add(now.since(since));
                }
                *self.held[lane].entry(transit.to).or_default() += 1;
                self.note_share(lane, transit.to);
                return Some((Held { transit, credit, buffer, is_of_the_last }, message.unpacked()));
            }
        }
        None
    }

    fn drain(&mut self, is_gone: impl Fn(&Transit) -> bool) -> Vec<Waiter<T>> {
        let mut out = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.drain(&is_gone, &mut out));
        self.stock.stop_waiting(out.len());
        out
    }

    /// Returns how many messages wait.
    fn assert_sound(&self) -> usize {
        self.stock.assert_conserved();
        let waiting = self.lanes.iter().map(Lane::len).sum::<usize>();
        assert_eq!(self.stock.waiting() as usize, waiting, "messages that wait for a buffer");
        let held: u32 = self.held.iter().flat_map(FxHashMap::values).sum();
        assert_eq!(held, self.stock.taken(), "buffers held by next hops");
        let is_idle = |lane: usize| self.stock.can_take(lane) && !self.lanes[lane].turns.is_empty();
        assert!(!(0..Purpose::COUNT).any(is_idle), "a message waits for a buffer that is free");
        waiting
    }
}

impl<T: Packable> Default for Lane<T> {
    fn default() -> Lane<T> {
        Lane { turns: VecDeque::new(), beyond: VecDeque::new(), hops: FxHashMap::default() }
    }
}

impl<T: Packable> Lane<T> {
    /// Adds a message, in turn with others to this next hop and, among those, with others from this source.
    fn push(&mut self, within_share: bool, (to, from): (Nid, Nid), message: Waiter<T>) {
        let sources = self.hops.entry(to).or_insert_with(|| {
            if within_share { &mut self.turns } else { &mut self.beyond }.push_back(to);
            Sources { turns: VecDeque::new(), messages: FxHashMap::default() }
        });
        let queue = sources.messages.entry(from).or_default();
        if queue.is_empty() {
            sources.turns.push_back(from);
        }
        // Tens of thousands may wait in one queue, which would double otherwise.
        if queue.len() == queue.capacity() {
            queue.reserve_exact((queue.len() / 4).max(4));
        }
        queue.push_back(message);
    }

    fn pop(&mut self, beyond: bool) -> Option<Waiter<T>> {
        let turns = if beyond { &mut self.beyond } else { &mut self.turns };
        let to = turns.pop_front()?;
        let sources = self.hops.get_mut(&to)?;
        let from = sources.turns.pop_front()?;
        let queue = sources.messages.get_mut(&from)?;
        let message = queue.pop_front();
        if queue.is_empty() {
            sources.messages.remove(&from);
        } else {
            sources.turns.push_back(from);
        }
        if sources.turns.is_empty() {
            self.hops.remove(&to);
        } else {
            turns.push_back(to);
        }
        message
    }

    /// A next hop has come within its share, or has taken all of it.
    fn set_within_share(&mut self, to: Nid, within: bool) {
        let (from, into) = match within {
            true => (&mut self.beyond, &mut self.turns),
            false => (&mut self.turns, &mut self.beyond),
        };
        if let Some(at) = from.iter().position(|hop| *hop == to) {
            from.remove(at);
            into.push_back(to);
        }
    }

    fn drain(&mut self, is_gone: &impl Fn(&Transit) -> bool, out: &mut Vec<Waiter<T>>) {
        self.hops.retain(|_, sources| {
            sources.messages.retain(|_, queue| {
                let all = std::mem::take(queue);
                let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                    all.into_iter().partition(|waiter| is_gone(&waiter.transit));
                out.extend(gone);
                *queue = kept;
                !queue.is_empty()
            });
            sources.turns.retain(|from| sources.messages.contains_key(from));
            !sources.turns.is_empty()
        });
        self.turns.retain(|to| self.hops.contains_key(to));
        self.beyond.retain(|to| self.hops.contains_key(to));
    }

    fn len(&self) -> usize {
        self.hops.values().flat_map(|s| s.messages.values()).map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::time::Duration;

    const NOW: Time = Time::ZERO;

    /// Odd messages can be packed.
    impl Packable for u32 {
        type Packed = String;

        fn pack(self) -> Result<String, u32> {
            if self.is_multiple_of(2) { Err(self) } else { Ok(self.to_string()) }
        }

        fn unpack(packed: String) -> u32 {
            packed.parse().unwrap()
        }
    }

    fn options(large: u32, peer_buffer_credits: u32, lanes: bool) -> RouterOptions {
        RouterOptions { tiny_buffers: 8, small_buffers: 8, large_buffers: large, peer_buffer_credits, lanes }
    }

    #[test]
    fn a_pool_has_a_buffer_and_no_more_than_can_be_counted() {
        let check = |small_buffers| RouterOptions { small_buffers, ..RouterOptions::default() }.check();
        assert_eq!((check(1), check(STOCK_MAX)), (Ok(()), Ok(())));
        assert_eq!(check(0), Err("a router needs at least one small buffer".to_owned()));
        assert!(check(STOCK_MAX + 1).unwrap_err().contains("too many"));
    }

    fn transit(from: u32, to: u32, payload: usize, purpose: Purpose) -> Transit {
        Transit { from: Nid::sim(from), to: Nid::sim(to), payload, purpose }
    }

    fn bulk(from: u32, to: u32) -> Transit {
        transit(from, to, 1 << 20, Purpose::Bulk)
    }

    /// Names of the messages that go on.
    fn names(out: &[(Held, u32)]) -> Vec<u32> {
        out.iter().map(|(_, name)| *name).collect()
    }

    /// While there is enough of both, nobody has to hear soon that a message was taken.
    #[test]
    fn a_message_knows_whether_it_holds_one_of_the_last_credits_or_buffers() {
        let last = |router: &mut Router<u32>, from: u32| {
            router.handle_arrival(bulk(from, 9), from, NOW).map(|(held, _)| held.is_of_the_last())
        };
        let mut router = Router::new(&options(100, 4, false), 8);
        assert_eq!([1, 1, 1, 2].map(|from| last(&mut router, from)), [false, false, true, false].map(Some), "credits");
        let mut router = Router::new(&options(4, 100, false), 8);
        assert_eq!([1, 2, 3, 4].map(|from| last(&mut router, from)), [false, false, true, true].map(Some), "buffers");
    }

    #[test]
    fn a_peer_without_credits_waits_in_order_and_holds_nobody_else_back() {
        let mut router = Router::new(&options(100, 2, false), 8);
        let (first, _) = router.handle_arrival(bulk(1, 9), 1, NOW).unwrap();
        let _second = router.handle_arrival(bulk(1, 9), 2, NOW).unwrap();
        assert!(
            router.handle_arrival(bulk(1, 9), 3, NOW).is_none() && router.handle_arrival(bulk(1, 9), 4, NOW).is_none()
        );
        assert!(router.handle_arrival(bulk(2, 9), 5, NOW).is_some());
        assert_eq!(router.peer(Nid::sim(1)), Level { max: 2, available: -2, low_water: -2 });
        assert_eq!(names(&router.handle_done(first, NOW)), [3]);
        router.assert_sound();
    }

    #[test]
    fn a_full_pool_serves_first_in_first_out_without_lanes() {
        let mut router = Router::new(&options(1, 8, false), 8);
        let (held, _) = router.handle_arrival(bulk(1, 9), 1, NOW).unwrap();
        assert!(
            router.handle_arrival(bulk(1, 9), 2, NOW).is_none() && router.handle_arrival(bulk(1, 9), 3, NOW).is_none()
        );
        assert_eq!(router.pool(PoolKind::Large), Level { max: 1, available: -2, low_water: -2 });
        assert!(router.handle_arrival(transit(2, 9, 100, Purpose::Requests), 4, NOW).is_some(), "another pool");
        let mut out = router.handle_done(held, NOW);
        assert_eq!(names(&out), [2]);
        out = router.handle_done(out.remove(0).0, NOW);
        assert_eq!(names(&out), [3]);
        router.assert_sound();
    }

    /// Messages to others and from others once overtook those that came first.
    #[test]
    fn without_lanes_nobody_has_turns() {
        let mut router = Router::new(&options(1, 8, false), 8);
        let (mut held, _) = router.handle_arrival(bulk(1, 9), 0, NOW).unwrap();
        for (from, to, name) in [(1, 9, 1), (1, 9, 2), (2, 9, 3), (1, 8, 4), (2, 9, 5)] {
            assert!(router.handle_arrival(bulk(from, to), name, NOW).is_none());
        }
        for expected in 1..=5 {
            let (next, name) = router.handle_done(held, NOW).remove(0);
            assert_eq!(name, expected);
            held = next;
        }
    }

    #[test]
    fn peers_of_a_network_can_have_another_number_of_credits_and_use_it_at_once() {
        let mut router = Router::new(&options(100, 0, false), 2);
        let mut held: Vec<_> = (0..5).filter_map(|name| router.handle_arrival(bulk(1, 9), name, NOW)).collect();
        assert_eq!(held.len(), 2);
        held.extend(router.set_peer_credits(Network::SIM, 4, NOW));
        assert_eq!(names(&held), [0, 1, 2, 3]);
        assert_eq!((router.peer(Nid::sim(1)).available, router.peer(Nid::sim(2)).max), (-1, 4));
        assert!(router.set_peer_credits(Network::SIM, 1, NOW).is_empty());
        for (left, (held, _)) in held.into_iter().enumerate() {
            assert_eq!(router.handle_done(held, NOW).len(), usize::from(left == 3));
        }
        router.assert_sound();
    }

    /// With lanes, a flood of one kind leaves the others what they need to move.
    #[test]
    fn a_flood_of_pings_leaves_credits_and_buffers_to_others() {
        let (ping, cancel) = (transit(1, 9, 0, Purpose::Control), transit(1, 9, 0, Purpose::Callbacks));
        let mut router = Router::new(&options(8, 8, true), 8);
        let through = (0..100).filter(|n| router.handle_arrival(ping, *n, NOW).is_some()).count();
        assert_eq!(
            through, 4,
            "of the four that are shared and the reserve of one, a quarter is left to other next hops"
        );
        assert!(router.handle_arrival(cancel, 100, NOW).is_some());
        let mut router = Router::new(&options(8, 8, false), 8);
        let through = (0..100).filter(|n| router.handle_arrival(ping, *n, NOW).is_some()).count();
        assert_eq!((through, router.handle_arrival(cancel, 100, NOW).is_none()), (8, true));
    }

    #[test]
    fn next_hops_and_sources_take_turns() {
        let mut router = Router::new(&options(16, 100, true), 8);
        let mut held: Vec<_> = (0..10).map(|n| router.handle_arrival(bulk(7, n), 0, NOW).unwrap().0).collect();
        // To hop 50 from two sources, to hop 51 from one.
        for (name, from, to) in [(1, 1, 50), (2, 1, 50), (3, 2, 50), (4, 1, 51), (5, 1, 51)] {
            assert!(router.handle_arrival(bulk(from, to), name, NOW).is_none());
        }
        // The last has to wait until enough is left for others.
        let order: Vec<_> = (0..8).flat_map(|_| names(&router.handle_done(held.remove(0), NOW))).collect();
        assert_eq!(order, [1, 4, 3, 5, 2]);
        router.assert_sound();
    }

    /// A hop that takes nothing ends with its share of the pool, and others go on.
    #[test]
    fn a_next_hop_that_is_stuck_does_not_take_the_whole_pool() {
        let mut router = Router::new(&options(16, 1000, true), 8);
        let mut others = Vec::new();
        let mut through_to_stuck = 0;
        for n in 0..100 {
            through_to_stuck += u32::from(router.handle_arrival(bulk(1, 50), n, NOW).is_some());
            if let Some((held, _)) = router.handle_arrival(bulk(2, 51), 1000 + n, NOW) {
                others.push(held);
            }
            if others.len() > 2 {
                for (held, name) in router.handle_done(others.remove(0), NOW) {
                    match name < 1000 {
                        true => through_to_stuck += 1,
                        false => others.push(held),
                    }
                }
            }
            router.assert_sound();
        }
        assert!((4..=8).contains(&through_to_stuck), "a hop that takes nothing has {through_to_stuck} of 16 buffers");
        assert!(others.len() <= 4);
        // The limit holds for a hop that is alone, too.
        let mut router = Router::new(&options(16, 1000, true), 8);
        let alone = (0..100).filter(|n| router.handle_arrival(bulk(1, 50), *n, NOW).is_some()).count();
        assert!((4..=8).contains(&alone), "it has {alone}");
        assert!(router.handle_arrival(bulk(2, 51), 1000, NOW).is_some(), "another one has a buffer at once");
    }

    #[test]
    fn what_waits_for_or_of_a_peer_that_is_gone_is_given_up() {
        let mut router = Router::new(&options(1, 2, false), 8);
        let (held, _) = router.handle_arrival(bulk(1, 9), 1, NOW).unwrap();
        assert!(router.handle_arrival(bulk(1, 9), 2, NOW).is_none(), "waits for a buffer");
        assert!(router.handle_arrival(bulk(1, 8), 3, NOW).is_none(), "waits for a credit");
        assert!(router.handle_arrival(bulk(2, 8), 4, NOW).is_none());
        let (lost, on) = router.handle_peer_gone(Nid::sim(9), NOW);
        assert_eq!((lost, names(&on)), (vec![2], vec![]));
        let (lost, on) = router.handle_peer_gone(Nid::sim(1), NOW);
        assert_eq!((lost, names(&on)), (vec![3], vec![]));
        router.assert_sound();
        assert_eq!(names(&router.handle_done(held, NOW)), [4]);
        router.assert_sound();
    }

    /// Sizes change while messages are in transit: more buffers let messages go on at once, and what was taken beyond a
    /// smaller size comes back before anything is given out again.
    #[test]
    fn a_pool_is_made_larger_and_smaller_while_it_is_in_use() {
        for lanes in [false, true] {
            let mut router = Router::new(&options(4, 100, lanes), 8);
            let mut held: Vec<_> = (0..4).filter_map(|n| router.handle_arrival(bulk(1, n), n, NOW)).collect();
            for n in 4..10 {
                held.extend(router.handle_arrival(bulk(1, n), n, NOW));
            }
            let waiting = 10 - held.len();
            held.extend(router.resize([8, 8, 32], NOW));
            assert_eq!(held.len(), 10, "{waiting} waited, and all have a buffer now");
            assert!(router.resize([8, 8, 2], NOW).is_empty());
            assert!(router.handle_arrival(bulk(1, 99), 99, NOW).is_none());
            assert_eq!(router.pool(PoolKind::Large), Level { max: 2, available: 2 - 11, low_water: 2 - 11 });
            let mut through = 0;
            while let Some((transit, _)) = held.pop() {
                let next = router.handle_done(transit, NOW);
                through += next.len();
                assert!(through == 0 || held.len() < 2, "{} hold buffers of 2", held.len());
                held.extend(next);
                router.assert_sound();
            }
            assert_eq!((through, router.is_idle(), router.pool(PoolKind::Large).available), (1, true, 2));
        }
    }

    #[test]
    #[should_panic(expected = "what was never taken came back")]
    fn a_buffer_comes_back_once() {
        let mut router = Router::new(&options(8, 8, true), 8);
        let (held, _) = router.handle_arrival(bulk(1, 9), 1, NOW).unwrap();
        let again = Held { credit: held.credit.clone(), buffer: held.buffer.clone(), ..held };
        router.handle_done(held, NOW);
        router.handle_done(again, NOW);
    }

    /// What was taken from a reserve goes back there, though there are no lanes any longer.
    #[test]
    fn lanes_come_and_go_while_messages_are_in_transit() {
        let mut router = Router::new(&options(8, 8, true), 8);
        let mut held: Vec<_> = (0..10).filter_map(|n| router.handle_arrival(bulk(1, 9), n, NOW)).collect();
        assert_eq!(held.len(), 4);
        held.extend(router.set_lanes(false, NOW));
        assert_eq!(names(&held), [0, 1, 2, 3, 4, 5, 6, 7]);
        let (first, _) = held.remove(0);
        held.extend(router.handle_done(first, NOW));
        held.extend(router.set_lanes(true, NOW));
        assert_eq!(held.len(), 8);
        while let Some((one, _)) = held.pop() {
            held.extend(router.handle_done(one, NOW));
            router.assert_sound();
        }
        assert!(router.is_idle());
        assert_eq!((router.pool(PoolKind::Large).available, router.peer(Nid::sim(1)).available), (8, 8));
    }

    #[test]
    fn how_long_messages_wait_for_credits_and_buffers_is_counted() {
        let mut router = Router::new(&options(1, 2, false), 8);
        let later = |us| NOW + Duration::from_micros(us);
        let (first, _) = router.handle_arrival(bulk(1, 9), 1, NOW).unwrap();
        assert!(router.handle_arrival(bulk(1, 9), 2, later(10)).is_none(), "it waits for a buffer");
        assert!(router.handle_arrival(bulk(1, 9), 3, later(20)).is_none(), "it waits for a credit");
        let (second, _) = router.handle_done(first, later(100)).remove(0);
        assert_eq!(names(&router.handle_done(second, later(150))), [3]);
        let (credits, [tiny, small, large]) = router.waits();
        assert_eq!((credits.total_us, large.total_us), (80, 90 + 50));
        assert_eq!((tiny, small), (Waits::default(), Waits::default()));
    }

    /// Whatever comes and goes: nothing is lost or doubled, and at the end all is back.
    #[test]
    fn random_traffic_keeps_the_books() {
        for seed in 0..60 {
            let mut prng = Prng::new(seed);
            let mut router = Router::new(&options(8, 6, seed % 2 == 0), 8).with_unpacked(1);
            let (mut in_hand, mut seen, mut sent) = (Vec::new(), Vec::new(), 0);
            let purposes = [Purpose::Control, Purpose::Callbacks, Purpose::Requests, Purpose::Bulk];
            while sent < 400 || !in_hand.is_empty() {
                if sent < 400 && prng.one_in(2) {
                    let payload = [0, 100, 100_000][prng.below(3) as usize];
                    let purpose = purposes[prng.below(4) as usize];
                    let t = transit(prng.below(4) as u32, 10 + prng.below(4) as u32, payload, purpose);
                    in_hand.extend(router.handle_arrival(t, sent, NOW));
                    sent += 1;
                } else if prng.one_in(50) {
                    let (lost, on) = router.handle_peer_gone(Nid::sim(prng.below(14) as u32), NOW);
                    seen.extend(lost);
                    in_hand.extend(on);
                } else if !in_hand.is_empty() {
                    let (held, name) = in_hand.swap_remove(prng.below(in_hand.len() as u64) as usize);
                    seen.push(name);
                    in_hand.extend(router.handle_done(held, NOW));
                }
                router.assert_sound();
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..400).collect::<Vec<_>>(), "seed {seed}");
            assert!(router.is_idle());
        }
    }
}
