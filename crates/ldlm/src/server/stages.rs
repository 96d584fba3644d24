//! The life of one lock at the server, as a table. It applies to extent locks, including those that the server takes,
//! and to clients' inode locks, which are granted at once or not at all.

use nacre_base::steps::Steps;

/// Stage of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The server examines the request.
    Asked,
    /// The request is in the queue.
    Waiting,
    /// The client holds the lock, and no request waits for it.
    Granted,
    /// The holder was told that a request waits for the lock.
    CalledBack,
    /// The lock or request has been removed.
    Gone,
}

/// Event that changes the stage of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A granted lock or an earlier request conflicts.
    Block,
    /// Nothing conflicts.
    Grant,
    /// Nothing conflicts, but a request waits already: the reply tells the client to give the lock back.
    GrantWanted,
    /// Another request waits for the lock, and the server sends a blocking callback.
    CallBack,
    /// The holder gives back some of an inode lock's bits, or receives more.
    Convert,
    /// The client cancels the lock, withdraws the request, or is evicted.
    End,
}

/// All steps. A granted lock is called back once, a waiting request never.
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
