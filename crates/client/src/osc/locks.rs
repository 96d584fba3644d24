//! Gets extent locks: from the cache, or from the server, with one enqueue for all callers that want the same lock.
//! `giving` gives them back; the owner decides what a lock means for data.

use crate::lov::file_state::Pages;
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::object::{Enqueueing, Object};
use crate::osc::write::extent;
use nacre_base::Errno;
use nacre_ldlm::lock_cache::{Arrival, Cover, Giving, LockCache, Ticket, Want};
use nacre_ldlm::{LockId, RangeSet};
use nacre_ptlrpc::CallOptions;
use nacre_wire::Opcode;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags, reply_flags};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// The lock that an operation wants.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// PR or PW.
    pub(crate) mode: LockMode,
    /// Ranges that the operation needs.
    pub(crate) ranges: RangeSet,
    /// Ranges to request, exactly, if no cached lock covers `ranges`; none lets the server grant more than `ranges`.
    pub(crate) exactly: Option<RangeSet>,
    /// What a door may be unable to forget until the caller has its lock. Then a lock will do that is being given back, as long as
    /// the door forgets what it protected.
    pub(crate) held_up: HeldUp,
    /// Group of the lock, with mode GROUP; else 0.
    pub(crate) group: u64,
    /// Further bits of [`enqueue_flags`].
    pub(crate) flags: u32,
}

impl Wanted {
    /// A lock on these bytes or more.
    pub(crate) fn grown(mode: LockMode, ranges: RangeSet) -> Wanted {
        Wanted { mode, ranges, exactly: None, held_up: HeldUp::Nothing, group: 0, flags: 0 }
    }

    /// A lock on exactly these bytes.
    pub(crate) fn exact(mode: LockMode, ranges: RangeSet) -> Wanted {
        Wanted { exactly: Some(ranges.clone()), ..Wanted::grown(mode, ranges) }
    }

    /// The lock of a group, which is always on all of an object.
    pub(crate) fn of_group(group: u64) -> Wanted {
        Wanted { group, ..Wanted::grown(LockMode::Group, RangeSet::ALL) }
    }

    /// The enqueue, as other callers see it while it is under way.
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

/// What a door cannot forget while an operation waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldUp {
    Nothing,
    /// Pages that the operation fills.
    Pages,
    /// What was stored into pages: the kernel writes nothing while the size changes.
    Stores,
}

/// How an open file gets its locks, as its program has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Locking {
    /// Group whose locks all operations use; 0: none.
    pub(crate) group: u64,
    /// True if locks shall cover no more than is accessed.
    pub(crate) exact: bool,
    /// True if other open files of this mount hold a group lock. The server would take locks of its own for this client
    /// to be the group's, so this client must not rely on those.
    pub(crate) beside_group: bool,
}

impl Locking {
    /// The lock to request for these bytes.
    pub(crate) fn wanted(self, mode: LockMode, ranges: RangeSet) -> Wanted {
        match self {
            Locking { group: 1.., .. } => Wanted::of_group(self.group),
            Locking { exact: true, .. } => Wanted::exact(mode, ranges),
            _ => Wanted::grown(mode, ranges),
        }
    }

    /// True if the program has asked for a certain way.
    pub(crate) fn is_told(self) -> bool {
        self.group != 0 || self.exact
    }

    /// True if data that goes around the cache needs a lock, too.
    pub(crate) fn always(self) -> bool {
        self.group != 0 || self.beside_group
    }
}

/// A lock in use: it is not given back before this is dropped.
pub(crate) struct LockGuard {
    osc: Arc<Osc>,
    pub(crate) id: LockId,
    /// The OSC's counters when the lock was found: of losses of all locks, and of losses by an eviction.
    epoch: u64,
    evictions: u64,
    /// True if the server said that clients are in each other's way.
    pub(crate) contended: bool,
    is_released: bool,
}

impl LockGuard {
    /// Ends the use; if the lock has to be given back now, waits until that is done. Does not wait for a deactivated OST,
    /// whose lock is given back after dirty bytes have been written.
    pub(crate) async fn give_back(mut self) {
        if let Some(giving) = self.release() {
            let osc = self.osc.clone();
            let (given, is_given) = oneshot::channel::<()>();
            self.osc.spawn(async move {
                osc.give(giving).await;
                drop(given);
            });
            let _ = self.osc.connection.while_active(is_given).await;
        }
    }

    fn release(&mut self) -> Option<Giving> {
        assert_ne!(self.id, LockId(0), "a guard of no lock");
        let released = std::mem::replace(&mut self.is_released, true);
        if released { None } else { self.osc.locks.lock().release(self.id, self.osc.now()) }
    }

    /// True if the server waits for the lock.
    pub(crate) fn is_called_back(&self) -> bool {
        self.osc.locks.lock().is_called_back(self.id)
    }

    /// True if an eviction or a restart of the server has taken the lock.
    pub(crate) fn is_lost(&self) -> bool {
        self.osc.epoch.load(Ordering::Acquire) != self.epoch
    }

    /// True if an eviction has taken the lock: other clients may have changed the bytes since.
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

    /// Finds a cached lock.
    pub(crate) fn find_lock(self: &Arc<Self>, object: &Object, ask: &Wanted) -> Option<LockGuard> {
        let mut locks = self.locks.lock();
        let found = locks.find(object.fid, &ask.want());
        // While the mutex is held, so that the epoch is the one of the lock.
        found.map(|id| self.guard(id, false))
    }

    /// Finds a lock that is being given back, if a door may wait for this very operation to forget what the lock protected.
    fn find_forgetting(self: &Arc<Self>, object: &Object, ask: &Wanted) -> Option<LockGuard> {
        if ask.held_up == HeldUp::Nothing {
            return None;
        }
        let mut locks = self.locks.lock();
        let mut find =
            |want| locks.find_even_called_back(object.fid, &want, |id| object.state.lock().pages.is_forgetting(id));
        let mut found = find(ask.want());
        // Nobody can store into the page yet, and before anybody can, it is forgotten once more.
        let turns = || object.place().is_some_and(|place| place.file.pages() == Pages::Turning);
        if found.is_none() && ask.held_up == HeldUp::Pages && ask.mode == LockMode::Pw && turns() {
            found = find(Wanted { mode: LockMode::Pr, ..ask.clone() }.want());
        }
        found.map(|id| self.guard(id, false))
    }

    /// The lock that the page at `at` of the object was filled under, even if it is being given back, with the end of the pages
    /// after it for which the same is true. None if that lock is lost.
    pub(crate) fn lock_of_stored(self: &Arc<Self>, object: &Object, at: u64, end: u64) -> Option<(LockGuard, u64)> {
        let mut locks = self.locks.lock();
        let (id, filled) = object.state.lock().pages.stored(at)?;
        let end = filled.min(end);
        let Cover::Extent { mode, group, .. } = locks.get(id)?.1 else { return None };
        let want = Want::Extent { mode: *mode, ranges: RangeSet::single(extent(&(at..end))), group: *group };
        let found = locks.find_even_called_back(object.fid, &want, |other| other == id);
        let found = found.unwrap_or_else(|| panic!("pages of {} at {at} were filled beyond {id:?}", object.fid));
        Some((self.guard(found, false), end))
    }

    /// Pages of a range are about to be filled under a lock. Returns false if the caller needs another lock: this one is
    /// about to go, or programs can store into the pages and it does not keep others from reading.
    #[must_use = "a page must not be filled under a lock that goes"]
    pub(crate) fn begin_fill(&self, guard: &LockGuard, object: &Object, range: &Range<u64>) -> bool {
        let locks = self.locks.lock();
        let Some((_, Cover::Extent { mode, .. })) = locks.get(guard.id) else { return false };
        let place = object.place().expect("an object of a file that is read has a place in it");
        let mut state = object.state.lock();
        let suffices = *mode != LockMode::Pr
            || match place.file.pages() {
                Pages::Read => true,
                Pages::Turning => state.pages.is_forgetting(guard.id),
                Pages::Stored => false,
            };
        suffices && !guard.is_lost() && state.pages.fill(guard.id, *mode, extent(range), self.now())
    }

    /// Gets a lock that covers the wanted ranges: from the cache, or from the server.
    ///
    /// See [`HeldUp`] for locks that are being given back.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        wanted: &Wanted,
    ) -> Result<LockGuard, Errno> {
        if wanted.group != 0 {
            return self.group_lock(caller, object, wanted).await;
        }
        loop {
            if let Some(guard) = self.find_lock(object, wanted) {
                return Ok(guard);
            }
            let (others, seen) = {
                let mut state = object.state.lock();
                let shares = !self.only_grown_locks.load(Ordering::Relaxed);
                let others = shares && state.enqueues.iter().any(|e| e.may_serve(wanted.mode, &wanted.ranges));
                if !others {
                    state.enqueues.push(wanted.enqueueing());
                }
                (others, state.pages.begun())
            };
            let answer = (!others).then(|| self.ask_server(caller, object, wanted));
            if let Some(guard) = self.find_forgetting(object, wanted) {
                return Ok(guard);
            }
            let waits = wanted.held_up != HeldUp::Nothing;
            let forgetting = object.wait_for(|state| (waits && state.pages.begun() != seen).then_some(()));
            let served = |e: &Enqueueing| e.may_serve(wanted.mode, &wanted.ranges);
            match answer {
                Some(answer) => tokio::select! {
                    biased;
                    answer = answer => return answer.unwrap_or(Err(Errno::ESHUTDOWN)),
                    () = forgetting => {}
                },
                None => {
                    let over = object.wait_for(|state| (!state.enqueues.iter().any(served)).then_some(()));
                    tokio::select! {
                        biased;
                        () = over => {}
                        () = forgetting => {}
                    }
                }
            }
        }
    }

    /// Gets a group's lock. Enqueues are not shared, because those of other callers may be for another group.
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

    /// Requests the lock in a task of its own, so that a lock granted to a caller that no longer waits is kept or given
    /// back in order.
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
            // Enqueues of group locks are not shared.
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
        // Pages whose lock others wait for are not written before the size has changed.
        let ahead = if ask.held_up == HeldUp::Stores { enqueue_flags::AHEAD } else { 0 };
        let (kind, resource, mode, flags) = (LockKind::Extent, object.fid, ask.mode, exact | ahead | ask.flags);
        let group = ask.group;
        let body = Enqueue { kind, resource, mode, start, end, flags, more, group, ..Enqueue::default() };
        loop {
            if let (Some(guard), _) = self.send_enqueue(caller, object, &body).await? {
                return Ok(guard);
            }
        }
    }

    /// Sends an enqueue and records the granted lock, if there is one and it is valid.
    async fn send_enqueue(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        body: &Enqueue,
    ) -> Result<(Option<LockGuard>, EnqueueReply), Errno> {
        // Outside the window of RPCs in flight: otherwise callers that wait for a lock would keep its holder from
        // writing.
        let options = CallOptions { high_priority: true, ..caller.options() };
        let asking = self.ask();
        let answer = self.connection.call::<EnqueueReply>(Opcode::LdlmEnqueue, body, options).await;
        let guard = asking.end(|locks, ticket| match &answer {
            Ok(reply) => self.take_lock(locks, ticket, object, body, &reply.body),
            Err(_) => Ok(None),
        });
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
        // Handle 0 means no lock, so no granted lock may have it.
        if reply.handle == 0 {
            return Err(Errno::EPROTO);
        }
        // A set is granted as it was requested; a single range may have grown.
        let ranges = match body.more.is_empty() {
            true => RangeSet::from_wire(reply.start, reply.end, &[]),
            false => RangeSet::from_wire(body.start, body.end, &body.more),
        };
        let cover = Cover::Extent { mode: reply.mode, ranges: ranges.ok_or(Errno::EPROTO)?, group: body.group };
        let (id, called_back) = (LockId(reply.handle), reply.flags & reply_flags::CALLED_BACK != 0);
        if locks.granted(ticket, id, object.fid, cover, called_back, self.now()) == Arrival::Dead {
            return Ok(None);
        }
        // Before any operation can find the lock, which makes these attributes true.
        if let Some(attr) = &reply.attr {
            object.state.lock().learn(attr);
        }
        Ok(Some(self.guard(id, reply.flags & reply_flags::CONTENDED != 0)))
    }

    /// The attributes of an object, including changes that this client or others have not yet written: from the cache
    /// where a lock allows it, otherwise from the server, which asks the writers.
    pub(crate) async fn glimpse(self: &Arc<Self>, caller: &Caller, object: &Arc<Object>) -> Result<ObjectAttr, Errno> {
        match self.known_attr(object) {
            Some(attr) => Ok(attr),
            None => self.glimpse_server(caller, object, false).await,
        }
    }

    /// As [`Osc::glimpse`]; none if it takes longer than `patience`, or the target is deactivated.
    pub(crate) async fn glimpse_within(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        patience: Duration,
    ) -> Result<Option<ObjectAttr>, Errno> {
        let (osc, object, caller) = (self.clone(), object.clone(), *caller);
        let (send, receive) = oneshot::channel();
        let rt = &self.connection.mount().rt;
        // In a task of its own, so that a lock that comes late is recorded all the same.
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

    /// Asks the server for an object's attributes, including changes that clients have not yet written. `learn` keeps the
    /// size even if no lock came.
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
            (Some(guard), _) if !guard.is_lost() => Ok(state.visible()),
            (_, Some(attr)) => Ok(state.updated(attr)),
            (_, None) => Err(Errno::EPROTO),
        }
    }

    /// The result of an operation under a lock. An error becomes ESTALE if the lock was lost: the operation may begin
    /// again.
    pub(crate) fn or_lost<T>(&self, guard: &LockGuard, answer: Result<T, Errno>) -> Result<T, Errno> {
        answer.map_err(|error| if guard.is_lost() { Errno::ESTALE } else { error })
    }

    /// The attributes, if a lock on the whole object makes them known and this client is not changing the object at the
    /// server.
    pub(crate) fn known_attr(&self, object: &Object) -> Option<ObjectAttr> {
        let locks = self.locks.lock();
        let known = locks.covers_to_eof(object.fid, 0);
        let state = object.state.lock();
        (known && !state.is_changing()).then(|| state.visible())
    }

    /// The size, if a lock on the object's end makes it known; otherwise as [`Osc::known_attr`].
    pub(crate) fn known_size(&self, object: &Object) -> Option<u64> {
        let locks = self.locks.lock();
        let state = object.state.lock();
        let size = state.size();
        (!state.is_changing() && locks.covers_to_eof(object.fid, size)).then_some(size)
    }
}
