//! Peers with several NIDs, and rules for the choice among them, as an administrator names them: `lnetctl peer`, `lnetctl
//! udsp`, and the sections `peer` and `udsp` of lnet.conf.

use super::patterns::expand;
use crate::routing::Refusal;
use nacre_base::{Errno, Nid};
use nacre_lnet::{Lnet, NidSet, PeerError, UdspError, UdspRule};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A peer as an administrator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The NID that it is known by.
    pub primary: Nid,
    /// Its other NIDs.
    pub others: Vec<Nid>,
}

/// A peer as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedPeer {
    /// The NID that it is known by.
    pub primary: String,
    /// Other NIDs: several with commas between them, or with numbers in brackets.
    pub nids: Vec<String>,
}

/// A rule as it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskedUdsp {
    /// Interfaces of this node: a network or NIDs.
    pub src: Option<String>,
    /// NIDs of peers.
    pub dst: Option<String>,
    /// Gateways.
    pub rte: Option<String>,
    /// Of several rules that fit, the one with the lowest number counts.
    pub priority: Option<u32>,
    /// The place of the rule among the others; the end if none is named.
    pub index: Option<usize>,
}

/// Changes the rules, or lists them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UdspTask {
    /// Adds one.
    Add(AskedUdsp),
    /// Removes the one with an index, or all.
    Remove(Option<usize>),
    /// Lists them.
    List,
}

impl AskedPeer {
    /// The peer that is meant.
    pub fn check(&self) -> Result<Peer, String> {
        let primary = self.primary.parse().map_err(|e| format!("{e}"))?;
        let mut others = Vec::new();
        for text in &self.nids {
            for nid in nids_of(text)? {
                if nid != primary && !others.contains(&nid) {
                    others.push(nid);
                }
            }
        }
        Ok(Peer { primary, others })
    }
}

impl AskedUdsp {
    /// The rule that is meant.
    pub fn check(&self) -> Result<UdspRule, String> {
        let set = |text: &Option<String>| text.as_deref().map(nid_set).transpose();
        let (src, dst, rte) = (set(&self.src)?, set(&self.dst)?, set(&self.rte)?);
        Ok(UdspRule { src, dst, rte, priority: self.priority.unwrap_or(0) })
    }
}

/// `10.1.0.1@tcp,10.1.0.[3-4]@tcp`: all NIDs that are named. A comma within brackets belongs to the numbers.
fn nids_of(text: &str) -> Result<Vec<Nid>, String> {
    let mut depth = 0;
    let is_between = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    };
    let mut all = Vec::new();
    for part in text.split(is_between).map(str::trim).filter(|part| !part.is_empty()) {
        for nid in expand(part)? {
            all.push(nid.parse().map_err(|e| format!("{e}"))?);
        }
    }
    Ok(all)
}

/// A network, or NIDs.
fn nid_set(text: &str) -> Result<NidSet, String> {
    if let Ok(set) = text.parse() {
        return Ok(set);
    }
    let nids = nids_of(text).map_err(|_| UdspError::Set(text.to_owned()).to_string())?;
    NidSet::of(text, nids).map_err(|e| e.to_string())
}

fn invalid(why: impl ToString) -> Refusal {
    (Errno::EINVAL, why.to_string())
}

fn refused(e: PeerError) -> Refusal {
    let errno = match e {
        PeerError::Missing(_) => Errno::ENOENT,
        PeerError::Other(..) => Errno::EEXIST,
        PeerError::Primary(_) => Errno::EBUSY,
        PeerError::Full => Errno::ENOSPC,
        PeerError::Own(_) | PeerError::Many => Errno::EINVAL,
    };
    (errno, e.to_string())
}

/// Says that some NIDs are one node's.
pub(crate) fn add_peer(lnet: &Lnet, asked: &AskedPeer) -> Result<Value, Refusal> {
    let peer = asked.check().map_err(invalid)?;
    lnet.add_peer(peer.primary, &peer.others).map_err(refused)?;
    Ok(Value::Null)
}

/// Forgets some NIDs of a peer, or all of them.
pub(crate) fn remove_peer(lnet: &Lnet, asked: &AskedPeer) -> Result<Value, Refusal> {
    let peer = asked.check().map_err(invalid)?;
    lnet.remove_peer(peer.primary, &peer.others).map_err(refused)?;
    Ok(Value::Null)
}

/// Sets the health of a NID of a peer, or of all.
pub(crate) fn set_peer_health(lnet: &Lnet, nid: Option<&str>, health: u32) -> Result<Value, Refusal> {
    let nid: Option<Nid> = nid.map(str::parse).transpose().map_err(invalid)?;
    if health > 1000 {
        return Err(invalid(format!("{health} is not a health from 0 to 1000")));
    }
    match (lnet.set_peer_health(nid, health), nid) {
        (true, _) | (false, None) => Ok(Value::Null),
        (false, Some(nid)) => Err((Errno::ENOENT, format!("{nid} is not known"))),
    }
}

/// Carries out a task for the rules.
pub(crate) fn change_udsp(lnet: &Lnet, task: &UdspTask) -> Result<Value, Refusal> {
    let refused = |e: UdspError| match e {
        UdspError::Missing(_) => (Errno::ENOENT, e.to_string()),
        UdspError::Exists(_) => (Errno::EEXIST, e.to_string()),
        UdspError::Full => (Errno::ENOSPC, e.to_string()),
        UdspError::Set(_) | UdspError::Many(_) | UdspError::Parts => invalid(e),
    };
    match task {
        UdspTask::Add(asked) => lnet.add_udsp(asked.check().map_err(invalid)?, asked.index).map_err(refused)?,
        UdspTask::Remove(index) => lnet.remove_udsp(*index).map_err(refused)?,
        UdspTask::List => {
            let rules = lnet.udsp().into_iter().enumerate();
            return Ok(rules.map(|(index, rule)| describe_rule(index, &rule)).collect());
        }
    }
    Ok(Value::Null)
}

/// A rule as `lnetctl udsp show` prints it, and lnet.conf has it.
pub(crate) fn describe_rule(index: usize, rule: &UdspRule) -> Value {
    let text = |set: &Option<NidSet>| set.as_ref().map_or_else(|| "NA".to_owned(), NidSet::to_string);
    json!({"idx": index, "src": text(&rule.src), "dst": text(&rule.dst), "rte": text(&rule.rte),
        "action": {"priority": rule.priority}})
}

/// A peer as lnet.conf has it.
pub(crate) fn describe_peer(peer: &Peer) -> Value {
    let nids = std::iter::once(&peer.primary).chain(&peer.others);
    let nis: Vec<Value> = nids.map(|nid| json!({ "nid": nid.to_string() })).collect();
    json!({"primary nid": peer.primary.to_string(), "Multi-Rail": true, "peer ni": nis})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_are_listed_and_bracketed() {
        let of = |nids: &[&str]| {
            let nids = nids.iter().map(|nid| (*nid).to_owned()).collect();
            let peer = AskedPeer { primary: "10.1.0.1@tcp1".to_owned(), nids }.check()?;
            Ok::<_, String>(peer.others.iter().map(Nid::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of(&["10.2.0.1@tcp2,10.3.0.1@tcp3"]).unwrap(), "10.2.0.1@tcp2 10.3.0.1@tcp3");
        assert_eq!(of(&["10.2.0.[1,3]@tcp2", "10.1.0.1@tcp1"]).unwrap(), "10.2.0.1@tcp2 10.2.0.3@tcp2");
        assert_eq!(of(&[]).unwrap(), "");
        assert!(of(&["here"]).is_err() && of(&["10.2.0.[1@tcp2"]).is_err());
    }

    #[test]
    fn rules_name_networks_or_nids() {
        let of = |src: &str, dst: &str| {
            let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let rule = AskedUdsp { src: set(src), dst: set(dst), ..AskedUdsp::default() }.check()?;
            Ok::<_, String>(describe_rule(3, &rule))
        };
        let want = json!({"idx": 3, "src": "NA", "dst": "tcp1", "rte": "NA", "action": {"priority": 0}});
        assert_eq!(of("", "tcp1").unwrap(), want);
        assert_eq!(of("10.1.0.[1-4]@tcp", "").unwrap()["src"], "10.1.0.[1-4]@tcp");
        assert!(of("", "10.1.0.[1-4]").is_ok(), "on tcp");
        for bad in ["eth0", "10.1.0.1@tcp,10.1.0.1@tcp1", "10.[0-9].[0-255].[1-9]@tcp"] {
            assert!(of("", bad).is_err(), "{bad}");
        }
    }
}
