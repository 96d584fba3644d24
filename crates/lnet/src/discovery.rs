//! Discovery: finds out which NIDs a peer has, and asks those again that broke. Ties `peers`, and the watch over NIDs, to the node.
//!
//! Peers are asked when they say in their HELLO that they have several NIDs, or when this node has, and never when there is
//! only one way between the two.

use crate::error::LnetError;
use crate::frame::{KnownNid, PingInfo};
use crate::gateways::LINK_INTERVAL;
use crate::lnd::Waiter;
use crate::message::{MAX_PAYLOAD, Message, Portal};
use crate::node::{HEALTH_MAX, LnetNode, PING_MATCH_BITS, PUSH_MATCH_BITS};
use crate::peers::{cleaned, ways};
use crate::rails::{Rails, State};
use crate::settings::Settings;
use crate::watcher::Next;
use nacre_base::{Nid, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a NID that is asked in the background may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses after which a peer is asked again, some of whose NIDs did not answer. After the last it is left alone until there is
/// news of it.
const PAUSES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];
/// Peers that are asked at one time.
const ASKING_MAX: usize = 256;

impl LnetNode {
    pub(crate) fn rails_or_new(self: &Arc<Self>) -> &Rails {
        let make = || Box::new(Rails::new(&self.settings.read(), self.options.peers_max, self.rt.now()));
        let rails = self.rails.get_or_init(make);
        rails.watcher.start(&self.rt, Arc::downgrade(self), LnetNode::watch_rails);
        rails
    }

    pub(crate) fn stop_watching_rails(&self) {
        if let Some(rails) = self.rails() {
            rails.watcher.stop();
        }
    }

    pub(crate) fn apply_settings_to_rails(&self, settings: &Settings) {
        if let Some(rails) = self.rails() {
            let now = self.rt.now();
            rails.change(|state| state.watch.set_rules(LINK_INTERVAL, settings.gateways, now));
        }
    }

    /// This node has got an interface, or has lost one: peers that know several of its NIDs are told.
    pub(crate) fn handle_interfaces_changed(self: &Arc<Self>) {
        let own = self.interfaces();
        if self.rails().is_none() && own.len() < 2 {
            return;
        }
        let rails = self.rails_or_new();
        rails.asks_first.store(own.iter().any(|interface| !interface.lnd.says_hello()), Ordering::Relaxed);
        let known: Vec<Nid> = rails.state.lock().peers.all().map(|node| node.primary()).collect();
        known.into_iter().for_each(|nid| self.push_to(nid));
    }

    /// A peer introduced itself with all its NIDs, the one first that the connection is known by.
    pub(crate) fn handle_introduced(self: &Arc<Self>, nids: &[Nid]) {
        let nids = cleaned(nids.iter().copied());
        let own = self.nids();
        // Each further connection says the same.
        let is_known = |nid: Nid| {
            let rails = self.rails().filter(|rails| rails.is_active());
            rails.is_some_and(|rails| rails.state.lock().is_known(nid, &nids, &own))
        };
        if ways(&own, &nids) > 1
            && let Some(nid) = nids.first().copied()
            && !is_known(nid)
            && self.settings.read().discovery
        {
            self.discover_later(nid);
        }
    }

    /// A peer said, unasked, which NIDs it has and which of this node's it takes for one node.
    pub(crate) fn handle_pushed_rails(self: &Arc<Self>, peer: Nid, info: &PingInfo) {
        let nids = cleaned(info.nids.iter().map(|(nid, _)| *nid));
        let own = self.nids();
        let is_known = self.rails().is_some_and(|rails| rails.state.lock().peers.node_of(peer).is_some());
        if ways(&own, &nids) < 2 && !is_known || !nids.contains(&peer) {
            return;
        }
        let takes = self.own_of(info);
        let is_news = self.rails_or_new().change(|state| {
            if !is_known && nids == [peer] {
                state.peers.handle_told(peer, nids.clone(), takes);
                return false;
            }
            let takes_less = state.peers.handle_takes(peer, takes);
            takes_less || !state.is_known(peer, &nids, &own)
        });
        if is_news && self.settings.read().discovery {
            self.discover_later(peer);
        }
    }

    /// Asks a peer for its NIDs in the background, and once more if it is being asked already.
    pub(crate) fn discover_later(self: &Arc<Self>, nid: Nid) {
        let rails = self.rails_or_new();
        {
            let asking = &mut rails.state.lock().asking;
            if let Some(again) = asking.get_mut(&nid) {
                *again = true;
                return;
            }
            if asking.len() >= ASKING_MAX {
                return;
            }
            asking.insert(nid, false);
        }
        let node = self.clone();
        drop(self.rt.spawn(async move { node.discover_in_turns(nid).await }));
    }

    async fn discover_in_turns(self: Arc<Self>, nid: Nid) {
        let mut pauses = PAUSES.iter();
        loop {
            let is_complete = self.discover(nid, ASK_TIMEOUT, false).await.unwrap_or(false);
            let Some(rails) = self.rails() else { return };
            let again = rails.state.lock().asking.get_mut(&nid).is_some_and(std::mem::take);
            match pauses.next() {
                Some(pause) if (again || !is_complete) && !self.closed.load(Ordering::Relaxed) => {
                    self.rt.sleep(*pause).await;
                }
                _ => {
                    rails.state.lock().asking.remove(&nid);
                    return;
                }
            }
        }
    }

    /// Asks a peer for its NIDs, and each of these whether it is the same node; those that are reached through gateways only if
    /// `all`. Returns false if some have not answered.
    pub(crate) async fn discover(self: &Arc<Self>, nid: Nid, timeout: Duration, all: bool) -> Result<bool, LnetError> {
        let info = self.ask_info(nid, timeout).await?;
        let takes = self.own_of(&info);
        let rails = self.rails_or_new();
        let claims = rails.change(|state| {
            state.peers.handle_told(nid, cleaned(info.nids.iter().map(|(nid, _)| *nid)), takes);
            state.peers.node_of(nid).map_or_else(Vec::new, |node| node.unverified())
        });
        let is_asked = |claim: &Nid| !self.is_local(*claim) && (all || self.interface_to(*claim).is_some());
        let ask =
            |claim: Nid| (claim, self.start_get(claim, Portal::RESERVED, PING_MATCH_BITS, (0, MAX_PAYLOAD as u64)));
        let gets: Vec<_> = claims.into_iter().filter(is_asked).map(ask).collect();
        let until = self.rt.now() + timeout;
        let mut is_complete = true;
        for (claim, mut get) in gets {
            let left = until.since(self.rt.now());
            let answer = self.in_time(left, claim, get.answer()).await;
            match answer.ok().and_then(|bytes| PingInfo::decode(&bytes.to_bytes()).ok()) {
                Some(info) => {
                    let (told, takes) = (cleaned(info.nids.iter().map(|(nid, _)| *nid)), self.own_of(&info));
                    let is_its_own = rails.change(|state| state.peers.handle_claimed(nid, claim, &told, takes));
                    if !is_its_own {
                        tracing::info!("{}: {nid} says that {claim} is its own, which does not say so", self.rt.name());
                    }
                }
                None => is_complete = false,
            }
        }
        self.settle(rails, nid);
        Ok(is_complete)
    }

    /// A NID has answered: it is watched if its node has several, and the node is told if it does not know what it might.
    pub(crate) fn settle(self: &Arc<Self>, rails: &Rails, nid: Nid) {
        let (own, now) = (self.nids(), self.rt.now());
        let is_told = rails.change(|state| {
            let node = state.peers.node_of(nid);
            let nids = node.map_or_else(|| vec![nid], |node| node.nids());
            let takes = |own: Nid| node.is_some_and(|node| node.knows_own(own));
            let useful: Vec<Nid> = own.iter().copied().filter(|own| nids.iter().any(|nid| own.reaches(*nid))).collect();
            let takes_all = useful.len() < 2 || useful.into_iter().all(takes);
            if nids.len() > 1 {
                nids.iter().for_each(|nid| state.watch.add(*nid, now));
            }
            let is_news = state.peers.handle_pushed(nid);
            ways(&own, &nids) > 1 && (is_news || !takes_all)
        });
        if is_told {
            self.push_to(nid);
        }
    }

    /// The NIDs of this node that a peer takes for one node.
    fn own_of(&self, info: &PingInfo) -> Vec<KnownNid> {
        info.yours.iter().filter(|known| known.nid != Nid::LO && self.is_local(known.nid)).copied().collect()
    }

    /// NIDs of a peer, as far as this node takes several for one node.
    pub(crate) fn known_nids_of(&self, peer: Nid) -> Vec<KnownNid> {
        let Some(rails) = self.rails().filter(|rails| rails.is_active()) else { return Vec::new() };
        let nids = rails.state.lock().peers.node_of(peer).map_or_else(Vec::new, |node| node.known_nids());
        if nids.len() > 1 { nids } else { Vec::new() }
    }

    /// Tells a peer what a ping would tell it.
    pub(crate) fn push_to(self: &Arc<Self>, nid: Nid) {
        let info = self.ping_info(nid).encode();
        self.submit(Message::put(nid, Portal::RESERVED, PUSH_MATCH_BITS, info.into()), Waiter::Nobody);
    }

    /// Pings the NIDs that it is time to ping.
    fn watch_rails(self: &Arc<Self>) -> Next {
        let Some(rails) = self.rails() else { return Next::Woken(Time::FAR_FUTURE) };
        let now = self.rt.now();
        let due = {
            let State { peers, watch, .. } = &mut *rails.state.lock();
            let mut due = watch.handle_timer(now);
            // The watch over a NID began when its node had several NIDs; it may have fewer now.
            let is_rail = |nid: &Nid| peers.is_named(*nid);
            let gone: Vec<Nid> = due.ping.iter().copied().filter(|nid| !is_rail(nid)).collect();
            gone.into_iter().for_each(|nid| watch.remove(nid));
            due.ping.retain(is_rail);
            due
        };
        due.ping.into_iter().for_each(|nid| self.ask_rail(nid));
        due.dead.into_iter().for_each(|nid| self.handle_silent_rail(rails, nid));
        rails.watcher.handle_done();
        let state = rails.state.lock();
        rails.watcher.next(&state.watch, now)
    }

    /// Asks a NID of a peer with several whether it is still that node's.
    pub(crate) fn ask_rail(self: &Arc<Self>, nid: Nid) {
        let node = self.clone();
        drop(self.rt.spawn(async move {
            let asked = node.rt.now();
            let Ok(info) = node.ask_info(nid, ASK_TIMEOUT).await else { return };
            let Some(rails) = node.rails() else { return };
            let (now, takes) = (node.rt.now(), node.own_of(&info));
            let is_news = rails.change(|state| {
                state.watch.handle_answer(nid, now - asked, now);
                state.peers.handle_told(nid, cleaned(info.nids.iter().map(|(nid, _)| *nid)), takes)
                    && state.peers.node_of(nid).is_some_and(|node| !node.unverified().is_empty())
            });
            if is_news && node.settings.read().discovery {
                node.discover_later(nid);
            }
            for interface in node.interfaces() {
                interface.set_health(nid, HEALTH_MAX, now);
            }
            node.settle(rails, nid);
        }));
    }
}
