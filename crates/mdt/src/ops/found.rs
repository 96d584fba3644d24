//! What an operation found and built on, as the numbers that version-based recovery compares. Made while the operation
//! looks, the first time and again when it is replayed: a replay that finds another ground is not kept.
//!
//! | what it is about | number |
//! |---|---|
//! | a directory in which a name is looked up, made or taken away | [`Inode::vbr_version`] |
//! | what the name led to | a hash of the FID, which no other inode ever has; [`NO_ENTRY`] if there was no such name |
//! | an inode whose permissions, owner or default layout change | [`Inode::vbr_version`] |
//!
//! All else commutes, or is set without regard to what was there before: other names of the same directory, link counts,
//! times, sizes, the user's extended attributes. So clients that work side by side do not need each other's changes, and a
//! layout's objects are those of the first answer.

use crate::record::{Dirent, Inode};
use nacre_base::hash::fnv_1a_64;
use nacre_wire::header::Versions;
use std::cell::Cell;

/// Stands for a name that was not there.
const NO_ENTRY: u64 = u64::MAX;

/// What an operation found so far.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order found; [`Versions::COUNT`] is what a rename finds.
    versions: Cell<Versions>,
    len: Cell<usize>,
}

impl Found {
    /// An inode whose attributes count.
    pub(crate) fn inode(&self, inode: &Inode) {
        self.note(inode.vbr_version);
    }

    /// A name of a directory, and what it leads to.
    pub(crate) fn name(&self, directory: &Inode, entry: Option<&Dirent>) {
        self.note(directory.vbr_version);
        self.note(entry.map_or(NO_ENTRY, |e| fnv_1a_64(&e.fid.to_key()).clamp(1, NO_ENTRY - 1)));
    }

    /// All of it.
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
