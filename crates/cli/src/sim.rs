//! `nacre sim`: the file system in virtual time. The work is in the crate of that name.

use std::process::ExitCode;

pub(crate) use nacre_sim::command::SimArgs as Sim;

/// Runs the command. What the simulated nodes log is shown if `NACRE_LOG` says so.
pub(crate) fn main(args: Sim) -> ExitCode {
    nacre_process::daemon::init_logs_from("off");
    nacre_sim::command::main(args)
}
