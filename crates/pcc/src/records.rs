//! The records of the cache in its device's index.

use crate::ObjectKey;
use crate::contents::{PIECE_BYTES, Piece, Record};
use nacre_base::{Fid, Uuid};
use nacre_osd::{OBJECT_SIZE_MAX, Osd, OsdError, Table, Transaction};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Objects: their storage and FID; version, file and last use.
const OBJECTS: Table = Table("pcc_objects");
/// Pieces: their file and start; length and checksum.
const PIECES: Table = Table("pcc_pieces");
/// Tables of the cache's device.
pub const TABLES: [Table; 2] = [OBJECTS, PIECES];

/// Files have names below this.
pub(crate) const NAMES: u64 = 1 << 62;
/// Records that one transaction deletes.
const BATCH: usize = 1024;

/// Everything that the index has.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Each in a file of its own.
    pub(crate) objects: Vec<(ObjectKey, Record)>,
    /// File and start of each piece. A piece is of an object's file, and crosses no multiple of [`PIECE_BYTES`].
    pub(crate) pieces: Vec<(u64, u64, Piece)>,
    /// Records that make no sense, or are of files without an object.
    pub(crate) wrong: Vec<(Table, Vec<u8>)>,
}

/// Reads all records.
pub(crate) fn load(transaction: &dyn Transaction) -> Result<Loaded, OsdError> {
    let (mut loaded, mut names) = (Loaded::default(), BTreeSet::new());
    transaction.scan(OBJECTS, &[], &mut |key, value| {
        match object_key(key).zip(record(value)).filter(|(_, record)| names.insert(record.name)) {
            Some(object) => loaded.objects.push(object),
            None => loaded.wrong.push((OBJECTS, key.to_vec())),
        }
        ControlFlow::Continue(())
    })?;
    transaction.scan(PIECES, &[], &mut |key, value| {
        let place = || Some((number(key, 0).filter(|name| names.contains(name))?, number(key, 8)?));
        match place().and_then(|(name, start)| Some((name, start, piece(start, value)?))) {
            Some(piece) => loaded.pieces.push(piece),
            None => loaded.wrong.push((PIECES, key.to_vec())),
        }
        ControlFlow::Continue(())
    })?;
    Ok(loaded)
}

/// Deletes records that were found to be wrong.
pub(crate) async fn delete_wrong(osd: &dyn Osd, wrong: &[(Table, Vec<u8>)]) -> Result<(), OsdError> {
    for some in wrong.chunks(BATCH) {
        let mut transaction = osd.begin().await?;
        transaction.use_reserve();
        for (table, key) in some {
            transaction.delete(*table, key)?;
        }
        transaction.finish();
    }
    Ok(())
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
    let record = Record { version: number(value, 0)?, name: number(value, 8)?, used };
    (record.version != 0 && record.name < NAMES).then_some(record)
}

fn piece(start: u64, value: &[u8]) -> Option<Piece> {
    let half = |at: usize| Some(u32::from_be_bytes(value.get(at..at + 4)?.try_into().ok()?));
    let piece = Piece { len: half(0)?, checksum: half(4)? };
    let fits = u64::from(piece.len) <= PIECE_BYTES - start % PIECE_BYTES && start < OBJECT_SIZE_MAX - PIECE_BYTES;
    (piece.len > 0 && fits).then_some(piece)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
