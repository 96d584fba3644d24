//! A file system whose clients reach its servers over three networks and two rows of gateways, on hosts of their own:
//!
//! ```text
//! clients --tcp1-- a1, a2 --tcp2-- b1, b2 --tcp3-- servers, neighbour
//! ```
//!
//! The kernels of the hosts pass nothing on between the networks, so every message goes through two routers. Only a mount on
//! the neighbour reaches the servers directly.

use crate::case::{Case, Env, Layout, text};
use crate::cases::failover::Probe;
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cases::litmus::steps::wait_for;
use crate::cases::routers::{LOSSES, pause_limit};
use crate::cases::{posix, tools, tree};
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::namespaces::Hosts;
use crate::process::Program;
use crate::results::show;
use crate::site::Site;
use crate::{storm, sys};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(180, 1200);
    vec![
        case("networks.basics", basics).prepare(posix::install),
        case("networks.gateways", gateways),
        case("networks.rate", rate).layouts(&[], &[Layout::Default]),
        case("networks.storm", storm_of_pings),
    ]
}

/// Bytes a second of a Gigabit Ethernet, for cases that do not ask about rates.
const GIGABIT: u64 = 125_000_000;

/// The hosts, on links of this many bytes a second, or as fast as the machine is.
fn make_hosts(rate: Option<u64>) -> Outcome<Hosts> {
    let mut hosts = Hosts::new(&["tcp1", "tcp2", "tcp3"])?;
    hosts.add("clients", &[("tcp1", "10.1.0.1")])?;
    hosts.add("a1", &[("tcp1", "10.1.0.11"), ("tcp2", "10.2.0.11")])?;
    hosts.add("a2", &[("tcp1", "10.1.0.12"), ("tcp2", "10.2.0.12")])?;
    hosts.add("b1", &[("tcp2", "10.2.0.21"), ("tcp3", "10.3.0.21")])?;
    hosts.add("b2", &[("tcp2", "10.2.0.22"), ("tcp3", "10.3.0.22")])?;
    hosts.add("servers", &[("tcp3", "10.3.0.1")])?;
    hosts.add("neighbour", &[("tcp3", "10.3.0.2")])?;
    rate.map_or(Ok(()), |rate| hosts.shape(rate))?;
    Ok(hosts)
}

/// Who is where and by which gateways it reaches the others. Mounts are on these hosts, in turn.
fn site(hosts: &Hosts, mounts: &[&str]) -> Site {
    let far = |host: &str| match host {
        "clients" => hosts.place(host, &["tcp3 2 10.1.0.11@tcp1", "tcp3 2 10.1.0.12@tcp1"]),
        "a1" | "a2" => hosts.place(host, &["tcp3 1 10.2.0.21@tcp2", "tcp3 1 10.2.0.22@tcp2"]),
        "b1" | "b2" => hosts.place(host, &["tcp1 1 10.2.0.11@tcp2", "tcp1 1 10.2.0.12@tcp2"]),
        "servers" => hosts.place(host, &["tcp1 2 10.3.0.21@tcp3", "tcp1 2 10.3.0.22@tcp3"]),
        _ => hosts.place(host, &[]),
    };
    Site {
        routers: ["a1", "a2", "b1", "b2"].map(|name| (name.to_owned(), far(name))).to_vec(),
        servers: far("servers"),
        apart: BTreeMap::new(),
        mounts: mounts.iter().map(|host| far(host).at_any_port()).collect(),
    }
}

fn start(env: &Env, hosts: &Hosts, mounts: &[&str]) -> Outcome<Cluster> {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    let mut plan = Plan::new(main.nacre(), &root(env));
    (plan.mounts, plan.servers, plan.site) = (mounts.len(), (2, 1), site(hosts, mounts));
    let cluster = Cluster::start(plan)?;
    make_first_file(&cluster.mount_point(1).join("first"))?;
    Ok(cluster)
}

/// The file system's directory. It stands directly in the run's, so that pjdfstest can make sockets on the mounts: the path
/// of a socket ends after 108 bytes.
fn root(env: &Env) -> PathBuf {
    let run = env.local.ancestors().nth(2).unwrap_or(&env.local);
    run.join(format!("n{}", env.seed))
}

fn judge(env: &Env, cluster: &Cluster, outcome: Outcome, announced: &[&str]) -> Outcome {
    env.judge_own(cluster, outcome, announced)?;
    cluster.stop()?;
    fs::remove_dir_all(root(env)).context("removing the file system")
}

/// What works on a mount beside the servers works through two rows of gateways.
fn basics(env: &Env) -> Outcome {
    let hosts = make_hosts(Some(GIGABIT))?;
    let cluster = Arc::new(start(env, &hosts, &["clients", "clients"])?);
    let [a, b] = [1, 2].map(|n| cluster.mount_point(n).join("d"));
    fs::create_dir(&a)?;
    let routed = Env { c: a.clone(), a, b, cluster: Some(cluster.clone()), ..env.clone() };
    // A few of its groups in the short profile: the others are asked beside the servers.
    let outcome = posix::pjdfstest(&routed, env.pick(posix::BASICS, &[]))
        .and_then(|()| tools::fio(&routed))
        .and_then(|()| copy_a_tree(&routed))
        .and_then(|()| all_gateways_are_used(&cluster));
    judge(env, &cluster, outcome, &[])
}

/// A copy of this repository's sources has the same bytes, seen by the other mount.
fn copy_a_tree(env: &Env) -> Outcome {
    let source = env.repository.join("crates");
    Program::new("cp").arg("-a").arg(&source).arg(env.a.join("copy")).run()?;
    let (expected, copied) = (tree::checksums(&source)?, tree::checksums(&env.b.join("copy"))?);
    ensure!(expected.lines().count() > 500, "the tree is too small to tell anything");
    let differ = copied.lines().zip(expected.lines()).find(|(copied, expected)| copied != expected);
    ensure_eq!(differ, None, "first line that differs");
    ensure_eq!(copied.lines().count(), expected.lines().count(), "files and directories");
    Ok(())
}

/// Each gateway has passed on large messages: nobody has found another way, or got by with half of them.
fn all_gateways_are_used(cluster: &Cluster) -> Outcome {
    let routing = cluster.lnetctl(&["routing", "show"])?;
    // Each router's largest pool stands last. All of its buffers are free unless it has passed on bulk.
    let lowest: Vec<&str> = routing.lines().filter_map(|l| l.trim().strip_prefix("mincredits: ")).collect();
    let used = lowest.chunks_exact(3).filter(|pools| pools[2] != "1024").count();
    ensure_eq!(used, 4, "routers that have passed bulk on: {routing}");
    Ok(())
}

/// How long a gateway is gone: longer than a program may wait, so that its return is not what ends the wait.
const ABSENCE: Duration = Duration::from_secs(6);
/// Between one gateway's failure and the next one's in the full profile, which goes on for ten minutes.
const INTERVAL: Duration = Duration::from_secs(20);
const EVENTS_IN_FULL: usize = 30;
/// Each kind of failure in each row.
const EVENTS_IN_SHORT: usize = 6;
/// Time after which a case gives up waiting for programs and gateways.
const PATIENCE: Duration = Duration::from_secs(60);
/// Routes that differ: two of each row of gateways on either side of it, and two as the second mount has them, without hops.
const ROUTES: usize = 10;

/// What happens to a gateway.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// Killed with SIGKILL, and started again.
    Killed,
    /// Ended with SIGTERM, and started again.
    Stopped,
    /// Cut off from this network, and from no other one. The host's end of the link stays up.
    CutOffFrom(&'static str),
}

/// One failure of each kind in each row, then one of each kind of each gateway: of a gateway that is cut off, the far side
/// as clients see it in the first round and as servers see it in the second.
const EVENTS: [(&str, Failure); 18] = [
    ("a1", Failure::Killed),
    ("b1", Failure::Killed),
    ("a2", Failure::Stopped),
    ("b2", Failure::Stopped),
    ("a1", Failure::CutOffFrom("tcp2")),
    ("b1", Failure::CutOffFrom("tcp3")),
    ("a2", Failure::Killed),
    ("b2", Failure::Killed),
    ("a1", Failure::Stopped),
    ("b1", Failure::Stopped),
    ("a2", Failure::CutOffFrom("tcp2")),
    ("b2", Failure::CutOffFrom("tcp3")),
    ("a1", Failure::CutOffFrom("tcp1")),
    ("b1", Failure::CutOffFrom("tcp2")),
    ("a2", Failure::CutOffFrom("tcp1")),
    ("b2", Failure::CutOffFrom("tcp2")),
    ("b1", Failure::Killed),
    ("a1", Failure::Killed),
];

impl Failure {
    fn begin(self, gateway: &str, cluster: &Cluster, hosts: &Hosts) -> Outcome {
        match self {
            Failure::Killed => cluster.kill(gateway),
            Failure::Stopped => cluster.stop_server(gateway),
            Failure::CutOffFrom(network) => hosts.cut_off(gateway, network),
        }
    }

    fn end(self, gateway: &str, cluster: &Cluster, hosts: &Hosts) -> Outcome {
        match self {
            Failure::Killed | Failure::Stopped => cluster.restart(gateway),
            Failure::CutOffFrom(network) => hosts.rejoin(gateway, network),
        }
    }
}

/// One gateway after another fails and comes back; programs on two mounts notice no more than a pause.
fn gateways(env: &Env) -> Outcome {
    let hosts = make_hosts(Some(GIGABIT))?;
    let cluster = start(env, &hosts, &["clients", "clients"])?;
    let outcome = lose_gateways(env, &cluster, &hosts);
    judge(env, &cluster, outcome, LOSSES)
}

fn lose_gateways(env: &Env, cluster: &Cluster, hosts: &Hosts) -> Outcome {
    let (a, b) = (cluster.mount_point(1), cluster.mount_point(2));
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let mut too_long = Vec::new();
    for (gateway, failure) in EVENTS.into_iter().cycle().take(env.pick(EVENTS_IN_SHORT, EVENTS_IN_FULL)) {
        all_routes_work(cluster)?;
        writer.progress(15, PATIENCE)?;
        let begin = Instant::now();
        let what = format!("{gateway}, {failure:?}");
        let pause = pause_during(cluster, || {
            is_used(env, cluster, gateway)?;
            failure.begin(gateway, cluster, hosts)?;
            std::thread::sleep(ABSENCE);
            failure.end(gateway, cluster, hosts)?;
            writer.progress(15, PATIENCE)?;
            // Going back to a gateway must not cost a pause either.
            all_routes_work(cluster)?;
            std::thread::sleep(env.pick(Duration::from_secs(1), INTERVAL.saturating_sub(begin.elapsed())));
            Ok(())
        });
        let pause = pause.context(&what)?;
        println!("    {what}: longest pause of a program {:.2} s", pause.as_secs_f64());
        if pause > pause_limit(env) {
            too_long.push(format!("{what}: {:.2} s", pause.as_secs_f64()));
        }
    }
    without_any_way(env, cluster, hosts)?;
    let (dir, log) = writer.finish()?;
    verify(&b.join("durable"), &log).context("seen by the other mount")?;
    verify(&dir, &log).context("seen by the writer's mount")?;
    ensure!(too_long.is_empty(), "a program waited too long: {}", too_long.join("; "));
    Ok(())
}

/// The longest time that a program on the second mount waits while this happens.
fn pause_during(cluster: &Cluster, happens: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let probe = Probe::start(&cluster.mount_point(2))?;
    probe.has_worked()?;
    happens()?;
    probe.finish()
}

/// Waits until a gateway passes messages on: the failure of one that nobody uses would tell nothing.
fn is_used(env: &Env, cluster: &Cluster, gateway: &str) -> Outcome {
    let run_dir = root(env).join("one");
    cluster.make_run_dir_of(gateway, &run_dir)?;
    let passed_on = || {
        let stats =
            cluster.tool_program("lnetctl").env("NACRE_RUN_DIR", &run_dir).args(["stats", "show"]).run()?.stdout;
        let count = stats.lines().find_map(|line| line.trim().strip_prefix("route_count: ")?.parse::<u64>().ok());
        count.context("route_count in what lnetctl shows")
    };
    let before = passed_on()?;
    let used = wait_for(PATIENCE, || Ok(passed_on()? > before + 10))?;
    fs::remove_dir_all(&run_dir)?;
    ensure!(used, "{gateway} passes nothing on");
    Ok(())
}

/// Shows that the case would notice a pause: while both gateways of a row are away, every program waits for them, because
/// there is no other way. Programs meet no error in this case either.
fn without_any_way(env: &Env, cluster: &Cluster, hosts: &Hosts) -> Outcome {
    all_routes_work(cluster)?;
    let cut = Failure::CutOffFrom("tcp2");
    let pause = pause_during(cluster, || {
        ["b1", "b2"].iter().try_for_each(|gateway| cut.begin(gateway, cluster, hosts))?;
        std::thread::sleep(ABSENCE);
        ["b1", "b2"].iter().try_for_each(|gateway| cut.end(gateway, cluster, hosts))
    })?;
    println!("    a whole row cut off: longest pause of a program {:.2} s", pause.as_secs_f64());
    ensure!(pause > pause_limit(env), "a program went on without any gateway after {:.2} s", pause.as_secs_f64());
    Ok(())
}

/// Waits until every process takes all of its routes to work. A dead gateway is asked at longer and longer intervals. What
/// several processes say alike is shown once, so that a route that only one of them takes to be down is shown twice.
fn all_routes_work(cluster: &Cluster) -> Outcome {
    let show = || cluster.lnetctl(&["route", "show", "-v"]);
    let all_up = |routes: &str| routes.matches("state: up").count() == ROUTES && !routes.contains("state: down");
    let work = wait_for(PATIENCE, || Ok(all_up(&show()?)))?;
    ensure!(work, "not all routes work after {} s: {}", PATIENCE.as_secs(), show()?);
    Ok(())
}

/// Of what a bulk transfer reaches on links of the same rate without a gateway, the part that it must reach through two.
const ROUTED_SHARE: f64 = 0.98;
/// Rates of the links, as parts of what goes directly when nothing slows the links down.
const LINKS: [f64; 2] = [0.5, 0.25];
/// Measurements of each kind in the full profile, of which the median counts.
const MEASUREMENTS: usize = 5;
/// The same in the short one.
const MEASUREMENTS_IN_SHORT: usize = 3;

/// On links that carry a half or a quarter of what the direct path could carry, bulk transfers through two rows of gateways are as fast as
/// those without. Both take turns, so that whatever else the machine does slows both down. How busy the processors were is printed, because
/// client, gateways and servers share them here.
fn rate(env: &Env) -> Outcome {
    let hosts = make_hosts(None)?;
    let cluster = start(env, &hosts, &["clients", "neighbour"])?;
    let outcome = compare_rates(env, &cluster, &hosts);
    judge(env, &cluster, outcome, &[])
}

fn compare_rates(env: &Env, cluster: &Cluster, hosts: &Hosts) -> Outcome {
    let [routed, direct] = [1, 2].map(|n| cluster.mount_point(n).join(format!("bulk{n}")));
    for dir in [&routed, &direct] {
        fs::create_dir(dir)?;
        // Files that are there already, so that no measurement makes them grow.
        bulk(env, dir, "write")?;
    }
    let ways = ["write", "read"];
    let times = env.pick(MEASUREMENTS_IN_SHORT, MEASUREMENTS);
    let unshaped = ways.map(|way| repeat(times, || Ok(bulk(env, &direct, way)?.rate)).map(median));
    let mut slow = Vec::new();
    for (way, unshaped) in ways.into_iter().zip(unshaped) {
        let unshaped = unshaped?;
        println!("    {way}: {:.0} MB/s unshaped", unshaped / 1e6);
        for part in LINKS {
            hosts.shape((unshaped * part) as u64)?;
            let pairs = repeat(times, || Ok([bulk(env, &direct, way)?, bulk(env, &routed, way)?]))?;
            let [directly, by_gateways] = [0, 1].map(|i| median(pairs.iter().map(|pair| pair[i].rate).collect()));
            let [busy_directly, busy] = [0, 1].map(|i| median(pairs.iter().map(|pair| pair[i].busy).collect()));
            let share = by_gateways / directly;
            println!(
                "    {way}, links of {part} of that: {:.1} MB/s directly, {:.1} MB/s through gateways: {:.1} %; processors {:.0} and {:.0} % busy",
                directly / 1e6,
                by_gateways / 1e6,
                100.0 * share,
                100.0 * busy_directly,
                100.0 * busy
            );
            if share < ROUTED_SHARE {
                slow.push(format!("{way} on links of {part}: {:.1} %", 100.0 * share));
            }
        }
    }
    ensure!(slow.is_empty(), "through gateways less than {} % of what goes directly: {slow:?}", 100.0 * ROUTED_SHARE);
    Ok(())
}

fn repeat<T>(times: usize, measure: impl Fn() -> Outcome<T>) -> Outcome<Vec<T>> {
    (0..times).map(|_| measure()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A bulk transfer.
struct Transfer {
    /// Bytes a second.
    rate: f64,
    /// Part of the time that the machine's processors were busy.
    busy: f64,
}

/// Lets fio write or read in a directory, past the client's cache. Eight programs have eight calls under way at any time, so that the longer
/// path through the gateways is as full as the direct one.
fn bulk(env: &Env, dir: &Path, way: &str) -> Outcome<Transfer> {
    let fio = Program::new("fio")
        .args(["--name=bulk", "--bs=1m", "--direct=1", "--ioengine=libaio", "--iodepth=8", "--numjobs=8", "--size=32m"])
        .args(["--time_based", "--runtime=4", "--thread", "--group_reporting", "--fallocate=none"])
        .args(["--output-format=json".to_owned(), format!("--rw={way}"), format!("--directory={}", text(dir))]);
    let before = sys::processors()?;
    let printed = fio.dir(&env.local).limit(PATIENCE).run()?.stdout;
    let after = sys::processors()?;
    let result: Value = serde_json::from_str(&printed).context("what fio printed")?;
    let rate = result["jobs"][0][way]["bw_bytes"].as_f64().context("rate in what fio printed")?;
    let [all, idle] = [after.all - before.all, after.idle - before.idle];
    Ok(Transfer { rate, busy: 1.0 - idle as f64 / all.max(1) as f64 })
}

/// Imports of one process, more than a host has mounts, stay connected through routers whose links their pings fill. In the
/// full profile the dead time that they cost is measured and compared with the simulation's.
fn storm_of_pings(env: &Env) -> Outcome {
    let Some(main) = &env.cluster else { bail!("this case needs the product") };
    if env.pick(true, false) {
        storm::quick(&root(env), main.nacre())?;
    } else {
        let report = storm::run(&root(env), &storm::Plan::new(main.nacre()))?;
        show(&report, false)?;
        storm::judge(&report)?;
    }
    fs::remove_dir_all(root(env)).context("removing the file system")
}
