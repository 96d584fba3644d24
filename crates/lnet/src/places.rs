//! Limits how many places of a kind each peer may hold at a time, so that no peer takes the places of all others.

use nacre_base::FxHashMap;
use parking_lot::Mutex;
use std::hash::Hash;
use std::sync::Arc;

/// Places for peers that are named by `K`. Cloning shares.
#[derive(Clone)]
pub struct Places<K>(Arc<Mutex<Held<K>>>);

struct Held<K> {
    /// Most places of one peer.
    each_max: usize,
    /// Most places of all peers.
    all_max: usize,
    /// The peers that have any.
    by_peer: FxHashMap<K, Taken<K>>,
    all: usize,
}

/// Places that a peer has taken.
struct Taken<K> {
    count: usize,
    holder: Arc<Holder<K>>,
}

/// The peer and its table, which all places of the peer share.
struct Holder<K> {
    places: Places<K>,
    peer: K,
}

/// A place, free again when it is dropped. It is one pointer, because a node may have a hundred thousand of them.
pub struct Place<K: Copy + Eq + Hash>(Arc<Holder<K>>);

impl<K: Copy + Eq + Hash> Places<K> {
    /// Makes `all_max` places, of which each peer may hold `each_max`.
    pub fn new(each_max: usize, all_max: usize) -> Places<K> {
        assert!(each_max > 0 && all_max > 0, "there are no places");
        Places(Arc::new(Mutex::new(Held { each_max, all_max, by_peer: FxHashMap::default(), all: 0 })))
    }

    /// Takes a place; `None` if all are taken, or the peer has too many.
    pub fn take(&self, peer: K) -> Option<Place<K>> {
        let mut held = self.0.lock();
        let of_peer = held.by_peer.get(&peer).map_or(0, |taken| taken.count);
        if of_peer >= held.each_max || held.all >= held.all_max {
            return None;
        }
        held.all += 1;
        let holder = || Arc::new(Holder { places: self.clone(), peer });
        let taken = held.by_peer.entry(peer).or_insert_with(|| Taken { count: 0, holder: holder() });
        taken.count += 1;
        Some(Place(taken.holder.clone()))
    }
}

impl<K: Copy + Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let Holder { places, peer } = &*self.0;
        let mut held = places.0.lock();
        let taken = held.by_peer.get_mut(peer).expect("a place that is taken is counted");
        taken.count -= 1;
        if taken.count == 0 {
            held.by_peer.remove(peer);
        }
        held.all -= 1;
        assert!(held.all >= held.by_peer.len(), "each peer that is counted has a place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_so_many_places_and_all_together_have_more() {
        let places = Places::new(2, 3);
        let mut of_one: Vec<_> = (0..2).map(|_| places.take(1).unwrap()).collect();
        assert!(places.take(1).is_none());
        let of_another = places.take(2).unwrap();
        assert!(places.take(3).is_none(), "all are taken");
        drop(of_another);
        assert!(places.take(1).is_none() && places.take(3).is_some());
        of_one.clear();
        assert!(places.take(1).is_some());
        let held = places.0.lock();
        assert_eq!((held.all, held.by_peer.len()), (0, 0));
    }
}
