//! `nacre bench`: measurements whose result is a ratio to what this machine can do, taken in the same run. An IO edge: it
//! drives real mounts with system calls, or real servers through clients in this process, and reads the wall clock.
#![allow(clippy::disallowed_methods)] // It measures the real world.

mod applications;
mod instance;
mod load;
mod mapping;
mod obdfilter_survey;
mod object_survey;
mod output;
mod places;
mod roofline;
mod rpc;
mod shared_file;
mod sizes;
mod small_pieces;
mod source_tree;
mod storm;
mod wan;
mod warm_cache;
mod writers;

use clap::{Args, Subcommand};
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
    Roofline(roofline::Roofline),
    /// Many writers of one file, in alternating records, beside a file for each writer
    SharedFile(shared_file::SharedFile),
    /// Some objects of one OST, written and read by some threads
    ObjectSurvey(object_survey::ObjectSurvey),
    /// An OST alone beside fio on the same disk: objects, threads, request sizes, and when writes are answered
    ObdfilterSurvey(obdfilter_survey::ObdfilterSurvey),
    /// Times programs that work on a source tree, on the local disk, on a null FUSE file system and on Nacre
    Applications(applications::Applications),
    /// Rates of cached operations, beside a null FUSE file system and the local disk, and requests sent meanwhile
    WarmCache(warm_cache::WarmCache),
    /// Programs that read and write small pieces, beside a null FUSE file system; records of one file beside records of a
    /// file for each job
    SmallPieces(small_pieces::SmallPieces),
    /// Small requests and bulk within a process and over loopback TCP, beside plain TCP
    Rpc(rpc::Rpc),
    /// Many clients' idle imports in one process, until it is told to stop: what nacre-e2e storm measures
    Storm(storm::Storm),
    /// Many clients in one process that always have something to write, until it is told to stop: what nacre-e2e
    /// congestion measures
    Writers(writers::Writers),
    /// A file system between two sites, at several round-trip times, beside plain TCP over the link
    Wan(wan::WanArgs),
    /// Serves a null FUSE file system until the standard input is closed
    #[command(hide = true)]
    ServeNull(places::ServeNull),
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
        BenchCommand::Rpc(a) => rpc::run(&a, args.json),
        BenchCommand::Storm(a) => storm::run(&a),
        BenchCommand::Writers(a) => writers::run(&a),
        BenchCommand::Wan(a) => wan::run(&a, args.json),
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
