//! The sequences of an OST's objects. Ids have 32 bits, so a sequence is used up some day; the MGS then gives its
//! successor. An OST owns every sequence that it was ever given. Later ones have higher numbers, because the MGS gives
//! each number once.

use crate::TARGET_SEQ;
use async_trait::async_trait;
use nacre_base::{Errno, Fid, TargetName};
use nacre_mgc::Mgc;
use nacre_osd::Transaction;
use nacre_tgt::TARGET;
use std::sync::Arc;

/// The last id of a sequence. The id above it is never handed out, so that the end of a range has a number.
pub(crate) const OID_MAX: u32 = u32::MAX - 1;
/// Key of the last id that was handed out in the current sequence.
const LAST_ID: &[u8] = b"last_id";
/// Key of the sequences that are used up, ascending, 8 bytes each.
const FORMER_SEQS: &[u8] = b"former_seqs";

/// Source of successors.
#[async_trait]
pub(crate) trait Successors: Send + Sync {
    /// The sequence after `used_up`: the same one however often it is requested.
    async fn successor(&self, used_up: u64) -> Result<u64, Errno>;
}

/// Successors from the MGS.
pub(crate) struct OfMgs {
    pub(crate) mgc: Arc<Mgc>,
    pub(crate) name: TargetName,
}

#[async_trait]
impl Successors for OfMgs {
    async fn successor(&self, used_up: u64) -> Result<u64, Errno> {
        Ok(self.mgc.successor(&self.name, used_up).await?)
    }
}

/// Sequences in an OST's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sequences {
    /// Sequences that are used up, ascending.
    pub(crate) former: Vec<u64>,
    /// The sequence of new objects; 0 if the OST has none yet.
    pub(crate) current: u64,
    /// The last id of `current` that was handed out.
    pub(crate) last_id: u32,
}

impl Sequences {
    pub(crate) fn load(tx: &dyn Transaction) -> Result<Sequences, Errno> {
        let former = tx.get(TARGET, FORMER_SEQS)?.unwrap_or_default();
        let former = former.chunks(8).map(|c| c.try_into().map(u64::from_be_bytes).map_err(|_| Errno::EIO));
        let last_id = match tx.get(TARGET, LAST_ID)? {
            Some(v) => v[..].try_into().map(u32::from_be_bytes).map_err(|_| Errno::EIO)?,
            None => 0,
        };
        Ok(Sequences { former: former.collect::<Result<_, _>>()?, current: current(tx)?, last_id })
    }

    pub(crate) fn store(&self, tx: &mut dyn Transaction) -> Result<(), Errno> {
        let former: Vec<u8> = self.former.iter().flat_map(|seq| seq.to_be_bytes()).collect();
        tx.put(TARGET, FORMER_SEQS, &former)?;
        tx.put(TARGET, TARGET_SEQ, &self.current.to_be_bytes())?;
        put_last_id(tx, self.last_id)
    }

    /// True if the OST has or had the sequence.
    pub(crate) fn owns(&self, seq: u64) -> bool {
        seq != 0 && (seq == self.current || self.former.contains(&seq))
    }

    /// New objects get the sequence `next` from now on.
    pub(crate) fn succeed(&mut self, next: u64) {
        assert!(next > self.current, "sequence {next:#x} does not follow {:#x}", self.current);
        self.former.push(self.current);
        (self.current, self.last_id) = (next, 0);
    }

    /// Records that a file has this object: no id up to it is handed out again. Its sequence may be unknown if the OST
    /// was restored from a backup made before it was given that sequence.
    pub(crate) fn handle_used(&mut self, last: Fid) {
        if last.seq > self.current && self.current != 0 {
            self.succeed(last.seq);
        }
        if last.seq == self.current {
            self.last_id = self.last_id.max(last.oid.min(OID_MAX));
        }
    }
}

/// The sequence of new objects; 0 if the OST has none yet.
pub(crate) fn current(tx: &dyn Transaction) -> Result<u64, Errno> {
    match tx.get(TARGET, TARGET_SEQ)? {
        Some(v) => v[..].try_into().map(u64::from_be_bytes).map_err(|_| Errno::EIO),
        None => Ok(0),
    }
}

/// Stores the last id of the current sequence that was handed out.
pub(crate) fn put_last_id(tx: &mut dyn Transaction, last_id: u32) -> Result<(), Errno> {
    Ok(tx.put(TARGET, LAST_ID, &last_id.to_be_bytes())?)
}
