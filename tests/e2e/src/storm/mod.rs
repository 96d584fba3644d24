//! A storm of pings between real processes: `nacre-e2e storm`. One process pings the OSTs for thousands of clients while fio
//! writes on a mount, through routers and over links that `tbf` slows down; then `nacre sim live-storm` does the same in
//! virtual time. What is compared is the dead time: the share of fio's bytes that is missing beside the same run without pings.
//!
//! ```text
//! storm, writer --tcp1-- r1, r2 --tcp2 (slow)-- meta (MGS, MDS), oss1, oss2
//! ```
//!
//! Each host is a network namespace. The process that pings and the mount are on two hosts because a simulated node has a link
//! of its own. Only the servers' network is slow, so that pings wait in the routers, as in the paper, and not at their senders.

mod crowd;
mod fio;
mod plan;
mod report;

pub(crate) use plan::{Plan, Row};
pub(crate) use report::judge;

use crate::cluster::{Cluster, Plan as ClusterPlan};
use crate::failure::{Context, Outcome, bail, ensure};
use crate::namespaces::Hosts;
use crate::process::Program;
use crate::site::{Place, Site};
use crate::sys;
use crowd::Crowd;
use nacre_experiment::Experiment;
use plan::{
    AT_MIN_SECS, CREDITS, Calibration, LEAD, LEASE, Measured, OSS, OSTS, PATIENCE, PING, RECORD, ROUTERS, SETTLE,
    SMALL_BUFFERS, Simulated, TAKING_MS, WRITERS, now,
};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Measures all rows, live and simulated.
pub(crate) fn run(root: &Path, plan: &Plan) -> Outcome<Experiment> {
    let hosts = make_hosts()?;
    // BBR, the default of some hosts, keeps queues short by measuring rates, which the model knows nothing of. Only Reno may be
    // chosen in every namespace; it differs from CUBIC after losses alone, and the queues here lose nothing.
    hosts.use_tcp("reno")?;
    let storm = Storm { plan, root, hosts: &hosts, cluster: start(root, plan, &hosts)? };
    let live = storm.measure_all()?;
    let wrong = storm.cluster.complaints(&[]);
    ensure!(wrong.is_empty(), "the servers or the mount complained: {}", wrong.join("; "));
    storm.cluster.stop()?;
    let simulated = simulate(plan, &live.0)?;
    Ok(report::report(plan, &live.0, &live.1, &simulated))
}

fn make_hosts() -> Outcome<Hosts> {
    let mut hosts = Hosts::new(&["tcp1", "tcp2"])?;
    hosts.add("storm", &[("tcp1", "10.1.0.1")])?;
    hosts.add("writer", &[("tcp1", "10.1.0.2")])?;
    for n in 1..=ROUTERS {
        hosts.add(&format!("r{n}"), &[("tcp1", &format!("10.1.0.1{n}")), ("tcp2", &format!("10.2.0.1{n}"))])?;
    }
    hosts.add("meta", &[("tcp2", "10.2.0.1")])?;
    for n in 1..=OSS {
        hosts.add(&format!("oss{n}"), &[("tcp2", &format!("10.2.0.10{n}"))])?;
    }
    Ok(hosts)
}

/// Routes of a host on one network to the other.
fn routes(network: &str) -> Vec<String> {
    let (own, other) = if network == "tcp1" { (1, "tcp2") } else { (2, "tcp1") };
    (1..=ROUTERS).map(|n| format!("{other} 10.{own}.0.1{n}@{network}")).collect()
}

/// Credits and buffers of all hosts, from the start, so that no row begins with more than the others have.
fn lnet_conf(plan: &Plan) -> String {
    // One node stands for as many clients as would have router credits enough for all of their pings.
    let tunables = format!("{{peer_credits: {CREDITS}, peer_buffer_credits: {}}}", plan.imports);
    let net = |name: &str| format!("    - net type: {name}\n      local NI(s):\n        - tunables: {tunables}\n");
    let nets = net("tcp1") + &net("tcp2");
    format!("net:\n{nets}buffers:\n    small: {SMALL_BUFFERS}\nglobal:\n    alive_router_check_interval: 0\n")
}

fn start(root: &Path, plan: &Plan, hosts: &Hosts) -> Outcome<Cluster> {
    fs::create_dir_all(root)?;
    let conf = root.join("lnet.conf");
    fs::write(&conf, lnet_conf(plan))?;
    let at = |host: &str, routes: &[String]| {
        let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
        Place { lnet_conf: Some(conf.clone()), ..hosts.place(host, &routes) }
    };
    let place = |host: &str, network: &str| at(host, &routes(network));
    let mut cluster = ClusterPlan::new(&plan.nacre, root);
    (cluster.mounts, cluster.servers) = (1, (OSS, OSTS));
    cluster.site = Site {
        routers: (1..=ROUTERS).map(|n| (format!("r{n}"), at(&format!("r{n}"), &[]))).collect(),
        servers: place("meta", "tcp2"),
        apart: (1..=OSS).map(|n| (format!("oss{n}"), place(&format!("oss{n}"), "tcp2"))).collect(),
        mounts: vec![place("writer", "tcp1").at_any_port()],
    };
    Cluster::start(cluster)
}

/// A running site.
struct Storm<'a> {
    plan: &'a Plan,
    root: &'a Path,
    hosts: &'a Hosts,
    cluster: Cluster,
}

impl Storm<'_> {
    fn measure_all(&self) -> Outcome<(Calibration, Vec<Measured>)> {
        let dir = self.cluster.mount_point(1).join("d");
        fs::create_dir(&dir)?;
        self.cluster.lfs(&["setstripe", "-c", "-1", "-S", "64k", &dir.to_string_lossy()])?;
        fio::make_files(&dir, self.root)?;
        let calibration = self.calibrate().context("measuring pings alone")?;
        let measure = |row: &Row| self.measure(*row, &dir).context(row.name);
        Ok((calibration, self.plan.rows.iter().map(measure).collect::<Outcome<_>>()?))
    }

    /// Starts the process that pings, and sets all processes up for a row.
    fn begin(&self, row: Row) -> Outcome<Crowd> {
        eprintln!("{}: connecting {} imports", row.name, self.plan.imports);
        let routes = routes("tcp1");
        let place = self.hosts.place("storm", &routes.iter().map(String::as_str).collect::<Vec<_>>()).at_any_port();
        let crowd = Crowd::start(self.plan, row.liveness, &place, &self.cluster.source(), self.root)?;
        self.lnetctl(&["set", "lanes", if row.lanes { "1" } else { "0" }])?;
        self.lnetctl(&["set", "alive_router_check_interval", "0"])?;
        let suppressed = u32::from(row.liveness == "none");
        let liveness = if row.liveness == "lease" { "lease" } else { "ping" };
        for set in [
            format!("at_min={AT_MIN_SECS}"),
            "ping_timing=aligned".to_owned(),
            format!("ping_interval={}", self.plan.interval_secs),
            format!("liveness={liveness}"),
            format!("suppress_pings={suppressed}"),
        ] {
            self.cluster.lctl(&["set_param", &set])?;
        }
        Ok(crowd)
    }

    fn lnetctl(&self, args: &[&str]) -> Outcome {
        self.cluster.lnetctl(args).map(drop)
    }

    fn shape(&self) -> Outcome {
        self.hosts.shape_network("tcp2", Some(self.plan.link_bits))
    }

    fn unshape(&self) -> Outcome {
        self.hosts.shape_network("tcp2", None)
    }

    /// Measures what pings take by themselves: their time without slow links, and their bytes on slow ones.
    fn calibrate(&self) -> Outcome<Calibration> {
        let mut crowd = self.begin(PING)?;
        let unshaped = self.one_flood(&mut crowd)?;
        self.shape()?;
        let before = self.counts()?;
        let shaped = self.one_flood(&mut crowd)?;
        let after = self.counts()?;
        self.unshape()?;
        crowd.stop()?;
        let [to, from] = [0, 1].map(|way| after.0[way].of_interval(&before.0[way]));
        let wire = (after.1.0 - before.1.0, after.1.1 - before.1.1);
        let imports = f64::from(self.plan.imports);
        Ok(Calibration {
            unshaped,
            shaped,
            // All credits of all pairs of a router and an OSS are in use until the last ping.
            round_trip: unshaped.mul_f64(f64::from(CREDITS) * (ROUTERS * OSS) as f64 / imports),
            wire: (wire.0 as f64 / imports, wire.1 as f64 / imports),
            framing: (to.framing(wire.0)?, from.framing(wire.1)?),
        })
    }

    /// Waits for the next flood of pings and its end. Returns its length.
    fn one_flood(&self, crowd: &mut Crowd) -> Outcome<Duration> {
        let flood = self.next_flood(now() + LEAD);
        sleep_until(flood - LEAD)?;
        let before = crowd.line_at(now())?.pings;
        let all = before + u64::from(self.plan.imports);
        let ended = crowd.wait_for(all, flood + self.plan.interval() + PATIENCE)?;
        Ok(ended.saturating_sub(flood))
    }

    /// Time of the first flood after this time.
    fn next_flood(&self, after: Duration) -> Duration {
        let interval = self.plan.interval().as_millis();
        Duration::from_millis(((after.as_millis() / interval + 1) * interval) as u64)
    }

    /// Messages and bytes that the OSSs have received and sent, and bytes that their links have passed to them and from them.
    fn counts(&self) -> Outcome<([Messages; 2], (u64, u64))> {
        let stats = self.cluster.lnetctl(&["--process", "oss", "stats", "show"])?;
        let messages = ["recv", "send"].map(|way| Messages::read(&stats, way));
        let (mut to, mut from) = (0, 0);
        for n in 1..=OSS {
            let passed = self.hosts.passed(&format!("oss{n}"), "tcp2")?;
            (to, from) = (to + passed.0, from + passed.1);
        }
        let [received, sent] = messages;
        Ok(([received?, sent?], (to, from)))
    }

    fn measure(&self, row: Row, dir: &Path) -> Outcome<Measured> {
        let mut crowd = self.begin(row)?;
        self.shape()?;
        if row.slow {
            let hold = ["--source", "*@tcp1", "--dest", "*", "--rate", "1", "--latency", &TAKING_MS.to_string()];
            self.lnetctl(&[["--process", "oss", "fault", "delay", "add"].as_slice(), &hold].concat())?;
        }
        let begins = self.next_flood(now() + SETTLE + LEAD) - LEAD;
        let ends = begins + self.plan.interval() * self.plan.intervals;
        eprintln!("{}: measuring for {} s", row.name, (ends - now()).as_secs());
        let writes = fio::write_until(dir, self.root, ends)?;
        let (first, last) = (crowd.line_at(begins)?, crowd.line_at(ends)?);
        let answering = crowd.answering(begins, ends);
        if row.slow {
            self.lnetctl(&["--process", "oss", "fault", "delay", "del", "--all"])?;
        }
        self.unshape()?;
        crowd.stop()?;
        let samples = fio::samples(&writes, begins, ends);
        ensure!(samples.iter().any(|bytes| *bytes > 0), "fio has written nothing");
        Ok(Measured { row, samples, pings: last.pings - first.pings, answering })
    }
}

/// Messages, and bytes of their payloads.
#[derive(Debug, Clone, Copy)]
struct Messages {
    count: u64,
    payload: u64,
}

/// Bytes of a message's header on a connection (docs/formats.md).
const HEADER: u64 = 128;

impl Messages {
    fn read(stats: &str, way: &str) -> Outcome<Messages> {
        let number = |name: &str| {
            let name = format!("{way}_{name}: ");
            let found = stats.lines().find_map(|line| line.trim().strip_prefix(&name)?.parse().ok());
            found.context(format!("{name} in what lnetctl stats shows"))
        };
        Ok(Messages { count: number("count")?, payload: number("length")? })
    }

    fn of_interval(&self, before: &Messages) -> Messages {
        Messages { count: self.count - before.count, payload: self.payload - before.payload }
    }

    /// Bytes of each message's packets beside its own, if so many were on the wire.
    fn framing(&self, wire: u64) -> Outcome<u32> {
        ensure!(self.count > 0, "the OSSs have had no messages");
        let own = self.payload + self.count * HEADER;
        match wire.checked_sub(own) {
            Some(more) => Ok((more / self.count) as u32),
            None => bail!("{wire} bytes on the wire are less than the {own} of the messages"),
        }
    }
}

/// Runs the same rows in virtual time. Those with slow servers are another simulation.
fn simulate(plan: &Plan, calibration: &Calibration) -> Outcome<Simulated> {
    eprintln!("simulating");
    let mut all = Simulated::new();
    for slow in [false, true] {
        let rows: Vec<&str> = plan.rows.iter().filter(|row| row.slow == slow).map(|row| row.simulated).collect();
        if !rows.is_empty() {
            all.insert(slow, simulate_rows(plan, calibration, &rows.join(","), slow)?);
        }
    }
    Ok(all)
}

fn simulate_rows(plan: &Plan, calibration: &Calibration, rows: &str, slow: bool) -> Outcome<Experiment> {
    let osts = (OSS * OSTS) as u32;
    let numbers = [
        ("--seed", plan.seed),
        ("--clients", u64::from(plan.imports.div_ceil(osts))),
        ("--oss", OSS as u64),
        ("--osts", OSTS as u64),
        ("--routers", ROUTERS as u64),
        ("--rate", plan.link_bits / 8),
        ("--credits", CREDITS.into()),
        ("--peer-buffer-credits", plan.imports.into()),
        ("--small-buffers", SMALL_BUFFERS.into()),
        ("--interval", plan.interval_secs.into()),
        ("--intervals", plan.intervals.into()),
        ("--writers", WRITERS.into()),
        ("--record", RECORD.into()),
        ("--taking-us", calibration.round_trip.as_micros() as u64 + u64::from(slow) * u64::from(TAKING_MS) * 1000),
        ("--ping-framing", calibration.framing.0.into()),
        ("--reply-framing", calibration.framing.1.into()),
    ];
    let numbers = numbers.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
    let program = Program::new(&plan.nacre).args(["sim", "live-storm", "--json", "--row", rows]).args(numbers);
    let printed = program.limit(Duration::from_secs(1800)).run()?.stdout;
    serde_json::from_str(&printed).context("what nacre sim live-storm printed")
}

fn sleep_until(then: Duration) -> Outcome {
    while now() < then {
        if sys::interrupted() {
            bail!("interrupted");
        }
        std::thread::sleep(then.saturating_sub(now()).min(Duration::from_millis(50)));
    }
    Ok(())
}

/// A few imports: every one is connected through the routers and stays so, all pings are answered on slow links, and clients
/// with leases send none.
pub(crate) fn quick(root: &Path, nacre: &Path) -> Outcome {
    let plan = Plan { imports: 320, interval_secs: 3, intervals: 1, ..Plan::new(nacre) };
    let hosts = make_hosts()?;
    let storm = Storm { plan: &plan, root, hosts: &hosts, cluster: start(root, &plan, &hosts)? };
    let calibration = storm.calibrate()?;
    ensure!(calibration.wire.0 as u64 > HEADER, "{calibration:?}");
    let mut crowd = storm.begin(LEASE)?;
    let begins = now();
    sleep_until(begins + plan.interval() * 2)?;
    let pings = crowd.line_at(now())?.pings - crowd.line_at(begins)?.pings;
    ensure!(pings == 0, "clients with leases have sent {pings} pings");
    crowd.stop()?;
    let wrong = storm.cluster.complaints(&[]);
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    storm.cluster.stop()
}
