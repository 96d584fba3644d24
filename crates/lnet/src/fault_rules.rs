//! Faults of the network that `lnetctl fault` asks for: messages between chosen nodes that are dropped or delayed when they
//! arrive at this node. A sans-IO engine; [`nacre_base::Faults`] has the fault points that tests of this code arm.

use crate::message::{Header, Kind, Portal};
use nacre_base::fault::FaultAction;
use nacre_base::{Network, Nid, Time};
use std::time::Duration;

/// The nodes that a rule is about: `*`, `*@tcp1`, or a NID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// All.
    All,
    /// All nodes on a network.
    On(Network),
    /// The one with this NID.
    One(Nid),
}

impl Nodes {
    fn include(self, nid: Nid) -> bool {
        match self {
            Nodes::All => true,
            Nodes::On(network) => nid.network == network,
            Nodes::One(one) => nid == one,
        }
    }
}

impl std::str::FromStr for Nodes {
    type Err = String;
    fn from_str(text: &str) -> Result<Nodes, String> {
        match text.split_once('@') {
            None if text == "*" => Ok(Nodes::All),
            Some(("*", network)) => network.parse().map(Nodes::On).map_err(|e| format!("{e}")),
            _ => text.parse().map(Nodes::One).map_err(|e| format!("{e}; \"*\" and \"*@tcp1\" name several nodes")),
        }
    }
}

impl std::fmt::Display for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Nodes::All => f.write_str("*"),
            Nodes::On(network) => write!(f, "*@{network}"),
            Nodes::One(nid) => nid.fmt(f),
        }
    }
}

/// The fate of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// It is dropped in silence.
    Drop,
    /// It is handled so much later.
    Delay(Duration),
}

/// Which of the messages are struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Often {
    /// One in so many, by chance.
    OneIn(u32),
    /// One in each interval.
    Every(Duration),
}

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultRule {
    /// The nodes that the messages are from.
    pub source: Nodes,
    /// The nodes that they are for.
    pub destination: Nodes,
    /// The portal that they are for; all if none.
    pub portal: Option<u32>,
    /// `PUT`, `GET`, `REPLY` or `ACK`; all if none.
    pub message: Option<&'static str>,
    /// The fate of the messages that the rule is for.
    pub effect: FaultEffect,
    /// The share of those messages that it befalls.
    pub often: Often,
}

impl FaultRule {
    /// Names of the kinds of messages.
    pub const MESSAGES: [&'static str; 4] = ["ACK", "PUT", "GET", "REPLY"];

    fn fits(&self, header: &Header) -> bool {
        let kind = match header.kind {
            Kind::Ack => "ACK",
            Kind::Put => "PUT",
            Kind::Get => "GET",
            Kind::Reply => "REPLY",
        };
        self.source.include(header.source)
            && self.destination.include(header.destination)
            && self.portal.is_none_or(|portal| header.portal == Portal(portal))
            && self.message.is_none_or(|message| message == kind)
    }
}

/// A rule with its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultStatus {
    /// The rule.
    pub rule: FaultRule,
    /// Messages that it is about.
    pub matched: u64,
    /// Messages that it has struck.
    pub struck: u64,
}

/// The rules of a node.
#[derive(Debug, Default)]
pub(crate) struct FaultRules(Vec<(FaultStatus, Time)>);

/// A node has at most so many rules.
const RULES_MAX: usize = 1024;

impl FaultRules {
    /// Adds a rule. Returns false if there are too many.
    pub(crate) fn add(&mut self, rule: FaultRule) -> bool {
        let has_room = self.0.len() < RULES_MAX;
        if has_room {
            self.0.push((FaultStatus { rule, matched: 0, struck: 0 }, Time::ZERO));
        }
        has_room
    }

    /// Removes the rules that are meant. Returns how many.
    pub(crate) fn remove(&mut self, is_meant: impl Fn(&FaultRule) -> bool) -> usize {
        let before = self.0.len();
        self.0.retain(|(status, _)| !is_meant(&status.rule));
        before - self.0.len()
    }

    /// Forgets the counts of the rules that are meant.
    pub(crate) fn reset(&mut self, is_meant: impl Fn(&FaultRule) -> bool) {
        for (status, next) in self.0.iter_mut().filter(|(status, _)| is_meant(&status.rule)) {
            (status.matched, status.struck, *next) = (0, 0, Time::ZERO);
        }
    }

    pub(crate) fn all(&self) -> Vec<FaultStatus> {
        self.0.iter().map(|(status, _)| *status).collect()
    }

    /// A message arrived: what is to happen to it. The first rule that strikes decides.
    pub(crate) fn check(&mut self, header: &Header, now: Time, random: impl Fn() -> u64) -> Option<FaultAction> {
        for (status, next) in self.0.iter_mut().filter(|(status, _)| status.rule.fits(header)) {
            status.matched += 1;
            let strikes = match status.rule.often {
                Often::OneIn(count) => random().is_multiple_of(u64::from(count.max(1))),
                Often::Every(interval) => {
                    let is_due = now >= *next;
                    *next = if is_due { now + interval } else { *next };
                    is_due
                }
            };
            if strikes {
                status.struck += 1;
                return Some(match status.rule.effect {
                    FaultEffect::Drop => FaultAction::Drop,
                    FaultEffect::Delay(time) => FaultAction::Delay(time),
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    fn header(source: Nid, destination: Nid, portal: u32) -> Header {
        let header = Message::put(destination, Portal(portal), 0, Default::default()).header;
        Header { source, ..header }
    }

    fn rule(source: &str, destination: &str, effect: FaultEffect, often: Often) -> FaultRule {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        FaultRule { source, destination, portal: None, message: None, effect, often }
    }

    #[test]
    fn a_rule_strikes_the_messages_that_it_is_about() {
        let (a, b) = (Nid::sim(1), Nid::sim(2));
        let mut rules = FaultRules::default();
        rules.add(rule("1@sim", "*@sim", FaultEffect::Drop, Often::OneIn(1)));
        let mut check = |header| rules.check(&header, Time::ZERO, || 7);
        assert_eq!(check(header(a, b, 3)), Some(FaultAction::Drop));
        assert_eq!(check(header(b, a, 3)), None);
        assert_eq!(check(header(a, "10.0.0.1@tcp".parse().unwrap(), 3)), None);
        assert_eq!(rules.all().iter().map(|s| (s.matched, s.struck)).collect::<Vec<_>>(), [(1, 1)]);
        rules.reset(|_| true);
        assert_eq!(rules.all()[0].matched, 0);
        assert_eq!((rules.remove(|rule| rule.effect == FaultEffect::Drop), rules.all()), (1, vec![]));
    }

    #[test]
    fn portal_and_kind_narrow_a_rule() {
        let (a, b) = (Nid::sim(1), Nid::sim(2));
        let narrow = |portal, message| {
            let mut rules = FaultRules::default();
            rules.add(FaultRule { portal, message, ..rule("*", "*", FaultEffect::Drop, Often::OneIn(1)) });
            rules.check(&header(a, b, 3), Time::ZERO, || 0).is_some()
        };
        assert!(narrow(None, None) && narrow(Some(3), Some("PUT")));
        assert!(!narrow(Some(4), None) && !narrow(None, Some("GET")));
    }

    #[test]
    fn one_in_so_many_by_chance_or_one_in_each_interval() {
        let (a, b) = (Nid::sim(1), Nid::sim(2));
        let mut rules = FaultRules::default();
        rules.add(rule("*", "*", FaultEffect::Drop, Often::OneIn(4)));
        let struck = (0..8).filter(|n| rules.check(&header(a, b, 3), Time::ZERO, || *n).is_some()).count();
        assert_eq!(struck, 2);
        let mut rules = FaultRules::default();
        let late = FaultEffect::Delay(Duration::from_millis(30));
        rules.add(rule("*", "*", late, Often::Every(Duration::from_secs(1))));
        let mut at = |ms| rules.check(&header(a, b, 3), Time::ZERO + Duration::from_millis(ms), || 0);
        let delay = Some(FaultAction::Delay(Duration::from_millis(30)));
        assert_eq!([at(0), at(999), at(1000), at(1500)], [delay, None, delay, None]);
    }

    #[test]
    fn nodes_are_all_or_those_of_a_network_or_one() {
        for text in ["*", "*@tcp1", "10.0.0.1@tcp1"] {
            assert_eq!(text.parse::<Nodes>().unwrap().to_string(), text);
        }
        for bad in ["", "10.0.*@tcp", "*@", "*@nowhere"] {
            assert!(bad.parse::<Nodes>().is_err(), "{bad}");
        }
    }
}
