//! The messages of the kernel's FUSE interface that these tests receive and send, as they lie in memory. Layouts and
//! numbers are those of `include/uapi/linux/fuse.h`. They are written down apart from the product's, so that the tests
//! need nothing of it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
            // The size in the kernel: a misplaced field does not build.
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

layouts! {
    InHeader = 40 { len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, padding: u32, }
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, times: [u64; 3], nanoseconds: [u32; 3], mode: u32, nlink: u32, uid: u32,
        gid: u32, rdev: u32, block_size: u32, flags: u32,
    }
    EntryOut = 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanoseconds: u32,
        attr_valid_nanoseconds: u32, attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nanoseconds: u32, padding: u32, attr: Attr, }
    /// The beginning, as far as the size.
    SetattrIn = 24 { valid: u32, padding: u32, handle: u64, size: u64, }
    OpenOut = 16 { handle: u64, open_flags: u32, backing: i32, }
    /// Of READ, READDIR and READDIRPLUS, and also of WRITE, whose data follow.
    TransferIn = 40 { handle: u64, offset: u64, size: u32, flags: u32, lock_owner: u64, file_flags: u32, padding: u32, }
    WriteOut = 8 { size: u32, padding: u32, }
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_granularity: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    NotifyInvalInode = 24 { node: u64, offset: i64, len: i64, }
    NotifyInvalEntry = 16 { parent: u64, name_len: u32, flags: u32, }
}

/// Codes of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const READDIRPLUS: u32 = 44;
}

/// Flags of INIT. Bits 32 and up travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bit of `SetattrIn::valid`: the size is set.
pub(crate) const SETS_SIZE: u32 = 1 << 3;

pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
