//! A file spread over objects: each operation on the file becomes operations on the objects, in parallel, and their
//! results become one. The arithmetic is in `plan`, the attributes in `merge`, the RPCs in `osc`.

pub(crate) mod merge;
pub(crate) mod plan;

use crate::connection::Caller;
use crate::osc::{ExtentLock, ObjectOf, Osc};
use crate::targets::Targets;
use futures_util::future::{join_all, try_join_all};
use merge::ObjectAttrs;
use nacre_base::{Errno, Fid, Payload, Timestamp};
use nacre_wire::attr::ObjectAttr;
use nacre_wire::layout::{Layout, Stripe};
use nacre_wire::ost::BRW_SIZE_DEFAULT;
use plan::{Filled, ObjectIo, StripeMap};
use std::ops::Range;
use std::sync::Arc;

/// The object layer of a mount.
pub(crate) struct Lov {
    targets: Arc<Targets>,
}

/// A file as its objects need to know it.
#[derive(Debug, Clone)]
pub(crate) struct Striped {
    pub(crate) fid: Fid,
    pub(crate) layout: Arc<Layout>,
    /// Owner, to whom new space is charged.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What became of a write.
pub(crate) struct Written {
    /// Bytes written without a gap from the beginning; more than none.
    pub(crate) bytes: usize,
    /// Why not all of them.
    pub(crate) error: Option<Errno>,
    /// Objects afterwards, by number of the stripe.
    pub(crate) objects: Vec<(usize, ObjectAttr)>,
}

impl Striped {
    fn object(&self, index: usize, stripe: &Stripe, now: Timestamp) -> ObjectOf {
        ObjectOf {
            object: stripe.object,
            parent: self.fid,
            stripe_index: index as u32,
            layout_version: self.layout.generation,
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
        Lov { targets }
    }

    fn cut(&self, layout: &Layout, offset: u64, len: u64) -> Vec<ObjectIo> {
        plan::cut(layout, offset, len, |ost| {
            self.targets.known_osc(ost).map_or(BRW_SIZE_DEFAULT.into(), |osc| osc.brw_size())
        })
    }

    /// Sizes and times of all objects. A deactivated target's objects are skipped, so that what else is known of their
    /// files can be shown and the files be removed.
    pub(crate) async fn glimpse(&self, caller: &Caller, layout: &Layout) -> Result<ObjectAttrs, Errno> {
        let all = layout.stripes().map(|(_, _, stripe)| self.glimpse_object(caller, stripe));
        try_join_all(all.collect::<Vec<_>>()).await
    }

    async fn glimpse_object(&self, caller: &Caller, stripe: &Stripe) -> Result<Option<ObjectAttr>, Errno> {
        let osc = self.targets.osc(stripe.ost).await?;
        match osc.getattr(caller, stripe.object).await {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::EIO) if !osc.connection().is_active() => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn glimpse_size(&self, caller: &Caller, layout: &Layout) -> Result<u64, Errno> {
        let objects = self.glimpse(caller, layout).await?;
        Ok(layout.file_size(objects.iter().map(|o| o.as_ref().map_or(0, |o| o.size))))
    }

    /// Reads up to `len` bytes; fewer only at the end of the file.
    pub(crate) async fn read(&self, caller: &Caller, layout: &Layout, offset: u64, len: u64) -> Result<Payload, Errno> {
        let end = offset.saturating_add(len);
        let mut filled = self.read_pieces(caller, layout, vec![(offset, len)]).await?;
        let gapless = plan::gapless_until(offset, &filled);
        if gapless == end || layout.stripe_count() <= 1 {
            // With one object, where it ends the file ends.
            return Ok(plan::assemble(offset, gapless, &filled));
        }
        let end = end.min(self.glimpse_size(caller, layout).await?);
        if end <= offset {
            return Ok(Payload::new());
        }
        // A short object below the file's end is a hole. It may have been filled since we read it and before others made
        // the file longer: so look once more, now that the size is known, or a reader would see the end of what a
        // writer wrote without its beginning.
        let holes = plan::missing(&filled, end);
        filled.extend(self.read_pieces(caller, layout, holes).await?);
        filled.sort_by_key(|f| f.piece.file_offset);
        Ok(plan::assemble(offset, end, &filled))
    }

    /// Reads ranges; the pieces in file order.
    async fn read_pieces(
        &self,
        caller: &Caller,
        layout: &Layout,
        ranges: Vec<(u64, u64)>,
    ) -> Result<Vec<Filled>, Errno> {
        let ios: Vec<_> = ranges.into_iter().flat_map(|(offset, len)| self.cut(layout, offset, len)).collect();
        let reads: Vec<_> = ios.iter().map(|io| self.read_object(caller, io)).collect();
        let mut filled: Vec<Filled> = try_join_all(reads).await?.into_iter().flatten().collect();
        filled.sort_by_key(|f| f.piece.file_offset);
        Ok(filled)
    }

    async fn read_object(&self, caller: &Caller, io: &ObjectIo) -> Result<Vec<Filled>, Errno> {
        let osc = self.targets.osc(io.ost).await?;
        Ok(io.scatter(&osc.read(caller, io).await?))
    }

    /// Writes all of `data`, which is not empty, or as much as can be without a gap; an error only if nothing was
    /// written. ESTALE if the layout is not, or no longer, the one to write by.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        offset: u64,
        data: &Payload,
    ) -> Result<Written, Errno> {
        let ios = self.cut(&file.layout, offset, data.len() as u64);
        if ios.iter().map(|io| io.len).sum::<usize>() < data.len() {
            return Err(Errno::ESTALE);
        }
        let writes: Vec<_> = ios.iter().map(|io| self.write_object(caller, file, now, io, offset, data)).collect();
        let answers = join_all(writes).await;
        let (mut objects, mut failed) = (Vec::new(), None::<(u64, Errno)>);
        for (io, answer) in ios.iter().zip(answers) {
            match answer {
                Ok(attr) => objects.push((io.stripe, attr)),
                Err(Errno::ESTALE) => return Err(Errno::ESTALE),
                Err(e) => {
                    let at = io.pieces[0].file_offset;
                    failed = Some(failed.filter(|f| f.0 <= at).unwrap_or((at, e)));
                }
            }
        }
        match failed {
            Some((at, error)) if at == offset => Err(error),
            Some((at, error)) => Ok(Written { bytes: (at - offset) as usize, error: Some(error), objects }),
            None => Ok(Written { bytes: data.len(), error: None, objects }),
        }
    }

    async fn write_object(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        io: &ObjectIo,
        offset: u64,
        data: &Payload,
    ) -> Result<ObjectAttr, Errno> {
        let osc = self.targets.osc(io.ost).await?;
        let of = file.object(io.stripe, &Stripe { ost: io.ost, object: io.object }, now);
        osc.write(caller, &of, io, io.gather(offset, data)).await
    }

    /// Locks out other appends and truncates of the file, on any client, until the lock is dropped. None if the file
    /// has no objects.
    pub(crate) async fn lock(&self, caller: &Caller, layout: &Layout) -> Result<Option<ExtentLock>, Errno> {
        // Everybody takes the first object's lock, so it stands for the whole file.
        let Some((_, _, stripe)) = layout.stripes().next() else { return Ok(None) };
        self.targets.osc(stripe.ost).await?.lock(caller, stripe.object).await.map(Some)
    }

    /// Writes at the end of the file, wherever that is when the lock is granted; also that offset.
    pub(crate) async fn append(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        data: &Payload,
    ) -> Result<(u64, Written), Errno> {
        let _lock = self.lock(caller, &file.layout).await?;
        let size = self.glimpse_size(caller, &file.layout).await?;
        let room = crate::file::FILE_SIZE_MAX.saturating_sub(size).min(data.len() as u64) as usize;
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let written = self.write(caller, file, now, size, &data.slice(0, room)).await?;
        Ok((size, written))
    }

    /// Sets the size of the file: the objects afterwards.
    pub(crate) async fn truncate(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        size: u64,
    ) -> Result<ObjectAttrs, Errno> {
        let _lock = self.lock(caller, &file.layout).await?;
        let sizes = file.layout.object_sizes(size);
        let punch = |(index, stripe, _): (usize, Stripe, StripeMap)| {
            let (of, size) = (file.object(index, &stripe, now), sizes[index]);
            async move { self.targets.osc(stripe.ost).await?.punch(caller, &of, size..u64::MAX).await.map(Some) }
        };
        try_join_all(file.stripes().map(punch).collect::<Vec<_>>()).await
    }

    /// Calls `operation` for each object that lies in `range`, with its part of the range.
    async fn for_each_part<F>(
        &self,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
        operation: impl Fn(Arc<Osc>, ObjectOf, Range<u64>) -> F,
    ) -> Result<(), Errno>
    where
        F: Future<Output = Result<ObjectAttr, Errno>>,
    {
        let mut parts = Vec::new();
        for (index, stripe, map) in file.stripes() {
            if let Some(part) = map.object_range(range) {
                let osc = self.targets.osc(stripe.ost).await?;
                parts.push(operation(osc, file.object(index, &stripe, now), part));
            }
        }
        try_join_all(parts).await.map(drop)
    }

    /// Makes a hole; the size stays.
    pub(crate) async fn punch_hole(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        range: &Range<u64>,
    ) -> Result<(), Errno> {
        let punch = |osc: Arc<Osc>, of: ObjectOf, part: Range<u64>| async move { osc.punch(caller, &of, part).await };
        self.for_each_part(file, now, range, punch).await
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
        let allocate =
            |osc: Arc<Osc>, of: ObjectOf, part: Range<u64>| async move { osc.fallocate(caller, &of, part, mode).await };
        self.for_each_part(file, now, range, allocate).await
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
        let objects = self.glimpse(caller, &file.layout).await?;
        let sizes: Vec<u64> = objects.iter().map(|o| o.as_ref().map_or(0, |o| o.size)).collect();
        let file_size = file.layout.file_size(sizes.iter().copied());
        if offset >= file_size {
            return Ok(None);
        }
        let sizes = &sizes;
        let find = |(index, stripe, map): (usize, Stripe, StripeMap)| async move {
            let Some(from) = map.first_from(offset) else { return Ok(None) };
            let found = match sizes[index] {
                size if from >= size => hole.then_some(from),
                _ => self.targets.osc(stripe.ost).await?.seek(caller, stripe.object, from, hole).await?,
            };
            Ok::<_, Errno>(found.and_then(|at| map.file_offset(at)))
        };
        let found = try_join_all(file.stripes().map(find).collect::<Vec<_>>()).await?;
        let first = found.into_iter().flatten().min();
        Ok(if hole { Some(first.map_or(file_size, |at| at.min(file_size))) } else { first })
    }

    /// Makes everything written to the file durable, by whomever.
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
            osc.set_mtime(caller, &file.object(index, &stripe, ctime), mtime).await.map(Some)
        };
        *objects = try_join_all(file.stripes().map(set).collect::<Vec<_>>()).await?;
        Ok(())
    }
}
