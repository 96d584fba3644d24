//! When writes are answered, and where the journal is: "Efficient Object Storage Journaling in a Distributed Parallel
//! File System" (Oral and others, FAST 2010) in virtual time. One storage couplet of the experiments, 28 OSTs of eight
//! data disks and two of parity each, is written to by a client for each OST, with RPCs of 1 MiB; then by an application
//! that computes and writes checkpoints in turn.
//!
//! Clients, network, and OSTs are Nacre's for all rows; below an OST is [`array`], once with the commits of ext3 and once
//! with those of Nacre. Every number is in [`constants`], with its source; one is fitted. Servers' processors take no
//! time.

mod array;
mod constants;
mod report;

pub use report::{plots, report};

use crate::cluster::{Builder, Cluster, Server, run};
use array::{Array, Seen};
use bytes::Bytes;
use clap::ValueEnum;
use constants::{HEADER, LINK_BANDWIDTH, LINK_LATENCY};
use futures_util::future::{join_all, try_join_all};
use nacre_base::{Fid, OstIndex, Payload, Time};
use nacre_client::open_flags::{O_CREAT, O_DIRECT, O_EXCL, O_RDWR};
use nacre_client::{Client, OpenFile};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_osd::Osd;
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_rt::{Rt, Sim};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How an OST commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Storage {
    /// As Lustre did: ext3's journal, whose writes go before waiting data, because some request always waits for them;
    /// and blocks that are written to their final places later.
    Ext3,
    /// As Nacre with a journal: one record, in turn with data; the index is flushed later.
    Nacre,
    /// As Nacre without a journal: the pages of the index, then the number of the transaction, in turn with data.
    NacreNoJournal,
}

/// The moment at which a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Mode {
    /// After the commit; the journal is on the array.
    Sync,
    /// After the commit; the journal has a device without seeks.
    External,
    /// When the data is on the array; the commit comes later.
    Async,
    /// When the data is in the server's memory.
    Memory,
}

/// The combinations that are compared.
const WAYS: [(Storage, Mode); 8] = [
    (Storage::Ext3, Mode::Sync),
    (Storage::Ext3, Mode::External),
    (Storage::Ext3, Mode::Async),
    (Storage::Nacre, Mode::Sync),
    (Storage::Nacre, Mode::External),
    (Storage::Nacre, Mode::Async),
    (Storage::Nacre, Mode::Memory),
    (Storage::NacreNoJournal, Mode::Sync),
];

/// Everything that is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The seed of every run.
    pub seed: u64,
    /// Number of OSTs, and of clients.
    pub osts: u32,
    /// RPCs that a client has in flight.
    pub rpcs_in_flight: Vec<u32>,
    /// Bytes that each client writes.
    pub bytes: u64,
    /// Other sizes, for the rows beside the paper's that are answered before the commit.
    pub more_bytes: Vec<u64>,
    /// The application; none is run if it has no processes.
    pub application: Application,
}

/// One run of the setup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Job {
    /// Clients that write.
    Stream(Load),
    /// The application, on OSTs that commit this way.
    Application(Application, Storage, Mode),
}

/// The result of a run, and the hash of all its events.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Result of a [`Job::Stream`].
    Stream(Row, u64),
    /// Result of a [`Job::Application`].
    Application(ApplicationRow, u64),
}

/// The load of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// How the OSTs commit.
    pub storage: Storage,
    /// When the OSTs answer writes.
    pub mode: Mode,
    /// Number of OSTs, and of clients.
    pub osts: u32,
    /// RPCs that a client has in flight to an OST.
    pub rpcs_in_flight: u32,
    /// Bytes that each client writes.
    pub bytes: u64,
}

/// Result of one way to commit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// 10^6 bytes a second, of all OSTs, from the first write until everything is durable.
    pub mb_per_s: f64,
    /// Percentage of the rate of the same arrays without a file system, with as many requests at a time.
    pub percent_of_raw: f64,
    /// The same percentage, including the time that arrays need for the writes left after the run: metadata that is
    /// durable in a journal.
    pub percent_with_rest: f64,
    /// Number of commits of all OSTs.
    pub commits: u64,
    /// Percentage of requests of less than 128 KiB, of all that the arrays' controllers saw, including journals'.
    pub percent_small: f64,
}

/// An application that computes, writes a checkpoint, and goes on once it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Application {
    /// Number of OSTs; there are twice as many clients.
    pub osts: u32,
    /// Number of processes; each has a file for each checkpoint.
    pub processes: u32,
    /// Number of checkpoints.
    pub checkpoints: u32,
    /// Bytes of each process's part of a checkpoint, besides a header of 64 KiB.
    pub bytes: u64,
    /// Time between two checkpoints, as a multiple of what raw arrays need for one. The paper's run gives the default.
    pub compute: f64,
}

/// Result of the application's run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplicationRow {
    /// Seconds that the whole run took.
    pub run_seconds: f64,
    /// Seconds of the run spent on writing checkpoints.
    pub io_seconds: f64,
    /// 10^6 bytes a second while checkpoints are written.
    pub mb_per_s: f64,
    /// As in [`Row::percent_small`].
    pub percent_small: f64,
    /// As in [`Row::commits`].
    pub commits: u64,
}

/// Size of a request to the arrays, and of an RPC.
const REQUEST: u64 = 1 << 20;
/// RPCs in flight in the paper's figures: Lustre's default.
const PAPER_RPCS: u32 = 8;
/// Time after which everything done before has been written to its final place.
const SETTLE: Duration = Duration::from_secs(40);
/// Virtual time after which a run counts as hung.
const LIMIT: Duration = Duration::from_secs(100_000);
/// Content of all writes.
static ZEROES: [u8; REQUEST as usize] = [0; REQUEST as usize];

impl Application {
    /// The default of `compute`: see the constant's source.
    pub const COMPUTE: f64 = constants::COMPUTE;

    fn compute(&self) -> Duration {
        let checkpoint = f64::from(self.processes) * self.bytes as f64;
        let raw = f64::from(self.osts) * constants::ARRAY_BANDWIDTH as f64;
        Duration::from_secs_f64(self.compute * checkpoint / raw)
    }
}

impl Setup {
    /// The runs of the setup, in the order of the table.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for rpcs_in_flight in self.rpcs_in_flight.iter().copied() {
            for (storage, mode) in WAYS {
                let is_papers = mode == Mode::Async && rpcs_in_flight == PAPER_RPCS;
                let more: &[u64] = if is_papers { &self.more_bytes } else { &[] };
                for bytes in [self.bytes].iter().chain(more).copied() {
                    jobs.push(Job::Stream(Load { storage, mode, osts: self.osts, rpcs_in_flight, bytes }));
                }
            }
        }
        let application = WAYS.iter().filter(|_| self.application.processes > 0);
        jobs.extend(application.map(|(storage, mode)| Job::Application(self.application, *storage, *mode)));
        jobs
    }
}

impl Job {
    /// Runs the job.
    pub fn run(&self, seed: u64) -> Result<Outcome, String> {
        match *self {
            Job::Stream(load) => measure(seed, load).map(|(row, trace)| Outcome::Stream(row, trace)),
            Job::Application(app, storage, mode) => {
                run_application(seed, app, storage, mode).map(|(row, trace)| Outcome::Application(row, trace))
            }
        }
    }
}

impl Load {
    fn apply(self, cluster: &Cluster) -> Result<(), String> {
        for i in 0..cluster.client_count() {
            let params = cluster.client_node(i).params();
            for (name, value) in [
                ("max_pages_per_rpc", (REQUEST / 4096).to_string()),
                ("max_rpcs_in_flight", self.rpcs_in_flight.to_string()),
            ] {
                params.set(&format!("osc.*.{name}"), &value).map_err(|e| e.to_string())?;
            }
        }
        choose_mode(cluster, self.mode)
    }
}

fn choose_mode(cluster: &Cluster, mode: Mode) -> Result<(), String> {
    let sync = if matches!(mode, Mode::Sync | Mode::External) { "1" } else { "0" };
    let memory = if mode == Mode::Memory { "64" } else { "0" };
    for server in cluster.servers().into_iter().filter(|s| matches!(s, Server::Oss(_))) {
        for (name, value) in [("sync_journal", sync), ("reply_from_memory_mb", memory)] {
            if cluster.set_param(server, &format!("obdfilter.*.{name}"), value) != 1 {
                return Err(format!("an OST has no parameter {name}"));
            }
        }
    }
    Ok(())
}

/// Bytes a second of one array without a file system, with as many requests at a time.
fn raw(seed: u64, in_flight: u32, bytes: u64) -> f64 {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let elapsed = sim.block_on(Time::ZERO + LIMIT, async move {
        let store = Arc::new(MemOsd::new(&rt, nacre_ost::TABLES, MemOptions::default()));
        let array = Array::new(&rt, store, Storage::Nacre, Mode::Async);
        let begun = rt.now();
        let streams = (0..in_flight).map(|first| (first, &array)).map(|(first, array)| async move {
            for request in (u64::from(first)..bytes / REQUEST).step_by(in_flight as usize) {
                let written = array.write(Fid::ROOT, request * REQUEST, zeroes(REQUEST)).await;
                assert!(written.is_ok(), "an array without a file system failed");
            }
        });
        join_all(streams).await;
        rt.now().since(begun)
    });
    (bytes / REQUEST * REQUEST) as f64 / elapsed.as_secs_f64()
}

/// Takes one measurement.
fn measure(seed: u64, load: Load) -> Result<(Row, u64), String> {
    let (builder, arrays) = builder(load.storage, load.mode, load.osts, load.osts);
    let at_end = arrays.clone();
    let (result, stats) = run(seed, LIMIT, builder.network(network(seed)), move |cluster| async move {
        load.apply(&cluster)?;
        let mut files = Vec::new();
        for n in 0..load.osts {
            files.push(create(cluster.client(n as usize), &format!("file-{n}"), n, O_DIRECT).await?);
        }
        settle(&cluster).await;
        let begun = cluster.rt().now();
        let each = files.iter().zip(0..).map(|(file, n)| write_all(cluster.client(n), file, load));
        try_join_all(each).await?;
        let (elapsed, busy) = (cluster.rt().now().since(begun), seen(&at_end).busy);
        cluster.rt().sleep(SETTLE).await;
        Ok::<_, String>((elapsed, busy))
    });
    let (elapsed, busy) = result?;
    let seen = seen(&arrays);
    let rest = (seen.busy - busy) / load.osts;
    let raw = raw(seed, load.rpcs_in_flight, load.bytes) * f64::from(load.osts);
    let rate = |time: Duration| (load.bytes * u64::from(load.osts)) as f64 / time.as_secs_f64();
    let row = Row {
        mb_per_s: rate(elapsed) / 1e6,
        percent_of_raw: 100.0 * rate(elapsed) / raw,
        percent_with_rest: 100.0 * rate(elapsed + rest) / raw,
        commits: seen.commits,
        percent_small: percent_small(seen),
    };
    Ok((row, stats.trace))
}

/// Runs the application.
fn run_application(seed: u64, app: Application, storage: Storage, mode: Mode) -> Result<(ApplicationRow, u64), String> {
    let clients = app.osts * 2;
    let (builder, arrays) = builder(storage, mode, app.osts, clients);
    let (result, stats) = run(seed, LIMIT, builder.network(network(seed)), move |cluster| async move {
        let load = Load { storage, mode, osts: app.osts, rpcs_in_flight: PAPER_RPCS, bytes: app.bytes };
        load.apply(&cluster)?;
        settle(&cluster).await;
        let (begun, mut io) = (cluster.rt().now(), Duration::ZERO);
        for step in 0..app.checkpoints {
            cluster.rt().sleep(app.compute()).await;
            let checkpoint = cluster.rt().now();
            let each = (0..app.processes).map(|process| {
                let client = cluster.client((process % clients) as usize);
                write_part(client, app, format!("{step}-{process}"), process % app.osts)
            });
            try_join_all(each).await?;
            io += cluster.rt().now().since(checkpoint);
        }
        let elapsed = cluster.rt().now().since(begun);
        cluster.rt().sleep(SETTLE).await;
        Ok::<_, String>((elapsed, io))
    });
    let (elapsed, io) = result?;
    let bytes = (app.bytes + HEADER) * u64::from(app.processes) * u64::from(app.checkpoints);
    let seen = seen(&arrays);
    let row = ApplicationRow {
        run_seconds: elapsed.as_secs_f64(),
        io_seconds: io.as_secs_f64(),
        mb_per_s: bytes as f64 / io.as_secs_f64() / 1e6,
        percent_small: percent_small(seen),
        commits: seen.commits,
    };
    Ok((row, stats.trace))
}

/// The arrays of a cluster, in the order of their creation.
type Arrays = Arc<Mutex<Vec<Arc<Array>>>>;

fn builder(storage: Storage, mode: Mode, osts: u32, clients: u32) -> (Builder, Arrays) {
    let arrays = Arrays::default();
    let made = arrays.clone();
    let device = move |rt: &Rt, store: Arc<MemOsd>| -> Arc<dyn Osd> {
        let array = Arc::new(Array::new(rt, store, storage, mode));
        made.lock().push(array.clone());
        array
    };
    // The array decides when to commit, not the store below it.
    let store = MemOptions { commit_interval: LIMIT, ..MemOptions::default() };
    (Cluster::builder().oss(osts).clients(clients).ost_storage(store).ost_device(device), arrays)
}

fn network(seed: u64) -> SimNetOptions {
    let link = LinkOptions { latency: LINK_LATENCY, jitter: LINK_LATENCY, ..LinkOptions::default() };
    SimNetOptions { link, bandwidth: LINK_BANDWIDTH, seed, ..SimNetOptions::default() }
}

fn seen(arrays: &Arrays) -> Seen {
    arrays.lock().iter().map(|array| array.seen()).fold(Seen::default(), |a, b| a + b)
}

fn percent_small(seen: Seen) -> f64 {
    100.0 * seen.small as f64 / seen.writes.max(1) as f64
}

/// Waits until everything made beforehand is committed and written to its final place, and counts from here.
async fn settle(cluster: &Cluster) {
    cluster.rt().sleep(SETTLE).await;
    for server in cluster.servers() {
        cluster.set_param(server, "osd-nacre.*.brw_stats", "clear");
    }
}

async fn create(client: &Client, name: &str, ost: u32, more_flags: u32) -> Result<Arc<OpenFile>, String> {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_offset: -1,
        stripe_count: 1,
        stripe_size: REQUEST as u32,
        osts: vec![OstIndex(ost)],
        ..ComponentSpec::default()
    };
    let layout = Some(LayoutSpec { components: vec![component] });
    let (root, flags) = (Credentials::root(), O_CREAT | O_EXCL | O_RDWR | more_flags);
    let made = client.create(&root, Fid::ROOT, name.as_bytes(), flags, 0o600, 0, layout).await;
    made.map(|(_, file)| file).map_err(|e| format!("create: {e}"))
}

/// Writes as a client that keeps a number of RPCs in flight, each the next one of its file.
async fn write_all(client: &Client, file: &OpenFile, load: Load) -> Result<(), String> {
    let next = AtomicU64::new(0);
    let in_flight = (0..load.rpcs_in_flight).map(|_| async {
        loop {
            let at = next.fetch_add(REQUEST, Ordering::Relaxed);
            if at >= load.bytes {
                return Ok::<_, String>(());
            }
            client.write(file, at, zeroes(REQUEST)).await.map_err(|e| format!("write: {e}"))?;
        }
    });
    try_join_all(in_flight).await?;
    client.fsync(file, true).await.map_err(|e| format!("fsync: {e}"))
}

/// Writes one process's part of a checkpoint, with the header in a file of its own. The server answers each write before
/// the next is sent; nothing asks for a commit, because close does not.
async fn write_part(client: &Client, app: Application, name: String, ost: u32) -> Result<(), String> {
    let data = create(client, &name, ost, O_DIRECT).await?;
    let header = create(client, &format!("{name}-header"), ost, O_DIRECT).await?;
    client.write(&header, 0, zeroes(HEADER)).await.map_err(|e| format!("write: {e}"))?;
    for at in (0..app.bytes).step_by(REQUEST as usize) {
        client.write(&data, at, zeroes(REQUEST.min(app.bytes - at))).await.map_err(|e| format!("write: {e}"))?;
    }
    for file in [header, data] {
        client.release(file).await.map_err(|e| format!("close: {e}"))?;
    }
    Ok(())
}

fn zeroes(len: u64) -> Payload {
    Payload::from(Bytes::from_static(&ZEROES[..len as usize]))
}

#[cfg(test)]
mod tests;
