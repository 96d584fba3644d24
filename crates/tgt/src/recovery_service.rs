//! Connects the engine in `recovery` with the requests of clients: replays wait here until the engine gives them a
//! turn.

use crate::recovery::{Counts, Effects, Phase, Recovery, Settings, Status, Ticket};
use crate::reply;
use crate::{Target, TargetError};
use nacre_base::{Errno, Time, Transno, Uuid};
use nacre_ptlrpc::{Export, ExportTable, ServerRequest};
use nacre_wire::header::flags;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Exports of the connected clients.
pub(crate) type Exports = Arc<Mutex<Connected>>;

/// A set of exports, by their cookies.
#[derive(Default)]
pub(crate) struct Connected(ExportTable<u64, Export>);

impl Connected {
    pub(crate) fn insert(&mut self, export: &Arc<Export>) {
        self.0.insert(export.clone());
    }

    pub(crate) fn remove(&mut self, export: &Arc<Export>) {
        self.0.remove(&export.cookie);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The export of a client.
    pub(crate) fn of(&self, client: Uuid) -> Option<Arc<Export>> {
        self.0.iter().find(|export| export.client() == client).cloned()
    }

    /// The exports that `which` picks, in the order of their cookies.
    pub(crate) fn pick(&self, which: impl Fn(&Export) -> bool) -> Vec<Arc<Export>> {
        let mut picked: Vec<_> = self.0.iter().filter(|export| which(export)).cloned().collect();
        picked.sort_by_key(|export| export.cookie);
        picked
    }
}

/// The recovery of one target, from its start until it is over.
pub(crate) struct RecoveryService {
    target: Arc<Target>,
    engine: Mutex<Recovery>,
    turns: Mutex<BTreeMap<Ticket, oneshot::Sender<()>>>,
    /// Names of the clients that the target knew when it was last up; empty once the recovery is over.
    names: Mutex<BTreeMap<Uuid, String>>,
    exports: Exports,
    /// Tasks that are evicting clients. Raised under the lock of `engine`, so that the phase is not seen to be complete
    /// before the evictions that completed it are counted.
    evicting: AtomicUsize,
    /// Notified when the phase or the time limits have changed.
    changed: Notify,
    /// True once the recovery is over and the replays are durable.
    over: AtomicBool,
}

/// Clients that a target's recovery waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryWait {
    /// Names of the clients that have not replayed all their requests and locks.
    pub missing: Vec<String>,
    /// Clients that were connected when the target was last up.
    pub known: usize,
    /// Time for which they are still waited for, unless there is progress; unknown before the first client comes.
    pub left: Option<Duration>,
}

/// What to do with a request that belongs to a recovery.
pub(crate) enum Admission {
    /// Run it.
    Now,
    /// Run it, and report the outcome to the turn.
    Turn(Turn),
    /// The request was executed before, in this recovery, or failed.
    Executed(Result<(), Errno>),
}

/// A replay's turn. The next replay's turn comes when it ends.
pub(crate) struct Turn {
    service: Arc<RecoveryService>,
    ticket: Option<Ticket>,
}

impl Turn {
    /// The replay was executed.
    pub(crate) fn executed(mut self) {
        self.end(Recovery::handle_executed);
    }

    /// The replay cannot be executed, now or later.
    pub(crate) fn failed(mut self, error: Errno) {
        self.end(|r, ticket, now| r.handle_failed(ticket, error, now));
    }

    /// The replay was not executed: its client sends it again.
    pub(crate) fn broken_off(mut self) {
        self.end(Recovery::handle_withdrawn);
    }

    fn end(&mut self, how: impl FnOnce(&mut Recovery, Ticket, Time) -> Effects) {
        if let Some(ticket) = self.ticket.take() {
            self.service.apply(|r, now| how(r, ticket, now));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end(Recovery::handle_withdrawn);
    }
}

/// A replay that waits. It is dropped when its client's connection is gone; the client will send it again.
struct Queued<'a> {
    service: &'a Arc<RecoveryService>,
    ticket: Option<Ticket>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.service.turns.lock().remove(&ticket);
            self.service.apply(|r, now| r.handle_withdrawn(ticket, now));
        }
    }
}

impl RecoveryService {
    /// Reads which clients the target knew when it was last up, and waits for them. Without `recovers`, waits for none.
    pub(crate) async fn open(
        target: &Arc<Target>,
        recovers: bool,
        exports: Exports,
    ) -> Result<Arc<RecoveryService>, TargetError> {
        let known = if recovers { reply::known_clients(&*target.osd().begin().await?)? } else { BTreeMap::new() };
        let (committed, highest) = (target.last_committed().0, target.former_transnos().0);
        let engine = Recovery::new(Settings::default(), committed, highest, known.keys().copied());
        let over = engine.phase() == Phase::Complete;
        if !over {
            target.begin_recovery();
            tracing::info!(target = %target.name(), clients = engine.status().counts.known, "waits for clients to recover");
        }
        let service = Arc::new(RecoveryService {
            target: target.clone(),
            engine: Mutex::new(engine),
            turns: Mutex::default(),
            names: Mutex::new(known),
            exports,
            evicting: AtomicUsize::new(0),
            changed: Notify::new(),
            over: AtomicBool::new(over),
        });
        if !over {
            target.set_recovery(&service);
            let watched = service.clone();
            drop(target.rt().spawn(async move { watched.watch_time().await }));
        }
        Ok(service)
    }

    /// Returns whether the recovery is over, and the replays are durable.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until the recovery is over.
    pub(crate) async fn over(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_over() {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether this client may connect now. A client that is not waited for may not, but its attempt starts the
    /// time limits.
    pub(crate) fn admits(self: &Arc<Self>, client: Uuid) -> bool {
        let admits = self.is_over() || self.engine.lock().admits(client);
        if !admits {
            self.apply(|r, now| r.handle_stranger(now));
        }
        admits
    }

    /// A client has connected.
    pub(crate) fn handle_connect(self: &Arc<Self>, client: Uuid) {
        self.apply(|r, now| r.handle_connect(client, now));
    }

    /// A client has disconnected, or was evicted.
    pub(crate) fn handle_disconnect(self: &Arc<Self>, client: Uuid) {
        self.apply(|r, now| r.handle_disconnect(client, now));
    }

    /// A client reports its progress. Returns whether it has to wait.
    pub(crate) fn handle_told(self: &Arc<Self>, client: Uuid, told: u32) -> bool {
        if told & flags::REQ_REPLAY_DONE != 0 {
            self.apply(|r, now| r.handle_requests_done(client, now));
        }
        if told & flags::LOCK_REPLAY_DONE != 0 {
            self.apply(|r, now| r.handle_locks_done(client, now));
        }
        !self.is_over()
    }

    /// Waits until a request that belongs to the recovery may run. EAGAIN if the recovery has no place for it.
    pub(crate) async fn turn(self: &Arc<Self>, request: &ServerRequest) -> Result<Admission, Errno> {
        if !request.is_replay() {
            return self.until(Phase::Locks, request).await.map(|()| Admission::Now);
        }
        if let Some(result) = self.engine.lock().executed(request.export.client(), request.header.transno) {
            return Ok(Admission::Executed(result));
        }
        let ticket = Ticket { client: request.export.client(), transno: request.header.transno };
        let (sender, turn) = oneshot::channel();
        self.turns.lock().insert(ticket, sender);
        let mut queued = Queued { service: self, ticket: Some(ticket) };
        let mut has_place = false;
        self.apply(|r, now| {
            let (place, effects) = r.handle_replay(ticket.client, ticket.transno, request.header.last_committed, now);
            has_place = place;
            effects
        });
        if !has_place {
            return Err(Errno::EAGAIN);
        }
        tokio::select! {
            biased;
            granted = turn => {
                queued.ticket = None;
                granted.map_err(|_| Errno::EAGAIN)?;
                Ok(Admission::Turn(Turn { service: self.clone(), ticket: Some(ticket) }))
            }
            () = request.abandoned() => Err(Errno::ENOTCONN),
        }
    }

    async fn until(&self, phase: Phase, request: &ServerRequest) -> Result<(), Errno> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            // True also when the recovery is over: a client that lost its connection after its last request sends
            // everything again.
            if self.engine.lock().phase() >= phase {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = request.abandoned() => return Err(Errno::ENOTCONN),
            }
        }
    }

    /// Transno up to which this client may be told that changes are durable, if the target has committed up to
    /// `committed`.
    pub(crate) fn told_committed(&self, client: Uuid, committed: Transno) -> Transno {
        if self.is_over() {
            return committed;
        }
        match self.engine.lock().first_failed(client) {
            Some(failed) => committed.min(Transno(failed.saturating_sub(1))),
            None => committed,
        }
    }

    /// Ends the wait: evicts every client that is not done.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.apply(Recovery::abort);
    }

    /// Clients that the recovery waits for; `None` if it is over.
    pub(crate) fn wait(&self) -> Option<RecoveryWait> {
        if self.is_over() {
            return None;
        }
        let (status, missing) = {
            let engine = self.engine.lock();
            (engine.status(), engine.missing())
        };
        let names = self.names.lock();
        let name = |client: Uuid| names.get(&client).cloned().unwrap_or_else(|| client.to_string());
        let now = self.target.rt().now();
        Some(RecoveryWait {
            missing: missing.into_iter().map(name).collect(),
            known: status.counts.known,
            left: (status.deadline != Time::FAR_FUTURE).then(|| status.deadline.since(now)),
        })
    }

    /// Stops waiting for a client that is known to be dead, and forgets it. Returns false if it is not waited for.
    pub(crate) fn evict_dead(self: &Arc<Self>, client: Uuid) -> bool {
        let mut was_missing = false;
        self.apply(|r, now| {
            let effects = r.handle_dead(client, now);
            was_missing = effects.dead.is_some();
            effects
        });
        was_missing
    }

    /// Evicts the clients that `which` names: one by its UUID, even if the recovery still waits for it, or as `nid:NID`
    /// all clients that are connected from a node.
    pub(crate) fn evict_clients(self: &Arc<Self>, which: &str) -> Result<(), String> {
        let is_meant = |export: &Export| match which.strip_prefix("nid:") {
            Some(nid) => export.nid().to_string() == nid,
            None => export.client().to_string() == which,
        };
        let meant = self.exports.lock().pick(is_meant);
        if meant.is_empty() {
            let missing = self.engine.lock().missing();
            let was_missing = missing.iter().any(|client| client.to_string() == which && self.evict_dead(*client));
            return if was_missing { Ok(()) } else { Err(format!("no client {which:?} is connected, or waited for")) };
        }
        let target = self.target.clone();
        drop(self.target.rt().spawn(async move {
            for export in meant {
                target.node().evict(&export).await;
            }
        }));
        Ok(())
    }

    /// State of the recovery, for `recovery_status`.
    pub(crate) fn status(&self) -> Status {
        self.engine.lock().status()
    }

    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// How long clients are waited for.
    pub(crate) fn settings(&self) -> Settings {
        self.engine.lock().settings()
    }

    /// Changes how long clients are waited for, even in a recovery that is under way.
    pub(crate) fn set_settings(&self, settings: Settings) {
        self.engine.lock().set_settings(settings);
        self.changed.notify_waiters();
    }

    async fn watch_time(self: Arc<Self>) {
        while !self.is_over() {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let deadline = self.engine.lock().next_deadline();
            if self.target.rt().timeout_at(deadline, changed).await.is_err() {
                self.apply(Recovery::handle_time);
            }
        }
    }

    fn apply(self: &Arc<Self>, change: impl FnOnce(&mut Recovery, Time) -> Effects) {
        if self.is_over() {
            return;
        }
        let now = self.target.rt().now();
        let (effects, phase, is_nearer) = {
            let mut engine = self.engine.lock();
            let deadline = engine.next_deadline();
            let mut effects = change(&mut engine, now);
            // If the connection of the replay's client was lost just now, the client will send it again.
            while let Some(ticket) = effects.run.take_if(|ticket| !self.give_turn(*ticket)) {
                let more = engine.handle_withdrawn(ticket, now);
                effects.run = more.run;
                effects.evict.extend(more.evict);
                effects.phase_changed |= more.phase_changed;
            }
            self.evicting.fetch_add(usize::from(effects.evicts()), Ordering::AcqRel);
            (effects, engine.phase(), engine.next_deadline() < deadline)
        };
        // Not notified at each replay, because all clients may wait here. A task whose deadline has become later wakes
        // once for nothing.
        if effects.phase_changed || is_nearer {
            self.changed.notify_waiters();
        }
        if effects.evicts() || phase == Phase::Complete {
            let service = self.clone();
            drop(self.target.rt().spawn(async move { service.carry_out(effects).await }));
        }
    }

    fn give_turn(&self, ticket: Ticket) -> bool {
        let turn = self.turns.lock().remove(&ticket);
        turn.is_some_and(|turn| turn.send(()).is_ok())
    }

    /// Evicts clients, and ends the recovery if it is complete.
    async fn carry_out(self: Arc<Self>, effects: Effects) {
        if effects.evicts() {
            self.evict(effects).await;
            self.evicting.fetch_sub(1, Ordering::AcqRel);
        }
        self.end_if_complete().await;
    }

    async fn evict(&self, effects: Effects) {
        let name = self.target.name();
        if let Some(client) = effects.dead {
            let known_as = self.names.lock().get(&client).cloned().unwrap_or_default();
            tracing::info!(target = %name, %client, "{known_as} is dead: evicted, and not waited for");
            if let Err(error) = self.forget(client).await {
                tracing::warn!(target = %name, %client, %error, "client not forgotten");
            }
        }
        for client in effects.evict {
            tracing::warn!(target = %name, %client, "did not recover in time: evicted");
            let export = self.exports.lock().of(client);
            if let Some(export) = export {
                self.target.node().evict(&export).await;
            } else if let Err(error) = self.forget(client).await {
                tracing::warn!(target = %name, %client, %error, "client not forgotten");
            }
        }
    }

    /// Ends the recovery once the replays are durable; only then are clients told numbers of this start, which are
    /// higher. While clients are being evicted the last of these evictions ends the recovery instead: until then a
    /// replay of an evicted client may run, and a crash would bring the client back.
    async fn end_if_complete(&self) {
        let name = self.target.name();
        // In this order: no eviction begins once the phase is complete.
        let is_complete = self.engine.lock().phase() == Phase::Complete;
        if !is_complete || self.evicting.load(Ordering::Acquire) > 0 || self.is_over() {
            return;
        }
        if let Err(error) = self.target.commit().await {
            tracing::error!(target = %name, %error, "what was replayed is not durable");
            return;
        }
        assert_eq!(self.engine.lock().phase(), Phase::Complete, "a recovery goes on that has ended");
        self.target.end_recovery();
        if self.over.swap(true, Ordering::AcqRel) {
            return; // Another task, which saw the same, was faster.
        }
        self.names.lock().clear();
        self.changed.notify_waiters();
        let counts = self.engine.lock().status().counts;
        let Counts { replayed, failed, evicted, .. } = counts;
        tracing::info!(target = %name, replayed, failed, evicted, "recovered");
    }

    async fn forget(&self, client: Uuid) -> Result<(), Errno> {
        let mut operation = self.target.begin().await?;
        operation.use_reserve();
        reply::forget_client(&mut *operation, client)?;
        operation.finish_local();
        Ok(())
    }
}
