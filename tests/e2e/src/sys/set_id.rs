//! System calls by which a file is written to, or its rights are looked at, for the cases about set-id bits.

use super::{c_path, check};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Makes the file system see this thread, and no other of the process, as a user. Root can become root again.
pub(crate) fn act_as(user: u32, group: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: a list of the given length. The system call, unlike the function of the C library, is for this thread only.
    let set = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    check(set as libc::c_int)?;
    // SAFETY: plain integers.
    unsafe { libc::setfsgid(group) };
    // SAFETY: plain integers. It also takes CAP_FSETID from who is no longer root, and gives it back.
    unsafe { libc::setfsuid(user) };
    // SAFETY: as above; an impossible user changes nothing, and tells who we are.
    let now = unsafe { libc::setfsuid(u32::MAX) };
    if now as u32 == user { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// The mode that the kernel has for a file, asking the file system only if that is not to be believed: as exec(2) does.
pub(crate) fn mode_believed(path: &Path) -> io::Result<u32> {
    let path = c_path(path)?;
    // SAFETY: statx is plain data for which zero is a valid value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a valid C string and a live structure.
    check(unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MODE, &mut out) })?;
    Ok(out.stx_mode.into())
}

/// `truncate(2)`.
pub(crate) fn truncate(path: &Path, len: u64) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    check(unsafe { libc::truncate(path.as_ptr(), len as libc::off_t) })
}

/// Writes a few bytes by `splice(2)` from a pipe.
pub(crate) fn splice_into(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    let (reader, mut writer) = io::pipe()?;
    io::Write::write_all(&mut writer, data)?;
    let mut at = offset as libc::off64_t;
    // SAFETY: valid descriptors, a pipe has no offset, and the other one is live.
    let n = unsafe { libc::splice(reader.as_raw_fd(), std::ptr::null_mut(), file.as_raw_fd(), &mut at, data.len(), 0) };
    match n {
        n if n < 0 => Err(io::Error::last_os_error()),
        n if n as usize == data.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Linux `struct iocb`, for a write.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// Linux `struct io_event`.
#[repr(C)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const IOCB_CMD_PWRITE: u16 = 1;

/// Writes by `io_submit(2)`, and waits for the end.
pub(crate) fn aio_write(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: a live place for the context, which must be zero.
    check(unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut context) } as libc::c_int)?;
    let mut iocb = Iocb {
        data: 0,
        key: 0,
        rw_flags: 0,
        opcode: IOCB_CMD_PWRITE,
        priority: 0,
        descriptor: file.as_raw_fd() as u32,
        buffer: data.as_ptr() as u64,
        bytes: data.len() as u64,
        offset: offset as i64,
        reserved: 0,
        flags: 0,
        event_descriptor: 0,
    };
    let mut event = IoEvent { data: 0, object: 0, result: 0, result2: 0 };
    let mut list = [&raw mut iocb];
    // SAFETY: one live request, whose data lives until its event has come, below.
    let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()) };
    let done = check(submitted as libc::c_int).and_then(|()| {
        let forever = std::ptr::null::<libc::timespec>();
        // SAFETY: room for the one event.
        check(unsafe { libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, forever) } as libc::c_int)
    });
    // SAFETY: the context of above, not used afterwards.
    unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    done?;
    match event.result {
        n if n < 0 => Err(io::Error::from_raw_os_error(-n as i32)),
        n if n as usize == data.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
