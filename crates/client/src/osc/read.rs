//! Reads an object: cached bytes, bytes to be fetched, bytes that another reader is fetching; and fetches ahead.

use crate::cache::fills::{FillLimits, FillRequest, FillTicket, part_of};
use crate::cache::object::{ObjectCache, Piece};
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::LockGuard;
use crate::osc::object::{Object, ObjectState};
use crate::osc::write::extent;
use crate::osc::write_back::Which;
use crate::stats::ReadAheadStats;
use futures_util::future::try_join_all;
use nacre_base::{Errno, Fid, Payload};
use nacre_ldlm::lock_cache::Cover;
use nacre_pcc::{ObjectKey, Pcc};
use nacre_wire::ldlm::LockMode;
use nacre_wire::ost::EXTENTS_MAX;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A read request whose reply will be cached. Dropping it before that abandons it.
struct Fill {
    object: Arc<Object>,
    request: FillRequest,
    is_over: bool,
}

impl Fill {
    /// Ends the fill, and wakes readers that wait for its bytes. The caller holds the object's lock.
    fn end(&mut self, state: &mut ObjectState, end: impl FnOnce(&mut ObjectCache, FillTicket)) {
        assert!(!self.is_over, "{:?} of {} ends twice", self.request, self.object.fid);
        self.is_over = true;
        end(&mut state.cache, self.request.ticket);
        state.fill_waiters.remove(&self.request.ticket);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.is_over {
            let object = self.object.clone();
            self.end(&mut object.state.lock(), ObjectCache::abandon_fill);
        }
    }
}

/// The next step of a read, after a look at the cache.
enum Next {
    /// All bytes have been found.
    Done,
    /// Send these requests.
    Fetch(Vec<Fill>),
    /// Wait for the request of another reader.
    Await(oneshot::Receiver<()>),
}

impl Osc {
    /// Reads under a lock on the range; fewer bytes if the object ends within. ESTALE if the lock was lost, or this
    /// client writes there without a lock: then only the server knows the bytes. The caller must ask it without holding
    /// this lock, because the write may be waiting for it.
    pub(crate) async fn read(
        self: &Arc<Self>,
        guard: &LockGuard,
        object: &Arc<Object>,
        caller: &Caller,
        range: Range<u64>,
    ) -> Result<Payload, Errno> {
        let mut found: Vec<(u64, Payload)> = Vec::new();
        let mut open = vec![range.clone()];
        loop {
            let next = {
                let mut state = object.state.lock();
                if guard.is_lost() || state.is_outdated(&extent(&range)) {
                    return Err(Errno::ESTALE);
                }
                self.look_up(object, &mut state, &mut found, &mut open)
            };
            match next {
                Next::Done => return Ok(self.put_together(object, range, found)),
                Next::Fetch(fills) => {
                    let fetched = try_join_all(fills.into_iter().map(|fill| self.fetch(guard, caller, fill))).await?;
                    found.extend(fetched.into_iter().flatten());
                }
                // An error just means that the fill has ended.
                Next::Await(end) => drop(end.await),
            }
        }
    }

    /// Takes the cached bytes of the open ranges into `found`, and begins fetches that no other reader has begun. The
    /// rest stays open.
    fn look_up(
        &self,
        object: &Arc<Object>,
        state: &mut ObjectState,
        found: &mut Vec<(u64, Payload)>,
        open: &mut Vec<Range<u64>>,
    ) -> Next {
        let stats = &self.memory().read_ahead_stats;
        // Beyond the object's end there is nothing to fetch.
        let size = state.size();
        let mut missing = Vec::new();
        for range in open.drain(..).map(|r| r.start..r.end.min(size)).filter(|r| r.start < r.end) {
            let mut at = range.start;
            for piece in state.cache.read(range.start, range.end - range.start, self.now()) {
                match piece {
                    Piece::Hit(data) => {
                        let len = data.len() as u64;
                        ReadAheadStats::count(&stats.hits, len);
                        found.push((at, data));
                        at += len;
                    }
                    Piece::Miss(miss) => {
                        at = miss.end;
                        missing.push(miss);
                    }
                }
            }
        }
        if missing.is_empty() {
            return Next::Done;
        }
        missing.sort_unstable_by_key(|range| range.start);
        // The lock covers the whole read, so the bytes between two missing parts may be read with them.
        let (fills, left) = self.begin_fills(object, state, &[missing]);
        let fetched = fills.iter().flat_map(|fill| &fill.request.holes).map(|hole| hole.end - hole.start);
        ReadAheadStats::count(&stats.misses, fetched.sum::<u64>());
        *open = left;
        if !fills.is_empty() {
            return Next::Fetch(fills);
        }
        let awaited = open.first().and_then(|range| state.cache.awaited_fill(range));
        let awaited = awaited.expect("what is missing and not to be fetched is brought by somebody");
        let (wake, end) = oneshot::channel();
        state.fill_waiters.entry(awaited).or_default().push(wake);
        Next::Await(end)
    }

    /// Begins fills for the missing parts of the ranges. Returns the requests, and the parts left; see
    /// [`ObjectCache::begin_fills`].
    fn begin_fills(
        &self,
        object: &Arc<Object>,
        state: &mut ObjectState,
        groups: &[Vec<Range<u64>>],
    ) -> (Vec<Fill>, Vec<Range<u64>>) {
        let limits = FillLimits { max_bytes: self.brw_size(), max_extents: EXTENTS_MAX };
        let wanted = state.cache.begin_fills(groups, limits);
        let fill = |request| Fill { object: object.clone(), request, is_over: false };
        (wanted.requests.into_iter().map(fill).collect(), wanted.open)
    }

    /// The cache on disk, if there is one and the lock keeps others from writing. The members of a group write beside one another, so
    /// under their lock a version does not tell which bytes were read.
    fn disk_cache_under(&self, guard: &LockGuard) -> Option<Arc<Pcc>> {
        let pcc = self.connection.mount().disk_cache()?;
        let locks = self.locks.lock();
        let (_, Cover::Extent { mode, .. }) = locks.get(guard.id)? else { return None };
        (*mode != LockMode::Group).then_some(pcc)
    }

    /// Reads what a fill wants from the cache on disk, if all of it is there.
    async fn read_kept(&self, pcc: &Arc<Pcc>, object: &Object, extents: &[Range<u64>]) -> Option<Vec<Payload>> {
        let version = object.state.lock().known_version()?;
        pcc.read(&self.key_on_disk(object.fid), version, extents).await
    }

    /// The name of an object in the cache on disk.
    pub(crate) fn key_on_disk(&self, object: Fid) -> ObjectKey {
        ObjectKey { storage: self.connection.entry().uuid, object }
    }

    /// Fetches the bytes of the fill's holes, into the cache and for the caller: from the disk if they are there, or else from the
    /// server.
    async fn fetch(
        self: &Arc<Self>,
        guard: &LockGuard,
        caller: &Caller,
        mut fill: Fill,
    ) -> Result<Vec<(u64, Payload)>, Errno> {
        let object = fill.object.clone();
        let pcc = self.disk_cache_under(guard);
        let kept = match &pcc {
            Some(pcc) => self.read_kept(pcc, &object, &fill.request.extents).await,
            None => None,
        };
        let (replies, attr) = match kept {
            Some(kept) => (kept, None),
            None => {
                let answer = self.read_rpc(caller, object.fid, &fill.request.extents, guard.id.0).await;
                if answer.as_ref().err() == Some(&Errno::ESTALE) {
                    self.handle_vanished(&object, guard.id);
                }
                let (replies, attr) = self.or_lost(guard, answer)?;
                (replies, Some(attr))
            }
        };
        let now = self.now();
        let version = {
            let mut state = object.state.lock();
            if guard.is_lost() {
                // Release the mutex first, because dropping the fill takes it.
                drop(state);
                return Err(Errno::ESTALE);
            }
            attr.iter().for_each(|attr| state.learn(attr));
            fill.end(&mut state, |cache, ticket| cache.fill(ticket, &replies, now));
            object.account(&state);
            attr.map(|attr| attr.version).filter(|version| *version != 0 && state.known_version().is_some())
        };
        self.memory().shrink();
        if let (Some(version), Some(pcc)) = (version, pcc) {
            let starts = fill.request.extents.iter().map(|extent| extent.start);
            pcc.keep(&self.key_on_disk(object.fid), version, starts.zip(replies.iter().cloned()).collect());
        }
        let request = &fill.request;
        assert!(!request.holes.is_empty(), "{request:?} fetches nothing");
        let brought = request.holes.iter().filter_map(|hole| {
            let (data, range) = part_of(&request.extents, &replies, hole, |data| data.len() as u64)?;
            Some((hole.start, data.slice(range.start as usize, (range.end - range.start) as usize)))
        });
        Ok(brought.collect())
    }

    /// The bytes of `range` up to the object's end, put together from pieces in any order, with zeros where there is
    /// none.
    fn put_together(&self, object: &Object, range: Range<u64>, mut found: Vec<(u64, Payload)>) -> Payload {
        if let [(at, data)] = &mut found[..]
            && *at == range.start
            && data.len() as u64 == range.end - range.start
        {
            return std::mem::take(data);
        }
        found.sort_by_key(|(at, _)| *at);
        let end = range.end.min(object.state.lock().size());
        let (mut out, mut next) = (Payload::new(), range.start);
        for (at, data) in found {
            assert!(next <= at, "bytes of {} at {at} were found twice, up to {next}", object.fid);
            out.append(Payload::zeroes((at - next) as usize));
            next = at + data.len() as u64;
            out.append(data);
        }
        // The object may have become shorter meanwhile.
        out.append(Payload::zeroes(end.saturating_sub(next) as usize));
        let len = range.end - range.start;
        assert!(out.len() as u64 <= len, "{} bytes were found of {len} of {}", out.len(), object.fid);
        out
    }

    /// Begins to fetch ranges into the cache, in the background. The ranges are ascending, and the lock covers them.
    /// Returns how many of them, counted from the first, there was room for.
    pub(crate) fn read_ahead(
        self: &Arc<Self>,
        object: &Arc<Object>,
        caller: &Caller,
        guard: LockGuard,
        ranges: &[Range<u64>],
    ) -> usize {
        let mut ahead = Ahead { osc: self.clone(), bytes: 0 };
        let (begun, fills) = {
            let mut state = object.state.lock();
            if guard.is_lost() {
                return ranges.len();
            }
            let (size, has_room) = (state.size(), !state.cache.has_many_fills());
            // One group for each range, because the lock need not cover what lies between them.
            let clip = |r: &Range<u64>| r.start.min(size)..r.end.min(size);
            let inside: Vec<Vec<Range<u64>>> = ranges.iter().map(|r| std::iter::once(clip(r)).collect()).collect();
            let fits = |range: &&Vec<Range<u64>>| {
                let missing = range.iter().flat_map(|r| state.cache.missing(r));
                let bytes: u64 = missing.map(|hole| hole.end - hole.start).sum();
                bytes == 0 || has_room && ahead.add(bytes)
            };
            let begun = inside.iter().take_while(fits).count();
            if ahead.bytes == 0 {
                return begun;
            }
            ReadAheadStats::count(&self.memory().read_ahead_stats.fetched, ahead.bytes);
            (begun, self.begin_fills(object, &mut state, &inside[..begun]).0)
        };
        let (osc, caller) = (self.clone(), *caller);
        self.spawn(async move {
            let _ahead = ahead;
            let _ = try_join_all(fills.into_iter().map(|fill| osc.fetch(&guard, &caller, fill))).await;
        });
        begun
    }

    /// Offset at or after `offset` where data, or a hole, begins, under a lock from there to the end.
    pub(crate) async fn seek(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        offset: u64,
        hole: bool,
        guard: &LockGuard,
    ) -> Result<Option<u64>, Errno> {
        self.try_flush(object, &Which::all(self.now())).await?;
        match self.seek_rpc(caller, object.fid, offset, hole, guard.id.0).await {
            Err(Errno::ESTALE) => self.seek_rpc(caller, object.fid, offset, hole, 0).await,
            found => found,
        }
    }
}

/// Bytes of read-ahead under way.
struct Ahead {
    osc: Arc<Osc>,
    bytes: u64,
}

impl Ahead {
    /// Adds bytes; false if that is too much.
    fn add(&mut self, bytes: u64) -> bool {
        let fits = self.osc.memory().begin_ahead(bytes);
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.osc.memory().end_ahead(self.bytes);
    }
}
