//! What is on the medium after a power cut: everything before the last flush, and of the writes since then a random part
//! in random order, one of them perhaps torn between two sectors.

use super::recorder::{Event, Recording};
use crate::failure::Outcome;
use crate::prng::Prng;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// No disk tears a sector.
const SECTOR: usize = 512;

/// The disk's durable state at a moment that advances.
pub(crate) struct Medium<'a> {
    recording: &'a Recording,
    image: File,
    /// Events in the image: up to and with a flush.
    durable: usize,
}

/// What a power cut left of the writes after the last flush.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Writes that reached the medium, in the order in which they did, and how many bytes of each.
    pub(crate) kept: Vec<(usize, usize)>,
    /// How many there were.
    pub(crate) of: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} unflushed writes kept", self.kept.len(), self.of)
    }
}

impl<'a> Medium<'a> {
    /// An empty disk.
    pub(crate) fn new(recording: &'a Recording, image: &Path, bytes: u64) -> Outcome<Medium<'a>> {
        let image = File::options().read(true).write(true).create_new(true).open(image)?;
        image.set_len(bytes)?;
        Ok(Medium { recording, image, durable: 0 })
    }

    /// Goes on to the last flush before `point`; points must ascend.
    pub(crate) fn advance(&mut self, point: usize) -> Outcome {
        let events = &self.recording.events;
        let Some(flush) = events[..point].iter().rposition(|e| *e == Event::Flush) else { return Ok(()) };
        for event in events.get(self.durable..=flush).unwrap_or_default() {
            if let Event::Write { offset, .. } = event {
                self.image.write_all_at(self.recording.bytes(event), *offset)?;
            }
        }
        self.durable = self.durable.max(flush + 1);
        Ok(())
    }

    /// Decides what remains of the writes since the last flush.
    pub(crate) fn cut(&self, point: usize, random: &mut Prng) -> Cut {
        let events = &self.recording.events;
        let mut kept: Vec<usize> =
            (self.durable..point).filter(|n| matches!(events[*n], Event::Write { .. })).collect();
        let of = kept.len();
        match random.below(8) {
            0 => kept.clear(),
            // As a disk without a cache: the first ones, in order.
            1 => kept.truncate(random.below(of + 1)),
            // All but one.
            2 if of > 0 => drop(kept.remove(random.below(of))),
            // Only a few.
            3 => {
                random.shuffle(&mut kept);
                kept.truncate(1 + random.below(3));
            }
            _ => {
                // From nearly none to nearly all.
                let share = random.below(101);
                kept.retain(|_| random.below(100) < share);
                random.shuffle(&mut kept);
            }
        }
        let len = |n: usize| self.recording.bytes(&events[n]).len();
        let mut kept: Vec<(usize, usize)> = kept.into_iter().map(|n| (n, len(n))).collect();
        if let Some((_, len)) = kept.last_mut().filter(|_| random.below(2) == 0) {
            *len = random.below(*len / SECTOR + 1) * SECTOR;
        }
        Cut { kept, of }
    }

    /// Writes onto another image what was kept.
    pub(crate) fn apply(&self, cut: &Cut, image: &File) -> Outcome {
        for (n, len) in &cut.kept {
            let event = &self.recording.events[*n];
            if let Event::Write { offset, .. } = event {
                image.write_all_at(&self.recording.bytes(event)[..*len], *offset)?;
            }
        }
        Ok(())
    }

    /// The durable state.
    pub(crate) fn image(&self) -> &File {
        &self.image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five sectors, each written with its number; then flushed; then each with its number plus 100.
    fn recording() -> Recording {
        let data: Vec<u8> = (0..5).chain(100..105).flat_map(|n| [n; SECTOR]).collect();
        let write = |sector: usize, from: usize| Event::Write {
            offset: (sector * SECTOR) as u64,
            len: SECTOR,
            from: from * SECTOR,
        };
        let mut events: Vec<Event> = (0..5).map(|n| write(n, n)).collect();
        events.push(Event::Flush);
        events.extend((0..5).map(|n| write(n, n + 5)));
        Recording::of(events, data)
    }

    #[test]
    fn what_was_flushed_stays_and_the_rest_comes_in_every_combination() {
        let (recording, mut random) = (recording(), Prng::new(1));
        let dir = std::env::temp_dir().join(format!("nacre-e2e-medium-{}", std::process::id()));
        let mut medium = Medium::new(&recording, &dir, 5 * SECTOR as u64).unwrap();
        std::fs::remove_file(&dir).unwrap();
        medium.advance(11).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let scratch = medium.image().try_clone().unwrap();
            for n in 0..5u8 {
                scratch.write_all_at(&[n; SECTOR], u64::from(n) * SECTOR as u64).unwrap();
            }
            let cut = medium.cut(11, &mut random);
            medium.apply(&cut, &scratch).unwrap();
            let mut sectors = vec![0; 5 * SECTOR];
            scratch.read_exact_at(&mut sectors, 0).unwrap();
            let state: Vec<bool> = sectors.chunks(SECTOR).map(|s| s[0] >= 100).collect();
            assert!(sectors.chunks(SECTOR).enumerate().all(|(n, s)| s.iter().all(|b| *b as usize % 100 == n)));
            seen.insert(state);
        }
        assert_eq!(seen.len(), 32);
        assert!(medium.cut(6, &mut random).kept.is_empty(), "everything before the flush is durable");
    }
}
