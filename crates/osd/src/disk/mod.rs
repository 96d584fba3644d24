//! The device on a real file system: a directory with
//!
//! - `format`: who the target is ([`Label`]);
//! - `lock`: locked while the target is open, so that no two processes open it;
//! - `mmp`: who has the target, where several nodes can reach it (multi-mount protection);
//! - `data/00` to `data/ff`: object files, sparse, named by FID and part, spread by a hash of the FID;
//! - `index/data.mdb`, `index/durable`: the index store, LMDB;
//!
//! and, if the label says so, a journal elsewhere, to which commits go first.
//!
//! Operations run on the callers' own threads, in turn, under an async mutex that holds the running transaction; a
//! commit runs on a thread of its own, object data on an io_uring thread. The alternative, one thread that applies all
//! operations, would keep the LMDB write transaction where it began; but handing an operation to a thread and back
//! costs 9 us of CPU, the operation itself 4 us (2 gets and 3 puts, `examples/osd_bench.rs`). So the transaction moves
//! from thread to thread instead, which LMDB allows where its own lock is not used.
#![allow(clippy::disallowed_methods)] // An IO edge: the files and threads of the device.

mod calls;
mod commit;
mod file;
mod index;
mod journal;
mod label;
mod mmp;
mod names;
mod objects;
mod pieces;
mod ring;
mod room;
mod sigbus;
mod transaction;
mod tree_use;
mod unsynced;

pub use label::{FORMAT_VERSION, Label, format, read_label, write_label};
pub use mmp::{MmpOptions, MmpStatus};
pub use objects::IoEngine;

use crate::parts::{Gathering, Parts};
use crate::space::{Full, FullWatch, PAGE, Space, SpaceLimits};
use crate::{
    AllocateMode, CommitCallback, IoStats, ObjectStat, Osd, OsdError, OsdStats, PARTS_MAX, PendingData, Placed, Seek,
    StatFs, Table, Transaction, check_range, io_stats::Recorder,
};
use async_trait::async_trait;
use commit::Commits;
use index::{Index, WriteTxn};
use journal::{Changes, Journal};
use mmp::Mmp;
use nacre_base::{Errno, Faults, Fid, Payload, TargetKind};
use objects::Objects;
use parking_lot::Mutex;

use std::fs::{File, TryLockError};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use transaction::{DiskTransaction, UndoLog};
use tree_use::TreeUse;

/// How a device on disk behaves.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Changes of records after which a commit begins early: it bounds the memory of the running transaction and the
    /// time that operations wait while it is flushed.
    pub commit_changes: u64,
    /// Space that object data must leave free, so that the index can always commit: a target that is full refuses
    /// writes, and goes on. By default 256 MiB, but at most a 32nd of the file system.
    pub reserve_bytes: Option<u64>,
    /// What the index keeps for removals.
    pub space: SpaceLimits,
    /// The most that the index's file may grow to, if not all of the file system.
    pub index_max_bytes: u64,
    /// Object files kept open, the parts of an object counted each. One may take two descriptors.
    pub open_files_max: usize,
    /// Address space that the index may grow by between two commits; the map grows as needed.
    pub map_headroom_bytes: u64,
    /// How requests for object data reach the kernel.
    pub io_engine: IoEngine,
    /// Whether large aligned requests bypass the page cache; where a head moves, of writes only the largest do.
    pub direct_io: bool,
    /// Protection against several nodes that open the target, where that can happen.
    pub mmp: Option<MmpOptions>,
    /// Of a target with a journal: the longest time between two flushes of its index, and the most changes.
    pub checkpoint_interval: Duration,
    /// See `checkpoint_interval`. It bounds the memory of the running transaction, and what opening has to do again.
    pub checkpoint_changes: u64,
    /// The process's fault points, in front of the steps of a commit: `osd.commit` (object data), `osd.commit.index`,
    /// `osd.commit.tell` (callbacks). Fail poisons the device as a failed sync does.
    pub faults: Faults,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            commit_interval: Duration::from_secs(5),
            commit_changes: 16_384,
            reserve_bytes: None,
            space: SpaceLimits::default(),
            index_max_bytes: u64::MAX,
            open_files_max: 1024,
            map_headroom_bytes: 64 << 30,
            io_engine: IoEngine::Auto,
            direct_io: true,
            mmp: None,
            checkpoint_interval: Duration::from_secs(30),
            checkpoint_changes: 16_384,
            faults: Faults::new(),
        }
    }
}

/// An opened target directory. Needs a tokio runtime around its async methods.
pub struct DiskOsd {
    device: Arc<Device>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

/// What callers, transactions and the commit thread share.
struct Device {
    label: Label,
    options: DiskOptions,
    objects: Arc<Objects>,
    /// Whoever has the lock has the turn.
    running: Arc<tokio::sync::Mutex<Running>>,
    commits: Commits,
    /// If there is one. Only commits use it.
    journal: Mutex<Option<Journal>>,
    /// Set at most once, at the first failure that leaves the medium unknown.
    poisoned: AtomicBool,
    closed: AtomicBool,
    /// Object data has eaten into the reserve.
    space_low: AtomicBool,
    /// Bytes written since the free space was last looked at.
    written: AtomicU64,
    /// Bytes that records may take within the index's file, without the reserve and with it.
    records_available: AtomicU64,
    records_free: AtomicU64,
    /// Bytes of the index's file.
    index_bytes: AtomicU64,
    /// Pages that it grows by at a time.
    growth_step: u64,
    /// What the target is full of.
    full: Mutex<FullWatch>,
    recorder: Arc<Recorder>,
    mmp: Option<Mmp>,
    /// See [`Osd::object_bytes_max`].
    object_bytes_max: u64,
    /// See [`StatFs::disk`].
    disk: u64,
    /// Becomes true when another node has taken the target over.
    taken: watch::Sender<bool>,
    /// Also a handle on the file system. Declared, and so dropped, last.
    lock: Lock,
}

/// The locked `lock` file of a target.
struct Lock(File);

impl Drop for Lock {
    /// Closing is not enough: a child of this process that is about to run another program may have the file too.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// The running transaction and what goes with it.
struct Running {
    /// Always there but after closing or a failure.
    txn: Option<WriteTxn>,
    /// Always there but after closing.
    index: Option<Arc<Index>>,
    /// Of finished operations, in order.
    callbacks: Vec<CommitCallback>,
    /// Data of finished operations that the commit must wait for.
    pending: Vec<PendingData>,
    /// The operation's changes, empty between operations.
    undo: UndoLog,
    /// Whether anything was changed since the last commit began, even if it was undone.
    changed: bool,
    /// Changes of records since then.
    changes: u64,
    /// Pages that these can have taken at most.
    pages: u64,
    /// Pages that there is room for in the memory map.
    pages_max: u64,
    /// Pages that there is room for on the disk, and what the running transaction has taken of them.
    space: Space,
    tree: TreeUse,
    /// Of a target with a journal.
    logging: Option<Logging>,
}

/// What a target with a journal has besides.
struct Logging {
    /// Changes since the last commit began, in order.
    changes: Changes,
    /// Changes since the index was flushed, and when that was.
    unflushed: u64,
    flushed: Instant,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging { changes: Changes::default(), unflushed: 0, flushed: Instant::now() }
    }
}

/// How many parts the objects of a target in `dir` should have: several, or one where a head moves, for what is next to
/// each other in an object should be so on the disk. See [`Label::parts`].
pub fn suitable_parts(dir: &Path) -> u32 {
    let existing = dir.ancestors().find_map(|dir| File::open(dir).ok());
    if existing.is_some_and(|dir| calls::is_rotational(&dir)) { 1 } else { PARTS_MAX }
}

impl DiskOsd {
    /// Opens the target in `dir`, at its last durable commit. Tables that are not there yet are made. Blocks.
    pub fn open(dir: &Path, tables: &[Table], options: DiskOptions) -> Result<DiskOsd, OsdError> {
        sigbus::explain();
        let label = read_label(dir)?;
        let lock = lock(dir)?;
        let itself = Arc::new(OnceLock::<Weak<Device>>::new());
        let mmp = options.mmp.as_ref().map(|options| claim(dir, options, itself.clone())).transpose()?;
        let tables: Vec<Table> = tables.iter().copied().chain(label.journal().map(|_| journal::TABLE)).collect();
        let index = Arc::new(Index::open(&dir.join("index"), &tables, options.map_headroom_bytes)?);
        let journal = label.journal().map(|place| recover(place, &label, &index, &tables)).transpose()?;
        let logging = journal.as_ref().map(|_| Logging::default());
        let open_max = options.open_files_max.min(descriptors_max() / 8);
        let parts = Parts::new(label.parts);
        let gathering = if calls::is_rotational(&lock.0) { Gathering::MOVING } else { Gathering::STILL };
        let recorder = Arc::new(Recorder::default());
        let objects = Objects::open(dir.join("data"), parts, gathering, &options, open_max, recorder.clone())?;
        let txn = index.begin()?;
        let tree = TreeUse::new(index.shapes(&txn)?);
        let running = Running {
            space: room::measure(&index, &tree, options.space),
            tree,
            txn: Some(txn),
            pages_max: index.pages_max(),
            index: Some(index),
            callbacks: Vec::new(),
            pending: Vec::new(),
            undo: UndoLog::default(),
            changed: false,
            changes: 0,
            pages: 0,
            logging,
        };
        let growth_step = room::growth_step(room::statfs(&lock.0)?.total_bytes);
        let device = Arc::new(Device {
            label,
            options,
            objects: Arc::new(objects),
            running: Arc::new(tokio::sync::Mutex::new(running)),
            commits: Commits::default(),
            journal: Mutex::new(journal),
            poisoned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            space_low: AtomicBool::new(false),
            written: AtomicU64::new(0),
            records_available: AtomicU64::new(0),
            records_free: AtomicU64::new(0),
            index_bytes: AtomicU64::new(0),
            growth_step,
            full: Mutex::default(),
            recorder,
            mmp,
            object_bytes_max: calls::file_bytes_max(&lock.0).min(crate::OBJECT_SIZE_MAX),
            disk: calls::file_system_id(&lock.0),
            taken: watch::Sender::new(false),
            lock,
        });
        let _ = itself.set(Arc::downgrade(&device)); // The first time.
        {
            let mut running = device.running.try_lock().expect("nobody else takes turns before this call returns");
            device.index_bytes.store(running.space.allocated() * PAGE, Ordering::Relaxed);
            device.grow_ahead(&mut running);
            device.begin_settled(&mut running)?;
            device.show_records(&running);
        }
        device.check_space();
        let committing = device.clone();
        let thread = std::thread::Builder::new().name("osd-commit".to_owned());
        let thread = thread.spawn(move || commit::run(&committing)).map_err(|e| OsdError::io("commit thread", &e))?;
        Ok(DiskOsd { device, committer: Mutex::new(Some(thread)) })
    }

    /// Waits until another node has taken the target over; false if the device is dropped before that.
    pub fn taken(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut taken = self.device.taken.subscribe();
        async move { taken.wait_for(|taken| *taken).await.is_ok() }
    }

    /// What multi-mount protection says, if it is on.
    pub fn mmp_status(&self) -> Option<MmpStatus> {
        self.device.mmp.as_ref().map(Mmp::status)
    }

    /// Who the target is.
    pub fn label(&self) -> &Label {
        &self.device.label
    }
}

impl Drop for DiskOsd {
    /// As a crash: what is not committed is lost.
    fn drop(&mut self) {
        self.device.closed.store(true, Ordering::Release);
        self.device.commits.stop();
        if let Some(t) = self.committer.lock().take() {
            let _ = t.join();
        }
    }
}

#[async_trait]
impl Osd for DiskOsd {
    async fn begin(&self) -> Result<Box<dyn Transaction>, OsdError> {
        loop {
            self.device.admit().await?;
            let mut running = self.device.running.clone().lock_owned().await;
            self.device.check()?;
            self.device.grow_if_needed(&mut running);
            if running.pages <= running.pages_max / 4 && !running.space.is_crowded(running.tree.taken(0)) {
                return Ok(Box::new(DiskTransaction::new(self.device.clone(), running)));
            }
            // The disk syncs more slowly than operations come: they wait for it.
            drop(running);
            self.device.commits.commit().await?;
        }
    }

    async fn commit(&self) -> Result<(), OsdError> {
        self.device.check()?;
        self.device.commits.commit().await
    }

    async fn read(&self, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError> {
        self.device.check()?;
        self.device.objects.read(object, offset, len).await
    }

    async fn write_extents(&self, object: Fid, extents: Vec<(u64, Payload)>) -> Result<(), OsdError> {
        self.device.admit().await?;
        self.device.check_room(extents.iter().map(|(_, data)| data.len() as u64).sum())?;
        let written = self.device.objects.write(object, extents).await;
        if self.device.noted(written)? {
            self.device.commits.hint();
        }
        Ok(())
    }

    async fn truncate(&self, object: Fid, size: u64) -> Result<(), OsdError> {
        self.device.admit().await?;
        let truncated = self.device.objects.truncate(object, size).await;
        self.device.noted(truncated)
    }

    async fn punch(&self, object: Fid, range: Range<u64>) -> Result<(), OsdError> {
        self.device.admit().await?;
        check_range(&range)?;
        let punched = self.device.objects.punch(object, range).await;
        self.device.noted(punched)
    }

    async fn allocate(&self, object: Fid, range: Range<u64>, mode: AllocateMode) -> Result<(), OsdError> {
        self.device.admit().await?;
        check_range(&range)?;
        self.device.check_room(range.end - range.start)?;
        self.device.check_allocation(object, &range).await?;
        let allocated = self.device.objects.allocate(object, range, mode).await;
        self.device.noted(allocated)
    }

    async fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError> {
        self.device.check()?;
        self.device.objects.seek(object, offset, what).await
    }

    async fn extents(&self, object: Fid, offset: u64, limit: usize) -> Result<(Vec<Placed>, Option<u64>), OsdError> {
        self.device.check()?;
        self.device.objects.extents(object, offset, limit).await
    }

    async fn stat(&self, object: Fid) -> Result<Option<ObjectStat>, OsdError> {
        self.device.check()?;
        self.device.objects.stat(object).await
    }

    async fn sync_object(&self, object: Fid) -> Result<(), OsdError> {
        self.device.check()?;
        match self.device.objects.sync(object).await {
            Err(e @ OsdError::Io { what: objects::SYNC, .. }) => Err(self.device.poison(objects::SYNC, &e)),
            other => other,
        }
    }

    async fn remove(&self, object: Fid) -> Result<(), OsdError> {
        self.device.admit().await?;
        let removed = self.device.objects.remove(object).await;
        self.device.noted(removed)
    }

    async fn list_objects(&self) -> Result<Vec<Fid>, OsdError> {
        self.device.check()?;
        self.device.objects.list().await
    }

    async fn statfs(&self) -> Result<StatFs, OsdError> {
        self.device.check()?;
        self.device.statfs()
    }

    fn object_bytes_max(&self) -> u64 {
        self.device.object_bytes_max
    }

    fn stats(&self) -> OsdStats {
        self.device.recorder.counters()
    }

    fn io_stats(&self) -> IoStats {
        self.device.recorder.shapes()
    }

    fn clear_io_stats(&self) {
        self.device.recorder.clear_shapes();
    }

    fn is_poisoned(&self) -> bool {
        self.device.poisoned.load(Ordering::Acquire)
    }

    fn full(&self) -> Option<Full> {
        self.device.full.lock().full()
    }

    fn is_taken(&self) -> bool {
        self.device.mmp.as_ref().is_some_and(Mmp::is_lost)
    }

    async fn close(&self) -> Result<(), OsdError> {
        if self.device.closed.swap(true, Ordering::AcqRel) {
            return Err(OsdError::Closed);
        }
        let committed = self.device.commits.commit().await;
        self.device.commits.stop();
        let thread = self.committer.lock().take();
        if let Some(t) = thread {
            let _ = tokio::task::spawn_blocking(move || t.join()).await;
        }
        // From here on the target may be opened again, whoever still has this handle.
        let mut running = self.device.running.lock().await;
        running.txn = None;
        running.index = None;
        drop(running);
        *self.device.journal.lock() = None;
        let device = self.device.clone();
        let _ = tokio::task::spawn_blocking(move || device.mmp.as_ref().map(Mmp::release)).await;
        let _ = self.device.lock.0.unlock();
        committed
    }
}

impl Device {
    fn check(&self) -> Result<(), OsdError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(OsdError::Closed);
        }
        if self.poisoned.load(Ordering::Acquire) {
            return Err(OsdError::Poisoned);
        }
        Ok(())
    }

    /// As [`Device::check`], for what changes the target: waits while it may not be ours any more.
    async fn admit(&self) -> Result<(), OsdError> {
        self.check()?;
        while self.mmp.as_ref().is_some_and(|mmp| !mmp.is_valid()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.check()?;
        }
        Ok(())
    }

    /// Waits until the target may be changed; an error if it never may again. Blocks.
    fn wait_until_ours(&self) -> Result<(), OsdError> {
        match &self.mmp {
            Some(mmp) if !mmp.wait_valid() => Err(self.handle_taken(mmp.status().lost_to.as_deref())),
            _ => Ok(()),
        }
    }

    /// Another node has the target: the device stops.
    fn handle_taken(&self, by: Option<&str>) -> OsdError {
        let by = by.unwrap_or("another node");
        let error = self.stop(&format!("multi-mount protection: {by} has taken the target over; the target stops"));
        self.taken.send_replace(true);
        error
    }

    /// Stops the device for good: after a failed sync the kernel may have dropped what it could not write, so trying
    /// again would only seem to succeed.
    fn poison(&self, what: &str, why: &dyn std::fmt::Display) -> OsdError {
        self.stop(&format!(
            "{what}: {why}; the target stops, other targets go on. Nothing that was acknowledged is lost; look into the \
             kernel's log for what its disk has, then stop and start the target's server"
        ))
    }

    /// Stops the device for good, and says why.
    fn stop(&self, why: &str) -> OsdError {
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!("{}: {why}", self.label.target);
        }
        OsdError::Poisoned
    }

    /// Refuses data when only the reserve is left.
    fn check_room(&self, len: u64) -> Result<(), OsdError> {
        let written = self.written.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        // Often enough that the reserve cannot be used up between two looks.
        if written >= SPACE_CHECK_BYTES || self.space_low.load(Ordering::Relaxed) {
            self.check_space();
        }
        if self.space_low.load(Ordering::Relaxed) {
            return Err(OsdError::Io { what: "write", errno: Errno::ENOSPC });
        }
        Ok(())
    }

    /// Refuses to reserve more than there is: done part by part, it would fill the device before it failed.
    async fn check_allocation(&self, object: Fid, range: &Range<u64>) -> Result<(), OsdError> {
        let available = self.statfs()?.available_bytes;
        if range.end - range.start <= available {
            return Ok(());
        }
        let has = self.objects.stat(object).await?.unwrap_or_default().blocks.saturating_mul(512);
        if range.end - range.start > available.saturating_add(has) {
            return Err(OsdError::Io { what: "allocate", errno: Errno::ENOSPC });
        }
        Ok(())
    }

    /// Passes on the outcome of a change of object data. After an I/O error, or where nothing can be written any more, no
    /// other change would fare better.
    fn noted<T>(&self, result: Result<T, OsdError>) -> Result<T, OsdError> {
        let Err(e) = &result else { return result };
        match e.errno() {
            Errno::ENOSPC => self.check_space(),
            Errno::EIO => return Err(self.poison("its disk fails", e)),
            Errno::EROFS => return Err(self.poison("its file system has become read-only", e)),
            _ => {}
        }
        result
    }

    fn check_space(&self) {
        self.written.store(0, Ordering::Relaxed);
        if let Ok(fs) = self.statfs() {
            self.space_low.store(fs.available_bytes == 0, Ordering::Relaxed);
            let of_objects = self.label.target.kind == TargetKind::Ost;
            if let Some(news) = self.full.lock().handle_statfs(&fs, of_objects) {
                tracing::warn!("{} {news}", self.label.target);
            }
        }
    }

    fn statfs(&self) -> Result<StatFs, OsdError> {
        let fs = room::statfs(&self.lock.0)?;
        let reserve = self.options.reserve_bytes.unwrap_or(RESERVE_BYTES.min(fs.total_bytes / 32));
        // The index may grow into what object data leaves.
        let may_grow = self.index_growth_max(&fs);
        let of_index = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed).saturating_add(may_grow);
        let records_available_bytes = of_index(&self.records_available);
        Ok(StatFs {
            available_bytes: fs.available_bytes.saturating_sub(reserve),
            records_available_bytes,
            records_free_bytes: of_index(&self.records_free),
            files_free: fs.files_free.min(records_available_bytes / RECORD_BYTES),
            disk: self.disk,
            ..fs
        })
    }
}

/// Opens the journal, and has the index carry out what it says.
fn recover(place: &Path, label: &Label, index: &Index, tables: &[Table]) -> Result<Journal, OsdError> {
    let mut txn = index.begin()?;
    let seq = match index.get(&txn, journal::TABLE, journal::SEQ)? {
        Some(seq) => {
            u64::from_le_bytes(seq.try_into().map_err(|_| OsdError::corrupt(place, "no number in the index"))?)
        }
        None => 0,
    };
    let mut carry_out = |change: journal::Change<'_>| {
        let unknown = || OsdError::corrupt(place, format!("speaks of a table {:?}", change.table));
        let table = *tables.iter().find(|table| table.0 == change.table).ok_or_else(unknown)?;
        match change.value {
            Some(value) => index.put(&mut txn, table, change.key, value),
            None => index.delete(&mut txn, table, change.key).map(drop),
        }
    };
    let mut journal = Journal::open(place, &label.target, label.uuid, seq, &mut carry_out)?;
    if journal.seq() > seq {
        tracing::info!(target = %label.target, records = journal.seq() - seq, "recovered from the journal");
        index.put(&mut txn, journal::TABLE, journal::SEQ, &journal.seq().to_le_bytes())?;
        let id = index.flush(txn)?;
        index.sync(id).map_err(|e| OsdError::io("syncing the index", &e))?;
    }
    journal.restart();
    Ok(journal)
}

/// Space in the index that a file takes, about.
const RECORD_BYTES: u64 = 512;
/// Space that is kept for the index by default.
const RESERVE_BYTES: u64 = 256 << 20;
/// Data written between two looks at the free space.
const SPACE_CHECK_BYTES: u64 = RESERVE_BYTES / 4;

/// Takes the target over; when it is lost, the device stops.
fn claim(dir: &Path, options: &MmpOptions, device: Arc<OnceLock<Weak<Device>>>) -> Result<Mmp, OsdError> {
    Mmp::claim(dir, options, move |by| {
        if let Some(device) = device.get().and_then(Weak::upgrade) {
            device.handle_taken(Some(by));
        }
    })
}

fn lock(dir: &Path) -> Result<Lock, OsdError> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join("lock"));
    let file = file.map_err(|e| OsdError::io("opening the target's lock", &e))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(OsdError::InUse(dir.to_owned())),
        Err(TryLockError::Error(e)) => Err(OsdError::io("locking the target", &e)),
    }
}

/// File descriptors that this process may have.
fn descriptors_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: getrlimit only fills what it is given.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod tests;
