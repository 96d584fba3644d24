//! Common parts of `lfs` and `lctl`: a table of commands, running the requested one, and options.

use crate::output::fail;
use std::ffi::OsString;
use std::process::ExitCode;

/// One command of a tool.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// Purpose of the command; with its arguments if they are few.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&[String]) -> ExitCode,
}

/// Runs the command that `args` begins with, or lists the commands. Lustre's tools exit with 1 on an unknown one.
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

/// A small parser for options in getopt's manner: `-c 4`, `-c4`, `--stripe-count 4`, `--stripe-count=4`, bundled flags.
pub(crate) struct Options<'a> {
    args: std::slice::Iter<'a, String>,
    /// Rest of a bundle of short options.
    bundle: &'a str,
    /// Value given with `=`.
    attached: Option<&'a str>,
    /// Arguments that are no options, in order.
    pub(crate) operands: Vec<&'a str>,
}

impl<'a> Options<'a> {
    pub(crate) fn new(args: &'a [String]) -> Options<'a> {
        Options { args: args.iter(), bundle: "", attached: None, operands: Vec::new() }
    }

    /// The next option, without dashes: one letter, or a long name.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
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
    pub(crate) fn value(&mut self) -> Option<&'a str> {
        if !self.bundle.is_empty() {
            return Some(std::mem::take(&mut self.bundle));
        }
        self.attached.take().or_else(|| self.args.next().map(String::as_str))
    }
}

/// Options that take no value, and operands.
#[derive(Debug)]
pub(crate) struct Flags<'a> {
    given: Vec<&'static str>,
    /// Arguments that are no options, in order.
    pub(crate) operands: Vec<&'a str>,
}

/// An option without a value: its letter, or a space if it has none, and its long name.
pub(crate) type Flag = (char, &'static str);

impl<'a> Flags<'a> {
    /// Reads options out of those that a command knows; fails on any other.
    pub(crate) fn parse(args: &'a [String], known: &[Flag]) -> Result<Flags<'a>, String> {
        let mut options = Options::new(args);
        let mut given = Vec::new();
        while let Some(name) = options.next() {
            let is_meant = |(letter, long): &&Flag| *long == name || name.chars().eq([*letter]);
            let (_, long) = known.iter().find(is_meant).ok_or_else(|| {
                let dashes = if name.chars().count() == 1 { "-" } else { "--" };
                format!("unrecognized option '{dashes}{name}'; known are {}", describe(known))
            })?;
            given.push(*long);
        }
        Ok(Flags { given, operands: options.operands })
    }

    /// True if the option with this long name was given.
    pub(crate) fn has(&self, long: &str) -> bool {
        self.given.contains(&long)
    }
}

/// `-n|--no-name, --json`
fn describe(known: &[Flag]) -> String {
    let describe = |(letter, long): &Flag| match letter {
        ' ' => format!("--{long}"),
        letter => format!("-{letter}|--{long}"),
    };
    known.iter().map(describe).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_may_be_bundled_and_unknown_ones_are_refused() {
        const KNOWN: &[Flag] = &[('n', "no-name"), ('N', "only-name"), (' ', "json")];
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = args("-nN a --json -- -b");
        let flags = Flags::parse(&given, KNOWN).unwrap();
        assert!(flags.has("no-name") && flags.has("only-name") && flags.has("json"));
        assert_eq!(flags.operands, ["a", "-b"]);
        let refused = args("a --jso");
        let refused = Flags::parse(&refused, KNOWN).unwrap_err();
        assert_eq!(refused, "unrecognized option '--jso'; known are -n|--no-name, -N|--only-name, --json");
    }
}
