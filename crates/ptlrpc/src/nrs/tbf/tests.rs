//! Tests of the rates of classes, in histories of requests that come, run and end.

use super::super::policy::{Policy, Quanta};
use super::*;
use nacre_base::Prng;
use std::cell::Cell;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A request of a user, whose class it is in these tests.
#[derive(Debug)]
struct Request {
    number: u64,
    header: RpcHeader,
    ticket: Cell<Ticket>,
}

impl Classified for Request {
    fn header(&self) -> &RpcHeader {
        &self.header
    }

    fn client(&self) -> Nid {
        Nid::sim(self.header.gid)
    }

    fn place(&self) -> Option<super::super::Place> {
        None
    }

    fn note(&self, ticket: Ticket) {
        self.ticket.set(ticket);
    }

    fn noted(&self) -> Ticket {
        self.ticket.get()
    }
}

fn request(number: u64, uid: u32, bytes: u32) -> Request {
    let header = RpcHeader { uid, bulk_bytes: bytes, ..RpcHeader::default() };
    Request { number, header, ticket: Cell::default() }
}

fn order(rules: &str) -> Order {
    let rules = if rules.is_empty() { Rules::default() } else { Rules::default().changed(rules).unwrap() };
    Order { classes: Classes(Some(Property::Uid)), rules: Arc::new(rules), ..Order::of(Policy::Tbf, Quanta::default()) }
}

fn buckets(rules: &str) -> Buckets<Request> {
    Buckets::new(&order(rules), 1)
}

/// A server with some threads, whose requests take a time; its users always have requests waiting.
struct Server {
    buckets: Buckets<Request>,
    now: u64,
    threads: usize,
    /// The requests that run, by the time of their end.
    running: BTreeMap<(u64, u64), Request>,
    /// Requests, bytes and the device's nanoseconds that each user had.
    had: FxHashMap<u32, (u64, u64, u64)>,
    next: u64,
}

impl Server {
    fn new(rules: &str, threads: usize) -> Server {
        let (running, had) = Default::default();
        Server { buckets: buckets(rules), now: SECOND, threads, running, had, next: 0 }
    }

    fn send(&mut self, uid: u32, bytes: u32, count: usize) {
        for _ in 0..count {
            self.buckets.push(request(self.next, uid, bytes), Time(self.now));
            self.next += 1;
        }
    }

    /// Lets time pass. `takes` is how long a request is at a device that serves one after the other, and `replaced` whether its
    /// user sends another one at its end.
    fn run(&mut self, until: u64, takes: impl Fn(&Request) -> u64, replaced: bool) {
        let mut device_free = self.now;
        while self.now < until {
            while self.running.len() < self.threads {
                let Some(next) = self.buckets.pop(Time(self.now)) else { break };
                let taken = takes(&next);
                device_free = device_free.max(self.now) + taken;
                self.running.insert((device_free, next.number), next);
            }
            let ends = self.running.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let wakes = if self.running.len() < self.threads { self.buckets.next_at() } else { None };
            self.now = ends.min(wakes.map_or(u64::MAX, |at| at.0)).max(self.now).min(until);
            if self.now == ends && self.now < until {
                let (_, done) = self.running.pop_first().unwrap();
                let device = takes(&done);
                let had = self.had.entry(done.header.uid).or_default();
                *had = (had.0 + 1, had.1 + u64::from(done.header.bulk_bytes), had.2 + device);
                let device_us = (device / 1000) as u32;
                self.buckets.handle_done(Done { ticket: done.noted(), device_us }, Time(self.now));
                if replaced {
                    self.send(done.header.uid, done.header.bulk_bytes, 1);
                }
            }
        }
    }

    fn had(&self, uid: u32) -> (u64, u64, u64) {
        self.had.get(&uid).copied().unwrap_or_default()
    }
}

fn is_near(got: u64, want: u64, percent: u64) -> bool {
    got.abs_diff(want) * 100 <= want * percent
}

#[test]
fn a_class_has_its_rate_and_a_burst() {
    for (rule, bytes, takes, want) in [
        ("rate=100", 1 << 20, 10_000, 1000),
        ("rate=5", 1 << 20, 10_000, 50),
        ("rate=100MB", 1_000_000, 10_000, 1000),
        ("rate=100MB", 4_000_000, 10_000, 250),
        ("rate=25%", 1 << 20, 5 * MS, 500),
        ("rate=10%", 1 << 20, 20 * MS, 50),
    ] {
        let mut server = Server::new(&format!("start a uid={{1}} {rule}"), 64);
        server.send(1, bytes, 200);
        server.run(11 * SECOND, |_| takes, true);
        let (requests, ..) = server.had(1);
        assert!(is_near(requests, want, 7), "{rule}, {bytes} bytes, {takes} ns: {requests} of {want}");
    }
}

#[test]
fn a_request_waits_for_its_token_and_not_longer() {
    let mut buckets = buckets("start a uid={1} rate=10");
    let at = |ms: u64| Time(SECOND + ms * MS);
    (0..5).for_each(|n| buckets.push(request(n, 1, 0), at(0)));
    let ran = |buckets: &mut Buckets<Request>, ms| {
        std::iter::from_fn(|| buckets.pop(at(ms))).map(|r| r.number).collect::<Vec<_>>()
    };
    assert_eq!(ran(&mut buckets, 0), [0, 1, 2, 3], "the bucket holds three, and one makes a debt");
    assert_eq!(buckets.next_at(), Some(at(100)));
    assert_eq!(ran(&mut buckets, 99), [0; 0]);
    assert_eq!(ran(&mut buckets, 100), [4]);
    assert_eq!(buckets.next_at(), None);
}

/// A server that can do less than all limits allow is shared in their proportion, and a class without a rule of its own counts as the
/// fastest. A rule's cost may be in requests, bytes or the device's time.
#[test]
fn classes_share_a_server_that_cannot_do_all() {
    // A disk that moves 100 bytes in a microsecond and takes a millisecond for each request.
    let takes = |request: &Request| MS + u64::from(request.header.bulk_bytes) * 10;
    for (rules, small, large) in [
        ("start a uid={1} rate=300MB; start b uid={2} rate=100MB", 64 << 10, 4 << 20),
        ("start a uid={1} rate=300MB; start b uid={2} rate=100MB", 4 << 20, 64 << 10),
        ("start a uid={1} rate=90%; start b uid={2} rate=30%", 64 << 10, 4 << 20),
        ("start a uid={1} rate=90%; start b uid={2} rate=30%", 4 << 20, 64 << 10),
    ] {
        let mut server = Server::new(rules, 4);
        server.send(1, small, 500);
        server.send(2, large, 500);
        server.run(200 * SECOND, takes, true);
        let (a, b) = (server.had(1), server.had(2));
        let (a, b) = if rules.contains('%') { (a.2, b.2) } else { (a.1, b.1) };
        assert!(is_near(a, 3 * b, 3), "{rules}: {a} and {b}");
    }
    let mut server = Server::new("start a uid={1} rate=300MB; start b uid={2} rate=100MB", 4);
    for uid in 1..=3 {
        server.send(uid, 1 << 20, 500);
    }
    server.run(100 * SECOND, takes, true);
    let [a, b, other] = [1, 2, 3].map(|uid| server.had(uid).1);
    assert!(is_near(a, 3 * b, 3) && is_near(other, a, 3), "{a}, {b} and {other}");
    // Without the rules, all three have the same.
    server.buckets.set_order(&order(""), Time(server.now));
    server.had.clear();
    server.run(200 * SECOND, takes, true);
    let [a, b, other] = [1, 2, 3].map(|uid| server.had(uid).1);
    assert!(is_near(a, b, 2) && is_near(other, b, 2), "{a}, {b} and {other}");
}

/// Where one has less to do than its limit, the rest is for the others.
#[test]
fn a_limit_is_no_reservation() {
    let takes = |request: &Request| u64::from(request.header.bulk_bytes) * 10;
    let mut server = Server::new("start a uid={1} rate=90MB; start b uid={2} rate=10MB", 4);
    server.send(2, 1 << 20, 100);
    server.send(3, 1 << 20, 100);
    server.run(21 * SECOND, takes, true);
    let (b, other) = (server.had(2).1, server.had(3).1);
    assert!(is_near(b, 200_000_000, 4) && is_near(other, 1_800_000_000, 4), "{b} and {other}");
}

#[test]
fn a_realtime_rule_goes_first_and_catches_up() {
    let takes = |request: &Request| u64::from(request.header.bulk_bytes) * 10;
    let rates = |realtime: &str| {
        let mut server =
            Server::new(&format!("start a uid={{1}} rate=60MB {realtime}; start b uid={{2}} rate=120MB"), 4);
        server.send(1, 1 << 20, 100);
        server.send(2, 1 << 20, 100);
        server.run(41 * SECOND, takes, true);
        (server.had(1).1, server.had(2).1)
    };
    let (a, b) = rates("realtime=0");
    assert!(is_near(2 * a, b, 3), "they share: {a} and {b}");
    let (a, b) = rates("realtime=1");
    assert!(is_near(a, 60_000_000 * 40, 3) && is_near(b, 40_000_000 * 40, 5), "{a} and {b}");

    // For five seconds the server stood still. A class of a realtime rule has them still, another has not.
    for (realtime, want) in [("realtime=1", 60), ("", 11)] {
        let mut buckets = buckets(&format!("start a uid={{1}} rate=10 {realtime}"));
        (0..100).for_each(|n| buckets.push(request(n, 1, 0), Time(SECOND)));
        let first = std::iter::from_fn(|| buckets.pop(Time(SECOND))).count();
        let later = (1..=10).map(|n| std::iter::from_fn(|| buckets.pop(Time(6 * SECOND + n * 100 * MS))).count());
        let all = first + later.sum::<usize>();
        assert!(all.abs_diff(want + 4) <= 3, "{realtime}: {all}");
    }
}

/// The time that a request took from the device is known at its end; until then an estimate counts, and the rest becomes a debt.
#[test]
fn the_device_s_time_is_charged_when_it_is_known() {
    let mut buckets = buckets("start a uid={1} rate=50%");
    (0..4).for_each(|n| buckets.push(request(n, 1, 0), Time(SECOND)));
    let first = buckets.pop(Time(SECOND)).unwrap();
    buckets.handle_done(Done { ticket: first.noted(), device_us: 500_000 }, Time(SECOND));
    // The bucket held a tenth of a second. It pays for half a second of the device with a whole one.
    assert_eq!(buckets.pop(Time(SECOND)).map(|r| r.number), None);
    assert_eq!(buckets.next_at(), Some(Time(SECOND + 900 * MS)));
    let second = buckets.pop(Time(SECOND + 900 * MS)).unwrap();
    assert_eq!(second.noted().device_us(), 500_000, "the estimate");
    buckets.handle_done(Done { ticket: second.noted(), device_us: 0 }, Time(SECOND + 900 * MS));
    assert!(buckets.pop(Time(SECOND + 900 * MS)).is_some(), "it took nothing");
}

/// A request that was held back gives its token to the next one, and waits for another one before the rest of its class.
#[test]
fn a_request_that_was_held_back_keeps_its_place_and_no_token() {
    let mut buckets = buckets("start a uid={1} rate=10");
    let at = |ms: u64| Time(SECOND + ms * MS);
    (0..6).for_each(|n| buckets.push(request(n, 1, 0), at(0)));
    let held_back = buckets.pop(at(0)).unwrap();
    assert_ne!(held_back.noted(), Ticket::default());
    buckets.handle_held_back(&held_back, at(0));
    assert_eq!(held_back.noted(), Ticket::default());
    let ran = std::iter::from_fn(|| buckets.pop(at(0))).map(|r| r.number).collect::<Vec<_>>();
    assert_eq!(ran, [1, 2, 3, 4], "as many as if the first had not been there");
    buckets.push_first(held_back, at(50));
    assert_eq!((buckets.pop(at(99)).map(|r| r.number), buckets.pop(at(100)).map(|r| r.number)), (None, Some(0)));
    buckets.set_order(&order("start a uid={1} rate=10"), at(200));
    assert_eq!(buckets.pop(at(200)).map(|r| r.number), Some(5));
}

/// A client may claim any size. Requests of 4 GiB under the slowest of many rules are counted for as long as a server runs.
#[test]
fn virtual_time_does_not_overflow() {
    let mut buckets = buckets("start a uid={1} rate=1; start b uid={2} rate=1000000");
    for n in 0..10_000 {
        buckets.push(request(n, 1, u32::MAX), Time((n + 1) * SECOND));
        assert!(buckets.pop(Time((n + 1) * SECOND)).is_some(), "the request after {n} seconds");
    }
    assert!(buckets.virtual_now > u128::from(u64::MAX));
}

#[test]
fn replays_wait_for_no_token() {
    let mut buckets = buckets("start a uid={1} rate=1");
    (0..9).for_each(|n| buckets.push(request(n, 1, 0), Time(SECOND)));
    let replay = request(10, 1, 0);
    buckets.push(Request { header: RpcHeader { flags: flags::REPLAY, ..replay.header }, ..replay }, Time(SECOND));
    assert_eq!(buckets.pop(Time(SECOND)).unwrap().number, 10);
}

#[test]
fn a_class_keeps_its_debt_when_rules_change_and_loses_it_with_its_rule() {
    let mut buckets = buckets("start a uid={1} rate=1");
    let (now, number) = (Time(SECOND), |buckets: &mut Buckets<Request>| buckets.pop(Time(SECOND)).map(|r| r.number));
    (0..20).for_each(|n| buckets.push(request(n, 1, 0), now));
    assert_eq!(std::iter::from_fn(|| number(&mut buckets)).count(), 4);
    let rules = order("start a uid={1} rate=1; start b uid={2} rate=1").rules;
    buckets.set_order(&Order { rules, ..order("") }, now);
    assert_eq!((number(&mut buckets), buckets.next_at()), (None, Some(Time(2 * SECOND))));
    buckets.set_order(&order(""), now);
    assert_eq!(number(&mut buckets), Some(4), "the rule is stopped");
    assert_eq!(buckets.count_of(0), 1);
}

#[test]
fn classes_are_bounded_and_idle_ones_forgotten() {
    let mut buckets = buckets("");
    for n in 0..50_000 {
        buckets.push(request(n, n as u32, 0), Time(SECOND));
    }
    assert!(buckets.buckets.len() <= CLASSES_MAX + 1, "{}", buckets.buckets.len());
    let mut now = SECOND;
    while buckets.len() > 0 {
        while let Some(one) = buckets.pop(Time(now)) {
            buckets.handle_done(Done { ticket: one.noted(), device_us: 0 }, Time(now));
        }
        now += 10 * MS;
    }
    for n in 0..50_000 {
        now += MS;
        buckets.push(request(n, n as u32, 0), Time(now));
        let one = buckets.pop(Time(now)).unwrap();
        buckets.handle_done(Done { ticket: one.noted(), device_us: 0 }, Time(now));
    }
    assert!(buckets.buckets.len() <= CLASSES_MAX + 1, "{}", buckets.buckets.len());
    assert_eq!(buckets.by_key.len(), buckets.buckets.len());
}

/// In every history each request runs once, none waits for ever, and no class has more than its rate and a burst.
#[test]
fn random_histories_keep_the_rates_and_lose_nothing() {
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let mut rate = 1 + prng.below(200);
        let rule = |rate: u64| format!("start a uid={{1}} rate={rate}");
        let mut buckets = buckets(&rule(rate));
        let (mut now, mut sent, mut running, mut ran) = (SECOND, 0, Vec::<Request>::new(), Vec::new());
        let (mut limited, mut began) = (0_i64, now);
        for _ in 0..400 {
            now += prng.below(20) * MS;
            match prng.below(12) {
                0..5 => {
                    for _ in 0..prng.below(5) {
                        buckets.push(request(sent, prng.below(3) as u32, prng.below(1 << 20) as u32), Time(now));
                        sent += 1;
                    }
                }
                5..9 => {
                    while let Some(next) = buckets.pop(Time(now)) {
                        limited += i64::from(next.header.uid == 1);
                        running.push(next);
                    }
                }
                9..11 if !running.is_empty() => {
                    let one = running.swap_remove(prng.below(running.len() as u64) as usize);
                    if prng.one_in(5) {
                        limited -= i64::from(one.header.uid == 1 && one.noted() != Ticket::default());
                        buckets.handle_held_back(&one, Time(now));
                        match prng.one_in(2) {
                            true => buckets.push_first(one, Time(now)),
                            false => buckets.push(one, Time(now)),
                        }
                    } else {
                        buckets.handle_done(Done { ticket: one.noted(), device_us: 5 }, Time(now));
                        ran.push(one.number);
                    }
                }
                _ if prng.one_in(10) => {
                    rate = 1 + prng.below(200);
                    let rules = buckets.rules.changed(&format!("change a rate={rate}")).unwrap();
                    let rules = Order { rules: Arc::new(rules), ..order("") };
                    buckets.set_order(&rules, Time(now));
                    (limited, began) = (0, now);
                }
                _ => {}
            }
            let most = (now - began) as f64 / SECOND as f64 * rate as f64 + (rate as f64 / 100.0).max(3.0) + 2.0;
            assert!(limited as f64 <= most, "seed {seed}: {limited} of {most} at rate {rate}");
        }
        for one in running {
            buckets.handle_done(Done { ticket: one.noted(), device_us: 5 }, Time(now));
            ran.push(one.number);
        }
        // Half of them come to an end although the rule is stopped, the other half at its rate.
        if prng.one_in(2) {
            buckets.set_order(&order(""), Time(now));
        }
        let by = now + 700 * SECOND;
        while buckets.len() > 0 {
            let at = buckets.next_at().expect("requests wait").0;
            now = now.max(at);
            assert!(now < by, "seed {seed}: {} requests wait", buckets.len());
            ran.extend(std::iter::from_fn(|| buckets.pop(Time(now))).map(|one| one.number));
        }
        assert_eq!(buckets.next_at(), None);
        ran.sort_unstable();
        assert_eq!(ran, (0..sent).collect::<Vec<_>>(), "seed {seed}");
    }
}
