//! One OST: an RPC for each operation on an object. Checksums both ways, and the repetition of what they caught; the lock
//! that makes appends and truncates atomic. How a file is spread over objects is `lov`'s.

use crate::connection::{Caller, Connection};
use crate::lov::plan::ObjectIo;
use crate::unsynced::Unsynced;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Fid, Payload, Timestamp};
use nacre_ptlrpc::{Bulk, CallOptions, Reply};
use nacre_wire::attr::{ObjectAttr, StatFs};
use nacre_wire::connect::connect_flags;
use nacre_wire::ldlm::{Cancel, Enqueue, EnqueueReply, LockKind, LockMode};
use nacre_wire::ost::{
    self, BRW_SIZE_DEFAULT, BRW_SIZE_MAX, CHECKSUM_CRC32C, GrantReport, Niobuf, ReadReply, SeekReply, WriteReply,
};
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// The unit of `max_pages_per_rpc`.
const PAGE_SIZE: u64 = 4096;
/// The largest value of `max_pages_per_rpc`.
pub(crate) const PAGES_PER_RPC_MAX: u64 = BRW_SIZE_MAX as u64 / PAGE_SIZE;
/// How often a transfer whose checksum does not match is repeated, unless told otherwise.
const RESEND_COUNT_DEFAULT: u64 = 10;

/// One OST.
pub(crate) struct Osc {
    connection: Connection,
    /// Whether data is checked: 1 or 0.
    pub(crate) checksums: Arc<AtomicU64>,
    /// How often a transfer whose checksum does not match is repeated before it fails with EIO.
    pub(crate) resend_count: Arc<AtomicU64>,
    /// Size of read and write RPCs in pages of 4 KiB; the server may set a lower limit.
    pub(crate) max_pages_per_rpc: Arc<AtomicU64>,
    /// Bytes of grant the server has given without being asked.
    grant_bytes: AtomicU64,
    unsynced: Mutex<Unsynced>,
}

/// An object of a file, as operations that change it name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectOf {
    pub(crate) object: Fid,
    /// The file.
    pub(crate) parent: Fid,
    /// Which of the file's stripes it is, over all components.
    pub(crate) stripe_index: u32,
    /// Generation of the layout that told so.
    pub(crate) layout_version: u32,
    /// Owner of the file, to whom new space is charged.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The client's time.
    pub(crate) now: Timestamp,
}

impl Osc {
    pub(crate) fn new(connection: Connection) -> Osc {
        Osc {
            connection,
            checksums: Arc::new(AtomicU64::new(1)),
            resend_count: Arc::new(AtomicU64::new(RESEND_COUNT_DEFAULT)),
            max_pages_per_rpc: Arc::new(AtomicU64::new(u64::from(BRW_SIZE_DEFAULT) / PAGE_SIZE)),
            grant_bytes: AtomicU64::new(0),
            unsynced: Mutex::default(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Grant held, in bytes.
    pub(crate) fn grant_bytes(&self) -> u64 {
        self.grant_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of one read or write RPC at most.
    pub(crate) fn brw_size(&self) -> u64 {
        let own = self.max_pages_per_rpc.load(Ordering::Relaxed) * PAGE_SIZE;
        let data = self.connection.connect_data();
        let negotiated = data.flags & connect_flags::BRW_SIZE != 0 && data.brw_size > 0;
        if negotiated { own.min(data.brw_size.into()) } else { own }
    }

    fn uses_checksums(&self) -> bool {
        let data = self.connection.connect_data();
        let negotiated = data.flags & connect_flags::CHECKSUM != 0 && data.checksum_types & CHECKSUM_CRC32C != 0;
        negotiated && self.checksums.load(Ordering::Relaxed) != 0
    }

    fn corrupts(&self, point: &str) -> bool {
        self.connection.mount().node.faults().check(point) == Some(FaultAction::Corrupt)
    }

    /// Reads what `io` says. Fewer bytes than asked for mean that the object ends there.
    pub(crate) async fn read(&self, caller: &Caller, io: &ObjectIo) -> Result<Payload, Errno> {
        let checksum = self.uses_checksums();
        let body = ost::Read { fid: io.object, extents: vec![niobuf(io)], checksum, lock: 0 };
        for _ in 0..=self.resend_count.load(Ordering::Relaxed) {
            let bulk = Bulk::Receive { max_len: io.len };
            let options = CallOptions { lane: Lane::Io, bulk, ..caller.options() };
            let reply = self.connection.call::<ReadReply>(Opcode::OstRead, &body, options).await?;
            let data = if self.corrupts("osc.read.corrupt") { damaged(&reply.data) } else { reply.data };
            if data.len() > io.len || !reply.body.lens.iter().map(|l| *l as usize).eq([data.len()]) {
                return Err(Errno::EPROTO);
            }
            match reply.body.checksum {
                Some(told) if checksum && told != crc32c(&data) => self.warn_mismatch("read", io),
                _ => return Ok(data),
            }
        }
        Err(Errno::EIO)
    }

    /// Writes `data`, as long as `io` says; the object afterwards.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        io: &ObjectIo,
        data: Payload,
    ) -> Result<ObjectAttr, Errno> {
        let body = ost::Write {
            fid: of.object,
            parent: of.parent,
            stripe_index: of.stripe_index,
            layout_version: of.layout_version,
            uid: of.uid,
            gid: of.gid,
            now: of.now,
            extents: vec![niobuf(io)],
            // Nothing is dirty here after a write returned, and nothing is wanted for later.
            grant: GrantReport { grant: self.grant_bytes(), ..GrantReport::default() },
            checksum: self.uses_checksums().then(|| crc32c(&data)),
            lock: 0,
        };
        for _ in 0..=self.resend_count.load(Ordering::Relaxed) {
            let sent = if self.corrupts("osc.write.corrupt") { damaged(&data) } else { data.clone() };
            let options = CallOptions { lane: Lane::Io, bulk: Bulk::Send(sent), ..caller.options() };
            match self.connection.call::<WriteReply>(Opcode::OstWrite, &body, options).await {
                Err(Errno::EBADMSG) => self.warn_mismatch("write", io),
                Err(e) => return Err(e),
                Ok(reply) => return Ok(self.take_reply(of.object, reply)),
            }
        }
        Err(Errno::EIO)
    }

    /// The object after a change, which is not durable yet.
    fn take_reply(&self, object: Fid, reply: Reply<WriteReply>) -> ObjectAttr {
        self.grant_bytes.fetch_add(reply.body.grant, Ordering::Relaxed);
        self.unsynced.lock().handle_change(object, reply.header.transno, reply.header.last_committed);
        reply.body.attr
    }

    fn warn_mismatch(&self, what: &str, io: &ObjectIo) {
        let target = self.connection.label();
        tracing::warn!(target, what, object = %io.object, offset = io.offset, len = io.len, "checksum mismatch, repeating");
    }

    /// The object's size and times, all zero if it was never written.
    pub(crate) async fn getattr(&self, caller: &Caller, object: Fid) -> Result<ObjectAttr, Errno> {
        let body = ost::Getattr { fid: object };
        Ok(self.connection.call(Opcode::OstGetattr, &body, caller.options()).await?.body)
    }

    /// Sets the object's mtime.
    pub(crate) async fn set_mtime(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        mtime: Timestamp,
    ) -> Result<ObjectAttr, Errno> {
        let body = ost::Setattr { fid: of.object, mtime: Some(mtime), now: of.now, ..ost::Setattr::default() };
        let reply = self.connection.call::<WriteReply>(Opcode::OstSetattr, &body, caller.options()).await?;
        Ok(self.take_reply(of.object, reply))
    }

    /// Sets the object's size to `range.start` if the range ends at `u64::MAX`, else makes a hole.
    pub(crate) async fn punch(&self, caller: &Caller, of: &ObjectOf, range: Range<u64>) -> Result<ObjectAttr, Errno> {
        let body = ost::Punch {
            fid: of.object,
            parent: of.parent,
            stripe_index: of.stripe_index,
            layout_version: of.layout_version,
            start: range.start,
            end: range.end,
            now: of.now,
            lock: 0,
        };
        let reply = self.connection.call::<WriteReply>(Opcode::OstPunch, &body, caller.options()).await?;
        Ok(self.take_reply(of.object, reply))
    }

    /// Allocates the range, or makes it zeros; `mode` has fallocate's KEEP_SIZE and ZERO_RANGE bits.
    pub(crate) async fn fallocate(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        range: Range<u64>,
        mode: u32,
    ) -> Result<ObjectAttr, Errno> {
        let (layout_version, now) = (of.layout_version, of.now);
        let body =
            ost::Fallocate { fid: of.object, layout_version, start: range.start, end: range.end, mode, now, lock: 0 };
        let reply = self.connection.call::<WriteReply>(Opcode::OstFallocate, &body, caller.options()).await?;
        Ok(self.take_reply(of.object, reply))
    }

    /// Where data, or a hole, begins at or after `offset` of the object.
    pub(crate) async fn seek(
        &self,
        caller: &Caller,
        object: Fid,
        offset: u64,
        hole: bool,
    ) -> Result<Option<u64>, Errno> {
        let body = ost::Seek { fid: object, offset, hole };
        let reply = self.connection.call::<SeekReply>(Opcode::OstSeek, &body, caller.options()).await?;
        Ok(reply.body.offset)
    }

    /// Makes what was written to the object durable. EIO if the OST crashed since and some of it may be lost.
    pub(crate) async fn sync(&self, caller: &Caller, object: Fid) -> Result<(), Errno> {
        let body = ost::Sync { fid: object };
        let reply = self.connection.call::<()>(Opcode::OstSync, &body, caller.options()).await?;
        let instance = self.connection.connect_data().instance;
        self.unsynced.lock().handle_sync(object, instance, reply.header.last_committed)
    }

    /// Space on the target; gives up after `deadline`, and at once if the target cannot be reached.
    pub(crate) async fn statfs(&self, deadline: Duration) -> Result<StatFs, Errno> {
        let options = CallOptions { no_delay: true, deadline: Some(deadline), ..CallOptions::default() };
        Ok(self.connection.call(Opcode::OstStatfs, &(), options).await?.body)
    }

    /// Locks the whole object against every other holder; waits until they let go.
    pub(crate) async fn lock(self: &Arc<Self>, caller: &Caller, object: Fid) -> Result<ExtentLock, Errno> {
        let (osc, caller) = (self.clone(), *caller);
        let (send, receive) = oneshot::channel();
        // A task, so that a lock granted to a caller who no longer waits is given back: the guard is dropped then.
        self.connection.mount().rt.spawn(async move {
            let answer = osc.enqueue(&caller, object).await;
            let _ = send.send(answer.map(|handle| ExtentLock { osc, caller, handle }));
        });
        receive.await.unwrap_or(Err(Errno::ESHUTDOWN))
    }

    async fn enqueue(&self, caller: &Caller, object: Fid) -> Result<u64, Errno> {
        let body = Enqueue {
            kind: LockKind::Extent,
            resource: object,
            mode: LockMode::Pw,
            start: 0,
            end: u64::MAX,
            ..Enqueue::default()
        };
        // Outside of the window of RPCs in flight, or those who wait for a lock would keep its holder from writing.
        let options = CallOptions { high_priority: true, ..caller.options() };
        let reply = self.connection.call::<EnqueueReply>(Opcode::LdlmEnqueue, &body, options).await?;
        Ok(reply.body.handle)
    }

    async fn cancel(&self, caller: &Caller, handle: u64) {
        let options = CallOptions { lane: Lane::Cancel, high_priority: true, ..caller.options() };
        let body = Cancel { handles: vec![handle] };
        if let Err(error) = self.connection.call::<()>(Opcode::LdlmCancel, &body, options).await {
            tracing::debug!(target = self.connection.label(), %error, "a lock was not cancelled: its connection is gone");
        }
    }
}

/// A lock on a whole object, given back when dropped.
pub(crate) struct ExtentLock {
    osc: Arc<Osc>,
    caller: Caller,
    handle: u64,
}

impl Drop for ExtentLock {
    fn drop(&mut self) {
        let (osc, caller, handle) = (self.osc.clone(), self.caller, self.handle);
        self.osc.connection.mount().rt.spawn(async move { osc.cancel(&caller, handle).await });
    }
}

fn niobuf(io: &ObjectIo) -> Niobuf {
    let len = u32::try_from(io.len).expect("an RPC is cut to the brw size, which is at most 64 MiB");
    Niobuf { offset: io.offset, len, flags: 0 }
}

/// CRC32C (Castagnoli) over all pieces.
pub(crate) fn crc32c(data: &Payload) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    data.pieces().iter().for_each(|p| digest.update(p));
    digest.finalize() as u32
}

/// A copy with one bit turned, as a bad wire or memory would leave it.
fn damaged(data: &Payload) -> Payload {
    let mut bytes = data.to_bytes().to_vec();
    if let Some(b) = bytes.last_mut() {
        *b ^= 0x10;
    }
    Bytes::from(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_does_not_depend_on_the_pieces() {
        let whole = Payload::from(b"123456789".to_vec());
        assert_eq!(crc32c(&whole), 0xe306_9283, "the check value of CRC-32C");
        let mut pieces = whole.slice(0, 4);
        pieces.append(whole.slice(4, 5));
        assert_eq!(crc32c(&pieces), crc32c(&whole));
        assert_ne!(crc32c(&damaged(&whole)), crc32c(&whole));
        assert_eq!(damaged(&Payload::new()).len(), 0);
    }
}
