//! The MDT's tables on its device, and typed access to them. [`crate::ops`] has the operations that change them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `dirents` | parent FID, 8 bytes of name hash, name | [`Dirent`] |
//! | `inodes` | FID | [`Inode`] |
//! | `xattrs` | FID, attribute name | version byte, value: attributes too large for the inode |
//! | `links` | FID, parent FID, name | version byte: one record for each name of an inode |
//! | `orphans` | FID | version byte: inodes without a name that are still open |
//! | `destroys` | OST index (4), transno (8), object FID | version byte: objects to destroy once the transno is durable |
//! | `objects` | OST index (4) | [`LastUsed`] |
//!
//! All numbers in keys are big-endian, so that the order of keys is the order of numbers; FIDs are in their key form
//! (`Fid::to_key`). The name hash is FNV-1a shifted right by one, moved into `3 .. i64::MAX`, so that a directory is
//! read in the order of its hash and the hash serves as cookie: 1 and 2 are the cookies of `.` and `..`.

use crate::record::{DIRECTORY_SIZE, Dirent, Inode, LastUsed, RECORD_VERSION, damaged};
use bytes::Bytes;
use nacre_base::{Errno, Fid, OstIndex, Timestamp, hash};
use nacre_osd::{Table, Transaction, Visitor};
use nacre_wire::attr::mode;
use std::ops::ControlFlow;

/// Entries of directories.
pub const DIRENTS: Table = Table("dirents");
/// Inodes.
pub const INODES: Table = Table("inodes");
/// Large extended attributes.
pub const XATTRS: Table = Table("xattrs");
/// Names of inodes.
pub const LINKS: Table = Table("links");
/// Nameless inodes that are still open.
pub const ORPHANS: Table = Table("orphans");
/// Objects to destroy.
pub const DESTROYS: Table = Table("destroys");
/// Last object of each OST that a file has.
pub const OBJECTS: Table = Table("objects");

/// The MDT's own tables.
pub const OWN: [Table; 7] = [DIRENTS, INODES, XATTRS, LINKS, ORPHANS, DESTROYS, OBJECTS];

/// Cookie of `.`.
pub const COOKIE_DOT: u64 = 1;
/// Cookie of `..`.
pub const COOKIE_DOT_DOT: u64 = 2;
/// Lowest cookie of other entries.
const COOKIE_FIRST: u64 = 3;
/// Highest cookie: one less than the value that programs take for the end of a directory.
const COOKIE_LAST: u64 = i64::MAX as u64 - 1;

type Tx<'a> = &'a mut dyn Transaction;
/// Gets the cookie, the name and the entry, and returns whether to go on.
pub type EntryVisitor<'a> = dyn FnMut(u64, &[u8], Dirent) -> ControlFlow<()> + 'a;

/// The hash of a name, which is the cookie of its entry.
pub fn name_hash(name: &[u8]) -> u64 {
    let h = hash::fnv_1a_64(name) >> 1;
    #[cfg(test)]
    let h = short_hash::apply(h);
    h.clamp(COOKIE_FIRST, COOKIE_LAST)
}

/// Lets tests have names of equal hash.
#[cfg(test)]
pub(crate) mod short_hash {
    use std::cell::Cell;

    thread_local!(static MODULUS: Cell<u64> = const { Cell::new(u64::MAX) });

    /// Limits this thread to `modulus` different hashes from now on.
    pub(crate) fn set(modulus: u64) {
        MODULUS.set(modulus);
    }

    pub(super) fn apply(h: u64) -> u64 {
        h % MODULUS.get()
    }
}

/// A new root directory.
pub(crate) fn root_inode(now: Timestamp, version: u64) -> Inode {
    Inode {
        mode: mode::S_IFDIR | 0o755,
        nlink: 2,
        size: DIRECTORY_SIZE,
        blocks: DIRECTORY_SIZE / 512,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        version,
        vbr_version: version,
        parent: Fid::ROOT,
        ..Inode::default()
    }
}

/// The inode of `fid`.
pub fn inode(tx: &dyn Transaction, fid: Fid) -> Result<Option<Inode>, Errno> {
    let Some(bytes) = tx.get(INODES, &fid.to_key())? else { return Ok(None) };
    let inode = Inode::decode(bytes).map_err(|e| damaged("inode", &fid.to_key(), &e))?;
    if inode.layout.as_ref().is_some_and(|l| l.check().is_err()) {
        tracing::error!("the layout of {fid} is damaged");
        return Err(Errno::EIO);
    }
    Ok(Some(inode))
}

/// Stores an inode.
pub fn put_inode(tx: Tx<'_>, fid: Fid, inode: &Inode) -> Result<(), Errno> {
    Ok(tx.put(INODES, &fid.to_key(), &inode.encode())?)
}

/// Removes an inode.
pub fn delete_inode(tx: Tx<'_>, fid: Fid) -> Result<(), Errno> {
    tx.delete(INODES, &fid.to_key())?;
    Ok(())
}

fn dirent_key(parent: Fid, name: &[u8]) -> Vec<u8> {
    [&parent.to_key()[..], &name_hash(name).to_be_bytes(), name].concat()
}

/// The entry `name` of directory `parent`.
pub fn dirent(tx: &dyn Transaction, parent: Fid, name: &[u8]) -> Result<Option<Dirent>, Errno> {
    let key = dirent_key(parent, name);
    let Some(bytes) = tx.get(DIRENTS, &key)? else { return Ok(None) };
    Dirent::decode(bytes).map(Some).map_err(|e| damaged("directory entry", &key, &e))
}

/// Creates or replaces an entry, and the link record of its inode.
pub fn put_dirent(tx: Tx<'_>, parent: Fid, name: &[u8], entry: &Dirent) -> Result<(), Errno> {
    tx.put(DIRENTS, &dirent_key(parent, name), &entry.encode())?;
    Ok(tx.put(LINKS, &link_key(entry.fid, parent, name), &[RECORD_VERSION])?)
}

/// Removes an entry that names `fid`, and its link record.
pub fn delete_dirent(tx: Tx<'_>, parent: Fid, name: &[u8], fid: Fid) -> Result<(), Errno> {
    tx.delete(DIRENTS, &dirent_key(parent, name))?;
    tx.delete(LINKS, &link_key(fid, parent, name))?;
    Ok(())
}

/// Removes a link record alone; for repairs.
pub fn delete_link(tx: Tx<'_>, fid: Fid, parent: Fid, name: &[u8]) -> Result<(), Errno> {
    tx.delete(LINKS, &link_key(fid, parent, name))?;
    Ok(())
}

/// True if the link record of a name exists.
pub fn has_link(tx: &dyn Transaction, fid: Fid, parent: Fid, name: &[u8]) -> Result<bool, Errno> {
    Ok(tx.get(LINKS, &link_key(fid, parent, name))?.is_some())
}

/// Visits the entries of `parent` with cookies above `after`, in order of cookie: cookie, name, entry.
pub fn scan_dirents(tx: &dyn Transaction, parent: Fid, after: u64, visit: &mut EntryVisitor<'_>) -> Result<(), Errno> {
    let prefix = parent.to_key();
    let from = [&prefix[..], &after.saturating_add(1).to_be_bytes()].concat();
    let mut result = Ok(());
    tx.scan(DIRENTS, &from, &mut |key, value| {
        let Some(rest) = key.strip_prefix(&prefix) else { return ControlFlow::Break(()) };
        let entry = Dirent::decode(Bytes::copy_from_slice(value)).map_err(|e| damaged("directory entry", key, &e));
        match (rest.split_first_chunk::<8>(), entry) {
            (Some((cookie, name)), Ok(entry)) => visit(u64::from_be_bytes(*cookie), name, entry),
            _ => {
                result = Err(Errno::EIO);
                ControlFlow::Break(())
            }
        }
    })?;
    result
}

/// True if a directory has no entries.
pub fn is_empty(tx: &dyn Transaction, parent: Fid) -> Result<bool, Errno> {
    let mut empty = true;
    scan_dirents(tx, parent, 0, &mut |_, _, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

fn link_key(fid: Fid, parent: Fid, name: &[u8]) -> Vec<u8> {
    [&fid.to_key()[..], &parent.to_key(), name].concat()
}

/// The names of `fid`, at most `limit` of them.
pub fn links(tx: &dyn Transaction, fid: Fid, limit: usize) -> Result<Vec<(Fid, Bytes)>, Errno> {
    let mut found = Vec::new();
    scan_prefix(tx, LINKS, &fid.to_key(), &mut |rest, _| {
        if let Some((parent, name)) = rest.split_first_chunk::<16>()
            && let Some(parent) = Fid::from_key(parent)
        {
            found.push((parent, Bytes::copy_from_slice(name)));
        }
        if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// A value in the `xattrs` table.
pub fn xattr(tx: &dyn Transaction, fid: Fid, name: &str) -> Result<Option<Bytes>, Errno> {
    let found = tx.get(XATTRS, &xattr_key(fid, name))?;
    match found {
        Some(mut bytes) if bytes.first() == Some(&RECORD_VERSION) => Ok(Some(bytes.split_off(1))),
        Some(_) => {
            tracing::error!("extended attribute {name} of {fid} is damaged");
            Err(Errno::EIO)
        }
        None => Ok(None),
    }
}

/// Stores a value in the `xattrs` table.
pub fn put_xattr(tx: Tx<'_>, fid: Fid, name: &str, value: &[u8]) -> Result<(), Errno> {
    Ok(tx.put(XATTRS, &xattr_key(fid, name), &[&[RECORD_VERSION], value].concat())?)
}

/// Removes a value from the `xattrs` table. Returns whether it existed.
pub fn delete_xattr(tx: Tx<'_>, fid: Fid, name: &str) -> Result<bool, Errno> {
    Ok(tx.delete(XATTRS, &xattr_key(fid, name))?)
}

/// Names in the `xattrs` table.
pub fn xattr_names(tx: &dyn Transaction, fid: Fid) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    scan_prefix(tx, XATTRS, &fid.to_key(), &mut |name, _| {
        names.push(String::from_utf8_lossy(name).into_owned());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn xattr_key(fid: Fid, name: &str) -> Vec<u8> {
    [&fid.to_key()[..], name.as_bytes()].concat()
}

/// Records an inode that has lost its last name and is open.
pub fn put_orphan(tx: Tx<'_>, fid: Fid) -> Result<(), Errno> {
    Ok(tx.put(ORPHANS, &fid.to_key(), &[RECORD_VERSION])?)
}

/// Removes an orphan. Returns whether it was one.
pub fn delete_orphan(tx: Tx<'_>, fid: Fid) -> Result<bool, Errno> {
    Ok(tx.delete(ORPHANS, &fid.to_key())?)
}

/// Inodes without names that were open, those after `after`, at most `limit`.
pub fn orphans(tx: &dyn Transaction, after: Option<Fid>, limit: usize) -> Result<Vec<Fid>, Errno> {
    let mut found = Vec::new();
    let start = after.map_or(Vec::new(), |fid| fid.to_key().to_vec());
    tx.scan(ORPHANS, &start, &mut |key, _| {
        found.extend(Fid::from_key(key).filter(|fid| Some(*fid) != after));
        if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// Queues an object for destruction once `transno` is durable.
pub fn put_destroy(tx: Tx<'_>, ost: OstIndex, transno: u64, object: Fid) -> Result<(), Errno> {
    Ok(tx.put(DESTROYS, &destroy_key(ost, transno, object), &[RECORD_VERSION])?)
}

/// The oldest objects of an OST to be destroyed, after `after`, from changes up to `durable`, at most `limit`: transno
/// and object.
pub fn destroys(
    tx: &dyn Transaction,
    ost: OstIndex,
    after: Option<(u64, Fid)>,
    durable: u64,
    limit: usize,
) -> Result<Vec<(u64, Fid)>, Errno> {
    let prefix = ost.0.to_be_bytes();
    let start = after.map_or(prefix.to_vec(), |(transno, object)| destroy_key(ost, transno, object));
    let mut found = Vec::new();
    tx.scan(DESTROYS, &start, &mut |key, _| {
        let Some(rest) = key.strip_prefix(&prefix) else { return ControlFlow::Break(()) };
        let Some((transno, object)) = rest.split_first_chunk::<8>() else { return ControlFlow::Continue(()) };
        let transno = u64::from_be_bytes(*transno);
        if transno > durable || found.len() == limit {
            return ControlFlow::Break(());
        }
        let queued = Fid::from_key(object).map(|fid| (transno, fid));
        found.extend(queued.filter(|queued| Some(*queued) != after));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Removes an object from the queue.
pub fn delete_destroy(tx: Tx<'_>, ost: OstIndex, transno: u64, object: Fid) -> Result<(), Errno> {
    tx.delete(DESTROYS, &destroy_key(ost, transno, object))?;
    Ok(())
}

fn destroy_key(ost: OstIndex, transno: u64, object: Fid) -> Vec<u8> {
    [&ost.0.to_be_bytes()[..], &transno.to_be_bytes(), &object.to_key()].concat()
}

/// The last object of an OST that a file has.
pub fn last_used(tx: &dyn Transaction, ost: OstIndex) -> Result<Option<LastUsed>, Errno> {
    let key = ost.0.to_be_bytes();
    let Some(bytes) = tx.get(OBJECTS, &key)? else { return Ok(None) };
    LastUsed::decode(bytes).map(Some).map_err(|e| damaged("last object of OST", &key, &e))
}

/// Stores the last object of an OST that a file has.
pub fn put_last_used(tx: Tx<'_>, ost: OstIndex, last: &LastUsed) -> Result<(), Errno> {
    Ok(tx.put(OBJECTS, &ost.0.to_be_bytes(), &last.encode())?)
}

/// Visits the records whose keys begin with `prefix`: the rest of the key, and the value.
fn scan_prefix(tx: &dyn Transaction, table: Table, prefix: &[u8], visit: &mut Visitor<'_>) -> Result<(), Errno> {
    tx.scan(table, prefix, &mut |key, value| match key.strip_prefix(prefix) {
        Some(rest) => visit(rest, value),
        None => ControlFlow::Break(()),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_frozen() {
        let parent = Fid { seq: 0x200000007, oid: 1, ver: 0 };
        let key = dirent_key(parent, b"foobar");
        assert_eq!(key[..16], *b"\0\0\0\x02\0\0\0\x07\0\0\0\x01\0\0\0\0");
        assert_eq!(key[16..], *b"\x42\xca\x20\xb8\xfb\x9c\xb3\xf4foobar");
        assert_eq!(link_key(parent, parent, b"x").len(), 33);
    }

    #[test]
    fn cookies_stay_positive_and_off_the_reserved_ones() {
        for i in 0..10_000u32 {
            let h = name_hash(&i.to_le_bytes());
            assert!((COOKIE_FIRST..=COOKIE_LAST).contains(&h));
        }
    }
}
