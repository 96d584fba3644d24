//! Clients that share a few files, each with one to three processes, all at the same time, each in its own order, while
//! the network misbehaves and clients die or are cut off. Every answer goes to the linearizability checker. `workload`
//! tests operations one after another, checked against POSIX step by step.

use crate::checker::{History, INITIAL, OperationId, Register};
use crate::cluster::{Cluster, Server, run};
use nacre_base::{Errno, Fid, Payload, Prng};
use nacre_client::OpenFile;
use nacre_client::open_flags::{O_APPEND, O_CREAT, O_RDWR};
use nacre_lnet::{FaultPlan, LinkOptions, SimNetOptions};
use nacre_osd::mem::{Crash, DiskModel, MemOptions};
use nacre_rt::SimStats;
use nacre_wire::attr::{Credentials, SetAttr};
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Trouble during a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hazard {
    /// No trouble: a network with a little delay.
    Calm,
    /// Messages are lost, late and out of order.
    Lossy,
    /// Nodes are cut off from one another, for less time than it takes to be evicted.
    Partitions,
    /// Clients die with locks and dirty data.
    Deaths,
    /// A client is cut off until it is evicted, and comes back.
    Eviction,
    /// A client dies, and all OSSs die at the same moment.
    DeathsWithServers,
}

impl Hazard {
    /// All kinds.
    pub const ALL: [Hazard; 6] =
        [Hazard::Calm, Hazard::Lossy, Hazard::Partitions, Hazard::Deaths, Hazard::Eviction, Hazard::DeathsWithServers];

    /// The kind that `seed` gets.
    pub fn of_seed(seed: u64) -> Hazard {
        Hazard::ALL[(seed % Hazard::ALL.len() as u64) as usize]
    }

    /// Returns whether clients change and read sizes. A size may come from a writer's cache, so nothing keeps it if the
    /// writer and the server die together.
    fn asks_sizes(self) -> bool {
        self != Hazard::DeathsWithServers
    }

    /// Approximate time for which the clients work: long enough for the trouble.
    fn duration(self) -> Duration {
        match self {
            Hazard::Calm | Hazard::Lossy => Duration::from_millis(500),
            Hazard::Partitions => Duration::from_secs(100),
            Hazard::Deaths | Hazard::DeathsWithServers => Duration::from_secs(60),
            Hazard::Eviction => CUT + BACK + Duration::from_secs(60),
        }
    }
}

/// Virtual time that a run may take: trouble ends long before.
const LIMIT: Duration = Duration::from_secs(100_000);
/// How long a client is cut off: certainly long enough to be evicted.
const CUT: Duration = Duration::from_secs(500);
/// Time within which a client that is back has noticed its eviction.
const BACK: Duration = Duration::from_secs(150);

/// Runs `seed`, with `steps` operations of each client: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    run_on(disk_of_seed(seed), Hazard::of_seed(seed), seed, steps)
}

/// As [`run_seed`], with a hazard other than the seed's own, on disks that take no time.
pub fn run_hazard(hazard: Hazard, seed: u64, steps: u32) -> SimStats {
    run_on(DiskModel::FREE, hazard, seed, steps)
}

/// Cost of the OSTs' disks in the run of `seed`. A disk that takes no time has done a request before the OST looks at the
/// next one, so that no request ever waits for the range of another.
fn disk_of_seed(seed: u64) -> DiskModel {
    // Independent of the numbers that decide what clients do.
    let mut prng = Prng::new(seed.rotate_left(32) ^ 0x6469_736b);
    *prng.pick(&[DiskModel::FREE, DiskModel::NVME, DiskModel::HDD])
}

fn run_on(disk: DiskModel, hazard: Hazard, seed: u64, steps: u32) -> SimStats {
    let mut prng = Prng::new(seed);
    let link =
        LinkOptions { latency: Duration::from_micros(20), jitter: Duration::from_micros(50), ..LinkOptions::default() };
    let link = match hazard {
        Hazard::Lossy => {
            LinkOptions { loss_ppm: 3_000, reorder_ppm: 50_000, reorder_delay: Duration::from_millis(30), ..link }
        }
        _ => LinkOptions { reorder_ppm: 20_000, reorder_delay: Duration::from_millis(1), ..link },
    };
    let network = SimNetOptions { link, seed, ..SimNetOptions::default() };
    let builder = Cluster::builder().oss(prng.range(1, 3) as u32).clients(prng.range(2, 7) as u32).network(network);
    let builder = builder.ost_storage(MemOptions { model: disk, ..MemOptions::default() });
    run(seed, LIMIT, builder, move |cluster| tell(cluster, hazard, seed, steps)).1
}

async fn tell(cluster: Arc<Cluster>, hazard: Hazard, seed: u64, steps: u32) {
    let story = Arc::new(Story::set_up(cluster.clone(), hazard, seed).await);
    let rt = cluster.rt().clone();
    let pause = hazard.duration() / steps.max(1);
    let (sender, mut working) = tokio::sync::mpsc::channel::<()>(1);
    let mut prng = Prng::new(seed ^ 0x3043);
    for client in 0..cluster.client_count() {
        // Only one process is told of data lost by an eviction: the checker could not know what the others may rely on.
        let processes = if hazard == Hazard::Eviction { 1 } else { prng.range(1, 4) as u32 };
        for process in 0..processes {
            let (story, sender) = (story.clone(), sender.clone());
            // In the client's own scope, so that it dies with its node.
            drop(cluster.client_rt(client).spawn(async move {
                let mut worker = Worker::new(&story, client, process, seed).await;
                worker.work(steps / processes, pause).await;
                drop(sender);
            }));
        }
    }
    drop(sender);
    let trouble = {
        rt.spawn({
            let story = story.clone();
            async move { story.make_trouble().await }
        })
    };
    while !matches!(working.try_recv(), Err(tokio::sync::mpsc::error::TryRecvError::Disconnected)) {
        cluster.check_locks().unwrap_or_else(|e| panic!("lock tables: {e}"));
        rt.sleep((pause * 20).max(Duration::from_millis(20))).await;
    }
    trouble.await;
    cluster.net().heal();
    cluster.net().set_links(LinkOptions::default());
    rt.sleep(Duration::from_secs(200)).await;
    story.look_at_all(seed).await;
    if matches!(hazard, Hazard::Deaths | Hazard::DeathsWithServers) {
        story.until_the_dead_are_evicted().await;
    }
    cluster.check_locks().unwrap_or_else(|e| panic!("lock tables: {e}"));
    story.check().await;
    cluster.stop().await;
}

/// Number of files with slots.
const FILES: u32 = 3;
/// Number of slots of each.
const SLOTS: u32 = 12;
/// Numbers of the other files, in [`Register`]s.
const SIZES: Register = Register { file: 10, slot: 0 };
const NAME: Register = Register { file: 11, slot: 0 };
const XATTR: Register = Register { file: 12, slot: 0 };
/// Bytes of a record in the log.
const RECORD: usize = 48;

/// State shared by all processes.
struct Story {
    cluster: Arc<Cluster>,
    hazard: Hazard,
    seed: u64,
    /// Bytes of a slot, by file.
    slot_size: Vec<usize>,
    fids: Vec<Fid>,
    sizes: Fid,
    log: Fid,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    history: History,
    next_value: u64,
    /// Clients that may see errors.
    in_trouble: BTreeSet<usize>,
    dead: BTreeSet<usize>,
    appended: BTreeMap<u64, Appended>,
}

/// A record that was appended, or may have been.
struct Appended {
    client: usize,
    process: u32,
    /// True if the record must be there.
    certain: bool,
}

impl Story {
    async fn set_up(cluster: Arc<Cluster>, hazard: Hazard, seed: u64) -> Story {
        let mut prng = Prng::new(seed ^ 0x5eed);
        let (c, cred) = (cluster.client(0).clone(), Credentials::root());
        let make = async |name: &str, layout: Option<LayoutSpec>| {
            let made = c.create(&cred, Fid::ROOT, name.as_bytes(), O_CREAT | O_RDWR, 0o644, 0, layout).await;
            let (attr, file) = made.unwrap_or_else(|e| panic!("create of {name}: {e}"));
            c.release(file).await.unwrap_or_else(|e| panic!("release of {name}: {e}"));
            attr.fid
        };
        let mut fids = Vec::new();
        for n in 0..FILES {
            fids.push(make(&format!("slots{n}"), Some(layout(prng.range(1, 4) as i32))).await);
        }
        let (sizes, log) = (make("sizes", Some(layout(1))).await, make("log", Some(layout(2))).await);
        let slot_size = (0..FILES).map(|_| 1024 << prng.below(7)).collect();
        Story { cluster, hazard, seed, slot_size, fids, sizes, log, state: Mutex::new(State::default()) }
    }

    /// A value that was not used before.
    fn new_value(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_value += 1;
        state.next_value
    }

    fn with<T>(&self, f: impl FnOnce(&mut History) -> T) -> T {
        f(&mut self.state.lock().history)
    }

    async fn make_trouble(&self) {
        let (rt, net) = (self.cluster.rt().clone(), self.cluster.net().clone());
        let mut prng = Prng::new(!self.seed);
        let mut servers = self.cluster.server_numbers();
        match self.hazard {
            Hazard::Calm | Hazard::Lossy => {}
            Hazard::Partitions => {
                servers.extend(self.cluster.client_numbers());
                let now = rt.now();
                FaultPlan::random(self.seed, &servers, now, now + self.hazard.duration(), 12).schedule(&net);
                rt.sleep(self.hazard.duration()).await;
            }
            Hazard::Deaths => {
                let count = self.cluster.client_count();
                let deaths = prng.range(1, count as u64);
                for _ in 0..deaths {
                    rt.sleep(Duration::from_millis(prng.range(100, 25_000))).await;
                    self.kill_client(prng.below(count as u64) as usize);
                }
            }
            Hazard::DeathsWithServers => {
                rt.sleep(Duration::from_millis(prng.range(100, 50_000))).await;
                self.kill_client(prng.below(self.cluster.client_count() as u64) as usize);
                self.restart_object_servers(&mut prng).await;
            }
            Hazard::Eviction => {
                rt.sleep(Duration::from_millis(prng.range(100, 30_000))).await;
                let victim = prng.below(self.cluster.client_count() as u64) as usize;
                self.state.lock().in_trouble.insert(victim);
                let moment = self.with(|h| h.now());
                net.partition([self.cluster.client_numbers()[victim]], servers);
                rt.sleep(CUT).await;
                net.heal();
                rt.sleep(BACK).await;
                self.with(|h| h.forget_reads(victim as u32, moment));
                self.state.lock().in_trouble.remove(&victim);
            }
        }
    }

    /// Kills a client, unless it is dead or the last: one survives to look at the result.
    fn kill_client(&self, victim: usize) {
        let mut state = self.state.lock();
        if state.dead.len() + 1 < self.cluster.client_count() && state.dead.insert(victim) {
            self.cluster.kill_client(victim);
            state.history.died(victim as u32);
            state.appended.values_mut().filter(|a| a.client == victim).for_each(|a| a.certain = false);
        }
    }

    /// Cuts the power of all OSSs at this moment, and starts them again on what their disks have.
    async fn restart_object_servers(&self, prng: &mut Prng) {
        let servers = self.cluster.servers();
        let servers: Vec<Server> = servers.into_iter().filter(|s| matches!(s, Server::Oss(_))).collect();
        for server in &servers {
            self.cluster.crash(*server, Crash::PowerCut);
        }
        self.cluster.rt().sleep(Duration::from_millis(prng.range(0, 5000))).await;
        for server in servers {
            self.cluster.restart(server).await.unwrap_or_else(|e| panic!("{server:?} does not start again: {e}"));
        }
    }

    /// Lets every living client read everything.
    async fn look_at_all(self: &Arc<Self>, seed: u64) {
        for client in 0..self.cluster.client_count() {
            if self.state.lock().dead.contains(&client) {
                continue;
            }
            let mut worker = Worker::new(self, client, 0, seed).await;
            for file in 0..FILES {
                worker.read_slots(file, 0, SLOTS).await;
            }
            worker.read_size().await;
            worker.read_name().await;
            worker.read_xattr().await;
            worker.close_all().await;
        }
    }

    /// Waits until the dead clients are evicted: servers notice silent clients when another one sends requests.
    async fn until_the_dead_are_evicted(&self) {
        for _ in 0..60 {
            self.survivor().statfs().await.expect("statfs");
            self.cluster.rt().sleep(Duration::from_secs(10)).await;
        }
    }

    fn survivor(&self) -> Arc<nacre_client::Client> {
        let dead = self.state.lock().dead.clone();
        let index = (0..self.cluster.client_count()).find(|c| !dead.contains(c)).expect("one client is never killed");
        self.cluster.client(index).clone()
    }

    /// Checks that all answers fit together.
    async fn check(&self) {
        if let Err(e) = self.with(|h| h.check()) {
            panic!("not linearizable: {e}");
        }
        let c = self.survivor();
        let file = c.open(&Credentials::root(), self.log, 0).await.expect("the log opens");
        let bytes = c.read(&file, 0, 64 << 20).await.expect("the log is read").to_bytes();
        c.release(file).await.expect("release");
        check_log(&bytes, &self.state.lock().appended);
    }
}

/// Checks that every record that must be there is there once, and that each process's are in its order. Lost records may
/// have left holes.
fn check_log(bytes: &[u8], appended: &BTreeMap<u64, Appended>) {
    assert_eq!(bytes.len() % RECORD, 0, "a torn record at the end of the log");
    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::new();
    for record in bytes.chunks(RECORD) {
        let value = uniform(record).unwrap_or_else(|| panic!("a torn record in the log: {record:02x?}"));
        if value == INITIAL {
            continue;
        }
        let of = appended.get(&value).unwrap_or_else(|| panic!("nobody appended {value:#x}"));
        assert!(seen.insert(value), "{value:#x} was appended twice");
        let before = last.insert((of.client, of.process), value);
        assert!(before.is_none_or(|b| b < value), "{value:#x} of client {} is out of order", of.client);
    }
    let lost: Vec<_> = appended.iter().filter(|(v, a)| a.certain && !seen.contains(v)).map(|(v, _)| v).collect();
    assert!(lost.is_empty(), "appended records are lost: {lost:x?}");
    let holes = bytes.chunks(RECORD).filter(|r| uniform(r) == Some(INITIAL)).count();
    let doubtful = appended.values().filter(|a| !a.certain).count();
    assert!(holes <= doubtful, "{holes} holes in the log, but only {doubtful} records can have been lost");
}

fn layout(stripes: i32) -> LayoutSpec {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_size: STRIPE_SIZE_MIN,
        stripe_offset: -1,
        stripe_count: stripes,
        overstripe: stripes > 1,
        ..ComponentSpec::default()
    };
    LayoutSpec { components: vec![component] }
}

/// The value that bytes repeat; none if they are not all the same.
fn uniform(bytes: &[u8]) -> Option<u64> {
    let first = bytes.first_chunk::<8>()?;
    bytes.chunks(8).all(|c| c == &first[..]).then(|| u64::from_le_bytes(*first))
}

fn repeated(value: u64, len: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(len / 8)
}

/// The work of a client's process.
struct Worker {
    story: Arc<Story>,
    client: usize,
    process: u32,
    prng: Prng,
    files: Vec<Arc<OpenFile>>,
    log: Arc<OpenFile>,
    cred: Credentials,
}

impl Worker {
    async fn new(story: &Arc<Story>, client: usize, process: u32, seed: u64) -> Worker {
        let cred = Credentials::root();
        let c = story.cluster.client(client).clone();
        let open = async |fid, flags| loop {
            match c.open(&cred, fid, flags).await {
                Ok(file) => return file,
                // The client is cut off at this moment.
                Err(_) if story.state.lock().in_trouble.contains(&client) => {
                    story.cluster.rt().sleep(Duration::from_secs(1)).await;
                }
                Err(e) => panic!("client {client} cannot open {fid}: {e}"),
            }
        };
        let mut files = Vec::new();
        for fid in &story.fids {
            files.push(open(*fid, O_RDWR).await);
        }
        let log = open(story.log, O_RDWR | O_APPEND).await;
        let prng = Prng::new(seed.wrapping_mul(31) + client as u64 + (u64::from(process) << 32));
        Worker { story: story.clone(), client, process, prng, files, log, cred }
    }

    fn me(&self) -> u32 {
        self.client as u32
    }

    fn fs(&self) -> Arc<nacre_client::Client> {
        self.story.cluster.client(self.client).clone()
    }

    async fn work(&mut self, steps: u32, pause: Duration) {
        for _ in 0..steps {
            let file = self.prng.below(u64::from(FILES)) as u32;
            let slot = self.prng.below(u64::from(SLOTS)) as u32;
            let several = self.prng.range(1, 5).min(u64::from(SLOTS - slot)) as u32;
            match self.prng.below(100) {
                0..30 => self.write_slots(file, slot, 1).await,
                30..35 => self.write_slots(file, slot, several).await,
                35..62 => self.read_slots(file, slot, 1).await,
                62..67 => self.read_slots(file, slot, several).await,
                67..72 => self.sync(file).await,
                72..78 => self.append().await,
                78..86 if !self.story.hazard.asks_sizes() => self.read_slots(file, slot, 1).await,
                78..81 => self.write_size().await,
                81..86 => self.read_size().await,
                86..89 => self.write_name().await,
                89..94 => self.read_name().await,
                94..96 => self.write_xattr().await,
                _ => self.read_xattr().await,
            }
            // Often at once, sometimes late.
            let nanos = pause.as_nanos() as u64;
            if self.prng.one_in(2) {
                self.story.cluster.rt().sleep(Duration::from_nanos(self.prng.below(4 * nanos + 1))).await;
            }
        }
        for file in 0..FILES {
            self.sync(file).await;
        }
        self.close_all().await;
    }

    async fn close_all(&mut self) {
        let files: Vec<_> = self.files.drain(..).chain([self.log.clone()]).collect();
        for file in files {
            let closed = self.fs().release(file).await;
            self.judge("close", closed);
        }
    }

    /// Passes a successful result on; an error is allowed only for a client in trouble.
    fn judge<T>(&self, what: &str, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) if self.may_fail() => {
                let _ = e;
                None
            }
            Err(e) => panic!("client {}: {what}: {e}", self.client),
        }
    }

    /// An evicted client may learn of it at any of its operations, and after that of lost data, once.
    fn may_fail(&self) -> bool {
        self.story.hazard == Hazard::Eviction
    }

    /// Ends a write that went to a server.
    fn end_through(&self, what: &str, id: OperationId, result: Result<(), Errno>) {
        match self.judge(what, result) {
            Some(()) => self.story.with(|h| h.end_write_through(id)),
            None => self.story.with(|h| h.fail(id)),
        }
    }

    fn end_read(&self, what: &str, id: OperationId, result: Result<u64, Errno>) {
        match self.judge(what, result) {
            Some(value) => self.story.with(|h| h.end_read(id, value)),
            None => self.story.with(|h| h.fail(id)),
        }
    }

    async fn write_slots(&mut self, file: u32, slot: u32, count: u32) {
        let size = self.story.slot_size[file as usize];
        let values: Vec<u64> = (0..count).map(|_| self.story.new_value()).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| repeated(*v, size)).collect();
        let begin = |h: &mut History| -> Vec<OperationId> {
            let slots = (slot..).zip(&values);
            slots.map(|(slot, value)| h.begin_write(self.me(), Register { file, slot }, *value)).collect()
        };
        let ids = self.story.with(begin);
        let (at, len) = (u64::from(slot) * size as u64, bytes.len());
        let result = self.fs().write(&self.files[file as usize], at, Payload::from(bytes)).await;
        let written = self.judge("write", result).inspect(|n| assert_eq!(*n, len, "a short write"));
        for id in ids {
            self.story.with(|h| if written.is_some() { h.end_write(id) } else { h.fail(id) });
        }
    }

    async fn read_slots(&mut self, file: u32, slot: u32, count: u32) {
        let size = self.story.slot_size[file as usize];
        let begin = |h: &mut History| -> Vec<OperationId> {
            (slot..slot + count).map(|slot| h.begin_read(self.me(), Register { file, slot })).collect()
        };
        let ids = self.story.with(begin);
        let (at, len) = (u64::from(slot) * size as u64, count as usize * size);
        let result = self.fs().read(&self.files[file as usize], at, len).await;
        let bytes = self.judge("read", result).map(|p| {
            let mut bytes = p.to_bytes().to_vec();
            bytes.resize(len, 0);
            bytes
        });
        for (n, id) in ids.into_iter().enumerate() {
            match &bytes {
                Some(bytes) => {
                    let value = uniform(&bytes[n * size..(n + 1) * size]);
                    let value = value.unwrap_or_else(|| panic!("file {file}, slot {}: torn", slot + n as u32));
                    self.story.with(|h| h.end_read(id, value));
                }
                None => self.story.with(|h| h.fail(id)),
            }
        }
    }

    async fn sync(&mut self, file: u32) {
        let moment = self.story.with(|h| h.now());
        let result = self.fs().fsync(&self.files[file as usize], false).await;
        match self.judge("fsync", result) {
            Some(()) => self.story.with(|h| h.synced(self.me(), file, moment)),
            None => self.story.with(|h| h.reported_lost(self.me(), file)),
        }
    }

    async fn append(&mut self) {
        let value = self.story.new_value();
        let appended = Appended { client: self.client, process: self.process, certain: false };
        self.story.state.lock().appended.insert(value, appended);
        let written = self.fs().write(&self.log, 0, Payload::from(repeated(value, RECORD))).await;
        let whole = self.judge("append", written).is_some_and(|n| n == RECORD);
        // Records of a client that may be evicted count as certain only when they are on the server.
        let synced = !self.may_fail() || self.fs().fsync(&self.log, false).await.is_ok();
        if let Some(appended) = self.story.state.lock().appended.get_mut(&value) {
            appended.certain = whole && synced;
        }
    }

    async fn write_size(&mut self) {
        let size = self.story.new_value();
        let id = self.story.with(|h| h.begin_write(self.me(), SIZES, size));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let result = self.fs().setattr(&self.cred, self.story.sizes, set, None).await;
        self.end_through("truncate", id, result.map(drop));
    }

    async fn read_size(&mut self) {
        let id = self.story.with(|h| h.begin_read(self.me(), SIZES));
        let result = self.fs().getattr(&self.cred, self.story.sizes).await;
        self.end_read("stat", id, result.map(|a| a.size));
    }

    /// Creates a file and renames it to the shared name.
    async fn write_name(&mut self) {
        let name = format!("t{}-{}", self.client, self.story.new_value()).into_bytes();
        let made = self.fs().mknod(&self.cred, Fid::ROOT, &name, S_IFREG | 0o644, 0, 0).await;
        let Some(attr) = self.judge("mknod", made) else { return };
        let id = self.story.with(|h| h.begin_write(self.me(), NAME, value_of(attr.fid)));
        let result = self.fs().rename(&self.cred, Fid::ROOT, &name, Fid::ROOT, b"current", 0).await;
        self.end_through("rename", id, result);
    }

    async fn read_name(&mut self) {
        let id = self.story.with(|h| h.begin_read(self.me(), NAME));
        let value = match self.fs().lookup(&self.cred, Fid::ROOT, b"current").await {
            Ok(attr) => Ok(value_of(attr.fid)),
            Err(Errno::ENOENT) => Ok(INITIAL),
            Err(e) => Err(e),
        };
        self.end_read("lookup", id, value);
    }

    async fn write_xattr(&mut self) {
        let value = self.story.new_value();
        let id = self.story.with(|h| h.begin_write(self.me(), XATTR, value));
        let bytes = value.to_le_bytes();
        let result = self.fs().setxattr(&self.cred, self.story.sizes, b"user.value", &bytes, 0).await;
        self.end_through("setxattr", id, result);
    }

    async fn read_xattr(&mut self) {
        let id = self.story.with(|h| h.begin_read(self.me(), XATTR));
        let value = match self.fs().getxattr(&self.cred, self.story.sizes, b"user.value").await {
            Ok(bytes) => Ok(uniform(&bytes).unwrap_or_else(|| panic!("a torn attribute: {bytes:02x?}"))),
            Err(Errno::ENODATA) => Ok(INITIAL),
            Err(e) => Err(e),
        };
        self.end_read("getxattr", id, value);
    }
}

/// A number unique to this FID.
fn value_of(fid: Fid) -> u64 {
    (fid.seq << 24) ^ u64::from(fid.oid)
}

const S_IFREG: u32 = 0o100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_seeds_of_each_hazard() {
        for seed in 0..2 * Hazard::ALL.len() as u64 {
            println!("seed {seed}: {:?}", Hazard::of_seed(seed));
            run_seed(seed, 60);
        }
    }

    /// A living client was called back while it waited, elsewhere, for locks of dead ones, whose time to answer had begun
    /// no sooner than its own: it was evicted first.
    #[test]
    fn who_waits_for_the_lock_of_a_dead_client_is_not_evicted_with_it() {
        run_hazard(Hazard::Deaths, 300_463, 80);
    }

    #[test]
    fn losses_and_doubles_in_the_log_are_found() {
        let appended =
            |certain| [(1, Appended { client: 0, process: 0, certain })].into_iter().collect::<BTreeMap<_, _>>();
        check_log(&repeated(1, RECORD), &appended(true));
        check_log(&[], &appended(false));
        assert!(std::panic::catch_unwind(|| check_log(&[], &appended(true))).is_err());
        assert!(std::panic::catch_unwind(|| check_log(&repeated(1, 2 * RECORD), &appended(true))).is_err());
        assert!(std::panic::catch_unwind(|| check_log(&repeated(0, RECORD), &appended(true))).is_err());
    }
}
