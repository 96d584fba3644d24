//! `nacre bench wan`: a file system between two sites, at several round-trip times, beside plain TCP over the link.
//!
//! Servers, a router, an emulated link, another router and a client are network namespaces of this machine. All of it runs as
//! users run it: separate processes, and nothing set by hand.

mod factors;
mod hosts;
mod model;
mod names;
mod sites;
mod tcp;

use crate::load::{self, Cache};
use crate::output;
use clap::Args;
use factors::{Conditions, Factor};
use indicatif::ProgressBar;
use nacre_base::table;
use nacre_experiment::plot::{self, Line, Plot};
use nacre_experiment::{Constant, Experiment, Figure};
use nacre_wan_link::link::{self, Link};
use nacre_wan_link::share::Share;
use nacre_wan_link::units::Rate;
use sites::{Sites, Wanted};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tcp::{Best, Direction, Plain, window_max};

/// Arguments of `nacre bench wan`.
#[derive(Args, Debug)]
pub(crate) struct WanArgs {
    /// Directory for the storage and the mount point, which are removed in the end
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Round-trip times in milliseconds, in this order. Below 1 the link adds no delay
    #[arg(long, value_name = "MS,...", value_delimiter = ',', default_value = "0.1,11,22,45,92,183,366")]
    rtts: Vec<f64>,
    /// Bits that the link carries in a second: at most half of what plain TCP gets through the emulator here
    #[arg(long, default_value = "400mbit", value_parser = limited_rate)]
    rate: Rate,
    /// Share of the link's packets that are lost
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    loss: Share,
    /// Numbers of writers and readers, each with a file of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8")]
    jobs: Vec<usize>,
    /// OSTs of the file system
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    osts: u16,
    /// Stripes of each file
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    stripes: u16,
    /// Numbers of connections with which plain TCP is tried
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,8,16")]
    streams: Vec<u32>,
    /// The kernel's congestion control on all hosts, such as cubic; without it this machine's default
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Measure what programs that look at names take at this round-trip time, in milliseconds, and no rates
    #[arg(long, value_name = "MS", num_args = 0..=1, default_missing_value = "100", conflicts_with_all = ["factors", "hold"])]
    names: Option<f64>,
    /// Change one thing at a time: credits, requests under way, connections, socket buffers, congestion control, and whether data travels
    /// with requests
    #[arg(long, conflicts_with = "hold")]
    factors: bool,
    /// Measure no file system: compare the TCP of `nacre sim wan`, a model, with the kernel's CUBIC over the link, at twelve points of
    /// which four each are bound by losses, by slow start and by the send buffer
    #[arg(long, conflicts_with_all = ["factors", "hold", "names"])]
    model: bool,
    /// With --model: runs of each point; their median counts
    #[arg(long, value_name = "N", default_value_t = 3, requires = "model", value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// With --model: points in place of the twelve, such as rate=100mbit,rtt=45ms,loss=0.1%,seconds=20 or buffer=256k
    #[arg(long = "point", value_name = "POINT", requires = "model", value_parser = model::parse)]
    points: Vec<model::Point>,
    /// Measure nothing: leave both sites to other programs, at the first round-trip time, until the standard input ends
    #[arg(long)]
    hold: bool,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn limited_rate(text: &str) -> Result<Rate, String> {
    let rate = link::rate(text).map_err(|e| e.to_string())?;
    rate.ok_or_else(|| "a long-distance link has a rate; give one such as 400mbit".to_owned())
}

/// Each measurement moves as much as the link carries in so many round trips.
const ROUND_TRIPS: u32 = 20;
/// And at least for so long.
const TIME_MIN: Duration = Duration::from_secs(3);
/// Socket buffers of plain TCP are never smaller than this, unless their size is what is changed.
const WINDOW_MIN: u64 = 1 << 20;

/// A measurement.
struct Row {
    /// As it was asked for, in milliseconds.
    rtt: f64,
    direction: Direction,
    jobs: usize,
    bytes_per_second: f64,
    tcp: Best,
}

/// Results at all round-trip times.
#[derive(Default)]
struct Results {
    rows: Vec<Row>,
    /// Round-trip times as asked for and as measured, in milliseconds.
    measured: Vec<(f64, f64)>,
}

pub(crate) fn run(args: &WanArgs, json: bool) -> Result<(), String> {
    if args.hold {
        return hold(args);
    }
    if args.model {
        return model::run(&args.points, args.runs, json);
    }
    if let Some(round_trip) = args.names {
        return run_names(args, round_trip, json);
    }
    if args.factors {
        return run_factors(args, json);
    }
    let steps = args.rtts.len() as u64 * 2 * (1 + args.jobs.len() as u64);
    let bar = output::progress(steps + 1);
    let results = measure(args, &bar);
    bar.finish_and_clear();
    let results = results?;
    output::plot(args.plot.as_deref(), || plot(args, &results.rows))?;
    output::show_experiment(&experiment(args, &results), json, || print_rows(&results))
}

/// Both sites, and a directory for data on the mount.
fn build(args: &WanArgs) -> Result<(Sites, PathBuf), String> {
    let link = Link { rate: Some(args.rate), loss: args.loss, ..Link::default() };
    let congestion_control = args.congestion_control.as_deref();
    let sites = Sites::new(&Wanted { parent: &args.dir, osts: usize::from(args.osts), link, congestion_control })?;
    let dir = sites.mountpoint().join("data");
    std::fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    sites.tool("lfs", &["setstripe", "-c", &args.stripes.to_string(), &dir.to_string_lossy()])?;
    Ok((sites, dir))
}

/// The delay that the link adds to a round trip.
fn added(rtt: f64) -> Duration {
    Duration::from_secs_f64(if rtt < 1.0 { 0.0 } else { rtt / 1e3 })
}

/// Measures names in place of rates.
fn run_names(args: &WanArgs, round_trip: f64, json: bool) -> Result<(), String> {
    let bar = output::progress(names::STEPS + 1);
    output::step(&bar, "two sites and a mount");
    let (mut sites, dir) = build(args)?;
    let added = Duration::from_secs_f64(round_trip / 1e3);
    let rows = names::measure(&mut sites, &dir, added, |what| output::step(&bar, what));
    bar.finish_and_clear();
    let rows = rows?;
    let figures = rows.iter().flat_map(|row| {
        let figure = |name, unit, value| Figure::own(&row.what, name, unit, Some(value));
        let bound = row.at_most.map(|most| figure("at most", "", most));
        let measured = [
            figure("round trips", "", row.round_trips),
            figure("time", "s", row.took.as_secs_f64()),
            figure("from the servers", "KiB", row.bytes as f64 / 1024.0),
        ];
        measured.into_iter().chain(bound)
    });
    let constants = vec![
        Constant::argument("round trip", round_trip, "ms"),
        Constant::argument("rate of the link", args.rate.bits() as f64 / 1e6, "Mbit/s"),
    ];
    let experiment = Experiment::live("wan-names", constants, figures.collect());
    output::show_experiment(&experiment, json, || ())
}

/// Changes one thing at a time, with as many writers and readers as [`FACTOR_JOBS`], at all round-trip times.
fn run_factors(args: &WanArgs, json: bool) -> Result<(), String> {
    let factors = factors::all()?;
    let bar = output::progress(1 + (factors.len() * args.rtts.len() * 2) as u64);
    output::step(&bar, "two sites and a mount");
    let figures = measure_factors(args, &factors, &bar);
    bar.finish_and_clear();
    let constants = vec![
        Constant::argument("rate of the link", args.rate.bits() as f64 / 1e6, "Mbit/s"),
        Constant::argument("writers and readers", FACTOR_JOBS as f64, ""),
        Constant::argument("OSTs", f64::from(args.osts), ""),
        Constant::argument("largest socket buffers that can be set", window_max()? as f64 / 1024.0, "KiB"),
    ];
    output::show_experiment(&Experiment::live("wan-factors", constants, figures?), json, || ())
}

/// Writers and readers while factors are measured.
const FACTOR_JOBS: usize = 8;

fn measure_factors(args: &WanArgs, factors: &[Factor], bar: &ProgressBar) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for factor in factors {
        // New sites for each, so that nothing is left of the one before.
        let (mut sites, dir) = build(args)?;
        factor.set(&sites)?;
        for rtt in &args.rtts {
            sites.set_rtt(added(*rtt))?;
            for direction in [Direction::Write, Direction::Read] {
                let row = format!("{}, {} at {rtt} ms", factor.name(), direction.name());
                output::step(bar, &row);
                let (moved, model) = measure_factor(args, *factor, (&sites, &dir), *rtt, direction)?;
                let figure = |name, unit, value| Figure::own(&row, name, unit, Some(value));
                figures.push(figure("rate", "MB/s", moved / 1e6));
                figures.push(figure("model", "MB/s", model / 1e6));
                figures.push(figure("rate / model", "%", 100.0 * moved / model));
                if let Some(plain) = plain_with(args, *factor, &sites, *rtt, direction)? {
                    figures.push(figure("plain TCP", "MB/s", plain.bytes_per_second / 1e6));
                    figures.push(figure("connections of plain TCP", "", f64::from(plain.streams)));
                    figures.push(figure("share_of_tcp", "%", 100.0 * moved / plain.bytes_per_second));
                }
            }
            load::remove(&dir, FACTOR_JOBS);
        }
    }
    Ok(figures)
}

/// Measures one direction at sites where a factor was set. Returns bytes a second as they were and as they should be.
fn measure_factor(
    args: &WanArgs,
    factor: Factor,
    (sites, dir): (&Sites, &Path),
    rtt: f64,
    direction: Direction,
) -> Result<(f64, f64), String> {
    let added = added(rtt);
    let conditions = Conditions {
        rate: args.rate.bits() as f64 / 8.0,
        round_trip: added,
        direction,
        osts: FACTOR_JOBS.min(args.osts.into()),
        window_max: window_max()?,
    };
    // As much as should be moved in the time, because a factor may leave little of the rate.
    let model = factor.model(&conditions);
    let bytes = (model * (added * ROUND_TRIPS).max(TIME_MIN).as_secs_f64()) as u64;
    let each = (bytes / FACTOR_JOBS as u64).next_multiple_of(load::BLOCK as u64).max(load::BLOCK as u64);
    sites.drop_caches()?;
    let moved = match direction {
        Direction::Write => load::write(dir, FACTOR_JOBS, each, Cache::Default),
        Direction::Read => load::read(dir, FACTOR_JOBS, each, Cache::Default),
    };
    Ok((moved.map_err(|e| format!("{}: {e}", factor.name()))?, model))
}

/// Plain TCP with socket buffers or a congestion control that were set; none for other factors, which plain TCP does not have.
fn plain_with(
    args: &WanArgs,
    factor: Factor,
    sites: &Sites,
    rtt: f64,
    direction: Direction,
) -> Result<Option<Best>, String> {
    let added = added(rtt);
    let time = (added * ROUND_TRIPS).max(TIME_MIN);
    let plain = match factor {
        Factor::Buffers(size) => {
            let congestion_control = args.congestion_control.as_deref();
            Plain { streams: &[1], time, window: Some(size.allowed(window_max()?)), congestion_control }
        }
        Factor::CongestionControl(name) => {
            let window = (2 * args.rate.bytes_in(added)).max(WINDOW_MIN);
            Plain { streams: &args.streams, time, window: Some(window), congestion_control: Some(name) }
        }
        _ => return Ok(None),
    };
    plain.best(&sites.hosts, direction).map(Some)
}

/// Leaves the sites to other programs.
fn hold(args: &WanArgs) -> Result<(), String> {
    let (mut sites, dir) = build(args)?;
    sites.set_rtt(added(args.rtts.first().copied().unwrap_or_default()))?;
    println!("mounted, with a directory for data: {}", dir.display());
    println!("for lctl, lfs and lnetctl: NACRE_RUN_DIR={}", sites.run_dir().display());
    println!("networks of servers, their router, the client's router and the client:");
    sites.hosts.all().iter().for_each(|host| println!("  nsenter --net={}", host.netns().path()));
    println!("The sites vanish when the standard input ends.");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map(drop).map_err(|e| e.to_string())
}

fn measure(args: &WanArgs, bar: &ProgressBar) -> Result<Results, String> {
    output::step(bar, "two sites and a mount");
    let (mut sites, dir) = build(args)?;
    let mut results = Results::default();
    for rtt in &args.rtts {
        let added = added(*rtt);
        sites.set_rtt(added)?;
        results.measured.push((*rtt, sites.measure_rtt()?.as_secs_f64() * 1e3));
        let time = (added * ROUND_TRIPS).max(TIME_MIN);
        let plain = Plain {
            streams: &args.streams,
            time,
            window: Some((2 * args.rate.bytes_in(added)).max(WINDOW_MIN)),
            congestion_control: args.congestion_control.as_deref(),
        };
        let mut best = [None; 2];
        for (direction, best) in [Direction::Write, Direction::Read].into_iter().zip(&mut best) {
            output::step(bar, format!("{rtt} ms: plain TCP, {}", direction.name()));
            *best = Some(plain.best(&sites.hosts, direction)?);
        }
        let [Some(write), Some(read)] = best else { return Err("plain TCP was not measured".to_owned()) };
        for jobs in args.jobs.iter().copied() {
            let each = (args.rate.bytes_in(time) / jobs as u64).next_multiple_of(load::BLOCK as u64);
            let failed = |e: std::io::Error| format!("{jobs} at once at {rtt} ms: {e}");
            output::step(bar, format!("{rtt} ms: write, {jobs}"));
            sites.drop_caches()?;
            let rate = load::write(&dir, jobs, each, Cache::Default).map_err(failed)?;
            let row = |direction, bytes_per_second, tcp| Row { rtt: *rtt, direction, jobs, bytes_per_second, tcp };
            results.rows.push(row(Direction::Write, rate, write));
            output::step(bar, format!("{rtt} ms: read, {jobs}"));
            sites.drop_caches()?;
            let rate = load::read(&dir, jobs, each, Cache::Default).map_err(failed)?;
            results.rows.push(row(Direction::Read, rate, read));
            load::remove(&dir, jobs);
        }
    }
    Ok(results)
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Write => "write",
            Direction::Read => "read",
        }
    }
}

impl Row {
    fn name(&self) -> String {
        format!("{}, {} at once, {} ms", self.direction.name(), self.jobs, self.rtt)
    }

    /// Percentage of what plain TCP reached.
    fn share(&self) -> f64 {
        100.0 * self.bytes_per_second / self.tcp.bytes_per_second
    }
}

fn experiment(args: &WanArgs, results: &Results) -> Experiment {
    let mut constants = vec![
        Constant::argument("rate of the link", args.rate.bits() as f64 / 1e6, "Mbit/s"),
        Constant::argument("OSTs", f64::from(args.osts), ""),
        Constant::argument("stripes of a file", f64::from(args.stripes), ""),
    ];
    constants.extend(
        results
            .measured
            .iter()
            .map(|(rtt, ms)| Constant::argument(&format!("round trip measured at {rtt}"), *ms, "ms")),
    );
    let figures = results.rows.iter().flat_map(|row| {
        [
            Figure::own(&row.name(), "rate", "MB/s", Some(row.bytes_per_second / 1e6)),
            Figure::own(&row.name(), "plain TCP", "MB/s", Some(row.tcp.bytes_per_second / 1e6)),
            Figure::own(&row.name(), "connections of plain TCP", "", Some(f64::from(row.tcp.streams))),
            Figure::own(&row.name(), "share_of_tcp", "%", Some(row.share())),
        ]
    });
    Experiment::live("wan", constants, figures.collect())
}

fn print_rows(results: &Results) {
    let header = ["round trip", "", "at once", "nacre", "plain TCP", "connections", "of TCP"];
    let cells = results.rows.iter().map(|row| {
        let measured = results.measured.iter().find(|(rtt, _)| *rtt == row.rtt).map_or(row.rtt, |(_, ms)| *ms);
        let megabytes = |rate: f64| format!("{:.1} MB/s", rate / 1e6);
        vec![
            format!("{measured:.1} ms"),
            row.direction.name().to_owned(),
            row.jobs.to_string(),
            megabytes(row.bytes_per_second),
            megabytes(row.tcp.bytes_per_second),
            row.tcp.streams.to_string(),
            format!("{:.0} %", row.share()),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\nWrites end with fsync. Plain TCP is the best of iperf3's, between the routers, its beginning included.\n"
    );
}

fn plot(args: &WanArgs, rows: &[Row]) -> String {
    let at = |rtt: f64| args.rtts.iter().position(|other| *other == rtt);
    let of =
        |direction: Direction, jobs: usize| rows.iter().filter(move |r| (r.direction, r.jobs) == (direction, jobs));
    let line = |name: String, dashed, points: Vec<(usize, f64)>| Line { name, points, dashed };
    let plots = [Direction::Write, Direction::Read].map(|direction| {
        let mut lines: Vec<Line> = Vec::new();
        for jobs in args.jobs.iter().copied() {
            let points = of(direction, jobs).filter_map(|row| Some((at(row.rtt)?, row.bytes_per_second / 1e6)));
            lines.push(line(format!("nacre, {jobs} at once"), false, points.collect()));
        }
        let first = args.jobs.first().copied().unwrap_or_default();
        let plain = of(direction, first).filter_map(|row| Some((at(row.rtt)?, row.tcp.bytes_per_second / 1e6)));
        lines.push(line("plain TCP".to_owned(), true, plain.collect()));
        Plot {
            title: format!("{}s over a link of {} Mbit/s", direction.name(), args.rate.bits() / 1_000_000),
            x_title: "round trip, ms".to_owned(),
            y_title: "MB/s".to_owned(),
            x_labels: args.rtts.iter().map(f64::to_string).collect(),
            lines,
        }
    });
    plot::svg(&plots)
}
