//! A mounted session: INIT, the readers, the end.
#![allow(clippy::disallowed_methods)] // Mounting and unmounting block: they need tokio's blocking pool.

use crate::abi::{self, init, opcode};
use crate::dev::{Channel, Received, Server};
use crate::handler::Handler;
use crate::helper;
use crate::interrupt::Interrupts;
use crate::mount::{self, FuseError, MountKind, MountOptions, Unmount};
use crate::notify::Notifier;
use crate::parse::{self, Dialect};
use crate::pool::Pool;
use crate::releases::Releases;
use crate::remount;
use crate::sink::Sink;
use nacre_client::MountRules;
use nacre_rt::{Rt, Task};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use tokio::sync::{Notify, watch};
use zerocopy::{FromBytes, IntoBytes};

/// Largest READ and WRITE. Larger ones gained nothing, and kernels refuse them by default.
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// Asynchronous requests (read-ahead, asynchronous direct I/O, pages that are written out) that the kernel keeps under way at the
/// same time. As many as possible: requests that wait for another client's lock must not keep back the pages that this other
/// client waits for. What a program has under way it has in its own memory, too.
const BACKGROUND_MAX: u16 = u16::MAX;
/// Number of such requests from which the kernel calls the mount congested and reads ahead less.
const CONGESTION_THRESHOLD: u16 = 96;
/// Most readers beside the leader.
const HELPERS_MAX: usize = 3;
/// Message buffers of 1 MiB that an idle mount keeps.
const BUFFERS_KEPT: usize = 32;

/// Features requested where the kernel offers them. Left out on purpose: WRITEBACK_CACHE, which hides writes from the
/// lock manager; NO_OPEN, because opens carry state; SPLICE, slower than copying here; HANDLE_KILLPRIV, whose second
/// version says when set-id bits have to be removed. With AUTO_INVAL_DATA a read that goes on while the file is cut by
/// others ends where the file ends, though lock callbacks say what is stale. POSIX_ACL
/// makes the kernel check permissions, lists included, which it must if it keeps names; DONT_MASK belongs to it, because
/// a directory's default list takes the umask's place.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::AUTO_INVAL_DATA
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::FLOCK_LOCKS
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;

impl MountOptions {
    /// Features requested for a mount with these options.
    fn wanted(&self) -> u64 {
        if self.handle_kill_priv { WANTED } else { WANTED & !init::HANDLE_KILLPRIV_V2 }
    }
}

/// A mounted file system. Dropping it aborts it: see [`Unmount::Abort`].
pub struct Session {
    mountpoint: PathBuf,
    kind: MountKind,
    notifier: Notifier,
    device_gone: Arc<AtomicBool>,
    ended: watch::Receiver<bool>,
    follower: Option<Task>,
}

/// Mounts `handler` on `mountpoint` and serves it until it is unmounted. Requests that have to wait become tasks of `rt`,
/// which must run on tokio.
pub async fn serve(
    rt: Rt,
    mountpoint: &Path,
    options: MountOptions,
    handler: Arc<dyn Handler>,
) -> Result<Session, FuseError> {
    let mountpoint = mountpoint.to_path_buf();
    // Mounting resolves paths on other file systems, which may take long.
    let started = tokio::task::spawn_blocking(move || start(rt, mountpoint, &options, handler));
    started.await.map_err(|_| FuseError::Gone)?
}

impl Session {
    /// Directory on which it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// How the kernel mounted the file system.
    pub fn kind(&self) -> MountKind {
        self.kind
    }

    /// Calls `changed` with the rules from the mount's flags, now and after each remount.
    pub(crate) fn follow_remounts(&mut self, rt: &Rt, changed: impl Fn(MountRules) + Send + Sync + 'static) {
        match remount::follow(rt, &self.mountpoint, changed) {
            Ok(task) => self.follower = Some(task),
            Err(error) => tracing::warn!(%error, "{}", remount::UNNOTICED),
        }
    }

    /// Notifier for invalidating the kernel's caches.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Waits until the file system is unmounted, by whomever, and its handler's `destroy` has run.
    pub async fn wait_unmounted(&self) {
        // An error means that the runtime was killed, and the session with it.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Unmounts. After [`Unmount::Lazy`] the session lasts until the last file is closed: see [`Session::wait_unmounted`].
    pub async fn unmount(&self, how: Unmount) -> Result<(), FuseError> {
        let mountpoint = self.mountpoint.clone();
        let unmounted = tokio::task::spawn_blocking(move || mount::unmount(&mountpoint, how));
        unmounted.await.map_err(|_| FuseError::Gone)??;
        if how == Unmount::WhenIdle {
            self.wait_unmounted().await;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.follower.iter().for_each(Task::abort);
        if !self.device_gone.load(Ordering::Acquire)
            // Waiting for the handler here could be waiting for this very thread.
            && let Err(e) = mount::unmount(&self.mountpoint, Unmount::Abort)
        {
            // EINVAL: it was unmounted lazily already, and files are open.
            tracing::debug!("{e}");
        }
    }
}

fn start(rt: Rt, path: PathBuf, options: &MountOptions, handler: Arc<dyn Handler>) -> Result<Session, FuseError> {
    mount::check_mountpoint(&path)?;
    let path = path.canonicalize().map_err(|error| FuseError::Mountpoint { path: path.clone(), error })?;
    let (channel, kind) = if helper::is_needed() {
        (helper::mount(&path, options, IO_BYTES_MAX as usize)?, MountKind::Plain)
    } else {
        let channel = Channel::open()?;
        let kind = mount::mount(&channel, &path, options, IO_BYTES_MAX as usize)?;
        (channel, kind)
    };
    let session = run(rt, &path, kind, channel, handler, options.wanted());
    match &session {
        Ok(_) if options.read_ahead_kib > 0 => mount::set_read_ahead(&path, options.read_ahead_kib),
        Ok(_) => {}
        Err(_) => drop(mount::unmount(&path, Unmount::Abort)),
    }
    session
}

/// Answers INIT, then starts the readers.
fn run(
    rt: Rt,
    path: &Path,
    kind: MountKind,
    channel: Channel,
    handler: Arc<dyn Handler>,
    wanted: u64,
) -> Result<Session, FuseError> {
    let pool = Pool::new(IO_BYTES_MAX as usize, BUFFERS_KEPT);
    let dialect = answer_init(&channel, &mut pool.take(), wanted)?;
    let channel = Arc::new(channel);
    let mut helpers = Vec::new();
    for _ in 0..available_parallelism().map_or(1, |n| n.get() - 1).clamp(1, HELPERS_MAX) {
        match channel.clone_channel() {
            Ok(clone) => helpers.push(Arc::new(clone)),
            // Do without helpers: the leader reads everything itself.
            Err(e) if helper::is_needed() => tracing::info!("one reader of /dev/fuse only: {e}"),
            Err(e) => return Err(e),
        }
    }
    for c in helpers.iter().chain([&channel]) {
        c.set_nonblocking()?;
    }
    let notifier = Notifier::new(&rt, channel.clone());
    handler.init(notifier.clone());
    let (interrupts, help) = (Arc::new(Interrupts::new(rt.clone())), Notify::new());
    let releases = Arc::new(Releases::new(helpers.len() + 1));
    let server = Arc::new(Server { rt: rt.clone(), handler, interrupts, dialect, pool, releases, help });
    let (over, ended) = watch::channel(false);
    let device_gone = Arc::new(AtomicBool::new(false));
    let session =
        Session { mountpoint: path.into(), kind, notifier, device_gone: device_gone.clone(), ended, follower: None };

    let assist = |(i, c)| {
        let server = server.clone();
        rt.spawn(async move { server.assist(i + 1, c).await })
    };
    let helpers: Vec<_> = helpers.into_iter().enumerate().map(assist).collect();
    let trimmed = server.clone();
    let trimmer = rt.spawn(async move { trimmed.pool.trim_forever(&trimmed.rt).await });
    rt.spawn(async move {
        server.lead(channel).await;
        device_gone.store(true, Ordering::Release);
        helpers.iter().chain([&trimmer]).for_each(Task::abort);
        server.interrupts.handle_end();
        server.handler.clone().destroy().await;
        over.send_replace(true);
    });
    Ok(session)
}

/// Reads the kernel's first message and answers it.
fn answer_init(channel: &Channel, buf: &mut [u8], wanted: u64) -> Result<Dialect, FuseError> {
    let device = |error| FuseError::Device { error };
    let Received::Message(len) = channel.receive(buf).map_err(device)? else { return Err(FuseError::Gone) };
    let (unique, agreed) = negotiate(&buf[..len], page_size(), wanted)?;
    let len = size_of::<abi::OutHeader>() + size_of::<abi::InitOut>();
    let header = abi::OutHeader { len: len as u32, error: 0, unique };
    channel.send(&[IoSlice::new(header.as_bytes()), IoSlice::new(agreed.reply.as_bytes())]).map_err(device)?;
    Ok(agreed.dialect)
}

/// Result of INIT.
struct Agreed {
    reply: abi::InitOut,
    dialect: Dialect,
}

/// Answers the kernel's INIT message. Returns the request's number, and the reply.
fn negotiate(message: &[u8], page_size: u32, wanted: u64) -> Result<(u64, Agreed), FuseError> {
    let header = parse::parse_header(message).map_err(|_| FuseError::Init)?;
    if header.opcode != opcode::INIT {
        return Err(FuseError::Init);
    }
    let body = &message[size_of::<abi::InHeader>()..];
    let (theirs, rest) = abi::InitIn::read_from_prefix(body).map_err(|_| FuseError::Init)?;
    if theirs.major != abi::MAJOR || theirs.minor < abi::MINOR_MIN {
        return Err(FuseError::Version { major: theirs.major, minor: theirs.minor });
    }
    let mut offered = u64::from(theirs.flags);
    if offered & init::INIT_EXT != 0 {
        let (flags2, _) = u32::read_from_prefix(rest).map_err(|_| FuseError::Init)?;
        offered |= u64::from(flags2) << 32;
    }
    let flags = offered & wanted;
    let reply = abi::InitOut {
        major: abi::MAJOR,
        minor: theirs.minor.min(abi::MINOR),
        max_readahead: theirs.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: IO_BYTES_MAX,
        time_gran: 1,
        max_pages: u16::try_from(IO_BYTES_MAX.div_ceil(page_size)).unwrap_or(u16::MAX),
        ..Default::default()
    };
    let agreed = |flag| flags & flag != 0;
    let dialect = Dialect { setxattr_ext: agreed(init::SETXATTR_EXT), extensions: agreed(init::CREATE_SUPP_GROUP) };
    Ok((header.unique, Agreed { reply, dialect }))
}

/// The kernel's page size in bytes.
pub(crate) fn page_size() -> u32 {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).unwrap_or(4096).max(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init_message(init: abi::InitIn, rest: &[u8]) -> Vec<u8> {
        let body = [init.as_bytes(), rest].concat();
        let h = abi::InHeader { len: 40 + body.len() as u32, opcode: opcode::INIT, unique: 2, ..Default::default() };
        [h.as_bytes(), &body].concat()
    }

    fn init_in(minor: u32, flags: u64) -> abi::InitIn {
        abi::InitIn { major: 7, minor, max_readahead: 131_072, flags: flags as u32 }
    }

    #[test]
    fn linux_5_4_gets_what_it_knows() {
        let offered = (init::INIT_EXT - 1) & !init::SETXATTR_EXT & !init::HANDLE_KILLPRIV_V2;
        let (unique, agreed) = negotiate(&init_message(init_in(31, offered), &[]), 4096, WANTED).unwrap();
        assert_eq!(unique, 2);
        let r = agreed.reply;
        assert_eq!((r.major, r.minor, r.max_write, r.max_pages, r.max_readahead), (7, 31, 1 << 20, 256, 131_072));
        assert_eq!(u64::from(r.flags), WANTED & offered);
        assert_eq!((r.flags2, agreed.dialect), (0, Dialect::default()));
    }

    #[test]
    fn a_new_kernel_is_asked_for_no_more_than_wanted() {
        let all = init_message(init_in(99, u64::MAX), &[0xff; 48]);
        let (_, agreed) = negotiate(&all, 65536, WANTED).unwrap();
        assert_eq!(u64::from(agreed.reply.flags) | u64::from(agreed.reply.flags2) << 32, WANTED);
        assert_eq!((agreed.reply.minor, agreed.reply.max_pages), (abi::MINOR, 16));
        assert_eq!(agreed.dialect, Dialect { setxattr_ext: true, extensions: true });
    }

    #[test]
    fn set_id_bits_are_left_to_the_kernel_if_asked_for() {
        let options = MountOptions { handle_kill_priv: false, ..MountOptions::default() };
        assert_eq!(MountOptions::default().wanted(), WANTED);
        assert_eq!(options.wanted(), WANTED & !init::HANDLE_KILLPRIV_V2);
    }

    #[test]
    fn too_old_or_no_init_is_refused() {
        let old = negotiate(&init_message(init_in(30, 0), &[]), 4096, WANTED).err().unwrap();
        assert!(matches!(old, FuseError::Version { major: 7, minor: 30 }), "{old}");
        let mut other = init_message(init_in(31, 0), &[]);
        other[4] = opcode::LOOKUP as u8;
        assert!(matches!(negotiate(&other, 4096, WANTED), Err(FuseError::Init)));
        let no_flags2 = init_message(init_in(36, init::INIT_EXT), &[]);
        assert!(matches!(negotiate(&no_flags2, 4096, WANTED), Err(FuseError::Init)));
        assert!(matches!(negotiate(&[], 4096, WANTED), Err(FuseError::Init)));
    }
}
