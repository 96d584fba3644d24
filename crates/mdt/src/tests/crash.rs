//! A crash leaves committed changes, whole: every invariant holds, nothing is half done, orphans are gone.

use super::*;
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR};

#[test]
fn what_was_not_committed_never_happened() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    fs.mkfile(d, "kept");
    fs.commit();
    fs.mkfile(d, "lost");
    fs.rename(&root(), (d, "kept"), (ROOT, "moved"), 0).unwrap();
    fs.crash();
    fs.check();
    assert_eq!(fs.list(d), [".", "..", "kept"]);
    assert_eq!(fs.lookup(&root(), ROOT, "moved"), Err(Errno::ENOENT));
}

#[test]
fn open_unlinked_files_live_until_closed_and_are_destroyed_once() {
    let mut fs = Fs::new();
    let (fid, a) = fs.open_name(&root(), ROOT, "f", O_CREAT | O_RDWR).unwrap();
    let (_, b) = fs.open_name(&root(), ROOT, "f", O_RDWR).unwrap();
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    fs.check();
    assert_eq!(fs.attr(fid).nlink, 0);
    fs.chmod(fid, 0o600);
    assert_eq!(fs.link(&root(), fid, ROOT, "again"), Err(Errno::ENOENT), "a file without a name gets none");
    let reopened = fs.open(&root(), Open { parent: fid, flags: O_RDWR, ..Open::default() }).unwrap();
    assert_eq!(reopened.0, fid);
    for handle in [a, b] {
        fs.close(handle);
        assert_eq!(fs.destroys(), 0);
    }
    fs.close(reopened.1);
    fs.check();
    assert_eq!((fs.inode(fid).is_some(), fs.destroys()), (false, 1));
    assert_eq!(fs.open(&root(), Open { parent: fid, flags: O_RDWR, ..Open::default() }), Err(Errno::ESTALE));
}

#[test]
fn orphans_of_a_crashed_mdt_are_destroyed_at_its_start() {
    let mut fs = Fs::new();
    let (fid, _) = fs.open_name(&root(), ROOT, "f", O_CREAT | O_RDWR).unwrap();
    let (named, _) = fs.open_name(&root(), ROOT, "g", O_CREAT | O_RDWR).unwrap();
    let dir = fs.mkdir(ROOT, "d");
    fs.open(&root(), Open { parent: dir, ..Open::default() }).unwrap();
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    fs.unlink(&root(), ROOT, "d", true).unwrap();
    assert!(fs.inode(dir).is_some(), "somebody reads it");
    fs.commit();
    fs.crash();
    fs.check();
    assert_eq!((fs.inode(fid), fs.inode(dir), fs.destroys()), (None, None, 1));
    assert!(fs.inode(named).is_some(), "a file with a name needs no handle");
}

#[test]
fn a_renamed_over_open_file_is_an_orphan() {
    let mut fs = Fs::new();
    let (old, handle) = fs.open_name(&root(), ROOT, "old", O_CREAT | O_RDWR).unwrap();
    fs.mkfile(ROOT, "new");
    fs.rename(&root(), (ROOT, "new"), (ROOT, "old"), 0).unwrap();
    fs.check();
    assert_eq!(fs.attr(old).nlink, 0);
    fs.close(handle);
    fs.check();
    assert_eq!((fs.inode(old), fs.destroys()), (None, 1));
}

#[test]
fn a_failed_operation_changes_nothing() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let full = fs.mkdir(ROOT, "full");
    fs.mkfile(full, "x");
    let before = fs.inode(ROOT);
    assert_eq!(fs.rename(&root(), (ROOT, "d"), (ROOT, "full"), 0), Err(Errno::ENOTEMPTY));
    fs.check();
    assert_eq!((fs.inode(ROOT), fs.lookup(&root(), ROOT, "d")), (before, Ok(d)));
}
