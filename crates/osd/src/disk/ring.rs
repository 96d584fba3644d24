//! The io_uring thread: takes reads, writes and syncs of object files, keeps as many under way as the ring holds, and
//! continues requests that the kernel has done in part. One system call serves many requests under load.
#![allow(clippy::disallowed_methods)] // An IO edge: the thread that talks to the kernel's ring.

use super::calls::{REQUEST_BYTES_MAX, pieces};
use super::file::Part;
use io_uring::{IoUring, opcode, squeue, types};
use nacre_base::Payload;
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use parking_lot::Mutex;
use slab::Slab;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Requests that are with the kernel at a time; more wait in order.
const DEPTH: u32 = 128;
/// `user_data` of the read that wakes the thread.
const WAKE: u64 = u64::MAX;

/// A handle on the thread. Dropping it ends the thread after the requests that it has taken on.
pub(super) struct Ring {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// A request to the thread.
pub(super) enum Request {
    /// Fill `buf` from `offset`. The returned buffer is as long as the data that was read.
    Read { file: Arc<Part>, direct: bool, offset: u64, buf: AlignedBuf, reply: Reply<AlignedBuf> },
    /// Write all of `data` at `offset`.
    Write { file: Arc<Part>, direct: bool, offset: u64, data: Payload, reply: Reply<()> },
    /// Make the file's data durable, and also its metadata unless `data_only`.
    Sync { file: Arc<Part>, data_only: bool, reply: Reply<()> },
}

/// Receiver of the outcome. It may be gone; the request is finished all the same.
pub(super) type Reply<T> = oneshot::Sender<io::Result<T>>;

impl Request {
    /// Panics if a direct request does not have whole blocks. Called before the request reaches the thread, because a
    /// panic there would free memory that the kernel is using.
    fn assert_aligned(&self) {
        let (offset, len) = match self {
            Request::Read { direct: true, offset, buf, .. } => (*offset, buf.len()),
            Request::Write { direct: true, offset, data, .. } => (*offset, data.len()),
            _ => return,
        };
        let aligned = offset.is_multiple_of(DIRECT_IO_ALIGNMENT as u64) && len.is_multiple_of(DIRECT_IO_ALIGNMENT);
        assert!(aligned, "a direct request for {len} bytes at {offset}");
    }
}

struct Queue {
    incoming: Mutex<Vec<Request>>,
    /// True if a wake-up is on its way, so that one is enough for many requests.
    woken: AtomicBool,
    stop: AtomicBool,
    /// An eventfd that the ring always reads.
    wake: File,
}

impl Ring {
    /// Starts the thread. Fails where the kernel has no io_uring, or forbids it.
    pub(super) fn start(name: &str) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH).or_else(|_| IoUring::new(DEPTH))?;
        // SAFETY: eventfd touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let wake = unsafe { File::from_raw_fd(fd) };
        let queue = Arc::new(Queue {
            incoming: Mutex::default(),
            woken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake,
        });
        let driver = Driver { ring, queue: queue.clone(), running: Slab::new(), backlog: VecDeque::new() };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || driver.run())?;
        Ok(Ring { queue, thread: Some(thread) })
    }

    /// Hands a request to the thread.
    pub(super) fn submit(&self, request: Request) {
        request.assert_aligned();
        self.queue.incoming.lock().push(request);
        self.queue.notify();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.queue.stop.store(true, Ordering::Release);
        self.queue.woken.store(false, Ordering::Release);
        self.queue.notify();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

impl Queue {
    fn notify(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // Adding 1 to an eventfd blocks only at 2^64 - 2.
            let _ = (&self.wake).write_all(&1u64.to_ne_bytes());
        }
    }
}

/// A request with the memory that the kernel reads while it runs.
struct Running {
    request: Request,
    /// Bytes transferred so far.
    done: usize,
    /// For a write, the pieces not yet written. Its heap memory must not change while the kernel has it.
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in `pieces` point into the request's own data, which is `Send`.
unsafe impl Send for Running {}

/// The thread's state.
struct Driver {
    ring: IoUring,
    queue: Arc<Queue>,
    running: Slab<Running>,
    /// Requests taken on, but not yet given to the kernel.
    backlog: VecDeque<Running>,
}

impl Driver {
    fn run(mut self) {
        let mut wake_buf = Box::new([0u8; 8]);
        self.read_wake(&mut wake_buf);
        let mut waking = true;
        loop {
            let stop = self.queue.stop.load(Ordering::Acquire);
            let incoming = std::mem::take(&mut *self.queue.incoming.lock());
            self.backlog.extend(incoming.into_iter().map(|request| Running { request, done: 0, pieces: Vec::new() }));
            self.start_backlog();
            // The kernel may still use the buffers, so wait for the last completion.
            if stop && !waking && self.running.is_empty() && self.backlog.is_empty() {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                // Handle completions first: then there is room again.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => {
                    // Should not happen to a ring that was set up. The kernel's requests must stay, so keep trying.
                    tracing::error!("io_uring: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            let completions: Vec<(u64, i32)> = self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
            for (id, result) in completions {
                if id == WAKE {
                    self.queue.woken.store(false, Ordering::Release);
                    waking = !self.queue.stop.load(Ordering::Acquire);
                    if waking {
                        self.read_wake(&mut wake_buf);
                    }
                } else {
                    self.complete(id as usize, result);
                }
            }
        }
    }

    fn read_wake(&mut self, buf: &mut [u8; 8]) {
        let fd = types::Fd(self.queue.wake.as_raw_fd());
        self.push(opcode::Read::new(fd, buf.as_mut_ptr(), 8).build().user_data(WAKE));
    }

    fn start_backlog(&mut self) {
        while self.running.len() < DEPTH as usize - 1 {
            let Some(next) = self.backlog.pop_front() else { return };
            self.start(next);
        }
    }

    /// Gives the kernel the rest of a request.
    fn start(&mut self, running: Running) {
        let entry = self.running.vacant_entry();
        let id = entry.key();
        let sqe = entry.insert(running).prepare().user_data(id as u64);
        self.push(sqe);
    }

    fn push(&mut self, sqe: squeue::Entry) {
        // SAFETY: what the entry points to lives in `running` (or is the wake buffer) until its completion was seen.
        while unsafe { self.ring.submission().push(&sqe) }.is_err() {
            // The queue holds DEPTH entries and no more are ever under way; submitting empties it.
            let _ = self.ring.submit();
        }
    }

    fn complete(&mut self, id: usize, result: i32) {
        let Some(mut running) = self.running.try_remove(id) else { return };
        match running.handle_result(result) {
            Next::Again => self.start(running),
            Next::Done(outcome) => running.finish(outcome),
        }
    }
}

enum Next {
    Again,
    Done(io::Result<()>),
}

impl Running {
    fn prepare(&mut self) -> squeue::Entry {
        let done = self.done;
        match &mut self.request {
            Request::Read { file, direct, offset, buf, .. } => {
                let rest = &mut buf[done..];
                let len = rest.len().min(REQUEST_BYTES_MAX) as u32;
                let fd = types::Fd(file.for_io(*direct).as_raw_fd());
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(*offset + done as u64).build()
            }
            Request::Write { file, direct, offset, data, .. } => {
                self.pieces = pieces(data, done);
                let fd = types::Fd(file.for_io(*direct).as_raw_fd());
                let count = self.pieces.len() as u32;
                opcode::Writev::new(fd, self.pieces.as_ptr(), count).offset(*offset + done as u64).build()
            }
            Request::Sync { file, data_only, .. } => {
                let flags = if *data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
                opcode::Fsync::new(types::Fd(file.for_io(false).as_raw_fd())).flags(flags).build()
            }
        }
    }

    /// Decides on one completion: done, failed, or to be continued.
    fn handle_result(&mut self, result: i32) -> Next {
        if result < 0 {
            return match -result {
                libc::EINTR | libc::EAGAIN => Next::Again,
                e => Next::Done(Err(io::Error::from_raw_os_error(e))),
            };
        }
        self.done += result as usize;
        let want = match &self.request {
            Request::Read { buf, .. } => buf.len(),
            Request::Write { data, .. } => data.len(),
            Request::Sync { .. } => 0,
        };
        match &self.request {
            _ if self.done >= want => Next::Done(Ok(())),
            // The end of the file.
            Request::Read { .. } if result == 0 => Next::Done(Ok(())),
            // A direct read that is not a whole number of blocks has reached the end too, and cannot go on.
            Request::Read { direct: true, .. } if !self.done.is_multiple_of(512) => Next::Done(Ok(())),
            Request::Write { .. } if result == 0 => Next::Done(Err(io::ErrorKind::WriteZero.into())),
            _ => Next::Again,
        }
    }

    fn finish(self, outcome: io::Result<()>) {
        match self.request {
            Request::Read { mut buf, reply, .. } => {
                buf.truncate(self.done);
                let _ = reply.send(outcome.map(|()| buf));
            }
            Request::Write { reply, .. } | Request::Sync { reply, .. } => {
                let _ = reply.send(outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(request: impl FnOnce(Arc<Part>) -> Request) -> Running {
        let file = Arc::new(Part::new(File::open("/dev/null").unwrap()));
        Running { request: request(file), done: 0, pieces: Vec::new() }
    }

    fn write(data: Payload) -> Running {
        running(|file| Request::Write { file, direct: false, offset: 0, data, reply: oneshot::channel().0 })
    }

    fn read(len: usize, direct: bool) -> Running {
        let buf = AlignedBuf::zeroed(len);
        running(|file| Request::Read { file, direct, offset: 0, buf, reply: oneshot::channel().0 })
    }

    /// Outcome of a completion; `None` if the request goes on.
    fn outcome(r: &mut Running, result: i32) -> Option<Result<usize, i32>> {
        match r.handle_result(result) {
            Next::Again => None,
            Next::Done(Ok(())) => Some(Ok(r.done)),
            Next::Done(Err(e)) => Some(Err(e.raw_os_error().unwrap_or(0))),
        }
    }

    #[test]
    fn interrupted_and_partial_transfers_go_on() {
        let mut w = write(Payload::zeroes(10_000));
        assert_eq!(outcome(&mut w, -libc::EINTR), None);
        assert_eq!(outcome(&mut w, -libc::EAGAIN), None);
        assert_eq!(outcome(&mut w, 4096), None);
        assert_eq!(outcome(&mut w, 5904), Some(Ok(10_000)));
        let mut r = read(10_000, false);
        assert_eq!(outcome(&mut r, 100), None);
        assert_eq!(outcome(&mut r, 0), Some(Ok(100)), "the end of the file");
    }

    #[test]
    fn errors_and_writes_without_progress_end() {
        assert_eq!(outcome(&mut write(Payload::zeroes(10)), -libc::ENOSPC), Some(Err(libc::ENOSPC)));
        assert_eq!(outcome(&mut write(Payload::zeroes(10)), 0), Some(Err(0)));
    }

    #[test]
    fn a_direct_read_that_ends_within_a_block_is_at_the_end() {
        let mut r = read(1 << 20, true);
        assert_eq!(outcome(&mut r, 65_536), None);
        assert_eq!(outcome(&mut r, 1000), Some(Ok(66_536)));
    }
}
