//! Object files: their names, a bounded cache of open ones, which of them are not synced, and how requests reach the
//! kernel: straight to the disk where size and alignment allow it, through the page cache otherwise.
#![allow(clippy::disallowed_methods)] // An IO edge: owns the object files.

use super::ring::{self, Request, Ring};
use crate::{AllocateMode, OBJECT_SIZE_MAX, ObjectStat, OsdError, Seek, range_end};
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use nacre_base::hash::mix64;
use nacre_base::{Errno, Fid, FxHashMap, Payload};
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Semaphore, oneshot};

/// Requests below this go through the page cache: copying is cheaper than waiting for the disk.
const DIRECT_MIN: usize = 128 * 1024;
/// Directories that objects are spread over, lest one grows too large.
const SHARDS: usize = 256;
/// Threads that requests may block at a time where there is no io_uring.
const BLOCKING_MAX: usize = 16;

/// All objects of a target.
pub(super) struct Objects {
    dir: PathBuf,
    engine: Engine,
    direct_allowed: bool,
    cache: Mutex<Cache>,
    open_max: usize,
    /// Objects with changes since the last commit. They stay open, so that an error of writing them back, which the
    /// kernel tells once and to open files only, is not missed.
    unsynced: Mutex<FxHashMap<Fid, Arc<ObjectFile>>>,
    /// Shard directories in which objects were made since the last commit.
    unsynced_shards: [AtomicBool; SHARDS],
}

/// An open object file.
pub(super) struct ObjectFile {
    file: File,
    /// The same file opened for direct I/O, at first use; `None` if it cannot be.
    direct: OnceLock<Option<File>>,
    /// Whether the file system has refused a direct request although it could open the file.
    direct_refused: AtomicBool,
    /// Changes completed, and how many of them the last sync covered.
    changes: AtomicU64,
    synced: AtomicU64,
}

enum Engine {
    Ring(Ring),
    /// The runtime's threads for blocking calls.
    Blocking(Arc<Semaphore>),
}

/// How requests reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoEngine {
    /// io_uring, or threads where the kernel lacks or forbids it.
    #[default]
    Auto,
    /// Threads.
    Threads,
}

#[derive(Default)]
struct Cache {
    /// With the time of last use, counted in uses.
    files: FxHashMap<Fid, (Arc<ObjectFile>, u64)>,
    uses: u64,
    /// Removals begun and ended: an object opened while this changed may be gone, and must not enter the cache.
    removals: u64,
}

/// Makes the directories of a target without objects.
pub(super) fn format(dir: &Path) -> Result<(), OsdError> {
    let make = || {
        fs::create_dir(dir)?;
        for shard in 0..SHARDS {
            fs::create_dir(dir.join(format!("{shard:02x}")))?;
        }
        File::open(dir)?.sync_all()
    };
    make().map_err(|e| OsdError::io("making the data directories", &e))
}

impl Objects {
    /// `open_max` bounds the files that are kept open.
    pub(super) fn open(dir: PathBuf, engine: IoEngine, direct: bool, open_max: usize) -> Result<Objects, OsdError> {
        if !dir.join("ff").is_dir() {
            return Err(OsdError::corrupt(&dir, "object directories are missing"));
        }
        let threads = || Engine::Blocking(Arc::new(Semaphore::new(BLOCKING_MAX)));
        let engine = match engine {
            IoEngine::Threads => threads(),
            IoEngine::Auto => match Ring::start("osd-io") {
                Ok(ring) => Engine::Ring(ring),
                Err(e) => {
                    tracing::info!("no io_uring ({e}): object data goes through threads");
                    threads()
                }
            },
        };
        Ok(Objects {
            dir,
            engine,
            direct_allowed: direct,
            cache: Mutex::default(),
            open_max: open_max.max(8),
            unsynced: Mutex::default(),
            unsynced_shards: std::array::from_fn(|_| AtomicBool::new(false)),
        })
    }

    /// Reads up to `len` bytes.
    pub(super) async fn read(self: &Arc<Self>, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError> {
        if len == 0 || offset >= OBJECT_SIZE_MAX {
            return Ok(Payload::new());
        }
        let len = len.min((OBJECT_SIZE_MAX - offset) as usize);
        let Some(file) = self.existing(object).await? else { return Ok(Payload::new()) };
        let direct = self.direct_allowed && len >= DIRECT_MIN && is_aligned(offset as usize) && file.can_direct();
        if direct {
            // The buffer's memory is whole blocks anyway.
            match self.read_file(&file, true, offset, len.next_multiple_of(DIRECT_IO_ALIGNMENT)).await {
                Err(e) if refuses_direct(&e) => file.direct_refused.store(true, Ordering::Relaxed),
                other => return payload(other, len),
            }
        }
        payload(self.read_file(&file, false, offset, len).await, len)
    }

    /// Writes all of `data`; true if so much is unsynced now that a commit should come soon.
    pub(super) async fn write(self: &Arc<Self>, object: Fid, offset: u64, data: Payload) -> Result<bool, OsdError> {
        range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(false);
        }
        let file = self.existing_or_new(object).await?;
        let mut written = Err(io::ErrorKind::InvalidInput.into());
        let mut direct = self.direct_allowed && can_write_direct(offset, &data) && file.can_direct();
        if direct {
            written = self.write_file(&file, true, offset, data.clone()).await;
            if written.as_ref().is_err_and(refuses_direct) {
                file.direct_refused.store(true, Ordering::Relaxed);
                direct = false;
            }
        }
        if !direct {
            written = self.write_file(&file, false, offset, data).await;
        }
        written.map_err(|e| OsdError::io("write", &e))?;
        Ok(self.changed(object, file))
    }

    pub(super) async fn truncate(self: &Arc<Self>, object: Fid, size: u64) -> Result<(), OsdError> {
        range_end(size, 0)?;
        let file = self.existing_or_new(object).await?;
        let f = file.clone();
        blocking("truncate", move || f.file.set_len(size)).await?;
        self.changed(object, file);
        Ok(())
    }

    pub(super) async fn punch(self: &Arc<Self>, object: Fid, range: Range<u64>) -> Result<(), OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(()) };
        let f = file.clone();
        let punched = blocking("punch", move || punch(&f.file, range)).await;
        self.changed(object, file);
        punched
    }

    pub(super) async fn allocate(
        self: &Arc<Self>,
        object: Fid,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<(), OsdError> {
        let file = self.existing_or_new(object).await?;
        let f = file.clone();
        let allocated = blocking("allocate", move || allocate(&f.file, &range, mode)).await;
        self.changed(object, file);
        allocated
    }

    pub(super) async fn seek(self: &Arc<Self>, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError> {
        if offset > OBJECT_SIZE_MAX {
            return Ok(None);
        }
        let Some(file) = self.existing(object).await? else { return Ok(None) };
        let whence = match what {
            Seek::Data => libc::SEEK_DATA,
            Seek::Hole => libc::SEEK_HOLE,
        };
        blocking("seek", move || {
            // SAFETY: lseek touches no memory of ours. Nobody uses the file's position.
            match unsafe { libc::lseek(file.file.as_raw_fd(), offset as i64, whence) } {
                -1 => Err(io::Error::last_os_error()).or_else(|e| none_if(e, libc::ENXIO)),
                found => Ok(Some(found as u64)),
            }
        })
        .await
    }

    pub(super) async fn stat(self: &Arc<Self>, object: Fid) -> Result<Option<ObjectStat>, OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(None) };
        // The inode of an open file is in memory: this does not block.
        let m = file.file.metadata().map_err(|e| OsdError::io("stat", &e))?;
        Ok(Some(ObjectStat { size: m.len(), blocks: m.blocks() }))
    }

    /// Makes one object's data durable. An error poisons the device: the caller sees to that.
    pub(super) async fn sync(self: &Arc<Self>, object: Fid) -> Result<(), OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(()) };
        let upto = file.changes.load(Ordering::Acquire);
        if file.synced.load(Ordering::Acquire) >= upto {
            return Ok(());
        }
        let synced = match &self.engine {
            Engine::Ring(ring) => {
                let (reply, outcome) = oneshot::channel();
                ring.submit(Request::Sync { file: file.clone(), reply });
                received(outcome).await
            }
            Engine::Blocking(_) => {
                let f = file.clone();
                run_blocking(move || f.file.sync_data()).await
            }
        };
        synced.map_err(|e| OsdError::io(SYNC, &e))?;
        file.synced.fetch_max(upto, Ordering::AcqRel);
        Ok(())
    }

    pub(super) async fn remove(self: &Arc<Self>, object: Fid) -> Result<(), OsdError> {
        let this = self.clone();
        blocking("remove", move || {
            this.forget(object);
            let removed =
                fs::remove_file(this.path(object)).or_else(|e| none_if(e, libc::ENOENT).map(|_: Option<()>| ()));
            // Who opened it in between has put it into the cache by now, or will see that the number has changed.
            this.forget(object);
            removed
        })
        .await
    }

    pub(super) async fn list(self: &Arc<Self>) -> Result<Vec<Fid>, OsdError> {
        let this = self.clone();
        blocking("listing objects", move || {
            let mut all = Vec::new();
            for shard in 0..SHARDS {
                for entry in fs::read_dir(this.dir.join(format!("{shard:02x}")))? {
                    all.extend(entry?.file_name().to_str().and_then(parse_file_name));
                }
            }
            all.sort_unstable();
            Ok(all)
        })
        .await
    }

    /// Takes over what must be synced for a commit: everything changed so far.
    pub(super) fn take_unsynced(&self) -> Unsynced {
        let files = std::mem::take(&mut *self.unsynced.lock());
        let shards = (0..SHARDS).filter(|s| self.unsynced_shards[*s].swap(false, Ordering::AcqRel));
        Unsynced { files: files.into_values().collect(), shards: shards.map(|s| self.shard(s)).collect() }
    }

    async fn read_file(&self, file: &Arc<ObjectFile>, direct: bool, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        let buf = AlignedBuf::for_overwrite(len);
        let file = file.clone();
        match &self.engine {
            Engine::Ring(ring) => {
                let (reply, outcome) = oneshot::channel();
                ring.submit(Request::Read { file, direct, offset, buf, reply });
                received(outcome).await
            }
            Engine::Blocking(threads) => {
                let _permit = threads.acquire().await;
                run_blocking(move || read_all(file.for_io(direct), offset, buf)).await
            }
        }
    }

    async fn write_file(&self, file: &Arc<ObjectFile>, direct: bool, offset: u64, data: Payload) -> io::Result<()> {
        let file = file.clone();
        match &self.engine {
            Engine::Ring(ring) => {
                let (reply, outcome) = oneshot::channel();
                ring.submit(Request::Write { file, direct, offset, data, reply });
                received(outcome).await
            }
            Engine::Blocking(threads) => {
                let _permit = threads.acquire().await;
                run_blocking(move || write_all(file.for_io(direct), offset, &data)).await
            }
        }
    }

    /// Notes a completed change. It must not be noted before: a sync that ran meanwhile would not have covered it.
    fn changed(&self, object: Fid, file: Arc<ObjectFile>) -> bool {
        file.changes.fetch_add(1, Ordering::AcqRel);
        let mut unsynced = self.unsynced.lock();
        unsynced.insert(object, file);
        unsynced.len() >= self.open_max
    }

    async fn existing(self: &Arc<Self>, object: Fid) -> Result<Option<Arc<ObjectFile>>, OsdError> {
        self.open_object(object, false).await
    }

    async fn existing_or_new(self: &Arc<Self>, object: Fid) -> Result<Arc<ObjectFile>, OsdError> {
        let missing = OsdError::Io { what: "creating an object", errno: Errno::ENOENT };
        self.open_object(object, true).await?.ok_or(missing)
    }

    async fn open_object(self: &Arc<Self>, object: Fid, create: bool) -> Result<Option<Arc<ObjectFile>>, OsdError> {
        if let Some(file) = self.cached(object) {
            return Ok(Some(file));
        }
        let this = self.clone();
        blocking("opening an object", move || this.open_file(object, create)).await
    }

    fn cached(&self, object: Fid) -> Option<Arc<ObjectFile>> {
        let mut cache = self.cache.lock();
        cache.uses += 1;
        let now = cache.uses;
        cache.files.get_mut(&object).map(|(file, used)| {
            *used = now;
            file.clone()
        })
    }

    fn open_file(&self, object: Fid, create: bool) -> io::Result<Option<Arc<ObjectFile>>> {
        let path = self.path(object);
        loop {
            let removals = self.cache.lock().removals;
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600);
            let mut file = options.open(&path);
            if file.as_ref().is_err_and(|e| matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))) {
                self.cache.lock().evict(8);
                file = options.open(&path);
            }
            if file.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                if !create {
                    return Ok(None);
                }
                file = options.create(true).open(&path);
                // Not before: a commit that ran meanwhile would not have covered the new name.
                self.unsynced_shards[shard_of(object)].store(true, Ordering::Release);
            }
            let file = Arc::new(ObjectFile::new(file?));
            let mut cache = self.cache.lock();
            if cache.removals == removals {
                cache.uses += 1;
                let now = cache.uses;
                if cache.files.len() >= self.open_max {
                    cache.evict(self.open_max - self.open_max / 8);
                }
                // Who opened it at the same time may have been first: one file for all.
                return Ok(Some(cache.files.entry(object).or_insert((file, now)).0.clone()));
            }
        }
    }

    fn forget(&self, object: Fid) {
        let mut cache = self.cache.lock();
        cache.removals += 1;
        cache.files.remove(&object);
        drop(cache);
        self.unsynced.lock().remove(&object);
    }

    fn path(&self, object: Fid) -> PathBuf {
        let mut path = self.shard(shard_of(object));
        path.push(file_name(object));
        path
    }

    fn shard(&self, shard: usize) -> PathBuf {
        self.dir.join(format!("{shard:02x}"))
    }
}

impl Cache {
    /// Keeps the `keep` most recently used.
    fn evict(&mut self, keep: usize) {
        let mut used: Vec<u64> = self.files.values().map(|(_, used)| *used).collect();
        if used.len() > keep {
            used.sort_unstable();
            let oldest_kept = used[used.len() - keep];
            self.files.retain(|_, (_, used)| *used >= oldest_kept);
        }
    }
}

impl ObjectFile {
    pub(super) fn new(file: File) -> ObjectFile {
        ObjectFile {
            file,
            direct: OnceLock::new(),
            direct_refused: AtomicBool::new(false),
            // An earlier opening may have left changes that are not synced.
            changes: AtomicU64::new(1),
            synced: AtomicU64::new(0),
        }
    }

    /// The file opened for direct I/O, if the file system can do that.
    fn direct(&self) -> Option<&File> {
        self.direct
            .get_or_init(|| {
                // By descriptor, not by name: it must be this very file. Its inode is in memory, so this is quick.
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()
            })
            .as_ref()
    }

    fn can_direct(&self) -> bool {
        !self.direct_refused.load(Ordering::Relaxed) && self.direct().is_some()
    }

    /// The file that a request goes to.
    pub(super) fn for_io(&self, direct: bool) -> &File {
        self.direct().filter(|_| direct).unwrap_or(&self.file)
    }
}

/// What a commit syncs before the index.
pub(super) struct Unsynced {
    files: Vec<Arc<ObjectFile>>,
    shards: Vec<PathBuf>,
}

/// Threads that sync at a time. File systems put syncs that come together into one journal commit.
const SYNC_THREADS: usize = 8;

impl Unsynced {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.shards.is_empty()
    }

    /// Makes it all durable. Blocks.
    pub(super) fn sync(self) -> io::Result<()> {
        let sync_file = |f: &Arc<ObjectFile>| {
            let upto = f.changes.load(Ordering::Acquire);
            if f.synced.load(Ordering::Acquire) < upto {
                f.file.sync_data()?;
                f.synced.fetch_max(upto, Ordering::AcqRel);
            }
            Ok(())
        };
        in_parallel(&self.files, sync_file)?;
        in_parallel(&self.shards, |path| File::open(path)?.sync_all())
    }
}

fn in_parallel<T: Sync>(items: &[T], f: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    if items.len() <= 2 {
        return items.iter().try_for_each(f);
    }
    std::thread::scope(|scope| {
        let chunks = items.chunks(items.len().div_ceil(SYNC_THREADS));
        let f = &f;
        let threads: Vec<_> = chunks.map(|c| scope.spawn(move || c.iter().try_for_each(f))).collect();
        let outcome = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().unwrap_or(Err(io::ErrorKind::Other.into()));
        threads.into_iter().map(outcome).fold(Ok(()), io::Result::and)
    })
}

/// What is said when making data durable failed.
pub(super) const SYNC: &str = "syncing object data";

async fn received<T>(outcome: oneshot::Receiver<io::Result<T>>) -> io::Result<T> {
    outcome.await.unwrap_or_else(|_| Err(io::Error::other("the I/O thread is gone")))
}

async fn run_blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

async fn blocking<T: Send + 'static>(
    what: &'static str,
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, OsdError> {
    run_blocking(f).await.map_err(|e| OsdError::io(what, &e))
}

fn read_all(file: &File, offset: u64, mut buf: AlignedBuf) -> io::Result<AlignedBuf> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A direct read that ended within a block has reached the end of the file and cannot go on.
            Err(e) if refuses_direct(&e) && !is_aligned(done) => break,
            Err(e) => return Err(e),
        }
    }
    buf.truncate(done);
    Ok(buf)
}

fn write_all(file: &File, offset: u64, data: &Payload) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let pieces = ring::pieces(data, done);
        let at = (offset + done as u64) as i64;
        // SAFETY: the pieces point into `data`, which is borrowed, and are only read.
        match unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32, at) } {
            0 => return Err(ErrorKind::WriteZero.into()),
            n if n > 0 => done += n as usize,
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

fn punch(file: &File, mut range: Range<u64>) -> io::Result<()> {
    let size = file.metadata()?.len();
    // "To the end" may be farther than the file system's files can reach.
    range.end = range.end.min(size.next_multiple_of(DIRECT_IO_ALIGNMENT as u64));
    if range.is_empty() {
        return Ok(());
    }
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &range)
}

fn allocate(file: &File, range: &Range<u64>, mode: AllocateMode) -> io::Result<()> {
    let keep = if mode.keeps_size() { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
    if !mode.zeroes() {
        return fallocate(file, keep, range);
    }
    match fallocate(file, libc::FALLOC_FL_ZERO_RANGE | keep, range) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            punch(file, range.clone())?;
            fallocate(file, keep, range)
        }
        other => other,
    }
}

fn fallocate(file: &File, mode: i32, range: &Range<u64>) -> io::Result<()> {
    loop {
        // SAFETY: fallocate touches no memory of ours. The range was checked to fit.
        let r =
            unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as i64, (range.end - range.start) as i64) };
        match (r, io::Error::last_os_error()) {
            (0, _) => return Ok(()),
            (_, e) if e.kind() == ErrorKind::Interrupted => {}
            (_, e) => return Err(e),
        }
    }
}

/// What was read, at most `len` bytes of it.
fn payload(read: io::Result<AlignedBuf>, len: usize) -> Result<Payload, OsdError> {
    let mut buf = read.map_err(|e| OsdError::io("read", &e))?;
    buf.truncate(len);
    Ok(bytes::Bytes::from(buf).into())
}

fn can_write_direct(offset: u64, data: &Payload) -> bool {
    let aligned = |p: &bytes::Bytes| is_aligned(p.as_ptr() as usize) && is_aligned(p.len());
    data.len() >= DIRECT_MIN && is_aligned(offset as usize) && data.pieces().iter().all(aligned)
}

fn is_aligned(n: usize) -> bool {
    n.is_multiple_of(DIRECT_IO_ALIGNMENT)
}

fn refuses_direct(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINVAL)
}

/// `None` for an error that means "there is none".
fn none_if<T>(e: io::Error, errno: i32) -> io::Result<Option<T>> {
    if e.raw_os_error() == Some(errno) { Ok(None) } else { Err(e) }
}

/// Spreads objects evenly whatever their FIDs' pattern. Frozen: it decides where objects are found.
fn shard_of(object: Fid) -> usize {
    (mix64(mix64(object.seq) ^ (u64::from(object.oid) << 32 | u64::from(object.ver))) % SHARDS as u64) as usize
}

fn file_name(object: Fid) -> String {
    format!("{:x}-{:x}-{:x}", object.seq, object.oid, object.ver)
}

fn parse_file_name(name: &str) -> Option<Fid> {
    let mut parts = name.split('-');
    let seq = u64::from_str_radix(parts.next()?, 16).ok()?;
    let oid = u32::from_str_radix(parts.next()?, 16).ok()?;
    let ver = u32::from_str_radix(parts.next()?, 16).ok()?;
    let object = Fid { seq, oid, ver };
    // Only the one name that we would give it.
    (file_name(object) == name).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_of_objects_are_frozen() {
        let object = Fid { seq: 0x2_0000_0401, oid: 0x1f, ver: 0 };
        assert_eq!(file_name(object), "200000401-1f-0");
        assert_eq!(parse_file_name("200000401-1f-0"), Some(object));
        for foreign in ["", "200000401-1f", "0200000401-1f-0", "200000401-1f-0-0", "x-y-z", "200000401-1F-0"] {
            assert_eq!(parse_file_name(foreign), None, "{foreign}");
        }
        assert_eq!(shard_of(object), 121);
        let mut count = [0; SHARDS];
        (0..25_600).for_each(|oid| count[shard_of(Fid { seq: 0x2_0000_0402, oid, ver: 0 })] += 1);
        assert!(count.iter().all(|c| (50..150).contains(c)), "uneven: {count:?}");
    }

    #[test]
    fn the_cache_keeps_the_most_recently_used() {
        let file = Arc::new(ObjectFile::new(File::open("/").unwrap()));
        let mut cache = Cache::default();
        for oid in 0..100 {
            cache.files.insert(Fid { seq: 1, oid, ver: 0 }, (file.clone(), 1000 - u64::from(oid)));
        }
        cache.evict(10);
        let mut kept: Vec<u32> = cache.files.keys().map(|f| f.oid).collect();
        kept.sort_unstable();
        assert_eq!(kept, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn only_large_and_fully_aligned_writes_go_direct() {
        let aligned = |len| bytes::Bytes::from(AlignedBuf::zeroed(len));
        let of = |pieces: &[bytes::Bytes]| {
            pieces.iter().cloned().fold(Payload::new(), |mut p, b| {
                p.push(b);
                p
            })
        };
        assert!(can_write_direct(4096, &of(&[aligned(DIRECT_MIN)])));
        assert!(can_write_direct(0, &of(&[aligned(65_536), aligned(65_536)])));
        assert!(!can_write_direct(512, &of(&[aligned(DIRECT_MIN)])));
        assert!(!can_write_direct(0, &of(&[aligned(DIRECT_MIN - 4096)])));
        assert!(!can_write_direct(0, &of(&[aligned(DIRECT_MIN), aligned(100)])));
        assert!(!can_write_direct(0, &of(&[aligned(DIRECT_MIN + 4096).slice(100..100 + DIRECT_MIN)])));
    }
}
