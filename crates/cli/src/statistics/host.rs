//! Values of parameters from all processes of this host.

use nacre_base::Errno;
use nacre_base::param::expand_braces;
use nacre_process::admin::{Answer, Request, ask_all};
use serde_json::Value;

/// Names and values of the parameters that match one of the patterns in `pattern`. A parameter that several processes have
/// stands there several times. Fails if no process runs.
pub(crate) fn values(pattern: &str) -> Result<Vec<(String, Value)>, String> {
    let mut all = Vec::new();
    for pattern in expand_braces(pattern) {
        for answer in ask(&Request::GetValues { pattern })? {
            match answer {
                Answer::Values(values) => all.extend(values),
                Answer::Error { text, .. } => return Err(text),
                _ => {}
            }
        }
    }
    Ok(all)
}

/// Clears the statistics with this name in every process that has them.
pub(super) fn clear(name: &str) -> Result<(), String> {
    let request = Request::SetParam { pattern: name.to_owned(), value: "clear".to_owned() };
    for answer in ask(&request)? {
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

fn ask(request: &Request) -> Result<Vec<Answer>, String> {
    let answers = ask_all(request);
    if answers.is_empty() {
        let none = "no nacre process of this user runs on this host; run this as root, or as the user who started the process. If \
                    its run directory is elsewhere, NACRE_RUN_DIR=DIRECTORY names it";
        return Err(none.to_owned());
    }
    Ok(answers)
}
