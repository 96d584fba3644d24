//! `lfs`: what users ask about files, space and targets. Works on the mount alone, through extended attributes, so
//! that anyone who may read a file may ask. Output and exit codes follow Lustre's tool.

mod df;
mod dir;
mod fid;
mod fiemap;
mod find;
mod getstripe;
mod ladvise;
mod path;
mod setstripe;
mod sync;

pub(crate) use sync::sync_mount;

use crate::tool::{self, Command};
use std::ffi::OsString;
use std::process::ExitCode;

/// Lustre's exit code for wrong usage.
const USAGE_EXIT: u8 = 4;

const COMMANDS: &[Command] = &[
    Command {
        name: "setstripe",
        about: "create a file with a layout, or set a directory's default layout",
        run: setstripe::main,
    },
    Command { name: "getstripe", about: "print the layout of files and directories", run: getstripe::main },
    Command { name: "find", about: "find files by name, type, size, time and layout", run: find::main },
    Command { name: "df", about: "print space or inodes of each target", run: df::df },
    Command { name: "osts", about: "list the OSTs", run: df::osts },
    Command { name: "mdts", about: "list the MDTs", run: df::mdts },
    Command { name: "check", about: "ask every target whether it answers", run: df::check },
    Command { name: "mkdir", about: "make a directory on a given MDT", run: dir::mkdir },
    Command { name: "setdirstripe", about: "the same as mkdir", run: dir::mkdir },
    Command { name: "getdirstripe", about: "print on which MDT a directory is", run: dir::getdirstripe },
    Command { name: "path2fid", about: "print the FID of a path", run: fid::path2fid },
    Command { name: "fid2path", about: "print the paths of a FID", run: fid::fid2path },
    Command { name: "fiemap", about: "print where files have space on their OSTs", run: fiemap::main },
    Command { name: "ladvise", about: "tell a file how it will be used", run: ladvise::main },
    Command { name: "sync", about: "make all that a mount changed durable", run: sync::main },
    Command { name: "getname", about: "print the name of a mount's file system", run: df::getname },
];

/// Runs one command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    tool::run(
        "lfs",
        "layouts, space and targets of a mounted file system (lfs COMMAND --help tells more)",
        COMMANDS,
        args,
    )
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
