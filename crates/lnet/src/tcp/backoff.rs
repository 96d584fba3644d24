//! When a peer may be dialed again: at once the first time, then after pauses that double. A sans-IO engine.

use crate::options::TcpOptions;
use nacre_base::Time;

/// The dialing history of one peer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    /// Dials in a row that failed.
    failures: u32,
    /// No dial before; set by a failure.
    retry_at: Time,
}

impl Backoff {
    pub(super) fn may_dial(&self, now: Time) -> bool {
        now >= self.retry_at
    }

    /// A dial failed. `random` spreads the peers of a server that went away over half the pause.
    pub(super) fn handle_failure(&mut self, now: Time, random: u64, options: &TcpOptions) {
        let doubled = options.reconnect_min.saturating_mul(1 << self.failures.min(16)).min(options.reconnect_max);
        let pause = doubled.mul_f64(0.75 + 0.25 * (random % 1024) as f64 / 1024.0);
        self.failures += 1;
        self.retry_at = now + pause;
    }

    /// A connection stands.
    pub(super) fn handle_success(&mut self) {
        *self = Backoff::default();
    }

    pub(super) fn is_idle(&self) -> bool {
        *self == Backoff::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pauses_double_up_to_the_limit_and_success_forgets() {
        let options = TcpOptions { reconnect_max: Duration::from_secs(60), ..TcpOptions::default() };
        let mut b = Backoff::default();
        assert!(b.may_dial(Time::ZERO));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            b.handle_failure(Time::from_secs(100), 1023, &options);
            assert!(!b.may_dial(Time::from_secs(100)));
            pauses.push((b.retry_at - Time::from_secs(100)).as_millis().div_ceil(100) / 10);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        b.handle_failure(Time::ZERO, 0, &options);
        assert_eq!(b.retry_at - Time::ZERO, Duration::from_secs(45));
        b.handle_success();
        assert!(b.may_dial(Time::ZERO) && b.is_idle());
    }
}
