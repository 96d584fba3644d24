//! Whole runs: a cluster, a workload, a kind of trouble, and the checks at the end. A seed determines the run, and its
//! kind of trouble.

use crate::cluster::{Cluster, Server, run};
use crate::workload::Workload;
use nacre_base::{Fid, Payload, Prng};
use nacre_client::open_flags::{O_APPEND, O_CREAT, O_EXCL, O_RDWR};
use nacre_lnet::{FaultPlan, LinkOptions, SimNetOptions};
use nacre_osd::mem::Crash;
use nacre_rt::SimStats;
use nacre_wire::attr::Credentials;
use std::sync::Arc;
use std::time::Duration;

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No trouble: a network with a little delay.
    Calm,
    /// Messages are lost, late and out of order.
    Lossy,
    /// Nodes are cut off from one another for seconds at a time.
    Partitions,
    /// Servers die and start again, between operations.
    Restarts,
    /// Clients work at the same time, in directories of their own and on one common file.
    Together,
}

impl Trouble {
    /// All kinds.
    pub const ALL: [Trouble; 5] =
        [Trouble::Calm, Trouble::Lossy, Trouble::Partitions, Trouble::Restarts, Trouble::Together];

    /// The kind that `seed` gets.
    pub fn of_seed(seed: u64) -> Trouble {
        Trouble::ALL[(seed % Trouble::ALL.len() as u64) as usize]
    }
}

/// Virtual time that a run may take: trouble ends long before.
const LIMIT: Duration = Duration::from_secs(100_000);

/// Runs `seed`: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    let trouble = Trouble::of_seed(seed);
    let mut prng = Prng::new(seed);
    let builder = Cluster::builder()
        .oss(prng.range(1, 5) as u32)
        .clients(prng.range(1, 4) as u32)
        .network(network(trouble, seed));
    let story = move |cluster: Arc<Cluster>| tell(cluster, trouble, seed, steps);
    run(seed, LIMIT, builder, story).1
}

pub(crate) fn network(trouble: Trouble, seed: u64) -> SimNetOptions {
    let mut link =
        LinkOptions { latency: Duration::from_micros(20), jitter: Duration::from_micros(30), ..LinkOptions::default() };
    if trouble == Trouble::Lossy {
        link.loss_ppm = 5_000;
        link.reorder_ppm = 50_000;
        link.reorder_delay = Duration::from_millis(30);
    }
    SimNetOptions { link, seed, ..SimNetOptions::default() }
}

async fn tell(cluster: Arc<Cluster>, trouble: Trouble, seed: u64, steps: u32) {
    if trouble == Trouble::Together {
        together(&cluster, seed, steps).await;
    } else {
        one_after_another(&cluster, trouble, seed, steps).await;
    }
    cluster.net().heal();
    cluster.net().set_links(network(Trouble::Calm, seed).link);
    // Repeated requests end within this time, and closed files' objects are destroyed.
    cluster.rt().sleep(Duration::from_secs(200)).await;
    cluster.stop().await;
    cluster.check_storage().await;
}

async fn one_after_another(cluster: &Arc<Cluster>, trouble: Trouble, seed: u64, steps: u32) {
    let mut work = Workload::new(cluster.clone(), seed);
    if trouble == Trouble::Partitions {
        let mut nodes = cluster.server_numbers();
        nodes.extend(cluster.client_numbers());
        let now = cluster.rt().now();
        FaultPlan::random(seed, &nodes, now, now + Duration::from_secs(600), 30).schedule(cluster.net());
    }
    let rounds = 4;
    for round in 0..rounds {
        work.run(steps / rounds).await;
        if trouble == Trouble::Restarts {
            let server = *Prng::new(seed + u64::from(round)).pick(&cluster.servers());
            restart(cluster, server, seed).await;
        }
    }
    cluster.net().heal();
    work.check_all().await;
    work.close_all().await;
}

async fn restart(cluster: &Cluster, server: Server, seed: u64) {
    cluster.crash(server, Crash::Process);
    cluster.rt().sleep(Duration::from_millis(Prng::new(!seed).range(0, 8000))).await;
    cluster.restart(server).await.unwrap_or_else(|e| panic!("{server:?} does not start again: {e}"));
}

/// Each client works in its own directory, in which the others may leave no trace; all append to one file.
pub(crate) async fn together(cluster: &Arc<Cluster>, seed: u64, steps: u32) {
    let cred = Credentials::root();
    let count = cluster.client_count();
    let (_, log) = cluster
        .client(0)
        .create(&cred, Fid::ROOT, b"log", O_CREAT | O_RDWR, 0o644, 0, None)
        .await
        .expect("the shared file is created");
    let records = steps / 10;
    let mut tasks = Vec::new();
    for i in 0..count {
        let cluster = cluster.clone();
        let rt = cluster.rt().clone();
        tasks.push(rt.spawn(async move { append_records(&cluster, i, records, seed).await }));
    }
    for t in tasks {
        t.await;
    }
    check_log(cluster, &log, count, records).await;
    cluster.client(0).release(log).await.expect("release");
}

const RECORD: usize = 100;

/// Appends records that name their writer, between other calls, and tries to create each race's file first.
async fn append_records(cluster: &Cluster, client: usize, records: u32, seed: u64) {
    let cred = Credentials::root();
    let c = cluster.client(client);
    let mut prng = Prng::new(seed ^ client as u64);
    let attr = c.lookup(&cred, Fid::ROOT, b"log").await.expect("the shared file is there");
    let file = c.open(&cred, attr.fid, O_RDWR | O_APPEND).await.expect("it opens");
    let own = format!("dir{client}").into_bytes();
    let dir = c.mkdir(&cred, Fid::ROOT, &own, 0o755, 0).await.expect("a directory of its own").fid;
    for n in 0..records {
        let mut record = format!("{client}:{n}:").into_bytes();
        record.resize(RECORD, b'.');
        assert_eq!(c.write(&file, 0, Payload::from(record)).await, Ok(RECORD));
        cluster.rt().sleep(Duration::from_micros(prng.below(500))).await;
        let name = format!("f{n}").into_bytes();
        let (_, own_file) =
            c.create(&cred, dir, &name, O_CREAT | O_EXCL | O_RDWR, 0o600, 0, None).await.expect("create");
        c.release(own_file).await.expect("release");
        race(cluster, client, n).await;
    }
    let listed = c.readdir(&cred, dir, 0, false, 65536).await.expect("readdir");
    assert!(listed.end && listed.entries.len() == records as usize + 2, "{} entries", listed.entries.len());
    c.release(file).await.expect("release");
}

/// The client that creates `race-N` exclusively writes its number there; there is exactly one.
async fn race(cluster: &Cluster, client: usize, n: u32) {
    let (c, cred) = (cluster.client(client), Credentials::root());
    let name = format!("race-{n}").into_bytes();
    if let Ok((_, file)) = c.create(&cred, Fid::ROOT, &name, O_CREAT | O_EXCL | O_RDWR | O_APPEND, 0o600, 0, None).await
    {
        assert_eq!(c.write(&file, 0, Payload::from(vec![client as u8])).await, Ok(1));
        c.release(file).await.expect("release");
    }
}

/// Checks that every record is whole, that each client's records are all there and in its order, and that each race had
/// one winner.
async fn check_log(cluster: &Cluster, log: &nacre_client::OpenFile, clients: usize, records: u32) {
    let c = cluster.client(0);
    let bytes = c.read(log, 0, 64 << 20).await.expect("read").to_bytes();
    assert_eq!(bytes.len(), clients * records as usize * RECORD, "appended bytes were lost or doubled");
    let mut next = vec![0u32; clients];
    for record in bytes.chunks(RECORD) {
        let text = std::str::from_utf8(record).expect("records are text");
        let mut fields = text.split(':');
        let (client, n) = (fields.next().expect("client"), fields.next().expect("number"));
        let client: usize = client.parse().unwrap_or_else(|_| panic!("a torn record: {text}"));
        assert_eq!(n.parse(), Ok(next[client]), "a record of client {client} is out of order");
        next[client] += 1;
    }
    for n in 0..records {
        let name = format!("race-{n}").into_bytes();
        let attr = c.lookup(&Credentials::root(), Fid::ROOT, &name).await.expect("somebody won");
        assert_eq!(attr.size, 1, "race {n} had {} winners", attr.size);
    }
}
