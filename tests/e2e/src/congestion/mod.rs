//! Congestion control between real processes: `nacre-e2e congestion`. One process writes for many clients (`nacre bench writers`) to an
//! OST whose disk the kernel's I/O throttle slows down, and what the OST shows is read each second. The controller is exchanged while
//! they write, and the OSS is killed in the middle.
//!
//! A few further clients write 4 KiB ten times a second, first alone and then beside the others.
//!
//! The disk is an ext4 over a loop device. The throttle counts what the OSS itself asks the device for, so its large writes, which go around
//! the page cache, are held back one by one.

use crate::cluster::{Cluster, Plan as ClusterPlan};
use crate::daemon::Daemon;
use crate::failure::{Context, Outcome, bail, ensure};
use crate::slow_disk::SlowDisk;
use crate::sys;
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nacre: PathBuf,
    /// Clients, each of which always has more to write.
    pub(crate) clients: u32,
    /// Rate of the disk, in 10^6 bytes a second.
    pub(crate) rate: u32,
    /// The bound that the controllers hold, in seconds.
    pub(crate) bound: u32,
    /// Seconds that are measured of each phase.
    pub(crate) seconds: u32,
    pub(crate) json: bool,
    /// Where to draw what was measured, if anywhere.
    pub(crate) plot: Option<PathBuf>,
}

impl Plan {
    /// The usual measurement.
    pub(crate) fn new(nacre: &Path) -> Plan {
        Plan { nacre: nacre.to_owned(), clients: 64, rate: 60, bound: 4, seconds: 30, json: false, plot: None }
    }

    /// Seconds that all windows of so many RPCs take.
    fn drained(&self, rpcs: u32) -> f64 {
        f64::from(self.clients) * f64::from(rpcs) * RPC as f64 / 1e6 / f64::from(self.rate)
    }

    /// The bound, or what a request of each client takes, if that is more: no window is below one.
    fn held(&self) -> f64 {
        f64::from(self.bound).max(self.drained(1))
    }
}

/// Bytes of a request.
const RPC: u32 = 1 << 20;
/// Bytes of each client's file.
const FILE: u32 = 64 << 20;
/// Windows of the phase that nothing bounds.
const WIDE: u32 = 32;
/// Clients that write 4 KiB now and then.
const SMALL: u32 = 4;
/// Name of the figure of their times.
const SMALL_MS: &str = "small writes, 99 of 100 within";
/// The phase in which they are alone.
const ALONE: &str = "small writes alone";

/// A second of the OST.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    under_way: f64,
    latency: f64,
    longest: f64,
    window: f64,
    clients: f64,
}

/// The seconds that count of a phase.
struct Phase {
    name: String,
    samples: Vec<Sample>,
    /// Requests of the clients that always write, and those of the others.
    bulk: Served,
    small: Served,
    /// Milliseconds that each write of 4 KiB took at its client, in order.
    small_ms: Vec<f64>,
}

impl Phase {
    fn longest(&self) -> f64 {
        self.samples.iter().map(|s| s.longest).fold(0.0, f64::max)
    }

    /// 10^6 bytes a second of the clients that always write.
    fn rate(&self) -> f64 {
        self.bulk.bytes / self.samples.len().max(1) as f64 / 1e6
    }
}

/// Requests that the OST has answered.
#[derive(Debug, Clone, Copy, Default)]
struct Served {
    requests: f64,
    bytes: f64,
    /// Microseconds from their arrivals to their replies, and those of them at the disk.
    micros: f64,
    at_disk: f64,
}

impl Served {
    fn add(&mut self, of_job: &Value) {
        let number = |name: &str| of_job[name].as_f64().unwrap_or_default();
        self.requests += number("requests");
        self.bytes += number("write_bytes");
        self.at_disk += number("device");
        self.micros += ["queue", "locks", "transfer", "device", "commit", "service"].map(number).iter().sum::<f64>();
    }

    fn since(self, before: Served) -> Served {
        Served {
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
            micros: self.micros - before.micros,
            at_disk: self.at_disk - before.at_disk,
        }
    }

    /// Seconds of a request, on average.
    fn latency(self) -> f64 {
        self.micros / self.requests.max(1.0) / 1e6
    }

    /// Milliseconds of a request without those at the disk, on average.
    fn without_disk_ms(self) -> f64 {
        (self.micros - self.at_disk) / self.requests.max(1.0) / 1e3
    }
}

/// Measures all phases.
pub(crate) fn run(root: &Path, plan: &Plan) -> Outcome<Experiment> {
    fs::create_dir_all(root)?;
    let disk = SlowDisk::make(&root.join("disk"), u64::from(plan.clients) * u64::from(FILE) * 4)?;
    let mut cluster = ClusterPlan::new(&plan.nacre, &root.join("cluster"));
    (cluster.mounts, cluster.servers) = (0, (1, 1));
    cluster.ost_dirs = BTreeMap::from([(0, disk.dir())]);
    cluster.ost_params = &["obdfilter.brw_size=1"];
    let mut live = Live { plan, cluster: Cluster::start(cluster)?, disk, all: Vec::new() };
    let (phases, writers) = live.measure_all()?;
    let announced = ["connection", "recover", "unreachable", "no answer"];
    let wrong = live.cluster.complaints(&announced);
    ensure!(wrong.is_empty(), "the servers complained: {}", wrong.join("; "));
    live.cluster.stop()?;
    if let Some(file) = &plan.plot {
        let svg = nacre_experiment::plot::svg(&plots(&live.all));
        fs::write(file, svg).context(file.display().to_string())?;
    }
    Ok(report(plan, &phases, writers))
}

/// The cluster, and what was read of it so far, a sample for each second.
struct Live<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    disk: SlowDisk,
    all: Vec<Sample>,
}

impl Live<'_> {
    fn measure_all(&mut self) -> Outcome<(Vec<Phase>, Value)> {
        let plan = self.plan;
        self.throttle()?;
        let mut phases = Vec::new();
        let mut alone = self.start_writers("small", 0)?;
        phases.push(self.phase(ALONE, 2.0, &mut alone)?);
        alone.terminate(Duration::from_secs(60))?;
        self.set("congestion_control", &format!("fix:{WIDE}"))?;
        let mut writers = self.start_writers("writers", plan.clients)?;
        let bound = plan.bound.to_string();
        // Whatever a phase begins with has to be served first.
        phases.push(self.phase(&format!("fix:{WIDE}"), plan.drained(WIDE) * 2.0, &mut writers)?);
        self.set("latency_bound", &bound)?;
        self.set("congestion_control", "rcc")?;
        phases.push(self.phase("rcc", plan.drained(WIDE) * 1.5 + 4.0 * plan.held(), &mut writers)?);
        self.set("congestion_control", "nacre")?;
        phases.push(self.phase("nacre", 4.0 * plan.held(), &mut writers)?);
        eprintln!("killing the OSS");
        self.cluster.kill("oss1")?;
        self.cluster.restart("oss1")?;
        self.throttle()?;
        self.set("latency_bound", &bound)?;
        let ramp = self.phase("nacre, OSS killed", 0.0, &mut writers)?;
        phases.push(ramp);
        phases.push(self.phase("nacre, afterwards", 4.0 * plan.held(), &mut writers)?);
        self.disk.release()?;
        writers.terminate(Duration::from_secs(300))?;
        let last = writers.lines().pop().context("the writers have printed nothing")?;
        let last: Value = serde_json::from_str(&last).context("what the writers printed")?;
        let wrong = writers.complaints(&["connection", "lost", "unreachable", "no answer", "reconnect", "recover"]);
        ensure!(wrong.is_empty(), "the writers complained: {}", wrong.join("; "));
        ensure!(
            !self.cluster.any_log_line(|line| line.contains("evict") && line.contains("WARN")),
            "a client was evicted"
        );
        Ok((phases, last))
    }

    /// Starts so many clients that always write, and those that write a little.
    fn start_writers(&self, name: &str, clients: u32) -> Outcome<Daemon> {
        let (source, size) = (self.cluster.source(), FILE.to_string());
        let (clients, small) = (clients.to_string(), SMALL.to_string());
        let args =
            ["bench", "writers", &source, "--clients", &clients, "--small", &small, "--at-once", "64", "--size", &size];
        let args = args.map(str::to_owned).to_vec();
        let mut writers = Daemon::new(name, &self.plan.nacre, args, &self.cluster.root());
        writers.start()?;
        writers.wait_ready(Duration::from_secs(120))?;
        Ok(writers)
    }

    fn throttle(&self) -> Outcome {
        self.disk.throttle(self.cluster.pid("oss1")?, u64::from(self.plan.rate) * 1_000_000)
    }

    fn set(&self, name: &str, value: &str) -> Outcome {
        self.cluster.lctl(&["set_param", &format!("obdfilter.*.{name}={value}")]).map(drop)
    }

    /// Lets `settle` seconds pass, and measures those after them.
    fn phase(&mut self, name: &str, settle: f64, writers: &mut Daemon) -> Outcome<Phase> {
        eprintln!("{name}: measuring for {} s after {settle:.0} s", self.plan.seconds);
        let begun = Instant::now();
        let (mut samples, mut small_ms) = (Vec::new(), Vec::new());
        let mut before = (Served::default(), Served::default());
        let seconds = settle.ceil() as u64 + u64::from(self.plan.seconds);
        for second in 1..=seconds {
            let due = begun + Duration::from_secs(second);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if sys::interrupted() {
                bail!("interrupted");
            }
            if let Some(end) = writers.ended() {
                return writers.fail(&format!("ended: {end}"));
            }
            let (sample, lines) = (self.sample()?, writers.lines());
            self.all.push(sample);
            if second as f64 > settle {
                samples.push(sample);
                for line in &lines {
                    small_ms.extend(small_ms_of(line)?);
                }
            } else if second as f64 + 1.0 > settle {
                before = self.served()?;
            }
        }
        let after = self.served()?;
        small_ms.sort_by(f64::total_cmp);
        let (bulk, small) = (after.0.since(before.0), after.1.since(before.1));
        Ok(Phase { name: name.to_owned(), samples, bulk, small, small_ms })
    }

    /// Requests of the clients that always write, and those of the others.
    fn served(&self) -> Outcome<(Served, Served)> {
        let values = self.cluster.values("obdfilter.*.time_parts")?;
        let shown = values.into_values().next().context("the OST shows no parts")?;
        let (mut bulk, mut small) = (Served::default(), Served::default());
        for (job, parts) in shown["jobs"].as_object().into_iter().flatten() {
            let of = if job == "small" { &mut small } else { &mut bulk };
            of.add(parts);
        }
        Ok((bulk, small))
    }

    fn sample(&self) -> Outcome<Sample> {
        let values = self.cluster.values("obdfilter.*.congestion")?;
        let shown = values.into_values().next().context("the OST shows nothing")?;
        let number = |name: &str| shown[name].as_f64().context(format!("{name} of the OST"));
        let windows: Vec<f64> =
            shown["windows"].as_object().into_iter().flatten().filter_map(|(_, w)| w["granted"].as_f64()).collect();
        Ok(Sample {
            under_way: number("under_way")?,
            latency: number("latency_ms")? / 1e3,
            longest: number("longest_ms")? / 1e3,
            window: windows.iter().sum::<f64>() / windows.len().max(1) as f64,
            clients: number("clients")?,
        })
    }
}

/// The times of small writes in a line of the writers, in milliseconds.
fn small_ms_of(line: &str) -> Outcome<Vec<f64>> {
    let line: Value = serde_json::from_str(line).context("what the writers printed")?;
    let took = line["small_us"].as_array().context("the writers show no small writes")?;
    Ok(took.iter().filter_map(|us| Some(us.as_f64()? / 1e3)).collect())
}

fn report(plan: &Plan, phases: &[Phase], writers: Value) -> Experiment {
    let constant = |name: &str, value: f64, unit: &str| {
        Constant::new(name, value, unit, ConstantKind::Physical, "an argument of the command")
    };
    let constants = vec![
        constant("clients", plan.clients.into(), ""),
        constant("disk: throttled to", plan.rate.into(), "MB/s"),
        constant("bound", plan.bound.into(), "s"),
        Constant::new(
            "clients that write 4 KiB ten times a second",
            SMALL.into(),
            "",
            ConstantKind::Physical,
            "chosen",
        ),
    ];
    let of_phase = |phase: &Phase| {
        let own = |figure: &str, unit: &str, value: f64| Figure::own(&phase.name, figure, unit, Some(value));
        let widest = phase.samples.iter().map(|s| s.under_way).fold(0.0, f64::max);
        [
            own("rate", "MB/s", phase.rate()),
            own("requests under way, most", "", widest),
            own("latency", "s", phase.bulk.latency()),
            own("longest", "s", phase.longest()),
            Figure::own(&phase.name, SMALL_MS, "ms", phase.small_ms.get(phase.small_ms.len() * 99 / 100).copied()),
            own("small writes at the server, without the disk", "ms", phase.small.without_disk_ms()),
        ]
    };
    let mut figures: Vec<Figure> = phases.iter().flat_map(of_phase).collect();
    let of_writers = |name: &str| writers[name].as_f64();
    figures.push(Figure::own("all phases", "writes that failed", "", of_writers("failed")));
    let share = of_writers("least").zip(of_writers("most")).map(|(least, most)| least / most.max(1.0));
    figures.push(Figure::own("all phases", "least of a client / most", "", share));
    Experiment::live("congestion", constants, figures)
}

/// Fails if wide windows were not slow, or a controller did not hold its bound, or a write failed.
pub(crate) fn judge(plan: &Plan, experiment: &Experiment) -> Outcome {
    let ours = |row: &str, figure: &str| experiment.ours(row, figure).context(format!("{figure} of {row}"));
    let wide = ours(&format!("fix:{WIDE}"), "latency")?;
    let is_slow = wide > 0.8 * plan.drained(WIDE);
    ensure!(is_slow, "with windows of {WIDE} requests take {wide:.1} s, not {:.1}", plan.drained(WIDE));
    for row in ["rcc", "nacre", "nacre, afterwards"] {
        let (latency, longest) = (ours(row, "latency")?, ours(row, "longest")?);
        // The disk wavers, and the published algorithm goes beyond its bound by a request of each client.
        let most = 1.05 * plan.held() + plan.drained(1);
        let (is_held, is_soon) = (latency <= most, longest <= 2.0 * plan.held() + 10.0);
        ensure!(is_held, "{row}: requests take {latency:.1} s, of {most:.1}");
        ensure!(is_soon, "{row}: a request took {longest:.1} s");
    }
    // A small write waits for what the disk has to do already, and not for all that the others have sent.
    for row in ["nacre", "nacre, afterwards"] {
        let small = ours(row, SMALL_MS)? / 1e3;
        let (is_soon, held) = (small < plan.held() / 4.0, plan.held());
        ensure!(is_soon, "{row}: small writes take {small:.2} s, beside requests of {held:.1} s");
    }
    let failed = ours("all phases", "writes that failed")?;
    ensure!(failed == 0.0, "{failed} writes failed");
    Ok(())
}

/// The OST over time.
fn plots(samples: &[Sample]) -> Vec<Plot> {
    type Curve = (&'static str, &'static str, fn(&Sample) -> f64);
    let curves: [Curve; 4] = [
        ("queue at the OST", "requests", |s| s.under_way),
        ("latency", "s", |s| s.latency),
        ("window of a client", "requests", |s| s.window),
        ("clients that take part", "clients", |s| s.clients),
    ];
    let labels: Vec<String> = (0..samples.len()).map(|second| second.to_string()).collect();
    let plot = |(title, unit, value): Curve| Plot {
        title: title.to_owned(),
        x_title: "seconds".to_owned(),
        y_title: unit.to_owned(),
        x_labels: labels.clone(),
        lines: vec![Line {
            name: "live".to_owned(),
            points: samples.iter().map(value).enumerate().collect(),
            dashed: false,
        }],
    };
    curves.map(plot).to_vec()
}
