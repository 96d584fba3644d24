//! Messages over simulated TCP: a *line* is what one node sends to another, with connections as the driver `tcp` has them. Small
//! messages have one of their own, and a large message takes the one that has least to write.

use super::{Event, Flight, Shared, State};
use crate::frame::HEADER_LEN;
use crate::lnd::Outbound;
use crate::message::Message;
use crate::sim_tcp::{SimTcp, TcpEvent, TcpPath};
use crate::tcp::BULK_MIN;
use nacre_base::hash::mix64;
use nacre_base::{FxHashMap, Time};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::time::Duration;

/// The lines of a network, by the nodes that send and receive.
#[derive(Default)]
pub(super) struct Lines(BTreeMap<(u32, u32), Line>);

struct Line {
    path: TcpPath,
    /// Messages under way, by their numbers.
    freight: FxHashMap<u64, Freight>,
    last_number: u64,
    /// Time of the event that will wake this line. The line ignores events at other times, because it has changed since they were scheduled.
    wakes_at: Option<Time>,
}

/// A message under way.
struct Freight {
    /// Told when the send buffer has taken the message; none if the flight has it.
    unsent: Option<Outbound>,
    flight: Box<Flight>,
}

/// A node that stops looks so often whether all that it sent has arrived.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

impl Lines {
    /// The time until which something that the node sent is under way for sure.
    pub(super) fn busy_until(&self, node: u32, now: Time) -> Time {
        let is_busy = self.0.iter().any(|((from, _), line)| *from == node && !line.freight.is_empty());
        if is_busy { now + LOOK_INTERVAL } else { now }
    }
}

impl Shared {
    /// A living node sends a message, which others may not be able to receive.
    pub(super) fn send_on_line(
        &self,
        mut s: MutexGuard<'_, State>,
        (from, to): (u32, u32),
        life: u32,
        tcp: SimTcp,
        out: Outbound,
        message: Message,
    ) {
        let now = self.rt.now();
        let lives = (life, s.nodes.get(&to).map_or(0, |m| m.life));
        let arrives = !s.is_cut(from, to);
        let Some(message) = arrives.then(|| message.arrive_unframed()).flatten() else {
            s.stats.lost += u64::from(!arrives);
            drop(s);
            return out.complete(Ok(()));
        };
        let payload_len = message.payload.len();
        let count = |bytes| u32::try_from(bytes).expect("a message is much smaller than 4 GiB");
        let bytes = (HEADER_LEN + payload_len) as u64;
        let cargo = s.load(message);
        let (bytes_count, payload_count) = (count(bytes), count(payload_len as u64));
        let mut flight = Box::new(Flight {
            cargo,
            bytes: bytes_count,
            payload_len: payload_count,
            from,
            to,
            lives,
            unreturned: None,
        });
        let unsent = match s.options.credits_return.waits_for_receiver(payload_len) {
            true => {
                flight.unreturned = Some(out);
                None
            }
            false => Some(out),
        };
        let line = s.line((from, to), tcp);
        line.last_number += 1;
        let number = line.last_number;
        line.freight.insert(number, Freight { unsent, flight });
        let connection = if payload_len >= BULK_MIN { line.path.choose_bulk() } else { 0 };
        line.path.write(now, connection, number, bytes);
        let wake = s.schedule_line((from, to));
        drop(s);
        self.wake(wake);
    }
}

impl State {
    fn line(&mut self, (from, to): (u32, u32), tcp: SimTcp) -> &mut Line {
        let latency = self.links.get(&(from, to)).unwrap_or(&self.options.link).latency;
        let seed = self.options.seed ^ mix64(u64::from(from) << 32 | u64::from(to));
        self.lines.0.entry((from, to)).or_insert_with(|| Line {
            path: TcpPath::new(&tcp, latency, tcp.connections(2 * latency), seed),
            freight: FxHashMap::default(),
            last_number: 0,
            wakes_at: None,
        })
    }

    /// Schedules the event that wakes the line next, unless one is scheduled that is as early. Returns whether the network's task must be woken for
    /// it.
    fn schedule_line(&mut self, (from, to): (u32, u32)) -> bool {
        let Some(line) = self.lines.0.get_mut(&(from, to)) else { return false };
        let Some(next) = line.path.next().filter(|next| line.wakes_at.is_none_or(|at| *next < at)) else {
            return false;
        };
        line.wakes_at = Some(next);
        self.push(next, Event::Tcp(from, to))
    }

    /// Lets happen what is due on a line.
    pub(super) fn advance_line(&mut self, (from, to): (u32, u32), now: Time) {
        let Some(line) = self.lines.0.get_mut(&(from, to)) else { return };
        if line.wakes_at.is_none_or(|at| at > now) {
            return;
        }
        line.wakes_at = None;
        let mut due = Vec::new();
        for event in line.path.advance(now) {
            match event {
                TcpEvent::Accepted(number) => {
                    let freight = line.freight.get_mut(&number);
                    due.extend(freight.and_then(|freight| freight.unsent.take()).map(Event::Sent));
                }
                TcpEvent::Arrived(number) => {
                    due.extend(line.freight.remove(&number).map(|freight| Event::Deliver(freight.flight)));
                }
            }
        }
        for event in due {
            self.push(now, event);
        }
        self.schedule_line((from, to));
    }

    /// A node is gone: what was under way to and from it is lost, and its next life has new connections. Credits come back to those
    /// that live. Returns whether the network's task must be woken for that.
    pub(super) fn cut_lines(&mut self, node: u32) -> bool {
        let mut wake = false;
        let gone: Vec<(u32, u32)> = self.lines.0.keys().copied().filter(|(a, b)| *a == node || *b == node).collect();
        for key in gone {
            let line = self.lines.0.remove(&key);
            let mut freight: Vec<(u64, Freight)> = line.into_iter().flat_map(|line| line.freight).collect();
            freight.sort_by_key(|(number, _)| *number);
            for (_, Freight { unsent, flight }) in freight {
                self.stats.lost += 1;
                for out in unsent.into_iter().chain(flight.unreturned) {
                    wake |= self.push(Time::ZERO, Event::Sent(out));
                }
            }
        }
        wake
    }
}
