//! Requests whose replies may bring locks.

use crate::osc::Osc;
use nacre_ldlm::LockId;
use nacre_ldlm::lock_cache::{LockCache, Ticket};
use std::sync::Arc;

/// A request under way whose reply may bring locks. As long as it is, a callback for an unknown lock is taken to be for one that the
/// reply will bring, so it must end: if it is dropped, because nobody waits for the reply any longer, what the server granted is given
/// back when it is called back.
pub(super) struct Asking {
    osc: Arc<Osc>,
    /// Set until the request is over.
    ticket: Option<Ticket>,
}

impl Osc {
    /// Begins a request whose reply may bring locks; to be called before it is sent.
    pub(super) fn ask(self: &Arc<Self>) -> Asking {
        Asking { osc: self.clone(), ticket: Some(self.locks.lock().begin()) }
    }
}

impl Asking {
    /// Ends the request; `take` takes the locks of its reply.
    pub(super) fn end<T>(mut self, take: impl FnOnce(&mut LockCache, Ticket) -> T) -> T {
        let Some(ticket) = self.ticket.take() else {
            panic!("a request for locks at {} ends twice", self.osc.connection().name())
        };
        let (taken, cancels) = {
            let mut locks = self.osc.locks.lock();
            (take(&mut locks, ticket), locks.end(ticket))
        };
        self.cancel(cancels);
        taken
    }

    fn cancel(&self, ids: Vec<LockId>) {
        if !ids.is_empty() {
            self.osc.start_cancel(ids);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let cancels = self.osc.locks.lock().end(ticket);
            self.cancel(cancels);
        }
    }
}
