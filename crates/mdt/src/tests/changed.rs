//! The changes that operations report, which decide on the locks they take from other clients. The table is the
//! specification; the random test compares the reports with the real changes of the tables.

use super::random::Run;
use super::*;
use nacre_wire::ldlm::inode_bits::{LAYOUT, LOOKUP, PERM, UPDATE, XATTR};
use nacre_wire::mds::open_flags::{O_CREAT, O_EXCL, O_TRUNC, O_WRONLY};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A file system with `d/f`, `d/g`, `e/` and `e/f`.
struct Small {
    fs: Fs,
    d: Fid,
    e: Fid,
    f: Fid,
    g: Fid,
    in_e: Fid,
}

impl Small {
    fn new() -> Small {
        let mut fs = Fs::new();
        let (d, e) = (fs.mkdir(ROOT, "d"), fs.mkdir(ROOT, "e"));
        let (f, g, in_e) = (fs.mkfile(d, "f"), fs.mkfile(d, "g"), fs.mkfile(e, "f"));
        Small { fs, d, e, f, g, in_e }
    }

    #[track_caller]
    fn expect(&mut self, expected: &[(Fid, u64)]) {
        let mut changed = self.fs.changed.clone();
        changed.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(changed, expected);
    }

    fn set(&mut self, fid: Fid, set: SetAttr) {
        self.fs.setattr(&root(), fid, set).unwrap();
    }

    fn setxattr(&mut self, fid: Fid, n: &str, value: &[u8]) {
        let value = Some(Bytes::copy_from_slice(value));
        let r = ReintSetxattr { fid, name: n.to_owned(), value, flags: 0 };
        self.fs.op(&root(), |cx, _| ops::xattr::set(cx, &r)).unwrap();
    }

    fn set_layout(&mut self, fid: Fid) {
        let r = ReintSetLayout { fid, spec: Some(LayoutSpec::plain()), ..ReintSetLayout::default() };
        self.fs.op(&root(), |cx, objects| ops::set_layout::set_layout(cx, &r, true, objects)).unwrap();
    }
}

#[test]
fn names_are_of_their_directory_and_of_what_they_name() {
    let mut s = Small::new();
    let (d, e, f, g, in_e) = (s.d, s.e, s.f, s.g, s.in_e);
    s.fs.mkdir(d, "new");
    s.expect(&[(d, UPDATE)]);
    s.fs.open_name(&root(), d, "open", O_CREAT | O_WRONLY).unwrap();
    s.expect(&[(d, UPDATE)]);
    s.fs.link(&root(), f, e, "link").unwrap();
    s.expect(&[(e, UPDATE), (f, UPDATE)]);
    s.fs.unlink(&root(), e, "link", false).unwrap();
    s.expect(&[(e, UPDATE), (f, LOOKUP | UPDATE)]);
    s.fs.rename(&root(), (d, "f"), (d, "renamed"), 0).unwrap();
    s.expect(&[(d, UPDATE), (f, LOOKUP | UPDATE)]);
    s.fs.rename(&root(), (d, "renamed"), (e, "f"), 0).unwrap();
    s.expect(&[(d, UPDATE), (e, UPDATE), (f, LOOKUP | UPDATE), (in_e, LOOKUP | UPDATE)]);
    s.fs.rename(&root(), (d, "g"), (e, "f"), ops::rename::RENAME_EXCHANGE).unwrap();
    s.expect(&[(d, UPDATE), (e, UPDATE), (f, LOOKUP | UPDATE), (g, LOOKUP | UPDATE)]);
    let new = s.fs.lookup(&root(), d, "new").unwrap();
    s.expect(&[]);
    s.fs.unlink(&root(), d, "new", true).unwrap();
    s.expect(&[(d, UPDATE), (new, LOOKUP | UPDATE)]);
}

#[test]
fn attributes_are_of_their_inode() {
    let mut s = Small::new();
    let (d, f) = (s.d, s.f);
    s.fs.chmod(d, 0o700);
    s.expect(&[(d, LOOKUP | PERM | UPDATE)]);
    s.fs.chmod(d, 0o700);
    s.expect(&[(d, UPDATE)]);
    s.fs.chown(f, 5, 5);
    s.expect(&[(f, LOOKUP | PERM | UPDATE)]);
    s.set(f, SetAttr { atime: Some(Timestamp { secs: 9, nanos: 0 }), ..SetAttr::default() });
    s.expect(&[(f, UPDATE)]);
    s.set(f, SetAttr { size: Some(0), ..SetAttr::default() });
    s.expect(&[(f, UPDATE)]);
    s.set(f, SetAttr { size: Some(7), ..SetAttr::default() });
    s.expect(&[(f, LAYOUT | UPDATE)]);
    s.set(f, SetAttr::default());
    s.expect(&[]);
    s.setxattr(f, "user.a", b"1");
    s.expect(&[(f, XATTR | UPDATE)]);
    s.fs.chmod(f, 0o4755);
    s.expect(&[(f, LOOKUP | PERM | UPDATE | XATTR)]);
    let owner = |uid| acl::Acl::decode(&acl_bytes(uid)).unwrap().unwrap().encode();
    s.setxattr(d, crate::acl::ACCESS, &owner(7));
    s.expect(&[(d, LOOKUP | PERM | UPDATE | XATTR)]);
    s.setxattr(d, crate::acl::ACCESS, &owner(8));
    s.expect(&[(d, PERM | UPDATE | XATTR)]);
    s.set_layout(d);
    s.expect(&[(d, LAYOUT | UPDATE | XATTR)]);
}

use crate::acl;

/// `user::rwx, user:uid:r--, group::r--, mask::r--, other::---` in the kernel's encoding.
fn acl_bytes(uid: u32) -> Bytes {
    let none = u32::MAX;
    let entries = [(1u16, 7u16, none), (2, 4, uid), (4, 4, none), (0x10, 4, none), (0x20, 0, none)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        out.extend(id.to_le_bytes());
    }
    out.into()
}

#[test]
fn an_open_changes_what_it_makes_cuts_or_gives_objects() {
    let mut s = Small::new();
    let (d, f) = (s.d, s.f);
    s.fs.open_name(&root(), d, "f", 0).unwrap();
    s.expect(&[]);
    s.fs.open_name(&root(), d, "f", O_WRONLY).unwrap();
    s.expect(&[(f, LAYOUT | UPDATE)]);
    s.fs.open_name(&root(), d, "f", O_WRONLY | O_CREAT).unwrap();
    s.expect(&[]);
    s.fs.open_name(&root(), d, "f", O_WRONLY | O_TRUNC).unwrap();
    s.expect(&[(f, UPDATE)]);
    s.fs.chmod(f, 0o6777);
    s.fs.open_name(&user(5), d, "f", O_WRONLY | O_TRUNC).unwrap();
    s.expect(&[(f, LOOKUP | PERM | UPDATE)]);
    s.fs.open_name(&root(), d, "f", O_WRONLY | O_CREAT | O_EXCL).unwrap_err();
    s.expect(&[]);
}

#[test]
fn a_close_changes_the_inode_if_it_brings_news() {
    let mut s = Small::new();
    let fid = s.f;
    let close = Close { fid, size_blocks: Some((9, 8)), ..Close::default() };
    for expected in [&[(fid, UPDATE)][..], &[]] {
        s.fs.op(&root(), |cx, _| ops::close::close(cx, &close)).unwrap();
        s.expect(expected);
    }
}

/// Everything that a client may cache.
#[derive(Default, PartialEq)]
struct Tables {
    inodes: BTreeMap<Fid, Inode>,
    /// By directory and name, without the hash in between: the inode.
    entries: BTreeMap<(Fid, Vec<u8>), Fid>,
}

impl Tables {
    fn of(fs: &Fs) -> Tables {
        let tx = fs.begin();
        let mut found = Tables::default();
        tx.scan(tables::INODES, &[], &mut |key, value| {
            let fid = Fid::from_key(key).unwrap();
            found.inodes.insert(fid, Inode::decode(Bytes::copy_from_slice(value)).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
        for fid in found.inodes.keys() {
            tables::scan_dirents(&*tx, *fid, 0, &mut |_, name, entry| {
                found.entries.insert((*fid, name.to_vec()), entry.fid);
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        found
    }

    /// What a client that knows these tables must forget when they have become `new`.
    fn changed(&self, new: &Tables) -> BTreeMap<Fid, u64> {
        let mut changed = BTreeMap::<Fid, u64>::new();
        let mut add = |fid, bits| *changed.entry(fid).or_default() |= bits;
        for key in self.entries.keys().chain(new.entries.keys()) {
            let (old, now) = (self.entries.get(key), new.entries.get(key));
            if old != now {
                add(key.0, UPDATE);
                old.into_iter().for_each(|fid| add(*fid, LOOKUP));
            }
        }
        for (fid, old) in &self.inodes {
            let Some(now) = new.inodes.get(fid) else { continue };
            let permissions = |i: &Inode| (i.mode, i.uid, i.gid, i.has_capability());
            if old.attr(*fid) != now.attr(*fid) {
                add(*fid, UPDATE);
            }
            if permissions(old) != permissions(now) {
                add(*fid, PERM);
            }
            if old.layout != now.layout {
                add(*fid, LAYOUT);
            }
            if old.xattrs != now.xattrs {
                add(*fid, XATTR);
            }
        }
        changed
    }
}

#[test]
fn operations_note_all_that_they_change_and_only_of_inodes_that_they_change() {
    for seed in 0..4 {
        let mut run = Run::new(seed);
        let mut before = Tables::of(&run.fs);
        let mut inodes = 0;
        for step in 0..1500 {
            run.fs.changed.clear();
            let failed = run.succeeded;
            run.step();
            let after = Tables::of(&run.fs);
            let noted: BTreeMap<Fid, u64> = run.fs.changed.iter().copied().collect();
            let changed = before.changed(&after);
            inodes += changed.len();
            for (fid, bits) in &changed {
                let noted = noted.get(fid).copied().unwrap_or(0);
                assert_eq!(bits & !noted, 0, "seed {seed} step {step}: {fid} changed in {bits:#x}, noted {noted:#x}");
            }
            if run.succeeded > failed {
                let extra = noted.keys().find(|f| !changed.contains_key(f) && after.inodes.contains_key(f));
                assert_eq!(extra, None, "seed {seed} step {step}: noted {noted:?}");
            }
            before = after;
        }
        assert!(inodes > 300, "seed {seed}: {inodes}");
    }
}
