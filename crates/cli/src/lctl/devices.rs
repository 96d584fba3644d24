//! `lctl dl` and what is done to one device.

use super::{Refusal, ask, flags, merged};
use crate::output::{fail, json};
use nacre_base::Errno;
use nacre_process::admin::{Answer, Device, Request};
use std::process::ExitCode;

/// Device types in the order in which Lustre sets them up.
const TYPES: &[&str] = &["mgs", "mgc", "mds", "lod", "mdt", "ost", "obdfilter", "lov", "lmv", "mdc", "osc", "osp"];

/// The devices of all processes of the host.
fn devices() -> Result<Vec<Device>, Refusal> {
    let answers = ask(&Request::Devices)?;
    let all =
        answers.into_iter().flat_map(|answer| if let Answer::Devices(found) = answer { found } else { Vec::new() });
    Ok(in_order(all))
}

/// Devices of the types that `dl` lists. Two processes of a host may have the same one, such as `ost OSS`.
fn in_order(devices: impl Iterator<Item = Device>) -> Vec<Device> {
    let place = |device: &Device| TYPES.iter().position(|kind| *kind == device.kind);
    let mut listed: Vec<Device> = devices.filter(|device| place(device).is_some()).collect();
    listed.sort_by_key(|device| (place(device), device.name.clone()));
    listed.dedup_by(|a, b| (&a.kind, &a.name) == (&b.kind, &b.name));
    listed
}

fn state(device: &Device) -> &'static str {
    if device.active { "UP" } else { "IN" }
}

/// `lctl dl`.
pub(super) fn list(args: &[String]) -> ExitCode {
    let flags = match flags("dl", args, &[('t', "target"), (' ', "json")]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let devices = match devices() {
        Ok(devices) => devices,
        Err(refusal) => return refusal.fail("error: dl"),
    };
    if flags.has("json") {
        let row = |(index, d): (usize, &Device)| serde_json::json!({"index": index, "state": state(d), "type": d.kind, "name": d.name, "uuid": d.uuid, "target_nid": d.target_nid});
        json(&devices.iter().enumerate().map(row).collect::<Vec<_>>());
        return ExitCode::SUCCESS;
    }
    for (index, device) in devices.iter().enumerate() {
        let nid = device.target_nid.as_deref().filter(|_| flags.has("target"));
        let nid = nid.map_or_else(String::new, |nid| format!(" {nid}"));
        println!("{index:3} {} {} {} {} 1{nid}", state(device), device.kind, device.name, device.uuid);
    }
    ExitCode::SUCCESS
}

/// The device of this number in `dl`, or of this name. Devices of different types may share a name; the command can be carried out
/// for the types in `kinds`.
fn find(wanted: &str, kinds: &[&str]) -> Result<Device, Refusal> {
    let devices = devices()?;
    let fits = |device: &Device| kinds.contains(&device.kind.as_str());
    let numbered = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let found: Vec<&Device> = match numbered {
        Some(device) => vec![device],
        None => devices.iter().filter(|device| device.name == wanted).collect(),
    };
    match (found.iter().find(|device| fits(device)), found.first()) {
        (Some(device), _) => Ok((*device).clone()),
        (None, Some(Device { kind, name, .. })) => {
            let text = format!("{name} is of type {kind}: this is for devices of type {}", kinds.join(", "));
            Err(Refusal::new(Errno::EOPNOTSUPP, text))
        }
        (None, None) => Err(Refusal::new(Errno::ENODEV, format!("there is no device {wanted}: see lctl dl"))),
    }
}

/// Sets a parameter of the one device that is named in `args`.
fn set(command: &str, args: &[String], kinds: &[&str], parameter: &str, value: &str) -> ExitCode {
    let who = format!("error: {command}");
    let flags = match flags(command, args, &[]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let [wanted] = flags.operands.as_slice() else { return fail(&who, "one device is needed: see lctl dl", 22) };
    let set = find(wanted, kinds).and_then(|Device { kind, name, .. }| {
        merged(&Request::SetParam { pattern: format!("{kind}.{name}.{parameter}"), value: value.to_owned() })
    });
    match set {
        Ok(_) => ExitCode::SUCCESS,
        Err(refusal) => refusal.fail(&who),
    }
}

/// `lctl activate` and `deactivate`.
pub(super) fn set_active(args: &[String], active: bool) -> ExitCode {
    let command = if active { "activate" } else { "deactivate" };
    set(command, args, &["osc", "mdc", "osp"], "active", if active { "1" } else { "0" })
}

/// `lctl abort_recovery`.
pub(super) fn abort_recovery(args: &[String]) -> ExitCode {
    set("abort_recovery", args, &["mdt", "obdfilter"], "abort_recovery", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_once_in_lustres_order() {
        let device = |kind: &str, name: &str| Device {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uuid: String::new(),
            active: true,
            target_nid: None,
        };
        let given = [("osc", "b"), ("osc", "a"), ("ost", "OSS"), ("mgs", "MGS"), ("ost", "OSS"), ("llite", "a")];
        let listed = in_order(given.iter().map(|(kind, name)| device(kind, name)));
        let listed: Vec<(&str, &str)> = listed.iter().map(|d| (d.kind.as_str(), d.name.as_str())).collect();
        assert_eq!(listed, [("mgs", "MGS"), ("ost", "OSS"), ("osc", "a"), ("osc", "b")]);
    }
}
