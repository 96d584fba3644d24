//! The OST's part in a check of the file system: it reports its objects, and carries out repairs. Which object is wrong
//! is not known here, because that takes the MDT's files.
//!
//! Works on the bare device, for a stopped OST; a running OST does the same in its transactions, see
//! [`crate::ops::lfsck`].

use crate::OBJECTS;
use crate::ops::create::{find_last_id_anew, raise_last_id};
use crate::record::ObjectRecord;
use crate::sequences::Sequences;
use nacre_base::{Errno, Fid};
use nacre_osd::{Osd, Transaction};
use nacre_wire::decode;
use nacre_wire::lfsck::{LFSCK_OBJECTS_MAX, ObjectAction, ObjectFact, ObjectFacts, ObjectQuery, ObjectRepair};
use std::ops::ControlFlow;

/// Reports existing objects. Data is looked at after the records, so on a running OST it may be newer.
pub async fn query(osd: &dyn Osd, query: &ObjectQuery) -> Result<ObjectFacts, Errno> {
    let mut facts = {
        let transaction = osd.begin().await?;
        read(&*transaction, query)?
    };
    for fact in &mut facts.objects {
        fact.data_size = osd.stat(fact.fid).await?.map(|stat| stat.size);
    }
    Ok(facts)
}

fn read(transaction: &dyn Transaction, query: &ObjectQuery) -> Result<ObjectFacts, Errno> {
    let Sequences { current: seq, last_id, .. } = Sequences::load(transaction)?;
    let mut facts = ObjectFacts { seq, last_id, objects: Vec::new() };
    if !query.fids.is_empty() {
        let mut fids: Vec<Fid> = query.fids.iter().copied().take(LFSCK_OBJECTS_MAX).collect();
        fids.sort_unstable();
        fids.dedup();
        for fid in fids {
            if let Some(value) = transaction.get(OBJECTS, &fid.to_key())? {
                facts.objects.push(fact(fid, decode(&value).ok()));
            }
        }
        return Ok(facts);
    }
    let count = (query.count as usize).min(LFSCK_OBJECTS_MAX);
    let after = query.after;
    transaction.scan(OBJECTS, &after.to_key(), &mut |key, value| {
        if facts.objects.len() >= count {
            return ControlFlow::Break(());
        }
        if let Some(fid) = Fid::from_key(key).filter(|fid| *fid != after) {
            facts.objects.push(fact(fid, decode(&bytes::Bytes::copy_from_slice(value)).ok()));
        }
        ControlFlow::Continue(())
    })?;
    Ok(facts)
}

fn fact(fid: Fid, record: Option<ObjectRecord>) -> ObjectFact {
    let is_readable = record.is_some();
    let ObjectRecord { size, uid, gid, parent, stripe_index, is_precreated, .. } = record.unwrap_or_default();
    ObjectFact { fid, is_readable, size, data_size: None, uid, gid, parent, stripe_index, is_precreated }
}

/// Objects that have data and no record: leftovers of objects whose destruction a crash interrupted, or objects that lost
/// their records.
pub async fn stray_data(osd: &dyn Osd) -> Result<Vec<Fid>, Errno> {
    let mut stray = Vec::new();
    for batch in osd.list_objects().await?.chunks(LFSCK_OBJECTS_MAX) {
        let transaction = osd.begin().await?;
        for fid in batch {
            if transaction.get(OBJECTS, &fid.to_key())?.is_none() {
                stray.push(*fid);
            }
        }
    }
    Ok(stray)
}

/// Keys of table `objects` that are no object's FID.
fn unreadable_keys(transaction: &dyn Transaction) -> Result<Vec<Vec<u8>>, Errno> {
    let mut keys = Vec::new();
    transaction.scan(OBJECTS, &[], &mut |key, _| {
        keys.extend(Some(key.to_vec()).filter(|key| Fid::from_key(key).is_none()));
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

/// Repairs the OST's own state. Returns what was wrong, in words.
pub fn repair_state(transaction: &mut dyn Transaction) -> Result<Vec<String>, Errno> {
    let mut wrong = Vec::new();
    if Sequences::load(transaction).is_err() {
        // The objects show which ids are in use.
        find_last_id_anew(transaction)?;
        wrong.push("the last object id cannot be read: made anew".to_owned());
    }
    for key in unreadable_keys(transaction)? {
        transaction.delete(OBJECTS, &key)?;
        wrong.push(format!("a record of no object, {key:02x?}: removed"));
    }
    Ok(wrong)
}

/// Carries repairs out on a stopped OST.
pub async fn repair(osd: &dyn Osd, repairs: &[ObjectRepair]) -> Result<(), Errno> {
    for repair in repairs {
        let data_size = osd.stat(repair.fid).await?.map(|stat| stat.size);
        let destroyed = {
            let mut transaction = osd.begin().await?;
            let destroyed = apply(&mut *transaction, repair, data_size)?;
            transaction.finish();
            destroyed
        };
        if destroyed {
            osd.commit().await?;
            osd.remove(repair.fid).await?;
        }
    }
    Ok(osd.commit().await?)
}

/// Carries out one repair. Returns true if the object was destroyed: its data has to be removed once that is durable.
pub(crate) fn apply(
    transaction: &mut dyn Transaction,
    repair: &ObjectRepair,
    data_size: Option<u64>,
) -> Result<bool, Errno> {
    let ObjectRepair { fid, parent, stripe_index, uid, gid, .. } = *repair;
    let stored = transaction.get(OBJECTS, &fid.to_key())?;
    let record: Option<ObjectRecord> = stored.as_ref().and_then(|value| decode(value).ok());
    let new = match (repair.action, record) {
        (ObjectAction::RaiseLastId, _) => {
            raise_last_id(transaction, fid)?;
            None
        }
        (ObjectAction::DestroyEmpty, Some(record)) if record.size == 0 => {
            return Ok(transaction.delete(OBJECTS, &fid.to_key())?);
        }
        (ObjectAction::Create, None) if stored.is_none() => {
            raise_last_id(transaction, fid)?;
            Some(ObjectRecord { parent, stripe_index, uid, gid, ..ObjectRecord::default() })
        }
        (ObjectAction::SetParent, Some(old)) => {
            Some(ObjectRecord { parent, stripe_index, is_precreated: false, ..old })
        }
        (ObjectAction::SetOwner, Some(old)) => Some(ObjectRecord { uid, gid, ..old }),
        (ObjectAction::Rebuild, None) => {
            raise_last_id(transaction, fid)?;
            Some(ObjectRecord { size: data_size.unwrap_or(0), ..ObjectRecord::default() })
        }
        (ObjectAction::SetSize, Some(old)) => Some(ObjectRecord { size: data_size.unwrap_or(0), ..old }),
        // The repair was done before, or the object has changed since.
        _ => None,
    };
    if let Some(record) = new {
        record.store(transaction, fid)?;
    }
    Ok(false)
}
