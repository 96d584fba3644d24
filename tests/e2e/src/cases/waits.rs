//! What `sync` promises, and calls that wait for servers that are away: a power cut after sync, syncfs, umount and fsync of
//! a directory loses nothing, and a signal ends whatever waits. Each case has a file system of its own.

use crate::case::{Case, Env, Profile, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::prng::pattern;
use crate::process::Program;
use crate::sys;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(300, 400);
    vec![
        case("sync", sync_is_kept).apart(),
        case("signals.oss", |env| signals(env, "oss1")).apart(),
        case("signals.mds", |env| signals(env, "mds")).apart(),
        case("umount.servers-away", unmount_with_servers_away).apart(),
    ]
}

/// A cut connection, a wait that was ended, data that could not be written: all is done on purpose.
const ANNOUNCED: &[&str] = &[" WARN "];
/// Servers, the MGS first.
const SERVERS: [&str; 4] = ["mgs", "mds", "oss1", "oss2"];

fn own_cluster(env: &Env, mounts: usize) -> Outcome<Cluster> {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers) = (mounts, (2, 1));
    Cluster::start(plan)
}

/// Whether sync(2) and umount(2) reach a mount here.
fn is_over_a_block_device(at: &Path) -> Outcome<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts.lines().any(|l| l.contains(&format!(" {} fuseblk.nacre ", text(at)))))
}

/// Names and data of one mount's directory: several files, one of them longer than an RPC.
fn fill(at: &Path, name: &str) -> Outcome<PathBuf> {
    let dir = at.join(name);
    fs::create_dir(&dir)?;
    for n in 0..8u64 {
        fs::write(dir.join(format!("f{n}")), pattern(n, 5000 + n as usize * 300_000))?;
    }
    fs::rename(dir.join("f7"), dir.join("g7"))?;
    Ok(dir)
}

fn check_filled(at: &Path, name: &str) -> Outcome {
    let dir = at.join(name);
    for n in 0..8u64 {
        let file = dir.join(if n == 7 { "g7".to_owned() } else { format!("f{n}") });
        let data = fs::read(&file).context(format!("{name}: {}", file.display()))?;
        ensure!(
            data == pattern(n, 5000 + n as usize * 300_000),
            "{name}: {} differs, {} bytes",
            file.display(),
            data.len()
        );
    }
    Ok(())
}

/// All processes die at once, and the servers come back.
fn cut_power(cluster: &Cluster) -> Outcome {
    let mounts: Vec<String> = (1..=5).map(|n| format!("mount{n}")).collect();
    for name in mounts.iter().map(String::as_str).chain(SERVERS) {
        let _ = cluster.kill(name); // Some mounts have ended before.
    }
    cluster.forget_mounts();
    SERVERS.iter().try_for_each(|name| cluster.restart(name))?;
    // No client of before is left that recovery could wait for.
    cluster.lctl(&["set_param", "*.*.abort_recovery=1"]).map(drop)
}

fn sync_is_kept(env: &Env) -> Outcome {
    let cluster = own_cluster(env, 5)?;
    let mut outcome = sync_and_cut(&cluster);
    if outcome.is_ok() && env.profile == Profile::Full {
        outcome = age_and_cut(&cluster);
    }
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

fn sync_and_cut(cluster: &Cluster) -> Outcome {
    let at = |n| cluster.mount_point(n);
    make_first_file(&at(1).join("first"))?;
    let told = is_over_a_block_device(&at(1))?;
    fill(&at(1), "lfs-sync")?;
    cluster.lfs(&["sync", &text(&at(1))])?;
    if told {
        fill(&at(2), "syncfs")?;
        Program::new("sync").args(["-f", &text(&at(2))]).run()?;
        fill(&at(3), "umount")?;
        Program::new("umount").arg(at(3)).run()?;
    }
    fill(&at(4), "stopped")?;
    cluster.stop_server("mount4")?;
    // Names alone: data needs an fsync of its own.
    fs::create_dir(at(5).join("names"))?;
    for n in 0..50 {
        File::create(at(5).join(format!("names/n{n}")))?;
    }
    File::open(at(5).join("names"))?.sync_all()?;
    cut_power(cluster)?;
    cluster.add_mount(1)?;
    let mut names = vec!["lfs-sync", "stopped"];
    names.extend(told.then_some(["syncfs", "umount"]).into_iter().flatten());
    names.iter().try_for_each(|name| check_filled(&at(1), name))?;
    let found = fs::read_dir(at(1).join("names"))?.count();
    ensure!(found == 50, "fsync of a directory kept {found} names of 50");
    if told {
        fill(&at(1), "sync")?;
        sys::sync();
        cut_power(cluster)?;
        cluster.add_mount(1)?;
        check_filled(&at(1), "sync")?;
    } else {
        println!("    sync, syncfs and umount do not reach a mount here: not tested");
    }
    Ok(())
}

/// What nobody synced is durable after the age at which clients write it and the interval in which targets commit.
fn age_and_cut(cluster: &Cluster) -> Outcome {
    const OLD_ENOUGH: Duration = Duration::from_secs(5 + 5 + 1);
    let at = cluster.mount_point(1);
    fill(&at, "aged")?;
    std::thread::sleep(OLD_ENOUGH);
    cut_power(cluster)?;
    cluster.add_mount(1)?;
    check_filled(&at, "aged")
}

/// A call of a program, and how long it may take to end.
struct Call {
    name: &'static str,
    script: String,
}

/// Calls that need the server; `oss1` has the data of every file in `d`.
fn calls_of(server: &str, d: &Path) -> Vec<Call> {
    let d = text(d);
    let call = |name, script: String| Call { name, script };
    match server {
        "mds" => vec![
            call("open", format!("exec cat {d}/never-opened")),
            call("stat", format!("exec stat {d}/never-looked-at")),
            call("mkdir", format!("exec mkdir {d}/made")),
            call("ls", format!("exec ls -l {d}/sub")),
            call("create", format!("exec touch {d}/sub2/new")),
        ],
        _ => vec![
            call("read", format!("exec cat {d}/r0")),
            call("write", format!("exec dd if=/dev/zero of={d}/w0 bs=1M count=200 conv=notrunc")),
            call("glimpse", format!("exec stat {d}/s0")),
            call("ls", format!("exec ls -l {d}/sub")),
            call("fsync", format!("exec dd if=/dev/zero of={d}/y0 bs=4k count=1 conv=notrunc,fsync")),
        ],
    }
}

/// Programs that wait for a server that is away end when they are told to; afterwards all is as if they had never been.
fn signals(env: &Env, server: &str) -> Outcome {
    let cluster = own_cluster(env, 2)?;
    let outcome = end_by_signals(&cluster, server);
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

fn end_by_signals(cluster: &Cluster, server: &str) -> Outcome {
    let (d, other) = (cluster.mount_point(1).join("d"), cluster.mount_point(2).join("d"));
    make_first_file(&cluster.mount_point(1).join("first"))?;
    fs::create_dir(&d)?;
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &text(&d)])?;
    for dir in ["sub", "sub2"] {
        fs::create_dir(other.join(dir))?;
    }
    for name in ["r0", "w0", "s0", "y0", "sub/f", "never-opened", "never-looked-at"] {
        // By the other mount, so that this one knows nothing of them.
        fs::write(other.join(name), pattern(7, 300_000))?;
    }
    cluster.lfs(&["sync", &text(&other)])?;
    for away in ["stopped", "killed"] {
        match away {
            "stopped" => cluster.signal(server, libc::SIGSTOP)?,
            _ => cluster.kill(server)?,
        }
        let calls = calls_of(server, &d);
        let ended = calls.iter().try_for_each(|call| {
            end_one(call, libc::SIGINT)?;
            end_one(call, libc::SIGKILL).context(format!("{server} {away}"))
        });
        match away {
            "stopped" => cluster.signal(server, libc::SIGCONT)?,
            _ => cluster.restart(server)?,
        }
        ended?;
    }
    works_again(cluster, &d, &other)
}

/// Starts a call, sees that it waits, and ends it.
fn end_one(call: &Call, signal: i32) -> Outcome {
    let mut child = Command::new("bash")
        .args(["-c", &call.script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(700));
    if let Some(status) = child.try_wait()? {
        // What is known already needs no server.
        println!("    {}: did not wait ({status})", call.name);
        return Ok(());
    }
    let begin = Instant::now();
    sys::kill(child.id() as i32, signal);
    let ended = wait_for(Duration::from_secs(10), || Ok(child.try_wait()?.is_some()))?;
    let took = begin.elapsed();
    ensure!(ended && took < Duration::from_millis(1500), "{}: signal {signal} ended it after {took:?}", call.name);
    Ok(())
}

/// Nothing was left behind: both mounts read and write everything, and give all locks back.
fn works_again(cluster: &Cluster, d: &Path, other: &Path) -> Outcome {
    for (at, version) in [(d, 1u64), (other, 2)] {
        for name in ["r0", "w0", "s0", "y0", "sub/f", "never-opened", "never-looked-at"] {
            let data = pattern(version, 200_000);
            fs::write(at.join(name), &data).context(format!("writing {name}"))?;
            let there = if at == d { other } else { d };
            ensure!(fs::read(there.join(name))? == data, "{name} differs on the other mount");
        }
    }
    // A lock in use cannot be given back, so nothing was left behind if none stays.
    for clients in ["ldlm.namespaces.*-mdc-*.lru_size=clear", "ldlm.namespaces.*-osc-*.lru_size=clear"] {
        cluster.lctl(&["set_param", clients])?;
    }
    let counts = || cluster.values("ldlm.namespaces.{mdt,filter}-*.{lock_count,waiting_count}");
    let at_rest = wait_for(Duration::from_secs(20), || {
        let counts = counts()?;
        Ok(!counts.is_empty() && counts.values().all(|count| *count == 0))
    })?;
    ensure!(at_rest, "locks are left at rest: {:?}", counts()?);
    Ok(())
}

/// With every server away, `umount -l` and `umount -f` end; what cannot be written is given up.
fn unmount_with_servers_away(env: &Env) -> Outcome {
    let cluster = own_cluster(env, 3)?;
    let outcome = unmount_while_away(&cluster);
    SERVERS.iter().try_for_each(|name| cluster.signal(name, libc::SIGCONT))?;
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

fn unmount_while_away(cluster: &Cluster) -> Outcome {
    let at = |n| cluster.mount_point(n);
    make_first_file(&at(1).join("first"))?;
    for n in 1..=3 {
        fill(&at(n), &format!("m{n}"))?;
    }
    SERVERS.iter().try_for_each(|name| cluster.signal(name, libc::SIGSTOP))?;
    for (n, flag) in [(1, "-l"), (2, "-f")] {
        let begin = Instant::now();
        Program::new("umount").args([flag, &text(&at(n))]).limit(Duration::from_secs(30)).run()?;
        let took = begin.elapsed();
        ensure!(took < Duration::from_secs(15), "umount {flag} took {took:?}");
    }
    // An orderly stop says what it waits for, and a second signal ends it.
    cluster.signal("mount3", libc::SIGTERM)?;
    let says = wait_for(Duration::from_secs(20), || Ok(cluster.log_of("mount3")?.contains("waits for e2e-")))?;
    ensure!(says, "mount3 does not say what it waits for");
    cluster.signal("mount3", libc::SIGTERM)?;
    let ended = wait_for(Duration::from_secs(10), || cluster.has_ended("mount3"))?;
    ensure!(ended, "mount3 still waits 10 s after the second SIGTERM");
    for n in 1..=3 {
        let _ = cluster.kill(&format!("mount{n}"));
    }
    cluster.forget_mounts();
    Ok(())
}
