//! Gives locks back, because of a callback, a full lock cache or a lost connection. The order is: doors forget, dirty
//! bytes are written, all bytes that no other lock covers are dropped, the server is told.

use crate::mount::callback_service::LockHolder;
use crate::mount::connection::Observer;
use crate::osc::Osc;
use crate::osc::lock_state::{LockInput, LockState};
use crate::osc::object::{Object, ObjectState, Place};
use crate::osc::write_back::Which;
use crate::stats::ReadAheadStats;
use futures_util::future::join_all;
use nacre_base::{Errno, Fid};
use nacre_ldlm::lock_cache::{Blocking, Cover, Given, Giving, UNCLAIMED_AFTER, Weight};
use nacre_ldlm::{Extent, LockId, RangeSet};
use nacre_ptlrpc::{CallOptions, Recovering};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ldlm::{BlockingCallback, Cancel, GlimpseCallback, GlimpseReply, LockMode, LockVolume};
use nacre_wire::{Lane, Opcode};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A lock that was unused for this long is given back when another client asks for the size, so that the other client can
/// keep the answer.
const GLIMPSED_AGE: Duration = Duration::from_secs(2);

/// Most locks given back with one message.
const CANCELS_MAX: usize = 1024;

/// Most turns in a row of giving one lock back in which no flush ends. A turn or two are possible while programs that
/// hold the lock write under it; the next turn then writes their bytes.
const IDLE_TURNS_MAX: u32 = 1000;

/// Readiness of a lock whose bytes were written back.
enum Readiness {
    /// Bytes became dirty meanwhile, under another lock.
    Busy,
    Ready(Given),
}

impl Osc {
    /// Gives back, in the background, a lock that was called back.
    pub(crate) fn start_giving(self: &Arc<Self>, giving: Giving) {
        self.tell_users(&giving);
        self.start_giving_up(giving);
    }

    /// Gives a lock back, in the background.
    pub(crate) fn start_giving_up(self: &Arc<Self>, giving: Giving) {
        let osc = self.clone();
        self.spawn(async move { osc.give(giving).await });
    }

    /// Gives back, in the background, locks that no operation uses or waits for: many in one message, except those whose
    /// data must be written first.
    pub(crate) fn start_giving_unused(self: &Arc<Self>, givings: Vec<Giving>) {
        if givings.is_empty() {
            return;
        }
        let osc = self.clone();
        self.spawn(async move {
            let clean = join_all(givings.into_iter().map(|giving| osc.prepare_unused(giving))).await;
            let ids: Vec<LockId> = clean.into_iter().flatten().collect();
            for ids in ids.chunks(CANCELS_MAX) {
                osc.cancel(ids.to_vec()).await;
            }
            osc.sweep();
        });
    }

    /// Returns the lock if its cancel can be sent now. Otherwise the lock is given back later.
    async fn prepare_unused(self: &Arc<Self>, giving: Giving) -> Option<LockId> {
        let (mode, ranges) = extents_of(&giving);
        let mut lock = LockState::Held;
        lock.step(LockInput::Give);
        let object = self.known_object(giving.resource);
        if let Some(object) = &object {
            self.forget(object, giving.id, mode, ranges).await;
        }
        lock.step(LockInput::DoorsTold);
        match self.drop_lock(&mut lock, object.as_deref(), giving.id, mode, ranges) {
            Readiness::Ready(Given::Send) => Some(giving.id),
            Readiness::Ready(Given::Stop | Given::Again(_)) => None,
            Readiness::Busy => {
                self.start_giving_up(giving);
                None
            }
        }
    }

    /// What it costs to give a lock back: bytes under it may have to be written, or the kernel may have pages of an open file.
    pub(crate) fn weigh(&self, id: LockId, fid: Fid, cover: &Cover) -> Weight {
        let Cover::Extent { mode, ranges, .. } = cover else { panic!("an OST's lock on an inode: {cover:?}") };
        let Some(object) = self.known_object(fid) else { return Weight::Light };
        let state = object.state.lock();
        if state.pages.has(id) && object.place().is_some_and(|place| place.file.is_open()) {
            return Weight::InUse;
        }
        let is_dirty = *mode != LockMode::Pr && state.cache.is_busy_in(ranges.ranges());
        if is_dirty { Weight::Heavy } else { Weight::Light }
    }

    /// Gives a lock back.
    pub(crate) async fn give(self: Arc<Self>, giving: Giving) {
        let (mode, ranges) = extents_of(&giving);
        let mut lock = LockState::Held;
        lock.step(LockInput::Give);
        let object = self.known_object(giving.resource);
        if let Some(object) = &object {
            self.forget(object, giving.id, mode, ranges).await;
        }
        lock.step(LockInput::DoorsTold);
        let (mut ended, mut idle_turns) = (0, 0);
        loop {
            // Bytes under a read lock became dirty under another lock.
            if let (Some(object), LockMode::Pw | LockMode::Group) = (&object, mode) {
                self.flush_under(object, giving.id).await;
            }
            let before = ended;
            ended = object.as_ref().map_or(0, |object| object.state.lock().flushes_ended());
            idle_turns = if ended == before { idle_turns + 1 } else { 0 };
            assert!(idle_turns < IDLE_TURNS_MAX, "nobody writes what is dirty under {giving:?}");
            match self.drop_lock(&mut lock, object.as_deref(), giving.id, mode, ranges) {
                Readiness::Busy => {
                    // Perhaps a flush under another lock, for which this task can only wait.
                    if let Some(object) = &object {
                        let is_over = |state: &ObjectState| {
                            state.flushes_ended() != ended || !state.cache.is_writing_in(ranges.ranges())
                        };
                        object.wait_for(|state| is_over(state).then_some(())).await;
                    }
                }
                Readiness::Ready(Given::Send) => break,
                // Extent locks are given back whole, so there is never another part to give back.
                Readiness::Ready(Given::Stop | Given::Again(_)) => return,
            }
        }
        self.cancel(vec![giving.id]).await;
        lock.step(LockInput::Answered);
        self.sweep();
    }

    /// Writes back bytes that are dirty under a lock that is given back, except those that other locks of this client
    /// allow to stay: a program that goes on writing gets such locks, and giving back would never end.
    async fn flush_under(self: &Arc<Self>, object: &Arc<Object>, id: LockId) {
        let mut newest = 0;
        loop {
            let Some(ranges) = self.locks.lock().to_be_written(id).map(Cow::into_owned) else { break };
            let which = Which { within: Some(ranges.ranges()), lock: Some(id), urgent: true, ..Which::all(self.now()) };
            if self.flush_some(object, &which, &mut newest).await {
                break;
            }
        }
        object.wait_for(|state| (!state.is_flushing_under(id)).then_some(())).await;
    }

    /// Tells those who write to the file, or read it through the kernel's pages, that other clients write to it.
    fn tell_users(&self, giving: &Giving) {
        let Cover::Extent { mode, ranges, .. } = &giving.cover else { return };
        let Some(object) = self.known_object(giving.resource) else { return };
        let Some(place) = object.place() else { return };
        match mode {
            LockMode::Pw => {}
            LockMode::Pr if object.state.lock().pages.has(giving.id) => {
                return place.file.note_called_back(self.now());
            }
            _ => return,
        }
        let in_file = |e: &Extent| {
            let start = place.map.file_offset(e.start)?;
            Extent::new(start, place.map.file_offset(e.end).unwrap_or(u64::MAX))
        };
        let ranges: Vec<Extent> = ranges.ranges().iter().filter_map(in_file).collect();
        let now = self.now();
        place.file.handle_called_back(&ranges, now.since(giving.granted), now);
    }

    /// Makes the door forget what it may have cached under a lock that is given back.
    async fn forget(&self, object: &Object, id: LockId, mode: LockMode, ranges: &RangeSet) {
        let Some(place) = object.place() else { return };
        let _forgetting = Forgetting::begin(object, place, id, mode);
        let kept = object.state.lock().pages.keep_for(id, self.now());
        if !kept.is_zero() {
            self.connection.mount().rt.sleep(kept).await;
        }
        loop {
            while self.forget_pages(object, place, id).await {}
            let is_over = object.state.lock().pages.end_forgetting(id, self.now());
            if is_over {
                break;
            }
            // A round of somebody else is under way.
            object.wait_for(|state| (!state.pages.is_leaving(id)).then_some(())).await;
        }
        if let Some(door) = self.connection.mount().invalidate.get()
            && (ranges.cover().end == u64::MAX || mode != LockMode::Pr)
        {
            door.attributes(place.file.fid).await;
        }
    }

    /// One round of forgetting pages that were filled under a lock. Returns false if there are none.
    async fn forget_pages(&self, object: &Object, place: &Place, id: LockId) -> bool {
        let Some(pages) = object.state.lock().pages.begin_round(id) else { return false };
        let door = self.connection.mount().invalidate.get().expect("pages are filled for a door alone");
        let counts = &self.connection.mount().page_counts;
        counts.rounds.fetch_add(1, Ordering::Relaxed);
        ReadAheadStats::count(&counts.forgotten, pages.iter().map(|pages| pages.end - pages.start + 1).sum());
        // Page by page of the file, without those of other objects in between: one of them may be waiting for a lock.
        for range in pages.iter().flat_map(|pages| place.map.file_ranges(pages.start..pages.end + 1)) {
            door.data(place.file.fid, range.start, range.end - range.start).await;
        }
        object.state.lock().pages.end_round(id);
        object.changed.notify_waiters();
        true
    }

    /// Makes the door forget pages that were filled to be read, because programs will be able to store into the file.
    pub(crate) async fn forget_readable(&self, object: &Object) {
        let Some(place) = object.place() else { return };
        loop {
            let readable = object.state.lock().pages.readable();
            let Some(first) = readable.first() else { return };
            for id in &readable {
                while self.forget_pages(object, place, *id).await {}
            }
            object.wait_for(|state| (!state.pages.is_leaving(*first)).then_some(())).await;
        }
    }

    /// Makes the door forget all that it has of an object whose locks are lost.
    async fn forget_all(&self, object: &Object) {
        let (Some(door), Some(place)) = (self.connection.mount().invalidate.get(), object.place()) else { return };
        door.data(place.file.fid, 0, u64::MAX).await;
        door.attributes(place.file.fid).await;
    }

    /// The server says that it has no such lock, under which this client read or wrote.
    pub(super) fn handle_vanished(self: &Arc<Self>, object: &Arc<Object>, id: LockId) {
        self.locks.lock().vanished(id);
        object.state.lock().pages.lose(id);
        self.start_forget_all(object);
    }

    /// Drops the lock and the bytes that only this lock covers, in one step, if none of the bytes is dirty.
    fn drop_lock(
        &self,
        lock: &mut LockState,
        object: Option<&Object>,
        id: LockId,
        mode: LockMode,
        ranges: &RangeSet,
    ) -> Readiness {
        let readiness = self.try_drop_lock(object, id, mode, ranges);
        lock.step(match &readiness {
            Readiness::Busy => LockInput::Busy,
            Readiness::Ready(Given::Send) => LockInput::Dropped,
            Readiness::Ready(Given::Stop | Given::Again(_)) => LockInput::Stop,
        });
        readiness
    }

    fn try_drop_lock(&self, object: Option<&Object>, id: LockId, mode: LockMode, ranges: &RangeSet) -> Readiness {
        let mut locks = self.locks.lock();
        // If the lock was lost meanwhile, bytes that are dirty there are dirty under other locks.
        let object = object.filter(|_| locks.get(id).is_some());
        let Some(object) = object else { return Readiness::Ready(locks.given(id)) };
        let mut state = object.state.lock();
        let without = |others: Option<RangeSet>| match others {
            Some(others) => ranges.subtract(&others),
            None => Some(ranges.clone()),
        };
        let going = without(locks.others_cover(id, LockMode::Pr));
        let clean = without(locks.others_cover(id, LockMode::Pw));
        let busy = mode != LockMode::Pr && clean.is_some_and(|r| state.cache.is_busy_in(r.ranges()));
        if busy || state.is_flushing_under(id) {
            return Readiness::Busy;
        }
        let heirs = locks.other_writers(id);
        let given = locks.given(id);
        assert!(!matches!(given, Given::Again(_)), "extent lock {id:?} is to be given back in parts");
        if given == Given::Stop {
            state.pages.stop_forgetting(id);
        }
        if given == Given::Send {
            assert!(locks.get(id).is_none(), "{id:?} is given back, and can be used");
            state.pages.remove(id);
            if let Some(going) = going {
                state.cache.drop_clean(going.ranges());
            }
            // Bytes that are still dirty are dirty under these locks, too.
            if state.dirty_locks.remove(&id) {
                state.dirty_locks.extend(heirs);
            }
            object.account(&state);
        }
        Readiness::Ready(given)
    }

    /// Gives a lock back that has been called back and is not here, unless a request brings it soon.
    fn await_claim(self: &Arc<Self>, id: LockId) {
        let (osc, rt) = (self.clone(), self.connection.mount().rt.clone());
        self.spawn(async move {
            rt.sleep(UNCLAIMED_AFTER).await;
            let is_unclaimed = osc.locks.lock().unclaimed(id);
            if is_unclaimed {
                osc.cancel(vec![id]).await;
            }
        });
    }

    /// Cancels locks at the server, in the background.
    pub(crate) fn start_cancel(self: &Arc<Self>, ids: Vec<LockId>) {
        let osc = self.clone();
        self.spawn(async move { osc.cancel(ids).await });
    }

    async fn cancel(&self, ids: Vec<LockId>) {
        let options = CallOptions { lane: Lane::Cancel, high_priority: true, ..CallOptions::default() };
        let body = Cancel { handles: ids.iter().map(|id| id.0).collect() };
        if let Err(error) = self.connection.call::<()>(Opcode::LdlmCancel, &body, options).await {
            tracing::debug!(target = self.connection.label(), %error, "locks were not cancelled: the connection is gone");
        }
        let mut locks = self.locks.lock();
        ids.into_iter().for_each(|id| locks.settled(id));
    }

    /// The server has dropped all locks. Clean bytes are dropped, and dirty ones if `evicted`, because other clients may
    /// have written there since.
    fn lose_locks(self: &Arc<Self>, evicted: bool) {
        {
            let mut locks = self.locks.lock();
            self.epoch.fetch_add(1, Ordering::AcqRel);
            if evicted {
                self.evictions.fetch_add(1, Ordering::AcqRel);
            }
            drop(locks.lost());
        }
        let objects: Vec<_> = self.objects.lock().values().cloned().collect();
        for object in objects {
            let mut state = object.state.lock();
            state.unlearn();
            state.dirty_locks.clear();
            state.pages.lose_all();
            if evicted {
                let lost = state.cache.drop_ranges(&[Extent::ALL]);
                self.account.lock().freed(lost.charge);
                assert_eq!(state.cache.dirty_bytes(), 0, "dirty bytes of {} outlived an eviction", object.fid);
                if lost.bytes > 0 || state.is_flushing() {
                    object.report(Errno::EIO);
                    self.lost.note_dropped(Errno::EIO);
                }
            } else {
                state.cache.drop_clean(&[Extent::ALL]);
            }
            object.account(&state);
            drop(state);
            object.changed.notify_waiters();
            self.start_forget_all(&object);
        }
        self.room.notify_waiters();
        self.assert_sound();
    }

    /// Makes the door forget all of an object, in the background, because a lock is lost.
    pub(super) fn start_forget_all(self: &Arc<Self>, object: &Arc<Object>) {
        if self.connection.mount().invalidate.get().is_some() {
            let (osc, object) = (self.clone(), object.clone());
            self.spawn(async move { osc.forget_all(&object).await });
        }
    }

    /// Now and then forgets unused objects.
    pub(crate) fn sweep(&self) {
        let locks = self.locks.lock();
        let mut objects = self.objects.lock();
        if objects.len() <= self.sweep_at.load(Ordering::Relaxed) {
            return;
        }
        objects.retain(|fid, object| {
            Arc::strong_count(object) > 1
                || object.state.lock().cache.has_any()
                || locks.in_the_way(*fid, &RangeSet::ALL)
        });
        self.sweep_at.store((objects.len() * 2).max(256), Ordering::Relaxed);
    }
}

/// Mode and ranges of an extent lock; an OST has no other locks.
fn extents_of(giving: &Giving) -> (LockMode, &RangeSet) {
    let Cover::Extent { mode, ranges, .. } = &giving.cover else { panic!("an OST's lock on an inode: {giving:?}") };
    assert_eq!(giving.keep, 0, "a part of an extent lock is kept: {giving:?}");
    (*mode, ranges)
}

/// Exists while a door forgets what a lock protects. The door may have to wait for a page that is being filled, so that goes on
/// under this very lock: see [`Osc::lock`].
struct Forgetting<'a>(&'a Place);

impl Forgetting<'_> {
    fn begin<'a>(object: &Object, place: &'a Place, id: LockId, mode: LockMode) -> Forgetting<'a> {
        object.state.lock().pages.begin_forgetting(id, mode);
        place.file.begin_forgetting();
        object.changed.notify_waiters();
        Forgetting(place)
    }
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.file.end_forgetting();
    }
}

impl LockHolder for Osc {
    fn handle_blocking(self: Arc<Self>, callback: &BlockingCallback) -> Result<(), Errno> {
        let blocking = self.locks.lock().handle_blocking(callback);
        match blocking {
            Blocking::NotHeld => Err(Errno::ENOENT),
            Blocking::Later => Ok(()),
            Blocking::Awaited => {
                self.await_claim(LockId(callback.handle));
                Ok(())
            }
            Blocking::Now(giving) => {
                self.start_giving(giving);
                Ok(())
            }
        }
    }

    fn handle_glimpse(&self, callback: &GlimpseCallback) -> Result<GlimpseReply, Errno> {
        // The lock that the server names may be on its way back, and the changes be made under another one.
        let holds = {
            let locks = self.locks.lock();
            locks.may_hold(LockId(callback.handle)) || locks.in_the_way(callback.resource, &RangeSet::ALL)
        };
        if !holds {
            return Err(Errno::ENOENT);
        }
        // Report only what the server cannot know: it has the rest, perhaps newer.
        let unwritten = |o: Arc<Object>| o.state.lock().merged(ObjectAttr::default());
        let attr = self.known_object(callback.resource).map_or_else(ObjectAttr::default, unwritten);
        let idle = self.locks.lock().give_idle(LockId(callback.handle), self.now(), GLIMPSED_AGE);
        let gives_back = idle.is_some();
        if let (Some(giving), Some(osc)) = (idle, self.this.upgrade()) {
            osc.start_giving_up(giving);
        }
        Ok(GlimpseReply { attr, gives_back })
    }

    fn handle_lock_volume(&self, volume: &LockVolume) {
        self.connection.handle_lock_volume(volume);
    }
}

impl Observer for Osc {
    fn handle_evicted(&self) {
        if let Some(osc) = self.this.upgrade() {
            osc.lose_locks(true);
        }
    }

    fn handle_restarted(&self) {
        if let Some(osc) = self.this.upgrade() {
            osc.lose_locks(false);
        }
    }

    fn recover(self: Arc<Self>) -> Recovering {
        Box::pin(self.replay_locks())
    }

    fn grant_held(&self) -> u64 {
        self.account.lock().told_at_connect()
    }

    fn handle_rested(&self) {
        // As after a connect that brought no grant: what was held is the OST's again.
        self.account.lock().handle_connected(0);
    }

    fn handle_connected(&self, data: &ConnectData) {
        let granted = if data.flags & connect_flags::GRANT != 0 { data.grant } else { 0 };
        self.account.lock().handle_connected(granted);
        let limited = data.flags & connect_flags::BRW_SIZE != 0 && data.brw_size > 0;
        let size = if limited { data.brw_size.into() } else { u64::MAX };
        self.negotiated_brw_size.store(size, Ordering::Relaxed);
        let most = if data.max_bytes > 0 { data.max_bytes } else { u64::MAX };
        self.object_bytes_max.store(most, Ordering::Relaxed);
        self.note_distance();
        self.update_limits();
        if let Some(osc) = self.this.upgrade() {
            // Bytes that a restart left without locks are written at once.
            let objects: Vec<_> = osc.objects.lock().values().cloned().collect();
            for object in objects {
                if object.state.lock().cache.dirty_bytes() > 0 && object.state.lock().dirty_locks.is_empty() {
                    let osc = osc.clone();
                    self.spawn(async move { osc.flush(&object, &Which::all(osc.now())).await });
                }
            }
        }
    }
}

impl Osc {
    /// Bytes of pages that a door may have.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.objects.lock().values().map(|object| object.state.lock().pages.bytes()).sum()
    }

    /// The object, if this client has state for it.
    pub(crate) fn known_object(&self, fid: Fid) -> Option<Arc<Object>> {
        self.objects.lock().get(&fid).cloned()
    }
}
