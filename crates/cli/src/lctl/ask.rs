//! Common parts of lctl's commands: options, requests to all processes of this host, and refusals.

use crate::output::fail;
use crate::tool::{Flag, Flags};
use nacre_base::Errno;
use nacre_base::param::declared::{Declared, Kind, Tables};
use nacre_base::param::value::Reading;
use nacre_process::admin::{Answer, CLOSED, Request, ask_all};
use nacre_process::health::{HEALTH_CHECK, health_of_host};
use serde_json::Value;
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
    let mut has_parts = false;
    for answer in ask(request)? {
        match answer {
            Answer::Params(found) => {
                for (name, value) in found {
                    has_parts |= all.contains_key(&name) && is_combined(&declared, &name);
                    all.insert(name, value);
                }
            }
            Answer::Error { errno, text } if refusal.is_none() || errno != Errno::ENOENT.0 => {
                refusal = Some(Refusal { errno, text });
            }
            _ => {}
        }
    }
    if let Request::GetParam { pattern } = request
        && has_parts
    {
        let combined = values_of_host(pattern)?.into_iter().filter(|(name, _)| is_combined(&declared, name));
        all.extend(combined.map(|(name, value)| (name.clone(), text_of(&name, &value))));
    }
    match refusal {
        // A process that ends while others are read takes nothing of theirs away.
        Some(refusal) if refusal.errno == CLOSED.0 && is_read(request) && !all.is_empty() => {
            eprintln!("warning: {}", refusal.text);
            Ok(all)
        }
        Some(refusal) if all.is_empty() || refusal.errno != Errno::ENOENT.0 => Err(refusal),
        _ => Ok(all),
    }
}

/// Returns whether a request changes nothing.
fn is_read(request: &Request) -> bool {
    matches!(request, Request::GetParam { .. } | Request::GetValues { .. } | Request::ListParam { .. })
}

/// Values of all parameters of the host that match, for programs, by name.
pub(super) fn values_of_host(pattern: &str) -> Result<BTreeMap<String, Value>, Refusal> {
    let declared = declarations();
    let answers = ask(&Request::GetValues { pattern: pattern.to_owned() })?.into_iter();
    let values = answers.flat_map(|answer| if let Answer::Values(values) = answer { values } else { Vec::new() });
    let mut all = BTreeMap::new();
    for (name, value) in values {
        let value = match all.remove(&name) {
            Some(other) if is_combined(&declared, &name) => combined(&name, &other, value),
            _ => value,
        };
        all.insert(name, value);
    }
    Ok(all)
}

/// Returns whether the host's value of a parameter is combined from those of its processes. Other parameters have the
/// same value in each process that has them.
fn is_combined(declared: &Tables, name: &str) -> bool {
    let is_count = |declared: &Declared| matches!(declared.kind, Kind::Gauge | Kind::Counter);
    name == HEALTH_CHECK || declared.find(name).is_some_and(|(declared, _)| is_count(declared))
}

/// Value of a parameter of which two processes have a part.
fn combined(name: &str, one: &Value, other: Value) -> Value {
    if name == HEALTH_CHECK {
        return nacre_diagnosis::json::value(&health_of_host([one, &other]).into_value());
    }
    match (one.as_u64(), other.as_u64()) {
        (Some(a), Some(b)) => a.saturating_add(b).into(),
        _ => other,
    }
}

/// Text of a combined value.
fn text_of(name: &str, value: &Value) -> String {
    match value {
        value if name == HEALTH_CHECK => health_of_host([value]).into_value().to_string(),
        // The parameter of a part that is gone.
        Value::Null => String::new(),
        number => number.to_string(),
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
    use serde_json::json;

    #[test]
    fn the_host_has_the_sum_of_what_its_processes_count() {
        let exports = "obdfilter.a-OST0000.num_exports";
        assert!(is_combined(&declarations(), exports) && !is_combined(&declarations(), "version"));
        let sum = combined(exports, &json!(2), json!(3));
        assert_eq!((text_of(exports, &sum), text_of(exports, &Value::Null)), ("5".to_owned(), String::new()));
        let ill = json!({"status": "NOT HEALTHY", "unhealthy": ["a-OST0000"]});
        let health = combined(HEALTH_CHECK, &ill, json!({"status": "healthy", "unhealthy": []}));
        assert_eq!(health, ill);
        assert_eq!(text_of(HEALTH_CHECK, &health), "device a-OST0000 reported unhealthy\nNOT HEALTHY");
    }
}
