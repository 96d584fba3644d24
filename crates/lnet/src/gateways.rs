//! Which gateways live, and which networks they reach. A sans-IO engine.
//!
//! A gateway that was sent something and has not been heard since is pinged after [`SUSPECT_AFTER`]; one that leaves a ping
//! unanswered for [`ANSWER_WITHIN`], or for twice as long as the last answer took, is dead, as is one whose connection broke.
//! So a dead gateway is left within three seconds by those who use it, unless it is far away, and one that nobody uses costs
//! a ping a minute (Lustre's `alive_router_check_interval`). A dead gateway is pinged every second, and more and more rarely,
//! up to once a minute, the longer it has been dead, until it answers. The answer names
//! the networks on which the gateway itself works, so that one whose far side is cut off is left as well, and those that it
//! reaches by other gateways, so that this holds over several hops.

use crate::frame::ToldWay;
use crate::settings::GatewayRules;
use nacre_base::{Network, Nid, SortedMap, Time};
use std::time::Duration;

/// A gateway that was sent something and stays silent for so long is pinged.
pub(crate) const SUSPECT_AFTER: Duration = Duration::from_millis(500);
/// A gateway is dead if it leaves a ping unanswered for so long.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// An interval of pings for what is watched like a gateway, but is not to be pinged while nothing is sent there.
pub(crate) const LINK_INTERVAL: Duration = Duration::from_secs(u32::MAX as u64);
/// Shortest interval between pings of a dead gateway.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// A gateway's last answer to a ping, or the same message sent unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// True while it forwards messages.
    pub(crate) routing: bool,
    /// Its networks, and whether its interface there works.
    pub(crate) networks: Box<[(Network, bool)]>,
    /// Networks that it reaches by other gateways.
    pub(crate) ways: Box<[ToldWay]>,
}

impl Told {
    fn way(&self, network: Network) -> Option<&ToldWay> {
        self.ways.iter().find(|way| way.network == network)
    }
}

/// Why a gateway is not used for a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// It does not answer.
    Dead,
    /// It does not forward messages: it was never told to, or is being stopped.
    NotRouting,
    /// Its interface on the network, or the next gateway behind it, does not work.
    FarSideDown,
}

#[derive(Debug, Default)]
struct Gateway {
    /// False once it left a ping unanswered, or lost its connection, until it is heard again.
    dead: bool,
    told: Option<Told>,
    /// Networks that it said it cannot reach, until the next answer to a ping.
    unreachable: Vec<Network>,
    /// When anything last came from it; the beginning of time before that.
    heard: Time,
    /// When the oldest message was sent to it since it was last heard.
    unanswered_since: Option<Time>,
    /// When the ping under way was sent.
    asked: Option<Time>,
    /// When it is pinged next, whatever happens.
    next: Time,
    /// How long its latest answer took.
    round_trip: Duration,
    /// When it died last.
    died: Time,
    /// Since when the pauses between its pings grow while it is dead.
    missed_since: Time,
}

/// The gateways of a node's routes.
#[derive(Debug)]
pub(crate) struct Gateways {
    all: SortedMap<Nid, Gateway>,
    /// Interval of pings of a gateway that is not in use; zero if no gateway is ever pinged.
    interval: Duration,
    rules: GatewayRules,
}

impl Gateways {
    pub(crate) fn new(interval: Duration) -> Gateways {
        Gateways { all: SortedMap::new(), interval, rules: GatewayRules::default() }
    }

    /// Gateways are judged so from now on. The next ping of each may be due earlier than before.
    pub(crate) fn set_rules(&mut self, interval: Duration, rules: GatewayRules, now: Time) {
        (self.interval, self.rules) = (interval, rules);
        for gateway in self.all.values_mut() {
            if interval.is_zero() {
                (gateway.dead, gateway.asked, gateway.unanswered_since) = (false, None, None);
                gateway.unreachable.clear();
            }
            let longest = if gateway.dead { rules.max_recovery_ping_interval } else { gateway.period(interval) };
            gateway.next = gateway.next.min(now + longest);
        }
    }

    /// A route by this gateway was added. It is pinged at once, and used until it turns out to be dead.
    pub(crate) fn add(&mut self, gateway: Nid, now: Time) {
        let next = if self.interval < Duration::from_secs(3600) { now } else { Time::FAR_FUTURE };
        let dead = self.rules.check_routers_before_use && next == now && !self.interval.is_zero();
        if self.all.get(&gateway).is_none() {
            self.all.insert(gateway, Gateway { next, dead, died: now, ..Gateway::default() });
        }
    }

    /// The last route by this gateway was removed.
    pub(crate) fn remove(&mut self, gateway: Nid) {
        self.all.remove(&gateway);
    }

    /// A message was given to a gateway.
    pub(crate) fn handle_sent(&mut self, gateway: Nid, now: Time) {
        if let Some(gateway) = self.all.get_mut(&gateway).filter(|_| !self.interval.is_zero()) {
            gateway.unanswered_since.get_or_insert(now);
        }
    }

    /// Anything came from a gateway. What it cannot reach it may still not reach. True if it was dead until now.
    pub(crate) fn handle_heard(&mut self, gateway: Nid, now: Time) -> bool {
        let Some(gateway) = self.all.get_mut(&gateway) else { return false };
        gateway.heard = now;
        gateway.unanswered_since = None;
        // It need not answer in time who has so much else to say.
        gateway.asked = None;
        std::mem::take(&mut gateway.dead)
    }

    /// The connections to a gateway broke: it is dead until it is heard again. True if it is a gateway that lived.
    pub(crate) fn handle_lost(&mut self, gateway: Nid, now: Time) -> bool {
        let (rules, is_judged) = (self.rules, !self.interval.is_zero());
        // Without pings nothing would bring a dead gateway back into use.
        let lived = self.all.get_mut(&gateway).is_some_and(|gateway| !is_judged || gateway.fail(&rules, now));
        if lived && is_judged {
            self.look_again(now);
        }
        lived
    }

    /// A gateway has died. Those that died before are asked again soon, because one that is back is needed now.
    fn look_again(&mut self, now: Time) {
        for gateway in self.all.values_mut().filter(|gateway| gateway.dead && gateway.next < Time::FAR_FUTURE) {
            gateway.missed_since = now;
            gateway.next = gateway.next.min(now + RETRY_MIN);
        }
    }

    /// A gateway said that it cannot reach a network.
    pub(crate) fn handle_unreachable(&mut self, gateway: Nid, network: Network, now: Time) {
        if let Some(gateway) = self.all.get_mut(&gateway).filter(|_| !self.interval.is_zero())
            && !gateway.unreachable.contains(&network)
        {
            gateway.unreachable.push(network);
            // Only an answer makes the network reachable again.
            gateway.next = gateway.next.min(now + RETRY_MIN);
        }
    }

    /// A ping of a gateway was answered after so long. If it had been given up by then, it is pinged once more at once: it may
    /// be far away, or only the network between may have been cut for a while.
    pub(crate) fn handle_answer(&mut self, gateway: Nid, round_trip: Duration, now: Time) {
        let Some(gateway) = self.all.get_mut(&gateway) else { return };
        let is_slower = round_trip > gateway.patience(&self.rules);
        gateway.round_trip = round_trip;
        if is_slower {
            gateway.next = now;
        }
    }

    /// A gateway said how it is, in answer to a ping or of its own accord. Returns the networks behind it to which messages may
    /// have been lost since it said so last.
    pub(crate) fn handle_told(&mut self, gateway: Nid, told: Told, now: Time) -> Vec<(Network, u32)> {
        let Some(gateway) = self.all.get_mut(&gateway) else { return Vec::new() };
        let before = gateway.told.take();
        let is_new = |way: &&ToldWay| {
            let known = before.as_ref().and_then(|before| before.way(way.network));
            // A gateway that is met for the first time names old losses.
            way.loss != 0 && before.is_some() && known.is_none_or(|known| known.loss != way.loss)
        };
        let lost = told.ways.iter().filter(is_new).map(|way| (way.network, way.loss)).collect();
        *gateway = Gateway { told: Some(told), heard: now, round_trip: gateway.round_trip, ..Gateway::default() };
        gateway.next = now + gateway.period(self.interval);
        lost
    }

    /// Why the gateway cannot be used for a network; none if it can. Nothing is known against a network that the gateway did not
    /// name.
    pub(crate) fn trouble(&self, gateway: Nid, network: Network) -> Option<Unusable> {
        let gateway = self.all.get(&gateway)?;
        if gateway.dead {
            return Some(Unusable::Dead);
        }
        if gateway.unreachable.contains(&network) {
            return Some(Unusable::FarSideDown);
        }
        let told = gateway.told.as_ref()?;
        match told.networks.iter().find(|(n, _)| *n == network) {
            _ if !told.routing => Some(Unusable::NotRouting),
            Some(_) if self.rules.is_far_side_down(told, network) => Some(Unusable::FarSideDown),
            None if told.way(network).is_some_and(|way| !way.up) => Some(Unusable::FarSideDown),
            _ => None,
        }
    }

    /// Whether nothing has come from the gateway for a while, so that it may be dead for all that is known. Where gateways are
    /// not pinged none counts as silent, because it would never have its turn again.
    pub(crate) fn is_silent(&self, gateway: Nid, now: Time) -> bool {
        !self.interval.is_zero() && self.all.get(&gateway).is_none_or(|gateway| gateway.is_silent(now))
    }

    /// A message was given to another gateway because these are silent: they are pinged, so that they have their turn again if
    /// they live. True if any of them was not to be pinged by now.
    pub(crate) fn handle_passed_over(&mut self, is_passed_over: impl Fn(Nid) -> bool, now: Time) -> bool {
        let Gateways { all, interval, .. } = self;
        let all = all.iter_mut().filter(|(_, gateway)| !interval.is_zero() && gateway.asked.is_none() && !gateway.dead);
        let silent = all.filter(|(nid, gateway)| gateway.is_silent(now) && is_passed_over(**nid));
        let mut later = silent.map(|(_, gateway)| &mut gateway.next).filter(|next| **next > now).peekable();
        let is_news = later.peek().is_some();
        later.for_each(|next| *next = now);
        is_news
    }

    /// Whether the gateway is on the network itself, as far as is known.
    pub(crate) fn is_on(&self, gateway: Nid, network: Network) -> bool {
        let told = self.all.get(&gateway).and_then(|gateway| gateway.told.as_ref());
        told.is_none_or(|told| told.networks.iter().any(|(n, _)| *n == network))
    }

    /// When the next ping is due if nothing is sent; none if a gateway owes an answer.
    pub(crate) fn quiet_until(&self) -> Option<Time> {
        if self.interval.is_zero() {
            return Some(Time::FAR_FUTURE);
        }
        let owes = |gateway: &Gateway| gateway.asked.is_some() || !gateway.dead && gateway.unanswered_since.is_some();
        let mut all = self.all.values();
        all.try_fold(Time::FAR_FUTURE, |next, gateway| (!owes(gateway)).then(|| next.min(gateway.next)))
    }

    /// When [`Gateways::handle_timer`] has something to do if nothing happens until then.
    pub(crate) fn due(&self) -> Time {
        if self.interval.is_zero() {
            return Time::FAR_FUTURE;
        }
        self.all.values().map(|gateway| gateway.due(&self.rules)).min().unwrap_or(Time::FAR_FUTURE)
    }

    /// Pings that are due, and gateways that turn out to be dead.
    pub(crate) fn handle_timer(&mut self, now: Time) -> Actions {
        let mut actions = Actions::default();
        if self.interval.is_zero() {
            return actions;
        }
        let Gateways { all, rules, .. } = self;
        for (nid, gateway) in all.iter_mut() {
            if gateway.due(rules) <= now && gateway.asked.is_some() && gateway.fail(rules, now) {
                actions.dead.push(*nid);
            }
        }
        if !actions.dead.is_empty() {
            self.look_again(now);
        }
        let Gateways { all, rules, .. } = self;
        for (nid, gateway) in all.iter_mut() {
            if gateway.due(rules) <= now {
                gateway.asked = Some(now);
                gateway.next = now + gateway.period(self.interval);
                actions.ping.push(*nid);
            }
        }
        actions
    }
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Actions {
    /// Gateways to ping.
    pub(crate) ping: Vec<Nid>,
    /// Gateways that have just been found dead.
    pub(crate) dead: Vec<Nid>,
}

impl GatewayRules {
    /// Whether too few of a gateway's interfaces on a network work.
    fn is_far_side_down(&self, told: &Told, network: Network) -> bool {
        let on = || told.networks.iter().filter(|(n, _)| *n == network);
        let (works, all) = (on().filter(|(_, up)| *up).count(), on().count());
        self.avoid_asym_router_failure && works * 100 < all * self.router_sensitivity as usize
    }
}

impl Gateway {
    fn is_silent(&self, now: Time) -> bool {
        now - self.heard >= SUSPECT_AFTER
    }

    /// Interval of pings while it answers: short while it cannot reach everything, and never so short that it gets nothing else.
    fn period(&self, interval: Duration) -> Duration {
        let told = self.told.as_ref();
        let reaches_all = |t: &Told| t.networks.iter().all(|(_, up)| *up) && t.ways.iter().all(|way| way.up);
        let is_whole = told.is_none_or(|t| t.routing && reaches_all(t));
        if is_whole && self.unreachable.is_empty() { interval.max(RETRY_MIN) } else { RETRY_MIN }
    }

    /// How long it may take to answer.
    fn patience(&self, rules: &GatewayRules) -> Duration {
        rules.router_ping_timeout.max(self.round_trip * 2)
    }

    /// When its ping is due, or, while one is under way, when that has failed.
    fn due(&self, rules: &GatewayRules) -> Time {
        if let Some(asked) = self.asked {
            return asked + self.patience(rules);
        }
        let suspect_at = self.unanswered_since.filter(|_| !self.dead).map(|since| since + SUSPECT_AFTER);
        suspect_at.map_or(self.next, |at| at.min(self.next))
    }

    /// True if it lived until now.
    fn fail(&mut self, rules: &GatewayRules, now: Time) -> bool {
        self.asked = None;
        self.unanswered_since = None;
        let was_dead = self.dead;
        self.dead = was_dead || rules.auto_down;
        if !was_dead {
            (self.died, self.missed_since) = (now, now);
        }
        let pause = (now.since(self.missed_since) / 4).max(RETRY_MIN);
        self.next = now + pause.min(rules.max_recovery_ping_interval);
        if !was_dead {
            return self.dead;
        }
        if !rules.recovery_limit.is_zero() && now - self.died >= rules.recovery_limit {
            self.next = Time::FAR_FUTURE;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn told(routing: bool, far_side: bool) -> Told {
        Told { routing, networks: [(Network::TCP, true), (network("tcp1"), far_side)].into(), ways: Box::default() }
    }

    #[test]
    fn a_gateway_says_what_it_reaches_by_others_and_what_may_be_lost_there() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        let distant = network("tcp2");
        let told = |up, loss| Told { ways: [ToldWay { network: distant, up, loss }].into(), ..told(true, true) };
        assert_eq!(all.handle_told(gateway, told(true, 5), at(2)), [(distant, 5)], "the network is new");
        assert_eq!(all.handle_told(gateway, told(true, 5), at(3)), [], "an old loss");
        assert_eq!((all.trouble(gateway, distant), all.is_on(gateway, distant)), (None, false));
        assert_eq!(all.handle_told(gateway, told(false, 5), at(4)), []);
        assert_eq!(all.trouble(gateway, distant), Some(Unusable::FarSideDown));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
        assert_eq!(all.handle_timer(at(1_004)).ping, [gateway], "it is asked again soon");
        assert_eq!(all.handle_told(gateway, told(true, 9), at(1_005)), [(distant, 9)], "another way, and a loss");
        assert_eq!(all.trouble(gateway, distant), None);
        let mut met = Gateways::new(INTERVAL);
        met.add(gateway, at(0));
        assert_eq!(met.handle_told(gateway, told(true, 9), at(1)), [], "whoever meets it has lost nothing");
    }

    #[test]
    fn with_no_interval_nobody_is_ever_pinged() {
        let (mut all, gateway) = (Gateways::new(Duration::ZERO), Nid::sim(1));
        all.add(gateway, at(0));
        all.handle_sent(gateway, at(0));
        all.handle_told(gateway, told(true, true), at(1));
        all.handle_sent(gateway, at(2));
        assert_eq!(all.quiet_until(), Some(Time::FAR_FUTURE));
        assert_eq!(all.handle_timer(at(1_000_000)), Actions::default());
        assert!(!all.is_silent(gateway, at(1_000_000)), "it would be passed over for ever");
        assert!(all.handle_lost(gateway, at(1_000_000)), "what was under way is sent again");
        all.handle_unreachable(gateway, network("tcp1"), at(1_000_000));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
        let mut all = known(gateway);
        all.handle_lost(gateway, at(2));
        all.set_rules(Duration::ZERO, GatewayRules::default(), at(3));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
    }

    #[test]
    fn the_watcher_may_sleep_while_no_gateway_owes_an_answer() {
        let mut all = known(Nid::sim(1));
        let next = all.quiet_until();
        assert!(next.is_some_and(|at| at < Time::FAR_FUTURE), "{next:?}");
        all.handle_sent(Nid::sim(1), at(100));
        assert_eq!(all.quiet_until(), None);
        all.handle_heard(Nid::sim(1), at(101));
        assert_eq!(all.quiet_until(), next);
    }

    /// A gateway that has answered its first ping.
    fn known(gateway: Nid) -> Gateways {
        let mut all = Gateways::new(INTERVAL);
        all.add(gateway, at(0));
        assert_eq!(all.handle_timer(at(0)), Actions { ping: vec![gateway], dead: vec![] });
        all.handle_told(gateway, told(true, true), at(1));
        all
    }

    #[test]
    fn a_gateway_is_pinged_when_its_route_is_added_and_then_once_a_minute() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        assert_eq!(all.handle_timer(at(60_000)), Actions::default());
        assert_eq!(all.handle_timer(at(60_001)).ping, [gateway]);
        assert_eq!(all.handle_timer(at(60_002)), Actions::default(), "one ping is under way");
    }

    #[test]
    fn one_that_is_sent_to_and_stays_silent_is_dead_in_two_seconds() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        all.handle_sent(gateway, at(10_000));
        all.handle_sent(gateway, at(10_400));
        assert_eq!(all.handle_timer(at(10_499)), Actions::default());
        assert_eq!(all.handle_timer(at(10_500)).ping, [gateway]);
        assert_eq!(all.trouble(gateway, network("tcp1")), None, "it is only suspected");
        assert_eq!(all.handle_timer(at(12_000)), Actions { ping: vec![], dead: vec![gateway] });
        assert_eq!(all.trouble(gateway, network("tcp1")), Some(Unusable::Dead));
        // From then on it is pinged more and more rarely.
        assert_eq!(pings(&mut all, 12_001..30_000), [13_000, 15_500, 18_250, 21_688, 25_985]);
        all.handle_told(gateway, told(true, true), at(30_000));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
    }

    /// It may be back long since, and nobody was in a hurry to ask.
    #[test]
    fn when_a_gateway_dies_those_that_died_before_are_asked_again() {
        let (first, second) = (Nid::sim(1), Nid::sim(2));
        let mut all = known(first);
        all.handle_lost(first, at(2));
        assert!(pings(&mut all, 3..300_000).len() < 20);
        all.add(second, at(300_000));
        all.handle_told(second, told(true, true), at(300_001));
        let left = all.all.get(&first).unwrap().next;
        assert!(left > at(303_000), "{left:?}");
        all.handle_lost(second, at(300_002));
        assert_eq!(all.handle_timer(at(301_002)).ping, [first, second]);
        assert_eq!(
            pings(&mut all, 301_003..310_000),
            [303_502, 306_252, 309_690],
            "and more and more rarely from then on"
        );
    }

    /// The times of all pings while nothing is heard.
    fn pings(all: &mut Gateways, millis: std::ops::Range<u64>) -> Vec<u64> {
        millis.filter(|ms| !all.handle_timer(at(*ms)).ping.is_empty()).collect()
    }

    /// A gateway with a long round trip was given up and heard again for ever.
    #[test]
    fn a_gateway_that_is_far_away_is_waited_for_once_it_is_known_to_be() {
        let (gateway, round_trip) = (Nid::sim(1), Duration::from_secs(2));
        let mut all = known(gateway);
        all.handle_sent(gateway, at(10_000));
        assert_eq!(all.handle_timer(at(10_500)).ping, [gateway]);
        assert_eq!(all.handle_timer(at(12_000)).dead, [gateway]);
        all.handle_heard(gateway, at(12_500));
        all.handle_told(gateway, told(true, true), at(12_500));
        all.handle_answer(gateway, round_trip, at(12_500));
        assert_eq!(all.handle_timer(at(12_500)).ping, [gateway], "it is asked once more");
        all.handle_told(gateway, told(true, true), at(14_500));
        all.handle_answer(gateway, round_trip, at(14_500));
        all.handle_sent(gateway, at(20_000));
        assert_eq!(all.handle_timer(at(20_500)).ping, [gateway]);
        assert_eq!(all.due(), at(24_500));
        assert_eq!(all.handle_timer(at(24_499)), Actions::default());
        assert_eq!(all.handle_timer(at(24_500)).dead, [gateway]);
    }

    /// A ping that was sent before a cut may be answered long after it. Its round trip must not delay the discovery of the next
    /// failure.
    #[test]
    fn an_answer_that_was_late_once_is_not_waited_for_again() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        all.handle_told(gateway, told(true, true), at(12_500));
        all.handle_answer(gateway, Duration::from_secs(9), at(12_500));
        assert_eq!(all.handle_timer(at(12_500)).ping, [gateway], "it is asked once more");
        all.handle_told(gateway, told(true, true), at(12_501));
        all.handle_answer(gateway, Duration::from_millis(1), at(12_501));
        all.handle_sent(gateway, at(20_000));
        assert_eq!(all.handle_timer(at(20_500)).ping, [gateway]);
        assert_eq!(all.handle_timer(at(22_000)).dead, [gateway]);
    }

    #[test]
    fn one_that_is_heard_is_not_pinged_however_much_is_sent() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        for ms in (10_000..20_000).step_by(100) {
            all.handle_sent(gateway, at(ms));
            all.handle_heard(gateway, at(ms));
            assert_eq!(all.handle_timer(at(ms)), Actions::default());
        }
    }

    #[test]
    fn a_gateway_that_is_passed_over_for_its_silence_is_pinged_once() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        assert!(!all.is_silent(gateway, at(500)) && all.is_silent(gateway, at(501)));
        assert!(!all.handle_passed_over(|_| true, at(500)), "it is not silent");
        assert!(!all.handle_passed_over(|nid| nid != gateway, at(1_000)), "another is meant");
        assert!(all.handle_passed_over(|_| true, at(1_000)));
        assert!(!all.handle_passed_over(|_| true, at(1_000)), "it is due already");
        assert_eq!(all.handle_timer(at(1_000)).ping, [gateway]);
        assert!(!all.handle_passed_over(|_| true, at(1_100)), "one ping is under way");
        all.handle_told(gateway, told(true, true), at(1_101));
        assert!(!all.is_silent(gateway, at(1_102)));
        assert!(all.is_silent(Nid::sim(2), at(0)), "nothing is known of it");
    }

    #[test]
    fn an_administrator_says_how_gateways_are_judged() {
        let (gateway, far) = (Nid::sim(1), network("tcp1"));
        let with = |rules: GatewayRules| {
            let mut all = known(gateway);
            all.set_rules(INTERVAL, rules, at(1));
            all
        };
        let default = GatewayRules::default();
        let mut all = with(GatewayRules { auto_down: false, ..default });
        assert!(!all.handle_lost(gateway, at(5)) && all.trouble(gateway, far).is_none());

        let mut all = with(GatewayRules { avoid_asym_router_failure: false, ..default });
        all.handle_told(gateway, told(true, false), at(2));
        assert_eq!(all.trouble(gateway, far), None);

        let halves = Told { networks: [(far, true), (far, false)].into(), ..told(true, true) };
        for (router_sensitivity, trouble) in [(100, Some(Unusable::FarSideDown)), (50, None)] {
            let mut all = with(GatewayRules { router_sensitivity, ..default });
            all.handle_told(gateway, halves.clone(), at(2));
            assert_eq!(all.trouble(gateway, far), trouble, "{router_sensitivity}");
        }

        let recovery_limit = Duration::from_secs(10);
        let mut all =
            with(GatewayRules { recovery_limit, max_recovery_ping_interval: Duration::from_secs(2), ..default });
        all.handle_lost(gateway, at(10_000));
        assert_eq!(pings(&mut all, 10_000..100_000), [11_000, 13_500, 16_250, 19_688], "and then no more");
        assert!(all.handle_heard(gateway, at(100_000)), "it may come back by itself");
    }

    #[test]
    fn a_lost_connection_is_death_until_it_is_heard_again() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        assert!(all.handle_lost(gateway, at(5_000)) && !all.handle_lost(gateway, at(5_001)));
        assert_eq!(all.trouble(gateway, network("tcp1")), Some(Unusable::Dead));
        all.handle_heard(gateway, at(5_002));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
        assert!(!all.handle_lost(Nid::sim(2), at(5_000)), "not a gateway");
    }

    #[test]
    fn one_whose_far_side_is_down_or_that_stops_routing_is_not_used() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        all.handle_told(gateway, told(true, false), at(2));
        assert_eq!(all.trouble(gateway, network("tcp1")), Some(Unusable::FarSideDown));
        assert_eq!(all.trouble(gateway, network("tcp2")), None, "a network behind another router");
        assert_eq!(all.handle_timer(at(1_002)).ping, [gateway], "it is asked again soon");
        all.handle_told(gateway, told(false, true), at(1_003));
        assert_eq!(all.trouble(gateway, network("tcp2")), Some(Unusable::NotRouting));
        all.handle_told(gateway, told(true, true), at(1_004));
        all.handle_unreachable(gateway, network("tcp2"), at(1_005));
        assert_eq!(all.trouble(gateway, network("tcp2")), Some(Unusable::FarSideDown));
        assert_eq!(all.trouble(gateway, network("tcp1")), None);
    }

    #[test]
    fn a_gateway_without_routes_is_forgotten() {
        let gateway = Nid::sim(1);
        let mut all = known(gateway);
        all.remove(gateway);
        assert_eq!(all.handle_timer(at(100_000)), Actions::default());
        assert!(!all.handle_lost(gateway, at(100_000)));
    }
}
