//! An upper bound of the pages that the running transaction has taken, computed from the shapes of the tables. The
//! library does not report which pages it has copied; but on each level of a table it copies at most one page and its
//! neighbour for each change, never more pages than there were, and the table's counts include added pages.

use crate::space::{Cost, PAGE, Taken};

/// Levels and pages of one table, as the library counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Shape {
    pub(super) depth: u64,
    pub(super) branch_pages: u64,
    pub(super) leaf_pages: u64,
    pub(super) overflow_pages: u64,
}

/// Pages that a transaction has taken, by table.
pub(super) struct TreeUse {
    tables: Vec<TableUse>,
    runs: u64,
}

struct TableUse {
    begun: Shape,
    now: Shape,
    /// Pages touched on each level: one by a change, two by a removal, which may merge a page with its neighbour.
    touched: u64,
    /// Pages that splits have added; pages that were merged away are not subtracted.
    added: u64,
    /// Pages of large values.
    large: u64,
}

/// A record up to this size lies in a page with others.
const IN_PAGE_MAX: u64 = 2030;

/// Overflow pages of a record's value; 0 if the record lies in a page with others.
pub(super) fn pages_of_its_own(key_len: usize, value_len: usize) -> u64 {
    if (key_len + value_len) as u64 <= IN_PAGE_MAX { 0 } else { (value_len as u64 + 16).div_ceil(PAGE) }
}

impl TreeUse {
    pub(super) fn new(shapes: Vec<Shape>) -> TreeUse {
        let table = |begun: Shape| TableUse { begun, now: begun, touched: 0, added: 0, large: 0 };
        TreeUse { tables: shapes.into_iter().map(table).collect(), runs: 0 }
    }

    /// Pages that one more change of table `t` takes at most, with a value that has `own_pages`.
    pub(super) fn next(&self, t: usize, own_pages: u64) -> Cost {
        // A copy of each page on the way and of a neighbour, a split on each level, a new root.
        let path = 3 * self.tables[t].now.depth + 2;
        Cost { pages: path + own_pages, run: own_pages }
    }

    /// Counts a record that was put.
    pub(super) fn put(&mut self, t: usize, now: Shape, own_pages: u64) {
        self.changed(t, 1, now, own_pages);
    }

    /// Counts a removal that was made.
    pub(super) fn deleted(&mut self, t: usize, now: Shape) {
        self.changed(t, 2, now, 0);
    }

    fn changed(&mut self, t: usize, touched: u64, now: Shape, own_pages: u64) {
        let table = &mut self.tables[t];
        let pages = |shape: &Shape| shape.branch_pages + shape.leaf_pages;
        table.touched += touched;
        table.added += pages(&now).saturating_sub(pages(&table.now));
        table.large += own_pages;
        table.now = now;
        if own_pages > 1 {
            self.runs += own_pages;
        }
    }

    /// Pages that all changes have taken; those beyond `before` are the current operation's.
    pub(super) fn taken(&self, before: u64) -> Taken {
        let pages = self.pages();
        assert!(before <= pages, "the running transaction has taken {pages} pages, and had {before} before");
        Taken { pages, used: self.used(), runs: self.runs, by_operation: pages - before }
    }

    /// Pages of the tables as they are now.
    pub(super) fn used(&self) -> u64 {
        self.tables.iter().map(|t| t.now.branch_pages + t.now.leaf_pages + t.now.overflow_pages).sum()
    }

    /// Pages that all changes have taken at most.
    pub(super) fn pages(&self) -> u64 {
        self.tables.iter().map(TableUse::pages).sum()
    }
}

impl TableUse {
    fn pages(&self) -> u64 {
        let touched = self.touched;
        let above_leaves = self.begun.depth.saturating_sub(1);
        let copied = touched.min(self.begun.leaf_pages) + (touched * above_leaves).min(self.begun.branch_pages);
        copied + self.added + self.large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: Shape = Shape { depth: 3, branch_pages: 5, leaf_pages: 300, overflow_pages: 0 };

    #[test]
    fn copies_are_bounded_by_changes_and_by_pages() {
        let mut used = TreeUse::new(vec![TREE, Shape::default()]);
        assert_eq!(used.pages(), 0);
        used.deleted(0, TREE);
        assert_eq!(used.pages(), 2 + 4);
        used.put(0, TREE, 0);
        assert_eq!(used.pages(), 3 + 5);
        for _ in 1..1000 {
            used.put(0, TREE, 0);
        }
        assert_eq!(used.pages(), 305, "each page is copied once");
        let grown = Shape { leaf_pages: 310, ..TREE };
        used.put(0, grown, 0);
        used.deleted(0, TREE);
        used.put(0, grown, 3);
        let taken = used.taken(305);
        assert_eq!((taken.pages, taken.by_operation, taken.runs), (305 + 20 + 3, 23, 3));
    }

    #[test]
    fn large_values_have_pages_of_their_own() {
        assert_eq!((pages_of_its_own(20, 2000), pages_of_its_own(20, 2020)), (0, 1));
        assert_eq!((pages_of_its_own(20, 4080), pages_of_its_own(20, 4081)), (1, 2));
    }
}
