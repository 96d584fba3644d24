//! The door without a device, for a model of the kernel in virtual time: requests as values, answers decoded from the bytes
//! that a kernel would get.

use crate::abi;
use crate::door::Door;
use crate::handler::{Handler, dispatch};
use crate::interrupt::Interrupts;
use crate::notify::{Notifier, Obey};
use crate::parse::Header;
use crate::reply::OpenFlags;
use crate::request::{self, Operation};
use crate::sink::Sink;
use bytes::Bytes;
use nacre_base::Errno;
use nacre_client::Client;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// A client's door.
pub struct VirtualDoor {
    handler: Arc<dyn Handler>,
    interrupts: Arc<Interrupts>,
    requests: AtomicU64,
}

/// Attributes of a file, as a kernel is told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The node.
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of data.
    pub mtime: (u64, u32),
    /// How long they may be believed.
    pub valid: Duration,
}

/// Takes one answer.
#[derive(Default)]
struct Answer(Mutex<Option<Vec<u8>>>);

impl Sink for Answer {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let before = self.0.lock().replace(parts.iter().flat_map(|part| part.iter().copied()).collect());
        assert!(before.is_none(), "a request is answered twice");
        Ok(())
    }
}

impl VirtualDoor {
    /// The door of a client, whose kernel is `kernel`.
    pub fn new(rt: &Rt, client: Arc<Client>, kernel: Arc<dyn Obey>) -> VirtualDoor {
        let handler: Arc<dyn Handler> = Door::new(rt, client);
        handler.init(Notifier::to(rt, kernel));
        VirtualDoor { handler, interrupts: Arc::new(Interrupts::new(rt.clone())), requests: AtomicU64::new(0) }
    }

    /// Sends a request. Returns the answer's body.
    async fn call(&self, node: u64, operation: Operation) -> Result<Vec<u8>, Errno> {
        let unique = 2 * self.requests.fetch_add(1, Ordering::Relaxed) + 2;
        let (len, opcode, uid, gid, pid, supplementary_group) = (0, 0, 0, 0, 0, None);
        let header = Header { len, opcode, unique, node, uid, gid, pid, supplementary_group };
        let answer = Arc::new(Answer::default());
        let sink: Arc<dyn Sink> = answer.clone();
        if let Some(work) = dispatch(&self.handler, &sink, &self.interrupts, &header, operation) {
            work.await;
        }
        let bytes = answer.0.lock().take().expect("every request is answered");
        let (header, body) = abi::OutHeader::read_from_prefix(&bytes).expect("an answer has a header");
        assert_eq!((header.unique, header.len as usize), (unique, bytes.len()), "the answer's number and length");
        if header.error == 0 { Ok(body.to_vec()) } else { Err(Errno(-header.error)) }
    }

    /// LOOKUP.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Told, Errno> {
        let op = request::Lookup { parent, name: Bytes::copy_from_slice(name) };
        let body = self.call(parent, Operation::Lookup(op)).await?;
        let (entry, _) = abi::EntryOut::read_from_prefix(&body).map_err(|_| Errno::EPROTO)?;
        Ok(Told { node: entry.nodeid, ..told(&entry.attr, entry.attr_valid, entry.attr_valid_nsec) })
    }

    /// GETATTR.
    pub async fn get_attr(&self, node: u64) -> Result<Told, Errno> {
        let body = self.call(node, Operation::GetAttr(request::GetAttr { node, handle: None })).await?;
        attributes(&body)
    }

    /// SETATTR of the size, through an open file.
    pub async fn set_size(&self, node: u64, handle: u64, size: u64) -> Result<Told, Errno> {
        let op = request::SetAttr {
            node,
            handle: Some(handle),
            mode: None,
            uid: None,
            gid: None,
            size: Some(size),
            atime: None,
            mtime: None,
            ctime: None,
            lock_owner: None,
            kill_suidgid: false,
        };
        attributes(&self.call(node, Operation::SetAttr(op)).await?)
    }

    /// OPEN. Returns the handle, and how the kernel has to treat it.
    pub async fn open(&self, node: u64, flags: u32) -> Result<(u64, OpenFlags), Errno> {
        let op = request::Open { node, flags, kill_suidgid: false };
        let body = self.call(node, Operation::Open(op)).await?;
        let (opened, _) = abi::OpenOut::read_from_prefix(&body).map_err(|_| Errno::EPROTO)?;
        Ok((opened.fh, OpenFlags(opened.open_flags)))
    }

    /// READ; `fills` pages of the kernel.
    pub async fn read(&self, node: u64, handle: u64, offset: u64, size: u32, fills: bool) -> Result<Bytes, Errno> {
        let lock_owner = (!fills).then_some(1);
        let op = request::Read { node, handle, offset, size, flags: 0, lock_owner };
        self.call(node, Operation::Read(op)).await.map(Bytes::from)
    }

    /// WRITE; `from_cache`: out of a page of the kernel.
    pub async fn write(
        &self,
        node: u64,
        handle: u64,
        offset: u64,
        data: Bytes,
        from_cache: bool,
    ) -> Result<usize, Errno> {
        let op =
            request::Write { node, handle, offset, data, flags: 0, lock_owner: None, from_cache, kill_suidgid: false };
        let body = self.call(node, Operation::Write(op)).await?;
        let (written, _) = abi::WriteOut::read_from_prefix(&body).map_err(|_| Errno::EPROTO)?;
        Ok(written.size as usize)
    }

    /// FLUSH.
    pub async fn flush(&self, node: u64, handle: u64) -> Result<(), Errno> {
        self.call(node, Operation::Flush(request::Flush { node, handle, lock_owner: 1 })).await.map(drop)
    }

    /// FSYNC.
    pub async fn fsync(&self, node: u64, handle: u64) -> Result<(), Errno> {
        self.call(node, Operation::FSync(request::FSync { node, handle, data_only: false })).await.map(drop)
    }

    /// RELEASE.
    pub async fn release(&self, node: u64, handle: u64) -> Result<(), Errno> {
        let (flags, lock_owner, flush, unlock_flock) = (0, 1, false, false);
        let op = request::Release { node, handle, flags, lock_owner, flush, unlock_flock };
        self.call(node, Operation::Release(op)).await.map(drop)
    }
}

fn attributes(body: &[u8]) -> Result<Told, Errno> {
    let (out, _) = abi::AttrOut::read_from_prefix(body).map_err(|_| Errno::EPROTO)?;
    Ok(told(&out.attr, out.attr_valid, out.attr_valid_nsec))
}

fn told(attr: &abi::Attr, seconds: u64, nanos: u32) -> Told {
    let (mtime, valid) = ((attr.mtime, attr.mtimensec), Duration::new(seconds, nanos));
    Told { node: attr.ino, size: attr.size, mtime, valid }
}
