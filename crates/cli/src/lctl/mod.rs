//! `lctl`: parameters, devices, NIDs and logs of the processes on this host, through their admin sockets. Output and exit codes
//! follow Lustre's tool.

mod devices;
mod lfsck;
mod log;
mod mgs_changes;
mod missing;
mod nodes;
mod params;

use crate::output::fail;
use crate::tool::{self, Command, Flag, Flags};
use nacre_base::Errno;
use nacre_base::param::declared::{Kind, Tables};
use nacre_process::admin::{Answer, Request, ask_all};
use nacre_process::health::{HEALTH_CHECK, health_of_host};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

const COMMANDS: &[Command] = &[
    Command {
        name: "get_param",
        about: "[-n|-N|-F|-H|-R|-y|--json] PATTERN...: print parameters, such as 'osc.{a,b}-OST000[0-3]*.max*'",
        run: params::get,
    },
    Command {
        name: "set_param",
        about: "[-n] PATTERN=VALUE...: set parameters of this host's processes; -P [-d] on the MGS's host: have the MGS keep them",
        run: params::set,
    },
    Command {
        name: "list_param",
        about: "[-F] [-R] [-D|-t|-r|-w] [-p] [--json] PATTERN...: print names of parameters; -t: those that configure something",
        run: params::list,
    },
    Command {
        name: "conf_param",
        about: "[-d] FSNAME|TARGET.LAYER.NAME=VALUE: on the MGS's host, have the MGS keep a parameter for a file system",
        run: mgs_changes::conf_param,
    },
    Command {
        name: "replace_nids",
        about: "TARGET NID[,NID...]: on the MGS's host, say where a target is that was moved",
        run: mgs_changes::replace_nids,
    },
    Command { name: "dl", about: "[-t] [--json]: list devices; -t: where their targets are", run: devices::list },
    Command { name: "device_list", about: "the same as dl", run: devices::list },
    Command {
        name: "deactivate",
        about: "DEVICE (or lctl --device DEVICE deactivate): a number or name of dl, of type osc, mdc or osp: fail what needs its target",
        run: |args| devices::set_active(args, false),
    },
    Command { name: "activate", about: "DEVICE: undo deactivate", run: |args| devices::set_active(args, true) },
    Command {
        name: "abort_recovery",
        about: "DEVICE: an MDT or OST stops waiting for clients of its last start, and what they had not synced is lost",
        run: devices::abort_recovery,
    },
    Command { name: "list_nids", about: "[--json]: print this host's NIDs", run: nodes::list_nids },
    Command { name: "which_nid", about: "NID...: print the first that is reachable", run: nodes::which_nid },
    Command { name: "ping", about: "[--json] NID [TIMEOUT_SECONDS]: ask a node for its NIDs", run: nodes::ping },
    Command {
        name: "lfsck_start",
        about: "-M MDT [-t namespace,layout|all] [-n] [-c] [-o] [-s SPEED]: check a running file system",
        run: lfsck::start,
    },
    Command { name: "lfsck_stop", about: "-M MDT: stop that", run: lfsck::stop },
    Command { name: "lfsck_query", about: "[-M MDT] [-w]: how far it is; wait for its end", run: lfsck::query },
    Command {
        name: "debug_kernel",
        about: "[--json] [FILE]: print, or write to FILE, the newest log lines of this host's processes, and forget them",
        run: log::print,
    },
    Command { name: "dk", about: "the same as debug_kernel", run: log::print },
    Command { name: "clear", about: "forget these log lines", run: log::clear },
    Command { name: "mark", about: "TEXT: write a line into these logs", run: log::mark },
    Command { name: "barrier_freeze", about: "not in Nacre yet; says what to use instead", run: missing::barrier },
    Command { name: "barrier_thaw", about: "the same", run: missing::barrier },
    Command { name: "barrier_stat", about: "the same", run: missing::barrier },
    Command { name: "barrier_rescan", about: "the same", run: missing::barrier },
    Command {
        name: "changelog_register",
        about: "not in Nacre yet; says what to use instead",
        run: missing::changelog,
    },
    Command { name: "changelog_deregister", about: "the same", run: missing::changelog },
];

/// Runs one command.
pub(crate) fn main(mut args: Vec<OsString>) -> ExitCode {
    // As scripts say it: `lctl --device N deactivate`.
    if args.len() >= 3 && args[0] == "--device" {
        args.remove(0);
        args.swap(0, 1);
    }
    tool::run("lctl", "parameters, devices and logs of the processes on this host", COMMANDS, args)
}

/// Reads options, and ends with Lustre's exit code for wrong usage if there are others.
fn flags<'a>(who: &str, args: &'a [String], known: &[Flag]) -> Result<Flags<'a>, ExitCode> {
    Flags::parse(args, known).map_err(|why| fail(&format!("error: {who}"), why, Errno::EINVAL.0 as u8))
}

/// Why no process did what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    errno: i32,
    text: String,
}

impl Refusal {
    fn new(errno: Errno, text: impl Into<String>) -> Refusal {
        Refusal { errno: errno.0, text: text.into() }
    }

    /// In Lustre's words.
    fn not_found(pattern: &str) -> Refusal {
        Refusal::new(Errno::ENOENT, format!("param_path '{}': No such file or directory", pattern.replace('.', "/")))
    }

    /// Prints it, and returns the exit code.
    fn fail(&self, who: &str) -> ExitCode {
        fail(who, &self.text, self.errno as u8)
    }
}

/// What all processes of the host answer.
fn ask(request: &Request) -> Result<Vec<Answer>, Refusal> {
    let answers = ask_all(request);
    if answers.is_empty() {
        let none = "no nacre process runs on this host (or its run directory is elsewhere)";
        return Err(Refusal::new(Errno::ENOENT, none));
    }
    Ok(answers)
}

/// Merges the names and values that all processes answer, in name order. A refusal counts if no process had anything, or if it says
/// more than that a process does not have the parameter.
fn merged(request: &Request) -> Result<BTreeMap<String, String>, Refusal> {
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
fn declarations() -> Tables {
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
