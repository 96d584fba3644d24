//! OST_CREATE: the MDT has objects created ahead of their use, and after its crash has unused ones destroyed. The change
//! is durable before the reply, so that no id is handed out twice; ids are never reused.

use crate::object_service::ObjectService;
use crate::record::ObjectRecord;
use crate::sequences::{OID_MAX, Sequences, current, put_last_id};
use bytes::Bytes;
use nacre_base::{Errno, Fid, Part};
use nacre_osd::{Full, Transaction};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::decode;
use nacre_wire::ost::{Create, CreateReply};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most orphans destroyed by one operation, because a transaction on a full target has little room.
const ORPHANS_MAX: usize = 128;
/// Most objects created by one request; the reply says how many were.
const CREATE_COUNT_MAX: u32 = 4096;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let create: Create = request.decode()?;
    let count = affordable(ost, &create).await?;
    let mut successor = None;
    let (response, orphans) = loop {
        match attempt(ost, &request, &create, count, successor).await? {
            Attempt::Done(response, orphans) => break (response, orphans),
            Attempt::UsedUp(seq) => {
                let next = ost.successors.successor(seq).await?;
                if next <= seq {
                    return Err(Errno::EPROTO);
                }
                successor = Some((seq, next));
            }
            Attempt::MoreOrphans(fids) => fids.into_iter().for_each(|fid| ost.locks.revoke(fid)),
        }
    };
    orphans.into_iter().for_each(|fid| ost.locks.revoke(fid));
    ost.target.fault("ost.create").await?;
    request.spend(Part::Commit, ost.target.commit()).await?;
    Ok(response)
}

enum Attempt {
    /// The reply, and the orphans that were destroyed.
    Done(Response, Vec<Fid>),
    /// Nothing was done, because all ids of this sequence are used up and its successor is not known.
    UsedUp(u64),
    /// These orphans were destroyed; there are more.
    MoreOrphans(Vec<Fid>),
}

/// One attempt, in one turn at the running transaction. `successor`: a sequence, and the one that follows it.
async fn attempt(
    ost: &Arc<ObjectService>,
    request: &ServerRequest,
    create: &Create,
    count: u32,
    successor: Option<(u64, u64)>,
) -> Result<Attempt, Errno> {
    let mut operation = ost.target.begin_for(request).await?;
    let mut sequences = Sequences::load(&*operation)?;
    let mut orphans = Vec::new();
    if let Some(used) = create.delete_orphans_after {
        if count == 0 {
            operation.use_reserve();
        }
        orphans = remove_orphans_after(&mut *operation, &sequences, used)?;
        let keeps = orphans.first().is_none_or(|first| *first > used || !sequences.owns(used.seq));
        assert!(keeps && orphans.len() <= ORPHANS_MAX, "{orphans:?} are destroyed, and files have all up to {used}");
        if orphans.len() == ORPHANS_MAX {
            ost.objects.gone(&orphans);
            ost.remover.remove_on_commit(&mut operation, orphans.clone(), None);
            operation.finish_local();
            return Ok(Attempt::MoreOrphans(orphans));
        }
        // A target restored from an old backup learns here which ids are in use.
        sequences.handle_used(used);
    }
    if sequences.last_id >= OID_MAX && count > 0 {
        match successor {
            Some((former, next)) if former == sequences.current => sequences.succeed(next),
            _ => return Ok(Attempt::UsedUp(sequences.current)),
        }
    }
    let first = sequences.last_id.saturating_add(1);
    let count = count.min(OID_MAX - sequences.last_id.min(OID_MAX));
    let record = ObjectRecord { is_precreated: true, version: operation.transno().0, ..ObjectRecord::default() };
    for oid in first..first + count {
        record.store(&mut *operation, Fid { seq: sequences.current, oid, ver: 0 })?;
    }
    sequences.last_id += count;
    assert!(count == 0 || sequences.last_id <= OID_MAX, "{count} objects up to id {:#x}", sequences.last_id);
    sequences.store(&mut *operation)?;
    ost.objects.gone(&orphans);
    ost.remover.remove_on_commit(&mut operation, orphans.clone(), None);
    let former_seq = sequences.former.last().copied().unwrap_or(0);
    let reply = CreateReply { seq: sequences.current, first, count, former_seq };
    Ok(Attempt::Done(operation.finish(request, Response::new(&reply))?, orphans))
}

/// Part of the space left for records that an operation may take for each of its objects: with copies of pages, and with
/// what undoing it would take.
const RECORD_SHARE_BYTES: u64 = 16 << 10;

/// How many objects may be created; ENOSPC if some are wanted and none may be.
async fn affordable(ost: &ObjectService, create: &Create) -> Result<u32, Errno> {
    if create.count == 0 {
        return Ok(0);
    }
    let space = ost.space.statfs().await?;
    let records = space.records_available_bytes / RECORD_SHARE_BYTES;
    let is_refused = ost.settings.creates_no_objects() || ost.target.osd().full() == Some(Full::Records);
    let most = if is_refused { 0 } else { space.files_free.min(records).min(CREATE_COUNT_MAX.into()) as u32 };
    match create.count.min(most) {
        // No new objects; but the orphans are removed all the same.
        0 if create.delete_orphans_after.is_some() => Ok(0),
        0 => Err(Errno::ENOSPC),
        count => Ok(count),
    }
}

/// A check found or created an object: no id up to its own is handed out again.
pub(crate) fn raise_last_id(transaction: &mut dyn Transaction, fid: Fid) -> Result<(), Errno> {
    let mut sequences = Sequences::load(transaction)?;
    // A sequence that is used up hands out no ids anyway.
    if fid.seq == sequences.current && fid.oid > sequences.last_id {
        sequences.last_id = fid.oid;
        put_last_id(transaction, fid.oid)?;
    }
    Ok(())
}

/// Finds out from the existing objects which sequences there were, and which id was handed out last.
pub(crate) fn find_last_id_anew(transaction: &mut dyn Transaction) -> Result<(), Errno> {
    let mut sequences = Sequences { former: Vec::new(), current: current(transaction)?, last_id: 0 };
    transaction.scan(crate::OBJECTS, &[], &mut |key, _| {
        match Fid::from_key(key) {
            Some(fid) if fid.seq == sequences.current => sequences.last_id = sequences.last_id.max(fid.oid),
            Some(fid) if fid.seq < sequences.current && sequences.former.last() != Some(&fid.seq) => {
                sequences.former.push(fid.seq);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    sequences.store(transaction)
}

/// Removes the records of at most [`ORPHANS_MAX`] objects that no file has, and returns their FIDs. `used` is the last
/// object that a file has: objects above it, in its sequence and in later ones of the OST, are orphans. If the MDT has no
/// file with an object here, or only one with an object of other storage that had the OST's name, objects that were
/// written to stay for lfsck to find: otherwise a newly formatted MDT would destroy the data of the former one.
fn remove_orphans_after(
    transaction: &mut dyn Transaction,
    sequences: &Sequences,
    used: Fid,
) -> Result<Vec<Fid>, Errno> {
    let is_known = sequences.owns(used.seq);
    let after = if is_known { used } else { Fid::ZERO };
    let mut found = Vec::new();
    transaction.scan(crate::OBJECTS, &after.to_key(), &mut |key, value| {
        let Some(fid) = Fid::from_key(key).filter(|fid| *fid > after && sequences.owns(fid.seq)) else {
            return ControlFlow::Continue(());
        };
        let untouched = || decode::<ObjectRecord>(&Bytes::copy_from_slice(value)).is_ok_and(|r| r.is_precreated);
        if is_known || untouched() {
            found.push(fid);
        }
        if found.len() < ORPHANS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    for fid in &found {
        transaction.delete(crate::OBJECTS, &fid.to_key())?;
    }
    Ok(found)
}
