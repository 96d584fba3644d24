//! The memory bound of a mount's cached data (`max_cached_mb`), shared by all its objects: who has to give up clean
//! bytes, and how many. The owner evicts.

use nacre_base::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Names an object's cache to the [`Budget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheId(u64);

/// Who has how much.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    objects: BTreeMap<CacheId, Usage>,
    /// Those with clean bytes, least recently used first.
    evictable: BTreeSet<(u64, CacheId)>,
    clean: u64,
    pinned: u64,
    /// Evictions go on until so little is used.
    low: u64,
    is_evicting: bool,
    last: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    clean: u64,
    pinned: u64,
    /// In units of [`COARSE`].
    used: u64,
}

/// `bytes` clean bytes of `object` should be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Whose.
    pub(crate) object: CacheId,
    /// How many, for `ObjectCache::evict_clean`.
    pub(crate) bytes: u64,
}

/// The order of use is kept so exactly, in nanoseconds: objects in steady use are not moved at every read.
const COARSE: u64 = 100_000_000;
/// An eviction frees this part of the limit at once: picking what to evict costs a look at all of an object.
const BATCH_FRACTION: u64 = 32;

impl Budget {
    /// At most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Budget {
        let mut budget = Budget {
            limit: 0,
            objects: BTreeMap::new(),
            evictable: BTreeSet::new(),
            clean: 0,
            pinned: 0,
            low: 0,
            is_evicting: false,
            last: 0,
        };
        budget.set_limit(limit);
        budget
    }

    /// Another limit (`max_cached_mb`). Evictions may be due.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.low = limit - limit / BATCH_FRACTION;
    }

    /// A new cache.
    pub(crate) fn register(&mut self) -> CacheId {
        self.last += 1;
        let object = CacheId(self.last);
        self.objects.insert(object, Usage::default());
        object
    }

    /// The cache is gone, and its bytes.
    pub(crate) fn forget(&mut self, object: CacheId) {
        if let Some(usage) = self.objects.remove(&object) {
            self.evictable.remove(&(usage.used, object));
            self.clean -= usage.clean;
            self.pinned -= usage.pinned;
        }
    }

    /// The cache was used and now has so many clean bytes, and so many that cannot be evicted (dirty and being
    /// written). To be told after every change, and after reads.
    pub(crate) fn update(&mut self, object: CacheId, clean: u64, pinned: u64, now: Time) {
        self.change(object, clean, pinned, Some(now));
    }

    /// As [`Budget::update`], but it was not used: after an eviction or a flush.
    pub(crate) fn update_unused(&mut self, object: CacheId, clean: u64, pinned: u64) {
        self.change(object, clean, pinned, None);
    }

    /// What should be evicted, if anything. To be called until `None`, each time with the eviction done and
    /// [`Budget::update_unused`] told.
    pub(crate) fn next_eviction(&mut self) -> Option<Eviction> {
        self.is_evicting |= self.used() > self.limit;
        self.is_evicting &= self.used() > self.low;
        if !self.is_evicting {
            return None;
        }
        let Some((_, object)) = self.evictable.first().copied() else {
            self.is_evicting = false;
            return None;
        };
        let clean = self.objects.get(&object).map_or(0, |usage| usage.clean);
        Some(Eviction { object, bytes: clean.min(self.used() - self.low) })
    }

    /// Whether `bytes` more cannot be taken in even if everything clean were evicted: the writer has to wait for
    /// flushes, and they should be begun.
    pub(crate) fn is_full_of_dirty(&self, bytes: u64) -> bool {
        self.pinned > 0 && self.pinned.saturating_add(bytes) > self.limit
    }

    /// Bytes in all caches.
    pub(crate) fn used(&self) -> u64 {
        self.clean + self.pinned
    }

    /// The bound.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    fn change(&mut self, object: CacheId, clean: u64, pinned: u64, now: Option<Time>) {
        let Some(usage) = self.objects.get_mut(&object) else { return };
        let before = *usage;
        *usage = Usage { clean, pinned, used: now.map_or(before.used, |now| now.as_nanos() / COARSE) };
        self.clean = self.clean - before.clean + clean;
        self.pinned = self.pinned - before.pinned + pinned;
        if (before.used, before.clean > 0) != (usage.used, clean > 0) {
            self.evictable.remove(&(before.used, object));
            if clean > 0 {
                self.evictable.insert((usage.used, object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict_all(budget: &mut Budget, clean: &mut BTreeMap<CacheId, u64>) -> Vec<(CacheId, u64)> {
        let mut evicted = Vec::new();
        while let Some(Eviction { object, bytes }) = budget.next_eviction() {
            let left = clean[&object] - bytes;
            clean.insert(object, left);
            budget.update_unused(object, left, 0);
            evicted.push((object, bytes));
        }
        evicted
    }

    #[test]
    fn the_least_recently_used_objects_give_way() {
        let mut budget = Budget::new(3200);
        let objects: Vec<_> = (0..4).map(|_| budget.register()).collect();
        let mut clean = BTreeMap::new();
        for (i, object) in objects.iter().enumerate() {
            clean.insert(*object, 800);
            budget.update(*object, 800, 0, Time::from_secs(i as u64));
        }
        assert_eq!(evict_all(&mut budget, &mut clean), []);
        budget.update(objects[0], 800, 0, Time::from_secs(9));
        let new = budget.register();
        clean.insert(new, 1000);
        budget.update(new, 1000, 0, Time::from_secs(10));
        // Down to 31 of 32 parts, so that the next is not evicted for every read.
        assert_eq!(evict_all(&mut budget, &mut clean), [(objects[1], 800), (objects[2], 300)]);
        assert_eq!(budget.used(), 3100);
        budget.forget(objects[0]);
        assert_eq!(budget.used(), 2300);
    }

    #[test]
    fn dirty_bytes_are_not_evicted_but_waited_for() {
        let mut budget = Budget::new(1000);
        let object = budget.register();
        assert!(!budget.is_full_of_dirty(5000), "somebody must be able to begin");
        budget.update(object, 0, 900, Time::ZERO);
        assert!(!budget.is_full_of_dirty(100) && budget.is_full_of_dirty(101));
        budget.update(object, 0, 1200, Time::ZERO);
        assert_eq!(budget.next_eviction(), None);
        budget.update(object, 1200, 0, Time::ZERO);
        assert_eq!(budget.next_eviction(), Some(Eviction { object, bytes: 1200 - (1000 - 1000 / 32) }));
        budget.set_limit(0);
        assert_eq!(budget.next_eviction(), Some(Eviction { object, bytes: 1200 }));
    }
}
