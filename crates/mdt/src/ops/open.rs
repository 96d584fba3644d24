//! MDS_OPEN: by name, perhaps creating, or by FID. It comes in two halves so that an open that changes nothing needs no
//! transno: [`plan`] looks and checks, [`carry_out`] creates the file or gives an existing one its objects.

use super::changed::Shown;
use super::create::{NewInode, insert, insert_nameless};
use super::set_layout::check_spec;
use super::{Context, Objects, is_dots};
use crate::access::{self, EXEC, READ, WRITE};
use crate::record::{Inode, inode_flags};
use crate::tables;
use nacre_base::{Errno, Fid};
use nacre_wire::attr::{file_flags, mode};
use nacre_wire::layout::LayoutSpec;
use nacre_wire::mds::Open;
use nacre_wire::mds::open_flags::{
    FASYNC, FMODE_EXEC, KILL_SET_ID, O_ACCMODE, O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL, O_RDWR, O_TMPFILE, O_TRUNC,
    O_WRONLY,
};
use std::ops::Range;

/// The work that an open will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Open this inode as it is.
    Open(Fid, Box<Inode>),
    /// Open this inode after a change: it needs objects, or is truncated to nothing.
    Change(Fid, Box<Inode>),
    /// Create a file in this directory.
    Create(Box<Inode>),
    /// Create a file without a name, as if in this directory.
    CreateNameless(Box<Inode>),
}

/// Finds the inode to be opened and checks permissions. A symbolic link is ELOOP with and without O_NOFOLLOW, because
/// clients follow links.
pub fn plan(cx: &Context<'_>, r: &Open) -> Result<Plan, Errno> {
    if r.flags & O_TMPFILE != 0 {
        let directory = cx.directory(r.parent)?;
        cx.check(r.parent, &directory, WRITE | EXEC)?;
        let writes = matches!(r.flags & O_ACCMODE, O_WRONLY | O_RDWR);
        return if writes { Ok(Plan::CreateNameless(Box::new(directory))) } else { Err(Errno::EINVAL) };
    }
    if r.name.is_empty() {
        return existing(cx, r, r.parent, cx.inode(r.parent)?);
    }
    let directory = cx.directory(r.parent)?;
    if is_dots(&r.name) {
        let fid = if &r.name[..] == b"." { r.parent } else { directory.parent };
        cx.check(r.parent, &directory, EXEC)?;
        return existing(cx, r, fid, cx.inode(fid)?);
    }
    match cx.find(r.parent, &directory, &r.name)? {
        Some(_) if r.flags & O_CREAT != 0 && r.flags & O_EXCL != 0 => Err(Errno::EEXIST),
        Some(entry) => existing(cx, r, entry.fid, cx.named(&entry)?),
        None if r.flags & O_CREAT == 0 => Err(Errno::ENOENT),
        None if r.flags & O_DIRECTORY != 0 => Err(Errno::EINVAL),
        None => {
            cx.check(r.parent, &directory, WRITE)?;
            Ok(Plan::Create(Box::new(directory)))
        }
    }
}

fn existing(cx: &Context<'_>, r: &Open, fid: Fid, inode: Inode) -> Result<Plan, Errno> {
    let writes = matches!(r.flags & O_ACCMODE, O_WRONLY | O_RDWR);
    let truncates = r.flags & O_TRUNC != 0;
    if inode.is_symlink() {
        return Err(Errno::ELOOP);
    }
    if inode.is_dir() && (writes || truncates || r.flags & O_CREAT != 0) {
        return Err(Errno::EISDIR);
    }
    if !inode.is_dir() && r.flags & O_DIRECTORY != 0 {
        return Err(Errno::ENOTDIR);
    }
    cx.check(fid, &inode, wanted(r.flags))?;
    if inode.flags & file_flags::APPEND != 0 && (truncates || writes && r.flags & O_APPEND == 0) {
        return Err(Errno::EPERM);
    }
    let inode = Box::new(inode);
    let needs_objects = inode.is_file() && inode.layout.is_none() && writes_data(r.flags);
    if needs_objects || truncates && inode.is_file() {
        Ok(Plan::Change(fid, inode))
    } else {
        Ok(Plan::Open(fid, inode))
    }
}

/// True if an open with these flags creates a file's objects. An open only for reading does not; nor does one by a
/// program that wants to set the layout first (liblustreapi's O_LOV_DELAY_CREATE).
fn writes_data(flags: u32) -> bool {
    matches!(flags & O_ACCMODE, O_WRONLY | O_RDWR) && flags & FASYNC == 0
}

/// The permissions that an open's flags require.
fn wanted(flags: u32) -> u32 {
    let read = if flags & FMODE_EXEC != 0 { EXEC } else { READ };
    let access = match flags & O_ACCMODE {
        0 => read,
        O_WRONLY => WRITE,
        _ => read | WRITE,
    };
    if flags & O_TRUNC != 0 { access | WRITE } else { access }
}

/// Result of an open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// FID of the open inode.
    pub fid: Fid,
    /// The inode as it is now.
    pub inode: Inode,
    /// True if this request created it.
    pub created: bool,
}

/// Carries out the plan of [`plan`], in the same transaction.
pub fn carry_out(cx: &mut Context<'_>, r: &Open, plan: Plan, objects: &mut dyn Objects) -> Result<Opened, Errno> {
    let is_nameless = matches!(plan, Plan::CreateNameless(_));
    match plan {
        Plan::Open(fid, inode) => Ok(Opened { fid, inode: *inode, created: false }),
        Plan::Change(fid, mut inode) => {
            let before = Shown::of(&inode);
            if writes_data(r.flags) {
                give_objects(cx, fid, &mut inode, objects, &FIRST)?;
            }
            if r.flags & O_TRUNC != 0 {
                truncate(cx, &mut inode, 0, r.flags & KILL_SET_ID != 0);
                inode.ctime = cx.now;
            }
            // Creating objects this late is no change that a program should see.
            let bits = before.bits_to(&inode);
            cx.put_silently(fid, &mut inode, bits)?;
            Ok(Opened { fid, inode: *inode, created: false })
        }
        Plan::Create(mut directory) | Plan::CreateNameless(mut directory) => {
            r.layout.as_ref().map_or(Ok(()), check_spec)?;
            let mut inode = Inode { mode: mode::S_IFREG | r.mode & 0o7777, ..Inode::default() };
            inode.default_layout = r.layout.clone();
            let new = NewInode { parent: r.parent, name: &r.name, fid: r.child, umask: r.umask };
            let mut inode = if is_nameless {
                // With O_EXCL the file may never get a name.
                inode.flags = if r.flags & O_EXCL == 0 { inode_flags::LINKABLE } else { 0 };
                insert_nameless(cx, &new, &directory, inode)?
            } else {
                insert(cx, &new, &mut directory, inode)?
            };
            if r.layout.is_some() || writes_data(r.flags) {
                give_objects(cx, r.child, &mut inode, objects, &FIRST)?;
                tables::put_inode(cx.tx, r.child, &inode)?;
            }
            Ok(Opened { fid: r.child, inode, created: true })
        }
    }
}

/// The range for which a file gets its objects together with its layout: those of the first component.
pub(crate) const FIRST: Range<u64> = 0..1;

/// Gives a file without a layout the one that it should have, and creates objects for all components that hold a part of
/// `range`. Returns whether anything changed. Does not store the inode.
pub(crate) fn give_objects(
    cx: &mut Context<'_>,
    fid: Fid,
    inode: &mut Inode,
    objects: &mut dyn Objects,
    range: &Range<u64>,
) -> Result<bool, Errno> {
    let mut changed = false;
    let mut layout = match inode.layout.take() {
        Some(layout) => layout,
        None => {
            let spec = inode.default_layout.take().unwrap_or_else(LayoutSpec::plain);
            let mut layout = objects.lay_out(&spec)?;
            changed = objects.instantiate(cx.tx, fid, &mut layout, &FIRST)?;
            layout
        }
    };
    changed |= objects.instantiate(cx.tx, fid, &mut layout, range)?;
    inode.layout = Some(layout);
    Ok(changed)
}

/// Effect of a change of size on a file's inode. The client truncates the objects.
pub(crate) fn truncate(cx: &Context<'_>, inode: &mut Inode, size: u64, kill_set_id: bool) {
    access::content_changes(inode, cx.cred, kill_set_id);
    inode.size = size;
    if size == 0 {
        inode.blocks = 0;
    }
    inode.mtime = cx.now;
}
