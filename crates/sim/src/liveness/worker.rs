//! A client's program: a file of its own, slots in a file that all share, and pauses of all lengths between its calls.

use super::judge::Judge;
use super::size::CLIENTS;
use crate::cluster::Cluster;
use nacre_base::{Errno, Fid, Payload, Prng};
use nacre_client::open_flags::{O_CREAT, O_RDWR};
use nacre_client::{Client, OpenFile};
use nacre_wire::attr::Credentials;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a client's own file, and of its slot in the shared one.
const SLOT: usize = 64;
const SHARED: &str = "shared";
/// Tries of a call that fails because the client was evicted.
const TRIES: u32 = 50;

pub(super) struct Worker {
    cluster: Arc<Cluster>,
    judge: Arc<Judge>,
    client: usize,
    /// True if it also uses the file that all share.
    shares: bool,
    prng: Prng,
    durable: Durable,
}

/// For each client, and for its own file or its slot in the shared one: the number of the latest value that it wrote and that is
/// durable. Every value is higher than the last.
pub(super) type Durable = Arc<Mutex<BTreeMap<(usize, bool), u64>>>;

/// A value as it stands in a slot.
fn value(client: usize, number: u64) -> Vec<u8> {
    let mut bytes = format!("client {client}, value {number};").into_bytes();
    bytes.resize(SLOT, b'.');
    bytes
}

fn number(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.split("value ").nth(1)?.split(';').next()?.parse().ok()
}

impl Worker {
    /// The program of a client, which also uses the shared file if it `shares`.
    pub(super) fn new(judge: &Arc<Judge>, client: usize, shares: bool, seed: u64, durable: &Durable) -> Worker {
        let (judge, durable) = (judge.clone(), durable.clone());
        let prng = Prng::new(seed.wrapping_mul(u64::from(CLIENTS)) ^ (client as u64 + 1));
        Worker { cluster: judge.cluster().clone(), judge, client, shares, prng, durable }
    }

    pub(super) async fn work(mut self, steps: u32, over: &AtomicBool) {
        for step in 0..steps {
            Box::pin(self.step(u64::from(step) + 1)).await;
            let pause = match self.prng.below(3) {
                0 => self.prng.below(2_000),
                1 => self.prng.range(5_000, 40_000),
                _ => self.prng.range(60_000, 300_000),
            };
            let rt = self.cluster.rt().clone();
            let until = rt.now() + Duration::from_millis(pause);
            while rt.now() < until {
                if over.load(Ordering::Acquire) {
                    return;
                }
                rt.sleep(Duration::from_secs(5).min(until.since(rt.now()))).await;
            }
        }
    }

    /// One thing that a program does, repeated while it fails because the client was evicted.
    async fn step(&mut self, n: u64) {
        let shared = self.shares && self.prng.one_in(2);
        let kind = self.prng.below(5);
        for _ in 0..TRIES {
            let begin = self.cluster.rt().now();
            let (what, outcome) = match kind {
                0 | 1 => ("write and fsync", self.write(shared, n).await),
                2 | 3 => ("read", self.read(shared).await),
                _ => ("create and unlink", self.names(n).await),
            };
            if self.judge.judge(self.client, what, begin, outcome) {
                return;
            }
            self.cluster.rt().sleep(Duration::from_secs(10)).await;
        }
        panic!("client {} is evicted again and again", self.client);
    }

    fn client(&self) -> Arc<Client> {
        self.cluster.client(self.client).clone()
    }

    async fn write(&mut self, shared: bool, n: u64) -> Result<(), Errno> {
        let (file, offset) = open(&self.client(), self.client, shared).await?;
        let data = value(self.client, n);
        let mut outcome = self.client().write(&file, offset, Payload::from(data)).await.map(drop);
        if outcome.is_ok() {
            outcome = self.client().fsync(&file, false).await;
        }
        if outcome.is_ok() {
            self.durable.lock().insert((self.client, shared), n);
        }
        let released = self.client().release(file).await;
        outcome.and(released)
    }

    async fn read(&mut self, shared: bool) -> Result<(), Errno> {
        let (file, offset) = open(&self.client(), self.client, shared).await?;
        let read = self.client().read(&file, offset, SLOT).await;
        let released = self.client().release(file).await;
        let found = number(&read?.to_bytes()).unwrap_or(0);
        let durable = self.durable.lock().get(&(self.client, shared)).copied().unwrap_or(0);
        assert!(found >= durable, "client {}: value {found} where {durable} was durable", self.client);
        released
    }

    async fn names(&mut self, n: u64) -> Result<(), Errno> {
        let name = format!("c{}-{n}", self.client);
        let (cred, client) = (Credentials::root(), self.client());
        let (_, file) = client.create(&cred, Fid::ROOT, name.as_bytes(), O_CREAT | O_RDWR, 0o600, 0, None).await?;
        client.release(file).await?;
        match client.unlink(&cred, Fid::ROOT, name.as_bytes()).await {
            // It was removed by a try that was given up when the client was evicted.
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Opens a client's own file or the shared one, and names the offset of the client's slot there.
async fn open(client: &Client, of: usize, shared: bool) -> Result<(Arc<OpenFile>, u64), Errno> {
    let (name, slot) = if shared { (SHARED.to_owned(), of) } else { (format!("own{of}"), 0) };
    let made = client.create(&Credentials::root(), Fid::ROOT, name.as_bytes(), O_CREAT | O_RDWR, 0o644, 0, None).await;
    made.map(|(_, file)| (file, (slot * SLOT) as u64))
}

/// Checks that another client finds what each client was told is durable, the dead ones too.
pub(super) async fn check_files(cluster: &Cluster, durable: &Durable) {
    let durable = durable.lock().clone();
    let living: Vec<usize> = (0..cluster.client_count()).filter(|c| cluster.is_alive(*c)).collect();
    for ((of, shared), least) in durable {
        let reader = living.iter().find(|c| **c != of).expect("at least three clients live");
        let client = cluster.client(*reader);
        let (file, offset) = open(client, of, shared).await.expect("it opens");
        let read = client.read(&file, offset, SLOT).await.expect("it can be read");
        let found = number(&read.to_bytes()).unwrap_or(0);
        assert!(found >= least, "client {of}: value {found} where {least} was durable");
        client.release(file).await.expect("release");
    }
}
