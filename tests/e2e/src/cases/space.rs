//! Targets that fill up, and one whose disk fails. Whoever wants space is told, nothing that was accepted is lost, removing
//! works at any fill, freed space can be used again without a restart, and the full target is named. Each case runs on a
//! file system of its own, with targets on a small disk.

use crate::case::{Case, Env, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Failure, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::process::Program;
use crate::sys;
use serde_json::Value;
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
        Case::new("full-mdt", full_mdt).limits(120, 300),
        Case::new("full-inodes", full_inodes).limits(60, 120),
        Case::new("failing-disk", failing_disk).limits(60, 120),
        Case::new("read-only-disk", read_only_disk).limits(60, 120),
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
        // The last byte lies in an object that can hold it, the end of the stripe before in one that cannot.
        let crossing = limit / 65536 * 65536 * stripes + 65536 * (stripes - 1) + 1;
        let crosses = limit % 65536 != 0 && stripes > 1;
        ensure!(
            !crosses || too_large(file.set_len(crossing)),
            "{stripes} stripes: a size whose first object is too long"
        );
        let size = fs::metadata(env.b.join(format!("d{stripes}/f")))?.len();
        ensure!(size == end, "{stripes} stripes: size {size} after a refused truncation");
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

/// An extent as `lfs fiemap --json` shows it.
#[derive(Debug)]
struct Extent {
    offset: u64,
    physical: u64,
    length: u64,
    ost: u64,
    is_last: bool,
}

impl Extent {
    fn read(shown: &Value) -> Outcome<Extent> {
        let number = |name: &str| shown[name].as_u64().ok_or_else(|| Failure::new(format!("no {name} in {shown}")));
        Ok(Extent {
            offset: number("offset")?,
            physical: number("physical")?,
            length: number("length")?,
            ost: number("ost")?,
            is_last: shown["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "last")),
        })
    }
}

/// `lfs fiemap` tells of what has space, on each OST, and of nothing else.
fn fiemap(env: &Env) -> Outcome {
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    cluster.lfs(&["setstripe", "-c", "2", "-S", "64k", &text(&env.a)])?;
    let path = env.a.join("f");
    let file = File::create(&path)?;
    let shown = || -> Outcome<Vec<Extent>> {
        let printed = cluster.lfs(&["fiemap", "--json", &text(&path)])?;
        let shown: Value = serde_json::from_str(&printed).context("lfs fiemap --json")?;
        let extents = shown["extents"].as_array().ok_or_else(|| Failure::new(format!("no extents in {printed}")))?;
        extents.iter().map(Extent::read).collect()
    };
    ensure!(shown()?.is_empty(), "extents of an empty file");
    // A stripe on the first OST, nothing on the second, and one on the first again, 64 stripes later.
    file.write_all_at(&pattern(1, 65536), 0)?;
    file.write_all_at(&pattern(2, 65536), 128 * 65536)?;
    let rows = shown()?;
    let bytes: u64 = rows.iter().map(|row| row.length).sum();
    ensure!(bytes == 2 * 65536, "{bytes} bytes: {rows:?}");
    ensure!(rows.windows(2).all(|w| w[0].ost == w[1].ost), "more than one OST: {rows:?}");
    ensure!(rows.first().is_some_and(|row| row.offset == 0 && row.physical != 0), "the first extent: {rows:?}");
    let end = rows.last().map(|row| row.offset + row.length);
    ensure!(end == Some(65 * 65536), "the last extent: {rows:?}");
    ensure!(rows.iter().position(|row| row.is_last) == Some(rows.len() - 1), "one is marked as the last: {rows:?}");
    file.write_all_at(&pattern(3, 65536), 65536)?;
    let osts: std::collections::BTreeSet<u64> = shown()?.iter().map(|row| row.ost).collect();
    ensure!(osts.len() == 2, "the second OST: {osts:?}");
    Ok(())
}

/// Targets on one disk have its space once.
fn shared_disk(env: &Env) -> Outcome {
    let (ours, disk) = (sys::space(&env.a)?, sys::space(&env.local)?);
    ensure!(ours.0 == disk.0, "df says {} bytes in all, the disk has {}", ours.0, disk.0);
    ensure!(ours.1 <= disk.1 + (64 << 20), "df says {} bytes are free, the disk has {}", ours.1, disk.1);
    let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
    let osts: Vec<Value> = df(cluster, &env.a)?.into_iter().filter(|target| target["kind"] == "OST").collect();
    ensure!(osts.len() > 1, "{osts:?}");
    for space in osts.iter().map(|ost| &ost["statfs"]) {
        let bytes = space["blocks"].as_u64().zip(space["block_size"].as_u64()).map(|(blocks, size)| blocks * size);
        ensure!(bytes.map(|bytes| bytes / 1024) == Some(disk.0 / 1024), "space of the OSTs: {osts:?}");
        // df counts targets with the same disk once.
        ensure!(space["disk"] != 0 && space["disk"] == osts[0]["statfs"]["disk"], "disks of the OSTs: {osts:?}");
    }
    let shown = cluster.lfs(&["df", &text(&env.a)])?;
    let summary = shown.lines().find(|line| line.starts_with("filesystem_summary")).unwrap_or_default();
    let total = (disk.0 / 1024).to_string();
    ensure!(summary.split_whitespace().nth(1) == Some(&total), "the disk counts once, {total} KiB:\n{shown}");
    Ok(())
}

/// Bits of a target's state, which `lfs df` shows as `S` and `I`.
const OUT_OF_SPACE: u64 = 0x10;
const OUT_OF_INODES: u64 = 0x20;

/// The targets of a mount as `lfs df --json` shows them.
fn df(cluster: &Cluster, at: &Path) -> Outcome<Vec<Value>> {
    serde_json::from_str(&cluster.lfs(&["df", "--json", &text(at)])?).context("lfs df --json")
}

/// Space of a target.
fn space_of(cluster: &Cluster, at: &Path, target: &str) -> Outcome<Value> {
    let mut targets = df(cluster, at)?;
    let Some(found) = targets.iter_mut().find(|found| found["name"] == target) else { bail!("{target} is missing") };
    Ok(found["statfs"].take())
}

/// True if the target's state has all of these bits.
fn has_state(space: &Value, bits: u64) -> bool {
    space["state"].as_u64().is_some_and(|state| state & bits == bits)
}

/// A mounted file system of a few megabytes. Unmounted when dropped.
struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// ext4 in a file, with options for mkfs. Not supported where there are no loop devices.
    fn ext4(env: &Env, megabytes: u32, options: &str) -> Outcome<SmallDisk> {
        let (image, at) = (env.local.join("small.img"), env.local.join("small"));
        fs::create_dir_all(&at)?;
        let script =
            r#"truncate -s "$1"M "$2" && mkfs.ext4 -q -F -m 0 $4 "$2" && mount -o loop,errors=remount-ro "$2" "$3""#;
        let args = ["-c", script, "disk", &megabytes.to_string(), &text(&image), &text(&at), options];
        let made = Program::new("bash").args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").run();
        made.map_err(|_| Failure::unsupported("ext4 on a loop device cannot be mounted here"))?;
        Ok(SmallDisk { at })
    }

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

const SMALL_MDT: &str = "size=32m";
const LARGER_MDT: &str = "remount,size=64m";
const MDT: &str = "e2e-MDT0000";

/// An MDT without space refuses new files, and can be emptied, also after kill -9.
fn full_mdt(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { return Ok(()) };
    let disk = SmallDisk { at: env.local.join("small") };
    fs::create_dir_all(&disk.at)?;
    sys::mount("tmpfs", &disk.at, "tmpfs", SMALL_MDT)?;
    let root = env.local.join("cluster");
    let mut plan = Plan::new(main.nacre(), &root);
    (plan.servers, plan.mounts, plan.targets) = ((1, 2), 1, Some(disk.at.clone()));
    (0..2).for_each(|n| drop(plan.ost_dirs.insert(n, root.join(format!("targets/ost{n}")))));
    let cluster = Cluster::start(plan)?;
    let at = cluster.mount_point(1);
    let filled = fill_mdt(&cluster, &at, &disk.at);
    // The kill is announced by the case, being full by the target.
    env.judge_own(&cluster, filled, &[" WARN "])?;
    cluster.stop()?;
    drop(disk); // Only now: the targets are on it.
    Ok(())
}

fn fill_mdt(cluster: &Cluster, at: &Path, disk: &Path) -> Outcome {
    ensure_eq!(health(cluster)?, "healthy", "health of an empty file system");
    make_first_file(&at.join("kept"))?;
    let first = make_links(at, 0)?;
    ensure!(first > 1000, "full after {first} links");
    // What takes space is refused from now on, and nothing else is.
    until_full("mkdir", |n| fs::create_dir(at.join(format!("small{n}"))))?;
    until_full("create", |n| File::create(at.join(format!("f{n}"))).map(drop))?;
    fs::write(at.join("kept"), b"an object that was there has space")?;
    fs::set_permissions(at.join("kept"), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    File::options().write(true).open(at.join("kept"))?.set_len(3)?;
    let named = wait_for(Duration::from_secs(15), || Ok(health(cluster)?.contains("NOT HEALTHY")))?;
    let said = health(cluster)?;
    ensure!(named && said.contains(&format!("device {MDT} reported unhealthy\nNOT HEALTHY")), "health: {said}");
    ensure!(said.contains(&format!("mdt.{MDT}.health=it is full: ")), "health: {said}");
    let space = space_of(cluster, at, MDT)?;
    let (files, free) = (space["files"].as_u64(), space["files_free"].as_u64());
    let is_used_up = files.zip(free).is_some_and(|(files, free)| free * 100 < files);
    ensure!(is_used_up && has_state(&space, OUT_OF_SPACE | OUT_OF_INODES), "space of the MDT: {space}");
    let shown = cluster.lfs(&["df", "-i", &text(at)])?;
    let line = shown.lines().find(|line| line.starts_with(MDT)).unwrap_or_default();
    ensure!(line.contains("100%") && line.contains("[MDT:0] SI"), "lfs df -i:\n{shown}");
    let log = cluster.log_of("mds")?;
    ensure_eq!(log.matches(&format!("{MDT} is full")).count(), 1, "lines of the log that say that it is full");

    // It can be emptied, and that counts at once.
    for n in 0..first / 2 {
        fs::remove_file(link(at, n)).context(format!("removing link {n} of {first} on a full MDT"))?;
    }
    let usable = wait_for(Duration::from_secs(15), || Ok(fs::create_dir(at.join("d")).is_ok()))?;
    ensure!(usable, "nothing can be made after half of all was removed");
    ensure!(wait_for(Duration::from_secs(15), || Ok(health(cluster)? == "healthy"))?, "health: {}", health(cluster)?);

    // Again, with a crash when it is full; then it is emptied for good.
    let second = make_links(at, first)?;
    cluster.kill("mds")?;
    cluster.restart("mds")?;
    let third = make_links(at, second)?;
    ensure!(third < second + first / 10, "it was full before the restart, but {} more links were made", third - second);
    for n in (first / 2)..third {
        fs::remove_file(link(at, n)).context(format!("removing link {n} after a restart"))?;
    }
    make_links(at, 2 * second)?;
    Program::new("mount").args(["-o", LARGER_MDT, &text(disk)]).run()?;
    let grown = wait_for(Duration::from_secs(15), || Ok(fs::create_dir(at.join("larger")).is_ok()))?;
    ensure!(grown, "nothing can be made after the disk was made larger");
    ensure_eq!(fs::read(at.join("kept"))?, b"an ", "the file that was there before");
    Ok(())
}

/// A disk without inodes: the OST on it refuses new objects and is passed over, the MDT and the MGS on it need none, and all is as
/// before when there are some again.
fn full_inodes(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { return Ok(()) };
    let disk = SmallDisk::ext4(env, 256, "-N 2048")?;
    let root = env.local.join("cluster");
    let mut plan = Plan::new(main.nacre(), &root);
    (plan.servers, plan.mounts, plan.targets) = ((1, 2), 1, Some(disk.at.clone()));
    plan.ost_dirs.insert(0, disk.at.join("ost0"));
    plan.ost_dirs.insert(1, root.join("targets/ost1"));
    let cluster = Cluster::start(plan)?;
    let at = cluster.mount_point(1);
    let lost = lose_inodes(&cluster, &at, &disk.at);
    env.judge_own(&cluster, lost, &[" WARN "])?;
    cluster.stop()?;
    drop(disk); // Only now: targets are on it.
    Ok(())
}

fn lose_inodes(cluster: &Cluster, at: &Path, disk: &Path) -> Outcome {
    for (dir, start) in [("d0", "0"), ("any", "-1")] {
        fs::create_dir(at.join(dir))?;
        cluster.lfs(&["setstripe", "-c", "1", "-i", start, &text(&at.join(dir))])?;
    }
    make_first_file(&at.join("d0/f"))?;
    let foreign = disk.join("foreign");
    fs::create_dir(&foreign)?;
    let taken = (0..4096).find(|n| is_full(&File::create(foreign.join(n.to_string())).map(drop)));
    ensure!(taken.is_some(), "the disk has inodes for ever");
    let write = |path: PathBuf| -> std::io::Result<()> {
        let file = File::create(path)?;
        file.write_all_at(b"data", 0)?;
        file.sync_all()
    };
    // What has objects in advance gets them, and then nothing more.
    let refused = (0..2000).find(|n| is_full(&write(at.join(format!("d0/g{n}")))));
    ensure!(refused.is_some(), "files of a full OST are made for ever");
    let says = "its file system has no inodes left";
    ensure!(wait_for(Duration::from_secs(20), || Ok(health(cluster)?.contains(says)))?, "health: {}", health(cluster)?);
    let space = space_of(cluster, at, "e2e-OST0000")?;
    ensure!(has_state(&space, OUT_OF_INODES), "space of the OST: {space}");
    let shown = cluster.lfs(&["df", "-i", &text(at)])?;
    let line = shown.lines().find(|line| line.contains("OST0000")).unwrap_or_default();
    ensure!(line.trim_end().ends_with('I') || line.contains(" I"), "lfs df -i:\n{shown}");
    // The MDT's records are in its index, and the other OST has all new objects.
    let mut made = 0;
    let passed_over = wait_for(Duration::from_secs(20), || {
        fs::create_dir(at.join(format!("new{made}"))).context("a directory, without an inode for the MDT")?;
        let any = (0..20).all(|n| write(at.join(format!("any/f{made}-{n}"))).is_ok());
        made += 1;
        Ok(any)
    })?;
    ensure!(passed_over, "new files still get objects on the full OST, after {made} rounds");
    cluster
        .lctl(&["set_param", "-P", "llite.*.max_cached_mb=64"])
        .context("a setting, without an inode for the MGS")?;
    fs::remove_dir_all(&foreign)?;
    let usable = wait_for(Duration::from_secs(20), || Ok(write(at.join("d0/again")).is_ok()))?;
    ensure!(usable, "no file can be made on the OST though its disk has inodes again");
    ensure!(wait_for(Duration::from_secs(20), || Ok(health(cluster)? == "healthy"))?, "health: {}", health(cluster)?);
    Ok(())
}

/// An OST whose file system becomes read-only stops and says so; the other one goes on, and nothing is lost.
fn read_only_disk(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { return Ok(()) };
    let disk = SmallDisk::ext4(env, 256, "-J size=8")?;
    let mut plan = Plan::new(main.nacre(), &env.local.join("cluster"));
    (plan.servers, plan.mounts) = ((2, 1), 1);
    plan.ost_dirs.insert(0, disk.at.join("ost0"));
    let cluster = Cluster::start(plan)?;
    let at = cluster.mount_point(1);
    let failed = lose_writing(&cluster, &at, &disk.at);
    env.judge_own(&cluster, failed, &[" WARN ", "the target stops, other targets go on"])?;
    cluster.stop()?;
    drop(disk);
    Ok(())
}

fn lose_writing(cluster: &Cluster, at: &Path, disk: &Path) -> Outcome {
    two_files(cluster, at)?;
    let image = disk.with_extension("img");
    // As the kernel does when it finds the file system damaged.
    let script = r#"dev=$(findmnt -n -o SOURCE "$1") && echo test > "/sys/fs/ext4/${dev#/dev/}/trigger_fs_error""#;
    Program::new("bash").args(["-c", script, "error", &text(disk)]).run().context("an error of the file system")?;
    let unwritten = File::options().write(true).open(at.join("d0/f"))?;
    unwritten.write_all_at(b"new", 0)?;
    stops_alone(cluster, at)?;
    cluster.kill("oss1")?;
    let mend = r#"umount "$1" && { e2fsck -p "$2" > /dev/null || [ $? -lt 4 ]; } && mount -o loop,errors=remount-ro "$2" "$1""#;
    Program::new("bash")
        .args(["-c", mend, "mend", &text(disk), &text(&image)])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .run()
        .context("e2fsck")?;
    cluster.restart("oss1")?;
    // The commands that ran meanwhile were forked, and have closed the file too: the error is still there for fsync.
    let told = unwritten.sync_all();
    ensure!(told.is_err_and(|e| e.raw_os_error() == Some(libc::EIO)), "fsync does not tell what was not written");
    unwritten.write_all_at(b"new", 0)?;
    goes_on(cluster, at, &unwritten)
}

/// An OST whose disk answers EIO stops and says so; the other one goes on.
fn failing_disk(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { return Ok(()) };
    let mut plan = Plan::new(main.nacre(), &env.local.join("cluster"));
    (plan.servers, plan.mounts) = ((2, 1), 1);
    let cluster = Cluster::start(plan)?;
    let at = cluster.mount_point(1);
    let failed = lose_disk(&cluster, &at);
    env.judge_own(&cluster, failed, &[" WARN ", "the target stops, other targets go on"])?;
    cluster.stop()
}

fn lose_disk(cluster: &Cluster, at: &Path) -> Outcome {
    two_files(cluster, at)?;
    cluster.arm_fault_of("oss1", "osd.commit", "fail=5")?;
    let unwritten = File::options().write(true).open(at.join("d0/f"))?;
    unwritten.write_all_at(b"new", 0)?;
    stops_alone(cluster, at)?;
    cluster.kill("oss1")?;
    cluster.restart("oss1")?;
    goes_on(cluster, at, &unwritten)
}

/// A file on each of two OSTs.
fn two_files(cluster: &Cluster, at: &Path) -> Outcome {
    for n in 0..2 {
        let dir = at.join(format!("d{n}"));
        fs::create_dir(&dir)?;
        cluster.lfs(&["setstripe", "-c", "1", "-i", &n.to_string(), &text(&dir)])?;
        make_first_file(&dir.join("f"))?;
        fs::write(dir.join("f"), pattern(n, CHUNK))?;
        File::open(dir.join("f"))?.sync_all()?;
    }
    Ok(())
}

/// The first OST says why it stops, and the second takes more.
fn stops_alone(cluster: &Cluster, at: &Path) -> Outcome {
    let says = "its disk has, then stop and start";
    ensure!(wait_for(Duration::from_secs(15), || Ok(cluster.log_of("oss1")?.contains(says)))?, "no line in the log");
    let said = health(cluster)?;
    ensure!(said.contains("device e2e-OST0000 reported unhealthy\nNOT HEALTHY"), "health: {said}");
    ensure!(said.contains("obdfilter.e2e-OST0000.health=it has stopped"), "health: {said}");
    fs::write(at.join("d1/f"), b"the other goes on")?;
    File::open(at.join("d1/f"))?.sync_all().context("the other OST")
}

/// What was written to the first OST's file before and after it had stopped is there.
fn goes_on(cluster: &Cluster, at: &Path, unwritten: &File) -> Outcome {
    unwritten.sync_all()?;
    let content = fs::read(at.join("d0/f"))?;
    let (head, len) = (String::from_utf8_lossy(&content[..3]), content.len());
    ensure!(
        head == "new" && content[3..] == pattern(0, CHUNK)[3..],
        "what was written before is lost: {head:?}, {len} bytes"
    );
    ensure_eq!(health(cluster)?, "healthy", "health after the restart");
    Ok(())
}

/// A few small ones may have space that a long link had not.
fn until_full(what: &str, make: impl Fn(usize) -> std::io::Result<()>) -> Outcome {
    for n in 0..200 {
        let made = make(n);
        if is_full(&made) {
            return Ok(());
        }
        made.context(what)?;
    }
    bail!("{what} goes on on a full MDT")
}

fn link(at: &Path, n: usize) -> PathBuf {
    at.join(format!("link{n}"))
}

/// Makes symbolic links of 3,000 bytes until there is no space; the number after the last.
fn make_links(at: &Path, from: usize) -> Outcome<usize> {
    let target = "x".repeat(3000);
    for n in from.. {
        let made = std::os::unix::fs::symlink(&target, link(at, n));
        if is_full(&made) {
            return Ok(n);
        }
        made.context(format!("link {n}"))?;
        ensure!(n < from + 50_000, "150 MB of links on a disk of 32 MB");
    }
    bail!("no end")
}

fn is_full(result: &std::io::Result<()>) -> bool {
    result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOSPC))
}

/// What `health_check` says of all processes, and why the targets are ill that it names.
fn health(cluster: &Cluster) -> Outcome<String> {
    let said = cluster.lctl(&["get_param", "-n", "health_check"])?;
    if said.trim() == "healthy" {
        return Ok("healthy".to_owned());
    }
    Ok(said + &cluster.lctl(&["get_param", "*.*.health"])?)
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
