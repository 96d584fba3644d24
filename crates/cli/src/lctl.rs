//! `lctl`: parameters, devices and NIDs of the processes on this host, through their admin sockets. Output and exit
//! codes follow Lustre's tool.

use crate::output::{fail, json};
use crate::tool::{self, Command};
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask_all};
use nacre_process::health::{HEALTH_CHECK, health_of_host};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

const COMMANDS: &[Command] = &[
    Command { name: "get_param", about: "[-n|-N|-F|-y|--json] PATTERN...: print parameters", run: get_param },
    Command {
        name: "set_param",
        about: "[-n] PATTERN=VALUE...: set parameters of this host's processes; -P [-d] on the MGS's host: have the MGS keep them",
        run: set_param,
    },
    Command {
        name: "conf_param",
        about: "[-d] FSNAME|TARGET.LAYER.NAME=VALUE: on the MGS's host, have the MGS keep a parameter for a file system",
        run: crate::mgs_changes::conf_param,
    },
    Command {
        name: "replace_nids",
        about: "TARGET NID[,NID...]: on the MGS's host, say where a target is that was moved",
        run: crate::mgs_changes::replace_nids,
    },
    Command { name: "list_param", about: "[-F] [-R] PATTERN...: print names of parameters", run: list_param },
    Command { name: "dl", about: "[--json]: list devices", run: device_list },
    Command { name: "device_list", about: "the same as dl", run: device_list },
    Command {
        name: "deactivate",
        about: "DEVICE (or lctl --device DEVICE deactivate): a number or name of dl, of type osc, mdc or osp: fail what needs its target",
        run: |args| set_active(args, false),
    },
    Command { name: "activate", about: "DEVICE: undo deactivate", run: |args| set_active(args, true) },
    Command { name: "list_nids", about: "[--json]: print this host's NIDs", run: list_nids },
    Command { name: "which_nid", about: "NID...: print the first that is reachable", run: which_nid },
    Command {
        name: "lfsck_start",
        about: "-M MDT [-t namespace,layout|all] [-n] [-c] [-o] [-s SPEED]: check a running file system",
        run: crate::lfsck::start,
    },
    Command { name: "lfsck_stop", about: "-M MDT: stop that", run: crate::lfsck::stop },
    Command { name: "lfsck_query", about: "[-M MDT] [-w]: how far it is; wait for its end", run: crate::lfsck::query },
    Command { name: "ping", about: "NID [TIMEOUT_SECONDS]: ask a node for its NIDs", run: ping },
];

/// Runs one command.
pub(crate) fn main(mut args: Vec<OsString>) -> ExitCode {
    // As scripts say it: `lctl --device N deactivate`.
    if args.len() == 3 && args[0] == "--device" {
        args.remove(0);
        args.swap(0, 1);
    }
    tool::run("lctl", "parameters and devices of the processes on this host", COMMANDS, args)
}

/// Splits single-letter options and `--json` from operands.
pub(crate) fn options(args: &[String]) -> (Vec<char>, bool, Vec<&str>) {
    let (mut letters, mut as_json, mut operands) = (Vec::new(), false, Vec::new());
    for a in args {
        match a.strip_prefix('-') {
            Some("-json") => as_json = true,
            Some(l) if !l.is_empty() && !l.starts_with('-') => letters.extend(l.chars()),
            _ => operands.push(a.as_str()),
        }
    }
    (letters, as_json, operands)
}

/// Merges the answers of all processes in name order. The error counts only if no process had anything.
pub(crate) fn merged(request: &Request) -> Result<BTreeMap<String, String>, (i32, String)> {
    let mut all = BTreeMap::new();
    let mut error = None;
    let answers = ask_all(request);
    if answers.is_empty() {
        return Err((Errno::ENOENT.0, "no nacre process runs on this host (or its run directory is elsewhere)".into()));
    }
    for answer in answers {
        match answer {
            Answer::Params(found) => {
                for (name, value) in found {
                    let value = match all.remove(&name) {
                        // The host is well if all its processes are.
                        Some(others) if name == HEALTH_CHECK => health_of_host([&others, &value]),
                        _ => value,
                    };
                    all.insert(name, value);
                }
            }
            Answer::Names(found) => {
                all.extend(found.into_iter().map(|(n, w)| (n, if w { "=" } else { "" }.to_owned())))
            }
            // "Not here" gives way to a real refusal of another process.
            Answer::Error { errno, text } if error.is_none() || errno != Errno::ENOENT.0 => error = Some((errno, text)),
            _ => {}
        }
    }
    match error {
        Some((errno, text)) if all.is_empty() || errno != Errno::ENOENT.0 => Err((errno, text)),
        _ => Ok(all),
    }
}

fn get_param(args: &[String]) -> ExitCode {
    let (letters, as_json, patterns) = options(args);
    if patterns.is_empty() {
        return fail("error: get_param", "a parameter's name is needed, such as 'osc.*.max_rpcs_in_flight'", 22);
    }
    let mut code = ExitCode::SUCCESS;
    let mut collected = BTreeMap::new();
    for pattern in patterns {
        let found = match merged(&Request::GetParam { pattern: pattern.to_owned() }) {
            Ok(found) => found,
            Err((errno, text)) => {
                code = fail("error: get_param", text, errno as u8);
                continue;
            }
        };
        if as_json {
            collected.extend(found);
            continue;
        }
        for (name, value) in found {
            print_param(&letters, &name, &value);
        }
    }
    if as_json {
        json(&collected);
    }
    code
}

fn print_param(letters: &[char], name: &str, value: &str) {
    let value = value.trim_end_matches('\n');
    if letters.contains(&'N') {
        println!("{name}");
    } else if letters.contains(&'n') {
        println!("{value}");
    } else if letters.contains(&'y') {
        println!("{name}: {value}");
    } else if letters.contains(&'F') {
        println!("{name}=={value}");
    } else if value.contains('\n') {
        println!("{name}=\n{value}");
    } else {
        println!("{name}={value}");
    }
}

fn set_param(args: &[String]) -> ExitCode {
    let (letters, _, operands) = options(args);
    if letters.contains(&'P') {
        return crate::mgs_changes::set_param(&operands, letters.contains(&'d'));
    }
    // Both `name=value` and `name value` are understood.
    let pairs: Vec<(&str, &str)> = match operands.as_slice() {
        [name, value] if !name.contains('=') => vec![(name, value)],
        many => many.iter().filter_map(|o| o.split_once('=')).collect(),
    };
    if pairs.is_empty() {
        return fail("error: set_param", "NAME=VALUE is needed", 22);
    }
    let mut code = ExitCode::SUCCESS;
    for (pattern, value) in pairs {
        match merged(&Request::SetParam { pattern: pattern.to_owned(), value: value.to_owned() }) {
            Ok(done) if !letters.contains(&'n') => done.iter().for_each(|(n, v)| println!("{n}={v}")),
            Ok(_) => {}
            Err((errno, text)) => {
                eprintln!("error: set_param: {text}");
                let path = pattern.replace('.', "/");
                let why = Errno(errno).text();
                code = fail("error: set_param", format!("setting '{path}'='{value}': {why}"), errno as u8);
            }
        }
    }
    code
}

fn list_param(args: &[String]) -> ExitCode {
    let (letters, as_json, patterns) = options(args);
    let mut names = BTreeMap::new();
    for pattern in if patterns.is_empty() { vec!["*"] } else { patterns } {
        match list_matching(pattern, letters.contains(&'R')) {
            Ok(found) => names.extend(found),
            Err((errno, text)) => return fail("error: list_param", text, errno as u8),
        }
    }
    if as_json {
        json(&names.keys().collect::<Vec<_>>());
    } else {
        let mark = letters.contains(&'F');
        names.iter().for_each(|(n, kind)| println!("{n}{}", if mark { kind } else { "" }));
    }
    ExitCode::SUCCESS
}

/// Names as a file tree would list them: a pattern with fewer parts than a name shows the name's first parts.
fn list_matching(pattern: &str, recursive: bool) -> Result<BTreeMap<String, String>, (i32, String)> {
    let everything = merged(&Request::ListParam { pattern: "**".into() })?;
    let parts = pattern.split(['.', '/']).count();
    let mut found = BTreeMap::new();
    for (name, kind) in everything {
        let cut: Vec<_> = name.split('.').take(parts).collect();
        let head = cut.join(".");
        if nacre_base::param::matches(pattern, &head) {
            let leaf = head.len() == name.len();
            found.insert(head, if leaf { kind.clone() } else { "/".to_owned() });
            if recursive && !leaf {
                found.insert(name, kind);
            }
        }
    }
    if found.is_empty() {
        return Err((2, format!("param_path '{}': No such file or directory", pattern.replace('.', "/"))));
    }
    Ok(found)
}

/// Device types in the order Lustre sets them up.
const DEVICE_TYPES: &[&str] =
    &["mgs", "mgc", "mds", "lod", "mdt", "ost", "obdfilter", "lov", "lmv", "mdc", "osc", "osp"];

/// A device in the list.
struct Device {
    kind: String,
    name: String,
    is_active: bool,
}

impl Device {
    fn state(&self) -> &'static str {
        if self.is_active { "UP" } else { "IN" }
    }
}

/// Devices are what has parameters: `TYPE.NAME.*`.
fn devices() -> Vec<Device> {
    let names = list_matching("*.*", false).unwrap_or_default();
    let mut devices: Vec<(usize, String, String)> = names
        .keys()
        .filter_map(|n| n.split_once('.'))
        .filter_map(|(t, n)| Some((DEVICE_TYPES.iter().position(|d| *d == t)?, t.to_owned(), n.to_owned())))
        .collect();
    devices.sort();
    let active = merged(&Request::GetParam { pattern: "*.*.active".into() }).unwrap_or_default();
    let device = |(_, kind, name): (usize, String, String)| {
        let is_active = active.get(&format!("{kind}.{name}.active")).is_none_or(|value| value.trim() != "0");
        Device { kind, name, is_active }
    };
    devices.into_iter().map(device).collect()
}

/// Has a device's target be used, or not.
fn set_active(args: &[String], active: bool) -> ExitCode {
    let command = if active { "lctl activate" } else { "lctl deactivate" };
    let (_, _, operands) = options(args);
    let [wanted] = operands.as_slice() else { return fail(command, "one device is needed: see lctl dl", 22) };
    let number = wanted.parse::<usize>();
    let found = devices().into_iter().enumerate().find(|(i, d)| number == Ok(*i) || d.name == *wanted);
    let Some((_, device)) = found else { return fail(command, format!("there is no device {wanted}"), 19) };
    let pattern = format!("{}.{}.active", device.kind, device.name);
    match merged(&Request::SetParam { pattern, value: u8::from(active).to_string() }) {
        Ok(_) => ExitCode::SUCCESS,
        Err((errno, text)) => fail(command, text, errno as u8),
    }
}

fn device_list(args: &[String]) -> ExitCode {
    let (_, as_json, _) = options(args);
    let devices = devices();
    let uuids = merged(&Request::GetParam { pattern: "*.*.uuid".into() }).unwrap_or_default();
    if as_json {
        let rows = devices.iter().map(|d| serde_json::json!({"state": d.state(), "type": d.kind, "name": d.name}));
        json(&rows.collect::<Vec<_>>());
        return ExitCode::SUCCESS;
    }
    for (i, device) in devices.iter().enumerate() {
        let (state, Device { kind, name, .. }) = (device.state(), device);
        let uuid = uuids.get(&format!("{kind}.{name}.uuid")).cloned().unwrap_or_else(|| format!("{name}_UUID"));
        println!("{i:3} {state} {kind} {name} {} 1", uuid.trim());
    }
    ExitCode::SUCCESS
}

fn nids() -> Vec<String> {
    let mut all: Vec<String> = ask_all(&Request::Nids)
        .into_iter()
        .flat_map(|a| if let Answer::Nids(n) = a { n } else { Vec::new() })
        .filter(|n| !n.ends_with("@lo"))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn list_nids(args: &[String]) -> ExitCode {
    let found = nids();
    if options(args).1 {
        json(&found);
    } else {
        found.iter().for_each(|n| println!("{n}"));
    }
    if found.is_empty() { fail("lctl list_nids", "no nacre process runs on this host", 2) } else { ExitCode::SUCCESS }
}

fn ping_one(nid: &str, seconds: u64) -> Result<Vec<String>, (i32, String)> {
    let request = Request::Ping { nid: nid.to_owned(), timeout_ms: seconds.saturating_mul(1000) };
    // Any process of this host can ask: the first will do.
    for socket in nacre_process::rundir::live_sockets() {
        match nacre_process::admin::ask(&socket, &request) {
            Ok(Answer::Nids(n)) => return Ok(n),
            Ok(Answer::Error { errno, text }) => return Err((errno, text)),
            _ => {}
        }
    }
    Err((Errno::ENETUNREACH.0, "no nacre process runs on this host to ask through".into()))
}

fn ping(args: &[String]) -> ExitCode {
    let (_, as_json, operands) = options(args);
    let Some(nid) = operands.first() else { return fail("lctl ping", "a NID is needed, such as 10.0.0.1@tcp", 22) };
    let seconds = operands.get(1).and_then(|s| s.parse().ok()).unwrap_or(10);
    match ping_one(nid, seconds) {
        Ok(found) if as_json => json(&found),
        Ok(found) => found.iter().for_each(|n| println!("{}{n}", if n.ends_with("@lo") { "12345-" } else { "" })),
        Err((errno, text)) => {
            let why = if errno == Errno::EINVAL.0 { text } else { Errno(errno).text().to_owned() };
            eprintln!("failed to ping {nid}: {why}");
            return ExitCode::from(errno as u8);
        }
    }
    ExitCode::SUCCESS
}

fn which_nid(args: &[String]) -> ExitCode {
    let (_, _, operands) = options(args);
    match operands.iter().find(|n| ping_one(n, 5).is_ok()) {
        Some(nid) => {
            println!("{nid}");
            ExitCode::SUCCESS
        }
        None => fail("lctl which_nid", "none of them is reachable", 1),
    }
}
