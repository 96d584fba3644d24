//! A transaction whose changes are kept aside, for the repairs of a dry run. Later parts of the check see them, as they
//! must; clients do not.

use bytes::Bytes;
use nacre_osd::{CommitCallback, OsdError, PendingData, Table, Transaction, Visitor};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// Changes with the former values. A change counts only as long as the stored value is still the former one, because in a
/// live file system others change the same records.
#[derive(Debug, Default)]
pub(crate) struct Changes(BTreeMap<(Table, Vec<u8>), Change>);

#[derive(Debug)]
struct Change {
    before: Option<Bytes>,
    after: Option<Bytes>,
}

impl Changes {
    /// A transaction over `below` that sees these changes.
    pub(crate) fn over<'a>(&'a mut self, below: &'a mut dyn Transaction) -> Overlay<'a> {
        Overlay { below, changes: self }
    }

    fn of(&self, table: Table, from: &[u8]) -> impl Iterator<Item = (&[u8], &Change)> {
        let first = Bound::Included((table, from.to_vec()));
        let rest = self.0.range((first, Bound::Unbounded));
        rest.take_while(move |((t, _), _)| *t == table).map(|((_, key), change)| (&key[..], change))
    }
}

/// A transaction with changes on top of it.
pub(crate) struct Overlay<'a> {
    below: &'a mut dyn Transaction,
    changes: &'a mut Changes,
}

impl Overlay<'_> {
    fn change(&mut self, table: Table, key: &[u8], after: Option<Bytes>) -> Result<(), OsdError> {
        let before = self.below.get(table, key)?;
        self.changes.0.insert((table, key.to_vec()), Change { before, after });
        Ok(())
    }
}

impl Transaction for Overlay<'_> {
    fn use_reserve(&mut self) {}

    fn count(&self, table: Table) -> Result<u64, OsdError> {
        let mut count = 0;
        self.scan(table, &[], &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let below = self.below.get(table, key)?;
        match self.changes.0.get(&(table, key.to_vec())) {
            Some(change) if change.before == below => Ok(change.after.clone()),
            _ => Ok(below),
        }
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), OsdError> {
        self.change(table, key, Some(Bytes::copy_from_slice(value)))
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool, OsdError> {
        let there = self.get(table, key)?.is_some();
        self.change(table, key, None)?;
        Ok(there)
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut Visitor<'_>) -> Result<(), OsdError> {
        let mut ours = self.changes.of(table, from).peekable();
        let mut ended = false;
        self.below.scan(table, from, &mut |key, value| {
            while let Some((k, change)) = ours.next_if(|(k, _)| *k < key) {
                // Created by a repair where there was no record.
                if let (None, Some(after)) = (&change.before, &change.after)
                    && visit(k, after).is_break()
                {
                    ended = true;
                    return ControlFlow::Break(());
                }
            }
            let change = ours.next_if(|(k, _)| *k == key).map(|(_, change)| change);
            let flow = match change.filter(|c| c.before.as_deref() == Some(value)) {
                None => visit(key, value),
                Some(Change { after: Some(after), .. }) => visit(key, after),
                Some(Change { after: None, .. }) => ControlFlow::Continue(()),
            };
            ended = flow.is_break();
            flow
        })?;
        if !ended {
            let made = ours.filter(|(_, c)| c.before.is_none());
            for (key, after) in made.filter_map(|(key, c)| Some((key, c.after.as_ref()?))) {
                if visit(key, after).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn on_commit(&mut self, _: CommitCallback) {}

    fn commit_after(&mut self, _: PendingData) {}

    fn finish(self: Box<Self>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use nacre_osd::Osd;
    use nacre_osd::mem::{MemOptions, MemOsd};
    use nacre_rt::Sim;

    const T: Table = Table("t");
    const U: Table = Table("u");

    fn all(tx: &dyn Transaction, from: &[u8]) -> String {
        let mut text = String::new();
        let mut visit = |k: &[u8], v: &[u8]| {
            text += &format!("{}{} ", String::from_utf8_lossy(k), String::from_utf8_lossy(v));
            ControlFlow::Continue(())
        };
        tx.scan(T, from, &mut visit).unwrap();
        text
    }

    #[test]
    fn repairs_of_a_dry_run_are_seen_by_it_and_nobody_else() {
        let sim = Sim::new(1);
        let osd = MemOsd::new(&sim.rt(), &[T, U], MemOptions::default());
        let mut tx = osd.begin().now_or_never().unwrap().unwrap();
        for key in [b"b", b"d", b"f"] {
            tx.put(T, key, b"0").unwrap();
        }
        let mut changes = Changes::default();
        let mut view = changes.over(&mut *tx);
        for key in [b"a", b"c", b"d", b"g"] {
            view.put(T, key, b"1").unwrap();
        }
        view.put(U, b"a", b"1").unwrap();
        assert!(view.delete(T, b"f").unwrap());
        assert!(!view.delete(T, b"x").unwrap());
        assert_eq!(all(&view, b""), "a1 b0 c1 d1 g1 ");
        assert_eq!(all(&view, b"c"), "c1 d1 g1 ");
        assert_eq!((view.get(T, b"f").unwrap(), view.get(T, b"g").unwrap()), (None, Some(Bytes::from_static(b"1"))));
        let mut first = Vec::new();
        let mut once = |k: &[u8], _: &[u8]| {
            first = k.to_vec();
            ControlFlow::Break(())
        };
        view.scan(T, b"e", &mut once).unwrap();
        assert_eq!(first, b"g");
        assert_eq!(all(&*tx, b""), "b0 d0 f0 ");
        // Others changed a record that a repair had changed, and one that a repair had created.
        tx.put(T, b"d", b"9").unwrap();
        tx.put(T, b"a", b"9").unwrap();
        assert_eq!(all(&changes.over(&mut *tx), b""), "a9 b0 c1 d9 g1 ");
    }
}
