//! The states of a span of an object's bytes in a client's cache, as a table. Every segment changes its state by this table, so
//! that no dirty byte is dropped as if it were clean and no byte of a write request under way is sent a second time.

use nacre_base::steps::Steps;

/// State of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanState {
    /// The cache has no bytes of the span, and no read request will bring any.
    Missing,
    /// A read request under way will bring the bytes.
    Filling,
    /// The cached bytes are those that the server has.
    Clean,
    /// Only this client has the bytes.
    Dirty,
    /// A write request under way brings the bytes to the server.
    Writing,
}

/// Event that changes the state of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanInput {
    /// The client sends a read request for the span.
    Fetch,
    /// The reply to the read request brought the bytes.
    Fetched,
    /// The read request has failed.
    NotFetched,
    /// A program writes there.
    Write,
    /// The client puts the bytes into a write request.
    Flush,
    /// The write request has succeeded.
    Written,
    /// The write request has succeeded, and the span is so small that its entry would cost more memory than its bytes.
    WrittenSmall,
    /// The write request has failed.
    Lost,
    /// The cache needs the memory for other bytes.
    Evict,
    /// The lock that made the clean bytes true is gone.
    Distrust,
    /// All bytes go, because the object was truncated or the client was evicted.
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
        // The write request still brings the old bytes.
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
        assert_eq!(STEPS.find(SpanState::Missing, SpanInput::Fetched), None, "the bytes of a fill that was given up");
    }
}
