//! The configuration that the MGS keeps, as keys and values in one table, with synchronous functions over a
//! transaction. The interface is that of a small versioned key-value store (put, get by prefix, one version per file
//! system), so that another store can be put behind it.
//!
//! Keys: `version/<fs>` u64; `target/<fs>/<name>` [`TargetEntry`] and object sequence; `param/<fs>/<path>` text, where an
//! empty `<fs>` stands for all; `sequence/next` u64.

use bytes::Bytes;
use nacre_base::param::Params;
use nacre_base::param::declared::Undeclared;
use nacre_base::{Fid, Nid, TargetKind, TargetName, Uuid};
use nacre_osd::{OsdError, Table, Transaction};
use nacre_wire::mgs::{Config, ReplaceNids, SeqReply, SetParam, TargetEntry, TargetReg};
use nacre_wire::{decode, encode};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The table that all keys are in.
pub(crate) const CONFIG: Table = Table("config");

/// Reason why a change of the configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The storage failed.
    #[error(transparent)]
    Osd(#[from] OsdError),
    /// Another target has this name.
    #[error("{name} is registered with other storage (uuid {known}): remove it there or give this one another index")]
    OtherStorage {
        /// The name.
        name: String,
        /// Uuid of the storage that has it.
        known: Uuid,
    },
    /// A registered target asks from a node that is not one of its nodes.
    #[error(
        "{target} asks to be registered at {from}, but its nodes are {nids:?}: if it was moved, \
         run `lctl replace_nids {target} {from}` here, else somebody has its name"
    )]
    OtherNode {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
        /// The nodes that it may be registered from.
        nids: Vec<Nid>,
    },
    /// A registration does not name the node that it comes from.
    #[error("{from} asks to register {target} at other nodes than itself")]
    Stranger {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
    },
    /// A node that serves nothing of a file system asks to be a further MDT of it.
    #[error("{from} asks to be {target}, and is no server of this file system, which has an MDT")]
    FurtherMdt {
        /// The target.
        target: String,
        /// Where the request came from.
        from: Nid,
    },
    /// A target that is to be changed is not known, or would have no NID.
    #[error("{0} is not registered, or no NID was given for it")]
    NoTarget(String),
    /// A sequence's successor is asked for by a node that does not serve the target, or after a sequence it never had.
    #[error("{0} is not served by the node that asks for its next sequence, or never had the one that it names")]
    NotYours(String),
    /// A stored record that cannot be decoded.
    #[error("the record of {0} is damaged")]
    Damaged(String),
    /// A text that is not a target's name.
    #[error("{0:?} is not a target's name")]
    BadName(String),
    /// A text that is not a file system's name.
    #[error("{0:?} is not a file system's name: 1 to 8 letters, digits, - or _")]
    BadFsname(String),
    /// A setting that cannot be kept.
    #[error(transparent)]
    Undeclared(#[from] Undeclared),
    /// A setting that is to be removed is not there.
    #[error("{0} is not set")]
    NotSet(String),
}

fn key(parts: &[&str]) -> Vec<u8> {
    parts.join("/").into_bytes()
}

fn get_u64(tx: &dyn Transaction, key: &[u8]) -> Result<Option<u64>, ConfigError> {
    let Some(v) = tx.get(CONFIG, key)? else { return Ok(None) };
    let bytes: Result<[u8; 8], _> = v[..].try_into();
    let damaged = |_| ConfigError::Damaged(String::from_utf8_lossy(key).into_owned());
    Ok(Some(u64::from_le_bytes(bytes.map_err(damaged)?)))
}

fn bump_version(tx: &mut dyn Transaction, fsname: &str) -> Result<(), ConfigError> {
    let k = key(&["version", fsname]);
    let next = get_u64(tx, &k)?.unwrap_or(0) + 1;
    Ok(tx.put(CONFIG, &k, &next.to_le_bytes())?)
}

/// Source of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// The MGS's own node, which can access the MGS's storage anyway.
    Here,
    /// Another node.
    Peer(Nid),
}

/// Returns whether the target has a record under the name that it gives.
pub(crate) fn is_known(tx: &dyn Transaction, reg: &TargetReg) -> Result<bool, ConfigError> {
    let name: TargetName = reg.target.parse().map_err(|_| ConfigError::BadName(reg.target.clone()))?;
    Ok(tx.get(CONFIG, &key(&["target", &name.fsname, &reg.target]))?.is_some())
}

/// Adds or updates a target. Returns its object sequence (0 for an MDT).
///
/// A registration must name the node that it comes from. A known target can be registered only from one of the nodes
/// that it was last registered with, service nodes included. The list decides which nodes are servers. So a further
/// MDT, which may create and destroy objects, can be added only by a node that already serves the file system.
pub(crate) fn register(tx: &mut dyn Transaction, reg: &TargetReg, from: From) -> Result<u64, ConfigError> {
    let name: TargetName = reg.target.parse().map_err(|_| ConfigError::BadName(reg.target.clone()))?;
    let k = key(&["target", &name.fsname, &reg.target]);
    let known = match tx.get(CONFIG, &k)? {
        Some(v) => Some(decode_target(&reg.target, &v)?),
        None => None,
    };
    if let From::Peer(nid) = from {
        check_node(tx, reg, &name, known.as_ref().map(|(entry, _)| entry), nid)?;
    }
    let object_seq = match &known {
        Some((entry, _)) if entry.uuid != reg.uuid => {
            return Err(ConfigError::OtherStorage { name: reg.target.clone(), known: entry.uuid });
        }
        Some((_, seq)) => *seq,
        None if name.kind == TargetKind::Ost => lease(tx, 1)?.first,
        None => 0,
    };
    let entry = TargetEntry {
        target: reg.target.clone(),
        uuid: reg.uuid,
        nids: reg.nids.clone(),
        instance: reg.instance,
        host: reg.host.clone(),
    };
    if known.as_ref().is_none_or(|(old, _)| *old != entry) {
        tx.put(CONFIG, &k, &encode(&(entry, object_seq)))?;
        bump_version(tx, &name.fsname)?;
    }
    Ok(object_seq)
}

fn check_node(
    tx: &dyn Transaction,
    reg: &TargetReg,
    name: &TargetName,
    known: Option<&TargetEntry>,
    from: Nid,
) -> Result<(), ConfigError> {
    let target = reg.target.clone();
    if !reg.nids.contains(&from) {
        return Err(ConfigError::Stranger { target, from });
    }
    match known {
        Some(entry) if entry.uuid == reg.uuid && !entry.nids.contains(&from) => {
            Err(ConfigError::OtherNode { target, from, nids: entry.nids.clone() })
        }
        None if name.kind == TargetKind::Mdt => {
            let servers = targets(tx, &name.fsname)?;
            let is_mdt =
                |entry: &TargetEntry| entry.target.parse::<TargetName>().is_ok_and(|n| n.kind == TargetKind::Mdt);
            let is_known = servers.iter().any(|entry| entry.nids.contains(&from));
            if is_known || !servers.iter().any(is_mdt) { Ok(()) } else { Err(ConfigError::FurtherMdt { target, from }) }
        }
        _ => Ok(()),
    }
}

fn targets(tx: &dyn Transaction, fsname: &str) -> Result<Vec<TargetEntry>, ConfigError> {
    let found = with_prefix(tx, &key(&["target", fsname, ""]))?;
    found.iter().map(|(name, value)| Ok(decode_target(name, value)?.0)).collect()
}

/// Returns whether a target of this name and storage is known, and `nid` is one of its nodes.
pub(crate) fn is_listed(tx: &dyn Transaction, uuid: Uuid, name: &str, nid: Nid) -> Result<bool, ConfigError> {
    let Ok(parsed) = name.parse::<TargetName>() else { return Ok(false) };
    let Some(value) = tx.get(CONFIG, &key(&["target", &parsed.fsname, name]))? else { return Ok(false) };
    let (entry, _) = decode_target(name, &value)?;
    Ok(entry.uuid == uuid && entry.nids.contains(&nid))
}

/// Replaces the NIDs of a target that was moved.
pub(crate) fn replace_nids(tx: &mut dyn Transaction, replaced: &ReplaceNids) -> Result<(), ConfigError> {
    let target = &replaced.target;
    let name: TargetName = target.parse().map_err(|_| ConfigError::BadName(target.clone()))?;
    let k = key(&["target", &name.fsname, target]);
    let value = tx.get(CONFIG, &k)?.ok_or_else(|| ConfigError::NoTarget(target.clone()))?;
    let (entry, object_seq) = decode_target(target, &value)?;
    if replaced.nids.is_empty() {
        return Err(ConfigError::NoTarget(target.clone()));
    }
    let entry = TargetEntry { nids: replaced.nids.clone(), ..entry };
    tx.put(CONFIG, &k, &encode(&(entry, object_seq)))?;
    bump_version(tx, &name.fsname)
}

/// The sequence that follows `used_up` at an OST, for a node that serves it.
pub(crate) fn succeed(
    tx: &mut dyn Transaction,
    target: &str,
    used_up: u64,
    from: From,
) -> Result<SeqReply, ConfigError> {
    let name: TargetName = target.parse().map_err(|_| ConfigError::BadName(target.to_owned()))?;
    let k = key(&["target", &name.fsname, target]);
    let known = tx.get(CONFIG, &k)?.ok_or_else(|| ConfigError::NotYours(target.to_owned()))?;
    let (entry, current) = decode_target(target, &known)?;
    let is_served = match from {
        From::Here => true,
        From::Peer(nid) => entry.nids.contains(&nid),
    };
    if name.kind != TargetKind::Ost || !is_served || current < used_up {
        return Err(ConfigError::NotYours(target.to_owned()));
    }
    if current > used_up {
        return Ok(SeqReply { first: current, count: 1 });
    }
    let lease = lease(tx, 1)?;
    tx.put(CONFIG, &k, &encode(&(entry, lease.first)))?;
    Ok(lease)
}

fn decode_target(name: &str, value: &[u8]) -> Result<(TargetEntry, u64), ConfigError> {
    decode(&Bytes::copy_from_slice(value)).map_err(|_| ConfigError::Damaged(name.to_owned()))
}

/// Leases `count` sequences.
pub(crate) fn lease(tx: &mut dyn Transaction, count: u32) -> Result<SeqReply, ConfigError> {
    let first = get_u64(tx, b"sequence/next")?.unwrap_or(Fid::SEQ_NORMAL);
    tx.put(CONFIG, b"sequence/next", &(first + u64::from(count)).to_le_bytes())?;
    Ok(SeqReply { first, count })
}

/// Sets or removes a parameter, which must be a declared one, with a value in its range.
pub(crate) fn set_param(tx: &mut dyn Transaction, declared: &Params, param: &SetParam) -> Result<(), ConfigError> {
    if !param.fsname.is_empty() && !TargetName::is_fsname(&param.fsname) {
        return Err(ConfigError::BadFsname(param.fsname.clone()));
    }
    match &param.value {
        Some(value) => {
            let name = declared.check_kept(&param.name, value)?;
            tx.put(CONFIG, &key(&["param", &param.fsname, &name]), value.trim().as_bytes())?;
        }
        // Any setting may be removed, even one that was kept before parameters had to be declared.
        None => {
            tx.use_reserve();
            let name = param.name.replace('/', ".");
            if !tx.delete(CONFIG, &key(&["param", &param.fsname, &name]))? {
                return Err(ConfigError::NotSet(name));
            }
        }
    }
    match param.fsname.as_str() {
        "" => with_prefix(tx, b"version/")?.iter().try_for_each(|(fsname, _)| bump_version(tx, fsname)),
        fsname => bump_version(tx, fsname),
    }
}

/// The whole configuration of a file system; version 0 if nothing ever registered.
pub(crate) fn read(tx: &dyn Transaction, fsname: &str) -> Result<Config, ConfigError> {
    let version = get_u64(tx, &key(&["version", fsname]))?.unwrap_or(0);
    let mut config = Config { version, fsname: fsname.to_owned(), ..Config::default() };
    config.targets = targets(tx, fsname)?;
    // A setting for one file system overrides one for all.
    let mut params = BTreeMap::new();
    for scope in ["", fsname] {
        let found = with_prefix(tx, &key(&["param", scope, ""]))?;
        params.extend(found.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned())));
    }
    config.params.extend(params);
    Ok(config)
}

/// Names of the file systems for which a target or a setting was ever registered.
pub(crate) fn file_systems(tx: &dyn Transaction) -> Result<Vec<String>, ConfigError> {
    Ok(with_prefix(tx, &key(&["version", ""]))?.into_iter().map(|(fsname, _)| fsname).collect())
}

/// Entries whose key begins with `prefix`: the rest of the key, and the value.
fn with_prefix(tx: &dyn Transaction, prefix: &[u8]) -> Result<Vec<(String, Vec<u8>)>, ConfigError> {
    let mut found = Vec::new();
    tx.scan(CONFIG, prefix, &mut |k, v| match k.strip_prefix(prefix) {
        Some(rest) => {
            found.push((String::from_utf8_lossy(rest).into_owned(), v.to_vec()));
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::declared::{Declared, SWITCH, number};

    const OF_CLIENTS: &[Declared] = &[
        Declared::kept(&["osc"], "max_dirty_mb", number(1, 2047), "32", "Bounds the written data that is held."),
        Declared::kept(&["osc"], "active", SWITCH, "1", "0 makes every access to the OST fail at once."),
    ];

    fn declared() -> Params {
        let params = Params::new();
        params.declare(OF_CLIENTS);
        params
    }
    use nacre_osd::{Osd, mem};
    use nacre_rt::Sim;

    fn reg(name: &str, uuid: u8, instance: u64) -> TargetReg {
        let nids = vec![Nid::sim(1)];
        TargetReg { target: name.into(), uuid: Uuid([uuid; 16]), nids, instance, host: "h".into() }
    }

    #[test]
    fn a_sequence_has_one_owner_and_one_successor() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(nacre_base::Time::from_secs(60), async move {
            let osd = mem::MemOsd::new(&rt, &[CONFIG], mem::MemOptions::default());
            let mut tx = osd.begin().await.unwrap();
            let tx = &mut *tx;
            let [seq, other, _] =
                ["n-OST0000", "n-OST0001", "n-MDT0000"].map(|n| register(tx, &reg(n, 1, 1), From::Here).unwrap());
            let (here, stranger) = (From::Peer(Nid::sim(1)), From::Peer(Nid::sim(9)));
            let mut ask = |target, used_up, from| succeed(tx, target, used_up, from).map(|lease| lease.first);
            let next = ask("n-OST0000", seq, here).unwrap();
            assert!(next > other);
            assert_eq!(ask("n-OST0000", seq, From::Here).unwrap(), next, "it did not hear the answer");
            for (target, used_up, from) in [
                ("n-OST0000", next, stranger),
                ("n-OST0000", next + 1, here),
                ("n-OST0009", seq, here),
                ("n-MDT0000", 0, here),
            ] {
                assert!(matches!(ask(target, used_up, from), Err(ConfigError::NotYours(_))), "{target} {used_up}");
            }
            assert_eq!(register(tx, &reg("n-OST0000", 1, 2), From::Here).unwrap(), next);
            assert_eq!(register(tx, &reg("n-OST0001", 1, 2), From::Here).unwrap(), other);
        });
    }

    #[test]
    fn targets_register_once_and_keep_their_sequence() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(nacre_base::Time::from_secs(60), async move {
            let osd = mem::MemOsd::new(&rt, &[CONFIG], mem::MemOptions::default());
            let mut tx = osd.begin().await.unwrap();
            let tx = &mut *tx;
            let seq = register(tx, &reg("n-OST0000", 1, 1), From::Here).unwrap();
            assert_eq!(seq, Fid::SEQ_NORMAL);
            assert_eq!(register(tx, &reg("n-MDT0000", 2, 1), From::Here).unwrap(), 0);
            assert_eq!(read(tx, "n").unwrap().version, 2);
            // The same registration again changes nothing; a restart is a new version with the same sequence.
            assert_eq!(register(tx, &reg("n-OST0000", 1, 1), From::Here).unwrap(), seq);
            assert_eq!(read(tx, "n").unwrap().version, 2);
            assert_eq!(register(tx, &reg("n-OST0000", 1, 2), From::Here).unwrap(), seq);
            assert_eq!(read(tx, "n").unwrap().version, 3);
            assert!(matches!(register(tx, &reg("n-OST0000", 9, 1), From::Here), Err(ConfigError::OtherStorage { .. })));
            assert!(matches!(register(tx, &reg("rubbish", 9, 1), From::Here), Err(ConfigError::BadName(_))));
            assert_eq!(lease(tx, 5).unwrap().first, seq + 1);
            assert_eq!(lease(tx, 1).unwrap().first, seq + 6);
        });
    }

    /// `MGS_SET_PARAM` once took any name: `fail_loc=rpc.request.drop:crash` for `**` ended every client of the file
    /// system, and each one that was mounted again.
    #[test]
    fn only_declared_parameters_are_kept() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(nacre_base::Time::from_secs(60), async move {
            let osd = mem::MemOsd::new(&rt, &[CONFIG], mem::MemOptions::default());
            let mut tx = osd.begin().await.unwrap();
            let tx = &mut *tx;
            register(tx, &reg("n-OST0000", 1, 1), From::Here).unwrap();
            let param = |fsname: &str, name: &str, value: Option<&str>| SetParam {
                fsname: fsname.into(),
                name: name.into(),
                value: value.map(str::to_owned),
            };
            let kept = |tx: &dyn Transaction, fsname| {
                let params = read(tx, fsname).unwrap().params;
                params.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
            };
            for (name, value) in [("fail_loc", "a:crash"), ("**", "1"), ("osc.*.max_dirty_mb", "0"), ("a.b", "7")] {
                let refused = set_param(tx, &declared(), &param("n", name, Some(value)));
                assert!(matches!(refused, Err(ConfigError::Undeclared(_))), "{name}");
            }
            assert!(matches!(
                set_param(tx, &declared(), &param("a/b", "osc.*.active", Some("1"))),
                Err(ConfigError::BadFsname(_))
            ));
            assert_eq!((read(tx, "n").unwrap().version, kept(tx, "n")), (1, vec![]));
            set_param(tx, &declared(), &param("n", "osc/*/max_dirty_mb", Some("64\n"))).unwrap();
            set_param(tx, &declared(), &param("", "osc.*.max_dirty_mb", Some("32"))).unwrap();
            // Both changes reach the file system; another file system, even a later one, has the settings for all.
            assert_eq!(read(tx, "n").unwrap().version, 3);
            assert_eq!(kept(tx, "n"), ["osc.*.max_dirty_mb=64"]);
            assert_eq!(kept(tx, "later"), ["osc.*.max_dirty_mb=32"]);
            set_param(tx, &declared(), &param("n", "osc.*.max_dirty_mb", None)).unwrap();
            assert!(matches!(
                set_param(tx, &declared(), &param("n", "osc.*.max_dirty_mb", None)),
                Err(ConfigError::NotSet(_))
            ));
            assert_eq!(kept(tx, "n"), ["osc.*.max_dirty_mb=32"]);
        });
    }

    /// A target's UUID is public, and once sufficed to make clients and the MDT look for the target at another node.
    #[test]
    fn a_target_registers_from_its_own_nodes_only() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(nacre_base::Time::from_secs(60), async move {
            let osd = mem::MemOsd::new(&rt, &[CONFIG], mem::MemOptions::default());
            let mut tx = osd.begin().await.unwrap();
            let tx = &mut *tx;
            let at = |name: &str, uuid, nodes: &[u32]| TargetReg {
                nids: nodes.iter().map(|n| Nid::sim(*n)).collect(),
                ..reg(name, uuid, 1)
            };
            let from = |n| From::Peer(Nid::sim(n));
            let nids = |tx: &dyn Transaction, i: usize| read(tx, "n").unwrap().targets[i].nids.clone();
            register(tx, &at("n-MDT0000", 1, &[1]), from(1)).unwrap();
            // An OST with a second service node, which takes it over and back.
            register(tx, &at("n-OST0000", 2, &[2, 3]), from(2)).unwrap();
            register(tx, &at("n-OST0000", 2, &[3, 2]), from(3)).unwrap();
            let stranger = register(tx, &at("n-OST0000", 2, &[9]), from(9));
            assert!(matches!(&stranger, Err(ConfigError::OtherNode { .. })), "{stranger:?}");
            assert!(stranger.unwrap_err().to_string().contains("lctl replace_nids n-OST0000 9@sim"));
            // A stranger cannot register in another's name, nor as one more MDT, which every OST would obey.
            let other = register(tx, &at("n-OST0000", 2, &[3]), from(9));
            assert!(matches!(other, Err(ConfigError::Stranger { .. })), "{other:?}");
            let further = register(tx, &at("n-MDT0001", 3, &[9]), from(9));
            assert!(matches!(further, Err(ConfigError::FurtherMdt { .. })), "{further:?}");
            assert_eq!((read(tx, "n").unwrap().targets.len(), nids(tx, 1)), (2, vec![Nid::sim(3), Nid::sim(2)]));
            register(tx, &at("n-MDT0001", 3, &[2]), from(2)).unwrap();
            // The administrator moves the OST.
            let moved = ReplaceNids { target: "n-OST0000".into(), nids: vec![Nid::sim(9)] };
            replace_nids(tx, &moved).unwrap();
            assert_eq!(nids(tx, 2), [Nid::sim(9)]);
            let seq = register(tx, &at("n-OST0000", 2, &[9]), from(9)).unwrap();
            assert_eq!(seq, Fid::SEQ_NORMAL, "with the sequence that it had");
            assert!(matches!(register(tx, &at("n-OST0000", 2, &[3]), from(3)), Err(ConfigError::OtherNode { .. })));
            for (target, nids) in [("n-OST0009", vec![Nid::sim(1)]), ("n-OST0000", vec![]), ("x", vec![])] {
                assert!(replace_nids(tx, &ReplaceNids { target: target.into(), nids }).is_err(), "{target}");
            }
            let listed = |uuid, name: &str, n| is_listed(tx, Uuid([uuid; 16]), name, Nid::sim(n)).unwrap();
            assert!(listed(2, "n-OST0000", 9) && !listed(2, "n-OST0000", 3) && !listed(1, "n-OST0000", 9));
        });
    }
}
