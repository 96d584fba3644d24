//! The requests of one priority that wait in a lane, whatever the policy: in an order (`waiting`), for tokens (`tbf`), or for a
//! while (`delay`).

use super::classified::Classified;
use super::delay::Delayed;
use super::policy::{Order, Policy};
use super::tbf::Buckets;
use super::ticket::Done;
use super::waiting::Waiting;
use nacre_base::Time;

pub(super) struct Pending<T> {
    engine: Engine<T>,
    /// Number of the next class of `tbf`: requests that have run since an earlier time of the policy have tickets with lower ones.
    next_class: u32,
}

enum Engine<T> {
    Ordered(Waiting<T>),
    /// Boxed, because most lanes of most nodes have the other.
    Buckets(Box<Buckets<T>>),
    Delayed(Box<Delayed<T>>),
}

impl<T: Classified> Engine<T> {
    fn new(order: Order, next_class: u32) -> Engine<T> {
        match order.policy {
            Policy::Tbf => Engine::Buckets(Box::new(Buckets::new(&order, next_class))),
            Policy::Delay => Engine::Delayed(Box::new(Delayed::new(order.delay, order.seed))),
            _ => Engine::Ordered(Waiting::new(order)),
        }
    }
}

impl<T: Classified> Pending<T> {
    pub(super) fn new(order: Order) -> Pending<T> {
        Pending { engine: Engine::new(order, 1), next_class: 1 }
    }

    pub(super) fn len(&self) -> usize {
        match &self.engine {
            Engine::Ordered(waiting) => waiting.len(),
            Engine::Buckets(buckets) => buckets.len(),
            Engine::Delayed(delayed) => delayed.len(),
        }
    }

    /// True if a request that arrives while there is a free slot runs at once.
    pub(super) fn lets_run_at_once(&self) -> bool {
        matches!(self.engine, Engine::Ordered(_))
    }

    /// Another order from now on, also for the requests that wait.
    pub(super) fn set_order(&mut self, order: Order, now: Time) {
        match (&mut self.engine, order.policy) {
            (Engine::Buckets(buckets), Policy::Tbf) => return buckets.set_order(&order, now),
            (Engine::Delayed(delayed), Policy::Delay) => return delayed.set_delay(order.delay),
            (Engine::Ordered(waiting), policy) if !matches!(policy, Policy::Tbf | Policy::Delay) => {
                return waiting.set_order(order);
            }
            _ => {}
        }
        let requests = match &mut self.engine {
            Engine::Ordered(waiting) => waiting.drain(),
            Engine::Buckets(buckets) => {
                self.next_class = buckets.next_class();
                buckets.drain()
            }
            Engine::Delayed(delayed) => delayed.drain(),
        };
        self.engine = Engine::new(order, self.next_class);
        requests.into_iter().for_each(|request| self.push(request, now));
    }

    pub(super) fn push(&mut self, request: T, now: Time) {
        match &mut self.engine {
            Engine::Ordered(waiting) => waiting.push(request),
            Engine::Buckets(buckets) => buckets.push(request, now),
            Engine::Delayed(delayed) => delayed.push(request, now),
        }
    }

    /// Takes the request whose turn it is, if one may run now.
    pub(super) fn pop(&mut self, now: Time) -> Option<T> {
        match &mut self.engine {
            Engine::Ordered(waiting) => waiting.pop(),
            Engine::Buckets(buckets) => buckets.pop(now),
            Engine::Delayed(delayed) => delayed.pop(now),
        }
    }

    /// When the next request may run; the beginning of time if one may now, and none if none waits.
    pub(super) fn next_at(&self) -> Option<Time> {
        match &self.engine {
            Engine::Ordered(waiting) => (waiting.len() > 0).then_some(Time::ZERO),
            Engine::Buckets(buckets) => buckets.next_at(),
            Engine::Delayed(delayed) => delayed.next_at(),
        }
    }

    /// A request that ran has ended.
    pub(super) fn handle_done(&mut self, done: Done, now: Time) {
        if let Engine::Buckets(buckets) = &mut self.engine {
            buckets.handle_done(done, now);
        }
    }

    /// A request that was taken does not run now.
    pub(super) fn handle_put_back(&mut self, request: &T, now: Time) {
        if let Engine::Buckets(buckets) = &mut self.engine {
            buckets.handle_put_back(request, now);
        }
    }

    /// Classes of a rule of `tbf`.
    pub(super) fn classes_of(&self, rule: u64) -> usize {
        if let Engine::Buckets(buckets) = &self.engine { buckets.count_of(rule) } else { 0 }
    }
}
