//! The bytes of one OST object that this client has: clean, dirty, and on their way to the server. Byte-accurate, and
//! ignorant of locks, sizes and RPCs: the owner drops what it holds no lock for any more, and knows where the object ends.
//!
//! Owner's duties, which nothing here can check:
//! * A write or fill is covered by a lock for as long as its bytes are here.
//! * `write` needs grant: ask [`ObjectCache::grant_needed`] of the [`super::dirty_account::DirtyAccount`] first.
//! * Before a punch, a direct write or a cancel goes out, nothing of its range may be on its way:
//!   [`ObjectCache::is_busy_in`]. After a punch was answered call [`ObjectCache::truncate`] again: a fill that began
//!   before may bring what was there.

use bytes::Bytes;
use nacre_base::{Payload, Time};
use nacre_ldlm::Extent;
use std::ops::Range;
use std::time::Duration;

/// Bytes of one object.
#[derive(Debug, Default)]
pub(crate) struct ObjectCache {}

/// A part of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Here it is.
    Hit(Payload),
    /// Not here: to be fetched.
    Miss(Range<u64>),
}

/// A read request under way whose reply will be cached. One contiguous range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FillTicket(u64);

/// A write request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlushTicket(u64);

/// What to write, in one RPC.
#[derive(Debug)]
pub(crate) struct Flush {
    /// To be given to [`ObjectCache::flushed`], whatever becomes of it.
    pub(crate) ticket: FlushTicket,
    /// Ascending, not touching, none empty.
    pub(crate) extents: Vec<(u64, Payload)>,
    /// Sum of the extents: what the server takes from the grant.
    pub(crate) bytes: u64,
    /// Grant that was kept for these bytes, rounded to blocks: not less than `bytes`.
    pub(crate) charge: u64,
}

/// Which flush is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushWanted<'a> {
    /// Size of an RPC; extents end at its multiples where that costs nothing.
    pub(crate) max_bytes: u64,
    /// Most extents in an RPC.
    pub(crate) max_extents: usize,
    /// Only bytes in these (ascending, disjoint) ranges.
    pub(crate) within: Option<&'a [Extent]>,
    /// Only a full RPC, or none.
    pub(crate) only_full: bool,
    /// Only bytes that have been dirty for so long.
    pub(crate) min_age: Duration,
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushEnd {
    /// The server has the data.
    Written,
    /// It has not; try again: what was not overwritten meanwhile is dirty again.
    Retry,
    /// It never will: what was not overwritten meanwhile is dropped.
    Lost,
}

/// What left the dirty bytes, or came back to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// Bytes.
    pub(crate) bytes: u64,
    /// Grant that was, or is, kept for them.
    pub(crate) charge: u64,
}

impl ObjectCache {
    /// Grant that a write of the range needs, in addition to what is kept for dirty bytes here: whole blocks.
    pub(crate) fn grant_needed(&self, offset: u64, len: u64) -> u64 {
        todo!()
    }

    /// Takes written data; it is dirty from now on. The grant now kept for it, as [`ObjectCache::grant_needed`] said.
    /// Data is copied if it is small, shared otherwise.
    pub(crate) fn write(&mut self, offset: u64, data: &Payload, now: Time) -> u64 {
        todo!()
    }

    /// What is here of the range, and what is not: pieces in order that together are all of it.
    pub(crate) fn read(&mut self, offset: u64, len: u64, now: Time) -> Vec<Piece> {
        todo!()
    }

    /// The parts of the range that are not here and that no fill under way will bring: what a read-ahead should fetch.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        todo!()
    }

    /// A read request for the range is about to be sent.
    pub(crate) fn begin_fill(&mut self, range: Range<u64>) -> FillTicket {
        todo!()
    }

    /// The reply: bytes from the beginning of the range. If they are fewer than the range, the object ends there, and
    /// the rest is known to be zeros (until the owner drops it: with the lock, or because the object grew otherwise
    /// than by a `write` here). Bytes written, truncated or dropped since the begin are not taken; bytes that were
    /// dirty or on their way then, neither.
    pub(crate) fn fill(&mut self, ticket: FillTicket, data: &Payload, now: Time) {
        todo!()
    }

    /// The read request failed, or its reply is not to be kept.
    pub(crate) fn abandon_fill(&mut self, ticket: FillTicket) {
        todo!()
    }

    /// The next write RPC, if there is something to write. Bytes that are on their way are never sent a second time at
    /// once: as long as they are, newer data in their place is not in a flush, so `None` does not mean that nothing is
    /// dirty.
    pub(crate) fn next_flush(&mut self, wanted: &FlushWanted<'_>, now: Time) -> Option<Flush> {
        todo!()
    }

    /// A flush is over. After [`FlushEnd::Retry`] what is dirty again (never more charge than the flush had), after
    /// [`FlushEnd::Lost`] the bytes that were dropped, after [`FlushEnd::Written`] the bytes that are clean now.
    pub(crate) fn flushed(&mut self, ticket: FlushTicket, end: FlushEnd, now: Time) -> Dirty {
        todo!()
    }

    /// Forgets the ranges, clean and dirty; the dirty bytes that were lost. What is on its way stays on its way.
    pub(crate) fn drop_ranges(&mut self, ranges: &[Extent]) -> Dirty {
        todo!()
    }

    /// Forgets everything from `size` on; the dirty bytes that were lost.
    pub(crate) fn truncate(&mut self, size: u64) -> Dirty {
        todo!()
    }

    /// Forgets about `bytes` clean bytes, the least recently used ones; how many it were.
    pub(crate) fn evict_clean(&mut self, bytes: u64) -> u64 {
        todo!()
    }

    /// Bytes that the server does not have and that no flush under way brings.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        todo!()
    }

    /// Grant kept for the dirty bytes.
    pub(crate) fn dirty_charge(&self) -> u64 {
        todo!()
    }

    /// Bytes in flushes under way that are still the newest.
    pub(crate) fn writing_bytes(&self) -> u64 {
        todo!()
    }

    /// Memory of clean bytes.
    pub(crate) fn clean_bytes(&self) -> u64 {
        todo!()
    }

    /// Since when the oldest dirty bytes have been so; some say so that were flushed in between and written again.
    pub(crate) fn oldest_dirty(&self) -> Option<Time> {
        todo!()
    }

    /// The end of the last dirty or written-back byte: the object is at least so large.
    pub(crate) fn end_of_dirty(&self) -> Option<u64> {
        todo!()
    }

    /// Whether bytes of the ranges are dirty.
    pub(crate) fn is_dirty_in(&self, ranges: &[Extent]) -> bool {
        todo!()
    }

    /// Whether bytes of the ranges are dirty, or in a flush under way.
    pub(crate) fn is_busy_in(&self, ranges: &[Extent]) -> bool {
        todo!()
    }

    /// Whether there is anything at all, requests under way included.
    pub(crate) fn has_any(&self) -> bool {
        todo!()
    }
}
