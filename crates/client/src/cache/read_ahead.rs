//! What a program will read next, guessed from what it read: one for each open file, in file offsets. Recognises
//! several sequential, strided and backward streams at once. It says what to fetch; the caller cuts that to what its
//! locks cover and what is not cached, and tells what was fetched in vain.

use nacre_base::Time;
use std::ops::Range;

/// Bounds, in bytes: `llite.*.max_read_ahead_per_file_mb` and `max_read_ahead_whole_mb`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAheadLimits {
    /// Largest window of one file; 0: no read-ahead.
    pub(crate) per_file: u64,
    /// Files up to this size are fetched whole when read from their beginning.
    pub(crate) whole: u64,
}

/// The reads of one open file.
#[derive(Debug)]
pub(crate) struct ReadAhead {}

impl ReadAhead {
    /// Of a file just opened.
    pub(crate) fn new() -> ReadAhead {
        todo!()
    }

    /// `len` bytes at `offset` are read, of a file of about `size` bytes. What to fetch ahead, beyond them: ascending
    /// ranges within `size`, none of which was told before (unless wasted since).
    pub(crate) fn handle_read(
        &mut self,
        offset: u64,
        len: u64,
        size: u64,
        limits: ReadAheadLimits,
        now: Time,
    ) -> Vec<Range<u64>> {
        let _ = (offset, len, size, limits, now);
        todo!()
    }

    /// A range that was told to be fetched was not, or left the cache before it was read.
    pub(crate) fn handle_wasted(&mut self, range: Range<u64>) {
        let _ = range;
        todo!()
    }
}
