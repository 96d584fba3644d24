//! MDS_GETXATTR and MDS_REINT setxattr: extended attributes. Small ones live in the inode, large ones in a table. The two
//! attributes with POSIX access control lists take effect; see [`crate::acl`].

use super::Context;
use super::changed::Shown;
use crate::access::{self, READ, WRITE};
use crate::acl::{self, Acl};
use crate::record::{Inode, inode_flags};
use crate::tables;
use bytes::{Bytes, BytesMut};
use nacre_base::{Errno, Fid};
use nacre_osd::Transaction;
use nacre_wire::attr::{CAPABILITY, mode};
use nacre_wire::ldlm::inode_bits::{PERM, XATTR};
use nacre_wire::mds::{ReintSetxattr, XATTR_NAME_MAX, XATTR_SIZE_MAX};

/// Fail if the attribute exists.
pub const XATTR_CREATE: u32 = 1;
/// Fail if the attribute does not exist.
pub const XATTR_REPLACE: u32 = 2;
/// Name under which MDS_GETXATTR returns a symbolic link's target.
pub const SYMLINK_TARGET: &str = "trusted.link";
/// Name under which MDS_GETXATTR returns a directory's default layout, as an encoded `LayoutSpec`.
pub const DEFAULT_LAYOUT: &str = "trusted.lov";
/// Linux lists no more names than fit into this many bytes.
const LIST_MAX: usize = 65536;
/// Largest value kept in the inode.
const INLINE_VALUE_MAX: usize = 512;
/// Most bytes of attributes kept in the inode.
const INLINE_TOTAL_MAX: usize = 2048;
/// Longest capability. So capabilities are always in the inode, where a change of owner or content finds them.
const CAPABILITY_MAX: usize = 64;

/// The value of an attribute; ENODATA if there is none.
pub fn get(cx: &Context<'_>, fid: Fid, name: &str) -> Result<Bytes, Errno> {
    let inode = cx.inode(fid)?;
    match name {
        SYMLINK_TARGET if inode.is_symlink() => return Ok(inode.target),
        DEFAULT_LAYOUT if inode.is_dir() => {
            return inode.default_layout.map(|spec| nacre_wire::encode(&spec)).ok_or(Errno::ENODATA);
        }
        SYMLINK_TARGET | DEFAULT_LAYOUT => return Err(Errno::ENODATA),
        _ => {}
    }
    match namespace(name)? {
        Namespace::Trusted if !cx.cred.is_root() => return Err(Errno::ENODATA),
        Namespace::User if !(inode.is_file() || inode.is_dir()) => return Err(Errno::ENODATA),
        Namespace::User => cx.check(fid, &inode, READ)?,
        _ => {}
    }
    value(cx.tx, fid, &inode, name)?.ok_or(Errno::ENODATA)
}

/// The names of all attributes that the caller may know of, each ended by a NUL.
pub fn list(cx: &Context<'_>, fid: Fid) -> Result<Bytes, Errno> {
    let inode = cx.inode(fid)?;
    let mut names = names(cx.tx, fid, &inode)?;
    names.retain(|n| cx.cred.is_root() || !n.starts_with("trusted."));
    let mut out = BytesMut::new();
    for name in names {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\0");
    }
    Ok(out.freeze())
}

/// Sets or removes an attribute.
pub fn set(cx: &mut Context<'_>, r: &ReintSetxattr) -> Result<(), Errno> {
    let mut inode = cx.inode(r.fid)?;
    check_set(cx, r, &inode)?;
    let before = Shown::of(&inode);
    let is_acl = r.name == acl::ACCESS || r.name == acl::DEFAULT;
    if is_acl {
        set_acl(cx, r, &mut inode)?;
    } else {
        check_flags(r, value(cx.tx, r.fid, &inode, &r.name)?.is_some())?;
        store(cx.tx, r.fid, &mut inode, &r.name, r.value.as_deref())?;
    }
    if is_acl || r.name.starts_with("security.") {
        cx.found.inode(&inode);
        inode.vbr_version = cx.version;
    }
    let bits = before.bits_to(&inode) | XATTR | if is_acl { PERM } else { 0 };
    cx.put_changed(r.fid, &mut inode, bits)
}

fn check_set(cx: &Context<'_>, r: &ReintSetxattr, inode: &Inode) -> Result<(), Errno> {
    if r.name.len() > XATTR_NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if r.value.as_ref().is_some_and(|v| v.len() > XATTR_SIZE_MAX) {
        return Err(Errno::E2BIG);
    }
    if r.name.contains('\0') || r.name == CAPABILITY && r.value.as_ref().is_some_and(|v| v.len() > CAPABILITY_MAX) {
        return Err(Errno::EINVAL);
    }
    if r.name == SYMLINK_TARGET || r.name == DEFAULT_LAYOUT {
        return Err(Errno::EOPNOTSUPP);
    }
    access::check_changeable(inode)?;
    match namespace(&r.name)? {
        Namespace::User if !(inode.is_file() || inode.is_dir()) => Err(Errno::EPERM),
        Namespace::User => {
            // Everybody may write to a sticky directory such as /tmp, so only its owner may set its attributes.
            if inode.is_dir() && inode.mode & mode::S_ISVTX != 0 {
                access::check_owner(inode, cx.cred)?;
            }
            cx.check(r.fid, inode, WRITE)
        }
        Namespace::Trusted | Namespace::Security if !cx.cred.is_root() => Err(Errno::EPERM),
        Namespace::Acl if inode.is_symlink() => Err(Errno::EOPNOTSUPP),
        Namespace::Acl => access::check_owner(inode, cx.cred),
        _ => Ok(()),
    }
}

fn check_flags(r: &ReintSetxattr, exists: bool) -> Result<(), Errno> {
    match (r.flags, exists) {
        (f, _) if f & !(XATTR_CREATE | XATTR_REPLACE) != 0 || f == XATTR_CREATE | XATTR_REPLACE => Err(Errno::EINVAL),
        (XATTR_CREATE, true) => Err(Errno::EEXIST),
        (XATTR_REPLACE, false) => Err(Errno::ENODATA),
        (_, false) if r.value.is_none() => Err(Errno::ENODATA),
        _ => Ok(()),
    }
}

/// Applies an access list to the permission bits, and stores it unless it says no more than they do. A list without
/// entries counts as none.
fn set_acl(cx: &mut Context<'_>, r: &ReintSetxattr, inode: &mut Inode) -> Result<(), Errno> {
    let list = r.value.as_ref().map(|v| Acl::decode(v)).transpose()?.flatten();
    if r.name == acl::DEFAULT {
        if !inode.is_dir() {
            return if list.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        return store(cx.tx, r.fid, inode, &r.name, list.map(|l| l.encode()).as_deref());
    }
    if let Some(list) = &list {
        inode.mode = inode.mode & !0o777 | list.mode();
        if !cx.cred.is_root() && !cx.cred.in_group(inode.gid) {
            inode.mode &= !mode::S_ISGID;
        }
    }
    let stored = list.filter(|l| !l.is_mode_only()).map(|l| l.encode());
    store(cx.tx, r.fid, inode, &r.name, stored.as_deref())
}

enum Namespace {
    User,
    Trusted,
    Security,
    Acl,
}

fn namespace(name: &str) -> Result<Namespace, Errno> {
    let (prefix, rest) = name.split_once('.').ok_or(Errno::EOPNOTSUPP)?;
    match prefix {
        "user" | "trusted" | "security" if rest.is_empty() => Err(Errno::EINVAL),
        "user" => Ok(Namespace::User),
        "trusted" => Ok(Namespace::Trusted),
        "security" => Ok(Namespace::Security),
        _ if name == acl::ACCESS || name == acl::DEFAULT => Ok(Namespace::Acl),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn value(tx: &dyn Transaction, fid: Fid, inode: &Inode, name: &str) -> Result<Option<Bytes>, Errno> {
    match inode.xattrs.iter().find(|(n, _)| n == name) {
        Some((_, value)) => Ok(Some(value.clone())),
        None if inode.flags & inode_flags::EXTERNAL_XATTRS != 0 => tables::xattr(tx, fid, name),
        None => Ok(None),
    }
}

fn names(tx: &dyn Transaction, fid: Fid, inode: &Inode) -> Result<Vec<String>, Errno> {
    let mut names: Vec<String> = inode.xattrs.iter().map(|(n, _)| n.clone()).collect();
    if inode.flags & inode_flags::EXTERNAL_XATTRS != 0 {
        names.extend(tables::xattr_names(tx, fid)?);
    }
    names.sort();
    Ok(names)
}

/// Stores or removes an attribute, without any check of permission. Does not store the inode. ENOSPC if the names of all
/// attributes would no longer fit into a list.
pub(crate) fn store(
    tx: &mut dyn Transaction,
    fid: Fid,
    inode: &mut Inode,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), Errno> {
    inode.xattrs.retain(|(n, _)| n != name);
    if inode.flags & inode_flags::EXTERNAL_XATTRS != 0 {
        tables::delete_xattr(tx, fid, name)?;
        if tables::xattr_names(tx, fid)?.is_empty() {
            inode.flags &= !inode_flags::EXTERNAL_XATTRS;
        }
    }
    let Some(value) = value else { return Ok(()) };
    let listed: usize = names(tx, fid, inode)?.iter().map(|n| n.len() + 1).sum();
    if listed + name.len() + 1 > LIST_MAX {
        return Err(Errno::ENOSPC);
    }
    let inline: usize = inode.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum();
    let fits = value.len() <= INLINE_VALUE_MAX && inline + name.len() + value.len() <= INLINE_TOTAL_MAX;
    if fits || name == CAPABILITY {
        inode.xattrs.push((name.to_owned(), Bytes::copy_from_slice(value)));
        inode.xattrs.sort();
    } else {
        inode.flags |= inode_flags::EXTERNAL_XATTRS;
        tables::put_xattr(tx, fid, name, value)?;
    }
    Ok(())
}
