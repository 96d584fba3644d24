//! `lctl debug_kernel`, `clear` and `mark`: the newest log lines, which every process keeps in memory beside its log file.

use super::ask::{Refusal, ask, flags};
use crate::output::{fail, json};
use nacre_process::admin::{Answer, LogLine, Request};
use std::process::ExitCode;

/// Takes the lines of all processes, in the order of their times; the processes forget them.
fn take() -> Result<Vec<LogLine>, Refusal> {
    let answers = ask(&Request::TakeLog)?.into_iter();
    let mut lines: Vec<LogLine> =
        answers.flat_map(|answer| if let Answer::Log(lines) = answer { lines } else { Vec::new() }).collect();
    // A stable sort, so that lines of one process stay in their order.
    lines.sort_by_key(|line| line.at_us);
    Ok(lines)
}

/// `lctl debug_kernel`.
pub(super) fn print(args: &[String]) -> ExitCode {
    const WHO: &str = "error: debug_kernel";
    let flags = match flags("debug_kernel", args, &[(' ', "json")]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let file = match flags.operands.as_slice() {
        [] => None,
        [file] => Some(file),
        _ => return fail(WHO, "one file at most is needed", 22),
    };
    let lines = match take() {
        Ok(lines) => lines,
        Err(refusal) => return refusal.fail(WHO),
    };
    if flags.has("json") {
        json(&lines);
        return ExitCode::SUCCESS;
    }
    let text: String = lines.iter().map(|line| format!("{} {}\n", line.process, line.text)).collect();
    match file {
        None => print!("{text}"),
        Some(file) => match std::fs::write(file, text) {
            Ok(()) => println!("Debug log: {} lines in {file}", lines.len()),
            Err(error) => return fail(WHO, format!("cannot write {file}: {error}"), 5),
        },
    }
    ExitCode::SUCCESS
}

/// `lctl clear`.
pub(super) fn clear(args: &[String]) -> ExitCode {
    match flags("clear", args, &[]).map(|_| take()) {
        Ok(Ok(_)) => ExitCode::SUCCESS,
        Ok(Err(refusal)) => refusal.fail("error: clear"),
        Err(code) => code,
    }
}

/// `lctl mark`.
pub(super) fn mark(args: &[String]) -> ExitCode {
    if args.is_empty() {
        return fail("error: mark", "a text is needed", 22);
    }
    match ask(&Request::Mark { text: args.join(" ") }) {
        Ok(_) => ExitCode::SUCCESS,
        Err(refusal) => refusal.fail("error: mark"),
    }
}
