//! Tables of exports. A table has one pointer for each export, whose key it reads in the export itself, because a node may have a
//! hundred thousand of them.

use nacre_base::FxHashSet;
use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

/// An export, which has several keys: its cookie, its client.
pub trait Keyed<K> {
    /// The key of this kind.
    fn key(&self) -> &K;
}

/// Exports `E`, each with another key `K`.
pub struct ExportTable<K, E>(FxHashSet<Entry<K, E>>);

struct Entry<K, E> {
    export: Arc<E>,
    key: PhantomData<K>,
}

impl<K: Hash + Eq, E: Keyed<K>> Borrow<K> for Entry<K, E> {
    fn borrow(&self) -> &K {
        self.export.key()
    }
}

impl<K: Hash + Eq, E: Keyed<K>> Hash for Entry<K, E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.export.key().hash(state);
    }
}

impl<K: Hash + Eq, E: Keyed<K>> PartialEq for Entry<K, E> {
    fn eq(&self, other: &Entry<K, E>) -> bool {
        self.export.key() == other.export.key()
    }
}

impl<K: Hash + Eq, E: Keyed<K>> Eq for Entry<K, E> {}

impl<K, E> Default for ExportTable<K, E> {
    fn default() -> ExportTable<K, E> {
        ExportTable(FxHashSet::default())
    }
}

impl<K: Hash + Eq, E: Keyed<K> + Keyed<u64>> ExportTable<K, E> {
    /// The export with this key.
    pub fn get(&self, key: &K) -> Option<&Arc<E>> {
        self.0.get(key).map(|entry| &entry.export)
    }

    /// All exports, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<E>> {
        self.0.iter().map(|entry| &entry.export)
    }

    /// Number of exports.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains(key)
    }

    /// Adds an export. Returns the one that had its key.
    pub fn insert(&mut self, export: Arc<E>) -> Option<Arc<E>> {
        self.0.replace(Entry { export, key: PhantomData }).map(|before| before.export)
    }

    /// Removes the export with this key, if there is one.
    pub fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Returns whether there is no export.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All exports, in the order of their cookies.
    pub(crate) fn in_order(&self) -> Vec<Arc<E>> {
        let mut all: Vec<_> = self.iter().cloned().collect();
        all.sort_by_key(|export| *Keyed::<u64>::key(&**export));
        all
    }
}
