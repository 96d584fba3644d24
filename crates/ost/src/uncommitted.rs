//! The bytes of an object that were changed since the last commit, and the clients that changed them. A client must not
//! read another client's write that a crash of the OST and of the writer could undo, so such a read waits for a commit.
//!
//! Locks that are called back for a reader are given back after a commit. But data can become readable without a
//! callback: its writer gave the lock back unasked or to another writer, or wrote under a lock that the OST took for the
//! request.

use nacre_base::{Transno, Uuid};
use nacre_ldlm::{Extent, RangeSet};
use std::collections::BTreeMap;

/// Number of pieces at which all are merged into one. Merging may cost an unneeded commit, but never omits one.
const PIECES_MAX: usize = 1024;
/// Fewest pieces at which committed ones are looked for.
const PRUNE_AT_LEAST: usize = 64;

/// The changes of one object that are not known to be committed.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    /// Pieces by first byte; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Number of pieces at which committed ones are dropped.
    prune_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Last byte.
    end: u64,
    /// Client that made the change; none if there were several.
    writer: Option<Uuid>,
    transno: Transno,
}

impl Uncommitted {
    /// `writer` changed `ranges` in transaction `transno`, which is not committed; everything up to `committed` is.
    pub(crate) fn handle_change(&mut self, ranges: &RangeSet, writer: Uuid, transno: Transno, committed: Transno) {
        for extent in ranges.ranges() {
            self.cut(extent);
            self.insert(extent.start, Piece { end: extent.end, writer: Some(writer), transno });
        }
        if self.pieces.len() >= self.prune_at.max(PRUNE_AT_LEAST) {
            self.pieces.retain(|_, piece| piece.transno > committed);
            if self.pieces.len() > PIECES_MAX {
                self.merge();
            }
            self.prune_at = 2 * self.pieces.len();
        }
    }

    /// Returns whether any byte of `ranges` was changed by another client than `reader` and may not be committed, where
    /// everything up to `committed` is.
    pub(crate) fn is_seen_by(&self, ranges: &RangeSet, reader: Uuid, committed: Transno) -> bool {
        let matters = |piece: &Piece| piece.transno > committed && piece.writer != Some(reader);
        ranges.ranges().iter().any(|extent| self.overlapping(extent).any(|(_, piece)| matters(&piece)))
    }

    /// Pieces that overlap `extent`.
    fn overlapping(&self, extent: &Extent) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let first = extent.start;
        let before = self.pieces.range(..first).next_back().filter(move |(_, piece)| piece.end >= first);
        before.into_iter().chain(self.pieces.range(first..=extent.end)).map(|(start, piece)| (*start, *piece))
    }

    /// Removes `extent` from all pieces.
    fn cut(&mut self, extent: &Extent) {
        let overlapped: Vec<(u64, Piece)> = self.overlapping(extent).collect();
        for (start, piece) in overlapped {
            self.pieces.remove(&start);
            if start < extent.start {
                self.insert(start, Piece { end: extent.start - 1, ..piece });
            }
            if piece.end > extent.end {
                self.insert(extent.end + 1, piece);
            }
        }
    }

    fn insert(&mut self, start: u64, piece: Piece) {
        assert!(start <= piece.end, "a piece from {start} to {} is none", piece.end);
        let replaced = self.pieces.insert(start, piece);
        assert!(replaced.is_none(), "{piece:?} from {start} takes the place of {replaced:?}");
    }

    /// Panics if two pieces overlap.
    #[cfg(test)]
    fn check(&self) {
        for ((start, piece), (next, _)) in self.pieces.iter().zip(self.pieces.iter().skip(1)) {
            assert!(piece.end < *next, "{piece:?} from {start} reaches the one from {next}");
        }
    }

    /// Merges all pieces into one.
    fn merge(&mut self) {
        let start = *self.pieces.keys().next().expect("there are pieces to be merged");
        let end = self.pieces.values().map(|piece| piece.end).max().unwrap_or(start);
        let transno = self.pieces.values().map(|piece| piece.transno).max().unwrap_or_default();
        self.pieces.clear();
        self.insert(start, Piece { end, writer: None, transno });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn client(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    fn range(start: u64, end: u64) -> RangeSet {
        RangeSet::single(Extent { start, end })
    }

    #[test]
    fn only_what_others_wrote_and_is_not_committed_matters() {
        let mut changes = Uncommitted::default();
        changes.handle_change(&range(100, 199), client(1), Transno(7), Transno(5));
        let seen =
            |ranges: &RangeSet, reader, committed| changes.is_seen_by(ranges, client(reader), Transno(committed));
        assert!(seen(&range(0, 100), 2, 6) && seen(&range(199, 500), 2, 6) && seen(&RangeSet::ALL, 2, 6));
        assert!(!seen(&range(100, 199), 1, 6), "its own");
        assert!(!seen(&range(100, 199), 2, 7), "committed");
        assert!(!seen(&range(0, 99), 2, 6) && !seen(&range(200, u64::MAX), 2, 6), "beside it");
    }

    #[test]
    fn too_many_pieces_become_one_that_covers_them() {
        let mut changes = Uncommitted::default();
        for n in 0..3 * PIECES_MAX as u64 {
            changes.handle_change(&range(10 * n, 10 * n + 4), client(1), Transno(n + 1), Transno(0));
        }
        assert!(changes.pieces.len() <= 2 * PIECES_MAX, "{}", changes.pieces.len());
        assert!(changes.is_seen_by(&range(0, 0), client(2), Transno(0)));
        assert!(changes.is_seen_by(&range(0, 0), client(1), Transno(0)), "whose it was is not known any more");
    }

    #[test]
    #[should_panic(expected = "reaches the one from 150")]
    fn pieces_that_overlap_are_found() {
        let mut changes = Uncommitted::default();
        changes.handle_change(&range(100, 199), client(1), Transno(7), Transno(5));
        changes.insert(150, Piece { end: 300, writer: None, transno: Transno(8) });
        changes.check();
    }

    /// Compares with one entry for each byte.
    #[test]
    fn it_answers_as_a_naive_model_does() {
        const SIZE: usize = 200;
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let (mut changes, mut model) = (Uncommitted::default(), [(0u8, 0u64); SIZE]);
            let mut committed = 0;
            for transno in 1..150u64 {
                if prng.one_in(10) {
                    committed = prng.range(committed, transno);
                }
                let start = prng.below(SIZE as u64);
                let end = prng.range(start, SIZE as u64);
                let who = prng.range(1, 4) as u8;
                changes.handle_change(&range(start, end), client(who), Transno(transno), Transno(committed));
                changes.check();
                model[start as usize..=end as usize].fill((who, transno));
                let (start, who) = (prng.below(SIZE as u64), prng.range(1, 4) as u8);
                let end = prng.range(start, SIZE as u64);
                let expected = model[start as usize..=end as usize].iter().any(|(w, t)| *w != who && *t > committed);
                let got = changes.is_seen_by(&range(start, end), client(who), Transno(committed));
                assert_eq!(got, expected, "seed {seed}, transno {transno}");
            }
        }
    }
}
