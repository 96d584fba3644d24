//! Locks that a target takes for the length of an operation. Dropping a guard ends its lock, or the wait for it.

use crate::lock_table::{Answer, Shared, State};
use nacre_base::{Errno, Part, Time};
use nacre_ldlm::LockId;
use nacre_ldlm::server::Effects;
use nacre_ptlrpc::ServerRequest;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Ranges of an object, locked for one request. Dropping it unlocks.
#[must_use = "dropping it unlocks"]
pub struct ServerLockGuard(#[expect(dead_code, reason = "held for its drop")] pub(crate) Held);

/// Parts of inodes, locked for one operation. Dropping it unlocks.
#[must_use = "dropping it unlocks"]
pub struct InodeLocks(#[expect(dead_code, reason = "held for its drop")] Option<Held>);

/// A place in the queue for inode locks. Dropping it gives up the place.
#[must_use = "dropping it gives up the place in the queue"]
pub struct InodeLocksWait(pub(crate) Waiting);

/// A lock that is held, or waited for, until this is dropped.
pub(crate) struct Held {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: LockId,
}

pub(crate) struct Waiting {
    pub(crate) held: Held,
    pub(crate) granted: oneshot::Receiver<Answer>,
}

impl InodeLocks {
    /// No locks, for an operation that changes nothing that clients cache.
    pub fn none() -> InodeLocks {
        InodeLocks(None)
    }

    pub(crate) fn of(held: Held) -> InodeLocks {
        InodeLocks(Some(held))
    }
}

impl InodeLocksWait {
    /// Waits until the locks are granted. `request` is the request that is being served, if there is one: then the wait
    /// takes no slot of its lane, and ends when the client is gone (ESHUTDOWN).
    pub async fn granted(self, request: Option<&ServerRequest>) -> Result<InodeLocks, Errno> {
        self.0.granted(request).await.map(InodeLocks::of)
    }
}

impl Waiting {
    pub(crate) async fn granted(self, request: Option<&ServerRequest>) -> Result<Held, Errno> {
        let Waiting { held, granted } = self;
        wait(granted, request).await?;
        Ok(held)
    }
}

impl Shared {
    /// Asks for a lock that the target takes for itself.
    pub(crate) fn begin(
        self: &Arc<Self>,
        ask: impl FnOnce(&mut State, Time, &mut Effects) -> (LockId, Option<oneshot::Receiver<Answer>>),
    ) -> Result<Held, Waiting> {
        let (id, granted) = self.with(ask);
        // From here on the guard gives the lock back, even if the wait for it is abandoned.
        let held = Held { shared: self.clone(), id };
        match granted {
            None => Ok(held),
            Some(granted) => Err(Waiting { held, granted }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.unlock(self.id);
    }
}

impl std::fmt::Debug for InodeLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InodeLocks")
    }
}

impl std::fmt::Debug for InodeLocksWait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InodeLocksWait")
    }
}

/// Waits for a grant, but only while the client of `request` waits for its reply.
pub(crate) async fn wait(granted: oneshot::Receiver<Answer>, request: Option<&ServerRequest>) -> Answer {
    let Some(request) = request else { return granted.await.unwrap_or(Err(Errno::ESHUTDOWN)) };
    let answered = async {
        tokio::select! {
            biased;
            answer = granted => answer.unwrap_or(Err(Errno::ESHUTDOWN)),
            // `export_gone` withdraws a client's waiting requests, with everything else that its export has.
            () = request.abandoned() => Err(Errno::ESHUTDOWN),
        }
    };
    request.spend(Part::Locks, answered).await
}
