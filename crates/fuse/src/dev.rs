//! The transport over /dev/fuse: cloned descriptors, one message per read, one writev per reply. An IO edge.
#![allow(clippy::disallowed_methods)] // It reads and writes a device, on threads that block in it.

use crate::abi::{self, opcode};
use crate::handler::{Handler, dispatch};
use crate::inline;
use crate::interrupt::Interrupts;
use crate::mount::FuseError;
use crate::pool::{MessageBuf, Pool};
use crate::reply::Sink;
use crate::request::{self, Dialect};
use nacre_base::Errno;
use nacre_rt::Rt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// One open /dev/fuse: requests read from it must be answered on it.
pub(crate) struct Channel(File);

impl Channel {
    /// Opens the device. Mounting on it, or cloning, gives it a session.
    pub(crate) fn open() -> Result<Channel, FuseError> {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        opened.map(Channel).map_err(|error| FuseError::Device { error })
    }

    /// A further channel of the same session, with a queue of its own for what is being served.
    pub(crate) fn clone_channel(&self) -> Result<Channel, FuseError> {
        let clone = Channel::open()?;
        let fd = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the ioctl reads the u32 that the pointer leads to, which outlives the call.
        let result = unsafe { libc::ioctl(clone.0.as_raw_fd(), abi::DEV_IOC_CLONE as _, &raw const fd) };
        if result < 0 { Err(FuseError::Device { error: io::Error::last_os_error() }) } else { Ok(clone) }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reads the next message, waiting for it. None when the session is over.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let Err(e) = (match (&self.0).read(buf) {
                Ok(n) => return Ok(Some(n)),
                Err(e) => Err::<(), _>(e),
            }) else {
                continue;
            };
            match e.raw_os_error() {
                // Unmounted; or aborted, as by a forced unmount.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                // ENOENT: the request was withdrawn while we read it.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                _ => return Err(e),
            }
        }
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

/// What the readers of one session share.
pub(crate) struct Server {
    pub(crate) rt: Rt,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) dialect: Dialect,
    pub(crate) pool: Arc<Pool>,
    /// For handlers that use tokio where they are polled on a reader's thread.
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Server {
    /// Serves one channel until the session is over. Blocks its thread while there is nothing to do.
    pub(crate) fn serve(&self, channel: &Arc<Channel>) {
        let sink: Arc<dyn Sink> = channel.clone();
        let mut buf = self.pool.take();
        loop {
            match channel.receive(&mut buf) {
                Ok(Some(len)) => self.handle_message(&sink, &mut buf, len),
                Ok(None) => return,
                Err(e) => {
                    tracing::error!("reading /dev/fuse failed, this reader ends: {e}");
                    return;
                }
            }
        }
    }

    fn handle_message(&self, sink: &Arc<dyn Sink>, buf: &mut MessageBuf, len: usize) {
        let is_write = request::parse_header(&buf[..len]).is_ok_and(|h| h.opcode == opcode::WRITE);
        let message = buf.message(len, is_write);
        let work = match request::parse(self.dialect, &message) {
            Ok((header, operation)) => {
                tracing::trace!(unique = header.unique, ?operation, "request");
                dispatch(&self.handler, sink, &self.interrupts, &header, operation)
            }
            Err(e) => return self.refuse(sink, &e),
        };
        // Of a message that was copied, only what the operation took of it lives on.
        drop(message);
        if let Some(work) = work {
            inline::run(&self.rt, work);
        }
    }

    fn refuse(&self, sink: &Arc<dyn Sink>, error: &request::ParseError) {
        match error {
            request::ParseError::Unknown(_) => tracing::debug!("{error}"),
            _ => tracing::error!("{error}"),
        }
        if let Some((unique, errno)) = error.answer() {
            crate::reply::refuse(sink, unique, errno);
        }
    }
}

/// The supplementary groups of the process `pid`, which is waiting for a request to be answered. EIO where /proc does
/// not say.
pub fn caller_groups(pid: u32) -> Result<Vec<u32>, Errno> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    parse_groups(&status).ok_or(Errno::EIO)
}

fn parse_groups(status: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|l| l.strip_prefix("Groups:"))?;
    line.split_whitespace().map(|g| g.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process() {
        assert_eq!(parse_groups("Name:\tsh\nGroups:\t4 24 1000 \nNStgid:\t1\n"), Some(vec![4, 24, 1000]));
        assert_eq!(parse_groups("Groups:\t\n"), Some(vec![]));
        assert_eq!(parse_groups("Name:\tsh\n"), None);
        assert!(caller_groups(std::process::id()).is_ok());
    }
}
