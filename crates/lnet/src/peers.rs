//! Peers with several NIDs. A sans-IO engine that knows which NIDs belong to one node, and which of this node's NIDs such a
//! peer takes for one node.
//!
//! A node's word about itself is never enough, because it could name the NID of another node, get that node's messages and
//! speak in its name. So a NID counts as a peer's only after the NID itself was asked, and has answered with a list that has the
//! same primary NID and names both. A NID whose connections broke may belong to another node by now: it is *trusted* again when
//! it was asked again. If no NID of a node was trusted for a moment, the node begins anew with the one that answers first,
//! because nothing says any more that the others are its own. An administrator's word needs no answer.
//!
//! The peer decides for itself which NIDs of this node it takes for one node ([`PeerNode::takes`]), and says so in its answers.
//! This node sends from a second NID only after that, because the peer would not know the sender before.

use crate::frame::KnownNid;
use nacre_base::{FxHashMap, Nid};
use slab::Slab;
use std::collections::BTreeSet;

/// NIDs of a peer that are used.
pub const PEER_NIDS_MAX: usize = 16;

/// The peers with several NIDs, and those that know several NIDs of this node.
#[derive(Debug)]
pub(crate) struct Peers {
    nodes: Slab<PeerNode>,
    of: FxHashMap<Nid, usize>,
    /// Nodes that are remembered.
    most: usize,
}

/// One of them.
#[derive(Debug, Default, Clone)]
pub(crate) struct PeerNode {
    /// Its NIDs as it has listed them last, its primary NID first.
    told: Vec<Nid>,
    /// The NIDs that are known to be its own.
    rails: Vec<Rail>,
    /// NIDs of this node that the peer takes for one node.
    ours: Vec<KnownNid>,
    /// The list of its own NIDs that the peer was last told.
    pushed: Vec<KnownNid>,
}

/// A NID of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rail {
    pub(crate) nid: Nid,
    /// False from when its connections broke until it was asked again.
    pub(crate) is_trusted: bool,
    /// True if an administrator has named it.
    pub(crate) is_configured: bool,
}

/// Whether a peer may bring a message that says that it is from another NID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bringing {
    /// Both NIDs are of one node.
    Allowed,
    /// The peer is a gateway, and the NID is on another network.
    ByGateway,
    /// They were of one node until the connections of the peer's NID broke. It has yet to be asked again.
    NotYet,
    /// Nothing is known that would allow it.
    Forbidden,
}

/// Why a peer is not configured as an administrator wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The peer has too many NIDs.
    #[error("a peer has at most {PEER_NIDS_MAX} NIDs")]
    Many,
    /// The NID belongs to another peer by an administrator's word.
    #[error("{0} is configured as a NID of the peer {1}")]
    Other(Nid, Nid),
    /// The NID is this node's.
    #[error("{0} is this node's own")]
    Own(Nid),
    /// There is no such peer.
    #[error("no peer with several NIDs has the NID {0}")]
    Missing(Nid),
    /// The primary NID goes last.
    #[error("{0} is the primary NID: remove the whole peer")]
    Primary(Nid),
    /// Too many peers are configured.
    #[error("there are too many peers")]
    Full,
}

/// A list of NIDs as it is used: each once, without `lo`, and not too many.
pub(crate) fn cleaned(told: impl IntoIterator<Item = Nid>) -> Vec<Nid> {
    let mut nids: Vec<Nid> = Vec::new();
    for nid in told.into_iter().filter(|nid| *nid != Nid::LO) {
        if nids.len() < PEER_NIDS_MAX && !nids.contains(&nid) {
            nids.push(nid);
        }
    }
    nids
}

/// The ends of a way, without networks and ports: two networks between the same addresses are one way.
pub(crate) fn wire(own: Nid, nid: Nid) -> (Nid, Nid) {
    let end = |nid: Nid| if nid.network.has_ip() { Nid::tcp(nid.ip(), 0) } else { nid };
    (end(own), end(nid))
}

/// Number of ways between a node with the NIDs `own` and one with the NIDs `theirs`: with one there is nothing to choose.
pub(crate) fn ways(own: &[Nid], theirs: &[Nid]) -> usize {
    let reached = |own: Nid| theirs.iter().filter(move |nid| own.reaches(**nid)).map(move |nid| wire(own, *nid));
    own.iter().flat_map(|own| reached(*own)).collect::<BTreeSet<_>>().len()
}

impl PeerNode {
    fn rail(&self, nid: Nid) -> Option<&Rail> {
        self.rails.iter().find(|rail| rail.nid == nid)
    }

    pub(crate) fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// The NID that the peer is known by: its own primary one, or the first that is known to be its own.
    pub(crate) fn primary(&self) -> Nid {
        let configured = self.rails.iter().find(|rail| rail.is_configured);
        let told = self.told.iter().find_map(|nid| self.rail(*nid));
        configured.or(told).or(self.rails.first()).map_or(Nid::LO, |rail| rail.nid)
    }

    /// Its NIDs, the primary one first.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        let primary = self.primary();
        let others = self.rails.iter().map(|rail| rail.nid).filter(|nid| *nid != primary);
        std::iter::once(primary).chain(others).collect()
    }

    /// NIDs that it has named and that have not been asked, or not since their connections broke.
    pub(crate) fn unverified(&self) -> Vec<Nid> {
        self.told.iter().copied().filter(|nid| !self.is_trusted(*nid)).collect()
    }

    /// Whether it has listed these NIDs, and no others.
    pub(crate) fn has_told(&self, nids: &[Nid]) -> bool {
        nids.len() == self.told.len() && nids.iter().all(|nid| self.told.contains(nid))
    }

    pub(crate) fn is_trusted(&self, nid: Nid) -> bool {
        self.rail(nid).is_some_and(|rail| rail.is_trusted)
    }

    /// Whether it takes messages from this NID of this node's that say that they are from another one.
    pub(crate) fn knows_own(&self, own: Nid) -> bool {
        self.ours.iter().any(|known| known.nid == own && known.is_trusted)
    }

    /// Whether it takes messages that come from the NID `own` of this node and say that they are from `source`.
    pub(crate) fn takes(&self, own: Nid, source: Nid) -> bool {
        own == source || self.knows_own(own) && self.ours.iter().any(|known| known.nid == source)
    }

    /// What this node tells it of its own NIDs.
    pub(crate) fn known_nids(&self) -> Vec<KnownNid> {
        self.rails.iter().map(|rail| KnownNid { nid: rail.nid, is_trusted: rail.is_trusted }).collect()
    }

    pub(crate) fn is_configured(&self) -> bool {
        self.rails.iter().any(|rail| rail.is_configured)
    }

    /// An answer says which NIDs of this node it takes for one node. What the peer has said meanwhile may be newer, so an answer
    /// takes nothing back: the peer does that by itself ([`Peers::handle_takes`]).
    fn add_ours(&mut self, ours: Vec<KnownNid>) {
        for known in ours {
            match self.ours.iter().position(|other| other.nid == known.nid) {
                Some(at) => self.ours[at].is_trusted |= known.is_trusted,
                None if self.ours.len() < PEER_NIDS_MAX => self.ours.push(known),
                None => {}
            }
        }
    }

    fn is_worth_keeping(&self) -> bool {
        self.rails.len() > 1 || self.told.len() > 1 || self.ours.len() > 1 || self.is_configured()
    }

    fn trusts_others(&self, than: Nid) -> bool {
        self.rails.iter().any(|rail| rail.nid != than && rail.is_trusted)
    }

    /// Whether the list of one of its NIDs fits what the others have said.
    fn agrees(&self, nid: Nid, told: &[Nid]) -> bool {
        let names = |rail: &Rail| rail.nid == nid || !rail.is_trusted || rail.is_configured || told.contains(&rail.nid);
        told.first() == self.told.first() && self.told.contains(&nid) && self.rails.iter().all(names)
    }
}

impl Peers {
    pub(crate) fn new(most: usize) -> Peers {
        Peers { nodes: Slab::new(), of: FxHashMap::default(), most }
    }

    pub(crate) fn node_of(&self, nid: Nid) -> Option<&PeerNode> {
        self.of.get(&nid).map(|slot| &self.nodes[*slot])
    }

    /// Whether a node with several NIDs has named this one.
    pub(crate) fn is_named(&self, nid: Nid) -> bool {
        let names = |node: &PeerNode| node.rail(nid).is_some() || node.told.contains(&nid);
        self.all().any(|node| (node.rails.len() > 1 || node.told.len() > 1) && names(node))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &PeerNode> {
        self.nodes.iter().map(|(_, node)| node)
    }

    /// A NID was asked, and has answered with this list. `ours` are this node's NIDs that it takes for one node. Returns whether
    /// the NID is known anew, so that others that it names are to be asked.
    pub(crate) fn handle_told(&mut self, nid: Nid, told: Vec<Nid>, ours: Vec<KnownNid>) -> bool {
        if !told.contains(&nid) {
            self.remove_unconfigured(nid);
            return false;
        }
        if let Some(slot) = self.of.get(&nid).copied() {
            let node = &mut self.nodes[slot];
            let is_configured = node.rail(nid).is_some_and(|rail| rail.is_configured);
            let is_alone = !node.trusts_others(nid);
            let fits = is_alone || node.agrees(nid, &told);
            if fits || is_configured {
                let was_trusted = node.is_trusted(nid);
                node.rails.iter_mut().filter(|rail| rail.nid == nid).for_each(|rail| rail.is_trusted = true);
                node.add_ours(ours);
                if fits {
                    node.told = told;
                }
                self.drop_unproven(slot, nid, is_alone);
                self.check();
                return !was_trusted;
            }
            self.remove(slot, nid);
        }
        let rails = vec![Rail { nid, is_trusted: true, is_configured: false }];
        let node = PeerNode { told, rails, ours, pushed: Vec::new() };
        let is_kept = node.is_worth_keeping() && self.make_room();
        if is_kept {
            let slot = self.nodes.insert(node);
            self.of.insert(nid, slot);
        }
        self.check();
        is_kept
    }

    /// `nid`, which the node of `claimer` has named as its own, was asked itself and has answered with this list. Returns
    /// whether it is that node's.
    pub(crate) fn handle_claimed(&mut self, claimer: Nid, nid: Nid, told: &[Nid], ours: Vec<KnownNid>) -> bool {
        let Some(slot) = self.of.get(&claimer).copied() else { return false };
        let node = &self.nodes[slot];
        let is_claimed =
            node.told.contains(&nid) && node.rail(claimer).is_some_and(|rail| rail.is_trusted) && claimer != nid;
        let confirms = told.first() == node.told.first() && told.contains(&claimer) && told.contains(&nid);
        let other = self.of.get(&nid).copied().filter(|other| *other != slot);
        let is_taken = other.is_some_and(|other| self.nodes[other].rail(nid).is_some_and(|rail| rail.is_configured));
        let is_known = node.rail(nid).is_some();
        if !is_claimed || !confirms || is_taken || !is_known && node.rails.len() >= PEER_NIDS_MAX {
            if other.is_none() && is_claimed {
                self.remove_unconfigured(nid);
            }
            return false;
        }
        if let Some(other) = other {
            self.remove(other, nid);
        }
        let node = &mut self.nodes[slot];
        node.add_ours(ours);
        match node.rails.iter_mut().find(|rail| rail.nid == nid) {
            Some(rail) => rail.is_trusted = true,
            None => node.rails.push(Rail { nid, is_trusted: true, is_configured: false }),
        }
        self.of.insert(nid, slot);
        self.check();
        true
    }

    /// A peer says, unasked, which of this node's NIDs it takes for one node. Returns whether it takes messages from fewer than before.
    pub(crate) fn handle_takes(&mut self, nid: Nid, ours: Vec<KnownNid>) -> bool {
        let Some(slot) = self.of.get(&nid) else { return false };
        let node = &mut self.nodes[*slot];
        // Another node may have the address of a NID whose connections broke.
        if !node.is_trusted(nid) {
            return false;
        }
        let takes = |ours: &[KnownNid], nid| ours.iter().any(|known| known.nid == nid && known.is_trusted);
        let shrank = node.ours.iter().any(|known| known.is_trusted && !takes(&ours, known.nid));
        node.ours = ours;
        shrank
    }

    /// The connections between an interface of this node and a NID of a peer broke. Returns the peer's NIDs if it has several.
    pub(crate) fn handle_lost(&mut self, own: Nid, nid: Nid) -> Option<Vec<Rail>> {
        let node = &mut self.nodes[*self.of.get(&nid)?];
        node.rails.iter_mut().filter(|rail| rail.nid == nid).for_each(|rail| rail.is_trusted = false);
        // The peer has lost these connections as well, and asks this node's NID again. In turn it is told when its own NID was asked.
        node.ours.iter_mut().filter(|known| known.nid == own).for_each(|known| known.is_trusted = false);
        node.pushed.clear();
        if !node.trusts_others(nid) {
            // The peer may have been restarted, and know nothing of this node.
            node.ours.clear();
        }
        Some(node.rails.clone())
    }

    /// Whether `peer` may bring a message from `source`.
    pub(crate) fn may_bring(&self, peer: Nid, source: Nid) -> Bringing {
        match (self.of.get(&peer), self.of.get(&source)) {
            (Some(a), Some(b)) if a == b => match self.nodes[*a].rail(peer) {
                Some(rail) if rail.is_trusted => Bringing::Allowed,
                _ => Bringing::NotYet,
            },
            _ => Bringing::Forbidden,
        }
    }

    /// A peer is being told which NIDs of its own are known here. Returns false if it was told the same before.
    pub(crate) fn handle_pushed(&mut self, nid: Nid) -> bool {
        let Some(slot) = self.of.get(&nid) else { return true };
        let node = &mut self.nodes[*slot];
        let known = node.known_nids();
        std::mem::replace(&mut node.pushed, known) != node.pushed
    }

    /// An administrator says that these NIDs are one node's. They are added to those that are known already.
    pub(crate) fn configure(&mut self, primary: Nid, others: &[Nid]) -> Result<(), PeerError> {
        let nids = cleaned(std::iter::once(primary).chain(others.iter().copied()));
        let slot = self.of.get(&primary).copied();
        for nid in &nids {
            let other = self.of.get(nid).filter(|other| Some(**other) != slot).map(|other| &self.nodes[*other]);
            if let Some(other) = other.filter(|other| other.rail(*nid).is_some_and(|rail| rail.is_configured)) {
                return Err(PeerError::Other(*nid, other.primary()));
            }
        }
        let known = slot.map_or(0, |slot| self.nodes[slot].rails.iter().filter(|r| !nids.contains(&r.nid)).count());
        if known + nids.len() > PEER_NIDS_MAX || others.len() >= PEER_NIDS_MAX {
            return Err(PeerError::Many);
        }
        let slot = match slot {
            Some(slot) => slot,
            None if self.make_room() => self.nodes.insert(PeerNode::default()),
            None => return Err(PeerError::Full),
        };
        for nid in nids {
            if let Some(other) = self.of.get(&nid).copied().filter(|other| *other != slot) {
                self.remove(other, nid);
            }
            self.of.insert(nid, slot);
            let rails = &mut self.nodes[slot].rails;
            let new = Rail { nid, is_trusted: true, is_configured: true };
            match rails.iter_mut().find(|rail| rail.nid == nid) {
                Some(rail) => *rail = new,
                None => rails.push(new),
            }
        }
        // The primary one is the first that is configured.
        let rails = &mut self.nodes[slot].rails;
        rails.sort_by_key(|rail| rail.nid != primary);
        self.check();
        Ok(())
    }

    /// Forgets a peer, or only some of its NIDs.
    pub(crate) fn forget(&mut self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let slot = *self.of.get(&primary).ok_or(PeerError::Missing(primary))?;
        let node = &self.nodes[slot];
        if let Some(missing) = nids.iter().find(|nid| node.rail(**nid).is_none()) {
            return Err(PeerError::Missing(*missing));
        }
        let goes = if nids.is_empty() { node.nids() } else { nids.to_vec() };
        if goes.contains(&node.primary()) && goes.len() < node.rails.len() {
            return Err(PeerError::Primary(node.primary()));
        }
        goes.into_iter().for_each(|nid| self.remove(slot, nid));
        self.check();
        Ok(())
    }

    /// Forgets a NID unless an administrator has named it.
    fn remove_unconfigured(&mut self, nid: Nid) {
        if let Some(slot) = self.of.get(&nid).copied()
            && self.nodes[slot].rail(nid).is_some_and(|rail| !rail.is_configured)
        {
            self.remove(slot, nid);
        }
        self.check();
    }

    fn remove(&mut self, slot: usize, nid: Nid) {
        let node = &mut self.nodes[slot];
        node.rails.retain(|rail| rail.nid != nid);
        if node.rails.is_empty() {
            self.nodes.remove(slot);
        }
        self.of.remove(&nid);
    }

    /// `nid` of a node has answered. Forgets NIDs that the node no longer names, or, if no other NID was trusted, all others: they
    /// have to confirm again that they are its own. Forgets the node if nothing is left to know of it.
    fn drop_unproven(&mut self, slot: usize, nid: Nid, is_alone: bool) {
        let node = &self.nodes[slot];
        let is_unproven =
            |rail: &&Rail| !rail.is_configured && rail.nid != nid && (is_alone || !node.told.contains(&rail.nid));
        let gone: Vec<Nid> = node.rails.iter().filter(is_unproven).map(|rail| rail.nid).collect();
        gone.into_iter().for_each(|nid| self.remove(slot, nid));
        if let Some(node) = self.nodes.get(slot).filter(|node| !node.is_worth_keeping()) {
            node.nids().into_iter().for_each(|nid| self.remove(slot, nid));
        }
    }

    /// Makes room for one more node: at the limit, nodes are forgotten none of whose NIDs is trusted. False if there is none.
    fn make_room(&mut self) -> bool {
        if self.nodes.len() >= self.most {
            let is_idle = |node: &PeerNode| !node.is_configured() && node.rails.iter().all(|rail| !rail.is_trusted);
            let idle: Vec<usize> = self.nodes.iter().filter(|(_, node)| is_idle(node)).map(|(slot, _)| slot).collect();
            for slot in idle {
                self.nodes[slot].nids().into_iter().for_each(|nid| self.remove(slot, nid));
            }
        }
        self.nodes.len() < self.most
    }

    fn check(&self) {
        assert!(
            self.nodes.len() <= self.most.max(1) && self.nodes.len() <= self.of.len(),
            "{} nodes",
            self.nodes.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);
    const C: Nid = Nid::sim(3);
    const D: Nid = Nid::sim(4);
    const OWN: Nid = Nid::sim(8);
    const OTHER_OWN: Nid = Nid::sim(9);

    fn known(nids: &[Nid]) -> Vec<KnownNid> {
        nids.iter().map(|nid| KnownNid { nid: *nid, is_trusted: true }).collect()
    }

    fn peers() -> Peers {
        Peers::new(100)
    }

    fn nids(peers: &Peers, of: Nid) -> Vec<Nid> {
        peers.node_of(of).map_or_else(Vec::new, PeerNode::nids)
    }

    /// A node with the NIDs A and B, found by asking both.
    fn found() -> Peers {
        let mut p = peers();
        p.handle_told(A, vec![A, B], Vec::new());
        assert_eq!(p.node_of(A).unwrap().unverified(), [B]);
        assert!(p.handle_claimed(A, B, &[A, B], known(&[OWN, OTHER_OWN])));
        assert_eq!((nids(&p, B), p.node_of(A).unwrap().unverified()), (vec![A, B], vec![]));
        p
    }

    #[test]
    fn a_nid_counts_only_when_it_confirms_it_itself() {
        let mut p = peers();
        // A names B, which is somebody else's.
        p.handle_told(A, vec![A, B], Vec::new());
        for told in [vec![B], vec![B, A], vec![B, C], vec![A, C], vec![A], vec![]] {
            assert!(!p.handle_claimed(A, B, &told, Vec::new()), "{told:?}");
            assert_eq!((nids(&p, A), nids(&p, B)), (vec![A], vec![]));
        }
        assert_eq!(p.may_bring(A, B), Bringing::Forbidden);
        // A even says that B is its primary NID.
        p.handle_told(A, vec![B, A], Vec::new());
        assert!(!p.handle_claimed(A, B, &[B, C], Vec::new()));
        // C, which nobody has named, is not B's either.
        let mut p = found();
        assert!(!p.handle_claimed(A, C, &[A, B, C], Vec::new()));
        assert_eq!(
            (p.may_bring(B, A), p.may_bring(C, A), p.may_bring(B, C)),
            (Bringing::Allowed, Bringing::Forbidden, Bringing::Forbidden)
        );
    }

    #[test]
    fn a_nid_that_leaves_its_node_goes_alone() {
        let mut p = found();
        p.handle_told(B, vec![B], Vec::new());
        assert_eq!((nids(&p, A), nids(&p, B)), (vec![A], vec![]));
        let mut p = found();
        p.handle_told(B, vec![B, D], Vec::new());
        assert_eq!((nids(&p, A), nids(&p, B)), (vec![A], vec![B]));
        assert!(p.handle_claimed(B, D, &[B, D], Vec::new()));
        assert_eq!(nids(&p, D), [B, D]);
        // A claim that is confirmed takes a NID from the node that it was of.
        p.handle_told(A, vec![A, D], Vec::new());
        assert!(p.handle_claimed(A, D, &[A, D], Vec::new()));
        assert_eq!((nids(&p, D), nids(&p, B)), (vec![A, D], vec![B]));
    }

    #[test]
    fn a_nid_whose_connections_broke_is_asked_again() {
        let mut p = found();
        assert!(p.node_of(A).unwrap().takes(OTHER_OWN, OWN));
        assert_eq!(p.handle_lost(OTHER_OWN, B).unwrap().len(), 2);
        assert_eq!((p.may_bring(B, A), p.may_bring(A, B)), (Bringing::NotYet, Bringing::Allowed));
        assert!(!p.node_of(A).unwrap().takes(OTHER_OWN, OWN) && p.node_of(A).unwrap().takes(OWN, OTHER_OWN));
        assert!(!p.handle_takes(B, Vec::new()) && p.node_of(A).unwrap().takes(OWN, OTHER_OWN), "it is not believed");
        assert_eq!(p.node_of(A).unwrap().unverified(), [B]);
        p.handle_told(B, vec![A, B], known(&[OWN, OTHER_OWN]));
        assert_eq!((p.may_bring(B, A), p.node_of(A).unwrap().takes(OTHER_OWN, OWN)), (Bringing::Allowed, true));
        // Another node has the address now.
        p.handle_lost(OTHER_OWN, B);
        p.handle_told(B, vec![B, C], Vec::new());
        assert_eq!((nids(&p, A), p.may_bring(B, A)), (vec![A], Bringing::Forbidden));
    }

    #[test]
    fn a_node_that_lost_all_connections_may_have_been_restarted() {
        let mut p = found();
        p.handle_lost(OWN, A);
        p.handle_lost(OTHER_OWN, B);
        assert!(!p.node_of(A).unwrap().takes(OTHER_OWN, OWN));
        // Another node may have B's address now, and says what the former one has said.
        assert!(p.handle_told(B, vec![A, B], Vec::new()));
        assert_eq!((nids(&p, B), p.may_bring(B, A), p.node_of(A).is_none()), (vec![B], Bringing::Forbidden, true));
        assert!(p.is_named(A), "it is to be asked");
        assert!(!p.handle_claimed(B, A, &[A], Vec::new()));
        assert_eq!(p.may_bring(B, A), Bringing::Forbidden);
        // A answers as well, so B belongs to the same node as before.
        assert!(p.handle_told(A, vec![A, B], Vec::new()) && !p.handle_told(A, vec![A, B], Vec::new()));
        assert!(p.handle_claimed(A, B, &[A, B], Vec::new()));
        assert_eq!((nids(&p, B), p.may_bring(B, A)), (vec![A, B], Bringing::Allowed));
    }

    #[test]
    fn a_peer_with_one_nid_may_know_several_of_this_node() {
        let mut p = peers();
        p.handle_told(A, vec![A], Vec::new());
        assert!(p.node_of(A).is_none(), "nothing is to be known of it");
        p.handle_told(A, vec![A], known(&[OWN, OTHER_OWN]));
        assert!(p.node_of(A).unwrap().takes(OTHER_OWN, OWN));
        assert!(p.handle_takes(A, known(&[OWN])) && !p.handle_takes(A, known(&[OWN])));
        assert!(!p.node_of(A).unwrap().takes(OTHER_OWN, OWN));
    }

    #[test]
    fn an_administrators_word_counts_without_an_answer() {
        let mut p = peers();
        p.configure(A, &[B]).unwrap();
        assert_eq!((nids(&p, B), p.may_bring(B, A)), (vec![A, B], Bringing::Allowed));
        assert_eq!(p.configure(C, &[B]), Err(PeerError::Other(B, A)));
        p.handle_told(C, vec![C, B], Vec::new());
        assert!(!p.handle_claimed(C, B, &[C, B], Vec::new()), "not even by its own word");
        p.handle_lost(OWN, B);
        assert_eq!(p.may_bring(B, A), Bringing::NotYet);
        p.handle_told(B, vec![B], Vec::new());
        assert_eq!((nids(&p, A), p.may_bring(B, A)), (vec![A, B], Bringing::Allowed), "it answers again");
        assert_eq!(p.forget(A, &[A]), Err(PeerError::Primary(A)));
        assert_eq!(p.forget(A, &[D]), Err(PeerError::Missing(D)));
        p.forget(A, &[B]).unwrap();
        assert_eq!((nids(&p, A), nids(&p, B)), (vec![A], vec![]));
        p.forget(A, &[]).unwrap();
        assert_eq!(p.forget(A, &[]), Err(PeerError::Missing(A)));
        let many: Vec<Nid> = (100..130).map(Nid::sim).collect();
        assert_eq!(p.configure(A, &many), Err(PeerError::Many));
    }

    #[test]
    fn two_networks_between_the_same_addresses_are_one_way() {
        let of = |own: &[&str], theirs: &[&str]| {
            let parse = |all: &[&str]| all.iter().map(|nid| nid.parse().unwrap()).collect::<Vec<Nid>>();
            ways(&parse(own), &parse(theirs))
        };
        assert_eq!(of(&["10.1.0.1@tcp1"], &["10.1.0.9@tcp1", "10.2.0.9@tcp2"]), 1);
        assert_eq!(of(&["10.1.0.1@tcp1", "10.2.0.1@tcp2"], &["10.1.0.9@tcp1", "10.2.0.9@tcp2"]), 2);
        assert_eq!(of(&["10.1.0.1@tcp1", "10.1.0.1:989@tcp2"], &["10.1.0.9@tcp1", "10.1.0.9:989@tcp2"]), 1);
        assert_eq!(of(&["10.1.0.1@tcp", "10.1.0.2@tcp"], &["10.1.0.8@tcp", "10.1.0.9@tcp"]), 4);
        assert_eq!(of(&["1@sim", "1@sim1"], &["2@sim", "2@sim1"]), 2);
    }

    #[test]
    fn everything_is_bounded() {
        let list = |first: u32| -> Vec<Nid> { (first..first + 1000).map(Nid::sim).collect() };
        assert_eq!(cleaned(list(1)).len(), PEER_NIDS_MAX);
        assert_eq!(cleaned([Nid::LO, A, A, B]), [A, B]);
        let mut p = Peers::new(2);
        for n in [1, 10, 20, 30] {
            p.handle_told(Nid::sim(n), vec![Nid::sim(n), Nid::sim(n + 1)], Vec::new());
        }
        assert_eq!(p.all().count(), 2);
        p.handle_lost(OWN, Nid::sim(1));
        p.handle_told(Nid::sim(30), vec![Nid::sim(30), Nid::sim(31)], Vec::new());
        assert!(p.node_of(Nid::sim(30)).is_some() && p.node_of(Nid::sim(1)).is_none(), "one that is gone makes room");
    }

    #[test]
    fn a_peer_is_told_once_what_is_known_of_it() {
        let mut p = found();
        assert!(p.handle_pushed(A) && !p.handle_pushed(B));
        p.handle_lost(OWN, B);
        assert!(p.handle_pushed(A));
    }
}
