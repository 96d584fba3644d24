//! OST_SEEK: where data or a hole begins. Other clients write their dirty data first; the sender has written its own.

use crate::object_service::ObjectService;
use crate::objects::Access;
use nacre_base::Errno;
use nacre_ldlm::{Extent, RangeSet};
use nacre_osd::Seek as What;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Seek, SeekReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let seek: Seek = request.decode()?;
    let object = ost.objects.find(seek.fid).await?;
    let ranges = RangeSet::single(Extent { start: seek.offset, end: u64::MAX });
    let _lock = ost.lock_ranges(&request, seek.fid, seek.lock, Access::Read, &ranges).await?;
    let (_guard, record) = ost.objects.lock(&object, &ranges, Access::Read).await?;
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
