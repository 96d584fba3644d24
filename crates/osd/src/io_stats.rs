//! Statistics of a device's requests and commits: counters and histograms. A request is counted when it leaves for the
//! medium. One that goes through a page cache is counted when it is handed over, in the simulator when it is written
//! back. A device on a disk counts without a lock, so its threads do not wait for each other.

use nacre_base::histogram::{Histogram, SharedHistogram};
use nacre_base::param::value::Bounds;
use nacre_base::tally::Tally;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
pub(crate) struct Recorder {
    /// Reads and writes under way.
    under_way: [UnderWay; 2],
    /// Histograms of reads and of writes, made for the first request of their direction: the simulator counts its
    /// requests elsewhere, and has thousands of devices.
    shapes: [OnceLock<Box<SharedShapes>>; 2],
    /// Nanoseconds that commits took.
    commit_nanos: Tally,
    /// Nanoseconds for which commits kept operations from beginning.
    stall_nanos: Tally,
    commits: SharedCommitShapes,
}

/// Number of requests of one direction under way, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct UnderWay(AtomicUsize);

/// [`IoShapes`] while they count.
#[derive(Debug)]
struct SharedShapes {
    in_flight: SharedHistogram,
    millis: SharedHistogram,
    bytes: SharedHistogram,
    /// Requests of fewer than 128 KiB that are in the same row of `bytes` as those of 128 KiB.
    small_in_row: AtomicU64,
}

/// [`CommitShapes`] while they count.
#[derive(Debug)]
struct SharedCommitShapes {
    millis: SharedHistogram,
    stall_millis: SharedHistogram,
    changes: SharedHistogram,
}

/// A histogram of any values by powers of two.
fn by_powers() -> SharedHistogram {
    SharedHistogram::new(Bounds::Powers, u64::MAX)
}

impl Default for SharedShapes {
    fn default() -> SharedShapes {
        SharedShapes {
            in_flight: SharedHistogram::new(Bounds::From(0), IN_FLIGHT_MAX as u64),
            millis: by_powers(),
            bytes: by_powers(),
            small_in_row: AtomicU64::new(0),
        }
    }
}

impl Default for SharedCommitShapes {
    fn default() -> SharedCommitShapes {
        SharedCommitShapes { millis: by_powers(), stall_millis: by_powers(), changes: by_powers() }
    }
}

impl SharedShapes {
    fn add(&self, bytes: u64, time: Duration, in_flight: usize) {
        self.in_flight.add(in_flight as u64);
        self.millis.add(millis(time));
        self.bytes.add(bytes);
        if (SMALL_BYTES / 2 + 1..SMALL_BYTES).contains(&bytes) {
            self.small_in_row.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) -> IoShapes {
        let bytes = self.bytes.read();
        let smaller: u64 = bytes.rows().iter().take(Bounds::Powers.row(SMALL_BYTES)).sum();
        IoShapes {
            in_flight: self.in_flight.column("").counts,
            millis: self.millis.read(),
            small_count: smaller + self.small_in_row.load(Ordering::Relaxed),
            bytes_total: bytes.sum(),
            bytes,
        }
    }

    fn clear(&self) {
        [&self.in_flight, &self.millis, &self.bytes].into_iter().for_each(SharedHistogram::clear);
        self.small_in_row.store(0, Ordering::Relaxed);
    }
}

impl SharedCommitShapes {
    fn read(&self) -> CommitShapes {
        CommitShapes {
            millis: self.millis.read(),
            stall_millis: self.stall_millis.read(),
            changes: self.changes.read(),
        }
    }

    fn clear(&self) {
        [&self.millis, &self.stall_millis, &self.changes].into_iter().for_each(SharedHistogram::clear);
    }
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
        let (took, stall) = (self.commit_nanos.read(), self.stall_nanos.read());
        OsdStats {
            commits_count: took.samples,
            commit_nanos_total: took.sum,
            commit_nanos_max: took.max,
            stall_nanos_max: stall.max,
        }
    }

    pub(crate) fn shapes(&self) -> IoStats {
        let read = |direction: Direction| {
            let shapes = self.shapes[direction as usize].get();
            shapes.map(|shapes| shapes.read()).unwrap_or_default()
        };
        IoStats { reads: read(Direction::Read), writes: read(Direction::Write), commits: self.commits.read() }
    }

    pub(crate) fn clear_shapes(&self) {
        self.shapes.iter().filter_map(OnceLock::get).for_each(|shapes| shapes.clear());
        self.commits.clear();
    }

    /// A request begins. Returns how many are under way with it.
    pub(crate) fn begin(&self, direction: Direction) -> usize {
        self.under_way[direction as usize].0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A request that [`Recorder::begin`] counted as one of `in_flight` has ended.
    pub(crate) fn end(&self, direction: Direction, bytes: u64, time: Duration, in_flight: usize) {
        let before = self.under_way[direction as usize].0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a {direction:?} has ended that did not begin");
        self.shapes[direction as usize].get_or_init(Box::default).add(bytes, time, in_flight);
    }

    pub(crate) fn commit(&self, times: CommitTimes) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        self.commit_nanos.add(nanos(times.took));
        self.stall_nanos.add(nanos(times.stall));
        self.commits.millis.add(millis(times.took));
        self.commits.stall_millis.add(millis(times.stall));
        self.commits.changes.add(times.changes);
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
        assert_eq!(recorder.shapes().reads, IoShapes::default());
        let IoShapes { in_flight, millis, bytes, small_count, bytes_total } = recorder.shapes().writes;
        assert_eq!((in_flight, small_count, bytes_total), (vec![0, 1, 1], 1, 2 * SMALL_BYTES - 1));
        assert_eq!((millis.rows(), bytes.total()), (&[1, 1][..], 2));
        assert_eq!(recorder.begin(Direction::Write), 1, "both have ended");
        recorder.clear_shapes();
        assert_eq!(recorder.shapes(), IoStats::default());
    }

    #[test]
    fn a_recorder_counts_what_shapes_count() {
        let (recorder, mut shapes) = (Recorder::default(), IoShapes::default());
        let edges = [0, 4096, SMALL_BYTES / 2, SMALL_BYTES / 2 + 1, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1];
        for (i, bytes) in edges.into_iter().chain([4 << 20]).enumerate() {
            let (time, in_flight) = (Duration::from_micros(700 << i), i * 200 + 1);
            recorder.begin(Direction::Read);
            recorder.end(Direction::Read, bytes, time, in_flight);
            shapes.add(bytes, time, in_flight);
            assert_eq!(recorder.shapes().reads, shapes);
        }
        assert_eq!((shapes.small_count, shapes.in_flight.len()), (5, IN_FLIGHT_MAX + 1));
        recorder.clear_shapes();
        assert_eq!(recorder.shapes(), IoStats::default());
    }

    #[test]
    fn commits_are_counted_and_only_their_histograms_are_cleared() {
        let recorder = Recorder::default();
        for (took, stall, changes) in [(3, 1, 7), (5, 0, 0)] {
            let [took, stall] = [took, stall].map(Duration::from_millis);
            recorder.commit(CommitTimes { took, stall, changes });
        }
        let commits = recorder.shapes().commits;
        assert_eq!((commits.millis.rows(), commits.millis.sum()), (&[0, 0, 1, 1][..], 8));
        assert_eq!((commits.stall_millis.rows(), commits.changes.rows()), (&[2][..], &[1, 0, 0, 1][..]));
        recorder.clear_shapes();
        assert_eq!(recorder.shapes(), IoStats::default());
        let want = OsdStats {
            commits_count: 2,
            commit_nanos_total: 8_000_000,
            commit_nanos_max: 5_000_000,
            stall_nanos_max: 1_000_000,
        };
        assert_eq!(recorder.counters(), want);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in 0..10_000 {
                        let in_flight = recorder.begin(Direction::Write);
                        recorder.end(Direction::Write, bytes, Duration::ZERO, in_flight);
                    }
                });
            }
        });
        let writes = recorder.shapes().writes;
        assert_eq!((writes.count(), writes.small_count, writes.bytes_total), (40_000, 40_000, 4 * 49_995_000));
        assert_eq!((writes.millis.total(), writes.in_flight.iter().sum::<u64>()), (40_000, 40_000));
        assert!(writes.in_flight.len() <= 5, "more than four were under way: {:?}", writes.in_flight);
        assert_eq!(recorder.begin(Direction::Write), 1, "all have ended");
    }

    #[test]
    #[should_panic(expected = "a Read has ended")]
    fn a_request_that_ends_without_having_begun_is_found() {
        let recorder = Recorder::default();
        recorder.begin(Direction::Write);
        recorder.end(Direction::Read, 1, Duration::ZERO, 1);
    }
}
