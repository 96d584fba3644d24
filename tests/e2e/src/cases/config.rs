//! The configuration in an etcd that two MGSs share, while members of etcd and MGSs die, stand still or are cut off; and an MGS
//! that is away for long. Each case runs on a file system of its own.

use crate::case::{Case, Env, Layout};
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cases::litmus::steps::wait_for;
use crate::cluster::{Cluster, Plan};
use crate::etcd::{Etcd, Relays, check_store, check_tls};
use crate::failure::{Context, Outcome, bail, ensure};
use std::path::Path;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster();
    vec![
        case("config.store", |env| check_store(&Etcd::start(3, &env.local.join("etcd"))?)),
        case("config.tls", |env| check_tls(&env.local.join("etcd"))),
        case("config.etcd", config_in_etcd).limits(120, 300),
        case("config.mgs-away", mgs_away).layouts(&[], &[Layout::Default]).limits(300, 400),
    ]
}

/// Time within which a program must go on.
const PAUSE_LIMIT: Duration = Duration::from_secs(60);
/// Time within which all processes must have a new value.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);
/// Warnings of MGSs and others because etcd or an MGS is away.
const ANNOUNCED: &[&str] = &["this MGS stops until there is one", "This MGS tries again until it can serve"];

/// Members that are killed. The other three are just enough.
const KILLED: [usize; 2] = [0, 1];

fn config_in_etcd(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut etcd = Etcd::start(5, &env.local.join("etcd"))?;
    let relays = etcd.relays()?;
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    let user = etcd.user_file.to_string_lossy().into_owned();
    let options = |address: String| ["--config", &address, "--config-user", &user].map(str::to_owned).to_vec();
    (plan.mounts, plan.servers) = (2, (2, 1));
    plan.shared_mgs = vec![options(relays.address()), options(etcd.address())];
    let cluster = Cluster::start(plan)?;
    let outcome = go_on(env, &cluster, &mut etcd, &relays);
    env.judge_own(&cluster, outcome, ANNOUNCED)?;
    cluster.stop()
}

fn go_on(env: &Env, cluster: &Cluster, etcd: &mut Etcd, relays: &Relays) -> Outcome {
    let a = cluster.mount_point(1);
    make_first_file(&a.join("first"))?;
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let mut changes = Changes { cluster, mounts: 2, value: 40 };
    let mut step = |what: &str, act: &mut dyn FnMut(&mut Changes) -> Outcome| -> Outcome {
        let begin = Instant::now();
        act(&mut changes).context(what.to_owned())?;
        writer.progress(5, PAUSE_LIMIT).context(what.to_owned())?;
        println!("    {what}: {:.1} s", begin.elapsed().as_secs_f64());
        Ok(())
    };
    step("two of five members die", &mut |changes| {
        KILLED.iter().for_each(|member| etcd.kill(*member));
        changes.make("oss1")
    })?;
    step("an MGS dies", &mut |changes| {
        cluster.kill("mgs")?;
        changes.make("oss2")
    })?;
    step("it is back, and the other dies", &mut |changes| {
        cluster.restart("mgs")?;
        cluster.kill("mgs2")?;
        changes.make("oss1")
    })?;
    cluster.restart("mgs2")?;
    step("the MGS that all use is cut off from etcd", &mut |changes| {
        relays.set_cut(true);
        let done = changes.make("mds");
        relays.set_cut(false);
        done
    })?;
    if env.pick(false, true) {
        step("a third member stands still for 30 s", &mut |changes| {
            etcd.signal(2, libc::SIGSTOP);
            std::thread::sleep(Duration::from_secs(30));
            etcd.signal(2, libc::SIGCONT);
            changes.make("oss1")
        })?;
    }
    step("the members are back", &mut |changes| {
        KILLED.iter().try_for_each(|member| etcd.restart(*member))?;
        changes.make("oss2")
    })?;
    let (dir, log) = writer.finish()?;
    verify(&cluster.mount_point(2).join("durable"), &log).context("seen by the other mount")?;
    verify(&dir, &log).context("seen by the writer's mount")
}

/// Changes that need the configuration.
struct Changes<'a> {
    cluster: &'a Cluster,
    mounts: usize,
    value: u32,
}

impl Changes<'_> {
    /// A client mounts, a server's targets register, and a parameter changes, which all must hear of. All targets are still
    /// registered, each once.
    fn make(&mut self, server: &str) -> Outcome {
        let cluster = self.cluster;
        self.mounts += 1;
        let mount = cluster.add_mount(self.mounts)?;
        make_first_file(&mount.join(format!("by-mount-{}", self.mounts)))?;
        cluster.kill(server)?;
        cluster.restart(server)?;
        self.value += 1;
        let value = self.value.to_string();
        let set = || Ok(cluster.lctl(&["set_param", "-P", &format!("osc.*.max_dirty_mb={value}")]).is_ok());
        ensure!(wait_for(KNOWN_WITHIN, set)?, "no MGS takes a parameter");
        let has_all = || {
            let shown = cluster.values("osc.*OST*-*.max_dirty_mb")?;
            Ok(!shown.is_empty() && shown.values().all(|shown| *shown == self.value))
        };
        ensure!(wait_for(KNOWN_WITHIN, has_all)?, "not all have {value}: {:?}", cluster.values("osc.*.max_dirty_mb")?);
        check_registered(cluster)?;
        check_written(&mount, self.mounts)?;
        cluster.remove_mount(self.mounts)
    }
}

/// Checks that the files of all earlier mounts are there.
fn check_written(mount: &Path, mounts: usize) -> Outcome {
    for n in 3..=mounts {
        ensure!(mount.join(format!("by-mount-{n}")).exists(), "the file of mount {n} is gone");
    }
    Ok(())
}

fn check_registered(cluster: &Cluster) -> Outcome {
    let shown = cluster.values("mgs.MGS.live.e2e")?;
    ensure!(!shown.is_empty(), "no MGS serves");
    for live in shown.values() {
        let targets: Vec<&str> = live["targets"].as_array().into_iter().flatten().filter_map(|t| t.as_str()).collect();
        let expected = ["e2e-MDT0000", "e2e-OST0000", "e2e-OST0001"];
        ensure!(targets == expected, "registered are {targets:?}");
    }
    Ok(())
}

/// How long the MGS is away: longer than a lease, and than clients may be silent.
const AWAY: Duration = Duration::from_secs(180);

fn mgs_away(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers) = (3, (2, 1));
    let cluster = Cluster::start(plan)?;
    let outcome = live_without_mgs(env, &cluster);
    // A warning of an eviction is a complaint.
    env.judge_own(&cluster, outcome, &[])?;
    cluster.stop()
}

fn live_without_mgs(env: &Env, cluster: &Cluster) -> Outcome {
    let a = cluster.mount_point(1);
    make_first_file(&a.join("first"))?;
    // The third mount is idle, with locks.
    ensure!(cluster.mount_point(3).join("first").exists(), "the third mount sees the file");
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let exports = || cluster.values("*.e2e-*.num_exports");
    writer.progress(10, PAUSE_LIMIT)?;
    let before = exports()?;
    cluster.kill("mgs")?;
    std::thread::sleep(AWAY);
    writer.progress(10, PAUSE_LIMIT).context("while the MGS is away")?;
    cluster.restart("mgs")?;
    std::thread::sleep(Duration::from_secs(30));
    writer.progress(10, PAUSE_LIMIT).context("with the MGS back")?;
    let after = exports()?;
    ensure!(before == after, "connected were {before:?}, and are {after:?}");
    let evictions = cluster.any_log_line(|line| line.contains("evicted"));
    ensure!(!evictions, "somebody was evicted");
    let (dir, log) = writer.finish()?;
    verify(&dir, &log)
}
