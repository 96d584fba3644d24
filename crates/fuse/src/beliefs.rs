//! The kernel's attributes of a program, read and corrected through the mount itself. An IO edge.
//!
//! The kernel can be told to forget attributes, and then asks for them before it runs a program. But it discards the
//! answer, and goes on with the mode that it had, if it was told to forget again or a write ended while the answer was on
//! its way. Only statx(2) on the file shows which mode it has.
//!
//! A look runs on a thread of its own that has none of this process's descriptors. It may wait for an answer of this very
//! process: if it had the session's descriptor, kill -9 could not end the process, because its session would not end
//! before the thread.
#![allow(clippy::disallowed_methods)] // It opens files and blocks.

use crate::runs_as::RunsAs;
use nacre_base::Errno;
use nacre_rt::Rt;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Most looks at the same time; further ones wait.
const LOOKS_MAX: usize = 32;
/// How often the kernel is made to ask, with a growing pause after each time: about 5 s in all.
const ATTEMPTS_MAX: u32 = 250;
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The kernel's attributes of the nodes of one mount.
#[derive(Clone)]
pub(crate) struct Beliefs {
    mountpoint: CString,
    /// Device number, which tells this mount from others that may cover its place.
    device: (u32, u32),
    permits: Arc<Semaphore>,
}

impl Beliefs {
    /// For the session that has just been mounted on `mountpoint`.
    pub(crate) async fn new(mountpoint: &Path) -> io::Result<Beliefs> {
        let mountpoint = CString::new(mountpoint.as_os_str().as_bytes()).map_err(io::Error::other)?;
        let path = mountpoint.clone();
        let root = on_a_thread(move || statx(&open(&path)?, libc::AT_STATX_DONT_SYNC)).await?;
        let device = (root.stx_dev_major, root.stx_dev_minor);
        Ok(Beliefs { mountpoint, device, permits: Arc::new(Semaphore::new(LOOKS_MAX)) })
    }

    /// Makes the kernel believe that `node` runs as `truth`. The caller keeps the kernel from forgetting the node
    /// meanwhile. ETXTBSY if the kernel keeps hearing of changes.
    pub(crate) async fn settle(&self, rt: &Rt, node: u64, truth: RunsAs) -> Result<(), Errno> {
        let mut believed = self.look(node, false).await?;
        let mut attempts = 0;
        while believed != truth {
            if attempts == ATTEMPTS_MAX {
                return Err(Errno::ETXTBSY);
            }
            if attempts > 0 {
                rt.sleep(Duration::from_millis(attempts.into()).min(PAUSE_MAX)).await;
            }
            attempts += 1;
            believed = self.look(node, true).await?;
        }
        Ok(())
    }

    /// Makes the kernel ask for the attributes of a node, as stat(2) would.
    pub(crate) async fn refresh(&self, node: u64) -> Result<(), Errno> {
        self.look(node, true).await.map(drop)
    }

    /// The kernel's belief; `refresh`: after it has asked this process.
    async fn look(&self, node: u64, refresh: bool) -> Result<RunsAs, Errno> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.map_err(|_| Errno::ESHUTDOWN)?;
        let (mountpoint, device) = (self.mountpoint.clone(), self.device);
        let found = on_a_thread(move || {
            let mount = open(&mountpoint)?;
            let root = statx(&mount, libc::AT_STATX_DONT_SYNC)?;
            if (root.stx_dev_major, root.stx_dev_minor) != device {
                return Err(io::Error::from_raw_os_error(libc::EXDEV));
            }
            enter(&mount)?;
            let file = open_node(node)?;
            if refresh {
                statx(&file, libc::AT_STATX_FORCE_SYNC)?;
            }
            // Not the answer that was just sent, which the kernel may have discarded.
            statx(&file, libc::AT_STATX_DONT_SYNC)
        });
        let found = found.await.map_err(|e| Errno::from_io(&e))?;
        Ok(RunsAs::new(found.stx_mode.into(), found.stx_uid, found.stx_gid))
    }
}

/// Runs `work` on a thread without this process's descriptors. Another thread waits for it, because only threads with
/// descriptors can wake tasks.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let waiter = tokio::task::spawn_blocking(move || {
        let look = move || without_descriptors().and_then(|()| work());
        let thread = std::thread::Builder::new().name("beliefs".into()).spawn(look)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that looks at the mount panicked")))
    });
    waiter.await?
}

/// Gives this thread its own, empty table of descriptors.
pub(crate) fn without_descriptors() -> io::Result<()> {
    let (first, last, flags) = (0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: the table is unshared first, so that the descriptors of no other thread are closed, and this one has just begun.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

fn open(path: &CString) -> io::Result<OwnedFd> {
    // SAFETY: a valid C string.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC).into() })?;
    // SAFETY: nobody else has the new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes the mount's root the working directory of this thread alone. Handles are opened relative to an ordinary
/// descriptor, for which the kernel would ask this process, or relative to the working directory.
fn enter(mount: &OwnedFd) -> io::Result<()> {
    // SAFETY: no preconditions; only this thread sees the new working directory.
    check(unsafe { libc::unshare(libc::CLONE_FS).into() })?;
    // SAFETY: an open descriptor.
    check(unsafe { libc::fchdir(mount.as_raw_fd()).into() }).map(drop)
}

/// A file handle in FUSE's form: the node in two halves, the higher one first, and the generation.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    node: [u32; 2],
    generation: u32,
}

/// The kernel's number for handles of this form.
const INO64_GENERATION: i32 = 0x81;

/// Opens a node that the kernel knows, on the mount that has the working directory, without a request to this process.
fn open_node(node: u64) -> io::Result<OwnedFd> {
    let node = [(node >> 32) as u32, node as u32];
    let mut handle = Handle { bytes: 12, kind: INO64_GENERATION, node, generation: 0 };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the structure has the layout of a `file_handle` with 12 bytes, and lives.
    let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, &raw mut handle, flags) };
    let fd = check(opened)?;
    // SAFETY: nobody else has the new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn statx(file: &OwnedFd, sync: i32) -> io::Result<libc::statx> {
    // SAFETY: statx is plain data for which zero is a valid value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) =
        (libc::AT_EMPTY_PATH | sync, libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID);
    // SAFETY: an open descriptor, an empty C string and a live structure.
    check(unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &mut out).into() })?;
    Ok(out)
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
