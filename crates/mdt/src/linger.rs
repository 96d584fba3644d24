//! Inodes that lost their last name linger for a moment before they are destroyed.
//!
//! A client finds a name with one request and opens the FID it found with the next. If another client removes the name
//! between the two, the open must succeed all the same, as if it had come first: POSIX has no gap between lookup and
//! open. So an inode without names is kept as an orphan, as if it were open, until no earlier lookup can still be
//! followed by its open.
//!
//! Inodes linger on account of the client that removed their last name, and only so many for each client: if a client
//! removes files faster than the MDT destroys them, its inodes are destroyed in the same operation, and so the client
//! waits for that.

use crate::mdt::Mdt;
use nacre_base::{Fid, Time};
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long inodes linger. An open follows its lookup at once, but a slow network may delay it.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Cookie of the client under which lingering inodes are open; no export has it.
pub(crate) const CLIENT: u64 = 0;

/// Most inodes that linger for one client: as many as it can remove in [`LINGER`] at 16,000 a second.
pub(crate) const CLIENT_MAX: usize = 32_768;

/// Number of inodes that linger for each client.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<u64, usize>);

impl Counts {
    /// True if one inode may linger for the client with this export, beside `more` others.
    pub(crate) fn has_room(&self, client: u64, more: usize) -> bool {
        self.0.get(&client).map_or(0, |n| *n) + more < CLIENT_MAX
    }

    /// The clients for which inodes linger; for tests.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    /// Counts an inode that begins to linger.
    pub(crate) fn add(&mut self, client: u64) {
        *self.0.entry(client).or_default() += 1;
    }

    /// Uncounts an inode that has lingered long enough.
    pub(crate) fn remove(&mut self, client: u64) {
        let count = self.0.get_mut(&client).expect("what lingers was counted");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&client);
        }
    }
}

/// An inode that lost its last name, with the handle that keeps it, and until when.
pub(crate) struct Lingering {
    pub(crate) fid: Fid,
    /// Export of the client that removed the name.
    pub(crate) client: u64,
    pub(crate) handle: u64,
    pub(crate) until: Time,
}

/// Destroys inodes that have lingered long enough, in batches. Sets no timer while none lingers.
pub(crate) async fn reap(mdt: Weak<Mdt>, mut lingering: mpsc::UnboundedReceiver<Lingering>) {
    let mut next = lingering.recv().await;
    while let Some(first) = next.take() {
        let Some(rt) = mdt.upgrade().map(|m| m.target().rt().clone()) else { return };
        rt.sleep_until(first.until).await;
        // Deadlines come in order, so inodes that are due follow at the front.
        let mut due = vec![first];
        while let Ok(more) = lingering.try_recv() {
            if more.until > rt.now() || due.len() >= BATCH {
                next = Some(more);
                break;
            }
            due.push(more);
        }
        let Some(mdt) = mdt.upgrade() else { return };
        mdt.stop_lingering(&due).await;
        drop(mdt);
        if next.is_none() {
            next = lingering.recv().await;
        }
    }
}

/// Number of inodes destroyed in one operation.
const BATCH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_room_of_its_own() {
        let mut counts = Counts::default();
        assert!(counts.has_room(1, CLIENT_MAX - 1) && !counts.has_room(1, CLIENT_MAX));
        (0..CLIENT_MAX).for_each(|_| counts.add(1));
        assert!(!counts.has_room(1, 0) && counts.has_room(2, 0));
        counts.remove(1);
        assert!(counts.has_room(1, 0));
        (1..CLIENT_MAX).for_each(|_| counts.remove(1));
        assert!(counts.0.is_empty(), "a client that is gone leaves nothing");
    }
}
