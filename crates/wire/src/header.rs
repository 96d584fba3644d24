//! The header of every RPC, request and reply. Fixed size, complete from the first version: fields that nothing sets
//! yet are zero.

use crate::codec::{Field, Reader, WireError, put_len};
use crate::opcode::Opcode;
use bytes::Bytes;

wire_enum! {
    /// What a message is.
    pub enum RpcKind: u8 {
        /// A request.
        Request = 1,
        /// The reply.
        Reply = 2,
        /// "Not finished, wait longer": extends the request's deadline (adaptive timeouts).
        EarlyReply = 3,
    }
}

wire_enum! {
    /// A lane (portal) with workers of its own, so that what unblocks others never queues behind what is blocked.
    pub enum Lane: u8 {
        /// Metadata and other short requests.
        Request = 0,
        /// Bulk reads and writes.
        Io = 1,
        /// Lock callbacks, server to client.
        Callback = 2,
        /// Lock cancels.
        Cancel = 3,
        /// Connect, disconnect, ping: never queued behind anything.
        Control = 4,
    }
}

impl Lane {
    /// All lanes.
    pub const ALL: [Lane; 5] = [Lane::Request, Lane::Io, Lane::Callback, Lane::Cancel, Lane::Control];
}

/// Bits of [`RpcHeader::flags`].
pub mod flags {
    /// The same request was sent before; its reply may be lost.
    pub const RESENT: u32 = 0x2;
    /// The request was answered before a crash of the server and is done again.
    pub const REPLAY: u32 = 0x4;
    /// Serve before ordinary requests: others wait for it.
    pub const HIGH_PRIORITY: u32 = 0x8;
    /// The sender keeps the data until it is committed.
    pub const ASYNC: u32 = 0x10;
    /// The last replayed request was sent.
    pub const REQ_REPLAY_DONE: u32 = 0x40;
    /// The last replayed lock was sent.
    pub const LOCK_REPLAY_DONE: u32 = 0x80;
    /// Connect reply: the server is in recovery.
    pub const RECOVERING: u32 = 0x100;
    /// Connect reply: the server still knew this export.
    pub const RECONNECT: u32 = 0x200;
    /// The message's inline data follows the body (short I/O).
    pub const INLINE: u32 = 0x400;
    /// Reply: the request was not executed, because it would have waited for longer than its client does. The client sends it anew after
    /// `window_wait_us`.
    pub const COME_AGAIN: u32 = 0x800;
    /// Reply: the request's data did not get through, and nothing was executed or changed. The client sends the request again, under its
    /// number.
    pub const SEND_AGAIN: u32 = 0x1000;
}

message! {
    HEADERS;
    /// The fields of the header after magic, version and kind.
    pub struct RpcHeader {
        /// Which lane it travels on ([`Lane`] as a number).
        pub lane: u8,
        /// Modify-RPC slot; 0 for none.
        pub tag: u16,
        /// The operation ([`Opcode`] as a number: an unknown one is answered, not dropped).
        pub opcode: u32,
        /// Bits of [`flags`].
        pub flags: u32,
        /// The request's number; the reply repeats it.
        pub xid: u64,
        /// All replies to requests on this lane, up to this xid, have been seen: the server may forget them.
        pub last_xid: u64,
        /// Reply: number of the change made, 0 if none. Replay: the number it had.
        pub transno: u64,
        /// Reply: changes of this client up to here are durable. Replay: the transno of the client's replay before it, 0 for
        /// the first, so that the server knows whether one is missing.
        pub last_committed: u64,
        /// The export's cookie, from the connect reply; 0 in a connect.
        pub export: u64,
        /// How often this import has connected: older connections' requests are refused.
        pub connection_count: u32,
        /// Reply: 0 or a negated errno.
        pub status: i32,
        /// Request: how long the client will wait, in ms. Early reply: how much longer to wait. Reply: service estimate.
        pub timeout_ms: u32,
        /// Reply: how long the service took, in microseconds.
        pub service_time_us: u32,
        /// Reply: how long the request queued, in microseconds.
        pub queue_time_us: u32,
        /// Reply: how long the request waited for locks that others hold, in microseconds.
        pub lock_time_us: u32,
        /// Reply: how long its data took to come or to go.
        pub transfer_time_us: u32,
        /// Reply: how long the storage device took.
        pub device_time_us: u32,
        /// Reply: how long it took until the change was durable, if the reply waited for that.
        pub commit_time_us: u32,
        /// Time that the request spent inside routers on its way to the server, in microseconds. Who receives a request sets this by what
        /// the network says; the reply repeats it.
        pub router_time_us: u32,
        /// Request: how long it waited at the client for a modify slot. Accounted, and nothing depends on it.
        pub client_wait_us: u32,
        /// Request: how long it waited at the client for room in the window. As `client_wait_us`. Reply with [`flags::COME_AGAIN`]: how
        /// long it is to wait there.
        pub window_wait_us: u32,
        /// Congestion control: RPCs the client has pending.
        pub credits_wanted: u32,
        /// Congestion control: RPCs the server lets it have in flight; 0 means no say.
        pub credits_granted: u32,
        /// Congestion control in bytes, wanted.
        pub bytes_wanted: u64,
        /// Congestion control in bytes, granted; 0 means no say.
        pub bytes_granted: u64,
        /// Reply to a connect or on the lane of reads and writes: bytes of data that the client may have under way with its requests,
        /// before the server asks for them.
        pub eager_bytes: u32,
        /// Lock pool: the server lock volume.
        pub server_lock_volume: u64,
        /// Lock pool: the limit of locks.
        pub lock_limit: u32,
        /// First match bits of the bulk; 0 for none.
        pub match_bits: u64,
        /// Bytes of the bulk that the client exposes.
        pub bulk_bytes: u32,
        /// Reply: what the change was based on (version-based recovery). Replay: the same, as the first reply told it.
        pub pre_versions: Versions,
        /// Who asked, for NRS and accounting.
        pub uid: u32,
        /// As `uid`.
        pub gid: u32,
        /// As `uid`.
        pub projid: u32,
        /// Ties the log lines of one operation together.
        pub trace_id: u64,
        /// Job of the asking process, padded with zeroes.
        pub jobid: [u8; 32],
    }
}

/// What a change was based on: the versions of up to four things that it found, 0 for none. Which things, and in what
/// order, is the server's alone, the same each time it executes the same request; to clients they are just numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Versions(pub [u64; Versions::COUNT]);

impl Versions {
    /// Most versions: a rename's two directories, and what its two names led to.
    pub const COUNT: usize = 4;

    /// Whether a change that was based on this may be made again where `found` is found. A version of 0 agrees with
    /// everything: there was none, or what had it was written before versions were kept and not changed since, so that
    /// a crash brings back nothing older.
    pub fn agree_with(&self, found: &Versions) -> bool {
        self.0.iter().zip(found.0).all(|(was, is)| *was == 0 || *was == is)
    }
}

impl Field for Versions {
    const MIN_SIZE: usize = 8 * Versions::COUNT;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|version| version.put(out));
    }

    fn take(from: &mut Reader) -> Result<Versions, WireError> {
        let mut versions = Versions::default();
        for version in &mut versions.0 {
            *version = u64::take(from)?;
        }
        Ok(versions)
    }
}

message! {
    REPLAYED;
    /// Body of a replayed request ([`flags::REPLAY`] with a transno).
    pub struct Replayed {
        /// The body as it was sent first.
        pub request: Bytes,
        /// The body of the answer: what was decided then (ids, handles, objects) is decided again.
        pub reply: Bytes,
    }
}

/// First four bytes of every RPC: "NCR1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"NCR1");
/// The wire version. Features are negotiated by connect flags, so this changes only with the header itself.
pub const VERSION: u16 = 2;
/// Bytes of an encoded header, magic and body length included.
pub const HEADER_BYTES: usize = 12 + RpcHeader::MIN_SIZE;

/// A decoded RPC: header, body, inline data.
#[derive(Debug, Clone)]
pub struct RpcMessage {
    /// What it is.
    pub kind: RpcKind,
    /// The header.
    pub header: RpcHeader,
    /// The encoded body, of the type that the opcode says.
    pub body: Bytes,
    /// Data that travels with the message (short I/O), empty if there is none.
    pub inline: Bytes,
}

impl RpcMessage {
    /// Header and body in one buffer. Inline data is sent as a piece of its own after it. Callers keep bodies below what
    /// one LNet message carries.
    pub fn encode_head(kind: RpcKind, header: &RpcHeader, body: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
        MAGIC.put(&mut out);
        VERSION.put(&mut out);
        kind.put(&mut out);
        0u8.put(&mut out);
        header.put(&mut out);
        put_len(body.len(), &mut out);
        out.extend_from_slice(body);
        out.into()
    }

    /// Takes a message apart without copying.
    pub fn decode(bytes: Bytes) -> Result<RpcMessage, WireError> {
        let mut r = Reader::new(bytes);
        let magic = u32::take(&mut r)?;
        if magic != MAGIC {
            return Err(WireError::BadValue { what: "the RPC magic", value: magic.into() });
        }
        let version = u16::take(&mut r)?;
        if version != VERSION {
            return Err(WireError::BadValue { what: "the RPC version", value: version.into() });
        }
        let kind = RpcKind::take(&mut r)?;
        u8::take(&mut r)?;
        let header = RpcHeader::take(&mut r)?;
        let body = Bytes::take(&mut r)?;
        let inline = r.take(r.remaining())?;
        Ok(RpcMessage { kind, header, body, inline })
    }
}

impl RpcHeader {
    /// The opcode, if it is one we know.
    pub fn known_opcode(&self) -> Option<Opcode> {
        crate::decode(&Bytes::copy_from_slice(&self.opcode.to_le_bytes())).ok()
    }

    /// Whether all of `bits` are set in the flags.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }
}
