//! `lnetctl fault drop` and `lnetctl fault delay`.

use super::given::Given;
use super::host::Host;
use super::printed::{joined, show as print};
use crate::output::fail;
use nacre_process::admin::{Answer, Request};
use nacre_process::network::rules::{AskedRule, RuleTask};
use serde_json::{Map, Value};
use std::process::ExitCode;

const KNOWN: [(char, &str); 9] = [
    ('s', "source"),
    ('d', "dest"),
    ('p', "portal"),
    ('m', "message"),
    ('r', "rate"),
    ('i', "interval"),
    ('l', "latency"),
    (' ', "src"),
    (' ', "dst"),
];

/// `fault drop|delay add|del|list|reset`.
pub(super) fn main(host: &Host, delays: bool, verb: &str, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &KNOWN, &[('a', "all")]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let what = if delays { "fault delay" } else { "fault drop" };
    let task = match (verb, asked(&given)) {
        (_, Err(code)) => return code,
        ("add", Ok(rule)) => RuleTask::Add(rule),
        ("del", Ok(rule)) if rule == AskedRule::default() && !given.has("all") => {
            return fail("lnetctl", format!("{what} del: --source or --dest is needed, or --all"), 1);
        }
        ("del", Ok(rule)) => RuleTask::Remove(rule),
        ("reset", Ok(_)) => RuleTask::Reset,
        ("list" | "show", Ok(_)) => return list(host, delays, what, given.as_json()),
        (other, Ok(_)) => return fail("lnetctl", format!("{what} {other}: it is add, del, list or reset"), 1),
    };
    host.change(verb, what, &Request::Fault { delays, task })
}

fn asked(given: &Given<'_>) -> Result<AskedRule, ExitCode> {
    let either = |one, other| given.get(one).or_else(|| given.get(other)).map(str::to_owned);
    Ok(AskedRule {
        source: either("source", "src"),
        destination: either("dest", "dst"),
        portal: given.number("portal")?,
        message: given.get("message").map(str::to_owned),
        rate: given.number("rate")?,
        interval_ms: given.number("interval")?,
        latency_ms: given.number("latency")?,
    })
}

/// The rules of each process that may have some.
fn list(host: &Host, delays: bool, what: &str, as_json: bool) -> ExitCode {
    let answers = match host.ask(&Request::Fault { delays, task: RuleTask::List }) {
        Ok(answers) => answers,
        Err(code) => return code,
    };
    let (mut rules, mut refusal, mut is_allowed) = (Vec::new(), None, false);
    for (process, answer) in answers {
        match answer {
            Answer::Value(Value::Array(all)) => {
                is_allowed = true;
                rules.extend(all.into_iter().map(|rule| {
                    let named = [("process".to_owned(), Value::from(process.clone()))].into_iter();
                    Value::Object(named.chain(rule.as_object().cloned().unwrap_or_default()).collect::<Map<_, _>>())
                }));
            }
            Answer::Error { errno, text } => refusal = Some((errno, text)),
            _ => {}
        }
    }
    match refusal {
        Some((errno, why)) if !is_allowed => super::host::refuse("list", what, errno, &why),
        _ => print(as_json, Ok(joined([serde_json::json!({ if delays { "delay" } else { "drop" }: rules })]))),
    }
}
