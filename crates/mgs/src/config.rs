//! What the MGS keeps, as keys with values in one table: synchronous functions over a transaction. The shape is that
//! of a small versioned key-value store (put, get by prefix, one version per file system) so that another store can
//! stand behind it.
//!
//! Keys: `version/<fs>` u64; `target/<fs>/<name>` [`TargetEntry`] and object sequence; `param/<fs>/<path>` text;
//! `sequence/next` u64.

use bytes::Bytes;
use nacre_base::{Fid, TargetKind, TargetName};
use nacre_osd::{OsdError, Table, Transaction};
use nacre_wire::mgs::{Config, SeqReply, SetParam, TargetEntry, TargetReg};
use nacre_wire::{decode, encode};
use std::ops::ControlFlow;

/// The table that all keys are in.
pub(crate) const CONFIG: Table = Table("config");

/// Why a change of the configuration was refused.
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
        known: nacre_base::Uuid,
    },
    /// Bytes that cannot be what was stored.
    #[error("the record of {0} is damaged")]
    Damaged(String),
    /// A name that is none.
    #[error("{0:?} is not a target's name")]
    BadName(String),
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

/// Adds or updates a target. Returns its object sequence (0 for an MDT).
pub(crate) fn register(tx: &mut dyn Transaction, reg: &TargetReg) -> Result<u64, ConfigError> {
    let name: TargetName = reg.target.parse().map_err(|_| ConfigError::BadName(reg.target.clone()))?;
    let k = key(&["target", &name.fsname, &reg.target]);
    let known = match tx.get(CONFIG, &k)? {
        Some(v) => Some(decode_target(&reg.target, &v)?),
        None => None,
    };
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

fn decode_target(name: &str, value: &[u8]) -> Result<(TargetEntry, u64), ConfigError> {
    decode(&Bytes::copy_from_slice(value)).map_err(|_| ConfigError::Damaged(name.to_owned()))
}

/// Leases `count` sequences.
pub(crate) fn lease(tx: &mut dyn Transaction, count: u32) -> Result<SeqReply, ConfigError> {
    let first = get_u64(tx, b"sequence/next")?.unwrap_or(Fid::SEQ_NORMAL);
    tx.put(CONFIG, b"sequence/next", &(first + u64::from(count)).to_le_bytes())?;
    Ok(SeqReply { first, count })
}

/// Sets or removes a parameter.
pub(crate) fn set_param(tx: &mut dyn Transaction, param: &SetParam) -> Result<(), ConfigError> {
    let k = key(&["param", &param.fsname, &param.name]);
    match &param.value {
        Some(v) => tx.put(CONFIG, &k, v.as_bytes())?,
        None => drop(tx.delete(CONFIG, &k)?),
    }
    bump_version(tx, &param.fsname)
}

/// The whole configuration of a file system; version 0 if nothing ever registered.
pub(crate) fn read(tx: &dyn Transaction, fsname: &str) -> Result<Config, ConfigError> {
    let version = get_u64(tx, &key(&["version", fsname]))?.unwrap_or(0);
    let mut config = Config { version, fsname: fsname.to_owned(), ..Config::default() };
    for (name, value) in with_prefix(tx, &key(&["target", fsname, ""]))? {
        config.targets.push(decode_target(&name, &value)?.0);
    }
    for (name, value) in with_prefix(tx, &key(&["param", fsname, ""]))? {
        config.params.push((name, String::from_utf8_lossy(&value).into_owned()));
    }
    Ok(config)
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
    use nacre_base::{Nid, Uuid};
    use nacre_osd::{Osd, mem};
    use nacre_rt::Sim;

    fn reg(name: &str, uuid: u8, instance: u64) -> TargetReg {
        let nids = vec![Nid::sim(1)];
        TargetReg { target: name.into(), uuid: Uuid([uuid; 16]), nids, instance, host: "h".into() }
    }

    #[test]
    fn targets_register_once_and_keep_their_sequence() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(nacre_base::Time::from_secs(60), async move {
            let osd = mem::MemOsd::new(&rt, &[CONFIG], mem::MemOptions::default());
            let mut tx = osd.begin().await.unwrap();
            let tx = &mut *tx;
            let seq = register(tx, &reg("n-OST0000", 1, 1)).unwrap();
            assert_eq!(seq, Fid::SEQ_NORMAL);
            assert_eq!(register(tx, &reg("n-MDT0000", 2, 1)).unwrap(), 0);
            assert_eq!(read(tx, "n").unwrap().version, 2);
            // The same again changes nothing; a restart is a new version with the same sequence.
            assert_eq!(register(tx, &reg("n-OST0000", 1, 1)).unwrap(), seq);
            assert_eq!(read(tx, "n").unwrap().version, 2);
            assert_eq!(register(tx, &reg("n-OST0000", 1, 2)).unwrap(), seq);
            assert_eq!(read(tx, "n").unwrap().version, 3);
            assert!(matches!(register(tx, &reg("n-OST0000", 9, 1)), Err(ConfigError::OtherStorage { .. })));
            assert!(matches!(register(tx, &reg("rubbish", 9, 1)), Err(ConfigError::BadName(_))));
            assert_eq!(lease(tx, 5).unwrap().first, seq + 1);
            assert_eq!(lease(tx, 1).unwrap().first, seq + 6);
            let param =
                |v: Option<&str>| SetParam { fsname: "n".into(), name: "a.b".into(), value: v.map(str::to_owned) };
            set_param(tx, &param(Some("7"))).unwrap();
            let config = read(tx, "n").unwrap();
            assert_eq!((config.targets.len(), config.params), (2, vec![("a.b".to_owned(), "7".to_owned())]));
            set_param(tx, &param(None)).unwrap();
            assert!(read(tx, "n").unwrap().params.is_empty());
        });
    }
}
