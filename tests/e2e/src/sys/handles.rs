//! File handles (`name_to_handle_at(2)`, `open_by_handle_at(2)`), and making the kernel forget inodes.

use super::{c_path, check};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

/// Room for the bytes of a handle: the kernel's limit.
const HANDLE_MAX: usize = 128;

/// Linux `struct file_handle`.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

/// The handle of a file; of a symbolic link itself.
pub(crate) fn handle_of(path: &Path) -> io::Result<FileHandle> {
    let path = c_path(path)?;
    let mut handle = FileHandle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
    let mut mount = 0;
    // SAFETY: a valid C string, and live structures, the first with as much room as it says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0 as libc::c_int,
        )
    };
    check(result as libc::c_int).map(|()| handle)
}

/// Opens a file of the file system that `mount` is on by its handle.
pub(crate) fn open_by_handle(mount: &File, handle: &FileHandle, flags: libc::c_int) -> io::Result<File> {
    // SAFETY: a valid descriptor and a live structure.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const *handle, flags) };
    check(fd as libc::c_int)?;
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}

/// Makes the kernel forget names and inodes that nobody uses, of all file systems.
pub(crate) fn drop_inodes() -> io::Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "2")
}
