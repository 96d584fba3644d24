//! Data on its way between a program, the network and a disk: refcounted, page aligned where we allocate it, never
//! copied by passing it on.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment that every disk and every O_DIRECT file system accepts.
pub const DIRECT_IO_ALIGNMENT: usize = 4096;

/// A heap buffer aligned for direct I/O, with fixed length. Freeze it with `Bytes::from(buf)`.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its memory and has no interior mutability.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, DIRECT_IO_ALIGNMENT).expect("capacity is far below isize::MAX")
    }

    fn capacity_for(len: usize) -> usize {
        len.max(1).next_multiple_of(DIRECT_IO_ALIGNMENT)
    }

    fn with(len: usize, get: unsafe fn(Layout) -> *mut u8) -> AlignedBuf {
        let capacity = Self::capacity_for(len);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let ptr = NonNull::new(unsafe { get(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuf { ptr, len, capacity }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        Self::with(len, alloc_zeroed)
    }

    /// `len` bytes that the caller will overwrite (a read from a disk or a socket) before anyone looks at them.
    pub fn for_overwrite(len: usize) -> AlignedBuf {
        let mut buf = match POOL.take(Self::capacity_for(len)) {
            Some(ptr) => AlignedBuf { ptr, len, capacity: Self::capacity_for(len) },
            None => Self::with(len, alloc),
        };
        // The memory may hold another request's data, so callers must truncate the buffer after a short read. Debug
        // builds fill it, so that a forgotten truncation is noticed.
        if cfg!(debug_assertions) {
            buf.fill(0xa5);
        }
        buf
    }

    /// Shortens the buffer to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes allocated; a multiple of the alignment.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes the buffer `len` long, within its capacity. The bytes between are whatever was written there.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "set_len {len} beyond capacity {}", self.capacity);
        self.len = len;
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if POOL.keep(self.ptr, self.capacity) {
            return;
        }
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// Buffers that were dropped and wait to be used again. Without the pool the allocator would give large buffers back to
/// the kernel, and every MiB would cost 256 page faults when it is used again: more than its transfer over the network.
static POOL: Pool = Pool { classes: [const { Mutex::new(Vec::new()) }; POOL_CLASSES] };

struct Pool {
    /// By capacity: 64 KiB, 128 KiB, … 4 MiB. Other capacities are not kept.
    classes: [Mutex<Vec<Spare>>; POOL_CLASSES],
}

/// Memory of a dropped buffer.
struct Spare(NonNull<u8>);

// SAFETY: a spare is owned memory that nothing refers to.
unsafe impl Send for Spare {}

const POOL_CLASSES: usize = 7;
const POOL_SMALLEST: usize = 64 << 10;
/// Bytes kept in each class.
const POOL_CLASS_BYTES_MAX: usize = 32 << 20;

impl Pool {
    fn class(&self, capacity: usize) -> Option<&Mutex<Vec<Spare>>> {
        let class = (capacity / POOL_SMALLEST).checked_ilog2()?;
        if capacity.is_power_of_two() { self.classes.get(class as usize) } else { None }
    }

    fn take(&self, capacity: usize) -> Option<NonNull<u8>> {
        self.class(capacity)?.lock().pop().map(|spare| spare.0)
    }

    /// Keeps the memory of a buffer. Returns false if it should be freed.
    fn keep(&self, ptr: NonNull<u8>, capacity: usize) -> bool {
        let Some(class) = self.class(capacity) else { return false };
        let mut spares = class.lock();
        let room = spares.len() < POOL_CLASS_BYTES_MAX / capacity;
        if room {
            spares.push(Spare(ptr));
        }
        room
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: len <= capacity bytes are allocated.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and we are the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<AlignedBuf> for Bytes {
    fn from(buf: AlignedBuf) -> Bytes {
        Bytes::from_owner(buf)
    }
}

/// A run of bytes made of shared pieces: what bulk transfers, reads and writes carry. Cloning shares.
#[derive(Clone, Default, Debug)]
pub struct Payload {
    pieces: Pieces,
    len: usize,
}

/// Most messages have one piece, which needs no list, and many wait at the same time.
#[derive(Clone, Debug)]
enum Pieces {
    One(Bytes),
    /// None, or several.
    List(Vec<Bytes>),
}

const _: () = assert!(size_of::<Pieces>() == size_of::<Bytes>(), "a list lies where the piece would");

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces::List(Vec::new())
    }
}

impl Pieces {
    fn as_slice(&self) -> &[Bytes] {
        match self {
            Pieces::One(one) => std::slice::from_ref(one),
            Pieces::List(list) => list,
        }
    }

    fn push(&mut self, piece: Bytes) {
        if let Pieces::List(list) = self
            && !list.is_empty()
        {
            return list.push(piece);
        }
        *self = match std::mem::take(self) {
            Pieces::One(first) => Pieces::List(vec![first, piece]),
            Pieces::List(_) => Pieces::One(piece),
        };
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Bytes>, std::vec::IntoIter<Bytes>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, list) = match self {
            Pieces::One(one) => (Some(one), Vec::new()),
            Pieces::List(list) => (None, list),
        };
        one.into_iter().chain(list)
    }
}

impl Payload {
    /// No bytes.
    pub fn new() -> Payload {
        Payload::default()
    }

    /// `len` zero bytes, all from one shared source of 64 KiB.
    pub fn zeroes(len: usize) -> Payload {
        static ZEROES: [u8; 65536] = [0; 65536];
        let mut p = Payload::new();
        while p.len < len {
            p.push(Bytes::from_static(&ZEROES[..(len - p.len).min(ZEROES.len())]));
        }
        p
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order; none is empty.
    pub fn pieces(&self) -> &[Bytes] {
        self.pieces.as_slice()
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: Payload) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.len += other.len;
        other.pieces.into_iter().for_each(|piece| self.pieces.push(piece));
    }

    /// The bytes `offset .. offset + len`, shared. Panics if they are not all there.
    pub fn slice(&self, offset: usize, len: usize) -> Payload {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "slice {offset}+{len} of {}", self.len);
        let mut out = Payload::new();
        let (mut skip, mut want) = (offset, len);
        for p in self.pieces() {
            if skip >= p.len() {
                skip -= p.len();
                continue;
            }
            if want == 0 {
                break;
            }
            let n = (p.len() - skip).min(want);
            out.push(p.slice(skip..skip + n));
            want -= n;
            skip = 0;
        }
        out
    }

    /// Drops all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            *self = self.slice(0, len);
        }
    }

    /// CRC32C of the bytes, however they are cut into pieces: the checksum of data on the wire and on disks.
    pub fn crc32c(&self) -> u32 {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        self.pieces().iter().for_each(|piece| digest.update(piece));
        // The algorithm's result has 32 bits.
        digest.finalize() as u32
    }

    /// All bytes in one piece: shared if there is one piece already, copied otherwise.
    pub fn to_bytes(&self) -> Bytes {
        match self.pieces() {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut all = BytesMut::with_capacity(self.len);
                many.iter().for_each(|p| all.extend_from_slice(p));
                all.freeze()
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(b: Bytes) -> Payload {
        let mut payload = Payload::new();
        payload.push(b);
        payload
    }
}

impl From<Vec<u8>> for Payload {
    fn from(v: Vec<u8>) -> Payload {
        Bytes::from(v).into()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        self.len == other.len && self.pieces().iter().flatten().eq(other.pieces().iter().flatten())
    }
}

impl Eq for Payload {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_has_the_standards_check_value_and_does_not_depend_on_the_pieces() {
        let whole = Payload::from(b"123456789".to_vec());
        let mut pieces = whole.slice(0, 4);
        pieces.append(whole.slice(4, 5));
        assert_eq!([whole.crc32c(), pieces.crc32c()], [0xe306_9283; 2]);
    }

    #[test]
    fn aligned_buffers_are_aligned_and_freeze_without_a_copy() {
        let mut b = AlignedBuf::zeroed(10_000);
        assert_eq!(b.as_ptr() as usize % DIRECT_IO_ALIGNMENT, 0);
        b[9_999] = 7;
        let at = b.as_ptr();
        let frozen = Bytes::from(b);
        assert_eq!((frozen.as_ptr(), frozen[9_999]), (at, 7));
    }

    #[test]
    fn dropped_buffers_are_used_again_and_zeroed_ones_are_zero() {
        // A size that no other test uses.
        let mut b = AlignedBuf::for_overwrite(4 << 20);
        b.fill(1);
        let at = b.as_ptr();
        drop(b);
        assert!(AlignedBuf::zeroed(4 << 20).iter().all(|x| *x == 0));
        let again = [AlignedBuf::for_overwrite((4 << 20) - 5), AlignedBuf::for_overwrite(4 << 20)];
        assert!(again.iter().any(|b| b.as_ptr() == at));
        assert_eq!(again[0].len(), (4 << 20) - 5);
    }

    #[test]
    fn payload_slices_share_and_agree_with_flat_bytes() {
        let flat: Vec<u8> = (0..=255).collect();
        let mut p = Payload::new();
        for chunk in flat.chunks(37) {
            p.push(Bytes::copy_from_slice(chunk));
        }
        for (off, len) in [(0, 256), (0, 0), (36, 2), (37, 37), (100, 156), (256, 0)] {
            assert_eq!(&p.slice(off, len).to_bytes()[..], &flat[off..off + len]);
        }
        assert_eq!(Payload::zeroes(100_000).len(), 100_000);
    }
}
