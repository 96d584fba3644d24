//! Buffers for messages from the kernel, which are reused. A large WRITE's data stays in the buffer it was read into, on
//! a page boundary, and the buffer comes back when the last slice of it is dropped.

use crate::abi::WRITE_HEADERS;
use bytes::Bytes;
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Offset in a buffer at which a message begins, so that a WRITE's data begins on the first page boundary.
const MESSAGE_AT: usize = DIRECT_IO_ALIGNMENT - WRITE_HEADERS;

/// Messages up to this length are copied out of the buffer: the copy takes at most a few microseconds, and a small write
/// in a cache must not pin a buffer of a megabyte.
const COPY_MAX: usize = 64 << 10;

/// The data of shorter WRITEs is copied without regard for page boundaries: caches copy such small data once more, and
/// devices take it through the page cache.
const ALIGNED_MIN: usize = 16 << 10;

/// Buffers kept for reuse.
pub(crate) struct Pool {
    free: Mutex<Vec<AlignedBuf>>,
    free_max: usize,
    data_max: usize,
}

impl Pool {
    /// Creates a pool of buffers for WRITEs of up to `data_max` bytes, which keeps up to `free_max` unused ones.
    pub(crate) fn new(data_max: usize, free_max: usize) -> Arc<Pool> {
        Arc::new(Pool { free: Mutex::default(), free_max, data_max })
    }

    /// A buffer to read a message into.
    pub(crate) fn take(self: &Arc<Pool>) -> MessageBuf {
        self.take_for(0)
    }

    /// A buffer for a message that is likely to be `len` bytes long, as the one before it. If the process has just got the memory
    /// from the kernel, one call gives it its pages here: otherwise the kernel would stop at each page to get it while it
    /// copies the message.
    fn take_for(self: &Arc<Pool>, len: usize) -> MessageBuf {
        let reused = self.free.lock().pop();
        let buf = reused.unwrap_or_else(|| {
            let mut buf = AlignedBuf::for_overwrite(DIRECT_IO_ALIGNMENT + self.data_max);
            if len > 0 {
                make_present(&mut buf[..MESSAGE_AT + len]);
            }
            buf
        });
        MessageBuf(Pooled { buf: Some(buf), pool: self.clone() })
    }

    /// Number of unused buffers kept at the moment.
    #[cfg(test)]
    fn free_count(&self) -> usize {
        self.free.lock().len()
    }
}

/// Gives memory to the pages of `bytes`, which begin on a page boundary. Kernels before 5.14 cannot, which only costs time.
fn make_present(bytes: &mut [u8]) {
    // SAFETY: the range is ours, and no byte in it changes.
    unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), libc::MADV_POPULATE_WRITE) };
}

/// A buffer that goes back to its pool.
struct Pooled {
    /// None only while this is dropped.
    buf: Option<AlignedBuf>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < self.pool.free_max {
            free.extend(self.buf.take());
        }
    }
}

/// Room for one message; dereferences to the bytes to read into.
pub(crate) struct MessageBuf(Pooled);

impl Deref for MessageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.as_ref()[MESSAGE_AT..]
    }
}

impl DerefMut for MessageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0.buf.as_deref_mut().unwrap_or_default()[MESSAGE_AT..]
    }
}

impl MessageBuf {
    /// Takes the message of `len` bytes that was read, and leaves in `self` a buffer for the next one.
    pub(crate) fn message(&mut self, len: usize, is_write: bool) -> Bytes {
        if len > COPY_MAX {
            let pool = self.0.pool.clone();
            let full = std::mem::replace(self, pool.take_for(len));
            return Bytes::from_owner(full.0).slice(MESSAGE_AT..MESSAGE_AT + len);
        }
        if !is_write || len < WRITE_HEADERS + ALIGNED_MIN {
            return Bytes::copy_from_slice(&self[..len]);
        }
        let mut copy = AlignedBuf::for_overwrite(MESSAGE_AT + len);
        copy[..MESSAGE_AT].fill(0);
        copy[MESSAGE_AT..].copy_from_slice(&self[..len]);
        Bytes::from(copy).slice(MESSAGE_AT..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_data_of_a_write_that_is_not_small_is_page_aligned_copied_or_not() {
        let pool = Pool::new(MIB, 4);
        for data in [ALIGNED_MIN, COPY_MAX - WRITE_HEADERS, COPY_MAX, MIB] {
            let mut buf = pool.take();
            let len = WRITE_HEADERS + data;
            buf[..len].fill(7);
            let message = buf.message(len, true);
            assert_eq!((message.len(), message[len - 1]), (len, 7));
            assert_eq!(message.slice(WRITE_HEADERS..).as_ptr() as usize % DIRECT_IO_ALIGNMENT, 0, "{data} bytes");
        }
    }

    #[test]
    fn a_large_message_stays_where_it_was_read_and_its_buffer_comes_back() {
        let pool = Pool::new(MIB, 4);
        let mut buf = pool.take();
        let at = buf.as_ptr();
        let message = buf.message(COPY_MAX + 1, true);
        assert_eq!(message.as_ptr(), at);
        let slice = message.slice(100..200);
        drop(message);
        assert_eq!(pool.free_count(), 0, "a slice still holds it");
        drop(slice);
        assert_eq!(pool.free_count(), 1);
        assert_eq!(pool.take().as_ptr(), at, "and is used again");
    }

    #[test]
    fn no_more_are_kept_than_said() {
        let pool = Pool::new(4096, 2);
        drop((0..5).map(|_| pool.take()).collect::<Vec<_>>());
        assert_eq!(pool.free_count(), 2);
    }
}
