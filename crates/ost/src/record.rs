//! The record of an object, and its encoding.

use crate::OBJECTS;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_osd::{ObjectStat, Transaction};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::codec::{Field, Reader};
use nacre_wire::header::Versions;
use nacre_wire::{WireError, decode, encode};

/// An object's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ObjectRecord {
    /// Size in bytes: the authoritative one, whatever the length of the data file.
    pub(crate) size: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    /// The file that the object belongs to (the back pointer), known from the first write on.
    pub(crate) parent: Fid,
    pub(crate) stripe_index: u32,
    /// Generation of the newest layout that a writer had.
    pub(crate) layout_version: u32,
    /// Transno of the last change.
    pub(crate) version: u64,
    /// True if the object was created ahead of use, and never changed since.
    pub(crate) is_precreated: bool,
    /// Transno of the last truncation: writes before and after it must not be mixed (version-based recovery). 0 if there
    /// was none since this field exists.
    pub(crate) vbr_version: u64,
}

/// Client and time of a change of an object's data, which all such requests carry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// The file and stripe index, if the request has them.
    pub(crate) parent: Option<(Fid, u32)>,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) layout_version: u32,
    pub(crate) now: Timestamp,
}

impl ObjectRecord {
    /// Refuses a writer whose layout is older than one that was used here, because the file has moved on.
    pub(crate) fn check_layout(&self, layout_version: u32) -> Result<(), Errno> {
        if layout_version < self.layout_version { Err(Errno::ESTALE) } else { Ok(()) }
    }

    /// Applies a change of data. Times advance only with ctime: a write that a later `utimes` has overtaken must not undo
    /// it.
    pub(crate) fn changed(&mut self, change: &Change) -> Result<(), Errno> {
        self.check_layout(change.layout_version)?;
        self.layout_version = change.layout_version;
        if change.now >= self.ctime {
            self.mtime = change.now;
            self.ctime = change.now;
        }
        if let Some((parent, stripe_index)) = change.parent {
            self.parent = parent;
            self.stripe_index = stripe_index;
        }
        if let (true, Some((uid, gid))) = (self.is_precreated, change.owner) {
            self.uid = uid;
            self.gid = gid;
        }
        self.is_precreated = false;
        Ok(())
    }

    /// The versions that a change of data is based on.
    pub(crate) fn pre_versions(&self) -> Versions {
        Versions([self.vbr_version, 0, 0, 0])
    }

    /// The attributes that clients see.
    pub(crate) fn attr(&self, stat: ObjectStat) -> ObjectAttr {
        ObjectAttr {
            size: self.size,
            blocks: stat.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            version: if self.is_precreated { 0 } else { self.version },
        }
    }

    /// Loads the object's record; `None` if it does not exist.
    pub(crate) fn load(transaction: &dyn Transaction, fid: Fid) -> Result<Option<ObjectRecord>, Errno> {
        match transaction.get(OBJECTS, &fid.to_key())? {
            Some(value) => decode(&value).map(Some).map_err(|_| Errno::EIO),
            None => Ok(None),
        }
    }

    /// Stores the record.
    pub(crate) fn store(&self, transaction: &mut dyn Transaction, fid: Fid) -> Result<(), Errno> {
        Ok(transaction.put(OBJECTS, &fid.to_key(), &encode(self))?)
    }
}

impl Field for ObjectRecord {
    const MIN_SIZE: usize = 8 + 2 * 4 + 3 * 12 + 16 + 2 * 4 + 8 + 1;

    fn put(&self, out: &mut Vec<u8>) {
        self.size.put(out);
        self.uid.put(out);
        self.gid.put(out);
        self.atime.put(out);
        self.mtime.put(out);
        self.ctime.put(out);
        self.parent.put(out);
        self.stripe_index.put(out);
        self.layout_version.put(out);
        self.version.put(out);
        self.is_precreated.put(out);
        self.vbr_version.put(out);
    }

    fn take(from: &mut Reader) -> Result<ObjectRecord, WireError> {
        Ok(ObjectRecord {
            size: Field::take(from)?,
            uid: Field::take(from)?,
            gid: Field::take(from)?,
            atime: Field::take(from)?,
            mtime: Field::take(from)?,
            ctime: Field::take(from)?,
            parent: Field::take(from)?,
            stripe_index: Field::take(from)?,
            layout_version: Field::take(from)?,
            version: Field::take(from)?,
            is_precreated: Field::take(from)?,
            // Records of older versions end here.
            vbr_version: if from.remaining() == 0 { 0 } else { Field::take(from)? },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(now: i64, layout_version: u32) -> Change {
        Change { parent: None, owner: Some((5, 6)), layout_version, now: Timestamp { secs: now, nanos: 0 } }
    }

    #[test]
    fn records_keep_their_encoding() {
        let versions = ObjectRecord { version: 0x1_0000_0002, layout_version: 3, vbr_version: 9, ..Default::default() };
        let record = ObjectRecord { size: 7, ..versions };
        let bytes = encode(&record);
        assert_eq!(bytes.len(), ObjectRecord::MIN_SIZE + size_of::<u64>());
        assert_eq!(decode::<ObjectRecord>(&bytes), Ok(record));
        assert_eq!((bytes[0], bytes[72], bytes[76], bytes[80], bytes[85]), (7, 3, 2, 1, 9));
        let older = bytes.slice(..ObjectRecord::MIN_SIZE);
        assert_eq!(decode::<ObjectRecord>(&older), Ok(ObjectRecord { vbr_version: 0, ..record }));
        assert!(decode::<ObjectRecord>(&bytes.slice(..bytes.len() - 1)).is_err());
    }

    #[test]
    fn an_overtaken_write_does_not_undo_later_times() {
        let mut record = ObjectRecord::default();
        record.changed(&change(100, 1)).unwrap();
        record.mtime = Timestamp { secs: 3, nanos: 0 };
        record.ctime = Timestamp { secs: 110, nanos: 0 };
        record.changed(&change(105, 1)).unwrap();
        assert_eq!((record.mtime.secs, record.ctime.secs), (3, 110));
        record.changed(&change(111, 1)).unwrap();
        assert_eq!((record.mtime.secs, record.ctime.secs), (111, 111));
    }

    #[test]
    fn an_older_layout_is_fenced() {
        let mut record = ObjectRecord::default();
        record.changed(&change(1, 4)).unwrap();
        assert_eq!(record.changed(&change(2, 3)), Err(Errno::ESTALE));
        assert_eq!(record.mtime.secs, 1);
    }
}
