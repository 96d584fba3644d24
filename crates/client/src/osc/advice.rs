//! What programs know better than the caches do, for one object: locks asked for ahead of time, data that is not needed any
//! more, and an end that others of a group move.

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

/// What becomes of a request for a lock ahead of time; numbered as Lustre's `lockahead_results`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAhead {
    /// It was sent. Whether the lock is granted is not told.
    Sent = 0,
    /// A lock with other bounds or another mode is here already and does as well.
    Different = 1,
    /// The very lock is here already, or asked for.
    Same = 2,
}

/// Enqueues of one object under way up to which one more is sent ahead of time.
const ENQUEUES_MAX: usize = 1024;

impl Osc {
    /// Asks for a lock on exactly a range, for an operation under `mode` that will come, if nobody is in its way: calls nobody
    /// back and does not wait for the answer. EAGAIN if too many requests are under way.
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
        // The lock goes to the cache, for whoever comes to need it.
        drop(self.ask_server(caller, object, &wanted));
        Ok(LockAhead::Sent)
    }

    /// Writes back what is dirty, then forgets what is clean in the range, and gives back idle locks on nothing else.
    pub(crate) async fn drop_cached(self: &Arc<Self>, object: &Arc<Object>, range: &Range<u64>) {
        self.flush(object, &Which::all(self.now())).await;
        {
            let mut state = object.state.lock();
            state.cache.drop_clean(&[extent(range)]);
            object.account(&state);
        }
        let idle = self.locks.lock().give_idle_within(object.fid, &RangeSet::single(extent(range)));
        idle.into_iter().for_each(|giving| self.start_giving_up(giving));
    }

    /// Learns how long the object is now, under a group lock: others of the group make it longer, too.
    pub(crate) async fn refresh(self: &Arc<Self>, caller: &Caller, object: &Arc<Object>) -> Result<(), Errno> {
        self.glimpse_server(caller, object, true).await.map(drop)
    }
}
