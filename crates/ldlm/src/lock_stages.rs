//! The life of one lock in a client's cache, as a table. See [`crate::lock_cache`].

use nacre_base::steps::Steps;

/// How far a lock that is held has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Operations use it.
    Used,
    /// Nobody uses it: it is in the LRU.
    Idle,
    /// It is called back, and operations that found it before still use it.
    Wanted,
    /// The caller has the [`Giving`].
    Giving,
    /// Its cancel is sent.
    Gone,
}

/// What happens to a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// An operation begins to use it.
    Use,
    /// An operation ends, and either others use it still or the caller has the [`Giving`].
    Release,
    /// The last operation ends, and the lock is kept.
    Rest,
    /// Somebody is waiting for it, or it is too much.
    CallBack,
    /// The caller gets a [`Giving`].
    Give,
    /// It is in use again, and its last release gives it back.
    Stop,
    /// So is a group lock, which nobody has called back.
    StopGroup,
    /// Its convert is sent.
    Convert,
    /// Its cancel is sent.
    Cancel,
}

/// All that may happen, but for what an eviction or the server's word takes at any time.
pub(crate) const STAGES: Steps<Stage, Event> = Steps(&[
    (Stage::Used, Event::Use, Stage::Used),
    (Stage::Used, Event::Release, Stage::Used),
    (Stage::Used, Event::Rest, Stage::Idle),
    (Stage::Used, Event::CallBack, Stage::Wanted),
    (Stage::Used, Event::Give, Stage::Giving),
    (Stage::Idle, Event::Use, Stage::Used),
    (Stage::Idle, Event::CallBack, Stage::Giving),
    (Stage::Wanted, Event::Use, Stage::Wanted),
    (Stage::Wanted, Event::Release, Stage::Wanted),
    (Stage::Wanted, Event::CallBack, Stage::Wanted),
    (Stage::Wanted, Event::Give, Stage::Giving),
    (Stage::Giving, Event::Use, Stage::Giving),
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
    }
}
