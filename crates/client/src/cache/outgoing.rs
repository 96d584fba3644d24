//! How dirty bytes leave: which flush is wanted, what it carries, and how it ended.

use nacre_base::Payload;
use nacre_ldlm::Extent;
use std::time::Duration;

/// A write request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlushTicket(pub(super) u64);

/// What to write, in one RPC.
#[derive(Debug)]
pub(crate) struct Flush {
    /// To be given to [`super::object::ObjectCache::flushed`], whatever becomes of it.
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
    /// It never will: what was not overwritten meanwhile is dropped.
    Lost,
}

/// Bytes that are dirty no longer, because they are being written or were dropped, and the grant that was kept for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// How many bytes.
    pub(crate) bytes: u64,
    /// Grant that was kept for them.
    pub(crate) charge: u64,
}
