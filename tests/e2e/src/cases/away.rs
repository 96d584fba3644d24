//! An OSS is away, stopped in order or killed: what needs its data waits and can be broken off, everything else goes on at
//! once, on all mounts. When it is back everything is as if it had never been away.

use crate::case::{Case, Env, text};
use crate::cases::faults::make_first_file;
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::prng::pattern;
use crate::sys;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(120, 120);
    vec![
        case("away.stopped", |env| away(env, false)).apart(),
        case("away.killed", |env| away(env, true)).apart(),
        case("away.known", known),
    ]
}

/// Cut connections, and data that could not be written for a while.
const ANNOUNCED: &[&str] = &[" WARN "];
/// Longest call that does not need the OSS.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Bytes of files at the beginning.
const SIZE: usize = 100_000;

fn away(env: &Env, kills: bool) -> Outcome {
    with_cluster(env, |cluster| tell(cluster, kills))
}

fn with_cluster(env: &Env, tell: impl FnOnce(&Cluster) -> Outcome) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers) = (2, (2, 2));
    let cluster = Cluster::start(plan)?;
    let outcome = tell(&cluster);
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

/// A server that dies or stands still is known to the mounts and the MDT though nobody asks it anything.
fn known(env: &Env) -> Outcome {
    with_cluster(env, |cluster| {
        make_first_file(&cluster.mount_point(1).join("first"))?;
        for how in ["kill -9", "stands still"] {
            // Three seconds is what is promised; the short profile runs beside a compiler.
            lose_oss(cluster, how, Duration::from_secs(env.pick(5, 3))).context(how)?;
        }
        Ok(())
    })
}

fn lose_oss(cluster: &Cluster, how: &str, known_within: Duration) -> Outcome {
    let mounts = ["mount1", "mount2"];
    let known = loss_is_known(cluster, &mounts, known_within, || match how {
        "kill -9" => cluster.kill("oss1"),
        _ => cluster.signal("oss1", libc::SIGSTOP),
    })?;
    println!("    {how}: known after {:.2} s", known.as_secs_f64());
    return_is_known(cluster, &mounts, || match how {
        "kill -9" => cluster.restart("oss1"),
        _ => cluster.signal("oss1", libc::SIGCONT),
    })
}

/// What a mount logs of an OST of `oss1` that is lost, and that returns.
const LOST: &str = "e2e-OST0000 does not answer";
const BACK: &str = "e2e-OST0000 answers again";

/// Loses `oss1`. These mounts and the MDT must know within this time, although nobody asks it anything. Returns when the last of them knew.
pub(crate) fn loss_is_known(
    cluster: &Cluster,
    mounts: &[&str],
    within: Duration,
    lose: impl FnOnce() -> Outcome,
) -> Outcome<Duration> {
    // Nothing that was asked before may be what tells.
    std::thread::sleep(Duration::from_secs(5));
    let all: Vec<_> = mounts.iter().map(|name| (*name, LOST)).chain([("mds", "OST0000 is inactive")]).collect();
    let before = all.iter().map(|(name, what)| said(cluster, name, what)).collect::<Outcome<Vec<usize>>>()?;
    let begin = Instant::now();
    lose()?;
    for ((name, what), before) in all.iter().zip(before) {
        let left = within.saturating_sub(begin.elapsed());
        let is_known = wait_for(left, || Ok(said(cluster, name, what)? > before))?;
        ensure!(is_known, "{name} does not know after {:?}", begin.elapsed());
    }
    Ok(begin.elapsed())
}

/// Brings `oss1` back. These mounts must know soon.
pub(crate) fn return_is_known(cluster: &Cluster, mounts: &[&str], bring_back: impl FnOnce() -> Outcome) -> Outcome {
    let before = mounts.iter().map(|name| said(cluster, name, BACK)).collect::<Outcome<Vec<usize>>>()?;
    bring_back()?;
    for (name, before) in mounts.iter().zip(before) {
        let is_known = wait_for(Duration::from_secs(30), || Ok(said(cluster, name, BACK)? > before))?;
        ensure!(is_known, "{name} does not know that it is back");
    }
    Ok(())
}

/// How often a process has logged this.
fn said(cluster: &Cluster, name: &str, what: &str) -> Outcome<usize> {
    Ok(cluster.log_of(name)?.matches(what).count())
}

/// Does something that must not wait.
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Outcome<T> {
    let (send, receive) = mpsc::channel();
    let begin = Instant::now();
    std::thread::spawn(move || {
        let _ = send.send(act()); // Nobody listens after the bound.
    });
    match receive.recv_timeout(CALL_MAX) {
        Ok(result) => result.context(format!("{what}, after {:?}", begin.elapsed())),
        Err(_) => bail!("{what} takes over {CALL_MAX:?} though it does not need the OSS"),
    }
}

/// The same with a program.
fn program_in_time(script: String) -> Outcome<String> {
    let what = script.clone();
    let out = in_time(&what, move || Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output())?;
    ensure!(out.status.success(), "{what}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn start(script: &str) -> Outcome<Child> {
    let mut command = Command::new("bash");
    let quiet = command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(quiet.spawn()?)
}

/// Whether the program ends by itself, well, within some time.
fn ends_well(child: &mut Child, within: Duration) -> Outcome<bool> {
    wait_for(within, || Ok(child.try_wait()?.is_some_and(|status| status.success())))
}

/// A signal ends a program that waits.
fn break_off(mut child: Child, what: &str) -> Outcome {
    std::thread::sleep(Duration::from_millis(1500));
    ensure!(child.try_wait()?.is_none(), "{what} does not wait for the OSS");
    let begin = Instant::now();
    sys::kill(child.id() as i32, libc::SIGINT);
    let ended = wait_for(Duration::from_secs(10), || Ok(child.try_wait()?.is_some()))?;
    ensure!(ended && begin.elapsed() < Duration::from_millis(1500), "{what} ends {:?} after a signal", begin.elapsed());
    Ok(())
}

fn tell(cluster: &Cluster, kills: bool) -> Outcome {
    let (a, b) = (cluster.mount_point(1).join("d"), cluster.mount_point(2).join("d"));
    make_first_file(&cluster.mount_point(1).join("first"))?;
    fs::create_dir(&a)?;
    for (index, names) in [("0", &["f", "gone", "old", "stated"][..]), ("1", &["other"])] {
        for name in names {
            let file = text(&a.join(name));
            cluster.lfs(&["setstripe", "-c", "1", "-i", index, &file])?;
            fs::write(&file, pattern(1, SIZE))?;
        }
    }
    cluster.lfs(&["sync", &text(&a)])?;
    // With a lock the data could be kept here for a while.
    cluster.lctl(&["set_param", "ldlm.namespaces.*-osc-*.lru_size=clear"])?;
    std::thread::sleep(Duration::from_secs(1));
    match kills {
        true => cluster.kill("oss1")?,
        false => cluster.stop_server("oss1")?,
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut waiting = start(&format!("echo >> {}", text(&a.join("f"))))?;
    while_away(cluster, &a, &b)?;
    ensure!(waiting.try_wait()?.is_none(), "an append does not wait for its OST");
    cluster.restart("oss1")?;
    ensure!(ends_well(&mut waiting, Duration::from_secs(60))?, "an append does not end though its OST is back");
    afterwards(&a, &b)
}

/// From the programs that hung before, on both mounts.
fn while_away(cluster: &Cluster, a: &Path, b: &Path) -> Outcome {
    let (on_a, on_b) = (|name: &str| text(&a.join(name)), |name: &str| text(&b.join(name)));
    program_in_time(format!("touch {}", on_a("new")))?;
    program_in_time(format!("touch -d @1000 {}", on_a("old")))?;
    let lfs = cluster.tool_program("lfs");
    let striped = in_time("getstripe", {
        let file = on_b("f");
        move || {
            lfs.args(["getstripe", &file])
                .run()
                .map(|printed| printed.stdout)
                .map_err(|e| std::io::Error::other(e.to_string()))
        }
    })?;
    ensure!(striped.contains("obdidx"), "getstripe shows no objects: {striped}");
    break_off(start(&format!("exec stat {}", on_b("stated")))?, "stat")?;
    break_off(start(&format!("exec cat {}", on_b("stated")))?, "cat")?;
    program_in_time(format!("mv {} {}", on_b("new"), on_b("x")))?;
    program_in_time(format!("mkdir {}", on_b("dir")))?;
    program_in_time(format!("unlink {}", on_b("gone")))?;
    let listed = program_in_time(format!("ls {}", text(b)))?;
    ensure!(listed.contains('x') && !listed.contains("gone"), "ls shows {listed}");
    let file = b.join("f");
    in_time("chmod", move || fs::set_permissions(file, fs::Permissions::from_mode(0o640)))?;
    let (from, to) = (b.join("f"), b.join("f2"));
    in_time("rename", move || fs::rename(from, to))?;
    for n in 0..12 {
        let file: PathBuf = if n % 2 == 0 { a } else { b }.join(format!("new{n}"));
        in_time("a new file with data", move || {
            let mut file = fs::File::create(file)?;
            file.write_all(&pattern(n, SIZE))?;
            file.sync_all()
        })?;
    }
    // A deactivated OST fails at once.
    cluster.lctl(&["set_param", "osc.*-OST0001-osc-*.active=0"])?;
    let other = b.join("other");
    let read = in_time("a read of a deactivated OST", move || Ok(fs::read(other)))?;
    ensure!(read.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EIO)), "it gives {read:?}");
    let devices: Vec<Value> = serde_json::from_str(&cluster.lctl(&["dl", "--json"])?).context("lctl dl --json")?;
    let name_of = |device: &Value| device["name"].as_str().unwrap_or_default().to_owned();
    let is_inactive = |device: &&Value| device["state"] == "IN" && device["type"] == "osc";
    let inactive = devices.iter().filter(is_inactive).filter(|device| name_of(device).contains("-OST0001-osc-"));
    ensure!(inactive.clone().count() == 2, "lctl dl does not show that both mounts' OST0001 is inactive: {devices:?}");
    for device in inactive {
        let (number, name) = (device["index"].to_string(), &name_of(device));
        cluster.lctl(&["--device", &number, "activate"])?;
        cluster.lctl(&["deactivate", name])?;
        cluster.lctl(&["activate", name])?;
    }
    Ok(())
}

fn afterwards(a: &Path, b: &Path) -> Outcome {
    let mut appended = pattern(1, SIZE);
    appended.push(b'\n');
    for at in [a, b] {
        ensure!(fs::read(at.join("f2"))? == appended, "what was appended to f is not there once");
        ensure!(fs::metadata(at.join("f2"))?.mode() & 0o777 == 0o640, "the mode of f is lost");
        for name in ["other", "stated", "old"] {
            ensure!(fs::read(at.join(name))? == pattern(1, SIZE), "{name} differs");
        }
        for n in 0..12 {
            ensure!(fs::read(at.join(format!("new{n}")))? == pattern(n, SIZE), "new{n} differs");
        }
        ensure!(!at.join("gone").exists() && !at.join("new").exists() && at.join("x").exists(), "names are wrong");
        let reached = wait_for(Duration::from_secs(20), || Ok(fs::metadata(at.join("old"))?.mtime() == 1000))?;
        ensure!(reached, "an mtime that was set is {}", fs::metadata(at.join("old"))?.mtime());
    }
    Ok(())
}
