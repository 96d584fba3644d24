//! Stopped targets for the check: no other process has their devices.

use async_trait::async_trait;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_mdt::lfsck::{Metadata, ObjectStore, Progress, TurnWork};
use nacre_osd::Osd;
use nacre_wire::lfsck::{ObjectFacts, ObjectQuery, ObjectRepairs};
use std::sync::Arc;

/// Called with the progress of the check after every step.
pub type ProgressSink = dyn Fn(&Progress<'_>) + Send + Sync;

/// A stopped MDT.
pub(crate) struct StoppedMdt<'a> {
    osd: Arc<dyn Osd>,
    index: u32,
    now: Timestamp,
    version: u64,
    progress: &'a ProgressSink,
}

impl<'a> StoppedMdt<'a> {
    pub(crate) async fn open(
        osd: Arc<dyn Osd>,
        index: u32,
        now: Timestamp,
        progress: &'a ProgressSink,
    ) -> Result<StoppedMdt<'a>, Errno> {
        let version = nacre_tgt::check::last_version(&*osd.begin().await?)?;
        Ok(StoppedMdt { osd, index, now, version, progress })
    }
}

#[async_trait]
impl Metadata for StoppedMdt<'_> {
    async fn turn(&self, work: &mut TurnWork<'_>) -> Result<(), Errno> {
        let mut transaction = self.osd.begin().await?;
        if work(&mut *transaction, self.version)?.is_changed {
            transaction.finish();
        }
        Ok(())
    }

    async fn commit(&self) -> Result<(), Errno> {
        Ok(self.osd.commit().await?)
    }

    fn wall(&self) -> Timestamp {
        self.now
    }

    fn index(&self) -> u32 {
        self.index
    }

    async fn pause(&self, progress: &Progress<'_>) -> Result<(), Errno> {
        (self.progress)(progress);
        Ok(())
    }
}

/// A stopped OST.
pub(crate) struct StoppedOst {
    osd: Arc<dyn Osd>,
}

impl StoppedOst {
    pub(crate) fn new(osd: Arc<dyn Osd>) -> StoppedOst {
        StoppedOst { osd }
    }
}

#[async_trait]
impl ObjectStore for StoppedOst {
    async fn query(&self, query: ObjectQuery) -> Result<ObjectFacts, Errno> {
        nacre_ost::check::query(&*self.osd, &query).await
    }

    async fn repair(&self, repairs: ObjectRepairs) -> Result<(), Errno> {
        nacre_ost::check::repair(&*self.osd, &repairs.repairs).await
    }

    async fn stray_data(&self) -> Result<Vec<Fid>, Errno> {
        nacre_ost::check::stray_data(&*self.osd).await
    }
}
