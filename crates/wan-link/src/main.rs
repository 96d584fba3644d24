//! `wan-link`: the emulator of a long-distance link as a program. The library says what it does.

use clap::{CommandFactory, Parser, error::ErrorKind};
use nacre_wan_link::args::{Args, Run, Task};
use nacre_wan_link::edge::ceiling;
use nacre_wan_link::edge::console::{self, Form};
use nacre_wan_link::edge::failure::Failure;
use nacre_wan_link::edge::netns::Netns;
use nacre_wan_link::edge::sys;
use nacre_wan_link::edge::wan::Wan;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.task, args.run) {
        (Some(Task::Ceiling { time, json }), _) => print_ceiling(time, json),
        (None, Some(run)) => join(&run),
        (None, None) => usage("the options --a and --b are missing; give the two ends of the link"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("wan-link: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn join(run: &Run) -> Result<(), Failure> {
    let plan = run.plan().or_else(|error| usage(&error.to_string()))?;
    // Before threads start, so that no signal ends the program without its counters. SIGTTIN would stop a link that was started in
    // the background as soon as somebody types.
    let signals = sys::catch_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGTTIN]);
    let signals = signals.map_err(|error| Failure(format!("signals cannot be caught: {error}")))?;
    sys::stay_in_memory();
    let netns = [Netns::named(&plan.ends[0].netns)?, Netns::named(&plan.ends[1].netns)?];
    let mut wan = Wan::open(&plan, netns)?;
    console::attend(&mut wan, &signals, if run.json { Form::Json } else { Form::Table })
}

fn print_ceiling(time: Duration, json: bool) -> Result<(), Failure> {
    sys::stay_in_memory();
    let ceiling = ceiling::measure(time)?;
    if json {
        println!("{}", serde_json::to_string(&ceiling).map_err(|error| Failure(error.to_string()))?);
    } else {
        println!("{ceiling}");
    }
    Ok(())
}

/// Ends the program as clap does when the command line is wrong.
fn usage<T>(message: &str) -> Result<T, Failure> {
    Args::command().error(ErrorKind::ValueValidation, message).exit()
}
