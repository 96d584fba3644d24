//! An index of extents for overlap searches: a search tree by first byte in which every node knows the last byte below
//! it, so a search leaves out extents that end too early. Balanced by pseudo-random priorities (a treap) made of
//! the lock's id and a secret number, because a client that replays its locks chooses their ids. Without the number, such
//! a client could make the tree as deep as it has locks, and the recursion would overflow the stack.

use crate::{Extent, LockId};
use nacre_base::hash::mix64;

/// Extents with the lock each belongs to.
#[derive(Debug)]
pub(super) struct IntervalTree {
    /// Random number that clients do not know.
    salt: u64,
    nodes: Vec<TreeNode>,
    /// Indexes of `nodes` that are not in use.
    free: Vec<u32>,
    /// Index + 1, so that 0, the default, means none; all links are stored this way.
    root: u32,
}

#[derive(Debug)]
struct TreeNode {
    extent: Extent,
    id: LockId,
    /// The last byte of any extent in the subtree.
    max_end: u64,
    left: u32,
    right: u32,
}

/// No node.
const NONE: u32 = 0;

impl IntervalTree {
    /// A tree without extents. `salt` is a random number that clients do not know.
    pub(super) fn new(salt: u64) -> IntervalTree {
        IntervalTree { salt, nodes: Vec::new(), free: Vec::new(), root: NONE }
    }

    /// Extents in the tree.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Returns whether the tree is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a lock's extent; a lock has one.
    pub(super) fn insert(&mut self, extent: Extent, id: LockId) {
        assert!(extent.start <= extent.end, "{extent:?} of {id:?} is no extent");
        assert!(self.nodes.len() < u32::MAX as usize, "{} extents: links have 32 bits", self.nodes.len());
        let node = TreeNode { extent, id, max_end: extent.end, left: NONE, right: NONE };
        let new = match self.free.pop() {
            Some(link) => {
                self.nodes[link as usize - 1] = node;
                link
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32
            }
        };
        self.root = self.insert_below(self.root, new);
    }

    /// Removes a lock's extent.
    pub(super) fn remove(&mut self, extent: Extent, id: LockId) {
        let before = self.len();
        self.root = self.remove_below(self.root, (extent.start, id));
        assert_eq!(self.len() + 1, before, "{extent:?} of {id:?} is not in the tree");
        if self.is_empty() {
            *self = IntervalTree::new(self.salt);
        }
    }

    /// Calls `visit` with every lock whose extent overlaps, ascending by first byte, until it returns false. Returns
    /// whether it never did.
    pub(super) fn overlapping(&self, extent: Extent, visit: &mut impl FnMut(LockId) -> bool) -> bool {
        self.overlapping_below(self.root, extent, visit)
    }

    /// Calls `visit` with every extent that begins behind `byte`, ascending, until it returns false. Returns whether it
    /// never did.
    pub(super) fn starting_after(&self, byte: u64, visit: &mut impl FnMut(LockId, Extent) -> bool) -> bool {
        self.starting_after_below(self.root, byte, visit)
    }

    /// All extents, ascending by first byte.
    pub(super) fn iter(&self) -> Vec<(Extent, LockId)> {
        let mut all = Vec::with_capacity(self.len());
        let mut above = Vec::new();
        let mut at = self.root;
        while at != NONE || !above.is_empty() {
            while at != NONE {
                above.push(at);
                at = self.node(at).left;
            }
            let Some(next) = above.pop() else { break };
            let node = self.node(next);
            all.push((node.extent, node.id));
            at = node.right;
        }
        all
    }

    fn node(&self, link: u32) -> &TreeNode {
        &self.nodes[link as usize - 1]
    }

    fn node_mut(&mut self, link: u32) -> &mut TreeNode {
        &mut self.nodes[link as usize - 1]
    }

    fn priority(&self, link: u32) -> u64 {
        mix64(self.node(link).id.0 ^ self.salt)
    }

    fn key(&self, link: u32) -> (u64, LockId) {
        let node = self.node(link);
        (node.extent.start, node.id)
    }

    fn max_end(&self, link: u32) -> u64 {
        if link == NONE { 0 } else { self.node(link).max_end }
    }

    fn update(&mut self, link: u32) {
        let node = self.node(link);
        let max_end = node.extent.end.max(self.max_end(node.left)).max(self.max_end(node.right));
        self.node_mut(link).max_end = max_end;
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        if self.priority(new) > self.priority(at) {
            let (left, right) = self.split(at, self.key(new));
            let node = self.node_mut(new);
            (node.left, node.right) = (left, right);
            self.update(new);
            return new;
        }
        assert_ne!(self.key(new), self.key(at), "an extent is in the tree already");
        if self.key(new) < self.key(at) {
            let left = self.insert_below(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.insert_below(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.update(at);
        at
    }

    fn remove_below(&mut self, at: u32, key: (u64, LockId)) -> u32 {
        if at == NONE {
            return NONE;
        }
        let (left, right) = (self.node(at).left, self.node(at).right);
        if key == self.key(at) {
            self.free.push(at);
            return self.merge(left, right);
        }
        if key < self.key(at) {
            let left = self.remove_below(left, key);
            self.node_mut(at).left = left;
        } else {
            let right = self.remove_below(right, key);
            self.node_mut(at).right = right;
        }
        self.update(at);
        at
    }

    /// Splits the tree below `at` in two: keys before `key`, and the others.
    fn split(&mut self, at: u32, key: (u64, LockId)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        if self.key(at) < key {
            let (low, high) = self.split(self.node(at).right, key);
            self.node_mut(at).right = low;
            self.update(at);
            (at, high)
        } else {
            let (low, high) = self.split(self.node(at).left, key);
            self.node_mut(at).left = high;
            self.update(at);
            (low, at)
        }
    }

    /// Merges two trees; all keys of the first are before those of the second.
    fn merge(&mut self, low: u32, high: u32) -> u32 {
        if low == NONE || high == NONE {
            return low.max(high);
        }
        let top = if self.priority(low) > self.priority(high) {
            let right = self.merge(self.node(low).right, high);
            self.node_mut(low).right = right;
            low
        } else {
            let left = self.merge(low, self.node(high).left);
            self.node_mut(high).left = left;
            high
        };
        self.update(top);
        top
    }

    fn overlapping_below(&self, at: u32, extent: Extent, visit: &mut impl FnMut(LockId) -> bool) -> bool {
        if at == NONE || self.node(at).max_end < extent.start {
            return true;
        }
        let node = self.node(at);
        self.overlapping_below(node.left, extent, visit)
            && (node.extent.start > extent.end
                || (!node.extent.overlaps(&extent) || visit(node.id))
                    && self.overlapping_below(node.right, extent, visit))
    }

    fn starting_after_below(&self, at: u32, byte: u64, visit: &mut impl FnMut(LockId, Extent) -> bool) -> bool {
        if at == NONE {
            return true;
        }
        let node = self.node(at);
        let behind = node.extent.start > byte;
        (!behind || self.starting_after_below(node.left, byte, visit) && visit(node.id, node.extent))
            && self.starting_after_below(node.right, byte, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    #[test]
    fn it_agrees_with_a_list() {
        for seed in 0..300 {
            let mut random = Prng::new(seed);
            let (mut tree, mut list) = (IntervalTree::new(seed), Vec::<(Extent, LockId)>::new());
            for id in 1..200 {
                if random.one_in(3) && !list.is_empty() {
                    let (extent, id) = list.swap_remove(random.below(list.len() as u64) as usize);
                    tree.remove(extent, id);
                } else {
                    let start = random.below(200);
                    let end = if random.one_in(10) { u64::MAX } else { start + random.below(30) };
                    tree.insert(Extent { start, end }, LockId(id));
                    list.push((Extent { start, end }, LockId(id)));
                }
                let start = random.below(200);
                let asked = Extent { start, end: start + random.below(20) };
                let sorted = |keep: &dyn Fn(&Extent) -> bool| -> Vec<LockId> {
                    let mut found: Vec<_> =
                        list.iter().filter(|(e, _)| keep(e)).map(|(e, id)| (e.start, *id)).collect();
                    found.sort_unstable();
                    found.into_iter().map(|(_, id)| id).collect()
                };
                let (mut overlapping, mut behind) = (Vec::new(), Vec::new());
                assert!(tree.overlapping(asked, &mut |id| {
                    overlapping.push(id);
                    true
                }));
                assert!(tree.starting_after(asked.end, &mut |id, _| {
                    behind.push(id);
                    true
                }));
                assert_eq!(overlapping, sorted(&|e| e.overlaps(&asked)), "seed {seed}");
                assert_eq!(behind, sorted(&|e| e.start > asked.end), "seed {seed}");
                assert_eq!(tree.iter().into_iter().map(|(_, id)| id).collect::<Vec<_>>(), sorted(&|_| true));
                assert_eq!(tree.len(), list.len());
            }
        }
    }

    /// A client that replays its locks chooses their ids. Priorities were a known function of the id, so the client could
    /// choose ids whose priorities fall as the extents ascend: the tree became a list, and its recursion overflowed the
    /// stack of the server.
    #[test]
    fn chosen_ids_do_not_make_it_deep() {
        let mut ids: Vec<u64> = (1..=20_000).collect();
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(mix64(*id)));
        let mut tree = IntervalTree::new(0x9e37_79b9_7f4a_7c15);
        for (start, id) in ids.iter().enumerate() {
            let start = start as u64;
            tree.insert(Extent { start, end: start }, LockId(*id));
        }
        let (mut level, mut depth) = (vec![tree.root], 0);
        while !level.is_empty() {
            depth += 1;
            let below = level.iter().flat_map(|link| [tree.node(*link).left, tree.node(*link).right]);
            level = below.filter(|link| *link != NONE).collect();
        }
        assert!(depth < 64, "{} extents are {depth} deep", tree.len());
    }

    #[test]
    #[should_panic(expected = "is not in the tree")]
    fn an_extent_is_removed_once() {
        let mut tree = IntervalTree::new(1);
        tree.insert(Extent::ALL, LockId(1));
        tree.insert(Extent::ALL, LockId(2));
        tree.remove(Extent::ALL, LockId(1));
        tree.remove(Extent::ALL, LockId(1));
    }

    #[test]
    fn a_visitor_can_stop() {
        let mut tree = IntervalTree::new(1);
        for id in 0..10 {
            tree.insert(Extent { start: id, end: 20 }, LockId(id));
        }
        let mut seen = Vec::new();
        assert!(!tree.overlapping(Extent::ALL, &mut |id| {
            seen.push(id.0);
            id.0 < 3
        }));
        assert!(!tree.starting_after(6, &mut |id, _| {
            seen.push(id.0);
            false
        }));
        assert_eq!(seen, [0, 1, 2, 3, 7]);
    }
}
