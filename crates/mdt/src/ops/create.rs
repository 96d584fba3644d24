//! Creates inodes: mkdir, mknod, symlink, and the creating half of open.

use super::{Context, check_name};
use crate::access;
use crate::acl;
use crate::lod;
use crate::record::{DIRECTORY_SIZE, Dirent, Inode};
use crate::tables;
use bytes::Bytes;
use nacre_base::{Errno, Fid};
use nacre_wire::attr::{Credentials, mode};
use nacre_wire::layout::LayoutSpec;
use nacre_wire::mds::{AttrReply, ReintCreate, SYMLINK_MAX};

/// Creates a directory, symbolic link, device, socket, FIFO, or a regular file that gets its objects later. `own_index`
/// is this MDT's index; directories on other MDTs are not supported yet.
pub fn create(cx: &mut Context<'_>, r: &ReintCreate, own_index: u32) -> Result<AttrReply, Errno> {
    if r.mdt_index != u32::MAX && r.mdt_index != own_index {
        return Err(Errno::ENODEV);
    }
    let mut directory = cx.directory(r.parent)?;
    cx.check_new_name(r.parent, &directory, &r.name)?;
    let mut mode = r.mode & (mode::S_IFMT | 0o7777);
    match r.mode & mode::S_IFMT {
        mode::S_IFDIR => mode &= !(mode::S_ISUID | mode::S_ISGID),
        mode::S_IFLNK => mode = mode::S_IFLNK | 0o777,
        mode::S_IFCHR | mode::S_IFBLK if !cx.cred.is_root() => return Err(Errno::EPERM),
        mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK | mode::S_IFCHR | mode::S_IFBLK => {}
        _ => return Err(Errno::EINVAL),
    }
    let mut inode = Inode { mode, ..Inode::default() };
    match inode.file_type() {
        mode::S_IFLNK => set_target(&mut inode, &r.target)?,
        mode::S_IFCHR | mode::S_IFBLK => inode.rdev = r.rdev,
        _ => {}
    }
    let new = NewInode { parent: r.parent, name: &r.name, fid: r.child, umask: r.umask };
    let inode = insert(cx, &new, &mut directory, inode)?;
    Ok(inode.attr_reply(r.child))
}

fn set_target(inode: &mut Inode, target: &Bytes) -> Result<(), Errno> {
    match target.len() {
        0 => return Err(Errno::ENOENT),
        n if n > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG),
        n => inode.size = n as u64,
    }
    if target.contains(&0) {
        return Err(Errno::EINVAL);
    }
    inode.target = target.clone();
    Ok(())
}

/// Place of a new inode.
pub(crate) struct NewInode<'a> {
    pub(crate) parent: Fid,
    /// Checked to be free; empty for an inode without a name.
    pub(crate) name: &'a [u8],
    pub(crate) fid: Fid,
    pub(crate) umask: u32,
}

/// Completes a new inode, whose mode is the requested one, with inherited attributes, and adds it to its directory.
pub(crate) fn insert(
    cx: &mut Context<'_>,
    new: &NewInode<'_>,
    directory: &mut Inode,
    inode: Inode,
) -> Result<Inode, Errno> {
    check_name(new.name)?;
    let mut inode = complete(cx, new, directory, inode)?;
    if inode.is_dir() {
        (inode.nlink, inode.parent) = (2, new.parent);
        (inode.size, inode.blocks) = (DIRECTORY_SIZE, DIRECTORY_SIZE / 512);
        directory.nlink += 1;
    } else {
        inode.nlink = 1;
    }
    tables::put_inode(cx.tx, new.fid, &inode)?;
    let entry = Dirent { fid: new.fid, file_type: inode.file_type() };
    tables::put_dirent(cx.tx, new.parent, new.name, &entry)?;
    cx.put_changed_directory(new.parent, directory)?;
    Ok(inode)
}

/// Completes a new inode without a name: an orphan, which is kept while it is open.
pub(crate) fn insert_nameless(
    cx: &mut Context<'_>,
    new: &NewInode<'_>,
    directory: &Inode,
    inode: Inode,
) -> Result<Inode, Errno> {
    let inode = complete(cx, new, directory, inode)?;
    tables::put_inode(cx.tx, new.fid, &inode)?;
    tables::put_orphan(cx.tx, new.fid)?;
    Ok(inode)
}

/// Fills in the attributes that a new inode gets from its creator, its directory and the time.
fn complete(cx: &Context<'_>, new: &NewInode<'_>, directory: &Inode, mut inode: Inode) -> Result<Inode, Errno> {
    check_new_fid(cx, new.fid)?;
    inode.uid = cx.cred.uid;
    inode.projid = directory.projid;
    (inode.gid, inode.mode) = inherit_group(directory, inode.mode, cx.cred);
    inherit_acl(cx, new, directory, &mut inode)?;
    (inode.atime, inode.mtime, inode.ctime, inode.btime) = (cx.now, cx.now, cx.now, cx.now);
    (inode.version, inode.vbr_version) = (cx.version, cx.version);
    if inode.is_dir() || inode.is_file() {
        let inherited = inherited_layout(cx, new.parent, directory, inode.is_dir())?;
        match &mut inode.default_layout {
            Some(asked) => lod::fill_from_default(asked, inherited.as_ref()),
            none => *none = inherited,
        }
    }
    Ok(inode)
}

/// Checks a FID that a client chose from its own sequence. Only a broken client sends one that exists already, or that
/// belongs to nobody, or whose inode number another file could have: file handles lead to files by their inode number.
fn check_new_fid(cx: &Context<'_>, fid: Fid) -> Result<(), Errno> {
    let has_number = Fid::from_inode(fid.inode()) == Some(fid);
    if fid.seq < Fid::SEQ_NORMAL || !has_number || tables::inode(cx.tx, fid)?.is_some() {
        tracing::warn!("a client asked for a new file with FID {fid}, which cannot be");
        return Err(Errno::EPROTO);
    }
    Ok(())
}

/// The new inode's group and mode; a set-group-id directory passes on both.
fn inherit_group(directory: &Inode, mode: u32, cred: &Credentials) -> (u32, u32) {
    if directory.mode & mode::S_ISGID == 0 {
        return (cred.gid, mode);
    }
    let is_dir = mode & mode::S_IFMT == mode::S_IFDIR;
    let mode = match mode {
        m if is_dir => m | mode::S_ISGID,
        // A program must not run with a group that its creator is not in.
        m if m & 0o2010 == 0o2010 && !cred.is_root() && !cred.in_group(directory.gid) => m & !mode::S_ISGID,
        m => m,
    };
    (directory.gid, mode)
}

/// Applies the directory's default access control list, or the umask if there is none.
fn inherit_acl(cx: &Context<'_>, new: &NewInode<'_>, directory: &Inode, inode: &mut Inode) -> Result<(), Errno> {
    if inode.is_symlink() {
        return Ok(());
    }
    let Some(default) = access::default_list(cx.tx, new.parent, directory)? else {
        inode.mode &= !(new.umask & 0o777);
        return Ok(());
    };
    let mut own = default.clone();
    inode.mode = own.inherit(inode.mode);
    if !own.is_mode_only() {
        inode.xattrs.push((acl::ACCESS.to_owned(), own.encode()));
    }
    if inode.is_dir() {
        inode.xattrs.push((acl::DEFAULT.to_owned(), default.encode()));
    }
    inode.xattrs.sort();
    Ok(())
}

/// The default layout of a new entry of `directory`: a directory copies its parent's, unless that is the root, whose
/// default already applies to everything without one of its own; a file gets the nearest.
fn inherited_layout(
    cx: &Context<'_>,
    parent: Fid,
    directory: &Inode,
    for_directory: bool,
) -> Result<Option<LayoutSpec>, Errno> {
    match &directory.default_layout {
        Some(_) if for_directory && parent == Fid::ROOT => Ok(None),
        Some(spec) => Ok(Some(spec.clone())),
        None if for_directory || parent == Fid::ROOT => Ok(None),
        None => Ok(tables::inode(cx.tx, Fid::ROOT)?.and_then(|root| root.default_layout)),
    }
}
