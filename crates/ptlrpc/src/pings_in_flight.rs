//! Pings of an import that wait for their answers. Unlike a call a ping has no task and no place among the calls, since clients
//! have thousands of imports that ping at the same moment: the reply, the deadline or the loss of the connection ends it.

use crate::calls::Answered;
use crate::import_state::Connection;
use nacre_base::{Part, Tag, Time};
use nacre_wire::{Lane, Opcode, RpcHeader};
use std::time::Duration;

/// The pings of an import that wait for their answers, the latest first; mostly one or none. A sans-IO engine.
#[derive(Debug, Default)]
pub(crate) struct PingsInFlight(Option<Box<Sent>>);

/// A ping. Those before it are a list, because thousands of imports have one ping in flight at the same moment, and few have two.
#[derive(Debug)]
struct Sent {
    xid: u64,
    /// Number of the connection on which it was sent.
    sent_on: u32,
    sent_at: Time,
    /// Time in microseconds after that by which the server must have answered.
    patience_us: u32,
    before: Option<Box<Sent>>,
}

const _: () = assert!(size_of::<Sent>() == 32, "each import may have a ping in flight");

impl Sent {
    fn deadline(&self) -> Time {
        self.sent_at + Duration::from_micros(self.patience_us.into())
    }

    /// Extends the deadline. A ping does not wait for more than 71 minutes.
    fn wait_until(&mut self, deadline: Time) {
        let micros = deadline.since(self.sent_at).as_nanos().div_ceil(1000);
        self.patience_us = self.patience_us.max(u32::try_from(micros).unwrap_or(u32::MAX));
    }
}

impl PingsInFlight {
    fn iter(&self) -> impl Iterator<Item = &Sent> {
        std::iter::successors(self.0.as_deref(), |sent| sent.before.as_deref())
    }

    fn find(&mut self, xid: u64) -> Option<&mut Sent> {
        let mut next = self.0.as_deref_mut();
        while let Some(sent) = next {
            if sent.xid == xid {
                return Some(sent);
            }
            next = sent.before.as_deref_mut();
        }
        None
    }

    /// Takes out the ping with this xid.
    fn take(&mut self, xid: u64) -> Option<Box<Sent>> {
        let mut place = &mut self.0;
        while place.as_ref().is_some_and(|sent| sent.xid != xid) {
            place = &mut place.as_mut()?.before;
        }
        let mut sent = place.take()?;
        *place = sent.before.take();
        Some(sent)
    }

    /// A ping goes out.
    pub(crate) fn handle_sent(&mut self, xid: u64, connection: u32, now: Time, deadline: Time) {
        assert!(self.0.as_ref().is_none_or(|latest| latest.xid < xid), "a ping has xid {xid}: {self:?}");
        let before = self.0.take();
        let mut sent = Box::new(Sent { xid, sent_on: connection, sent_at: now, patience_us: 0, before });
        sent.wait_until(deadline);
        self.0 = Some(sent);
    }

    /// Handles a reply. Returns `None` if it answers no ping, or comes from an export other than `export`, the one that the
    /// server gave at the last connect.
    pub(crate) fn handle_reply(&mut self, header: &RpcHeader, export: Option<u64>) -> Option<Answered> {
        // A refusal names no export.
        let is_current = header.export == 0 || Some(header.export) == export;
        if !is_current || header.opcode != Opcode::ObdPing as u32 {
            return None;
        }
        let sent = self.take(header.xid)?;
        Some(Answered {
            xid: header.xid,
            lane: Lane::Control,
            opcode: Opcode::ObdPing,
            sent_at: sent.sent_at,
            sent_once: true,
            sent_on: sent.sent_on,
            control: false,
            tag: Tag(0),
            replay: None,
            in_window: false,
            has_bulk: false,
            waited: (Part::Client, Duration::ZERO),
            started: sent.sent_at,
        })
    }

    /// The server needs until `deadline` for the request with this xid.
    pub(crate) fn handle_early_reply(&mut self, xid: u64, deadline: Time) {
        self.find(xid).into_iter().for_each(|sent| sent.wait_until(deadline));
    }

    /// The connection is lost: whoever has state at the server pings again over the next one.
    pub(crate) fn handle_lost(&mut self) {
        self.0 = None;
    }

    /// Connection on which the ping with this xid was sent.
    pub(crate) fn sent_on(&self, xid: u64) -> Option<u32> {
        self.iter().find(|sent| sent.xid == xid).map(|sent| sent.sent_on)
    }

    /// Returns whether no ping waits for its answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether a ping waits for its answer on this connection.
    pub(crate) fn is_on(&self, connection: u32) -> bool {
        self.iter().any(|sent| sent.sent_on == connection)
    }

    /// Number of pings that wait for their answers.
    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// When the first answer must have come; never if none is awaited on the connection in use.
    pub(crate) fn deadline(&self, current: Option<Connection>) -> Time {
        let on_current = self.iter().filter(|sent| current.is_some_and(|c| c.connection == sent.sent_on));
        on_current.map(Sent::deadline).min().unwrap_or(Time::FAR_FUTURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Nid;

    fn reply(xid: u64, export: u64) -> RpcHeader {
        RpcHeader { xid, export, opcode: Opcode::ObdPing as u32, ..RpcHeader::default() }
    }

    fn sent() -> PingsInFlight {
        let mut ping = PingsInFlight::default();
        ping.handle_sent(7, 2, Time::ZERO, Time::from_secs(11));
        ping
    }

    #[test]
    fn the_reply_to_the_ping_ends_it_and_no_other() {
        let mut ping = sent();
        assert!(ping.handle_reply(&reply(8, 5), Some(5)).is_none());
        assert!(ping.handle_reply(&reply(7, 4), Some(5)).is_none(), "of an export of before");
        assert!(ping.handle_reply(&RpcHeader { opcode: 1, ..reply(7, 5) }, Some(5)).is_none());
        let answered = ping.handle_reply(&reply(7, 5), Some(5)).unwrap();
        assert_eq!((answered.sent_on, answered.opcode), (2, Opcode::ObdPing));
        assert!(ping.handle_reply(&reply(7, 5), Some(5)).is_none(), "a doubled reply");
    }

    #[test]
    fn a_deadline_counts_on_the_connection_in_use_and_early_replies_extend_it() {
        let mut ping = sent();
        let on = |connection| Some(Connection { nid: Nid::LO, export: 5, connection });
        ping.handle_early_reply(8, Time::from_secs(90));
        assert_eq!(ping.deadline(on(2)), Time::from_secs(11));
        ping.handle_early_reply(7, Time::from_secs(30));
        assert_eq!(
            [on(2), on(3), None].map(|c| ping.deadline(c)),
            [Time::from_secs(30), Time::FAR_FUTURE, Time::FAR_FUTURE]
        );
        ping.handle_lost();
        assert_eq!((ping.len(), ping.sent_on(7)), (0, None));
    }

    #[test]
    fn of_several_pings_the_first_deadline_counts() {
        let mut ping = sent();
        ping.handle_sent(9, 2, Time::ZERO, Time::from_secs(20));
        let current = Some(Connection { nid: Nid::LO, export: 5, connection: 2 });
        assert_eq!((ping.len(), ping.deadline(current)), (2, Time::from_secs(11)));
        assert!(ping.handle_reply(&reply(7, 5), Some(5)).is_some());
        assert_eq!((ping.len(), ping.deadline(current)), (1, Time::from_secs(20)));
        ping.handle_sent(10, 2, Time::ZERO, Time::from_secs(30));
        assert!(ping.handle_reply(&reply(10, 5), Some(5)).is_some(), "the latest may be answered first");
        assert_eq!((ping.len(), ping.deadline(current)), (1, Time::from_secs(20)));
    }

    #[test]
    #[should_panic(expected = "a ping has xid 7")]
    fn a_ping_that_is_sent_twice_is_a_defect() {
        sent().handle_sent(7, 2, Time::ZERO, Time::ZERO);
    }
}
