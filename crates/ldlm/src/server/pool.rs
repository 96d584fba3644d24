//! Decides how many locks the clients of a target keep. Only the clients know which of their locks they will not need
//! again, and only the server knows how many locks there are. So the server publishes one number, the *server lock
//! volume*, with every reply, and each client gives back those unused locks whose age in seconds times the number of
//! its unused locks is larger: idle clients shrink first, and so does one that keeps very many.
//!
//! The volume is recomputed every second. Below the plan it grows, above it falls, faster the further it is from the
//! plan. Locks granted in the last second count as if as many were granted in the next one, so that a rush is met
//! before the limit is reached. (Lustre's idea; the rule is our own.)
//!
//! What must not be here: locks.

use nacre_base::Time;
use std::time::Duration;

/// Default number of locks for each MiB of memory.
const LOCKS_PER_MIB: u64 = 50;
/// Largest volume for each lock of the limit: one client could then keep all locks for so many seconds. It means that
/// there is room.
const AGE_MAX: u64 = 36_000;
/// Number of locks that the server aims at, in percent of the limit.
const PLAN_PERCENT: u64 = 95;
/// Interval between recomputations of the volume.
const PERIOD: Duration = Duration::from_secs(1);
/// Largest change in one period. Clients hear of it with their next reply, and obey within ten seconds.
const FALL_MAX: f64 = 0.3;
const RISE_MAX: f64 = 0.05;
const LIMIT_MAX: u64 = u32::MAX as u64;
const _: () = assert!(LIMIT_MAX.checked_mul(AGE_MAX).is_some(), "the largest volume is a number");

/// The limit for a server with so much memory, in bytes.
pub fn limit_for_memory(bytes: u64) -> u64 {
    (bytes >> 20).saturating_mul(LOCKS_PER_MIB).clamp(LOCKS_PER_MIB, u32::MAX.into())
}

/// The lock volume of one target, and the numbers that it is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    limit: u64,
    volume: u64,
    recomputed: Time,
    /// Locks at the last recomputation.
    granted: u64,
    /// Locks gained in the last period; lost if negative.
    speed: i64,
}

impl Pool {
    pub(super) fn new(limit: u64) -> Pool {
        assert!(limit <= LIMIT_MAX, "a limit of {limit} locks: replies have 32 bits for it");
        Pool { limit, volume: volume_max(limit), recomputed: Time::ZERO, granted: 0, speed: 0 }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        assert!(limit <= LIMIT_MAX, "a limit of {limit} locks: replies have 32 bits for it");
        if limit != self.limit {
            self.limit = limit;
            self.volume = self.volume.min(volume_max(limit));
        }
    }

    pub(super) fn volume(&self) -> u64 {
        self.volume
    }

    pub(super) fn plan(&self) -> u64 {
        self.limit * PLAN_PERCENT / 100
    }

    pub(super) fn speed(&self) -> i64 {
        self.speed
    }

    /// Returns whether there are so many locks (twice the limit) that no more are granted.
    pub(super) fn is_exhausted(&self, granted: u64) -> bool {
        granted >= self.limit * 2
    }

    /// Returns whether there are more locks than planned, so that the volume falls.
    pub(super) fn is_short(&self, granted: u64) -> bool {
        granted > self.plan()
    }

    /// Time of the next recomputation; None while the volume need not change.
    pub(super) fn next(&self, granted: u64) -> Option<Time> {
        let at_rest = self.volume == volume_max(self.limit) && granted < self.plan() / 2;
        (!at_rest).then_some(self.recomputed + PERIOD)
    }

    /// Recomputes the volume, if it is time.
    pub(super) fn recompute(&mut self, granted: u64, now: Time) {
        let passed = now.since(self.recomputed);
        if passed < PERIOD {
            return;
        }
        let seconds = passed.as_secs_f64();
        self.speed = ((granted as f64 - self.granted as f64) / seconds) as i64;
        (self.granted, self.recomputed) = (granted, now);
        let expected = granted as f64 + self.speed as f64;
        let free = (self.plan() as f64 - expected) / self.limit.max(1) as f64;
        let change = if free < 0.0 { (3.0 * free).max(-FALL_MAX) } else { (0.1 * free).min(RISE_MAX) };
        let volume = self.volume as f64 * (1.0 + change).powf(seconds.min(10.0));
        self.volume = (volume.ceil() as u64).clamp(1, volume_max(self.limit));
    }
}

fn volume_max(limit: u64) -> u64 {
    limit.max(1) * AGE_MAX
}
