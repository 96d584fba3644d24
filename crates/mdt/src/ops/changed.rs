//! The changes of an operation, as the bits of inode locks under which clients may have cached the old state. Operations
//! note them while they change the tables, so that they are exact: an operation that fails changes nothing, and takes no
//! lock from anybody.

use crate::record::{Inode, inode_flags};
use nacre_base::Fid;
use nacre_wire::attr::file_flags;
use nacre_wire::ldlm::inode_bits::{LAYOUT, LOOKUP, PERM, UPDATE, XATTR};
use std::ops::Deref;

/// Most inodes of one operation: the directories and the inodes at both ends of a rename.
const INODES_MAX: usize = 4;

/// The inodes that an operation changed, each once, with bits of [`nacre_wire::ldlm::inode_bits`]. Inodes that it created
/// are not included, because no client knows of those.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changed {
    inodes: [(Fid, u64); INODES_MAX],
    len: usize,
    /// True if the inode at this place is a directory whose entries changed.
    is_directory: [bool; INODES_MAX],
}

impl Changed {
    /// Notes that `bits` of an inode changed.
    pub fn add(&mut self, fid: Fid, bits: u64) {
        let place = self.inodes[..self.len].iter().position(|i| i.0 == fid).unwrap_or(self.len);
        // No operation changes more inodes than both ends of a rename have; the stress test of the service relies on
        // that.
        let Some(inode) = self.inodes.get_mut(place) else {
            return tracing::error!("an operation changed more than {INODES_MAX} inodes");
        };
        *inode = (fid, inode.1 | bits);
        self.len = self.len.max(place + 1);
    }

    /// Notes that the entries of a directory changed.
    pub fn add_entries(&mut self, directory: Fid) {
        self.add(directory, UPDATE);
        if let Some(place) = self.iter().position(|i| i.0 == directory) {
            self.is_directory[place] = true;
        }
    }

    /// The directories whose entries changed.
    pub fn directories(&self) -> impl Iterator<Item = Fid> {
        self.iter().zip(&self.is_directory).filter(|(_, is)| **is).map(|(i, _)| i.0)
    }

    /// The changes that `covered` does not have.
    pub fn without(&self, covered: &[(Fid, u64)]) -> Changed {
        let mut rest = Changed::default();
        for (fid, bits) in self.iter() {
            let held = covered.iter().find(|c| c.0 == *fid).map_or(0, |c| c.1);
            if bits & !held != 0 {
                rest.add(*fid, bits & !held);
            }
        }
        rest
    }
}

impl Deref for Changed {
    type Target = [(Fid, u64)];
    fn deref(&self) -> &[(Fid, u64)] {
        &self.inodes[..self.len]
    }
}

/// The state of an inode that bits other than UPDATE protect, for [`Shown::bits_to`].
pub(crate) struct Shown {
    permissions: (u32, u32, u32, bool, u32),
    layout: Option<(u32, usize)>,
    xattrs: usize,
}

impl Shown {
    /// The state of the inode before a change.
    pub(crate) fn of(inode: &Inode) -> Shown {
        let flags = inode.flags & file_flags::ALL;
        let permissions = (inode.mode, inode.uid, inode.gid, inode.has_capability(), flags);
        let layout = inode.layout.as_ref().map(|l| (l.generation, l.stripe_count()));
        Shown { permissions, layout, xattrs: inode.xattrs.len() }
    }

    /// The bits of a change from this state to `inode`.
    pub(crate) fn bits_to(&self, inode: &Inode) -> u64 {
        let new = Shown::of(inode);
        let mut bits = UPDATE;
        if self.permissions != new.permissions {
            // Clients' kernels use the permissions to check lookups. An access control list follows the mode. From mode
            // and capability clients know what a write takes away.
            bits |= PERM | LOOKUP;
            let has_xattrs = new.xattrs > 0 || inode.flags & inode_flags::EXTERNAL_XATTRS != 0;
            bits |= if has_xattrs { XATTR } else { 0 };
        }
        if self.layout != new.layout {
            bits |= LAYOUT;
        }
        if self.xattrs != new.xattrs {
            bits |= XATTR;
        }
        bits
    }
}
