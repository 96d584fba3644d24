//! Memory descriptors: what peers may GET from or PUT into, by match bits, and the GETs whose REPLY is awaited.
//!
//! Match bits can be guessed, so each descriptor names the NIDs that may use it: those of the server that the request goes to.

use crate::error::LnetError;
use crate::message::MAX_PAYLOAD;
use nacre_base::{FxHashMap, Nid, Payload, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// Memory that peers may GET, for as long as this guard lives.
#[must_use = "dropping the guard takes the memory away again"]
pub struct MdGuard {
    exposed: Arc<Exposed>,
    match_bits: u64,
    registration: u64,
}

/// Memory that peers may PUT into, for as long as this guard lives.
#[must_use = "dropping the guard takes the memory away again"]
pub struct SinkGuard {
    exposed: Arc<Exposed>,
    match_bits: u64,
    registration: u64,
    sink: Arc<Sink>,
}

impl MdGuard {
    /// The bytes that peers may GET; none if the match bits were used again since.
    pub fn data(&self) -> Payload {
        self.exposed.read(Nid::LO, self.match_bits, 0, u64::MAX).unwrap_or_default()
    }

    /// From now on these NIDs, and no others, may GET it; this node itself may in any case.
    pub fn set_peers(&self, peers: &[Nid]) {
        let mut tables = self.exposed.tables.lock();
        let own = tables.sources.get_mut(&self.match_bits).filter(|entry| entry.registration == self.registration);
        own.into_iter().for_each(|entry| entry.peers = peers.into());
    }
}

impl SinkGuard {
    /// From now on these NIDs, and no others, may PUT into it; this node itself may in any case.
    pub fn set_peers(&self, peers: &[Nid]) {
        let mut tables = self.exposed.tables.lock();
        let own = tables.sinks.get_mut(&self.match_bits).filter(|entry| entry.registration == self.registration);
        own.into_iter().for_each(|entry| entry.peers = peers.into());
    }

    /// Waits until all bytes came: as many as the sink was made for, or fewer if the peer declared a shorter end.
    /// Never ends if the peer never sends them: callers have their own timeout.
    pub async fn filled(&mut self) -> Payload {
        loop {
            if let Some(payload) = self.sink.assembly.lock().complete() {
                return payload;
            }
            self.sink.changed.notified().await;
        }
    }
}

impl Drop for MdGuard {
    fn drop(&mut self) {
        let mut tables = self.exposed.tables.lock();
        if tables.sources.get(&self.match_bits).is_some_and(|entry| entry.registration == self.registration) {
            tables.sources.remove(&self.match_bits);
        }
    }
}

impl Drop for SinkGuard {
    fn drop(&mut self) {
        let mut tables = self.exposed.tables.lock();
        if tables.sinks.get(&self.match_bits).is_some_and(|entry| entry.registration == self.registration) {
            tables.sinks.remove(&self.match_bits);
        }
    }
}

/// The memory descriptors of a node. Match bits that are used again mean the newest registration.
#[derive(Default)]
pub(crate) struct Exposed {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// The next registration's number: tells a guard whether the entry is still its own.
    next: u64,
    sources: FxHashMap<u64, Entry<Payload>>,
    sinks: FxHashMap<u64, Entry<Arc<Sink>>>,
}

/// A memory descriptor.
struct Entry<T> {
    registration: u64,
    /// Who may use it, beside this node itself.
    peers: Arc<[Nid]>,
    memory: T,
}

impl<T> Entry<T> {
    fn is_for(&self, peer: Nid) -> bool {
        peer == Nid::LO || self.peers.contains(&peer)
    }
}

struct Sink {
    assembly: Mutex<Assembly>,
    changed: Notify,
}

impl Exposed {
    pub(crate) fn add_source(self: &Arc<Self>, peers: &[Nid], match_bits: u64, data: Payload) -> MdGuard {
        let mut tables = self.tables.lock();
        let registration = tables.next;
        tables.next += 1;
        tables.sources.insert(match_bits, Entry { registration, peers: peers.into(), memory: data });
        drop(tables);
        MdGuard { exposed: self.clone(), match_bits, registration }
    }

    pub(crate) fn add_sink(self: &Arc<Self>, peers: &[Nid], match_bits: u64, len: usize) -> SinkGuard {
        let sink = Arc::new(Sink { assembly: Mutex::new(Assembly::new(len as u64)), changed: Notify::new() });
        let mut tables = self.tables.lock();
        let registration = tables.next;
        tables.next += 1;
        tables.sinks.insert(match_bits, Entry { registration, peers: peers.into(), memory: sink.clone() });
        drop(tables);
        SinkGuard { exposed: self.clone(), match_bits, registration, sink }
    }

    /// The bytes that a GET asks for, fewer or none where the source ends; `None` if nothing is exposed to `peer`.
    pub(crate) fn read(&self, peer: Nid, match_bits: u64, offset: u64, length: u64) -> Option<Payload> {
        let tables = self.tables.lock();
        let data = &tables.sources.get(&match_bits).filter(|entry| entry.is_for(peer))?.memory;
        let start = offset.min(data.len() as u64);
        let len = length.min(data.len() as u64 - start);
        Some(data.slice(start as usize, len as usize))
    }

    /// Takes a part of a bulk PUT; false if nothing is exposed to `peer` or the part does not belong.
    pub(crate) fn write(&self, peer: Nid, match_bits: u64, offset: u64, total: u64, payload: Payload) -> bool {
        let tables = self.tables.lock();
        let sink = tables.sinks.get(&match_bits).filter(|entry| entry.is_for(peer)).map(|entry| entry.memory.clone());
        drop(tables);
        let Some(sink) = sink else { return false };
        let verdict = sink.assembly.lock().handle_piece(offset, total, payload);
        if verdict == Verdict::Complete {
            sink.changed.notify_one();
        }
        verdict != Verdict::Refused
    }
}

/// Puts the parts of a bulk transfer together. A sans-IO engine: parts may come in any order and more than once.
struct Assembly {
    /// Bytes that the sink was made for.
    max: u64,
    /// Bytes of the transfer as its sender declared it, with the first part.
    total: Option<u64>,
    received: u64,
    /// By offset. Offsets and lengths are so restricted that two parts of one transfer are equal or disjoint.
    pieces: BTreeMap<u64, Payload>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    /// This part was the last one missing.
    Complete,
    Refused,
}

impl Assembly {
    fn new(max: u64) -> Assembly {
        Assembly { max, total: None, received: 0, pieces: BTreeMap::new() }
    }

    fn handle_piece(&mut self, offset: u64, total: u64, payload: Payload) -> Verdict {
        let len = payload.len() as u64;
        // Senders cut at multiples of the largest message. Holding them to it bounds the number of pieces.
        let at_a_cut = offset.is_multiple_of(MAX_PAYLOAD as u64);
        let ends = offset.checked_add(len);
        let whole = len == MAX_PAYLOAD as u64 || ends == Some(total);
        if total > self.max || ends.is_none_or(|e| e > total) || !at_a_cut || !whole || (len == 0 && total > 0) {
            return Verdict::Refused;
        }
        if self.is_complete() || self.pieces.contains_key(&offset) && self.total == Some(total) {
            return Verdict::Accepted;
        }
        if self.total != Some(total) {
            // The sender began anew with another length: what came before is void.
            (self.total, self.received) = (Some(total), 0);
            self.pieces.clear();
        }
        self.received += len;
        self.pieces.insert(offset, payload);
        if self.is_complete() { Verdict::Complete } else { Verdict::Accepted }
    }

    fn is_complete(&self) -> bool {
        self.total == Some(self.received)
    }

    fn complete(&self) -> Option<Payload> {
        self.is_complete().then(|| {
            let mut all = Payload::new();
            self.pieces.values().for_each(|p| all.append(p.clone()));
            all
        })
    }
}

/// The answer to a GET, or why there is none.
pub(crate) type GetResult = Result<Payload, LnetError>;

/// GETs whose REPLY is awaited.
pub(crate) struct PendingGets {
    table: Mutex<GetTable>,
}

struct GetTable {
    next: u64,
    waiting: FxHashMap<u64, PendingGet>,
}

struct PendingGet {
    from: Nid,
    match_bits: u64,
    length: u64,
    started: Time,
    answer: oneshot::Sender<GetResult>,
}

/// A GET in flight; dropping it forgets the GET, and a late REPLY is dropped.
pub(crate) struct GetInFlight {
    gets: Arc<PendingGets>,
    pub(crate) id: u64,
    answer: oneshot::Receiver<GetResult>,
}

impl PendingGets {
    /// `first_id` should be random: a REPLY to a GET of this node's former life must find nothing.
    pub(crate) fn new(first_id: u64) -> Arc<PendingGets> {
        Arc::new(PendingGets { table: Mutex::new(GetTable { next: first_id, waiting: FxHashMap::default() }) })
    }

    pub(crate) fn start(self: &Arc<Self>, from: Nid, match_bits: u64, length: u64, started: Time) -> GetInFlight {
        let (tx, answer) = oneshot::channel();
        let mut table = self.table.lock();
        let id = table.next;
        table.next = table.next.wrapping_add(1);
        table.waiting.insert(id, PendingGet { from, match_bits, length, started, answer: tx });
        drop(table);
        GetInFlight { gets: self.clone(), id, answer }
    }

    /// A REPLY came. When its GET was sent, or `None` if nobody waits for it or it is not an answer to it.
    pub(crate) fn handle_reply(&self, source: Nid, id: u64, status: i32, payload: Payload) -> Option<Time> {
        let mut table = self.table.lock();
        let get = table.waiting.get(&id)?;
        if get.from != source || payload.len() as u64 > get.length {
            return None;
        }
        let get = table.waiting.remove(&id)?;
        drop(table);
        let result = if status == 0 { Ok(payload) } else { Err(LnetError::NoMatch(source, get.match_bits)) };
        let _ = get.answer.send(result);
        Some(get.started)
    }

    /// The GET could not be sent.
    pub(crate) fn handle_failure(&self, id: u64, error: LnetError) {
        let get = self.table.lock().waiting.remove(&id);
        if let Some(get) = get {
            let _ = get.answer.send(Err(error));
        }
    }

    /// Ends the GETs that `lost` names by their peer: their REPLY will not come.
    pub(crate) fn fail_all(&self, lost: impl Fn(Nid) -> bool, error: impl Fn(Nid) -> LnetError) {
        let mut table = self.table.lock();
        let ids: Vec<u64> = table.waiting.iter().filter(|(_, g)| lost(g.from)).map(|(id, _)| *id).collect();
        let gets: Vec<_> = ids.iter().filter_map(|id| table.waiting.remove(id)).collect();
        drop(table);
        for g in gets {
            let _ = g.answer.send(Err(error(g.from)));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().waiting.len()
    }
}

impl GetInFlight {
    pub(crate) async fn answer(&mut self) -> GetResult {
        (&mut self.answer).await.unwrap_or(Err(LnetError::Shutdown))
    }
}

impl Drop for GetInFlight {
    fn drop(&mut self) {
        self.gets.table.lock().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = MAX_PAYLOAD as u64;

    fn piece(fill: u8, len: u64) -> Payload {
        Payload::from(vec![fill; len as usize])
    }

    #[test]
    fn parts_in_any_order_and_doubled_make_the_whole() {
        let mut a = Assembly::new(3 * M);
        assert_eq!(a.handle_piece(2 * M, 2 * M + 5, piece(3, 5)), Verdict::Accepted);
        assert_eq!(a.handle_piece(0, 2 * M + 5, piece(1, M)), Verdict::Accepted);
        assert_eq!(a.handle_piece(0, 2 * M + 5, piece(9, M)), Verdict::Accepted, "a doubled part changes nothing");
        assert!(a.complete().is_none());
        assert_eq!(a.handle_piece(M, 2 * M + 5, piece(2, M)), Verdict::Complete);
        let mut want = piece(1, M);
        want.append(piece(2, M));
        want.append(piece(3, 5));
        assert!(a.complete() == Some(want));
    }

    #[test]
    fn parts_that_do_not_belong_are_refused() {
        let mut a = Assembly::new(2 * M);
        let bad = [
            (0, 2 * M + 1, M), // longer than the sink
            (M, M, M),         // beyond the declared end
            (7, 2 * M, M),     // not at a cut
            (0, 2 * M, 100),   // a fragment
            (0, 2 * M, 0),     // nothing
            (u64::MAX - M + 1, M, M),
        ];
        for (offset, total, len) in bad {
            assert_eq!(a.handle_piece(offset, total, piece(0, len)), Verdict::Refused, "{offset} {total} {len}");
        }
        assert_eq!(a.handle_piece(0, 0, Payload::new()), Verdict::Complete, "an empty transfer is a transfer");
    }

    #[test]
    fn another_length_begins_anew() {
        let mut a = Assembly::new(3 * M);
        a.handle_piece(0, 2 * M, piece(1, M));
        assert_eq!(a.handle_piece(0, 10, piece(2, 10)), Verdict::Complete);
        assert!(a.complete() == Some(piece(2, 10)));
    }

    #[test]
    fn a_guard_removes_only_its_own_registration() {
        let e = Arc::new(Exposed::default());
        let (peer, other) = (Nid::sim(1), Nid::sim(2));
        let old = e.add_source(&[peer], 7, piece(1, 3));
        let new = e.add_source(&[peer], 7, piece(2, 3));
        old.set_peers(&[other]);
        drop(old);
        assert!(e.read(peer, 7, 1, 9) == Some(piece(2, 2)));
        assert_eq!(e.read(peer, 7, u64::MAX, u64::MAX).map(|p| p.len()), Some(0));
        drop(new);
        assert!(e.read(peer, 7, 0, 1).is_none());
    }

    #[test]
    fn memory_is_for_the_peers_that_it_names() {
        let e = Arc::new(Exposed::default());
        let (server, twin, stranger) = (Nid::sim(1), Nid::sim(2), Nid::sim(3));
        let source = e.add_source(&[server], 7, piece(1, 3));
        let sink = e.add_sink(&[server], 8, 3);
        assert!(e.read(stranger, 7, 0, 3).is_none() && e.read(twin, 7, 0, 3).is_none());
        assert!(!e.write(stranger, 8, 0, 3, piece(6, 3)), "a stranger that guessed the match bits");
        source.set_peers(&[server, twin]);
        sink.set_peers(&[twin]);
        assert!(e.read(server, 7, 0, 3) == Some(piece(1, 3)) && e.read(twin, 7, 0, 3) == Some(piece(1, 3)));
        assert!(!e.write(server, 8, 0, 3, piece(6, 3)), "the request went to another node since");
        assert!(e.write(twin, 8, 0, 3, piece(1, 3)));
        assert!(e.read(Nid::LO, 7, 0, 3).is_some(), "this node itself");
    }

    #[test]
    fn replies_must_come_from_whom_was_asked_and_fit() {
        let gets = PendingGets::new(u64::MAX);
        let mut get = gets.start(Nid::sim(1), 5, 10, Time(3));
        assert_eq!(gets.handle_reply(Nid::sim(2), get.id, 0, piece(1, 10)), None);
        assert_eq!(gets.handle_reply(Nid::sim(1), get.id, 0, piece(1, 11)), None);
        assert_eq!(gets.handle_reply(Nid::sim(1), get.id.wrapping_add(1), 0, piece(1, 1)), None);
        assert_eq!(gets.handle_reply(Nid::sim(1), get.id, -2, Payload::new()), Some(Time(3)));
        assert_eq!(get.answer.try_recv().unwrap(), Err(LnetError::NoMatch(Nid::sim(1), 5)));
        let other = gets.start(Nid::sim(1), 5, 10, Time(3));
        assert_ne!(other.id, get.id);
        drop(other);
        assert_eq!(gets.len(), 0);
    }
}
