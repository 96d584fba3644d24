//! Whether the tables agree with one another: what must be true after every operation and after every crash. For tests,
//! the simulator, and one day for a checker of damaged targets; reads everything.

use crate::record::{Dirent, Inode, inode_flags};
use crate::tables::{self, DESTROYS, DIRENTS, INODES, LINKS, ORPHANS, XATTRS};
use bytes::Bytes;
use nacre_base::Fid;
use nacre_osd::{OsdError, Table, Transaction};
use nacre_wire::layout::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// All that is wrong, in words; nothing if all is well.
pub fn check(tx: &dyn Transaction) -> Result<Vec<String>, OsdError> {
    let mut c = Checker { wrong: Vec::new(), inodes: BTreeMap::new(), names: BTreeMap::new() };
    c.read_inodes(tx)?;
    c.read_names(tx)?;
    c.check_link_records(tx)?;
    c.check_inodes(tx)?;
    c.check_reachable();
    c.check_objects(tx)?;
    Ok(c.wrong)
}

struct Checker {
    wrong: Vec<String>,
    inodes: BTreeMap<Fid, Inode>,
    /// Inode to its names.
    names: BTreeMap<Fid, Vec<(Fid, Bytes)>>,
}

impl Checker {
    fn say(&mut self, what: String) {
        self.wrong.push(what);
    }

    fn read_inodes(&mut self, tx: &dyn Transaction) -> Result<(), OsdError> {
        for (key, value) in records(tx, INODES)? {
            match (Fid::from_key(&key), Inode::decode(value)) {
                (Some(fid), Ok(inode)) => drop(self.inodes.insert(fid, inode)),
                _ => self.say(format!("inode {key:02x?} cannot be read")),
            }
        }
        Ok(())
    }

    fn read_names(&mut self, tx: &dyn Transaction) -> Result<(), OsdError> {
        for (key, value) in records(tx, DIRENTS)? {
            let parent = key.get(..16).and_then(Fid::from_key);
            let (Some(parent), Some(name), Ok(entry)) = (parent, key.get(24..), Dirent::decode(value)) else {
                self.say(format!("entry {key:02x?} cannot be read"));
                continue;
            };
            let text = String::from_utf8_lossy(name).into_owned();
            if key[16..24] != tables::name_hash(name).to_be_bytes() {
                self.say(format!("{text:?} in {parent} has a wrong hash"));
            }
            match self.inodes.get(&parent) {
                Some(i) if i.is_dir() => {}
                _ => self.say(format!("{text:?} is in {parent}, which is no directory")),
            }
            match self.inodes.get(&entry.fid) {
                Some(i) if i.file_type() == entry.file_type => {}
                Some(_) => self.say(format!("{text:?} in {parent} has a wrong type")),
                None => self.say(format!("{text:?} in {parent} names {}, which does not exist", entry.fid)),
            }
            self.names.entry(entry.fid).or_default().push((parent, Bytes::copy_from_slice(name)));
        }
        Ok(())
    }

    fn check_link_records(&mut self, tx: &dyn Transaction) -> Result<(), OsdError> {
        let mut recorded = BTreeMap::<Fid, Vec<(Fid, Bytes)>>::new();
        for (key, _) in records(tx, LINKS)? {
            let fid_at = |at: usize| key.get(at..at + 16).and_then(Fid::from_key);
            match (fid_at(0), fid_at(16)) {
                (Some(fid), Some(parent)) => {
                    recorded.entry(fid).or_default().push((parent, Bytes::copy_from_slice(&key[32..])));
                }
                _ => self.say(format!("link {key:02x?} cannot be read")),
            }
        }
        let mut names = self.names.clone();
        names.values_mut().chain(recorded.values_mut()).for_each(|v| v.sort());
        if names != recorded {
            self.say(format!("entries {names:?} and link records {recorded:?} differ"));
        }
        Ok(())
    }

    fn check_inodes(&mut self, tx: &dyn Transaction) -> Result<(), OsdError> {
        let orphans: BTreeSet<Fid> = records(tx, ORPHANS)?.iter().filter_map(|(k, _)| Fid::from_key(k)).collect();
        let external = records(tx, XATTRS)?;
        let has_external: BTreeSet<Fid> = external.iter().filter_map(|(k, _)| Fid::from_key(k.get(..16)?)).collect();
        for fid in has_external.iter().chain(&orphans) {
            if !self.inodes.contains_key(fid) {
                self.say(format!("{fid} has records but does not exist"));
            }
        }
        let mut subdirectories = BTreeMap::<Fid, u32>::new();
        for (parent, _) in
            self.names.iter().filter(|(f, _)| self.inodes.get(f).is_some_and(Inode::is_dir)).flat_map(|(_, n)| n)
        {
            *subdirectories.entry(*parent).or_default() += 1;
        }
        let mut wrong = Vec::new();
        for (fid, inode) in &self.inodes {
            let names = self.names.get(fid).map_or(&[][..], |n| n);
            let is_root = *fid == Fid::ROOT;
            let nlink = match () {
                () if names.is_empty() && !is_root => 0,
                () if inode.is_dir() => 2 + subdirectories.get(fid).unwrap_or(&0),
                () => names.len() as u32,
            };
            if inode.nlink != nlink {
                wrong.push(format!("{fid} has {} links, not {nlink}", inode.nlink));
            }
            if (nlink == 0) != orphans.contains(fid) {
                wrong.push(format!("{fid} has {nlink} links; orphan: {}", orphans.contains(fid)));
            }
            if inode.is_dir() && !is_root && nlink > 0 && (names.len() != 1 || names[0].0 != inode.parent) {
                wrong.push(format!("directory {fid} has names {names:?}, its parent is {}", inode.parent));
            }
            if has_external.contains(fid) != (inode.flags & inode_flags::EXTERNAL_XATTRS != 0) {
                wrong.push(format!("{fid} has a wrong EXTERNAL_XATTRS flag"));
            }
            if !inode.xattrs.is_sorted_by(|a, b| a.0 < b.0) {
                wrong.push(format!("{fid} has its attributes out of order or twice"));
            }
            if inode.layout.is_some() && !inode.is_file() {
                wrong.push(format!("{fid} has objects but is no regular file"));
            }
        }
        self.wrong.append(&mut wrong);
        Ok(())
    }

    /// Every directory with a name hangs below the root.
    fn check_reachable(&mut self) {
        let mut lost = Vec::new();
        for (fid, inode) in self.inodes.iter().filter(|(_, i)| i.is_dir() && i.nlink > 0) {
            let (mut at, mut steps) = (inode.parent, 0);
            while at != Fid::ROOT && steps <= self.inodes.len() {
                at = self.inodes.get(&at).map_or(Fid::ZERO, |i| i.parent);
                steps += 1;
            }
            if at != Fid::ROOT {
                lost.push(format!("directory {fid} is not below the root"));
            }
        }
        self.wrong.append(&mut lost);
    }

    /// No object belongs to two files, or to a file and to the queue of destroys.
    fn check_objects(&mut self, tx: &dyn Transaction) -> Result<(), OsdError> {
        let mut owners = BTreeSet::new();
        let mut shared = Vec::new();
        for (fid, inode) in &self.inodes {
            for (_, _, stripe) in inode.layout.iter().flat_map(Layout::stripes) {
                if !owners.insert((stripe.ost, stripe.object)) {
                    shared.push(format!("object {} of {fid} is also another's", stripe.object));
                }
                match tables::last_used(tx, stripe.ost) {
                    Ok(Some(last)) if last.seq != stripe.object.seq || last.oid >= stripe.object.oid => {}
                    last => shared.push(format!("object {} of {fid} is above the last used {last:?}", stripe.object)),
                }
            }
        }
        for (key, _) in records(tx, DESTROYS)? {
            let object = key.get(12..).and_then(Fid::from_key);
            let ost = key.first_chunk::<4>().map(|c| nacre_base::OstIndex(u32::from_be_bytes(*c)));
            match (ost, object) {
                (Some(ost), Some(object)) if !owners.insert((ost, object)) => {
                    shared.push(format!("object {object} is to be destroyed, twice or though it is in use"));
                }
                (Some(_), Some(_)) => {}
                _ => shared.push(format!("destroy {key:02x?} cannot be read")),
            }
        }
        self.wrong.append(&mut shared);
        Ok(())
    }
}

fn records(tx: &dyn Transaction, table: Table) -> Result<Vec<(Vec<u8>, Bytes)>, OsdError> {
    let mut all = Vec::new();
    tx.scan(table, &[], &mut |key, value| {
        all.push((key.to_vec(), Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    })?;
    Ok(all)
}
