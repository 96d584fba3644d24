//! The configuration as a rule sees it while it makes a change: the entries of one revision, with the rule's own changes over
//! them. A store carries the changes out afterwards, all or none.

use crate::store::Changes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Keys and values.
pub(crate) type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Entries that can be read, and changed on trial.
pub(crate) struct Draft<'a> {
    entries: &'a Entries,
    changes: Changes,
    is_urgent: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(entries: &'a Entries) -> Draft<'a> {
        Draft { entries, changes: Changes::new(), is_urgent: false }
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self.changes.get(key) {
            Some(changed) => changed.as_deref(),
            None => self.entries.get(key).map(Vec::as_slice),
        }
    }

    /// Sets `key` to `value`.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.changes.insert(key.to_vec(), Some(value.to_vec()));
    }

    /// Removes `key`. Returns whether it was there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let was_there = self.get(key).is_some();
        if was_there {
            self.changes.insert(key.to_vec(), None);
        }
        was_there
    }

    /// The changes may use what the store keeps back, because they free space, or replace what is there.
    pub(crate) fn use_reserve(&mut self) {
        self.is_urgent = true;
    }

    /// Entries whose key begins with `prefix`, in order: the rest of the key, and the value.
    pub(crate) fn with_prefix(&self, prefix: &[u8]) -> Vec<(String, &[u8])> {
        let mut found: BTreeMap<&[u8], &[u8]> = range(self.entries, prefix).map(|(k, v)| (&k[..], &v[..])).collect();
        for (key, change) in range(&self.changes, prefix) {
            match change {
                Some(value) => found.insert(key, value),
                None => found.remove(&key[..]),
            };
        }
        let rest = |key: &[u8]| String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
        found.into_iter().map(|(key, value)| (rest(key), value)).collect()
    }

    #[cfg(test)]
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The changes, and whether they may use what the store keeps back.
    pub(crate) fn into_changes(self) -> (Changes, bool) {
        (self.changes, self.is_urgent)
    }
}

fn range<'m, V>(map: &'m BTreeMap<Vec<u8>, V>, prefix: &[u8]) -> impl Iterator<Item = (&'m Vec<u8>, &'m V)> {
    map.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_sees_its_own_changes() {
        let entries: Entries =
            ["a/1", "a/2", "b"].map(|key| (key.as_bytes().to_vec(), b"old".to_vec())).into_iter().collect();
        let mut draft = Draft::new(&entries);
        draft.put(b"a/0", b"new");
        draft.put(b"a/2", b"new");
        assert!(draft.delete(b"a/1") && !draft.delete(b"a/1") && !draft.delete(b"none"));
        let found: Vec<_> = draft.with_prefix(b"a/");
        assert_eq!(found, [("0".to_owned(), &b"new"[..]), ("2".to_owned(), &b"new"[..])]);
        assert_eq!((draft.get(b"b"), draft.get(b"a/1")), (Some(&b"old"[..]), None));
        let (changes, is_urgent) = draft.into_changes();
        let keys: Vec<_> = changes.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        assert_eq!((keys, is_urgent), (["a/0", "a/1", "a/2"].map(str::to_owned).to_vec(), false));
    }
}
