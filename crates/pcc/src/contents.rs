//! The table of the cache: which bytes of which objects are on the disk, in which version, and which objects leave when the cache is full.
//! The table does no IO.
//!
//! The data of an object lies in a file of its own, at the offsets that it has in the object. Files are named by numbers that are
//! never given again, so a file whose bytes are still being written can leave without harm: its last writer destroys it.

use crate::ObjectKey;
use nacre_base::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// No piece crosses a multiple of this. A piece is checked whole, so a small read reads up to so much.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
/// The disk hears of a use when the last one that it knows of is this many seconds ago.
const USE_NOTED_AFTER: i64 = 600;

/// Bytes on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) len: u32,
    pub(crate) checksum: u32,
}

/// Bytes of a piece, by where it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Being written.
    Coming(u32),
    Stored(Piece),
}

impl Slot {
    fn len(self) -> u64 {
        match self {
            Slot::Coming(len) | Slot::Stored(Piece { len, .. }) => len.into(),
        }
    }
}

/// An object with bytes here.
#[derive(Debug)]
struct Kept {
    version: u64,
    name: u64,
    /// They do not overlap.
    slots: BTreeMap<u64, Slot>,
    bytes: u64,
    /// Its place among the others.
    turn: u64,
    /// When it was used last, in seconds of the wall clock, as the disk knows it; `None` if the disk does not know the object.
    noted: Option<i64>,
    /// How many writes are under way.
    writers: u32,
}

/// A file whose object is here no more.
#[derive(Debug)]
struct Leaving {
    writers: u32,
    /// True once no crash brings the record back.
    is_forgotten: bool,
}

/// An object's record on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) version: u64,
    pub(crate) name: u64,
    /// When it was used last, in seconds of the wall clock.
    pub(crate) used: i64,
}

/// An object that has left. Its record is to be deleted, and then its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    pub(crate) key: ObjectKey,
    pub(crate) name: u64,
}

/// Outcome of a search for ranges of an object.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// For each range the pieces that it consists of, ascending, by where they start; in the file of this name.
    All(u64, Vec<Vec<(u64, Piece)>>),
    /// Something is missing.
    Missing,
    /// The object has changed since.
    Outdated(Gone),
}

/// Bytes that are to be written, and objects that leave for them.
#[derive(PartialEq, Eq, Default, Debug)]
pub(crate) struct Begun {
    pub(crate) name: u64,
    /// Parts of what was offered that are not here yet; none of them crosses a multiple of [`PIECE_BYTES`].
    pub(crate) parts: Vec<Range<u64>>,
    /// Bytes for which there is no room.
    pub(crate) refused: u64,
    pub(crate) gone: Vec<Gone>,
}

/// What remains to be done after bytes were written.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// Record the pieces, and the object, if the disk does not know it.
    Here(Option<Record>),
    /// The object has left meanwhile. `destroy` is true if its file is to be destroyed now.
    Left { destroy: bool },
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    objects: FxHashMap<ObjectKey, Kept>,
    /// The object that was used least recently is first.
    by_turn: BTreeMap<u64, ObjectKey>,
    next_turn: u64,
    next_name: u64,
    /// Bytes here, with those that are being written.
    bytes: u64,
    leaving: FxHashMap<u64, Leaving>,
    /// Objects whose last use the disk is to hear of.
    unnoted: Vec<ObjectKey>,
}

impl Contents {
    /// The table of what the disk has: the objects, and their pieces by file and start. Names from `next_name` on are free.
    pub(crate) fn load(
        mut objects: Vec<(ObjectKey, Record)>,
        pieces: impl IntoIterator<Item = (u64, u64, Piece)>,
        next_name: u64,
    ) -> Contents {
        objects.sort_unstable_by_key(|(key, record)| (record.used, *key));
        let mut contents = Contents { next_name, ..Contents::default() };
        let mut by_name = FxHashMap::default();
        for (key, Record { version, name, used }) in objects {
            assert!(name < next_name, "{key:?} lies in file {name}, and {next_name} is free");
            contents.insert(key, version, name, Some(used));
            by_name.insert(name, key);
        }
        for (name, start, piece) in pieces {
            let Some(kept) = by_name.get(&name).and_then(|key| contents.objects.get_mut(key)) else { continue };
            let end = start + u64::from(piece.len);
            let overlaps = kept.slots.range(..end).next_back().is_some_and(|(at, slot)| at + slot.len() > start);
            // Only a damaged index has those that overlap.
            if !overlaps {
                kept.slots.insert(start, Slot::Stored(piece));
                kept.bytes += u64::from(piece.len);
                contents.bytes += u64::from(piece.len);
            }
        }
        contents
    }

    /// Bytes here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of objects with bytes here.
    pub(crate) fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// Version and bytes of an object that is here.
    pub(crate) fn object(&self, key: &ObjectKey) -> Option<(u64, u64)> {
        self.objects.get(key).map(|kept| (kept.version, kept.bytes))
    }

    /// Returns whether the disk has a record of an object that is here.
    pub(crate) fn is_recorded(&self, key: &ObjectKey) -> bool {
        self.objects.get(key).is_some_and(|kept| kept.noted.is_some())
    }

    /// Searches for all bytes of the ranges in this version of the object. `now` is in seconds of the wall clock.
    pub(crate) fn find(&mut self, key: &ObjectKey, version: u64, ranges: &[Range<u64>], now: i64) -> Found {
        let Some(kept) = self.objects.get_mut(key) else { return Found::Missing };
        if kept.version != version {
            return self.remove(key).map_or(Found::Missing, Found::Outdated);
        }
        let Some(found) = ranges.iter().map(|range| kept.pieces(range)).collect() else { return Found::Missing };
        let name = kept.name;
        if kept.noted.is_some_and(|noted| now - noted >= USE_NOTED_AFTER) {
            kept.noted = Some(now);
            self.unnoted.push(*key);
        }
        self.use_now(key);
        Found::All(name, found)
    }

    /// Begins to write bytes of an object: those of `ranges` that are not here. Makes room for them among `limit` bytes, but not at
    /// the cost of the object itself: of one that is larger than the cache, the bytes that were read first stay.
    pub(crate) fn begin(&mut self, key: &ObjectKey, version: u64, ranges: &[Range<u64>], limit: u64) -> Begun {
        let mut gone = Vec::new();
        if self.objects.get(key).is_some_and(|kept| kept.version != version) {
            gone.extend(self.remove(key));
        }
        let all = ranges.iter().flat_map(parts);
        let parts: Vec<Range<u64>> = match self.objects.get(key) {
            Some(kept) => all.flat_map(|part| kept.gaps(&part)).collect(),
            None => all.collect(),
        };
        let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
        let own = self.objects.get(key).map_or(0, |kept| kept.bytes);
        if own + bytes > limit {
            return Begun { gone, refused: bytes, ..Begun::default() };
        }
        if bytes == 0 {
            return Begun { gone, ..Begun::default() };
        }
        while self.bytes + bytes > limit {
            let other = self.by_turn.values().find(|other| *other != key).copied();
            let Some(other) = other else { panic!("{} bytes are here, and {own} of them are somebody's", self.bytes) };
            gone.extend(self.remove(&other));
        }
        if !self.objects.contains_key(key) {
            let name = self.next_name;
            self.next_name += 1;
            self.insert(*key, version, name, None);
        }
        self.use_now(key);
        let Some(kept) = self.objects.get_mut(key) else { panic!("{key:?} was just added") };
        for part in &parts {
            let before = kept.slots.insert(part.start, Slot::Coming((part.end - part.start) as u32));
            assert!(before.is_none(), "{part:?} of {key:?} is written, and {before:?} is there");
        }
        kept.bytes += bytes;
        kept.writers += 1;
        self.bytes += bytes;
        assert!(self.bytes <= limit, "{} bytes are in a cache of {limit}", self.bytes);
        Begun { name: kept.name, parts, gone, refused: 0 }
    }

    /// The bytes are in the file: they can be read from now on.
    pub(crate) fn written(&mut self, key: &ObjectKey, name: u64, pieces: &[(u64, Piece)], now: i64) -> Written {
        let Some(kept) = self.objects.get_mut(key).filter(|kept| kept.name == name) else {
            return Written::Left { destroy: self.left(name) };
        };
        for (start, piece) in pieces {
            let before = kept.slots.insert(*start, Slot::Stored(*piece));
            assert_eq!(before, Some(Slot::Coming(piece.len)), "{start} of {key:?} was written, and did not come");
        }
        assert!(kept.writers > 0, "a write to file {name} ends twice");
        kept.writers -= 1;
        let is_known = kept.noted.is_some();
        let used = *kept.noted.get_or_insert(now);
        Written::Here((!is_known).then_some(Record { version: kept.version, name, used }))
    }

    /// Removes an object. Its file leaves when its record is durably deleted and nobody writes to it any longer.
    pub(crate) fn remove(&mut self, key: &ObjectKey) -> Option<Gone> {
        let kept = self.objects.remove(key)?;
        self.by_turn.remove(&kept.turn);
        assert!(kept.bytes <= self.bytes, "{} of {} bytes leave with {key:?}", kept.bytes, self.bytes);
        self.bytes -= kept.bytes;
        self.leaving.insert(kept.name, Leaving { writers: kept.writers, is_forgotten: false });
        Some(Gone { key: *key, name: kept.name })
    }

    /// Removes an object if its file is still this one.
    pub(crate) fn remove_file(&mut self, key: &ObjectKey, name: u64) -> Option<Gone> {
        let is_it = self.objects.get(key).is_some_and(|kept| kept.name == name);
        if is_it { self.remove(key) } else { None }
    }

    /// Removes the objects that were used least recently until no more than `limit` bytes are here.
    pub(crate) fn shrink(&mut self, limit: u64) -> Vec<Gone> {
        let mut gone = Vec::new();
        while self.bytes > limit
            && let Some((_, key)) = self.by_turn.first_key_value()
        {
            let key = *key;
            gone.extend(self.remove(&key));
        }
        gone
    }

    /// The record of an object that has left is durably deleted. Returns whether its file is to be destroyed.
    pub(crate) fn forgotten(&mut self, name: u64) -> bool {
        let Some(leaving) = self.leaving.get_mut(&name) else { panic!("file {name} is forgotten, and did not leave") };
        leaving.is_forgotten = true;
        self.is_over(name)
    }

    /// The objects whose last use the disk is to hear of, with their records.
    pub(crate) fn take_unnoted(&mut self) -> Vec<(ObjectKey, Record)> {
        let keys = std::mem::take(&mut self.unnoted);
        let record = |key: ObjectKey| {
            let kept = self.objects.get(&key)?;
            Some((key, Record { version: kept.version, name: kept.name, used: kept.noted? }))
        };
        keys.into_iter().filter_map(record).collect()
    }

    /// Returns whether there are any.
    pub(crate) fn has_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    fn insert(&mut self, key: ObjectKey, version: u64, name: u64, noted: Option<i64>) {
        let (slots, turn) = (BTreeMap::new(), self.next_turn);
        self.next_turn += 1;
        self.by_turn.insert(turn, key);
        let before = self.objects.insert(key, Kept { version, name, slots, bytes: 0, turn, noted, writers: 0 });
        assert!(before.is_none(), "{key:?} comes twice: {before:?}");
    }

    fn use_now(&mut self, key: &ObjectKey) {
        let Some(kept) = self.objects.get_mut(key) else { return };
        self.by_turn.remove(&kept.turn);
        kept.turn = self.next_turn;
        self.next_turn += 1;
        self.by_turn.insert(kept.turn, *key);
    }

    /// A write to a file ends that has left meanwhile. Returns whether the file is to be destroyed now.
    pub(crate) fn left(&mut self, name: u64) -> bool {
        let Some(leaving) = self.leaving.get_mut(&name) else { panic!("file {name} was written, and is nobody's") };
        assert!(leaving.writers > 0, "a write to file {name} ends twice");
        leaving.writers -= 1;
        self.is_over(name)
    }

    fn is_over(&mut self, name: u64) -> bool {
        let is_over = self.leaving.get(&name).is_some_and(|leaving| leaving.writers == 0 && leaving.is_forgotten);
        if is_over {
            self.leaving.remove(&name);
        }
        is_over
    }

    /// Checks the counts; the error says what is wrong. For simulators and tests: it looks at everything.
    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes: u64 = self.objects.values().map(|kept| kept.bytes).sum();
        let turns: BTreeMap<u64, ObjectKey> = self.objects.iter().map(|(key, kept)| (kept.turn, *key)).collect();
        let is_apart =
            |kept: &Kept| kept.slots.iter().zip(kept.slots.keys().skip(1)).all(|((a, s), b)| a + s.len() <= *b);
        let is_sound = |kept: &Kept| is_apart(kept) && kept.slots.values().map(|s| s.len()).sum::<u64>() == kept.bytes;
        match self.objects.iter().find(|(_, kept)| !is_sound(kept)) {
            Some((key, kept)) => Err(format!("{key:?} has pieces that overlap, or are counted wrong: {kept:?}")),
            None if bytes != self.bytes => Err(format!("objects have {bytes} bytes, counted are {}", self.bytes)),
            None if turns != self.by_turn => Err("objects leave in another order than that of their uses".into()),
            None => Ok(()),
        }
    }
}

impl Kept {
    /// The pieces that a range consists of, if all of it is here.
    fn pieces(&self, range: &Range<u64>) -> Option<Vec<(u64, Piece)>> {
        let first = self.slots.range(..=range.start).next_back().map_or(range.start, |(at, _)| *at);
        let (mut found, mut at) = (Vec::new(), range.start);
        for (start, slot) in
            self.slots.range(first..range.end).filter(|(start, slot)| *start + slot.len() > range.start)
        {
            let Slot::Stored(piece) = slot else { return None };
            if *start > at {
                return None;
            }
            at = at.max(start + u64::from(piece.len));
            found.push((*start, *piece));
        }
        (at >= range.end).then_some(found)
    }

    /// The parts of a range that are neither here nor coming.
    fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.slots.range(..=range.start).next_back().map_or(range.start, |(at, slot)| at + slot.len());
        let (mut gaps, mut at) = (Vec::new(), before.max(range.start));
        for (start, slot) in self.slots.range(range.start..range.end) {
            if *start > at {
                gaps.push(at..*start);
            }
            at = at.max(start + slot.len());
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

/// The range in parts none of which crosses a multiple of [`PIECE_BYTES`].
fn parts(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let part = at..end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // One range is meant.
mod tests {
    use super::*;
    use nacre_base::{Fid, Uuid};

    const MIB: u64 = 1 << 20;

    fn key(oid: u32) -> ObjectKey {
        ObjectKey { storage: Uuid([7; 16]), object: Fid { seq: 9, oid, ver: 0 } }
    }

    fn piece(range: &Range<u64>) -> (u64, Piece) {
        (range.start, Piece { len: (range.end - range.start) as u32, checksum: 0 })
    }

    /// Keeps ranges of an object; returns what left for them.
    fn keep(contents: &mut Contents, oid: u32, version: u64, ranges: &[Range<u64>], limit: u64) -> Vec<Gone> {
        let begun = contents.begin(&key(oid), version, ranges, limit);
        let pieces: Vec<_> = begun.parts.iter().map(piece).collect();
        if !pieces.is_empty() {
            assert!(matches!(contents.written(&key(oid), begun.name, &pieces, 0), Written::Here(_)));
        }
        assert_eq!(contents.check(), Ok(()));
        begun.gone
    }

    fn has(contents: &mut Contents, oid: u32, version: u64, range: Range<u64>) -> bool {
        matches!(contents.find(&key(oid), version, &[range], 0), Found::All(..))
    }

    #[test]
    fn ranges_are_found_in_whatever_pieces_they_came() {
        let mut contents = Contents::default();
        assert_eq!(keep(&mut contents, 1, 5, &[0..100, 200..MIB], MIB), []);
        assert_eq!(contents.bytes(), MIB - 100);
        assert!(has(&mut contents, 1, 5, 10..100) && has(&mut contents, 1, 5, 300..MIB));
        assert!(!has(&mut contents, 1, 5, 50..201), "100 to 200 is missing");
        let whole = Found::All(0, vec![vec![piece(&(200..PIECE_BYTES))]]);
        assert_eq!(contents.find(&key(1), 5, &[300..400], 0), whole, "a piece that ends before is none of it");
        assert!(!has(&mut contents, 1, 5, MIB - 1..MIB + 1) && !has(&mut contents, 2, 5, 0..1));
        keep(&mut contents, 1, 5, &[50..400], MIB);
        assert!(has(&mut contents, 1, 5, 0..MIB), "the gap was filled, and nothing was written twice");
        assert_eq!(contents.bytes(), MIB);
    }

    #[test]
    fn bytes_that_are_being_written_are_not_found_and_not_written_twice() {
        let mut contents = Contents::default();
        let begun = contents.begin(&key(1), 5, &[0..100], MIB);
        assert!(!has(&mut contents, 1, 5, 0..100));
        assert_eq!(contents.begin(&key(1), 5, &[0..100], MIB).parts, []);
        assert!(contents.remove_file(&key(1), begun.name).is_some(), "they could not be written");
        assert!(!contents.left(begun.name) && contents.forgotten(begun.name));
        assert_eq!((contents.bytes(), contents.check()), (0, Ok(())));
        keep(&mut contents, 1, 5, &[0..100], MIB);
        assert!(has(&mut contents, 1, 5, 0..100));
    }

    #[test]
    fn another_version_takes_the_place_of_the_one_before() {
        let mut contents = Contents::default();
        keep(&mut contents, 1, 5, &[0..100], MIB);
        assert_eq!(keep(&mut contents, 1, 6, &[0..10], MIB), [Gone { key: key(1), name: 0 }]);
        assert!(!has(&mut contents, 1, 6, 0..100) && has(&mut contents, 1, 6, 0..10));
        assert_eq!(contents.find(&key(1), 5, &[0..10], 0), Found::Outdated(Gone { key: key(1), name: 1 }));
        assert_eq!(contents.object_count(), 0);
    }

    #[test]
    fn what_was_used_least_recently_leaves_first_and_nothing_leaves_for_more_of_itself() {
        let mut contents = Contents::default();
        for oid in 1..=4 {
            keep(&mut contents, oid, 5, &[0..MIB], 4 * MIB);
        }
        assert!(has(&mut contents, 1, 5, 0..MIB));
        assert_eq!(keep(&mut contents, 5, 5, &[0..MIB], 4 * MIB), [Gone { key: key(2), name: 1 }]);
        assert!(has(&mut contents, 1, 5, 0..MIB) && !has(&mut contents, 2, 5, 0..MIB));
        assert_eq!(keep(&mut contents, 1, 5, &[MIB..4 * MIB], 4 * MIB).len(), 3);
        assert_eq!(keep(&mut contents, 1, 5, &[4 * MIB..5 * MIB], 4 * MIB), []);
        assert_eq!(contents.begin(&key(1), 5, &[4 * MIB..5 * MIB], 4 * MIB).refused, MIB);
        assert!(has(&mut contents, 1, 5, 0..4 * MIB) && !has(&mut contents, 1, 5, 4 * MIB..5 * MIB));
        assert_eq!(contents.shrink(MIB).len(), 1);
    }

    #[test]
    fn a_file_is_destroyed_once_it_is_forgotten_and_no_longer_written() {
        for forgotten_first in [true, false] {
            let mut contents = Contents::default();
            let begun = contents.begin(&key(1), 5, &[0..100], MIB);
            let pieces = [piece(&(0..100))];
            contents.remove(&key(1)).unwrap();
            let (forgotten, written) = match forgotten_first {
                true => (contents.forgotten(begun.name), contents.written(&key(1), begun.name, &pieces, 0)),
                false => {
                    let written = contents.written(&key(1), begun.name, &pieces, 0);
                    (contents.forgotten(begun.name), written)
                }
            };
            assert_eq!((forgotten, written), (!forgotten_first, Written::Left { destroy: forgotten_first }));
        }
    }

    #[test]
    fn what_the_disk_has_is_found_again_and_leaves_in_the_order_of_its_uses() {
        let record = |name, used| Record { version: 5, name, used };
        let pieces = [(0, 0, piece(&(0..100)).1), (1, 0, piece(&(0..100)).1), (3, 0, piece(&(0..100)).1)];
        let mut contents = Contents::load(vec![(key(1), record(0, 20)), (key(2), record(1, 10))], pieces, 7);
        assert_eq!((contents.object_count(), contents.bytes(), contents.check()), (2, 200, Ok(())));
        assert_eq!(contents.shrink(100), [Gone { key: key(2), name: 1 }]);
        assert_eq!(contents.begin(&key(9), 1, &[0..1], MIB).name, 7);
        assert_eq!(contents.find(&key(1), 5, &[0..1], 619), Found::All(0, vec![vec![(0, piece(&(0..100)).1)]]));
        assert!(!contents.has_unnoted());
        contents.find(&key(1), 5, &[0..1], 620);
        assert_eq!(contents.take_unnoted(), [(key(1), record(0, 620))]);
    }
}
