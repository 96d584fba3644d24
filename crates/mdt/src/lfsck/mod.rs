//! LFSCK: checks whether the file system is consistent, and repairs it. The same rules and the same course serve a
//! running MDT ([`task`]), which queries its OSTs through their imports, and `nacre fsck`, which has the targets to
//! itself.
//!
//! [`rules`] (the namespace) and [`object_rules`] (files and their objects) turn facts into findings. [`names`] and
//! [`course`] gather the facts, in steps at turns of the running transaction; [`mend`] carries out repairs.
//!
//! What must not be here: how an OST keeps its objects.

mod claims;
mod control;
mod course;
mod finding;
mod mend;
mod names;
mod object_rules;
mod overlay;
mod rules;
mod status;
pub(crate) mod task;

pub use control::{Control, RUNNING_FIELDS, Start};
pub use course::{Course, Metadata, ObjectStore, Options, Progress, Stage, TurnWork, Work};
pub use finding::{Finding, Kind, Outcome, Part, Tally};
pub use names::NamePass;

use crate::record::Inode;
use crate::tables::{self, DESTROYS, INODES};
use mend::Mender;
use nacre_base::{Errno, Fid, OstIndex, Timestamp};
use nacre_osd::Transaction;
use nacre_wire::lfsck::{LFSCK_OBJECTS_MAX, ObjectQuery, ObjectRepairs};
use std::collections::BTreeSet;

/// Everything that is wrong with the tables, in words, as far as it shows without the OSTs; empty if all is well. Changes
/// nothing. For tests, in which no table is large.
pub fn check(tx: &mut dyn Transaction) -> Result<Vec<String>, Errno> {
    let mut wrong = check_namespace(tx)?;
    let mut claims = claims::Claims::default();
    for (_, value) in mend::records_after(tx, INODES, &[], usize::MAX)? {
        let Ok(inode) = Inode::decode(value) else { continue };
        for stripe in rules::objects(&inode) {
            let object = stripe.object;
            if !claims.insert(stripe.ost, object) {
                wrong.push(format!("object {object} is claimed twice"));
            }
            match tables::last_used(tx, stripe.ost)? {
                Some(last) if last.seq != object.seq || last.oid >= object.oid => {}
                last => wrong.push(format!("object {object} is above the last used {last:?}")),
            }
        }
    }
    for (key, _) in mend::records_after(tx, DESTROYS, &[], usize::MAX)? {
        let place = (key.first_chunk::<4>().map(|k| OstIndex(u32::from_be_bytes(*k))), Fid::from_key(&key[12..]));
        if let (Some(ost), Some(object)) = place
            && !claims.insert(ost, object)
        {
            wrong.push(format!("object {object} is to be destroyed, twice or though it is in use"));
        }
    }
    Ok(wrong)
}

/// Everything that is wrong with the namespace.
fn check_namespace(tx: &mut dyn Transaction) -> Result<Vec<String>, Errno> {
    let mut changes = overlay::Changes::default();
    let mut touched = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut pass = Some(NamePass::FIRST);
    while let Some(at) = pass {
        let mut after = Vec::new();
        loop {
            let mut view = changes.over(tx);
            let mut m = Mender::new(&mut view, 0, Timestamp::ZERO, 0);
            m.touched = std::mem::take(&mut touched);
            let step = names::step(&mut m, at, &after, 256)?;
            touched = m.touched;
            wrong.extend(step.findings.into_iter().map(|f| f.what));
            match step.last {
                Some(last) => after = last,
                None => break,
            }
        }
        pass = at.next();
    }
    Ok(wrong)
}

/// An OST's facts about its own objects, when there is no MDT to say which file has them.
pub async fn check_objects_alone(
    ost: OstIndex,
    store: &dyn ObjectStore,
    repair: bool,
    sink: &mut (dyn FnMut(&Finding) + Send),
) -> Result<(), Errno> {
    let mut after = Fid::ZERO;
    loop {
        let count = LFSCK_OBJECTS_MAX as u32;
        let facts = store.query(ObjectQuery { after, count, fids: Vec::new() }).await?;
        let Some(last) = facts.objects.last() else { return Ok(()) };
        after = last.fid;
        let mut repairs = Vec::new();
        for (kind, what, repair) in facts.objects.iter().filter_map(|fact| object_rules::check_object(ost, fact)) {
            sink(&Finding::repaired(kind, what));
            repairs.push(repair);
        }
        if repair && !repairs.is_empty() {
            store.repair(ObjectRepairs { repairs }).await?;
        }
    }
}
