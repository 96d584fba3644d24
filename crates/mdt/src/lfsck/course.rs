//! The course of a check: its stages in order, in steps small enough that clients hardly notice. Its callers give it
//! access to the MDT's transactions and the OSTs' objects.
//!
//! Objects are compared while files come and go. An object counts as an orphan only if it was handed out before the check
//! began, and afterwards neither a layout nor the queue of destroys had it when they were read, in this order: objects
//! given to a file later are newer, and objects taken from a file are in the queue. Whatever an OST says about a file's
//! object is compared with the file once more before a repair.

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

/// Changes made by a step.
#[derive(Debug, Default)]
pub struct Work {
    /// True if there are changes to keep.
    pub is_changed: bool,
    /// Inodes whose cached state clients must drop, and the lock bits concerned.
    pub inodes: Vec<(Fid, u64)>,
}

/// Work that runs at a turn of the running transaction, with the version for its changes. It may run again after its
/// changes were undone.
pub type TurnWork<'a> = dyn FnMut(&mut dyn Transaction, u64) -> Result<Work, Errno> + Send + 'a;

/// The MDT that is checked.
#[async_trait]
pub trait Metadata: Send + Sync {
    /// Runs `work` at a turn, and keeps its changes if it made any and succeeded.
    async fn turn(&self, work: &mut TurnWork<'_>) -> Result<(), Errno>;

    /// Makes earlier changes durable.
    async fn commit(&self) -> Result<(), Errno>;

    /// The time that new inodes get.
    fn wall(&self) -> Timestamp;

    /// Index of the MDT.
    fn index(&self) -> u32;

    /// Called between steps: may wait, to let clients work, and may end the check with an error.
    async fn pause(&self, progress: &Progress<'_>) -> Result<(), Errno>;
}

/// The objects of an OST.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Reports objects.
    async fn query(&self, query: ObjectQuery) -> Result<ObjectFacts, Errno>;

    /// Carries out repairs, durably.
    async fn repair(&self, repairs: ObjectRepairs) -> Result<(), Errno>;

    /// Objects that have data and no record, if nothing else removes such data meanwhile.
    async fn stray_data(&self) -> Result<Vec<Fid>, Errno> {
        Ok(Vec::new())
    }
}

/// Parts and manner of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Report only; change nothing.
    pub dry_run: bool,
    /// Check names and inodes.
    pub namespace: bool,
    /// Check files and their objects.
    pub layout: bool,
    /// Create missing objects again, empty (`-C`).
    pub create_objects: bool,
    /// Look for objects that no file has (`-o`).
    pub orphans: bool,
    /// Compare owners of objects with those of files.
    pub compare_owners: bool,
    /// True if clients are at work.
    pub is_live: bool,
    /// True if clients may come back and create files again whose objects they have written.
    pub is_recovering: bool,
}

/// Progress of a check.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The current stage.
    pub stage: Stage,
    /// Last key that was checked.
    pub position: &'a [u8],
    /// Number of checked records of the namespace, and of checked objects.
    pub checked: (u64, u64),
    /// Findings so far.
    pub tally: &'a Tally,
}

/// A stage of the course. [`Stage::next`] gives their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A pass of the namespace.
    Names(NamePass),
    /// The objects that files claim.
    Claims,
    /// The objects that exist.
    Objects,
    /// Files compared with their objects.
    Stripes,
}

impl Stage {
    /// The next stage; none after the last.
    pub fn next(self) -> Option<Stage> {
        Some(match self {
            // Entries rebuilt from objects must be there before entries can be called dangling.
            Stage::Names(NamePass::Parents) => Stage::Claims,
            Stage::Claims => Stage::Objects,
            Stage::Objects => Stage::Names(NamePass::Entries),
            Stage::Names(pass) => pass.next().map_or(Stage::Stripes, Stage::Names),
            Stage::Stripes => return None,
        })
    }

    /// True if the stage looks at the namespace only.
    pub fn is_namespace(self) -> bool {
        matches!(self, Stage::Names(_))
    }
}

/// Knowledge of objects that this run has gathered. It is kept in memory only, so a check that continues after a restart gathers it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The objects that files claim.
    Claims,
    /// The objects that files claim, and those that exist.
    Objects,
}

/// Stages that learn of objects, or use that knowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    Claims,
    Objects,
    Stripes,
}

/// Only the claims of this run can make an object an orphan, and files are compared with objects only after orphans found
/// their files.
const KNOWN: Steps<Known, Looks> = Steps(&[
    (Known::Nothing, Looks::Claims, Known::Claims),
    (Known::Claims, Looks::Objects, Known::Objects),
    (Known::Objects, Looks::Stripes, Known::Objects),
]);

/// Number of records processed in one turn.
const BATCH: usize = 64;

/// A check under way.
pub struct Course<'a> {
    meta: &'a dyn Metadata,
    osts: &'a BTreeMap<OstIndex, Arc<dyn ObjectStore>>,
    options: Options,
    sink: &'a mut (dyn FnMut(&Finding) + Send),
    tally: Tally,
    checked: (u64, u64),
    /// State that the MDT and the OSTs would have after the repairs of a dry run.
    changes: Changes,
    object_changes: BTreeMap<(OstIndex, Fid), Option<ObjectFact>>,
    touched: BTreeSet<Fid>,
    next_oid: u32,
    claims: Claims,
    /// Objects that two stripes claim, and the stripe that keeps each.
    doubles: BTreeMap<(OstIndex, Fid), Option<(Fid, u32)>>,
    /// The last object in use of each OST, as of the beginning.
    used: BTreeMap<OstIndex, LastUsed>,
    /// Objects that no file has, by the file that they name.
    orphans: BTreeMap<Fid, Vec<(OstIndex, ObjectFact)>>,
    /// OSTs that did not answer; their objects are not judged.
    unreachable: BTreeSet<OstIndex>,
    known: Known,
}

impl<'a> Course<'a> {
    /// Prepares a check of an MDT against these OSTs. `sink` gets every finding as it is made.
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

    /// Begins a stage that learns of objects, or uses that knowledge.
    fn look(&mut self, looks: Looks) {
        self.known = KNOWN.next(self.known, looks);
    }

    /// Runs the check to the end, or from a stage and a position in it. Returns the findings and the unreachable OSTs.
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

    /// Runs `work` at a turn of the running transaction, or, in a dry run, on a copy of what it changes.
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

    /// Changes of objects are kept aside in a dry run only.
    fn assert_dry(&self) {
        let is_apart = !self.object_changes.is_empty();
        assert!(self.options.dry_run || !is_apart, "{} changes of objects are not made", self.object_changes.len());
    }

    /// Queries an OST; none if it does not answer. In a dry run, the answer is as if the repairs had been made.
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

    /// Lets an OST carry out repairs; in a dry run, only notes their effect.
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

/// The facts about an object after a repair.
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
