//! The kernel's FUSE interface, 7.31 to 7.45, as it lies in memory: structures, opcodes, flags. Layouts and numbers are
//! those of `include/uapi/linux/fuse.h`; the names drop its prefixes. No behaviour: `request` gives these bytes a
//! meaning on the way in, `reply` on the way out.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version, unchanged since 2006.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose additions are known here.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version served: Linux 5.4.
pub(crate) const MINOR_MIN: u32 = 31;

macro_rules! abi {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
            // The size in the kernel: a misplaced field does not build.
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

abi! {
    /// Before every request. `total_extlen` counts 8-byte units, and is padding before 7.38.
    InHeader = 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16, }
    /// Before every reply; a notification has `unique` 0 and its code in `error`.
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    StatxTime = 16 { secs: i64, nanos: u32, reserved: i32, }
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    ForgetIn = 8 { nlookup: u64, }
    ForgetOne = 16 { nodeid: u64, nlookup: u64, }
    BatchForgetIn = 8 { count: u32, dummy: u32, }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn = 8 { mode: u32, umask: u32, }
    RenameIn = 8 { newdir: u64, }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn = 8 { oldnodeid: u64, }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    OpenIn = 8 { flags: u32, open_flags: u32, }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteOut = 8 { size: u32, padding: u32, }
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// Form without [`init::SETXATTR_EXT`].
    SetxattrInShort = 8 { size: u32, flags: u32, }
    GetxattrIn = 8 { size: u32, padding: u32, }
    GetxattrOut = 8 { size: u32, padding: u32, }
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32, }
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    AccessIn = 8 { mask: u32, padding: u32, }
    /// Part that every kernel sends; with [`init::INIT_EXT`] `flags2` and reserved words follow.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    InterruptIn = 8 { unique: u64, }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32, }
    PollOut = 8 { revents: u32, padding: u32, }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut = 8 { offset: u64, }
    CopyFileRangeIn = 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    CopyFileRangeOut = 8 { bytes_copied: u64, }
    /// The name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    ExtHeader = 8 { size: u32, kind: u32, }
    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64, }
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32, }
}

/// Opcodes under the kernel's names, less `FUSE_`.
macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        $(pub(crate) const $name: u32 = $value;)*

        /// The kernel's name of an opcode, for logs.
        pub(crate) fn name(opcode: u32) -> &'static str {
            match opcode { $($value => stringify!($name),)* _ => "UNKNOWN" }
        }
        /// All known opcodes, for the tests that walk them.
        #[cfg(test)]
        pub(crate) const ALL: &[u32] = &[$($value),*];
    };
}

pub(crate) mod opcode {
    opcodes! {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
        RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
        SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27,
        READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35,
        INTERRUPT = 36, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42,
        FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51,
        STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
}

/// INIT flags. Bits 32 and up travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bits of `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

pub(crate) const GETATTR_FH: u32 = 1 << 0;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const LK_FLOCK: u32 = 1 << 0;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub(crate) const IOCTL_DIR: u32 = 1 << 4;
pub(crate) const EXT_GROUPS: u32 = 32;

pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;

/// `_IOR(229, 0, u32)`: makes an open /dev/fuse a further channel of a mounted one.
pub(crate) const DEV_IOC_CLONE: u64 = 0x8004_e500;

/// Bytes of a message before the data of a WRITE.
pub(crate) const WRITE_HEADERS: usize = size_of::<InHeader>() + size_of::<WriteIn>();
