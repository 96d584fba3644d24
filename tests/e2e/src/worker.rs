//! Helpers that must be processes of their own: `nacre-e2e worker NAME ARGS...`. They end with status 1 and a line on
//! standard error if anything fails.

use crate::cases::faults;
use crate::cases::litmus::{append, locks, permissions, stores};
use crate::failure::{Failure, Outcome, bail};
use crate::power_cut::recorder;
use crate::wide_area;
use std::path::Path;
use std::str::FromStr;

/// Runs the worker that the arguments name.
pub(crate) fn run(args: &[String]) -> Outcome {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["append", path, id, count] => append::append_records(Path::new(path), number(id)?, number(count)?),
        ["lock", path, kind, start, len] => locks::hold_lock(Path::new(path), kind, number(start)?, number(len)?),
        ["try-lock", path, start, len] => locks::try_lock(Path::new(path), number(start)?, number(len)?),
        ["lock-two", path, first, second] => locks::lock_two(Path::new(path), number(first)?, number(second)?),
        ["as", user, group, what, path] => permissions::try_as(number(user)?, number(group)?, what, Path::new(path)),
        ["count", path, rounds] => locks::count_up(Path::new(path), number(rounds)?),
        ["count-mapped", path, rounds] => stores::count_up_mapped(Path::new(path), number(rounds)?),
        ["record-disk", log, at, bytes] => recorder::run(Path::new(log), Path::new(at), number(bytes)?),
        ["durable", dir, log, seed] => faults::write_durably(Path::new(dir), Path::new(log), number(seed)?),
        ["wan-link", settings, seed, near, far] => wide_area::emulate(settings, number(seed)?, [near, far]),
        _ => bail!("no such worker: {words:?}"),
    }
}

fn number<T: FromStr>(text: &str) -> Outcome<T> {
    text.parse().map_err(|_| Failure::new(format!("not a number: {text}")))
}
