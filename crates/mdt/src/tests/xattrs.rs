//! Extended attributes: small and large, which users may see and set which, and their flags.

use super::*;

fn set(fs: &mut Fs, cred: &Credentials, fid: Fid, n: &str, value: Option<&[u8]>, flags: u32) -> Result<(), Errno> {
    let r = ReintSetxattr { fid, name: n.to_owned(), value: value.map(Bytes::copy_from_slice), flags };
    fs.op(cred, |cx, _| ops::xattr::set(cx, &r))
}

fn get(fs: &mut Fs, cred: &Credentials, fid: Fid, n: &str) -> Result<Vec<u8>, Errno> {
    fs.op(cred, |cx, _| ops::xattr::get(cx, fid, n)).map(|v| v.to_vec())
}

fn list(fs: &mut Fs, cred: &Credentials, fid: Fid) -> String {
    let names = fs.op(cred, |cx, _| ops::xattr::list(cx, fid)).unwrap();
    String::from_utf8_lossy(&names).replace('\0', " ")
}

#[test]
fn values_of_any_size_come_back_and_move_between_inode_and_table() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    for size in [0, 10, 65536, 512, 513, 3, 40000] {
        let value = vec![size as u8; size];
        set(&mut fs, &root(), f, "user.a", Some(&value), 0).unwrap();
        assert_eq!(get(&mut fs, &root(), f, "user.a"), Ok(value));
        fs.check();
    }
    for i in 0..20 {
        set(&mut fs, &root(), f, &format!("user.n{i:02}"), Some(&[1; 300]), 0).unwrap();
    }
    fs.check();
    assert_eq!(list(&mut fs, &root(), f).split(' ').count(), 22);
    for i in 0..20 {
        set(&mut fs, &root(), f, &format!("user.n{i:02}"), None, 0).unwrap();
    }
    assert_eq!(list(&mut fs, &root(), f), "user.a ");
    fs.check();
    set(&mut fs, &root(), f, "user.a", None, 0).unwrap();
    assert_eq!(fs.inode(f).unwrap().flags, 0);
    set(&mut fs, &root(), f, "user.big", Some(&[1; 60000]), 0).unwrap();
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    fs.check();
}

#[test]
fn flags_and_limits() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    let mut s = |n: &str, v: Option<&[u8]>, flags| set(&mut fs, &root(), f, n, v, flags);
    assert_eq!(s("user.a", Some(b"1"), 2), Err(Errno::ENODATA));
    assert_eq!(s("user.a", Some(b"1"), 1), Ok(()));
    assert_eq!(s("user.a", Some(b"2"), 1), Err(Errno::EEXIST));
    assert_eq!(s("user.a", Some(b"2"), 2), Ok(()));
    assert_eq!(s("user.a", Some(b"2"), 3), Err(Errno::EINVAL));
    assert_eq!(s("user.b", None, 0), Err(Errno::ENODATA));
    assert_eq!(s("user.", Some(b"1"), 0), Err(Errno::EINVAL));
    assert_eq!(s("nonsense", Some(b"1"), 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(s("lustre.lov", Some(b"1"), 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(s("user.a", Some(&[0; 65537]), 0), Err(Errno::E2BIG));
    assert_eq!(s(&format!("user.{}", "x".repeat(251)), Some(b"1"), 0), Err(Errno::ERANGE));
    assert_eq!(s(&format!("user.{}", "x".repeat(250)), Some(b"1"), 0), Ok(()));
    let full = (0..1000).find_map(|i| s(&format!("user.{i:0250}"), Some(b"1"), 0).err());
    assert_eq!(full, Some(Errno::ENOSPC), "names must fit into one list");
    fs.check();
}

#[test]
fn namespaces_have_their_own_rules() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chown(f, 5, 5);
    fs.chmod(f, 0o640);
    assert_eq!(set(&mut fs, &user(5), f, "user.a", Some(b"1"), 0), Ok(()));
    assert_eq!(set(&mut fs, &user(6), f, "user.a", Some(b"1"), 0), Err(Errno::EACCES));
    assert_eq!(get(&mut fs, &user(6), f, "user.a"), Err(Errno::EACCES));
    assert_eq!(set(&mut fs, &user(5), f, "trusted.a", Some(b"1"), 0), Err(Errno::EPERM));
    assert_eq!(set(&mut fs, &root(), f, "trusted.a", Some(b"1"), 0), Ok(()));
    assert_eq!(get(&mut fs, &user(5), f, "trusted.a"), Err(Errno::ENODATA));
    assert_eq!((list(&mut fs, &user(5), f), list(&mut fs, &root(), f)), ("user.a ".into(), "trusted.a user.a ".into()));
    assert_eq!(set(&mut fs, &user(5), f, "security.a", Some(b"1"), 0), Err(Errno::EPERM));
    let r = ReintCreate { parent: ROOT, name: name("p"), mode: mode::S_IFIFO | 0o666, ..ReintCreate::default() };
    let fifo = fs.create(&root(), r).unwrap();
    assert_eq!(set(&mut fs, &root(), fifo, "user.a", Some(b"1"), 0), Err(Errno::EPERM));
    assert_eq!(set(&mut fs, &root(), fifo, "trusted.a", Some(b"1"), 0), Ok(()));
    let tmp = fs.mkdir(ROOT, "tmp");
    fs.chmod(tmp, 0o1777);
    assert_eq!(set(&mut fs, &user(5), tmp, "user.a", Some(b"1"), 0), Err(Errno::EPERM), "sticky: its owner's alone");
}

#[test]
fn capabilities_do_not_survive_a_change_of_owner_or_content() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chmod(f, 0o666);
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let kill = SetAttr { kill_capability: true, ..SetAttr::default() };
    for (cred, change) in [(user(5), &cut), (root(), &cut), (user(5), &kill), (root(), &kill)] {
        set(&mut fs, &root(), f, "security.capability", Some(&[1; 24]), 0).unwrap();
        assert!(fs.attr(f).has_capability);
        fs.setattr(&cred, f, change.clone()).unwrap();
        assert_eq!(get(&mut fs, &root(), f, "security.capability"), Err(Errno::ENODATA));
        assert!(!fs.attr(f).has_capability);
    }
    set(&mut fs, &root(), f, "security.capability", Some(&[1; 24]), 0).unwrap();
    fs.chown(f, 5, 5);
    assert_eq!(list(&mut fs, &root(), f), "");
}
