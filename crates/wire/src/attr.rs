//! Attributes of inodes and objects, and who asks.

use nacre_base::{Fid, Timestamp};

/// File type bits of a mode, as POSIX numbers them.
pub mod mode {
    /// Mask of the type.
    pub const S_IFMT: u32 = 0o170000;
    /// Socket.
    pub const S_IFSOCK: u32 = 0o140000;
    /// Symbolic link.
    pub const S_IFLNK: u32 = 0o120000;
    /// Regular file.
    pub const S_IFREG: u32 = 0o100000;
    /// Block device.
    pub const S_IFBLK: u32 = 0o060000;
    /// Directory.
    pub const S_IFDIR: u32 = 0o040000;
    /// Character device.
    pub const S_IFCHR: u32 = 0o020000;
    /// FIFO.
    pub const S_IFIFO: u32 = 0o010000;
    /// Set user id on execution.
    pub const S_ISUID: u32 = 0o4000;
    /// Set group id on execution; on a directory: inherit the group.
    pub const S_ISGID: u32 = 0o2000;
    /// On a directory: only owners may delete.
    pub const S_ISVTX: u32 = 0o1000;
}

/// What a caller may do to a file, as access(2) numbers it.
pub mod may {
    /// Read a file, or list a directory.
    pub const READ: u32 = 4;
    /// Write to a file, or change names in a directory.
    pub const WRITE: u32 = 2;
    /// Execute a file, or look up names in a directory.
    pub const EXEC: u32 = 1;
}

/// Flags of files and directories that chattr(1) sets, as Linux numbers them (`FS_..._FL`).
pub mod file_flags {
    /// Nothing of it may change, nor its names.
    pub const IMMUTABLE: u32 = 0x10;
    /// A file is only written to at its end; a directory's names are only added. It keeps its own names.
    pub const APPEND: u32 = 0x20;
    /// Programs that make backups are asked to leave it out.
    pub const NODUMP: u32 = 0x40;
    /// Reading does not change its access time.
    pub const NOATIME: u32 = 0x80;
    /// Those that need CAP_LINUX_IMMUTABLE to change.
    pub const RESTRICTED: u32 = IMMUTABLE | APPEND;
    /// All that there are.
    pub const ALL: u32 = RESTRICTED | NODUMP | NOATIME;
}

message! {
    MESSAGES;
    /// Attributes as `stat` shows them. For a regular file with objects, size, blocks and mtime of the MDT are only
    /// hints: the truth is at the OSTs.
    pub struct Attr {
        /// Which file.
        pub fid: Fid,
        /// Type and permission bits.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Project.
        pub projid: u32,
        /// Device number of a device file, as `makedev` packs it.
        pub rdev: u64,
        /// Size in bytes.
        pub size: u64,
        /// Blocks of 512 bytes.
        pub blocks: u64,
        /// Last access.
        pub atime: Timestamp,
        /// Last change of data.
        pub mtime: Timestamp,
        /// Last change of attributes or data.
        pub ctime: Timestamp,
        /// Creation.
        pub btime: Timestamp,
        /// Transno of the last change: which of two answers about the inode is newer. Version-based recovery has a number of its
        /// own, which clients see in replies only (`RpcHeader::pre_versions`).
        pub version: u64,
        /// True if the file has a [`CAPABILITY`], so that a client knows before each write whether there is one to take away.
        pub has_capability: bool,
        /// True if it has no extended attributes at all, so that a client need not ask for each: `ls -l` wants two of each file.
        pub has_no_xattrs: bool,
        /// Bits of [`file_flags`].
        pub flags: u32,
    }

    /// Attributes of an OST object. All zero for an object that was never written.
    pub struct ObjectAttr {
        /// Size in bytes.
        pub size: u64,
        /// Blocks of 512 bytes.
        pub blocks: u64,
        /// Last access.
        pub atime: Timestamp,
        /// Last write, by the writer's clock.
        pub mtime: Timestamp,
        /// Last write or attribute change, by the writer's clock; decides whether `mtime` or the MDT's counts.
        pub ctime: Timestamp,
        /// Transno of the last change.
        pub version: u64,
    }

    /// Attributes to set; `None` leaves one as it is.
    pub struct SetAttr {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Project.
        pub projid: Option<u32>,
        /// Size: truncates.
        pub size: Option<u64>,
        /// Access time.
        pub atime: Option<Timestamp>,
        /// Modification time.
        pub mtime: Option<Timestamp>,
        /// Whether the times are "now" (needs only write permission), not chosen values (needs ownership).
        pub times_are_now: bool,
        /// Takes set-id bits away, as far as [`set_id_lost`] says; the content changes, and who changes it has not CAP_FSETID.
        /// With `size` that is so for all but root in any case.
        pub kill_set_id: bool,
        /// Takes the [`CAPABILITY`] away; the content changes. With `size` that is so in any case.
        pub kill_capability: bool,
        /// Bits of [`file_flags`], all of them.
        pub flags: Option<u32>,
    }

    /// Who asks. Permissions are checked by the server.
    pub struct Credentials {
        /// Effective (file system) user id.
        pub uid: u32,
        /// Effective (file system) group id.
        pub gid: u32,
        /// Supplementary groups; at most 65,536.
        pub groups: Vec<u32>,
    }

    /// Space and inodes, as `statfs` shows them.
    pub struct StatFs {
        /// Unit of the block counts, in bytes.
        pub block_size: u32,
        /// All blocks.
        pub blocks: u64,
        /// Free blocks.
        pub blocks_free: u64,
        /// Blocks free for ordinary users.
        pub blocks_available: u64,
        /// All inodes or objects.
        pub files: u64,
        /// Free inodes or objects.
        pub files_free: u64,
        /// Longest name.
        pub name_max: u32,
        /// State bits of [`statfs_state`].
        pub state: u32,
        /// Identifies the file system below the target: targets with the same value share its space. 0 if unknown.
        pub disk: u64,
    }
}

/// The extended attribute that gives a program rights of root's, whoever runs it.
pub const CAPABILITY: &str = "security.capability";

/// The set-id bits that a regular file loses when somebody who has not CAP_FSETID changes its content, by ext4's rules.
/// `is_member`: the file's group is one of theirs. Set-group-ID of a file that its group may not run makes no program, and
/// stays if a member writes.
pub fn set_id_lost(mode: u32, is_member: bool) -> u32 {
    let set_gid = if mode & 0o010 != 0 || !is_member { mode::S_ISGID } else { 0 };
    mode & (mode::S_ISUID | set_gid)
}

/// Bits of [`StatFs::state`], which `lfs df` prints as letters.
pub mod statfs_state {
    /// D: rebuild of the storage is going on.
    pub const DEGRADED: u32 = 0x1;
    /// R: read only.
    pub const READ_ONLY: u32 = 0x2;
    /// N: no new objects.
    pub const NO_CREATE: u32 = 0x4;
    /// S: out of space.
    pub const OUT_OF_SPACE: u32 = 0x10;
    /// I: out of inodes.
    pub const OUT_OF_INODES: u32 = 0x20;
}

impl Attr {
    /// The file type bits.
    pub fn file_type(&self) -> u32 {
        self.mode & mode::S_IFMT
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == mode::S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == mode::S_IFREG
    }

    /// Whether it is a regular file that a write may take something from: set-id bits or a capability.
    pub fn is_privileged(&self) -> bool {
        self.is_file() && (self.mode & (mode::S_ISUID | mode::S_ISGID) != 0 || self.has_capability)
    }

    /// Whether a write of at least one byte takes something from the file: the capability whoever writes, set-id bits if
    /// the writer, whose groups are `cred`'s, has not CAP_FSETID.
    pub fn is_changed_by_write(&self, cred: &Credentials, kills_set_id: bool) -> bool {
        let set_id = if kills_set_id { set_id_lost(self.mode, cred.in_group(self.gid)) } else { 0 };
        self.is_file() && (set_id != 0 || self.has_capability)
    }
}

impl ObjectAttr {
    /// Adds size and blocks of bytes that have not reached the object's server yet: they only make it larger.
    pub fn add_unwritten(&mut self, unwritten: &ObjectAttr) {
        self.size = self.size.max(unwritten.size);
        self.blocks = self.blocks.max(unwritten.blocks);
    }
}

impl Credentials {
    /// The superuser, who may do everything.
    pub fn root() -> Credentials {
        Credentials::default()
    }

    /// Whether the user is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_write_takes_away_is_what_ext4_takes() {
        let table = [
            (0o6777, true, 0o6000),
            (0o6777, false, 0o6000),
            (0o2767, true, 0),
            (0o2767, false, 0o2000),
            (0o4644, true, 0o4000),
            (0o1777, false, 0),
        ];
        for (mode, is_member, lost) in table {
            assert_eq!(set_id_lost(mode, is_member), lost, "{mode:o} {is_member}");
        }
        let attr = |mode, has_capability| Attr { mode, gid: 7, has_capability, ..Attr::default() };
        let (user, program) = (Credentials { uid: 5, gid: 5, groups: vec![] }, mode::S_IFREG | 0o4755);
        assert!(attr(program, false).is_changed_by_write(&user, true));
        assert!(!attr(program, false).is_changed_by_write(&user, false), "CAP_FSETID");
        assert!(
            attr(program, true).is_changed_by_write(&Credentials::root(), false),
            "capabilities go at root's write, too"
        );
        assert!(!attr(mode::S_IFREG | 0o755, false).is_changed_by_write(&user, true));
        assert!(!attr(mode::S_IFDIR | 0o6777, false).is_changed_by_write(&user, true));
    }
}
