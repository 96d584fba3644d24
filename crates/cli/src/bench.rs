//! `nacre bench`: measurements as ratios to what the machine can do. The work is in the crate `nacre_bench`.

use std::process::ExitCode;

pub(crate) use nacre_bench::BenchArgs as Bench;

/// Runs the command.
pub(crate) fn main(args: Bench) -> ExitCode {
    // Log lines about its clients' mounts would run through the table.
    nacre_process::daemon::init_logs_from("warn");
    nacre_bench::main(args)
}
