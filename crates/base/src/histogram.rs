//! Histograms, and histograms that several threads count into.

use crate::param::value::{Bounds, Column};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts by powers of two: row 0 counts the values 0 and 1, row n those above 2^(n-1) and up to 2^n.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    rows: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        let row = Bounds::Powers.row(value);
        if self.rows.len() <= row {
            self.rows.resize(row + 1, 0);
        }
        self.rows[row] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// The counts.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.rows.iter().sum()
    }

    /// The sum of all values, at most `u64::MAX`.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The histogram as a column of a table.
    pub fn column(&self, name: &'static str) -> Column {
        Column { name, counts: self.rows.clone(), sum: Some(self.sum) }
    }
}

/// A histogram on a hot path: counting takes two atomic additions and no lock.
#[derive(Debug)]
pub struct SharedHistogram {
    bounds: Bounds,
    /// The last row has all greater values, too.
    rows: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl SharedHistogram {
    /// Room for values up to `greatest`.
    pub fn new(bounds: Bounds, greatest: u64) -> SharedHistogram {
        let rows = (0..=bounds.row(greatest)).map(|_| AtomicU64::new(0)).collect();
        SharedHistogram { bounds, rows, sum: AtomicU64::new(0) }
    }

    /// Counts one value.
    pub fn add(&self, value: u64) {
        let row = self.bounds.row(value).min(self.rows.len() - 1);
        self.rows[row].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Sets all rows to zero.
    pub fn clear(&self) {
        self.rows.iter().chain([&self.sum]).for_each(|number| number.store(0, Ordering::Relaxed));
    }

    /// The counts now. Panics unless the histogram counts by [`Bounds::Powers`], as a [`Histogram`] does.
    pub fn read(&self) -> Histogram {
        assert_eq!(self.bounds, Bounds::Powers, "rows of other values");
        let Column { counts, sum, .. } = self.column("");
        Histogram { rows: counts, sum: sum.unwrap_or_default() }
    }

    /// The histogram as a column of a table, up to its last row that counted something.
    pub fn column(&self, name: &'static str) -> Column {
        let mut counts: Vec<u64> = self.rows.iter().map(|row| row.load(Ordering::Relaxed)).collect();
        counts.truncate(counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1));
        Column { name, counts, sum: Some(self.sum.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_powers_of_two() {
        let mut histogram = Histogram::default();
        [0, 1, 2, 3, 4, 5, 1 << 20].into_iter().for_each(|v| histogram.add(v));
        assert_eq!(histogram.rows()[..4], [2, 1, 2, 1]);
        assert_eq!((histogram.rows().len(), histogram.rows()[20], histogram.total()), (21, 1, 7));
        assert_eq!(histogram.column("read").sum, Some(15 + (1 << 20)));
        histogram.add(u64::MAX);
        assert_eq!(histogram.rows().len(), 65);
    }

    #[test]
    fn a_shared_histogram_has_the_same_rows_and_a_last_one_for_what_is_too_great() {
        let (shared, mut alone) = (SharedHistogram::new(Bounds::Powers, 1 << 20), Histogram::default());
        for value in [0, 1, 2, 3, 4, 5, 1 << 20] {
            shared.add(value);
            alone.add(value);
        }
        assert_eq!(shared.column("read"), alone.column("read"));
        assert_eq!(shared.read(), alone);
        shared.clear();
        assert_eq!(shared.column("read").counts, []);
        assert_eq!(shared.read(), Histogram::default());
        let exact = SharedHistogram::new(Bounds::From(0), 2);
        [0, 1, 1, 2, 9].into_iter().for_each(|value| exact.add(value));
        assert_eq!(exact.column("write"), Column { name: "write", counts: vec![1, 2, 2], sum: Some(13) });
    }

    #[test]
    fn every_value_is_in_the_row_whose_greatest_value_is_not_less() {
        for bounds in [Bounds::From(0), Bounds::From(1), Bounds::Powers, Bounds::Offsets] {
            for value in 1..=40 {
                let row = bounds.row(value);
                assert!(value <= bounds.greatest(row), "{value} in {bounds:?}");
                assert!(row == 0 || value > bounds.greatest(row - 1), "{value} in {bounds:?}");
            }
        }
    }
}
