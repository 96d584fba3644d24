//! Measures how much data the ways to OSTs far away hold: the rate that programs have reached on them, times a round trip. A sans-IO engine,
//! one for each mount, because a mount reaches all OSTs of another site by the same way.
//!
//! A client must ask for that much ahead of a program that reads in order, or the way stands idle. When a stream of reads begins, the client
//! does not know how long it will be, but it knows from earlier streams how much the way holds.

use nacre_base::Time;
use std::time::Duration;

/// The best rate of so many measurements counts. A program that reads slowly makes low ones, and a way that has become slower only
/// has such.
const MEASUREMENTS: usize = 8;
/// A measurement takes at least so long, and so many round trips: longer than the bursts in which data comes.
const LEAST_TIME: Duration = Duration::from_millis(200);
const ROUND_TRIPS: u32 = 2;

/// The ways to OSTs far away.
#[derive(Debug, Default)]
pub(crate) struct FarWays {
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
    fn a_pause_is_no_measurement() {
        let mut ways = FarWays::default();
        stream(&mut ways, 10_000, 150, MIB);
        stream(&mut ways, 60_000, 150, MIB);
        assert_eq!(ways.bytes_under_way(), 0);
    }
}
