//! A map that takes little memory while it has few entries: a client has a handful of peers, a server as many as there are clients.

use crate::FxHashMap;
use std::hash::Hash;

/// A map of which most instances have one entry or two, and some have thousands. Its order means nothing, but it is the same in every
/// run.
#[derive(Debug)]
pub struct SmallMap<K, V>(Form<K, V>);

#[derive(Debug)]
enum Form<K, V> {
    /// Up to [`FEW`]: they are found as fast as in a hash table, of which even the smallest one has more room than most maps need.
    List(Vec<(K, V)>),
    /// Once there were more.
    Table(FxHashMap<K, V>),
}

/// Most entries that are searched one by one.
const FEW: usize = 4;

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> SmallMap<K, V> {
        SmallMap(Form::List(Vec::new()))
    }
}

impl<K: Eq + Hash, V> SmallMap<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.0 {
            Form::List(list) => list.iter().find(|(known, _)| known == key).map(|(_, value)| value),
            Form::Table(table) => table.get(key),
        }
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.0 {
            Form::List(list) => list.iter_mut().find(|(known, _)| known == key).map(|(_, value)| value),
            Form::Table(table) => table.get_mut(key),
        }
    }

    /// The value of a key, which is made if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if let Form::List(list) = &mut self.0
            && list.len() == FEW
            && list.iter().all(|(known, _)| *known != key)
        {
            self.0 = Form::Table(std::mem::take(list).into_iter().collect());
        }
        match &mut self.0 {
            Form::List(list) => {
                let at = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                    list.reserve_exact(1);
                    list.push((key, make()));
                    list.len() - 1
                });
                &mut list[at].1
            }
            Form::Table(table) => table.entry(key).or_insert_with(make),
        }
    }

    /// Removes the entry of a key, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        match &mut self.0 {
            Form::List(list) => {
                let at = list.iter().position(|(known, _)| known == key)?;
                Some(list.remove(at).1)
            }
            Form::Table(table) => table.remove(key),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::List(list) => list.len(),
            Form::Table(table) => table.len(),
        }
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (list, table) = match &self.0 {
            Form::List(list) => (Some(list), None),
            Form::Table(table) => (None, Some(table)),
        };
        list.into_iter().flatten().map(|(key, value)| (key, value)).chain(table.into_iter().flatten())
    }

    /// All entries, whose values may be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let (list, table) = match &mut self.0 {
            Form::List(list) => (Some(list), None),
            Form::Table(table) => (None, Some(table)),
        };
        list.into_iter().flatten().map(|(key, value)| (&*key, value)).chain(table.into_iter().flatten())
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Keeps only these entries.
    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        match &mut self.0 {
            Form::List(list) => list.retain(|(key, value)| keeps(key, value)),
            Form::Table(table) => table.retain(|key, value| keeps(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_however_many_there_are() {
        let mut map = SmallMap::default();
        for key in 1..=3 * FEW {
            assert!(map.get(&key).is_none());
            *map.get_or_insert_with(key, || 0) += key;
            *map.get_or_insert_with(key, || panic!("it is there")) *= 2;
            assert_eq!(map.len(), key);
            assert!((1..=key).all(|known| map.get(&known) == Some(&(known * 2))));
            assert_eq!(map.values().sum::<usize>(), key * (key + 1));
            assert_eq!(map.keys().sum::<usize>(), key * (key + 1) / 2);
        }
        *map.get_mut(&1).unwrap() = 7;
        map.retain(|key, value| *key == 1 || *value == 4 || *value == 6);
        assert_eq!((map.remove(&3), map.remove(&3)), (Some(6), None));
        map.iter_mut().for_each(|(key, value)| *value += key);
        let mut left: Vec<_> = map.iter().collect();
        left.sort();
        assert_eq!(left, [(&1, &8), (&2, &6)]);
    }

    #[test]
    fn a_few_entries_have_no_room_to_spare() {
        let mut map = SmallMap::default();
        for key in [1, 2] {
            map.get_or_insert_with(key, || key);
        }
        assert!(matches!(&map.0, Form::List(list) if list.capacity() == 2));
        assert_eq!((map.remove(&1), map.remove(&1), map.get(&2)), (Some(1), None, Some(&2)));
        assert!(!map.is_empty());
    }
}
