//! MDS_CLOSE: lazy size and access time. The caller closes the handle, and destroys the inode if no client has it open
//! any more.

use super::Context;
use crate::record::Inode;
use nacre_base::{Errno, Timestamp};
use nacre_wire::ldlm::inode_bits::UPDATE;
use nacre_wire::mds::Close;

/// Effect of a close on an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Nothing was changed.
    Unchanged,
    /// New hints were stored.
    Changed,
}

/// True if the close has something to store.
pub fn changes(inode: &Inode, r: &Close) -> bool {
    let size = r.size_blocks.is_some_and(|new| inode.is_file() && new != (inode.size, inode.blocks));
    size || new_atime(inode, r).is_some()
}

/// Stores the hints of a close; they do not change ctime. ESTALE if the inode is gone.
pub fn close(cx: &mut Context<'_>, r: &Close) -> Result<Closed, Errno> {
    let mut inode = cx.inode(r.fid)?;
    if !changes(&inode, r) {
        return Ok(Closed::Unchanged);
    }
    if let Some(hints) = r.size_blocks.filter(|_| inode.is_file()) {
        (inode.size, inode.blocks) = hints;
    }
    inode.atime = new_atime(&inode, r).unwrap_or(inode.atime);
    cx.put_silently(r.fid, &mut inode, UPDATE)?;
    Ok(Closed::Changed)
}

fn new_atime(inode: &Inode, r: &Close) -> Option<Timestamp> {
    r.new_atime(inode.atime, inode.mtime.max(inode.ctime), inode.flags)
}
