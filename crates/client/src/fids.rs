//! FIDs for new files, from sequences that the MGS leases to this client. [`FidRange`] is the rule; [`Fids`] asks the MGS
//! for another lease when one is used up.

use nacre_base::{Errno, Fid};
use nacre_mgc::Mgc;
use nacre_wire::mgs::SeqReply;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Sequences per lease. One is enough for 131,072 files.
const LEASE_COUNT: u32 = 1;

/// The unused part of a lease.
#[derive(Debug, Default)]
pub(crate) struct FidRange {
    /// The sequence in use; the lease goes up to `end`.
    seq: u64,
    end: u64,
    /// Last object id allocated; 0 is never allocated.
    oid: u32,
}

impl FidRange {
    /// Allocates a FID; none if the lease is used up.
    pub(crate) fn next(&mut self) -> Option<Fid> {
        if self.oid + 1 >= Fid::OIDS_PER_SEQ && self.seq < self.end {
            self.seq += 1;
            self.oid = 0;
        }
        if self.seq >= self.end {
            return None;
        }
        self.oid += 1;
        Some(Fid { seq: self.seq, oid: self.oid, ver: 0 })
    }

    /// Takes a new lease, once the old one is used up. Refuses an empty lease, and sequences that are not for files.
    pub(crate) fn handle_lease(&mut self, lease: &SeqReply) -> Result<(), Errno> {
        let end = lease.first.checked_add(lease.count.into());
        let end = end.filter(|end| *end > lease.first && lease.first >= Fid::SEQ_NORMAL).ok_or(Errno::EPROTO)?;
        *self = FidRange { seq: lease.first, end, oid: 0 };
        Ok(())
    }
}

/// The source of FIDs of one mount.
pub(crate) struct Fids {
    mgc: Arc<Mgc>,
    fsname: Box<str>,
    range: Mutex<FidRange>,
}

impl Fids {
    pub(crate) fn new(mgc: Arc<Mgc>, fsname: String) -> Fids {
        Fids { mgc, fsname: fsname.into(), range: Mutex::default() }
    }

    /// Allocates a FID that no file has or had. Waits for the MGS if a lease is needed.
    pub(crate) async fn next(&self) -> Result<Fid, Errno> {
        // Held over the await on purpose: callers that come meanwhile need the same lease.
        let mut range = self.range.lock().await;
        loop {
            if let Some(fid) = range.next() {
                return Ok(fid);
            }
            let lease = self.mgc.lease_sequences(&self.fsname, LEASE_COUNT).await.map_err(|e| e.errno())?;
            range.handle_lease(&lease)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_gives_every_fid_once_and_then_none() {
        let mut range = FidRange::default();
        assert_eq!(range.next(), None);
        let first = Fid::SEQ_NORMAL + 7;
        range.handle_lease(&SeqReply { first, count: 2 }).unwrap();
        let all: Vec<Fid> = std::iter::from_fn(|| range.next()).collect();
        assert_eq!(all.len(), 2 * (Fid::OIDS_PER_SEQ as usize - 1));
        assert!(all.is_sorted_by(|a, b| a < b), "each is greater than the one before, so none repeats");
        assert_eq!(all[0], Fid { seq: first, oid: 1, ver: 0 });
        assert!(all.iter().all(|f| f.oid > 0 && f.oid < Fid::OIDS_PER_SEQ && f.seq < first + 2));
        assert_eq!(range.next(), None);
    }

    #[test]
    fn a_lease_that_is_none_is_refused() {
        let mut range = FidRange::default();
        for (first, count) in [(Fid::SEQ_NORMAL, 0), (u64::MAX, 1), (1, 5), (Fid::ROOT.seq, 1)] {
            assert_eq!(range.handle_lease(&SeqReply { first, count }), Err(Errno::EPROTO));
            assert_eq!(range.next(), None);
        }
    }
}
