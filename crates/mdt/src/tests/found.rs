//! The state that a replay needs to find: each operation with and without an earlier change by another client.

use super::*;
use crate::replay::ReplayedObjects;
use nacre_wire::layout::{Component, Layout, Stripe};
use nacre_wire::mds::ReintSetxattr;

/// A directory `d` with a file `x`, a file `y` and an empty directory `e`.
struct Scene {
    fs: Fs,
    d: Fid,
    e: Fid,
    x: Fid,
    y: Fid,
}

fn scene() -> Scene {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let (x, y, e) = (fs.mkfile(d, "x"), fs.mkfile(d, "y"), fs.mkdir(d, "e"));
    Scene { fs, d, e, x, y }
}

/// Outcome of a replay.
#[derive(Debug, PartialEq, Eq)]
enum Replay {
    /// The replay is made.
    Made,
    /// The replay is refused, because it is based on another state.
    Refused,
    /// The operation itself fails.
    Fails(Errno),
}

type Op = fn(&mut Scene) -> Result<(), Errno>;

/// Outcome of a replay of `operation`, which first ran after `missing`, without `missing`.
fn without(missing: Op, operation: Op) -> Replay {
    let mut first = scene();
    missing(&mut first).expect("it was made");
    operation(&mut first).expect("it was answered");
    let mut again = scene();
    match operation(&mut again) {
        Err(error) => Replay::Fails(error),
        Ok(()) if first.fs.found.agree_with(&again.fs.found) => Replay::Made,
        Ok(()) => Replay::Refused,
    }
}

const CHMOD_D: Op = |s| s.fs.setattr(&root(), s.d, mode_of(0o777)).map(drop);
const CHMOD_X: Op = |s| s.fs.setattr(&root(), s.x, mode_of(0o600)).map(drop);
const CHMOD_E: Op = |s| s.fs.setattr(&root(), s.e, mode_of(0o777)).map(drop);
const CHOWN_X: Op = |s| s.fs.setattr(&root(), s.x, SetAttr { uid: Some(7), ..SetAttr::default() }).map(drop);
const TOUCH_X: Op = |s| {
    let atime = Some(Timestamp { secs: 1, nanos: 0 });
    s.fs.setattr(&root(), s.x, SetAttr { atime, ..SetAttr::default() }).map(drop)
};
const TRUNCATE_X: Op = |s| s.fs.setattr(&root(), s.x, SetAttr { size: Some(0), ..SetAttr::default() }).map(drop);
const CREATE_N: Op = |s| create(s, s.d, "n");
const CREATE_X: Op = |s| create(s, s.d, "x");
const CREATE_M: Op = |s| create(s, s.d, "m");
const MKDIR_N: Op = |s| mkdir(s, s.d, "n");
const UNLINK_X: Op = |s| s.fs.unlink(&root(), s.d, "x", false);
const UNLINK_Y: Op = |s| s.fs.unlink(&root(), s.d, "y", false);
const RMDIR_E: Op = |s| s.fs.unlink(&root(), s.d, "e", true);
const LINK_X_N: Op = |s| s.fs.link(&root(), s.x, s.d, "n");
const LINK_X_INTO_E: Op = |s| s.fs.link(&root(), s.x, s.e, "n");
const RENAME_X_N: Op = |s| s.fs.rename(&root(), (s.d, "x"), (s.d, "n"), 0);
const RENAME_X_Y: Op = |s| s.fs.rename(&root(), (s.d, "x"), (s.d, "y"), 0);
const RENAME_X_INTO_E: Op = |s| s.fs.rename(&root(), (s.d, "x"), (s.e, "x"), 0);
const RENAME_Y_X: Op = |s| s.fs.rename(&root(), (s.d, "y"), (s.d, "x"), 0);
const REPLACE_X: Op = |s| {
    s.fs.unlink(&root(), s.d, "x", false)?;
    create(s, s.d, "x")
};
const REPLACE_Y: Op = |s| {
    s.fs.unlink(&root(), s.d, "y", false)?;
    create(s, s.d, "y")
};
const USER_XATTR_X: Op = |s| xattr(s, "user.a");
const CAPABILITY_X: Op = |s| xattr(s, "security.capability");
const OPEN_X_CREATING: Op = |s| {
    let flags = nacre_wire::mds::open_flags::O_CREAT | nacre_wire::mds::open_flags::O_WRONLY;
    s.fs.open_name(&root(), s.d, "x", flags).map(drop)
};

fn mode_of(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn create(s: &mut Scene, parent: Fid, n: &str) -> Result<(), Errno> {
    let r = ReintCreate { parent, name: name(n), mode: mode::S_IFREG | 0o644, ..ReintCreate::default() };
    s.fs.create(&root(), r).map(drop)
}

fn mkdir(s: &mut Scene, parent: Fid, n: &str) -> Result<(), Errno> {
    let r = ReintCreate { parent, name: name(n), mode: mode::S_IFDIR | 0o755, ..ReintCreate::default() };
    s.fs.create(&root(), r).map(drop)
}

fn xattr(s: &mut Scene, attribute: &str) -> Result<(), Errno> {
    let value = Some(Bytes::from_static(b"1"));
    let r = ReintSetxattr { fid: s.x, name: attribute.to_owned(), value, flags: 0 };
    s.fs.op(&root(), |cx, _| ops::xattr::set(cx, &r))
}

#[test]
fn a_replay_is_made_only_where_it_was_made_first() {
    use Replay::{Fails, Made, Refused};
    let cases: &[(&str, Op, Op, Replay)] = &[
        // Names of one directory are independent of each other.
        ("create, create of another", CREATE_M, CREATE_N, Made),
        ("unlink of another, create", UNLINK_Y, CREATE_N, Made),
        ("mkdir, unlink", MKDIR_N, UNLINK_X, Made),
        ("create, rename", CREATE_M, RENAME_X_N, Made),
        ("create, rmdir", CREATE_M, RMDIR_E, Made),
        // They depend on the directory's own attributes.
        ("chmod of the directory, create", CHMOD_D, CREATE_N, Refused),
        ("chmod of the directory, mkdir", CHMOD_D, MKDIR_N, Refused),
        ("chmod of the directory, unlink", CHMOD_D, UNLINK_X, Refused),
        ("chmod of the directory, link", CHMOD_D, LINK_X_N, Refused),
        ("chmod of the directory, rename", CHMOD_D, RENAME_X_N, Refused),
        ("chmod of the new directory, rename", CHMOD_E, RENAME_X_INTO_E, Refused),
        ("chmod of the new directory, link", CHMOD_E, LINK_X_INTO_E, Refused),
        ("chmod of another directory, rename", CHMOD_E, RENAME_X_N, Made),
        // A name must lead to the same inode as before.
        ("replacement, unlink", REPLACE_X, UNLINK_X, Refused),
        ("replacement, rename", REPLACE_X, RENAME_X_N, Refused),
        ("replacement of the target, rename", REPLACE_Y, RENAME_X_Y, Refused),
        ("unlink of the target, rename", UNLINK_Y, RENAME_X_Y, Refused),
        ("rename over it, unlink", RENAME_Y_X, UNLINK_X, Refused),
        ("unlink, open that creates", UNLINK_X, OPEN_X_CREATING, Refused),
        ("unlink, create", UNLINK_X, CREATE_X, Fails(Errno::EEXIST)),
        ("create, rename over it", CREATE_N, RENAME_X_N, Refused),
        ("rename, rename of another to the old name", RENAME_X_N, RENAME_Y_X, Refused),
        // Permissions are one unit; times, sizes and programs' own attributes are independent.
        ("chown, chmod", CHOWN_X, CHMOD_X, Refused),
        ("chmod, chown", CHMOD_X, CHOWN_X, Refused),
        ("chown, capability", CHOWN_X, CAPABILITY_X, Refused),
        ("capability, chmod", CAPABILITY_X, CHMOD_X, Refused),
        ("chmod, times", CHMOD_X, TOUCH_X, Made),
        ("chmod, size", CHMOD_X, TRUNCATE_X, Made),
        ("times, chmod", TOUCH_X, CHMOD_X, Made),
        ("size, chmod", TRUNCATE_X, CHMOD_X, Made),
        ("chmod, user's attribute", CHMOD_X, USER_XATTR_X, Made),
        ("user's attribute, chmod", USER_XATTR_X, CHMOD_X, Made),
        ("link, chmod", LINK_X_N, CHMOD_X, Made),
        ("chmod, link", CHMOD_X, LINK_X_INTO_E, Made),
        ("chmod, unlink", CHMOD_X, UNLINK_X, Made),
        ("rename, chmod", RENAME_X_N, CHMOD_X, Made),
    ];
    for (what, missing, operation, becomes) in cases {
        assert_eq!(&without(*missing, *operation), becomes, "{what}");
    }
}

#[test]
fn inodes_of_old_disks_agree_until_they_change() {
    let mut s = scene();
    let old = Inode { vbr_version: 0, ..s.fs.inode(s.x).unwrap() };
    s.fs.op(&root(), |cx, _| tables::put_inode(cx.tx, s.x, &old)).unwrap();
    CHMOD_X(&mut s).unwrap();
    let of_old = s.fs.found;
    CHOWN_X(&mut s).unwrap();
    assert!(of_old.agree_with(&s.fs.found) && !s.fs.found.agree_with(&of_old));
}

/// Objects of a client that does not come back lie between those of one that does. Nothing else would ever destroy them.
#[test]
fn objects_that_nobody_gets_back_are_destroyed() {
    let mut s = scene();
    let object = |oid| Fid { seq: 0x240000400, oid, ver: 0 };
    let mut replay = |oids: &[u32]| {
        let stripes = oids.iter().map(|oid| Stripe { ost: OstIndex(0), object: object(*oid) }).collect();
        let component = Component { id: 1, end: u64::MAX, stripes, ..Component::default() };
        let layout = Layout { generation: 1, components: vec![component] };
        let mut replayed = ReplayedObjects::new(Some(layout));
        s.fs.op(&root(), |cx, _| replayed.instantiate(cx.tx, s.y, &mut Layout::default(), &(0..1))).unwrap();
        let tx = s.fs.begin();
        let missed = tables::destroys(&*tx, OstIndex(0), None, 0, usize::MAX).unwrap();
        missed.into_iter().map(|(_, object)| object.oid).collect::<Vec<_>>()
    };
    assert_eq!(replay(&[2]), [1]);
    assert_eq!(replay(&[5, 7]), [1, 3, 4, 6]);
    assert_eq!(replay(&[4]), [1, 3, 6], "given back by an operation that failed, and used later");
    assert_eq!(replay(&[8]), [1, 3, 6]);
    assert_eq!(replay(&[u32::MAX]), [1, 3, 6], "nonsense costs nothing");
}
