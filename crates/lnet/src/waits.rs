//! Histograms of the time that messages waited for credits and buffers.

use nacre_base::param::value::Bounds;
use std::time::Duration;

/// Rows of a histogram of waits: the last is of all waits of more than a minute.
pub const WAIT_ROWS: usize = 28;
/// The values of the rows, in microseconds.
pub const WAIT_BOUNDS: Bounds = Bounds::Offsets;

/// Waits of messages that had to wait; those that did not are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// How many waits were of each row's length, by [`WAIT_BOUNDS`].
    pub counts: [u64; WAIT_ROWS],
    /// The sum of all, in microseconds.
    pub total_us: u64,
}

/// [`Waits`] that take no memory before the first of them.
#[derive(Default)]
pub(crate) struct WaitTimes(Option<Box<Waits>>);

impl WaitTimes {
    pub(crate) fn add(&mut self, waited: Duration) {
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let waits = self.0.get_or_insert_default();
        waits.counts[WAIT_BOUNDS.row(us).min(WAIT_ROWS - 1)] += 1;
        waits.total_us = waits.total_us.saturating_add(us);
    }

    pub(crate) fn read(&self) -> Waits {
        self.0.as_deref().copied().unwrap_or_default()
    }
}

impl Waits {
    /// The number of all waits.
    pub(crate) fn plus(mut self, other: &Waits) -> Waits {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.total_us = self.total_us.saturating_add(other.total_us);
        self
    }
}

/// A kind of credit or buffer, and the waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeWaits {
    /// For a credit of the peer that they go to.
    pub peer_credits: Waits,
    /// For a credit of the interface that they leave by.
    pub interface_credits: Waits,
    /// On a router, for a router credit of the peer that they came from.
    pub router_credits: Waits,
    /// On a router, for a buffer of each pool, in the order of [`crate::PoolKind::ALL`].
    pub buffers: [Waits; 3],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_their_length() {
        let mut times = WaitTimes::default();
        assert_eq!(times.read(), Waits::default());
        for us in [0, 1, 3, 1000, 1023, 3_600_000_000] {
            times.add(Duration::from_micros(us));
        }
        let waits = times.read();
        let rows: Vec<_> = waits.counts.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(rows, [(0, &1), (1, &1), (2, &1), (10, &2), (27, &1)]);
        assert_eq!(waits.plus(&waits).total_us, 2 * 3_600_002_027);
    }
}
