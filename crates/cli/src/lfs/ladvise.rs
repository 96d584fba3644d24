//! `lfs ladvise`: tells a mounted file how it will be used.

use super::path::{open_for_advice, send_ioctl};
use super::{Options, USAGE_EXIT};
use crate::output::fail;
use nacre_base::size;
use nacre_fuse::ioctl::{Advice, IOC_LADVISE};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str =
    "usage: lfs ladvise {-a|--advice willread|dontneed|lockahead|locknoexpand} [-s|--start START[kMGTPE]] \
    [-e|--end END | -l|--length LENGTH] [-m|--mode READ|WRITE] [-u|--unset] FILE...
  willread      the range will be read: bring it into this client's cache
  dontneed      the range will not be used again: write it and drop it from the cache
  lockahead     ask for a lock on exactly the range, for reading or writing (-m), without waiting for it
  locknoexpand  locks cover no more than is accessed; holds for this one open file, so it is of use to programs only,
                through the same ioctl";

/// `lfs ladvise`
pub(crate) fn main(args: &[String]) -> ExitCode {
    let (advice, files) = match parse(args) {
        Ok(parsed) => parsed,
        Err(message) if message.is_empty() => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => return fail("lfs ladvise", format!("{message}\n{USAGE}"), USAGE_EXIT),
    };
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let given = open_for_advice(Path::new(file))
            .and_then(|opened| send_ioctl(&opened, IOC_LADVISE, &mut advice.to_bytes()));
        if let Err(e) = given {
            code = fail("lfs ladvise", format!("cannot give advice on '{file}': {}", e.text()), e.0 as u8);
        }
    }
    code
}

/// The advice and the files; an empty error asks for help.
fn parse(args: &[String]) -> Result<(Advice, Vec<&str>), String> {
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
            // In the background or not: no advice waits here.
            "b" | "background" => {}
            "h" | "help" => return Err(String::new()),
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
    let advice = match name.ok_or("which advice? -a is needed")? {
        "willread" => Advice::WillRead { start, end },
        "dontneed" => Advice::DontNeed { start, end },
        "locknoexpand" => Advice::LockNoExpand { on: !unset },
        "lockahead" => {
            Advice::LockAhead { start, end, write: write.ok_or("lockahead needs a mode: -m READ or -m WRITE")? }
        }
        other => return Err(format!("unknown advice '{other}'")),
    };
    if options.operands.is_empty() {
        return Err("a file is needed".into());
    }
    Ok((advice, options.operands))
}

fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text, 1).ok_or_else(|| format!("invalid size '{text}'"))
}

/// Whether the mode is for writing.
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
        parse(&args).map(|(advice, files)| (advice, files.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn options_as_lustre_has_them() {
        let all = Advice::WillRead { start: 0, end: u64::MAX };
        assert_eq!(parsed("-a willread f g"), Ok((all, vec!["f".into(), "g".into()])));
        let range = Advice::DontNeed { start: 1 << 20, end: 3 << 20 };
        assert_eq!(parsed("--advice=dontneed -s 1M --length 2M f").unwrap().0, range);
        let ahead = Advice::LockAhead { start: 0, end: 4096, write: true };
        assert_eq!(parsed("-a lockahead -m WRITE -e 4k f").unwrap().0, ahead);
        assert_eq!(parsed("-a locknoexpand -u f").unwrap().0, Advice::LockNoExpand { on: false });
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (line, why) in [
            ("f", "which advice"),
            ("-a willread", "a file"),
            ("-a sleep f", "unknown advice"),
            ("-a willread -s 2 -e 2 f", "empty"),
            ("-a willread -e 2 -l 2 f", "not both"),
            ("-a lockahead f", "needs a mode"),
            ("-a willread -s x f", "invalid size"),
        ] {
            assert!(parsed(line).unwrap_err().contains(why), "{line}");
        }
    }
}
