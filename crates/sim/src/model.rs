//! POSIX as a model: a file tree in plain maps, with the errors of each operation. It knows neither network nor disks,
//! and it is small enough to be believed. It covers only what one user (the superuser) can see: permissions are tested
//! elsewhere.

use nacre_base::Errno;
use std::collections::BTreeMap;

/// A file's identity in the model.
pub type Inode = u64;

/// The tree.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Inode, ModelNode>,
    next: Inode,
}

#[derive(Clone, Debug)]
struct ModelNode {
    kind: Kind,
    nlink: u32,
    mode: u32,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// Kind of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file and its bytes.
    File(Vec<u8>),
    /// A directory: names, and its parent directory.
    Dir(BTreeMap<Vec<u8>, Inode>, Inode),
    /// A symbolic link.
    Link(Vec<u8>),
}

/// The root directory.
pub const ROOT: Inode = 1;

/// Attributes of a node in `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `d`, `f` or `l`.
    pub kind: char,
    /// Number of names.
    pub nlink: u32,
    /// Permission bits.
    pub mode: u32,
    /// Size of a file or a link; 0 for directories, whose size is not specified.
    pub size: u64,
}

impl Default for Model {
    fn default() -> Model {
        let root = ModelNode { kind: Kind::Dir(BTreeMap::new(), ROOT), nlink: 2, mode: 0o755, xattrs: BTreeMap::new() };
        Model { inodes: [(ROOT, root)].into_iter().collect(), next: ROOT + 1 }
    }
}

impl Model {
    fn node(&self, i: Inode) -> &ModelNode {
        &self.inodes[&i]
    }

    fn node_mut(&mut self, i: Inode) -> &mut ModelNode {
        self.inodes.get_mut(&i).expect("an inode that the model gave out")
    }

    fn names(&self, dir: Inode) -> Result<&BTreeMap<Vec<u8>, Inode>, Errno> {
        match &self.node(dir).kind {
            Kind::Dir(names, _) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn names_mut(&mut self, dir: Inode) -> &mut BTreeMap<Vec<u8>, Inode> {
        match &mut self.node_mut(dir).kind {
            Kind::Dir(names, _) => names,
            _ => unreachable!("checked to be a directory"),
        }
    }

    fn is_dir(&self, i: Inode) -> bool {
        matches!(self.node(i).kind, Kind::Dir(..))
    }

    /// True if the node still has a name (or is the root).
    pub fn is_linked(&self, i: Inode) -> bool {
        self.inodes.get(&i).is_some_and(|n| n.nlink > 0)
    }

    /// Finds a name.
    pub fn lookup(&self, dir: Inode, name: &[u8]) -> Result<Inode, Errno> {
        self.names(dir)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// Attributes.
    pub fn stat(&self, i: Inode) -> Stat {
        let n = self.node(i);
        let (kind, size) = match &n.kind {
            Kind::File(data) => ('f', data.len() as u64),
            Kind::Dir(..) => ('d', 0),
            Kind::Link(target) => ('l', target.len() as u64),
        };
        Stat { kind, nlink: n.nlink, mode: n.mode, size }
    }

    fn add(&mut self, dir: Inode, name: &[u8], kind: Kind, mode: u32) -> Result<Inode, Errno> {
        if self.names(dir)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if self.node(dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let i = self.next;
        self.next += 1;
        let is_dir = matches!(kind, Kind::Dir(..));
        self.inodes.insert(i, ModelNode { kind, nlink: 1 + u32::from(is_dir), mode, xattrs: BTreeMap::new() });
        self.names_mut(dir).insert(name.to_vec(), i);
        self.node_mut(dir).nlink += u32::from(is_dir);
        Ok(i)
    }

    /// Creates an empty file.
    pub fn create(&mut self, dir: Inode, name: &[u8], mode: u32) -> Result<Inode, Errno> {
        self.add(dir, name, Kind::File(Vec::new()), mode)
    }

    /// Creates a directory.
    pub fn mkdir(&mut self, dir: Inode, name: &[u8], mode: u32) -> Result<Inode, Errno> {
        self.add(dir, name, Kind::Dir(BTreeMap::new(), dir), mode)
    }

    /// Creates a symbolic link.
    pub fn symlink(&mut self, dir: Inode, name: &[u8], target: &[u8]) -> Result<Inode, Errno> {
        self.add(dir, name, Kind::Link(target.to_vec()), 0o777)
    }

    /// The target of a link.
    pub fn readlink(&self, i: Inode) -> Result<Vec<u8>, Errno> {
        match &self.node(i).kind {
            Kind::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Gives a file another name.
    pub fn link(&mut self, i: Inode, dir: Inode, name: &[u8]) -> Result<(), Errno> {
        if self.is_dir(i) {
            return Err(Errno::EPERM);
        }
        if self.names(dir)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if self.node(dir).nlink == 0 || self.node(i).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.names_mut(dir).insert(name.to_vec(), i);
        self.node_mut(i).nlink += 1;
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, dir: Inode, name: &[u8]) -> Result<(), Errno> {
        let i = self.lookup(dir, name)?;
        if self.is_dir(i) {
            return Err(Errno::EISDIR);
        }
        self.names_mut(dir).remove(name);
        self.node_mut(i).nlink -= 1;
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: Inode, name: &[u8]) -> Result<(), Errno> {
        let i = self.lookup(dir, name)?;
        if !self.names(i)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.names_mut(dir).remove(name);
        self.node_mut(i).nlink = 0;
        self.node_mut(dir).nlink -= 1;
        Ok(())
    }

    /// True if `i` is `above` or lies below it.
    fn is_below(&self, mut i: Inode, above: Inode) -> bool {
        loop {
            if i == above {
                return true;
            }
            match self.node(i).kind {
                Kind::Dir(_, parent) if i != ROOT => i = parent,
                _ => return false,
            }
        }
    }

    /// Moves a name.
    pub fn rename(&mut self, from: Inode, old: &[u8], to: Inode, new: &[u8]) -> Result<(), Errno> {
        let i = self.lookup(from, old)?;
        let target = self.names(to)?.get(new).copied();
        if self.node(to).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if self.is_dir(i) && self.is_below(to, i) {
            return Err(Errno::EINVAL);
        }
        if let Some(t) = target {
            if t == i {
                return Ok(());
            }
            match (self.is_dir(i), self.is_dir(t)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(if self.is_below(from, t) { Errno::ENOTEMPTY } else { Errno::EISDIR }),
                (true, true) if !self.names(t)?.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        if let Some(t) = target {
            if self.is_dir(t) {
                self.node_mut(t).nlink = 0;
                self.node_mut(to).nlink -= 1;
            } else {
                self.node_mut(t).nlink -= 1;
            }
        }
        self.names_mut(from).remove(old);
        self.names_mut(to).insert(new.to_vec(), i);
        if self.is_dir(i) {
            self.node_mut(from).nlink -= 1;
            self.node_mut(to).nlink += 1;
            if let Kind::Dir(_, parent) = &mut self.node_mut(i).kind {
                *parent = to;
            }
        }
        Ok(())
    }

    /// Names in a directory, sorted.
    pub fn readdir(&self, dir: Inode) -> Result<Vec<(Vec<u8>, char)>, Errno> {
        let names = self.names(dir)?;
        Ok(names.iter().map(|(n, i)| (n.clone(), self.stat(*i).kind)).collect())
    }

    fn data_mut(&mut self, i: Inode) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node_mut(i).kind {
            Kind::File(data) => Ok(data),
            Kind::Dir(..) => Err(Errno::EISDIR),
            Kind::Link(_) => Err(Errno::EINVAL),
        }
    }

    /// Bytes of a file.
    pub fn read(&self, i: Inode, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        match &self.node(i).kind {
            Kind::File(data) => {
                let from = data.len().min(offset as usize);
                Ok(data[from..data.len().min(from + len)].to_vec())
            }
            Kind::Dir(..) => Err(Errno::EISDIR),
            Kind::Link(_) => Err(Errno::EINVAL),
        }
    }

    /// Writes; a gap becomes zeros.
    pub fn write(&mut self, i: Inode, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let data = self.data_mut(i)?;
        let end = offset as usize + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Writes at the end.
    pub fn append(&mut self, i: Inode, bytes: &[u8]) -> Result<(), Errno> {
        self.data_mut(i)?.extend_from_slice(bytes);
        Ok(())
    }

    /// Sets the size.
    pub fn truncate(&mut self, i: Inode, size: u64) -> Result<(), Errno> {
        self.data_mut(i)?.resize(size as usize, 0);
        Ok(())
    }

    /// Zeroes a range; the size stays.
    pub fn punch(&mut self, i: Inode, offset: u64, len: u64) -> Result<(), Errno> {
        let data = self.data_mut(i)?;
        let (from, to) = (data.len().min(offset as usize), data.len().min((offset + len) as usize));
        data[from..to].fill(0);
        Ok(())
    }

    /// Sets permission bits.
    pub fn chmod(&mut self, i: Inode, mode: u32) {
        self.node_mut(i).mode = mode;
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, i: Inode, name: &str, value: &[u8]) {
        self.node_mut(i).xattrs.insert(name.to_owned(), value.to_vec());
    }

    /// Reads an extended attribute.
    pub fn get_xattr(&self, i: Inode, name: &str) -> Result<Vec<u8>, Errno> {
        self.node(i).xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    /// Every node that has a name, with one path to it; in path order.
    pub fn walk(&self) -> Vec<(Vec<u8>, Inode)> {
        let mut found = Vec::new();
        let mut todo = vec![(Vec::new(), ROOT)];
        while let Some((path, i)) = todo.pop() {
            if let Kind::Dir(names, _) = &self.node(i).kind {
                for (name, child) in names {
                    let path = [&path[..], b"/", name].concat();
                    todo.push((path, *child));
                }
            }
            found.push((path, i));
        }
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rename_keeps_counts_and_refuses_cycles() {
        let mut m = Model::default();
        let a = m.mkdir(ROOT, b"a", 0o755).unwrap();
        let b = m.mkdir(a, b"b", 0o755).unwrap();
        assert_eq!(m.rename(ROOT, b"a", b, b"x"), Err(Errno::EINVAL));
        assert_eq!((m.stat(ROOT).nlink, m.stat(a).nlink), (3, 3));
        m.rename(a, b"b", ROOT, b"b").unwrap();
        assert_eq!((m.stat(ROOT).nlink, m.stat(a).nlink), (4, 2));
        m.rename(ROOT, b"a", ROOT, b"b").unwrap();
        assert!(!m.is_linked(b) && m.stat(ROOT).nlink == 3);
    }
}
