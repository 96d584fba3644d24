//! The client's half of grants, one for each OST: no byte becomes dirty without a promise of space for its block. The
//! server's half is `tgt::grant`.
//!
//! Grant is in one of these places: available, kept for dirty bytes (their *charge*, whole blocks), with a write under
//! way, or lost and not yet reported. When the server receives a write, it takes exactly the written bytes from its
//! promise; the rest of the write's charge is lost when the write ends, because the device has used it.

use nacre_wire::ost::GrantReport;

/// Most grant that a client asks for: the most that the server gives one client, less a margin.
const WANTED_MAX: u64 = (2 << 30) - (256 << 20);

/// Grant of one OST, in bytes. `held` follows the server's replies, even if they make no sense; the other counts are this
/// client's own.
#[derive(Debug, Default)]
pub(crate) struct DirtyAccount {
    /// Grant promised by the server, less the bytes of writes sent.
    held: u64,
    /// Charge of dirty bytes.
    dirty: u64,
    /// Charge of the writes under way.
    writing: u64,
    /// Bytes of the writes under way: `writing - writing_bytes` is still part of `held`.
    writing_bytes: u64,
    /// Grant lost since the last report to the server.
    dropped: u64,
    /// Bound of `dirty + writing`.
    dirty_max: u64,
    /// Total grant that the client asks the server for.
    wanted: u64,
    /// Number of the connection: a promise ends with its connection.
    connection: u64,
}

/// Grant of a write under way.
#[must_use = "the grant stays with the write until it is told how it ended"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    charge: u64,
    bytes: u64,
    dropped: u64,
    connection: u64,
}

impl DirtyAccount {
    /// Sets the bound of dirty and written bytes (`max_dirty_mb`), and the size and number of RPCs in flight, which
    /// decide how much grant the client asks for.
    pub(crate) fn set_limits(&mut self, dirty_max: u64, rpc_bytes: u64, rpcs_in_flight: u64) {
        self.dirty_max = dirty_max;
        self.wanted = rpc_bytes.saturating_mul(rpcs_in_flight.saturating_add(1)).max(dirty_max).min(WANTED_MAX);
    }

    /// Grant that a connect request reports as held.
    pub(crate) fn told_at_connect(&self) -> u64 {
        // The server may not have received the writes under way. Those that are sent again take their bytes from the promise
        // then; if the server has received one before, it promises more than the client uses, until the next connect.
        self.held.saturating_add(self.writing_bytes)
    }

    /// Sets the grant after a connect, the first or a later one. Dirty bytes may exceed it: they should be written soon,
    /// and compete for space.
    pub(crate) fn handle_connected(&mut self, granted: u64) {
        self.held = granted.saturating_sub(self.writing_bytes);
        self.dropped = 0;
        self.connection += 1;
    }

    /// True if bytes that need `charge` (see `ObjectCache::grant_needed`) may become dirty.
    pub(crate) fn can_dirty(&self, charge: u64) -> bool {
        charge <= self.available() && charge <= self.dirty_max.saturating_sub(self.dirty_and_writing())
    }

    /// True if waiting may help: something is dirty or under way, and its reply may bring grant or its end make room. If
    /// false, the write has to go out at once, without grant.
    pub(crate) fn may_get_more(&self, charge: u64) -> bool {
        charge <= self.dirty_max && self.dirty_and_writing() > 0
    }

    /// Bytes with this charge became dirty.
    pub(crate) fn took(&mut self, charge: u64) {
        assert!(self.can_dirty(charge), "{charge} bytes become dirty without grant or room: {self:?}");
        self.dirty += charge;
        self.assert_kept();
    }

    /// Dirty bytes were dropped; their grant is available again.
    pub(crate) fn freed(&mut self, charge: u64) {
        assert!(charge <= self.dirty, "{charge} bytes of grant are free again: {self:?}");
        self.dirty -= charge;
    }

    /// Moves the grant of a write that is about to be sent, and returns the report to send along. Both arguments are 0
    /// for bytes that were never dirty, which are written without grant; all extents of other writes are FROM_GRANT.
    pub(crate) fn send(&mut self, charge: u64, bytes: u64) -> (GrantReport, Sent) {
        assert!(bytes <= charge && charge <= self.dirty, "{bytes} of {charge}: {self:?}");
        self.dirty -= charge;
        self.writing += charge;
        self.writing_bytes += bytes;
        // The server takes the bytes from the promise as far as it goes, and the rest from free space.
        self.held = self.held.saturating_sub(bytes);
        self.assert_kept();
        let dropped = std::mem::take(&mut self.dropped);
        let report = GrantReport { dirty: self.dirty_and_writing(), undirty: self.wanted, grant: self.held, dropped };
        (report, Sent { charge, bytes, dropped, connection: self.connection })
    }

    /// The write succeeded and its reply brought `granted`. That counts only on the connection on which the write was
    /// sent: the reply to one that was sent again may be the saved reply to the first time, whose grant ended with its
    /// connection. If the server did give it on this connection, it promises more than the client uses, until the next
    /// connect.
    pub(crate) fn written(&mut self, sent: Sent, granted: u64) {
        self.end(&sent);
        self.lose(sent.charge - sent.bytes);
        if sent.connection == self.connection {
            self.held = self.held.saturating_add(granted);
        }
    }

    /// The write failed, and its bytes were dropped.
    pub(crate) fn failed(&mut self, sent: Sent) {
        self.end(&sent);
        if sent.connection == self.connection {
            // The server returns the grant that the write took, and has not seen the report.
            self.held = self.held.saturating_add(sent.bytes);
            self.dropped = self.dropped.saturating_add(sent.dropped);
        }
    }

    /// Grant held, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Grant that is not kept for anything.
    pub(crate) fn available(&self) -> u64 {
        self.held.saturating_sub(self.dirty + self.writing - self.writing_bytes)
    }

    /// Charge of the dirty bytes that no write under way carries.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Charge of dirty bytes and of writes under way.
    pub(crate) fn dirty_and_writing(&self) -> u64 {
        self.dirty + self.writing
    }

    /// Panics unless `dirty`, the charge of the dirty bytes of all objects, equals that of this account.
    pub(crate) fn assert_covers(&self, dirty: u64) {
        self.assert_kept();
        assert_eq!(self.dirty, dirty, "charge of dirty bytes, of the account and of all objects");
    }

    /// While writes are under way, the grant kept for them is never less than their bytes.
    fn assert_kept(&self) {
        assert!(self.writing_bytes <= self.writing, "bytes are on their way without grant: {self:?}");
        assert!(self.writing == 0 || self.writing_bytes > 0, "grant is kept for writes of nothing: {self:?}");
    }

    fn end(&mut self, sent: &Sent) {
        let is_under_way = sent.charge <= self.writing && sent.bytes <= self.writing_bytes;
        assert!(is_under_way && sent.bytes <= sent.charge, "{sent:?} ends: {self:?}");
        assert!(sent.connection <= self.connection, "{sent:?} is from a connection to come: {self:?}");
        self.writing -= sent.charge;
        self.writing_bytes -= sent.bytes;
        self.assert_kept();
    }

    fn lose(&mut self, bytes: u64) {
        let lost = bytes.min(self.held);
        self.held -= lost;
        self.dropped = self.dropped.saturating_add(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::object::ObjectCache;
    use crate::cache::outgoing::{Flush, FlushEnd, FlushWanted};
    use nacre_base::size::{GIB, MIB};
    use nacre_base::{Payload, Prng, Time};
    use nacre_ldlm::Extent;
    use nacre_tgt::grant::{GrantEngine, Reservation, Written};
    use std::time::Duration;

    const EXPORT: u64 = 1;
    const BLOCK: u64 = 4096;

    fn account(granted: u64) -> DirtyAccount {
        let mut account = DirtyAccount::default();
        account.set_limits(64 * MIB, 4 * MIB, 8);
        account.handle_connected(granted);
        account
    }

    #[test]
    fn nothing_becomes_dirty_without_grant_nor_beyond_the_bound() {
        let mut account = account(2 * BLOCK);
        assert!(account.can_dirty(2 * BLOCK) && !account.can_dirty(2 * BLOCK + 1));
        account.took(BLOCK);
        assert!(account.can_dirty(BLOCK) && !account.can_dirty(2 * BLOCK) && account.may_get_more(2 * BLOCK));
        account.set_limits(BLOCK, 4 * MIB, 8);
        assert!(!account.can_dirty(1) && !account.may_get_more(2 * BLOCK));
        account.freed(BLOCK);
        assert!(account.can_dirty(BLOCK) && !account.may_get_more(BLOCK), "nothing to wait for");
    }

    #[test]
    fn the_rest_of_a_block_is_lost_with_the_write_and_reported_with_the_next() {
        let mut account = account(10 * BLOCK);
        account.took(BLOCK);
        let (report, sent) = account.send(BLOCK, 100);
        assert_eq!((report.dirty, report.grant, report.dropped), (BLOCK, 10 * BLOCK - 100, 0));
        assert_eq!(report.undirty, 64 * MIB);
        assert_eq!(account.available(), 9 * BLOCK);
        account.written(sent, 3 * BLOCK);
        assert_eq!((account.held(), account.available()), (12 * BLOCK, 12 * BLOCK));
        let (report, failing) = account.send(0, 0);
        assert_eq!((report.grant, report.dropped), (12 * BLOCK, BLOCK - 100));
        account.failed(failing);
        assert_eq!(account.send(0, 0).0.dropped, BLOCK - 100, "not reported yet");
    }

    #[test]
    fn whatever_a_server_grants_is_counted() {
        let mut account = account(u64::MAX);
        account.took(BLOCK);
        let (_, sent) = account.send(BLOCK, BLOCK);
        account.written(sent, u64::MAX);
        account.handle_connected(u64::MAX);
        let (_, failing) = account.send(0, 0);
        account.failed(failing);
        assert_eq!((account.held(), account.told_at_connect()), (u64::MAX, u64::MAX));
    }

    #[test]
    #[should_panic(expected = "of the account and of all objects")]
    fn charge_that_no_object_has_is_a_defect() {
        let mut account = account(10 * BLOCK);
        account.took(BLOCK);
        account.assert_covers(0);
    }

    #[test]
    #[should_panic(expected = "without grant or room")]
    fn nothing_becomes_dirty_beyond_the_grant() {
        account(BLOCK).took(2 * BLOCK);
    }

    #[test]
    fn a_new_connection_begins_anew_with_what_is_dirty() {
        let mut account = account(10 * BLOCK);
        account.took(6 * BLOCK);
        let (_, sent) = account.send(4 * BLOCK, 4 * BLOCK);
        assert_eq!(account.told_at_connect(), 10 * BLOCK);
        account.handle_connected(5 * BLOCK);
        assert_eq!((account.held(), account.available()), (BLOCK, 0));
        account.failed(sent);
        assert_eq!((account.held(), account.dirty_and_writing()), (BLOCK, 2 * BLOCK));
        assert!(!account.can_dirty(1) && account.can_dirty(0));
    }

    /// The server gave grant with a write's first reply, which was lost with its connection. The write was sent again,
    /// the saved reply came, and the client counted grant that the server had promised on the old connection only.
    #[test]
    fn grant_of_a_saved_reply_ended_with_its_connection() {
        let mut server = GrantEngine::default();
        server.refresh(Time::ZERO, GIB);
        let mut account = account(server.connect(EXPORT, 0, true));
        account.took(4 * BLOCK);
        let (report, sent) = account.send(4 * BLOCK, 4 * BLOCK);
        let reservation = server.reserve(EXPORT, 4 * BLOCK, 0).expect("promised");
        server.finish(reservation, Written::All);
        let granted = server.allocate(EXPORT, &report);
        assert!(granted > 0);
        account.handle_connected(server.connect(EXPORT, account.told_at_connect(), true));
        account.written(sent, granted);
        assert!(account.held() <= server.total_granted(), "{} of {}", account.held(), server.total_granted());
    }

    /// A client that writes, and a server whose other space is taken by a client without grant.
    struct Both {
        random: Prng,
        object: ObjectCache,
        account: DirtyAccount,
        server: GrantEngine,
        /// Free blocks on the device, in bytes.
        free: u64,
        in_flight: Vec<(Flush, Sent, GrantReport, Option<Reservation>)>,
        now: Time,
    }

    impl Both {
        fn write(&mut self) {
            let offset = self.random.below(MIB);
            let len = *self.random.pick(&[1, 100, 5000, 100_000]);
            let charge = self.object.grant_needed(offset, len);
            if self.account.can_dirty(charge) {
                self.object.write(offset, &Payload::zeroes(len as usize), self.now);
                self.account.took(charge);
            }
        }

        fn send(&mut self) {
            let within = [Extent { start: self.random.below(MIB), end: MIB }];
            let within = self.random.one_in(2).then_some(&within[..]);
            let max_bytes = self.random.range(1, 200_000);
            let wanted = FlushWanted { max_bytes, max_extents: 16, within, only_full: false, min_age: Duration::ZERO };
            let Some(flush) = self.object.next_flush(&wanted, self.now) else { return };
            let (report, sent) = self.account.send(flush.charge, flush.bytes);
            self.in_flight.push((flush, sent, report, None));
        }

        /// The server receives a write. There must be space for bytes that the client had grant for.
        fn receive(&mut self) {
            let Some(at) = self.any() else { return };
            let (flush, _, _, reservation) = &mut self.in_flight[at];
            if reservation.is_none() {
                let left = self.server.left();
                *reservation = Some(self.server.reserve(EXPORT, flush.bytes, 0).expect("promised"));
                assert_eq!(self.server.left(), left, "took of what was not promised");
            }
        }

        fn end(&mut self) {
            let Some(at) = self.any() else { return };
            let (flush, sent, report, reservation) = self.in_flight.swap_remove(at);
            let is_written = !self.random.one_in(3);
            match reservation {
                Some(reservation) if is_written => {
                    self.server.finish(reservation, Written::All);
                    self.free -= flush.bytes;
                    let granted = self.server.allocate(EXPORT, &report);
                    self.object.flushed(flush.ticket, FlushEnd::Written, self.now);
                    self.account.written(sent, granted);
                }
                reservation => {
                    reservation.into_iter().for_each(|r| self.server.finish(r, Written::Failed));
                    self.object.flushed(flush.ticket, FlushEnd::Lost, self.now);
                    self.account.failed(sent);
                }
            }
            // Other files are deleted, so that the test does not run out of space.
            self.free += self.random.below(4) * 100_000;
            self.server.refresh(self.now, self.free);
        }

        fn any(&mut self) -> Option<usize> {
            let n = self.in_flight.len() as u64;
            (n > 0).then(|| self.random.below(n) as usize)
        }

        fn take_the_rest(&mut self) {
            if let Ok(reservation) = self.server.reserve(99, 0, self.server.left()) {
                self.server.finish(reservation, Written::All);
                self.free = self.server.total_granted();
                self.server.refresh(self.now, self.free);
            }
        }

        fn drop_some(&mut self) {
            let extent = Extent { start: self.random.below(MIB), end: MIB };
            self.account.freed(self.object.drop_ranges(&[extent]).charge);
        }

        fn check(&self, seed: u64) {
            self.account.assert_covers(self.object.dirty_charge());
            // Grant that the server still counts: for writes that it has not received, and lost grant that was not
            // reported.
            let unheard: u64 = self.in_flight.iter().filter(|f| f.3.is_none()).map(|f| f.0.bytes).sum();
            let unreported: u64 = self.in_flight.iter().map(|f| f.1.dropped).sum();
            let pending: u64 = self.in_flight.iter().filter(|f| f.3.is_some()).map(|f| f.0.bytes).sum();
            let known = self.account.held + unheard + unreported + self.account.dropped;
            assert_eq!(self.server.total_granted() - pending, known, "seed {seed}: both know the same grant");
        }
    }

    #[test]
    fn client_and_server_agree_on_every_byte_of_grant() {
        for seed in 0..100 {
            let mut server = GrantEngine::default();
            let free = GIB;
            server.refresh(Time::ZERO, free);
            let account = account(server.connect(EXPORT, 0, true));
            let (random, now) = (Prng::new(seed), Time::ZERO);
            let mut both =
                Both { random, object: ObjectCache::default(), account, server, free, in_flight: Vec::new(), now };
            for _ in 0..500 {
                match both.random.below(19) {
                    0..8 => both.write(),
                    8..11 => both.send(),
                    11..14 => both.receive(),
                    14..17 => both.end(),
                    17 => both.drop_some(),
                    _ => both.take_the_rest(),
                }
                both.check(seed);
            }
        }
    }
}
