//! NIDs where the target of an import may be served, and which of them is tried next. A sans-IO engine.

use nacre_base::{Network, Nid};
use std::sync::Arc;

/// The NIDs, and when each was tried. The imports of several clients to one target share the list, and an import whose target
/// has one NID has no choice to remember anything for.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// A thin pointer, because each import has one.
    nids: Arc<Vec<Nid>>,
    /// Number of the latest connect to each NID, 0 if there was none. Not needed for one NID, to which all connects went.
    tried: Option<Box<[u32]>>,
    /// Index of the NID in use, or tried last.
    current: u32,
    /// True if the last NID is no longer on the list, but was in use when it was taken off: it is dropped once it fails.
    last_is_unlisted: bool,
}

impl Candidates {
    /// Candidates of which none was tried. Each NID counts once.
    pub(crate) fn new(nids: &Arc<Vec<Nid>>) -> Candidates {
        let mut candidates = Candidates { nids: Arc::default(), tried: None, current: 0, last_is_unlisted: false };
        candidates.replace(nids, None, 0);
        candidates
    }

    /// Replaces the list after so many connects. The NID `kept` stays a candidate although it may not be listed.
    pub(crate) fn replace(&mut self, listed: &Arc<Vec<Nid>>, kept: Option<Nid>, connects: u32) {
        let is_first = |(at, nid): (usize, &Nid)| !listed[..at].contains(nid);
        let unlisted = kept.filter(|nid| !listed.contains(nid));
        let is_as_listed = unlisted.is_none() && listed.iter().enumerate().all(is_first);
        let nids = if is_as_listed {
            listed.clone()
        } else {
            let distinct = listed.iter().enumerate().filter(|(at, nid)| is_first((*at, nid))).map(|(_, nid)| *nid);
            Arc::new(distinct.chain(unlisted).collect())
        };
        let tried = (connects > 0).then(|| nids.iter().map(|nid| self.tried(*nid, connects)).collect());
        // Without a connection the NID listed first is next, because the target was started there last.
        let current = nids.iter().position(|nid| Some(*nid) == kept).unwrap_or(0) as u32;
        *self = Candidates { nids, tried, current, last_is_unlisted: unlisted.is_some() };
    }

    /// Number of the latest connect to a NID, of so many.
    fn tried(&self, nid: Nid, connects: u32) -> u32 {
        let at = self.nids.iter().position(|known| *known == nid);
        at.map_or(0, |at| self.tried.as_ref().map_or(connects, |tried| tried[at]))
    }

    pub(crate) fn nids(&self) -> &[Nid] {
        &self.nids
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nids.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.nids.len()
    }

    /// NID in use, or tried last.
    pub(crate) fn current(&self) -> Option<Nid> {
        self.nids.get(self.current as usize).copied()
    }

    /// Returns whether `nid` is one of them.
    pub(crate) fn knows(&self, nid: Nid) -> bool {
        self.nids.contains(&nid)
    }

    /// Returns whether any of them is on a network.
    pub(crate) fn is_on(&self, network: Network) -> bool {
        self.nids.iter().any(|nid| nid.network == network)
    }

    /// The next connect goes to the NID that is listed first, unless another one is chosen.
    pub(crate) fn choose_first(&mut self) {
        self.current = 0;
    }

    /// The next connect goes to the NID that was not tried for the longest time.
    pub(crate) fn choose_oldest(&mut self) {
        let tried = |at: &usize| self.tried.as_ref().map_or(0, |tried| tried[*at]);
        self.current = (0..self.nids.len()).min_by_key(|at| (tried(at), *at)).unwrap_or(0) as u32;
    }

    /// The connect with this number goes to the current NID, which is returned.
    pub(crate) fn handle_tried(&mut self, connect: u32) -> Nid {
        let (at, count) = (self.current as usize, self.nids.len());
        if count > 1 || self.tried.is_some() {
            self.tried.get_or_insert_with(|| vec![0; count].into())[at] = connect;
        }
        self.nids[at]
    }

    /// The connect to the current NID failed. Returns whether it was dropped, because it is no longer listed.
    pub(crate) fn handle_failed(&mut self) -> bool {
        let is_dropped = self.last_is_unlisted && self.current as usize + 1 == self.nids.len();
        if is_dropped {
            let listed = &self.nids[..self.nids.len() - 1];
            let tried = self.tried.as_ref().map(|tried| tried[..listed.len()].into());
            *self = Candidates { nids: Arc::new(listed.to_vec()), tried, current: 0, last_is_unlisted: false };
        }
        is_dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);
    const C: Nid = Nid::sim(3);

    #[test]
    fn the_list_is_shared_unless_a_nid_stands_in_it_twice() {
        let list = Arc::new(vec![A, B]);
        assert!(Arc::ptr_eq(&Candidates::new(&list).nids, &list));
        assert_eq!(Candidates::new(&vec![A, B, A].into()).nids(), [A, B]);
    }

    #[test]
    fn a_new_list_keeps_when_each_nid_was_tried() {
        let mut candidates = Candidates::new(&vec![A, B].into());
        candidates.handle_tried(1);
        candidates.replace(&vec![B, A, C].into(), None, 1);
        candidates.choose_oldest();
        assert_eq!(candidates.handle_tried(2), B);
        candidates.choose_oldest();
        assert_eq!(candidates.handle_tried(3), C);
        candidates.choose_oldest();
        assert_eq!(candidates.current(), Some(A));
    }

    #[test]
    fn the_only_nid_was_tried_by_all_connects_and_one_that_took_its_place_by_none() {
        let mut candidates = Candidates::new(&vec![A].into());
        candidates.handle_tried(1);
        candidates.replace(&vec![A, B].into(), None, 1);
        candidates.choose_oldest();
        assert_eq!(candidates.current(), Some(B));
        let mut candidates = Candidates::new(&vec![A].into());
        candidates.handle_tried(1);
        candidates.replace(&vec![B].into(), None, 1);
        candidates.replace(&vec![B, C].into(), None, 1);
        candidates.choose_oldest();
        assert_eq!(candidates.current(), Some(B));
    }

    #[test]
    fn a_nid_that_is_kept_is_dropped_when_it_fails_and_no_other_is() {
        let mut candidates = Candidates::new(&vec![A].into());
        candidates.replace(&vec![B].into(), Some(A), 1);
        assert_eq!((candidates.nids(), candidates.current()), (&[B, A][..], Some(A)));
        candidates.choose_first();
        assert!(!candidates.handle_failed());
        candidates.replace(&vec![B].into(), Some(A), 1);
        assert!(candidates.handle_failed());
        assert_eq!((candidates.nids(), candidates.current()), (&[B][..], Some(B)));
        assert!(!candidates.handle_failed());
    }
}
