//! `nacre bench small-pieces`: programs whose reads and writes are far smaller than an RPC. Each is timed on the local
//! disk, on the null FUSE file system and on Nacre. Then four jobs write and read records that are not a multiple of a
//! page, first in a file for each job, then all in one file.

pub(crate) mod programs;

use crate::output::{self, median};
use crate::places::{PLACES, Place, Places, settle};
use crate::sizes::parse_size;
use crate::warm_cache::requests;
use clap::Args;
use indicatif::ProgressBar;
use nacre_base::table;
use programs::{ALL, Program, check};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `nacre bench small-pieces`.
#[derive(Args, Debug)]
pub(crate) struct SmallPieces {
    /// A directory on a local disk: the disk to compare with, and the place for the file system's storage
    dir: PathBuf,
    /// Bytes of the file that has a few bytes written in each page
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    size: u64,
    /// Appends of 4 bytes
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    appends: u64,
    /// Blocks of 512 bytes
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    blocks: u64,
    /// Rewrites of a small table under a lock file by one job alone, in each of three directories; xfstests has 10,000
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    renames: u64,
    /// Bytes of each of the 15 files with holes
    #[arg(long, default_value = "2M", value_parser = parse_size)]
    holes: u64,
    /// Run only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<programs::Program>,
    /// Bytes of all records together
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    records: u64,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

/// Size of a record, and number of jobs that write and read them: as in IO500's hard test.
const RECORD: usize = 47_008;
const JOBS: usize = 4;

/// One program at all places: medians.
#[derive(Debug, Clone, Serialize)]
struct Row {
    what: String,
    nacre_s: f64,
    null_fuse_s: f64,
    local_disk_s: f64,
    /// Median of the ratios of each run.
    times_null_fuse: f64,
    /// Requests that Nacre's client sent during one run.
    rpcs: u64,
}

/// Records of one shared file compared with records of a file for each job: medians.
#[derive(Debug, Clone, Serialize)]
struct Records {
    what: &'static str,
    own_files_mb_per_s: f64,
    shared_file_mb_per_s: f64,
    /// Median of the percentages of each run.
    percent_of_own_files: f64,
    /// Requests sent during the run with the shared file.
    rpcs: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Line {
    Program(Row),
    Records(Records),
}

pub(crate) fn run(args: &SmallPieces, json: bool) -> Result<(), String> {
    let steps: usize = chosen(args).iter().map(|p| if *p == Program::Records { 2 } else { PLACES.len() }).sum();
    let bar = output::progress(steps as u64 * u64::from(args.runs));
    let result = measure(args, &bar);
    bar.finish_and_clear();
    output::show(&result?, json, |lines| print_lines(args, lines))
}

fn measure(args: &SmallPieces, bar: &ProgressBar) -> Result<Vec<Line>, String> {
    let places = Places::new(&args.dir)?;
    let mut lines = Vec::new();
    for chosen in chosen(args) {
        match chosen {
            Program::Records => lines.extend(records(args, &places, bar)?.map(Line::Records)),
            _ => lines.extend(program(args, &places, *chosen, bar)?.into_iter().map(Line::Program)),
        }
    }
    Ok(lines)
}

fn chosen(args: &SmallPieces) -> &[Program] {
    if args.only.is_empty() { &ALL } else { &args.only }
}

/// Measures all places in each run, so that changes of the machine affect all of them.
fn program(args: &SmallPieces, places: &Places, program: Program, bar: &ProgressBar) -> Result<Vec<Row>, String> {
    let phases = program.phases(args);
    let mut taken = vec![<[Vec<f64>; 3]>::default(); phases.len()];
    let mut rpcs = vec![0; phases.len()];
    for _ in 0..args.runs {
        for (at, place) in PLACES.into_iter().enumerate() {
            output::step(bar, format!("{}, {}", phases[0], place.name()));
            let failed = |e: io::Error| format!("{} on {}: {e}", phases[0], place.name());
            let dir = places.dir(place).join("pieces");
            std::fs::create_dir(&dir).map_err(failed)?;
            program.prepare(&dir).map_err(failed)?;
            // So that data left dirty by others is not written during this measurement.
            settle();
            for phase in 0..phases.len() {
                let is_ours = place == Place::Nacre;
                let before = if is_ours { requests(places)? } else { 0 };
                let begun = Instant::now();
                program.run(phase, &dir, args).map_err(failed)?;
                taken[phase][at].push(begun.elapsed().as_secs_f64());
                if is_ours {
                    rpcs[phase] = requests(places)? - before;
                }
            }
            std::fs::remove_dir_all(&dir).map_err(failed)?;
        }
    }
    let mut rows: Vec<Row> =
        phases.into_iter().zip(&taken).zip(rpcs).map(|((what, taken), rpcs)| Row::new(what, taken, rpcs)).collect();
    if rows.len() > 1 {
        let sum =
            |at: usize| (0..args.runs as usize).map(|run| taken.iter().map(|phase| phase[at][run]).sum()).collect();
        let rpcs = rows.iter().map(|row| row.rpcs).sum();
        rows.push(Row::new("together".to_owned(), &[sum(0), sum(1), sum(2)], rpcs));
    }
    Ok(rows)
}

impl Row {
    /// `taken`: seconds at each of [`PLACES`], run by run.
    fn new(what: String, taken: &[Vec<f64>; 3], rpcs: u64) -> Row {
        let [_, null, ours] = taken;
        let times_null_fuse = median(ours.iter().zip(null).map(|(ours, null)| ours / null).collect());
        let [local_disk_s, null_fuse_s, nacre_s] = taken.clone().map(median);
        Row { what, nacre_s, null_fuse_s, local_disk_s, times_null_fuse, rpcs }
    }
}

/// How the jobs use files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Own,
    Shared,
}

/// Writes records, and reads them back with nothing cached.
fn records(
    args: &SmallPieces,
    places: &Places,
    bar: &ProgressBar,
) -> Result<impl Iterator<Item = Records> + use<>, String> {
    let dir = places.dir(Place::Nacre);
    let each = (args.records / (JOBS * RECORD) as u64).max(1);
    let mut taken = <[[Vec<f64>; 2]; 2]>::default();
    let mut rpcs = [0; 2];
    for _ in 0..args.runs {
        for (at, files) in [Files::Own, Files::Shared].into_iter().enumerate() {
            output::step(bar, format!("{RECORD}-byte records, {files:?}"));
            for (phase, job) in [write_records, read_records].into_iter().enumerate() {
                places.drop_caches()?;
                let before = requests(places)?;
                let failed = |e: io::Error| format!("{RECORD}-byte records, {files:?}: {e}");
                let rate = side_by_side(&dir, files, each, job).map_err(failed)?;
                taken[phase][at].push(rate / 1e6);
                rpcs[phase] = requests(places)? - before;
            }
            for job in 0..JOBS {
                let _ = std::fs::remove_file(dir.join(name(files, job)));
            }
        }
    }
    let whats = ["written by four jobs, with fsync", "read back, nothing cached"];
    Ok(whats.into_iter().zip(taken).zip(rpcs).map(|((what, [own, shared]), rpcs)| {
        let shares = own.iter().zip(&shared).map(|(own, shared)| 100.0 * shared / own).collect();
        let (own_files_mb_per_s, shared_file_mb_per_s) = (median(own), median(shared));
        Records { what, own_files_mb_per_s, shared_file_mb_per_s, percent_of_own_files: median(shares), rpcs }
    }))
}

fn name(files: Files, job: usize) -> String {
    match files {
        Files::Own => format!("records-{job}"),
        Files::Shared => "records".to_owned(),
    }
}

type Job = fn(&Path, u64, &dyn Fn(u64) -> u64, u8) -> io::Result<()>;

/// Runs all jobs. Returns the bytes per second of all of them together.
fn side_by_side(dir: &Path, files: Files, each: u64, job: Job) -> io::Result<f64> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let start = |j: usize| {
            let path = dir.join(name(files, j));
            scope.spawn(move || {
                let place = move |i: u64| match files {
                    Files::Own => i * RECORD as u64,
                    Files::Shared => (i * JOBS as u64 + j as u64) * RECORD as u64,
                };
                job(&path, each, &place, j as u8)
            })
        };
        let running: Vec<_> = (0..JOBS).map(start).collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| io::Error::other("a job panicked"))?)
    })?;
    Ok((each * (JOBS * RECORD) as u64) as f64 / begun.elapsed().as_secs_f64())
}

fn write_records(path: &Path, count: u64, place: &dyn Fn(u64) -> u64, job: u8) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let mut record = vec![job; RECORD];
    for i in 0..count {
        record[..8].copy_from_slice(&i.to_le_bytes());
        file.write_all_at(&record, place(i))?;
    }
    file.sync_all()
}

fn read_records(path: &Path, count: u64, place: &dyn Fn(u64) -> u64, job: u8) -> io::Result<()> {
    let file = File::open(path)?;
    let mut record = vec![0; RECORD];
    for i in 0..count {
        file.read_exact_at(&mut record, place(i))?;
        check(record[..8] == i.to_le_bytes() && record[RECORD - 1] == job)?;
    }
    Ok(())
}

fn print_lines(args: &SmallPieces, lines: &[Line]) {
    let (mut programs, mut records) = (Vec::new(), Vec::new());
    for line in lines {
        match line {
            Line::Program(r) => {
                let s = |v: f64| format!("{v:.2} s");
                let times = format!("{:.1}", r.times_null_fuse);
                programs.push(vec![
                    r.what.clone(),
                    s(r.nacre_s),
                    s(r.null_fuse_s),
                    s(r.local_disk_s),
                    times,
                    r.rpcs.to_string(),
                ]);
            }
            Line::Records(r) => {
                let rate = |v: f64| format!("{v:.0} MB/s");
                let share = format!("{:.0} %", r.percent_of_own_files);
                records.push(vec![
                    r.what.to_owned(),
                    rate(r.own_files_mb_per_s),
                    rate(r.shared_file_mb_per_s),
                    share,
                    r.rpcs.to_string(),
                ]);
            }
        }
    }
    print!("{}", table::text(&["", "nacre", "null FUSE", "local disk", "x null FUSE", "RPCs"], &programs));
    if !records.is_empty() {
        println!();
        print!("{}", table::text(&["47,008-byte records", "own files", "one file", "of own files", "RPCs"], &records));
    }
    println!("\nMedians of {} runs, ratios run by run. The null file system has its data in memory.", args.runs);
}
