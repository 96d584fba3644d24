//! mount(2) and umount2(2) on /dev/fuse, as root, without a helper program; for other users see `helper`. An IO edge.
#![allow(clippy::disallowed_methods)] // It mounts, and reads and writes what the kernel says of mounts.

use crate::block::with_device_at;
use crate::dev::Channel;
use crate::helper;
use nacre_base::Errno;
use nacre_client::{AccessTimes, MountRules};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `mount` and `df` show as the device, e.g. `mgs@tcp:/nacre`.
    pub source: String,
    /// Suffix of the type, after `fuse.`.
    pub subtype: String,
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub no_suid: bool,
    /// `nodev`.
    pub no_dev: bool,
    /// `noexec`.
    pub no_exec: bool,
    /// Handling of access times. The kernel leaves that to the server, and only shows the option.
    pub access_times: AccessTimes,
    /// `nodiratime`.
    pub no_dir_atime: bool,
    /// `sync`, which the server has to heed, too.
    pub sync: bool,
    /// `dirsync`, which the server has to heed, too.
    pub dir_sync: bool,
    /// True to let users other than root in.
    pub allow_other: bool,
    /// True if the kernel checks permissions by mode, owner, group and list before it sends a request. It must, if it
    /// keeps names, because it sends no requests for those.
    pub default_permissions: bool,
    /// True if the kernel says when set-id bits have to be removed (HANDLE_KILLPRIV_V2, Linux 5.11). False behaves like
    /// an older kernel, for tests.
    pub handle_kill_priv: bool,
    /// How far the kernel reads ahead in files read through its page cache, in KiB; 0 leaves the kernel's default.
    pub read_ahead_kib: u32,
    /// Mount over a small loop device where that is possible, so that sync(2), syncfs(2) and umount(2) reach the server.
    pub block_device: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "nacre".into(),
            subtype: "nacre".into(),
            read_only: false,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            access_times: AccessTimes::Relative,
            no_dir_atime: false,
            sync: false,
            dir_sync: false,
            allow_other: true,
            default_permissions: true,
            handle_kill_priv: true,
            read_ahead_kib: 1024,
            block_device: true,
        }
    }
}

impl MountOptions {
    fn flags(&self) -> libc::c_ulong {
        let flag = |on, bit| if on { bit } else { 0 };
        flag(self.read_only, libc::MS_RDONLY)
            | flag(self.no_suid, libc::MS_NOSUID)
            | flag(self.no_dev, libc::MS_NODEV)
            | flag(self.no_exec, libc::MS_NOEXEC)
            | flag(self.no_dir_atime, libc::MS_NODIRATIME)
            | flag(self.sync, libc::MS_SYNCHRONOUS)
            | flag(self.dir_sync, libc::MS_DIRSYNC)
            | match self.access_times {
                AccessTimes::Never => libc::MS_NOATIME,
                AccessTimes::Relative => libc::MS_RELATIME,
                AccessTimes::Strict => libc::MS_STRICTATIME,
            }
    }

    /// Sets an option of mount(8) that is a flag of the mount; false if it is none. If two options exclude each other,
    /// the last one counts.
    pub fn set_flag(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.no_suid = true,
            "suid" => self.no_suid = false,
            "nodev" => self.no_dev = true,
            "dev" => self.no_dev = false,
            "noexec" => self.no_exec = true,
            "exec" => self.no_exec = false,
            "noatime" => self.access_times = AccessTimes::Never,
            "relatime" | "atime" | "nostrictatime" => self.access_times = AccessTimes::Relative,
            "strictatime" | "norelatime" => self.access_times = AccessTimes::Strict,
            "nodiratime" => self.no_dir_atime = true,
            "diratime" => self.no_dir_atime = false,
            "sync" => self.sync = true,
            "async" => (self.sync, self.dir_sync) = (false, false),
            "dirsync" => self.dir_sync = true,
            "defaults" => {}
            _ => return false,
        }
        true
    }

    /// The rules that the server has to enforce.
    pub fn rules(&self) -> MountRules {
        MountRules {
            read_only: self.read_only,
            access_times: self.access_times,
            sync: self.sync,
            dir_sync: self.dir_sync,
        }
    }

    /// The options in fusermount3's form.
    pub(crate) fn helper_options(&self, max_read: usize, may_allow_other: bool) -> String {
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut all =
            vec![format!("fsname={source}"), format!("subtype={}", self.subtype), format!("max_read={max_read}")];
        let flags = [
            (self.read_only, "ro"),
            (self.no_exec, "noexec"),
            (self.access_times == AccessTimes::Never, "noatime"),
            (self.no_dir_atime, "nodiratime"),
            (self.sync, "sync"),
            (self.dir_sync, "dirsync"),
            (self.default_permissions, "default_permissions"),
            (self.allow_other && may_allow_other, "allow_other"),
        ];
        all.extend(flags.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()));
        all.join(",")
    }

    /// The option string of the kernel's fuse file system.
    fn data(&self, fd: i32, max_read: usize) -> String {
        let allow_other = if self.allow_other { ",allow_other" } else { "" };
        let default_permissions = if self.default_permissions { ",default_permissions" } else { "" };
        format!("fd={fd},rootmode=40000,user_id=0,group_id=0,max_read={max_read}{allow_other}{default_permissions}")
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with EBUSY while files are open.
    WhenIdle,
    /// Remove the name now; the session ends with the last open file (`umount -l`).
    Lazy,
    /// Fail every request from now on (`umount -f`).
    Force,
    /// Fail every request from now on, and remove the name even if files are open. Never waits for the server.
    Abort,
}

/// How the kernel mounted the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// Over a block device: sync(2) and syncfs(2) reach the server, and umount(2) waits for it.
    Block,
    /// Without a device: the server never hears of sync(2) and syncfs(2), and of umount(2) only afterwards.
    Plain,
}

/// Why mounting, serving or unmounting failed. The texts are for people.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The device did not open.
    #[error("/dev/fuse: {error}{}", device_hint(.error))]
    Device {
        /// Error of the system.
        #[source]
        error: io::Error,
    },
    /// The mountpoint is a mount whose server is gone.
    #[error("{0} is a dead mountpoint: the process that served it has ended. Remove it first: umount -l {0}")]
    DeadMountpoint(PathBuf),
    /// The mountpoint cannot be used.
    #[error("mountpoint {path}: {error}")]
    Mountpoint {
        /// As given.
        path: PathBuf,
        /// Error of stat(2), or that it is no directory.
        #[source]
        error: io::Error,
    },
    /// fusermount3, through which users other than root mount, failed or is missing.
    #[error("{0}")]
    Helper(String),
    /// mount(2) failed.
    #[error("mounting on {path}: {error}{}", mount_hint(.error))]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// Error of mount(2).
        #[source]
        error: io::Error,
    },
    /// umount2(2) failed.
    #[error("unmounting {path}: {error}{}", unmount_hint(.error))]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// Error of umount2(2).
        #[source]
        error: io::Error,
    },
    /// The kernel's FUSE is too old, or it does not speak FUSE.
    #[error("the kernel's FUSE {major}.{minor} is not supported: 7.31 (Linux 5.4) or later is needed")]
    Version {
        /// Major version of the kernel's FUSE.
        major: u32,
        /// Minor version of the kernel's FUSE.
        minor: u32,
    },
    /// The kernel's first message was not a valid INIT.
    #[error("the kernel did not begin with a valid INIT")]
    Init,
    /// The file system was unmounted before it could serve.
    #[error("unmounted before the session began")]
    Gone,
}

impl FuseError {
    /// The nearest error number.
    pub fn errno(&self) -> Errno {
        match self {
            FuseError::Device { error }
            | FuseError::Mountpoint { error, .. }
            | FuseError::Mount { error, .. }
            | FuseError::Unmount { error, .. } => Errno::from_io(error),
            FuseError::Helper(_) => Errno::EPERM,
            FuseError::DeadMountpoint(_) => Errno::ENOTCONN,
            FuseError::Version { .. } | FuseError::Init => Errno::EPROTO,
            FuseError::Gone => Errno::ENODEV,
        }
    }
}

fn device_hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => {
            ". Load the module (modprobe fuse); in a container, pass --device /dev/fuse"
        }
        Some(libc::EACCES | libc::EPERM) => ". Users may not open it: run this as root, or chmod 666 /dev/fuse as root",
        _ => "",
    }
}

fn mount_hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EPERM) => ". Mounting needs root (CAP_SYS_ADMIN)",
        Some(libc::ENODEV) => ". The kernel has no FUSE: modprobe fuse",
        _ => "",
    }
}

fn unmount_hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EBUSY) => ". Files are open in it, or a process has its working directory there",
        _ => "",
    }
}

/// Checks that this process can mount: the device exists and, for users other than root, the program that mounts for
/// them. So this is known before anything is formatted or started.
pub fn check_device() -> Result<(), FuseError> {
    if helper::is_needed() { helper::check() } else { Channel::open().map(drop) }
}

/// Checks that a file system can be mounted on `path`: a directory that answers.
pub fn check_mountpoint(path: &Path) -> Result<(), FuseError> {
    let failed = |error| mountpoint_error(path, error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() { Ok(()) } else { Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR))) }
}

/// Finds out why a mountpoint cannot be used. The kernel answers ENOTCONN if the mount's server has died, and ECONNABORTED if the server
/// dies while it is asked.
fn mountpoint_error(path: &Path, error: io::Error) -> FuseError {
    match error.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => FuseError::DeadMountpoint(path.into()),
        _ => FuseError::Mountpoint { path: path.into(), error },
    }
}

/// Mounts the session of `channel`, from which the kernel's INIT can then be read.
pub(crate) fn mount(
    channel: &Channel,
    path: &Path,
    options: &MountOptions,
    max_read: usize,
) -> Result<MountKind, FuseError> {
    check_mountpoint(path)?;
    let mount = |kind: &str| {
        let data = options.data(channel.raw_fd(), max_read);
        let block_size = if kind == "fuseblk" { ",blksize=4096" } else { "" };
        mount_as(&format!("{kind}.{}", options.subtype), path, options, &format!("{data}{block_size}"))
    };
    let tried = options.block_device.then(|| with_device_at(&options.source, || mount("fuseblk")));
    match tried {
        Some(Ok(())) => {
            tracing::info!("mounted over a loop device: sync, syncfs and umount make everything durable");
            return Ok(MountKind::Block);
        }
        Some(Err(why)) => tracing::info!(
            "mounted as plain FUSE, because {why}: sync and syncfs do not reach this mount (`lfs sync` and fsync do), and \
             umount does not wait until everything is written unless umount.fuse.nacre is installed"
        ),
        None => {}
    }
    mount("fuse").map(|()| MountKind::Plain).map_err(|error| FuseError::Mount { path: path.into(), error })
}

fn mount_as(kind: &str, path: &Path, options: &MountOptions, data: &str) -> io::Result<()> {
    let (source, target) = (c_string(options.source.as_bytes())?, c_string(path.as_os_str().as_bytes())?);
    let (kind, data) = (c_string(kind.as_bytes())?, c_string(data.as_bytes())?);
    // SAFETY: all four are NUL-terminated strings that outlive the call.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), options.flags(), data.as_ptr().cast()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Changes the flags of the file system mounted on `path`. The process that serves it follows ([`crate::remount`]).
pub fn remount(path: &Path, options: &MountOptions) -> Result<(), FuseError> {
    let failed = |error| FuseError::Mount { path: path.into(), error };
    let target = c_string(path.as_os_str().as_bytes()).map_err(failed)?;
    let flags = options.flags() | libc::MS_REMOUNT;
    // SAFETY: a NUL-terminated string that outlives the call; a remount of FUSE takes no data.
    let result = unsafe { libc::mount(std::ptr::null(), target.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    if result < 0 { Err(failed(io::Error::last_os_error())) } else { Ok(()) }
}

/// The current flags of the mount of `device` (`major:minor`) on `path`; none if it is not mounted there. Another file
/// system may be mounted over it.
pub(crate) fn flags_of(mountinfo: &[u8], path: &[u8], device: &str) -> Option<MountOptions> {
    let fields = mounts_on(mountinfo, path).find(|fields| fields.get(2) == Some(&device.as_bytes()))?;
    let mut options = MountOptions { access_times: AccessTimes::Strict, ..MountOptions::default() };
    // The flags of the mount; those of the file system come behind type and source.
    let of_super = fields.iter().skip_while(|field| **field != b"-").nth(3);
    for list in [fields.get(5), of_super].into_iter().flatten() {
        for option in list.split(|b| *b == b',').filter_map(|o| std::str::from_utf8(o).ok()) {
            // If either list says read-only, the other does not overrule it.
            if option != "rw" {
                options.set_flag(option);
            }
        }
    }
    Some(options)
}

/// Unmounts `path`, a live or a dead mountpoint. May block while the kernel waits for the file system.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), FuseError> {
    if helper::is_needed() {
        return helper::unmount(path, how);
    }
    let failed = |error| FuseError::Unmount { path: path.into(), error };
    let target = c_string(path.as_os_str().as_bytes()).map_err(failed)?;
    let flags = match how {
        Unmount::WhenIdle => 0,
        Unmount::Lazy => libc::MNT_DETACH,
        Unmount::Force => libc::MNT_FORCE,
        Unmount::Abort => libc::MNT_FORCE | libc::MNT_DETACH,
    };
    let unmount = || {
        leave_descriptors();
        // SAFETY: a NUL-terminated string that outlives the call.
        let result = unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let unmounted = std::thread::scope(|scope| scope.spawn(unmount).join());
    unmounted.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(failed)
}

/// Gives this thread an empty table of descriptors. It may wait in the kernel, unkillable, for an answer of this very
/// process. If the process is killed then, its session must end all the same, and that ends only when no thread has its
/// descriptors open, not even a waiting one.
fn leave_descriptors() {
    // SAFETY: no memory is involved; from the first call on the table is this thread's own, and it uses no descriptor.
    unsafe {
        if libc::unshare(libc::CLONE_FILES) == 0 {
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        }
    }
}

/// Tells the kernel how far to read ahead on the mount at `path`. This is an optimisation: a failure is only logged at
/// debug level.
pub(crate) fn set_read_ahead(path: &Path, kib: u32) {
    let set = || -> io::Result<()> {
        let path = path.canonicalize()?;
        let mounts = std::fs::read("/proc/self/mountinfo")?;
        let device = device_of(&mounts, path.as_os_str().as_bytes()).ok_or(io::ErrorKind::NotFound)?;
        let of = |suffix: &str| format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
        // A mount over a block device has a name of its own, beside that of the device.
        let knob = [of("-fuseblk"), of("")].into_iter().find(|knob| Path::new(knob).exists());
        std::fs::write(knob.ok_or(io::ErrorKind::NotFound)?, kib.to_string())
    };
    if let Err(e) = set() {
        tracing::debug!("read-ahead of {} not set: {e}", path.display());
    }
}

/// Type of the topmost mount on `path`, such as `fuse.nacre`, even if its server is gone. None if nothing is mounted
/// there.
pub fn type_of(path: &Path) -> Option<String> {
    // The path itself may not answer, but its parent does.
    let path = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let fields = mounts_on(&mounts, path.as_os_str().as_bytes()).next()?;
    // Optional fields come before the dash, the type after it.
    text(fields.into_iter().skip_while(|field| *field != b"-").nth(1)?)
}

/// `major:minor` of the topmost mount on `path` in the text of /proc/self/mountinfo.
pub(crate) fn device_of(mountinfo: &[u8], path: &[u8]) -> Option<String> {
    text(mounts_on(mountinfo, path).next()?.get(2)?)
}

/// The lines of the mounts on `path` in the text of /proc/self/mountinfo, the topmost first.
fn mounts_on<'a>(mountinfo: &'a [u8], path: &[u8]) -> impl Iterator<Item = Vec<&'a [u8]>> {
    let lines = mountinfo.split(|b| *b == b'\n').rev();
    let lines = lines.map(|line| line.split(|b| *b == b' ').collect::<Vec<_>>());
    lines.filter(move |fields| fields.get(4).is_some_and(|point| unescape(point) == path))
}

fn text(field: &[u8]) -> Option<String> {
    String::from_utf8(unescape(field)).ok()
}

/// Undoes mountinfo's escapes of blanks and backslashes, e.g. `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        out.push(match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                rest = after;
                (a - b'0') * 64 + (b - b'0') * 8 + (c - b'0')
            }
            _ => *first,
        });
    }
    out
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_whose_server_has_died_or_is_dying_is_dead() {
        let of = |number| mountpoint_error(Path::new("/m"), io::Error::from_raw_os_error(number));
        for number in [libc::ENOTCONN, libc::ECONNABORTED] {
            assert!(matches!(of(number), FuseError::DeadMountpoint(_)), "{number}");
        }
        assert!(matches!(of(libc::EACCES), FuseError::Mountpoint { .. }));
    }

    #[test]
    fn options_as_the_kernel_takes_them() {
        let o = MountOptions { read_only: true, no_dev: true, default_permissions: true, ..MountOptions::default() };
        let want = "fd=5,rootmode=40000,user_id=0,group_id=0,max_read=1048576,allow_other,default_permissions";
        assert_eq!(o.data(5, 1 << 20), want);
        assert_eq!(o.flags(), libc::MS_RDONLY | libc::MS_NODEV | libc::MS_RELATIME);
        let o = MountOptions { source: "10.0.0.1@tcp,10.0.0.2@tcp:/nacre".into(), ..o };
        let want = "fsname=10.0.0.1@tcp\\,10.0.0.2@tcp:/nacre,subtype=nacre,max_read=4096,ro,default_permissions";
        assert_eq!(o.helper_options(4096, false), want);
        assert_eq!(o.helper_options(4096, true), format!("{want},allow_other"));
    }

    #[test]
    fn the_topmost_mount_of_a_path() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /mnt/a\\040b rw - tmpfs tmpfs rw\n\
            31 30 0:41 / /mnt/a\\040b rw - fuse.nacre nacre rw\n";
        assert_eq!(device_of(text, b"/mnt/a b").as_deref(), Some("0:41"));
        assert_eq!(type_of(Path::new("/proc")).as_deref(), Some("proc"));
        assert_eq!(type_of(Path::new("/proc/self")), None);
        assert_eq!(device_of(text, b"/").as_deref(), Some("254:0"));
        assert_eq!(device_of(text, b"/mnt"), None);
    }

    #[test]
    fn the_flags_of_a_mount_are_the_options_that_it_was_given() {
        let mut options = MountOptions::default();
        for option in ["ro", "noatime", "rw", "nosuid", "nodev", "strictatime", "sync", "nodiratime", "noexec"] {
            assert!(options.set_flag(option), "{option}");
        }
        assert!(!options.set_flag("user=me"));
        let want = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let want = want | libc::MS_STRICTATIME | libc::MS_SYNCHRONOUS | libc::MS_NODIRATIME;
        assert_eq!(options.flags(), want);
        let shown = b"31 30 0:41 / /m rw,nosuid,nodev,noexec,nodiratime - fuse.nacre nacre rw,sync,user_id=0\n";
        assert_eq!(flags_of(shown, b"/m", "0:41"), Some(MountOptions { ..options }));
        let shown = b"31 30 0:41 / /m ro,relatime shared:7 - fuse.nacre nacre rw,dirsync\n";
        let rules = flags_of(shown, b"/m", "0:41").unwrap().rules();
        let want = MountRules { read_only: true, dir_sync: true, ..MountRules::default() };
        assert_eq!(rules, want);
        assert_eq!(flags_of(shown, b"/other", "0:41"), None);
        let covered = b"31 30 0:41 / /m rw - fuse.nacre nacre rw\n32 31 0:50 / /m ro,noatime - tmpfs tmpfs ro\n";
        assert_eq!(flags_of(covered, b"/m", "0:41").map(|options| options.read_only), Some(false), "what lies over it");
    }

    #[test]
    fn a_mountpoint_must_be_a_directory() {
        let e = check_mountpoint(Path::new("/proc/version")).unwrap_err();
        assert_eq!(e.errno(), Errno::ENOTDIR);
        let e = check_mountpoint(Path::new("/nonexistent/here")).unwrap_err();
        assert_eq!(e.to_string(), "mountpoint /nonexistent/here: No such file or directory (os error 2)");
    }
}
