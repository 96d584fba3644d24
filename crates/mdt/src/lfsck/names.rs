//! The check of the namespace: goes through the tables a few records at a time, gathers the facts for the [`rules`], and
//! has their findings repaired. Each step reads and repairs in one turn of the running transaction, so that it never sees
//! half of a client's change.
//!
//! Each pass relies on the repairs of the passes before it: records that can be read at all; directories that entries
//! name as their parent; entries; names of inodes; records about missing inodes; cycles; counts.

use super::finding::{Finding, Kind};
use super::mend::{Mender, readable_inode, records_after};
use super::rules::{self, CountFacts, EntryFacts, Link, LinkState, NameFacts, Verdict, check_record};
use crate::record::{Dirent, Inode};
use crate::tables::{self, DIRENTS, INODES, LINKS, ORPHANS, OWN, XATTRS};
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_osd::{Table, Transaction};
use nacre_wire::attr::mode;
use std::ops::ControlFlow;

/// A pass over a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamePass {
    /// Records of one of the tables, on their own.
    Records(usize),
    /// Inodes on their own, except for whether they have entries.
    Inodes,
    /// Directories that entries name as their parent.
    Parents,
    /// Entries.
    Entries,
    /// Names of inodes.
    Names,
    /// Records of one of the tables about missing inodes.
    Side(usize),
    /// Cycles of directories.
    Circles,
    /// Counts.
    Counts,
}

/// Tables whose records begin with the FID of an inode.
const SIDE: [(Table, Kind); 3] = [(LINKS, Kind::StaleLink), (XATTRS, Kind::StrayXattr), (ORPHANS, Kind::WrongOrphan)];

impl NamePass {
    /// The first pass.
    pub const FIRST: NamePass = NamePass::Records(0);

    /// The next pass; none after the last.
    pub fn next(self) -> Option<NamePass> {
        Some(match self {
            NamePass::Records(n) if n + 1 < OWN.len() => NamePass::Records(n + 1),
            NamePass::Records(_) => NamePass::Inodes,
            NamePass::Inodes => NamePass::Parents,
            NamePass::Parents => NamePass::Entries,
            NamePass::Entries => NamePass::Names,
            NamePass::Names => NamePass::Side(0),
            NamePass::Side(n) if n + 1 < SIDE.len() => NamePass::Side(n + 1),
            NamePass::Side(_) => NamePass::Circles,
            NamePass::Circles => NamePass::Counts,
            NamePass::Counts => return None,
        })
    }

    fn table(self) -> Table {
        match self {
            NamePass::Records(n) => OWN[n],
            NamePass::Side(n) => SIDE[n].0,
            NamePass::Parents | NamePass::Entries => DIRENTS,
            NamePass::Inodes | NamePass::Names | NamePass::Circles | NamePass::Counts => INODES,
        }
    }
}

/// Result of a step, and the key at which the next one goes on.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) findings: Vec<Finding>,
    /// Last key that was checked; none if the pass is done.
    pub(crate) last: Option<Vec<u8>>,
    /// Number of checked records.
    pub(crate) checked: u64,
}

/// Most entries of one directory that are counted in one turn; more would make clients wait too long.
const COUNTED_MAX: usize = 100_000;

/// Checks up to `limit` records after `after`, and repairs them.
pub(crate) fn step(m: &mut Mender<'_>, pass: NamePass, after: &[u8], limit: usize) -> Result<Step, Errno> {
    if pass == NamePass::Parents {
        return step_parents(m, after, limit);
    }
    let records = records_after(m.tx, pass.table(), after, limit)?;
    let mut step = Step { checked: records.len() as u64, ..Step::default() };
    for (key, value) in &records {
        for verdict in check(m, pass, key, value)? {
            m.mend(&verdict)?;
            step.findings.push(Finding::repaired(verdict.kind, verdict.what));
        }
    }
    step.last = records.into_iter().next_back().map(|(key, _)| key);
    Ok(step)
}

fn check(m: &mut Mender<'_>, pass: NamePass, key: &[u8], value: &Bytes) -> Result<Vec<Verdict>, Errno> {
    let fid = key.get(..16).and_then(Fid::from_key).unwrap_or(Fid::ZERO);
    match pass {
        NamePass::Records(_) => return Ok(check_record(pass.table(), key, value).into_iter().collect()),
        NamePass::Entries => return check_entry(m.tx, key, value),
        NamePass::Side(n) => return check_side(m.tx, n, fid, key),
        NamePass::Parents | NamePass::Inodes | NamePass::Names | NamePass::Circles | NamePass::Counts => {}
    }
    // Repairing one inode may have changed another of the batch.
    let Some(inode) = m.inode(fid)? else { return Ok(Vec::new()) };
    match pass {
        NamePass::Inodes => Ok(rules::check_inode(fid, &inode, has_entries(m.tx, fid)?)),
        NamePass::Names => check_names(m.tx, fid, &inode),
        NamePass::Circles => check_circle(m, fid, &inode),
        _ => check_counts(m, fid, &inode),
    }
}

fn check_entry(tx: &dyn Transaction, key: &[u8], value: &Bytes) -> Result<Vec<Verdict>, Errno> {
    let parts = (key.get(..16).and_then(Fid::from_key), key.get(16..24), key.get(24..));
    let ((Some(parent), Some(cookie), Some(name)), Ok(entry)) = (parts, Dirent::decode(value.clone())) else {
        return Ok(Vec::new());
    };
    let cookie = cookie.try_into().map_or(0, u64::from_be_bytes);
    let is_name = crate::ops::check_name(name).is_ok();
    let target = readable_inode(tx, entry.fid)?;
    let facts = EntryFacts {
        parent,
        cookie,
        name,
        key,
        entry: &entry,
        is_in_directory: readable_inode(tx, parent)?.is_some_and(|i| i.is_dir()),
        target: target.as_ref(),
        is_linked: is_name && tables::has_link(tx, entry.fid, parent, name)?,
        is_doubled: is_name && cookie != tables::name_hash(name) && tables::dirent(tx, parent, name)?.is_some(),
    };
    Ok(rules::check_entry(&facts).into_iter().collect())
}

fn check_names(tx: &dyn Transaction, fid: Fid, inode: &Inode) -> Result<Vec<Verdict>, Errno> {
    let mut links = Vec::new();
    for (parent, name) in tables::links(tx, fid, usize::MAX)? {
        let found = if crate::ops::check_name(&name).is_ok() { tables::dirent(tx, parent, &name)? } else { None };
        let state = match found {
            Some(entry) if entry.fid == fid => LinkState::Good,
            None if parent != fid && readable_inode(tx, parent)?.is_some_and(|i| i.is_dir()) => LinkState::NoEntry,
            _ => LinkState::Elsewhere,
        };
        links.push(Link { parent, name, state });
    }
    let is_orphan = tx.get(ORPHANS, &fid.to_key())?.is_some();
    let has_entries = has_entries(tx, fid)?;
    Ok(rules::check_names(&NameFacts { fid, inode, links: &links, is_orphan, has_entries }))
}

fn check_side(tx: &dyn Transaction, n: usize, fid: Fid, key: &[u8]) -> Result<Vec<Verdict>, Errno> {
    if readable_inode(tx, fid)?.is_some() {
        return Ok(Vec::new());
    }
    let (table, kind) = SIDE[n];
    let what = format!("there is a record in {} of {fid}, which does not exist: removed", table.0);
    Ok(vec![Verdict::new(kind, what, vec![rules::Repair::DeleteRecord(table, key.to_vec())])])
}

fn check_circle(m: &mut Mender<'_>, fid: Fid, inode: &Inode) -> Result<Vec<Verdict>, Errno> {
    if !inode.is_dir() {
        return Ok(Vec::new());
    }
    let Some(lowest) = m.circle(fid)? else { return Ok(Vec::new()) };
    m.break_circle(lowest)?;
    let what = format!("directory {lowest} is in a circle that the root is not in: goes to lost+found");
    Ok(vec![Verdict::new(Kind::Unreachable, what, Vec::new())])
}

fn check_counts(m: &mut Mender<'_>, fid: Fid, inode: &Inode) -> Result<Vec<Verdict>, Errno> {
    let names = if inode.is_dir() { 1 } else { usize::MAX };
    let names = tables::links(m.tx, fid, names)?.len() as u32;
    let subdirectories = if inode.is_dir() { subdirectories(m.tx, fid)? } else { Some(0) };
    // The directory is too large to be counted while clients wait.
    let Some(subdirectories) = subdirectories else { return Ok(Vec::new()) };
    let has_xattrs = begins_with(m.tx, XATTRS, fid)?;
    let mut found = rules::check_counts(&CountFacts { fid, inode, names, subdirectories, has_xattrs });
    if m.touched.contains(&fid) {
        found.iter().try_for_each(|verdict| m.mend(verdict))?;
        found.clear();
    }
    Ok(found)
}

fn subdirectories(tx: &dyn Transaction, fid: Fid) -> Result<Option<u32>, Errno> {
    let (mut count, mut seen) = (0, 0);
    tables::scan_dirents(tx, fid, 0, &mut |_, _, entry| {
        seen += 1;
        count += u32::from(entry.file_type == mode::S_IFDIR);
        if seen < COUNTED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(if seen < COUNTED_MAX { Some(count) } else { None })
}

/// True if this directory has entries, readable or not.
fn has_entries(tx: &dyn Transaction, fid: Fid) -> Result<bool, Errno> {
    begins_with(tx, DIRENTS, fid)
}

/// True if a table has a record whose key begins with `fid`.
fn begins_with(tx: &dyn Transaction, table: Table, fid: Fid) -> Result<bool, Errno> {
    let prefix = fid.to_key();
    let mut found = false;
    tx.scan(table, &prefix, &mut |key, _| {
        found = key.starts_with(&prefix);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Checks that directories exist that entries name as their parent; and the root, if there is anything.
fn step_parents(m: &mut Mender<'_>, after: &[u8], limit: usize) -> Result<Step, Errno> {
    let mut step = Step::default();
    if after.is_empty() && m.inode(Fid::ROOT)?.is_none() && !is_new(m.tx)? {
        m.make_root()?;
        step.findings.push(Finding::repaired(Kind::LostDirectory, "the root directory is lost: made again".to_owned()));
    }
    let mut from = after.to_vec();
    for _ in 0..limit {
        let mut parent = None;
        m.tx.scan(DIRENTS, &from, &mut |key, _| {
            parent = key.get(..16).and_then(Fid::from_key);
            ControlFlow::Break(())
        })?;
        let Some(parent) = parent else { return Ok(Step { last: None, ..step }) };
        step.checked += 1;
        if m.inode(parent)?.is_none() {
            m.make_directory(parent)?;
            let what = format!("directory {parent} is lost, and has entries: made again");
            step.findings.push(Finding::repaired(Kind::LostDirectory, what));
        }
        match u128::from_be_bytes(parent.to_key()).checked_add(1) {
            Some(next) => from = next.to_be_bytes().to_vec(),
            None => return Ok(Step { last: None, ..step }),
        }
    }
    Ok(Step { last: Some(from), ..step })
}

/// True if this MDT was never started.
fn is_new(tx: &dyn Transaction) -> Result<bool, Errno> {
    Ok(records_after(tx, INODES, &[], 1)?.is_empty() && records_after(tx, DIRENTS, &[], 1)?.is_empty())
}
