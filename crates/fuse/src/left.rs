//! Requests that their callers have left: a signal ended the call with EINTR, and the work goes on to its end, so that
//! nothing is half done and no lock, grant or handle is lost. Bounds their number, and keeps later requests from
//! overtaking them: these wait before they begin, and are given up if they are left before that.

use crate::request::{Operation, SetAttr};
use nacre_base::FxHashMap;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, Semaphore};

/// Number of changing requests that were left at which further ones wait before they begin, because each may hold the
/// data of a write. No signal waits for that: requests that have already begun may still be left, so that the number can
/// grow by as many.
const CHANGING_MAX: usize = 1024;
/// The same for requests that change nothing. They hold less, and programs wait for more of them.
const OTHERS_MAX: usize = 8 * CHANGING_MAX;

/// Something that two requests must change in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The data of the inode.
    Data(u64),
    /// The names in the directory.
    Names(u64),
}

/// The places that a request changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    places: [Option<Place>; 2],
    /// True if later requests for these places wait for this one after it was left. False for a request that creates a
    /// name: it may need objects, and all other requests for its directory would wait for their OST.
    holds: bool,
}

impl Changes {
    /// A change of the data of a node.
    #[cfg(test)]
    pub(crate) fn of_data(node: u64) -> Changes {
        Changes { places: [Some(Place::Data(node)), None], holds: true }
    }

    /// True for a request that changes something.
    fn any(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// The changes of an operation.
    pub(crate) fn of(operation: &Operation) -> Changes {
        use Operation as Op;
        let data = |node| Changes { places: [Some(Place::Data(node)), None], holds: true };
        let names = |parent, holds| Changes { places: [Some(Place::Names(parent)), None], holds };
        match operation {
            // A lock that is called back may wait for pages that the kernel writes out of a mapping, so these must not
            // wait.
            Op::Write(op) if !op.from_cache => data(op.node),
            Op::Fallocate(op) => data(op.node),
            Op::SetAttr(SetAttr { node, size: Some(_), .. }) => data(*node),
            Op::Open(op) if op.flags & libc::O_TRUNC as u32 != 0 => data(op.node),
            Op::Unlink(op) => names(op.parent, true),
            Op::RmDir(op) => names(op.parent, true),
            Op::Rename(op) => {
                let places = [op.parent, op.new_parent].map(|parent| Some(Place::Names(parent)));
                Changes { places, holds: true }
            }
            Op::Create(op) => names(op.parent, false),
            Op::MkDir(op) => names(op.parent, false),
            Op::MkNod(op) => names(op.parent, false),
            Op::SymLink(op) => names(op.parent, false),
            Op::Link(op) => names(op.new_parent, false),
            _ => Changes::default(),
        }
    }
}

/// The requests of one session that were left and have not ended.
#[derive(Default)]
pub(crate) struct Left {
    /// Number of changing requests.
    changing: AtomicUsize,
    /// Number of requests that change nothing.
    others: AtomicUsize,
    /// Notified when a request has ended.
    ended: Notify,
    /// Number of entries in `gates`, so that requests look there only if there are any.
    held: AtomicUsize,
    /// Gates by place. A gate is closed, which lets everybody pass, when its request has ended.
    gates: Mutex<FxHashMap<Place, Vec<Arc<Semaphore>>>>,
}

/// A request that was left. Dropped when it has ended.
pub(crate) struct LeftRequest {
    left: Arc<Left>,
    changes: Changes,
    gate: Arc<Semaphore>,
}

impl Left {
    /// Counts a request as left.
    pub(crate) fn add(self: &Arc<Left>, changes: Changes) -> LeftRequest {
        self.count_of(&changes).0.fetch_add(1, Ordering::AcqRel);
        let gate = Arc::new(Semaphore::new(0));
        let held: Vec<Place> = changes.places.into_iter().flatten().filter(|_| changes.holds).collect();
        self.held.fetch_add(held.len(), Ordering::AcqRel);
        let mut gates = self.gates.lock();
        held.into_iter().for_each(|place| gates.entry(place).or_default().push(gate.clone()));
        LeftRequest { left: self.clone(), changes, gate }
    }

    /// The number of requests of this kind that were left, and the most that may be left when another one begins. The two
    /// kinds have room of their own, so that programs can read while many writes wait for an OST that is away.
    fn count_of(&self, changes: &Changes) -> (&AtomicUsize, usize) {
        if changes.any() { (&self.changing, CHANGING_MAX) } else { (&self.others, OTHERS_MAX) }
    }

    /// True if a request that makes these changes has to wait in [`Left::until_room`] before it begins.
    pub(crate) fn lacks_room(&self, changes: &Changes) -> bool {
        let (count, most) = self.count_of(changes);
        count.load(Ordering::Acquire) >= most
    }

    /// Waits until a request that makes these changes may begin.
    pub(crate) async fn until_room(&self, changes: &Changes) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if !self.lacks_room(changes) {
                return;
            }
            ended.await;
        }
    }

    /// The gates of the requests that a new request must not overtake.
    pub(crate) fn before(&self, changes: &Changes) -> Vec<Arc<Semaphore>> {
        if self.held.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let gates = self.gates.lock();
        changes.places.iter().flatten().filter_map(|place| gates.get(place)).flatten().cloned().collect()
    }

    /// Number of requests that were left and have not ended: those that change something, and the others.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.changing.load(Ordering::Acquire), self.others.load(Ordering::Acquire))
    }
}

impl Drop for LeftRequest {
    fn drop(&mut self) {
        let mut gates = self.left.gates.lock();
        for place in self.changes.places.iter().flatten().filter(|_| self.changes.holds) {
            if let Some(list) = gates.get_mut(place) {
                let before = list.len();
                list.retain(|gate| !Arc::ptr_eq(gate, &self.gate));
                // A rename within one directory has its place twice, and removes both entries at once.
                self.left.held.fetch_sub(before - list.len(), Ordering::AcqRel);
                if list.is_empty() {
                    gates.remove(place);
                }
            }
        }
        drop(gates);
        self.gate.close();
        self.left.count_of(&self.changes).0.fetch_sub(1, Ordering::AcqRel);
        self.left.ended.notify_waiters();
    }
}

/// Waits until the requests behind these gates have ended.
pub(crate) async fn pass(gates: Vec<Arc<Semaphore>>) {
    for gate in gates {
        // A closed gate answers with an error.
        let _ = gate.acquire().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_overtakes_a_write_that_was_left() {
        let left = Arc::new(Left::default());
        assert!(left.before(&Changes::of_data(1)).is_empty());
        let first = left.add(Changes::of_data(1));
        assert!(left.before(&Changes::of_data(2)).is_empty(), "another file");
        let gates = left.before(&Changes::of_data(1));
        let second = left.add(Changes::of_data(1));
        assert_eq!((gates.len(), left.before(&Changes::of_data(1)).len(), left.counts()), (1, 2, (2, 0)));
        let mut passing = std::pin::pin!(pass(gates));
        let waits = tokio::select! { biased; () = &mut passing => false, () = std::future::ready(()) => true };
        assert!(waits);
        drop(first);
        passing.await;
        assert_eq!(left.before(&Changes::of_data(1)).len(), 1);
        drop(second);
        assert_eq!(
            (left.before(&Changes::of_data(1)).len(), left.counts(), left.held.load(Ordering::SeqCst)),
            (0, (0, 0), 0)
        );
    }

    #[tokio::test]
    async fn a_rename_holds_both_directories_even_if_they_are_one() {
        let left = Arc::new(Left::default());
        for (from, to) in [(1, 2), (1, 1)] {
            let places = [Some(Place::Names(from)), Some(Place::Names(to))];
            let rename = left.add(Changes { places, holds: true });
            let create = |parent| Changes { places: [Some(Place::Names(parent)), None], holds: false };
            assert!(!left.before(&create(from)).is_empty() && !left.before(&create(to)).is_empty());
            assert!(left.before(&Changes::of_data(from)).is_empty(), "its names are not its data");
            let made = left.add(create(5));
            assert!(left.before(&create(5)).is_empty(), "a name that is being made holds nobody up");
            drop((rename, made));
            assert_eq!((left.held.load(Ordering::SeqCst), left.counts()), (0, (0, 0)));
        }
    }
}
