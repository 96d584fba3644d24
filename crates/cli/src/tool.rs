//! What `lfs` and `lctl` have in common: a table of commands, and running the one that was asked for.

use crate::output::fail;
use std::ffi::OsString;
use std::process::ExitCode;

/// One command of a tool.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// What it does; with its arguments if they are few.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&[String]) -> ExitCode,
}

/// Runs the command that `args` begins with, or prints what there is. Lustre's tools exit with 1 on an unknown one.
pub(crate) fn run(tool: &str, about: &str, commands: &[Command], args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let asked = args.split_first();
    let Some((name, rest)) = asked.filter(|(n, _)| !matches!(n.as_str(), "help" | "--help" | "-h" | "--list-commands"))
    else {
        println!("{tool}: {about}\n\nusage: {tool} COMMAND [OPTIONS] [ARGUMENTS]\n");
        commands.iter().for_each(|c| println!("  {:14} {}", c.name, c.about));
        return ExitCode::SUCCESS;
    };
    match commands.iter().find(|c| c.name == name) {
        Some(c) => (c.run)(rest),
        None => fail(tool, format!("'{name}' is not a valid command. See '{tool} --list-commands'."), 1),
    }
}
