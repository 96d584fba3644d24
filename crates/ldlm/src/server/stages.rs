//! The life of one lock at the server, as a table. It holds for extent locks, those of the server's own among them, and for
//! clients' inode locks, which are granted at once or not at all.

use nacre_base::steps::Steps;

/// How far a lock has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The request is being looked at.
    Asked,
    /// The request is in the queue.
    Waiting,
    /// Nobody waits for the lock.
    Granted,
    /// The holder was told that somebody waits for the lock.
    CalledBack,
    /// Nothing is left of it.
    Gone,
}

/// What happens to a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A lock or a request before it is in its way.
    Block,
    /// Nothing is in its way.
    Grant,
    /// Nothing is in its way, and somebody waits for it already: the reply says so.
    GrantWanted,
    /// It is in somebody's way, and the holder is told.
    CallBack,
    /// The holder gives back some of an inode lock's bits, or receives more.
    Convert,
    /// It is given back, taken back, or lost with its client.
    End,
}

/// All that may happen. A lock is called back once, and a waiting request not at all.
pub(super) const STAGES: Steps<Stage, Event> = Steps(&[
    (Stage::Asked, Event::Block, Stage::Waiting),
    (Stage::Asked, Event::Grant, Stage::Granted),
    (Stage::Asked, Event::GrantWanted, Stage::CalledBack),
    (Stage::Waiting, Event::Block, Stage::Waiting),
    (Stage::Waiting, Event::Grant, Stage::Granted),
    (Stage::Waiting, Event::GrantWanted, Stage::CalledBack),
    (Stage::Waiting, Event::End, Stage::Gone),
    (Stage::Granted, Event::CallBack, Stage::CalledBack),
    (Stage::Granted, Event::Convert, Stage::Granted),
    (Stage::Granted, Event::End, Stage::Gone),
    (Stage::CalledBack, Event::Convert, Stage::Granted),
    (Stage::CalledBack, Event::End, Stage::Gone),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound_and_nothing_comes_after_the_end() {
        STAGES.assert_sound();
        assert!(STAGES.0.iter().all(|(from, ..)| *from != Stage::Gone));
        assert_eq!(STAGES.find(Stage::CalledBack, Event::CallBack), None, "holders are told once");
    }
}
