//! The operations on the namespace, one per file: synchronous functions over a transaction of the device, so that each is
//! atomic and testable without network or clock. They check permissions, change tables, and return the contents of a
//! reply. The caller does the rest: waiting, locks, open handles, creation and destruction of objects.

pub mod ahead;
pub mod changed;
pub mod close;
pub mod create;
pub mod fid2path;
pub mod found;
pub mod getattr;
pub mod link;
pub mod open;
pub mod readpage;
pub mod rename;
pub mod set_layout;
pub mod setattr;
pub mod unlink;
pub mod xattr;

use crate::access::{self, EXEC, WRITE};
use crate::record::{Dirent, Inode, inode_flags};
use crate::tables;
use changed::Changed;
use found::Found;
use nacre_base::{Errno, Fid, Timestamp};
use nacre_osd::Transaction;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{Layout, LayoutSpec};
use nacre_wire::ldlm::inode_bits::{LOOKUP, UPDATE};
use nacre_wire::mds::NAME_MAX;
use std::ops::Range;

/// Most names of one inode.
pub const LINK_MAX: u32 = 65_000;

/// State that an operation works on.
pub struct Context<'a> {
    /// The running transaction. Dropped without finish if the operation fails.
    pub tx: &'a mut dyn Transaction,
    /// Credentials of the caller.
    pub cred: &'a Credentials,
    /// The client's time.
    pub now: Timestamp,
    /// Transno of the operation, which becomes the version of everything it changes; 0 if it only reads.
    pub version: u64,
    /// Returns whether an inode is open.
    pub is_open: &'a dyn Fn(Fid) -> bool,
    /// Changes that the operation has made so far.
    pub changed: Changed,
    /// State that the operation built on.
    pub found: Found,
}

/// Source of objects for new files.
pub trait Objects {
    /// The layout of a new file with the wish `spec`, without objects.
    fn lay_out(&mut self, spec: &LayoutSpec) -> Result<Layout, Errno>;

    /// Creates objects for all components that hold a part of `range` and have none. Returns whether there were such
    /// components. EINPROGRESS if objects must be waited for.
    fn instantiate(
        &mut self,
        tx: &mut dyn Transaction,
        file: Fid,
        layout: &mut Layout,
        range: &Range<u64>,
    ) -> Result<bool, Errno>;
}

impl Context<'_> {
    /// An inode that the caller names by FID; ESTALE if it is gone.
    pub(crate) fn inode(&self, fid: Fid) -> Result<Inode, Errno> {
        tables::inode(self.tx, fid)?.ok_or(Errno::ESTALE)
    }

    /// A directory in which names are looked up or changed; ENOENT if it is gone, because nothing can be in it then.
    pub(crate) fn directory(&self, fid: Fid) -> Result<Inode, Errno> {
        match tables::inode(self.tx, fid)? {
            Some(inode) if !inode.is_dir() => Err(Errno::ENOTDIR),
            Some(inode) if inode.nlink > 0 => Ok(inode),
            _ => Err(Errno::ENOENT),
        }
    }

    /// The inode that an entry names. If it does not exist, the tables are damaged.
    pub(crate) fn named(&self, entry: &Dirent) -> Result<Inode, Errno> {
        tables::inode(self.tx, entry.fid)?.ok_or_else(|| {
            tracing::error!("an entry names {}, which does not exist", entry.fid);
            Errno::EIO
        })
    }

    /// Checks permissions; EACCES if they do not suffice.
    pub(crate) fn check(&self, fid: Fid, inode: &Inode, want: u32) -> Result<(), Errno> {
        access::check(self.tx, fid, inode, self.cred, want)
    }

    /// Looks up an ordinary name, which needs search permission. The operation builds on the result.
    pub(crate) fn find(&self, parent: Fid, directory: &Inode, name: &[u8]) -> Result<Option<Dirent>, Errno> {
        self.check(parent, directory, EXEC)?;
        check_name(name)?;
        let entry = tables::dirent(self.tx, parent, name)?;
        self.found.name(directory, entry.as_ref());
        Ok(entry)
    }

    /// Checks that a new name may be created: search and write permission, and that the name is free.
    pub(crate) fn check_new_name(&self, parent: Fid, directory: &Inode, name: &[u8]) -> Result<(), Errno> {
        if is_dots(name) || self.find(parent, directory, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.check(parent, directory, WRITE)
    }

    /// Stores a directory whose entries changed.
    pub(crate) fn put_changed_directory(&mut self, fid: Fid, directory: &mut Inode) -> Result<(), Errno> {
        directory.mtime = self.now;
        self.changed.add_entries(fid);
        self.put_changed(fid, directory, UPDATE)
    }

    /// Stores an inode with changes that `bits` cover.
    pub(crate) fn put_changed(&mut self, fid: Fid, inode: &mut Inode, bits: u64) -> Result<(), Errno> {
        inode.ctime = self.now;
        self.put_silently(fid, inode, bits)
    }

    /// As [`Context::put_changed`], for a change that leaves ctime alone.
    pub(crate) fn put_silently(&mut self, fid: Fid, inode: &mut Inode, bits: u64) -> Result<(), Errno> {
        inode.version = self.version;
        self.changed.add(fid, bits);
        tables::put_inode(self.tx, fid, inode)
    }

    /// Handles an inode that lost a name, which was removed already. Without names the inode becomes an orphan if it is
    /// open, otherwise it is destroyed. Returns the inode without the name.
    pub(crate) fn drop_name(&mut self, fid: Fid, mut inode: Inode) -> Result<Inode, Errno> {
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink.saturating_sub(1) };
        if inode.nlink > 0 || (self.is_open)(fid) {
            self.put_changed(fid, &mut inode, LOOKUP | UPDATE)?;
            if inode.nlink == 0 {
                tables::put_orphan(self.tx, fid)?;
            }
            return Ok(inode);
        }
        self.changed.add(fid, LOOKUP | UPDATE);
        destroy(self.tx, fid, &inode, self.version)?;
        (inode.ctime, inode.version) = (self.now, self.version);
        Ok(inode)
    }
}

/// Removes an inode without names, and queues its objects for destruction once `transno` is durable.
pub fn destroy(tx: &mut dyn Transaction, fid: Fid, inode: &Inode, transno: u64) -> Result<(), Errno> {
    if inode.flags & inode_flags::EXTERNAL_XATTRS != 0 {
        for name in tables::xattr_names(tx, fid)? {
            tables::delete_xattr(tx, fid, &name)?;
        }
    }
    for (_, _, stripe) in inode.layout.iter().flat_map(Layout::stripes) {
        tables::put_destroy(tx, stripe.ost, transno, stripe.object)?;
    }
    tables::delete_inode(tx, fid)
}

/// Destroys an inode if it is an orphan.
pub fn destroy_orphan(tx: &mut dyn Transaction, fid: Fid, transno: u64) -> Result<(), Errno> {
    if tables::delete_orphan(tx, fid)?
        && let Some(inode) = tables::inode(tx, fid)?
    {
        destroy(tx, fid, &inode, transno)?;
    }
    Ok(())
}

/// True if a name is `.` or `..`, which no operation may create or remove.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Checks that a name is valid.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ENOENT),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
