//! The requests of one priority that wait in a lane, whatever the policy: in an order (`waiting`), for tokens (`tbf`), or for a
//! while (`delay`).

use super::Classified;
use super::delay::Delayed;
use super::policy::{Order, Policy};
use super::tbf::{Buckets, Done};
use super::waiting::Waiting;
use nacre_base::Time;

pub(super) enum Pending<T> {
    Ordered(Waiting<T>),
    /// Boxed, because most lanes of most nodes have the other.
    Buckets(Box<Buckets<T>>),
    Delayed(Box<Delayed<T>>),
}

impl<T: Classified> Pending<T> {
    pub(super) fn new(order: Order) -> Pending<T> {
        match order.policy {
            Policy::Tbf => Pending::Buckets(Box::new(Buckets::new(&order))),
            Policy::Delay => Pending::Delayed(Box::new(Delayed::new(order.delay, order.seed))),
            _ => Pending::Ordered(Waiting::new(order)),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Pending::Ordered(waiting) => waiting.len(),
            Pending::Buckets(buckets) => buckets.len(),
            Pending::Delayed(delayed) => delayed.len(),
        }
    }

    /// True if a request that arrives while there is a free slot runs at once.
    pub(super) fn lets_run_at_once(&self) -> bool {
        matches!(self, Pending::Ordered(_))
    }

    /// Another order from now on, also for the requests that wait.
    pub(super) fn set_order(&mut self, order: Order, now: Time) {
        match (&mut *self, order.policy) {
            (Pending::Buckets(buckets), Policy::Tbf) => return buckets.set_order(&order, now),
            (Pending::Delayed(delayed), Policy::Delay) => return delayed.set_delay(order.delay),
            (Pending::Ordered(waiting), policy) if !matches!(policy, Policy::Tbf | Policy::Delay) => {
                return waiting.set_order(order);
            }
            _ => {}
        }
        let requests = match self {
            Pending::Ordered(waiting) => waiting.drain(),
            Pending::Buckets(buckets) => buckets.drain(),
            Pending::Delayed(delayed) => delayed.drain(),
        };
        *self = Pending::new(order);
        requests.into_iter().for_each(|request| self.push(request, now));
    }

    pub(super) fn push(&mut self, request: T, now: Time) {
        match self {
            Pending::Ordered(waiting) => waiting.push(request),
            Pending::Buckets(buckets) => buckets.push(request, now),
            Pending::Delayed(delayed) => delayed.push(request, now),
        }
    }

    /// Takes the request whose turn it is, if one may run now.
    pub(super) fn pop(&mut self, now: Time) -> Option<T> {
        match self {
            Pending::Ordered(waiting) => waiting.pop(),
            Pending::Buckets(buckets) => buckets.pop(now),
            Pending::Delayed(delayed) => delayed.pop(now),
        }
    }

    /// When the next request may run; the beginning of time if one may now, and none if none waits.
    pub(super) fn next_at(&self) -> Option<Time> {
        match self {
            Pending::Ordered(waiting) => (waiting.len() > 0).then_some(Time::ZERO),
            Pending::Buckets(buckets) => buckets.next_at(),
            Pending::Delayed(delayed) => delayed.next_at(),
        }
    }

    /// A request that ran has ended.
    pub(super) fn handle_done(&mut self, done: Done, now: Time) {
        if let Pending::Buckets(buckets) = self {
            buckets.handle_done(done, now);
        }
    }

    /// A request that was taken does not run now.
    pub(super) fn handle_put_back(&mut self, request: &T, now: Time) {
        if let Pending::Buckets(buckets) = self {
            buckets.handle_put_back(request, now);
        }
    }

    /// Classes of a rule of `tbf`.
    pub(super) fn classes_of(&self, rule: u64) -> usize {
        if let Pending::Buckets(buckets) = self { buckets.count_of(rule) } else { 0 }
    }
}
