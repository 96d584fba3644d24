//! Object data: the files' names, a bounded cache of open objects, which parts are not synced, and how requests reach the
//! kernel: straight to the disk where size and alignment allow it, through the page cache otherwise.
#![allow(clippy::disallowed_methods)] // An IO edge: owns the object files.

use super::calls::{self, none_if, refuses_direct};
use super::file::{self, MODE, ObjectFile, Part};
use super::names::{SHARDS, file_name, parse_file_name, shard_of};
use super::options::{DiskOptions, IoEngine};
use super::pieces::{Piece, pieces};
use super::ring::{Request, Ring};
use super::unsynced::Unsynced;
use crate::io_stats::{Direction, Recorder};
use crate::parts::{DIRECT_MIN, Gathering, PARTS_MAX, PartSet, Parts};
use crate::{AllocateMode, OBJECT_SIZE_MAX, ObjectStat, OsdError, Placed, Seek, range_end};
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use nacre_base::{Errno, Fid, FxHashMap, Payload};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::{Semaphore, oneshot};

/// Threads that requests may block at a time: requests through the page cache, and all requests where there is no
/// io_uring.
const BLOCKING_MAX: usize = 16;

/// All objects of a target.
pub(super) struct Objects {
    dir: PathBuf,
    parts: Parts,
    /// The io_uring thread, if the kernel has io_uring.
    ring: Option<Ring>,
    threads: Arc<Semaphore>,
    gathering: Gathering,
    /// True if large and aligned reads bypass the page cache.
    reads_direct: bool,
    cache: Mutex<Cache>,
    open_max: usize,
    /// Parts with changes since the last commit. They stay open, because the kernel reports an error of writing them
    /// back only once, and only to open files.
    unsynced: Mutex<FxHashMap<(Fid, usize), Arc<Part>>>,
    /// Shard directories in which files were made since the last commit.
    unsynced_shards: [AtomicBool; SHARDS],
    /// Objects of which a crash has left parts without the first one, as far as they were found.
    remains: Mutex<BTreeSet<Fid>>,
    recorder: Arc<Recorder>,
}

/// A request for data on its way to the kernel and back; it ends, and is counted, when this is dropped.
struct UnderWay {
    recorder: Arc<Recorder>,
    direction: Direction,
    bytes: u64,
    in_flight: usize,
    begun: Instant,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.recorder.end(self.direction, self.bytes, self.begun.elapsed(), self.in_flight);
    }
}

#[derive(Default)]
struct Cache {
    /// Open objects, with the time of last use, counted in uses.
    files: FxHashMap<Fid, (Arc<ObjectFile>, u64)>,
    /// Parts of these objects that were open at the last count.
    parts: usize,
    uses: u64,
    /// Removals begun and ended: an object opened while this changed may be gone, and must not enter the cache.
    removals: u64,
}

/// The outcome of a request to the ring, to be waited for.
type Outcome<T> = oneshot::Receiver<io::Result<T>>;

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
    pub(super) fn open(
        dir: PathBuf,
        parts: Parts,
        gathering: Gathering,
        options: &DiskOptions,
        open_max: usize,
        recorder: Arc<Recorder>,
    ) -> Result<Objects, OsdError> {
        if !dir.join("ff").is_dir() {
            return Err(OsdError::corrupt(&dir, "object directories are missing"));
        }
        let ring = match options.io_engine {
            IoEngine::Threads => None,
            IoEngine::Auto => Ring::start("osd-io")
                .inspect_err(|e| tracing::info!("no io_uring ({e}): object data goes through threads"))
                .ok(),
        };
        Ok(Objects {
            dir,
            parts,
            ring,
            threads: Arc::new(Semaphore::new(BLOCKING_MAX)),
            gathering: if options.direct_io { gathering } else { gathering.all() },
            reads_direct: options.direct_io,
            cache: Mutex::default(),
            open_max: open_max.max(8),
            unsynced: Mutex::default(),
            unsynced_shards: std::array::from_fn(|_| AtomicBool::new(false)),
            remains: Mutex::default(),
            recorder,
        })
    }

    /// A request begins.
    fn under_way(&self, direction: Direction, bytes: u64) -> UnderWay {
        let recorder = self.recorder.clone();
        UnderWay { in_flight: recorder.begin(direction), recorder, direction, bytes, begun: Instant::now() }
    }

    /// Reads up to `len` bytes.
    pub(super) async fn read(self: &Arc<Self>, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError> {
        if len == 0 || offset >= OBJECT_SIZE_MAX {
            return Ok(Payload::new());
        }
        let end = offset.saturating_add(len as u64).min(OBJECT_SIZE_MAX);
        let Some(file) = self.existing(object).await? else { return Ok(Payload::new()) };
        // All begin before the first is waited for.
        let begun: Vec<_> =
            self.parts.split(offset..end).map(|(n, range)| (self.begin_read(file.part(n), &range), range)).collect();
        let (mut data, mut is_short) = (Payload::new(), false);
        for (read, range) in begun {
            let mut piece = match read {
                Some(read) => read.finish(self, &range).await.map_err(|e| OsdError::io("read", &e))?,
                None => Payload::new(),
            };
            let wanted = (range.end - range.start) as usize;
            assert!(piece.len() <= wanted, "{} bytes were read, {wanted} asked for", piece.len());
            let missing = wanted - piece.len();
            is_short |= missing > 0;
            piece.append(Payload::zeroes(missing));
            data.append(piece);
        }
        if is_short {
            // A part ended: a hole if others reach beyond, else the object's end.
            let size = file.stat().map_err(|e| OsdError::io("read", &e))?.size;
            data.truncate(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        }
        Ok(data)
    }

    /// Writes all extents. Returns true if so much is unsynced now that a commit should come soon. Extents that go
    /// through the page cache are written in one job of one thread: handing over a small one costs more than writing
    /// it, and the kernel's ring would hand over each.
    pub(super) async fn write(self: &Arc<Self>, object: Fid, extents: Vec<(u64, Payload)>) -> Result<bool, OsdError> {
        for (offset, data) in &extents {
            range_end(*offset, data.len() as u64)?;
        }
        let pieces = pieces(extents, self.parts, self.gathering);
        if pieces.is_empty() {
            return Ok(false);
        }
        let touched: PartSet = pieces.iter().map(|piece| piece.part).collect();
        let file = self.with_parts(object, touched).await?;
        self.write_pieces(&file, pieces).await.map_err(|e| OsdError::io("write", &e))?;
        Ok(self.changed(object, &file, touched))
    }

    async fn write_pieces(&self, file: &Arc<ObjectFile>, pieces: Vec<Piece>) -> io::Result<()> {
        let is_direct = |piece: &Piece| piece.direct && file.part(piece.part).is_some_and(|part| part.can_direct());
        let (direct, mut cached): (Vec<_>, Vec<_>) = pieces.into_iter().partition(is_direct);
        let Some(ring) = &self.ring else {
            let direct = direct.into_iter().map(|piece| Piece { direct: true, ..piece });
            cached.iter_mut().for_each(|piece| piece.direct = false);
            return self.write_blocking(file, direct.chain(cached).collect()).await;
        };
        let begin = |piece: Piece| {
            let (reply, outcome) = oneshot::channel();
            let part = file.part(piece.part).expect("a part that takes direct requests is there").clone();
            let (offset, data) = (piece.offset, piece.data.clone());
            ring.submit(Request::Write { file: part, direct: true, offset, data, reply });
            let under_way = self.under_way(Direction::Write, piece.data.len() as u64);
            (piece, outcome, under_way)
        };
        let begun: Vec<(Piece, Outcome<()>, UnderWay)> = direct.into_iter().map(begin).collect();
        cached.iter_mut().for_each(|piece| piece.direct = false);
        let mut written = self.write_blocking(file, cached).await;
        let mut refused = Vec::new();
        for (piece, outcome, under_way) in begun {
            let outcome = received(outcome).await;
            drop(under_way);
            match outcome {
                Err(e) if refuses_direct(&e) => refused.push(Piece { direct: false, ..piece }),
                other => written = written.and(other),
            }
        }
        refused.iter().filter_map(|piece| file.part(piece.part)).for_each(|part| part.refused_direct());
        written?;
        self.write_blocking(file, refused).await
    }

    /// Writes pieces one after another on one thread.
    async fn write_blocking(&self, file: &Arc<ObjectFile>, pieces: Vec<Piece>) -> io::Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let (file, how) = (file.clone(), (self.parts, self.gathering));
        let _permit = self.threads.acquire().await;
        let bytes = pieces.iter().map(|piece| piece.data.len() as u64).sum();
        let _under_way = self.under_way(Direction::Write, bytes);
        run_blocking(move || {
            pieces.into_iter().try_for_each(|Piece { part, offset, data, direct }| {
                let part = file.part(part).ok_or(ErrorKind::NotFound)?;
                if !direct {
                    return file.write_cached(how, part, offset, &data);
                }
                match calls::write_all(part.for_io(true), offset, &data) {
                    Err(e) if refuses_direct(&e) => {
                        part.refused_direct();
                        file.write_cached(how, part, offset, &data)
                    }
                    other => other,
                }
            })
        })
        .await
    }

    pub(super) async fn truncate(self: &Arc<Self>, object: Fid, size: u64) -> Result<(), OsdError> {
        range_end(size, 0)?;
        let file = self.with_parts(object, PartSet::FIRST).await?;
        let f = file.clone();
        blocking("truncate", move || f.set_len(size)).await?;
        self.changed(object, &file, file.parts().map(|(n, _)| n).collect());
        Ok(())
    }

    pub(super) async fn punch(self: &Arc<Self>, object: Fid, range: Range<u64>) -> Result<(), OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(()) };
        let touched = self.parts.touched(&range);
        let f = file.clone();
        let punched = blocking("punch", move || {
            // A part already has holes where the other parts have their regions.
            let mut parts = touched.iter().filter_map(|n| f.part(n));
            parts.try_for_each(|part| calls::punch(part.for_io(false), range.clone()))
        });
        let punched = punched.await;
        self.changed(object, &file, touched);
        punched
    }

    /// The caller has made sure that there is space.
    pub(super) async fn allocate(
        self: &Arc<Self>,
        object: Fid,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<(), OsdError> {
        let touched = self.parts.touched(&range);
        let file = self.with_parts(object, touched).await?;
        let (f, parts) = (file.clone(), self.parts);
        let allocated = blocking("allocate", move || {
            let allocate = |n: usize, range: Range<u64>, mode| {
                let part = f.part(n).ok_or(ErrorKind::NotFound)?;
                calls::allocate(part.for_io(false), &range, mode)
            };
            // The last piece first: it alone makes the object longer, and fails if files cannot reach so far.
            let last = range.end - 1;
            let last_start = (parts.region_end(last).saturating_sub(crate::REGION_BYTES)).max(range.start);
            let last_start = if parts.count() == 1 { range.start } else { last_start };
            allocate(parts.of(last), last_start..range.end, mode)?;
            parts.split(range.start..last_start).try_for_each(|(n, range)| allocate(n, range, mode.keeping_size()))
        });
        let allocated = allocated.await;
        self.changed(object, &file, touched);
        allocated
    }

    pub(super) async fn seek(self: &Arc<Self>, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError> {
        if offset > OBJECT_SIZE_MAX {
            return Ok(None);
        }
        let Some(file) = self.existing(object).await? else { return Ok(None) };
        let parts = self.parts;
        blocking("seek", move || file.seek(parts, offset, what)).await
    }

    pub(super) async fn extents(
        self: &Arc<Self>,
        object: Fid,
        offset: u64,
        limit: usize,
    ) -> Result<(Vec<Placed>, Option<u64>), OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok((Vec::new(), None)) };
        blocking("fiemap", move || file.extents(offset, limit)).await
    }

    pub(super) async fn stat(self: &Arc<Self>, object: Fid) -> Result<Option<ObjectStat>, OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(None) };
        file.stat().map(Some).map_err(|e| OsdError::io("stat", &e))
    }

    /// Makes one object's data durable. The caller must poison the device on an error.
    pub(super) async fn sync(self: &Arc<Self>, object: Fid) -> Result<(), OsdError> {
        let Some(file) = self.existing(object).await? else { return Ok(()) };
        let synced = match &self.ring {
            Some(ring) => sync_by_ring(ring, &file).await,
            None => run_blocking(move || file.parts().try_for_each(|(_, part)| part.sync())).await,
        };
        synced.map_err(|e| OsdError::io(SYNC, &e))
    }

    pub(super) async fn remove(self: &Arc<Self>, object: Fid) -> Result<(), OsdError> {
        let this = self.clone();
        blocking("remove", move || {
            this.forget(object);
            let remove = |part| {
                fs::remove_file(this.path(object, part)).or_else(|e| none_if(e, libc::ENOENT).map(|_: Option<()>| ()))
            };
            if this.parts.count() > 1 {
                let first = fs::metadata(this.path(object, 0)).map(Some).or_else(|e| none_if(e, libc::ENOENT))?;
                let remains = this.remains.lock().remove(&object);
                if remains || first.is_some_and(|first| file::has_several(&first)) {
                    (1..PARTS_MAX as usize).try_for_each(remove)?;
                }
            }
            // Last, because an object without its first part is a new object.
            let removed = remove(0);
            // A task that opened the object in between has put it into the cache by now, or will see that the number
            // has changed.
            this.forget(object);
            removed
        })
        .await
    }

    pub(super) async fn list(self: &Arc<Self>) -> Result<Vec<Fid>, OsdError> {
        let this = self.clone();
        blocking("listing objects", move || {
            let (mut firsts, mut others) = (BTreeSet::new(), BTreeSet::new());
            for shard in 0..SHARDS {
                for entry in fs::read_dir(this.shard(shard))? {
                    match entry?.file_name().to_str().and_then(parse_file_name) {
                        Some((object, 0)) => firsts.insert(object),
                        Some((object, part)) if part < this.parts.count() => others.insert(object),
                        _ => false,
                    };
                }
            }
            this.remains.lock().extend(others.difference(&firsts));
            firsts.extend(others);
            Ok(firsts.into_iter().collect())
        })
        .await
    }

    /// Takes over the parts and directories that a commit must sync: everything changed so far.
    pub(super) fn take_unsynced(&self) -> Unsynced {
        let parts = std::mem::take(&mut *self.unsynced.lock());
        let shards = (0..SHARDS).filter(|s| self.unsynced_shards[*s].swap(false, Ordering::AcqRel));
        Unsynced { parts: parts.into_values().collect(), shards: shards.map(|s| self.shard(s)).collect() }
    }

    /// Begins to read a range of a part, if the part exists.
    fn begin_read(&self, part: Option<&Arc<Part>>, range: &Range<u64>) -> Option<PartRead> {
        let (part, len) = (part?.clone(), range.end - range.start);
        let aligned = range.start.is_multiple_of(DIRECT_IO_ALIGNMENT as u64);
        let direct = self.reads_direct && len >= DIRECT_MIN && aligned && part.can_direct();
        let outcome = self.ring.as_ref().map(|ring| submit_read(ring, &part, direct, range));
        Some(PartRead { part, direct, outcome, under_way: self.under_way(Direction::Read, len) })
    }

    async fn read_blocking(&self, part: &Arc<Part>, direct: bool, range: &Range<u64>) -> io::Result<AlignedBuf> {
        let (part, offset, buf) = (part.clone(), range.start, read_buffer(direct, range));
        let _permit = self.threads.acquire().await;
        run_blocking(move || calls::read_all(part.for_io(direct), offset, buf)).await
    }

    /// Records a completed change. It must not be recorded before, because a sync that ran meanwhile would not have
    /// covered it.
    fn changed(&self, object: Fid, file: &ObjectFile, parts: PartSet) -> bool {
        let mut unsynced = self.unsynced.lock();
        for (n, part) in parts.iter().filter_map(|n| Some((n, file.part(n)?))) {
            part.changed();
            unsynced.insert((object, n), part.clone());
        }
        unsynced.len() >= self.open_max
    }

    async fn existing(self: &Arc<Self>, object: Fid) -> Result<Option<Arc<ObjectFile>>, OsdError> {
        self.open_object(object, false).await
    }

    /// The object, made if it is missing, with these parts.
    async fn with_parts(self: &Arc<Self>, object: Fid, parts: PartSet) -> Result<Arc<ObjectFile>, OsdError> {
        loop {
            let missing = OsdError::Io { what: "creating an object", errno: Errno::ENOENT };
            let file = self.open_object(object, true).await?.ok_or(missing)?;
            if file.has(parts) {
                return Ok(file);
            }
            let (this, f) = (self.clone(), file.clone());
            if blocking("creating a part of an object", move || this.make_parts(object, &f, parts)).await? {
                assert!(file.has(parts), "{object:?} was to have {parts:?}");
                return Ok(file);
            }
        }
    }

    /// Makes the missing ones of these parts. Returns false if the object was removed.
    fn make_parts(&self, object: Fid, file: &ObjectFile, parts: PartSet) -> io::Result<bool> {
        // An existing file of this name is left from before a crash; otherwise the object would have been opened with
        // it.
        let made = file.make(parts, |part| {
            self.open_path(OpenOptions::new().create(true).truncate(true).mode(MODE), &self.path(object, part))
        })?;
        if made {
            // Recorded only now, because a commit that ran meanwhile would not have covered the new names and the first
            // part's mark.
            self.unsynced_shards[shard_of(object)].store(true, Ordering::Release);
            self.changed(object, file, PartSet::FIRST);
        }
        Ok(made)
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
        let path = self.path(object, 0);
        loop {
            let removals = self.cache.lock().removals;
            let mut options = OpenOptions::new();
            let mut first = self.open_path(options.mode(MODE), &path);
            if first.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                if !create {
                    return Ok(None);
                }
                first = self.open_path(options.create(true), &path);
                // Recorded only now, because a commit that ran meanwhile would not have covered the new name.
                self.unsynced_shards[shard_of(object)].store(true, Ordering::Release);
            }
            let file = Arc::new(self.with_existing_parts(object, first?)?);
            let mut cache = self.cache.lock();
            if cache.removals == removals {
                cache.uses += 1;
                let now = cache.uses;
                if cache.parts >= self.open_max {
                    cache.evict(self.open_max - self.open_max / 8);
                }
                // Another task may have opened the object at the same time and been first: all use that one.
                let parts = file.parts().count();
                let entry = cache.files.entry(object).or_insert((file, now)).0.clone();
                cache.parts += parts;
                return Ok(Some(entry));
            }
        }
    }

    fn with_existing_parts(&self, object: Fid, first: File) -> io::Result<ObjectFile> {
        let several = self.parts.count() > 1 && file::has_several(&first.metadata()?);
        let file = ObjectFile::new(first);
        for part in (1..self.parts.count()).filter(|_| several) {
            let opened = self.open_path(&mut OpenOptions::new(), &self.path(object, part));
            if let Some(opened) = opened.map(Some).or_else(|e| none_if(e, libc::ENOENT))? {
                file.add(part, opened);
            }
        }
        Ok(file)
    }

    /// Opens a file, if need be by closing others.
    fn open_path(&self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        options.read(true).write(true);
        match options.open(path) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.cache.lock().evict(8);
                options.open(path)
            }
            other => other,
        }
    }

    fn forget(&self, object: Fid) {
        let mut cache = self.cache.lock();
        cache.removals += 1;
        let file = cache.files.remove(&object);
        drop(cache);
        if let Some((file, _)) = file {
            file.set_removed();
        }
        let mut unsynced = self.unsynced.lock();
        (0..self.parts.count()).for_each(|part| drop(unsynced.remove(&(object, part))));
    }

    fn path(&self, object: Fid, part: usize) -> PathBuf {
        let mut path = self.shard(shard_of(object));
        path.push(file_name(object, part));
        path
    }

    fn shard(&self, shard: usize) -> PathBuf {
        self.dir.join(format!("{shard:02x}"))
    }
}

impl Cache {
    /// Keeps the most recently used objects, up to `keep` parts, and those in use, because no object may be open twice.
    fn evict(&mut self, keep: usize) {
        let mut used: Vec<(u64, usize)> = self.files.values().map(|(f, used)| (*used, f.parts().count())).collect();
        used.sort_unstable_by(|a, b| b.cmp(a));
        let mut parts = 0;
        let oldest_kept = used.iter().take_while(|(_, count)| {
            parts += count;
            parts <= keep
        });
        let oldest_kept = oldest_kept.last().map_or(u64::MAX, |(used, _)| *used);
        self.files.retain(|_, (file, used)| *used >= oldest_kept || Arc::strong_count(file) > 1);
        self.parts = self.files.values().map(|(file, _)| file.parts().count()).sum();
    }
}

/// A read of a part that may have begun.
struct PartRead {
    part: Arc<Part>,
    direct: bool,
    /// `None` if there is no ring.
    outcome: Option<Outcome<AlignedBuf>>,
    #[expect(dead_code, reason = "held until the data is there")]
    under_way: UnderWay,
}

impl PartRead {
    async fn finish(self, objects: &Objects, range: &Range<u64>) -> io::Result<Payload> {
        let mut read = match self.outcome {
            Some(outcome) => received(outcome).await,
            None => objects.read_blocking(&self.part, self.direct, range).await,
        };
        if self.direct && read.as_ref().is_err_and(refuses_direct) {
            self.part.refused_direct();
            read = match &objects.ring {
                Some(ring) => received(submit_read(ring, &self.part, false, range)).await,
                None => objects.read_blocking(&self.part, false, range).await,
            };
        }
        let mut buf = read?;
        buf.truncate((range.end - range.start) as usize);
        Ok(bytes::Bytes::from(buf).into())
    }
}

fn submit_read(ring: &Ring, part: &Arc<Part>, direct: bool, range: &Range<u64>) -> Outcome<AlignedBuf> {
    let (reply, outcome) = oneshot::channel();
    let (file, offset, buf) = (part.clone(), range.start, read_buffer(direct, range));
    ring.submit(Request::Read { file, direct, offset, buf, reply });
    outcome
}

/// The buffer for a range; of whole blocks for a direct read, as its memory is anyway.
fn read_buffer(direct: bool, range: &Range<u64>) -> AlignedBuf {
    let len = (range.end - range.start) as usize;
    AlignedBuf::for_overwrite(if direct { len.next_multiple_of(DIRECT_IO_ALIGNMENT) } else { len })
}

async fn sync_by_ring(ring: &Ring, file: &ObjectFile) -> io::Result<()> {
    let mut begun = Vec::new();
    for (_, part) in file.parts() {
        let Some(sync) = part.begin_sync() else { continue };
        let (reply, outcome) = oneshot::channel();
        ring.submit(Request::Sync { file: part.clone(), data_only: sync.data_only, reply });
        begun.push((part, sync, outcome));
    }
    let mut synced = Ok(());
    for (part, sync, outcome) in begun {
        let outcome = received(outcome).await;
        if outcome.is_ok() {
            part.end_sync(&sync);
        }
        synced = synced.and(outcome);
    }
    synced
}

/// Name of the action in errors of making data durable.
pub(super) const SYNC: &str = "syncing object data";

async fn received<T>(outcome: Outcome<T>) -> io::Result<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_the_most_recently_used_and_what_is_in_use() {
        let open = || Arc::new(ObjectFile::new(File::open("/").unwrap()));
        let mut cache = Cache::default();
        let in_use = open();
        for oid in 0..100 {
            let file = if oid == 99 { in_use.clone() } else { open() };
            cache.files.insert(Fid { seq: 1, oid, ver: 0 }, (file, 1000 - u64::from(oid)));
        }
        cache.evict(10);
        let mut kept: Vec<u32> = cache.files.keys().map(|f| f.oid).collect();
        kept.sort_unstable();
        assert_eq!(kept, (0..10).chain([99]).collect::<Vec<_>>());
        assert_eq!(cache.parts, 11);
    }
}
