//! OST_GLIMPSE: sizes and times of several objects, with locks that keep them true, for a client that will probably want
//! them. Objects on which others have write locks are left out: asking the writers would cost them something, and the
//! sender may never use the answer.

use super::enqueue::attr;
use crate::object_service::ObjectService;
use futures_util::future::join_all;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ldlm::EnqueueReply;
use nacre_wire::ost::{GLIMPSES_MAX, Glimpse, GlimpseReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Glimpse { fids } = request.decode()?;
    if fids.len() > GLIMPSES_MAX {
        return Err(Errno::EINVAL);
    }
    let objects = (0..).zip(fids).map(|(part, fid)| glimpse(ost, &request, part, fid));
    let objects = join_all(objects.collect::<Vec<_>>()).await;
    Ok(Response::new(&GlimpseReply { objects }))
}

async fn glimpse(ost: &ObjectService, request: &ServerRequest, part: u32, fid: Fid) -> Option<EnqueueReply> {
    // There is no lock on a missing object.
    ost.objects.find(fid).await.ok()?;
    let mut reply = ost.locks.try_lock_object(request, part, fid)?;
    match attr(ost, fid).await {
        Ok(attr) => reply.attr = Some(attr),
        Err(_) => {
            ost.locks.give_back(&request.export, reply.handle);
            return None;
        }
    }
    Some(reply)
}
