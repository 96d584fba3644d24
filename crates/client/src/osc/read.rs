//! Reading an object: what is cached, what has to be fetched, what another reader is fetching; and fetching ahead.

use crate::cache::object::{FillTicket, Piece};
use crate::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::LockGuard;
use crate::osc::object::{Object, ObjectState};
use crate::osc::write::extent;
use crate::stats::ReadAheadStats;
use futures_util::future::try_join_all;
use nacre_base::{Errno, Payload};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

/// A read RPC whose reply will be cached. Dropped before it was: the cache does not wait for it any more.
struct Fill {
    object: Arc<Object>,
    ticket: Option<FillTicket>,
    range: Range<u64>,
}

impl Drop for Fill {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.object.state.lock().cache.abandon_fill(ticket);
            self.object.changed.notify_waiters();
        }
    }
}

impl Osc {
    /// Reads under a lock on the range: fewer bytes if the object ends within. ESTALE if the lock was lost, or this
    /// client writes there without one: then the server knows, who must be asked without this lock in hand, for the
    /// write may be waiting for it.
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
            let mut changed = pin!(object.changed.notified());
            changed.as_mut().enable();
            let fills = {
                let mut state = object.state.lock();
                if guard.is_lost() || state.is_outdated(&extent(&range)) {
                    return Err(Errno::ESTALE);
                }
                // Beyond the object's end there is nothing to fetch.
                let size = state.size();
                let clipped = open.drain(..).map(|r| r.start..r.end.min(size)).filter(|r| r.start < r.end);
                let clipped: Vec<_> = clipped.collect();
                self.look_up(object, &mut state, clipped, &mut found, &mut open)
            };
            if fills.is_empty() && open.is_empty() {
                break;
            }
            if fills.is_empty() {
                // Somebody is fetching it.
                changed.await;
                continue;
            }
            let fetched = try_join_all(fills.into_iter().map(|fill| self.fetch(guard, caller, fill))).await?;
            found.extend(fetched);
        }
        Ok(self.put_together(object, range, found))
    }

    /// Takes what is cached of the ranges into `found`, what is being fetched into `open`, and begins to fetch the rest.
    fn look_up(
        &self,
        object: &Arc<Object>,
        state: &mut ObjectState,
        ranges: Vec<Range<u64>>,
        found: &mut Vec<(u64, Payload)>,
        open: &mut Vec<Range<u64>>,
    ) -> Vec<Fill> {
        let mut fills = Vec::new();
        let stats = &self.memory().read_ahead_stats;
        for range in ranges {
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
                        let mut next = miss.start;
                        for hole in state.cache.missing(miss.clone()) {
                            if next < hole.start {
                                open.push(next..hole.start);
                            }
                            next = hole.end;
                            ReadAheadStats::count(&stats.misses, hole.end - hole.start);
                            fills.extend(self.begin_fills(object, state, hole));
                        }
                        if next < miss.end {
                            open.push(next..miss.end);
                        }
                    }
                }
            }
        }
        fills
    }

    /// Cuts a range into RPCs.
    fn begin_fills(&self, object: &Arc<Object>, state: &mut ObjectState, range: Range<u64>) -> Vec<Fill> {
        let size = self.brw_size();
        let (mut at, mut fills) = (range.start, Vec::new());
        while at < range.end {
            let end = (at + size - at % size).min(range.end);
            let ticket = Some(state.cache.begin_fill(at..end));
            fills.push(Fill { object: object.clone(), ticket, range: at..end });
            at = end;
        }
        fills
    }

    async fn fetch(
        self: &Arc<Self>,
        guard: &LockGuard,
        caller: &Caller,
        mut fill: Fill,
    ) -> Result<(u64, Payload), Errno> {
        let object = fill.object.clone();
        let answer = self.read_rpc(caller, object.fid, fill.range.clone(), guard.id.0).await;
        if answer.as_ref().err() == Some(&Errno::ESTALE) {
            self.locks.lock().vanished(guard.id);
        }
        let (data, attr, _) = self.or_lost(guard, answer)?;
        let now = self.now();
        {
            let mut state = object.state.lock();
            if guard.is_lost() {
                return Err(Errno::ESTALE);
            }
            state.learn(&attr);
            if let Some(ticket) = fill.ticket.take() {
                state.cache.fill(ticket, &data, now);
            }
            object.account(&state, now);
        }
        object.changed.notify_waiters();
        self.memory().shrink(now);
        Ok((fill.range.start, data))
    }

    /// The bytes of `range` up to the object's end, out of pieces in any order; zeros where there is none.
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
            out.append(Payload::zeroes(at.saturating_sub(next) as usize));
            next = at + data.len() as u64;
            out.append(data);
        }
        out.append(Payload::zeroes(end.saturating_sub(next) as usize));
        out
    }

    /// Fetches a range into the cache, if a lock is here that covers it and room for it: in the background. False if not.
    pub(crate) fn read_ahead(
        self: &Arc<Self>,
        object: &Arc<Object>,
        caller: &Caller,
        guard: LockGuard,
        range: Range<u64>,
    ) -> bool {
        let fills = {
            let mut state = object.state.lock();
            let range = range.start..range.end.min(state.size());
            if range.start >= range.end || guard.is_lost() {
                return true;
            }
            let holes = state.cache.missing(range);
            let bytes: u64 = holes.iter().map(|h| h.end - h.start).sum();
            if bytes == 0 {
                return true;
            }
            if !self.memory().begin_ahead(bytes) {
                return false;
            }
            ReadAheadStats::count(&self.memory().read_ahead_stats.fetched, bytes);
            let begin = |hole: Range<u64>| self.begin_fills(object, &mut state, hole);
            (holes.into_iter().flat_map(begin).collect::<Vec<_>>(), bytes)
        };
        let (fills, bytes) = fills;
        let ahead = Ahead { osc: self.clone(), bytes };
        let (osc, caller) = (self.clone(), *caller);
        self.spawn(async move {
            let _ahead = ahead;
            let _ = try_join_all(fills.into_iter().map(|fill| osc.fetch(&guard, &caller, fill))).await;
        });
        true
    }
}

/// Bytes of read-ahead under way.
struct Ahead {
    osc: Arc<Osc>,
    bytes: u64,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.osc.memory().end_ahead(self.bytes);
    }
}
