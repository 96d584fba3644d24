//! `lctl dl`, and commands for one device.

use super::ask::{Refusal, ask, flags, merged};
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

/// The devices in the order of `dl`, which lists only known types. Two processes of a host may have the same one, such as
/// `ost OSS`.
fn in_order(devices: impl Iterator<Item = Device>) -> Vec<Device> {
    let place = |device: &Device| TYPES.iter().position(|kind| *kind == device.kind);
    let mut listed: Vec<Device> = devices.filter(|device| place(device).is_some()).collect();
    listed.sort_by_key(|device| (place(device), device.name.clone()));
    listed.dedup_by(|a, b| (&a.kind, &a.name) == (&b.kind, &b.name));
    listed
}

fn state(device: &Device) -> &'static str {
    if device.active == Some(false) { "IN" } else { "UP" }
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

/// A command for one device, which sets a parameter of it.
struct Change<'a> {
    command: &'a str,
    /// True for the devices that the command is for.
    fits: fn(&Device) -> bool,
    /// Name of these devices in messages.
    kinds: &'a str,
    parameter: &'a str,
    value: &'a str,
}

/// The device with this number in `dl`, or with this name. If devices of different types share the name, the one that
/// fits.
fn find<'a>(devices: &'a [Device], wanted: &str, change: &Change<'_>) -> Result<&'a Device, Refusal> {
    let numbered = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let named = || devices.iter().filter(|device| device.name == wanted).collect();
    let found: Vec<&Device> = numbered.map_or_else(named, |device| vec![device]);
    match (found.iter().find(|device| (change.fits)(device)), found.first()) {
        (Some(device), _) => Ok(device),
        (None, Some(Device { kind, name, .. })) => {
            let text = format!("{name} is of type {kind}: this is for {}", change.kinds);
            Err(Refusal::new(Errno::EOPNOTSUPP, text))
        }
        (None, None) => Err(Refusal::new(Errno::ENODEV, format!("there is no device {wanted}: see lctl dl"))),
    }
}

/// Carries out a change on the one device that `args` names.
fn carry_out(change: &Change<'_>, args: &[String]) -> ExitCode {
    let who = format!("error: {}", change.command);
    let flags = match flags(change.command, args, &[]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let [wanted] = flags.operands.as_slice() else { return fail(&who, "one device is needed: see lctl dl", 22) };
    let set = devices().and_then(|devices| {
        let Device { kind, name, .. } = find(&devices, wanted, change)?;
        let pattern = format!("{kind}.{name}.{}", change.parameter);
        merged(&Request::SetParam { pattern, value: change.value.to_owned() })
    });
    match set {
        Ok(_) => ExitCode::SUCCESS,
        Err(refusal) => refusal.fail(&who),
    }
}

/// `lctl activate` and `deactivate`.
pub(super) fn set_active(args: &[String], active: bool) -> ExitCode {
    let (command, value) = if active { ("activate", "1") } else { ("deactivate", "0") };
    let kinds = "a mount's osc and mdc, and an MDT's osp";
    carry_out(&Change { command, fits: |device| device.active.is_some(), kinds, parameter: "active", value }, args)
}

/// `lctl abort_recovery`.
pub(super) fn abort_recovery(args: &[String]) -> ExitCode {
    let fits = |device: &Device| ["mdt", "obdfilter"].contains(&device.kind.as_str());
    let (command, kinds) = ("abort_recovery", "devices of type mdt and obdfilter");
    carry_out(&Change { command, fits, kinds, parameter: "abort_recovery", value: "1" }, args)
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
            active: None,
            target_nid: None,
        };
        let given = [("osc", "b"), ("osc", "a"), ("ost", "OSS"), ("mgs", "MGS"), ("ost", "OSS"), ("llite", "a")];
        let listed = in_order(given.iter().map(|(kind, name)| device(kind, name)));
        let listed: Vec<(&str, &str)> = listed.iter().map(|d| (d.kind.as_str(), d.name.as_str())).collect();
        assert_eq!(listed, [("mgs", "MGS"), ("ost", "OSS"), ("osc", "a"), ("osc", "b")]);
    }

    #[test]
    fn a_device_is_found_by_number_or_name_if_the_command_is_for_it() {
        let device = |kind: &str, name: &str, active| Device {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uuid: String::new(),
            active,
            target_nid: None,
        };
        let all =
            [device("osc", "a-MDT0000", None), device("osp", "a-MDT0000", Some(true)), device("mgs", "MGS", None)];
        let fits = |device: &Device| device.active.is_some();
        let change = Change { command: "deactivate", fits, kinds: "osp", parameter: "active", value: "0" };
        let found = |wanted| find(&all, wanted, &change).map(|device| device.kind.as_str()).map_err(|r| r.text);
        assert_eq!((found("a-MDT0000"), found("1")), (Ok("osp"), Ok("osp")));
        assert_eq!(found("0").unwrap_err(), "a-MDT0000 is of type osc: this is for osp");
        assert_eq!(found("2").unwrap_err(), "MGS is of type mgs: this is for osp");
        assert_eq!(found("9").unwrap_err(), "there is no device 9: see lctl dl");
    }
}
