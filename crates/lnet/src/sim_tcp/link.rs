//! The link: a rate, a drop-tail queue before it, packets lost at random behind it, and a delay. It works like the emulator `wan-link`.

use super::options::TcpLink;
use super::packets::{PACKET, PAYLOAD, packets_in};
use nacre_base::{Prng, Time};
use std::time::Duration;

/// A link in one direction.
#[derive(Debug)]
pub(super) struct Link {
    options: TcpLink,
    delay: Duration,
    /// When the last packet of the queue will have departed.
    busy_until: Time,
    prng: Prng,
}

/// What arrives of a range of bytes that was sent at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrival {
    /// When the last packet arrives.
    pub(super) at: Time,
    /// Ranges that do not arrive, in their order.
    pub(super) missing: Vec<(u64, u64)>,
}

impl Link {
    pub(super) fn new(options: TcpLink, delay: Duration, seed: u64) -> Link {
        assert!(options.rate > 0 && options.queue_bytes >= PACKET, "a link needs a rate and a queue: {options:?}");
        Link { options, delay, busy_until: Time::ZERO, prng: Prng::new(seed) }
    }

    /// Bytes that wait for their departure.
    fn backlog(&self, now: Time) -> u64 {
        let waits = self.busy_until.since(now).as_nanos();
        (waits * u128::from(self.options.rate) / 1_000_000_000) as u64
    }

    /// The packets of a range arrive at the queue at once. None of them may arrive.
    pub(super) fn send(&mut self, now: Time, (start, end): (u64, u64)) -> Arrival {
        let packets = packets_in(start, end);
        let room = self.options.queue_bytes.saturating_sub(self.backlog(now)) / PACKET;
        let accepted = packets.min(room);
        let accepted_end = end.min(start + accepted * PAYLOAD);
        let wire = accepted_end - start + accepted * (PACKET - PAYLOAD);
        let takes = Duration::from_nanos((u128::from(wire) * 1_000_000_000 / u128::from(self.options.rate)) as u64);
        self.busy_until = self.busy_until.max(now) + takes;
        let mut missing = Vec::new();
        if self.options.loss_ppm > 0 {
            for packet in 0..accepted {
                if self.prng.below(1_000_000) < u64::from(self.options.loss_ppm) {
                    let first = start + packet * PAYLOAD;
                    missing.push((first, accepted_end.min(first + PAYLOAD)));
                }
            }
        }
        if accepted_end < end {
            missing.push((accepted_end, end));
        }
        Arrival { at: self.busy_until + self.delay, missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(queue_packets: u64, loss_ppm: u32) -> Link {
        // A packet a millisecond.
        let options = TcpLink { rate: 1_500_000, queue_bytes: queue_packets * PACKET, loss_ppm };
        Link::new(options, Duration::from_millis(10), 1)
    }

    #[test]
    fn packets_wait_for_their_turn_and_what_does_not_fit_is_dropped() {
        let mut link = link(4, 0);
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let first = link.send(at(0), (0, 3 * PAYLOAD));
        assert_eq!(first, Arrival { at: at(13), missing: vec![] });
        // Two packets have departed, so there is room for three.
        let second = link.send(at(2), (3 * PAYLOAD, 8 * PAYLOAD));
        assert_eq!(second, Arrival { at: at(16), missing: vec![(6 * PAYLOAD, 8 * PAYLOAD)] });
        assert_eq!(link.send(at(6), (0, PAYLOAD)).at, at(17), "the queue is empty again");
    }

    #[test]
    fn losses_are_as_frequent_as_asked_for() {
        let mut link = link(1 << 40, 10_000);
        let lost: usize = (0..1000).map(|n| link.send(Time::from_secs(n), (0, 100 * PAYLOAD)).missing.len()).sum();
        assert!((900..1100).contains(&lost), "{lost} packets of 100,000");
    }
}
