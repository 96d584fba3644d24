//! Makes all changes of this mount durable: for sync(2) and syncfs(2), and before the mount ends. The fsync of one file
//! is in `file`.

use crate::llite::Client;
use crate::mount::connection::{Caller, Connection};
use futures_util::future::{join, join_all};
use nacre_base::{Errno, Fid};
use std::fmt;
use std::pin::pin;
use std::time::Duration;

/// Changes of this mount that a target has not yet made durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsettled {
    /// Name of the connection to the target in parameters.
    pub target: String,
    /// Bytes that were not yet written to the target.
    pub dirty_bytes: u64,
    /// Changes that the target has acknowledged and not yet committed.
    pub uncommitted: usize,
}

impl Unsettled {
    /// The changes that the target still has to make durable, if any.
    fn of(connection: &Connection, dirty_bytes: u64) -> Option<Unsettled> {
        let uncommitted = connection.unstable().0;
        let left = dirty_bytes > 0 || uncommitted > 0;
        left.then(|| Unsettled { target: connection.label().to_owned(), dirty_bytes, uncommitted })
    }
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsettled { target, dirty_bytes, uncommitted } = self;
        write!(f, "{target} ({dirty_bytes} bytes not written, {uncommitted} changes not committed)")
    }
}

impl Client {
    /// Writes back everything dirty, and makes every change durable: syncfs(2). Also fails, once, if data was lost since
    /// the last call; an open file reports that by its own fsync as well.
    pub async fn sync(&self) -> Result<(), Errno> {
        let (caller, table) = (Caller::default(), self.targets.table());
        let objects = join_all(table.osts.values().map(|osc| osc.sync_all(&caller)));
        let inodes = join_all(table.mdts.values().map(|mdc| mdc.sync_all(&caller)));
        let (objects, inodes) = join(objects, inodes).await;
        objects.into_iter().chain(inodes).collect()
    }

    /// The error of data that was lost and that no sync has reported yet.
    fn report_losses(&self) -> Result<(), Errno> {
        let (table, any) = (self.targets.table(), Fid::default());
        let osts = table.osts.values().map(|osc| osc.lost.check(any));
        let mdts = table.mdts.values().map(|mdc| mdc.lost.check(any));
        // All targets, so that each loss is reported once.
        osts.chain(mdts).fold(Ok(()), Result::and)
    }

    /// The targets that still have to make changes of this mount durable.
    pub fn unsettled(&self) -> Vec<Unsettled> {
        let table = self.targets.table();
        let osts = table.osts.values().filter_map(|osc| Unsettled::of(osc.connection(), osc.dirty_bytes()));
        let mdts = table.mdts.values().filter_map(|mdc| Unsettled::of(mdc.connection(), 0));
        osts.chain(mdts).collect()
    }

    /// As [`Client::sync`], but for the end of a mount: logs what it waits for, and gives up with ETIMEDOUT once nothing
    /// has become durable for `patience`. As `sync`, it reports losses.
    pub async fn settle(&self, patience: Duration) -> Result<(), Errno> {
        let mut before = self.unsettled();
        if before.is_empty() {
            return self.report_losses();
        }
        let mut sync = pin!(self.sync());
        loop {
            if let Ok(synced) = self.mount.rt.timeout(patience, sync.as_mut()).await {
                return synced;
            }
            let now = self.unsettled();
            let gives_up = now == before;
            tracing::warn!(fsname = self.fsname(), gives_up, "the mount ends, and waits for {}", list(&now));
            if gives_up {
                return Err(Errno::ETIMEDOUT);
            }
            before = now;
        }
    }
}

fn list(unsettled: &[Unsettled]) -> String {
    unsettled.iter().map(Unsettled::to_string).collect::<Vec<_>>().join(", ")
}
