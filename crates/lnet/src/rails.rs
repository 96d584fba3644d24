//! Peers with several NIDs, in use: finds their NIDs (discovery), has messages take turns among the ways to such a peer, and
//! leaves a way that does not work. Ties the engines (`peers`, `udsp`, `select`, and `gateways` as the watch over a peer's NIDs)
//! to the node. The state is made when it is first needed, so that a node with one NID and such peers pays nothing for it.
//!
//! A message keeps the source and the destination that it would have had without all this: upper layers know each other by
//! these NIDs, and never see that one goes another way. Only its first hop and the interface that it leaves by are chosen. The
//! receiver takes a message that comes from one NID of a node and says that it is from another only if it knows both to be of
//! one node; so a node uses a second NID of its own only after the peer has said that it does.
//!
//! Peers are asked when they say in their HELLO that they have several NIDs, or when this node has, and never when there is
//! only one way between the two. LNet's own messages (pings and news) always go to the very NID that they are for.

use crate::error::LnetError;
use crate::frame::{KnownNid, PingInfo};
use crate::gateways::{Gateways, LINK_INTERVAL};
use crate::lnd::Waiter;
use crate::message::{Header, MAX_PAYLOAD, Message, Portal};
use crate::node::{HEALTH_MAX, Interface, LnetNode, Loss, PING_MATCH_BITS, PUSH_MATCH_BITS};
use crate::peers::{Bringing, PeerError, Peers, cleaned, ways, wire};
use crate::select;
use crate::settings::Settings;
use crate::udsp::{Preference, Udsp, UdspError, UdspRule};
use nacre_base::{FxHashSet, Nid, Time};
use nacre_rt::Task;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a NID that is asked in the background may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses after which a peer is asked again, some of whose NIDs did not answer. After the last it is left alone until there is
/// news of it.
const PAUSES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];
/// Peers that are asked at one time.
const ASKING_MAX: usize = 256;
/// The watch looks so often while a NID owes an answer.
const TICK: Duration = Duration::from_millis(250);

/// A node's knowledge of peers with several NIDs.
pub(crate) struct Rails {
    /// No other lock is taken while this one is held.
    state: Mutex<State>,
    /// False while no such peer is known, so that messages need not look.
    is_active: AtomicBool,
    /// Messages that had a choice of ways.
    turns: AtomicU64,
    /// Whether there are rules that name gateways.
    has_gateway_rules: AtomicBool,
    /// True if peers must be asked because a driver of this node's says no HELLO.
    asks_first: AtomicBool,
    watcher: Mutex<Option<Task>>,
    /// True while the watcher sleeps until the next ping is due, because no NID owes an answer.
    is_quiet: AtomicBool,
    /// Rung when a NID was sent something in that time.
    woken: Arc<Notify>,
}

struct State {
    peers: Peers,
    /// NIDs of peers that have several, judged like gateways: by what they leave unanswered.
    watch: Gateways,
    rules: Udsp,
    /// Peers that are being asked, and whether they must be asked once more because there was news meanwhile.
    asking: BTreeMap<Nid, bool>,
    /// Peers that were asked because this node was the first to send something.
    asked: FxHashSet<Nid>,
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

/// A way of a message.
pub(crate) struct ChosenWay {
    pub(crate) interface: Arc<Interface>,
    pub(crate) next_hop: Nid,
    /// The NID that the message says that it is from.
    pub(crate) source: Nid,
}

/// When the watch looks again.
enum Next {
    At(Time),
    /// When it is woken, or at this time if it is not.
    Woken(Time),
}

impl State {
    /// Whether a peer with these NIDs has nothing new to tell: those that this node reaches were asked.
    fn is_known(&self, peer: Nid, nids: &[Nid], own: &[Nid]) -> bool {
        let is_to_ask = |nid: &Nid| own.iter().any(|own| own.reaches(*nid));
        self.peers.node_of(peer).is_some_and(|node| node.has_told(nids) && !node.unverified().iter().any(is_to_ask))
    }
}

impl Rails {
    fn new(settings: &Settings, peers_max: usize, now: Time) -> Rails {
        let mut watch = Gateways::new(LINK_INTERVAL);
        watch.set_rules(LINK_INTERVAL, settings.gateways, now);
        let (rules, asking, asked) = Default::default();
        Rails {
            state: Mutex::new(State { peers: Peers::new(peers_max), watch, rules, asking, asked }),
            is_active: AtomicBool::new(false),
            turns: AtomicU64::new(1),
            has_gateway_rules: AtomicBool::new(false),
            asks_first: AtomicBool::new(false),
            watcher: Mutex::new(None),
            is_quiet: AtomicBool::new(false),
            woken: Arc::default(),
        }
    }

    fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Changes what is known of peers.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.is_active.store(state.peers.all().next().is_some(), Ordering::Relaxed);
        drop(state);
        self.wake();
        result
    }

    /// A message is given to a NID.
    pub(crate) fn handle_sent(&self, nid: Nid, now: Time) {
        if self.is_active() {
            self.state.lock().watch.handle_sent(nid, now);
            self.wake();
        }
    }

    /// How much an administrator prefers a gateway for messages to a NID.
    pub(crate) fn preference_of_gateway(&self, to: Nid, gateway: Nid) -> u32 {
        match self.has_gateway_rules.load(Ordering::Relaxed) {
            true => self.state.lock().rules.preference_of_gateway(to, gateway),
            false => u32::MAX,
        }
    }

    /// Wakes the watcher, because something may be due before the time that it sleeps until.
    fn wake(&self) {
        if self.is_quiet.load(Ordering::Relaxed) && self.is_quiet.swap(false, Ordering::Relaxed) {
            self.woken.notify_one();
        }
    }
}

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
            // Always the same NID, or the peer's upper layer would take this node for several.
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

    /// A message was not taken, because it came from another NID than it says. Tells the peer what it is known by: it may think
    /// that this node knows more, which may have been restarted.
    pub(crate) fn handle_refused_rail(self: &Arc<Self>, peer: Nid) {
        self.push_to(peer);
    }

    /// Anything came from a NID.
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
    fn handle_silent_rail(self: &Arc<Self>, rails: &Rails, nid: Nid) {
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

/// Discovery.
impl LnetNode {
    pub(crate) fn rails_or_new(self: &Arc<Self>) -> &Rails {
        let make = || Box::new(Rails::new(&self.settings.read(), self.options.peers_max, self.rt.now()));
        let rails = self.rails.get_or_init(make);
        let mut watcher = rails.watcher.lock();
        if watcher.is_none() && !self.rt.is_dead() {
            let node = Arc::downgrade(self);
            let (rt, woken) = (self.rt.clone(), rails.woken.clone());
            *watcher = Some(self.rt.spawn(async move {
                loop {
                    let Some(node) = node.upgrade() else { return };
                    let next = node.watch_rails();
                    drop(node);
                    match next {
                        // Without a timer, so that a simulation in which nothing can happen any more is seen to hang.
                        Next::Woken(Time::FAR_FUTURE) => woken.notified().await,
                        Next::Woken(at) => drop(rt.timeout_at(at, woken.notified()).await),
                        Next::At(at) => rt.sleep_until(at).await,
                    }
                }
            }));
        }
        rails
    }

    pub(crate) fn stop_watching_rails(&self) {
        if let Some(task) = self.rails().and_then(|rails| rails.watcher.lock().take()) {
            task.abort();
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
    fn settle(self: &Arc<Self>, rails: &Rails, nid: Nid) {
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
    fn push_to(self: &Arc<Self>, nid: Nid) {
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
            // They were NIDs of a peer with several when the watch over them began.
            let is_rail = |nid: &Nid| peers.node_of(*nid).is_some_and(|node| node.rails().len() > 1);
            let gone: Vec<Nid> = due.ping.iter().copied().filter(|nid| !is_rail(nid)).collect();
            gone.into_iter().for_each(|nid| watch.remove(nid));
            due.ping.retain(is_rail);
            due
        };
        due.ping.into_iter().for_each(|nid| self.ask_rail(nid));
        due.dead.into_iter().for_each(|nid| self.handle_silent_rail(rails, nid));
        // The flag is set before the check, so that whoever changes the watch after it, under its lock, wakes the watcher.
        rails.is_quiet.store(true, Ordering::Relaxed);
        let state = rails.state.lock();
        match state.watch.quiet_until() {
            Some(until) => Next::Woken(until),
            None => {
                rails.is_quiet.store(false, Ordering::Relaxed);
                Next::At(state.watch.due().min(now + TICK))
            }
        }
    }

    /// Asks a NID of a peer with several whether it is still that node's.
    fn ask_rail(self: &Arc<Self>, nid: Nid) {
        let node = self.clone();
        drop(self.rt.spawn(async move {
            let asked = node.rt.now();
            let Ok(info) = node.ask_info(nid, ASK_TIMEOUT).await else { return };
            let Some(rails) = node.rails() else { return };
            let (now, takes) = (node.rt.now(), node.own_of(&info));
            rails.change(|state| {
                state.peers.handle_told(nid, cleaned(info.nids.iter().map(|(nid, _)| *nid)), takes);
                state.watch.handle_answer(nid, now - asked, now);
            });
            for interface in node.interfaces() {
                interface.set_health(nid, HEALTH_MAX, now);
            }
            node.settle(rails, nid);
        }));
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
        let describe = |node: &crate::peers::PeerNode| PeerNids {
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
