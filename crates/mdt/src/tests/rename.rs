//! rename by a table: the tree before, the call, and its result. The tree is written as paths, with `/` at the end for a
//! directory.

use super::*;

/// Creates the tree, renames, and compares the error or the resulting tree.
#[track_caller]
fn check(tree: &[&str], old: &str, new: &str, flags: u32, expected: Result<&[&str], Errno>) {
    let mut fs = Fs::new();
    for path in tree {
        let (parent, last) = resolve(&mut fs, path.trim_end_matches('/'));
        if path.ends_with('/') {
            fs.mkdir(parent, &last);
        } else {
            fs.mkfile(parent, &last);
        }
    }
    let (from, to) = (resolve(&mut fs, old), resolve(&mut fs, new));
    let result = fs.rename(&root(), (from.0, &from.1), (to.0, &to.1), flags);
    fs.check();
    match expected {
        Ok(left) => {
            assert_eq!(result, Ok(()));
            let mut paths = Vec::new();
            walk(&mut fs, ROOT, "", &mut paths);
            paths.sort();
            assert_eq!(paths, left);
        }
        Err(e) => assert_eq!(result, Err(e)),
    }
}

fn resolve(fs: &mut Fs, path: &str) -> (Fid, String) {
    let (dirs, last) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = dirs.split('/').filter(|d| !d.is_empty()).fold(ROOT, |at, d| fs.lookup(&root(), at, d).unwrap());
    (parent, last.to_owned())
}

fn walk(fs: &mut Fs, dir: Fid, prefix: &str, out: &mut Vec<String>) {
    for n in fs.list(dir).split_off(2) {
        let fid = fs.lookup(&root(), dir, &n).unwrap();
        if fs.attr(fid).is_dir() {
            out.push(format!("{prefix}{n}/"));
            walk(fs, fid, &format!("{prefix}{n}/"), out);
        } else {
            out.push(format!("{prefix}{n}"));
        }
    }
}

#[test]
fn cases() {
    check(&["a"], "a", "b", 0, Ok(&["b"]));
    check(&["a", "b"], "a", "b", 0, Ok(&["b"]));
    check(&["a"], "a", "a", 0, Ok(&["a"]));
    check(&["a"], "x", "b", 0, Err(Errno::ENOENT));
    check(&["a", "d/"], "a", "d/a", 0, Ok(&["d/", "d/a"]));
    check(&["a", "d/"], "a", "d", 0, Err(Errno::EISDIR));
    check(&["a", "d/"], "d", "a", 0, Err(Errno::ENOTDIR));
    check(&["d/", "e/"], "d", "e", 0, Ok(&["e/"]));
    check(&["d/", "d/x", "e/"], "d", "e", 0, Ok(&["e/", "e/x"]));
    check(&["d/", "e/", "e/x"], "d", "e", 0, Err(Errno::ENOTEMPTY));
    check(&["d/", "e/"], "d", "e/d", 0, Ok(&["e/", "e/d/"]));
    check(&["d/"], "d", "d/x", 0, Err(Errno::EINVAL));
    check(&["d/", "d/e/", "d/e/f/"], "d", "d/e/f/x", 0, Err(Errno::EINVAL));
    check(&["d/", "d/e/"], "d/e", "d", 0, Err(Errno::ENOTEMPTY));
    check(&["d/", "d/e/", "d/e/x"], "d/e/x", "d/e", 0, Err(Errno::ENOTEMPTY));
    check(&["d/"], "d", "d", 0, Ok(&["d/"]));
    check(&["a"], ".", "b", 0, Err(Errno::EBUSY));
    check(&["a"], "a", "..", 0, Err(Errno::EBUSY));
}

#[test]
fn cases_with_noreplace() {
    check(&["a"], "a", "b", 1, Ok(&["b"]));
    check(&["a", "b"], "a", "b", 1, Err(Errno::EEXIST));
    check(&["a"], "a", "a", 1, Err(Errno::EEXIST));
    check(&["a"], "a", "b", 4, Err(Errno::EINVAL));
    check(&["a", "b"], "a", "b", 3, Err(Errno::EINVAL));
}

#[test]
fn cases_with_exchange() {
    check(&["a", "d/", "d/x"], "a", "d", 2, Ok(&["a/", "a/x", "d"]));
    check(&["d/", "d/x/", "a"], "d/x", "a", 2, Ok(&["a/", "d/", "d/x"]));
    check(&["d/", "d/x/", "e/", "e/y/", "e/y/z"], "d/x", "e/y", 2, Ok(&["d/", "d/x/", "d/x/z", "e/", "e/y/"]));
    check(&["a"], "a", "b", 2, Err(Errno::ENOENT));
    check(&["d/", "d/e/"], "d", "d/e", 2, Err(Errno::EINVAL));
    check(&["d/", "d/e/"], "d/e", "d", 2, Err(Errno::EINVAL));
}

#[test]
fn two_names_of_one_file_stay() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "a");
    fs.link(&root(), f, ROOT, "b").unwrap();
    let before = fs.inode(f);
    fs.rename(&root(), (ROOT, "a"), (ROOT, "b"), 0).unwrap();
    assert_eq!((fs.inode(f), fs.list(ROOT).len()), (before, 4));
}

#[test]
fn times_and_links_follow() {
    let mut fs = Fs::new();
    let (d, e) = (fs.mkdir(ROOT, "d"), fs.mkdir(ROOT, "e"));
    let x = fs.mkdir(d, "x");
    let untouched = fs.attr(ROOT);
    fs.rename(&root(), (d, "x"), (e, "y"), 0).unwrap();
    let now = fs.now();
    assert_eq!((fs.attr(d).nlink, fs.attr(e).nlink), (2, 3));
    for dir in [d, e] {
        assert_eq!((fs.attr(dir).mtime, fs.attr(dir).ctime), (now, now));
    }
    assert_eq!(fs.attr(x).ctime, now);
    assert!(fs.attr(x).mtime < now, "the moved directory's content is the same");
    assert_eq!(fs.lookup(&root(), x, ".."), Ok(e));
    assert_eq!(fs.attr(ROOT), untouched);
}

#[test]
fn moving_a_directory_of_another_needs_write_permission_on_it() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let e = fs.mkdir(ROOT, "e");
    let x = fs.mkdir(d, "x");
    fs.chmod(d, 0o777);
    fs.chmod(e, 0o777);
    assert_eq!(fs.rename(&user(5), (d, "x"), (e, "x"), 0), Err(Errno::EACCES), "its `..` would change");
    assert_eq!(fs.rename(&user(5), (d, "x"), (d, "y"), 0), Ok(()));
    fs.chmod(x, 0o777);
    assert_eq!(fs.rename(&user(5), (d, "y"), (e, "x"), 0), Ok(()));
    fs.chmod(d, 0o1777);
    fs.mkfile(d, "f");
    assert_eq!(fs.rename(&user(5), (d, "f"), (e, "f"), 0), Err(Errno::EPERM), "sticky");
}
