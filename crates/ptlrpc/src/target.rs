//! The trait that a target implements to be served, the response type, and the entry of a served target.

use crate::congestion::Congestion;
use crate::export::Export;
use crate::export_table::ExportTable;
use crate::identity::{Identity, Standing};
use crate::lane::{LaneCounts, LaneOwner, LaneService};
use crate::message::LockPool;
use crate::nrs::Place;
use crate::request::{ServerRequest, Work};
use crate::request_history::RequestHistories;
use crate::request_log::ReplyTo;
use crate::window::Credits;
use bytes::Bytes;
use nacre_base::{Errno, FxHashMap, Parts, Payload, Tag, Time, Transno, Uuid, Xid};
use nacre_wire::connect::{ConnectData, ConnectReply, ConnectRequest};
use nacre_wire::header::Versions;
use nacre_wire::{Field, Lane, Opcode, RpcHeader};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

/// A request that was answered, as its target accounts for it.
pub struct Accounted<'a> {
    /// Export of the client that sent it.
    pub export: &'a Export,
    /// Its opcode.
    pub opcode: Opcode,
    /// The operation that was counted ([`crate::Response::counted`]); empty for one that failed or counts nowhere.
    pub operation: &'static str,
    /// Job that it was sent for, padded with zeroes: the client's word.
    pub jobid: [u8; 32],
    /// Where its time went, without the way between client and server. The waits at the client are its word.
    pub parts: Parts,
    /// Bytes of data that it moved.
    pub bytes: u64,
    /// When it was answered.
    pub now: Time,
}

/// A target: an MDT, an OST, the MGS.
///
/// `handle` is first polled in the reader of the connection, so the work before its first wait should be short. The
/// polls may come from different threads, and many requests run at once.
#[async_trait::async_trait]
pub trait TargetHandler: Send + Sync + 'static {
    /// Name of the target's service, such as `ost`. Requests to all targets of a service are counted together.
    fn service(&self) -> &'static str;

    /// Decides whether a connecting peer may be the client that it names. Called before anything is done about a
    /// connected client of that name. An error refuses the connection.
    async fn admit(&self, who: Identity, request: &ConnectRequest) -> Result<Standing, Errno>;

    /// A client connects, or reconnects ([`Export::is_reconnect`]). Returns the negotiated data, which must not contain
    /// a feature that was not asked for. An error refuses the connection.
    async fn connect(&self, export: &Arc<Export>, request: &ConnectRequest) -> Result<ConnectReply, Errno>;

    /// The client disconnected, or was evicted: close its handles, drop its locks. None of its requests is running.
    async fn disconnect(&self, export: &Arc<Export>);

    /// Makes durable that a client was forgotten, before the client hears that it was.
    async fn settle(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// The range that a request reads or writes, which decides when it runs. The range is the client's word: nobody has checked it yet.
    fn place(&self, _request: &ServerRequest) -> Option<Place> {
        None
    }

    /// Executes a request: every opcode except connect, disconnect and ping.
    async fn handle(&self, request: Box<ServerRequest>) -> Result<Response, Errno>;

    /// Returns whether the target accounts for its requests ([`TargetHandler::account`]).
    fn accounts(&self) -> bool {
        false
    }

    /// A request was answered. Called before its reply is sent; must not wait.
    fn account(&self, _accounted: &Accounted<'_>) {}

    /// Transno up to which changes of this client are durable. Goes into every reply.
    fn last_committed(&self, export: &Export) -> Transno;

    /// The client reports its progress with replays ([`nacre_wire::header::flags::REQ_REPLAY_DONE`],
    /// [`nacre_wire::header::flags::LOCK_REPLAY_DONE`], or 0 for no news). Returns whether the target is in recovery,
    /// so that other requests have to wait. Also called when the client connects.
    fn recovery(&self, _export: &Arc<Export>, _told: u32) -> bool {
        false
    }

    /// Number of locks that clients may keep. Goes into every reply.
    fn lock_pool(&self) -> LockPool {
        LockPool::default()
    }

    /// Returns whether another node has taken the target. Requests here then end as if this node had died: they are
    /// neither executed nor refused with an error of the target, and the clients look for the other node.
    fn is_taken(&self) -> bool {
        false
    }

    /// Looks in the reply slots on disk for the reply to a resent request whose reply is no longer in memory because
    /// the server restarted. Returns `None` if the request was never executed.
    async fn saved_reply(&self, export: &Arc<Export>, xid: Xid, tag: Tag) -> Option<Result<Response, Errno>>;

    /// Called before a reply from [`TargetHandler::saved_reply`] is sent. Restores what the reply refers to and was
    /// only in memory, such as an open handle.
    async fn reconstruct(&self, _request: &ServerRequest, _reply: &Response) {}
}

/// A successful reply. An error is an `Errno`.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// The encoded body.
    pub body: Bytes,
    /// Inline data, at most [`crate::INLINE_MAX`] bytes.
    pub data: Payload,
    /// Transno of the change; 0 if none was made.
    pub transno: Transno,
    /// Versions that the change was based on. They come back with the request if it is replayed.
    pub pre_versions: Versions,
    /// Name of the operation in statistics; empty if it counts in none.
    pub counted: &'static str,
}

impl Response {
    /// A response with this body.
    pub fn new(body: &impl Field) -> Response {
        Response { body: nacre_wire::encode(body), ..Response::default() }
    }

    /// Adds inline data, at most [`crate::INLINE_MAX`] bytes.
    pub fn with_data(mut self, data: Payload) -> Response {
        self.data = data;
        self
    }

    /// Adds the versions that the change was based on.
    pub fn based_on(mut self, pre_versions: Versions) -> Response {
        self.pre_versions = pre_versions;
        self
    }

    /// Sets the name under which the operation counts.
    pub fn counted_as(mut self, operation: &'static str) -> Response {
        self.counted = operation;
        self
    }

    /// Adds the transno of the change.
    pub fn with_transno(mut self, transno: Transno) -> Response {
        self.transno = transno;
        self
    }
}

/// A target being served.
pub(crate) struct TargetEntry {
    pub(crate) name: Arc<str>,
    pub(crate) handler: Arc<dyn TargetHandler>,
    /// Instance number for a target that has none of its own.
    pub(crate) incarnation: u64,
    pub(crate) stopped: AtomicBool,
    /// Histories of its service's requests, if somebody wants to read them.
    pub(crate) histories: OnceLock<Arc<RequestHistories>>,
    /// Clients that were evicted since the target is served.
    pub(crate) evictions: Arc<AtomicU64>,
    /// Exports of the connected clients.
    pub(crate) clients: Mutex<ExportTable<Uuid, Export>>,
    /// Connect data that was negotiated with the latest client. Most often the next client gets the same, and shares it.
    latest_data: Mutex<Arc<ConnectData>>,
    /// Clients of which a connect is being handled, each with the connect that is handled next, if there is one.
    pub(crate) connecting: Mutex<FxHashMap<Uuid, Option<Connect>>>,
    /// Made when it is first counted in or set: each client serves its locks' callbacks, which have no windows.
    congestion: OnceLock<Box<Mutex<Congestion>>>,
    /// Each target has lanes of its own, so that a slow target takes no slots from the other targets of the node.
    /// A lane is made when its first request comes: each client serves its locks' callbacks, and most clients are idle.
    lanes: [OnceLock<Arc<LaneService<Work>>>; Lane::ALL.len()],
    owner: Weak<dyn LaneOwner<Work>>,
}

impl TargetEntry {
    /// `owner` is the node that serves it.
    pub(crate) fn new(
        name: &str,
        handler: Arc<dyn TargetHandler>,
        incarnation: u64,
        owner: Weak<dyn LaneOwner<Work>>,
    ) -> TargetEntry {
        TargetEntry {
            name: name.into(),
            handler,
            incarnation,
            stopped: false.into(),
            histories: OnceLock::new(),
            evictions: Arc::default(),
            clients: Mutex::default(),
            latest_data: Mutex::default(),
            connecting: Mutex::default(),
            congestion: OnceLock::new(),
            lanes: Default::default(),
            owner,
        }
    }

    pub(crate) fn congestion(&self) -> MutexGuard<'_, Congestion> {
        self.congestion.get_or_init(Box::default).lock()
    }

    /// The window of a client that connects.
    pub(crate) fn first_window(&self) -> Credits {
        // A target that has just started has no engine yet, and all its clients reconnect at once.
        match self.congestion.get() {
            Some(congestion) => congestion.lock().first_window(),
            None => Congestion::default().first_window(),
        }
    }

    /// A client has left.
    pub(crate) fn forget_window(&self, export: u64) {
        self.congestion.get().into_iter().for_each(|congestion| congestion.lock().forget(export));
    }

    pub(crate) fn lane(&self, lane: Lane) -> &Arc<LaneService<Work>> {
        self.lanes[lane as usize].get_or_init(|| LaneService::new(lane, self.handler.service(), self.owner.clone()))
    }

    /// Negotiated connect data in memory that exports share.
    pub(crate) fn share(&self, data: &ConnectData) -> Arc<ConnectData> {
        let mut latest = self.latest_data.lock();
        if **latest != *data {
            *latest = Arc::new(data.clone());
        }
        latest.clone()
    }

    /// A lane, if it has had requests.
    pub(crate) fn lane_if_made(&self, lane: Lane) -> Option<&Arc<LaneService<Work>>> {
        self.lanes[lane as usize].get()
    }

    /// The lanes that have had requests.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<LaneService<Work>>> {
        self.lanes.iter().filter_map(OnceLock::get)
    }

    /// How busy a lane is.
    pub(crate) fn lane_counts(&self, lane: Lane) -> LaneCounts {
        self.lane_if_made(lane).map_or_else(LaneCounts::default, |lane| lane.counts())
    }
}

/// A connect as it arrived.
pub(crate) struct Connect {
    pub(crate) header: RpcHeader,
    pub(crate) request: ConnectRequest,
    pub(crate) reply_to: ReplyTo,
}
