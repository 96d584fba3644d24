//! OST_SEEK: where data or a hole begins.

use crate::objects::Access;
use crate::service::ObjectService;
use nacre_base::Errno;
use nacre_ldlm::Extent;
use nacre_osd::Seek as What;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Seek, SeekReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: ServerRequest) -> Result<Response, Errno> {
    let seek: Seek = request.decode()?;
    let object = ost.objects.find(seek.fid).await?;
    let extent = Extent { start: seek.offset, end: u64::MAX };
    let (_guard, record) = ost.objects.lock(&object, extent, Access::Read).await?;
    let size = record.size;
    if seek.offset >= size {
        return Ok(Response::new(&SeekReply { offset: None }));
    }
    let what = if seek.hole { What::Hole } else { What::Data };
    let found = ost.target.osd().seek(seek.fid, seek.offset, what).await?.filter(|at| *at < size);
    // The end of the object counts as a hole.
    let offset = if seek.hole { Some(found.unwrap_or(size)) } else { found };
    Ok(Response::new(&SeekReply { offset }))
}
