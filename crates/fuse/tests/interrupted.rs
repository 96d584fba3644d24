//! Signals to programs whose calls wait for a handler: the call ends, the handler goes on, and what it gives to a call
//! that has ended is taken back. Also what sync(2) and umount(2) wait for. Needs root and /dev/fuse.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // A test of files needs files.

use async_trait::async_trait;
use nacre_base::{Errno, Payload};
use nacre_fuse::handler::{Context, Handler};
use nacre_fuse::reply::*;
use nacre_fuse::request;
use nacre_fuse::{MountKind, MountOptions, Session, Unmount, serve};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Semaphore;

/// A file system whose operations wait until the test releases them: each kind on the file that has its name.
struct Stuck {
    gate: Semaphore,
    /// Number of operations that have begun to wait, by name.
    waiting: Mutex<BTreeMap<&'static str, u32>>,
    opened: AtomicU32,
    released: Mutex<Vec<u64>>,
    /// Lookup counts that the kernel was given of each node, less those it gave back.
    lookups: Mutex<BTreeMap<u64, i64>>,
    written: Mutex<Vec<u8>>,
    synced: AtomicU32,
    unmounting: AtomicU32,
}

/// How long a call may go on after a signal: a second, and one more for a busy machine.
const LIMIT: Duration = Duration::from_secs(2);
const NAMES: [&str; 6] = ["open", "read", "write", "attr", "lookup", "fsync"];

impl Stuck {
    fn new() -> Arc<Stuck> {
        Arc::new(Stuck {
            gate: Semaphore::new(0),
            waiting: Mutex::default(),
            opened: AtomicU32::new(0),
            released: Mutex::default(),
            lookups: Mutex::default(),
            written: Mutex::default(),
            synced: AtomicU32::new(0),
            unmounting: AtomicU32::new(0),
        })
    }

    async fn wait(&self, what: &'static str) {
        *self.waiting.lock().entry(what).or_default() += 1;
        // A closed gate answers with an error, and lets everybody pass.
        let _ = self.gate.acquire().await;
    }

    async fn wait_if(&self, node: u64, what: &'static str) {
        if NAMES.iter().zip(2..).any(|(name, n)| *name == what && n == node) {
            self.wait(what).await;
        }
    }

    fn waiting(&self, what: &str) -> u32 {
        self.waiting.lock().get(what).copied().unwrap_or(0)
    }

    fn attr(&self, node: u64) -> Attr {
        let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        Attr { ino: node, mode, nlink: 1, size: 4096, ..Attr::default() }
    }

    fn give(&self, node: u64) -> Entry {
        *self.lookups.lock().entry(node).or_default() += 1;
        // Without validity, so that attributes are requested each time.
        Entry { node, attr: self.attr(node), ..Entry::default() }
    }
}

#[async_trait]
impl Handler for Stuck {
    async fn lookup(self: Arc<Self>, _: Context, op: request::Lookup, reply: ReplyEntry) {
        let Some(at) = NAMES.iter().position(|n| n.as_bytes() == op.name) else { return reply.error(Errno::ENOENT) };
        let node = at as u64 + 2;
        self.wait_if(node, "lookup").await;
        reply.ok(&self.give(node));
    }

    async fn forget(self: Arc<Self>, forgets: Vec<request::Forget>) {
        let mut lookups = self.lookups.lock();
        forgets.iter().for_each(|f| *lookups.entry(f.node).or_default() -= f.lookups as i64);
    }

    async fn get_attr(self: Arc<Self>, _: Context, op: request::GetAttr, reply: ReplyAttr) {
        if op.node > 1 {
            self.wait_if(op.node, "attr").await;
        }
        reply.ok(&self.attr(op.node), Duration::ZERO);
    }

    async fn mk_dir(self: Arc<Self>, _: Context, _: request::MkDir, reply: ReplyEntry) {
        self.wait("mkdir").await;
        reply.ok(&self.give(100));
    }

    async fn create(self: Arc<Self>, _: Context, _: request::Create, reply: ReplyCreate) {
        self.wait("create").await;
        let handle = u64::from(self.opened.fetch_add(1, Ordering::SeqCst));
        reply.ok(&self.give(101), Opened { handle, ..Opened::default() });
    }

    async fn open(self: Arc<Self>, _: Context, op: request::Open, reply: ReplyOpen) {
        self.wait_if(op.node, "open").await;
        let handle = u64::from(self.opened.fetch_add(1, Ordering::SeqCst));
        reply.ok(Opened { handle, flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES });
    }

    async fn release(self: Arc<Self>, _: Context, op: request::Release, reply: ReplyEmpty) {
        self.released.lock().push(op.handle);
        reply.ok();
    }

    async fn read(self: Arc<Self>, _: Context, op: request::Read, reply: ReplyData) {
        self.wait_if(op.node, "read").await;
        reply.ok(Payload::new());
    }

    async fn write(self: Arc<Self>, _: Context, op: request::Write, reply: ReplyWrite) {
        self.wait_if(op.node, "write").await;
        self.written.lock().push(op.data[0]);
        reply.ok(op.data.len() as u32);
    }

    async fn fsync(self: Arc<Self>, _: Context, op: request::FSync, reply: ReplyEmpty) {
        self.wait_if(op.node, "fsync").await;
        reply.ok();
    }

    async fn sync_fs(self: Arc<Self>, _: Context, _: request::SyncFs, reply: ReplyEmpty) {
        self.synced.fetch_add(1, Ordering::SeqCst);
        reply.ok();
    }

    async fn unmounting(self: Arc<Self>, _: Context) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.unmounting.fetch_add(1, Ordering::SeqCst);
    }
}

struct Mounted {
    session: Session,
    directory: TempDir,
}

async fn mount(handler: Arc<Stuck>, block_device: bool) -> Mounted {
    let directory = tempfile::tempdir().unwrap();
    let options = MountOptions { source: "127.0.0.1@tcp:/stuck".into(), block_device, ..MountOptions::default() };
    let session = serve(Rt::production(), directory.path(), options, handler).await;
    let session = session.unwrap_or_else(|e| panic!("this test mounts FUSE, which needs root and /dev/fuse: {e}"));
    Mounted { session, directory }
}

/// Unmounts. For a moment between fork and exec, a program that another test starts has copies of this process's open files.
async fn unmount(session: &Session) {
    let begin = Instant::now();
    while let Err(e) = session.unmount(Unmount::WhenIdle).await {
        assert!(e.errno() == Errno::EBUSY && begin.elapsed() < Duration::from_secs(5), "{e}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: not after 20 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A shell that starts a program in the background has it ignore SIGINT, and all that this program starts. Then the tests
/// ignore it, and so would the program that they interrupt.
fn heed_interrupts(command: &mut Command) {
    let reset = || {
        // SAFETY: signal(2) may be called between fork and exec.
        match unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure calls signal(2) and allocates nothing.
    unsafe { command.pre_exec(reset) };
}

fn send(child: &Child, signal: i32) {
    // SAFETY: no memory is involved; the child is not reaped yet.
    unsafe { libc::kill(child.id() as i32, signal) };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_killed_ends_whatever_it_waits_for() {
    let stuck = Stuck::new();
    let m = mount(stuck.clone(), true).await;
    let at = |name: &str| m.directory.path().join(name).display().to_string();
    let calls: [(&'static str, Vec<String>); 8] = [
        ("open", vec!["cat".into(), at("open")]),
        ("read", vec!["cat".into(), at("read")]),
        (
            "write",
            vec![
                "dd".into(),
                "if=/dev/zero".into(),
                format!("of={}", at("write")),
                "count=1".into(),
                "conv=notrunc".into(),
            ],
        ),
        ("attr", vec!["stat".into(), at("attr")]),
        ("lookup", vec!["ls".into(), "-l".into(), at("lookup")]),
        ("fsync", vec!["sync".into(), at("fsync")]),
        ("mkdir", vec!["mkdir".into(), at("made")]),
        ("create", vec!["touch".into(), at("new")]),
    ];
    for signal in [libc::SIGKILL, libc::SIGINT] {
        // A second write would wait for the first, which goes on without its caller.
        for (what, call) in calls.iter().filter(|(what, _)| *what != "write" || signal == libc::SIGKILL) {
            let before = stuck.waiting(what);
            let mut command = Command::new(&call[0]);
            command.args(&call[1..]).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
            heed_interrupts(&mut command);
            let mut child = command.spawn().unwrap();
            eventually(what, || stuck.waiting(what) > before).await;
            let begin = Instant::now();
            send(&child, signal);
            eventually(what, || child.try_wait().unwrap().is_some()).await;
            assert!(begin.elapsed() < LIMIT, "{what}: {:?} after signal {signal}", begin.elapsed());
        }
    }
    // The handlers go on, and what they open is closed again.
    stuck.gate.close();
    eventually("open files are closed", || stuck.released.lock().len() as u32 == stuck.opened.load(Ordering::SeqCst))
        .await;
    let released = stuck.released.lock().clone();
    assert_eq!(released.iter().collect::<std::collections::BTreeSet<_>>().len(), released.len(), "each once");
    eventually("names that nobody got are forgotten", || {
        [6, 100, 101].iter().all(|node| stuck.lookups.lock().get(node) == Some(&0))
    })
    .await;
    assert_eq!(stuck.written.lock().len(), 1, "what was under way is finished");
    unmount(&m.session).await;
}

extern "C" fn ignore(_: libc::c_int) {}

/// Runs a call in a thread of its own that a signal with a handler interrupts. Returns how long the call then took, and
/// its result.
async fn interrupted_call<T: Send + 'static>(
    waits: impl Fn() -> bool,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> (Duration, io::Result<T>) {
    let (sender, thread) = tokio::sync::oneshot::channel();
    let caller = tokio::task::spawn_blocking(move || {
        // SAFETY: a handler that does nothing, installed without SA_RESTART so that the system call ends.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as *const () as usize;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        // SAFETY: no preconditions.
        sender.send(unsafe { libc::pthread_self() }).unwrap();
        call()
    });
    let thread = thread.await.unwrap();
    eventually("the call waits", waits).await;
    // The thread may not sleep in the kernel yet.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begin = Instant::now();
    // SAFETY: the thread belongs to the runtime's pool and lives as long as this test.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
    let result = caller.await.unwrap();
    (begin.elapsed(), result)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_is_handled_ends_the_call_after_a_moment_and_nothing_overtakes_it() {
    let stuck = Stuck::new();
    let m = mount(stuck.clone(), true).await;
    let path: PathBuf = m.directory.path().join("write");
    let file = tokio::task::spawn_blocking(move || OpenOptions::new().write(true).open(path).unwrap()).await.unwrap();
    let file = Arc::new(file);
    let (first, s) = (file.clone(), stuck.clone());
    let (after, result) = interrupted_call(move || s.waiting("write") == 1, move || first.write_at(&[1; 512], 0)).await;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR));
    assert!(after > Duration::from_millis(300) && after < LIMIT, "{after:?}");
    // The program writes again; its first write must not be applied after the second.
    let again = file.clone();
    let again = tokio::task::spawn_blocking(move || again.write_at(&[2; 512], 0).unwrap());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(stuck.waiting("write"), 1, "the second write has not begun");
    stuck.gate.close();
    assert_eq!(again.await.unwrap(), 512);
    assert_eq!(*stuck.written.lock(), [1, 2]);
    tokio::task::spawn_blocking(move || drop(file)).await.unwrap();
    unmount(&m.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ends_soon_after_a_signal_ends_well() {
    let stuck = Stuck::new();
    let m = mount(stuck.clone(), true).await;
    let path = m.directory.path().join("read");
    let (s, opener) = (stuck.clone(), stuck.clone());
    tokio::spawn(async move {
        eventually("the read waits", || opener.waiting("read") == 1).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        opener.gate.close();
    });
    let (_, result) = interrupted_call(move || s.waiting("read") == 1, move || fs::read(path)).await;
    assert_eq!(result.unwrap(), b"");
    unmount(&m.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_and_umount_reach_a_mount_over_a_block_device() {
    let stuck = Stuck::new();
    let m = mount(stuck.clone(), true).await;
    if m.session.kind() == MountKind::Plain {
        return eprintln!("not tested: this kernel or container mounts over no loop device");
    }
    let point = m.session.mountpoint().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(&point)).unwrap();
    assert!(line.starts_with(&format!("127.0.0.1@tcp:/stuck {point} fuseblk.nacre rw,")), "{line}");
    let device = loop_device_of(&point);

    let directory = m.directory.path().to_path_buf();
    tokio::task::spawn_blocking(move || {
        let directory = fs::File::open(directory).unwrap();
        // SAFETY: a valid descriptor.
        assert_eq!(unsafe { libc::syncfs(directory.as_raw_fd()) }, 0);
    })
    .await
    .unwrap();
    assert_eq!(stuck.synced.load(Ordering::SeqCst), 1);
    let at = m.session.mountpoint().to_path_buf();
    let s = stuck.clone();
    let told = tokio::task::spawn_blocking(move || {
        nacre_fuse::mount::unmount(&at, Unmount::WhenIdle).unwrap();
        s.unmounting.load(Ordering::SeqCst)
    });
    assert_eq!(told.await.unwrap(), 1, "umount(2) has waited for the handler");
    eventually("the loop device is free", || !is_configured(&device)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loop_device_stays_behind_an_aborted_mount() {
    let m = mount(Stuck::new(), true).await;
    if m.session.kind() == MountKind::Plain {
        return eprintln!("not tested: this kernel or container mounts over no loop device");
    }
    let device = loop_device_of(&m.session.mountpoint().display().to_string());
    assert!(is_configured(&device));
    drop(m.session);
    eventually("the loop device is free", || !is_configured(&device)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_mount_works_the_same() {
    let stuck = Stuck::new();
    let m = mount(stuck.clone(), false).await;
    assert_eq!(m.session.kind(), MountKind::Plain);
    stuck.gate.close();
    let path = m.directory.path().join("read");
    assert_eq!(tokio::task::spawn_blocking(move || fs::read(path).unwrap()).await.unwrap(), b"");
    unmount(&m.session).await;
}

/// Number of the loop device that is mounted at `point`, from mountinfo's major:minor.
fn loop_device_of(point: &str) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|l| l.split(' ').nth(4) == Some(point)).unwrap();
    let number = line.split(' ').nth(2).unwrap();
    assert!(number.starts_with("7:"), "{number}");
    number.to_owned()
}

fn is_configured(number: &str) -> bool {
    fs::exists(format!("/sys/dev/block/{number}/loop")).unwrap()
}
