//! The cache on disk of a mount: what it saves after a remount, and that a kill, a damaged disk or a changed file leave nothing wrong.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::cases::options::{Own, cluster};
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster();
    vec![case("pcc.remount", remount).announces(&["evicting "]), case("pcc.add-and-del", add_and_del)]
}

const FILES: u64 = 20;
const FILE_BYTES: usize = 1_300_000;

fn mount(env: &Env) -> Outcome<Own> {
    Own::mount(env, &format!("cache={},size=200M", env.local.join("cache").display()))
}

/// A tool that speaks to the process of the own mount.
fn tool(env: &Env, name: &str, args: &[&str]) -> Outcome<String> {
    Ok(cluster(env)?.tool_program(name).env("NACRE_RUN_DIR", &env.local).args(args).run()?.stdout)
}

fn values(env: &Env, pattern: &str) -> Outcome<BTreeMap<String, Value>> {
    Ok(serde_json::from_str(&tool(env, "lctl", &["get_param", "--json", pattern])?)?)
}

/// How many reads the mount has sent to OSTs.
fn reads(env: &Env) -> Outcome<u64> {
    Ok(values(env, "osc.*.stats")?.values().map(|stats| stats["ost_read"]["samples"].as_u64().unwrap_or(0)).sum())
}

/// What the cache has counted.
fn counted(env: &Env, what: &str) -> Outcome<u64> {
    match values(env, "llite.*.pcc_stats")?.values().next() {
        Some(stats) => Ok(stats[what].as_u64().unwrap_or(0)),
        None => bail!("the mount has no cache on disk"),
    }
}

/// The process of the own mount, which the name of its admin socket tells.
fn process_of_mount(env: &Env) -> Outcome<i32> {
    for entry in fs::read_dir(&env.local)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("mount-").and_then(|rest| rest.strip_suffix(".sock")?.parse().ok());
        if let Some(pid) = pid {
            return Ok(pid);
        }
    }
    bail!("no process of a mount is in {}", env.local.display())
}

fn check_files(own: &Own, content: &[Vec<u8>]) -> Outcome {
    for (n, content) in content.iter().enumerate() {
        ensure!(fs::read(own.dir.join(format!("f{n}")))? == *content, "f{n} has other bytes");
    }
    Ok(())
}

/// Waits until everything that was read is on the disk.
fn await_kept(env: &Env, bytes: u64) -> Outcome {
    let is_kept = wait_for(Duration::from_secs(20), || Ok(counted(env, "used_bytes")? >= bytes))?;
    ensure!(is_kept, "{bytes} bytes are not in the cache: {:?}", values(env, "llite.*.pcc_stats")?);
    Ok(())
}

/// Flips a byte in the middle of each file with data. Returns how many there are.
fn damage(dir: &Path) -> Outcome<u64> {
    let mut count = 0;
    for entry in fs::read_dir(dir)? {
        let (path, kind) = (entry.as_ref()?.path(), entry?.file_type()?);
        if kind.is_dir() {
            count += damage(&path)?;
        } else if kind.is_file() && path.metadata()?.len() > 0 {
            let (file, mut byte) = (fs::File::options().read(true).write(true).open(&path)?, [0]);
            let middle = path.metadata()?.len() / 2;
            file.read_exact_at(&mut byte, middle)?;
            file.write_all_at(&[!byte[0]], middle)?;
            count += 1;
        }
    }
    Ok(count)
}

fn remount(env: &Env) -> Outcome {
    let mut content: Vec<Vec<u8>> = (0..FILES).map(|n| pattern(n, FILE_BYTES)).collect();
    for (n, content) in content.iter().enumerate() {
        fs::write(env.a.join(format!("f{n}")), content)?;
    }
    let all = FILES * FILE_BYTES as u64;
    let own = mount(env)?;
    check_files(&own, &content)?;
    await_kept(env, all)?;
    let state = tool(env, "lfs", &["pcc", "state", &text(&own.dir.join("f0"))])?;
    ensure!(state.contains(&format!("type: readonly, cached: {FILE_BYTES} of {FILE_BYTES} bytes")), "{state}");
    drop(own);

    let own = mount(env)?;
    check_files(&own, &content)?;
    ensure_eq!((reads(env)?, counted(env, "hit_bytes")?), (0, all), "reads and bytes from the disk after a remount");
    drop(own);

    let place = env.local.join("cache").join(cluster(env)?.source().rsplit('/').next().unwrap_or_default());
    ensure_eq!(fs::metadata(&place)?.permissions().mode() & 0o777, 0o700, "who may look into the cache");
    let damaged = damage(&place.join("data"))?;
    ensure!(damaged >= FILES, "{damaged} files are in {}", place.display());
    let own = mount(env)?;
    check_files(&own, &content)?;
    ensure_eq!(counted(env, "damaged_objects")?, damaged, "objects that were found to be damaged");
    // Pieces that came from the disk before the damaged one of their file are in memory only.
    await_kept(env, all / 2)?;

    content[3] = pattern(99, FILE_BYTES);
    fs::write(env.a.join("f3"), &content[3])?;
    check_files(&own, &content)?;
    // The process dies before the disk has heard of all that it wrote.
    let uuid = tool(env, "lctl", &["get_param", "-n", "llite.*.uuid"])?;
    sys::kill(process_of_mount(env)?, libc::SIGKILL);
    drop(own);
    // Otherwise whoever wants its locks waits until the servers take it for dead.
    for layer in ["mdt", "obdfilter"] {
        cluster(env)?.lctl(&["set_param", &format!("{layer}.*.evict_client={}", uuid.trim())])?;
    }
    // The damaged files may be back: nothing was durable but the beginning.
    check_files(&mount(env)?, &content)
}

fn add_and_del(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), pattern(1, FILE_BYTES))?;
    let (own, dir) = (Own::mount(env, "noatime")?, text(&env.local.join("cache")));
    let at = text(&own.at);
    ensure_eq!(tool(env, "lctl", &["pcc", "list", &at])?, "pcc:\n", "no cache is listed");
    ensure!(tool(env, "lfs", &["pcc", "state", &text(&own.dir.join("f"))])?.contains("type: none"), "no cache");
    let small = tool(env, "lctl", &["pcc", "add", &at, &dir, "--size", "1M"]);
    ensure!(small.is_err_and(|e| e.to_string().contains("at least 64 MiB")), "a cache of 1 MiB was made");
    tool(env, "lctl", &["pcc", "add", "--size=100M", &at, &dir])?;
    let listed = tool(env, "lctl", &["pcc", "list", &at])?;
    ensure!(listed.contains(&format!("- pccpath: {dir}\n  size: 104857600\n")), "{listed}");
    let twice = tool(env, "lctl", &["pcc", "add", &at, &dir]);
    ensure!(twice.is_err_and(|e| e.to_string().contains("already")), "a second cache was added");
    ensure!(fs::read(own.dir.join("f"))? == pattern(1, FILE_BYTES), "f has other bytes");
    await_kept(env, FILE_BYTES as u64)?;
    tool(env, "lctl", &["pcc", "del", &at, &dir])?;
    ensure_eq!(tool(env, "lctl", &["pcc", "list", &at])?, "pcc:\n", "a removed cache is listed");
    tool(env, "lctl", &["pcc", "add", &at, &dir])?;
    ensure_eq!(counted(env, "used_bytes")?, FILE_BYTES as u64, "what a removed cache keeps");
    Ok(())
}
