//! Blocking system calls on object files, each repeated until it is complete.
#![allow(clippy::disallowed_methods)] // An IO edge: calls on object files.

use crate::{AllocateMode, Placed, Seek};
use nacre_base::Payload;
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use nacre_base::hash::fnv_1a_64;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Pieces of memory in one kernel request (IOV_MAX).
const PIECES_MAX: usize = 1024;
/// Bytes in one kernel request: far below the kernel's own limit of 2 GiB.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 28;

/// Fills `buf` from `offset`. The returned buffer is as long as the data that was read.
pub(super) fn read_all(file: &File, offset: u64, mut buf: AlignedBuf) -> io::Result<AlignedBuf> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A direct read that ended within a block has reached the end of the file and cannot go on.
            Err(e) if refuses_direct(&e) && !done.is_multiple_of(DIRECT_IO_ALIGNMENT) => break,
            Err(e) => return Err(e),
        }
    }
    buf.truncate(done);
    Ok(buf)
}

/// Writes all of `data`.
pub(super) fn write_all(file: &File, offset: u64, data: &Payload) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let pieces = pieces(data, done);
        let at = (offset + done as u64) as i64;
        // SAFETY: the pieces point into `data`, which is borrowed, and are only read.
        match unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32, at) } {
            0 => return Err(ErrorKind::WriteZero.into()),
            n if n > 0 => done += n as usize,
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

/// Begins to write back a range of the page cache. If that fails, the next sync reports it.
pub(super) fn begin_write_back(file: &File, range: &Range<u64>) {
    let (start, len) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: sync_file_range touches no memory of ours.
    unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Returns whether the disk below a file has a moving head; false if that is unknown. For virtual disks the kernel only
/// reports its default, so that is ignored.
pub(super) fn is_rotational(file: &File) -> bool {
    let Ok(device) = file.metadata().map(|m| m.dev()) else { return false };
    let dir = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    if fs::canonicalize(&dir).is_ok_and(|device| device.to_string_lossy().contains("/virtio")) {
        return false;
    }
    // A partition's queue is its disk's.
    let told = ["queue", "../queue"].into_iter().find_map(|q| fs::read_to_string(format!("{dir}/{q}/rotational")).ok());
    told.is_some_and(|told| told.trim() == "1")
}

/// Makes a hole of the part of `range` that the file has.
pub(super) fn punch(file: &File, mut range: Range<u64>) -> io::Result<()> {
    let size = file.metadata()?.len();
    // "To the end" may be farther than the file system's files can reach.
    range.end = range.end.min(size.next_multiple_of(DIRECT_IO_ALIGNMENT as u64));
    if range.is_empty() {
        return Ok(());
    }
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &range)
}

/// Reserves `range` or makes it zeros.
pub(super) fn allocate(file: &File, range: &Range<u64>, mode: AllocateMode) -> io::Result<()> {
    let keep = if mode.keeps_size() { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
    if !mode.zeroes() {
        return fallocate(file, keep, range);
    }
    match fallocate(file, libc::FALLOC_FL_ZERO_RANGE | keep, range) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            punch(file, range.clone())?;
            fallocate(file, keep, range)
        }
        other => other,
    }
}

fn fallocate(file: &File, mode: i32, range: &Range<u64>) -> io::Result<()> {
    loop {
        // SAFETY: fallocate touches no memory of ours. The range was checked to fit.
        let r =
            unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as i64, (range.end - range.start) as i64) };
        match (r, io::Error::last_os_error()) {
            (0, _) => return Ok(()),
            (_, e) if e.kind() == ErrorKind::Interrupted => {}
            (_, e) => return Err(e),
        }
    }
}

/// Returns where data or a hole begins at or after `offset`; `None` if there is no such place.
pub(super) fn seek(file: &File, offset: u64, what: Seek) -> io::Result<Option<u64>> {
    let whence = match what {
        Seek::Data => libc::SEEK_DATA,
        Seek::Hole => libc::SEEK_HOLE,
    };
    // SAFETY: lseek touches no memory of ours. Nobody uses the file's position.
    match unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) } {
        -1 => Err(io::Error::last_os_error()).or_else(|e| none_if(e, libc::ENXIO)),
        found => Ok(Some(found as u64)),
    }
}

/// Linux `FS_IOC_FIEMAP`.
const FIEMAP: u32 = 0xc020_660b;
/// Writes data that is not on the disk yet before the call returns.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// Linux `FIEMAP_EXTENT_LAST`: the file has no more extents.
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Extents asked for at once.
const FIEMAP_BATCH: usize = 64;

/// Linux `struct fiemap` with room for extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_BATCH],
}

/// Linux `struct fiemap_extent`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    len: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

const _: () = assert!(size_of::<Fiemap>() == 32 + FIEMAP_BATCH * 56);

/// The first runs of a file that have space and end after `offset`, `limit` or a few more. If the file system does not
/// report places, the runs that have data.
pub(super) fn fiemap(file: &File, offset: u64, limit: usize) -> io::Result<Vec<Placed>> {
    let (mut found, mut at): (Vec<Placed>, _) = (Vec::new(), offset);
    while found.len() < limit {
        let (count, extents) = (FIEMAP_BATCH as u32, [FiemapExtent::default(); FIEMAP_BATCH]);
        let mut map =
            Fiemap { start: at, len: u64::MAX - at, flags: FIEMAP_FLAG_SYNC, mapped: 0, count, reserved: 0, extents };
        // SAFETY: a valid descriptor, and room for as many extents as the structure says.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut map) } < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY) => runs_of_data(file, offset, limit),
                _ => Err(error),
            };
        }
        let extents = &map.extents[..(map.mapped as usize).min(FIEMAP_BATCH)];
        let of = |e: &FiemapExtent| {
            let flags = e.flags & !FIEMAP_EXTENT_LAST;
            Placed { offset: e.logical, physical: e.physical, len: e.len, flags }
        };
        found.extend(extents.iter().map(of));
        match extents.last() {
            Some(last) if last.flags & FIEMAP_EXTENT_LAST == 0 && last.logical + last.len > at => {
                at = last.logical + last.len
            }
            _ => break,
        }
    }
    Ok(found)
}

fn runs_of_data(file: &File, offset: u64, limit: usize) -> io::Result<Vec<Placed>> {
    let (mut found, mut at) = (Vec::new(), offset);
    while found.len() < limit {
        let Some(start) = seek(file, at, Seek::Data)? else { break };
        let Some(end) = seek(file, start, Seek::Hole)?.filter(|end| *end > start) else { break };
        found.push(Placed { offset: start, physical: 0, len: end - start, flags: Placed::UNKNOWN });
        at = end;
    }
    Ok(found)
}

/// Bytes of the longest possible file of the file system that `file` is in. A seek beyond it is refused; no one uses
/// the file position that the seeks move.
pub(super) fn file_bytes_max(file: &File) -> u64 {
    let (mut reached, mut refused) = (0, 1 << 63);
    while refused - reached > 1 {
        let middle = reached + (refused - reached) / 2;
        // SAFETY: lseek touches no memory of ours.
        match unsafe { libc::lseek(file.as_raw_fd(), middle as i64, libc::SEEK_SET) } {
            -1 => refused = middle,
            _ => reached = middle,
        }
    }
    reached
}

/// A number that distinguishes the file system of `file` from all others: a hash of its device number and of the host's
/// boot id. 0 if it cannot be known.
pub(super) fn file_system_id(file: &File) -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match file.metadata() {
        Ok(metadata) if !boot.is_empty() => fnv_1a_64(&[&boot[..], &metadata.dev().to_le_bytes()].concat()).max(1),
        _ => 0,
    }
}

/// Returns whether a request failed because it bypassed the page cache.
pub(super) fn refuses_direct(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINVAL)
}

/// `None` for an error that means "there is none".
pub(super) fn none_if<T>(e: io::Error, errno: i32) -> io::Result<Option<T>> {
    if e.raw_os_error() == Some(errno) { Ok(None) } else { Err(e) }
}

/// The rest of `data` after `done` bytes, as the kernel wants it, up to its limits.
pub(super) fn pieces(data: &Payload, done: usize) -> Vec<libc::iovec> {
    let (mut skip, mut bytes, mut out) = (done, 0, Vec::new());
    for piece in data.pieces() {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let rest = &piece[skip..];
        skip = 0;
        let len = rest.len().min(REQUEST_BYTES_MAX - bytes);
        out.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: len });
        bytes += len;
        if out.len() == PIECES_MAX || bytes == REQUEST_BYTES_MAX {
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_continue_where_a_transfer_stopped_and_keep_to_the_limits() {
        let mut data = Payload::new();
        (0..3000u32).for_each(|i| data.push(vec![i as u8; 10].into()));
        let lens = |done| pieces(&data, done).iter().map(|p| p.iov_len).collect::<Vec<_>>();
        assert_eq!(lens(0), [10; PIECES_MAX]);
        assert_eq!(lens(29_985), [5, 10]);
        assert_eq!(lens(30_000), [0; 0]);
        // SAFETY: points into `data`.
        assert_eq!(unsafe { *pieces(&data, 29_985)[0].iov_base.cast::<u8>() }, 2998u32 as u8);
    }
}
