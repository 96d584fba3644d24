//! Real mounts on the real /dev/fuse: the null file system through the kernel, and handlers that misbehave. Needs root
//! and /dev/fuse, and says so if they are missing.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // A test of files needs files.

use async_trait::async_trait;
use nacre_base::{Errno, Payload};
use nacre_fuse::handler::{Context, Handler};
use nacre_fuse::reply::*;
use nacre_fuse::request::{self, LockSpace};
use nacre_fuse::{FuseError, MountKind, MountOptions, Notifier, Session, Unmount, serve};
use nacre_nullfs::{self as null, NullOptions};
use nacre_rt::Rt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A mounted session and its directory, unmounted in this order.
struct Mounted {
    session: Session,
    directory: TempDir,
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

async fn mount(handler: Arc<dyn Handler>) -> Mounted {
    let directory = tempfile::tempdir().unwrap();
    let session = serve(Rt::production(), directory.path(), MountOptions::default(), handler).await;
    Mounted { session: needs_root(session), directory }
}

async fn mount_null(options: NullOptions) -> Mounted {
    let directory = tempfile::tempdir().unwrap();
    let mount_options = MountOptions { source: "mgs@tcp:/null".into(), ..MountOptions::default() };
    let session = null::mount(Rt::production(), directory.path(), mount_options, options).await;
    Mounted { session: needs_root(session), directory }
}

fn needs_root(session: Result<Session, FuseError>) -> Session {
    session.unwrap_or_else(|e| panic!("this test mounts FUSE, which needs root and /dev/fuse: {e}"))
}

/// Runs file system calls, which block, outside the runtime that serves them.
async fn calls<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.unwrap()
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_can_be_built_listed_and_removed() {
    let m = mount_null(NullOptions::default()).await;
    let root = m.path("");
    calls(move || {
        let d = root.join("d");
        fs::create_dir(&d).unwrap();
        for i in 0..3000 {
            File::create_new(d.join(format!("file-{i:05}"))).unwrap();
        }
        let listed = names(&d);
        assert_eq!((listed.len(), listed[0].as_str(), listed[2999].as_str()), (3000, "file-00000", "file-02999"));
        assert_eq!(errno(File::create_new(d.join("file-00007"))), libc::EEXIST);
        assert_eq!(errno(fs::remove_dir(&d)), libc::ENOTEMPTY);
        fs::rename(d.join("file-00007"), root.join("moved")).unwrap();
        assert!(fs::metadata(d.join("file-00007")).is_err() && fs::metadata(root.join("moved")).is_ok());
        symlink("moved", root.join("link")).unwrap();
        assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("moved"));
        fs::set_permissions(root.join("moved"), fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(root.join("link")).unwrap().mode(), libc::S_IFREG | 0o4751);
        fs::remove_dir_all(&d).unwrap();
        assert_eq!(names(&root), ["link", "moved"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_goes_through_directly_and_through_the_page_cache() {
    for open_flags in [OpenFlags::DIRECT_IO, OpenFlags::NONE] {
        let m = mount_null(NullOptions { open_flags, ..NullOptions::default() }).await;
        let path = m.path("file");
        calls(move || {
            let mut file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
            file.write_all(&vec![7; 5 << 20]).unwrap();
            file.write_all_at(b"far", 10 << 20).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), (10 << 20) + 3);
            let mut all = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut all).unwrap();
            assert_eq!(all.len(), (10 << 20) + 3);
            file.set_len(100).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 100);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_is_read_again_with_holes_as_zeroes() {
    let m = mount_null(NullOptions { keeps_data: true, ..NullOptions::default() }).await;
    let (path, other) = (m.path("file"), m.path("other"));
    calls(move || {
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"head", 0).unwrap();
        file.write_all_at(b"tail", 10).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"head\0\0\0\0\0\0tail");
        file.set_len(2).unwrap();
        file.set_len(6).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"he\0\0\0\0", "what was cut off does not come back");
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!((fs::read(&other).unwrap().len(), fs::metadata(&other).unwrap().nlink()), (6, 1));
        assert_eq!(errno(file.write_all_at(b"far", 1 << 40)), libc::EFBIG);
    })
    .await;
}

#[tokio::test]
async fn mount_shows_name_and_type_and_unmounting_ends_the_session() {
    let m = mount_null(NullOptions::default()).await;
    let point = m.session.mountpoint().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(&point)).unwrap();
    let kind = if m.session.kind() == MountKind::Block { "fuseblk" } else { "fuse" };
    assert!(line.starts_with(&format!("mgs@tcp:/null {point} {kind}.nacre rw,")), "{line}");

    let path = m.path("open");
    let open = calls(move || File::create(path).unwrap()).await;
    let busy = m.session.unmount(Unmount::WhenIdle).await.unwrap_err();
    assert_eq!(busy.errno(), Errno::EBUSY);
    assert!(busy.to_string().contains("Files are open in it"), "{busy}");
    // close(2) asks the handler first, so it must not run on the only thread that could run the handler.
    calls(move || drop(open)).await;
    m.session.unmount(Unmount::WhenIdle).await.unwrap();
    m.session.wait_unmounted().await;
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&point));
}

#[tokio::test]
async fn a_mountpoint_whose_server_died_is_recognised() {
    let m = mount_null(NullOptions::default()).await;
    let path = m.path("open");
    let open = calls(move || File::create(path).unwrap()).await;
    // A forced unmount with a file open aborts the session and leaves the mount, as if the process had died.
    assert_eq!(m.session.unmount(Unmount::Force).await.unwrap_err().errno(), Errno::EBUSY);
    m.session.wait_unmounted().await;
    let point = m.session.mountpoint().to_path_buf();
    let again = null::mount(Rt::production(), &point, MountOptions::default(), NullOptions::default()).await;
    let error = again.err().unwrap();
    assert!(matches!(&error, FuseError::DeadMountpoint(p) if *p == point), "{error}");
    assert!(error.to_string().ends_with(&format!("umount -l {}", point.display())), "{error}");
    drop(open);
    nacre_fuse::mount::unmount(&point, Unmount::Lazy).unwrap();
}

/// A file system of three files, whose handlers do what a test needs.
#[derive(Default)]
struct Odd {
    notifier: std::sync::OnceLock<Notifier>,
    /// The byte that every file consists of.
    content: AtomicU32,
    lookups: AtomicU32,
    lock_space: parking_lot::Mutex<Option<LockSpace>>,
    destroyed: AtomicU32,
    written: parking_lot::Mutex<Vec<bytes::Bytes>>,
}

impl Odd {
    fn attr(&self, node: u64) -> Attr {
        let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        Attr { ino: node, mode, nlink: 1, size: 10, ..Attr::default() }
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[async_trait]
impl Handler for Odd {
    fn init(&self, notifier: Notifier) {
        assert!(self.notifier.set(notifier).is_ok(), "init is called once");
    }

    async fn lookup(self: Arc<Self>, _: Context, op: request::Lookup, reply: ReplyEntry) {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let node = match &op.name[..] {
            b"panics" => 2,
            b"dropped" => 3,
            b"file" => 4,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.ok(&Entry { node, entry_valid: LONG, attr_valid: LONG, attr: self.attr(node), ..Entry::default() });
    }

    async fn get_attr(self: Arc<Self>, _: Context, op: request::GetAttr, reply: ReplyAttr) {
        reply.ok(&self.attr(op.node), LONG);
    }

    async fn open(self: Arc<Self>, _: Context, op: request::Open, reply: ReplyOpen) {
        match op.node {
            2 => panic!("announced: this handler panics"),
            3 => drop(reply),
            _ => reply.ok(Opened { handle: 0, flags: OpenFlags::KEEP_CACHE }),
        }
    }

    async fn read(self: Arc<Self>, _: Context, op: request::Read, reply: ReplyData) {
        // The handler waits first, so that reading needs a task.
        tokio::task::yield_now().await;
        let byte = self.content.load(Ordering::SeqCst) as u8;
        reply.ok(Payload::from(vec![byte; op.size as usize]));
    }

    async fn write(self: Arc<Self>, _: Context, op: request::Write, reply: ReplyWrite) {
        let len = op.data.len() as u32;
        self.written.lock().push(op.data);
        reply.ok(len);
    }

    async fn set_lock(self: Arc<Self>, ctx: Context, op: request::SetLock, reply: ReplyEmpty) {
        *self.lock_space.lock() = Some(op.space);
        if !op.wait {
            return reply.error(Errno::EAGAIN);
        }
        ctx.interrupted().await;
        reply.error(Errno::EINTR);
    }

    async fn destroy(self: Arc<Self>) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_handler_that_panics_or_forgets_to_reply_gives_eio() {
    let m = mount(Arc::new(Odd::default())).await;
    for name in ["panics", "dropped", "panics"] {
        let path = m.path(name);
        assert_eq!(calls(move || errno(File::open(path))).await, libc::EIO, "{name}");
    }
    let path = m.path("absent");
    assert_eq!(calls(move || errno(File::open(path))).await, libc::ENOENT, "the session lives on");
}

extern "C" fn ignore(_: libc::c_int) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_reaches_a_request_that_waits_for_a_lock() {
    let odd = Arc::new(Odd::default());
    let m = mount(odd.clone()).await;
    let path = m.path("file");
    let (thread_sender, thread) = tokio::sync::oneshot::channel();
    let waiter = tokio::task::spawn_blocking(move || {
        // SAFETY: a handler that does nothing, installed without SA_RESTART so that the system call ends.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as *const () as usize;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        let file = OpenOptions::new().write(true).open(path).unwrap();
        // SAFETY: no preconditions.
        thread_sender.send(unsafe { libc::pthread_self() }).unwrap();
        // SAFETY: the lock description is complete, and F_SETLKW reads it.
        let result = unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as i16;
            libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock)
        };
        (result, io::Error::last_os_error().raw_os_error())
    });
    let thread = thread.await.unwrap();
    while odd.lock_space.lock().is_none() {
        tokio::task::yield_now().await;
    }
    // The handler has the request. Repeated, because the waiter may not sleep in the kernel yet.
    while !waiter.is_finished() {
        // SAFETY: the thread belongs to the runtime's pool and lives as long as this test.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(waiter.await.unwrap(), (-1, Some(libc::EINTR)));
    assert_eq!(*odd.lock_space.lock(), Some(LockSpace::Posix));
}

#[tokio::test]
async fn flock_is_not_fcntl() {
    let odd = Arc::new(Odd::default());
    let m = mount(odd.clone()).await;
    let path = m.path("file");
    // SAFETY: no preconditions.
    let flock = |f: File| unsafe { libc::flock(f.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    assert_eq!(calls(move || flock(File::open(path).unwrap())).await, -1);
    assert_eq!(*odd.lock_space.lock(), Some(LockSpace::Flock));
}

#[tokio::test]
async fn writes_that_are_not_small_arrive_page_aligned() {
    let odd = Arc::new(Odd::default());
    let m = mount(odd.clone()).await;
    let path = m.path("file");
    calls(move || {
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        file.write_all(&[1; 16384]).unwrap();
        file.write_all(&vec![2; 1 << 20]).unwrap();
    })
    .await;
    let written = odd.written.lock();
    assert_eq!(written.iter().map(|w| w.len()).sum::<usize>(), (1 << 20) + 16384);
    // The kernel splits where the program's buffer spans one more page.
    let large: Vec<_> = written.iter().filter(|data| data.len() >= 16 << 10).collect();
    assert!(!large.is_empty());
    for data in large {
        assert_eq!(data.as_ptr() as usize % 4096, 0, "a write of {} bytes", data.len());
    }
    assert_eq!((written[0][0], written[written.len() - 1][0]), (1, 2));
}

#[tokio::test]
async fn what_the_kernel_cached_is_gone_after_an_invalidation() {
    let odd = Arc::new(Odd::default());
    let m = mount(odd.clone()).await;
    let path = m.path("file");
    let look = move || {
        let path = path.clone();
        calls(move || fs::read(&path).unwrap())
    };
    assert_eq!(look().await, [0; 10]);
    odd.content.store(5, Ordering::SeqCst);
    assert_eq!(look().await, [0; 10], "the content comes from the kernel's cache");
    let notifier = odd.notifier.get().unwrap();
    notifier.inval_inode(4, 0, 0).await.unwrap();
    assert_eq!(look().await, [5; 10]);

    let before = odd.lookups.load(Ordering::SeqCst);
    look().await;
    assert_eq!(odd.lookups.load(Ordering::SeqCst), before, "the name comes from the kernel's cache");
    for (i, name) in ["file", "never heard of"].into_iter().enumerate() {
        let unknown = notifier.inval_entry(1, name.as_bytes()).await.err();
        assert_eq!(unknown, (i == 1).then_some(Errno::ENOENT));
        look().await;
        assert_eq!(odd.lookups.load(Ordering::SeqCst), before + 1, "{i}");
    }
}

#[tokio::test]
async fn destroy_is_called_once_when_somebody_else_unmounts() {
    let odd = Arc::new(Odd::default());
    let m = mount(odd.clone()).await;
    let point = m.session.mountpoint().to_path_buf();
    calls(move || nacre_fuse::mount::unmount(&point, Unmount::WhenIdle).unwrap()).await;
    m.session.wait_unmounted().await;
    assert_eq!(odd.destroyed.load(Ordering::SeqCst), 1);
}
