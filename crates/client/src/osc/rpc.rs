//! The RPCs of an OST, one function each: checksums both ways, and repetition after a mismatch. Which lock goes along,
//! which bytes of a reply are cached and when to write is decided elsewhere.

use crate::far::Flow;
use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::object::ObjectOf;
use crate::osc::write_back::Which;
use crate::rpc_stats::Traffics;
use bytes::Bytes;
use nacre_base::fault::FaultAction;
use nacre_base::param::value::Histograms;
use nacre_base::{Errno, Fid, Payload, Timestamp};
use nacre_ptlrpc::{Bulk, CallOptions, Traffic};
use nacre_wire::attr::{ObjectAttr, StatFs};
use nacre_wire::connect::connect_flags;
use nacre_wire::ost::{
    self, CHECKSUM_CRC32C, FiemapReply, GrantReport, Niobuf, ReadReply, SeekReply, WriteReply, niobuf_flags,
};
use nacre_wire::{Lane, Opcode};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that an OST may have acknowledged and not committed before the client asks it to commit; with twice as many,
/// writes wait. The bound for all OSTs together is the mount's cache size (`max_cached_mb`).
pub(crate) const UNSTABLE_MAX: u64 = 256 << 20;
/// Less than this does not fill the memory, and asking for a commit would only cost time.
const UNSTABLE_MIN: u64 = 4 << 20;

/// A write RPC.
pub(crate) struct WriteOut {
    pub(crate) of: ObjectOf,
    pub(crate) caller: Caller,
    /// Extents, ascending and not touching.
    pub(crate) extents: Vec<(u64, Payload)>,
    /// The mtime to set, if it is not the time of the write.
    pub(crate) mtime: Option<Timestamp>,
    /// True if the space was granted.
    pub(crate) granted: bool,
    pub(crate) report: GrantReport,
    /// Handle of the lock; 0 if the server is to take one.
    pub(crate) lock: u64,
    /// True if other clients wait for the write.
    pub(crate) urgent: bool,
}

impl Osc {
    fn uses_checksums(&self) -> bool {
        let data = self.connection.connect_data();
        let negotiated = data.flags & connect_flags::CHECKSUM != 0 && data.checksum_types & CHECKSUM_CRC32C != 0;
        negotiated && self.checksums.load(Ordering::Relaxed) != 0
    }

    fn corrupts(&self, point: &str) -> bool {
        self.connection.mount().faults.check(point) == Some(FaultAction::Corrupt)
    }

    fn io_options(&self, caller: &Caller, bulk: Bulk, lock: u64, urgent: bool) -> CallOptions {
        CallOptions { lane: Lane::Io, bulk, high_priority: urgent, lockless: lock == 0, ..caller.options() }
    }

    /// Options of a change, which is replayed if the server loses it.
    fn changing(&self, object: Fid, options: CallOptions) -> CallOptions {
        CallOptions { replay: true, on_commit: Some(self.lost.watch([object])), ..options }
    }

    /// Reads extents of an object: ascending, not touching. Fewer bytes than asked for mean that the object ends there.
    pub(crate) async fn read_rpc(
        &self,
        caller: &Caller,
        object: Fid,
        extents: &[Range<u64>],
        lock: u64,
    ) -> Result<(Vec<Payload>, ObjectAttr), Errno> {
        assert!(!extents.is_empty(), "nothing is read of {object}");
        assert!(extents.is_sorted_by(|a, b| a.end <= b.start), "{extents:?} of {object} ask twice for the same bytes");
        let checksum = self.uses_checksums();
        let asked: Vec<_> = extents.iter().map(|e| niobuf(e.start, (e.end - e.start) as usize, 0)).collect();
        let max_len = asked.iter().map(|n| n.len as usize).sum();
        let body = ost::Read { fid: object, extents: asked, checksum, lock };
        for _ in 0..=self.resend_count.load(Ordering::Relaxed) {
            self.rpc_stats.count_read(extents[0].start, max_len as u64);
            let _pass = self.enter_way(Flow::read_under(lock), max_len as u64, false).await;
            let options = self.io_options(caller, Bulk::Receive { max_len }, lock, false);
            let call = (Opcode::OstRead, &body, options);
            let reply = match lock {
                0 => self.connection.call::<ReadReply>(call.0, call.1, call.2).await?,
                _ => self.connection.call_once::<ReadReply>(call.0, call.1, call.2).await?,
            };
            let data = if self.corrupts("osc.read.corrupt") { damaged(&reply.data) } else { reply.data };
            self.note_moved(data.len() as u64);
            let replies = scatter(&body.extents, &reply.body.lens, &data).ok_or(Errno::EPROTO)?;
            match reply.body.checksum {
                Some(told) if checksum && told != data.crc32c() => {
                    self.warn_mismatch("read", object, extents[0].start, max_len)
                }
                _ => return Ok((replies, reply.body.attr)),
            }
        }
        Err(Errno::EIO)
    }

    /// Reads one extent.
    pub(crate) async fn read_one(
        &self,
        caller: &Caller,
        object: Fid,
        range: Range<u64>,
        lock: u64,
    ) -> Result<Payload, Errno> {
        let (replies, _) = self.read_rpc(caller, object, &[range], lock).await?;
        Ok(replies.into_iter().next().unwrap_or_default())
    }

    /// Bounds the memory of writes that are kept until they are durable: asks the OST to commit in good time, and waits
    /// for that if the OST does not keep up.
    async fn bound_unstable(&self) {
        let (own, mount) = (self.connection.unstable().1, self.connection.mount());
        let is_over = |n| {
            let all_are = || mount.node.unstable_bytes() >= n * mount.memory.limit_and_used().0;
            own >= n * UNSTABLE_MAX || own >= UNSTABLE_MIN && all_are()
        };
        if is_over(2) {
            self.have_committed().await;
        } else if is_over(1)
            && !self.committing.swap(true, Ordering::AcqRel)
            && let Some(osc) = self.this.upgrade()
        {
            self.spawn(async move {
                osc.have_committed().await;
                osc.committing.store(false, Ordering::Release);
            });
        }
    }

    /// Asks the OST to commit; the reply tells what is durable. An error here will show in other requests.
    async fn have_committed(&self) {
        let body = ost::Sync { fid: Fid::default() };
        let _ = self.connection.call::<()>(Opcode::OstSync, &body, CallOptions::default()).await;
    }

    /// Writes to an object.
    pub(crate) async fn write_rpc(&self, out: &WriteOut) -> Result<WriteReply, Errno> {
        self.bound_unstable().await;
        let is_apart = |a: &(u64, Payload), b: &(u64, Payload)| a.0 + a.1.len() as u64 <= b.0;
        assert!(!out.extents.is_empty() && out.extents.is_sorted_by(is_apart), "a write of {}", out.of.object);
        let mut data = Payload::new();
        out.extents.iter().for_each(|(_, d)| data.append(d.clone()));
        let keeps = self.connection.connect_data().flags & connect_flags::RECOVERY != 0;
        let flags =
            if keeps { niobuf_flags::ASYNC } else { 0 } | if out.granted { niobuf_flags::FROM_GRANT } else { 0 };
        let of = &out.of;
        let body = ost::Write {
            fid: of.object,
            parent: of.parent,
            stripe_index: of.stripe_index,
            layout_version: of.layout_version,
            uid: of.uid,
            gid: of.gid,
            now: of.now,
            mtime: out.mtime,
            extents: out.extents.iter().map(|(offset, d)| niobuf(*offset, d.len(), flags)).collect(),
            grant: out.report.clone(),
            checksum: self.uses_checksums().then(|| data.crc32c()),
            lock: out.lock,
        };
        for _ in 0..=self.resend_count.load(Ordering::Relaxed) {
            self.rpc_stats.count_write(body.extents.first().map_or(0, |e| e.offset), data.len() as u64);
            let sent = if self.corrupts("osc.write.corrupt") { damaged(&data) } else { data.clone() };
            let _pass = self.enter_way(Flow::write_under(out.lock), data.len() as u64, out.urgent).await;
            let options = self.io_options(&out.caller, Bulk::Send(sent), out.lock, out.urgent);
            let options = CallOptions { backlog: self.account.lock().dirty(), ..self.changing(of.object, options) };
            // Not repeated after an eviction, because other clients may have written there since.
            match self.connection.call_once::<WriteReply>(Opcode::OstWrite, &body, options).await {
                Err(Errno::EBADMSG) => {
                    self.warn_mismatch("write", of.object, body.extents[0].offset, data.len());
                }
                Err(e) => return Err(e),
                Ok(reply) => {
                    self.note_moved(data.len() as u64);
                    return Ok(reply.body);
                }
            }
        }
        Err(Errno::EIO)
    }

    /// The parameter `rpc_stats`.
    pub(crate) fn read_rpc_stats(&self) -> Histograms {
        let import = self.connection.import();
        self.rpc_stats.read_data(&Traffics {
            reads: import.flights(Traffic::Read),
            writes: import.flights(Traffic::Write),
            pending_read: import.queued_bytes(Opcode::OstRead),
            pending_write: self.account.lock().dirty() + import.queued_bytes(Opcode::OstWrite),
        })
    }

    pub(crate) fn clear_rpc_stats(&self) {
        self.rpc_stats.clear();
        self.connection.import().clear_flights();
    }

    fn warn_mismatch(&self, what: &str, object: Fid, offset: u64, len: usize) {
        let target = self.connection.label();
        tracing::warn!(target, what, %object, offset, len, "checksum mismatch, repeating");
    }

    /// Sets the object's mtime.
    pub(crate) async fn setattr_rpc(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        mtime: Timestamp,
    ) -> Result<ObjectAttr, Errno> {
        let body = ost::Setattr { fid: of.object, mtime: Some(mtime), now: of.now, ..ost::Setattr::default() };
        let options = self.changing(of.object, caller.options());
        Ok(self.connection.call::<WriteReply>(Opcode::OstSetattr, &body, options).await?.body.attr)
    }

    /// Sets the object's size to `range.start` if the range ends at `u64::MAX`, else makes a hole.
    pub(crate) async fn punch_rpc(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        range: Range<u64>,
        lock: u64,
    ) -> Result<ObjectAttr, Errno> {
        let body = ost::Punch {
            fid: of.object,
            parent: of.parent,
            stripe_index: of.stripe_index,
            layout_version: of.layout_version,
            start: range.start,
            end: range.end,
            now: of.now,
            lock,
        };
        let options = self.changing(of.object, caller.options());
        Ok(self.connection.call_once::<WriteReply>(Opcode::OstPunch, &body, options).await?.body.attr)
    }

    /// Allocates the range, or makes it zeros; `mode` has fallocate's KEEP_SIZE and ZERO_RANGE bits.
    pub(crate) async fn fallocate_rpc(
        &self,
        caller: &Caller,
        of: &ObjectOf,
        range: Range<u64>,
        mode: u32,
        lock: u64,
    ) -> Result<ObjectAttr, Errno> {
        let (layout_version, now) = (of.layout_version, of.now);
        let body =
            ost::Fallocate { fid: of.object, layout_version, start: range.start, end: range.end, mode, now, lock };
        let options = self.changing(of.object, caller.options());
        Ok(self.connection.call_once::<WriteReply>(Opcode::OstFallocate, &body, options).await?.body.attr)
    }

    /// Offset at or after `offset` of the object where data, or a hole, begins, as the server knows it.
    pub(crate) async fn seek_rpc(
        &self,
        caller: &Caller,
        object: Fid,
        offset: u64,
        hole: bool,
        lock: u64,
    ) -> Result<Option<u64>, Errno> {
        let body = ost::Seek { fid: object, offset, hole, lock };
        let reply = self.connection.call::<SeekReply>(Opcode::OstSeek, &body, caller.options()).await?;
        Ok(reply.body.offset)
    }

    /// Extents of an object on the OST's disk, from `offset` on. Dirty bytes of this client are written first, so that
    /// they have space.
    pub(crate) async fn fiemap(
        self: &Arc<Self>,
        caller: &Caller,
        object: Fid,
        offset: u64,
    ) -> Result<FiemapReply, Errno> {
        if let Some(object) = self.known_object(object) {
            self.try_flush(&object, &Which::all(self.now())).await?;
        }
        let body = ost::Fiemap { fid: object, offset };
        Ok(self.connection.call::<FiemapReply>(Opcode::OstFiemap, &body, caller.options()).await?.body)
    }

    /// Makes durable what the server has of the object; of all objects if `object` is zero. EIO if the OST has crashed
    /// since and data of the object may be lost.
    pub(crate) async fn sync_rpc(&self, caller: &Caller, object: Fid) -> Result<(), Errno> {
        let body = ost::Sync { fid: object };
        self.connection.call::<()>(Opcode::OstSync, &body, caller.options()).await?;
        self.lost.check(object)
    }

    /// Space on the target; gives up after `deadline`, and at once if the target cannot be reached.
    pub(crate) async fn statfs(&self, deadline: Duration) -> Result<StatFs, Errno> {
        let options = CallOptions { no_delay: true, deadline: Some(deadline), ..CallOptions::default() };
        Ok(self.connection.call(Opcode::OstStatfs, &(), options).await?.body)
    }
}

fn niobuf(offset: u64, len: usize, flags: u32) -> Niobuf {
    let len = u32::try_from(len).expect("an RPC is cut to the brw size, which is at most 64 MiB");
    Niobuf { offset, len, flags }
}

/// The bytes of each extent of a reply; none if the lengths in it make no sense.
fn scatter(asked: &[Niobuf], lens: &[u32], data: &Payload) -> Option<Vec<Payload>> {
    let is_right = lens.len() == asked.len() && lens.iter().zip(asked).all(|(len, asked)| *len <= asked.len);
    if !is_right || lens.iter().map(|len| *len as usize).sum::<usize>() != data.len() {
        return None;
    }
    if let [_] = lens {
        return Some(vec![data.clone()]);
    }
    let mut at = 0;
    let cut = lens.iter().map(|len| {
        at += *len as usize;
        data.slice(at - *len as usize, *len as usize)
    });
    Some(cut.collect())
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
    fn a_reply_is_cut_by_its_lengths_unless_they_make_no_sense() {
        let asked = [niobuf(0, 4, 0), niobuf(10, 4, 0)];
        let data = Payload::from(b"abcdef".to_vec());
        let cut =
            |lens: &[u32]| scatter(&asked, lens, &data).map(|c| c.iter().map(|p| p.to_bytes()).collect::<Vec<_>>());
        assert_eq!(cut(&[4, 2]), Some(vec![b"abcd"[..].into(), b"ef"[..].into()]));
        for wrong in [&[6][..], &[4, 3], &[6, 0], &[4, 2, 0], &[], &[u32::MAX, 7]] {
            assert_eq!(cut(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn damage_changes_the_checksum() {
        let whole = Payload::from(b"123456789".to_vec());
        assert_ne!(damaged(&whole).crc32c(), whole.crc32c());
        assert_eq!(damaged(&Payload::new()).len(), 0);
    }
}
