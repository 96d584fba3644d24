//! The memory of a mount's cached file data, over all its objects: the bound, and the evictions that keep it.

use super::budget::{Budget, CacheId, Eviction};
use super::object::ObjectCache;
use super::read_ahead::ReadAheadLimits;
use crate::stats::ReadAheadStats;
use nacre_base::FxHashMap;
use nacre_base::size::MIB;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Defaults in MiB: read-ahead under way of one mount, of one file, and the size up to which a file is read whole.
const READ_AHEAD_MB_DEFAULT: (u64, u64, u64) = (128, 64, 2);

/// An object with cached bytes.
pub(crate) trait Evict: Send + Sync {
    /// Evicts clean bytes.
    fn evict(&self, eviction: &Eviction);
}

/// The cached data of a mount.
pub(crate) struct Memory {
    budget: Mutex<Budget>,
    /// True if the administrator has set the bound, which the host's share then no longer changes.
    is_set: AtomicBool,
    objects: Mutex<FxHashMap<CacheId, Weak<dyn Evict>>>,
    /// Wakes writers that wait for memory, because something was written back.
    pub(crate) room: Notify,
    /// `llite.*.max_read_ahead_mb`, `max_read_ahead_per_file_mb` and `max_read_ahead_whole_mb`.
    pub(crate) read_ahead_mb: [Arc<AtomicU64>; 3],
    /// Bytes of read-ahead under way.
    ahead: AtomicU64,
    /// `llite.*.read_ahead_stats`.
    pub(crate) read_ahead_stats: ReadAheadStats,
}

impl Memory {
    /// Creates the cache accounting with room for `limit` bytes.
    pub(crate) fn new(limit: u64) -> Memory {
        let (all, file, whole) = READ_AHEAD_MB_DEFAULT;
        Memory {
            budget: Mutex::new(Budget::new(limit)),
            is_set: AtomicBool::new(false),
            objects: Mutex::default(),
            room: Notify::new(),
            read_ahead_mb: [all, file, whole].map(|mb| Arc::new(AtomicU64::new(mb))),
            ahead: AtomicU64::new(0),
            read_ahead_stats: ReadAheadStats::default(),
        }
    }

    /// Allocates an id for a new cache.
    pub(crate) fn register(&self) -> CacheId {
        self.budget.lock().register()
    }

    /// Makes the object known, so that it may be told to evict from now on.
    pub(crate) fn add(&self, id: CacheId, object: Weak<dyn Evict>) {
        let former = self.objects.lock().insert(id, object);
        assert!(former.is_none(), "{id:?} is the name of two caches");
    }

    /// Removes an object that no longer exists.
    pub(crate) fn forget(&self, id: CacheId) {
        self.objects.lock().remove(&id);
        self.budget.lock().forget(id);
    }

    /// Records how many bytes an object has. The caller holds the object's lock, so that updates come in the order of the
    /// changes.
    pub(crate) fn update(&self, id: CacheId, cache: &ObjectCache) {
        let pinned = cache.dirty_bytes() + cache.writing_bytes();
        let clean = cache.clean_bytes();
        assert!(clean == 0 || cache.oldest_clean().is_some(), "{clean} clean bytes cannot be evicted");
        let oldest = cache.oldest_clean().unwrap_or_default();
        self.budget.lock().update(id, clean, pinned, oldest);
    }

    /// True if there is no room for `bytes` more dirty bytes.
    pub(crate) fn is_full_of_dirty(&self, bytes: u64) -> bool {
        self.budget.lock().is_full_of_dirty(bytes)
    }

    /// Evicts as long as more is cached than allowed. The caller must not hold an object's lock.
    pub(crate) fn shrink(&self) {
        loop {
            let Some(eviction) = self.budget.lock().next_eviction() else { return };
            let object = self.objects.lock().get(&eviction.object).and_then(Weak::upgrade);
            match object {
                Some(object) => object.evict(&eviction),
                None => self.budget.lock().forget(eviction.object),
            }
        }
    }

    /// Panics if the recorded bytes of a cache differ from what it has. The caller holds the object's lock.
    pub(crate) fn assert_booked(&self, id: CacheId, cache: &ObjectCache) {
        let has = (cache.clean_bytes(), cache.dirty_bytes() + cache.writing_bytes());
        assert_eq!(self.budget.lock().usage(id), Some(has), "clean and pinned bytes, as booked and in the cache");
    }

    /// Panics if the sums differ from those over all objects. Visits every object.
    pub(crate) fn assert_sound(&self) {
        self.budget.lock().assert_sound();
    }

    /// The bound, and the bytes used.
    pub(crate) fn limit_and_used(&self) -> (u64, u64) {
        let budget = self.budget.lock();
        (budget.limit(), budget.used())
    }

    /// Sets the bound, in bytes, as the administrator says.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.is_set.store(true, Ordering::Relaxed);
        self.budget.lock().set_limit(limit);
        self.shrink();
    }

    /// Sets the bound, in bytes, as the host's memory allows, unless the administrator has set it.
    pub(crate) fn set_share(&self, limit: u64) {
        if !self.is_set.load(Ordering::Relaxed) && self.limit_and_used().0 != limit {
            self.budget.lock().set_limit(limit);
            self.shrink();
        }
    }

    /// The limits of a file whose OSTs have so much under way because they are far away.
    pub(crate) fn read_ahead_limits(&self, far: u64) -> ReadAheadLimits {
        let bytes = |i: usize| self.read_ahead_mb[i].load(Ordering::Relaxed) * MIB;
        ReadAheadLimits { per_file: bytes(1).min(bytes(0)), whole: bytes(2), far }
    }

    /// Reserves `bytes` of the read-ahead that may be under way; false if that is too much.
    pub(crate) fn begin_ahead(&self, bytes: u64) -> bool {
        let limit = self.read_ahead_mb[0].load(Ordering::Relaxed) * MIB;
        let take = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(crate) fn end_ahead(&self, bytes: u64) {
        let before = self.ahead.fetch_sub(bytes, Ordering::Relaxed);
        assert!(bytes <= before, "read-ahead of {bytes} bytes ends, {before} were under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "1 were under way")]
    fn read_ahead_ends_once() {
        let memory = Memory::new(100);
        assert!(memory.begin_ahead(1));
        memory.end_ahead(2);
    }

    #[test]
    fn what_the_administrator_sets_stays_whatever_the_host_has() {
        let memory = Memory::new(100);
        memory.set_share(200);
        assert_eq!(memory.limit_and_used().0, 200);
        memory.set_limit(300);
        memory.set_share(50);
        assert_eq!(memory.limit_and_used().0, 300);
    }
}
