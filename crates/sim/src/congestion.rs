//! Many clients that write checkpoints at once to one OST whose disk seeks: "A Dynamic I/O Congestion Control Mechanism for Lustre"
//! (Qian and others) in virtual time. Each client writes a file of its own and syncs it; measured are the rate of all, and how long
//! requests take at the server from their arrival to their reply.
//!
//! Clients, RPC, schedulers and controllers are the production code; the network and the disk are simulated. The disk sees objects,
//! offsets and its own queue, never a window or the number of clients. Every number is in [`constants`], with its source.

mod constants;
mod report;

pub use report::{plots, report};

use crate::cluster::{Cluster, Server, run};
use bytes::Bytes;
use constants::{COPY_BANDWIDTH, DISK, DISPATCH, LATENCY, LIMIT, LINK_BANDWIDTH, THREADS};
use futures_util::future::{join, try_join_all};
use nacre_base::param::value::Value;
use nacre_base::{Payload, Prng};
use nacre_client::OpenFile;
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_osd::mem::MemOptions;
use nacre_wire::attr::Credentials;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Who decides on the clients' windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    /// As many for everyone: the paper's FIX.
    Fix(u32),
    /// The paper's algorithm, with a bound in seconds: its CC.
    Cc(u32),
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Fix(rpcs) => write!(f, "FIX({rpcs}"),
            Control::Cc(seconds) => write!(f, "CC({seconds}"),
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

    /// While all clients take part and the queue has its length: from when requests take 98 % of what they take in the middle
    /// of the run, until the first client is done.
    pub fn at_rest(&self) -> Latencies {
        let end = (self.first_done as usize).min(self.samples.len());
        let before = &self.samples[..end];
        let middle = before.get(end / 2).map_or(0.0, |sample| sample.latency);
        let start = before.iter().position(|sample| sample.latency >= 0.98 * middle).unwrap_or(0);
        latencies(&before[start..], start)
    }

    /// The longest queue.
    pub fn longest_queue(&self) -> f64 {
        self.samples.iter().map(|sample| sample.under_way).fold(0.0, f64::max)
    }
}

fn latencies(samples: &[Sample], start: usize) -> Latencies {
    let answered: f64 = samples.iter().map(|sample| sample.answered).sum::<f64>().max(1.0);
    let mean = samples.iter().map(|sample| sample.answered * sample.latency).sum::<f64>() / answered;
    let square = |sample: &Sample| sample.answered * (sample.deviation.powi(2) + (sample.latency - mean).powi(2));
    let deviation = (samples.iter().map(square).sum::<f64>() / answered).sqrt();
    let longest = samples.iter().map(|sample| sample.longest).fold(0.0, f64::max);
    Latencies { phase: (start as f64, (start + samples.len()) as f64), mean, deviation, longest }
}

/// Content of all records.
static ZEROES: [u8; RECORD as usize] = [0; RECORD as usize];
/// Bytes of an application's write, and of a request.
const RECORD: u64 = 1 << 20;

/// Takes one measurement. Panics if the simulation hangs.
pub fn measure(seed: u64, load: Load) -> Result<Outcome, String> {
    let link = LinkOptions { latency: LATENCY, jitter: LATENCY, ..LinkOptions::default() };
    let network = SimNetOptions { link, bandwidth: LINK_BANDWIDTH, seed, ..SimNetOptions::default() };
    let storage = MemOptions { model: DISK, ..MemOptions::default() };
    let (controller, bound) = match load.control {
        Control::Fix(rpcs) => (format!("fix:{rpcs}"), 60),
        Control::Cc(seconds) => ("rcc".to_owned(), seconds),
    };
    let params = [
        ("congestion_control", controller),
        ("latency_bound", bound.to_string()),
        // One record is one request.
        ("brw_size", "1".to_owned()),
    ];
    let builder = Cluster::builder().clients(load.clients).network(network).ost_storage(storage).ost_params(params);
    let (result, stats) = run(seed, LIMIT, builder, move |cluster| async move { work(&cluster, load).await });
    result.map(|outcome| Outcome { trace: stats.trace, ..outcome })
}

async fn work(cluster: &Arc<Cluster>, load: Load) -> Result<Outcome, String> {
    for (name, value) in [("threads_max", THREADS.to_string()), ("nrs_policies", "fifo".to_owned())] {
        let name = format!("ost.OSS.ost_io.{name}");
        assert!(cluster.set_param(Server::Oss(0), &name, &value) > 0, "the OSS has no {name}");
    }
    for client in 0..cluster.client_count() {
        // Virtual time does not include checksums, and they take two thirds of the real time.
        let set = cluster.client_node(client).params().set("osc.*.checksums", "0");
        set.map_err(|e| format!("checksums: {e}"))?;
    }
    let files = try_join_all((0..cluster.client_count()).map(|client| make(cluster, client))).await?;
    let begun = cluster.rt().now();
    let (done, first_done) = (AtomicU32::new(0), parking_lot::Mutex::new(None));
    let each = files.iter().enumerate().map(|(client, file)| {
        let (done, first_done) = (&done, &first_done);
        async move {
            let written = write(cluster, client, file, load).await;
            first_done.lock().get_or_insert_with(|| cluster.rt().now().since(begun).as_secs_f64());
            done.fetch_add(1, Ordering::Relaxed);
            written
        }
    });
    let mut samples = Vec::new();
    let watch = async {
        // The OST counts by seconds of the simulation's clock.
        let into = begun.as_nanos() % 1_000_000_000;
        cluster.rt().sleep(Duration::from_nanos(1_000_000_000 - into)).await;
        while done.load(Ordering::Relaxed) < load.clients {
            samples.push(sample(cluster));
            cluster.rt().sleep(Duration::from_secs(1)).await;
        }
    };
    let (written, ()) = join(try_join_all(each), watch).await;
    written?;
    let all_done = cluster.rt().now().since(begun).as_secs_f64();
    let first_done = first_done.into_inner().unwrap_or(all_done);
    let timeouts = (0..cluster.client_count()).map(|client| timeouts(cluster, client)).sum();
    let mb_per_s = load.bytes as f64 / 1e6 / all_done;
    Ok(Outcome { mb_per_s, first_done, all_done, samples, timeouts, trace: 0 })
}

/// Creates a client's file and opens it.
async fn make(cluster: &Cluster, client: usize) -> Result<Arc<OpenFile>, String> {
    let (mounted, root) = (cluster.client(client), Credentials::root());
    let name = format!("file-{client}");
    let flags = O_CREAT | O_EXCL | O_RDWR;
    let made = mounted.create(&root, mounted.root(), name.as_bytes(), flags, 0o600, 0, None).await;
    made.map(|(_, file)| file).map_err(|e| format!("create: {e}"))
}

/// Writes a client's file and syncs it.
async fn write(cluster: &Cluster, client: usize, file: &OpenFile, load: Load) -> Result<(), String> {
    let (mounted, rt) = (cluster.client(client), cluster.rt());
    let mut prng = Prng::new(rt.random());
    let copy = RECORD * 1_000_000_000 / COPY_BANDWIDTH;
    rt.sleep(Duration::from_nanos(prng.below(DISPATCH.as_nanos() as u64 + 1))).await;
    for n in 0..load.bytes / u64::from(load.clients) / RECORD {
        rt.sleep(Duration::from_nanos(copy / 2 + prng.below(copy + 1))).await;
        let data = Payload::from(Bytes::from_static(&ZEROES));
        let written = mounted.write(file, n * RECORD, data).await.map_err(|e| format!("write: {e}"))?;
        if written as u64 != RECORD {
            return Err("a short write".to_owned());
        }
    }
    mounted.fsync(file, true).await.map_err(|e| format!("fsync: {e}"))
}

/// Requests of a client to the OST that timed out. It connects again after each, and sends again what was not answered.
fn timeouts(cluster: &Cluster, client: usize) -> u64 {
    let imports = cluster.client_node(client).params().values("osc.*.import");
    let of_import = |(_, import): &(String, Value)| import.field("import")?.field("rpcs")?.field("timeouts")?.number();
    imports.iter().map(|import| of_import(import).expect("an import shows them")).sum::<i128>() as u64
}

fn sample(cluster: &Cluster) -> Sample {
    let shown = cluster.values(Server::Oss(0), "obdfilter.*.congestion");
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
