//! Bounds the memory of acknowledged data that is not on the device yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of bytes that are only in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicU64>);

/// Bytes that are only in memory; dropping this gives them back.
#[derive(Debug)]
pub(crate) struct Taken {
    memory: Memory,
    bytes: u64,
}

impl Memory {
    /// Takes `bytes`, unless more than `max` would then be taken.
    pub(crate) fn take(&self, bytes: u64, max: u64) -> Option<Taken> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Taken { memory: self.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let taken = self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
        assert!(self.bytes <= taken, "{} bytes are given back, {taken} were taken", self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_may_be() {
        let memory = Memory::default();
        let first = memory.take(60, 100).unwrap();
        assert!(memory.take(41, 100).is_none() && memory.take(u64::MAX, 100).is_none());
        assert!(memory.take(40, 100).is_some(), "and given back at once");
        drop(first);
        assert!(memory.take(100, 100).is_some());
        assert!(memory.take(1, 0).is_none());
    }

    #[test]
    #[should_panic(expected = "60 were taken")]
    fn giving_back_more_than_was_taken_is_a_defect() {
        let mut taken = Memory::default().take(60, 100).unwrap();
        taken.bytes += 1;
    }
}
