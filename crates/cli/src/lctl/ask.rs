//! Common parts of lctl's commands: options, requests to all processes of this host, and refusals.

use crate::output::fail;
use crate::tool::{Flag, Flags};
use nacre_base::Errno;
use nacre_base::param::declared::{Kind, Tables};
use nacre_process::admin::{Answer, Request, ask_all};
use nacre_process::health::{HEALTH_CHECK, health_of_host};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Reads options, and ends with Lustre's exit code for wrong usage if there are others.
pub(super) fn flags<'a>(who: &str, args: &'a [String], known: &[Flag]) -> Result<Flags<'a>, ExitCode> {
    Flags::parse(args, known).map_err(|why| fail(&format!("error: {who}"), why, Errno::EINVAL.0 as u8))
}

/// Reason why no process did what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) errno: i32,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(errno: Errno, text: impl Into<String>) -> Refusal {
        Refusal { errno: errno.0, text: text.into() }
    }

    /// A refusal in Lustre's words.
    pub(super) fn not_found(pattern: &str) -> Refusal {
        Refusal::new(Errno::ENOENT, format!("param_path '{}': No such file or directory", pattern.replace('.', "/")))
    }

    /// Prints the refusal, and returns the exit code.
    pub(super) fn fail(&self, who: &str) -> ExitCode {
        fail(who, &self.text, self.errno as u8)
    }
}

/// Answers of all processes of the host.
pub(super) fn ask(request: &Request) -> Result<Vec<Answer>, Refusal> {
    let answers = ask_all(request);
    if answers.is_empty() {
        let none = "no nacre process runs on this host (or its run directory is elsewhere)";
        return Err(Refusal::new(Errno::ENOENT, none));
    }
    Ok(answers)
}

/// Merges the names and values that all processes answer, in name order. A refusal counts only if no process had
/// anything, or if it says more than that a process does not have the parameter.
pub(super) fn merged(request: &Request) -> Result<BTreeMap<String, String>, Refusal> {
    let declared = declarations();
    let mut all = BTreeMap::new();
    let mut refusal: Option<Refusal> = None;
    for answer in ask(request)? {
        match answer {
            Answer::Params(found) => {
                for (name, value) in found {
                    let value = match all.remove(&name) {
                        Some(others) => value_of_host(&declared, &name, &others, value),
                        None => value,
                    };
                    all.insert(name, value);
                }
            }
            Answer::Error { errno, text } if refusal.is_none() || errno != Errno::ENOENT.0 => {
                refusal = Some(Refusal { errno, text });
            }
            _ => {}
        }
    }
    match refusal {
        Some(refusal) if all.is_empty() || refusal.errno != Errno::ENOENT.0 => Err(refusal),
        _ => Ok(all),
    }
}

/// Value of a parameter that several processes of the host have.
fn value_of_host(declared: &Tables, name: &str, others: &String, value: String) -> String {
    if name == HEALTH_CHECK {
        return health_of_host([others, &value]);
    }
    let is_sum = declared.find(name).is_some_and(|(d, _)| matches!(d.kind, Kind::Gauge | Kind::Counter));
    let sum = || Some(others.trim().parse::<u64>().ok()?.saturating_add(value.trim().parse().ok()?));
    match is_sum.then(sum).flatten() {
        Some(sum) => sum.to_string(),
        None => value,
    }
}

/// The declarations of all parameters that a process may have.
pub(super) fn declarations() -> Tables {
    let mut tables = Tables::default();
    nacre_node::DECLARED.iter().copied().chain([nacre_process::PARAMS]).for_each(|table| tables.add(table));
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_the_sum_of_what_its_processes_count() {
        let value =
            |name, one: &str, other: &str| value_of_host(&declarations(), name, &one.to_owned(), other.to_owned());
        assert_eq!(value("obdfilter.a-OST0000.num_exports", "2", "3"), "5");
        assert_eq!(value("version", "nacre: 1", "nacre: 1"), "nacre: 1");
        assert_eq!(value(HEALTH_CHECK, "healthy", "healthy"), "healthy");
    }
}
