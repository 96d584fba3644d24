//! The storage of an OST in `nacre sim journal`: an array of disks with heads, and the way in which a file system commits
//! to it. [`MemOsd`] keeps data and records, and takes no time; this module decides how long things take.
//!
//! *The head* does one thing at a time. A request that begins where the latest ended costs its transfer; any other one
//! also costs a seek, or passing over the gap if that is shorter. *The elevator* takes urgent requests first. It takes
//! the others in ascending order from the head on, but none that came after a request other than data, so that no request
//! is overtaken for ever.
//!
//! *Commits* take in everything that finished before they begin, one after the other. [`Storage`] says what they write.

use super::constants::{self, COMMIT_INTERVAL};
use super::{Mode, Storage};
use async_trait::async_trait;
use nacre_base::{Fid, FxHashMap, Payload};
use nacre_osd::mem::MemOsd;
use nacre_osd::{AllocateMode, Full, IoStats, ObjectStat, Osd, OsdError, OsdStats, Seek, StatFs, Transaction};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// An array, and the file system on it.
pub(super) struct Array(Arc<Inner>);

struct Inner {
    rt: Rt,
    store: Arc<MemOsd>,
    storage: Storage,
    /// True if the journal has a device of its own.
    external: bool,
    medium: Mutex<Medium>,
    commits: Mutex<Commits>,
}

/// Counters of an array since [`Osd::clear_io_stats`], or sums over several arrays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Write requests, including those to a journal's own device.
    pub(super) writes: u64,
    /// Write requests of fewer than 128 KiB.
    pub(super) small: u64,
    /// Commits.
    pub(super) commits: u64,
    /// Time for which heads were busy.
    pub(super) busy: Duration,
}

/// Requests of fewer bytes count as small, as in the paper.
const SMALL_BYTES: u64 = 128 << 10;
/// Unit of metadata, of ext3 and of the index.
const BLOCK: u64 = 4 << 10;

/// Place of something on the disks, ascending as far as the elevator cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Journal,
    Metadata(Block),
    Data(Fid, u64),
}

/// A block of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Block {
    /// Free blocks and inodes of the whole file system.
    Super,
    /// Free blocks and inodes of each group.
    Descriptors,
    /// The latest request of each client.
    Received,
    /// One directory of objects. ext3 puts a file's inode into the group of its directory, and its data from there on.
    Directory(u64),
    /// Bitmap of the inodes of a directory's group.
    InodeBitmap(u64),
    /// A block of inodes of a directory's group.
    Inodes(u64, u64),
    /// Bitmap of the blocks of a group, counted from a directory's group on.
    Bitmap(u64, u64),
    /// Pages of Nacre's index.
    Index,
    /// The number of the latest transaction of Nacre's index.
    IndexNumber,
}

#[derive(Debug)]
struct Medium {
    busy: bool,
    /// Number of requests that came.
    count: u64,
    waiting: Vec<Request>,
    head: Option<Place>,
    seen: Seen,
}

#[derive(Debug)]
struct Request {
    number: u64,
    urgent: bool,
    place: Place,
    /// Bytes of each write, one behind the other.
    writes: Vec<u64>,
    is_read: bool,
    done: oneshot::Sender<()>,
}

#[derive(Default)]
struct Commits {
    running: bool,
    waiting: Vec<oneshot::Sender<Result<(), OsdError>>>,
    /// Writes that must not begin before the commit under way has ended.
    blocked: Vec<oneshot::Sender<()>>,
    /// True while a timer runs until the next commit.
    timed: bool,
    /// Number of operations since the latest commit began.
    changes: u64,
    /// Number of operations that the index does not have yet.
    unflushed: u64,
    flushing: bool,
    /// Blocks that ext3 changed since the latest commit began.
    changed: BTreeSet<Block>,
    /// Committed blocks that ext3 has yet to write to their final places.
    homeless: BTreeSet<Block>,
    /// Objects in the order in which they got their first data.
    objects: FxHashMap<Fid, u64>,
    /// Bytes of data of each directory's objects.
    allocated: FxHashMap<u64, u64>,
}

fn transfer(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / constants::ARRAY_BANDWIDTH)
}

impl Medium {
    /// Takes the request whose turn it is.
    fn next(&mut self) -> Option<Request> {
        let urgent = self.waiting.iter().filter(|r| r.urgent).map(|r| r.number).min();
        let other = || {
            // Nothing overtakes metadata.
            let is_data = |r: &&Request| matches!(r.place, Place::Data(..));
            let first = self.waiting.iter().filter(|r| !is_data(r)).map(|r| r.number).min().unwrap_or(u64::MAX);
            let before = self.waiting.iter().filter(|r| is_data(r) && r.number < first);
            let ahead = |r: &&Request| self.head.is_none_or(|head| r.place >= head);
            let sweep = before.clone().filter(ahead).min_by_key(|r| (r.place, r.number));
            let next = sweep.or_else(|| before.min_by_key(|r| (r.place, r.number)));
            next.map(|r| r.number).or_else(|| Some(first).filter(|n| *n != u64::MAX))
        };
        let number = urgent.or_else(other)?;
        let index = self.waiting.iter().position(|r| r.number == number)?;
        Some(self.waiting.swap_remove(index))
    }

    /// Moves the head for a request; returns the time that the request takes.
    fn handle(&mut self, request: &Request) -> Duration {
        let bytes: u64 = request.writes.iter().sum();
        let way = match (self.head, request.place) {
            (Some(head), place) if head == place => Duration::ZERO,
            (Some(Place::Data(of, end)), Place::Data(object, offset)) if of == object && end < offset => {
                transfer(offset - end).min(constants::SEEK)
            }
            _ => constants::SEEK,
        };
        self.head = Some(match request.place {
            Place::Data(object, offset) => Place::Data(object, offset + bytes),
            place => place,
        });
        if !request.is_read {
            request.writes.iter().for_each(|bytes| self.seen.count(*bytes));
        }
        let takes = way + transfer(bytes);
        self.seen.busy += takes;
        takes
    }
}

impl Seen {
    fn count(&mut self, bytes: u64) {
        self.writes += 1;
        self.small += u64::from(bytes < SMALL_BYTES);
    }
}

impl std::ops::Add for Seen {
    type Output = Seen;

    fn add(self, other: Seen) -> Seen {
        Seen {
            writes: self.writes + other.writes,
            small: self.small + other.small,
            commits: self.commits + other.commits,
            busy: self.busy + other.busy,
        }
    }
}

impl Commits {
    /// Notes which blocks of ext3's metadata change with a write of data.
    fn handle_write(&mut self, object: Fid, bytes: u64) {
        let count = self.objects.len() as u64;
        let number = *self.objects.entry(object).or_insert(count);
        let directory = number % constants::DIRECTORIES;
        let allocated = self.allocated.entry(directory).or_default();
        let (first, last) = (*allocated, *allocated + bytes.max(1) - 1);
        *allocated += bytes;
        let bitmap = |at: u64| Block::Bitmap(directory, at / constants::GROUP_BYTES);
        let inodes = Block::Inodes(directory, number / constants::DIRECTORIES / constants::INODES_PER_BLOCK);
        self.changed.extend([Block::Super, Block::Descriptors, Block::Received, bitmap(first), bitmap(last), inodes]);
        if number == count {
            self.changed.extend([Block::Directory(directory), Block::InodeBitmap(directory)]);
        }
    }
}

impl Array {
    pub(super) fn new(rt: &Rt, store: Arc<MemOsd>, storage: Storage, mode: Mode) -> Array {
        let medium = Medium { busy: false, count: 0, waiting: Vec::new(), head: None, seen: Seen::default() };
        Array(Arc::new(Inner {
            rt: rt.clone(),
            store,
            storage,
            external: mode == Mode::External,
            medium: Mutex::new(medium),
            commits: Mutex::default(),
        }))
    }

    /// The array's counters.
    pub(super) fn seen(&self) -> Seen {
        self.0.medium.lock().seen
    }
}

impl Inner {
    /// Queues a request. The receiver is notified when the request is done.
    fn submit(self: &Arc<Self>, urgent: bool, place: Place, writes: Vec<u64>, is_read: bool) -> oneshot::Receiver<()> {
        let (done, told) = oneshot::channel();
        let mut medium = self.medium.lock();
        let number = medium.count;
        medium.count += 1;
        medium.waiting.push(Request { number, urgent, place, writes, is_read, done });
        if !std::mem::replace(&mut medium.busy, true) {
            drop(self.rt.spawn(self.clone().serve()));
        }
        told
    }

    async fn write_at(self: &Arc<Self>, urgent: bool, place: Place, writes: Vec<u64>) {
        // The sender stays in the queue until it has been used.
        let _ = self.submit(urgent, place, writes, false).await;
    }

    /// Carries out requests until none waits.
    async fn serve(self: Arc<Self>) {
        loop {
            let (request, takes) = {
                let mut medium = self.medium.lock();
                let Some(request) = medium.next() else {
                    medium.busy = false;
                    return;
                };
                let takes = medium.handle(&request);
                (request, takes)
            };
            self.rt.sleep(takes).await;
            let _ = request.done.send(());
        }
    }

    /// Waits while a commit runs, as a write does that opens a transaction of ext3.
    async fn wait_for_commit(&self) {
        let told = {
            let mut commits = self.commits.lock();
            if self.storage != Storage::Ext3 || !commits.running {
                return;
            }
            let (tell, told) = oneshot::channel();
            commits.blocked.push(tell);
            told
        };
        let _ = told.await;
    }

    /// An operation began: a commit follows, at the latest after the interval.
    fn handle_change(self: &Arc<Self>) {
        let mut commits = self.commits.lock();
        commits.changes += 1;
        if !std::mem::replace(&mut commits.timed, true) {
            let inner = Arc::downgrade(self);
            let rt = self.rt.clone();
            drop(self.rt.spawn(async move {
                rt.sleep(COMMIT_INTERVAL).await;
                let Some(inner) = inner.upgrade() else { return };
                inner.commits.lock().timed = false;
                if inner.commits.lock().changes > 0 {
                    let _ = inner.commit().await;
                }
            }));
        }
    }

    async fn commit(self: &Arc<Self>) -> Result<(), OsdError> {
        let told = {
            let mut commits = self.commits.lock();
            let (tell, told) = oneshot::channel();
            commits.waiting.push(tell);
            if !std::mem::replace(&mut commits.running, true) {
                drop(self.rt.spawn(self.clone().run_commits()));
            }
            told
        };
        told.await.unwrap_or(Err(OsdError::Closed))
    }

    async fn run_commits(self: Arc<Self>) {
        loop {
            let (waiting, changes, changed) = {
                let mut commits = self.commits.lock();
                let waiting = std::mem::take(&mut commits.waiting);
                if waiting.is_empty() {
                    commits.running = false;
                    return;
                }
                (waiting, std::mem::take(&mut commits.changes), std::mem::take(&mut commits.changed))
            };
            // Waits for data that was acknowledged before it was written.
            let result = self.store.commit().await;
            if changes > 0 {
                self.write_commit(changes, changed).await;
            }
            for waiter in waiting {
                let _ = waiter.send(result.clone());
            }
            self.commits.lock().blocked.drain(..).for_each(|blocked| {
                let _ = blocked.send(());
            });
        }
    }

    /// Makes the writes of a commit of this many operations.
    async fn write_commit(self: &Arc<Self>, changes: u64, changed: BTreeSet<Block>) {
        let blocks = changed.len() as u64 * BLOCK;
        let record = (changes * constants::RECORD_BYTES).next_multiple_of(BLOCK);
        let writes = match self.storage {
            Storage::Ext3 => vec![blocks.max(constants::EXT3_BLOCKS), constants::EXT3_RECORD],
            Storage::Nacre => vec![record],
            Storage::NacreNoJournal => vec![],
        };
        if self.external {
            self.rt.sleep(constants::EXTERNAL_LATENCY * writes.len() as u32).await;
            let mut medium = self.medium.lock();
            writes.iter().for_each(|bytes| medium.seen.count(*bytes));
        } else if self.storage == Storage::NacreNoJournal {
            self.write_index(changes).await;
        } else {
            self.write_at(self.storage == Storage::Ext3, Place::Journal, writes).await;
        }
        self.medium.lock().seen.commits += 1;
        match self.storage {
            Storage::Ext3 => self.write_home_later(changed),
            Storage::Nacre => self.flush_index_later(changes),
            Storage::NacreNoJournal => {}
        }
    }

    async fn write_index(self: &Arc<Self>, changes: u64) {
        let pages = (changes * constants::RECORD_BYTES).next_multiple_of(BLOCK).max(constants::INDEX_PAGES);
        self.write_at(false, Place::Metadata(Block::Index), vec![pages]).await;
        self.write_at(false, Place::Metadata(Block::IndexNumber), vec![BLOCK]).await;
    }

    /// Later, when the oldest block has been dirty for long enough, writes all committed blocks to their final places, as
    /// the kernel does.
    fn write_home_later(self: &Arc<Self>, changed: BTreeSet<Block>) {
        let mut commits = self.commits.lock();
        let is_first = commits.homeless.is_empty();
        commits.homeless.extend(changed);
        if is_first && !commits.homeless.is_empty() {
            let (inner, rt) = (Arc::downgrade(self), self.rt.clone());
            drop(self.rt.spawn(async move {
                rt.sleep(constants::DIRTY_EXPIRE).await;
                let Some(inner) = inner.upgrade() else { return };
                let blocks = std::mem::take(&mut inner.commits.lock().homeless);
                for block in blocks {
                    drop(inner.submit(false, Place::Metadata(block), vec![BLOCK], false));
                }
            }));
        }
    }

    /// Flushes the journal's changes to the index, after some time or when there are enough of them.
    fn flush_index_later(self: &Arc<Self>, changes: u64) {
        let mut commits = self.commits.lock();
        commits.unflushed += changes;
        let is_full = commits.unflushed >= constants::INDEX_FLUSH_CHANGES;
        if is_full || !std::mem::replace(&mut commits.flushing, true) {
            let (inner, rt) = (Arc::downgrade(self), self.rt.clone());
            drop(self.rt.spawn(async move {
                if !is_full {
                    rt.sleep(constants::INDEX_FLUSH_INTERVAL).await;
                }
                let Some(inner) = inner.upgrade() else { return };
                let changes = {
                    let mut commits = inner.commits.lock();
                    commits.flushing &= is_full;
                    std::mem::take(&mut commits.unflushed)
                };
                if changes > 0 {
                    inner.write_index(changes).await;
                }
            }));
        }
    }
}

#[async_trait]
impl Osd for Array {
    async fn begin(&self) -> Result<Box<dyn Transaction>, OsdError> {
        self.0.handle_change();
        self.0.store.begin().await
    }

    async fn commit(&self) -> Result<(), OsdError> {
        self.0.commit().await
    }

    async fn read(&self, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError> {
        let _ = self.0.submit(false, Place::Data(object, offset), vec![len as u64], true).await;
        self.0.store.read(object, offset, len).await
    }

    async fn write_extents(&self, object: Fid, extents: Vec<(u64, Payload)>) -> Result<(), OsdError> {
        self.0.wait_for_commit().await;
        let mut under_way = Vec::new();
        for (offset, data) in &extents {
            let bytes = data.len() as u64;
            if self.0.storage == Storage::Ext3 {
                self.0.commits.lock().handle_write(object, bytes);
            }
            under_way.push(self.0.submit(false, Place::Data(object, *offset), vec![bytes], false));
        }
        for done in under_way {
            let _ = done.await;
        }
        self.0.store.write_extents(object, extents).await
    }

    async fn truncate(&self, object: Fid, size: u64) -> Result<(), OsdError> {
        self.0.store.truncate(object, size).await
    }

    async fn punch(&self, object: Fid, range: Range<u64>) -> Result<(), OsdError> {
        self.0.store.punch(object, range).await
    }

    async fn allocate(&self, object: Fid, range: Range<u64>, mode: AllocateMode) -> Result<(), OsdError> {
        self.0.store.allocate(object, range, mode).await
    }

    async fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError> {
        self.0.store.seek(object, offset, what).await
    }

    async fn stat(&self, object: Fid) -> Result<Option<ObjectStat>, OsdError> {
        self.0.store.stat(object).await
    }

    async fn sync_object(&self, object: Fid) -> Result<(), OsdError> {
        self.0.store.sync_object(object).await
    }

    async fn remove(&self, object: Fid) -> Result<(), OsdError> {
        self.0.store.remove(object).await
    }

    async fn list_objects(&self) -> Result<Vec<Fid>, OsdError> {
        self.0.store.list_objects().await
    }

    async fn statfs(&self) -> Result<StatFs, OsdError> {
        self.0.store.statfs().await
    }

    fn stats(&self) -> OsdStats {
        self.0.store.stats()
    }

    fn io_stats(&self) -> IoStats {
        self.0.store.io_stats()
    }

    fn clear_io_stats(&self) {
        self.0.medium.lock().seen = Seen::default();
        self.0.store.clear_io_stats();
    }

    fn full(&self) -> Option<Full> {
        self.0.store.full()
    }

    fn is_poisoned(&self) -> bool {
        self.0.store.is_poisoned()
    }

    async fn close(&self) -> Result<(), OsdError> {
        let committed = self.0.commit().await;
        committed.and(self.0.store.close().await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const OTHER: Fid = Fid { seq: 1, oid: 2, ver: 0 };
    const MIB: u64 = 1 << 20;

    fn medium(waiting: &[(bool, Place)]) -> Medium {
        let request = |(number, (urgent, place)): (usize, &(bool, Place))| Request {
            number: number as u64,
            urgent: *urgent,
            place: *place,
            writes: vec![MIB],
            is_read: false,
            done: oneshot::channel().0,
        };
        let waiting: Vec<_> = waiting.iter().enumerate().map(request).collect();
        Medium { busy: false, count: waiting.len() as u64, waiting, head: None, seen: Seen::default() }
    }

    /// The order in which all requests are carried out, and the time that each takes.
    fn served(mut medium: Medium) -> Vec<(u64, Duration)> {
        std::iter::from_fn(|| {
            let request = medium.next()?;
            Some((request.number, medium.handle(&request)))
        })
        .collect()
    }

    #[test]
    fn data_is_taken_in_ascending_order_and_what_follows_costs_no_seek() {
        let at = |object, mib: u64| (false, Place::Data(object, mib * MIB));
        let order = served(medium(&[at(FILE, 1), at(OTHER, 0), at(FILE, 0), at(FILE, 2)]));
        let (one, seek) = (transfer(MIB), constants::SEEK);
        assert_eq!(order, [(2, seek + one), (0, one), (3, one), (1, seek + one)]);
    }

    #[test]
    fn a_gap_is_passed_over_if_that_is_shorter_than_a_seek() {
        let at = |mib: u64| (false, Place::Data(FILE, mib * MIB));
        let order = served(medium(&[at(0), at(2), at(9)]));
        let (one, seek) = (transfer(MIB), constants::SEEK);
        assert_eq!(order, [(0, seek + one), (1, one + one), (2, seek + one)]);
    }

    #[test]
    fn urgent_requests_go_first_and_nothing_overtakes_metadata() {
        let data = |object, mib: u64| (false, Place::Data(object, mib * MIB));
        let home = (false, Place::Metadata(Block::Super));
        let order = served(medium(&[data(OTHER, 0), home, data(FILE, 0), (true, Place::Journal)]));
        assert_eq!(order.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 0, 1, 2]);
    }

    #[test]
    fn a_block_that_several_writes_change_is_written_once() {
        let mut commits = Commits::default();
        (0..8).for_each(|_| commits.handle_write(FILE, MIB));
        let of_one = commits.changed.len();
        assert_eq!(
            of_one, 7,
            "super block, descriptors, requests; directory, inode and two bitmaps: {:?}",
            commits.changed
        );
        commits.handle_write(OTHER, MIB);
        assert_eq!(commits.changed.len(), of_one + 4, "in another directory");
    }
}
