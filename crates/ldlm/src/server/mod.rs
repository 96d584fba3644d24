//! The server's side of the lock manager: the locks that clients hold at one target, the requests that wait for them,
//! and the holders to call back. A plain state machine: requests and the time go in, an [`Outcome`] and [`Effects`]
//! come out, and the caller sends them. [`Namespace`] is the whole; under it, one file per kind of lock.
//!
//! Extent locks of one client do not conflict with each other, unless `own_locks_conflict` is set. A client has one
//! cache, and all its locks protect the same bytes in it, so no two of them can contradict each other; it orders its
//! own threads itself, because they share its locks. So a client that reads and then writes keeps its read lock and its
//! pages. A client whose threads ask for several ranges at once is not sent callbacks because of itself. And when
//! another client wants to read, only the write lock is given back: the pages stay, under the read lock. (Lustre calls
//! a client's own locks back.) For the same reason a lock that the server takes on behalf of a client belongs to that
//! client; but two locks that the server takes exclude each other, because they are two operations on the object
//! itself.
//!
//! What must not be here: RPCs, tasks, and what the resources are.

mod contention;
mod deadlines;
mod extents;
mod flocks;
mod growth;
mod inodes;
mod interval_tree;
mod namespace;
mod pool;
mod records;
mod stages;
#[cfg(test)]
mod tests;

pub use namespace::Namespace;
pub use pool::limit_for_memory;

use crate::{ClientId, LockId};
use nacre_base::Errno;
use nacre_wire::ldlm::{BlockingCallback, Enqueue, EnqueueReply};
use std::time::Duration;

/// An enqueue and its sender.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client.
    pub client: ClientId,
    /// Xid of the RPC: a resent request has the same one.
    pub xid: u64,
    /// Number of the lock, among several that the RPC asks for; 0 if it asks for one.
    pub part: u32,
    /// The enqueue.
    pub enqueue: Enqueue,
}

/// Outcome of an enqueue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Answer at once: the lock is granted, or the question is answered. For extents the caller adds the attributes.
    Done(EnqueueReply),
    /// Answer when a [`Grant`] with this id comes.
    Waiting(LockId),
    /// Answer with an error: EAGAIN (would wait), EDEADLK, EINVAL, EOPNOTSUPP, EINPROGRESS (too many locks: ask again),
    /// ENOLCK (too many locks of this client).
    Refused(Errno),
    /// A glimpse that conflicts with locks of other clients: ask their holders, then answer with attributes, handle 0
    /// and mode NL.
    Glimpse(GlimpseWork),
}

/// Holders that may know more of an object's size than the server does.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GlimpseWork {
    /// One holder per client, the one whose lock ends last first; never the client that asks. Ask them in this order,
    /// until one reports a size above its `settles_above`: the holders after it have locks on lower bytes only. A
    /// holder that has written nothing yet under its lock settles nothing.
    pub holders: Vec<GlimpseHolder>,
    /// Bits of [`nacre_wire::ldlm::reply_flags`] for the reply.
    pub flags: u32,
}

/// A holder to be asked for the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlimpseHolder {
    /// The client.
    pub client: ClientId,
    /// The client's lock that reaches furthest.
    pub lock: LockId,
    /// Start of the last range of that lock; `u64::MAX` if others hold the same bytes (a group lock).
    pub settles_above: u64,
}

/// A waiting request is granted: send this reply. For a lock that the server takes itself, the reply is empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Id of the request.
    pub id: LockId,
    /// Reply to the request.
    pub reply: EnqueueReply,
}

/// A lock that a request waits for: send this to its holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Callback {
    /// The holder.
    pub client: ClientId,
    /// Message to the holder.
    pub message: BlockingCallback,
}

/// Consequences of an input, beside its own outcome.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Effects {
    /// Requests that waited and are granted now, in order.
    pub grants: Vec<Grant>,
    /// Locks that are called back now: once each (an inode lock again if it was converted and still conflicts).
    pub callbacks: Vec<Callback>,
}

/// Outcome of a request for a lock that the server takes for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// Granted.
    Granted(LockId),
    /// A [`Grant`] with this id comes.
    Waiting(LockId),
}

impl Local {
    /// The lock.
    pub fn id(self) -> LockId {
        match self {
            Local::Granted(id) | Local::Waiting(id) => id,
        }
    }
}

/// Settings that an administrator may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// An object is contended when this many requests met another client's lock within `contention_seconds`.
    pub contended_locks: usize,
    /// Time for `contended_locks`, in seconds; 1 to 16.
    pub contention_seconds: u64,
    /// How long an object stays contended after it last was, in seconds; 10 to 60.
    pub contention_hold_seconds: u64,
    /// A holder that neither gives back a lock nor works under it for this long after its callback is evicted.
    pub callback_timeout: Duration,
    /// True if single ranges are granted larger than asked for.
    pub grow: bool,
    /// True if grown locks end where a waiting request begins. Without this, writers of interleaved records take turns.
    pub leave_room: bool,
    /// True if a new lock of a client waits for its older ones as for those of others, as in Lustre.
    pub own_locks_conflict: bool,
    /// Locks that all clients together should hold at most; the lock volume that they are told follows from it. At
    /// twice as many no extent or inode lock is granted to a client.
    pub lock_limit: u64,
}

/// Memory of a server that does not say how much it has, in bytes.
const MEMORY_DEFAULT: u64 = 8 << 30;

impl Settings {
    fn rules(&self) -> extents::Rules {
        extents::Rules { grow: self.grow, leave_room: self.leave_room }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            contended_locks: 16,
            contention_seconds: 4,
            contention_hold_seconds: 30,
            callback_timeout: Duration::from_secs(100),
            grow: true,
            leave_room: true,
            own_locks_conflict: false,
            lock_limit: limit_for_memory(MEMORY_DEFAULT),
        }
    }
}

/// State of the lock pool: the number of locks, and what clients are told about it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolState {
    /// [`Settings::lock_limit`].
    pub limit: u64,
    /// The server lock volume: a client gives back unused locks whose age in seconds times the number of its unused locks
    /// is larger.
    pub volume: u64,
    /// Number of locks that the server aims at.
    pub plan: u64,
    /// Locks gained in the last second; lost if negative.
    pub speed: i64,
}

/// Totals since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Locks granted to clients.
    pub grants: u64,
    /// Locks given back by clients, or gone with them.
    pub cancels: u64,
    /// Callbacks, including those that went with the grant.
    pub callbacks: u64,
    /// Locks that were not given back in time.
    pub timeouts: u64,
}
