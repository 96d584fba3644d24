//! `lctl lfsck_start`, `lfsck_stop` and `lfsck_query`: the check of a running file system, through the MDT's parameters.

use super::ask::{Refusal, ask, merged};
use crate::output::fail;
use nacre_mdt::lfsck::{Control, RUNNING_FIELDS, Start};
use nacre_process::admin::{Answer, Request};
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;

/// How often `--wait` looks at the check.
const POLL: Duration = Duration::from_millis(500);

/// Parsed options.
#[derive(Default, Debug, PartialEq, Eq)]
struct Asked {
    mdt: Option<String>,
    /// The check to start.
    start: Start,
    types: Vec<String>,
    wait: bool,
}

fn parse(args: &[String]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, glued) = arg.split_once('=').map_or((arg.as_str(), None), |(name, value)| (name, Some(value)));
        let mut value = || match glued {
            Some(value) => Ok(value.to_owned()),
            None => args.next().cloned().ok_or(format!("{arg} needs a value")),
        };
        match name {
            "-M" | "--device" => asked.mdt = Some(value()?),
            "-t" | "--type" => asked.types = value()?.split(',').map(str::to_owned).collect(),
            "-s" | "--speed" => {
                let limit = value()?;
                asked.start.speed_limit = Some(limit.parse().map_err(|_| format!("{limit:?} is not a speed"))?);
            }
            "-n" | "--dryrun" => asked.start.dry_run = true,
            "-c" | "--create-ostobj" => asked.start.create_objects = true,
            "-o" | "--orphan" => asked.start.orphans = true,
            "-w" | "--wait" => asked.wait = true,
            // There is one MDT, and a check starts at the beginning unless it was interrupted.
            "-A" | "--all" | "-r" | "--reset" => {}
            other => return Err(format!("unknown option {other}")),
        }
    }
    for kind in &asked.types {
        match kind.as_str() {
            "all" | "lfsck" => (asked.start.namespace, asked.start.layout) = (true, true),
            "namespace" => asked.start.namespace = true,
            "layout" => asked.start.layout = true,
            // Records are found by their keys: there is no second index to rebuild.
            "scrub" => {}
            other => return Err(format!("{other:?} is no type: namespace, layout or all")),
        }
    }
    Ok(asked)
}

/// Name of the parameter that controls the check.
fn parameter(mdt: &str) -> String {
    format!("mdd.{mdt}.lfsck_control")
}

fn send(mdt: &str, control: &Control) -> Result<(), Refusal> {
    merged(&Request::SetParam { pattern: parameter(mdt), value: control.to_string() }).map(drop)
}

/// Starts a check.
pub(crate) fn start(args: &[String]) -> ExitCode {
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(why) => return fail("lctl lfsck_start", why, 22),
    };
    let Some(mdt) = asked.mdt else { return fail("lctl lfsck_start", "-M is needed, such as -M nacre-MDT0000", 22) };
    match send(&mdt, &Control::Start(asked.start)) {
        Ok(()) => {
            let types = if asked.types.is_empty() { "namespace layout".to_owned() } else { asked.types.join(" ") };
            println!("Started LFSCK on the device {mdt}: {types}");
            if asked.wait { wait(&mdt) } else { ExitCode::SUCCESS }
        }
        Err(Refusal { errno, text }) => fail("lctl lfsck_start", format!("{mdt}: {text}"), errno as u8),
    }
}

/// Stops the check.
pub(crate) fn stop(args: &[String]) -> ExitCode {
    let mdt = match parse(args) {
        Ok(Asked { mdt: Some(mdt), .. }) => mdt,
        Ok(_) => return fail("lctl lfsck_stop", "-M is needed, such as -M nacre-MDT0000", 22),
        Err(why) => return fail("lctl lfsck_stop", why, 22),
    };
    match send(&mdt, &Control::Stop) {
        Ok(()) => {
            println!("Stopped LFSCK on the device {mdt}.");
            ExitCode::SUCCESS
        }
        Err(Refusal { errno, text }) => fail("lctl lfsck_stop", format!("{mdt}: {text}"), errno as u8),
    }
}

/// Prints the state of the check.
pub(crate) fn query(args: &[String]) -> ExitCode {
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(why) => return fail("lctl lfsck_query", why, 22),
    };
    let mdt = asked.mdt.unwrap_or_else(|| "*".to_owned());
    if asked.wait { wait(&mdt) } else { print(&mdt).1 }
}

/// Waits for the end of the check, and prints its state.
fn wait(mdt: &str) -> ExitCode {
    while let Ok(states) = states(mdt) {
        if !is_scanning(&states) {
            break;
        }
        std::thread::sleep(POLL);
    }
    print(mdt).1
}

/// Number of MDTs in each state, and number of repairs.
type States = Vec<(String, u64)>;

fn is_scanning(states: &States) -> bool {
    states.iter().any(|(name, mdts)| RUNNING_FIELDS.contains(&name.as_str()) && *mdts > 0)
}

fn states(mdt: &str) -> Result<States, Refusal> {
    let answers = ask(&Request::GetValues { pattern: parameter(mdt) })?;
    let values = answers.into_iter().flat_map(|a| if let Answer::Values(values) = a { values } else { Vec::new() });
    let numbers = |(_, value): (String, Value)| -> States {
        let members = value.as_object().into_iter().flatten();
        members.filter_map(|(name, number)| Some((name.clone(), number.as_u64()?))).collect()
    };
    let found: States = values.flat_map(numbers).collect();
    if found.is_empty() { Err(Refusal::not_found(&parameter(mdt))) } else { Ok(found) }
}

fn print(mdt: &str) -> (bool, ExitCode) {
    match states(mdt) {
        Ok(states) => {
            states.iter().for_each(|(name, number)| println!("{name}: {number}"));
            (is_scanning(&states), ExitCode::SUCCESS)
        }
        Err(refusal) => (false, refusal.fail("lctl lfsck_query")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Asked, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_lustres() {
        let asked = words("-M nacre-MDT0000 -t layout,scrub -n -c --speed=100 -o -A").unwrap();
        assert_eq!(asked.mdt.as_deref(), Some("nacre-MDT0000"));
        let start = Control::Start(asked.start).to_string();
        assert_eq!(start, "start layout dryrun create orphan speed=100");
        assert_eq!(Control::Start(words("-t all").unwrap().start).to_string(), "start namespace layout");
        assert!(
            words("-s fast").is_err() && words("-t quota").is_err() && words("-M").is_err() && words("-z").is_err()
        );
    }

    #[test]
    fn a_scan_is_told_from_its_end() {
        let states =
            |list: &[(&str, u64)]| list.iter().map(|(name, mdts)| ((*name).to_owned(), *mdts)).collect::<States>();
        assert!(is_scanning(&states(&[("layout_mdts_init", 0), ("layout_mdts_scanning-phase1", 1)])));
        assert!(!is_scanning(&states(&[("layout_mdts_scanning-phase1", 0), ("layout_mdts_completed", 1)])));
    }
}
