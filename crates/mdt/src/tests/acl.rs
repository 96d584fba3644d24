//! POSIX access control lists as stored, shown, inherited and obeyed.

use super::*;
use crate::acl::{ACCESS, DEFAULT};
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR, O_WRONLY};

/// (tag, id, permissions) as getfacl shows them: u:: 1, u:ID: 2, g:: 4, g:ID: 8, m:: 0x10, o:: 0x20.
fn acl(entries: &[(u16, u32, u16)]) -> Bytes {
    let mut v = 2u32.to_le_bytes().to_vec();
    for (tag, id, perm) in entries {
        v.extend(tag.to_le_bytes());
        v.extend(perm.to_le_bytes());
        v.extend(id.to_le_bytes());
    }
    v.into()
}

const NONE: u32 = u32::MAX;

fn set(fs: &mut Fs, cred: &Credentials, fid: Fid, n: &str, value: Option<Bytes>) -> Result<(), Errno> {
    let r = ReintSetxattr { fid, name: n.to_owned(), value, flags: 0 };
    fs.op(cred, |cx, _| ops::xattr::set(cx, &r))
}

fn get(fs: &mut Fs, fid: Fid, n: &str) -> Result<Bytes, Errno> {
    fs.op(&root(), |cx, _| ops::xattr::get(cx, fid, n))
}

#[test]
fn a_list_gives_access_and_shows_in_the_mode() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    let list = |user5| acl(&[(1, NONE, 6), (2, 5, user5), (4, NONE, 4), (0x10, NONE, 6), (0x20, NONE, 0)]);
    assert_eq!(set(&mut fs, &user(5), f, ACCESS, Some(list(6))), Err(Errno::EPERM));
    set(&mut fs, &root(), f, ACCESS, Some(list(6))).unwrap();
    assert_eq!(fs.attr(f).mode & 0o777, 0o660, "the group bits show the mask");
    assert!(fs.open_name(&user(5), ROOT, "f", O_RDWR).is_ok());
    assert_eq!(fs.open_name(&user(6), ROOT, "f", 0), Err(Errno::EACCES));
    fs.chmod(f, 0o640);
    assert_eq!(fs.open_name(&user(5), ROOT, "f", O_WRONLY), Err(Errno::EACCES), "chmod set the mask");
    assert!(fs.open_name(&user(5), ROOT, "f", 0).is_ok());
    let masked = acl(&[(1, NONE, 6), (2, 5, 6), (4, NONE, 4), (0x10, NONE, 4), (0x20, NONE, 0)]);
    assert_eq!(get(&mut fs, f, ACCESS), Ok(masked));
    set(&mut fs, &root(), f, ACCESS, Some(acl(&[(1, NONE, 7), (4, NONE, 5), (0x20, NONE, 1)]))).unwrap();
    assert_eq!(fs.attr(f).mode & 0o777, 0o751);
    assert_eq!(get(&mut fs, f, ACCESS), Err(Errno::ENODATA), "the mode says it all");
    set(&mut fs, &root(), f, ACCESS, Some(list(4))).unwrap();
    set(&mut fs, &root(), f, ACCESS, None).unwrap();
    assert_eq!(get(&mut fs, f, ACCESS), Err(Errno::ENODATA));
    assert_eq!(set(&mut fs, &root(), f, ACCESS, Some(acl(&[(1, NONE, 7)]))), Err(Errno::EINVAL));
    fs.check();
}

#[test]
fn new_entries_inherit_the_default_list() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let default = acl(&[(1, NONE, 7), (2, 5, 7), (4, NONE, 5), (0x10, NONE, 7), (0x20, NONE, 0)]);
    set(&mut fs, &root(), d, DEFAULT, Some(default.clone())).unwrap();
    let r = Open { parent: d, name: name("f"), flags: O_CREAT | O_RDWR, mode: 0o666, umask: 0o077, ..Open::default() };
    let (f, _) = fs.open(&root(), r).unwrap();
    assert_eq!(fs.attr(f).mode & 0o777, 0o660, "the list, not the umask, limits");
    assert!(fs.open(&user(5), Open { parent: f, flags: O_RDWR, ..Open::default() }).is_ok());
    let sub = fs.mkdir(d, "sub");
    assert_eq!(get(&mut fs, sub, DEFAULT), Ok(default), "directories pass it on");
    assert_eq!(fs.attr(sub).mode & 0o777, 0o750);
    assert_eq!(
        set(&mut fs, &root(), f, DEFAULT, Some(acl(&[(1, NONE, 7), (4, NONE, 5), (0x20, NONE, 1)]))),
        Err(Errno::EACCES)
    );
    set(&mut fs, &root(), d, DEFAULT, None).unwrap();
    let plain = fs.mkfile(d, "plain");
    assert_eq!(fs.attr(plain).mode & 0o777, 0o644);
    fs.check();
}
