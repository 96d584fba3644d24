//! `lnetctl global show`, `lnetctl set` and `lnetctl stats`.

use super::given::Given;
use super::host::Host;
use super::printed::{once, one_or_all, show as print};
use crate::output::fail;
use nacre_process::admin::Request;
use nacre_process::routing::Buffers;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// `global show`.
pub(super) fn show(host: &Host, args: &[String]) -> ExitCode {
    match Given::none(args) {
        Ok(given) => print(given.as_json(), global(host)),
        Err(code) => code,
    }
}

/// The settings; a list where processes differ.
pub(super) fn global(host: &Host) -> Result<Value, ExitCode> {
    Ok(one_or_all("global", once(host.gather(&Request::Settings)?)))
}

/// `stats show`.
pub(super) fn show_stats(host: &Host, args: &[String]) -> ExitCode {
    match Given::none(args) {
        Ok(given) => print(given.as_json(), stats(host)),
        Err(code) => code,
    }
}

/// Sums of all processes' counters.
fn stats(host: &Host) -> Result<Value, ExitCode> {
    let mut sum = Map::new();
    for one in host.gather(&Request::Stats)? {
        for (name, v) in one.as_object().into_iter().flatten() {
            let so_far = sum.get(name).and_then(Value::as_u64).unwrap_or(0);
            sum.insert(name.clone(), json!(so_far + v.as_u64().unwrap_or(0)));
        }
    }
    Ok(json!({ "statistics": sum }))
}

/// `set NAME VALUE`.
pub(super) fn set(host: &Host, args: &[String]) -> ExitCode {
    let [name, value] = args else {
        return fail("lnetctl", "set: a setting and its value are needed; lnetctl global show lists settings", 1);
    };
    match request_to_set(name, value) {
        Ok(request) => host.change("set", name, &request),
        Err(why) => fail("lnetctl", format!("set {name}: {why}"), 1),
    }
}

fn request_to_set(name: &str, value: &str) -> Result<Request, String> {
    let flag = || match value {
        "0" | "1" => Ok(value == "1"),
        _ => Err(format!("{value:?} is not 0 or 1")),
    };
    let count = || value.parse::<u32>().map(Some).map_err(|_| format!("{value:?} is not a number of buffers"));
    let buffers = |buffers| Ok(Request::SetBuffers { buffers });
    match name {
        "routing" => Ok(Request::SetRouting { enable: flag()? }),
        "tiny_buffers" => buffers(Buffers { tiny: count()?, ..Buffers::default() }),
        "small_buffers" => buffers(Buffers { small: count()?, ..Buffers::default() }),
        "large_buffers" => buffers(Buffers { large: count()?, ..Buffers::default() }),
        _ => Ok(Request::ChangeSetting { name: name.to_owned(), value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_becomes_a_request() {
        let of = |name, value| request_to_set(name, value);
        assert!(matches!(of("routing", "0"), Ok(Request::SetRouting { enable: false })));
        let small = Buffers { small: Some(7), ..Buffers::default() };
        assert!(matches!(of("small_buffers", "7"), Ok(Request::SetBuffers { buffers }) if buffers == small));
        assert!(matches!(of("retry_count", "3"), Ok(Request::ChangeSetting { .. })), "the process knows its settings");
        assert_eq!(of("routing", "3").unwrap_err(), "\"3\" is not 0 or 1");
        assert_eq!(of("tiny_buffers", "-1").unwrap_err(), "\"-1\" is not a number of buffers");
    }
}
