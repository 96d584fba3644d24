//! Flags of files as chattr(1) sets them, and files without names.

use super::{c_path, check};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `FS_IOC_GETFLAGS`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
pub(crate) const IMMUTABLE: u32 = 0x10;
pub(crate) const APPEND: u32 = 0x20;
pub(crate) const NODUMP: u32 = 0x40;
pub(crate) const NOATIME: u32 = 0x80;

/// What lsattr(1) shows.
pub(crate) fn flags_of(path: &Path) -> io::Result<u32> {
    let (file, mut flags) = (File::open(path)?, 0u64);
    // SAFETY: a valid descriptor, and room for more than the int that the kernel writes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), GET_FLAGS.into(), &raw mut flags) })?;
    Ok(flags as u32)
}

/// What chattr(1) sets.
pub(crate) fn set_flags(path: &Path, flags: u32) -> io::Result<()> {
    let (file, flags) = (File::open(path)?, u64::from(flags));
    // SAFETY: a valid descriptor, and more than the int that the kernel reads.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_FLAGS.into(), &raw const flags) })
}

/// Gives an open file without a name its first one.
pub(crate) fn link_open(file: &File, to: &Path) -> io::Result<()> {
    let (from, to) = (c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?, c_path(to)?);
    let (cwd, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: valid C strings.
    check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) })
}
