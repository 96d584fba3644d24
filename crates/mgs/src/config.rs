//! The rules of the configuration: keys and values with one version per file system, and synchronous functions that read
//! them and make changes on trial ([`Draft`]). A store keeps them and carries the changes out (`store`).
//!
//! Keys: `version/<fs>` u64; `target/<fs>/<name>` [`TargetEntry`] and object sequence; `param/<fs>/<path>` text, where an
//! empty `<fs>` stands for all; `sequence/next` u64. In a store that several MGSs share also `mgs/instance` u64, the number of starts,
//! and `mgs/uuid`.

use crate::draft::Draft;
use crate::error::{ConfigError, FILE_SYSTEMS_MAX, HOST_MAX, NIDS_MAX};
use bytes::Bytes;
use nacre_base::param::Params;
use nacre_base::{Fid, Nid, TargetKind, TargetName, Uuid};
use nacre_lnet::MAX_PAYLOAD;
use nacre_wire::mgs::{Config, ReplaceNids, SeqReply, SetParam, TargetEntry, TargetReg};
use nacre_wire::{decode, encode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of a file system's encoded configuration that a new target may lead to. Anybody may register new OSTs, and a
/// configuration that did not fit into a reply could be read by nobody. There is room for several thousand targets.
const BYTES_FOR_NEW: usize = 512 << 10;
/// Most bytes that a change of a known target, or a setting, may lead to. It is more than [`BYTES_FOR_NEW`], so that new
/// targets do not keep the known ones from changing.
const BYTES_MAX: usize = 768 << 10;
const _: () = assert!(BYTES_FOR_NEW < BYTES_MAX && BYTES_MAX < MAX_PAYLOAD / 8 * 7, "a reply has room for it");

fn key(parts: &[&str]) -> Vec<u8> {
    parts.join("/").into_bytes()
}

fn get_u64(draft: &Draft, key: &[u8]) -> Result<Option<u64>, ConfigError> {
    let Some(v) = draft.get(key) else { return Ok(None) };
    let damaged = |_| ConfigError::Damaged(String::from_utf8_lossy(key).into_owned());
    Ok(Some(u64::from_le_bytes(v.try_into().map_err(damaged)?)))
}

/// Version of a file system's configuration; 0 if nothing ever registered.
pub(crate) fn version(draft: &Draft, fsname: &str) -> Result<u64, ConfigError> {
    Ok(get_u64(draft, &key(&["version", fsname]))?.unwrap_or(0))
}

fn bump_version(draft: &mut Draft, fsname: &str) -> Result<(), ConfigError> {
    let next = version(draft, fsname)? + 1;
    if next == 1 && file_systems(draft).len() >= FILE_SYSTEMS_MAX {
        return Err(ConfigError::TooManyFileSystems(fsname.to_owned()));
    }
    draft.put(&key(&["version", fsname]), &next.to_le_bytes());
    Ok(())
}

/// Source of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// The MGS's own node, which can access the MGS's storage anyway.
    Here,
    /// Another node.
    Peer(Nid),
}

/// Adds or updates a target. Returns its object sequence (0 for an MDT).
///
/// A registration must name the node that it comes from. A known target can be registered only from one of the nodes
/// that it was last registered with, service nodes included. The list decides which nodes are servers. So a further
/// MDT, which may create and destroy objects, can be added only by a node that already serves an MDT of the file system,
/// or by the MGS's own node. A node that serves an OST proves nothing, because anybody may register a new OST.
pub(crate) fn register(tx: &mut Draft, reg: &TargetReg, from: From) -> Result<u64, ConfigError> {
    let bad_name = || ConfigError::BadName(reg.target.clone());
    let name: TargetName = reg.target.parse().map_err(|_| bad_name())?;
    // A second spelling of a name, such as OST+000, would be a second target with the first one's index.
    if name.kind == TargetKind::Mgt || name.to_string() != reg.target {
        return Err(bad_name());
    }
    let k = key(&["target", &name.fsname, &reg.target]);
    let known = tx.get(&k).map(|v| decode_target(&reg.target, v)).transpose()?;
    // A known target may come back however full the MGS is, because its record is only replaced.
    if known.is_some() {
        tx.use_reserve();
    }
    if let From::Peer(nid) = from {
        check_node(tx, reg, &name, known.as_ref().map(|(entry, _)| entry), nid)?;
    }
    if let Some((entry, _)) = known.as_ref().filter(|(entry, _)| entry.uuid != reg.uuid) {
        return Err(ConfigError::OtherStorage { name: reg.target.clone(), known: entry.uuid });
    }
    let entry = TargetEntry {
        target: reg.target.clone(),
        uuid: reg.uuid,
        nids: reg.nids.clone(),
        instance: reg.instance,
        host: reg.host.clone(),
    };
    let most = if known.is_some() { BYTES_MAX } else { BYTES_FOR_NEW };
    check_size(tx, &name.fsname, &entry, most)?;
    let object_seq = match &known {
        Some((_, seq)) => *seq,
        None if name.kind == TargetKind::Ost => lease(tx, 1)?.first,
        None => 0,
    };
    if known.as_ref().is_none_or(|(old, _)| *old != entry) {
        tx.put(&k, &encode(&(entry, object_seq)));
        bump_version(tx, &name.fsname)?;
    }
    Ok(object_seq)
}

/// Checks that the target is not too large, and that the configuration with it is not, before anything is changed. A
/// target that takes no more room than before is never refused, so that it can come back even to a full configuration.
fn check_size(tx: &Draft, fsname: &str, entry: &TargetEntry, most: usize) -> Result<(), ConfigError> {
    let (target, nids, host) = (&entry.target, entry.nids.len(), entry.host.len());
    if nids > NIDS_MAX || host > HOST_MAX {
        return Err(ConfigError::TooLong { target: target.clone(), nids, host });
    }
    let config = read(tx, fsname)?;
    let old = config.targets.iter().find(|known| known.target == *target).map_or(0, |known| encode(known).len());
    check_growth(&config, old, encode(entry).len(), most)
}

/// Checks the size of the configuration after `old` bytes of it are replaced by `new` bytes.
fn check_growth(config: &Config, old: usize, new: usize, most: usize) -> Result<(), ConfigError> {
    let bytes = encode(config).len() + new - old;
    if new <= old || bytes <= most {
        return Ok(());
    }
    Err(ConfigError::TooLarge { fsname: config.fsname.clone(), bytes, most })
}

fn check_node(
    tx: &Draft,
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
            let mut mdts = targets(tx, &name.fsname)?;
            mdts.retain(|entry| entry.target.parse::<TargetName>().is_ok_and(|n| n.kind == TargetKind::Mdt));
            let serves_one = mdts.iter().any(|entry| entry.nids.contains(&from));
            if serves_one || mdts.is_empty() { Ok(()) } else { Err(ConfigError::FurtherMdt { target, from }) }
        }
        _ => Ok(()),
    }
}

fn targets(tx: &Draft, fsname: &str) -> Result<Vec<Arc<TargetEntry>>, ConfigError> {
    let found = tx.with_prefix(&key(&["target", fsname, ""]));
    found.iter().map(|(name, value)| Ok(Arc::new(decode_target(name, value)?.0))).collect()
}

/// Returns whether a target of this name and storage is known, and `nid` is one of its nodes.
pub(crate) fn is_listed(tx: &Draft, uuid: Uuid, name: &str, nid: Nid) -> Result<bool, ConfigError> {
    Ok(entry_of(tx, name)?.is_some_and(|entry| entry.uuid == uuid && entry.nids.contains(&nid)))
}

/// Of these names of targets, those of which `nid` is a node.
pub(crate) fn listed_at(tx: &Draft, names: &[String], nid: Nid) -> Result<Vec<String>, ConfigError> {
    let mut listed = Vec::new();
    for name in names {
        if entry_of(tx, name)?.is_some_and(|entry| entry.nids.contains(&nid)) {
            listed.push(name.clone());
        }
    }
    Ok(listed)
}

/// A target as it is listed now.
pub(crate) fn entry_of(tx: &Draft, name: &str) -> Result<Option<TargetEntry>, ConfigError> {
    let Ok(parsed) = name.parse::<TargetName>() else { return Ok(None) };
    let Some(value) = tx.get(&key(&["target", &parsed.fsname, name])) else { return Ok(None) };
    Ok(Some(decode_target(name, value)?.0))
}

/// Replaces the NIDs of a target that was moved.
pub(crate) fn replace_nids(tx: &mut Draft, replaced: &ReplaceNids) -> Result<(), ConfigError> {
    let target = &replaced.target;
    let name: TargetName = target.parse().map_err(|_| ConfigError::BadName(target.clone()))?;
    let k = key(&["target", &name.fsname, target]);
    let value = tx.get(&k).ok_or_else(|| ConfigError::NoTarget(target.clone()))?;
    let (entry, object_seq) = decode_target(target, value)?;
    if replaced.nids.is_empty() {
        return Err(ConfigError::NoTarget(target.clone()));
    }
    let entry = TargetEntry { nids: replaced.nids.clone(), ..entry };
    check_size(tx, &name.fsname, &entry, BYTES_MAX)?;
    tx.put(&k, &encode(&(entry, object_seq)));
    bump_version(tx, &name.fsname)
}

/// The sequence that follows `used_up` at an OST, for a node that serves it.
pub(crate) fn succeed(tx: &mut Draft, target: &str, used_up: u64, from: From) -> Result<SeqReply, ConfigError> {
    let name: TargetName = target.parse().map_err(|_| ConfigError::BadName(target.to_owned()))?;
    let k = key(&["target", &name.fsname, target]);
    let known = tx.get(&k).ok_or_else(|| ConfigError::NotYours(target.to_owned()))?;
    let (entry, current) = decode_target(target, known)?;
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
    tx.put(&k, &encode(&(entry, lease.first)));
    Ok(lease)
}

fn decode_target(name: &str, value: &[u8]) -> Result<(TargetEntry, u64), ConfigError> {
    decode(&Bytes::copy_from_slice(value)).map_err(|_| ConfigError::Damaged(name.to_owned()))
}

/// Leases `count` sequences.
pub(crate) fn lease(tx: &mut Draft, count: u32) -> Result<SeqReply, ConfigError> {
    let first = get_u64(tx, b"sequence/next")?.unwrap_or(Fid::SEQ_NORMAL);
    tx.put(b"sequence/next", &(first + u64::from(count)).to_le_bytes());
    Ok(SeqReply { first, count })
}

/// Sets or removes a parameter, which must be a declared one, with a value in its range.
pub(crate) fn set_param(tx: &mut Draft, declared: &Params, param: &SetParam) -> Result<(), ConfigError> {
    if !param.fsname.is_empty() && !TargetName::is_fsname(&param.fsname) {
        return Err(ConfigError::BadFsname(param.fsname.clone()));
    }
    match &param.value {
        Some(value) => {
            let name = declared.check_kept(&param.name, value)?;
            let affected = if param.fsname.is_empty() { file_systems(tx) } else { vec![param.fsname.clone()] };
            for fsname in affected {
                let config = read(tx, &fsname)?;
                let old = config.params.iter().find(|(known, _)| *known == name).map_or(0, |kept| encode(kept).len());
                let new = encode(&(name.clone(), value.trim().to_owned())).len();
                check_growth(&config, old, new, BYTES_MAX)?;
            }
            tx.put(&key(&["param", &param.fsname, &name]), value.trim().as_bytes());
        }
        // Any setting may be removed, even one that was kept before parameters had to be declared.
        None => {
            tx.use_reserve();
            let name = param.name.replace('/', ".");
            if !tx.delete(&key(&["param", &param.fsname, &name])) {
                return Err(ConfigError::NotSet(name));
            }
        }
    }
    match param.fsname.as_str() {
        "" => file_systems(tx).iter().try_for_each(|fsname| bump_version(tx, fsname)),
        fsname => bump_version(tx, fsname),
    }
}

/// The whole configuration of a file system; version 0 if nothing ever registered.
pub(crate) fn read(tx: &Draft, fsname: &str) -> Result<Config, ConfigError> {
    let version = version(tx, fsname)?;
    let mut config = Config { version, fsname: fsname.to_owned(), ..Config::default() };
    config.targets = targets(tx, fsname)?;
    // A setting for one file system overrides one for all.
    let mut params = BTreeMap::new();
    for scope in ["", fsname] {
        let found = tx.with_prefix(&key(&["param", scope, ""]));
        params.extend(found.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned())));
    }
    config.params.extend(params);
    Ok(config)
}

/// Begins a start of an MGS on a store that several share. Returns the number of the start, and the UUID of the MGS that all
/// of them are: `fresh` if this is the first.
pub(crate) fn begin_session(tx: &mut Draft, fresh: Uuid) -> Result<(u64, Uuid), ConfigError> {
    let instance = get_u64(tx, b"mgs/instance")?.unwrap_or(0) + 1;
    tx.put(b"mgs/instance", &instance.to_le_bytes());
    let known = tx.get(b"mgs/uuid").map(|uuid| uuid.try_into().map_err(|_| ConfigError::Damaged("mgs/uuid".into())));
    let uuid = known.transpose()?.map(Uuid);
    if uuid.is_none() {
        tx.put(b"mgs/uuid", &fresh.0);
    }
    Ok((instance, uuid.unwrap_or(fresh)))
}

/// Names of the file systems for which a target or a setting was ever registered.
pub(crate) fn file_systems(tx: &Draft) -> Vec<String> {
    tx.with_prefix(b"version/").into_iter().map(|(fsname, _)| fsname).collect()
}

/// The value that a setting has for a file system.
pub(crate) fn param(tx: &Draft, fsname: &str, name: &str) -> Option<String> {
    let value = [fsname, ""].into_iter().find_map(|scope| tx.get(&key(&["param", scope, name])));
    value.map(|value| String::from_utf8_lossy(value).into_owned())
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
    use crate::draft::Entries;

    fn reg(name: &str, uuid: u8, instance: u64) -> TargetReg {
        let nids = vec![Nid::sim(1)];
        TargetReg { target: name.into(), uuid: Uuid([uuid; 16]), nids, instance, host: "h".into() }
    }

    #[test]
    fn a_sequence_has_one_owner_and_one_successor() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
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
    }

    #[test]
    fn targets_register_once_and_keep_their_sequence() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
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
        for bad in ["rubbish", "MGS", "n-OST+000", "n-MDT000A"] {
            assert!(matches!(register(tx, &reg(bad, 9, 1), From::Here), Err(ConfigError::BadName(_))), "{bad}");
        }
        assert_eq!(lease(tx, 5).unwrap().first, seq + 1);
        assert_eq!(lease(tx, 1).unwrap().first, seq + 6);
    }

    /// `MGS_SET_PARAM` once took any name: `fail_loc=rpc.request.drop:crash` for `**` ended every client of the file
    /// system, and each one that was mounted again.
    #[test]
    fn only_declared_parameters_are_kept() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
        register(tx, &reg("n-OST0000", 1, 1), From::Here).unwrap();
        let param = |fsname: &str, name: &str, value: Option<&str>| SetParam {
            fsname: fsname.into(),
            name: name.into(),
            value: value.map(str::to_owned),
        };
        let kept = |tx: &Draft, fsname| {
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
    }

    /// Anybody may register a new OST. One registration with enough NIDs, or many of them, made the configuration larger
    /// than a reply: every client and server that read it got E2BIG.
    #[test]
    fn the_configuration_always_fits_into_a_reply() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
        let nids = |count: usize| (1..=count as u32).map(Nid::sim).collect::<Vec<_>>();
        let at =
            |name: &str, count, host: usize| TargetReg { nids: nids(count), host: "h".repeat(host), ..reg(name, 1, 1) };
        register(tx, &at("n-OST0000", 1, 1), From::Here).unwrap();
        for (name, count, host) in [("n-OST0000", 17, 1), ("n-OST0001", 40_000, 1), ("n-OST0001", 1, 65)] {
            let refused = register(tx, &at(name, count, host), From::Here);
            assert!(matches!(refused, Err(ConfigError::TooLong { .. })), "{name}: {refused:?}");
        }
        let moved = ReplaceNids { target: "n-OST0000".into(), nids: nids(17) };
        assert!(matches!(replace_nids(tx, &moved), Err(ConfigError::TooLong { .. })));
        // The records of many targets, without a look at the whole configuration for each.
        let mut entry = TargetEntry::clone(&read(tx, "n").unwrap().targets[0]);
        (entry.nids, entry.host) = (nids(16), "h".repeat(64));
        let count = BYTES_FOR_NEW / encode(&entry).len();
        for index in 1..count {
            entry.target = format!("n-OST{index:04x}");
            tx.put(&key(&["target", "n", &entry.target]), &encode(&(entry.clone(), 7u64)));
        }
        let leased = lease(tx, 1).unwrap().first;
        let refused = register(tx, &at("n-OSTffff", 16, 64), From::Here);
        assert!(matches!(refused, Err(ConfigError::TooLarge { .. })), "{refused:?}");
        assert_eq!(lease(tx, 1).unwrap().first, leased + 1, "a refused target leaves nothing behind");
        // A known target may still move and restart.
        register(tx, &at("n-OST0000", 16, 64), From::Here).unwrap();
        let config = read(tx, "n").unwrap();
        assert_eq!(config.targets.len(), count);
        assert!(encode(&config).len() <= BYTES_MAX);
    }

    /// A target's UUID is public, and once sufficed to make clients and the MDT look for the target at another node.
    #[test]
    fn a_target_registers_from_its_own_nodes_only() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
        let at = |name: &str, uuid, nodes: &[u32]| TargetReg {
            nids: nodes.iter().map(|n| Nid::sim(*n)).collect(),
            ..reg(name, uuid, 1)
        };
        let from = |n| From::Peer(Nid::sim(n));
        let nids = |tx: &Draft, i: usize| read(tx, "n").unwrap().targets[i].nids.clone();
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
        // Anybody may register a new OST, so an OST makes its node no MDT's node.
        let by_ost = register(tx, &at("n-MDT0001", 3, &[2]), from(2));
        assert!(matches!(by_ost, Err(ConfigError::FurtherMdt { .. })), "{by_ost:?}");
        register(tx, &at("n-MDT0001", 3, &[1]), from(1)).unwrap();
        register(tx, &at("n-MDT0002", 4, &[7]), From::Here).unwrap();
        // The administrator moves the OST.
        let moved = ReplaceNids { target: "n-OST0000".into(), nids: vec![Nid::sim(9)] };
        replace_nids(tx, &moved).unwrap();
        assert_eq!(nids(tx, 3), [Nid::sim(9)]);
        let seq = register(tx, &at("n-OST0000", 2, &[9]), from(9)).unwrap();
        assert_eq!(seq, Fid::SEQ_NORMAL, "with the sequence that it had");
        assert!(matches!(register(tx, &at("n-OST0000", 2, &[3]), from(3)), Err(ConfigError::OtherNode { .. })));
        for (target, nids) in [("n-OST0009", vec![Nid::sim(1)]), ("n-OST0000", vec![]), ("x", vec![])] {
            assert!(replace_nids(tx, &ReplaceNids { target: target.into(), nids }).is_err(), "{target}");
        }
        let listed = |uuid, name: &str, n| is_listed(tx, Uuid([uuid; 16]), name, Nid::sim(n)).unwrap();
        assert!(listed(2, "n-OST0000", 9) && !listed(2, "n-OST0000", 3) && !listed(1, "n-OST0000", 9));
    }

    /// A setting for all file systems changes the version of each in one commit, which has a limit.
    #[test]
    fn there_are_so_many_file_systems_that_a_setting_for_all_is_one_commit() {
        let empty = Entries::new();
        let tx = &mut Draft::new(&empty);
        let name = |n: usize| format!("f{n}-OST0000");
        for n in 0..FILE_SYSTEMS_MAX {
            register(tx, &reg(&name(n), 1, 1), From::Here).unwrap();
        }
        let refused = register(tx, &reg(&name(FILE_SYSTEMS_MAX), 1, 1), From::Here);
        assert!(matches!(refused, Err(ConfigError::TooManyFileSystems(_))), "{refused:?}");
        register(tx, &reg("f0-OST0001", 2, 1), From::Here).unwrap();
        let entries: Entries = tx.changes().iter().filter_map(|(k, v)| Some((k.clone(), v.clone()?))).collect();
        let mut for_all = Draft::new(&entries);
        let param = SetParam { fsname: String::new(), name: "osc.*.max_dirty_mb".into(), value: Some("32".into()) };
        set_param(&mut for_all, &declared(), &param).unwrap();
        assert!(for_all.into_changes().0.len() <= crate::store::CHANGES_MAX);
    }
}
