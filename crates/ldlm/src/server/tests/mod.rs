//! The lock engine as its callers see it: scenarios by kind of lock, and a model.

mod extents;
mod flocks;
mod inodes;
mod model;

use super::*;
use crate::{Extent, RangeSet};
use nacre_base::{Fid, Time};
use nacre_wire::ldlm::{LockKind, LockMode, LockRange, enqueue_flags, reply_flags};

const FILE_A: Fid = Fid { seq: 1, oid: 1, ver: 0 };
const FILE_B: Fid = Fid { seq: 1, oid: 2, ver: 0 };
const MIB: u64 = 1 << 20;

/// A namespace with a count of xids, a clock, and the collected effects. Checks every invariant after every step.
struct Server {
    namespace: Namespace,
    now: Time,
    xid: u64,
    effects: Effects,
}

impl Server {
    fn new() -> Server {
        Server::with(Settings::default())
    }

    fn with(settings: Settings) -> Server {
        Server {
            namespace: Namespace::new(counting(7 << 12), settings),
            now: Time::ZERO,
            xid: 0,
            effects: Effects::default(),
        }
    }

    fn send(&mut self, client: u64, enqueue: Enqueue) -> Outcome {
        self.xid += 1;
        self.send_as(client, self.xid, enqueue)
    }

    fn send_as(&mut self, client: u64, xid: u64, enqueue: Enqueue) -> Outcome {
        let request = Request { client: ClientId(client), xid, part: 0, enqueue };
        let outcome = self.namespace.enqueue(request, self.now, &mut self.effects);
        self.checked(outcome)
    }

    fn cancel(&mut self, client: u64, id: LockId) -> bool {
        let own = self.namespace.cancel(ClientId(client), id, self.now, &mut self.effects);
        self.checked(own)
    }

    fn convert(&mut self, client: u64, id: LockId, keep: u64) -> bool {
        let own = self.namespace.convert(ClientId(client), id, keep, self.now, &mut self.effects);
        self.checked(own)
    }

    fn client_gone(&mut self, client: u64) -> Vec<LockId> {
        let waiting = self.namespace.client_gone(ClientId(client), self.now, &mut self.effects);
        self.checked(waiting)
    }

    fn lock_server(&mut self, client: u64, mode: LockMode, start: u64, end: u64) -> Local {
        let ranges = RangeSet::single(Extent { start, end });
        let local = self.namespace.lock_server(FILE_A, mode, ranges, ClientId(client), self.now, &mut self.effects);
        self.checked(local)
    }

    fn lock_inodes(&mut self, client: u64, wants: &[(Fid, u64)]) -> Local {
        let local = self.namespace.lock_inodes(wants, ClientId(client), self.now, &mut self.effects);
        self.checked(local)
    }

    fn unlock(&mut self, id: LockId) {
        self.namespace.unlock(id, self.now, &mut self.effects);
        self.checked(())
    }

    fn covers(&mut self, client: u64, id: LockId, write: bool, start: u64, end: u64) -> bool {
        let ranges = RangeSet::single(Extent { start, end });
        self.namespace.covers(ClientId(client), id, FILE_A, write, &ranges, self.now)
    }

    /// The requests granted since the last call.
    fn granted(&mut self) -> Vec<LockId> {
        self.grants().into_iter().map(|g| g.id).collect()
    }

    fn grants(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.effects.grants)
    }

    /// The clients called back since the last call, with the locks.
    fn called_back(&mut self) -> Vec<(u64, LockId)> {
        let callbacks = std::mem::take(&mut self.effects.callbacks);
        callbacks.into_iter().map(|c| (c.client.0, LockId(c.message.handle))).collect()
    }

    fn checked<T>(&self, value: T) -> T {
        assert_eq!(self.namespace.check(), Ok(()));
        value
    }

    fn assert_empty(&self) {
        let n = &self.namespace;
        assert_eq!((n.lock_count(), n.waiting_count(), n.resource_count()), (0, 0, 0));
        assert_eq!(n.next_deadline(), Time::FAR_FUTURE);
        assert_eq!(n.check(), Ok(()));
    }
}

fn extent(mode: LockMode, start: u64, end: u64) -> Enqueue {
    Enqueue { kind: LockKind::Extent, resource: FILE_A, mode, start, end, ..Enqueue::default() }
}

fn exact(mode: LockMode, start: u64, end: u64) -> Enqueue {
    Enqueue { flags: enqueue_flags::NO_EXPANSION, ..extent(mode, start, end) }
}

fn group(group: u64) -> Enqueue {
    Enqueue { group, ..extent(LockMode::Group, 0, u64::MAX) }
}

fn waiting(outcome: Outcome) -> LockId {
    match outcome {
        Outcome::Waiting(id) => id,
        other => panic!("should wait: {other:?}"),
    }
}

fn done(outcome: Outcome) -> EnqueueReply {
    match outcome {
        Outcome::Done(reply) => reply,
        other => panic!("should be done: {other:?}"),
    }
}

/// The lock that is granted at once.
fn held(outcome: Outcome) -> LockId {
    LockId(done(outcome).handle)
}

fn range(reply: &EnqueueReply) -> (u64, u64) {
    (reply.start, reply.end)
}

/// Ids that count up from the one after `last`.
pub(super) fn counting(mut last: u64) -> impl FnMut() -> u64 {
    move || {
        last += 1;
        last
    }
}
