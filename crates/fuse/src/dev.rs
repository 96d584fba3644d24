//! The transport over /dev/fuse: cloned descriptors, one message per read, one writev per reply. An IO edge.
//!
//! One reader, the leader, is a tokio task that waits for the device to become readable. Helpers, on clones of the
//! descriptor for which no task waits, sleep until the leader reads something heavy or sees a backlog. Compared on two
//! busy cores, CPU seconds of the server for the same 100,000 create-close-unlink cycles and 60 GB streamed in 1 MiB
//! requests:
//!
//! | readers | handlers that answer at once | handlers that wait for another task |
//! |---|---|---|
//! | 2 threads that block in read, waiting work spawned at once | 9.1 | 18.0 |
//! | 2 threads that block in read, waiting work parked (`inline`) | 9.6 | 15.8 to 19.9 |
//! | 1 task | 10.2 | 10.4 to 11.5 |
//! | 2 tasks that both wait: every request wakes both | 11.7 | 11.4 to 12.1 |
//! | leader and 1 helper | 10.4 | 11.0 to 12.0 |
//!
//! Threads are the best for a file system that never waits, but Nacre waits for the network most of the time, and then
//! they pay for two changes of thread per request. On a quiet machine two threads gave, answering at once, 13,000 to
//! 20,000 cycles/s to one process and 26,000 to 37,000 to two or four, 5 to 6 GB/s to one writing dd and 12 to four, 8
//! and 14 GB/s to reading ones; leader and helper, best of three on a machine that was busy otherwise, 23,000 and 26,000
//! cycles/s, 4.3 and 7.6 GB/s written, 4.4 and 9.0 GB/s read. Reusing buffers (`pool`) is a factor of six for streaming
//! writes: 0.10 CPU seconds per GB against 0.63, which are page faults.
#![allow(clippy::disallowed_methods)] // It reads and writes a device, and registers it with tokio.

use crate::abi::{self, opcode};
use crate::handler::{Handler, dispatch};
use crate::inline;
use crate::interrupt::Interrupts;
use crate::mount::FuseError;
use crate::parse::{self, Dialect};
use crate::pool::{MessageBuf, Pool};
use crate::releases::Releases;
use crate::running::{Caller, Running, Traits, in_order};
use crate::sink::Sink;
use nacre_rt::Rt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// One open /dev/fuse: requests read from it must be answered on it.
pub(crate) struct Channel(File);

impl Channel {
    /// Opens the device. Mounting or cloning attaches it to a session.
    pub(crate) fn open() -> Result<Channel, FuseError> {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        opened.map(Channel).map_err(|error| FuseError::Device { error })
    }

    /// A channel for the descriptor that a helper program opened and mounted.
    pub(crate) fn of_helper(device: OwnedFd) -> Channel {
        Channel(device.into())
    }

    /// Opens another channel of the same session, with its own queue of requests being served.
    pub(crate) fn clone_channel(&self) -> Result<Channel, FuseError> {
        let clone = Channel::open()?;
        let fd = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads the u32 that the pointer leads to, which outlives the call.
        let result = unsafe { libc::ioctl(clone.0.as_raw_fd(), abi::DEV_IOC_CLONE as _, &raw const fd) };
        if result < 0 { Err(FuseError::Device { error: io::Error::last_os_error() }) } else { Ok(clone) }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes reads return at once if there is no message.
    pub(crate) fn set_nonblocking(&self) -> Result<(), FuseError> {
        let on: libc::c_int = 1;
        // SAFETY: the ioctl reads the int that the pointer leads to, which outlives the call.
        let result = unsafe { libc::ioctl(self.raw_fd(), libc::FIONBIO, &raw const on) };
        if result < 0 { Err(FuseError::Device { error: io::Error::last_os_error() }) } else { Ok(()) }
    }

    /// Reads the next message.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        loop {
            let error = match (&self.0).read(buf) {
                Ok(len) => return Ok(Received::Message(len)),
                Err(e) => e,
            };
            match error.raw_os_error() {
                // The file system was unmounted, or aborted by a forced unmount.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Over),
                Some(libc::EAGAIN) => return Ok(Received::Nothing),
                // ENOENT: the request was withdrawn while it was being read.
                Some(libc::ENOENT | libc::EINTR) => {}
                _ => return Err(error),
            }
        }
    }
}

/// Result of reading the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message of this many bytes.
    Message(usize),
    /// There is no message at the moment.
    Nothing,
    /// The session is over.
    Over,
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.raw_fd()
    }
}

impl Sink for Channel {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match (&self.0).write_vectored(parts) {
                Ok(n) if n == parts.iter().map(|p| p.len()).sum::<usize>() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// State shared by the readers of one session.
pub(crate) struct Server {
    pub(crate) rt: Rt,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) dialect: Dialect,
    pub(crate) pool: Arc<Pool>,
    pub(crate) releases: Arc<Releases>,
    /// Wakes a helper.
    pub(crate) help: Notify,
}

/// Number of messages in a row after which a reader lets other tasks run.
const MESSAGES_PER_TURN: usize = 32;
/// Number of messages in a row after which the leader assumes a backlog that one reader cannot handle.
const MESSAGES_ALONE: usize = 4;

/// How much of its reader's time a message takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    Light,
    /// A READ or WRITE of much data: copying it to or from the kernel takes longer than waking another reader.
    Heavy,
}

impl Server {
    /// Runs the one reader that waits for the device to become readable. Ends with the session.
    pub(crate) async fn lead(&self, channel: Arc<Channel>) {
        let interest = Interest::READABLE | Interest::ERROR;
        // SAFETY: a channel's descriptor is open and the same as long as the channel lives, which `ready` sees to.
        let ready = match unsafe { AsyncFd::register_with_interest(channel.clone(), interest) } {
            Ok(ready) => ready,
            Err(e) => return tracing::error!("waiting for /dev/fuse failed, the file system ends: {e}"),
        };
        let mut reader = Reader { number: 0, sink: channel.clone(), buf: self.pool.take(), channel };
        loop {
            let Ok(mut guard) = ready.ready(interest).await else { return };
            match self.take_turns(&mut reader, || self.help.notify_one()).await {
                Received::Over => return,
                _ => guard.clear_ready(),
            }
        }
    }

    /// Runs a reader, number 1 and up, that sleeps until the leader has more than it can do. Ends when it is aborted, or
    /// with the session.
    pub(crate) async fn assist(&self, number: usize, channel: Arc<Channel>) {
        let mut reader = Reader { number, sink: channel.clone(), buf: self.pool.take(), channel };
        loop {
            self.help.notified().await;
            if self.take_turns(&mut reader, || ()).await == Received::Over {
                return;
            }
        }
    }

    /// Serves messages until there are no more. Calls `call_help` when there are too many for one reader.
    async fn take_turns(&self, reader: &mut Reader, call_help: impl Fn()) -> Received {
        let mut in_a_row = 0;
        loop {
            let taking = self.releases.take(reader.number);
            let len = match reader.channel.receive(&mut reader.buf) {
                Ok(Received::Message(len)) => len,
                Ok(end) => return end,
                Err(e) => {
                    tracing::error!("reading /dev/fuse failed, the file system ends: {e}");
                    return Received::Over;
                }
            };
            in_a_row += 1;
            let weight = reader.weigh(len);
            if weight == Weight::Heavy || in_a_row == MESSAGES_ALONE {
                call_help();
            }
            self.handle_message(reader, len);
            drop(taking);
            if in_a_row % MESSAGES_PER_TURN == 0 {
                self.rt.yield_now().await;
            }
        }
    }

    fn handle_message(&self, reader: &mut Reader, len: usize) {
        let (sink, buf) = (&reader.sink, &mut reader.buf);
        let is_write = parse::parse_header(&buf[..len]).is_ok_and(|h| h.opcode == opcode::WRITE);
        let message = buf.message(len, is_write);
        let (header, operation) = match parse::parse(self.dialect, &message) {
            Ok(parsed) => parsed,
            Err(e) => return self.refuse(sink, &e),
        };
        tracing::trace!(unique = header.unique, ?operation, "request");
        let traits = Traits::of(&operation);
        let work = dispatch(&self.handler, sink, &self.interrupts, &header, operation);
        // If the message was copied, only the parts that the operation took stay in memory.
        drop(message);
        if let Some(work) = work {
            let (work, begun) = in_order(&self.interrupts, &self.releases, reader.number, &traits, work);
            let caller = || Caller::new(sink, &self.interrupts, &header, traits);
            inline::run(&self.rt, work, |work, cx| Running::new(work, begun, caller(), cx));
        }
    }

    fn refuse(&self, sink: &Arc<dyn Sink>, error: &parse::ParseError) {
        match error {
            parse::ParseError::Unknown(_) => tracing::debug!("{error}"),
            _ => tracing::error!("{error}"),
        }
        if let Some((unique, errno)) = error.answer() {
            crate::reply::refuse(sink, unique, errno);
        }
    }
}

/// One channel and the buffer that its next message is read into.
struct Reader {
    /// Number of the reader; 0 is the leader.
    number: usize,
    channel: Arc<Channel>,
    sink: Arc<dyn Sink>,
    buf: MessageBuf,
}

impl Reader {
    fn weigh(&self, len: usize) -> Weight {
        let reads_much = || parse::read_size(&self.buf[..len]).is_some_and(|size| size >= HEAVY_BYTES);
        if len >= HEAVY_BYTES || reads_much() { Weight::Heavy } else { Weight::Light }
    }
}

/// From this many bytes on a READ or WRITE is heavy: copying them takes about as long as waking a thread.
const HEAVY_BYTES: usize = 128 << 10;
