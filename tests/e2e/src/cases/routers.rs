//! A file system behind routers: the mounts are on another network than the servers, and reach them by two routers only.

use crate::case::{Case, Env};
use crate::cases::failover::Probe;
use crate::cases::faults::{Writer, make_first_file, verify};
use crate::cluster::{Cluster, Plan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::process::Program;
use crate::site::Site;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let case = |name, run| Case::new(name, run).needs_cluster().limits(240, 1200);
    vec![case("routers.shown", shown), case("routers.lost", lost), case("routers.changed", changed)]
}

/// What logs say when routers die: nodes leave them, and an MGS that a dead one was connected to evicts it after a while.
pub(crate) const LOSSES: &[&str] = &["is left", "is down", "nothing is heard", "evicting router"];
/// How long a program may have to wait when a router is gone. The short profile runs beside a compiler, and allows for that.
pub(crate) fn pause_limit(env: &Env) -> Duration {
    Duration::from_secs(env.pick(5, 3))
}

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
    check_path(cluster)?;
    cluster.lnetctl(&["set", "small_buffers", "100"])?;
    let routing = cluster.lnetctl(&["routing", "show"])?;
    ensure!(routing.matches("nbuffers: 100\n").count() == 2, "both routers, and no other process: {routing}");
    fs::write(a.join("file"), &data[1..])?;
    ensure!(fs::read(b.join("file"))? == data[1..], "with fewer buffers");
    wait_for_renewals(cluster)
}

/// Mounts find out within seconds that routers renew leases.
fn wait_for_renewals(cluster: &Cluster) -> Outcome {
    let begin = Instant::now();
    loop {
        let renewals = cluster.lctl(&["get_param", "-n", "lease_renewals"])?;
        let all: u64 = renewals.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
        if all >= 1 {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < Duration::from_secs(40),
            "routers have renewed {all} leases of two mounts: {renewals}"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A NID on a network that one of these routes leads to.
fn routes_to(routes: &str) -> Outcome<String> {
    let network = routes.split("net: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(format!("10.99.99.99@{}", network.context("network in a route")?))
}

/// Changes that an administrator makes while files are written. Each command is judged by what the tools print afterwards.
fn changed(env: &Env) -> Outcome {
    let cluster = cluster_behind(env, 2)?;
    let outcome = change(&cluster);
    judge(env, &cluster, outcome, &[])
}

fn change(cluster: &Cluster) -> Outcome {
    let works = |n: u32| -> Outcome {
        fs::write(cluster.mount_point(1).join("file"), n.to_string())?;
        let read = fs::read_to_string(cluster.mount_point(2).join("file"))?;
        ensure!(read == n.to_string(), "the other mount reads {read}, not {n}");
        Ok(())
    };
    works(1)?;
    change_settings(cluster)?;
    works(2)?;
    change_networks(cluster)?;
    works(3)?;
    import(cluster)?;
    works(4)
}

fn change_settings(cluster: &Cluster) -> Outcome {
    cluster.lnetctl(&["set", "retry_count", "3"])?;
    let shown = cluster.lnetctl(&["global", "show"])?;
    ensure!(shown.starts_with("global:\n    numa_range: 0\n"), "one for all processes: {shown}");
    ensure!(shown.contains("\n    retry_count: 3\n    transaction_timeout: 50\n"), "{shown}");
    refused(cluster, &["set", "numa_range", "1"], "numa_range is 0: memory")?;
    cluster.lnetctl(&["set", "discovery", "0"])?;
    ensure!(cluster.lnetctl(&["global", "show"])?.contains("\n    discovery: 0\n"), "in all processes");
    cluster.lnetctl(&["set", "discovery", "1"])?;
    change_peers(cluster)?;
    refused(cluster, &["set", "retry_cuont", "1"], "there is no setting retry_cuont")?;
    refused(cluster, &["fault", "drop", "add", "--source", "*", "--dest", "*"], "either --rate N")?;
    let late = ["fault", "delay", "add", "--source", "*@tcp2", "--dest", "*@tcp1", "--rate", "2", "--latency", "20"];
    cluster.lnetctl(&late)?;
    fs::write(cluster.mount_point(1).join("late"), b"late")?;
    let rules = cluster.lnetctl(&["fault", "delay", "list", "--json"])?;
    let rules: Value = serde_json::from_str(&rules).context("fault delay list --json")?;
    let delayed: u64 =
        rules["delay"].as_array().into_iter().flatten().filter_map(|rule| rule["delayed"].as_u64()).sum();
    ensure!(delayed > 0, "what comes by the routers is late: {rules}");
    cluster.lnetctl(&["fault", "delay", "del", "--all"])?;
    ensure!(cluster.lnetctl(&["fault", "delay", "list"])? == "delay:\n", "no rule is left");

    cluster.lnetctl(&["stats", "reset"])?;
    let stats = cluster.lnetctl(&["stats", "show", "--json"])?;
    let stats: Value = serde_json::from_str(&stats).context("stats show --json")?;
    let routed = stats["statistics"]["route_count"].as_u64();
    ensure!(routed.is_some_and(|count| count < 1000), "begins to count from zero: {stats}");
    let lanes = |value: &str| -> Outcome {
        cluster.lnetctl(&["set", "lanes", value])?;
        let routing = cluster.lnetctl(&["routing", "show", "-v"])?;
        ensure!(routing.matches(&format!("lanes: {value}\n")).count() == 2, "{routing}");
        Ok(())
    };
    lanes("0")?;
    lanes("1")
}

/// A peer that nobody has, and a rule that concerns nobody: what is added is shown, and gone when it was removed.
fn change_peers(cluster: &Cluster) -> Outcome {
    let peer = ["--prim_nid", "127.99.0.1@tcp1", "--nid", "127.99.0.[2-3]@tcp2"];
    cluster.lnetctl(&[&["peer", "add"], &peer[..]].concat())?;
    let shown = cluster.lnetctl(&["peer", "show", "--nid", "127.99.0.3@tcp2"])?;
    ensure!(shown.contains("primary nid: 127.99.0.1@tcp1\n      Multi-Rail: true\n"), "{shown}");
    ensure!(shown.contains("-     nid: 127.99.0.2@tcp2\n"), "{shown}");
    refused(
        cluster,
        &["peer", "add", "--prim_nid", "127.99.0.9@tcp1", "--nid", "127.99.0.2@tcp2"],
        "is configured as a NID",
    )?;
    cluster.lnetctl(&["peer", "del", "--prim_nid", "127.99.0.1@tcp1"])?;
    refused(cluster, &["peer", "show", "--nid", "127.99.0.3@tcp2"], "no process of this host knows")?;
    cluster.lnetctl(&["udsp", "add", "--dst", "tcp2", "--priority", "3"])?;
    let rules = cluster.lnetctl(&["udsp", "show"])?;
    ensure!(rules.starts_with("udsp:\n-     idx: 0\n      src: NA\n      dst: tcp2\n"), "{rules}");
    refused(cluster, &["udsp", "add", "--rte", "127.99.0.1@tcp1"], "a rule has src, dst")?;
    cluster.lnetctl(&["udsp", "del", "--all"])?;
    ensure!(cluster.lnetctl(&["udsp", "show"])?.is_empty(), "no rule is left");
    Ok(())
}

fn change_networks(cluster: &Cluster) -> Outcome {
    let gateway = gateway_of(cluster)?;
    let ping = cluster.lnetctl(&["ping", &gateway])?;
    let want = "  Multi-Rail: true\n  peer_ni:\n  - nid: ";
    ensure!(ping.starts_with("ping:\n- primary nid: ") && ping.contains(want) && ping.contains(&gateway), "{ping}");
    let connections = cluster.lctl(&["conn_list"])?;
    ensure!(connections.contains(&format!("12345-{gateway} C[0]")), "a control connection: {connections}");
    let peers = cluster.lctl(&["peer_list"])?;
    ensure!(peers.lines().any(|line| line.starts_with(&format!("12345-{gateway} ["))), "{peers}");

    cluster.lnetctl(&["net", "set", "--net", "tcp2", "--peer-credits", "9"])?;
    let shown = cluster.lnetctl(&["net", "show", "--net", "tcp2", "-v"])?;
    // Two routers and two mounts are there.
    ensure!(shown.matches("peer_credits: 9\n").count() == 4, "{shown}");
    ensure!(!shown.contains("net type: tcp1"), "{shown}");

    cluster.lnetctl(&["net", "set", "--net", "tcp2", "--tx-buffer-size", "131072", "--congestion-control", "reno"])?;
    let shown = cluster.lnetctl(&["net", "show", "--net", "tcp2", "-v"])?;
    ensure!(shown.matches("tx_buffer_size: 131072\n").count() == 4, "{shown}");
    ensure!(shown.matches("congestion_control: reno\n").count() == 4, "{shown}");
    refused(cluster, &["net", "set", "--net", "tcp2", "--congestion-control", "x"], "it offers ")?;
    refused(cluster, &["net", "set", "--net", "tcp2", "--rx-buffer-size", "1"], "not 0, nor a number from 4096")?;
    cluster.lnetctl(&["net", "set", "--net", "tcp2", "--tx-buffer-size", "0", "--congestion-control", "default"])?;

    refused(cluster, &["net", "add", "--net", "tcp9", "--if", "lo"], "name one with --process, of ")?;
    cluster.lnetctl(&["--process", "mgs", "net", "add", "--net", "tcp9", "--if", "127.0.0.1:0"])?;
    let shown = cluster.lnetctl(&["--process", "mgs", "net", "show", "--net", "tcp9"])?;
    ensure!(shown.contains("@tcp9\n            status: up\n"), "{shown}");
    refused(cluster, &["net", "del", "--net", "tcp9"], "name one with --process, of ")?;
    refused(cluster, &["--process", "mgs", "net", "del", "--net", "tcp1"], "other nodes know this one by")?;
    cluster.lnetctl(&["--process", "mgs", "net", "del", "--net", "tcp9"])?;
    refused(cluster, &["net", "show", "--net", "tcp9"], "no process of this host is on tcp9")
}

/// Mounts say what the way to their gateway carries, and what keeps it from a rate that it should carry.
fn check_path(cluster: &Cluster) -> Outcome {
    let gateway = gateway_of(cluster)?;
    let check = |args: &[&str]| {
        let program = Program::new(cluster.nacre()).env("NACRE_RUN_DIR", cluster.root().join("run"));
        program.args(["wan-check", &gateway]).args(args).limit(Duration::from_secs(60)).output()
    };
    // The answers of the mounts. The other router may answer, too.
    let json = |args: &[&str]| -> Outcome<Vec<Value>> {
        let printed = check(args)?;
        ensure!(printed.status.success(), "wan-check {}: {}", args.join(" "), printed.stderr);
        let mut all: Vec<Value> = serde_json::from_str(&printed.stdout).context("what wan-check prints")?;
        all.retain(|checked| checked["process"].as_str().is_some_and(|process| process.starts_with("mount-")));
        ensure!(all.len() == 2, "both mounts answer: {}", printed.stdout);
        Ok(all)
    };
    let chosen = |checked: &Value, what: &str| {
        let mut rows = checked["chosen"].as_array().into_iter().flatten();
        rows.find(|row| row["what"] == what).cloned().unwrap_or_default()
    };
    let before = json(&["--probe", "--json"])?;
    for checked in &before {
        let is_measured = checked["round_trip_us"].as_u64() > Some(0) && checked["ping_us"].as_u64() > Some(0);
        ensure!(is_measured && checked["next_hop"] == gateway.as_str(), "{checked}");
        ensure!(chosen(checked, "send buffer")["explicit"] == false, "{checked}");
    }
    cluster.lnetctl(&["net", "set", "--net", "tcp2", "--tx-buffer-size", "65536"])?;
    let after = json(&["--rate", "1000000000", "--json"])?;
    for checked in &after {
        ensure!(chosen(checked, "send buffer")["explicit"] == true, "{checked}");
        let limits = checked["limits"].as_array().into_iter().flatten();
        let commands: Vec<&str> = limits.filter_map(|limit| limit["command"].as_str()).collect();
        ensure!(commands.contains(&"lnetctl net set --net tcp2 --tx-buffer-size 0"), "{checked}");
    }
    cluster.lnetctl(&["net", "set", "--net", "tcp2", "--tx-buffer-size", "0"])?;
    let table = check(&[])?.stdout;
    ensure!(table.contains("\nround trip ") && table.contains("\nsend buffer "), "{table}");
    let nowhere = Program::new(cluster.nacre()).env("NACRE_RUN_DIR", cluster.root().join("run"));
    let nowhere = nowhere.args(["wan-check", "10.9.9.9@tcp99"]).output()?;
    ensure!(!nowhere.status.success() && nowhere.stderr.contains("no route to"), "{}", nowhere.stderr);
    Ok(())
}

/// A gateway of the mounts.
fn gateway_of(cluster: &Cluster) -> Outcome<String> {
    let routes = cluster.lnetctl(&["route", "show", "--net", "tcp1", "--json"])?;
    let routes: Value = serde_json::from_str(&routes).context("route show --json")?;
    Ok(routes["route"][0]["gateway"].as_str().context("a route to the servers")?.to_owned())
}

fn import(cluster: &Cluster) -> Outcome {
    let (gateway, file) = (gateway_of(cluster)?, cluster.tools().join("lnet.conf"));
    let name = file.to_string_lossy().into_owned();
    let write = |text: &str| -> Outcome { Ok(fs::write(&file, text)?) };
    let of =
        |word: &'static str| -> Outcome<usize> { Ok(cluster.lnetctl(&["route", "show", "-v"])?.matches(word).count()) };
    let good =
        format!("route:\n    - net: tcp7\n      gateway: {gateway}\n      priority: 5\nglobal:\n    retry_count: 1\n");
    write(&format!("{good}    retry_count: 300\n"))?;
    refused(cluster, &["import", &name], "retry_count")?;
    write(&format!("{good}    auto_up: 1\n"))?;
    refused(cluster, &["import", &name], "line 7: there is no setting auto_up")?;
    ensure!(of("net: tcp7")? == 0, "nothing was changed");
    write(&good)?;
    let shown = cluster.lnetctl(&["import", "--show", &name, "--json"])?;
    ensure!(shown.contains("would be added") && of("net: tcp7")? == 0, "{shown}");
    cluster.lnetctl(&["import", &name])?;
    ensure!(of("net: tcp7")? > 0, "the mounts have the route now");
    let settings = cluster.lnetctl(&["global", "show"])?;
    ensure!(settings.contains("    retry_count: 1\n"), "{settings}");
    cluster.lnetctl(&["import", "--del", &name])?;
    ensure!(of("net: tcp7")? == 0, "and no more");
    Ok(())
}

/// `lnetctl` fails, and says why.
fn refused(cluster: &Cluster, args: &[&str], why: &str) -> Outcome {
    let printed = cluster.tool_program("lnetctl").args(args).output()?;
    let is_refused = !printed.status.success() && printed.stderr.contains(why);
    ensure!(is_refused, "lnetctl {}: {:?}", args.join(" "), printed.stderr);
    Ok(())
}

/// Routers that die, stop in order, and stand still; programs go on within three seconds, without an error.
fn lost(env: &Env) -> Outcome {
    let cluster = cluster_behind(env, 2)?;
    let outcome = lose(env, &cluster);
    judge(env, &cluster, outcome, LOSSES)
}

fn lose(env: &Env, cluster: &Cluster) -> Outcome {
    let (a, b) = (cluster.mount_point(1), cluster.mount_point(2));
    make_first_file(&a.join("first"))?;
    let mut writer = Writer::start_in(&a, &env.local, env.seed)?;
    let (rounds, calm) = (env.pick(1, 10), Duration::from_secs(env.pick(3, 5)));
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
        std::thread::sleep(calm.saturating_sub(without));
        match how {
            "stands still" => cluster.signal(router, libc::SIGCONT)?,
            _ => cluster.restart(router)?,
        }
        // Until it is used again by all: a dead gateway is asked at longer and longer intervals.
        std::thread::sleep(calm);
        let pause = probe.finish()?;
        println!("    {router}, {how}: longest pause of a program {:.2} s", pause.as_secs_f64());
        ensure!(pause < pause_limit(env), "{router}, {how}: a program waited {:.2} s", pause.as_secs_f64());
    }
    let (dir, log) = writer.finish()?;
    verify(&b.join("durable"), &log).context("seen by the other mount")?;
    verify(&dir, &log).context("seen by the writer's mount")
}
