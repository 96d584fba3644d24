//! A process that makes system calls and touches mapped memory on a test's orders. It is a process of its own for two
//! reasons: it may die of SIGBUS, and while it waits in a page fault of the mount nothing of the server waits with it.

use crate::server::Mount;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use zerocopy::IntoBytes;

/// The number of a system call, or LOAD or STORE, and its arguments.
type Order = [i64; 7];
/// Loads a byte from an address.
const LOAD: i64 = -1;
/// Stores at an address a byte.
const STORE: i64 = -2;

/// Variable that tells the process that it is a client.
const ROLE: &str = "NACRE_FUSE_TEST_CLIENT";
/// Bytes of the client's memory for names and data.
const BUFFER_LEN: i64 = 1 << 16;

/// Open file of a client.
#[derive(Clone, Copy)]
pub(crate) struct Handle(i64);

/// A client process, whose working directory is the mount.
pub(crate) struct Client<'m> {
    mount: &'m Mount,
    process: Child,
    orders: UnixStream,
    /// Address of its buffer.
    buffer: i64,
}

impl<'m> Client<'m> {
    pub(crate) fn new(mount: &'m Mount) -> Client<'m> {
        let (orders, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client::process", "--ignored", "--nocapture"])
            .env(ROLE, "1")
            .current_dir(mount.path())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut client = Client { mount, process, orders, buffer: 0 };
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as i64;
        client.buffer = client.call(libc::SYS_mmap, [0, BUFFER_LEN, READ_WRITE, anonymous, -1, 0]);
        assert!(client.buffer > 0);
        client
    }

    /// Opens a file for reading and writing.
    pub(crate) fn open(&mut self, name: &str) -> Handle {
        self.open_as(name, libc::O_RDWR)
    }

    pub(crate) fn open_as(&mut self, name: &str, flags: i32) -> Handle {
        let path = self.put(name);
        let handle = self.call(libc::SYS_openat, [libc::AT_FDCWD as i64, path, flags as i64, 0, 0, 0]);
        assert!(handle >= 0, "open {name}: {}", error(handle));
        Handle(handle)
    }

    pub(crate) fn duplicate(&mut self, handle: Handle) -> Handle {
        Handle(self.call(libc::SYS_dup, [handle.0, 0, 0, 0, 0, 0]))
    }

    pub(crate) fn close(&mut self, handle: Handle) {
        assert_eq!(self.call(libc::SYS_close, [handle.0, 0, 0, 0, 0, 0]), 0);
    }

    /// Maps the beginning of a file, with `MAP_SHARED` or `MAP_PRIVATE`, and returns the address.
    pub(crate) fn map(&mut self, handle: Handle, len: usize, kind: i32) -> usize {
        let address = self.call(libc::SYS_mmap, [0, len as i64, READ_WRITE, kind as i64, handle.0, 0]);
        assert!(address > 0, "mmap: {}", error(address));
        address as usize
    }

    /// Writes a mapping's stores back and returns what msync(2) returned.
    pub(crate) fn sync(&mut self, address: usize, len: usize) -> i64 {
        self.call(libc::SYS_msync, [address as i64, len as i64, libc::MS_SYNC as i64, 0, 0, 0])
    }

    pub(crate) fn load(&mut self, address: usize) -> u8 {
        self.call(LOAD, [address as i64, 0, 0, 0, 0, 0]) as u8
    }

    pub(crate) fn store(&mut self, address: usize, byte: u8) {
        self.call(STORE, [address as i64, byte as i64, 0, 0, 0, 0]);
    }

    /// Stores, and returns the signal that the client dies of, if any.
    pub(crate) fn store_or_die(&mut self, address: usize, byte: u8) -> Option<i32> {
        self.send(STORE, [address as i64, byte as i64, 0, 0, 0, 0]);
        match self.receive() {
            Ok(_) => None,
            Err(_) => self.process.wait().unwrap().signal(),
        }
    }

    /// Reads, and returns the number of bytes or a negative error, and the first byte.
    pub(crate) fn read(&mut self, handle: Handle, offset: usize, len: usize) -> (i64, u8) {
        self.begin_read(handle, offset, len);
        self.end_read()
    }

    /// Begins to read. [`Client::end_read`] must follow.
    pub(crate) fn begin_read(&mut self, handle: Handle, offset: usize, len: usize) {
        self.send(libc::SYS_pread64, [handle.0, self.buffer, len as i64, offset as i64, 0, 0]);
    }

    pub(crate) fn end_read(&mut self) -> (i64, u8) {
        let count = self.end();
        (count, self.load(self.buffer as usize))
    }

    /// Writes one byte.
    pub(crate) fn write(&mut self, handle: Handle, offset: usize, byte: u8) {
        self.begin_write(handle, offset, byte);
        assert_eq!(self.end(), 1);
    }

    /// Begins to write one byte. [`Client::end`] must follow.
    pub(crate) fn begin_write(&mut self, handle: Handle, offset: usize, byte: u8) {
        self.store(self.buffer as usize, byte);
        self.send(libc::SYS_pwrite64, [handle.0, self.buffer, 1, offset as i64, 0, 0]);
    }

    /// Lets the kernel read ahead.
    pub(crate) fn read_ahead(&mut self, handle: Handle, offset: usize, len: usize) {
        let advice = libc::POSIX_FADV_WILLNEED as i64;
        assert_eq!(self.call(libc::SYS_fadvise64, [handle.0, offset as i64, len as i64, advice, 0, 0]), 0);
    }

    /// Asks for a file's attributes.
    pub(crate) fn stat(&mut self, name: &str) {
        let (path, out) = (self.put(name), self.buffer + 64);
        let mask = libc::STATX_BASIC_STATS as i64;
        assert_eq!(self.call(libc::SYS_statx, [libc::AT_FDCWD as i64, path, 0, mask, out, 0]), 0);
    }

    /// Begins to change a file's size. [`Client::end`] must follow.
    pub(crate) fn begin_truncate(&mut self, handle: Handle, len: usize) {
        self.send(libc::SYS_ftruncate, [handle.0, len as i64, 0, 0, 0, 0]);
    }

    /// Begins to list a directory. [`Client::end`] must follow.
    pub(crate) fn begin_list(&mut self, handle: Handle) {
        self.send(libc::SYS_getdents64, [handle.0, self.buffer, BUFFER_LEN, 0, 0, 0]);
    }

    /// Waits for the end of a call that was begun, and returns its result or a negative error.
    pub(crate) fn end(&mut self) -> i64 {
        self.receive().expect("the client answers")
    }

    fn put(&mut self, name: &str) -> i64 {
        for (i, byte) in name.bytes().chain([0]).enumerate() {
            self.store(self.buffer as usize + i, byte);
        }
        self.buffer
    }

    fn call(&mut self, number: i64, arguments: [i64; 6]) -> i64 {
        self.send(number, arguments);
        self.end()
    }

    fn send(&mut self, number: i64, [a, b, c, d, e, f]: [i64; 6]) {
        let order: Order = [number, a, b, c, d, e, f];
        self.orders.write_all(order.as_bytes()).unwrap();
    }

    fn receive(&mut self) -> io::Result<i64> {
        let mut answer = 0;
        self.orders.read_exact(answer.as_mut_bytes())?;
        Ok(answer)
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // A process whose request the server holds dies only after the answer, or after the connection.
        self.mount.abort();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const READ_WRITE: i64 = (libc::PROT_READ | libc::PROT_WRITE) as i64;

fn error(result: i64) -> io::Error {
    io::Error::from_raw_os_error(-result as i32)
}

/// Not a test by itself: the client process. Orders come and answers go through its standard input, a socket.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    // SAFETY: the test that started this process gave it this socket, and nothing else here uses it.
    let mut orders = unsafe { UnixStream::from_raw_fd(0) };
    let mut order: Order = [0; 7];
    // The socket ends when the test does.
    while orders.read_exact(order.as_mut_bytes()).is_ok() {
        orders.write_all(obey(order).as_bytes()).unwrap();
    }
}

fn obey([number, a, b, c, d, e, f]: Order) -> i64 {
    // SAFETY: the test orders nothing but accesses to mappings that it asked for; a fault in them is a signal, which ends
    // only this process. System calls write nowhere else than into those.
    unsafe {
        match number {
            LOAD => i64::from((a as *const u8).read_volatile()),
            STORE => {
                (a as *mut u8).write_volatile(b as u8);
                0
            }
            _ => match libc::syscall(number, a, b, c, d, e, f) {
                -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap()),
                result => result,
            },
        }
    }
}
