//! Measures how much data the ways to OSTs far away hold: the rate that programs have reached on them, times a round trip. There is one for
//! each mount, because a mount reaches all OSTs of another site by the same way.
//!
//! A client must ask for that much ahead of a program that reads in order, or the way stands idle. When a stream of reads begins, the client
//! does not know how long it will be, but it knows from earlier streams how much the way holds.
//!
//! Nor may much more be under way: what the way cannot hold waits in front of it, for longer than requests last, and is then sent again.
//! The servers' windows do not prevent that, because they follow what a server can do. Rate and bound find each other as in BBR (RFC draft
//! cardwell-iccrg-bbr-congestion-control): a bound that is too small fills itself, the rate that it allows doubles it, and it stops growing when the way is full.

use crate::inodes::ahead::LOOKUP_AHEAD_KB_MAX;
use nacre_base::Time;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The best rate of so many measurements counts. A program that reads slowly makes low ones, and a way that has become slower only
/// has such.
const MEASUREMENTS: usize = 8;
/// A measurement takes at least so long, and so many round trips: longer than the bursts in which data comes.
const LEAST_TIME: Duration = Duration::from_millis(200);
const ROUND_TRIPS: u32 = 2;
/// The most bytes of one flow that are under way: before anything was measured, and the least of it later.
const FIRST_MOST: u64 = 32 << 20;
const LEAST_MOST: u64 = 16 << 20;
/// And otherwise so many times what the way holds. A request is under way for two round trips if its server asks for the data, and waits
/// for credits before and for its reply after.
const MOST_OF_WAY: u64 = 6;
/// The largest bound that an administrator may set.
pub(crate) const FAR_UNDER_WAY_MB_MAX: u64 = 1 << 20;

/// Requests that share room on a way. Those for which the OST takes the lock may wait there until this client has written what it holds
/// under a lock, so they must not keep room from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Write,
    Read,
    WriteLockless,
    ReadLockless,
}

const FLOWS: usize = 4;

impl Flow {
    /// Writes, under this lock; 0 if the OST is to take one.
    pub(crate) fn write_under(lock: u64) -> Flow {
        if lock == 0 { Flow::WriteLockless } else { Flow::Write }
    }

    /// Reads, under this lock; 0 if the OST is to take one.
    pub(crate) fn read_under(lock: u64) -> Flow {
        if lock == 0 { Flow::ReadLockless } else { Flow::Read }
    }
}

/// The ways of a mount, who waits for room on them, and what is brought ahead over them.
#[derive(Debug)]
pub(crate) struct Far {
    ways: Mutex<FarWays>,
    room: [Notify; FLOWS],
    /// Most KiB of directories' entries that a lookup may bring ahead.
    pub(crate) lookup_ahead_kb: Arc<AtomicU64>,
    /// Most MiB of each flow that an administrator allows under way; 0 for what follows from the ways.
    pub(crate) under_way_mb: Arc<AtomicU64>,
}

impl Default for Far {
    fn default() -> Far {
        let (ways, room, under_way_mb) = Default::default();
        Far { ways, room, lookup_ahead_kb: Arc::new(AtomicU64::new(LOOKUP_AHEAD_KB_MAX)), under_way_mb }
    }
}

/// A request's room on a way.
pub(crate) struct Pass<'a> {
    far: &'a Far,
    flow: Flow,
    bytes: u64,
}

impl Far {
    pub(crate) fn ways(&self) -> &Mutex<FarWays> {
        &self.ways
    }

    /// Waits until there is room for a request of so many bytes. One for which others wait, `urgent`, takes room that is not there.
    pub(crate) async fn enter(&self, flow: Flow, bytes: u64, urgent: bool) -> Pass<'_> {
        let allowed = || Some(self.under_way_mb.load(Ordering::Relaxed) << 20).filter(|bytes| *bytes > 0);
        while !self.ways.lock().enter(flow, bytes, urgent, allowed()) {
            self.room[flow as usize].notified().await;
        }
        // There may be room for one more.
        self.room[flow as usize].notify_one();
        Pass { far: self, flow, bytes }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.far.ways.lock().leave(self.flow, self.bytes);
        self.far.room[self.flow as usize].notify_one();
    }
}

/// The ways to OSTs far away. A sans-IO engine.
#[derive(Debug, Default)]
pub(crate) struct FarWays {
    /// Bytes of requests under way, by flow.
    under_way: [u64; FLOWS],
    /// When the present measurement began, and what was moved since.
    begun: Time,
    bytes: u64,
    /// The last rates, in bytes a second, of which the oldest is replaced next.
    rates: [u64; MEASUREMENTS],
    next: usize,
    /// The latest round trip.
    round_trip: Duration,
}

impl FarWays {
    /// Counts bytes that were read from or written to an OST this far away.
    pub(crate) fn handle_moved(&mut self, bytes: u64, round_trip: Duration, now: Time) {
        self.round_trip = round_trip;
        let (took, least) = (now.since(self.begun), LEAST_TIME.max(round_trip * ROUND_TRIPS));
        if took >= least {
            // After a pause in which nothing was moved the time says nothing.
            if took < 2 * least {
                self.rates[self.next % MEASUREMENTS] = (self.bytes as f64 / took.as_secs_f64()) as u64;
                self.next += 1;
            }
            (self.begun, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// Takes room for a request; false if there is none. A way that is empty takes any request. `allowed` is the number of bytes that an
    /// administrator has set for each flow.
    fn enter(&mut self, flow: Flow, bytes: u64, urgent: bool, allowed: Option<u64>) -> bool {
        let most = allowed.unwrap_or_else(|| self.most());
        let under_way = &mut self.under_way[flow as usize];
        let enters = urgent || *under_way == 0 || *under_way + bytes <= most;
        *under_way += if enters { bytes } else { 0 };
        enters
    }

    fn leave(&mut self, flow: Flow, bytes: u64) {
        let under_way = &mut self.under_way[flow as usize];
        assert!(bytes <= *under_way, "{bytes} bytes of {under_way} are no longer under way");
        *under_way -= bytes;
    }

    /// The most bytes of each flow that are under way.
    fn most(&self) -> u64 {
        match self.bytes_under_way() {
            0 => FIRST_MOST,
            holds => (MOST_OF_WAY * holds).max(LEAST_MOST),
        }
    }

    /// Bytes that are under way while the ways are full; none if nothing was moved yet.
    pub(crate) fn bytes_under_way(&self) -> u64 {
        let best = self.rates.iter().max().copied().unwrap_or_default();
        (best as f64 * self.round_trip.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FAR: Duration = Duration::from_millis(100);

    /// Moves so many bytes every 10 ms for so long.
    fn stream(ways: &mut FarWays, from_ms: u64, for_ms: u64, bytes: u64) {
        for ms in (from_ms..from_ms + for_ms).step_by(10) {
            ways.handle_moved(bytes, FAR, Time::ZERO + Duration::from_millis(ms));
        }
    }

    /// Whole MiB under way.
    fn under_way(ways: &FarWays) -> u64 {
        (ways.bytes_under_way() + MIB / 2) / MIB
    }

    #[test]
    fn the_best_rate_counts_for_a_while() {
        let mut ways = FarWays::default();
        assert_eq!(ways.bytes_under_way(), 0);
        stream(&mut ways, 10_000, 1000, MIB);
        assert_eq!(under_way(&ways), 10);
        stream(&mut ways, 11_000, 1000, MIB / 10);
        assert_eq!(under_way(&ways), 10, "a program that reads slowly");
        stream(&mut ways, 12_000, 2000, MIB / 10);
        assert_eq!(under_way(&ways), 1, "a way that has become slower");
    }

    #[test]
    fn no_more_is_under_way_than_a_few_times_what_the_way_holds() {
        let mut ways = FarWays::default();
        let fill = |ways: &mut FarWays, flow| (0..).take_while(|_| ways.enter(flow, MIB, false, None)).count() as u64;
        assert_eq!(fill(&mut ways, Flow::Write), FIRST_MOST / MIB);
        assert_eq!(fill(&mut ways, Flow::Read), FIRST_MOST / MIB, "each flow has its own room");
        assert!(ways.enter(Flow::Write, MIB, true, None), "a request for which others wait needs no room");
        (0..=FIRST_MOST / MIB).for_each(|_| ways.leave(Flow::Write, MIB));
        stream(&mut ways, 10_000, 1000, MIB);
        assert_eq!(fill(&mut ways, Flow::Write), 60, "the way holds 10 MiB");
        assert!(!ways.enter(Flow::Write, MIB, false, None));
        ways.leave(Flow::Write, MIB);
        assert!(ways.enter(Flow::Write, MIB, false, None));
        let mut slow = FarWays::default();
        stream(&mut slow, 10_000, 1000, MIB / 100);
        assert_eq!(fill(&mut slow, Flow::Write), LEAST_MOST / MIB);
        let mut empty = FarWays::default();
        assert!(empty.enter(Flow::Read, 2 * FIRST_MOST, false, None), "a request may be larger than the room");
        assert!(!empty.enter(Flow::Read, 1, false, None));
        assert!(empty.enter(Flow::Read, 1, false, Some(3 * FIRST_MOST)), "an administrator allows more");
        assert!(!empty.enter(Flow::Read, 1, false, Some(MIB)), "or less");
    }

    #[test]
    fn a_pause_is_no_measurement() {
        let mut ways = FarWays::default();
        stream(&mut ways, 10_000, 150, MIB);
        stream(&mut ways, 60_000, 150, MIB);
        assert_eq!(ways.bytes_under_way(), 0);
    }
}
