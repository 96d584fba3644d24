//! A file spread over objects: each operation on the file becomes operations on its objects, and their results become one
//! result. All locks of an operation are taken before it begins, in the order of the stripes, which is the same for every
//! client, so that no two operations wait for each other. The arithmetic is in `plan`, the attributes in `merge`, state
//! shared by all users of a file in `file_state`, reading in `read`, writing in `write`; `osc` has the objects.

mod advice;
mod ahead;
pub(crate) mod file_state;
pub(crate) mod merge;
pub(crate) mod plan;
mod read;
mod write;

use crate::mount::connection::{Caller, Connection, PATIENCE};
use crate::mount::targets::Targets;
use crate::osc::Osc;
use crate::osc::locks::{HeldUp, LockGuard, Locking, Wanted};
use crate::osc::object::{Object, ObjectOf};
use crate::osc::write::extent;
use file_state::{FileState, Files, GATE_PATIENCE};
use futures_util::future::{join_all, try_join_all};
use merge::ObjectAttrs;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_ldlm::RangeSet;
use nacre_wire::attr::ObjectAttr;
use nacre_wire::layout::{Layout, Stripe};
use nacre_wire::ldlm::LockMode;
use plan::{ObjectIo, StripeMap};
pub(crate) use read::ForDoor;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLockWriteGuard;
pub(crate) use write::{Way, Written};

/// No file reaches beyond this offset.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// How long an operation holds locks for which others wait, while it waits for another one.
const HELD_IN_VAIN: Duration = Duration::from_millis(100);

/// The object layer of a mount.
pub(crate) struct Lov {
    targets: Arc<Targets>,
    files: Files,
}

/// The parts of a file's state that operations on its objects need.
#[derive(Clone)]
pub(crate) struct Striped {
    pub(crate) state: Arc<FileState>,
    pub(crate) layout: Arc<Layout>,
    /// Owner, to whom new space is charged.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// How the open file gets its locks.
    pub(crate) locking: Locking,
}

/// A part of an operation: a range of one object.
struct Part {
    stripe: usize,
    osc: Arc<Osc>,
    object: Arc<Object>,
    range: Range<u64>,
}

/// A part with its lock. An operation takes the locks of all its parts before it does the first part, and gives each lock
/// back when its part is done. That is enough for all parts to happen at one moment (two-phase locking), and no lock is
/// held while another part waits for an OST that is away.
struct Locked {
    part: Part,
    guard: LockGuard,
}

impl Striped {
    fn object(&self, index: usize, object: Fid, now: Timestamp) -> ObjectOf {
        ObjectOf {
            object,
            parent: self.state.fid,
            stripe_index: index as u32,
            layout_version: self.layout.fence(),
            uid: self.uid,
            gid: self.gid,
            now,
        }
    }

    /// Stripes with their numbers over all components, and the mapping of each.
    fn stripes(&self) -> impl Iterator<Item = (usize, Stripe, StripeMap)> {
        let layout = &self.layout;
        let numbered = layout.stripes().enumerate();
        numbered.map(|(i, (c, s, stripe))| (i, stripe.clone(), StripeMap::new(&layout.components[c], s)))
    }
}

impl Lov {
    pub(crate) fn new(targets: Arc<Targets>) -> Lov {
        Lov { targets, files: Files::default() }
    }

    /// State shared by all users of a file.
    pub(crate) fn file(&self, fid: Fid) -> Arc<FileState> {
        self.files.get(fid)
    }

    async fn part(
        &self,
        file: &Arc<FileState>,
        stripe: usize,
        of: &Stripe,
        map: impl FnOnce() -> StripeMap,
        range: Range<u64>,
    ) -> Result<Part, Errno> {
        let osc = self.targets.osc(of.ost).await?;
        let object = osc.object(of.object);
        object.set_place(file, map);
        Ok(Part { stripe, osc, object, range })
    }

    /// The parts of a range of the file, one for each stripe, in order, with the place of their bytes in the file.
    async fn parts(&self, file: &Striped, offset: u64, len: u64) -> Result<Vec<(Part, ObjectIo)>, Errno> {
        let mut ios = plan::cut(&file.layout, offset, len, |_| u64::MAX);
        ios.sort_by_key(|io| io.stripe);
        let mut parts = Vec::with_capacity(ios.len());
        for io in ios {
            let of = Stripe { ost: io.ost, object: io.object };
            let range = io.offset..io.offset + io.len as u64;
            let map = || plan::stripe_map(&file.layout, io.stripe);
            let part = self.part(&file.state, io.stripe, &of, map, range).await?;
            parts.push((part, io));
        }
        Ok(parts)
    }

    /// Locks parts, which are in the order of their stripes; see [`lock_each`].
    async fn lock_all(
        &self,
        held_up: HeldUp,
        caller: &Caller,
        file: &Striped,
        mode: LockMode,
        parts: Vec<Part>,
    ) -> Result<Vec<Locked>, Errno> {
        self.fetch_locks(held_up, caller, file, mode, &parts).await;
        let lock = |part| async move { self.lock_part(held_up, caller, file, mode, part).await.map(Some) };
        let guards = lock_each(&parts, lock).await?.expect("every part gets a lock");
        assert_eq!(parts.len(), guards.len(), "parts of an operation, and their locks");
        Ok(parts.into_iter().zip(guards).map(|(part, guard)| Locked { part, guard }).collect())
    }

    /// Waits for `future` while all OSTs of the file are connected. If one of them turns out to have no connection, returns that OST
    /// as the inner error.
    async fn while_all_connected<T>(
        &self,
        file: &Striped,
        mut future: impl Future<Output = Result<T, Errno>> + Unpin,
    ) -> Result<Result<T, Arc<Osc>>, Errno> {
        let osts = || file.layout.stripes().filter_map(|(_, _, stripe)| self.targets.known_osc(stripe.ost));
        let Some(rt) = osts().next().map(|osc| osc.connection().mount().rt.clone()) else {
            return future.await.map(Ok);
        };
        loop {
            match rt.timeout(PATIENCE, &mut future).await {
                Ok(answer) => return answer.map(Ok),
                Err(_) => {
                    if let Some(away) = osts().find(|osc| !osc.connection().is_connected()) {
                        return Ok(Err(away));
                    }
                }
            }
        }
    }

    async fn lock_part(
        &self,
        held_up: HeldUp,
        caller: &Caller,
        file: &Striped,
        mode: LockMode,
        part: &Part,
    ) -> Result<LockGuard, Errno> {
        let ask = file.locking.wanted(mode, RangeSet::single(extent(&part.range)));
        let guard = part.osc.lock(caller, &part.object, &Wanted { held_up, ..ask }).await?;
        self.refresh(caller, file, part).await?;
        Ok(guard)
    }

    /// Requests all missing locks at once and holds none of them: other operations may use a lock that came while this
    /// one still waits for others, so nobody waits in a circle. Locks that are still there when the operation needs them,
    /// in the order of the stripes, need not be requested then. Where clients change the file in turns, few would be
    /// left.
    async fn fetch_locks(&self, held_up: HeldUp, caller: &Caller, file: &Striped, mode: LockMode, parts: &[Part]) {
        let locking = file.locking;
        // A group's lock is given back when no operation uses it.
        if parts.len() < 2 || locking.group != 0 {
            return;
        }
        let wanted = |part: &Part| Wanted { held_up, ..locking.wanted(mode, RangeSet::single(extent(&part.range))) };
        let asks = parts.iter().map(|part| (part, wanted(part)));
        let missing: Vec<_> = asks.filter(|(part, ask)| part.osc.find_lock(&part.object, ask).is_none()).collect();
        let now = parts[0].osc.connection().mount().rt.now();
        if missing.len() < 2 || file.state.was_called_back(now) {
            return;
        }
        let fetch = |(part, ask): &(&Part, Wanted)| {
            let (osc, object, ask) = (part.osc.clone(), part.object.clone(), ask.clone());
            // An error here will occur again when the lock is needed.
            async move { drop(osc.lock(caller, &object, &ask).await) }
        };
        join_all(missing.iter().map(fetch).collect::<Vec<_>>()).await;
    }

    /// Locks a range of each object, in the order of the stripes. An object for which the range is none stays unlocked.
    async fn lock_objects(
        &self,
        held_up: HeldUp,
        caller: &Caller,
        file: &Striped,
        mode: LockMode,
        range: impl Fn(usize, &StripeMap) -> Option<Range<u64>>,
    ) -> Result<Vec<Locked>, Errno> {
        let mut parts = Vec::new();
        for (index, stripe, map) in file.stripes() {
            if let Some(range) = range(index, &map) {
                parts.push(self.part(&file.state, index, &stripe, || map, range).await?);
            }
        }
        self.lock_all(held_up, caller, file, mode, parts).await
    }

    /// Locks a range of each object to change the file's end, as [`Lov::lock_objects`], and takes the file's gate
    /// exclusively. Locks are not kept while the gate is held by an operation that may wait for an OST that is away.
    async fn lock_alone<'f>(
        &self,
        held_up: HeldUp,
        caller: &Caller,
        file: &'f Striped,
        range: impl Fn(usize, &StripeMap) -> Option<Range<u64>>,
    ) -> Result<(Vec<Locked>, RwLockWriteGuard<'f, ()>), Errno> {
        loop {
            let locked = self.lock_objects(held_up, caller, file, LockMode::Pw, &range).await?;
            let rt = self.targets.rt();
            if let Some(gate) = file.state.enter_exclusive(rt).await {
                return Ok((locked, gate));
            }
            drop(locked);
            rt.sleep(GATE_PATIENCE).await;
        }
    }

    /// Sizes and times of all objects. Objects of a deactivated target are skipped, so that the rest of their files'
    /// attributes can be shown, and the files removed.
    pub(crate) async fn glimpse(&self, caller: &Caller, fid: Fid, layout: &Layout) -> Result<ObjectAttrs, Errno> {
        let file = self.file(fid);
        let mut stripes = layout.stripes();
        if let (Some(only), None) = (stripes.next(), stripes.next()) {
            return Ok(vec![self.glimpse_object(caller, &file, layout, 0, only).await?]);
        }
        let all = layout.stripes().enumerate().map(|(i, s)| self.glimpse_object(caller, &file, layout, i, s));
        try_join_all(all.collect::<Vec<_>>()).await
    }

    async fn glimpse_object(
        &self,
        caller: &Caller,
        file: &Arc<FileState>,
        layout: &Layout,
        index: usize,
        (component, number, stripe): (usize, usize, &Stripe),
    ) -> Result<Option<ObjectAttr>, Errno> {
        let map = || StripeMap::new(&layout.components[component], number);
        let Part { osc, object, .. } = self.part(file, index, stripe, map, 0..u64::MAX).await?;
        match osc.glimpse(caller, &object).await {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::EIO) if !osc.connection().is_active() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Lov::glimpse`], for a caller that can do without some objects: an OST that is away, or does not answer within
    /// [`PATIENCE`], is left out.
    pub(crate) async fn glimpse_promptly(
        &self,
        caller: &Caller,
        fid: Fid,
        layout: &Layout,
    ) -> Result<ObjectAttrs, Errno> {
        let file = &self.file(fid);
        let glimpse = |(component, number, stripe): (usize, usize, &Stripe)| {
            let (stripe, map) = (stripe.clone(), StripeMap::new(&layout.components[component], number));
            async move {
                let Some(osc) = self.targets.known_osc(stripe.ost) else { return Ok(None) };
                let object = osc.object(stripe.object);
                object.set_place(file, || map);
                if let Some(attr) = osc.known_attr(&object) {
                    return Ok(Some(attr));
                }
                if osc.connection().is_away() { Ok(None) } else { osc.glimpse_within(caller, &object, PATIENCE).await }
            }
        };
        try_join_all(layout.stripes().map(glimpse).collect::<Vec<_>>()).await
    }

    pub(crate) async fn glimpse_size(&self, caller: &Caller, file: &Striped) -> Result<u64, Errno> {
        let objects = self.glimpse(caller, file.state.fid, &file.layout).await?;
        Ok(file.layout.file_size(objects.iter().map(|o| o.as_ref().map_or(0, |o| o.size))))
    }

    /// The attributes of the objects, as far as locks make them known.
    pub(crate) fn known(&self, layout: &Layout) -> ObjectAttrs {
        let known = |stripe: &Stripe| {
            let osc = self.targets.known_osc(stripe.ost)?;
            let object = osc.known_object(stripe.object)?;
            osc.known_attr(&object)
        };
        layout.stripes().map(|(_, _, stripe)| known(stripe)).collect()
    }

    /// How long a file is at least, by locks that this client holds; one of them covers `range` of the file.
    pub(crate) fn size_at_least(&self, layout: &Layout, range: &Range<u64>) -> u64 {
        let of_object = |number: usize, stripe: &Stripe| {
            let osc = self.targets.known_osc(stripe.ost)?;
            let object = osc.known_object(stripe.object)?;
            if let Some(attr) = osc.known_attr(&object) {
                return Some(attr.size);
            }
            let covered = plan::stripe_map(layout, number).object_range(range)?;
            let size = object.state.lock().size();
            (size > covered.start).then(|| size.min(covered.end))
        };
        let stripes = layout.stripes().enumerate();
        layout.file_size(stripes.map(|(number, (_, _, stripe))| of_object(number, stripe).unwrap_or(0)))
    }

    /// The attributes of all objects, or none if some are unknown; an object not yet in use here is empty if
    /// `began_empty`.
    pub(crate) fn known_or_new(&self, layout: &Layout, began_empty: bool) -> Option<Vec<ObjectAttr>> {
        let known = |(_, _, stripe): (usize, usize, &Stripe)| {
            let osc = self.targets.known_osc(stripe.ost)?;
            match osc.known_object(stripe.object) {
                Some(object) => osc.known_attr(&object),
                None => began_empty.then(ObjectAttr::default),
            }
        };
        layout.stripes().map(known).collect()
    }

    /// True if locks make the attributes of all objects known: a client that changes them calls those locks back first,
    /// and the door is then told.
    pub(crate) fn knows_size(&self, layout: &Layout) -> bool {
        self.known(layout).iter().all(Option::is_some)
    }

    /// Waits for OSTs that are known to be away and that an operation on a range of the file needs, before the operation
    /// takes locks that other clients may want.
    async fn until_all_answer(&self, file: &Striped, range: &Range<u64>) -> Result<(), Errno> {
        for (_, stripe, map) in file.stripes() {
            let osc = self.targets.osc(stripe.ost).await?;
            if osc.connection().is_away() && map.object_range(range).is_some() {
                osc.connection().until_answers().await?;
            }
        }
        Ok(())
    }

    /// Sets the size of the file. Returns the attributes of the objects afterwards.
    pub(crate) async fn truncate(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        size: u64,
    ) -> Result<ObjectAttrs, Errno> {
        let sizes = file.layout.object_sizes(size);
        self.until_all_answer(file, &(0..u64::MAX)).await?;
        let (locked, _gate) = self.lock_alone(HeldUp::Stores, caller, file, |i, _| Some(sizes[i]..u64::MAX)).await?;
        let punch = |Locked { part, guard }: Locked| {
            let of = file.object(part.stripe, part.object.fid, now);
            async move { part.osc.punch(&guard, &part.object, &of, caller, part.range.clone()).await.map(Some) }
        };
        try_join_all(locked.into_iter().map(punch).collect::<Vec<_>>()).await
    }

    /// EFBIG if an object of a file of `size` bytes would be longer than its OST can hold. All objects are checked,
    /// because the one with the last byte need not be the longest.
    pub(crate) async fn check_size(&self, caller: &Caller, fid: Fid, layout: &Layout, size: u64) -> Result<(), Errno> {
        // Connects the OSTs, which then report how long an object can be.
        self.glimpse(caller, fid, layout).await?;
        let can_hold = |((_, _, stripe), size): ((usize, usize, &Stripe), u64)| {
            self.targets.known_osc(stripe.ost).is_none_or(|osc| osc.can_hold(size))
        };
        let fits = layout.stripes().zip(layout.object_sizes(size)).all(can_hold);
        if fits { Ok(()) } else { Err(Errno::EFBIG) }
    }

    /// Punches a hole; the size stays.
    pub(crate) async fn punch_hole(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
    ) -> Result<(), Errno> {
        self.until_all_answer(file, range).await?;
        let locked =
            self.lock_objects(HeldUp::Nothing, caller, file, LockMode::Pw, |_, map| map.object_range(range)).await?;
        let punch = |Locked { part, guard }: Locked| {
            let of = file.object(part.stripe, part.object.fid, now);
            async move { part.osc.punch_hole(&guard, &part.object, &of, caller, part.range.clone()).await }
        };
        try_join_all(locked.into_iter().map(punch).collect::<Vec<_>>()).await.map(drop)
    }

    /// Allocates a range, or zeroes it; `mode` has fallocate's KEEP_SIZE and ZERO_RANGE bits.
    pub(crate) async fn fallocate(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
        mode: u32,
    ) -> Result<(), Errno> {
        self.until_all_answer(file, range).await?;
        // The operation may make the file longer.
        let (locked, _gate) = self.lock_alone(HeldUp::Nothing, caller, file, |_, map| map.object_range(range)).await?;
        if locked.iter().any(|l| !l.part.osc.can_hold(l.part.range.end)) {
            return Err(Errno::EFBIG);
        }
        let allocate = |Locked { part, guard }: Locked| {
            let of = file.object(part.stripe, part.object.fid, now);
            async move { part.osc.fallocate(&guard, &part.object, &of, caller, part.range.clone(), mode).await }
        };
        try_join_all(locked.into_iter().map(allocate).collect::<Vec<_>>()).await.map(drop)
    }

    /// Offset at or after `offset` where data, or a hole, begins; none if there is none before the end of the file, which
    /// counts as a hole.
    pub(crate) async fn seek(
        &self,
        caller: &Caller,
        file: &Striped,
        offset: u64,
        hole: bool,
    ) -> Result<Option<u64>, Errno> {
        self.until_all_answer(file, &(0..u64::MAX)).await?;
        // Other clients write back their dirty bytes before they give up their locks.
        let locked = self.lock_objects(HeldUp::Nothing, caller, file, LockMode::Pr, |_, _| Some(0..u64::MAX)).await?;
        let sizes: Vec<u64> = locked.iter().map(|l| l.part.object.state.lock().size()).collect();
        let file_size = file.layout.file_size(sizes.iter().copied());
        if offset >= file_size {
            return Ok(None);
        }
        let sizes = &sizes;
        let find = |(Locked { part, guard }, map): (Locked, StripeMap)| async move {
            let Some(from) = map.first_from(offset) else { return Ok(None) };
            let found = match sizes[part.stripe] {
                size if from >= size => hole.then_some(from),
                _ => part.osc.seek(caller, &part.object, from, hole, &guard).await?,
            };
            Ok::<_, Errno>(found.and_then(|at| map.file_offset(at)))
        };
        let maps = file.stripes().map(|(_, _, map)| map);
        let found = try_join_all(locked.into_iter().zip(maps).map(find).collect::<Vec<_>>()).await?;
        let first = found.into_iter().flatten().min();
        Ok(if hole { Some(first.map_or(file_size, |at| at.min(file_size))) } else { first })
    }

    /// Makes durable everything that this client wrote to the file, and all of the file's data that the servers have.
    pub(crate) async fn sync(&self, caller: &Caller, layout: &Layout) -> Result<(), Errno> {
        let sync = |(_, _, stripe): (usize, usize, &Stripe)| {
            let stripe = stripe.clone();
            async move { self.targets.osc(stripe.ost).await?.sync(caller, stripe.object).await }
        };
        try_join_all(layout.stripes().map(sync).collect::<Vec<_>>()).await.map(drop)
    }

    /// Sets the mtime of those objects that would make the file show another one. `objects` are the attributes from a
    /// glimpse, and are updated. `ctime` is the inode's.
    pub(crate) async fn set_mtime(
        &self,
        caller: &Caller,
        file: &Striped,
        objects: &mut ObjectAttrs,
        mtime: Timestamp,
        ctime: Timestamp,
    ) -> Result<(), Errno> {
        let glimpsed = &*objects;
        let set = |(index, stripe, _): (usize, Stripe, StripeMap)| async move {
            let wrong = glimpsed[index].as_ref().is_some_and(|o| merge::disagrees(o, mtime, ctime));
            if !wrong {
                return Ok::<_, Errno>(glimpsed[index].clone());
            }
            let osc = self.targets.osc(stripe.ost).await?;
            let mut attr = osc.set_mtime(caller, &file.object(index, stripe.object, ctime), mtime).await?;
            // The OST does not ask other clients for bytes that they have not written yet; the glimpse did. If a kernel is told a size
            // without these bytes, it drops the pages behind that size, even those of a running program.
            glimpsed[index].iter().for_each(|glimpsed| attr.add_unwritten(glimpsed));
            Ok(Some(attr))
        };
        *objects = try_join_all(file.stripes().map(set).collect::<Vec<_>>()).await?;
        Ok(())
    }

    /// Does the part of [`Lov::set_mtime`] that had to wait for OSTs that were away, when they are back. Other clients
    /// may have changed the objects by then, so `mtime` is set only on objects that were last changed before it was set.
    /// Repeating the call changes nothing.
    pub(crate) async fn set_owed_mtime(&self, caller: &Caller, file: &Striped, mtime: Timestamp, ctime: Timestamp) {
        let set = |(index, stripe, _): (usize, Stripe, StripeMap)| async move {
            let osc = self.targets.osc(stripe.ost).await?;
            let object = osc.glimpse(caller, &osc.object(stripe.object)).await?;
            if merge::is_owed(&object, mtime, ctime) {
                osc.set_mtime(caller, &file.object(index, stripe.object, ctime), mtime).await?;
            }
            Ok::<_, Errno>(())
        };
        let done = join_all(file.stripes().map(set).collect::<Vec<_>>()).await;
        if let Some(error) = done.into_iter().find_map(Result::err) {
            // The file may have been removed meanwhile.
            tracing::debug!(fid = %file.state.fid, %error, "an mtime did not reach all objects");
        }
    }
}

/// Waits for `asked`, which wants a lock, while no server waits for those held already; else returns none after a while. Whoever waits
/// for them may be unable to give up the lock that is wanted, because its kernel does not write pages out while it changes the
/// file's size.
async fn while_nobody_waits<T>(
    connection: &Connection,
    held: &[LockGuard],
    mut asked: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let rt = connection.mount().rt.clone();
    loop {
        match rt.timeout(HELD_IN_VAIN, asked.as_mut()).await {
            Ok(asked) => return Some(asked),
            Err(_) if held.iter().any(LockGuard::is_called_back) => return None,
            Err(_) => {}
        }
    }
}

/// Takes the lock of each part by `lock`, in order. No lock is held while the operation waits for an OST that is away:
/// the locks are given back, and taken again when the OST answers. None if `lock` returns none for a part, because that
/// part needs no lock of this client.
async fn lock_each<'p, F: Future<Output = Result<Option<LockGuard>, Errno>>>(
    parts: &'p [Part],
    lock: impl Fn(&'p Part) -> F,
) -> Result<Option<Vec<LockGuard>>, Errno> {
    // Operations that lock in different orders would wait for each other.
    assert!(parts.is_sorted_by(|a, b| a.stripe < b.stripe), "parts are locked out of the order of their stripes");
    'again: loop {
        let mut guards = Vec::with_capacity(parts.len());
        for part in parts {
            let connection = part.osc.connection();
            let asked = match guards.is_empty() {
                true => Some(lock(part).await),
                false => {
                    let asked = connection.while_connected(Box::pin(lock(part)));
                    match while_nobody_waits(connection, &guards, pin!(asked)).await {
                        Some(asked) => asked,
                        None => {
                            drop(guards);
                            continue 'again;
                        }
                    }
                }
            };
            let Some(answer) = asked else {
                drop(guards);
                connection.until_answers().await?;
                continue 'again;
            };
            match answer? {
                Some(guard) => guards.push(guard),
                None => return Ok(None),
            }
        }
        return Ok(Some(guards));
    }
}
