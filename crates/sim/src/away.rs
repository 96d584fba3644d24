//! An OST that is away for a while, stopped in order or dead, while clients work: a call that does not need it ends
//! within a bound, whatever other calls wait for. When the OST is back every call ends, and names, modes, times,
//! contents, objects and locks are as if it had never been away.

use crate::cluster::{Cluster, Server, run};
use crate::scenario::{self, Trouble};
use nacre_base::{Errno, Fid, OstIndex, Payload, Prng, Time, Timestamp};
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_client::{Client, OpenFile};
use nacre_osd::mem::Crash;
use nacre_rt::{Rt, SimStats, Task};
use nacre_wire::attr::{Credentials, SetAttr};
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How an OST goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It is stopped in order.
    Stopped,
    /// Its process dies: connections to it break.
    Killed,
    /// Its host loses power: connections to it do not break.
    PowerCut,
}

/// What else happens while the OST is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meanwhile {
    /// Nothing.
    Nothing,
    /// The MDS dies and starts again.
    MdsCrash,
    /// A client dies.
    ClientKill,
}

/// The course of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Course {
    departure: Departure,
    meanwhile: Meanwhile,
}

impl Course {
    /// The course that `seed` draws.
    pub fn of_seed(seed: u64) -> Course {
        let departures = [Departure::Stopped, Departure::Killed, Departure::PowerCut];
        let departure = departures[(seed % 3) as usize];
        let meanwhile = match seed / 3 % 4 {
            0 => Meanwhile::MdsCrash,
            1 => Meanwhile::ClientKill,
            _ => Meanwhile::Nothing,
        };
        Course { departure, meanwhile }
    }

    /// Time from which the MDT knows that the OST is away, and gives new files no objects there.
    fn is_known_after(self) -> Duration {
        match self.departure {
            Departure::Stopped | Departure::Killed => Duration::from_secs(1),
            Departure::PowerCut => Duration::from_secs(60),
        }
    }

    /// Longest time for a call that does not need the OST, if the call begins `since` after the OST went away.
    fn bound(self, since: Duration) -> Duration {
        // A lock of the client that died must be given up, or the MDS must recover.
        let trouble = match self.meanwhile {
            Meanwhile::Nothing => Duration::ZERO,
            Meanwhile::MdsCrash => Duration::from_secs(60),
            Meanwhile::ClientKill => Duration::from_secs(300),
        };
        let unknown = if since < self.is_known_after() { self.is_known_after() } else { Duration::ZERO };
        CALL_MAX + trouble + unknown
    }
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.departure, self.meanwhile)
    }
}

/// Longest call while nothing but the OST is away: a call may briefly wait for an OST whose absence is not known yet.
const CALL_MAX: Duration = Duration::from_secs(4);
/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(100_000);
/// Once the OST is back, calls that waited for it must end within this time.
const DONE_MAX: Duration = Duration::from_secs(600);
/// Time within which deferred work is done.
const SETTLED: Duration = Duration::from_secs(200);
/// Files of each client on the OST that goes away, and elsewhere.
const FILES: u64 = 3;
/// Files that are needed while the OST is away; every other one is on all OSTs.
const NEEDED: u64 = 6;
/// Files that are created on the OST while it is away.
const CREATED: usize = 20;
/// Most bytes of a file.
const SIZE_MAX: u64 = 6 * STRIPE_SIZE_MIN as u64;

/// Files on all OSTs are never shorter, so that each of their objects has data.
const WIDE_MIN: u64 = 5 * STRIPE_SIZE_MIN as u64;

/// Runs `seed`: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    let course = Course::of_seed(seed);
    let mut prng = Prng::new(seed ^ 0x6177_6179);
    let builder = Cluster::builder()
        .oss(prng.range(2, 5) as u32)
        .clients(prng.range(2, 5) as u32)
        .network(scenario::network(Trouble::Calm, seed));
    run(seed, LIMIT, builder, move |cluster| async move {
        let story = Box::pin(Story::begin(cluster, course, seed)).await;
        Box::pin(story.tell(steps)).await;
    })
    .1
}

/// A file, and its known state.
#[derive(Clone, Debug)]
struct Known {
    fid: Fid,
    content: Vec<u8>,
    mode: u32,
    /// None if the file was written to since its mtime was set.
    mtime: Option<Timestamp>,
    /// True if the file has no objects on the OST that is away.
    is_at_hand: bool,
}

struct Story {
    cluster: Arc<Cluster>,
    course: Course,
    prng: Prng,
    away: u32,
    dir: Fid,
    /// Files of each client by name. Other clients do not change them.
    files: Vec<Arc<Mutex<BTreeMap<String, Known>>>>,
    needed: Vec<Arc<Mutex<Known>>>,
}

impl Story {
    async fn begin(cluster: Arc<Cluster>, course: Course, seed: u64) -> Story {
        let mut prng = Prng::new(!seed);
        let osts = cluster.servers().len() as u64 - 2;
        let away = prng.below(osts) as u32;
        let cred = Credentials::root();
        let dir = cluster.client(0).mkdir(&cred, Fid::ROOT, b"d", 0o777, 0).await.expect("mkdir").fid;
        let mut story = Story { cluster, course, prng, away, dir, files: Vec::new(), needed: Vec::new() };
        for client in 0..story.cluster.client_count() {
            let mut files = BTreeMap::new();
            for n in 0..FILES {
                for (kind, ost) in [("away", away), ("here", (away + 1 + n as u32 % (osts as u32 - 1)) % osts as u32)] {
                    let name = format!("c{client}-{kind}{n}");
                    files.insert(name.clone(), story.make(client, &name, vec![OstIndex(ost)]).await);
                }
            }
            story.files.push(Arc::new(Mutex::new(files)));
        }
        for n in 0..NEEDED {
            // Not the client that may die.
            let client = story.prng.below(story.cluster.client_count() as u64 - 1) as usize;
            let on = if n % 2 == 0 { vec![OstIndex(away)] } else { (0..osts as u32).map(OstIndex).collect() };
            let known = story.make(client, &format!("needed{n}"), on).await;
            story.needed.push(Arc::new(Mutex::new(known)));
        }
        for client in 0..story.cluster.client_count() {
            if story.prng.one_in(2) {
                story.cluster.cancel_lru_locks(client, crate::failures::Locks::Osc);
            }
        }
        story
    }

    async fn make(&mut self, client: usize, name: &str, osts: Vec<OstIndex>) -> Known {
        let (c, cred) = (self.cluster.client(client).clone(), Credentials::root());
        let (is_at_hand, is_wide) = (!osts.contains(&OstIndex(self.away)), osts.len() > 1);
        let layout = Some(LayoutSpec { components: vec![on(osts)] });
        let flags = O_CREAT | O_EXCL | O_RDWR;
        let (attr, file) = c.create(&cred, self.dir, name.as_bytes(), flags, 0o644, 0, layout).await.expect("create");
        let least = if is_wide { WIDE_MIN } else { 1 };
        let content = bytes(&mut self.prng, least, SIZE_MAX);
        write(&c, &file, 0, &content).await;
        if self.prng.one_in(2) {
            c.fsync(&file, false).await.expect("fsync");
        }
        c.release(file).await.expect("release");
        Known { fid: attr.fid, content, mode: 0o644, mtime: None, is_at_hand }
    }

    async fn tell(mut self, steps: u32) {
        let rt = self.cluster.rt().clone();
        self.pause(3000).await;
        let server = Server::Oss(self.away);
        match self.course.departure {
            Departure::Stopped => self.cluster.stop_server(server).await,
            Departure::Killed => self.cluster.kill(server, Crash::Process),
            Departure::PowerCut => self.cluster.crash(server, Crash::PowerCut),
        }
        let gone_at = rt.now();
        if self.prng.one_in(2) {
            self.pause(10_000).await;
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut needing = self.start_needing();
        needing.extend(self.start_creating());
        let working: Vec<_> =
            (0..self.cluster.client_count()).map(|c| self.start_working(c, steps, gone_at, &over)).collect();
        self.pause(20_000).await;
        let dead = self.meanwhile().await;
        let longest = 1 << self.prng.range(10, 19);
        self.pause(longest).await;
        self.cluster.restart(server).await.expect("it starts again");
        over.store(true, Ordering::Release);
        let back_at = rt.now();
        for task in working.into_iter().chain(needing) {
            let left = DONE_MAX.saturating_sub(rt.now().since(back_at));
            assert!(
                rt.timeout(left, task).await.is_ok(),
                "somebody waits though the OST has been back for {DONE_MAX:?}"
            );
        }
        rt.sleep(SETTLED).await;
        self.check(dead).await;
        self.cluster.stop().await;
        self.cluster.check_storage().await;
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = Duration::from_millis(self.prng.range(0, most_ms));
        self.cluster.rt().sleep(pause).await;
    }

    /// Carries out the other trouble. Returns the client that died, if one did.
    async fn meanwhile(&mut self) -> Option<usize> {
        match self.course.meanwhile {
            Meanwhile::Nothing => None,
            Meanwhile::MdsCrash => {
                self.cluster.crash(Server::Mds, *self.prng.pick(&[Crash::Process, Crash::PowerCut]));
                self.pause(8000).await;
                self.cluster.restart(Server::Mds).await.expect("the MDS starts again");
                None
            }
            Meanwhile::ClientKill => {
                let client = self.cluster.client_count() - 1;
                self.cluster.kill_client(client);
                Some(client)
            }
        }
    }

    /// Starts programs that need the OST, each with a file of its own: they may wait for as long as it is away.
    fn start_needing(&mut self) -> Vec<Task> {
        let mut tasks = Vec::new();
        for known in &self.needed {
            // On a client that does not die, because writes would be lost with it.
            let clients = self.cluster.client_count() - 1;
            let client = self.cluster.client(self.prng.below(clients as u64) as usize).clone();
            let (known, rt, seed) = (known.clone(), self.cluster.rt().clone(), self.prng.next_u64());
            tasks.push(rt.spawn(async move { need(&client, &known, Prng::new(seed)).await }));
        }
        tasks
    }

    /// Starts programs that want new files on the OST, more than their client may have changes under way: none of these
    /// slots may be held while the OST is away.
    fn start_creating(&self) -> Vec<Task> {
        let layout = LayoutSpec { components: vec![on(vec![OstIndex(self.away)])] };
        let (dir, rt) = (self.dir, self.cluster.rt());
        let create = |n| {
            let (client, layout) = (self.cluster.client(0).clone(), Some(layout.clone()));
            rt.spawn(async move {
                let (name, flags) = (format!("created{n}"), O_CREAT | O_EXCL | O_RDWR);
                let made = client.create(&Credentials::root(), dir, name.as_bytes(), flags, 0o644, 0, layout).await;
                let (_, file) = made.unwrap_or_else(|e| panic!("{name}: {e}"));
                write(&client, &file, 0, name.as_bytes()).await;
                client.release(file).await.expect("release");
            })
        };
        (0..CREATED).map(create).collect()
    }

    /// Starts a program that never needs the OST.
    fn start_working(&mut self, client: usize, steps: u32, gone_at: Time, over: &Arc<AtomicBool>) -> Task {
        let worker = Worker {
            client: self.cluster.client(client).clone(),
            index: client,
            rt: self.cluster.rt().clone(),
            course: self.course,
            prng: Prng::new(self.prng.next_u64()),
            dir: self.dir,
            files: self.files[client].clone(),
            names: self.files.iter().flat_map(|f| f.lock().keys().cloned().collect::<Vec<_>>()).collect(),
            wide: self.needed.iter().skip(1).step_by(2).map(|k| k.lock().fid).collect(),
            here: (0..self.cluster.servers().len() as u64 - 2).filter(|ost| *ost != u64::from(self.away)).collect(),
            gone_at,
            made: 0,
        };
        let over = over.clone();
        // The task dies with its client.
        self.cluster.client_rt(client).spawn(async move { worker.work(steps, &over).await })
    }

    /// Checks that everything is as it was made, as seen by a client other than its maker.
    async fn check(&self, dead: Option<usize>) {
        let cred = Credentials::root();
        let living = self.cluster.client_count() - usize::from(dead.is_some());
        for (maker, files) in self.files.iter().enumerate().filter(|(maker, _)| Some(*maker) != dead) {
            let client = self.cluster.client((maker + 1) % living);
            let files = files.lock().clone();
            for (name, known) in files {
                let attr = client.lookup(&cred, self.dir, name.as_bytes()).await;
                let attr = attr.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!((attr.fid, attr.mode & 0o7777), (known.fid, known.mode), "{name}");
                if let Some(mtime) = known.mtime {
                    assert_eq!(attr.mtime, mtime, "the mtime of {name}, away: {}", !known.is_at_hand);
                }
                check_content(client, &name, &known).await;
            }
        }
        for n in 0..CREATED {
            let name = format!("created{n}");
            let attr = self.cluster.client(n % living).lookup(&cred, self.dir, name.as_bytes()).await;
            assert_eq!(attr.map(|a| a.size), Ok(name.len() as u64), "{name}");
        }
        for (n, known) in self.needed.iter().enumerate() {
            let known = known.lock().clone();
            check_content(self.cluster.client(n % living), &format!("needed{n}"), &known).await;
        }
    }
}

/// Layout of a whole file, with a stripe on each of these OSTs.
fn on(osts: Vec<OstIndex>) -> ComponentSpec {
    ComponentSpec { end: u64::MAX, stripe_size: STRIPE_SIZE_MIN, stripe_offset: -1, osts, ..Default::default() }
}

fn bytes(prng: &mut Prng, least: u64, most: u64) -> Vec<u8> {
    let (len, value) = (prng.range(least, most), prng.next_u64());
    (0..len).map(|i| (i.wrapping_mul(value) >> 32) as u8).collect()
}

async fn write(client: &Client, file: &OpenFile, offset: u64, data: &[u8]) {
    let written = client.write(file, offset, Payload::from(data.to_vec())).await;
    assert_eq!(written, Ok(data.len()));
}

async fn check_content(client: &Client, name: &str, known: &Known) {
    let file = client.open(&Credentials::root(), known.fid, O_RDWR).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    let data = client.read(&file, 0, 2 * SIZE_MAX as usize).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(data.to_bytes() == known.content, "{name}: {} bytes, not {}", data.len(), known.content.len());
    client.release(file).await.expect("release");
}

/// Reads, writes, truncates and stats a file, in turn, whether its OST is there or not.
async fn need(client: &Client, known: &Mutex<Known>, mut prng: Prng) {
    let cred = Credentials::root();
    let Known { fid, mut content, .. } = known.lock().clone();
    let least = if content.len() as u64 >= WIDE_MIN { WIDE_MIN } else { 0 };
    let file = client.open(&cred, fid, O_RDWR).await.expect("a file opens");
    for _ in 0..4 {
        match prng.below(5) {
            0 => {
                let data = client.read(&file, 0, 2 * SIZE_MAX as usize).await.expect("read");
                assert!(data.to_bytes() == content, "{fid}: {} bytes, not {}", data.len(), content.len());
            }
            1 => {
                let (offset, data) = (prng.below(SIZE_MAX / 2), bytes(&mut prng, 1, SIZE_MAX / 2));
                write(client, &file, offset, &data).await;
                let (from, to) = (offset as usize, offset as usize + data.len());
                content.resize(content.len().max(to), 0);
                content[from..to].copy_from_slice(&data);
            }
            2 => {
                let size = prng.range(least, SIZE_MAX);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                client.setattr(&cred, fid, set, None).await.expect("truncate");
                content.resize(size as usize, 0);
            }
            3 => {
                let attr = client.getattr(&cred, fid).await.expect("stat");
                assert_eq!(attr.size, content.len() as u64, "{fid}");
            }
            _ => client.fsync(&file, false).await.expect("fsync"),
        }
        known.lock().content = content.clone();
    }
    client.release(file).await.expect("release");
}

struct Worker {
    client: Arc<Client>,
    index: usize,
    rt: Rt,
    course: Course,
    prng: Prng,
    dir: Fid,
    files: Arc<Mutex<BTreeMap<String, Known>>>,
    /// Names of all clients.
    names: Vec<String>,
    /// Files on all OSTs, with a stripe on each in order; and the stripes on OSTs that are there.
    wide: Vec<Fid>,
    here: Vec<u64>,
    gone_at: Time,
    made: u32,
}

impl Worker {
    async fn work(mut self, steps: u32, over: &AtomicBool) {
        for _ in 0..steps {
            if over.load(Ordering::Acquire) {
                return;
            }
            Box::pin(self.step()).await;
            let pause = Duration::from_millis(self.prng.below(1000));
            self.rt.sleep(pause).await;
        }
    }

    /// Returns the call's answer; panics if the call does not end within its bound.
    async fn in_time<T>(&self, what: &str, call: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
        let begun = self.rt.now();
        let since = begun.since(self.gone_at);
        let bound = self.course.bound(since);
        match self.rt.timeout(bound, call).await {
            Ok(answer) => answer,
            Err(_) => {
                panic!("client {}: {what}, begun {since:?} after the OST went away, takes over {bound:?}", self.index)
            }
        }
    }

    fn any_own(&mut self) -> Option<(String, Known)> {
        let files = self.files.lock();
        let names: Vec<&String> = files.keys().collect();
        let name = names.get(self.prng.below(names.len().max(1) as u64) as usize)?;
        Some(((*name).clone(), files[*name].clone()))
    }

    async fn step(&mut self) {
        let (cred, dir, client) = (Credentials::root(), self.dir, self.client.clone());
        let Some((name, known)) = self.any_own() else { return self.create().await };
        let fid = known.fid;
        match self.prng.below(12) {
            0 => {
                let other = self.prng.pick(&self.names).clone();
                match self.in_time("lookup", Box::pin(client.lookup_promptly(&cred, dir, other.as_bytes()))).await {
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(e) => panic!("lookup: {e}"),
                }
            }
            1 => {
                let mode = self.prng.below(0o1000) as u32;
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.in_time("chmod", Box::pin(client.setattr_promptly(&cred, fid, set, None))).await.expect("chmod");
                self.change(&name, |known| known.mode = mode);
            }
            2 => {
                let mtime = Timestamp { secs: self.prng.below(1_000_000) as i64, nanos: 0 };
                let set = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
                self.in_time("utimes", Box::pin(client.setattr_promptly(&cred, fid, set, None))).await.expect("utimes");
                self.change(&name, |known| known.mtime = Some(mtime));
            }
            3 => {
                self.made += 1;
                let new = format!("c{}-renamed{}", self.index, self.made);
                let renamed = client.rename(&cred, dir, name.as_bytes(), dir, new.as_bytes(), 0);
                self.in_time("rename", Box::pin(renamed)).await.expect("rename");
                let mut files = self.files.lock();
                let known = files.remove(&name).expect("it was there");
                files.insert(new, known);
            }
            4 if self.prng.one_in(3) => {
                self.in_time("unlink", Box::pin(client.unlink(&cred, dir, name.as_bytes()))).await.expect("unlink");
                self.files.lock().remove(&name);
            }
            5 => {
                let new = format!("c{}-linked", self.index);
                let linked =
                    self.in_time("link", Box::pin(client.link_promptly(&cred, fid, dir, new.as_bytes()))).await;
                linked.expect("link");
                self.in_time("unlink", Box::pin(client.unlink(&cred, dir, new.as_bytes()))).await.expect("unlink");
            }
            6 => {
                let new = format!("c{}-dir", self.index);
                self.in_time("mkdir", Box::pin(client.mkdir(&cred, dir, new.as_bytes(), 0o755, 0)))
                    .await
                    .expect("mkdir");
                self.in_time("rmdir", Box::pin(client.rmdir(&cred, dir, new.as_bytes()))).await.expect("rmdir");
            }
            7 => {
                self.in_time("readdir", Box::pin(client.readdir_mdt(&cred, dir, 0, true, 65536)))
                    .await
                    .expect("readdir");
            }
            8 => {
                self.in_time("getstripe", Box::pin(client.getxattr(&cred, fid, b"trusted.lov")))
                    .await
                    .expect("getstripe");
            }
            9 if known.is_at_hand => self.write(&name, known).await,
            10 => self.read_part_of_wide().await,
            _ => self.create().await,
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Known)) {
        change(self.files.lock().get_mut(name).expect("nobody else removes it"));
    }

    /// Creates a file, whose objects must be writable as soon as it can be known which OSTs are there.
    async fn create(&mut self) {
        let (cred, client) = (Credentials::root(), self.client.clone());
        self.made += 1;
        let name = format!("c{}-new{}", self.index, self.made);
        let is_at_hand = self.rt.now().since(self.gone_at) > self.course.is_known_after();
        let made = client.create_promptly(&cred, self.dir, name.as_bytes(), O_CREAT | O_EXCL | O_RDWR, 0o600, 0);
        let (reported, file) = self.in_time("create", Box::pin(made)).await.expect("create");
        self.in_time("close", Box::pin(client.release(file))).await.expect("close");
        let known = Known { fid: reported.attr.fid, content: Vec::new(), mode: 0o600, mtime: None, is_at_hand };
        self.files.lock().insert(name.clone(), known.clone());
        if is_at_hand {
            self.write(&name, known).await;
        }
    }

    async fn write(&mut self, name: &str, mut known: Known) {
        let (cred, client) = (Credentials::root(), self.client.clone());
        let file = self.in_time("open", Box::pin(client.open(&cred, known.fid, O_RDWR))).await.expect("open");
        let data = bytes(&mut self.prng, 1, SIZE_MAX);
        self.in_time("write", Box::pin(write(&client, &file, 0, &data))).await;
        known.content.resize(known.content.len().max(data.len()), 0);
        known.content[..data.len()].copy_from_slice(&data);
        self.change(name, |k| (k.content, k.mtime) = (known.content.clone(), None));
        self.in_time("fsync", Box::pin(client.fsync(&file, false))).await.expect("fsync");
        let read = self.in_time("read", Box::pin(client.read(&file, 0, 2 * SIZE_MAX as usize))).await.expect("read");
        assert!(read.to_bytes() == known.content, "{name}: {} bytes, not {}", read.len(), known.content.len());
        self.in_time("close", Box::pin(client.release(file))).await.expect("close");
    }

    /// Reads one stripe. Other clients may wait for the rest of the file meanwhile, which must not delay this read.
    async fn read_part_of_wide(&mut self) {
        let (cred, client) = (Credentials::root(), self.client.clone());
        let (fid, stripe) = (*self.prng.pick(&self.wide), *self.prng.pick(&self.here));
        let file = self.in_time("open", Box::pin(client.open(&cred, fid, O_RDWR))).await.expect("open");
        let read = client.read(&file, stripe * u64::from(STRIPE_SIZE_MIN), 100);
        let read = self.in_time("read of a stripe that is there", Box::pin(read)).await.expect("read");
        assert_eq!(read.len(), 100, "the file is longer");
        self.in_time("close", Box::pin(client.release(file))).await.expect("close");
    }
}
