//! The clock of both directions.

use nacre_base::Time;
use std::time::Instant;

/// A monotonic clock that begins at zero.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    #[allow(clippy::new_without_default)] // Reading the world's clock should be seen where it happens.
    pub fn new() -> Clock {
        Clock(Instant::now())
    }

    /// Time since the clock began.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
