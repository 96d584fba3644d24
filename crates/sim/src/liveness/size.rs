//! The cluster of a run.

pub(super) const CLIENTS: u32 = 5;
pub(super) const OSTS: u32 = 2;
pub(super) const ROUTERS: u32 = 2;
