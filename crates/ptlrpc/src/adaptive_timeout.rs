//! Adaptive timeouts: estimates how long a service takes from the times of its recent requests. A sans-IO engine.
//!
//! The estimate is the worst time of the last 600 s, kept in 4 bins. A request may take `estimate x 1.25 + 5 s +
//! network latency`. A server that needs longer sends an early reply 5 s before the deadline, which gives it 30 s more.

use nacre_base::Time;
use nacre_wire::Lane;
use std::time::Duration;

/// Default of `at_min`, the shortest service estimate used.
pub const AT_MIN: Duration = Duration::from_secs(5);
/// The longest service estimate used. A request that takes longer is sent again.
pub const AT_MAX: Duration = Duration::from_secs(600);
/// A measured time counts for this long.
pub const AT_HISTORY: Duration = Duration::from_secs(600);
/// An early reply is sent this long before the deadline.
pub const AT_EARLY_MARGIN: Duration = Duration::from_secs(5);
/// An early reply gives the server this much more time.
pub const AT_EXTRA: Duration = Duration::from_secs(30);

const BINS: usize = 4;
const BIN_NANOS: u64 = AT_HISTORY.as_nanos() as u64 / BINS as u64;

/// Keeps the worst times of the last [`AT_HISTORY`]. The bins are made with the first sample that is not zero, because a node
/// has thousands of services and imports, most of which are idle.
#[derive(Debug, Clone, Default)]
pub struct Estimator(Option<Box<Bins>>);

/// Times are in whole microseconds, rounded up; a time of more than 71 minutes, which is longer than any timeout, counts as 71 minutes.
#[derive(Debug, Clone, Default)]
struct Bins {
    /// Number of the period of the latest sample.
    newest: u32,
    /// The worst time in each of the last periods, by number modulo their number; 0 if nothing was measured in it.
    worst_in: [u32; BINS],
    /// The worst time ever, and when it was measured.
    worst: u32,
    worst_at: Time,
}

const _: () = assert!(size_of::<Bins>() == 32, "each import has one for its network");
const _: () = assert!(AT_MAX.as_micros() < u32::MAX as u128, "estimates fit into 32 bits");

impl Estimator {
    /// A request took `sample`.
    pub fn handle_sample(&mut self, now: Time, sample: Duration) {
        if self.0.is_some() || !sample.is_zero() {
            let micros = u32::try_from(sample.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
            self.0.get_or_insert_default().add(now, micros);
        }
    }

    /// The worst time in the history; zero if there is none.
    pub fn estimate(&self, now: Time) -> Duration {
        if self.0.is_none() {
            return Duration::ZERO;
        }
        self.history(now).into_iter().max().unwrap_or_default()
    }

    /// The worst time ever, and when it was measured.
    pub fn worst(&self) -> (Duration, Time) {
        self.0.as_ref().map(|bins| (Duration::from_micros(bins.worst.into()), bins.worst_at)).unwrap_or_default()
    }

    /// The worst time of each bin that still counts, newest first.
    pub fn history(&self, now: Time) -> [Duration; BINS] {
        let Some(bins) = &self.0 else { return Default::default() };
        let first = (period(now) + 1).saturating_sub(BINS as u32);
        let counting = (first..=bins.newest).rev().take(BINS).map(|period| bins.worst_in[period as usize % BINS]);
        let mut measured = counting.filter(|micros| *micros > 0).map(|micros| Duration::from_micros(micros.into()));
        std::array::from_fn(|_| measured.next().unwrap_or_default())
    }
}

/// An estimator for each lane, made with the first sample that is not zero.
#[derive(Debug, Default)]
pub(crate) struct LaneEstimators(Option<Box<[Estimator; Lane::ALL.len()]>>);

static NO_SAMPLES: Estimator = Estimator(None);

impl LaneEstimators {
    /// A request of this lane took `sample`.
    pub(crate) fn handle_sample(&mut self, lane: Lane, now: Time, sample: Duration) {
        if self.0.is_some() || !sample.is_zero() {
            self.0.get_or_insert_default()[lane as usize].handle_sample(now, sample);
        }
    }

    pub(crate) fn of(&self, lane: Lane) -> &Estimator {
        self.0.as_ref().map_or(&NO_SAMPLES, |lanes| &lanes[lane as usize])
    }
}

impl Bins {
    fn add(&mut self, now: Time, micros: u32) {
        let period = period(now);
        // Of a long pause the last periods count.
        for skipped in (self.newest + 1..=period).rev().take(BINS) {
            self.worst_in[skipped as usize % BINS] = 0;
        }
        self.newest = self.newest.max(period);
        let worst_in = &mut self.worst_in[period as usize % BINS];
        *worst_in = (*worst_in).max(micros);
        if micros >= self.worst {
            (self.worst, self.worst_at) = (micros, now);
        }
    }
}

/// Number of the bin's period that a time is in.
fn period(now: Time) -> u32 {
    u32::try_from(now.0 / BIN_NANOS).expect("32 bits count periods of 150 s for 20,000 years")
}

/// How long a client waits for a service with this estimate, of which at least `at_min` counts, over a network with this latency.
pub fn request_timeout(at_min: Duration, service: Duration, network: Duration) -> Duration {
    let service = service.max(at_min).min(AT_MAX);
    service + service / 4 + Duration::from_secs(5) + network.min(AT_MAX)
}

/// Time by which an early reply may still extend a request that arrived `waited` ago; `None` if its time is used up.
pub(crate) fn extension(waited: Duration) -> Option<Duration> {
    let left = AT_MAX.checked_sub(waited)?;
    let extra = AT_EXTRA.min(left);
    (extra > AT_EARLY_MARGIN).then_some(extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn without_history_the_minimum_counts() {
        assert_eq!(request_timeout(AT_MIN, Duration::ZERO, Duration::ZERO), Duration::from_millis(11_250));
        assert_eq!(request_timeout(AT_MIN, 20 * S, S), 31 * S);
        assert_eq!(request_timeout(40 * S, 20 * S, S), 56 * S);
        assert_eq!(request_timeout(AT_MIN, 9000 * S, Duration::ZERO), 755 * S);
    }

    #[test]
    fn the_worst_of_ten_minutes_counts_and_is_then_forgotten() {
        let mut e = Estimator::default();
        e.handle_sample(Time::from_secs(10), 40 * S);
        e.handle_sample(Time::from_secs(11), S);
        assert_eq!(e.estimate(Time::from_secs(12)), 40 * S);
        e.handle_sample(Time::from_secs(300), 2 * S);
        assert_eq!(e.history(Time::from_secs(300)), [2 * S, 40 * S, Duration::ZERO, Duration::ZERO]);
        assert_eq!(e.estimate(Time::from_secs(599)), 40 * S);
        assert_eq!(e.estimate(Time::from_secs(600)), 2 * S);
        assert_eq!(e.estimate(Time::from_secs(2000)), Duration::ZERO, "silence forgets too");
        assert_eq!(e.worst(), (40 * S, Time::from_secs(10)));
    }

    #[test]
    fn extensions_end_at_the_maximum() {
        assert_eq!(extension(Duration::ZERO), Some(AT_EXTRA));
        assert_eq!(extension(AT_MAX - 10 * S), Some(10 * S));
        assert_eq!(extension(AT_MAX - S), None);
        assert_eq!(extension(AT_MAX + S), None);
    }
}
