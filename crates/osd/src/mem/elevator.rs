//! A disk with a moving head that serves requests in the order of their places: an engine that is told when requests come, and says
//! which one is served next and how long that takes. It sees objects, offsets, lengths and its own queue, and nothing else.
//!
//! The head goes over the requests that wait from the lowest place to the highest, and only then over those that have come in the
//! meantime, so that nobody waits for more than two sweeps. A request that begins where the last one ended needs no seek.
//! The order of objects is that of their numbers: an allocator gives each file a region of its own.

use super::DiskModel;
use super::model::transfer;
use nacre_base::Fid;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The requests of a disk, each with what its caller waits for.
#[derive(Debug)]
pub(super) struct Elevator<T> {
    /// Of this sweep, and of the next.
    sweep: BTreeMap<Place, (u64, T)>,
    next: BTreeMap<Place, (u64, T)>,
    arrivals: u64,
    head: (Fid, u64),
    is_moving: bool,
}

/// An object, an offset there, and a number that tells two requests to the same place apart.
type Place = (Fid, u64, u64);

impl<T> Default for Elevator<T> {
    fn default() -> Elevator<T> {
        let (sweep, next) = Default::default();
        Elevator { sweep, next, arrivals: 0, head: (Fid::ROOT, u64::MAX), is_moving: false }
    }
}

impl<T> Elevator<T> {
    /// A request comes. Returns whether the disk was idle, so that somebody has to call [`Elevator::start`] until there is nothing left.
    pub(super) fn handle_request(&mut self, object: Fid, range: &Range<u64>, caller: T) -> bool {
        self.next.insert((object, range.start, self.arrivals), (range.end.saturating_sub(range.start), caller));
        self.arrivals += 1;
        !std::mem::replace(&mut self.is_moving, true)
    }

    /// The request before is done. Returns how long the next one takes, and its caller; `None` if nothing waits.
    pub(super) fn start(&mut self, model: &DiskModel) -> Option<(Duration, T)> {
        assert!(self.is_moving, "the disk is idle");
        if self.sweep.is_empty() {
            std::mem::swap(&mut self.sweep, &mut self.next);
        }
        let Some(((object, offset, _), (len, caller))) = self.sweep.pop_first() else {
            self.is_moving = false;
            return None;
        };
        let seek = if self.head == (object, offset) { Duration::ZERO } else { model.seek };
        self.head = (object, offset + len);
        Some((model.latency + seek + transfer(len, model.bandwidth), caller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: DiskModel =
        DiskModel { seek: Duration::from_millis(5), bandwidth: 1_000_000, elevator: true, ..DiskModel::FREE };

    fn object(oid: u32) -> Fid {
        Fid { seq: 1, oid, ver: 0 }
    }

    /// Serves everything that waits. Returns the callers, with the milliseconds that each took.
    fn serve(elevator: &mut Elevator<u32>) -> Vec<(u32, u128)> {
        std::iter::from_fn(|| elevator.start(&MODEL)).map(|(took, caller)| (caller, took.as_millis())).collect()
    }

    fn request(elevator: &mut Elevator<u32>, oid: u32, at: u64, caller: u32) -> bool {
        elevator.handle_request(object(oid), &(at * 1000..(at + 1) * 1000), caller)
    }

    #[test]
    fn requests_go_in_the_order_of_their_places() {
        let mut elevator = Elevator::default();
        assert!(request(&mut elevator, 2, 1, 21));
        for (oid, at, caller) in [(1, 1, 11), (2, 0, 20), (1, 0, 10), (1, 5, 15)] {
            assert!(!request(&mut elevator, oid, at, caller), "it moves already");
        }
        assert_eq!(
            serve(&mut elevator),
            [(10, 6), (11, 1), (15, 6), (20, 6), (21, 1)],
            "one seek for what is in sequence"
        );
        assert!(request(&mut elevator, 2, 2, 22));
        assert_eq!(serve(&mut elevator), [(22, 1)], "the head is there");
    }

    /// A caller whose requests follow one another without end does not keep the others waiting.
    #[test]
    fn what_comes_during_a_sweep_waits_for_the_next() {
        let mut elevator = Elevator::default();
        request(&mut elevator, 1, 0, 0);
        request(&mut elevator, 9, 0, 90);
        assert_eq!(elevator.start(&MODEL).map(|(_, caller)| caller), Some(0));
        request(&mut elevator, 1, 1, 1);
        assert_eq!(serve(&mut elevator), [(90, 6), (1, 6)]);
    }

    #[test]
    fn two_requests_to_one_place_are_both_served() {
        let mut elevator = Elevator::default();
        request(&mut elevator, 1, 0, 0);
        request(&mut elevator, 1, 0, 1);
        assert_eq!(serve(&mut elevator), [(0, 6), (1, 6)]);
    }
}
