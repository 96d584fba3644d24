//! Messages of the lock manager.

use nacre_base::Fid;

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
    /// Take back this client's request that waits for exactly this (kind, resource, mode, range, owner); its enqueue
    /// fails with EINTR. The reply's mode is NL if one waited, else the mode asked for: it was granted before.
    pub const WITHDRAW: u32 = 0x2;
}

message! {
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
    }

    /// LDLM_CANCEL.
    pub struct Cancel {
        /// The locks to give back; unknown ones are no error.
        pub handles: Vec<u64>,
    }
}
