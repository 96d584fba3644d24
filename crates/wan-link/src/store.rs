//! Bytes of packets, in chunks that are filled one after the other and used again when their last packet has gone. Packets come
//! and go nearly in order, so that little memory lies idle.
//!
//! The store does not limit itself. The engine refuses packets when [`Store::bytes_inside`] reaches its limit.

use crate::link::MTU;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Empty chunks that keep their memory for the next burst.
const EMPTY_CHUNKS_MAX: usize = 64;

const _: () = assert!(CHUNK_BYTES <= u32::MAX as usize && MTU <= u16::MAX as usize, "a place holds start and length");
const _: () = assert!(CHUNK_BYTES >= 32 * MTU, "the end of a chunk that no packet fits into is below 4 %");

/// Where a packet lies.
#[derive(Debug)]
pub(crate) struct Place {
    chunk: u32,
    start: u32,
    len: u16,
}

#[derive(Default)]
struct Chunk {
    /// Without memory if the chunk has been empty while many others were.
    bytes: Box<[u8]>,
    /// Bytes in use from the beginning. Zero if the chunk is empty and not the current one.
    used: usize,
    /// Packets that lie here.
    packets: u32,
}

/// All packets of one direction.
pub(crate) struct Store {
    chunks: Vec<Chunk>,
    /// The chunk that is being filled.
    current: usize,
    /// Empty chunks with memory, the one to use next at the end.
    empty: Vec<u32>,
    /// Empty chunks whose memory was given back.
    bare: Vec<u32>,
    bytes_inside: u64,
}

impl Place {
    /// Bytes of the packet.
    pub(crate) fn len(&self) -> u64 {
        self.len.into()
    }
}

impl Store {
    pub(crate) fn new() -> Store {
        Store { chunks: vec![Chunk::with_memory()], current: 0, empty: vec![], bare: vec![], bytes_inside: 0 }
    }

    /// Bytes of all packets.
    pub(crate) fn bytes_inside(&self) -> u64 {
        self.bytes_inside
    }

    /// Room for the next packet. Its bytes stay there until [`Store::keep`] or the next call.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.chunks[self.current].used + MTU > CHUNK_BYTES {
            self.current = self.another();
        }
        let chunk = &mut self.chunks[self.current];
        &mut chunk.bytes[chunk.used..chunk.used + MTU]
    }

    /// Keeps the first `len` bytes of the room as a packet.
    pub(crate) fn keep(&mut self, len: usize) -> Place {
        assert!((1..=MTU).contains(&len), "a packet of {len} bytes");
        let chunk = &mut self.chunks[self.current];
        assert!(chunk.used + len <= chunk.bytes.len(), "the room was not asked for");
        let place = Place { chunk: self.current as u32, start: chunk.used as u32, len: len as u16 };
        chunk.used += len;
        chunk.packets += 1;
        self.bytes_inside += len as u64;
        place
    }

    /// Forgets a packet. The bytes can still be read until the room for another packet is asked for.
    pub(crate) fn free(&mut self, place: Place) -> &[u8] {
        let Place { chunk: index, start, len } = place;
        let chunk = &mut self.chunks[index as usize];
        assert!(chunk.packets > 0 && self.bytes_inside >= u64::from(len), "a packet is freed once");
        chunk.packets -= 1;
        self.bytes_inside -= u64::from(len);
        if chunk.packets == 0 {
            chunk.used = 0;
            if index as usize != self.current {
                self.empty.push(index);
            }
        }
        &self.chunks[index as usize].bytes[start as usize..start as usize + usize::from(len)]
    }

    /// An empty chunk with memory. It also gives back memory of chunks that are empty for long.
    fn another(&mut self) -> usize {
        while self.empty.len() > EMPTY_CHUNKS_MAX {
            let index = self.empty.swap_remove(0);
            self.chunks[index as usize] = Chunk::default();
            self.bare.push(index);
        }
        if let Some(index) = self.empty.pop() {
            assert_eq!(self.chunks[index as usize].packets, 0, "an empty chunk");
            return index as usize;
        }
        if let Some(index) = self.bare.pop() {
            self.chunks[index as usize] = Chunk::with_memory();
            return index as usize;
        }
        self.chunks.push(Chunk::with_memory());
        self.chunks.len() - 1
    }
}

impl Chunk {
    fn with_memory() -> Chunk {
        Chunk { bytes: vec![0; CHUNK_BYTES].into_boxed_slice(), used: 0, packets: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::collections::VecDeque;

    fn put(store: &mut Store, len: usize, byte: u8) -> Place {
        store.room()[..len].fill(byte);
        store.keep(len)
    }

    #[test]
    fn packets_keep_their_bytes_in_any_order() {
        let (mut store, mut prng) = (Store::new(), Prng::new(1));
        let mut inside = VecDeque::new();
        for n in 0..20_000u32 {
            let len = prng.range(1, MTU as u64 + 1) as usize;
            inside.push_back((put(&mut store, len, n as u8), n as u8));
            if inside.len() > 1000 {
                let at = if prng.one_in(10) { 500 } else { 0 };
                let (place, byte) = inside.remove(at).unwrap();
                assert!(store.free(place).iter().all(|b| *b == byte));
            }
        }
        assert_eq!(store.bytes_inside(), inside.iter().map(|(place, _)| place.len()).sum::<u64>());
        assert!(
            store.chunks.len() < 40,
            "1,000 packets of 750 bytes fill about a dozen chunks, not {}",
            store.chunks.len()
        );
    }

    #[test]
    fn memory_of_a_burst_is_given_back() {
        let mut store = Store::new();
        let burst: Vec<Place> = (0..20_000).map(|_| put(&mut store, MTU, 7)).collect();
        for place in burst {
            store.free(place);
        }
        assert_eq!(store.bytes_inside(), 0);
        for _ in 0..100 {
            put(&mut store, MTU, 8);
        }
        let with_memory = store.chunks.iter().filter(|chunk| !chunk.bytes.is_empty()).count();
        assert!(with_memory <= EMPTY_CHUNKS_MAX + 3, "{with_memory}");
    }
}
