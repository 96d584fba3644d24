//! What was done to a target, what was promised and when, and whether what is found after a power cut keeps the promises
//! of `nacre_osd`: a prefix of the operations, whole; all that was acknowledged; no record of data that is not there.
//!
//! Times are of two kinds. *Positions* are events of the disk: a power cut at position p knows nothing of what began at
//! or after p, and must keep what was acknowledged at or before p. *Ticks* order what the workload began and ended.

use nacre_base::Fid;
use std::collections::BTreeMap;
use std::ops::Range;

/// Tables that operations change, in the order of their numbers in [`Entry`].
pub(crate) const TABLES: usize = 3;

/// A table's number, a key, and its new value or `None` if it goes.
pub(crate) type Entry = (usize, Vec<u8>, Option<Vec<u8>>);
/// What tables hold.
pub(crate) type Tables = [BTreeMap<Vec<u8>, Vec<u8>>; TABLES];

/// The key in table 0 that holds the number of the last operation.
pub(crate) const LAST: &[u8] = b"last";

/// All that was done, in order.
#[derive(Default)]
pub(crate) struct History {
    operations: Vec<Operation>,
    objects: BTreeMap<Fid, Object>,
    promises: Vec<Promise>,
    begins_at: usize,
    clock: u64,
}

struct Operation {
    entries: Vec<Entry>,
    /// When it had its turn.
    tick: u64,
    /// When its commit callback ran.
    told: Option<u64>,
}

#[derive(Default)]
struct Object {
    /// One after the other.
    mutations: Vec<Mutation>,
    /// Position at which its removal began.
    removed: Option<u64>,
}

struct Mutation {
    change: Change,
    /// Position.
    began: u64,
    /// Tick; never, while it is under way.
    ended: u64,
}

/// What was done to the data of an object.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Bytes of this version were written to each range.
    Write(u64, Vec<Range<u64>>),
    /// The object got this size.
    Truncate(u64),
    /// The range was made zeros; the object grew to its end, or not.
    Zero(Range<u64>, bool),
}

/// An acknowledgement of all that was done up to a tick.
struct Promise {
    operations: usize,
    tick: u64,
    /// Of the data of one object only, and of no operation.
    object: Option<Fid>,
    /// Position.
    told: u64,
}

/// What was found after a power cut.
pub(crate) struct Found {
    /// The content of the tables.
    pub(crate) tables: Tables,
    /// The data of each object.
    pub(crate) objects: BTreeMap<Fid, Vec<u8>>,
}

impl Found {
    /// Bytes of object data.
    pub(crate) fn bytes(&self) -> u64 {
        self.objects.values().map(|data| data.len() as u64).sum()
    }
}

impl History {
    /// From here on power cuts are of interest.
    pub(crate) fn begin(&mut self, position: u64) {
        self.begins_at = position as usize;
    }

    /// Where that is.
    pub(crate) fn begins_at(&self) -> usize {
        self.begins_at
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The number that the next operation has, from 1.
    pub(crate) fn next_operation(&self) -> u64 {
        self.operations.len() as u64 + 1
    }

    /// An operation is about to be finished.
    pub(crate) fn handle_operation(&mut self, entries: Vec<Entry>) {
        let tick = self.tick();
        self.operations.push(Operation { entries, tick, told: None });
    }

    /// The commit callback of an operation runs.
    pub(crate) fn handle_told(&mut self, operation: u64, position: u64) {
        self.operations[operation as usize - 1].told = Some(position);
    }

    /// A change of an object's data begins.
    pub(crate) fn handle_change_begins(&mut self, object: Fid, change: Change, position: u64) {
        let mutation = Mutation { change, began: position, ended: u64::MAX };
        self.objects.entry(object).or_default().mutations.push(mutation);
    }

    /// The change of this object that began last has returned.
    pub(crate) fn handle_change_ends(&mut self, object: Fid) {
        let tick = self.tick();
        if let Some(last) = self.objects.get_mut(&object).and_then(|o| o.mutations.last_mut()) {
            last.ended = tick;
        }
    }

    /// An object's removal begins.
    pub(crate) fn handle_removal(&mut self, object: Fid, position: u64) {
        self.objects.entry(object).or_default().removed = Some(position);
    }

    /// A commit, or the sync of an object, is about to be asked for: what it will have promised.
    pub(crate) fn before_promise(&mut self) -> (usize, u64) {
        (self.operations.len(), self.tick())
    }

    /// It has returned.
    pub(crate) fn handle_promise(&mut self, before: (usize, u64), object: Option<Fid>, position: u64) {
        let (operations, tick) = before;
        let operations = if object.is_some() { 0 } else { operations };
        self.promises.push(Promise { operations, tick, object, told: position });
    }

    /// In words.
    pub(crate) fn sums(&self) -> String {
        let mutations: usize = self.objects.values().map(|o| o.mutations.len()).sum();
        let removed = self.objects.values().filter(|o| o.removed.is_some()).count();
        let told = self.operations.iter().filter(|o| o.told.is_some()).count();
        format!(
            "{} operations ({told} told durable by callback), {mutations} changes of {} objects, {removed} removed, {} syncs \
             acknowledged",
            self.operations.len(),
            self.objects.len(),
            self.promises.len()
        )
    }

    /// Whether what was found after a power cut at `point` keeps every promise; how many operations are there that
    /// nobody had been promised.
    pub(crate) fn check(&self, point: u64, found: &Found) -> Result<u64, String> {
        let last = found.tables[0].get(LAST).map(|v| <[u8; 8]>::try_from(&v[..]).map(u64::from_be_bytes));
        let last = last.unwrap_or(Ok(0)).map_err(|_| "the number of the last operation is damaged")?;
        let done = self.operations.get(..last as usize).ok_or("operations that nobody did")?;
        let told = self.operations.iter().rposition(|o| o.told.is_some_and(|at| at <= point)).map_or(0, |n| n + 1);
        let kept = |p: &&Promise| p.told <= point;
        let synced = self.promises.iter().filter(kept).map(|p| p.operations).max().unwrap_or(0);
        let promised = told.max(synced);
        if done.len() < promised {
            return Err(format!("{} operations are there, {promised} were acknowledged", done.len()));
        }
        check_tables(done, &found.tables)?;
        let tick = done.last().map_or(0, |o| o.tick);
        for (fid, object) in &self.objects {
            let ticks = self.promises.iter().filter(kept).filter(|p| p.object.is_none_or(|o| o == *fid));
            let floor = ticks.map(|p| p.tick).max().unwrap_or(0).max(tick);
            let content = found.objects.get(fid).map(Vec::as_slice);
            object.check(point, floor, content).map_err(|e| format!("object {fid} with {last} operations: {e}"))?;
        }
        match found.objects.keys().find(|fid| !self.objects.contains_key(fid)) {
            Some(fid) => Err(format!("object {fid} was never made")),
            None => Ok((done.len() - promised) as u64),
        }
    }
}

/// Whether tables are as exactly these operations leave them.
fn check_tables(done: &[Operation], found: &Tables) -> Result<(), String> {
    let mut expected = Tables::default();
    for (table, key, value) in done.iter().flat_map(|o| &o.entries) {
        match value {
            Some(value) => drop(expected[*table].insert(key.clone(), value.clone())),
            None => drop(expected[*table].remove(key)),
        }
    }
    for (n, (expected, found)) in expected.iter().zip(found).enumerate() {
        if expected != found {
            let wrong = expected.keys().chain(found.keys()).find(|k| expected.get(*k) != found.get(*k));
            return Err(format!("table {n} after {} operations is wrong at key {wrong:?}", done.len()));
        }
    }
    Ok(())
}

impl Object {
    /// All that ended before tick `floor` must be there; of what began later each byte may be there.
    fn check(&self, point: u64, floor: u64, content: Option<&[u8]>) -> Result<(), String> {
        if self.removed.is_some_and(|at| at < point) {
            return Ok(()); // There, not there, or in part.
        }
        let durable = self.mutations.iter().take_while(|m| m.ended < floor).count();
        let (durable, later) = self.mutations.split_at(durable);
        let Some(content) = content else {
            return if durable.is_empty() { Ok(()) } else { Err(format!("lost with {} changes", durable.len())) };
        };
        let later: Vec<&Change> = later.iter().filter(|m| m.began < point).map(|m| &m.change).collect();
        if durable.is_empty() && later.is_empty() {
            return Err("there before it was made".to_owned());
        }
        let mut expected = Vec::new();
        durable.iter().for_each(|m| m.change.apply(&mut expected));
        let sizes = later.iter().fold((expected.len() as u64, expected.len() as u64), |(least, most), change| {
            let size = change.size(most);
            (least.min(if let Change::Truncate(size) = change { *size } else { least }), most.max(size))
        });
        if !(sizes.0..=sizes.1).contains(&(content.len() as u64)) {
            return Err(format!("{} bytes long instead of {} to {}", content.len(), sizes.0, sizes.1));
        }
        expected.resize(content.len(), 0);
        if expected == content {
            return Ok(());
        }
        let is_wrong =
            |at: usize| content[at] != expected[at] && !later.iter().any(|c| c.byte(at as u64) == Some(content[at]));
        match (0..content.len()).find(|at| is_wrong(*at)) {
            Some(at) => {
                let count = (at..content.len()).filter(|at| is_wrong(*at)).count();
                let (is, should) = (content[at], expected[at]);
                Err(format!(
                    "byte {at} is {is} instead of {should}, {count} bytes wrong; {} later changes",
                    later.len()
                ))
            }
            None => Ok(()),
        }
    }
}

impl Change {
    fn apply(&self, data: &mut Vec<u8>) {
        let size = self.size(data.len() as u64);
        data.resize(size as usize, 0);
        match self {
            Change::Write(version, ranges) => {
                for range in ranges {
                    fill(*version, range.start, &mut data[range.start as usize..range.end as usize]);
                }
            }
            Change::Truncate(_) => {}
            Change::Zero(range, _) => {
                let end = range.end.min(size) as usize;
                data[(range.start as usize).min(end)..end].fill(0);
            }
        }
    }

    /// The object's size afterwards.
    fn size(&self, before: u64) -> u64 {
        match self {
            Change::Write(_, ranges) => ranges.iter().map(|r| r.end).max().unwrap_or(0).max(before),
            Change::Truncate(size) => *size,
            Change::Zero(range, grows) => {
                if *grows {
                    range.end.max(before)
                } else {
                    before
                }
            }
        }
    }

    /// What it made of a byte, if it touched it.
    fn byte(&self, at: u64) -> Option<u8> {
        match self {
            Change::Write(version, ranges) => ranges.iter().any(|r| r.contains(&at)).then(|| byte(*version, at)),
            // Cut off, and grown over again since.
            Change::Truncate(size) => (at >= *size).then_some(0),
            Change::Zero(range, _) => range.contains(&at).then_some(0),
        }
    }
}

/// Fills `data`, which begins at `offset` of an object, with the bytes that only this version has there.
pub(crate) fn fill(version: u64, offset: u64, data: &mut [u8]) {
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        let word = word(version, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let len = rest.len().min(8 - from);
        rest[..len].copy_from_slice(&word[from..from + len]);
        at += len as u64;
        rest = &mut rest[len..];
    }
}

fn byte(version: u64, at: u64) -> u8 {
    word(version, at / 8).to_le_bytes()[(at % 8) as usize]
}

fn word(version: u64, at: u64) -> u64 {
    nacre_base::hash::mix64(version << 32 ^ at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: Fid = Fid { seq: 7, oid: 1, ver: 0 };

    fn put(key: &str, value: &str, number: u64) -> Vec<Entry> {
        let entry = (1, key.as_bytes().to_vec(), Some(value.as_bytes().to_vec()));
        vec![entry, (0, LAST.to_vec(), Some(number.to_be_bytes().to_vec()))]
    }

    /// Writes version 1, operation 1 records it (told at position 10), version 2 overwrites the half from position 20
    /// on, operation 2 (never told).
    fn history() -> History {
        let mut h = History::default();
        let write = |version, range| Change::Write(version, vec![range]);
        h.handle_change_begins(OBJECT, write(1, 0..100), 1);
        h.handle_change_ends(OBJECT);
        h.handle_operation(put("a", "1", 1));
        h.handle_told(1, 10);
        h.handle_change_begins(OBJECT, write(2, 0..50), 20);
        h.handle_change_ends(OBJECT);
        h.handle_operation(put("a", "2", 2));
        h
    }

    fn found(h: &History, operations: usize, versions: &[(u64, Range<u64>)]) -> Found {
        let mut tables = Tables::default();
        for (t, k, v) in h.operations[..operations].iter().flat_map(|o| &o.entries) {
            tables[*t].insert(k.clone(), v.clone().unwrap());
        }
        let mut data = Vec::new();
        for (v, r) in versions {
            Change::Write(*v, vec![r.clone()]).apply(&mut data);
        }
        let objects = if versions.is_empty() { BTreeMap::new() } else { [(OBJECT, data)].into() };
        Found { tables, objects }
    }

    #[test]
    fn promises_are_checked_from_the_moment_they_are_given() {
        let h = history();
        let nothing = found(&h, 0, &[]);
        assert_eq!(h.check(9, &nothing), Ok(0), "nobody was told yet");
        assert!(h.check(10, &nothing).unwrap_err().contains("1 were acknowledged"));
        assert_eq!(h.check(10, &found(&h, 1, &[(1, 0..100)])), Ok(0));
        assert_eq!(h.check(9, &found(&h, 1, &[(1, 0..100)])), Ok(1));
    }

    #[test]
    fn a_record_needs_its_data_and_later_data_may_be_there() {
        let h = history();
        assert!(h.check(10, &found(&h, 1, &[])).unwrap_err().contains("lost"));
        assert!(h.check(10, &found(&h, 1, &[(1, 0..99)])).unwrap_err().contains("99 bytes long"));
        let partly_new = found(&h, 1, &[(1, 0..100), (2, 10..20)]);
        assert_eq!(h.check(30, &partly_new), Ok(0), "it was under way");
        assert!(h.check(15, &partly_new).unwrap_err().contains("byte 1"), "it had not begun");
        assert!(h.check(30, &found(&h, 2, &[(1, 0..100), (2, 10..20)])).unwrap_err().contains("wrong"));
        assert_eq!(h.check(30, &found(&h, 2, &[(1, 0..100), (2, 0..50)])), Ok(1));
    }

    #[test]
    fn half_an_operation_is_seen() {
        let h = history();
        let mut half = found(&h, 2, &[(1, 0..100), (2, 0..50)]);
        half.tables[1].insert(b"a".to_vec(), b"1".to_vec());
        assert!(h.check(30, &half).unwrap_err().contains("table 1 after 2 operations is wrong"));
    }

    #[test]
    fn a_sync_of_an_object_promises_its_data_alone() {
        let mut h = history();
        let before = h.before_promise();
        h.handle_promise(before, Some(OBJECT), 40);
        assert!(h.check(40, &found(&h, 1, &[(1, 0..100)])).unwrap_err().contains("wrong"));
        assert_eq!(h.check(40, &found(&h, 1, &[(1, 0..100), (2, 0..50)])), Ok(0));
        h.handle_removal(OBJECT, 50);
        assert_eq!(h.check(51, &found(&h, 1, &[])), Ok(0));
        assert!(h.check(50, &found(&h, 1, &[])).is_err());
    }
}
