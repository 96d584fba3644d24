//! `nacre bench obdfilter-survey`: an OST and a client of it in this process, without files, clients' locks or a network,
//! for a number of objects, a number of threads and a request size, like the `disk` case of Lustre's survey of the same
//! name. Each way to answer writes takes turns with fio on the same disk, so that a drifting disk does not decide the
//! result.

mod ost;
mod raw;

use crate::output::{self, median};
use crate::sizes::parse_size;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use nacre_experiment::{Constant, Experiment, Figure};
use ost::{Rates, TestOst};
use raw::Raw;
use std::path::PathBuf;

/// Arguments of `nacre bench obdfilter-survey`: the original's variables, each axis in powers of two.
#[derive(Args, Debug)]
pub(crate) struct ObdfilterSurvey {
    /// A directory on the disk to measure
    dir: PathBuf,
    /// A directory on another disk for the journal of mode external
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Bytes of each test
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Fewest objects
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    nobjlo: u32,
    /// Most objects
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    nobjhi: u32,
    /// Fewest threads; there is at least one for each object
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    thrlo: u32,
    /// Most threads
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    thrhi: u32,
    /// KiB of the smallest request
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(4..=65536))]
    rszlo: u32,
    /// KiB of the largest
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(4..=65536))]
    rszhi: u32,
    /// Tests, in this order
    #[arg(long, value_delimiter = ',', default_value = "write,rewrite,read")]
    tests: Vec<Test>,
    /// When writes are answered
    #[arg(long, value_delimiter = ',', default_value = "sync,async,memory")]
    modes: Vec<Mode>,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

/// The moment at which a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// After the commit.
    Sync,
    /// After the commit, to a journal on another disk.
    External,
    /// When the data is on the device.
    Async,
    /// When the data is in memory.
    Memory,
}

/// Operation on the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    Write,
    Rewrite,
    Read,
}

/// One point of the survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// Bytes of one request.
    pub(crate) request: u64,
    pub(crate) objects: u32,
    pub(crate) threads: u32,
    /// Bytes of all requests.
    pub(crate) bytes: u64,
}

/// One mode at one point.
#[derive(Debug, Clone)]
struct Row {
    mode: Mode,
    point: Point,
    tests: Vec<Outcome>,
}

/// One test in one mode: medians of all runs.
#[derive(Debug, Clone)]
struct Outcome {
    test: Test,
    /// 2^20 bytes a second.
    mb_per_s: f64,
    /// Rates of the slowest and the fastest second of the last run; none if it was too short.
    seconds: Option<(f64, f64)>,
    /// Rate of fio, or of plain threads if there is no fio, right before and after.
    raw_mb_per_s: f64,
    percent_of_raw: f64,
}

const MIB: f64 = 1_048_576.0;

pub(crate) fn run(args: &ObdfilterSurvey, json: bool) -> Result<(), String> {
    let points = points(args);
    if points.is_empty() {
        return Err("no number of threads is as large as a number of objects".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    let raw = Raw::new(&args.dir)?;
    let bar = output::progress(points.len() as u64 * args.modes.len() as u64 * u64::from(args.runs));
    let mut rows = Vec::new();
    let ost = runtime.block_on(TestOst::start(&args.dir, args.journal.as_deref(), &args.modes))?;
    let mut result = Ok(());
    for point in &points {
        match measure(args, &runtime, &ost, &raw, *point, &bar) {
            Ok(measured) => rows.extend(measured),
            Err(e) => result = result.and(Err(e)),
        }
    }
    runtime.block_on(ost.stop());
    bar.finish_and_clear();
    result?;
    output::show_experiment(&report(args, &rows, raw.name()), json, || print_lines(&rows))
}

/// The points of the survey. The axes go from low to high in powers of two, as in the original.
fn points(args: &ObdfilterSurvey) -> Vec<Point> {
    let axis =
        |low: u32, high: u32| std::iter::successors(Some(low), |n| n.checked_mul(2)).take_while(move |n| *n <= high);
    let mut points = Vec::new();
    for kib in axis(args.rszlo, args.rszhi) {
        for objects in axis(args.nobjlo, args.nobjhi) {
            for threads in axis(args.thrlo, args.thrhi).filter(|threads| *threads >= objects) {
                let request = u64::from(kib) << 10;
                let bytes = (args.size / request / u64::from(threads)).max(1) * request * u64::from(threads);
                points.push(Point { request, objects, threads, bytes });
            }
        }
    }
    points
}

/// All modes at one point, each between two raw measurements.
fn measure(
    args: &ObdfilterSurvey,
    runtime: &tokio::runtime::Runtime,
    ost: &TestOst,
    raw: &Raw,
    point: Point,
    bar: &ProgressBar,
) -> Result<Vec<Row>, String> {
    let mut taken: Vec<Vec<Taken>> =
        args.modes.iter().map(|_| args.tests.iter().map(|_| Taken::default()).collect()).collect();
    for _ in 0..args.runs {
        for (mode, taken) in args.modes.iter().zip(&mut taken) {
            output::step(bar, format!("{mode:?}, {} objects, {} threads", point.objects, point.threads).to_lowercase());
            let parts = ost.parts(*mode)?;
            let objects = runtime.block_on(ost.make_objects(*mode, point.objects))?;
            for (test, taken) in args.tests.iter().zip(taken) {
                let before = raw.measure(*test, point, parts)?;
                let rates = runtime.block_on(ost.measure(*mode, *test, point, &objects))?;
                let after = raw.measure(*test, point, parts)?;
                taken.add(&rates, f64::midpoint(before, after));
            }
            runtime.block_on(ost.destroy_objects(*mode, objects))?;
            raw.remove();
        }
    }
    let outcome = |(test, taken): (&Test, Taken)| taken.outcome(*test);
    let row = |(mode, taken): (&Mode, Vec<Taken>)| Row {
        mode: *mode,
        point,
        tests: args.tests.iter().zip(taken).map(outcome).collect(),
    };
    Ok(args.modes.iter().zip(taken).map(row).collect())
}

/// The runs of one test in one mode.
#[derive(Default)]
struct Taken {
    ours: Vec<f64>,
    raw: Vec<f64>,
    shares: Vec<f64>,
    seconds: Option<(f64, f64)>,
}

impl Taken {
    fn add(&mut self, rates: &Rates, raw: f64) {
        self.ours.push(rates.per_second / MIB);
        self.raw.push(raw / MIB);
        self.shares.push(100.0 * rates.per_second / raw);
        self.seconds = rates.seconds.map(|(min, max)| (min / MIB, max / MIB));
    }

    fn outcome(self, test: Test) -> Outcome {
        Outcome {
            test,
            mb_per_s: median(self.ours),
            seconds: self.seconds,
            raw_mb_per_s: median(self.raw),
            percent_of_raw: median(self.shares),
        }
    }
}

/// Prints the original's lines.
fn print_lines(rows: &[Row]) {
    for row in rows {
        let Point { request, objects, threads, bytes } = row.point;
        let mode = format!("{:?}", row.mode).to_lowercase();
        print!("{mode:<8} ost {:2} sz {:8}K rsz {:4}K obj {objects:4} thr {threads:4}", 1, bytes >> 10, request >> 10);
        for outcome in &row.tests {
            let test = format!("{:?}", outcome.test).to_lowercase();
            let range = outcome
                .seconds
                .map_or_else(|| "            SHORT".to_owned(), |(min, max)| format!("[{min:7.2}, {max:7.2}]"));
            print!(" {test} {:7.2} {range}", outcome.mb_per_s);
        }
        println!();
    }
    println!(
        "\nMedians; shares are of the raw runs right before and after, which write as many files of the same sizes with as many\n\
         O_DIRECT requests at a time. Writes end with all of it durable, raw ones too.\n"
    );
}

/// The results in the experiments' form. The paper's shares come from another machine: they are information, not a bar.
fn report(args: &ObdfilterSurvey, rows: &[Row], raw: &str) -> Experiment {
    let constants = vec![
        Constant::argument("bytes of a test", args.size as f64 / MIB, "MiB"),
        Constant::argument("runs", f64::from(args.runs), ""),
    ];
    let figures = rows.iter().flat_map(|row| row.tests.iter().flat_map(|outcome| figures(row, outcome, raw))).collect();
    Experiment::live("obdfilter-survey", constants, figures)
}

fn figures(row: &Row, outcome: &Outcome, raw: &str) -> Vec<Figure> {
    let Point { request, objects, threads, .. } = row.point;
    let (mode, test) = (format!("{:?}", row.mode).to_lowercase(), format!("{:?}", outcome.test).to_lowercase());
    let name = format!("{mode}, {}K, {objects} objects, {threads} threads, {test}", request >> 10);
    let paper = match (row.mode, outcome.test) {
        (Mode::Sync, Test::Write) => Some(24.9),
        (Mode::External, Test::Write) => Some(58.7),
        (Mode::Async, Test::Write) => Some(93.0),
        _ => None,
    };
    vec![
        Figure::own(&name, "rate", "MiB/s", Some(outcome.mb_per_s)),
        Figure::own(&name, raw, "MiB/s", Some(outcome.raw_mb_per_s)),
        Figure::own(&name, &format!("of {raw}"), "%", Some(outcome.percent_of_raw)).with_paper(paper),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn args(dir: PathBuf) -> ObdfilterSurvey {
        ObdfilterSurvey {
            journal: Some(dir.clone()),
            dir,
            size: 4 << 20,
            nobjlo: 1,
            nobjhi: 2,
            thrlo: 1,
            thrhi: 4,
            rszlo: 64,
            rszhi: 64,
            tests: vec![Test::Write, Test::Rewrite, Test::Read],
            modes: vec![Mode::Sync, Mode::External, Mode::Async, Mode::Memory],
            runs: 1,
        }
    }

    #[test]
    fn the_axes_are_powers_of_two_with_a_thread_for_each_object() {
        let points: Vec<_> = points(&args(PathBuf::new())).iter().map(|p| (p.objects, p.threads)).collect();
        assert_eq!(points, [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]);
    }

    #[test]
    fn the_form_has_a_row_for_each_mode_point_and_test() {
        let point = Point { request: 1 << 20, objects: 4, threads: 16, bytes: 1 << 30 };
        let outcome =
            Outcome { test: Test::Write, mb_per_s: 180.0, seconds: None, raw_mb_per_s: 200.0, percent_of_raw: 90.0 };
        let rows = [Row { mode: Mode::Async, point, tests: vec![outcome] }];
        let experiment = report(&args(PathBuf::new()), &rows, "fio");
        assert_eq!(experiment.ours("async, 1024K, 4 objects, 16 threads, write", "of fio"), Some(90.0));
        assert_eq!(experiment.figures[2].paper, Some(93.0));
        assert!(experiment.seed.is_none() && experiment.misses().count() == 0, "another machine is no miss");
    }

    #[test]
    fn every_mode_writes_and_reads_through_the_rpc_layer() {
        let dir = tempfile::tempdir().unwrap();
        let args = args(dir.path().to_owned());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let ost = TestOst::start(&args.dir, args.journal.as_deref(), &args.modes).await.unwrap();
            let point = Point { request: 64 << 10, objects: 2, threads: 4, bytes: 4 << 20 };
            for mode in args.modes {
                let objects = ost.make_objects(mode, 2).await.unwrap();
                for test in [Test::Write, Test::Rewrite, Test::Read] {
                    assert!(ost.measure(mode, test, point, &objects).await.unwrap().per_second > 0.0);
                }
                ost.destroy_objects(mode, objects).await.unwrap();
            }
            ost.stop().await;
        });
    }
}
