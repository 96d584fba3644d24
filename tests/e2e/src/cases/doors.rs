//! What a stranger, or a slip of an administrator, must not be able to do from outside.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, free_ports};
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::process::Program;
use std::fs;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("doors.kept-settings", kept_settings).needs_cluster(),
        Case::new("doors.no-faults", no_faults).needs_cluster().limits(120, 120),
    ]
}

/// `lctl set_param -P` and `conf_param`: the MGS keeps a declared parameter and every mount has it; any other is refused with
/// the reason. Before, the MGS kept any name and every mount obeyed: `fail_loc` with a crash ended each one for good.
fn kept_settings(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let is_everywhere = |value: &str| {
        wait_for(Duration::from_secs(20), || {
            let shown = cluster.lctl(&["get_param", "-n", "osc.*-osc-ffff*.max_dirty_mb"])?;
            Ok(!shown.is_empty() && shown.lines().all(|line| line == value))
        })
    };
    let before = cluster.lctl(&["get_param", "-n", "osc.*-osc-ffff*.max_dirty_mb"])?;
    let before = before.lines().next().unwrap_or_default().to_owned();
    cluster.lctl(&["set_param", "-P", "osc.*.max_dirty_mb=77"])?;
    let reached = is_everywhere("77")?;
    let result = refusals(cluster);
    cluster.lctl(&["set_param", "-P", "-d", "osc.*.max_dirty_mb"])?;
    cluster.lctl(&["set_param", &format!("osc.*-osc-ffff*.max_dirty_mb={before}")])?;
    ensure!(reached, "20 s after `set_param -P` not every mount has the new max_dirty_mb");
    result
}

fn refusals(cluster: &Cluster) -> Outcome {
    for (args, reason) in [
        (["set_param", "-P", "fail_loc=rpc.request.drop:crash"], "no parameter that can be kept"),
        (["set_param", "-P", "**=1"], "no parameter that can be kept"),
        (["set_param", "-P", "mdt.*.evict_client=x"], "no parameter that can be kept"),
        (["set_param", "-P", "osc.*.max_dirty_mb=4096"], "a number from 1 to 2047"),
        (["conf_param", "-d", "nofs.llite.max_cached_mb"], "is not set"),
    ] {
        let lctl = cluster.tool_program("lctl").args(args).output()?;
        ensure_eq!(lctl.status.code(), Some(libc::EINVAL), "exit code of lctl {args:?}: {}", lctl.stderr);
        ensure!(lctl.stderr.contains(reason), "lctl {args:?} does not say why: {}", lctl.stderr);
    }
    Ok(())
}

/// A process that was not started with `--faults` has no `fail_loc`. Before, whoever could write to its admin socket, or to
/// the MGS, could have it crash.
fn no_faults(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let (dir, at, run) = (env.local.join("fs"), env.local.join("mnt"), env.local.join("run"));
    fs::create_dir_all(&at)?;
    let nacre = |args: &[&str]| {
        let program = Program::new(cluster.nacre()).args(args).env("NACRE_RUN_DIR", &run);
        program.limit(Duration::from_secs(60)).output()
    };
    let listen = format!("127.0.0.1:{}", free_ports(1)?[0]);
    let up = nacre(&["up", &text(&dir), &text(&at), "--osts", "1", "--fsname", "one", "--listen", &listen])?;
    ensure!(up.status.success(), "nacre up: {}", up.stderr);
    let set = nacre(&["lctl", "set_param", "fail_loc=rpc.request.drop:crash"]);
    let listed = nacre(&["lctl", "list_param", "*"]);
    let alive = fs::write(at.join("f"), b"alive");
    nacre(&["down", &text(&dir)])?;
    let (set, listed) = (set?, listed?);
    ensure_eq!(set.status.code(), Some(libc::ENOENT), "exit code of set_param fail_loc: {}", set.stderr);
    ensure!(!listed.stdout.contains("fail_loc"), "list_param shows fail_loc: {}", listed.stdout);
    Ok(alive?)
}
