//! The pseudo-random generator of everything that decides placement or order. Our own, so that two builds agree:
//! its output is frozen by a golden test.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, every seed is good. Not for secrets.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// A generator whose sequence `seed` determines.
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::hash::mix64(self.0)
    }

    /// A number below `n`, unbiased to within 2^-32 for `n` below 2^32. `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "Prng::below(0)");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `lo..hi`.
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        assert!(lo < hi, "Prng::range({lo}, {hi})");
        lo + self.below(hi - lo)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An element of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_sequence() {
        let mut p = Prng::new(0);
        assert_eq!(p.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(p.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        let mut p = Prng::new(42);
        let mut v: Vec<u32> = (0..8).collect();
        p.shuffle(&mut v);
        assert_eq!(v, GOLDEN_SHUFFLE);
    }

    const GOLDEN_SHUFFLE: [u32; 8] = [4, 3, 2, 0, 7, 6, 1, 5];
}
