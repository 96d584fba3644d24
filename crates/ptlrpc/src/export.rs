//! The server's side of a connection: one export per client and target.

use crate::request_log::{Early, Received, ReplyTo, RequestLog, Verdict};
use crate::target::TargetEntry;
use nacre_base::{Nid, Payload, Time, Uuid};
use nacre_wire::connect::{ConnectData, ConnectRequest, connect_flags};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// A client as one target sees it.
pub struct Export {
    /// Number of the export, in the header of every request.
    pub cookie: u64,
    /// UUID of the client.
    pub client: Uuid,
    /// Readable name of the client.
    pub client_name: String,
    /// Cookie of the client's previous export, as its connect request named it.
    previous: u64,
    /// Name of the target.
    pub target: String,
    pub(crate) entry: Arc<TargetEntry>,
    state: Mutex<State>,
    /// Time of the client's last request, ping or connect, in nanoseconds of [`Time`].
    last_heard: AtomicU64,
    closed: AtomicBool,
    /// True once the target has forgotten the client.
    gone: AtomicBool,
    /// Notified when the export is closed, has no running request left, or is gone.
    changed: Notify,
    extension: OnceLock<Box<dyn Any + Send + Sync>>,
}

struct State {
    /// NID and import from which the client connected last.
    reply_to: ReplyTo,
    /// Number of the client's current connection.
    connection: u32,
    /// Xid of the latest connect request; a connect with a lower xid is a late duplicate.
    connect_xid: u64,
    data: ConnectData,
    reconnect: bool,
    log: RequestLog,
}

/// Sender of a connect request.
pub(crate) struct Connecting {
    pub(crate) reply_to: ReplyTo,
    pub(crate) connection: u32,
    pub(crate) xid: u64,
}

/// Outcome of a request's arrival at its export.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The request came over a connection that has been replaced.
    Stale,
    /// The export is closed.
    Closed,
    /// The request is in the log, which gave this verdict.
    Logged(Verdict),
}

impl Export {
    pub(crate) fn new(
        entry: Arc<TargetEntry>,
        cookie: u64,
        request: &ConnectRequest,
        from: &Connecting,
    ) -> Arc<Export> {
        let state = State {
            reply_to: from.reply_to,
            connection: from.connection,
            connect_xid: from.xid,
            data: ConnectData::default(),
            reconnect: false,
            log: RequestLog::default(),
        };
        Arc::new(Export {
            cookie,
            client: request.client,
            client_name: request.client_name.clone(),
            previous: request.previous_export,
            target: entry.name.clone(),
            entry,
            state: Mutex::new(state),
            last_heard: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            changed: Notify::new(),
            extension: OnceLock::new(),
        })
    }

    /// Returns whether a connect that names the previous export `previous` repeats the one that made this export.
    pub(crate) fn is_asked_again(&self, previous: u64, connection: u32) -> bool {
        self.previous == previous && connection > self.state.lock().connection
    }

    /// NID from which the client connected last.
    pub fn nid(&self) -> Nid {
        self.state.lock().reply_to.nid
    }

    /// Address of the client's import, for messages that answer no request.
    pub(crate) fn import(&self) -> ReplyTo {
        self.state.lock().reply_to
    }

    /// Negotiated connect data. Within the first [`crate::TargetHandler::connect`] it is empty.
    pub fn data(&self) -> ConnectData {
        self.state.lock().data.clone()
    }

    /// Within [`crate::TargetHandler::connect`]: true if the client was connected before and keeps its state.
    pub fn is_reconnect(&self) -> bool {
        self.state.lock().reconnect
    }

    /// The target's own state for this client, made by `init` at the first call. Every call must ask for the same type.
    pub fn extension<T: Any + Send + Sync>(&self, init: impl FnOnce() -> T) -> &T {
        let any = self.extension.get_or_init(|| Box::new(init()));
        any.downcast_ref().expect("a target keeps one type of state in its exports")
    }

    /// Returns whether the client disconnected, was evicted, or the target stopped.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ready when the client disconnected, was evicted, or the target stopped.
    pub async fn closed(&self) {
        self.until(|| self.is_closed()).await;
    }

    /// Requests of this client that run or wait to be run.
    pub fn requests_running(&self) -> usize {
        self.state.lock().log.running()
    }

    pub(crate) async fn drained(&self) {
        self.until(|| self.requests_running() == 0).await;
    }

    /// Ready when the target has forgotten the client of this closed export.
    pub(crate) async fn gone(&self) {
        self.until(|| self.gone.load(Ordering::Acquire)).await;
    }

    pub(crate) fn handle_gone(&self) {
        assert!(self.is_closed(), "{self:?} is forgotten and still open");
        self.gone.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled first, so that a change after the check is not missed.
            changed.as_mut().enable();
            if condition() {
                return;
            }
            changed.await;
        }
    }

    /// Closes the export. Returns false if it was closed before.
    pub(crate) fn close(&self) -> bool {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        self.changed.notify_waiters();
        first
    }

    /// A request came over the connection with this number.
    pub(crate) fn handle_request(&self, connection: u32, request: Received) -> Entry {
        let mut s = self.state.lock();
        if self.is_closed() {
            return Entry::Closed;
        }
        if connection != s.connection {
            return Entry::Stale;
        }
        self.last_heard.store(request.at.0, Ordering::Relaxed);
        Entry::Logged(s.log.handle_request(request))
    }

    /// A ping came. It is not logged, because it changes nothing.
    pub(crate) fn handle_ping(&self, connection: u32, now: Time) -> Entry {
        let s = self.state.lock();
        if self.is_closed() {
            return Entry::Closed;
        }
        if connection != s.connection {
            return Entry::Stale;
        }
        self.handle_heard(now);
        Entry::Logged(Verdict::Execute)
    }

    pub(crate) fn handle_executed(&self, xid: u64, save: Option<Payload>) -> ReplyTo {
        let mut s = self.state.lock();
        let reply_to = s.log.handle_executed(xid, save);
        let drained = s.log.running() == 0;
        drop(s);
        if drained && self.is_closed() {
            self.changed.notify_waiters();
        }
        reply_to
    }

    pub(crate) fn reply_to(&self, xid: u64) -> Option<ReplyTo> {
        self.state.lock().log.reply_to(xid)
    }

    pub(crate) fn deadline(&self, xid: u64) -> Option<Time> {
        self.state.lock().log.deadline(xid)
    }

    pub(crate) fn handle_time(&self, now: Time) -> (Vec<Early>, Time) {
        self.state.lock().log.handle_time(now)
    }

    /// Returns whether a connect with this xid is newer than the latest one.
    pub(crate) fn is_news(&self, connect_xid: u64) -> bool {
        connect_xid > self.state.lock().connect_xid
    }

    /// The client is connecting again.
    pub(crate) fn handle_reconnecting(&self) {
        self.state.lock().reconnect = true;
    }

    /// The client is connected.
    pub(crate) fn handle_connected(&self, from: &Connecting, data: ConnectData, now: Time) {
        self.handle_heard(now);
        let mut s = self.state.lock();
        // Connects of a client are handled one at a time, and a connect that is not newer is dropped.
        assert!(from.xid >= s.connect_xid, "{self:?}: the connect {} comes after {}", from.xid, s.connect_xid);
        (s.reply_to, s.connection, s.connect_xid, s.data) = (from.reply_to, from.connection, from.xid, data);
    }

    pub(crate) fn handle_heard(&self, now: Time) {
        self.last_heard.store(now.0, Ordering::Relaxed);
    }

    /// When the client sent its last request, ping or connect.
    pub fn last_heard(&self) -> Time {
        Time(self.last_heard.load(Ordering::Relaxed))
    }

    /// Returns whether the client is a server, which is not evicted for silence.
    pub(crate) fn is_server(&self) -> bool {
        self.state.lock().data.flags & connect_flags::MDS != 0
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "export {:#x} of {} for {} ({})", self.cookie, self.target, self.client_name, self.client)
    }
}
