//! What a span of an object is to this client, and what becomes of it: a table. Each segment of the cache takes its steps by
//! it, so that no dirty byte is let go as if it were clean, and no byte that is on its way is sent again.

use nacre_base::steps::Steps;

/// What the cache has of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanState {
    /// Nothing, and nobody fetches it.
    Missing,
    /// Nothing yet: a read request will bring it.
    Filling,
    /// What the server has.
    Clean,
    /// What only this client has.
    Dirty,
    /// What a write request under way brings to the server.
    Writing,
}

/// What can happen to a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanInput {
    /// A read request for it is sent.
    Fetch,
    /// The read request has brought it.
    Fetched,
    /// The read request has failed.
    NotFetched,
    /// A program writes there.
    Write,
    /// A write request takes it along.
    Flush,
    /// The write request has succeeded.
    Written,
    /// The same, but the span costs more memory for its place than it holds.
    WrittenSmall,
    /// The write request has failed.
    Lost,
    /// The memory is wanted.
    Evict,
    /// Clean bytes are to be believed no longer.
    Distrust,
    /// All bytes go, because the object is cut or the client was evicted.
    Drop,
}

/// All steps.
pub(crate) const STEPS: Steps<SpanState, SpanInput> = {
    use SpanInput::{Distrust, Drop, Evict, Fetch, Fetched, Flush, Lost, NotFetched, Write, Written, WrittenSmall};
    use SpanState::{Clean, Dirty, Filling, Missing, Writing};
    Steps(&[
        (Missing, Fetch, Filling),
        (Missing, Write, Dirty),
        (Missing, Distrust, Missing),
        (Missing, Drop, Missing),
        (Filling, Fetched, Clean),
        (Filling, NotFetched, Missing),
        (Filling, Write, Dirty),
        (Filling, Distrust, Missing),
        (Filling, Drop, Missing),
        (Clean, Write, Dirty),
        (Clean, Evict, Missing),
        (Clean, Distrust, Missing),
        (Clean, Drop, Missing),
        (Dirty, Write, Dirty),
        (Dirty, Flush, Writing),
        (Dirty, Distrust, Dirty),
        (Dirty, Drop, Missing),
        // The write request brings the old bytes all the same.
        (Writing, Write, Dirty),
        (Writing, Written, Clean),
        (Writing, WrittenSmall, Missing),
        (Writing, Lost, Missing),
        (Writing, Distrust, Writing),
        (Writing, Drop, Missing),
    ])
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_answer_and_loses_nothing_quietly() {
        STEPS.assert_sound();
        assert_eq!(STEPS.find(SpanState::Dirty, SpanInput::Evict), None);
        assert_eq!(STEPS.find(SpanState::Writing, SpanInput::Flush), None, "never sent twice at once");
        assert_eq!(STEPS.find(SpanState::Dirty, SpanInput::Lost), None, "newer bytes stay");
    }
}
