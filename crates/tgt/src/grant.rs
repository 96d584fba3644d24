//! Grants: promises of space to clients, so that data that they cache dirty can be written later without ENOSPC. The
//! sum of all promises never exceeds the free space.
//!
//! An engine without IO: the caller reports the free space ([`GrantEngine::refresh`]) when it is asked to. Space that a
//! write takes moves from its client's grant to *pending* ([`GrantEngine::reserve`]). When the write is done, it moves
//! out of the space known to be free ([`GrantEngine::finish`]), until the next refresh shows how much the write really
//! took.

use nacre_base::{Time, size::GIB};
use nacre_wire::ost::{BRW_SIZE_DEFAULT, GrantReport};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most bytes that one reply adds to a grant: two full RPCs.
pub const CHUNK_BYTES: u64 = 2 * BRW_SIZE_DEFAULT as u64;
/// Most bytes that one client holds.
pub const EXPORT_GRANT_MAX: u64 = 2 * GIB;
/// The free space is asked for again after this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// With less than this left, the free space is asked for at every write.
const LOW_BYTES: u64 = 32 * CHUNK_BYTES;
/// Promises are multiples of this.
const BLOCK_BYTES: u64 = 4096;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES), "what is added is cut to whole blocks");
const _: () = assert!(CHUNK_BYTES <= EXPORT_GRANT_MAX, "no client may hold what one reply adds");

/// The grants of one target.
#[derive(Debug, Default)]
pub struct GrantEngine {
    /// Promises by export cookie.
    exports: BTreeMap<u64, u64>,
    /// Data that a client holds and has not sent, as it last reported, by export cookie.
    dirty: BTreeMap<u64, u64>,
    /// Sum of the promises in `exports`.
    granted: u64,
    /// Space that writes in progress take, whether it was promised or not.
    pending: u64,
    /// Free space at the last refresh, less the bytes written since.
    available: u64,
    refreshed: Option<Time>,
}

/// Space that a write in progress takes. Must be given to [`GrantEngine::finish`], whether the write succeeds or fails.
#[must_use = "space stays pending until the reservation is finished"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    export: u64,
    from_grant: u64,
    from_free: u64,
}

/// There is not enough space that is not promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSpace;

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The data is stored.
    All,
    /// The write failed. Its space may or may not be taken; the next refresh tells.
    Failed,
}

impl GrantEngine {
    /// Returns whether the caller should ask the device and call [`GrantEngine::refresh`].
    pub fn needs_refresh(&self, now: Time) -> bool {
        self.left() < LOW_BYTES || self.refreshed.is_none_or(|then| now.since(then) >= REFRESH_INTERVAL)
    }

    /// The device has `available` bytes that data can still take.
    pub fn refresh(&mut self, now: Time, available: u64) {
        self.available = available;
        self.refreshed = Some(now);
    }

    /// A client connects and reports the grant that it holds (0 at first). Returns its grant from now on.
    /// `others_are_back` is true if no other client is waited for that may hold a grant from before the target's start.
    pub fn connect(&mut self, export: u64, held: u64, others_are_back: bool) -> u64 {
        self.disconnect(export);
        let granted = round_down(match held {
            0 if others_are_back => CHUNK_BYTES.min(self.left() / 8),
            0 => 0,
            // The client keeps the grant that it held, as far as there is space. It gets no more, because the rest may
            // be promised to clients that come back later.
            held => held.min(EXPORT_GRANT_MAX).min(self.left()),
        });
        self.exports.insert(export, granted);
        self.granted += granted;
        self.assert_covered(granted);
        granted
    }

    /// A client is gone, and its grant with it. Space that its writes in progress take stays pending until they finish.
    pub fn disconnect(&mut self, export: u64) {
        let held = self.exports.remove(&export).unwrap_or(0);
        assert!(held <= self.granted, "a client held {held} bytes of {} that all hold", self.granted);
        self.granted -= held;
        assert!(!self.exports.is_empty() || self.granted == 0, "nobody holds {} bytes", self.granted);
        self.dirty.remove(&export);
    }

    /// Reserves space for a write: `promised` bytes from the client's grant, and `free` bytes of space that is not
    /// promised. Bytes that the client's grant does not cover are also taken from that space.
    pub fn reserve(&mut self, export: u64, promised: u64, free: u64) -> Result<Reservation, NoSpace> {
        let from_grant = promised.min(self.exports.get(&export).copied().unwrap_or(0));
        let from_free = free.saturating_add(promised - from_grant);
        if from_free > self.left() {
            return Err(NoSpace);
        }
        self.take(export, from_grant);
        self.pending += from_grant + from_free;
        self.assert_covered(from_free);
        Ok(Reservation { export, from_grant, from_free })
    }

    /// Reserves space for a replay. It had its space before the target's restart, so it is never refused; but until it is
    /// stored, nobody else may be promised that space.
    pub fn reserve_replay(&mut self, export: u64, bytes: u64) -> Reservation {
        self.pending = self.pending.saturating_add(bytes);
        Reservation { export, from_grant: 0, from_free: bytes }
    }

    /// The write is over. The grant of a failed write goes back to its client.
    pub fn finish(&mut self, reservation: Reservation, written: Written) {
        let Reservation { export, from_grant, from_free } = reservation;
        let taken = from_grant + from_free;
        assert!(taken <= self.pending, "a write gives back {taken} bytes of {} that are pending", self.pending);
        self.pending -= taken;
        match written {
            Written::All => self.available = self.available.saturating_sub(from_grant + from_free),
            Written::Failed => {
                if let Some(grant) = self.exports.get_mut(&export) {
                    *grant += from_grant;
                    self.granted += from_grant;
                }
                self.refreshed = None;
            }
        }
    }

    /// Returns the bytes that the reply to a write adds to the client's grant, after taking its report into account.
    pub fn allocate(&mut self, export: u64, report: &GrantReport) -> u64 {
        let Some(granted) = self.exports.get(&export).copied() else { return 0 };
        self.dirty.insert(export, report.dirty);
        self.take(export, report.dropped.min(granted));
        let granted = granted - report.dropped.min(granted);
        let wanted = report.undirty.min(EXPORT_GRANT_MAX);
        if report.grant >= wanted {
            return 0;
        }
        let ceiling = wanted.saturating_add(CHUNK_BYTES).min(EXPORT_GRANT_MAX).saturating_sub(granted);
        let added = round_down((wanted - report.grant).min(self.left() / 8).min(CHUNK_BYTES).min(ceiling));
        self.exports.insert(export, granted + added);
        self.granted += added;
        self.assert_covered(added);
        // A failed write may have raised the grant above the maximum before.
        let held = granted + added;
        assert!(added == 0 || held <= EXPORT_GRANT_MAX, "a client is given {added} bytes, and holds {held}");
        added
    }

    /// Bytes promised to clients, including those that writes in progress take.
    pub fn total_granted(&self) -> u64 {
        self.granted + self.pending
    }

    /// Bytes that writes in progress take.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Bytes that clients hold and have not sent, as they reported with their last writes.
    pub fn dirty(&self) -> u64 {
        self.dirty.values().fold(0, |sum, dirty| sum.saturating_add(*dirty))
    }

    /// Bytes promised to nobody.
    pub fn left(&self) -> u64 {
        self.available.saturating_sub(self.total_granted())
    }

    /// Whether there is space for all that is promised and in progress. There may not be, because others may use the disk
    /// too, and because replays are not refused.
    pub fn is_covered(&self) -> bool {
        self.total_granted() <= self.available
    }

    /// Panics if bytes were just promised that are not there. Earlier promises may exceed the space, because others use
    /// the disk too.
    fn assert_covered(&self, promised: u64) {
        let total = self.total_granted();
        assert!(promised == 0 || total <= self.available, "{total} bytes are promised of {}", self.available);
    }

    fn take(&mut self, export: u64, bytes: u64) {
        if let Some(grant) = self.exports.get_mut(&export) {
            assert!(bytes <= *grant && *grant <= self.granted, "{bytes} of {grant} bytes, of {}", self.granted);
            *grant -= bytes;
            self.granted -= bytes;
        }
    }
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::{Prng, size::MIB};

    const CLIENT: u64 = 7;

    fn engine(available: u64) -> GrantEngine {
        let mut e = GrantEngine::default();
        e.refresh(Time::ZERO, available);
        e
    }

    fn report(undirty: u64, grant: u64) -> GrantReport {
        GrantReport { dirty: 0, undirty, grant, dropped: 0 }
    }

    /// A failed write gave its space back after its client had been given as much again, and the next reply panicked.
    #[test]
    fn a_client_that_has_more_than_the_most_after_a_failed_write_gets_no_more() {
        let mut e = engine(100 * GIB);
        e.connect(CLIENT, EXPORT_GRANT_MAX, true);
        let failing = e.reserve(CLIENT, CHUNK_BYTES, 0).unwrap();
        assert_eq!(e.allocate(CLIENT, &report(EXPORT_GRANT_MAX, 0)), CHUNK_BYTES);
        e.finish(failing, Written::Failed);
        assert_eq!(e.total_granted(), EXPORT_GRANT_MAX + CHUNK_BYTES);
        assert_eq!(e.allocate(CLIENT, &report(EXPORT_GRANT_MAX, 0)), 0);
    }

    #[test]
    fn dirty_data_is_what_connected_clients_reported_last() {
        let mut e = GrantEngine::default();
        e.refresh(Time::default(), 1 << 30);
        for (export, dirty) in [(1, 8192), (2, 4096), (1, 0), (2, 12_288)] {
            e.connect(export, 0, true);
            e.allocate(export, &GrantReport { dirty, ..report(0, 0) });
        }
        assert_eq!(e.dirty(), 12_288);
        let reservation = e.reserve(1, 0, 4096).unwrap();
        assert_eq!(e.pending(), 4096);
        e.finish(reservation, Written::All);
        e.disconnect(2);
        assert_eq!((e.dirty(), e.pending()), (0, 0));
    }

    #[test]
    fn a_client_grows_to_what_it_wants_in_steps() {
        let mut e = engine(100 * GIB);
        let mut held = e.connect(CLIENT, 0, true);
        assert_eq!(held, CHUNK_BYTES);
        let wanted = 32 * MIB;
        for _ in 0..10 {
            held += e.allocate(CLIENT, &report(wanted, held));
        }
        assert_eq!((held, e.total_granted()), (wanted, wanted));
    }

    /// The first client that came back got all the space, and the data that the second one had cached was lost.
    #[test]
    fn after_a_restart_every_client_gets_what_it_held_before() {
        let mut e = engine(4 * MIB);
        assert_eq!(e.connect(1, MIB, false), MIB);
        assert_eq!(e.connect(2, 0, false), 0);
        assert_eq!(e.connect(3, 2 * MIB, false), 2 * MIB);
        assert_eq!(e.connect(4, 0, true), MIB / 8, "a new client");
        assert_eq!(e.connect(1, MIB, true), MIB, "it reconnects");
        assert_eq!(e.left(), MIB - MIB / 8);
    }

    /// Replays were not counted until they were stored, so that their space could be promised to others.
    #[test]
    fn the_space_of_a_replay_is_promised_to_nobody() {
        let mut e = engine(16 * MIB);
        assert_eq!(e.connect(1, 4 * MIB, false), 4 * MIB);
        let replay = e.reserve_replay(1, 8 * MIB);
        assert_eq!((e.left(), e.total_granted()), (4 * MIB, 12 * MIB));
        assert_eq!(e.reserve(2, 0, 5 * MIB), Err(NoSpace));
        let more = e.reserve_replay(1, 8 * MIB);
        assert!(e.left() == 0 && !e.is_covered(), "it is not refused, whatever is left");
        e.finish(replay, Written::All);
        e.finish(more, Written::Failed);
        assert_eq!((e.left(), e.total_granted()), (4 * MIB, 4 * MIB));
        assert!(e.is_covered());
    }

    #[test]
    fn promised_space_is_kept_from_those_without_a_grant() {
        let mut e = engine(64 * MIB);
        let held = e.connect(CLIENT, 0, true);
        assert_eq!(held, 8 * MIB);
        assert_eq!(e.reserve(99, 0, 57 * MIB), Err(NoSpace));
        let other = e.reserve(99, 0, 56 * MIB).unwrap();
        e.finish(other, Written::All);
        let mine = e.reserve(CLIENT, held, 0).expect("promised");
        e.finish(mine, Written::All);
        assert_eq!((e.left(), e.total_granted()), (0, 0));
    }

    #[test]
    fn a_failed_write_gives_the_grant_back_unless_the_client_is_gone() {
        let mut e = engine(64 * MIB);
        let held = e.connect(CLIENT, 0, true);
        let r = e.reserve(CLIENT, held, 0).unwrap();
        e.finish(r, Written::Failed);
        assert_eq!(e.total_granted(), held);
        let r = e.reserve(CLIENT, held, 0).unwrap();
        e.disconnect(CLIENT);
        e.finish(r, Written::Failed);
        assert_eq!(e.total_granted(), 0);
    }

    #[test]
    fn a_client_that_takes_more_than_its_grant_competes_for_the_rest() {
        let mut e = engine(16 * MIB);
        let held = e.connect(CLIENT, 0, true);
        assert_eq!(e.reserve(CLIENT, 17 * MIB, 0), Err(NoSpace));
        assert_eq!(e.total_granted(), held, "a refused write takes nothing");
    }

    #[test]
    fn promises_never_exceed_the_space_and_sums_agree() {
        for seed in 0..200 {
            let mut random = Prng::new(seed);
            let mut free = random.range(MIB, 4 * GIB);
            let mut e = engine(free);
            let mut in_progress = Vec::new();
            for _ in 0..300 {
                let export = random.below(6);
                let grants_before = e.total_granted();
                match random.below(7) {
                    0 => drop(e.connect(export, random.below(2) * random.below(GIB), random.one_in(2))),
                    1 => e.disconnect(export),
                    2 | 3 => {
                        in_progress.extend(e.reserve(export, random.below(20 * MIB), random.below(MIB)).ok());
                    }
                    4 if !in_progress.is_empty() => {
                        let r: Reservation = in_progress.swap_remove(random.below(in_progress.len() as u64) as usize);
                        let bytes = r.from_grant + r.from_free;
                        assert!(bytes <= free, "seed {seed}: promised what is not there");
                        free -= bytes;
                        e.finish(r, Written::All);
                    }
                    5 => e.refresh(Time::ZERO, free),
                    _ => drop(e.allocate(export, &report(random.below(GIB), random.below(64 * MIB)))),
                }
                assert_eq!(e.granted, e.exports.values().sum::<u64>(), "seed {seed}");
                assert!(e.total_granted() <= free || e.total_granted() <= grants_before, "seed {seed}");
            }
        }
    }
}
