//! Linearizability: whether the clients' writes and reads can be explained by one order in which every operation happens
//! at some moment between its beginning and its end. A history is of registers (a slot of a file, a size, a name's
//! target), each checked for itself; every value is written at most once, so that a read shows which write it saw.
//!
//! With unique values the question is easy (Gibbons and Korach, "Testing shared memories", 1997): take each value with
//! its write and its reads. If the first end of these operations comes before their last beginning, the register
//! certainly had the value from the one to the other. Two such times may not overlap, and all of another value's
//! operations may not lie within one.
//!
//! Cached writes may be lost with their client. So a write counts as uncertain until the client has synced. When the
//! client dies, or is told that data was lost, uncertain writes that no other client ever read count as if they had not
//! happened, and so do the client's own reads of them.

use std::collections::BTreeMap;

/// A place that holds one value: a file, and a part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Register {
    /// Number of the file.
    pub file: u32,
    /// Number of the register in the file.
    pub slot: u32,
}

/// Value of registers before the first write.
pub const INITIAL: u64 = 0;

/// An operation under way.
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation ends"]
pub struct OperationId(usize);

/// A history that grows with each operation.
#[derive(Debug, Default)]
pub struct History {
    clock: u64,
    operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
struct Operation {
    client: u32,
    register: Register,
    kind: Kind,
    /// Moments of [`History::clock`], which ticks at every beginning and end.
    begun: u64,
    /// Not set while the operation is under way, and for one whose outcome is unknown.
    ended: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A write of a value, and what can still happen to it.
    Write(u64, Fate),
    /// A read, with the value seen; none until it ends.
    Read(Option<u64>),
    /// Certainly did not happen, or does not count.
    Void,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// The write may be lost with its client.
    Cached,
    /// The write is on the server.
    Certain,
    /// The write's client is gone, or was told of a loss: the write happened if any other client saw it.
    Doubtful,
}

impl History {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, client: u32, register: Register, kind: Kind) -> OperationId {
        let begun = self.tick();
        self.operations.push(Operation { client, register, kind, begun, ended: None });
        OperationId(self.operations.len() - 1)
    }

    /// Begins a write of a value that is written nowhere else to this register.
    pub fn begin_write(&mut self, client: u32, register: Register, value: u64) -> OperationId {
        self.begin(client, register, Kind::Write(value, Fate::Cached))
    }

    /// Begins a read.
    pub fn begin_read(&mut self, client: u32, register: Register) -> OperationId {
        self.begin(client, register, Kind::Read(None))
    }

    /// The write succeeded; its data may be in a cache.
    pub fn end_write(&mut self, id: OperationId) {
        self.operations[id.0].ended = Some(self.tick());
    }

    /// The write succeeded at a server.
    pub fn end_write_through(&mut self, id: OperationId) {
        self.end_write(id);
        if let Kind::Write(_, fate) = &mut self.operations[id.0].kind {
            *fate = Fate::Certain;
        }
    }

    /// The read succeeded.
    pub fn end_read(&mut self, id: OperationId, value: u64) {
        let now = self.tick();
        let operation = &mut self.operations[id.0];
        (operation.kind, operation.ended) = (Kind::Read(Some(value)), Some(now));
    }

    /// The operation failed: a read does not count, a write may happen at any time, or never.
    pub fn fail(&mut self, id: OperationId) {
        let operation = &mut self.operations[id.0];
        match &mut operation.kind {
            Kind::Write(_, fate) => *fate = Fate::Doubtful,
            kind => *kind = Kind::Void,
        }
    }

    /// The present moment, for a sync that begins: see [`History::synced`].
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// The client's writes to the file that had ended by `moment` are on the server.
    pub fn synced(&mut self, client: u32, file: u32, moment: u64) {
        self.change_fate(client, Some(file), Fate::Certain, |o| o.ended.is_some_and(|e| e <= moment));
    }

    /// The client was told that data of the file was lost.
    pub fn reported_lost(&mut self, client: u32, file: u32) {
        self.change_fate(client, Some(file), Fate::Doubtful, |_| true);
    }

    /// The client is gone, with everything that it had cached and all its operations.
    pub fn died(&mut self, client: u32) {
        self.change_fate(client, None, Fate::Doubtful, |_| true);
    }

    fn change_fate(&mut self, client: u32, file: Option<u32>, to: Fate, which: impl Fn(&Operation) -> bool) {
        let concerned =
            |o: &&mut Operation| o.client == client && file.is_none_or(|f| o.register.file == f) && which(o);
        for operation in self.operations.iter_mut().filter(concerned) {
            if let Kind::Write(_, fate @ Fate::Cached) = &mut operation.kind {
                *fate = to;
            }
        }
    }

    /// Reads that the client began since `moment` do not count: it was cut off, and could not know that its cache was
    /// old.
    pub fn forget_reads(&mut self, client: u32, moment: u64) {
        let concerned = |o: &&mut Operation| o.client == client && o.begun > moment && matches!(o.kind, Kind::Read(_));
        self.operations.iter_mut().filter(concerned).for_each(|o| o.kind = Kind::Void);
    }

    /// Number of operations that were begun.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// True if no operation was begun.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Checks whether the history is linearizable; the error names a register that is not, and why.
    pub fn check(&self) -> Result<(), String> {
        let mut registers: BTreeMap<Register, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.operations {
            registers.entry(operation.register).or_default().push(operation);
        }
        for (register, operations) in registers {
            check_register(&operations).map_err(|e| format!("file {}, slot {}: {e}", register.file, register.slot))?;
        }
        Ok(())
    }
}

/// A value with its write and its reads.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    writer: u32,
    /// When its write began.
    written: u64,
    /// First end of any of its operations.
    first_end: u64,
    /// Last beginning of any of its operations.
    last_begin: u64,
    fate: Fate,
    /// True if a client other than its writer has read it.
    read_by_others: bool,
}

impl Zone {
    /// True if the register certainly had this value from the first end to the last beginning.
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

fn check_register(operations: &[&Operation]) -> Result<(), String> {
    let zones = zones_of(operations)?;
    let mut forward: Vec<&Zone> = zones.values().filter(|z| z.is_forward()).collect();
    forward.sort_by_key(|z| z.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(format!("{} and {} were each there at the same time", name(pair[0]), name(pair[1])));
        }
    }
    for zone in zones.values().filter(|z| !z.is_forward()) {
        let before = forward.partition_point(|f| f.first_end < zone.last_begin);
        let around = before.checked_sub(1).map(|i| forward[i]).filter(|f| zone.first_end < f.last_begin);
        if let Some(around) = around {
            return Err(format!("{} came and went while {} was there", name(zone), name(around)));
        }
    }
    Ok(())
}

fn name(zone: &Zone) -> String {
    let Zone { value, writer, written, first_end, last_begin, .. } = *zone;
    format!("{value:#x} (of client {writer}, begun {written}, first end {first_end}, last beginning {last_begin})")
}

/// The values that count. The initial one was written before all others.
fn zones_of(operations: &[&Operation]) -> Result<BTreeMap<u64, Zone>, String> {
    let zone = |value, writer, written, ended: Option<u64>, fate| Zone {
        value,
        writer,
        written,
        first_end: ended.unwrap_or(u64::MAX),
        last_begin: written,
        fate,
        read_by_others: false,
    };
    let mut zones = BTreeMap::from([(INITIAL, zone(INITIAL, u32::MAX, 0, Some(0), Fate::Certain))]);
    for o in operations {
        if let Kind::Write(value, fate) = o.kind
            && zones.insert(value, zone(value, o.client, o.begun, o.ended, fate)).is_some()
        {
            return Err(format!("{value:#x} is written twice: the test is wrong"));
        }
    }
    let reads = operations.iter().filter_map(|o| match (o.kind, o.ended) {
        (Kind::Read(Some(value)), Some(ended)) => Some((o, value, ended)),
        _ => None,
    });
    for (o, value, ended) in reads {
        let Some(zone) = zones.get_mut(&value) else {
            return Err(format!("client {} read {value:#x}, which nobody wrote", o.client));
        };
        if ended < zone.written {
            return Err(format!(
                "client {} read {value:#x} at {ended}, before it was written at {}",
                o.client, zone.written
            ));
        }
        zone.first_end = zone.first_end.min(ended);
        zone.last_begin = zone.last_begin.max(o.begun);
        zone.read_by_others |= o.client != zone.writer;
    }
    // A doubtful value that no other client saw did not happen; its writer's reads of it do not matter.
    zones.retain(|_, z| z.fate != Fate::Doubtful || z.read_by_others);
    Ok(zones)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const X: Register = Register { file: 1, slot: 0 };

    fn write(h: &mut History, client: u32, value: u64) {
        let id = h.begin_write(client, X, value);
        h.end_write(id);
    }

    fn read(h: &mut History, client: u32, value: u64) {
        let id = h.begin_read(client, X);
        h.end_read(id, value);
    }

    #[test]
    fn one_after_another_the_last_write_is_read() {
        let mut h = History::default();
        read(&mut h, 1, INITIAL);
        write(&mut h, 1, 10);
        read(&mut h, 2, 10);
        write(&mut h, 2, 20);
        read(&mut h, 1, 20);
        assert_eq!(h.check(), Ok(()));
        read(&mut h, 1, 10);
        assert!(h.check().is_err(), "an old value is found");
    }

    #[test]
    fn a_stale_read_of_the_initial_value_is_found() {
        let mut h = History::default();
        write(&mut h, 1, 10);
        read(&mut h, 2, INITIAL);
        assert!(h.check().is_err());
    }

    #[test]
    fn operations_at_the_same_time_may_take_either_order_but_one() {
        let mut h = History::default();
        let a = h.begin_write(1, X, 10);
        let b = h.begin_write(2, X, 20);
        h.end_write(a);
        h.end_write(b);
        read(&mut h, 3, 20);
        assert_eq!(h.check(), Ok(()));
        read(&mut h, 4, 10);
        assert!(h.check().is_err(), "readers that disagree are found");
    }

    #[test]
    fn a_value_seen_is_not_unseen() {
        let mut h = History::default();
        let w = h.begin_write(1, X, 10);
        read(&mut h, 2, 10);
        read(&mut h, 3, INITIAL);
        h.end_write(w);
        assert!(h.check().is_err());
    }

    #[test]
    fn values_from_nowhere_and_from_the_future_are_found() {
        let mut h = History::default();
        read(&mut h, 1, 99);
        assert!(h.check().is_err());
        let mut h = History::default();
        read(&mut h, 1, 10);
        write(&mut h, 2, 10);
        assert!(h.check().is_err());
    }

    #[test]
    fn what_was_cached_may_go_with_its_client_unless_somebody_saw_it_or_it_was_synced() {
        let story = |seen: bool, synced: bool| {
            let mut h = History::default();
            write(&mut h, 1, 10);
            read(&mut h, 1, 10);
            if seen {
                read(&mut h, 2, 10);
            }
            if synced {
                let now = h.now();
                h.synced(1, X.file, now);
            }
            h.died(1);
            read(&mut h, 2, INITIAL);
            h.check().is_ok()
        };
        assert!(story(false, false));
        assert!(!story(true, false), "what another client saw is lost");
        assert!(!story(false, true), "what was synced is lost");
    }

    #[test]
    fn a_loss_that_was_reported_is_no_violation_but_a_silent_one_is() {
        for reported in [true, false] {
            let mut h = History::default();
            write(&mut h, 1, 10);
            if reported {
                h.reported_lost(1, X.file);
            }
            read(&mut h, 2, INITIAL);
            assert_eq!(h.check().is_ok(), reported);
        }
    }

    #[test]
    fn a_failed_write_may_come_late_or_never_but_once() {
        let mut h = History::default();
        let w = h.begin_write(1, X, 10);
        h.fail(w);
        read(&mut h, 2, INITIAL);
        read(&mut h, 2, 10);
        assert_eq!(h.check(), Ok(()));
        read(&mut h, 2, INITIAL);
        assert!(h.check().is_err());
    }

    /// True if some order of the operations explains the history; tries all orders.
    fn brute_force(todo: &[&Operation], value: u64) -> bool {
        if todo.is_empty() {
            return true;
        }
        let end = |o: &Operation| o.ended.unwrap_or(u64::MAX);
        let first_end = todo.iter().map(|o| end(o)).min().unwrap_or(u64::MAX);
        (0..todo.len()).filter(|i| todo[*i].begun <= first_end).any(|i| {
            let rest: Vec<&Operation> = todo.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, o)| *o).collect();
            match todo[i].kind {
                Kind::Write(v, _) => brute_force(&rest, v),
                Kind::Read(v) => v == Some(value) && brute_force(&rest, value),
                Kind::Void => unreachable!("not made here"),
            }
        })
    }

    #[test]
    fn agrees_with_trying_every_order() {
        let (mut good, mut bad) = (0, 0);
        for seed in 0..4000 {
            let mut prng = Prng::new(seed);
            let mut h = History::default();
            let mut open: Vec<(OperationId, bool)> = Vec::new();
            let mut written = vec![INITIAL];
            for n in 0..14 {
                if prng.one_in(2) && open.len() < 3 && n < 8 {
                    let is_write = prng.one_in(2);
                    let id = if is_write { h.begin_write(n, X, u64::from(n) + 1) } else { h.begin_read(n, X) };
                    if is_write {
                        written.push(u64::from(n) + 1);
                    }
                    open.push((id, is_write));
                } else if !open.is_empty() {
                    let (id, is_write) = open.swap_remove(prng.below(open.len() as u64) as usize);
                    // Preferably a recent value, so that some histories are good.
                    let recent =
                        written.len() as u64 - prng.range(1, 3.min(written.len() as u64 + 1)).min(written.len() as u64);
                    if is_write { h.end_write(id) } else { h.end_read(id, written[recent as usize]) }
                }
            }
            open.into_iter()
                .for_each(|(id, is_write)| if is_write { h.end_write(id) } else { h.end_read(id, INITIAL) });
            let operations: Vec<&Operation> = h.operations.iter().collect();
            let expected = brute_force(&operations, INITIAL);
            assert_eq!(h.check().is_ok(), expected, "seed {seed}: {:?}", h.operations);
            if expected { good += 1 } else { bad += 1 }
        }
        assert!(good > 400 && bad > 400, "{good} good and {bad} bad histories");
    }
}
