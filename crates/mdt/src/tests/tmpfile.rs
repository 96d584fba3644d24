//! Files without names (O_TMPFILE): orphans from the first moment, until they get a name.

use super::*;
use open_flags::{O_DIRECTORY, O_EXCL, O_RDWR, O_TMPFILE};

impl Fs {
    fn tmpfile(&mut self, cred: &Credentials, more: u32) -> Result<(Fid, u64), Errno> {
        let flags = O_TMPFILE | O_DIRECTORY | O_RDWR | more;
        self.open(cred, Open { parent: ROOT, flags, mode: 0o666, umask: 0o022, ..Open::default() })
    }

    fn orphans(&mut self) -> Vec<Fid> {
        self.op(&root(), |cx, _| tables::orphans(&*cx.tx, None, 10)).unwrap()
    }
}

#[test]
fn a_nameless_file_is_an_orphan_until_it_is_linked() {
    let mut fs = Fs::new();
    let before = fs.attr(ROOT);
    let (fid, handle) = fs.tmpfile(&root(), 0).unwrap();
    assert_eq!((fs.attr(fid).nlink, fs.attr(fid).mode), (0, mode::S_IFREG | 0o644));
    assert_eq!((fs.orphans(), fs.attr(ROOT)), (vec![fid], before), "its directory does not change");
    fs.link(&root(), fid, ROOT, "f").unwrap();
    assert_eq!((fs.attr(fid).nlink, fs.orphans(), fs.lookup(&root(), ROOT, "f")), (1, vec![], Ok(fid)));
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    assert_eq!(fs.link(&root(), fid, ROOT, "g"), Err(Errno::ENOENT), "a first name, not a second first one");
    fs.close(handle);
    assert!(fs.lookup(&root(), ROOT, "f").is_err());
    let (gone, handle) = fs.tmpfile(&root(), 0).unwrap();
    fs.close(handle);
    assert_eq!(fs.orphans(), vec![]);
    assert_eq!(fs.link(&root(), gone, ROOT, "f"), Err(Errno::ESTALE));
}

#[test]
fn who_may_make_and_name_one() {
    let mut fs = Fs::new();
    let nobody = Credentials { uid: 5, gid: 5, groups: vec![] };
    assert_eq!(fs.tmpfile(&nobody, 0).map(drop), Err(Errno::EACCES));
    let reading = Open { parent: ROOT, flags: O_TMPFILE | O_DIRECTORY, ..Open::default() };
    assert_eq!(fs.open(&root(), reading).map(drop), Err(Errno::EINVAL));
    let (fid, _) = fs.tmpfile(&root(), O_EXCL).unwrap();
    assert_eq!(fs.link(&root(), fid, ROOT, "f"), Err(Errno::ENOENT), "O_EXCL: it never gets a name");
    let (fid, _) = fs.tmpfile(&root(), 0).unwrap();
    let r = ReintLink { fid, parent: ROOT, name: name("f") };
    let stranger = fs.op(&root(), |cx, _| ops::link::link(cx, &r, false)).map(drop);
    assert_eq!(stranger, Err(Errno::ENOENT), "only who has it open names it");
}
