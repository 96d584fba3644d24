//! One page of the page cache.

use crate::PAGE;
use parking_lot::Mutex;
use std::pin::pin;
use tokio::sync::Notify;

/// A page, from when it is to be filled until it is dropped.
pub(crate) struct Page {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A READ is under way, and nobody else touches the page.
    Filling,
    /// Programs load from it and store into it.
    Present,
    /// A WRITE is under way. Programs load from it.
    Writing,
    /// Not in the cache any more, because it was dropped or its READ failed.
    Gone,
}

struct State {
    stage: Stage,
    bytes: Vec<u8>,
    dirty: bool,
}

impl Page {
    /// A page that is about to be filled.
    pub(crate) fn new() -> Page {
        let state = State { stage: Stage::Filling, bytes: Vec::new(), dirty: false };
        Page { state: Mutex::new(state), changed: Notify::new() }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until `check` finds what it looks for.
    async fn wait_for<T>(&self, mut check: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = check(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// The READ has brought these bytes; the rest is zeros.
    pub(crate) fn filled(&self, bytes: &[u8]) {
        self.change(|state| {
            assert_eq!(state.stage, Stage::Filling, "a page is filled twice");
            state.bytes = bytes.to_vec();
            state.bytes.resize(PAGE as usize, 0);
            state.stage = Stage::Present;
        });
    }

    /// The READ has failed.
    pub(crate) fn failed(&self) {
        self.change(|state| state.stage = Stage::Gone);
    }

    /// Waits while the page is being filled. Returns whether it is there.
    pub(crate) async fn is_there(&self) -> bool {
        let there = |state: &mut State| (state.stage != Stage::Filling).then_some(state.stage != Stage::Gone);
        self.wait_for(there).await
    }

    /// Appends bytes of the page, even if it has just been dropped: a read that has found a page uses it.
    pub(crate) fn copy(&self, offset: u64, len: u64, to: &mut Vec<u8>) {
        let state = self.state.lock();
        to.extend_from_slice(&state.bytes[offset as usize..(offset + len) as usize]);
    }

    /// The number at an offset; none if the page has been dropped, and a mapping misses it.
    pub(crate) fn number(&self, offset: u64) -> Option<u64> {
        let state = self.state.lock();
        let bytes = state.bytes.get(offset as usize..offset as usize + 8)?;
        (state.stage != Stage::Gone).then(|| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// Stores a number, once no WRITE is under way. Returns false if the page has been dropped.
    pub(crate) async fn store(&self, offset: u64, value: u64) -> bool {
        let store = |state: &mut State| match state.stage {
            Stage::Filling | Stage::Writing => None,
            Stage::Gone => Some(false),
            Stage::Present => {
                state.bytes[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
                state.dirty = true;
                Some(true)
            }
        };
        self.wait_for(store).await
    }

    /// Begins to write the page out. Returns its bytes; none if nothing is dirty.
    pub(crate) async fn begin_write(&self) -> Option<Vec<u8>> {
        let begin = |state: &mut State| match state.stage {
            Stage::Filling | Stage::Writing => None,
            Stage::Present if state.dirty => {
                (state.stage, state.dirty) = (Stage::Writing, false);
                Some(Some(state.bytes.clone()))
            }
            Stage::Present | Stage::Gone => Some(None),
        };
        self.wait_for(begin).await
    }

    /// The WRITE was answered, or was not worth sending.
    pub(crate) fn end_write(&self) {
        self.change(|state| {
            assert_eq!(state.stage, Stage::Writing, "the WRITE of a page ends that was not begun");
            state.stage = Stage::Present;
        });
    }

    /// Drops the page if it is clean and nothing is under way. Returns whether it is gone.
    pub(crate) fn drop_clean(&self) -> bool {
        self.change(|state| {
            if state.stage == Stage::Present && !state.dirty {
                state.stage = Stage::Gone;
            }
            state.stage == Stage::Gone
        })
    }

    /// Drops the page with what is dirty, once nothing is under way: the file ends before it.
    pub(crate) async fn cut(&self) {
        let cut = |state: &mut State| match state.stage {
            Stage::Filling | Stage::Writing => None,
            Stage::Present | Stage::Gone => {
                state.stage = Stage::Gone;
                Some(())
            }
        };
        self.wait_for(cut).await;
        self.changed.notify_waiters();
    }

    /// The file ends within the page: zeros behind.
    pub(crate) fn zero_from(&self, offset: u64) {
        if let Some(behind) = self.state.lock().bytes.get_mut(offset as usize..) {
            behind.fill(0);
        }
    }
}
