//! Statistics per opcode, as `lctl get_param *.stats` shows them.

use nacre_base::{Time, Timestamp};
use nacre_wire::Opcode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Count, minimum, maximum, sum and sum of squares of durations in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// The shortest, in microseconds.
    pub min_us: u64,
    /// The longest.
    pub max_us: u64,
    /// All together.
    pub sum_us: u64,
    /// Sum of the squares.
    pub sum_squares: u64,
}

impl Tally {
    fn add(&mut self, us: u64) {
        self.min_us = if self.count == 0 { us } else { self.min_us.min(us) };
        self.max_us = self.max_us.max(us);
        self.sum_us = self.sum_us.saturating_add(us);
        self.sum_squares = self.sum_squares.saturating_add(us.saturating_mul(us));
        self.count += 1;
    }

    fn line(&self, name: &str, out: &mut String) {
        let Tally { count, min_us, max_us, sum_us, sum_squares } = self;
        let name = name.to_ascii_lowercase();
        let _ = writeln!(out, "{name:<25} {count} samples [usecs] {min_us} {max_us} {sum_us} {sum_squares}");
    }
}

/// How long requests took, by opcode.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpStats {
    all: Tally,
    by_opcode: BTreeMap<Opcode, Tally>,
}

impl OpStats {
    pub(crate) fn add(&mut self, opcode: Opcode, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.all.add(us);
        self.by_opcode.entry(opcode).or_default().add(us);
    }

    pub(crate) fn merge(&mut self, other: &OpStats) {
        self.all.merge(&other.all);
        other.by_opcode.iter().for_each(|(o, t)| self.by_opcode.entry(*o).or_default().merge(t));
    }

    pub(crate) fn get(&self, opcode: Opcode) -> Tally {
        self.by_opcode.get(&opcode).copied().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Tally {
        self.all
    }

    /// Lustre's form, for the opcodes that `which` picks.
    pub(crate) fn print(&self, now: Time, wall: Timestamp, which: impl Fn(Opcode) -> bool) -> String {
        let mut out = String::new();
        let stamp = |secs: i64, nanos: u32| format!("{secs}.{nanos:09} secs.nsecs");
        let elapsed = now.since(Time::ZERO);
        let start = Timestamp::from_nanos(
            i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - i128::from(now.as_nanos()),
        );
        let _ = writeln!(out, "{:<25} {}", "snapshot_time", stamp(wall.secs, wall.nanos));
        let _ = writeln!(out, "{:<25} {}", "start_time", stamp(start.secs, start.nanos));
        let _ = writeln!(out, "{:<25} {}", "elapsed_time", stamp(elapsed.as_secs() as i64, elapsed.subsec_nanos()));
        let mut all = Tally::default();
        let picked = || self.by_opcode.iter().filter(|(o, _)| which(**o));
        picked().for_each(|(_, t)| all.merge(t));
        all.line("req_waittime", &mut out);
        picked().for_each(|(o, t)| t.line(o.name(), &mut out));
        out
    }
}

impl Tally {
    fn merge(&mut self, other: &Tally) {
        if other.count == 0 {
            return;
        }
        self.min_us = if self.count == 0 { other.min_us } else { self.min_us.min(other.min_us) };
        self.max_us = self.max_us.max(other.max_us);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.sum_squares = self.sum_squares.saturating_add(other.sum_squares);
        self.count += other.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_lustre_does() {
        let mut s = OpStats::default();
        s.add(Opcode::OstWrite, Duration::from_micros(30));
        s.add(Opcode::OstWrite, Duration::from_micros(10));
        s.add(Opcode::MdsOpen, Duration::from_micros(7));
        let mut twice = s.clone();
        twice.merge(&s);
        assert_eq!(twice.get(Opcode::OstWrite).count, 4);
        let wall = Timestamp { secs: 1_795_231_197, nanos: 955_716_725 };
        let text = s.print(Time::from_secs(2), wall, |o| o == Opcode::OstWrite);
        let want = "snapshot_time             1795231197.955716725 secs.nsecs
start_time                1795231195.955716725 secs.nsecs
elapsed_time              2.000000000 secs.nsecs
req_waittime              2 samples [usecs] 10 30 40 1000
ost_write                 2 samples [usecs] 10 30 40 1000
";
        assert_eq!(text, want);
    }
}
