//! The flood of pings that stops a file system: "Minimizing Lustre Ping Effects at Scale on Cray Systems" (Spitz and
//! others, CUG 2012) in virtual time. 25,000 clients on one fabric ping every target of servers on another, through
//! routers whose credits and buffers are few, while other clients write. What is measured is the dead time: the share of
//! the writers' bytes that is missing beside the same run without pings.
//!
//! Nodes, RPC and routers are the production code; the fabrics are simulated, with the rules of `gni` and `o2ib` for
//! credits. Every number is in [`constants`], with its source; one is fitted.

mod barrier;
mod constants;
mod report;
mod site;

pub use barrier::Lateness;
pub use report::{plots, report};
pub use site::Size;
pub(crate) use site::{add_route, lnet_options, lowest, serve, set};

use clap::ValueEnum;
use constants::{INTERVAL, SAMPLE};
use futures_util::future::join;
use nacre_base::Time;
use nacre_rt::{Rt, Sim};
use site::Site;
use std::time::Duration;

/// How routers are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Topology {
    /// All clients use all routers for all servers.
    Flat,
    /// Three OSSs share about four routers, and nobody else uses these.
    FineGrained,
}

/// Credits and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Credits of a peer on the servers' fabric.
    pub credits: u32,
    /// Small buffers of a router.
    pub small_buffers: u32,
    /// Whether routers have lanes by purpose; otherwise first in first out, as in Lustre.
    pub lanes: bool,
}

/// How clients ping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pinging {
    /// Not at all.
    Never,
    /// Each import at multiples of the interval, all at once.
    Aligned,
    /// The same, and so many pings more of each import.
    AlignedMore(f64),
    /// Each import at a moment of its own.
    Spread,
    /// Each import when it has been idle for the interval.
    Idle,
    /// At multiples of the interval, the imports of one server together.
    PerServer,
    /// Not at all: each client renews a lease at the MGS, and servers ask the MGS for those that are silent.
    Lease,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Idle clients.
    pub clients: u32,
    /// How routers are shared.
    pub topology: Topology,
    /// Credits and buffers.
    pub tuning: Tuning,
    /// How clients ping.
    pub pinging: Pinging,
}

/// Result of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The measurement.
    pub row: Row,
    /// Bytes written by the end of each sample.
    pub samples: Vec<u64>,
    /// Pings that were answered.
    pub pings: u64,
    /// Messages received by all nodes, other than those of writes.
    pub messages: u64,
    /// Lateness of the barriers of a program on all clients.
    pub barriers: Lateness,
    /// Mean time of a write at its OSS, in microseconds.
    pub io_wait_us: f64,
    /// The lowest that the credits of a peer on the servers' fabric have been, of any router.
    pub o2ib_low: i128,
    /// The same of the small buffers.
    pub buffers_low: i128,
    /// The same of the router credits of a client.
    pub client_credits_low: i128,
}

/// Everything that is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// The seed.
    pub seed: u64,
    /// How large the site is.
    pub size: Size,
    /// Intervals that each row measures.
    pub intervals: u32,
}

/// Most clients; an OSS has an export for each of them and each of its targets.
const CLIENTS_MAX: u32 = 30_000;
/// Lustre's defaults.
const DEFAULTS: Tuning = Tuning { credits: 8, small_buffers: 8192, lanes: false };
/// The paper's advice.
const TUNED: Tuning = Tuning { credits: 126, small_buffers: 16_384, lanes: false };
/// The same, with what is Nacre's.
const OURS: Tuning = Tuning { lanes: true, ..TUNED };
/// Times that the paper's clients pinged a target where it mounted file systems repeatedly, of one mount: 45 million pings
/// in place of 16.8 million.
const REPEATED: f64 = 2.7;
/// Numbers of clients with which leases are measured beside the full number.
const FEWER_CLIENTS: [u32; 3] = [1000, 5000, 10_000];
/// Time before the flood that belongs to a window.
const LEAD: Duration = Duration::from_secs(10);
/// Time for writers to get going, and for pings to cease.
const SETTLE: Duration = Duration::from_secs(3);
/// Time after a row, in which all messages arrive.
const CALM: Duration = Duration::from_secs(30);
/// Virtual time after which a run counts as hung.
const LIMIT: Duration = Duration::from_secs(100_000);

impl Setup {
    /// Says what is wrong with a setup that a person chose.
    pub fn check(&self) -> Result<(), String> {
        let Size { clients, oss, routers } = self.size;
        let groups = oss.div_ceil(constants::GROUP);
        match () {
            () if clients == 0 || oss == 0 => Err("at least one client and one OSS are needed".to_owned()),
            () if clients > CLIENTS_MAX => Err(format!("an OSS has at most {CLIENTS_MAX} clients")),
            () if routers < groups => Err(format!("{oss} OSSs are in {groups} groups; each needs a router")),
            () => Ok(()),
        }
    }
}

impl Pinging {
    /// The parameters of a client.
    fn params(self) -> [(&'static str, &'static str); 4] {
        let (liveness, timing) = match self {
            Pinging::Never => ("ping", "idle"),
            Pinging::Aligned | Pinging::AlignedMore(_) => ("ping", "aligned"),
            Pinging::Spread => ("ping", "spread"),
            Pinging::Idle => ("ping", "idle"),
            Pinging::PerServer => ("ping-per-server", "aligned"),
            Pinging::Lease => ("lease", "idle"),
        };
        let suppressed = if self == Pinging::Never { "1" } else { "0" };
        // Idle time counts from the last of these changes.
        [("suppress_pings", suppressed), ("ping_interval", "75"), ("ping_timing", timing), ("liveness", liveness)]
    }
}

/// Rows that are measured on one site, in turn. Those with pings are compared with those without that have the same tuning.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The site; the setup has one of all clients.
    pub size: Size,
    /// The rows, all of one topology.
    pub rows: Vec<Row>,
}

/// The rows of the experiment that are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All rows, and leases with fewer clients.
    All,
    /// At the paper's size: before and after tuning, and leases.
    Full,
}

impl Setup {
    /// Everything that is to be measured. Parts do not depend on one another.
    pub fn parts(&self, topologies: &[Topology], extent: Extent) -> Vec<Part> {
        use Pinging::{Aligned, AlignedMore, Idle, Lease, Never, PerServer, Spread};
        let more = AlignedMore(REPEATED - 1.0);
        let fine_grained: &[(Tuning, &[Pinging])] = match extent {
            Extent::All => &[
                (DEFAULTS, &[Never, Aligned, Spread, Idle]),
                (TUNED, &[Never, Aligned, more]),
                (OURS, &[Never, Aligned, PerServer, Lease]),
            ],
            Extent::Full => &[(DEFAULTS, &[Never, Aligned]), (TUNED, &[Never, Aligned]), (OURS, &[Never, Lease])],
        };
        let mut parts = Vec::new();
        for topology in topologies {
            let part =
                |(tuning, pinging): &(Tuning, &[Pinging])| self.part(self.size.clients, *topology, *tuning, pinging);
            match topology {
                Topology::Flat if extent == Extent::Full => {}
                Topology::Flat => parts.push(part(&(DEFAULTS, &[Never, Aligned]))),
                // Connecting 17 million pairs takes minutes, so all rows share one site.
                Topology::FineGrained if extent == Extent::Full => {
                    let rows = fine_grained.iter().flat_map(|tuned| part(tuned).rows).collect();
                    parts.push(Part { size: self.size, rows });
                }
                Topology::FineGrained => parts.extend(fine_grained.iter().map(part)),
            }
        }
        if extent == Extent::All && topologies.contains(&Topology::FineGrained) {
            let fewer = FEWER_CLIENTS.into_iter().filter(|clients| *clients < self.size.clients);
            parts.extend(fewer.map(|clients| self.part(clients, Topology::FineGrained, OURS, &[Lease])));
        }
        parts
    }

    fn part(&self, clients: u32, topology: Topology, tuning: Tuning, pinging: &[Pinging]) -> Part {
        let row = |pinging: &Pinging| Row { clients, topology, tuning, pinging: *pinging };
        Part { size: Size { clients, ..self.size }, rows: pinging.iter().map(row).collect() }
    }
}

/// Measures the rows of a part. Returns the outcomes, and the hash of all events.
pub fn measure(setup: Setup, part: &Part) -> Result<(Vec<Outcome>, u64), String> {
    let mut sim = Sim::new(setup.seed);
    let rt = sim.rt();
    let Part { size, rows } = part.clone();
    let outcomes = sim.block_on(Time::ZERO + LIMIT, async move {
        let mut outcomes = Vec::new();
        let Some(first) = rows.first() else { return Ok(outcomes) };
        let site = Site::build(&rt, size, first.topology).await?;
        let mut counted = 0;
        for row in rows {
            outcomes.push(measure_row(&rt, &site, setup, row, &mut counted).await?);
        }
        Ok::<_, String>(outcomes)
    });
    Ok((outcomes?, sim.stats().trace))
}

/// Measures a row. `counted` is the number of pings that the rows before have counted. Rows without pings do not count, because at the
/// paper's size that is a walk over 17 million imports; a ping of theirs would appear in the next row that does.
async fn measure_row(rt: &Rt, site: &Site, setup: Setup, row: Row, counted: &mut u64) -> Result<Outcome, String> {
    site.tune(row.tuning).await?;
    if row.pinging == Pinging::Idle {
        site.start_pinging_one_by_one(row.pinging, INTERVAL).await?;
    }
    if row.pinging == Pinging::Lease {
        site.start_leases(INTERVAL).await?;
    }
    // Pings come once in each interval of the wall clock, which is the simulation's.
    let flood = next_flood(rt, INTERVAL, rt.now() + SETTLE + LEAD + Duration::from_secs(1));
    rt.sleep((flood - rt.now()).saturating_sub(SETTLE + LEAD)).await;
    // In each row at the same time before the window, because a record more or less of each writer is 0.14 % of what is written.
    let writing = site.write();
    rt.sleep(SETTLE).await;
    if row.pinging != Pinging::Idle {
        site.set_pinging(row.pinging)?;
    }
    if row.pinging == Pinging::Idle {
        // Clients that were first to begin have pinged already.
        *counted = site.pings();
    }
    let (messages, io) = (site.messages(), site.io_wait());
    let (begun, mut samples) = (rt.now(), vec![site.written()]);
    site.begin_barriers();
    let ends = begun + INTERVAL * setup.intervals;
    let sample = async {
        while rt.now() < ends {
            rt.sleep(SAMPLE).await;
            samples.push(site.written());
        }
    };
    let ping_more = async {
        if let Pinging::AlignedMore(more) = row.pinging {
            for n in 0..setup.intervals {
                site.ping_more(flood + INTERVAL * n, more).await;
            }
        }
    };
    join(sample, ping_more).await;
    let io_now = site.io_wait();
    let pings_before = *counted;
    if row.pinging != Pinging::Never {
        *counted = site.pings();
    }
    let outcome = Outcome {
        row,
        samples,
        pings: *counted - pings_before,
        messages: site.messages().saturating_sub(messages),
        barriers: site.end_barriers(),
        io_wait_us: (io_now.1 - io.1) as f64 / (io_now.0 - io.0).max(1) as f64,
        o2ib_low: site.lowest("peers", "min_tx", |nid| nid.contains("@o2ib")),
        buffers_low: site.lowest("buffers", "min", |pool| pool == "small"),
        client_credits_low: site.lowest("peers", "min_rtr", |nid| nid.ends_with("@gni")),
    };
    site.set_pinging(Pinging::Never)?;
    site.end_leases().await?;
    drop(writing);
    // Messages that are still under way would disturb the next row, and credits are changed once all have come back.
    rt.sleep(CALM).await;
    tracing::info!(?row, pings = outcome.pings, "measured");
    Ok(outcome)
}

/// The first multiple of the interval by the wall clock after `after`.
pub(crate) fn next_flood(rt: &Rt, interval: Duration, after: Time) -> Time {
    let (now, wall) = (rt.now(), rt.wall());
    let offset = i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - i128::from(now.0);
    let interval = interval.as_nanos() as i128;
    let next = (i128::from(after.0) + offset).div_euclid(interval) + 1;
    Time((next * interval - offset) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(clients: u32) -> Setup {
        Setup { seed: 1, size: Size { clients, oss: 3, routers: 4 }, intervals: 1 }
    }

    fn part(clients: u32, tuning: Tuning, pinging: &[Pinging]) -> Part {
        setup(clients).part(clients, Topology::FineGrained, tuning, pinging)
    }

    /// With one credit for each router and OSS, 2,400 pings of an OSS take 2,400 / 4 x 2.4 ms.
    #[test]
    fn pings_hold_the_credits_that_writes_need_and_lanes_or_fewer_pings_free_them() {
        let few = Tuning { credits: 1, ..DEFAULTS };
        let all = [Pinging::Never, Pinging::Aligned, Pinging::PerServer, Pinging::Lease];
        let (outcomes, _) = measure(setup(600), &part(600, few, &all)).unwrap();
        assert_eq!([0, 1, 2, 3].map(|i| outcomes[i].pings), [0, 600 * 12, 600 * 3, 0]);
        let report = report(&setup(600), &outcomes, &[]);
        let still = |i: usize| {
            let of = report.figures.iter().filter(|f| f.figure == "stands still in an interval");
            of.filter_map(|f| f.ours).nth(i).unwrap()
        };
        assert!((1.0..=2.0).contains(&still(0)), "{} s", still(0));
        assert!(still(1) <= still(0) / 2.0, "{} s", still(1));
        assert_eq!(still(2), 0.0, "renewals of leases");
    }

    #[test]
    fn a_seed_determines_everything() {
        let run = || measure(setup(20), &part(20, TUNED, &[Pinging::Aligned])).unwrap();
        assert_eq!(run(), run());
    }

    #[test]
    fn a_site_without_a_router_for_each_group_is_refused() {
        let size = |oss, routers| Setup { size: Size { clients: 1, oss, routers }, ..setup(1) };
        assert!(size(4, 1).check().unwrap_err().contains("2 groups"));
        assert_eq!(size(4, 2).check(), Ok(()));
    }
}
