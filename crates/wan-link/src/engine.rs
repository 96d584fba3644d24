//! The rules of one direction, without IO: packets go in with the moment they came, and come out when they are due.
//!
//! - Inputs: [`Engine::room`] and [`Engine::handle_packet`], [`Engine::set_shape`], [`Engine::set_up`].
//! - Outputs: [`Engine::next`] says when to come back; [`Engine::take_due`] gives the packets that are due then.
//!
//! Each input and output first lets packets depart that have departed by `now`. Moments must not go backwards.
//!
//! Losses, jitter and overtaking are drawn when a packet departs. Every packet draws three numbers, whether or not the settings
//! need them, so that a change of the jitter leaves the losses of a seed where they were.

mod limit;
mod pacer;
#[cfg(test)]
mod tests;

use crate::counters::Counters;
use crate::link::Shape;
use crate::store::{Place, Store};
use crate::units::Rate;
use limit::Limit;
use nacre_base::{Prng, Time};
use pacer::Pacer;
use std::collections::VecDeque;
use std::time::Duration;

/// One direction of a link.
pub struct Engine {
    shape: Shape,
    is_up: bool,
    prng: Prng,
    store: Store,
    limit: Limit,
    /// When the first packet in the queue departs.
    pacer: Pacer,
    /// Packets that have not departed, oldest first.
    queue: VecDeque<Place>,
    queue_bytes: u64,
    /// Packets on the line that keep their order. Each is due no earlier than the one before.
    in_order: VecDeque<Flight>,
    /// Packets on the line that do not wait for jitter, neither their own nor that of others. They keep their order among
    /// themselves.
    overtakers: VecDeque<Flight>,
    /// Number of packets that have departed. It decides between packets that are due at the same moment.
    departed: u64,
    counters: Counters,
}

/// A packet on the line.
struct Flight {
    due: Time,
    number: u64,
    place: Place,
}

/// What became of a packet that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet is in the queue or on the line.
    Accepted,
    /// The queue has no room for the packet.
    Dropped,
    /// The emulator has no memory for the packet.
    Refused,
    /// The link is cut.
    Cut,
}

impl Engine {
    /// A link without packets, whose chances `seed` determines.
    pub fn new(shape: Shape, seed: u64) -> Engine {
        Engine {
            shape,
            is_up: true,
            prng: Prng::new(seed),
            store: Store::new(),
            limit: Limit::new(&shape),
            pacer: Pacer::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            in_order: VecDeque::new(),
            overtakers: VecDeque::new(),
            departed: 0,
            counters: Counters::default(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Most bytes in the queue now.
    pub fn queue_max(&self) -> u64 {
        self.shape.queue_max
    }

    /// Packets in the queue or on the line.
    pub fn inside(&self) -> u64 {
        (self.queue.len() + self.in_order.len() + self.overtakers.len()) as u64
    }

    /// Room for the bytes of the next packet, which [`Engine::handle_packet`] then takes.
    pub fn room(&mut self) -> &mut [u8] {
        self.store.room()
    }

    /// A packet has come: the first `len` bytes of the room.
    pub fn handle_packet(&mut self, now: Time, len: usize) -> Fate {
        self.let_depart(now);
        self.counters.packets_in += 1;
        self.counters.bytes_in += len as u64;
        let fate = self.admit(now, len);
        match fate {
            Fate::Accepted => {}
            Fate::Dropped => self.counters.dropped += 1,
            Fate::Refused => self.counters.refused += 1,
            Fate::Cut => self.counters.cut += 1,
        }
        self.assert_conserved();
        fate
    }

    /// When to ask for due packets again: not later than the first one is due. None if there is no packet inside.
    pub fn next(&mut self, now: Time) -> Option<Time> {
        self.let_depart(now);
        let in_flight = [&self.in_order, &self.overtakers].into_iter().filter_map(|flights| flights.front());
        let first_due = in_flight.map(|flight| flight.due).min();
        let first_departing = self.pacer.departs().filter(|_| !self.queue.is_empty());
        first_due.into_iter().chain(first_departing.map(|departs| departs + self.shape.delay)).min()
    }

    /// As [`Engine::next`], but for a caller that prefers to come once for several packets: when the last packet is due that is due
    /// within `window` of the first one. A single packet is not kept waiting.
    pub fn next_batch(&mut self, now: Time, window: Duration) -> Option<Time> {
        let first = self.next(now)?;
        let until = first + window;
        let last_of = |flights: &VecDeque<Flight>| {
            let count = flights.partition_point(|flight| flight.due <= until);
            count.checked_sub(1).map(|last| flights[last].due)
        };
        let in_flight = last_of(&self.in_order).into_iter().chain(last_of(&self.overtakers));
        // The rest of the queue departs steadily, so that its last packet in the window is near the window's end.
        let rest = |rate: Rate| self.pacer.departs().map(|departs| departs + rate.time_of(self.queue_bytes));
        let departing = self.shape.rate.filter(|_| self.queue.len() > 1).and_then(rest);
        let departing = departing.map(|departs| (departs + self.shape.delay).min(until));
        in_flight.chain(departing).max().or(Some(first))
    }

    /// The packet that is due first, if it is due by `now`.
    pub fn take_due(&mut self, now: Time) -> Option<&[u8]> {
        self.let_depart(now);
        let order = |flights: &VecDeque<Flight>| flights.front().map(|flight| (flight.due, flight.number));
        let flights = match (order(&self.in_order), order(&self.overtakers)) {
            (Some(one), Some(other)) if other < one => &mut self.overtakers,
            (None, Some(_)) => &mut self.overtakers,
            _ => &mut self.in_order,
        };
        let flight = flights.pop_front_if(|flight| flight.due <= now)?;
        self.counters.delivered += 1;
        self.counters.bytes_delivered += flight.place.len();
        self.counters.lateness.add(now.since(flight.due));
        self.assert_conserved();
        Some(self.store.free(flight.place))
    }

    /// Changes the settings. A new rate holds for packets in the queue, also for the rest of the first one. A new delay, jitter or
    /// share holds for packets that depart from now on; if the delay falls, they do not overtake the packets on the line.
    pub fn set_shape(&mut self, now: Time, shape: Shape) {
        self.let_depart(now);
        self.pacer.change_rate(now, self.shape.rate, shape.rate);
        self.limit.grow(&shape);
        self.shape = shape;
        self.let_depart(now);
    }

    /// Cuts the link, or joins it again. A cut is silent: packets that are inside are gone, and packets that come are, too.
    pub fn set_up(&mut self, now: Time, is_up: bool) {
        self.let_depart(now);
        self.is_up = is_up;
        if !is_up {
            self.counters.cut += self.inside();
            let flying = self.in_order.drain(..).chain(self.overtakers.drain(..)).map(|flight| flight.place);
            for place in self.queue.drain(..).chain(flying) {
                self.store.free(place);
            }
            self.queue_bytes = 0;
            self.pacer = Pacer::default();
            assert_eq!(self.store.bytes_inside(), 0, "a cut link is empty");
        }
        self.assert_conserved();
    }

    fn admit(&mut self, now: Time, len: usize) -> Fate {
        let bytes = len as u64;
        if !self.is_up {
            return Fate::Cut;
        }
        if self.queue_bytes + bytes > self.shape.queue_max {
            return Fate::Dropped;
        }
        if self.store.bytes_inside() + bytes > self.limit.bytes_max() {
            return Fate::Refused;
        }
        let place = self.store.keep(len);
        let Some(rate) = self.shape.rate else {
            assert!(self.queue.is_empty(), "nothing waits for a link without a rate");
            self.fly(now, place);
            return Fate::Accepted;
        };
        if self.queue.is_empty() {
            self.pacer.start(now, rate, bytes);
        }
        self.queue.push_back(place);
        self.queue_bytes += bytes;
        self.counters.longest_queue_bytes = self.counters.longest_queue_bytes.max(self.queue_bytes);
        Fate::Accepted
    }

    /// Puts packets on the line that have departed by `now`.
    fn let_depart(&mut self, now: Time) {
        while let Some(departs) = self.pacer.departs().filter(|departs| *departs <= now) {
            let Some(place) = self.queue.pop_front() else { return };
            assert!(self.queue_bytes >= place.len(), "the queue holds the bytes of its packets");
            self.queue_bytes -= place.len();
            self.fly(departs, place);
            match self.queue.front() {
                Some(next) => self.pacer.go_on(self.shape.rate, next.len()),
                None => self.pacer.stop(),
            }
        }
    }

    /// A packet has departed: decides whether it arrives, and when.
    fn fly(&mut self, departed: Time, place: Place) {
        let [loss, jitter, overtaking] = [(); 3].map(|()| self.prng.next_u64());
        if self.shape.loss.holds(loss) {
            self.counters.lost += 1;
            self.store.free(place);
            return;
        }
        let arrives = departed + self.shape.delay;
        let number = self.departed;
        self.departed += 1;
        if self.shape.reorder.holds(overtaking) {
            let due = self.overtakers.back().map_or(arrives, |before| arrives.max(before.due));
            if self.in_order.back().is_some_and(|before| before.due > due) {
                self.counters.reordered += 1;
            }
            self.overtakers.push_back(Flight { due, number, place });
        } else {
            let due = arrives + part(self.shape.jitter, jitter);
            let due = self.in_order.back().map_or(due, |before| due.max(before.due));
            self.in_order.push_back(Flight { due, number, place });
        }
    }

    fn assert_conserved(&self) {
        let Counters { packets_in, .. } = self.counters;
        let (ended, inside) = (self.counters.ended(), self.inside());
        assert_eq!(packets_in, ended + inside, "{inside} packets inside, {:?}", self.counters);
        assert!(self.store.bytes_inside() <= self.limit.bytes_max() && self.queue_bytes <= self.store.bytes_inside());
    }
}

/// The part of a duration that a random number draws, from nothing to all of it.
fn part(whole: Duration, random: u64) -> Duration {
    let choices = whole.as_nanos() + 1;
    assert!(choices <= u128::from(u64::MAX), "the longest jitter is a minute");
    Duration::from_nanos(((u128::from(random) * choices) >> 64) as u64)
}
