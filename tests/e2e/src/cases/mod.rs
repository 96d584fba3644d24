//! The cases, by what they are about. Each module has `all()`, its part of the list.

pub(crate) mod away;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod congestion;
pub(crate) mod crash_points;
pub(crate) mod culprits;
pub(crate) mod doors;
pub(crate) mod failover;
pub(crate) mod faults;
pub(crate) mod flags;
pub(crate) mod fsck;
pub(crate) mod fsx;
pub(crate) mod handles;
pub(crate) mod litmus;
pub(crate) mod metrics;
pub(crate) mod monitoring;
pub(crate) mod networks;
pub(crate) mod options;
mod pages;
mod pcc;
pub(crate) mod posix;
pub(crate) mod power_cut;
pub(crate) mod progressive;
pub(crate) mod routers;
pub(crate) mod soak;
pub(crate) mod space;
pub(crate) mod tools;
pub(crate) mod tree;
pub(crate) mod up;
pub(crate) mod waits;
pub(crate) mod wan;

use crate::case::{Beside, Case};

/// Every case, in the order in which they run: the quick and telling ones first, and those that may run beside each
/// other last.
pub(crate) fn all() -> Vec<Case> {
    let mut all = litmus::all();
    all.extend(cache::all());
    all.extend(posix::all());
    all.extend(handles::all());
    all.extend(flags::all());
    all.extend(options::all());
    all.extend(pages::all());
    all.extend(pcc::all());
    all.extend(monitoring::all());
    all.extend(fsx::all());
    all.extend(tools::all());
    all.extend(tree::all());
    all.extend(faults::all());
    all.extend(soak::all());
    all.extend(crash_points::all());
    all.extend(config::all());
    all.extend(routers::all());
    all.extend(networks::all());
    all.extend(wan::all());
    all.extend(power_cut::all());
    all.extend(progressive::all());
    all.extend(space::all());
    all.extend(metrics::all());
    all.extend(doors::all());
    all.extend(failover::all());
    all.extend(waits::all());
    all.extend(culprits::all());
    all.extend(congestion::all());
    all.extend(away::all());
    all.extend(up::all());
    all.extend(fsck::all());
    // Cases that may run beside each other come last, together.
    all.sort_by_key(|case| case.beside == Beside::OwnFileSystems);
    all
}
