//! How much of the device's time each request takes, while several are there at once. A sans-IO engine.
//!
//! A device works on its requests in order, so the time between two ends belongs to the request that ends. Where an older
//! one is still there, the device works on several at once, and half of the time belongs to the oldest. So the requests of
//! a disk are charged for their own seek and transfer and not for those before them in the queue, requests that
//! overtake others are charged for some of their time, and all together are charged for the time in which the device had something to do.

use nacre_base::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The requests that wait for the device, with what each is charged so far, the oldest first.
#[derive(Default)]
pub(crate) struct DeviceTime {
    there: BTreeMap<u64, Duration>,
    next: u64,
    /// Time until which the device's time is charged.
    charged: Time,
}

impl DeviceTime {
    /// A request comes to the device. Returns its number there.
    pub(crate) fn begin(&mut self, now: Time) -> u64 {
        if self.there.is_empty() {
            self.charged = now;
        }
        self.next += 1;
        let before = self.there.insert(self.next, Duration::ZERO);
        assert_eq!(before, None, "two requests at the device are number {}", self.next);
        self.next
    }

    /// The request with this number has ended. Returns the time that it took from the device.
    pub(crate) fn end(&mut self, number: u64, now: Time) -> Duration {
        let before = self.there.remove(&number).expect("a request at the device ends once");
        let passed = now.since(self.charged);
        self.charged = self.charged.max(now);
        let oldest = self.there.first_entry().filter(|oldest| *oldest.key() < number);
        match oldest {
            None => before + passed,
            Some(mut oldest) => {
                let half = passed / 2;
                *oldest.get_mut() += half;
                before + (passed - half)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn each_request_of_a_queue_is_charged_its_own_service() {
        let mut device = DeviceTime::default();
        let (large, small) = (device.begin(at(10)), device.begin(at(12)));
        let later = device.begin(at(13));
        assert_eq!(device.end(large, at(50)), MS(40));
        assert_eq!(device.end(small, at(51)), MS(1), "not for the wait behind the large one");
        assert_eq!(device.end(later, at(52)), MS(1));
        let alone = device.begin(at(100));
        assert_eq!(device.end(alone, at(107)), MS(7), "not for the time in which nothing was there");
    }

    #[test]
    fn a_device_that_does_two_things_at_once_is_shared() {
        let mut device = DeviceTime::default();
        let long = device.begin(at(0));
        let mut short = MS(0);
        for n in 0..10 {
            let one = device.begin(at(n));
            short += device.end(one, at(n + 1));
        }
        assert_eq!((short, device.end(long, at(12))), (MS(5), MS(7)));
    }

    /// The sum of all charges is the time in which a request was there.
    #[test]
    fn no_time_is_charged_twice_or_lost() {
        for seed in 0..100 {
            let (mut prng, mut device) = (Prng::new(seed), DeviceTime::default());
            let (mut there, mut now, mut busy, mut charged) = (Vec::new(), 0, Duration::ZERO, Duration::ZERO);
            for step in 0..400 {
                let passed = prng.below(5);
                now += passed;
                busy += if there.is_empty() { MS(0) } else { MS(passed) };
                if step < 300 && prng.one_in(2) {
                    there.push(device.begin(at(now)));
                } else if !there.is_empty() {
                    let one = there.swap_remove(prng.below(there.len() as u64) as usize);
                    charged += device.end(one, at(now));
                }
            }
            for one in there {
                charged += device.end(one, at(now));
            }
            assert_eq!(charged, busy, "seed {seed}");
        }
    }
}
