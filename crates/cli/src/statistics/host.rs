//! Values of parameters from all processes of this host.

use nacre_base::Errno;
use nacre_base::param::expand_braces;
use nacre_process::admin::{Answer, CLOSED, Request, ask, ask_all};
use nacre_process::rundir;
use serde_json::Value;
use std::collections::BTreeMap;

/// Names and values of the parameters that match one of the patterns in `pattern`. A parameter that several processes have
/// stands there several times. Fails if no process runs.
pub(crate) fn values(pattern: &str) -> Result<Vec<(String, Value)>, String> {
    let mut all = Vec::new();
    for pattern in expand_braces(pattern) {
        for answer in all_answers(&Request::GetValues { pattern })? {
            match answer {
                Answer::Values(values) => all.extend(values),
                Answer::Error { text, .. } => return Err(text),
                _ => {}
            }
        }
    }
    Ok(all)
}

/// Values of the parameters that match one of the patterns, for each process. One that leaves a request unanswered is left out. Fails if
/// none answers.
pub(crate) fn values_by_process(patterns: &[&str]) -> Result<Vec<BTreeMap<String, Value>>, String> {
    let mut processes = Vec::new();
    'processes: for socket in rundir::live_sockets() {
        let mut all = BTreeMap::new();
        for pattern in patterns {
            match ask(&socket, &Request::GetValues { pattern: (*pattern).to_owned() }) {
                Ok(Answer::Values(values)) => all.extend(values),
                Ok(Answer::Error { text, .. }) => return Err(text),
                Ok(_) => {}
                Err(_) => continue 'processes,
            }
        }
        processes.push(all);
    }
    if processes.is_empty() { Err(NOBODY.to_owned()) } else { Ok(processes) }
}

/// Clears the statistics with this name in every process that has them.
pub(super) fn clear(name: &str) -> Result<(), String> {
    let request = Request::SetParam { pattern: name.to_owned(), value: "clear".to_owned() };
    for answer in all_answers(&request)? {
        // A process without the parameter has nothing to clear.
        if let Answer::Error { errno, text } = answer
            && errno != Errno::ENOENT.0
        {
            return Err(format!("cannot clear {name}: {text}"));
        }
    }
    Ok(())
}

/// Message for a pattern that matches nothing.
pub(super) fn no_match(pattern: &str) -> String {
    format!(
        "no parameter of this host's processes matches '{pattern}'; 'lctl list_param -R \"*\"' lists all, and servers show \
         those of their own targets only"
    )
}

fn all_answers(request: &Request) -> Result<Vec<Answer>, String> {
    let answers = ask_all(request);
    let is_closed = |answer: &Answer| matches!(answer, Answer::Error { errno, .. } if *errno == CLOSED.0);
    // The others' answers count where a process ends meanwhile.
    let (closed, answers): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_closed);
    if answers.is_empty()
        && let Some(Answer::Error { text, .. }) = closed.into_iter().next()
    {
        return Err(text);
    }
    if answers.is_empty() {
        return Err(NOBODY.to_owned());
    }
    Ok(answers)
}

const NOBODY: &str = "no nacre process of this user runs on this host; run this as root, or as the user who started the process. If its run \
                      directory is elsewhere, NACRE_RUN_DIR=DIRECTORY names it";
