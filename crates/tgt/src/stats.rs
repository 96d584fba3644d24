//! Counts and times of operations, in the format of Lustre's `md_stats` and `obdfilter.*.stats`.

use nacre_base::Timestamp;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The statistics of one target. Cloning shares.
#[derive(Clone)]
pub struct Stats {
    rt: Rt,
    state: Arc<Mutex<State>>,
}

/// What a counter adds up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Microseconds.
    Usecs,
    /// Bytes.
    Bytes,
}

struct State {
    start: Timestamp,
    /// In order of first use, as people like it stable. Few, so a list is fastest.
    counters: Vec<Counter>,
}

struct Counter {
    name: &'static str,
    unit: Unit,
    samples: u64,
    min: u64,
    max: u64,
    sum: u64,
    sum_squares: u64,
}

impl Stats {
    /// All zero, from now on.
    pub fn new(rt: Rt) -> Stats {
        let start = rt.wall();
        Stats { rt, state: Arc::new(Mutex::new(State { start, counters: Vec::new() })) }
    }

    /// Counts one operation that took `time`.
    pub fn time(&self, name: &'static str, time: Duration) {
        self.add(name, Unit::Usecs, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts one transfer of `bytes`.
    pub fn bytes(&self, name: &'static str, bytes: u64) {
        self.add(name, Unit::Bytes, bytes);
    }

    /// Begins anew.
    pub fn clear(&self) {
        let start = self.rt.wall();
        *self.state.lock() = State { start, counters: Vec::new() };
    }

    fn add(&self, name: &'static str, unit: Unit, value: u64) {
        let mut state = self.state.lock();
        let at = match state.counters.iter().position(|c| c.name == name) {
            Some(at) => at,
            None => {
                state.counters.push(Counter { name, unit, samples: 0, min: u64::MAX, max: 0, sum: 0, sum_squares: 0 });
                state.counters.len() - 1
            }
        };
        let counter = &mut state.counters[at];
        counter.samples += 1;
        counter.min = counter.min.min(value);
        counter.max = counter.max.max(value);
        counter.sum = counter.sum.saturating_add(value);
        counter.sum_squares = counter.sum_squares.saturating_add(value.saturating_mul(value));
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, state) = (self.rt.wall(), self.state.lock());
        let nanos = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
        let elapsed = Timestamp::from_nanos((nanos(now) - nanos(state.start)).max(0));
        for (name, t) in [("snapshot_time", now), ("start_time", state.start), ("elapsed_time", elapsed)] {
            write!(f, "\n{name:<36}{}.{:09} secs.nsecs", t.secs, t.nanos)?;
        }
        for c in &state.counters {
            let unit = match c.unit {
                Unit::Usecs => "usecs",
                Unit::Bytes => "bytes",
            };
            let Counter { name, samples, min, max, sum, sum_squares, .. } = c;
            write!(f, "\n{name:<36}{samples} samples [{unit}] {min} {max} {sum} {sum_squares}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_print_as_lustres() {
        let stats = Stats::new(nacre_rt::Sim::new(1).rt());
        stats.time("open", Duration::from_micros(34));
        stats.time("open", Duration::from_micros(66));
        stats.bytes("write_bytes", 4096);
        let text = stats.to_string();
        assert!(text.starts_with("\nsnapshot_time                       "), "{text}");
        assert!(text.contains("\nopen                                2 samples [usecs] 34 66 100 5512"), "{text}");
        assert!(text.contains("\nwrite_bytes                         1 samples [bytes] 4096 4096 4096 16777216"));
        stats.clear();
        assert!(!stats.to_string().contains("open"));
    }
}
