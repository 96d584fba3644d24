//! The server's side of a connection: one export per client and target.

use crate::export_table::Keyed;
use crate::request_log::{Early, Received, ReplyTo, RequestLog, Verdict};
use crate::target::TargetEntry;
use nacre_base::steps::Steps;
use nacre_base::{Nid, Payload, Time, Uuid};
use nacre_lnet::Place;
use nacre_wire::connect::{ConnectData, ConnectRequest, connect_flags};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use tokio::sync::Notify;

/// A client as one target sees it.
pub struct Export {
    /// Number of the export, in the header of every request.
    pub cookie: u64,
    /// The client.
    pub(crate) of: Arc<ExportClient>,
    /// Cookie of the client's previous export, as its connect request named it.
    previous: u64,
    pub(crate) entry: Arc<TargetEntry>,
    state: Mutex<State>,
    /// Time of the client's last request, ping or connect, in nanoseconds of [`Time`].
    last_heard: AtomicU64,
    /// True while the node looks at the export for early replies; it is, while requests run.
    pub(crate) is_watched: AtomicBool,
    stage: StageCell,
}

/// Client of exports. Its exports on one node share it.
pub(crate) struct ExportClient {
    pub(crate) uuid: Uuid,
    /// Readable name.
    pub(crate) name: Box<str>,
}

struct State {
    /// NID and import from which the client connected last.
    reply_to: ReplyTo,
    /// Number of the client's current connection.
    connection: u32,
    /// Xid of the latest connect request; a connect with a lower xid is a late duplicate.
    connect_xid: u64,
    /// Negotiated connect data, shared with other exports; none within the first connect.
    data: Option<Arc<ConnectData>>,
    reconnect: bool,
    /// Place among the exports of the client's host, until another export of the client takes it over.
    place: Option<Place<Nid>>,
    /// Made with the first request that is logged: most clients of a target only ping it.
    in_use: Option<Box<InUse>>,
}

/// State of an export that has, or had, requests.
#[derive(Default)]
struct InUse {
    log: RequestLog,
    /// Notified when the export is closed, has no running request left, or is gone.
    changed: Arc<Notify>,
}

/// Stage of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The target decides about the client's first connect. No request can name the export yet.
    New,
    /// Requests are taken.
    Connected,
    /// New requests are refused. Running requests end, and then the target forgets the client.
    Closed,
    /// The target has forgotten the client, or has stopped and keeps only the client's record on disk.
    Gone,
}

/// Event that changes the stage of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The target accepted the client's connect, the first or a later one.
    Connect,
    /// The client disconnects, is evicted, or connects anew, or the target stops.
    Close,
    /// The target has forgotten the client, or has stopped.
    Forget,
}

/// All steps. A closed export never takes requests again: its client gets a new export.
const STEPS: Steps<Stage, Event> = Steps(&[
    (Stage::New, Event::Connect, Stage::Connected),
    (Stage::New, Event::Close, Stage::Closed),
    (Stage::Connected, Event::Connect, Stage::Connected),
    (Stage::Connected, Event::Close, Stage::Closed),
    // The export was closed while the target handled the connect.
    (Stage::Closed, Event::Connect, Stage::Closed),
    (Stage::Closed, Event::Close, Stage::Closed),
    (Stage::Closed, Event::Forget, Stage::Gone),
    (Stage::Gone, Event::Connect, Stage::Gone),
    (Stage::Gone, Event::Close, Stage::Gone),
    // The target stopped while the client was being evicted.
    (Stage::Gone, Event::Forget, Stage::Gone),
]);

impl Stage {
    /// All stages, in the order of their numbers.
    const ALL: [Stage; 4] = [Stage::New, Stage::Connected, Stage::Closed, Stage::Gone];

    fn is_closed(self) -> bool {
        matches!(self, Stage::Closed | Stage::Gone)
    }
}

/// The number of a stage, which is read for every request without a lock. It changes by [`STEPS`] only.
struct StageCell(AtomicU8);

impl StageCell {
    fn new() -> StageCell {
        StageCell(AtomicU8::new(Stage::New as u8))
    }

    fn get(&self) -> Stage {
        Stage::ALL[usize::from(self.0.load(Ordering::Acquire))]
    }

    /// Moves to the stage that follows upon `event`. Returns the stage before.
    fn step(&self, event: Event) -> Stage {
        let mut number = self.0.load(Ordering::Acquire);
        loop {
            let stage = Stage::ALL[usize::from(number)];
            let next = STEPS.next(stage, event) as u8;
            match self.0.compare_exchange_weak(number, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return stage,
                Err(other) => number = other,
            }
        }
    }
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
        place: Place<Nid>,
        of: Arc<ExportClient>,
        request: &ConnectRequest,
        from: &Connecting,
    ) -> Arc<Export> {
        let state = State {
            reply_to: from.reply_to,
            connection: from.connection,
            connect_xid: from.xid,
            data: None,
            reconnect: false,
            place: Some(place),
            in_use: None,
        };
        Arc::new(Export {
            cookie,
            of,
            previous: request.previous_export,
            entry,
            state: Mutex::new(state),
            last_heard: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            stage: StageCell::new(),
        })
    }

    /// UUID of the client.
    pub fn client(&self) -> Uuid {
        self.of.uuid
    }

    /// Readable name of the client.
    pub fn client_name(&self) -> &str {
        &self.of.name
    }

    /// Name of the target.
    pub fn target(&self) -> &str {
        &self.entry.name
    }

    /// Takes the place of this export for the one that its client gets instead.
    pub(crate) fn take_place(&self) -> Option<Place<Nid>> {
        self.state.lock().place.take()
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
        self.state.lock().data.as_deref().cloned().unwrap_or_default()
    }

    /// Within [`crate::TargetHandler::connect`]: true if the client was connected before and keeps its state.
    pub fn is_reconnect(&self) -> bool {
        self.state.lock().reconnect
    }

    /// Returns whether the client disconnected, was evicted, or the target stopped.
    pub fn is_closed(&self) -> bool {
        self.stage.get().is_closed()
    }

    /// Ready when the client disconnected, was evicted, or the target stopped.
    pub fn closed(&self) -> impl Future<Output = ()> + '_ {
        self.until(|| self.is_closed())
    }

    /// Requests of this client that run or wait to be run.
    pub fn requests_running(&self) -> usize {
        self.state.lock().running()
    }

    pub(crate) async fn drained(&self) {
        self.until(|| self.requests_running() == 0).await;
    }

    /// Ready when the target has forgotten the client of this closed export.
    pub(crate) async fn gone(&self) {
        self.until(|| self.stage.get() == Stage::Gone).await;
    }

    pub(crate) fn handle_gone(&self) {
        self.stage.step(Event::Forget);
        self.notify_waiters();
    }

    /// Wakes tasks that wait for a change of this export.
    fn notify_waiters(&self) {
        let changed = self.state.lock().in_use.as_ref().map(|in_use| in_use.changed.clone());
        changed.into_iter().for_each(|changed| changed.notify_waiters());
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        if condition() {
            return;
        }
        let changed = self.state.lock().in_use.get_or_insert_default().changed.clone();
        loop {
            let mut changed = std::pin::pin!(changed.notified());
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
        let first = !self.stage.step(Event::Close).is_closed();
        self.notify_waiters();
        first
    }

    /// A request came over the connection with this number.
    pub(crate) fn handle_request(&self, connection: u32, request: Received) -> Entry {
        let mut s = self.state.lock();
        let stage = self.stage.get();
        if stage.is_closed() {
            return Entry::Closed;
        }
        assert_eq!(stage, Stage::Connected, "{self:?} has a request before its client is connected");
        if connection != s.connection {
            return Entry::Stale;
        }
        self.last_heard.store(request.at.0, Ordering::Relaxed);
        Entry::Logged(s.in_use.get_or_insert_default().log.handle_request(request))
    }

    /// A ping came. It is not logged, because it changes nothing.
    pub(crate) fn handle_ping(&self, connection: u32, now: Time) -> Entry {
        let s = self.state.lock();
        let stage = self.stage.get();
        if stage.is_closed() {
            return Entry::Closed;
        }
        assert_eq!(stage, Stage::Connected, "{self:?} has a ping before its client is connected");
        if connection != s.connection {
            return Entry::Stale;
        }
        self.handle_heard(now);
        Entry::Logged(Verdict::Execute)
    }

    pub(crate) fn handle_executed(&self, xid: u64, save: Option<Payload>) -> ReplyTo {
        let mut s = self.state.lock();
        let in_use = s.in_use.as_mut().expect("a request that was executed is in the log");
        let reply_to = in_use.log.handle_executed(xid, save);
        let drained = s.running() == 0;
        drop(s);
        if drained && self.is_closed() {
            self.notify_waiters();
        }
        reply_to
    }

    pub(crate) fn reply_to(&self, xid: u64) -> Option<ReplyTo> {
        self.state.lock().in_use.as_ref()?.log.reply_to(xid)
    }

    /// The client will wait for the reply to this request until `deadline`. Returns the address of the client, which has to be
    /// told.
    pub(crate) fn extend(&self, xid: u64, deadline: Time) -> Option<ReplyTo> {
        self.state.lock().in_use.as_mut()?.log.extend(xid, deadline)
    }

    pub(crate) fn deadline(&self, xid: u64) -> Option<Time> {
        self.state.lock().in_use.as_ref()?.log.deadline(xid)
    }

    pub(crate) fn handle_time(&self, now: Time) -> (Vec<Early>, Time) {
        let mut s = self.state.lock();
        s.in_use.as_mut().map_or((Vec::new(), Time::FAR_FUTURE), |in_use| in_use.log.handle_time(now))
    }

    /// Returns whether requests run.
    pub(crate) fn has_requests(&self) -> bool {
        self.state.lock().running() > 0
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
    pub(crate) fn handle_connected(&self, from: &Connecting, data: &ConnectData, now: Time) {
        self.handle_heard(now);
        let mut s = self.state.lock();
        // Connects of a client are handled one at a time, and a connect that is not newer is dropped.
        assert!(from.xid >= s.connect_xid, "{self:?}: the connect {} comes after {}", from.xid, s.connect_xid);
        (s.reply_to, s.connection, s.connect_xid, s.data) =
            (from.reply_to, from.connection, from.xid, Some(self.entry.share(data)));
        self.stage.step(Event::Connect);
    }

    pub(crate) fn handle_heard(&self, now: Time) {
        self.last_heard.store(now.0, Ordering::Relaxed);
    }

    /// A router says that the client lives. Returns false if the client has to ask itself, because the export is closed or
    /// none of its requests waits here: it may have missed a reply.
    pub fn renew(&self, now: Time) -> bool {
        let is_waiting = !self.is_closed() && self.requests_running() > 0;
        if is_waiting {
            self.handle_heard(now);
        }
        is_waiting
    }

    /// When the client sent its last request, ping or connect.
    pub fn last_heard(&self) -> Time {
        Time(self.last_heard.load(Ordering::Relaxed))
    }

    /// Returns whether the client is a server, which is not evicted for silence.
    pub(crate) fn is_server(&self) -> bool {
        self.has(connect_flags::MDS)
    }

    /// Returns whether the client keeps to windows.
    pub(crate) fn keeps_windows(&self) -> bool {
        self.has(connect_flags::CREDITS)
    }

    /// Returns whether a feature was negotiated.
    fn has(&self, feature: u64) -> bool {
        self.state.lock().data.as_ref().is_some_and(|data| data.flags & feature != 0)
    }
}

impl State {
    /// Requests that run or wait to be run.
    fn running(&self) -> usize {
        self.in_use.as_ref().map_or(0, |in_use| in_use.log.running())
    }
}

/// The cookie.
impl Keyed<u64> for Export {
    fn key(&self) -> &u64 {
        &self.cookie
    }
}

/// The client.
impl Keyed<Uuid> for Export {
    fn key(&self) -> &Uuid {
        &self.of.uuid
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "export {:#x} of {} for {} ({})", self.cookie, self.target(), self.client_name(), self.client())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound_and_a_closed_export_stays_closed() {
        STEPS.assert_sound();
        let reopens = |(from, _, to): &(Stage, Event, Stage)| from.is_closed() && !to.is_closed();
        assert!(!STEPS.0.iter().any(reopens));
        assert!(Stage::ALL.iter().enumerate().all(|(number, stage)| *stage as usize == number));
        assert_eq!(STEPS.find(Stage::New, Event::Forget), None, "a client that was refused has nothing to forget");
    }

    /// An eviction and a stop of the target may close an export at the same time.
    #[test]
    fn an_export_is_closed_once_and_may_be_forgotten_twice() {
        let stage = StageCell::new();
        let events = [Event::Connect, Event::Close, Event::Close, Event::Connect, Event::Forget, Event::Forget];
        let before = events.map(|event| stage.step(event));
        let expected = [Stage::New, Stage::Connected, Stage::Closed, Stage::Closed, Stage::Closed, Stage::Gone];
        assert_eq!((before, stage.get()), (expected, Stage::Gone));
    }

    #[test]
    #[should_panic(expected = "Forget in state Connected")]
    fn forgetting_a_client_whose_requests_are_taken_is_a_defect() {
        let stage = StageCell::new();
        stage.step(Event::Connect);
        stage.step(Event::Forget);
    }
}
