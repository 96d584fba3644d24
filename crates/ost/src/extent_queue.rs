//! Requests that read and write ranges of one object at this moment. First come, first served: a request waits while it
//! conflicts with a granted lock *or with a waiting request that came before it*, so neither readers nor writers starve.
//! A plain state machine; [`crate::range_lock`] does the waiting.

use nacre_ldlm::RangeSet;

/// A lock, granted or requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExtentLock {
    /// Number that identifies the lock.
    pub(crate) id: u64,
    pub(crate) is_write: bool,
    /// Ranges that the lock covers.
    pub(crate) ranges: RangeSet,
}

impl ExtentLock {
    /// True if the two locks cannot both be granted.
    fn conflicts(&self, other: &ExtentLock) -> bool {
        (self.is_write || other.is_write) && self.ranges.overlaps(&other.ranges)
    }
}

/// The locks of one object. The search for conflicts is linear in their number.
#[derive(Default, Debug)]
pub(crate) struct ExtentQueue {
    granted: Vec<ExtentLock>,
    /// Waiting requests in order of arrival. Each conflicts with a granted lock or with a waiting request before it.
    waiting: Vec<ExtentLock>,
}

impl ExtentQueue {
    /// Grants the lock (true), or lets it wait (false).
    pub(crate) fn enqueue(&mut self, lock: ExtentLock) -> bool {
        let granted = !self.is_blocked(&lock);
        if granted {
            self.granted.push(lock)
        } else {
            self.waiting.push(lock)
        }
        granted
    }

    /// True if there is a lock, granted or waiting, that `lock` would have to wait for.
    fn is_blocked(&self, lock: &ExtentLock) -> bool {
        self.granted.iter().chain(&self.waiting).any(|other| other.conflicts(lock))
    }

    /// Removes a lock or a waiting request. Returns the requests that are granted as a result, in their order.
    pub(crate) fn remove(&mut self, id: u64) -> Vec<u64> {
        if let Some(at) = self.granted.iter().position(|l| l.id == id) {
            self.granted.swap_remove(at);
        } else {
            let at = self.waiting.iter().position(|l| l.id == id);
            self.waiting.remove(at.expect("a range lock is given back once"));
        }
        let granted_now = self.reprocess();
        let waiting = self.waiting.len();
        assert!(!self.granted.is_empty() || waiting == 0, "{waiting} requests wait, and nobody has a range");
        granted_now
    }

    /// Panics unless the lock is granted with all of `ranges`, and no conflicting lock is granted. For callers that are
    /// about to touch the data.
    pub(crate) fn assert_granted(&self, id: u64, ranges: &RangeSet, is_write: bool) {
        let Some(lock) = self.granted.iter().find(|lock| lock.id == id) else {
            panic!("range lock {id} is used for {ranges:?} and not granted: {:?}", self.waiting);
        };
        assert!(lock.is_write || !is_write, "{lock:?} is for reading, and is used to write {ranges:?}");
        assert!(lock.ranges.contains(ranges), "{lock:?} is used for {ranges:?}");
        let other = self.granted.iter().find(|other| other.id != id && other.conflicts(lock));
        assert!(other.is_none(), "{lock:?} and {other:?} are granted at once");
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Panics if two conflicting locks are granted, or if a request waits for no other.
    #[cfg(test)]
    fn check(&self) {
        for (n, lock) in self.granted.iter().enumerate() {
            let other = self.granted[..n].iter().find(|other| other.conflicts(lock));
            assert!(other.is_none(), "{lock:?} and {other:?} are granted at once");
        }
        for (n, lock) in self.waiting.iter().enumerate() {
            let is_blocked = self.granted.iter().chain(&self.waiting[..n]).any(|other| other.conflicts(lock));
            assert!(is_blocked, "{lock:?} waits, and nobody is in its way");
        }
    }

    /// Grants every waiting request that is no longer blocked. A grant never unblocks another request, so one pass is
    /// enough.
    fn reprocess(&mut self) -> Vec<u64> {
        let mut granted_now = Vec::new();
        for lock in std::mem::take(&mut self.waiting) {
            let id = lock.id;
            if self.enqueue(lock) {
                granted_now.push(id);
            }
        }
        granted_now
    }

    /// True if there is neither a lock nor a request.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use nacre_ldlm::Extent;

    const READ: bool = false;
    const WRITE: bool = true;

    fn lock(id: u64, is_write: bool, start: u64, end: u64) -> ExtentLock {
        ExtentLock { id, is_write, ranges: RangeSet::single(Extent { start, end }) }
    }

    fn ids(locks: &[ExtentLock]) -> Vec<u64> {
        locks.iter().map(|l| l.id).collect()
    }

    #[test]
    fn a_reader_does_not_overtake_a_waiting_writer() {
        let mut q = ExtentQueue::default();
        assert!(q.enqueue(lock(1, READ, 0, 99)));
        assert!(!q.enqueue(lock(2, WRITE, 50, 60)));
        assert!(!q.enqueue(lock(3, READ, 55, 55)));
        assert!(q.enqueue(lock(4, READ, 70, 80)), "nothing in its way");
        assert_eq!(q.remove(1), [2]);
        assert_eq!(q.remove(2), [3]);
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn giving_back_what_nobody_has_is_a_defect() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, READ, 0, 99));
        q.remove(9);
    }

    #[test]
    #[should_panic(expected = "granted at once")]
    fn a_grant_too_many_is_found() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, READ, 0, 99));
        q.granted.push(lock(2, WRITE, 50, 60));
        q.check();
    }

    #[test]
    #[should_panic(expected = "is used for {(50, 60)} and not granted")]
    fn data_is_not_touched_before_the_lock_is_granted() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, READ, 0, 99));
        q.enqueue(lock(2, WRITE, 50, 60));
        q.assert_granted(1, &RangeSet::single(Extent { start: 5, end: 9 }), READ);
        q.assert_granted(2, &RangeSet::single(Extent { start: 50, end: 60 }), WRITE);
    }

    #[test]
    #[should_panic(expected = "are granted at once")]
    fn data_is_not_written_where_somebody_reads() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, WRITE, 0, 99));
        q.granted.push(lock(2, READ, 50, 60));
        q.assert_granted(1, &RangeSet::single(Extent { start: 0, end: 99 }), WRITE);
    }

    #[test]
    #[should_panic(expected = "nobody is in its way")]
    fn a_request_that_was_forgotten_is_found() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, READ, 0, 99));
        q.waiting.push(lock(2, WRITE, 100, 200));
        q.check();
    }

    #[test]
    fn a_waiting_request_that_gives_up_lets_those_behind_it_go() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, READ, 0, 9));
        q.enqueue(lock(2, WRITE, 0, 9));
        q.enqueue(lock(3, READ, 0, 9));
        assert_eq!(q.remove(2), [3]);
        assert_eq!(q.waiting, []);
    }

    /// The rule itself, as the model: of all requests in order of arrival, one waits if and only if it conflicts with a
    /// granted one or with an earlier waiting one; and once granted it stays granted.
    struct Model(Vec<(ExtentLock, bool)>);

    impl Model {
        fn settle(&mut self) {
            for i in 0..self.0.len() {
                let (lock, granted) = self.0[i].clone();
                let blocked = self
                    .0
                    .iter()
                    .enumerate()
                    .any(|(j, (other, held))| j != i && other.conflicts(&lock) && (*held || j < i));
                self.0[i].1 = granted || !blocked;
            }
        }
    }

    #[test]
    fn the_engine_agrees_with_the_rule() {
        for seed in 0..200 {
            let mut random = Prng::new(seed);
            let (mut q, mut model) = (ExtentQueue::default(), Model(Vec::new()));
            for id in 1..150 {
                if random.one_in(2) && !model.0.is_empty() {
                    let gone = model.0.remove(random.below(model.0.len() as u64) as usize).0.id;
                    q.remove(gone);
                } else {
                    let start = random.below(40);
                    let is_write = random.one_in(3);
                    let new = lock(id, is_write, start, start + random.below(10));
                    model.0.push((new.clone(), false));
                    q.enqueue(new);
                }
                q.check();
                model.settle();
                let mut granted = ids(&q.granted);
                granted.sort_unstable();
                let expected = |held: bool| -> Vec<u64> {
                    model.0.iter().filter(|(_, h)| *h == held).map(|(l, _)| l.id).collect()
                };
                assert_eq!((granted, ids(&q.waiting)), (expected(true), expected(false)), "seed {seed}");
            }
        }
    }
}
