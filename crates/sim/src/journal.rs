//! When writes are answered, and where the journal is: "Efficient Object Storage Journaling in a Distributed Parallel File
//! System" (Oral and others, FAST 2010) in virtual time. One storage couplet of the experiments, 28 OSTs of eight data disks and two of parity each, is written to by a
//! client for each OST, with RPCs of 1 MiB; then by an application that computes and writes checkpoints in turn.
//!
//! From the paper are: the number of OSTs; 5.6 GB/s for all raw disks together; 16 KiB and 4 KiB that ext3 writes to its
//! journal for each commit; that the head of an array must go there and back. Two numbers are chosen so that two results of
//! the paper come out: what a seek takes (6 ms) for the synchronous journal on the array itself, and what each commit costs
//! there later, when its pages are written where they belong (3.6 ms), for a journal elsewhere; the paper does not know what
//! held that one back. Nothing is chosen for the asynchronous results, the application, or our own way to commit.
//! Servers' processors take no time.

mod report;

pub use report::{plots, print};

use crate::cluster::{Cluster, Server, run};
use bytes::Bytes;
use clap::ValueEnum;
use futures_util::future::{join_all, try_join_all};
use nacre_base::{Fid, OstIndex, Payload, Time};
use nacre_client::{Client, OpenFile};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_osd::mem::{DiskModel, Journal, MemOptions, MemOsd};
use nacre_osd::{IoShapes, Osd};
use nacre_rt::Sim;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// How an OST commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// As Lustre's did: ext3's journal, whose writes go before data that waits, since somebody always waits for them; and
    /// pages that are written where they belong later.
    Ext3,
    /// As ours does: the pages of the index, which nothing has to be written over, then the number of the transaction, or
    /// one record where the journal is elsewhere; in turn with data.
    Nacre,
}

/// When a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Of the OSTs.
    pub storage: Storage,
    /// Of the OSTs.
    pub mode: Mode,
    /// OSTs, and clients.
    pub osts: u32,
    /// RPCs that a client has in flight to an OST.
    pub rpcs_in_flight: u32,
    /// Bytes that each client writes.
    pub bytes: u64,
}

/// The rate of one way to commit.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub load: Load,
    /// 10^6 bytes a second, of all OSTs, from the first write until all is durable.
    pub mb_per_s: f64,
    /// Of the same arrays written to without a file system, as many requests at a time.
    pub percent_of_raw: f64,
    /// Commits of all OSTs.
    pub commits: u64,
    /// Requests of less than 128 KiB among those that the arrays' controllers saw, journals too.
    pub percent_small: f64,
}

/// An application that computes, writes a checkpoint, and goes on when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Application {
    /// OSTs; there are twice as many clients.
    pub osts: u32,
    /// Processes; each has a file for each checkpoint.
    pub processes: u32,
    /// Checkpoints.
    pub checkpoints: u32,
    /// Bytes of each process's part of a checkpoint, besides a header of 64 KiB.
    pub bytes: u64,
    /// Time between two checkpoints.
    pub compute: Duration,
}

/// One run of the application.
#[derive(Debug, Clone, Serialize)]
pub struct ApplicationRow {
    /// Of the OSTs.
    pub storage: Storage,
    /// Of the OSTs.
    pub mode: Mode,
    /// Of the whole run, in seconds.
    pub run_seconds: f64,
    /// Of it writing checkpoints.
    pub io_seconds: f64,
    /// 10^6 bytes a second while checkpoints are written.
    pub mb_per_s: f64,
    /// As in [`Row`].
    pub percent_small: f64,
    /// As in [`Row`].
    pub commits: u64,
}

/// A request to the arrays, and an RPC.
const REQUEST: u64 = 1 << 20;
/// Of the header in each process's part of a checkpoint.
const HEADER: u64 = 64 << 10;
/// Of one array: 5.6 GB/s in all.
const ARRAY_BANDWIDTH: u64 = 200_000_000;
/// Chosen for the synchronous journal; see the head of the file.
const SEEK: Duration = Duration::from_millis(6);
/// Chosen for the journal elsewhere.
const HOME_SEEK: Duration = Duration::from_micros(3600);
/// Of a write to a solid-state device over the storage network.
const EXTERNAL_LATENCY: Duration = Duration::from_micros(100);
/// Blocks, then the commit record.
const EXT3_WRITES: &[u64] = &[16 << 10, 4 << 10];
/// Pages of a small transaction, then its number.
const INDEX_WRITES: &[u64] = &[32 << 10, 4 << 10];
/// One record.
const RECORD_WRITES: &[u64] = &[4 << 10];
/// InfiniBand 4X DDR.
const LINK_BANDWIDTH: u64 = 1_500_000_000;
const LINK_LATENCY: Duration = Duration::from_micros(15);
/// Whoever takes longer in virtual time hangs.
const LIMIT: Duration = Duration::from_secs(100_000);
/// What all writes consist of.
static ZEROES: [u8; REQUEST as usize] = [0; REQUEST as usize];

const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_RDWR: u32 = 2;
const O_DIRECT: u32 = 0o40000;

impl Storage {
    fn model(self, mode: Mode) -> DiskModel {
        let external = mode == Mode::External;
        let of_ext3 = Journal {
            external,
            writes: EXT3_WRITES,
            scattered: false,
            urgent: true,
            latency: EXTERNAL_LATENCY,
            home_writes: 1,
            home_seek: HOME_SEEK,
        };
        let writes = if external { RECORD_WRITES } else { INDEX_WRITES };
        let journal = match self {
            Storage::Ext3 => of_ext3,
            Storage::Nacre => Journal { writes, scattered: true, urgent: false, home_writes: 0, ..of_ext3 },
        };
        DiskModel { journal: Some(journal), ..array() }
    }
}

/// One array behind a controller whose cache puts the requests of some streams in order.
const fn array() -> DiskModel {
    DiskModel { seek: SEEK, streams: 256, bandwidth: ARRAY_BANDWIDTH, ..DiskModel::FREE }
}

impl Load {
    fn params(self, cluster: &Cluster) -> Result<(), String> {
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

/// The arrays without a file system: bytes a second of all, with as many requests at a time.
pub fn raw(seed: u64, osts: u32, in_flight: u32, bytes: u64) -> f64 {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    let elapsed = sim.block_on(Time::ZERO + LIMIT, async move {
        let options = MemOptions { model: array(), ..MemOptions::default() };
        let disks: Vec<Arc<MemOsd>> =
            (0..osts).map(|_| Arc::new(MemOsd::new(&rt, nacre_ost::TABLES, options.clone()))).collect();
        let begun = rt.now();
        let streams = disks.iter().flat_map(|disk| (0..in_flight).map(move |n| (disk, u64::from(n))));
        let each = streams.map(|(disk, first)| async move {
            for request in (first..bytes / REQUEST).step_by(in_flight as usize) {
                let written = disk.write(Fid::ROOT, request * REQUEST, zeroes(REQUEST)).await;
                assert!(written.is_ok(), "an array without a file system failed");
            }
        });
        join_all(each).await;
        rt.now().since(begun)
    });
    (bytes / REQUEST * REQUEST * u64::from(osts)) as f64 / elapsed.as_secs_f64()
}

/// Takes one measurement beside `raw`, in bytes a second.
pub fn measure(seed: u64, load: Load, raw: f64) -> Result<Row, String> {
    let builder = builder(load.storage, load.mode, load.osts, load.osts, seed);
    let (result, _) = run(seed, LIMIT, builder, move |cluster| async move {
        load.params(&cluster)?;
        let mut files = Vec::new();
        for n in 0..load.osts {
            files.push(create(cluster.client(n as usize), &format!("file-{n}"), n, 0).await?);
        }
        settle(&cluster).await;
        let begun = cluster.rt().now();
        let each = files.iter().zip(0..).map(|(file, n)| write_all(cluster.client(n), file, load.bytes));
        try_join_all(each).await?;
        Ok::<_, String>((cluster.rt().now().since(begun), seen(&cluster)))
    });
    let (elapsed, Seen { writes, commits }) = result?;
    let rate = (load.bytes * u64::from(load.osts)) as f64 / elapsed.as_secs_f64();
    let (mb_per_s, percent_of_raw) = (rate / 1e6, 100.0 * rate / raw);
    Ok(Row { load, mb_per_s, percent_of_raw, commits, percent_small: percent_small(&writes) })
}

/// Runs the application.
pub fn run_application(seed: u64, app: Application, storage: Storage, mode: Mode) -> Result<ApplicationRow, String> {
    let clients = app.osts * 2;
    let builder = builder(storage, mode, app.osts, clients, seed);
    let (result, _) = run(seed, LIMIT, builder, move |cluster| async move {
        let load = Load { storage, mode, osts: app.osts, rpcs_in_flight: 8, bytes: app.bytes };
        load.params(&cluster)?;
        settle(&cluster).await;
        let (begun, mut io) = (cluster.rt().now(), Duration::ZERO);
        for step in 0..app.checkpoints {
            cluster.rt().sleep(app.compute).await;
            let checkpoint = cluster.rt().now();
            let each = (0..app.processes).map(|process| {
                let client = cluster.client((process % clients) as usize);
                write_part(client, app, format!("{step}-{process}"), process % app.osts)
            });
            try_join_all(each).await?;
            io += cluster.rt().now().since(checkpoint);
        }
        Ok::<_, String>((cluster.rt().now().since(begun), io, seen(&cluster)))
    });
    let (elapsed, io, Seen { writes, commits }) = result?;
    let bytes = (app.bytes + HEADER) * u64::from(app.processes) * u64::from(app.checkpoints);
    Ok(ApplicationRow {
        storage,
        mode,
        run_seconds: elapsed.as_secs_f64(),
        io_seconds: io.as_secs_f64(),
        mb_per_s: bytes as f64 / io.as_secs_f64() / 1e6,
        percent_small: percent_small(&writes),
        commits,
    })
}

fn builder(storage: Storage, mode: Mode, osts: u32, clients: u32, seed: u64) -> crate::cluster::Builder {
    let options = MemOptions { model: storage.model(mode), ..MemOptions::default() };
    let link = LinkOptions { latency: LINK_LATENCY, jitter: LINK_LATENCY, ..LinkOptions::default() };
    let network = SimNetOptions { link, bandwidth: LINK_BANDWIDTH, seed };
    Cluster::builder().oss(osts).clients(clients).network(network).ost_storage(options)
}

/// What the arrays' controllers and the devices of journals saw.
struct Seen {
    writes: Vec<IoShapes>,
    commits: u64,
}

fn seen(cluster: &Cluster) -> Seen {
    let osts = cluster.servers().into_iter().filter(|s| matches!(s, Server::Oss(_)));
    let stats: Vec<_> = osts.map(|server| cluster.io_stats(server)).collect();
    let commits = stats.iter().map(|s| s.commits.millis.total()).sum();
    Seen { writes: stats.into_iter().map(|s| s.writes).collect(), commits }
}

fn percent_small(writes: &[IoShapes]) -> f64 {
    let small: u64 = writes.iter().map(|w| w.small_count).sum();
    let all: u64 = writes.iter().map(IoShapes::count).sum();
    100.0 * small as f64 / all.max(1) as f64
}

/// Lets what was made beforehand be committed, and counts from here.
async fn settle(cluster: &Cluster) {
    cluster.rt().sleep(Duration::from_secs(11)).await;
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

async fn write_all(client: &Client, file: &OpenFile, bytes: u64) -> Result<(), String> {
    for at in (0..bytes).step_by(REQUEST as usize) {
        client.write(file, at, zeroes(REQUEST.min(bytes - at))).await.map_err(|e| format!("write: {e}"))?;
    }
    client.fsync(file, true).await.map_err(|e| format!("fsync: {e}"))
}

/// One process's part of a checkpoint: the header in a file of its own. Each write is answered by the server before the
/// next; nobody asks for a commit, as close does not.
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
mod tests {
    use super::*;

    fn share(storage: Storage, mode: Mode) -> Row {
        let load = Load { storage, mode, osts: 2, rpcs_in_flight: 8, bytes: 1 << 30 };
        let row = measure(1, load, raw(1, load.osts, load.rpcs_in_flight, load.bytes)).unwrap();
        println!("{row:?}");
        row
    }

    #[test]
    fn the_papers_order_comes_out_and_ours_is_before_it() {
        let raw = raw(1, 2, 8, 1 << 30);
        assert!((399e6..=400e6).contains(&raw), "two arrays of 200 MB/s: {raw}");
        let of_ext3 = [Mode::Sync, Mode::External, Mode::Async].map(|mode| share(Storage::Ext3, mode));
        let [sync, external, later] = of_ext3.map(|row| row.percent_of_raw);
        assert!((20.0..30.0).contains(&sync), "24.9 % in the paper: {sync}");
        assert!((50.0..65.0).contains(&external), "58.7 % in the paper: {external}");
        assert!(later > 90.0, "93 % in the paper: {later}");
        let ours = share(Storage::Nacre, Mode::Sync);
        assert!(ours.percent_of_raw > 1.3 * sync, "{ours:?}");
        assert!(share(Storage::Nacre, Mode::Async).percent_small < ours.percent_small);
    }

    #[test]
    fn an_application_spends_less_time_on_its_checkpoints_if_nobody_waits_for_commits() {
        let compute = Duration::from_secs(1);
        let app = Application { osts: 2, processes: 8, checkpoints: 2, bytes: 8 << 20, compute };
        let [sync, later] = [Mode::Sync, Mode::Async].map(|mode| run_application(1, app, Storage::Ext3, mode).unwrap());
        assert!(sync.io_seconds > 2.0 * later.io_seconds, "{sync:?} {later:?}");
        assert!(sync.percent_small > later.percent_small, "{sync:?} {later:?}");
        assert!((later.run_seconds - later.io_seconds - 2.0).abs() < 0.01, "{later:?}");
    }
}
