//! The published algorithm: "A Dynamic I/O Congestion Control Mechanism for Lustre" (its Algorithms 1 and 2). While little is under way a
//! client gets what it wants; otherwise what the target finishes within the bound of latency is divided evenly.

use super::Load;
use std::time::Duration;

/// Parameters of the algorithm. The defaults are those of the paper's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RccOptions {
    /// Least RPCs that a client may have in flight, whatever `max` says, and those that it starts with: RCCmin, `rcc_min`. At least 1.
    pub min: u32,
    /// Most RPCs that a client may have in flight: RCCmax, `rcc_max`.
    pub max: u32,
    /// While fewer requests are under way at the target, clients get what they want: Dlow, `dlow`.
    pub low: u32,
    /// Bound of latency: Lmax, `latency_bound`.
    pub bound: Duration,
    /// A client without requests for longer than this no longer takes part: STL, `stl`.
    pub idle_after: Duration,
    /// How many times the bound a request may take at the server before its client gives up, in hundredths: λ, `lambda`.
    pub lambda: u32,
    /// How long it may take on the network: Lnet, `lnet_latency`.
    pub network: Duration,
}

impl Default for RccOptions {
    fn default() -> RccOptions {
        let (bound, idle_after) = (Duration::from_secs(60), Duration::from_secs(60));
        RccOptions { min: 1, max: 32, low: 128, bound, idle_after, lambda: 150, network: Duration::from_secs(5) }
    }
}

impl RccOptions {
    /// Equation 6: how long a client waits for a reply.
    pub(super) fn timeout(&self) -> Duration {
        self.bound * self.lambda / 100 + self.network
    }

    /// Algorithm 2: RPCs that a client may have in flight which wants `wanted`, when a request of it is answered that took so long.
    pub(super) fn grant(&self, load: &Load, wanted: u32, took: Duration) -> u32 {
        let rpcs = if load.under_way < self.low { wanted } else { self.share(load, took) };
        rpcs.min(self.max).max(self.min)
    }

    /// A client's share of what the target finishes within the bound; one less while the bound is exceeded.
    fn share(&self, load: &Load, took: Duration) -> u32 {
        // Before anything is known of the target, clients get the least.
        let Some(per_second) = load.rate.per_second else { return self.min };
        let share = self.bound.as_secs_f64() * per_second / load.active.len().max(1) as f64;
        let estimated = Duration::from_secs_f64(f64::from(load.under_way) / per_second);
        let is_exceeded = estimated.max(took) > self.bound;
        (share as u32).saturating_sub(u32::from(is_exceeded))
    }
}

#[cfg(test)]
mod tests {
    use crate::congestion::{Answered, Congestion, Controller, RccOptions};
    use crate::window::Credits;
    use nacre_base::Time;
    use std::collections::VecDeque;
    use std::time::Duration;

    const RATE: u64 = 170;

    fn rcc() -> Congestion {
        Congestion { controller: Controller::Rcc, ..Congestion::default() }
    }

    const WANTED: Credits = Credits { rpcs: 64, bytes: 0 };

    /// Clients that always want more, and a target that answers `RATE` requests a second in the order of arrival.
    struct Site {
        congestion: Congestion,
        windows: Vec<u32>,
        in_flight: Vec<u32>,
        queue: VecDeque<(usize, Time)>,
    }

    impl Site {
        fn new(congestion: Congestion, clients: usize) -> Site {
            let windows = vec![congestion.first_window().rpcs; clients];
            let mut site = Site { congestion, windows, in_flight: vec![0; clients], queue: VecDeque::new() };
            (0..clients).for_each(|client| site.send(client, Time::ZERO));
            site
        }

        fn send(&mut self, client: usize, now: Time) {
            while self.in_flight[client] < self.windows[client] {
                self.in_flight[client] += 1;
                self.congestion.handle_arrival(client as u64, WANTED, now);
                self.queue.push_back((client, now));
            }
        }

        /// Answers the oldest request. Returns how long it took.
        fn answer(&mut self, now: Time) -> Duration {
            let (client, arrived) = self.queue.pop_front().expect("clients always want more");
            let took = now.since(arrived);
            let answered =
                Answered { export: client as u64, wanted: WANTED, bytes: 1 << 20, took, ..Answered::NOTHING };
            self.windows[client] = self.congestion.handle_answer(answered, now).rpcs;
            self.in_flight[client] -= 1;
            self.send(client, now);
            took
        }

        /// The longest and the mean latency in seconds, but for the first quarter of the time.
        fn run(&mut self, seconds: u64) -> (f64, f64) {
            let all = seconds * RATE;
            let took: Vec<f64> = (1..=all).map(|n| self.answer(Time(n * 1_000_000_000 / RATE)).as_secs_f64()).collect();
            let at_rest = &took[took.len() / 4..];
            (at_rest.iter().copied().fold(0.0, f64::max), at_rest.iter().sum::<f64>() / at_rest.len() as f64)
        }
    }

    /// Eq. 5: at rest the latency exceeds the bound by at most C / IOPS.
    #[test]
    fn the_latency_stays_at_the_bound() {
        for (clients, bound) in [(256, 25), (1024, 25), (1024, 60), (2048, 60), (2048, 120)] {
            let mut c = rcc();
            c.rcc = RccOptions { bound: Duration::from_secs(bound), ..RccOptions::default() };
            let (longest, mean) = Site::new(c, clients).run(1200);
            let (bound, more) = (bound as f64, clients as f64 / RATE as f64);
            // Windows are whole numbers, so that up to one RPC of each client is missing.
            let least = bound - more;
            assert!(longest <= bound + more, "{clients} clients, {bound} s: {longest} s");
            assert!(mean >= least, "{clients} clients, {bound} s: {mean} s, {least}");
        }
    }

    #[test]
    fn a_single_client_gets_what_it_wants() {
        let mut site = Site::new(rcc(), 1);
        site.run(10);
        assert_eq!(site.windows, [32], "as far as rcc_max allows");
    }

    #[test]
    fn all_get_the_same() {
        let mut site = Site::new(rcc(), 1024);
        site.run(1200);
        let (least, most) = (site.windows.iter().min().unwrap(), site.windows.iter().max().unwrap());
        assert!(most - least <= 1, "from {least} to {most}");
    }

    #[test]
    fn clients_wait_for_longer_than_the_bound() {
        assert_eq!(RccOptions::default().timeout(), Duration::from_secs(95), "the paper's");
    }
}
