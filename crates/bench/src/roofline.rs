//! `nacre bench roofline`: how near a mount comes to its limits: the disk under it, the null FUSE file system through the
//! same FUSE code, and loopback TCP. All are measured in one run, in turn, because machines drift.

use crate::load::{self, Cache, Metadata, MetadataRates};
use crate::output::{self, median};
use crate::places::{NullMount, Scratch};
use crate::sizes::parse_size;
use clap::Args;
use indicatif::ProgressBar;
use nacre_base::table;
use nacre_nullfs::NullOptions;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `nacre bench roofline`.
#[derive(Args, Debug)]
pub(crate) struct Roofline {
    /// A directory on the mount to measure
    dir: PathBuf,
    /// A directory on the disk that the OSTs use, for the raw limit
    #[arg(long, value_name = "DIR")]
    raw: PathBuf,
    /// Bytes each job writes and reads
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Files for the metadata rates
    #[arg(long, default_value_t = 4000)]
    files: u32,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

/// One figure of the mount, with its limits.
#[derive(Debug, Clone, Serialize)]
struct Row {
    what: String,
    /// MB/s for streams, operations per second otherwise.
    unit: &'static str,
    nacre: f64,
    raw: f64,
    null_fuse: f64,
    loopback_tcp: Option<f64>,
    /// Percentage of the smaller of raw and null FUSE.
    percent_of_limit: f64,
}

/// Numbers of jobs for streams.
const JOBS: [usize; 2] = [1, 4];

pub(crate) fn run(args: &Roofline, json: bool) -> Result<(), String> {
    // Like the mount: the kernel may cache nothing.
    let null = NullMount::new(NullOptions { valid: Duration::ZERO, ..NullOptions::default() })?;
    let (nacre, raw) = (Scratch::new(&args.dir)?, Scratch::new(&args.raw)?);
    let steps = u64::from(args.runs) * (JOBS.len() as u64 * 6 + 4);
    let bar = output::progress(steps);
    let result = measure(args, &nacre.0, &raw.0, &null.dir, &bar);
    bar.finish_and_clear();
    output::show(&result.map_err(|e| e.to_string())?, json, print_rows)
}

fn measure(args: &Roofline, nacre: &Path, raw: &Path, null: &Path, bar: &ProgressBar) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let take = |what: &str, f: &mut dyn FnMut() -> io::Result<f64>| -> io::Result<f64> {
        output::step(bar, what);
        f()
    };
    let mut tcp = Vec::new();
    for _ in 0..args.runs {
        tcp.push(take("loopback TCP", &mut || load::loopback_tcp(args.size))? / 1e6);
    }
    let tcp = median(tcp);
    for jobs in JOBS {
        let each = args.size / jobs as u64;
        let mut taken: [[Vec<f64>; 3]; 2] = Default::default();
        for _ in 0..args.runs {
            for (place, (dir, cache)) in
                [(nacre, Cache::Default), (raw, Cache::Direct), (null, Cache::Default)].into_iter().enumerate()
            {
                let name = ["nacre", "raw disk", "null FUSE"][place];
                taken[0][place]
                    .push(take(&format!("write, {name}"), &mut || load::write(dir, jobs, each, cache))? / 1e6);
                taken[1][place].push(take(&format!("read, {name}"), &mut || load::read(dir, jobs, each, cache))? / 1e6);
                load::remove(dir, jobs);
            }
        }
        for (direction, values) in ["write", "read"].into_iter().zip(taken) {
            let [n, r, f] = values.map(median);
            rows.push(row(
                format!("{direction} 1 MiB, {jobs} job{}", if jobs > 1 { "s" } else { "" }),
                "MB/s",
                n,
                r,
                f,
                Some(tcp),
            ));
        }
    }
    let mut rates: [Vec<MetadataRates>; 3] = Default::default();
    for _ in 0..args.runs {
        for (place, dir) in [nacre, raw, null].into_iter().enumerate() {
            output::step(bar, format!("metadata, {}", ["nacre", "raw disk", "null FUSE"][place]));
            rates[place].push(load::metadata(dir, args.files)?);
        }
    }
    for what in [Metadata::Create, Metadata::Stat, Metadata::Unlink] {
        let [n, r, f] = [0, 1, 2].map(|place| median(rates[place].iter().map(|m| m.get(what)).collect()));
        rows.push(row(format!("{what:?}").to_lowercase(), "op/s", n, r, f, None));
    }
    Ok(rows)
}

fn row(what: String, unit: &'static str, nacre: f64, raw: f64, null_fuse: f64, loopback_tcp: Option<f64>) -> Row {
    let percent_of_limit = 100.0 * nacre / raw.min(null_fuse);
    Row { what, unit, nacre, raw, null_fuse, loopback_tcp, percent_of_limit }
}

fn print_rows(rows: &[Row]) {
    let header = ["", "nacre", "raw disk", "null FUSE", "loopback TCP", "of the limit"];
    let cells = rows.iter().map(|r| {
        let n = |v: f64| format!("{v:.0} {}", r.unit);
        let tcp = r.loopback_tcp.map_or_else(String::new, n);
        vec![r.what.clone(), n(r.nacre), n(r.raw), n(r.null_fuse), tcp, format!("{:.0} %", r.percent_of_limit)]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\nThe limit is the smaller of raw disk and null FUSE. Medians; writes end with fsync; the null file system caches nothing."
    );
}
