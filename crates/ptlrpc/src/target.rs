//! What a target implements to be served: the handler trait, and the request and response it deals in.

use crate::call::INLINE_MAX;
use crate::export::Export;
use crate::identity::{Identity, Standing};
use crate::service::Arrival;
use bytes::Bytes;
use nacre_base::{Errno, Payload, Tag, Transno, Xid};
use nacre_wire::connect::{ConnectReply, ConnectRequest};
use nacre_wire::header::{Versions, flags};
use nacre_wire::{Field, Opcode, RpcHeader};
use std::sync::Arc;

/// A target: an MDT, an OST, the MGS.
///
/// `handle` is first polled in the reader of the connection: what it does before its first wait should be short. The
/// polls may come from different threads, and many requests run at once.
#[async_trait::async_trait]
pub trait TargetHandler: Send + Sync + 'static {
    /// The name of its service, such as `ost`: requests are counted together for all targets of one.
    fn service(&self) -> &'static str;

    /// Somebody wants to connect: whether the peer may be what it says it is. Asked before anything is done about a client of
    /// that name that is connected already. The error refuses the connection.
    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno>;

    /// A client connects, or reconnects ([`Export::is_reconnect`]). Answers what was negotiated; a feature that was
    /// not asked for must not be in the answer. The error refuses the connection.
    async fn connect(&self, export: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno>;

    /// The client disconnected, or was evicted: close its handles, drop its locks. None of its requests runs any more.
    async fn disconnect(&self, export: &Arc<Export>);

    /// Every request but connect, disconnect and ping.
    async fn handle(&self, request: ServerRequest) -> Result<Response, Errno>;

    /// Changes of this client up to here are durable. Goes into every reply.
    fn last_committed(&self, export: &Export) -> Transno;

    /// The client says how far it is with its replays ([`flags::REQ_REPLAY_DONE`], [`flags::LOCK_REPLAY_DONE`], or nothing
    /// new): whether the target is in recovery, so that other requests have to wait. Also asked when it connects.
    fn recovery(&self, _export: &Arc<Export>, _told: u32) -> bool {
        false
    }

    /// What clients are to know of how many locks they may keep. Goes into every reply.
    fn lock_pool(&self) -> LockPool {
        LockPool::default()
    }

    /// Whether another node has the target now. What is asked of it here then ends as if this node had died: it is neither
    /// executed nor refused with an error of the target, and the clients go and look for the other node.
    fn is_taken(&self) -> bool {
        false
    }

    /// A resent request whose reply is not in memory any more, because the server restarted: what the reply slots on
    /// disk say; `None` if it was never executed.
    async fn saved_reply(&self, export: &Arc<Export>, xid: Xid, tag: Tag) -> Option<Result<Response, Errno>>;

    /// Such a reply is about to be given: what it speaks of and was in memory only, such as an open handle, must be there
    /// again.
    async fn reconstruct(&self, _request: &ServerRequest, _reply: &Response) {}
}

/// How many locks a server lets its clients keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockPool {
    /// The server lock volume: a client gives locks back whose age in seconds times the number of its unused locks is larger.
    pub volume: u64,
    /// Locks that all clients together should hold at most; 0: nothing is said.
    pub limit: u32,
}

/// A request as its handler sees it.
pub struct ServerRequest {
    /// Its header.
    pub header: RpcHeader,
    /// What it asks for.
    pub opcode: Opcode,
    /// Who asks: the NID that the export connected from.
    pub identity: Identity,
    /// Its encoded body.
    pub body: Bytes,
    /// Who asks.
    pub export: Arc<Export>,
    /// For a request that is replayed: the body of its first answer.
    pub replayed: Option<Bytes>,
    pub(crate) arrival: Arc<Arrival>,
}

impl ServerRequest {
    /// The body as the message that the opcode says; EPROTO if it is not.
    pub fn decode<M: Field>(&self) -> Result<M, Errno> {
        nacre_wire::decode(&self.body).map_err(Errno::from)
    }

    /// The data that came with the request: inline, or now fetched from the client. If it cannot be fetched the
    /// request stays unanswered, whatever the handler returns, so that the client sends it again: call this before
    /// anything is changed.
    pub async fn pull(&self) -> Result<Payload, Errno> {
        self.arrival.pull(self).await
    }

    /// Sends data to the client, before the response. Needed when it does not fit into the response
    /// ([`ServerRequest::fits_inline`]). On an error the request stays unanswered, as for [`ServerRequest::pull`].
    pub async fn push(&self, data: Payload) -> Result<(), Errno> {
        self.arrival.push(self, data).await
    }

    /// Whether `len` bytes can travel in [`Response::data`].
    pub fn fits_inline(&self, len: usize) -> bool {
        len <= INLINE_MAX
    }

    /// Room that the client made for data, in bytes; for a write, the bytes it will send.
    pub fn bulk_len(&self) -> usize {
        self.header.bulk_bytes as usize
    }

    /// Whether the client sent it before: it may have been executed by an earlier life of this target.
    pub fn is_resent(&self) -> bool {
        self.header.has(flags::RESENT)
    }

    /// Whether it was executed and answered by an earlier life of this target, and is to be executed again with the
    /// same number and the same outcome.
    pub fn is_replay(&self) -> bool {
        self.replayed.is_some()
    }

    /// What was answered the first time, if it is replayed.
    pub fn first_answer<M: Field>(&self) -> Result<Option<M>, Errno> {
        self.replayed.as_ref().map(nacre_wire::decode).transpose().map_err(Errno::from)
    }

    /// If it is replayed: whether what it was based on is what is `found` now. EOVERFLOW, Lustre's word for it, if
    /// not: somebody's change before it is missing, and it must not be made.
    pub fn check_pre_versions(&self, found: &Versions) -> Result<(), Errno> {
        let agree = !self.is_replay() || self.header.pre_versions.agree_with(found);
        if agree { Ok(()) } else { Err(Errno::EOVERFLOW) }
    }

    /// Whether it is part of a recovery: a replay, or what brings back open files and locks.
    pub fn is_recovery(&self) -> bool {
        self.header.has(flags::REPLAY)
    }

    /// Tells, also when the request is gone, whether it stays unanswered because its data did not get through.
    pub fn delivery(&self) -> Delivery {
        Delivery(self.arrival.clone())
    }

    /// The request's number.
    pub fn xid(&self) -> Xid {
        Xid(self.header.xid)
    }

    /// Its modify slot; 0 if it has none.
    pub fn tag(&self) -> Tag {
        Tag(self.header.tag)
    }

    /// Ready when nobody waits for the answer any more, because the export is gone. Handlers that wait for other clients
    /// (a lock, news) must wait for this too: it also gives their place in the lane to others, so that those they wait
    /// for can be served, and keeps their time out of the estimates.
    pub async fn abandoned(&self) {
        self.arrival.handle_long_wait();
        self.export.closed().await;
    }
}

/// What becomes of a request's data.
pub struct Delivery(Arc<Arrival>);

impl Delivery {
    /// Whether it did not get through: the client will send the request again.
    pub fn is_broken(&self) -> bool {
        self.0.transfer.is_broken()
    }
}

/// A successful answer. An error is an `Errno`.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// The encoded body.
    pub body: Bytes,
    /// Inline data, at most [`INLINE_MAX`] bytes.
    pub data: Payload,
    /// Number of the change made; 0 if none.
    pub transno: Transno,
    /// What the change was based on: comes back with the request if it is replayed.
    pub pre_versions: Versions,
}

impl Response {
    /// A response with this body.
    pub fn new(body: &impl Field) -> Response {
        Response { body: nacre_wire::encode(body), ..Response::default() }
    }

    /// The same with inline data, at most [`INLINE_MAX`] bytes.
    pub fn with_data(mut self, data: Payload) -> Response {
        self.data = data;
        self
    }

    /// The same with what the change that it reports was based on.
    pub fn based_on(mut self, pre_versions: Versions) -> Response {
        self.pre_versions = pre_versions;
        self
    }

    /// The same with the number of the change it reports.
    pub fn with_transno(mut self, transno: Transno) -> Response {
        self.transno = transno;
        self
    }
}
