//! The objects in use, and the three steps that every operation on an object takes: find it, lock it with its data file
//! as long as its record says, and change its record in a transaction that saves the reply.

use crate::object::{Known, Object};
use crate::range_lock::RangeGuard;
use crate::record::ObjectRecord;
use nacre_base::{Errno, Fid, FxHashMap, Transno};
use nacre_ldlm::RangeSet;
use nacre_osd::PendingData;
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_tgt::Target;
use parking_lot::Mutex;
use std::sync::Arc;

/// Number of objects in memory at which unused ones are dropped.
const OBJECTS_CACHED_MAX: usize = 1 << 16;

/// The objects in use, by FID.
pub(crate) struct Objects {
    target: Arc<Target>,
    cached: Mutex<Cached>,
}

/// The objects in memory.
struct Cached {
    objects: FxHashMap<Fid, Arc<Object>>,
    /// Number of objects at which the next search for unused ones begins.
    sweep_at: usize,
}

impl Cached {
    /// Drops unused objects, except those with uncommitted changes, because the clients that made these must stay known.
    fn sweep(&mut self, committed: Transno) {
        let is_committed = |object: &Object| match object.known() {
            Known::Record(record) => record.version <= committed.0,
            Known::Nothing => false,
            Known::Gone => true,
        };
        self.objects.retain(|_, object| Arc::strong_count(object) > 1 || !is_committed(object));
        self.sweep_at = OBJECTS_CACHED_MAX.max(2 * self.objects.len());
    }
}

/// Access for which ranges are locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Objects {
    pub(crate) fn new(target: Arc<Target>) -> Objects {
        let cached = Cached { objects: FxHashMap::default(), sweep_at: OBJECTS_CACHED_MAX };
        Objects { target, cached: Mutex::new(cached) }
    }

    /// The object; ENOENT if there is none.
    pub(crate) async fn find(&self, fid: Fid) -> Result<Arc<Object>, Errno> {
        let object = self.cached.lock().objects.get(&fid).cloned();
        if let Some(object) = object {
            self.record(&object).await?;
            return Ok(object);
        }
        let operation = self.target.begin().await?;
        let record = ObjectRecord::load(&*operation, fid)?.ok_or(Errno::ENOENT)?;
        let mut cached = self.cached.lock();
        if cached.objects.len() >= cached.sweep_at {
            cached.sweep(self.target.last_committed());
        }
        let object = cached.objects.entry(fid).or_insert_with(|| Arc::new(Object::new(fid))).clone();
        object.set_known(Known::Record(record));
        Ok(object)
    }

    /// The object's record as it is now; ENOENT if it was destroyed.
    pub(crate) async fn record(&self, object: &Object) -> Result<ObjectRecord, Errno> {
        match object.known() {
            Known::Record(record) => Ok(record),
            Known::Gone => Err(Errno::ENOENT),
            Known::Nothing => {
                let operation = self.target.begin().await?;
                let record = ObjectRecord::load(&*operation, object.fid)?;
                object.set_known(record.map_or(Known::Gone, Known::Record));
                record.ok_or(Errno::ENOENT)
            }
        }
    }

    /// Locks ranges of the object's data, and returns the lock with the object's record. The data file is as long as the
    /// record says, apart from data that others are writing beyond its end.
    pub(crate) async fn lock(
        &self,
        object: &Object,
        ranges: &RangeSet,
        access: Access,
    ) -> Result<(RangeGuard, ObjectRecord), Errno> {
        loop {
            if !object.is_settled() {
                self.settle(object).await?;
            }
            let guard = match access {
                Access::Read => object.range.read(ranges.clone()).await,
                Access::Write => object.range.write(ranges.clone()).await,
            };
            if object.is_settled() {
                let record = self.record(object).await?;
                return Ok((guard, record));
            }
        }
    }

    /// Gives the data file the recorded length: cuts off data that a crash or a failed write left beyond the end.
    async fn settle(&self, object: &Object) -> Result<(), Errno> {
        let alone = object.range.write(RangeSet::ALL).await;
        if object.is_settled() {
            return Ok(());
        }
        let record = self.record(object).await?;
        let osd = self.target.osd();
        if osd.stat(object.fid).await?.unwrap_or_default().size != record.size {
            alone.assert_writes(&RangeSet::ALL);
            osd.truncate(object.fid, record.size).await?;
        }
        object.set_settled();
        Ok(())
    }

    /// Changes the object's record and saves the reply, in one transaction. If it fails, nothing has changed.
    pub(crate) async fn change(
        &self,
        request: &ServerRequest,
        object: &Object,
        change: impl FnOnce(&mut ObjectRecord) -> Result<(), Errno>,
        respond: impl FnOnce(&ObjectRecord) -> Response,
    ) -> Result<Response, Errno> {
        self.change_before(None, request, object, change, respond).await
    }

    /// As [`Objects::change`], for data that is still on its way to the device: the commit waits for it.
    pub(crate) async fn change_before(
        &self,
        data: Option<PendingData>,
        request: &ServerRequest,
        object: &Object,
        change: impl FnOnce(&mut ObjectRecord) -> Result<(), Errno>,
        respond: impl FnOnce(&ObjectRecord) -> Response,
    ) -> Result<Response, Errno> {
        let mut operation = self.target.begin_for(request).await?;
        // The record exists, and does not grow; its data has space that was granted or reserved.
        operation.use_reserve();
        let mut record = ObjectRecord::load(&*operation, object.fid)?.ok_or(Errno::ENOENT)?;
        let found = record.pre_versions();
        record.version = operation.transno().0;
        change(&mut record)?;
        assert_eq!(record.version, operation.transno().0, "a change has given its record the version of another");
        record.store(&mut *operation, object.fid)?;
        if let Some(data) = data {
            operation.commit_after(data);
        }
        object.set_known(Known::Record(record));
        let finished = operation.finish(request, respond(&record).based_on(found));
        if finished.is_err() {
            object.set_known(Known::Nothing);
        }
        finished
    }

    /// Notes that the client of `request` changed `ranges` of the object's data in the transaction of `response`. To be
    /// called before the range lock is given back.
    pub(crate) fn note_change(&self, object: &Object, ranges: &RangeSet, request: &ServerRequest, response: &Response) {
        assert!(response.transno != Transno(0), "a change of data has a transaction");
        let committed = self.target.last_committed();
        let mut uncommitted = object.uncommitted.lock();
        uncommitted.handle_change(ranges, request.export.client(), response.transno, committed);
    }

    /// Waits until changes of `ranges` by other clients are committed, so that no crash can undo what the client of
    /// `request` is about to see.
    pub(crate) async fn commit_what_others_wrote(
        &self,
        object: &Object,
        ranges: &RangeSet,
        request: &ServerRequest,
    ) -> Result<(), Errno> {
        let committed = self.target.last_committed();
        let is_seen = object.uncommitted.lock().is_seen_by(ranges, request.export.client(), committed);
        if is_seen {
            self.target.commit().await?;
        }
        Ok(())
    }

    /// Forgets the cached record, because the operation whose turn it is has changed the stored one directly.
    pub(crate) fn forget(&self, fid: Fid) {
        if let Some(object) = self.cached.lock().objects.get(&fid) {
            object.set_known(Known::Nothing);
        }
    }

    /// Returns whether any of these objects has changes that are not committed. Objects that are not in memory have none.
    pub(crate) fn any_uncommitted(&self, fids: &[Fid]) -> bool {
        let last_committed = self.target.last_committed();
        let cached = self.cached.lock();
        fids.iter().filter_map(|fid| cached.objects.get(fid)).any(|object| match object.known() {
            Known::Record(record) => record.version > last_committed.0,
            Known::Nothing => true,
            Known::Gone => false,
        })
    }

    /// Marks objects that the operation whose turn it is has destroyed.
    pub(crate) fn gone(&self, fids: &[Fid]) {
        let mut cached = self.cached.lock();
        for object in fids.iter().filter_map(|fid| cached.objects.remove(fid)) {
            object.set_known(Known::Gone);
        }
    }
}
