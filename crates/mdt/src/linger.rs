//! Inodes that lost their last name linger for a moment before they are destroyed.
//!
//! A client finds a name with one request and opens the FID it found with the next. If another client removes the name
//! between the two, the open must succeed all the same, as if it had come first: POSIX has no gap between lookup and
//! open. So an inode without names is kept as an orphan, as if it were open, until no earlier lookup can still be
//! followed by its open.
//!
//! Inodes linger on account of the client that removed their last name, and only so many for each client, and for all together: if a client
//! removes files faster than the MDT destroys them, its inodes are destroyed in the same operation, and so the client
//! waits for that.

use crate::mdt::Mdt;
use crate::opens::HANDLES_PER_CLIENT_MAX;
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

/// Most inodes that linger for all clients together. All of them are open under one client, [`CLIENT`]. An inode that got
/// no handle would stay an orphan until the next start, so half of the handles are left for operations that find room at
/// the same time.
pub(crate) const TOTAL_MAX: usize = HANDLES_PER_CLIENT_MAX / 2;
const _: () = assert!(CLIENT_MAX < TOTAL_MAX, "one client does not use up the room of all");

/// Number of inodes that linger.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    of_client: BTreeMap<u64, usize>,
    /// Sum over all clients.
    total: usize,
}

impl Counts {
    /// True if one inode may linger for the client with this export, beside `more` others.
    pub(crate) fn has_room(&self, client: u64, more: usize) -> bool {
        let own = self.of_client.get(&client).map_or(0, |n| *n);
        own + more < CLIENT_MAX && self.total + more < TOTAL_MAX
    }

    /// The clients for which inodes linger; for tests.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> Vec<u64> {
        self.of_client.keys().copied().collect()
    }

    /// Counts an inode that begins to linger.
    pub(crate) fn add(&mut self, client: u64) {
        *self.of_client.entry(client).or_default() += 1;
        self.total += 1;
    }

    /// Uncounts an inode that has lingered long enough.
    pub(crate) fn remove(&mut self, client: u64) {
        let count = self.of_client.get_mut(&client).expect("what lingers was counted");
        *count -= 1;
        if *count == 0 {
            self.of_client.remove(&client);
        }
        self.total -= 1;
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
        assert!(counts.of_client.is_empty() && counts.total == 0, "a client that is gone leaves nothing");
    }

    /// All lingering inodes share the handles of one client, and only each client's inodes were bounded: the inodes of
    /// many clients used the handles up, and further ones stayed orphans until the next start.
    #[test]
    fn all_clients_together_have_fewer_than_there_are_handles() {
        let mut counts = Counts::default();
        let clients = 1..=(TOTAL_MAX / CLIENT_MAX) as u64;
        for client in clients {
            assert!(counts.has_room(client, CLIENT_MAX - 1));
            (0..CLIENT_MAX).for_each(|_| counts.add(client));
        }
        assert!(!counts.has_room(1_000, 0), "{} inodes linger", counts.total);
        counts.remove(1);
        assert!(counts.has_room(1_000, 0) && !counts.has_room(1_000, 1));
    }
}
