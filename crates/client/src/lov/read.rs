//! Reads a file: from the cache, under locks; around the cache; and ahead of a program's reads.

use super::{Locked, Lov, Part, Striped};
use crate::cache::read_ahead::ReadAhead;
use crate::lov::plan::{self, Filled, ObjectIo};
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::write::extent;
use crate::stats::ReadAheadStats;
use futures_util::future::try_join_all;
use nacre_base::{Errno, Payload};
use nacre_ldlm::RangeSet;
use nacre_wire::ldlm::LockMode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

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
        match self.read_cached(&FileRead { caller, file, ahead, offset, len }).await {
            // The layout that this client knows may be old; ask the server.
            Err(Errno::ESTALE) => self.read_direct(caller, file, offset, len).await,
            answer => answer,
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
        let ask = file.locking.wanted(LockMode::Pr, RangeSet::single(extent(&part.range)));
        let guard = part.osc.lock(caller, &part.object, &ask).await?;
        self.refresh(caller, file, &part).await?;
        self.start_ahead(read, &part);
        let data = part.osc.read(&guard, &part.object, caller, part.range.clone()).await?;
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
        let locked = self.lock_all(caller, file, LockMode::Pr, parts).await?;
        if let Some(last) = locked.last() {
            self.start_ahead(read, &last.part);
        }
        let read_part = |l| {
            let Locked { part, guard }: &Locked = l;
            async move {
                let data = part.osc.read(guard, &part.object, caller, part.range.clone());
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
        let FileRead { caller, file, ahead, offset, len } = *read;
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
