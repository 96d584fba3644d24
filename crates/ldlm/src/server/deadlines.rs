//! Deadlines of the locks that are called back.

use crate::{ClientId, LockId};
use nacre_base::{FxHashMap, Time};
use std::collections::BTreeSet;

/// The running deadlines of one target.
#[derive(Default, Debug)]
pub(super) struct Deadlines {
    queue: BTreeSet<(Time, LockId)>,
    of: FxHashMap<LockId, (Time, ClientId)>,
}

impl Deadlines {
    /// The lock is called back and has to be given back by `deadline`.
    pub(super) fn begin(&mut self, id: LockId, client: ClientId, deadline: Time) {
        self.end(id);
        self.queue.insert((deadline, id));
        self.of.insert(id, (deadline, client));
        self.assert_counts();
    }

    /// The holder works under the lock: if its deadline is running, it is moved to `deadline`.
    pub(super) fn prolong(&mut self, id: LockId, deadline: Time) {
        if let Some((_, client)) = self.of.get(&id).copied() {
            self.begin(id, client, deadline);
        }
    }

    /// The lock came back, or is no longer wanted.
    pub(super) fn end(&mut self, id: LockId) {
        if let Some((deadline, _)) = self.of.remove(&id) {
            let was_queued = self.queue.remove(&(deadline, id));
            assert!(was_queued, "{id:?} has a deadline that would never pass");
        }
    }

    /// Returns whether a deadline runs for the lock.
    pub(super) fn is_running(&self, id: LockId) -> bool {
        self.of.contains_key(&id)
    }

    /// Time of the next deadline.
    pub(super) fn next(&self) -> Time {
        self.queue.first().map_or(Time::FAR_FUTURE, |(deadline, _)| *deadline)
    }

    /// Removes and returns the locks whose deadline has passed.
    pub(super) fn expired(&mut self, now: Time) -> Vec<(LockId, ClientId)> {
        let mut expired = Vec::new();
        while let Some((_, id)) = self.queue.first().copied().filter(|(deadline, _)| *deadline <= now) {
            expired.extend(self.of.get(&id).map(|(_, client)| (id, *client)));
            self.end(id);
        }
        self.assert_counts();
        expired
    }

    fn assert_counts(&self) {
        let (queued, running) = (self.queue.len(), self.of.len());
        assert_eq!(queued, running, "{queued} deadlines are queued for {running} locks");
    }

    /// The locks for which a deadline runs.
    pub(super) fn ids(&self) -> impl Iterator<Item = LockId> + '_ {
        self.queue.iter().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "0 deadlines are queued for 1 locks")]
    fn every_lock_that_is_called_back_has_a_deadline_in_the_queue() {
        let mut deadlines = Deadlines::default();
        deadlines.begin(LockId(1), ClientId(1), Time::from_secs(5));
        deadlines.queue.clear();
        deadlines.expired(Time::from_secs(5));
    }
}
