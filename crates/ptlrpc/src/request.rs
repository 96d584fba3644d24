//! A request at the server, from its arrival to its reply: what its handler sees of it, its place in its lane, and what became
//! of its data. How data is moved is in `transfer`.

use crate::call::INLINE_MAX;
use crate::export::Export;
use crate::identity::Identity;
use crate::lane::LaneSlot;
use crate::node_core::NodeCore;
use crate::nrs::Classified;
use bytes::Bytes;
use nacre_base::{Errno, Nid, Payload, Tag, Time, Xid};
use nacre_wire::header::{Versions, flags};
use nacre_wire::{Field, Lane, Opcode, RpcHeader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A request as its handler sees it.
pub struct ServerRequest {
    /// Its header.
    pub header: RpcHeader,
    /// What it asks for.
    pub opcode: Opcode,
    /// Who asks: the NID that the export connected from.
    pub identity: Identity,
    /// Its encoded body.
    pub body: Bytes,
    /// Who asks.
    pub export: Arc<Export>,
    /// For a request that is replayed: the body of its first answer.
    pub replayed: Option<Bytes>,
    pub(crate) arrival: Arc<Arrival>,
}

impl ServerRequest {
    /// The body as the message that the opcode says; EPROTO if it is not.
    pub fn decode<M: Field>(&self) -> Result<M, Errno> {
        nacre_wire::decode(&self.body).map_err(Errno::from)
    }

    /// Whether `len` bytes can travel in [`crate::Response::data`].
    pub fn fits_inline(&self, len: usize) -> bool {
        len <= INLINE_MAX
    }

    /// Room that the client made for data, in bytes; for a write, the bytes it will send.
    pub fn bulk_len(&self) -> usize {
        self.header.bulk_bytes as usize
    }

    /// Whether the client sent it before: it may have been executed by an earlier life of this target.
    pub fn is_resent(&self) -> bool {
        self.header.has(flags::RESENT)
    }

    /// Whether it was executed and answered by an earlier life of this target, and is to be executed again with the
    /// same number and the same outcome.
    pub fn is_replay(&self) -> bool {
        self.replayed.is_some()
    }

    /// What was answered the first time, if it is replayed.
    pub fn first_answer<M: Field>(&self) -> Result<Option<M>, Errno> {
        self.replayed.as_ref().map(nacre_wire::decode).transpose().map_err(Errno::from)
    }

    /// If it is replayed: whether what it was based on is what is `found` now. EOVERFLOW, Lustre's word for it, if
    /// not: somebody's change before it is missing, and it must not be made.
    pub fn check_pre_versions(&self, found: &Versions) -> Result<(), Errno> {
        let agree = !self.is_replay() || self.header.pre_versions.agree_with(found);
        if agree { Ok(()) } else { Err(Errno::EOVERFLOW) }
    }

    /// Whether it is part of a recovery: a replay, or what brings back open files and locks.
    pub fn is_recovery(&self) -> bool {
        self.header.has(flags::REPLAY)
    }

    /// Tells, also when the request is gone, whether it stays unanswered because its data did not get through.
    pub fn delivery(&self) -> Delivery {
        Delivery(self.arrival.clone())
    }

    /// The request's number.
    pub fn xid(&self) -> Xid {
        Xid(self.header.xid)
    }

    /// Its modify slot; 0 if it has none.
    pub fn tag(&self) -> Tag {
        Tag(self.header.tag)
    }

    /// Ready when nobody waits for the answer any more, because the export is gone. Handlers that wait for other clients
    /// (a lock, news) must wait for this too: it also gives their place in the lane to others, so that those they wait
    /// for can be served, and keeps their time out of the estimates.
    pub async fn abandoned(&self) {
        self.arrival.slot.handle_long_wait();
        self.export.closed().await;
    }
}

/// What becomes of a request's data.
pub struct Delivery(Arc<Arrival>);

impl Delivery {
    /// Whether it did not get through: the client will send the request again.
    pub fn is_broken(&self) -> bool {
        self.0.transfer.is_broken()
    }
}

/// What outlives the handler's hold on a request.
pub(crate) struct Arrival {
    pub(crate) node: Arc<NodeCore>,
    pub(crate) lane: Lane,
    pub(crate) slot: LaneSlot<Work>,
    pub(crate) at: Time,
    pub(crate) transfer: Transfer,
}

/// What became of a request's data.
pub(crate) struct Transfer {
    pub(crate) inline: Payload,
    /// A transfer failed: the request stays unanswered.
    pub(crate) broken: AtomicBool,
    /// Bytes pushed.
    pub(crate) pushed: AtomicU32,
}

/// A request on its way to the handler.
pub(crate) struct Work {
    pub(crate) request: ServerRequest,
    /// The node that sent it.
    pub(crate) client: Nid,
    /// It was sent before, and its tag may have a reply on disk.
    pub(crate) ask_target: bool,
}

impl Classified for Work {
    fn header(&self) -> &RpcHeader {
        &self.request.header
    }

    fn client(&self) -> Nid {
        self.client
    }
}

impl Transfer {
    pub(crate) fn new(inline: Payload) -> Transfer {
        Transfer { inline, broken: AtomicBool::new(false), pushed: AtomicU32::new(0) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn pushed(&self) -> u32 {
        self.pushed.load(Ordering::Relaxed)
    }
}
