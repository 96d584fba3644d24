//! A map that keeps its entries in order, one beside the other: a node of a tree has room for eleven entries, and most of these maps
//! have one or two, while a node may have thousands of such maps.

use std::borrow::Borrow;
use std::collections::VecDeque;

/// A map in the order of its keys. Adding and removing an entry moves those on its shorter side, so it suits keys that come in ascending
/// order and leave in about the same order, such as xids, and sets that seldom change.
#[derive(Debug)]
pub struct SortedMap<K, V>(VecDeque<(K, V)>);

/// A map that grows up to so many entries has no room to spare.
const EXACT: usize = 4;

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> SortedMap<K, V> {
        SortedMap::new()
    }
}

impl<K, V> SortedMap<K, V> {
    /// A map without entries, which has allocated nothing.
    pub const fn new() -> SortedMap<K, V> {
        SortedMap(VecDeque::new())
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest key.
    pub fn first(&self) -> Option<&K> {
        self.0.front().map(|(key, _)| key)
    }

    /// All entries, whose values may be changed, in the order of their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The place of a key; the place where it belongs if it is not there.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    /// Adds an entry. Returns the value that the key had before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.len() < EXACT {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Removes the entry of a key, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(self.place(key).ok()?).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_the_order_of_their_keys() {
        let mut map = SortedMap::default();
        assert!(map.is_empty() && map.first().is_none());
        // Two threads may add their numbers in another order than they got them.
        assert!([3, 4, 9, 7, 12, 15].into_iter().all(|number| map.insert(number, number * 10).is_none()));
        assert_eq!((map.get(&7), map.get(&8), map.first()), (Some(&70), None, Some(&3)));
        *map.get_mut(&9).unwrap() += 1;
        map.iter_mut().filter(|(number, _)| **number == 4).for_each(|(_, value)| *value += 2);
        map.values_mut().for_each(|value| *value += 100);
        assert_eq!((map.remove(&3), map.remove(&3)), (Some(130), None));
        assert_eq!((map.insert(7, 1), map.insert(7, 170)), (Some(170), Some(1)));
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [142, 170, 191, 220, 250]);
    }

    #[test]
    fn a_few_entries_have_no_room_to_spare() {
        let mut map: SortedMap<Box<str>, u32> = SortedMap::new();
        map.insert("b".into(), 2);
        map.insert("a".into(), 1);
        assert_eq!((map.0.capacity(), map.get("a"), map.first().map(|name| &**name)), (2, Some(&1), Some("a")));
    }
}
