//! Requests of programs beyond POSIX: advice and group locks, as ioctls on a file of the mount.
//!
//! Lustre's own ioctl numbers cannot be served through FUSE: the kernel copies what an ioctl's number describes, and
//! Lustre passes a group's number in place of a pointer, and lists of advice behind a fixed header. So these are Nacre's
//! own numbers, each with one struct of numbers in the machine's byte order. `lfs ladvise` is the tool for people.
//!
//! ```c
//! struct nacre_ladvise { uint32_t advice, flag; uint64_t start, end; };   /* end: the first byte after, ~0 for all */
//! #define NACRE_IOC_LADVISE      _IOW('N', 1, struct nacre_ladvise)
//! #define NACRE_IOC_GROUP_LOCK   _IOW('N', 2, uint64_t)
//! #define NACRE_IOC_GROUP_UNLOCK _IOW('N', 3, uint64_t)
//! #define NACRE_IOC_SYNC         _IO('N', 4)   /* on any file or directory: syncfs(2) of its mount */
//! ```
//!
//! `advice` is numbered as in liblustreapi: 1 willread, 2 dontneed, 3 locknoexpand (flag 1: unset), 4 lockahead (flag 1:
//! for writing). For lockahead the result of ioctl(2) is 0 if the request was sent, 1 if another cached lock will do, 2
//! if this very lock is cached; for other advice it is 0.

use nacre_base::Errno;
use nacre_client::Advice;
use nacre_wire::attr::file_flags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Gives advice: [`advice_to_bytes`].
pub const IOC_LADVISE: u32 = number(1, LADVISE_BYTES);
/// Takes the group lock whose number, a u64 other than 0, the argument points to. Waits unless the file is open with
/// O_NONBLOCK (EAGAIN if another group has the file).
pub const IOC_GROUP_LOCK: u32 = number(2, size_of::<u64>());
/// Gives the group lock back.
pub const IOC_GROUP_UNLOCK: u32 = number(3, size_of::<u64>());
/// Makes durable everything that the file's mount changed, like syncfs(2) where the kernel passes that on.
pub const IOC_SYNC: u32 = (b'N' as u32) << 8 | 4;
/// `FS_IOC_GETFLAGS`, sent by lsattr(1).
pub const IOC_GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`, sent by chattr(1).
pub const IOC_SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: flags and project.
pub const IOC_GET_XFLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub const IOC_SET_XFLAGS: u32 = 0x401c_5820;

/// Each flag of a file in [`IOC_SET_FLAGS`] and in [`IOC_SET_XFLAGS`].
const FLAGS: [(u32, u32); 4] =
    [(file_flags::IMMUTABLE, 0x8), (file_flags::APPEND, 0x10), (file_flags::NOATIME, 0x40), (file_flags::NODUMP, 0x80)];

/// Linux `struct fsxattr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Default)]
#[repr(C)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// The answer to [`IOC_GET_FLAGS`].
pub fn flags_to_bytes(flags: u32) -> [u8; 8] {
    u64::from(flags).to_ne_bytes()
}

/// The answer to [`IOC_GET_XFLAGS`].
pub fn xflags_to_bytes(flags: u32, project: u32) -> [u8; size_of::<FsXattr>()] {
    let set = FLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    zerocopy::transmute!(FsXattr { flags: set.map(|(_, x)| x).sum(), project, ..FsXattr::default() })
}

/// Flags and project that [`IOC_SET_XFLAGS`] sets. EOPNOTSUPP for anything that files here cannot have.
fn xflags_from_bytes(bytes: &[u8]) -> Result<FileControl, Errno> {
    let asked = FsXattr::read_from_bytes(bytes).map_err(|_| Errno::EINVAL)?;
    let known: u32 = FLAGS.iter().map(|(_, x)| x).sum();
    if asked.flags & !known != 0 || asked.extent_size != 0 || asked.cow_extent_size != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = FLAGS.iter().filter(|(_, x)| asked.flags & x != 0).map(|(flag, _)| flag).sum();
    Ok(FileControl::SetXflags { flags, project: asked.project })
}

/// Bytes of [`IOC_LADVISE`]'s struct.
pub const LADVISE_BYTES: usize = size_of::<Ladvise>();

const fn number(n: u32, size: usize) -> u32 {
    // _IOW('N', n, size) as in Linux: a direction, a size, a letter and a number.
    1 << 30 | (size as u32) << 16 | (b'N' as u32) << 8 | n
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Ladvise {
    advice: u32,
    flag: u32,
    start: u64,
    end: u64,
}

/// A request by one of these ioctls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileControl {
    /// [`IOC_LADVISE`].
    Advise(Advice),
    /// [`IOC_GROUP_LOCK`] with the group.
    GroupLock(u64),
    /// [`IOC_GROUP_UNLOCK`] with the group.
    GroupUnlock(u64),
    /// [`IOC_SYNC`].
    Sync,
    /// [`IOC_GET_FLAGS`].
    GetFlags,
    /// [`IOC_SET_FLAGS`] with bits of [`file_flags`], or others.
    SetFlags(u32),
    /// [`IOC_GET_XFLAGS`].
    GetXflags,
    /// [`IOC_SET_XFLAGS`].
    SetXflags {
        /// Bits of [`file_flags`].
        flags: u32,
        /// The project.
        project: u32,
    },
}

impl FileControl {
    /// Parses an ioctl's number and the bytes that its argument points to. ENOTTY: none of these; EINVAL: it makes no
    /// sense.
    pub fn parse(number: u32, argument: &[u8]) -> Result<FileControl, Errno> {
        let group = || u64::read_from_bytes(argument).map_err(|_| Errno::EINVAL);
        match number {
            IOC_LADVISE => advice_from_bytes(argument).map(FileControl::Advise),
            IOC_GROUP_LOCK => group().map(FileControl::GroupLock),
            IOC_GROUP_UNLOCK => group().map(FileControl::GroupUnlock),
            IOC_SYNC => Ok(FileControl::Sync),
            IOC_GET_FLAGS => Ok(FileControl::GetFlags),
            // The kernel sends an int, in spite of the number.
            IOC_SET_FLAGS => u32::read_from_prefix(argument)
                .map(|(flags, _)| FileControl::SetFlags(flags))
                .map_err(|_| Errno::EINVAL),
            IOC_GET_XFLAGS => Ok(FileControl::GetXflags),
            IOC_SET_XFLAGS => xflags_from_bytes(argument),
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// Advice as [`IOC_LADVISE`]'s struct.
pub fn advice_to_bytes(advice: &Advice) -> [u8; LADVISE_BYTES] {
    let (advice, flag, range) = match advice {
        Advice::WillRead(range) => (1, 0, range),
        Advice::DontNeed(range) => (2, 0, range),
        Advice::LockNoExpand(on) => (3, u32::from(!on), &(0..u64::MAX)),
        Advice::LockAhead { range, write } => (4, u32::from(*write), range),
    };
    zerocopy::transmute!(Ladvise { advice, flag, start: range.start, end: range.end })
}

/// The advice in [`IOC_LADVISE`]'s struct; EINVAL if it makes no sense.
fn advice_from_bytes(bytes: &[u8]) -> Result<Advice, Errno> {
    let Ladvise { advice, flag, start, end } = Ladvise::read_from_bytes(bytes).map_err(|_| Errno::EINVAL)?;
    if start >= end {
        return Err(Errno::EINVAL);
    }
    match (advice, flag) {
        (1, 0) => Ok(Advice::WillRead(start..end)),
        (2, 0) => Ok(Advice::DontNeed(start..end)),
        (3, 0 | 1) => Ok(Advice::LockNoExpand(flag == 0)),
        (4, 0 | 1) => Ok(Advice::LockAhead { range: start..end, write: flag == 1 }),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_survives_the_ioctl_and_nonsense_does_not() {
        let all = [
            Advice::WillRead(1..2),
            Advice::DontNeed(0..u64::MAX),
            Advice::LockNoExpand(true),
            Advice::LockNoExpand(false),
            Advice::LockAhead { range: 1 << 40..1 << 41, write: true },
        ];
        for advice in all {
            let bytes = advice_to_bytes(&advice);
            assert_eq!(FileControl::parse(IOC_LADVISE, &bytes), Ok(FileControl::Advise(advice)));
            assert_eq!(FileControl::parse(IOC_LADVISE, &bytes[..20]), Err(Errno::EINVAL));
        }
        let empty = advice_to_bytes(&Advice::WillRead(2..2));
        assert_eq!(FileControl::parse(IOC_LADVISE, &empty), Err(Errno::EINVAL));
        let mut unknown = advice_to_bytes(&Advice::WillRead(0..2));
        unknown[0] = 9;
        assert_eq!(FileControl::parse(IOC_LADVISE, &unknown), Err(Errno::EINVAL));
    }

    #[test]
    fn flags_survive_both_of_their_ioctls() {
        for flags in [0, file_flags::ALL, file_flags::IMMUTABLE, file_flags::NOATIME | file_flags::NODUMP] {
            let set = FileControl::parse(IOC_SET_FLAGS, &flags_to_bytes(flags));
            assert_eq!(set, Ok(FileControl::SetFlags(flags)));
            let set = FileControl::parse(IOC_SET_XFLAGS, &xflags_to_bytes(flags, 7));
            assert_eq!(set, Ok(FileControl::SetXflags { flags, project: 7 }));
        }
        assert_eq!(FileControl::parse(IOC_SET_FLAGS, &[1, 2]), Err(Errno::EINVAL));
        let mut dax = xflags_to_bytes(0, 0);
        dax[1] = 0x80;
        assert_eq!(FileControl::parse(IOC_SET_XFLAGS, &dax), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn numbers_as_the_kernel_reads_them() {
        assert_eq!((IOC_LADVISE, IOC_GROUP_LOCK, IOC_GROUP_UNLOCK), (0x4018_4e01, 0x4008_4e02, 0x4008_4e03));
        let group = 7u64.to_ne_bytes();
        assert_eq!(FileControl::parse(IOC_GROUP_LOCK, &group), Ok(FileControl::GroupLock(7)));
        assert_eq!(FileControl::parse(IOC_GROUP_UNLOCK, &group), Ok(FileControl::GroupUnlock(7)));
        assert_eq!(FileControl::parse(0x4008_4e04, &group), Err(Errno::ENOTTY));
        assert_eq!((IOC_SYNC, FileControl::parse(IOC_SYNC, &[])), (0x4e04, Ok(FileControl::Sync)));
    }
}
