//! Many clients that write checkpoints at once to one OST whose disk seeks: "A Dynamic I/O Congestion Control Mechanism for Lustre"
//! (Qian and others) in virtual time. Each client writes a file of its own and syncs it; measured are the rate of all, and how long
//! requests take at the server from their arrival to their reply.
//!
//! Clients, RPC, schedulers and controllers are the production code; the network and the disk are simulated. The disk sees objects,
//! offsets and its own queue, never a window or the number of clients. Every number is in [`constants`], with its source.

mod collapse;
mod constants;
mod report;
mod shared_file;
mod slow_ost;
pub mod stories;

pub use report::{plots, report};

use crate::cluster::{Builder, Cluster, Server, run};
use bytes::Bytes;
pub use constants::DISPATCH;
use constants::{APART_MS, COPY_BANDWIDTH, DIRTY_MB, DISK, LATENCY, LIMIT, LINK_BANDWIDTH, THREADS};
use futures_util::future::{join, try_join_all};
use nacre_base::param::value::Value;
use nacre_base::{Payload, Prng, Time};
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_client::{Client, OpenFile};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_osd::mem::MemOptions;
use nacre_wire::attr::Credentials;
use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Who decides on the clients' windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    /// As many for everyone: the paper's FIX.
    Fix(u32),
    /// The paper's algorithm, with a bound in seconds: its CC.
    Cc(u32),
    /// Nacre's own, with a bound in seconds; 0 if nobody has stated one.
    Nacre(u32),
}

impl Control {
    /// True if requests are to take no longer than a stated time.
    fn is_bounded(self) -> bool {
        matches!(self, Control::Cc(_) | Control::Nacre(1..))
    }

    /// The bound that a controller keeps at an OST that answers `rate` requests a second: the stated one, but no less than a request of each
    /// client takes.
    fn bound(self, clients: usize, rate: f64) -> f64 {
        let least = clients as f64 / rate.max(1.0);
        match self {
            Control::Cc(seconds) | Control::Nacre(seconds) => f64::from(seconds).max(least),
            Control::Fix(_) => least,
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Fix(rpcs) => write!(f, "FIX({rpcs}"),
            Control::Cc(seconds) => write!(f, "CC({seconds}"),
            Control::Nacre(0) => write!(f, "nacre(-"),
            Control::Nacre(seconds) => write!(f, "nacre({seconds}"),
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Who decides.
    pub control: Control,
    /// Clients, each with a file.
    pub clients: u32,
    /// Bytes that all write together.
    pub bytes: u64,
    /// The clients begin within so many seconds.
    pub dispatch: u32,
}

impl Load {
    /// Records of each client: whole ones, so that all together may be somewhat fewer than `bytes`.
    fn records(&self) -> u64 {
        (self.bytes / u64::from(self.clients) / RECORD).max(1)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{})", self.control, self.clients)
    }
}

/// What the OST showed at the end of a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// Requests that had arrived and were not answered.
    pub under_way: f64,
    /// Requests a second, as its congestion control measured it.
    pub per_second: f64,
    /// Clients that take part.
    pub clients: f64,
    /// The window of a client, on average.
    pub window: f64,
    /// Requests answered in that second.
    pub answered: f64,
    /// How long they took, in seconds: mean, standard deviation, longest.
    pub latency: f64,
    /// See `latency`.
    pub deviation: f64,
    /// See `latency`.
    pub longest: f64,
}

/// Result of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// 10^6 bytes a second, from the first write until everything is synced.
    pub mb_per_s: f64,
    /// Seconds after which the first client was done writing and after which all were.
    pub first_done: f64,
    /// See `first_done`.
    pub all_done: f64,
    /// The OST, second by second.
    pub samples: Vec<Sample>,
    /// Requests that timed out, after which clients send again what was not answered.
    pub timeouts: u64,
    /// Hash of all events.
    pub trace: u64,
}

/// Latencies of the requests answered in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latencies {
    /// Seconds of the phase's begin and end.
    pub phase: (f64, f64),
    /// Seconds: mean, standard deviation over all requests, longest.
    pub mean: f64,
    /// See `mean`.
    pub deviation: f64,
    /// See `mean`.
    pub longest: f64,
}

impl Outcome {
    /// Over the whole run.
    pub fn latencies(&self) -> Latencies {
        latencies(&self.samples, 0)
    }

    /// While all clients take part: from when there are as many as there will be (98 %) and requests take what they take in the middle of
    /// the phase (98 %), until there are fewer.
    pub fn at_rest(&self) -> Latencies {
        let most = self.samples.iter().map(|sample| sample.clients).fold(0.0, f64::max);
        let is_full = |sample: &Sample| sample.clients >= 0.98 * most;
        let start = self.samples.iter().position(is_full).unwrap_or(0);
        let end = self.samples.iter().rposition(is_full).map_or(0, |last| last + 1).min(self.first_done_after(start));
        let phase = &self.samples[start.min(end)..end];
        let middle = phase.get(phase.len() / 2).map_or(0.0, |sample| sample.latency);
        let ramp = phase.iter().position(|sample| sample.latency >= 0.98 * middle).unwrap_or(0);
        latencies(&phase[ramp..], start + ramp)
    }

    /// Clients count for a while after their last request, so that the phase ends when the first of them is done that began late.
    fn first_done_after(&self, start: usize) -> usize {
        let done = self.first_done as usize;
        if done > start { done } else { self.samples.len() }
    }

    /// The longest queue.
    pub fn longest_queue(&self) -> f64 {
        self.samples.iter().map(|sample| sample.under_way).fold(0.0, f64::max)
    }
}

/// Seconds after which no request took longer than 105 % of the bound any more. It is all of the time if that never came.
fn settled_after(samples: &[Sample], bound: f64) -> f64 {
    samples.iter().rposition(|sample| sample.longest > 1.05 * bound).map_or(0.0, |last| last as f64 + 1.0)
}

fn latencies(samples: &[Sample], start: usize) -> Latencies {
    let answered: f64 = samples.iter().map(|sample| sample.answered).sum::<f64>().max(1.0);
    let mean = samples.iter().map(|sample| sample.answered * sample.latency).sum::<f64>() / answered;
    let square = |sample: &Sample| sample.answered * (sample.deviation.powi(2) + (sample.latency - mean).powi(2));
    let deviation = (samples.iter().map(square).sum::<f64>() / answered).sqrt();
    let longest = samples.iter().map(|sample| sample.longest).fold(0.0, f64::max);
    Latencies { phase: (start as f64, (start + samples.len()) as f64), mean, deviation, longest }
}

/// The rows that are measured unless others are asked for: those of the paper, and its equation 5 over bounds and numbers of clients.
pub fn papers() -> Vec<Load> {
    const GIB: u64 = 1 << 30;
    let of = |gib: u64, apart_ms: u32, least: u32| {
        move |(control, clients)| Load {
            control,
            clients,
            bytes: gib * GIB,
            dispatch: (clients * apart_ms / 1000).max(least),
        }
    };
    let together = |gib| of(gib, 0, DISPATCH);
    let alone = [(Control::Fix(1), 1), (Control::Fix(64), 1), (Control::Cc(25), 1)].map(together(64));
    let whole = [
        (Control::Fix(1), 512),
        (Control::Fix(32), 512),
        (Control::Fix(1), 1024),
        (Control::Fix(4), 1024),
        (Control::Fix(8), 1024),
        (Control::Fix(32), 1024),
        (Control::Cc(60), 1024),
    ];
    let bounds = [25, 60, 120].into_iter();
    let bounds = bounds.flat_map(|bound| [256, 512, 1024, 2048].map(|clients| (Control::Cc(bound), clients)));
    let bounds = bounds.filter(|row| !whole.contains(row)).map(together(128));
    whole.map(of(512, APART_MS, 0)).into_iter().chain(alone).chain(bounds).collect()
}

/// Content of all records.
static ZEROES: [u8; RECORD as usize] = [0; RECORD as usize];
/// Bytes of an application's write, and of a request.
const RECORD: u64 = 1 << 20;
/// Bytes of a file that is written without end: its writer begins again there.
const FILE_BYTES: u64 = 16 << 30;

/// Takes one measurement. Panics if the simulation hangs.
pub fn measure(seed: u64, load: Load) -> Result<Outcome, String> {
    let builder = builder(seed, load.control, load.clients);
    let (outcome, trace) = run_row(seed, builder, move |cluster| async move { work(&cluster, load).await })?;
    Ok(Outcome { trace, ..outcome })
}

/// Runs a measurement on a cluster of its own. Returns the hash of all events, too. Panics if the simulation hangs.
fn run_row<T, F>(
    seed: u64,
    builder: Builder,
    work: impl FnOnce(Arc<Cluster>) -> F + Send + 'static,
) -> Result<(T, u64), String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, String>> + Send + 'static,
{
    let (result, stats) = run(seed, LIMIT, builder, work);
    Ok((result?, stats.trace))
}

/// A cluster of one OST whose disk seeks, with this many clients.
fn builder(seed: u64, control: Control, clients: u32) -> Builder {
    let link = LinkOptions { latency: LATENCY, jitter: LATENCY, ..LinkOptions::default() };
    let network = SimNetOptions { link, bandwidth: LINK_BANDWIDTH, seed, ..SimNetOptions::default() };
    let storage = MemOptions { model: DISK, ..MemOptions::default() };
    let (controller, bound) = match control {
        Control::Fix(rpcs) => (format!("fix:{rpcs}"), 60),
        Control::Cc(seconds) => ("rcc".to_owned(), seconds),
        Control::Nacre(seconds) => ("nacre".to_owned(), seconds),
    };
    let params = [
        ("congestion_control", controller),
        ("latency_bound", bound.to_string()),
        // One record is one request.
        ("brw_size", "1".to_owned()),
    ];
    Cluster::builder().clients(clients).network(network).ost_storage(storage).ost_params(params)
}

/// Sets what is set while the cluster runs.
fn prepare(cluster: &Cluster, control: Control) -> Result<(), String> {
    let policy = if matches!(control, Control::Nacre(_)) { "turns" } else { "fifo" };
    for (name, value) in [("threads_max", THREADS.to_string()), ("nrs_policies", policy.to_owned())] {
        let name = format!("ost.OSS.ost_io.{name}");
        for oss in oss(cluster) {
            assert!(cluster.set_param(oss, &name, &value) > 0, "{oss:?} has no {name}");
        }
    }
    let osts = oss(cluster).count();
    let cached_mb = (osts * DIRTY_MB.parse::<usize>().expect("a number")).to_string();
    for client in 0..cluster.client_count() {
        // Virtual time does not include checksums, and they take two thirds of the real time.
        let settings =
            [("osc.*.checksums", "0"), ("osc.*.max_dirty_mb", DIRTY_MB), ("llite.*.max_cached_mb", &cached_mb)];
        // What a client holds for one OST fits into the cache that it has anyway.
        for (name, value) in &settings[..if osts > 1 { 3 } else { 2 }] {
            let set = cluster.client_node(client).params().set(name, value);
            set.map_err(|e| format!("{name}: {e}"))?;
        }
    }
    Ok(())
}

/// The OSSs, each with an OST.
fn oss(cluster: &Cluster) -> impl Iterator<Item = Server> {
    cluster.servers().into_iter().filter(|server| matches!(server, Server::Oss(_)))
}

async fn work(cluster: &Arc<Cluster>, load: Load) -> Result<Outcome, String> {
    prepare(cluster, load.control)?;
    let make = |client: usize| async move { create(cluster.client(client), &format!("file-{client}"), 0).await };
    let files = try_join_all((0..cluster.client_count()).map(make)).await?;
    let begun = cluster.rt().now();
    let (done, first_done) = (AtomicU32::new(0), parking_lot::Mutex::new(None));
    let each = files.iter().enumerate().map(|(client, file)| {
        let (done, first_done) = (&done, &first_done);
        async move {
            let written = write_file(cluster, client, file, load.dispatch, 0..load.records()).await;
            first_done.lock().get_or_insert_with(|| cluster.rt().now().since(begun).as_secs_f64());
            done.fetch_add(1, Ordering::Relaxed);
            written
        }
    });
    let mut samples = Vec::new();
    let watch = async {
        sleep_to_second(cluster).await;
        while done.load(Ordering::Relaxed) < load.clients {
            samples.push(sample(cluster, Server::Oss(0)));
            cluster.rt().sleep(Duration::from_secs(1)).await;
        }
    };
    let (written, ()) = join(try_join_all(each), watch).await;
    written?;
    let all_done = cluster.rt().now().since(begun).as_secs_f64();
    let first_done = first_done.into_inner().unwrap_or(all_done);
    let timeouts = all_timeouts(cluster);
    let written = load.records() * RECORD * u64::from(load.clients);
    let mb_per_s = written as f64 / 1e6 / all_done;
    Ok(Outcome { mb_per_s, first_done, all_done, samples, timeouts, trace: 0 })
}

/// Creates a file in the root directory and opens it.
async fn create(mounted: &Client, name: &str, more_flags: u32) -> Result<Arc<OpenFile>, String> {
    let flags = O_CREAT | O_EXCL | O_RDWR | more_flags;
    let made = mounted.create(&Credentials::root(), mounted.root(), name.as_bytes(), flags, 0o600, 0, None).await;
    made.map(|(_, file)| file).map_err(|e| format!("create {name}: {e}"))
}

/// Writes all of this data.
async fn write(mounted: &Client, file: &OpenFile, offset: u64, data: &'static [u8]) -> Result<(), String> {
    let written = mounted.write(file, offset, Payload::from(Bytes::from_static(data))).await;
    match written.map_err(|e| format!("write: {e}"))? {
        all if all == data.len() => Ok(()),
        part => Err(format!("a short write: {part} bytes of {}", data.len())),
    }
}

/// Time in which a process makes a record and copies it into the cache.
fn copying(prng: &mut Prng) -> Duration {
    let copy = RECORD * 1_000_000_000 / COPY_BANDWIDTH;
    Duration::from_nanos(copy / 2 + prng.below(copy + 1))
}

/// The OST counts by seconds of the simulation's clock: waits for the next one.
async fn sleep_to_second(cluster: &Cluster) {
    let into = cluster.rt().now().as_nanos() % 1_000_000_000;
    cluster.rt().sleep(Duration::from_nanos(1_000_000_000 - into)).await;
}

/// Samples each of the OSTs at the end of each second for as long as `work` takes. Returns the samples of each OST.
async fn watched<T>(cluster: &Cluster, work: impl Future<Output = T>) -> (T, Vec<Vec<Sample>>) {
    let oss: Vec<Server> = oss(cluster).collect();
    let mut samples = vec![Vec::new(); oss.len()];
    let mut work = pin!(work);
    loop {
        let seconds = cluster.rt().now().as_nanos() / 1_000_000_000;
        let second_ends = Time((seconds + 1) * 1_000_000_000);
        if let Ok(done) = cluster.rt().timeout_at(second_ends, &mut work).await {
            return (done, samples);
        }
        samples.iter_mut().zip(&oss).for_each(|(samples, oss)| samples.push(sample(cluster, *oss)));
    }
}

/// Writes these records of a file that a client has opened, and syncs it. Begins within so many seconds.
async fn write_file(
    cluster: &Cluster,
    client: usize,
    file: &OpenFile,
    dispatch: u32,
    records: Range<u64>,
) -> Result<(), String> {
    let (mounted, rt) = (cluster.client(client), cluster.rt());
    let mut prng = Prng::new(rt.random());
    rt.sleep(Duration::from_nanos(prng.below(u64::from(dispatch) * 1_000_000_000 + 1))).await;
    for n in records {
        rt.sleep(copying(&mut prng)).await;
        write(mounted, file, n * RECORD, &ZEROES).await?;
    }
    mounted.fsync(file, true).await.map_err(|e| format!("fsync: {e}"))
}

/// Starts a process of a client that writes a file from its beginning to its end, again and again, until it is told to stop.
fn keep_writing(cluster: &Cluster, client: usize, file: Arc<OpenFile>, stop: &Arc<AtomicBool>) {
    let (mounted, rt, stop) = (cluster.client(client).clone(), cluster.client_rt(client).clone(), stop.clone());
    let (pace, mut prng) = (rt.clone(), Prng::new(rt.random()));
    drop(rt.spawn(async move {
        for offset in (0..FILE_BYTES).step_by(RECORD as usize).cycle() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            pace.sleep(copying(&mut prng)).await;
            let done = write(&mounted, &file, offset, &ZEROES).await;
            assert_eq!(done, Ok(()), "client {client} at {offset}");
        }
    }));
}

/// Requests of all clients that timed out.
fn all_timeouts(cluster: &Cluster) -> u64 {
    (0..cluster.client_count()).map(|client| timeouts(cluster, client)).sum()
}

/// Requests of a client to OSTs that timed out. It connects again after each, and sends again what was not answered.
fn timeouts(cluster: &Cluster, client: usize) -> u64 {
    let imports = cluster.client_node(client).params().values("osc.*.import");
    let of_import = |(_, import): &(String, Value)| import.field("import")?.field("rpcs")?.field("timeouts")?.number();
    imports.iter().map(|import| of_import(import).expect("an import shows them")).sum::<i128>() as u64
}

fn sample(cluster: &Cluster, oss: Server) -> Sample {
    let shown = cluster.values(oss, "obdfilter.*.congestion");
    let shown = &shown.first().expect("the OST runs").1;
    let number = |field: &str| shown.field(field).and_then(Value::number).expect("the OST shows it") as f64;
    let windows = match shown.field("windows") {
        Some(Value::Fields(windows)) => &windows.0[..],
        _ => &[],
    };
    let granted = windows.iter().filter_map(|window| window.value.field("granted")?.number()).sum::<i128>();
    Sample {
        under_way: number("under_way"),
        per_second: number("requests_per_second"),
        clients: number("clients"),
        window: granted as f64 / windows.len().max(1) as f64,
        answered: number("answered"),
        latency: number("latency_ms") / 1e3,
        deviation: number("deviation_ms") / 1e3,
        longest: number("longest_ms") / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn load(control: Control, clients: u32) -> Load {
        Load { control, clients, bytes: 128 * MIB * u64::from(clients), dispatch: DISPATCH }
    }

    #[test]
    fn a_queue_is_as_long_as_all_windows_and_short_windows_cost_the_disk_its_sequence() {
        let [crumbs, turns] = [1, 16].map(|rpcs| measure(1, load(Control::Fix(rpcs), 64)).unwrap());
        assert_eq!((crumbs.longest_queue(), turns.longest_queue()), (64.0, 1024.0));
        assert!((95.0..125.0).contains(&crumbs.mb_per_s), "{}", crumbs.mb_per_s);
        assert!(turns.mb_per_s > 1.5 * crumbs.mb_per_s, "{} {}", turns.mb_per_s, crumbs.mb_per_s);
        assert_eq!(turns.timeouts, 0);
    }

    #[test]
    fn the_published_algorithm_and_ours_hold_their_bound() {
        // The published algorithm goes beyond its bound by a request of each client, and more while the rate changes.
        for (control, most) in [(Control::Cc(4), 5.0), (Control::Nacre(4), 4.2)] {
            let outcome = measure(1, load(control, 64)).unwrap();
            let (mean, longest) = (outcome.latencies().mean, outcome.at_rest().longest);
            assert!(mean > 2.5 && longest <= most, "{control:?}: {mean} s, at most {longest} s");
            assert_eq!(outcome.timeouts, 0);
        }
    }

    #[test]
    fn without_a_bound_ours_is_as_fast_as_the_disk_can_be() {
        let [ours, fixed] = [Control::Nacre(0), Control::Fix(32)].map(|control| measure(1, load(control, 64)).unwrap());
        assert!(ours.mb_per_s >= 0.97 * fixed.mb_per_s, "{} of {}", ours.mb_per_s, fixed.mb_per_s);
    }

    /// The page is the output of `nacre sim congestion-control --markdown`; only a run knows its figures, but the constants are here.
    #[test]
    fn the_page_of_the_documentation_has_these_constants() {
        let page = include_str!("../../../docs/measurements/sim-congestion-control.md");
        let runs: Vec<_> = papers().into_iter().map(|load| (load, Err(String::new()))).collect();
        let constants = report(1, &runs).markdown("");
        let (_, expected) = constants.split_once("## Constants").expect("the report has constants");
        assert!(
            page.ends_with(expected),
            "print the page again with `nacre sim congestion-control --markdown`:\n{expected}"
        );
    }

    #[test]
    fn a_seed_determines_everything() {
        let run = || measure(3, load(Control::Cc(4), 8)).unwrap();
        assert_eq!(run(), run());
    }
}
