//! How many bulk connections the path to a peer is worth. A sans-IO engine: it is told the round trips that the kernel measures.
//!
//! A connection has no more data under way than the kernel's largest send buffer, which is 4 MiB on Linux (`tcp_wmem`), it begins with a few
//! packets, and a loss halves its rate. On a short path none of that matters. On a long path several connections side by side have
//! more under way, grow together, and lose less at a loss.

use nacre_base::Time;
use std::time::Duration;

/// A path gets one connection for each of these in a round trip. With 4 MiB on each connection that is enough for 3 Gbit/s, whatever the length
/// of the path, up to [`CONNECTIONS_MAX`].
const ROUND_TRIP_OF_ONE: Duration = Duration::from_millis(10);
/// A path is short below this, whatever delays a busy machine adds: one connection is enough.
const SHORT: Duration = Duration::from_millis(5);
/// Most connections in each direction: as many as file transfers over long distances commonly use.
pub(super) const CONNECTIONS_MAX: u32 = 16;
/// Shortest time between two looks at a path.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The least of so many round trips counts, because queues lengthen most of them.
const SAMPLES: usize = 4;

/// Bytes that may be under way on one connection of a long path: what its sender has room for.
pub(super) const WINDOW: usize = 4 << 20;

/// BBR paces: it sets a timer for every few packets. Over a long path, where a loss costs other congestion controls a third of their rate or
/// more, that pays. On a short one a node is busy with timers, and carries a quarter less.
const PACES: &str = "bbr";
/// The congestion control in place of one that paces, where a path is worth one connection.
const DOES_NOT_PACE: &str = "cubic";

/// Whether so long a round trip makes a path a long one.
pub(super) fn is_long(round_trip: Duration) -> bool {
    round_trip >= SHORT
}

/// The path to one peer.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The last round trips, of which the oldest is replaced next.
    samples: [Option<Duration>; SAMPLES],
    next: usize,
    /// When to look again.
    look_at: Time,
}

impl Path {
    /// Whether it is time to measure the path again; if so, it will be again only after a while.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.look_at;
        if is_due {
            self.look_at = now + LOOK_INTERVAL;
        }
        is_due
    }

    /// A connection's round trip takes so long now.
    pub(super) fn handle_round_trip(&mut self, round_trip: Duration) {
        self.samples[self.next % SAMPLES] = Some(round_trip);
        self.next += 1;
    }

    /// Bulk connections that the path is worth, in each direction.
    pub(super) fn connections(&self) -> u32 {
        connections_of(self.samples.iter().flatten().min().copied().unwrap_or_default())
    }

    /// Bulk connections that are missing in each direction, of `all` that there are, some of which were opened over a long path. The
    /// others are not for a path that has become long: their congestion control is another, or it remembers the short round trip for seconds.
    /// But a path that only seems long, because of a queue, gives new connections a short handshake again, so that there are never more
    /// than twice as many as the path is worth.
    pub(super) fn missing(&self, all: u32, for_long_paths: u32) -> u32 {
        match self.connections() {
            1 => 1_u32.saturating_sub(all),
            wanted => wanted.saturating_sub(for_long_paths).min((2 * wanted).saturating_sub(all)),
        }
    }

    /// Whether the path is worth more than one connection.
    pub(super) fn is_worth_several(&self) -> bool {
        self.connections() > 1
    }
}

/// Bulk connections that a path with this round trip is worth, in each direction.
pub(crate) fn connections_of(round_trip: Duration) -> u32 {
    if !is_long(round_trip) {
        return 1;
    }
    let wanted = round_trip.as_nanos().div_ceil(ROUND_TRIP_OF_ONE.as_nanos());
    u32::try_from(wanted).unwrap_or(CONNECTIONS_MAX).clamp(1, CONNECTIONS_MAX)
}

/// What connections with near peers have in place of a host's congestion control if that paces.
pub(super) fn congestion_control_that_does_not_pace(of_host: &str) -> &str {
    if of_host.starts_with(PACES) { DOES_NOT_PACE } else { of_host }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(round_trips_ms: &[u64]) -> u32 {
        let mut path = Path::default();
        round_trips_ms.iter().for_each(|ms| path.handle_round_trip(Duration::from_millis(*ms)));
        path.connections()
    }

    #[test]
    fn a_longer_path_has_more_connections() {
        let of = [0, 4, 5, 11, 22, 45, 92, 183, 366, 60_000].map(|ms| after(&[ms]));
        assert_eq!(of, [1, 1, 1, 2, 3, 5, 10, 16, 16, 16]);
        assert_eq!(after(&[]), 1, "a path that was not measured");
    }

    #[test]
    fn only_a_congestion_control_that_paces_is_replaced() {
        assert_eq!(
            ["bbr", "bbr3", "htcp", "cubic"].map(congestion_control_that_does_not_pace),
            ["cubic", "cubic", "htcp", "cubic"]
        );
    }

    #[test]
    fn a_queue_that_lengthens_round_trips_for_a_moment_counts_for_nothing() {
        assert_eq!(after(&[1, 80, 90, 80]), 1);
    }

    #[test]
    fn a_route_that_became_longer_counts_after_four_looks() {
        assert_eq!(after(&[1, 92, 92, 92]), 1);
        assert_eq!(after(&[1, 92, 92, 92, 95]), 10);
        assert_eq!(after(&[92, 92, 92, 92, 11]), 2, "one that became shorter counts at once");
    }

    #[test]
    fn a_path_that_has_become_long_gets_new_connections_and_a_shorter_one_none() {
        let path = |ms| {
            let mut path = Path::default();
            path.handle_round_trip(Duration::from_millis(ms));
            path
        };
        assert_eq!([(0, 0), (1, 0), (10, 10), (11, 10)].map(|(all, long)| path(1).missing(all, long)), [1, 0, 0, 0]);
        assert_eq!([(0, 0), (1, 0), (10, 9), (11, 10)].map(|(all, long)| path(92).missing(all, long)), [10, 10, 1, 0]);
        assert_eq!([2, 3, 4, 5].map(|all| path(11).missing(all, 0)), [2, 1, 0, 0], "a queue, and not a long path");
        assert_eq!([1, 10, 11, 92].map(|ms| path(ms).is_worth_several()), [false, false, true, true]);
    }

    #[test]
    fn looks_keep_their_distance() {
        let mut path = Path::default();
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        assert_eq!([0, 1, 99, 100, 150, 300].map(|ms| path.is_due(at(ms))), [true, false, false, true, false, true]);
    }
}
