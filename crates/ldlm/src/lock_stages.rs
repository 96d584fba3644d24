//! The life of one lock in a client's cache, as a table. See [`crate::lock_cache`].

use nacre_base::steps::Steps;

/// Stage of a lock in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Operations use the lock.
    Used,
    /// No operation uses the lock; it is in the LRU.
    Idle,
    /// The server has called the lock back, and operations that found it before still use it.
    Wanted,
    /// The caller has the [`Giving`].
    Giving,
    /// The cancel of the lock is sent.
    Gone,
}

/// Event that changes the stage of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// An operation has found the lock usable and begins to use it.
    Use,
    /// An operation that may use a lock which is called back, as long as its cancel is not sent, begins to use it.
    UseCalledBack,
    /// A reply brings more bits of the lock, for the operation that sent the request.
    Extend,
    /// An operation ends, and either other operations still use the lock or the caller has the [`Giving`].
    Release,
    /// The last operation ends, and the lock is kept.
    Rest,
    /// The server calls the lock back, or the client gives it back to save memory.
    CallBack,
    /// The caller gets a [`Giving`].
    Give,
    /// An operation began to use the lock meanwhile; its release will give the lock back.
    Stop,
    /// As `Stop`, for a group lock that the server has not called back: its last release gives it back in any case.
    StopGroup,
    /// The convert of the lock is sent.
    Convert,
    /// The cancel of the lock is sent.
    Cancel,
}

/// All steps, except that an eviction or an ENOENT from the server removes a lock in any stage.
pub(crate) const STAGES: Steps<Stage, Event> = Steps(&[
    (Stage::Used, Event::Use, Stage::Used),
    (Stage::Used, Event::Extend, Stage::Used),
    (Stage::Used, Event::Release, Stage::Used),
    (Stage::Used, Event::Rest, Stage::Idle),
    (Stage::Used, Event::CallBack, Stage::Wanted),
    (Stage::Used, Event::Give, Stage::Giving),
    (Stage::Idle, Event::Use, Stage::Used),
    (Stage::Idle, Event::Extend, Stage::Used),
    (Stage::Idle, Event::CallBack, Stage::Giving),
    (Stage::Wanted, Event::UseCalledBack, Stage::Wanted),
    (Stage::Wanted, Event::Extend, Stage::Wanted),
    (Stage::Wanted, Event::Release, Stage::Wanted),
    (Stage::Wanted, Event::CallBack, Stage::Wanted),
    (Stage::Wanted, Event::Give, Stage::Giving),
    (Stage::Giving, Event::UseCalledBack, Stage::Giving),
    (Stage::Giving, Event::Release, Stage::Giving),
    (Stage::Giving, Event::CallBack, Stage::Giving),
    (Stage::Giving, Event::Give, Stage::Giving),
    (Stage::Giving, Event::Stop, Stage::Wanted),
    (Stage::Giving, Event::StopGroup, Stage::Used),
    (Stage::Giving, Event::Convert, Stage::Idle),
    (Stage::Giving, Event::Cancel, Stage::Gone),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound_and_only_what_the_caller_has_to_give_is_given_back() {
        STAGES.assert_sound();
        let before_the_end = STAGES.0.iter().filter(|(.., to)| *to == Stage::Gone).map(|(from, ..)| *from);
        assert!(before_the_end.eq([Stage::Giving]));
        assert_eq!(STAGES.find(Stage::Used, Event::Cancel), None);
        assert_eq!(STAGES.find(Stage::Wanted, Event::Use), None, "a lock that is called back is not found again");
    }
}
