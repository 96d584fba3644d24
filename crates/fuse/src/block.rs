//! A small loop device to mount over. Only if a file system is mounted on a block device (type `fuseblk`) does the kernel
//! tell its FUSE server of sync(2) and syncfs(2), and let umount(2) wait for the server. Nothing is ever stored on the
//! device: it lies over anonymous memory, and the kernel removes it when the mount ends, for whatever reason. An IO edge.
//!
//! The mount table shows the device's path as it was given to mount(2). So the device gets a node whose relative path is
//! the source that people expect (`10.0.0.1@tcp:/nacre`), in a tmpfs that is mounted nowhere, and a thread of its own
//! changes its working directory to that tmpfs before it mounts.
#![allow(clippy::disallowed_methods)] // It sets up a device, and needs a thread with a working directory of its own.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

/// The first kernel that sends SYNCFS to every `fuseblk` server, and does not let close(2) wait for RELEASE there.
const KERNEL_MIN: (u32, u32) = (6, 18);
/// Size of the device. The kernel accepts no empty one, and never reads or writes this one.
const DEVICE_BYTES: libc::off_t = 1 << 20;
/// How often to look for a free device, because another process may take it first.
const TRIES: u32 = 16;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

/// Linux `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
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

// The kernel's sizes.
const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// A loop device that the kernel removes when its last user closes it: this value, or a mount over it.
struct LoopDevice(File);

/// A tmpfs that is mounted nowhere; it ends with this value.
struct Nowhere(OwnedFd);

/// Calls `mount` in a thread whose working directory holds a block device at the relative path `source`. Errors, of
/// `mount` or before it, say why the file system cannot be mounted over a device here.
pub(crate) fn with_device_at(
    source: &str,
    mount: impl FnOnce() -> io::Result<()> + Send,
) -> Result<(), BlockMountError> {
    if kernel_version() < KERNEL_MIN {
        return Err(BlockMountError::Kernel);
    }
    let path = Path::new(source);
    if source.is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
        return Err(BlockMountError::Source);
    }
    let device = LoopDevice::new().map_err(BlockMountError::Device)?;
    let nowhere = Nowhere::new().map_err(BlockMountError::Device)?;
    nowhere.make_node(path, &device).map_err(BlockMountError::Device)?;
    let directory = nowhere.0.as_raw_fd();
    let mounted =
        std::thread::scope(|scope| scope.spawn(|| change_own_directory(directory).and_then(|()| mount())).join());
    mounted.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(BlockMountError::Mount)
}

/// Reason why a file system is not mounted over a device. The texts end the sentence "plain FUSE, because ...".
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockMountError {
    #[error("this kernel is older than Linux 6.18")]
    Kernel,
    #[error("the source is no relative path")]
    Source,
    #[error("no loop device can be had ({0})")]
    Device(#[source] io::Error),
    #[error("mounting over a loop device failed ({0})")]
    Mount(#[source] io::Error),
}

impl LoopDevice {
    fn new() -> io::Result<LoopDevice> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let memory = anonymous_memory()?;
        for _ in 0..TRIES {
            // SAFETY: the ioctl takes no argument.
            let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
            let device = OpenOptions::new().read(true).write(true).open(format!("/dev/loop{number}"))?;
            let config = config(memory.as_raw_fd());
            // SAFETY: the ioctl reads the structure that the pointer leads to, which outlives the call.
            match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }) {
                Ok(_) => return Ok(LoopDevice(device)),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}

fn config(memory: RawFd) -> LoopConfig {
    let mut file_name = [0; 64];
    file_name[..5].copy_from_slice(b"nacre");
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    LoopConfig { fd: memory as u32, block_size: 0, info, reserved: [0; 8] }
}

fn anonymous_memory() -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated name.
    let fd = check(unsafe { libc::memfd_create(c"nacre".as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let memory = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a valid descriptor and a plain integer.
    check(unsafe { libc::ftruncate(memory.as_raw_fd(), DEVICE_BYTES) })?;
    Ok(memory)
}

impl Nowhere {
    fn new() -> io::Result<Nowhere> {
        // SAFETY: a NUL-terminated name and a plain integer.
        let context = new_fd(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) })?;
        let none = std::ptr::null::<libc::c_char>();
        // SAFETY: a valid descriptor; this command takes neither key nor value.
        let created =
            unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0) };
        check(created as libc::c_int)?;
        // SAFETY: a valid descriptor and plain integers.
        let root = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) };
        new_fd(root).map(Nowhere)
    }

    /// Creates a node for the device at `path`, and the directories above it.
    fn make_node(&self, path: &Path, device: &LoopDevice) -> io::Result<()> {
        let parents: Vec<_> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
        for parent in parents.into_iter().rev() {
            let name = c_path(parent)?;
            // SAFETY: a valid descriptor and a NUL-terminated string.
            check(unsafe { libc::mkdirat(self.0.as_raw_fd(), name.as_ptr(), 0o700) })?;
        }
        let (name, number) = (c_path(path)?, device.0.metadata()?.rdev());
        // SAFETY: as above, and plain integers.
        check(unsafe { libc::mknodat(self.0.as_raw_fd(), name.as_ptr(), libc::S_IFBLK | 0o600, number) }).map(drop)
    }
}

/// Changes the working directory of this thread only.
fn change_own_directory(directory: RawFd) -> io::Result<()> {
    // SAFETY: no memory is involved; from here on the thread's working directory is its own.
    check(unsafe { libc::unshare(libc::CLONE_FS) })?;
    // SAFETY: a valid descriptor.
    check(unsafe { libc::fchdir(directory) }).map(drop)
}

fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result as libc::c_int)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
