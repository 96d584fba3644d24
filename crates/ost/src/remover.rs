//! Removes the data of destroyed objects only once the transaction that removed the record is durable, so that no crash
//! brings a record back without its data. The next start finishes what a crash interrupted.

use crate::record::ObjectRecord;
use futures_util::StreamExt;
use futures_util::stream;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::ServerRequest;
use nacre_tgt::{Operation, Target};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Number of objects looked up in one turn of the search for orphans.
const SEARCH_BATCH: usize = 256;
/// Number of objects whose data is removed at a time. A device that discards freed space synchronously takes seconds for
/// each GiB, and new writes must not outrun it.
const REMOVED_AT_A_TIME: usize = 8;

/// Most objects of one OST_DESTROY.
pub(crate) const DESTROY_COUNT_MAX: usize = 4096;
/// Most objects that are destroyed and still have data. Beyond that, OST_DESTROY waits, in the order of arrival: a client
/// cannot destroy faster than the device removes.
const UNREMOVED_MAX: u32 = 65_536;
const _: () =
    assert!(DESTROY_COUNT_MAX <= UNREMOVED_MAX as usize, "one request can wait for all the room that there is");

/// Takes destroyed objects, whose data a task removes.
#[derive(Clone)]
pub(crate) struct Remover {
    queue: mpsc::UnboundedSender<Job>,
    /// Bounds the objects in `queue`, and those that will be there after the next commit.
    room: Arc<Semaphore>,
}

/// Room for objects whose data has to be removed, held until it is.
pub(crate) struct Room(OwnedSemaphorePermit);

enum Job {
    Remove(Vec<Fid>, Option<Room>),
    /// Reply once all earlier jobs are done.
    Tell(oneshot::Sender<()>),
}

impl Remover {
    /// Creates a remover, and the future that must run as its task.
    pub(crate) fn new(target: Arc<Target>) -> (Remover, impl Future<Output = ()> + Send + 'static) {
        let (queue, mut jobs) = mpsc::unbounded_channel();
        let run = async move {
            while let Some(job) = jobs.recv().await {
                match job {
                    Job::Remove(fids, room) => {
                        remove(&target, fids).await;
                        drop(room);
                    }
                    Job::Tell(done) => drop(done.send(())),
                }
            }
        };
        (Remover { queue, room: Arc::new(Semaphore::new(UNREMOVED_MAX as usize)) }, run)
    }

    /// Waits until there is room for `count` more objects.
    pub(crate) async fn room(&self, request: &ServerRequest, count: usize) -> Result<Room, Errno> {
        assert!(count <= DESTROY_COUNT_MAX, "room for {count} objects would never be there");
        let count = count as u32;
        if let Ok(permit) = self.room.clone().try_acquire_many_owned(count) {
            return Ok(Room(permit));
        }
        tokio::select! {
            biased;
            permit = self.room.clone().acquire_many_owned(count) => permit.map(Room).map_err(|_| Errno::ESHUTDOWN),
            () = request.abandoned() => Err(Errno::ENOTCONN),
        }
    }

    /// Takes all the room that is left; for tests.
    #[cfg(test)]
    pub(crate) fn take_all_room(&self) -> Room {
        Room(self.room.clone().try_acquire_many_owned(self.room.available_permits() as u32).unwrap())
    }

    /// Removes the data of these objects once the operation, which removed their records, is durable. Orphans need no
    /// room, because an MDT's start has few.
    pub(crate) fn remove_on_commit(&self, operation: &mut Operation<'_>, fids: Vec<Fid>, room: Option<Room>) {
        let has_room = room.as_ref().is_none_or(|room| fids.len() <= room.0.num_permits());
        assert!(has_room, "{} objects are destroyed, more than there is room for", fids.len());
        let queue = self.queue.clone();
        operation.on_commit(Box::new(move || {
            // The receiver is gone only when the target has stopped.
            let _ = queue.send(Job::Remove(fids, room));
        }));
    }

    /// Waits until the data is removed of all objects whose destruction is durable now.
    pub(crate) async fn drained(&self) {
        let (done, told) = oneshot::channel();
        if self.queue.send(Job::Tell(done)).is_ok() {
            // There is no reply if the target has stopped.
            let _ = told.await;
        }
    }
}

async fn remove(target: &Target, fids: Vec<Fid>) {
    let remove_one = |fid| async move {
        if let Err(error) = target.osd().remove(fid).await {
            tracing::warn!(target = %target.name(), %fid, %error, "a destroyed object's data remains");
        }
    };
    stream::iter(fids).for_each_concurrent(REMOVED_AT_A_TIME, remove_one).await;
}

/// Removes data without a record: a crash came between the durable removal of the record and that of the data.
pub(crate) async fn remove_orphans(target: Arc<Target>) {
    match orphans(&target).await {
        Ok(orphans) if orphans.is_empty() => {}
        Ok(orphans) => {
            tracing::info!(target = %target.name(), count = orphans.len(), "removing data of destroyed objects");
            remove(&target, orphans).await;
        }
        Err(error) => tracing::warn!(target = %target.name(), %error, "data of destroyed objects was not searched"),
    }
}

async fn orphans(target: &Target) -> Result<Vec<Fid>, Errno> {
    let mut orphans = Vec::new();
    let all = target.osd().list_objects().await?;
    for batch in all.chunks(SEARCH_BATCH) {
        let operation = target.begin().await?;
        for fid in batch {
            if ObjectRecord::load(&*operation, *fid)?.is_none() {
                orphans.push(*fid);
            }
        }
    }
    // A record may be missing only because a recent destroy is not durable yet. FIDs are never reused.
    if !orphans.is_empty() {
        target.commit().await?;
    }
    Ok(orphans)
}
