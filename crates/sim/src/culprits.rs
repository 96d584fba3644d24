//! Whether `nacre top` names the right culprit: a cluster under even load, in which something becomes slow at a known moment, and the
//! sentences that follow from what its servers show. The rules see only that, never what was done.
//!
//! Kinds, places and sizes follow from the seed. A run is right if, within ten seconds, the first finding is of the expected kind and
//! names the expected target, client or job; a quiet run is right if no finding comes up in all of its time.

use crate::cluster::{Cluster, Server, run};
use bytes::Bytes;
use futures_util::future::join_all;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Fid, OstIndex, Payload, Prng};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, JobId, OpenFile};
use nacre_diagnosis::{Finding, PATTERNS, Picture, Values, Watch, json};
use nacre_lnet::SimNetOptions;
use nacre_osd::mem::{Crash, DiskModel, MemOptions};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Causes that are injected, and times in which nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Every request to the disk of an OST takes longer.
    SlowDisk,
    /// Every commit of an OST takes longer.
    SlowCommit,
    /// A client dies that holds a lock which another wants.
    KeptLock,
    /// Two clients write the same bytes in turn.
    ContendedLock,
    /// A job with many streams takes an OST, while others write a little there.
    GreedyJob,
    /// The link of a client becomes slow.
    SlowLink,
    /// An OST is restarted, and one of its clients does not come back.
    Recovery,
    /// Nothing is done.
    Idle,
    /// All clients write as fast as they can.
    BusyEvenly,
    /// An OST was restarted, and all of its clients have come back.
    AfterFailover,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 10] = [
        Cause::SlowDisk,
        Cause::SlowCommit,
        Cause::KeptLock,
        Cause::ContendedLock,
        Cause::GreedyJob,
        Cause::SlowLink,
        Cause::Recovery,
        Cause::Idle,
        Cause::BusyEvenly,
        Cause::AfterFailover,
    ];

    /// Returns whether nobody is to be named.
    pub fn is_quiet(self) -> bool {
        matches!(self, Cause::Idle | Cause::BusyEvenly | Cause::AfterFailover)
    }
}

/// What came of one seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was done.
    pub cause: Cause,
    /// Kind and name that the first finding is to have; none in a quiet run.
    pub expected: Option<(String, String)>,
    /// What the rules said: the first finding that was right, or else the last one of the run.
    pub said: Option<String>,
    /// Seconds from the cause to the right finding.
    pub after: Option<u32>,
    /// True if that was right.
    pub is_right: bool,
}

/// Of the runs with a cause, those that have to be right, in percent (the rules' own promise).
pub const NAMED_MIN: f64 = 95.0;
/// Likewise of the quiet runs.
pub const QUIET_MIN: f64 = 98.0;

/// Runs that were right, and all, of those that `which` picks.
fn counted(outcomes: &[Outcome], which: impl Fn(&Outcome) -> bool) -> (usize, usize) {
    let picked: Vec<_> = outcomes.iter().filter(|outcome| which(outcome)).collect();
    (picked.iter().filter(|outcome| outcome.is_right).count(), picked.len())
}

/// Returns whether as many were right as promised.
pub fn are_good(outcomes: &[Outcome]) -> bool {
    let enough = |(right, all): (usize, usize), least: f64| right as f64 * 100.0 >= least * all as f64;
    enough(counted(outcomes, |o| !o.cause.is_quiet()), NAMED_MIN)
        && enough(counted(outcomes, |o| o.cause.is_quiet()), QUIET_MIN)
}

/// How many runs of each cause were right.
pub fn table(outcomes: &[Outcome]) -> String {
    let row = |name: String, (right, all): (usize, usize), slowest: Option<u32>| {
        let percent = if all > 0 { right as f64 / all as f64 * 100.0 } else { 100.0 };
        let slowest = slowest.map_or_else(String::new, |seconds| seconds.to_string());
        vec![name, all.to_string(), right.to_string(), format!("{percent:.1}"), slowest]
    };
    let of = |cause: Cause| {
        let slowest =
            outcomes.iter().filter(|outcome| outcome.cause == cause).filter_map(|outcome| outcome.after).max();
        row(format!("{cause:?}"), counted(outcomes, |outcome| outcome.cause == cause), slowest)
    };
    let mut rows: Vec<_> = Cause::ALL.iter().map(|cause| of(*cause)).collect();
    rows.push(row("all causes".to_owned(), counted(outcomes, |outcome| !outcome.cause.is_quiet()), None));
    rows.push(row("all quiet".to_owned(), counted(outcomes, |outcome| outcome.cause.is_quiet()), None));
    nacre_base::table::text(&["cause", "runs", "right", "%", "slowest, s"], &rows)
}

const OSS: u32 = 4;
const CLIENTS: u32 = 6;
/// Time under even load before the cause, in seconds.
const BEFORE: u32 = 8;
/// Time in which the cause has to be named.
const WITHIN: u32 = 10;
/// Size of a write. Everything is small, so that many runs are cheap: what counts is how times compare.
const RECORD: usize = 256 << 10;
/// Records of a file, which are written over and over.
const RECORDS: u64 = 8;
/// A network of 1 Gbit/s, in bytes a second.
const LINK: u64 = 125_000_000;

/// Runs one seed.
pub fn run_seed(seed: u64) -> Outcome {
    let mut prng = Prng::new(seed ^ 0x5107);
    let cause = *prng.pick(&Cause::ALL);
    run_cause(cause, seed)
}

/// Runs a cause with the places and sizes of a seed.
pub fn run_cause(cause: Cause, seed: u64) -> Outcome {
    // A slow disk behind each OST.
    let disk = DiskModel {
        latency: Duration::from_millis(1),
        bandwidth: 50_000_000,
        queue_depth: 8,
        flush: Duration::from_millis(5),
        ..DiskModel::FREE
    };
    let network = SimNetOptions { bandwidth: LINK, seed, ..SimNetOptions::default() };
    let storage = MemOptions { model: disk, ..MemOptions::default() };
    let builder =
        Cluster::builder().oss(OSS).clients(CLIENTS).network(network).ost_storage(storage).client_params(false);
    run(seed, Duration::from_secs(3000), builder, move |cluster| story(cluster, cause, seed)).0
}

async fn story(cluster: Arc<Cluster>, cause: Cause, seed: u64) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let outcome = tell(&cluster, cause, seed, &stop).await;
    stop.store(true, Ordering::Relaxed);
    // Tasks that have not ended would keep the memory of the run: what holds them up ends, and they have time to notice.
    for ost in 0..OSS {
        ["osd.write", "osd.commit"].iter().for_each(|point| cluster.storage_faults(Server::Oss(ost)).disarm(point));
    }
    cluster.client_numbers().into_iter().for_each(|client| cluster.client_net().set_bandwidth(client, LINK));
    cluster.rt().sleep(Duration::from_secs(300)).await;
    (0..CLIENTS as usize).for_each(|client| cluster.kill_client(client));
    cluster.servers().into_iter().for_each(|server| cluster.crash(server, Crash::Process));
    cluster.rt().sleep(Duration::from_secs(1)).await;
    outcome
}

async fn tell(cluster: &Arc<Cluster>, cause: Cause, seed: u64, stop: &Arc<AtomicBool>) -> Outcome {
    let mut prng = Prng::new(seed);
    let mut watch = Watch::default();
    let pace = match cause {
        Cause::Idle => None,
        Cause::BusyEvenly => Some(Duration::ZERO),
        _ => Some(Duration::from_millis(50 + prng.below(100))),
    };
    if let Some(pace) = pace {
        for client in 0..CLIENTS as usize {
            start_load(cluster, client, pace, stop);
        }
    }
    let mut early = None;
    for _ in 0..BEFORE {
        early = early.or(look(cluster, &mut watch).await);
    }
    let expected = inject(cluster, cause, &mut prng, stop).await;
    let mut outcome = Outcome { seed, cause, expected, said: early.map(|f| f.sentence), after: None, is_right: false };
    if outcome.said.is_some() {
        // Nothing was wrong yet.
        return outcome;
    }
    for second in 1..=WITHIN {
        let Some(finding) = look(cluster, &mut watch).await else { continue };
        let said = (finding.kind.to_owned(), finding.who.clone());
        outcome.said = Some(finding.sentence);
        if outcome.expected.as_ref().is_some_and(|expected| agree(&said, expected)) {
            (outcome.after, outcome.is_right) = (Some(second), true);
            return outcome;
        }
    }
    outcome.is_right = outcome.expected.is_none() && outcome.said.is_none();
    outcome
}

/// Returns whether what was said is what was expected. Where either of several may be named, no name is expected.
fn agree(said: &(String, String), expected: &(String, String)) -> bool {
    said.0 == expected.0 && (expected.1.is_empty() || said.1 == expected.1)
}

/// A second later, what the servers show is looked at. Returns the first finding.
async fn look(cluster: &Cluster, watch: &mut Watch) -> Option<Finding> {
    cluster.rt().sleep(Duration::from_secs(1)).await;
    let mut values = Values::new();
    for server in cluster.servers() {
        for pattern in PATTERNS {
            let shown = cluster.values(server, pattern).into_iter();
            values.extend(shown.map(|(name, value)| (name, json::value(&value))));
        }
    }
    watch.handle_picture(Picture::new(cluster.rt().now().as_nanos() as f64 / 1e9, &values));
    watch.report()?.findings.into_iter().next()
}

fn job(client: usize) -> JobId {
    JobId::new(format!("job{client}").as_bytes())
}

/// One client's even load: records to a file of its own on each OST, in turn, with a pause between two, and an fsync now and then.
fn start_load(cluster: &Arc<Cluster>, client: usize, pace: Duration, stop: &Arc<AtomicBool>) {
    let stop = stop.clone();
    let rt = cluster.client_rt(client).clone();
    let mounted = cluster.client(client).for_job(job(client));
    drop(rt.clone().spawn(async move {
        let files = join_all((0..OSS).map(|ost| create(&mounted, format!("even-{client}-{ost}"), ost))).await;
        let files: Vec<_> = files.into_iter().flatten().collect();
        for n in 0u64.. {
            if stop.load(Ordering::Relaxed) || files.is_empty() {
                return;
            }
            let file = &files[n as usize % files.len()];
            // The clients of a restarted OST wait, and none of this may fail but by the death of its client.
            let _ = mounted.write(file, n / files.len() as u64 % RECORDS * RECORD as u64, zeroes(RECORD)).await;
            if n % 32 == 31 {
                let _ = mounted.fsync(file, true).await;
            }
            rt.sleep(pace).await;
        }
    }));
}

async fn create(client: &Client, name: String, ost: u32) -> Option<Arc<OpenFile>> {
    create_with(client, name, ost, O_DIRECT).await
}

async fn create_with(client: &Client, name: String, ost: u32, more_flags: u32) -> Option<Arc<OpenFile>> {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_offset: -1,
        stripe_count: 1,
        stripe_size: RECORD as u32,
        osts: vec![OstIndex(ost)],
        ..ComponentSpec::default()
    };
    let layout = Some(LayoutSpec { components: vec![component] });
    let flags = O_CREAT | O_EXCL | O_RDWR | more_flags;
    let made = client.create(&Credentials::root(), Fid::ROOT, name.as_bytes(), flags, 0o600, 0, layout).await;
    made.ok().map(|(_, file)| file)
}

fn zeroes(len: usize) -> Payload {
    Bytes::from(vec![0; len]).into()
}

fn named(kind: &str, who: impl Into<String>) -> Option<(String, String)> {
    Some((kind.to_owned(), who.into()))
}

/// Does what the cause says. Returns what is to be said of it.
async fn inject(
    cluster: &Arc<Cluster>,
    cause: Cause,
    prng: &mut Prng,
    stop: &Arc<AtomicBool>,
) -> Option<(String, String)> {
    let (ost, one) = (prng.below(OSS.into()) as u32, prng.below(CLIENTS.into()) as usize);
    let other = (one + 1 + prng.below(u64::from(CLIENTS) - 1) as usize) % CLIENTS as usize;
    let ost_name = cluster.target_name(Server::Oss(ost));
    let client_name = |client: usize| cluster.client_name(client);
    let ms = |least: u64, more: u64, prng: &mut Prng| Duration::from_millis(least + prng.below(more));
    match cause {
        Cause::Idle | Cause::BusyEvenly => None,
        Cause::AfterFailover => {
            cluster.crash(Server::Oss(ost), Crash::PowerCut);
            cluster.restart(Server::Oss(ost)).await.expect("it starts again");
            let is_over = || {
                cluster
                    .values(Server::Oss(ost), "obdfilter.*.recovery_status")
                    .iter()
                    .any(|(_, status)| status.field("status").is_some_and(|status| status.to_string() == "COMPLETE"))
            };
            while !is_over() {
                cluster.rt().sleep(Duration::from_millis(100)).await;
            }
            None
        }
        Cause::SlowDisk => {
            let delay = Fault::always(FaultAction::Delay(ms(30, 300, prng)));
            cluster.storage_faults(Server::Oss(ost)).arm("osd.write", delay);
            named("slow-disk", ost_name)
        }
        Cause::SlowCommit => {
            let delay = Fault::always(FaultAction::Delay(ms(1000, 3000, prng)));
            cluster.storage_faults(Server::Oss(ost)).arm("osd.commit", delay);
            // A job that wants what it writes to be durable.
            let mounted = cluster.client(one).for_job(job(one));
            let (stop, file) = (stop.clone(), create(&mounted, "durable".into(), ost).await?);
            drop(cluster.client_rt(one).clone().spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let _ = mounted.write(&file, 0, zeroes(4096)).await;
                    let _ = mounted.fsync(&file, true).await;
                }
            }));
            named("slow-commit", ost_name)
        }
        Cause::KeptLock | Cause::ContendedLock => inject_lock(cluster, cause, [one, other], ost, stop).await,
        Cause::GreedyJob => {
            let streams = 32 + prng.below(64);
            let greedy = JobId::new(b"greedy");
            for stream in 0..streams {
                let mounted = cluster.client(one).for_job(greedy);
                let (stop, name) = (stop.clone(), format!("greedy-{stream}"));
                drop(cluster.client_rt(one).clone().spawn(async move {
                    let Some(file) = create(&mounted, name, ost).await else { return };
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let _ = mounted.write(&file, n % RECORDS * RECORD as u64, zeroes(RECORD)).await;
                    }
                }));
            }
            named("greedy-job", "greedy")
        }
        Cause::SlowLink => {
            let number = cluster.client_numbers()[one];
            cluster.client_net().set_bandwidth(number, 300_000 + prng.below(700_000));
            named("slow-link", client_name(one))
        }
        Cause::Recovery => {
            cluster.kill_client(one);
            cluster.crash(Server::Oss(ost), Crash::PowerCut);
            cluster.restart(Server::Oss(ost)).await.expect("it starts again");
            named("recovery", ost_name)
        }
    }
}

/// As [`inject`], for the causes that have to do with locks.
async fn inject_lock(
    cluster: &Arc<Cluster>,
    cause: Cause,
    [one, other]: [usize; 2],
    ost: u32,
    stop: &Arc<AtomicBool>,
) -> Option<(String, String)> {
    if cause == Cause::KeptLock {
        let holder = cluster.client(one).for_job(job(one));
        let file = create_with(&holder, "kept".into(), ost, 0).await?;
        let _ = holder.write(&file, 0, zeroes(RECORD)).await;
        let name = cluster.client_name(one);
        cluster.kill_client(one);
        let reader = cluster.client(other).for_job(job(other));
        let rt = cluster.client_rt(other).clone();
        drop(rt.spawn(async move {
            let root = Credentials::root();
            let Ok(attr) = reader.lookup(&root, Fid::ROOT, b"kept").await else { return };
            let Ok(file) = reader.open(&root, attr.fid, O_RDWR).await else { return };
            let _ = reader.write(&file, 0, zeroes(4096)).await;
        }));
        return named("kept-lock", name);
    }
    let first = cluster.client(one).for_job(job(one));
    create(&first, "contended".into(), ost).await?;
    for client in [one, other] {
        let mounted = cluster.client(client).for_job(job(client));
        let stop = stop.clone();
        let root = Credentials::root();
        let fid = mounted.lookup(&root, Fid::ROOT, b"contended").await.ok()?.fid;
        let file = mounted.open(&root, fid, O_RDWR).await.ok()?;
        let rt = cluster.client_rt(client).clone();
        drop(rt.clone().spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let _ = mounted.write(&file, 0, zeroes(RECORD)).await;
                // A write into the cache takes no virtual time.
                rt.sleep(Duration::from_millis(1)).await;
            }
        }));
    }
    // Which of the two is named is a matter of chance.
    named("contended-lock", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_named_and_quiet_is_quiet() {
        for cause in Cause::ALL {
            let outcome = run_cause(cause, 7);
            assert!(outcome.is_right, "{outcome:?}");
        }
    }
}
