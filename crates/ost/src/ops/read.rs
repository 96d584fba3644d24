//! OST_READ: all extents of one RPC are read under one range lock, so each write is seen whole or not at all.

use crate::checksum::crc32c;
use crate::objects::Access;
use crate::ops::extents;
use crate::record::ObjectRecord;
use crate::service::ObjectService;
use crate::settings::SyncOnLockCancel;
use nacre_base::{Errno, Payload};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::{Niobuf, Read, ReadReply};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: ServerRequest) -> Result<Response, Errno> {
    let read: Read = request.decode()?;
    let extents = extents::check(&read.extents)?;
    let object = ost.objects.find(read.fid).await?;
    let (record, lens, data) = {
        let _lock = ost.lock_ranges(&request, read.fid, read.lock, Access::Read, &extents.ranges).await?;
        let (_guard, record) = ost.objects.lock(&object, &extents.ranges, Access::Read).await?;
        if ost.settings.sync_on_lock_cancel() != SyncOnLockCancel::Never {
            ost.objects.commit_what_others_wrote(&object, &extents.ranges, &request).await?;
        }
        let (lens, data) = fetch(ost, &read, &record).await?;
        (record, lens, data)
    };
    let checksum = read.checksum.then(|| crc32c(&data));
    ost.target.stats().bytes("read_bytes", data.len() as u64);
    ost.brw_stats.count_read(&read.extents);
    let contended = ost.locks.is_contended(read.fid);
    let reply = ReadReply { attr: ost.attr(read.fid, &record).await?, lens, checksum, contended };
    if request.fits_inline(data.len()) {
        return Ok(Response::new(&reply).with_data(data));
    }
    request.push(data).await?;
    Ok(Response::new(&reply))
}

async fn fetch(ost: &ObjectService, read: &Read, record: &ObjectRecord) -> Result<(Vec<u32>, Payload), Errno> {
    let mut lens = Vec::with_capacity(read.extents.len());
    let mut data = Payload::new();
    for Niobuf { offset, len, .. } in &read.extents {
        let len = record.size.saturating_sub(*offset).min((*len).into()) as u32;
        let mut piece = match len {
            0 => Payload::new(),
            _ => ost.target.osd().read(read.fid, *offset, len as usize).await?,
        };
        // Never longer than asked for; shorter only if somebody cut the file behind our back.
        let missing = (len as usize).checked_sub(piece.len()).ok_or(Errno::EIO)?;
        piece.append(Payload::zeroes(missing));
        lens.push(len);
        data.append(piece);
    }
    Ok((lens, data))
}
