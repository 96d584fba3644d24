//! `nacre sim`: the file system in virtual time. The work is in the crate `nacre_sim`.

use std::process::ExitCode;

pub(crate) use nacre_sim::command::SimArgs as Sim;

/// Runs the command.
pub(crate) fn main(args: Sim) -> ExitCode {
    nacre_sim::command::main(args)
}
