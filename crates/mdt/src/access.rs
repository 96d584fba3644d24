//! Access checks: mode bits, access control lists, sticky directories, set-id bits, and the superuser's exceptions. Every
//! check is made by the server: clients are not trusted with it.

use crate::acl::{self, Acl};
use crate::record::{Inode, inode_flags};
use crate::tables;
use nacre_base::{Errno, Fid};
use nacre_osd::Transaction;
pub use nacre_wire::attr::may::{EXEC, READ, WRITE};
use nacre_wire::attr::{CAPABILITY, Credentials, file_flags, mode, set_id_lost};

/// Checks that `cred` may do all of `want`; EACCES if not. EPERM for a write to an immutable inode.
pub fn check(tx: &dyn Transaction, fid: Fid, inode: &Inode, cred: &Credentials, want: u32) -> Result<(), Errno> {
    if want & WRITE != 0 && inode.flags & file_flags::IMMUTABLE != 0 {
        return Err(Errno::EPERM);
    }
    if cred.is_root() {
        // CAP_DAC_OVERRIDE allows everything; but a file without execute permission for anybody is no program.
        let ok = want & EXEC == 0 || inode.is_dir() || inode.mode & 0o111 != 0;
        return if ok { Ok(()) } else { Err(Errno::EACCES) };
    }
    let ok = match access_list(tx, fid, inode)? {
        Some(acl) => acl.permits(inode.uid, inode.gid, cred, want),
        None => mode_permits(inode, cred, want),
    };
    if ok { Ok(()) } else { Err(Errno::EACCES) }
}

fn mode_permits(inode: &Inode, cred: &Credentials, want: u32) -> bool {
    let class = match () {
        () if cred.uid == inode.uid => 6,
        () if cred.in_group(inode.gid) => 3,
        () => 0,
    };
    inode.mode >> class & want == want
}

/// The access control list of an inode.
pub fn access_list(tx: &dyn Transaction, fid: Fid, inode: &Inode) -> Result<Option<Acl>, Errno> {
    list(tx, fid, inode, acl::ACCESS)
}

/// The access control list that a directory's new entries inherit.
pub fn default_list(tx: &dyn Transaction, fid: Fid, inode: &Inode) -> Result<Option<Acl>, Errno> {
    list(tx, fid, inode, acl::DEFAULT)
}

fn list(tx: &dyn Transaction, fid: Fid, inode: &Inode, name: &str) -> Result<Option<Acl>, Errno> {
    let bytes = match inode.xattrs.iter().find(|(n, _)| n == name) {
        Some((_, value)) => Some(value.clone()),
        None if inode.flags & inode_flags::EXTERNAL_XATTRS != 0 => tables::xattr(tx, fid, name)?,
        None => None,
    };
    // Only valid lists are ever stored.
    bytes.map_or(Ok(None), |b| Acl::decode(&b).map_err(|_| Errno::EIO))
}

/// Checks that `cred` owns the inode or is the superuser; EPERM if not.
pub fn check_owner(inode: &Inode, cred: &Credentials) -> Result<(), Errno> {
    if cred.is_root() || cred.uid == inode.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks that mode, owners, times, attributes and names of an inode may change; EPERM if it is immutable or append-only,
/// for the superuser too.
pub fn check_changeable(inode: &Inode) -> Result<(), Errno> {
    if inode.flags & file_flags::RESTRICTED == 0 { Ok(()) } else { Err(Errno::EPERM) }
}

/// In a sticky directory only the owner of the file or of the directory may remove the file's name; EPERM for others.
pub fn check_sticky(directory: &Inode, victim: &Inode, cred: &Credentials) -> Result<(), Errno> {
    let sticky = directory.mode & mode::S_ISVTX != 0;
    if !sticky || cred.is_root() || cred.uid == victim.uid || cred.uid == directory.uid {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Removes set-id bits and capabilities after a change of owner by `cred`, so that a program does not run with the new
/// owner's rights. `inode` still has its old owner.
pub fn owner_changes(inode: &mut Inode, cred: &Credentials) {
    if !inode.is_dir() {
        drop_set_id(inode, cred.is_root() || cred.in_group(inode.gid));
        drop_capability(inode);
    }
}

/// Removes set-id bits and capabilities after a change of content. Root is assumed to have CAP_FSETID, and keeps set-id
/// bits, unless `kill_set_id` is set.
pub fn content_changes(inode: &mut Inode, cred: &Credentials, kill_set_id: bool) {
    if inode.is_file() {
        if kill_set_id || !cred.is_root() {
            drop_set_id(inode, cred.in_group(inode.gid));
        }
        drop_capability(inode);
    }
}

/// Removes set-id bits, depending on whether the caller is a member of the inode's group.
pub fn drop_set_id(inode: &mut Inode, is_member: bool) {
    inode.mode &= !set_id_lost(inode.mode, is_member);
}

/// Removes the capability, which is always stored in the inode.
pub fn drop_capability(inode: &mut Inode) {
    inode.xattrs.retain(|(name, _)| name != CAPABILITY);
}
