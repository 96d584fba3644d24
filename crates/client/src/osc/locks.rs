//! Getting extent locks: found in the cache, or asked for; one enqueue for all who want the same. Giving them back is in
//! `giving`; what a lock means for data is the owner's.

use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::object::{Enqueueing, Object};
use nacre_base::Errno;
use nacre_ldlm::lock_cache::{Arrival, Cover, Giving, LockCache, Ticket, Want};
use nacre_ldlm::{LockId, RangeSet};
use nacre_ptlrpc::CallOptions;
use nacre_wire::Opcode;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags, reply_flags};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// PR or PW.
    pub(crate) mode: LockMode,
    /// What the operation needs.
    pub(crate) ranges: RangeSet,
    /// What to ask for if no lock is there that has it, and no more than that; none lets the server give more than
    /// `ranges`.
    pub(crate) exactly: Option<RangeSet>,
    /// A lock that is called back, and not given back yet, will do: for what a door writes out because of that callback.
    pub(crate) under_callback: bool,
    /// Which group's lock, with mode GROUP; else 0.
    pub(crate) group: u64,
    /// Bits of [`enqueue_flags`] beside NO_EXPANSION.
    pub(crate) flags: u32,
}

impl Wanted {
    /// A lock on these bytes or more.
    pub(crate) fn grown(mode: LockMode, ranges: RangeSet) -> Wanted {
        Wanted { mode, ranges, exactly: None, under_callback: false, group: 0, flags: 0 }
    }

    /// A lock on exactly these bytes.
    pub(crate) fn exact(mode: LockMode, ranges: RangeSet) -> Wanted {
        Wanted { exactly: Some(ranges.clone()), ..Wanted::grown(mode, ranges) }
    }

    /// The lock of a group, which is always on all of an object.
    pub(crate) fn of_group(group: u64) -> Wanted {
        Wanted { group, ..Wanted::grown(LockMode::Group, RangeSet::ALL) }
    }

    /// What others are told while it is asked for.
    pub(super) fn enqueueing(&self) -> Enqueueing {
        assert_eq!(self.group != 0, self.mode == LockMode::Group, "{self:?}");
        let ranges = self.exactly.clone().unwrap_or_else(|| self.ranges.clone());
        assert!(ranges.contains(&self.ranges), "less is asked for than is needed: {self:?}");
        Enqueueing { mode: self.mode, ranges, grows: self.exactly.is_none() }
    }

    fn want(&self) -> Want {
        Want::Extent { mode: self.mode, ranges: self.ranges.clone(), group: self.group }
    }
}

/// How an open file gets its locks, by what its program has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Locking {
    /// All is done under this group's locks; 0: it is in no group.
    pub(crate) group: u64,
    /// Locks are to cover no more than is accessed.
    pub(crate) exact: bool,
    /// Others of this mount hold a group lock. The server takes what it locks by itself to be theirs, so nothing is to be
    /// left to that.
    pub(crate) beside_group: bool,
}

impl Locking {
    /// The lock to ask for, for these bytes.
    pub(crate) fn wanted(self, mode: LockMode, ranges: RangeSet) -> Wanted {
        match self {
            Locking { group: 1.., .. } => Wanted::of_group(self.group),
            Locking { exact: true, .. } => Wanted::exact(mode, ranges),
            _ => Wanted::grown(mode, ranges),
        }
    }

    /// Whether the program has told how.
    pub(crate) fn is_told(self) -> bool {
        self.group != 0 || self.exact
    }

    /// Whether data that goes around the cache needs a lock of its own, too.
    pub(crate) fn always(self) -> bool {
        self.group != 0 || self.beside_group
    }
}

/// A lock in use: it is not given back before this is dropped.
pub(crate) struct LockGuard {
    osc: Arc<Osc>,
    pub(crate) id: LockId,
    /// Locks are lost all at once, and this counts how often; the other one, how often by an eviction.
    epoch: u64,
    evictions: u64,
    /// The server said that clients are in each other's way.
    pub(crate) contended: bool,
    is_released: bool,
}

impl LockGuard {
    /// Ends the use, and waits until the lock is given back if that is due.
    pub(crate) async fn give_back(mut self) {
        if let Some(giving) = self.release() {
            self.osc.clone().give(giving).await;
        }
    }

    fn release(&mut self) -> Option<Giving> {
        assert_ne!(self.id, LockId(0), "a guard of no lock");
        let released = std::mem::replace(&mut self.is_released, true);
        if released { None } else { self.osc.locks.lock().release(self.id, self.osc.now()) }
    }

    /// Whether an eviction or restart of the server has taken it.
    pub(crate) fn is_lost(&self) -> bool {
        self.osc.epoch.load(Ordering::Acquire) != self.epoch
    }

    /// Whether an eviction has taken it: others may have had the bytes since.
    pub(crate) fn is_evicted(&self) -> bool {
        self.osc.evictions.load(Ordering::Acquire) != self.evictions
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(giving) = self.release() {
            self.osc.start_giving(giving);
        }
    }
}

impl Osc {
    fn guard(self: &Arc<Self>, id: LockId, contended: bool) -> LockGuard {
        let (epoch, evictions) = (self.epoch.load(Ordering::Acquire), self.evictions.load(Ordering::Acquire));
        LockGuard { osc: self.clone(), id, epoch, evictions, contended, is_released: false }
    }

    /// A lock that is here already.
    pub(crate) fn find_lock(self: &Arc<Self>, object: &Object, ask: &Wanted) -> Option<LockGuard> {
        let want = ask.want();
        let mut locks = self.locks.lock();
        let mut found = locks.find(object.fid, &want);
        if found.is_none() && ask.under_callback {
            found = locks.find_even_called_back(object.fid, &want);
        }
        // Under the mutex, so that the epoch is the lock's.
        found.map(|id| self.guard(id, false))
    }

    /// A lock that covers what is asked for: from the cache, or from the server.
    ///
    /// Who only reads is content with a lock that is being given back while the door is told to forget what it protects:
    /// the door may wait for this very read.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        wanted: &Wanted,
    ) -> Result<LockGuard, Errno> {
        let reads = wanted.mode == LockMode::Pr;
        if wanted.group != 0 {
            return self.group_lock(caller, object, wanted).await;
        }
        loop {
            if let Some(guard) = self.find_lock(object, wanted) {
                return Ok(guard);
            }
            let (others, hooks, seen) = {
                let mut state = object.state.lock();
                let shares = !self.only_grown_locks.load(Ordering::Relaxed);
                let others = shares && state.enqueues.iter().any(|e| e.may_serve(wanted.mode, &wanted.ranges));
                if !others {
                    state.enqueues.push(wanted.enqueueing());
                }
                let (hooks, seen) = state.hooks();
                (others, hooks, seen)
            };
            let answer = (!others).then(|| self.ask_server(caller, object, wanted));
            if reads && hooks > 0 {
                let even = Wanted { under_callback: true, ..wanted.clone() };
                if let Some(guard) = self.find_lock(object, &even) {
                    return Ok(guard);
                }
            }
            let hooked = object.wait_for(|state| (reads && state.hooks().1 != seen).then_some(()));
            let served = |e: &Enqueueing| e.may_serve(wanted.mode, &wanted.ranges);
            match answer {
                Some(answer) => tokio::select! {
                    biased;
                    answer = answer => return answer.unwrap_or(Err(Errno::ESHUTDOWN)),
                    () = hooked => {}
                },
                None => {
                    let over = object.wait_for(|state| (!state.enqueues.iter().any(served)).then_some(()));
                    tokio::select! {
                        biased;
                        () = over => {}
                        () = hooked => {}
                    }
                }
            }
        }
    }

    /// A group's lock: whoever else of this client asks for one may be of another group.
    async fn group_lock(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        wanted: &Wanted,
    ) -> Result<LockGuard, Errno> {
        assert_eq!(wanted.mode, LockMode::Group, "{wanted:?}");
        match self.find_lock(object, wanted) {
            Some(guard) => Ok(guard),
            None => self.ask_server(caller, object, wanted).await.unwrap_or(Err(Errno::ESHUTDOWN)),
        }
    }

    /// In a task of its own, so that what is granted to somebody who no longer waits is kept or given back in order.
    pub(super) fn ask_server(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        ask: &Wanted,
    ) -> oneshot::Receiver<Result<LockGuard, Errno>> {
        let (osc, object, caller, ask) = (self.clone(), object.clone(), *caller, ask.clone());
        let (send, receive) = oneshot::channel();
        self.connection.mount().rt.spawn(async move {
            let answer = osc.enqueue(&caller, &object, &ask).await;
            // Nobody shares a group's lock.
            if ask.group == 0 {
                object.state.lock().end_enqueue(&ask.enqueueing());
            }
            let _ = send.send(answer);
            object.changed.notify_waiters();
        });
        receive
    }

    async fn enqueue(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        ask: &Wanted,
    ) -> Result<LockGuard, Errno> {
        let (start, end, more) = ask.exactly.as_ref().unwrap_or(&ask.ranges).to_wire();
        let exact = if ask.exactly.is_some() { enqueue_flags::NO_EXPANSION } else { 0 };
        let (kind, resource, mode, flags) = (LockKind::Extent, object.fid, ask.mode, exact | ask.flags);
        let group = ask.group;
        let body = Enqueue { kind, resource, mode, start, end, flags, more, group, ..Enqueue::default() };
        loop {
            if let (Some(guard), _) = self.send_enqueue(caller, object, &body).await? {
                return Ok(guard);
            }
        }
    }

    /// Sends an enqueue and books the lock it brings, if it brings one that is good.
    async fn send_enqueue(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        body: &Enqueue,
    ) -> Result<(Option<LockGuard>, EnqueueReply), Errno> {
        // Outside of the window of RPCs in flight, or those who wait for a lock would keep its holder from writing.
        let options = CallOptions { high_priority: true, ..caller.options() };
        let ticket = self.locks.lock().begin();
        let answer = self.connection.call::<EnqueueReply>(Opcode::LdlmEnqueue, body, options).await;
        let (guard, cancels) = {
            let mut locks = self.locks.lock();
            let guard = match &answer {
                Ok(reply) => self.take_lock(&mut locks, ticket, object, body, &reply.body),
                Err(_) => Ok(None),
            };
            (guard, locks.end(ticket))
        };
        if !cancels.is_empty() {
            self.start_cancel(cancels);
        }
        self.wake_upkeep();
        Ok((guard?, answer?.body))
    }

    pub(super) fn take_lock(
        self: &Arc<Self>,
        locks: &mut LockCache,
        ticket: Ticket,
        object: &Object,
        body: &Enqueue,
        reply: &EnqueueReply,
    ) -> Result<Option<LockGuard>, Errno> {
        if reply.mode == LockMode::Nl {
            return Ok(None);
        }
        // A request without a lock names this handle.
        if reply.handle == 0 {
            return Err(Errno::EPROTO);
        }
        // A set is granted as it was asked for; a single range may have grown.
        let ranges = match body.more.is_empty() {
            true => RangeSet::from_wire(reply.start, reply.end, &[]),
            false => RangeSet::from_wire(body.start, body.end, &body.more),
        };
        let cover = Cover::Extent { mode: reply.mode, ranges: ranges.ok_or(Errno::EPROTO)?, group: body.group };
        let (id, called_back) = (LockId(reply.handle), reply.flags & reply_flags::CALLED_BACK != 0);
        if locks.granted(ticket, id, object.fid, cover, called_back, self.now()) == Arrival::Dead {
            return Ok(None);
        }
        // Before anybody can find the lock, which says that this is true.
        if let Some(attr) = &reply.attr {
            object.state.lock().learn(attr);
        }
        Ok(Some(self.guard(id, reply.flags & reply_flags::CONTENDED != 0)))
    }

    /// The attributes of an object, with what this client has not written yet, and others neither: from memory where a
    /// lock allows, else the server is asked, who asks the writers.
    pub(crate) async fn glimpse(self: &Arc<Self>, caller: &Caller, object: &Arc<Object>) -> Result<ObjectAttr, Errno> {
        match self.known_attr(object) {
            Some(attr) => Ok(attr),
            None => self.glimpse_server(caller, object, false).await,
        }
    }

    /// The same; none if it takes longer, or the target is deactivated.
    pub(crate) async fn glimpse_within(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        patience: Duration,
    ) -> Result<Option<ObjectAttr>, Errno> {
        let (osc, object, caller) = (self.clone(), object.clone(), *caller);
        let (send, receive) = oneshot::channel();
        let rt = &self.connection.mount().rt;
        // In a task of its own: a lock that it brings late is booked all the same.
        rt.spawn(async move {
            let _ = send.send(osc.glimpse(&caller, &object).await);
        });
        match rt.timeout(patience, receive).await {
            Ok(Ok(Err(Errno::EIO))) if !self.connection.is_active() => Ok(None),
            Ok(answer) => answer.unwrap_or(Err(Errno::ESHUTDOWN)).map(Some),
            Err(_) => {
                self.connection.note_silent();
                Ok(None)
            }
        }
    }

    /// What the server knows of an object, with what other clients have not written yet. `learn`: also this client's.
    pub(super) async fn glimpse_server(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        learn: bool,
    ) -> Result<ObjectAttr, Errno> {
        let body = Enqueue {
            kind: LockKind::Extent,
            resource: object.fid,
            mode: LockMode::Pr,
            start: 0,
            end: u64::MAX,
            flags: enqueue_flags::GLIMPSE,
            ..Enqueue::default()
        };
        let (guard, reply) = self.send_enqueue(caller, object, &body).await?;
        let mut state = object.state.lock();
        if let (None, Some(attr), true) = (&guard, &reply.attr, learn) {
            state.learn_grown(attr);
            object.account(&state);
        }
        match (&guard, reply.attr) {
            (Some(_), _) => Ok(state.visible()),
            (None, Some(attr)) => Ok(state.merged(attr)),
            (None, None) => Err(Errno::EPROTO),
        }
    }

    /// An answer to what was done under a lock. An error is ESTALE if the lock was lost: it may be begun again.
    pub(crate) fn or_lost<T>(&self, guard: &LockGuard, answer: Result<T, Errno>) -> Result<T, Errno> {
        answer.map_err(|error| if guard.is_lost() { Errno::ESTALE } else { error })
    }

    /// The attributes, if a lock on the whole object makes them known; not while this client has them changed at the server.
    pub(crate) fn known_attr(&self, object: &Object) -> Option<ObjectAttr> {
        let locks = self.locks.lock();
        let known = locks.covers_to_eof(object.fid, 0);
        let state = object.state.lock();
        (known && !state.is_changing()).then(|| state.visible())
    }

    /// The size, if a lock on the object's end makes it known; as for [`Osc::known_attr`].
    pub(crate) fn known_size(&self, object: &Object) -> Option<u64> {
        let locks = self.locks.lock();
        let state = object.state.lock();
        let size = state.size();
        (!state.is_changing() && locks.covers_to_eof(object.fid, size)).then_some(size)
    }
}
