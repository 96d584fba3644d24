//! Leases of clients, which servers ask for instead of probing each silent client (decision 0031). A client holds a lease
//! while it is connected to the MGS, and renews the lease with each request. The lease ends when the client leaves, when the
//! client is silent and its node does not answer a probe, or when a server has evicted the client.

use nacre_base::{Time, Uuid};
use nacre_lnet::MAX_PAYLOAD;
use nacre_ptlrpc::LEASE;
use nacre_wire::mgs::{LeaseQuery, LeaseReply};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The last ends of leases that are kept for servers that ask. A server that was away for more asks for every client.
const ENDED_MAX: usize = 1 << 15;
const _: () = assert!((ENDED_MAX + LeaseQuery::ASKED_MAX) * 16 < MAX_PAYLOAD / 8 * 7, "a reply has room for them");

/// The leases of one start of the MGS. A sans-IO engine.
pub(crate) struct Leases {
    epoch: u64,
    began: Time,
    /// Clients, each with its export. A client that connects anew has two exports for a moment. The exports themselves are
    /// not asked, because an answer must be of the same moment as the number of ends in it.
    holders: BTreeSet<(Uuid, u64)>,
    /// Clients that a server has evicted and that are not connected, with the time of the report: when they come, they must hear
    /// of it.
    unaware: BTreeMap<Uuid, Time>,
    /// Time of the last removal of old entries from `unaware`.
    swept: Time,
    /// Clients whose leases ended, oldest first.
    ended: VecDeque<Uuid>,
    /// Number of all leases that ended.
    ended_upto: u64,
}

impl Leases {
    /// The leases of the start `epoch`, which began at `now`.
    pub(crate) fn new(epoch: u64, now: Time) -> Leases {
        let (holders, unaware, ended) = Default::default();
        Leases { epoch, began: now, holders, unaware, swept: now, ended, ended_upto: 0 }
    }

    /// The client has connected over this export.
    pub(crate) fn begin(&mut self, client: Uuid, export: u64) {
        self.holders.insert((client, export));
    }

    /// The client asks for news. Returns whether its lease must end now, because it does not know yet that a server has
    /// evicted it.
    #[must_use]
    pub(crate) fn handle_asking(&mut self, client: Uuid, now: Time) -> bool {
        // A client that comes later than that has pinged its servers meanwhile, because it could not renew its lease.
        self.unaware.remove(&client).is_some_and(|reported| now.since(reported) < LEASE)
    }

    /// A server has evicted this client. Returns whether the client has a lease, which must end. If it has none, perhaps because
    /// it has not found this start of the MGS yet, it will hear of it when it comes.
    #[must_use]
    pub(crate) fn handle_evicted(&mut self, client: Uuid, now: Time) -> bool {
        let is_held = self.is_held(client);
        if !is_held {
            self.note_unaware(client, now);
        }
        is_held
    }

    /// The client must hear that a server has evicted it, when it comes.
    pub(crate) fn note_unaware(&mut self, client: Uuid, now: Time) {
        // Not at each report, because servers report thousands at once.
        if now.since(self.swept) >= LEASE / 8 {
            self.unaware.retain(|_, reported| now.since(*reported) < LEASE);
            self.swept = now;
        }
        if self.unaware.len() < ENDED_MAX {
            self.unaware.insert(client, now);
        }
    }

    /// The export is gone. Returns whether the client's lease ends with it.
    pub(crate) fn end(&mut self, client: Uuid, export: u64) -> bool {
        let ends = self.holders.remove(&(client, export)) && !self.is_held(client);
        if ends {
            self.ended.push_back(client);
            self.ended_upto += 1;
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
        assert!(self.ended.len() as u64 <= self.ended_upto, "more ends are kept than there were");
        ends
    }

    fn is_held(&self, client: Uuid) -> bool {
        self.holders.range((client, 0)..=(client, u64::MAX)).next().is_some()
    }

    /// Number of leases that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended_upto
    }

    /// Returns whether there is an answer to this question before its time is over.
    pub(crate) fn has_news(&self, query: &LeaseQuery) -> bool {
        !query.asked.is_empty()
            || !query.evicted.is_empty()
            || query.epoch != self.epoch
            || query.heard != self.ended_upto
    }

    /// The answer at `now`.
    pub(crate) fn answer(&self, query: &LeaseQuery, now: Time) -> LeaseReply {
        let settled = now.since(self.began) >= LEASE;
        let is_held = |client: &&Uuid| !settled || self.is_held(**client);
        let heard = if query.epoch == self.epoch { query.heard.min(self.ended_upto) } else { self.ended_upto };
        let news = (self.ended_upto - heard) as usize;
        let known = news.min(self.ended.len());
        LeaseReply {
            epoch: self.epoch,
            ended_upto: self.ended_upto,
            ended: self.ended.range(self.ended.len() - known..).copied().collect(),
            missed: query.epoch != self.epoch || known < news,
            held: query.asked.iter().take(LeaseQuery::ASKED_MAX).filter(is_held).copied().collect(),
            settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: fn(u8) -> Uuid = |n| Uuid([n; 16]);
    const LATE: Time = Time(10 * LEASE.as_nanos() as u64);

    fn ask(heard: u64, asked: &[u8]) -> LeaseQuery {
        LeaseQuery { epoch: 7, heard, asked: asked.iter().map(|n| CLIENT(*n)).collect(), ..LeaseQuery::default() }
    }

    fn three() -> Leases {
        let mut leases = Leases::new(7, Time::ZERO);
        (1..=3).for_each(|n| leases.begin(CLIENT(n), n.into()));
        leases
    }

    #[test]
    fn those_who_are_connected_hold_a_lease() {
        let mut leases = three();
        assert!(leases.end(CLIENT(2), 2));
        let answer = leases.answer(&ask(0, &[1, 2, 4]), LATE);
        assert_eq!((answer.held, answer.ended, answer.ended_upto), (vec![CLIENT(1)], vec![CLIENT(2)], 1));
        assert!(answer.settled && !answer.missed);
    }

    #[test]
    fn a_client_that_connects_anew_keeps_its_lease() {
        let mut leases = three();
        leases.begin(CLIENT(2), 12);
        assert!(!leases.end(CLIENT(2), 2));
        assert!(!leases.end(CLIENT(2), 2), "that export is gone already");
        assert!(leases.end(CLIENT(2), 12));
    }

    #[test]
    fn who_has_heard_of_all_ends_waits_for_the_next() {
        let mut leases = three();
        leases.end(CLIENT(1), 1);
        assert!(leases.has_news(&ask(0, &[])) && !leases.has_news(&ask(1, &[])));
        leases.end(CLIENT(2), 2);
        assert_eq!(leases.answer(&ask(1, &[]), LATE).ended, [CLIENT(2)]);
        assert!(leases.answer(&ask(99, &[]), LATE).ended.is_empty(), "nobody can have heard of so many");
    }

    /// Otherwise an idle client that was evicted before it found the new MGS would never hear of it.
    #[test]
    fn an_evicted_client_that_is_not_there_hears_of_it_when_it_comes() {
        let mut leases = three();
        assert!(leases.handle_evicted(CLIENT(1), LATE), "it is there");
        assert!(!leases.handle_evicted(CLIENT(4), LATE) && !leases.handle_evicted(CLIENT(5), LATE));
        assert!(leases.handle_asking(CLIENT(4), LATE));
        assert!(!leases.handle_asking(CLIENT(4), LATE), "once");
        assert!(!leases.handle_evicted(CLIENT(6), LATE + LEASE));
        assert!(!leases.handle_asking(CLIENT(5), LATE + LEASE), "it has pinged its servers meanwhile");
    }

    /// Clients that have not come back to a new MGS are not dead.
    #[test]
    fn at_first_everybody_holds_a_lease() {
        let leases = three();
        let early = leases.answer(&ask(0, &[1, 9]), Time::from_secs(LEASE.as_secs() - 1));
        assert_eq!((early.held.len(), early.settled), (2, false));
        assert_eq!(leases.answer(&ask(0, &[1, 9]), LATE).held, [CLIENT(1)]);
    }

    #[test]
    fn what_was_heard_from_another_start_does_not_count() {
        let mut leases = three();
        leases.end(CLIENT(1), 1);
        let other = LeaseQuery { epoch: 6, ..ask(1, &[]) };
        assert!(leases.has_news(&other));
        let answer = leases.answer(&other, LATE);
        assert!(answer.missed && answer.ended.is_empty() && answer.ended_upto == 1);
    }

    #[test]
    fn who_was_away_for_too_long_has_missed_some() {
        let mut leases = Leases::new(7, Time::ZERO);
        for export in 0..ENDED_MAX as u64 + 10 {
            leases.begin(CLIENT(1), export);
            leases.end(CLIENT(1), export);
        }
        let answer = leases.answer(&ask(5, &[]), LATE);
        assert!(answer.missed && answer.ended.len() == ENDED_MAX);
        assert!(!leases.answer(&ask(10, &[]), LATE).missed);
    }
}
