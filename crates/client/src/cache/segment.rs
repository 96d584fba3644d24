//! A run of cached bytes in one state. Its memory is either shared with the buffer in which the data came, or a chunk of
//! its own to which small writes append.

use super::lru::LruNode;
use super::outgoing::FlushTicket;
use super::span_state::{STEPS, SpanInput, SpanState};
use super::spans::Span;
use bytes::Bytes;
use nacre_base::Payload;

/// Data of at least this size keeps the buffer in which it came; smaller pieces are copied. A caller that hands in a
/// small part of a large buffer copies it before: that buffer's size is not known here.
pub(crate) const SHARE_MIN: usize = 16 << 10;
/// Size up to which small writes append to a chunk.
pub(crate) const CHUNK_MAX: usize = 1 << 20;
/// If less than this part of a shared buffer is in use, the bytes are copied and the buffer is released.
const PINNED_FRACTION: usize = 8;

/// Contiguous bytes.
#[derive(Debug)]
pub(crate) struct Segment {
    data: Data,
    pub(crate) state: State,
    /// Place in the order of use; set only for clean segments in a cache.
    pub(crate) lru: Option<LruNode>,
}

/// State of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The server has the bytes, too.
    Clean,
    /// Only this cache has the bytes.
    Dirty,
    /// A flush brings the bytes to the server.
    Writing(FlushTicket),
}

impl State {
    /// The state's name in the table of [`super::span_state`].
    fn span_state(self) -> SpanState {
        match self {
            State::Clean => SpanState::Clean,
            State::Dirty => SpanState::Dirty,
            State::Writing(_) => SpanState::Writing,
        }
    }

    /// Panics if bytes that were not in the cache cannot come into it in this state.
    #[track_caller]
    fn assert_begins(self) {
        // A program may also write where a read request will bring bytes, which the cache then ignores.
        let (before, input) = match self {
            State::Clean => (SpanState::Filling, SpanInput::Fetched),
            State::Dirty | State::Writing(_) => (SpanState::Missing, SpanInput::Write),
        };
        let begun = STEPS.next(before, input);
        assert_eq!(begun, self.span_state(), "the state of new bytes by the table, and as they came into the cache");
    }
}

#[derive(Debug)]
enum Data {
    /// Part of a buffer, of which `pinned` bytes were shared at first.
    Shared { bytes: Bytes, pinned: usize },
    /// Small writes; more can be appended. The chunk is not shared.
    Chunk(Vec<u8>),
    /// Zeros, which need no memory.
    Zeroes(u64),
}

impl Segment {
    pub(crate) fn shared(bytes: Bytes, state: State) -> Segment {
        state.assert_begins();
        Segment { data: Data::Shared { pinned: bytes.len(), bytes }, state, lru: None }
    }

    /// Creates a segment of dirty bytes, copied.
    pub(crate) fn chunk(data: &Payload) -> Segment {
        let mut chunk = Vec::with_capacity(data.len());
        data.pieces().iter().for_each(|piece| chunk.extend_from_slice(piece));
        State::Dirty.assert_begins();
        Segment { data: Data::Chunk(chunk), state: State::Dirty, lru: None }
    }

    pub(crate) fn zeroes(len: u64) -> Segment {
        assert!(len > 0, "a segment without bytes");
        State::Clean.assert_begins();
        Segment { data: Data::Zeroes(len), state: State::Clean, lru: None }
    }

    /// The state of the span after `input`. Panics if the table has no such step, because then a byte would be lost or sent twice.
    #[track_caller]
    pub(crate) fn after(&self, input: SpanInput) -> SpanState {
        STEPS.next(self.state.span_state(), input)
    }

    /// A flush takes the bytes along.
    pub(crate) fn begin_writing(&mut self, ticket: FlushTicket) {
        assert_eq!(self.after(SpanInput::Flush), SpanState::Writing, "{ticket:?} takes {:?} bytes", self.state);
        self.state = State::Writing(ticket);
    }

    /// The flush has brought the bytes to the server.
    pub(crate) fn end_writing(&mut self) {
        assert_eq!(self.after(SpanInput::Written), SpanState::Clean, "{:?} bytes were written", self.state);
        assert!(self.lru.is_none(), "bytes in state {:?} are among those to be evicted", self.state);
        self.state = State::Clean;
    }

    /// Bytes of memory that the segment takes.
    pub(crate) fn memory(&self) -> u64 {
        match &self.data {
            Data::Shared { bytes, .. } => bytes.len() as u64,
            Data::Chunk(chunk) => chunk.len() as u64,
            Data::Zeroes(_) => 0,
        }
    }

    /// Copies `data` in at `at`, over existing bytes and beyond them, if this is a chunk of dirty bytes with room for it;
    /// returns false if not.
    pub(crate) fn absorb(&mut self, at: u64, data: &Payload) -> bool {
        let Data::Chunk(chunk) = &mut self.data else { return false };
        let Ok(mut at) = usize::try_from(at) else { return false };
        if self.state != State::Dirty || at > chunk.len() || at + data.len() > CHUNK_MAX {
            return false;
        }
        let after = STEPS.next(self.state.span_state(), SpanInput::Write);
        assert_eq!(after, SpanState::Dirty, "a program writes over {:?} bytes", self.state);
        assert!(self.lru.is_none(), "dirty bytes are among those to be evicted");
        for piece in data.pieces() {
            let (over, beyond) = piece.split_at(piece.len().min(chunk.len() - at));
            chunk[at..at + over.len()].copy_from_slice(over);
            chunk.extend_from_slice(beyond);
            at += piece.len();
        }
        true
    }

    /// The bytes `at .. at + len`, which the segment has.
    pub(crate) fn read(&mut self, at: u64, len: u64) -> Payload {
        let Data::Zeroes(_) = self.data else {
            let range = at as usize..(at + len) as usize;
            if let Data::Chunk(chunk) = &self.data
                && range.len() < SHARE_MIN
            {
                return Payload::from(Bytes::copy_from_slice(&chunk[range]));
            }
            return Payload::from(self.freeze().slice(range));
        };
        // A read is a bounded request: its length fits.
        Payload::zeroes(len as usize)
    }

    /// All bytes, shared. Nothing can be appended to the segment after this.
    pub(crate) fn freeze(&mut self) -> Bytes {
        match &mut self.data {
            Data::Shared { bytes, .. } => bytes.clone(),
            Data::Zeroes(len) => Payload::zeroes(*len as usize).to_bytes(),
            Data::Chunk(chunk) => {
                let bytes = Bytes::from(std::mem::take(chunk));
                self.data = Data::Shared { bytes: bytes.clone(), pinned: bytes.len() };
                bytes
            }
        }
    }
}

impl Span for Segment {
    fn split_off(&mut self, at: u64) -> Segment {
        let data = if let Data::Zeroes(len) = &mut self.data {
            assert!(at < *len, "{len} zeros are cut at {at}");
            let rest = *len - at;
            *len = at;
            Data::Zeroes(rest)
        } else {
            self.freeze();
            let Data::Shared { bytes, pinned } = &mut self.data else { unreachable!("frozen") };
            Data::Shared { bytes: bytes.split_off(at as usize), pinned: *pinned }
        };
        Segment { data, state: self.state, lru: self.lru }
    }

    fn settle(&mut self) {
        if let Data::Shared { bytes, pinned } = &mut self.data
            && bytes.len() < *pinned / PINNED_FRACTION
        {
            *bytes = Bytes::copy_from_slice(bytes);
            *pinned = bytes.len();
        }
    }
}

/// Splits the payload into pieces that may be kept: large ones as they are, small ones copied together.
pub(crate) fn pieces_to_keep(data: &Payload) -> Vec<Bytes> {
    let (mut kept, mut small) = (Vec::with_capacity(1), Vec::new());
    for piece in data.pieces() {
        if piece.len() >= SHARE_MIN || small.len() + piece.len() > CHUNK_MAX {
            push(&mut kept, &mut small);
        }
        if piece.len() >= SHARE_MIN {
            kept.push(piece.clone());
        } else {
            small.extend_from_slice(piece);
        }
    }
    push(&mut kept, &mut small);
    kept
}

fn push(kept: &mut Vec<Bytes>, small: &mut Vec<u8>) {
    if !small.is_empty() {
        let mut whole = std::mem::take(small);
        whole.shrink_to_fit();
        kept.push(whole.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "as they came into the cache")]
    fn bytes_that_no_program_wrote_are_not_on_their_way_to_the_server() {
        Segment::shared(Bytes::from_static(b"x"), State::Writing(FlushTicket(1)));
    }

    #[test]
    #[should_panic(expected = "Flush in state Writing")]
    fn bytes_on_their_way_to_the_server_are_not_sent_again() {
        let mut segment = Segment::shared(Bytes::from_static(b"x"), State::Dirty);
        segment.begin_writing(FlushTicket(1));
        segment.begin_writing(FlushTicket(2));
    }

    #[test]
    #[should_panic(expected = "Evict in state Dirty")]
    fn bytes_that_only_this_client_has_are_not_evicted() {
        Segment::chunk(&Payload::from(Bytes::from_static(b"x"))).after(SpanInput::Evict);
    }
}
