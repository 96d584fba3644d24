//! The service on one screen: every operation, and what connecting means to an OST.

use crate::brw_stats::BrwStats;
use crate::lfsck_status::LfsckStatus;
use crate::memory::Memory;
use crate::objects::{self, Objects};
use crate::ops;
use crate::record::ObjectRecord;
use crate::remover::Remover;
use crate::sequences::Successors;
use crate::settings::{Settings, SyncOnLockCancel};
use crate::space::Space;
use async_trait::async_trait;
use nacre_base::{Errno, Fid};
use nacre_ldlm::RangeSet;
use nacre_osd::ObjectStat;
use nacre_ptlrpc::{Export, Identity, Roles, ServerRequest, Servers, Standing};
use nacre_tgt::{Access, Handler, LockService, ServerLockGuard, Service, Statistics, Target, line};
use nacre_wire::Opcode;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::connect::{ConnectData, ConnectRequest, connect_flags as features};
use nacre_wire::ldlm::LockMode;
use nacre_wire::ost::CHECKSUM_CRC32C;
use std::sync::Arc;

/// In a request: no lock of the client covers it, the server is to take one.
pub(crate) const NO_LOCK: u64 = 0;

/// What the handlers work on.
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
    /// Where the next sequence comes from when all ids of the current one are used up.
    pub(crate) successors: Box<dyn Successors>,
}

const CLIENT: Roles = Roles::CLIENT;
const MDT: Roles = Roles::MDT;

/// Every operation: opcode, name in the statistics, whether it changes something, who may ask for it, handler.
const TABLE: &[Handler<ObjectService>] = &[
    line(Opcode::OstGetattr, "getattr", Access::Reads, CLIENT, |s, r| Box::pin(ops::getattr::handle(s, r))),
    line(Opcode::OstSetattr, "setattr", Access::Changes, CLIENT, |s, r| Box::pin(ops::setattr::handle(s, r))),
    line(Opcode::OstRead, "read", Access::Reads, CLIENT, |s, r| Box::pin(ops::read::handle(s, r))),
    line(Opcode::OstWrite, "write", Access::Changes, CLIENT, |s, r| Box::pin(ops::write::handle(s, r))),
    line(Opcode::OstCreate, "create", Access::Changes, MDT, |s, r| Box::pin(ops::create::handle(s, r))),
    line(Opcode::OstDestroy, "destroy", Access::Changes, MDT, |s, r| Box::pin(ops::destroy::handle(s, r))),
    line(Opcode::OstPunch, "punch", Access::Changes, CLIENT, |s, r| Box::pin(ops::punch::handle(s, r))),
    line(Opcode::OstStatfs, "statfs", Access::Reads, CLIENT, |s, r| Box::pin(ops::statfs::handle(s, r))),
    line(Opcode::OstSync, "sync", Access::Reads, CLIENT, |s, r| Box::pin(ops::sync::handle(s, r))),
    line(Opcode::OstFallocate, "prealloc", Access::Changes, CLIENT, |s, r| Box::pin(ops::fallocate::handle(s, r))),
    line(Opcode::OstSeek, "seek", Access::Reads, CLIENT, |s, r| Box::pin(ops::seek::handle(s, r))),
    line(Opcode::OstFiemap, "get_info", Access::Reads, CLIENT, |s, r| Box::pin(ops::fiemap::handle(s, r))),
    line(Opcode::OstGlimpse, "glimpse", Access::Reads, CLIENT, |s, r| Box::pin(ops::glimpse::handle(s, r))),
    line(Opcode::LfsckQuery, "", Access::Reads, MDT, |s, r| Box::pin(ops::lfsck::handle_query(s, r))),
    line(Opcode::LfsckNotify, "", Access::Changes, MDT, |s, r| Box::pin(ops::lfsck::handle_notify(s, r))),
    line(Opcode::LdlmEnqueue, "", Access::Reads, CLIENT, |s, r| Box::pin(ops::enqueue::handle(s, r))),
    line(Opcode::LdlmConvert, "", Access::Reads, CLIENT, |s, r| Box::pin(async move { s.locks.convert(&r) })),
    line(Opcode::LdlmCancel, "", Access::Reads, CLIENT, |s, r| Box::pin(ops::cancel::handle(s, r))),
];

impl ObjectService {
    /// The attributes of an object with this record. The device is not asked about an object that was never written to: it
    /// would look for a file that is not there, and the first lock of every new file waits for this.
    pub(crate) async fn attr(&self, fid: Fid, record: &ObjectRecord) -> Result<ObjectAttr, Errno> {
        let stat = if record.is_precreated { ObjectStat::default() } else { self.stat(fid).await? };
        Ok(record.attr(stat))
    }

    /// Makes sure that other clients' caches agree with an access to these ranges: by `lock`, the client's own extent lock
    /// (ESTALE if it does not cover them), or by one taken here, which waits for what is in its way. To be held to the
    /// end of the access, and taken before the ranges are locked against other requests.
    pub(crate) async fn lock_ranges(
        &self,
        request: &ServerRequest,
        fid: Fid,
        lock: u64,
        access: objects::Access,
        ranges: &RangeSet,
    ) -> Result<Option<ServerLockGuard>, Errno> {
        // Replays come before the locks, one at a time, and were let in once.
        if request.is_replay() {
            return Ok(None);
        }
        let is_write = access == objects::Access::Write;
        if lock != NO_LOCK {
            self.locks.check(&request.export, lock, fid, is_write, ranges)?;
            return Ok(None);
        }
        let mode = if is_write { LockMode::Pw } else { LockMode::Pr };
        self.locks.lock_server(request, fid, mode, ranges.clone()).await.map(Some)
    }

    /// What the device knows of the object's data.
    pub(crate) async fn stat(&self, fid: Fid) -> Result<ObjectStat, Errno> {
        Ok(self.target.osd().stat(fid).await?.unwrap_or_default())
    }
}

#[async_trait]
impl Service for ObjectService {
    const FEATURES: u64 = features::GRANT
        | features::SERVER_LOCK
        | features::BRW_SIZE
        | features::CHECKSUM
        | features::SHORT_IO
        | features::MULTI_MODIFY_RPCS
        | features::MDS;
    const RECOVERS: bool = true;
    const NAME: &'static str = "ost";
    const STATISTICS: &'static [Statistics] = &[
        Statistics { name: "ost.OSS.ost", only: &[] },
        Statistics { name: "ost.OSS.ost_io", only: &[Opcode::OstRead, Opcode::OstWrite] },
    ];

    fn table() -> &'static [Handler<Self>] {
        TABLE
    }

    fn target(&self) -> &Arc<Target> {
        &self.target
    }

    fn servers(&self) -> Option<&Servers> {
        Some(&self.servers)
    }

    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno> {
        nacre_tgt::admit_listed(&self.target, &self.servers, who, request).await
    }

    fn is_read_only(&self) -> bool {
        self.settings.is_read_only()
    }

    async fn connected(
        &self,
        export: &Arc<Export>,
        asked: &ConnectData,
        answer: &mut ConnectData,
    ) -> Result<(), Errno> {
        if answer.flags & features::BRW_SIZE != 0 {
            answer.brw_size = asked.brw_size.min(self.settings.brw_bytes());
        }
        if answer.flags & features::CHECKSUM != 0 {
            answer.checksum_types = asked.checksum_types & CHECKSUM_CRC32C;
        }
        if answer.flags & features::MDS != 0 {
            answer.flags &= !features::GRANT;
        }
        if answer.flags & features::GRANT != 0 {
            answer.grant = self.space.connect(export.cookie, asked.grant).await?;
        }
        Ok(())
    }

    async fn disconnected(&self, export: &Arc<Export>) {
        // What it wrote must not be seen and lost either, and it will not come back to write it again.
        if self.settings.sync_on_lock_cancel() != SyncOnLockCancel::Never {
            let _ = self.target.commit().await;
        }
        self.locks.export_gone(export);
        self.space.disconnect(export.cookie);
    }
}
