//! `lfs`: what users ask about files, space and targets. Works on the mount alone, through extended attributes, so
//! that anyone who may read a file may ask. Output and exit codes follow Lustre's tool.

mod df;
mod dir;
mod fid;
mod find;
mod getstripe;
mod path;
mod setstripe;

use crate::output::fail;
use std::ffi::OsString;
use std::process::ExitCode;

/// Lustre's exit code for wrong usage.
const USAGE_EXIT: u8 = 4;

const COMMANDS: &[(&str, &str, fn(&[String]) -> ExitCode)] = &[
    ("setstripe", "create a file with a layout, or set a directory's default layout", setstripe::main),
    ("getstripe", "print the layout of files and directories", getstripe::main),
    ("find", "find files by name, type, size, time and layout", find::main),
    ("df", "print space or inodes of each target", df::df),
    ("osts", "list the OSTs", df::osts),
    ("mdts", "list the MDTs", df::mdts),
    ("check", "ask every target whether it answers", df::check),
    ("mkdir", "make a directory on a given MDT", dir::mkdir),
    ("setdirstripe", "the same as mkdir", dir::mkdir),
    ("getdirstripe", "print on which MDT a directory is", dir::getdirstripe),
    ("path2fid", "print the FID of a path", fid::path2fid),
    ("fid2path", "print the paths of a FID", fid::fid2path),
    ("getname", "print the name of a mount's file system", df::getname),
];

/// Runs one command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let Some((name, rest)) = args.split_first() else {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    };
    if matches!(name.as_str(), "help" | "--help" | "-h" | "--list-commands") {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    match COMMANDS.iter().find(|(n, ..)| n == name) {
        Some((.., run)) => run(rest),
        None => fail("lfs", format!("'{name}' is not a valid command. See 'lfs --list-commands'."), 1),
    }
}

fn usage() -> String {
    let lines: Vec<_> = COMMANDS.iter().map(|(n, text, _)| format!("  {n:14} {text}\n")).collect();
    format!("usage: lfs COMMAND [OPTIONS] [PATH...]    (lfs COMMAND --help tells more)\n\n{}", lines.concat())
}

/// A small parser for options in getopt's manner: `-c 4`, `-c4`, `--stripe-count 4`, `--stripe-count=4`, bundled flags.
struct Options<'a> {
    args: std::slice::Iter<'a, String>,
    /// Rest of a bundle of short options.
    bundle: &'a str,
    /// Value given with `=`.
    attached: Option<&'a str>,
    /// What is no option, in order.
    operands: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn new(args: &'a [String]) -> Options<'a> {
        Options { args: args.iter(), bundle: "", attached: None, operands: Vec::new() }
    }

    /// The next option, without dashes: one letter, or a long name.
    fn next(&mut self) -> Option<&'a str> {
        if let Some(c) = self.bundle.chars().next() {
            let (letter, rest) = self.bundle.split_at(c.len_utf8());
            self.bundle = rest;
            return Some(letter);
        }
        self.attached = None;
        loop {
            let arg = self.args.next()?;
            if arg == "--" {
                self.operands.extend(self.args.by_ref().map(String::as_str));
                return None;
            }
            if let Some(long) = arg.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
                self.attached = value;
                return Some(name);
            }
            match arg.strip_prefix('-') {
                Some(short) if !short.is_empty() => {
                    self.bundle = short;
                    return self.next();
                }
                _ => self.operands.push(arg),
            }
        }
    }

    /// The value of the option just read.
    fn value(&mut self) -> Option<&'a str> {
        if !self.bundle.is_empty() {
            return Some(std::mem::take(&mut self.bundle));
        }
        self.attached.take().or_else(|| self.args.next().map(String::as_str))
    }
}
