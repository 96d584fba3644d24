//! Objects for replayed operations: those that the file got the first time, as the client was told.

use crate::ops::Objects;
use crate::osp::note_used;
use crate::tables;
use nacre_base::{Errno, Fid, OstIndex};
use nacre_osd::Transaction;
use nacre_wire::layout::{Layout, LayoutSpec, component_flags};
use std::collections::BTreeMap;
use std::ops::Range;

/// Objects between two replayed ones belong to changes that are missing or fail. They are queued for destruction under
/// this number, which counts as durable at any time: destroys begin when the recovery is over.
const MISSED: u64 = 0;
/// Most objects that may be missing between two replayed ones: more than all clients create between two commits, so that
/// no client's bytes can make the MDT queue billions.
const MISSED_MAX: u32 = 1 << 17;

/// Gives a file the layout of the first reply; the OSTs keep the objects until the recovery is over.
pub(crate) struct ReplayedObjects {
    layout: Option<Layout>,
}

impl ReplayedObjects {
    /// `layout` is the one in the first reply, if there was one.
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
            queue_missed(tx, ost, &objects)?;
            note_used(tx, ost, &objects)?;
        }
        *layout = replayed.clone();
        Ok(true)
    }
}

/// Records that objects of this OST, in ascending order, belong to a file again. Objects were given out roughly in the
/// order of operations: those before them that no replay has claimed count as missed, until a replay claims them after
/// all.
fn queue_missed(tx: &mut dyn Transaction, ost: OstIndex, objects: &[Fid]) -> Result<(), Errno> {
    for object in objects {
        tables::delete_destroy(tx, ost, MISSED, *object)?;
    }
    let Some(last) = objects.last() else { return Ok(()) };
    let used = tables::last_used(tx, ost)?.filter(|used| used.seq == last.seq).map_or(0, |used| used.oid);
    if last.oid.saturating_sub(used) > MISSED_MAX {
        tracing::warn!("OST{:04x}: objects from {used} to {} are not looked after: lfsck finds them", ost.0, last.oid);
        return Ok(());
    }
    for oid in used.saturating_add(1)..last.oid {
        let object = Fid { oid, ..*last };
        if objects.binary_search(&object).is_err() {
            tables::put_destroy(tx, ost, MISSED, object)?;
        }
    }
    Ok(())
}
