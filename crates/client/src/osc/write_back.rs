//! Writes dirty bytes back: full RPCs at once, the rest when it is old, when room is short, or when a caller waits for
//! it. Old bytes go first: however much is written elsewhere, all bytes leave soon after they are old.
//!
//! Each RPC names a lock that covers it, so that it never waits for other clients at the server; only bytes that a restart
//! of the server left without locks are written without one.

use crate::cache::dirty_account::Sent;
use crate::cache::outgoing::{Flush, FlushEnd, FlushTicket, FlushWanted};
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::object::{Object, ObjectState};
use crate::osc::rpc::WriteOut;
use futures_util::future::join_all;
use nacre_base::{Errno, Fid, Time};
use nacre_ldlm::lock_cache::{Cover, LockCache};
use nacre_ldlm::{Extent, LockId, RangeSet};
use nacre_wire::ost::{EXTENTS_MAX, WriteReply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Background flushes under way at once. Old bytes wait for all that are.
const FLUSHES_MAX: u32 = 16;
/// The same limit where the server grants a window.
const FLUSHES_IN_WINDOW_MAX: u32 = 256;
/// Flushes beyond those that the window admits: they fill it as soon as there is room. All other bytes stay in the cache, where old ones
/// go first and small ones become larger RPCs.
const FLUSHES_AHEAD: u32 = 2;

/// Queues of objects to be written back.
#[derive(Default)]
pub(crate) struct WriteBack {
    /// Objects with enough dirty bytes for a full RPC.
    ready: VecDeque<Arc<Object>>,
    /// Objects with dirty bytes, in the order of the times since which they are dirty.
    aging: VecDeque<(Time, Arc<Object>)>,
    /// Background flushes under way.
    under_way: u32,
}

impl WriteBack {
    /// Number of objects that wait for the age of their dirty bytes.
    pub(crate) fn waiting(&self) -> usize {
        self.aging.len()
    }

    fn begin(&mut self) {
        self.under_way += 1;
        assert!(self.under_way <= FLUSHES_IN_WINDOW_MAX, "{} background flushes are under way", self.under_way);
    }

    fn end(&mut self) {
        assert!(self.under_way > 0, "a background flush is over, and none was under way");
        self.under_way -= 1;
    }
}

/// Which bytes of an object to write back, and how.
#[derive(Clone, Copy)]
pub(crate) struct Which<'a> {
    /// Only bytes in these ranges.
    pub(crate) within: Option<&'a [Extent]>,
    /// Only full RPCs.
    pub(crate) only_full: bool,
    /// Only bytes that were dirty at this time. Ignored with `within`, where no program makes bytes dirty meanwhile, or
    /// soon none will.
    pub(crate) since: Time,
    /// Lock to name in the RPCs; none to choose one for each.
    pub(crate) lock: Option<LockId>,
    /// True if other clients wait for the bytes.
    pub(crate) urgent: bool,
}

impl Which<'_> {
    /// All that is dirty now.
    pub(crate) fn all(now: Time) -> Which<'static> {
        Which { within: None, only_full: false, since: now, lock: None, urgent: false }
    }
}

/// Why an object is written back now.
#[derive(Clone, Copy)]
enum Reason {
    /// There is enough for a full RPC.
    Full,
    /// The object's oldest dirty bytes have reached the age at which they are written.
    Old,
    /// Room is short.
    Pressed,
}

/// A flush to be sent.
struct Outgoing {
    number: u64,
    /// The OSC's counters when the flush was taken: of losses of all locks, and of losses by an eviction.
    epochs: (u64, u64),
    ticket: FlushTicket,
    sent: Sent,
    write: WriteOut,
}

impl Osc {
    /// Queues an object to which dirty bytes were added. The caller holds the object's lock.
    pub(crate) fn note_dirty(&self, object: &Arc<Object>, state: &mut ObjectState) {
        let dirty = state.cache.dirty_bytes();
        let full = dirty >= self.write_size();
        if dirty == 0 || state.aging && (state.ready || !full) {
            return;
        }
        let mut queue = self.write_back.lock();
        if !state.aging {
            state.aging = true;
            if queue.aging.is_empty() {
                self.nudge.notify_one();
            }
            let since = state.cache.oldest_dirty();
            let Some(since) = since else { panic!("{dirty} bytes of {} are dirty since never", object.fid) };
            // The rest of an object of which bytes were just taken may be as old as these were.
            let place = queue.aging.partition_point(|(other, _)| *other <= since);
            queue.aging.insert(place, (since, object.clone()));
        }
        if full && !state.ready {
            state.ready = true;
            queue.ready.push_back(object.clone());
        }
    }

    /// True if [`Osc::start_flushes`] would send something at once.
    pub(crate) fn has_ready(&self) -> bool {
        !self.write_back.lock().ready.is_empty()
    }

    /// Starts the flushes that are due.
    pub(crate) fn start_flushes(self: &Arc<Self>) {
        while let Some((object, due)) = self.next_due() {
            let which = Which::all(self.now());
            match self.take_flush(&object, &which, Some(due)) {
                Some(out) => {
                    let osc = self.clone();
                    self.spawn(async move {
                        osc.send_flush(&object, out).await;
                        osc.write_back.lock().end();
                        osc.start_flushes();
                    });
                }
                None => self.write_back.lock().end(),
            }
        }
    }

    /// The object whose turn it is; counts a flush as under way.
    fn next_due(&self) -> Option<(Arc<Object>, Reason)> {
        let now = self.now();
        let half = self.max_dirty_bytes() / 2;
        let pressed = self.waiters.load(Ordering::Relaxed) > 0 || self.account.lock().dirty_and_writing() > half;
        let most = self.flushes_max();
        let mut queue = self.write_back.lock();
        if queue.under_way >= most {
            return None;
        }
        let age_max = self.dirty_age_max();
        // Before full RPCs, of which a program that writes fast makes one after the other.
        let is_old = queue.aging.front().is_some_and(|(since, _)| now.since(*since) >= age_max);
        let found = if is_old {
            (queue.aging.pop_front()?.1, Reason::Old)
        } else if let Some(object) = queue.ready.pop_front() {
            (object, Reason::Full)
        } else if pressed {
            (queue.aging.pop_front()?.1, Reason::Pressed)
        } else {
            return None;
        };
        queue.begin();
        Some(found)
    }

    /// Most background flushes under way at once.
    fn flushes_max(&self) -> u32 {
        let in_window = self.connection.import_if_made().and_then(|import| import.rpcs_in_window(self.write_size()));
        in_window.map_or(FLUSHES_MAX, |rpcs| rpcs.saturating_add(FLUSHES_AHEAD).min(FLUSHES_IN_WINDOW_MAX))
    }

    /// When the next dirty bytes will be old enough.
    pub(crate) fn next_age(&self) -> Option<Time> {
        let age_max = self.dirty_age_max();
        self.write_back.lock().aging.front().map(|(since, _)| *since + age_max)
    }

    /// Age at which dirty bytes are written back.
    fn dirty_age_max(&self) -> Duration {
        Duration::from_millis(self.dirty_expire_ms.load(Ordering::Relaxed))
    }

    /// Takes the next flush of an object, and counts it as under way. `due` names the queue that the object was taken
    /// from, if any.
    fn take_flush(&self, object: &Arc<Object>, which: &Which<'_>, due: Option<Reason>) -> Option<Outgoing> {
        let locks = self.locks.lock();
        let mut state = object.state.lock();
        let found = match due {
            Some(Reason::Full) => {
                assert!(state.ready, "{} was in the queue for full RPCs, and does not know", object.fid);
                state.ready = false;
                let full = self.next_flush(&locks, &mut state, &Which { only_full: true, ..*which });
                full.or_else(|| self.next_flush(&locks, &mut state, which))
            }
            Some(reason @ (Reason::Old | Reason::Pressed)) => {
                assert!(state.aging, "{} was in the queue for its age, and does not know", object.fid);
                state.aging = false;
                let (by_age, age_max) = (matches!(reason, Reason::Old), self.dirty_age_max());
                let oldest = state.cache.oldest_dirty().filter(|_| by_age);
                if oldest.is_some_and(|oldest| which.since.since(oldest) < age_max) {
                    // The old bytes were written in full RPCs.
                    self.note_dirty(object, &mut state);
                    return None;
                }
                // A flush takes whole RPCs first, and the oldest bytes would wait for as long as a program makes more of
                // these. So it takes only from what was written soon after them, which later writes do not add to. That is
                // not only the oldest: a program that writes little at a time must not cause many small RPCs.
                let oldest = oldest.filter(|_| state.cache.dirty_bytes() > self.write_size());
                let old = oldest.and_then(|oldest| {
                    let since = which.since.min(oldest + age_max / 4);
                    self.next_flush(&locks, &mut state, &Which { since, ..*which })
                });
                old.or_else(|| self.next_flush(&locks, &mut state, which))
            }
            None => self.next_flush(&locks, &mut state, which),
        };
        // If nothing was found, the bytes wait for a flush under way, whose end queues the object again.
        let (lock, flush) = found?;
        self.note_dirty(object, &mut state);
        Some(self.book(object.fid, &mut state, lock, flush, which.urgent))
    }

    /// The next flush, and the lock that covers it.
    fn next_flush(&self, locks: &LockCache, state: &mut ObjectState, which: &Which<'_>) -> Option<(LockId, Flush)> {
        let now = self.now();
        let wanted = FlushWanted {
            max_bytes: self.write_size(),
            max_extents: EXTENTS_MAX,
            within: which.within,
            only_full: which.only_full,
            min_age: if which.within.is_some() { Duration::ZERO } else { now.since(which.since) },
        };
        if let Some(id) = which.lock {
            return state.cache.next_flush(&wanted, now).map(|flush| (id, flush));
        }
        let mut ids: VecDeque<LockId> = state.dirty_locks.iter().copied().collect();
        while let Some(id) = ids.pop_front() {
            let Some((_, Cover::Extent { ranges: all, .. })) = locks.get(id) else {
                state.dirty_locks.remove(&id);
                continue;
            };
            // Bytes that other locks allow to stay must not be written under a lock that is given back: that might never
            // end.
            let ranges = locks.to_be_written(id);
            if let Some(ranges) = &ranges {
                let inner = which.within.map(|within| intersect(ranges.ranges(), within));
                let within = inner.as_deref().unwrap_or(ranges.ranges());
                if let Some(flush) = state.cache.next_flush(&FlushWanted { within: Some(within), ..wanted }, now) {
                    return Some((id, flush));
                }
            }
            if !state.cache.is_dirty_in(all.ranges()) {
                state.dirty_locks.remove(&id);
            } else if ranges.is_none_or(|ranges| *ranges != *all) {
                // These bytes are written under those other locks: this lock may be in use by a writer that waits for
                // just this room.
                ids.extend(locks.other_writers(id).into_iter().filter(|other| state.dirty_locks.insert(*other)));
            }
        }
        if !state.dirty_locks.is_empty() {
            return None;
        }
        // A restart of the server took the locks.
        state.cache.next_flush(&wanted, now).map(|flush| (LockId(0), flush))
    }

    fn book(&self, fid: Fid, state: &mut ObjectState, lock: LockId, flush: Flush, urgent: bool) -> Outgoing {
        let number = state.begin_flush(lock);
        let (report, sent) = self.account.lock().send(flush.charge, flush.bytes);
        let (of, caller) = state.written_for();
        assert_eq!(of.object, fid, "bytes of one object are written to another");
        let (mtime, extents) = (state.mtime_set(), flush.extents);
        let write = WriteOut { of, caller, extents, mtime, granted: true, report, lock: lock.0, urgent };
        Outgoing { number, epochs: self.epochs(), ticket: flush.ticket, sent, write }
    }

    fn epochs(&self) -> (u64, u64) {
        (self.epoch.load(Ordering::Acquire), self.evictions.load(Ordering::Acquire))
    }

    /// Sends bytes of the cache once the OST is active. A deactivation interrupts the request, which is then sent again, so
    /// that no bytes are lost by it. ESTALE if this client was evicted since there were `evictions`: other clients may have
    /// written there, so the bytes must not be written.
    async fn write_unless_evicted(&self, write: &WriteOut, evictions: u64) -> Result<WriteReply, Errno> {
        loop {
            let deactivations = self.connection.deactivations();
            self.connection.until_active().await;
            if self.evictions.load(Ordering::Acquire) != evictions {
                return Err(Errno::ESTALE);
            }
            match self.write_rpc(write).await {
                Err(Errno::EIO) if self.connection.deactivations() != deactivations => {}
                answer => return answer,
            }
        }
    }

    async fn send_flush(self: &Arc<Self>, object: &Arc<Object>, mut out: Outgoing) {
        let (epoch, evictions) = out.epochs;
        let whole = object.without_truncation(LockId(out.write.lock)).await;
        let mut answer = self.write_unless_evicted(&out.write, evictions).await;
        drop(whole);
        if answer.as_ref().err() == Some(&Errno::ESTALE) && out.write.lock != 0 {
            // The server was restarted, and has no such lock.
            self.handle_vanished(object, LockId(out.write.lock));
            out.write.lock = 0;
            answer = self.write_unless_evicted(&out.write, evictions).await;
        }
        let uncovered = out.write.lock == 0 || self.epoch.load(Ordering::Acquire) != epoch;
        self.end_flush(object, out, answer, uncovered);
        object.changed.notify_waiters();
        self.room.notify_waiters();
        self.memory().room.notify_waiters();
    }

    fn end_flush(&self, object: &Arc<Object>, out: Outgoing, answer: Result<WriteReply, Errno>, uncovered: bool) {
        let now = self.now();
        let locks = self.locks.lock();
        let mut state = object.state.lock();
        state.end_flush(out.number);
        match answer {
            Ok(reply) => {
                state.learn(&reply.attr);
                state.cache.flushed(out.ticket, FlushEnd::Written, now);
                self.account.lock().written(out.sent, reply.grant);
                if uncovered && !locks.in_the_way(object.fid, &RangeSet::ALL) {
                    // No lock makes the bytes true any longer.
                    state.cache.drop_clean(&[Extent::ALL]);
                }
            }
            Err(error) => {
                state.cache.flushed(out.ticket, FlushEnd::Lost, now);
                self.account.lock().failed(out.sent);
                let target = self.connection.label();
                if error == Errno::ENOENT {
                    // No program will hear of this, because the file has been removed.
                    tracing::debug!(target, object = %object.fid, "data was not written: no such object");
                    object.report(Errno::EIO);
                } else {
                    tracing::warn!(target, object = %object.fid, %error, "data was not written");
                    let error = if error == Errno::ESTALE { Errno::EIO } else { error };
                    object.report(error);
                    self.lost.note_dropped(error);
                }
            }
        }
        object.account(&state);
        if state.cache.dirty_bytes() > 0 {
            self.note_dirty(object, &mut state);
        }
    }

    /// Writes back the bytes that `which` selects, and waits until they are written, as well as those of earlier flushes.
    pub(crate) async fn flush(self: &Arc<Self>, object: &Arc<Object>, which: &Which<'_>) {
        let mut newest = object.state.lock().next_flush();
        while !self.flush_some(object, which, &mut newest).await {}
    }

    /// Sends flushes, and waits until one ends, or until everything is written. Returns whether everything is. What other clients wait
    /// for is sent at once. Of the rest no more than the window admits: bytes leave the cache in the order of their places, and that order
    /// would be lost among many requests that wait. `newest` is the number after the last flush that counts.
    pub(crate) async fn flush_some(
        self: &Arc<Self>,
        object: &Arc<Object>,
        which: &Which<'_>,
        newest: &mut u64,
    ) -> bool {
        let most = if which.urgent { usize::MAX } else { self.flushes_max() as usize };
        let has_room = || object.state.lock().flushes_under_way() < most;
        while has_room()
            && let Some(out) = self.take_flush(object, which, None)
        {
            *newest = out.number + 1;
            let (osc, object) = (self.clone(), object.clone());
            self.spawn(async move {
                osc.send_flush(&object, out).await;
                osc.start_flushes();
            });
        }
        // Bytes that were changed while their flush is under way, and bytes that another task writes under a lock that it
        // gives back, cannot be taken yet.
        let is_left = |state: &ObjectState| which.within.is_none() && is_dirty_since(state, which.since);
        let is_over = |state: &ObjectState| match which.within {
            Some(within) => !state.cache.is_busy_in(within),
            None => state.is_flushed_before(*newest) && !is_left(state),
        };
        let (ended, was_left) = {
            let state = object.state.lock();
            (state.flushes_ended(), is_left(&state))
        };
        let over = object.wait_for(|state| {
            let over = is_over(state);
            (over || state.flushes_ended() != ended).then_some(over)
        });
        let over = over.await;
        if was_left {
            // The bytes may be on their way in a flush of another task, which counts, too.
            *newest = object.state.lock().next_flush();
        }
        over && !was_left
    }

    /// Writes back all dirty bytes of all objects.
    pub(crate) async fn flush_all(self: &Arc<Self>) {
        let objects: Vec<_> = self.objects.lock().values().cloned().collect();
        let which = Which::all(self.now());
        let dirty = objects.iter().filter(|o| o.state.lock().has_unwritten());
        join_all(dirty.map(|object| self.flush(object, &which))).await;
    }

    /// Makes durable everything that this client wrote to the object. The file reports errors of writing back.
    pub(crate) async fn sync(self: &Arc<Self>, caller: &Caller, fid: Fid) -> Result<(), Errno> {
        if let Some(object) = self.known_object(fid) {
            self.try_flush(&object, &Which::all(self.now())).await?;
        }
        self.sync_rpc(caller, fid).await
    }

    /// Writes everything back and makes it durable.
    pub(crate) async fn sync_all(self: &Arc<Self>, caller: &Caller) -> Result<(), Errno> {
        if self.dirty_bytes() > 0 {
            self.connection.while_active(self.flush_all()).await?;
        }
        if self.connection.unstable().0 > 0 {
            return self.sync_rpc(caller, Fid::default()).await;
        }
        self.lost.check(Fid::default())
    }
}

/// True if bytes are dirty that were dirty at `time` already.
fn is_dirty_since(state: &ObjectState, time: Time) -> bool {
    state.cache.oldest_dirty().is_some_and(|since| since <= time)
}

fn intersect(a: &[Extent], b: &[Extent]) -> Vec<Extent> {
    a.iter().flat_map(|x| b.iter().filter_map(|y| x.intersect(y))).collect()
}
