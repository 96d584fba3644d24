//! The order in which unused locks leave a client's cache: least recently used first, but locks that were used again
//! after a rest leave last (LFRU). So a program that reads a million files once does not push out the locks that are
//! used all the time. Privileged locks are a limited part of the whole: one that is no longer used loses its privilege
//! to others.
//!
//! What must not be here: what the locks are.

use crate::LockId;
use nacre_base::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// A lock that is used again after this time was not taken for one operation only.
pub(crate) const REUSED_AFTER: Duration = Duration::from_secs(1);
/// Most privileged locks, in percent of the unused locks.
const PRIVILEGED_PERCENT: usize = 30;

/// Order in which unused locks leave (Lustre's `lock_cache_policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LruPolicy {
    /// The least recently used first; those that are used again and again last.
    #[default]
    Lfru,
    /// The least recently used first.
    Lru,
}

/// Limits on the number and age of unused locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LruLimits {
    /// Most unused locks; 0: as many as the server's lock volume allows (Lustre's `lru_size`).
    pub size: usize,
    /// Longest time unused (Lustre's `lru_max_age`).
    pub max_age: Duration,
    /// Weight of this client's locks against the server's volume, in percent: the larger, the fewer it keeps.
    pub volume_factor: u64,
    /// Order in which unused locks leave.
    pub policy: LruPolicy,
}

impl LruLimits {
    /// Most unused locks that are kept, however many the server allows.
    pub const DYNAMIC_MAX: usize = 100_000;
    /// Interval at which locks leave because of their age or the server's volume, so that they leave together.
    pub const PERIOD: Duration = Duration::from_secs(10);
    /// Most locks that one [`crate::lock_cache::LockCache::shrink`] returns.
    pub(crate) const BATCH: usize = 1024;
    /// Locks above `size` are given back only once there are more than this many, so that they are worth a message.
    const SLACK_MAX: usize = 32;

    pub(crate) fn is_over(&self, unused: usize) -> bool {
        let (size, slack) = match self.size {
            0 => (LruLimits::DYNAMIC_MAX, LruLimits::SLACK_MAX),
            size => (size, LruLimits::SLACK_MAX.min(size / 8)),
        };
        unused > size + slack
    }

    pub(crate) fn surplus(&self, unused: usize) -> usize {
        unused.saturating_sub(if self.size == 0 { LruLimits::DYNAMIC_MAX } else { self.size })
    }

    /// The client lock volume of `unused` locks that were not used for `age`.
    pub(crate) fn volume(&self, age: Duration, unused: usize) -> u64 {
        let seconds = age.as_millis().saturating_mul(u128::from(self.volume_factor)) / 100_000;
        seconds.saturating_mul(unused as u128).try_into().unwrap_or(u64::MAX)
    }
}

impl Default for LruLimits {
    fn default() -> LruLimits {
        LruLimits { size: 0, max_age: Duration::from_secs(600), volume_factor: 100, policy: LruPolicy::default() }
    }
}

/// The unused locks of a client, in the order in which they leave.
#[derive(Default, Debug)]
pub(crate) struct Lru {
    /// Locks without privilege, by last use.
    ordinary: BTreeSet<(Time, LockId)>,
    privileged: BTreeSet<(Time, LockId)>,
    /// True if no lock is privileged.
    is_plain: bool,
}

impl Lru {
    /// Turns privileges on or off.
    pub(crate) fn set_privileges(&mut self, allowed: bool) {
        self.is_plain = !allowed;
        if self.is_plain {
            self.ordinary.append(&mut self.privileged);
        }
    }

    /// A lock is unused from now on.
    pub(crate) fn insert(&mut self, last_use: Time, id: LockId, privileged: bool) {
        let queue = if privileged && !self.is_plain { &mut self.privileged } else { &mut self.ordinary };
        let is_new = queue.insert((last_use, id));
        assert!(is_new, "{id:?} is unused twice");
        while self.privileged.len() * 100 > self.len() * PRIVILEGED_PERCENT
            && let Some(oldest) = self.privileged.pop_first()
        {
            self.ordinary.insert(oldest);
        }
    }

    /// A lock is used, or leaves.
    pub(crate) fn remove(&mut self, last_use: Time, id: LockId) {
        let was_unused = self.ordinary.remove(&(last_use, id)) || self.privileged.remove(&(last_use, id));
        assert!(was_unused, "{id:?} is not among the unused locks, where it was put at {last_use:?}");
    }

    pub(crate) fn len(&self) -> usize {
        self.ordinary.len() + self.privileged.len()
    }

    /// All unused locks, in the order in which they leave.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, LockId)> + '_ {
        self.ordinary.iter().chain(&self.privileged).copied()
    }

    /// The lock that was not used for the longest time, privileged or not.
    pub(crate) fn oldest(&self) -> Option<(Time, LockId)> {
        self.ordinary.first().into_iter().chain(self.privileged.first()).min().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.ordinary.clear();
        self.privileged.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn order(lru: &Lru) -> Vec<u64> {
        lru.iter().map(|(_, id)| id.0).collect()
    }

    #[test]
    fn what_was_used_again_leaves_last_though_it_is_older() {
        let mut lru = Lru::default();
        for id in 10..20 {
            lru.insert(at(id), LockId(id), false);
        }
        lru.insert(at(1), LockId(1), true);
        assert_eq!(order(&lru).last(), Some(&1));
        assert_eq!(lru.oldest(), Some((at(1), LockId(1))));
        lru.remove(at(1), LockId(1));
        assert_eq!(lru.len(), 10);
    }

    #[test]
    fn at_most_three_in_ten_are_privileged_and_the_longest_unused_loses_it() {
        let mut lru = Lru::default();
        for id in 1..=10 {
            lru.insert(at(id), LockId(id), true);
        }
        assert_eq!(order(&lru), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "the last three are privileged");
        lru.insert(at(11), LockId(11), false);
        assert_eq!(order(&lru), [1, 2, 3, 4, 5, 6, 7, 11, 8, 9, 10]);
        lru.clear();
        assert_eq!(lru.len(), 0);
    }
}
