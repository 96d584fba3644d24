//! MDS_REINT link: another name for a file.

use super::{Context, LINK_MAX};
use crate::record::Dirent;
use crate::tables;
use nacre_base::Errno;
use nacre_wire::ldlm::inode_bits::UPDATE;
use nacre_wire::mds::{AttrReply, ReintLink};

/// Makes a hard link. A file whose last name is gone gets no new one, open or not.
pub fn link(cx: &mut Context<'_>, r: &ReintLink) -> Result<AttrReply, Errno> {
    let mut inode = cx.inode(r.fid)?;
    let mut directory = cx.directory(r.parent)?;
    cx.check_new_name(r.parent, &directory, &r.name)?;
    if inode.is_dir() {
        return Err(Errno::EPERM);
    }
    match inode.nlink {
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
