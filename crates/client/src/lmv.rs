//! Which MDT has a file: decided by the sequence of its FID. A name is always reached by (MDT of the parent, parent, name).

use crate::mdc::Mdc;
use crate::mount::targets::Targets;
use nacre_base::{Errno, Fid, MdtIndex};
use std::sync::Arc;

/// The metadata layer of a mount.
pub(crate) struct Lmv {
    targets: Arc<Targets>,
}

impl Lmv {
    pub(crate) fn new(targets: Arc<Targets>) -> Lmv {
        Lmv { targets }
    }

    /// The MDT that has `fid`, if the configuration has it by now.
    pub(crate) fn known_mdc(&self, fid: Fid) -> Option<Arc<Mdc>> {
        self.targets.table().mdts.get(&mdt_of(fid).0).cloned()
    }

    /// Whether the MDT that has `fid` is far away, as far as is known.
    pub(crate) fn is_far(&self, fid: Fid) -> bool {
        self.known_mdc(fid).is_some_and(|mdc| mdc.connection().far().is_some())
    }

    /// The MDT that has `fid`; waits until the configuration has it.
    pub(crate) async fn mdc(&self, fid: Fid) -> Result<Arc<Mdc>, Errno> {
        self.targets.mdc(mdt_of(fid)).await
    }
}

/// A file system has one MDT for now, so every sequence is on it.
fn mdt_of(_fid: Fid) -> MdtIndex {
    MdtIndex(0)
}
