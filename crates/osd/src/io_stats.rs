//! Statistics of a device's requests and commits: counters and histograms. A request is counted when it leaves for the
//! medium. One that goes through a page cache is counted when it is handed over, in the simulator when it is written
//! back. Recording takes one short lock for each request.

use nacre_base::histogram::Histogram;
use parking_lot::Mutex;
use std::time::Duration;

/// Counters of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OsdStats {
    /// Commits that had something to do.
    pub commits_count: u64,
    /// Total time of all commits, in nanoseconds.
    pub commit_nanos_total: u64,
    /// Time of the longest commit, in nanoseconds.
    pub commit_nanos_max: u64,
    /// Longest time for which a commit kept operations from beginning, in nanoseconds.
    pub stall_nanos_max: u64,
}

/// Histograms of a device's requests and commits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoStats {
    /// Reads of data.
    pub reads: IoShapes,
    /// Writes of data; in the simulator also those of a journal and of index pages.
    pub writes: IoShapes,
    /// Commits.
    pub commits: CommitShapes,
}

/// Requests of one direction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoShapes {
    /// Requests by the number under way when they began, themselves included; row n is n.
    pub in_flight: Vec<u64>,
    /// Requests by their time in milliseconds.
    pub millis: Histogram,
    /// Requests by their bytes.
    pub bytes: Histogram,
    /// Exact number of requests of fewer than 128 KiB.
    pub small_count: u64,
    /// Bytes of all requests together.
    pub bytes_total: u64,
}

/// Commits that had something to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommitShapes {
    /// Commits by the milliseconds from the beginning until everything is durable.
    pub millis: Histogram,
    /// Commits by the milliseconds for which they kept operations from beginning.
    pub stall_millis: Histogram,
    /// Commits by the changes of records that they made durable.
    pub changes: Histogram,
}

/// Requests of fewer bytes are small ones.
pub(crate) const SMALL_BYTES: u64 = 128 << 10;
/// Most rows of [`IoShapes::in_flight`]; larger numbers are counted in the last.
const IN_FLIGHT_MAX: usize = 1024;

impl IoShapes {
    /// Requests counted.
    pub fn count(&self) -> u64 {
        self.bytes.total()
    }

    /// A request of `bytes` took `time`, and was one of `in_flight` when it began.
    pub(crate) fn add(&mut self, bytes: u64, time: Duration, in_flight: usize) {
        let row = in_flight.min(IN_FLIGHT_MAX);
        if self.in_flight.len() <= row {
            self.in_flight.resize(row + 1, 0);
        }
        self.in_flight[row] += 1;
        self.millis.add(millis(time));
        self.bytes.add(bytes);
        self.small_count += u64::from(bytes < SMALL_BYTES);
        self.bytes_total += bytes;
    }
}

/// The statistics of an open device. Shared by its threads.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    counters: OsdStats,
    shapes: IoStats,
    /// Reads and writes under way.
    under_way: [usize; 2],
}

/// Direction of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Measurements of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitTimes {
    pub(crate) took: Duration,
    /// Time for which it kept operations from beginning.
    pub(crate) stall: Duration,
    /// Changes of records.
    pub(crate) changes: u64,
}

impl Recorder {
    pub(crate) fn counters(&self) -> OsdStats {
        self.0.lock().counters
    }

    pub(crate) fn shapes(&self) -> IoStats {
        self.0.lock().shapes.clone()
    }

    pub(crate) fn clear_shapes(&self) {
        self.0.lock().shapes = IoStats::default();
    }

    /// A request begins. Returns how many are under way with it.
    pub(crate) fn begin(&self, direction: Direction) -> usize {
        let under_way = &mut self.0.lock().under_way[direction as usize];
        *under_way += 1;
        *under_way
    }

    /// A request that [`Recorder::begin`] counted as one of `in_flight` has ended.
    pub(crate) fn end(&self, direction: Direction, bytes: u64, time: Duration, in_flight: usize) {
        let state = &mut *self.0.lock();
        let under_way = &mut state.under_way[direction as usize];
        assert!(*under_way > 0, "a {direction:?} has ended that did not begin");
        *under_way -= 1;
        let shapes = match direction {
            Direction::Read => &mut state.shapes.reads,
            Direction::Write => &mut state.shapes.writes,
        };
        shapes.add(bytes, time, in_flight);
    }

    pub(crate) fn commit(&self, times: CommitTimes) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let Recorded { counters, shapes, .. } = &mut *self.0.lock();
        counters.commits_count += 1;
        counters.commit_nanos_total = counters.commit_nanos_total.saturating_add(nanos(times.took));
        counters.commit_nanos_max = counters.commit_nanos_max.max(nanos(times.took));
        counters.stall_nanos_max = counters.stall_nanos_max.max(nanos(times.stall));
        shapes.commits.millis.add(millis(times.took));
        shapes.commits.stall_millis.add(millis(times.stall));
        shapes.commits.changes.add(times.changes);
    }
}

/// Milliseconds, rounded up, so that row 0 has the requests that took up to one.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_with_those_under_way_and_small_ones_exactly() {
        let recorder = Recorder::default();
        let first = recorder.begin(Direction::Write);
        let second = recorder.begin(Direction::Write);
        recorder.end(Direction::Write, SMALL_BYTES - 1, Duration::from_micros(1500), first);
        recorder.end(Direction::Write, SMALL_BYTES, Duration::ZERO, second);
        let IoShapes { in_flight, millis, bytes, small_count, bytes_total } = recorder.shapes().writes;
        assert_eq!((in_flight, small_count, bytes_total), (vec![0, 1, 1], 1, 2 * SMALL_BYTES - 1));
        assert_eq!((millis.rows(), bytes.total()), (&[1, 1][..], 2));
        assert_eq!(recorder.begin(Direction::Write), 1, "both have ended");
        recorder.clear_shapes();
        assert_eq!(recorder.shapes(), IoStats::default());
    }

    #[test]
    #[should_panic(expected = "a Read has ended")]
    fn a_request_that_ends_without_having_begun_is_found() {
        let recorder = Recorder::default();
        recorder.begin(Direction::Write);
        recorder.end(Direction::Read, 1, Duration::ZERO, 1);
    }
}
