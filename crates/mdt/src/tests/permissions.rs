//! Permissions, as tables.

use super::*;
use nacre_wire::mds::open_flags::{FMODE_EXEC, KILL_SET_ID, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY};

fn member(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec() }
}

/// Checks which of owner, group, supplementary group, others and root may open a file of user 1, group 2, with this mode.
#[track_caller]
fn openers(perm: u32, flags: u32, expected: [bool; 5]) {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chown(f, 1, 2);
    fs.chmod(f, perm);
    let who = [member(1, 9, &[]), member(8, 2, &[]), member(8, 9, &[3, 2]), member(8, 9, &[]), root()];
    let may = who.map(|cred| match fs.open_name(&cred, ROOT, "f", flags) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e, Errno::EACCES);
            false
        }
    });
    assert_eq!(may, expected, "{perm:o}, flags {flags:o}");
}

#[test]
fn open_by_class() {
    openers(0o644, 0, [true, true, true, true, true]);
    openers(0o644, O_WRONLY, [true, false, false, false, true]);
    openers(0o664, O_RDWR, [true, true, true, false, true]);
    openers(0o640, 0, [true, true, true, false, true]);
    openers(0o000, O_RDWR, [false, false, false, false, true]);
    openers(0o077, 0, [false, true, true, true, true]);
    openers(0o706, O_RDWR, [true, false, false, true, true]);
    openers(0o644, O_TRUNC, [true, false, false, false, true]);
    openers(0o711, FMODE_EXEC, [true, true, true, true, true]);
    openers(0o644, FMODE_EXEC, [false, false, false, false, false]);
    openers(0o100, FMODE_EXEC, [true, false, false, false, true]);
}

#[test]
fn directories_need_search_to_find_and_write_to_change() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let f = fs.mkfile(d, "f");
    let new = |n: &str| ReintCreate { parent: d, name: name(n), mode: mode::S_IFREG | 0o644, ..ReintCreate::default() };
    for (perm, lookup, create) in [
        (0o700, Err(Errno::EACCES), Err(Errno::EACCES)),
        (0o701, Ok(f), Err(Errno::EACCES)),
        (0o702, Err(Errno::EACCES), Err(Errno::EACCES)),
        (0o703, Ok(f), Ok(())),
        (0o704, Err(Errno::EACCES), Err(Errno::EACCES)),
    ] {
        fs.chmod(d, perm);
        assert_eq!(fs.lookup(&user(5), d, "f"), lookup, "{perm:o}");
        assert_eq!(fs.create(&user(5), new(&format!("n{perm:o}"))).map(drop), create, "{perm:o}");
    }
    fs.chmod(d, 0o701);
    assert_eq!(fs.create(&user(5), new("f")), Err(Errno::EEXIST), "what exists is found before what is forbidden");
    assert_eq!(fs.unlink(&user(5), d, "f", false), Err(Errno::EACCES));
    assert_eq!(fs.unlink(&user(5), d, "none", false), Err(Errno::ENOENT));
    fs.chmod(d, 0);
    assert_eq!(fs.lookup(&root(), d, "f"), Ok(f), "root searches everywhere");
}

#[test]
fn sticky_directories_protect_from_others() {
    let mut fs = Fs::new();
    let tmp = fs.mkdir(ROOT, "tmp");
    fs.chown(tmp, 7, 7);
    fs.chmod(tmp, 0o1777);
    let new =
        |n: &str| ReintCreate { parent: tmp, name: name(n), mode: mode::S_IFREG | 0o666, ..ReintCreate::default() };
    for n in ["a", "b", "c", "d"] {
        fs.create(&user(5), new(n)).unwrap();
    }
    assert_eq!(fs.unlink(&user(6), tmp, "a", false), Err(Errno::EPERM));
    assert_eq!(fs.rename(&user(6), (tmp, "a"), (tmp, "x"), 0), Err(Errno::EPERM));
    fs.create(&user(6), new("mine")).unwrap();
    assert_eq!(fs.rename(&user(6), (tmp, "mine"), (tmp, "a"), 0), Err(Errno::EPERM), "the replaced file counts too");
    for cred in [user(5), user(7), root()] {
        let n = fs.list(tmp).into_iter().find(|n| ["a", "b", "c"].contains(&n.as_str())).unwrap();
        assert_eq!(fs.unlink(&cred, tmp, &n, false), Ok(()));
    }
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    fs.chown(d, 0, 50);
    fs.chmod(d, 0o2777);
    let mut make = |n: &str, mode: u32| {
        let r = ReintCreate { parent: d, name: name(n), mode, umask: 0o022, ..ReintCreate::default() };
        let fid = fs.create(&user(5), r).unwrap();
        let a = fs.attr(fid);
        (a.gid, a.mode & 0o7777)
    };
    assert_eq!(make("dir", mode::S_IFDIR | 0o777), (50, 0o2755));
    assert_eq!(make("file", mode::S_IFREG | 0o666), (50, 0o644));
    assert_eq!(make("program", mode::S_IFREG | 0o2777), (50, 0o755), "not as a group its maker is not in");
    assert_eq!(make("plain", mode::S_IFREG | 0o2666), (50, 0o2644));
}

#[test]
fn set_id_bits_go_when_owner_or_content_change() {
    let perm = |fs: &Fs, f| fs.attr(f).mode & 0o7777;
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chown(f, 5, 5);
    fs.chmod(f, 0o6755);
    fs.chown(f, 5, 6);
    assert_eq!(perm(&fs, f), 0o755, "even by root");
    fs.chmod(f, 0o6767);
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&user(6), f, cut.clone()).unwrap();
    assert_eq!(perm(&fs, f), 0o2767, "without group execution the bit means something else to a member");
    fs.setattr(&user(9), f, cut).unwrap();
    assert_eq!(perm(&fs, f), 0o767, "and goes if somebody else writes");
    fs.chmod(f, 0o6777);
    fs.open_name(&user(9), ROOT, "f", O_WRONLY | O_TRUNC).unwrap();
    assert_eq!(perm(&fs, f), 0o777);
    fs.chmod(f, 0o6777);
    fs.open_name(&root(), ROOT, "f", O_WRONLY | O_TRUNC).unwrap();
    assert_eq!(perm(&fs, f), 0o6777, "root's truncation keeps them");
    fs.open_name(&root(), ROOT, "f", O_WRONLY | O_TRUNC | KILL_SET_ID).unwrap();
    assert_eq!(perm(&fs, f), 0o777, "but for a root without CAP_FSETID");
    fs.chmod(f, 0o6777);
    let set = |m| SetAttr { mode: Some(m), ..SetAttr::default() };
    assert!(fs.setattr(&user(9), f, set(0o777)).is_ok(), "as the kernel asks before a write");
    assert_eq!(fs.setattr(&user(9), f, set(0o666)).map(drop), Err(Errno::EPERM));
    fs.chmod(f, 0o6755);
    assert_eq!(fs.setattr(&user(9), f, set(0o755)).map(drop), Err(Errno::EPERM), "who may not write may not do that");
    let d = fs.mkdir(ROOT, "d");
    fs.chmod(d, 0o6755);
    fs.chown(d, 5, 5);
    assert_eq!(perm(&fs, d), 0o6755, "directories keep theirs");
}

#[test]
fn what_a_write_takes_is_taken_by_whoever_may_write() {
    let perm = |fs: &Fs, f| fs.attr(f).mode & 0o7777;
    let kill = |kill_set_id| SetAttr { kill_set_id, kill_capability: true, ..SetAttr::default() };
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chown(f, 5, 6);
    for cred in [user(9), root()] {
        fs.chmod(f, 0o6777);
        fs.setattr(&cred, f, kill(true)).unwrap();
        assert_eq!(perm(&fs, f), 0o777);
    }
    fs.chmod(f, 0o6777);
    fs.setattr(&root(), f, kill(false)).unwrap();
    assert_eq!(perm(&fs, f), 0o6777, "who has CAP_FSETID takes capabilities only");
    fs.chmod(f, 0o6755);
    assert_eq!(fs.setattr(&user(9), f, kill(true)).map(drop), Err(Errno::EPERM), "who may not write");
    let before = fs.attr(f);
    fs.chmod(f, 0o755);
    let plain = fs.attr(f);
    fs.setattr(&root(), f, kill(true)).unwrap();
    fs.setattr(&user(9), f, kill(true)).unwrap();
    assert_eq!(fs.attr(f), plain, "nothing to take is no change");
    assert_ne!(before.mode, plain.mode);
}

#[test]
fn times_chosen_need_ownership_and_now_needs_write() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    fs.chown(f, 1, 1);
    fs.chmod(f, 0o646);
    let t = Timestamp { secs: 5, nanos: 6 };
    let times = |now| SetAttr { atime: Some(t), mtime: Some(t), times_are_now: now, ..SetAttr::default() };
    assert_eq!(fs.setattr(&user(1), f, times(false)).map(|a| a.mtime), Ok(t));
    assert_eq!(fs.setattr(&user(9), f, times(false)).map(drop), Err(Errno::EPERM));
    assert!(fs.setattr(&user(9), f, times(true)).is_ok());
    fs.chmod(f, 0o644);
    assert_eq!(fs.setattr(&user(9), f, times(true)).map(drop), Err(Errno::EACCES));
}

#[test]
fn an_open_handle_is_the_permission_to_truncate() {
    let mut fs = Fs::new();
    let cred = user(5);
    fs.chmod(ROOT, 0o777);
    let r = Open { parent: ROOT, name: name("f"), flags: O_CREAT | O_RDWR, mode: 0o444, ..Open::default() };
    let (fid, _) = fs.open(&cred, r).unwrap();
    let r = ReintSetattr { fid, set: SetAttr { size: Some(9), ..SetAttr::default() }, handle: 1 };
    let mut set = |writes| fs.op(&cred, |cx, o| ops::setattr::setattr(cx, &r, writes, o)).map(|a| a.attr.size);
    assert_eq!((set(false), set(true)), (Err(Errno::EACCES), Ok(9)));
}
