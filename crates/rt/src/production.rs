//! The real clock: tokio. One of the IO edges.
#![allow(clippy::disallowed_methods)] // This is the one place where the world's clock, tasks and randomness come in.

use super::task::BoxFuture;
use nacre_base::{Time, Timestamp};
use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[allow(unreachable_pub)] // named in the variant of a public enum
pub use tokio::time::Sleep as TokioSleep;

/// tokio's clock and executor.
#[derive(Clone)]
pub(crate) struct Production {
    start: Instant,
    handle: tokio::runtime::Handle,
}

impl Production {
    pub(crate) fn new() -> Production {
        Production { start: Instant::now(), handle: tokio::runtime::Handle::current() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn wall(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp::from_nanos(d.as_nanos() as i128),
            Err(before) => Timestamp::from_nanos(-(before.duration().as_nanos() as i128)),
        }
    }

    pub(crate) fn random(&self) -> u64 {
        thread_local! { static POOL: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) }; }
        POOL.with_borrow_mut(|pool| {
            loop {
                match pool.pop() {
                    Some(number) => return number,
                    None => pool.extend(system_randomness()),
                }
            }
        })
    }

    pub(crate) fn spawn(&self, future: BoxFuture) {
        self.handle.spawn(future);
    }

    pub(crate) fn sleep_until(&self, deadline: Time) -> TokioSleep {
        // tokio's clock overflows on absurd deadlines: a year is far enough.
        let wait = deadline.since(self.now()).min(Duration::from_secs(365 * 86400));
        let _entered = self.handle.enter();
        tokio::time::sleep(wait)
    }
}

/// Numbers fetched from the system at once: a call costs as much as some hundred instructions.
const FETCHED: usize = 32;

/// Numbers that cannot be guessed from earlier ones, because they name exports and locks on the wire. Panics on a
/// machine without a source of randomness.
fn system_randomness() -> [u64; FETCHED] {
    let mut bytes = [0u8; FETCHED * 8];
    // SAFETY: the buffer is ours and as long as is said; up to 256 bytes come whole or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(usize::try_from(got), Ok(bytes.len()), "the system has no randomness");
    std::array::from_fn(|i| {
        let number: &[u8; 8] = bytes[i * 8..].first_chunk().expect("eight bytes for each number");
        u64::from_le_bytes(*number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cookies of exports once came from SplitMix64, which can be inverted from one output: a client could compute from
    /// its own cookie those of all others of its thread.
    #[test]
    fn no_number_follows_from_another() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let numbers: Vec<u64> = runtime.block_on(async {
            let production = Production::new();
            (0..1000).map(|_| production.random()).collect()
        });
        // In SplitMix64 the states, which the outputs are a permutation of, are one constant apart.
        let state = |output: u64| unmix64(output);
        let steps: std::collections::BTreeSet<u64> =
            numbers.windows(2).map(|pair| state(pair[1]).wrapping_sub(state(pair[0]))).collect();
        assert_eq!(steps.len(), 999);
        assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }

    /// The inverse of `nacre_base::hash::mix64`.
    fn unmix64(mut z: u64) -> u64 {
        z = z ^ (z >> 31) ^ (z >> 62);
        z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
        z = z ^ (z >> 27) ^ (z >> 54);
        z = z.wrapping_mul(0x96de_1b17_3f11_9089);
        z ^ (z >> 30) ^ (z >> 60)
    }

    #[test]
    fn the_mixer_can_be_taken_back() {
        for z in [0, 1, 42, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(unmix64(nacre_base::hash::mix64(z)), z);
        }
    }
}
