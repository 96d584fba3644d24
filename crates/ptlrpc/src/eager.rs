//! Eager bulk: data that travels with its request, although it is more than every request may bring. It saves the round trip in which the
//! server asks for the data. Over a short way that round trip costs nothing, and the server does better to ask. Sans-IO engines of both sides.
//!
//! Each reply to a read or write grants the client memory ahead. The client sends data along only within the grant, and it exposes the
//! data as well. So the server can throw away data that it has no memory for, and pull it when the request's turn has come.
//!
//! A client may have as much memory as is still free. So one client alone gets half of the memory, many clients get equal parts, and
//! some is always left for one more: "Dynamic queue length thresholds for shared-memory packet switches" (A. K. Choudhury, E. L. Hahne,
//! IEEE/ACM Transactions on Networking 6(2), 1998), with a factor of one.

use nacre_base::{FxHashMap, Nid};
use nacre_lnet::MAX_PAYLOAD;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The most data of one request that travels with it.
pub const EAGER_MAX: usize = MAX_PAYLOAD;
/// Memory that a server has for such data, in bytes, unless an administrator sets another limit. The server allocates it as data comes.
pub(crate) const EAGER_MEMORY: u64 = 512 << 20;
/// The most that an administrator may set, in MiB.
pub(crate) const EAGER_MEMORY_MB_MAX: u64 = 1 << 20;
/// Data travels with its request if a round trip takes at least this time. Over a shorter way requests are larger, and the server
/// receives their data straight into buffers for the device.
pub(crate) const FAR: Duration = Duration::from_millis(2);

/// The memory of a server.
#[derive(Debug)]
pub(crate) struct EagerMemory {
    max: u64,
    used: u64,
    /// Bytes of each client that has any.
    of_clients: FxHashMap<Nid, u64>,
    counts: EagerCounts,
}

/// What became of data that came with its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EagerCounts {
    /// Bytes that were kept.
    pub(crate) kept: u64,
    /// Bytes that were thrown away.
    pub(crate) refused: u64,
    /// The most memory that was ever used.
    pub(crate) most: u64,
}

impl Default for EagerMemory {
    fn default() -> EagerMemory {
        EagerMemory { max: EAGER_MEMORY, used: 0, of_clients: FxHashMap::default(), counts: EagerCounts::default() }
    }
}

impl EagerMemory {
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Changes the limit. If more memory is in use, the requests that have it give it back when they end.
    pub(crate) fn set_max(&mut self, max: u64) {
        self.max = max;
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn counts(&self) -> EagerCounts {
        self.counts
    }

    /// Bytes that any client may have now.
    pub(crate) fn grant(&self) -> u64 {
        self.max.saturating_sub(self.used)
    }

    /// Takes memory for data of a client; false if it has too much already.
    fn take(&mut self, client: Nid, bytes: u64) -> bool {
        let (free, own) = (self.grant(), self.of_clients.get(&client).copied().unwrap_or_default());
        if own.saturating_add(bytes) > free {
            self.counts.refused += bytes;
            return false;
        }
        *self.of_clients.entry(client).or_default() += bytes;
        self.used += bytes;
        self.counts.kept += bytes;
        self.counts.most = self.counts.most.max(self.used);
        assert!(
            self.used <= self.max,
            "{} of {} bytes are used for data that came with its requests",
            self.used,
            self.max
        );
        true
    }

    fn give(&mut self, client: Nid, bytes: u64) {
        let Some(own) = self.of_clients.get_mut(&client) else {
            panic!("{client} gives memory back that it never had")
        };
        assert!(bytes <= *own && *own <= self.used, "{client} gives {bytes} bytes back and has {own} of {}", self.used);
        *own -= bytes;
        self.used -= bytes;
        if *own == 0 {
            self.of_clients.remove(&client);
        }
    }
}

/// Memory that the data of a request has, until this is dropped.
#[must_use = "the memory is used until this is dropped"]
pub(crate) struct EagerInUse {
    memory: Arc<Mutex<EagerMemory>>,
    client: Nid,
    bytes: u64,
}

impl EagerInUse {
    /// Takes memory for data of a client, if it may have so much.
    pub(crate) fn take(memory: &Arc<Mutex<EagerMemory>>, client: Nid, bytes: usize) -> Option<EagerInUse> {
        let bytes = bytes as u64;
        let taken = memory.lock().take(client, bytes);
        taken.then(|| EagerInUse { memory: memory.clone(), client, bytes })
    }
}

impl Drop for EagerInUse {
    fn drop(&mut self) {
        self.memory.lock().give(self.client, self.bytes);
    }
}

/// A client's knowledge of the way to a target: how far it is, and how much memory it has been granted there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Distance {
    /// The least time of a round trip, in microseconds, or a little more if round trips have become longer; 0 if none was measured.
    least_us: u32,
    /// Granted, in units of [`GRANT_UNIT`].
    granted: u16,
    /// Answers to small requests in a row that took at least [`FAR`]. A quicker answer sets it to minus [`NEAR_WEIGHS`].
    far_in_a_row: i8,
}

/// A grant is kept in units of so many bytes, because a client has an import for each of hundreds of targets.
const GRANT_UNIT: u32 = 64 << 10;
/// A target is far away after this many such answers. One answer may be late because a near server is just starting, or busy. A writer
/// has two before its first write: those to its connect and to its request for a lock.
const FAR_ANSWERS: i8 = 2;
/// A quick answer shows that a target is near. After one it takes this many more late answers in a row until the route counts as long,
/// because a full network delays some.
const NEAR_WEIGHS: i8 = 14;

/// A measured round trip that takes longer than the least moves the least towards it by this part.
const DRIFT: u32 = 16;

impl Distance {
    /// A request was answered after so long, its time at the server left out. With bulk that is longer than a round trip, however near the
    /// server is, and says only how long one takes at most.
    pub(crate) fn handle_round_trip(&mut self, round_trip: Duration, has_bulk: bool) {
        let sample = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).max(1);
        if round_trip < FAR {
            self.far_in_a_row = -NEAR_WEIGHS;
        } else if !has_bulk {
            self.far_in_a_row = self.far_in_a_row.saturating_add(1);
        }
        self.least_us = match self.least_us {
            0 => sample,
            least if sample <= least => sample,
            least if has_bulk => least,
            // A new route counts within a few answers, and a delay of one answer is forgotten with the next.
            least => least + (sample - least).div_ceil(DRIFT),
        };
    }

    /// The server has granted so much.
    pub(crate) fn handle_grant(&mut self, bytes: u32) {
        self.granted = u16::try_from(bytes / GRANT_UNIT).unwrap_or(u16::MAX);
    }

    /// The least time of a round trip; zero if it is not known.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.least_us.into())
    }

    /// Whether the target is so far away that data should travel with its request.
    pub(crate) fn is_far(&self) -> bool {
        self.far_in_a_row >= FAR_ANSWERS
    }

    /// Bytes that the server has granted, in whole units.
    pub(crate) fn granted(&self) -> u64 {
        u64::from(self.granted) * u64::from(GRANT_UNIT)
    }

    /// Whether so many bytes more may be under way, beside those that are.
    pub(crate) fn has_room(&self, under_way: u64, bytes: u64) -> bool {
        under_way.saturating_add(bytes) <= self.granted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(max: u64) -> EagerMemory {
        EagerMemory { max, ..EagerMemory::default() }
    }

    #[test]
    fn one_client_has_half_of_the_memory_and_two_have_a_third_each() {
        let mut memory = memory(12 * MIB);
        let (a, b) = (Nid::sim(1), Nid::sim(2));
        let fill = |memory: &mut EagerMemory, client| (0..99).take_while(|_| memory.take(client, MIB)).count();
        assert_eq!(fill(&mut memory, a), 6);
        assert_eq!(fill(&mut memory, b), 3, "whoever comes later finds some");
        (0..6).for_each(|_| memory.give(a, MIB));
        assert_eq!((fill(&mut memory, b), fill(&mut memory, a)), (3, 3));
        (0..3).for_each(|_| memory.give(a, MIB));
        (0..6).for_each(|_| memory.give(b, MIB));
        assert_eq!((memory.used(), memory.grant(), memory.of_clients.len()), (0, 12 * MIB, 0));
        assert_eq!(memory.counts(), EagerCounts { kept: 15 * MIB, refused: 4 * MIB, most: 9 * MIB });
    }

    #[test]
    fn less_memory_is_not_exceeded_by_more() {
        let mut memory = memory(8 * MIB);
        assert!(memory.take(Nid::sim(1), 4 * MIB));
        memory.set_max(2 * MIB);
        assert_eq!(memory.grant(), 0);
        assert!(!memory.take(Nid::sim(2), 1));
        memory.give(Nid::sim(1), 4 * MIB);
        assert!(memory.take(Nid::sim(2), 1));
    }

    #[test]
    #[should_panic(expected = "gives memory back that it never had")]
    fn memory_comes_back_once() {
        let mut memory = memory(8 * MIB);
        assert!(memory.take(Nid::sim(1), MIB));
        memory.give(Nid::sim(1), MIB);
        memory.give(Nid::sim(1), MIB);
    }

    #[test]
    fn a_full_network_makes_no_distance_and_a_new_route_does() {
        let mut distance = Distance::default();
        let mut after = |ms: &[f64]| {
            ms.iter().for_each(|ms| distance.handle_round_trip(Duration::from_secs_f64(ms / 1e3), false));
            (distance.is_far(), distance.round_trip())
        };
        assert_eq!(after(&[0.2, 20.0]), (false, Duration::from_micros(200 + 1238)));
        assert_eq!(after(&[0.2]), (false, Duration::from_micros(200)));
        assert!(!after(&[92.0; 15]).0, "late answers");
        assert!(!after(&[0.2]).0 && !after(&[92.0; 15]).0 && after(&[92.0]).0);
        assert!(after(&[92.0; 60]).1 > Duration::from_millis(88));
        assert!(!after(&[0.2]).0);
    }

    #[test]
    fn the_first_two_answers_tell_the_distance() {
        let mut distance = Distance::default();
        distance.handle_round_trip(Duration::from_millis(92), false);
        assert!(!distance.is_far(), "a server that is just starting answers late");
        distance.handle_round_trip(Duration::from_millis(92), false);
        assert!(distance.is_far());
    }

    #[test]
    fn the_time_that_bulk_takes_makes_no_distance() {
        let mut distance = Distance::default();
        distance.handle_round_trip(Duration::from_micros(200), false);
        (0..99).for_each(|_| distance.handle_round_trip(Duration::from_millis(80), true));
        assert!(!distance.is_far());
        distance.handle_round_trip(Duration::from_micros(100), true);
        assert_eq!(distance.round_trip(), Duration::from_micros(100));
    }

    #[test]
    fn data_is_sent_along_within_the_grant() {
        let mut distance = Distance::default();
        assert!(!distance.has_room(0, 1));
        distance.handle_grant(2 * MIB as u32);
        assert!(distance.has_room(MIB, MIB) && !distance.has_room(MIB, MIB + 1) && !distance.has_room(u64::MAX, 1));
    }
}
