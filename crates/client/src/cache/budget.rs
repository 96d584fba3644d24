//! The memory bound of a mount's cached data (`max_cached_mb`), shared by all its objects: who has to give up clean
//! bytes, and how many. The owner evicts.

use nacre_base::Time;

/// Names an object's cache to the [`Budget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheId(u64);

/// Who has how much.
#[derive(Debug)]
pub(crate) struct Budget {}

/// `bytes` clean bytes of `object` should be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Whose.
    pub(crate) object: CacheId,
    /// How many, for `ObjectCache::evict_clean`.
    pub(crate) bytes: u64,
}

impl Budget {
    /// At most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Budget {
        let _ = limit;
        todo!()
    }

    /// Another limit (`max_cached_mb`). Evictions may be due.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        let _ = limit;
        todo!()
    }

    /// A new cache.
    pub(crate) fn register(&mut self) -> CacheId {
        todo!()
    }

    /// The cache is gone, and its bytes.
    pub(crate) fn forget(&mut self, object: CacheId) {
        let _ = object;
        todo!()
    }

    /// The cache was used and now has so many clean bytes, and so many that cannot be evicted (dirty and being
    /// written). To be told after every change.
    pub(crate) fn update(&mut self, object: CacheId, clean: u64, pinned: u64, now: Time) {
        let _ = (object, clean, pinned, now);
        todo!()
    }

    /// What should be evicted, if anything. To be called until `None`, with an `update` (or `forget`) after each.
    pub(crate) fn next_eviction(&mut self) -> Option<Eviction> {
        todo!()
    }

    /// Whether `bytes` more cannot be taken in even if everything clean were evicted: the writer has to wait for
    /// flushes, and they should be begun.
    pub(crate) fn is_full_of_dirty(&self, bytes: u64) -> bool {
        let _ = bytes;
        todo!()
    }

    /// Bytes in all caches.
    pub(crate) fn used(&self) -> u64 {
        todo!()
    }

    /// Clean and dirty bytes in all caches, for `max_cached_mb`'s display.
    pub(crate) fn limit(&self) -> u64 {
        todo!()
    }
}
