//! Locks on byte ranges of one resource. First come, first served: a request waits while it conflicts with a lock that
//! is granted *or with a request that came before it and waits*, so neither readers nor writers starve.
//!
//! Serves the locks that clients hold, and those that a server takes for the length of one read or write. Extents are
//! granted as asked for: there is no growth here.

use crate::LockId;
use crate::mode::compatible;
pub use crate::range_set::Extent;
use nacre_wire::ldlm::LockMode;

/// A lock, granted or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentLock {
    /// Its name.
    pub id: LockId,
    /// Its mode.
    pub mode: LockMode,
    /// What it covers.
    pub extent: Extent,
}

impl ExtentLock {
    /// Whether both could not be granted at once.
    pub fn conflicts(&self, other: &ExtentLock) -> bool {
        self.extent.overlaps(&other.extent) && !compatible(self.mode, other.mode)
    }
}

/// The locks of one resource. A conflict scan is linear in their number.
#[derive(Default, Debug)]
pub struct ExtentQueue {
    granted: Vec<ExtentLock>,
    /// In order of arrival. Each conflicts with a granted lock or with one before it.
    waiting: Vec<ExtentLock>,
}

impl ExtentQueue {
    /// Grants the lock (true), or lets it wait (false).
    pub fn enqueue(&mut self, lock: ExtentLock) -> bool {
        let granted = self.conflict(&lock).is_none();
        if granted {
            self.granted.push(lock)
        } else {
            self.waiting.push(lock)
        }
        granted
    }

    /// The first lock, granted or waiting, that `lock` would have to wait for.
    pub fn conflict(&self, lock: &ExtentLock) -> Option<&ExtentLock> {
        self.granted.iter().chain(&self.waiting).find(|other| other.conflicts(lock))
    }

    /// Takes a lock or a waiting request away, if it is there; the requests that are granted for it, in their order.
    pub fn remove(&mut self, id: LockId) -> Vec<ExtentLock> {
        if let Some(at) = self.granted.iter().position(|l| l.id == id) {
            self.granted.swap_remove(at);
        } else if let Some(at) = self.waiting.iter().position(|l| l.id == id) {
            self.waiting.remove(at);
        } else {
            return Vec::new();
        }
        self.reprocess()
    }

    /// Grants every waiting request that nothing blocks any more. Grants block, they never unblock: one pass is all.
    fn reprocess(&mut self) -> Vec<ExtentLock> {
        let mut granted_now = Vec::new();
        for lock in std::mem::take(&mut self.waiting) {
            let granted = self.enqueue(lock);
            if granted {
                granted_now.push(lock);
            }
        }
        granted_now
    }

    /// Locks granted.
    pub fn granted(&self) -> &[ExtentLock] {
        &self.granted
    }

    /// Requests that wait, in order of arrival.
    pub fn waiting(&self) -> &[ExtentLock] {
        &self.waiting
    }

    /// Whether there is neither a lock nor a request.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn lock(id: u64, mode: LockMode, start: u64, end: u64) -> ExtentLock {
        ExtentLock { id: LockId(id), mode, extent: Extent { start, end } }
    }

    fn ids(locks: &[ExtentLock]) -> Vec<u64> {
        locks.iter().map(|l| l.id.0).collect()
    }

    #[test]
    fn a_reader_does_not_overtake_a_waiting_writer() {
        let mut q = ExtentQueue::default();
        assert!(q.enqueue(lock(1, LockMode::Pr, 0, 99)));
        assert!(!q.enqueue(lock(2, LockMode::Pw, 50, 60)));
        assert!(!q.enqueue(lock(3, LockMode::Pr, 55, 55)));
        assert!(q.enqueue(lock(4, LockMode::Pr, 70, 80)), "nothing in its way");
        assert_eq!(ids(&q.remove(LockId(1))), [2]);
        assert_eq!(ids(&q.remove(LockId(2))), [3]);
        assert_eq!(ids(&q.remove(LockId(9))), [0; 0]);
    }

    #[test]
    fn a_waiting_request_that_gives_up_lets_those_behind_it_go() {
        let mut q = ExtentQueue::default();
        q.enqueue(lock(1, LockMode::Pr, 0, 9));
        q.enqueue(lock(2, LockMode::Pw, 0, 9));
        q.enqueue(lock(3, LockMode::Pr, 0, 9));
        assert_eq!(ids(&q.remove(LockId(2))), [3]);
        assert_eq!(q.waiting(), []);
    }

    /// The rule itself, as the model: of all requests in order of arrival, one waits if and only if it conflicts with
    /// a granted one or with an earlier one that waits; and once granted it stays.
    struct Model(Vec<(ExtentLock, bool)>);

    impl Model {
        fn settle(&mut self) {
            for i in 0..self.0.len() {
                let (lock, granted) = self.0[i];
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
                    let mode = *random.pick(&[LockMode::Pr, LockMode::Pw, LockMode::Cw, LockMode::Cr, LockMode::Ex]);
                    let new = lock(id, mode, start, start + random.below(10));
                    model.0.push((new, false));
                    q.enqueue(new);
                }
                model.settle();
                let mut granted = ids(q.granted());
                granted.sort_unstable();
                let expected = |held: bool| -> Vec<u64> {
                    model.0.iter().filter(|(_, h)| *h == held).map(|(l, _)| l.id.0).collect()
                };
                assert_eq!((granted, ids(q.waiting())), (expected(true), expected(false)), "seed {seed}");
            }
        }
    }
}
