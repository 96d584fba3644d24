//! MDS_GETATTR and MDS_GETATTR_NAME: attributes by FID, and lookup.

use super::{Context, is_dots};
use crate::access::{EXEC, READ, WRITE};
use nacre_base::{Errno, Fid};
use nacre_wire::mds::AttrReply;

/// Attributes by FID. Needs no permission: the client got the FID by a lookup that was permitted.
pub fn getattr(cx: &Context<'_>, fid: Fid) -> Result<AttrReply, Errno> {
    Ok(cx.inode(fid)?.attr_reply(fid))
}

/// Attributes by FID, if the caller may do what `access` says: access(2).
pub fn getattr_if_allowed(cx: &Context<'_>, fid: Fid, access: u32) -> Result<AttrReply, Errno> {
    if access != 0 {
        cx.check(fid, &cx.inode(fid)?, access & (READ | WRITE | EXEC))?;
    }
    getattr(cx, fid)
}

/// Looks `name` up in `parent`; `.` and `..` work, and the root is its own parent.
pub fn lookup(cx: &Context<'_>, parent: Fid, name: &[u8]) -> Result<AttrReply, Errno> {
    let directory = cx.directory(parent)?;
    if is_dots(name) {
        cx.check(parent, &directory, EXEC)?;
        let fid = if name == b"." { parent } else { directory.parent };
        return getattr(cx, fid);
    }
    let entry = cx.find(parent, &directory, name)?.ok_or(Errno::ENOENT)?;
    Ok(cx.named(&entry)?.attr_reply(entry.fid))
}
