//! Changes that an administrator makes at the MGS: settings that it keeps and gives to every node (`lctl set_param -P`,
//! `lctl conf_param`), and new addresses of a target that was moved (`lctl replace_nids`). As in Lustre, they have to be
//! made on the host of the MGS: it accepts them from its own node only.

use super::ask::{Refusal, flags, merged};
use crate::output::fail;
use nacre_base::{Errno, TargetName};
use nacre_process::admin::Request;
use std::process::ExitCode;

/// A setting to be kept, or, without a value, to be forgotten.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    /// Name of the file system; empty for every file system.
    fsname: String,
    name: String,
    value: Option<String>,
}

/// `set_param -P [-d] LAYER.DEVICE.NAME=VALUE...`: for every file system of the MGS.
pub(crate) fn set_param(operands: &[&str], forget: bool) -> ExitCode {
    keep_all("set_param", operands, forget, |name| Some((String::new(), name.to_owned())))
}

/// `conf_param [-d] FSNAME|TARGET.LAYER.NAME=VALUE`: for one file system.
pub(crate) fn conf_param(args: &[String]) -> ExitCode {
    match flags("conf_param", args, &[('d', "delete")]) {
        Ok(flags) => keep_all("conf_param", &flags.operands, flags.has("delete"), conf_name),
        Err(code) => code,
    }
}

/// `replace_nids TARGET NID[,NID...]`: a target was moved to nodes that were not among its service nodes.
pub(crate) fn replace_nids(args: &[String]) -> ExitCode {
    const WHO: &str = "error: replace_nids";
    let flags = match flags("replace_nids", args, &[]) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    let [target, nids] = flags.operands.as_slice() else {
        return fail(WHO, "TARGET NID[,NID...] are needed, such as nacre-OST0000 10.0.0.5@tcp", 22);
    };
    let nids = nids.split(',').map(str::to_owned).collect();
    match change(&Request::ReplaceNids { target: (*target).to_owned(), nids }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => refusal.fail(WHO),
    }
}

fn keep_all(
    command: &str,
    operands: &[&str],
    forget: bool,
    translate: impl Fn(&str) -> Option<(String, String)>,
) -> ExitCode {
    let who = format!("error: {command}");
    if operands.is_empty() {
        return fail(&who, "NAME=VALUE is needed", 22);
    }
    let mut code = ExitCode::SUCCESS;
    for operand in operands {
        let (name, value) = match operand.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (*operand, None),
        };
        let kept = translate(name).map(|(fsname, name)| Kept { fsname, name, value: value.filter(|_| !forget) });
        let outcome = match kept {
            None => Err(Refusal::new(
                Errno::EINVAL,
                format!("{name:?} is not FSNAME.LAYER.NAME or TARGET.LAYER.NAME, such as nacre.llite.max_cached_mb"),
            )),
            Some(kept) if kept.value.is_none() && !forget => {
                Err(Refusal::new(Errno::EINVAL, format!("{name:?} needs =VALUE, or -d to be forgotten")))
            }
            Some(kept) => keep(kept),
        };
        if let Err(refusal) = outcome {
            code = refusal.fail(&who);
        }
    }
    code
}

fn keep(kept: Kept) -> Result<(), Refusal> {
    let Kept { fsname, name, value } = kept;
    change(&Request::KeepParam { fsname, name, value })
}

fn change(request: &Request) -> Result<(), Refusal> {
    merged(request).map(drop).map_err(|refusal| match refusal.errno == Errno::ENOENT.0 {
        true => Refusal { text: format!("{}: run this on the host of the MGS", refusal.text), ..refusal },
        false => refusal,
    })
}

/// Splits Lustre's form of a name into the file system and the name with a pattern for the devices:
/// `nacre-OST0000.osc.max_dirty_mb` is `osc.nacre-OST0000*.max_dirty_mb` of `nacre`.
fn conf_name(name: &str) -> Option<(String, String)> {
    let mut parts = name.splitn(3, '.');
    let (device, layer, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let fsname = device.parse().map_or_else(|_| device.to_owned(), |target: TargetName| target.fsname);
    let layer = match layer {
        "ost" => "obdfilter",
        "lov" => "lod",
        layer => layer,
    };
    TargetName::is_fsname(&fsname).then(|| (fsname, format!("{layer}.{device}*.{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_lustres_form_become_patterns() {
        let found = |name| conf_name(name).map(|(fsname, name)| format!("{fsname} {name}"));
        assert_eq!(found("nacre.llite.max_cached_mb").unwrap(), "nacre llite.nacre*.max_cached_mb");
        assert_eq!(found("nacre-OST0000.osc.max_dirty_mb").unwrap(), "nacre osc.nacre-OST0000*.max_dirty_mb");
        assert_eq!(found("nacre-OST0000.ost.readonly").unwrap(), "nacre obdfilter.nacre-OST0000*.readonly");
        assert_eq!(found("nacre-MDT0000.lov.stripesize").unwrap(), "nacre lod.nacre-MDT0000*.stripesize");
        for bad in ["fail_loc", "a.b", "much-too-long.llite.max_cached_mb", ""] {
            assert_eq!(found(bad), None, "{bad}");
        }
    }
}
