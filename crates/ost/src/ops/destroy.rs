//! OST_DESTROY: the records are removed in the transaction, the data when that is durable. Clients that hold locks on the
//! objects are called back afterwards, without waiting for them: their unwritten data has nowhere to go.

use crate::OBJECTS;
use crate::object_service::ObjectService;
use crate::remover::DESTROY_COUNT_MAX;
use nacre_base::{Errno, Fid};
use nacre_ldlm::RangeSet;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ost::Destroy;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Destroy { mut fids } = request.decode()?;
    if fids.len() > DESTROY_COUNT_MAX {
        return Err(Errno::E2BIG);
    }
    fids.sort_unstable();
    fids.dedup();
    let room = ost.remover.room(&request, fids.len()).await?;
    // Requests that use the data of one of them finish first. In ascending order, so that two destroys cannot deadlock.
    let mut objects = Vec::with_capacity(fids.len());
    for fid in &fids {
        match ost.objects.find(*fid).await {
            Ok(object) => objects.push(object),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    let mut alone = Vec::with_capacity(objects.len());
    for object in &objects {
        alone.push(object.range.write(RangeSet::ALL).await);
    }
    alone.iter().for_each(|guard| guard.assert_writes(&RangeSet::ALL));
    let (response, destroyed) = {
        let mut operation = ost.target.begin_for(&request).await?;
        operation.use_reserve();
        let mut destroyed: Vec<Fid> = Vec::with_capacity(fids.len());
        for fid in fids {
            if operation.delete(OBJECTS, &fid.to_key())? {
                destroyed.push(fid);
            }
        }
        ost.objects.gone(&destroyed);
        ost.remover.remove_on_commit(&mut operation, destroyed.clone(), Some(room));
        (operation.finish(&request, Response::new(&()))?, destroyed)
    };
    destroyed.into_iter().for_each(|fid| ost.locks.revoke(fid));
    ost.space.hurry().await?;
    Ok(response)
}
