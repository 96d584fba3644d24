//! OST_WRITE: data to the device, then one transaction for record, transno and saved reply, then the reply.
//!
//! All extents of one RPC are written under one range lock. A write is never forced to disk here, whether or not the
//! client keeps the data ([`nacre_wire::ost::niobuf_flags::ASYNC`]): OST_SYNC does that.

use crate::checksum::crc32c;
use crate::object::Object;
use crate::objects::Access;
use crate::ops::extents::{self, Extents};
use crate::record::Change;
use crate::service::ObjectService;
use crate::space::Reserved;
use bytes::Bytes;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Payload};
use nacre_osd::Seek;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Niobuf, Write, WriteReply, niobuf_flags};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: ServerRequest) -> Result<Response, Errno> {
    // 1. What is to be written, and whether it may be.
    let write: Write = request.decode()?;
    let extents = extents::check(&write.extents)?;
    let object = ost.objects.find(write.fid).await?;
    ost.objects.record(&object).await?.check_layout(write.layout_version)?;
    let _lock = ost.lock_ranges(&request, write.fid, write.lock, Access::Write, &extents.ranges).await?;
    let reserved = reserve(ost, &request, &write, &object, &extents).await?;

    // 2. The data, checked before anything is changed.
    let data = pull(ost, &request, &write, &extents).await?;

    // 3. Data to the device.
    let (_guard, _) = ost.objects.lock(&object, &extents.ranges, Access::Write).await?;
    let change = object.begin_change();
    ost.target.fault("ost.write.before_data").await?;
    store(ost, &object, &write.extents, data).await?;
    ost.target.fault("ost.write.after_data").await?;
    if let Some(reserved) = reserved {
        reserved.written();
    }

    // 4. The record.
    let response = record(ost, &request, &write, &object, &extents).await?;
    change.recorded();
    ost.target.stats().bytes("write_bytes", extents.bytes as u64);
    ost.target.fault("ost.write.before_reply").await?;
    Ok(response)
}

async fn record(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    object: &Object,
    extents: &Extents,
) -> Result<Response, Errno> {
    let stat = ost.stat(write.fid).await?;
    let change = Change {
        parent: Some((write.parent, write.stripe_index)),
        owner: Some((write.uid, write.gid)),
        layout_version: write.layout_version,
        now: write.now,
    };
    // A request sent again tells what was true when it was sent first.
    let grant = || {
        if request.is_resent() || request.is_replay() {
            0
        } else {
            ost.space.allocate(request.export.cookie, &write.grant)
        }
    };
    let changed = ost.objects.change(
        request,
        object,
        |record| {
            record.changed(&change)?;
            if let Some(mtime) = write.mtime.filter(|_| record.ctime == write.now) {
                record.mtime = mtime;
            }
            record.size = record.size.max(extents.end);
            Ok(())
        },
        |record| {
            Response::new(&WriteReply {
                attr: record.attr(stat),
                grant: grant(),
                contended: ost.locks.is_contended(write.fid),
            })
        },
    );
    changed.await
}

/// Takes the space. Nothing is taken for a request sent again, which was counted before; nor for one without a grant
/// where there is no unpromised space left, if it only overwrites what has its space already.
async fn reserve(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    object: &Object,
    extents: &Extents,
) -> Result<Option<Reserved>, Errno> {
    if request.is_resent() || request.is_replay() {
        return Ok(None);
    }
    let of_grant = |e: &&Niobuf| e.flags & niobuf_flags::FROM_GRANT != 0;
    let promised: u64 = write.extents.iter().filter(of_grant).map(|e| u64::from(e.len)).sum();
    match ost.space.reserve(request.export.cookie, promised, extents.bytes as u64 - promised).await {
        Ok(reserved) => Ok(Some(reserved)),
        Err(Errno::ENOSPC) if is_allocated(ost, object, &write.extents).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the extents are all within the object and have no holes.
async fn is_allocated(ost: &ObjectService, object: &Object, extents: &[Niobuf]) -> Result<bool, Errno> {
    let size = ost.objects.record(object).await?.size;
    for extent in extents {
        let end = extent.offset + u64::from(extent.len);
        let hole = ost.target.osd().seek(object.fid, extent.offset, Seek::Hole).await?;
        if end > size || hole.is_none_or(|hole| hole < end) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The data of the request, complete and undamaged: EBADMSG tells the client to send it again.
async fn pull(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    extents: &Extents,
) -> Result<Payload, Errno> {
    let mut data = request.pull().await?;
    if data.len() != extents.bytes {
        return Err(Errno::EPROTO);
    }
    if let Some(FaultAction::Corrupt) = ost.target.fault("ost.checksum").await? {
        data = with_first_bit_flipped(&data);
    }
    match write.checksum {
        Some(expected) if expected != crc32c(&data) => {
            tracing::warn!(
                target = %ost.target.name(), fid = %write.fid, client = %request.export.client_name,
                offset = extents.ranges.cover().start, bytes = extents.bytes, "data was damaged on its way: not stored"
            );
            Err(Errno::EBADMSG)
        }
        _ => Ok(data),
    }
}

/// Gives all extents to the device at once: it knows best which of them to write together.
async fn store(ost: &ObjectService, object: &Object, extents: &[Niobuf], data: Payload) -> Result<(), Errno> {
    let mut at = 0;
    let of_data = |extent: &Niobuf| {
        let piece = data.slice(at, extent.len as usize);
        at += extent.len as usize;
        (extent.offset, piece)
    };
    let extents = extents.iter().map(of_data).collect();
    Ok(ost.target.osd().write_extents(object.fid, extents).await?)
}

fn with_first_bit_flipped(data: &Payload) -> Payload {
    let mut flat = data.to_bytes().to_vec();
    if let Some(first) = flat.first_mut() {
        *first ^= 1;
    }
    Bytes::from(flat).into()
}
