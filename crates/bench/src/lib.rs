//! `nacre bench`: measurements whose result is a ratio to what this machine can do, taken in the same run. An IO edge:
//! it drives real mounts with system calls, or real servers by clients of its own, and reads the wall clock.
#![allow(clippy::disallowed_methods)] // It measures the real world.

mod applications;
mod instance;
mod load;
mod obdfilter_survey;
mod object_survey;
mod output;
mod places;
mod roofline;
mod shared_file;
mod small_pieces;
mod source_tree;
mod warm_cache;

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
    /// An OST by itself beside fio on the same disk: objects, threads, sizes of requests, and when writes are answered
    ObdfilterSurvey(ObdfilterSurvey),
    /// Programs on a source tree: the local disk, a null FUSE file system, and a file system made for it
    Applications(Applications),
    /// Rates of what is cached, beside a null FUSE file system and the local disk's, and requests sent meanwhile
    WarmCache(WarmCache),
    /// Programs that read and write small pieces, beside a null FUSE file system; records of one file beside own files'
    SmallPieces(SmallPieces),
    /// Serves a null FUSE file system until the standard input is closed
    #[command(hide = true)]
    ServeNull(ServeNull),
}

/// Arguments of `nacre bench serve-null`, which the others start.
#[derive(Args, Debug)]
pub(crate) struct ServeNull {
    /// Where to mount it
    dir: PathBuf,
    /// Seconds for which the kernel may believe names and attributes
    valid: u64,
    /// Keep data, in memory
    #[arg(long)]
    keep_data: bool,
}

/// Arguments of `nacre bench applications`.
#[derive(Args, Debug)]
pub(crate) struct Applications {
    /// A directory on a local disk: what is compared with, and where the file system's storage is made
    dir: PathBuf,
    /// Files of the tree
    #[arg(long, default_value_t = 4000)]
    files: u32,
    /// C files among them that are built
    #[arg(long, default_value_t = 80)]
    units: u32,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Arguments of `nacre bench warm-cache`.
#[derive(Args, Debug)]
pub(crate) struct WarmCache {
    /// A directory on a local disk: what is compared with, and where the file system's storage is made
    dir: PathBuf,
    /// Bytes of the file that is read again
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Bytes of it that are read by 4 KiB
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

/// Arguments of `nacre bench small-pieces`.
#[derive(Args, Debug)]
pub(crate) struct SmallPieces {
    /// A directory on a local disk: what is compared with, and where the file system's storage is made
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
    /// Rewritings of a small table under a lock file
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    renames: u64,
    /// Bytes of each of the 15 files with holes
    #[arg(long, default_value = "2M", value_parser = parse_size)]
    holes: u64,
    /// Only these
    #[arg(long, value_delimiter = ',')]
    only: Vec<small_pieces::programs::Program>,
    /// Bytes of all records together
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    records: u64,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
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
    /// Policies; file-per-process, what the others are compared with, is always measured
    #[arg(long = "policy", value_delimiter = ',', default_value = "file-per-process,grown,default")]
    policies: Vec<shared_file::Policy>,
    /// Stripes of the shared file on each OST
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    stripes: Vec<u32>,
    /// Bytes that all write together, each time
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
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
    tests: Vec<obdfilter_survey::Test>,
    /// When writes are answered
    #[arg(long, value_delimiter = ',', default_value = "sync,async,memory")]
    modes: Vec<obdfilter_survey::Mode>,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
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
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
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
        BenchCommand::ObdfilterSurvey(a) => obdfilter_survey::run(&a, args.json),
        BenchCommand::Applications(a) => applications::run(&a, args.json),
        BenchCommand::WarmCache(a) => warm_cache::run(&a, args.json),
        BenchCommand::SmallPieces(a) => small_pieces::run(&a, args.json),
        BenchCommand::ServeNull(a) => places::serve_null(&a),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nacre bench: {e}");
            ExitCode::FAILURE
        }
    }
}
