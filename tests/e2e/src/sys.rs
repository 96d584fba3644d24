//! Safe wrappers over the few system calls that std lacks: shared mappings, locks, holes, extended attributes, mounts.
//! All unsafe code of this crate is here.

mod flags;
mod handles;
mod namespaces;
mod set_id;

pub(crate) use flags::*;
pub(crate) use handles::*;
pub(crate) use namespaces::*;
pub(crate) use set_id::*;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// CPU time of a process and of its children that have ended, in user and kernel mode; none if there is no such process.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: the state is field 3; utime, stime, cutime and cstime are 14 to 17.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(14 - 3).take(4);
    let ticks: u64 = fields.filter_map(|f| f.parse::<u64>().ok()).sum();
    // SAFETY: no pointers.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    Some(Duration::from_millis(ticks * 1000 / per_second))
}

/// Time of all processors since the machine's start, in ticks.
pub(crate) struct Processors {
    /// Busy or not.
    pub(crate) all: u64,
    /// The part in which they did nothing.
    pub(crate) idle: u64,
}

/// Reads how long the machine's processors have been busy, from the first line of `/proc/stat` (proc(5)).
pub(crate) fn processors() -> io::Result<Processors> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().unwrap_or_default();
    // The last two fields, time of guests, are contained in others.
    let ticks: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [_, _, _, idle, waiting, ..] => Ok(Processors { all: ticks.iter().sum(), idle: idle + waiting }),
        _ => Err(io::Error::other(format!("/proc/stat begins with {first:?}"))),
    }
}

/// `sync(2)`.
pub(crate) fn sync() {
    // SAFETY: no arguments, can't fail.
    unsafe { libc::sync() };
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

// SAFETY: the address stays valid for as long as the value lives. Bytes that several threads use are theirs to keep apart.
unsafe impl Sync for Map {}

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

    /// A writable mapping whose stores the file does not get.
    pub(crate) fn private(file: &File, len: usize) -> io::Result<Map> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
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

    /// A number in the mapping, which others may change at any time.
    pub(crate) fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: in bounds and aligned (asserted; the mapping begins at a page), and it lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.address.cast::<u8>().add(offset).cast()) }
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

/// `ioctl(2)` that passes as many bytes as its number says; its result.
pub(crate) fn file_control(file: &File, number: u32, argument: &[u8]) -> io::Result<i32> {
    assert_eq!(number >> 16 & 0x3fff, argument.len() as u32);
    // SAFETY: a valid descriptor, and the kernel reads as many bytes as the argument has.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), number.into(), argument.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
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

/// A record lock of the open file description (F_OFD_SETLK), as [`record_lock`] is one of the process.
pub(crate) fn ofd_lock(file: &File, kind: libc::c_int, wait: bool) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: a valid descriptor and a live structure.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) })
}

/// The lock that is in the way of one of this kind: its kind, start and length (0: to the end of all files).
pub(crate) fn lock_in_the_way(
    file: &File,
    kind: libc::c_int,
    start: u64,
    len: u64,
) -> io::Result<Option<(libc::c_int, u64, u64)>> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: len as libc::off_t,
        l_pid: 0,
    };
    // SAFETY: a valid descriptor and a live structure.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) })?;
    let kind = libc::c_int::from(lock.l_type);
    Ok((kind != libc::F_UNLCK).then_some((kind, lock.l_start as u64, lock.l_len as u64)))
}

/// Gives up root, for ever: the user, the group, and no other groups.
pub(crate) fn become_user(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: an empty list, and plain integers.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: plain integers.
    check(unsafe { libc::setgid(group) })?;
    // SAFETY: plain integers.
    check(unsafe { libc::setuid(user) })
}

/// For [`rename`]: refuses to replace.
pub(crate) const RENAME_NOREPLACE: u32 = libc::RENAME_NOREPLACE;
/// For [`rename`]: both change places.
pub(crate) const RENAME_EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// `renameat2(2)` with its flags.
pub(crate) fn rename(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    // SAFETY: valid C strings.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// The inode number of a name relative to an open directory.
pub(crate) fn inode_at(dir: &File, name: &str) -> io::Result<u64> {
    let name = c_str(OsStr::new(name))?;
    // SAFETY: stat is plain data for which zero is a valid value.
    let mut out: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid descriptor and C string, and a live structure.
    check(unsafe { libc::fstatat(dir.as_raw_fd(), name.as_ptr(), &mut out, 0) })?;
    Ok(out.st_ino)
}

/// `mkfifo(3)`.
pub(crate) fn make_fifo(path: &Path, mode: u32) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    check(unsafe { libc::mkfifo(path.as_ptr(), mode) })
}

/// `copy_file_range(2)`; the bytes copied, never 0.
pub(crate) fn copy_file_range(from: &File, out: u64, to: &File, into: u64, len: usize) -> io::Result<usize> {
    let (mut out, mut into) = (out as libc::off64_t, into as libc::off64_t);
    // SAFETY: valid descriptors, and live offsets.
    let copied = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut out, to.as_raw_fd(), &mut into, len, 0) };
    match copied {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Ok(n as usize),
    }
}

/// An open directory that can be rewound, which std's can't.
pub(crate) struct Listing(std::ptr::NonNull<libc::DIR>);

impl Listing {
    /// Opens a directory.
    pub(crate) fn open(path: &Path) -> io::Result<Listing> {
        let path = c_path(path)?;
        // SAFETY: a valid C string.
        let dir = unsafe { libc::opendir(path.as_ptr()) };
        std::ptr::NonNull::new(dir).map(Listing).ok_or_else(io::Error::last_os_error)
    }

    /// Back to the beginning.
    pub(crate) fn rewind(&mut self) {
        // SAFETY: an open directory.
        unsafe { libc::rewinddir(self.0.as_ptr()) };
    }

    /// The names from here to the end, without `.` and `..`.
    pub(crate) fn names(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        loop {
            // SAFETY: an open directory, that only we use; errno is this thread's own.
            let entry = unsafe {
                *libc::__errno_location() = 0;
                libc::readdir(self.0.as_ptr())
            };
            if entry.is_null() {
                let error = io::Error::last_os_error();
                return if error.raw_os_error() == Some(0) { Ok(names) } else { Err(error) };
            }
            // SAFETY: the entry lives until the next call, and its name ends with a zero.
            let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
            names.push(name.to_string_lossy().into_owned());
            if matches!(name.to_bytes(), b"." | b"..") {
                names.pop();
            }
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: an open directory, not used afterwards.
        unsafe { libc::closedir(self.0.as_ptr()) };
    }
}

/// Sets an extended attribute.
pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    set_xattr_with(path, name, value, 0)
}

/// Sets an extended attribute that must not be there; EEXIST if it is.
pub(crate) fn create_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    set_xattr_with(path, name, value, libc::XATTR_CREATE)
}

/// Names of extended attributes that users may set, sorted.
pub(crate) fn list_xattrs(path: &Path) -> io::Result<Vec<String>> {
    let path = c_path(path)?;
    let mut list = vec![0u8; 65536];
    // SAFETY: a valid C string and a live buffer of the given length.
    let len = unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let names = list[..len as usize].split(|b| *b == 0).map(|n| String::from_utf8_lossy(n).into_owned());
    let mut names: Vec<String> = names.filter(|n| n.starts_with("user.")).collect();
    names.sort();
    Ok(names)
}

fn set_xattr_with(path: &Path, name: &str, value: &[u8], flags: libc::c_int) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_str(OsStr::new(name))?);
    // SAFETY: valid C strings and a live buffer of the given length.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
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

/// `mount(2)`.
pub(crate) fn mount(source: &str, at: &Path, kind: &str, data: &str) -> io::Result<()> {
    let (source, at) = (c_str(OsStr::new(source))?, c_path(at)?);
    let (kind, data) = (c_str(OsStr::new(kind))?, c_str(OsStr::new(data))?);
    // SAFETY: valid C strings.
    check(unsafe { libc::mount(source.as_ptr(), at.as_ptr(), kind.as_ptr(), libc::MS_NOATIME, data.as_ptr().cast()) })
}

/// Linux `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    /// Number, kind and size of a key, flags.
    words: [u32; 4],
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

/// Linux `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Others may take the free device that we were told of.
const LOOP_TRIES: usize = 100;

/// Makes a loop device over a file, with direct I/O if the file can do that. It goes with its last opening or mount.
pub(crate) fn attach_loop(file: &File) -> io::Result<(File, std::path::PathBuf)> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..LOOP_TRIES {
        // SAFETY: a valid descriptor; this request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        check(number)?;
        let path = std::path::PathBuf::from(format!("/dev/loop{number}"));
        let device = File::options().read(true).write(true).open(&path)?;
        let flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
        let info = LoopInfo { numbers: [0; 5], words: [0, 0, 0, flags], names_and_key: [0; 160], init: [0; 2] };
        let config = LoopConfig { fd: file.as_raw_fd() as u32, block_size: 512, info, reserved: [0; 8] };
        // SAFETY: valid descriptors, and the kernel reads a `loop_config`, which lives and has its layout.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) }) {
            Ok(()) => return Ok((device, path)),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// A frozen file system: nothing is written to its disk until this is dropped.
pub(crate) struct Frozen(File);

const FIFREEZE: libc::c_ulong = 0xC004_5877;
const FITHAW: libc::c_ulong = 0xC004_5878;

impl Frozen {
    /// Freezes the file system that this directory is on.
    pub(crate) fn new(dir: File) -> io::Result<Frozen> {
        // SAFETY: a valid descriptor; this request takes no argument.
        check(unsafe { libc::ioctl(dir.as_raw_fd(), FIFREEZE as _) })?;
        Ok(Frozen(dir))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::ioctl(self.0.as_raw_fd(), FITHAW as _) };
    }
}

/// `syncfs(2)`.
pub(crate) fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}
