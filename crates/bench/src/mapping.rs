//! A mapped file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A mapped file.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes, shared.
    pub(crate) fn new(file: &File, len: usize, protection: libc::c_int) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED;
        // SAFETY: the kernel chooses the place.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapping { start, len }) }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as self lives; the file has that size, and nobody writes to it any more.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }

    /// The bytes of a mapping that was made for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as self lives; the file has that size, and only this job writes to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped, and no slice of it outlives self.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
