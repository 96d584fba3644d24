//! An OST that fills up: the writer is told, nothing that was accepted is lost, and freed space can be used again. It runs
//! on a file system of its own whose first OST lives on a small disk image.

use crate::case::{Case, Env, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Failure, Outcome, bail, ensure};
use crate::prng::pattern;
use crate::process::Program;
use crate::sys;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("full-ost", full_ost).limits(120, 300),
        Case::new("largest-object", largest_object).needs_cluster(),
        Case::new("shared-disk", shared_disk).needs_cluster(),
        Case::new("fiemap", fiemap).needs_cluster(),
    ]
}

/// Bytes of the longest file of the file system that `path` is in, found as a program would: no file reaches further.
fn longest_file(path: &Path) -> Outcome<u64> {
    let file = File::create(path)?;
    let (mut reached, mut refused) = (0u64, 1 << 63);
    while refused - reached > 1 {
        let middle = reached + (refused - reached) / 2;
        match sys::seek(&file, middle, libc::SEEK_SET) {
            Ok(_) => reached = middle,
            Err(_) => refused = middle,
        }
    }
    Ok(reached)
}

/// What the objects of a file cannot hold is refused at once, and a write that begins before is cut there, as the file system
/// below does it with a file of its own.
fn largest_object(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let limit = longest_file(&env.local.join("f"))?;
    if limit >= 1 << 62 {
        return Err(Failure::unsupported("files of the local file system have no limit"));
    }
    let too_large = |result: std::io::Result<()>| result.is_err_and(|e| e.raw_os_error() == Some(libc::EFBIG));
    for stripes in [1, 2] {
        let dir = env.a.join(format!("d{stripes}"));
        fs::create_dir(&dir)?;
        cluster.lfs(&["setstripe", "-c", &stripes.to_string(), "-S", "64k", &text(&dir)])?;
        // The last stripe is shorter, if the limit is a block below a round number.
        let end = if stripes == 1 { limit } else { limit / 65536 * 65536 * stripes + limit % 65536 };
        let file = File::options().read(true).write(true).create_new(true).open(dir.join("f"))?;
        let at = |place: u64, len: usize| file.write_at(&vec![7; len], place);
        ensure!(at(end - 100, 5000)? == 100, "{stripes} stripes: a write that crosses the limit is not cut there");
        ensure!(too_large(at(end, 1).map(drop)), "{stripes} stripes: a write at the limit");
        ensure!(too_large(at(end + (1 << 40), 5000).map(drop)), "{stripes} stripes: a write far behind the limit");
        ensure!(too_large(file.set_len(end + 1)), "{stripes} stripes: a size behind the limit");
        ensure!(too_large(sys::fallocate(&file, 0, end - 4096, 8192)), "{stripes} stripes: allocation");
        ensure!(file.metadata()?.len() == end, "{stripes} stripes: size {}", file.metadata()?.len());
        file.sync_all().context("what was accepted is kept")?;
        file.set_len(end - 50)?;
        let mut appending = File::options().append(true).open(env.b.join(format!("d{stripes}/f")))?;
        ensure!(appending.write(&[7; 100])? == 50, "{stripes} stripes: an append that crosses the limit");
        ensure!(too_large(appending.write(&[7; 100]).map(drop)), "{stripes} stripes: an append at the limit");
        file.set_len(0)?;
    }
    Ok(())
}

/// `lfs fiemap` tells of what has space, on each OST, and of nothing else.
fn fiemap(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    cluster.lfs(&["setstripe", "-c", "2", "-S", "64k", &text(&env.a)])?;
    let path = env.a.join("f");
    let file = File::create(&path)?;
    let shown = || -> Outcome<Vec<Vec<String>>> {
        let text = cluster.lfs(&["fiemap", &text(&path)])?;
        let rows = text.lines().filter(|l| l.contains(": net"));
        Ok(rows.map(|l| l.split([':', ' ', '.']).filter(|w| !w.is_empty()).map(str::to_owned).collect()).collect())
    };
    ensure!(shown()?.is_empty(), "extents of an empty file");
    // A stripe on the first OST, nothing on the second, and one on the first again, 64 stripes later.
    file.write_all_at(&pattern(1, 65536), 0)?;
    file.write_all_at(&pattern(2, 65536), 128 * 65536)?;
    let rows = shown()?;
    let blocks: u64 = rows.iter().filter_map(|row| row.get(5)?.parse::<u64>().ok()).sum();
    ensure!(blocks == 32, "{blocks} blocks: {rows:?}");
    let of: Vec<&str> = rows.iter().filter_map(|row| row.get(6).map(String::as_str)).collect();
    ensure!(of.windows(2).all(|w| w[0] == w[1]), "more than one OST: {rows:?}");
    ensure!(rows.first().is_some_and(|row| row[1] == "0" && row[3] != "0"), "the first extent: {rows:?}");
    ensure!(rows.last().is_some_and(|row| row[2] == (64 * 16 + 15).to_string()), "the last extent: {rows:?}");
    file.write_all_at(&pattern(3, 65536), 65536)?;
    let osts: std::collections::BTreeSet<String> = shown()?.into_iter().filter_map(|row| row.get(6).cloned()).collect();
    ensure!(osts.len() == 2, "the second OST: {osts:?}");
    Ok(())
}

/// Targets on one disk have its space once.
fn shared_disk(env: &Env) -> Outcome {
    let (ours, disk) = (sys::space(&env.a)?, sys::space(&env.local)?);
    ensure!(ours.0 == disk.0, "df says {} bytes in all, the disk has {}", ours.0, disk.0);
    ensure!(ours.1 <= disk.1 + (64 << 20), "df says {} bytes are free, the disk has {}", ours.1, disk.1);
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let shown = cluster.lfs(&["df", &text(&env.a)])?;
    let total = |line: &str| line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
    let sum = shown.lines().find(|l| l.starts_with("filesystem_summary")).and_then(total);
    ensure!(sum == Some(disk.0 / 1024), "lfs df:\n{shown}");
    Ok(())
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
