//! The network request scheduler: decides which requests of a target's lane run, and in which order the others wait. A
//! sans-IO engine.
//!
//! The order is that of a [`Policy`], which can be exchanged while requests wait ([`waiting`]). A slot of the lane, Lustre's service
//! thread, is for work, not for waiting: a request whose data is slow to come gives its slot back (`handle_slow`), and a client
//! with [`SLOW_MAX`] such requests gets no further slot until one of them has ended.

mod policy;
mod waiting;

use nacre_base::{Fid, FxHashMap, Nid};
use nacre_wire::{Lane, Opcode, RpcHeader};
pub use policy::{Order, Ordered, Policy, Quanta, Schedule, UnknownPolicy};
use std::collections::{BTreeMap, VecDeque};
use waiting::Waiting;

/// A request, as far as the order of requests depends on it.
pub(crate) trait Classified: Send + 'static {
    /// Header of the request.
    fn header(&self) -> &RpcHeader;
    /// The node that sent it.
    fn client(&self) -> Nid;
    /// The range that the request reads or writes, or `None` if it does neither.
    fn place(&self) -> Option<Place>;
}

/// The range of an object that a request reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The object.
    pub object: Fid,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// True for a read.
    pub is_read: bool,
}

/// Outcome of a request's arrival.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<T> {
    /// Run it now.
    Run(T),
    /// The request waits.
    Queued,
    /// The request is dropped, because too many requests of its client wait.
    Full,
}

/// The queue of a lane: a limited number of requests run, the others wait. High-priority requests have a queue of their
/// own that goes first, and slots beyond the limit that only they get, so that they run even if everything else waits
/// for them.
pub(crate) struct LaneQueue<T: Classified> {
    /// Most regular requests that run at once.
    limit: usize,
    /// Most requests of both priorities that run at once.
    limit_all: usize,
    regular: Class<T>,
    high_priority: Class<T>,
    /// High-priority requests started since the last regular one, and how many may be.
    in_a_row: u32,
    in_a_row_max: u32,
    /// Number of requests that gave their slot back and wait for their data, for each client that has any.
    slow: FxHashMap<Nid, usize>,
}

/// Requests of one priority.
struct Class<T: Classified> {
    running: usize,
    waiting: Waiting<T>,
    /// How many requests of each client wait or are held back; none has 0.
    of_clients: FxHashMap<Nid, usize>,
    /// Requests of clients with too many slow ones, whose turn had come.
    held_back: BTreeMap<Nid, VecDeque<T>>,
}

/// Most requests of one client that wait in each queue of a lane.
const CLIENT_QUEUE_MAX: usize = 8192;
/// Requests of one client that may wait for their data without a slot; a client with so many gets no further slot.
pub(crate) const SLOW_MAX: usize = 4;
/// After this many high-priority requests in a row, a regular one has its turn.
const HIGH_PRIORITY_RATIO: u32 = 10;

impl Schedule {
    /// How a lane begins: clients take turns, at the storage in the order of objects and offsets.
    pub fn of(lane: Lane) -> Schedule {
        let threads = match lane {
            Lane::Request => 256,
            Lane::Io | Lane::Callback | Lane::Cancel => 64,
            Lane::Control => u32::MAX,
        };
        let (policy, quanta) = match lane {
            Lane::Io => (Policy::Turns, Quanta::default()),
            _ => (Policy::Crrn, Quanta { crrn: 1, ..Quanta::default() }),
        };
        let order = Order { policy, quanta };
        Schedule { regular: order, high_priority: order, high_priority_ratio: HIGH_PRIORITY_RATIO, threads }
    }
}

impl<T: Classified + 'static> LaneQueue<T> {
    pub(crate) fn new(schedule: Schedule) -> LaneQueue<T> {
        let (regular, high_priority) = (Class::new(schedule.regular), Class::new(schedule.high_priority));
        let in_a_row_max = schedule.high_priority_ratio;
        let mut queue = LaneQueue {
            limit: 0,
            limit_all: 0,
            regular,
            high_priority,
            in_a_row: 0,
            in_a_row_max,
            slow: FxHashMap::default(),
        };
        queue.set_limit(schedule.threads);
        queue
    }

    fn set_limit(&mut self, threads: u32) {
        self.limit = threads as usize;
        self.limit_all = self.limit.saturating_add((self.limit / 8).max(1));
    }

    /// Another schedule from now on, also for the requests that wait. Returns the requests that may run now.
    pub(crate) fn set_schedule(&mut self, schedule: Schedule) -> Vec<T> {
        self.set_limit(schedule.threads);
        self.in_a_row_max = schedule.high_priority_ratio;
        self.regular.waiting.set_order(schedule.regular);
        self.high_priority.waiting.set_order(schedule.high_priority);
        std::iter::from_fn(|| self.next()).collect()
    }

    /// A request arrived.
    pub(crate) fn handle_arrival(&mut self, request: T) -> Admission<T> {
        let high = is_high_priority(request.header());
        let fits = self.running() < if high { self.limit_all } else { self.limit };
        let may_run = fits && !is_held_back(&self.slow, request.client());
        let class = self.class(high);
        if may_run {
            class.running += 1;
            self.assert_limits(high);
            return Admission::Run(request);
        }
        if class.enqueue(request) { Admission::Queued } else { Admission::Full }
    }

    /// A request of this class is done, or no longer counts. Returns the request that runs in its place.
    pub(crate) fn handle_done(&mut self, high_priority: bool) -> Option<T> {
        let done = self.class(high_priority);
        assert!(done.running > 0, "a request was done twice");
        done.running -= 1;
        let next = self.next();
        self.assert_busy();
        next
    }

    /// The data of a request of `client` is slow to come. If the request still has its slot, `handle_done` is called
    /// afterwards to give it back.
    pub(crate) fn handle_slow(&mut self, client: Nid) {
        *self.slow.entry(client).or_default() += 1;
    }

    /// A slow request has its data, or will not get it. Returns the requests that may run now.
    pub(crate) fn handle_slow_done(&mut self, client: Nid) -> Vec<T> {
        let slow = self.slow.get_mut(&client).expect("a slow request was counted");
        *slow -= 1;
        if *slow == 0 {
            self.slow.remove(&client);
        }
        self.regular.let_go(client);
        self.high_priority.let_go(client);
        let next = std::iter::from_fn(|| self.next()).collect();
        self.assert_busy();
        next
    }

    /// Panics if requests wait for their turn while none runs, whose end would start them.
    fn assert_busy(&self) {
        let waiting = self.regular.waiting.len() + self.high_priority.waiting.len();
        assert!(self.running() > 0 || waiting == 0, "nothing runs, and {waiting} requests wait for their turn");
    }

    /// Panics if a request was started beyond the limits.
    fn assert_limits(&self, high_priority: bool) {
        let regular = self.regular.running;
        assert!(high_priority || regular <= self.limit, "{regular} of {} run", self.limit);
        assert!(self.running() <= self.limit_all, "{} of {} run", self.running(), self.limit_all);
    }

    /// Starts the next request if there is a slot for it.
    fn next(&mut self) -> Option<T> {
        if self.running() >= self.limit_all {
            return None;
        }
        let regular_fits = self.regular.running < self.limit;
        let regular_first = self.in_a_row >= self.in_a_row_max;
        for high in [!regular_first, regular_first] {
            if !high && !regular_fits {
                continue;
            }
            let class = if high { &mut self.high_priority } else { &mut self.regular };
            if let Some(next) = class.dequeue(&self.slow) {
                self.in_a_row = if high { (self.in_a_row + 1).min(self.in_a_row_max) } else { 0 };
                self.assert_limits(high);
                return Some(next);
            }
        }
        None
    }

    fn class(&mut self, high: bool) -> &mut Class<T> {
        if high { &mut self.high_priority } else { &mut self.regular }
    }

    pub(crate) fn running(&self) -> usize {
        self.regular.running + self.high_priority.running
    }

    pub(crate) fn queued(&self) -> usize {
        self.regular.queued() + self.high_priority.queued()
    }

    /// Requests of a priority that run and that wait.
    pub(crate) fn counts(&self, high_priority: bool) -> (usize, usize) {
        let class = if high_priority { &self.high_priority } else { &self.regular };
        (class.running, class.queued())
    }
}

impl<T: Classified> Class<T> {
    fn new(order: Order) -> Class<T> {
        let (of_clients, held_back) = Default::default();
        Class { running: 0, waiting: Waiting::new(order), of_clients, held_back }
    }

    fn queued(&self) -> usize {
        self.waiting.len() + self.held_back.values().map(VecDeque::len).sum::<usize>()
    }

    /// Lets a request wait. Returns false if too many of its client do.
    fn enqueue(&mut self, request: T) -> bool {
        let of_client = self.of_clients.entry(request.client()).or_default();
        if *of_client >= CLIENT_QUEUE_MAX {
            return false;
        }
        *of_client += 1;
        self.waiting.push(request);
        self.assert_counted();
        true
    }

    /// Panics if requests wait that were not counted for their clients, or the other way around.
    fn assert_counted(&self) {
        let (clients, queued) = (self.of_clients.len(), self.queued());
        assert!(queued >= clients, "{queued} requests of {clients} clients wait");
        assert_eq!(queued == 0, clients == 0, "{queued} requests of {clients} clients wait");
    }

    /// Starts the request whose turn it is. Those of clients with too many slow requests lose their turns.
    fn dequeue(&mut self, slow: &FxHashMap<Nid, usize>) -> Option<T> {
        while let Some(next) = self.waiting.pop() {
            let client = next.client();
            if is_held_back(slow, client) {
                self.held_back.entry(client).or_default().push_back(next);
                continue;
            }
            let of_client = self.of_clients.get_mut(&client).filter(|n| **n > 0);
            let of_client = of_client.unwrap_or_else(|| panic!("a request of {client} waits that was not counted"));
            *of_client -= 1;
            if *of_client == 0 {
                self.of_clients.remove(&client);
            }
            self.running += 1;
            self.assert_counted();
            return Some(next);
        }
        None
    }

    /// A slow request of this client has ended, so its requests wait for their turns again.
    fn let_go(&mut self, client: Nid) {
        let held_back = self.held_back.remove(&client).unwrap_or_default();
        held_back.into_iter().for_each(|request| self.waiting.push(request));
    }
}

fn is_held_back(slow: &FxHashMap<Nid, usize>, client: Nid) -> bool {
    slow.get(&client).is_some_and(|n| *n >= SLOW_MAX)
}

/// Returns whether other clients may wait for a request with this opcode. Only then is the client believed that marks
/// it as one of high priority: the mark also takes a request past those of other clients.
pub(crate) fn may_have_high_priority(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        LdlmEnqueue | LdlmConvert | LdlmCancel | LdlmBlCallback | LdlmCpCallback | LdlmGlCallback | LdlmSetInfo // locks
            | OstRead | OstWrite // what is done under a lock that is called back, or with a lock of the server
            | OstGlimpse
    )
}

pub(crate) fn is_high_priority(header: &RpcHeader) -> bool {
    header.has(nacre_wire::header::flags::HIGH_PRIORITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_wire::header::flags;

    #[derive(Debug, PartialEq)]
    struct Request(u32, RpcHeader);

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
    }

    fn queue(threads: u32) -> LaneQueue<Request> {
        LaneQueue::new(Schedule { threads, ..Schedule::of(Lane::Request) })
    }

    fn of(client: u64, n: u32) -> Request {
        Request(n, RpcHeader { export: client, ..RpcHeader::default() })
    }

    fn regular(n: u32) -> Request {
        Request(n, RpcHeader::default())
    }

    fn high(n: u32) -> Request {
        Request(n, RpcHeader { flags: flags::HIGH_PRIORITY, ..RpcHeader::default() })
    }

    fn arrive(q: &mut LaneQueue<Request>, request: Request) -> &'static str {
        match q.handle_arrival(request) {
            Admission::Run(_) => "runs",
            Admission::Queued => "waits",
            Admission::Full => "is dropped",
        }
    }

    fn done(q: &mut LaneQueue<Request>, high: bool) -> Option<u32> {
        q.handle_done(high).map(|r| r.0)
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
        q.assert_busy();
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
        let next: Vec<_> = q.handle_slow_done(Nid::sim(1)).into_iter().map(|r| r.0).collect();
        assert_eq!(next, [5], "the only free slot");
        assert_eq!(q.queued(), 15);
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
                        match q.handle_arrival(Request(sent, header)) {
                            Admission::Run(r) => started.push(r),
                            Admission::Queued => {}
                            Admission::Full => panic!("seed {seed}: far from full"),
                        }
                    }
                    2 if !slow.is_empty() => {
                        let r: Request = slow.swap_remove(prng.below(slow.len() as u64) as usize);
                        started.extend(q.handle_slow_done(r.client()));
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
                        started.extend(q.handle_done(high));
                    }
                    _ => {}
                }
                running.extend(started);
                assert_eq!(q.running(), running.len(), "seed {seed}");
                assert!(running.len() <= 5, "seed {seed}");
                assert_eq!(q.queued() + running.len() + slow.len() + finished, sent as usize, "seed {seed}");
            }
        }
    }
}
