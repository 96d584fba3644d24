//! Messages of the lock manager.

use crate::attr::ObjectAttr;
use nacre_base::{Fid, Uuid};

wire_enum! {
    /// Kind of lock, numbered as in Lustre.
    #[derive(Default)]
    pub enum LockKind: u8 {
        /// A byte range of an OST object.
        #[default]
        Extent = 11,
        /// An fcntl or flock lock of a file, kept by the MDT.
        Flock = 12,
        /// Parts of an inode.
        Inodebits = 13,
    }
}

wire_enum! {
    /// Lock mode, numbered as in Lustre.
    #[derive(Default)]
    pub enum LockMode: u32 {
        /// Exclusive.
        Ex = 1,
        /// Protected write.
        Pw = 2,
        /// Protected read.
        Pr = 4,
        /// Concurrent write.
        Cw = 8,
        /// Concurrent read.
        Cr = 16,
        /// Null: for flock, unlock.
        #[default]
        Nl = 32,
        /// Group.
        Group = 64,
    }
}

/// Bits of [`Enqueue::flags`].
pub mod enqueue_flags {
    /// Answer EAGAIN instead of waiting.
    pub const BLOCK_NOWAIT: u32 = 0x40000;
    /// Do not lock: tell what conflicts (F_GETLK).
    pub const TEST_LOCK: u32 = 0x1000;
    /// The flock is of flock(2), which is apart from fcntl's locks.
    pub const FLOCK_BSD: u32 = 0x1;
    /// Take back this client's request that waits for exactly this (kind, resource, mode, range, owner, and the handle of
    /// a flock); its enqueue fails with EINTR. The reply's mode is NL if one waited, else the mode asked for: it was granted before.
    pub const WITHDRAW: u32 = 0x2;
    /// The size is wanted (a glimpse): grant the lock if nothing is in its way, else ask the holders what they know and
    /// answer with attributes and mode NL. Never calls a lock back.
    pub const GLIMPSE: u32 = 0x4;
    /// Grant exactly what is asked for (sets asked for ahead, `lfs ladvise -a lockahead` and `locknoexpand`).
    pub const NO_EXPANSION: u32 = 0x8;
    /// Answer EAGAIN instead of waiting for a group lock or a group's request, which may take for ever. Other locks in the
    /// way are called back and waited for.
    pub const GROUP_NOWAIT: u32 = 0x10;
    /// The client has this lock, extent or flock, from a target that was started anew: it is to have it again, an extent lock
    /// exactly as it is and under the same handle. Only in a recovery.
    pub const REPLAY: u32 = 0x20;
    /// The request need not wait behind others that wait for a lock of the same client on the same object: the client cannot
    /// give that lock back before it has this one. Ignored if nobody waits for such a lock. Granted exactly as asked for.
    pub const AHEAD: u32 = 0x80;
}

/// Bits of [`EnqueueReply::flags`].
pub mod reply_flags {
    /// Clients are in each other's way at this object: ask for no more than you use.
    pub const CONTENDED: u32 = 0x1;
    /// Somebody waits for this lock already: use it once and give it back.
    pub const CALLED_BACK: u32 = 0x2;
}

/// What of an inode a lock covers, numbered as in Lustre.
pub mod inode_bits {
    /// That the inode exists under the names it has: what a lookup found.
    pub const LOOKUP: u64 = 0x1;
    /// Attributes but for those of PERM; of a directory, its entries.
    pub const UPDATE: u64 = 0x2;
    /// The layout.
    pub const LAYOUT: u64 = 0x8;
    /// Mode, owner, group and access control list.
    pub const PERM: u64 = 0x10;
    /// Extended attributes.
    pub const XATTR: u64 = 0x20;
    /// All of them.
    pub const ALL: u64 = LOOKUP | UPDATE | LAYOUT | PERM | XATTR;
}

/// Most ranges in one enqueue, with the first.
pub const RANGES_MAX: usize = 1024;

message! {
    MESSAGES;
    /// LDLM_ENQUEUE. The reply comes when the lock is granted; early replies keep the request alive.
    pub struct Enqueue {
        /// Kind.
        pub kind: LockKind,
        /// The object or file.
        pub resource: Fid,
        /// Mode.
        pub mode: LockMode,
        /// First byte.
        pub start: u64,
        /// Last byte, inclusive; `u64::MAX` is the end of file.
        pub end: u64,
        /// Flock: the owner within the client (the kernel's lock owner).
        pub owner: u64,
        /// Flock: the process, for F_GETLK.
        pub pid: u32,
        /// Bits of [`enqueue_flags`].
        pub flags: u32,
        /// Extent: further ranges, in ascending order behind the first, not touching: one lock on exactly all of them.
        pub more: Vec<LockRange>,
        /// Extent with mode GROUP: which group.
        pub group: u64,
        /// Locks of the same target given back on this occasion (early cancel).
        pub cancels: Vec<u64>,
        /// With REPLAY, of an extent lock: its handle. Flock: number that the client gave to the call, so that WITHDRAW names
        /// one of several calls for the same lock.
        pub handle: u64,
    }

    /// A byte range, both ends inclusive.
    pub struct LockRange {
        /// First byte.
        pub start: u64,
        /// Last byte; `u64::MAX` is the end of file.
        pub end: u64,
    }

    /// A lock on parts of an inode, mode PR, granted on the occasion of a metadata request. A client has at most one per
    /// inode: the same handle again means that the bits are those of before and these together.
    pub struct InodeLock {
        /// Names it.
        pub handle: u64,
        /// Bits of [`inode_bits`].
        pub bits: u64,
    }

    /// Reply to an enqueue. For TEST_LOCK: the first lock in the way, with mode NL if there is none.
    pub struct EnqueueReply {
        /// Names the lock in a cancel; 0 for flock.
        pub handle: u64,
        /// Mode granted, or of the lock in the way.
        pub mode: LockMode,
        /// First byte.
        pub start: u64,
        /// Last byte.
        pub end: u64,
        /// Process that holds the lock in the way.
        pub pid: u32,
        /// Bits of [`reply_flags`].
        pub flags: u32,
        /// Extent: the object, as the server and the asked holders know it (the lock's value block).
        pub attr: Option<ObjectAttr>,
    }

    /// LDLM_CANCEL.
    pub struct Cancel {
        /// The locks to give back; unknown ones are no error.
        pub handles: Vec<u64>,
    }

    /// LDLM_CONVERT: an inode lock keeps only some of its bits.
    pub struct Convert {
        /// Which lock.
        pub handle: u64,
        /// Bits it keeps, of [`inode_bits`].
        pub bits: u64,
    }

    /// LDLM_BL_CALLBACK, server to client: somebody waits for this lock. The client answers at once, and cancels (or
    /// converts) as soon as it has finished what it does under the lock and written what is dirty. ENOENT: it does not
    /// have the lock, nor a request under way that may bring it.
    pub struct BlockingCallback {
        /// The lock.
        pub handle: u64,
        /// What it is on.
        pub resource: Fid,
        /// Mode that is waited for.
        pub mode: LockMode,
        /// Extent: first byte waited for.
        pub start: u64,
        /// Extent: last byte waited for.
        pub end: u64,
        /// Inode lock: bits waited for; a lock with others may keep those.
        pub bits: u64,
    }

    /// LDLM_GL_CALLBACK, server to client: what do you know of the object you hold this lock on? ENOENT if it holds it not.
    pub struct GlimpseCallback {
        /// The lock.
        pub handle: u64,
        /// The object.
        pub resource: Fid,
    }

    /// LDLM_SET_INFO, server to client: what the header of every reply says of the room for locks, for a client that asks for
    /// nothing and so gets no reply.
    pub struct LockVolume {
        /// The server lock volume.
        pub volume: u64,
        /// Locks that all clients together should hold at most.
        pub limit: u32,
    }

    /// Size and times with what is not written yet.
    pub struct GlimpseReply {
        /// The object as this client sees it.
        pub attr: ObjectAttr,
        /// The client gives the lock back now, because it has not used it for some time.
        pub gives_back: bool,
    }
}

/// The target that a client serves for callbacks about its locks.
pub fn callback_target(client: Uuid) -> String {
    format!("{client}-ldlm")
}
