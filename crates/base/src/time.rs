//! Points in time as plain numbers, so that engines can be tested at any moment. Clocks are in `rt`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A moment on the runtime's monotonic clock, in nanoseconds since the runtime began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The moment the runtime began.
    pub const ZERO: Time = Time(0);
    /// Later than every deadline.
    pub const FAR_FUTURE: Time = Time(u64::MAX);

    /// A moment `secs` seconds after the runtime began.
    pub const fn from_secs(secs: u64) -> Time {
        Time(secs * 1_000_000_000)
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole nanoseconds since the runtime began.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Wall-clock time as POSIX has it: seconds and nanoseconds since 1970, seconds may be negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// The epoch.
    pub const ZERO: Timestamp = Timestamp { secs: 0, nanos: 0 };

    /// From nanoseconds since the epoch.
    pub fn from_nanos(n: i128) -> Timestamp {
        let secs = n.div_euclid(1_000_000_000);
        let nanos = n.rem_euclid(1_000_000_000);
        Timestamp { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos: nanos as u32 }
    }
}
