//! The state of peers with several NIDs. It holds the engines (`peers`, `udsp`, and `gateways` as the watch over a peer's NIDs) and
//! the flags that each message looks at first. A node makes it when it first needs it, so a node with one NID whose peers have
//! one NID each pays nothing. `ways` chooses ways for messages by it, and `discovery` finds the NIDs.

use crate::gateways::{Gateways, LINK_INTERVAL};
use crate::peers::Peers;
use crate::settings::Settings;
use crate::udsp::Udsp;
use crate::watcher::Watcher;
use nacre_base::{FxHashSet, Nid, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A node's knowledge of peers with several NIDs.
pub(crate) struct Rails {
    /// No other lock is taken while this one is held.
    pub(crate) state: Mutex<State>,
    /// False while no such peer is known, so that messages need not look.
    is_active: AtomicBool,
    /// Messages that had a choice of ways.
    pub(crate) turns: AtomicU64,
    /// Whether there are rules that name gateways.
    pub(crate) has_gateway_rules: AtomicBool,
    /// True if peers must be asked because a driver of this node's says no HELLO.
    pub(crate) asks_first: AtomicBool,
    pub(crate) watcher: Watcher,
}

pub(crate) struct State {
    pub(crate) peers: Peers,
    /// NIDs of peers that have several, judged like gateways: by what they leave unanswered.
    pub(crate) watch: Gateways,
    pub(crate) rules: Udsp,
    /// Peers that are being asked, and whether they must be asked once more because there was news meanwhile.
    pub(crate) asking: BTreeMap<Nid, bool>,
    /// Peers that were asked because this node was the first to send something.
    pub(crate) asked: FxHashSet<Nid>,
}

/// A peer with several NIDs, as `lnetctl peer show` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerNids {
    /// The NID that it is known by.
    pub primary: Nid,
    /// Its NIDs, the primary one first, and whether each is in use.
    pub nids: Vec<(Nid, bool)>,
    /// True if an administrator has named them.
    pub is_configured: bool,
}

impl State {
    /// Whether a peer with these NIDs has nothing new to tell: those that this node reaches were asked.
    pub(crate) fn is_known(&self, peer: Nid, nids: &[Nid], own: &[Nid]) -> bool {
        let is_to_ask = |nid: &Nid| own.iter().any(|own| own.reaches(*nid));
        self.peers.node_of(peer).is_some_and(|node| node.has_told(nids) && !node.unverified().iter().any(is_to_ask))
    }
}

impl Rails {
    pub(crate) fn new(settings: &Settings, peers_max: usize, now: Time) -> Rails {
        let mut watch = Gateways::new(LINK_INTERVAL);
        watch.set_rules(LINK_INTERVAL, settings.gateways, now);
        let (rules, asking, asked) = Default::default();
        Rails {
            state: Mutex::new(State { peers: Peers::new(peers_max), watch, rules, asking, asked }),
            is_active: AtomicBool::new(false),
            turns: AtomicU64::new(1),
            has_gateway_rules: AtomicBool::new(false),
            asks_first: AtomicBool::new(false),
            watcher: Watcher::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Changes what is known of peers.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.is_active.store(state.peers.all().next().is_some(), Ordering::Relaxed);
        drop(state);
        self.watcher.wake();
        result
    }

    /// A message is given to a NID.
    pub(crate) fn handle_sent(&self, nid: Nid, now: Time) {
        if self.is_active() {
            self.state.lock().watch.handle_sent(nid, now);
            self.watcher.wake();
        }
    }

    /// How much an administrator prefers a gateway for messages to a NID.
    pub(crate) fn preference_of_gateway(&self, to: Nid, gateway: Nid) -> u32 {
        match self.has_gateway_rules.load(Ordering::Relaxed) {
            true => self.state.lock().rules.preference_of_gateway(to, gateway),
            false => u32::MAX,
        }
    }
}
