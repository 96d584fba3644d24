//! When packets depart at a rate. Parts of a nanosecond are carried over, so that a long burst keeps exactly to the rate.

use crate::units::Rate;
use nacre_base::Time;
use std::time::Duration;

const NANOS: u128 = 1_000_000_000;

/// The transmitter: it sends one packet after the other.
#[derive(Default)]
pub(super) struct Pacer {
    /// When the last bit of the packet departs that is being sent. None if there is no such packet.
    departs: Option<Time>,
    /// Time that is owed beyond the nanoseconds of `departs`, in nanoseconds times the rate. Below the rate.
    owed: u128,
}

impl Pacer {
    pub(super) fn departs(&self) -> Option<Time> {
        self.departs
    }

    /// Begins with a packet after a pause.
    pub(super) fn start(&mut self, now: Time, rate: Rate, bytes: u64) {
        assert!(self.departs.is_none(), "another packet is being sent");
        self.owed = 0;
        self.departs = Some(now);
        self.go_on(Some(rate), bytes);
    }

    /// Begins with the next packet at the moment when the one before departs.
    pub(super) fn go_on(&mut self, rate: Option<Rate>, bytes: u64) {
        let (Some(before), Some(rate)) = (self.departs, rate) else { return };
        let whole = u128::from(bytes) * 8 * NANOS + self.owed;
        let bits = u128::from(rate.bits());
        self.owed = whole % bits;
        self.departs = Some(before + Duration::from_nanos(nanos(whole / bits)));
    }

    /// The queue is empty.
    pub(super) fn stop(&mut self) {
        self.departs = None;
    }

    /// The rest of the packet that is being sent goes on at a new rate.
    pub(super) fn change_rate(&mut self, now: Time, before: Option<Rate>, after: Option<Rate>) {
        if before == after {
            return;
        }
        self.owed = 0;
        let (Some(departs), Some(before)) = (self.departs, before) else { return };
        let rest = after.map_or(0, |after| {
            u128::from(departs.since(now).as_nanos() as u64) * u128::from(before.bits()) / u128::from(after.bits())
        });
        self.departs = Some(now + Duration::from_nanos(nanos(rest)));
    }
}

fn nanos(time: u128) -> u64 {
    u64::try_from(time).unwrap_or(u64::MAX)
}
