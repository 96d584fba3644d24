//! OST_GETATTR: the glimpse of an object's size and times. Does not wait for writes in progress.

use crate::object_service::ObjectService;
use nacre_base::Errno;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::Getattr;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Getattr { fid } = request.decode()?;
    let object = ost.objects.find(fid).await?;
    let record = ost.objects.record(&object).await?;
    Ok(Response::new(&ost.attr(fid, &record).await?))
}
