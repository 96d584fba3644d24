//! Connecting an import to a target: what both sides can do is negotiated by bits. The client asks for features, the
//! server answers with a subset; a field counts only if its bit is set in the answer.

use nacre_base::Uuid;

/// Feature bits of [`ConnectData::flags`].
pub mod connect_flags {
    /// The grant field counts.
    pub const GRANT: u64 = 0x8;
    /// The server takes locks for the length of a read or write.
    pub const SERVER_LOCK: u64 = 0x10;
    /// The brw_size field counts.
    pub const BRW_SIZE: u64 = 0x40000;
    /// The checksum_types field counts.
    pub const CHECKSUM: u64 = 0x20_0000;
    /// Version-based recovery.
    pub const VERSION_RECOVERY: u64 = 0x100_0000;
    /// Data up to 16 KiB travels in the request or the reply.
    pub const SHORT_IO: u64 = 0x40_0000_0000;
    /// Layouts with several stripes on one OST are understood.
    pub const OVERSTRIPING: u64 = 0x1000_0000_0000;
    /// The max_modify_rpcs field counts.
    pub const MULTI_MODIFY_RPCS: u64 = 0x2000_0000_0000;
    /// fcntl and flock locks are kept by the MDT.
    pub const FLOCK: u64 = 0x4000_0000_0000;
    /// The credits fields of the header count (congestion control).
    pub const CREDITS: u64 = 0x8000_0000_0000;
    /// The connecting peer is a server (the MDT's connections to OSTs): no grant, no eviction for silence.
    pub const MDS: u64 = 0x1_0000_0000_0000;
    /// The server remembers its clients over a restart, and waits for their replays.
    pub const RECOVERY: u64 = 0x2_0000_0000_0000;
}

message! {
    MESSAGES;
    /// What is negotiated.
    pub struct ConnectData {
        /// Bits of [`connect_flags`].
        pub flags: u64,
        /// Further bits, none defined yet.
        pub flags2: u64,
        /// Software version, major to patch in bytes; only told, never compared.
        pub version: u32,
        /// Grant in bytes (GRANT).
        pub grant: u64,
        /// Largest read or write RPC in bytes (BRW_SIZE).
        pub brw_size: u32,
        /// Bits of the checksum kinds supported (CHECKSUM).
        pub checksum_types: u32,
        /// Modify RPCs a client may have in flight (MULTI_MODIFY_RPCS).
        pub max_modify_rpcs: u16,
        /// The target's index.
        pub index: u32,
        /// How often the target has been started: tells a restart from a reconnect.
        pub instance: u64,
        /// The largest object in bytes.
        pub max_bytes: u64,
    }

    /// Body of a connect request.
    pub struct ConnectRequest {
        /// Who connects: one mount, or one target.
        pub client: Uuid,
        /// Name for people: host and mount, or the target's name.
        pub client_name: String,
        /// Which target, e.g. `nacre-OST0000`.
        pub target: String,
        /// The export cookie of the connection before, 0 if none.
        pub previous_export: u64,
        /// What the client can do and wants.
        pub data: ConnectData,
    }

    /// Body of a connect reply. The header carries the export cookie and RECONNECT or RECOVERING.
    pub struct ConnectReply {
        /// What will be.
        pub data: ConnectData,
        /// The target's storage: another one under the same name is not the same target.
        pub target_uuid: Uuid,
    }
}
