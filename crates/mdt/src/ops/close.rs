//! MDS_CLOSE: lazy size and access time. Open handles are the caller's, and so is destroying what nobody has open any
//! more.

use super::Context;
use crate::record::Inode;
use nacre_base::Errno;
use nacre_wire::attr::file_flags;
use nacre_wire::ldlm::inode_bits::UPDATE;
use nacre_wire::mds::Close;

/// A day: how old an access time may become though nothing changed (as relatime has it).
const ATIME_MAX_AGE_SECS: i64 = 24 * 60 * 60;

/// What a close does to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Nothing.
    Unchanged,
    /// New hints were stored.
    Changed,
}

/// Whether the close has something to store.
pub fn changes(inode: &Inode, r: &Close) -> bool {
    let size = r.size_blocks.is_some_and(|new| inode.is_file() && new != (inode.size, inode.blocks));
    size || r.atime.is_some_and(|atime| wants_atime(inode, atime, r.atime_is_strict))
}

/// Stores the hints of a close; neither is a change that ctime tells of. ESTALE if the inode is gone.
pub fn close(cx: &mut Context<'_>, r: &Close) -> Result<Closed, Errno> {
    let mut inode = cx.inode(r.fid)?;
    if !changes(&inode, r) {
        return Ok(Closed::Unchanged);
    }
    if let Some(hints) = r.size_blocks.filter(|_| inode.is_file()) {
        (inode.size, inode.blocks) = hints;
    }
    if let Some(atime) = r.atime.filter(|a| wants_atime(&inode, *a, r.atime_is_strict)) {
        inode.atime = atime;
    }
    cx.put_silently(r.fid, &mut inode, UPDATE)?;
    Ok(Closed::Changed)
}

/// relatime: an access is stored if the file changed since the last one, or that is a day ago. strictatime: always.
fn wants_atime(inode: &Inode, atime: nacre_base::Timestamp, is_strict: bool) -> bool {
    let old = inode.atime;
    if inode.flags & file_flags::NOATIME != 0 {
        return false;
    }
    atime > old
        && (is_strict || old <= inode.mtime || old <= inode.ctime || atime.secs - old.secs >= ATIME_MAX_AGE_SECS)
}
