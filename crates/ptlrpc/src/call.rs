//! Options, bulk data and reply of a call.

use crate::replay::CommitCallback;
use nacre_base::Payload;
use nacre_lnet::MAX_PAYLOAD;
use nacre_wire::header::HEADER_BYTES;
use nacre_wire::{Lane, RpcHeader};
use std::time::Duration;

/// Data up to this many bytes travels within the request or the reply (Lustre's short I/O); more is bulk. Over a distance a client sends
/// bulk of up to [`crate::EAGER_MAX`] bytes within the request, too, if the server has granted memory for it.
pub const INLINE_MAX: usize = 16 << 10;
/// The largest bulk of one RPC in bytes.
pub const BULK_MAX: usize = 64 << 20;
const _: () = assert!(HEADER_BYTES + INLINE_MAX < MAX_PAYLOAD, "data that is inline fits in the message");
const _: () =
    assert!(INLINE_MAX < BULK_MAX && BULK_MAX <= u32::MAX as usize, "the header has 32 bits for the length of bulk");

/// Options of a call. The default is a request without data that waits for its reply for as long as it takes.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// Lane that serves the request.
    pub lane: Lane,
    /// True if the request makes a change and must be executed exactly once. It then takes a modify slot (tag), and the
    /// server keeps the last reply of each slot. If the future of such a call is dropped, the call continues in the
    /// background until it is answered.
    pub modify: bool,
    /// Data that travels with the request or the reply.
    pub bulk: Bulk,
    /// True if others wait for this request: it is served first and is exempt from the window of RPCs in flight.
    pub high_priority: bool,
    /// True if the request waits for room in the window of RPCs in flight, as all requests of [`Lane::Io`] do that are not of high priority.
    pub windowed: bool,
    /// True if the server takes the locks for this request, so that it may have to wait for other clients. It then never holds back a
    /// request that those clients may be waiting for: it has a window of its own.
    pub lockless: bool,
    /// Fail with [`crate::RpcError::Unreachable`] instead of waiting for a server that cannot be reached.
    pub no_delay: bool,
    /// True if a restarted server that lost the change gets the request again. The request and its reply are kept until
    /// the change is durable.
    pub replay: bool,
    /// Called when the change is durable, or lost. Only with `replay`.
    pub on_commit: Option<CommitCallback>,
    /// True if the request is part of a recovery: it is sent while other requests wait for the recovery to end, and
    /// fails if the connection is lost.
    pub recovery: bool,
    /// Give up after this time, with [`crate::RpcError::TimedOut`]. The server may or may not have executed the
    /// request.
    pub deadline: Option<Duration>,
    /// User of the asking process, for scheduling and accounting.
    pub uid: u32,
    /// Group of the asking process.
    pub gid: u32,
    /// Job of the asking process, padded with zeroes.
    pub jobid: [u8; 32],
    /// Bytes that the caller has to move besides, and has made no calls for yet: the server hears of them as of those that wait for
    /// the window.
    pub backlog: u64,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            lane: Lane::Request,
            modify: false,
            bulk: Bulk::None,
            high_priority: false,
            windowed: false,
            lockless: false,
            no_delay: false,
            replay: false,
            on_commit: None,
            recovery: false,
            deadline: None,
            uid: 0,
            gid: 0,
            jobid: [0; 32],
            backlog: 0,
        }
    }
}

impl CallOptions {
    /// True if the request waits for room in the window.
    pub(crate) fn is_windowed(&self) -> bool {
        (self.windowed || self.lane == Lane::Io) && !self.high_priority
    }
}

/// Data that goes with a call, beside the body.
#[derive(Debug, Clone, Default)]
pub enum Bulk {
    /// No bulk.
    #[default]
    None,
    /// To the server: inline up to [`INLINE_MAX`], otherwise exposed for the server to pull.
    Send(Payload),
    /// From the server, at most `max_len` bytes: inline in the reply, or pushed by the server.
    Receive {
        /// Most bytes that the caller accepts.
        max_len: usize,
    },
}

/// A successful reply.
#[derive(Debug, Clone)]
pub struct Reply<Rep> {
    /// Header: transno, last_committed, service times.
    pub header: RpcHeader,
    /// Decoded body.
    pub body: Rep,
    /// Data received, empty unless [`Bulk::Receive`] was asked for.
    pub data: Payload,
}
