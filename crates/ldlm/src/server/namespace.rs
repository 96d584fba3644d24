//! All locks of one target: resources by FID, requests in, grants and callbacks out.

use super::{Effects, Local, Outcome, Request, Settings, Totals};
use crate::{ClientId, LockId, RangeSet};
use nacre_base::{Fid, Time};
use nacre_wire::ldlm::{InodeLock, LockMode};

/// The locks of one target.
pub struct Namespace {
    settings: Settings,
}

#[allow(unused_variables)]
impl Namespace {
    /// No locks. Ids begin above a number derived from `seed`: a random one keeps handles of an earlier start from
    /// meaning anything.
    pub fn new(seed: u64, settings: Settings) -> Namespace {
        Namespace { settings }
    }

    /// What is tuned.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Tunes. Deadlines that run keep running.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// A client asks for an extent lock or a flock, gives up a flock (mode NL), asks what is in the way of one
    /// (TEST_LOCK), takes back a request of its own that waits (WITHDRAW), or wants an object's size (GLIMPSE).
    pub fn enqueue(&mut self, request: Request, now: Time, effects: &mut Effects) -> Outcome {
        todo!()
    }

    /// A client gives a lock back, or takes back a request that waits; whether it has such a one.
    pub fn cancel(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) -> bool {
        todo!()
    }

    /// A client's inode lock keeps only `keep_bits` of its bits; whether it has such a one.
    pub fn convert(&mut self, client: ClientId, id: LockId, keep_bits: u64, now: Time, effects: &mut Effects) -> bool {
        todo!()
    }

    /// A client is gone: all its locks go, and its waiting requests, whose ids are returned. Locks that the server took
    /// on its behalf end with their operation.
    pub fn client_gone(&mut self, client: ClientId, now: Time, effects: &mut Effects) -> Vec<LockId> {
        todo!()
    }

    /// The server takes a lock (PR, or PW) on the ranges of a data RPC that comes without one.
    pub fn lock_server(
        &mut self,
        resource: Fid,
        mode: LockMode,
        ranges: RangeSet,
        on_behalf: ClientId,
        now: Time,
        effects: &mut Effects,
    ) -> Local {
        todo!()
    }

    /// The server takes inode locks, mode EX, on the bits that an operation is going to change: all at once.
    pub fn lock_inodes(
        &mut self,
        wants: &[(Fid, u64)],
        on_behalf: ClientId,
        now: Time,
        effects: &mut Effects,
    ) -> Local {
        todo!()
    }

    /// Ends a lock that the server took, or takes it back while it waits. Unknown ones are no error.
    pub fn unlock(&mut self, id: LockId, now: Time, effects: &mut Effects) {
        todo!()
    }

    /// Lets a client have an inode lock, mode PR, on those of `bits` that nobody changes or waits to change. The reply's
    /// bits are those; None if there are none, or if the client's lock on the inode is called back.
    pub fn grant_inode(&mut self, client: ClientId, inode: Fid, bits: u64) -> Option<InodeLock> {
        todo!()
    }

    /// Whether the client's granted lock allows a read or write of all these ranges. Working under a lock that is called
    /// back prolongs its deadline.
    pub fn covers(
        &mut self,
        client: ClientId,
        id: LockId,
        resource: Fid,
        write: bool,
        ranges: &RangeSet,
        now: Time,
    ) -> bool {
        todo!()
    }

    /// A client answered a callback with "I do not have it".
    pub fn handle_not_held(&mut self, client: ClientId, id: LockId, now: Time, effects: &mut Effects) {
        todo!()
    }

    /// When [`Namespace::expired`] is to be asked next.
    pub fn next_deadline(&self) -> Time {
        todo!()
    }

    /// Clients that did not give back a lock in time: to be evicted. Each lock is told of once.
    pub fn expired(&mut self, now: Time) -> Vec<ClientId> {
        todo!()
    }

    /// Whether clients are in each other's way at this object.
    pub fn is_contended(&self, resource: Fid, now: Time) -> bool {
        todo!()
    }

    /// Times that an object became contended.
    pub fn contention_events(&self) -> u64 {
        todo!()
    }

    /// Locks that clients hold.
    pub fn lock_count(&self) -> usize {
        todo!()
    }

    /// Requests that wait, the server's own too.
    pub fn waiting_count(&self) -> usize {
        todo!()
    }

    /// Resources with a lock or a request.
    pub fn resource_count(&self) -> usize {
        todo!()
    }

    /// Totals since the start.
    pub fn totals(&self) -> Totals {
        todo!()
    }

    /// Whether all that must hold holds; what does not. For simulators: it looks at everything.
    pub fn check(&self) -> Result<(), String> {
        todo!()
    }
}
