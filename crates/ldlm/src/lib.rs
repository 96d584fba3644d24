//! The lock manager: decides which client may do what to which resource at this moment. Plain state machines: requests
//! in, grants out as values. [`server`] has the locks of a target, [`lock_cache`] those of a client.
//!
//! What must not be here: RPCs (the caller sends what is returned), clocks, and what the resources are.

pub mod flock;
mod invariant;
pub mod lock_cache;
mod lock_index;
mod lock_stages;
mod lru;
pub mod mode;
mod params;
pub mod range_set;
pub mod server;
pub mod shared_write;
mod stride;

pub use params::PARAMS;
pub use range_set::{Extent, RangeSet};

/// Id of a lock, or of a request that waits for one. Never 0, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// Id of a client: the cookie of its export.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);
