//! A mounted session: what INIT agrees on, the reader threads, the end.
#![allow(clippy::disallowed_methods)] // Starts the threads that block in the device, and unmounts.

use crate::abi::{self, init, opcode};
use crate::dev::{Channel, Server};
use crate::handler::Handler;
use crate::interrupt::Interrupts;
use crate::mount::{self, FuseError, MountOptions, Unmount};
use crate::notify::Notifier;
use crate::pool::Pool;
use crate::reply::Sink;
use crate::request::{self, Dialect};
use nacre_rt::Rt;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;
use zerocopy::{FromBytes, IntoBytes};

/// Largest READ and WRITE. Larger ones gained nothing, and kernels refuse them by default.
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// Asynchronous requests (read-ahead, asynchronous direct I/O) that the kernel keeps under way at the same time.
const BACKGROUND_MAX: u16 = 128;
/// From so many on the kernel calls the mount congested and reads ahead less.
const CONGESTION_THRESHOLD: u16 = 96;
/// Threads that read requests.
const READERS: usize = 2;
/// Idle message buffers kept, of 1 MiB each.
const BUFFERS_FREE_MAX: usize = 16;

/// What we ask for where the kernel offers it. Not among them, on purpose: WRITEBACK_CACHE, which hides writes from the
/// lock manager; AUTO_INVAL_DATA, because lock callbacks say what is stale; NO_OPEN, because opens carry state; SPLICE,
/// slower than copying here; POSIX_ACL and DONT_MASK, which belong together and come with ACLs; HANDLE_KILLPRIV, because
/// its first version makes the kernel forget set-id bits that it should ask us to clear.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::FLOCK_LOCKS
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;

/// A mounted file system. Dropping it unmounts lazily.
pub struct Session {
    mountpoint: PathBuf,
    notifier: Notifier,
    readers_left: Arc<AtomicUsize>,
    ended: watch::Receiver<bool>,
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
    // Mounting walks paths on foreign file systems, which may take their time.
    let started = tokio::task::spawn_blocking(move || start(rt, mountpoint, &options, handler));
    started.await.map_err(|_| FuseError::Gone)?
}

impl Session {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// To invalidate what the kernel caches.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Waits until the file system is unmounted, by whomever, and its handler's `destroy` has run.
    pub async fn wait_unmounted(&self) {
        // An error says that the runtime was killed: the session is as over as it can be.
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

    /// Whether the kernel has ended the session.
    fn device_is_gone(&self) -> bool {
        self.readers_left.load(Ordering::Acquire) == 0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.device_is_gone() {
            if let Err(e) = mount::unmount(&self.mountpoint, Unmount::Lazy) {
                // EINVAL: somebody has unmounted it lazily already, and files are open.
                tracing::debug!("{e}");
            }
        }
    }
}

fn start(rt: Rt, path: PathBuf, options: &MountOptions, handler: Arc<dyn Handler>) -> Result<Session, FuseError> {
    mount::check_mountpoint(&path)?;
    let path = path.canonicalize().map_err(|error| FuseError::Mountpoint { path: path.clone(), error })?;
    let channel = Channel::open()?;
    mount::mount(&channel, &path, options, IO_BYTES_MAX as usize)?;
    let session = run(rt, &path, channel, handler);
    match &session {
        Ok(_) if options.read_ahead_kib > 0 => mount::set_read_ahead(&path, options.read_ahead_kib),
        Ok(_) => {}
        Err(_) => drop(mount::unmount(&path, Unmount::Lazy)),
    }
    session
}

/// Answers INIT, then serves from threads of its own.
fn run(rt: Rt, path: &Path, channel: Channel, handler: Arc<dyn Handler>) -> Result<Session, FuseError> {
    let pool = Pool::new(IO_BYTES_MAX as usize, BUFFERS_FREE_MAX);
    let mut buf = pool.take();
    let len = channel.receive(&mut buf).map_err(|error| FuseError::Device { error })?.ok_or(FuseError::Gone)?;
    let (unique, agreed) = negotiate(&buf[..len], page_size())?;
    drop(buf);
    let header =
        abi::OutHeader { len: (size_of::<abi::OutHeader>() + size_of::<abi::InitOut>()) as u32, error: 0, unique };
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(agreed.reply.as_bytes())];
    channel.send(&parts).map_err(|error| FuseError::Device { error })?;

    let mut channels = vec![Arc::new(channel)];
    for _ in 1..READERS {
        channels.push(Arc::new(channels[0].clone_channel()?));
    }
    let notifier = Notifier::new(channels[0].clone());
    handler.init(notifier.clone());
    let interrupts = Arc::new(Interrupts::default());
    let server = Arc::new(Server {
        rt,
        handler,
        interrupts,
        dialect: agreed.dialect,
        pool,
        runtime: tokio::runtime::Handle::current(),
    });
    let readers_left = Arc::new(AtomicUsize::new(channels.len()));
    let (ended_sender, ended) = watch::channel(false);
    let session = Session { mountpoint: path.into(), notifier, readers_left: readers_left.clone(), ended };
    for (i, channel) in channels.into_iter().enumerate() {
        let (server, left, ended) = (server.clone(), readers_left.clone(), ended_sender.clone());
        let reader = move || {
            let _in_runtime = server.runtime.enter();
            server.serve(&channel);
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                finish(&server, ended);
            }
        };
        std::thread::Builder::new().name(format!("fuse-{i}")).spawn(reader).map_err(FuseError::Thread)?;
    }
    Ok(session)
}

/// The last reader has ended: so does the file system.
fn finish(server: &Server, ended: watch::Sender<bool>) {
    server.interrupts.handle_end();
    let destroyed = server.handler.clone().destroy();
    server.rt.spawn(async move {
        destroyed.await;
        ended.send_replace(true);
    });
}

/// What INIT agreed on.
struct Agreed {
    reply: abi::InitOut,
    dialect: Dialect,
}

/// Answers the kernel's INIT message: the request's number, and what to reply.
fn negotiate(message: &[u8], page_size: u32) -> Result<(u64, Agreed), FuseError> {
    let header = request::parse_header(message).map_err(|_| FuseError::Init)?;
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
    let flags = offered & WANTED;
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

fn page_size() -> u32 {
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
        let (unique, agreed) = negotiate(&init_message(init_in(31, offered), &[]), 4096).unwrap();
        assert_eq!(unique, 2);
        let r = agreed.reply;
        assert_eq!((r.major, r.minor, r.max_write, r.max_pages, r.max_readahead), (7, 31, 1 << 20, 256, 131_072));
        assert_eq!(u64::from(r.flags), WANTED & offered);
        assert_eq!((r.flags2, agreed.dialect), (0, Dialect::default()));
    }

    #[test]
    fn a_new_kernel_is_asked_for_no_more_than_wanted() {
        let all = init_message(init_in(99, u64::MAX), &[0xff; 48]);
        let (_, agreed) = negotiate(&all, 65536).unwrap();
        assert_eq!(u64::from(agreed.reply.flags) | u64::from(agreed.reply.flags2) << 32, WANTED);
        assert_eq!((agreed.reply.minor, agreed.reply.max_pages), (abi::MINOR, 16));
        assert_eq!(agreed.dialect, Dialect { setxattr_ext: true, extensions: true });
    }

    #[test]
    fn too_old_or_no_init_is_refused() {
        let old = negotiate(&init_message(init_in(30, 0), &[]), 4096).err().unwrap();
        assert!(matches!(old, FuseError::Version { major: 7, minor: 30 }), "{old}");
        let mut other = init_message(init_in(31, 0), &[]);
        other[4] = opcode::LOOKUP as u8;
        assert!(matches!(negotiate(&other, 4096), Err(FuseError::Init)));
        let no_flags2 = init_message(init_in(36, init::INIT_EXT), &[]);
        assert!(matches!(negotiate(&no_flags2, 4096), Err(FuseError::Init)));
        assert!(matches!(negotiate(&[], 4096), Err(FuseError::Init)));
    }
}
