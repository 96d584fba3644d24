//! `nacre bench`: measurements whose result is a ratio to what this machine can do, taken in the same run. An IO edge:
//! it drives real mounts with system calls and reads the wall clock.
#![allow(clippy::disallowed_methods)] // It measures the real world.

mod load;
mod roofline;
mod table;

use clap::{Args, Subcommand};
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

fn parse_size(text: &str) -> Result<u64, String> {
    nacre_base::size::parse(text, 1)
        .filter(|s| *s >= 1 << 20)
        .ok_or_else(|| format!("{text:?} is not a size of 1M or more"))
}

/// Runs the command.
pub fn main(args: BenchArgs) -> ExitCode {
    let result = match args.command {
        BenchCommand::Roofline(a) => roofline::run(&a, args.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nacre bench: {e}");
            ExitCode::FAILURE
        }
    }
}
