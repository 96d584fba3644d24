//! Things go wrong while a writer writes: processes are killed and restarted, ports receive rubbish, bytes flip on the
//! wire. What was acknowledged stays; the mount works on; no process dies that was not killed.

use crate::case::{Case, Env, Layout, text};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::Cluster;
use crate::failure::{Context, Outcome, bail, ensure};
use crate::prng::{Prng, pattern};
use crate::process::{Program, Running};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let kill = |name, run| Case::new(name, run).needs_cluster().limits(240, 600);
    vec![
        Case::new("durable", durable),
        kill("kill.mgs", |env| kill_and_restart(env, "mgs")),
        kill("kill.mds", |env| kill_and_restart(env, "mds")),
        kill("kill.oss1", |env| kill_and_restart(env, "oss1")),
        kill("kill.oss2", |env| kill_and_restart(env, "oss2")),
        kill("kill.all", power_cut).layouts(&[], &[Layout::Count(-1)]),
        Case::new("noise-at-ports", noise_at_ports).needs_cluster().announces(&[" WARN nacre_lnet"]),
        Case::new("corruption-on-wire", corruption_on_wire).needs_cluster().announces(&["checksum", "corrupt"]),
    ]
}

/// Files of the writer, record slots in each, bytes of a record: more than pages and stripes, and aligned to neither.
const FILES: u64 = 4;
const SLOTS: u64 = 40;
const RECORD: usize = 40_013;

/// The record of a slot: says which one it is, then bytes that only it has.
fn record(file: u64, slot: u64, version: u64) -> Vec<u8> {
    let mut bytes = [file, slot, version].map(u64::to_le_bytes).concat();
    bytes.extend(pattern(version << 16 | file << 8 | slot, RECORD - bytes.len()));
    bytes
}

/// The body of the worker: until its standard input ends, writes records and makes and removes files, and logs, on the
/// local disk, what it begins (small letter) and what fsync acknowledged (capital letter).
pub(crate) fn write_durably(dir: &Path, log: &Path, seed: u64) -> Outcome {
    static ENOUGH: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ENOUGH.store(true, Ordering::Relaxed);
    });
    let mut writer = DurableWriter::new(dir, log, seed)?;
    while !ENOUGH.load(Ordering::Relaxed) {
        writer.step()?;
    }
    Ok(())
}

struct DurableWriter {
    dir: PathBuf,
    dir_handle: File,
    files: Vec<File>,
    log: File,
    random: Prng,
    version: u64,
    names: Vec<u64>,
}

impl DurableWriter {
    fn new(dir: &Path, log: &Path, seed: u64) -> Outcome<DurableWriter> {
        let open =
            |n| File::options().read(true).write(true).create(true).truncate(false).open(dir.join(format!("data-{n}")));
        let files = (0..FILES).map(open).collect::<std::io::Result<Vec<_>>>()?;
        let dir_handle = File::open(dir)?;
        dir_handle.sync_all().context("fsync of the directory")?;
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        Ok(DurableWriter {
            dir: dir.to_owned(),
            dir_handle,
            files,
            log,
            random: Prng::new(seed),
            version: 0,
            names: Vec::new(),
        })
    }

    fn note(&mut self, line: String) -> Outcome {
        // One write each, so that the reader never sees half a line.
        Ok(self.log.write_all(format!("{line}\n").as_bytes())?)
    }

    fn step(&mut self) -> Outcome {
        match self.random.below(4) {
            0 => self.make_name(),
            1 if self.names.len() > 10 => self.remove_name(),
            _ => self.write_records(),
        }
    }

    fn write_records(&mut self) -> Outcome {
        let file = self.random.next() % FILES;
        let mut written = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let slot = self.random.next() % SLOTS;
            self.version += 1;
            let what = format!("{file} {slot} {}", self.version);
            self.note(format!("w {what}"))?;
            let bytes = record(file, slot, self.version);
            self.files[file as usize].write_all_at(&bytes, slot * RECORD as u64).context("write")?;
            written.push(what);
        }
        self.files[file as usize].sync_all().context("fsync")?;
        written.into_iter().try_for_each(|what| self.note(format!("W {what}")))
    }

    fn make_name(&mut self) -> Outcome {
        self.version += 1;
        let name = self.version;
        self.note(format!("c {name}"))?;
        let temporary = self.dir.join("temporary");
        let file = File::create(&temporary).context("create")?;
        file.write_all_at(&pattern(name, 5000), 0).context("write of a new file")?;
        file.sync_all().context("fsync of a new file")?;
        fs::rename(&temporary, self.dir.join(format!("name-{name}"))).context("rename")?;
        self.dir_handle.sync_all().context("fsync of the directory")?;
        self.names.push(name);
        self.note(format!("C {name}"))
    }

    fn remove_name(&mut self) -> Outcome {
        let name = self.names.swap_remove(self.random.below(self.names.len()));
        self.note(format!("u {name}"))?;
        fs::remove_file(self.dir.join(format!("name-{name}"))).context("unlink")?;
        self.dir_handle.sync_all().context("fsync of the directory")?;
        self.note(format!("U {name}"))
    }
}

/// What the log says of each slot and name: versions begun and acknowledged last; letters begun and acknowledged last.
#[derive(Default)]
struct Acknowledged {
    slots: BTreeMap<(u64, u64), (u64, u64)>,
    names: BTreeMap<u64, (char, char)>,
    count: usize,
}

fn read_log(log: &Path) -> Outcome<Acknowledged> {
    let mut out = Acknowledged::default();
    for line in fs::read_to_string(log).unwrap_or_default().lines() {
        let (letter, numbers) = line.split_at(1);
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let letter = letter.chars().next().unwrap_or(' ');
        match (letter, &numbers[..]) {
            ('w', &[file, slot, version]) => out.slots.entry((file, slot)).or_default().0 = version,
            ('W', &[file, slot, version]) => out.slots.entry((file, slot)).or_default().1 = version,
            ('c' | 'u', &[name]) => out.names.entry(name).or_insert((' ', ' ')).0 = letter,
            ('C' | 'U', &[name]) => out.names.entry(name).or_insert((' ', ' ')).1 = letter,
            _ => bail!("damaged log line {line:?}"),
        }
        out.count += usize::from(letter.is_uppercase());
    }
    Ok(out)
}

/// Checks that all that was acknowledged is in the directory, and nothing else in its place.
pub(crate) fn verify(dir: &Path, log: &Path) -> Outcome {
    let acknowledged = read_log(log)?;
    ensure!(acknowledged.count > 0, "nothing was acknowledged");
    let files = (0..FILES).map(|n| fs::read(dir.join(format!("data-{n}")))).collect::<std::io::Result<Vec<_>>>()?;
    for (&(file, slot), &(begun, acked)) in &acknowledged.slots {
        if acked < begun {
            continue; // The last write of this slot was under way when the writer died: old, new or torn.
        }
        let at = slot as usize * RECORD;
        let found = files[file as usize].get(at..at + RECORD).unwrap_or(&[]);
        if found != record(file, slot, acked) {
            let version = found.get(16..24).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
            bail!(
                "data-{file}, slot {slot}: version {acked} was acknowledged, found {version:?}, {} bytes",
                found.len()
            );
        }
    }
    for (&name, &(begun, acked)) in &acknowledged.names {
        let content = fs::read(dir.join(format!("name-{name}")));
        match (begun, acked) {
            ('c', 'C') => {
                let content = content.context(format!("name-{name}, whose creation was acknowledged"))?;
                ensure!(content == pattern(name, 5000), "name-{name}: wrong content, {} bytes", content.len());
            }
            ('u', 'U') => ensure!(content.is_err(), "name-{name} is back after its removal was acknowledged"),
            _ => {} // Under way: either is right.
        }
    }
    Ok(())
}

/// Makes a file as soon as that is possible: the MDT hears of a new OST from the MGS, a moment after the OST serves.
pub(crate) fn make_first_file(file: &Path) -> Outcome {
    let made = wait_for(Duration::from_secs(20), || Ok(File::create(file).is_ok()))?;
    ensure!(made, "{}: no file can be made 20 s after the start", file.display());
    Ok(())
}

/// The writer and its log.
pub(crate) struct Writer {
    running: Running,
    dir: PathBuf,
    log: PathBuf,
}

impl Writer {
    pub(crate) fn start(env: &Env) -> Outcome<Writer> {
        Writer::start_in(&env.a, &env.local, env.seed)
    }

    /// In a directory of the file system under test, with its log on the local disk.
    pub(crate) fn start_in(parent: &Path, local: &Path, seed: u64) -> Outcome<Writer> {
        let (dir, log) = (parent.join("durable"), local.join("acknowledged.log"));
        fs::create_dir(&dir)?;
        let running = Program::worker("durable")?.args([text(&dir), text(&log), seed.to_string()]).start()?;
        Ok(Writer { running, dir, log })
    }

    /// Waits until so many more things have been acknowledged.
    pub(crate) fn progress(&mut self, more: usize, limit: Duration) -> Outcome {
        let (before, begin) = (read_log(&self.log)?.count, Instant::now());
        loop {
            let count = read_log(&self.log)?.count - before;
            if count >= more {
                return Ok(());
            }
            if self.running.has_ended() {
                bail!("the writer ended by itself: {}", self.running.last_words());
            }
            ensure!(begin.elapsed() < limit, "{count} of {more} acknowledgements in {} s", limit.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks, with the writer standing still, what it was promised, through a mount at `root` that has not cached anything of it.
    pub(crate) fn verify_through(&self, mount: &Path, env: &Env) -> Outcome {
        let dir = seen_through(mount, &self.dir, env)?;
        self.running.signal(libc::SIGSTOP);
        let outcome = verify(&dir, &self.log);
        self.running.signal(libc::SIGCONT);
        outcome.context("seen by a mount that had cached nothing")
    }

    /// Ends the writer, which must not have met any error.
    pub(crate) fn finish(mut self) -> Outcome<(PathBuf, PathBuf)> {
        self.running.end_input();
        self.running.finish(Duration::from_secs(90)).context("the writer")?;
        Ok((self.dir, self.log))
    }
}

/// Where a directory or file of the first mount is on another one.
pub(crate) fn seen_through(mount: &Path, path: &Path, env: &Env) -> Outcome<PathBuf> {
    let first = cluster(env)?.mount_point(1);
    Ok(mount.join(path.strip_prefix(&first).context("a place on the first mount")?))
}

/// The writer alone, with nothing going wrong: shows that it and its check are right.
fn durable(env: &Env) -> Outcome {
    let mut writer = Writer::start(env)?;
    writer.progress(env.pick(40, 400), Duration::from_secs(50))?;
    let (_, log) = writer.finish()?;
    verify(&env.a.join("durable"), &log)?;
    verify(&env.b.join("durable"), &log)
}

pub(crate) fn cluster(env: &Env) -> Outcome<&Cluster> {
    match &env.cluster {
        Some(cluster) => Ok(cluster),
        None => bail!("this case needs the product"),
    }
}

/// fio beside the writer: syncs every few blocks, and verifies all that it wrote.
fn background_fio(env: &Env) -> Outcome<Running> {
    let dir = env.a.join("fio");
    fs::create_dir(&dir)?;
    let fio = Program::new("fio")
        .args(["--name=beside", "--rw=randwrite", "--bs=16k", "--fsync=16", "--size=12m", "--rate=2m", "--numjobs=2"])
        .args([
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--thread",
            "--output-format=terse",
            "--fallocate=none",
        ])
        .arg(format!("--directory={}", dir.display()))
        .dir(&env.local)
        .start()?;
    let begun = dir.join("beside.0.0");
    ensure!(wait_for(Duration::from_secs(20), || Ok(begun.exists()))?, "fio has not begun after 20 s");
    Ok(fio)
}

fn kill_and_restart(env: &Env, name: &str) -> Outcome {
    let cluster = cluster(env)?;
    let mut writer = Writer::start(env)?;
    let fio = background_fio(env)?;
    for round in 0..env.pick(1, 3) {
        writer.progress(15, Duration::from_secs(60))?;
        cluster.kill(name)?;
        std::thread::sleep(Duration::from_millis(700));
        cluster.restart(name).context(format!("round {round}: restart"))?;
        writer.progress(15, Duration::from_secs(120)).context(format!("round {round}: after the restart of {name}"))?;
    }
    let (_, log) = writer.finish()?;
    fio.finish(Duration::from_secs(120))?;
    verify(&env.b.join("durable"), &log).context("seen by the other mount")?;
    verify(&env.a.join("durable"), &log).context("seen by the writer's mount")?;
    if name == "mgs" {
        let another = cluster.add_mount(4).context("a new mount after the restart")?;
        ensure!(fs::read_dir(&another)?.next().is_some(), "the new mount is empty");
        cluster.remove_mount(4)?;
    }
    Ok(())
}

/// Every process dies at once, clients too. What fsync acknowledged must be on the servers' disks.
fn power_cut(env: &Env) -> Outcome {
    let cluster = cluster(env)?;
    let mut writer = Writer::start(env)?;
    writer.progress(100, Duration::from_secs(60))?;
    let servers = ["mgs", "mds", "oss1", "oss2"];
    for name in ["mount1", "mount2", "mount3"].iter().chain(&servers) {
        cluster.kill(name)?;
    }
    let log = writer.log.clone();
    drop(writer); // Its last operation failed with its mount.
    cluster.forget_mounts();
    for name in servers {
        cluster.restart(name)?;
    }
    cluster.add_mount(1)?;
    cluster.add_mount(2)?;
    cluster.add_mount(3)?;
    verify(&env.b.join("durable"), &log)
}

/// Random bytes at every listening port while a workload runs.
fn noise_at_ports(env: &Env) -> Outcome {
    let cluster = cluster(env)?;
    let mut writer = Writer::start(env)?;
    let until = Instant::now() + Duration::from_secs(env.pick(6, 60));
    let ports = cluster.ports();
    super::litmus::steps::in_parallel(ports, |port| {
        let mut random = Prng::new(env.seed ^ u64::from(port));
        while Instant::now() < until {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).context(format!("connecting to port {port}"))?;
            stream.set_write_timeout(Some(Duration::from_secs(1)))?;
            stream.set_read_timeout(Some(Duration::from_millis(20)))?;
            for _ in 0..random.below(4) {
                let len = random.below(20_000);
                let _ = stream.write_all(&random.bytes(len)); // The server may have hung up, as it should.
            }
            let _ = stream.read(&mut [0; 100]);
            if random.below(2) == 0 {
                let _ = stream.shutdown(Shutdown::Write);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })?;
    writer.progress(15, Duration::from_secs(60)).context("after the noise")?;
    let (_, log) = writer.finish()?;
    verify(&env.b.join("durable"), &log)
}

/// A byte flips on the wire: the checksum finds it, a resend repairs it, the log tells it.
fn corruption_on_wire(env: &Env) -> Outcome {
    let cluster = cluster(env)?;
    for round in 0..env.pick(3, 30) {
        let (data, name) = (pattern(round, 8 << 20), format!("f{round}"));
        cluster.arm_fault("lnet.send", "corrupt", 1)?;
        let file = File::create(env.a.join(&name))?;
        file.write_all_at(&data, 0)?;
        file.sync_all()?;
        cluster.arm_fault("lnet.send", "corrupt", 1)?;
        ensure!(fs::read(env.b.join(&name))? == data, "round {round}: what was read differs from what was written");
    }
    cluster.disarm_faults()?;
    let logged =
        wait_for(Duration::from_secs(5), || Ok(cluster.any_log_line(|l| l.to_lowercase().contains("checksum"))))?;
    ensure!(logged, "no log tells of a checksum that did not match");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_finds_what_is_lost_or_damaged() {
        let dir = std::env::temp_dir().join(format!("nacre-e2e-durable-{}", std::process::id()));
        let log = dir.with_extension("log");
        fs::create_dir_all(&dir).unwrap();
        let mut writer = DurableWriter::new(&dir, &log, 1).unwrap();
        (0..120).for_each(|_| writer.step().unwrap());
        verify(&dir, &log).unwrap();

        let (&(file, slot), _) = read_log(&log).unwrap().slots.iter().next().map(|(k, v)| (k, *v)).unwrap();
        let path = dir.join(format!("data-{file}"));
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[slot as usize * RECORD + 30_000] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(verify(&dir, &log).is_err(), "a flipped bit");
        fs::write(&path, good).unwrap();
        verify(&dir, &log).unwrap();

        let name = format!("name-{}", writer.names[0]);
        fs::rename(dir.join(&name), dir.join("elsewhere")).unwrap();
        assert!(verify(&dir, &log).is_err(), "a lost name");
        fs::remove_dir_all(&dir).unwrap();
        fs::remove_file(&log).unwrap();
    }
}
