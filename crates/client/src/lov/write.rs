//! Writing to a file: each object's part under a lock that suits how the file is written to, or around the cache, or at
//! the end of the file, wherever that is.

use super::{Locked, Lov, Part, Striped};
use crate::connection::Caller;
use crate::lov::plan::{self, ObjectIo};
use crate::osc::locks::{LockGuard, Wanted};
use crate::osc::write::extent;
use futures_util::future::join_all;
use nacre_base::{Errno, Payload, Timestamp};
use nacre_ldlm::shared_write::{self, SharedWrite};
use nacre_ldlm::{Extent, RangeSet};
use nacre_wire::ldlm::{LockMode, RANGES_MAX};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

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

impl Lov {
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
