//! Repeatable random numbers (SplitMix64) and the byte pattern of test files. Not for secrets.

/// A generator; the same seed gives the same numbers.
#[derive(Clone)]
pub(crate) struct Prng(u64);

impl Prng {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to and without `bound`; 0 if the bound is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    /// Brings a list into random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    /// `len` random bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// Bytes that only this seed gives: to recognise later what was written.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Prng::new(seed ^ 0x6e61_6372_6500_0000).bytes(len)
}
