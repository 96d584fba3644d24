//! Servers are killed and started again every 20 s (10 s in the short profile) while programs work. Nothing was lost and nothing failed: the programs
//! only notice a pause. What they wrote is read through mounts that had cached nothing of it, since the writing mount's
//! cache could hide a server's loss. The full profile goes on for 15 minutes.

use crate::case::{Case, Env, Layout, text};
use crate::cases::faults::{Writer, cluster, make_first_file, seen_through, verify};
use crate::cases::tools::{SCHEMA, check_database, judge_dbench, sql, transactions};
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Failure, Outcome, bail, ensure_eq};
use crate::power_cut::Answers;
use crate::process::Program;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("kill.soak", soak).needs_cluster().limits(300, 1500),
        Case::new("kill.soak-memory", soak_in_memory_mode)
            .layouts(&[], &[Layout::Default])
            .needs_cluster()
            .limits(300, 1500),
    ]
}

/// The same on OSTs that answer writes from memory.
fn soak_in_memory_mode(env: &Env) -> Outcome {
    let mut plan = Plan::new(cluster(env)?.nacre(), &env.local.join("c"));
    plan.ost_params = Answers::Memory.ost_params();
    let own = Arc::new(Cluster::start(plan)?);
    let at = |n| own.mount_point(n).join("soak");
    make_first_file(&own.mount_point(1).join("first"))?;
    fs::create_dir(at(1))?;
    let on_own = Env { a: at(1), b: at(2), c: at(3), cluster: Some(own.clone()), ..env.clone() };
    let outcome = soak(&on_own);
    env.judge_own(&own, outcome, &[])?;
    own.stop()
}

/// One round of a program in a directory of its own.
type Round = fn(&Env, &Path, usize) -> Outcome;

/// What works meanwhile: each is repeated until it is enough.
const PROGRAMS: [(&str, Round); 4] = [("fio", fio), ("dbench", dbench), ("sqlite", sqlite), ("compile", compile)];
/// What is killed, in turn.
const VICTIMS: [&str; 3] = ["mds", "oss1", "oss2"];

fn soak(env: &Env) -> Outcome {
    let enough = AtomicBool::new(false);
    let mut writer = Writer::start(env)?;
    std::thread::scope(|scope| {
        let work = |name: &'static str, run: Round| {
            let dir = env.a.join(name);
            let enough = &enough;
            move || -> Outcome<usize> {
                fs::create_dir(&dir)?;
                let mut rounds = 0;
                while !enough.load(Ordering::Relaxed) {
                    run(env, &dir, rounds).context(format!("{name}, round {rounds}"))?;
                    rounds += 1;
                }
                Ok(rounds)
            }
        };
        let running: Vec<_> = PROGRAMS.iter().map(|(name, run)| (name, scope.spawn(work(name, *run)))).collect();
        let killed = kill_in_turn(env, &mut writer, || running.iter().any(|(_, thread)| thread.is_finished()));
        enough.store(true, Ordering::Relaxed);
        let mut failures: Vec<Failure> = killed.err().into_iter().collect();
        for (name, thread) in running {
            match thread.join() {
                Ok(Ok(0)) => failures.push(Failure::new(format!("{name} never came to its end"))),
                Ok(Ok(_)) => {}
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => failures.push(Failure::new(format!("{name} panicked"))),
            }
        }
        failures.into_iter().next_back().map_or(Ok(()), Err)
    })?;
    let (_, log) = writer.finish()?;
    verify(&env.b.join("durable"), &log).context("seen by the other mount")
}

/// The number of a mount that is made only to look at what servers have.
const FRESH_MOUNT: usize = 9;

/// Until the time is over, or a program ended by an error.
fn kill_in_turn(env: &Env, writer: &mut Writer, has_failed: impl Fn() -> bool) -> Outcome {
    let (cluster, begin, limit) = (cluster(env)?, Instant::now(), Duration::from_secs(env.pick(25, 900)));
    let interval = Duration::from_secs(env.pick(10, 20));
    for victim in VICTIMS.iter().cycle() {
        let next = Instant::now() + interval;
        while Instant::now() < next {
            if has_failed() {
                bail!("a program ended by itself");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        if begin.elapsed() > limit {
            return Ok(());
        }
        cluster.kill(victim)?;
        std::thread::sleep(Duration::from_millis(500));
        cluster.restart(victim).context(format!("restart of {victim}"))?;
        writer.progress(3, Duration::from_secs(100)).context(format!("after the restart of {victim}"))?;
        let fresh = cluster.add_mount(FRESH_MOUNT).context("a new mount")?;
        writer.verify_through(&fresh, env).context(format!("after the restart of {victim}"))?;
        cluster.remove_mount(FRESH_MOUNT)?;
    }
    Ok(())
}

/// Writes, syncs every few blocks, and reads all of it back, then once more through another mount.
fn fio(env: &Env, dir: &Path, _: usize) -> Outcome {
    for (dir, only) in [(dir.to_owned(), None), (seen_through_second(env, dir)?, Some("--verify_only=1"))] {
        let fio = Program::new("fio").args(["--name=soak", "--rw=randwrite", "--bs=16k", "--fsync=16", "--size=8m"]);
        let fio = fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--thread"]);
        let fio = fio.args(["--numjobs=2", "--fallocate=none", "--output-format=terse"]).args(only);
        let fio = fio.arg(format!("--directory={}", dir.display()));
        fio.dir(&env.local).limit(Duration::from_secs(200)).run()?;
    }
    for file in fs::read_dir(dir)? {
        fs::remove_file(file?.path())?;
    }
    Ok(())
}

fn dbench(env: &Env, dir: &Path, _: usize) -> Outcome {
    let dbench = Program::new("dbench").args(["-D", &text(dir), "-t", "10", "2"]).dir(&env.local);
    judge_dbench(&dbench.limit(Duration::from_secs(200)).run()?)
}

fn sqlite(env: &Env, dir: &Path, round: usize) -> Outcome {
    const COUNT: usize = 40;
    let database = dir.join(format!("{round}.db"));
    sql(&database, SCHEMA)?;
    sql(&database, &transactions(COUNT))?;
    check_database(&seen_through_second(env, &database)?, COUNT)?;
    Ok(fs::remove_file(&database)?)
}

/// Compiles a program of many files, and runs it through another mount.
fn compile(env: &Env, dir: &Path, round: usize) -> Outcome {
    let at = dir.join(round.to_string());
    let made = Program::shell(
        r#"mkdir "$D" && cd "$D" && sum=0
           for n in $(seq 30); do
             printf '#include <stdio.h>\nint f%d(int x) { return x + %d; }\n' $n $n > f$n.c
             printf 'int f%d(int);\n' $n >> all.h; sum="f$n($sum)"; done
           printf '#include <stdio.h>\n#include "all.h"\nint main(void) { printf("%%d\\n", %s); return 0; }\n' "$sum" > main.c
           for n in $(seq 30); do cc -c f$n.c -o f$n.o || exit 1; done
           cc -c main.c -o main.o && cc -o program *.o"#,
    );
    made.env("D", &at).limit(Duration::from_secs(200)).run()?;
    // By a shell: to start a program that lies on a mount waits for servers, and no server could be started meanwhile.
    let program = Program::shell("exec \"$P\"").env("P", seen_through_second(env, &at.join("program"))?);
    let printed = program.limit(Duration::from_secs(200)).run()?;
    ensure_eq!(printed.stdout.trim(), "465", "what the program prints");
    Ok(fs::remove_dir_all(&at)?)
}

/// Through the second mount, which has not been told of it before.
fn seen_through_second(env: &Env, path: &Path) -> Outcome<PathBuf> {
    seen_through(&cluster(env)?.mount_point(2), path, env)
}
