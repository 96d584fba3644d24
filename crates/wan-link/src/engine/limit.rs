//! The bound of the bytes inside of an engine.

use crate::link::Shape;
use crate::units::Rate;

/// Bytes in flight on a link without a rate. At ten gigabits a second they last for 100 ms, and the emulator is slower than that.
const WITHOUT_RATE_BYTES: u64 = 128 << 20;
/// Bytes for packets that are due, but were not taken out because the emulator is late.
const LATE_BYTES: u64 = 4 << 20;

/// Most bytes inside: a full queue, what the rate puts on the line in the longest time to arrival, and some for lateness. Each
/// packet also costs some forty bytes of bookkeeping, and a packet of IP has at least twenty bytes; so the memory is at most three times
/// this, and with full packets 1.03 times.
///
/// The limit never shrinks, because packets that a faster or longer link has accepted are still inside after it was changed.
pub(super) struct Limit {
    queue_max: u64,
    nanos_max: u128,
    rate_max: Option<Rate>,
    bytes_max: u64,
}

impl Limit {
    pub(super) fn new(shape: &Shape) -> Limit {
        let mut limit = Limit { queue_max: 0, nanos_max: 0, rate_max: None, bytes_max: 0 };
        limit.grow(shape);
        limit
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Suffices for this shape, too, and for the change to it.
    pub(super) fn grow(&mut self, shape: &Shape) {
        self.queue_max = self.queue_max.max(shape.queue_max);
        self.nanos_max = self.nanos_max.max((shape.delay + shape.jitter).as_nanos());
        self.rate_max = self.rate_max.max(shape.rate);
        let in_flight = self.rate_max.map_or(0, |rate| u128::from(rate.bits()) * self.nanos_max / 8_000_000_000);
        let without_rate = if shape.rate.is_none() { WITHOUT_RATE_BYTES } else { 0 };
        let in_flight = u64::try_from(in_flight).unwrap_or(u64::MAX).max(without_rate);
        let bytes = self.queue_max.saturating_add(in_flight).saturating_add(LATE_BYTES);
        self.bytes_max = self.bytes_max.max(bytes);
    }
}
