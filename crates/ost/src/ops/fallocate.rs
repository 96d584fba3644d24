//! OST_FALLOCATE: reserves space, or zeroes a range. Holes are punched by OST_PUNCH.

use crate::object_service::ObjectService;
use crate::objects::Access;
use crate::ops::extents;
use crate::record::Change;
use nacre_base::{Errno, Part};
use nacre_osd::AllocateMode;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::Fallocate;
use nacre_wire::ost::fallocate_mode::{KEEP_SIZE, ZERO_RANGE};
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let fallocate: Fallocate = request.decode()?;
    let (mode, grows) = match fallocate.mode {
        0 => (AllocateMode::Extend, true),
        KEEP_SIZE => (AllocateMode::KeepSize, false),
        ZERO_RANGE => (AllocateMode::ZeroRange, true),
        m if m == KEEP_SIZE | ZERO_RANGE => (AllocateMode::ZeroRangeKeepSize, false),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let ranges = extents::range(fallocate.start, fallocate.end)?;
    let object = ost.objects.find(fallocate.fid).await?;
    ost.objects.record(&object).await?.check_layout(fallocate.layout_version)?;
    let _lock = ost.lock_ranges(&request, fallocate.fid, fallocate.lock, Access::Write, &ranges).await?;
    let len = fallocate.end - fallocate.start;
    let reserved = ost.space.reserve(request.export.cookie, 0, len).await?;
    let (guard, record) = ost.objects.lock(&object, &ranges, Access::Write).await?;
    request.check_pre_versions(&record.pre_versions())?;

    guard.assert_writes(&ranges);
    let data_change = object.begin_change();
    let allocated = ost.target.osd().allocate(fallocate.fid, fallocate.start..fallocate.end, mode);
    request.spend(Part::Device, allocated).await?;
    let stat = ost.stat(fallocate.fid).await?;
    let change = Change { parent: None, owner: None, layout_version: fallocate.layout_version, now: fallocate.now };
    let changed = ost.objects.change(
        &request,
        &object,
        |record| {
            record.changed(&change)?;
            if grows {
                record.size = record.size.max(fallocate.end);
            }
            Ok(())
        },
        |record| ost.change_reply(fallocate.fid, record, stat),
    );
    let response = changed.await?;
    ost.objects.note_change(&object, &ranges, &request, &response);
    data_change.recorded();
    reserved.written();
    Ok(response)
}
