//! The rules of the namespace: they turn facts about a record, an entry or an inode into findings and repairs. Plain
//! functions of their arguments; [`super::names`] gathers the facts.
//!
//! The principle: two records that agree are believed over one that does not, and nothing is dropped that a person may
//! want back. An entry without its back pointer gets one, a back pointer without its entry restores the name, and an
//! inode without either goes to `lost+found`.

use super::finding::Kind;
use crate::ops::{check_name, is_dots};
use crate::record::{Dirent, Inode, LastUsed, RECORD_VERSION, inode_flags};
use crate::tables::{self, DESTROYS, DIRENTS, INODES, LINKS, OBJECTS, ORPHANS, XATTRS};
use bytes::Bytes;
use nacre_base::Fid;
use nacre_osd::Table;
use nacre_wire::attr::mode;
use nacre_wire::layout::Layout;

/// A change that repairs something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Create or replace an entry, with its back pointer.
    PutEntry { parent: Fid, name: Bytes, entry: Dirent },
    /// Remove an entry of `fid`, with its back pointer.
    DeleteEntry { parent: Fid, name: Bytes, fid: Fid },
    /// Remove a back pointer.
    DeleteLink { fid: Fid, parent: Fid, name: Bytes },
    /// Store an inode.
    PutInode { fid: Fid, inode: Box<Inode> },
    /// List an inode as deleted; the next start destroys it.
    PutOrphan(Fid),
    /// Remove an inode from the list of deleted ones.
    DeleteOrphan(Fid),
    /// Remove a record.
    DeleteRecord(Table, Vec<u8>),
    /// Give the inode a name in lost+found.
    Rescue(Fid),
}

/// A finding with its repairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: Kind,
    pub(crate) what: String,
    pub(crate) repairs: Vec<Repair>,
}

impl Verdict {
    pub(crate) fn new(kind: Kind, what: String, repairs: Vec<Repair>) -> Verdict {
        Verdict { kind, what, repairs }
    }
}

/// A name as people read it.
pub(crate) fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

/// Checks whether a record can be read. Other rules find what is lost with it.
pub(crate) fn check_record(table: Table, key: &[u8], value: &Bytes) -> Option<Verdict> {
    let is_fid = |k: &[u8]| Fid::from_key(k).is_some_and(|fid| !fid.is_zero());
    let fids = |n: usize| key.get(..16 * n).is_some_and(|k| k.chunks(16).all(is_fid));
    let is_marker = value[..] == [RECORD_VERSION];
    let is_good = match table {
        INODES => key.len() == 16 && is_fid(key) && Inode::decode(value.clone()).is_ok(),
        DIRENTS => fids(1) && key.len() > 24 && Dirent::decode(value.clone()).is_ok_and(|d| !d.fid.is_zero()),
        LINKS => fids(2) && key.len() > 32 && is_marker,
        XATTRS => {
            let name = key.get(16..).and_then(|n| std::str::from_utf8(n).ok());
            fids(1) && name.is_some_and(|n| !n.is_empty()) && value.first() == Some(&RECORD_VERSION)
        }
        ORPHANS => key.len() == 16 && is_fid(key) && is_marker,
        DESTROYS => key.len() == 28 && is_fid(&key[12..]) && is_marker,
        OBJECTS => key.len() == 4 && LastUsed::decode(value.clone()).is_ok(),
        _ => true,
    };
    if is_good {
        return None;
    }
    let whose = key.get(..16).and_then(Fid::from_key).filter(|_| table != DESTROYS);
    let whose = whose.map_or_else(|| format!("{key:02x?}"), |fid| fid.to_string());
    let what = format!("a record of {whose} in {} cannot be read: removed", table.0);
    Some(Verdict::new(Kind::UnreadableRecord, what, vec![Repair::DeleteRecord(table, key.to_vec())]))
}

/// Checks an inode on its own. `has_entries`: there are entries whose parent it is.
pub(crate) fn check_inode(fid: Fid, inode: &Inode, has_entries: bool) -> Vec<Verdict> {
    let mut found = Vec::new();
    let mut mended = inode.clone();
    let file_type = evident_type(fid, inode, has_entries);
    if file_type != inode.file_type() {
        mended.mode = file_type | inode.mode & 0o7777;
        found.push((Kind::BadInode, format!("{fid} has type {:o}, and is one of {file_type:o}", inode.file_type())));
    }
    if mended.layout.as_ref().is_some_and(|l| !mended.is_file() || l.check().is_err()) {
        mended.layout = None;
        found.push((Kind::BadLayout, format!("{fid} has a layout that cannot be: taken away")));
    }
    if mended.default_layout.as_ref().is_some_and(|l| l.check().is_err()) {
        mended.default_layout = None;
        found.push((Kind::BadLayout, format!("{fid} has a default layout that cannot be: taken away")));
    }
    if !inode.xattrs.is_sorted_by(|a, b| a.0 < b.0) {
        mended.xattrs.sort();
        mended.xattrs.dedup_by(|b, a| a.0 == b.0);
        found.push((Kind::BadInode, format!("{fid} has its attributes out of order or twice")));
    }
    let mut repair = vec![Repair::PutInode { fid, inode: Box::new(mended) }];
    found.into_iter().map(|(kind, what)| Verdict::new(kind, what, std::mem::take(&mut repair))).collect()
}

/// The type that everything else in the inode points to.
fn evident_type(fid: Fid, inode: &Inode, has_entries: bool) -> u32 {
    let known =
        [mode::S_IFREG, mode::S_IFDIR, mode::S_IFLNK, mode::S_IFCHR, mode::S_IFBLK, mode::S_IFIFO, mode::S_IFSOCK];
    let has_objects = inode.layout.as_ref().is_some_and(|l| l.stripe_count() > 0 && l.check().is_ok());
    match inode.file_type() {
        mode::S_IFDIR if fid == Fid::ROOT || has_entries => mode::S_IFDIR,
        _ if fid == Fid::ROOT || has_entries => mode::S_IFDIR,
        mode::S_IFREG => mode::S_IFREG,
        _ if has_objects => mode::S_IFREG,
        file_type if known.contains(&file_type) => file_type,
        _ if !inode.target.is_empty() => mode::S_IFLNK,
        _ => mode::S_IFREG,
    }
}

/// Facts about an entry.
pub(crate) struct EntryFacts<'a> {
    pub(crate) parent: Fid,
    /// Hash in the entry's key.
    pub(crate) cookie: u64,
    pub(crate) name: &'a [u8],
    pub(crate) key: &'a [u8],
    pub(crate) entry: &'a Dirent,
    /// True if the entry's parent is a directory.
    pub(crate) is_in_directory: bool,
    /// The inode that the entry names.
    pub(crate) target: Option<&'a Inode>,
    /// True if the entry's back pointer exists.
    pub(crate) is_linked: bool,
    /// True if an entry of its name exists in the right place.
    pub(crate) is_doubled: bool,
}

/// Checks an entry against its directory and its inode.
pub(crate) fn check_entry(f: &EntryFacts<'_>) -> Option<Verdict> {
    let (parent, fid, text) = (f.parent, f.entry.fid, shown(f.name));
    let name = Bytes::copy_from_slice(f.name);
    let delete = || vec![Repair::DeleteEntry { parent, name: name.clone(), fid }];
    let put = |entry: Dirent| Repair::PutEntry { parent, name: name.clone(), entry };
    let verdict = |kind, what: String, repairs| Some(Verdict::new(kind, what, repairs));
    let is_misplaced = f.cookie != tables::name_hash(f.name);
    if check_name(f.name).is_err() || is_dots(f.name) || (is_misplaced && f.is_doubled) {
        let link = Repair::DeleteLink { fid, parent, name: name.clone() };
        let mut repairs = vec![Repair::DeleteRecord(DIRENTS, f.key.to_vec())];
        // The entry in the right place keeps the link.
        repairs.extend(Some(link).filter(|_| !f.is_doubled));
        return verdict(Kind::BadName, format!("entry {text} of {parent} cannot be: removed"), repairs);
    }
    if is_misplaced {
        let repairs = vec![Repair::DeleteRecord(DIRENTS, f.key.to_vec()), put(f.entry.clone())];
        return verdict(Kind::BadName, format!("entry {text} of {parent} is where nobody finds it: moved"), repairs);
    }
    if !f.is_in_directory {
        return verdict(Kind::MisplacedEntry, format!("entry {text} is in {parent}, no directory: removed"), delete());
    }
    let Some(target) = f.target else {
        let what = format!("entry {text} of {parent} names {fid}, which does not exist: removed");
        return verdict(Kind::DanglingEntry, what, delete());
    };
    if fid == Fid::ROOT {
        return verdict(Kind::SecondName, format!("entry {text} of {parent} names the root: removed"), delete());
    }
    if f.entry.file_type != target.file_type() {
        let what = format!("entry {text} of {parent} says another type than {fid}: corrected");
        return verdict(Kind::WrongFileType, what, vec![put(Dirent { fid, file_type: target.file_type() })]);
    }
    if !f.is_linked {
        let what = format!("entry {text} of {parent} has no back pointer: made");
        return verdict(Kind::MissingLink, what, vec![put(f.entry.clone())]);
    }
    None
}

/// The place that a back pointer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// An entry of the inode.
    Good,
    /// A directory that has no entry of this name.
    NoEntry,
    /// An entry of another inode, or something that is not a directory.
    Elsewhere,
}

/// A back pointer.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) parent: Fid,
    pub(crate) name: Bytes,
    pub(crate) state: LinkState,
}

/// Facts about an inode's names.
pub(crate) struct NameFacts<'a> {
    pub(crate) fid: Fid,
    pub(crate) inode: &'a Inode,
    pub(crate) links: &'a [Link],
    /// True if the inode is in the list of deleted inodes that are still open.
    pub(crate) is_orphan: bool,
    pub(crate) has_entries: bool,
}

/// Checks that an inode has as many names as it should, and that all lead to it.
pub(crate) fn check_names(f: &NameFacts<'_>) -> Vec<Verdict> {
    let (fid, is_dir) = (f.fid, f.inode.is_dir());
    let mut out = Vec::new();
    let mut names: Vec<&Link> = f.links.iter().filter(|l| l.state == LinkState::Good).collect();
    // A deleted inode gets no name back.
    let is_deleted = f.inode.nlink == 0 && !f.has_entries;
    let wanted = match () {
        () if fid == Fid::ROOT || is_deleted => 0,
        () if is_dir => 1,
        () => f.inode.nlink as usize,
    };
    for link in f.links.iter().filter(|l| l.state != LinkState::Good) {
        let (parent, name, text) = (link.parent, link.name.clone(), shown(&link.name));
        if link.state == LinkState::NoEntry && names.len() < wanted && check_name(&name).is_ok() && !is_dots(&name) {
            names.push(link);
            let entry = Dirent { fid, file_type: f.inode.file_type() };
            let what = format!("entry {text} of {parent}, which names {fid}, is lost: made again");
            out.push(Verdict::new(Kind::LostEntry, what, vec![Repair::PutEntry { parent, name, entry }]));
        } else {
            let what = format!("{fid} has a back pointer to {text} in {parent}, which is not its: removed");
            out.push(Verdict::new(Kind::StaleLink, what, vec![Repair::DeleteLink { fid, parent, name }]));
        }
    }
    if is_dir && names.len() > usize::from(fid != Fid::ROOT) {
        let kept = names.iter().position(|l| l.parent == f.inode.parent).unwrap_or(0);
        let kept = names.get(kept).copied().filter(|_| fid != Fid::ROOT);
        for link in names.iter().filter(|l| kept.is_none_or(|k| !std::ptr::eq(**l, k))) {
            let (parent, name) = (link.parent, link.name.clone());
            let what = format!("directory {fid} also is {} in {parent}: this name is removed", shown(&name));
            out.push(Verdict::new(Kind::SecondName, what, vec![Repair::DeleteEntry { parent, name, fid }]));
        }
        names = kept.into_iter().collect();
    }
    check_place(f, names.first().copied(), is_deleted, &mut out);
    out
}

/// Checks where an inode belongs: below its name, in lost+found, or nowhere because it is deleted.
fn check_place(f: &NameFacts<'_>, name: Option<&Link>, is_deleted: bool, out: &mut Vec<Verdict>) {
    let fid = f.fid;
    let is_root = fid == Fid::ROOT;
    if f.is_orphan && (name.is_some() || is_root || !is_deleted) {
        let what = format!("{fid} is listed as deleted, and is not: taken from the list");
        out.push(Verdict::new(Kind::WrongOrphan, what, vec![Repair::DeleteOrphan(fid)]));
    }
    let parent = if is_root { Some(Fid::ROOT) } else { name.map(|l| l.parent) };
    match parent {
        Some(parent) if f.inode.is_dir() && f.inode.parent != parent => {
            let inode = Box::new(Inode { parent, ..f.inode.clone() });
            let what = format!("`..` of {fid} is {}, and should be {parent}: corrected", f.inode.parent);
            out.push(Verdict::new(Kind::WrongParent, what, vec![Repair::PutInode { fid, inode }]));
        }
        Some(_) => {}
        None if is_deleted && f.is_orphan => {}
        None if is_deleted => {
            let what = format!("{fid} has no links, and is not listed as deleted: it goes at the next start");
            out.push(Verdict::new(Kind::WrongOrphan, what, vec![Repair::PutOrphan(fid)]));
        }
        None => {
            let what = format!("{fid} has no name: goes to lost+found");
            out.push(Verdict::new(Kind::NamelessInode, what, vec![Repair::Rescue(fid)]));
        }
    }
}

/// Counts of an inode.
pub(crate) struct CountFacts<'a> {
    pub(crate) fid: Fid,
    pub(crate) inode: &'a Inode,
    /// Number of back pointers, each of which has its entry.
    pub(crate) names: u32,
    /// Number of subdirectories of a directory.
    pub(crate) subdirectories: u32,
    /// True if extended attributes are stored outside the inode.
    pub(crate) has_xattrs: bool,
}

/// Checks an inode's link count, and whether it knows of its extended attributes.
pub(crate) fn check_counts(f: &CountFacts<'_>) -> Vec<Verdict> {
    let (fid, mut mended) = (f.fid, f.inode.clone());
    let mut found = Vec::new();
    let nlink = match () {
        () if f.names == 0 && fid != Fid::ROOT => 0,
        () if mended.is_dir() => 2 + f.subdirectories,
        () => f.names,
    };
    if mended.nlink != nlink {
        found.push((Kind::WrongLinkCount, format!("{fid} has link count {}, not {nlink}: corrected", mended.nlink)));
        mended.nlink = nlink;
    }
    if f.has_xattrs != (mended.flags & inode_flags::EXTERNAL_XATTRS != 0) {
        mended.flags ^= inode_flags::EXTERNAL_XATTRS;
        let what = if f.has_xattrs { "does not know of its" } else { "has none of the" };
        found.push((Kind::StrayXattr, format!("{fid} {what} attributes stored outside of it: corrected")));
    }
    let mut repair = vec![Repair::PutInode { fid, inode: Box::new(mended) }];
    found.into_iter().map(|(kind, what)| Verdict::new(kind, what, std::mem::take(&mut repair))).collect()
}

/// All objects of an inode.
pub(crate) fn objects(inode: &Inode) -> impl Iterator<Item = &nacre_wire::layout::Stripe> {
    inode.layout.iter().flat_map(Layout::stripes).map(|(_, _, stripe)| stripe)
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid { seq: 9, oid: 1, ver: 0 };
    const P: Fid = Fid { seq: 9, oid: 2, ver: 0 };
    const Q: Fid = Fid { seq: 9, oid: 3, ver: 0 };

    fn inode(file_type: u32, nlink: u32) -> Inode {
        let parent = if file_type == mode::S_IFDIR { P } else { Fid::ZERO };
        Inode { mode: file_type | 0o644, nlink, parent, ..Inode::default() }
    }

    fn link(parent: Fid, name: &'static str, state: LinkState) -> Link {
        Link { parent, name: Bytes::from_static(name.as_bytes()), state }
    }

    fn names(inode: &Inode, links: &[Link], is_orphan: bool, has_entries: bool) -> Vec<Kind> {
        let found = check_names(&NameFacts { fid: F, inode, links, is_orphan, has_entries });
        found.into_iter().map(|v| v.kind).collect()
    }

    #[test]
    fn names_of_files() {
        use LinkState::*;
        let file = |nlink| inode(mode::S_IFREG, nlink);
        let good = || link(P, "a", Good);
        assert_eq!(names(&file(1), &[good()], false, false), []);
        assert_eq!(names(&file(2), &[good(), link(P, "b", NoEntry)], false, false), [Kind::LostEntry]);
        assert_eq!(names(&file(1), &[good(), link(P, "b", NoEntry)], false, false), [Kind::StaleLink]);
        assert_eq!(names(&file(1), &[link(P, "b", NoEntry)], false, false), [Kind::LostEntry]);
        assert_eq!(names(&file(1), &[link(P, "b", Elsewhere)], false, false), [Kind::StaleLink, Kind::NamelessInode]);
        assert_eq!(names(&file(1), &[], false, false), [Kind::NamelessInode]);
        assert_eq!(names(&file(0), &[], true, false), [], "deleted and open");
        assert_eq!(names(&file(0), &[], false, false), [Kind::WrongOrphan]);
        assert_eq!(names(&file(0), &[link(P, "a", NoEntry)], true, false), [Kind::StaleLink], "no way back");
        assert_eq!(names(&file(1), &[good()], true, false), [Kind::WrongOrphan]);
        assert_eq!(names(&file(1), &[], true, false), [Kind::WrongOrphan, Kind::NamelessInode]);
        assert_eq!(names(&file(1), &[link(P, "..", NoEntry)], false, false), [Kind::StaleLink, Kind::NamelessInode]);
    }

    #[test]
    fn names_of_directories() {
        use LinkState::*;
        let dir = inode(mode::S_IFDIR, 2);
        assert_eq!(names(&dir, &[link(P, "a", Good)], false, false), []);
        assert_eq!(names(&dir, &[link(Q, "a", Good)], false, false), [Kind::WrongParent]);
        assert_eq!(
            names(&dir, &[link(Q, "a", Good), link(P, "b", NoEntry)], false, true),
            [Kind::StaleLink, Kind::WrongParent]
        );
        let deleted = inode(mode::S_IFDIR, 0);
        assert_eq!(names(&deleted, &[], true, false), []);
        assert_eq!(names(&deleted, &[], true, true), [Kind::WrongOrphan, Kind::NamelessInode], "it is not empty");
        let two = [link(Q, "a", Good), link(P, "b", Good)];
        let found = check_names(&NameFacts { fid: F, inode: &dir, links: &two, is_orphan: false, has_entries: false });
        let name = Bytes::from_static(b"a");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].repairs, [Repair::DeleteEntry { parent: Q, name, fid: F }], "`..` decides");
    }

    #[test]
    fn the_root_has_no_name_and_is_its_own_parent() {
        let root = Inode { parent: Q, ..inode(mode::S_IFDIR, 2) };
        let links = [link(P, "a", LinkState::Good)];
        let facts = NameFacts { fid: Fid::ROOT, inode: &root, links: &links, is_orphan: true, has_entries: true };
        let kinds: Vec<_> = check_names(&facts).into_iter().map(|v| v.kind).collect();
        assert_eq!(kinds, [Kind::SecondName, Kind::WrongOrphan, Kind::WrongParent]);
    }

    #[test]
    fn entries_against_what_they_name() {
        let (file, entry) = (inode(mode::S_IFREG, 1), Dirent { fid: F, file_type: mode::S_IFREG });
        let good = EntryFacts {
            parent: P,
            cookie: tables::name_hash(b"a"),
            name: b"a",
            key: b"key",
            entry: &entry,
            is_in_directory: true,
            target: Some(&file),
            is_linked: true,
            is_doubled: false,
        };
        let kind = |f: EntryFacts<'_>| check_entry(&f).map(|v| v.kind);
        assert_eq!(kind(EntryFacts { ..good }), None);
        assert_eq!(kind(EntryFacts { cookie: 7, ..good }), Some(Kind::BadName));
        assert_eq!(kind(EntryFacts { name: b"a/b", ..good }), Some(Kind::BadName));
        assert_eq!(kind(EntryFacts { name: b"..", ..good }), Some(Kind::BadName));
        assert_eq!(kind(EntryFacts { is_in_directory: false, ..good }), Some(Kind::MisplacedEntry));
        assert_eq!(kind(EntryFacts { target: None, ..good }), Some(Kind::DanglingEntry));
        assert_eq!(kind(EntryFacts { is_linked: false, ..good }), Some(Kind::MissingLink));
        let dir = inode(mode::S_IFDIR, 2);
        assert_eq!(kind(EntryFacts { target: Some(&dir), ..good }), Some(Kind::WrongFileType));
    }

    #[test]
    fn a_wrong_type_gives_way_to_the_evidence() {
        let mended = |inode: &Inode, has_entries| match check_inode(F, inode, has_entries).first() {
            Some(Verdict { repairs, .. }) => match &repairs[0] {
                Repair::PutInode { inode, .. } => inode.file_type(),
                other => panic!("{other:?}"),
            },
            None => 0,
        };
        assert_eq!(mended(&inode(mode::S_IFREG, 1), false), 0);
        assert_eq!(mended(&inode(mode::S_IFREG, 1), true), mode::S_IFDIR);
        assert_eq!(mended(&inode(0o070000, 1), false), mode::S_IFREG);
        let link = Inode { target: Bytes::from_static(b"t"), ..inode(0, 1) };
        assert_eq!(mended(&link, false), mode::S_IFLNK);
    }

    #[test]
    fn counts_follow_names_and_subdirectories() {
        let check = |inode: &Inode, names, subdirectories, has_xattrs| {
            let f = CountFacts { fid: F, inode, names, subdirectories, has_xattrs };
            check_counts(&f).into_iter().map(|v| v.kind).collect::<Vec<_>>()
        };
        assert_eq!(check(&inode(mode::S_IFREG, 3), 3, 0, false), []);
        assert_eq!(check(&inode(mode::S_IFREG, 2), 3, 0, true), [Kind::WrongLinkCount, Kind::StrayXattr]);
        assert_eq!(check(&inode(mode::S_IFDIR, 5), 1, 3, false), []);
        assert_eq!(check(&inode(mode::S_IFDIR, 0), 0, 0, false), [], "deleted");
    }

    #[test]
    fn records_that_cannot_be_read_are_told_from_others() {
        let fid = F.to_key().to_vec();
        let kind = |table, key: &[u8], value: &'static [u8]| {
            check_record(table, key, &Bytes::from_static(value)).map(|v| v.kind)
        };
        assert_eq!(kind(ORPHANS, &fid, b"\x01"), None);
        for (table, key, value) in [
            (ORPHANS, &fid[..], &b"\x02"[..]),
            (ORPHANS, &fid[..15], b"\x01"),
            (INODES, &fid, b"\x01\x02"),
            (DIRENTS, &fid, b""),
            (LINKS, &fid, b"\x01"),
            (OBJECTS, b"abc", b""),
            (DESTROYS, &fid, b"\x01"),
            (XATTRS, &fid, b"\x01x"),
        ] {
            assert_eq!(kind(table, key, value), Some(Kind::UnreadableRecord), "{table:?}");
        }
    }
}
