//! LFSCK_QUERY and LFSCK_NOTIFY: the MDT checks the file system while clients work.

use crate::check;
use crate::object_service::{NO_LOCK, ObjectService};
use crate::objects::Access;
use nacre_base::Errno;
use nacre_ldlm::RangeSet;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::lfsck::{LFSCK_OBJECTS_MAX, ObjectAction, ObjectQuery, ObjectRepair, ObjectRepairs};
use std::sync::Arc;

/// Reports objects, as the query asks.
pub(crate) async fn handle_query(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let query: ObjectQuery = request.decode()?;
    let facts = check::query(&**ost.target.osd(), &query).await?;
    ost.lfsck.handle_query(&query, facts.objects.len(), ost.target.rt().wall());
    Ok(Response::new(&facts))
}

/// Carries out repairs.
pub(crate) async fn handle_notify(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let ObjectRepairs { repairs } = request.decode()?;
    if repairs.len() > LFSCK_OBJECTS_MAX {
        return Err(Errno::E2BIG);
    }
    for repair in &repairs {
        repair_one(ost, &request, repair).await?;
        ost.lfsck.handle_repair(repair.action);
    }
    ost.target.commit().await?;
    Ok(Response::new(&()))
}

/// Repairs an object as a client would change it: no request reads or writes it meanwhile, and locks of other clients are
/// called back.
async fn repair_one(ost: &Arc<ObjectService>, request: &ServerRequest, repair: &ObjectRepair) -> Result<(), Errno> {
    let fid = repair.fid;
    let changes_data = matches!(repair.action, ObjectAction::DestroyEmpty | ObjectAction::SetSize);
    let object = match ost.objects.find(fid).await {
        Ok(object) => Some(object),
        // The object is missing or unreadable, so no other request uses it.
        Err(Errno::ENOENT | Errno::EIO) => None,
        Err(error) => return Err(error),
    };
    let _lock = match &object {
        Some(_) if changes_data => ost.lock_ranges(request, fid, NO_LOCK, Access::Write, &RangeSet::ALL).await?,
        _ => None,
    };
    let _alone = match &object {
        Some(object) => Some(object.range.write(RangeSet::ALL).await),
        None => None,
    };
    let data_size = ost.target.osd().stat(fid).await?.map(|stat| stat.size);
    let mut operation = ost.target.begin().await?;
    let destroyed = check::apply(&mut *operation, repair, data_size)?;
    // The record in memory has to be read again.
    ost.objects.forget(fid);
    if destroyed {
        ost.objects.gone(&[fid]);
        ost.remover.remove_on_commit(&mut operation, vec![fid], None);
    }
    operation.finish_local();
    Ok(())
}
