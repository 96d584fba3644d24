//! The ways to peers with several NIDs: messages take turns among them, and leave a way that does not work. Ties `peers`, `udsp` and
//! `select` to the node.
//!
//! A message keeps the source and the destination that it would have had without all this: upper layers know each other by
//! these NIDs, and never see that one goes another way. Only its first hop and the interface that it leaves by are chosen. The
//! receiver takes a message that comes from one NID of a node and says that it is from another only if it knows both to be of
//! one node; so a node uses a second NID of its own only after the peer has said that it does. LNet's own messages (pings and
//! news) always go to the very NID that they are for.

use crate::message::{Header, Message, Portal};
use crate::node::{ChosenWay, Interface, LnetNode, Loss};
use crate::peers::{Bringing, PeerError, PeerNode, wire};
use crate::rails::{PeerNids, Rails};
use crate::select;
use crate::udsp::{Preference, Udsp, UdspError, UdspRule};
use nacre_base::Nid;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sending: the choice of a way.
impl LnetNode {
    pub(crate) fn rails(&self) -> Option<&Rails> {
        self.rails.get().map(|rails| &**rails)
    }

    /// The interface and the NID for a message to a peer with several ways to it; none if it goes where it would go anyway.
    /// `base` is that way, with the NID that the message then comes from.
    pub(crate) fn rail_for(self: &Arc<Self>, message: &Message, base: Option<(&Interface, Nid)>) -> Option<ChosenWay> {
        let rails = self.rails()?;
        let to = message.header.destination;
        if message.header.portal == Portal::RESERVED || base.is_some_and(|(interface, _)| interface.nid == Nid::LO) {
            return None;
        }
        if rails.is_active()
            && let Some(rail) = self.choose_rail(rails, to, base.map(|(interface, _)| interface.nid), None)
        {
            return Some(rail);
        }
        if rails.asks_first.load(Ordering::Relaxed)
            && !message.is_answer
            && let Some((interface, next_hop)) = base
        {
            self.ask_first(rails, interface, next_hop, to);
        }
        None
    }

    /// Another way for a message that the way `failed` did not take.
    pub(crate) fn other_rail(&self, header: &Header, failed: (Nid, Nid)) -> Option<(Arc<Interface>, Nid)> {
        let rails = self.rails().filter(|rails| rails.is_active())?;
        let is_own = header.portal != Portal::RESERVED && self.is_local(header.source);
        let way = is_own.then(|| self.choose_rail(rails, header.destination, Some(header.source), Some(failed)))??;
        Some((way.interface, way.next_hop))
    }

    fn choose_rail(
        &self,
        rails: &Rails,
        to: Nid,
        source: Option<Nid>,
        failed: Option<(Nid, Nid)>,
    ) -> Option<ChosenWay> {
        let own = self.interfaces();
        let source_of_message;
        let mut found: Vec<(&Arc<Interface>, Nid, bool, Preference)> = Vec::new();
        {
            let state = rails.state.lock();
            let node = state.peers.node_of(to)?;
            let is_used = |nid: Nid, is_trusted: bool| is_trusted || nid == to;
            let reaches = |own: &Interface| {
                node.rails().iter().any(|rail| is_used(rail.nid, rail.is_trusted) && own.nid.reaches(rail.nid))
            };
            // The source is always the same NID, because the peer's upper layer would otherwise take this node for several.
            let source = source.or_else(|| own.iter().find(|own| reaches(own)).map(|own| own.nid))?;
            source_of_message = source;
            for interface in own.iter().filter(|interface| node.takes(interface.nid, source)) {
                for rail in node.rails() {
                    let is_way = is_used(rail.nid, rail.is_trusted) && interface.nid.reaches(rail.nid);
                    if !is_way || failed == Some((interface.nid, rail.nid)) {
                        continue;
                    }
                    let works = rail.is_trusted && state.watch.trouble(rail.nid, rail.nid.network).is_none();
                    let way = (interface, rail.nid, works, state.rules.preference(interface.nid, rail.nid));
                    let ends = wire(interface.nid, rail.nid);
                    match found.iter_mut().find(|(own, nid, ..)| wire(own.nid, *nid) == ends) {
                        None => found.push(way),
                        Some(same) if rail.nid == to => *same = way,
                        Some(_) => {}
                    }
                }
            }
        }
        if let [(only, nid, ..)] = found[..] {
            return Some(ChosenWay { interface: only.clone(), next_hop: nid, source: source_of_message });
        }
        let (now, healed_after) = (self.rt.now(), self.settings.read().gateways.max_recovery_ping_interval);
        let candidate = |(interface, nid, works, preference): &(&Arc<Interface>, Nid, bool, Preference)| {
            let mut candidate = interface.rail_candidate(*nid, now, healed_after);
            candidate.preference = *preference;
            candidate.peer_health *= u32::from(*works);
            candidate.interface_health *= u32::from(self.is_link_up(interface.nid));
            candidate
        };
        let (interface, nid, ..) = found[select::choose(found.iter().map(candidate))?];
        interface.take_turn(nid, rails.turns.fetch_add(1, Ordering::Relaxed));
        Some(ChosenWay { interface: interface.clone(), next_hop: nid, source: source_of_message })
    }

    /// This node sends something of its own to a peer that it may not have asked, over a network where peers say no HELLO.
    fn ask_first(self: &Arc<Self>, rails: &Rails, interface: &Interface, next_hop: Nid, to: Nid) {
        if next_hop != to || interface.lnd.says_hello() || !self.settings.read().discovery {
            return;
        }
        let is_new = {
            let asked = &mut rails.state.lock().asked;
            if asked.len() >= self.options.peers_max {
                asked.clear();
            }
            asked.insert(to)
        };
        if is_new && self.nids().len() > 1 {
            self.discover_later(to);
        }
    }
}

/// Receiving, and what goes wrong.
impl LnetNode {
    /// Whether a NID of a peer may bring a message of another one.
    pub(crate) fn may_bring_by_rail(&self, peer: Nid, source: Nid) -> Bringing {
        match self.rails().filter(|rails| rails.is_active()) {
            Some(rails) => rails.state.lock().peers.may_bring(peer, source),
            None => Bringing::Forbidden,
        }
    }

    /// A message was dropped, because it came from another NID than it says. Tells the peer by which NIDs it is known here: the
    /// peer may remember more than this node does, which may have been restarted.
    pub(crate) fn handle_refused_rail(self: &Arc<Self>, peer: Nid) {
        self.push_to(peer);
    }

    /// A message came from a NID.
    pub(crate) fn handle_heard_of_rail(self: &Arc<Self>, peer: Nid) {
        let Some(rails) = self.rails().filter(|rails| rails.is_active()) else { return };
        let is_back = rails.state.lock().watch.handle_heard(peer, self.rt.now());
        if is_back {
            tracing::info!("{}: {peer} is heard again", self.rt.name());
            self.ask_rail(peer);
        }
    }

    /// The connections between an interface of this node and a NID broke. Returns the NIDs of the peer if it has several, and
    /// whether it is still there.
    pub(crate) fn handle_rail_lost(&self, own: Nid, peer: Nid) -> Option<(BTreeSet<Nid>, Loss)> {
        let rails = self.rails().filter(|rails| rails.is_active())?;
        let now = self.rt.now();
        let (all, others) = rails.change(|state| {
            let all = state.peers.handle_lost(own, peer)?;
            state.watch.handle_lost(peer, now);
            let works = |nid: Nid| state.watch.trouble(nid, nid.network).is_none();
            let others = all.iter().filter(|rail| rail.nid != peer && rail.is_trusted && works(rail.nid));
            Some((all.iter().map(|rail| rail.nid).collect(), others.map(|rail| rail.nid).collect::<Vec<_>>()))
        })?;
        let interfaces = self.interfaces();
        let is_connected = |nid: &Nid| interfaces.iter().any(|own| own.nid.reaches(*nid) && own.lnd.reaches(*nid));
        let lives = others.iter().any(is_connected);
        Some((all, if lives { Loss::OnTheWay } else { Loss::Peer }))
    }

    /// A NID leaves unanswered what it was sent. If the peer answers by another, only the messages that went by this one are
    /// lost; if not, nothing can be said of the peer.
    pub(crate) fn handle_silent_rail(self: &Arc<Self>, rails: &Rails, nid: Nid) {
        let all: Option<BTreeSet<Nid>> = {
            let state = rails.state.lock();
            state.peers.node_of(nid).and_then(|node| {
                let works = |nid: Nid| state.watch.trouble(nid, nid.network).is_none();
                let lives = node.rails().iter().any(|rail| rail.nid != nid && rail.is_trusted && works(rail.nid));
                lives.then(|| node.nids().into_iter().collect())
            })
        };
        if let Some(all) = all {
            tracing::info!("{}: {nid} does not answer: its node is reached by another NID", self.rt.name());
            self.handle_lost(&all, Loss::OnTheWay);
        }
    }
}

/// An administrator's wishes.
impl LnetNode {
    pub(crate) fn add_peer(self: &Arc<Self>, primary: Nid, others: &[Nid]) -> Result<(), PeerError> {
        if let Some(own) = others.iter().chain([&primary]).find(|nid| self.is_local(**nid)) {
            return Err(PeerError::Own(*own));
        }
        let rails = self.rails_or_new();
        rails.change(|state| state.peers.configure(primary, others))?;
        self.settle(rails, primary);
        Ok(())
    }

    pub(crate) fn remove_peer(self: &Arc<Self>, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let rails = self.rails().ok_or(PeerError::Missing(primary))?;
        rails.change(|state| state.peers.forget(primary, nids))?;
        // The peer must not send from its other NIDs in the name of this one any more.
        self.push_to(primary);
        Ok(())
    }

    pub(crate) fn peer_nids(&self) -> Vec<PeerNids> {
        let Some(rails) = self.rails() else { return Vec::new() };
        let state = rails.state.lock();
        let works = |nid: Nid| state.watch.trouble(nid, nid.network).is_none();
        let describe = |node: &PeerNode| PeerNids {
            primary: node.primary(),
            nids: node.nids().into_iter().map(|nid| (nid, node.is_trusted(nid) && works(nid))).collect(),
            is_configured: node.is_configured(),
        };
        let mut all: Vec<PeerNids> = state.peers.all().map(describe).collect();
        all.sort_by_key(|peer| peer.primary);
        all
    }

    pub(crate) fn change_rules(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Udsp) -> Result<(), UdspError>,
    ) -> Result<(), UdspError> {
        let rails = self.rails_or_new();
        let result = rails.change(|state| change(&mut state.rules));
        let names_gateways = rails.state.lock().rules.all().iter().any(|rule| rule.rte.is_some());
        rails.has_gateway_rules.store(names_gateways, Ordering::Relaxed);
        result
    }

    pub(crate) fn rules(&self) -> Vec<UdspRule> {
        self.rails().map_or_else(Vec::new, |rails| rails.state.lock().rules.all().to_vec())
    }
}
