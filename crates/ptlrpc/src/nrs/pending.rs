//! The requests of one priority that wait in a lane, whatever the policy: in an order (`waiting`), for tokens (`tbf`), or for a
//! while (`delay`).
//!
//! A request whose turn has come may be held back, and wait again later. It keeps its turn, and runs before all those whose turns have
//! not come. Under `tbf`, where a turn is a token, it gives the token back and waits for another one, before all others of its class.

use super::classified::Classified;
use super::delay::Delayed;
use super::policy::{Order, Policy};
use super::tbf::Buckets;
use super::ticket::Done;
use super::waiting::Waiting;
use nacre_base::Time;
use std::collections::{BTreeMap, VecDeque};

pub(super) struct Pending<T> {
    engine: Engine<T>,
    /// Requests that wait again after they were held back, in the order of their turns.
    again: BTreeMap<Turn, T>,
    next_turn: u64,
    /// Number of the next class of `tbf`: requests that have run since an earlier time of the policy have tickets with lower ones.
    next_class: u32,
}

/// Number of a request's turn; lower ones came earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

/// Turns that a client keeps while its requests are held back: as many requests as an OST runs at once. A client could otherwise collect
/// turns while nobody else has requests, and have the target for itself when others come. Its further requests wait for new turns.
pub(super) const KEPT_TURNS_MAX: usize = 64;

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
            _ => Engine::Ordered(Waiting::new(order.batches())),
        }
    }
}

impl<T: Classified> Pending<T> {
    pub(super) fn new(order: Order) -> Pending<T> {
        Pending { engine: Engine::new(order, 1), again: BTreeMap::new(), next_turn: 0, next_class: 1 }
    }

    pub(super) fn len(&self) -> usize {
        let of_engine = match &self.engine {
            Engine::Ordered(waiting) => waiting.len(),
            Engine::Buckets(buckets) => buckets.len(),
            Engine::Delayed(delayed) => delayed.len(),
        };
        self.again.len() + of_engine
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
                return waiting.set_order(order.batches());
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

    /// Requests of a client that were held back wait again. Those that keep their turns go before all others.
    pub(super) fn push_again(&mut self, mut requests: VecDeque<(Turn, T)>, now: Time) {
        if let Engine::Buckets(buckets) = &mut self.engine {
            return requests.into_iter().rev().for_each(|(_, request)| buckets.push_first(request, now));
        }
        let others = requests.split_off(requests.len().min(KEPT_TURNS_MAX));
        self.again.extend(requests);
        others.into_iter().for_each(|(_, request)| self.push(request, now));
    }

    /// Takes the request whose turn it is, if one may run now.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Turn, T)> {
        if let Some(again) = self.again.pop_first() {
            return Some(again);
        }
        let request = match &mut self.engine {
            Engine::Ordered(waiting) => waiting.pop(),
            Engine::Buckets(buckets) => buckets.pop(now),
            Engine::Delayed(delayed) => delayed.pop(now),
        }?;
        let turn = Turn(self.next_turn);
        self.next_turn += 1;
        Some((turn, request))
    }

    /// When the next request may run; the beginning of time if one may now, and none if none waits.
    pub(super) fn next_at(&self) -> Option<Time> {
        if !self.again.is_empty() {
            return Some(Time::ZERO);
        }
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

    /// A request that was taken does not run now, and comes back later.
    pub(super) fn handle_held_back(&mut self, request: &T, now: Time) {
        if let Engine::Buckets(buckets) = &mut self.engine {
            buckets.handle_held_back(request, now);
        }
    }

    /// Classes of a rule of `tbf`.
    pub(super) fn classes_of(&self, rule: u64) -> usize {
        if let Engine::Buckets(buckets) = &self.engine { buckets.count_of(rule) } else { 0 }
    }
}
