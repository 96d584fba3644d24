//! MDS_REINT unlink: unlink and rmdir.

use super::{Context, is_dots};
use crate::access::{self, WRITE};
use crate::record::Inode;
use crate::tables;
use nacre_base::{Errno, Fid};
use nacre_wire::attr::file_flags;
use nacre_wire::mds::{AttrReply, ReintUnlink};

/// Removes a name. Returns the inode's attributes without it, and its layout.
pub fn unlink(cx: &mut Context<'_>, r: &ReintUnlink) -> Result<AttrReply, Errno> {
    let mut directory = cx.directory(r.parent)?;
    if is_dots(&r.name) {
        return Err(match (r.directory, r.name.len()) {
            (false, _) => Errno::EISDIR,
            (true, 1) => Errno::EINVAL,
            (true, _) => Errno::ENOTEMPTY,
        });
    }
    let entry = cx.find(r.parent, &directory, &r.name)?.ok_or(Errno::ENOENT)?;
    let victim = cx.named(&entry)?;
    check_removable(cx, r.parent, &directory, &victim, r.directory)?;
    if victim.is_dir() {
        if !tables::is_empty(cx.tx, entry.fid)? {
            return Err(Errno::ENOTEMPTY);
        }
        directory.nlink -= 1;
    }
    tables::delete_dirent(cx.tx, r.parent, &r.name, entry.fid)?;
    cx.put_changed_directory(r.parent, &mut directory)?;
    Ok(cx.drop_name(entry.fid, victim)?.attr_reply(entry.fid))
}

/// Checks that a name may be taken from `victim`: write permission in its directory, the sticky bit, and that it is a
/// directory if and only if one is meant.
pub(crate) fn check_removable(
    cx: &Context<'_>,
    parent: Fid,
    directory: &Inode,
    victim: &Inode,
    as_directory: bool,
) -> Result<(), Errno> {
    cx.check(parent, directory, WRITE)?;
    if directory.flags & file_flags::APPEND != 0 {
        return Err(Errno::EPERM);
    }
    access::check_sticky(directory, victim, cx.cred)?;
    access::check_changeable(victim)?;
    match (as_directory, victim.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        _ => Ok(()),
    }
}
