//! Writes to a file: each object's part under a lock that suits how the file is written to, or around the cache, or at
//! the end of the file.

use super::{Locked, Lov, Part, Striped, lock_each};
use crate::lov::plan::{self, ObjectIo};
use crate::mount::connection::Caller;
use crate::osc::PAGE_SIZE;
use crate::osc::locks::{HeldUp, LockGuard};
use crate::osc::write::{ObjectWrite, extent};
use futures_util::future::join_all;
use nacre_base::{Errno, Payload, Timestamp};
use nacre_ldlm::shared_write::{self, SharedWrite};
use nacre_ldlm::{Extent, RangeSet};
use nacre_wire::ldlm::LockMode;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Way of data between a caller and the file.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// Through the cache; with the state by which a writer gets its locks.
    Cached(&'a Mutex<SharedWrite>),
    /// Around the cache (O_DIRECT).
    Direct,
}

/// Outcome of a write.
pub(crate) struct Written {
    /// Number of bytes written without a gap from the beginning; at least one.
    pub(crate) bytes: usize,
    /// The error that kept the rest from being written.
    pub(crate) error: Option<Errno>,
}

/// A write to a file.
#[derive(Clone, Copy)]
struct FileWrite<'a> {
    caller: &'a Caller,
    file: &'a Striped,
    now: Timestamp,
    offset: u64,
    data: &'a Payload,
}

impl FileWrite<'_> {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Writes the parts, each under its lock or, if it has none, under one that the server takes. See [`Locked`].
    async fn write_parts<'a>(
        &self,
        parts: impl Iterator<Item = (&'a Part, Option<LockGuard>, &'a ObjectIo)>,
    ) -> Result<Written, Errno> {
        let write = |(part, guard, io): (&'a Part, Option<LockGuard>, &'a ObjectIo)| {
            let of = self.file.object(part.stripe, part.object.fid, self.now);
            let (object, caller, data) = (&part.object, self.caller, io.gather(self.offset, self.data));
            async move {
                let (offset, locking) = (io.offset, self.file.locking);
                let write = ObjectWrite { object, of, caller, locking, offset, data, from_page: false };
                let (done, error) = match &guard {
                    Some(guard) => part.osc.write(guard, &write).await,
                    None => Box::pin(part.osc.write_unlocked(&write)).await,
                };
                (io.file_offset_of(done), error)
            }
        };
        let answers = join_all(parts.map(write).collect::<Vec<_>>()).await;
        sum_up(self.offset, self.data.len(), answers)
    }
}

impl Lov {
    /// Writes all of `data`, which is not empty, or as much as possible without a gap; an error only if nothing was
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
        let write = FileWrite { caller, file, now, offset, data };
        if let Way::Cached(writer) = way {
            writer.lock().handle_write(offset, write.len());
        }
        let asked = OnceLock::new();
        let single = plan::single(&file.layout, offset, write.len());
        if let Some(place) = single.filter(|_| !matches!(way, Way::Direct)) {
            let map = || plan::stripe_map(&file.layout, place.stripe);
            let range = place.offset..place.offset + write.len();
            let part = self.part(&file.state, place.stripe, place.of, map, range).await?;
            if let Some(guard) = self.lock_to_write(&write, way, &part, &asked).await? {
                let Some(_gate) = file.state.enter_shared(self.targets.rt()).await else {
                    drop(guard);
                    file.state.until_shared().await;
                    return Box::pin(self.write(caller, file, way, now, offset, data)).await;
                };
                let (of, object) = (file.object(place.stripe, part.object.fid, now), &part.object);
                let len = part.osc.room(place.offset, data.len());
                if len == 0 {
                    return Err(Errno::EFBIG);
                }
                let (locking, data) = (file.locking, data.slice(0, len));
                let write = ObjectWrite { object, of, caller, locking, offset: place.offset, data, from_page: false };
                let (done, error) = part.osc.write(&guard, &write).await;
                return sum_up(offset, len, [(offset + done as u64, error)]);
            }
        }
        let parts = self.parts(file, offset, write.len()).await?;
        if parts.iter().map(|(_, io)| io.len).sum::<usize>() < data.len() {
            return Err(Errno::ESTALE);
        }
        let (parts, ios): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let guards = match way {
            Way::Direct => None,
            // The server takes locks on behalf of this client only while the client holds none for the parts.
            _ => lock_each(&parts, |part| self.lock_to_write(&write, way, part, &asked)).await?,
        };
        if let Some(end) = end_of_room(parts.iter().zip(&ios)) {
            assert!(offset <= end && end - offset < write.len(), "there is room up to {end}, from {offset} on");
            let room = (end - offset) as usize;
            drop((guards, parts));
            if room == 0 {
                return Err(Errno::EFBIG);
            }
            return Box::pin(self.write(caller, file, way, now, offset, &data.slice(0, room))).await;
        }
        let Some(guards) = guards else {
            return write.write_parts(parts.iter().zip(&ios).map(|(part, io)| (part, None, io))).await;
        };
        let Some(_gate) = file.state.enter_shared(self.targets.rt()).await else {
            drop((guards, parts));
            file.state.until_shared().await;
            return Box::pin(self.write(caller, file, way, now, offset, data)).await;
        };
        let parts = parts.iter().zip(guards).zip(&ios);
        write.write_parts(parts.map(|((part, guard), io)| (part, Some(guard), io))).await
    }

    /// Writes what comes out of a door's pages, each under the lock that it was filled under. EIO for the pages whose lock is
    /// lost: other clients may have written there since.
    pub(crate) async fn write_stored(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        offset: u64,
        data: &Payload,
    ) -> Result<(), Errno> {
        let mut parts = self.parts(file, offset, data.len() as u64).await?;
        // The kernel may know an older, larger size than the file has. What is stored behind the end is nobody's.
        if parts.iter().any(|(part, _)| part.range.end > part.object.state.lock().size()) {
            let len = self.glimpse_size(caller, file).await?.saturating_sub(offset).min(data.len() as u64);
            parts = if len == 0 { Vec::new() } else { self.parts(file, offset, len).await? };
        }
        let mut ended = Ok(());
        for (part, io) in parts {
            let (of, locking) = (file.object(part.stripe, part.object.fid, now), file.locking);
            let (object, data) = (&part.object, io.gather(offset, data));
            let Range { start, end } = part.range;
            let mut at = start;
            while at < end {
                let newer = object.state.lock().newer_until(at);
                if let Some(newer) = newer {
                    at = end.min(newer);
                    continue;
                }
                let Some((guard, until)) = part.osc.lock_of_stored(object, at, end) else {
                    ended = Err(Errno::EIO);
                    at = (at - at % PAGE_SIZE + PAGE_SIZE).min(end);
                    continue;
                };
                let data = data.slice((at - start) as usize, (until - at) as usize);
                let write = ObjectWrite { object, of, caller, locking, offset: at, data, from_page: true };
                if let (_, Some(error)) = part.osc.write(&guard, &write).await {
                    // A lock that was lost meanwhile cannot be replaced.
                    ended = Err(if error == Errno::ESTALE { Errno::EIO } else { error });
                }
                at = until;
            }
        }
        ended
    }

    /// The lock for a part of a write: a cached one, or one requested in the way that suits how the file is written to;
    /// `asked` is the plan for all parts of one write. None if the server is to lock while it writes.
    async fn lock_to_write(
        &self,
        write: &FileWrite<'_>,
        way: Way<'_>,
        part: &Part,
        asked: &OnceLock<shared_write::LockPlan>,
    ) -> Result<Option<LockGuard>, Errno> {
        let ranges = RangeSet::single(extent(&part.range));
        let locking = write.file.locking;
        let mut ask = locking.wanted(LockMode::Pw, ranges.clone());
        let Way::Cached(writer) = way else { panic!("a write around the cache takes no lock of this client") };
        if let Some(guard) = part.osc.find_lock(&part.object, &ask) {
            return Ok(Some(guard));
        }
        if locking.is_told() || part.osc.only_grown_locks.load(Ordering::Relaxed) {
            return Box::pin(part.osc.lock(write.caller, &part.object, &ask)).await.map(Some);
        }
        let now = || part.osc.connection().mount().rt.now();
        ask.exactly = match asked.get_or_init(|| writer.lock().ask(write.offset, write.len(), now())) {
            shared_write::LockPlan::Grown => None,
            shared_write::LockPlan::Exact => Some(ranges),
            shared_write::LockPlan::Ahead(extents) => Some(ahead_in(write.file, part, extents)),
            shared_write::LockPlan::ServerSide => return Ok(None),
        };
        let guard = Box::pin(part.osc.lock(write.caller, &part.object, &ask)).await?;
        writer.lock().handle_contended(guard.contended, now());
        Ok(Some(guard))
    }

    /// Writes at the end of the file, where it is once the locks are granted. Returns that offset, too. `confirm` is
    /// awaited with the locks held: an error if the end may be in objects that the layout does not have.
    pub(crate) async fn append(
        &self,
        caller: &Caller,
        file: &Striped,
        now: Timestamp,
        data: &Payload,
        confirm: impl Future<Output = Result<(), Errno>>,
    ) -> Result<(u64, Written), Errno> {
        let (locked, _gate) = self.lock_alone(HeldUp::Nothing, caller, file, |_, _| Some(0..u64::MAX)).await?;
        confirm.await?;
        let sizes = locked.iter().map(|l| l.part.object.state.lock().size());
        let size = file.layout.file_size(sizes);
        if locked.iter().any(|l| l.guard.is_lost()) {
            return Err(Errno::ESTALE);
        }
        let room = crate::lov::FILE_SIZE_MAX.saturating_sub(size).min(data.len() as u64) as usize;
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let data = data.slice(0, room);
        if let Some(place) = plan::single(&file.layout, size, room as u64) {
            // Most appends are small, and lie in one object.
            let mut locked = locked;
            let Locked { part, guard } = locked.swap_remove(place.stripe);
            assert_eq!(part.stripe, place.stripe, "the lock of one stripe for another");
            drop(locked);
            let (of, locking) = (file.object(place.stripe, part.object.fid, now), file.locking);
            let room = part.osc.room(place.offset, room);
            if room == 0 {
                return Err(Errno::EFBIG);
            }
            let data = data.slice(0, room);
            let write =
                ObjectWrite { object: &part.object, of, caller, locking, offset: place.offset, data, from_page: false };
            let (done, error) = part.osc.write(&guard, &write).await;
            return Ok((size, sum_up(size, room, [(size + done as u64, error)])?));
        }
        let mut ios = plan::cut(&file.layout, size, room as u64, |_| u64::MAX);
        let end = end_of_room(ios.iter().map(|io| (&locked[io.stripe].part, io)));
        let room = end.map_or(room, |end| (end - size) as usize);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        if end.is_some() {
            ios = plan::cut(&file.layout, size, room as u64, |_| u64::MAX);
        }
        let data = data.slice(0, room);
        if ios.iter().map(|io| io.len).sum::<usize>() < room {
            return Err(Errno::ESTALE);
        }
        // There is one lock for each stripe, in their order.
        let (parts, mut guards): (Vec<Part>, Vec<Option<LockGuard>>) =
            locked.into_iter().map(|Locked { part, guard }| (part, Some(guard))).unzip();
        let taken: Vec<_> = ios.iter().map(|io| guards[io.stripe].take().expect("one part for each object")).collect();
        drop(guards);
        let parts = ios.iter().zip(taken).map(|(io, guard)| (&parts[io.stripe], Some(guard), io));
        let write = FileWrite { caller, file, now, offset: size, data: &data };
        Ok((size, write.write_parts(parts).await?))
    }
}

/// Offset in the file of the first byte that its object cannot hold; none if the objects can hold all.
fn end_of_room<'a>(mut parts: impl Iterator<Item = (&'a Part, &'a ObjectIo)>) -> Option<u64> {
    let end = |(part, io): (&Part, &ObjectIo)| {
        let room = part.osc.room(io.offset, io.len);
        (room < io.len).then(|| io.file_offset_of(room))
    };
    let mut ends = parts.by_ref().filter_map(end);
    let first = ends.next()?;
    Some(ends.fold(first, u64::min))
}

/// The ranges of a part's object that hold a set of records of the file.
fn ahead_in(file: &Striped, part: &Part, records: &[Extent]) -> RangeSet {
    let map = plan::stripe_map(&file.layout, part.stripe);
    let in_object = records.iter().filter_map(|r| map.object_range(&(r.start..r.end.saturating_add(1))));
    shared_write::part_of_set(extent(&part.range), in_object.map(|range| extent(&range)))
}

/// Combines the results of the parts: how far in the file each came, and why not further.
fn sum_up(offset: u64, len: usize, answers: impl IntoIterator<Item = (u64, Option<Errno>)>) -> Result<Written, Errno> {
    let mut first = None::<(u64, Errno)>;
    for (at, error) in answers {
        assert!(offset <= at && at - offset <= len as u64, "written up to {at}, of {len} bytes from {offset} on");
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
