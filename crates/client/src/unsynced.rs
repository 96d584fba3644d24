//! What a target was told and has not said to be durable: so that an fsync never vouches for a change that a crash took.
//!
//! Until requests are replayed, a server that crashes loses what it had acknowledged and not committed. The next fsync
//! reaches the server's next instance, which has nothing to sync and would say yes. So each change is remembered with the
//! instance that acknowledged it, until it is known to be durable; an fsync that finds one of an earlier instance fails
//! with EIO, once, as a local disk's does after a lost write.

use nacre_base::{Errno, Fid};
use std::collections::BTreeMap;

/// Changes of one target that may not be durable yet, by what they changed.
#[derive(Default)]
pub(crate) struct Unsynced {
    changes: BTreeMap<Fid, Change>,
    /// With so many entries it is worth looking for those that became durable.
    prune_at: usize,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    /// Instance that acknowledged the first of them.
    instance: u64,
    /// Transno of the last of them.
    last: u64,
}

/// A transno is the target's instance in the upper half and a count in the lower.
fn instance_of(transno: u64) -> u64 {
    transno >> 32
}

impl Unsynced {
    /// `fid` was changed with `transno` (0: nothing was changed); `last_committed` came with the same reply.
    pub(crate) fn handle_change(&mut self, fid: Fid, transno: u64, last_committed: u64) {
        if transno == 0 || transno <= last_committed {
            return;
        }
        let instance = instance_of(transno);
        let change = self.changes.entry(fid).or_insert(Change { instance, last: transno });
        change.last = change.last.max(transno);
        if self.changes.len() > self.prune_at {
            self.changes.retain(|_, c| c.instance != instance || c.last > last_committed);
            self.prune_at = (self.changes.len() * 2).max(256);
        }
    }

    /// The target was started anew, and has again all that it had acknowledged; it makes that durable before it serves
    /// anything else.
    pub(crate) fn handle_recovered(&mut self) {
        self.changes.clear();
    }

    /// Whether anything may not be durable.
    pub(crate) fn any(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The target has synced `fid`, and with its reply came `last_committed`. EIO if a change was acknowledged by an
    /// instance before `instance`: it may be lost. That is told once.
    pub(crate) fn handle_sync(&mut self, fid: Fid, instance: u64, last_committed: u64) -> Result<(), Errno> {
        let Some(change) = self.changes.get(&fid).copied() else { return Ok(()) };
        if change.instance != instance {
            self.changes.remove(&fid);
            return Err(Errno::EIO);
        }
        // A change that came while the sync was under way stays.
        if change.last <= last_committed {
            self.changes.remove(&fid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid { seq: 1, oid: 1, ver: 0 };

    fn transno(instance: u64, n: u64) -> u64 {
        instance << 32 | n
    }

    #[test]
    fn a_change_that_an_earlier_instance_acknowledged_fails_the_next_sync_once() {
        let mut u = Unsynced::default();
        u.handle_change(F, transno(1, 5), transno(1, 4));
        // The restarted server took one more: the first is still in doubt.
        u.handle_change(F, transno(2, 1), transno(1, 4));
        assert_eq!(u.handle_sync(F, 2, transno(2, 1)), Err(Errno::EIO));
        assert_eq!(u.handle_sync(F, 2, transno(2, 1)), Ok(()));
    }

    #[test]
    fn what_is_durable_is_forgotten_and_what_came_later_is_not() {
        let mut u = Unsynced::default();
        u.handle_change(F, transno(1, 5), transno(1, 4));
        u.handle_change(F, transno(1, 9), transno(1, 4));
        assert_eq!(u.handle_sync(F, 1, transno(1, 7)), Ok(()));
        assert_eq!(u.handle_sync(F, 2, transno(2, 0)), Err(Errno::EIO), "number 9 was never synced");
        u.handle_change(F, transno(2, 3), transno(2, 3));
        assert_eq!(u.handle_sync(F, 3, transno(2, 3)), Ok(()), "it was durable when it was answered");
    }

    #[test]
    fn memory_is_bounded_by_what_is_not_committed() {
        let mut u = Unsynced::default();
        for n in 1..100_000u32 {
            let committed = transno(1, u64::from(n.saturating_sub(10)));
            u.handle_change(Fid { oid: n, ..F }, transno(1, n.into()), committed);
            assert!(u.changes.len() <= 257);
        }
    }
}
