//! When the imports of a node have to be looked at: one queue for all of them, so that a node with thousands of idle imports
//! visits those whose time has come, and has no task and no timer for each.

use crate::timer::Timer;
use nacre_base::Time;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The queue. An entry that is no longer needed stays until its time: looking at an import too early does no harm.
pub(crate) struct Deadlines {
    pub(crate) timer: Arc<Timer>,
    /// Times, and the numbers of imports.
    queue: Mutex<BinaryHeap<Reverse<(Time, u64)>>>,
    /// True if all imports have to be looked at, whatever the queue says.
    all: AtomicBool,
}

/// The earliest time in the queue for one import.
#[derive(Debug)]
pub(crate) struct Armed(AtomicU64);

/// Imports to look at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DueImports {
    All,
    /// By their numbers, so that they are looked at in a fixed order.
    Some(BTreeSet<u64>),
}

impl Default for Armed {
    fn default() -> Armed {
        Armed(AtomicU64::new(Time::FAR_FUTURE.0))
    }
}

impl Armed {
    /// The import is looked at now.
    pub(crate) fn clear(&self) {
        self.0.store(Time::FAR_FUTURE.0, Ordering::Release);
    }
}

impl Deadlines {
    pub(crate) fn new() -> Deadlines {
        Deadlines { timer: Arc::new(Timer::new()), queue: Mutex::default(), all: AtomicBool::new(false) }
    }

    /// Has the import `number` looked at by `at`. Most deadlines are later than one that is in the queue already, and cost
    /// one load.
    pub(crate) fn arm(&self, armed: &Armed, number: u64, at: Time) {
        if at.0 < armed.0.load(Ordering::Relaxed) && at.0 < armed.0.fetch_min(at.0, Ordering::AcqRel) {
            self.queue.lock().push(Reverse((at, number)));
            self.timer.arm(at);
        }
    }

    /// Has all imports looked at now.
    pub(crate) fn arm_all(&self, now: Time) {
        self.all.store(true, Ordering::Release);
        self.timer.arm(now);
    }

    /// Takes out what is due.
    pub(crate) fn take_due(&self, now: Time) -> DueImports {
        let (mut queue, mut due) = (self.queue.lock(), BTreeSet::new());
        while let Some(Reverse((at, number))) = queue.peek()
            && *at <= now
        {
            due.insert(*number);
            queue.pop();
        }
        if self.all.swap(false, Ordering::AcqRel) { DueImports::All } else { DueImports::Some(due) }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Time {
        self.queue.lock().peek().map_or(Time::FAR_FUTURE, |Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: fn(u64) -> Time = Time::from_secs;

    #[test]
    fn an_import_is_due_at_its_earliest_deadline_and_the_others_are_left_alone() {
        let (deadlines, [a, b]) = (Deadlines::new(), [Armed::default(), Armed::default()]);
        deadlines.arm(&a, 1, T(5));
        deadlines.arm(&a, 1, T(9));
        deadlines.arm(&a, 1, T(3));
        deadlines.arm(&b, 2, T(4));
        assert_eq!(deadlines.next(), T(3));
        assert_eq!(deadlines.take_due(T(3)), DueImports::Some(BTreeSet::from([1])));
        a.clear();
        deadlines.arm(&a, 1, T(9));
        assert_eq!(deadlines.take_due(T(5)), DueImports::Some(BTreeSet::from([1, 2])), "an entry that was not needed");
        assert_eq!(deadlines.next(), T(9));
    }

    #[test]
    fn all_are_due_once_after_a_change_that_concerns_all() {
        let (deadlines, armed) = (Deadlines::new(), Armed::default());
        deadlines.arm(&armed, 1, T(5));
        deadlines.arm_all(T(2));
        assert_eq!(deadlines.take_due(T(2)), DueImports::All);
        assert_eq!(deadlines.take_due(T(5)), DueImports::Some(BTreeSet::from([1])));
    }
}
