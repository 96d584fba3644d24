//! Options of mount(8): each is shown by the kernel and does what it says, also after a remount, and from a line of an fstab.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, is_mounted};
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::process::Program;
use crate::sys;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster();
    vec![
        case("options.shown", shown),
        case("options.read-only", read_only),
        case("options.access-times", access_times),
        case("options.sync", sync),
        case("options.checksums", checksums),
        case("options.fstab", fstab),
    ]
}

/// A mount of the main file system with options of its own, made as an administrator makes it.
pub(super) struct Own {
    pub(super) at: PathBuf,
    /// The case's directory there.
    pub(super) dir: PathBuf,
}

pub(super) fn cluster(env: &Env) -> Outcome<&Cluster> {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    Ok(cluster)
}

impl Own {
    pub(super) fn mount(env: &Env, options: &str) -> Outcome<Own> {
        let cluster = cluster(env)?;
        let at = env.local.join("own");
        fs::create_dir_all(&at)?;
        let below = env.a.strip_prefix(cluster.mount_point(1)).context("the case's directory")?.to_owned();
        let mount = Program::new(cluster.nacre()).env("NACRE_RUN_DIR", &env.local);
        mount.args(["mount", &cluster.source(), &text(&at), "-o", options]).limit(Duration::from_secs(30)).run()?;
        Ok(Own { dir: at.join(below), at })
    }

    fn remount(&self, options: &str) -> Outcome {
        Program::new("mount").args(["-i", "-o", &format!("remount,{options}"), &text(&self.at)]).run().map(drop)
    }

    /// All options that the kernel shows.
    fn shown(&self) -> Outcome<Vec<String>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let at = text(&self.at);
        let line = mounts.lines().rev().find(|l| l.split(' ').nth(4) == Some(&at)).unwrap_or_default();
        let of_super = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').nth(2)).unwrap_or_default();
        let of_mount = line.split(' ').nth(5).unwrap_or_default();
        Ok(of_mount.split(',').chain(of_super.split(',')).map(str::to_owned).collect())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if sys::unmount(&self.at, false).is_err() {
            let _ = sys::unmount(&self.at, true);
        }
    }
}

fn shown(env: &Env) -> Outcome {
    let all = ["nosuid", "nodev", "noexec", "nodiratime"];
    for (given, expected) in [
        ("nosuid,nodev,noexec,nodiratime,noatime,sync,dirsync,ro", &["noatime", "sync", "dirsync", "ro"][..]),
        ("nosuid,nodev,noexec,nodiratime,suid,nosuid,strictatime,rw", &["rw"][..]),
        ("nosuid,nodev,noexec,nodiratime,relatime,_netdev,x-systemd.automount", &["relatime", "rw"][..]),
    ] {
        let own = Own::mount(env, given)?;
        let shown = own.shown()?;
        for option in all.iter().chain(expected) {
            ensure!(shown.iter().any(|s| s == option), "{option} of {given} is not among {shown:?}");
        }
        for option in ["noatime", "relatime", "sync", "dirsync"] {
            let (is, wanted) = (shown.iter().any(|s| s == option), expected.contains(&option));
            ensure_eq!(is, wanted, "whether {option} of {given} is shown");
        }
        fs::copy("/bin/true", env.a.join("true"))?;
        fs::set_permissions(env.a.join("true"), PermissionsExt::from_mode(0o755))?;
        let run = Command::new(own.dir.join("true")).status();
        ensure!(run.is_err_and(|e| e.raw_os_error() == Some(libc::EACCES)), "a program ran in spite of noexec");
    }
    let own = Own::mount(env, "exec,dev,suid")?;
    ensure!(Command::new(own.dir.join("true")).status()?.success(), "a program did not run");
    let unknown = Own::mount(env, "quota");
    ensure!(unknown.is_err_and(|e| e.to_string().contains("not known")), "an unknown option was taken");
    Ok(())
}

/// Makes the last access older than the last change.
fn age(path: &Path) -> Outcome {
    let then = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(path)?.set_times(fs::FileTimes::new().set_accessed(then))?;
    Ok(())
}

/// Reads a file through one mount: whether another mount soon sees another time of access.
fn is_noted(own: &Own, env: &Env) -> Outcome<bool> {
    let time = || -> Outcome<(i64, i64)> {
        let m = fs::metadata(env.a.join("f"))?;
        Ok((m.atime(), m.atime_nsec()))
    };
    let before = time()?;
    std::thread::sleep(Duration::from_millis(20));
    let mut data = Vec::new();
    File::open(own.dir.join("f"))?.read_to_end(&mut data)?;
    ensure_eq!(data, b"data", "what was read");
    // A close does not wait for its answer.
    wait_for(Duration::from_millis(300), || Ok(time()? != before))
}

/// Of the two options the last one counts.
fn checksums(env: &Env) -> Outcome {
    for (options, expected) in [("nochecksum", "0"), ("nochecksum,checksum", "1")] {
        let own = Own::mount(env, options)?;
        let lctl = cluster(env)?.tool_program("lctl").env("NACRE_RUN_DIR", &env.local);
        let shown = lctl.args(["get_param", "-n", "osc.*.checksums"]).run()?.stdout;
        ensure!(!shown.is_empty() && shown.lines().all(|line| line == expected), "{options}: checksums are {shown:?}");
        fs::write(own.dir.join("f"), "data")?;
        ensure_eq!(fs::read(env.a.join("f"))?, b"data", "what was written");
    }
    Ok(())
}

fn access_times(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), "data")?;
    let own = Own::mount(env, "noatime")?;
    age(&env.a.join("f"))?;
    ensure!(!is_noted(&own, env)?, "noatime: an access was noted");
    // As of any file system: mount(8) takes noatime back by its opposite alone.
    own.remount("atime,relatime")?;
    ensure!(is_noted(&own, env)?, "relatime: the first access was not noted");
    ensure!(!is_noted(&own, env)?, "relatime: the second access was noted");
    own.remount("strictatime")?;
    for n in 0..3 {
        ensure!(is_noted(&own, env)?, "strictatime: access {n} was not noted");
    }
    own.remount("noatime")?;
    age(&env.a.join("f"))?;
    ensure!(!is_noted(&own, env)?, "noatime again: an access was noted");
    Ok(())
}

fn read_only(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), "data")?;
    age(&env.a.join("f"))?;
    let own = Own::mount(env, "ro,strictatime")?;
    let refused = |result: std::io::Result<()>| result.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS));
    ensure!(refused(fs::write(own.dir.join("f"), "x")), "a write to a mount that is read-only");
    ensure!(refused(fs::create_dir(own.dir.join("d"))), "a mkdir in a mount that is read-only");
    ensure!(!is_noted(&own, env)?, "an access was noted through a mount that is read-only");
    own.remount("rw,strictatime")?;
    ensure!(is_noted(&own, env)?, "an access was not noted after a remount");
    fs::create_dir(own.dir.join("d"))?;
    fs::write(own.dir.join("f"), "data")?;
    own.remount("ro")?;
    ensure!(refused(fs::remove_dir(own.dir.join("d"))), "an rmdir after a remount to read-only");
    ensure_eq!(fs::read(env.a.join("f"))?, b"data", "what was written before");
    Ok(())
}

fn sync(env: &Env) -> Outcome {
    let cluster = cluster(env)?;
    let dirty = || dirty_bytes(env, cluster);
    let own = Own::mount(env, "sync,dirsync")?;
    let mut file = File::create(own.dir.join("f"))?;
    for n in 0..4 {
        file.write_all(&[n; 70_000])?;
        ensure_eq!(dirty()?, 0, "dirty bytes of a mount with sync, after write {n}");
    }
    fs::rename(own.dir.join("f"), own.dir.join("g"))?;
    own.remount("async")?;
    let mut noticed = false;
    for n in 0..20 {
        file.write_all(&[n; 70_000])?;
        noticed |= dirty()? > 0;
    }
    ensure!(noticed, "writes are synchronous after a remount without sync");
    ensure_eq!(fs::metadata(env.a.join("g"))?.len(), 24 * 70_000, "size");
    Ok(())
}

/// Dirty bytes in the case's own mount.
fn dirty_bytes(env: &Env, cluster: &Cluster) -> Outcome<u64> {
    let lctl = cluster.tool_program("lctl").env("NACRE_RUN_DIR", &env.local);
    let printed = lctl.args(["get_param", "--json", "osc.*.cur_dirty_bytes"]).run()?.stdout;
    let by_ost: BTreeMap<String, u64> = serde_json::from_str(&printed).context(format!("dirty bytes: {printed}"))?;
    Ok(by_ost.values().sum())
}

/// mount(8) finds its helper in /sbin only, so this is done in a mount namespace of its own, with another /sbin.
fn fstab(env: &Env) -> Outcome {
    let cluster = cluster(env)?;
    let at = env.local.join("own");
    let (bin, work, upper) = (env.local.join("bin"), env.local.join("work"), env.local.join("upper"));
    for dir in [&at, &bin, &work, &upper] {
        fs::create_dir_all(dir)?;
    }
    std::os::unix::fs::symlink(cluster.nacre(), bin.join("mount.nacre"))?;
    let line = format!("{} {} nacre noatime,nosuid,_netdev 0 0\n", cluster.source(), text(&at));
    fs::write(env.local.join("fstab"), line)?;
    let script = format!(
        "set -e; cd {}; mount -t overlay -o lowerdir={}:$(realpath /sbin) overlay $(realpath /sbin)\n\
         mount -T fstab {at}; grep ' {at} ' /proc/self/mounts; ls {at} > ls\n\
         mount -T fstab -o remount,ro,noatime,nosuid {at}; grep ' {at} ' /proc/self/mounts; umount {at}\n",
        text(&env.local),
        text(&bin),
        at = text(&at),
    );
    let shell = Program::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let printed = shell.env("NACRE_RUN_DIR", &env.local).limit(Duration::from_secs(30)).run()?;
    let lines: Vec<&str> = printed.stdout.lines().collect();
    ensure_eq!(lines.len(), 2, "lines of the mount table: {}", printed.stdout);
    ensure!(lines[0].contains("rw,nosuid,noatime"), "{}", lines[0]);
    ensure!(lines[1].contains("ro,nosuid,noatime"), "{}", lines[1]);
    ensure!(!is_mounted(&at), "the mount is in this namespace");
    Ok(())
}
