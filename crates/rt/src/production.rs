//! The real clock: tokio. One of the IO edges.
#![allow(clippy::disallowed_methods)] // This is the one place where the world's clock, tasks and randomness come in.

use nacre_base::{Time, Timestamp};
use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
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
        thread_local! { static PRNG: RefCell<nacre_base::Prng> = RefCell::new(nacre_base::Prng::new(os_seed())); }
        PRNG.with_borrow_mut(nacre_base::Prng::next_u64)
    }

    pub(crate) fn spawn(&self, future: super::BoxFuture) {
        self.handle.spawn(future);
    }

    pub(crate) fn sleep_until(&self, deadline: Time) -> TokioSleep {
        // tokio's clock overflows on absurd deadlines: a year is far enough.
        let wait = deadline.since(self.now()).min(Duration::from_secs(365 * 86400));
        let _entered = self.handle.enter();
        tokio::time::sleep(wait)
    }
}

/// std's hasher keys come from the OS: the portable way to 64 random bits without a dependency.
fn os_seed() -> u64 {
    let mut h = RandomState::new().build_hasher();
    h.write_u64(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64));
    h.write_u32(std::process::id());
    h.finish()
}
