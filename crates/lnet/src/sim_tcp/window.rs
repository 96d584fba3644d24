//! The congestion window of a sender, and its growth in slow start. Both are in packets.

use super::packets::PAYLOAD;
use nacre_base::Time;
use std::time::Duration;

/// A congestion window and its threshold, in packets.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) cwnd: f64,
    pub(super) ssthresh: f64,
}

/// An acknowledgement.
#[derive(Debug, Clone)]
pub(super) struct Ack {
    pub(super) now: Time,
    /// Packets that are newly known to have arrived.
    pub(super) packets: f64,
    /// The round trip of these packets, the least so far, and a mean of the last ones.
    pub(super) rtt: Duration,
    pub(super) rtt_min: Duration,
    pub(super) rtt_smooth: Duration,
    /// The first byte that was not acknowledged, and the first that was not sent.
    pub(super) una: u64,
    pub(super) next: u64,
}

impl Window {
    pub(super) fn is_in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window by what was acknowledged while it is in slow start (RFC 5681, section 3.1, in packets). Returns the
    /// packets that are left for congestion avoidance.
    pub(super) fn slow_start(&mut self, packets: f64) -> f64 {
        if !self.is_in_slow_start() {
            return packets;
        }
        let grown = (self.cwnd + packets).min(self.ssthresh);
        let left = packets - (grown - self.cwnd);
        self.cwnd = grown;
        left
    }

    /// Bytes a second that Linux takes for the rate of a sender, for which it sizes bursts: the window over the round trip, twice
    /// that in slow start, and 1.2 times later (`tcp_update_pacing_rate`).
    pub(super) fn pacing_rate(&self, rtt_smooth: Duration) -> f64 {
        let ratio = if self.cwnd < self.ssthresh / 2.0 { 2.0 } else { 1.2 };
        ratio * self.cwnd * PAYLOAD as f64 / rtt_smooth.as_secs_f64().max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_stops_at_the_threshold() {
        let mut window = Window { cwnd: 10.0, ssthresh: 15.0 };
        assert_eq!(window.slow_start(3.0), 0.0);
        assert_eq!((window.slow_start(4.0), window.cwnd), (2.0, 15.0));
        assert_eq!((window.slow_start(1.0), window.cwnd), (1.0, 15.0));
    }
}
