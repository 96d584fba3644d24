//! Object data in memory: sparse extents of shared bytes, so that a terabyte of synthetic data takes no memory, and a
//! log of changes that are not synced, so that a power cut can undo them.

use crate::{AllocateMode, ObjectStat, Seek};
use bytes::Bytes;
use nacre_base::{Payload, Prng};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Unit in which a power cut tears: sectors are written whole or not at all.
const SECTOR: usize = 512;

/// One object.
#[derive(Default, Debug)]
pub(super) struct Object {
    size: u64,
    /// Offset to data; extents do not overlap and none is empty. Everything else below the size is a hole.
    extents: BTreeMap<u64, Bytes>,
    /// Bytes in extents.
    bytes: u64,
    /// Changes since the last sync, oldest first.
    unsynced: VecDeque<Logged>,
    /// Changes ever synced: the number of the first in `unsynced`.
    synced: u64,
}

/// A change to an object's data.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, data: Payload },
    Truncate { size: u64 },
    Punch { range: Range<u64> },
    Allocate { range: Range<u64>, mode: AllocateMode },
}

/// A change and what it replaced.
#[derive(Debug)]
struct Logged {
    change: Change,
    range: Range<u64>,
    old_extents: Vec<(u64, Bytes)>,
    old_size: u64,
}

impl Object {
    /// Size and space.
    pub(super) fn stat(&self) -> ObjectStat {
        ObjectStat { size: self.size, blocks: self.bytes.div_ceil(4096) * 8 }
    }

    /// Bytes that the object takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes a change, and logs it until the next sync.
    pub(super) fn apply(&mut self, change: Change) {
        let old_size = self.size;
        let (range, old_extents) = match &change {
            Change::Write { offset, data } => {
                let range = *offset..offset + data.len() as u64;
                let old = self.cut(range.clone());
                let mut at = *offset;
                for piece in data.pieces() {
                    self.insert(at, piece.clone());
                    at += piece.len() as u64;
                }
                self.size = self.size.max(range.end);
                (range, old)
            }
            Change::Truncate { size } => {
                self.size = *size;
                (*size..u64::MAX, self.cut(*size..u64::MAX))
            }
            Change::Punch { range } => (range.clone(), self.cut(range.clone())),
            Change::Allocate { range, mode } => {
                if !mode.keeps_size() {
                    self.size = self.size.max(range.end);
                }
                let old = if mode.zeroes() { self.cut(range.clone()) } else { Vec::new() };
                (if mode.zeroes() { range.clone() } else { 0..0 }, old)
            }
        };
        self.unsynced.push_back(Logged { change, range, old_extents, old_size });
    }

    /// Undoes the newest change that is not synced. Returns false if there is none.
    pub(super) fn undo(&mut self) -> bool {
        let Some(last) = self.unsynced.pop_back() else { return false };
        self.cut(last.range);
        for (offset, data) in last.old_extents {
            self.insert(offset, data);
        }
        self.size = last.old_size;
        true
    }

    /// The number of changes made so far, for [`Object::mark_synced`].
    pub(super) fn changes(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Returns whether every change is durable.
    pub(super) fn is_synced(&self) -> bool {
        self.unsynced.is_empty()
    }

    /// Changes up to number `upto` are durable.
    pub(super) fn mark_synced(&mut self, upto: u64) {
        while self.synced < upto && self.unsynced.pop_front().is_some() {
            self.synced += 1;
        }
    }

    /// Power is cut: unsynced changes are lost, or, with `prng`, each is kept, lost or torn.
    pub(super) fn cut_power(&mut self, prng: Option<&mut Prng>) {
        let changes: Vec<Change> = self.unsynced.iter().map(|l| l.change.clone()).collect();
        while self.undo() {}
        let Some(prng) = prng else { return };
        for mut change in changes {
            if prng.one_in(2) {
                continue;
            }
            if let Change::Write { data, .. } = &mut change
                && prng.one_in(3)
            {
                let sectors = prng.below((data.len() / SECTOR) as u64 + 1) as usize;
                data.truncate(sectors * SECTOR);
            }
            self.apply(change);
        }
        // The surviving changes are on the medium.
        self.mark_synced(u64::MAX);
    }

    /// Reads up to `len` bytes at `offset`, as far as the object reaches.
    pub(super) fn read(&self, offset: u64, len: usize) -> Payload {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut out = Payload::new();
        let mut at = offset;
        for (start, data) in self.overlapping(offset..end) {
            if start > at {
                out.append(Payload::zeroes((start - at) as usize));
                at = start;
            }
            let from = (at - start) as usize;
            let to = data.len().min((end - start) as usize);
            out.push(data.slice(from..to));
            at = start + to as u64;
        }
        if at < end {
            out.append(Payload::zeroes((end - at) as usize));
        }
        out
    }

    /// Returns where data or a hole begins at or after `offset`.
    pub(super) fn seek(&self, offset: u64, what: Seek) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        match what {
            Seek::Data => self.overlapping(offset..self.size).next().map(|(start, _)| start.max(offset)),
            Seek::Hole => {
                let mut at = offset;
                for (start, data) in self.overlapping(offset..self.size) {
                    if start > at {
                        break;
                    }
                    at = start + data.len() as u64;
                }
                Some(at.min(self.size))
            }
        }
    }

    /// Extents that touch `range`, in order.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Bytes)> {
        let first = self.first_touching(range.start);
        // An empty range may be inverted by a read beyond the end.
        self.extents
            .range(first.min(range.end)..range.end.max(first))
            .map(|(o, d)| (*o, d))
            .filter(move |(o, d)| *o < range.end && o + d.len() as u64 > range.start)
    }

    /// The start of the extent that covers `offset`, or `offset` itself.
    fn first_touching(&self, offset: u64) -> u64 {
        match self.extents.range(..offset).next_back() {
            Some((start, data)) if start + data.len() as u64 > offset => *start,
            _ => offset,
        }
    }

    /// Removes and returns the data in `range`, splitting extents at its borders.
    fn cut(&mut self, range: Range<u64>) -> Vec<(u64, Bytes)> {
        if range.is_empty() {
            return Vec::new();
        }
        let touched: Vec<u64> = self.overlapping(range.clone()).map(|(o, _)| o).collect();
        let mut removed = Vec::with_capacity(touched.len());
        for start in touched {
            let data = self.extents.remove(&start).expect("an extent that was found is there");
            assert!(data.len() as u64 <= self.bytes, "{} bytes are cut out of {}", data.len(), self.bytes);
            self.bytes -= data.len() as u64;
            let end = start + data.len() as u64;
            let (from, to) = (start.max(range.start), end.min(range.end));
            if start < from {
                self.insert(start, data.slice(..(from - start) as usize));
            }
            if to < end {
                self.insert(to, data.slice((to - start) as usize..));
            }
            removed.push((from, data.slice((from - start) as usize..(to - start) as usize)));
        }
        removed
    }

    fn insert(&mut self, offset: u64, data: Bytes) {
        assert!(!data.is_empty(), "an extent at {offset} is empty");
        self.bytes += data.len() as u64;
        let replaced = self.extents.insert(offset, data);
        assert!(replaced.is_none(), "extents overlap at {offset}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(o: &mut Object, offset: u64, data: &[u8]) {
        o.apply(Change::Write { offset, data: data.to_vec().into() });
    }

    fn all(o: &Object) -> Vec<u8> {
        o.read(0, o.size as usize).to_bytes().to_vec()
    }

    #[test]
    fn undo_restores_every_state_in_turn() {
        let mut prng = Prng::new(1);
        let mut o = Object::default();
        let mut states = vec![(all(&o), o.bytes())];
        for i in 0..400u64 {
            let (a, b) = (prng.below(3000), 1 + prng.below(700));
            o.apply(match prng.below(6) {
                0 => Change::Truncate { size: a },
                1 => Change::Punch { range: a..a + b },
                2 => Change::Allocate { range: a..a + b, mode: AllocateMode::ZeroRange },
                3 => Change::Allocate { range: a..a + b, mode: AllocateMode::KeepSize },
                _ => Change::Write { offset: a, data: vec![i as u8; b as usize].into() },
            });
            states.push((all(&o), o.bytes()));
        }
        assert_eq!(o.bytes, o.extents.values().map(|e| e.len() as u64).sum::<u64>());
        while let Some(state) = states.pop() {
            assert_eq!((all(&o), o.bytes()), state);
            assert_eq!(o.undo(), !states.is_empty());
        }
    }

    #[test]
    fn a_power_cut_takes_unsynced_writes_whole_or_by_the_sector() {
        let mut survived = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let mut o = Object::default();
            write(&mut o, 0, &[1; 2048]);
            let upto = o.changes();
            write(&mut o, 0, &[2; 2048]);
            o.mark_synced(upto);
            o.cut_power(Some(&mut Prng::new(seed)));
            let new = all(&o).iter().take_while(|b| **b == 2).count();
            assert_eq!(all(&o)[new..], [1; 2048][new..]);
            survived.insert(new);
        }
        assert!(survived.iter().all(|n| n % SECTOR == 0));
        assert!(survived.len() >= 4 && survived.contains(&0) && survived.contains(&2048), "{survived:?}");
    }

    #[test]
    fn a_plain_power_cut_leaves_exactly_what_was_synced() {
        let mut o = Object::default();
        write(&mut o, 10, b"synced");
        o.mark_synced(o.changes());
        write(&mut o, 12, b"unsynced..");
        o.apply(Change::Truncate { size: 3 });
        o.cut_power(None);
        assert_eq!(&all(&o)[10..], b"synced");
    }
}
