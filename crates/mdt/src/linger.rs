//! Inodes that lost their last name linger for a moment before they are destroyed.
//!
//! A client finds a name with one request and opens the FID it found with the next. If another client takes the name away
//! between the two, the open must succeed all the same, as if it had come first: POSIX knows no gap between looking up
//! and opening. So an inode without names is kept as an orphan, as if somebody had it open, until no lookup that came
//! before can still be on its way to its open.

use crate::mdt::Mdt;
use nacre_base::{Fid, Time};
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long. An open follows its lookup at once; a slow network may come between.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// The client in whose name lingering inodes are open: no export has this cookie.
pub(crate) const CLIENT: u64 = 0;

/// An inode that lost its last name: the handle that keeps it, and until when.
pub(crate) struct Lingering {
    pub(crate) fid: Fid,
    pub(crate) handle: u64,
    pub(crate) until: Time,
}

/// Destroys what has lingered long enough, in batches. Sets no timer while nothing lingers.
pub(crate) async fn reap(mdt: Weak<Mdt>, mut lingering: mpsc::UnboundedReceiver<Lingering>) {
    let mut next = lingering.recv().await;
    while let Some(first) = next.take() {
        let Some(rt) = mdt.upgrade().map(|m| m.target().rt().clone()) else { return };
        rt.sleep_until(first.until).await;
        // Deadlines come in order, so what is due follows at the front.
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

/// Inodes destroyed in one operation.
const BATCH: usize = 256;
