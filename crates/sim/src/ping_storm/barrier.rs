//! The effect of pings on a program on all clients whose processes meet at a barrier every 10 ms: the clients' nodes compute for 10 ms,
//! then wait for the slowest. A message of a ping costs its client's CPU [`MESSAGE_CPU`], so the slowest client of a round is
//! the one that sent and received the most messages in it, and the barrier takes so much longer for all.
//!
//! The model leaves out everything else that disturbs a node, and what an interrupt costs beside the work itself; both make a
//! round longer. Rounds begin every 10 ms, although one that was late delays the next.

use super::constants::{MESSAGE_CPU, ROUND};
use nacre_base::Time;
use std::time::Duration;

/// Messages of each client in the current round, and the rounds so far.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    counts: Vec<u32>,
    /// Clients that have a count.
    counted: Vec<u32>,
    /// Highest count of the current round.
    slowest: u32,
    round: u64,
    began: Time,
    sums: Sums,
}

/// The rounds of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    /// Rounds in which any client had a message.
    late: u64,
    /// Sum of the slowest clients' messages over all rounds.
    messages: u64,
    /// The most messages of a client in a round.
    worst: u32,
}

/// Lateness of the barriers of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lateness {
    /// Share of barriers that were late at all.
    pub late: f64,
    /// Mean over all barriers, in microseconds.
    pub mean_us: f64,
    /// The latest barrier, in microseconds.
    pub worst_us: f64,
}

impl Barrier {
    pub(super) fn new(clients: u32) -> Barrier {
        Barrier { counts: vec![0; clients as usize], ..Barrier::default() }
    }

    /// A measurement begins.
    pub(super) fn begin(&mut self, now: Time) {
        self.end_round();
        (self.began, self.round, self.sums) = (now, 0, Sums::default());
    }

    /// A client sends or receives a message.
    pub(super) fn handle_message(&mut self, now: Time, client: u32) {
        let round = now.since(self.began).as_nanos() as u64 / ROUND.as_nanos() as u64;
        if round != self.round {
            self.end_round();
            self.round = round;
        }
        let Some(count) = self.counts.get_mut(client as usize) else { return };
        if *count == 0 {
            self.counted.push(client);
        }
        *count += 1;
        self.slowest = self.slowest.max(*count);
    }

    fn end_round(&mut self) {
        self.counted.drain(..).for_each(|client| self.counts[client as usize] = 0);
        self.sums.late += u64::from(self.slowest > 0);
        self.sums.messages += u64::from(self.slowest);
        self.sums.worst = self.sums.worst.max(self.slowest);
        self.slowest = 0;
    }

    /// The measurement ends.
    pub(super) fn end(&mut self, now: Time) -> Lateness {
        self.end_round();
        let rounds = now.since(self.began).as_secs_f64() / ROUND.as_secs_f64();
        let micros = |messages: f64| messages * Duration::as_secs_f64(&MESSAGE_CPU) * 1e6;
        Lateness {
            late: self.sums.late as f64 / rounds,
            mean_us: micros(self.sums.messages as f64 / rounds),
            worst_us: micros(f64::from(self.sums.worst)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_waits_for_the_client_with_the_most_messages_of_its_round() {
        let mut barrier = Barrier::new(3);
        let at = |round: u64| Time::from_secs(1) + ROUND * round as u32 + ROUND / 2;
        barrier.handle_message(Time::ZERO, 0);
        barrier.begin(Time::from_secs(1));
        [0, 1, 1].iter().for_each(|client| barrier.handle_message(at(0), *client));
        [0, 1, 2].iter().for_each(|client| barrier.handle_message(at(4), *client));
        barrier.handle_message(at(5), 7);
        let lateness = barrier.end(Time::from_secs(1) + ROUND * 10);
        let message = MESSAGE_CPU.as_secs_f64() * 1e6;
        let is = |ours: f64, want: f64| (ours - want).abs() < 1e-9;
        assert!(is(lateness.late, 0.2) && is(lateness.mean_us, 0.3 * message), "{lateness:?}");
        assert!(is(lateness.worst_us, 2.0 * message), "{lateness:?}");
    }
}
