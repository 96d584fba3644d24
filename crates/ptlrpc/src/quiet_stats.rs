//! How long connects and pings took: all that an import counts while it is idle. Each import has these counts, so they are small;
//! those of other requests are in `stats`.

use nacre_base::tally::Sums;
use nacre_wire::Opcode;
use std::time::Duration;

/// Response times of connects and pings, in microseconds. A longer time than 71 minutes counts as 71 minutes.
#[derive(Debug)]
pub(crate) struct QuietStats {
    /// The time of the first connect; [`NONE`] before it.
    connect_us: u32,
    /// The sums of all connects, if there were several. Most imports connect once.
    connects: Option<Box<Sums>>,
    pings: u32,
    ping_min_us: u32,
    ping_max_us: u32,
    ping_sum: u64,
    ping_sum_squares: u64,
}

const _: () = assert!(size_of::<QuietStats>() == 40, "each import has one");

/// No time.
const NONE: u32 = u32::MAX;

impl Default for QuietStats {
    fn default() -> QuietStats {
        QuietStats {
            connect_us: NONE,
            connects: None,
            pings: 0,
            ping_min_us: 0,
            ping_max_us: 0,
            ping_sum: 0,
            ping_sum_squares: 0,
        }
    }
}

impl QuietStats {
    /// Counts the response time of a connect or a ping. Returns false for any other request.
    pub(crate) fn count(&mut self, opcode: Opcode, took: Duration) -> bool {
        let micros = u32::try_from(took.as_micros()).map_or(NONE - 1, |micros| micros.min(NONE - 1));
        match opcode {
            Opcode::MgsConnect | Opcode::MdsConnect | Opcode::OstConnect => self.count_connect(micros),
            Opcode::ObdPing => self.count_ping(micros),
            _ => return false,
        }
        true
    }

    /// The sums for an opcode; none if it is not one of a connect or a ping.
    pub(crate) fn get(&self, opcode: Opcode) -> Option<Sums> {
        match opcode {
            Opcode::MgsConnect | Opcode::MdsConnect | Opcode::OstConnect => Some(self.connects()),
            Opcode::ObdPing => Some(self.pings()),
            _ => None,
        }
    }

    fn count_connect(&mut self, micros: u32) {
        if self.connect_us == NONE {
            self.connect_us = micros;
            return;
        }
        let before = self.connects();
        self.connects.get_or_insert_with(|| Box::new(before)).add(micros.into());
    }

    fn connects(&self) -> Sums {
        let mut sums = Sums::default();
        match &self.connects {
            Some(all) => sums = **all,
            None if self.connect_us == NONE => {}
            None => sums.add(self.connect_us.into()),
        }
        sums
    }

    fn count_ping(&mut self, micros: u32) {
        self.ping_min_us = if self.pings == 0 { micros } else { self.ping_min_us.min(micros) };
        self.ping_max_us = self.ping_max_us.max(micros);
        self.pings = self.pings.saturating_add(1);
        self.ping_sum = self.ping_sum.saturating_add(micros.into());
        self.ping_sum_squares = self.ping_sum_squares.saturating_add(u64::from(micros) * u64::from(micros));
    }

    fn pings(&self) -> Sums {
        Sums {
            samples: self.pings.into(),
            min: self.ping_min_us.into(),
            max: self.ping_max_us.into(),
            sum: self.ping_sum,
            sum_squares: self.ping_sum_squares,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_all_times() {
        for opcode in [Opcode::OstConnect, Opcode::ObdPing] {
            let (mut stats, mut sums) = (QuietStats::default(), Sums::default());
            for micros in [70, 0, 66, 4_000_000_000] {
                assert_eq!(stats.get(opcode), Some(sums));
                assert!(stats.count(opcode, Duration::from_micros(micros)));
                sums.add(micros);
            }
            assert_eq!(stats.get(opcode), Some(sums));
        }
    }

    #[test]
    fn other_requests_are_counted_elsewhere() {
        let mut stats = QuietStats::default();
        assert!(!stats.count(Opcode::OstRead, Duration::ZERO));
        assert_eq!(stats.get(Opcode::OstRead), None);
    }
}
