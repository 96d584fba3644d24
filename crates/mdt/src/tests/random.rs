//! Thousands of random operations, each compared with the model: the same answer, the same error, and now and then the
//! whole tree.

use super::model::{Model, New};
use super::*;
use nacre_base::Prng;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

pub(super) struct Run {
    pub(super) fs: Fs,
    model: Model,
    prng: Prng,
    /// Every inode that ever existed: operations also name removed ones.
    fids: Vec<Fid>,
    handles: Vec<(u64, Fid)>,
    /// Number of operations that succeeded: a test of errors alone would prove little.
    pub(super) succeeded: usize,
}

impl Run {
    pub(super) fn new(seed: u64) -> Run {
        let fs = Fs::new();
        let model = Model::new(Timestamp { secs: 1, nanos: 0 });
        Run { fs, model, prng: Prng::new(seed), fids: vec![ROOT], handles: Vec::new(), succeeded: 0 }
    }

    fn cred(&mut self) -> Credentials {
        match self.prng.below(6) {
            0 => Credentials { uid: 1, gid: 1, groups: vec![5] },
            1 => Credentials { uid: 2, gid: 2, groups: vec![1] },
            _ => root(),
        }
    }

    /// Mostly an existing directory.
    fn parent(&mut self) -> Fid {
        let dirs: Vec<Fid> =
            self.model.nodes.iter().filter(|(_, n)| n.mode & mode::S_IFMT == mode::S_IFDIR).map(|(f, _)| *f).collect();
        if self.prng.one_in(20) { *self.prng.pick(&self.fids) } else { *self.prng.pick(&dirs) }
    }

    fn fid(&mut self) -> Fid {
        let live: Vec<Fid> = self.model.nodes.keys().copied().collect();
        if self.prng.one_in(20) { *self.prng.pick(&self.fids) } else { *self.prng.pick(&live) }
    }

    fn name(&mut self) -> &'static str {
        if self.prng.one_in(40) {
            return if self.prng.one_in(2) { "." } else { ".." };
        }
        NAMES[self.prng.below(5) as usize]
    }

    fn perm(&mut self) -> u32 {
        *self.prng.pick(&[0o755, 0o644, 0o700, 0o777, 0o1777, 0o2775, 0o4755, 0o6755, 0o6644, 0o070, 0o107, 0])
    }

    pub(super) fn step(&mut self) {
        self.model.now = Timestamp { secs: self.fs.clock as i64 + 1, nanos: 0 };
        let cred = self.cred();
        let (got, expected, what) = match self.prng.below(14) {
            0..3 => self.create(&cred),
            3 => self.link(&cred),
            4 | 5 => self.unlink(&cred),
            6..9 => self.rename(&cred),
            9 | 10 => self.setattr(&cred),
            11 => self.open(&cred),
            12 => self.close(),
            _ => self.lookup(&cred),
        };
        assert_eq!(got, expected, "{what} by {cred:?}");
        self.succeeded += usize::from(got.is_ok());
    }

    fn create(&mut self, cred: &Credentials) -> Step {
        let kind = *self.prng.pick(&[
            mode::S_IFDIR,
            mode::S_IFDIR,
            mode::S_IFREG,
            mode::S_IFLNK,
            mode::S_IFIFO,
            mode::S_IFCHR,
        ]);
        let (parent, n, perm, fid) = (self.parent(), self.name(), self.perm(), self.fs.new_fid());
        let umask = *self.prng.pick(&[0, 0o22, 0o77]);
        let target = if kind == mode::S_IFLNK { name("over/there") } else { Bytes::new() };
        let size = target.len() as u64;
        let r = ReintCreate {
            parent,
            name: name(n),
            child: fid,
            mode: kind | perm,
            umask,
            target,
            ..ReintCreate::default()
        };
        let got = self.fs.create(cred, r).map(drop);
        let expected = self.model.create(cred, New { parent, name: n, fid, mode: kind | perm, umask, size });
        if expected.is_ok() {
            self.fids.push(fid);
        }
        (got, expected, format!("create {kind:o} {perm:o} {parent}/{n}"))
    }

    fn link(&mut self, cred: &Credentials) -> Step {
        let (fid, parent, n) = (self.fid(), self.parent(), self.name());
        let got = self.fs.link(cred, fid, parent, n);
        (got, self.model.link(cred, fid, parent, n), format!("link {fid} {parent}/{n}"))
    }

    fn unlink(&mut self, cred: &Credentials) -> Step {
        let (parent, n, as_dir) = (self.parent(), self.name(), self.prng.one_in(2));
        let got = self.fs.unlink(cred, parent, n, as_dir);
        (got, self.model.unlink(cred, parent, n, as_dir), format!("unlink {parent}/{n}, directory: {as_dir}"))
    }

    fn rename(&mut self, cred: &Credentials) -> Step {
        let (from, to) = (self.parent(), self.parent());
        let to = if self.prng.one_in(4) { from } else { to };
        let (old, new) = ((from, self.name()), (to, self.name()));
        let flags = *self.prng.pick(&[0, 0, 0, 0, 1, 2, 2, 3]);
        let got = self.fs.rename(cred, old, new, flags);
        (got, self.model.rename(cred, old, new, flags), format!("rename {old:?} {new:?} {flags}"))
    }

    fn setattr(&mut self, cred: &Credentials) -> Step {
        let fid = self.fid();
        let mut set = SetAttr::default();
        let ids = [0, 1, 2, 5];
        let time = Timestamp { secs: self.prng.below(1000) as i64, nanos: 7 };
        match self.prng.below(6) {
            0 | 1 => set.mode = Some(self.perm()),
            2 => set.uid = Some(*self.prng.pick(&ids)),
            3 => set.gid = Some(*self.prng.pick(&ids)),
            4 => set.size = Some(self.prng.below(1 << 40)),
            _ => {
                set.times_are_now = self.prng.one_in(2);
                set.atime = Some(time);
                set.mtime = self.prng.one_in(2).then_some(time);
            }
        }
        let got = self.fs.setattr(cred, fid, set.clone()).map(drop);
        (got, self.model.setattr(cred, fid, &set), format!("setattr {fid} {set:?}"))
    }

    fn open(&mut self, cred: &Credentials) -> Step {
        let (parent, fid, perm) = (self.parent(), self.fs.new_fid(), self.perm());
        let n = *self.prng.pick(&NAMES);
        let flags = self.prng.below(3) as u32 | *self.prng.pick(&[0, 0o100, 0o300, 0o1000, 0o1100]);
        let r = Open { parent, name: name(n), child: fid, flags, mode: perm, umask: 0o22, ..Open::default() };
        let got = self.fs.open(cred, r);
        let new = New { parent, name: n, fid, mode: perm, umask: 0o22, size: 0 };
        let expected = self.model.open(cred, new, flags);
        let what = format!("open {parent}/{n} {flags:o}");
        if let (Ok((fid, handle)), Ok(opened)) = (&got, &expected) {
            assert_eq!(fid, opened, "{what}");
            self.handles.push((*handle, *fid));
            self.fids.push(*fid);
        }
        (got.map(drop), expected.map(drop), what)
    }

    fn close(&mut self) -> Step {
        if !self.handles.is_empty() {
            let at = self.prng.below(self.handles.len() as u64) as usize;
            let (handle, fid) = self.handles.swap_remove(at);
            self.fs.close(handle);
            self.model.close(fid);
        }
        (Ok(()), Ok(()), String::new())
    }

    fn lookup(&mut self, cred: &Credentials) -> Step {
        let (parent, n) = (self.parent(), self.name());
        let got = self.fs.lookup(cred, parent, n);
        let expected = self.model.lookup(cred, parent, n);
        assert_eq!(got, expected, "lookup {parent}/{n}");
        (got.map(drop), expected.map(drop), String::new())
    }

    /// Compares the whole tree, attribute by attribute.
    fn compare(&mut self) {
        self.fs.check();
        for fid in self.fids.clone() {
            let node = self.model.nodes.get(&fid);
            let inode = self.fs.inode(fid);
            assert_eq!(inode.is_some(), node.is_some(), "{fid} exists");
            let (Some(inode), Some(node)) = (inode, node) else { continue };
            let got = (inode.mode, inode.uid, inode.gid, inode.size, inode.atime, inode.mtime, inode.ctime);
            let expected = (node.mode, node.uid, node.gid, node.size, node.atime, node.mtime, node.ctime);
            assert_eq!(got, expected, "{fid}");
            assert_eq!(inode.nlink, self.model.nlink(fid), "links of {fid}");
            if inode.is_dir() && inode.nlink > 0 {
                let mut names = self.fs.list(fid);
                names.sort();
                let mut expected: Vec<String> = vec![".".into(), "..".into()];
                expected.extend(self.model.nodes[&fid].entries.keys().cloned());
                expected.sort();
                assert_eq!(names, expected, "entries of {fid}");
            }
        }
    }
}

impl Run {
    /// Crashes the MDS. The state of the last commit must be left, except for files that were only open.
    fn crash(&mut self, committed: &Model) {
        self.fs.crash();
        self.handles.clear();
        self.model = committed.clone();
        self.model.forget_opens();
        self.compare();
    }
}

#[test]
fn a_crash_leaves_what_was_there_at_the_last_commit() {
    for seed in 200..210 {
        let mut run = Run::new(seed);
        run.fs.commit();
        let mut committed = run.model.clone();
        for _ in 0..1500 {
            run.step();
            match run.prng.below(60) {
                0 => {
                    run.fs.commit();
                    committed = run.model.clone();
                }
                1 => run.crash(&committed),
                _ => {}
            }
        }
        assert!(run.succeeded > 400, "seed {seed}: {}", run.succeeded);
    }
}

type Step = (Result<(), Errno>, Result<(), Errno>, String);

fn run(seed: u64, steps: usize) -> Run {
    let mut run = Run::new(seed);
    for step in 0..steps {
        run.step();
        if step % 100 == 99 {
            run.compare();
        }
    }
    run.compare();
    run
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..12 {
        let run = run(seed, 3000);
        assert!(run.succeeded > 900, "seed {seed}: only {} of 3000 operations succeeded", run.succeeded);
    }
}

#[test]
fn colliding_hashes_change_nothing() {
    tables::short_hash::set(5);
    run(100, 2000);
    tables::short_hash::set(u64::MAX);
}

#[test]
fn closing_everything_and_removing_every_name_leaves_only_the_root() {
    let mut run = run(7, 1000);
    for (handle, _) in std::mem::take(&mut run.handles) {
        run.fs.close(handle);
    }
    remove_all(&mut run.fs, ROOT);
    run.fs.check();
    assert_eq!(run.fs.attr(ROOT).nlink, 2);
    assert!(run.fids.iter().all(|f| *f == ROOT || run.fs.inode(*f).is_none()));
}

fn remove_all(fs: &mut Fs, dir: Fid) {
    for n in fs.list(dir).split_off(2) {
        let fid = fs.lookup(&root(), dir, &n).unwrap();
        let is_dir = fs.attr(fid).is_dir();
        if is_dir {
            remove_all(fs, fid);
        }
        fs.unlink(&root(), dir, &n, is_dir).unwrap();
    }
}
