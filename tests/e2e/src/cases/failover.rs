//! Targets that another node takes over, and nodes that must not have a target at the same time. Each case runs on a file
//! system of its own whose servers have twins at another address, over the same storage.

use crate::case::{Case, Env};
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{ADDRESS, Cluster, Plan, TWIN_ADDRESS, free_ports};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::power_cut::device::{Disk, Mounted};
use crate::sys;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(240, 400);
    vec![
        case("failover.oss", |env| failover(env, "oss1")).apart(),
        case("failover.mds", |env| failover(env, "mds")).apart(),
        case("multi-mount", two_hosts),
        case("imperative-recovery", imperative_recovery).apart(),
    ]
}

/// Between two signs of life of a holder.
const INTERVAL_MS: u32 = 250;
/// How long a program on a client may have to wait for the other node: the wait for a dead holder is 1.25 s of it.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(3);
/// Time after which a case gives up waiting for a program to go on.
const PAUSE_LIMIT: Duration = Duration::from_secs(60);

/// A file system with twins: one MDS, one OSS with two OSTs.
fn cluster_with_twins(env: &Env, mounts: usize, servers: (usize, usize)) -> Outcome<Cluster> {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers, plan.twins) = (mounts, servers, Some(INTERVAL_MS));
    Cluster::start(plan)
}

/// Ends a case on a file system of its own: its logs are judged like the main one's.
fn judge(env: &Env, cluster: &Cluster, outcome: Outcome, announced: &[&str]) -> Outcome {
    env.judge_own(cluster, outcome, announced)?;
    cluster.stop()
}

/// There, back in order, there again: killed, stopped, killed.
fn failover(env: &Env, server: &str) -> Outcome {
    let cluster = cluster_with_twins(env, 2, (1, 2))?;
    let outcome = fail_over_and_back(env, &cluster, server);
    judge(env, &cluster, outcome, &[])
}

fn fail_over_and_back(env: &Env, cluster: &Cluster, server: &str) -> Outcome {
    let (a, b) = (cluster.mount_point(1), cluster.mount_point(2));
    make_first_file(&a.join("first"))?;
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let twin = format!("{server}-twin");
    for (from, to, how) in [(server, &*twin, "kill -9"), (&*twin, server, "clean"), (server, &*twin, "kill -9")] {
        writer.progress(15, PAUSE_LIMIT)?;
        let probe = Probe::start(&b)?;
        probe.has_worked()?;
        let begin = Instant::now();
        if how == "clean" { cluster.stop_server(from) } else { cluster.kill(from) }?;
        let down = begin.elapsed();
        cluster.restart(to).context(format!("{to} takes over from {from}, {how}"))?;
        let ready = begin.elapsed();
        writer.progress(15, PAUSE_LIMIT).context(format!("after the failover to {to}, {how}"))?;
        let pause = probe.finish()?;
        println!(
            "    {from} -> {to}, {how}: down after {:.2} s, the other ready after {:.2} s, longest pause of a client {:.2} s",
            down.as_secs_f64(),
            ready.as_secs_f64(),
            pause.as_secs_f64()
        );
        ensure!(pause < TAKEOVER_LIMIT, "a client waited {:.2} s", pause.as_secs_f64());
        let claims = cluster.values("osd-disk.*.mmp")?;
        let held =
            |claim: &Value| claim["state"] == "held" && claim["node"].as_str().is_some_and(|n| n.contains("127.0.0."));
        ensure!(claims.values().any(held), "mmp: {claims:?}");
    }
    let (dir, log) = writer.finish()?;
    verify(&b.join("durable"), &log).context("seen by the other mount")?;
    verify(&dir, &log).context("seen by the writer's mount")
}

/// A program that does one thing over and over, such as making, syncing and removing a small file, and notes the longest time that
/// this took.
pub(crate) struct Probe {
    enough: Arc<AtomicBool>,
    worked: Arc<AtomicBool>,
    /// When the last turn was begun that has ended.
    last: Arc<Mutex<Option<Instant>>>,
    thread: std::thread::JoinHandle<Outcome<Duration>>,
}

impl Probe {
    /// Makes, syncs and removes a small file.
    pub(crate) fn start(dir: &Path) -> Outcome<Probe> {
        let path = dir.join("probe");
        Ok(Probe::repeat(move || probe_once(&path)))
    }

    /// Does what `turn` does.
    pub(crate) fn repeat(turn: impl Fn() -> Outcome + Send + 'static) -> Probe {
        let (enough, worked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let last = Arc::new(Mutex::new(None));
        let (stop, tell, note) = (enough.clone(), worked.clone(), last.clone());
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                turn()?;
                longest = longest.max(begin.elapsed());
                tell.store(true, Ordering::Relaxed);
                *note.lock().unwrap_or_else(|e| e.into_inner()) = Some(begin);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(longest)
        });
        Probe { enough, worked, last, thread }
    }

    /// Whether a turn that was begun after `since` has ended, or the probe has failed.
    pub(crate) fn has_worked_since(&self, since: Instant) -> Outcome<bool> {
        Ok(self.thread.is_finished()
            || self.last.lock().unwrap_or_else(|e| e.into_inner()).is_some_and(|last| last > since))
    }

    /// Waits until its first turn has ended.
    pub(crate) fn has_worked(&self) -> Outcome {
        let worked =
            wait_for(Duration::from_secs(20), || Ok(self.worked.load(Ordering::Relaxed) || self.thread.is_finished()))?;
        ensure!(worked, "a program's first turn has not ended after 20 s");
        Ok(())
    }

    pub(crate) fn finish(self) -> Outcome<Duration> {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| bail!("the probe panicked"))
    }
}

/// What a server had answered and not committed when it died, its clients bring back: a program notices a pause and nothing else.
fn probe_once(path: &Path) -> Outcome {
    let file = File::create(path).context("the probe: create")?;
    file.write_all_at(&[7; 5000], 0).context("the probe: write")?;
    file.sync_all().context("the probe: fsync")?;
    fs::remove_file(path).context("the probe: unlink")
}

/// How long an OSS is away, in seconds. The short profile leaves out the last.
const ABSENCES: [f64; 3] = [0.0, 4.0, 15.0];
/// The longest that a program may wait after an OSS is back if its client is told of that: many times what it takes.
const TOLD_LIMIT: Duration = Duration::from_secs(5);

/// What imperative recovery saves: the same deaths of an OSS for a client that hears of the restart from the MGS, and for one
/// that is mounted with `noir` and tries again after a pause. Alone each, for a server waits for all of its clients.
fn imperative_recovery(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    for (options, state) in [("", "ENABLED"), ("noir", "DISABLED")] {
        let mut plan = Plan::new(main.nacre(), &env.local.join(state));
        (plan.mounts, plan.servers, plan.mount_options) = (1, (1, 2), options);
        let cluster = Cluster::start(plan)?;
        let absences = &ABSENCES[..env.pick(2, 3)];
        let outcome = print_pauses(&cluster, state, absences);
        judge(env, &cluster, outcome, &[])?;
    }
    Ok(())
}

fn print_pauses(cluster: &Cluster, state: &str, absences: &[f64]) -> Outcome {
    let shown = cluster.values("mgc.*.ir_state")?;
    ensure!(!shown.is_empty() && shown.values().all(|s| s["imperative_recovery"] == state), "ir_state: {shown:?}");
    let dir = cluster.mount_point(1);
    make_first_file(&dir.join("first"))?;
    for &absence in absences {
        let probe = Probe::start(&dir)?;
        probe.has_worked()?;
        let begin = Instant::now();
        cluster.kill("oss1")?;
        std::thread::sleep(Duration::from_secs_f64(absence));
        cluster.restart("oss1")?;
        let ready = begin.elapsed();
        let worked = wait_for(PAUSE_LIMIT, || probe.has_worked_since(begin))?;
        ensure!(worked, "nothing works {} s after the restart", PAUSE_LIMIT.as_secs());
        let pause = probe.finish()?;
        let after = pause.saturating_sub(ready);
        println!(
            "    {state}: killed, ready after {:.2} s, pause of a program {:.2} s, {:.2} s of it after that",
            ready.as_secs_f64(),
            pause.as_secs_f64(),
            after.as_secs_f64()
        );
        ensure!(state != "ENABLED" || after < TOLD_LIMIT, "told of the restart, and {} s later", after.as_secs());
    }
    Ok(())
}

/// One storage and two hosts that do not see each other's file locks: two loop devices over one image, each with an ext4 of
/// its own above it, which is what two hosts on a shared disk are. Two live ext4 on one disk damage it, so each question
/// has a disk of its own.
fn two_hosts(env: &Env) -> Outcome {
    let cluster = cluster_with_twins(env, 0, (0, 0))?;
    let outcome = suspended_host_is_overtaken(env, &cluster).and_then(|()| second_host_is_refused(env, &cluster));
    // The one that is overtaken says so, and stops.
    judge(env, &cluster, outcome, &["multi-mount protection", "did not close cleanly"])
}

/// A disk with the target of an OST, that two hosts can mount.
struct SharedDisk {
    image: PathBuf,
    index: usize,
    port: u16,
}

impl SharedDisk {
    fn new(env: &Env, index: usize) -> Outcome<SharedDisk> {
        let image = env.local.join(format!("shared{index}.img"));
        File::create(&image)?.set_len(192 << 20)?;
        Disk::attach(&image)?.make_file_system()?;
        Ok(SharedDisk { image, index, port: free_ports(1)?[0] })
    }

    /// Mounts it on a host, at an address, with a server that is not started yet.
    fn on_host(&self, env: &Env, cluster: &Cluster, host: &str, address: &str) -> Outcome<Mounted> {
        let mounted = Mounted::at(Disk::attach(&self.image)?, &env.local.join(host))?;
        cluster.add_server(host, "oss", &format!("{address}:{}", self.port), &[mounted.path().join("ost")]);
        Ok(mounted)
    }

    /// The same on the host that makes the target, with its server started.
    fn on_first_host(&self, env: &Env, cluster: &Cluster, host: &str) -> Outcome<Mounted> {
        let mounted = self.on_host(env, cluster, host, ADDRESS)?;
        cluster.format("--ost", self.index, &mounted.path().join("ost"), self.port)?;
        cluster.restart(host)?;
        Ok(mounted)
    }
}

/// A host stands still, processes and file system; another one takes over; the first one wakes up. A program that writes all
/// the time notices a pause.
fn suspended_host_is_overtaken(env: &Env, cluster: &Cluster) -> Outcome {
    let disk = SharedDisk::new(env, 0)?;
    let first = disk.on_first_host(env, cluster, "host1")?;
    let mount = cluster.add_mount(1)?;
    make_first_file(&mount.join("first"))?;
    let mut writer = Writer::start_in(&mount, &env.local, env.seed)?;
    writer.progress(15, PAUSE_LIMIT)?;
    cluster.signal("host1", libc::SIGSTOP)?;
    let frozen = sys::Frozen::new(File::open(first.path())?).context("freezing ext4")?;
    let begin = Instant::now();
    let second = disk.on_host(env, cluster, "host2", TWIN_ADDRESS)?;
    cluster.restart("host2").context("taking over from a node that stands still")?;
    let took = begin.elapsed();
    ensure!(took > 5 * Duration::from_millis(INTERVAL_MS.into()), "taken over after {took:?}: too soon");
    println!("    taken over after {:.2} s from a node that stood still", took.as_secs_f64());
    cluster.signal("host1", libc::SIGCONT)?;
    writer.progress(15, PAUSE_LIMIT).context("after the takeover")?;
    let (dir, log) = writer.finish()?;
    verify(&dir, &log)?;
    cluster.remove_mount(1)?;
    cluster.stop_server("host2")?;
    drop(second);
    // What it had under way when it was stopped is written only now, after the other one has closed the target.
    drop(frozen);
    let stopped = wait_for(Duration::from_secs(20), || {
        Ok(cluster.log_of("host1")?.contains("has taken the target over; the target stops"))
    })?;
    ensure!(stopped, "the node that was overtaken goes on");
    cluster.kill("host1")
}

fn second_host_is_refused(env: &Env, cluster: &Cluster) -> Outcome {
    let disk = SharedDisk::new(env, 1)?;
    let first = disk.on_first_host(env, cluster, "host3")?;
    sys::sync_file_system(&File::open(first.path())?)?;
    let _second = disk.on_host(env, cluster, "host4", TWIN_ADDRESS)?;
    let refusal = cluster.restart("host4").err().map(|e| e.to_string()).unwrap_or_default();
    ensure!(refusal.contains("is in use by"), "a second node was not refused: {refusal:?}");
    cluster.kill("host4")?;
    cluster.kill("host3")
}
