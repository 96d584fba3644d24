//! The storm of pings that `nacre-e2e storm` measures between real processes, in virtual time: the same nodes with the same
//! credits and buffers, the same imports in one node, and links of the same rate. The difference between the two is what the
//! simulated network leaves out: the kernel's TCP, and CPUs. `ping_storm` has the paper's site, which nobody can measure here.
//!
//! The command's arguments say how large the site is. What a message needs of a link beside its own bytes is measured by
//! `nacre-e2e storm` without a writer, so that no number is fitted to a dead time.

mod site;

use crate::experiment::{self, Traces};
use crate::ping_storm::next_flood;
use clap::{Args, ValueEnum};
use nacre_base::Time;
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure};
use nacre_rt::{Rt, Sim};
use site::Site;
use std::time::Duration;

/// The site and its load. The defaults are those of `nacre-e2e storm`.
#[derive(Args, Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// The seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Clients in the one node that pings, each with an import for each OST
    #[arg(long, default_value_t = 625, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub clients: u32,
    /// OSSs
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub oss: u32,
    /// OSTs of each OSS
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osts: u32,
    /// Routers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub routers: u32,
    /// Bytes a second of each node's link on the servers' network, in each direction
    #[arg(long, default_value_t = 1_250_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: u64,
    /// Credits of each peer
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub credits: u32,
    /// Messages of one peer that a router holds; all clients are one peer
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub peer_buffer_credits: u32,
    /// Small buffers of a router
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub small_buffers: u32,
    /// Seconds between two pings of an import
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=75))]
    pub interval: u32,
    /// Intervals that each row measures
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub intervals: u32,
    /// Processes on the mount that write, each a file of its own
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub writers: u32,
    /// Bytes of a write
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(4096..=1 << 20))]
    pub record: u64,
    /// Microseconds for which an OSS holds each message of a client before it takes it
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub taking_us: u32,
    /// Bytes that a small message towards a server needs of a link beside its own
    #[arg(long, default_value_t = 66)]
    pub ping_framing: u32,
    /// Bytes that a small message from a server needs of a link beside its own
    #[arg(long, default_value_t = 66)]
    pub reply_framing: u32,
}

/// How the clients say that they are alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Liveness {
    /// Not at all.
    None,
    /// Pings of all imports at multiples of the interval, in one queue with everything else.
    Ping,
    /// The same with lanes.
    PingLanes,
    /// Each client renews a lease at the MGS.
    Lease,
}

/// Result of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The row.
    pub liveness: Liveness,
    /// Bytes written, and pings answered, by the end of each sample.
    pub samples: Vec<(u64, u64)>,
    /// The lowest that credits of an OSS have been at a router.
    pub credits_low: i128,
    /// The same of small buffers.
    pub buffers_low: i128,
}

/// How often the bytes written are looked at.
const SAMPLE: Duration = Duration::from_millis(100);
/// Time before the flood that belongs to a measurement.
const LEAD: Duration = Duration::from_secs(2);
/// Time for writers to get going.
const SETTLE: Duration = Duration::from_secs(6);
/// Virtual time after which a run counts as hung.
const LIMIT: Duration = Duration::from_secs(100_000);

impl Liveness {
    /// All rows, the base of comparison first.
    pub const ALL: [Liveness; 4] = [Liveness::None, Liveness::Ping, Liveness::PingLanes, Liveness::Lease];

    /// Name of the row, as in the command.
    pub fn name(self) -> &'static str {
        match self {
            Liveness::None => "none",
            Liveness::Ping => "ping",
            Liveness::PingLanes => "ping-lanes",
            Liveness::Lease => "lease",
        }
    }

    fn has_lanes(self) -> bool {
        self == Liveness::PingLanes
    }
}

/// Measures a row on a site of its own. Returns the hash of all events, too.
pub fn measure(setup: Setup, liveness: Liveness) -> Result<(Outcome, u64), String> {
    let mut sim = Sim::new(setup.seed);
    let rt = sim.rt();
    let outcome = sim.block_on(Time::ZERO + LIMIT, async move { measure_on(&rt, setup, liveness).await });
    Ok((outcome?, sim.stats().trace))
}

async fn measure_on(rt: &Rt, setup: Setup, liveness: Liveness) -> Result<Outcome, String> {
    let interval = Duration::from_secs(setup.interval.into());
    let mut site = Site::build(rt, setup, liveness.has_lanes()).await?;
    site.fill_files().await?;
    if liveness == Liveness::Lease {
        site.start_leases(interval).await?;
    }
    site.set_liveness(liveness)?;
    site.shape();
    site.slow_servers_down();
    site.write();
    let flood = next_flood(rt, interval, rt.now() + SETTLE + LEAD);
    rt.sleep(flood - rt.now() - LEAD).await;
    let mut samples = vec![site.progress()];
    let ends = rt.now() + interval * setup.intervals;
    while rt.now() < ends {
        rt.sleep(SAMPLE).await;
        samples.push(site.progress());
    }
    let (credits_low, buffers_low) = site.lowest();
    tracing::info!(?liveness, "measured");
    Ok(Outcome { liveness, samples, credits_low, buffers_low })
}

impl Outcome {
    fn bytes(&self) -> u64 {
        self.over_all(|sample| sample.0)
    }

    fn pings(&self) -> u64 {
        self.over_all(|sample| sample.1)
    }

    fn over_all(&self, of: impl Fn(&(u64, u64)) -> u64) -> u64 {
        self.samples.last().zip(self.samples.first()).map_or(0, |(last, first)| of(last) - of(first))
    }

    /// The longest time without the end of a write.
    fn pause(&self) -> Duration {
        let bytes: Vec<u64> = self.samples.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        SAMPLE * bytes.split(|bytes| *bytes > 0).map(<[u64]>::len).max().unwrap_or(0) as u32
    }

    /// Time in which pings were answered.
    fn answering(&self) -> Duration {
        SAMPLE * self.samples.windows(2).filter(|pair| pair[1].1 > pair[0].1).count() as u32
    }
}

/// The experiment, from the outcomes of the rows and the hashes of their runs.
pub fn report(setup: &Setup, outcomes: &[(Outcome, u64)]) -> Experiment {
    let mut traces = Traces::default();
    outcomes.iter().for_each(|(_, trace)| traces.add(*trace));
    let base = outcomes.iter().map(|(o, _)| o).find(|o| o.liveness == Liveness::None);
    let figures = outcomes.iter().flat_map(|(outcome, _)| figures(setup, outcome, base)).collect();
    experiment::new("live-storm", setup.seed, traces, constants(setup), figures)
}

fn figures(setup: &Setup, outcome: &Outcome, base: Option<&Outcome>) -> Vec<Figure> {
    let secs = f64::from(setup.interval) * f64::from(setup.intervals);
    let own = |figure: &str, unit: &str, value| Figure::own(outcome.liveness.name(), figure, unit, value);
    let dead_time = base.map(|base| 100.0 * (1.0 - outcome.bytes() as f64 / base.bytes() as f64));
    vec![
        own("written", "MB/s", Some(outcome.bytes() as f64 / secs / 1e6)),
        own("dead_time", "%", dead_time),
        own("longest pause", "s", Some(outcome.pause().as_secs_f64())),
        own("pings answered", "", Some(outcome.pings() as f64)),
        own("pings are answered for", "s", Some(outcome.answering().as_secs_f64() / f64::from(setup.intervals))),
        own("lowest credits of an OSS", "", Some(outcome.credits_low as f64)),
        own("lowest small buffers", "", Some(outcome.buffers_low as f64)),
    ]
}

fn constants(setup: &Setup) -> Vec<Constant> {
    let measured = "nacre-e2e storm: bytes that the link's tbf counts during a flood without a writer, for each ping";
    let physical = |name: &str, value: f64, unit: &str, source: &str| {
        Constant::new(name, value, unit, ConstantKind::Physical, source)
    };
    vec![
        Constant::argument("clients", f64::from(setup.clients), ""),
        Constant::argument("imports", f64::from(setup.clients * setup.oss * setup.osts), ""),
        Constant::argument("OSSs", f64::from(setup.oss), ""),
        Constant::argument("routers", f64::from(setup.routers), ""),
        Constant::argument("a link of the servers' network", setup.rate as f64 / 1e6, "MB/s"),
        Constant::argument("credits of a peer", f64::from(setup.credits), ""),
        Constant::argument("router credits of a peer", f64::from(setup.peer_buffer_credits), ""),
        Constant::argument("small buffers of a router", f64::from(setup.small_buffers), ""),
        Constant::argument("interval of pings", f64::from(setup.interval), "s"),
        Constant::argument("intervals measured", f64::from(setup.intervals), ""),
        Constant::argument("writers", f64::from(setup.writers), ""),
        Constant::argument("bytes of a write", setup.record as f64, ""),
        Constant::argument("an OSS holds a message for", f64::from(setup.taking_us) / 1e3, "ms"),
        physical("framing of a small message to a server", f64::from(setup.ping_framing), "B", measured),
        physical("framing of a small message from a server", f64::from(setup.reply_framing), "B", measured),
        physical("bytes of a packet", f64::from(site::PACKET), "B", "Ethernet's 1500 less the headers of IP and TCP"),
        physical(
            "headers of a packet",
            f64::from(site::PACKET_HEADERS),
            "B",
            "Ethernet 14, IP 20, TCP 32 with timestamps",
        ),
        physical(
            "latency of a network",
            site::LATENCY.as_secs_f64() * 1e3,
            "ms",
            "assumed; a hundredth of what a queue of credits takes on the links",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            seed: 1,
            clients: 250,
            oss: 2,
            osts: 2,
            routers: 2,
            rate: 1_250_000,
            credits: 8,
            peer_buffer_credits: 1000,
            small_buffers: 8192,
            interval: 5,
            intervals: 2,
            writers: 16,
            record: 65_536,
            taking_us: 0,
            ping_framing: 66,
            reply_framing: 66,
        }
    }

    /// The median. Dead times of single seeds differ by two or three percent, because the seed decides which writes meet pings.
    fn middle(mut of_seeds: [f64; 3]) -> f64 {
        of_seeds.sort_by(f64::total_cmp);
        of_seeds[1]
    }

    /// A thousand pings of some hundred bytes each way over two links take a sixth of a second of five.
    #[test]
    fn pings_take_the_links_from_writes_and_leases_do_not() {
        let of_seed = |seed| {
            let setup = Setup { seed, ..setup() };
            let rows = [Liveness::None, Liveness::Ping, Liveness::Lease].map(|row| measure(setup, row).unwrap());
            let report = report(&setup, &rows);
            let of = |row: &str, figure: &str| report.ours(row, figure).unwrap();
            assert_eq!((of("ping", "pings answered"), of("lease", "pings answered")), (2000.0, 0.0));
            // Two links carry what is left beside the headers of packets.
            assert!((2.2..=2.4).contains(&of("none", "written")), "{} MB/s", of("none", "written"));
            ["ping", "lease"].map(|row| of(row, "dead_time"))
        };
        let all = [1, 2, 3].map(of_seed);
        let [ping, lease] = [0, 1].map(|row| middle(all.map(|of_seed| of_seed[row])));
        assert!((2.0..=7.5).contains(&ping), "{all:?} %");
        // Renewals take their part of such slow links.
        assert!(lease.abs() < 2.0, "{all:?} %");
    }

    /// 250 pings for each OSS by each router take 250 / 8 x 20 ms, in which few writes get a credit. With lanes writes have credits of
    /// their own; by which router they go decides whether that is enough, so the seed of the middle counts.
    #[test]
    fn credits_of_slow_servers_hold_writes_back_although_links_are_free() {
        let dead_times = |seed| {
            let slow = Setup { taking_us: 20_000, seed, ..setup() };
            let rows = [Liveness::None, Liveness::Ping, Liveness::PingLanes].map(|row| measure(slow, row).unwrap());
            let report = report(&slow, &rows);
            ["ping", "ping-lanes"].map(|row| report.ours(row, "dead_time").unwrap())
        };
        let all = [1, 2, 3].map(dead_times);
        assert!(all.iter().all(|[ping, _]| (8.0..=18.0).contains(ping)), "{all:?} %");
        let lanes = middle(all.map(|[_, lanes]| lanes));
        assert!(lanes < all[0][0] / 2.0, "{all:?} %");
    }

    #[test]
    fn a_seed_determines_everything() {
        let run = || measure(Setup { clients: 20, ..setup() }, Liveness::Ping).unwrap();
        assert_eq!(run(), run());
    }
}
