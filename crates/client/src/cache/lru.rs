//! The order in which the clean segments of one object were last used: a linked list in a vector, so that each operation
//! takes the same time however many there are.

use nacre_base::Time;

/// A segment's place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LruNode(u32);

/// No node: the end of the list.
const NONE: u32 = u32::MAX;

/// Segments, the least recently used one first, each by its first offset.
#[derive(Debug)]
pub(crate) struct Lru {
    nodes: Vec<ListNode>,
    /// The first of the nodes without a segment, which are linked by `next`.
    free: u32,
    first: u32,
    last: u32,
}

#[derive(Debug, Clone, Copy)]
struct ListNode {
    previous: u32,
    next: u32,
    start: u64,
    used: Time,
}

impl Default for Lru {
    fn default() -> Lru {
        Lru { nodes: Vec::new(), free: NONE, first: NONE, last: NONE }
    }
}

impl Lru {
    /// Adds a segment that begins at `start` and is used now.
    pub(crate) fn push(&mut self, start: u64, now: Time) -> LruNode {
        let node = self.allocate(ListNode { previous: NONE, next: NONE, start, used: now });
        self.link(self.last, node);
        LruNode(node)
    }

    /// Marks the segment as used now.
    pub(crate) fn touch(&mut self, node: LruNode, now: Time) {
        self.unlink(node.0);
        self.nodes[node.0 as usize].used = now;
        self.link(self.last, node.0);
    }

    /// Makes the segment the one that leaves first.
    pub(crate) fn expire(&mut self, node: LruNode) {
        self.unlink(node.0);
        self.nodes[node.0 as usize].used = Time::ZERO;
        self.link(NONE, node.0);
    }

    /// A segment was cut in two. The part from `start` on keeps the time of the whole segment's last use.
    pub(crate) fn split(&mut self, node: LruNode, start: u64) -> LruNode {
        let used = self.nodes[node.0 as usize].used;
        let part = self.allocate(ListNode { previous: NONE, next: NONE, start, used });
        self.link(node.0, part);
        LruNode(part)
    }

    /// Removes a segment that was dropped or is no longer clean.
    pub(crate) fn remove(&mut self, node: LruNode) {
        self.unlink(node.0);
        self.nodes[node.0 as usize].next = self.free;
        self.free = node.0;
    }

    /// Offset at which the node's segment begins.
    pub(crate) fn start(&self, node: LruNode) -> u64 {
        self.nodes[node.0 as usize].start
    }

    /// Time at which the node's segment was last used.
    #[cfg(test)]
    pub(crate) fn used(&self, node: LruNode) -> Time {
        self.nodes[node.0 as usize].used
    }

    /// The least recently used segment, and when it was used.
    pub(crate) fn oldest(&self) -> Option<(u64, Time)> {
        let node = self.nodes.get(self.first as usize)?;
        Some((node.start, node.used))
    }

    fn allocate(&mut self, node: ListNode) -> u32 {
        if self.free == NONE {
            assert!(self.nodes.len() < NONE as usize, "{} segments of one object are too many", self.nodes.len());
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let at = self.free;
        self.free = std::mem::replace(&mut self.nodes[at as usize], node).next;
        at
    }

    /// Links a node behind another one, or at the front.
    fn link(&mut self, previous: u32, node: u32) {
        let next = match self.nodes.get_mut(previous as usize) {
            Some(previous) => std::mem::replace(&mut previous.next, node),
            None => std::mem::replace(&mut self.first, node),
        };
        match self.nodes.get_mut(next as usize) {
            Some(next) => next.previous = node,
            None => self.last = node,
        }
        let linked = &mut self.nodes[node as usize];
        (linked.previous, linked.next) = (previous, next);
    }

    fn unlink(&mut self, node: u32) {
        let ListNode { previous, next, start, .. } = self.nodes[node as usize];
        // A node may have been removed before; then no neighbour refers to it.
        let before = match self.nodes.get_mut(previous as usize) {
            Some(previous) => std::mem::replace(&mut previous.next, next),
            None => std::mem::replace(&mut self.first, next),
        };
        let after = match self.nodes.get_mut(next as usize) {
            Some(next) => std::mem::replace(&mut next.previous, previous),
            None => std::mem::replace(&mut self.last, previous),
        };
        assert!(before == node && after == node, "the segment at {start} is not in the list, or twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn order(lru: &mut Lru) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = lru.first;
        while let Some(node) = lru.nodes.get(at as usize) {
            found.push(node.start);
            at = node.next;
        }
        found
    }

    #[test]
    fn the_order_is_that_of_a_plain_list() {
        let (mut lru, mut model, mut random) = (Lru::default(), Vec::<(u64, LruNode)>::new(), Prng::new(1));
        for step in 0..10_000 {
            let now = Time::from_secs(step);
            let at = random.below(model.len().max(1) as u64) as usize;
            match random.below(6) {
                0 | 1 => model.push((step, lru.push(step, now))),
                2 if !model.is_empty() => {
                    let used = model.remove(at);
                    lru.touch(used.1, now);
                    model.push(used);
                }
                3 if !model.is_empty() => {
                    let part = lru.split(model[at].1, step);
                    model.insert(at + 1, (step, part));
                }
                4 if !model.is_empty() => lru.remove(model.remove(at).1),
                5 if !model.is_empty() => {
                    let expired = model.remove(at);
                    lru.expire(expired.1);
                    model.insert(0, expired);
                }
                _ => {}
            }
            assert_eq!(lru.oldest().map(|(start, _)| start), model.first().map(|(start, _)| *start));
        }
        assert_eq!(order(&mut lru), model.iter().map(|(start, _)| *start).collect::<Vec<_>>());
        assert!(model.iter().all(|(start, node)| lru.start(*node) == *start));
        assert!(lru.nodes.len() < 5000, "nodes are used again");
    }
}
