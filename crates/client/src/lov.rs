//! A file spread over objects: each operation on the file becomes operations on the objects, and their results become
//! one. All locks an operation needs are taken before it begins, in the order of the stripes, which is the same for
//! everybody, so that no two wait for each other. The arithmetic is in `plan`, the attributes in `merge`, what the users
//! of a file share in `file_state`; objects are `osc`'s.

pub(crate) mod file_state;
pub(crate) mod merge;
pub(crate) mod plan;

use crate::cache::read_ahead::ReadAhead;
use crate::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::{LockGuard, Wanted};
use crate::osc::object::Object;
use crate::osc::rpc::ObjectOf;
use crate::osc::write::extent;
use crate::targets::Targets;
use file_state::{FileState, Files};
use futures_util::future::{join_all, try_join_all};
use merge::ObjectAttrs;
use nacre_base::{Errno, Fid, Payload, Timestamp};
use nacre_ldlm::shared_write::{self, SharedWrite};
use nacre_ldlm::{Extent, RangeSet};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::layout::{Layout, Stripe};
use nacre_wire::ldlm::{LockMode, RANGES_MAX};
use parking_lot::Mutex;
use plan::{Filled, ObjectIo, StripeMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often an operation is begun again because the server lost the locks under it.
const LOCK_RETRIES: u32 = 5;

/// The object layer of a mount.
pub(crate) struct Lov {
    targets: Arc<Targets>,
    files: Files,
}

/// A file as its objects need to know it.
#[derive(Clone)]
pub(crate) struct Striped {
    pub(crate) state: Arc<FileState>,
    pub(crate) layout: Arc<Layout>,
    /// Owner, to whom new space is charged.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// How data goes between a caller and the file.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// By the cache; how a writer gets its locks.
    Cached(&'a Mutex<SharedWrite>),
    /// By the cache, for a door that writes out what it must forget: locks that are called back will do.
    UnderCallback,
    /// Around it (O_DIRECT).
    Direct,
}

/// What became of a write.
pub(crate) struct Written {
    /// Bytes written without a gap from the beginning; more than none.
    pub(crate) bytes: usize,
    /// Why not all of them.
    pub(crate) error: Option<Errno>,
}

/// A part of an operation: a range of one object.
struct Part {
    stripe: usize,
    osc: Arc<Osc>,
    object: Arc<Object>,
    range: Range<u64>,
}

/// A part with its lock.
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

    /// Stripes with their numbers over all components, and how each maps.
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

    /// What the users of a file share.
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

    /// The parts of a range of the file, a stripe each, in order; with where their bytes belong.
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

    /// Locks parts, which are in the order of their stripes.
    async fn lock_all(&self, caller: &Caller, mode: LockMode, parts: Vec<Part>) -> Result<Vec<Locked>, Errno> {
        let mut locked = Vec::with_capacity(parts.len());
        for part in parts {
            let ranges = RangeSet::single(extent(&part.range));
            let ask = Wanted::grown(mode, ranges);
            let guard = part.osc.lock(caller, &part.object, &ask).await?;
            locked.push(Locked { part, guard });
        }
        Ok(locked)
    }

    /// Locks a range of each object, in the order of the stripes; none for those it returns none for.
    async fn lock_objects(
        &self,
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
        self.lock_all(caller, mode, parts).await
    }

    /// Sizes and times of all objects. A deactivated target's objects are skipped, so that what else is known of their
    /// files can be shown and the files be removed.
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

    /// The same for all objects, or none; objects that nothing is known of are empty if `began_empty`.
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

    /// Whether the attributes of all objects are known from locks: who would change them calls those back first, and the
    /// door's hook is told of that.
    pub(crate) fn knows_size(&self, _fid: Fid, layout: &Layout) -> bool {
        self.known(layout).iter().all(Option::is_some)
    }

    /// Reads up to `len` bytes; fewer only at the end of the file.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        file: &Striped,
        direct: bool,
        ahead: &Mutex<ReadAhead>,
        offset: u64,
        len: u64,
    ) -> Result<Payload, Errno> {
        if direct {
            return self.read_direct(caller, file, offset, len).await;
        }
        for _ in 0..LOCK_RETRIES {
            match self.read_cached(caller, file, ahead, offset, len).await {
                Err(Errno::ESTALE) => {}
                answer => return answer,
            }
        }
        Err(Errno::EIO)
    }

    async fn read_cached(
        &self,
        caller: &Caller,
        file: &Striped,
        ahead: &Mutex<ReadAhead>,
        offset: u64,
        len: u64,
    ) -> Result<Payload, Errno> {
        let end = offset.saturating_add(len);
        if let Some(place) = plan::single(&file.layout, offset, len) {
            let map = || plan::stripe_map(&file.layout, place.stripe);
            let range = place.offset..place.offset + len;
            let part = self.part(&file.state, place.stripe, place.of, map, range).await?;
            let ask = Wanted::grown(LockMode::Pr, RangeSet::single(extent(&part.range)));
            let guard = part.osc.lock(caller, &part.object, &ask).await?;
            self.start_ahead(caller, file, ahead, &part, offset, len);
            let data = part.osc.read(&guard, &part.object, caller, part.range.clone()).await?;
            if data.len() as u64 == len {
                return Ok(data);
            }
            let filled = Filled { piece: plan::Piece { file_offset: offset, len: len as usize }, data };
            let end = self.end_of_file(caller, file, &part, end).await?;
            return Ok(plan::assemble(offset, end.max(offset), &[filled]));
        }
        let parts = self.parts(file, offset, len).await?;
        let (parts, ios): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let locked = self.lock_all(caller, LockMode::Pr, parts).await?;
        if let Some(last) = locked.last() {
            self.start_ahead(caller, file, ahead, &last.part, offset, len);
        }
        let read = |l| {
            let l: &Locked = l;
            let (osc, object, range) = (l.part.osc.clone(), l.part.object.clone(), l.part.range.clone());
            async move { osc.read(&l.guard, &object, caller, range).await }
        };
        let answers = try_join_all(locked.iter().map(read).collect::<Vec<_>>()).await?;
        let scattered = ios.iter().zip(&answers).flat_map(|(io, data)| io.scatter(data));
        let mut filled: Vec<Filled> = scattered.collect();
        filled.sort_by_key(|f| f.piece.file_offset);
        let reaches = filled.last().is_some_and(|f| f.end() == end);
        let end = if reaches { end } else { end.min(self.glimpse_size(caller, file).await?) };
        Ok(plan::assemble(offset, end.max(offset), &filled))
    }

    /// Where a read that found the end of its object before `end` has to end.
    async fn end_of_file(&self, caller: &Caller, file: &Striped, part: &Part, end: u64) -> Result<u64, Errno> {
        if file.layout.stripe_count() == 1
            && let Some(size) = part.osc.known_size(&part.object)
        {
            return Ok(plan::stripe_map(&file.layout, part.stripe).file_end(size).min(end));
        }
        Ok(end.min(self.glimpse_size(caller, file).await?))
    }

    /// Reads ahead what will probably be read next, under the locks that are here.
    fn start_ahead(
        &self,
        caller: &Caller,
        file: &Striped,
        ahead: &Mutex<ReadAhead>,
        part: &Part,
        offset: u64,
        len: u64,
    ) {
        let limits = part.osc.connection().mount().memory.read_ahead_limits();
        let size = plan::stripe_map(&file.layout, part.stripe).file_end(part.object.state.lock().size());
        let now = part.osc.connection().mount().rt.now();
        let ranges = ahead.lock().handle_read(offset, len, size, limits, now);
        for range in ranges {
            for io in plan::cut(&file.layout, range.start, range.end - range.start, |_| part.osc.brw_size()) {
                if !self.read_ahead(caller, file, &io) {
                    for piece in &io.pieces {
                        ahead.lock().handle_wasted(&(piece.file_offset..piece.file_offset + piece.len as u64));
                    }
                }
            }
        }
    }

    fn read_ahead(&self, caller: &Caller, file: &Striped, io: &ObjectIo) -> bool {
        let Some(osc) = self.targets.known_osc(io.ost) else { return false };
        let object = osc.object(io.object);
        object.set_place(&file.state, || plan::stripe_map(&file.layout, io.stripe));
        let range = io.offset..io.offset + io.len as u64;
        let ask = Wanted::grown(LockMode::Pr, RangeSet::single(extent(&range)));
        let Some(guard) = osc.find_lock(&object, &ask) else { return false };
        osc.read_ahead(&object, caller, guard, range)
    }

    /// Reads around the cache; what is dirty is written first.
    async fn read_direct(&self, caller: &Caller, file: &Striped, offset: u64, len: u64) -> Result<Payload, Errno> {
        let end = offset.saturating_add(len);
        let mut filled = self.read_pieces(caller, file, vec![(offset, len)]).await?;
        let gapless = plan::gapless_until(offset, &filled);
        if gapless == end || file.layout.stripe_count() <= 1 {
            // With one object, where it ends the file ends.
            return Ok(plan::assemble(offset, gapless, &filled));
        }
        let end = end.min(self.glimpse_size(caller, file).await?);
        if end <= offset {
            return Ok(Payload::new());
        }
        // A short object below the file's end is a hole. It may have been filled since we read it and before others made
        // the file longer: so look once more, now that the size is known, or a reader would see the end of what a
        // writer wrote without its beginning.
        let holes = plan::missing(&filled, end);
        filled.extend(self.read_pieces(caller, file, holes).await?);
        filled.sort_by_key(|f| f.piece.file_offset);
        Ok(plan::assemble(offset, end, &filled))
    }

    async fn read_pieces(
        &self,
        caller: &Caller,
        file: &Striped,
        ranges: Vec<(u64, u64)>,
    ) -> Result<Vec<Filled>, Errno> {
        let size =
            |ost| self.targets.known_osc(ost).map_or(u64::from(nacre_wire::ost::BRW_SIZE_DEFAULT), |o| o.brw_size());
        let ios: Vec<_> = ranges.into_iter().flat_map(|(o, len)| plan::cut(&file.layout, o, len, size)).collect();
        let read = |io: &ObjectIo| {
            let io = io.clone();
            async move {
                let osc = self.targets.osc(io.ost).await?;
                let object = osc.object(io.object);
                let data = osc.read_around(&object, caller, io.offset..io.offset + io.len as u64).await?;
                Ok::<_, Errno>(io.scatter(&data))
            }
        };
        let answers = try_join_all(ios.iter().map(read).collect::<Vec<_>>()).await?;
        let mut filled: Vec<Filled> = answers.into_iter().flatten().collect();
        filled.sort_by_key(|f| f.piece.file_offset);
        Ok(filled)
    }

    /// Writes all of `data`, which is not empty, or as much as can be without a gap; an error only if nothing was
    /// written. ESTALE if the layout is not, or no longer, the one to write by.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        file: &Striped,
        way: Way<'_>,
        now: Timestamp,
        offset: u64,
        data: &Payload,
    ) -> Result<Written, Errno> {
        let len = data.len() as u64;
        if let Way::Cached(writer) = way {
            writer.lock().handle_write(offset, len);
        }
        let mut asked = None;
        let single = plan::single(&file.layout, offset, len);
        if let Some(place) = single.filter(|_| !matches!(way, Way::Direct)) {
            let map = || plan::stripe_map(&file.layout, place.stripe);
            let range = place.offset..place.offset + len;
            let part = self.part(&file.state, place.stripe, place.of, map, range).await?;
            if let Some(guard) = self.lock_to_write(caller, file, way, &part, &mut asked, offset, len).await? {
                let _gate = file.state.gate.read().await;
                let of = file.object(place.stripe, part.object.fid, now);
                let answer = part.osc.write(&guard, &part.object, &of, caller, place.offset, data.clone()).await;
                return sum_up(offset, data.len(), [(offset + answer.0 as u64, answer.1)]);
            }
        }
        let parts = self.parts(file, offset, len).await?;
        if parts.iter().map(|(_, io)| io.len).sum::<usize>() < data.len() {
            return Err(Errno::ESTALE);
        }
        let (parts, ios): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let mut guards = Vec::with_capacity(parts.len());
        if !matches!(way, Way::Direct) {
            for part in &parts {
                let Some(guard) = self.lock_to_write(caller, file, way, part, &mut asked, offset, len).await? else {
                    break;
                };
                guards.push(guard);
            }
        }
        if guards.len() < parts.len() {
            // None of them may be held while the server takes its own.
            drop(guards);
            return self.write_direct(caller, file, now, offset, data, &parts, &ios).await;
        }
        let locked: Vec<_> = parts.into_iter().zip(guards).map(|(part, guard)| Locked { part, guard }).collect();
        let _gate = file.state.gate.read().await;
        self.write_locked(caller, file, now, offset, data, locked.iter().zip(&ios)).await
    }

    /// The lock for a part of a write: one that is here, or one that is asked for in the way that is best for how the file is
    /// written to; `asked` is for all parts of one write. None if there is to be none: the server locks while it writes.
    #[allow(clippy::too_many_arguments, reason = "the operation has as many")]
    async fn lock_to_write(
        &self,
        caller: &Caller,
        file: &Striped,
        way: Way<'_>,
        part: &Part,
        asked: &mut Option<shared_write::LockPlan>,
        offset: u64,
        len: u64,
    ) -> Result<Option<LockGuard>, Errno> {
        let ranges = RangeSet::single(extent(&part.range));
        let mut ask = Wanted::grown(LockMode::Pw, ranges.clone());
        let Way::Cached(writer) = way else {
            ask.under_callback = matches!(way, Way::UnderCallback);
            return part.osc.lock(caller, &part.object, &ask).await.map(Some);
        };
        if let Some(guard) = part.osc.find_lock(&part.object, &ask) {
            return Ok(Some(guard));
        }
        if part.osc.only_grown_locks.load(Ordering::Relaxed) {
            return part.osc.lock(caller, &part.object, &ask).await.map(Some);
        }
        let now = || part.osc.connection().mount().rt.now();
        ask.exactly = match asked.get_or_insert_with(|| writer.lock().ask(offset, len, now())) {
            shared_write::LockPlan::Grown => None,
            shared_write::LockPlan::Exact => Some(ranges),
            shared_write::LockPlan::Ahead(extents) => Some(ahead_in(file, part, extents).unwrap_or(ranges)),
            shared_write::LockPlan::ServerSide => return Ok(None),
        };
        let guard = part.osc.lock(caller, &part.object, &ask).await?;
        writer.lock().handle_contended(guard.contended, now());
        Ok(Some(guard))
    }

    /// Writes the parts under their locks.
    async fn write_locked<'a>(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        offset: u64,
        data: &Payload,
        parts: impl Iterator<Item = (&'a Locked, &'a ObjectIo)>,
    ) -> Result<Written, Errno> {
        let write = |(l, io): (&'a Locked, &'a ObjectIo)| {
            let of = file.object(l.part.stripe, l.part.object.fid, now);
            let data = io.gather(offset, data);
            async move {
                let (done, error) = l.part.osc.write(&l.guard, &l.part.object, &of, caller, io.offset, data).await;
                (io.file_offset_of(done), error)
            }
        };
        let answers = join_all(parts.map(write).collect::<Vec<_>>()).await;
        sum_up(offset, data.len(), answers)
    }

    #[allow(clippy::too_many_arguments, reason = "the operation has as many")]
    async fn write_direct(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        offset: u64,
        data: &Payload,
        parts: &[Part],
        ios: &[ObjectIo],
    ) -> Result<Written, Errno> {
        let write = |(part, io)| {
            let (part, io): (&Part, &ObjectIo) = (part, io);
            let of = file.object(part.stripe, part.object.fid, now);
            let (osc, object, data) = (part.osc.clone(), part.object.clone(), io.gather(offset, data));
            async move {
                let (done, error) = osc.write_unlocked(&object, &of, caller, io.offset, data).await;
                (io.file_offset_of(done), error)
            }
        };
        let answers = join_all(parts.iter().zip(ios).map(write).collect::<Vec<_>>()).await;
        sum_up(offset, data.len(), answers)
    }

    /// Writes at the end of the file, wherever that is when the locks are granted; also that offset. `confirm` is waited for
    /// with the locks held: an error if the end may be in objects that the layout does not have.
    pub(crate) async fn append(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        data: &Payload,
        confirm: impl Future<Output = Result<(), Errno>>,
    ) -> Result<(u64, Written), Errno> {
        let locked = self.lock_objects(caller, file, LockMode::Pw, |_, _| Some(0..u64::MAX)).await?;
        let _gate = file.state.gate.write().await;
        confirm.await?;
        let sizes = locked.iter().map(|l| l.part.object.state.lock().size());
        let size = file.layout.file_size(sizes);
        if locked.iter().any(|l| l.guard.is_lost()) {
            return Err(Errno::ESTALE);
        }
        let room = crate::file::FILE_SIZE_MAX.saturating_sub(size).min(data.len() as u64) as usize;
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let data = data.slice(0, room);
        let ios = plan::cut(&file.layout, size, room as u64, |_| u64::MAX);
        if ios.iter().map(|io| io.len).sum::<usize>() < room {
            return Err(Errno::ESTALE);
        }
        // A lock on each stripe, in their order.
        let parts = ios.iter().map(|io| (&locked[io.stripe], io));
        Ok((size, self.write_locked(caller, file, now, size, &data, parts).await?))
    }

    /// Sets the size of the file: the objects afterwards.
    pub(crate) async fn truncate(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        size: u64,
    ) -> Result<ObjectAttrs, Errno> {
        let sizes = file.layout.object_sizes(size);
        let locked = self.lock_objects(caller, file, LockMode::Pw, |i, _| Some(sizes[i]..u64::MAX)).await?;
        let _gate = file.state.gate.write().await;
        let punch = |l| {
            let l: &Locked = l;
            let of = file.object(l.part.stripe, l.part.object.fid, now);
            let (osc, object, range) = (l.part.osc.clone(), l.part.object.clone(), l.part.range.clone());
            async move { osc.punch(&l.guard, &object, &of, caller, range).await.map(Some) }
        };
        try_join_all(locked.iter().map(punch).collect::<Vec<_>>()).await
    }

    /// Makes a hole; the size stays.
    pub(crate) async fn punch_hole(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
    ) -> Result<(), Errno> {
        let locked = self.lock_objects(caller, file, LockMode::Pw, |_, map| map.object_range(range)).await?;
        let punch = |l| {
            let l: &Locked = l;
            let of = file.object(l.part.stripe, l.part.object.fid, now);
            let (osc, object, range) = (l.part.osc.clone(), l.part.object.clone(), l.part.range.clone());
            async move { osc.punch_hole(&l.guard, &object, &of, caller, range).await }
        };
        try_join_all(locked.iter().map(punch).collect::<Vec<_>>()).await.map(drop)
    }

    /// Allocates a range, or makes it zeros; `mode` has fallocate's KEEP_SIZE and ZERO_RANGE bits.
    pub(crate) async fn fallocate(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
        mode: u32,
    ) -> Result<(), Errno> {
        let locked = self.lock_objects(caller, file, LockMode::Pw, |_, map| map.object_range(range)).await?;
        // It may make the file longer.
        let _gate = file.state.gate.write().await;
        let allocate = |l| {
            let l: &Locked = l;
            let of = file.object(l.part.stripe, l.part.object.fid, now);
            let (osc, object, range) = (l.part.osc.clone(), l.part.object.clone(), l.part.range.clone());
            async move { osc.fallocate(&l.guard, &object, &of, caller, range, mode).await }
        };
        try_join_all(locked.iter().map(allocate).collect::<Vec<_>>()).await.map(drop)
    }

    /// Where data, or a hole, begins at or after `offset`; none if nowhere before the end of the file. The end of the file
    /// counts as a hole.
    pub(crate) async fn seek(
        &self,
        caller: &Caller,
        file: &Striped,
        offset: u64,
        hole: bool,
    ) -> Result<Option<u64>, Errno> {
        // What others have not written yet, they write before they let go of their locks.
        let locked = self.lock_objects(caller, file, LockMode::Pr, |_, _| Some(0..u64::MAX)).await?;
        let sizes: Vec<u64> = locked.iter().map(|l| l.part.object.state.lock().size()).collect();
        let file_size = file.layout.file_size(sizes.iter().copied());
        if offset >= file_size {
            return Ok(None);
        }
        let sizes = &sizes;
        let find = |(l, map): (&Locked, StripeMap)| {
            let (osc, object, index) = (l.part.osc.clone(), l.part.object.clone(), l.part.stripe);
            async move {
                let Some(from) = map.first_from(offset) else { return Ok(None) };
                let found = match sizes[index] {
                    size if from >= size => hole.then_some(from),
                    _ => osc.seek(caller, &object, from, hole).await?,
                };
                Ok::<_, Errno>(found.and_then(|at| map.file_offset(at)))
            }
        };
        let maps = file.stripes().map(|(_, _, map)| map);
        let found = try_join_all(locked.iter().zip(maps).map(find).collect::<Vec<_>>()).await?;
        let first = found.into_iter().flatten().min();
        Ok(if hole { Some(first.map_or(file_size, |at| at.min(file_size))) } else { first })
    }

    /// Makes everything written to the file by this client, and what the servers have of it by whomever, durable.
    pub(crate) async fn sync(&self, caller: &Caller, layout: &Layout) -> Result<(), Errno> {
        let sync = |(_, _, stripe): (usize, usize, &Stripe)| {
            let stripe = stripe.clone();
            async move { self.targets.osc(stripe.ost).await?.sync(caller, stripe.object).await }
        };
        try_join_all(layout.stripes().map(sync).collect::<Vec<_>>()).await.map(drop)
    }

    /// Sets the mtime of those objects that would make the file show another one; `objects` are as glimpsed and become
    /// as they are then. `ctime` is the inode's.
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
            osc.set_mtime(caller, &file.object(index, stripe.object, ctime), mtime).await.map(Some)
        };
        *objects = try_join_all(file.stripes().map(set).collect::<Vec<_>>()).await?;
        Ok(())
    }
}

/// The bytes of a part's object that some ranges of the file have, with the part itself.
fn ahead_in(file: &Striped, part: &Part, extents: &[Extent]) -> Option<RangeSet> {
    let in_object = extents.iter().flat_map(|e| {
        let len = (e.end - e.start).saturating_add(1);
        let ios = plan::cut(&file.layout, e.start, len, |_| u64::MAX);
        let own = ios.into_iter().filter(|io| io.stripe == part.stripe);
        own.map(|io| extent(&(io.offset..io.offset + io.len as u64))).collect::<Vec<_>>()
    });
    let all = RangeSet::from_extents(in_object.chain([extent(&part.range)]))?;
    (all.ranges().len() <= RANGES_MAX).then_some(all)
}

/// What parts say about the whole: how far in the file each came, and why not further.
fn sum_up(offset: u64, len: usize, answers: impl IntoIterator<Item = (u64, Option<Errno>)>) -> Result<Written, Errno> {
    let mut first = None::<(u64, Errno)>;
    for (at, error) in answers {
        match error {
            Some(Errno::ESTALE) => return Err(Errno::ESTALE),
            Some(error) => first = Some(first.filter(|f| f.0 <= at).unwrap_or((at, error))),
            None => {}
        }
    }
    match first {
        Some((at, error)) if at == offset => Err(error),
        Some((at, error)) => Ok(Written { bytes: (at - offset) as usize, error: Some(error) }),
        None => Ok(Written { bytes: len, error: None }),
    }
}
