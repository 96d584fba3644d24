//! POSIX in the simplest possible form: a map of nodes, with everything else computed by searching. It gives Linux's
//! answers, and checks errors in Linux's order.

use nacre_base::{Errno, Fid, Timestamp};
use nacre_wire::attr::{Credentials, SetAttr, mode};
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, Errno>;

#[derive(Debug, Clone)]
pub(super) struct ModelInode {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) entries: BTreeMap<String, Fid>,
    pub(super) open: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) nodes: BTreeMap<Fid, ModelInode>,
    pub(super) now: Timestamp,
}

/// A new node with the requested attributes.
pub(super) struct New<'a> {
    pub(super) parent: Fid,
    pub(super) name: &'a str,
    pub(super) fid: Fid,
    pub(super) mode: u32,
    pub(super) umask: u32,
    pub(super) size: u64,
}

impl Model {
    pub(super) fn new(now: Timestamp) -> Model {
        let root = ModelInode {
            mode: mode::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            size: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            entries: BTreeMap::new(),
            open: 0,
        };
        Model { nodes: BTreeMap::from([(Fid::ROOT, root)]), now }
    }

    fn is_dir(&self, fid: Fid) -> bool {
        self.nodes[&fid].mode & mode::S_IFMT == mode::S_IFDIR
    }

    /// Every name of `fid`.
    fn names(&self, fid: Fid) -> Vec<(Fid, String)> {
        let all = self.nodes.iter().flat_map(|(d, n)| n.entries.iter().map(move |(name, f)| (*d, name.clone(), *f)));
        all.filter(|(_, _, f)| *f == fid).map(|(d, name, _)| (d, name)).collect()
    }

    pub(super) fn nlink(&self, fid: Fid) -> u32 {
        let names = self.names(fid).len() as u32;
        if !self.is_dir(fid) {
            return names;
        }
        if names == 0 && fid != Fid::ROOT {
            return 0;
        }
        2 + self.nodes[&fid].entries.values().filter(|f| self.is_dir(**f)).count() as u32
    }

    fn may(&self, fid: Fid, cred: &Credentials, want: u32) -> Result<()> {
        let n = &self.nodes[&fid];
        let bits = if cred.uid == n.uid {
            n.mode >> 6 & 7
        } else if cred.gid == n.gid || cred.groups.contains(&n.gid) {
            n.mode >> 3 & 7
        } else {
            n.mode & 7
        };
        let root_may = cred.uid == 0 && (want & 1 == 0 || self.is_dir(fid) || n.mode & 0o111 != 0);
        if root_may || (cred.uid != 0 && want & !bits == 0) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn dir(&self, fid: Fid) -> Result<()> {
        let Some(n) = self.nodes.get(&fid) else { return Err(Errno::ENOENT) };
        if n.mode & mode::S_IFMT != mode::S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        if self.nlink(fid) == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn find(&self, parent: Fid, name: &str, cred: &Credentials) -> Result<Option<Fid>> {
        self.may(parent, cred, 1)?;
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.nodes[&parent].entries.get(name).copied())
    }

    fn touch(&mut self, parent: Fid) {
        let now = self.now;
        let n = self.nodes.get_mut(&parent).unwrap();
        (n.mtime, n.ctime) = (now, now);
    }

    fn changed(&mut self, fid: Fid) {
        let now = self.now;
        self.nodes.get_mut(&fid).unwrap().ctime = now;
    }

    /// Forgets a node that has neither names nor openers.
    fn reap(&mut self, fid: Fid) {
        if self.nodes.get(&fid).is_some_and(|n| n.open == 0) && self.nlink(fid) == 0 {
            self.nodes.remove(&fid);
        }
    }

    pub(super) fn lookup(&self, cred: &Credentials, parent: Fid, name: &str) -> Result<Fid> {
        self.dir(parent)?;
        match name {
            "." | ".." => {
                self.may(parent, cred, 1)?;
                let above = self.names(parent).first().map_or(Fid::ROOT, |(d, _)| *d);
                Ok(if name == "." { parent } else { above })
            }
            _ => self.find(parent, name, cred)?.ok_or(Errno::ENOENT),
        }
    }

    pub(super) fn create(&mut self, cred: &Credentials, new: New<'_>) -> Result<()> {
        self.dir(new.parent)?;
        if matches!(new.name, "." | "..") || self.find(new.parent, new.name, cred)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may(new.parent, cred, 2)?;
        let kind = new.mode & mode::S_IFMT;
        if (kind == mode::S_IFCHR || kind == mode::S_IFBLK) && cred.uid != 0 {
            return Err(Errno::EPERM);
        }
        let mut perm = new.mode & 0o7777;
        match kind {
            mode::S_IFDIR => perm &= 0o1777,
            mode::S_IFLNK => perm = 0o777,
            _ => {}
        }
        let dir = self.nodes[&new.parent].clone();
        let mut gid = cred.gid;
        if dir.mode & 0o2000 != 0 {
            gid = dir.gid;
            if kind == mode::S_IFDIR {
                perm |= 0o2000;
            } else if perm & 0o2010 == 0o2010
                && cred.uid != 0
                && !(cred.gid == dir.gid || cred.groups.contains(&dir.gid))
            {
                perm &= !0o2000;
            }
        }
        if kind != mode::S_IFLNK {
            perm &= !new.umask;
        }
        let now = self.now;
        let node = ModelInode {
            mode: kind | perm,
            uid: cred.uid,
            gid,
            size: if kind == mode::S_IFDIR { 4096 } else { new.size },
            atime: now,
            mtime: now,
            ctime: now,
            entries: BTreeMap::new(),
            open: 0,
        };
        self.nodes.insert(new.fid, node);
        self.nodes.get_mut(&new.parent).unwrap().entries.insert(new.name.to_owned(), new.fid);
        self.touch(new.parent);
        Ok(())
    }

    pub(super) fn link(&mut self, cred: &Credentials, fid: Fid, parent: Fid, name: &str) -> Result<()> {
        if !self.nodes.contains_key(&fid) {
            return Err(Errno::ESTALE);
        }
        self.dir(parent)?;
        if matches!(name, "." | "..") || self.find(parent, name, cred)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may(parent, cred, 2)?;
        if self.is_dir(fid) {
            return Err(Errno::EPERM);
        }
        if self.nlink(fid) == 0 {
            return Err(Errno::ENOENT);
        }
        self.nodes.get_mut(&parent).unwrap().entries.insert(name.to_owned(), fid);
        self.changed(fid);
        self.touch(parent);
        Ok(())
    }

    fn may_delete(&self, cred: &Credentials, parent: Fid, victim: Fid, as_dir: bool) -> Result<()> {
        self.may(parent, cred, 2)?;
        let (dir, node) = (&self.nodes[&parent], &self.nodes[&victim]);
        if dir.mode & 0o1000 != 0 && ![0, dir.uid, node.uid].contains(&cred.uid) {
            return Err(Errno::EPERM);
        }
        match (as_dir, self.is_dir(victim)) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn unlink(&mut self, cred: &Credentials, parent: Fid, name: &str, as_dir: bool) -> Result<()> {
        self.dir(parent)?;
        match (name, as_dir) {
            ("." | "..", false) => return Err(Errno::EISDIR),
            (".", true) => return Err(Errno::EINVAL),
            ("..", true) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let victim = self.find(parent, name, cred)?.ok_or(Errno::ENOENT)?;
        self.may_delete(cred, parent, victim, as_dir)?;
        if !self.nodes[&victim].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.nodes.get_mut(&parent).unwrap().entries.remove(name);
        self.changed(victim);
        self.touch(parent);
        self.reap(victim);
        Ok(())
    }

    /// True if `above` contains `below`, directly or not, or is the same.
    fn contains(&self, above: Fid, below: Fid) -> bool {
        above == below || self.nodes[&above].entries.values().any(|f| self.is_dir(*f) && self.contains(*f, below))
    }

    pub(super) fn rename(&mut self, cred: &Credentials, old: (Fid, &str), new: (Fid, &str), flags: u32) -> Result<()> {
        if flags > 2 {
            return Err(Errno::EINVAL);
        }
        self.dir(old.0)?;
        self.dir(new.0)?;
        if matches!(old.1, "." | "..") {
            return Err(Errno::EBUSY);
        }
        if matches!(new.1, "." | "..") {
            return Err(if flags == 1 { Errno::EEXIST } else { Errno::EBUSY });
        }
        let from = self.find(old.0, old.1, cred)?.ok_or(Errno::ENOENT)?;
        let to = self.find(new.0, new.1, cred)?;
        if flags == 1 && to.is_some() {
            return Err(Errno::EEXIST);
        }
        if flags == 2 && to.is_none() {
            return Err(Errno::ENOENT);
        }
        if old.0 != new.0 && self.is_dir(from) && self.contains(from, new.0) {
            return Err(Errno::EINVAL);
        }
        if let Some(to) = to
            && old.0 != new.0
            && self.is_dir(to)
            && self.contains(to, old.0)
        {
            return Err(if flags == 2 { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if to == Some(from) {
            return Ok(());
        }
        self.may_delete(cred, old.0, from, self.is_dir(from))?;
        match to {
            None => self.may(new.0, cred, 2)?,
            Some(to) => self.may_delete(cred, new.0, to, self.is_dir(if flags == 2 { to } else { from }))?,
        }
        if old.0 != new.0 {
            if self.is_dir(from) {
                self.may(from, cred, 2)?;
            }
            if let Some(to) = to.filter(|to| flags == 2 && self.is_dir(*to)) {
                self.may(to, cred, 2)?;
            }
        }
        if let Some(to) = to.filter(|_| flags != 2)
            && !self.nodes[&to].entries.is_empty()
        {
            return Err(Errno::ENOTEMPTY);
        }
        self.nodes.get_mut(&old.0).unwrap().entries.remove(old.1);
        if let Some(to) = to.filter(|_| flags == 2) {
            self.nodes.get_mut(&old.0).unwrap().entries.insert(old.1.to_owned(), to);
        }
        self.nodes.get_mut(&new.0).unwrap().entries.insert(new.1.to_owned(), from);
        self.changed(from);
        self.touch(old.0);
        self.touch(new.0);
        if let Some(to) = to {
            self.changed(to);
            self.reap(to);
        }
        Ok(())
    }

    pub(super) fn setattr(&mut self, cred: &Credentials, fid: Fid, set: &SetAttr) -> Result<()> {
        let Some(n) = self.nodes.get(&fid).cloned() else { return Err(Errno::ESTALE) };
        let owner = cred.uid == n.uid || cred.uid == 0;
        let in_group = |g: u32| cred.gid == g || cred.groups.contains(&g);
        let kind = n.mode & mode::S_IFMT;
        if let Some(uid) = set.uid
            && cred.uid != 0
            && !(cred.uid == n.uid && uid == n.uid)
        {
            return Err(Errno::EPERM);
        }
        if let Some(gid) = set.gid
            && cred.uid != 0
            && !(cred.uid == n.uid && (gid == n.gid || in_group(gid)))
        {
            return Err(Errno::EPERM);
        }
        if let Some(m) = set.mode {
            if kind == mode::S_IFLNK {
                return Err(Errno::EOPNOTSUPP);
            }
            let drops_set_id = [0o6000u32, 0o4000, 0o2000, 0].iter().any(|bits| m == n.mode & 0o7777 & !bits);
            let may_drop = kind == mode::S_IFREG && drops_set_id && self.may(fid, cred, 2).is_ok();
            if !owner && !may_drop {
                return Err(Errno::EPERM);
            }
        }
        if (set.atime.is_some() || set.mtime.is_some()) && !owner {
            if !set.times_are_now {
                return Err(Errno::EPERM);
            }
            self.may(fid, cred, 2)?;
        }
        if set.size.is_some() {
            match kind {
                mode::S_IFREG => self.may(fid, cred, 2)?,
                mode::S_IFDIR => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
        }
        let now = self.now;
        let n = self.nodes.get_mut(&fid).unwrap();
        let drop_set_id = |n: &mut ModelInode, is_member: bool| {
            n.mode &= !0o4000;
            if n.mode & 0o010 != 0 || !is_member {
                n.mode &= !0o2000;
            }
        };
        if let Some(size) = set.size {
            n.size = size;
            n.mtime = now;
            if cred.uid != 0 {
                drop_set_id(n, in_group(n.gid));
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            if kind != mode::S_IFDIR {
                drop_set_id(n, cred.uid == 0 || in_group(n.gid));
            }
            n.uid = set.uid.unwrap_or(n.uid);
            n.gid = set.gid.unwrap_or(n.gid);
        }
        if let Some(m) = set.mode {
            let foreign_group = cred.uid != 0 && !in_group(n.gid);
            n.mode = kind | if foreign_group { m & !0o2000 } else { m };
        }
        n.atime = set.atime.unwrap_or(n.atime);
        n.mtime = set.mtime.unwrap_or(n.mtime);
        if *set != SetAttr::default() {
            n.ctime = now;
        }
        Ok(())
    }

    /// Opens by name. Returns the FID, which is that of `new` if the file was created.
    pub(super) fn open(&mut self, cred: &Credentials, new: New<'_>, flags: u32) -> Result<Fid> {
        self.dir(new.parent)?;
        let found = self.find(new.parent, new.name, cred)?;
        let fid = match found {
            Some(_) if flags & 0o300 == 0o300 => return Err(Errno::EEXIST),
            Some(fid) => fid,
            None if flags & 0o100 == 0 => return Err(Errno::ENOENT),
            None => {
                let fid = new.fid;
                self.create(cred, New { mode: mode::S_IFREG | new.mode & 0o7777, ..new })?;
                self.nodes.get_mut(&fid).unwrap().open += 1;
                return Ok(fid);
            }
        };
        let kind = self.nodes[&fid].mode & mode::S_IFMT;
        if kind == mode::S_IFLNK {
            return Err(Errno::ELOOP);
        }
        let accmode = flags & 3;
        if kind == mode::S_IFDIR && (accmode != 0 || flags & 0o1100 != 0) {
            return Err(Errno::EISDIR);
        }
        let want = [4, 2, 6][accmode as usize] | if flags & 0o1000 != 0 { 2 } else { 0 };
        self.may(fid, cred, want)?;
        if flags & 0o1000 != 0 && kind == mode::S_IFREG {
            let now = self.now;
            let n = self.nodes.get_mut(&fid).unwrap();
            (n.size, n.mtime, n.ctime) = (0, now, now);
            if cred.uid != 0 {
                let is_member = cred.in_group(n.gid);
                n.mode &= if n.mode & 0o010 != 0 || !is_member { !0o6000 } else { !0o4000 };
            }
        }
        self.nodes.get_mut(&fid).unwrap().open += 1;
        Ok(fid)
    }

    /// Closes everything.
    pub(super) fn forget_opens(&mut self) {
        for fid in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.nodes.get_mut(&fid).unwrap().open = 0;
            self.reap(fid);
        }
    }

    pub(super) fn close(&mut self, fid: Fid) {
        self.nodes.get_mut(&fid).unwrap().open -= 1;
        self.reap(fid);
    }
}
