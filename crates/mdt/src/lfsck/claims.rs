//! A set of the objects that files have: one bit for each, so that a million files need an eighth of a megabyte.

use nacre_base::{Fid, OstIndex};
use std::collections::BTreeMap;

/// Number of bits in one chunk.
const CHUNK_BITS: u32 = 1 << 15;
const CHUNK_WORDS: usize = CHUNK_BITS as usize / 64;

/// A set of objects.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Chunks by OST, sequence and version of the FID, and number of the chunk.
    chunks: BTreeMap<(OstIndex, u64, u32, u32), Box<[u64; CHUNK_WORDS]>>,
}

impl Claims {
    /// Adds an object. Returns true if it was not there before.
    pub(crate) fn insert(&mut self, ost: OstIndex, object: Fid) -> bool {
        let (chunk, word, bit) = place(object);
        let key = (ost, object.seq, object.ver, chunk);
        let words = self.chunks.entry(key).or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        let was = words[word] & bit != 0;
        words[word] |= bit;
        !was
    }

    /// True if the object is in the set.
    pub(crate) fn contains(&self, ost: OstIndex, object: Fid) -> bool {
        let (chunk, word, bit) = place(object);
        self.chunks.get(&(ost, object.seq, object.ver, chunk)).is_some_and(|words| words[word] & bit != 0)
    }
}

/// Number of the chunk, of the word in it, and bit in the word.
fn place(object: Fid) -> (u32, usize, u64) {
    let bit = object.oid % CHUNK_BITS;
    (object.oid / CHUNK_BITS, bit as usize / 64, 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set() {
        let (mut claims, mut model, mut prng) = (Claims::default(), BTreeSet::new(), Prng::new(1));
        for _ in 0..20_000 {
            let ost = OstIndex(prng.below(2) as u32);
            let oid = if prng.one_in(10) { prng.next_u64() as u32 } else { prng.below(70_000) as u32 };
            let object = Fid { seq: prng.below(2), oid, ver: u32::from(prng.one_in(50)) };
            assert_eq!(claims.contains(ost, object), model.contains(&(ost, object)));
            assert_eq!(claims.insert(ost, object), model.insert((ost, object)));
        }
    }
}
