//! Changes of a running node that an administrator makes: settings, interfaces, credits, faults, counters.

use crate::Lnet;
use crate::error::{LnetError, TuneError};
use crate::fault_rules::{FaultRule, FaultStatus};
use crate::lnd::{ConnectionStatus, LinkStatus, PathStatus};
use crate::message::Header;
use crate::node::LnetNode;
use crate::options::TcpTunables;
use crate::peers::PeerError;
use crate::rails::PeerNids;
use crate::settings::Settings;
use crate::tcp::check_tunables;
use crate::udsp::{UdspError, UdspRule};
use nacre_base::fault::FaultAction;
use nacre_base::{Network, Nid};
use std::collections::BTreeMap;
use std::time::Duration;

/// Why an interface cannot be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// There is no such interface.
    #[error("this node has no interface {0}")]
    Missing(Nid),
    /// Peers know the node by it.
    #[error("{0} is the NID that other nodes know this one by")]
    Primary(Nid),
    /// A route goes by a gateway that only this interface reaches.
    #[error("the route to {0} by {1} needs it")]
    Route(Network, Nid),
}

impl Lnet {
    /// The settings that can change while the node runs.
    pub fn settings(&self) -> Settings {
        *self.0.settings.read()
    }

    /// Changes these settings. They hold from now on.
    pub fn change_settings(&self, settings: Settings) {
        let before = std::mem::replace(&mut *self.0.settings.write(), settings);
        if before.lanes != settings.lanes {
            self.0.apply_lanes(settings.lanes);
        }
        self.0.apply_settings(&settings);
        self.0.apply_settings_to_rails(&settings);
    }

    /// Sets the counters that only grow to zero.
    pub fn reset_stats(&self) {
        self.0.counters.reset();
    }

    /// Closes an interface and forgets it.
    pub async fn remove_interface(&self, nid: Nid) -> Result<(), RemoveError> {
        let nids = self.0.nids();
        if !nids.contains(&nid) {
            return Err(RemoveError::Missing(nid));
        }
        if nids.first() == Some(&nid) {
            return Err(RemoveError::Primary(nid));
        }
        let others_reach = |to| nids.iter().any(|other| *other != nid && other.reaches(to));
        let routes = self.routes();
        if let Some(status) = routes.iter().find(|status| !others_reach(status.route.gateway)) {
            return Err(RemoveError::Route(status.route.network, status.route.gateway));
        }
        let interface = self.0.remove_interface(nid).ok_or(RemoveError::Missing(nid))?;
        self.0.route_off(nid);
        self.0.handle_interfaces_changed();
        interface.lnd.shutdown().await;
        // Answers on the way to this interface are lost, so the upper layers must send those requests again by another one.
        interface.peers().iter().for_each(|peer| self.0.handle_peer_down(nid, peer.primary_nid));
        Ok(())
    }

    /// Checks that this host's kernel knows what is named in the settings.
    pub fn check_tcp(tunables: &TcpTunables) -> Result<(), TuneError> {
        check_tunables(tunables)
    }

    /// Changes settings of the TCP connections on a network, those that there are and those to come. More connections to a peer are
    /// opened with the next message; fewer are used once those that there are have ended. If a setting is refused, none is changed.
    pub fn tune_tcp(&self, network: Network, change: impl Fn(&mut TcpTunables)) -> Result<(), TuneError> {
        let interfaces = self.0.interfaces().into_iter();
        interfaces.filter(|interface| interface.nid.network == network).try_for_each(|interface| {
            let Some(mut tunables) = interface.lnd.tunables() else { return Ok(()) };
            change(&mut tunables);
            interface.lnd.tune(&tunables)
        })
    }

    /// Changes the number of messages that the drivers of a network may have in hand. Returns false if this node is not on it.
    pub fn set_credits(&self, network: Network, credits: u32) -> bool {
        let interfaces = self.0.interfaces().into_iter().filter(|interface| interface.nid.network == network);
        let now = self.0.rt.now();
        interfaces.inspect(|interface| interface.set_credits(credits, now)).count() > 0
    }

    /// Changes the number of messages of each peer on a network that a router holds at most. Returns false if this node is no
    /// router.
    pub fn set_peer_buffer_credits(&self, network: Network, credits: u32) -> bool {
        self.0.set_peer_buffer_credits(network, credits)
    }

    /// Adds a rule for messages that arrive. Returns false if there are too many.
    pub fn add_fault(&self, rule: FaultRule) -> bool {
        self.0.fault_rules.get_or_init(Box::default).lock().add(rule)
    }

    /// Removes the rules that are meant. Returns how many.
    pub fn remove_faults(&self, is_meant: impl Fn(&FaultRule) -> bool) -> usize {
        self.0.fault_rules.get().map_or(0, |rules| rules.lock().remove(is_meant))
    }

    /// Forgets the counts of the rules that are meant.
    pub fn reset_faults(&self, is_meant: impl Fn(&FaultRule) -> bool) {
        if let Some(rules) = self.0.fault_rules.get() {
            rules.lock().reset(is_meant);
        }
    }

    /// The rules for messages that arrive, with their counts.
    pub fn faults(&self) -> Vec<FaultStatus> {
        self.0.fault_rules.get().map_or_else(Vec::new, |rules| rules.lock().all())
    }

    /// The peers that are known to have several NIDs, in the order of their primary NIDs.
    pub fn peers_with_nids(&self) -> Vec<PeerNids> {
        self.0.peer_nids()
    }

    /// Asks a peer, and each NID that it names, which NIDs are its own. Returns those that are, the primary one first.
    pub async fn discover(&self, nid: Nid, timeout: Duration) -> Result<Vec<Nid>, LnetError> {
        self.0.discover(nid, timeout, true).await?;
        let all = self.0.peer_nids();
        let found = all.into_iter().find(|peer| peer.nids.iter().any(|(known, _)| *known == nid));
        Ok(found.map_or_else(|| vec![nid], |peer| peer.nids.into_iter().map(|(nid, _)| nid).collect()))
    }

    /// Takes these NIDs for one node from now on, beside those of it that are known.
    pub fn add_peer(&self, primary: Nid, others: &[Nid]) -> Result<(), PeerError> {
        self.0.add_peer(primary, others)
    }

    /// Forgets some NIDs of a peer, or, if none is named, that it has several.
    pub fn remove_peer(&self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        self.0.remove_peer(primary, nids)
    }

    /// Sets the health of a NID of a peer, or of all, from 0 to 1000. Returns false if nothing is known of it.
    pub fn set_peer_health(&self, nid: Option<Nid>, health: u32) -> bool {
        let now = self.0.rt.now();
        let mut found = false;
        for interface in self.0.interfaces() {
            let all =
                nid.map_or_else(|| interface.peers().iter().map(|peer| peer.primary_nid).collect(), |nid| vec![nid]);
            all.into_iter().for_each(|nid| found |= interface.set_health(nid, health, now));
        }
        found
    }

    /// Adds a rule for the choice of ways, at the end or before the one with the index.
    pub fn add_udsp(&self, rule: UdspRule, index: Option<usize>) -> Result<(), UdspError> {
        self.0.change_rules(|rules| rules.add(rule, index))
    }

    /// Removes the rule with an index, or all.
    pub fn remove_udsp(&self, index: Option<usize>) -> Result<(), UdspError> {
        self.0.change_rules(|rules| match index {
            Some(index) => rules.remove(index),
            None => {
                rules.clear();
                Ok(())
            }
        })
    }

    /// The rules for the choice of ways, in the order of their indices.
    pub fn udsp(&self) -> Vec<UdspRule> {
        self.0.rules()
    }

    /// The open connections of all interfaces.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.0.interfaces().iter().flat_map(|interface| interface.lnd.connection_statuses()).collect()
    }

    /// The connections to a peer of each interface that has any.
    pub fn paths(&self, peer: Nid) -> Vec<PathStatus> {
        self.0.interfaces().iter().filter_map(|interface| interface.lnd.path(peer)).collect()
    }

    /// Packets and losses between this node and each of its peers, in the order of their NIDs.
    pub fn links(&self) -> Vec<LinkStatus> {
        let mut by_peer: BTreeMap<Nid, LinkStatus> = BTreeMap::new();
        for link in self.0.interfaces().iter().flat_map(|interface| interface.lnd.links()) {
            by_peer.entry(link.peer).or_insert_with(|| LinkStatus::new(link.peer)).add(&link);
        }
        by_peer.into_values().collect()
    }
}

impl LnetNode {
    /// Asks the fault rules whether a message that arrived is dropped or delayed.
    pub(crate) fn check_fault_rules(&self, header: &Header) -> Option<FaultAction> {
        self.fault_rules.get()?.lock().check(header, self.rt.now(), || self.rt.random())
    }
}
