//! A file system behind routers: the mounts are on another network than the servers, and reach them by two routers only.

use crate::case::{Case, Env};
use crate::cases::failover::Probe;
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::site::Site;
use std::fs;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(240, 1200);
    vec![case("routers.shown", shown), case("routers.lost", lost)]
}

/// How long a program may have to wait when a router is gone.
const PAUSE_LIMIT: Duration = Duration::from_secs(3);
/// Time after which a case gives up waiting for a program to go on.
const PATIENCE: Duration = Duration::from_secs(60);

fn cluster_behind(env: &Env, routers: usize) -> Outcome<Cluster> {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &env.local.join("c"));
    (plan.mounts, plan.servers, plan.site) = (2, (2, 1), Site::behind_routers(routers)?);
    Cluster::start(plan)
}

fn judge(env: &Env, cluster: &Cluster, outcome: Outcome, announced: &[&str]) -> Outcome {
    env.judge_own(cluster, outcome, announced)?;
    cluster.stop()
}

/// What a user sees: files work, and the tools show which way they went.
fn shown(env: &Env) -> Outcome {
    let cluster = cluster_behind(env, 2)?;
    let outcome = show(&cluster);
    judge(env, &cluster, outcome, &[])
}

fn show(cluster: &Cluster) -> Outcome {
    let (a, b) = (cluster.mount_point(1), cluster.mount_point(2));
    let data: Vec<u8> = (0..8_000_000_u32).map(|i| (i % 251) as u8).collect();
    fs::write(a.join("file"), &data)?;
    ensure!(fs::read(b.join("file"))? == data, "the other mount reads something else");
    for n in 0..200 {
        fs::write(a.join(format!("f{n}")), b"small")?;
    }
    ensure!(fs::read_dir(&b)?.count() >= 201, "the other mount lists fewer files");
    let stats = cluster.lnetctl(&["stats", "show"])?;
    let routed = stats.lines().find_map(|l| l.trim().strip_prefix("route_count: ")).and_then(|n| n.parse::<u64>().ok());
    ensure!(routed.is_some_and(|count| count > 1000), "everything goes through the routers: {stats}");
    let routes = cluster.lnetctl(&["route", "show", "-v"])?;
    let up = routes.matches("state: up").count();
    ensure!(up == 4 && routes.contains("net: tcp1") && routes.contains("net: tcp2"), "two ways each way: {routes}");
    ensure!(routes.matches("type: single-hop").count() == 4, "{routes}");
    let way = cluster.lnetctl(&["route", "explain", &routes_to(&routes)?])?;
    ensure!(
        way.contains("way: by gateway ") && way.matches("state: up").count() >= 2,
        "both ways, and one taken: {way}"
    );
    let routing = cluster.lnetctl(&["routing", "show"])?;
    ensure!(routing.matches("nbuffers: 16384").count() == 2 && routing.matches("enable: 1").count() == 2, "{routing}");
    // Each router's largest pool stands last: nobody got by without both.
    let lowest: Vec<&str> = routing.lines().filter_map(|l| l.trim().strip_prefix("mincredits: ")).collect();
    let used = lowest.chunks(3).filter(|pools| pools[2] != "1024").count();
    ensure!(used == 2, "both routers have passed bulk on: {routing}");
    cluster.lnetctl(&["set", "small_buffers", "100"])?;
    let routing = cluster.lnetctl(&["routing", "show"])?;
    ensure!(routing.matches("nbuffers: 100\n").count() == 2, "both routers, and no other process: {routing}");
    fs::write(a.join("file"), &data[1..])?;
    ensure!(fs::read(b.join("file"))? == data[1..], "with fewer buffers");
    Ok(())
}

/// A NID on a network that one of these routes leads to.
fn routes_to(routes: &str) -> Outcome<String> {
    let network = routes.split("net: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(format!("10.99.99.99@{}", network.context("network in a route")?))
}

/// Routers that die, stop in order, and stand still; programs go on within three seconds, without an error.
fn lost(env: &Env) -> Outcome {
    let cluster = cluster_behind(env, 2)?;
    let outcome = lose(env, &cluster);
    judge(env, &cluster, outcome, &["is left", "is down", "nothing is heard"])
}

fn lose(env: &Env, cluster: &Cluster) -> Outcome {
    let (a, b) = (cluster.mount_point(1), cluster.mount_point(2));
    make_first_file(&a.join("first"))?;
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let rounds = env.pick(1, 10);
    for (router, how) in (0..rounds).flat_map(|_| {
        [("router1", "kill -9"), ("router2", "stopped in order"), ("router1", "stands still"), ("router2", "kill -9")]
    }) {
        writer.progress(15, PATIENCE)?;
        let probe = Probe::start(&b)?;
        probe.has_worked()?;
        let begin = Instant::now();
        match how {
            "kill -9" => cluster.kill(router)?,
            "stopped in order" => cluster.stop_server(router)?,
            _ => cluster.signal(router, libc::SIGSTOP)?,
        }
        writer.progress(15, PATIENCE).context(format!("without {router}, {how}"))?;
        let without = begin.elapsed();
        std::thread::sleep(Duration::from_secs(5).saturating_sub(without));
        match how {
            "stands still" => cluster.signal(router, libc::SIGCONT)?,
            _ => cluster.restart(router)?,
        }
        // Until it is used again by all: a dead gateway is asked at longer and longer intervals.
        std::thread::sleep(Duration::from_secs(5));
        let pause = probe.finish()?;
        println!("    {router}, {how}: longest pause of a program {:.2} s", pause.as_secs_f64());
        ensure!(pause < PAUSE_LIMIT, "{router}, {how}: a program waited {:.2} s", pause.as_secs_f64());
    }
    let (dir, log) = writer.finish()?;
    verify(&b.join("durable"), &log).context("seen by the other mount")?;
    verify(&dir, &log).context("seen by the writer's mount")
}
