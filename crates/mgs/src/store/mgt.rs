//! The store in the MGS's own target: one table, which nobody else has.

use super::{Changes, ConfigStore, Contents, News, Outcome, StoreError};
use async_trait::async_trait;
use nacre_base::Errno;
use nacre_osd::{OsdError, Table};
use nacre_tgt::Target;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The table that all keys are in.
pub(crate) const CONFIG: Table = Table("config");

/// The table of a target that is open. Revisions are counted from the start, because nobody else reads them.
pub(crate) struct MgtStore {
    target: Arc<Target>,
    revision: AtomicU64,
}

impl MgtStore {
    pub(crate) fn new(target: Arc<Target>) -> MgtStore {
        MgtStore { target, revision: AtomicU64::new(0) }
    }
}

impl std::fmt::Debug for MgtStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MgtStore({})", self.target.name())
    }
}

#[async_trait]
impl ConfigStore for MgtStore {
    async fn load(&self) -> Result<Contents, StoreError> {
        let transaction = self.target.osd().begin().await?;
        let mut entries = BTreeMap::new();
        transaction.scan(CONFIG, &[], &mut |key, value| {
            entries.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })?;
        let revision = self.revision.load(Ordering::Acquire);
        Ok(Contents { revision, seen: revision, entries, ..Contents::default() })
    }

    async fn commit(&self, base: u64, changes: &Changes, urgent: bool) -> Result<Outcome, StoreError> {
        {
            let mut operation = self.target.begin().await.map_err(failed)?;
            if self.revision.load(Ordering::Acquire) != base {
                return Ok(Outcome::Conflict);
            }
            if urgent {
                operation.use_reserve();
            }
            for (key, value) in changes {
                match value {
                    Some(value) => operation.put(CONFIG, key, value)?,
                    None => drop(operation.delete(CONFIG, key)?),
                }
            }
            operation.finish_local();
        }
        // A change must outlive a crash before anybody hears of it.
        self.target.commit().await.map_err(failed)?;
        Ok(Outcome::Made(self.revision.fetch_add(1, Ordering::AcqRel) + 1))
    }

    async fn head(&self) -> Result<u64, StoreError> {
        Ok(self.revision.load(Ordering::Acquire))
    }

    async fn news(&self, _seen: u64) -> Result<(u64, Vec<News>), StoreError> {
        std::future::pending().await
    }

    async fn publish(&self, _name: &str, _notice: Option<&[u8]>, _lives: Duration) -> Result<(), StoreError> {
        Ok(())
    }
}

fn failed(errno: Errno) -> StoreError {
    OsdError::Io { what: "the MGS's storage", errno }.into()
}
