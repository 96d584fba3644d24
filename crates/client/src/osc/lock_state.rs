//! The order in which an extent lock is given back, as a table: the kernel forgets its copies before the client drops its own
//! bytes, the client drops them before it sends the cancel, and it sends one cancel.

use nacre_base::steps::Steps;

/// Progress of a lock that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockState {
    /// Programs may use the lock.
    Held,
    /// No operation can find the lock, because the server called it back or nobody used it for long.
    Leaving,
    /// The kernel has dropped what the lock protected.
    Forgotten,
    /// The client has dropped its bytes under the lock, and is about to send the cancel.
    Cancelled,
    /// The server has answered the cancel, or cannot be reached.
    GivenBack,
}

/// Event on the way of a lock that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockInput {
    /// The lock cache hands the lock over to be given back.
    Give,
    /// The kernel has been told to forget.
    DoorsTold,
    /// Bytes under the lock still have to be written.
    Busy,
    /// The lock was lost with an eviction, or an operation uses it again and will give it back at its end.
    Stop,
    /// The client has dropped its bytes under the lock.
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
