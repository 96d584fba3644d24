//! `lctl pcc`: the caches on disk of this host's mounts.

use super::ask::{Refusal, ask};
use crate::lfs::{get_xattr, mount_of};
use crate::tool::Options;
use nacre_base::{Errno, size};
use nacre_process::admin::{Answer, Request};
use nacre_process::client_cache::PccTask;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: lctl pcc add [--size SIZE] MOUNTPOINT DIRECTORY | del MOUNTPOINT DIRECTORY | list [--json] MOUNTPOINT";

/// `lctl pcc add|del|list`
pub(super) fn main(args: &[String]) -> ExitCode {
    run(args).map_or_else(|refusal| refusal.fail("lctl pcc"), |()| ExitCode::SUCCESS)
}

fn run(args: &[String]) -> Result<(), Refusal> {
    let invalid = |text: &str| Refusal::new(Errno::EINVAL, text);
    let mut options = Options::new(args);
    let (mut size, mut as_json) = (None, false);
    while let Some(name) = options.next() {
        match name {
            "s" | "size" => {
                let text = options.value().unwrap_or_default();
                let bad = || invalid(&format!("{text:?} is no size, such as 500M or 100G"));
                size = Some(size::parse(text, 1).ok_or_else(bad)?);
            }
            "json" => as_json = true,
            _ => return Err(invalid(USAGE)),
        }
    }
    match (options.operands.as_slice(), size, as_json) {
        (["add", mountpoint, dir], size, false) => {
            change(mountpoint, PccTask::Add { dir: absolute(dir), size }).map(drop)
        }
        (["del", mountpoint, dir], None, false) => change(mountpoint, PccTask::Remove { dir: absolute(dir) }).map(drop),
        (["list", mountpoint], None, as_json) => {
            let caches = change(mountpoint, PccTask::List)?;
            if as_json {
                println!("{caches}")
            } else {
                print!("{}", describe(&caches))
            }
            Ok(())
        }
        _ => Err(invalid(USAGE)),
    }
}

/// The process of the mount has another working directory.
fn absolute(dir: &str) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| PathBuf::from(dir))
}

/// Asks the process of a mount.
fn change(mountpoint: &str, task: PccTask) -> Result<Value, Refusal> {
    let path = Path::new(mountpoint);
    let none = || Refusal::new(Errno::ENOENT, format!("no Nacre file system is mounted at {mountpoint}"));
    let (_, at) = mount_of(path).ok_or_else(none)?;
    let name = get_xattr(&at, "lustre.mount").map_err(|e| Refusal::new(e, format!("{mountpoint}: {}", e.text())))?;
    let mount = String::from_utf8_lossy(&name).into_owned();
    let mut refusal = none();
    for answer in ask(&Request::Pcc { mount, task })? {
        match answer {
            Answer::Value(value) => return Ok(value),
            // The processes of other mounts do not know this one.
            Answer::Error { errno, text } if refusal.errno == Errno::ENOENT.0 => refusal = Refusal { errno, text },
            _ => {}
        }
    }
    Err(refusal)
}

/// The caches as Lustre's tool lists them.
fn describe(caches: &Value) -> String {
    let mut text = "pcc:\n".to_owned();
    for cache in caches.as_array().into_iter().flatten() {
        let bytes = |name: &str| cache[name].as_u64().unwrap_or_default();
        text += &format!(
            "- pccpath: {}\n  size: {}\n  used: {}\n  objects: {}\n",
            cache["dir"].as_str().unwrap_or_default(),
            bytes("size"),
            bytes("used"),
            bytes("objects")
        );
        if cache["has_failed"] == Value::Bool(true) {
            text += "  state: failed; see the log of the mount\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn caches_are_listed_like_lustres() {
        let cache = json!({ "dir": "/var/cache/nacre", "size": 1024, "used": 10, "objects": 2, "has_failed": false });
        let listed = "pcc:\n- pccpath: /var/cache/nacre\n  size: 1024\n  used: 10\n  objects: 2\n";
        assert_eq!(describe(&json!([cache])), listed);
        assert_eq!(describe(&json!([])), "pcc:\n");
    }
}
