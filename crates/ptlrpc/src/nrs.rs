//! The network request scheduler: decides which requests of a target's lane run, and in which order the others wait. A
//! sans-IO engine.
//!
//! Clients take turns, as with Lustre's CRR-N: a client is a NID, and each turn is one request. So a client waits for
//! one request of each other client, however many requests those have sent. A slot of the lane is for work, not for
//! waiting: a request whose data is slow to come gives its slot back (`handle_slow`), and a client with [`SLOW_MAX`]
//! such requests gets no further slot until one of them has ended.

use nacre_base::{FxHashMap, Nid};
use nacre_wire::{Opcode, RpcHeader};
use std::collections::{BTreeSet, VecDeque};

/// A request, as far as the order of requests depends on it.
pub trait Classified: Send + 'static {
    /// Header of the request.
    fn header(&self) -> &RpcHeader;
    /// The node that sent it.
    fn client(&self) -> Nid;
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
    /// High-priority requests started since the last regular one.
    in_a_row: u32,
    /// Number of requests that gave their slot back and wait for their data, for each client that has any.
    slow: FxHashMap<Nid, usize>,
}

/// Requests of one priority.
struct Class<T: Classified> {
    running: usize,
    queued: usize,
    /// The waiting requests of each client that has any.
    clients: FxHashMap<Nid, VecDeque<T>>,
    /// The clients of `clients` in the order of their turns, except those in `held_back`.
    turns: VecDeque<Nid>,
    /// Clients of `clients` that lost their turn because too many of their requests were slow.
    held_back: BTreeSet<Nid>,
}

/// After this many high-priority requests in a row, a regular one has its turn.
const HIGH_PRIORITY_RATIO: u32 = 10;
/// Most requests of one client that wait in each queue of a lane.
const CLIENT_QUEUE_MAX: usize = 8192;
/// Requests of one client that may wait for their data without a slot; a client with so many gets no further slot.
pub(crate) const SLOW_MAX: usize = 4;

impl<T: Classified + 'static> LaneQueue<T> {
    pub(crate) fn new(limit: usize) -> LaneQueue<T> {
        let limit_all = limit.saturating_add((limit / 8).max(1));
        let (regular, high_priority) = (Class::new(), Class::new());
        LaneQueue { limit, limit_all, regular, high_priority, in_a_row: 0, slow: FxHashMap::default() }
    }

    /// A request arrived.
    pub(crate) fn handle_arrival(&mut self, request: T) -> Admission<T> {
        let high = is_high_priority(request.header());
        let fits = self.running() < if high { self.limit_all } else { self.limit };
        let may_run = fits && !is_held_back(&self.slow, request.client());
        let class = self.class(high);
        if may_run {
            class.running += 1;
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
        let turns = self.regular.turns.len() + self.high_priority.turns.len();
        assert!(self.running() > 0 || turns == 0, "nothing runs, and {turns} clients wait for their turn");
        assert!(self.regular.running <= self.limit, "{} of {} run", self.regular.running, self.limit);
        assert!(self.running() <= self.limit_all, "{} of {} run", self.running(), self.limit_all);
    }

    /// Starts the next request if there is a slot for it.
    fn next(&mut self) -> Option<T> {
        if self.running() >= self.limit_all {
            return None;
        }
        let regular_fits = self.regular.running < self.limit;
        let regular_first = self.in_a_row >= HIGH_PRIORITY_RATIO;
        for high in [!regular_first, regular_first] {
            if !high && !regular_fits {
                continue;
            }
            let class = if high { &mut self.high_priority } else { &mut self.regular };
            if let Some(next) = class.dequeue(&self.slow) {
                self.in_a_row = if high { (self.in_a_row + 1).min(HIGH_PRIORITY_RATIO) } else { 0 };
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
        self.regular.queued + self.high_priority.queued
    }
}

impl<T: Classified> Class<T> {
    fn new() -> Class<T> {
        let (clients, turns, held_back) = Default::default();
        Class { running: 0, queued: 0, clients, turns, held_back }
    }

    /// Puts a request at the end of its client's queue. Returns false if the queue is full.
    fn enqueue(&mut self, request: T) -> bool {
        let client = request.client();
        let queue = self.clients.entry(client).or_default();
        if queue.len() >= CLIENT_QUEUE_MAX {
            return false;
        }
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        queue.push_back(request);
        self.queued += 1;
        self.assert_turns();
        true
    }

    /// Panics if a client that waits has no turn, or has two.
    fn assert_turns(&self) {
        let (clients, turns, held) = (self.clients.len(), self.turns.len(), self.held_back.len());
        assert_eq!(clients, turns + held, "clients that wait, and those that have a turn or are held back");
        assert!(self.queued >= clients, "{} requests of {clients} clients wait", self.queued);
        assert_eq!(self.queued == 0, clients == 0, "{} requests of {clients} clients wait", self.queued);
    }

    /// Starts the first request of the client whose turn it is. Clients with too many slow requests lose their turns.
    fn dequeue(&mut self, slow: &FxHashMap<Nid, usize>) -> Option<T> {
        while let Some(client) = self.turns.pop_front() {
            if is_held_back(slow, client) {
                self.held_back.insert(client);
                continue;
            }
            let queue = self.clients.get_mut(&client).expect("who has a turn has a request");
            let next = queue.pop_front();
            assert!(next.is_some(), "it is the turn of {client:?}, which has no request");
            match queue.is_empty() {
                true => drop(self.clients.remove(&client)),
                false => self.turns.push_back(client),
            }
            self.queued -= 1;
            self.running += 1;
            self.assert_turns();
            return next;
        }
        None
    }

    /// A slow request of this client has ended, so the client takes turns again.
    fn let_go(&mut self, client: Nid) {
        if self.held_back.remove(&client) {
            self.turns.push_back(client);
        }
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
        let mut q = LaneQueue::new(2);
        arrive(&mut q, regular(0));
        done(&mut q, false);
        done(&mut q, false);
    }

    #[test]
    #[should_panic(expected = "1 clients wait for their turn")]
    fn a_lane_that_stands_still_is_found() {
        let mut q = LaneQueue::new(1);
        arrive(&mut q, regular(0));
        arrive(&mut q, regular(1));
        q.regular.running = 0;
        q.assert_busy();
    }

    #[test]
    #[should_panic(expected = "have a turn")]
    fn a_client_without_a_turn_is_found() {
        let mut q = LaneQueue::new(1);
        assert_eq!([0, 1].map(|n| arrive(&mut q, of(1, n))), ["runs", "waits"]);
        q.regular.turns.clear();
        arrive(&mut q, of(2, 0));
    }

    #[test]
    fn the_limit_holds_and_those_who_wait_go_in_order() {
        let mut q = LaneQueue::new(2);
        let all: Vec<_> = (0..5).map(|i| arrive(&mut q, regular(i))).collect();
        assert_eq!(all, ["runs", "runs", "waits", "waits", "waits"]);
        assert_eq!([done(&mut q, false), done(&mut q, false)], [Some(2), Some(3)]);
        assert_eq!((q.running(), q.queued()), (2, 1));
        assert_eq!([done(&mut q, false), done(&mut q, false), done(&mut q, false)], [Some(4), None, None]);
        assert_eq!(arrive(&mut q, regular(9)), "runs");
    }

    #[test]
    fn high_priority_runs_although_the_lane_is_full() {
        let mut q = LaneQueue::new(2);
        assert_eq!([0, 1, 2].map(|i| arrive(&mut q, regular(i))), ["runs", "runs", "waits"]);
        assert_eq!(arrive(&mut q, high(10)), "runs");
        assert_eq!(arrive(&mut q, high(11)), "waits");
        assert_eq!(done(&mut q, true), Some(11), "high priority first");
        assert_eq!(done(&mut q, true), None, "the reserve is not for regular requests");
        assert_eq!(done(&mut q, false), Some(2));
    }

    #[test]
    fn high_priority_does_not_starve_the_others() {
        let mut q = LaneQueue::new(8);
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
        let mut q = LaneQueue::new(1);
        assert!((0..=CLIENT_QUEUE_MAX as u32).all(|i| arrive(&mut q, of(1, i)) != "is dropped"));
        assert_eq!(arrive(&mut q, of(1, 0)), "is dropped");
        assert_eq!(arrive(&mut q, of(2, 77)), "waits");
        assert_eq!([done(&mut q, false), done(&mut q, false)], [Some(1), Some(77)]);
    }

    #[test]
    fn clients_take_turns() {
        let mut q = LaneQueue::new(1);
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
        let mut q = LaneQueue::new(2);
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
            let mut q = LaneQueue::new(4);
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
