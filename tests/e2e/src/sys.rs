//! Safe wrappers over the few system calls that std lacks: shared mappings, locks, holes, extended attributes, mounts.
//! All unsafe code of this crate is here.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by SIGINT, SIGTERM and SIGHUP.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether someone asked us to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

extern "C" fn note_signal(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT, SIGTERM and SIGHUP only set what [`interrupted`] returns.
pub(crate) fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, note_signal as *const () as libc::sighandler_t) };
    }
}

/// A path as C wants it.
fn c_path(path: &Path) -> io::Result<CString> {
    c_str(path.as_os_str())
}

fn c_str(s: &OsStr) -> io::Result<CString> {
    CString::new(s.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the effective user is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments, can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal; a negative id means the process group.
pub(crate) fn kill(pid: i32, signal: libc::c_int) {
    // SAFETY: plain integers; a stale id gives ESRCH, which is what callers want ignored.
    unsafe { libc::kill(pid, signal) };
}

/// Detaches a mount at once, whatever its state.
pub(crate) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    check(unsafe { libc::umount2(path.as_ptr(), if lazily { libc::MNT_DETACH } else { 0 }) })
}

/// A shared mapping of the first `len` bytes of a file.
pub(crate) struct Map {
    address: *mut libc::c_void,
    len: usize,
}

impl Map {
    /// Maps `len` bytes, writable if asked for. The file must be at least that long while the mapping is used.
    pub(crate) fn shared(file: &File, len: usize, writable: bool) -> io::Result<Map> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { address, len })
    }

    /// A copy of bytes of the mapping.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: in bounds (asserted); `out` does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.address.cast::<u8>().add(offset), out.as_mut_ptr(), len) };
        out
    }

    /// Stores bytes into the mapping, which must be writable.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len);
        // SAFETY: in bounds (asserted); `data` does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.cast::<u8>().add(offset), data.len()) };
    }

    /// Waits until what was stored is in the file.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the whole of a live mapping.
        check(unsafe { libc::msync(self.address, self.len, libc::MS_SYNC) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole of a live mapping, not used afterwards.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// Memory aligned for O_DIRECT.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Alignment of address, offset and length that every file system accepts.
    pub(crate) const ALIGNMENT: usize = 4096;

    /// Zeros.
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let memory = vec![0; len + Self::ALIGNMENT];
        let start = memory.as_ptr().align_offset(Self::ALIGNMENT);
        AlignedBuffer { memory, start, len }
    }

    /// The aligned bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// `fallocate(2)` with its mode bits.
pub(crate) fn fallocate(file: &File, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: a valid descriptor and plain integers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) })
}

/// `lseek(2)`, for SEEK_DATA and SEEK_HOLE.
pub(crate) fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    // SAFETY: a valid descriptor and plain integers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) };
    if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// `flock(2)`; with LOCK_NB a conflict is `WouldBlock`.
pub(crate) fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(unsafe { libc::flock(file.as_raw_fd(), operation) })
}

/// A POSIX record lock (F_RDLCK, F_WRLCK, F_UNLCK) on `len` bytes, waiting or not; a conflict is `WouldBlock`.
pub(crate) fn record_lock(file: &File, kind: libc::c_int, start: u64, len: u64, wait: bool) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: len as libc::off_t,
        l_pid: 0,
    };
    let command = if wait { libc::F_SETLKW } else { libc::F_SETLK };
    // SAFETY: a valid descriptor and a live structure.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) };
    match check(result) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    }
}

/// Sets an extended attribute.
pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_str(OsStr::new(name))?);
    // SAFETY: valid C strings and a live buffer of the given length.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
}

/// Reads an extended attribute; ENODATA if it is not there.
pub(crate) fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path)?, c_str(OsStr::new(name))?);
    let mut value = vec![0u8; 65536];
    // SAFETY: valid C strings and a live buffer of the given length.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(len as usize);
    Ok(value)
}

/// Removes an extended attribute.
pub(crate) fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_str(OsStr::new(name))?);
    // SAFETY: valid C strings.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

/// Space of a file system, in bytes: total and available.
pub(crate) fn space(path: &Path) -> io::Result<(u64, u64)> {
    let path = c_path(path)?;
    // SAFETY: statvfs is plain data for which zero is a valid value.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid C string and a live structure.
    check(unsafe { libc::statvfs(path.as_ptr(), &mut out) })?;
    Ok((out.f_blocks * out.f_frsize, out.f_bavail * out.f_frsize))
}
