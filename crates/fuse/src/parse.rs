//! Turns the kernel's messages into requests, with every bound checked. Names, values and written data are slices of the
//! message: nothing is copied. Pure: no IO, no state but [`Dialect`].

use crate::abi::{self, fattr, opcode};
use crate::request::*;
use bytes::Bytes;
use nacre_base::{Errno, Timestamp};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Results of INIT that change how later messages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// True if SETXATTR has its long form.
    pub setxattr_ext: bool,
    /// True if requests that create may end in extensions.
    pub extensions: bool,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole message in bytes.
    pub len: usize,
    /// The kernel's operation code.
    pub opcode: u32,
    /// Number that names the request in its reply and in an INTERRUPT.
    pub unique: u64,
    /// The inode the operation is on; 1 is the root.
    pub node: u64,
    /// The caller's file system user.
    pub uid: u32,
    /// The caller's file system group.
    pub gid: u32,
    /// The caller's process; 0 if it is in another pid namespace or the kernel itself calls.
    pub pid: u32,
    /// The parent directory's group, if a request that creates says that the caller is a member of it.
    pub supplementary_group: Option<u32>,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not even a complete header, so there is no request to answer.
    #[error("message of {0} bytes has no valid header")]
    Header(usize),
    /// The body is too short, inconsistent, or holds an impossible name.
    #[error("malformed {} request", opcode::name(.0.opcode))]
    Body(Header),
    /// An unknown operation.
    #[error("unknown operation {}", .0.opcode)]
    Unknown(Header),
}

impl ParseError {
    /// The request to answer and the error to answer it with, if it can be answered.
    pub fn answer(&self) -> Option<(u64, Errno)> {
        match self {
            ParseError::Header(_) => None,
            ParseError::Body(h) if !has_reply(h.opcode) => None,
            ParseError::Body(h) => Some((h.unique, Errno::EIO)),
            ParseError::Unknown(h) => Some((h.unique, Errno::ENOSYS)),
        }
    }
}

/// True if the kernel waits for a reply to this operation.
pub(crate) fn has_reply(opcode: u32) -> bool {
    !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY)
}

/// Reads the header of a message, which is `bytes` whole.
pub fn parse_header(bytes: &[u8]) -> Result<Header, ParseError> {
    let (h, _) = abi::InHeader::read_from_prefix(bytes).map_err(|_| ParseError::Header(bytes.len()))?;
    if h.len as usize != bytes.len() {
        return Err(ParseError::Header(bytes.len()));
    }
    let (opcode, unique, node) = (h.opcode, h.unique, h.nodeid);
    Ok(Header { len: bytes.len(), opcode, unique, node, uid: h.uid, gid: h.gid, pid: h.pid, supplementary_group: None })
}

/// Bytes that a message asks to read, if it is a READ.
pub(crate) fn read_size(message: &[u8]) -> Option<usize> {
    let (header, body) = abi::InHeader::read_from_prefix(message).ok()?;
    if header.opcode != opcode::READ {
        return None;
    }
    let (read, _) = abi::ReadIn::read_from_prefix(body).ok()?;
    Some(read.size as usize)
}

/// Reads a message whole.
pub fn parse(dialect: Dialect, message: &Bytes) -> Result<(Header, Operation), ParseError> {
    let mut header = parse_header(message)?;
    let mut body = Body { message, at: size_of::<abi::InHeader>(), end: message.len() };
    if dialect.extensions && creates(header.opcode) {
        header.supplementary_group = body.extensions().ok_or(ParseError::Body(header))?;
    }
    match body.operation(dialect, &header) {
        Some(Some(operation)) => Ok((header, operation)),
        Some(None) => Err(ParseError::Unknown(header)),
        None => Err(ParseError::Body(header)),
    }
}

/// True for operations that may carry the parent's group.
fn creates(opcode: u32) -> bool {
    matches!(opcode, opcode::CREATE | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::TMPFILE)
}

/// The rest of a message. Every method returns None if the bytes do not suffice.
struct Body<'a> {
    message: &'a Bytes,
    at: usize,
    end: usize,
}

impl Body<'_> {
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.at;
        let end = start.checked_add(len).filter(|end| *end <= self.end)?;
        self.at = end;
        Some(start..end)
    }

    fn get<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let range = self.take(size_of::<T>())?;
        T::read_from_bytes(&self.message[range]).ok()
    }

    fn bytes(&mut self, len: u32) -> Option<Bytes> {
        let range = self.take(usize::try_from(len).ok()?)?;
        Some(self.message.slice(range))
    }

    /// Bytes up to a NUL, at least one.
    fn string(&mut self) -> Option<Bytes> {
        let nul = self.message[self.at..self.end].iter().position(|b| *b == 0).filter(|n| *n > 0)?;
        let range = self.take(nul + 1)?;
        Some(self.message.slice(range.start..range.end - 1))
    }

    /// The name of a directory entry.
    fn name(&mut self) -> Option<Bytes> {
        self.string().filter(|name| !name.contains(&b'/'))
    }

    /// Cuts the extensions off the end, and finds the parent's group in them.
    #[expect(clippy::option_option, reason = "outer: malformed; inner: no group")]
    fn extensions(&mut self) -> Option<Option<u32>> {
        let (header, _) = abi::InHeader::read_from_prefix(self.message).ok()?;
        let len = usize::from(header.total_extlen) * 8;
        self.end = self.end.checked_sub(len).filter(|end| *end >= self.at)?;
        let mut ext = Body { message: self.message, at: self.end, end: self.message.len() };
        let mut group = None;
        while ext.at < ext.end {
            let start = ext.at;
            let head: abi::ExtHeader = ext.get()?;
            let size = usize::try_from(head.size).ok().filter(|s| *s >= size_of::<abi::ExtHeader>() && *s % 8 == 0)?;
            if head.kind == abi::EXT_GROUPS {
                let count: u32 = ext.get()?;
                group = if count > 0 { Some(ext.get()?) } else { None };
            }
            ext.at = start.checked_add(size).filter(|at| *at <= ext.end)?;
        }
        Some(group)
    }

    fn forgets(&mut self) -> Option<Vec<Forget>> {
        let head: abi::BatchForgetIn = self.get()?;
        // The count is not trusted: the loop ends with the bytes.
        let room = (self.end - self.at) / size_of::<abi::ForgetOne>();
        let mut forgets = Vec::with_capacity(room.min(head.count as usize));
        for _ in 0..head.count {
            let one: abi::ForgetOne = self.get()?;
            forgets.push(Forget { node: one.nodeid, lookups: one.nlookup });
        }
        Some(forgets)
    }

    fn set_attr(&mut self, node: u64) -> Option<SetAttr> {
        let a: abi::SetattrIn = self.get()?;
        let has = |bit| a.valid & bit != 0;
        let time = |set, now, secs: u64, nanos| match (has(set), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(Timestamp { secs: secs as i64, nanos })),
            (false, false) => None,
        };
        // Times are checked here, so that later code may rely on them.
        if [a.atimensec, a.mtimensec, a.ctimensec].iter().any(|n| *n >= 1_000_000_000) {
            return None;
        }
        Some(SetAttr {
            node,
            handle: has(fattr::FH).then_some(a.fh),
            mode: has(fattr::MODE).then_some(a.mode),
            uid: has(fattr::UID).then_some(a.uid),
            gid: has(fattr::GID).then_some(a.gid),
            size: has(fattr::SIZE).then_some(a.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, a.atime, a.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, a.mtime, a.mtimensec),
            ctime: has(fattr::CTIME).then_some(Timestamp { secs: a.ctime as i64, nanos: a.ctimensec }),
            lock_owner: has(fattr::LOCKOWNER).then_some(a.lock_owner),
            kill_suidgid: has(fattr::KILL_SUIDGID),
        })
    }

    fn write(&mut self, node: u64) -> Option<Write> {
        let w: abi::WriteIn = self.get()?;
        Some(Write {
            node,
            handle: w.fh,
            offset: w.offset,
            data: self.bytes(w.size)?,
            flags: w.flags,
            lock_owner: (w.write_flags & abi::WRITE_LOCKOWNER != 0).then_some(w.lock_owner),
            from_cache: w.write_flags & abi::WRITE_CACHE != 0,
            kill_suidgid: w.write_flags & abi::WRITE_KILL_SUIDGID != 0,
        })
    }

    fn read(&mut self, node: u64) -> Option<Read> {
        let r: abi::ReadIn = self.get()?;
        let lock_owner = (r.read_flags & abi::READ_LOCKOWNER != 0).then_some(r.lock_owner);
        Some(Read { node, handle: r.fh, offset: r.offset, size: r.size, flags: r.flags, lock_owner })
    }

    fn read_dir(&mut self, node: u64) -> Option<ReadDir> {
        let r: abi::ReadIn = self.get()?;
        Some(ReadDir { node, handle: r.fh, offset: r.offset, size: r.size })
    }

    fn open(&mut self, node: u64) -> Option<Open> {
        let o: abi::OpenIn = self.get()?;
        Some(Open { node, flags: o.flags, kill_suidgid: o.open_flags & abi::OPEN_KILL_SUIDGID != 0 })
    }

    fn create(&mut self, parent: u64) -> Option<Create> {
        let c: abi::CreateIn = self.get()?;
        let kill_suidgid = c.open_flags & abi::OPEN_KILL_SUIDGID != 0;
        Some(Create { parent, name: self.name()?, flags: c.flags, mode: c.mode, umask: c.umask, kill_suidgid })
    }

    fn release(&mut self, node: u64) -> Option<Release> {
        let r: abi::ReleaseIn = self.get()?;
        let flush = r.release_flags & abi::RELEASE_FLUSH != 0;
        let unlock_flock = r.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
        Some(Release { node, handle: r.fh, flags: r.flags, lock_owner: r.lock_owner, flush, unlock_flock })
    }

    fn fsync(&mut self, node: u64) -> Option<FSync> {
        let f: abi::FsyncIn = self.get()?;
        Some(FSync { node, handle: f.fh, data_only: f.fsync_flags & abi::FSYNC_FDATASYNC != 0 })
    }

    fn set_xattr(&mut self, node: u64, dialect: Dialect) -> Option<SetXattr> {
        let x = if dialect.setxattr_ext {
            self.get::<abi::SetxattrIn>()?
        } else {
            let short: abi::SetxattrInShort = self.get()?;
            abi::SetxattrIn { size: short.size, flags: short.flags, ..Default::default() }
        };
        let (name, value) = (self.string()?, self.bytes(x.size)?);
        Some(SetXattr {
            node,
            name,
            value,
            flags: x.flags,
            kill_sgid: x.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0,
        })
    }

    fn set_lock(&mut self, node: u64, wait: bool) -> Option<SetLock> {
        let l: abi::LkIn = self.get()?;
        let (lock, space) = (file_lock(&l)?, lock_space(&l));
        Some(SetLock { node, handle: l.fh, owner: l.owner, lock, space, wait })
    }

    fn get_lock(&mut self, node: u64) -> Option<GetLock> {
        let l: abi::LkIn = self.get()?;
        let (lock, space) = (file_lock(&l)?, lock_space(&l));
        Some(GetLock { node, handle: l.fh, owner: l.owner, lock, space })
    }

    fn rename(&mut self, parent: u64, new_parent: u64, flags: u32) -> Option<Rename> {
        let (name, new_name) = (self.name()?, self.name()?);
        Some(Rename { parent, name, new_parent, new_name, flags })
    }

    fn ioctl(&mut self, node: u64) -> Option<Ioctl> {
        let i: abi::IoctlIn = self.get()?;
        Some(Ioctl {
            node,
            handle: i.fh,
            command: i.cmd,
            argument: i.arg,
            data: self.bytes(i.in_size)?,
            out_size: i.out_size,
            on_directory: i.flags & abi::IOCTL_DIR != 0,
        })
    }

    fn copy_file_range(&mut self, node: u64) -> Option<CopyFileRange> {
        let c: abi::CopyFileRangeIn = self.get()?;
        Some(CopyFileRange {
            node,
            handle: c.fh_in,
            offset: c.off_in,
            node_out: c.nodeid_out,
            handle_out: c.fh_out,
            offset_out: c.off_out,
            length: c.len,
        })
    }

    /// None: malformed. Some(None): an unknown operation.
    #[expect(clippy::option_option, reason = "said above")]
    fn operation(&mut self, dialect: Dialect, header: &Header) -> Option<Option<Operation>> {
        use Operation as Op;
        let node = header.node;
        let operation = match header.opcode {
            opcode::LOOKUP => Op::Lookup(Lookup { parent: node, name: self.name()? }),
            opcode::FORGET => Op::Forget(vec![Forget { node, lookups: self.get::<abi::ForgetIn>()?.nlookup }]),
            opcode::BATCH_FORGET => Op::Forget(self.forgets()?),
            opcode::GETATTR => {
                let g: abi::GetattrIn = self.get()?;
                Op::GetAttr(GetAttr { node, handle: (g.getattr_flags & abi::GETATTR_FH != 0).then_some(g.fh) })
            }
            opcode::SETATTR => Op::SetAttr(self.set_attr(node)?),
            opcode::READLINK => Op::ReadLink(ReadLink { node }),
            opcode::SYMLINK => Op::SymLink(SymLink { parent: node, name: self.name()?, target: self.string()? }),
            opcode::MKNOD => {
                let m: abi::MknodIn = self.get()?;
                Op::MkNod(MkNod { parent: node, name: self.name()?, mode: m.mode, rdev: m.rdev, umask: m.umask })
            }
            opcode::MKDIR => {
                let m: abi::MkdirIn = self.get()?;
                Op::MkDir(MkDir { parent: node, name: self.name()?, mode: m.mode, umask: m.umask })
            }
            opcode::UNLINK => Op::Unlink(Unlink { parent: node, name: self.name()? }),
            opcode::RMDIR => Op::RmDir(RmDir { parent: node, name: self.name()? }),
            opcode::RENAME => {
                let r: abi::RenameIn = self.get()?;
                Op::Rename(self.rename(node, r.newdir, 0)?)
            }
            opcode::RENAME2 => {
                let r: abi::Rename2In = self.get()?;
                Op::Rename(self.rename(node, r.newdir, r.flags)?)
            }
            opcode::LINK => {
                let l: abi::LinkIn = self.get()?;
                Op::Link(Link { node: l.oldnodeid, new_parent: node, new_name: self.name()? })
            }
            opcode::OPEN => Op::Open(self.open(node)?),
            opcode::OPENDIR => Op::OpenDir(self.open(node)?),
            opcode::CREATE => Op::Create(self.create(node)?),
            opcode::TMPFILE => {
                let c: abi::CreateIn = self.get()?;
                Op::TmpFile(TmpFile { parent: node, flags: c.flags, mode: c.mode, umask: c.umask })
            }
            opcode::READ => Op::Read(self.read(node)?),
            opcode::WRITE => Op::Write(self.write(node)?),
            opcode::STATFS => Op::StatFs(StatFs { node }),
            opcode::RELEASE => Op::Release(self.release(node)?),
            opcode::RELEASEDIR => Op::ReleaseDir(self.release(node)?),
            opcode::FLUSH => {
                let f: abi::FlushIn = self.get()?;
                Op::Flush(Flush { node, handle: f.fh, lock_owner: f.lock_owner })
            }
            opcode::FSYNC => Op::FSync(self.fsync(node)?),
            opcode::FSYNCDIR => Op::FSyncDir(self.fsync(node)?),
            opcode::SYNCFS => Op::SyncFs(SyncFs { node }),
            opcode::SETXATTR => Op::SetXattr(self.set_xattr(node, dialect)?),
            opcode::GETXATTR => {
                let size = self.get::<abi::GetxattrIn>()?.size;
                Op::GetXattr(GetXattr { node, name: self.string()?, size })
            }
            opcode::LISTXATTR => Op::ListXattr(ListXattr { node, size: self.get::<abi::GetxattrIn>()?.size }),
            opcode::REMOVEXATTR => Op::RemoveXattr(RemoveXattr { node, name: self.string()? }),
            opcode::READDIR => Op::ReadDir(self.read_dir(node)?),
            opcode::READDIRPLUS => Op::ReadDirPlus(self.read_dir(node)?),
            opcode::GETLK => Op::GetLock(self.get_lock(node)?),
            opcode::SETLK => Op::SetLock(self.set_lock(node, false)?),
            opcode::SETLKW => Op::SetLock(self.set_lock(node, true)?),
            opcode::ACCESS => Op::Access(Access { node, mask: self.get::<abi::AccessIn>()?.mask }),
            opcode::IOCTL => Op::Ioctl(self.ioctl(node)?),
            opcode::POLL => {
                let p: abi::PollIn = self.get()?;
                Op::Poll(Poll { node, handle: p.fh, events: p.events })
            }
            opcode::FALLOCATE => {
                let f: abi::FallocateIn = self.get()?;
                Op::Fallocate(Fallocate { node, handle: f.fh, offset: f.offset, length: f.length, mode: f.mode })
            }
            opcode::LSEEK => {
                let l: abi::LseekIn = self.get()?;
                Op::LSeek(LSeek { node, handle: l.fh, offset: l.offset, whence: l.whence })
            }
            opcode::COPY_FILE_RANGE => Op::CopyFileRange(self.copy_file_range(node)?),
            opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange64(self.copy_file_range(node)?),
            opcode::STATX => {
                let s: abi::StatxIn = self.get()?;
                let handle = (s.getattr_flags & abi::GETATTR_FH != 0).then_some(s.fh);
                Op::StatX(StatX { node, handle, flags: s.sx_flags, mask: s.sx_mask })
            }
            opcode::INTERRUPT => Op::Interrupt(self.get::<abi::InterruptIn>()?.unique),
            opcode::DESTROY => Op::Destroy,
            _ => return Some(None),
        };
        Some(Some(operation))
    }
}

fn lock_space(l: &abi::LkIn) -> LockSpace {
    if l.lk_flags & abi::LK_FLOCK != 0 { LockSpace::Flock } else { LockSpace::Posix }
}

fn file_lock(l: &abi::LkIn) -> Option<FileLock> {
    let kind = match i32::try_from(l.lk.kind).ok()? {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return None,
    };
    (l.lk.start <= l.lk.end).then_some(FileLock { start: l.lk.start, end: l.lk.end, kind, pid: l.lk.pid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use zerocopy::IntoBytes;

    const NEW: Dialect = Dialect { setxattr_ext: true, extensions: true };
    const OLD: Dialect = Dialect { setxattr_ext: false, extensions: false };

    /// A message as the kernel sends it: its header with length and extension length, then `parts`.
    fn message(opcode: u32, extlen: u16, parts: &[&[u8]]) -> Bytes {
        let body = parts.concat();
        let len = (40 + body.len()) as u32;
        let h = abi::InHeader {
            len,
            opcode,
            unique: 8,
            nodeid: 5,
            uid: 1000,
            gid: 100,
            pid: 42,
            total_extlen: extlen,
            padding: 0,
        };
        Bytes::from([h.as_bytes(), &body].concat())
    }

    fn operation(dialect: Dialect, opcode: u32, parts: &[&[u8]]) -> Operation {
        parse(dialect, &message(opcode, 0, parts)).unwrap().1
    }

    #[test]
    fn a_lookup_as_the_kernel_sends_it() {
        #[rustfmt::skip]
        let bytes: &[u8] = &[
            44, 0, 0, 0,  1, 0, 0, 0,  6, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0, 0, 0, 0, 0,
            0xe8, 3, 0, 0,  100, 0, 0, 0,  42, 0, 0, 0,  0, 0,  0, 0,
            b'a', b'b', b'c', 0,
        ];
        let (header, operation) = parse(NEW, &Bytes::from_static(bytes)).unwrap();
        let want =
            Header { len: 44, opcode: 1, unique: 6, node: 1, uid: 1000, gid: 100, pid: 42, supplementary_group: None };
        assert_eq!(header, want);
        assert_eq!(operation, Operation::Lookup(Lookup { parent: 1, name: "abc".into() }));
    }

    #[test]
    fn a_writes_data_is_a_slice_of_its_message() {
        let w = abi::WriteIn { fh: 7, offset: 4096, size: 4, write_flags: 6, lock_owner: 9, flags: 0o2001, padding: 0 };
        let bytes = message(opcode::WRITE, 0, &[w.as_bytes(), b"data"]);
        let Ok((_, Operation::Write(write))) = parse(NEW, &bytes) else { panic!("not a write") };
        assert_eq!(write.data.as_ptr(), bytes[abi::WRITE_HEADERS..].as_ptr());
        let want = Write {
            node: 5,
            handle: 7,
            offset: 4096,
            data: "data".into(),
            flags: 0o2001,
            lock_owner: Some(9),
            from_cache: false,
            kill_suidgid: true,
        };
        assert_eq!(write, want);
    }

    #[test]
    fn a_write_longer_than_its_message_is_refused() {
        let w = abi::WriteIn { size: 5, ..Default::default() };
        let e = parse(NEW, &message(opcode::WRITE, 0, &[w.as_bytes(), b"data"])).unwrap_err();
        assert_eq!(e.answer(), Some((8, Errno::EIO)));
    }

    #[test]
    fn flock_and_fcntl_are_told_apart() {
        for (flags, want) in [(0, LockSpace::Posix), (1, LockSpace::Flock)] {
            let lk = abi::FileLock { start: 0, end: i64::MAX as u64, kind: 1, pid: 42 };
            let l = abi::LkIn { fh: 7, owner: 9, lk, lk_flags: flags, padding: 0 };
            let Operation::SetLock(set) = operation(NEW, opcode::SETLKW, &[l.as_bytes()]) else { panic!("not a lock") };
            assert_eq!((set.space, set.wait, set.lock.kind), (want, true, LockKind::Exclusive));
        }
    }

    #[test]
    fn set_attr_has_only_what_is_valid() {
        let a = abi::SetattrIn {
            valid: fattr::SIZE | fattr::MTIME | fattr::MTIME_NOW | fattr::ATIME,
            size: 10,
            atime: 3,
            atimensec: 4,
            uid: 77,
            ..Default::default()
        };
        let Operation::SetAttr(set) = operation(NEW, opcode::SETATTR, &[a.as_bytes()]) else { panic!("not a setattr") };
        let atime = Some(SetTime::At(Timestamp { secs: 3, nanos: 4 }));
        assert_eq!(
            (set.size, set.mtime, set.atime, set.uid, set.handle),
            (Some(10), Some(SetTime::Now), atime, None, None)
        );
    }

    #[test]
    fn set_xattr_has_two_forms() {
        let long = abi::SetxattrIn { size: 2, flags: 1, setxattr_flags: 1, padding: 0 };
        let short = abi::SetxattrInShort { size: 2, flags: 1 };
        let a = operation(NEW, opcode::SETXATTR, &[long.as_bytes(), b"user.a\0hi"]);
        let b = operation(OLD, opcode::SETXATTR, &[short.as_bytes(), b"user.a\0hi"]);
        let want = SetXattr { node: 5, name: "user.a".into(), value: "hi".into(), flags: 1, kill_sgid: false };
        assert_eq!(b, Operation::SetXattr(want.clone()));
        assert_eq!(a, Operation::SetXattr(SetXattr { kill_sgid: true, ..want }));
    }

    #[test]
    fn a_creators_group_comes_in_an_extension() {
        let c = abi::CreateIn { flags: 0o101, mode: 0o100644, umask: 0o22, open_flags: 0 };
        let ext = [16u32, abi::EXT_GROUPS, 1, 555];
        let bytes = message(opcode::CREATE, 2, &[c.as_bytes(), b"name\0\0\0\0", ext.as_bytes()]);
        let (header, operation) = parse(NEW, &bytes).unwrap();
        assert_eq!(header.supplementary_group, Some(555));
        let want =
            Create { parent: 5, name: "name".into(), flags: 0o101, mode: 0o100644, umask: 0o22, kill_suidgid: false };
        assert_eq!(operation, Operation::Create(want));
        assert_eq!(parse(OLD, &bytes).unwrap().0.supplementary_group, None, "before 7.38 the field is padding");
        for size in [0u32, 7, 12, 24, u32::MAX] {
            let bad = message(opcode::CREATE, 2, &[c.as_bytes(), b"name\0\0\0\0", [size, 0, 0, 0].as_bytes()]);
            assert!(parse(NEW, &bad).is_err(), "extension of {size} bytes");
        }
    }

    #[test]
    fn a_batch_of_forgets_is_bounded_by_its_bytes() {
        let ones = [abi::ForgetOne { nodeid: 2, nlookup: 3 }, abi::ForgetOne { nodeid: 4, nlookup: 1 }];
        let head = |count| abi::BatchForgetIn { count, dummy: 0 };
        let got = operation(NEW, opcode::BATCH_FORGET, &[head(2).as_bytes(), ones.as_bytes()]);
        assert_eq!(got, Operation::Forget(vec![Forget { node: 2, lookups: 3 }, Forget { node: 4, lookups: 1 }]));
        let e =
            parse(NEW, &message(opcode::BATCH_FORGET, 0, &[head(u32::MAX).as_bytes(), ones.as_bytes()])).unwrap_err();
        assert_eq!(e.answer(), None, "nobody waits for an answer to a forget");
    }

    #[test]
    fn impossible_names_are_refused() {
        for name in [&b"\0"[..], b"a/b\0", b"unterminated", b""] {
            assert!(parse(NEW, &message(opcode::LOOKUP, 0, &[name])).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_unknown_operation_is_enosys() {
        assert_eq!(parse(NEW, &message(4000, 0, &[])).unwrap_err().answer(), Some((8, Errno::ENOSYS)));
    }

    #[test]
    fn a_wrong_length_answers_nobody() {
        let mut bytes = message(opcode::STATFS, 0, &[]).to_vec();
        bytes[0] += 1;
        assert_eq!(parse(NEW, &bytes.into()).unwrap_err(), ParseError::Header(40));
        assert_eq!(parse(NEW, &Bytes::new()).unwrap_err(), ParseError::Header(0));
    }

    /// Parsing never panics, whatever the bytes, and everything that was understood lies inside the message.
    #[test]
    fn random_messages_never_panic() {
        let mut p = Prng::new(7);
        let mut understood = 0;
        for _ in 0..200_000 {
            let opcode = if p.one_in(20) { p.next_u64() as u32 } else { *p.pick(opcode::ALL) };
            let mut body = vec![0u8; p.below(160) as usize];
            // Small numbers make plausible lengths; zeroes make names end.
            body.iter_mut().for_each(|b| *b = if p.one_in(3) { p.below(4) as u8 } else { p.next_u64() as u8 });
            let extlen = if p.one_in(4) { p.below(12) as u16 } else { 0 };
            let bytes = message(opcode, extlen, &[&body]);
            let dialect = Dialect { setxattr_ext: p.one_in(2), extensions: p.one_in(2) };
            if let Ok((_, op)) = parse(dialect, &bytes) {
                understood += 1;
                if let Operation::Write(w) = op {
                    assert!(bytes.as_ptr_range().contains(&w.data.as_ptr()) || w.data.is_empty());
                }
            }
            let raw: Vec<u8> = (0..p.below(100)).map(|_| p.next_u64() as u8).collect();
            let _ = parse(dialect, &raw.into());
        }
        assert!(understood > 50_000, "the generator is too wild to test anything: {understood}");
    }
}
