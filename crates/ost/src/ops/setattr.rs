//! OST_SETATTR: owner and times. A request that a later change has overtaken (by its ctime) leaves the times alone.
//!
//! A client that holds a lock up to the end of file answers `stat` from its cache, so it has to give the lock up.

use crate::object_service::{NO_LOCK, ObjectService};
use crate::objects::Access;
use nacre_base::Errno;
use nacre_ldlm::{Extent, RangeSet};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Setattr, WriteReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let set: Setattr = request.decode()?;
    let object = ost.objects.find(set.fid).await?;
    let end = RangeSet::single(Extent { start: u64::MAX, end: u64::MAX });
    let _lock = ost.lock_ranges(&request, set.fid, NO_LOCK, Access::Write, &end).await?;
    let stat = ost.stat(set.fid).await?;
    let changed = ost.objects.change(
        &request,
        &object,
        |record| {
            record.uid = set.uid.unwrap_or(record.uid);
            record.gid = set.gid.unwrap_or(record.gid);
            if set.now >= record.ctime {
                record.atime = set.atime.unwrap_or(record.atime);
                record.mtime = set.mtime.unwrap_or(record.mtime);
                record.ctime = set.now;
            }
            record.is_precreated = false;
            Ok(())
        },
        |record| {
            Response::new(&WriteReply { attr: record.attr(stat), grant: 0, contended: ost.locks.is_contended(set.fid) })
        },
    );
    changed.await
}
