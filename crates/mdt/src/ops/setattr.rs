//! MDS_SETATTR: chmod, chown, utimes and the metadata half of truncate.

use super::changed::Shown;
use super::open::{give_objects, truncate};
use super::{Context, Objects};
use crate::access::{self, WRITE};
use crate::acl;
use crate::record::Inode;
use nacre_base::Errno;
use nacre_wire::attr::{SetAttr, file_flags, mode};
use nacre_wire::mds::{AttrReply, ReintSetattr};

const PERMISSIONS: u32 = 0o7777;

/// Sets attributes, all or none. `writes`: the client has the file open for writing. A file without objects gets some
/// when its size is set.
pub fn setattr(
    cx: &mut Context<'_>,
    r: &ReintSetattr,
    writes: bool,
    objects: &mut dyn Objects,
) -> Result<AttrReply, Errno> {
    let mut inode = cx.inode(r.fid)?;
    if r.set == SetAttr::default() {
        return Ok(inode.attr_reply(r.fid));
    }
    let before = Shown::of(&inode);
    check_owners(cx, &inode, &r.set)?;
    check_mode(cx, r, &inode, writes)?;
    check_times(cx, r, &inode, writes)?;
    check_size(cx, r, &inode, writes)?;
    check_flags(cx, &inode, &r.set)?;
    if r.set.kill_set_id || r.set.kill_capability {
        check_kill(cx, r, &inode, writes)?;
    }

    if let Some(size) = r.set.size.filter(|size| *size > 0) {
        // The object with the last byte determines how long the file is.
        give_objects(cx, r.fid, &mut inode, objects, &(size - 1..size))?;
    }
    apply_size_and_owners(cx, &mut inode, &r.set);
    let killed = kill(cx, &mut inode, &r.set);
    if !killed && is_only_kill(&r.set) {
        return Ok(inode.attr_reply(r.fid));
    }
    if let Some(new) = r.set.mode {
        chmod(cx, r, &mut inode, new)?;
    }
    inode.projid = r.set.projid.unwrap_or(inode.projid);
    if let Some(flags) = r.set.flags {
        inode.flags = inode.flags & !file_flags::ALL | flags;
    }
    inode.atime = r.set.atime.unwrap_or(inode.atime);
    inode.mtime = r.set.mtime.unwrap_or(inode.mtime);
    let changes_owners = r.set.uid.is_some() || r.set.gid.is_some() || r.set.projid.is_some();
    if killed || changes_owners || r.set.mode.is_some() || r.set.flags.is_some() {
        // Times and sizes are set regardless of their former values; these attributes together decide on permissions.
        cx.found.inode(&inode);
        inode.vbr_version = cx.version;
    }
    let bits = before.bits_to(&inode);
    cx.put_changed(r.fid, &mut inode, bits)?;
    Ok(inode.attr_reply(r.fid))
}

/// Checks the flags of chattr(1), and what existing flags forbid. Of an append-only inode's times only explicit ones are
/// forbidden.
fn check_flags(cx: &Context<'_>, inode: &Inode, set: &SetAttr) -> Result<(), Errno> {
    if let Some(flags) = set.flags {
        if flags & !file_flags::ALL != 0 || !(inode.is_file() || inode.is_dir()) {
            return Err(Errno::EOPNOTSUPP);
        }
        access::check_owner(inode, cx.cred)?;
        // A squashed root has no privileges.
        if (flags ^ inode.flags) & file_flags::RESTRICTED != 0 && !cx.cred.is_root() {
            return Err(Errno::EPERM);
        }
    }
    let chosen_times = (set.atime.is_some() || set.mtime.is_some()) && !set.times_are_now;
    let owners = set.uid.is_some() || set.gid.is_some() || set.projid.is_some();
    if set.mode.is_some() || owners || set.size.is_some() || chosen_times {
        access::check_changeable(inode)?;
    }
    let times = set.atime.is_some() || set.mtime.is_some();
    if times && inode.flags & file_flags::IMMUTABLE != 0 { Err(Errno::EPERM) } else { Ok(()) }
}

/// Only the superuser gives files away; an owner may choose among his own groups.
fn check_owners(cx: &Context<'_>, inode: &Inode, set: &SetAttr) -> Result<(), Errno> {
    let owns = cx.cred.uid == inode.uid;
    let uid_ok = set.uid.is_none_or(|uid| owns && uid == inode.uid);
    let gid_ok = set.gid.is_none_or(|gid| owns && (gid == inode.gid || cx.cred.in_group(gid)));
    if cx.cred.is_root() || uid_ok && gid_ok { Ok(()) } else { Err(Errno::EPERM) }
}

fn check_mode(cx: &Context<'_>, r: &ReintSetattr, inode: &Inode, writes: bool) -> Result<(), Errno> {
    if r.set.projid.is_some() {
        access::check_owner(inode, cx.cred)?;
    }
    let Some(new) = r.set.mode.map(|m| m & PERMISSIONS) else { return Ok(()) };
    if inode.is_symlink() {
        return Err(Errno::EOPNOTSUPP);
    }
    // A write by another user removes the set-id bits; the client's kernel requests that as a change of mode.
    let gone = (inode.mode & PERMISSIONS) ^ new;
    let only_drops = gone & !(mode::S_ISUID | mode::S_ISGID) == 0 && new & gone == 0;
    if only_drops && inode.is_file() && (writes || cx.check(r.fid, inode, WRITE).is_ok()) {
        return Ok(());
    }
    access::check_owner(inode, cx.cred)
}

fn check_times(cx: &Context<'_>, r: &ReintSetattr, inode: &Inode, writes: bool) -> Result<(), Errno> {
    if r.set.atime.is_none() && r.set.mtime.is_none() || access::check_owner(inode, cx.cred).is_ok() {
        return Ok(());
    }
    match r.set.times_are_now {
        true if writes => Ok(()),
        true => cx.check(r.fid, inode, WRITE),
        // Explicit times: those that a client sends along with a truncation or write are marked as now.
        false => Err(Errno::EPERM),
    }
}

fn check_size(cx: &Context<'_>, r: &ReintSetattr, inode: &Inode, writes: bool) -> Result<(), Errno> {
    let Some(size) = r.set.size else { return Ok(()) };
    if inode.is_dir() {
        return Err(Errno::EISDIR);
    }
    if !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !writes {
        cx.check(r.fid, inode, WRITE)?;
    }
    if size > i64::MAX as u64 { Err(Errno::EFBIG) } else { Ok(()) }
}

/// A client asks for this before a write, so a caller that may write may also clear set-id bits and capabilities.
fn check_kill(cx: &Context<'_>, r: &ReintSetattr, inode: &Inode, writes: bool) -> Result<(), Errno> {
    let kills = kill(cx, &mut inode.clone(), &r.set);
    if !kills || writes || access::check_owner(inode, cx.cred).is_ok() || cx.check(r.fid, inode, WRITE).is_ok() {
        return Ok(());
    }
    Err(Errno::EPERM)
}

/// Removes set-id bits and capabilities as `set` says. Returns whether there were any.
fn kill(cx: &Context<'_>, inode: &mut Inode, set: &SetAttr) -> bool {
    let before = (inode.mode, inode.has_capability());
    if set.kill_set_id && !inode.is_dir() {
        access::drop_set_id(inode, cx.cred.in_group(inode.gid));
    }
    if set.kill_capability {
        access::drop_capability(inode);
    }
    before != (inode.mode, inode.has_capability())
}

fn is_only_kill(set: &SetAttr) -> bool {
    SetAttr { kill_set_id: false, kill_capability: false, ..set.clone() } == SetAttr::default()
}

fn apply_size_and_owners(cx: &Context<'_>, inode: &mut Inode, set: &SetAttr) {
    if let Some(size) = set.size {
        truncate(cx, inode, size, set.kill_set_id);
    }
    if set.uid.is_some() || set.gid.is_some() {
        access::owner_changes(inode, cx.cred);
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
    }
}

/// Sets the permission bits, and adapts the access control list.
fn chmod(cx: &mut Context<'_>, r: &ReintSetattr, inode: &mut Inode, new: u32) -> Result<(), Errno> {
    let mut new = new & PERMISSIONS;
    if !cx.cred.is_root() && !cx.cred.in_group(inode.gid) {
        new &= !mode::S_ISGID;
    }
    inode.mode = inode.mode & mode::S_IFMT | new;
    if let Some(mut list) = access::access_list(cx.tx, r.fid, inode)? {
        list.chmod(new);
        super::xattr::store(cx.tx, r.fid, inode, acl::ACCESS, Some(&list.encode()))?;
    }
    Ok(())
}
