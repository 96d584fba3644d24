//! Log of one client's requests at a server, so that each is executed once: the requests that run or wait, and the
//! replies of changes until the client has seen them. A sans-IO engine.
//!
//! A client says for each lane up to which xid it has seen all replies: a request for a lock may wait for minutes, and
//! the replies to all writes since must not be kept for so long.

use nacre_base::{FxHashMap, Nid, Payload, SmallMap, Tag, Time};
use nacre_lnet::Purpose;
use nacre_wire::Lane;
use std::collections::BTreeMap;

/// Address for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) nid: Nid,
    /// Match bits of the request, which name the client's import.
    pub(crate) match_bits: u64,
    /// Lane of the request on the network, which the reply takes, too.
    pub(crate) purpose: Purpose,
}

/// A request as the log needs to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) xid: u64,
    pub(crate) lane: Lane,
    pub(crate) last_xid: u64,
    pub(crate) tag: Tag,
    /// Size of the request in memory, in bytes.
    pub(crate) bytes: usize,
    pub(crate) resent: bool,
    /// True for a request of a recovery. It may come again although the client has seen its reply, because a recovery
    /// that breaks off starts over.
    pub(crate) replay: bool,
    pub(crate) reply_to: ReplyTo,
    pub(crate) at: Time,
    /// Time at which the client gives up, unless an early reply extends it.
    pub(crate) deadline: Time,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Execute it.
    Execute,
    /// The target may have executed the request before its restart: ask it for the saved reply, and execute if it has
    /// none.
    AskTarget,
    /// The request is being executed; its reply will go to the sender of this copy.
    Running,
    /// The request was executed: this is the reply.
    Answered(Payload),
    /// A late duplicate: the client has seen the reply.
    Seen,
    /// The client has too many requests here that run or wait, or too many replies that it has not seen: drop this one,
    /// the client sends it again.
    TooMany,
}

/// An early reply to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Early {
    pub(crate) xid: u64,
    pub(crate) reply_to: ReplyTo,
    /// Additional time for the client to wait, from now.
    pub(crate) wait: std::time::Duration,
}

/// The engine.
#[derive(Default)]
pub(crate) struct RequestLog {
    running: SmallMap<u64, Running>,
    running_bytes: usize,
    lanes: [Answered; Lane::ALL.len()],
}

/// Replies on one lane that the client may not have seen.
#[derive(Default)]
struct Answered {
    /// All replies up to this xid have been seen.
    last_xid: u64,
    /// Made when the first reply is saved: most clients of a server never change anything.
    saved: Option<Box<Saved>>,
}

/// Replies that are kept.
#[derive(Default)]
struct Saved {
    by_xid: BTreeMap<u64, (Tag, Payload)>,
    bytes: usize,
    /// Xid of the saved reply of each modify slot.
    by_tag: FxHashMap<Tag, u64>,
}

struct Running {
    reply_to: ReplyTo,
    lane: Lane,
    tag: Tag,
    bytes: usize,
    replay: bool,
    /// When the latest copy of the request arrived.
    arrived: Time,
    /// Time at which the client gives up, as far as this node knows.
    deadline: Time,
    /// The node has told the client to wait until then. A client that sends the request again has not heard it.
    promised: Time,
}

/// Most requests of a client that run or wait at a time, for a slot, a lock or the end of a recovery. A mount with a
/// few thousand processes that all wait for locks stays below.
const RUNNING_MAX: usize = 16_384;
/// Most bytes of these requests. A full window of requests with inline data is a few MiB.
const RUNNING_BYTES_MAX: usize = 64 << 20;
/// Most replies kept for a client on a lane, and their bytes. None may be dropped before the client has seen it, because
/// the client could send the request again. So beyond that, requests are not taken until the client has seen replies:
/// for that it need only get the answer to its oldest request, which is known here or runs.
const SAVED_MAX: usize = 65_536;
const SAVED_BYTES_MAX: usize = 16 << 20;

impl RequestLog {
    /// A request arrived.
    pub(crate) fn handle_request(&mut self, r: Received) -> Verdict {
        let answered = &mut self.lanes[r.lane as usize];
        answered.handle_seen(r.last_xid.min(r.xid.saturating_sub(1)));
        if let Some(running) = self.running.get_mut(&r.xid) {
            // The client waits anew for this copy, so early replies go on for as long as for a first one. It has not heard what was told
            // before, so only the deadline of this copy counts.
            (running.reply_to, running.arrived) = (r.reply_to, r.at);
            running.deadline = r.deadline;
            return Verdict::Running;
        }
        if let Some((_, reply)) = answered.saved.as_ref().and_then(|saved| saved.by_xid.get(&r.xid)) {
            assert!(r.xid > answered.last_xid, "the reply to xid {} is kept, and the client has seen it", r.xid);
            return Verdict::Answered(reply.clone());
        }
        if r.xid <= answered.last_xid && !r.replay {
            return Verdict::Seen;
        }
        let is_full =
            self.running.len() >= RUNNING_MAX || self.running_bytes.saturating_add(r.bytes) > RUNNING_BYTES_MAX;
        if is_full || answered.is_full() && !r.replay {
            return Verdict::TooMany;
        }
        let Received { reply_to, lane, tag, bytes, replay, at: arrived, deadline, .. } = r;
        self.running_bytes += bytes;
        let promised = Time::ZERO;
        let running = || Running { reply_to, lane, tag, bytes, replay, arrived, deadline, promised };
        self.running.get_or_insert_with(r.xid, running);
        if r.resent && r.tag != Tag(0) { Verdict::AskTarget } else { Verdict::Execute }
    }

    /// The request was executed, or given up; called once. `save` is the reply if it must be kept. Returns the address
    /// for the reply.
    pub(crate) fn handle_executed(&mut self, xid: u64, save: Option<Payload>) -> ReplyTo {
        let running = self.running.remove(&xid).expect("a request runs until it is executed");
        self.running_bytes -= running.bytes;
        let answered = &mut self.lanes[running.lane as usize];
        // There may be more replays than replies that are kept. The target itself knows what was replayed.
        let is_known = running.replay && answered.is_full();
        if let Some(reply) = save.filter(|_| !is_known && xid > answered.last_xid) {
            answered.saved.get_or_insert_default().save(xid, running.tag, reply);
        }
        running.reply_to
    }

    /// Address for the reply to a running request.
    pub(crate) fn reply_to(&self, xid: u64) -> Option<ReplyTo> {
        self.running.get(&xid).map(|r| r.reply_to)
    }

    /// Time at which the client gives up a running request.
    pub(crate) fn deadline(&self, xid: u64) -> Option<Time> {
        self.running.get(&xid).map(|r| r.deadline)
    }

    /// The client will wait for the reply to a running request until `deadline`. Returns the address for telling it.
    pub(crate) fn extend(&mut self, xid: u64, deadline: Time) -> Option<ReplyTo> {
        let running = self.running.get_mut(&xid)?;
        running.deadline = running.deadline.max(deadline);
        running.promised = running.promised.max(deadline);
        Some(running.reply_to)
    }

    /// Requests that run or queue.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Early replies that are due, in the order of their xids, and when the next will be.
    pub(crate) fn handle_time(&mut self, now: Time) -> (Vec<Early>, Time) {
        use crate::adaptive_timeout::{AT_EARLY_MARGIN, extension};
        if self.running.is_empty() {
            // Most clients send a request and then none for long; the table of those that ran would stay.
            self.running = SmallMap::default();
        }
        let (mut due, mut next) = (Vec::new(), Time::FAR_FUTURE);
        for (xid, r) in self.running.iter_mut() {
            // If the deadline has passed, the client has given up or missed an early reply: it will send the request
            // again.
            if r.deadline > now && r.deadline.since(now) <= AT_EARLY_MARGIN {
                let promised = Some(r.promised.since(now)).filter(|wait| *wait > AT_EARLY_MARGIN);
                let Some(wait) = extension(now.since(r.arrived)).max(promised) else { continue };
                r.deadline = now + wait;
                due.push(Early { xid: *xid, reply_to: r.reply_to, wait });
            }
            if r.deadline > now {
                next = next.min(early_at(r.deadline));
            }
        }
        due.sort_by_key(|e| e.xid);
        (due, next)
    }
}

impl Answered {
    fn is_full(&self) -> bool {
        self.saved.as_ref().is_some_and(|saved| saved.by_xid.len() >= SAVED_MAX || saved.bytes >= SAVED_BYTES_MAX)
    }

    fn handle_seen(&mut self, last_xid: u64) {
        self.last_xid = self.last_xid.max(last_xid);
        self.saved.iter_mut().for_each(|saved| saved.handle_seen(self.last_xid));
    }
}

impl Saved {
    fn save(&mut self, xid: u64, tag: Tag, reply: Payload) {
        if tag != Tag(0)
            && let Some(before) = self.by_tag.insert(tag, xid)
        {
            // The client uses a slot again only after it has seen the slot's previous reply.
            let replaced = self.by_xid.remove(&before);
            let (_, replaced) = replaced.unwrap_or_else(|| panic!("xid {before} is the last of {tag:?} and not kept"));
            self.bytes -= replaced.len();
        }
        self.bytes += reply.len();
        let before = self.by_xid.insert(xid, (tag, reply));
        assert!(before.is_none(), "xid {xid} was executed although its reply was kept");
        // Requests that were taken when there was room may all leave a reply.
        let (tags, saved) = (self.by_tag.len(), self.by_xid.len());
        assert!(tags <= saved && saved <= SAVED_MAX + RUNNING_MAX, "{saved} replies are kept, {tags} of modify slots");
    }

    fn handle_seen(&mut self, last_xid: u64) {
        while let Some(oldest) = self.by_xid.first_entry()
            && *oldest.key() <= last_xid
        {
            let (xid, (tag, reply)) = oldest.remove_entry();
            self.bytes -= reply.len();
            let of_tag = self.by_tag.remove(&tag);
            assert!(of_tag == (tag != Tag(0)).then_some(xid), "xid {xid} has {tag:?}, which keeps {of_tag:?}");
        }
    }
}

/// When the early reply for a request with this deadline is due.
pub(crate) fn early_at(deadline: Time) -> Time {
    Time(deadline.0.saturating_sub(crate::adaptive_timeout::AT_EARLY_MARGIN.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn to(node: u32) -> ReplyTo {
        ReplyTo { nid: Nid::sim(node), match_bits: 1, purpose: Purpose::Requests }
    }

    fn received(xid: u64, tag: u16) -> Received {
        let (at, deadline) = (Time::ZERO, Time::from_secs(11));
        let (lane, bytes, resent, replay) = (Lane::Io, 300, false, false);
        Received { xid, lane, last_xid: 0, tag: Tag(tag), bytes, resent, replay, reply_to: to(1), at, deadline }
    }

    fn resent(xid: u64, tag: u16) -> Received {
        Received { resent: true, reply_to: to(2), ..received(xid, tag) }
    }

    /// Replies kept on the I/O lane, and those of modify slots among them.
    fn counts(log: &RequestLog) -> (usize, usize) {
        let Some(io) = &log.lanes[Lane::Io as usize].saved else { return (0, 0) };
        assert_eq!(io.bytes, io.by_xid.values().map(|(_, reply)| reply.len()).sum::<usize>());
        (io.by_xid.len(), io.by_tag.len())
    }

    fn reply(n: u8) -> Payload {
        Payload::from(vec![n])
    }

    #[test]
    fn a_replay_is_answered_again_whatever_the_client_has_seen() {
        let mut log = RequestLog::default();
        let replay = Received { replay: true, ..received(5, 1) };
        assert_eq!(log.handle_request(replay), Verdict::Execute);
        log.handle_executed(5, Some(reply(5)));
        // A later request of the same recovery says that all before it are answered.
        assert_eq!(log.handle_request(Received { last_xid: 8, ..received(9, 0) }), Verdict::Execute);
        assert_eq!(log.handle_request(received(5, 1)), Verdict::Seen);
        assert_eq!(log.handle_request(replay), Verdict::Execute, "the target knows whether it was done");
        assert_eq!(log.handle_request(replay), Verdict::Running);
    }

    #[test]
    fn a_client_has_so_many_requests_in_hand_and_what_is_beyond_comes_again() {
        let mut log = RequestLog::default();
        let most = RUNNING_MAX as u64;
        assert!((1..=most).all(|xid| log.handle_request(received(xid, 0)) == Verdict::Execute));
        assert_eq!(log.handle_request(received(most + 1, 0)), Verdict::TooMany);
        assert_eq!(log.handle_request(received(7, 0)), Verdict::Running, "what is in hand is known");
        log.handle_executed(7, None);
        assert_eq!(log.handle_request(resent(most + 1, 0)), Verdict::Execute);
    }

    #[test]
    fn a_resent_request_that_runs_is_not_run_again_and_answered_where_it_came_from_last() {
        let mut log = RequestLog::default();
        assert_eq!(log.handle_request(received(5, 0)), Verdict::Execute);
        assert_eq!(log.handle_request(received(5, 0)), Verdict::Running, "a duplicate is not flagged");
        assert_eq!(log.handle_request(resent(5, 0)), Verdict::Running);
        assert_eq!(log.handle_executed(5, None), to(2));
        assert_eq!(log.handle_request(resent(5, 0)), Verdict::Execute, "it changed nothing");
    }

    #[test]
    #[should_panic(expected = "until it is executed")]
    fn answering_a_request_twice_is_a_defect() {
        let mut log = RequestLog::default();
        log.handle_request(received(5, 0));
        log.handle_executed(5, None);
        log.handle_executed(5, None);
    }

    #[test]
    fn saved_replies_live_until_the_client_has_seen_them() {
        let mut log = RequestLog::default();
        log.handle_request(received(5, 0));
        log.handle_request(received(6, 0));
        log.handle_executed(5, Some(reply(5)));
        log.handle_executed(6, Some(reply(6)));
        assert_eq!(log.handle_request(resent(5, 0)), Verdict::Answered(reply(5)));
        log.handle_request(Received { last_xid: 5, ..received(7, 0) });
        assert_eq!(log.handle_request(resent(5, 0)), Verdict::Seen);
        assert_eq!(log.handle_request(resent(6, 0)), Verdict::Answered(reply(6)));
        assert_eq!(counts(&log), (1, 0));
    }

    #[test]
    fn a_slot_keeps_one_reply() {
        let mut log = RequestLog::default();
        for xid in 1..=10 {
            assert_eq!(log.handle_request(received(xid, 3)), Verdict::Execute);
            log.handle_executed(xid, Some(reply(xid as u8)));
            assert_eq!(counts(&log), (1, 1));
        }
        assert_eq!(log.handle_request(resent(10, 3)), Verdict::Answered(reply(10)));
        log.handle_request(Received { last_xid: 10, ..received(11, 4) });
        assert_eq!(counts(&log), (0, 0));
    }

    #[test]
    fn a_tagged_resend_that_is_not_known_is_asked_of_the_target() {
        let mut log = RequestLog::default();
        assert_eq!(log.handle_request(resent(5, 1)), Verdict::AskTarget);
        assert_eq!(log.handle_request(resent(5, 1)), Verdict::Running);
        assert_eq!(log.handle_request(resent(6, 0)), Verdict::Execute);
    }

    /// The oldest of too many replies was dropped, and its request was executed twice when the client sent it again.
    #[test]
    fn no_request_is_taken_whose_reply_could_not_be_kept_until_the_client_has_seen_it() {
        let mut log = RequestLog::default();
        let most = SAVED_MAX as u64;
        for xid in 1..=most {
            assert_eq!(log.handle_request(received(xid, 0)), Verdict::Execute);
            log.handle_executed(xid, Some(reply(1)));
        }
        assert_eq!(log.handle_request(received(most + 1, 0)), Verdict::TooMany);
        assert_eq!(log.handle_request(Received { lane: Lane::Cancel, ..received(most + 2, 0) }), Verdict::Execute);
        assert_eq!(log.handle_request(resent(1, 0)), Verdict::Answered(reply(1)));
        let later = Received { last_xid: 1, ..resent(most + 1, 0) };
        assert_eq!(log.handle_request(later), Verdict::Execute);
        let lie = Received { last_xid: u64::MAX, ..received(most + 3, 0) };
        assert_eq!(log.handle_request(lie), Verdict::Execute);
        assert_eq!(counts(&log), (0, 0));
    }

    #[test]
    fn replies_and_requests_of_a_client_take_so_many_bytes() {
        let mut log = RequestLog::default();
        log.handle_request(received(1, 0));
        log.handle_executed(1, Some(Payload::from(vec![0; SAVED_BYTES_MAX])));
        assert_eq!(log.handle_request(received(2, 0)), Verdict::TooMany);
        assert_eq!(log.handle_request(Received { last_xid: 1, ..received(2, 0) }), Verdict::Execute);
        assert_eq!(log.handle_request(Received { bytes: RUNNING_BYTES_MAX, ..received(3, 0) }), Verdict::TooMany);
        log.handle_executed(2, None);
        assert_eq!(log.handle_request(Received { bytes: RUNNING_BYTES_MAX, ..received(3, 0) }), Verdict::Execute);
    }

    #[test]
    fn replays_are_taken_however_many_there_are() {
        let mut log = RequestLog::default();
        for xid in 1..=2 * SAVED_MAX as u64 {
            let replay = Received { replay: true, ..received(xid, 0) };
            assert_eq!(log.handle_request(replay), Verdict::Execute);
            log.handle_executed(xid, Some(reply(1)));
        }
        assert_eq!(counts(&log), (SAVED_MAX, 0));
    }

    /// All replies since the oldest request that waits were kept, and that may be a request for a lock.
    #[test]
    fn replies_on_a_lane_are_seen_although_a_request_on_another_lane_waits() {
        let mut log = RequestLog::default();
        assert_eq!(log.handle_request(Received { lane: Lane::Request, ..received(1, 0) }), Verdict::Execute);
        for xid in 2..10_000 {
            let write = Received { last_xid: xid - 1, ..received(xid, 0) };
            assert_eq!(log.handle_request(write), Verdict::Execute);
            log.handle_executed(xid, Some(reply(1)));
            assert_eq!(counts(&log), (1, 0));
        }
        log.handle_executed(1, None);
        let again = Received { lane: Lane::Request, ..resent(1, 0) };
        assert_eq!(log.handle_request(again), Verdict::Execute, "its reply was lost, and the client waits for it");
    }

    /// A request that had waited for ten minutes got no early replies any more, so its client sent it again over a new
    /// connection each time that its first deadline had passed.
    #[test]
    fn a_request_that_is_sent_again_gets_early_replies_like_a_new_one() {
        let mut log = RequestLog::default();
        log.handle_request(received(5, 0));
        let at = Time::from_secs(700);
        assert_eq!(
            log.handle_request(Received { at, deadline: Time::from_secs(711), ..resent(5, 0) }),
            Verdict::Running
        );
        let (due, _) = log.handle_time(Time::from_secs(706));
        let wait = Duration::from_secs(30);
        assert_eq!(due, [Early { xid: 5, reply_to: to(2), wait }]);
    }

    /// The word that a reply takes half an hour was lost, and the client sent its request again every eleven seconds for as long.
    #[test]
    fn a_client_that_sends_a_request_again_hears_once_more_how_long_the_reply_takes() {
        let mut log = RequestLog::default();
        log.handle_request(received(5, 0));
        log.extend(5, Time::from_secs(1800));
        assert_eq!(log.handle_time(Time::from_secs(6)).0, []);
        let at = Time::from_secs(12);
        log.handle_request(Received { at, deadline: Time::from_secs(23), ..resent(5, 0) });
        let (due, next) = log.handle_time(Time::from_secs(18));
        assert_eq!(due, [Early { xid: 5, reply_to: to(2), wait: Duration::from_secs(1782) }]);
        assert_eq!(next, Time::from_secs(1795));
    }

    #[test]
    fn early_replies_come_before_the_deadline_until_the_maximum() {
        let mut log = RequestLog::default();
        log.handle_request(received(5, 0));
        assert_eq!(log.handle_time(Time::from_secs(1)), (vec![], Time::from_secs(6)));
        let (mut now, mut sent) = (Time::from_secs(6), 0);
        while now < Time::FAR_FUTURE {
            let (due, next) = log.handle_time(now);
            sent += due.len();
            assert!(due.iter().all(|e| e.wait > Duration::from_secs(5)));
            assert!(next > now);
            now = next;
        }
        assert!((20..=25).contains(&sent), "{sent}");
        assert_eq!(log.deadline(5), Some(Time::from_secs(600)));
    }
}
