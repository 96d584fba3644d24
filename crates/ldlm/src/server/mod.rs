//! The server's side of the lock manager: what clients hold at one target, what waits for it, and whom to call back.
//! A plain state machine: requests and the time go in, an [`Outcome`] and [`Effects`] come out, and the caller sends
//! them. [`Namespace`] is the whole; under it, one file per kind of lock.
//!
//! Extent locks of one client never conflict with each other. A client has one cache, all its locks vouch for the same
//! bytes in it, so no two of them can contradict each other; it orders its own threads itself, since they share its
//! locks. So a client that reads and then writes keeps its read lock and its pages, one whose threads ask for several
//! ranges at once is not sent callbacks about itself, and when another client wants to read, only the write lock goes:
//! the pages stay, under the read lock. (Lustre calls a client's own locks back.) A lock that the server takes on
//! behalf of a client is of the same holder, for the same reason; but two that the server takes exclude each other, for
//! they are two operations on the object itself.
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
mod stages;
#[cfg(test)]
mod tests;

pub use namespace::Namespace;
pub use pool::limit_for_memory;

use crate::{ClientId, LockId};
use nacre_base::Errno;
use nacre_wire::ldlm::{BlockingCallback, Enqueue, EnqueueReply};
use std::time::Duration;

/// An enqueue and who sent it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client.
    pub client: ClientId,
    /// The RPC's number: the same request again has the same one.
    pub xid: u64,
    /// Which lock of several that the RPC asks for; 0 if it asks for one.
    pub part: u32,
    /// What is asked for.
    pub enqueue: Enqueue,
}

/// What becomes of an enqueue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Answer at once: the lock is granted, or what was asked for is told. For extents the caller adds the attributes.
    Done(EnqueueReply),
    /// Answer when a [`Grant`] with this id comes.
    Waiting(LockId),
    /// Answer with an error: EAGAIN (would wait), EDEADLK, EINVAL, EOPNOTSUPP, EINPROGRESS (too many locks: ask again).
    Refused(Errno),
    /// A glimpse that found others in its way: ask them, then answer with attributes, handle 0 and mode NL.
    Glimpse(GlimpseWork),
}

/// Who may know more of an object's size than the server does.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GlimpseWork {
    /// One per client, the one whose lock ends last first; never the client that asks. Asked them in this order, until
    /// one tells a size above its `settles_above`: those behind it hold locks on lower bytes only. A holder that has
    /// written nothing yet under its lock settles nothing.
    pub holders: Vec<GlimpseHolder>,
    /// Bits of [`nacre_wire::ldlm::reply_flags`] for the reply.
    pub flags: u32,
}

/// A holder to be asked for the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlimpseHolder {
    /// The client.
    pub client: ClientId,
    /// Its lock that reaches furthest.
    pub lock: LockId,
    /// Where the last range of that lock begins; `u64::MAX` if others hold the same bytes (a group lock).
    pub settles_above: u64,
}

/// A waiting request is granted: send this reply. For a lock of the server's own the reply says nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Which request.
    pub id: LockId,
    /// Its reply.
    pub reply: EnqueueReply,
}

/// A lock that is in somebody's way: send this to its holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Callback {
    /// The holder.
    pub client: ClientId,
    /// What it is told.
    pub message: BlockingCallback,
}

/// What an input sets off besides its own outcome.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Effects {
    /// Requests that waited and are granted now, in order.
    pub grants: Vec<Grant>,
    /// Locks that are called back now: once each (an inode lock again when it was converted and is still in the way).
    pub callbacks: Vec<Callback>,
}

/// What becomes of a lock that the server takes for itself.
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

/// What an administrator may tune.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// An object is contended when this many requests met another client's lock within `contention_seconds`.
    pub contended_locks: usize,
    /// See `contended_locks`; 1 to 16.
    pub contention_seconds: u64,
    /// How long an object stays contended after it last was; 10 to 60.
    pub contention_hold_seconds: u64,
    /// A holder that neither gives back a lock nor works under it for this long after its callback is evicted.
    pub callback_timeout: Duration,
    /// Whether single ranges are granted larger than asked for.
    pub grow: bool,
    /// Whether they end where a waiting request begins. Without, writers of interleaved records take turns.
    pub leave_room: bool,
    /// Whether a new lock of a client waits for its older ones as for those of others, as in Lustre.
    pub own_locks_conflict: bool,
    /// Locks that all clients together should hold at most: what they are told to keep is made to fit. At twice as many
    /// no extent or inode lock is granted to a client.
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

/// What is known of the number of locks, and what clients are told of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolState {
    /// [`Settings::lock_limit`].
    pub limit: u64,
    /// The server lock volume: a client gives back unused locks whose age in seconds times the number of its unused locks
    /// is larger.
    pub volume: u64,
    /// The number that is aimed at.
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
    /// Callbacks, with those that went with the grant.
    pub callbacks: u64,
    /// Holders that did not give a lock back in time.
    pub timeouts: u64,
}
