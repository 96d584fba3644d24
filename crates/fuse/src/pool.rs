//! Buffers for messages from the kernel, which are reused. A large WRITE's data stays in the buffer it was read into, on
//! a page boundary, and the buffer comes back when the last slice of it is dropped.
//!
//! That may be long after the call was answered: the client keeps what it has written until it is committed, hundreds of buffers that
//! come back together. So a pool keeps all of them for a second or two ([`Pool::trim_forever`]), because the kernel fills each page of
//! new memory with zeros: when no more than 32 were kept, that was a tenth of the processor's work for a mount that wrote.

use crate::abi::WRITE_HEADERS;
use bytes::Bytes;
use nacre_base::buf::{AlignedBuf, DIRECT_IO_ALIGNMENT};
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Offset in a buffer at which a message begins, so that a WRITE's data begins on the first page boundary.
const MESSAGE_AT: usize = DIRECT_IO_ALIGNMENT - WRITE_HEADERS;

/// Messages up to this length are copied out of the buffer: the copy takes at most a few microseconds, and a small write
/// in a cache must not pin a buffer of a megabyte.
const COPY_MAX: usize = 64 << 10;

/// The data of shorter WRITEs is copied without regard for page boundaries: caches copy such small data once more, and
/// devices take it through the page cache.
const ALIGNED_MIN: usize = 16 << 10;

/// How often buffers that nobody has needed are given back.
const TRIM_EVERY: Duration = Duration::from_secs(1);

/// Buffers kept for reuse.
pub(crate) struct Pool {
    free: Mutex<Free>,
    /// Unused buffers that are kept however long nobody needs them.
    kept: usize,
    data_max: usize,
    /// Rung when there are more than that.
    crowded: Notify,
}

/// Unused buffers, of which the last is taken first.
#[derive(Default)]
struct Free {
    buffers: Vec<AlignedBuf>,
    /// The fewest that there were since the pool was trimmed last: so many have not been needed.
    fewest: usize,
}

impl Pool {
    /// Creates a pool of buffers for WRITEs of up to `data_max` bytes, which always keeps up to `kept` unused ones.
    pub(crate) fn new(data_max: usize, kept: usize) -> Arc<Pool> {
        Arc::new(Pool { free: Mutex::default(), kept, data_max, crowded: Notify::new() })
    }

    /// Gives back what has not been needed for a second, as long as more buffers are unused than are always kept.
    pub(crate) async fn trim_forever(&self, rt: &Rt) {
        loop {
            self.crowded.notified().await;
            loop {
                rt.sleep(TRIM_EVERY).await;
                if !self.trim() {
                    break;
                }
            }
        }
    }

    /// Gives back what has not been needed since the last call. Returns whether more is left than is always kept.
    fn trim(&self) -> bool {
        let mut free = self.free.lock();
        let unneeded = free.fewest.min(free.buffers.len().saturating_sub(self.kept));
        let given_back: Vec<AlignedBuf> = free.buffers.drain(..unneeded).collect();
        free.fewest = free.buffers.len();
        let is_crowded = free.buffers.len() > self.kept;
        drop(free);
        drop(given_back);
        is_crowded
    }

    /// A buffer to read a message into.
    pub(crate) fn take(self: &Arc<Pool>) -> MessageBuf {
        self.take_for(0)
    }

    /// A buffer for a message that is likely to be `len` bytes long, as the one before it. If the process has just got the memory
    /// from the kernel, one call gives it its pages here: otherwise the kernel would stop at each page to get it while it
    /// copies the message.
    fn take_for(self: &Arc<Pool>, len: usize) -> MessageBuf {
        let reused = {
            let mut free = self.free.lock();
            let reused = free.buffers.pop();
            free.fewest = free.fewest.min(free.buffers.len());
            reused
        };
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
        self.free.lock().buffers.len()
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
        free.buffers.extend(self.buf.take());
        let is_crowded = free.buffers.len() == self.pool.kept + 1;
        drop(free);
        if is_crowded {
            self.pool.crowded.notify_one();
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
    use nacre_base::Time;
    use nacre_rt::Sim;

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
    fn buffers_that_were_not_needed_between_two_looks_are_given_back_but_for_some() {
        let pool = Pool::new(4096, 2);
        let use_at_once = |count| drop((0..count).map(|_| pool.take()).collect::<Vec<_>>());
        use_at_once(10);
        assert!(pool.trim(), "all were needed");
        assert_eq!(pool.free_count(), 10);
        use_at_once(7);
        assert!(pool.trim(), "three were not");
        assert_eq!(pool.free_count(), 7);
        assert!(!pool.trim(), "none was, but two are kept");
        assert_eq!(pool.free_count(), 2);
        assert!(!pool.trim());
        assert_eq!(pool.free_count(), 2);
    }

    #[test]
    fn an_idle_pool_shrinks_by_itself_and_grows_and_shrinks_again() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(60), async move {
            let pool = Pool::new(4096, 2);
            let trimmed = pool.clone();
            let at = rt.clone();
            let task = rt.spawn(async move { trimmed.trim_forever(&at).await });
            for count in [10, 20] {
                drop((0..count).map(|_| pool.take()).collect::<Vec<_>>());
                assert_eq!(pool.free_count(), count);
                rt.sleep(TRIM_EVERY * 3).await;
                assert_eq!(pool.free_count(), 2);
            }
            task.abort();
        });
    }
}
