//! MDS_REINT link: another name for a file.

use super::{Context, LINK_MAX};
use crate::access;
use crate::record::{Dirent, inode_flags};
use crate::tables;
use nacre_base::Errno;
use nacre_wire::ldlm::inode_bits::UPDATE;
use nacre_wire::mds::{AttrReply, ReintLink};

/// Creates a hard link. A file that has lost its last name gets no new one, open or not. A file that never had a name
/// gets its first from a client that has it open (`has_open`).
pub fn link(cx: &mut Context<'_>, r: &ReintLink, has_open: bool) -> Result<AttrReply, Errno> {
    let mut inode = cx.inode(r.fid)?;
    let mut directory = cx.directory(r.parent)?;
    cx.check_new_name(r.parent, &directory, &r.name)?;
    if inode.is_dir() {
        return Err(Errno::EPERM);
    }
    access::check_changeable(&inode)?;
    match inode.nlink {
        0 if has_open && inode.flags & inode_flags::LINKABLE != 0 => {
            tables::delete_orphan(cx.tx, r.fid)?;
            inode.flags &= !inode_flags::LINKABLE;
            inode.nlink = 1;
        }
        0 => return Err(Errno::ENOENT),
        n if n >= LINK_MAX => return Err(Errno::EMLINK),
        n => inode.nlink = n + 1,
    }
    let entry = Dirent { fid: r.fid, file_type: inode.file_type() };
    tables::put_dirent(cx.tx, r.parent, &r.name, &entry)?;
    cx.put_changed(r.fid, &mut inode, UPDATE)?;
    cx.put_changed_directory(r.parent, &mut directory)?;
    Ok(inode.attr_reply(r.fid))
}
