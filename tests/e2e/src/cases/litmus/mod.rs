//! Two or three mounts, one truth: what one mount does, the others see at once, as processes on one kernel would. Each case
//! is one question; each file is one topic; `steps` has what they share.
//!
//! Every case must be able to fail: where a mount is asked, it has seen an older answer before, so that one that believes
//! its cache without a right to is caught.

mod advice;
pub(crate) mod append;
mod attributes;
mod data;
mod direct;
mod directories;
mod links;
pub(crate) mod locks;
mod mmap;
mod open_files;
pub(crate) mod permissions;
mod punch;
mod rename;
mod set_id;
mod size;
pub(crate) mod steps;
pub(crate) mod stores;
mod times;

use crate::case::Case;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    let mut all = data::all();
    all.extend(append::all());
    all.extend(size::all());
    all.extend(punch::all());
    all.extend(mmap::all());
    all.extend(stores::all());
    all.extend(direct::all());
    all.extend(open_files::all());
    all.extend(rename::all());
    all.extend(directories::all());
    all.extend(links::all());
    all.extend(attributes::all());
    all.extend(permissions::all());
    all.extend(set_id::all());
    all.extend(times::all());
    all.extend(locks::all());
    all.extend(advice::all());
    // Each takes less than a second: what takes so long waits for something that does not come.
    // One looks at the whole file system's free space; the other finds a directory that is open at its new place, which
    // the kernel refuses with ESTALE while the mount has any other rename between directories (`__d_unalias`).
    const ALONE: [&str; 2] = ["litmus.statfs", "litmus.rename-parent"];
    all.into_iter()
        .map(|case| {
            let shares = !ALONE.contains(&case.name);
            case.limits(90, 300).shares(shares)
        })
        .collect()
}
