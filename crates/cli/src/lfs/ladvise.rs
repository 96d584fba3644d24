//! `lfs ladvise`: gives a mount hints about how a file will be used.

use super::path::{open_for_ioctl, send_ioctl};
use super::usage::USAGE_EXIT;
use crate::output::fail;
use crate::tool::Options;
use nacre_base::{Errno, size};
use nacre_client::Advice;
use nacre_fuse::ioctl::{IOC_LADVISE, advice_to_bytes};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "Give file access advice or hints to the client's cache.
Usage: ladvise [--advice|-a ADVICE] [--start|-s START[kMGTPE]]
               [--end|-e END[kMGTPE] | --length|-l LENGTH[kMGTPE]]
               [--mode|-m READ|WRITE] [--unset|-u] [--background|-b] FILE...
  ADVICE         willread      the range will be read: fetch it into this client's cache, in
                               the background, as far as half of the cache goes
                 dontneed      the range will not be used again: write what is dirty of the
                               file, drop the range from this client's cache, and give back
                               locks on nothing else
                 lockahead     ask for a lock on exactly the range, to read or to write (-m);
                               it is not granted if another client is in the way, and nobody
                               is disturbed for it
                 locknoexpand  locks cover no more than is accessed, or may grow again (-u);
                               holds for one open file, so it is of use only to programs that
                               give it themselves, by the ioctl that this command uses
  START, END     the range, from START up to and without END: by default the whole file
  LENGTH         bytes from START on, in place of END
  --background   accepted and of no effect: no advice waits for data to be read
Programs can also take group locks, which have no command: docs/shared-writes.md tells how.
";

/// Runs the command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let (advice, files) = match parse(args) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            print!("{USAGE}");
            return fail("lfs ladvise", message, USAGE_EXIT);
        }
    };
    let mut code = ExitCode::SUCCESS;
    for file in files {
        if let Err(e) = give(Path::new(file), &advice) {
            let why = if e == Errno::ENOTTY { "not a file of a Nacre mount" } else { e.text() };
            code = fail("lfs ladvise", format!("cannot give advice on '{file}': {why}"), e.0 as u8);
        }
    }
    code
}

fn give(file: &Path, advice: &Advice) -> Result<(), Errno> {
    let write = matches!(advice, Advice::LockAhead { write: true, .. });
    let opened = open_for_ioctl(file, write)?;
    send_ioctl(&opened, IOC_LADVISE, &advice_to_bytes(advice)).map(drop)
}

/// The advice and the files; None if help was asked for.
fn parse(args: &[String]) -> Result<Option<(Advice, Vec<&str>)>, String> {
    let mut options = Options::new(args);
    let (mut name, mut start, mut end, mut length) = (None, 0, None, None);
    let (mut write, mut unset) = (None, false);
    while let Some(option) = options.next() {
        let mut value = || options.value().ok_or_else(|| format!("option '{option}' needs a value"));
        match option {
            "a" | "advice" => name = Some(value()?),
            "s" | "start" => start = parse_size(value()?)?,
            "e" | "end" => end = Some(parse_size(value()?)?),
            "l" | "length" => length = Some(parse_size(value()?)?),
            "m" | "mode" => write = Some(parse_mode(value()?)?),
            "u" | "unset" => unset = true,
            "b" | "background" => {}
            "h" | "help" => return Ok(None),
            other => return Err(format!("unrecognized option '{other}'")),
        }
    }
    let end = match (end, length) {
        (Some(_), Some(_)) => return Err("either an end or a length, not both".into()),
        (None, Some(length)) => start.saturating_add(length),
        (end, None) => end.unwrap_or(u64::MAX),
    };
    if start >= end {
        return Err(format!("the range from {start} to {end} is empty"));
    }
    let name = name.ok_or("which advice? -a is needed")?;
    if unset && name != "locknoexpand" {
        return Err(format!("'{name}' cannot be unset"));
    }
    if write.is_some() && name != "lockahead" {
        return Err(format!("'{name}' has no mode"));
    }
    let range = start..end;
    let advice = match name {
        "willread" => Advice::WillRead(range),
        "dontneed" => Advice::DontNeed(range),
        "locknoexpand" => Advice::LockNoExpand(!unset),
        "lockahead" => Advice::LockAhead { range, write: write.ok_or("lockahead needs a mode: -m READ or -m WRITE")? },
        other => return Err(format!("unknown advice '{other}'")),
    };
    if options.operands.is_empty() {
        return Err("a file is needed".into());
    }
    Ok(Some((advice, options.operands)))
}

fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text, 1).ok_or_else(|| format!("invalid size '{text}'"))
}

/// True if the mode is for writing.
fn parse_mode(text: &str) -> Result<bool, String> {
    match text.to_ascii_uppercase().as_str() {
        "READ" => Ok(false),
        "WRITE" => Ok(true),
        _ => Err(format!("invalid mode '{text}': READ or WRITE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<(Advice, Vec<String>), String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (advice, files) = parse(&args)?.expect("not help");
        Ok((advice, files.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn options_as_lustre_has_them() {
        assert_eq!(parsed("-a willread f g"), Ok((Advice::WillRead(0..u64::MAX), vec!["f".into(), "g".into()])));
        let range = 1 << 20..3 << 20;
        assert_eq!(parsed("--advice=dontneed -s 1M --length 2M f").unwrap().0, Advice::DontNeed(range));
        let ahead = Advice::LockAhead { range: 0..4096, write: true };
        assert_eq!(parsed("-a lockahead -m WRITE -e 4k f").unwrap().0, ahead);
        assert_eq!(parsed("-a locknoexpand -u f").unwrap().0, Advice::LockNoExpand(false));
        assert!(parse(&["--help".to_owned()]).unwrap().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (line, why) in [
            ("f", "which advice"),
            ("-a willread", "a file"),
            ("-a sleep f", "unknown advice"),
            ("-a willread -s 2 -e 2 f", "empty"),
            ("-a willread -e 2 -l 2 f", "not both"),
            ("-a willread -u f", "cannot be unset"),
            ("-a dontneed -m READ f", "has no mode"),
            ("-a lockahead f", "needs a mode"),
            ("-a lockahead -m SWIM f", "invalid mode"),
            ("-a willread -s x f", "invalid size"),
            ("-a willread --frequently f", "unrecognized option"),
        ] {
            assert!(parsed(line).unwrap_err().contains(why), "{line}");
        }
    }
}
