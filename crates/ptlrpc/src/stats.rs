//! How long requests took, by opcode: `*.stats` of imports and services.

use nacre_base::param::value::{Operation, Operations, Unit, Window};
use nacre_base::tally::Sums;
use nacre_base::{Time, Timestamp};
use nacre_wire::Opcode;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long requests took, in microseconds, by opcode.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpStats {
    all: Sums,
    by_opcode: BTreeMap<Opcode, Sums>,
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

    pub(crate) fn get(&self, opcode: Opcode) -> Sums {
        self.by_opcode.get(&opcode).copied().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Sums {
        self.all
    }

    /// Statistics of the opcodes that `which` picks, after the sum of all of them.
    pub(crate) fn operations(&self, now: Time, wall: Timestamp, which: impl Fn(Opcode) -> bool) -> Operations {
        let start = Timestamp::from_nanos(
            i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - i128::from(now.as_nanos()),
        );
        let row = |name: String, sums: Sums| Operation { name: name.into(), unit: Unit::Usecs, sums };
        let picked = || self.by_opcode.iter().filter(|(o, _)| which(**o));
        let mut all = Sums::default();
        picked().for_each(|(_, sums)| all.merge(sums));
        let rows = picked().map(|(o, sums)| row(o.name().to_ascii_lowercase(), *sums));
        let rows = std::iter::once(row("req_waittime".to_owned(), all)).chain(rows).collect();
        let window = Window { now: wall, began: Some((start, now.since(Time::ZERO))) };
        Operations { window, width: 26, blank_first: false, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;

    #[test]
    fn prints_as_lustre_does() {
        let mut s = OpStats::default();
        s.add(Opcode::OstWrite, Duration::from_micros(30));
        s.add(Opcode::OstWrite, Duration::from_micros(10));
        s.add(Opcode::MdsOpen, Duration::from_micros(7));
        let mut twice = s.clone();
        twice.merge(&s);
        assert_eq!(twice.get(Opcode::OstWrite).samples, 4);
        let wall = Timestamp { secs: 1_795_231_197, nanos: 955_716_725 };
        let operations = s.operations(Time::from_secs(2), wall, |o| o == Opcode::OstWrite);
        let want = "\
snapshot_time             1795231197.955716725 secs.nsecs
start_time                1795231195.955716725 secs.nsecs
elapsed_time              2.000000000 secs.nsecs
req_waittime              2 samples [usecs] 10 30 40 1000
ost_write                 2 samples [usecs] 10 30 40 1000";
        assert_eq!(operations.into_value().to_string(), want);
    }
}
