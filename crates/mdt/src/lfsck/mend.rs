//! Carries out repairs in a transaction, and keeps `lost+found`: `/.lustre/lost+found/MDT0000`, as Lustre names it,
//! created when it is first needed.

use super::rules::{Repair, Verdict, objects};
use crate::record::{Dirent, Inode, LastUsed};
use crate::tables::{self, DIRENTS, INODES};
use bytes::Bytes;
use nacre_base::{Errno, Fid, OstIndex, Timestamp};
use nacre_osd::{Table, Transaction};
use nacre_wire::attr::mode;
use nacre_wire::ldlm::inode_bits;
use nacre_wire::mds::NAME_MAX;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Sequence of inodes that a check creates: directories of lost+found, and files for orphan objects. No client gets this
/// sequence.
const LOST_FOUND_SEQ: u64 = 0x2_0000_0002;
/// Ids below this are directories.
const FIRST_FILE: u32 = 0x1_0000;
/// Most parents to follow before a path counts as endless.
const DEPTH_MAX: usize = 1 << 20;

/// Makes repairs in one transaction.
pub(crate) struct Mender<'a> {
    pub(crate) tx: &'a mut dyn Transaction,
    /// Version for changed inodes.
    pub(crate) version: u64,
    pub(crate) now: Timestamp,
    /// Index of this MDT.
    pub(crate) index: u32,
    /// Inodes whose cached state clients must drop, and the lock bits concerned.
    pub(crate) changed: Vec<(Fid, u64)>,
    /// Inodes whose counts may be wrong because of repairs; these are no findings of their own.
    pub(crate) touched: BTreeSet<Fid>,
    /// Lowest id that may be free for a new file.
    pub(crate) next_oid: u32,
    /// True if anything was changed.
    pub(crate) is_changed: bool,
}

impl<'a> Mender<'a> {
    pub(crate) fn new(tx: &'a mut dyn Transaction, version: u64, now: Timestamp, index: u32) -> Mender<'a> {
        let (changed, touched) = (Vec::new(), BTreeSet::new());
        Mender { tx, version, now, index, changed, touched, next_oid: 0, is_changed: false }
    }

    /// Carries out the repairs of one verdict.
    pub(crate) fn mend(&mut self, verdict: &Verdict) -> Result<(), Errno> {
        verdict.repairs.iter().try_for_each(|repair| self.apply(repair))
    }

    fn apply(&mut self, repair: &Repair) -> Result<(), Errno> {
        self.is_changed = true;
        match repair {
            Repair::PutEntry { parent, name, entry } => self.put_entry(*parent, name, entry)?,
            Repair::DeleteEntry { parent, name, fid } => {
                tables::delete_dirent(self.tx, *parent, name, *fid)?;
                self.touch(&[*parent, *fid]);
            }
            // Longer names have no keys.
            Repair::DeleteLink { name, .. } if name.len() > NAME_MAX => {}
            Repair::DeleteLink { fid, parent, name } => tables::delete_link(self.tx, *fid, *parent, name)?,
            Repair::PutInode { fid, inode } => self.put_inode(*fid, inode)?,
            Repair::PutOrphan(fid) => tables::put_orphan(self.tx, *fid)?,
            Repair::DeleteOrphan(fid) => drop(tables::delete_orphan(self.tx, *fid)?),
            Repair::DeleteRecord(table, key) => {
                if *table == DIRENTS
                    && let Some(parent) = key.get(..16).and_then(Fid::from_key)
                {
                    self.touch(&[parent]);
                }
                self.delete_record(*table, key)?;
            }
            Repair::Rescue(fid) => self.rescue(*fid, 'N')?,
        }
        Ok(())
    }

    fn touch(&mut self, fids: &[Fid]) {
        self.changed.extend(fids.iter().map(|fid| (*fid, inode_bits::ALL)));
        self.touched.extend(fids);
    }

    /// Removes a record.
    pub(crate) fn delete_record(&mut self, table: Table, key: &[u8]) -> Result<(), Errno> {
        self.is_changed = true;
        self.tx.delete(table, key)?;
        Ok(())
    }

    fn put_entry(&mut self, parent: Fid, name: &[u8], entry: &Dirent) -> Result<(), Errno> {
        self.is_changed = true;
        tables::put_dirent(self.tx, parent, name, entry)?;
        self.touch(&[parent, entry.fid]);
        Ok(())
    }

    pub(crate) fn put_inode(&mut self, fid: Fid, inode: &Inode) -> Result<(), Errno> {
        self.is_changed = true;
        self.changed.push((fid, inode_bits::ALL));
        tables::put_inode(self.tx, fid, &Inode { version: self.version, ..inode.clone() })
    }

    /// An inode, if its record exists and can be read.
    pub(crate) fn inode(&self, fid: Fid) -> Result<Option<Inode>, Errno> {
        readable_inode(self.tx, fid)
    }

    /// A new inode that root owns.
    pub(crate) fn new_inode(&self, mode: u32) -> Inode {
        let directory = tables::root_inode(self.now, self.version);
        match mode & mode::S_IFMT {
            mode::S_IFDIR => Inode { mode, parent: Fid::ZERO, ..directory },
            _ => Inode { mode, nlink: 1, size: 0, blocks: 0, parent: Fid::ZERO, ..directory },
        }
    }

    /// Creates the root directory again.
    pub(crate) fn make_root(&mut self) -> Result<(), Errno> {
        let root = tables::root_inode(self.now, self.version);
        self.touched.insert(Fid::ROOT);
        self.put_inode(Fid::ROOT, &root)
    }

    /// Creates the inode of a directory of which only entries are left, under its old name if that is known.
    pub(crate) fn make_directory(&mut self, fid: Fid) -> Result<(), Errno> {
        let name = tables::links(self.tx, fid, 1)?.pop();
        let parent = name.as_ref().map_or(Fid::ZERO, |(parent, _)| *parent);
        let inode = Inode { parent, ..self.new_inode(mode::S_IFDIR | 0o700) };
        self.put_inode(fid, &inode)?;
        self.touched.insert(fid);
        if name.is_none() { self.rescue(fid, 'P') } else { Ok(()) }
    }

    /// Creates the inode of a file of which only objects are left, under its old names if those are known.
    pub(crate) fn make_file(&mut self, fid: Fid, inode: &Inode) -> Result<(), Errno> {
        let is_named = !tables::links(self.tx, fid, 1)?.is_empty();
        self.put_inode(fid, inode)?;
        self.note_used(inode)?;
        self.touched.insert(fid);
        if is_named { Ok(()) } else { self.rescue(fid, 'R') }
    }

    /// Creates a file for an orphan object. Returns its FID.
    pub(crate) fn make_file_for(&mut self, of: Fid, letter: char, inode: &Inode) -> Result<Fid, Errno> {
        let fid = self.free_fid()?;
        self.put_inode(fid, inode)?;
        self.note_used(inode)?;
        self.attach(fid, of, letter)?;
        Ok(fid)
    }

    /// Records that the objects of a file are in use.
    pub(crate) fn note_used(&mut self, inode: &Inode) -> Result<(), Errno> {
        objects(inode).try_for_each(|stripe| self.raise_last_used(stripe.ost, stripe.object))
    }

    /// Raises the last object in use to at least this one.
    pub(crate) fn raise_last_used(&mut self, ost: OstIndex, object: Fid) -> Result<(), Errno> {
        match tables::last_used(self.tx, ost) {
            Ok(Some(last)) if last.seq == object.seq && last.oid >= object.oid => Ok(()),
            _ => self.put_last_used(ost, &LastUsed { seq: object.seq, oid: object.oid }),
        }
    }

    /// Stores the last object in use.
    pub(crate) fn put_last_used(&mut self, ost: OstIndex, last: &LastUsed) -> Result<(), Errno> {
        self.is_changed = true;
        tables::put_last_used(self.tx, ost, last)
    }

    /// Gives an inode a name in lost+found.
    pub(crate) fn rescue(&mut self, fid: Fid, letter: char) -> Result<(), Errno> {
        self.attach(fid, fid, letter)
    }

    /// Gives an inode a name in lost+found, derived from `of`.
    fn attach(&mut self, fid: Fid, of: Fid, letter: char) -> Result<(), Errno> {
        let Some(mut inode) = self.inode(fid)? else { return Ok(()) };
        let lost_found = self.lost_found()?;
        // Perhaps a part of lost+found itself was lost.
        let directory = if self.is_below(lost_found, fid)? { Fid::ROOT } else { lost_found };
        let mut number = 0;
        let name = loop {
            let name = format!("{of}-{letter}-{number}").into_bytes();
            if tables::dirent(self.tx, directory, &name).is_ok_and(|found| found.is_none()) {
                break name;
            }
            number += 1;
        };
        if inode.is_dir() {
            inode.parent = directory;
        }
        inode.nlink = inode.nlink.max(1);
        self.put_inode(fid, &inode)?;
        self.put_entry(directory, &name, &Dirent { fid, file_type: inode.file_type() })
    }

    fn lost_found(&mut self) -> Result<Fid, Errno> {
        let dot_lustre = self.ensure_directory(Fid::ROOT, ".lustre", 1, 0o555)?;
        let lost_found = self.ensure_directory(dot_lustre, "lost+found", 2, 0o700)?;
        self.ensure_directory(lost_found, &format!("MDT{:04x}", self.index), 0x100 + self.index, 0o700)
    }

    /// A directory of this name; if a person has given the name to something else, one with a number appended.
    fn ensure_directory(&mut self, parent: Fid, name: &str, oid: u32, permissions: u32) -> Result<Fid, Errno> {
        for number in 0u32.. {
            let name = if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
            match tables::dirent(self.tx, parent, name.as_bytes()) {
                Ok(Some(entry)) if self.inode(entry.fid)?.is_some_and(|i| i.is_dir() && i.parent == parent) => {
                    return Ok(entry.fid);
                }
                Ok(None) => {
                    let mut fid = Fid { seq: LOST_FOUND_SEQ, oid, ver: 0 };
                    if self.tx.get(INODES, &fid.to_key())?.is_some() {
                        fid = self.free_fid()?;
                    }
                    let inode = Inode { parent, ..self.new_inode(mode::S_IFDIR | permissions) };
                    self.put_inode(fid, &inode)?;
                    self.put_entry(parent, name.as_bytes(), &Dirent { fid, file_type: mode::S_IFDIR })?;
                    return Ok(fid);
                }
                _ => {}
            }
        }
        Err(Errno::ENOSPC)
    }

    /// A FID that no inode has and no entry names.
    fn free_fid(&mut self) -> Result<Fid, Errno> {
        let mut oid = self.next_oid.max(FIRST_FILE);
        loop {
            let fid = Fid { seq: LOST_FOUND_SEQ, oid, ver: 0 };
            let is_free = self.tx.get(INODES, &fid.to_key())?.is_none() && tables::links(self.tx, fid, 1)?.is_empty();
            oid = oid.checked_add(1).ok_or(Errno::ENOSPC)?;
            self.next_oid = oid;
            if is_free {
                return Ok(fid);
            }
        }
    }

    /// True if the way from `at` to the root leads through `above`, or does not lead to the root.
    fn is_below(&self, at: Fid, above: Fid) -> Result<bool, Errno> {
        let mut at = at;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == Fid::ROOT {
                return Ok(false);
            }
            match self.inode(at)? {
                Some(inode) if inode.is_dir() => at = inode.parent,
                _ => return Ok(true),
            }
        }
        Ok(true)
    }

    /// If `fid` is in or below a cycle of directories: the directory of the cycle with the lowest FID.
    pub(crate) fn circle(&self, fid: Fid) -> Result<Option<Fid>, Errno> {
        // Brent's algorithm: the hare runs, and the tortoise is moved to it after 1, 2, 4, 8… steps.
        let (mut tortoise, mut hare, mut steps, mut limit) = (fid, fid, 0usize, 1usize);
        loop {
            if hare == Fid::ROOT {
                return Ok(None);
            }
            hare = match self.inode(hare)? {
                Some(inode) if inode.is_dir() => inode.parent,
                // The inode is deleted, or is a case for the other rules.
                _ => return Ok(None),
            };
            if hare == tortoise {
                break;
            }
            steps += 1;
            if steps == limit {
                (tortoise, steps, limit) = (hare, 0, limit * 2);
            }
        }
        let mut lowest = hare;
        let mut at = hare;
        while let Some(inode) = self.inode(at)? {
            at = inode.parent;
            lowest = lowest.min(at);
            if at == hare {
                break;
            }
        }
        Ok(Some(lowest))
    }

    /// Takes a directory out of a cycle.
    pub(crate) fn break_circle(&mut self, fid: Fid) -> Result<(), Errno> {
        for (parent, name) in tables::links(self.tx, fid, usize::MAX)? {
            self.apply(&Repair::DeleteEntry { parent, name, fid })?;
        }
        // Its parent is unset now, so that it cannot be taken for an ancestor of lost+found.
        if let Some(inode) = self.inode(fid)? {
            self.put_inode(fid, &Inode { parent: Fid::ZERO, ..inode })?;
        }
        self.rescue(fid, 'N')
    }
}

/// An inode; `None` if it does not exist or cannot be read, because an unreadable record will be deleted.
pub(crate) fn readable_inode(tx: &dyn Transaction, fid: Fid) -> Result<Option<Inode>, Errno> {
    let bytes = tx.get(INODES, &fid.to_key())?;
    Ok(bytes.and_then(|b| Inode::decode(b).ok()))
}

/// Records of a table after `after`, at most `limit`.
pub(crate) fn records_after(
    tx: &dyn Transaction,
    table: Table,
    after: &[u8],
    limit: usize,
) -> Result<Vec<(Vec<u8>, Bytes)>, Errno> {
    let mut found = Vec::new();
    tx.scan(table, after, &mut |key, value| {
        if key != after {
            found.push((key.to_vec(), Bytes::copy_from_slice(value)));
        }
        if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}
