//! The policy `tbf`: classes of requests, each at most at the rate of its rule. A sans-IO engine.
//!
//! A class has a bucket of tokens. A request runs when the bucket is not in debt, and takes its cost out of the bucket: one
//! request, its bytes, or the time that it takes from the device. This time is known only at its end, so an estimate is charged first.
//!
//! Rates are limits and no reservations. While the server cannot do all that the limits allow, classes share it in the proportion of their
//! rates, whatever their requests cost, and a class of the default rule counts like one of the fastest rule. So the
//! classes whose buckets allow it are served in the order of a virtual time, which for each of them passes the faster the lower its rate
//! is. A class of a `realtime` rule goes before all others, and keeps the tokens that it could not use meanwhile.

use super::classified::Classified;
use super::expression::{Properties, Property};
use super::policy::{Classes, Order};
use super::rules::{Rate, Rules};
use super::ticket::{Done, Ticket};
use nacre_base::{FxHashMap, Nid, Time};
use nacre_wire::RpcHeader;
use nacre_wire::header::flags;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Requests that wait, by class.
pub(super) struct Buckets<T> {
    rules: Arc<Rules>,
    classes: Classes,
    by_key: FxHashMap<Key, u32>,
    buckets: BTreeMap<u32, Bucket<T>>,
    /// Classes with requests that wait and tokens, in the order of their turns.
    ready: BTreeSet<Turn>,
    /// Classes with requests that wait and no tokens, by the time at which they have some.
    later: BTreeSet<(i64, u32)>,
    /// Replays, which no rule limits.
    exempt: VecDeque<(u64, T)>,
    waiting: usize,
    /// Numbers of arrivals begin after [`HELD_BACK`].
    next_arrival: u64,
    next_bucket: u32,
    /// Virtual time of the class that was served last.
    virtual_now: u128,
    /// Classes that were not found before the next search for idle ones, while there are as many as there may be.
    until_sweep: usize,
}

/// The values that a class's requests have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Key {
    /// Number of the rule, 0 for the default rule.
    rule: u64,
    nid: Option<Nid>,
    job: Option<[u8; 32]>,
    uid: Option<u32>,
    gid: Option<u32>,
    projid: Option<u32>,
    opcode: Option<u32>,
}

/// Place of a class with tokens in the order of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_ordinary: bool,
    virtual_time: u128,
    bucket: u32,
}

/// A class.
struct Bucket<T> {
    rule: u64,
    limit: Limit,
    waiting: VecDeque<(u64, T)>,
    /// Requests that have been let run and have not ended.
    running: usize,
    /// Time at which the bucket has no debt, in nanoseconds; in the past if it has tokens.
    free_at: i64,
    virtual_time: u128,
    /// Estimate of the microseconds that a request takes from the device, by those that have ended; 0 if there is none yet.
    device_us: u32,
    listed: Option<Listed>,
}

/// Which of the two lists a class with requests is in.
#[derive(Debug, Clone, Copy)]
enum Listed {
    Ready(Turn),
    Later(i64),
}

/// The rule of a class, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    rate: Rate,
    is_realtime: bool,
    /// The virtual time of a class passes so many times faster than that of the fastest, as a fraction.
    slowness: (u64, u64),
    /// True if classes take turns by the device's time, and not by bytes.
    by_device: bool,
}

/// Arrival of the requests that were held back: before all others.
const HELD_BACK: u64 = 0;
/// Most classes. Further ones of a rule share a bucket.
const CLASSES_MAX: usize = 4096;
/// Classes that are not found between two searches for idle ones.
const SWEEP_EVERY: usize = 1024;
/// Requests that a bucket holds: Lustre's depth.
const DEPTH: u64 = 3;
/// Least depth of a bucket, as time at its rate: requests that come a little late still get their rate, and timers are not finer.
const DEPTH_REQUESTS: Duration = Duration::from_millis(10);
/// Depth of a bucket of bytes or of the device's time, as time at its rate.
const DEPTH_OTHERS: Duration = Duration::from_millis(100);
/// Longest debt of a bucket: a request that the device kept for an hour must not stop its class for days.
const DEBT_MAX: Duration = Duration::from_secs(600);
/// Most tokens that a `realtime` class keeps because it could not use them, as time at its rate.
const KEPT_MAX: Duration = Duration::from_secs(10);
/// Least cost of a request under a rate in bytes.
const BYTES_MIN: u64 = 4 << 10;
/// Least bytes that count for a request when classes take turns.
const TURN_BYTES_MIN: u64 = 64 << 10;
/// Least microseconds that count for a request when classes take turns by the device's time.
const TURN_MICROS_MIN: u64 = 10;
/// A class that had no tokens for a while may have this much before the others: bytes, or nanoseconds of the device.
const LAG_BYTES: u128 = 16 << 20;
const LAG_NANOS: u128 = 100_000_000;

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn signed(time: Time) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

/// A share of a second, in nanoseconds.
fn part_of_second(amount: u64, of: u64) -> i64 {
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(of.max(1));
    i64::try_from(nanos).unwrap_or(i64::MAX).min(nanos_of_debt())
}

fn nanos_of_debt() -> i64 {
    nanos(DEBT_MAX)
}

fn bytes_of(header: &RpcHeader) -> u64 {
    u64::from(header.bulk_bytes)
}

impl Limit {
    /// The limit of the rule with this number; 0 is the default rule.
    fn of(rules: &Rules, number: u64) -> Limit {
        let by_device = rules.measure_device();
        let Some(rule) = rules.rule(number) else {
            return Limit { rate: rules.default_rate(), is_realtime: false, slowness: (1, 1), by_device };
        };
        let same = rules.list().iter().filter_map(|other| amounts(other.rate, rule.rate)).max();
        let (amount, fastest) = same.map_or((1, 1), |fastest| (amount(rule.rate), fastest));
        assert!(fastest >= amount && amount > 0, "the rate {amount} is no more than the largest, {fastest}");
        Limit { rate: rule.rate, is_realtime: rule.is_realtime, slowness: (fastest, amount), by_device }
    }

    /// Time for which the bucket is in debt for a request.
    fn cost(&self, bytes: u64, device_us: u32) -> i64 {
        match self.rate {
            Rate::Requests(requests) => part_of_second(1, requests.into()),
            Rate::Bytes(rate) => part_of_second(bytes.max(BYTES_MIN), rate),
            Rate::Device(percent) => part_of_second(u64::from(device_us) * 100, u64::from(percent) * 1_000_000),
        }
    }

    /// Depth of a bucket, as time.
    fn depth(&self) -> i64 {
        match self.rate {
            Rate::Requests(requests) => part_of_second(DEPTH, requests.into()).max(nanos(DEPTH_REQUESTS)),
            Rate::Bytes(_) | Rate::Device(_) => nanos(DEPTH_OTHERS),
        }
    }

    /// Virtual time that passes for a request: at most some 2^64, if a client claims 4 GiB under the slowest of rules. Sums of it are kept
    /// in 128 bits, which a server does not reach in its life.
    fn virtual_cost(&self, bytes: u64, device_us: u32) -> u128 {
        let cost = match self.by_device {
            true => u64::from(device_us).max(TURN_MICROS_MIN) * 1000,
            false => bytes.max(TURN_BYTES_MIN),
        };
        let (fastest, amount) = self.slowness;
        u128::from(cost) * u128::from(fastest) / u128::from(amount)
    }

    fn lag(&self) -> u128 {
        if self.by_device { LAG_NANOS } else { LAG_BYTES }
    }
}

/// The number in a rate.
fn amount(rate: Rate) -> u64 {
    match rate {
        Rate::Requests(requests) => requests.into(),
        Rate::Bytes(bytes) => bytes,
        Rate::Device(percent) => percent.into(),
    }
}

/// The number in a rate, if the rate has the unit of another.
fn amounts(rate: Rate, unit_of: Rate) -> Option<u64> {
    (std::mem::discriminant(&rate) == std::mem::discriminant(&unit_of)).then(|| amount(rate))
}

impl<T: Classified> Buckets<T> {
    /// `next_class` is greater than the class of every ticket that a request still has.
    pub(super) fn new(order: &Order, next_class: u32) -> Buckets<T> {
        let (by_key, buckets, ready, later, exempt) = Default::default();
        Buckets {
            rules: order.rules.clone(),
            classes: order.classes,
            by_key,
            buckets,
            ready,
            later,
            exempt,
            waiting: 0,
            next_arrival: HELD_BACK + 1,
            next_bucket: next_class,
            virtual_now: 0,
            until_sweep: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// The number of the next class.
    pub(super) fn next_class(&self) -> u32 {
        self.next_bucket
    }

    /// Classes of a rule that are known now; the rule 0 is the default rule.
    pub(super) fn count_of(&self, rule: u64) -> usize {
        self.buckets.values().filter(|bucket| bucket.rule == rule).count()
    }

    /// Other rules from now on, also for the requests that wait. A class whose rule is still there keeps its debt.
    pub(super) fn set_order(&mut self, order: &Order, now: Time) {
        let requests = self.drain();
        if order.classes != self.classes {
            self.by_key.clear();
            self.buckets.clear();
        }
        (self.rules, self.classes) = (order.rules.clone(), order.classes);
        let rules = self.rules.clone();
        let is_there = |rule: u64| rule == 0 || rules.rule(rule).is_some();
        self.by_key.retain(|key, _| is_there(key.rule));
        self.buckets.retain(|_, bucket| is_there(bucket.rule));
        self.virtual_now = 0;
        for bucket in self.buckets.values_mut() {
            (bucket.limit, bucket.virtual_time) = (Limit::of(&rules, bucket.rule), 0);
        }
        requests.into_iter().for_each(|request| self.push(request, now));
    }

    /// All requests, in the order in which they came.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.ready.clear();
        self.later.clear();
        let mut all: Vec<(u64, T)> = std::mem::take(&mut self.exempt).into();
        for bucket in self.buckets.values_mut() {
            bucket.listed = None;
            all.extend(std::mem::take(&mut bucket.waiting));
        }
        assert_eq!(all.len(), self.waiting, "requests in all queues, and requests that wait");
        self.waiting = 0;
        all.sort_by_key(|(arrival, _)| *arrival);
        all.into_iter().map(|(_, request)| request).collect()
    }

    /// A request has arrived and waits.
    pub(super) fn push(&mut self, request: T, now: Time) {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.insert(request, now, |waiting, request| waiting.push_back((arrival, request)));
    }

    /// A request that was held back waits again, before all others of its class.
    pub(super) fn push_first(&mut self, request: T, now: Time) {
        self.insert(request, now, |waiting, request| waiting.push_front((HELD_BACK, request)));
    }

    fn insert(&mut self, request: T, now: Time, insert: impl FnOnce(&mut VecDeque<(u64, T)>, T)) {
        self.waiting += 1;
        if request.header().has(flags::REPLAY) {
            return insert(&mut self.exempt, request);
        }
        let number = self.bucket_of(request.client(), request.header(), now);
        let virtual_now = self.virtual_now;
        let bucket = self.bucket(number);
        if bucket.waiting.is_empty() {
            // A class loses the tokens and turns that it did not use while it had nothing to do.
            bucket.virtual_time = bucket.virtual_time.max(virtual_now);
            bucket.free_at = bucket.free_at.max(signed(now) - bucket.limit.depth());
        }
        insert(&mut bucket.waiting, request);
        self.enlist(number, now);
    }

    fn bucket(&mut self, number: u32) -> &mut Bucket<T> {
        self.buckets.get_mut(&number).unwrap_or_else(|| panic!("there is no class {number}"))
    }

    /// The class of a request.
    fn bucket_of(&mut self, client: Nid, header: &RpcHeader, now: Time) -> u32 {
        let rule = self.rules.rule_of(client, header);
        let properties = self.classes.properties(rule.map(|rule| rule.expression.properties()));
        let number = rule.map_or(0, |rule| rule.number);
        let mut key = Key::of(number, properties, client, header);
        if let Some(known) = self.by_key.get(&key) {
            return *known;
        }
        if self.buckets.len() >= CLASSES_MAX {
            self.sweep(now);
        }
        if self.buckets.len() >= CLASSES_MAX {
            // There is one for each rule, so the number of classes stays bounded.
            key = Key { rule: number, ..Key::default() };
            if let Some(known) = self.by_key.get(&key) {
                return *known;
            }
        }
        let limit = Limit::of(&self.rules, number);
        let bucket = Bucket {
            rule: number,
            limit,
            waiting: VecDeque::new(),
            running: 0,
            free_at: signed(now) - limit.depth(),
            virtual_time: self.virtual_now,
            device_us: 0,
            listed: None,
        };
        while self.buckets.contains_key(&self.next_bucket) || self.next_bucket == 0 {
            self.next_bucket = self.next_bucket.wrapping_add(1);
        }
        let new = self.next_bucket;
        self.next_bucket = self.next_bucket.wrapping_add(1);
        self.by_key.insert(key, new);
        self.buckets.insert(new, bucket);
        let most = CLASSES_MAX + self.rules.list().len() + 1;
        assert!(self.buckets.len() <= most, "{} classes", self.buckets.len());
        new
    }

    /// Forgets classes that have nothing to do and no debt. Looks at all, so it does not do so for each request.
    fn sweep(&mut self, now: Time) {
        if self.until_sweep > 0 {
            self.until_sweep -= 1;
            return;
        }
        self.until_sweep = SWEEP_EVERY;
        let now = signed(now);
        self.buckets.retain(|_, bucket| !bucket.waiting.is_empty() || bucket.running > 0 || bucket.free_at > now);
        let buckets = &self.buckets;
        self.by_key.retain(|_, number| buckets.contains_key(number));
    }

    /// Puts a class with requests into the list that its tokens say.
    fn enlist(&mut self, number: u32, now: Time) {
        let now = signed(now);
        let bucket = self.bucket(number);
        if bucket.listed.is_some() || bucket.waiting.is_empty() || bucket.must_wait_for_an_end() {
            return;
        }
        if bucket.free_at > now {
            bucket.listed = Some(Listed::Later(bucket.free_at));
            let at = bucket.free_at;
            assert!(self.later.insert((at, number)), "the class {number} is listed twice");
        } else {
            let turn = bucket.turn(number);
            bucket.listed = Some(Listed::Ready(turn));
            assert!(self.ready.insert(turn), "the class {number} is listed twice");
        }
    }

    fn delist(&mut self, number: u32) {
        let was_there = match self.bucket(number).listed.take() {
            None => true,
            Some(Listed::Ready(turn)) => self.ready.remove(&turn),
            Some(Listed::Later(at)) => self.later.remove(&(at, number)),
        };
        assert!(was_there, "the class {number} is in no list");
    }

    /// Moves the classes that have tokens again to those that take turns.
    fn wake(&mut self, now: Time) {
        while let Some((at, number)) = self.later.first().copied().filter(|(at, _)| *at <= signed(now)) {
            assert!(self.later.remove(&(at, number)), "the class {number} is in no list");
            let virtual_now = self.virtual_now;
            let bucket = self.bucket(number);
            bucket.listed = None;
            bucket.virtual_time = bucket.virtual_time.max(virtual_now.saturating_sub(bucket.limit.lag()));
            self.enlist(number, now);
        }
    }

    /// Takes the request whose turn it is, if there is one whose class has tokens.
    pub(super) fn pop(&mut self, now: Time) -> Option<T> {
        if let Some((_, replay)) = self.exempt.pop_front() {
            self.waiting -= 1;
            return Some(replay);
        }
        self.wake(now);
        let Turn { bucket: number, virtual_time, is_ordinary } = *self.ready.first()?;
        self.delist(number);
        if is_ordinary {
            self.virtual_now = self.virtual_now.max(virtual_time);
        }
        let bucket = self.bucket(number);
        assert!(bucket.listed.is_none(), "the class {number} takes its turn and is still listed");
        let (_, request) = bucket.waiting.pop_front().expect("a class that is listed has requests");
        let ticket = bucket.charge(number, bytes_of(request.header()), now);
        request.note(ticket);
        self.waiting -= 1;
        self.enlist(number, now);
        Some(request)
    }

    /// When a request may run, if none may now.
    pub(super) fn next_at(&self) -> Option<Time> {
        if !self.exempt.is_empty() || !self.ready.is_empty() {
            return Some(Time::ZERO);
        }
        self.later.first().map(|(at, _)| Time(u64::try_from(*at).unwrap_or(0)))
    }

    /// A request that ran has ended, having taken so much from the device.
    pub(super) fn handle_done(&mut self, done: Done, now: Time) {
        self.correct(done.ticket, now, |bucket| bucket.settle(done, now));
    }

    /// A request that was taken did not run after all, and comes back later.
    pub(super) fn handle_held_back(&mut self, request: &T, now: Time) {
        let (ticket, bytes) = (request.noted(), bytes_of(request.header()));
        request.note(Ticket::default());
        self.correct(ticket, now, |bucket| {
            assert!(bucket.running > 0, "a request of a class was held back twice");
            bucket.running -= 1;
            bucket.free_at -= bucket.limit.cost(bytes, ticket.device_us());
            let cost = bucket.limit.virtual_cost(bytes, ticket.device_us());
            bucket.virtual_time = bucket.virtual_time.saturating_sub(cost);
        });
    }

    /// Changes a class, which is forgotten if its rule was stopped.
    fn correct(&mut self, ticket: Ticket, now: Time, change: impl FnOnce(&mut Bucket<T>)) {
        let number = ticket.bucket();
        if !self.buckets.contains_key(&number) {
            return;
        }
        self.delist(number);
        change(self.bucket(number));
        self.enlist(number, now);
    }
}

impl Key {
    fn of(rule: u64, properties: Properties, client: Nid, header: &RpcHeader) -> Key {
        let has = |property| properties.has(property);
        Key {
            rule,
            // A host's clients are one, whichever ports they have.
            nid: has(Property::Nid).then(|| client.with_port(0)),
            job: has(Property::Jobid).then_some(header.jobid),
            uid: has(Property::Uid).then_some(header.uid),
            gid: has(Property::Gid).then_some(header.gid),
            projid: has(Property::Projid).then_some(header.projid),
            opcode: has(Property::Opcode).then_some(header.opcode),
        }
    }
}

impl<T> Bucket<T> {
    fn turn(&self, number: u32) -> Turn {
        Turn { is_ordinary: !self.limit.is_realtime, virtual_time: self.virtual_time, bucket: number }
    }

    /// True if there is no estimate yet of a request's time at the device: until then requests run one by one.
    fn must_wait_for_an_end(&self) -> bool {
        matches!(self.limit.rate, Rate::Device(_)) && self.device_us == 0 && self.running > 0
    }

    /// A request of the class is let run.
    fn charge(&mut self, number: u32, bytes: u64, now: Time) -> Ticket {
        let now = signed(now);
        assert!(self.free_at <= now, "the class {number} is in debt");
        let kept = if self.limit.is_realtime { nanos(KEPT_MAX) } else { self.limit.depth() };
        self.free_at = self.free_at.max(now - kept) + self.limit.cost(bytes, self.device_us);
        self.virtual_time += self.limit.virtual_cost(bytes, self.device_us);
        self.running += 1;
        Ticket::new(number, self.device_us)
    }

    /// Replaces the estimate of a request by the time that it really took.
    fn settle(&mut self, done: Done, now: Time) {
        assert!(self.running > 0, "a request of a class was done twice");
        self.running -= 1;
        let (charged, took) = (done.ticket.device_us(), done.device_us);
        if matches!(self.limit.rate, Rate::Device(_)) {
            let change = self.limit.cost(0, took) - self.limit.cost(0, charged);
            self.free_at = (self.free_at + change).min(signed(now) + nanos_of_debt());
        }
        if self.limit.by_device {
            let (charged, took) = (self.limit.virtual_cost(0, charged), self.limit.virtual_cost(0, took));
            self.virtual_time = (self.virtual_time + took).saturating_sub(charged);
            // An eighth of the difference: the mean of about as many requests.
            let estimate = (u64::from(self.device_us) * 7 + u64::from(took_us(self.device_us, done.device_us))) / 8;
            self.device_us = u32::try_from(estimate).unwrap_or(u32::MAX).max(1);
        }
    }
}

/// The value that an estimate moves towards: the first request that took any time becomes the first estimate.
fn took_us(estimate: u32, took: u32) -> u32 {
    if estimate == 0 { took.saturating_mul(8) } else { took }
}

#[cfg(test)]
mod tests;
