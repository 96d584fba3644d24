//! The course of a check: its parts in order, in steps small enough that clients hardly notice, over whatever gives it the
//! MDT's transactions and the OSTs' objects.
//!
//! Objects are compared while files come and go. An object counts as no file's only if it was handed out before the check
//! began, and then neither a layout nor the queue of destroys had it when they were read, in this order: what is given
//! to a file later is newer, and what is taken from one shows in the queue. Whatever an OST says of a file's object is
//! held against the file once more before anything is done.

use super::claims::Claims;
use super::finding::{Finding, Tally};
use super::mend::{Mender, records_after};
use super::names::{self, NamePass};
use super::overlay::Changes;
use crate::record::{Inode, LastUsed};
use crate::tables::INODES;
use async_trait::async_trait;
use nacre_base::steps::Steps;
use nacre_base::{Errno, Fid, OstIndex, Timestamp};
use nacre_osd::Transaction;
use nacre_wire::lfsck::{ObjectAction, ObjectFact, ObjectFacts, ObjectQuery, ObjectRepair, ObjectRepairs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod orphans;
mod stripes;

/// What a step changed.
#[derive(Debug, Default)]
pub struct Work {
    /// Whether there is anything to keep.
    pub is_changed: bool,
    /// Inodes that clients must look at again, and which bits.
    pub inodes: Vec<(Fid, u64)>,
}

/// What runs at a turn of the running transaction, with the version of what it changes. It may run again, with what it did
/// undone.
pub type TurnWork<'a> = dyn FnMut(&mut dyn Transaction, u64) -> Result<Work, Errno> + Send + 'a;

/// The MDT that is checked.
#[async_trait]
pub trait Metadata: Send + Sync {
    /// Runs `work` at a turn, and keeps what it did if it did anything and succeeded.
    async fn turn(&self, work: &mut TurnWork<'_>) -> Result<(), Errno>;

    /// Makes durable what was done.
    async fn commit(&self) -> Result<(), Errno>;

    /// The time that new inodes get.
    fn wall(&self) -> Timestamp;

    /// Which MDT it is.
    fn index(&self) -> u32;

    /// Comes between steps: may wait, to let others work, and may end the check with an error.
    async fn pause(&self, progress: &Progress<'_>) -> Result<(), Errno>;
}

/// The objects of an OST.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// What there is.
    async fn query(&self, query: ObjectQuery) -> Result<ObjectFacts, Errno>;

    /// Carries repairs out, durably.
    async fn repair(&self, repairs: ObjectRepairs) -> Result<(), Errno>;

    /// Objects of which there is data and no record, where nobody removes it meanwhile.
    async fn stray_data(&self) -> Result<Vec<Fid>, Errno> {
        Ok(Vec::new())
    }
}

/// What is checked, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Nothing is changed.
    pub dry_run: bool,
    /// Names and inodes.
    pub namespace: bool,
    /// Files and their objects.
    pub layout: bool,
    /// Objects that are missing are made again, empty (`-C`).
    pub create_objects: bool,
    /// Objects that no file has are looked for (`-o`).
    pub orphans: bool,
    /// Owners of objects are compared with those of files.
    pub compare_owners: bool,
    /// Clients are at work.
    pub is_live: bool,
    /// Clients may come back and make files anew whose objects they have written.
    pub is_recovering: bool,
}

/// How far a check is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The step's place in the course.
    pub stage: Stage,
    /// Last key looked at.
    pub position: &'a [u8],
    /// Records and objects looked at, of the namespace and of the layout.
    pub checked: (u64, u64),
    /// What was found.
    pub tally: &'a Tally,
}

/// A stage of the course. [`Stage::next`] gives their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A pass of the namespace.
    Names(NamePass),
    /// The objects that files claim.
    Claims,
    /// What objects there are.
    Objects,
    /// Files against their objects.
    Stripes,
}

impl Stage {
    /// The one after this one; none after the last.
    pub fn next(self) -> Option<Stage> {
        Some(match self {
            // What objects bring back must be there before entries are taken for dangling.
            Stage::Names(NamePass::Parents) => Stage::Claims,
            Stage::Claims => Stage::Objects,
            Stage::Objects => Stage::Names(NamePass::Entries),
            Stage::Names(pass) => pass.next().map_or(Stage::Stripes, Stage::Names),
            Stage::Stripes => return None,
        })
    }

    /// Whether it looks at the namespace only.
    pub fn is_namespace(self) -> bool {
        matches!(self, Stage::Names(_))
    }
}

/// Knowledge of objects that this run has gathered. It is kept in memory only, so a check that continues after a restart gathers it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Which objects files have.
    Claims,
    /// The objects that files claim, and those that exist.
    Objects,
}

/// The stages that learn of objects, or use what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    Claims,
    Objects,
    Stripes,
}

/// An object is nobody's only by the claims of this run, and files are held against objects only after orphans found theirs.
const KNOWN: Steps<Known, Looks> = Steps(&[
    (Known::Nothing, Looks::Claims, Known::Claims),
    (Known::Claims, Looks::Objects, Known::Objects),
    (Known::Objects, Looks::Stripes, Known::Objects),
]);

/// Records of one turn.
const BATCH: usize = 64;

/// A check under way.
pub struct Course<'a> {
    meta: &'a dyn Metadata,
    osts: &'a BTreeMap<OstIndex, Arc<dyn ObjectStore>>,
    options: Options,
    sink: &'a mut (dyn FnMut(&Finding) + Send),
    tally: Tally,
    checked: (u64, u64),
    /// Of a dry run: what the MDT and the OSTs would have.
    changes: Changes,
    object_changes: BTreeMap<(OstIndex, Fid), Option<ObjectFact>>,
    touched: BTreeSet<Fid>,
    next_oid: u32,
    claims: Claims,
    /// Objects that were claimed twice, and the stripe that keeps each.
    doubles: BTreeMap<(OstIndex, Fid), Option<(Fid, u32)>>,
    /// The last objects in use, as of the beginning.
    used: BTreeMap<OstIndex, LastUsed>,
    /// Objects that no file has, by the file that they name.
    orphans: BTreeMap<Fid, Vec<(OstIndex, ObjectFact)>>,
    /// OSTs that did not answer: nothing is said of their objects.
    unreachable: BTreeSet<OstIndex>,
    known: Known,
}

impl<'a> Course<'a> {
    /// A check of an MDT against these OSTs. `sink` sees every finding as it is made.
    pub fn new(
        meta: &'a dyn Metadata,
        osts: &'a BTreeMap<OstIndex, Arc<dyn ObjectStore>>,
        options: Options,
        sink: &'a mut (dyn FnMut(&Finding) + Send),
    ) -> Course<'a> {
        Course {
            meta,
            osts,
            options,
            sink,
            tally: Tally::default(),
            checked: (0, 0),
            changes: Changes::default(),
            object_changes: BTreeMap::new(),
            touched: BTreeSet::new(),
            next_oid: 0,
            claims: Claims::default(),
            doubles: BTreeMap::new(),
            used: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            known: Known::Nothing,
        }
    }

    /// A stage begins that learns of objects, or uses what is known of them.
    fn look(&mut self, looks: Looks) {
        self.known = KNOWN.next(self.known, looks);
    }

    /// Runs to the end, or from a stage of the namespace and a position in it; what was found.
    pub async fn run(mut self, from: (Stage, Vec<u8>)) -> Result<(Tally, BTreeSet<OstIndex>), Errno> {
        let (mut stage, mut after) = (Some(from.0), from.1);
        while let Some(at) = stage {
            match at {
                Stage::Names(pass) if self.options.namespace => {
                    self.check_names(pass, std::mem::take(&mut after)).await?
                }
                Stage::Claims if self.options.layout => self.claim().await?,
                Stage::Objects if self.options.layout => self.check_objects().await?,
                Stage::Stripes if self.options.layout => self.check_stripes().await?,
                _ => {}
            }
            stage = at.next();
        }
        assert!(self.orphans.is_empty(), "objects of {} files were found, and left alone", self.orphans.len());
        self.assert_dry();
        self.meta.commit().await?;
        Ok((self.tally, self.unreachable))
    }

    async fn check_names(&mut self, pass: NamePass, mut after: Vec<u8>) -> Result<(), Errno> {
        loop {
            let step = self.turn(|m| names::step(m, pass, &after, BATCH)).await?;
            self.checked.0 += step.checked;
            step.findings.iter().for_each(|finding| self.report(finding));
            let Some(last) = step.last else { return Ok(()) };
            after = last;
            self.pause(Stage::Names(pass), &after).await?;
        }
    }

    /// Inodes that can be read, in the order of FIDs, and the last key if there may be more.
    async fn inodes_after(&mut self, after: &[u8]) -> Result<(Vec<(Fid, Inode)>, Option<Vec<u8>>), Errno> {
        self.turn(|m| {
            let records = records_after(m.tx, INODES, after, BATCH)?;
            let last = records.last().map(|(key, _)| key.clone());
            let inodes = records.into_iter().filter_map(|(k, v)| Some((Fid::from_key(&k)?, Inode::decode(v).ok()?)));
            Ok((inodes.collect(), last))
        })
        .await
    }

    fn report(&mut self, finding: &Finding) {
        self.tally.add(finding);
        (self.sink)(finding);
    }

    async fn pause(&mut self, stage: Stage, position: &[u8]) -> Result<(), Errno> {
        let progress = Progress { stage, position, checked: self.checked, tally: &self.tally };
        self.meta.pause(&progress).await
    }

    /// Runs `work` at a turn of the running transaction, or, in a dry run, aside of it.
    async fn turn<T: Send>(
        &mut self,
        mut work: impl FnMut(&mut Mender<'_>) -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        let (now, index, dry_run) = (self.meta.wall(), self.meta.index(), self.options.dry_run);
        let (changes, touched, next_oid) = (&mut self.changes, &mut self.touched, &mut self.next_oid);
        let mut out = None;
        let first_oid = *next_oid;
        self.meta
            .turn(&mut |tx, version| {
                let mut view;
                let tx: &mut dyn Transaction = if dry_run {
                    view = changes.over(tx);
                    &mut view
                } else {
                    tx
                };
                let mut m = Mender::new(tx, version, now, index);
                (m.touched, m.next_oid) = (std::mem::take(touched), *next_oid);
                let done = work(&mut m);
                (*touched, *next_oid) = (m.touched, m.next_oid);
                out = Some(done?);
                let keep = m.is_changed && !dry_run;
                Ok(if keep { Work { is_changed: true, inodes: m.changed } } else { Work::default() })
            })
            .await?;
        assert!(*next_oid >= first_oid, "FIDs are made twice: {next_oid} after {first_oid}");
        let Some(out) = out else { panic!("a turn ended without its work") };
        Ok(out)
    }

    /// What would be changed is kept apart in a dry run only.
    fn assert_dry(&self) {
        let is_apart = !self.object_changes.is_empty();
        assert!(self.options.dry_run || !is_apart, "{} changes of objects are not made", self.object_changes.len());
    }

    /// Asks an OST; none if it does not answer. In a dry run, as if its repairs were made.
    async fn query(
        &mut self,
        ost: OstIndex,
        store: &Arc<dyn ObjectStore>,
        query: ObjectQuery,
    ) -> Result<Option<ObjectFacts>, Errno> {
        if self.unreachable.contains(&ost) {
            return Ok(None);
        }
        let fids = query.fids.clone();
        match store.query(query).await {
            Ok(mut facts) => {
                self.as_repaired(ost, &fids, &mut facts);
                Ok(Some(facts))
            }
            Err(error) => {
                tracing::info!("OST{:04x} is not checked: {error}", ost.0);
                self.unreachable.insert(ost);
                Ok(None)
            }
        }
    }

    fn as_repaired(&self, ost: OstIndex, fids: &[Fid], facts: &mut ObjectFacts) {
        self.assert_dry();
        if self.object_changes.is_empty() {
            return;
        }
        facts.objects.retain_mut(|fact| match self.object_changes.get(&(ost, fact.fid)) {
            Some(Some(repaired)) => {
                *fact = repaired.clone();
                true
            }
            Some(None) => false,
            None => true,
        });
        let made = fids.iter().filter_map(|fid| self.object_changes.get(&(ost, *fid)).cloned().flatten());
        let made: Vec<_> = made.filter(|made| facts.objects.iter().all(|f| f.fid != made.fid)).collect();
        facts.objects.extend(made);
    }

    async fn repair_one(&mut self, ost: OstIndex, repair: ObjectRepair) -> Result<(), Errno> {
        let Some(store) = self.osts.get(&ost) else { return Ok(()) };
        self.repair(ost, store, vec![repair]).await
    }

    /// Has an OST carry repairs out; what they need of the MDT is durable first.
    async fn repair(
        &mut self,
        ost: OstIndex,
        store: &Arc<dyn ObjectStore>,
        repairs: Vec<ObjectRepair>,
    ) -> Result<(), Errno> {
        if repairs.is_empty() {
            return Ok(());
        }
        if !self.options.dry_run {
            return store.repair(ObjectRepairs { repairs }).await;
        }
        for repair in repairs {
            let fids = vec![repair.fid];
            let query = ObjectQuery { fids, ..ObjectQuery::default() };
            let now = self.query(ost, store, query).await?.and_then(|facts| facts.objects.into_iter().next());
            self.object_changes.insert((ost, repair.fid), repaired(now, &repair));
        }
        Ok(())
    }
}

/// What an OST would know of an object after a repair.
fn repaired(fact: Option<ObjectFact>, repair: &ObjectRepair) -> Option<ObjectFact> {
    let ObjectRepair { fid, parent, stripe_index, uid, gid, .. } = *repair;
    let empty = ObjectFact { fid, is_readable: true, ..ObjectFact::default() };
    match repair.action {
        ObjectAction::Create => fact.or(Some(ObjectFact { parent, stripe_index, uid, gid, ..empty })),
        ObjectAction::SetParent => fact.map(|f| ObjectFact { parent, stripe_index, is_precreated: false, ..f }),
        ObjectAction::SetOwner => fact.map(|f| ObjectFact { uid, gid, ..f }),
        ObjectAction::DestroyEmpty => fact.filter(|f| f.size > 0),
        ObjectAction::Rebuild => {
            let data_size = fact.and_then(|f| f.data_size);
            Some(ObjectFact { data_size, size: data_size.unwrap_or(0), ..empty })
        }
        ObjectAction::SetSize => fact.map(|f| ObjectFact { size: f.data_size.unwrap_or(0), ..f }),
        ObjectAction::RaiseLastId => fact,
    }
}

fn repair_of(fid: Fid, action: ObjectAction, parent: Fid, stripe_index: u32, owner: (u32, u32)) -> ObjectRepair {
    ObjectRepair { fid, action, parent, stripe_index, uid: owner.0, gid: owner.1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_held_against_what_this_run_has_seen() {
        KNOWN.assert_sound();
        assert_eq!(KNOWN.find(Known::Nothing, Looks::Objects), None);
        assert_eq!(KNOWN.find(Known::Claims, Looks::Stripes), None);
    }

    #[test]
    fn a_check_looks_at_claims_objects_and_stripes_in_this_order() {
        let stages = std::iter::successors(Some(Stage::Names(NamePass::FIRST)), |stage| stage.next());
        let of_objects: Vec<Stage> = stages.filter(|stage| !stage.is_namespace()).collect();
        assert_eq!(of_objects, [Stage::Claims, Stage::Objects, Stage::Stripes]);
    }
}
