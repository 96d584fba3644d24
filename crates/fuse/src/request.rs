//! Requests of the kernel, one struct per operation. `parse` creates them from messages.

use bytes::Bytes;
use nacre_base::Timestamp;

macro_rules! requests {
    ($($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])* #[derive(Clone, Debug, PartialEq, Eq)] pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}

requests! {
    /// Finds a name. A successful answer gives the kernel one more lookup count on the inode, which [`Forget`] takes
    /// back.
    Lookup {
        /// The directory.
        parent: u64,
        /// The name; `.` and `..` too, for exports over NFS.
        name: Bytes,
    }
    /// The kernel gives up lookup counts.
    Forget {
        /// The inode.
        node: u64,
        /// How many counts.
        lookups: u64,
    }
    /// Reads attributes.
    GetAttr {
        /// The inode.
        node: u64,
        /// The open file that the caller used, if any.
        handle: Option<u64>,
    }
    /// Changes the attributes that are `Some`.
    SetAttr {
        /// The inode.
        node: u64,
        /// The open file that the caller used (ftruncate), if any.
        handle: Option<u64>,
        /// Permission bits, perhaps with the type.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Truncate or extend to this size in bytes.
        size: Option<u64>,
        /// Access time.
        atime: Option<SetTime>,
        /// Modification time.
        mtime: Option<SetTime>,
        /// Change time; only kernels with a write-back cache send it.
        ctime: Option<Timestamp>,
        /// Owner of mandatory locks that do not stop the operation; kept for completeness.
        lock_owner: Option<u64>,
        /// The truncation must clear set-uid and set-gid.
        kill_suidgid: bool,
    }
    /// Reads a symbolic link.
    ReadLink {
        /// The link.
        node: u64,
    }
    /// Creates a symbolic link.
    SymLink {
        /// The directory.
        parent: u64,
        /// The link's name.
        name: Bytes,
        /// The link's target.
        target: Bytes,
    }
    /// Creates a file, device, pipe or socket without opening it.
    MkNod {
        /// The directory.
        parent: u64,
        /// Its name.
        name: Bytes,
        /// Type and permissions, umask not applied.
        mode: u32,
        /// Device number, as the kernel encodes it for user space (32 bits).
        rdev: u32,
        /// The caller's umask.
        umask: u32,
    }
    /// Creates a directory.
    MkDir {
        /// The directory in which it is created.
        parent: u64,
        /// Its name.
        name: Bytes,
        /// Permissions, umask not applied.
        mode: u32,
        /// The caller's umask.
        umask: u32,
    }
    /// Removes a name that is not a directory's.
    Unlink {
        /// The directory.
        parent: u64,
        /// The name.
        name: Bytes,
    }
    /// Removes an empty directory.
    RmDir {
        /// The directory it is in.
        parent: u64,
        /// Its name.
        name: Bytes,
    }
    /// Moves a name.
    Rename {
        /// The directory of the old name.
        parent: u64,
        /// The old name.
        name: Bytes,
        /// The directory of the new name.
        new_parent: u64,
        /// The new name.
        new_name: Bytes,
        /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
        flags: u32,
    }
    /// Gives an inode another name.
    Link {
        /// The inode.
        node: u64,
        /// The directory of the new name.
        new_parent: u64,
        /// The new name.
        new_name: Bytes,
    }
    /// Opens a file, or a directory for [`ReadDir`].
    Open {
        /// The inode.
        node: u64,
        /// open(2)'s flags, without `O_CREAT`, `O_EXCL` and `O_NOCTTY`; the server has to do `O_TRUNC`.
        flags: u32,
        /// `O_TRUNC` must clear set-uid and set-gid.
        kill_suidgid: bool,
    }
    /// Creates a file and opens it. Without `O_EXCL` in `flags` the name may exist by now: open that file then.
    Create {
        /// The directory.
        parent: u64,
        /// The name.
        name: Bytes,
        /// open(2)'s flags.
        flags: u32,
        /// Type and permissions, umask not applied.
        mode: u32,
        /// The caller's umask.
        umask: u32,
        /// `O_TRUNC` must clear set-uid and set-gid.
        kill_suidgid: bool,
    }
    /// Creates and opens a file without a name (`O_TMPFILE`).
    TmpFile {
        /// The directory whose file system and defaults the file gets.
        parent: u64,
        /// open(2)'s flags.
        flags: u32,
        /// Type and permissions, umask not applied.
        mode: u32,
        /// The caller's umask.
        umask: u32,
    }
    /// Reads data.
    Read {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// First byte.
        offset: u64,
        /// Bytes wanted; fewer mean end of file.
        size: u32,
        /// The open file's flags now (`O_DIRECT`, `O_NONBLOCK`…).
        flags: u32,
        /// Owner of the POSIX locks that apply, if the kernel says.
        lock_owner: Option<u64>,
    }
    /// Writes data.
    Write {
        /// The inode.
        node: u64,
        /// The open file; a guess if `from_cache`.
        handle: u64,
        /// First byte. With `O_APPEND` in `flags` it is the kernel's belief of the end, which may be stale.
        offset: u64,
        /// The data, page aligned in memory.
        data: Bytes,
        /// The open file's flags now (`O_APPEND`, `O_DIRECT`, `O_SYNC`…).
        flags: u32,
        /// Owner of the POSIX locks that apply, if the kernel says.
        lock_owner: Option<u64>,
        /// True if the data comes from the page cache (a shared mapping), so uid, gid and pid are not the writer's.
        from_cache: bool,
        /// Set-uid and set-gid must be cleared.
        kill_suidgid: bool,
    }
    /// Requests the file system's size and use.
    StatFs {
        /// An inode in it.
        node: u64,
    }
    /// The last close of an open file or directory. The close(2) itself does not wait for the answer.
    Release {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Flags of the open file.
        flags: u32,
        /// Owner for `unlock_flock` and POSIX locks.
        lock_owner: u64,
        /// True to write out first.
        flush: bool,
        /// True if the flock of `lock_owner` ends with this.
        unlock_flock: bool,
    }
    /// Each close(2): last chance to report a write error; the owner's POSIX locks end.
    Flush {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Owner whose POSIX locks end.
        lock_owner: u64,
    }
    /// Makes a file, or a directory, durable.
    FSync {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// fdatasync: attributes that are not needed to read the data may wait.
        data_only: bool,
    }
    /// Makes the whole file system durable (only kernels that trust the server send it).
    SyncFs {
        /// An inode in it.
        node: u64,
    }
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        node: u64,
        /// Its name.
        name: Bytes,
        /// Its value.
        value: Bytes,
        /// `XATTR_CREATE`, `XATTR_REPLACE`.
        flags: u32,
        /// Setting this ACL must clear set-gid.
        kill_sgid: bool,
    }
    /// Reads an extended attribute.
    GetXattr {
        /// The inode.
        node: u64,
        /// Its name.
        name: Bytes,
        /// Room for the value; 0 asks for its length.
        size: u32,
    }
    /// Lists extended attributes.
    ListXattr {
        /// The inode.
        node: u64,
        /// Room for the list; 0 asks for its length.
        size: u32,
    }
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        node: u64,
        /// Its name.
        name: Bytes,
    }
    /// Reads directory entries, with attributes as `readdirplus`.
    ReadDir {
        /// The directory.
        node: u64,
        /// The open directory.
        handle: u64,
        /// Offset to go on at: 0, or the offset given with the last entry read.
        offset: u64,
        /// Room in bytes.
        size: u32,
    }
    /// Finds a conflicting lock.
    GetLock {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Lock owner.
        owner: u64,
        /// The lock that the owner would take.
        lock: FileLock,
        /// Kind of lock, by fcntl(2) or flock(2).
        space: LockSpace,
    }
    /// Takes, changes or releases a lock.
    SetLock {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Lock owner.
        owner: u64,
        /// The lock, or the range to unlock.
        lock: FileLock,
        /// Kind of lock, by fcntl(2) or flock(2).
        space: LockSpace,
        /// True to wait while there is a conflict, until interrupted.
        wait: bool,
    }
    /// access(2) and chdir(2): checks whether the caller may access the inode.
    Access {
        /// The inode.
        node: u64,
        /// `R_OK`, `W_OK`, `X_OK`; 0 is `F_OK`.
        mask: u32,
    }
    /// ioctl(2) with a number that tells direction and size of its argument.
    Ioctl {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// The ioctl's number.
        command: u32,
        /// The argument as passed.
        argument: u64,
        /// Bytes that the argument points to.
        data: Bytes,
        /// Room for the answer in bytes.
        out_size: u32,
        /// True if `handle` is that of an open directory.
        on_directory: bool,
    }
    /// poll(2).
    Poll {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Events asked for.
        events: u32,
    }
    /// fallocate(2).
    Fallocate {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// `FALLOC_FL_…`.
        mode: u32,
    }
    /// `SEEK_DATA` or `SEEK_HOLE`.
    LSeek {
        /// The inode.
        node: u64,
        /// The open file.
        handle: u64,
        /// Where to begin.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    }
    /// copy_file_range(2).
    CopyFileRange {
        /// The source inode.
        node: u64,
        /// The open source.
        handle: u64,
        /// First byte to copy.
        offset: u64,
        /// The destination inode.
        node_out: u64,
        /// The open destination.
        handle_out: u64,
        /// Offset for the first byte in the destination.
        offset_out: u64,
        /// Bytes.
        length: u64,
    }
    /// statx(2), sent when a field is wanted that [`GetAttr`] does not have.
    StatX {
        /// The inode.
        node: u64,
        /// The open file that the caller used, if any.
        handle: Option<u64>,
        /// `AT_STATX_…`.
        flags: u32,
        /// `STATX_…`: the wanted fields.
        mask: u32,
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's time of the operation.
    Now,
    /// This time.
    At(Timestamp),
}

/// fcntl(2) and flock(2) locks live side by side and never conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockSpace {
    /// fcntl(2), owned by a process (or an open file description), by byte range.
    Posix,
    /// flock(2), owned by an open file description, on the whole file.
    Flock,
}

/// Kind of a file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive,
    /// `F_UNLCK`, `LOCK_UN`.
    Unlock,
}

/// A file lock, requested or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` is to the end of the file.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// Process of the lock, for `F_GETLK`.
    pub pid: u32,
}

/// An operation and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is documented at its struct")]
pub enum Operation {
    Lookup(Lookup),
    Forget(Vec<Forget>),
    GetAttr(GetAttr),
    SetAttr(SetAttr),
    ReadLink(ReadLink),
    SymLink(SymLink),
    MkNod(MkNod),
    MkDir(MkDir),
    Unlink(Unlink),
    RmDir(RmDir),
    Rename(Rename),
    Link(Link),
    Open(Open),
    Create(Create),
    TmpFile(TmpFile),
    Read(Read),
    Write(Write),
    StatFs(StatFs),
    Release(Release),
    Flush(Flush),
    FSync(FSync),
    SyncFs(SyncFs),
    SetXattr(SetXattr),
    GetXattr(GetXattr),
    ListXattr(ListXattr),
    RemoveXattr(RemoveXattr),
    OpenDir(Open),
    ReadDir(ReadDir),
    ReadDirPlus(ReadDir),
    ReleaseDir(Release),
    FSyncDir(FSync),
    GetLock(GetLock),
    SetLock(SetLock),
    Access(Access),
    Ioctl(Ioctl),
    Poll(Poll),
    Fallocate(Fallocate),
    LSeek(LSeek),
    CopyFileRange(CopyFileRange),
    CopyFileRange64(CopyFileRange),
    StatX(StatX),
    /// The kernel gave up waiting for this request, because its process got a signal.
    Interrupt(u64),
    /// The file system is being unmounted.
    Destroy,
}
