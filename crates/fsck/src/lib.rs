//! Checks and repairs stopped targets: `nacre fsck`. It opens their devices, repairs each target's own records, and runs
//! the MDT's check ([`nacre_mdt::lfsck`]) over all of them, as a running MDT does with its OSTs.
//!
//! What must not be here: the rules, which a running MDT also has; the command line.

mod stopped;

pub use nacre_mdt::lfsck::{Finding, Kind, Outcome, Part, Progress, Stage, Tally};
pub use stopped::ProgressSink;

use nacre_base::{Errno, OstIndex, Timestamp};
use nacre_mdt::lfsck::{self, Course, NamePass, ObjectStore};
use nacre_osd::{Osd, Transaction};
use nacre_tgt::check::Unreadable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stopped::{StoppedMdt, StoppedOst};

/// The targets to check: devices that no other process has open, with the tables of their kind.
#[derive(Default)]
pub struct Targets {
    /// The MDT and its index. Without it only each OST's own records are checked.
    pub mdt: Option<(u32, Arc<dyn Osd>)>,
    /// OSTs. Missing ones are left out of the check.
    pub osts: BTreeMap<OstIndex, Arc<dyn Osd>>,
}

/// Parts of the check, and what it may change.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// True to repair; otherwise nothing is changed.
    pub repair: bool,
    /// Check names and inodes.
    pub namespace: bool,
    /// Compare files with their objects.
    pub layout: bool,
    /// Create missing objects again, empty.
    pub create_objects: bool,
    /// Compare the owners of objects with those of files. Nothing keeps them equal yet when a file's owner changes.
    pub compare_owners: bool,
    /// Forget clients that could come back and finish their changes: objects that they wrote and that no file has are
    /// then rescued.
    pub abort_recovery: bool,
    /// Time for new inodes.
    pub now: Timestamp,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            repair: false,
            namespace: true,
            layout: true,
            create_objects: false,
            compare_owners: false,
            abort_recovery: false,
            now: Timestamp::ZERO,
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of findings of each kind.
    pub tally: Tally,
    /// OSTs that could not be read.
    pub unreadable: BTreeSet<OstIndex>,
    /// Clients of the MDT that may come back: objects for which only they may have files were left alone.
    pub clients: Vec<String>,
}

/// Checks the targets. `sink` sees every finding as it is made. Fails if the MDT's device does.
pub async fn check(
    targets: &Targets,
    options: &Options,
    sink: &mut (dyn FnMut(&Finding) + Send),
    progress: &ProgressSink,
) -> Result<Report, Errno> {
    let mut report = Report::default();
    check_states(targets, options, sink, &mut report).await?;
    let osts = targets.osts.iter();
    let stores: BTreeMap<OstIndex, Arc<dyn ObjectStore>> =
        osts.map(|(ost, osd)| (*ost, Arc::new(StoppedOst::new(osd.clone())) as Arc<dyn ObjectStore>)).collect();
    let Some((index, osd)) = &targets.mdt else {
        for (ost, store) in &stores {
            let tally = &mut report.tally;
            let mut counted = |finding: &Finding| {
                tally.add(finding);
                sink(finding);
            };
            lfsck::check_objects_alone(*ost, &**store, options.repair, &mut counted).await?;
        }
        return Ok(report);
    };
    report.clients = clients(&**osd, options).await?;
    let course_options = lfsck::Options {
        dry_run: !options.repair,
        namespace: options.namespace,
        layout: options.layout,
        create_objects: options.create_objects,
        orphans: true,
        compare_owners: options.compare_owners,
        is_live: false,
        is_recovering: !report.clients.is_empty(),
    };
    let meta = StoppedMdt::open(osd.clone(), *index, options.now, progress).await?;
    let course = Course::new(&meta, &stores, course_options, sink);
    let (tally, unreadable) = course.run((Stage::Names(NamePass::FIRST), Vec::new())).await?;
    for (kind, (repaired, left)) in tally.counts {
        let counts = report.tally.counts.entry(kind).or_default();
        *counts = (counts.0 + repaired, counts.1 + left);
    }
    report.unreadable = unreadable;
    Ok(report)
}

/// Clients of the MDT that may come back.
async fn clients(osd: &dyn Osd, options: &Options) -> Result<Vec<String>, Errno> {
    let mut transaction = osd.begin().await?;
    transaction.use_reserve();
    if !options.abort_recovery {
        return nacre_tgt::check::clients(&*transaction);
    }
    if options.repair {
        nacre_tgt::check::forget_clients(&mut *transaction)?;
        transaction.finish();
    }
    Ok(Vec::new())
}

/// Checks the targets' own records.
async fn check_states(
    targets: &Targets,
    options: &Options,
    sink: &mut (dyn FnMut(&Finding) + Send),
    report: &mut Report,
) -> Result<(), Errno> {
    let mdt = targets.mdt.iter().map(|(index, osd)| (format!("MDT{index:04x}"), osd, false));
    let osts = targets.osts.iter().map(|(ost, osd)| (format!("OST{:04x}", ost.0), osd, true));
    for (name, osd, is_ost) in mdt.chain(osts) {
        let mut transaction = osd.begin().await?;
        transaction.use_reserve();
        let mut found = mend_common(&mut *transaction, &name)?;
        if is_ost {
            let wrong = nacre_ost::check::repair_state(&mut *transaction)?;
            let finding = |what| Finding::repaired(Kind::UnreadableState, format!("{name}: {what}"));
            found.extend(wrong.into_iter().map(finding));
        }
        // A transaction that is dropped changes nothing.
        if options.repair && !found.is_empty() {
            transaction.finish();
        } else {
            drop(transaction);
        }
        for finding in &found {
            report.tally.add(finding);
            sink(finding);
        }
    }
    Ok(())
}

fn mend_common(transaction: &mut dyn Transaction, name: &str) -> Result<Vec<Finding>, Errno> {
    let mut found = Vec::new();
    for Unreadable { table, key, may_go } in nacre_tgt::check::unreadable(transaction)? {
        let what = format!("{name}: record {key:02x?} in {} cannot be read", table.0);
        found.push(if may_go {
            transaction.delete(table, &key)?;
            Finding::repaired(Kind::UnreadableState, what + ": removed")
        } else {
            Finding::left(Kind::UnreadableState, what, "the target needs it: restore it from a backup")
        });
    }
    Ok(found)
}
