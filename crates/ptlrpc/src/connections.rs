//! Connects, disconnects and evictions, on the server's side.

use crate::evictor::{self, Seen};
use crate::export::{Connecting, Export, ExportClient};
use crate::identity::{Identity, Standing};
use crate::leases;
use crate::message::{PROBE_MATCH_BITS, encode, millis, request_portal};
use crate::node::NodeShared;
use crate::request_log::ReplyTo;
use crate::target::{Connect, TargetEntry};
use crate::window::Credits;
use bytes::Bytes;
use nacre_base::{Errno, FxHashMap, Network, Nid, Payload, Time, Uuid};
use nacre_wire::connect::{ConnectReply, ConnectRequest};
use nacre_wire::header::flags;
use nacre_wire::{Lane, Opcode, RpcHeader, RpcKind};
use std::collections::{BTreeSet, hash_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time that a silent client has to answer a probe, and the number of probes.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// Most exports of one node; further clients are refused until others leave. Lustre's limit for a target.
pub(crate) const EXPORTS_MAX: usize = 128 << 10;
/// Most exports of clients on one host. A host may have hundreds of mounts, each with an export for each target.
pub(crate) const HOST_EXPORTS_MAX: usize = 16 << 10;

/// Ensures that the connects of a client are handled one at a time. The turn is over when no connect of the client
/// waits, or when the task that handles them is dropped.
struct Turn<'a> {
    entry: &'a TargetEntry,
    client: Uuid,
    is_over: bool,
}

impl Turn<'_> {
    /// The connect that has arrived meanwhile.
    fn next(&mut self) -> Option<Connect> {
        let mut connecting = self.entry.connecting.lock();
        let waiting = connecting.get_mut(&self.client).expect("a client's turn is booked until it is over");
        let next = waiting.take();
        self.is_over = next.is_none();
        if self.is_over {
            connecting.remove(&self.client);
        }
        next
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.entry.connecting.lock().remove(&self.client);
        }
    }
}

impl NodeShared {
    /// Handles a connect, or leaves it to the task that is handling an earlier connect of the same client; that task
    /// continues with the newest of the connects that wait. The newest must not be dropped, because the client may have
    /// given up the earlier one without waiting for its reply, for example when it was told of a restart.
    pub(crate) async fn handle_connect(self: Arc<Self>, header: RpcHeader, body: Bytes, reply_to: ReplyTo) {
        let Ok(request) = nacre_wire::decode::<ConnectRequest>(&body) else {
            return self.refuse(&header, reply_to, Errno::EPROTO);
        };
        let Some(entry) = self.target(&request.target).filter(|entry| !self.leave_if_taken(entry)) else {
            return self.refuse(&header, reply_to, Errno::ENODEV);
        };
        let client = request.client;
        let first = Connect { header, request, reply_to };
        match entry.connecting.lock().entry(client) {
            hash_map::Entry::Occupied(mut waiting) => {
                if waiting.get().as_ref().is_none_or(|w| w.header.xid < first.header.xid) {
                    waiting.insert(Some(first));
                }
                return;
            }
            hash_map::Entry::Vacant(free) => free.insert(None),
        };
        let mut turn = Turn { entry: &entry, client, is_over: false };
        let mut next = Some(first);
        while let Some(connect) = next {
            next = self.connect(&entry, connect).await.or_else(|| turn.next());
        }
    }

    /// Handles a connect. Returns it if it has to be handled again, because the client was evicted meanwhile.
    async fn connect(self: &Arc<Self>, entry: &Arc<TargetEntry>, connect: Connect) -> Option<Connect> {
        let Connect { header, request, reply_to } = connect;
        let from = Connecting { reply_to, connection: header.connection_count, xid: header.xid };
        let existing = entry.clients.lock().get(&request.client).cloned();
        if existing.as_ref().is_some_and(|e| !e.is_news(header.xid)) {
            return None;
        }
        let living = existing.as_ref().filter(|e| !e.is_closed());
        let is_reconnect = living.is_some_and(|e| e.cookie == request.previous_export);
        // The client repeats its first connect because the reply that named its export was lost; it has not restarted.
        let known =
            is_reconnect || living.is_some_and(|e| e.is_asked_again(request.previous_export, header.connection_count));
        // A client that connects anew goes on in the place of its old export.
        let mut place = if existing.is_none() { self.export_places.take(reply_to.nid.host()) } else { None };
        if existing.is_none() && place.is_none() {
            self.refuse(&header, reply_to, Errno::EBUSY);
            return None;
        }
        let standing = match entry.handler.admit(Identity { nid: from.reply_to.nid }, &request).await {
            Ok(standing) => standing,
            Err(e) => {
                self.refuse(&header, reply_to, e);
                return None;
            }
        };
        if let Some(old) = living
            && !is_reconnect
            && standing == Standing::Claimed
            && self.is_held_elsewhere(old, from.reply_to.nid).await
        {
            self.refuse(&header, reply_to, Errno::EBUSY);
            return None;
        }
        let export = match existing {
            Some(export) if known => {
                export.handle_reconnecting();
                export
            }
            other => {
                if let Some(old) = other {
                    // The client has restarted, never heard of this export, or is being evicted. The target must forget
                    // the old export before it learns of the new one.
                    self.close_export(&old, "its client connected anew").await;
                    old.gone().await;
                    place = old.take_place();
                }
                let place = place.expect("an export has its place until its client's next export takes it over");
                let cookie = self.core.random_nonzero();
                Export::new(entry.clone(), cookie, place, self.client_of(&request), &request, &from)
            }
        };
        let answer = entry.handler.connect(&export, &request).await;
        let was_closed = export.is_closed();
        // Read after `was_closed`: a stop closes the exports, too, but the target keeps its records of the clients.
        if self.leave_if_taken(entry) || entry.stopped.load(Ordering::Acquire) {
            self.refuse(&header, reply_to, Errno::ENODEV);
            return None;
        }
        if was_closed {
            // The target may have forgotten the client before it handled this reconnect, and now has state again that
            // nobody else would remove. The client needs a new export.
            export.gone().await;
            entry.handler.disconnect(&export).await;
            return Some(Connect { header, request, reply_to });
        }
        match answer {
            Err(e) => self.refuse(&header, reply_to, e),
            Ok(mut reply) => {
                if reply.data.instance == 0 {
                    reply.data.instance = entry.incarnation;
                }
                export.handle_connected(&from, &reply.data, self.core.rt.now());
                if !known {
                    self.add_export(entry, &export);
                }
                self.answer_connect(&header, &export, &reply, is_reconnect, reply_to);
            }
        }
        None
    }

    /// A client that connects, shared with its exports at other targets of this node.
    pub(crate) fn client_of(&self, request: &ConnectRequest) -> Arc<ExportClient> {
        let targets = self.targets.read();
        let of_target = |target: &Arc<TargetEntry>| {
            let clients = target.clients.lock();
            let export = clients.get(&request.client).filter(|export| *export.client_name() == *request.client_name);
            export.map(|export| export.of.clone())
        };
        let new = || Arc::new(ExportClient { uuid: request.client, name: request.client_name.as_str().into() });
        targets.values().find_map(of_target).unwrap_or_else(new)
    }

    /// Returns whether the newcomer, at another NID, claims the place of a client that still answers at its own NID.
    /// The name of a client is no secret, so knowing it must not be enough to evict the client.
    async fn is_held_elsewhere(&self, old: &Export, newcomer: Nid) -> bool {
        let is_held = old.nid() != newcomer && self.is_alive(old).await;
        if is_held && self.refusals.is_worth_a_line(self.core.rt.now()) {
            let (target, client, nid) = (old.target(), old.client_name(), old.nid());
            tracing::warn!("{target}: refused {newcomer}, which connects as {client}, which is at {nid} and answers");
        }
        is_held
    }

    pub(crate) fn add_export(self: &Arc<Self>, entry: &Arc<TargetEntry>, export: &Arc<Export>) {
        tracing::info!("{}: {} ({}) connected", entry.name, export.client_name(), export.nid());
        let before = entry.clients.lock().insert(export.clone());
        assert!(before.is_none(), "{export:?} comes in the place of {before:?}, which its target has not forgotten");
        let before = self.exports.write().insert(export.clone());
        assert!(before.is_none(), "{export:?} has the cookie of {before:?}");
        self.start_service_timer();
        self.service_timer.arm(self.core.rt.now() + evictor::TICK);
        // If the target stopped just before, nobody else will close this export.
        if entry.stopped.load(Ordering::Acquire) {
            self.drop_export(export);
        } else if export.is_closed() {
            // It was evicted before it was in the tables, so whoever evicted it could not take it out of them.
            self.exports.write().remove(&export.cookie);
            self.forget_client(export);
        }
    }

    /// Ends an export because its target stopped; the client's record on disk stays.
    fn drop_export(&self, export: &Export) {
        export.close();
        self.exports.write().remove(&export.cookie);
        self.forget_client(export);
        export.handle_gone();
    }

    fn answer_connect(
        &self,
        request: &RpcHeader,
        export: &Arc<Export>,
        reply: &ConnectReply,
        is_reconnect: bool,
        reply_to: ReplyTo,
    ) {
        let header = self.connect_header(request, export, is_reconnect);
        let opcode = crate::message::opcode(request.opcode);
        if opcode.is_none_or(|o| !self.reply_fault(o)) {
            self.post(reply_to, encode(RpcKind::Reply, &header, &nacre_wire::encode(reply), Payload::new()));
        }
    }

    /// Header of the reply to a connect.
    pub(crate) fn connect_header(&self, request: &RpcHeader, export: &Arc<Export>, is_reconnect: bool) -> RpcHeader {
        let pool = export.entry.handler.lock_pool();
        let recovering = export.entry.handler.recovery(export, 0);
        let first_window = if export.keeps_windows() { export.entry.first_window() } else { Credits::default() };
        RpcHeader {
            lane: request.lane,
            opcode: request.opcode,
            xid: request.xid,
            server_lock_volume: pool.volume,
            lock_limit: pool.limit,
            flags: (if is_reconnect { flags::RECONNECT } else { 0 }) | (if recovering { flags::RECOVERING } else { 0 }),
            export: export.cookie,
            connection_count: request.connection_count,
            last_committed: export.entry.handler.last_committed(export).0,
            credits_granted: first_window.rpcs,
            bytes_granted: first_window.bytes,
            eager_bytes: self.eager_grant(),
            ..RpcHeader::default()
        }
    }

    pub(crate) async fn handle_disconnect(self: Arc<Self>, export: Arc<Export>, header: RpcHeader) {
        let reply_to = export.handle_executed(header.xid, None);
        self.close_export(&export, "it disconnected").await;
        // Otherwise the next recovery could wait for a client that has left, and does not come.
        let status = export.entry.handler.settle().await.map_or_else(|e| -e.0, |()| 0);
        let (lane, opcode, xid) = (header.lane, header.opcode, header.xid);
        let answer = RpcHeader { lane, opcode, xid, status, ..RpcHeader::default() };
        self.post(reply_to, encode(RpcKind::Reply, &answer, &[], Payload::new()));
    }

    /// Ends an export: refuses new requests, waits for the running ones, then lets the target forget the client.
    async fn close_export(&self, export: &Arc<Export>, why: &str) {
        if export.close() {
            tracing::info!("{}: export of {} closed: {why}", export.target(), export.client_name());
            self.exports.write().remove(&export.cookie);
            export.drained().await;
            export.entry.handler.disconnect(export).await;
            let running = export.requests_running();
            assert_eq!(running, 0, "{export:?} was closed and drained, and its target has forgotten the client");
            export.entry.forget_window(export.cookie);
            self.forget_client(export);
            export.handle_gone();
        }
    }

    fn forget_client(&self, export: &Export) {
        let mut clients = export.entry.clients.lock();
        if clients.get(&export.client()).is_some_and(|e| e.cookie == export.cookie) {
            clients.remove(&export.client());
        }
    }

    /// Ends the service of a target. Its clients keep their records: this is a stop, not a disconnect.
    pub(crate) fn stop_target(&self, entry: &Arc<TargetEntry>) -> Vec<Arc<Export>> {
        entry.stopped.store(true, Ordering::Release);
        self.remove_target(entry);
        let exports = std::mem::take(&mut *entry.clients.lock()).in_order();
        exports.iter().for_each(|e| self.drop_export(e));
        exports
    }

    /// Returns whether another node has taken the target; if so, this node stops serving it.
    pub(crate) fn leave_if_taken(&self, entry: &Arc<TargetEntry>) -> bool {
        let is_taken = entry.handler.is_taken();
        if is_taken && !entry.stopped.load(Ordering::Acquire) {
            self.stop_target(entry);
        }
        is_taken
    }

    /// Probes clients that have been silent for too long. Returns when to look again.
    pub(crate) fn probe_silent(self: &Arc<Self>, now: Time) -> Time {
        if self.exports.read().is_empty() {
            return Time::FAR_FUTURE;
        }
        let mut next = self.next_probe.lock();
        if now < *next {
            return *next;
        }
        *next = now + evictor::TICK;
        if self.core.liveness.is_suppressed() {
            return *next;
        }
        let exports = self.exports();
        // Clients on a network to which no route is up are cut off, which does not mean that they are dead.
        let mut reached: FxHashMap<Network, bool> = FxHashMap::default();
        let mut is_cut_off = |network| !*reached.entry(network).or_insert_with(|| self.core.lnet.has_way_to(network));
        let mut see = |e: &Arc<Export>| {
            let exempt = e.is_server() || self.leases().guards(e.client(), e.target()) || is_cut_off(e.nid().network);
            Seen { export: e.cookie, last_heard: e.last_heard(), exempt }
        };
        let seen: Vec<_> = exports.iter().map(&mut see).collect();
        let silent = self.evictor().lock().handle_time(now, &seen, self.leases().mgs_heard());
        let silent: Vec<_> = silent.into_iter().filter_map(|cookie| self.export(cookie)).collect();
        if !silent.is_empty() {
            drop(self.core.rt.spawn(self.clone().judge(silent)));
        }
        *next
    }

    /// Asks the MGS which of these silent clients hold a lease, and probes the others. The MGS's own exports are the
    /// leases, so it probes all of its clients.
    async fn judge(self: Arc<Self>, silent: Vec<Arc<Export>>) {
        let (mut probed, asked): (Vec<_>, Vec<_>) = silent.into_iter().partition(|e| leases::is_mgs(e.target()));
        // A client may have an export at several targets of this node.
        let clients = BTreeSet::from_iter(asked.iter().map(|export| export.client()));
        let held = self.leases().ask_for(&self.core.rt, Vec::from_iter(clients)).await;
        let (spared, doubtful): (Vec<_>, Vec<_>) = asked.into_iter().partition(|e| held.contains(&e.client()));
        for export in spared {
            self.evictor().lock().handle_spared(export.cookie);
        }
        probed.extend(doubtful);
        for export in probed {
            drop(self.core.rt.spawn(self.clone().probe(export)));
        }
    }

    async fn probe(self: Arc<Self>, export: Arc<Export>) {
        let begun = self.core.rt.now();
        let answered = self.is_alive(&export).await;
        let now = self.core.rt.now();
        if answered {
            export.handle_heard(now);
        }
        // The probe may be the first message that this node has sent there for a while, and so the one by which it finds that no
        // route to the client's network works any longer. A route that has come back meanwhile has not carried all questions.
        let has_had_a_way = self.core.lnet.way_since(export.nid().network).is_some_and(|since| since <= begun);
        let is_spared = answered || !has_had_a_way;
        let evict = self.evictor().lock().handle_probed(now, export.cookie, is_spared, export.last_heard());
        if evict {
            tracing::warn!(
                "{}: evicting {} ({}): silent and gone",
                export.target(),
                export.client_name(),
                export.nid()
            );
            self.close_evicted(&export).await;
        }
    }

    /// Asks a client's node whether that very client lives there: another process may have its NID now.
    async fn is_alive(&self, export: &Export) -> bool {
        for _ in 0..PROBES {
            // Random, unlike the xids of an import's requests, which count up and can be guessed.
            let xid = self.core.random_nonzero();
            let (answer, answered) = oneshot::channel();
            self.probes().lock().insert(xid, (export.nid(), answer));
            let header = RpcHeader {
                lane: Lane::Control as u8,
                opcode: Opcode::ObdPing as u32,
                xid,
                timeout_ms: millis(PROBE_TIMEOUT),
                ..RpcHeader::default()
            };
            let body = nacre_wire::encode(&export.client());
            let probe = encode(RpcKind::Request, &header, &body, Payload::new());
            let _ = self.core.lnet.post(export.nid(), request_portal(Lane::Control), PROBE_MATCH_BITS, probe);
            let answered = self.core.rt.timeout(PROBE_TIMEOUT, answered).await;
            self.probes().lock().remove(&xid);
            if let Ok(Ok(lives)) = answered {
                return lives;
            }
        }
        false
    }

    /// A reply to a probe arrived. It counts only if it comes from the client's own node, because a stranger that
    /// answers for the client could otherwise have it evicted.
    pub(crate) fn handle_probe_reply(&self, from: Nid, header: &RpcHeader) {
        if let hash_map::Entry::Occupied(probe) = self.probes().lock().entry(header.xid)
            && probe.get().0 == from
        {
            let _ = probe.remove().1.send(header.status == 0);
        }
    }

    /// Closes the export of a client that is evicted, and has the MGS end the client's lease.
    async fn close_evicted(&self, export: &Arc<Export>) {
        if !leases::is_mgs(export.target()) {
            leases::report_evicted(self.leases(), &self.core.rt, export.client());
        }
        export.entry.evictions.fetch_add(1, Ordering::Relaxed);
        self.close_export(export, "evicted").await;
    }

    pub(crate) async fn evict(&self, export: Arc<Export>) {
        let (target, client, nid) = (export.target(), export.client_name(), export.nid());
        match leases::is_mgs(target) {
            // Another target has evicted the client, and said so.
            true => tracing::info!("{target}: the lease of {client} ({nid}) ends"),
            false => tracing::warn!("{target}: evicting {client} ({nid})"),
        }
        self.close_evicted(&export).await;
        // The export may have been closed by another task, which has not finished yet.
        export.gone().await;
    }
}
