//! Notices objects at which the locks of clients conflict often, so that replies can tell the clients to ask for no
//! more than they use.
//!
//! Each request that had to wait for another client's lock, or behind its request, counts once. It does not matter
//! whether the *requested* ranges overlap: writers of a strided file never want the same bytes, only their grown locks
//! collide, and that is the very case that the clients can do something about. A request counts once, not once per lock
//! that it met: a single writer among fifty readers calls fifty locks back, once, and harms nobody. Locks that the
//! server takes for operations count where they meet a client's lock, but not among each other, because they are the
//! cure.

use super::Settings;
use nacre_base::{Fid, FxHashMap, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Conflicts at all objects of a target. They outlive the locks, because exact locks and server-side ones come and go.
#[derive(Default, Debug)]
pub(super) struct Contention {
    objects: FxHashMap<Fid, Object>,
    /// Number of objects at which quiet ones are forgotten.
    tidy_at: usize,
    events: u64,
}

#[derive(Default, Debug)]
struct Object {
    /// The last conflicts, oldest first; no more than make the object contended.
    conflicts: VecDeque<Time>,
    contended_until: Time,
}

impl Contention {
    /// A request met another client's lock.
    pub(super) fn handle_conflict(&mut self, resource: Fid, now: Time, settings: &Settings) {
        if self.objects.len() >= self.tidy_at.max(TIDY_AT_LEAST) {
            self.forget_quiet(now, settings);
        }
        let object = self.objects.entry(resource).or_default();
        let enough = settings.contended_locks.max(1);
        object.conflicts.push_back(now);
        while object.conflicts.len() > enough {
            object.conflicts.pop_front();
        }
        let window = Duration::from_secs(settings.contention_seconds);
        let first = object.conflicts.front().copied().unwrap_or(now);
        if object.conflicts.len() == enough && now.since(first) <= window {
            self.events += u64::from(object.contended_until <= now);
            object.contended_until = now + Duration::from_secs(settings.contention_hold_seconds);
        }
    }

    /// Returns whether the object is contended.
    pub(super) fn is_contended(&self, resource: Fid, now: Time) -> bool {
        self.objects.get(&resource).is_some_and(|object| now < object.contended_until)
    }

    /// Times that an object became contended.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    fn forget_quiet(&mut self, now: Time, settings: &Settings) {
        let window = Duration::from_secs(settings.contention_seconds);
        self.objects.retain(|_, object| {
            now < object.contended_until || object.conflicts.back().is_some_and(|last| now.since(*last) <= window)
        });
        self.tidy_at = self.objects.len() * 2;
    }
}

/// With fewer objects than this, quiet ones are not looked for.
const TIDY_AT_LEAST: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid { seq: 1, oid: 1, ver: 0 };

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn sixteen_conflicts_in_four_seconds_make_an_object_contended_for_thirty() {
        let (mut contention, settings) = (Contention::default(), Settings::default());
        for i in 0..15 {
            contention.handle_conflict(FILE, at(i * 200), &settings);
        }
        assert!(!contention.is_contended(FILE, at(2800)));
        contention.handle_conflict(FILE, at(4000), &settings);
        assert!(contention.is_contended(FILE, at(4000)) && contention.is_contended(FILE, at(33_999)));
        assert!(!contention.is_contended(FILE, at(34_000)));
        assert!(!contention.is_contended(Fid { oid: 2, ..FILE }, at(4000)));
        contention.handle_conflict(FILE, at(4001), &settings);
        assert_eq!(contention.events(), 1, "it is still the same contention");
        assert!(contention.is_contended(FILE, at(34_000)), "which goes on");
    }

    #[test]
    fn a_conflict_now_and_then_is_no_contention() {
        let (mut contention, settings) = (Contention::default(), Settings::default());
        for i in 0..1000 {
            contention.handle_conflict(FILE, at(i * 300), &settings);
            assert!(!contention.is_contended(FILE, at(i * 300)));
        }
        assert_eq!(contention.events(), 0);
    }

    #[test]
    fn quiet_objects_are_forgotten() {
        let (mut contention, settings) = (Contention::default(), Settings::default());
        for i in 0..100_000 {
            contention.handle_conflict(Fid { oid: i, ..FILE }, at(u64::from(i) * 10), &settings);
        }
        assert!(contention.objects.len() <= TIDY_AT_LEAST, "{}", contention.objects.len());
    }
}
