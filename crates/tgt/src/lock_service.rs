//! The lock manager of one target, served: LDLM_ENQUEUE, LDLM_CONVERT and LDLM_CANCEL, and the locks that the target
//! itself takes for the length of an operation.
//!
//! The reply to an enqueue is sent when the lock is granted; while the request waits, the RPC layer's early replies keep
//! it alive. Holders that are in the way are called back ([`crate::callbacks`]); one that neither gives its lock back nor
//! uses it is evicted. A waiting request ends with EINTR when its client takes it back, and goes away with its export.
//! Sent again, it finds itself. Locks live in memory only.
//!
//! What must not be here: what the resources are.

use crate::callbacks::{self, Asked, Peer};
use crate::lock_guards::{Held, InodeLocks, InodeLocksWait, ServerLockGuard, Waiting};
use crate::{Target, lock_params};
use nacre_base::{Errno, Fid, FxHashMap, Time};
use nacre_ldlm::server::{Effects, GlimpseHolder, Grant, Local, Namespace, Outcome, Request, Settings};
use nacre_ldlm::{ClientId, LockId, RangeSet};
use nacre_ptlrpc::{Export, LockPool, Response, ServerRequest};
use nacre_rt::Task;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{
    BlockingCallback, Cancel, Convert, Enqueue, EnqueueReply, InodeLock, LockKind, LockMode, enqueue_flags,
};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, oneshot};

pub(crate) type Answer = Result<EnqueueReply, Errno>;

/// The locks of one target.
pub struct LockService {
    kind: LockKind,
    pub(crate) shared: Arc<Shared>,
    keeper: Task,
}

/// What became of an enqueue that was not refused.
#[derive(Debug)]
pub struct Enqueued {
    /// The reply, without the attributes of the resource, which only the caller knows.
    pub reply: EnqueueReply,
    /// What the holders that were asked know: size and times with what they have not written yet.
    pub glimpsed: Vec<ObjectAttr>,
}

pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) state: Mutex<State>,
    /// Something is due sooner than the keeper wakes.
    wake_keeper: Notify,
}

pub(crate) struct State {
    pub(crate) namespace: Namespace,
    /// Who waits for a grant.
    waiters: FxHashMap<LockId, oneshot::Sender<Answer>>,
    /// The clients that may have locks.
    peers: FxHashMap<ClientId, Arc<Peer>>,
    /// When the keeper wakes.
    keeper_wakes: Time,
}

enum Enqueueing {
    Answered(Answer),
    Waiting(oneshot::Receiver<Answer>),
    Glimpse { ask: Vec<Asked>, flags: u32 },
}

impl LockService {
    /// On whose behalf a target locks for itself: everybody's locks are in its way.
    pub const NOBODY: ClientId = ClientId(0);

    /// A service for the locks that clients ask for: flocks of an MDT, extents of an OST. Its parameters are under
    /// `ldlm.namespaces`.
    pub fn new(target: &Arc<Target>, kind: LockKind) -> LockService {
        let rt = target.rt().clone();
        let namespace = Namespace::new(move || rt.random(), Settings::default());
        let state = State {
            namespace,
            waiters: FxHashMap::default(),
            peers: FxHashMap::default(),
            keeper_wakes: Time::FAR_FUTURE,
        };
        let shared = Arc::new(Shared { target: target.clone(), state: Mutex::new(state), wake_keeper: Notify::new() });
        shared.publish_pool(&shared.state.lock());
        lock_params::register(&shared);
        let keeper = target.rt().spawn(keep_up(Arc::downgrade(&shared)));
        LockService { kind, shared, keeper }
    }

    /// Handles LDLM_ENQUEUE where the reply needs no attributes.
    pub async fn enqueue(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let enqueued = self.enqueue_decoded(request, request.decode()?).await?;
        Ok(Response::new(&enqueued.reply))
    }

    /// The same, for who has decoded the request already and completes the reply.
    pub async fn enqueue_decoded(&self, request: &ServerRequest, enqueue: Enqueue) -> Result<Enqueued, Errno> {
        if enqueue.kind != self.kind {
            return Err(Errno::EOPNOTSUPP);
        }
        if enqueue.flags & enqueue_flags::REPLAY != 0 && !request.is_recovery() {
            return Err(Errno::EINVAL);
        }
        let resource = enqueue.resource;
        let client = client_of(&request.export);
        let outcome = self.shared.with(|state, now, effects| {
            state.remember(&request.export);
            state.enqueue(Request { client, xid: request.header.xid, part: 0, enqueue }, now, effects)
        });
        let reply = match outcome {
            Enqueueing::Answered(answer) => answer?,
            Enqueueing::Waiting(granted) => wait(granted, Some(request)).await?,
            Enqueueing::Glimpse { ask, flags } => {
                let reply = EnqueueReply { mode: LockMode::Nl, flags, ..EnqueueReply::default() };
                let glimpsed = tokio::select! {
                    biased;
                    glimpsed = callbacks::glimpse(&self.shared, ask, resource) => glimpsed,
                    () = request.abandoned() => return Err(Errno::ESHUTDOWN),
                };
                return Ok(Enqueued { reply, glimpsed });
            }
        };
        Ok(Enqueued { reply, glimpsed: Vec::new() })
    }

    /// Grants a lock to read all of an object, as number `part` of those that the request asks for, if no other client is in
    /// its way; does not wait, and calls nobody back.
    pub fn try_lock_object(&self, request: &ServerRequest, part: u32, object: Fid) -> Option<EnqueueReply> {
        let (kind, mode, flags) = (LockKind::Extent, LockMode::Pr, enqueue_flags::BLOCK_NOWAIT);
        let enqueue = Enqueue { kind, resource: object, mode, end: u64::MAX, flags, ..Enqueue::default() };
        let (client, xid) = (client_of(&request.export), request.header.xid);
        let outcome = self.shared.with(|state, now, effects| {
            state.remember(&request.export);
            state.namespace.enqueue(Request { client, xid, part, enqueue }, now, effects)
        });
        match outcome {
            Outcome::Done(reply) => Some(reply),
            // Never waiting: it was asked not to, and the same request again finds what was granted.
            Outcome::Refused(_) | Outcome::Waiting(_) | Outcome::Glimpse(_) => None,
        }
    }

    /// Handles LDLM_CANCEL.
    pub fn cancel(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let cancel: Cancel = request.decode()?;
        let client = client_of(&request.export);
        self.shared.with(|state, now, effects| {
            cancel.handles.iter().for_each(|handle| state.cancel(client, LockId(*handle), now, effects));
        });
        Ok(Response::new(&()))
    }

    /// Handles LDLM_CONVERT. A lock that is not there any more is no error.
    pub fn convert(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let Convert { handle, bits } = request.decode()?;
        let client = client_of(&request.export);
        self.shared.with(|state, now, effects| state.namespace.convert(client, LockId(handle), bits, now, effects));
        Ok(Response::new(&()))
    }

    /// Takes back a lock that was granted to this client's request, whose reply will not tell of it.
    pub fn give_back(&self, export: &Export, handle: u64) {
        self.shared.with(|state, now, effects| state.cancel(client_of(export), LockId(handle), now, effects));
    }

    /// Whether the client's lock covers all of `ranges` of the object, for a write or for a read; ESTALE if not. The
    /// client gets more time to give it back, if it was called back.
    pub fn check(
        &self,
        export: &Export,
        handle: u64,
        resource: Fid,
        is_write: bool,
        ranges: &RangeSet,
    ) -> Result<(), Errno> {
        let now = self.shared.target.rt().now();
        let namespace = &mut self.shared.state.lock().namespace;
        let covers = namespace.covers(client_of(export), LockId(handle), resource, is_write, ranges, now);
        if covers { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Locks ranges of an object for the length of one request, which has no lock of its client: waits for the locks of
    /// other clients. The client's own are not in its way.
    pub async fn lock_server(
        &self,
        request: &ServerRequest,
        resource: Fid,
        mode: LockMode,
        ranges: RangeSet,
    ) -> Result<ServerLockGuard, Errno> {
        let on_behalf = client_of(&request.export);
        match self.begin_server_lock(resource, mode, ranges, on_behalf) {
            Ok(held) => Ok(ServerLockGuard(held)),
            Err(waiting) => waiting.granted(Some(request)).await.map(ServerLockGuard),
        }
    }

    /// Tells everybody who has a lock on the resource, which is no more, to give it back; waits for nobody.
    pub fn revoke(&self, resource: Fid) {
        if let Err(waiting) = self.begin_server_lock(resource, LockMode::Pw, RangeSet::ALL, Self::NOBODY) {
            let rt = self.shared.target.rt();
            // Keeps its place until all have gone: the keeper is not to forget them.
            drop(rt.spawn(async move { drop(waiting.granted(None).await) }));
        }
    }

    /// Locks what an operation changes, all of it or nothing: (inode, bits of [`nacre_wire::ldlm::inode_bits`]), against
    /// the locks of other clients than `on_behalf` and against other operations. Does not wait, so it may be called in
    /// the operation's turn at the running transaction: if it fails the turn must be given up and the locks waited for.
    pub fn try_lock_inodes(&self, wants: &[(Fid, u64)], on_behalf: ClientId) -> Result<InodeLocks, InodeLocksWait> {
        if wants.is_empty() {
            return Ok(InodeLocks::none());
        }
        let lock = |state: &mut State, now, effects: &mut Effects| {
            let local = state.namespace.lock_inodes(wants, on_behalf, now, effects);
            state.wait_if_needed(local)
        };
        match self.shared.begin(lock) {
            Ok(held) => Ok(InodeLocks::of(held)),
            Err(waiting) => Err(InodeLocksWait(waiting)),
        }
    }

    /// As [`LockService::try_lock_inodes`], and waits. `request` is the one that is being served, if one is.
    pub async fn lock_inodes(
        &self,
        wants: &[(Fid, u64)],
        on_behalf: ClientId,
        request: Option<&ServerRequest>,
    ) -> Result<InodeLocks, Errno> {
        match self.try_lock_inodes(wants, on_behalf) {
            Ok(locks) => Ok(locks),
            Err(wait) => wait.granted(request).await,
        }
    }

    /// Grants the client a lock on those of the inode's `bits` that nobody's change is in the way of. To be called from
    /// one of its requests: not once it is gone.
    pub fn grant_inode(&self, export: &Arc<Export>, inode: Fid, bits: u64) -> Option<InodeLock> {
        self.shared.with(|state, _, _| {
            state.remember(export);
            state.namespace.grant_inode(client_of(export), inode, bits)
        })
    }

    /// Whether clients are in each other's way at this object.
    pub fn is_contended(&self, resource: Fid) -> bool {
        let now = self.shared.target.rt().now();
        self.shared.state.lock().namespace.is_contended(resource, now)
    }

    /// Objects that the client may write by those of its locks that `handles` name.
    pub fn written_by<'a>(&'a self, export: &Export, handles: &'a [u64]) -> impl Iterator<Item = Fid> + use<'a> {
        let client = client_of(export);
        handles.iter().filter_map(move |handle| self.shared.state.lock().namespace.written_by(client, LockId(*handle)))
    }

    /// Whether somebody waits for a lock on the object in order to read it.
    pub fn has_waiting_reader(&self, resource: Fid) -> bool {
        self.shared.state.lock().namespace.has_waiting_reader(resource)
    }

    /// A client is gone: its locks go, and its waiting requests. None of its requests runs any more.
    pub fn export_gone(&self, export: &Export) {
        let client = client_of(export);
        let peer = self.shared.with(|state, now, effects| {
            let gone = state.namespace.client_gone(client, now, effects);
            gone.into_iter().for_each(|id| state.answer(id, Err(Errno::ESHUTDOWN)));
            state.peers.remove(&client)
        });
        if let Some(peer) = peer {
            callbacks::disconnect(&self.shared, &peer);
        }
    }

    /// Locks granted and requests waiting; for leak checks.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        (state.namespace.lock_count(), state.namespace.waiting_count())
    }

    /// What is wrong with the lock tables, if anything is; for simulators.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.shared.state.lock().namespace.check()
    }

    /// Ends all waiting and calling back: the target has stopped. Clients keep nothing from here.
    pub fn stop(&self) {
        self.keeper.abort();
        let (waiters, peers) = {
            let mut state = self.shared.state.lock();
            (std::mem::take(&mut state.waiters), std::mem::take(&mut state.peers))
        };
        drop((waiters, peers));
    }

    fn begin_server_lock(
        &self,
        resource: Fid,
        mode: LockMode,
        ranges: RangeSet,
        on_behalf: ClientId,
    ) -> Result<Held, Waiting> {
        self.shared.begin(|state, now, effects| {
            let local = state.namespace.lock_server(resource, mode, ranges, on_behalf, now, effects);
            state.wait_if_needed(local)
        })
    }
}

impl Drop for LockService {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Does something to the locks, and then what follows from it for others.
    pub(crate) fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut State, Time, &mut Effects) -> T) -> T {
        let now = self.target.rt().now();
        let mut effects = Effects::default();
        let (result, callbacks, is_due_sooner) = {
            let _in_hand = self.target.in_hand("the lock table");
            let mut state = self.state.lock();
            let result = act(&mut state, now, &mut effects);
            let callbacks = state.carry_out(effects);
            (result, callbacks, state.next_due() < state.keeper_wakes)
        };
        if is_due_sooner {
            self.wake_keeper.notify_one();
        }
        callbacks.into_iter().for_each(|(peer, message)| callbacks::call_back(self, peer, message));
        result
    }

    /// Asks for a lock of the target's own.
    fn begin(
        self: &Arc<Self>,
        ask: impl FnOnce(&mut State, Time, &mut Effects) -> (LockId, Option<oneshot::Receiver<Answer>>),
    ) -> Result<Held, Waiting> {
        let (id, granted) = self.with(ask);
        // From here the guard gives the lock back, also if nobody waits for it in the end.
        let held = Held { shared: self.clone(), id };
        match granted {
            None => Ok(held),
            Some(granted) => Err(Waiting { held, granted }),
        }
    }

    pub(crate) fn unlock(self: &Arc<Self>, id: LockId) {
        self.with(|state, now, effects| {
            state.waiters.remove(&id);
            state.namespace.unlock(id, now, effects);
        });
    }

    /// What clients are told of how many locks they may keep goes into the replies from now on.
    pub(crate) fn publish_pool(&self, state: &State) {
        let pool = state.namespace.pool();
        let limit = u32::try_from(pool.limit).unwrap_or(u32::MAX);
        self.target.set_lock_pool(LockPool { volume: pool.volume, limit });
    }

    pub(crate) fn evict(self: &Arc<Self>, client: ClientId) {
        let Some(peer) = self.state.lock().peers.get(&client).cloned() else { return };
        let target = self.target.clone();
        drop(self.target.rt().spawn(async move {
            // Once, however many of its locks are waited for.
            if !peer.export.is_closed() {
                tracing::warn!(target = %target.name(), client = %peer.export.client_name, "did not give back a lock in time");
                target.node().evict(&peer.export).await;
            }
        }));
    }
}

impl State {
    /// When there is something to do next if nothing happens.
    fn next_due(&self) -> Time {
        self.namespace.next_deadline().min(self.namespace.next_recompute())
    }

    /// The client may be called back from now on.
    fn remember(&mut self, export: &Arc<Export>) {
        self.peers.entry(client_of(export)).or_insert_with(|| Arc::new(Peer::new(export.clone())));
    }

    fn enqueue(&mut self, request: Request, now: Time, effects: &mut Effects) -> Enqueueing {
        let is_withdrawal = request.enqueue.flags & enqueue_flags::WITHDRAW != 0;
        match self.namespace.enqueue(request, now, effects) {
            Outcome::Done(reply) => {
                if is_withdrawal {
                    self.answer(LockId(reply.handle), Err(Errno::EINTR));
                }
                Enqueueing::Answered(Ok(reply))
            }
            Outcome::Refused(error) => Enqueueing::Answered(Err(error)),
            Outcome::Waiting(id) => Enqueueing::Waiting(self.wait(id)),
            Outcome::Glimpse(work) => {
                let asked =
                    |holder: GlimpseHolder| Some(Asked { peer: self.peers.get(&holder.client)?.clone(), holder });
                Enqueueing::Glimpse { ask: work.holders.into_iter().filter_map(asked).collect(), flags: work.flags }
            }
        }
    }

    fn cancel(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) {
        if self.namespace.cancel(client, id, now, effects) {
            self.answer(id, Err(Errno::EINTR));
        }
    }

    fn wait_if_needed(&mut self, local: Local) -> (LockId, Option<oneshot::Receiver<Answer>>) {
        match local {
            Local::Granted(id) => (id, None),
            Local::Waiting(id) => (id, Some(self.wait(id))),
        }
    }

    fn wait(&mut self, id: LockId) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        // A sender that is dropped here belongs to a request that was sent again: the later one gets the answer.
        self.waiters.insert(id, sender);
        receiver
    }

    /// Answers who was granted a lock; the callbacks to be sent.
    fn carry_out(&mut self, effects: Effects) -> Vec<(Arc<Peer>, BlockingCallback)> {
        for Grant { id, reply } in effects.grants {
            self.answer(id, Ok(reply));
        }
        let callbacks = effects.callbacks.into_iter();
        callbacks.filter_map(|c| Some((self.peers.get(&c.client)?.clone(), c.message))).collect()
    }

    /// Ends the wait for `id`, if somebody waits.
    fn answer(&mut self, id: LockId, answer: Answer) {
        if let Some(waiter) = self.waiters.remove(&id) {
            // A handler that is gone had no client any more, and its locks go with the export.
            let _ = waiter.send(answer);
        }
    }
}

/// Waits for a grant; not for longer than there is somebody to answer to.
pub(crate) async fn wait(granted: oneshot::Receiver<Answer>, request: Option<&ServerRequest>) -> Answer {
    let Some(request) = request else { return granted.await.unwrap_or(Err(Errno::ESHUTDOWN)) };
    tokio::select! {
        biased;
        answer = granted => answer.unwrap_or(Err(Errno::ESHUTDOWN)),
        // What a client waits for is taken back with all else that its export has, in `export_gone`.
        () = request.abandoned() => Err(Errno::ESHUTDOWN),
    }
}

/// Evicts clients that were called back and did not give their locks back, and recomputes how many locks clients may keep.
async fn keep_up(shared: Weak<Shared>) {
    loop {
        let Some(this) = shared.upgrade() else { return };
        let rt = this.target.rt();
        let (expired, next) = {
            let state = &mut *this.state.lock();
            let expired = state.namespace.expired(rt.now());
            state.namespace.recompute_pool(rt.now());
            this.publish_pool(state);
            state.keeper_wakes = state.next_due();
            (expired, state.keeper_wakes)
        };
        expired.into_iter().for_each(|client| this.evict(client));
        let _ = rt.timeout_at(next, this.wake_keeper.notified()).await;
    }
}

/// How the lock engine knows the client.
pub fn client_of(export: &Export) -> ClientId {
    ClientId(export.cookie)
}
