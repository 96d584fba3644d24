//! How late packets were written, compared with when they were due. It tells whether the emulator itself was overloaded.

use serde::Serialize;
use std::time::Duration;

/// Rows of the histogram for each power of two: a percentile is right to a sixteenth.
const ROWS_PER_POWER: usize = 16;
const POWER_BITS: u32 = ROWS_PER_POWER.trailing_zeros();
const ROWS: usize = (64 - POWER_BITS as usize + 1) * ROWS_PER_POWER;

/// A histogram of lateness, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Lateness {
    rows: Vec<u64>,
    count: u64,
    sum_nanos: u128,
    max_nanos: u64,
}

/// The figures of a [`Lateness`], in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatenessFigures {
    /// Mean of all packets.
    pub mean_us: f64,
    /// 99 of 100 packets were not later than this. It is right to a sixteenth.
    pub p99_us: f64,
    /// The latest packet.
    pub max_us: f64,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { rows: vec![0; ROWS], count: 0, sum_nanos: 0, max_nanos: 0 }
    }
}

impl Lateness {
    /// Counts one packet.
    pub fn add(&mut self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.rows[row_of(nanos)] += 1;
        self.count += 1;
        self.sum_nanos += u128::from(nanos);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Mean, percentile and maximum; zeros without packets.
    pub fn figures(&self) -> LatenessFigures {
        let micros = |nanos: f64| (nanos / 100.0).round() / 10.0;
        LatenessFigures {
            mean_us: micros(self.sum_nanos as f64 / self.count.max(1) as f64),
            p99_us: micros(self.percentile(99) as f64),
            max_us: micros(self.max_nanos as f64),
        }
    }

    /// The value that `percent` of the packets did not exceed.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let row = self.rows.iter().position(|&n| {
            seen += u128::from(n);
            seen >= wanted && seen > 0
        });
        row.map_or(0, |row| last_of(row).min(self.max_nanos))
    }
}

/// The row of a value: values below the number of rows in a power have rows of their own.
fn row_of(nanos: u64) -> usize {
    if nanos < ROWS_PER_POWER as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let within = (nanos >> (power - POWER_BITS)) as usize % ROWS_PER_POWER;
    (power - POWER_BITS + 1) as usize * ROWS_PER_POWER + within
}

/// The greatest value of a row.
fn last_of(row: usize) -> u64 {
    if row < ROWS_PER_POWER {
        return row as u64;
    }
    let (shift, within) = (row / ROWS_PER_POWER - 1, row % ROWS_PER_POWER);
    let first = ((ROWS_PER_POWER + within) as u64) << shift;
    first + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_row() {
        for value in (0..200).chain([1 << 20, (1 << 20) + 1, u64::MAX / 3, u64::MAX]) {
            let row = row_of(value);
            assert!(value <= last_of(row), "{value}");
            assert!(row == 0 || value > last_of(row - 1), "{value}");
        }
    }

    #[test]
    fn the_percentile_leaves_one_in_a_hundred_out() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.figures(), LatenessFigures { mean_us: 0.0, p99_us: 0.0, max_us: 0.0 });
        (0..99).for_each(|_| lateness.add(Duration::from_micros(10)));
        lateness.add(Duration::from_millis(1));
        let figures = lateness.figures();
        assert_eq!((figures.mean_us, figures.max_us), (19.9, 1000.0));
        assert!((10.0..10.7).contains(&figures.p99_us), "{figures:?}");
        lateness.add(Duration::from_millis(1));
        assert!(lateness.figures().p99_us > 900.0);
    }
}
