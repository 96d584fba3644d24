//! Space of the device and the clients' claims to it: the grant engine with the device's `statfs` behind it.

use crate::remover::Remover;
use futures_util::FutureExt;
use nacre_base::Errno;
use nacre_osd::StatFs;
use nacre_tgt::Target;
use nacre_tgt::grant::{GrantEngine, Reservation, Written};
use nacre_wire::ost::GrantReport;
use parking_lot::Mutex;
use std::sync::Arc;

/// A target is short of space if less than this part of it is free.
const SHORT_FRACTION: u64 = 16;

/// Space of one OST.
pub(crate) struct Space {
    target: Arc<Target>,
    remover: Remover,
    grants: Mutex<GrantEngine>,
    last: Mutex<StatFs>,
}

impl Space {
    pub(crate) fn new(target: Arc<Target>, remover: Remover) -> Space {
        Space { target, remover, grants: Mutex::default(), last: Mutex::default() }
    }

    /// The device's current space.
    pub(crate) async fn statfs(&self) -> Result<StatFs, Errno> {
        let statfs = self.target.osd().statfs().await?;
        *self.last.lock() = statfs;
        self.grants.lock().refresh(self.target.rt().now(), statfs.available_bytes);
        Ok(statfs)
    }

    /// Space to show in parameters, which cannot wait: the device's answer if it comes at once, else the last known one.
    pub(crate) fn shown(&self) -> StatFs {
        match self.target.osd().statfs().now_or_never() {
            Some(Ok(statfs)) => statfs,
            _ => *self.last.lock(),
        }
    }

    pub(crate) fn total_granted(&self) -> u64 {
        self.grants.lock().total_granted()
    }

    pub(crate) fn pending(&self) -> u64 {
        self.grants.lock().pending()
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.grants.lock().dirty()
    }

    /// Handles a client's connect. Returns its grant.
    pub(crate) async fn connect(&self, export: u64, held: u64) -> Result<u64, Errno> {
        self.statfs().await?;
        Ok(self.grants.lock().connect(export, held, !self.target.is_recovering()))
    }

    /// Handles a client's disconnect.
    pub(crate) fn disconnect(&self, export: u64) {
        self.grants.lock().disconnect(export);
    }

    /// Takes space for a write: `promised` bytes by grant, `free` bytes without. If there is not enough unpromised
    /// space, a commit may free some (of destroyed objects); if there is still not enough: ENOSPC.
    pub(crate) async fn reserve(self: &Arc<Self>, export: u64, promised: u64, free: u64) -> Result<Reserved, Errno> {
        if self.grants.lock().needs_refresh(self.target.rt().now()) {
            self.statfs().await?;
        }
        let first = self.grants.lock().reserve(export, promised, free);
        if let Ok(reservation) = first {
            return Ok(self.reserved(reservation));
        }
        self.target.commit().await?;
        self.remover.drained().await;
        self.statfs().await?;
        let second = self.grants.lock().reserve(export, promised, free);
        second.map(|reservation| self.reserved(reservation)).map_err(|_| Errno::ENOSPC)
    }

    /// Takes space for a replay.
    pub(crate) fn reserve_replay(self: &Arc<Self>, export: u64, bytes: u64) -> Reserved {
        let reservation = self.grants.lock().reserve_replay(export, bytes);
        self.reserved(reservation)
    }

    /// Whether a write for which space was reserved can be answered before it is stored, because it will not fail any more.
    pub(crate) fn is_certain(&self) -> bool {
        !self.is_short() && self.grants.lock().is_covered()
    }

    /// Returns whether so little space, or so few inodes, are free that the device may refuse even reserved space: other
    /// programs may use its file system.
    pub(crate) fn is_short(&self) -> bool {
        let last = *self.last.lock();
        last.available_bytes <= last.total_bytes / SHORT_FRACTION
            || last.files_free <= last.files_total / SHORT_FRACTION
    }

    /// To be called after objects were destroyed: on a target that is short of space, their space must come back now and
    /// not at the next commit, because a client waits for it.
    pub(crate) async fn hurry(&self) -> Result<(), Errno> {
        if !self.is_short() {
            return Ok(());
        }
        self.target.commit().await?;
        self.remover.drained().await;
        self.statfs().await.map(drop)
    }

    /// Grant that the reply to a write adds to its client's grant.
    pub(crate) fn allocate(&self, export: u64, report: &GrantReport) -> u64 {
        self.grants.lock().allocate(export, report)
    }

    fn reserved(self: &Arc<Self>, reservation: Reservation) -> Reserved {
        Reserved { space: self.clone(), reservation: Some(reservation) }
    }
}

/// Space taken for a write in progress. If this is dropped without [`Reserved::written`], the write has failed.
pub(crate) struct Reserved {
    space: Arc<Space>,
    reservation: Option<Reservation>,
}

impl Reserved {
    /// The data has been stored.
    pub(crate) fn written(mut self) {
        self.end(Written::All);
    }

    fn end(&mut self, how: Written) {
        if let Some(reservation) = self.reservation.take() {
            self.space.grants.lock().finish(reservation, how);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.end(Written::Failed);
    }
}
