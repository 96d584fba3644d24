//! The request buffers of a lane of a node: a server takes a request from the network only into a buffer. While none is free
//! the request waits with the network's credit that its sender has used, so that senders are held back and nothing is dropped.
//! A sans-IO engine.
//!
//! A request has its buffer while it is queued or runs, and not while it waits for another client. A client may have an
//! eighth of the buffers, and more only while nobody else waits, and clients that wait take turns. High-priority requests,
//! which others wait for, have an eighth more to themselves.

use crate::eager::EagerInUse;
use crate::message::Incoming;
use crate::request_log::ReplyTo;
use nacre_base::{FxHashMap, Nid, Time};
use nacre_lnet::Receipt;
use nacre_wire::{Lane, Opcode};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Buffers of a lane, unless an administrator says otherwise.
pub(crate) const BUFFERS: u32 = 65_536;
/// Most buffers that an administrator may give a lane.
pub const BUFFERS_MAX: u32 = 1 << 24;
/// Part of the buffers that one client may have while others wait, and that high-priority requests have beyond all.
const PART: u32 = 8;

/// The engine. `T` is a request that has arrived.
pub(crate) struct RequestBuffers<T> {
    /// 0 if there is one for whatever comes.
    max: u32,
    used: u32,
    /// Buffers that the requests of each client have.
    held: FxHashMap<Nid, u32>,
    /// High-priority requests that wait. They go before all others.
    high: Waiting<T>,
    normal: Waiting<T>,
    counts: BufferCounts,
}

/// Requests that wait, since when, in a queue for each client.
struct Waiting<T> {
    queues: FxHashMap<Nid, VecDeque<(Time, T)>>,
    /// The clients that have a queue, in turn.
    turns: VecDeque<Nid>,
    /// Requests in all queues.
    count: u64,
}

/// Use of the buffers of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BufferCounts {
    /// Buffers in use.
    pub(crate) used: u64,
    /// The most that were ever in use.
    pub(crate) most: u64,
    /// Requests that wait for one.
    pub(crate) waiting: u64,
    /// Requests that have waited for one.
    pub(crate) waited: u64,
    /// Time that they waited in all.
    pub(crate) waited_for: Duration,
}

/// A buffer, with the client whose request is in it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffer is used until it is given back"]
pub(crate) struct Buffer(Nid);

/// A request that has arrived and has no buffer yet.
pub(crate) struct Arrived {
    pub(crate) opcode: Opcode,
    pub(crate) message: Incoming,
    pub(crate) reply_to: ReplyTo,
    /// Memory for data that came with the request.
    pub(crate) eager: Option<EagerInUse>,
    /// Keeps the credit that the sender has used.
    pub(crate) receipt: Receipt,
    pub(crate) at: Time,
}

/// The node that a buffer belongs to.
pub(crate) trait BufferOwner: Send + Sync {
    /// A request of this lane no longer needs its buffer.
    fn take_back(self: Arc<Self>, lane: Lane, buffer: Buffer);
}

/// The buffer of a request, which gives it back at most once.
pub(crate) struct BufferInUse {
    owner: Weak<dyn BufferOwner>,
    lane: Lane,
    buffer: Mutex<Option<Buffer>>,
}

impl BufferInUse {
    pub(crate) fn new(owner: Weak<dyn BufferOwner>, lane: Lane, buffer: Option<Buffer>) -> BufferInUse {
        BufferInUse { owner, lane, buffer: Mutex::new(buffer) }
    }

    /// The request no longer needs its buffer, if it had one.
    pub(crate) fn give_back(&self) {
        let Some(buffer) = self.buffer.lock().take() else { return };
        if let Some(owner) = self.owner.upgrade() {
            owner.take_back(self.lane, buffer);
        }
    }
}

impl Drop for BufferInUse {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<T> Default for RequestBuffers<T> {
    fn default() -> RequestBuffers<T> {
        let (held, high, normal, counts) = Default::default();
        RequestBuffers { max: BUFFERS, used: 0, held, high, normal, counts }
    }
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { queues: FxHashMap::default(), turns: VecDeque::new(), count: 0 }
    }
}

impl<T> Waiting<T> {
    fn push(&mut self, client: Nid, since: Time, request: T) {
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        queue.push_back((since, request));
        self.count += 1;
        self.assert_sound();
    }

    /// Takes the first request of the client at this place of the turns; the client's next turn comes after all others.
    fn pop(&mut self, place: usize) -> Option<(Nid, Time, T)> {
        let client = self.turns.remove(place)?;
        let queue = self.queues.get_mut(&client)?;
        let (since, request) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.count -= 1;
        self.assert_sound();
        Some((client, since, request))
    }

    /// Panics if a client lost its turn, or a request was lost by the time the last one went.
    fn assert_sound(&self) {
        assert_eq!(self.turns.len(), self.queues.len(), "clients that wait, and their turns");
        assert_eq!(self.count == 0, self.queues.is_empty(), "{} requests wait for a buffer", self.count);
    }
}

impl<T> RequestBuffers<T> {
    /// A request of a client has arrived. Returns it with a buffer; otherwise it waits, and a later call returns it.
    pub(crate) fn handle_arrival(&mut self, client: Nid, is_high: bool, request: T, now: Time) -> Option<(T, Buffer)> {
        // Earlier requests of the client that wait go first, unless other clients wait for this one.
        let goes = self.has_room(client, is_high) && (is_high || !self.normal.queues.contains_key(&client));
        if goes {
            return Some((request, self.take(client)));
        }
        let waiting = if is_high { &mut self.high } else { &mut self.normal };
        waiting.push(client, now, request);
        None
    }

    /// A buffer is free again. Returns the request that gets it.
    pub(crate) fn handle_done(&mut self, buffer: Buffer, now: Time) -> Option<(T, Buffer)> {
        let Buffer(client) = buffer;
        assert!(self.used > 0, "a buffer of {client} came back twice");
        self.used -= 1;
        let Some(held) = self.held.get_mut(&client) else {
            panic!("{client} gives a buffer back that it did not have")
        };
        *held -= 1;
        if *held == 0 {
            self.held.remove(&client);
        }
        self.next(now)
    }

    /// Another number of buffers; 0 is one for whatever comes. Returns the requests that get one now.
    pub(crate) fn set_max(&mut self, max: u32, now: Time) -> Vec<(T, Buffer)> {
        self.max = max;
        std::iter::from_fn(|| self.next(now)).collect()
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    pub(crate) fn counts(&self) -> BufferCounts {
        BufferCounts { used: self.used.into(), waiting: self.high.count + self.normal.count, ..self.counts }
    }

    /// The buffers that one client may have while others wait.
    fn share(&self) -> u32 {
        (self.max / PART).max(1)
    }

    fn is_within_share(&self, client: Nid) -> bool {
        self.held.get(&client).copied().unwrap_or(0) < self.share()
    }

    /// Whether a buffer is free for a request of this priority.
    fn is_free(&self, is_high: bool) -> bool {
        let most = if is_high { self.max.saturating_add(self.share()) } else { self.max };
        self.max == 0 || self.used < most
    }

    fn has_room(&self, client: Nid, is_high: bool) -> bool {
        let may_have = is_high || self.max == 0 || self.normal.turns.is_empty() || self.is_within_share(client);
        may_have && self.is_free(is_high)
    }

    fn take(&mut self, client: Nid) -> Buffer {
        self.used += 1;
        self.counts.most = self.counts.most.max(self.used.into());
        *self.held.entry(client).or_default() += 1;
        Buffer(client)
    }

    /// The next request that gets a buffer: a high-priority one if any waits; otherwise one of the client whose turn it is
    /// among those within their share, or of the one whose turn it is if there are none.
    fn next(&mut self, now: Time) -> Option<(T, Buffer)> {
        let is_high = self.high.count > 0;
        if !self.is_free(is_high) {
            return None;
        }
        let next = if is_high {
            self.high.pop(0)
        } else {
            // Few clients can be beyond their share, so that the search is short however many wait.
            let place = self.normal.turns.iter().position(|client| self.is_within_share(*client));
            self.normal.pop(place.unwrap_or(0))
        };
        let (client, since, request) = next?;
        self.counts.waited += 1;
        self.counts.waited_for += now.since(since);
        Some((request, self.take(client)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;

    const A: Nid = Nid::sim(1);
    const B: Nid = Nid::sim(2);

    fn of(max: u32) -> RequestBuffers<u32> {
        RequestBuffers { max, ..RequestBuffers::default() }
    }

    fn at(us: u64) -> Time {
        Time(us * 1000)
    }

    #[test]
    fn a_request_without_a_buffer_waits_for_one_and_is_counted() {
        let mut buffers = of(2);
        let (_, first) = buffers.handle_arrival(A, false, 1, at(0)).unwrap();
        let (_, second) = buffers.handle_arrival(A, false, 2, at(0)).unwrap();
        assert_eq!(buffers.handle_arrival(A, false, 3, at(10)), None);
        let (name, third) = buffers.handle_done(first, at(25)).unwrap();
        assert_eq!((name, buffers.handle_done(second, at(30)), buffers.handle_done(third, at(30))), (3, None, None));
        let waited_for = Duration::from_micros(15);
        assert_eq!(buffers.counts(), BufferCounts { used: 0, most: 2, waiting: 0, waited: 1, waited_for });
    }

    /// A client that sends more than its share waits as soon as anybody waits; the others go on.
    #[test]
    fn nobody_keeps_more_than_a_share_while_others_wait() {
        let mut buffers = of(16);
        let mut held: Vec<_> = (0..16).map(|n| buffers.handle_arrival(A, false, n, at(0)).unwrap().1).collect();
        for n in 0..4 {
            assert_eq!(buffers.handle_arrival(A, false, 100 + n, at(1)), None);
            assert_eq!(buffers.handle_arrival(B, false, 200 + n, at(1)), None);
        }
        let mut order = Vec::new();
        while let Some(buffer) = held.pop() {
            if let Some((name, _keeps_it)) = buffers.handle_done(buffer, at(2)) {
                order.push(name);
            }
        }
        assert_eq!(order, [200, 201, 100, 202, 101, 203, 102, 103], "B has its share first, then they take turns");
    }

    #[test]
    fn what_others_wait_for_has_buffers_beyond_all() {
        let mut buffers = of(8);
        let all: Vec<_> = (0..8).map(|n| buffers.handle_arrival(A, false, n, at(0)).unwrap().1).collect();
        assert_eq!(buffers.handle_arrival(B, false, 8, at(0)), None);
        let (_, high) = buffers.handle_arrival(B, true, 9, at(0)).unwrap();
        assert_eq!(buffers.handle_arrival(A, true, 10, at(0)), None);
        assert_eq!(buffers.handle_done(high, at(1)).unwrap().0, 10);
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn the_number_of_buffers_can_be_changed() {
        let mut buffers = of(1);
        let (_, first) = buffers.handle_arrival(A, false, 1, at(0)).unwrap();
        for n in 2..6 {
            assert_eq!(buffers.handle_arrival(A, false, n, at(0)), None);
        }
        let more: Vec<_> = buffers.set_max(3, at(1)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(more, [2, 3]);
        assert!(buffers.set_max(1, at(1)).is_empty());
        assert_eq!(buffers.handle_done(first, at(2)), None, "two are used, of one");
        assert_eq!(buffers.set_max(0, at(3)).len(), 2, "there is one for whatever comes");
    }

    #[test]
    #[should_panic(expected = "came back twice")]
    fn a_buffer_comes_back_once() {
        let mut buffers = of(4);
        let (_, Buffer(client)) = buffers.handle_arrival(A, false, 1, at(0)).unwrap();
        buffers.handle_done(Buffer(client), at(1));
        buffers.handle_done(Buffer(client), at(1));
    }

    #[test]
    fn random_traffic_loses_nothing() {
        for seed in 0..50 {
            let (mut prng, mut buffers) = (Prng::new(seed), of(6));
            let (mut held, mut seen, mut sent) = (Vec::new(), Vec::new(), 0);
            while sent < 300 || !held.is_empty() {
                if sent < 300 && prng.one_in(2) {
                    let client = Nid::sim(prng.below(5) as u32);
                    held.extend(buffers.handle_arrival(client, prng.one_in(8), sent, at(sent.into())));
                    sent += 1;
                } else if !held.is_empty() {
                    let (name, buffer) = held.swap_remove(prng.below(held.len() as u64) as usize);
                    seen.push(name);
                    held.extend(buffers.handle_done(buffer, at(1000)));
                }
                assert!(held.len() <= 7);
                for waiting in [&buffers.high, &buffers.normal] {
                    assert_eq!(waiting.count, waiting.queues.values().map(|queue| queue.len() as u64).sum());
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..300).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!((buffers.counts().used, buffers.held.len()), (0, 0));
        }
    }
}
