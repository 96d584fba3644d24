//! How dirty bytes leave the cache: which flush is wanted, what it carries, and how it ended.

use nacre_base::Payload;
use nacre_ldlm::Extent;
use std::time::Duration;

/// A write request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlushTicket(pub(super) u64);

/// The content of one write RPC.
#[derive(Debug)]
pub(crate) struct Flush {
    /// Goes to [`super::object::ObjectCache::flushed`], however the write ends.
    pub(crate) ticket: FlushTicket,
    /// Ascending, not touching, none empty.
    pub(crate) extents: Vec<(u64, Payload)>,
    /// Sum of the extents: what the server takes from the grant.
    pub(crate) bytes: u64,
    /// Grant that was kept for these bytes, rounded to blocks: not less than `bytes`.
    pub(crate) charge: u64,
}

/// What the caller wants to flush.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushWanted<'a> {
    /// Size of an RPC; extents end at its multiples where that costs nothing.
    pub(crate) max_bytes: u64,
    /// Most extents in an RPC.
    pub(crate) max_extents: usize,
    /// Only bytes in these ranges, which are ascending and disjoint.
    pub(crate) within: Option<&'a [Extent]>,
    /// Only a full RPC will do.
    pub(crate) only_full: bool,
    /// Only bytes that have been dirty for at least this time.
    pub(crate) min_age: Duration,
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushEnd {
    /// The server has the data.
    Written,
    /// The server will never have the data: bytes that were not overwritten meanwhile are dropped.
    Lost,
}

/// Bytes that are no longer dirty, because they are being written or were dropped, and the grant that was kept for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// Number of bytes.
    pub(crate) bytes: u64,
    /// Grant that was kept for them.
    pub(crate) charge: u64,
}
