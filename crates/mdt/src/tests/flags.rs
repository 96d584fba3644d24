//! Flags of chattr(1): what they forbid to everybody, and which users may change them.

use super::*;
use nacre_wire::attr::file_flags::{APPEND, IMMUTABLE, NOATIME, NODUMP};

fn user() -> Credentials {
    Credentials { uid: 5, gid: 5, groups: vec![] }
}

impl Fs {
    fn set(&mut self, cred: &Credentials, fid: Fid, set: SetAttr) -> Result<(), Errno> {
        let r = ReintSetattr { fid, set, handle: 0 };
        self.op(cred, |cx, objects| ops::setattr::setattr(cx, &r, false, objects)).map(drop)
    }

    fn set_flags(&mut self, cred: &Credentials, fid: Fid, flags: u32) -> Result<(), Errno> {
        self.set(cred, fid, SetAttr { flags: Some(flags), ..SetAttr::default() })
    }
}

fn set(f: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut set = SetAttr::default();
    f(&mut set);
    set
}

const DENIED: Result<(), Errno> = Err(Errno::EPERM);

#[test]
fn who_may_change_flags() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.set(&root(), f, set(|s| s.uid = Some(5))).unwrap();
    assert_eq!(fs.set_flags(&user(), f, NODUMP | NOATIME), Ok(()));
    assert_eq!(fs.attr(f).flags, NODUMP | NOATIME);
    assert_eq!(fs.set_flags(&user(), f, IMMUTABLE), DENIED);
    assert_eq!(fs.set_flags(&user(), f, APPEND | NODUMP), DENIED);
    let other = Credentials { uid: 6, gid: 6, groups: vec![] };
    assert_eq!(fs.set_flags(&other, f, 0), DENIED);
    assert_eq!(fs.set_flags(&root(), f, 1), Err(Errno::EOPNOTSUPP));
    assert_eq!(fs.set_flags(&root(), f, IMMUTABLE), Ok(()));
    assert_eq!(fs.set_flags(&user(), f, IMMUTABLE | NODUMP), Ok(()), "the others stay the owner's");
    assert_eq!(fs.set_flags(&user(), f, 0), DENIED);
    assert_eq!(fs.set_flags(&root(), f, 0), Ok(()));
}

#[test]
fn nothing_of_what_is_immutable_changes() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.set_flags(&root(), f, IMMUTABLE).unwrap();
    let before = fs.attr(f);
    for flags in [open_flags::O_RDWR, open_flags::O_WRONLY | open_flags::O_APPEND, open_flags::O_TRUNC] {
        assert_eq!(fs.open_name(&root(), ROOT, "f", flags).map(drop), DENIED);
    }
    let handle = fs.open_name(&root(), ROOT, "f", 0).unwrap().1;
    fs.close(handle);
    assert_eq!(fs.unlink(&root(), ROOT, "f", false), DENIED);
    assert_eq!(fs.rename(&root(), (ROOT, "f"), (ROOT, "g"), 0), DENIED);
    assert_eq!(fs.link(&root(), f, ROOT, "g"), DENIED);
    let now = Timestamp { secs: 9, nanos: 0 };
    let sets = [
        set(|s| s.mode = Some(0o600)),
        set(|s| s.uid = Some(1)),
        set(|s| s.projid = Some(1)),
        set(|s| s.size = Some(0)),
        set(|s| s.mtime = Some(now)),
        set(|s| (s.atime, s.times_are_now) = (Some(now), true)),
    ];
    for change in sets {
        assert_eq!(fs.set(&root(), f, change.clone()), DENIED, "{change:?}");
    }
    let xattr = ReintSetxattr { fid: f, name: "user.a".into(), value: Some(Bytes::new()), flags: 0 };
    assert_eq!(fs.op(&root(), |cx, _| ops::xattr::set(cx, &xattr)), DENIED);
    let close = Close { fid: f, atime: Some(Timestamp { secs: 1 << 40, nanos: 0 }), ..Close::default() };
    fs.set_flags(&root(), f, IMMUTABLE | NOATIME).unwrap();
    fs.op(&root(), |cx, _| ops::close::close(cx, &close)).unwrap();
    assert_eq!((fs.attr(f).atime, fs.attr(f).mode, fs.attr(f).nlink), (before.atime, before.mode, 1));

    let d = fs.mkdir(ROOT, "d");
    fs.mkfile(d, "in");
    fs.set_flags(&root(), d, IMMUTABLE).unwrap();
    assert_eq!(fs.open_name(&root(), d, "new", open_flags::O_CREAT).map(drop), DENIED);
    assert_eq!(fs.unlink(&root(), d, "in", false), DENIED);
    assert_eq!(fs.rename(&root(), (d, "in"), (ROOT, "out"), 0), DENIED);
    assert_eq!(fs.unlink(&root(), ROOT, "d", true), DENIED);
}

#[test]
fn what_is_append_only_only_grows() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.set_flags(&root(), f, APPEND).unwrap();
    let append = open_flags::O_WRONLY | open_flags::O_APPEND;
    for (flags, allowed) in
        [(0, true), (append, true), (open_flags::O_RDWR, false), (append | open_flags::O_TRUNC, false)]
    {
        assert_eq!(fs.open_name(&root(), ROOT, "f", flags).is_ok(), allowed, "{flags:o}");
    }
    assert_eq!(fs.set(&root(), f, set(|s| s.size = Some(1 << 20))), DENIED);
    assert_eq!(fs.set(&root(), f, set(|s| s.mode = Some(0o600))), DENIED);
    let now = Timestamp { secs: 9, nanos: 0 };
    assert_eq!(fs.set(&root(), f, set(|s| (s.mtime, s.times_are_now) = (Some(now), true))), Ok(()));
    assert_eq!(fs.unlink(&root(), ROOT, "f", false), DENIED);

    let d = fs.mkdir(ROOT, "d");
    fs.set_flags(&root(), d, APPEND).unwrap();
    fs.mkfile(d, "new");
    assert_eq!(fs.unlink(&root(), d, "new", false), DENIED);
    assert_eq!(fs.rename(&root(), (d, "new"), (ROOT, "out"), 0), DENIED);
}
