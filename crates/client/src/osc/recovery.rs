//! Replays this client's locks to a restarted OST, so that it has them again under the handles that requests name. The
//! import replays writes that were not committed, before that.

use crate::osc::Osc;
use futures_util::stream::{self, StreamExt};
use nacre_base::Fid;
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::Cover;
use nacre_ptlrpc::{CallOptions, RpcError};
use nacre_wire::Opcode;
use nacre_wire::ldlm::{Enqueue, EnqueueReply, LockKind, LockMode, enqueue_flags};
use std::sync::Arc;

/// Number of locks that are replayed at once.
const WINDOW: usize = 64;

impl Osc {
    /// Replays all locks, even those that are being given back, because bytes are being written under them.
    pub(super) async fn replay_locks(self: Arc<Self>) -> Result<(), RpcError> {
        let all = self.locks.lock().all();
        let replays = all.into_iter().map(|(id, object, cover)| self.replay_lock(id, object, cover));
        let mut replays = stream::iter(replays).buffer_unordered(WINDOW);
        while let Some(replayed) = replays.next().await {
            replayed?;
        }
        Ok(())
    }

    /// Forgets a lock that the server does not give back, and the clean bytes that no other lock covers: other clients may
    /// change them.
    fn lose_lock(self: &Arc<Self>, id: LockId, fid: Fid) {
        let object = self.known_object(fid);
        let mut locks = self.locks.lock();
        let gone = match (locks.get(id), locks.others_cover(id, LockMode::Pr)) {
            (Some((_, Cover::Extent { ranges, .. })), Some(others)) => ranges.subtract(&others),
            (Some((_, Cover::Extent { ranges, .. })), None) => Some(ranges.clone()),
            _ => None,
        };
        locks.vanished(id);
        let (Some(object), Some(gone)) = (object, gone) else { return };
        let mut state = object.state.lock();
        state.cache.drop_clean(gone.ranges());
        state.pages.lose(id);
        object.account(&state);
        drop(state);
        self.start_forget_all(&object);
    }

    async fn replay_lock(self: &Arc<Self>, id: LockId, object: Fid, cover: Cover) -> Result<(), RpcError> {
        let Cover::Extent { mode, ranges, group } = cover else { return Ok(()) };
        let (start, end, more) = ranges.to_wire();
        let body = Enqueue {
            kind: LockKind::Extent,
            resource: object,
            mode,
            start,
            end,
            more,
            group,
            flags: enqueue_flags::REPLAY | enqueue_flags::NO_EXPANSION,
            handle: id.0,
            ..Enqueue::default()
        };
        let options = CallOptions { recovery: true, ..CallOptions::default() };
        match self.connection.import().call::<EnqueueReply>(Opcode::LdlmEnqueue, &body, options).await {
            Err(RpcError::Status(error)) => {
                tracing::warn!(target = self.connection.label(), %object, %error, "a lock is lost");
                self.lose_lock(id, object);
                Ok(())
            }
            answer => answer.map(drop),
        }
    }
}
