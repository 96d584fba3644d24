//! A FUSE server made by hand: two files in a root directory, answers that a test can hold back or turn into errors, and
//! a list of the requests that came. It is not the product's session, because the tests are about the kernel alone.

use crate::messages::*;
use nacre_fuse::reply::OpenFlags;
use std::ffi::{CString, c_int};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// Longest time that a test may take. Whoever waits for the mount is then woken with an error.
const LIMIT: Duration = Duration::from_secs(20);
/// Validity of names and attributes: the kernel asks again only after a notification.
const LONG_SECONDS: u64 = 3600;
const MAX_WRITE: usize = 1 << 20;

const ROOT: u64 = 1;
/// Node of the file named `a`.
pub(crate) const A: u64 = 2;
/// Node of the file named `b`.
pub(crate) const B: u64 = 3;
/// Bytes in each file at the beginning, all of them [`FILL`].
pub(crate) const SIZE: usize = 1 << 20;
pub(crate) const FILL: u8 = 1;
pub(crate) const PAGE: usize = 4096;

/// Answers to INIT that differ between tests.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// Flags beside those that all tests ask for.
    pub(crate) init_flags: u64,
    pub(crate) max_background: u16,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { init_flags: 0, max_background: 64 }
    }
}

/// A request that has arrived. Offset and size are 0 if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) opcode: u32,
    pub(crate) node: u64,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// Files of the server and its manners. A test may change them at any time; a held request is answered by those of the
/// moment of its release.
pub(crate) struct State {
    pub(crate) a: Vec<u8>,
    b: Vec<u8>,
    /// Flags of the opens to come.
    pub(crate) open_flags: OpenFlags,
    /// WRITEs are answered EIO.
    pub(crate) writes_fail: bool,
    /// READs of more than a page are answered EAGAIN.
    pub(crate) long_reads_fail: bool,
    /// Codes of requests that wait in `waiting` instead of being answered.
    held: Vec<u32>,
    waiting: Vec<Vec<u8>>,
    seen: Vec<Seen>,
}

impl State {
    /// Requests of all kinds that have arrived since this was asked last.
    pub(crate) fn take_all_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    fn file(&mut self, node: u64) -> &mut Vec<u8> {
        match node {
            A => &mut self.a,
            B => &mut self.b,
            _ => panic!("node {node} is not a file"),
        }
    }

    fn attr(&mut self, node: u64) -> Attr {
        let attr = Attr { ino: node, nlink: 1, block_size: PAGE as u32, ..Attr::default() };
        match node {
            ROOT => Attr { mode: libc::S_IFDIR | 0o755, ..attr },
            _ => Attr { mode: libc::S_IFREG | 0o644, size: self.file(node).len() as u64, ..attr },
        }
    }

    fn attr_out(&mut self, node: u64) -> Vec<u8> {
        bytes(&AttrOut { attr_valid: LONG_SECONDS, attr: self.attr(node), ..AttrOut::default() })
    }
}

/// A mount of its own for a test, and the threads that serve and watch it.
pub(crate) struct Mount {
    server: Arc<Server>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped to end the watchdog.
    watched: Option<Sender<()>>,
}

struct Server {
    directory: TempDir,
    device: File,
    setup: Setup,
    state: Mutex<State>,
    /// Wakes those who wait for a request to arrive.
    arrived: Condvar,
    timed_out: AtomicBool,
}

impl Mount {
    pub(crate) fn new(open_flags: OpenFlags) -> Mount {
        Mount::with(open_flags, Setup::default())
    }

    pub(crate) fn with(open_flags: OpenFlags, setup: Setup) -> Mount {
        let state = State {
            a: vec![FILL; SIZE],
            b: vec![FILL; SIZE],
            open_flags,
            writes_fail: false,
            long_reads_fail: false,
            held: Vec::new(),
            waiting: Vec::new(),
            seen: Vec::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let device = mount(directory.path())
            .unwrap_or_else(|e| panic!("this test mounts FUSE, which needs root and /dev/fuse: {e}"));
        let (arrived, timed_out) = (Condvar::new(), AtomicBool::new(false));
        let server = Arc::new(Server { directory, device, setup, state: Mutex::new(state), arrived, timed_out });
        let (watched, ended) = channel::<()>();
        let (serving, watching) = (server.clone(), server.clone());
        let threads = vec![
            thread::spawn(move || serving.serve()),
            thread::spawn(move || {
                if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                    watching.timed_out.store(true, Ordering::SeqCst);
                    watching.abort();
                }
            }),
        ];
        Mount { server, threads, watched: Some(watched) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.server.directory.path()
    }

    /// Changes files or manners. The state is not handed out, because a test that locked it twice would hang.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.server.state.lock().unwrap()
    }

    /// Returns the bytes that the server has for a file.
    pub(crate) fn contents(&self, node: u64) -> Vec<u8> {
        self.state().file(node).clone()
    }

    /// Unmounts, and fails all requests that are not answered.
    pub(crate) fn abort(&self) {
        self.server.abort();
    }

    /// Keeps requests of these kinds unanswered from now on.
    pub(crate) fn hold(&self, opcodes: &[u32]) {
        self.state().held = opcodes.to_vec();
    }

    /// Answers the held requests, and holds no further ones.
    pub(crate) fn release(&self) {
        let waiting = {
            let mut state = self.state();
            state.held.clear();
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|message| self.server.answer(message));
    }

    /// Waits until `count` requests of a kind have arrived.
    pub(crate) fn wait_for(&self, opcode: u32, count: usize) {
        let fewer = |state: &mut State| state.seen.iter().filter(|s| s.opcode == opcode).count() < count;
        let (state, result) = self.server.arrived.wait_timeout_while(self.state(), LIMIT, fewer).unwrap();
        assert!(!result.timed_out(), "{count} requests of kind {opcode} did not arrive, only {:?}", state.seen);
    }

    /// Requests of a kind that have arrived since this was asked last, in order of arrival.
    pub(crate) fn take_seen(&self, opcode: u32) -> Vec<Seen> {
        self.state().seen.extract_if(.., |seen| seen.opcode == opcode).collect()
    }

    /// Tells the kernel to drop the attributes of a file and its pages from `offset` on. A `len` of 0 means all that
    /// follow; a negative offset means the attributes alone.
    pub(crate) fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        self.server.notify(NOTIFY_INVAL_INODE, NotifyInvalInode { node, offset, len }.as_bytes())
    }

    /// Tells the kernel to drop a name of the root directory.
    pub(crate) fn inval_entry(&self, name: &str) -> io::Result<()> {
        let head = NotifyInvalEntry { parent: ROOT, name_len: name.len() as u32, flags: 0 };
        self.server.notify(NOTIFY_INVAL_ENTRY, &[head.as_bytes(), name.as_bytes(), b"\0"].concat())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.watched.take());
        self.abort();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "a thread of the server has panicked");
        }
        let timed_out = self.server.timed_out.load(Ordering::SeqCst);
        assert!(thread::panicking() || !timed_out, "the test took longer than {LIMIT:?}");
    }
}

impl Server {
    /// A forced unmount aborts the connection, and a lazy one succeeds although files are open.
    fn abort(&self) {
        let path = CString::new(self.directory.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated string that outlives the call. After the first time the call fails, which is no harm.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }

    fn serve(&self) {
        let mut buffer = vec![0; MAX_WRITE + PAGE];
        loop {
            match (&self.device).read(&mut buffer) {
                Ok(len) => self.handle(&buffer[..len]),
                // ENOENT: the request was interrupted before it could be read.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED)) => return,
                Err(e) => panic!("/dev/fuse: {e}"),
            }
        }
    }

    fn handle(&self, message: &[u8]) {
        let (header, body) = split::<InHeader>(message);
        let (mut offset, mut size) = (0, 0);
        if [opcode::READ, opcode::WRITE].contains(&header.opcode) {
            let transfer = split::<TransferIn>(body).0;
            (offset, size) = (transfer.offset as usize, transfer.size as usize);
        }
        let held = {
            let mut state = self.state.lock().unwrap();
            state.seen.push(Seen { opcode: header.opcode, node: header.node, offset, size });
            let held = state.held.contains(&header.opcode);
            if held {
                state.waiting.push(message.to_vec());
            }
            held
        };
        self.arrived.notify_all();
        if !held {
            self.answer(message);
        }
    }

    fn answer(&self, message: &[u8]) {
        let (header, body) = split::<InHeader>(message);
        if [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT].contains(&header.opcode) {
            return;
        }
        let result = self.result(header.opcode, header.node, body);
        let (error, data) = result.map_or_else(|errno| (-errno, Vec::new()), |data| (0, data));
        match self.send(error, header.unique, &data) {
            // ENOENT: the request has been aborted.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => {
                panic!("the kernel refuses the reply to a request of kind {}: {e}", header.opcode)
            }
            _ => {}
        }
    }

    /// Result of a request, or an error number.
    fn result(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, c_int> {
        let mut state = self.state.lock().unwrap();
        match opcode {
            opcode::INIT => Ok(bytes(&self.init(&split(body).0))),
            opcode::LOOKUP => {
                let node = match body {
                    b"a\0" => A,
                    b"b\0" => B,
                    _ => return Err(libc::ENOENT),
                };
                let (entry_valid, attr_valid, attr) = (LONG_SECONDS, LONG_SECONDS, state.attr(node));
                Ok(bytes(&EntryOut { node, entry_valid, attr_valid, attr, ..EntryOut::default() }))
            }
            opcode::GETATTR => Ok(state.attr_out(node)),
            opcode::SETATTR => {
                let change = split::<SetattrIn>(body).0;
                if change.valid & SETS_SIZE != 0 {
                    state.file(node).resize(change.size as usize, 0);
                }
                Ok(state.attr_out(node))
            }
            opcode::OPEN => Ok(bytes(&OpenOut { open_flags: state.open_flags.0, ..OpenOut::default() })),
            opcode::OPENDIR => Ok(bytes(&OpenOut::default())),
            opcode::READ => {
                let TransferIn { offset, size, .. } = split(body).0;
                if state.long_reads_fail && size as usize > PAGE {
                    return Err(libc::EAGAIN);
                }
                let file = state.file(node);
                let end = file.len().min(offset as usize + size as usize);
                Ok(file[end.min(offset as usize)..end].to_vec())
            }
            opcode::WRITE => {
                let (TransferIn { offset, size, .. }, data) = split(body);
                if state.writes_fail {
                    return Err(libc::EIO);
                }
                let (file, start, end) = (state.file(node), offset as usize, offset as usize + size as usize);
                file.resize(file.len().max(end), 0);
                file[start..end].copy_from_slice(data);
                Ok(bytes(&WriteOut { size, padding: 0 }))
            }
            opcode::READDIR | opcode::READDIRPLUS => Ok(Vec::new()),
            opcode::FLUSH | opcode::FSYNC | opcode::RELEASE | opcode::RELEASEDIR => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        }
    }

    fn init(&self, asked: &InitIn) -> InitOut {
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP
            | self.setup.init_flags;
        InitOut {
            major: 7,
            minor: asked.minor.min(40),
            max_readahead: asked.max_readahead,
            flags: wanted as u32,
            max_background: self.setup.max_background,
            congestion_threshold: self.setup.max_background,
            max_write: MAX_WRITE as u32,
            time_granularity: 1,
            max_pages: (MAX_WRITE / PAGE) as u16,
            flags2: (wanted >> 32) as u32,
            ..InitOut::default()
        }
    }

    fn notify(&self, code: i32, data: &[u8]) -> io::Result<()> {
        self.send(code, 0, data)
    }

    fn send(&self, error: i32, unique: u64, data: &[u8]) -> io::Result<()> {
        let len = (size_of::<OutHeader>() + data.len()) as u32;
        let message = [OutHeader { len, error, unique }.as_bytes(), data].concat();
        (&self.device).write(&message).map(|written| assert_eq!(written, message.len()))
    }
}

/// Mounts a FUSE file system and returns its device, which no other program inherits.
fn mount(path: &Path) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let (path, options) = (CString::new(path.as_os_str().as_bytes())?, CString::new(options)?);
    // SAFETY: all four are NUL-terminated strings that outlive the call.
    let result = unsafe {
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        libc::mount(c"test".as_ptr(), path.as_ptr(), c"fuse".as_ptr(), flags, options.as_ptr().cast())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}

fn split<T: FromBytes>(message: &[u8]) -> (T, &[u8]) {
    T::read_from_prefix(message).expect("the kernel's messages are complete")
}

fn bytes<T: IntoBytes + zerocopy::Immutable>(value: &T) -> Vec<u8> {
    value.as_bytes().to_vec()
}
