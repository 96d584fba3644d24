//! The records of the cache in its device's index.

use crate::ObjectKey;
use crate::contents::{Piece, Record};
use nacre_base::{Fid, Uuid};
use nacre_osd::{Osd, OsdError, Table, Transaction};
use std::ops::ControlFlow;

/// Objects: their storage and FID; version, file and last use.
const OBJECTS: Table = Table("pcc_objects");
/// Pieces: their file and start; length and checksum.
const PIECES: Table = Table("pcc_pieces");
/// Tables of the cache's device.
pub const TABLES: [Table; 2] = [OBJECTS, PIECES];

/// Records that one transaction deletes.
const BATCH: usize = 1024;

/// Everything that the index has.
pub(crate) struct Loaded {
    pub(crate) objects: Vec<(ObjectKey, Record)>,
    /// File and start of each piece.
    pub(crate) pieces: Vec<(u64, u64, Piece)>,
}

/// Reads all records. Those that make no sense are left out.
pub(crate) fn load(transaction: &dyn Transaction) -> Result<Loaded, OsdError> {
    let mut loaded = Loaded { objects: Vec::new(), pieces: Vec::new() };
    transaction.scan(OBJECTS, &[], &mut |key, value| {
        loaded.objects.extend(object_key(key).zip(record(value)));
        ControlFlow::Continue(())
    })?;
    transaction.scan(PIECES, &[], &mut |key, value| {
        let numbers = || Some((number(key, 0)?, number(key, 8)?, piece(value)?));
        loaded.pieces.extend(numbers());
        ControlFlow::Continue(())
    })?;
    Ok(loaded)
}

pub(crate) fn put_object(t: &mut dyn Transaction, key: &ObjectKey, record: &Record) -> Result<(), OsdError> {
    let Record { version, name, used } = record;
    let value = [version.to_be_bytes(), name.to_be_bytes(), used.to_be_bytes()].concat();
    t.put(OBJECTS, &of_object(key), &value)
}

pub(crate) fn delete_object(t: &mut dyn Transaction, key: &ObjectKey) -> Result<(), OsdError> {
    t.delete(OBJECTS, &of_object(key)).map(drop)
}

pub(crate) fn put_piece(t: &mut dyn Transaction, name: u64, start: u64, piece: Piece) -> Result<(), OsdError> {
    t.put(PIECES, &of_piece(name, start), &[piece.len.to_be_bytes(), piece.checksum.to_be_bytes()].concat())
}

/// Deletes the records of a file's pieces. They mean nothing once the object's record is gone, so they may go bit by bit.
pub(crate) async fn delete_pieces(osd: &dyn Osd, name: u64) -> Result<(), OsdError> {
    loop {
        let mut transaction = osd.begin().await?;
        let mut keys = Vec::new();
        transaction.scan(PIECES, &of_piece(name, 0), &mut |key, _| {
            let is_of_file = number(key, 0) == Some(name);
            if is_of_file && keys.len() < BATCH {
                keys.push(key.to_vec());
                return ControlFlow::Continue(());
            }
            ControlFlow::Break(())
        })?;
        transaction.use_reserve();
        for key in &keys {
            transaction.delete(PIECES, key)?;
        }
        transaction.finish();
        if keys.len() < BATCH {
            return Ok(());
        }
    }
}

fn of_object(key: &ObjectKey) -> Vec<u8> {
    [key.storage.0, key.object.to_key()].concat()
}

fn of_piece(name: u64, start: u64) -> Vec<u8> {
    [name.to_be_bytes(), start.to_be_bytes()].concat()
}

fn object_key(key: &[u8]) -> Option<ObjectKey> {
    let storage = Uuid(key.get(..16)?.try_into().ok()?);
    Some(ObjectKey { storage, object: Fid::from_key(&key[16..])? })
}

fn record(value: &[u8]) -> Option<Record> {
    let used = i64::try_from(number(value, 16)?).ok()?;
    Some(Record { version: number(value, 0)?, name: number(value, 8)?, used })
}

fn piece(value: &[u8]) -> Option<Piece> {
    let half = |at: usize| Some(u32::from_be_bytes(value.get(at..at + 4)?.try_into().ok()?));
    Some(Piece { len: half(0)?, checksum: half(4)? })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
