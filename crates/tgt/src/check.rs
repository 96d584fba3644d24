//! For a checker of stopped targets: the records that every target keeps of its clients, their saved replies and its
//! instance.

use crate::{LAST_RCVD, REPLY_SLOTS, TARGET, epoch, reply};
use nacre_base::Errno;
use nacre_osd::{Table, Transaction};
use std::ops::ControlFlow;

/// A record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Table of the record.
    pub table: Table,
    /// Key of the record.
    pub key: Vec<u8>,
    /// True if the target can go on without the record: a saved reply or a client's name, but not the target's own
    /// number.
    pub may_go: bool,
}

/// Records that cannot be read. The target would not start with them.
pub fn unreadable(tx: &dyn Transaction) -> Result<Vec<Unreadable>, Errno> {
    let mut found = Vec::new();
    let mut add = |table, key: &[u8], may_go| found.push(Unreadable { table, key: key.to_vec(), may_go });
    tx.scan(REPLY_SLOTS, &[], &mut |key, value| {
        if key.len() != 18 || !reply::is_readable(value) {
            add(REPLY_SLOTS, key, true);
        }
        ControlFlow::Continue(())
    })?;
    tx.scan(LAST_RCVD, &[], &mut |key, _| {
        if key.len() != 16 {
            add(LAST_RCVD, key, true);
        }
        ControlFlow::Continue(())
    })?;
    for (key, len) in [(&b"instance"[..], 8), (epoch::EPOCH, 8), (b"uuid", 16)] {
        if tx.get(TARGET, key)?.is_some_and(|v| v.len() != len) {
            add(TARGET, key, false);
        }
    }
    Ok(found)
}

/// Names of the clients that may come back and replay their changes.
pub fn clients(tx: &dyn Transaction) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    tx.scan(LAST_RCVD, &[], &mut |_, name| {
        names.push(String::from_utf8_lossy(name).into_owned());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// Forgets all clients, so that none is waited for.
pub fn forget_clients(tx: &mut dyn Transaction) -> Result<(), Errno> {
    for table in [LAST_RCVD, REPLY_SLOTS] {
        let mut keys = Vec::new();
        tx.scan(table, &[], &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in keys {
            tx.delete(table, &key)?;
        }
    }
    Ok(())
}

/// A version above all that the target has given, and below all that it will give once it is started again.
pub fn last_version(tx: &dyn Transaction) -> Result<u64, Errno> {
    let instance = tx.get(TARGET, b"instance")?.and_then(|v| v[..].try_into().ok()).map_or(0, u64::from_be_bytes);
    // A number of the target's own that cannot be read is reported by `unreadable`.
    Ok(epoch::last_of(epoch::highest(tx, instance).unwrap_or(instance)).0)
}
