//! Extended attributes, ioctls and mount points that `lfs` uses.

use nacre_base::Errno;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

fn last_errno() -> Errno {
    Errno::from_io(&std::io::Error::last_os_error())
}

/// The value of an extended attribute; symbolic links are not followed.
pub(crate) fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c_path(path)?, CString::new(name).map_err(|_| Errno::EINVAL)?);
    let mut value = vec![0; 65536];
    // SAFETY: both strings end in NUL, and the buffer has the length told.
    let n = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if n < 0 {
        return Err(last_errno());
    }
    value.truncate(n as usize);
    Ok(value)
}

/// Sets an extended attribute.
pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    let (path, name) = (c_path(path)?, CString::new(name).map_err(|_| Errno::EINVAL)?);
    // SAFETY: as above.
    let r = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if r < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Removes an extended attribute.
pub(crate) fn remove_xattr(path: &Path, name: &str) -> Result<(), Errno> {
    let (path, name) = (c_path(path)?, CString::new(name).map_err(|_| Errno::EINVAL)?);
    // SAFETY: both strings end in NUL.
    let r = unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) };
    if r < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Creates an empty regular file without objects; it must not exist.
pub(crate) fn make_file(path: &Path, mode: u32) -> Result<(), Errno> {
    let path = c_path(path)?;
    // SAFETY: the string ends in NUL.
    let r = unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | mode, 0) };
    if r < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The FID of a path, as text. ENOTTY if it is not on a Nacre mount, like Lustre's ioctl.
pub(crate) fn fid_of(path: &Path) -> Result<String, Errno> {
    match get_xattr(path, "lustre.fid") {
        Ok(v) => Ok(String::from_utf8_lossy(&v).into_owned()),
        Err(Errno::EOPNOTSUPP | Errno::ENODATA) => Err(Errno::ENOTTY),
        Err(e) => Err(e),
    }
}

/// Mount points of Nacre, in mount order, with their sources.
pub(crate) fn mounts() -> Vec<(String, PathBuf)> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let lines = table.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let ours = lines.filter(|f| f.len() > 2 && nacre_process::memory::is_our_mount(f[2]));
    ours.map(|f| (unescape(f[0]), PathBuf::from(unescape(f[1])))).collect()
}

/// The mount table writes blanks as octal escapes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The mount that `path` is on.
pub(crate) fn mount_of(path: &Path) -> Option<(String, PathBuf)> {
    let path = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok()?;
    mounts().into_iter().filter(|(_, m)| path.starts_with(m)).max_by_key(|(_, m)| m.as_os_str().len())
}

/// Opens a file for an ioctl.
pub(crate) fn open_for_ioctl(path: &Path, write: bool) -> Result<OwnedFd, Errno> {
    let path = c_path(path)?;
    let mode = if write { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: the string ends in NUL.
    let fd = unsafe { libc::open(path.as_ptr(), mode | libc::O_CLOEXEC) };
    // SAFETY: the descriptor is new and nobody else's.
    if fd < 0 { Err(last_errno()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// syncfs(2) of the file system of an open file.
pub(crate) fn sync_file_system(file: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: a valid descriptor.
    let r = unsafe { libc::syncfs(file.as_raw_fd()) };
    if r < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Sends an ioctl to a file on a Nacre mount with `argument`, which is as long as `number` says. Returns its result.
/// ENOTTY on other files.
pub(crate) fn send_ioctl(file: &OwnedFd, number: u32, argument: &[u8]) -> Result<i32, Errno> {
    assert_eq!(number >> 16 & 0x3fff, argument.len() as u32, "the kernel reads as many bytes as the number says");
    // SAFETY: the kernel only reads, as many bytes as the argument has.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), number.into(), argument.as_ptr()) };
    if r < 0 { Err(last_errno()) } else { Ok(r) }
}
