//! The client's side of a connection: one import per target. The engines `import_state`, `calls` and `adaptive_timeout`
//! hold the state of an import; this file connects them to the network. Connecting is in `connect`.

use crate::accounting::{parts_of_call, parts_of_reply};
use crate::adaptive_timeout::{Estimator, LaneEstimators, request_timeout};
use crate::attached::{Attachments, Moment};
use crate::call::{BULK_MAX, Bulk, CallOptions, INLINE_MAX, Reply};
use crate::calls::{Spec, Step};
use crate::deadlines::Armed;
use crate::eager::EAGER_MAX;
use crate::error::RpcError;
use crate::flights::{Flights, Traffic};
use crate::import_calls::ImportCalls;
use crate::import_config::{ImportClient, ImportTarget};
use crate::import_state::{Connection, ImportMachine};
use crate::liveness::{self, Pings};
use crate::message::{GOODBYE_XID, Incoming, LockPool, encode, micros, millis, request_portal};
use crate::node::NodeShared;
use crate::node_core::NodeCore;
use crate::nrs::is_high_priority;
use crate::pings_in_flight::PingsInFlight;
use crate::quiet_stats::QuietStats;
use crate::replay::{CommitCallback, Fate, Kept, Replayable, Replaying, Replays};
use crate::stats::OpSums;
use crate::window::Credits;
use bytes::Bytes;
use nacre_base::tally::Sums;
use nacre_base::{Errno, Network, Nid, Part, Payload, TargetKind, Time};
use nacre_lnet::{Loss, MAX_PAYLOAD, MESSAGE_MAX, MdGuard, Purpose, SinkGuard};
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::header::{HEADER_BYTES, flags};
use nacre_wire::{Field, Lane, Opcode, RpcHeader, RpcKind};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub use crate::attached::Recovering;
pub use crate::import_state::ImportState;

/// A connection to a target that outlives restarts and moves of the server. Dropping the import fails its calls;
/// [`Import::disconnect`] also tells the server.
pub struct Import(pub(crate) Arc<ImportShared>);

pub(crate) struct ImportShared {
    /// The node, which lives as long as its imports.
    pub(crate) node: Arc<NodeShared>,
    pub(crate) client: Arc<ImportClient>,
    pub(crate) target: Arc<ImportTarget>,
    /// Number of the import: the match bits of its requests and of their replies.
    pub(crate) id: u64,
    pub(crate) state: Mutex<State>,
    /// When the node looks at this import next.
    pub(crate) armed: Armed,
    pub(crate) attached: Attachments,
}

pub(crate) struct State {
    pub(crate) machine: ImportMachine,
    pub(crate) calls: ImportCalls,
    pub(crate) pings: PingsInFlight,
    /// Response times of connects and pings; those of other requests are in the attachments.
    quiet: QuietStats,
    /// Requests that were answered and whose changes are not durable yet.
    pub(crate) replays: Replays,
    /// Estimated service time of each lane.
    pub(crate) service: LaneEstimators,
    pub(crate) network: Estimator,
    /// True while a task is connecting, or pausing between connects.
    pub(crate) connecting: bool,
    /// True if the server is pinged while the import is idle.
    keep_alive: bool,
    told_of_restarts: bool,
    /// Time in nanoseconds after which an import without anything to do is disconnected; none if it stays connected.
    idle_timeout: Option<NonZeroU64>,
    /// True if the server refused the latest connect with EBUSY: a later one may succeed.
    pub(crate) was_busy: bool,
    last_sent: Time,
    /// See [`State::last_reply`].
    replied_at: Time,
    pub(crate) last_committed: u64,
    /// Server instance at which the requests in `replays` were executed, or replayed. No instance is 0.
    pub(crate) recovered_at: Option<NonZeroU64>,
    /// Lock volume and limit from the server's latest reply.
    pub(crate) lock_pool: LockPool,
    pub(crate) timeouts: u32,
}

impl State {
    /// The server says that all changes up to `upto` are durable. Returns the callbacks to call.
    #[must_use]
    pub(crate) fn handle_committed(&mut self, upto: u64) -> Vec<CommitCallback> {
        self.last_committed = self.last_committed.max(upto);
        self.replays.handle_committed(upto)
    }

    /// Ends a recovery that is under way, because its connection is lost.
    fn break_off_recovery(&mut self) {
        self.calls.in_use().into_iter().for_each(|calls| calls.fail_recovery());
        self.replays.take_sent(|_| true);
        self.pings.handle_lost();
    }

    /// Time of the server's latest reply.
    pub(crate) fn last_reply(&self) -> Option<Time> {
        Some(self.replied_at).filter(|at| *at > Time::ZERO)
    }

    /// The server has replied.
    pub(crate) fn note_reply(&mut self, now: Time) {
        self.replied_at = now;
    }

    /// The import and its server agree on the state of this instance.
    pub(crate) fn note_recovered(&mut self, instance: u64) {
        self.recovered_at = NonZeroU64::new(instance);
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout.map(|nanos| Duration::from_nanos(nanos.get()))
    }

    /// Returns whether nothing was asked that has no answer yet.
    pub(crate) fn is_quiet(&self) -> bool {
        self.calls.is_empty() && self.pings.is_empty()
    }

    /// Requests sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.in_flight() + self.pings.len()
    }

    /// True if the server is pinged while the import is idle.
    fn pings(&self, node: &NodeCore) -> bool {
        let only_holding = matches!(node.liveness.pings(), Pings::Holding | Pings::Lease);
        let holds = self.keep_alive || !self.told_of_restarts || !only_holding;
        self.replays.len() > 0 || holds && !node.liveness.is_suppressed()
    }

    /// When the import is disconnected if nothing is sent before: it has no calls, and keeps nothing at the server.
    fn next_rest(&self) -> Option<Time> {
        let timeout = self.idle_timeout().filter(|_| self.machine.state() == ImportState::Full)?;
        let keeps = self.keep_alive || self.replays.len() > 0 || !self.is_quiet();
        (!keeps).then(|| self.last_sent.max(self.replied_at) + timeout)
    }

    /// When the server is pinged if nothing is sent to it before.
    fn next_ping(&self, import: &ImportShared) -> Option<Time> {
        if !self.pings(&import.node) {
            return None;
        }
        let commits = if self.replays.len() > 0 { self.last_sent + COMMIT_PING_INTERVAL } else { Time::FAR_FUTURE };
        if import.node.liveness.is_suppressed() {
            return Some(commits);
        }
        let phase = liveness::phase(import.client.uuid, import.id);
        let next = import.node.liveness.next(self.last_sent, import.node.clocks(), phase);
        // A lease says that the client is alive, but not whether the server was restarted.
        let leased = import.node.liveness.pings() == Pings::Lease && self.told_of_restarts;
        let lost_at = if leased { import.node.renewals.lost_at(import.client.uuid) } else { None };
        Some(next.max(lost_at.unwrap_or(Time::ZERO)).min(commits))
    }
}

/// An idle import with changes that are not durable yet asks this often whether they are, as in the paper on
/// asynchronous journal commits.
pub(crate) const COMMIT_PING_INTERVAL: Duration = Duration::from_secs(7);
/// Longest time between a reply and the bulk that belongs to it.
const BULK_TIMEOUT: Duration = Duration::from_secs(10);
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Import {
    pub(crate) fn new(node: Arc<NodeShared>, id: u64, client: Arc<ImportClient>, target: Arc<ImportTarget>) -> Import {
        let now = node.rt.now();
        let state = State {
            machine: ImportMachine::new(now, &target.nids),
            calls: ImportCalls::new(),
            pings: PingsInFlight::default(),
            quiet: QuietStats::default(),
            replays: Replays::default(),
            service: LaneEstimators::default(),
            network: Estimator::default(),
            connecting: false,
            keep_alive: false,
            idle_timeout: None,
            told_of_restarts: true,
            was_busy: false,
            last_sent: now,
            replied_at: Time::ZERO,
            last_committed: 0,
            recovered_at: None,
            lock_pool: LockPool::default(),
            timeouts: 0,
        };
        let shared = Arc::new(ImportShared {
            node,
            client,
            target,
            id,
            state: Mutex::new(state),
            armed: Armed::default(),
            attached: Attachments::default(),
        });
        Import(shared)
    }

    /// Response times of requests with this opcode, as the client sees them.
    pub fn stats(&self, opcode: Opcode) -> Sums {
        let s = self.0.state.lock();
        s.quiet.get(opcode).unwrap_or_else(|| self.0.attached.sums_of(opcode))
    }

    /// Sends a request to the target, connecting first if needed, and waits for the reply. The request is sent again
    /// over new connections, with the same xid. The call does not give up by itself unless the client is evicted, the
    /// import is closed, the target refuses the connection, or the options say so.
    ///
    /// Dropping the future abandons the call; a call with `modify` then continues in the background.
    pub async fn call<Rep: Field>(
        &self,
        opcode: Opcode,
        body: &impl Field,
        options: CallOptions,
    ) -> Result<Reply<Rep>, RpcError> {
        let mut call = self.start(opcode, body, options)?;
        call.answer().await
    }

    /// Registers a call as [`Import::call`] does, to be sent and answered later. A client that has many calls which wait for long keeps
    /// less memory so: the future of `call` contains the body and the options to the end.
    pub fn start(&self, opcode: Opcode, body: &impl Field, options: CallOptions) -> Result<Started, RpcError> {
        Ongoing::start(&self.0, opcode, nacre_wire::encode(body), options).map(Started)
    }

    /// Sets the NIDs where the target may be served.
    pub fn set_nids(&self, nids: Vec<Nid>) {
        self.0.state.lock().machine.handle_nids(&Arc::new(nids));
        self.0.attached.nudge().notify_one();
        self.0.connect_if_wanted();
    }

    /// The target has restarted as `instance` (imperative recovery): reconnect now if this import does not know that
    /// instance.
    pub fn notify_restart(&self, instance: u64) {
        let now = self.0.node.rt.now();
        let nids = {
            let mut s = self.0.state.lock();
            if s.machine.handle_restart(now, instance) {
                tracing::info!("{}: the target was restarted, reconnecting", self.0.target.label);
                s.break_off_recovery();
            }
            // A connect that is under way may have gone to a node that was dead at that time.
            s.calls.in_use().into_iter().for_each(|calls| calls.fail_control(RpcError::Unreachable));
            s.machine.nids()
        };
        // The target has just started at one of these NIDs, where an earlier attempt may have failed.
        nids.into_iter().for_each(|nid| self.0.node.lnet.forget_failures(nid));
        self.0.attached.nudge().notify_one();
        self.0.connect_if_wanted();
    }

    /// Turns pings of an idle import on or off. They tell the target that this client is alive, and are needed while
    /// the client has state at the server, such as open files.
    pub fn set_keep_alive(&self, on: bool) {
        self.0.state.lock().keep_alive = on;
        self.0.arm_idle();
    }

    /// Sets after what time the import is disconnected if it has nothing to do and its client keeps nothing at the server
    /// ([`Import::set_keep_alive`]); none, or zero, for never.
    pub fn set_idle_timeout(&self, timeout: Option<Duration>) {
        let nanos = timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.0.state.lock().idle_timeout = NonZeroU64::new(nanos);
        self.0.arm_idle();
    }

    /// The server that the import is connected to, and the cookie of the client's export there; none without a connection.
    pub fn export(&self) -> Option<(Nid, u64)> {
        self.0.state.lock().machine.connection().map(|c| (c.nid, c.export))
    }

    /// The time of [`Import::set_idle_timeout`].
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.0.state.lock().idle_timeout()
    }

    /// Adds a hook that runs when the server has forgotten the client because the import had nothing to do, before it connects
    /// again. The hook must not wait.
    pub fn on_rested(&self, f: impl Fn() + Send + Sync + 'static) {
        self.0.attached.all().add_hook(Moment::Rested, f);
    }

    /// Pings the target now if the client holds something there, because the target may have evicted it.
    pub fn check(&self) {
        if self.0.state.lock().keep_alive {
            self.0.ping();
        }
    }

    /// Pings the target now, if it is connected, beside pings that are under way.
    pub fn ping(&self) {
        self.0.ping();
    }

    /// Sets whether this import is told of restarts of the server ([`Import::notify_restart`]). If it is not, the
    /// target is pinged while the import is idle: in a recovery all other clients would wait for one that has not heard
    /// of the restart.
    pub fn set_told_of_restarts(&self, told: bool) {
        self.0.state.lock().told_of_restarts = told;
        self.0.arm_idle();
    }

    /// Returns whether the server refused the latest connect with EBUSY, as a target in recovery does with clients that
    /// it does not know.
    pub fn waits_for_recovery(&self) -> bool {
        self.0.state.lock().was_busy
    }

    /// True if no node of the target could be connected to since the last connection was lost.
    pub fn is_unreachable(&self) -> bool {
        self.0.state.lock().machine.is_unreachable()
    }

    /// Time of the server's latest reply.
    pub fn last_reply(&self) -> Option<Time> {
        self.0.state.lock().last_reply()
    }

    /// Negotiated connect data; before the first connection, what the client asks for.
    pub fn connect_data(&self) -> ConnectData {
        self.0.connect_data(&self.0.state.lock()).clone()
    }

    /// State of the import.
    pub fn state(&self) -> ImportState {
        self.0.state.lock().machine.state()
    }

    /// How often the server has evicted this client.
    pub fn generation(&self) -> u32 {
        self.0.state.lock().machine.generation()
    }

    /// Lock volume and limit as the server last said; limit 0 if it never did.
    pub fn lock_pool(&self) -> LockPool {
        self.0.state.lock().lock_pool
    }

    /// Takes over what the server said of its own accord.
    pub fn set_lock_pool(&self, pool: LockPool) {
        self.0.state.lock().lock_pool = pool;
    }

    /// Counts of requests of a kind in flight: now, and since the last [`Import::clear_flights`].
    pub fn flights(&self, traffic: Traffic) -> Flights {
        self.0.state.lock().calls.flights.get(traffic).clone()
    }

    /// Resets the counts of requests that were in flight together.
    pub fn clear_flights(&self) {
        self.0.state.lock().calls.in_use().into_iter().for_each(|calls| calls.flights.clear());
    }

    /// Bytes of the calls with this opcode that wait to be sent.
    pub fn queued_bytes(&self, opcode: Opcode) -> u64 {
        self.0.state.lock().calls.queued_bytes(opcode)
    }

    /// Number of changes that were answered and are not durable yet, and the bytes of data in them.
    pub fn unstable(&self) -> (usize, u64) {
        let s = self.0.state.lock();
        (s.replays.len(), s.replays.unstable_bytes())
    }

    /// Client that the import connects for.
    pub fn client(&self) -> &Arc<ImportClient> {
        &self.0.client
    }

    /// Target of the import.
    pub fn target(&self) -> &Arc<ImportTarget> {
        &self.0.target
    }

    /// Disconnects from the server, if it can be reached, and fails all calls from now on.
    pub async fn disconnect(&self) {
        self.0.disconnect().await;
    }

    /// Adds a hook that runs when the server has evicted this client, before any further request is sent: caches and
    /// handles are void. The hook must not wait.
    pub fn on_evicted(&self, f: impl Fn() + Send + Sync + 'static) {
        self.0.attached.all().add_hook(Moment::Evicted, f);
    }

    /// Adds a hook that restores, at a restarted server, state that no replayed request restores: open files, locks.
    /// The hook runs after requests were replayed, and runs again if the connection is lost meanwhile. It makes its
    /// calls with [`CallOptions::recovery`].
    pub fn on_recover(&self, f: impl Fn() -> Recovering + Send + Sync + 'static) {
        self.0.attached.all().add_recover_hook(f);
    }

    /// Adds a hook that runs when the server has restarted and remembers no client, before any further request is sent:
    /// it has lost all locks. The hook must not wait.
    pub fn on_restarted(&self, f: impl Fn() + Send + Sync + 'static) {
        self.0.attached.all().add_hook(Moment::Restarted, f);
    }

    /// Adds a hook that runs when the connection is lost, before the next attempt to connect. The hook must not wait.
    pub fn on_lost(&self, f: impl Fn() + Send + Sync + 'static) {
        self.0.attached.all().add_hook(Moment::Lost, f);
    }

    /// Sets two hooks that must not wait. `ask` completes each connect request, e.g. with the grant that is held;
    /// `connected` takes each reply, before any further request is sent and after the hooks for an eviction or restart.
    /// Only the first pair counts.
    pub fn on_connect(
        &self,
        ask: impl Fn(&mut ConnectData) + Send + Sync + 'static,
        connected: impl Fn(&ConnectData) + Send + Sync + 'static,
    ) {
        self.0.attached.all().set_connect_hooks(ask, connected);
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        self.0.close();
        self.0.unlist();
        self.0.node.forget_import(self.0.id);
    }
}

impl ImportShared {
    /// A reply for this import arrived.
    pub(crate) fn handle_message(self: &Arc<Self>, from: Nid, message: Incoming) {
        let now = self.node.rt.now();
        let mut s = self.state.lock();
        // Import numbers and xids can be guessed, so a reply counts only if it comes from a NID of the server, or from
        // this very process.
        if from != Nid::LO && !s.machine.knows(from) {
            tracing::debug!("{}: {from} answered in the place of {}: not heard", self.target.label, self.target.name);
            return;
        }
        let header = &message.header;
        let service_estimate = Duration::from_millis(header.timeout_ms.into());
        if message.kind == RpcKind::EarlyReply {
            let network = s.network.estimate(now);
            let deadline = now + service_estimate + network;
            s.pings.handle_early_reply(header.xid, deadline);
            s.calls.in_use().and_then(|calls| calls.handle_early_reply(header.xid, deadline));
            if let Some(sent) = s.replays.sent().filter(|sent| sent.xid == header.xid) {
                sent.deadline = sent.deadline.max(deadline);
            }
            return;
        }
        if header.xid == GOODBYE_XID {
            let current = s.machine.recovery_connection().filter(|c| c.export == header.export);
            drop(s);
            return current.into_iter().for_each(|c| self.handle_lost(c.connection, "the target was stopped"));
        }
        if header.status == -Errno::ENOTCONN.0 && header.export == 0 {
            let asked = s.calls.answered(header.xid).filter(|a| !a.control).map(|a| a.sent_on);
            if let Some(sent_on) = asked.or_else(|| s.pings.sent_on(header.xid)) {
                drop(s);
                return self.handle_lost(sent_on, "the server does not know the export");
            }
        }
        if header.has(flags::SEND_AGAIN) {
            // A replay is not among the calls: it is made again with the recovery, when its time is over.
            let export = s.machine.export();
            return s.calls.in_use().into_iter().for_each(|calls| calls.handle_send_again(header, export));
        }
        // A reply that the server sent before its restart may still arrive; it names another export.
        let is_answered = |sent: &Replaying| sent.xid == header.xid && sent.export == header.export;
        if let Some(sent) = s.replays.take_sent(is_answered) {
            drop(s);
            let _ = sent.answer.send(message);
            return;
        }
        let spent = Duration::from_micros(u64::from(header.service_time_us) + u64::from(header.queue_time_us));
        let export = s.machine.export();
        let (committed, granted) =
            (header.last_committed, Credits { rpcs: header.credits_granted, bytes: header.bytes_granted });
        let eager_bytes = header.eager_bytes;
        let pool = LockPool { volume: header.server_lock_volume, limit: header.lock_limit };
        let (transno, pre_versions, body) = (header.transno, header.pre_versions, message.body.clone());
        let times = parts_of_reply(header);
        let of_ping = s.pings.handle_reply(header, export);
        let of_call = |calls: &mut ImportCalls| calls.in_use()?.handle_reply(message, export);
        let Some(answered) = of_ping.or_else(|| of_call(&mut s.calls)) else { return };
        let (xid, mut guard) = (answered.xid, s);
        let s = &mut *guard;
        s.service.handle_sample(answered.lane, now, service_estimate.min(crate::adaptive_timeout::AT_MAX));
        let round_trip = now.since(answered.sent_at);
        if answered.sent_once {
            s.network.handle_sample(now, round_trip.saturating_sub(spent));
            s.calls.distance.handle_round_trip(round_trip.saturating_sub(spent), answered.has_bulk);
        }
        if !s.quiet.count(answered.opcode, round_trip) {
            // What is asked of an MGS waits for news, and a mount's first question for the root is for no program either.
            let is_for_programs = self.target.kind != TargetKind::Mgt && answered.opcode != Opcode::MdsGetRoot;
            let parts = is_for_programs.then(|| parts_of_call(times, answered.waited, now.since(answered.started)));
            self.attached.count(answered.opcode, round_trip, parts.as_ref());
        }
        s.note_reply(now);
        // A connect reply may come from a restarted server, whose transnos say nothing about the changes made before.
        let grants = answered.in_window || answered.is_connect();
        let mut durable = if answered.is_connect() { Vec::new() } else { s.handle_committed(committed) };
        match answered.replay {
            Some(request) if transno > s.last_committed => {
                if s.replays.len() == 0 {
                    self.arm(now + COMMIT_PING_INTERVAL);
                }
                let tag = answered.tag.0;
                let kept = Kept { request, xid, tag, reply: body, pre_versions };
                s.replays.keep(transno, kept, &self.node.unstable);
            }
            Some(request) => durable.extend(request.on_commit.clone()),
            None => {}
        }
        if pool.limit != 0 {
            s.lock_pool = pool;
        }
        if grants {
            s.calls.distance.handle_grant(eager_bytes);
        }
        // Replies to requests outside of the window say nothing of it.
        if grants && self.connect_data(s).flags & connect_flags::CREDITS != 0 {
            s.calls.handle_grant(granted);
        }
        drop(guard);
        tell_all(&durable, Fate::Durable);
    }

    /// Response times by opcode. A reply wakes its caller before it is counted, and is counted under the lock of the state;
    /// so this takes the lock, and the caller finds its own request counted.
    pub(crate) fn sums(&self) -> OpSums {
        let s = self.state.lock();
        let mut sums = self.attached.sums();
        for opcode in [connect_opcode(self.target.kind), Opcode::ObdPing] {
            s.quiet.get(opcode).into_iter().for_each(|quiet| sums.insert(opcode, quiet));
        }
        sums
    }

    /// Negotiated connect data; before the first connection, what the client asks for.
    pub(crate) fn connect_data<'a>(&'a self, s: &'a State) -> &'a ConnectData {
        s.machine.negotiated().unwrap_or(&self.target.data)
    }

    /// Has the node look at this import by `at`.
    fn arm(&self, at: Time) {
        self.node.deadlines.arm(&self.armed, self.id, at);
    }

    /// A network can be reached again: a connect to a target there need not wait any longer.
    pub(crate) fn handle_reached(&self, network: Network) {
        // Only imports that have paused have one.
        if let Some(nudge) = self.attached.nudge_if_made()
            && self.state.lock().machine.is_on(network)
        {
            nudge.notify_waiters();
        }
    }

    /// If the connection with this number is in use, it is lost: connect again.
    pub(crate) fn handle_lost(self: &Arc<Self>, connection: u32, why: &str) {
        let mut s = self.state.lock();
        if s.machine.handle_lost(self.node.rt.now(), connection) {
            tracing::info!("{}: connection to {} lost: {why}", self.target.label, self.target.name);
            s.calls.in_use().into_iter().for_each(|calls| calls.fail_no_delay());
            s.break_off_recovery();
            drop(s);
            self.run_hooks(Moment::Lost);
            self.connect_if_wanted();
        }
    }

    /// The network may have lost messages to and from these nodes.
    pub(crate) fn handle_loss(self: &Arc<Self>, nids: &BTreeSet<Nid>, loss: Loss) {
        let mut s = self.state.lock();
        if !s.machine.current_nid().is_some_and(|nid| nids.contains(&nid)) {
            return;
        }
        let connection = s.machine.recovery_connection().map(|c| c.connection);
        match connection {
            // An import without state at the server need not react: the peer may only have closed an idle socket, and
            // the next request will find out.
            Some(connection) if s.in_flight() > 0 || s.pings(&self.node) || s.machine.is_recovering() => {
                drop(s);
                let why = match loss {
                    Loss::Peer => "the peer is down",
                    Loss::OnTheWay => "messages may have been lost on the way",
                };
                self.handle_lost(connection, why);
            }
            Some(_) => {}
            None => {
                let error = match loss {
                    Loss::Peer => RpcError::Unreachable,
                    Loss::OnTheWay => RpcError::Lost,
                };
                s.calls.in_use().into_iter().for_each(|calls| calls.fail_control(error));
            }
        }
    }

    fn run_hooks(&self, at: Moment) {
        self.attached.hooks(at).iter().for_each(|hook| hook());
    }

    /// Handles deadlines that are due at `now`. Returns when to call this again, and whether to ping the target now.
    pub(crate) fn handle_time(self: &Arc<Self>, now: Time) -> (Time, bool) {
        let mut s = self.state.lock();
        let mut is_ping_due = false;
        let rests_at = s.next_rest().filter(|_| !s.connecting).unwrap_or(Time::FAR_FUTURE);
        if rests_at <= now {
            s.connecting = true;
            drop(s);
            drop(self.node.rt.spawn(self.clone().rest()));
            return (Time::FAR_FUTURE, false);
        }
        let current = s.machine.recovery_connection();
        let connection = current.map(|c| c.connection);
        let mut expired = s.calls.handle_time(now, connection);
        let answered_by = s.pings.deadline(current);
        if answered_by <= now {
            (expired.lost, expired.unanswered) = (connection, true);
        } else {
            expired.next = expired.next.min(answered_by);
        }
        if let Some(nid) = s.machine.current_nid().filter(|_| expired.unanswered) {
            self.node.lnet.doubt(nid);
        }
        let mut next = expired.next.min(rests_at);
        if connection.is_some()
            && let Some(mut at) = s.next_ping(self)
        {
            if at <= now {
                (s.last_sent, is_ping_due) = (now, true);
                at = s.next_ping(self).unwrap_or(Time::FAR_FUTURE);
            }
            next = next.min(at);
        }
        if let Some(connection) = expired.lost {
            s.timeouts += 1;
            drop(s);
            self.handle_lost(connection, "a request timed out");
        }
        (next, is_ping_due)
    }

    /// The connection over which the target is pinged while the import is idle; none if it is not pinged, or not connected.
    pub(crate) fn pinged_connection(&self) -> Option<Connection> {
        let s = self.state.lock();
        s.machine.connection().filter(|_| s.pings(&self.node))
    }

    /// The import was connected without a message: what the reply would have left in it.
    pub(crate) fn note_connected(&self, header: &RpcHeader) {
        let now = self.node.rt.now();
        {
            let mut s = self.state.lock();
            s.last_sent = now;
            s.note_reply(now);
            s.quiet.count(connect_opcode(self.target.kind), Duration::ZERO);
            if header.lock_limit != 0 {
                s.lock_pool = LockPool { volume: header.server_lock_volume, limit: header.lock_limit };
            }
        }
        self.arm_idle();
    }

    /// Another import's ping speaks for this one.
    pub(crate) fn note_pinged(&self, now: Time) {
        self.state.lock().last_sent = now;
    }

    /// Has the node look at this import when its next ping is due, or when it is to be disconnected.
    fn arm_idle(&self) {
        let s = self.state.lock();
        let next = [s.next_ping(self), s.next_rest()].into_iter().flatten().min();
        next.into_iter().for_each(|at| self.arm(at));
    }

    /// The time for a ping has come: pings the target, unless a ping is under way.
    pub(crate) fn ping_if_quiet(self: &Arc<Self>) {
        let is_pinging = {
            let s = self.state.lock();
            s.machine.connection().is_some_and(|c| s.pings.is_on(c.connection))
        };
        if !is_pinging {
            self.ping();
        }
    }

    /// Pings the target, unless there is no connection.
    pub(crate) fn ping(self: &Arc<Self>) {
        let (node, lane) = (&self.node, Lane::Control);
        let now = node.rt.now();
        let mut s = self.state.lock();
        let Some(to) = s.machine.connection() else { return };
        let service = s.service.of(lane).estimate(now);
        let timeout = request_timeout(node.at_min(), service, s.network.estimate(now));
        let xid = node.next_xid();
        let header = RpcHeader {
            xid,
            trace_id: xid,
            lane: lane as u8,
            opcode: Opcode::ObdPing as u32,
            export: to.export,
            connection_count: to.connection,
            timeout_ms: millis(timeout),
            last_xid: match s.calls.last_xid(lane) {
                0 => xid - 1,
                before => before,
            },
            ..RpcHeader::default()
        };
        s.pings.handle_sent(xid, to.connection, now, now + timeout);
        s.last_sent = now;
        self.arm(now + timeout);
        drop(s);
        let payload = encode(RpcKind::Request, &header, &[], Payload::new());
        if let Err(e) = node.lnet.post_tagged(to.nid, request_portal(lane), None, self.id, to.connection, payload) {
            self.handle_lost(to.connection, &e.to_string());
        }
    }

    pub(crate) fn close(&self) {
        let mut s = self.state.lock();
        s.machine.close(self.node.rt.now());
        s.calls.in_use().into_iter().for_each(|calls| calls.fail_all(RpcError::Closed));
        s.pings.handle_lost();
        self.attached.nudge().notify_one();
    }

    pub(crate) async fn disconnect(self: &Arc<Self>) {
        // Needed in the middle of a recovery, too, or the server would wait for this client.
        let connection = self.state.lock().machine.recovery_connection();
        // Closed first, so that calls that still wait do not connect again when the server closes the export.
        self.close();
        if let Some(connection) = connection {
            self.say_goodbye(connection).await;
        }
    }

    /// Tells the server to forget this client. Returns whether it has answered that it did, durably.
    async fn say_goodbye(self: &Arc<Self>, c: Connection) -> bool {
        let opcode = match self.target.kind {
            TargetKind::Mgt => Opcode::MgsDisconnect,
            TargetKind::Mdt => Opcode::MdsDisconnect,
            TargetKind::Ost => Opcode::OstDisconnect,
        };
        let give_up = self.node.rt.now() + DISCONNECT_TIMEOUT;
        let header = RpcHeader { export: c.export, connection_count: c.connection, ..RpcHeader::default() };
        let answer = self.control_call(c.nid, opcode, header, Bytes::new(), give_up).await;
        answer.is_ok_and(|reply| Errno::from_status(reply.header.status).is_ok())
    }

    /// Disconnects because there is nothing to do. `connecting` is set, so that calls that come meanwhile wait until the server
    /// has forgotten the client: their connect must not overtake the goodbye.
    async fn rest(self: Arc<Self>) {
        let connection = {
            let mut s = self.state.lock();
            assert!(s.connecting, "{}: rests, and may connect meanwhile", self.target.label);
            // Something may have come since.
            let is_due = s.next_rest().is_some_and(|at| at <= self.node.rt.now());
            if is_due { s.machine.rest(self.node.rt.now()) } else { None }
        };
        if let Some(connection) = connection {
            tracing::debug!("{}: disconnects, because there is nothing to do", self.target.label);
            let answered = self.say_goodbye(connection).await;
            self.state.lock().machine.handle_left(self.node.rt.now(), answered);
            if answered {
                self.run_hooks(Moment::Rested);
            }
        }
        self.state.lock().connecting = false;
        self.connect_if_wanted();
    }

    /// Sends a control request, such as a connect, to a NID, once, whatever the state of the import.
    pub(crate) async fn control_call(
        self: &Arc<Self>,
        nid: Nid,
        opcode: Opcode,
        mut header: RpcHeader,
        body: Bytes,
        give_up: Time,
    ) -> Result<Incoming, RpcError> {
        let spec = Spec {
            opcode,
            lane: Lane::Control,
            modify: false,
            window: None,
            lockless: false,
            no_delay: true,
            control: true,
            recovery: false,
            replay: None,
            give_up,
        };
        let (rt, now) = (&self.node.rt, self.node.rt.now());
        let mut call = Ongoing::register(self, spec, body)?;
        if !call.request().begin_if_ready(&mut self.state.lock(), &mut header, now, give_up) {
            return call.run().await;
        }
        header.timeout_ms = millis(give_up.since(now));
        let payload = encode(RpcKind::Request, &header, &call.request().body, Payload::new());
        let put = self.node.lnet.put(nid, request_portal(Lane::Control), self.id, payload);
        match rt.timeout_at(give_up, put).await {
            Ok(Ok(())) => call.run().await,
            Ok(Err(e)) => {
                tracing::debug!("{}: {opcode} to {nid}: {e}", self.target.label);
                Err(RpcError::Unreachable)
            }
            Err(_) => Err(RpcError::TimedOut),
        }
    }
}

/// A call that was started. It is sent once [`Started::answer`] is polled, and dropping it abandons the call.
pub struct Started(Ongoing);

impl Started {
    /// Sends the request and waits for the reply, as [`Import::call`] does. To be called once.
    pub async fn answer<Rep: Field>(&mut self) -> Result<Reply<Rep>, RpcError> {
        let reply = self.0.run().await?;
        if reply.header.has(flags::COME_AGAIN) {
            return Err(RpcError::ComeAgain(Duration::from_micros(reply.header.window_wait_us.into())));
        }
        Errno::from_status(reply.header.status).map_err(RpcError::Status)?;
        Ok(Reply { body: nacre_wire::decode(&reply.body)?, header: reply.header, data: reply.data })
    }
}

/// A call that is under way. Dropping it abandons the call; a modify request that was sent continues in a task of its
/// own.
pub(crate) struct Ongoing(Option<Request>);

/// Data needed to send a call's request, repeatedly if necessary.
struct Request {
    import: Arc<ImportShared>,
    xid: u64,
    spec: Spec,
    /// Encoded body.
    body: Bytes,
    inline: Payload,
    fixed: Fixed,
    /// Data exposed for the server to pull, over all resends.
    source: Option<MdGuard>,
    sink: Option<SinkGuard>,
    /// Bytes of data that are under way with the request, beyond what every request may bring.
    eager: u64,
}

/// Header fields that are the same each time that the request is sent. A client may have many requests that wait, and a whole
/// header is large.
#[derive(Default)]
struct Fixed {
    flags: u32,
    uid: u32,
    gid: u32,
    jobid: [u8; 32],
    bulk_bytes: u32,
    match_bits: u64,
    /// See [`CallOptions::backlog`].
    backlog: u64,
}

impl Fixed {
    fn header(&self) -> RpcHeader {
        let Fixed { flags, uid, gid, jobid, bulk_bytes, match_bits, backlog: _ } = *self;
        RpcHeader { flags, uid, gid, jobid, bulk_bytes, match_bits, ..RpcHeader::default() }
    }
}

impl Ongoing {
    pub(crate) fn start(
        import: &Arc<ImportShared>,
        opcode: Opcode,
        body: Bytes,
        options: CallOptions,
    ) -> Result<Ongoing, RpcError> {
        let now = import.node.rt.now();
        let bulk_len = match &options.bulk {
            Bulk::None => 0,
            Bulk::Send(data) => data.len(),
            Bulk::Receive { max_len } => *max_len,
        };
        if bulk_len > BULK_MAX || body.len() + HEADER_BYTES + INLINE_MAX > MAX_PAYLOAD {
            return Err(RpcError::Status(Errno::E2BIG));
        }
        let fixed = Fixed {
            flags: (if options.high_priority { flags::HIGH_PRIORITY } else { 0 })
                | (if options.recovery { flags::REPLAY } else { 0 }),
            uid: options.uid,
            gid: options.gid,
            jobid: options.jobid,
            bulk_bytes: bulk_len as u32,
            match_bits: 0,
            backlog: options.backlog,
        };
        let window = options.is_windowed().then_some(bulk_len as u64);
        let replay = options.replay.then(|| {
            let data = if let Bulk::Send(data) = &options.bulk { data.clone() } else { Payload::new() };
            let (header, body) = (fixed.header(), body.clone());
            Arc::new(Replayable { opcode, lane: options.lane, header, body, data, on_commit: options.on_commit })
        });
        let spec = Spec {
            opcode,
            lane: options.lane,
            modify: options.modify,
            window,
            lockless: options.lockless,
            no_delay: options.no_delay,
            control: false,
            recovery: options.recovery,
            replay,
            give_up: options.deadline.map_or(Time::FAR_FUTURE, |d| now + d),
        };
        let mut call = Ongoing::register(import, spec, body)?;
        let request = call.request();
        request.fixed = fixed;
        request.attach_bulk(options.bulk);
        if options.deadline.is_some() {
            import.arm(request.spec.give_up);
        }
        Ok(call)
    }

    fn register(import: &Arc<ImportShared>, spec: Spec, body: Bytes) -> Result<Ongoing, RpcError> {
        let mut s = import.state.lock();
        if s.machine.state() == ImportState::Closed && !spec.control {
            return Err(RpcError::Closed);
        }
        // The engine's state is current only while a task is connecting. Without one, this call starts it.
        if spec.no_delay && !spec.control && s.connecting && s.machine.is_unreachable() {
            return Err(RpcError::Unreachable);
        }
        // Under the lock, so that the import's xids increase in the order of registration.
        let xid = import.node.next_xid();
        s.calls.start(xid, spec.clone(), import.node.rt.now());
        drop(s);
        let (import, fixed, inline) = (import.clone(), Fixed::default(), Payload::new());
        Ok(Ongoing(Some(Request { import, xid, spec, body, inline, fixed, source: None, sink: None, eager: 0 })))
    }

    fn request(&mut self) -> &mut Request {
        self.0.as_mut().expect("only Drop takes the request out")
    }

    pub(crate) async fn run(&mut self) -> Result<Incoming, RpcError> {
        self.request().run().await
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let Some(mut request) = self.0.take() else { return };
        let import = request.import.clone();
        let unfinished = request.spec.modify && {
            let s = import.state.lock();
            s.calls.is_in_flight(request.xid) && s.machine.state() != ImportState::Closed
        };
        if unfinished {
            // The modify slot must not carry another request before the server is done with this one.
            drop(import.node.rt.spawn(async move { drop(request.run().await) }));
        }
    }
}

impl Request {
    fn attach_bulk(&mut self, bulk: Bulk) {
        let lnet = &self.import.node.lnet;
        match bulk {
            Bulk::None => {}
            Bulk::Send(data) if data.len() <= INLINE_MAX => {
                self.fixed.flags |= flags::INLINE;
                self.inline = data;
            }
            Bulk::Send(data) => {
                self.fixed.match_bits = self.xid;
                self.source = Some(lnet.expose_source(&[], self.xid, data));
            }
            Bulk::Receive { max_len } if max_len <= INLINE_MAX => {}
            Bulk::Receive { max_len } => {
                self.fixed.match_bits = self.xid;
                self.sink = Some(lnet.expose_sink(&[], self.xid, max_len));
            }
        }
    }

    async fn run(&mut self) -> Result<Incoming, RpcError> {
        loop {
            let step = std::future::poll_fn(|cx| {
                let mut s = self.import.state.lock();
                let (connection, recovery) = (s.machine.connection(), s.machine.recovery_connection());
                match s.calls.poll(self.xid, connection, recovery, cx.waker()) {
                    Step::Wait => {
                        let idle = s.machine.wants_connect() && !s.connecting;
                        drop(s);
                        if idle {
                            self.import.connect_if_wanted();
                        }
                        Poll::Pending
                    }
                    step => Poll::Ready(step),
                }
            })
            .await;
            match step {
                Step::Wait => {}
                Step::Send => self.send(),
                // The result stays in its box, because the future of every waiting call would contain it otherwise.
                Step::Done(mut result) => {
                    let expected = self.expected_bulk(&result);
                    if expected > 0 {
                        // Boxed for the same reason: few calls receive bulk.
                        let Some(data) = Box::pin(self.receive_bulk(expected)).await else { continue };
                        if let Ok(reply) = &mut *result {
                            reply.data = data;
                        }
                    }
                    return *result;
                }
            }
        }
    }

    /// Sends the request, or sends it again, over the current connection.
    fn send(&mut self) {
        let import = self.import.clone();
        let node = &import.node;
        let now = node.rt.now();
        let mut header = self.fixed.header();
        let mut s = import.state.lock();
        let connection = if self.spec.recovery { s.machine.recovery_connection() } else { s.machine.connection() };
        let Some(connection) = connection else { return };
        let service = s.service.of(self.spec.lane).estimate(now);
        let timeout = request_timeout(node.at_min(), service, s.network.estimate(now));
        (header.export, header.connection_count) = (connection.export, connection.connection);
        header.timeout_ms = millis(timeout);
        if let Some(bytes) = self.spec.window {
            let wanted = s.calls.wanted(bytes, self.fixed.backlog);
            (header.credits_wanted, header.bytes_wanted) = (wanted.rpcs, wanted.bytes);
        }
        s.last_sent = now;
        // Only the server may pull or push the data; another node could guess the xid.
        if header.match_bits != 0 {
            let peers = s.machine.nids();
            self.source.iter().for_each(|source| source.set_peers(&peers));
            self.sink.iter().for_each(|sink| sink.set_peers(&peers));
        }
        if !self.begin_if_ready(&mut s, &mut header, now, now + timeout) {
            return;
        }
        let along = self.data_along(&mut s, &mut header);
        drop(s);
        let payload = encode(RpcKind::Request, &header, &self.body, along);
        let (to, portal) = (connection.nid, request_portal(self.spec.lane));
        // Others wait for what is done under a lock that is called back, so it goes the way of cancels.
        let purpose = match is_high_priority(&header) {
            true => Some(Purpose::Callbacks),
            false => (self.eager > 0).then_some(Purpose::Bulk),
        };
        if let Err(e) = node.lnet.post_tagged(to, portal, purpose, import.id, connection.connection, payload) {
            import.handle_lost(connection.connection, &e.to_string());
        }
    }

    /// The data that travels with the request: what every request may bring, or what its server has granted memory for. A request that is
    /// sent again brings none, because the server may have had no memory for it, and asks when it has. Neither does a request of
    /// high priority: other clients wait for it, and a long message would make them wait longer.
    fn data_along(&mut self, s: &mut State, header: &mut RpcHeader) -> Payload {
        self.end_eager(s);
        let (len, distance) = (u64::from(header.bulk_bytes), s.calls.distance);
        let goes_along = len <= EAGER_MAX as u64
            && HEADER_BYTES + self.body.len() + len as usize <= MESSAGE_MAX
            && !header.has(flags::RESENT)
            && !is_high_priority(header)
            && distance.is_far()
            && distance.has_room(s.calls.eager, len);
        match &self.source {
            Some(source) if goes_along => {
                self.eager = len;
                s.calls.eager += len;
                header.flags |= flags::INLINE;
                source.data()
            }
            _ => self.inline.clone(),
        }
    }

    /// The data is no longer under way with the request.
    fn end_eager(&mut self, s: &mut State) {
        if self.eager > 0 {
            assert!(s.calls.eager >= self.eager, "{} bytes of {} end to be under way", self.eager, s.calls.eager);
            s.calls.eager -= std::mem::take(&mut self.eager);
        }
    }

    /// Records that the request is sent, unless the call has ended since it was told to send.
    fn begin_if_ready(&self, s: &mut State, header: &mut RpcHeader, now: Time, deadline: Time) -> bool {
        let is_ready = s.calls.is_ready(self.xid);
        if is_ready {
            self.begin(s, header, now, deadline);
        }
        is_ready
    }

    /// Records that the request is sent, and completes its header from that record.
    fn begin(&self, s: &mut State, header: &mut RpcHeader, now: Time, deadline: Time) {
        let (tag, again) = s.calls.handle_sent(self.xid, header.connection_count, now, deadline);
        header.xid = self.xid;
        header.trace_id = self.xid;
        header.lane = self.spec.lane as u8;
        header.opcode = self.spec.opcode as u32;
        header.tag = tag.0;
        header.last_xid = s.calls.last_xid(self.spec.lane);
        let (part, waited) = s.calls.waited(self.xid);
        *(if part == Part::Window { &mut header.window_wait_us } else { &mut header.client_wait_us }) = micros(waited);
        if again {
            header.flags |= flags::RESENT;
        }
        self.import.arm(deadline);
    }

    /// Bytes of bulk that belong to the reply and are not in it.
    fn expected_bulk(&self, result: &Result<Incoming, RpcError>) -> usize {
        match result {
            Ok(reply) if self.sink.is_some() && reply.header.status == 0 => reply.header.bulk_bytes as usize,
            _ => 0,
        }
    }

    /// Returns the bulk of `expected` bytes; `None` if it was lost and the request has to be sent again.
    async fn receive_bulk(&mut self, expected: usize) -> Option<Payload> {
        let sink = self.sink.as_mut().expect("`expected_bulk` has found a sink");
        let received = {
            let filled = std::pin::pin!(sink.filled());
            self.import.node.rt.timeout(BULK_TIMEOUT, filled).await
        };
        match received {
            Ok(data) if data.len() == expected => Some(data),
            // The bulk did not come, or an earlier push, whose reply was lost, filled the sink with something else.
            other => {
                tracing::debug!(
                    "{}: xid {}: bulk is missing: {:?}",
                    self.import.target.label,
                    self.xid,
                    other.is_err()
                );
                let max_len = self.fixed.bulk_bytes as usize;
                self.sink = Some(self.import.node.lnet.expose_sink(&[], self.xid, max_len));
                self.import.state.lock().calls.handle_incomplete(self.xid);
                None
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let import = self.import.clone();
        let mut s = import.state.lock();
        self.end_eager(&mut s);
        s.calls.finish(self.xid);
    }
}

/// Opcode by which a client connects to a target of this kind.
pub(crate) fn connect_opcode(kind: TargetKind) -> Opcode {
    match kind {
        TargetKind::Mgt => Opcode::MgsConnect,
        TargetKind::Mdt => Opcode::MdsConnect,
        TargetKind::Ost => Opcode::OstConnect,
    }
}

pub(crate) fn tell_all(callbacks: &[CommitCallback], fate: Fate) {
    callbacks.iter().for_each(|c| c.tell(fate));
}
