//! What a caller says about one call, and what it gets back.

use crate::replay::CommitCallback;
use nacre_base::Payload;
use nacre_lnet::MAX_PAYLOAD;
use nacre_wire::header::HEADER_BYTES;
use nacre_wire::{Lane, RpcHeader};
use std::time::Duration;

/// Data up to this many bytes travels within the request or the reply (Lustre's short I/O); more is bulk.
pub const INLINE_MAX: usize = 16 << 10;
/// The largest bulk of one RPC in bytes.
pub const BULK_MAX: usize = 64 << 20;
const _: () = assert!(HEADER_BYTES + INLINE_MAX < MAX_PAYLOAD, "data that is inline fits in the message");
const _: () =
    assert!(INLINE_MAX < BULK_MAX && BULK_MAX <= u32::MAX as usize, "the header has 32 bits for the length of bulk");

/// How a call is to be made. The default is a request without data that waits for as long as it takes.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// Which lane serves it.
    pub lane: Lane,
    /// It changes something and must happen exactly once: it takes a modify slot (tag), of which the server keeps the
    /// last reply. A call whose future is dropped goes on in the background until it is answered.
    pub modify: bool,
    /// Data that goes along.
    pub bulk: Bulk,
    /// Others wait for it: served first, and exempt from the window of RPCs in flight.
    pub high_priority: bool,
    /// Fail with [`crate::RpcError::Unreachable`] rather than wait for a server that cannot be reached.
    pub no_delay: bool,
    /// A server that was started anew gets it again if it lost it: the request and its answer are kept until what it
    /// changed is durable.
    pub replay: bool,
    /// Told when what it changed is durable, or lost. Only with `replay`.
    pub on_commit: Option<CommitCallback>,
    /// Part of a recovery: goes while other requests wait for its end, and fails if the connection is lost.
    pub recovery: bool,
    /// Give up after this time, with [`crate::RpcError::TimedOut`]. Whether the server acted is then unknown.
    pub deadline: Option<Duration>,
    /// Who asks, for scheduling and accounting.
    pub uid: u32,
    /// As `uid`.
    pub gid: u32,
    /// Job of the asking process, padded with zeroes.
    pub jobid: [u8; 32],
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            lane: Lane::Request,
            modify: false,
            bulk: Bulk::None,
            high_priority: false,
            no_delay: false,
            replay: false,
            on_commit: None,
            recovery: false,
            deadline: None,
            uid: 0,
            gid: 0,
            jobid: [0; 32],
        }
    }
}

/// Data that goes with a call, beside the body.
#[derive(Debug, Clone, Default)]
pub enum Bulk {
    /// None.
    #[default]
    None,
    /// To the server: inline up to [`INLINE_MAX`], otherwise exposed for the server to pull.
    Send(Payload),
    /// From the server, at most `max_len` bytes: inline in the reply, or pushed by the server.
    Receive {
        /// Room, in bytes.
        max_len: usize,
    },
}

/// A successful answer.
#[derive(Debug, Clone)]
pub struct Reply<Rep> {
    /// Its header: transno, last_committed, service times.
    pub header: RpcHeader,
    /// Its body.
    pub body: Rep,
    /// Data received, empty unless [`Bulk::Receive`] was asked for.
    pub data: Payload,
}
