//! The table of all operations, and an OST's part in connects and disconnects.

use crate::object_service::ObjectService;
use crate::ops;
use crate::settings::SyncOnLockCancel;
use async_trait::async_trait;
use nacre_base::Errno;
use nacre_ptlrpc::{Export, Identity, Place, Roles, ServerRequest, Servers, Standing};
use nacre_tgt::{Access, Handler, Service, Statistics, Target, line};
use nacre_wire::Opcode;
use nacre_wire::connect::{ConnectData, ConnectRequest, connect_flags as features};
use nacre_wire::ost::{CHECKSUM_CRC32C, Read, Write};
use std::sync::Arc;

const CLIENT: Roles = Roles::CLIENT;
const MDT: Roles = Roles::MDT;

/// Every operation: opcode, name in the statistics, whether it changes something, the roles that may send it, handler.
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

#[async_trait]
impl Service for ObjectService {
    const FEATURES: u64 = features::GRANT
        | features::SERVER_LOCK
        | features::BRW_SIZE
        | features::CHECKSUM
        | features::SHORT_IO
        | features::MULTI_MODIFY_RPCS
        | features::CREDITS
        | features::MDS;
    const RECOVERS: bool = true;
    const NAME: &'static str = "ost";
    const STATISTICS: &'static [Statistics] = &[
        Statistics { name: "ost.OSS.ost", only: &[] },
        Statistics { name: "ost.OSS.ost_create", only: &[Opcode::OstCreate] },
        Statistics { name: "ost.OSS.ost_io", only: &[Opcode::OstRead, Opcode::OstWrite] },
    ];

    fn table() -> &'static [Handler<Self>] {
        TABLE
    }

    fn target(&self) -> &Arc<Target> {
        &self.target
    }

    fn place(request: &ServerRequest) -> Option<Place> {
        let (object, extents, is_read) = match request.opcode {
            Opcode::OstRead => request.decode::<Read>().map(|read| (read.fid, read.extents, true)).ok()?,
            Opcode::OstWrite => request.decode::<Write>().map(|write| (write.fid, write.extents, false)).ok()?,
            _ => return None,
        };
        let bytes = extents.iter().map(|extent| u64::from(extent.len)).sum();
        Some(Place { object, offset: extents.first()?.offset, bytes, is_read })
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
        // Other clients must not see data of this client that a crash would lose, and this client will not come back to
        // write it again.
        if self.settings.sync_on_lock_cancel() != SyncOnLockCancel::Never {
            let _ = self.target.commit().await;
        }
        self.locks.export_gone(export);
        self.space.disconnect(export.cookie);
    }
}
