//! OST_FIEMAP: the parts of an object that have space on the disk, and where. A picture of the moment: no lock is called
//! back.

use crate::object_service::ObjectService;
use nacre_base::Errno;
use nacre_osd::Placed;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{FIEMAP_MAX, Fiemap, FiemapExtent, FiemapReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let asked: Fiemap = request.decode()?;
    ost.objects.find(asked.fid).await?;
    let (extents, next) = ost.target.osd().extents(asked.fid, asked.offset, FIEMAP_MAX).await?;
    let of = |p: Placed| FiemapExtent { offset: p.offset, physical: p.physical, len: p.len, flags: p.flags };
    Ok(Response::new(&FiemapReply { extents: extents.into_iter().map(of).collect(), next }))
}
