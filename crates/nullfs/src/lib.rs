//! A file system that stores only its tree, in memory: writes are discarded, reads return zeroes. It shows the most that
//! FUSE can do on a machine, and is the test object of `fuse`. Optionally it keeps the data too, so that programs can run
//! on it. Not a place for data that matters.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use nacre_base::{Errno, FxHashMap, Payload, Timestamp};
use nacre_fuse::reply::*;
use nacre_fuse::request::{self, FileLock, LockKind, SetTime};
use nacre_fuse::{Context, FuseError, Handler, MountOptions, Session, serve};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How the null file system lets the kernel cache.
#[derive(Clone, Copy, Debug)]
pub struct NullOptions {
    /// How files are opened.
    pub open_flags: OpenFlags,
    /// How long names and attributes are valid.
    pub valid: Duration,
    /// True if data is kept, in memory.
    pub keeps_data: bool,
}

impl Default for NullOptions {
    fn default() -> NullOptions {
        let open_flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES | OpenFlags::NOFLUSH;
        NullOptions { open_flags, valid: Duration::from_secs(60), keeps_data: false }
    }
}

/// Mounts a null file system.
pub async fn mount(rt: Rt, mountpoint: &Path, options: MountOptions, null: NullOptions) -> Result<Session, FuseError> {
    let handler = Arc::new(Null::new(rt.clone(), null));
    let options = MountOptions { handle_kill_priv: false, ..options };
    serve(rt, mountpoint, options, handler).await
}

/// The null file system.
pub struct Null {
    rt: Rt,
    options: NullOptions,
    tree: Mutex<Tree>,
}

const ROOT: u64 = 1;
/// Largest file whose data is kept, holes included.
const DATA_MAX: u64 = 4 << 30;

struct Tree {
    inodes: FxHashMap<u64, Inode>,
    last_node: u64,
}

struct Inode {
    attr: Attr,
    /// Number of lookups that the kernel holds. Without names and lookups the inode is removed.
    lookups: u64,
    content: Content,
}

enum Content {
    Directory(Directory),
    Link(Bytes),
    /// A regular or special file, with its data if data is kept.
    File(Bytes),
}

/// Names in the order of their creation, so that an offset in the directory stays valid while other names come and go.
#[derive(Default)]
struct Directory {
    names: FxHashMap<Bytes, u64>,
    entries: BTreeMap<u64, (Bytes, u64)>,
    last_position: u64,
}

impl Directory {
    fn get(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).and_then(|p| self.entries.get(p)).map(|(_, node)| *node)
    }

    fn insert(&mut self, name: Bytes, node: u64) {
        self.last_position += 1;
        // Copied, because a slice of the request would keep the whole message.
        let name = Bytes::copy_from_slice(&name);
        self.names.insert(name.clone(), self.last_position);
        self.entries.insert(self.last_position, (name, node));
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(position) = self.names.remove(name) {
            self.entries.remove(&position);
        }
    }
}

impl Null {
    /// Creates an empty file system.
    pub fn new(rt: Rt, options: NullOptions) -> Null {
        let now = rt.wall();
        let attr = Attr { ino: ROOT, mode: libc::S_IFDIR | 0o755, nlink: 2, blksize: 4096, ..times(now) };
        let root = Inode { attr, lookups: 1, content: Content::Directory(Directory::default()) };
        let tree = Tree { inodes: [(ROOT, root)].into_iter().collect(), last_node: ROOT };
        Null { rt, options, tree: Mutex::new(tree) }
    }

    /// Number of inodes, including the root.
    pub fn inode_count(&self) -> usize {
        self.tree.lock().inodes.len()
    }

    fn entry(&self, attr: &Attr) -> Entry {
        let valid = self.options.valid;
        Entry { node: attr.ino, generation: 0, entry_valid: valid, attr_valid: valid, attr: *attr }
    }

    fn opened(&self) -> Opened {
        Opened { handle: 0, flags: self.options.open_flags }
    }

    /// Creates an inode under a name; the answer holds a lookup.
    fn make(&self, ctx: &Context, parent: u64, name: Bytes, new: New) -> Result<Entry, Errno> {
        let now = self.rt.wall();
        self.tree.lock().make(ctx, parent, name, new, now).map(|attr| self.entry(&attr))
    }

    fn change(&self, op: &request::SetAttr) -> Result<Attr, Errno> {
        let now = self.rt.wall();
        let time = |t| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let mut tree = self.tree.lock();
        let inode = tree.inode(op.node)?;
        op.size.into_iter().for_each(|size| inode.truncate(size, now));
        let attr = &mut inode.attr;
        attr.mode = op.mode.map_or(attr.mode, |m| attr.mode & libc::S_IFMT | m & 0o7777);
        attr.uid = op.uid.unwrap_or(attr.uid);
        attr.gid = op.gid.unwrap_or(attr.gid);
        attr.atime = op.atime.map_or(attr.atime, time);
        attr.mtime = op.mtime.map_or(attr.mtime, time);
        attr.ctime = op.ctime.unwrap_or(now);
        Ok(*attr)
    }

    /// Calls `add` with the entries from `offset` on until there is no more room.
    fn list(&self, op: &request::ReadDir, mut add: impl FnMut(&Entry, &DirEntry<'_>) -> bool) -> Result<(), Errno> {
        let mut tree = self.tree.lock();
        let mut found = Vec::new();
        for (position, (name, node)) in tree.directory(op.node)?.entries.range(op.offset + 1..) {
            // No more entries than could fit: an entry takes at least 24 bytes.
            if found.len() * 24 >= op.size as usize {
                break;
            }
            found.push((*position, name.clone(), *node));
        }
        for (position, name, node) in found {
            let inode = tree.inode(node)?;
            let (ino, mode) = (inode.attr.ino, inode.attr.mode);
            if !add(&self.entry(&inode.attr), &DirEntry { ino, next_offset: position, mode, name: &name }) {
                break;
            }
        }
        Ok(())
    }
}

impl Inode {
    fn truncate(&mut self, size: u64, now: Timestamp) {
        if let Content::File(data) = &mut self.content
            && size < data.len() as u64
        {
            data.truncate(size as usize);
        }
        self.attr.size = size;
        (self.attr.mtime, self.attr.ctime) = (now, now);
    }

    /// Reads. Beyond the kept data, up to the size, there are zeroes.
    fn read(&self, offset: u64, size: u32) -> Payload {
        let len = self.attr.size.saturating_sub(offset).min(u64::from(size)) as usize;
        let Content::File(data) = &self.content else { return Payload::new() };
        let start = data.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let kept = data.slice(start..data.len().min(start + len));
        let zeroes = Payload::zeroes(len - kept.len());
        let mut found = Payload::from(kept);
        found.append(zeroes);
        found
    }

    /// `keeps`: true to keep the data, and not just its length.
    fn write(&mut self, offset: u64, bytes: &[u8], keeps: bool, now: Timestamp) -> Result<(), Errno> {
        let end = offset.saturating_add(bytes.len() as u64);
        if keeps && end > DATA_MAX {
            return Err(Errno::EFBIG);
        }
        if let (Content::File(data), true) = (&mut self.content, keeps) {
            let (start, end) = (offset as usize, end as usize);
            // In place, unless a read is using the buffer.
            let mut new = std::mem::take(data).try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            if new.len() < end {
                new.resize(end, 0);
            }
            new[start..end].copy_from_slice(bytes);
            *data = new.freeze();
        }
        self.attr.size = self.attr.size.max(end);
        self.attr.blocks = self.attr.size.div_ceil(512);
        (self.attr.mtime, self.attr.ctime) = (now, now);
        Ok(())
    }
}

/// Attributes of a new inode.
struct New {
    mode: u32,
    rdev: u32,
    content: Content,
}

impl New {
    fn file(mode: u32) -> New {
        New { mode, rdev: 0, content: Content::File(Bytes::new()) }
    }
}

fn times(now: Timestamp) -> Attr {
    Attr { atime: now, mtime: now, ctime: now, ..Attr::default() }
}

impl Tree {
    fn inode(&mut self, node: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&node).ok_or(Errno::ESTALE)
    }

    fn directory(&mut self, node: u64) -> Result<&mut Directory, Errno> {
        match &mut self.inode(node)?.content {
            Content::Directory(d) => Ok(d),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Finds a name and counts the lookup.
    fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        let node = self.directory(parent)?.get(name).ok_or(Errno::ENOENT)?;
        let inode = self.inode(node)?;
        inode.lookups += 1;
        Ok(inode.attr)
    }

    fn make(&mut self, ctx: &Context, parent: u64, name: Bytes, new: New, now: Timestamp) -> Result<Attr, Errno> {
        let node = self.last_node + 1;
        let directory = self.directory(parent)?;
        if directory.get(&name).is_some() {
            return Err(Errno::EEXIST);
        }
        directory.insert(name, node);
        self.last_node = node;
        self.touch(parent, now);
        let nlink = if matches!(new.content, Content::Directory(_)) { 2 } else { 1 };
        let (mode, rdev, uid, gid) = (new.mode, new.rdev, ctx.uid, ctx.gid);
        let size = if let Content::Link(target) = &new.content { target.len() as u64 } else { 0 };
        let attr = Attr { ino: node, mode, rdev, uid, gid, nlink, size, blksize: 4096, ..times(now) };
        self.inodes.insert(node, Inode { attr, lookups: 1, content: new.content });
        Ok(attr)
    }

    /// Updates a directory whose entries changed.
    fn touch(&mut self, directory: u64, now: Timestamp) {
        if let Ok(inode) = self.inode(directory) {
            (inode.attr.mtime, inode.attr.ctime) = (now, now);
        }
    }

    fn link(&mut self, node: u64, parent: u64, name: Bytes, now: Timestamp) -> Result<Attr, Errno> {
        let directory = self.directory(parent)?;
        if directory.get(&name).is_some() {
            return Err(Errno::EEXIST);
        }
        directory.insert(name, node);
        self.touch(parent, now);
        let inode = self.inode(node)?;
        inode.lookups += 1;
        inode.attr.nlink += 1;
        inode.attr.ctime = now;
        Ok(inode.attr)
    }

    fn remove(&mut self, parent: u64, name: &[u8], what: Removal) -> Result<(), Errno> {
        let node = self.directory(parent)?.get(name).ok_or(Errno::ENOENT)?;
        match (&self.inode(node)?.content, what) {
            (Content::Directory(_), Removal::Unlink) => return Err(Errno::EISDIR),
            (Content::Directory(d), Removal::RmDir) if !d.names.is_empty() => return Err(Errno::ENOTEMPTY),
            (Content::Link(_) | Content::File(_), Removal::RmDir) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.directory(parent)?.remove(name);
        let inode = self.inode(node)?;
        inode.attr.nlink = if what == Removal::RmDir { 0 } else { inode.attr.nlink - 1 };
        self.forget(node, 0);
        Ok(())
    }

    fn rename(&mut self, op: request::Rename) -> Result<(), Errno> {
        if op.flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let node = self.directory(op.parent)?.get(&op.name).ok_or(Errno::ENOENT)?;
        let is_directory = matches!(self.inode(node)?.content, Content::Directory(_));
        if let Some(replaced) = self.directory(op.new_parent)?.get(&op.new_name) {
            if op.flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            if replaced == node {
                return Ok(());
            }
            self.remove(op.new_parent, &op.new_name, if is_directory { Removal::RmDir } else { Removal::Unlink })?;
        }
        self.directory(op.parent)?.remove(&op.name);
        self.directory(op.new_parent)?.insert(op.new_name, node);
        Ok(())
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        let Ok(inode) = self.inode(node) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0 && inode.attr.nlink == 0 {
            self.inodes.remove(&node);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    Unlink,
    RmDir,
}

#[async_trait]
impl Handler for Null {
    async fn lookup(self: Arc<Self>, _: Context, op: request::Lookup, reply: ReplyEntry) {
        let found = self.tree.lock().lookup(op.parent, &op.name);
        match found {
            Ok(attr) => reply.ok(&self.entry(&attr)),
            Err(Errno::ENOENT) => reply.absent(self.options.valid),
            Err(e) => reply.error(e),
        }
    }

    async fn forget(self: Arc<Self>, forgets: Vec<request::Forget>) {
        let mut tree = self.tree.lock();
        forgets.iter().for_each(|f| tree.forget(f.node, f.lookups));
    }

    async fn get_attr(self: Arc<Self>, _: Context, op: request::GetAttr, reply: ReplyAttr) {
        let found = self.tree.lock().inode(op.node).map(|i| i.attr);
        match found {
            Ok(attr) => reply.ok(&attr, self.options.valid),
            Err(e) => reply.error(e),
        }
    }

    async fn set_attr(self: Arc<Self>, _: Context, op: request::SetAttr, reply: ReplyAttr) {
        match self.change(&op) {
            Ok(attr) => reply.ok(&attr, self.options.valid),
            Err(e) => reply.error(e),
        }
    }

    async fn read_link(self: Arc<Self>, _: Context, op: request::ReadLink, reply: ReplyLink) {
        let target = match &self.tree.lock().inode(op.node).map(|i| &i.content) {
            Ok(Content::Link(target)) => Ok(target.clone()),
            Ok(_) => Err(Errno::EINVAL),
            Err(e) => Err(*e),
        };
        match target {
            Ok(target) => reply.ok(&target),
            Err(e) => reply.error(e),
        }
    }

    async fn sym_link(self: Arc<Self>, ctx: Context, op: request::SymLink, reply: ReplyEntry) {
        let content = Content::Link(Bytes::copy_from_slice(&op.target));
        let new = New { mode: libc::S_IFLNK | 0o777, rdev: 0, content };
        answer(reply, self.make(&ctx, op.parent, op.name, new));
    }

    async fn mk_nod(self: Arc<Self>, ctx: Context, op: request::MkNod, reply: ReplyEntry) {
        let new = New { rdev: op.rdev, ..New::file(op.mode) };
        answer(reply, self.make(&ctx, op.parent, op.name, new));
    }

    async fn mk_dir(self: Arc<Self>, ctx: Context, op: request::MkDir, reply: ReplyEntry) {
        let content = Content::Directory(Directory::default());
        let new = New { mode: libc::S_IFDIR | op.mode & 0o7777, rdev: 0, content };
        answer(reply, self.make(&ctx, op.parent, op.name, new));
    }

    async fn unlink(self: Arc<Self>, _: Context, op: request::Unlink, reply: ReplyEmpty) {
        let result = self.tree.lock().remove(op.parent, &op.name, Removal::Unlink);
        reply.result(result);
    }

    async fn rm_dir(self: Arc<Self>, _: Context, op: request::RmDir, reply: ReplyEmpty) {
        let result = self.tree.lock().remove(op.parent, &op.name, Removal::RmDir);
        reply.result(result);
    }

    async fn rename(self: Arc<Self>, _: Context, op: request::Rename, reply: ReplyEmpty) {
        let result = self.tree.lock().rename(op);
        reply.result(result);
    }

    async fn link(self: Arc<Self>, _: Context, op: request::Link, reply: ReplyEntry) {
        let now = self.rt.wall();
        let made = self.tree.lock().link(op.node, op.new_parent, op.new_name, now);
        answer(reply, made.map(|attr| self.entry(&attr)));
    }

    async fn open(self: Arc<Self>, _: Context, op: request::Open, reply: ReplyOpen) {
        if op.flags & libc::O_TRUNC as u32 != 0
            && let Ok(inode) = self.tree.lock().inode(op.node)
        {
            inode.truncate(0, self.rt.wall());
        }
        reply.ok(self.opened());
    }

    async fn create(self: Arc<Self>, ctx: Context, op: request::Create, reply: ReplyCreate) {
        match self.make(&ctx, op.parent, op.name, New::file(op.mode)) {
            Ok(entry) => reply.ok(&entry, self.opened()),
            Err(e) => reply.error(e),
        }
    }

    async fn read(self: Arc<Self>, _: Context, op: request::Read, reply: ReplyData) {
        let found = self.tree.lock().inode(op.node).map(|i| i.read(op.offset, op.size));
        reply.ok(found.unwrap_or_default());
    }

    async fn write(self: Arc<Self>, _: Context, op: request::Write, reply: ReplyWrite) {
        let (keeps, now) = (self.options.keeps_data, self.rt.wall());
        let written = self.tree.lock().inode(op.node).and_then(|i| i.write(op.offset, &op.data, keeps, now));
        match written {
            Ok(()) => reply.ok(op.data.len() as u32), // the kernel's own field has 32 bits
            Err(e) => reply.error(e),
        }
    }

    async fn stat_fs(self: Arc<Self>, _: Context, _: request::StatFs, reply: ReplyStatFs) {
        let files = self.inode_count() as u64;
        let blocks = 1 << 30;
        let (bsize, frsize, namelen) = (4096, 4096, 255);
        reply.ok(&StatFs { blocks, bfree: blocks, bavail: blocks, files, ffree: 1 << 30, bsize, namelen, frsize });
    }

    async fn read_dir(self: Arc<Self>, _: Context, op: request::ReadDir, mut reply: ReplyDirectory) {
        match self.list(&op, |_, entry| reply.add(entry)) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    async fn read_dir_plus(self: Arc<Self>, _: Context, op: request::ReadDir, mut reply: ReplyDirectoryPlus) {
        let mut given = Vec::new();
        let listed = self.list(&op, |found, entry| {
            let added = reply.add(found, entry);
            if added {
                given.push(found.node);
            }
            added
        });
        if let Err(e) = listed {
            return reply.error(e);
        }
        {
            let mut tree = self.tree.lock();
            given.iter().filter_map(|n| tree.inodes.get_mut(n).map(|i| i.lookups += 1)).for_each(drop);
        }
        reply.ok();
    }

    async fn get_lock(self: Arc<Self>, _: Context, op: request::GetLock, reply: ReplyLock) {
        reply.ok(&FileLock { kind: LockKind::Unlock, ..op.lock });
    }

    async fn set_lock(self: Arc<Self>, _: Context, _: request::SetLock, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn answer(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.ok(&entry),
        Err(e) => reply.error(e),
    }
}
