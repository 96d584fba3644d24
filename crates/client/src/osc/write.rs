//! Changes an object: through the cache where grant and room allow it, otherwise at the server; around the cache; and by
//! the server's own operations (truncate, holes, allocation). All under a lock, except where said.

use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::{LockGuard, Locking};
use crate::osc::object::{Change, Object, ObjectOf, ObjectState};
use crate::osc::rpc::WriteOut;
use crate::osc::write_back::Which;
use nacre_base::{Errno, Payload, Timestamp};
use nacre_ldlm::{Extent, LockId, RangeSet};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::LockMode;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time after which a writer that waits for memory looks again, even without a notification.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// Bytes on their way into an object.
#[derive(Clone)]
pub(crate) struct ObjectWrite<'a> {
    pub(crate) object: &'a Arc<Object>,
    pub(crate) of: ObjectOf,
    pub(crate) caller: &'a Caller,
    pub(crate) locking: Locking,
    /// Offset in the object.
    pub(crate) offset: u64,
    /// Bytes to write; not empty.
    pub(crate) data: Payload,
    /// True if the bytes come out of a page of a door's kernel.
    pub(crate) from_page: bool,
}

impl ObjectWrite<'_> {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    /// Cuts the write at multiples of `size`. Returns each piece with the number of bytes before it.
    fn pieces(&self, size: u64) -> impl Iterator<Item = (usize, ObjectWrite<'_>)> {
        let Range { start, end } = self.range();
        let mut at = start;
        std::iter::from_fn(move || {
            let len = (size - at % size).min(end.checked_sub(at).filter(|left| *left > 0)?);
            let (before, offset) = ((at - start) as usize, at);
            at += len;
            let whole = len == self.data.len() as u64;
            let data = if whole { self.data.clone() } else { self.data.slice(before, len as usize) };
            Some((before, ObjectWrite { offset, data, ..*self }))
        })
    }
}

/// Outcome of an attempt to put bytes into the cache.
enum Put {
    Done,
    /// The range is being changed at the server, and no write may come in between.
    Excluded,
    /// There is no room until a flush ends.
    Full,
    /// There is no grant, and none will come.
    NoGrant,
    /// The lock has been lost.
    Lost,
    /// The OST is deactivated: bytes in the cache would not be written until it is activated again.
    Inactive,
}

impl Osc {
    /// Writes under a lock. Returns how many bytes were written from the beginning, and the error that stopped the rest.
    /// ESTALE if the lock was lost, or the layout is not the one to write by: the caller begins again.
    pub(crate) async fn write(self: &Arc<Self>, guard: &LockGuard, write: &ObjectWrite<'_>) -> (usize, Option<Errno>) {
        // In pieces of at most an RPC's size, so that one piece never needs more room than there can be.
        let size = self.brw_size().min(self.max_dirty_bytes()).max(1);
        for (done, piece) in write.pieces(size) {
            if let Err(error) = self.write_piece(guard, &piece).await {
                return (done, Some(error));
            }
        }
        (write.data.len(), None)
    }

    async fn write_piece(self: &Arc<Self>, guard: &LockGuard, write: &ObjectWrite<'_>) -> Result<(), Errno> {
        let mut patient = None;
        loop {
            let mut room = pin!(self.room.notified());
            if patient.is_some() {
                room.as_mut().enable();
            }
            match self.put(guard, write) {
                Put::Done => return Ok(()),
                Put::Lost => return Err(Errno::ESTALE),
                Put::Inactive => return Err(Errno::EIO),
                Put::Excluded => {
                    let range = extent(&write.range());
                    write.object.wait_for(|state| (!state.excludes(&range)).then_some(())).await;
                }
                // The flushes now know that a writer waits.
                Put::Full if patient.is_none() => patient = Some(Waiting::new(self)),
                Put::Full => {
                    self.start_flushes();
                    let _ = self.connection.mount().rt.timeout(MEMORY_PAUSE, room).await;
                }
                Put::NoGrant => return Box::pin(self.write_through(guard, write)).await,
            }
        }
    }

    /// Puts bytes into the cache, if there is room for them.
    fn put(self: &Arc<Self>, guard: &LockGuard, write: &ObjectWrite<'_>) -> Put {
        let ObjectWrite { object, of, caller, offset, data, .. } = write;
        assert_eq!(of.object, object.fid, "bytes for one object are put into another");
        let (now, len) = (self.now(), data.len() as u64);
        let range = extent(&write.range());
        let mut state = object.state.lock();
        if guard.is_lost() {
            return Put::Lost;
        }
        if !self.connection.is_active() {
            return Put::Inactive;
        }
        if state.excludes(&range) {
            return Put::Excluded;
        }
        let charge = state.cache.grant_needed(*offset, len);
        {
            let mut account = self.account.lock();
            let memory_full = self.memory().is_full_of_dirty(len);
            if !account.can_dirty(charge) || memory_full {
                let may_wait = account.may_get_more(charge) || (memory_full && account.dirty_and_writing() > 0);
                return if may_wait { Put::Full } else { Put::NoGrant };
            }
            account.took(charge);
        }
        state.note_write(of, caller, guard.id);
        if !write.from_page {
            state.pages.written(range);
        }
        let kept = state.cache.write(*offset, data, now);
        assert_eq!(kept, charge, "grant kept for {len} bytes at {offset}, and what was taken of the account");
        object.account(&state);
        self.note_dirty(object, &mut state);
        drop(state);
        if self.has_ready() {
            self.start_flushes();
        }
        self.memory().shrink();
        self.wake_upkeep();
        Put::Done
    }

    /// Writes at once, without grant: the server may answer ENOSPC, which the program gets to know.
    async fn write_through(self: &Arc<Self>, guard: &LockGuard, write: &ObjectWrite<'_>) -> Result<(), Errno> {
        if guard.is_lost() {
            return Err(Errno::ESTALE);
        }
        let answer = self.write_around(write, guard.id.0).await;
        self.or_lost(guard, answer)
    }

    /// Writes around the cache (O_DIRECT), under a cached lock if there is one, otherwise under one that the server takes
    /// for the time of the write. Returns as [`Osc::write`].
    pub(crate) async fn write_unlocked(self: &Arc<Self>, write: &ObjectWrite<'_>) -> (usize, Option<Errno>) {
        for (done, piece) in write.pieces(self.brw_size().max(1)) {
            if let Err(error) = self.write_piece_unlocked(&piece).await {
                return (done, Some(error));
            }
        }
        (write.data.len(), None)
    }

    async fn write_piece_unlocked(self: &Arc<Self>, write: &ObjectWrite<'_>) -> Result<(), Errno> {
        let (object, range) = (write.object, write.range());
        let ask = write.locking.wanted(LockMode::Pw, RangeSet::single(extent(&range)));
        let guard = match write.locking.always() {
            true => Some(self.lock(write.caller, object, &ask).await?),
            false => self.find_lock(object, &ask),
        };
        if let Some(guard) = guard {
            return self.write_through(&guard, write).await;
        }
        // Cached writes are not kept out meanwhile: the server may wait for the lock of a writer that would wait here.
        let _changing = self.begin_change(object, &range, false).await;
        self.flush_range(object, &range).await;
        let answer = self.write_at_server(write, 0).await;
        object.state.lock().pages.written(extent(&range));
        // Bytes that other programs of this mount wrote meanwhile come after this write, and remain.
        self.flush_range(object, &range).await;
        self.drop_clean(object, &range);
        answer
    }

    /// Reads around the cache (O_DIRECT), after dirty bytes were written.
    pub(crate) async fn read_around(
        self: &Arc<Self>,
        object: &Arc<Object>,
        caller: &Caller,
        locking: Locking,
        range: Range<u64>,
    ) -> Result<Payload, Errno> {
        let ask = locking.wanted(LockMode::Pr, RangeSet::single(extent(&range)));
        let guard = match locking.always() {
            true => Some(self.lock(caller, object, &ask).await?),
            false => self.find_lock(object, &ask),
        };
        if let Some(guard) = guard {
            match self.read_under(&guard, object, caller, range.clone()).await {
                Err(Errno::ESTALE) => {}
                answer => return answer,
            }
        }
        self.flush_range(object, &range).await;
        self.read_one(caller, object.fid, range, 0).await
    }

    /// Reads around the cache, under a lock; ESTALE if the lock is lost.
    pub(crate) async fn read_under(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        caller: &Caller,
        range: Range<u64>,
    ) -> Result<Payload, Errno> {
        self.flush_range(object, &range).await;
        let answer = self.read_one(caller, object.fid, range, guard.id.0).await;
        if answer.as_ref().err() == Some(&Errno::ESTALE) {
            self.handle_vanished(object, guard.id);
        }
        answer
    }

    /// Writes around the cache under a lock.
    async fn write_around(self: &Arc<Self>, write: &ObjectWrite<'_>, lock: u64) -> Result<(), Errno> {
        let (object, range) = (write.object, write.range());
        let _changing = self.begin_change(object, &range, true).await;
        // Earlier dirty bytes were acknowledged to programs, so they are written first: this write may fail.
        self.flush_range(object, &range).await;
        let answer = self.write_at_server(write, lock).await;
        if !write.from_page {
            object.state.lock().pages.written(extent(&range));
        }
        // Reads that began before may have cached the old bytes.
        self.drop_clean(object, &range);
        answer
    }

    async fn write_at_server(self: &Arc<Self>, write: &ObjectWrite<'_>, lock: u64) -> Result<(), Errno> {
        let (report, sent) = self.account.lock().send(0, 0);
        let (of, caller, extents) = (write.of, *write.caller, vec![(write.offset, write.data.clone())]);
        let (mtime, granted, urgent) = (None, false, false);
        let _whole = write.object.without_truncation(LockId(lock)).await;
        match self.write_rpc(&WriteOut { of, caller, extents, mtime, granted, report, lock, urgent }).await {
            Ok(reply) => {
                write.object.state.lock().learn(&reply.attr);
                self.account.lock().written(sent, reply.grant);
                Ok(())
            }
            Err(error) => {
                self.account.lock().failed(sent);
                Err(error)
            }
        }
    }

    fn drop_clean(&self, object: &Object, range: &Range<u64>) {
        let mut state = object.state.lock();
        state.cache.drop_clean(&[extent(range)]);
        object.account(&state);
    }

    /// Truncates the object or punches a hole, under a lock on the range.
    pub(crate) async fn punch(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        of: &ObjectOf,
        caller: &Caller,
        range: Range<u64>,
    ) -> Result<ObjectAttr, Errno> {
        let _changing = self.begin_change(object, &range, true).await;
        let all = [extent(&range)];
        // Dirty bytes there need not be written; bytes that are being written must arrive first.
        let drop_dirty = |state: &mut ObjectState| {
            let lost = state.cache.drop_ranges(&all);
            self.account.lock().freed(lost.charge);
            object.account(state);
        };
        drop_dirty(&mut object.state.lock());
        let written = object.wait_for(|state| (!state.cache.is_busy_in(&all)).then_some(()));
        self.connection.while_active(written).await?;
        drop_dirty(&mut object.state.lock());
        if guard.is_lost() {
            return Err(Errno::ESTALE);
        }
        let alone = self.connection.while_active(object.truncating.write()).await?;
        let answer = self.punch_rpc(caller, of, range.clone(), guard.id.0).await;
        drop(alone);
        let answer = self.or_lost(guard, answer);
        let mut state = object.state.lock();
        let lost = state.cache.drop_ranges(&all);
        assert_eq!(lost.bytes, 0, "{range:?} of {} became dirty while it was being cut", object.fid);
        object.account(&state);
        let attr = answer?;
        state.learn(&attr);
        Ok(state.visible())
    }

    /// Punches a hole, under a lock on the range; the size stays.
    pub(crate) async fn punch_hole(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        of: &ObjectOf,
        caller: &Caller,
        range: Range<u64>,
    ) -> Result<ObjectAttr, Errno> {
        let punch = self.punch_rpc(caller, of, range.clone(), guard.id.0);
        self.change_range(guard, object, &range, punch).await
    }

    /// Allocates the range, or zeroes it, under a lock on it.
    pub(crate) async fn fallocate(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        of: &ObjectOf,
        caller: &Caller,
        range: Range<u64>,
        mode: u32,
    ) -> Result<ObjectAttr, Errno> {
        let allocate = self.fallocate_rpc(caller, of, range.clone(), mode, guard.id.0);
        self.change_range(guard, object, &range, allocate).await
    }

    /// Changes a range at the server, after dirty bytes there were written: they may count for the size.
    async fn change_range(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        range: &Range<u64>,
        change: impl Future<Output = Result<ObjectAttr, Errno>>,
    ) -> Result<ObjectAttr, Errno> {
        let _changing = self.begin_change(object, range, true).await;
        self.flush_range(object, range).await;
        if guard.is_lost() {
            return Err(Errno::ESTALE);
        }
        let whole = object.without_truncation(guard.id).await;
        let answer = self.or_lost(guard, change.await);
        drop(whole);
        self.drop_clean(object, range);
        let attr = answer?;
        let mut state = object.state.lock();
        state.learn(&attr);
        Ok(state.visible())
    }

    /// Writes back dirty bytes of a range to which nobody writes meanwhile. Returns before they are written if the OST is
    /// deactivated: the caller's request then fails.
    pub(crate) async fn flush_range(self: &Arc<Self>, object: &Arc<Object>, range: &Range<u64>) {
        let within = [extent(range)];
        let _ = self.try_flush(object, &Which { within: Some(&within), ..Which::all(self.now()) }).await;
    }

    /// As [`Osc::flush`], but fails with EIO while the OST is deactivated; the bytes stay until it is activated.
    pub(crate) async fn try_flush(self: &Arc<Self>, object: &Arc<Object>, which: &Which<'_>) -> Result<(), Errno> {
        self.connection.while_active(self.flush(object, which)).await
    }

    /// Begins to change a range at the server. Until the guard is dropped, readers of the range, and callers that want
    /// the size, ask the server; if the change is exclusive, cached writes are kept out.
    async fn begin_change(&self, object: &Arc<Object>, range: &Range<u64>, exclusive: bool) -> Changing {
        let change = Change { range: extent(range), exclusive };
        let resizes = self.known_attr(object).is_some_and(|attr| change.range.end >= attr.size);
        object.wait_for(|state| state.begin_change(change).then_some(())).await;
        let changing = Changing { object: object.clone(), change };
        if resizes && let (Some(door), Some(place)) = (self.connection.mount().invalidate.get(), object.place()) {
            door.attributes(place.file.fid).await;
        }
        changing
    }

    /// Sets the object's mtime. If no other client can write to the object, its dirty bytes will carry the mtime;
    /// otherwise they are written first, because they are older.
    pub(crate) async fn set_mtime(
        self: &Arc<Self>,
        caller: &Caller,
        of: &ObjectOf,
        mtime: Timestamp,
    ) -> Result<ObjectAttr, Errno> {
        let object = self.object(of.object);
        let carried = {
            let locks = self.locks.lock();
            let mut state = object.state.lock();
            let carries = locks.covers_to_eof(object.fid, 0) && state.set_mtime(mtime, of.now);
            carries.then(|| state.visible())
        };
        if let Some(attr) = carried {
            return Ok(attr);
        }
        self.try_flush(&object, &Which::all(self.now())).await?;
        let attr = self.setattr_rpc(caller, of, mtime).await?;
        let mut state = object.state.lock();
        state.learn(&attr);
        Ok(state.visible())
    }
}

/// A change at the server under way.
struct Changing {
    object: Arc<Object>,
    change: Change,
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.object.state.lock().end_change(self.change);
        self.object.changed.notify_waiters();
    }
}

/// Counts a writer that waits for room.
struct Waiting<'a>(&'a Osc);

impl Waiting<'_> {
    fn new(osc: &Osc) -> Waiting<'_> {
        osc.waiters.fetch_add(1, Ordering::Relaxed);
        Waiting(osc)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let before = self.0.waiters.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a writer waits no longer for room, and none did");
    }
}

/// The bytes of a range that is not empty; up to the end of file if it ends at `u64::MAX`.
pub(crate) fn extent(range: &Range<u64>) -> Extent {
    assert!(range.start < range.end, "{range:?} has no bytes");
    let end = if range.end == u64::MAX { u64::MAX } else { range.end - 1 };
    Extent { start: range.start, end }
}
