//! The memory bound of a mount's cached data (`max_cached_mb`), shared by all its objects: decides which object has to
//! give up clean bytes, and how many. The owner evicts.

use nacre_base::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Names an object's cache to the [`Budget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheId(u64);

/// Clean and pinned bytes of every cache of a mount.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    objects: BTreeMap<CacheId, Usage>,
    /// Caches with clean bytes, ordered by a time at or before the last use of their oldest ones: reads of cached bytes
    /// do not update it.
    evictable: BTreeSet<(Time, CacheId)>,
    clean: u64,
    pinned: u64,
    /// An eviction goes on until no more bytes than these are used.
    low: u64,
    is_evicting: bool,
    last: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    clean: u64,
    pinned: u64,
    /// A time at or before the last use of the least recently used clean bytes.
    oldest: Time,
}

/// Clean bytes that a cache is to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Cache that is to evict.
    pub(crate) object: CacheId,
    /// Number of bytes, for `ObjectCache::evict_clean`.
    pub(crate) bytes: u64,
    /// Bytes used after this time stay, because another object has older ones then.
    pub(crate) until: Time,
}

/// Precision of the order of use between objects. With a finer one, objects would take turns for each run of bytes.
const COARSE: Duration = Duration::from_millis(100);
/// An eviction frees this part of the limit at once, so that not every read has to evict.
const BATCH_FRACTION: u64 = 32;

impl Budget {
    /// Creates a budget of `limit` bytes.
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

    /// Sets the limit (`max_cached_mb`). Evictions may be due then.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.low = limit - limit / BATCH_FRACTION;
    }

    /// Adds a cache that has no bytes yet.
    pub(crate) fn register(&mut self) -> CacheId {
        self.last += 1;
        let object = CacheId(self.last);
        let former = self.objects.insert(object, Usage::default());
        assert!(former.is_none(), "{object:?} is given to two caches");
        object
    }

    /// Removes a cache together with its bytes.
    pub(crate) fn forget(&mut self, object: CacheId) {
        if let Some(usage) = self.objects.remove(&object) {
            let was_evictable = self.evictable.remove(&(usage.oldest, object));
            assert_eq!(was_evictable, usage.clean > 0, "{object:?} with {usage:?} among those to be evicted");
            assert!(usage.clean <= self.clean && usage.pinned <= self.pinned, "{usage:?} of {object:?} in {self:?}");
            self.clean -= usage.clean;
            self.pinned -= usage.pinned;
        }
    }

    /// Records that the cache now has `clean` clean bytes, the least recently used of them used at `oldest`, and `pinned`
    /// bytes that cannot be evicted (dirty or being written). Called after every change.
    pub(crate) fn update(&mut self, object: CacheId, clean: u64, pinned: u64, oldest: Time) {
        let Some(usage) = self.objects.get_mut(&object) else { panic!("{object:?} is no cache of this mount") };
        let before = *usage;
        *usage = Usage { clean, pinned, oldest };
        assert!(before.clean <= self.clean && before.pinned <= self.pinned, "{before:?} of {object:?} in {self:?}");
        self.clean = self.clean - before.clean + clean;
        self.pinned = self.pinned - before.pinned + pinned;
        if (before.oldest, before.clean > 0) != (oldest, clean > 0) {
            self.evictable.remove(&(before.oldest, object));
            if clean > 0 {
                self.evictable.insert((oldest, object));
            }
        }
    }

    /// Returns the next eviction that is due. The caller evicts, calls [`Budget::update`], and asks again until the
    /// answer is `None`.
    pub(crate) fn next_eviction(&mut self) -> Option<Eviction> {
        self.is_evicting |= self.used() > self.limit;
        self.is_evicting &= self.used() > self.low;
        if !self.is_evicting {
            return None;
        }
        let mut oldest = self.evictable.iter();
        let Some((_, object)) = oldest.next().copied() else {
            self.is_evicting = false;
            return None;
        };
        let until = oldest.next().map_or(Time::FAR_FUTURE, |(next, _)| *next + COARSE);
        let clean = self.objects.get(&object).map_or(0, |usage| usage.clean);
        assert!(clean > 0, "{object:?} has nothing to be evicted");
        assert!(self.low < self.used(), "an eviction goes on with {} bytes, {} are enough", self.used(), self.low);
        Some(Eviction { object, bytes: clean.min(self.used() - self.low), until })
    }

    /// Clean and pinned bytes of a cache, as of its last [`Budget::update`].
    pub(crate) fn usage(&self, object: CacheId) -> Option<(u64, u64)> {
        self.objects.get(&object).map(|usage| (usage.clean, usage.pinned))
    }

    /// Panics if the sums differ from those over all objects. Visits every object.
    pub(crate) fn assert_sound(&self) {
        let sum = |of: fn(&Usage) -> u64| self.objects.values().map(of).sum::<u64>();
        assert_eq!(self.clean, sum(|usage| usage.clean), "clean bytes of all objects");
        assert_eq!(self.pinned, sum(|usage| usage.pinned), "pinned bytes of all objects");
        let with_clean = self.objects.values().filter(|usage| usage.clean > 0).count();
        assert_eq!(self.evictable.len(), with_clean, "objects with something to be evicted");
    }

    /// True if `bytes` more bytes would not fit even after evicting everything clean. The writer then has to wait for
    /// flushes, which should begin.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does every eviction that is due; all bytes of one object were used at the same time.
    fn evict_all(budget: &mut Budget, caches: &mut BTreeMap<CacheId, (u64, Time)>) -> Vec<(CacheId, u64)> {
        let mut evicted = Vec::new();
        while let Some(Eviction { object, bytes, until }) = budget.next_eviction() {
            let (left, used) = caches[&object];
            let bytes = if used <= until { bytes } else { 0 };
            caches.insert(object, (left - bytes, used));
            budget.update(object, left - bytes, 0, used);
            evicted.extend((bytes > 0).then_some((object, bytes)));
            budget.assert_sound();
        }
        evicted
    }

    #[test]
    #[should_panic(expected = "clean bytes of all objects")]
    fn a_sum_that_is_not_that_of_the_objects_is_a_defect() {
        let mut budget = Budget::new(1000);
        budget.register();
        budget.clean += 1;
        budget.assert_sound();
    }

    #[test]
    #[should_panic(expected = "is no cache of this mount")]
    fn who_is_forgotten_has_nothing_any_more() {
        let mut budget = Budget::new(1000);
        let object = budget.register();
        budget.forget(object);
        budget.update(object, 1, 0, Time::ZERO);
    }

    #[test]
    fn the_least_recently_used_bytes_give_way_whosever_they_are() {
        let mut budget = Budget::new(3200);
        let objects: Vec<_> = (0..4).map(|_| budget.register()).collect();
        let mut caches = BTreeMap::new();
        for (i, object) in objects.iter().enumerate() {
            let used = Time::from_secs(i as u64);
            caches.insert(*object, (800, used));
            budget.update(*object, 800, 0, used);
        }
        assert_eq!(evict_all(&mut budget, &mut caches), []);
        // All of the first object is read again, without an update of the budget.
        caches.insert(objects[0], (800, Time::from_secs(9)));
        let new = budget.register();
        caches.insert(new, (1000, Time::from_secs(10)));
        budget.update(new, 1000, 0, Time::from_secs(10));
        // Evicts down to 31/32 of the limit, so that not every read has to evict.
        assert_eq!(evict_all(&mut budget, &mut caches), [(objects[1], 800), (objects[2], 300)]);
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
        let until = Time::FAR_FUTURE;
        assert_eq!(budget.next_eviction(), Some(Eviction { object, bytes: 1200 - (1000 - 1000 / 32), until }));
        budget.set_limit(0);
        assert_eq!(budget.next_eviction(), Some(Eviction { object, bytes: 1200, until }));
    }
}
