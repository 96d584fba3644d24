//! OST_CREATE: the MDT asks for objects ahead of their use, and after its crash has those destroyed that nobody used.
//! Durable before the reply, so that no id is handed out twice; ids never come back.

use crate::record::ObjectRecord;
use crate::service::ObjectService;
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_osd::Transaction;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_tgt::TARGET;
use nacre_wire::decode;
use nacre_wire::ost::{Create, CreateReply};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most objects made by one request; the reply says how many.
const CREATE_COUNT_MAX: u32 = 4096;
/// Where the last id ever handed out is kept.
const LAST_ID: &[u8] = b"last_id";

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: ServerRequest) -> Result<Response, Errno> {
    let create: Create = request.decode()?;
    let count = affordable(ost, &create).await?;
    let (response, orphans) = {
        let mut operation = ost.target.begin_for(&request).await?;
        let mut last_id = last_id(&*operation)?;
        let mut orphans = Vec::new();
        if let Some(used) = create.delete_orphans_after {
            orphans = remove_orphans_after(&mut *operation, ost.seq, used)?;
            ost.objects.gone(&orphans);
            ost.remover.remove_on_commit(&mut operation, orphans.clone());
            // A target restored from an old backup learns which ids are in use.
            last_id = last_id.max(used);
        }
        let first = last_id.checked_add(1).ok_or(Errno::ENOSPC)?;
        let count = count.min(u32::MAX - last_id);
        let record = ObjectRecord { is_precreated: true, version: operation.transno().0, ..ObjectRecord::default() };
        for oid in first..first + count {
            record.store(&mut *operation, Fid { seq: ost.seq, oid, ver: 0 })?;
        }
        operation.put(TARGET, LAST_ID, &(last_id + count).to_be_bytes())?;
        (operation.finish(&request, Response::new(&CreateReply { seq: ost.seq, first, count }))?, orphans)
    };
    orphans.into_iter().for_each(|fid| ost.locks.revoke(fid));
    ost.target.fault("ost.create").await?;
    ost.target.commit().await?;
    Ok(response)
}

/// How many objects may be made; ENOSPC if some are wanted and none may.
async fn affordable(ost: &ObjectService, create: &Create) -> Result<u32, Errno> {
    if create.count == 0 {
        return Ok(0);
    }
    let files_free = ost.space.statfs().await?.files_free;
    let most = if ost.settings.creates_no_objects() { 0 } else { files_free.min(CREATE_COUNT_MAX.into()) as u32 };
    match create.count.min(most) {
        0 => Err(Errno::ENOSPC),
        count => Ok(count),
    }
}

/// The last id that was handed out.
pub(crate) fn last_id(transaction: &dyn Transaction) -> Result<u32, Errno> {
    match transaction.get(TARGET, LAST_ID)? {
        Some(v) => v[..].try_into().map(u32::from_be_bytes).map_err(|_| Errno::EIO),
        None => Ok(0),
    }
}

/// No id up to `oid` is handed out again.
pub(crate) fn raise_last_id(transaction: &mut dyn Transaction, oid: u32) -> Result<(), Errno> {
    let last_id = last_id(transaction)?.max(oid);
    Ok(transaction.put(TARGET, LAST_ID, &last_id.to_be_bytes())?)
}

/// Forgets the last id that was handed out, and raises it to the highest that there is.
pub(crate) fn raise_last_id_anew(transaction: &mut dyn Transaction) -> Result<(), Errno> {
    let mut highest = 0;
    transaction.scan(crate::OBJECTS, &[], &mut |key, _| {
        highest = Fid::from_key(key).map_or(highest, |fid| highest.max(fid.oid));
        ControlFlow::Continue(())
    })?;
    Ok(transaction.put(TARGET, LAST_ID, &highest.to_be_bytes())?)
}

/// Removes the records of all objects of `seq` above `used`, the last one of a file; which they were. If there is none, an
/// MDT that was made anew would otherwise take an old one's data along: what was written to stays, for lfsck to find.
fn remove_orphans_after(transaction: &mut dyn Transaction, seq: u64, used: u32) -> Result<Vec<Fid>, Errno> {
    let Some(oid) = used.checked_add(1) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    transaction.scan(
        crate::OBJECTS,
        &Fid { seq, oid, ver: 0 }.to_key(),
        &mut |key, value| match Fid::from_key(key) {
            Some(fid) if fid.seq == seq => {
                let untouched =
                    || decode::<ObjectRecord>(&Bytes::copy_from_slice(value)).is_ok_and(|r| r.is_precreated);
                if used != 0 || untouched() {
                    found.push(fid);
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        },
    )?;
    for fid in &found {
        transaction.delete(crate::OBJECTS, &fid.to_key())?;
    }
    Ok(found)
}
