//! The records of clients and their saved replies. Every change saves exactly one reply, in its own transaction: in the
//! slot of its tag, or in slot 0 for a request without a tag. So each client's last transno on disk is in its slots.

use crate::{LAST_RCVD, REPLY_SLOTS, TargetError};
use bytes::Bytes;
use nacre_base::{Errno, Transno, Uuid};
use nacre_osd::{OsdError, Table, Transaction};
use nacre_ptlrpc::Response;
use nacre_wire::{decode, encode};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A saved reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplySlot {
    pub(crate) xid: u64,
    pub(crate) transno: Transno,
    pub(crate) body: Bytes,
}

type Encoded = (u64, (Transno, Bytes));

fn slot_key(client: Uuid, tag: u16) -> [u8; 18] {
    let mut key = [0; 18];
    key[..16].copy_from_slice(&client.0);
    key[16..].copy_from_slice(&tag.to_be_bytes());
    key
}

fn decode_slot(value: &[u8]) -> Option<ReplySlot> {
    let (xid, (transno, body)) = decode::<Encoded>(&Bytes::copy_from_slice(value)).ok()?;
    Some(ReplySlot { xid, transno, body })
}

/// Returns whether `value` is a saved reply.
pub(crate) fn is_readable(value: &[u8]) -> bool {
    decode_slot(value).is_some()
}

/// Saves `response` as the answer to the client's request `xid` in slot `tag`.
pub(crate) fn put(
    transaction: &mut dyn Transaction,
    client: Uuid,
    tag: u16,
    xid: u64,
    response: &Response,
) -> Result<(), OsdError> {
    assert_ne!(response.transno, Transno(0), "a change without a number is not found again after a crash");
    let value: Encoded = (xid, (response.transno, response.body.clone()));
    transaction.put(REPLY_SLOTS, &slot_key(client, tag), &encode(&value))
}

/// Contents of the client's slot `tag`.
pub(crate) fn get(transaction: &dyn Transaction, client: Uuid, tag: u16) -> Result<Option<ReplySlot>, Errno> {
    match transaction.get(REPLY_SLOTS, &slot_key(client, tag))? {
        Some(value) => decode_slot(&value).map(Some).ok_or(Errno::EIO),
        None => Ok(None),
    }
}

/// The highest transno in any slot: the last change that a crash left.
pub(crate) fn last_transno(transaction: &dyn Transaction) -> Result<Transno, TargetError> {
    let (mut last, mut damaged) = (Transno(0), false);
    transaction.scan(REPLY_SLOTS, &[], &mut |_, value| {
        match decode_slot(value) {
            Some(slot) => last = last.max(slot.transno),
            None => damaged = true,
        }
        ControlFlow::Continue(())
    })?;
    if damaged { Err(TargetError::Corrupt(REPLY_SLOTS.0)) } else { Ok(last) }
}

/// Remembers that the client is connected.
pub(crate) fn remember_client(transaction: &mut dyn Transaction, client: Uuid, name: &str) -> Result<(), OsdError> {
    transaction.put(LAST_RCVD, &client.0, name.as_bytes())
}

/// The clients that were connected when the target was last up, and their names.
pub(crate) fn known_clients(transaction: &dyn Transaction) -> Result<BTreeMap<Uuid, String>, TargetError> {
    let (mut known, mut damaged) = (BTreeMap::new(), false);
    transaction.scan(LAST_RCVD, &[], &mut |key, name| {
        match key.try_into() {
            Ok(uuid) => drop(known.insert(Uuid(uuid), String::from_utf8_lossy(name).into_owned())),
            Err(_) => damaged = true,
        }
        ControlFlow::Continue(())
    })?;
    if damaged { Err(TargetError::Corrupt(LAST_RCVD.0)) } else { Ok(known) }
}

/// Returns whether the client is remembered.
pub(crate) fn knows_client(transaction: &dyn Transaction, client: Uuid) -> Result<bool, OsdError> {
    Ok(transaction.get(LAST_RCVD, &client.0)?.is_some())
}

/// Removes all records of the client.
pub(crate) fn forget_client(transaction: &mut dyn Transaction, client: Uuid) -> Result<(), OsdError> {
    transaction.delete(LAST_RCVD, &client.0)?;
    for key in keys_with_prefix(transaction, REPLY_SLOTS, &client.0)? {
        transaction.delete(REPLY_SLOTS, &key)?;
    }
    Ok(())
}

fn keys_with_prefix(transaction: &dyn Transaction, table: Table, prefix: &[u8]) -> Result<Vec<Vec<u8>>, OsdError> {
    let mut keys = Vec::new();
    transaction.scan(table, prefix, &mut |key, _| {
        if !key.starts_with(prefix) {
            return ControlFlow::Break(());
        }
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}
