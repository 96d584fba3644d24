//! What numbers a file may show: each is a register that is written at some moment between the beginning and the end of a call, and
//! a read returns what the register held at some moment between its own beginning and end.

use std::collections::BTreeMap;

/// Moments, in the order in which they happened.
pub(super) type Moment = u64;

/// The numbers of a file, by their places.
#[derive(Debug, Default)]
pub(super) struct Registers {
    now: Moment,
    last: u64,
    writes: BTreeMap<u64, Vec<Write>>,
    /// The smallest size that the file may have, and how many changes of it are under way.
    least: u64,
    resizing: u32,
    /// The smallest size of the changes that were under way together.
    together: u64,
}

#[derive(Debug, Clone)]
struct Write {
    value: u64,
    begin: Moment,
    end: Moment,
    by: String,
}

impl Registers {
    /// A file of `size` bytes.
    pub(super) fn new(size: u64) -> Registers {
        Registers { least: size, together: u64::MAX, ..Registers::default() }
    }

    /// A change of the file's size begins.
    pub(super) fn begin_resize(&mut self, size: u64) {
        self.resizing += 1;
        self.least = self.least.min(size);
        self.together = self.together.min(size);
    }

    /// A change of the file's size ends.
    pub(super) fn end_resize(&mut self) {
        self.resizing -= 1;
        if self.resizing == 0 {
            self.least = std::mem::replace(&mut self.together, u64::MAX);
        }
    }

    /// A store happens now. Behind the end of the file it may be lost.
    pub(super) fn stored(&mut self, place: u64, value: u64, by: &str) {
        let begin = self.begin_write(place, value, by);
        if place < self.least {
            self.wrote(place, value, begin, by);
        }
    }

    /// The present moment, which no other event shares.
    pub(super) fn now(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A value that was not written before.
    pub(super) fn new_value(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Places that were written to.
    pub(super) fn places(&self) -> Vec<u64> {
        self.writes.keys().copied().collect()
    }

    /// A write happened between `begin` and now.
    pub(super) fn wrote(&mut self, place: u64, value: u64, begin: Moment, by: &str) {
        let end = self.now();
        let write =
            self.writes.entry(place).or_default().iter_mut().find(|write| write.value == value && write.begin == begin);
        match write {
            Some(write) => write.end = end,
            None => self.writes.entry(place).or_default().push(Write { value, begin, end, by: by.to_owned() }),
        }
    }

    /// A write begins now, and may happen at any time from now on.
    pub(super) fn begin_write(&mut self, place: u64, value: u64, by: &str) -> Moment {
        let begin = self.now();
        self.writes.entry(place).or_default().push(Write { value, begin, end: Moment::MAX, by: by.to_owned() });
        begin
    }

    /// Panics unless a read from `begin` on may return `value` now.
    pub(super) fn check(&mut self, place: u64, value: u64, begin: Moment, who: &str) {
        let end = self.now();
        let none = Write { value: 0, begin: 0, end: 0, by: String::new() };
        let writes = std::iter::once(&none).chain(self.writes.get(&place).into_iter().flatten());
        let is_over = |write: &Write| writes.clone().any(|later| later.begin > write.end && later.end < begin);
        let mut may = writes.clone().filter(|write| write.value == value && write.begin <= end);
        if !may.any(|write| !is_over(write)) {
            let said = |w: &Write| format!("{} between {} and {} by {}", w.value, w.begin, w.end, w.by);
            let last: Vec<_> = writes.clone().rev().take(6).map(said).collect();
            panic!("{who} reads {value} at {place} between {begin} and {end}, and the last writes were {last:#?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_sees_what_was_there_at_some_moment_of_it() {
        let mut registers = Registers::default();
        let early = registers.now();
        registers.check(8, 0, early, "a");
        let first = registers.begin_write(8, 1, "a");
        let during = registers.now();
        registers.check(8, 0, during, "a");
        registers.check(8, 1, during, "a");
        registers.wrote(8, 1, first, "a");
        registers.check(8, 0, during, "a");
        let after = registers.now();
        registers.check(8, 1, after, "a");
        assert_eq!(registers.places(), [8]);
    }

    #[test]
    #[should_panic(expected = "b reads 0 at 8")]
    fn what_was_overwritten_before_a_read_began_is_wrong() {
        let mut registers = Registers::default();
        let begin = registers.begin_write(8, 1, "a");
        registers.wrote(8, 1, begin, "a");
        let after = registers.now();
        registers.check(8, 0, after, "b");
    }

    #[test]
    #[should_panic(expected = "c reads 7 at 8")]
    fn what_nobody_wrote_is_wrong() {
        Registers::default().check(8, 7, 0, "c");
    }
}
