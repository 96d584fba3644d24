//! Strided streams of one file that together read all of it: programs that share a file and take its records in turns. Each
//! of them alone leaves gaps, but the others want those bytes, so that it pays to fetch everything in large requests.

use nacre_base::Time;
use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// A stream that was not read for this long does not count.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Streams more than this many strides apart do not read the same part of the file.
const APART_MAX: u64 = 1024;

/// The strided streams of the open files of one file.
#[derive(Debug, Default)]
pub(crate) struct Tiling {
    tiles: Vec<Tile>,
    readers: u64,
}

/// An open file. Dropping it removes its streams.
#[derive(Debug)]
pub(crate) struct Reader {
    number: u64,
    tiling: Arc<Mutex<Tiling>>,
}

impl Reader {
    /// Creates a reader for a newly opened file whose streams are in `tiling`.
    pub(crate) fn new(tiling: Arc<Mutex<Tiling>>) -> Reader {
        let number = {
            let mut tiling = tiling.lock();
            tiling.readers += 1;
            tiling.readers
        };
        Reader { number, tiling }
    }

    /// Records that a stream of the open file has moved on. Returns whether all streams, this one included, read at least
    /// three quarters of the bytes around it.
    pub(crate) fn handle_read(&self, at: Position, now: Time) -> bool {
        self.tiling.lock().handle_read(self.number, at, now)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tiling.lock().tiles.retain(|tile| tile.reader != self.number);
    }
}

/// A stream's position: it reads `len` bytes at `last`, and again after each `stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) last: u64,
    pub(crate) stride: NonZeroU64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct Tile {
    reader: u64,
    at: Position,
    used: Time,
}

impl Tiling {
    fn handle_read(&mut self, reader: u64, at: Position, now: Time) -> bool {
        self.tiles.retain(|tile| now.since(tile.used) <= IDLE_MAX && !(tile.reader == reader && tile.at.same(&at)));
        self.tiles.push(Tile { reader, at, used: now });
        let is_near =
            |tile: &&Tile| tile.at.stride == at.stride && tile.at.last.abs_diff(at.last) / at.stride <= APART_MAX;
        let mut parts: Vec<_> = self.tiles.iter().filter(is_near).flat_map(|tile| tile.at.in_stride()).collect();
        parts.sort_unstable();
        let (mut covered, mut reached) = (0, 0);
        for (start, end) in parts {
            covered += end.saturating_sub(start.max(reached));
            reached = reached.max(end);
        }
        covered >= at.stride.get() - at.stride.get() / 4
    }
}

impl Position {
    /// True if both are positions of the same stream at different times.
    fn same(&self, other: &Position) -> bool {
        self.stride == other.stride && self.last % self.stride == other.last % other.stride
    }

    /// The parts of each stride that the stream reads.
    fn in_stride(&self) -> [(u64, u64); 2] {
        let (start, stride) = (self.last % self.stride, self.stride.get());
        let end = start.saturating_add(self.len);
        [(start, end.min(stride)), (0, end.saturating_sub(stride).min(start))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: u64 = 47_008;

    fn position(last: u64, stride: u64, len: u64) -> Position {
        Position { last, stride: NonZeroU64::new(stride).unwrap(), len }
    }

    fn at(n: u64) -> Position {
        position(n * RECORD, 4 * RECORD, RECORD)
    }

    fn readers<const N: usize>() -> [Reader; N] {
        let tiling = Arc::<Mutex<Tiling>>::default();
        [(); N].map(|()| Reader::new(tiling.clone()))
    }

    #[test]
    fn streams_tile_a_file_if_three_quarters_of_it_are_read() {
        let [a, b, c, d] = readers();
        assert!(!a.handle_read(at(0), Time::ZERO));
        assert!(!b.handle_read(at(9), Time::ZERO));
        assert!(!b.handle_read(at(13), Time::ZERO), "the same stream counts once");
        assert!(c.handle_read(at(2), Time::ZERO));
        assert!(d.handle_read(at(7), Time::ZERO));
        drop(d);
        assert!(a.handle_read(at(4), Time::ZERO));
        drop(c);
        assert!(!a.handle_read(at(8), Time::ZERO));
    }

    #[test]
    fn streams_that_rest_or_are_elsewhere_do_not_count() {
        let [a, b, c, d] = readers();
        let far = APART_MAX * 8;
        for (n, reader) in [b, c, d].iter().enumerate() {
            reader.handle_read(at(n as u64 + 1 + far), Time::ZERO);
        }
        assert!(!a.handle_read(at(0), Time::ZERO));
        let [a, b, c, d] = readers();
        for (n, reader) in [&b, &c, &d].into_iter().enumerate() {
            reader.handle_read(at(n as u64 + 1), Time::ZERO);
        }
        assert!(a.handle_read(at(4), Time::ZERO));
        assert!(!a.handle_read(at(8), Time::from_secs(2)));
    }

    #[test]
    fn a_record_may_lie_across_the_border_of_strides() {
        let [a, b] = readers();
        let at = |last| position(last, 100, 50);
        assert!(!a.handle_read(at(80), Time::ZERO));
        assert!(b.handle_read(at(230), Time::ZERO));
        assert_eq!(at(80).in_stride(), [(80, 100), (0, 30)]);
    }
}
