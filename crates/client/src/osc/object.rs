//! One object as this client knows it: its cached bytes, its attributes with changes not written yet, and the file it
//! belongs to. `locks` knows which locks cover it; RPCs are elsewhere.

use crate::cache::budget::{CacheId, Eviction};
use crate::cache::fills::FillTicket;
use crate::cache::memory::{Evict, Memory};
use crate::cache::object::ObjectCache;
use crate::lov::file_state::FileState;
use crate::lov::plan::StripeMap;
use crate::mount::connection::Caller;
use crate::osc::pages::KernelPages;
use nacre_base::{Errno, Fid, FxHashMap, Timestamp};
use nacre_ldlm::{Extent, LockId, RangeSet};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::ldlm::LockMode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::{Notify, RwLock, RwLockReadGuard, oneshot};

/// One object.
pub(crate) struct Object {
    pub(crate) fid: Fid,
    place: OnceLock<Place>,
    pub(crate) state: Mutex<ObjectState>,
    /// Notified when `state` changes in a way that a task may wait for.
    pub(crate) changed: Notify,
    /// Held exclusively while a truncation is at the server, and shared while other changes of data are, all under locks
    /// of this client. A change that the server made after a truncation can only be replayed after it, and a truncation
    /// without a reply is not replayed.
    pub(crate) truncating: RwLock<()>,
    cache_id: CacheId,
    memory: Arc<Memory>,
}

/// An object of a file, as operations that change it name it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ObjectOf {
    pub(crate) object: Fid,
    /// FID of the file.
    pub(crate) parent: Fid,
    /// Number of the stripe in the file, over all components.
    pub(crate) stripe_index: u32,
    /// Generation of the layout that has this stripe.
    pub(crate) layout_version: u32,
    /// Owner of the file, to whom new space is charged.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The client's time.
    pub(crate) now: Timestamp,
}

/// Place of an object in its file.
pub(crate) struct Place {
    pub(crate) file: Arc<FileState>,
    pub(crate) map: StripeMap,
}

/// The changing state of an object, under its mutex.
#[derive(Default)]
pub(crate) struct ObjectState {
    pub(crate) cache: ObjectCache,
    /// The server's attributes, without changes that were not sent to it; true only while locks make them so.
    attr: ObjectAttr,
    /// When the dirty bytes were last written to, or their mtime was set.
    written_at: Timestamp,
    /// The mtime that a program set after they were written.
    mtime_set: Option<Timestamp>,
    /// Owner and caller for whom the dirty bytes are to be written back.
    pub(crate) writer: Option<(ObjectOf, Caller)>,
    /// Locks under which bytes became dirty since all were last written.
    pub(crate) dirty_locks: BTreeSet<LockId>,
    /// True while the object is queued for being written back because of the age of its dirty bytes.
    pub(crate) aging: bool,
    /// True while the object is queued because it has enough bytes for a full RPC.
    pub(crate) ready: bool,
    /// Flushes under way by number, each with the lock that it names.
    flushes: BTreeMap<u64, LockId>,
    /// Number of the next flush, which is also how many have begun.
    next_flush: u64,
    flushes_ended: u64,
    /// Changes under way at the server.
    changes: Vec<Change>,
    /// Readers that wait for a fill begun by another reader; dropping its entry wakes them.
    pub(crate) fill_waiters: FxHashMap<FillTicket, Vec<oneshot::Sender<()>>>,
    /// Enqueues under way.
    pub(crate) enqueues: Vec<Enqueueing>,
    /// What a door's kernel may have of the object.
    pub(crate) pages: KernelPages,
    /// True if this client has ever changed the object's data. Then the version that it knows may not be that of the data.
    is_changed_here: bool,
}

/// A range being changed at the server, with or without a lock of this client. Others may see the new bytes, or the new
/// size, before this client has the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) range: Extent,
    /// True if no cached write may come in between.
    pub(crate) exclusive: bool,
}

/// An enqueue under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Enqueueing {
    pub(crate) mode: LockMode,
    pub(crate) ranges: RangeSet,
    /// True if the server may grant more than was requested.
    pub(crate) grows: bool,
}

impl Enqueueing {
    /// True if the lock it brings will probably do for `ranges` in `mode`.
    pub(crate) fn may_serve(&self, mode: LockMode, ranges: &RangeSet) -> bool {
        let mode_fits = self.mode == mode || (mode == LockMode::Pr && self.mode == LockMode::Pw);
        mode_fits && (self.grows || self.ranges.contains(ranges))
    }
}

impl Object {
    pub(crate) fn new(fid: Fid, memory: &Arc<Memory>) -> Arc<Object> {
        let object = Arc::new(Object {
            fid,
            place: OnceLock::new(),
            state: Mutex::default(),
            changed: Notify::new(),
            truncating: RwLock::new(()),
            cache_id: memory.register(),
            memory: memory.clone(),
        });
        memory.add(object.cache_id, Arc::downgrade(&object) as Weak<dyn Evict>);
        object
    }

    /// Sets the file that the object belongs to, and its place in it.
    pub(crate) fn set_place(&self, file: &Arc<FileState>, map: impl FnOnce() -> StripeMap) {
        if self.place.get().is_none() {
            let _ = self.place.set(Place { file: file.clone(), map: map() });
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.get()
    }

    /// Updates the memory account of the cache; to be called with the state after a change.
    pub(crate) fn account(&self, state: &ObjectState) {
        self.memory.update(self.cache_id, &state.cache);
    }

    /// Panics if bytes are counted wrong, here or at the mount. Visits everything, so it is for rare moments.
    pub(crate) fn assert_sound(&self, state: &ObjectState) {
        state.assert_sound();
        self.memory.assert_booked(self.cache_id, &state.cache);
    }

    /// Keeps truncations by this client away from a change of data under a lock. Returns none without a lock: the server
    /// may then have to wait for other clients, and a truncation must not wait for that.
    pub(crate) async fn without_truncation(&self, lock: LockId) -> Option<RwLockReadGuard<'_, ()>> {
        match lock {
            LockId(0) => None,
            _ => Some(self.truncating.read().await),
        }
    }

    /// Cached bytes of a range are the first ones to be evicted from now on.
    pub(crate) fn expire(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        state.cache.expire(range);
        self.account(&state);
    }

    /// Waits until `check` finds what it looks for.
    pub(crate) async fn wait_for<T>(&self, mut check: impl FnMut(&mut ObjectState) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = check(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// Remembers that data was lost, for the next fsync or close of the file.
    pub(crate) fn report(&self, error: Errno) {
        match self.place() {
            Some(place) => place.file.report(error),
            None => tracing::warn!(object = %self.fid, %error, "data was lost, and its file is unknown"),
        }
    }
}

impl Evict for Object {
    fn evict(&self, eviction: &Eviction) {
        assert_eq!(eviction.object, self.cache_id, "object {} is told to evict for another", self.fid);
        let mut state = self.state.lock();
        state.cache.evict_clean(eviction.bytes, eviction.until);
        self.account(&state);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.memory.forget(self.cache_id);
    }
}

impl ObjectState {
    /// Takes attributes from a reply, unless newer ones are known.
    pub(crate) fn learn(&mut self, attr: &ObjectAttr) {
        if attr.version >= self.attr.version {
            self.attr = attr.clone();
        }
    }

    /// As [`ObjectState::learn`], for an object that other clients make longer at the same time: bytes beyond the old end
    /// are dropped if there is more now.
    pub(crate) fn learn_grown(&mut self, attr: &ObjectAttr) {
        let end = self.size();
        if let Some(beyond) = Extent::new(end, u64::MAX).filter(|_| attr.size > end) {
            self.cache.drop_clean(&[beyond]);
        }
        self.learn(attr);
    }

    /// The version of the data that the locks of this client protect, if it has changed none of it itself; `None` for an object
    /// that was never written. Bytes that were read when the object had this version are the ones that it has now.
    pub(crate) fn known_version(&self) -> Option<u64> {
        (!self.is_changed_here && self.attr.version != 0).then_some(self.attr.version)
    }

    /// The object's attributes become unknown, including their version.
    pub(crate) fn unlearn(&mut self) {
        self.attr = ObjectAttr::default();
    }

    /// Records that bytes were written to the cache, at the time `of.now`.
    pub(crate) fn note_write(&mut self, of: &ObjectOf, caller: &Caller, lock: LockId) {
        if !self.has_unwritten() || of.now >= self.written_at {
            (self.written_at, self.mtime_set) = (of.now, None);
        }
        assert_ne!(lock, LockId(0), "bytes of {} become dirty under no lock", of.object);
        self.is_changed_here = true;
        self.writer = Some((*of, *caller));
        self.dirty_locks.insert(lock);
    }

    /// Owner and caller for whom the dirty bytes are to be written back; there must be some.
    pub(crate) fn written_for(&self) -> (ObjectOf, Caller) {
        let Some((of, caller)) = self.writer else { panic!("{} dirty bytes are nobody's", self.cache.dirty_bytes()) };
        (ObjectOf { now: self.written_at, ..of }, caller)
    }

    /// Begins a flush that names `lock`. Returns its number.
    pub(crate) fn begin_flush(&mut self, lock: LockId) -> u64 {
        let number = self.next_flush;
        self.next_flush += 1;
        self.flushes.insert(number, lock);
        self.assert_flushes();
        number
    }

    /// Ends a flush; each ends once.
    pub(crate) fn end_flush(&mut self, number: u64) {
        assert!(self.flushes.remove(&number).is_some(), "flush {number} is over, of which {:?} are not", self.flushes);
        self.flushes_ended += 1;
        self.assert_flushes();
    }

    /// True if a flush under way names the lock.
    pub(crate) fn is_flushing_under(&self, lock: LockId) -> bool {
        self.flushes.values().any(|named| *named == lock)
    }

    /// True if all flushes with numbers below `newest` have ended.
    pub(crate) fn is_flushed_before(&self, newest: u64) -> bool {
        assert!(newest <= self.next_flush, "flush {newest} is waited for, {} have begun", self.next_flush);
        self.flushes.keys().next().is_none_or(|first| *first >= newest)
    }

    /// The number that the next flush will have.
    pub(crate) fn next_flush(&self) -> u64 {
        self.next_flush
    }

    /// How many flushes have ended.
    pub(crate) fn flushes_ended(&self) -> u64 {
        self.flushes_ended
    }

    /// How many flushes are under way.
    pub(crate) fn flushes_under_way(&self) -> usize {
        self.flushes.len()
    }

    /// True if flushes are under way.
    pub(crate) fn is_flushing(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Every flush that has begun has either ended or is under way.
    fn assert_flushes(&self) {
        let (begun, ended, open) = (self.next_flush, self.flushes_ended, self.flushes.len() as u64);
        assert_eq!(begun, ended + open, "flushes begun, of which {ended} ended and {open} are under way");
    }

    /// Panics if something is counted wrong. Visits everything, so it is for rare moments.
    pub(crate) fn assert_sound(&self) {
        self.assert_flushes();
        self.cache.assert_sound();
        let dirty = self.cache.dirty_bytes();
        assert!(dirty == 0 || self.writer.is_some(), "{dirty} dirty bytes are nobody's");
        assert!(self.cache.writing_bytes() == 0 || self.is_flushing(), "bytes are on their way in no flush");
    }

    /// Removes an enqueue that has ended from [`ObjectState::enqueues`].
    pub(crate) fn end_enqueue(&mut self, over: &Enqueueing) {
        let at = self.enqueues.iter().position(|enqueue| enqueue == over);
        let Some(at) = at else { panic!("{over:?} is over, and is none of {:?}", self.enqueues) };
        self.enqueues.swap_remove(at);
    }

    /// Begins a change at the server, unless it is exclusive and overlaps another exclusive one. Returns whether it
    /// begins.
    pub(crate) fn begin_change(&mut self, change: Change) -> bool {
        let may = !change.exclusive || !self.excludes(&change.range);
        if may {
            self.is_changed_here = true;
            self.changes.push(change);
        }
        may
    }

    /// Ends a change at the server.
    pub(crate) fn end_change(&mut self, over: Change) {
        let at = self.changes.iter().position(|change| *change == over);
        let Some(at) = at else { panic!("{over:?} is over, and is none of {:?}", self.changes) };
        self.changes.swap_remove(at);
        let again = over.exclusive && self.excludes(&over.range);
        assert!(!again, "{over:?} was not alone: {:?}", self.changes);
    }

    /// True if cached writes are kept out of a part of the range.
    pub(crate) fn excludes(&self, range: &Extent) -> bool {
        self.changes.iter().any(|change| change.exclusive && change.range.overlaps(range))
    }

    /// True if something is being changed at the server.
    pub(crate) fn is_changing(&self) -> bool {
        !self.changes.is_empty()
    }

    /// True if other clients may know newer bytes of the range than the cache, whatever locks are held.
    pub(crate) fn is_outdated(&self, range: &Extent) -> bool {
        self.changes.iter().any(|change| change.range.overlaps(range))
    }

    /// End of the bytes from `at` on that are newer than those in a page of a door: written since it was filled, or just being
    /// written.
    pub(crate) fn newer_until(&self, at: u64) -> Option<u64> {
        let under_way = self
            .changes
            .iter()
            .filter(|change| !change.exclusive && change.range.contains(&Extent { start: at, end: at }));
        let under_way = under_way.map(|change| change.range.end.saturating_add(1)).max();
        self.pages.newer_until(at).max(under_way)
    }

    /// The mtime that a program set for the dirty bytes, if any.
    pub(crate) fn mtime_set(&self) -> Option<Timestamp> {
        self.mtime_set
    }

    /// Makes the dirty bytes carry an mtime that was set at `ctime`. Returns whether they do: there have to be dirty
    /// bytes that will be written after everything under way, or `ctime` has to be later.
    pub(crate) fn set_mtime(&mut self, mtime: Timestamp, ctime: Timestamp) -> bool {
        let is_last = ctime > self.written_at || ctime == self.written_at && self.flushes.is_empty();
        let carries = is_last && self.cache.dirty_bytes() > 0;
        if carries {
            (self.written_at, self.mtime_set) = (ctime, Some(mtime));
        }
        carries
    }

    pub(crate) fn has_unwritten(&self) -> bool {
        self.cache.dirty_bytes() > 0 || self.is_flushing()
    }

    /// The size, as true as the locks make it.
    pub(crate) fn size(&self) -> u64 {
        self.attr.size.max(self.cache.end_of_dirty().unwrap_or(0))
    }

    /// The server's attributes with the changes that were not written yet.
    pub(crate) fn visible(&self) -> ObjectAttr {
        self.merged(self.attr.clone())
    }

    /// Attributes from a reply, brought up to date with this client's own changes. The reply lacks bytes that are still dirty. It also
    /// lacks a write that the server executed after it had read the attributes, and the reply to that write may arrive first.
    pub(crate) fn updated(&self, reply: ObjectAttr) -> ObjectAttr {
        if reply.version >= self.attr.version {
            return self.merged(reply);
        }
        let mut newer = self.visible();
        // The reply may count bytes that other clients have not written yet.
        newer.add_unwritten(&reply);
        if reply.ctime > newer.ctime {
            (newer.mtime, newer.ctime) = (reply.mtime, reply.ctime);
        }
        newer
    }

    /// `attr` with the changes that were not written yet.
    pub(crate) fn merged(&self, mut attr: ObjectAttr) -> ObjectAttr {
        attr.size = attr.size.max(self.cache.end_of_dirty().unwrap_or(0));
        if self.has_unwritten() && self.written_at >= attr.ctime {
            attr.mtime = self.mtime_set.unwrap_or(self.written_at);
            attr.ctime = self.written_at;
        }
        let unwritten = (self.cache.dirty_bytes() + self.cache.writing_bytes()).div_ceil(512);
        // Some of these bytes may overwrite blocks that the server already counts.
        let full = attr.blocks.max(attr.size.div_ceil(4096) * 8);
        attr.blocks = (attr.blocks + unwritten).min(full);
        attr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server reads the attributes, executes a write of this client, and replies to both requests; the reply to the write arrives first.
    #[test]
    fn a_reply_from_before_a_write_does_not_hide_that_write() {
        let attr = |version, size, secs| {
            let at = Timestamp { secs, nanos: 0 };
            ObjectAttr { version, size, blocks: size / 512, mtime: at, ctime: at, ..ObjectAttr::default() }
        };
        let mut state = ObjectState::default();
        state.learn(&attr(2, 8192, 20));
        assert_eq!(state.updated(attr(1, 0, 10)), attr(2, 8192, 20));
        assert_eq!(state.updated(attr(3, 100, 30)), attr(3, 100, 30), "cut since");
        // Another client has more that is not written yet, and later.
        assert_eq!(state.updated(attr(1, 16384, 25)), attr(2, 16384, 25));
    }

    /// A change may have happened at the server although its reply was an error or never came, so its version is not known.
    #[test]
    fn no_version_is_known_of_an_object_that_this_client_has_changed() {
        let mut state = ObjectState::default();
        assert_eq!(state.known_version(), None, "never written");
        state.learn(&ObjectAttr { version: 5, ..ObjectAttr::default() });
        assert_eq!(state.known_version(), Some(5));
        let change = Change { range: Extent::ALL, exclusive: true };
        assert!(state.begin_change(change));
        state.end_change(change);
        assert_eq!(state.known_version(), None);

        let mut written = ObjectState::default();
        written.learn(&ObjectAttr { version: 5, ..ObjectAttr::default() });
        written.note_write(&ObjectOf::default(), &Caller::default(), LockId(1));
        assert_eq!(written.known_version(), None);
    }
}
