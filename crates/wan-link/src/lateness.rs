//! How late packets were written, compared with when they were due. It tells whether the emulator itself was overloaded.

use nacre_base::histogram::Histogram;
use serde::{Serialize, Serializer};
use std::time::Duration;

/// Counts of lateness.
#[derive(Debug, Clone, Default)]
pub struct Lateness {
    nanos: Histogram,
    max_nanos: u64,
}

/// The figures of a [`Lateness`], in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatenessFigures {
    /// Mean of all packets.
    pub mean_us: f64,
    /// 99 of 100 packets were not later than this. It is at most twice the exact figure.
    pub p99_us: f64,
    /// The latest packet.
    pub max_us: f64,
}

impl Lateness {
    /// Counts one packet.
    pub fn add(&mut self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.add(nanos);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Mean, percentile and maximum; zeros without packets.
    pub fn figures(&self) -> LatenessFigures {
        let micros = |nanos: f64| (nanos / 100.0).round() / 10.0;
        LatenessFigures {
            mean_us: micros(self.nanos.sum() as f64 / self.nanos.total().max(1) as f64),
            p99_us: micros(self.percentile(99) as f64),
            max_us: micros(self.max_nanos as f64),
        }
    }

    /// A value that `percent` of the packets did not exceed.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.nanos.total()) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let row = self.nanos.rows().iter().position(|&n| {
            seen += u128::from(n);
            seen >= wanted
        });
        row.map_or(0, |row| 1u64.checked_shl(row as u32).unwrap_or(u64::MAX).min(self.max_nanos))
    }
}

impl Serialize for Lateness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.figures().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_leaves_one_in_a_hundred_out() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.figures(), LatenessFigures { mean_us: 0.0, p99_us: 0.0, max_us: 0.0 });
        (0..99).for_each(|_| lateness.add(Duration::from_micros(10)));
        lateness.add(Duration::from_millis(1));
        let figures = lateness.figures();
        assert_eq!((figures.mean_us, figures.max_us), (19.9, 1000.0));
        assert!((10.0..20.0).contains(&figures.p99_us), "{figures:?}");
        lateness.add(Duration::from_millis(1));
        assert_eq!(lateness.figures().p99_us, 1000.0, "not more than the latest");
    }
}
