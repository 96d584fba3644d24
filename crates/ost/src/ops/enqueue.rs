//! LDLM_ENQUEUE of an extent lock. The reply has the object's attributes, including unwritten changes of other clients if
//! they had to be asked (a glimpse).

use crate::object_service::ObjectService;
use crate::ops::cancel;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_tgt::Enqueued;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{Enqueue, LockKind, enqueue_flags};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let enqueue: Enqueue = request.decode()?;
    if enqueue.kind != LockKind::Extent {
        return Err(Errno::EOPNOTSUPP);
    }
    let (fid, is_withdrawal) = (enqueue.resource, enqueue.flags & enqueue_flags::WITHDRAW != 0);
    if !is_withdrawal {
        ost.objects.find(fid).await?;
    }
    cancel::before_cancel(ost, &request.export, &enqueue.cancels).await;
    let Enqueued { mut reply, glimpsed } = ost.locks.enqueue_decoded(&request, enqueue).await?;
    if is_withdrawal {
        return Ok(Response::new(&reply));
    }
    // Only now, because the disk has what the glimpsed clients wrote meanwhile.
    match attr(ost, fid).await {
        Ok(attr) => reply.attr = Some(merge(attr, &glimpsed)),
        Err(error) => {
            // The object was destroyed while the request waited.
            ost.locks.give_back(&request.export, reply.handle);
            return Err(error);
        }
    }
    Ok(Response::new(&reply))
}

pub(super) async fn attr(ost: &ObjectService, fid: Fid) -> Result<ObjectAttr, Errno> {
    let object = ost.objects.find(fid).await?;
    let record = ost.objects.record(&object).await?;
    ost.attr(fid, &record).await
}

/// Unwritten data only adds to size and blocks; the later ctime decides on the times.
fn merge(mut attr: ObjectAttr, glimpsed: &[ObjectAttr]) -> ObjectAttr {
    for known in glimpsed {
        attr.add_unwritten(known);
        attr.atime = attr.atime.max(known.atime);
        if (known.ctime, known.mtime) > (attr.ctime, attr.mtime) {
            (attr.ctime, attr.mtime) = (known.ctime, known.mtime);
        }
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Timestamp;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn the_largest_size_and_the_latest_times_count() {
        let attr = |size, mtime, ctime| ObjectAttr {
            size,
            mtime: at(mtime),
            ctime: at(ctime),
            version: 1,
            ..ObjectAttr::default()
        };
        // The mtime was set back at 60, after the first holder's writes and before the second one's.
        let merged = merge(attr(100, 5, 60), &[attr(4096, 50, 50), attr(10, 70, 70)]);
        assert_eq!(merged, attr(4096, 70, 70));
        assert_eq!(merge(attr(100, 5, 60), &[attr(4096, 50, 50)]), attr(4096, 5, 60));
    }
}
