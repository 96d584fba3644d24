//! Changes that are lost for good: a target acknowledged them, crashed, and this client could not replay them; or bytes
//! that were never written to the target, because it evicted this client or refused them. So that an fsync never vouches for a lost change, the first fsync of a changed file fails with EIO, as that of a local
//! disk does after a lost write.

use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{CommitCallback, Fate};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Losses at one target that were not yet reported.
#[derive(Clone, Default)]
pub(crate) struct LostChanges(Arc<Mutex<Lost>>);

#[derive(Default)]
struct Lost {
    /// Files and objects whose loss no fsync has reported.
    fids: BTreeSet<Fid>,
    /// Error of a loss that no syncfs has reported. That does not replace the report by fsync, because sync(2) returns no
    /// error.
    untold: Option<Errno>,
}

impl LostChanges {
    /// For a request that changes these FIDs: a callback that records the loss, should the target lose the request.
    pub(crate) fn watch(&self, fids: impl IntoIterator<Item = Fid>) -> CommitCallback {
        let (lost, fids) = (self.0.clone(), fids.into_iter().collect::<Vec<_>>());
        CommitCallback::new(move |fate| {
            if fate == Fate::Lost {
                let mut lost = lost.lock();
                lost.fids.extend(fids.iter().copied());
                lost.untold.get_or_insert(Errno::EIO);
            }
        })
    }

    /// Records for the next syncfs that bytes were dropped before they were written. Their file has the error for fsync,
    /// but it may have been closed.
    pub(crate) fn note_dropped(&self, error: Errno) {
        self.0.lock().untold.get_or_insert(error);
    }

    /// The error if a change of `fid` was lost; a FID of zero means any change. Each of the two reports a loss once.
    pub(crate) fn check(&self, fid: Fid) -> Result<(), Errno> {
        let mut lost = self.0.lock();
        let error = match fid == Fid::default() {
            true => lost.untold.take(),
            false => lost.fids.remove(&fid).then_some(Errno::EIO),
        };
        error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid { seq: 1, oid: 1, ver: 0 };
    const G: Fid = Fid { seq: 1, oid: 2, ver: 0 };

    #[test]
    fn what_is_lost_is_told_once_to_whoever_syncs_it() {
        let lost = LostChanges::default();
        lost.watch([F, G]).tell(Fate::Durable);
        assert_eq!(lost.check(F), Ok(()));
        lost.watch([F, G]).tell(Fate::Lost);
        assert_eq!((lost.check(F), lost.check(F)), (Err(Errno::EIO), Ok(())));
        assert_eq!((lost.check(Fid::default()), lost.check(Fid::default())), (Err(Errno::EIO), Ok(())));
        assert_eq!(
            (lost.check(G), lost.check(G)),
            (Err(Errno::EIO), Ok(())),
            "who syncs all takes nothing from others"
        );
        lost.note_dropped(Errno::ENOSPC);
        assert_eq!(lost.check(F), Ok(()), "the file itself has this error");
        assert_eq!((lost.check(Fid::default()), lost.check(Fid::default())), (Err(Errno::ENOSPC), Ok(())));
    }
}
