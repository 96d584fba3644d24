//! A client's window: how many RPCs and bytes it may have in flight to a target. A sans-IO engine. The server grants it in its replies
//! ([`crate::congestion`]).

use std::num::NonZeroU32;

/// RPCs and bytes. In a grant, 0 means that the server sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credits {
    /// RPCs.
    pub rpcs: u32,
    /// Bytes of bulk.
    pub bytes: u64,
}

impl Credits {
    /// How many RPCs of this many bytes a grant admits; `None` if it sets no limit.
    pub(crate) fn rpcs_of(self, bytes: u64) -> Option<u32> {
        let by_bytes = (self.bytes != 0).then(|| (self.bytes / bytes.max(1)).clamp(1, u32::MAX.into()) as u32);
        let by_rpcs = (self.rpcs != 0).then_some(self.rpcs);
        by_bytes.into_iter().chain(by_rpcs).min()
    }
}

/// RPCs that a client has in flight to a target that leaves it to the client: Lustre's default of `max_rpcs_in_flight`.
pub const MAX_RPCS_IN_FLIGHT: u32 = 8;

/// The client's window for one target. Never below one RPC, whatever is granted.
#[derive(Debug)]
pub(crate) struct Window {
    /// RPCs in flight that an administrator allows (`max_rpcs_in_flight`). Where none has said so, the server's grants alone count.
    limit: Option<NonZeroU32>,
    granted: Credits,
    in_flight: Credits,
    /// All room ever taken, and all room ever given back. The difference is in flight.
    taken: Total,
    given: Total,
}

/// RPCs and bytes since the beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    rpcs: u64,
    bytes: u64,
}

impl Total {
    fn add(&mut self, bytes: u64) {
        self.rpcs += 1;
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

impl Window {
    pub(crate) const NEW: Window = {
        let (none, total) = (Credits { rpcs: 0, bytes: 0 }, Total { rpcs: 0, bytes: 0 });
        Window { limit: None, granted: none, in_flight: none, taken: total, given: total }
    };

    /// Another window with this one's limits, and nothing in flight.
    pub(crate) fn as_large(&self) -> Window {
        Window { limit: self.limit, granted: self.granted, ..Window::NEW }
    }

    #[cfg(test)]
    fn limited(limit: u32) -> Window {
        Window { limit: NonZeroU32::new(limit), ..Window::NEW }
    }

    /// Sets the administrator's limit; 0 takes it away.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = NonZeroU32::new(limit);
    }

    /// The administrator's limit.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit.map(NonZeroU32::get)
    }

    pub(crate) fn handle_grant(&mut self, granted: Credits) {
        self.granted = granted;
    }

    /// RPCs that may be in flight now.
    fn rpcs(&self) -> u32 {
        match (self.granted.rpcs, self.limit()) {
            (0, limit) => limit.unwrap_or(MAX_RPCS_IN_FLIGHT),
            (granted, limit) => limit.map_or(granted, |limit| limit.min(granted)),
        }
    }

    /// Takes room for an RPC with this many bytes of bulk, if there is any.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let full = self.in_flight.rpcs >= self.rpcs()
            || self.granted.bytes != 0 && self.in_flight.bytes.saturating_add(bytes) > self.granted.bytes;
        if full && self.in_flight.rpcs > 0 {
            return false;
        }
        self.in_flight.rpcs += 1;
        self.in_flight.bytes += bytes;
        self.taken.add(bytes);
        self.assert_conserved();
        self.assert_within();
        true
    }

    /// Panics if the RPC just sent neither fits into the window nor is alone. The window may have shrunk below what was
    /// in flight before.
    fn assert_within(&self) {
        let Credits { rpcs, bytes } = self.in_flight;
        let fits = rpcs <= self.rpcs() && (self.granted.bytes == 0 || bytes <= self.granted.bytes);
        assert!(rpcs == 1 || fits, "{rpcs} RPCs with {bytes} bytes are in flight: {self:?}");
    }

    /// An RPC that took room is done.
    pub(crate) fn give(&mut self, bytes: u64) {
        assert!(self.in_flight.rpcs > 0 && self.in_flight.bytes >= bytes, "the window was given room back twice");
        self.in_flight.rpcs -= 1;
        self.in_flight.bytes -= bytes;
        self.given.add(bytes);
        self.assert_conserved();
    }

    /// Panics if the room in flight is not what was taken and not given back.
    fn assert_conserved(&self) {
        let Credits { rpcs, bytes } = self.in_flight;
        assert!(rpcs > 0 || bytes == 0, "no RPC is in flight, and {bytes} bytes are");
        let (taken, given) = (self.taken, self.given);
        let kept = (taken.rpcs - given.rpcs, taken.bytes.wrapping_sub(given.bytes));
        assert_eq!((u64::from(rpcs), bytes), kept, "RPCs and bytes in flight, and those taken and not given back");
    }

    pub(crate) fn in_flight(&self) -> Credits {
        self.in_flight
    }

    pub(crate) fn granted(&self) -> Credits {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "3 bytes are")]
    fn giving_back_less_than_was_taken_is_a_bug() {
        let mut w = Window::limited(8);
        w.take(10);
        w.give(7);
    }

    #[test]
    #[should_panic(expected = "2 RPCs with 20 bytes are in flight")]
    fn an_rpc_that_goes_without_room_is_a_bug() {
        let mut w = Window::limited(1);
        w.take(10);
        w.in_flight = Credits { rpcs: 2, bytes: 20 };
        w.assert_within();
    }

    #[test]
    #[should_panic(expected = "those taken and not given back")]
    fn room_that_is_in_flight_and_was_not_taken_is_a_bug() {
        let mut w = Window::limited(8);
        w.take(10);
        w.in_flight = Credits { rpcs: 2, bytes: 20 };
        w.give(10);
    }

    fn takes(w: &mut Window, bytes: u64) -> u32 {
        (0..100).take_while(|_| w.take(bytes)).count() as u32
    }

    #[test]
    fn the_smaller_of_limit_and_grant_counts() {
        let mut w = Window::limited(8);
        assert_eq!(takes(&mut w, 1 << 20), 8);
        w.give(1 << 20);
        w.handle_grant(Credits { rpcs: 4, bytes: 0 });
        assert_eq!(takes(&mut w, 0), 0, "a shrunk window drains first");
        (0..7).for_each(|_| w.give(1 << 20));
        assert_eq!(takes(&mut w, 0), 4);
        w.handle_grant(Credits { rpcs: 100, bytes: 0 });
        assert_eq!(takes(&mut w, 0), 4);
    }

    #[test]
    fn only_what_an_administrator_has_set_limits_a_grant() {
        let mut w = Window::NEW;
        assert_eq!(takes(&mut w, 0), MAX_RPCS_IN_FLIGHT, "the server leaves it to the client");
        w.handle_grant(Credits { rpcs: 50, bytes: 0 });
        assert_eq!(takes(&mut w, 0), 50 - MAX_RPCS_IN_FLIGHT);
        w.set_limit(51);
        w.handle_grant(Credits { rpcs: 99, bytes: 0 });
        assert_eq!(takes(&mut w, 0), 1);
        w.set_limit(0);
        assert_eq!(takes(&mut w, 0), 48);
    }

    #[test]
    fn a_grant_admits_as_many_rpcs_as_fit_into_its_bytes_and_one_at_least() {
        let of = |rpcs, bytes| Credits { rpcs, bytes }.rpcs_of(1000);
        assert_eq!(
            [of(0, 0), of(7, 0), of(0, 5999), of(3, 5999), of(9, 10)],
            [None, Some(7), Some(5), Some(3), Some(1)]
        );
    }

    #[test]
    fn bytes_bound_too_but_one_rpc_always_goes() {
        let mut w = Window::limited(8);
        w.handle_grant(Credits { rpcs: 0, bytes: 3000 });
        assert_eq!(takes(&mut w, 1000), 3);
        (0..3).for_each(|_| w.give(1000));
        assert_eq!(takes(&mut w, 5000), 1);
        assert_eq!(w.in_flight(), Credits { rpcs: 1, bytes: 5000 });
    }
}
