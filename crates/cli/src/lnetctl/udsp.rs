//! `lnetctl udsp`: an administrator's rules for which of several ways messages prefer.

use super::given::Given;
use super::host::Host;
use super::printed::{once, show as print};
use crate::output::fail;
use nacre_process::admin::Request;
use nacre_process::network::peers::{AskedUdsp, UdspTask};
use serde_json::{Value, json};
use std::process::ExitCode;

/// `udsp add`.
pub(super) fn add(host: &Host, args: &[String]) -> ExitCode {
    let known = [(' ', "src"), (' ', "dst"), (' ', "rte"), (' ', "priority"), (' ', "idx")];
    let asked = Given::parse(args, &known, &[]).and_then(Given::without_operands).and_then(|given| {
        let text = |name| given.get(name).map(str::to_owned);
        let (src, dst, rte) = (text("src"), text("dst"), text("rte"));
        let rule = AskedUdsp { src, dst, rte, priority: given.number("priority")?, index: given.number("idx")? };
        match rule.check() {
            Ok(_) => Ok(rule),
            Err(why) => Err(fail("lnetctl", format!("udsp add: {why}"), 1)),
        }
    });
    asked.map_or_else(|code| code, |rule| host.change("add", "udsp", &Request::Udsp { task: UdspTask::Add(rule) }))
}

/// `udsp del`.
pub(super) fn del(host: &Host, args: &[String]) -> ExitCode {
    let asked = Given::parse(args, &[(' ', "idx")], &[('a', "all")]).and_then(Given::without_operands);
    let task = asked.and_then(|given| match (given.number("idx")?, given.has("all")) {
        (Some(index), false) => Ok(UdspTask::Remove(Some(index))),
        (None, true) => Ok(UdspTask::Remove(None)),
        _ => Err(fail("lnetctl", "udsp del: either --idx N or --all is needed", 1)),
    });
    task.map_or_else(|code| code, |task| host.change("del", "udsp", &Request::Udsp { task }))
}

/// `udsp show`.
pub(super) fn show(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[(' ', "idx")], &[]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let shown = given.number::<usize>("idx").and_then(|index| {
        let mut all = rules(host)?;
        all.retain(|rule| index.is_none_or(|index| rule["idx"] == index));
        Ok(json!({ "udsp": all }))
    });
    match shown {
        // Lustre prints nothing where there is no rule.
        Ok(value) if value["udsp"] == json!([]) && !given.as_json() => ExitCode::SUCCESS,
        shown => print(given.as_json(), shown),
    }
}

/// The rules of all processes; one that several have is there once.
pub(super) fn rules(host: &Host) -> Result<Vec<Value>, ExitCode> {
    Ok(once(host.gather(&Request::Udsp { task: UdspTask::List })?))
}

#[cfg(test)]
mod tests {
    use crate::lnetctl::yaml::to_yaml;
    use serde_json::json;

    #[test]
    fn rules_are_shown_as_lustre_shows_them() {
        let rule = json!({"idx": 0, "src": "NA", "dst": "tcp1", "rte": "NA", "action": {"priority": 0}});
        let want = "udsp:\n-     idx: 0\n      src: NA\n      dst: tcp1\n      rte: NA\n      action:\n            priority: 0\n";
        assert_eq!(to_yaml(&json!({ "udsp": [rule] })), want);
    }
}
