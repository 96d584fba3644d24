//! The common part of all fake servers: they accept every client, and remember nothing of it.

use async_trait::async_trait;
use nacre_base::{Errno, Tag, Transno, Uuid, Xid};
use nacre_ptlrpc::{Export, Identity, Response, ServerRequest, Standing, TargetHandler};
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest, connect_flags};
use std::sync::Arc;

/// A fake server's answers to requests.
#[async_trait]
pub(super) trait Fake: Send + Sync + 'static {
    async fn answer(&self, request: Box<ServerRequest>) -> Result<Response, Errno>;
}

/// The target of a fake server.
pub(super) struct Accepting<F>(pub(super) Arc<F>);

#[async_trait]
impl<F: Fake> TargetHandler for Accepting<F> {
    fn service(&self) -> &'static str {
        "pretended"
    }

    async fn admit(&self, _: Identity, _: &ConnectRequest) -> Result<Standing, Errno> {
        Ok(Standing::Claimed)
    }

    async fn connect(&self, _: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno> {
        let data = ConnectData {
            flags: request.data.flags & connect_flags::MULTI_MODIFY_RPCS,
            max_modify_rpcs: request.data.max_modify_rpcs,
            instance: 1,
            ..ConnectData::default()
        };
        Ok(ConnectReply { data, target_uuid: Uuid::from_random(3, 3) })
    }

    async fn disconnect(&self, _: &Arc<Export>) {}

    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno> {
        self.0.answer(request).await
    }

    fn last_committed(&self, _: &Export) -> Transno {
        Transno(0)
    }

    async fn saved_reply(&self, _: &Arc<Export>, _: Xid, _: Tag) -> Option<Result<Response, Errno>> {
        None
    }
}
