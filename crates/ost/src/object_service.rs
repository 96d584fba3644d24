//! The state that the operations of an OST work on, and the steps that several of them share.

use crate::brw_stats::BrwStats;
use crate::lfsck_status::LfsckStatus;
use crate::memory::Memory;
use crate::objects::{Access, Objects};
use crate::record::ObjectRecord;
use crate::remover::Remover;
use crate::sequences::Successors;
use crate::settings::Settings;
use crate::space::Space;
use nacre_base::{Errno, Fid};
use nacre_ldlm::RangeSet;
use nacre_osd::ObjectStat;
use nacre_ptlrpc::{Response, ServerRequest, Servers};
use nacre_tgt::{LockService, ServerLockGuard, Target};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::LockMode;
use nacre_wire::ost::WriteReply;
use std::sync::Arc;

/// Lock handle in a request that no lock of the client covers: the server takes a lock itself.
pub(crate) const NO_LOCK: u64 = 0;

/// State that the handlers work on.
pub(crate) struct ObjectService {
    pub(crate) target: Arc<Target>,
    pub(crate) objects: Objects,
    pub(crate) space: Arc<Space>,
    pub(crate) locks: LockService,
    pub(crate) settings: Settings,
    pub(crate) remover: Remover,
    pub(crate) lfsck: LfsckStatus,
    pub(crate) memory: Memory,
    pub(crate) brw_stats: BrwStats,
    pub(crate) servers: Arc<Servers>,
    /// Source of the next sequence when all ids of the current one are used up.
    pub(crate) successors: Box<dyn Successors>,
}

impl ObjectService {
    /// The attributes of an object with this record. For an object that was never written to, the device is not asked: it
    /// would look for a missing file, and the first lock of every new file waits for this.
    pub(crate) async fn attr(&self, fid: Fid, record: &ObjectRecord) -> Result<ObjectAttr, Errno> {
        let stat = if record.is_precreated { ObjectStat::default() } else { self.stat(fid).await? };
        Ok(record.attr(stat))
    }

    /// Makes sure that other clients' caches agree with an access to these ranges: by `lock`, the client's own extent
    /// lock (ESTALE if it does not cover them), or by a lock taken here, which waits for conflicting ones. Held until the
    /// end of the access, and taken before the ranges are locked against other requests.
    pub(crate) async fn lock_ranges(
        &self,
        request: &ServerRequest,
        fid: Fid,
        lock: u64,
        access: Access,
        ranges: &RangeSet,
    ) -> Result<Option<ServerLockGuard>, Errno> {
        // Replays run before locks exist, one at a time, and had their access checked when they first ran.
        if request.is_replay() {
            return Ok(None);
        }
        let is_write = access == Access::Write;
        if lock != NO_LOCK {
            self.locks.check(&request.export, lock, fid, is_write, ranges)?;
            return Ok(None);
        }
        let mode = if is_write { LockMode::Pw } else { LockMode::Pr };
        self.locks.lock_server(request, fid, mode, ranges.clone()).await.map(Some)
    }

    /// Reply to a change of an object's data that used no grant.
    pub(crate) fn change_reply(&self, fid: Fid, record: &ObjectRecord, stat: ObjectStat) -> Response {
        Response::new(&WriteReply { attr: record.attr(stat), grant: 0, contended: self.locks.is_contended(fid) })
    }

    /// Length and space of the object's data on the device.
    pub(crate) async fn stat(&self, fid: Fid) -> Result<ObjectStat, Errno> {
        Ok(self.target.osd().stat(fid).await?.unwrap_or_default())
    }
}
