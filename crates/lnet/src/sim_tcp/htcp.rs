//! H-TCP (draft-leith-tcp-htcp): the window grows the faster the longer the last loss is ago, and a loss takes as much as the queue
//! held. Windows are in packets.
//!
//! Bounds and the scaling by the round trip are Linux's defaults (`net/ipv4/tcp_htcp.c`): `use_rtt_scaling` and
//! `use_bandwidth_switch`. H-TCP has no HyStart: its slow start ends with a loss.

use super::window::{Ack, Window};
use nacre_base::Time;
use std::time::Duration;

/// `Delta_L` of the draft, in seconds: as long after a loss H-TCP grows as Reno does.
const DELTA_LOW: f64 = 1.0;
/// Bounds of the factor that is left of a window after a loss.
const BETA_MIN: f64 = 0.5;
const BETA_MAX: f64 = 0.8;
/// A throughput that differs by more than this from that before the loss before is a sign of other flows: `Delta_B` of the draft.
const THROUGHPUT_CHANGE_MAX: f64 = 0.2;
/// Below this the round trip says nothing of the queue: Linux.
const RTT_MIN: Duration = Duration::from_millis(10);
/// The round trip for which growth is not scaled, and bounds of 100 ms / RTT: Linux.
const RTT_UNSCALED: f64 = 0.1;
const SCALE_MIN: f64 = 0.5;
const SCALE_MAX: f64 = 10.0;
/// Longest step in which the longest round trip follows the smoothed one: Linux.
const RTT_STEP_MAX: Duration = Duration::from_millis(20);

/// The state of H-TCP.
#[derive(Debug, Clone)]
pub(super) struct Htcp {
    last_loss: Option<Time>,
    beta: f64,
    rtt_min: Duration,
    rtt_max: Duration,
    /// True from the second loss of a series with a like throughput on.
    is_steady: bool,
    throughput: Throughput,
    /// Greatest throughput between the last two losses.
    throughput_before: f64,
}

/// Packets a second, smoothed, and their maximum since the last loss.
#[derive(Debug, Clone, Default)]
struct Throughput {
    since: Option<Time>,
    packets: f64,
    rounds: u32,
    smooth: f64,
    max: f64,
}

/// `alpha(Delta)` of the draft: the growth in packets a round trip before any scaling, so many seconds after a loss.
fn alpha(seconds: f64) -> f64 {
    let late = seconds - DELTA_LOW;
    if late <= 0.0 { 1.0 } else { 1.0 + 10.0 * late + 0.25 * late * late }
}

impl Default for Htcp {
    fn default() -> Htcp {
        Htcp {
            last_loss: None,
            beta: BETA_MIN,
            rtt_min: Duration::ZERO,
            rtt_max: Duration::ZERO,
            is_steady: false,
            throughput: Throughput::default(),
            throughput_before: 0.0,
        }
    }
}

impl Htcp {
    /// A packet or several were acknowledged while the window was in use.
    pub(super) fn handle_ack(&mut self, window: &mut Window, ack: &Ack) {
        self.rtt_min = ack.rtt_min;
        self.rtt_max = self.rtt_max.max(self.rtt_min);
        if self.rtt_max < ack.rtt_smooth && ack.rtt_smooth <= self.rtt_max + RTT_STEP_MAX {
            self.rtt_max = ack.rtt_smooth;
        }
        self.throughput.handle_ack(ack);
        let acked = window.slow_start(ack.packets);
        if acked > 0.0 {
            window.cwnd += self.growth(ack.now) * acked / window.cwnd;
        }
    }

    /// Packets by which the window grows in a round trip.
    fn growth(&self, now: Time) -> f64 {
        let since_loss = self.last_loss.map_or(0.0, |loss| now.since(loss).as_secs_f64());
        let scale = (RTT_UNSCALED / self.rtt_min.as_secs_f64().max(1e-6)).clamp(SCALE_MIN, SCALE_MAX);
        let factor = (alpha(since_loss) / scale).max(1.0);
        2.0 * (1.0 - self.beta) * factor
    }

    /// Packets were lost. Returns the slow start threshold.
    pub(super) fn handle_loss(&mut self, now: Time, cwnd: f64) -> f64 {
        let (throughput, before) = (self.throughput.max, self.throughput_before);
        self.throughput_before = throughput;
        self.throughput = Throughput::default();
        if (throughput - before).abs() > THROUGHPUT_CHANGE_MAX * before {
            (self.beta, self.is_steady) = (BETA_MIN, false);
        } else if self.is_steady && self.rtt_min > RTT_MIN {
            self.beta = self.rtt_min.div_duration_f64(self.rtt_max).clamp(BETA_MIN, BETA_MAX);
        } else {
            (self.beta, self.is_steady) = (BETA_MIN, true);
        }
        // The longest round trip is forgotten slowly, because another flow may have filled the queue.
        self.rtt_max = self.rtt_min + (self.rtt_max.saturating_sub(self.rtt_min)) * 95 / 100;
        self.last_loss = Some(now);
        cwnd * self.beta
    }
}

impl Throughput {
    fn handle_ack(&mut self, ack: &Ack) {
        let since = *self.since.get_or_insert(ack.now);
        self.packets += ack.packets;
        let took = ack.now.since(since);
        if took < ack.rtt_min || took.is_zero() {
            return;
        }
        let current = self.packets / took.as_secs_f64();
        self.rounds += 1;
        // The first rounds after a loss are not typical.
        if self.rounds <= 3 {
            (self.smooth, self.max) = (current, current);
        } else {
            self.smooth = (3.0 * self.smooth + current) / 4.0;
            self.max = self.max.max(self.smooth);
        }
        (self.since, self.packets) = (Some(ack.now), 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn ack(now: Time, rtt: Duration, rtt_min: Duration) -> Ack {
        Ack { now, packets: 1.0, rtt, rtt_min, rtt_smooth: rtt, una: 0, next: 0 }
    }

    /// The draft: alpha is 1 for a second, then 1 + 10 (D - 1) + ((D - 1) / 2)^2.
    #[test]
    fn growth_is_the_drafts() {
        assert_eq!([0.0, 0.5, 1.0, 2.0, 3.0, 11.0].map(alpha), [1.0, 1.0, 1.0, 11.25, 22.0, 126.0]);
    }

    #[test]
    fn the_window_grows_by_the_sum_of_alpha() {
        let mut htcp = Htcp::default();
        let mut window = Window { cwnd: 1000.0, ssthresh: 1000.0 };
        let start = Time::from_secs(10);
        htcp.last_loss = Some(start);
        let mut now = start;
        while now < start + Duration::from_secs(5) {
            now += RTT.div_f64(window.cwnd);
            htcp.handle_ack(&mut window, &ack(now, RTT, RTT));
        }
        // A second with alpha 1, then four of 1 + 10 d + d^2 / 4, each at ten round trips a second, and 2 (1 - beta) = 1.
        let expected = 1000.0 + 10.0 * (1.0 + 4.0 + 5.0 * 16.0 + 64.0 / 12.0);
        assert!((window.cwnd - expected).abs() < 20.0, "{} for {expected}", window.cwnd);
    }

    #[test]
    fn growth_is_scaled_by_the_round_trip() {
        let growth = |ms| {
            let htcp = Htcp { last_loss: Some(Time::ZERO), rtt_min: Duration::from_millis(ms), ..Htcp::default() };
            htcp.growth(Time::from_secs(11))
        };
        let base = alpha(11.0);
        assert_eq!([100, 200, 400].map(growth), [base, 2.0 * base, 2.0 * base]);
        assert!((growth(50) - base / 2.0).abs() < 1e-9 && (growth(1) - base / 10.0).abs() < 1e-9);
    }

    /// With a queue that doubles the round trip half is left, with a shorter one more, up to 0.8; and half after a change of
    /// the throughput.
    #[test]
    fn a_loss_takes_what_the_queue_held() {
        let lose = |queued_ms: u64, throughputs: [f64; 3]| {
            let mut htcp = Htcp { rtt_min: RTT, rtt_max: RTT + Duration::from_millis(queued_ms), ..Htcp::default() };
            let lose = |max| {
                htcp.throughput.max = max;
                htcp.rtt_max = RTT + Duration::from_millis(queued_ms);
                htcp.handle_loss(Time::from_secs(1), 100.0)
            };
            throughputs.map(lose)
        };
        assert_eq!(lose(100, [900.0, 1000.0, 1000.0])[2], 50.0);
        assert!((lose(60, [900.0, 1000.0, 1000.0])[2] - 62.5).abs() < 1e-9);
        assert!((lose(10, [900.0, 1000.0, 1000.0])[2] - 80.0).abs() < 1e-9);
        assert_eq!(lose(10, [900.0, 1000.0, 500.0]), [50.0; 3]);
    }
}
