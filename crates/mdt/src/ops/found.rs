//! The state that an operation found and built on, as the numbers that version-based recovery compares. The operation
//! collects them when it first runs, and again when it is replayed: a replay that finds other numbers is undone.
//!
//! | state that an operation builds on | number |
//! |---|---|
//! | a directory in which a name is looked up, created or removed | [`Inode::vbr_version`] |
//! | the inode that a name leads to | a hash of the FID, which no other inode ever has; [`NO_ENTRY`] if there was no such name |
//! | an inode whose permissions, owner or default layout change | [`Inode::vbr_version`] |
//!
//! Everything else commutes, or is set without regard to the former state: other names of the same directory, link
//! counts, times, sizes, the user's extended attributes. So clients that work side by side do not need each other's
//! changes. The objects of a layout are those of the first reply.

use crate::record::{Dirent, Inode};
use nacre_base::hash::fnv_1a_64;
use nacre_wire::header::Versions;
use std::cell::Cell;

/// Stands for a name that did not exist.
const NO_ENTRY: u64 = u64::MAX;

/// Numbers that an operation has found so far.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order found; a rename finds [`Versions::COUNT`] of them.
    versions: Cell<Versions>,
    len: Cell<usize>,
}

impl Found {
    /// Notes an inode whose attributes the operation builds on.
    pub(crate) fn inode(&self, inode: &Inode) {
        self.note(inode.vbr_version);
    }

    /// Notes a name of a directory, and the inode it leads to.
    pub(crate) fn name(&self, directory: &Inode, entry: Option<&Dirent>) {
        self.note(directory.vbr_version);
        self.note(entry.map_or(NO_ENTRY, |e| fnv_1a_64(&e.fid.to_key()).clamp(1, NO_ENTRY - 1)));
    }

    /// All numbers found.
    pub fn pre_versions(&self) -> Versions {
        self.versions.get()
    }

    fn note(&self, version: u64) {
        let (mut versions, len) = (self.versions.get(), self.len.get());
        match versions.0.get_mut(len) {
            Some(place) => *place = version,
            None => return tracing::error!("an operation builds on more than {} things", Versions::COUNT),
        }
        self.versions.set(versions);
        self.len.set(len + 1);
    }
}
