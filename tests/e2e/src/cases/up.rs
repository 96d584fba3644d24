//! The commands that people type: `nacre up`, `status`, `down`, and `mount` into the background.

use crate::case::{Case, Env, text};
use crate::cases::litmus::wait_for;
use crate::cluster::{free_ports, is_mounted, unmount_below};
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::process::Program;
use std::fs;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("up-and-down", up_and_down).needs_cluster().limits(120, 120),
        Case::new("mount-in-background", mount_in_background).needs_cluster(),
    ]
}

/// A file system in one command, twice on the same directory: the second time everything is still there.
fn up_and_down(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let (dir, at) = (env.local.join("fs"), env.local.join("mnt"));
    fs::create_dir_all(&at)?;
    let nacre = |args: &[&str]| {
        let program = Program::new(cluster.nacre()).args(args).env("NACRE_RUN_DIR", env.local.join("run"));
        program.limit(Duration::from_secs(60)).run()
    };
    let listen = format!("127.0.0.1:{}", free_ports(1)?[0]);
    let up = ["up", &text(&dir), &text(&at), "--osts", "3", "--fsname", "one", "--listen", &listen];
    let data = pattern(env.seed, 20 << 20);
    let result = (|| {
        for round in 0..2 {
            let said = nacre(&up)?.stdout;
            ensure!(is_mounted(&at), "`nacre up` returned, but nothing is mounted at {}", at.display());
            ensure!(said.contains(&text(&at)), "`nacre up` does not say where it is mounted: {said:?}");
            if round == 0 {
                fs::write(at.join("f"), &data)?;
            }
            ensure!(fs::read(at.join("f"))? == data, "round {round}: the file differs");
            let status = nacre(&["status", &text(&dir), "--json"])?.stdout;
            ensure!(serde_json::from_str::<serde_json::Value>(&status).is_ok(), "`status --json` is no JSON: {status}");
            let targets = nacre(&["lfs", "df", &text(&at)])?.stdout;
            ensure_eq!(targets.matches("OST:").count(), 3, "OSTs in `lfs df`: {targets}");
            nacre(&["down", &text(&dir)])?;
            ensure!(!is_mounted(&at), "round {round}: still mounted after `nacre down`");
        }
        Ok(())
    })();
    if result.is_err() {
        let _ = nacre(&["down", &text(&dir)]);
        unmount_below(&at);
    }
    result
}

/// Without `-f` the command returns when the mount works, and umount(8) ends its process.
fn mount_in_background(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let at = env.local.join("mnt");
    fs::create_dir_all(&at)?;
    Program::new(cluster.nacre())
        .args(["mount", &cluster.source(), &text(&at)])
        .limit(Duration::from_secs(60))
        .run()?;
    ensure!(is_mounted(&at), "`nacre mount` returned, but nothing is mounted");
    fs::write(env.a.join("f"), b"seen")?;
    let name = env.a.file_name().unwrap_or_default();
    let seen = fs::read(at.join(name).join("f"));
    Program::new("umount").arg(&at).run()?;
    ensure_eq!(seen?, b"seen", "content");
    let gone = wait_for(Duration::from_secs(15), || {
        let processes = Program::new("pgrep").args(["-f", &text(&at)]).output()?;
        Ok(!processes.status.success())
    })?;
    ensure!(gone, "the mount's process still runs 15 s after umount");
    Ok(())
}
