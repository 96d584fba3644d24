//! OST_READ: all extents of one RPC are read under one range lock, so each write is seen whole or not at all.

use crate::object_service::ObjectService;
use crate::objects::Access;
use crate::ops::extents;
use crate::record::ObjectRecord;
use crate::settings::SyncOnLockCancel;
use futures_util::{StreamExt, TryStreamExt, stream};
use nacre_base::{Errno, Part, Payload};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Niobuf, Read, ReadReply};
use std::sync::Arc;

/// Number of extents of one request that are read at a time.
const EXTENTS_AT_ONCE: usize = 16;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let read: Read = request.decode()?;
    let extents = extents::check(&read.extents)?;
    let object = ost.objects.find(read.fid).await?;
    let (record, lens, data) = {
        let _lock = ost.lock_ranges(&request, read.fid, read.lock, Access::Read, &extents.ranges).await?;
        let lock_object = ost.objects.lock(&object, &extents.ranges, Access::Read);
        let (guard, record) = request.spend(Part::Locks, lock_object).await?;
        if ost.settings.sync_on_lock_cancel() != SyncOnLockCancel::Never {
            let committed = ost.objects.commit_what_others_wrote(&object, &extents.ranges, &request);
            request.spend(Part::Commit, committed).await?;
        }
        guard.assert_reads(&extents.ranges);
        let (lens, data) = request.spend(Part::Device, fetch(ost, &read, &record)).await?;
        (record, lens, data)
    };
    let checksum = read.checksum.then(|| data.crc32c());
    ost.brw_stats.count_read(&read.extents, data.len());
    let contended = ost.locks.is_contended(read.fid);
    let reply = ReadReply { attr: ost.attr(read.fid, &record).await?, lens, checksum, contended };
    if request.fits_inline(data.len()) {
        return Ok(Response::new(&reply).with_data(data));
    }
    request.push(data).await?;
    Ok(Response::new(&reply))
}

async fn fetch(ost: &ObjectService, read: &Read, record: &ObjectRecord) -> Result<(Vec<u32>, Payload), Errno> {
    let fetch_one = |Niobuf { offset, len, .. }: &Niobuf| {
        let (offset, len) = (*offset, record.size.saturating_sub(*offset).min((*len).into()) as usize);
        async move {
            let mut piece = match len {
                0 => Payload::new(),
                _ => ost.target.osd().read(read.fid, offset, len).await?,
            };
            // Never longer than the extent; shorter only if another program truncated the file on the device.
            let missing = len.checked_sub(piece.len()).ok_or(Errno::EIO)?;
            piece.append(Payload::zeroes(missing));
            Ok::<_, Errno>(piece)
        }
    };
    // In order, but several at a time, because a request may name hundreds of small extents.
    let mut pieces = stream::iter(read.extents.iter().map(fetch_one)).buffered(EXTENTS_AT_ONCE);
    let (mut lens, mut data) = (Vec::with_capacity(read.extents.len()), Payload::new());
    while let Some(piece) = pieces.try_next().await? {
        lens.push(piece.len() as u32);
        data.append(piece);
    }
    assert_eq!(lens.len(), read.extents.len(), "extents that were read, and extents that were asked for");
    let told: usize = lens.iter().map(|len| *len as usize).sum();
    assert_eq!(told, data.len(), "bytes that the client is told of, and bytes that it gets");
    Ok((lens, data))
}
