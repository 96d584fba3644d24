//! The network request scheduler: decides which requests of a target's lane run, and in which order the others wait. A
//! sans-IO engine.
//!
//! The order is that of a [`Policy`], which can be exchanged while requests wait ([`pending`]). Some policies let a request wait
//! although there is a slot for it; `wake_at` is when the next of these may run. A slot of the lane, Lustre's service
//! thread, is for work, not for waiting: a request whose data is slow to come gives its slot back (`handle_slow`), and a client
//! with [`SLOW_MAX`] such requests gets no further slot until one of them has ended. Its requests are held back when their turns come;
//! when they are let go they run before all others, because their turns have come already.

mod classified;
mod delay;
pub(crate) mod device_time;
mod expression;
mod pending;
mod policy;
mod rules;
mod tbf;
mod ticket;
mod waiting;

pub(crate) use classified::Classified;
pub use classified::Place;
use nacre_base::{FxHashMap, Nid, Time};
use nacre_wire::{Lane, Opcode, RpcHeader};
use pending::{Pending, Turn};
pub use policy::{Classes, Delay, Order, Ordered, Policy, Quanta, Schedule, UnknownPolicy};
pub use rules::{Rate, RuleError, Rules};
use std::collections::VecDeque;
pub(crate) use ticket::{Done, Ticket};

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
    /// Most regular requests that run at once, by the schedule.
    threads: u32,
    /// The same by the target's congestion control; none if it sets no limit.
    at_once: Option<u32>,
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
    pending: Pending<T>,
    /// How many requests of each client wait or are held back; none has 0.
    of_clients: FxHashMap<Nid, usize>,
    /// Requests of clients with too many slow ones, whose turns have come, in the order of their turns.
    held_back: FxHashMap<Nid, VecDeque<(Turn, T)>>,
    /// How many these are.
    held_back_count: usize,
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
        let order = Order::of(policy, quanta);
        Schedule { regular: order.clone(), high_priority: order, high_priority_ratio: HIGH_PRIORITY_RATIO, threads }
    }
}

impl<T: Classified + 'static> LaneQueue<T> {
    pub(crate) fn new(schedule: Schedule) -> LaneQueue<T> {
        let (regular, high_priority) = (Class::new(schedule.regular), Class::new(schedule.high_priority));
        let in_a_row_max = schedule.high_priority_ratio;
        let (at_once, in_a_row, slow) = Default::default();
        let threads = schedule.threads;
        LaneQueue { threads, at_once, regular, high_priority, in_a_row, in_a_row_max, slow }
    }

    /// Most regular requests that run at once.
    fn limit(&self) -> usize {
        self.at_once.map_or(self.threads, |most| most.min(self.threads)) as usize
    }

    /// Most requests of both priorities that run at once.
    fn limit_all(&self) -> usize {
        let limit = self.limit();
        limit.saturating_add((limit / 8).max(1))
    }

    /// True if another request of this priority may run.
    fn has_slot(&self, high: bool) -> bool {
        self.running() < self.limit_all() && (high || self.regular.running < self.limit())
    }

    /// Another schedule from now on, also for the requests that wait. Returns the requests that may run now.
    pub(crate) fn set_schedule(&mut self, schedule: Schedule, now: Time) -> Vec<T> {
        self.threads = schedule.threads;
        self.in_a_row_max = schedule.high_priority_ratio;
        self.regular.pending.set_order(schedule.regular, now);
        self.high_priority.pending.set_order(schedule.high_priority, now);
        self.handle_time(now)
    }

    /// The limit that [`LaneQueue::set_at_once`] has set.
    pub(crate) fn at_once(&self) -> Option<u32> {
        self.at_once
    }

    /// Sets the limit of the target's congestion control, or takes it away. Returns the requests that may run now.
    pub(crate) fn set_at_once(&mut self, most: Option<u32>, now: Time) -> Vec<T> {
        self.at_once = most;
        self.handle_time(now)
    }

    /// Time has passed. Returns the requests that may run now.
    pub(crate) fn handle_time(&mut self, now: Time) -> Vec<T> {
        let next = std::iter::from_fn(|| self.next(now)).collect();
        self.assert_busy(now);
        next
    }

    /// The time at which the queue must look again, because a request waits for it although there is a slot; none if no request does.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        let with_slots = [false, true].into_iter().filter(|high| self.has_slot(*high));
        with_slots.filter_map(|high| self.class(high).pending.next_at()).min()
    }

    /// A request arrived. The one that runs now may be another.
    pub(crate) fn handle_arrival(&mut self, request: T, now: Time) -> Admission<T> {
        let high = is_high_priority(request.header());
        let may_run = self.has_slot(high) && !is_held_back(&self.slow, request.client());
        let class = self.class_mut(high);
        if may_run && class.pending.lets_run_at_once() {
            class.running += 1;
            self.assert_limits(high);
            return Admission::Run(request);
        }
        if !class.enqueue(request, now) {
            return Admission::Full;
        }
        self.next(now).map_or(Admission::Queued, Admission::Run)
    }

    /// A request of this class is done, or no longer counts. Returns the request that runs in its place.
    pub(crate) fn handle_done(&mut self, high_priority: bool, done: Done, now: Time) -> Option<T> {
        let class = self.class_mut(high_priority);
        assert!(class.running > 0, "a request was done twice");
        class.running -= 1;
        class.pending.handle_done(done, now);
        let next = self.next(now);
        self.assert_busy(now);
        next
    }

    /// The data of a request of `client` is slow to come. If the request still has its slot, `handle_done` is called
    /// afterwards to give it back.
    pub(crate) fn handle_slow(&mut self, client: Nid) {
        *self.slow.entry(client).or_default() += 1;
    }

    /// A slow request has its data, or will not get it. Returns the requests that may run now.
    pub(crate) fn handle_slow_done(&mut self, client: Nid, now: Time) -> Vec<T> {
        let slow = self.slow.get_mut(&client).expect("a slow request was counted");
        *slow -= 1;
        if *slow == 0 {
            self.slow.remove(&client);
        }
        if !is_held_back(&self.slow, client) {
            self.regular.let_go(client, now);
            self.high_priority.let_go(client, now);
        }
        self.handle_time(now)
    }

    /// Panics if requests wait for their turn while none runs, whose end would start them, and no time is set for them either.
    fn assert_busy(&self, now: Time) {
        let waiting = self.regular.pending.len() + self.high_priority.pending.len();
        let is_timed = self.wake_at().is_some_and(|at| at > now);
        assert!(
            self.running() > 0 || waiting == 0 || is_timed,
            "nothing runs, and {waiting} requests wait for their turn"
        );
    }

    /// Panics if a request was started beyond the limits.
    fn assert_limits(&self, high_priority: bool) {
        let (regular, limit) = (self.regular.running, self.limit());
        assert!(high_priority || regular <= limit, "{regular} of {limit} run");
        let (running, limit_all) = (self.running(), self.limit_all());
        assert!(running <= limit_all, "{running} of {limit_all} run");
    }

    /// Starts the next request if there is a slot for it.
    fn next(&mut self, now: Time) -> Option<T> {
        let regular_first = self.in_a_row >= self.in_a_row_max;
        for high in [!regular_first, regular_first] {
            if !self.has_slot(high) {
                continue;
            }
            let class = if high { &mut self.high_priority } else { &mut self.regular };
            if let Some(next) = class.dequeue(&self.slow, now) {
                self.in_a_row = if high { (self.in_a_row + 1).min(self.in_a_row_max) } else { 0 };
                self.assert_limits(high);
                return Some(next);
            }
        }
        None
    }

    fn class(&self, high: bool) -> &Class<T> {
        if high { &self.high_priority } else { &self.regular }
    }

    fn class_mut(&mut self, high: bool) -> &mut Class<T> {
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
        let class = self.class(high_priority);
        (class.running, class.queued())
    }

    /// Classes of a rule of `tbf`; the rule 0 is the default rule.
    pub(crate) fn classes_of(&self, high_priority: bool, rule: u64) -> usize {
        self.class(high_priority).pending.classes_of(rule)
    }
}

impl<T: Classified> Class<T> {
    fn new(order: Order) -> Class<T> {
        let (of_clients, held_back) = Default::default();
        Class { running: 0, pending: Pending::new(order), of_clients, held_back, held_back_count: 0 }
    }

    fn queued(&self) -> usize {
        self.pending.len() + self.held_back_count
    }

    /// Lets a request wait. Returns false if too many of its client do.
    fn enqueue(&mut self, request: T, now: Time) -> bool {
        let of_client = self.of_clients.entry(request.client()).or_default();
        if *of_client >= CLIENT_QUEUE_MAX {
            return false;
        }
        *of_client += 1;
        self.pending.push(request, now);
        self.assert_counted();
        true
    }

    /// Panics if requests wait that were not counted for their clients, or the other way around.
    fn assert_counted(&self) {
        let (clients, queued) = (self.of_clients.len(), self.queued());
        assert!(queued >= clients, "{queued} requests of {clients} clients wait");
        assert_eq!(queued == 0, clients == 0, "{queued} requests of {clients} clients wait");
    }

    /// Starts the request whose turn it is. Those of clients with too many slow requests are held back when their turns come.
    fn dequeue(&mut self, slow: &FxHashMap<Nid, usize>, now: Time) -> Option<T> {
        while let Some((turn, next)) = self.pending.pop(now) {
            let client = next.client();
            if is_held_back(slow, client) {
                self.pending.handle_held_back(&next, now);
                self.held_back.entry(client).or_default().push_back((turn, next));
                self.held_back_count += 1;
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

    /// A slow request of this client has ended, so its requests may run, the first of them before all others.
    fn let_go(&mut self, client: Nid, now: Time) {
        let Some(held_back) = self.held_back.remove(&client) else { return };
        assert!(
            held_back.iter().is_sorted_by_key(|(turn, _)| *turn),
            "requests of {client} were held back out of turn"
        );
        self.held_back_count -= held_back.len();
        self.pending.push_again(held_back, now);
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
mod tests;
