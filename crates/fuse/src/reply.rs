//! Replies. Each request comes with a reply object of the type that its operation needs; answering consumes it. A reply
//! object that is dropped without an answer is a bug of the handler: it logs an error and sends EIO, so that no process
//! hangs.
//!
//! This module only encodes; a [`Sink`] carries the bytes to the kernel.

use crate::abi;
use crate::request::{FileLock, LockKind};
use crate::sink::Sink;
use crate::undo::Undo;
use nacre_base::{Errno, Payload, Timestamp};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Most pieces of one vectored write (Linux `IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Attributes of an inode, as stat(2) shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The inode number shown to programs; may differ from the kernel's node.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device, as the kernel encodes it for user space.
    pub rdev: u32,
    /// Best IO size in bytes.
    pub blksize: u32,
}

/// The inode that a name leads to. The kernel may use it for the validity times without asking again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Node of the inode; 0 means that there is no such name, which the kernel may remember for `entry_valid`.
    pub node: u64,
    /// Together with `node` unique for the life of the file system.
    pub generation: u64,
    /// How long the name may be believed.
    pub entry_valid: Duration,
    /// How long the attributes may be believed.
    pub attr_valid: Duration,
    /// The attributes.
    pub attr: Attr,
}

/// How the kernel treats an open file; a set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// None: reads and writes go through the page cache, which is emptied at open.
    pub const NONE: OpenFlags = OpenFlags(0);
    /// Every read and write is sent to this process, around the page cache.
    pub const DIRECT_IO: OpenFlags = OpenFlags(1 << 0);
    /// Keep the file's pages in the page cache, because they are still valid.
    pub const KEEP_CACHE: OpenFlags = OpenFlags(1 << 1);
    /// No seeking.
    pub const NONSEEKABLE: OpenFlags = OpenFlags(1 << 2);
    /// The kernel may cache the directory's entries.
    pub const CACHE_DIR: OpenFlags = OpenFlags(1 << 3);
    /// Like a pipe: no position at all.
    pub const STREAM: OpenFlags = OpenFlags(1 << 4);
    /// No FLUSH at close, unless there are dirty pages (Linux 5.16).
    pub const NOFLUSH: OpenFlags = OpenFlags(1 << 5);
    /// Direct writes of one file need not wait for each other (Linux 6.2).
    pub const PARALLEL_DIRECT_WRITES: OpenFlags = OpenFlags(1 << 6);

    /// True if all flags of `other` are set.
    pub fn contains(self, other: OpenFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for OpenFlags {
    type Output = OpenFlags;
    fn bitor(self, other: OpenFlags) -> OpenFlags {
        OpenFlags(self.0 | other.0)
    }
}

/// An open file, for the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Handle that every request through this open file carries.
    pub handle: u64,
    /// How the kernel treats it.
    pub flags: OpenFlags,
}

/// statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size, in units of `frsize`.
    pub blocks: u64,
    /// Free.
    pub bfree: u64,
    /// Free to ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Best IO size in bytes.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Unit of the block counts in bytes.
    pub frsize: u32,
}

/// The answer to a request, which must be sent exactly once.
pub(crate) struct Raw {
    sink: Arc<dyn Sink>,
    unique: u64,
    opcode: u32,
    answered: bool,
    /// Set for a reply that gives the kernel a lookup or an open file.
    undo: Option<Undo>,
}

impl Raw {
    pub(crate) fn new(sink: Arc<dyn Sink>, unique: u64, opcode: u32) -> Raw {
        Raw { sink, unique, opcode, answered: false, undo: None }
    }

    /// Sets what to do if the kernel does not take the reply.
    pub(crate) fn with_undo(mut self, undo: Undo) -> Raw {
        self.undo = Some(undo);
        self
    }

    fn ok(self, body: &[u8]) {
        self.give(&[body]);
    }

    pub(crate) fn error(mut self, errno: Errno) {
        self.answer_error(errno);
    }

    /// The kernel accepts 1 to 511; another number would leave the request waiting for ever.
    /// Returns whether the kernel took the answer.
    fn answer_error(&mut self, errno: Errno) -> bool {
        let errno = if (1..512).contains(&errno.0) { errno } else { Errno::EIO };
        self.answered = true;
        let header = self.header(-errno.0, 0);
        self.finish(&[IoSlice::new(header.as_bytes())])
    }

    /// Sends a reply. Returns what to undo if the kernel did not take it.
    fn give(mut self, body: &[&[u8]]) -> Option<Undo> {
        self.answered = true;
        let header = self.header(0, body.iter().map(|b| b.len()).sum());
        let mut parts = [IoSlice::new(&[]); 4];
        parts[0] = IoSlice::new(header.as_bytes());
        for (part, bytes) in parts[1..].iter_mut().zip(body) {
            *part = IoSlice::new(bytes);
        }
        let taken = self.finish(&parts[..=body.len()]);
        self.undo.take().filter(|_| !taken)
    }

    /// Sends the pieces to the kernel from where they lie, without copying.
    fn send_payload(mut self, payload: &Payload) {
        if payload.pieces().len() >= PIECES_MAX {
            return self.ok(&payload.to_bytes());
        }
        self.answered = true;
        let header = self.header(0, payload.len());
        let mut parts = Vec::with_capacity(payload.pieces().len() + 1);
        parts.push(IoSlice::new(header.as_bytes()));
        parts.extend(payload.pieces().iter().map(|p| IoSlice::new(p)));
        self.finish(&parts);
    }

    fn header(&self, error: i32, body: usize) -> abi::OutHeader {
        let len = u32::try_from(size_of::<abi::OutHeader>() + body).unwrap_or(u32::MAX);
        abi::OutHeader { len, error, unique: self.unique }
    }

    /// Sends the parts. Returns whether the kernel took them.
    fn finish(&self, parts: &[IoSlice<'_>]) -> bool {
        let Err(e) = self.sink.send(parts) else { return true };
        let operation = abi::opcode::name(self.opcode);
        match e.raw_os_error() {
            // A signal ended the call, or the file system is unmounted: no caller waits for the reply.
            Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED) => {
                tracing::debug!(operation, unique = self.unique, "reply not wanted any more: {e}");
            }
            _ => tracing::error!(operation, unique = self.unique, "the kernel refused a reply: {e}"),
        }
        false
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A request that had not begun when its caller left is dropped without a reply, and the kernel no longer knows it.
        if !self.answered && self.answer_error(Errno::EIO) {
            tracing::error!(
                operation = abi::opcode::name(self.opcode),
                unique = self.unique,
                "request dropped without a reply, sent EIO"
            );
        }
    }
}

/// Answers a request that could not be parsed.
pub(crate) fn refuse(sink: &Arc<dyn Sink>, unique: u64, errno: Errno) {
    Raw::new(sink.clone(), unique, 0).error(errno);
}

macro_rules! replies {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* })*) => {
        $(
            $(#[$meta])*
            #[must_use = "a request must be answered"]
            pub struct $name { raw: Raw, $($field: $type),* }

            impl $name {
                pub(crate) fn new(raw: Raw, $($field: $type),*) -> $name {
                    $name { raw, $($field),* }
                }

                /// Fails the request.
                pub fn error(self, errno: Errno) {
                    self.raw.error(errno);
                }
            }
        )*
    };
}

replies! {
    /// For operations that only succeed or fail.
    ReplyEmpty {}
    /// For operations that find or create a name.
    ReplyEntry {}
    /// For operations that answer with attributes.
    ReplyAttr {}
    /// For statx.
    ReplyStatX {}
    /// For open and opendir.
    ReplyOpen {}
    /// For create and tmpfile: both an entry and an open file.
    ReplyCreate {}
    /// For read.
    ReplyData { size: u32 }
    /// For readlink.
    ReplyLink {}
    /// For write.
    ReplyWrite {}
    /// For statfs.
    ReplyStatFs {}
    /// For getxattr and listxattr.
    ReplyXattr { size: u32 }
    /// For getlk.
    ReplyLock {}
    /// For lseek.
    ReplyLSeek {}
    /// For ioctl.
    ReplyIoctl { out_size: u32 }
    /// For poll.
    ReplyPoll {}
    /// For copy_file_range.
    ReplyCopied { width: CopiedWidth }
    /// For readdir: a listing of names, filled until it is full.
    ReplyDirectory { list: Listing }
    /// For readdirplus: a listing of names with attributes.
    ReplyDirectoryPlus { list: Listing }
}

/// The two forms in which the kernel takes the count of copied bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopiedWidth {
    Bits32,
    Bits64,
}

impl ReplyEmpty {
    /// The operation succeeded.
    pub fn ok(self) {
        self.raw.ok(&[]);
    }

    /// Sends the answer for a result.
    pub fn result(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.ok(),
            Err(e) => self.error(e),
        }
    }
}

impl ReplyEntry {
    /// The name leads to this inode, of which the kernel now holds one more lookup count.
    pub fn ok(self, entry: &Entry) {
        if let Some(undo) = self.raw.give(&[encode_entry(entry).as_bytes()]) {
            undo.lookup(entry.node);
        }
    }

    /// There is no such name, which the kernel may believe for `valid`.
    pub fn absent(self, valid: Duration) {
        self.ok(&Entry { entry_valid: valid, ..Entry::default() });
    }
}

impl ReplyAttr {
    /// The attributes, which the kernel may believe for `valid`.
    pub fn ok(self, attr: &Attr, valid: Duration) {
        let out = abi::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: encode_attr(attr),
        };
        self.raw.ok(out.as_bytes());
    }
}

impl ReplyStatX {
    /// The attributes and the time of creation if known; the kernel may believe them for `valid`.
    pub fn ok(self, attr: &Attr, btime: Option<Timestamp>, valid: Duration) {
        let mut out = abi::StatxOut::new_zeroed();
        out.attr_valid = valid.as_secs();
        out.attr_valid_nsec = valid.subsec_nanos();
        out.stat = abi::Statx {
            mask: libc::STATX_BASIC_STATS | if btime.is_some() { libc::STATX_BTIME } else { 0 },
            blksize: attr.blksize,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            // The kernel's field has 16 bits, which hold every type and permission.
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: encode_time(attr.atime),
            btime: encode_time(btime.unwrap_or_default()),
            ctime: encode_time(attr.ctime),
            mtime: encode_time(attr.mtime),
            rdev_major: libc::major(u64::from(attr.rdev)),
            rdev_minor: libc::minor(u64::from(attr.rdev)),
            ..Default::default()
        };
        self.raw.ok(out.as_bytes());
    }
}

impl ReplyOpen {
    /// The file is open.
    pub fn ok(self, opened: Opened) {
        if let Some(undo) = self.raw.give(&[encode_opened(opened).as_bytes()]) {
            undo.open(None, opened.handle);
        }
    }
}

impl ReplyCreate {
    /// The file exists and is open. The kernel now holds one more lookup count of the inode.
    pub fn ok(self, entry: &Entry, opened: Opened) {
        let given = self.raw.give(&[encode_entry(entry).as_bytes(), encode_opened(opened).as_bytes()]);
        if let Some(undo) = given {
            undo.open(Some(entry.node), opened.handle);
            undo.lookup(entry.node);
        }
    }
}

impl ReplyData {
    /// Sends the data; fewer bytes than requested mean end of file. Bytes beyond the requested ones are not sent.
    pub fn ok(self, mut data: Payload) {
        data.truncate(self.size as usize);
        self.raw.send_payload(&data);
    }
}

impl ReplyLink {
    /// The target of the link.
    pub fn ok(self, target: &[u8]) {
        self.raw.ok(target);
    }
}

impl ReplyWrite {
    /// The number of bytes taken.
    pub fn ok(self, written: u32) {
        self.raw.ok(abi::WriteOut { size: written, padding: 0 }.as_bytes());
    }
}

impl ReplyStatFs {
    /// Size and use.
    pub fn ok(self, s: &StatFs) {
        let out = abi::StatfsOut {
            blocks: s.blocks,
            bfree: s.bfree,
            bavail: s.bavail,
            files: s.files,
            ffree: s.ffree,
            bsize: s.bsize,
            namelen: s.namelen,
            frsize: s.frsize,
            ..Default::default()
        };
        self.raw.ok(out.as_bytes());
    }
}

impl ReplyXattr {
    /// Sends the value or list: itself if there is room, its length if that was requested, else ERANGE.
    pub fn ok(self, value: &[u8]) {
        match self.size as usize {
            0 => self.length(value.len()),
            room if value.len() > room => self.error(Errno::ERANGE),
            _ => self.raw.ok(value),
        }
    }

    fn length(self, len: usize) {
        match u32::try_from(len) {
            Ok(size) => self.raw.ok(abi::GetxattrOut { size, padding: 0 }.as_bytes()),
            Err(_) => self.error(Errno::E2BIG),
        }
    }
}

impl ReplyLock {
    /// The conflicting lock, or one of kind [`LockKind::Unlock`].
    pub fn ok(self, lock: &FileLock) {
        let kind = match lock.kind {
            LockKind::Shared => libc::F_RDLCK,
            LockKind::Exclusive => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        let out = abi::FileLock { start: lock.start, end: lock.end, kind: kind as u32, pid: lock.pid };
        self.raw.ok(out.as_bytes());
    }
}

impl ReplyLSeek {
    /// The offset found.
    pub fn ok(self, offset: u64) {
        self.raw.ok(abi::LseekOut { offset }.as_bytes());
    }
}

impl ReplyIoctl {
    /// ioctl(2)'s result, and the bytes for its argument.
    pub fn ok(self, result: i32, data: &[u8]) {
        let out = abi::IoctlOut { result, ..Default::default() };
        let data = &data[..data.len().min(self.out_size as usize)];
        self.raw.give(&[out.as_bytes(), data]);
    }
}

impl ReplyPoll {
    /// Events that hold now.
    pub fn ok(self, revents: u32) {
        self.raw.ok(abi::PollOut { revents, padding: 0 }.as_bytes());
    }
}

impl ReplyCopied {
    /// The number of bytes copied.
    pub fn ok(self, bytes: u64) {
        match self.width {
            CopiedWidth::Bits64 => self.raw.ok(abi::CopyFileRangeOut { bytes_copied: bytes }.as_bytes()),
            CopiedWidth::Bits32 => {
                let size = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.raw.ok(abi::WriteOut { size, padding: 0 }.as_bytes());
            }
        }
    }
}

/// One name of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The inode number shown to programs.
    pub ino: u64,
    /// Offset at which a later readdir goes on after this entry; not 0.
    pub next_offset: u64,
    /// Type, as in a mode.
    pub mode: u32,
    /// The name.
    pub name: &'a [u8],
}

impl ReplyDirectory {
    /// Appends an entry; false if there is no room for it.
    #[must_use]
    pub fn add(&mut self, entry: &DirEntry<'_>) -> bool {
        self.list.add(&[], entry)
    }

    /// Sends the entries added; none mean the end of the directory.
    pub fn ok(self) {
        self.raw.ok(&self.list.bytes);
    }
}

impl ReplyDirectoryPlus {
    /// Appends an entry with attributes; false if there is no room for it. If `found.node` is not 0, the kernel will hold
    /// one more lookup count of the inode: leave it 0 for `.` and `..`.
    #[must_use]
    pub fn add(&mut self, found: &Entry, entry: &DirEntry<'_>) -> bool {
        self.list.add(encode_entry(found).as_bytes(), entry)
    }

    /// Sends the entries added; none mean the end of the directory.
    pub fn ok(self) {
        self.raw.ok(&self.list.bytes);
    }
}

/// Entries of a listing, encoded, up to `room` bytes.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// Most bytes of one listing: the kernel asks for less, but its number must not decide about an allocation.
    const ROOM_MAX: usize = 1 << 20;

    pub(crate) fn new(room: u32) -> Listing {
        let room = (room as usize).min(Self::ROOM_MAX);
        Listing { bytes: Vec::with_capacity(room.min(1 << 14)), room }
    }

    fn add(&mut self, head: &[u8], entry: &DirEntry<'_>) -> bool {
        let len = (head.len() + size_of::<abi::Dirent>() + entry.name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return false;
        }
        let dirent = abi::Dirent {
            ino: entry.ino,
            off: entry.next_offset,
            namelen: entry.name.len() as u32, // it fits into `room`, so into 32 bits
            kind: (entry.mode & libc::S_IFMT) >> 12,
        };
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }
}

fn encode_time(t: Timestamp) -> abi::StatxTime {
    abi::StatxTime { secs: t.secs, nanos: t.nanos, reserved: 0 }
}

fn encode_attr(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.secs as u64,
        mtime: a.mtime.secs as u64,
        ctime: a.ctime.secs as u64,
        atimensec: a.atime.nanos,
        mtimensec: a.mtime.nanos,
        ctimensec: a.ctime.nanos,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

fn encode_entry(e: &Entry) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: e.node,
        generation: e.generation,
        entry_valid: e.entry_valid.as_secs(),
        attr_valid: e.attr_valid.as_secs(),
        entry_valid_nsec: e.entry_valid.subsec_nanos(),
        attr_valid_nsec: e.attr_valid.subsec_nanos(),
        attr: encode_attr(&e.attr),
    }
}

fn encode_opened(o: Opened) -> abi::OpenOut {
    abi::OpenOut { fh: o.handle, open_flags: o.flags.0, backing_id: 0 }
}

/// A sink that keeps its messages, for tests.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Captured(pub(crate) parking_lot::Mutex<Vec<bytes::Bytes>>);

#[cfg(test)]
impl Sink for Captured {
    fn send(&self, parts: &[IoSlice<'_>]) -> std::io::Result<()> {
        self.0.lock().push(parts.iter().flat_map(|p| p.iter().copied()).collect());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// The bytes that `answer` sends.
    fn sent(answer: impl FnOnce(Raw)) -> Vec<u8> {
        let sink = Arc::new(Captured::default());
        answer(Raw::new(sink.clone(), 6, abi::opcode::LOOKUP));
        let sent = sink.0.lock();
        assert_eq!(sent.len(), 1, "one request, one reply");
        sent[0].to_vec()
    }

    fn error_of(bytes: &[u8]) -> i32 {
        i32::from_ne_bytes(bytes[4..8].try_into().unwrap())
    }

    #[test]
    fn success_and_failure_as_the_kernel_reads_them() {
        assert_eq!(sent(|r| ReplyEmpty::new(r).ok()), [16, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        let bytes = sent(|r| ReplyEmpty::new(r).error(Errno::ENOENT));
        assert_eq!(bytes, [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 6, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_dropped_reply_is_eio() {
        assert_eq!(error_of(&sent(|r| drop(ReplyEntry::new(r)))), -libc::EIO);
    }

    #[test]
    fn an_error_the_kernel_would_not_take_is_eio() {
        for n in [0, -2, 512, i32::MIN] {
            assert_eq!(error_of(&sent(|r| ReplyEmpty::new(r).error(Errno(n)))), -libc::EIO, "{n}");
        }
    }

    #[test]
    fn an_entry_carries_its_validity() {
        let entry = Entry {
            node: 9,
            entry_valid: Duration::from_millis(1500),
            attr_valid: Duration::from_secs(2),
            attr: Attr { ino: 77, mode: 0o100644, ..Attr::default() },
            ..Entry::default()
        };
        let bytes = sent(|r| ReplyEntry::new(r).ok(&entry));
        assert_eq!(bytes.len(), 16 + 128);
        assert_eq!(bytes[16..24], 9u64.to_ne_bytes());
        assert_eq!(bytes[32..40], 1u64.to_ne_bytes());
        assert_eq!(bytes[40..48], 2u64.to_ne_bytes());
        assert_eq!(bytes[48..52], 500_000_000u32.to_ne_bytes());
        assert_eq!(bytes[56..64], 77u64.to_ne_bytes());
    }

    #[test]
    fn data_beyond_what_was_asked_for_is_not_sent() {
        let mut payload = Payload::from(Bytes::from_static(b"hello "));
        payload.push(Bytes::from_static(b"world"));
        let bytes = sent(|r| ReplyData::new(r, 8).ok(payload));
        assert_eq!(&bytes[16..], b"hello wo");
        assert_eq!(bytes[0], 24);
    }

    #[test]
    fn a_payload_of_very_many_pieces_still_fits_one_write() {
        let mut payload = Payload::new();
        (0..3000).for_each(|_| payload.push(Bytes::from_static(b"ab")));
        assert_eq!(sent(|r| ReplyData::new(r, 6000).ok(payload)).len(), 16 + 6000);
    }

    #[test]
    fn an_xattr_is_measured_given_or_too_long() {
        assert_eq!(sent(|r| ReplyXattr::new(r, 0).ok(b"value"))[16..20], 5u32.to_ne_bytes());
        assert_eq!(&sent(|r| ReplyXattr::new(r, 5).ok(b"value"))[16..], b"value");
        assert_eq!(error_of(&sent(|r| ReplyXattr::new(r, 4).ok(b"value"))), -libc::ERANGE);
    }

    #[test]
    fn a_listing_ends_where_its_room_ends() {
        let bytes = sent(|r| {
            let mut reply = ReplyDirectory::new(r, Listing::new(70));
            let entry = |n| DirEntry { ino: n, next_offset: n, mode: 0o040755, name: b"dir" };
            assert!(reply.add(&entry(1)) && reply.add(&entry(2)));
            assert!(!reply.add(&entry(3)), "3 entries of 32 bytes do not fit 70");
            reply.ok();
        });
        assert_eq!(bytes.len(), 16 + 64);
        assert_eq!(bytes[16 + 20], 4, "DT_DIR");
        assert_eq!(&bytes[16 + 24..16 + 32], b"dir\0\0\0\0\0");
    }
}
