//! Objects for operations that are replayed: those that the file got the first time, as the client was told.

use crate::ops::Objects;
use crate::osp::note_used;
use nacre_base::{Errno, Fid, OstIndex};
use nacre_osd::Transaction;
use nacre_wire::layout::{Layout, LayoutSpec, component_flags};
use std::collections::BTreeMap;
use std::ops::Range;

/// Gives a file the layout of the first answer; the OSTs keep the objects until the recovery is over.
pub(crate) struct ReplayedObjects {
    layout: Option<Layout>,
}

impl ReplayedObjects {
    /// `layout` is the one in the answer, if there was one.
    pub(crate) fn new(layout: Option<Layout>) -> ReplayedObjects {
        ReplayedObjects { layout }
    }
}

impl Objects for ReplayedObjects {
    fn lay_out(&mut self, _: &LayoutSpec) -> Result<Layout, Errno> {
        let mut layout = self.layout.clone().ok_or(Errno::EPROTO)?;
        for component in &mut layout.components {
            component.stripes.clear();
            component.flags &= !component_flags::INIT;
        }
        Ok(layout)
    }

    fn instantiate(
        &mut self,
        tx: &mut dyn Transaction,
        _: Fid,
        layout: &mut Layout,
        _: &Range<u64>,
    ) -> Result<bool, Errno> {
        let Some(replayed) = self.layout.as_ref().filter(|replayed| *replayed != layout) else { return Ok(false) };
        let mut used = BTreeMap::<OstIndex, Vec<Fid>>::new();
        for (_, _, stripe) in replayed.stripes() {
            used.entry(stripe.ost).or_default().push(stripe.object);
        }
        for (ost, mut objects) in used {
            objects.sort_unstable();
            note_used(tx, ost, &objects)?;
        }
        *layout = replayed.clone();
        Ok(true)
    }
}
