//! Routes: by which gateways messages reach networks that this node has no interface on, and the choice among them. Pure
//! rules; which gateways live is `gateways`' knowledge.

use nacre_base::hash::mix64;
use nacre_base::{FxBuildHasher, Network, Nid};
use std::cmp::Reverse;
use std::hash::BuildHasher;

/// A way to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The network that it leads to.
    pub network: Network,
    /// A router on a network of this node.
    pub gateway: Nid,
    /// Number of routers on the way; `None` counts as 1, and is shown as -1.
    pub hops: Option<u8>,
    /// Of several ways those with the lowest number are taken.
    pub priority: u32,
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hops = self.hops.map_or_else(String::new, |hops| hops.to_string());
        write!(f, "{} {hops}:{} {}", self.network, self.priority, self.gateway)
    }
}

impl Route {
    /// Checks that a node on these networks, with the NIDs `own`, can use the route. A configuration for many hosts has
    /// routes that are not for this one.
    pub fn check_for(&self, networks: &[Network], own: &[Nid]) -> Result<(), RouteError> {
        if networks.contains(&self.network) || self.network == Network::LO {
            return Err(RouteError::Local(self.network));
        }
        if own.contains(&self.gateway) {
            return Err(RouteError::Itself(self.gateway));
        }
        if !networks.contains(&self.gateway.network) {
            return Err(RouteError::Gateway(self.gateway));
        }
        match self.hops {
            Some(hops) if !(1..=HOPS_MAX).contains(&hops) => Err(RouteError::Hops(hops)),
            _ => Ok(()),
        }
    }
}

/// Text that is not a route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a route such as \"tcp2 10.0.0.9@tcp1\", or \"tcp2 2:1 10.0.0.9@tcp1\" with hops and priority")]
pub struct ParseRouteError(String);

impl std::str::FromStr for Route {
    type Err = ParseRouteError;

    /// Lustre's form: `NETWORK [HOPS][:PRIORITY] GATEWAY`.
    fn from_str(text: &str) -> Result<Route, ParseRouteError> {
        let bad = || ParseRouteError(text.to_owned());
        let words: Vec<&str> = text.split_whitespace().collect();
        let (network, weight, gateway) = match words[..] {
            [network, gateway] => (network, "", gateway),
            [network, weight, gateway] => (network, weight, gateway),
            _ => return Err(bad()),
        };
        let (hops, priority) = weight.split_once(':').unwrap_or((weight, "0"));
        let hops = if hops.is_empty() { None } else { Some(hops.parse().map_err(|_| bad())?) };
        Ok(Route {
            network: network.parse().map_err(|_| bad())?,
            gateway: gateway.parse().map_err(|_| bad())?,
            hops,
            priority: priority.parse().map_err(|_| bad())?,
        })
    }
}

/// Why a route was not added or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The node has an interface there, so it needs no gateway.
    #[error("this node is on {0} itself")]
    Local(Network),
    /// The gateway cannot be reached directly.
    #[error("the gateway {0} is on none of this node's networks")]
    Gateway(Nid),
    /// The gateway is this node.
    #[error("{0} is this node itself")]
    Itself(Nid),
    /// More routers than a message may pass.
    #[error("{0} hops; a message may pass 1 to {HOPS_MAX} routers")]
    Hops(u8),
    /// There is such a route.
    #[error("there is a route to {0} by {1} already")]
    Exists(Network, Nid),
    /// There is no such route.
    #[error("there is no route to {0} by {1}")]
    Missing(Network, Nid),
}

/// The most routers that a message passes. It cuts loops: Lustre's own limit is 255, but nobody builds more than two or
/// three in a row, and the header has room for the time spent at so many.
pub const HOPS_MAX: u8 = 4;

/// What the choice needs to know of a gateway that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayState {
    /// The node that the message is for has left one unanswered that went by it.
    pub is_avoided: bool,
    /// What a rule of an administrator says of it for this node: the least is best.
    pub preference: u32,
    /// 0 to 1000.
    pub health: u32,
    /// Nothing has come from it for a while. One that was heard just now is better: the other may have died since, and whoever
    /// sends to it would have to wait until that is noticed.
    pub is_silent: bool,
    /// Bytes given to its driver and not yet done, or waiting.
    pub queued_bytes: u64,
    /// Messages that it takes at once.
    pub available_credits: i64,
    /// Messages given to it so far: the round robin among equals.
    pub sequence: u64,
}

/// What decides between two ways, in the order in which the rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The gateway by which nothing was left unanswered.
    Answered,
    /// A rule of an administrator, for the NID that the message is for.
    Preferred,
    /// The lower priority number.
    Priority,
    /// Fewer routers on the way.
    Hops,
    /// The better health.
    Health,
    /// The gateway that was heard just now.
    Heard,
    /// Fewer bytes that wait.
    QueuedBytes,
    /// More credits.
    Credits,
    /// The gateway that has got fewer messages.
    Turn,
}

impl Rule {
    /// The rule, for a person.
    pub fn why(self) -> &'static str {
        match self {
            Rule::Answered => "something sent by the others was not answered",
            Rule::Preferred => "a rule (lnetctl udsp show) prefers it for this NID",
            Rule::Priority => "its priority is lower than that of the others",
            Rule::Hops => "of those with this priority it has the fewest hops",
            Rule::Health => "of those with as many hops it has the best health",
            Rule::Heard => "of those with this health it is the one that was heard just now",
            Rule::QueuedBytes => "of equals it has the fewest bytes waiting",
            Rule::Credits => "of equals it has the most credits",
            Rule::Turn => "it is as good as the others, and it is its turn",
        }
    }
}

/// Ways are compared by this: the least is taken.
type Rank = (bool, u32, u32, u8, Reverse<u32>, bool, u64, Reverse<i64>, u64);

fn rank(route: &Route, gateway: &GatewayState) -> Rank {
    let GatewayState { is_avoided, preference, health, is_silent, queued_bytes, available_credits, sequence } =
        *gateway;
    let (hops, credits) = (route.hops.unwrap_or(1), Reverse(available_credits));
    (is_avoided, preference, route.priority, hops, Reverse(health), is_silent, queued_bytes, credits, sequence)
}

/// The first rule by which two ways differ; their turn if none.
fn deciding(a: &Rank, b: &Rank) -> Rule {
    let differ = [
        (Rule::Answered, a.0 != b.0),
        (Rule::Preferred, a.1 != b.1),
        (Rule::Priority, a.2 != b.2),
        (Rule::Hops, a.3 != b.3),
        (Rule::Health, a.4 != b.4),
        (Rule::Heard, a.5 != b.5),
        (Rule::QueuedBytes, a.6 != b.6),
        (Rule::Credits, a.7 != b.7),
    ];
    differ.into_iter().find(|(_, differs)| *differs).map_or(Rule::Turn, |(rule, _)| rule)
}

/// The routes of a node, in the order in which they were added.
#[derive(Debug, Default, Clone)]
pub(crate) struct Routes {
    all: Vec<Route>,
    /// The node's first NID when the first route was added.
    own: Option<Nid>,
}

impl Routes {
    /// Adds a route; `own` are the node's NIDs.
    pub(crate) fn add(&mut self, route: Route, own: &[Nid]) -> Result<(), RouteError> {
        let networks: Vec<Network> = own.iter().map(|nid| nid.network).collect();
        route.check_for(&networks, own)?;
        if self.find(route.network, route.gateway).is_some() {
            return Err(RouteError::Exists(route.network, route.gateway));
        }
        self.own = self.own.or(own.first().copied());
        self.all.push(route);
        Ok(())
    }

    /// Removes a route.
    pub(crate) fn remove(&mut self, network: Network, gateway: Nid) -> Result<(), RouteError> {
        let at = self.find(network, gateway).ok_or(RouteError::Missing(network, gateway))?;
        self.all.remove(at);
        Ok(())
    }

    fn find(&self, network: Network, gateway: Nid) -> Option<usize> {
        self.all.iter().position(|r| (r.network, r.gateway) == (network, gateway))
    }

    pub(crate) fn all(&self) -> &[Route] {
        &self.all
    }

    /// Whether messages may come through this node: whether it is a gateway of any route.
    pub(crate) fn has_gateway(&self, nid: Nid) -> bool {
        self.all.iter().any(|r| r.gateway == nid)
    }

    /// Whether a route to the network goes by this gateway.
    pub(crate) fn leads(&self, network: Network, gateway: Nid) -> bool {
        self.find(network, gateway).is_some()
    }

    /// Whether a route by `other` to the network has the priority and the hops of the one by `gateway`, so that it is passed over
    /// only for the state of its gateway.
    pub(crate) fn are_peers(&self, network: Network, gateway: Nid, other: Nid) -> bool {
        let cost = |by| self.find(network, by).map(|at| (self.all[at].priority, self.all[at].hops.unwrap_or(1)));
        cost(other).is_some_and(|_| cost(gateway) == cost(other))
    }

    /// The gateway for a message to a network: by priority, then hops, health (of equals one that was heard just now), bytes
    /// queued, credits, and in turns.
    /// `state` is asked for each gateway, and has none for one that cannot be used. `without` is not taken: the gateway
    /// that the message came from.
    pub(crate) fn choose(
        &self,
        network: Network,
        without: Option<Nid>,
        state: impl Fn(Nid) -> Option<GatewayState>,
    ) -> Option<Nid> {
        let ways = self.all.iter().filter(|r| r.network == network && Some(r.gateway) != without);
        let known = ways.filter_map(|route| state(route.gateway).map(|state| (route, state)));
        let best = known.min_by(|(a, state_a), (b, state_b)| {
            rank(a, state_a).cmp(&rank(b, state_b)).then_with(|| self.turn(a.gateway).cmp(&self.turn(b.gateway)))
        });
        best.map(|(route, _)| route.gateway)
    }

    /// The order of the gateways among which there is nothing to choose. It differs from node to node: thousands that start
    /// together would otherwise send their first message by the same gateway, their second by the next one, and so on.
    fn turn(&self, gateway: Nid) -> u64 {
        mix64(FxBuildHasher.hash_one((self.own, gateway)))
    }

    /// All routes to a network, the one that [`Routes::choose`] takes first, and why that one; no reason if there is nothing to
    /// choose.
    pub(crate) fn explain(
        &self,
        network: Network,
        state: impl Fn(Nid) -> Option<GatewayState>,
    ) -> (Vec<(Route, Option<GatewayState>)>, Option<Rule>) {
        let ways = self.all.iter().filter(|r| r.network == network);
        let mut ways: Vec<_> = ways.map(|route| (*route, state(route.gateway))).collect();
        let rank_of = |(route, state): &(Route, Option<GatewayState>)| state.map(|state| rank(route, &state));
        ways.sort_by_key(|way| (way.1.is_none(), rank_of(way), self.turn(way.0.gateway)));
        let why = match (ways.first().and_then(rank_of), ways.get(1).and_then(rank_of)) {
            (Some(first), Some(second)) => Some(deciding(&first, &second)),
            _ => None,
        };
        (ways, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn route(network: &str, gateway: &str, hops: Option<u8>, priority: u32) -> Route {
        Route { network: network.parse().unwrap(), gateway: nid(gateway), hops, priority }
    }

    const GOOD: GatewayState = GatewayState {
        is_avoided: false,
        preference: u32::MAX,
        health: 1000,
        is_silent: false,
        queued_bytes: 0,
        available_credits: 8,
        sequence: 0,
    };

    #[test]
    fn routes_are_written_as_lustre_writes_them() {
        let parse = |text: &str| text.parse::<Route>();
        assert_eq!(parse("o2ib 10.0.0.9@tcp"), Ok(route("o2ib", "10.0.0.9@tcp", None, 0)));
        assert_eq!(parse(" tcp2  2 10.0.0.9@tcp1 "), Ok(route("tcp2", "10.0.0.9@tcp1", Some(2), 0)));
        assert_eq!(parse("tcp2 2:7 10.0.0.9@tcp1"), Ok(route("tcp2", "10.0.0.9@tcp1", Some(2), 7)));
        assert_eq!(parse("tcp2 :7 10.0.0.9@tcp1"), Ok(route("tcp2", "10.0.0.9@tcp1", None, 7)));
        let written = ["tcp2 2:7 10.0.0.9@tcp1", "tcp2 :0 10.0.0.9@tcp1"];
        assert!(written.iter().all(|text| parse(text).unwrap().to_string() == *text));
        for bad in ["", "tcp2", "10.0.0.9@tcp1 tcp2", "tcp2 x 10.0.0.9@tcp1", "tcp2 1:2:3 10.0.0.9@tcp1", "a b c d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    /// Thousands of clients that start together sent the first message by the same gateway, and the second by the next one.
    #[test]
    fn nodes_do_not_take_equal_gateways_in_the_same_order() {
        let first_of = |client: u32| {
            let mut routes = Routes::default();
            for gateway in 11..15 {
                routes
                    .add(
                        route("o2ib", &format!("10.0.0.{gateway}@tcp"), None, 0),
                        &[nid(&format!("10.1.0.{client}@tcp"))],
                    )
                    .unwrap();
            }
            routes.choose("o2ib".parse().unwrap(), None, |_| Some(GOOD)).unwrap()
        };
        let mut times = std::collections::BTreeMap::new();
        (1..=200).for_each(|client| *times.entry(first_of(client)).or_insert(0) += 1);
        assert!(times.len() == 4 && times.values().all(|n| (30..=70).contains(n)), "{times:?}");
    }

    #[test]
    fn routes_that_make_no_sense_are_refused_with_the_reason() {
        let own = [nid("10.0.0.1@tcp"), nid("10.1.0.1@tcp1")];
        let mut routes = Routes::default();
        let mut refused = |r: Route| routes.add(r, &own).unwrap_err().to_string();
        assert_eq!(refused(route("tcp1", "10.0.0.9@tcp", None, 0)), "this node is on tcp1 itself");
        assert_eq!(
            refused(route("tcp2", "10.3.0.9@tcp3", None, 0)),
            "the gateway 10.3.0.9@tcp3 is on none of this node's networks"
        );
        assert_eq!(refused(route("tcp2", "10.0.0.1@tcp", None, 0)), "10.0.0.1@tcp is this node itself");
        assert_eq!(refused(route("tcp2", "10.0.0.9@tcp", Some(5), 0)), "5 hops; a message may pass 1 to 4 routers");
        routes.add(route("tcp2", "10.0.0.9@tcp", None, 0), &own).unwrap();
        let again = routes.add(route("tcp2", "10.0.0.9@tcp", Some(2), 1), &own);
        assert_eq!(again.unwrap_err().to_string(), "there is a route to tcp2 by 10.0.0.9@tcp already");
        assert!(routes.has_gateway(nid("10.0.0.9@tcp")) && !routes.has_gateway(nid("10.0.0.8@tcp")));
        routes.remove("tcp2".parse().unwrap(), nid("10.0.0.9@tcp")).unwrap();
        let gone = routes.remove("tcp2".parse().unwrap(), nid("10.0.0.9@tcp"));
        assert_eq!(gone.unwrap_err().to_string(), "there is no route to tcp2 by 10.0.0.9@tcp");
    }

    /// Each rule decides only among those that the rules before it leave.
    #[test]
    fn what_was_not_answered_then_priority_then_hops_then_health_then_silence_then_bytes_then_credits_then_turns() {
        let own = [nid("10.0.0.1@tcp")];
        let mut routes = Routes::default();
        let gateways = [
            ("10.0.0.10@tcp", None, 0, GatewayState { is_avoided: true, ..GOOD }),
            ("10.0.0.11@tcp", Some(1), 1, GOOD),
            ("10.0.0.12@tcp", Some(2), 0, GOOD),
            ("10.0.0.13@tcp", None, 0, GatewayState { health: 900, ..GOOD }),
            ("10.0.0.14@tcp", None, 0, GatewayState { is_silent: true, ..GOOD }),
            ("10.0.0.15@tcp", None, 0, GatewayState { queued_bytes: 1, ..GOOD }),
            ("10.0.0.16@tcp", None, 0, GatewayState { available_credits: 7, ..GOOD }),
            ("10.0.0.17@tcp", None, 0, GatewayState { sequence: 1, ..GOOD }),
            ("10.0.0.18@tcp", None, 0, GOOD),
        ];
        let states = |gateway: Nid| gateways.iter().find(|g| nid(g.0) == gateway).map(|g| g.3);
        let chosen = |routes: &Routes| routes.choose("o2ib".parse().unwrap(), None, states);
        assert_eq!(chosen(&routes), None);
        for (gateway, hops, priority, _) in gateways {
            routes.add(route("o2ib", gateway, hops, priority), &own).unwrap();
            assert_eq!(chosen(&routes), Some(nid(gateway)), "better than all before");
            let (ways, _) = routes.explain("o2ib".parse().unwrap(), states);
            assert_eq!(ways[0].0.gateway, nid(gateway), "the explanation says the same");
        }
        assert_eq!(routes.choose("o2ib1".parse().unwrap(), None, states), None);
    }

    #[test]
    fn the_explanation_names_the_rule_that_decides() {
        let own = [nid("10.0.0.1@tcp")];
        let why = |a: (Option<u8>, u32, GatewayState), b: (Option<u8>, u32, GatewayState)| {
            let mut routes = Routes::default();
            routes.add(route("o2ib", "10.0.0.11@tcp", a.0, a.1), &own).unwrap();
            routes.add(route("o2ib", "10.0.0.12@tcp", b.0, b.1), &own).unwrap();
            let state = |gateway| Some(if gateway == nid("10.0.0.11@tcp") { a.2 } else { b.2 });
            let (ways, why) = routes.explain("o2ib".parse().unwrap(), state);
            assert_eq!(ways[0].0.gateway, nid("10.0.0.12@tcp"));
            why
        };
        let good = (None, 1, GOOD);
        assert_eq!(why(good, (None, 0, GatewayState { health: 1, ..GOOD })), Some(Rule::Priority));
        assert_eq!(why((Some(2), 1, GOOD), good), Some(Rule::Hops));
        assert_eq!(why((None, 0, GatewayState { is_avoided: true, ..GOOD }), good), Some(Rule::Answered));
        assert_eq!(why((None, 1, GatewayState { health: 900, ..GOOD }), good), Some(Rule::Health));
        assert_eq!(why((None, 1, GatewayState { is_silent: true, ..GOOD }), good), Some(Rule::Heard));
        assert_eq!(why((None, 1, GatewayState { queued_bytes: 1, ..GOOD }), good), Some(Rule::QueuedBytes));
        assert_eq!(why((None, 1, GatewayState { available_credits: 1, ..GOOD }), good), Some(Rule::Credits));
        assert_eq!(why((None, 1, GatewayState { sequence: 1, ..GOOD }), good), Some(Rule::Turn));
        let mut routes = Routes::default();
        routes.add(route("o2ib", "10.0.0.11@tcp", None, 0), &own).unwrap();
        routes.add(route("o2ib", "10.0.0.12@tcp", None, 0), &own).unwrap();
        let only_second = |gateway| (gateway == nid("10.0.0.12@tcp")).then_some(GOOD);
        let (ways, why) = routes.explain("o2ib".parse().unwrap(), only_second);
        assert_eq!((ways[0].0.gateway, ways[1].1, why), (nid("10.0.0.12@tcp"), None, None));
    }

    #[test]
    fn routes_of_another_priority_or_length_are_not_passed_over_for_their_gateways() {
        let own = [nid("10.0.0.1@tcp")];
        let mut routes = Routes::default();
        let ways = [
            ("10.0.0.11@tcp", None, 0),
            ("10.0.0.12@tcp", Some(1), 0),
            ("10.0.0.13@tcp", None, 1),
            ("10.0.0.14@tcp", Some(2), 0),
        ];
        ways.iter()
            .for_each(|(gateway, hops, priority)| routes.add(route("o2ib", gateway, *hops, *priority), &own).unwrap());
        let peers = |other| routes.are_peers("o2ib".parse().unwrap(), nid("10.0.0.11@tcp"), nid(other));
        assert_eq!(ways.map(|(gateway, ..)| peers(gateway)), [true, true, false, false]);
        assert!(!peers("10.0.0.99@tcp"), "there is no such route");
    }

    #[test]
    fn gateways_without_a_state_and_the_one_that_a_message_came_from_are_not_taken() {
        let own = [nid("10.0.0.1@tcp")];
        let mut routes = Routes::default();
        for gateway in ["10.0.0.11@tcp", "10.0.0.12@tcp"] {
            routes.add(route("o2ib", gateway, None, 0), &own).unwrap();
        }
        let network = "o2ib".parse().unwrap();
        let only = |usable: &'static str| move |gateway: Nid| (gateway == nid(usable)).then_some(GOOD);
        assert_eq!(routes.choose(network, None, only("10.0.0.12@tcp")), Some(nid("10.0.0.12@tcp")));
        assert_eq!(routes.choose(network, Some(nid("10.0.0.12@tcp")), only("10.0.0.12@tcp")), None);
        assert_eq!(routes.choose(network, Some(nid("10.0.0.11@tcp")), |_| Some(GOOD)), Some(nid("10.0.0.12@tcp")));
    }
}
