//! Requests whose replies may bring locks.

use crate::osc::Osc;
use nacre_ldlm::lock_cache::{LockCache, Ticket};
use std::sync::Arc;

/// A request under way whose reply may bring locks. Dropping it ends the request. Until then the client takes a callback for an unknown
/// lock to mean a lock that the reply will bring, and waits for the reply; so a request whose caller gives up must end, too.
pub(super) struct Asking<'a> {
    osc: &'a Arc<Osc>,
    ticket: Ticket,
}

impl Osc {
    /// Begins a request whose reply may bring locks; to be called before it is sent.
    pub(super) fn ask(self: &Arc<Self>) -> Asking<'_> {
        Asking { osc: self, ticket: self.locks.lock().begin() }
    }
}

impl Asking<'_> {
    /// Takes the locks of the reply, and ends the request.
    pub(super) fn end<T>(self, take: impl FnOnce(&mut LockCache, Ticket) -> T) -> T {
        take(&mut self.osc.locks.lock(), self.ticket)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let cancels = self.osc.locks.lock().end(self.ticket);
        if !cancels.is_empty() {
            self.osc.start_cancel(cancels);
        }
    }
}
