//! The device on a real file system: a directory with
//!
//! - `format`: the identity of the target ([`Label`]);
//! - `lock`: locked while the target is open, so that no two processes open it;
//! - `mmp`: the holder of the target, where several nodes can reach it (multi-mount protection);
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
mod device;
mod file;
mod index;
mod journal;
mod label;
mod mmp;
mod names;
mod objects;
mod options;
mod pieces;
mod ring;
mod room;
mod sigbus;
mod transaction;
mod tree_use;
mod undo;
mod unsynced;

pub use label::{FORMAT_VERSION, Label, format, read_label, write_label};
pub use mmp::{MmpOptions, MmpStatus};
pub use options::{DiskOptions, IoEngine};

use crate::io_stats::Recorder;
use crate::parts::{Gathering, Parts};
use crate::space::{Full, PAGE};
use crate::{
    AllocateMode, IoStats, ObjectStat, Osd, OsdError, OsdStats, PARTS_MAX, Placed, Seek, StatFs, Table, Transaction,
    check_range,
};
use async_trait::async_trait;
use commit::Commits;
use device::{Device, Lock, Logging, Running};
use index::Index;
use journal::Journal;
use mmp::Mmp;
use nacre_base::{Fid, Payload};
use objects::Objects;
use parking_lot::Mutex;
use std::fs::{File, TryLockError};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use tokio::sync::watch;
use transaction::DiskTransaction;
use tree_use::TreeUse;
use undo::UndoLog;

/// An opened target directory. Needs a tokio runtime around its async methods.
pub struct DiskOsd {
    device: Arc<Device>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

/// Number of parts that the objects of a target in `dir` should have: several, or one on a disk with a moving head,
/// because neighbouring data of an object should be neighbours on such a disk. See [`Label::parts`].
pub fn suitable_parts(dir: &Path) -> u32 {
    let existing = dir.ancestors().find_map(|dir| File::open(dir).ok());
    if existing.is_some_and(|dir| calls::is_rotational(&dir)) { 1 } else { PARTS_MAX }
}

impl DiskOsd {
    /// Opens the target in `dir`, at its last durable commit. Missing tables are made. Blocks.
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

    /// Waits until another node has taken the target over. Resolves to false if the device is dropped before that.
    pub fn taken(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut taken = self.device.taken.subscribe();
        async move { taken.wait_for(|taken| *taken).await.is_ok() }
    }

    /// State of multi-mount protection, if it is on.
    pub fn mmp_status(&self) -> Option<MmpStatus> {
        self.device.mmp.as_ref().map(Mmp::status)
    }

    /// Label of the target.
    pub fn label(&self) -> &Label {
        &self.device.label
    }
}

impl Drop for DiskOsd {
    /// Like a crash: changes that are not committed are lost.
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
            // The disk syncs more slowly than operations come, so they wait for it.
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
        // From here on the target may be opened again, even if others still have this handle.
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

/// Opens the journal, and lets the index carry out its records.
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

/// Takes the target over. If the lease is lost later, the device stops.
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
