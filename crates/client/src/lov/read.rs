//! Reads a file: from the cache, under locks; around the cache; and ahead of a program's reads.

use super::{Locked, Lov, Part, Striped};
use crate::cache::read_ahead::ReadAhead;
use crate::lov::file_state::{FileState, Pages};
use crate::lov::plan::{self, Filled, ObjectIo};
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::{HeldUp, LockGuard, Wanted};
use crate::osc::write::extent;
use crate::stats::ReadAheadStats;
use futures_util::future::try_join_all;
use nacre_base::{Errno, Payload};
use nacre_ldlm::RangeSet;
use nacre_wire::layout::{Layout, Stripe};
use nacre_wire::ldlm::LockMode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why a read stopped before it had all bytes.
enum Stopped {
    Failed(Errno),
    /// This OST is away.
    Away(Arc<Osc>),
}

impl From<Errno> for Stopped {
    fn from(error: Errno) -> Stopped {
        Stopped::Failed(error)
    }
}

impl From<Arc<Osc>> for Stopped {
    fn from(osc: Arc<Osc>) -> Stopped {
        Stopped::Away(osc)
    }
}

/// A read of a file through the cache.
#[derive(Clone, Copy)]
struct FileRead<'a> {
    caller: &'a Caller,
    file: &'a Striped,
    ahead: &'a Mutex<ReadAhead>,
    offset: u64,
    len: u64,
    for_door: ForDoor,
}

/// What a read has to do with a door's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForDoor {
    /// Nothing: a program gets the bytes.
    No,
    /// The kernel will have the bytes as one page, and cannot forget that page before it has them.
    Page,
    /// The same with several pages, for which it asks one by one if they are not to be had together.
    Pages,
}

impl FileRead<'_> {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

impl Lov {
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
        match self.read_cached(&FileRead { caller, file, ahead, offset, len, for_door: ForDoor::No }).await {
            // The layout that this client knows may be old; ask the server.
            Err(Errno::ESTALE) => self.read_direct(caller, file, offset, len).await,
            answer => answer,
        }
    }

    /// Reads bytes that a door's kernel will have as pages, each under a lock that is not given back before the page is
    /// forgotten. EAGAIN if several pages are asked for that cannot be locked at once: the door is to ask for one at a time,
    /// because it cannot forget one of them while it waits for the others. ESTALE if a lock was lost, or the layout may be old.
    pub(crate) async fn fill(
        &self,
        caller: &Caller,
        file: &Striped,
        ahead: &Mutex<ReadAhead>,
        offset: u64,
        len: u64,
        for_door: ForDoor,
    ) -> Result<Payload, Errno> {
        self.read_cached(&FileRead { caller, file, ahead, offset, len, for_door }).await
    }

    /// Makes the door forget pages that were filled to be read, because a program will be able to store into the file.
    pub(crate) async fn forget_readable(&self, file: &FileState, layout: &Layout) {
        let osc = |stripe: &Stripe| self.targets.known_osc(stripe.ost);
        let known = |stripe: &Stripe| osc(stripe).and_then(|osc| Some((osc.known_object(stripe.object)?, osc)));
        let objects: Vec<_> = layout.stripes().filter_map(|(_, _, stripe)| known(stripe)).collect();
        loop {
            for (object, osc) in &objects {
                osc.forget_readable(object).await;
            }
            // From here on no page is filled under PR. One may have been before.
            file.set_pages(Pages::Stored);
            if objects.iter().all(|(object, _)| object.state.lock().pages.readable().is_empty()) {
                return;
            }
            file.set_pages(Pages::Turning);
        }
    }

    async fn read_cached(&self, read: &FileRead<'_>) -> Result<Payload, Errno> {
        loop {
            let answer = match plan::single(&read.file.layout, read.offset, read.len) {
                Some(place) => self.read_single(read, &place).await,
                None => Box::pin(self.read_parts(read)).await,
            };
            match answer {
                Ok(data) => return Ok(data),
                Err(Stopped::Failed(error)) => return Err(error),
                // The locks of the other objects have been given back, because other clients may want them.
                Err(Stopped::Away(osc)) => osc.connection().until_answers().await?,
            }
        }
    }

    /// Reads a range that lies in one object.
    async fn read_single(&self, read: &FileRead<'_>, place: &plan::Single<'_>) -> Result<Payload, Stopped> {
        let FileRead { caller, file, offset, len, .. } = *read;
        let map = || plan::stripe_map(&file.layout, place.stripe);
        let range = place.offset..place.offset + len;
        let part = self.part(&file.state, place.stripe, place.of, map, range).await?;
        let guard = self.lock_to_read(read, &part).await?;
        self.refresh(caller, file, &part).await?;
        self.start_ahead(read, &part);
        let data = self.read_part(read, &part, &guard).await?;
        if data.len() as u64 == len {
            return Ok(data);
        }
        let filled = Filled { piece: plan::Piece { file_offset: offset, len: len as usize }, data };
        let end = self.while_all_connected(file, Box::pin(self.end_of_file(read, &part))).await??;
        Ok(plan::assemble(offset, end.max(offset), &[filled]))
    }

    /// Reads a range that lies in several objects.
    async fn read_parts(&self, read: &FileRead<'_>) -> Result<Payload, Stopped> {
        let FileRead { caller, file, offset, len, .. } = *read;
        let end = read.end();
        let parts = self.parts(file, offset, len).await?;
        let (parts, ios): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let locked = match read.for_door {
            ForDoor::No => self.lock_all(HeldUp::Nothing, caller, file, LockMode::Pr, parts).await?,
            _ => self.lock_to_fill(read, parts).await?,
        };
        if let Some(last) = locked.last() {
            self.start_ahead(read, &last.part);
        }
        let read_part = |l| {
            let Locked { part, guard }: &Locked = l;
            async move {
                let data = self.read_part(read, part, guard);
                let data = part.osc.connection().while_connected(Box::pin(data)).await;
                data.ok_or_else(|| Stopped::Away(part.osc.clone()))?.map_err(Stopped::Failed)
            }
        };
        let answers = try_join_all(locked.iter().map(read_part).collect::<Vec<_>>()).await?;
        let scattered = ios.iter().zip(&answers).flat_map(|(io, data)| io.scatter(data));
        let mut filled: Vec<Filled> = scattered.collect();
        filled.sort_by_key(|f| f.piece.file_offset);
        let reaches = filled.last().is_some_and(|f| f.end() == end);
        let end = match reaches {
            true => end,
            false => end.min(self.while_all_connected(file, Box::pin(self.glimpse_size(caller, file))).await??),
        };
        Ok(plan::assemble(offset, end.max(offset), &filled))
    }

    /// Reads a part under its lock.
    async fn read_part(&self, read: &FileRead<'_>, part: &Part, guard: &LockGuard) -> Result<Payload, Errno> {
        let Part { osc, object, range, .. } = part;
        let data = osc.read(guard, object, read.caller, range.clone()).await;
        if read.for_door == ForDoor::No {
            return data;
        }
        match data {
            // A page must be filled under the lock. The server has the bytes, and whoever changes them waits for the lock.
            Err(Errno::ESTALE) if !guard.is_lost() => osc.read_under(guard, object, read.caller, range.clone()).await,
            data => {
                // The kernel has them now, and asks for them again only after it has dropped its own.
                object.expire(range);
                data
            }
        }
    }

    /// The lock for a part of a read, in which pages of a door are filled.
    async fn lock_to_read(&self, read: &FileRead<'_>, part: &Part) -> Result<LockGuard, Errno> {
        let FileRead { caller, file, for_door, .. } = *read;
        let (ranges, rt) = (RangeSet::single(extent(&part.range)), self.targets.rt());
        if for_door == ForDoor::No {
            return part.osc.lock(caller, &part.object, &file.locking.wanted(LockMode::Pr, ranges)).await;
        }
        let mut was_held_back = false;
        loop {
            let mode = if file.state.pages() == Pages::Read { LockMode::Pr } else { LockMode::Pw };
            let mut ask = Wanted { held_up: HeldUp::Pages, ..file.locking.wanted(mode, ranges.clone()) };
            // Where several clients use the pages in turns, a page is all that each takes from the others.
            if !file.locking.is_told() && file.state.was_called_back(rt.now()) {
                ask.exactly = Some(ranges.clone());
                let takes_many = for_door == ForDoor::Pages && mode == LockMode::Pw;
                if takes_many && part.osc.find_lock(&part.object, &ask).is_none() {
                    return Err(Errno::EAGAIN);
                }
            }
            let locked = part.osc.lock(caller, &part.object, &ask);
            let guard = match for_door {
                ForDoor::Pages => tokio::select! {
                    biased;
                    guard = locked => guard?,
                    () = file.state.until_forgetting() => return Err(Errno::EAGAIN),
                },
                _ => locked.await?,
            };
            let held_back = part.object.state.lock().pages.hold_back(guard.id);
            if !held_back.is_zero() && !was_held_back {
                drop(guard);
                was_held_back = true;
                part.osc.connection().mount().page_counts.held_back.fetch_add(1, Ordering::Relaxed);
                rt.sleep(held_back).await;
            } else if part.osc.begin_fill(&guard, &part.object, &part.range) {
                return Ok(guard);
            }
        }
    }

    /// The locks for pages that lie in several objects. None is held while another one is waited for: a door cannot forget one
    /// page before it has the others.
    async fn lock_to_fill(&self, read: &FileRead<'_>, parts: Vec<Part>) -> Result<Vec<Locked>, Errno> {
        assert!(read.for_door == ForDoor::Pages, "one page lies in {} objects", parts.len());
        for part in &parts {
            drop(self.lock_to_read(read, part).await?);
        }
        let mut locked = Vec::with_capacity(parts.len());
        for part in parts {
            let mode = if read.file.state.pages() == Pages::Read { LockMode::Pr } else { LockMode::Pw };
            let ask = read.file.locking.wanted(mode, RangeSet::single(extent(&part.range)));
            let guard = part.osc.find_lock(&part.object, &ask).ok_or(Errno::EAGAIN)?;
            if !part.osc.begin_fill(&guard, &part.object, &part.range) {
                return Err(Errno::EAGAIN);
            }
            locked.push(Locked { part, guard });
        }
        Ok(locked)
    }

    /// Offset at which a read has to end whose object ended early.
    async fn end_of_file(&self, read: &FileRead<'_>, part: &Part) -> Result<u64, Errno> {
        let (file, end) = (read.file, read.end());
        if file.layout.stripe_count() == 1
            && let Some(size) = part.osc.known_size(&part.object)
        {
            return Ok(plan::stripe_map(&file.layout, part.stripe).file_end(size).min(end));
        }
        Ok(end.min(self.glimpse_size(read.caller, file).await?))
    }

    /// Reads ahead, under locks that this client holds already.
    fn start_ahead(&self, read: &FileRead<'_>, part: &Part) {
        let FileRead { caller, file, ahead, offset, len, .. } = *read;
        let limits = part.osc.connection().mount().memory.read_ahead_limits(part.osc.far_window());
        let size = plan::stripe_map(&file.layout, part.stripe).file_end(part.object.state.lock().size());
        let now = part.osc.connection().mount().rt.now();
        let ranges = ahead.lock().handle_read(offset, len, size, limits, now);
        // Ranges of one object go into few requests.
        let mut objects = BTreeMap::<usize, Vec<ObjectIo>>::new();
        for range in ranges {
            for io in plan::cut(&file.layout, range.start, range.end - range.start, |_| part.osc.brw_size()) {
                objects.entry(io.stripe).or_default().push(io);
            }
        }
        for ios in objects.values() {
            for io in self.read_ahead(caller, file, ios) {
                let stats = &part.osc.connection().mount().memory.read_ahead_stats;
                ReadAheadStats::count(&stats.failed_lock_match, io.len as u64);
                for piece in &io.pieces {
                    ahead.lock().handle_wasted(&(piece.file_offset..piece.file_offset + piece.len as u64));
                }
            }
        }
    }

    /// Begins to fetch parts of one object, which are ascending. Returns the parts that it could not fetch.
    fn read_ahead<'a>(&self, caller: &Caller, file: &Striped, ios: &'a [ObjectIo]) -> Vec<&'a ObjectIo> {
        let Some((first, osc)) = ios.first().and_then(|io| Some((io, self.targets.known_osc(io.ost)?))) else {
            return ios.iter().collect();
        };
        let object = osc.object(first.object);
        object.set_place(&file.state, || plan::stripe_map(&file.layout, first.stripe));
        let range = |io: &ObjectIo| io.offset..io.offset + io.len as u64;
        let find = |ranges: RangeSet| osc.find_lock(&object, &file.locking.wanted(LockMode::Pr, ranges));
        let all = RangeSet::from_extents(ios.iter().map(|io| extent(&range(io))));
        if let Some(guard) = all.and_then(find) {
            let ranges: Vec<_> = ios.iter().map(range).collect();
            let begun = osc.read_ahead(&object, caller, guard, &ranges);
            return ios[begun..].iter().collect();
        }
        // Each part under a lock of its own, if there is one.
        let is_missing = |io: &&ObjectIo| {
            let guard = find(RangeSet::single(extent(&range(io))));
            guard.is_none_or(|guard| osc.read_ahead(&object, caller, guard, &[range(io)]) == 0)
        };
        ios.iter().filter(is_missing).collect()
    }

    /// Reads around the cache, after dirty bytes were written.
    async fn read_direct(&self, caller: &Caller, file: &Striped, offset: u64, len: u64) -> Result<Payload, Errno> {
        let end = offset.saturating_add(len);
        let mut filled = self.read_pieces(caller, file, vec![(offset, len)]).await?;
        let gapless = plan::gapless_until(offset, &filled);
        if gapless == end || file.layout.stripe_count() <= 1 {
            // The file has one object, and ends where the object ends.
            return Ok(plan::assemble(offset, gapless, &filled));
        }
        let end = end.min(self.glimpse_size(caller, file).await?);
        if end <= offset {
            return Ok(Payload::new());
        }
        // A short object below the file's end is a hole. Another client may have filled it after this read, and before
        // the file became longer. So read the hole once more, now that the size is known: otherwise a reader would see
        // the end of another client's write without its beginning.
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
                let data = osc.read_around(&object, caller, file.locking, io.offset..io.offset + io.len as u64).await?;
                Ok::<_, Errno>(io.scatter(&data))
            }
        };
        let answers = try_join_all(ios.iter().map(read).collect::<Vec<_>>()).await?;
        let mut filled: Vec<Filled> = answers.into_iter().flatten().collect();
        filled.sort_by_key(|f| f.piece.file_offset);
        Ok(filled)
    }
}
