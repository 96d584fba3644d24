//! MDS_REINT rename: moves a name, replaces another, or exchanges two. All rules are Linux's renameat2's.

use super::unlink::check_removable;
use super::{Context, is_dots};
use crate::access::WRITE;
use crate::record::{Dirent, Inode};
use crate::tables;
use nacre_base::{Errno, Fid};
use nacre_wire::ldlm::inode_bits::{LOOKUP, UPDATE};
use nacre_wire::mds::{ReintRename, RenameReply};

/// Fail if the new name exists.
pub const RENAME_NOREPLACE: u32 = 1;
/// Exchange the two names, which must both exist.
pub const RENAME_EXCHANGE: u32 = 2;

/// Deepest nesting of directories: a longer walk means that the tables are damaged.
const DEPTH_MAX: usize = 1 << 20;

/// One end of a rename.
struct End<'a> {
    parent: Fid,
    name: &'a [u8],
    entry: Dirent,
    inode: Inode,
}

/// Renames.
pub fn rename(cx: &mut Context<'_>, r: &ReintRename) -> Result<RenameReply, Errno> {
    // 1. Check the names.
    if r.flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 || r.flags == RENAME_NOREPLACE | RENAME_EXCHANGE {
        return Err(Errno::EINVAL);
    }
    let old_parent = cx.directory(r.old_parent)?;
    let new_parent = cx.directory(r.new_parent)?;
    if is_dots(&r.old_name) {
        return Err(Errno::EBUSY);
    }
    if is_dots(&r.new_name) {
        return Err(if r.flags & RENAME_NOREPLACE != 0 { Errno::EEXIST } else { Errno::EBUSY });
    }
    let old = find_end(cx, r.old_parent, &old_parent, &r.old_name)?.ok_or(Errno::ENOENT)?;
    let new = find_end(cx, r.new_parent, &new_parent, &r.new_name)?;
    let exchange = r.flags & RENAME_EXCHANGE != 0;
    match &new {
        Some(_) if r.flags & RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    // 2. A directory must not become its own descendant.
    check_no_cycle(cx, r, &old, new.as_ref())?;
    if new.as_ref().is_some_and(|n| n.entry.fid == old.entry.fid) {
        return Ok(RenameReply::default());
    }
    // 3. Check permissions on the names.
    check_removable(cx, r.old_parent, &old_parent, &old.inode, old.inode.is_dir())?;
    match &new {
        None => cx.check(r.new_parent, &new_parent, WRITE)?,
        Some(n) => {
            let as_directory = if exchange { n.inode.is_dir() } else { old.inode.is_dir() };
            check_removable(cx, r.new_parent, &new_parent, &n.inode, as_directory)?;
        }
    }
    if r.old_parent != r.new_parent {
        // Moving a directory changes its `..`.
        for end in [Some(&old), new.as_ref().filter(|_| exchange)].into_iter().flatten() {
            if end.inode.is_dir() {
                cx.check(end.entry.fid, &end.inode, WRITE)?;
            }
        }
    }
    // 4. Make the change.
    match new {
        Some(new) if exchange => exchange_names(cx, old, new),
        new => move_name(cx, r, old, new),
    }
}

fn find_end<'a>(cx: &Context<'_>, parent: Fid, directory: &Inode, name: &'a [u8]) -> Result<Option<End<'a>>, Errno> {
    let Some(entry) = cx.find(parent, directory, name)? else { return Ok(None) };
    let inode = cx.named(&entry)?;
    Ok(Some(End { parent, name, entry, inode }))
}

/// EINVAL if the old name is an ancestor of the new one. If the new one is an ancestor of the old one, it is not empty
/// and cannot be exchanged with a descendant.
fn check_no_cycle(cx: &Context<'_>, r: &ReintRename, old: &End<'_>, new: Option<&End<'_>>) -> Result<(), Errno> {
    if r.old_parent == r.new_parent {
        return Ok(());
    }
    if old.inode.is_dir() && is_ancestor(cx, old.entry.fid, r.new_parent)? {
        return Err(Errno::EINVAL);
    }
    match new {
        Some(n) if n.inode.is_dir() && is_ancestor(cx, n.entry.fid, r.old_parent)? => {
            Err(if r.flags & RENAME_EXCHANGE != 0 { Errno::EINVAL } else { Errno::ENOTEMPTY })
        }
        _ => Ok(()),
    }
}

/// True if `ancestor` is `directory` or above it.
fn is_ancestor(cx: &Context<'_>, ancestor: Fid, directory: Fid) -> Result<bool, Errno> {
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == Fid::ROOT {
            return Ok(false);
        }
        at = tables::inode(cx.tx, at)?.ok_or(Errno::EIO)?.parent;
    }
    tracing::error!("{directory} is not below the root");
    Err(Errno::EIO)
}

fn move_name(
    cx: &mut Context<'_>,
    r: &ReintRename,
    mut old: End<'_>,
    new: Option<End<'_>>,
) -> Result<RenameReply, Errno> {
    let mut replaced = None;
    let replaced_directory = new.as_ref().is_some_and(|n| n.inode.is_dir());
    tables::delete_dirent(cx.tx, old.parent, old.name, old.entry.fid)?;
    if let Some(new) = new {
        if new.inode.is_dir() && !tables::is_empty(cx.tx, new.entry.fid)? {
            return Err(Errno::ENOTEMPTY);
        }
        tables::delete_dirent(cx.tx, new.parent, new.name, new.entry.fid)?;
        replaced = Some(cx.drop_name(new.entry.fid, new.inode)?.attr(new.entry.fid));
    }
    tables::put_dirent(cx.tx, r.new_parent, &r.new_name, &old.entry)?;
    let is_dir = old.inode.is_dir();
    if is_dir {
        old.inode.parent = r.new_parent;
    }
    cx.put_changed(old.entry.fid, &mut old.inode, LOOKUP | UPDATE)?;
    let moved = i64::from(is_dir);
    change_directory(cx, r.old_parent, -moved)?;
    change_directory(cx, r.new_parent, moved - i64::from(replaced_directory))?;
    Ok(RenameReply { moved: Some(old.inode.attr(old.entry.fid)), replaced })
}

fn exchange_names<'a>(cx: &mut Context<'_>, mut old: End<'a>, mut new: End<'a>) -> Result<RenameReply, Errno> {
    tables::delete_dirent(cx.tx, old.parent, old.name, old.entry.fid)?;
    tables::delete_dirent(cx.tx, new.parent, new.name, new.entry.fid)?;
    tables::put_dirent(cx.tx, old.parent, old.name, &new.entry)?;
    tables::put_dirent(cx.tx, new.parent, new.name, &old.entry)?;
    let gained = i64::from(new.inode.is_dir()) - i64::from(old.inode.is_dir());
    let (old_parent, new_parent) = (old.parent, new.parent);
    for (end, parent) in [(&mut old, new_parent), (&mut new, old_parent)] {
        if end.inode.is_dir() {
            end.inode.parent = parent;
        }
        cx.put_changed(end.entry.fid, &mut end.inode, LOOKUP | UPDATE)?;
    }
    change_directory(cx, old_parent, gained)?;
    change_directory(cx, new_parent, -gained)?;
    let [moved, replaced] = [old, new].map(|end| Some(end.inode.attr(end.entry.fid)));
    Ok(RenameReply { moved, replaced })
}

/// Updates a directory whose entries changed, and which gained (or lost) `subdirectories`. Reads it again, because both
/// ends of a rename may be the same directory.
fn change_directory(cx: &mut Context<'_>, fid: Fid, subdirectories: i64) -> Result<(), Errno> {
    let mut directory = cx.directory(fid)?;
    directory.nlink = u32::try_from(i64::from(directory.nlink) + subdirectories).map_err(|_| Errno::EMLINK)?;
    cx.put_changed_directory(fid, &mut directory)
}
