//! The cases, by what they are about. Each module has `all()`, its part of the list.

pub(crate) mod away;
pub(crate) mod cache;
pub(crate) mod crash_points;
pub(crate) mod doors;
pub(crate) mod failover;
pub(crate) mod faults;
pub(crate) mod flags;
pub(crate) mod fsck;
pub(crate) mod fsx;
pub(crate) mod handles;
pub(crate) mod litmus;
pub(crate) mod options;
pub(crate) mod posix;
pub(crate) mod power_cut;
pub(crate) mod progressive;
pub(crate) mod soak;
pub(crate) mod space;
pub(crate) mod tools;
pub(crate) mod tree;
pub(crate) mod up;
pub(crate) mod waits;
