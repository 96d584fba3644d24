//! Tests of the queue of a lane, whatever its policy.

use super::expression::Property;
use super::*;
use nacre_wire::header::flags;

const NOW: Time = Time(1);

#[derive(Debug, Default)]
struct Request(u32, RpcHeader, std::cell::Cell<Ticket>);

impl Classified for Request {
    fn header(&self) -> &RpcHeader {
        &self.1
    }
    fn client(&self) -> Nid {
        Nid::sim(self.1.export as u32)
    }
    fn place(&self) -> Option<Place> {
        None
    }
    fn note(&self, ticket: Ticket) {
        self.2.set(ticket);
    }
    fn noted(&self) -> Ticket {
        self.2.get()
    }
}

fn queue(threads: u32) -> LaneQueue<Request> {
    LaneQueue::new(Schedule { threads, ..Schedule::of(Lane::Request) })
}

fn request(number: u32, header: RpcHeader) -> Request {
    Request(number, header, std::cell::Cell::default())
}

fn of(client: u64, n: u32) -> Request {
    request(n, RpcHeader { export: client, ..RpcHeader::default() })
}

fn regular(n: u32) -> Request {
    request(n, RpcHeader::default())
}

fn high(n: u32) -> Request {
    request(n, RpcHeader { flags: flags::HIGH_PRIORITY, ..RpcHeader::default() })
}

fn arrive(q: &mut LaneQueue<Request>, request: Request) -> &'static str {
    match q.handle_arrival(request, NOW) {
        Admission::Run(_) => "runs",
        Admission::Queued => "waits",
        Admission::Full => "is dropped",
    }
}

fn done(q: &mut LaneQueue<Request>, high: bool) -> Option<u32> {
    q.handle_done(high, Done::default(), NOW).map(|r| r.0)
}

#[test]
#[should_panic(expected = "done twice")]
fn a_request_that_is_done_twice_is_found() {
    let mut q = queue(2);
    arrive(&mut q, regular(0));
    done(&mut q, false);
    done(&mut q, false);
}

#[test]
#[should_panic(expected = "1 requests wait for their turn")]
fn a_lane_that_stands_still_is_found() {
    let mut q = queue(1);
    arrive(&mut q, regular(0));
    arrive(&mut q, regular(1));
    q.regular.running = 0;
    q.assert_busy(NOW);
}

#[test]
#[should_panic(expected = "was not counted")]
fn a_request_that_is_not_counted_is_found() {
    let mut q = queue(1);
    assert_eq!([0, 1].map(|n| arrive(&mut q, of(1, n))), ["runs", "waits"]);
    q.regular.of_clients.clear();
    done(&mut q, false);
}

#[test]
fn the_limit_holds_and_those_who_wait_go_in_order() {
    let mut q = queue(2);
    let all: Vec<_> = (0..5).map(|i| arrive(&mut q, regular(i))).collect();
    assert_eq!(all, ["runs", "runs", "waits", "waits", "waits"]);
    assert_eq!([done(&mut q, false), done(&mut q, false)], [Some(2), Some(3)]);
    assert_eq!((q.running(), q.queued()), (2, 1));
    assert_eq!([done(&mut q, false), done(&mut q, false), done(&mut q, false)], [Some(4), None, None]);
    assert_eq!(arrive(&mut q, regular(9)), "runs");
}

#[test]
fn high_priority_runs_although_the_lane_is_full() {
    let mut q = queue(2);
    assert_eq!([0, 1, 2].map(|i| arrive(&mut q, regular(i))), ["runs", "runs", "waits"]);
    assert_eq!(arrive(&mut q, high(10)), "runs");
    assert_eq!(arrive(&mut q, high(11)), "waits");
    assert_eq!(done(&mut q, true), Some(11), "high priority first");
    assert_eq!(done(&mut q, true), None, "the reserve is not for regular requests");
    assert_eq!(done(&mut q, false), Some(2));
}

#[test]
fn high_priority_does_not_starve_the_others() {
    let mut q = queue(8);
    assert_eq!((0..9).filter(|_| arrive(&mut q, regular(0)) == "runs").count(), 8);
    assert_eq!((0..100).filter(|_| arrive(&mut q, high(1)) == "runs").count(), 1);
    let mut running = VecDeque::from([false, false, false, false, false, false, false, false, true]);
    let mut order = Vec::new();
    for _ in 0..12 {
        let next = done(&mut q, running.pop_front().unwrap()).unwrap();
        order.push(next);
        running.push_back(next == 1);
    }
    assert_eq!(order.iter().filter(|n| **n == 0).count(), 1, "{order:?}");
}

#[test]
fn a_client_whose_queue_is_full_is_not_heard_and_others_are() {
    let mut q = queue(1);
    assert!((0..=CLIENT_QUEUE_MAX as u32).all(|i| arrive(&mut q, of(1, i)) != "is dropped"));
    assert_eq!(arrive(&mut q, of(1, 0)), "is dropped");
    assert_eq!(arrive(&mut q, of(2, 77)), "waits");
    assert_eq!([done(&mut q, false), done(&mut q, false)], [Some(1), Some(77)]);
}

#[test]
fn clients_take_turns() {
    let mut q = queue(1);
    for n in 0..4 {
        arrive(&mut q, of(1, n));
    }
    for n in 10..12 {
        arrive(&mut q, of(2, n));
    }
    arrive(&mut q, of(3, 20));
    let order: Vec<_> = (0..7).map(|_| done(&mut q, false)).collect();
    assert_eq!(order, [Some(1), Some(10), Some(20), Some(2), Some(11), Some(3), None]);
}

/// Client 1 never sends its data: it keeps no slot, and gets no more slots than it may have slow requests.
#[test]
fn slow_requests_hold_no_slot_and_hold_back_their_client() {
    let mut q = queue(2);
    for n in 0..20 {
        arrive(&mut q, of(1, n));
    }
    let mut started = 2;
    for _ in 0..SLOW_MAX {
        q.handle_slow(Nid::sim(1));
        started += u32::from(done(&mut q, false).is_some());
    }
    // The two that got the slots before the limit was reached run on.
    assert_eq!((started, q.running(), q.queued()), (SLOW_MAX as u32 + 1, 1, 20 - SLOW_MAX - 1));
    assert_eq!((arrive(&mut q, of(1, 20)), arrive(&mut q, of(2, 30))), ("waits", "runs"));
    assert_eq!(done(&mut q, false), None, "client 1 is held back");
    let next: Vec<_> = q.handle_slow_done(Nid::sim(1), NOW).into_iter().map(|r| r.0).collect();
    assert_eq!(next, [5], "the only free slot");
    assert_eq!(q.queued(), 15);
}

/// A queue with one slot, which a request of client 9 has.
fn busy(policy: Policy) -> LaneQueue<Request> {
    let classes = Classes(Some(Property::Uid));
    let delay = Delay { percent: 0, ..Delay::default() };
    let order = Order { classes, delay, ..Order::of(policy, Quanta { crrn: 1, ..Quanta::default() }) };
    let mut q = LaneQueue::new(Schedule { threads: 1, regular: order, ..Schedule::of(Lane::Io) });
    assert_eq!(arrive(&mut q, of(9, 90)), "runs");
    q
}

fn hold_back(q: &mut LaneQueue<Request>, client: u32) {
    (0..SLOW_MAX).for_each(|_| q.handle_slow(Nid::sim(client)));
}

fn let_go(q: &mut LaneQueue<Request>, client: u32) {
    assert_eq!(q.handle_slow_done(Nid::sim(client), NOW).len(), 0, "the slot is taken");
}

/// A client that was held back for a moment waited for a whole round more, each time: for 27 s at an OST whose queue was 6 s long.
#[test]
fn requests_that_were_held_back_keep_their_turns() {
    const ARRIVALS: [(u64, u32); 8] = [(1, 10), (1, 11), (3, 30), (2, 20), (3, 31), (2, 21), (1, 12), (2, 22)];
    for policy in Policy::ALL {
        let after = |held_back: &[u32]| {
            let mut q = busy(policy);
            ARRIVALS.iter().for_each(|(client, n)| assert_eq!(arrive(&mut q, of(*client, *n)), "waits"));
            held_back.iter().for_each(|client| hold_back(&mut q, *client));
            let mut order = vec![done(&mut q, false).unwrap()];
            held_back.iter().rev().for_each(|client| let_go(&mut q, *client));
            order.extend(std::iter::from_fn(|| done(&mut q, false)));
            order
        };
        let (undisturbed, disturbed) = (after(&[]), after(&[1, 3]));
        assert_eq!((undisturbed[0], disturbed[0]), (10, 20), "{policy}");
        let rest = |order: &[u32]| order.iter().copied().filter(|n| *n != 20).collect::<Vec<_>>();
        assert_eq!(rest(&disturbed), rest(&undisturbed), "{policy}");
    }
}

/// While nobody else has requests, a client collects no turns that others would have to wait for later.
#[test]
fn a_client_that_is_held_back_keeps_only_some_turns() {
    let mut q = busy(Policy::Crrn);
    hold_back(&mut q, 1);
    (0..200).for_each(|n| assert_eq!(arrive(&mut q, of(1, n)), "waits"));
    assert_eq!((done(&mut q, false), q.queued()), (None, 200));
    assert_eq!(
        [arrive(&mut q, of(9, 91)), arrive(&mut q, of(2, 1000)), arrive(&mut q, of(2, 1001))],
        ["runs", "waits", "waits"]
    );
    let_go(&mut q, 1);
    let order: Vec<_> = std::iter::from_fn(|| done(&mut q, false)).collect();
    let kept = pending::KEPT_TURNS_MAX as u32;
    assert_eq!(order[..kept as usize], (0..kept).collect::<Vec<_>>());
    assert_eq!(order[kept as usize..][..4], [1000, 1001, kept, kept + 1]);
    assert_eq!(order.len(), 202);
}

#[test]
fn a_request_that_was_held_back_is_not_delayed_again() {
    let mut q = queue(1);
    let delay = Delay { least: 10, most: 10, percent: 100 };
    let order = Order { delay, ..Order::of(Policy::Delay, Quanta::default()) };
    q.set_schedule(Schedule { regular: order, ..Schedule::of(Lane::Request) }, NOW);
    hold_back(&mut q, 1);
    assert_eq!(arrive(&mut q, of(1, 0)), "waits");
    assert_eq!(q.wake_at(), Some(NOW + std::time::Duration::from_secs(10)));
    assert!(q.handle_time(Time::from_secs(11)).is_empty());
    let next: Vec<_> = q.handle_slow_done(Nid::sim(1), Time::from_secs(12)).into_iter().map(|r| r.0).collect();
    assert_eq!(next, [0]);
}

/// A request for which there is a slot needs no timer to get it.
#[test]
fn a_regular_request_runs_beside_those_of_high_priority() {
    let mut q = queue(2);
    assert_eq!([arrive(&mut q, high(0)), arrive(&mut q, regular(1)), arrive(&mut q, regular(2))], ["runs"; 3]);
    assert_eq!([arrive(&mut q, high(3)), arrive(&mut q, regular(4))], ["waits"; 2]);
    assert_eq!((done(&mut q, true), q.wake_at()), (Some(3), None));
    assert_eq!([done(&mut q, true), done(&mut q, false), done(&mut q, false)], [None, Some(4), None]);
    hold_back(&mut q, 5);
    assert_eq!((arrive(&mut q, of(5, 6)), q.wake_at()), ("waits", None));
}

/// In every order of events no request is lost, none runs twice, and the limits hold.
#[test]
fn random_traffic_keeps_the_books() {
    for seed in 0..200 {
        let mut prng = nacre_base::Prng::new(seed);
        let mut q = queue(4);
        let (mut sent, mut running, mut slow, mut finished) = (0, Vec::new(), Vec::new(), 0);
        while sent < 300 || finished < 300 {
            let mut started = Vec::new();
            match prng.below(4) {
                0 | 1 if sent < 300 => {
                    let flags = if prng.one_in(4) { flags::HIGH_PRIORITY } else { 0 };
                    let header = RpcHeader { export: prng.below(5), flags, ..RpcHeader::default() };
                    sent += 1;
                    match q.handle_arrival(request(sent, header), NOW) {
                        Admission::Run(r) => started.push(r),
                        Admission::Queued => {}
                        Admission::Full => panic!("seed {seed}: far from full"),
                    }
                }
                2 if !slow.is_empty() => {
                    let r: Request = slow.swap_remove(prng.below(slow.len() as u64) as usize);
                    started.extend(q.handle_slow_done(r.client(), NOW));
                    finished += 1;
                }
                _ if !running.is_empty() => {
                    let r: Request = running.swap_remove(prng.below(running.len() as u64) as usize);
                    let high = is_high_priority(&r.1);
                    if prng.one_in(3) {
                        q.handle_slow(r.client());
                        slow.push(r);
                    } else {
                        finished += 1;
                    }
                    started.extend(q.handle_done(high, Done::default(), NOW));
                }
                _ => {}
            }
            running.extend(started);
            assert_eq!(q.running(), running.len(), "seed {seed}");
            assert!(running.len() <= 5, "seed {seed}");
            assert_eq!(q.wake_at(), None, "seed {seed}: no request waits for a time under crrn");
            assert_eq!(q.queued() + running.len() + slow.len() + finished, sent as usize, "seed {seed}");
        }
    }
}

/// The schedules among which an administrator of the test below changes.
fn any_schedule(prng: &mut nacre_base::Prng) -> Schedule {
    let mut order = || {
        let rules = [
            "start a uid={1} rate=5",
            "start a uid={1} rate=10%; start b uid={2-3} rate=1MB realtime=1",
            "change default rate=50",
        ];
        let rule = prng.below(rules.len() as u64) as usize;
        let rules = Rules::default().changed(rules[rule]).unwrap();
        let delay = Delay { least: 0, most: 1 + prng.below(3) as u32, percent: 50 };
        let classes = *prng.pick(&[None, Some(Property::Uid), Some(Property::Nid)]);
        let policy = *prng.pick(&Policy::ALL);
        Order {
            classes: Classes(classes),
            rules: rules.into(),
            delay,
            seed: prng.next_u64(),
            ..Order::of(policy, Quanta::default())
        }
    };
    let (regular, high_priority) = (order(), order());
    Schedule {
        regular,
        high_priority,
        high_priority_ratio: 1 + prng.below(4) as u32,
        threads: 1 + prng.below(6) as u32,
    }
}

/// Whichever policies follow one another while requests run and wait, each request runs once, and none is forgotten.
#[test]
fn requests_outlive_every_change_of_policy() {
    for seed in 0..400 {
        let mut prng = nacre_base::Prng::new(seed);
        let mut q: LaneQueue<Request> = LaneQueue::new(any_schedule(&mut prng));
        let (mut now, mut sent, mut running, mut slow) =
            (Time::from_secs(1), 0, Vec::<Request>::new(), Vec::<Request>::new());
        let mut finished = Vec::new();
        while finished.len() < 300 {
            let mut started = Vec::new();
            match prng.below(8) {
                0..3 if sent < 300 => {
                    let flags = if prng.one_in(4) { flags::HIGH_PRIORITY } else { 0 };
                    let (uid, bulk_bytes) = (prng.below(4) as u32, prng.below(1 << 20) as u32);
                    let header = RpcHeader { export: prng.below(5), flags, uid, bulk_bytes, ..RpcHeader::default() };
                    match q.handle_arrival(request(sent, header), now) {
                        Admission::Run(one) => started.push(one),
                        Admission::Queued => {}
                        Admission::Full => panic!("seed {seed}: far from full"),
                    }
                    sent += 1;
                }
                3 if !slow.is_empty() => {
                    let one: Request = slow.swap_remove(prng.below(slow.len() as u64) as usize);
                    started.extend(q.handle_slow_done(one.client(), now));
                    finished.push(one.0);
                }
                4 if prng.one_in(4) => started.extend(q.set_schedule(any_schedule(&mut prng), now)),
                5 => {
                    now += std::time::Duration::from_millis(prng.below(50));
                    started.extend(q.handle_time(now));
                }
                6 if sent == 300 && running.is_empty() => {
                    now = now.max(q.wake_at().unwrap_or(now));
                    started.extend(q.handle_time(now));
                }
                _ if !running.is_empty() => {
                    let one = running.swap_remove(prng.below(running.len() as u64) as usize);
                    let high = is_high_priority(&one.1);
                    let done = Done { ticket: one.noted(), device_us: prng.below(50_000) as u32 };
                    if prng.one_in(3) {
                        q.handle_slow(one.client());
                        slow.push(one);
                    } else {
                        finished.push(one.0);
                    }
                    started.extend(q.handle_done(high, done, now));
                }
                _ => {}
            }
            running.extend(started);
            assert_eq!(q.running(), running.len(), "seed {seed}");
            assert_eq!(q.queued() + running.len() + slow.len() + finished.len(), sent as usize, "seed {seed}");
        }
        finished.sort_unstable();
        assert_eq!(finished, (0..300).collect::<Vec<_>>(), "seed {seed}");
    }
}
