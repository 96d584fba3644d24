//! The device in memory, for the simulator: the same semantics as [`crate::disk`], plus a [`DiskModel`] that makes
//! requests take virtual time, crashes of two kinds, and fault points.
//!
//! The medium outlives the opened device: [`MemOsd::crash`] ends an opening, [`MemOsd::reopen`] opens the medium again.
//! Fault points: `osd.read` and `osd.write` (fail, delay, corrupt; a dropped write is lost silently), `osd.commit`
//! (fail poisons the device, delay); crash at any of them is [`Crash::Process`] of this device alone.

mod elevator;
mod index;
mod model;
mod object;
mod page_cache;
mod records;

pub use model::DiskModel;

use crate::io_stats::{CommitTimes, Recorder};
use crate::space::{Claim, Cost, FullWatch, PAGE, Space, Taken};
use crate::{
    AllocateMode, CommitCallback, Full, IoStats, ObjectStat, Osd, OsdError, OsdStats, PendingData, Seek, SpaceLimits,
    StatFs, Table, Transaction, Visitor, check_key, check_range, range_end,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use elevator::Elevator;
use index::Index;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Faults, Fid, Payload, Prng, Time};
use nacre_rt::Rt;
use object::{Change, Object};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};

/// Options of a device in memory.
#[derive(Clone, Debug)]
pub struct MemOptions {
    /// Cost of requests.
    pub model: DiskModel,
    /// Time for which each transaction holds its turn before it changes anything, for the processor's work.
    pub turn: Duration,
    /// The longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Bytes of object data that fit.
    pub capacity_bytes: u64,
    /// Bytes of records that fit, with what the index needs around them.
    pub index_bytes: u64,
    /// Space that the index keeps for removals.
    pub space: SpaceLimits,
    /// The node's fault points.
    pub faults: Faults,
}

impl Default for MemOptions {
    fn default() -> MemOptions {
        MemOptions {
            model: DiskModel::FREE,
            turn: Duration::ZERO,
            commit_interval: Duration::from_secs(5),
            capacity_bytes: 1 << 44,
            index_bytes: 1 << 44,
            space: SpaceLimits::default(),
            faults: Faults::new(),
        }
    }
}

/// Ways for a device to end without being closed. The running transaction is always lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process dies: data writes survive in the page cache.
    Process,
    /// Power is cut: data that was not synced is lost too.
    PowerCut,
    /// Power is cut, and part of the data under way reaches the medium: each unsynced write is kept, lost or torn, a
    /// removed object may be back, a commit under way may have become durable without being reported.
    PowerCutTorn {
        /// Seed that decides which part.
        seed: u64,
    },
}

/// A device in memory. Dropping it is a crash of the process.
pub struct MemOsd {
    inner: Arc<Inner>,
}

/// An opened device.
struct Inner {
    rt: Rt,
    options: MemOptions,
    medium: Arc<RwLock<Medium>>,
    disk: Mutex<model::Disk>,
    /// The requests that wait for a disk which orders them.
    elevator: Mutex<Elevator<oneshot::Sender<()>>>,
    /// Factor by which an ordering disk takes longer for a request than its model says.
    slower: AtomicU32,
    /// Number of this opening; the opening is over when the medium's number has moved on.
    generation: u64,
    /// Held by the operation that has the turn at the running transaction.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Callers that wait for the next commit to begin.
    waiting: Mutex<Vec<oneshot::Sender<Result<(), OsdError>>>>,
    /// Wakes the committer: a caller waits, the first change after a commit was made, or the device is dropped.
    wake: Arc<Notify>,
    poisoned: AtomicBool,
    /// Kind of space that the device lacks.
    full: Mutex<FullWatch>,
    recorder: Recorder,
}

/// The state that survives a crash: the running state, with logs to undo what is not durable.
struct Medium {
    generation: u64,
    index: Index,
    objects: BTreeMap<Fid, Object>,
    /// Bytes of all objects.
    used: u64,
    /// Objects with unsynced changes.
    unsynced: BTreeSet<Fid>,
    /// Objects removed since the last commit began, then until it is durable.
    removed: Vec<(Fid, Object)>,
    /// The commit under way covers index changes up to this number.
    committing: Option<u64>,
    /// Data of finished operations that the next commit must wait for. In a mutex only to be `Sync`.
    pending: Mutex<Vec<PendingData>>,
    /// Space of the index, and the pages that the running transaction has taken of it.
    space: Space,
    taken: u64,
}

impl MemOsd {
    /// A new, empty device.
    pub fn new(rt: &Rt, tables: &[Table], options: MemOptions) -> MemOsd {
        let medium = Medium {
            generation: 0,
            index: Index::new(tables),
            objects: BTreeMap::new(),
            used: 0,
            unsynced: BTreeSet::new(),
            removed: Vec::new(),
            committing: None,
            pending: Mutex::default(),
            space: measure(&options, 0),
            taken: 0,
        };
        MemOsd::open(rt, Arc::new(RwLock::new(medium)), options)
    }

    /// Makes a disk with an elevator take this many times longer for each request than its model says, from now on.
    pub fn set_slower(&self, times: u32) {
        assert!(self.inner.options.model.elevator && times > 0, "a disk without an elevator, or {times} times slower");
        self.inner.slower.store(times, Ordering::Relaxed);
    }

    /// Ends the current opening of the medium, if any, as `crash` says. Its operations fail with [`OsdError::Closed`]
    /// from now on; its commit callbacks are dropped.
    pub fn crash(&self, crash: Crash) {
        self.inner.crash(crash);
    }

    /// Opens the medium again, in `rt`'s scope; if it is still open, its process crashes first.
    pub fn reopen(&self, rt: &Rt, tables: &[Table]) -> MemOsd {
        self.crash(Crash::Process);
        let options = self.inner.options.clone();
        {
            let mut medium = self.inner.medium.write();
            medium.index.add_tables(tables);
            (medium.space, medium.taken) = (measure(&options, medium.index.pages()), 0);
        }
        MemOsd::open(rt, self.inner.medium.clone(), options)
    }

    /// Makes the disk larger, so that the index can have `bytes`.
    pub fn grow_index(&self, bytes: u64) {
        self.inner.medium.write().space.handle_growth(bytes / PAGE, false);
    }

    fn open(rt: &Rt, medium: Arc<RwLock<Medium>>, options: MemOptions) -> MemOsd {
        let generation = medium.read().generation;
        let inner = Arc::new(Inner {
            rt: rt.clone(),
            disk: Mutex::new(model::Disk::new(options.model)),
            elevator: Mutex::default(),
            slower: AtomicU32::new(1),
            options,
            medium,
            generation,
            turn: Arc::default(),
            waiting: Mutex::default(),
            wake: Arc::default(),
            poisoned: AtomicBool::new(false),
            full: Mutex::default(),
            recorder: Recorder::default(),
        });
        rt.spawn(run_committer(Arc::downgrade(&inner), inner.wake.clone(), rt.clone()));
        MemOsd { inner }
    }
}

impl Drop for MemOsd {
    fn drop(&mut self) {
        if self.inner.medium.read().generation == self.inner.generation {
            self.inner.crash(Crash::Process);
        }
        self.inner.wake.notify_one();
    }
}

#[async_trait]
impl Osd for MemOsd {
    async fn begin(&self) -> Result<Box<dyn Transaction>, OsdError> {
        let (turn, (undo_to, was_clean, taken_before)) = loop {
            let turn = self.inner.turn.clone().lock_owned().await;
            if !self.inner.options.turn.is_zero() {
                self.inner.rt.sleep(self.inner.options.turn).await;
            }
            {
                let medium = self.inner.live()?;
                if !medium.space.is_crowded(medium.taken()) {
                    break (turn, (medium.index.changes(), medium.is_clean(), medium.taken));
                }
            }
            drop(turn);
            self.inner.commit().await?;
        };
        let device = self.inner.clone();
        Ok(Box::new(MemTransaction {
            device,
            undo_to,
            was_clean,
            taken_before,
            claim: Claim::Ordinary,
            callbacks: Vec::new(),
            pending: Vec::new(),
            done: false,
            turn,
        }))
    }

    async fn commit(&self) -> Result<(), OsdError> {
        self.inner.commit().await
    }

    async fn read(&self, object: Fid, offset: u64, len: usize) -> Result<Payload, OsdError> {
        drop(self.inner.live()?);
        let fault = self.inner.fault("osd.read").await?;
        let range = offset..offset.saturating_add(len as u64);
        if self.inner.options.model.elevator {
            self.inner.ride(object, std::slice::from_ref(&range)).await;
        } else {
            self.inner.pay(|disk, now| disk.handle_read(now, object, range)).await;
        }
        let medium = self.inner.live()?;
        let mut data = medium.objects.get(&object).map(|o| o.read(offset, len)).unwrap_or_default();
        if fault == Some(FaultAction::Corrupt) {
            data = corrupted(&data);
        }
        Ok(data)
    }

    async fn write_extents(&self, object: Fid, mut extents: Vec<(u64, Payload)>) -> Result<(), OsdError> {
        for (offset, data) in &extents {
            range_end(*offset, data.len() as u64)?;
        }
        drop(self.inner.live()?);
        extents.retain(|(_, data)| !data.is_empty());
        if extents.is_empty() {
            return Ok(());
        }
        let ranges: Vec<_> = extents.iter().map(|(offset, data)| *offset..offset + data.len() as u64).collect();
        if self.inner.options.model.elevator {
            self.inner.ride(object, &ranges).await;
        } else {
            self.inner.pay(|disk, now| disk.handle_write(now, object, &ranges)).await;
        }
        for (offset, data) in extents {
            // Checked at each extent, so that a write can fail half way.
            match self.inner.fault("osd.write").await? {
                Some(FaultAction::Drop) => {}
                Some(FaultAction::Corrupt) => {
                    self.inner.change(object, Change::Write { offset, data: corrupted(&data) })?;
                }
                _ => self.inner.change(object, Change::Write { offset, data })?,
            }
        }
        Ok(())
    }

    async fn truncate(&self, object: Fid, size: u64) -> Result<(), OsdError> {
        range_end(size, 0)?;
        self.inner.change(object, Change::Truncate { size })
    }

    async fn punch(&self, object: Fid, range: Range<u64>) -> Result<(), OsdError> {
        check_range(&range)?;
        if !self.inner.live()?.objects.contains_key(&object) {
            return Ok(());
        }
        self.inner.change(object, Change::Punch { range })
    }

    async fn allocate(&self, object: Fid, range: Range<u64>, mode: AllocateMode) -> Result<(), OsdError> {
        check_range(&range)?;
        self.inner.change(object, Change::Allocate { range, mode })
    }

    async fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<Option<u64>, OsdError> {
        Ok(self.inner.live()?.objects.get(&object).and_then(|o| o.seek(offset, what)))
    }

    async fn stat(&self, object: Fid) -> Result<Option<ObjectStat>, OsdError> {
        Ok(self.inner.live()?.objects.get(&object).map(Object::stat))
    }

    async fn sync_object(&self, object: Fid) -> Result<(), OsdError> {
        let upto = match self.inner.live()?.objects.get(&object) {
            Some(o) => o.changes(),
            None => return Ok(()),
        };
        self.inner.pay(|disk, now| disk.handle_sync(now, object)).await;
        self.inner.live_mut()?.synced(object, upto);
        Ok(())
    }

    async fn remove(&self, object: Fid) -> Result<(), OsdError> {
        let mut medium = self.inner.live_mut()?;
        let was_clean = medium.is_clean();
        if let Some(o) = medium.objects.remove(&object) {
            assert!(o.bytes() <= medium.used, "an object has {} bytes of {} in use", o.bytes(), medium.used);
            medium.used -= o.bytes();
            medium.unsynced.remove(&object);
            medium.removed.push((object, o));
        }
        drop(medium);
        self.inner.disk.lock().handle_remove(object);
        self.inner.wake_if(was_clean);
        Ok(())
    }

    async fn list_objects(&self) -> Result<Vec<Fid>, OsdError> {
        Ok(self.inner.live()?.objects.keys().copied().collect())
    }

    async fn statfs(&self) -> Result<StatFs, OsdError> {
        Ok(self.inner.statfs(&*self.inner.live()?))
    }

    fn stats(&self) -> OsdStats {
        self.inner.recorder.counters()
    }

    fn io_stats(&self) -> IoStats {
        let disk = self.inner.disk.lock();
        IoStats { commits: self.inner.recorder.shapes().commits, ..disk.shapes().clone() }
    }

    fn clear_io_stats(&self) {
        self.inner.recorder.clear_shapes();
        self.inner.disk.lock().clear_shapes();
    }

    fn is_poisoned(&self) -> bool {
        self.inner.poisoned.load(Ordering::Relaxed)
    }

    fn full(&self) -> Option<Full> {
        self.inner.full.lock().full()
    }

    async fn close(&self) -> Result<(), OsdError> {
        let committed = self.inner.commit().await;
        self.inner.crash(Crash::Process);
        committed
    }
}

impl Inner {
    /// The medium, if this opening of it is alive and well.
    fn live(&self) -> Result<RwLockReadGuard<'_, Medium>, OsdError> {
        // Recursive, because a scan's visitor may read through the same transaction.
        let medium = self.medium.read_recursive();
        self.check(&medium)?;
        Ok(medium)
    }

    fn live_mut(&self) -> Result<RwLockWriteGuard<'_, Medium>, OsdError> {
        let medium = self.medium.write();
        self.check(&medium)?;
        Ok(medium)
    }

    fn check(&self, medium: &Medium) -> Result<(), OsdError> {
        if medium.generation != self.generation {
            return Err(OsdError::Closed);
        }
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(OsdError::Poisoned);
        }
        Ok(())
    }

    fn statfs(&self, medium: &Medium) -> StatFs {
        let (total, files_total) = (self.options.capacity_bytes, 1 << 32);
        let free = total.saturating_sub(medium.used);
        StatFs {
            total_bytes: total,
            free_bytes: free,
            available_bytes: free,
            records_available_bytes: medium.space.available(medium.taken()) * PAGE,
            records_free_bytes: medium.space.free(medium.taken()) * PAGE,
            files_total,
            files_free: files_total.saturating_sub(medium.objects.len() as u64),
            disk: 0,
        }
    }

    /// Handles a fault point. Returns an action that is left to the caller.
    async fn fault(&self, point: &'static str) -> Result<Option<FaultAction>, OsdError> {
        let action = self.options.faults.check(point);
        match action {
            Some(FaultAction::Fail(errno)) => return Err(OsdError::Io { what: point, errno }),
            Some(FaultAction::Delay(d)) => self.rt.sleep(d).await,
            Some(FaultAction::Crash) => {
                self.crash(Crash::Process);
                return Err(OsdError::Closed);
            }
            Some(FaultAction::Drop | FaultAction::Corrupt) | None => {}
        }
        Ok(action)
    }

    /// Waits as long as the disk takes.
    async fn pay(&self, request: impl FnOnce(&mut model::Disk, Time) -> Time) {
        if self.options.model != DiskModel::FREE {
            let now = self.rt.now();
            let done = request(&mut self.disk.lock(), now);
            if done > now {
                self.rt.sleep_until(done).await;
            }
        }
    }

    /// Waits until a disk that orders its requests has served these.
    async fn ride(self: &Arc<Self>, object: Fid, ranges: &[Range<u64>]) {
        let mut served = Vec::with_capacity(ranges.len());
        let mut was_idle = false;
        {
            let mut elevator = self.elevator.lock();
            for range in ranges {
                let (tell, told) = oneshot::channel();
                was_idle |= elevator.handle_request(object, range, tell);
                served.push(told);
            }
        }
        if was_idle {
            let device = self.clone();
            drop(self.rt.spawn(async move { device.move_head().await }));
        }
        for told in served {
            // After a crash the sender is dropped and this returns at once; the caller then finds that the device is closed.
            let _ = told.await;
        }
    }

    /// Serves requests until none waits.
    async fn move_head(self: Arc<Self>) {
        loop {
            let next = self.elevator.lock().start(&self.options.model);
            let Some((takes, caller)) = next else { return };
            self.rt.sleep(takes * self.slower.load(Ordering::Relaxed)).await;
            let _ = caller.send(());
        }
    }

    fn change(&self, object: Fid, change: Change) -> Result<(), OsdError> {
        let mut medium = self.live_mut()?;
        let was_clean = medium.is_clean();
        medium.change(object, change, self.options.capacity_bytes)?;
        drop(medium);
        self.wake_if(was_clean);
        Ok(())
    }

    fn wake_if(&self, was_clean: bool) {
        if was_clean {
            self.wake.notify_one();
        }
    }

    fn crash(&self, crash: Crash) {
        let lost = self.medium.write().crash(crash);
        drop(lost); // outside the lock: they may own anything
        for waiter in self.waiting.lock().drain(..) {
            let _ = waiter.send(Err(OsdError::Closed));
        }
    }

    async fn commit(&self) -> Result<(), OsdError> {
        drop(self.live()?);
        let (tell, told) = oneshot::channel();
        self.waiting.lock().push(tell);
        self.wake.notify_one();
        told.await.unwrap_or(Err(OsdError::Closed))
    }

    /// Runs one commit, for all callers that wait when it begins.
    async fn run_commit(&self) {
        // With the turn taken no operation is half done.
        let turn = self.turn.lock().await;
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let begun = self.live_mut().map(|mut m| (m.index.begin_commit(), std::mem::take(m.pending.get_mut())));
        drop(turn);
        let result = match begun {
            Ok((index, pending)) => self.finish_commit(index, pending).await,
            Err(e) => Err(e),
        };
        for waiter in waiting {
            let _ = waiter.send(result.clone());
        }
    }

    async fn finish_commit(&self, index: index::Commit, pending: Vec<PendingData>) -> Result<(), OsdError> {
        let begin = self.rt.now();
        if let Err(e) = self.wait_for(pending).await {
            return Err(self.poison(e));
        }
        // Only from here on may any of the changes become durable.
        let commit = self.live_mut()?.begin_commit(index);
        if let Err(e) = self.fault("osd.commit").await {
            return Err(self.poison(e));
        }
        self.pay(|disk, now| disk.handle_commit(now, commit.index.bytes)).await;
        let fs = {
            let mut medium = self.live_mut()?;
            medium.end_commit(&commit);
            self.statfs(&medium)
        };
        if let Some(news) = self.full.lock().handle_statfs(&fs, true) {
            tracing::warn!("{} {news}", self.rt.name());
        }
        let took = self.rt.now() - begin;
        self.recorder.commit(CommitTimes { took, stall: Duration::ZERO, changes: commit.index.changes });
        commit.index.callbacks.into_iter().for_each(|f| f());
        Ok(())
    }

    /// Waits for data whose operations are finished.
    async fn wait_for(&self, pending: Vec<PendingData>) -> Result<(), OsdError> {
        for data in pending {
            data.await.unwrap_or(Err(OsdError::Io { what: "data that was given up", errno: Errno::EIO }))?;
        }
        Ok(())
    }

    /// Stops the device, if a crash has not done so already.
    fn poison(&self, why: OsdError) -> OsdError {
        if why == OsdError::Closed || self.medium.read().generation != self.generation {
            return OsdError::Closed;
        }
        if !self.poisoned.swap(true, Ordering::Relaxed) {
            tracing::error!("{}: commit failed, the device stops: {why}", self.rt.name());
        }
        OsdError::Poisoned
    }

    /// The next work of the committer.
    fn wanted(&self) -> Wanted {
        if !self.waiting.lock().is_empty() {
            return Wanted::Now;
        }
        match self.live() {
            Ok(medium) if medium.space.wants_settling(medium.taken()) => Wanted::Now,
            Ok(medium) if !medium.is_clean() => Wanted::Later,
            _ => Wanted::Never,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Wanted {
    /// A caller waits, or was refused space that there may be.
    Now,
    /// At the end of the commit interval.
    Later,
    /// There is nothing to commit, or the device has failed.
    Never,
}

/// Commits when a caller waits, and `commit_interval` after the first change. Sets no timer while nothing changes.
async fn run_committer(device: Weak<Inner>, wake: Arc<Notify>, rt: Rt) {
    let mut deadline = None;
    loop {
        let Some(inner) = device.upgrade() else { return };
        match inner.wanted() {
            Wanted::Later if deadline.is_none() => deadline = Some(rt.now() + inner.options.commit_interval),
            Wanted::Later if deadline.is_some_and(|d| rt.now() < d) => {}
            Wanted::Never => deadline = None,
            Wanted::Now | Wanted::Later => {
                inner.run_commit().await;
                deadline = None;
                continue;
            }
        }
        drop(inner);
        match deadline {
            Some(d) => {
                let _ = rt.timeout_at(d, wake.notified()).await;
            }
            None => wake.notified().await,
        }
    }
}

/// Changes and objects that a commit covers.
struct MediumCommit {
    index: index::Commit,
    objects: Vec<(Fid, u64)>,
    removed: usize,
}

impl Medium {
    fn taken(&self) -> Taken {
        Taken { pages: self.taken, used: self.index.pages(), ..Taken::default() }
    }

    fn is_clean(&self) -> bool {
        self.unsynced.is_empty() && self.removed.is_empty() && !self.index.is_dirty() && self.pending.lock().is_empty()
    }

    fn change(&mut self, fid: Fid, change: Change, capacity: u64) -> Result<(), OsdError> {
        let adds = matches!(change, Change::Write { .. });
        let object = self.objects.entry(fid).or_default();
        let before = object.bytes();
        object.apply(change);
        assert!(before <= self.used, "{fid:?} has {before} bytes, of {} in use", self.used);
        let used = self.used - before + object.bytes();
        if adds && used > capacity {
            let undone = object.undo();
            assert!(undone && object.bytes() == before, "{fid:?} had {before} bytes, and has {}", object.bytes());
            return Err(OsdError::Io { what: "write", errno: Errno::ENOSPC });
        }
        self.used = used;
        self.unsynced.insert(fid);
        Ok(())
    }

    fn synced(&mut self, fid: Fid, upto: u64) {
        if let Some(o) = self.objects.get_mut(&fid) {
            o.mark_synced(upto);
            if o.is_synced() {
                self.unsynced.remove(&fid);
            }
        }
    }

    /// Everything that the commit covers is on its way to the medium from here on.
    fn begin_commit(&mut self, index: index::Commit) -> MediumCommit {
        let (taken, used) = (std::mem::take(&mut self.taken), self.index.pages());
        self.space.handle_flush(taken, used, 0);
        assert!(self.committing.is_none(), "a commit begins while one up to {:?} is under way", self.committing);
        self.committing = Some(index.upto);
        let changes = |fid: &Fid| self.objects.get(fid).map(|o| (*fid, o.changes()));
        MediumCommit { index, objects: self.unsynced.iter().filter_map(changes).collect(), removed: self.removed.len() }
    }

    fn end_commit(&mut self, commit: &MediumCommit) {
        for (fid, upto) in &commit.objects {
            self.synced(*fid, *upto);
        }
        assert_eq!(self.committing, Some(commit.index.upto), "the commit under way, and the one that ends");
        self.removed.drain(..commit.removed);
        self.index.end_commit(commit.index.upto);
        self.committing = None;
    }

    /// Undoes the changes that do not survive. Returns the callbacks that will never be called.
    fn crash(&mut self, crash: Crash) -> Vec<CommitCallback> {
        self.generation += 1;
        let mut prng = match crash {
            Crash::PowerCutTorn { seed } => Some(Prng::new(seed)),
            Crash::Process | Crash::PowerCut => None,
        };
        let committing = self.committing.take();
        self.pending.get_mut().clear();
        if let (Some(prng), Some(upto)) = (&mut prng, committing)
            && prng.one_in(2)
        {
            // In that case the data was durable before.
            self.index.end_commit(upto);
            let unsynced: Vec<Fid> = self.unsynced.iter().copied().collect();
            unsynced.into_iter().for_each(|fid| self.synced(fid, u64::MAX));
        }
        if crash != Crash::Process {
            self.cut_power(prng.as_mut());
        }
        self.index.crash()
    }

    fn cut_power(&mut self, mut prng: Option<&mut Prng>) {
        for (fid, object) in std::mem::take(&mut self.removed) {
            if prng.as_mut().is_some_and(|p| p.one_in(2)) {
                self.objects.entry(fid).or_insert(object);
            }
        }
        for fid in std::mem::take(&mut self.unsynced) {
            let Some(object) = self.objects.get_mut(&fid) else { continue };
            object.cut_power(prng.as_deref_mut());
            if object.changes() == 0 {
                self.objects.remove(&fid);
            }
        }
        self.used = self.objects.values().map(Object::bytes).sum();
    }
}

/// A turn at the running transaction.
struct MemTransaction {
    device: Arc<Inner>,
    /// The index's changes when the turn began.
    undo_to: u64,
    /// True if there was nothing to commit when the turn began.
    was_clean: bool,
    /// Pages that the running transaction had taken when the turn began.
    taken_before: u64,
    claim: Claim,
    callbacks: Vec<CommitCallback>,
    pending: Vec<PendingData>,
    done: bool,
    /// Dropped last.
    #[allow(dead_code)] // held, not read
    turn: OwnedMutexGuard<()>,
}

impl MemTransaction {
    /// Returns the medium, if it has space for one more change.
    fn make_room(&self, value_len: usize) -> Result<RwLockWriteGuard<'_, Medium>, OsdError> {
        let mut medium = self.device.live_mut()?;
        let by_operation = medium.taken.saturating_sub(self.taken_before);
        let taken = Taken { by_operation, ..medium.taken() };
        let next = Cost { pages: CHANGE_PAGES + value_len as u64 / PAGE, run: 0 };
        let refused = medium.space.check(self.claim, taken, next, by_operation == 0);
        if refused.is_err() {
            drop(medium);
            // There may be space, but it is not known yet.
            self.device.wake.notify_one();
            return Err(OsdError::Io { what: "changing a record", errno: Errno::ENOSPC });
        }
        medium.taken += next.pages;
        Ok(medium)
    }
}

/// Approximate number of pages that a change of a record copies.
const CHANGE_PAGES: u64 = 2;

impl Transaction for MemTransaction {
    fn use_reserve(&mut self) {
        self.claim = Claim::Reserve;
    }

    fn count(&self, table: Table) -> Result<u64, OsdError> {
        Ok(self.device.live()?.index.count(table))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        check_key(key)?;
        Ok(self.device.live()?.index.get(table, key))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError> {
        check_key(key)?;
        self.make_room(value.len())?.index.put(table, key, value);
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        check_key(key)?;
        if self.get(table, key)?.is_none() {
            return Ok(false);
        }
        Ok(self.make_room(0)?.index.delete(table, key))
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut Visitor<'_>) -> Result<(), OsdError> {
        self.device.live()?.index.scan(table, from, visit);
        Ok(())
    }

    fn on_commit(&mut self, f: CommitCallback) {
        self.callbacks.push(f);
    }

    fn commit_after(&mut self, data: PendingData) {
        self.pending.push(data);
    }

    fn finish(mut self: Box<Self>) {
        self.done = true;
        let callbacks = std::mem::take(&mut self.callbacks);
        let Ok(mut medium) = self.device.live_mut() else { return };
        medium.index.add_callbacks(callbacks);
        medium.pending.get_mut().append(&mut self.pending);
        let is_clean = medium.is_clean();
        drop(medium);
        self.device.wake_if(self.was_clean && !is_clean);
    }
}

impl Drop for MemTransaction {
    fn drop(&mut self) {
        if !self.done
            && let Ok(mut medium) = self.device.live_mut()
        {
            let changes = medium.index.changes();
            assert!(changes >= self.undo_to, "{changes} changes are left, the operation began with {}", self.undo_to);
            let changes = changes - self.undo_to;
            medium.taken += changes * CHANGE_PAGES;
            medium.index.undo_to(self.undo_to);
        }
    }
}

/// The space of an index of which `used` pages are in use.
fn measure(options: &MemOptions, used: u64) -> Space {
    let pages = options.index_bytes / PAGE;
    let mut space = Space::new(options.space, pages, used, 0);
    space.handle_growth(pages, options.index_bytes >= MemOptions::default().index_bytes);
    space
}

/// The data with one bit flipped.
fn corrupted(data: &Payload) -> Payload {
    let mut bytes = BytesMut::from(&data.to_bytes()[..]);
    if let Some(b) = bytes.first_mut() {
        *b ^= 1;
    }
    bytes.freeze().into()
}

#[cfg(test)]
mod tests;
