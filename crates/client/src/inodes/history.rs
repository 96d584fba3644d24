//! Requests under way, and this client's own changes that overlap them. The server does not call this client's locks back
//! for its own changes, so an answer that may be older than such a change must not be kept after it, and what a change
//! under way makes wrong must not be answered from the cache.

use bytes::Bytes;
use nacre_base::Fid;
use std::collections::{BTreeSet, VecDeque};

/// A part of the name space that a change changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// An inode, except for its entries.
    Inode(Fid),
    /// A name in a directory, and with it the directory's times and link count.
    Name(Fid, Bytes),
}

/// Effect of changes on an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Touch {
    /// Nothing.
    None,
    /// The inode's entries change, and so do its times and link count.
    Entries,
    /// Everything of the inode may change.
    All,
}

/// Order of requests and changes; see the module.
#[derive(Debug, Default)]
pub(super) struct History {
    sequence: u64,
    /// Requests under way, by the number they began with.
    under_way: BTreeSet<u64>,
    /// Changes that have not ended, by the request's number. A change whose caller stopped waiting stays, because its
    /// outcome will never be known.
    changing: Vec<(u64, Vec<Part>)>,
    /// Changes that ended, with the number they ended with. They are kept as long as an older request is under way.
    changed: VecDeque<(u64, Vec<Part>)>,
    /// Number of the last loss of all locks.
    lost: u64,
}

impl History {
    /// The next number; every event gets one, in order.
    pub(super) fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Begins a request.
    pub(super) fn begin(&mut self) -> u64 {
        let began = self.next();
        self.under_way.insert(began);
        began
    }

    /// Notes that the request `began` changes `parts`.
    pub(super) fn begin_change(&mut self, began: u64, parts: Vec<Part>) {
        assert!(self.under_way.contains(&began), "request {began} is to change something, and is over");
        self.changing.push((began, parts));
    }

    /// Adds further parts to a change. Returns all its parts.
    pub(super) fn add_parts(&mut self, began: u64, also: Vec<Part>) -> Vec<Part> {
        let change = self.changing.iter_mut().find(|c| c.0 == began);
        let Some((_, parts)) = change else { panic!("request {began} changed {also:?}, and its change had ended") };
        parts.extend(also);
        parts.clone()
    }

    /// Ends a change, once, while its request is under way. `changed`: it has happened.
    pub(super) fn end_change(&mut self, began: u64, changed: bool) {
        assert!(self.under_way.contains(&began), "the change of request {began} ends after the request");
        let Some(place) = self.changing.iter().position(|c| c.0 == began) else { panic!("{began} has ended twice") };
        let (_, parts) = self.changing.swap_remove(place);
        if changed {
            let ended = self.next();
            assert!(self.changed.back().is_none_or(|last| last.0 < ended), "changes end in order");
            self.changed.push_back((ended, parts));
        }
    }

    /// Ends a request.
    pub(super) fn end(&mut self, began: u64) {
        assert!(self.under_way.remove(&began), "request {began} is over, and was before");
        let oldest = self.under_way.first().copied().unwrap_or(u64::MAX);
        while self.changed.front().is_some_and(|c| c.0 < oldest) {
            self.changed.pop_front();
        }
        if self.lost > began {
            // The server has discarded the request when it evicted this client.
            self.changing.retain(|change| change.0 != began);
        }
        assert!(!self.under_way.is_empty() || self.changed.is_empty(), "changes are kept that nobody can overlap");
    }

    /// The server has dropped this client, and will execute none of its requests any more.
    pub(super) fn lose(&mut self) {
        self.lost = self.next();
        let under_way = &self.under_way;
        self.changing.retain(|c| under_way.contains(&c.0));
    }

    /// Parts of all changes that are under way or ended after `since`, without those of the change `except`.
    fn parts_since(&self, since: u64, except: u64) -> impl Iterator<Item = &Part> {
        let ended = self.changed.iter().rev().take_while(move |c| c.0 > since);
        let running = self.changing.iter().filter(move |c| c.0 != except);
        running.map(|c| &c.1).chain(ended.map(|c| &c.1)).flatten()
    }

    /// Effect on an inode of all changes that are under way or ended after `since`; [`NOW`] means only those under way.
    pub(super) fn touches(&self, fid: Fid, since: u64, except: u64) -> Touch {
        let touch = |part: &Part| match part {
            Part::Inode(f) if *f == fid => Touch::All,
            Part::Name(f, _) if *f == fid => Touch::Entries,
            _ => Touch::None,
        };
        self.parts_since(since, except).map(touch).max().unwrap_or(Touch::None)
    }

    /// True if such changes touch a name.
    pub(super) fn touches_name(&self, directory: Fid, name: &[u8], since: u64, except: u64) -> bool {
        self.parts_since(since, except).any(|p| matches!(p, Part::Name(d, n) if *d == directory && n[..] == *name))
    }
}

/// Value for `since`: only changes under way.
pub(super) const NOW: u64 = u64::MAX;
/// Value for `except`: no change.
pub(super) const NOTHING: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const D: Fid = Fid { seq: 1, oid: 2, ver: 0 };

    #[test]
    fn a_request_sees_the_changes_that_overlap_it() {
        let mut h = History::default();
        let early = h.begin();
        let change = h.begin();
        h.begin_change(change, vec![Part::Inode(F), Part::Name(D, Bytes::from_static(b"n"))]);
        assert_eq!(h.touches(F, NOW, NOTHING), Touch::All);
        assert_eq!(h.touches(D, NOW, NOTHING), Touch::Entries);
        assert_eq!(h.touches(F, change, change), Touch::None, "its own reply is not in its own way");
        assert!(h.touches_name(D, b"n", NOW, NOTHING) && !h.touches_name(D, b"m", NOW, NOTHING));
        let during = h.begin();
        h.end_change(change, true);
        h.end(change);
        let late = h.begin();
        assert_eq!(h.touches(F, NOW, NOTHING), Touch::None);
        assert_eq!((h.touches(F, early, 0), h.touches(F, during, 0)), (Touch::All, Touch::All));
        assert_eq!(h.touches(F, late, 0), Touch::None);
        h.end(early);
        assert_eq!(h.changed.len(), 1);
        h.end(during);
        assert!(h.changed.is_empty(), "nobody is left who could see it");
        h.end(late);
    }

    #[test]
    #[should_panic(expected = "and was before")]
    fn a_request_is_over_once() {
        let mut h = History::default();
        let asked = h.begin();
        h.end(asked);
        h.end(asked);
    }

    #[test]
    fn a_change_without_an_end_stays_until_all_is_lost() {
        let mut h = History::default();
        let (deserted, refused) = (h.begin(), h.begin());
        h.begin_change(deserted, vec![Part::Inode(F)]);
        h.begin_change(refused, vec![Part::Inode(D)]);
        h.end_change(refused, false);
        h.end(refused);
        h.end(deserted);
        assert_eq!((h.touches(F, NOW, 0), h.touches(D, NOW, 0)), (Touch::All, Touch::None));
        let running = h.begin();
        h.begin_change(running, vec![Part::Inode(D)]);
        h.lose();
        assert_eq!((h.touches(F, NOW, 0), h.touches(D, NOW, 0)), (Touch::None, Touch::All));
        h.end(running);
        assert_eq!(h.touches(D, NOW, 0), Touch::None);
    }
}
