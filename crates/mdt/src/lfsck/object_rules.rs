//! The rules for files and their objects: they turn facts about an object and its file into findings and repairs. Plain
//! functions of their arguments; [`super::course`] gathers the facts.
//!
//! The principle: a file keeps its objects, an object keeps its data. An object with data goes to a file, if need be a
//! new one in `lost+found`; only empty objects are destroyed.

use super::finding::Kind;
use crate::record::{Inode, LastUsed};
use nacre_base::{Fid, OstIndex};
use nacre_wire::layout::{
    Component, Layout, STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, STRIPE_SIZE_MIN, Stripe, component_flags, pattern,
};
use nacre_wire::lfsck::{ObjectAction, ObjectFact, ObjectRepair};
use std::collections::BTreeSet;

/// The repair of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mend {
    /// The OST repairs the object.
    Object(ObjectRepair),
    /// The file gets another, empty object here.
    NewObject,
    /// No repair is possible, for this reason.
    Nothing(&'static str),
}

/// A finding about a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StripeVerdict {
    pub(crate) kind: Kind,
    pub(crate) what: String,
    pub(crate) mend: Mend,
}

/// Facts about a stripe of a file.
pub(crate) struct StripeFacts<'a> {
    pub(crate) file: Fid,
    pub(crate) inode: &'a Inode,
    /// Number of the stripe over all components.
    pub(crate) index: u32,
    pub(crate) stripe: &'a Stripe,
    /// The object, if it exists.
    pub(crate) object: Option<&'a ObjectFact>,
    /// The last object of the OST that was ever handed out.
    pub(crate) last: LastUsed,
    /// True if another stripe has the object too, and keeps it.
    pub(crate) is_anothers: bool,
    /// True if missing objects are created again, empty.
    pub(crate) create: bool,
    /// True if owners are compared.
    pub(crate) compare_owner: bool,
}

/// Compares a stripe of a file with its object.
pub(crate) fn check_stripe(f: &StripeFacts<'_>) -> Vec<StripeVerdict> {
    let (file, inode, Stripe { ost, object }) = (f.file, f.inode, f.stripe);
    let place = format!("object {object} on OST{:04x}, stripe {} of {file},", ost.0, f.index);
    let verdict = |kind, what, mend| StripeVerdict { kind, what, mend };
    if f.is_anothers {
        let what = format!("{place} also is another's, which keeps it");
        return vec![verdict(Kind::MultipleReferenced, what, Mend::NewObject)];
    }
    let repair = |action| ObjectRepair {
        fid: *object,
        action,
        parent: file,
        stripe_index: f.index,
        uid: inode.uid,
        gid: inode.gid,
    };
    let Some(fact) = f.object else {
        let mend = match () {
            () if !f.create => Mend::Nothing("it is made again, empty, if you say so (-C)"),
            // The object was never handed out: one day it will be, to another file.
            () if object.seq != f.last.seq || object.ver != 0 || object.oid > f.last.oid => Mend::NewObject,
            () => Mend::Object(repair(ObjectAction::Create)),
        };
        return vec![verdict(Kind::DanglingObject, format!("{place} does not exist"), mend)];
    };
    let mut found = Vec::new();
    // Stripes get new numbers when a component in front gets its objects; the next write stores the new number.
    let is_plain = inode.layout.as_ref().is_some_and(|l| l.components.len() == 1);
    let is_other_stripe = is_plain && fact.stripe_index != f.index;
    if !fact.parent.is_zero() && (fact.parent != file || is_other_stripe) {
        let what = format!("{place} says that it is stripe {} of {}", fact.stripe_index, fact.parent);
        found.push(verdict(Kind::UnmatchedPair, what, Mend::Object(repair(ObjectAction::SetParent))));
    }
    let is_owned = !fact.is_precreated && (fact.uid, fact.gid) != (inode.uid, inode.gid);
    if f.compare_owner && is_owned {
        let what = format!("{place} belongs to {}:{}, not {}:{}", fact.uid, fact.gid, inode.uid, inode.gid);
        found.push(verdict(Kind::InconsistentOwner, what, Mend::Object(repair(ObjectAction::SetOwner))));
    }
    found
}

/// Checks an object on its own.
pub(crate) fn check_object(ost: OstIndex, fact: &ObjectFact) -> Option<(Kind, String, ObjectRepair)> {
    let place = format!("object {} on OST{:04x}", fact.fid, ost.0);
    let repair = |action| ObjectRepair { fid: fact.fid, action, ..ObjectRepair::default() };
    if !fact.is_readable {
        let what = format!("the record of {place} cannot be read: made anew from its data");
        return Some((Kind::UnreadableObject, what, repair(ObjectAction::Rebuild)));
    }
    if fact.size > 0 && fact.data_size.is_none() {
        let what = format!("{place} had {} bytes, which are lost: it is empty now", fact.size);
        return Some((Kind::LostData, what, repair(ObjectAction::SetSize)));
    }
    None
}

/// True if an object that no file has may be precreated, or, if `is_recovering`, one for which a client may still have a
/// file created.
pub(crate) fn is_unused(fact: &ObjectFact, last_used: Option<&LastUsed>, is_recovering: bool) -> bool {
    let is_beyond = last_used.is_none_or(|last| (fact.fid.seq, fact.fid.oid) > (last.seq, last.oid));
    is_beyond && (is_recovering || (fact.is_precreated && fact.size == 0))
}

/// Repair of the objects that no file has and that name the same file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Destroy them, because they hold no data.
    Destroy,
    /// Rebuild the file with this layout, because they are complete.
    Rebuild(Layout),
    /// Make each a file of its own.
    Apart,
}

/// Chooses the repair of objects that name a file which does not have them. `inode`: the file, if it exists; `is_named`:
/// if it does not, whether a name of it is left.
pub(crate) fn fate(objects: &[(OstIndex, ObjectFact)], inode: Option<&Inode>, is_named: bool) -> Fate {
    let is_empty = objects.iter().all(|(_, fact)| fact.size == 0);
    let is_known = objects.iter().all(|(_, fact)| !fact.parent.is_zero());
    let has_room = inode.is_none_or(|i| i.is_file() && i.layout.as_ref().is_none_or(|l| l.stripe_count() == 0));
    if is_empty && (inode.is_some() || !is_named) {
        return Fate::Destroy;
    }
    let count = objects.len();
    let mut by_index: Vec<_> = objects.iter().collect();
    by_index.sort_by_key(|(_, fact)| fact.stripe_index);
    let is_whole = by_index.iter().enumerate().all(|(i, (_, fact))| fact.stripe_index == i as u32);
    if !(is_known && has_room && is_whole && count <= STRIPE_COUNT_MAX) {
        return Fate::Apart;
    }
    let stripes: Vec<Stripe> = by_index.iter().map(|(ost, f)| Stripe { ost: *ost, object: f.fid }).collect();
    let sizes: Vec<u64> = by_index.iter().map(|(_, fact)| fact.size).collect();
    Fate::Rebuild(layout_of(stripes, stripe_size(&sizes)))
}

/// Creates a layout of one component.
pub(crate) fn layout_of(stripes: Vec<Stripe>, stripe_size: u32) -> Layout {
    let osts: BTreeSet<OstIndex> = stripes.iter().map(|s| s.ost).collect();
    let overstriped = if osts.len() < stripes.len() { pattern::OVERSTRIPING } else { 0 };
    let component = Component {
        id: 1,
        flags: component_flags::INIT,
        end: u64::MAX,
        pattern: pattern::RAID0 | overstriped,
        stripe_size,
        stripes,
        ..Component::default()
    };
    Layout { generation: 0, components: vec![component] }
}

/// The stripe size of a file that was written from start to end and whose objects have these sizes: objects before the
/// file's end are a whole stripe longer than those behind, and only the one with the end lies between. The default stripe
/// size if the sizes do not tell.
fn stripe_size(sizes: &[u64]) -> u32 {
    let [most, second, .., second_last, least] = sizes else { return STRIPE_SIZE_DEFAULT };
    let step = most.checked_sub(*least).filter(|_| most == second && least == second_last);
    let step = step.filter(|s| *s > 0 && s.is_multiple_of(STRIPE_SIZE_MIN.into()) && least.is_multiple_of(*s));
    step.and_then(|s| u32::try_from(s).ok()).unwrap_or(STRIPE_SIZE_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid { seq: 0x200000401, oid: 5, ver: 0 };
    const OTHER: Fid = Fid { seq: 0x200000401, oid: 6, ver: 0 };
    const SEQ: u64 = 0x240000400;
    const MIB: u64 = 1 << 20;

    fn object(oid: u32) -> Fid {
        Fid { seq: SEQ, oid, ver: 0 }
    }

    fn fact(oid: u32, stripe_index: u32, size: u64) -> ObjectFact {
        let (fid, data_size) = (object(oid), Some(size));
        ObjectFact { fid, is_readable: true, size, data_size, parent: FILE, stripe_index, ..ObjectFact::default() }
    }

    fn file(oids: &[u32]) -> Inode {
        let stripes = oids.iter().map(|oid| Stripe { ost: OstIndex(0), object: object(*oid) }).collect();
        Inode { mode: 0o100644, nlink: 1, layout: Some(layout_of(stripes, 65536)), ..Inode::default() }
    }

    fn stripe(of: Option<ObjectFact>, change: impl FnOnce(&mut StripeFacts<'_>)) -> Vec<(Kind, Mend)> {
        let (inode, stripe) = (file(&[7]), Stripe { ost: OstIndex(0), object: object(7) });
        let mut f = StripeFacts {
            file: FILE,
            inode: &inode,
            index: 0,
            stripe: &stripe,
            object: of.as_ref(),
            last: LastUsed { seq: SEQ, oid: 100 },
            is_anothers: false,
            create: false,
            compare_owner: false,
        };
        change(&mut f);
        check_stripe(&f).into_iter().map(|v| (v.kind, v.mend)).collect()
    }

    #[test]
    fn stripes_against_their_objects() {
        assert_eq!(stripe(Some(fact(7, 0, 5)), |_| ()), []);
        let fresh = ObjectFact { parent: Fid::ZERO, is_precreated: true, uid: 9, ..fact(7, 3, 0) };
        assert_eq!(stripe(Some(fresh), |f| f.compare_owner = true), [], "nobody has written to it");
        let repair = |action| ObjectRepair { fid: object(7), action, parent: FILE, ..ObjectRepair::default() };
        let set_parent = Mend::Object(repair(ObjectAction::SetParent));
        let of_other = ObjectFact { parent: OTHER, ..fact(7, 0, 5) };
        assert_eq!(stripe(Some(of_other), |_| ()), [(Kind::UnmatchedPair, set_parent.clone())]);
        assert_eq!(stripe(Some(fact(7, 2, 5)), |_| ()), [(Kind::UnmatchedPair, set_parent)]);
        let set_owner = Mend::Object(repair(ObjectAction::SetOwner));
        let of_user = || Some(ObjectFact { uid: 9, ..fact(7, 0, 5) });
        assert_eq!(stripe(of_user(), |f| f.compare_owner = true), [(Kind::InconsistentOwner, set_owner)]);
        assert_eq!(stripe(of_user(), |_| ()), []);
        assert_eq!(stripe(of_user(), |f| f.is_anothers = true), [(Kind::MultipleReferenced, Mend::NewObject)]);
    }

    #[test]
    fn a_missing_object_is_made_again_only_if_that_is_wished() {
        assert!(matches!(stripe(None, |_| ())[..], [(Kind::DanglingObject, Mend::Nothing(_))]));
        let created = stripe(None, |f| f.create = true);
        assert!(matches!(&created[..], [(_, Mend::Object(r))] if r.action == ObjectAction::Create), "{created:?}");
        let never_was = stripe(None, |f| {
            f.create = true;
            f.last.oid = 6;
        });
        assert_eq!(never_was, [(Kind::DanglingObject, Mend::NewObject)], "its id will be another's");
    }

    #[test]
    fn objects_on_their_own() {
        let kind = |f: ObjectFact| check_object(OstIndex(0), &f).map(|(kind, ..)| kind);
        assert_eq!(kind(fact(1, 0, 5)), None);
        assert_eq!(kind(ObjectFact { data_size: None, ..fact(1, 0, 0) }), None);
        assert_eq!(
            kind(ObjectFact { data_size: Some(3), ..fact(1, 0, 5) }),
            None,
            "a truncation that a crash cut short"
        );
        assert_eq!(kind(ObjectFact { data_size: None, ..fact(1, 0, 5) }), Some(Kind::LostData));
        assert_eq!(kind(ObjectFact { is_readable: false, ..fact(1, 0, 5) }), Some(Kind::UnreadableObject));
    }

    #[test]
    fn objects_made_ahead_are_no_orphans() {
        let last = LastUsed { seq: SEQ, oid: 10 };
        let ahead = |oid| ObjectFact { is_precreated: true, parent: Fid::ZERO, ..fact(oid, 0, 0) };
        assert!(is_unused(&ahead(11), Some(&last), false));
        assert!(!is_unused(&ahead(10), Some(&last), false), "it was handed out");
        assert!(is_unused(&ahead(1), None, false));
        assert!(!is_unused(&fact(11, 0, 5), Some(&last), false), "somebody wrote to it");
        assert!(is_unused(&fact(11, 0, 5), Some(&last), true), "the client may still make the file again");
        assert!(!is_unused(&fact(10, 0, 5), Some(&last), true));
    }

    #[test]
    fn what_becomes_of_objects_without_a_file() {
        let on = |facts: &[ObjectFact]| -> Vec<(OstIndex, ObjectFact)> {
            facts.iter().enumerate().map(|(i, f)| (OstIndex(i as u32), f.clone())).collect()
        };
        let two = on(&[fact(1, 1, MIB), fact(2, 0, 4 * MIB)]);
        let Fate::Rebuild(layout) = fate(&two, None, false) else { panic!("it is whole") };
        let component = &layout.components[0];
        assert_eq!((component.stripe_size, component.stripes.len()), (STRIPE_SIZE_DEFAULT, 2));
        assert_eq!(component.stripes[0], Stripe { ost: OstIndex(1), object: object(2) });
        assert!(matches!(fate(&two, Some(&file(&[])), false), Fate::Rebuild(_)), "a file that lost its layout");
        assert_eq!(fate(&two, Some(&file(&[9])), false), Fate::Apart, "the file has other objects");
        assert_eq!(fate(&on(&[fact(1, 1, MIB)]), None, false), Fate::Apart, "stripe 0 is missing");
        assert_eq!(fate(&on(&[fact(1, 0, 1), fact(2, 0, 1)]), None, false), Fate::Apart, "stripe 0 twice");
        assert_eq!(fate(&on(&[fact(1, 0, 0)]), None, false), Fate::Destroy);
        assert!(matches!(fate(&on(&[fact(1, 0, 0)]), None, true), Fate::Rebuild(_)), "the name is still there");
        let unknown = ObjectFact { parent: Fid::ZERO, ..fact(1, 0, 5) };
        assert_eq!(fate(&on(&[unknown]), None, false), Fate::Apart);
    }

    #[test]
    fn stripe_sizes_show_in_the_sizes_of_objects() {
        assert_eq!(stripe_size(&[2 * MIB, 2 * MIB, MIB + 5, MIB, MIB]), 1 << 20);
        assert_eq!(stripe_size(&[3 * MIB, 3 * MIB, 2 * MIB, 2 * MIB]), 1 << 20);
        assert_eq!(stripe_size(&[2 * MIB, 2 * MIB, 0, 0]), 2 << 20);
        for says_nothing in [&[4 * MIB; 4][..], &[2 * MIB, MIB], &[2 * MIB, 2 * MIB, MIB], &[MIB, MIB, 9, 9]] {
            assert_eq!(stripe_size(says_nothing), STRIPE_SIZE_DEFAULT, "{says_nothing:?}");
        }
        assert_eq!(stripe_size(&[]), STRIPE_SIZE_DEFAULT);
    }
}
