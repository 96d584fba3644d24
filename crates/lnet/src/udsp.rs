//! User-defined selection policy (`lnetctl udsp`): an administrator's rules for which of several ways messages prefer. Pure.
//!
//! Rules forbid nothing: a way that no rule names is used when those that are preferred do not work. Of several rules that fit,
//! the lowest priority number counts. Rules for a pair of NIDs come first, then those for the peer's NID, then those for this
//! node's.

use nacre_base::{Network, Nid};
use std::fmt;
use std::str::FromStr;

/// Rules of a node.
const RULES_MAX: usize = 128;
/// NIDs that one part of a rule names.
const SET_MAX: usize = 1024;

/// All NIDs of a network, or some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NidSet {
    /// As the administrator wrote it.
    text: String,
    network: Network,
    /// Empty for all.
    nids: Vec<Nid>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdspRule {
    /// NIDs of this node that messages prefer to leave by.
    pub src: Option<NidSet>,
    /// NIDs of peers that messages prefer to go to; beside `rte` and `src`, the NIDs that the rule is for.
    pub dst: Option<NidSet>,
    /// Gateways that messages to `dst` prefer.
    pub rte: Option<NidSet>,
    /// Of several rules that fit, the one with the lowest number counts.
    pub priority: u32,
}

/// Why a rule is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UdspError {
    /// The text names neither a network nor NIDs.
    #[error("{0:?} is neither a network such as tcp1 nor NIDs such as 10.1.0.7@tcp1")]
    Set(String),
    /// The text names too many NIDs.
    #[error("{0:?} names more than {SET_MAX} NIDs")]
    Many(String),
    /// The rule says nothing that can be carried out.
    #[error("a rule has src, dst, both, or dst and rte")]
    Parts,
    /// There are too many rules.
    #[error("there are {RULES_MAX} rules already")]
    Full,
    /// There is such a rule.
    #[error("rule {0} says the same")]
    Exists(usize),
    /// There is no such rule.
    #[error("there is no rule {0}")]
    Missing(usize),
}

/// How much the rules prefer a way: the least is best.
pub(crate) type Preference = (u32, u32, u32);

/// The preference of a way that no rule names.
pub(crate) const INDIFFERENT: Preference = (u32::MAX, u32::MAX, u32::MAX);

/// The rules of a node. The place of a rule is its index.
#[derive(Debug, Default, Clone)]
pub(crate) struct Udsp(Vec<UdspRule>);

impl NidSet {
    /// The set that `text` stands for, which was expanded to these NIDs.
    pub fn of(text: &str, nids: Vec<Nid>) -> Result<NidSet, UdspError> {
        let bad = || UdspError::Set(text.to_owned());
        let network = nids.first().ok_or_else(bad)?.network;
        match () {
            () if nids.iter().any(|nid| nid.network != network) => Err(bad()),
            () if nids.len() > SET_MAX => Err(UdspError::Many(text.to_owned())),
            () => Ok(NidSet { text: text.to_owned(), network, nids }),
        }
    }

    /// Whether a NID is in it.
    pub fn includes(&self, nid: Nid) -> bool {
        nid.network == self.network && (self.nids.is_empty() || self.nids.contains(&nid))
    }
}

impl FromStr for NidSet {
    type Err = UdspError;

    /// A network, `*@NETWORK`, or a NID.
    fn from_str(text: &str) -> Result<NidSet, UdspError> {
        let whole = text.strip_prefix("*@").unwrap_or(text);
        if let Ok(network) = whole.parse() {
            return Ok(NidSet { text: text.to_owned(), network, nids: Vec::new() });
        }
        NidSet::of(text, vec![text.parse().map_err(|_| UdspError::Set(text.to_owned()))?])
    }
}

impl fmt::Display for NidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl UdspRule {
    fn check(&self) -> Result<(), UdspError> {
        match (&self.src, &self.dst, &self.rte) {
            (Some(_), _, None) | (None, Some(_), _) => Ok(()),
            _ => Err(UdspError::Parts),
        }
    }

    fn is_for(set: &Option<NidSet>, nid: Nid) -> bool {
        set.as_ref().is_some_and(|set| set.includes(nid))
    }
}

impl Udsp {
    pub(crate) fn all(&self) -> &[UdspRule] {
        &self.0
    }

    /// Adds a rule, at the end or before the one that has the index.
    pub(crate) fn add(&mut self, rule: UdspRule, index: Option<usize>) -> Result<(), UdspError> {
        rule.check()?;
        if let Some(same) = self.0.iter().position(|other| *other == rule) {
            return Err(UdspError::Exists(same));
        }
        if self.0.len() >= RULES_MAX {
            return Err(UdspError::Full);
        }
        self.0.insert(index.unwrap_or(usize::MAX).min(self.0.len()), rule);
        Ok(())
    }

    pub(crate) fn remove(&mut self, index: usize) -> Result<(), UdspError> {
        if index >= self.0.len() {
            return Err(UdspError::Missing(index));
        }
        self.0.remove(index);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// How much messages prefer to leave by the interface `own` to the NID `to` of a peer.
    pub(crate) fn preference(&self, own: Nid, to: Nid) -> Preference {
        let least = |is_meant: &dyn Fn(&UdspRule) -> bool| {
            self.0.iter().filter(|rule| rule.rte.is_none() && is_meant(rule)).map(|rule| rule.priority).min()
        };
        let (is_src, is_dst) =
            (|rule: &UdspRule| UdspRule::is_for(&rule.src, own), |rule: &UdspRule| UdspRule::is_for(&rule.dst, to));
        let pair = least(&|rule| is_src(rule) && is_dst(rule));
        let dst = least(&|rule| rule.src.is_none() && is_dst(rule));
        let src = least(&|rule| rule.dst.is_none() && is_src(rule));
        let or_last = |priority: Option<u32>| priority.unwrap_or(u32::MAX);
        (or_last(pair), or_last(dst), or_last(src))
    }

    /// How much messages to the NID `to` prefer a gateway.
    pub(crate) fn preference_of_gateway(&self, to: Nid, gateway: Nid) -> u32 {
        let is_meant = |rule: &&UdspRule| UdspRule::is_for(&rule.dst, to) && UdspRule::is_for(&rule.rte, gateway);
        self.0.iter().filter(is_meant).map(|rule| rule.priority).min().unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn rule(src: &str, dst: &str, rte: &str, priority: u32) -> UdspRule {
        let set = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        UdspRule { src: set(src), dst: set(dst), rte: set(rte), priority }
    }

    #[test]
    fn sets_are_networks_or_nids() {
        let includes = |set: &str, of: &str| set.parse::<NidSet>().unwrap().includes(nid(of));
        assert!(includes("tcp1", "10.0.0.1@tcp1") && includes("*@tcp1", "10.0.0.1@tcp1"));
        assert!(!includes("tcp1", "10.0.0.1@tcp") && includes("tcp", "10.0.0.1@tcp"));
        assert!(includes("10.0.0.1@tcp", "10.0.0.1@tcp") && !includes("10.0.0.1@tcp", "10.0.0.2@tcp"));
        let some = NidSet::of("10.0.0.[1-2]@tcp", vec![nid("10.0.0.1@tcp"), nid("10.0.0.2@tcp")]).unwrap();
        assert!(some.includes(nid("10.0.0.2@tcp")) && !some.includes(nid("10.0.0.3@tcp")));
        assert_eq!(some.to_string(), "10.0.0.[1-2]@tcp");
        for bad in ["", "*", "10.0.0.1@", "eth0@tcp"] {
            assert!(bad.parse::<NidSet>().is_err(), "{bad}");
        }
        assert!(NidSet::of("x", vec![nid("10.0.0.1@tcp"), nid("10.0.0.1@tcp1")]).is_err());
        assert!(NidSet::of("x", vec![nid("10.0.0.1@tcp"); SET_MAX + 1]).is_err());
    }

    #[test]
    fn pairs_come_before_peers_and_peers_before_interfaces() {
        let mut udsp = Udsp::default();
        let (own, other) = (nid("10.1.0.1@tcp1"), nid("10.2.0.1@tcp2"));
        let (near, far) = (nid("10.1.0.9@tcp1"), nid("10.2.0.9@tcp2"));
        assert_eq!(udsp.preference(own, near), INDIFFERENT);
        udsp.add(rule("tcp1", "", "", 0), None).unwrap();
        udsp.add(rule("", "tcp2", "", 7), None).unwrap();
        assert!(udsp.preference(other, far) < udsp.preference(own, near), "the peer's NID decides first");
        udsp.add(rule("10.1.0.1@tcp1", "10.1.0.9@tcp1", "", 9), None).unwrap();
        assert!(udsp.preference(own, near) < udsp.preference(other, far));
        udsp.add(rule("", "tcp2", "", 3), None).unwrap();
        assert_eq!(udsp.preference(other, far), (u32::MAX, 3, u32::MAX), "the lower number counts");
    }

    #[test]
    fn gateways_are_preferred_for_some_nids() {
        let mut udsp = Udsp::default();
        udsp.add(rule("", "10.2.0.9@tcp2", "10.1.0.11@tcp1", 0), None).unwrap();
        let of = |to, gateway| udsp.preference_of_gateway(nid(to), nid(gateway));
        assert_eq!(of("10.2.0.9@tcp2", "10.1.0.11@tcp1"), 0);
        assert_eq!(
            (of("10.2.0.9@tcp2", "10.1.0.12@tcp1"), of("10.2.0.8@tcp2", "10.1.0.11@tcp1")),
            (u32::MAX, u32::MAX)
        );
        assert_eq!(
            udsp.preference(nid("10.1.0.1@tcp1"), nid("10.2.0.9@tcp2")),
            INDIFFERENT,
            "it is about gateways only"
        );
    }

    #[test]
    fn rules_have_places_and_bounds() {
        let mut udsp = Udsp::default();
        udsp.add(rule("", "tcp", "", 0), None).unwrap();
        udsp.add(rule("", "tcp1", "", 0), Some(0)).unwrap();
        udsp.add(rule("", "tcp2", "", 0), Some(99)).unwrap();
        let all = |udsp: &Udsp| udsp.all().iter().map(|r| r.dst.as_ref().unwrap().to_string()).collect::<Vec<_>>();
        assert_eq!(all(&udsp), ["tcp1", "tcp", "tcp2"]);
        assert_eq!(udsp.add(rule("", "tcp", "", 0), None), Err(UdspError::Exists(1)));
        assert_eq!(udsp.remove(3), Err(UdspError::Missing(3)));
        udsp.remove(1).unwrap();
        assert_eq!(all(&udsp), ["tcp1", "tcp2"]);
        for bad in [rule("", "", "", 0), rule("", "", "10.0.0.1@tcp", 0), rule("tcp", "tcp1", "10.0.0.1@tcp", 0)] {
            assert_eq!(udsp.add(bad, None), Err(UdspError::Parts));
        }
        for n in 0..RULES_MAX as u32 - 2 {
            udsp.add(rule("", "tcp", "", n), None).unwrap();
        }
        assert_eq!(udsp.add(rule("", "tcp", "", 999), None), Err(UdspError::Full));
        udsp.clear();
        assert!(udsp.all().is_empty());
    }
}
