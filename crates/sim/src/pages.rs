//! Programs on several mounts that load, store, read and write numbers of one file, each mount being the production door and client
//! behind a model of the kernel: every number is one that the file held at that moment, nobody waits for ever, and nobody is
//! evicted.

mod registers;

use crate::cluster::{Cluster, Server, run};
use crate::scenario::{self, Trouble};
use async_trait::async_trait;
use bytes::Bytes;
use nacre_base::{Errno, Fid, Prng};
use nacre_client::open_flags::{O_CREAT, O_RDWR};
use nacre_fuse::reply::OpenFlags;
use nacre_fuse::{Notice, Obey, Told, VirtualDoor};
use nacre_kernel_model::{self as kernel_model, Attributes, File, Kernel, Opened, PAGE};
use nacre_osd::mem::Crash;
use nacre_rt::{Rt, SimStats};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use parking_lot::Mutex;
use registers::Registers;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(20_000);
/// Time after the last crash within which everybody has recovered.
const SETTLED: Duration = Duration::from_secs(100);
const NAME: &[u8] = b"f";
/// Node of the root directory.
const ROOT: u64 = 1;
const O_RDONLY: u32 = 0;
/// Numbers in each page.
const NUMBERS: u64 = 3;
/// Bytes of the file at the beginning: three stripes and a half.
const SIZE: u64 = 7 * STRIPE_SIZE_MIN as u64 / 2;

/// What a run is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    mounts: u32,
    programs: usize,
    stripes: i32,
    /// Pages that are used; fewer are fought for.
    pages: u64,
    /// True if the size changes.
    resizes: bool,
    /// How often a server of objects dies, and is started again.
    crashes: u32,
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Course { mounts, programs, stripes, pages, resizes, crashes } = self;
        let resizes = if *resizes { ", resized" } else { "" };
        write!(
            f,
            "{mounts} mounts of {programs} programs, {stripes} stripes, {pages} pages{resizes}, {crashes} crashes"
        )
    }
}

impl Course {
    /// The course that `seed` draws.
    pub fn of_seed(seed: u64) -> Course {
        let mut prng = Prng::new(seed ^ 0x7061_6765_7300);
        Course {
            mounts: prng.range(1, 4) as u32,
            programs: prng.range(1, 4) as usize,
            stripes: prng.range(1, 3) as i32,
            pages: *prng.pick(&[1, 2, 5, 40]),
            resizes: prng.one_in(3),
            crashes: if prng.one_in(3) { prng.range(1, 3) as u32 } else { 0 },
        }
    }
}

/// Runs `seed`: panics if anything is wrong.
pub fn run_seed(seed: u64, steps: u32) -> SimStats {
    let course = Course::of_seed(seed);
    let builder = Cluster::builder().oss(2).clients(course.mounts).network(scenario::network(Trouble::Calm, seed));
    run(seed, LIMIT, builder, move |cluster| async move { Box::pin(tell(cluster, course, seed, steps)).await }).1
}

async fn tell(cluster: Arc<Cluster>, course: Course, seed: u64, steps: u32) {
    let maker = cluster.client(0);
    let (end, stripe_size, stripe_count, stripe_offset) = (u64::MAX, STRIPE_SIZE_MIN, course.stripes, -1);
    let component = ComponentSpec { end, stripe_size, stripe_count, stripe_offset, ..ComponentSpec::default() };
    let layout = Some(LayoutSpec { components: vec![component] });
    let made = maker.create(&Credentials::root(), Fid::ROOT, NAME, O_RDWR | O_CREAT, 0o644, 0, layout).await;
    let (attr, file) = made.expect("a new file");
    maker.fallocate(&file, 0, 0, SIZE).await.expect("room for the file");
    maker.release(file).await.expect("the file is closed");
    let registers = Arc::new(Mutex::new(Registers::new(SIZE)));
    let mut mounts = Vec::new();
    for n in 0..course.mounts as usize {
        mounts.push(Mounted::new(cluster.client_rt(n), &cluster, n, seed).await);
    }
    let mut programs = Vec::new();
    for (n, mount) in mounts.iter().enumerate() {
        for p in 0..course.programs {
            let name = format!("program {p} of mount {n}");
            let prng = Prng::new(seed ^ (n as u64 + 1) << 32 ^ (p as u64 + 1) << 48);
            let (mount, registers, resizes) = (mount.clone(), registers.clone(), course.resizes && n == 0);
            let program = Program { mount, registers, course, resizes, name, prng, files: Vec::new() };
            programs.push(cluster.rt().spawn(program.run(steps)));
        }
    }
    let mut prng = Prng::new(!seed);
    for _ in 0..course.crashes {
        cluster.rt().sleep(Duration::from_millis(prng.below(700))).await;
        let server = *prng.pick(&[Server::Oss(0), Server::Oss(1)]);
        cluster.crash(server, Crash::Process);
        cluster.rt().sleep(Duration::from_millis(prng.below(3000))).await;
        cluster.restart(server).await.expect("the server starts again");
    }
    for program in programs {
        program.await;
    }
    cluster.rt().sleep(SETTLED).await;
    let reader = cluster.client(0);
    let file = reader.open(&Credentials::root(), attr.fid, O_RDONLY).await.expect("the file is there");
    let places = registers.lock().places();
    for place in places {
        let begin = registers.lock().now();
        let bytes = reader.read(&file, place, 8).await.expect("the file can be read").to_bytes();
        if let Ok(number) = (&*bytes).try_into() {
            registers.lock().check(place, u64::from_le_bytes(number), begin, "a client, in the end,");
        }
    }
    reader.release(file).await.expect("the file is closed");
    for client in 0..cluster.client_count() {
        for server in cluster.servers() {
            let evictions = cluster.evictions(client, server).unwrap_or(0);
            assert_eq!(evictions, 0, "{server:?} evicted client {client}, which did not give its pages up");
        }
    }
    cluster.check_locks().expect("sound lock tables");
    cluster.stop().await;
    cluster.check_storage().await;
}

/// A mount: a kernel, and the door and client behind it.
struct Mounted {
    rt: Rt,
    kernel: Arc<Kernel>,
    node: u64,
}

/// The kernel's server, and the server's kernel.
struct Behind(VirtualDoor);

#[derive(Default)]
struct Before(OnceLock<Arc<Kernel>>);

#[async_trait]
impl Obey for Before {
    async fn obey(&self, notice: Notice) -> Result<(), Errno> {
        match (notice, self.0.get()) {
            (Notice::Inode { node, offset, len }, Some(kernel)) => kernel.inval_inode(node, offset, len).await,
            _ => Ok(()),
        }
    }
}

impl Mounted {
    async fn new(rt: &Rt, cluster: &Cluster, client: usize, seed: u64) -> Arc<Mounted> {
        let before = Arc::new(Before::default());
        let door = VirtualDoor::new(rt, cluster.client(client).clone(), before.clone());
        let told = door.lookup(ROOT, NAME).await.expect("the file has a name");
        let kernel = Kernel::new(rt, Arc::new(Behind(door)), seed ^ client as u64);
        kernel.looked_up(told.node, attributes(told));
        let _ = before.0.set(kernel.clone());
        Arc::new(Mounted { rt: rt.clone(), kernel, node: told.node })
    }
}

fn attributes(Told { size, mtime, valid, .. }: Told) -> Attributes {
    Attributes { size, mtime, valid }
}

#[async_trait]
impl kernel_model::Server for Behind {
    async fn get_attr(&self, node: u64) -> Result<Attributes, Errno> {
        self.0.get_attr(node).await.map(attributes)
    }
    async fn set_size(&self, node: u64, handle: u64, size: u64) -> Result<Attributes, Errno> {
        self.0.set_size(node, handle, size).await.map(attributes)
    }
    async fn open(&self, node: u64, flags: u32) -> Result<Opened, Errno> {
        let (handle, flags) = self.0.open(node, flags).await?;
        let (direct, keeps) = (flags.contains(OpenFlags::DIRECT_IO), flags.contains(OpenFlags::KEEP_CACHE));
        Ok(Opened { handle, direct, keeps })
    }
    async fn read(&self, node: u64, handle: u64, offset: u64, size: u64, fills: bool) -> Result<Bytes, Errno> {
        self.0.read(node, handle, offset, size as u32, fills).await
    }
    async fn write(&self, node: u64, handle: u64, offset: u64, data: Bytes, stored: bool) -> Result<usize, Errno> {
        self.0.write(node, handle, offset, data, stored).await
    }
    async fn flush(&self, node: u64, handle: u64) -> Result<(), Errno> {
        self.0.flush(node, handle).await
    }
    async fn fsync(&self, node: u64, handle: u64) -> Result<(), Errno> {
        self.0.fsync(node, handle).await
    }
    async fn release(&self, node: u64, handle: u64) -> Result<(), Errno> {
        self.0.release(node, handle).await
    }
}

/// A program with some open files.
struct Program {
    mount: Arc<Mounted>,
    registers: Arc<Mutex<Registers>>,
    course: Course,
    /// True if this program changes the size, which only those of one mount do: while two change it at the same time, neither kernel writes
    /// the pages out that the other one waits for.
    resizes: bool,
    name: String,
    prng: Prng,
    /// Open files, and whether they are open for reading and writing.
    files: Vec<(File, bool)>,
}

impl Program {
    async fn run(mut self, steps: u32) {
        for _ in 0..steps {
            self.step().await;
            if self.prng.one_in(3) {
                self.mount.rt.sleep(Duration::from_micros(self.prng.below(3000))).await;
            }
        }
        while !self.files.is_empty() {
            self.close().await;
        }
    }

    async fn step(&mut self) {
        match self.prng.below(24) {
            _ if self.files.is_empty() => self.open().await,
            0 => self.open().await,
            1 => self.close().await,
            2 => self.mount.kernel.reclaim(self.mount.node).await,
            3 => self.sync().await,
            4 => self.stat().await,
            5 if self.resizes => self.resize().await,
            6..12 => self.load().await,
            12..18 => self.store().await,
            18..21 => self.read().await,
            _ => self.write().await,
        }
    }

    async fn open(&mut self) {
        let stores = self.prng.one_in(2);
        let flags = if stores { O_RDWR } else { O_RDONLY };
        let file = self.mount.kernel.open(self.mount.node, flags).await.expect("the file can be opened");
        if self.prng.one_in(2) {
            self.mount.kernel.map(&file).await;
        }
        self.files.push((file, stores));
    }

    async fn close(&mut self) {
        if let Some(at) = self.any_file() {
            let (file, _) = self.files.swap_remove(at);
            let closed = self.mount.kernel.close(file).await;
            assert!(closed.is_ok() || self.course.resizes, "{} closes: {closed:?}", self.name);
        }
    }

    fn any_file(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.prng.below(self.files.len() as u64) as usize)
    }

    /// A place of a number, and an open file that allows what is wanted.
    fn place(&mut self, stores: bool) -> Option<(u64, usize)> {
        let fits: Vec<usize> = (0..self.files.len()).filter(|n| self.files[*n].1 || !stores).collect();
        let at = *fits.get(self.prng.below(fits.len().max(1) as u64) as usize)?;
        // The pages that are used lie in different stripes.
        let page = self.prng.below(self.course.pages) * 11 % (SIZE / PAGE);
        Some((page * PAGE + 8 * self.prng.below(NUMBERS), at))
    }

    /// True if a place may lie beyond the end of the file, as far as a kernel knows it.
    fn may_be_missing(&self, error: Errno) -> bool {
        self.course.resizes && error == Errno::EFAULT
    }

    async fn load(&mut self) {
        let Some((place, at)) = self.place(false) else { return };
        let (registers, name) = (&self.registers, &self.name);
        let check = |value| {
            let mut registers = registers.lock();
            let now = registers.now();
            registers.check(place, value, now, name);
        };
        match self.mount.kernel.load(&self.files[at].0, place, check).await {
            Err(error) if !self.may_be_missing(error) => panic!("{name} loads at {place}: {error}"),
            _ => {}
        }
    }

    async fn store(&mut self) {
        let Some((place, at)) = self.place(true) else { return };
        let value = self.registers.lock().new_value();
        let (registers, name) = (&self.registers, &self.name);
        let store = || registers.lock().stored(place, value, &format!("{name} (store)"));
        match self.mount.kernel.store(&self.files[at].0, place, value, store).await {
            Err(error) if !self.may_be_missing(error) => panic!("{name} stores at {place}: {error}"),
            _ => {}
        }
    }

    async fn read(&mut self) {
        let Some((place, at)) = self.place(false) else { return };
        // Some reads span pages, perhaps of several stripes.
        let from = if self.prng.one_in(3) { place.saturating_sub(9 * PAGE) } else { place };
        let begin = self.registers.lock().now();
        let read = self.mount.kernel.read(&self.files[at].0, from, place + 8 - from).await;
        let bytes = read.unwrap_or_else(|error| panic!("{} reads at {place}: {error}", self.name));
        match bytes.get((place - from) as usize..).and_then(|bytes| bytes.try_into().ok()) {
            Some(number) => self.registers.lock().check(place, u64::from_le_bytes(number), begin, &self.name),
            None => assert!(self.course.resizes, "{} finds no number at {place}", self.name),
        }
    }

    async fn write(&mut self) {
        let Some((place, at)) = self.place(true) else { return };
        // Where the size changes the file always ends with a page: what is stored behind its end may be lost.
        let places: Vec<u64> = match self.course.resizes {
            true => (0..NUMBERS).map(|n| place - place % PAGE + 8 * n).collect(),
            false => vec![place],
        };
        let begun: Vec<_> = {
            let mut registers = self.registers.lock();
            let begin = |place: &u64| {
                let value = registers.new_value();
                (*place, value, registers.begin_write(*place, value, &self.name))
            };
            places.iter().map(begin).collect()
        };
        let mut data: Vec<u8> = begun.iter().flat_map(|(_, value, _)| value.to_le_bytes()).collect();
        if self.course.resizes {
            data.resize(PAGE as usize, 0);
        }
        let (first, len) = (places[0], data.len());
        let written = self.mount.kernel.write(&self.files[at].0, first, data.into()).await;
        assert_eq!(written, Ok(len), "{} writes at {first}", self.name);
        let mut registers = self.registers.lock();
        begun.into_iter().for_each(|(place, value, begin)| registers.wrote(place, value, begin, &self.name));
    }

    async fn sync(&mut self) {
        if let Some(at) = self.any_file() {
            let synced = self.mount.kernel.sync(&self.files[at].0).await;
            assert!(synced.is_ok() || self.course.resizes, "{} syncs: {synced:?}", self.name);
        }
    }

    async fn stat(&mut self) {
        if let Some(at) = self.any_file() {
            let size = self.mount.kernel.stat(&self.files[at].0).await.expect("attributes");
            assert!(self.course.resizes || size == SIZE, "{} finds a file of {size} bytes", self.name);
        }
    }

    /// Cuts the file, or makes it longer. What lay behind is zero from then on.
    async fn resize(&mut self) {
        let Some((place, at)) = self.place(true) else { return };
        let size = if self.prng.one_in(2) { SIZE } else { place - place % PAGE + PAGE };
        let begins: Vec<_> = {
            let mut registers = self.registers.lock();
            registers.begin_resize(size);
            let places = (0..SIZE / PAGE).flat_map(|page| (0..NUMBERS).map(move |n| page * PAGE + 8 * n));
            let cut: Vec<u64> = places.filter(|place| *place >= size).collect();
            cut.into_iter().map(|place| (place, registers.begin_write(place, 0, &self.name))).collect()
        };
        let done = self.mount.kernel.truncate(&self.files[at].0, size).await;
        assert_eq!(done, Ok(()), "{} sets the size to {size}", self.name);
        let mut registers = self.registers.lock();
        begins.into_iter().for_each(|(place, begin)| registers.wrote(place, 0, begin, &self.name));
        registers.end_resize();
    }
}
