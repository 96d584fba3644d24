//! Messages of the object service.

use crate::attr::ObjectAttr;
use crate::ldlm::EnqueueReply;
use nacre_base::{Fid, Timestamp};

/// Modes of fallocate(2), as Linux numbers them.
pub mod fallocate_mode {
    /// The size stays.
    pub const KEEP_SIZE: u32 = 0x1;
    /// Make a hole; with KEEP_SIZE.
    pub const PUNCH_HOLE: u32 = 0x2;
    /// Make zeros.
    pub const ZERO_RANGE: u32 = 0x10;
}

/// Data up to this many bytes travels inline, in the request or the reply.
pub const INLINE_MAX: usize = 16 << 10;
/// Largest read or write RPC that can be negotiated.
pub const BRW_SIZE_MAX: u32 = 64 << 20;
/// Read or write RPC size unless negotiated otherwise.
pub const BRW_SIZE_DEFAULT: u32 = 4 << 20;
/// Most extents in one read or write.
pub const EXTENTS_MAX: usize = 256;
/// Most objects in one [`Glimpse`].
pub const GLIMPSES_MAX: usize = 256;
/// Most extents in one [`FiemapReply`].
pub const FIEMAP_MAX: usize = 512;
/// [`crate::connect::ConnectData::checksum_types`]: CRC32C (Castagnoli).
pub const CHECKSUM_CRC32C: u32 = 0x4;

/// Bits of [`Niobuf::flags`].
pub mod niobuf_flags {
    /// The client keeps the data until it is committed: the server may reply before.
    pub const ASYNC: u32 = 0x1;
    /// The space was granted.
    pub const FROM_GRANT: u32 = 0x8;
}

message! {
    MESSAGES;
    /// An extent to read or write (a "network I/O buffer"). Data of all extents follow one another in the bulk.
    pub struct Niobuf {
        /// First byte in the object.
        pub offset: u64,
        /// Bytes.
        pub len: u32,
        /// Bits of [`niobuf_flags`].
        pub flags: u32,
    }

    /// The client's view of its grant, told with every write.
    pub struct GrantReport {
        /// Dirty bytes it caches.
        pub dirty: u64,
        /// Grant it wants in total.
        pub undirty: u64,
        /// Grant it holds.
        pub grant: u64,
        /// Grant it lost since its last report.
        pub dropped: u64,
    }

    /// OST_WRITE. The data is inline or in the bulk that the header names.
    pub struct Write {
        /// The object.
        pub fid: Fid,
        /// The file it belongs to, for the back pointer.
        pub parent: Fid,
        /// Which stripe of the file it is.
        pub stripe_index: u32,
        /// Version of the layout the client used: an older one than the object has seen is refused with ESTALE.
        pub layout_version: u32,
        /// Owner of new space, for quota.
        pub uid: u32,
        /// As `uid`.
        pub gid: u32,
        /// The client's time: becomes mtime and ctime.
        pub now: Timestamp,
        /// Where, in ascending order, not overlapping.
        pub extents: Vec<Niobuf>,
        /// The client's grant.
        pub grant: GrantReport,
        /// CRC32C over the data, if negotiated.
        pub checksum: Option<u32>,
        /// The client's extent lock that covers all of it; 0 lets the server take one while it writes.
        pub lock: u64,
        /// What mtime becomes instead, if a program set it after it wrote; `now` is when.
        pub mtime: Option<Timestamp>,
    }

    /// Reply to a write, punch, fallocate or setattr.
    pub struct WriteReply {
        /// The object afterwards.
        pub attr: ObjectAttr,
        /// Grant added, in bytes.
        pub grant: u64,
        /// Clients are in each other's way at this object.
        pub contended: bool,
    }

    /// OST_READ.
    pub struct Read {
        /// The object.
        pub fid: Fid,
        /// What to read, in ascending order.
        pub extents: Vec<Niobuf>,
        /// Whether a checksum is wanted.
        pub checksum: bool,
        /// As in [`Write`].
        pub lock: u64,
    }

    /// Reply to a read; the data, all extents' bytes one after another, is inline or in the bulk.
    pub struct ReadReply {
        /// The object.
        pub attr: ObjectAttr,
        /// Bytes of each extent; fewer than asked only at the end of the object.
        pub lens: Vec<u32>,
        /// CRC32C over the data, if wanted.
        pub checksum: Option<u32>,
        /// Clients are in each other's way at this object.
        pub contended: bool,
    }

    /// OST_GETATTR: the glimpse of an object's size and times.
    pub struct Getattr {
        /// The object.
        pub fid: Fid,
    }

    /// OST_GLIMPSE: what the sender expects to be asked for soon, at most [`GLIMPSES_MAX`] objects. Calls no lock back and
    /// asks no holder.
    pub struct Glimpse {
        /// The objects.
        pub fids: Vec<Fid>,
    }

    /// Reply to a glimpse of several objects.
    pub struct GlimpseReply {
        /// For each object, in their order, a lock (PR) on all of it and its attributes; none if others hold locks that are in the
        /// way, or it is not there.
        pub objects: Vec<Option<EnqueueReply>>,
    }

    /// OST_SETATTR: owner and times.
    pub struct Setattr {
        /// The object.
        pub fid: Fid,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Access time.
        pub atime: Option<Timestamp>,
        /// Modification time.
        pub mtime: Option<Timestamp>,
        /// The client's time.
        pub now: Timestamp,
    }

    /// OST_PUNCH: sets the size to `start` if `end` is `u64::MAX` (truncate), else makes a hole and keeps the size.
    pub struct Punch {
        /// The object.
        pub fid: Fid,
        /// The file it belongs to.
        pub parent: Fid,
        /// Which stripe of the file it is.
        pub stripe_index: u32,
        /// As in [`Write`].
        pub layout_version: u32,
        /// First byte.
        pub start: u64,
        /// First byte after, or `u64::MAX`.
        pub end: u64,
        /// The client's time.
        pub now: Timestamp,
        /// As in [`Write`].
        pub lock: u64,
    }

    /// OST_FALLOCATE.
    pub struct Fallocate {
        /// The object.
        pub fid: Fid,
        /// As in [`Write`].
        pub layout_version: u32,
        /// First byte.
        pub start: u64,
        /// First byte after.
        pub end: u64,
        /// [`fallocate_mode`]'s KEEP_SIZE and ZERO_RANGE.
        pub mode: u32,
        /// The client's time.
        pub now: Timestamp,
        /// As in [`Write`].
        pub lock: u64,
    }

    /// OST_SEEK.
    pub struct Seek {
        /// The object.
        pub fid: Fid,
        /// From here.
        pub offset: u64,
        /// Whether a hole is wanted, not data.
        pub hole: bool,
        /// The lock that covers from there to the end; 0: the server is to take one.
        pub lock: u64,
    }

    /// Where it is; none if there is none at or after the offset.
    pub struct SeekReply {
        /// The offset.
        pub offset: Option<u64>,
    }

    /// OST_FIEMAP. What clients have not written back yet has no space.
    pub struct Fiemap {
        /// The object.
        pub fid: Fid,
        /// From here.
        pub offset: u64,
    }

    /// The extents of an object that end after an offset, at most [`FIEMAP_MAX`], in their order.
    pub struct FiemapReply {
        /// The extents.
        pub extents: Vec<FiemapExtent>,
        /// Where to go on; none if there are no more.
        pub next: Option<u64>,
    }

    /// A run of an object that has space in one run of the disk.
    pub struct FiemapExtent {
        /// First byte in the object.
        pub offset: u64,
        /// First byte on the disk, unless `flags` say that it is unknown.
        pub physical: u64,
        /// Bytes.
        pub len: u64,
        /// As Linux numbers them (`FIEMAP_EXTENT_...`).
        pub flags: u32,
    }

    /// OST_SYNC: what was written before is durable when the reply comes.
    pub struct Sync {
        /// The object; zero for the whole target.
        pub fid: Fid,
    }

    /// OST_CREATE: the MDT asks for objects to hand out later. The reply's range was never handed out before.
    pub struct Create {
        /// How many more.
        pub count: u32,
        /// In the first request since the MDT was started: the last object that a file has. Objects above it in its sequence,
        /// and those of later sequences of the target, are orphans and are destroyed. Zero if the MDT knows of no object in
        /// use: as it may be a new MDT, only objects that were never written to are destroyed then, as they are if the
        /// sequence is none of the target's.
        pub delete_orphans_after: Option<Fid>,
    }

    /// Objects `first .. first + count` of `seq` exist.
    pub struct CreateReply {
        /// Their sequence.
        pub seq: u64,
        /// The first.
        pub first: u32,
        /// How many; fewer than asked if the target is short of space, or of ids in the sequence.
        pub count: u32,
        /// The sequence that the target used up before this one; zero if this is its first.
        pub former_seq: u64,
    }

    /// OST_DESTROY. What does not exist is no error.
    pub struct Destroy {
        /// The objects.
        pub fids: Vec<Fid>,
    }

}
