//! A congestion window with the algorithm that moves it.

use super::cubic::Cubic;
use super::htcp::Htcp;
use super::window::{Ack, Window};
use nacre_base::Time;
use std::time::Duration;

/// The algorithm by which a sender finds how much may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum CongestionControl {
    /// RFC 9438, the default of Linux.
    #[default]
    Cubic,
    /// H-TCP, draft-leith-tcp-htcp.
    HTcp,
}

/// The initial window: RFC 6928.
pub(super) const WINDOW_INITIAL: f64 = 10.0;
/// The least slow start threshold: RFC 5681, section 3.1.
const THRESHOLD_MIN: f64 = 2.0;

/// An algorithm with its state.
#[derive(Debug, Clone)]
enum Algorithm {
    Cubic(Cubic),
    HTcp(Htcp),
}

/// A window and the algorithm that moves it.
#[derive(Debug, Clone)]
pub(super) struct Congestion {
    pub(super) window: Window,
    algorithm: Algorithm,
}

impl Congestion {
    pub(super) fn new(control: CongestionControl) -> Congestion {
        let algorithm = match control {
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionControl::HTcp => Algorithm::HTcp(Htcp::default()),
        };
        Congestion { window: Window { cwnd: WINDOW_INITIAL, ssthresh: f64::INFINITY }, algorithm }
    }

    /// Packets were acknowledged while the whole window was in use.
    pub(super) fn handle_ack(&mut self, ack: &Ack) {
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.handle_ack(&mut self.window, ack),
            Algorithm::HTcp(htcp) => htcp.handle_ack(&mut self.window, ack),
        }
        assert!(self.window.cwnd >= 1.0, "a window of {}", self.window.cwnd);
    }

    /// Packets were lost: sets the threshold. The window follows by [`super::sender`]'s recovery.
    pub(super) fn handle_loss(&mut self, now: Time) {
        let threshold = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.handle_loss(self.window.cwnd),
            Algorithm::HTcp(htcp) => htcp.handle_loss(now, self.window.cwnd),
        };
        self.window.ssthresh = threshold.max(THRESHOLD_MIN);
    }

    /// A retransmission timer has run out: one packet, then slow start (RFC 5681, section 3.1). `is_first` unless the window was
    /// reduced for these losses before.
    pub(super) fn handle_timeout(&mut self, now: Time, is_first: bool) {
        if is_first {
            self.handle_loss(now);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.handle_timeout();
        }
        self.window.cwnd = 1.0;
    }

    /// Nothing was sent for a while: the window is halved for each timeout that passed (RFC 2861, section 3.1, of which Linux has this
    /// part on by default, `tcp_slow_start_after_idle`).
    pub(super) fn handle_idle(&mut self, idle: Duration, timeout: Duration) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.handle_idle(idle);
        }
        if idle <= timeout {
            return;
        }
        self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd * 3.0 / 4.0);
        let restart = self.window.cwnd.min(WINDOW_INITIAL);
        let mut left = idle;
        while left > timeout && self.window.cwnd > restart {
            left -= timeout;
            self.window.cwnd = (self.window.cwnd / 2.0).max(restart);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_window_shrinks_to_the_initial_one() {
        let mut congestion = Congestion::new(CongestionControl::Cubic);
        congestion.window = Window { cwnd: 100.0, ssthresh: 50.0 };
        let ms = Duration::from_millis;
        congestion.handle_idle(ms(200), ms(300));
        assert_eq!(congestion.window.cwnd, 100.0);
        congestion.handle_idle(ms(700), ms(300));
        assert_eq!((congestion.window.cwnd, congestion.window.ssthresh), (25.0, 75.0));
        congestion.handle_idle(ms(70_000), ms(300));
        assert_eq!(congestion.window.cwnd, WINDOW_INITIAL);
    }
}
