//! `nacre sim`: runs scenarios and reports their results. An IO edge: it reads the wall clock and the process's memory,
//! and starts threads to use several processors; code inside a simulation sees none of it.
#![allow(clippy::disallowed_methods)] // Measures real time, and runs simulations side by side.

use crate::away;
use crate::conditions::Answers;
use crate::congestion;
use crate::crashes;
use crate::culprits;
use crate::distance;
use crate::journal::{self, Application, Setup};
use crate::live_storm::{self, Liveness};
use crate::liveness;
use crate::pages;
use crate::ping_storm::{self, Extent, Part, Topology};
use crate::scale::Crowd;
use crate::scenario::{Trouble, run_seed};
use crate::shared_file::{self, AUTOMATIC, Load, Medium, Policy, RECORD_MAX, Row};
use crate::sharing::{self, Hazard};
use crate::wan;
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nacre_experiment::Experiment;
use nacre_experiment::plot::Plot;
use nacre_rt::SimStats;
use nacre_wire::layout::STRIPE_COUNT_MAX;
use serde::Serialize;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Run the file system in virtual time, with faults.
#[derive(Args, Debug)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,
}

/// The seeds of a sweep.
#[derive(Args, Debug)]
struct Seeds {
    /// How many seeds
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
}

#[derive(Subcommand, Debug)]
enum SimCommand {
    /// A few seeds of each kind of trouble, each run twice: the traces must be equal
    Smoke {
        /// Steps of each run
        #[arg(long, default_value_t = 2000)]
        steps: u32,
    },
    /// Many seeds; prints those that fail and the command that repeats each
    Sweep {
        /// How many seeds
        #[arg(long, default_value_t = 500)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Steps of each run
        #[arg(long, default_value_t = 2000)]
        steps: u32,
    },
    /// Many seeds of clients that share files at the same time: linearizable answers, sound lock tables
    Locks {
        #[command(flatten)]
        seeds: Seeds,
        /// Operations of each client
        #[arg(long, default_value_t = 80)]
        steps: u32,
    },
    /// Many seeds of servers that die while clients work: nothing acknowledged is lost or done twice
    Crashes {
        /// How many seeds
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Steps of each run
        #[arg(long, default_value_t = 400)]
        steps: u32,
        /// When OSTs answer writes; drawn for each seed if not given
        #[arg(long)]
        answers: Option<Answers>,
    },
    /// Many seeds with an OST that is away for a while: calls that do not need it never wait, and everything is right
    /// afterwards
    Away {
        #[command(flatten)]
        seeds: Seeds,
        /// Calls of each client while the OST is away
        #[arg(long, default_value_t = 150)]
        steps: u32,
    },
    /// Many seeds of causes of slowness: does `nacre top` name the right one, and nobody when nothing is wrong?
    Culprits {
        /// How many seeds
        #[arg(long, default_value_t = 300)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Only this cause, such as slow-disk
        #[arg(long, value_parser = culprits::Cause::named)]
        cause: Option<culprits::Cause>,
        /// Print each run, with what was said
        #[arg(long)]
        each: bool,
    },
    /// Many seeds of clients, servers, routers and an MGS that die, are cut off or are slow: nobody is evicted who could answer,
    /// and nobody waits for the dead longer than the rules say
    Liveness {
        #[command(flatten)]
        seeds: Seeds,
        /// Most calls of each client
        #[arg(long, default_value_t = 400)]
        steps: u32,
    },
    /// Many seeds of clients far away, behind a path that delays, varies, loses messages and is cut for up to 20 s, beside
    /// clients that are near: no call fails, and nobody is evicted
    Distance {
        #[command(flatten)]
        seeds: Seeds,
        /// Calls in each run
        #[arg(long, default_value_t = 400)]
        steps: u32,
    },
    /// Many seeds of programs that load, store, read and write the same pages through several mounts, behind a model of the kernel: every
    /// number is one that the file held at that moment
    Pages {
        #[command(flatten)]
        seeds: Seeds,
        /// Steps of each program
        #[arg(long, default_value_t = 200)]
        steps: u32,
    },
    /// One seed, with its failure in full
    Replay {
        /// The seed
        #[arg(long)]
        seed: u64,
        /// A seed of `locks`, not of `sweep`
        #[arg(long, conflicts_with = "crashes")]
        locks: bool,
        /// A seed of `crashes`, not of `sweep`
        #[arg(long)]
        crashes: bool,
        /// A seed of `away`, not of `sweep`
        #[arg(long, conflicts_with_all = ["crashes", "locks"])]
        away: bool,
        /// A seed of `liveness`, not of `sweep`
        #[arg(long, conflicts_with_all = ["crashes", "locks", "away"])]
        liveness: bool,
        /// A seed of `distance`, not of `sweep`
        #[arg(long, conflicts_with_all = ["crashes", "locks", "away", "liveness"])]
        distance: bool,
        /// A seed of `pages`, not of `sweep`
        #[arg(long, conflicts_with_all = ["crashes", "locks", "away", "liveness", "distance"])]
        pages: bool,
        /// With --crashes: the answers that the failed sweep was run with
        #[arg(long, requires = "crashes")]
        answers: Option<Answers>,
        /// Steps of the run: as in the failed sweep
        #[arg(long, default_value_t = 2000)]
        steps: u32,
        /// Print what the nodes log to standard error, each line with the virtual time and the node: a level, or a filter
        /// such as info,nacre_ptlrpc=debug
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
    /// Many clients: memory of each idle one, events for each second of CPU
    Scale {
        /// How many clients
        #[arg(long, default_value_t = 25_000)]
        clients: u32,
        /// How many OSSs
        #[arg(long, default_value_t = 8)]
        oss: u32,
    },
    /// Many writers of one file, in alternating records, beside a file for each: one OST with the speed of a real one
    SharedFile(SharedFile),
    /// Clients that all ping all servers through routers, while others write: how long nothing is written
    PingStorm(PingStormArgs),
    /// What nacre-e2e storm measures between real processes: the same nodes, links and imports
    LiveStorm(LiveStormArgs),
    /// When writes are answered and where the journal is: rates of 28 OSTs on arrays with slow seeks, and an application
    Journal(JournalArgs),
    /// Many clients that write at once to one OST whose disk seeks, with windows that are fixed or that the OST grants
    CongestionControl(CongestionArgs),
    /// A client that writes over 10 Gb/s and up to 366 ms through an LNet router, with Lustre's fixed credits and with Nacre's own, beside
    /// plain TCP
    #[command(long_about = WAN_ABOUT)]
    Wan(WanArgs),
}

/// What `nacre sim wan --help` says first.
const WAN_ABOUT: &str = "\
Repeats \"Lustre over the wide area through LNet routers\" in virtual time, at its size: a client writes through an LNet router over a link of \
10 Gb/s to eight OSTs, at seven round-trip times. The client, OSTs, LNet and the router are Nacre's own code; the link and the hosts' TCP are a \
model, with CUBIC or H-TCP, send and receive buffers, and a queue that drops what does not fit.

Each row is a host, a congestion control and a round trip. Its figures are:
  Lustre            Nacre's code with Lustre's 8 peer credits, 256 RPC credits, one bulk connection, and data that servers ask for
  min(host, B/T)    what should come of that: B bytes under way for T seconds (docs/measurements/sim-wan.md derives both)
  TCP               the best of plain TCP with 1, 8 and 16 connections, without the host's limit
  Nacre             Nacre with nothing set, without the host's limit

bohr has TCP buffers for 200 ms and moves 6 Gb/s, tait has Linux's buffers and moves 5 Gb/s. These two limits are fitted; figures that \
follow from them are marked as predicted, and as MISSED if they are not within their tolerance.

All of it takes some minutes of CPU time.";

/// Arguments of `nacre sim wan`. The default is the slides' paths.
#[derive(Args, Debug)]
struct WanArgs {
    /// Hosts
    #[arg(long = "host", value_delimiter = ',', default_value = "bohr,tait")]
    hosts: Vec<wan::Host>,
    /// Congestion controls of all hosts: cubic, htcp
    #[arg(long = "congestion-control", value_name = "NAME,...", value_delimiter = ',', default_value = "cubic,htcp", value_parser = parse_control)]
    controls: Vec<nacre_lnet::CongestionControl>,
    /// Round-trip times in milliseconds
    #[arg(long, value_name = "MS,...", value_delimiter = ',', default_values_t = wan::ROUND_TRIPS_MS, value_parser = parse_round_trip)]
    rtts: Vec<f64>,
    #[command(flatten)]
    shown: Shown,
}

fn parse_control(text: &str) -> Result<nacre_lnet::CongestionControl, String> {
    match text {
        "cubic" => Ok(nacre_lnet::CongestionControl::Cubic),
        "htcp" => Ok(nacre_lnet::CongestionControl::HTcp),
        _ => Err(format!("{text:?} is neither cubic nor htcp")),
    }
}

fn parse_round_trip(text: &str) -> Result<f64, String> {
    let milliseconds = text.parse().ok().filter(|ms| (0.01..=2000.0).contains(ms));
    milliseconds.ok_or_else(|| format!("{text:?} is not a time from 0.01 to 2000 milliseconds"))
}

/// Arguments that all experiments have.
#[derive(Args, Debug)]
struct Shown {
    /// The seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the page of the documentation
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Arguments of `nacre sim ping-storm`. The default is a tenth of the paper's servers and routers, each with as many pings as in
/// the paper.
#[derive(Args, Debug)]
struct PingStormArgs {
    /// Idle clients
    #[arg(long, default_value_t = 25_000)]
    clients: u32,
    /// OSSs, of four targets each
    #[arg(long, default_value_t = 17)]
    oss: u32,
    /// Routers; three OSSs share about four of them
    #[arg(long, default_value_t = 23)]
    routers: u32,
    /// The paper's size, of 168 OSSs and 224 routers, and fewer rows, one part after the other: needs 36 GB of memory
    /// and swap
    #[arg(long, conflicts_with_all = ["clients", "oss", "routers"])]
    full: bool,
    /// How routers are shared
    #[arg(long = "topology", value_delimiter = ',', default_value = "fine-grained,flat")]
    topologies: Vec<Topology>,
    /// Intervals of 75 s that each row measures
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    intervals: u32,
    #[command(flatten)]
    shown: Shown,
}

/// Stories of congestion control that are told if none is named.
const STORIES: [&str; 6] = ["even", "many-more", "slower-disk", "reads", "greedy", "small"];

/// Arguments of `nacre sim congestion-control`. The default is the paper's rows.
#[derive(Args, Debug)]
struct CongestionArgs {
    /// GiB that all clients write together
    #[arg(long, default_value_t = 512)]
    gib: u64,
    /// Clients of each row
    #[arg(long, value_delimiter = ',', default_value = "1024")]
    clients: Vec<u32>,
    /// Static windows, in place of the paper's rows
    #[arg(long = "fix", value_delimiter = ',')]
    fixed: Vec<u32>,
    /// Bounds of the published algorithm in seconds, in place of the paper's rows
    #[arg(long = "cc", value_delimiter = ',')]
    bounds: Vec<u32>,
    /// Bounds of Nacre's own controller in seconds, or 0 for none, in place of the paper's rows
    #[arg(long, value_delimiter = ',')]
    nacre: Vec<u32>,
    /// The clients of these rows begin within so many seconds
    #[arg(long, default_value_t = congestion::DISPATCH)]
    dispatch: u32,
    /// Stories in place of the paper's first rows; without a name, those of writers that never end. Each is told with static
    /// windows, the published algorithm and Nacre's own, without a bound and with one, unless controllers are named
    #[arg(long, value_delimiter = ',', num_args = 0.., default_missing_values = STORIES)]
    story: Vec<congestion::stories::Story>,
    #[command(flatten)]
    shown: Shown,
}

impl CongestionArgs {
    /// Controllers that were named.
    fn controls(&self) -> Vec<congestion::Control> {
        use congestion::Control;
        let fixed = self.fixed.iter().map(|n| Control::Fix(*n)).chain(self.bounds.iter().map(|n| Control::Cc(*n)));
        fixed.chain(self.nacre.iter().map(|n| Control::Nacre(*n))).collect()
    }

    /// The command that prints the page of these stories.
    fn story_command(&self) -> String {
        let name = |story: &congestion::stories::Story| Some(story.to_possible_value()?.get_name().to_owned());
        let names: Vec<String> = self.story.iter().filter_map(name).collect();
        let names = if names == STORIES { String::new() } else { format!(" {}", names.join(",")) };
        let dispatch = match self.dispatch {
            congestion::DISPATCH => String::new(),
            seconds => format!(" --dispatch {seconds}"),
        };
        format!("nacre sim congestion-control --story{names}{dispatch} --markdown")
    }
}

/// Arguments of `nacre sim live-storm`.
#[derive(Args, Debug)]
struct LiveStormArgs {
    #[command(flatten)]
    setup: live_storm::Setup,
    /// Rows; dead time needs `none`
    #[arg(long = "row", value_delimiter = ',', default_values = ["none", "ping", "ping-lanes", "lease"])]
    rows: Vec<Liveness>,
}

/// Arguments of `nacre sim journal`.
#[derive(Args, Debug)]
struct JournalArgs {
    /// OSTs, and clients
    #[arg(long, default_value_t = 28)]
    osts: u32,
    /// RPCs of 1 MiB that a client has in flight
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    rpcs_in_flight: Vec<u32>,
    /// MiB that each client writes
    #[arg(long, default_value_t = 1024)]
    size_mb: u64,
    /// More sizes, for the rows that are answered before the commit
    #[arg(long, value_delimiter = ',', default_value = "512,4096")]
    async_size_mb: Vec<u64>,
    /// Processes of the application; 0 runs none
    #[arg(long, default_value_t = 1344)]
    processes: u32,
    /// MiB that each process writes at a checkpoint, besides a header of 64 KiB
    #[arg(long, default_value_t = 8)]
    checkpoint_mb: u64,
    /// Checkpoints of the application
    #[arg(long, default_value_t = 2)]
    checkpoints: u32,
    /// Time that it computes between two checkpoints, as a multiple of what the raw arrays need for one; the default
    /// follows from the paper's run, in which writing takes 70 % of the time with the synchronous journal
    #[arg(long, default_value_t = Application::COMPUTE)]
    compute: f64,
    #[command(flatten)]
    shown: Shown,
}

/// Arguments of `nacre sim shared-file`.
#[derive(Args, Debug)]
struct SharedFile {
    /// Clients
    #[arg(long, default_value_t = 48)]
    clients: u32,
    /// Processes of each client
    #[arg(long, value_delimiter = ',', default_value = "16")]
    processes: Vec<u32>,
    /// Bytes of a record, at most 16M
    #[arg(long = "record", value_delimiter = ',', default_value = "1M,16M", value_parser = parse_record)]
    records: Vec<u64>,
    /// Stripes of the shared file; auto: as many as the MDS thinks best
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = parse_stripes)]
    stripes: Vec<u32>,
    /// Kinds of OST
    #[arg(long = "ost", value_delimiter = ',', default_value = "disk,flash")]
    media: Vec<Medium>,
    /// Policies; the two with a file for each process are the bases of comparison on their storage
    #[arg(
        long = "policy",
        value_delimiter = ',',
        default_value = "paper-file-per-process,grown,lustre,file-per-process,default"
    )]
    policies: Vec<Policy>,
    /// Records that all processes of a measurement write together
    #[arg(long, default_value_t = 6144)]
    total: u64,
    #[command(flatten)]
    shown: Shown,
}

fn parse_record(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| (1..=RECORD_MAX).contains(s))
        .ok_or_else(|| format!("{text:?} is not a size of at most 16M"))
}

fn parse_stripes(text: &str) -> Result<u32, String> {
    let number = || text.parse().ok().filter(|n| (1..=STRIPE_COUNT_MAX as u32).contains(n));
    let stripes = if text == "auto" { Some(AUTOMATIC) } else { number() };
    stripes.ok_or_else(|| format!("{text:?} is neither a number of stripes nor auto"))
}

/// Runs the command.
pub fn main(args: SimArgs) -> ExitCode {
    match args.command {
        SimCommand::Smoke { steps } => smoke(steps, args.json),
        SimCommand::Sweep { seeds, from, steps } => sweep(&SWEEP, from, seeds, steps, args.json),
        SimCommand::Locks { seeds, steps } => sweep(&LOCKS, seeds.from, seeds.seeds, steps, args.json),
        SimCommand::Crashes { seeds, from, steps, answers } => {
            sweep(crashes_answering(answers), from, seeds, steps, args.json)
        }
        SimCommand::Away { seeds, steps } => sweep(&AWAY, seeds.from, seeds.seeds, steps, args.json),
        SimCommand::Culprits { seeds, from, cause, each } => {
            name_culprits(from..from.saturating_add(seeds), cause, each, args.json)
        }
        SimCommand::Liveness { seeds, steps } => sweep(&LIVENESS, seeds.from, seeds.seeds, steps, args.json),
        SimCommand::Distance { seeds, steps } => sweep(&DISTANCE, seeds.from, seeds.seeds, steps, args.json),
        SimCommand::Pages { seeds, steps } => sweep(&PAGES, seeds.from, seeds.seeds, steps, args.json),
        SimCommand::Replay { seed, locks, crashes, away, liveness, distance, pages, answers, steps, log } => {
            if let Some(Err(e)) = log.as_deref().map(crate::log::print) {
                eprintln!("nacre sim: --log: {e}");
                return ExitCode::FAILURE;
            }
            let story = match () {
                () if locks => &LOCKS,
                () if crashes => crashes_answering(answers),
                () if away => &AWAY,
                () if liveness => &LIVENESS,
                () if distance => &DISTANCE,
                () if pages => &PAGES,
                () => &SWEEP,
            };
            replay(story, seed, steps, args.json)
        }
        SimCommand::Scale { clients, oss } => scale(clients, oss, args.json),
        SimCommand::SharedFile(experiment) => shared_files(&experiment, args.json),
        SimCommand::Journal(experiment) => journals(&experiment, args.json),
        SimCommand::PingStorm(experiment) => ping_storms(&experiment, args.json),
        SimCommand::CongestionControl(experiment) => congestion_controls(&experiment, args.json),
        SimCommand::LiveStorm(experiment) => live_storms(&experiment, args.json),
        SimCommand::Wan(experiment) => wans(&experiment, args.json),
    }
}

/// A kind of run that a seed determines.
struct Story {
    name: &'static str,
    run: fn(u64, u32) -> SimStats,
    trouble: fn(u64) -> String,
    /// Option that selects this kind for one seed.
    replay: &'static str,
}

const SWEEP: Story = Story {
    name: "sweep",
    run: run_seed,
    trouble: |seed| format!("{:?}", Trouble::of_seed(seed)).to_lowercase(),
    replay: "nacre sim replay",
};

const CRASHES: Story = crashes(
    |seed, steps| crashes::run_of_sweep(None, seed, steps),
    |seed| crashes::describe(seed, None),
    "nacre sim replay --crashes",
);

const CRASHES_COMMIT: Story = crashes(
    |seed, steps| crashes::run_of_sweep(Some(Answers::Commit), seed, steps),
    |seed| crashes::describe(seed, Some(Answers::Commit)),
    "nacre sim replay --crashes --answers commit",
);

const CRASHES_DEVICE: Story = crashes(
    |seed, steps| crashes::run_of_sweep(Some(Answers::Device), seed, steps),
    |seed| crashes::describe(seed, Some(Answers::Device)),
    "nacre sim replay --crashes --answers device",
);

const CRASHES_MEMORY: Story = crashes(
    |seed, steps| crashes::run_of_sweep(Some(Answers::Memory), seed, steps),
    |seed| crashes::describe(seed, Some(Answers::Memory)),
    "nacre sim replay --crashes --answers memory",
);

const fn crashes(run: fn(u64, u32) -> SimStats, trouble: fn(u64) -> String, replay: &'static str) -> Story {
    Story { name: "crashes", run, trouble, replay }
}

fn crashes_answering(answers: Option<Answers>) -> &'static Story {
    match answers {
        None => &CRASHES,
        Some(Answers::Commit) => &CRASHES_COMMIT,
        Some(Answers::Device) => &CRASHES_DEVICE,
        Some(Answers::Memory) => &CRASHES_MEMORY,
    }
}

const LOCKS: Story = Story {
    name: "locks",
    run: sharing::run_seed,
    trouble: |seed| format!("{:?}", Hazard::of_seed(seed)).to_lowercase(),
    replay: "nacre sim replay --locks",
};

const AWAY: Story = Story {
    name: "away",
    run: away::run_seed,
    trouble: |seed| away::Course::of_seed(seed).to_string(),
    replay: "nacre sim replay --away",
};

const LIVENESS: Story = Story {
    name: "liveness",
    run: liveness::run_seed,
    trouble: liveness::troubles_of_seed,
    replay: "nacre sim replay --liveness",
};

const DISTANCE: Story = Story {
    name: "distance",
    run: distance::run_seed,
    trouble: |seed| distance::Path::of_seed(seed).to_string(),
    replay: "nacre sim replay --distance",
};

const PAGES: Story = Story {
    name: "pages",
    run: pages::run_seed,
    trouble: |seed| pages::Course::of_seed(seed).to_string(),
    replay: "nacre sim replay --pages",
};

/// The outcome of one seed.
#[derive(Debug, Clone, Serialize)]
struct Outcome {
    seed: u64,
    trouble: String,
    trace: String,
    events: u64,
    virtual_seconds: f64,
    failure: Option<String>,
}

fn attempt(story: &Story, seed: u64, steps: u32) -> Outcome {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| (story.run)(seed, steps)));
    let trouble = (story.trouble)(seed);
    match result {
        Ok(SimStats { now, polls, trace, .. }) => Outcome {
            seed,
            trouble,
            trace: format!("{trace:016x}"),
            events: polls,
            virtual_seconds: now.as_nanos() as f64 / 1e9,
            failure: None,
        },
        Err(panic) => {
            let failure = Some(text_of(&*panic));
            Outcome { seed, trouble, trace: String::new(), events: 0, virtual_seconds: 0.0, failure }
        }
    }
}

/// The message of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_else(|| "a panic without text".into())
}

/// Runs seeds side by side. Returns the outcomes in order of seed.
fn attempt_all(story: &Story, seeds: std::ops::Range<u64>, steps: u32, what: &'static str) -> Vec<Outcome> {
    let seeds: Vec<u64> = seeds.collect();
    side_by_side(&seeds, what, |seed| attempt(story, *seed, steps))
}

/// Stack size of a thread that runs simulations, whose futures are large without optimization.
const STACK: usize = 16 << 20;

/// Runs simulations side by side, one thread for each processor. Returns the results in the order of the inputs. `run`
/// must catch panics, whose own messages are suppressed meanwhile.
fn side_by_side<T: Sync, R: Send>(all: &[T], what: &'static str, run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    // Failures are reported at the end, in order, not by each panic's own message.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let bar = ProgressBar::new(all.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = all.get(index) else { return done };
                done.push((index, run(item)));
                bar.inc(1);
            }
        };
        let thread = || std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let running: Vec<_> = (0..threads).map(|_| thread().expect("a thread starts")).collect();
        running.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
    });
    bar.finish_and_clear();
    std::panic::set_hook(hook);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn report(story: &Story, outcomes: &[Outcome], steps: u32, elapsed: Duration, json: bool) -> ExitCode {
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failure.is_some()).collect();
    if json {
        print_json(&outcomes);
    } else {
        for o in &failed {
            println!("seed {} ({}) failed: {}", o.seed, o.trouble, o.failure.as_deref().unwrap_or_default());
            println!("  repeat it with: {} --seed {} --steps {steps}\n", story.replay, o.seed);
        }
        let events: u64 = outcomes.iter().map(|o| o.events).sum();
        let virtual_hours: f64 = outcomes.iter().map(|o| o.virtual_seconds).sum::<f64>() / 3600.0;
        println!(
            "{} passed, {} failed, {events} events, {virtual_hours:.1} h of virtual time in {:.1} s",
            outcomes.len() - failed.len(),
            failed.len(),
            elapsed.as_secs_f64()
        );
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => println!("{text}"),
        Err(e) => eprintln!("cannot write JSON: {e}"),
    }
}

/// Number of seeds of the smoke test: four of each kind of trouble.
const SMOKE_SEEDS: u64 = 4 * Trouble::ALL.len() as u64;

fn smoke(steps: u32, json: bool) -> ExitCode {
    let begun = Instant::now();
    let mut first = attempt_all(&SWEEP, 0..SMOKE_SEEDS, steps, "smoke");
    let second = attempt_all(&SWEEP, 0..SMOKE_SEEDS, steps, "again");
    for (a, b) in first.iter_mut().zip(&second) {
        if a.failure.is_none() && a.trace != b.trace {
            a.failure = Some(format!("two runs differ: traces {} and {}", a.trace, b.trace));
        }
    }
    report(&SWEEP, &first, steps, begun.elapsed(), json)
}

fn sweep(story: &Story, from: u64, seeds: u64, steps: u32, json: bool) -> ExitCode {
    let begun = Instant::now();
    let outcomes = attempt_all(story, from..from.saturating_add(seeds), steps, story.name);
    report(story, &outcomes, steps, begun.elapsed(), json)
}

fn replay(story: &Story, seed: u64, steps: u32, json: bool) -> ExitCode {
    let begun = Instant::now();
    let outcome = attempt(story, seed, steps);
    if !json && outcome.failure.is_none() {
        println!("seed {seed} ({}): trace {}", outcome.trouble, outcome.trace);
    }
    report(story, &[outcome], steps, begun.elapsed(), json)
}

fn name_culprits(seeds: std::ops::Range<u64>, cause: Option<culprits::Cause>, each: bool, json: bool) -> ExitCode {
    let all: Vec<u64> = seeds.collect();
    let run = |seed: &u64| cause.map_or_else(|| culprits::run_seed(*seed), |cause| culprits::run_cause(cause, *seed));
    let outcomes = side_by_side(&all, "culprits", run);
    if json {
        println!("{}", serde_json::json!(outcomes));
    } else {
        if each {
            for outcome in &outcomes {
                let said = outcome.said.as_deref().unwrap_or("nothing");
                let verdict = if outcome.is_right { "right" } else { "WRONG" };
                let after = outcome.after.map(|seconds| format!(" after {seconds} s")).unwrap_or_default();
                println!("seed {} {:?}: {verdict}{after}, {said}", outcome.seed, outcome.cause);
            }
        }
        print!("{}", culprits::table(&outcomes));
    }
    let broken = all.len() - outcomes.len();
    if broken > 0 {
        eprintln!("nacre sim: {broken} runs ended by a panic; a run of one seed shows which");
    }
    let is_good = culprits::are_good(&outcomes) && broken == 0;
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn shared_files(args: &SharedFile, json: bool) -> ExitCode {
    let loads = loads(args);
    let mut rows = side_by_side(&loads, "shared-file", |load| {
        let measured = std::panic::catch_unwind(|| shared_file::measure(args.shown.seed, *load));
        measured.unwrap_or_else(|panic| Row::failed(*load, text_of(&*panic)))
    });
    shared_file::compare(&mut rows);
    let failed = rows.iter().filter_map(|row| row.failure.as_ref());
    let has_failed = failed.inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let form = Form::of(json, args.shown.markdown, "nacre sim shared-file --markdown");
    let experiment = shared_file::report(args.shown.seed, &rows);
    let shown = show(&experiment, form, args.shown.plot.as_deref(), || shared_file::plots(&rows));
    if has_failed { ExitCode::FAILURE } else { shown }
}

/// Form in which the result of an experiment is shown.
enum Form {
    Text,
    Json,
    /// A page of the documentation, with the command that prints it.
    Markdown(String),
}

impl Form {
    fn of(json: bool, markdown: bool, command: &str) -> Form {
        match (json, markdown) {
            (true, _) => Form::Json,
            (_, true) => Form::Markdown(command.to_owned()),
            _ => Form::Text,
        }
    }
}

fn show(experiment: &Experiment, form: Form, plot: Option<&Path>, plots: impl FnOnce() -> Vec<Plot>) -> ExitCode {
    match form {
        Form::Text => print!("{}", experiment.text()),
        Form::Json => print_json(experiment),
        Form::Markdown(command) => print!("{}", experiment.markdown(&command)),
    }
    let Some(path) = plot else { return ExitCode::SUCCESS };
    if let Err(e) = std::fs::write(path, nacre_experiment::plot::svg(&plots())) {
        eprintln!("nacre sim: cannot write {}: {e}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn journals(args: &JournalArgs, json: bool) -> ExitCode {
    let application = Application {
        osts: args.osts,
        processes: args.processes,
        checkpoints: args.checkpoints,
        bytes: args.checkpoint_mb << 20,
        compute: args.compute,
    };
    let setup = Setup {
        seed: args.shown.seed,
        osts: args.osts,
        rpcs_in_flight: args.rpcs_in_flight.clone(),
        bytes: args.size_mb << 20,
        more_bytes: args.async_size_mb.iter().map(|mib| mib << 20).collect(),
        application,
    };
    let runs = side_by_side(&setup.jobs(), "journal", |job| {
        let outcome = std::panic::catch_unwind(|| job.run(args.shown.seed));
        (*job, outcome.unwrap_or_else(|panic| Err(text_of(&*panic))))
    });
    let failed = runs.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    let has_failed = failed.inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let form = Form::of(json, args.shown.markdown, "nacre sim journal --markdown");
    let shown =
        show(&journal::report(&setup, &runs), form, args.shown.plot.as_deref(), || journal::plots(&setup, &runs));
    if has_failed { ExitCode::FAILURE } else { shown }
}

fn ping_storms(args: &PingStormArgs, json: bool) -> ExitCode {
    let (size, extent) = match args.full {
        true => (ping_storm::Size::FULL, Extent::Full),
        false => (ping_storm::Size { clients: args.clients, oss: args.oss, routers: args.routers }, Extent::All),
    };
    let setup = ping_storm::Setup { seed: args.shown.seed, size, intervals: args.intervals };
    if let Err(e) = setup.check() {
        eprintln!("nacre sim: {e}");
        return ExitCode::FAILURE;
    }
    let run = |part: &Part| {
        let measured = std::panic::catch_unwind(|| ping_storm::measure(setup, part));
        measured.unwrap_or_else(|panic| Err(text_of(&*panic)))
    };
    let parts = setup.parts(&args.topologies, extent);
    // Large sites take so much memory that they run one after the other.
    let together = if size.is_large() { 1 } else { parts.len().max(1) };
    let runs: Vec<_> = parts.chunks(together).flat_map(|parts| side_by_side(parts, "ping-storm", run)).collect();
    let failed = runs.iter().filter_map(|run| run.as_ref().err());
    let has_failed = failed.inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let (outcomes, traces): (Vec<_>, Vec<_>) = runs.into_iter().flatten().unzip();
    let outcomes = outcomes.concat();
    let form = Form::of(json, args.shown.markdown, "nacre sim ping-storm --markdown");
    let experiment = ping_storm::report(&setup, &outcomes, &traces);
    let shown = show(&experiment, form, args.shown.plot.as_deref(), || ping_storm::plots(&setup, &outcomes));
    if has_failed { ExitCode::FAILURE } else { shown }
}

fn congestion_controls(args: &CongestionArgs, json: bool) -> ExitCode {
    use congestion::Load;
    if !args.story.is_empty() {
        return congestion_stories(args, json);
    }
    let (bytes, dispatch) = (args.gib << 30, args.dispatch);
    let load = |control| move |clients: &u32| Load { control, clients: *clients, bytes, dispatch };
    let chosen: Vec<Load> =
        args.controls().into_iter().flat_map(|control| args.clients.iter().map(load(control))).collect();
    let loads = if chosen.is_empty() { congestion::papers() } else { chosen };
    let runs = side_by_side(&loads, "congestion-control", |load| {
        let measured = std::panic::catch_unwind(|| congestion::measure(args.shown.seed, *load));
        (*load, measured.unwrap_or_else(|panic| Err(text_of(&*panic))))
    });
    let failed = runs.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    let has_failed = failed.inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let form = Form::of(json, args.shown.markdown, "nacre sim congestion-control --markdown");
    let experiment = congestion::report(args.shown.seed, &runs);
    let shown = show(&experiment, form, args.shown.plot.as_deref(), || congestion::plots(&runs));
    if has_failed { ExitCode::FAILURE } else { shown }
}

fn congestion_stories(args: &CongestionArgs, json: bool) -> ExitCode {
    use congestion::stories::{Row, Story, measure, report, small_alone};
    let seed = args.shown.seed;
    let (mut rows, named) = (Vec::new(), args.controls());
    for story in args.story.iter().copied() {
        let controls = if named.is_empty() { story.controls() } else { named.clone() };
        rows.extend(controls.into_iter().map(|control| Row { story, control, dispatch: args.dispatch }));
    }
    let runs = side_by_side(&rows, "congestion-control", |row| {
        let measured = std::panic::catch_unwind(|| measure(seed, *row));
        (*row, measured.unwrap_or_else(|panic| Err(text_of(&*panic))))
    });
    let alone = args.story.contains(&Story::Small).then(|| small_alone(seed)).transpose();
    let failed = runs.iter().filter_map(|(_, measured)| measured.as_ref().err()).chain(alone.as_ref().err());
    let has_failed = failed.inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let form = Form::of(json, args.shown.markdown, &args.story_command());
    let shown = show(&report(seed, &runs, alone.ok().flatten()), form, None, Vec::new);
    if has_failed { ExitCode::FAILURE } else { shown }
}

fn wans(args: &WanArgs, json: bool) -> ExitCode {
    let jobs = wan::jobs(&args.hosts, &args.controls, &args.rtts);
    let runs = side_by_side(&jobs, "wan", |job| {
        let measured = std::panic::catch_unwind(|| wan::measure(args.shown.seed, *job));
        (*job, measured.unwrap_or_else(|panic| Err(text_of(&*panic))))
    });
    let failed = runs.iter().filter_map(|(job, outcome)| Some((job, outcome.as_ref().err()?)));
    let has_failed = failed.inspect(|(job, e)| eprintln!("nacre sim: {job:?}: {e}")).count() > 0;
    let form = Form::of(json, args.shown.markdown, "nacre sim wan --markdown");
    let shown = show(&wan::report(args.shown.seed, &runs), form, args.shown.plot.as_deref(), || wan::plots(&runs));
    if args.shown.markdown {
        print!("\n{}", wan::DERIVATION);
    }
    if has_failed { ExitCode::FAILURE } else { shown }
}

fn live_storms(args: &LiveStormArgs, json: bool) -> ExitCode {
    let runs = side_by_side(&args.rows, "live-storm", |row| {
        let measured = std::panic::catch_unwind(|| live_storm::measure(args.setup, *row));
        measured.unwrap_or_else(|panic| Err(text_of(&*panic)))
    });
    let has_failed =
        runs.iter().filter_map(|run| run.as_ref().err()).inspect(|e| eprintln!("nacre sim: {e}")).count() > 0;
    let outcomes: Vec<_> = runs.into_iter().flatten().collect();
    let form = Form::of(json, false, "nacre sim live-storm");
    let shown = show(&live_storm::report(&args.setup, &outcomes), form, None, Vec::new);
    if has_failed { ExitCode::FAILURE } else { shown }
}

/// The measurements that the arguments ask for; files per process are measured once for all numbers of stripes.
fn loads(args: &SharedFile) -> Vec<Load> {
    let mut loads = Vec::new();
    for medium in args.media.iter().copied() {
        for processes in args.processes.iter().copied() {
            for record in args.records.iter().copied() {
                let writers = u64::from(args.clients) * u64::from(processes);
                let records = (args.total / writers.max(1)).max(1);
                for policy in args.policies.iter().copied() {
                    let stripes = if policy.is_alone() { &[1] } else { args.stripes.as_slice() };
                    let clients = args.clients;
                    let load = |s: &u32| Load { medium, policy, clients, processes, record, records, stripes: *s };
                    loads.extend(stripes.iter().map(load));
                }
            }
        }
    }
    loads
}

#[derive(Serialize)]
struct ScaleReport {
    clients: u32,
    bytes_per_idle_client: u64,
    idle_events_per_client_and_minute: f64,
    events: u64,
    events_per_cpu_second: f64,
    rpcs_per_cpu_second: f64,
    mount_cpu_seconds: f64,
}

/// Metadata calls of each client under load.
const CALLS: u32 = 20;

fn scale(clients: u32, oss: u32, json: bool) -> ExitCode {
    let memory_before = resident_bytes();
    let cpu_before = cpu_seconds();
    let mut crowd = Crowd::mount(1, oss, clients);
    let mount_cpu_seconds = cpu_seconds() - cpu_before;
    crowd.idle(Duration::from_secs(30));
    let memory = resident_bytes().saturating_sub(memory_before);
    let idle_before = crowd.stats().polls;
    crowd.idle(Duration::from_secs(60));
    let idle_events = crowd.stats().polls - idle_before;
    let (events_before, cpu_before) = (crowd.stats().polls, cpu_seconds());
    crowd.work(CALLS);
    let events = crowd.stats().polls - events_before;
    let cpu = (cpu_seconds() - cpu_before).max(1e-9);
    let report = ScaleReport {
        clients,
        bytes_per_idle_client: memory / u64::from(clients.max(1)),
        idle_events_per_client_and_minute: idle_events as f64 / f64::from(clients.max(1)),
        events,
        events_per_cpu_second: events as f64 / cpu,
        rpcs_per_cpu_second: f64::from(clients) * f64::from(CALLS) / cpu,
        mount_cpu_seconds,
    };
    if json {
        print_json(&report);
    } else {
        println!("clients mounted                {:>12}", report.clients);
        println!("bytes for each idle client     {:>12}", report.bytes_per_idle_client);
        println!("events of each in an idle min. {:>12.1}", report.idle_events_per_client_and_minute);
        println!("events under load              {:>12}", report.events);
        println!("events for each CPU second     {:>12.0}", report.events_per_cpu_second);
        println!("RPCs for each CPU second       {:>12.0}", report.rpcs_per_cpu_second);
        println!("CPU seconds to mount all       {:>12.1}", report.mount_cpu_seconds);
    }
    ExitCode::SUCCESS
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}

/// CPU time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    // For /proc, the kernel counts in hundredths of a second on every Linux.
    (ticks() + ticks()) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        sim: SimArgs,
    }

    #[test]
    fn json_is_asked_for_before_or_behind_the_experiment() {
        let parsed = |words: &[&str]| Command::try_parse_from([&["sim"], words].concat());
        for words in
            [["--json", "journal"], ["journal", "--json"], ["--json", "shared-file"], ["shared-file", "--json"]]
        {
            assert!(parsed(&words).is_ok_and(|c| c.sim.json), "{words:?}");
        }
        assert!(parsed(&["journal"]).is_ok_and(|c| !c.sim.json));
        assert!(parsed(&["journal", "--json", "--markdown"]).is_err(), "one form at a time");
    }
}
