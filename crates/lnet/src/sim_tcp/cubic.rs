//! CUBIC (RFC 9438) with the slow start of Linux, HyStart. Windows are in packets, times in seconds.
//!
//! Two rules are Linux's (`net/ipv4/tcp_cubic.c`) and not the RFC's: before the first loss the window grows by 5 % in a round trip at
//! least, and a timeout forgets the window of the last loss.

use super::window::{Ack, Window};
use nacre_base::Time;
use std::time::Duration;

/// `C` of RFC 9438, section 4.1: packets per cubic second.
const C: f64 = 0.4;
/// `beta_cubic` of section 4.6.
pub(super) const BETA: f64 = 0.7;
/// Packets by which Reno-friendly CUBIC grows in a round trip, `alpha_cubic` of section 4.3: 3 (1 - beta) / (1 + beta).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The window grows by at most half in a round trip (section 4.2), so by a packet for each two that are acknowledged.
const ACKS_OF_GROWTH_MIN: f64 = 2.0;
/// Before the first loss the window grows by a packet for each so many that are acknowledged, at least: Linux's `bictcp_update`.
const ACKS_OF_GROWTH_FIRST: f64 = 20.0;

/// The state of CUBIC.
#[derive(Debug, Clone, Default)]
pub(super) struct Cubic {
    /// `W_max`: the window at the last loss, or a part of it if windows shrink (fast convergence, section 4.7). 0 before the first.
    w_max: f64,
    /// Set from the first acknowledgement after a loss on.
    epoch: Option<Epoch>,
    hystart: HyStart,
}

/// The time since a loss, in which the window follows one cubic function.
#[derive(Debug, Clone)]
struct Epoch {
    start: Time,
    /// `K` of section 4.2, in seconds: when the function reaches `origin`.
    k: f64,
    origin: f64,
    /// `W_est` of section 4.3: the window of Reno.
    w_est: f64,
}

/// `W_cubic(t)` of section 4.2: `t` in seconds since the loss, `k` when the function reaches `origin`.
fn w_cubic(t: f64, k: f64, origin: f64) -> f64 {
    let distance = t - k;
    C * distance * distance * distance + origin
}

/// `K` of section 4.2 for a window that has to grow by so many packets.
fn k_of(packets: f64) -> f64 {
    cube_root(packets / C)
}

/// The cube root by Newton's method. The standard library's differs in the last bit between machines, and a simulation must not.
fn cube_root(x: f64) -> f64 {
    assert!(x >= 0.0 && x.is_finite(), "the cube root of {x}");
    if x == 0.0 {
        return 0.0;
    }
    let mut root = if x > 1.0 { x } else { 1.0 };
    loop {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            return root;
        }
        root = next;
    }
}

impl Cubic {
    /// A packet or several were acknowledged while the window was in use.
    pub(super) fn handle_ack(&mut self, window: &mut Window, ack: &Ack) {
        if window.is_in_slow_start() {
            self.hystart.handle_ack(window, ack);
        }
        let acked = window.slow_start(ack.packets);
        if acked <= 0.0 {
            return;
        }
        let (cwnd, w_max) = (window.cwnd, self.w_max);
        let epoch = self.epoch.get_or_insert_with(|| {
            let (k, origin) = if w_max > cwnd { (k_of(w_max - cwnd), w_max) } else { (0.0, cwnd) };
            Epoch { start: ack.now, k, origin, w_est: cwnd }
        });
        epoch.w_est += ALPHA * acked / cwnd;
        let t = ack.now.since(epoch.start) + ack.rtt_min;
        let target = w_cubic(t.as_secs_f64(), epoch.k, epoch.origin).max(epoch.w_est);
        let mut acks_of_growth = if target > cwnd { cwnd / (target - cwnd) } else { 100.0 * cwnd };
        if w_max == 0.0 {
            acks_of_growth = acks_of_growth.min(ACKS_OF_GROWTH_FIRST);
        }
        window.cwnd += acked / acks_of_growth.max(ACKS_OF_GROWTH_MIN);
    }

    /// Packets were lost. Returns the slow start threshold: sections 4.6 and 4.7.
    pub(super) fn handle_loss(&mut self, cwnd: f64) -> f64 {
        self.epoch = None;
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        cwnd * BETA
    }

    /// A retransmission timer has run out, after [`Cubic::handle_loss`].
    pub(super) fn handle_timeout(&mut self) {
        *self = Cubic::default();
    }

    /// Nothing was sent for a while, in which the window does not grow: section 5.8.
    pub(super) fn handle_idle(&mut self, idle: Duration) {
        self.epoch.iter_mut().for_each(|epoch| epoch.start += idle);
    }
}

/// HyStart, as in Linux: leaves slow start before a queue overflows, once the acknowledgements of a round trip come over half of
/// the least round trip without a pause, or round trips have become longer. "Taming the elephants" (Ha and Rhee, 2011), and
/// `hystart_update` for the numbers.
#[derive(Debug, Clone, Default)]
struct HyStart {
    round: Option<Round>,
    is_done: bool,
}

/// One round trip of slow start.
#[derive(Debug, Clone)]
struct Round {
    start: Time,
    last_ack: Time,
    /// The round ends when this is acknowledged.
    end: u64,
    /// The least of its first round trips, and their number.
    rtt: Duration,
    samples: u32,
}

/// HyStart does not look at smaller windows.
const HYSTART_WINDOW_MIN: f64 = 16.0;
/// Acknowledgements closer than this are one train.
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Round trips that are looked at in each round.
const SAMPLES: u32 = 8;
/// Added to half of the train's length at most, for what bursts of the sender delay: Linux's `hystart_ack_delay`.
const BURST_DELAY_MAX: Duration = Duration::from_millis(1);
/// Bytes of the bursts: four of the largest packets before segmentation.
const BURST_BYTES: f64 = 4.0 * 65_536.0;

impl HyStart {
    fn handle_ack(&mut self, window: &mut Window, ack: &Ack) {
        let fresh = || Round { start: ack.now, last_ack: ack.now, end: ack.next, rtt: Duration::MAX, samples: 0 };
        let round = self.round.get_or_insert_with(fresh);
        if ack.una > round.end {
            *round = fresh();
        }
        if self.is_done || window.cwnd < HYSTART_WINDOW_MIN {
            return;
        }
        if ack.now - round.last_ack <= TRAIN_GAP {
            round.last_ack = ack.now;
            let burst = Duration::from_secs_f64(BURST_BYTES / window.pacing_rate(ack.rtt_smooth).max(1.0));
            let threshold = (ack.rtt_min + burst.min(BURST_DELAY_MAX)) / 2;
            self.is_done |= ack.now - round.start > threshold;
        }
        round.rtt = round.rtt.min(ack.rtt);
        if round.samples < SAMPLES {
            round.samples += 1;
        } else {
            let longer = (ack.rtt_min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
            self.is_done |= round.rtt > ack.rtt_min + longer;
        }
        if self.is_done {
            window.ssthresh = window.cwnd;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packets::PAYLOAD;
    use super::*;

    /// Grows a window with one acknowledgement for each packet, evenly over each round trip, for so long. Losses come after each
    /// `loss_interval` packets.
    struct World {
        window: Window,
        cubic: Cubic,
        rtt: Duration,
        now: Time,
    }

    impl World {
        fn new(cwnd: f64, rtt: Duration) -> World {
            let window = Window { cwnd, ssthresh: cwnd };
            World { window, cubic: Cubic::default(), rtt, now: Time::from_secs(100) }
        }

        fn ack(&mut self) {
            self.now += self.rtt.div_f64(self.window.cwnd);
            let (next, una) = (u64::MAX, 0);
            let (rtt, rtt_min, rtt_smooth) = (self.rtt, self.rtt, self.rtt);
            let ack = Ack { now: self.now, packets: 1.0, rtt, rtt_min, rtt_smooth, una, next };
            self.cubic.handle_ack(&mut self.window, &ack);
        }

        fn lose(&mut self) {
            self.window.ssthresh = self.cubic.handle_loss(self.window.cwnd).max(2.0);
            self.window.cwnd = self.window.ssthresh;
        }
    }

    #[test]
    fn roots_are_roots() {
        for x in [0.0, 1e-9, 0.5, 1.0, 27.0, 1e12] {
            let root = cube_root(x);
            assert!((root * root * root - x).abs() <= 1e-12 * x, "{x}: {root}");
        }
    }

    /// RFC 9438, section 4.2: after a loss at W_max the window is beta W_max, and W_max again after K = cbrt(W_max (1 - beta) / C).
    #[test]
    fn the_window_follows_the_cubic_function() {
        let mut world = World::new(10_000.0, Duration::from_millis(100));
        world.lose();
        let k = (10_000.0f64 * (1.0 - BETA) / C).cbrt();
        assert!((k - 19.57).abs() < 0.01, "{k}");
        world.ack();
        let start = world.now;
        for share in [0.25, 0.5, 1.0, 1.25] {
            let t = k * share;
            while world.now.since(start).as_secs_f64() < t {
                world.ack();
            }
            // The window aims at where the function will be in a round trip, and reaches that a round trip later.
            let expected = C * (t - k).powi(3) + 10_000.0;
            assert!((world.window.cwnd / expected - 1.0).abs() < 0.01, "{t}: {} for {expected}", world.window.cwnd);
        }
    }

    /// Mean window with a loss after each 1 / p packets.
    fn mean_window(p: f64, rtt: Duration) -> f64 {
        let mut world = World::new(100.0, rtt);
        let (mut area, mut time) = (0.0, 0.0);
        for loss in 0..60 {
            for _ in 0..(1.0 / p) as u64 {
                let before = world.now;
                world.ack();
                if loss >= 20 {
                    let took = world.now.since(before).as_secs_f64();
                    (area, time) = (area + world.window.cwnd * took, time + took);
                }
            }
            world.lose();
        }
        area / time
    }

    /// RFC 9438, section 5.1: the mean window is (C (3 + beta) / (4 (1 - beta)))^(1/4) RTT^(3/4) / p^(3/4), that is 1.054 times. It has no fast
    /// convergence, which costs some.
    #[test]
    fn the_mean_window_on_long_paths_is_the_rfcs() {
        for (p, rtt) in [(1e-5, 0.1), (1e-6, 0.1), (1e-5, 0.3)] {
            let expected = 1.054 * (f64::powf(rtt, 0.75)) / f64::powf(p, 0.75);
            let mean = mean_window(p, Duration::from_secs_f64(rtt));
            assert!((0.88..1.03).contains(&(mean / expected)), "p {p}, {rtt} s: {mean} for {expected}");
        }
    }

    /// RFC 9438, section 4.3: on short paths the mean window is Reno's, sqrt(3 / (2 p)).
    #[test]
    fn the_mean_window_on_short_paths_is_renos() {
        for p in [1e-2, 1e-3, 1e-4] {
            let (mean, expected) = (mean_window(p, Duration::from_millis(1)), (1.5 / p).sqrt());
            assert!((mean / expected - 1.0).abs() < 0.1, "p {p}: {mean} for {expected}");
        }
    }

    #[test]
    fn a_smaller_window_leaves_room_for_others() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.handle_loss(1000.0), 700.0);
        cubic.handle_loss(800.0);
        assert_eq!(cubic.w_max, 800.0 * 0.85);
    }

    /// A link that carries 100 packets in a round trip of 100 ms acknowledges a packet each millisecond, and so 51 in half of it.
    #[test]
    fn slow_start_ends_when_acknowledgements_come_for_half_a_round_trip() {
        let mut world = World::new(20.0, Duration::from_millis(100));
        world.window.ssthresh = f64::INFINITY;
        let (rtt, mut acked) = (world.rtt, 0u64);
        while world.window.is_in_slow_start() {
            world.now += Duration::from_millis(1);
            acked += 1;
            let ack = Ack {
                now: world.now,
                packets: 1.0,
                rtt,
                rtt_min: rtt,
                rtt_smooth: rtt,
                una: acked * PAYLOAD,
                next: (acked + 100) * PAYLOAD,
            };
            world.cubic.handle_ack(&mut world.window, &ack);
            assert!(acked < 100, "slow start goes on");
        }
        assert!((50..=53).contains(&acked), "{acked}");
    }
}
