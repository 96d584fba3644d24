//! The network request scheduler: which requests of a lane run, and in which order the others wait. A sans-IO engine.

use nacre_wire::RpcHeader;
use std::collections::VecDeque;

/// What a policy can order requests by.
pub trait Classified: Send {
    /// The request's header: who, what, how much.
    fn header(&self) -> &RpcHeader;
}

/// Orders what waits.
pub trait Policy<T: Classified>: Send {
    /// Name, as `nrs_policies` shows it.
    fn name(&self) -> &'static str;
    /// A request has to wait.
    fn enqueue(&mut self, request: T);
    /// The request that is to run next.
    fn dequeue(&mut self) -> Option<T>;
    /// How many wait.
    fn len(&self) -> usize;
    /// Whether none waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out.
#[derive(Debug)]
pub struct Fifo<T>(VecDeque<T>);

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo(VecDeque::new())
    }
}

impl<T: Classified> Policy<T> for Fifo<T> {
    fn name(&self) -> &'static str {
        "fifo"
    }
    fn enqueue(&mut self, request: T) {
        self.0.push_back(request);
    }
    fn dequeue(&mut self) -> Option<T> {
        self.0.pop_front()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<T> {
    /// Run it now.
    Run(T),
    /// It waits.
    Queued,
    /// Too many wait: it is dropped.
    Full,
}

/// The queue of a lane: so many run, the others wait. High-priority requests have a queue of their own that goes first,
/// and some room beyond the limit that only they get, so that they run although everything else waits for them.
pub(crate) struct LaneQueue<T: Classified> {
    /// Most regular requests that run.
    limit: usize,
    /// Most requests that run.
    limit_all: usize,
    regular: Class<T>,
    high_priority: Class<T>,
    /// High-priority requests started since the last regular one.
    in_a_row: u32,
}

struct Class<T: Classified> {
    running: usize,
    queue: Box<dyn Policy<T>>,
}

/// After so many high-priority requests a regular one has its turn.
const HIGH_PRIORITY_RATIO: u32 = 10;
/// Most requests that wait in each queue of a lane.
const QUEUE_MAX: usize = 65_536;

impl<T: Classified + 'static> LaneQueue<T> {
    pub(crate) fn new(limit: usize) -> LaneQueue<T> {
        let class = || Class { running: 0, queue: Box::new(Fifo::default()) as Box<dyn Policy<T>> };
        let limit_all = limit.saturating_add((limit / 8).max(1));
        LaneQueue { limit, limit_all, regular: class(), high_priority: class(), in_a_row: 0 }
    }

    /// A request arrived.
    pub(crate) fn handle_arrival(&mut self, request: T) -> Admission<T> {
        let high = is_high_priority(request.header());
        let fits = self.running() < if high { self.limit_all } else { self.limit };
        let class = self.class(high);
        if fits {
            class.running += 1;
            return Admission::Run(request);
        }
        if class.queue.len() >= QUEUE_MAX {
            return Admission::Full;
        }
        class.queue.enqueue(request);
        Admission::Queued
    }

    /// A request of this class is done, or does not count any more: what runs in its place.
    pub(crate) fn handle_done(&mut self, high_priority: bool) -> Option<T> {
        let done = self.class(high_priority);
        assert!(done.running > 0, "a request was done twice");
        done.running -= 1;
        let regular_fits = self.regular.running < self.limit;
        let regular_turn = regular_fits && self.in_a_row >= HIGH_PRIORITY_RATIO && !self.regular.queue.is_empty();
        let high = !self.high_priority.queue.is_empty() && !regular_turn;
        if !high && !regular_fits {
            return None;
        }
        let next = self.class(high).queue.dequeue()?;
        self.class(high).running += 1;
        self.in_a_row = if high { self.in_a_row + 1 } else { 0 };
        Some(next)
    }

    fn class(&mut self, high: bool) -> &mut Class<T> {
        if high { &mut self.high_priority } else { &mut self.regular }
    }

    pub(crate) fn running(&self) -> usize {
        self.regular.running + self.high_priority.running
    }

    pub(crate) fn queued(&self) -> usize {
        self.regular.queue.len() + self.high_priority.queue.len()
    }
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
    fn a_full_queue_drops() {
        let mut q = LaneQueue::new(1);
        assert!((0..=QUEUE_MAX as u32).all(|i| arrive(&mut q, regular(i)) != "is dropped"));
        assert_eq!(arrive(&mut q, regular(0)), "is dropped");
    }
}
