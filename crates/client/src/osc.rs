//! One OST: its objects' data and attributes, cached under extent locks. `lov` spreads a file over objects.
//!
//! `locks` gets locks (`asking` is a request for some) and `giving` gives them back; `object` is the state of one object, `pages` what a door's kernel
//! has of it, `read` and `write` use and change it, `advice` serves access hints from programs, `write_back` brings dirty bytes to the server; `rpc` has the
//! requests.
//!
//! Order of the mutexes: locks, objects, an object's state, then queue, grant account and memory. None is held over a wait.

pub(crate) mod advice;
mod ahead;
mod asking;
pub(crate) mod giving;
mod lock_state;
pub(crate) mod locks;
pub(crate) mod object;
mod pages;
mod read;
mod recovery;
pub(crate) mod rpc;
pub(crate) mod write;
pub(crate) mod write_back;

use crate::cache::dirty_account::DirtyAccount;
use crate::cache::memory::Memory;
use crate::far::{Flow, Pass};
use crate::lock_params::LockOwner;
use crate::lost::LostChanges;
use crate::mount::callback_service::LockHolder;
use crate::mount::connection::{Connection, Observer};
use crate::rpc_stats::RpcStats;
use nacre_base::size::MIB;
use nacre_base::{Fid, FxHashMap, Time};
use nacre_ldlm::lock_cache::{Cover, LockCache, LruLimits};
use nacre_ptlrpc::EAGER_MAX;
use nacre_wire::ost::{BRW_SIZE_DEFAULT, BRW_SIZE_MAX};
use object::Object;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use write_back::WriteBack;

/// The unit of `max_pages_per_rpc`.
pub(crate) const PAGE_SIZE: u64 = 4096;
/// The largest value of `max_pages_per_rpc`.
pub(crate) const PAGES_PER_RPC_MAX: u64 = BRW_SIZE_MAX as u64 / PAGE_SIZE;
/// Default for how often a transfer is repeated whose checksum does not match.
const RESEND_COUNT_DEFAULT: u64 = 10;
/// Default for the bytes that may be dirty, in MiB.
const MAX_DIRTY_MB_DEFAULT: u64 = 64;
/// Default for the age in milliseconds at which dirty bytes are written back.
const DIRTY_EXPIRE_MS_DEFAULT: u64 = 2000;
/// Number of RPCs in flight for which the grant should suffice.
const RPCS_IN_FLIGHT: u64 = 8;
/// Shortest pause between two rounds of upkeep: due work may wait for this long.
const UPKEEP_PAUSE: Duration = Duration::from_millis(500);

/// One OST.
pub(crate) struct Osc {
    this: Weak<Osc>,
    connection: Connection,
    /// 1 if data is checked by checksums, 0 if not.
    pub(crate) checksums: Arc<AtomicU64>,
    /// How often a transfer whose checksum does not match is repeated before it fails with EIO.
    pub(crate) resend_count: Arc<AtomicU64>,
    /// Size of read and write RPCs in pages of 4 KiB; the server may set a lower limit.
    pub(crate) max_pages_per_rpc: Arc<AtomicU64>,
    /// The size of read and write RPCs that the server allows.
    negotiated_brw_size: AtomicU64,
    /// Microseconds of a round trip if the OST is far away, else 0.
    far_us: AtomicU64,
    /// Bytes of the OST's largest object; known once it is connected.
    object_bytes_max: AtomicU64,
    max_dirty_mb: AtomicU64,
    /// Age in milliseconds at which dirty bytes are written back.
    pub(crate) dirty_expire_ms: Arc<AtomicU64>,
    /// True if writers of shared files always request locks that the server may grow, for comparison with the other ways
    /// of locking.
    pub(crate) only_grown_locks: AtomicBool,
    pub(crate) locks: Mutex<LockCache>,
    lru: Mutex<LruLimits>,
    /// How often all locks were lost.
    epoch: AtomicU64,
    /// How often they were lost by an eviction.
    evictions: AtomicU64,
    objects: Mutex<FxHashMap<Fid, Arc<Object>>>,
    /// Number of objects at which unused ones are looked for.
    sweep_at: AtomicUsize,
    account: Mutex<DirtyAccount>,
    write_back: Mutex<WriteBack>,
    /// Number of writers that wait for room.
    waiters: AtomicU64,
    /// Wakes writers that wait for room, because a flush ended.
    room: Notify,
    pub(crate) lost: LostChanges,
    /// True while the OST is being asked to commit.
    committing: AtomicBool,
    rpc_stats: RpcStats,
    /// True while the import sends pings, because this client holds locks.
    kept_alive: AtomicBool,
    /// True while the upkeep task runs.
    upkeep: AtomicBool,
    /// Wakes the upkeep task before its timer, because dirty bytes will be due sooner.
    nudge: Arc<Notify>,
}

impl Osc {
    pub(crate) fn new(connection: Connection) -> Arc<Osc> {
        let rpc_stats = RpcStats::new(connection.mount().rt.clone());
        let checksums = u64::from(connection.mount().checksums);
        let osc = Arc::new_cyclic(|this| Osc {
            this: this.clone(),
            connection,
            checksums: Arc::new(AtomicU64::new(checksums)),
            resend_count: Arc::new(AtomicU64::new(RESEND_COUNT_DEFAULT)),
            max_pages_per_rpc: Arc::new(AtomicU64::new(u64::from(BRW_SIZE_DEFAULT) / PAGE_SIZE)),
            negotiated_brw_size: AtomicU64::new(BRW_SIZE_DEFAULT.into()),
            far_us: AtomicU64::new(0),
            object_bytes_max: AtomicU64::new(u64::MAX),
            max_dirty_mb: AtomicU64::new(MAX_DIRTY_MB_DEFAULT),
            dirty_expire_ms: Arc::new(AtomicU64::new(DIRTY_EXPIRE_MS_DEFAULT)),
            only_grown_locks: AtomicBool::new(false),
            locks: Mutex::default(),
            lru: Mutex::default(),
            epoch: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            objects: Mutex::default(),
            sweep_at: AtomicUsize::new(256),
            account: Mutex::default(),
            write_back: Mutex::default(),
            waiters: AtomicU64::new(0),
            room: Notify::new(),
            lost: LostChanges::default(),
            committing: AtomicBool::new(false),
            rpc_stats,
            kept_alive: AtomicBool::new(false),
            upkeep: AtomicBool::new(false),
            nudge: Arc::default(),
        });
        osc.update_limits();
        let weak = Arc::downgrade(&osc);
        osc.connection.observe(weak.clone() as Weak<dyn Observer>);
        let target = osc.connection.name().to_string();
        osc.connection.mount().callbacks.register(&target, weak as Weak<dyn LockHolder>);
        osc
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn now(&self) -> Time {
        self.connection.mount().rt.now()
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.connection.mount().memory
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.connection.mount().rt.spawn(task));
    }

    /// Grant held, in bytes.
    pub(crate) fn grant_bytes(&self) -> u64 {
        self.account.lock().held()
    }

    /// Bytes dirty or being written, rounded to blocks.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.account.lock().dirty_and_writing()
    }

    /// Most bytes that may be dirty.
    pub(crate) fn max_dirty_bytes(&self) -> u64 {
        self.max_dirty_mb.load(Ordering::Relaxed) * MIB
    }

    pub(crate) fn set_max_dirty_mb(&self, mb: u64) {
        self.max_dirty_mb.store(mb, Ordering::Relaxed);
        self.update_limits();
    }

    fn update_limits(&self) {
        let (dirty_max, rpc) = (self.max_dirty_bytes(), self.brw_size());
        self.account.lock().set_limits(dirty_max, rpc, RPCS_IN_FLIGHT);
    }

    /// Bytes of one read or write RPC at most.
    pub(crate) fn brw_size(&self) -> u64 {
        let own = self.max_pages_per_rpc.load(Ordering::Relaxed) * PAGE_SIZE;
        own.min(self.negotiated_brw_size.load(Ordering::Relaxed))
    }

    /// Bytes of one write RPC at most: over a distance no more than travels with its request.
    pub(crate) fn write_size(&self) -> u64 {
        let most = self.brw_size();
        self.far().map_or(most, |_| most.min(EAGER_MAX as u64))
    }

    /// The time of a round trip to an OST that is far away.
    fn far(&self) -> Option<Duration> {
        let us = self.far_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Looks how far away the OST is.
    fn note_distance(&self) {
        let far = self.connection.far();
        self.far_us.store(far.map_or(0, |round_trip| round_trip.as_micros() as u64), Ordering::Relaxed);
    }

    /// Bytes that a stream of reads should ask for ahead, so that the way to an OST far away is always full; 0 for an OST that is near. It is
    /// twice what the way holds, because a stream asks again only when a quarter of its window was read.
    pub(crate) fn far_window(&self) -> u64 {
        self.far().map_or(0, |_| 2 * self.connection.mount().far().ways().lock().bytes_under_way())
    }

    /// So many bytes were read or written.
    fn note_moved(&self, bytes: u64) {
        if let Some(round_trip) = self.far() {
            self.connection.mount().far().ways().lock().handle_moved(bytes, round_trip, self.now());
        }
    }

    /// Waits for room on the way to an OST far away; none if the OST is near.
    pub(crate) async fn enter_way(&self, flow: Flow, bytes: u64, urgent: bool) -> Option<Pass<'_>> {
        self.note_distance();
        match self.far() {
            Some(_) => Some(self.connection.mount().far().enter(flow, bytes, urgent).await),
            None => None,
        }
    }

    /// How many of `len` bytes from `offset` on an object can hold. To be called with a lock of the OST in hand: before
    /// the first connection no limit is known.
    pub(crate) fn room(&self, offset: u64, len: usize) -> usize {
        let room = self.object_bytes_max.load(Ordering::Relaxed).saturating_sub(offset);
        usize::try_from(room).unwrap_or(usize::MAX).min(len)
    }

    /// True if an object of `bytes` bytes fits. To be called as [`Osc::room`].
    pub(crate) fn can_hold(&self, bytes: u64) -> bool {
        bytes <= self.object_bytes_max.load(Ordering::Relaxed)
    }

    /// The state of an object, created if there is none.
    pub(crate) fn object(&self, fid: Fid) -> Arc<Object> {
        let mut objects = self.objects.lock();
        if let Some(object) = objects.get(&fid) {
            return object.clone();
        }
        let object = Object::new(fid, self.memory());
        objects.insert(fid, object.clone());
        let many = objects.len() > self.sweep_at.load(Ordering::Relaxed);
        drop(objects);
        if many {
            self.sweep();
        }
        object
    }

    /// Starts the upkeep task, unless it runs.
    pub(crate) fn wake_upkeep(self: &Arc<Self>) {
        if !self.upkeep.swap(true, Ordering::AcqRel) {
            let osc = Arc::downgrade(self);
            let rt = self.connection.mount().rt.clone();
            self.spawn(async move {
                while let Some((next, nudge)) = osc.upgrade().and_then(|osc| osc.keep_up()) {
                    let _ = rt.timeout_at(next, nudge.notified()).await;
                }
            });
        }
    }

    /// Does the work that is due. Returns when there is more, and a notification that it is sooner. None, which ends the
    /// task, if there is no more work.
    fn keep_up(self: &Arc<Self>) -> Option<(Time, Arc<Notify>)> {
        self.start_flushes();
        let (limits, volume) = (*self.lru.lock(), self.connection.lock_volume());
        let (givings, expiry) = {
            let mut locks = self.locks.lock();
            let weigh = |id, fid, cover: &Cover| self.weigh(id, fid, cover);
            (locks.shrink(self.now(), &limits, volume, weigh), locks.next_expiry(&limits, volume))
        };
        self.start_giving_unused(givings);
        // A silent client does not learn that it was evicted, and goes on believing its cache; nor does it learn the lock
        // volume.
        let holds = expiry.is_some();
        if self.kept_alive.swap(holds, Ordering::Relaxed) != holds {
            self.connection.import().set_keep_alive(holds);
        }
        let next = || self.next_age().into_iter().chain(expiry).min();
        if next().is_none() {
            self.upkeep.store(false, Ordering::Release);
            // New work may have come just before.
            next().filter(|_| !self.upkeep.swap(true, Ordering::AcqRel))?;
        }
        next().map(|next| (next.max(self.now() + UPKEEP_PAUSE), self.nudge.clone()))
    }

    /// Panics if an object's bytes are counted wrong, or the grant kept is not that of all objects. Holds all objects
    /// meanwhile, so it is for rare moments.
    fn assert_sound(&self) {
        let objects = self.objects.lock();
        let states: Vec<_> = objects.values().map(|object| object.state.lock()).collect();
        objects.values().zip(&states).for_each(|(object, state)| object.assert_sound(state));
        let dirty = states.iter().map(|state| state.cache.dirty_charge()).sum();
        self.account.lock().assert_covers(dirty);
        let queue = self.write_back.lock();
        let aging = states.iter().filter(|state| state.aging).count();
        assert!(queue.waiting() <= aging, "{} objects wait for their age, of which {aging} know", queue.waiting());
    }

    /// Writes everything back and disconnects; gives up waiting after `deadline`.
    pub(crate) async fn close(self: &Arc<Self>, deadline: Duration) {
        let flushed = pin!(self.connection.while_active(self.flush_all()));
        let flushed = self.connection.mount().rt.timeout(deadline, flushed).await;
        if self.dirty_bytes() > 0 && !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!(target = self.connection.label(), "unmounted before everything was written");
        }
        self.assert_sound();
        self.memory().assert_sound();
        self.connection.disconnect().await;
    }
}

impl LockOwner for Osc {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn with_locks(&self, look: &mut dyn FnMut(&LockCache, &LruLimits)) {
        let limits = *self.lru.lock();
        look(&self.locks.lock(), &limits);
    }

    fn set_limits(&self, change: &mut dyn FnMut(&mut LruLimits)) {
        change(&mut self.lru.lock());
        self.nudge.notify_one();
    }

    fn clear_locks(&self) {
        let givings = self.locks.lock().clear();
        if let Some(osc) = self.this.upgrade() {
            osc.start_giving_unused(givings);
        }
    }
}
