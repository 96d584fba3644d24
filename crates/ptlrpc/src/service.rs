//! The server: takes requests from the network's reader to their handler, and replies back.
//!
//! A request is decoded and its handler first polled in the reader of its connection; only a handler that has to wait
//! gets a task. Each lane runs a limited number of requests and queues the rest (`nrs`). The export's log
//! (`request_log`) knows which requests run or were executed before. Connects are in `connections`.

use crate::accounting::{Asked, Waits};
use crate::call::INLINE_MAX;
use crate::congestion::ComeAgain;
use crate::eager::{EAGER_MAX, EagerInUse};
use crate::export::{Entry, Export};
use crate::identity::Identity;
use crate::lane::LaneSlot;
use crate::message::{GOODBYE_XID, Incoming, REPLY_PORTAL, decode, encode, micros, millis, opcode};
use crate::node::NodeShared;
use crate::nrs::{Admission, is_high_priority, may_have_high_priority};
use crate::ping::Told;
use crate::request::{Arrival, Counted, ServerRequest, Transfer, Work};
use crate::request_buffers::{Arrived, Buffer, BufferInUse, BufferOwner};
use crate::request_history::{Noted, PastRequest, RequestPhase};
use crate::request_log::{Received, ReplyTo, Verdict, early_at};
use crate::target::{Accounted, Response};
use crate::window::Credits;
use bytes::Bytes;
use futures_util::FutureExt;
use nacre_base::fault::FaultAction;
use nacre_base::{Errno, Nid, Part, Parts, Payload, Tag, Time, Transno, Uuid};
use nacre_lnet::{IncomingPut, MAX_PAYLOAD, Purpose, Receipt};
use nacre_wire::header::{HEADER_BYTES, Replayed, flags};
use nacre_wire::{Lane, Opcode, RpcHeader, RpcKind};
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

/// A request's fields that the reply repeats.
struct Question {
    export: Arc<Export>,
    opcode: Opcode,
    xid: u64,
    tag: Tag,
    lane: u8,
    connection: u32,
    trace_id: u64,
    wanted: Credits,
    router_time_us: u32,
    /// None if the target does not account for its requests.
    asked: Option<Box<Asked>>,
}

/// Whether a request has brought more data than every request may in the way that it may: all of it, which its client has exposed as well.
fn has_eager_data(m: &Incoming) -> bool {
    let is_exposed = m.header.match_bits != 0 && m.header.has(flags::INLINE);
    is_exposed && m.data.len() <= EAGER_MAX && m.data.len() == m.header.bulk_bytes as usize
}

/// Shortest time between two searches for due early replies.
const EARLY_REPLY_INTERVAL: Duration = Duration::from_millis(500);

impl NodeShared {
    /// A message arrived at a lane's portal.
    pub(crate) fn handle_put(self: &Arc<Self>, lane: Lane, put: IncomingPut) {
        if self.core.rt.is_dead() {
            return;
        }
        // Data may have come with the request, as bulk does. The reply has none of it, and need not wait as bulk does.
        let purpose = if put.purpose == Purpose::Bulk { Purpose::Requests } else { put.purpose };
        let reply_to = ReplyTo { nid: put.from, match_bits: put.match_bits, purpose };
        let at = self.core.rt.now();
        let message = match decode(&put.payload) {
            Ok(mut m) if m.kind == RpcKind::Request => {
                m.header.router_time_us = micros(put.in_routers);
                m
            }
            Ok(_) => return,
            Err(e) => {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!("malformed request from {}: {e}", put.from);
                return;
            }
        };
        let Some(opcode) = opcode(message.header.opcode) else {
            return self.refuse(&message.header, reply_to, Errno::EOPNOTSUPP);
        };
        match self.core.faults.any_armed().then(|| self.request_fault(opcode)).flatten() {
            None | Some(FaultAction::Corrupt) => {
                let arrived = Arrived { opcode, message, reply_to, eager: None, receipt: put.receipt, at };
                self.handle_request(lane, arrived);
            }
            Some(FaultAction::Drop) => tracing::debug!("fault: dropped {opcode} xid {}", message.header.xid),
            Some(FaultAction::Fail(e)) => self.refuse(&message.header, reply_to, e),
            Some(FaultAction::Crash) => self.core.rt.crash(),
            Some(FaultAction::Delay(d)) => {
                let node = self.clone();
                drop(self.core.rt.spawn(async move {
                    node.core.rt.sleep(d).await;
                    let receipt = Receipt::default();
                    node.handle_request(lane, Arrived { opcode, message, reply_to, eager: None, receipt, at });
                }));
            }
        }
    }

    fn request_fault(&self, opcode: Opcode) -> Option<FaultAction> {
        let check = |name: &str| self.core.faults.check(name);
        check("rpc.request.drop")
            .or_else(|| check("rpc.request.delay"))
            .or_else(|| check(&format!("rpc.{opcode}.drop_request")))
            .or_else(|| check(&format!("rpc.{opcode}.delay")))
            .or_else(|| check(&format!("rpc.{opcode}.fail")))
    }

    fn handle_request(self: &Arc<Self>, lane: Lane, mut arrived: Arrived) {
        let Arrived { opcode, message: ref m, reply_to, .. } = arrived;
        let control = Control::of(opcode);
        if control.is_some() != (lane == Lane::Control) {
            return self.refuse(&m.header, reply_to, Errno::EPROTO);
        }
        // A request may wait in a queue for long, so its inline data must not take more memory than one may have.
        let is_eager = m.data.len() > INLINE_MAX;
        if is_eager && !has_eager_data(m) {
            return self.refuse(&m.header, reply_to, Errno::EPROTO);
        }
        if control == Some(Control::Connect) {
            let node = self.clone();
            let Incoming { header, body, .. } = arrived.message;
            return self.poll_or_spawn(async move { node.handle_connect(header, body, reply_to).await });
        }
        if control == Some(Control::Ping) && m.header.export == 0 {
            return self.answer_probe(&m.header, &m.body, reply_to);
        }
        let now = self.core.rt.now();
        let Some(export) = self.export_of(&m.header, reply_to, now) else {
            return self.refuse_unconnected(&m.header, reply_to);
        };
        if control == Some(Control::Ping) {
            return match export.handle_ping(m.header.connection_count, now) {
                Entry::Stale => {}
                Entry::Closed => self.refuse_unconnected(&m.header, reply_to),
                Entry::Logged(_) => {
                    let others = self.answer_others(&m.body, reply_to.nid, now);
                    self.answer_ping(&export, &m.header, &others, reply_to);
                }
            };
        }
        if lane == Lane::Control {
            return self.take(lane, arrived, export, None);
        }
        let is_high = is_high_priority(&m.header) && may_have_high_priority(opcode);
        if is_eager {
            self.keep_data(&mut arrived);
        }
        let buffered = self.buffers(lane).lock().handle_arrival(reply_to.nid, is_high, arrived, now);
        if let Some((arrived, buffer)) = buffered {
            self.take(lane, arrived, export, Some(buffer));
        }
    }

    /// Takes memory for data that has come with its request. Without memory the server throws the data away, and pulls it when the
    /// request's turn has come.
    fn keep_data(&self, arrived: &mut Arrived) {
        let m = &mut arrived.message;
        arrived.eager = EagerInUse::take(self.eager(), arrived.reply_to.nid, m.data.len());
        if arrived.eager.is_none() {
            m.data = Payload::new();
            m.header.flags &= !flags::INLINE;
        }
    }

    /// A request that waited for a buffer has one now.
    pub(crate) fn handle_buffered(self: &Arc<Self>, lane: Lane, arrived: Arrived, buffer: Buffer) {
        let (header, reply_to) = (&arrived.message.header, arrived.reply_to);
        match self.export_of(header, reply_to, self.core.rt.now()) {
            Some(export) => self.take(lane, arrived, export, Some(buffer)),
            None => {
                self.clone().take_back(lane, buffer);
                self.refuse_unconnected(header, reply_to);
            }
        }
    }

    /// The export that a request names; none if there is none, or not for its sender.
    fn export_of(&self, header: &RpcHeader, reply_to: ReplyTo, now: Time) -> Option<Arc<Export>> {
        let export = self.export(header.export)?;
        if export.nid() != reply_to.nid {
            self.log_stranger(&export, reply_to.nid, now);
            return None;
        }
        (!self.leave_if_taken(&export.entry)).then_some(export)
    }

    /// Takes a request from the network: from here on its sender can send another.
    fn take(self: &Arc<Self>, lane: Lane, arrived: Arrived, export: Arc<Export>, buffer: Option<Buffer>) {
        let Arrived { opcode, message: m, reply_to, eager, receipt, at: arrived_at } = arrived;
        drop(receipt);
        let (control, now) = (Control::of(opcode), self.core.rt.now());
        let owner: Weak<NodeShared> = Arc::downgrade(self);
        let buffer = BufferInUse::new(owner, lane, buffer);
        let deadline = now + Duration::from_millis(m.header.timeout_ms.into());
        let received = Received {
            xid: m.header.xid,
            lane,
            last_xid: m.header.last_xid,
            tag: Tag(m.header.tag),
            bytes: HEADER_BYTES + m.body.len() + m.data.len(),
            resent: m.header.has(flags::RESENT),
            replay: m.header.has(flags::REPLAY),
            reply_to,
            at: now,
            deadline,
        };
        let verdict = match export.handle_request(m.header.connection_count, received) {
            Entry::Stale => return,
            Entry::Closed => return self.refuse_unconnected(&m.header, reply_to),
            Entry::Logged(verdict) => verdict,
        };
        let ask_target = match verdict {
            Verdict::Execute => false,
            Verdict::AskTarget => true,
            Verdict::Running | Verdict::Seen => return,
            Verdict::TooMany => return export.entry.lane(lane).handle_overflow(),
            Verdict::Answered(_) if self.reply_fault(opcode) => return,
            Verdict::Answered(reply) => return self.post(reply_to, reply),
        };
        self.watch(&export, deadline);
        let Incoming { mut header, mut body, data, .. } = m;
        if !may_have_high_priority(opcode) {
            header.flags &= !flags::HIGH_PRIORITY;
        }
        let mut replayed = None;
        if header.has(flags::REPLAY) && header.transno != 0 {
            let Ok(inner) = nacre_wire::decode::<Replayed>(&body) else {
                export.handle_executed(header.xid, None);
                return self.refuse(&header, reply_to, Errno::EPROTO);
            };
            (body, replayed) = (inner.request, Some(inner.reply));
        }
        if control == Some(Control::Disconnect) {
            let node = self.clone();
            return self.poll_or_spawn(async move { node.handle_disconnect(export, header).await });
        }
        let lane_service = export.entry.lane(lane).clone();
        // Requests that others wait for, and replays, never wait for a window. Of reads and writes a client cannot say that they had none.
        let has_window = lane == Lane::Io || header.credits_wanted > 0;
        let in_window = has_window && !is_high_priority(&header) && !header.has(flags::REPLAY);
        let count = || Counted::new(export.clone(), self.core.clone(), &header, arrived_at, deadline.since(now));
        let counted = match in_window.then(count).transpose() {
            Ok(counted) => counted.map(Box::new),
            Err(again) => {
                export.handle_executed(header.xid, None);
                return self.hand_back(&header, reply_to, again);
            }
        };
        let noted = export.entry.histories.get().and_then(|histories| {
            let (target, client) = (export.entry.name.clone(), reply_to.nid);
            let length = received.bytes as u32;
            let (xid, phase, arrived, took) = (header.xid, RequestPhase::New, arrived_at, None);
            Noted::new(histories, PastRequest { target, client, xid, length, opcode, phase, arrived, deadline, took })
        });
        let arrival = Arrival {
            node: self.core.clone(),
            slot: LaneSlot::new(lane_service, reply_to.nid, is_high_priority(&header)),
            buffer,
            at: now,
            arrived: arrived_at,
            counted,
            noted,
            waits: Waits::default(),
            transfer: Transfer::new(data, eager),
        };
        let identity = Identity { nid: reply_to.nid };
        let request = ServerRequest { header, opcode, identity, body, export, replayed, arrival: Arc::new(arrival) };
        self.admit(Work { request: Box::new(request), client: reply_to.nid, ask_target });
    }

    /// Logs a request over the export of a client that connected from another NID. A client that really has moved
    /// connects again.
    fn log_stranger(&self, export: &Export, from: Nid, now: Time) {
        let (target, client, nid) = (export.target(), export.client_name(), export.nid());
        if self.refusals.is_worth_a_line(now) {
            tracing::warn!("{target}: refused a request from {from} over the export of {client}, which is at {nid}");
        } else {
            tracing::debug!("{target}: refused a request from {from} over the export of {client}, which is at {nid}");
        }
    }

    fn admit(self: &Arc<Self>, work: Work) {
        let (export, xid) = (work.request.export.clone(), work.request.header.xid);
        let arrival = work.request.arrival.clone();
        match arrival.slot.lane().handle_arrival(work, self.core.rt.now()) {
            Admission::Run(work) => {
                let node = self.clone();
                self.poll_or_spawn(async move { node.serve(work).await });
            }
            Admission::Queued => {}
            Admission::Full => {
                arrival.slot.lane().handle_overflow();
                export.handle_executed(xid, None);
            }
        }
    }

    /// Polls a future once in the calling thread; gives it a task only if it has to wait.
    fn poll_or_spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        // The task polls the future again at once, with a real waker.
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.core.rt.spawn(future));
        }
    }

    /// Serves a request, and then the waiting requests of its lane, in a task of its own.
    pub(crate) fn spawn_worker(self: &Arc<Self>, work: Work) {
        let node = self.clone();
        drop(self.core.rt.spawn(async move { node.serve(work).await }));
    }

    /// Serves a request, and then the waiting requests of its lane.
    async fn serve(self: Arc<Self>, work: Work) {
        let mut next = Some(work);
        while let Some(work) = next {
            next = self.serve_one(work).await;
            if next.is_some() {
                self.core.rt.yield_now().await;
            }
        }
    }

    async fn serve_one(self: &Arc<Self>, work: Work) -> Option<Work> {
        let Work { request, ask_target, .. } = work;
        let arrival = request.arrival.clone();
        let question = Question::of(&request);
        let started = self.core.rt.now();
        let (export, xid) = (&question.export, question.xid);
        // The deadline is looked up, because early replies and resends extend it.
        let late = started > arrival.at && export.deadline(xid).is_some_and(|d| d <= started);
        if late || export.is_closed() {
            let next = arrival.leave(|lane| {
                if late {
                    lane.handle_late();
                }
            });
            let reply_to = export.handle_executed(xid, None);
            if !late {
                self.refuse_unconnected(&question.header(), reply_to);
            }
            arrival.end();
            return next;
        }
        arrival.noted.iter().for_each(Noted::start);
        let handled = AssertUnwindSafe(handle(request, ask_target)).catch_unwind().await;
        let result = handled.unwrap_or_else(|panic| self.handle_panic(&question, panic));
        let now = self.core.rt.now();
        let (took, opcode) = (now.since(started), question.opcode);
        let mut estimate = None;
        let next = arrival.leave(|lane| estimate = Some(lane.handle_served(now, arrival.at)));
        // A request that gave its slot back earlier no longer counts in its lane.
        if estimate.is_some() {
            arrival.slot.lane().count(opcode, took);
        }
        let estimate = estimate.unwrap_or_else(|| arrival.slot.lane().estimate(now));
        if let Some(error) = arrival.transfer.broken.get() {
            // No reply is kept, because the client must send the request again.
            tracing::debug!("{opcode} xid {xid}: the data did not get through: {error}");
            let reply_to = export.handle_executed(xid, None);
            // The client waits until the request's deadline, which over a slow way is far off, unless it is told. After other errors it
            // could not be told, or would cause the error again at once.
            if *error == Errno::ETIMEDOUT {
                let header = RpcHeader { flags: flags::SEND_AGAIN, export: export.cookie, ..question.header() };
                self.post(reply_to, encode(RpcKind::Reply, &header, &[], Payload::new()));
            }
        } else if self.leave_if_taken(&export.entry) || result.is_err() && export.is_closed() {
            // The request may have failed because the export was closed: the client must find out, and may repeat the
            // request elsewhere. Changes made on storage that now belongs to another node do not count.
            let reply_to = export.handle_executed(xid, None);
            self.refuse_unconnected(&question.header(), reply_to);
        } else {
            let queue = started.since(arrival.at);
            // The wait for a request buffer counts here, and not in what clients expect of the service.
            let parts = arrival.waits.parts(started.since(arrival.arrived), took);
            let at_device = parts.get(Part::Device);
            let control = arrival.counted.as_ref().map(|c| c.answered(question.wanted, at_device, took, now));
            control.into_iter().for_each(|control| arrival.slot.lane().set_at_once(control.at_once, now));
            let control = control.unwrap_or_default();
            self.account(&question, &result, &arrival, &parts, now);
            let times = Times { service: took, queue, estimate: estimate.max(control.expected), parts };
            self.respond(&question, result, &arrival, times, control.window);
        }
        arrival.end();
        next
    }

    /// Tells the target where the time of an answered request went.
    fn account(
        &self,
        question: &Question,
        result: &Result<Response, Errno>,
        arrival: &Arrival,
        parts: &Parts,
        now: Time,
    ) {
        let Some(asked) = &question.asked else { return };
        let (operation, sent) = result.as_ref().map_or(("", 0), |response| (response.counted, response.data.len()));
        let bytes = arrival.transfer.moved() + sent as u64;
        let (export, opcode, jobid) = (&*question.export, question.opcode, asked.jobid);
        let parts = asked.complete(*parts);
        export.entry.handler.account(&Accounted { export, opcode, operation, jobid, parts, bytes, now });
    }

    /// A handler panicked: its client gets EIO, and all other requests are served. Guards that the request held (in the
    /// running transaction, on a lock table) report the panic to the target when they are dropped.
    fn handle_panic(&self, q: &Question, panic: Box<dyn Any + Send>) -> Result<Response, Errno> {
        if self.core.rt.is_simulated() {
            // An assertion that fails must fail the simulation.
            std::panic::resume_unwind(panic);
        }
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        tracing::error!(
            target = %q.export.target(), client = %q.export.client_name(), xid = q.xid, tag = q.tag.0, trace_id = q.trace_id,
            "{}: the handler panicked, which is a bug; the request is answered with EIO: {said}", q.opcode
        );
        Err(Errno::EIO)
    }

    fn respond(
        &self,
        q: &Question,
        result: Result<Response, Errno>,
        arrival: &Arrival,
        times: Times,
        granted: Credits,
    ) {
        let (status, response) = match result {
            Ok(r) if HEADER_BYTES + r.body.len() + r.data.len() <= MAX_PAYLOAD => (0, r),
            Ok(r) => {
                tracing::error!("{}: reply of {} bytes", q.opcode, r.body.len() + r.data.len());
                (-Errno::E2BIG.0, Response { transno: r.transno, pre_versions: r.pre_versions, ..Response::default() })
            }
            Err(e) => (-e.0, Response::default()),
        };
        let pool = q.export.entry.handler.lock_pool();
        let header = RpcHeader {
            server_lock_volume: pool.volume,
            lock_limit: pool.limit,
            flags: if response.data.is_empty() { 0 } else { flags::INLINE },
            transno: response.transno.0,
            pre_versions: response.pre_versions,
            last_committed: q.export.entry.handler.last_committed(&q.export).0,
            export: q.export.cookie,
            connection_count: q.connection,
            status,
            timeout_ms: millis(times.estimate),
            service_time_us: micros(times.service),
            queue_time_us: micros(times.queue),
            lock_time_us: times.parts.micros(Part::Locks),
            transfer_time_us: times.parts.micros(Part::Transfer),
            device_time_us: times.parts.micros(Part::Device),
            commit_time_us: times.parts.micros(Part::Commit),
            router_time_us: q.router_time_us,
            credits_granted: granted.rpcs,
            bytes_granted: granted.bytes,
            eager_bytes: if q.lane == Lane::Io as u8 { self.eager_grant() } else { 0 },
            bulk_bytes: arrival.transfer.pushed(),
            ..q.header()
        };
        let reply = encode(RpcKind::Reply, &header, &response.body, response.data);
        // A request that made a change, or has a modify slot, must not be executed twice: its reply is kept until the
        // client has seen it.
        let save = q.tag != Tag(0) || response.transno != Transno(0);
        let reply_to = q.export.handle_executed(q.xid, save.then(|| reply.clone()));
        if !self.reply_fault(q.opcode) {
            self.post(reply_to, reply);
        }
    }

    /// Returns whether a fault point drops the reply.
    pub(crate) fn reply_fault(&self, opcode: Opcode) -> bool {
        self.core.faults.any_armed()
            && (self.core.faults.check("rpc.reply.drop").is_some()
                || self.core.faults.check(&format!("rpc.{opcode}.drop_reply")).is_some())
    }

    /// Answers a ping. A ping also reports the client's progress in a recovery, and its reply says whether the recovery
    /// goes on.
    fn answer_ping(&self, export: &Arc<Export>, request: &RpcHeader, others: &[Told], reply_to: ReplyTo) {
        let handler = &export.entry.handler;
        let told = request.flags & (flags::REQ_REPLAY_DONE | flags::LOCK_REPLAY_DONE);
        let recovering = handler.recovery(export, told);
        let pool = handler.lock_pool();
        let header = RpcHeader {
            flags: if recovering { flags::RECOVERING } else { 0 },
            server_lock_volume: pool.volume,
            lock_limit: pool.limit,
            lane: request.lane,
            opcode: request.opcode,
            xid: request.xid,
            export: export.cookie,
            last_committed: handler.last_committed(export).0,
            ..RpcHeader::default()
        };
        if !self.reply_fault(Opcode::ObdPing) {
            let body = if others.is_empty() { Bytes::new() } else { nacre_wire::encode(&others.to_vec()) };
            self.post(reply_to, encode(RpcKind::Reply, &header, &body, Payload::new()));
        }
    }

    /// Answers a server that asks whether its client is still alive: not just any process at this NID, but that very
    /// client.
    fn answer_probe(&self, request: &RpcHeader, body: &Bytes, reply_to: ReplyTo) {
        let lives = nacre_wire::decode::<Uuid>(body).is_ok_and(|client| self.has_client(client));
        let status = if lives { 0 } else { -Errno::ENODEV.0 };
        let header = RpcHeader { opcode: request.opcode, xid: request.xid, status, ..RpcHeader::default() };
        self.post(reply_to, encode(RpcKind::Reply, &header, &[], Payload::new()));
    }

    /// Answers with an error without asking the target.
    pub(crate) fn refuse(&self, request: &RpcHeader, reply_to: ReplyTo, e: Errno) {
        self.answer(request, request.export, reply_to, e);
    }

    /// Answers that the request cannot be served in time, and after how long it is to come again.
    fn hand_back(&self, request: &RpcHeader, reply_to: ReplyTo, again: ComeAgain) {
        let header = RpcHeader {
            status: -Errno::EAGAIN.0,
            flags: flags::COME_AGAIN,
            window_wait_us: micros(again.after),
            timeout_ms: millis(again.expected),
            credits_granted: again.window.rpcs,
            bytes_granted: again.window.bytes,
            ..header_of_answer(request, request.export)
        };
        self.post(reply_to, encode(RpcKind::Reply, &header, &[], Payload::new()));
    }

    /// Answers that the export is not known, so the client has to connect. The missing export distinguishes this from a
    /// target's own ENOTCONN.
    fn refuse_unconnected(&self, request: &RpcHeader, reply_to: ReplyTo) {
        self.answer(request, 0, reply_to, Errno::ENOTCONN);
    }

    fn answer(&self, request: &RpcHeader, export: u64, reply_to: ReplyTo, e: Errno) {
        let header = RpcHeader { status: -e.0, ..header_of_answer(request, export) };
        self.post(reply_to, encode(RpcKind::Reply, &header, &[], Payload::new()));
    }

    pub(crate) fn post(&self, to: ReplyTo, reply: Payload) {
        if let Err(e) = self.core.lnet.answer(to.nid, REPLY_PORTAL, to.purpose, to.match_bits, reply) {
            tracing::debug!("reply to {} not sent: {e}", to.nid);
        }
    }

    /// Tells a client that the target was stopped in an orderly way, so that the client need not find out by a failing
    /// request. The message answers no request, and nothing depends on its arrival.
    pub(crate) fn say_goodbye(&self, export: &Export) {
        let status = -Errno::ENOTCONN.0;
        let header = RpcHeader { xid: GOODBYE_XID, export: export.cookie, status, ..RpcHeader::default() };
        self.post(export.import(), encode(RpcKind::Reply, &header, &[], Payload::new()));
    }

    /// A request of this export may need an early reply.
    fn watch(&self, export: &Arc<Export>, deadline: Time) {
        // The request was logged under the export's lock, which orders the two loads after `unwatch_if_idle`.
        if !export.is_watched.load(Ordering::Relaxed) && !export.is_watched.swap(true, Ordering::Relaxed) {
            self.watched.lock().insert(export.cookie, Arc::downgrade(export));
        }
        self.service_timer.arm(early_at(deadline));
    }

    /// Sends the early replies that are due. Returns when the next will be. Only exports with requests are looked at, because
    /// most of a hundred thousand have none.
    pub(crate) fn send_early_replies(&self, now: Time) -> Time {
        let mut next = Time::FAR_FUTURE;
        let watched: Vec<Arc<Export>> = {
            let mut watched = self.watched.lock();
            watched.retain(|_, export| export.strong_count() > 0);
            watched.values().filter_map(Weak::upgrade).collect()
        };
        for export in watched {
            let (due, at) = export.handle_time(now);
            next = next.min(at);
            if at == Time::FAR_FUTURE {
                self.unwatch_if_idle(&export);
            }
            for early in due {
                let header = RpcHeader {
                    xid: early.xid,
                    export: export.cookie,
                    timeout_ms: millis(early.wait),
                    ..RpcHeader::default()
                };
                self.post(early.reply_to, encode(RpcKind::EarlyReply, &header, &[], Payload::new()));
            }
        }
        // The margin is seconds long, so one walk over many requests serves all that are due within the interval.
        next.max(now + EARLY_REPLY_INTERVAL)
    }

    fn unwatch_if_idle(&self, export: &Export) {
        // A request that is logged from here on waits for this lock to have its export watched again.
        let mut watched = self.watched.lock();
        export.is_watched.store(false, Ordering::Relaxed);
        if export.has_requests() {
            export.is_watched.store(true, Ordering::Relaxed);
        } else {
            watched.remove(&export.cookie);
        }
    }
}

/// Lets the target answer a request: with the saved reply if it was executed before, otherwise by executing it.
async fn handle(request: Box<ServerRequest>, ask_target: bool) -> Result<Response, Errno> {
    let export = request.export.clone();
    // Boxed, because it is rare, and the future of every waiting request would contain it otherwise.
    if ask_target && let Some(result) = Box::pin(answer_again(&request)).await {
        return result;
    }
    export.entry.handler.handle(request).await
}

/// The reply to a request that was executed before the target's restart.
async fn answer_again(request: &ServerRequest) -> Option<Result<Response, Errno>> {
    let (export, handler) = (&request.export, &request.export.entry.handler);
    let result = handler.saved_reply(export, request.xid(), request.tag()).await?;
    if let Ok(reply) = &result {
        handler.reconstruct(request, reply).await;
    }
    Some(result)
}

/// Times that a reply reports.
struct Times {
    service: Duration,
    queue: Duration,
    estimate: Duration,
    parts: Parts,
}

/// Requests that the RPC layer itself answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    Connect,
    Disconnect,
    Ping,
}

/// The header of a reply to a request that no handler has seen.
fn header_of_answer(request: &RpcHeader, export: u64) -> RpcHeader {
    let &RpcHeader { lane, opcode, xid, .. } = request;
    RpcHeader { lane, opcode, xid, export, ..RpcHeader::default() }
}

impl Control {
    fn of(opcode: Opcode) -> Option<Control> {
        match opcode {
            Opcode::OstConnect | Opcode::MdsConnect | Opcode::MgsConnect => Some(Control::Connect),
            Opcode::OstDisconnect | Opcode::MdsDisconnect | Opcode::MgsDisconnect => Some(Control::Disconnect),
            Opcode::ObdPing => Some(Control::Ping),
            _ => None,
        }
    }
}

impl Question {
    fn of(request: &ServerRequest) -> Question {
        let h = &request.header;
        Question {
            export: request.export.clone(),
            opcode: request.opcode,
            xid: h.xid,
            tag: Tag(h.tag),
            lane: h.lane,
            connection: h.connection_count,
            trace_id: h.trace_id,
            wanted: Credits { rpcs: h.credits_wanted, bytes: h.bytes_wanted },
            router_time_us: h.router_time_us,
            asked: request.export.entry.handler.accounts().then(|| Box::new(Asked::of(h))),
        }
    }

    /// Header fields that every reply repeats.
    fn header(&self) -> RpcHeader {
        RpcHeader {
            lane: self.lane,
            tag: self.tag.0,
            opcode: self.opcode as u32,
            xid: self.xid,
            trace_id: self.trace_id,
            ..RpcHeader::default()
        }
    }
}
