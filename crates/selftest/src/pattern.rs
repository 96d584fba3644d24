//! The bytes that tests carry. Every buffer holds the same bytes, so that making and checking them costs as little as can be.

use bytes::Bytes;
use nacre_base::{Payload, Prng};
use nacre_wire::selftest::SelftestCheck;

/// Largest transfer of a test.
pub(crate) const SIZE_MAX: usize = 4 << 20;
/// Bytes at both ends of which a simple check looks.
const PAGE: usize = 4096;
/// Bytes that a simple check looks at.
const END: usize = 8;

/// [`SIZE_MAX`] bytes, made once.
pub(crate) struct Pattern(Bytes);

impl Pattern {
    pub(crate) fn new() -> Pattern {
        let mut prng = Prng::new(0x6c73_745f_7061_7474);
        let words = (0..SIZE_MAX / 8).flat_map(|_| prng.next_u64().to_le_bytes());
        Pattern(words.collect::<Vec<u8>>().into())
    }

    /// The first `len` bytes.
    pub(crate) fn payload(&self, len: usize) -> Payload {
        Payload::from(self.0.slice(..len))
    }

    /// Whether these are the first bytes, all `len` of them.
    pub(crate) fn is_in(&self, payload: &Payload, len: usize, check: SelftestCheck) -> bool {
        if payload.len() != len || len > SIZE_MAX {
            return false;
        }
        let mut at = 0;
        payload.pieces().iter().all(|piece| {
            let expected = &self.0[at..at + piece.len()];
            at += piece.len();
            match check {
                SelftestCheck::None => true,
                SelftestCheck::Full => expected == &piece[..],
                SelftestCheck::Simple => expected.chunks(PAGE).zip(piece.chunks(PAGE)).all(|(expected, found)| {
                    let (head, tail) = (expected.len().min(END), expected.len().saturating_sub(END));
                    expected[..head] == found[..head] && expected[tail..] == found[tail..]
                }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_where_the_check_looks() {
        let pattern = Pattern::new();
        let damaged = |at: usize| {
            let mut bytes = pattern.payload(10_000).to_bytes().to_vec();
            bytes[at] ^= 1;
            Payload::from(bytes)
        };
        let found = |at, check| !pattern.is_in(&damaged(at), 10_000, check);
        let all = [SelftestCheck::None, SelftestCheck::Simple, SelftestCheck::Full];
        assert_eq!(all.map(|check| found(0, check)), [false, true, true]);
        assert_eq!(all.map(|check| found(4095, check)), [false, true, true]);
        assert_eq!(all.map(|check| found(2000, check)), [false, false, true]);
        assert_eq!(all.map(|check| found(9999, check)), [false, true, true]);
        assert!(all.iter().all(|check| pattern.is_in(&pattern.payload(10_000), 10_000, *check)));
        assert!(!pattern.is_in(&pattern.payload(9_999), 10_000, SelftestCheck::None), "it is too short");
    }
}
