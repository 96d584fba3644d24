//! The commands that people type: `nacre up`, `status`, `down`, and `mount` into the background. What `nacre up` prints when
//! something is in its way is compared with the transcripts in docs/up.md, word for word.

use crate::case::{Case, Env, text};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan, free_ports, is_mounted, unmount_below};
use crate::daemon::is_complaint;
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::process::{Printed, Program, Running};
use crate::sys;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("up-and-down", up_and_down).needs_cluster().limits(120, 120),
        Case::new("up-after-kill", after_kill).needs_cluster().limits(120, 120),
        Case::new("up-waits", waits).needs_cluster().limits(120, 120),
        Case::new("up-refuses", refuses).needs_cluster().limits(120, 120),
        Case::new("up-full-disk", full_disk).needs_cluster().limits(120, 120),
        Case::new("up-without-fuse", without_fuse).needs_cluster().limits(120, 120),
        Case::new("up-port-taken", port_taken).needs_cluster().limits(120, 120),
        Case::new("up-as-user", as_user).needs_cluster().limits(120, 120),
        Case::new("up-caller-gone", caller_gone).needs_cluster().limits(120, 120),
        Case::new("params-kept", params_kept).needs_cluster().limits(120, 120),
        Case::new("mount-in-background", mount_in_background).needs_cluster(),
    ]
}

/// After a crash it is mounted again within this time, unless a client of another process is missing.
const BACK_LIMIT: Duration = Duration::from_secs(10);

/// A storage directory and a mountpoint for `nacre up`. Dropping it stops what runs there.
pub(crate) struct Stand {
    cluster: Arc<Cluster>,
    local: PathBuf,
    dir: PathBuf,
    pub(crate) at: PathBuf,
    docs: PathBuf,
}

impl Stand {
    pub(crate) fn new(env: &Env) -> Outcome<Stand> {
        let Some(cluster) = env.cluster.clone() else { bail!("this case needs the product") };
        let (local, docs) = (env.local.clone(), env.repository.join("docs/up.md"));
        Ok(Stand { cluster, dir: local.join("fs"), at: local.join("mnt"), local, docs })
    }

    fn program(&self, args: &[&str]) -> Program {
        let program = Program::new(self.cluster.nacre()).args(args).env("NACRE_RUN_DIR", self.local.join("run"));
        program.env("NO_COLOR", "1").limit(Duration::from_secs(60))
    }

    /// Runs `nacre` with these arguments, however it ends.
    fn nacre(&self, args: &[&str]) -> Outcome<Printed> {
        self.program(args).output()
    }

    /// `nacre up` with few OSTs; it must succeed.
    pub(crate) fn up(&self) -> Outcome<String> {
        Ok(self.program(&["up", &text(&self.dir), &text(&self.at), "--osts", "2"]).run()?.stdout)
    }

    pub(crate) fn status(&self) -> Outcome<serde_json::Value> {
        let said = self.program(&["status", &text(&self.dir), "--json"]).run()?.stdout;
        Ok(serde_json::from_str(&said)?)
    }

    fn state(&self) -> Outcome<String> {
        Ok(self.status()?["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Kills the daemon as a power cut would.
    fn kill(&self) -> Outcome {
        let pid = || -> Outcome<i32> { Ok(self.status()?["pid"].as_u64().unwrap_or_default() as i32) };
        ensure!(wait_for(Duration::from_secs(10), || Ok(pid()? > 1))?, "nothing is up");
        let pid = pid()?;
        ensure!(pid > 1, "nothing is up any more");
        sys::kill(pid, libc::SIGKILL);
        let gone = wait_for(Duration::from_secs(5), || Ok(self.state()? == "down"))?;
        ensure!(gone, "pid {pid} does not die");
        Ok(())
    }

    /// Compares what was printed with the block below the heading `title` of docs/up.md, but for what differs from run to run.
    fn is_documented(&self, title: &str, printed: &str) -> Outcome {
        let docs = fs::read_to_string(&self.docs)?;
        let block = docs.split(&format!("\n## {title}\n")).nth(1).and_then(|rest| rest.split("```\n").nth(1));
        let Some(block) = block else { bail!("docs/up.md has no transcript below {title:?}") };
        let printed = self.normalised(printed);
        let answer: String = block.lines().filter(|l| !l.starts_with("$ ")).map(|l| format!("{l}\n")).collect();
        ensure!(answer == printed, "docs/up.md says below {title:?}:\n{answer}but it prints:\n{printed}");
        Ok(())
    }

    /// Replaces directories, process numbers, ports and times.
    fn normalised(&self, printed: &str) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut out = printed.replace(&text(&self.dir), "/srv/nacre").replace(&text(&self.at), "/mnt/nacre");
        out = out.replace(&text(&self.local), "/srv");
        out = without_digits(&out, "pid ", "PID", "");
        out = without_digits(&out, "127.0.0.1:", "PORT", "");
        out = out.replace("127.0.0.1:PORT@tcp", "127.0.0.1@tcp");
        out = without_digits(&out, &format!("{}-", host.trim()), "PID", "");
        out = out.replace(&format!("{}-PID", host.trim()), "client7-PID");
        without_digits(&out, ", ", "N", " s at most")
    }

    /// Nothing in the daemon's log needs a person, but lines with one of these texts.
    fn judge(&self, announced: &[&str]) -> Outcome {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let wrong: Vec<&str> = log.lines().filter(|line| is_complaint(line, announced)).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.nacre(&["down", &text(&self.dir)]);
        unmount_below(&self.local);
    }
}

/// Replaces the number between `before` and `after` by `word`.
fn without_digits(text: &str, before: &str, word: &str, after: &str) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        out.push_str(before);
        if rest.len() < part.len() && rest.starts_with(after) {
            out.push_str(word);
            out.push_str(rest);
        } else {
            out.push_str(part);
        }
    }
    out
}

/// A file system in one command, twice on the same directory: the second time everything is still there.
fn up_and_down(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    let (dir, at) = (text(&stand.dir), text(&stand.at));
    let listen = format!("127.0.0.1:{}", free_ports(1)?[0]);
    let up = ["up", &dir, &at, "--osts", "3", "--fsname", "one", "--listen", &listen];
    let data = pattern(env.seed, 20 << 20);
    for round in 0..2 {
        let said = stand.program(&up).run()?.stdout;
        ensure!(is_mounted(&stand.at), "`nacre up` returned, but nothing is mounted at {at}");
        if round == 0 {
            stand.is_documented("The first time", &said)?;
            fs::write(stand.at.join("f"), &data)?;
            stand.is_documented("When it is up already", &stand.program(&up).run()?.stdout)?;
            stand.is_documented("How it is", &stand.program(&["status", &dir]).run()?.stdout)?;
        }
        ensure!(fs::read(stand.at.join("f"))? == data, "round {round}: the file differs");
        ensure_eq!(stand.state()?, "up", "state");
        let targets = stand.program(&["lfs", "df", &at]).run()?.stdout;
        ensure_eq!(targets.matches("OST:").count(), 3, "OSTs in `lfs df`: {targets}");
        stand.program(&["down", &dir]).run()?;
        ensure!(!is_mounted(&stand.at), "round {round}: still mounted after `nacre down`");
        ensure_eq!(stand.state()?, "down", "state");
    }
    stand.judge(&[])
}

/// Mounts the file system once more, by a process of its own.
fn mount_beside(stand: &Stand, at: &Path) -> Outcome<Running> {
    fs::create_dir_all(at)?;
    let nid = stand.status()?["nid"].as_str().unwrap_or_default().to_owned();
    let running = stand.program(&["mount", "-f", &format!("{nid}:/nacre"), &text(at)]).start()?;
    ensure!(wait_for(Duration::from_secs(20), || Ok(is_mounted(at)))?, "{} is not mounted", at.display());
    Ok(running)
}

/// `nacre up` again, which must take no longer than [`BACK_LIMIT`].
fn up_soon(stand: &Stand) -> Outcome<String> {
    let begun = Instant::now();
    let said = stand.up()?;
    ensure!(begun.elapsed() < BACK_LIMIT, "mounted again after {:.1} s only", begun.elapsed().as_secs_f64());
    println!("    mounted again after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(said)
}

/// The address that a daemon with this NID listens on.
fn address_of(nid: &serde_json::Value) -> Outcome<SocketAddr> {
    let text = nid.as_str().unwrap_or_default();
    let address = text.strip_suffix("@tcp").map(|address| address.split_once(':').unwrap_or((address, "988")));
    let Some((ip, port)) = address else { bail!("{text:?} is no NID of TCP") };
    Ok(SocketAddr::new(ip.parse()?, port.parse()?))
}

/// Review 1, defect 4: after kill -9 of the daemon, `nacre up` waited 301 s in silence for its own dead client.
fn after_kill(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    stand.up()?;
    let data = pattern(env.seed, 8 << 20);
    let keep = |at: &Path, name: &str| -> Outcome {
        fs::write(at.join(name), &data)?;
        fs::File::open(at.join(name))?.sync_all().map_err(Into::into)
    };
    keep(&stand.at, "synced")?;
    let nid = stand.status()?["nid"].clone();
    stand.kill()?;
    // The port stays taken for a moment, as it does while the kernel ends a large process.
    let port = TcpListener::bind(address_of(&nid)?)?;
    let opened = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(port);
    });
    let dead = stand.program(&["status", &text(&stand.dir)]).run()?.stdout;
    stand.is_documented("After kill -9", &(dead + &up_soon(&stand)?))?;
    opened.join().expect("the thread only waits");
    ensure_eq!(stand.status()?["nid"], nid, "NID after kill -9: other mounts look for it there");
    ensure!(fs::read(stand.at.join("synced"))? == data, "a file that was synced differs");

    // A mount of another process keeps what it had not synced: it replays that.
    let beside = env.local.join("beside");
    let mut other = mount_beside(&stand, &beside)?;
    fs::write(beside.join("unsynced"), &data)?;
    stand.kill()?;
    up_soon(&stand)?;
    ensure!(
        fs::read(stand.at.join("unsynced")).context("on the mount of nacre up")? == data,
        "the other's file differs"
    );
    ensure!(fs::read(beside.join("synced")).context("on the other mount")? == data, "a file that was synced differs");

    // Killed once more while it starts, and again: each of its clients is known to the next.
    for _ in 0..2 {
        let mut caller = stand.program(&["up", &text(&stand.dir), &text(&stand.at)]).start()?;
        stand.kill()?;
        ensure!(
            wait_for(Duration::from_secs(10), || Ok(caller.has_ended()))?,
            "`nacre up` does not say that it failed"
        );
    }
    up_soon(&stand)?;
    Program::new("umount").arg(&beside).run()?;
    other.end_input();
    stand.program(&["down", &text(&stand.dir)]).run()?;
    ensure_eq!(stand.state()?, "down", "state");
    stand.judge(&[])
}

/// A client of another process is missing, and keeps its time. Meanwhile `status`, `down` and a second `up` agree.
fn waits(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    stand.up()?;
    let beside = env.local.join("beside");
    let other = mount_beside(&stand, &beside)?;
    fs::write(beside.join("f"), b"x")?;
    let killed = other.child.id() as i32;
    sys::kill(killed, libc::SIGKILL);
    stand.kill()?;

    let first = stand.program(&["up", &text(&stand.dir), &text(&stand.at)]).start()?;
    ensure!(wait_for(BACK_LIMIT, || Ok(stand.state()? == "recovering"))?, "state {}", stand.state()?);
    let status = stand.program(&["status", &text(&stand.dir)]).run()?.stdout;
    ensure!(status.contains(&format!("-{killed}")), "it does not say that it waits for pid {killed}: {status}");
    let said = stand.program(&["down", &text(&stand.dir)]).run()?.stdout;
    ensure_eq!(said.trim(), "nacre is down", "said by `nacre down` in the middle of the recovery");
    let printed = first.wait(Duration::from_secs(10))?;
    ensure!(!printed.status.success(), "it was stopped before it was up");

    let first = stand.program(&["up", &text(&stand.dir), &text(&stand.at)]).start()?;
    ensure!(wait_for(BACK_LIMIT, || Ok(stand.state()? == "recovering"))?, "state {}", stand.state()?);
    let second = stand.program(&["up", &text(&stand.dir), &text(&stand.at)]).start()?;
    std::thread::sleep(Duration::from_secs(2));
    stand.program(&["lctl", "set_param", "*.*.abort_recovery=1"]).run()?;
    let said = first.finish(Duration::from_secs(20))?.stdout;
    stand.is_documented("When a client is missing", &said)?;
    let followed = second.finish(Duration::from_secs(20))?.stdout;
    ensure!(followed.contains("another nacre up is at it"), "the second `up` says {followed}");
    ensure!(followed.contains("nacre is up already"), "the second `up` says {followed}");
    ensure!(is_mounted(&stand.at), "not mounted");
    unmount_below(&beside);
    stand.program(&["down", &text(&stand.dir)]).run()?;
    stand.judge(&["did not recover in time"])
}

/// All names below a directory, with sizes.
fn listing(dir: &Path) -> Outcome<String> {
    let script = r#"cd "$1" && find . -mindepth 1 ! -name log ! -name lock -printf '%P %s %Ts\n' | sort"#;
    Ok(Program::new("bash").args(["-c", script, "listing", &text(dir)]).run()?.stdout)
}

/// Review 1, defect 11: `nacre up` removed every OST and the MDT if the MGS's directory was missing.
fn refuses(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    let (dir, at) = (text(&stand.dir), text(&stand.at));
    let refused = |title: &str| -> Outcome {
        let before = listing(&stand.dir)?;
        let printed = stand.nacre(&["up", &dir, &at, "--osts", "2"])?;
        ensure!(!printed.status.success(), "{title}: it did not refuse: {}", printed.stdout);
        ensure_eq!(listing(&stand.dir)?, before, "{title}: content of the directory");
        ensure!(!is_mounted(&stand.at), "{title}: mounted");
        stand.is_documented(title, &format!("{}{}", printed.stdout, printed.stderr))
    };
    fs::create_dir_all(stand.dir.join("photos"))?;
    fs::write(stand.dir.join("letter.txt"), "dear")?;
    refused("On a directory with other things in it")?;
    fs::remove_dir_all(&stand.dir)?;

    stand.up()?;
    fs::write(stand.at.join("f"), "precious")?;
    stand.program(&["down", &dir]).run()?;
    let aside = env.local.join("mgs");
    fs::rename(stand.dir.join("mgs"), &aside)?;
    refused("When a target is missing")?;
    fs::rename(&aside, stand.dir.join("mgs"))?;
    let label = stand.dir.join("ost0001/format");
    let whole = fs::read(&label)?;
    fs::write(&label, &whole[..whole.len() / 2])?;
    refused("When a label is damaged")?;
    fs::write(&label, &whole)?;
    stand.up()?;
    ensure_eq!(fs::read_to_string(stand.at.join("f"))?, "precious", "content");
    stand.program(&["down", &dir]).run()?;
    stand.judge(&[])
}

/// A disk with too little space for a file system; then it is made larger, and the same command goes on.
fn full_disk(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    fs::create_dir_all(&stand.dir)?;
    sys::mount("tmpfs", &stand.dir, "tmpfs", "size=64k")?;
    let up = ["up", &text(&stand.dir), &text(&stand.at), "--osts", "2"];
    let printed = stand.nacre(&up)?;
    ensure!(!printed.status.success(), "it did not fail");
    let said = format!("{}{}", printed.stdout, printed.stderr);
    Program::new("mount").args(["-o", "remount,size=512m", &text(&stand.dir)]).run()?;
    let again = stand.program(&up).run()?.stdout;
    fs::write(stand.at.join("f"), "x")?;
    stand.program(&["down", &text(&stand.dir)]).run()?;
    stand.is_documented("On a full disk", &(said + &again))
}

/// In a mount namespace of its own there is no /dev/fuse. Nothing is formatted then.
fn without_fuse(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    let script = r#"mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@""#;
    let nacre = text(stand.cluster.nacre());
    let args = ["-m", "bash", "-c", script, "hidden", &nacre, "up", &text(&stand.dir), &text(&stand.at)];
    let printed = Program::new("unshare").args(args).env("NACRE_RUN_DIR", env.local.join("run")).output()?;
    ensure!(!printed.status.success(), "it did not fail");
    stand.is_documented("Without FUSE", &format!("{}{}", printed.stdout, printed.stderr))?;
    ensure!(!stand.dir.join("mgs").exists(), "it was formatted though it cannot be mounted");
    Ok(())
}

/// A port that was asked for is not replaced by another one.
fn port_taken(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let listen = taken.local_addr()?.to_string();
    let printed = stand.nacre(&["up", &text(&stand.dir), &text(&stand.at), "--listen", &listen])?;
    ensure!(!printed.status.success(), "it did not fail");
    stand.is_documented("When its port is taken", &format!("{}{}", printed.stdout, printed.stderr))?;
    ensure!(!stand.dir.join("mgs").exists(), "it was formatted though it cannot listen");
    Ok(())
}

/// An ordinary user, with nothing but the package fuse3.
fn as_user(env: &Env) -> Outcome {
    let mut stand = Stand::new(env)?;
    let home = env.local.join("home");
    (stand.dir, stand.at) = (home.join("fs"), home.join("mnt"));
    let script = r#"mkdir -p "$1/run" && chmod 700 "$1" "$1/run" && cp "$2" "$1/nacre" && chown -R nobody "$1""#;
    let nacre = text(stand.cluster.nacre());
    Program::new("bash").args(["-ec", script, "home", &text(&home), &nacre]).run()?;
    // In a mount namespace of its own, where everybody may open /dev/fuse, as on most systems.
    let script =
        r#"mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse && touch "$1/ready" && exec sleep 100"#;
    let space = Program::new("unshare").args(["-m", "bash", "-ec", script, "space", &text(&env.local)]).start()?;
    ensure!(wait_for(Duration::from_secs(10), || Ok(env.local.join("ready").exists()))?, "no mount namespace");
    let inside = |args: &[&str]| {
        let program = Program::new("nsenter").args(["-m", "-t", &space.child.id().to_string(), "--"]).args(args);
        program.env("XDG_RUNTIME_DIR", home.join("run")).limit(Duration::from_secs(60))
    };
    let user = |path: &str, args: &[&str]| {
        let path = format!("PATH={path}");
        let mut all = vec!["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"];
        all.extend(["env", "-u", "NACRE_RUN_DIR", &path]);
        inside(&[&all, args].concat())
    };
    let (dir, at, nacre) = (text(&stand.dir), text(&stand.at), text(&home.join("nacre")));
    let printed = user("/nonexistent", &["/usr/bin/env", &nacre, "up", &dir, &at]).output()?;
    ensure!(!printed.status.success(), "mounted without fusermount3");
    stand.is_documented("As an ordinary user, without fuse3", &format!("{}{}", printed.stdout, printed.stderr))?;

    let run = |args: &[&str]| -> Outcome<String> { Ok(user("/usr/bin:/bin:/usr/sbin:/sbin", args).run()?.stdout) };
    let file = text(&stand.at.join("f"));
    let result = (|| {
        stand.is_documented("As an ordinary user", &run(&[&nacre, "up", &dir, &at, "--osts", "2"])?)?;
        run(&["bash", "-ec", r#"echo mine > "$1/f" && mkdir "$1/d" && sync "$1/f" && cat "$1/f""#, "use", &at])?;
        let targets = run(&[&nacre, "lfs", "df", &at])?;
        ensure_eq!(targets.matches("OST:").count(), 2, "OSTs in `lfs df`: {targets}");
        ensure!(!inside(&["cat", &file]).output()?.status.success(), "root sees a mount that the user did not share");
        stand.kill()?;
        let up = run(&[&nacre, "up", &dir, &at])?;
        ensure!(up.contains("removed the dead mount"), "after kill -9 it says {up}");
        ensure_eq!(run(&["cat", &file])?, "mine\n", "content");
        Ok(())
    })();
    let down = run(&[&nacre, "down", &dir]);
    result.and(down.map(drop))?;
    ensure!(inside(&["mountpoint", "-q", &at]).output()?.status.code() != Some(0), "still mounted");
    stand.judge(&[])
}

/// Review 1, defect 4: a daemon whose caller had gone away panicked when it was ready.
fn caller_gone(env: &Env) -> Outcome {
    let stand = Stand::new(env)?;
    let mut caller = stand.program(&["up", &text(&stand.dir), &text(&stand.at), "--osts", "2"]).start()?;
    let begun = wait_for(Duration::from_secs(10), || Ok(stand.state()? == "starting"))?;
    let _ = caller.child.kill();
    ensure!(begun, "it did not even begin");
    ensure!(wait_for(Duration::from_secs(20), || Ok(stand.state()? == "up"))?, "state {}", stand.state()?);
    std::thread::sleep(Duration::from_secs(1));
    ensure!(stand.state()? == "up" && is_mounted(&stand.at), "it did not outlive its caller");
    fs::write(stand.at.join("f"), "x")?;
    stand.program(&["down", &text(&stand.dir)]).run()?;

    // With a standard output that is closed, everything works, too.
    let script = r#""$1" up "$2" "$3" >&- 2>&-"#;
    let args = ["-c", script, "up", &text(stand.cluster.nacre()), &text(&stand.dir), &text(&stand.at)];
    Program::new("bash").args(args).env("NACRE_RUN_DIR", env.local.join("run")).run()?;
    ensure_eq!(stand.state()?, "up", "state");
    stand.program(&["down", &text(&stand.dir)]).run()?;
    stand.judge(&[])
}

/// What the label has is so after a crash; what was only set is gone, and the log says so.
fn params_kept(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("cluster"));
    (plan.servers, plan.mounts) = ((1, 2), 1);
    plan.ost_params = &["obdfilter.reply_from_memory_mb=64", "osd-nacre.commit_interval_ms=2000"];
    let cluster = Cluster::start(plan)?;
    let outcome = (|| {
        cluster.lctl(&["set_param", "obdfilter.*.sync_on_lock_cancel=never", "obdfilter.*OST0001.brw_size=8"])?;
        let file = cluster.mount_point(1).join("f");
        fs::write(&file, b"in memory")?;
        cluster.kill("oss1")?;
        // It is started as its labels say, which `restart` checks.
        cluster.restart("oss1")?;
        ensure_eq!(fs::read(&file)?, b"in memory", "content");
        let shown = cluster.lctl(&["get_param", "-n", "obdfilter.*.sync_on_lock_cancel", "obdfilter.*.brw_size"])?;
        ensure!(!shown.contains("never") && !shown.contains('8'), "a value that was only set has lasted: {shown}");
        let log = cluster.log_of("oss1")?;
        let gone: Vec<&str> = log.lines().filter(|line| line.contains("gone with the restart")).collect();
        ensure_eq!(gone.len(), 2, "lines that say what is gone: {gone:?}");
        ensure!(gone.iter().any(|line| line.contains("obdfilter.e2e-OST0001.brw_size=8")), "{gone:?}");

        cluster.stop_server("oss1")?;
        let dir = text(&env.local.join("cluster/targets/ost1"));
        let tunefs = |param: &str| Program::new(main.nacre()).args(["tunefs", "--param", param, &dir]).output();
        ensure!(!tunefs("obdfilter.sync_journal=maybe")?.status.success(), "a value that is none was taken");
        ensure!(!tunefs("mdt.recovery_time_soft=30")?.status.success(), "a parameter of an MDT was taken");
        let printed = tunefs("obdfilter.sync_journal=1")?.stdout;
        ensure!(printed.contains("obdfilter.sync_journal=1"), "tunefs prints {printed}");
        cluster.restart("oss1")?;
        let shown = cluster.lctl(&["get_param", "-n", "obdfilter.e2e-OST0001.sync_journal"])?;
        ensure_eq!(shown.trim(), "1", "sync_journal");

        cluster.stop_server("mds")?;
        let label = text(&env.local.join("cluster/targets/mdt0"));
        let squash = |value: &str| {
            Program::new(main.nacre()).args(["tunefs", "--param", &format!("mdt.root_squash={value}"), &label]).output()
        };
        ensure!(!squash("nobody")?.status.success(), "ids that are none were taken");
        ensure!(squash("65534:65533")?.status.success(), "root_squash was not taken");
        cluster.restart("mds")?;
        let shown = cluster.lctl(&["get_param", "-n", "mdt.*.root_squash"])?;
        ensure_eq!(shown.trim(), "65534:65533", "root_squash");
        cluster.stop()
    })();
    env.judge_own(&cluster, outcome, &["gone with the restart"])
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
    // What is misspelt is an error at once; a mount that waits says for whom.
    let mount = |source: &str| {
        let args = ["2", &text(cluster.nacre()), "mount", "-f", source, &text(&at)];
        Program::new("timeout").args(args).output()
    };
    let wrong = mount(&cluster.source().replace(":/", ":/x"))?;
    ensure!(wrong.stderr.contains("the MGS knows no file system"), "a wrong name: {} {}", wrong.status, wrong.stderr);
    let waits = mount("127.0.0.1:1@tcp:/e2e")?;
    ensure!(waits.stdout.contains("waiting for the MGS at 127.0.0.1:1@tcp, 59 s at most"), "says {:?}", waits.stdout);
    let gone = wait_for(Duration::from_secs(15), || {
        let processes = Program::new("pgrep").args(["-f", &text(&at)]).output()?;
        Ok(!processes.status.success())
    })?;
    ensure!(gone, "the mount's process still runs 15 s after umount");
    Ok(())
}
