//! Counts and times of a target's operations: `md_stats` and `obdfilter.*.stats`.

use nacre_base::param::value::{Operation, Operations, Unit};
use nacre_base::tally::Tally;
use nacre_rt::{Rt, Since};
use parking_lot::Mutex;
use std::sync::Arc;

/// The statistics of one target. Clones share them.
#[derive(Clone)]
pub struct Stats {
    since: Since,
    /// In the order in which they are shown. The lock is taken to register and to read, not to count.
    tallies: Arc<Mutex<Vec<Registered>>>,
}

struct Registered {
    name: &'static str,
    unit: Unit,
    tally: Arc<Tally>,
}

impl Stats {
    /// Statistics without operations.
    pub fn new(rt: Rt) -> Stats {
        Stats { since: Since::new(rt), tallies: Arc::default() }
    }

    /// The tally of an operation, whose values are in this unit. A service looks its tallies up when it starts, and counts
    /// into them without this lock; operations of one name share a tally.
    pub fn tally(&self, name: &'static str, unit: Unit) -> Arc<Tally> {
        let mut tallies = self.tallies.lock();
        if let Some(found) = tallies.iter().find(|registered| registered.name == name) {
            assert_eq!(found.unit, unit, "{name} is counted in two units");
            return found.tally.clone();
        }
        let tally = Arc::new(Tally::default());
        tallies.push(Registered { name, unit, tally: tally.clone() });
        tally
    }

    /// Resets all counts.
    pub fn clear(&self) {
        self.tallies.lock().iter().for_each(|registered| registered.tally.clear());
        self.since.restart();
    }

    /// Statistics of the operations that have happened.
    pub fn read(&self) -> Operations {
        let tallies = self.tallies.lock();
        let rows = tallies.iter().map(|Registered { name, unit, tally }| {
            let (name, sums) = ((*name).into(), tally.read());
            Operation { name, unit: *unit, sums }
        });
        let rows = rows.filter(|row| row.sums.samples > 0).collect();
        Operations { window: self.since.window(), width: 36, blank_first: true, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;

    #[test]
    fn operations_that_happened_are_shown_until_they_are_cleared() {
        let stats = Stats::new(nacre_rt::Sim::new(1).rt());
        let [open, again] = [(); 2].map(|()| stats.tally("open", Unit::Usecs));
        stats.tally("close", Unit::Usecs);
        open.add(34);
        again.add(66);
        stats.tally("write_bytes", Unit::Bytes).add(4096);
        let text = stats.read().into_value().to_string();
        assert!(text.starts_with("\nsnapshot_time                       "), "{text}");
        assert!(text.contains("\nopen                                2 samples [usecs] 34 66 100 5512"), "{text}");
        assert!(text.contains("\nwrite_bytes                         1 samples [bytes] 4096 4096 4096 16777216"));
        assert!(!text.contains("close"), "{text}");
        stats.clear();
        assert_eq!(stats.read().rows, []);
    }
}
