//! A request at the server, from its arrival to its reply: the handler's view of it, its place in its lane, and the
//! state of its data transfer. The transfer itself is in `transfer`.

use crate::accounting::Waits;
use crate::call::{BULK_MAX, INLINE_MAX};
use crate::congestion::{Answered, ComeAgain, Control};
use crate::eager::EagerInUse;
use crate::export::Export;
use crate::identity::Identity;
use crate::lane::{LaneSlot, LaneState, SlowTransfer};
use crate::message::{REPLY_PORTAL, encode, millis};
use crate::node_core::NodeCore;
use crate::nrs::{Classified, Place, Ticket};
use crate::request_buffers::BufferInUse;
use crate::request_history::Noted;
use crate::window::Credits;
use bytes::Bytes;
use nacre_base::{Errno, Nid, Part, Payload, Tag, Time, Xid};
use nacre_wire::header::{Versions, flags};
use nacre_wire::{Field, Opcode, RpcHeader, RpcKind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A request as its handler sees it.
pub struct ServerRequest {
    /// Header of the request.
    pub header: RpcHeader,
    /// Opcode of the request.
    pub opcode: Opcode,
    /// Sender of the request: the NID that the export connected from.
    pub identity: Identity,
    /// Encoded body.
    pub body: Bytes,
    /// Export of the client that sent the request.
    pub export: Arc<Export>,
    /// Body of the first reply, if the request is a replay.
    pub replayed: Option<Bytes>,
    pub(crate) arrival: Arc<Arrival>,
}

impl ServerRequest {
    /// Decodes the body as the opcode's message; EPROTO if it is malformed.
    pub fn decode<M: Field>(&self) -> Result<M, Errno> {
        nacre_wire::decode(&self.body).map_err(Errno::from)
    }

    /// Returns whether `len` bytes can travel in [`crate::Response::data`].
    pub fn fits_inline(&self, len: usize) -> bool {
        len <= INLINE_MAX
    }

    /// Bytes that the client has room for; for a write, the bytes that it will send.
    pub fn bulk_len(&self) -> usize {
        self.header.bulk_bytes as usize
    }

    /// Returns whether the client sent the request before. The target may have executed it before its restart.
    pub fn is_resent(&self) -> bool {
        self.header.has(flags::RESENT)
    }

    /// Returns whether the target executed and answered the request before its restart, and must now execute it again
    /// with the same transno and the same outcome.
    pub fn is_replay(&self) -> bool {
        self.replayed.is_some()
    }

    /// First reply to the request, if it is a replay.
    pub fn first_answer<M: Field>(&self) -> Result<Option<M>, Errno> {
        self.replayed.as_ref().map(nacre_wire::decode).transpose().map_err(Errno::from)
    }

    /// For a replay, checks that the versions that the change was based on are those `found` now. If not, an earlier
    /// change is missing and this one must not be made: the error is EOVERFLOW, as in Lustre.
    pub fn check_pre_versions(&self, found: &Versions) -> Result<(), Errno> {
        let agree = !self.is_replay() || self.header.pre_versions.agree_with(found);
        if agree { Ok(()) } else { Err(Errno::EOVERFLOW) }
    }

    /// Returns whether the request is part of a recovery: a replay, or a request that restores open files or locks.
    pub fn is_recovery(&self) -> bool {
        self.header.has(flags::REPLAY)
    }

    /// Returns a handle that tells, even after the request is gone, whether the request stays unanswered because its
    /// data did not get through.
    pub fn delivery(&self) -> Delivery {
        Delivery(self.arrival.clone())
    }

    /// Xid of the request.
    pub fn xid(&self) -> Xid {
        Xid(self.header.xid)
    }

    /// Modify slot of the request; 0 if it has none.
    pub fn tag(&self) -> Tag {
        Tag(self.header.tag)
    }

    /// The reply may take so long from now. The client is told once, in place of an early reply every half minute.
    pub fn will_take(&self, wait: Duration) {
        let node = &self.arrival.node;
        let Some(to) = self.export.extend(self.header.xid, node.rt.now() + wait) else { return };
        let (xid, export, timeout_ms) = (self.header.xid, self.export.cookie, millis(wait));
        let header = RpcHeader { xid, export, timeout_ms, ..RpcHeader::default() };
        let early = encode(RpcKind::EarlyReply, &header, &[], Payload::new());
        if let Err(e) = node.lnet.answer(to.nid, REPLY_PORTAL, to.purpose, to.match_bits, early) {
            tracing::debug!("early reply to {} not sent: {e}", to.nid);
        }
    }

    /// Awaits something on behalf of the request, and accounts for the time. Waits that are accounted for must not contain each
    /// other.
    pub async fn spend<T>(&self, part: Part, wait: impl Future<Output = T>) -> T {
        let rt = &self.arrival.node.rt;
        let begun = rt.now();
        let at_device = if part == Part::Device { self.arrival.slot.at_device() } else { None };
        let output = wait.await;
        drop(at_device);
        self.arrival.waits.add(part, rt.now().since(begun));
        output
    }

    /// Resolves when the export is closed, so that nobody waits for the reply. A handler that waits for other clients
    /// (for a lock, for news) must wait for this too. The call also gives the request's slot in the lane to others, so
    /// that requests of those clients can be served, and keeps the waiting time out of the estimates.
    pub fn abandoned(&self) -> impl Future<Output = ()> + '_ {
        abandoned(&self.arrival, &self.export)
    }

    /// Gives up the request's contents, which its handler has decoded, because it is going to wait for long. A server has many
    /// requests that wait for news.
    pub fn into_waiting(self: Box<Self>) -> Waiting {
        Waiting { export: self.export, arrival: self.arrival }
    }
}

/// A request whose handler waits, and no longer needs its contents.
pub struct Waiting {
    export: Arc<Export>,
    arrival: Arc<Arrival>,
}

impl Waiting {
    /// As [`ServerRequest::abandoned`].
    pub fn abandoned(&self) -> impl Future<Output = ()> + '_ {
        abandoned(&self.arrival, &self.export)
    }
}

#[expect(
    clippy::manual_async_fn,
    reason = "its future would contain the arguments twice, and a server has many that wait"
)]
fn abandoned<'a>(arrival: &'a Arrival, export: &'a Export) -> impl Future<Output = ()> + use<'a> {
    async move {
        arrival.handle_long_wait();
        export.closed().await;
    }
}

/// Tells whether a request's data got through.
pub struct Delivery(Arc<Arrival>);

impl Delivery {
    /// Returns whether the data did not get through: the client will send the request again.
    pub fn is_broken(&self) -> bool {
        self.0.transfer.is_broken()
    }
}

/// The part of a request that outlives its handler.
pub(crate) struct Arrival {
    pub(crate) node: Arc<NodeCore>,
    pub(crate) slot: LaneSlot<Work>,
    pub(crate) buffer: BufferInUse,
    /// When the request had a buffer.
    pub(crate) at: Time,
    /// When it came from the network.
    pub(crate) arrived: Time,
    /// Counts the request in its target's congestion control, if it was sent within its client's window. Boxed, because those that wait for
    /// long are others.
    pub(crate) counted: Option<Box<Counted>>,
    /// Place in the history of the target's service.
    pub(crate) noted: Option<Noted>,
    pub(crate) waits: Waits,
    pub(crate) transfer: Transfer,
}

impl Arrival {
    /// The request no longer counts in its lane, and its buffer is free. Returns the request that may run in its place.
    pub(crate) fn leave(&self, book: impl FnOnce(&mut LaneState<Work>)) -> Option<Work> {
        self.buffer.give_back();
        self.slot.leave(book)
    }

    /// The request is answered, or will not be. Its handler's parts may be kept for longer.
    pub(crate) fn end(&self) {
        self.counted.iter().for_each(|counted| counted.given_up());
        self.noted.iter().for_each(|noted| noted.end(|| self.node.rt.now()));
    }

    /// The handler is about to wait for other clients: see [`LaneSlot::handle_long_wait`]. Nor does the request keep its
    /// buffer, because those clients may have to send requests first.
    fn handle_long_wait(&self) {
        self.buffer.give_back();
        self.slot.handle_long_wait();
    }

    /// The client is slow to send or take the data: see [`LaneSlot::handle_slow_transfer`].
    pub(crate) fn handle_slow_transfer(&self) -> SlowTransfer<'_, Work> {
        self.buffer.give_back();
        self.slot.handle_slow_transfer()
    }
}

impl Drop for Arrival {
    /// A request that was dropped before its turn has not ended.
    fn drop(&mut self) {
        self.end();
    }
}

/// A request that counts at its target until it is answered or given up.
pub(crate) struct Counted {
    export: Arc<Export>,
    node: Arc<NodeCore>,
    at: Time,
    bytes: u64,
    has_ended: AtomicBool,
}

impl Counted {
    /// Counts a request that its client has sent within its window, and gives up after `client_waits`. Fails if the client is to send the request
    /// again later.
    pub(crate) fn new(
        export: Arc<Export>,
        node: Arc<NodeCore>,
        header: &RpcHeader,
        at: Time,
        client_waits: Duration,
    ) -> Result<Counted, ComeAgain> {
        let wanted = Credits { rpcs: header.credits_wanted, bytes: header.bytes_wanted };
        let mut congestion = export.entry.congestion();
        if let Some(again) = congestion.come_again(export.cookie, client_waits, header.has(flags::RESENT)) {
            return Err(again);
        }
        congestion.handle_arrival(export.cookie, wanted, at);
        drop(congestion);
        // A client that says more than one request may move makes the target look no faster.
        let bytes = u64::from(header.bulk_bytes).min(BULK_MAX as u64);
        Ok(Counted { export, node, at, bytes, has_ended: AtomicBool::new(false) })
    }

    /// The target answers the request, which ran for `ran`, and for `at_device` of that at the device.
    pub(crate) fn answered(&self, wanted: Credits, at_device: Duration, ran: Duration, now: Time) -> Control {
        assert!(
            !self.has_ended.swap(true, Ordering::Relaxed),
            "a request of {} is answered once",
            self.export.client_name()
        );
        let (export, took) = (self.export.cookie, now.since(self.at));
        let mut congestion = self.export.entry.congestion();
        let answered = Answered { export, wanted, bytes: self.bytes, took, at_device, ran };
        let window = congestion.handle_answer(answered, now);
        Control { window, expected: congestion.expected(), at_once: congestion.at_once() }
    }

    /// It ends without an answer, unless it was answered.
    pub(crate) fn given_up(&self) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            let mut congestion = self.export.entry.congestion();
            congestion.handle_given_up(self.export.cookie, self.node.rt.now());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.given_up();
    }
}

/// State of a request's data transfer.
pub(crate) struct Transfer {
    pub(crate) inline: Payload,
    /// Memory that the inline data has, if that is more than every request may bring.
    _eager: Option<EagerInUse>,
    /// The reason why a transfer failed: the request then has no reply of its handler.
    pub(crate) broken: OnceLock<Errno>,
    /// Bytes pushed to the client.
    pub(crate) pushed: AtomicU32,
    /// Bytes fetched from the client, those that came inline among them.
    pub(crate) pulled: AtomicU32,
}

/// A request on its way to the handler.
pub(crate) struct Work {
    /// Boxed, because it passes through the queue and several futures.
    pub(crate) request: Box<ServerRequest>,
    /// The node that sent it.
    pub(crate) client: Nid,
    /// True if the request was sent before and its modify slot may have a reply on disk.
    pub(crate) ask_target: bool,
}

impl Classified for Work {
    fn header(&self) -> &RpcHeader {
        &self.request.header
    }

    fn client(&self) -> Nid {
        self.client
    }

    fn place(&self) -> Option<Place> {
        self.request.export.entry.handler.place(&self.request)
    }

    fn note(&self, ticket: Ticket) {
        self.request.arrival.slot.note(ticket);
    }

    fn noted(&self) -> Ticket {
        self.request.arrival.slot.noted()
    }
}

impl Transfer {
    pub(crate) fn new(inline: Payload, eager: Option<EagerInUse>) -> Transfer {
        Transfer {
            inline,
            _eager: eager,
            broken: OnceLock::new(),
            pushed: AtomicU32::new(0),
            pulled: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    pub(crate) fn pushed(&self) -> u32 {
        self.pushed.load(Ordering::Relaxed)
    }

    /// Bytes that were moved in either direction.
    pub(crate) fn moved(&self) -> u64 {
        u64::from(self.pushed()) + u64::from(self.pulled.load(Ordering::Relaxed))
    }
}
