//! OST_PUNCH: sets the size, or punches a hole.

use crate::object_service::ObjectService;
use crate::objects::Access;
use crate::ops::extents;
use crate::record::Change;
use nacre_base::{Errno, Part};
use nacre_ldlm::{Extent, RangeSet};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::Punch;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let punch: Punch = request.decode()?;
    let truncates = punch.end == u64::MAX;
    // No request may see a half-changed size, so a truncation runs alone, even if it makes the object longer.
    let (ranges, locked) = if truncates {
        (RangeSet::ALL, RangeSet::single(Extent { start: punch.start, end: u64::MAX }))
    } else {
        let ranges = extents::range(punch.start, punch.end)?;
        (ranges.clone(), ranges)
    };
    if punch.start > ost.target.osd().object_bytes_max() {
        return Err(Errno::EFBIG);
    }
    let object = ost.objects.find(punch.fid).await?;
    let _lock = ost.lock_ranges(&request, punch.fid, punch.lock, Access::Write, &locked).await?;
    let (guard, record) = ost.objects.lock(&object, &ranges, Access::Write).await?;
    record.check_layout(punch.layout_version)?;
    request.check_pre_versions(&record.pre_versions())?;

    guard.assert_writes(&ranges);
    let data_change = object.begin_change();
    if truncates {
        request.spend(Part::Device, ost.target.osd().truncate(punch.fid, punch.start)).await?;
    } else {
        request.spend(Part::Device, ost.target.osd().punch(punch.fid, punch.start..punch.end)).await?;
    }
    let stat = ost.stat(punch.fid).await?;
    let change = Change {
        parent: Some((punch.parent, punch.stripe_index)),
        owner: None,
        layout_version: punch.layout_version,
        now: punch.now,
    };
    let changed = ost.objects.change(
        &request,
        &object,
        |record| {
            record.changed(&change)?;
            if truncates {
                record.size = punch.start;
                record.vbr_version = record.version;
            }
            Ok(())
        },
        |record| ost.change_reply(punch.fid, record, stat),
    );
    let response = changed.await?;
    ost.objects.note_change(&object, &locked, &request, &response);
    data_change.recorded();
    Ok(response)
}
