//! What a target implements to be served: the handler trait and the response it deals in; and a target that is served.

use crate::export::Export;
use crate::identity::{Identity, Standing};
use crate::lane::LaneService;
use crate::message::LockPool;
use crate::request::{ServerRequest, Work};
use crate::request_log::ReplyTo;
use crate::window::CongestionControl;
use bytes::Bytes;
use nacre_base::{Errno, FxHashMap, Payload, Tag, Transno, Uuid, Xid};
use nacre_wire::connect::{ConnectReply, ConnectRequest};
use nacre_wire::header::Versions;
use nacre_wire::{Field, Lane, RpcHeader};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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

    /// The client says how far it is with its replays ([`nacre_wire::header::flags::REQ_REPLAY_DONE`], [`nacre_wire::header::flags::LOCK_REPLAY_DONE`], or nothing
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

/// A successful answer. An error is an `Errno`.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// The encoded body.
    pub body: Bytes,
    /// Inline data, at most [`crate::INLINE_MAX`] bytes.
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

    /// The same with inline data, at most [`crate::INLINE_MAX`] bytes.
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

/// A target being served.
pub(crate) struct TargetEntry {
    pub(crate) name: String,
    pub(crate) handler: Arc<dyn TargetHandler>,
    /// Stands for the instance of a target that has none of its own.
    pub(crate) incarnation: u64,
    pub(crate) stopped: AtomicBool,
    pub(crate) clients: Mutex<FxHashMap<Uuid, Arc<Export>>>,
    /// Clients whose connect is being handled, one of each at a time, and the one that is to follow.
    pub(crate) connecting: Mutex<FxHashMap<Uuid, Option<Connect>>>,
    pub(crate) congestion: Mutex<Box<dyn CongestionControl>>,
    /// A slow target's requests take no slot from those of other targets of the node.
    pub(crate) lanes: [Arc<LaneService<Work>>; Lane::ALL.len()],
}

/// A connect as it arrived.
pub(crate) struct Connect {
    pub(crate) header: RpcHeader,
    pub(crate) request: ConnectRequest,
    pub(crate) reply_to: ReplyTo,
}
