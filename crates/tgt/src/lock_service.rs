//! The lock manager of one target: serves LDLM_ENQUEUE, LDLM_CONVERT and LDLM_CANCEL, and takes locks for the target
//! itself for the length of an operation.
//!
//! The reply to an enqueue is sent when the lock is granted; while the request waits, the RPC layer's early replies
//! keep it alive. Holders of conflicting locks are called back ([`crate::callbacks`]); a holder that neither gives its
//! lock back nor uses it is evicted. A waiting request ends with EINTR when its client withdraws it, and goes away with
//! its export. A resent request finds its first copy. Locks live in memory only.
//!
//! This module does not know what the resources are.

use crate::called_back::Wanted;
use crate::lock_guards::{Held, InodeLocks, InodeLocksWait, ServerLockGuard, Waiting, wait};
use crate::lock_table::{Enqueueing, Shared, State, client_of};
use crate::{Target, callbacks, lock_params};
use nacre_base::{Errno, Fid, Part};
use nacre_ldlm::server::{Effects, Outcome, Request};
use nacre_ldlm::{ClientId, LockId, RangeSet};
use nacre_ptlrpc::{Export, Response, ServerRequest};
use nacre_rt::Task;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{Cancel, Convert, Enqueue, EnqueueReply, InodeLock, LockKind, LockMode, enqueue_flags};
use std::sync::{Arc, Weak};

/// The locks of one target.
pub struct LockService {
    kind: LockKind,
    pub(crate) shared: Arc<Shared>,
    keeper: Task,
}

/// Most writers of an object that are asked for a client that only guesses that it will want the size. An object that has more is probably
/// being written.
const WRITERS_ASKED_MAX: usize = 4;

/// Result of an enqueue that was not refused.
#[derive(Debug)]
pub struct Enqueued {
    /// The reply, without the attributes of the resource, which only the caller knows.
    pub reply: EnqueueReply,
    /// Size and times from the holders that were asked, including data that they have not written yet.
    pub glimpsed: Vec<ObjectAttr>,
}

impl LockService {
    /// Client on whose behalf a target locks for itself; the locks of all clients conflict with its locks.
    pub const NOBODY: ClientId = ClientId(0);

    /// A service for the locks that clients ask for: flocks of an MDT, extents of an OST. Its parameters are under
    /// `ldlm.namespaces`.
    pub fn new(target: &Arc<Target>, kind: LockKind) -> LockService {
        let shared = Arc::new(Shared::new(target));
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

    /// Handles LDLM_ENQUEUE for a caller that has decoded the request already and completes the reply.
    pub async fn enqueue_decoded(&self, request: &ServerRequest, enqueue: Enqueue) -> Result<Enqueued, Errno> {
        if enqueue.kind != self.kind {
            return Err(Errno::EOPNOTSUPP);
        }
        if enqueue.flags & enqueue_flags::REPLAY != 0 && !request.is_recovery() {
            return Err(Errno::EINVAL);
        }
        let resource = enqueue.resource;
        let client = client_of(&request.export);
        let restores = enqueue.kind == LockKind::Extent && enqueue.flags & enqueue_flags::REPLAY != 0;
        let outcome = self.shared.with(|state, now, effects| {
            // A client chooses the id of a lock that it replays, and the pool does not limit them. So once the recovery is over, a
            // replay is accepted only of a lock that was restored before: the client did not hear so, and repeats its
            // recovery. The client drops any other lock, and asks for a new one when it needs it.
            let id = LockId(enqueue.handle);
            if restores && !self.shared.target.is_recovering() && !state.namespace.holds_extent(client, id) {
                return Enqueueing::Answered(Err(Errno::ESTALE));
            }
            state.remember(&request.export);
            state.enqueue(Request { client, xid: request.header.xid, part: 0, enqueue }, now, effects)
        });
        let reply = match outcome {
            Enqueueing::Answered(answer) => answer?,
            Enqueueing::Waiting(granted) => wait(granted, Some(request)).await?,
            Enqueueing::Glimpse { ask, flags } => {
                let reply = EnqueueReply { mode: LockMode::Nl, flags, ..EnqueueReply::default() };
                let asked = async {
                    tokio::select! {
                        biased;
                        glimpsed = callbacks::glimpse(&self.shared, ask, resource) => Ok(glimpsed),
                        () = request.abandoned() => Err(Errno::ESHUTDOWN),
                    }
                };
                let glimpsed = request.spend(Part::Locks, asked).await?;
                return Ok(Enqueued { reply, glimpsed });
            }
        };
        Ok(Enqueued { reply, glimpsed: Vec::new() })
    }

    /// Grants a lock to read all of an object, as number `part` of the locks that the request asks for, if no other
    /// client's lock conflicts. Does not wait, and calls nobody back.
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
            // The flag rules out waiting, and a resent request finds the lock that was granted.
            Outcome::Refused(_) | Outcome::Waiting(_) | Outcome::Glimpse(_) => None,
        }
    }

    /// Asks the writers of an object, if they are few, whether they still need their locks. Returns true if there are some, and all give
    /// their locks back, so that [`LockService::try_lock_object`] will soon succeed. Waits for their answers.
    pub async fn are_writers_idle(&self, request: &ServerRequest, object: Fid) -> bool {
        let client = client_of(&request.export);
        let writers = self.shared.with(|state, now, _| state.writers(object, client, now));
        let are_asked = (1..=WRITERS_ASKED_MAX).contains(&writers.len());
        are_asked && callbacks::are_idle(&self.shared, writers, object).await
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

    /// Handles LDLM_CONVERT. A lock that is already gone is no error.
    pub fn convert(&self, request: &ServerRequest) -> Result<Response, Errno> {
        let Convert { handle, bits } = request.decode()?;
        let client = client_of(&request.export);
        self.shared.with(|state, now, effects| {
            state.called_back.end(LockId(handle), Wanted::Lock, now);
            state.namespace.convert(client, LockId(handle), bits, now, effects)
        });
        Ok(Response::new(&()))
    }

    /// Takes back a lock that was granted to this client's request, because the reply will not mention it.
    pub fn give_back(&self, export: &Export, handle: u64) {
        self.shared.with(|state, now, effects| state.cancel(client_of(export), LockId(handle), now, effects));
    }

    /// Checks that the client's lock covers all of `ranges` of the object, for a write or for a read; ESTALE if not.
    /// The client gets more time to give the lock back, if it was called back.
    pub fn check(
        &self,
        export: &Export,
        handle: u64,
        resource: Fid,
        is_write: bool,
        ranges: &RangeSet,
    ) -> Result<(), Errno> {
        let now = self.shared.target.rt().now();
        let _in_hand = self.shared.target.in_hand("the lock table");
        let namespace = &mut self.shared.state.lock().namespace;
        let covers = namespace.covers(client_of(export), LockId(handle), resource, is_write, ranges, now);
        if covers { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Locks ranges of an object for the length of one request that holds no lock of its client. Waits for conflicting
    /// locks of other clients; the client's own locks do not conflict.
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

    /// Calls back all locks on a resource that was destroyed; waits for nobody.
    pub fn revoke(&self, resource: Fid) {
        if let Err(waiting) = self.begin_server_lock(resource, LockMode::Pw, RangeSet::ALL, Self::NOBODY) {
            let rt = self.shared.target.rt();
            // Stays in the queue until all locks are back, so that the keeper evicts holders that do not give theirs
            // back.
            drop(rt.spawn(async move { drop(waiting.granted(None).await) }));
        }
    }

    /// Locks the inodes that an operation changes, all of them or none: (inode, bits of
    /// [`nacre_wire::ldlm::inode_bits`]). Locks of other clients than `on_behalf`, and of other operations, conflict.
    /// Does not wait, so it may be called in the operation's turn at the running transaction; if it fails, the turn
    /// must be given up before waiting for the locks.
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

    /// Like [`LockService::try_lock_inodes`], but waits. `request` is the request that is being served, if there is
    /// one.
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

    /// Grants the client a lock on those of the inode's `bits` that no operation is changing. Must be called from one
    /// of the client's requests, so that the client is not gone.
    pub fn grant_inode(&self, export: &Arc<Export>, inode: Fid, bits: u64) -> Option<InodeLock> {
        self.shared.with(|state, _, _| {
            state.remember(export);
            state.namespace.grant_inode(client_of(export), inode, bits)
        })
    }

    /// Returns whether the locks of clients at this object conflict often.
    pub fn is_contended(&self, resource: Fid) -> bool {
        let now = self.shared.target.rt().now();
        self.shared.state.lock().namespace.is_contended(resource, now)
    }

    /// Objects that the client may write under those of its locks that `handles` name.
    pub fn written_by<'a>(&'a self, export: &Export, handles: &'a [u64]) -> impl Iterator<Item = Fid> + use<'a> {
        let client = client_of(export);
        handles.iter().filter_map(move |handle| self.shared.state.lock().namespace.written_by(client, LockId(*handle)))
    }

    /// Returns whether a request waits for a lock on the object in order to read it.
    pub fn has_waiting_reader(&self, resource: Fid) -> bool {
        self.shared.state.lock().namespace.has_waiting_reader(resource)
    }

    /// A client is gone: removes its locks and its waiting requests. None of its requests is running.
    pub fn export_gone(&self, export: &Export) {
        let client = client_of(export);
        let peer = self.shared.with(|state, now, effects| {
            let gone = state.namespace.client_gone(client, now, effects);
            gone.into_iter().for_each(|id| state.answer(id, Err(Errno::ESHUTDOWN)));
            state.called_back.client_gone(client);
            state.peers.remove(&client)
        });
        if let Some(peer) = peer {
            callbacks::disconnect(&self.shared, &peer);
        }
    }

    /// Locks granted and requests waiting; for leak checks.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        state.assert_waiters();
        (state.namespace.lock_count(), state.namespace.waiting_count())
    }

    /// Checks the lock tables; the error says what is wrong. For simulators.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.shared.state.lock().namespace.check()
    }

    /// Ends all waits and callbacks, because the target has stopped. No lock from here is valid any longer.
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

/// Evicts clients that were called back and did not give their locks back, recomputes how many locks clients may keep, and
/// tells those that are silent if these are fewer than they hold.
async fn keep_up(shared: Weak<Shared>) {
    loop {
        let Some(this) = shared.upgrade() else { return };
        let rt = this.target.rt();
        let (expired, untold, next) = {
            let _in_hand = this.target.in_hand("the lock table");
            let state = &mut *this.state.lock();
            let expired = this.expired(state, rt.now());
            state.namespace.recompute_pool(rt.now());
            this.publish_pool(state);
            state.keeper_wakes = state.next_due();
            (expired, state.untold(rt.now()), state.keeper_wakes)
        };
        expired.into_iter().for_each(|client| this.evict(client));
        untold.into_iter().for_each(|peer| callbacks::tell_volume(&this, peer));
        let _ = rt.timeout_at(next, this.wake_keeper.notified()).await;
    }
}
