//! Pure rules that combine the attributes of a file from those of the MDT and those of its objects.

use nacre_base::Timestamp;
use nacre_wire::attr::{Attr, ObjectAttr};
use nacre_wire::layout::Layout;

/// Attributes of a file's objects, in the order of its stripes; none for an object whose OST was not asked, because it is
/// deactivated or away.
pub(crate) type ObjectAttrs = Vec<Option<ObjectAttr>>;

/// Puts size, blocks and times of the objects into the MDT's attributes.
///
/// Size and blocks are the objects'; where some could not be asked, the MDT's hint counts if it is larger. ctime is the
/// latest. mtime is that of the object that changed last, if it changed after the inode. If the inode changed later, that
/// may have been a new mtime or just a new mode, so the later mtime counts: a client that sets the mtime back also sets
/// it back at the objects (see [`disagrees`]).
pub(crate) fn merge(attr: &mut Attr, layout: &Layout, objects: &[Option<ObjectAttr>]) {
    let known = || objects.iter().flatten();
    let size = layout.file_size(objects.iter().map(|o| o.as_ref().map_or(0, |o| o.size)));
    let blocks = known().map(|o| o.blocks).sum();
    let complete = objects.len() == layout.stripe_count() && objects.iter().all(Option::is_some);
    attr.size = if complete { size } else { size.max(attr.size) };
    attr.blocks = if complete { blocks } else { attr.blocks.max(blocks) };
    let Some(last) = known().max_by_key(|o| (o.ctime, o.mtime)) else { return };
    if last.ctime > attr.ctime {
        attr.mtime = last.mtime;
        attr.ctime = last.ctime;
    } else {
        attr.mtime = attr.mtime.max(last.mtime);
    }
}

/// True if `object` would make the file show another mtime than the one that was just set.
pub(crate) fn disagrees(object: &ObjectAttr, set: Timestamp, ctime: Timestamp) -> bool {
    object.mtime != set && (object.mtime > set || object.ctime > ctime)
}

/// True if `object` still has to get an mtime that was set some time ago, at `ctime`: it shows a later mtime from before
/// `ctime`. An object that was changed since keeps its own.
pub(crate) fn is_owed(object: &ObjectAttr, set: Timestamp, ctime: Timestamp) -> bool {
    object.mtime > set && object.ctime <= ctime
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::{Fid, OstIndex};
    use nacre_wire::layout::{Component, Stripe};

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    fn layout(stripes: u32) -> Layout {
        let stripe = |i| Stripe { ost: OstIndex(i), object: Fid { seq: 1, oid: i, ver: 0 } };
        let stripes = (0..stripes).map(stripe).collect();
        let c = Component { end: u64::MAX, stripe_size: 65536, stripes, ..Component::default() };
        Layout { generation: 1, components: vec![c] }
    }

    fn object(size: u64, mtime: i64, ctime: i64) -> Option<ObjectAttr> {
        Some(ObjectAttr { size, blocks: 8, mtime: at(mtime), ctime: at(ctime), ..ObjectAttr::default() })
    }

    /// (MDT mtime, MDT ctime), objects' (mtime, ctime): merged (mtime, ctime).
    #[track_caller]
    fn check_times(mdt: (i64, i64), objects: &[(i64, i64)], want: (i64, i64)) {
        let mut attr = Attr { mtime: at(mdt.0), ctime: at(mdt.1), ..Attr::default() };
        let objects: Vec<_> = objects.iter().map(|o| object(1, o.0, o.1)).collect();
        merge(&mut attr, &layout(objects.len() as u32), &objects);
        assert_eq!((attr.mtime, attr.ctime), (at(want.0), at(want.1)));
    }

    #[test]
    fn the_last_event_decides_the_times() {
        // Created at 10, never written.
        check_times((10, 10), &[(0, 0), (0, 0)], (10, 10));
        // Written at 20 and 30.
        check_times((10, 10), &[(20, 20), (30, 30)], (30, 30));
        // Written at 30, then a chmod at 40: the write's mtime stays.
        check_times((10, 40), &[(30, 30)], (30, 40));
        // mtime set to the future (90) at 40, then written at 50.
        check_times((90, 40), &[(50, 50)], (50, 50));
        // mtime set back to 5 at 40, at the objects too.
        check_times((5, 40), &[(5, 40), (5, 40)], (5, 40));
        // mtime set to 35 at 40 after a write at 30.
        check_times((35, 40), &[(30, 30)], (35, 40));
    }

    #[test]
    fn setting_an_mtime_back_must_reach_the_objects_that_disagree() {
        let o = |mtime, ctime| object(1, mtime, ctime).unwrap();
        assert!(disagrees(&o(30, 30), at(5), at(40)), "the write would win by being later");
        assert!(!disagrees(&o(30, 30), at(35), at(40)));
        assert!(!disagrees(&o(5, 60), at(5), at(40)));
        assert!(disagrees(&o(30, 60), at(35), at(40)), "the writer's clock is ahead of ours");
    }

    #[test]
    fn an_mtime_that_comes_late_undoes_no_later_change() {
        let o = |mtime, ctime| object(1, mtime, ctime).unwrap();
        assert!(is_owed(&o(30, 30), at(5), at(40)));
        assert!(!is_owed(&o(50, 50), at(5), at(40)), "written since");
        assert!(!is_owed(&o(25, 50), at(5), at(40)), "set again since");
        assert!(!is_owed(&o(5, 40), at(5), at(40)), "done already");
    }

    #[test]
    fn sizes_and_blocks_add_up_and_a_hint_fills_in() {
        let mut attr = Attr { size: 777_777, blocks: 1, ..Attr::default() };
        merge(&mut attr, &layout(2), &[object(65536, 1, 1), object(100, 1, 1)]);
        assert_eq!((attr.size, attr.blocks), (65536 + 100, 16));
        let mut attr = Attr { size: 777_777, blocks: 1, ..Attr::default() };
        merge(&mut attr, &layout(2), &[object(65536, 1, 1), None]);
        assert_eq!((attr.size, attr.blocks), (777_777, 8));
    }
}
