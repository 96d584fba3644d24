//! Hashes that decide where things live. Frozen by golden tests: changing one would lose data.

/// FNV-1a, 64 bits: the name hash of directories (Lustre's `fnv_1a_64`).
pub fn fnv_1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Spreads every bit of `v` over all 64 (the finaliser of SplitMix64).
pub fn mix64(v: u64) -> u64 {
    let v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ (v >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(fnv_1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a_64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix64(1), 0x5692_161d_100b_05e5);
    }
}
