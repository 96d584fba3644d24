//! The policy `delay`: some requests wait for a time that chance decides, so that tests see what a busy server does to
//! clients. A sans-IO engine.

use super::policy::Delay;
use nacre_base::{Prng, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Requests in the order in which they may run.
pub(super) struct Delayed<T> {
    delay: Delay,
    chance: Prng,
    /// By the time at which each may run, and its number.
    requests: BTreeMap<(Time, u64), T>,
    next: u64,
}

impl<T> Delayed<T> {
    pub(super) fn new(delay: Delay, seed: u64) -> Delayed<T> {
        Delayed { delay, chance: Prng::new(seed), requests: BTreeMap::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Other waits from now on; requests that wait keep theirs.
    pub(super) fn set_delay(&mut self, delay: Delay) {
        self.delay = delay;
    }

    pub(super) fn push(&mut self, request: T, now: Time) {
        let Delay { least, most, percent } = self.delay;
        assert!(least <= most && percent <= 100, "{percent} of 100 wait from {least} to {most} s");
        let waits = self.chance.below(100) < percent.into();
        let (least, most) = (u64::from(least) * 1000, u64::from(most) * 1000);
        let wait = if waits { self.chance.range(least, most + 1) } else { 0 };
        self.requests.insert((now + Duration::from_millis(wait), self.next), request);
        self.next += 1;
    }

    /// Takes the request whose time came first.
    pub(super) fn pop(&mut self, now: Time) -> Option<T> {
        let first = self.requests.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// When the next request may run.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.requests.first_key_value().map(|((at, _), _)| *at)
    }

    /// All requests, in the order in which they came.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let mut all: Vec<_> = std::mem::take(&mut self.requests).into_iter().map(|((_, n), one)| (n, one)).collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, request)| request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_as_are_to_and_for_as_long_as_they_may() {
        for (percent, seed) in [(0, 1), (30, 2), (100, 3)] {
            let mut delayed = Delayed::new(Delay { least: 2, most: 5, percent }, seed);
            let at = |secs: u64| Time::from_secs(secs);
            (0..10_000).for_each(|n| delayed.push(n, at(10)));
            let now: Vec<u32> = std::iter::from_fn(|| delayed.pop(at(10))).collect();
            let (all, part) = (10_000 - now.len() as u32, 100 * percent);
            assert!(all.abs_diff(part) < 200 && (percent % 100 != 0 || all == part), "{all} of 10000 wait");
            assert!(now.is_sorted());
            assert_eq!(delayed.pop(Time(at(12).0 - 1)), None);
            let in_middle = std::iter::from_fn(|| delayed.pop(Time(13_500_000_000))).count();
            assert!((in_middle as u32).abs_diff(all / 2) < 200, "{in_middle} of {all}");
            assert!(delayed.next_at().is_none_or(|next| next > Time(13_500_000_000)));
            let rest = std::iter::from_fn(|| delayed.pop(at(15))).count();
            assert_eq!((now.len() + in_middle + rest, delayed.next_at()), (10_000, None));
        }
    }
}
