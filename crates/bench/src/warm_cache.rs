//! `nacre bench warm-cache`: repeated use of cached data, beside the null FUSE file system, of which the kernel may keep all,
//! and the local disk's page cache. The requests sent meanwhile are counted: there should be none.

use crate::load;
use crate::mapping::Mapping;
use crate::output::{self, median};
use crate::places::{PLACES, Place, Places};
use crate::sizes::parse_size;
use clap::Args;
use indicatif::ProgressBar;
use nacre_base::{size, table};
use nacre_experiment::plot::{Bars, svg_bars};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `nacre bench warm-cache`.
#[derive(Args, Debug)]
pub(crate) struct WarmCache {
    /// A directory on a local disk: the disk to compare with, and the place for the file system's storage
    dir: PathBuf,
    /// Bytes of the file that is read again
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Bytes of it that are read by 4 KiB, and half of those that are mapped
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    size_small: u64,
    /// Files of the tree
    #[arg(long, default_value_t = 4000)]
    files: u32,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Kind of repeated operation.
#[derive(Debug, Clone, Copy)]
enum What {
    ReadLarge,
    /// Four jobs, each a quarter of the file.
    ReadLargeByFour,
    ReadSmall,
    /// One byte of each page of a new mapping.
    Touch,
    Stat,
    List,
    Open,
}

const ALL: [What; 7] =
    [What::ReadLarge, What::ReadLargeByFour, What::ReadSmall, What::Touch, What::Stat, What::List, What::Open];

impl What {
    fn name(self) -> &'static str {
        match self {
            What::ReadLarge => "read 1 MiB",
            What::ReadLargeByFour => "read 1 MiB, 4 jobs",
            What::ReadSmall => "read 4 KiB",
            What::Touch => "map, touch each page",
            What::Stat => "stat",
            What::List => "list, per entry",
            What::Open => "open, close",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            What::ReadLarge | What::ReadLargeByFour | What::ReadSmall | What::Touch => "MB/s",
            What::Stat | What::List | What::Open => "op/s",
        }
    }
}

/// One kind in all places: medians.
#[derive(Debug, Clone, Serialize)]
struct Row {
    what: &'static str,
    /// MB/s for reads, operations per second otherwise.
    unit: &'static str,
    nacre: f64,
    null_fuse: f64,
    local_disk: f64,
    percent_of_null_fuse: f64,
    percent_of_local_disk: f64,
    /// Requests that Nacre's client sent during all timed passes.
    rpcs: u64,
}

const PAGE: usize = 4096;

/// Number of directories of the tree.
const DIRECTORIES: u32 = 20;

/// Files that are used again in a place.
struct Cached {
    stream: PathBuf,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &WarmCache, json: bool) -> Result<(), String> {
    let bar = output::progress((ALL.len() * PLACES.len()) as u64 * u64::from(args.runs) + 1);
    let result = measure(args, &bar);
    bar.finish_and_clear();
    let rows = result?;
    output::show(&rows, json, |rows| print_rows(args, rows))?;
    output::plot(args.plot.as_deref(), || svg_bars(&bars(&rows)))
}

fn measure(args: &WarmCache, bar: &ProgressBar) -> Result<Vec<Row>, String> {
    output::step(bar, "making files");
    let places = Places::with_pages(&args.dir)?;
    let mut cached = Vec::new();
    for place in PLACES {
        let made = make(&places.dir(place), args);
        cached.push(made.map_err(|e| format!("cannot make files on {}: {e}", place.name()))?);
    }
    // This also writes dirty data, which would otherwise be written back during other measurements.
    places.drop_caches()?;
    let mut rows = Vec::new();
    for what in ALL {
        let mut taken: [Vec<f64>; 3] = Default::default();
        let mut rpcs = 0;
        for _ in 0..args.runs {
            for ((place, cached), taken) in PLACES.into_iter().zip(&cached).zip(&mut taken) {
                output::step(bar, format!("{}, {}", what.name(), place.name()));
                let failed = |e: io::Error| format!("{} on {}: {e}", what.name(), place.name());
                // Twice, because the kernel may cache in the second pass what the client has learnt in the first.
                for _ in 0..2 {
                    pass(what, cached, args).map_err(failed)?;
                }
                let before = if place == Place::Nacre { requests(&places)? } else { 0 };
                let begun = Instant::now();
                let amount = pass(what, cached, args).map_err(failed)?;
                taken.push(amount / begun.elapsed().as_secs_f64());
                rpcs += if place == Place::Nacre { requests(&places)? - before } else { 0 };
            }
        }
        rows.push(row(what, taken.map(median), rpcs));
    }
    Ok(rows)
}

fn row(what: What, [local_disk, null_fuse, nacre]: [f64; 3], rpcs: u64) -> Row {
    let percent_of = |other| 100.0 * nacre / other;
    let (percent_of_null_fuse, percent_of_local_disk) = (percent_of(null_fuse), percent_of(local_disk));
    let (what, unit) = (what.name(), what.unit());
    Row { what, unit, nacre, null_fuse, local_disk, percent_of_null_fuse, percent_of_local_disk, rpcs }
}

fn make(dir: &Path, args: &WarmCache) -> io::Result<Cached> {
    load::write(dir, 1, args.size, load::Cache::Default)?;
    let directories: Vec<PathBuf> = (0..DIRECTORIES).map(|d| dir.join(format!("d{d}"))).collect();
    directories.iter().try_for_each(std::fs::create_dir)?;
    let files: Vec<PathBuf> =
        (0..args.files).map(|f| directories[(f % DIRECTORIES) as usize].join(format!("f{f}"))).collect();
    files.iter().try_for_each(|f| std::fs::write(f, [7; 1000]))?;
    Ok(Cached { stream: load::path_of(dir, 0), directories, files })
}

/// Runs one pass over everything. Returns MB, or the number of operations.
fn pass(what: What, cached: &Cached, args: &WarmCache) -> io::Result<f64> {
    match what {
        What::ReadLarge => read(&cached.stream, 0..args.size, load::BLOCK),
        What::ReadLargeByFour => {
            let quarter = args.size / 4;
            let read_quarter = |n| read(&cached.stream, n * quarter..(n + 1) * quarter, load::BLOCK);
            std::thread::scope(|scope| {
                let jobs: Vec<_> = (0..4).map(|n| scope.spawn(move || read_quarter(n))).collect();
                let joined = jobs.into_iter().map(|job| job.join().map_err(|_| io::Error::other("a job panicked"))?);
                joined.sum()
            })
        }
        What::ReadSmall => read(&cached.stream, 0..args.size.min(args.size_small), PAGE),
        What::Touch => {
            let len = args.size.min(2 * args.size_small);
            let map = Mapping::new(&File::open(&cached.stream)?, len as usize, libc::PROT_READ)?;
            std::hint::black_box(map.bytes().iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum::<u64>());
            Ok(len as f64 / 1e6)
        }
        What::Stat => {
            cached.files.iter().try_for_each(|f| std::fs::symlink_metadata(f).map(drop))?;
            Ok(cached.files.len() as f64)
        }
        What::List => {
            let mut count = 0;
            for d in &cached.directories {
                count += std::fs::read_dir(d)?.count();
            }
            if count != cached.files.len() {
                return Err(io::Error::other(format!("{count} entries listed of {}", cached.files.len())));
            }
            Ok(count as f64)
        }
        What::Open => {
            cached.files.iter().try_for_each(|f| File::open(f).map(drop))?;
            Ok(cached.files.len() as f64)
        }
    }
}

fn read(path: &Path, range: Range<u64>, block: usize) -> io::Result<f64> {
    let file = File::open(path)?;
    let mut buffer = vec![0; block];
    let mut at = range.start;
    while at < range.end {
        match file.read_at(&mut buffer, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => at += n as u64,
        }
    }
    Ok((range.end - range.start) as f64 / 1e6)
}

/// Requests that the client has sent to MDT and OSTs, except those that a timer sends.
pub(crate) fn requests(places: &Places) -> Result<u64, String> {
    let mut count = 0;
    for pattern in ["mdc.*.stats", "osc.*.stats"] {
        for (_, operations) in places.nacre().get_params(pattern)? {
            let of_object = operations.as_object().into_iter().flatten();
            let requests = of_object.filter(|(name, _)| is_request(name));
            count += requests.filter_map(|(_, sums)| sums["samples"].as_u64()).sum::<u64>();
        }
    }
    Ok(count)
}

/// True if this counter counts requests of one kind that a timer does not send.
fn is_request(name: &str) -> bool {
    ["ldlm_", "mds_", "ost_"].iter().any(|kind| name.starts_with(kind)) && !name.ends_with("_statfs")
}

fn print_rows(args: &WarmCache, rows: &[Row]) {
    let header = ["", "nacre", "null FUSE", "local disk", "of null FUSE", "of local disk", "RPCs"];
    let cells = rows.iter().map(|r| {
        let rate = |v: f64| format!("{v:.0} {}", r.unit);
        vec![
            r.what.to_owned(),
            rate(r.nacre),
            rate(r.null_fuse),
            rate(r.local_disk),
            format!("{:.0} %", r.percent_of_null_fuse),
            format!("{:.0} %", r.percent_of_local_disk),
            r.rpcs.to_string(),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\nOf a file of {} and {} small ones in {DIRECTORIES} directories, used before. Medians of {} runs; requests of all of \
         them. The kernel may keep all that the null file system has, as Nacre's.",
        size::human(args.size),
        args.files,
        args.runs
    );
}

fn bars(rows: &[Row]) -> Bars {
    let names = [Place::Nacre, Place::NullFuse].map(|p| p.name().to_owned()).to_vec();
    let groups = rows.iter().map(|r| (r.what.to_owned(), vec![r.percent_of_null_fuse, 100.0])).collect();
    let value_title = "% of the null FUSE file system's rate".to_owned();
    Bars { title: "What is cached, used again".to_owned(), value_title, names, groups }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_and_averages_are_no_requests() {
        let names = ["req_waittime", "mds_getattr", "ldlm_cancel", "obd_ping", "mds_statfs", "ost_read"];
        let requests: Vec<&str> = names.into_iter().filter(|name| is_request(name)).collect();
        assert_eq!(requests, ["mds_getattr", "ldlm_cancel", "ost_read"]);
    }
}
