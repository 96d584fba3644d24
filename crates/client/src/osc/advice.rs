//! Advice for one object: locks requested ahead of time, data that a program no longer needs, and an object's end that
//! other members of a group move.

use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::locks::Wanted;
use crate::osc::object::Object;
use crate::osc::write::extent;
use crate::osc::write_back::Which;
use nacre_base::Errno;
use nacre_ldlm::RangeSet;
use nacre_ldlm::lock_cache::Cover;
use nacre_wire::ldlm::{LockMode, enqueue_flags};
use std::ops::Range;
use std::sync::Arc;

/// Outcome of a request for a lock ahead of time; numbered as Lustre's `lockahead_results`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAhead {
    /// The request was sent. Whether the lock is granted remains unknown.
    Sent = 0,
    /// A lock with other bounds or another mode is held already, and does as well.
    Different = 1,
    /// This very lock is held already, or requested.
    Same = 2,
}

/// Most enqueues of one object under way at which another one is sent ahead of time.
const ENQUEUES_MAX: usize = 1024;

impl Osc {
    /// Requests a lock on exactly a range, for a later operation under `mode`, if no other client is in the way: calls no
    /// lock back, and does not wait for the answer. EAGAIN if too many requests are under way.
    pub(crate) fn lock_ahead(
        self: &Arc<Self>,
        caller: &Caller,
        object: &Arc<Object>,
        mode: LockMode,
        range: &Range<u64>,
    ) -> Result<LockAhead, Errno> {
        let ranges = RangeSet::single(extent(range));
        let wanted = Wanted { flags: enqueue_flags::BLOCK_NOWAIT, ..Wanted::exact(mode, ranges.clone()) };
        if let Some(guard) = self.find_lock(object, &wanted) {
            let very = Cover::Extent { mode, ranges, group: 0 };
            let is_very = self.locks.lock().get(guard.id).is_some_and(|(_, cover)| *cover == very);
            return Ok(if is_very { LockAhead::Same } else { LockAhead::Different });
        }
        {
            let (mut state, enqueueing) = (object.state.lock(), wanted.enqueueing());
            if state.enqueues.contains(&enqueueing) {
                return Ok(LockAhead::Same);
            }
            if state.enqueues.len() >= ENQUEUES_MAX {
                return Err(Errno::EAGAIN);
            }
            state.enqueues.push(enqueueing);
        }
        // The lock goes to the cache, for the operation that will need it.
        drop(self.ask_server(caller, object, &wanted));
        Ok(LockAhead::Sent)
    }

    /// Writes back dirty bytes, then forgets the clean bytes of the range, and gives back idle locks that cover nothing
    /// else.
    pub(crate) async fn drop_cached(self: &Arc<Self>, object: &Arc<Object>, range: &Range<u64>) {
        // Dirty bytes for a deactivated OST stay.
        let _ = self.try_flush(object, &Which::all(self.now())).await;
        {
            let mut state = object.state.lock();
            state.cache.drop_clean(&[extent(range)]);
            object.account(&state);
        }
        let idle = self.locks.lock().give_idle_within(object.fid, &RangeSet::single(extent(range)));
        idle.into_iter().for_each(|giving| self.start_giving_up(giving));
    }

    /// Fetches the object's size under a group lock, because other members of the group may make it longer.
    pub(crate) async fn refresh(self: &Arc<Self>, caller: &Caller, object: &Arc<Object>) -> Result<(), Errno> {
        self.glimpse_server(caller, object, true).await.map(drop)
    }
}
