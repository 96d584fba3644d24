//! Counts the changes of the directories whose entries change most, so that an administrator sees which one keeps an MDT busy. A sans-IO
//! engine.
//!
//! It remembers a bounded number of directories (the "Space-Saving" algorithm): a new directory takes the place and the count of the one with
//! the fewest changes. So a count may be too high by the lowest count, and a directory with more than one in [`KEPT_MAX`] of all changes is
//! always remembered. All of them are shown, because a directory that has become busy may have fewer changes in all than many others.

use nacre_base::param::value::{Drawn, Fields};
use nacre_base::{Fid, FxHashMap};
use std::fmt;

/// Directories that are remembered.
const KEPT_MAX: usize = 256;

/// The engine.
#[derive(Default)]
pub(crate) struct Busiest {
    changes: FxHashMap<Fid, u64>,
}

impl Busiest {
    /// Counts a change of one of the directory's entries.
    pub(crate) fn count(&mut self, directory: Fid) {
        if self.changes.len() >= KEPT_MAX && !self.changes.contains_key(&directory) {
            // The FID decides between equals, so that simulations repeat.
            let least = self.changes.iter().map(|(fid, changes)| (*changes, *fid)).min();
            let (changes, fid) = least.expect("a full table has entries");
            self.changes.remove(&fid);
            self.changes.insert(directory, changes);
        }
        *self.changes.entry(directory).or_default() += 1;
        assert!(self.changes.len() <= KEPT_MAX, "{} directories are remembered", self.changes.len());
    }

    /// Shows the changes by FID, the most first.
    pub(crate) fn show(&self) -> Drawn {
        let mut all: Vec<_> = self.changes.iter().map(|(fid, changes)| (*changes, *fid)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut fields = Fields::default();
        for (changes, fid) in all {
            fields.push(fid.to_string(), changes);
        }
        Drawn { fields, draw }
    }
}

fn draw(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fields.0.iter().try_for_each(|field| writeln!(f, "{:<28} {}", field.name, field.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;

    #[test]
    fn the_busiest_is_known_among_many_others() {
        let directory = |oid: u32| Fid { seq: 0x200_0000_0400, oid, ver: 0 };
        let mut busiest = Busiest::default();
        for n in 0..20_000 {
            busiest.count(directory(if n % 3 == 0 { 7 } else { 1000 + n }));
        }
        assert_eq!(busiest.changes.len(), KEPT_MAX);
        assert!((6666..6800).contains(&busiest.changes[&directory(7)]), "{:?}", busiest.changes[&directory(7)]);
        let text = busiest.show().into_value().to_string();
        assert!(text.starts_with("[0x20000000400:0x7:0x0]"), "{text}");
        assert_eq!(text.lines().count(), KEPT_MAX);
        // A directory that becomes busy is shown, although others have changed more often.
        (0..8).for_each(|_| busiest.count(directory(9)));
        assert!(busiest.show().into_value().to_string().contains("[0x20000000400:0x9:0x0]"));
    }
}
