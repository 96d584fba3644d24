//! Messages of the metadata service.

use crate::attr::{Attr, Credentials, SetAttr, file_flags};
use crate::codec::{Field, Reader, WireError};
use crate::layout::{Layout, LayoutSpec};
use crate::ldlm::InodeLock;
use bytes::Bytes;
use nacre_base::{Fid, Timestamp};

/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Longest value of an extended attribute.
pub const XATTR_SIZE_MAX: usize = 65536;
/// Longest name of an extended attribute.
pub const XATTR_NAME_MAX: usize = 255;
/// Most bytes of entries in one readdir reply.
pub const READPAGE_MAX: u32 = 768 << 10;

/// Bits of [`Open::flags`]: open(2)'s flags, as Linux on x86-64 numbers them.
pub mod open_flags {
    /// Mask of the access mode.
    pub const O_ACCMODE: u32 = 0o3;
    /// Reading only.
    pub const O_RDONLY: u32 = 0o0;
    /// Writing only.
    pub const O_WRONLY: u32 = 0o1;
    /// Reading and writing.
    pub const O_RDWR: u32 = 0o2;
    /// For execution (the kernel's own flag).
    pub const FMODE_EXEC: u32 = 0o40;
    /// Make the file if it is not there.
    pub const O_CREAT: u32 = 0o100;
    /// With O_CREAT: it must not be there.
    pub const O_EXCL: u32 = 0o200;
    /// Cut it to nothing.
    pub const O_TRUNC: u32 = 0o1000;
    /// Write at the end.
    pub const O_APPEND: u32 = 0o2000;
    /// A write returns when its data is durable.
    pub const O_DSYNC: u32 = 0o10000;
    /// Data goes around the client's cache.
    pub const O_DIRECT: u32 = 0o40_000;
    /// Part of liblustreapi's O_LOV_DELAY_CREATE, the one that reaches a server: do not make objects yet.
    pub const FASYNC: u32 = 0o20_000;
    /// It must be a directory.
    pub const O_DIRECTORY: u32 = 0o200_000;
    /// Reading does not change the access time.
    pub const O_NOATIME: u32 = 0o1_000_000;
    /// With O_DSYNC, O_SYNC: a write returns when the inode is durable too.
    pub const O_SYNC_INODE: u32 = 0o4_000_000;
    /// A file without a name (with O_DIRECTORY).
    pub const O_TMPFILE: u32 = 0o20_000_000;
    /// No flag of open(2): O_TRUNC takes set-id bits away, root's too, who has not CAP_FSETID.
    pub const KILL_SET_ID: u32 = 1 << 30;
}

message! {
    MESSAGES;
    /// MDS_GETATTR: attributes by FID.
    pub struct Getattr {
        /// Who asks.
        pub cred: Credentials,
        /// Which file.
        pub fid: Fid,
        /// What the asker must be allowed, else EACCES: read 4, write 2, execute 1, as access(2) has it; 0 for nothing.
        pub access: u32,
        /// Bits of [`crate::ldlm::inode_bits`] to be locked on this occasion, if nothing is in the way; 0 for no lock.
        pub want: u64,
    }

    /// MDS_GETATTR_NAME: lookup.
    pub struct GetattrName {
        /// Who asks.
        pub cred: Credentials,
        /// The directory.
        pub parent: Fid,
        /// The name in it; `.` and `..` work.
        pub name: Bytes,
        /// Bits wanted on what the name leads to, as in [`Getattr`].
        pub want: u64,
        /// Bits wanted on the directory.
        pub want_parent: u64,
        /// Names further down, to be looked up one after the other as far as they lead through directories; `.` and `..` do
        /// not count among them.
        pub below: Vec<Bytes>,
        /// If the last name leads to a directory: the bytes of entries that the asker would take of it and of the directories
        /// below, because requests for them are likely to follow; 0 for none.
        pub ahead: u32,
    }

    /// Attributes, and the layout if it is a regular file that has one.
    pub struct AttrReply {
        /// The MDT's view.
        pub attr: Attr,
        /// Where the data is.
        pub layout: Option<Layout>,
        /// The lock that was wanted, if it could be had at once.
        pub lock: Option<InodeLock>,
    }

    /// What a name leads to.
    pub struct LookupReply {
        /// None: there is no such name. Only said to who wants a lock on the directory; others get ENOENT.
        pub found: Option<AttrReply>,
        /// The lock wanted on the directory.
        pub parent_lock: Option<InodeLock>,
        /// Where the names further down lead, in their order. It ends early after a name that does not exist or leads to no
        /// directory, and before one that the asker may not look up.
        pub below: Vec<NameBelow>,
        /// Directories whose entries come ahead, with attributes and locks: first the one that was looked up, then those below
        /// it. Each page begins at the directory's first entry.
        pub pages: Vec<DirectoryPage>,
    }

    /// What a name further down leads to.
    pub struct NameBelow {
        /// None: there is no such name.
        pub found: Option<AttrReply>,
        /// The lock wanted on the directory in which it was looked up.
        pub parent_lock: Option<InodeLock>,
    }

    /// The first entries of a directory, or all.
    pub struct DirectoryPage {
        /// The directory.
        pub fid: Fid,
        /// Its entries.
        pub page: ReadpageReply,
    }

    /// MDS_OPEN: opens by name below `parent`, or `parent` itself if the name is empty.
    pub struct Open {
        /// Who asks.
        pub cred: Credentials,
        /// The directory, or the file if `name` is empty.
        pub parent: Fid,
        /// The name, empty to open by FID.
        pub name: Bytes,
        /// FID for the file if it is created, from the client's sequence.
        pub child: Fid,
        /// Flags of open(2), as Linux on x86-64 numbers them.
        pub flags: u32,
        /// Mode of a new file, type bits not needed.
        pub mode: u32,
        /// The process's umask.
        pub umask: u32,
        /// Layout of a new file; the directory's default if none.
        pub layout: Option<LayoutSpec>,
        /// The client's time.
        pub now: Timestamp,
        /// Bits wanted on the file, as in [`Getattr`].
        pub want: u64,
        /// The handle that the client knows already, in a recovery or for what was open under a lock only; 0 for a new one.
        /// With one only `parent` and `flags` count, nothing is checked but that the inode is there, and who says it twice has
        /// opened it once. Of what the MDT has not heard of the client chooses the number, with the highest bit set, which
        /// those of the MDT do not have.
        pub handle: u64,
    }

    /// What became of an open.
    pub struct OpenReply {
        /// Whether the file was created by this request.
        pub created: bool,
        /// The MDT's view.
        pub attr: Attr,
        /// Where the data is; none for what is no regular file.
        pub layout: Option<Layout>,
        /// The open handle, for close and for operations on an unlinked file.
        pub handle: u64,
        /// The lock that was wanted, if it could be had at once.
        pub lock: Option<InodeLock>,
    }

    /// MDS_CLOSE.
    pub struct Close {
        /// Which file.
        pub fid: Fid,
        /// The handle from open; 0 if the file was open under a lock of its inode and the MDT was not told.
        pub handle: u64,
        /// Size and blocks as the client last knew them, if it wrote: hints for `find` (lazy size on MDT).
        pub size_blocks: Option<(u64, u64)>,
        /// Access time, if the client read.
        pub atime: Option<Timestamp>,
        /// True if the access time is stored however recent the stored one is (strictatime).
        pub atime_is_strict: bool,
    }

    /// MDS_READPAGE: entries of a directory from a cookie on.
    pub struct Readpage {
        /// Who asks.
        pub cred: Credentials,
        /// The directory.
        pub fid: Fid,
        /// 0 to begin, else the cookie of the last entry seen.
        pub cookie: u64,
        /// Most bytes of reply body wanted.
        pub max_bytes: u32,
        /// Whether attributes and layouts are wanted too.
        pub with_attr: bool,
        /// Bits wanted on each entry's inode (with attributes), as in [`Getattr`].
        pub want: u64,
        /// Bits wanted on the directory.
        pub want_parent: u64,
    }

    /// An entry of a directory.
    pub struct DirEntry {
        /// The name.
        pub name: Bytes,
        /// What it names.
        pub fid: Fid,
        /// Type bits of the mode.
        pub file_type: u32,
        /// Where to go on after this entry: grows with each entry, positive as a signed number.
        pub cookie: u64,
        /// Attributes, if asked for.
        pub attr: Option<AttrReply>,
    }

    /// Entries in cookie order, `.` and `..` first.
    pub struct ReadpageReply {
        /// The entries.
        pub entries: Vec<DirEntry>,
        /// Whether there are no more.
        pub end: bool,
        /// The lock wanted on the directory.
        pub parent_lock: Option<InodeLock>,
    }

    /// MDS_GETXATTR: one value, or with an empty name the names, each ended by a NUL.
    pub struct Getxattr {
        /// Who asks.
        pub cred: Credentials,
        /// Which file.
        pub fid: Fid,
        /// Which attribute.
        pub name: String,
    }

    /// A value or list of names.
    pub struct XattrReply {
        /// The bytes.
        pub value: Bytes,
    }

    /// MDS_SYNC: everything changed before is durable when the reply comes.
    pub struct Sync {
        /// Which file; zero for all.
        pub fid: Fid,
    }

    /// MDS_FID2PATH.
    pub struct Fid2path {
        /// Who asks.
        pub cred: Credentials,
        /// Which file.
        pub fid: Fid,
    }

    /// Paths from the root without a leading slash, one for each hard link.
    pub struct Fid2pathReply {
        /// The paths; empty text is the root itself.
        pub paths: Vec<Bytes>,
    }

    /// MDS_GET_ROOT's reply.
    pub struct RootReply {
        /// The root directory.
        pub root: Fid,
    }
}

message! {
    CHANGES;
    /// Changes attributes. A size is for permission, set-id bits and times here; the client then punches the objects.
    pub struct ReintSetattr {
        /// Which file.
        pub fid: Fid,
        /// What to set.
        pub set: SetAttr,
        /// An open handle, which makes `size` need no write permission (ftruncate); 0 for none.
        pub handle: u64,
    }

    /// Makes a directory, symbolic link, device, socket, FIFO or a regular file without objects.
    pub struct ReintCreate {
        /// The directory.
        pub parent: Fid,
        /// The name.
        pub name: Bytes,
        /// The new FID, from the client's sequence.
        pub child: Fid,
        /// Type and permission bits.
        pub mode: u32,
        /// The process's umask.
        pub umask: u32,
        /// Device number.
        pub rdev: u64,
        /// Target of a symbolic link.
        pub target: Bytes,
        /// MDT for a directory; `u32::MAX` for the parent's.
        pub mdt_index: u32,
    }

    /// Makes a hard link.
    pub struct ReintLink {
        /// The file.
        pub fid: Fid,
        /// The directory of the new name.
        pub parent: Fid,
        /// The new name.
        pub name: Bytes,
    }

    /// Removes a name.
    pub struct ReintUnlink {
        /// The directory.
        pub parent: Fid,
        /// The name.
        pub name: Bytes,
        /// Whether it must be a directory (rmdir) or must not be one (unlink).
        pub directory: bool,
    }

    /// Renames.
    pub struct ReintRename {
        /// Directory of the old name.
        pub old_parent: Fid,
        /// The old name.
        pub old_name: Bytes,
        /// Directory of the new name.
        pub new_parent: Fid,
        /// The new name.
        pub new_name: Bytes,
        /// RENAME_NOREPLACE 1, RENAME_EXCHANGE 2.
        pub flags: u32,
    }

    /// Sets or removes an extended attribute.
    pub struct ReintSetxattr {
        /// Which file.
        pub fid: Fid,
        /// Which attribute.
        pub name: String,
        /// The value; none removes it.
        pub value: Option<Bytes>,
        /// XATTR_CREATE 1, XATTR_REPLACE 2.
        pub flags: u32,
    }

    /// Sets the layout of a file that has none, or the default layout of a directory (none takes it away), or makes the
    /// objects for a range of a file.
    pub struct ReintSetLayout {
        /// Which file or directory.
        pub fid: Fid,
        /// What is wanted.
        pub spec: Option<LayoutSpec>,
        /// First byte of the file that is going to be written.
        pub start: u64,
        /// First byte after; 0 if none is.
        pub end: u64,
    }
}

message! {
    CHANGE_REPLIES;
    /// Reply to a rename. Both are none if the two names were of one inode, and nothing happened.
    pub struct RenameReply {
        /// What was renamed, as it is now.
        pub moved: Option<Attr>,
        /// What had the new name before, if something did: replaced, or in an exchange moved too.
        pub replaced: Option<Attr>,
    }
}

/// A change of the namespace, in one record so that replay needs one entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReintRecord {
    /// See [`ReintSetattr`].
    Setattr(ReintSetattr),
    /// See [`ReintCreate`].
    Create(ReintCreate),
    /// See [`ReintLink`].
    Link(ReintLink),
    /// See [`ReintUnlink`].
    Unlink(ReintUnlink),
    /// See [`ReintRename`].
    Rename(ReintRename),
    /// See [`ReintSetxattr`].
    Setxattr(ReintSetxattr),
    /// See [`ReintSetLayout`].
    SetLayout(ReintSetLayout),
}

impl Field for ReintRecord {
    const MIN_SIZE: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            ReintRecord::Setattr(r) => (1u8.put(out), r.put(out)),
            ReintRecord::Create(r) => (2u8.put(out), r.put(out)),
            ReintRecord::Link(r) => (3u8.put(out), r.put(out)),
            ReintRecord::Unlink(r) => (4u8.put(out), r.put(out)),
            ReintRecord::Rename(r) => (5u8.put(out), r.put(out)),
            ReintRecord::Setxattr(r) => (7u8.put(out), r.put(out)),
            ReintRecord::SetLayout(r) => (11u8.put(out), r.put(out)),
        };
    }

    fn take(from: &mut Reader) -> Result<ReintRecord, WireError> {
        Ok(match u8::take(from)? {
            1 => ReintRecord::Setattr(Field::take(from)?),
            2 => ReintRecord::Create(Field::take(from)?),
            3 => ReintRecord::Link(Field::take(from)?),
            4 => ReintRecord::Unlink(Field::take(from)?),
            5 => ReintRecord::Rename(Field::take(from)?),
            7 => ReintRecord::Setxattr(Field::take(from)?),
            11 => ReintRecord::SetLayout(Field::take(from)?),
            v => return Err(WireError::BadValue { what: "a reint operation", value: v.into() }),
        })
    }
}

/// MDS_REINT: who, when, what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reint {
    /// Who asks.
    pub cred: Credentials,
    /// The client's time, for the inode's times.
    pub now: Timestamp,
    /// Bits wanted on the inode whose attributes are in the reply, as in [`Getattr`].
    pub want: u64,
    /// What to do.
    pub record: ReintRecord,
}

impl Field for Reint {
    const MIN_SIZE: usize = Credentials::MIN_SIZE + Timestamp::MIN_SIZE + 8 + ReintRecord::MIN_SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        self.cred.put(out);
        self.now.put(out);
        self.want.put(out);
        self.record.put(out);
    }

    fn take(from: &mut Reader) -> Result<Reint, WireError> {
        Ok(Reint {
            cred: Field::take(from)?,
            now: Field::take(from)?,
            want: Field::take(from)?,
            record: Field::take(from)?,
        })
    }
}

/// Age in seconds that an access time may reach although nothing changed, as relatime has it: a day.
const ATIME_AGE_MAX_SECS: i64 = 24 * 60 * 60;

impl Close {
    /// The access time that the file gets by this close, if it gets a new one. By relatime an access counts if the file changed
    /// since the one before, or if that was a day ago. `old` is the stored access time, `changed` the later one of mtime and
    /// ctime, `flags` the file's. The MDT and clients that answer from their locks go by this rule.
    pub fn new_atime(&self, old: Timestamp, changed: Timestamp, flags: u32) -> Option<Timestamp> {
        let counts =
            |atime: Timestamp| self.atime_is_strict || old <= changed || atime.secs - old.secs >= ATIME_AGE_MAX_SECS;
        self.atime.filter(|atime| flags & file_flags::NOATIME == 0 && *atime > old && counts(*atime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_accesses_are_stored() {
        const DAY: i64 = 24 * 60 * 60;
        let at = |secs| Timestamp { secs, nanos: 0 };
        let new = |(old, changed): (i64, i64), atime: i64, strict, flags| {
            let close = Close { atime: Some(at(atime)), atime_is_strict: strict, ..Close::default() };
            close.new_atime(at(old), at(changed), flags)
        };
        assert_eq!(new((10, 10), 11, false, 0), Some(at(11)), "the file changed since the last access");
        assert_eq!(new((10, 9), 11, false, 0), None);
        assert_eq!(new((10, 9), 10 + DAY, false, 0), Some(at(10 + DAY)), "a day has gone by");
        assert_eq!(new((10, 9), 11, true, 0), Some(at(11)), "strictatime");
        assert_eq!(new((10, 20), 9, true, 0), None, "another client read it later");
        assert_eq!(new((10, 20), 30, true, file_flags::NOATIME), None);
        assert_eq!(Close::default().new_atime(at(0), at(9), 0), None, "nobody read it");
    }
}
