//! The calls of one import, and what each waits for, in the order of their xids. A sans-IO engine, but for the wakers.
//!
//! A call waits for a modify slot if it needs one, then for room in the window if it needs that, then for a connection;
//! then it is sent, and sent again over every new connection until it is answered.

use crate::congestion::Controller;
use crate::error::RpcError;
use crate::flights::AllFlights;
use crate::gates::{Gate, Gates};
use crate::import_state::Connection;
use crate::message::{Incoming, micros};
use crate::modify_slots::ModifySlots;
use crate::replay::Replayable;
use crate::window::{Credits, Window};
use nacre_base::steps::Steps;
use nacre_base::{Part, SortedMap, Tag, Time};
use nacre_wire::{Lane, Opcode, RpcHeader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Properties of a call that decide what it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) opcode: Opcode,
    pub(crate) lane: Lane,
    pub(crate) modify: bool,
    /// Bytes of bulk that the call takes from the window; `None` if the window does not apply to it.
    pub(crate) window: Option<u64>,
    /// True if the server takes the call's locks, and may have to wait for other clients' (see [`Gates`]).
    pub(crate) lockless: bool,
    pub(crate) no_delay: bool,
    /// True for a connect, a disconnect and the progress report of a recovery: sent at once, whatever the import's
    /// state, and never sent again.
    pub(crate) control: bool,
    /// True for a request of a recovery: sent only over the connection that is recovering.
    pub(crate) recovery: bool,
    /// Copy of the request, to be kept for a replay if the reply says that it made a change.
    pub(crate) replay: Option<Arc<Replayable>>,
    pub(crate) give_up: Time,
}

#[cfg(test)]
impl Spec {
    /// A request that changes nothing and may wait for ever.
    pub(crate) fn plain() -> Spec {
        Spec {
            opcode: Opcode::MdsReint,
            lane: Lane::Request,
            modify: false,
            window: None,
            lockless: false,
            no_delay: false,
            control: false,
            recovery: false,
            replay: None,
            give_up: Time::FAR_FUTURE,
        }
    }
}

/// Next step of a call's future.
#[derive(Debug)]
pub(crate) enum Step {
    /// Wait to be woken.
    Wait,
    /// Send the request, then call `handle_sent`.
    Send,
    /// The call is over.
    Done(Box<Result<Incoming, RpcError>>),
}

struct Call {
    spec: Spec,
    /// 0 until the call has its modify slot, and if it needs none.
    tag: Tag,
    /// Bytes of bulk that the call has taken from the window; `None` until it has room there.
    room: Option<u64>,
    phase: Phase,
    /// When the call was made.
    started: Time,
    /// Result for the call's future; set from [`Phase::Done`] on, until [`Phase::Taken`].
    result: Option<Box<Result<Incoming, RpcError>>>,
    waker: Option<Waker>,
    /// The last of the things that the call had to wait for, a modify slot or room in the window; none if it waited for a connection at
    /// most.
    waited_for: Option<Part>,
    /// How long the call waited before it was sent first, in microseconds.
    waited_us: u32,
    /// Number of the connection on which the request was last sent; 0 before it was sent.
    sent_on: u32,
    sends: u32,
    sent_at: Time,
    /// Time by which the server must have answered.
    deadline: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for its modify slot or for room in the window.
    Queued,
    /// May be sent as soon as there is a connection.
    Ready,
    /// Waits for the reply.
    Sent,
    /// Answered, or failed.
    Done,
    /// The future has the result, and perhaps waits for the bulk that belongs to it.
    Taken,
}

/// Event that changes the phase of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The call has its modify slot and its room in the window.
    Admitted,
    /// The request is sent.
    Sent,
    /// A new connection has replaced the one on which the request was sent.
    Reconnected,
    /// The server has not executed the request, because its data did not get through.
    Returned,
    /// The server answered, or the call failed.
    Ended,
    /// The caller's future takes the result.
    Fetched,
    /// The bulk that belongs to the reply did not come.
    BulkLost,
}

const STEPS: Steps<Phase, Event> = Steps(&[
    (Phase::Queued, Event::Admitted, Phase::Ready),
    (Phase::Queued, Event::Ended, Phase::Done),
    (Phase::Ready, Event::Sent, Phase::Sent),
    // A reply to an earlier send, or a failure.
    (Phase::Ready, Event::Ended, Phase::Done),
    (Phase::Sent, Event::Reconnected, Phase::Ready),
    (Phase::Sent, Event::Returned, Phase::Ready),
    (Phase::Sent, Event::Ended, Phase::Done),
    (Phase::Done, Event::Fetched, Phase::Taken),
    (Phase::Taken, Event::BulkLost, Phase::Ready),
    // A failure while the call waits for its bulk.
    (Phase::Taken, Event::Ended, Phase::Done),
]);

/// The engine.
pub(crate) struct Calls {
    /// Boxed, so that finding and removing one moves little.
    calls: SortedMap<u64, Box<Call>>,
    /// Xids of the calls of each lane.
    by_lane: [SortedMap<u64, ()>; Lane::ALL.len()],
    /// Xid of the latest call.
    last_started: u64,
    slots: ModifySlots,
    gates: Gates,
    /// Calls that wait for a modify slot. A call that fails while it waits stays here until its turn.
    for_slot: VecDeque<u64>,
    pub(crate) flights: AllFlights,
    /// Bytes of data that are under way with their requests, beyond what every request may bring.
    pub(crate) eager: u64,
}

/// The answered call, or ping, as its import needs to know it.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    pub(crate) xid: u64,
    pub(crate) lane: Lane,
    pub(crate) opcode: Opcode,
    pub(crate) sent_at: Time,
    /// True if the request was sent only once, so that the round trip can be measured.
    pub(crate) sent_once: bool,
    pub(crate) sent_on: u32,
    pub(crate) control: bool,
    pub(crate) tag: Tag,
    pub(crate) replay: Option<Arc<Replayable>>,
    /// True if the window applies to the call, and so what the reply grants.
    pub(crate) in_window: bool,
    /// True if data came or went with the call, which takes time on the way.
    pub(crate) has_bulk: bool,
    /// See [`Calls::waited`].
    pub(crate) waited: (Part, Duration),
    /// When the call was made.
    pub(crate) started: Time,
}

impl Answered {
    /// Returns whether the call was a connect.
    pub(crate) fn is_connect(&self) -> bool {
        matches!(self.opcode, Opcode::MgsConnect | Opcode::MdsConnect | Opcode::OstConnect)
    }
}

/// Effect of the passing of time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expired {
    /// When to look again.
    pub(crate) next: Time,
    /// Connection on which a request's deadline passed: it is lost.
    pub(crate) lost: Option<u32>,
    /// A request that was sent has had no answer in time.
    pub(crate) unanswered: bool,
}

impl Calls {
    pub(crate) const fn new() -> Calls {
        Calls {
            calls: SortedMap::new(),
            by_lane: [const { SortedMap::new() }; Lane::ALL.len()],
            last_started: 0,
            slots: ModifySlots::new(1),
            gates: Gates::NEW,
            for_slot: VecDeque::new(),
            flights: AllFlights::new(),
            eager: 0,
        }
    }

    /// As [`Calls::start`], at the beginning of time.
    #[cfg(test)]
    pub(crate) fn begin(&mut self, xid: u64, spec: Spec) {
        self.start(xid, spec, Time::ZERO);
    }

    #[cfg(test)]
    fn limited(window: u32) -> Calls {
        let mut calls = Calls::new();
        calls.set_window(window);
        calls
    }

    /// Registers a new call. `xid` must be higher than all before.
    pub(crate) fn start(&mut self, xid: u64, spec: Spec, now: Time) {
        assert!(self.last_started < xid, "a call has xid {xid} after one with {}", self.last_started);
        self.last_started = xid;
        assert!(self.by_lane[spec.lane as usize].insert(xid, ()).is_none(), "xid {xid} was given twice");
        let mut call = Box::new(Call {
            spec,
            tag: Tag(0),
            room: None,
            phase: Phase::Queued,
            started: now,
            result: None,
            waker: None,
            waited_for: None,
            waited_us: 0,
            sent_on: 0,
            sends: 0,
            sent_at: Time::ZERO,
            deadline: Time::FAR_FUTURE,
        });
        if call.spec.modify {
            match if self.for_slot.is_empty() { self.slots.take() } else { None } {
                Some(tag) => call.tag = tag,
                None => {
                    call.waited_for = Some(Part::Client);
                    self.for_slot.push_back(xid);
                    self.calls.insert(xid, call);
                    return;
                }
            }
        }
        self.calls.insert(xid, call);
        self.enter_window(xid);
    }

    /// Returns the next step of the call's future; `waker` is woken when that step changes. `recovery` is the
    /// connection for requests that belong to a recovery.
    pub(crate) fn poll(
        &mut self,
        xid: u64,
        connection: Option<Connection>,
        recovery: Option<Connection>,
        waker: &Waker,
    ) -> Step {
        let call = self.call(xid);
        assert_eq!(call.phase == Phase::Done, call.result.is_some(), "xid {xid} is {:?}", call.phase);
        if let Some(result) = call.result.take() {
            call.step(Event::Fetched);
            return Step::Done(result);
        }
        let connection = if call.spec.recovery { recovery } else { connection };
        if call.phase == Phase::Ready && (call.spec.control || connection.is_some()) {
            return Step::Send;
        }
        if call.phase == Phase::Ready && call.spec.recovery {
            return Step::Done(Box::new(Err(RpcError::Unreachable)));
        }
        if call.waker.as_ref().is_none_or(|w| !w.will_wake(waker)) {
            call.waker = Some(waker.clone());
        }
        Step::Wait
    }

    /// Returns whether the call still waits to be sent. It may have been answered, or failed, since `poll` returned
    /// [`Step::Send`].
    pub(crate) fn is_ready(&self, xid: u64) -> bool {
        self.calls.get(&xid).is_some_and(|c| c.phase == Phase::Ready)
    }

    /// The call is about to be sent on this connection. Returns its tag, and whether it was sent before.
    pub(crate) fn handle_sent(&mut self, xid: u64, connection: u32, now: Time, deadline: Time) -> (Tag, bool) {
        let call = self.calls.get_mut(&xid).expect("who sends a call holds it");
        call.step(Event::Sent);
        assert_eq!(call.spec.modify, call.tag != Tag(0), "xid {xid} goes out with {:?}", call.tag);
        assert_eq!(call.spec.window, call.room, "xid {xid} goes out with other room in the window than its bytes");
        call.sent_on = connection;
        call.sends += 1;
        if call.sends == 1 {
            self.flights.handle_sent(&call.spec);
            call.waited_us = micros(now.since(call.started));
        }
        call.sent_at = now;
        call.deadline = deadline;
        (call.tag, call.sends > 1)
    }

    /// How long a call that is sent waited before it was sent first, and for what: all of the wait counts as one for the last
    /// thing that it waited for.
    pub(crate) fn waited(&self, xid: u64) -> (Part, Duration) {
        let call = self.calls.get(&xid).expect("who sends a call holds it");
        call.waited()
    }

    fn call(&mut self, xid: u64) -> &mut Call {
        self.calls.get_mut(&xid).expect("a call is known until its future is done with it")
    }

    /// All replies to requests of this lane, up to this xid, have been seen.
    pub(crate) fn last_xid(&self, lane: Lane) -> u64 {
        self.by_lane[lane as usize].first().map_or(0, |xid| xid - 1)
    }

    /// Handles a reply; `export` is the one that the server gave at the last connect. Returns `None` if no call waits for the
    /// reply, or if it comes from an export of before: an earlier instance of the server, or the server before it evicted this
    /// client, sent it, and what it acknowledges may be gone.
    pub(crate) fn handle_reply(&mut self, reply: Incoming, export: Option<u64>) -> Option<Answered> {
        let header = &reply.header;
        let call = self.calls.get_mut(&header.xid)?;
        if call.sends == 0 || call.is_over() || header.opcode != call.spec.opcode as u32 {
            return None;
        }
        // A refusal names no export.
        if !call.spec.control && header.export != 0 && Some(header.export) != export {
            return None;
        }
        let answered = call.answered(reply.header.xid);
        call.finish(Ok(reply));
        Some(answered)
    }

    /// The server needs until `deadline` for this request.
    pub(crate) fn handle_early_reply(&mut self, xid: u64, deadline: Time) -> Option<Answered> {
        let call = self.calls.get_mut(&xid)?;
        call.deadline = call.deadline.max(deadline);
        Some(call.answered(xid))
    }

    /// Describes a call that the server did not execute because it does not know the export.
    pub(crate) fn answered(&self, xid: u64) -> Option<Answered> {
        self.calls.get(&xid).map(|call| call.answered(xid))
    }

    /// The server says that the data of a request did not get through, and that it has not executed the request; `export` is as for
    /// [`Calls::handle_reply`].
    pub(crate) fn handle_send_again(&mut self, header: &RpcHeader, export: Option<u64>) {
        let Some(call) = self.calls.get_mut(&header.xid) else { return };
        let is_meant = header.opcode == call.spec.opcode as u32 && Some(header.export) == export;
        if is_meant && call.phase == Phase::Sent && !call.spec.control {
            call.step(Event::Returned);
            call.wake();
        }
    }

    /// The reply came but its bulk did not: the request must be sent again.
    pub(crate) fn handle_incomplete(&mut self, xid: u64) {
        let call = self.call(xid);
        // A call that failed while it waited for the bulk stays failed.
        if call.phase != Phase::Done {
            call.step(Event::BulkLost);
        }
    }

    /// There is a new connection: waiting calls are sent, and calls sent over another connection are sent again, lowest
    /// xid first.
    pub(crate) fn handle_connected(&mut self, connection: u32) {
        for call in self.calls.values_mut() {
            if call.phase == Phase::Sent && !call.spec.control && call.sent_on != connection {
                call.step(Event::Reconnected);
            }
            if call.phase == Phase::Ready {
                call.wake();
            }
        }
        self.check();
    }

    /// The connection is lost: fails the calls that do not want to wait.
    pub(crate) fn fail_no_delay(&mut self) {
        self.fail(RpcError::Unreachable, |c| c.spec.no_delay && !c.spec.control);
    }

    /// The connection of a recovery is lost: fails the recovery's calls, because the recovery starts over.
    pub(crate) fn fail_recovery(&mut self) {
        self.fail(RpcError::Unreachable, |c| c.spec.recovery);
    }

    /// Fails the control calls, which are never sent again.
    pub(crate) fn fail_control(&mut self, error: RpcError) {
        self.fail(error, |c| c.spec.control);
    }

    /// The server evicted this client: fails the calls that it may have seen.
    pub(crate) fn fail_sent(&mut self, error: RpcError) {
        self.fail(error, |c| c.sends > 0 && !c.spec.control);
    }

    /// Fails all calls.
    pub(crate) fn fail_all(&mut self, error: RpcError) {
        self.fail(error, |_| true);
    }

    fn fail(&mut self, error: RpcError, which: impl Fn(&Call) -> bool) {
        self.calls.values_mut().filter(|c| which(c)).for_each(|c| c.finish(Err(error)));
    }

    /// Ends the calls whose time is over at `now`, with `connection` in use.
    pub(crate) fn handle_time(&mut self, now: Time, connection: Option<u32>) -> Expired {
        let mut expired = Expired { next: Time::FAR_FUTURE, lost: None, unanswered: false };
        for (xid, call) in self.calls.iter_mut() {
            if call.is_over() {
                continue;
            }
            if call.spec.give_up <= now {
                expired.unanswered |= call.phase == Phase::Sent;
                call.finish(Err(RpcError::TimedOut));
                continue;
            }
            expired.next = expired.next.min(call.spec.give_up);
            let waits = call.phase == Phase::Sent && !call.spec.control && Some(call.sent_on) == connection;
            if waits && call.deadline <= now {
                tracing::debug!("{} xid {xid} timed out", call.spec.opcode);
                (expired.lost, expired.unanswered) = (connection, true);
            } else if waits {
                expired.next = expired.next.min(call.deadline);
            }
        }
        expired
    }

    /// The call's future is done: its modify slot and its room in the window go to waiting calls.
    pub(crate) fn finish(&mut self, xid: u64) {
        let call = self.calls.remove(&xid).expect("the future of a call is done with it once");
        self.by_lane[call.spec.lane as usize].remove(&xid);
        if call.sends > 0 {
            self.flights.handle_over(&call.spec);
        }
        if call.phase == Phase::Queued {
            self.for_slot.retain(|x| *x != xid);
            self.gates.of(call.spec.lockless).waiting.retain(|x| *x != xid);
        }
        if call.tag != Tag(0) {
            self.slots.give(call.tag);
            self.fill_slots();
        }
        if let Some(bytes) = call.room {
            self.gates.of(call.spec.lockless).window.give(bytes);
            self.fill_window(call.spec.lockless);
        }
        if self.calls.is_empty() {
            assert_eq!(self.slots.taken(), 0, "no call is left, and modify slots are taken");
            assert!(self.gates.are_unused(), "no call is left, and a window is in use");
            self.flights.assert_none();
        }
    }

    /// Panics if slots, window and queues do not agree with the calls. Looks at every call.
    pub(crate) fn check(&self) {
        let tags = self.calls.values().filter(|c| c.tag != Tag(0)).count();
        assert_eq!(tags, usize::from(self.slots.taken()), "calls with modify slots, and slots that are taken");
        let mut rooms = [Credits::default(); 2];
        for (lockless, bytes) in self.calls.values().filter_map(|c| Some((c.spec.lockless, c.room?))) {
            let room = &mut rooms[usize::from(lockless)];
            *room = Credits { rpcs: room.rpcs + 1, bytes: room.bytes + bytes };
        }
        for (lockless, gate) in self.gates.iter() {
            let room = rooms[usize::from(lockless)];
            assert_eq!(room, gate.window.in_flight(), "what calls have of the window, and what it has given");
        }
        let queued = self.calls.values().filter(|c| c.phase == Phase::Queued).count();
        let places = self.for_slot.len() + self.gates.waiting();
        assert!(queued <= places, "{queued} calls wait in queues, which have {places} places");
    }

    /// Sets the number of modify RPCs that the server allows.
    pub(crate) fn set_slots(&mut self, max: u16) {
        self.slots.set_max(max);
        self.fill_slots();
    }

    /// Sets the number of RPCs in flight that the administrator allows; 0 for no limit of his.
    pub(crate) fn set_window(&mut self, rpcs: u32) {
        self.change_windows(|window| window.set_limit(rpcs));
    }

    /// The server granted a window.
    pub(crate) fn handle_grant(&mut self, granted: Credits) {
        if granted != self.granted() {
            self.change_windows(|window| window.handle_grant(granted));
        }
    }

    /// The server's latest grant.
    pub(crate) fn granted(&self) -> Credits {
        self.gates.granted()
    }

    /// Changes the windows, and lets calls through for which there is room now.
    fn change_windows(&mut self, change: impl Fn(&mut Window)) {
        self.gates.change(change);
        for lockless in [false, true] {
            self.fill_window(lockless);
        }
    }

    /// RPCs and bytes that wait for the window, the one that is about to be sent, and those that its caller has to send besides.
    pub(crate) fn wanted(&self, bytes: u64, backlog: u64) -> Credits {
        let bytes_of = |xid| self.calls.get(xid).and_then(|c| c.spec.window).unwrap_or(0);
        // Of a long queue only the first bytes are added up, to keep this cheap; the count of its RPCs is exact.
        let waiting = self.gates.iter().flat_map(|(_, gate)| gate.waiting.iter().take(64)).map(bytes_of).sum::<u64>();
        let to_come = backlog.div_ceil(bytes.max(1)).min(Controller::RPCS_MAX.into()) as u32;
        Credits { rpcs: self.gates.waiting() as u32 + 1 + to_come, bytes: waiting + bytes + backlog }
    }

    /// RPCs sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.values().filter(|c| c.phase == Phase::Sent).count()
    }

    /// Bytes of the calls with this opcode that wait to be sent.
    pub(crate) fn queued_bytes(&self, opcode: Opcode) -> u64 {
        let queued = self.calls.values().filter(|c| c.spec.opcode == opcode && c.sends == 0);
        queued.filter_map(|c| c.spec.window).sum()
    }

    /// Returns whether nothing but the server's last grant would be lost with this engine: it has no calls and no counts.
    pub(crate) fn is_at_rest(&self) -> bool {
        assert!(
            !self.is_empty() || self.eager == 0,
            "no call is left, and {} bytes are under way with their requests",
            self.eager
        );
        self.is_empty() && self.flights.is_empty()
    }

    /// Returns whether there is no call at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns whether the call was sent, and has no result yet.
    pub(crate) fn is_in_flight(&self, xid: u64) -> bool {
        self.calls.get(&xid).is_some_and(|c| c.sends > 0 && matches!(c.phase, Phase::Ready | Phase::Sent))
    }

    fn fill_slots(&mut self) {
        while let Some(xid) = self.for_slot.front().copied() {
            if let Some(call) = self.calls.get_mut(&xid) {
                let Some(tag) = self.slots.take() else { return };
                assert_eq!(call.tag, Tag(0), "xid {xid} waits for a modify slot and has one");
                call.tag = tag;
                self.enter_window(xid);
            }
            self.for_slot.pop_front();
        }
    }

    fn fill_window(&mut self, lockless: bool) {
        let Calls { gates, calls, .. } = self;
        let Some(Gate { window, waiting }) = gates.made(lockless) else { return };
        while let Some(xid) = waiting.front().copied() {
            if let Some(call) = calls.get_mut(&xid) {
                let bytes = call.spec.window.expect("who waits for the window needs room there");
                if !window.take(bytes) {
                    return;
                }
                call.admit(Some(bytes));
            }
            waiting.pop_front();
        }
    }

    /// The call has its modify slot, if it needs one.
    fn enter_window(&mut self, xid: u64) {
        let Calls { gates, calls, .. } = self;
        let call = calls.get_mut(&xid).expect("only a call that is there enters the window");
        let Some(bytes) = call.spec.window else { return call.admit(None) };
        let Gate { window, waiting } = gates.of(call.spec.lockless);
        if waiting.is_empty() && window.take(bytes) {
            call.admit(Some(bytes));
        } else {
            call.waited_for = Some(Part::Window);
            waiting.push_back(xid);
        }
    }
}

impl Call {
    fn step(&mut self, event: Event) {
        self.phase = STEPS.next(self.phase, event);
    }

    fn waited(&self) -> (Part, Duration) {
        match self.waited_for {
            Some(part) => (part, Duration::from_micros(self.waited_us.into())),
            // A server that is away is not its client's fault: this counts as time on the network.
            None => (Part::Client, Duration::ZERO),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Taken)
    }

    /// The call has everything that it waited for; `room` is what it has taken from the window.
    fn admit(&mut self, room: Option<u64>) {
        assert!(self.room.is_none(), "a call has {:?} of the window and takes {room:?}", self.room);
        self.room = room;
        // A call that failed while it waited stays failed.
        if !self.is_over() {
            self.step(Event::Admitted);
            self.wake();
        }
    }

    /// Ends the call, unless it has ended before: the first result counts.
    fn finish(&mut self, result: Result<Incoming, RpcError>) {
        if self.phase != Phase::Done {
            self.step(Event::Ended);
            self.result = Some(Box::new(result));
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn answered(&self, xid: u64) -> Answered {
        Answered {
            xid,
            lane: self.spec.lane,
            opcode: self.spec.opcode,
            sent_at: self.sent_at,
            sent_once: self.sends == 1,
            sent_on: self.sent_on,
            control: self.spec.control,
            tag: self.tag,
            replay: self.spec.replay.clone(),
            in_window: self.spec.window.is_some(),
            has_bulk: self.spec.window.is_some_and(|bytes| bytes > 0),
            waited: self.waited(),
            started: self.started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::{Nid, Payload, Prng};
    use nacre_wire::{RpcHeader, RpcKind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn connection(connection: u32) -> Option<Connection> {
        Some(Connection { nid: Nid::LO, export: 1, connection })
    }

    fn reply(xid: u64) -> Incoming {
        let header = RpcHeader { xid, opcode: Opcode::MdsReint as u32, ..RpcHeader::default() };
        Incoming { kind: RpcKind::Reply, header, body: bytes::Bytes::new(), data: Payload::new() }
    }

    /// Next step of a call, in a word; a request that is to be sent is sent.
    fn poll(c: &mut Calls, xid: u64, connection: Option<Connection>) -> String {
        match c.poll(xid, connection, connection, Waker::noop()) {
            Step::Wait => "wait".to_owned(),
            Step::Send => {
                let (tag, again) = c.handle_sent(xid, connection.unwrap().connection, Time::ZERO, Time::from_secs(11));
                format!("{} tag {}", if again { "resend" } else { "send" }, tag.0)
            }
            Step::Done(r) => r.map_or_else(|e| e.to_string(), |r| format!("reply {}", r.header.xid)),
        }
    }

    #[test]
    fn a_call_waits_for_the_connection_and_is_sent_again_over_the_next() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        assert_eq!(poll(&mut c, 5, None), "wait");
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        assert!(matches!(c.poll(5, None, None, &woken.clone().into()), Step::Wait));
        c.handle_connected(1);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(&mut c, 5, connection(1)), "send tag 0");
        assert_eq!(poll(&mut c, 5, connection(1)), "wait");
        c.handle_connected(1);
        assert_eq!(poll(&mut c, 5, connection(1)), "wait", "already sent over this one");
        c.handle_connected(2);
        assert_eq!(poll(&mut c, 5, connection(2)), "resend tag 0");
        let answered = c.handle_reply(reply(5), None).unwrap();
        assert_eq!((answered.sent_on, answered.sent_once), (2, false));
        assert!(c.handle_reply(reply(5), None).is_none(), "a doubled reply");
        assert_eq!(poll(&mut c, 5, connection(2)), "reply 5");
        c.finish(5);
        assert!(c.is_empty());
    }

    #[test]
    fn a_reply_that_overtakes_the_reconnect_counts() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        poll(&mut c, 5, connection(1));
        c.handle_connected(2);
        assert!(c.handle_reply(reply(5), None).is_some());
        assert_eq!(poll(&mut c, 5, connection(2)), "reply 5");
    }

    /// A reply that a server had sent before its restart came after the replays: its transno was kept although the change
    /// was gone, and the call was not sent again.
    #[test]
    fn a_reply_of_an_export_of_before_is_ignored() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        poll(&mut c, 5, connection(1));
        let of_export = |export| {
            let mut reply = reply(5);
            reply.header.export = export;
            reply
        };
        assert!(c.handle_reply(of_export(7), Some(8)).is_none());
        assert_eq!(poll(&mut c, 5, connection(1)), "wait");
        assert!(c.handle_reply(of_export(8), Some(8)).is_some());
        c.begin(6, Spec { control: true, ..Spec::plain() });
        poll(&mut c, 6, connection(1));
        let mut connect = reply(6);
        connect.header.export = 9;
        assert!(c.handle_reply(connect, Some(8)).is_some(), "a connect brings another export");
    }

    #[test]
    fn replies_to_what_was_not_sent_or_was_another_question_are_ignored() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        assert!(c.handle_reply(reply(5), None).is_none());
        poll(&mut c, 5, connection(1));
        let mut other = reply(5);
        other.header.opcode = Opcode::MdsClose as u32;
        assert!(c.handle_reply(other, None).is_none());
        assert!(c.handle_reply(reply(6), None).is_none());
    }

    #[test]
    fn slots_and_window_go_to_those_who_wait_in_order() {
        let mut c = Calls::limited(1);
        let modify = Spec { modify: true, ..Spec::plain() };
        (1..=3).for_each(|xid| c.begin(xid, modify.clone()));
        assert_eq!([1, 2, 3].map(|x| poll(&mut c, x, connection(1))), ["send tag 1", "wait", "wait"]);
        c.finish(2);
        c.finish(1);
        assert_eq!(poll(&mut c, 3, connection(1)), "send tag 1");
        c.set_slots(2);
        c.begin(4, Spec { window: Some(10), ..modify.clone() });
        c.begin(5, Spec { window: Some(10), ..Spec::plain() });
        assert_eq!([4, 5].map(|x| poll(&mut c, x, connection(1))), ["send tag 2", "wait"]);
        assert_eq!(c.wanted(10, 0), Credits { rpcs: 2, bytes: 20 });
        assert_eq!(c.wanted(10, 25), Credits { rpcs: 5, bytes: 45 }, "bytes that no call was made for yet");
        c.set_window(2);
        assert_eq!(poll(&mut c, 5, connection(1)), "send tag 0");
    }

    /// A lockless call may wait for another client, whose program may wait for a call that names a lock.
    #[test]
    fn lockless_calls_have_a_window_of_their_own() {
        let mut c = Calls::limited(1);
        c.begin(1, Spec { window: Some(1), lockless: true, ..Spec::plain() });
        c.begin(2, Spec { window: Some(1), lockless: true, ..Spec::plain() });
        c.begin(3, Spec { window: Some(1), ..Spec::plain() });
        assert_eq!([1, 2, 3].map(|x| poll(&mut c, x, connection(1))), ["send tag 0", "wait", "send tag 0"]);
        c.finish(3);
        assert_eq!(poll(&mut c, 2, connection(1)), "wait");
        c.finish(1);
        assert_eq!(poll(&mut c, 2, connection(1)), "send tag 0");
    }

    #[test]
    fn what_the_server_may_forget_is_below_the_oldest_call_of_the_lane() {
        let mut c = Calls::limited(8);
        c.begin(9, Spec { lane: Lane::Request, ..Spec::plain() });
        (10..15).for_each(|xid| c.begin(xid, Spec { lane: Lane::Io, ..Spec::plain() }));
        let io = |c: &Calls| c.last_xid(Lane::Io);
        assert_eq!(io(&c), 9);
        c.finish(11);
        assert_eq!(io(&c), 9);
        c.finish(10);
        assert_eq!(io(&c), 11);
    }

    #[test]
    fn time_ends_calls_and_connections() {
        let mut c = Calls::limited(8);
        let t = Time::from_secs;
        c.begin(1, Spec { give_up: t(5), ..Spec::plain() });
        c.begin(2, Spec::plain());
        (1..=2).for_each(|x| drop(poll(&mut c, x, connection(1))));
        let expired = |next, unanswered| Expired { next: t(next), lost: None, unanswered };
        assert_eq!(c.handle_time(t(4), Some(1)), expired(5, false));
        assert_eq!(c.handle_time(t(5), Some(1)), expired(11, true));
        assert_eq!(poll(&mut c, 1, connection(1)), RpcError::TimedOut.to_string());
        c.handle_early_reply(2, t(30));
        assert_eq!(c.handle_time(t(11), Some(1)), expired(30, false));
        assert_eq!(c.handle_time(t(30), Some(2)).lost, None, "sent over another connection");
        assert_eq!(c.handle_time(t(30), Some(1)).lost, Some(1));
    }

    #[test]
    fn failures_strike_whom_they_concern() {
        let mut c = Calls::limited(8);
        c.begin(1, Spec::plain());
        c.begin(2, Spec { no_delay: true, ..Spec::plain() });
        c.begin(3, Spec::plain());
        c.begin(4, Spec { control: true, ..Spec::plain() });
        (1..=2).for_each(|x| drop(poll(&mut c, x, connection(1))));
        c.fail_no_delay();
        c.fail_sent(RpcError::Evicted);
        c.fail_control(RpcError::Unreachable);
        let told = [1, 2, 3, 4].map(|x| poll(&mut c, x, None));
        let [evicted, unreachable] = [RpcError::Evicted, RpcError::Unreachable].map(|e| e.to_string());
        assert_eq!(told, [evicted, unreachable.clone(), "wait".to_owned(), unreachable]);
        c.fail_all(RpcError::Closed);
        assert_eq!(poll(&mut c, 3, None), RpcError::Closed.to_string());
    }

    #[test]
    fn the_steps_of_a_call_do_not_contradict_each_other() {
        STEPS.assert_sound();
    }

    #[test]
    fn a_call_that_failed_while_it_waited_for_its_bulk_stays_failed() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        poll(&mut c, 5, connection(1));
        c.handle_reply(reply(5), None);
        assert_eq!(poll(&mut c, 5, connection(1)), "reply 5");
        c.fail_all(RpcError::Closed);
        c.handle_incomplete(5);
        assert_eq!(poll(&mut c, 5, None), RpcError::Closed.to_string());
    }

    #[test]
    fn a_call_that_failed_before_it_went_out_does_not_go() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        assert!(matches!(c.poll(5, connection(1), None, Waker::noop()), Step::Send) && c.is_ready(5));
        c.fail_all(RpcError::Closed);
        assert!(!c.is_ready(5));
        assert_eq!(poll(&mut c, 5, connection(1)), RpcError::Closed.to_string());
    }

    #[test]
    #[should_panic(expected = "Sent in state Done")]
    fn sending_a_call_that_has_failed_is_a_defect() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec::plain());
        c.fail_all(RpcError::Closed);
        c.handle_sent(5, 1, Time::ZERO, Time::ZERO);
    }

    #[test]
    #[should_panic(expected = "slots that are taken")]
    fn a_slot_that_no_call_has_is_found() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec { modify: true, ..Spec::plain() });
        c.check();
        c.call(5).tag = Tag(0);
        c.check();
    }

    #[test]
    #[should_panic(expected = "of the window")]
    fn room_that_no_call_has_is_found() {
        let mut c = Calls::limited(8);
        c.begin(5, Spec { window: Some(7), ..Spec::plain() });
        c.check();
        c.call(5).room = Some(6);
        c.check();
    }

    /// In every order of events, slots and window are never overdrawn, and no call waits forever.
    #[test]
    fn random_histories_keep_the_books() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut c = Calls::limited(3);
            c.set_slots(2);
            let (mut alive, mut next, mut conn) = (Vec::new(), 1, 1);
            while next < 200 || !alive.is_empty() {
                let pick = |prng: &mut Prng, alive: &[u64]| *prng.pick(alive);
                match prng.below(10) {
                    0..=2 if next < 200 => {
                        let (modify, window) = (prng.one_in(2), prng.one_in(2).then_some(1));
                        c.begin(next, Spec { modify, window, lockless: prng.one_in(3), ..Spec::plain() });
                        alive.push(next);
                        next += 1;
                    }
                    3 => {
                        conn += 1;
                        c.handle_connected(conn);
                    }
                    4 if prng.one_in(10) => c.fail_sent(RpcError::Evicted),
                    5 if prng.one_in(5) && !alive.is_empty() => {
                        let xid = alive.swap_remove(prng.below(alive.len() as u64) as usize);
                        c.finish(xid);
                    }
                    6 if !alive.is_empty() => drop(c.handle_reply(reply(pick(&mut prng, &alive)), None)),
                    _ if !alive.is_empty() => {
                        let xid = pick(&mut prng, &alive);
                        let told = poll(&mut c, xid, connection(conn));
                        if told.starts_with("reply") || told == RpcError::Evicted.to_string() {
                            c.finish(xid);
                            alive.retain(|x| *x != xid);
                        }
                    }
                    _ => {}
                }
                c.check();
                let is_within = c.gates.iter().all(|(_, gate)| gate.window.in_flight().rpcs <= 3);
                assert!(is_within && c.in_flight() <= alive.len());
            }
            assert!(c.is_empty() && c.for_slot.len() + c.gates.waiting() == 0, "seed {seed}");
            assert!(c.gates.are_unused());
            assert_eq!([c.slots.take(), c.slots.take()], [Some(Tag(1)), Some(Tag(2))]);
        }
    }
}
