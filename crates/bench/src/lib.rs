//! `nacre bench`: measurements whose result is a ratio to what this machine can do, taken in the same run. An IO edge:
//! it drives real mounts with system calls, or real servers by clients of its own, and reads the wall clock.
#![allow(clippy::disallowed_methods)] // It measures the real world.

mod instance;
mod load;
mod object_survey;
mod roofline;
mod shared_file;

use clap::{Args, Subcommand};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure, as ratios to what the machine can do.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    /// Streaming and metadata rates of a mount beside the raw disk, a null FUSE file system and loopback TCP
    Roofline(Roofline),
    /// Many writers of one file, by records that alternate, beside a file for each writer
    SharedFile(SharedFile),
    /// Some objects of one OST, written and read by some threads
    ObjectSurvey(ObjectSurvey),
}

/// Arguments of `nacre bench shared-file`.
#[derive(Args, Debug)]
pub(crate) struct SharedFile {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: nacre_client::MountSource,
    /// Clients, each with locks and a cache of its own
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Writers of each client
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    writers: Vec<usize>,
    /// Bytes of a record
    #[arg(long, value_delimiter = ',', default_value = "1M,4M,16M,47008", value_parser = parse_record)]
    records: Vec<u64>,
    /// Stripes of the shared file on each OST
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    stripes: Vec<u32>,
    /// Bytes that all write together, each time
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Address of this host for the clients
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    listen: Ipv4Addr,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Arguments of `nacre bench object-survey`.
#[derive(Args, Debug)]
pub(crate) struct ObjectSurvey {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: nacre_client::MountSource,
    /// Index of the OST
    #[arg(long, default_value_t = 0)]
    ost: u32,
    /// Objects at a time
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    objects: Vec<u32>,
    /// Threads at a time; at least one for each object
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    threads: Vec<u32>,
    /// Bytes that all threads write together, and read, each time
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Address of this host for the client
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    listen: Ipv4Addr,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

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
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

fn parse_record(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| (1..=1 << 30).contains(s))
        .ok_or_else(|| format!("{text:?} is not a size of at most 1G"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| *s >= 1 << 20)
        .ok_or_else(|| format!("{text:?} is not a size of 1M or more"))
}

/// Runs the command.
pub fn main(args: BenchArgs) -> ExitCode {
    let result = match args.command {
        BenchCommand::Roofline(a) => roofline::run(&a, args.json),
        BenchCommand::SharedFile(a) => shared_file::run(&a, args.json),
        BenchCommand::ObjectSurvey(a) => object_survey::run(&a, args.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nacre bench: {e}");
            ExitCode::FAILURE
        }
    }
}
