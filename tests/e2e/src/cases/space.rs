//! An OST that fills up: the writer is told, nothing that was accepted is lost, and freed space can be used again. It runs
//! on a file system of its own whose first OST lives on a small disk image.

use crate::case::{Case, Env, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::prng::pattern;
use crate::process::Program;
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![Case::new("full-ost", full_ost).limits(120, 300)]
}

/// A mounted file system of a few megabytes. Unmounted when dropped.
struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// ext4 in a file, or tmpfs where there are no loop devices.
    fn mount(env: &Env, megabytes: u32) -> Outcome<SmallDisk> {
        let (image, at) = (env.local.join("small.img"), env.local.join("small"));
        fs::create_dir_all(&at)?;
        let script = r#"truncate -s "$1"M "$2" && mkfs.ext4 -q -F -m 0 "$2" && mount -o loop "$2" "$3" && exit 0
                        mount -t tmpfs -o size="$1"M tmpfs "$3""#;
        let args = ["-c", script, "disk", &megabytes.to_string(), &text(&image), &text(&at)];
        Program::new("bash").args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").run().context("a small disk")?;
        Ok(SmallDisk { at })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if sys::unmount(&self.at, false).is_err() {
            let _ = sys::unmount(&self.at, true);
        }
    }
}

fn full_ost(env: &Env) -> Outcome {
    let disk = SmallDisk::mount(env, 256)?;
    let Some(main) = &env.cluster else {
        let dir = disk.at.join("d");
        fs::create_dir(&dir)?;
        return fill(&dir, &dir);
    };
    let mut plan = Plan::new(main.nacre(), &env.local.join("cluster"));
    plan.servers = (1, 2);
    plan.ost_dirs.insert(0, disk.at.join("ost0"));
    let cluster = Cluster::start(plan)?;
    let (a, b) = (cluster.mount_point(1).join("d"), cluster.mount_point(2).join("d"));
    fs::create_dir(&a)?;
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &text(&a)])?;
    let other = cluster.mount_point(1).join("other");
    fs::create_dir(&other)?;
    cluster.lfs(&["setstripe", "-c", "1", "-i", "1", &text(&other)])?;
    make_first_file(&a.join("f"))?;
    let filled = fill(&a, &b);
    env.judge_own(&cluster, filled, &[" WARN "])?;
    fs::write(other.join("f"), pattern(9, 8 << 20)).context("writing to the OST that is not full")?;
    cluster.stop()?;
    let wrong = cluster.complaints(&[" WARN "]);
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    drop(disk); // Only now: the OST's directory is on it.
    Ok(())
}

const CHUNK: usize = 65_536;

/// Fills the disk below `a`, and reads back through `b`.
fn fill(a: &Path, b: &Path) -> Outcome {
    let file = File::create(a.join("filler"))?;
    let (mut written, mut synced) = (0u64, 0u64);
    let is_full = |e: &std::io::Error| e.raw_os_error() == Some(libc::ENOSPC);
    loop {
        match file.write_all_at(&pattern(written, CHUNK), written * CHUNK as u64) {
            Ok(()) => written += 1,
            Err(e) if is_full(&e) => break,
            Err(e) => return Err(e.into()),
        }
        if written % 64 == 0 {
            match file.sync_all() {
                Ok(()) => synced = written,
                Err(e) if is_full(&e) => break,
                Err(e) => return Err(e.into()),
            }
        }
        ensure!(written < 8192, "512 MiB were written to a disk of 256 MiB");
    }
    ensure!(written > 500, "full after {written} chunks of 64 KiB on an empty disk of 256 MiB");
    match file.sync_all() {
        Ok(()) => synced = written,
        Err(e) if is_full(&e) => {}
        Err(e) => bail!("fsync when full: {e}"),
    }
    drop(file);
    let reader = File::open(b.join("filler"))?;
    let mut chunk = vec![0; CHUNK];
    for n in 0..synced {
        reader.read_exact_at(&mut chunk, n * CHUNK as u64).context(format!("chunk {n} of {synced}"))?;
        ensure!(chunk == pattern(n, CHUNK), "chunk {n} of {synced} that fsync accepted is damaged");
    }
    drop(reader);
    fs::remove_file(b.join("filler"))?;
    let again = || -> std::io::Result<()> {
        let file = File::create(a.join("after"))?;
        file.write_all_at(&pattern(1, 10 << 20), 0)?;
        file.sync_all()
    };
    let usable = wait_for(Duration::from_secs(30), || match again() {
        Ok(()) => Ok(true),
        Err(e) if is_full(&e) => Ok(false),
        Err(e) => Err(e.into()),
    })?;
    ensure!(usable, "still full 30 s after the file was removed");
    ensure!(fs::read(b.join("after"))? == pattern(1, 10 << 20), "the file written after space was freed differs");
    Ok(())
}
