//! Counts of operations on hot paths: an operation's [`Tally`] is found once, when its service starts, and counted into
//! without a lock and without a search.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often something happened, and the sum, extremes and sum of squares of a value of it, such as microseconds or bytes.
/// Each tally fills a cache line of its own, so that threads that count different operations do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Tally {
    samples: AtomicU64,
    /// Bitwise complement of the least value, so that zeros are an empty tally.
    min_complement: AtomicU64,
    max: AtomicU64,
    sum: AtomicU64,
    sum_squares: AtomicU64,
}

/// A [`Tally`] at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// How many values were counted.
    pub samples: u64,
    /// The least value; 0 without samples.
    pub min: u64,
    /// The greatest value.
    pub max: u64,
    /// The sum of all values, at most `u64::MAX`.
    pub sum: u64,
    /// The sum of their squares, at most `u64::MAX`.
    pub sum_squares: u64,
}

impl Tally {
    /// Counts a value.
    pub fn add(&self, value: u64) {
        self.samples.fetch_add(1, Ordering::Relaxed);
        add_saturating(&self.sum, value);
        add_saturating(&self.sum_squares, value.saturating_mul(value));
        // Most values are no extremes, and a load leaves the cache line as it is.
        if self.max.load(Ordering::Relaxed) < value {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
        if self.min_complement.load(Ordering::Relaxed) < !value {
            self.min_complement.fetch_max(!value, Ordering::Relaxed);
        }
    }

    /// Counts an operation that took so long, in microseconds.
    pub fn add_time(&self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// The sums now. A value that is being counted may be in some of them already.
    pub fn read(&self) -> Sums {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let samples = load(&self.samples);
        let min = if samples == 0 { 0 } else { !load(&self.min_complement) };
        Sums { samples, min, max: load(&self.max), sum: load(&self.sum), sum_squares: load(&self.sum_squares) }
    }

    /// Sets all sums to zero.
    pub fn clear(&self) {
        for number in [&self.samples, &self.min_complement, &self.max, &self.sum, &self.sum_squares] {
            number.store(0, Ordering::Relaxed);
        }
    }
}

/// Adds without a compare-and-swap loop. A sum that overflows stays at its maximum.
fn add_saturating(sum: &AtomicU64, value: u64) {
    if sum.load(Ordering::Relaxed) == u64::MAX {
        return;
    }
    let before = sum.fetch_add(value, Ordering::Relaxed);
    if before.checked_add(value).is_none() {
        sum.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Sums {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.merge(&Sums { samples: 1, min: value, max: value, sum: value, sum_squares: value.saturating_mul(value) });
    }

    /// Adds the values that another has counted.
    pub fn merge(&mut self, other: &Sums) {
        if other.samples == 0 {
            return;
        }
        self.min = if self.samples == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
        self.sum_squares = self.sum_squares.saturating_add(other.sum_squares);
        self.samples += other.samples;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_what_sums_count() {
        let (tally, mut sums) = (Tally::default(), Sums::default());
        assert_eq!(tally.read(), sums);
        for value in [34, 0, 66, u64::MAX / 2, u64::MAX / 2, 4096] {
            tally.add(value);
            sums.add(value);
            assert_eq!(tally.read(), sums);
        }
        assert_eq!((sums.samples, sums.min, sums.sum_squares), (6, 0, u64::MAX));
        tally.clear();
        assert_eq!(tally.read(), Sums::default());
        assert_eq!(std::mem::size_of::<Tally>(), 64);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for value in 1..=4 {
                let tally = &tally;
                scope.spawn(move || (0..10_000).for_each(|_| tally.add(value)));
            }
        });
        let want = Sums { samples: 40_000, min: 1, max: 4, sum: 100_000, sum_squares: 300_000 };
        assert_eq!(tally.read(), want);
    }
}
