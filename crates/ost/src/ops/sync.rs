//! OST_SYNC: earlier writes are durable when the reply comes. An object that has not changed since the last commit costs
//! nothing.

use crate::object_service::ObjectService;
use nacre_base::{Errno, Part};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::Sync;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Sync { fid } = request.decode()?;
    let is_durable = if fid.is_zero() {
        false
    } else {
        let object = ost.objects.find(fid).await?;
        // A commit makes data durable before the records that describe it.
        ost.objects.record(&object).await?.version <= ost.target.last_committed().0
    };
    if !is_durable {
        request.spend(Part::Commit, ost.target.commit()).await?;
    }
    Ok(Response::new(&()))
}
