//! How long requests took, by opcode: `*.stats` of imports and services.

use nacre_base::param::value::{Operation, Operations, Unit, Window};
use nacre_base::tally::{Sums, Tally};
use nacre_base::{Time, Timestamp};
use nacre_wire::Opcode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How long requests took, in microseconds, by opcode. Counting takes no lock and searches nothing. The tallies are made
/// when they are first counted into, because a node has thousands of imports and lanes, most of which are idle.
#[derive(Debug, Default)]
pub(crate) struct OpStats(OnceLock<Box<Tallies>>);

/// The tally of the opcode that was counted first, which is the only one of an idle import, and those of the others.
#[derive(Debug)]
struct Tallies {
    opcode: Opcode,
    tally: Tally,
    others: OnceLock<Box<Others>>,
}

/// Tallies of opcodes, numbered in the order in which they were counted first.
#[derive(Debug)]
struct Others {
    /// For each opcode, by its position in [`Opcode::ALL`], the number of its tally, from 1; 0 until it is counted.
    numbers: [AtomicU8; Opcode::ALL.len()],
    /// In the order of their numbers. The first block has one, and each has twice as many as the block before.
    blocks: [Block; BLOCKS],
    /// Numbers given. Locked only when an opcode is counted for the first time.
    given: Mutex<u8>,
}

/// [`OpStats`] at a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpSums(BTreeMap<Opcode, Sums>);

/// Tallies, made when the first of them is counted into.
type Block = OnceLock<Box<[Tally]>>;

const BLOCKS: usize = 7;
const _: () = assert!((1 << BLOCKS) > Opcode::ALL.len(), "each opcode needs a tally");
const _: () = assert!(Opcode::ALL.len() < u8::MAX as usize, "numbers of tallies are bytes");

/// Positions of the opcodes in [`Opcode::ALL`], by their numbers.
static POSITIONS: [u8; Opcode::ALL[Opcode::ALL.len() - 1] as usize + 1] = {
    let mut positions = [0; Opcode::ALL[Opcode::ALL.len() - 1] as usize + 1];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        positions[Opcode::ALL[at] as usize] = at as u8;
        at += 1;
    }
    positions
};

impl Default for Others {
    fn default() -> Others {
        let (blocks, given) = Default::default();
        Others { numbers: std::array::from_fn(|_| AtomicU8::new(0)), blocks, given }
    }
}

impl OpStats {
    /// Counts a request.
    pub(crate) fn add(&self, opcode: Opcode, took: Duration) {
        self.0.get_or_init(|| Box::new(Tallies::new(opcode))).of(opcode).add_time(took);
    }

    pub(crate) fn get(&self, opcode: Opcode) -> Sums {
        self.0.get().map(|tallies| tallies.read(opcode)).unwrap_or_default()
    }

    /// The sums now, of the opcodes that were counted.
    pub(crate) fn read(&self) -> OpSums {
        let of_all = |tallies: &Tallies| {
            let all = Opcode::ALL.iter().map(|opcode| (*opcode, tallies.read(*opcode)));
            OpSums(all.filter(|(_, sums)| sums.samples > 0).collect())
        };
        self.0.get().map(|tallies| of_all(tallies)).unwrap_or_default()
    }
}

impl Tallies {
    fn new(opcode: Opcode) -> Tallies {
        Tallies { opcode, tally: Tally::default(), others: OnceLock::new() }
    }

    /// The tally of an opcode that is being counted.
    fn of(&self, opcode: Opcode) -> &Tally {
        if opcode == self.opcode { &self.tally } else { self.others.get_or_init(Box::default).of(opcode) }
    }

    fn read(&self, opcode: Opcode) -> Sums {
        if opcode == self.opcode {
            return self.tally.read();
        }
        self.others.get().map(|others| others.read(opcode)).unwrap_or_default()
    }
}

impl Others {
    fn of(&self, opcode: Opcode) -> &Tally {
        let number = &self.numbers[POSITIONS[opcode as usize] as usize];
        match number.load(Ordering::Relaxed) {
            0 => self.tally(self.give(number)),
            number => self.tally(number),
        }
    }

    /// Gives an opcode a tally, unless another thread has just done so. Returns the tally's number.
    fn give(&self, number: &AtomicU8) -> u8 {
        let mut given = self.given.lock();
        if number.load(Ordering::Relaxed) == 0 {
            *given += 1;
            number.store(*given, Ordering::Relaxed);
        }
        number.load(Ordering::Relaxed)
    }

    fn tally(&self, number: u8) -> &Tally {
        // The numbers of a block begin with a power of two, which is also how many they are.
        let (number, power) = (usize::from(number), number.ilog2());
        let begin = 1 << power;
        let make = || (0..begin).map(|_| Tally::default()).collect();
        &self.blocks[power as usize].get_or_init(make)[number - begin]
    }

    fn read(&self, opcode: Opcode) -> Sums {
        match self.numbers[POSITIONS[opcode as usize] as usize].load(Ordering::Relaxed) {
            0 => Sums::default(),
            number => self.tally(number).read(),
        }
    }
}

impl OpSums {
    pub(crate) fn merge(&mut self, other: &OpSums) {
        other.0.iter().for_each(|(opcode, sums)| self.0.entry(*opcode).or_default().merge(sums));
    }

    pub(crate) fn get(&self, opcode: Opcode) -> Sums {
        self.0.get(&opcode).copied().unwrap_or_default()
    }

    /// Adds what was counted elsewhere, if anything was.
    pub(crate) fn insert(&mut self, opcode: Opcode, sums: Sums) {
        if sums.samples > 0 {
            self.0.entry(opcode).or_default().merge(&sums);
        }
    }

    /// The sums of all opcodes together.
    pub(crate) fn all(&self) -> Sums {
        let mut all = Sums::default();
        self.0.values().for_each(|sums| all.merge(sums));
        all
    }

    /// Statistics of the opcodes that `which` picks, after the sum of all of them.
    pub(crate) fn operations(&self, now: Time, wall: Timestamp, which: impl Fn(Opcode) -> bool) -> Operations {
        let start = Timestamp::from_nanos(
            i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - i128::from(now.as_nanos()),
        );
        let row = |name: String, sums: Sums| Operation { name: name.into(), unit: Unit::Usecs, sums };
        let picked = || self.0.iter().filter(|(o, _)| which(**o));
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
        let stats = OpStats::default();
        stats.add(Opcode::OstWrite, Duration::from_micros(30));
        stats.add(Opcode::OstWrite, Duration::from_micros(10));
        stats.add(Opcode::MdsOpen, Duration::from_micros(7));
        let mut twice = stats.read();
        twice.merge(&stats.read());
        assert_eq!((twice.get(Opcode::OstWrite).samples, twice.all().sum), (4, 94));
        let wall = Timestamp { secs: 1_795_231_197, nanos: 955_716_725 };
        let operations = stats.read().operations(Time::from_secs(2), wall, |o| o == Opcode::OstWrite);
        let want = "\
snapshot_time             1795231197.955716725 secs.nsecs
start_time                1795231195.955716725 secs.nsecs
elapsed_time              2.000000000 secs.nsecs
req_waittime              2 samples [usecs] 10 30 40 1000
ost_write                 2 samples [usecs] 10 30 40 1000";
        assert_eq!(operations.into_value().to_string(), want);
    }

    #[test]
    fn each_opcode_has_a_tally_of_its_own_and_one_that_was_not_counted_is_not_shown() {
        let stats = OpStats::default();
        assert_eq!((stats.get(Opcode::OstWrite), stats.read().all()), (Sums::default(), Sums::default()));
        let micros = |opcode: Opcode| Duration::from_micros(opcode as u64);
        for (counted, opcode) in Opcode::ALL.iter().rev().enumerate() {
            assert_eq!(stats.get(*opcode), Sums::default());
            stats.add(*opcode, micros(*opcode));
            assert_eq!(stats.read().0.len(), counted + 1);
        }
        for opcode in Opcode::ALL {
            let sums = stats.get(*opcode);
            assert_eq!((sums.samples, sums.sum), (1, *opcode as u64), "{opcode}");
            assert_eq!(stats.read().get(*opcode), sums);
        }
    }

    #[test]
    fn no_count_is_lost_between_threads_that_count_opcodes_for_the_first_time() {
        for _ in 0..100 {
            let stats = OpStats::default();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| Opcode::ALL.iter().for_each(|o| stats.add(*o, Duration::from_micros(1))));
                }
            });
            assert!(Opcode::ALL.iter().all(|opcode| stats.get(*opcode).samples == 4));
            assert_eq!(stats.read().all().samples, 4 * Opcode::ALL.len() as u64);
        }
    }

    #[test]
    fn idle_imports_and_lanes_take_little_room() {
        assert_eq!(size_of::<OpStats>(), 16);
        // An idle import counts its connect, pings and perhaps a statfs. A map of sums took 560 bytes for these.
        let idle = size_of::<Tallies>();
        assert!(idle <= 192, "{idle} bytes");
    }
}
