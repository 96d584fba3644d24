//! Destroys the objects of one OST whose files are gone for good, oldest first.
//!
//! An object stays in the MDT's queue until the OST says that its destruction is durable: a crash of one server, or of
//! both at once, at worst repeats the request. Destroying a missing object is no error.

use super::{Osp, Osps, RETRY_PAUSE};
use crate::tables;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{CallOptions, CommitCallback, Fate};
use nacre_wire::Opcode;
use nacre_wire::ost::Destroy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Most objects of one request.
const BATCH: usize = 128;
/// Most requests that the OST has answered and not committed; it commits every few seconds.
const UNDER_WAY_MAX: usize = 128;
/// How long committed unlinks may go unnoticed without a notification.
const POLL: Duration = Duration::from_secs(60);

/// An object in the queue: transno of the change that put it there, and its FID.
type Queued = (u64, Fid);

/// Destroys sent to the OST.
#[derive(Default)]
struct Sent {
    /// Last object sent.
    last: Option<Queued>,
    /// Requests that are not known to be durable, by number.
    under_way: BTreeMap<u64, Vec<Queued>>,
    next: u64,
}

/// The destroy task of an OST, which runs as long as the MDT.
pub(super) async fn send_destroys(osps: Arc<Osps>, osp: Arc<Osp>) {
    osps.recovered().await;
    let (tell, mut fates) = mpsc::unbounded_channel();
    let mut sent = Sent::default();
    loop {
        osp.until_enabled().await;
        let durable = osp.destroys_durable.notified();
        let is_full = sent.under_way.len() >= UNDER_WAY_MAX;
        let more = if is_full { Ok(false) } else { send_batch(&osps, &osp, &mut sent, &tell).await };
        match more {
            // Creates may be waiting for just this space.
            Ok(true) if !osps.is_usable(osp.index) => osp.space_freed.notify_one(),
            Ok(true) => {}
            Ok(false) => tokio::select! {
                biased;
                Some((number, fate)) = fates.recv() => settle(&osps, &osp, &mut sent, number, fate).await,
                _ = osps.rt.timeout(POLL, durable), if !is_full => {}
            },
            Err(errno) => {
                tracing::debug!(mdt = %osps.target.name(), "OST{:04x} destroys no objects: {errno}", osp.index.0);
                osps.rt.sleep(RETRY_PAUSE).await;
            }
        }
        while let Ok((number, fate)) = fates.try_recv() {
            settle(&osps, &osp, &mut sent, number, fate).await;
        }
    }
}

/// Sends the next objects. Returns whether there were any.
async fn send_batch(
    osps: &Osps,
    osp: &Osp,
    sent: &mut Sent,
    tell: &mpsc::UnboundedSender<(u64, Fate)>,
) -> Result<bool, Errno> {
    // Everything that earlier instances left is durable, because it was read from the device.
    let durable = osps.target.last_committed().max(osps.target.former_transnos()).0;
    let batch = {
        let operation = osps.target.begin().await?;
        tables::destroys(&*operation, osp.index, sent.last, durable, BATCH)?
    };
    let Some(last) = batch.last().copied() else { return Ok(false) };
    let number = sent.next;
    sent.next += 1;
    let fids = batch.iter().map(|(_, fid)| *fid).collect();
    let tell = tell.clone();
    let on_commit = CommitCallback::new(move |fate| {
        // There is no receiver when the MDT has stopped.
        let _ = tell.send((number, fate));
    });
    // Replayed, because the OST may still lose the change.
    let options = CallOptions { replay: true, on_commit: Some(on_commit), ..CallOptions::default() };
    osp.import.call::<()>(Opcode::OstDestroy, &Destroy { fids }, options).await?;
    sent.last = Some(last);
    let former = sent.under_way.insert(number, batch);
    assert!(former.is_none(), "request {number} is sent twice");
    assert!(sent.under_way.len() <= UNDER_WAY_MAX, "{} requests to destroy are under way", sent.under_way.len());
    Ok(true)
}

/// Handles the fate of a request that was answered.
async fn settle(osps: &Osps, osp: &Osp, sent: &mut Sent, number: u64, fate: Fate) {
    // A request that failed is sent again anyway.
    let Some(batch) = sent.under_way.remove(&number) else { return };
    let taken_off = match fate {
        Fate::Durable => take_off(osps, osp, &batch).await,
        Fate::Lost => Err(Errno::EIO),
    };
    if taken_off.is_err() {
        // Start from the beginning of the queue.
        sent.last = None;
    }
}

async fn take_off(osps: &Osps, osp: &Osp, batch: &[Queued]) -> Result<(), Errno> {
    let mut operation = osps.target.begin().await?;
    operation.use_reserve();
    for (transno, fid) in batch {
        tables::delete_destroy(&mut *operation, osp.index, *transno, *fid)?;
    }
    operation.finish_local();
    Ok(())
}
