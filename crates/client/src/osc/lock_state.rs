//! What becomes of an extent lock that is to be given back, as a table: doors forget before anything is dropped, what was
//! under the lock is dropped before the server is told, and it is told once.

use nacre_base::steps::Steps;

/// How far a lock is on its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockState {
    /// It is, or may be, in use.
    Held,
    /// Nobody finds it any more: it was called back, or is unused.
    Leaving,
    /// Doors have forgotten what it protected.
    Forgotten,
    /// Nothing of this client is under it any more, and the server is about to be told.
    Cancelled,
    /// The server has answered, or is away.
    GivenBack,
}

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockInput {
    /// It is to be given back.
    Give,
    /// All doors were told.
    DoorsTold,
    /// Something under it is still to be written.
    Busy,
    /// It was lost, or is in use again and its last release gives it back.
    Stop,
    /// Nothing is under it any more.
    Dropped,
    /// The cancel is over.
    Answered,
}

/// All steps.
const STEPS: Steps<LockState, LockInput> = {
    use LockInput::{Answered, Busy, DoorsTold, Dropped, Give, Stop};
    use LockState::{Cancelled, Forgotten, GivenBack, Held, Leaving};
    Steps(&[
        (Held, Give, Leaving),
        (Leaving, DoorsTold, Forgotten),
        (Forgotten, Busy, Forgotten),
        (Forgotten, Stop, Held),
        (Forgotten, Dropped, Cancelled),
        (Cancelled, Answered, GivenBack),
    ])
};

impl LockState {
    /// The lock takes a step.
    #[track_caller]
    pub(super) fn step(&mut self, input: LockInput) {
        *self = STEPS.next(*self, input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_goes_back_in_order() {
        STEPS.assert_sound();
        let mut state = LockState::Held;
        let way = [LockInput::Give, LockInput::DoorsTold, LockInput::Busy, LockInput::Dropped, LockInput::Answered];
        way.into_iter().for_each(|input| state.step(input));
        assert_eq!(state, LockState::GivenBack);
    }

    #[test]
    #[should_panic(expected = "Dropped in state Leaving")]
    fn nothing_is_dropped_before_doors_were_told() {
        LockState::Leaving.step(LockInput::Dropped);
    }
}
