//! The records of a table, in the order of their keys. The key and the value of a record lie in one piece of memory, because a
//! simulation has millions of small records: a target remembers each of its clients in one.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

/// The records.
#[derive(Default)]
pub(super) struct Records(BTreeSet<Record>);

/// A record: the length of the key in [`KEY_AT`] bytes, the key, the value. Its key alone tells it from others.
pub(super) struct Record(Box<[u8]>);

const KEY_AT: usize = size_of::<u16>();

impl Record {
    pub(super) fn new(key: &[u8], value: &[u8]) -> Record {
        let key_len = u16::try_from(key.len()).expect("a key is much shorter than 64 KiB");
        Record([&key_len.to_le_bytes()[..], key, value].concat().into())
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let key_len = u16::from_le_bytes([self.0[0], self.0[1]]);
        self.0[KEY_AT..].split_at(key_len.into())
    }

    pub(super) fn key(&self) -> &[u8] {
        self.parts().0
    }

    pub(super) fn value(&self) -> &[u8] {
        self.parts().1
    }
}

impl Borrow<[u8]> for Record {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Ord for Record {
    fn cmp(&self, other: &Record) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for Record {
    fn partial_cmp(&self, other: &Record) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Record {}

impl Records {
    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key).map(Record::value)
    }

    /// Adds a record. Returns the one that had its key.
    pub(super) fn insert(&mut self, record: Record) -> Option<Record> {
        self.0.replace(record)
    }

    /// Takes out the record with a key.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Record> {
        self.0.take(key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The records from the key `from` on.
    pub(super) fn range(&self, from: &[u8]) -> impl Iterator<Item = &Record> {
        self.0.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_by_its_key_and_replaced_by_one_with_the_same() {
        let mut records = Records::default();
        assert!(records.insert(Record::new(b"b", b"1")).is_none());
        assert!(records.insert(Record::new(b"", b"b1")).is_none(), "the bytes are the same, and the key is not");
        assert_eq!(records.insert(Record::new(b"b", b"")).map(|old| old.value().to_vec()), Some(b"1".to_vec()));
        assert_eq!((records.get(b"b"), records.get(b""), records.get(b"b1")), (Some(&b""[..]), Some(&b"b1"[..]), None));
        assert_eq!(records.range(b"a").map(Record::key).collect::<Vec<_>>(), [b"b"]);
        assert!(records.remove(b"b").is_some() && records.len() == 1);
    }
}
