//! OST_WRITE: data to the device, then one transaction for record, transno and saved reply, then the reply.
//!
//! All extents of one RPC are written under one range lock. Whether the reply waits for the commit depends on the client
//! and on the administrator: a client that does not keep the data until it is committed (no [`niobuf_flags::ASYNC`]) gets
//! its reply after the commit, and with `sync_journal` every client does. With `reply_from_memory_mb` the record is
//! changed before the data is written: the range stays locked, and the next commit waits, until the device has the data.

use crate::memory::Taken;
use crate::object::Object;
use crate::object_service::ObjectService;
use crate::objects::Access;
use crate::ops::cancel;
use crate::ops::extents::{self, Extents};
use crate::range_lock::RangeGuard;
use crate::record::Change;
use crate::settings::ReplyAfter;
use crate::space::Reserved;
use bytes::Bytes;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Fid, Part, Payload};
use nacre_osd::{OsdError, PendingData, Seek};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_tgt::Target;
use nacre_wire::ost::{Niobuf, Write, WriteReply, niobuf_flags};
use std::sync::Arc;
use tokio::sync::oneshot;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    // 1. Which data is to be written, and whether it may be.
    let write: Write = request.decode()?;
    let extents = extents::check(&write.extents)?;
    let object = ost.objects.find(write.fid).await?;
    ost.objects.record(&object).await?.check_layout(write.layout_version)?;
    let lock = ost.lock_ranges(&request, write.fid, write.lock, Access::Write, &extents.ranges).await?;
    let reserved = reserve(ost, &request, &write, &object, &extents).await?;

    // 2. Get the data; check it before anything is changed.
    let data = pull(ost, &request, &write, &extents).await?;

    // 3. Write the data to the device and change the record, in the chosen order.
    let lock_object = ost.objects.lock(&object, &extents.ranges, Access::Write);
    let (guard, found) = request.spend(Part::Locks, lock_object).await?;
    request.check_pre_versions(&found.pre_versions())?;
    // A recovery ends with a commit.
    let keeps = request.is_replay() || write.extents.iter().all(|e| e.flags & niobuf_flags::ASYNC != 0);
    let after = ost.settings.reply_after(keeps);
    // An acknowledged write can no longer be refused. The bytes that a write without reserved space overwrites may be punched
    // before it is stored.
    let from_memory = after == ReplyAfter::Memory && reserved.is_some() && ost.space.is_certain();
    let memory = from_memory.then(|| ost.memory.take(extents.bytes as u64, ost.settings.memory_bytes()));
    let work = Work { ost, request: &request, write: &write, object: &object, extents: &extents };
    let response = match memory.flatten() {
        Some(memory) => work.record_first(data, Held { guard, reserved, memory }).await?,
        None => {
            let response = work.store_first(data, reserved, &guard).await?;
            drop(guard);
            response
        }
    };
    ost.brw_stats.count_write(&write.extents, extents.bytes);

    // 4. Commit, if the client or another reader depends on it.
    if after == ReplyAfter::Commit {
        request.spend(Part::Commit, ost.target.commit()).await?;
    } else if lock.is_some() {
        request.spend(Part::Commit, cancel::before_unlock(ost, write.fid)).await;
    }
    drop(lock);
    ost.target.fault("ost.write.before_reply").await?;
    Ok(response)
}

/// A write whose data has been received.
struct Work<'a> {
    ost: &'a Arc<ObjectService>,
    request: &'a ServerRequest,
    write: &'a Write,
    object: &'a Object,
    extents: &'a Extents,
}

/// Resources that are released once the data is on the device: the range lock, reserved space, memory.
struct Held {
    guard: RangeGuard,
    reserved: Option<Reserved>,
    memory: Taken,
}

impl Work<'_> {
    /// Writes the data, then changes the record.
    async fn store_first(
        &self,
        data: Payload,
        reserved: Option<Reserved>,
        guard: &RangeGuard,
    ) -> Result<Response, Errno> {
        let Work { ost, request, write, object, extents } = *self;
        let change = object.begin_change();
        ost.target.fault("ost.write.before_data").await?;
        guard.assert_writes(&extents.ranges);
        let stored = ost.target.osd().write_extents(object.fid, split(&write.extents, &data));
        request.spend(Part::Device, stored).await?;
        ost.target.fault("ost.write.after_data").await?;
        if let Some(reserved) = reserved {
            reserved.written();
        }
        let response = record(ost, request, write, object, extents, None).await?;
        ost.objects.note_change(object, &extents.ranges, request, &response);
        change.recorded();
        Ok(response)
    }

    /// Changes the record, then writes the data in a task; only the next commit and requests for the range wait for it.
    async fn record_first(&self, data: Payload, held: Held) -> Result<Response, Errno> {
        let Work { ost, request, write, object, extents } = *self;
        held.guard.assert_writes(&extents.ranges);
        let (stored, pending) = oneshot::channel();
        let response = record(ost, request, write, object, extents, Some(pending)).await?;
        ost.objects.note_change(object, &extents.ranges, request, &response);
        // No await from here to the spawn: a request whose client is gone ends at any await.
        let data = split(&write.extents, &data);
        drop(ost.target.rt().spawn(store_later(ost.target.clone(), object.fid, data, stored, held)));
        Ok(response)
    }
}

/// Writes acknowledged data. If that fails the target stops, because it is too late to tell the client.
async fn store_later(
    target: Arc<Target>,
    fid: Fid,
    data: Vec<(u64, Payload)>,
    stored: oneshot::Sender<Result<(), OsdError>>,
    held: Held,
) {
    let written = match target.fault("ost.write.from_memory").await {
        Ok(_) => target.osd().write_extents(fid, data).await,
        Err(errno) => Err(OsdError::Io { what: "ost.write.from_memory", errno }),
    };
    let failed = written.as_ref().err().cloned();
    // If the commit has given up waiting, the device is closed.
    let _ = stored.send(written);
    match failed {
        None => {
            if let Some(reserved) = held.reserved {
                reserved.written();
            }
        }
        Some(OsdError::Closed) => {}
        Some(error) => {
            tracing::error!(target = %target.name(), %fid, %error, "data that was answered for cannot be written");
            // Poisons the device before any request can look at the range.
            let _ = target.commit().await;
        }
    }
    drop((held.guard, held.memory));
}

async fn record(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    object: &Object,
    extents: &Extents,
    data: Option<PendingData>,
) -> Result<Response, Errno> {
    let stat = ost.stat(write.fid).await?;
    let change = Change {
        parent: Some((write.parent, write.stripe_index)),
        owner: Some((write.uid, write.gid)),
        layout_version: write.layout_version,
        now: write.now,
    };
    // A repeated request reports the state at the time it was first sent.
    let grant = || {
        if request.is_resent() || request.is_replay() {
            0
        } else {
            ost.space.allocate(request.export.cookie, &write.grant)
        }
    };
    let changed = ost.objects.change_before(
        data,
        request,
        object,
        |record| {
            record.changed(&change)?;
            if let Some(mtime) = write.mtime.filter(|_| record.ctime == write.now) {
                record.mtime = mtime;
            }
            record.size = record.size.max(extents.end);
            Ok(())
        },
        |record| {
            Response::new(&WriteReply {
                attr: record.attr(stat),
                grant: grant(),
                contended: ost.locks.is_contended(write.fid),
            })
        },
    );
    changed.await
}

/// Reserves space. A write that was sent again is like any other, for one that was executed before is answered before it
/// comes here. Nothing is reserved for a write without grant that only overwrites allocated bytes, if no unpromised space is
/// left.
async fn reserve(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    object: &Object,
    extents: &Extents,
) -> Result<Option<Reserved>, Errno> {
    if request.is_replay() {
        return Ok(Some(ost.space.reserve_replay(request.export.cookie, extents.bytes as u64)));
    }
    let of_grant = |e: &&Niobuf| e.flags & niobuf_flags::FROM_GRANT != 0;
    let promised: u64 = write.extents.iter().filter(of_grant).map(|e| u64::from(e.len)).sum();
    assert!(promised <= extents.bytes as u64, "{promised} bytes of {} are promised", extents.bytes);
    match ost.space.reserve(request.export.cookie, promised, extents.bytes as u64 - promised).await {
        Ok(reserved) => Ok(Some(reserved)),
        Err(Errno::ENOSPC) if is_allocated(ost, object, &write.extents).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the extents lie within the object and have no holes.
async fn is_allocated(ost: &ObjectService, object: &Object, extents: &[Niobuf]) -> Result<bool, Errno> {
    let size = ost.objects.record(object).await?.size;
    for extent in extents {
        let end = extent.offset + u64::from(extent.len);
        let hole = ost.target.osd().seek(object.fid, extent.offset, Seek::Hole).await?;
        if end > size || hole.is_none_or(|hole| hole < end) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The data of the request, complete and undamaged: EBADMSG tells the client to send it again.
async fn pull(
    ost: &ObjectService,
    request: &ServerRequest,
    write: &Write,
    extents: &Extents,
) -> Result<Payload, Errno> {
    let mut data = request.pull().await?;
    if data.len() != extents.bytes {
        return Err(Errno::EPROTO);
    }
    if let Some(FaultAction::Corrupt) = ost.target.fault("ost.checksum").await? {
        data = with_first_bit_flipped(&data);
    }
    match write.checksum {
        Some(expected) if expected != data.crc32c() => {
            tracing::warn!(
                target = %ost.target.name(), fid = %write.fid, client = %request.export.client_name(),
                offset = extents.ranges.cover().start, bytes = extents.bytes, "data was damaged on its way: not stored"
            );
            Err(Errno::EBADMSG)
        }
        _ => Ok(data),
    }
}

/// Splits the data by extents. The device gets all of them at once, because it knows best which to write together.
fn split(extents: &[Niobuf], data: &Payload) -> Vec<(u64, Payload)> {
    let mut at = 0;
    let of_data = |extent: &Niobuf| {
        let piece = data.slice(at, extent.len as usize);
        at += extent.len as usize;
        (extent.offset, piece)
    };
    let pieces = extents.iter().map(of_data).collect();
    assert_eq!(at, data.len(), "bytes of all extents, and bytes that came");
    pieces
}

fn with_first_bit_flipped(data: &Payload) -> Payload {
    let mut flat = data.to_bytes().to_vec();
    if let Some(first) = flat.first_mut() {
        *first ^= 1;
    }
    Bytes::from(flat).into()
}
