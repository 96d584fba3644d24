//! The calls for file locks that are under way, and the calls that their programs have abandoned. The two kinds exclude
//! each other where one owner asks for the same bytes: a new call waits until abandoned ones are settled, and a lock that
//! was granted too late is given back when no call is under way that may have been granted the same bytes since.

use nacre_base::Fid;
use nacre_ldlm::Extent;
use nacre_wire::ldlm::{Enqueue, enqueue_flags};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The calls of one mount.
#[derive(Default)]
pub(crate) struct LockCalls {
    state: Mutex<State>,
    /// Notified when a call has ended or was abandoned.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Number of the latest call. No two calls of a mount have the same number.
    last: u64,
    calls: BTreeMap<u64, (Asked, Stage)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    UnderWay,
    /// The caller is gone, and the request is being withdrawn or its lock given back.
    Abandoned,
}

/// The bytes that a call asks for, and their owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    file: Fid,
    bsd: bool,
    owner: u64,
    extent: Extent,
}

/// A call. Dropped when it has ended.
pub(super) struct Entry {
    calls: Arc<LockCalls>,
    number: u64,
    asked: Asked,
}

impl Asked {
    pub(super) fn by(enqueue: &Enqueue) -> Asked {
        Asked {
            file: enqueue.resource,
            bsd: enqueue.flags & enqueue_flags::FLOCK_BSD != 0,
            owner: enqueue.owner,
            // The MDT refuses a range that ends before it begins.
            extent: Extent::new(enqueue.start, enqueue.end).unwrap_or(Extent::ALL),
        }
    }

    fn meets(&self, other: &Asked) -> bool {
        (self.file, self.bsd, self.owner) == (other.file, other.bsd, other.owner) && self.extent.overlaps(&other.extent)
    }
}

impl LockCalls {
    /// Begins a call, once no abandoned call for the same bytes is left.
    pub(super) async fn enter(self: &Arc<Self>, asked: Asked) -> Entry {
        let number = self.until_none(asked, Stage::Abandoned, |state| {
            state.last += 1;
            state.calls.insert(state.last, (asked, Stage::UnderWay));
            state.last
        });
        Entry { number: number.await, calls: self.clone(), asked }
    }

    /// Waits until no call in this stage meets `asked`, and calls `then` before another call can begin.
    async fn until_none<T>(&self, asked: Asked, stage: Stage, then: impl FnOnce(&mut State) -> T) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if !state.calls.values().any(|(other, at)| *at == stage && other.meets(&asked)) {
                    return then(&mut state);
                }
            }
            changed.await;
        }
    }
}

impl Entry {
    /// Number of the call.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The caller is gone. Further calls for the same bytes wait.
    pub(super) fn abandon(&mut self) {
        self.set(Some(Stage::Abandoned));
    }

    /// Waits until no call under way asks for the same bytes. Lets further calls go on meanwhile, because those under way
    /// may be waiting for what these give up.
    pub(super) async fn until_alone(&mut self) {
        self.set(None);
        let (number, asked) = (self.number, self.asked);
        let abandon = |state: &mut State| state.calls.insert(number, (asked, Stage::Abandoned));
        self.calls.until_none(asked, Stage::UnderWay, abandon).await;
    }

    fn set(&self, stage: Option<Stage>) {
        let mut state = self.calls.state.lock();
        state.calls.remove(&self.number);
        if let Some(stage) = stage {
            state.calls.insert(self.number, (self.asked, stage));
        }
        drop(state);
        self.calls.changed.notify_waiters();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.set(None);
    }
}
