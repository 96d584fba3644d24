//! POSIX rules of single calls: errors, times, names, kinds of files.

use super::*;
use crate::ops::{close, fid2path};
use nacre_wire::mds::open_flags::{O_CREAT, O_DIRECTORY, O_EXCL, O_RDWR, O_TRUNC, O_WRONLY};

#[test]
fn names_have_limits() {
    let mut fs = Fs::new();
    let longest = "x".repeat(255);
    fs.mkfile(ROOT, &longest);
    assert!(fs.lookup(&root(), ROOT, &longest).is_ok());
    let mut fails = |n: &[u8]| {
        let r = ReintCreate {
            parent: ROOT,
            name: Bytes::copy_from_slice(n),
            mode: mode::S_IFREG,
            ..ReintCreate::default()
        };
        fs.create(&root(), r).unwrap_err()
    };
    assert_eq!(fails("x".repeat(256).as_bytes()), Errno::ENAMETOOLONG);
    assert_eq!(fails(b""), Errno::ENOENT);
    assert_eq!(fails(b"a/b"), Errno::EINVAL);
    assert_eq!(fails(b"a\0b"), Errno::EINVAL);
    assert_eq!(fails(b"."), Errno::EEXIST);
}

#[test]
fn every_kind_of_file_can_be_made() {
    let mut fs = Fs::new();
    for (i, kind) in [mode::S_IFIFO, mode::S_IFSOCK, mode::S_IFCHR, mode::S_IFBLK].into_iter().enumerate() {
        let r = ReintCreate {
            parent: ROOT,
            name: name(&i.to_string()),
            mode: kind | 0o600,
            rdev: 0x103,
            ..ReintCreate::default()
        };
        let fid = fs.create(&root(), r).unwrap();
        let device = kind == mode::S_IFCHR || kind == mode::S_IFBLK;
        assert_eq!((fs.attr(fid).file_type(), fs.attr(fid).rdev), (kind, if device { 0x103 } else { 0 }));
    }
    let bad = ReintCreate { parent: ROOT, name: name("x"), mode: 0o644, ..ReintCreate::default() };
    assert_eq!(fs.create(&root(), bad), Err(Errno::EINVAL), "no type");
    let other_mdt = ReintCreate {
        parent: ROOT,
        name: name("x"),
        child: fs.new_fid(),
        mode: mode::S_IFDIR,
        mdt_index: 5,
        ..ReintCreate::default()
    };
    assert_eq!(fs.op(&root(), |cx, _| ops::create::create(cx, &other_mdt, 0)).map(drop), Err(Errno::ENODEV));
}

#[test]
fn clients_cannot_reuse_or_invent_fids() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    for child in [f, ROOT, Fid { seq: 1, oid: 1, ver: 0 }, Fid { oid: 0, ..f }] {
        let r = ReintCreate { parent: ROOT, name: name("x"), child, mode: mode::S_IFREG, ..ReintCreate::default() };
        assert_eq!(fs.create(&root(), r), Err(Errno::EPROTO), "{child}");
    }
}

#[test]
fn symbolic_links() {
    let mut fs = Fs::new();
    let new = |n: &str, target: &str| ReintCreate {
        parent: ROOT,
        name: name(n),
        mode: mode::S_IFLNK,
        target: name(target),
        umask: 0o077,
        ..ReintCreate::default()
    };
    let fid = fs.create(&root(), new("l", "../somewhere")).unwrap();
    assert_eq!((fs.attr(fid).mode, fs.attr(fid).size), (mode::S_IFLNK | 0o777, 12));
    assert_eq!(fs.op(&user(5), |cx, _| ops::xattr::get(cx, fid, "trusted.link")).unwrap()[..], *b"../somewhere");
    assert_eq!(fs.create(&root(), new("m", "")), Err(Errno::ENOENT));
    assert!(fs.create(&root(), new("n", &"x".repeat(4095))).is_ok());
    assert_eq!(fs.create(&root(), new("o", &"x".repeat(4096))), Err(Errno::ENAMETOOLONG));
    assert_eq!(fs.open_name(&root(), ROOT, "l", 0), Err(Errno::ELOOP));
    assert_eq!(fs.open_name(&root(), ROOT, "l", O_CREAT | O_EXCL), Err(Errno::EEXIST));
    fs.link(&root(), fid, ROOT, "l2").unwrap();
    fs.chown(fid, 3, 3);
    assert_eq!(fs.attr(fid).uid, 3);
}

#[test]
fn open_flags() {
    let mut fs = Fs::new();
    fs.mkdir(ROOT, "d");
    fs.mkfile(ROOT, "f");
    let mut open = |n: &str, flags| fs.open_name(&root(), ROOT, n, flags).map(drop);
    assert_eq!(open("none", O_RDWR), Err(Errno::ENOENT));
    assert_eq!(open("f", O_CREAT | O_EXCL), Err(Errno::EEXIST));
    assert_eq!(open("f", O_CREAT), Ok(()));
    assert_eq!(open("f", O_DIRECTORY), Err(Errno::ENOTDIR));
    assert_eq!(open("d", O_DIRECTORY), Ok(()));
    assert_eq!(open("d", O_RDWR), Err(Errno::EISDIR));
    assert_eq!(open("d", O_TRUNC), Err(Errno::EISDIR));
    assert_eq!(open("d", O_CREAT), Err(Errno::EISDIR));
    assert_eq!(open(".", 0), Ok(()));
    assert_eq!(open("..", 0), Ok(()));
}

#[test]
fn a_creator_gets_the_access_asked_for_whatever_the_mode() {
    let mut fs = Fs::new();
    fs.chmod(ROOT, 0o777);
    let r = |flags| Open { parent: ROOT, name: name("f"), flags, mode: 0o777, umask: 0o777, ..Open::default() };
    let (fid, _) = fs.open(&user(5), r(O_CREAT | O_RDWR)).unwrap();
    assert_eq!(fs.attr(fid).mode & 0o777, 0);
    assert_eq!(fs.open(&user(5), r(O_CREAT | O_RDWR)), Err(Errno::EACCES));
}

#[test]
fn operations_touch_the_times_that_posix_says() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let f = fs.mkfile(d, "f");
    let (born, dir) = (fs.attr(f), fs.attr(d));
    assert_eq!((born.atime, born.mtime, born.ctime, born.btime), (fs.now(), fs.now(), fs.now(), fs.now()));
    assert_eq!((dir.mtime, dir.ctime), (fs.now(), fs.now()));
    assert!(dir.atime < fs.now());
    fs.chmod(f, 0o600);
    assert_eq!((fs.attr(f).ctime, fs.attr(f).mtime), (fs.now(), born.mtime));
    fs.link(&root(), f, d, "g").unwrap();
    assert_eq!((fs.attr(f).ctime, fs.attr(d).mtime, fs.attr(f).nlink), (fs.now(), fs.now(), 2));
    fs.unlink(&root(), d, "g", false).unwrap();
    assert_eq!((fs.attr(f).ctime, fs.attr(d).mtime, fs.attr(f).mtime), (fs.now(), fs.now(), born.mtime));
    fs.setattr(&root(), f, SetAttr { size: Some(7), ..SetAttr::default() }).unwrap();
    assert_eq!((fs.attr(f).ctime, fs.attr(f).mtime), (fs.now(), fs.now()));
    assert_eq!(fs.attr(f).version, fs.clock);
    let before = fs.attr(d);
    fs.lookup(&root(), d, "f").unwrap();
    fs.list(d);
    assert_eq!(fs.attr(d), before, "reading changes nothing");
}

#[test]
fn close_keeps_lazy_size_and_relatime() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    let close = |fs: &mut Fs, size, atime: Option<i64>| {
        let atime = atime.map(|secs| Timestamp { secs, nanos: 0 });
        let r = Close { fid: f, size_blocks: size, atime, ..Close::default() };
        fs.op(&root(), |cx, _| close::close(cx, &r)).unwrap()
    };
    let before = fs.attr(f);
    assert_eq!(close(&mut fs, None, None), close::Closed::Unchanged);
    close(&mut fs, Some((100, 8)), None);
    assert_eq!((fs.attr(f).size, fs.attr(f).blocks, fs.attr(f).ctime), (100, 8, before.ctime));
    close(&mut fs, None, Some(1000));
    assert_eq!(fs.attr(f).atime.secs, 1000, "the first read after a change");
    close(&mut fs, None, Some(2000));
    assert_eq!(fs.attr(f).atime.secs, 1000, "not every read");
    close(&mut fs, None, Some(1000 + 24 * 3600));
    assert_eq!(fs.attr(f).atime.secs, 1000 + 24 * 3600, "but once a day");
}

#[test]
fn hard_links_have_a_limit() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    let d = fs.mkdir(ROOT, "d");
    assert_eq!(fs.link(&root(), d, ROOT, "e"), Err(Errno::EPERM));
    let mut inode = fs.inode(f).unwrap();
    inode.nlink = ops::LINK_MAX;
    fs.op(&root(), |cx, _| tables::put_inode(cx.tx, f, &inode)).unwrap();
    assert_eq!(fs.link(&root(), f, ROOT, "g"), Err(Errno::EMLINK));
}

#[test]
fn gone_inodes_are_stale_and_gone_directories_have_no_entries() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let f = fs.mkfile(ROOT, "f");
    fs.unlink(&root(), ROOT, "d", true).unwrap();
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    assert_eq!(fs.op(&root(), |cx, _| ops::getattr::getattr(cx, f)).map(drop), Err(Errno::ESTALE));
    assert_eq!(fs.lookup(&root(), d, "x"), Err(Errno::ENOENT));
    assert_eq!(fs.open_name(&root(), d, "x", O_CREAT | O_WRONLY), Err(Errno::ENOENT));
    assert_eq!(fs.open(&root(), Open { parent: f, ..Open::default() }), Err(Errno::ESTALE));
    assert_eq!(fs.unlink(&root(), ROOT, ".", true), Err(Errno::EINVAL));
    assert_eq!(fs.unlink(&root(), ROOT, "..", true), Err(Errno::ENOTEMPTY));
}

#[test]
fn paths_of_a_fid() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let e = fs.mkdir(d, "e");
    let f = fs.mkfile(e, "f");
    fs.link(&root(), f, ROOT, "g").unwrap();
    let paths = |fs: &mut Fs, cred: Credentials, fid| {
        let found = fs.op(&cred, |cx, _| fid2path::fid2path(cx, fid))?;
        let mut found: Vec<String> = found.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
        found.sort();
        Ok::<_, Errno>(found)
    };
    assert_eq!(paths(&mut fs, root(), f), Ok(vec!["d/e/f".into(), "g".into()]));
    assert_eq!(paths(&mut fs, root(), e), Ok(vec!["d/e".into()]));
    assert_eq!(paths(&mut fs, root(), ROOT), Ok(vec!["".into()]));
    fs.chmod(d, 0o700);
    assert_eq!(paths(&mut fs, user(5), f), Ok(vec!["g".into()]));
    assert_eq!(paths(&mut fs, user(5), e), Err(Errno::EACCES));
    assert_eq!(paths(&mut fs, root(), Fid { seq: 1, oid: 2, ver: 0 }), Err(Errno::ENOENT));
}
